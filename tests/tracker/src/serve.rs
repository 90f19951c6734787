//! The program at work beside a test: `swarmkeep serve`.

use std::{
    env, fs, io,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use swarmkeep_store_tests::{found, programs::Need, resident_kb_of, until};
use tempfile::NamedTempFile;

/// The program itself, which `cargo test --workspace` builds.
pub const PROGRAM: Need =
    Need::other("the program swarmkeep", "cargo build -p swarmkeep-cli, in the same profile", |_| {
        program().exists()
    });

/// Where the program is, beside the tests' own: for tests with the need [`PROGRAM`].
pub fn program() -> PathBuf {
    env::current_exe().expect("a test is a program").with_file_name("../swarmkeep")
}

/// The program with this subcommand, which finds no setting in the environment.
pub fn swarmkeep(program: &PathBuf, subcommand: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().arg(subcommand);
    if subcommand == "serve" {
        command.envs(["SWARMKEEP_UDP", "SWARMKEEP_HTTP"].map(|variable| (variable, "off")));
    }
    command
}

/// Sends a process a signal by its name: `TERM`.
///
/// # Errors
/// There is no such process.
pub fn signal(pid: u32, name: &str) -> io::Result<()> {
    let signal: Signal = format!("SIG{name}").parse().expect("the name of a signal");
    Ok(kill(Pid::from_raw(pid.cast_signed()), signal)?)
}

/// A tracker in a process of its own, killed when dropped.
#[derive(Debug)]
pub struct Serve {
    child: Child,
    log: NamedTempFile,
}

impl Serve {
    /// Starts it, and waits until it listens.
    pub fn start(command: Command) -> Self {
        let mut serve = Self::launch(command);
        until("it listens", || {
            let ended = serve.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it does not listen: {}", serve.log());
            serve.log().contains("listening on ")
        });
        serve
    }

    /// Starts a program that must not listen, and waits for its end. Returns its exit code and its log.
    pub fn refused(command: Command) -> (Option<i32>, String) {
        let mut serve = Self::launch(command);
        let status = serve.ended();
        (status.code(), serve.log())
    }

    fn launch(mut command: Command) -> Self {
        let log = NamedTempFile::new().expect("a file of ours");
        let written = log.as_file().try_clone().expect("open");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(written).spawn();
        Self { child: child.expect("the program starts"), log }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).expect("text")
    }

    /// Where it listens over `udp`, `http` or `https`, or has its `dashboard`.
    pub fn address(&self, protocol: &str) -> SocketAddr {
        let address = |line: &str| match protocol {
            "dashboard" => line.split_once("dashboard at http://")?.1.split('/').next()?.parse().ok(),
            _ => {
                let listening = line.split_once("listening on ")?.1.split(';').next()?;
                let of = listening.split(&format!("{protocol} ")).nth(1)?;
                of.split([',', ' ']).next()?.parse().ok()
            }
        };
        // Its dashboard comes last.
        found(protocol, || self.log().lines().find_map(address))
    }

    /// Its resident set in KiB.
    pub fn resident_kb(&self) -> u64 {
        resident_kb_of(self.child.id())
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, signal: &str) {
        self::signal(self.child.id(), signal).expect("it runs");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        found("it ends", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.kill();
    }
}
