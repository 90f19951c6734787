//! The parts of a demo: this program once more, in processes that do not outlive the demo.

use std::{
    convert::Infallible,
    env,
    error::Error,
    ffi::OsStr,
    fmt,
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

/// A process of the demo. It is killed when it is dropped, and when the demo dies, whatever of.
pub(super) struct Part {
    name: String,
    child: Child,
    /// What it printed to standard error.
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// How long what has to happen soon may take, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How often it is looked whether something has happened.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// So much of what a part says is kept.
const MOST_SAID: usize = 16 << 10;

/// Run a part of a demo in this process.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// The process of the demo.
    #[arg(long)]
    parent: i32,

    /// What the part is called with.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Becomes the part, which the system kills when the demo is gone.
pub fn run_part(PartArgs { parent, arguments }: PartArgs) -> Result<Infallible, Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Before that was said, nobody would have killed it.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err("the demo has ended".into());
    }
    let program =
        if arguments.first().is_some_and(|command| command == "serve") { "swarmkeep" } else { "seedkeep" };
    Err(Command::new(env::current_exe()?).arg0(program).args(arguments).exec().into())
}

/// Whether somebody wants the demo to end: SIGINT, SIGTERM or SIGHUP came.
#[derive(Clone)]
pub(super) struct Interruption(Arc<AtomicBool>);

/// Somebody wants the demo to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

impl Interruption {
    /// From here on, those signals are counted and do nothing else.
    pub(super) fn watch() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let (mut interrupt, mut terminate, mut hangup) = {
            let _within = runtime.enter();
            (signal(interrupt)?, signal(terminate)?, signal(hangup)?)
        };
        let came = Self(Arc::default());
        let told = came.clone();
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            told.0.store(true, Relaxed);
        });
        Ok(came)
    }

    /// # Errors
    /// [`Interrupted`] if one of them came.
    pub(super) fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}

impl Part {
    /// Starts the program in a folder. Each line that it prints is given to `line`, on another thread.
    pub(super) fn start(
        name: impl Into<String>,
        folder: &Path,
        arguments: &[impl AsRef<OsStr>],
        mut line: impl FnMut(&str) + Send + 'static,
    ) -> Result<Self, Box<dyn Error>> {
        let name = name.into();
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["demo-part", "--parent", &process::id().to_string(), "--"])
            .args(arguments)
            .current_dir(folder)
            // What interrupts the demo at a terminal does not end its parts before it has shown how.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Settings of a tracker that somebody runs here are none of this one's.
        let settings = env::vars_os().map(|(name, _)| name);
        settings
            .filter(|name| name.as_encoded_bytes().starts_with(b"SWARMKEEP_"))
            .for_each(|name| _ = command.env_remove(name));
        let mut child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let said = Arc::<Mutex<String>>::default();
        let keep = {
            let said = Arc::clone(&said);
            move |line: &str| {
                let mut said = lock(&said);
                if said.len() + line.len() < MOST_SAID {
                    *said += line;
                    *said += "\n";
                }
            }
        };
        let (stdout, stderr) =
            (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let readers = vec![
            thread::spawn(move || each_line(stdout, |text| line(text))),
            thread::spawn(move || each_line(stderr, keep)),
        ];
        Ok(Self { name, child, said, readers })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed to standard error so far.
    pub(super) fn said(&self) -> String {
        lock(&self.said).clone()
    }

    /// # Errors
    /// If it has ended: how.
    pub(super) fn check(&mut self) -> Result<(), Box<dyn Error>> {
        match self.ended()? {
            Some(status) => Err(self.told_of(format_args!("has ended unexpectedly ({status})"))),
            None => Ok(()),
        }
    }

    /// Ends it as no program can resist, and waits until it is gone; all that it has printed is read then.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.read_on();
        Ok(())
    }

    /// Asks it to end, which is to be with exit code 0.
    pub(super) fn stop(&mut self, interruption: &Interruption) -> Result<(), Box<dyn Error>> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let asked = Instant::now();
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.told_of(format_args!("was asked to end ({status})"))),
                None if asked.elapsed() > PATIENCE => {
                    return Err(self.told_of(format_args!("was asked to end, and did not")));
                }
                None => interruption.check()?,
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits until it ends; all that it has printed is read then.
    pub(super) fn done(&mut self, interruption: &Interruption) -> Result<ExitStatus, Box<dyn Error>> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            interruption.check()?;
            thread::sleep(PAUSE);
        }
    }

    /// An error about it, with its own words.
    pub(super) fn told_of(&self, what: fmt::Arguments<'_>) -> Box<dyn Error> {
        let said = self.said();
        let said = said.trim();
        let said = if said.is_empty() { String::new() } else { format!("; it said: {said}") };
        format!("{} {what}{said}", self.name).into()
    }

    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.read_on();
        }
        Ok(status)
    }

    /// What it printed last may not have been read when it is gone.
    fn read_on(&mut self) {
        // A reader panics with nobody but the demo.
        self.readers.drain(..).for_each(|reader| _ = reader.join());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.kill();
    }
}

fn each_line(pipe: impl Read, mut line: impl FnMut(&str)) {
    BufReader::new(pipe).lines().map_while(Result::ok).for_each(|text| line(&text));
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
