//! The program at work beside a test: `swarmkeep serve`.

use std::{
    env, fs, io,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use swarmkeep_store_tests::{A_MINUTE, found, programs::Need, resident_kb_of};
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
        command.stdin(Stdio::null()).stdout(Stdio::null());
    }
    command
}

/// Sends a process a signal by its name: `TERM`.
pub fn signal(pid: u32, name: &str) -> io::Result<()> {
    let signal: Signal = format!("SIG{name}").parse().expect("the name of a signal");
    Ok(kill(Pid::from_raw(pid.cast_signed()), signal)?)
}

/// A tracker in a process of its own, killed when dropped.
#[derive(Debug)]
pub struct Serve {
    child: Child,
    log: NamedTempFile,
    /// How much of the log was returned.
    read: usize,
}

impl Serve {
    /// Starts it, and waits until it listens.
    pub fn start(command: Command) -> Self {
        let mut serve = Self::launch(command);
        serve.printed_until("listening on ");
        serve
    }

    /// Starts a program that must not listen, and waits for its end. Returns its exit code and its log.
    pub fn refused(command: Command) -> (Option<i32>, String) {
        Self::launch(command).end()
    }

    fn launch(mut command: Command) -> Self {
        let log = NamedTempFile::new().expect("a file of ours");
        let written = log.as_file().try_clone().expect("open");
        let child = command.stderr(written).spawn().expect("the program starts");
        Self { child, log, read: 0 }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).expect("text")
    }

    /// The part of its log that was not returned yet, up to a line with this text, for which it waits.
    pub fn printed_until(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let is_last = self.child.try_wait().expect("a child").is_some() || began.elapsed() > A_MINUTE;
            let mut unread = self.unread();
            if let Some(end) = unread.find(text).and_then(|at| Some(at + unread[at..].find('\n')? + 1)) {
                self.read += end;
                unread.truncate(end);
                return unread;
            }
            assert!(!is_last, "it has ended, or needs more than a minute, without `{text}`: {unread}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn unread(&self) -> String {
        self.log().split_off(self.read)
    }

    /// The line with its addresses, and the log before it.
    pub fn listening(&self) -> [String; 2] {
        let log = self.log();
        let (before, behind) = log.split_once("listening on ").expect("it listens");
        [behind.lines().next().expect("a line"), before].map(str::to_owned)
    }

    /// Where it listens over UDP, and over HTTP.
    pub fn addresses(&self) -> [Vec<SocketAddr>; 2] {
        ["udp", "http"].map(|protocol| self.addresses_of(protocol))
    }

    /// Where it listens over a protocol.
    pub fn addresses_of(&self, protocol: &str) -> Vec<SocketAddr> {
        let [line, _] = self.listening();
        let (mut of, mut addresses) = ("", Vec::new());
        for word in line.split(';').next().unwrap_or_default().split([' ', ',']) {
            match word.parse() {
                Ok(address) if of == protocol => addresses.push(address),
                Ok(_) => {}
                Err(_) if word.is_empty() || word.contains(['(', ')']) => {}
                Err(_) => of = word,
            }
        }
        addresses
    }

    /// Where it first listens over `udp`, `http` or `https`, or has its `dashboard`.
    pub fn address(&self, protocol: &str) -> SocketAddr {
        match protocol {
            "dashboard" => found("its dashboard", || {
                self.log().split_once("dashboard at http://")?.1.split_once('/')?.0.parse().ok()
            }),
            _ => self.addresses_of(protocol)[0],
        }
    }

    /// Its resident set in KiB.
    pub fn resident_kb(&self) -> u64 {
        resident_kb_of(self.child.id())
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its threads, as folders of `/proc`.
    pub fn tasks(&self) -> impl Iterator<Item = PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        tasks.map(|task| task.expect("it runs").path())
    }

    /// A field of the status of each thread (proc_pid_status(5)).
    pub fn statuses(&self, field: &str) -> Vec<String> {
        let of = |task: PathBuf| {
            let status = fs::read_to_string(task.join("status")).expect("it runs");
            let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            value.expect("Linux has it").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        self.tasks().map(of).collect()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, signal: &str) {
        self::signal(self.child.id(), signal).expect("it runs");
    }

    /// Sends a signal by its name and waits for the end. Returns the exit code, and the log that was not
    /// returned yet.
    pub fn stop(self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        self.end()
    }

    /// Kills it. Returns the log that was not returned yet.
    pub fn kill(&mut self) -> String {
        self.kill_and_wait();
        self.unread()
    }

    fn kill_and_wait(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        found("it ends", || self.child.try_wait().expect("a child"))
    }

    fn end(mut self) -> (Option<i32>, String) {
        (self.ended().code(), self.unread())
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}
