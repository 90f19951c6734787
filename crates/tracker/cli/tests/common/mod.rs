//! `swarmkeep serve`, started and stopped.

mod folder;
pub(crate) mod https;
pub(crate) mod load;
pub(crate) mod manager;
pub(crate) mod state;

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, SystemTime},
};

pub(crate) use folder::Folder;
use nix::unistd::Uid;
pub(crate) use swarmkeep_store_tests::{A_MINUTE, found, until};
use swarmkeep_tests::udp::{Client, announce};

/// A running tracker; killed if a test fails before it has ended.
pub(crate) struct Serve {
    child: Child,
    /// Its standard error. In a lock, so that several threads may send signals.
    lines: Mutex<Receiver<String>>,
    pub(crate) first_line: String,
}

impl Serve {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::run(swarmkeep(arguments))
    }

    /// With these arguments, among them a file with the UDP addresses.
    pub(crate) fn start_at_file(arguments: &[&str]) -> Self {
        let mut command = swarmkeep(arguments);
        command.env_remove("SWARMKEEP_UDP");
        Self::run(command)
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).expect("text") > 0 && sender.send(line.split_off(0)).is_ok() {}
        });
        let mut serve = Self { child, lines: Mutex::new(lines), first_line: String::new() };
        serve.first_line = serve.lines().recv_timeout(A_MINUTE).expect("a line soon");
        serve
    }

    /// The printed addresses over UDP, and over HTTP.
    pub(crate) fn addresses(&self) -> [Vec<SocketAddr>; 2] {
        ["udp", "http"].map(|protocol| self.addresses_of(protocol))
    }

    /// The printed addresses over a protocol.
    pub(crate) fn addresses_of(&self, protocol: &str) -> Vec<SocketAddr> {
        let (listening, _) = self.first_line.split_once(';').unwrap_or_else(|| panic!("{}", self.first_line));
        let listening = listening.strip_prefix("listening on ").expect("it listens");
        let (mut of, mut addresses) = ("", Vec::new());
        for word in listening.split([' ', ',']).filter(|word| !word.is_empty()) {
            match word.parse() {
                Ok(address) if of == protocol => addresses.push(address),
                Ok(_) => {}
                Err(_) if word.contains(['(', ')']) => {}
                Err(_) => of = word,
            }
        }
        addresses
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, signal: &str) {
        swarmkeep_tests::serve::signal(self.pid(), signal).expect("it runs");
    }

    /// The output up to a line with this text.
    pub(crate) fn printed_until(&mut self, text: &str) -> String {
        let mut printed = String::new();
        while !printed.contains(text) {
            match self.lines().recv_timeout(A_MINUTE) {
                Ok(line) => printed += &line,
                Err(error) => panic!("{error} without `{text}`: {printed}"),
            }
        }
        printed
    }

    /// Sends a signal by its name and waits for the end; returns the exit code and the output.
    pub(crate) fn stop(self, signal: &str) -> (Option<i32>, String) {
        self.signal(signal);
        self.end()
    }

    /// Reads up to the line with its addresses, which becomes the first one; returns the lines before it.
    pub(crate) fn until_it_listens(&mut self) -> String {
        let mut before = String::new();
        while !self.first_line.starts_with("listening on") {
            before += &self.first_line;
            let next = self.lines().recv_timeout(A_MINUTE);
            self.first_line = next.unwrap_or_else(|_| panic!("it does not listen: {before}"));
        }
        before
    }

    /// Kills it; returns the output that was not read.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
        self.lines().iter().collect()
    }

    /// Waits for the end; returns the exit code and the output after the first line.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        (self.code(), self.lines().iter().collect())
    }

    fn lines(&mut self) -> &Receiver<String> {
        self.lines.get_mut().expect("no panics")
    }

    fn code(&mut self) -> Option<i32> {
        found("it ends", || self.child.try_wait().expect("a child")).code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn swarmkeep(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    // Listens at no default address, which may be in use.
    command.arg("serve").args(arguments);
    command.envs(["SWARMKEEP_ADMIN", "SWARMKEEP_UDP", "SWARMKEEP_HTTP"].map(|variable| (variable, "off")));
    command
}

/// The user `nobody`, and its group.
pub(crate) const NOBODY: u32 = 65534;

/// The same command for a user other than root: `nobody`, where root runs the tests.
pub(crate) fn not_as_root(folder: &Folder, command: &Command) -> Command {
    // Copied to a folder that all users can read; not by this process, since its children might hold the file
    // open.
    let program = folder.join("swarmkeep");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_swarmkeep")).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()), "no room for the program");
    let mut copy = Command::new(program);
    copy.args(command.get_args());
    copy.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if Uid::effective().is_root() {
        copy.uid(NOBODY).gid(NOBODY);
    }
    copy
}

pub(crate) fn refused(arguments: &[&str]) -> String {
    let (code, message) = ends(swarmkeep(arguments));
    assert_eq!(code, Some(2), "{arguments:?}: {message}");
    message
}

/// Waits for the end of a tracker that does not start; returns its exit code and output.
pub(crate) fn ends(command: Command) -> (Option<i32>, String) {
    let serve = Serve::run(command);
    let first_line = serve.first_line.clone();
    let (code, rest) = serve.end();
    (code, first_line + &rest)
}

/// The time of a log line, which begins as `2026-11-22T17:53:29.123456Z`.
pub(crate) fn logged_at(line: &str) -> SystemTime {
    let stamp = line.split(' ').next().expect("a line has a beginning");
    let numbers: Vec<u64> =
        stamp.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [year, month, day, hours, minutes, seconds, micros] = numbers[..] else { panic!("{line}") };
    // Days since the epoch in a calendar with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// The duration in a log line: `took=1.5ms`.
pub(crate) fn took(line: &str) -> Duration {
    let (_, took) = line.split_once("took=").unwrap_or_else(|| panic!("{line}"));
    let took = took.split_whitespace().next().expect("a time");
    let unit = took.find(|c: char| c.is_alphabetic() || c == 'µ').expect("a unit");
    let seconds = match &took[unit..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        _ => 1e-9,
    };
    Duration::from_secs_f64(took[..unit].parse::<f64>().expect("a number") * seconds)
}

/// The interval of a leecher's announce. No packet may get lost.
pub(crate) fn interval(tracker: SocketAddr) -> u32 {
    interval_asking_every(A_MINUTE, tracker)
}

/// The same from a tracker that may lose packets: each request is sent again after `patience`.
pub(crate) fn interval_asking_every(patience: Duration, tracker: SocketAddr) -> u32 {
    let mut client = Client::of(tracker);
    client.socket.set_read_timeout(Some(patience)).expect("above zero");
    let connection_id = client.connect();
    client.announce(announce(connection_id)).0.interval
}
