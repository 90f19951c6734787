//! The process of a server. It ends with this process.

use std::{
    env, fs,
    io::{self, ErrorKind},
    path::{self, Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, mpsc},
    thread,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{Error, Result};

/// The environment variable with the program to run instead of `redis-server`: a path, or a name in PATH.
pub const PROGRAM_VARIABLE: &str = "SWARMKEEP_REDIS_SERVER";

/// The environment variable with a module that each server loads, if its directives name none: the path of a
/// library.
pub const MODULE_VARIABLE: &str = "SWARMKEEP_REDIS_MODULE";

/// The configuration file in a server's folder.
pub(crate) const CONFIGURATION: &str = "server.conf";

const LOG: &str = "log";

/// A child that is killed and waited for when this value is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    is_paused: bool,
}

impl Process {
    /// Starts a server in its folder, where its configuration lies. It may not answer yet.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join(LOG));
        let log = log.map_err(Error::io("opening a server's log"))?;
        let errors = log.try_clone().map_err(Error::io("opening a server's log"))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program()?).arg(CONFIGURATION);
        command.current_dir(folder).stdin(Stdio::null()).stdout(log).stderr(errors);
        match spawn(command) {
            Ok(child) => Ok(Self { child, is_paused: false }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::NotInstalled { program: "setpriv".to_owned(), package: "util-linux" })
            }
            Err(error) => Err(Error::io("starting a server")(error)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended.
    pub(crate) fn check(&mut self, folder: &Path) -> Result<()> {
        // The exit code of `setpriv` and of shells if there is no such program.
        const NO_PROGRAM: i32 = 127;
        let Some(status) = self.child.try_wait().map_err(Error::io("looking after a server"))? else {
            return Ok(());
        };
        if status.code() == Some(NO_PROGRAM) {
            let program = program()?.display().to_string();
            return Err(Error::NotInstalled { program, package: "redis-server" });
        }
        let log = fs::read(folder.join(LOG)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        Err(Error::Exited {
            status: status.to_string(),
            log: lines[lines.len().saturating_sub(12)..].join("\n"),
        })
    }

    /// It runs and is not paused.
    pub(crate) fn is_live(&mut self) -> bool {
        !self.is_paused && matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns when the process has stopped.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP)?;
        // The process is not reaped here: `Child` does that.
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        self.is_paused = true;
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::CONT)?;
        self.is_paused = false;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program to run. A path is made absolute, because the server has another current directory.
fn program() -> Result<PathBuf> {
    let Some(program) = env::var_os(PROGRAM_VARIABLE) else { return Ok("redis-server".into()) };
    let program = PathBuf::from(program);
    match program.components().count() {
        1 => Ok(program),
        _ => path::absolute(&program).map_err(Error::io("finding the server's program")),
    }
}

/// Spawns from a thread that lasts as long as this process does. The signal for a parent's death is sent when
/// the *thread* that spawned ends, and each test is a thread. `setpriv` requests the signal; without it, that
/// takes `unsafe`.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, received) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    let gone = |_| io::Error::other("the thread that spawns servers is gone");
    SPAWNER.send((command, answer)).map_err(|error| gone(error.to_string()))?;
    child.recv().map_err(|error| gone(error.to_string()))?
}
