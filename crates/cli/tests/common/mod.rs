//! `swarmkeep serve`, started and stopped.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A running tracker; killed if a test fails before it has ended.
pub(crate) struct Serve {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) first_line: String,
}

impl Serve {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::run(swarmkeep(arguments))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut first_line = String::new();
        stderr.read_line(&mut first_line).expect("a line of text");
        Self { child, stderr, first_line }
    }

    /// The addresses that it says it listens on over UDP, and over HTTP.
    pub(crate) fn addresses(&self) -> [Vec<SocketAddr>; 2] {
        ["udp", "http"].map(|protocol| self.addresses_of(protocol))
    }

    /// The addresses that it says it listens on over a protocol.
    pub(crate) fn addresses_of(&self, protocol: &str) -> Vec<SocketAddr> {
        let (listening, _) = self.first_line.split_once(';').unwrap_or_else(|| panic!("{}", self.first_line));
        let listening = listening.strip_prefix("listening on ").expect("it listens");
        let (mut of, mut addresses) = ("", Vec::new());
        for word in listening.split([' ', ',']).filter(|word| !word.is_empty()) {
            match word.parse() {
                Ok(address) if of == protocol => addresses.push(address),
                Ok(_) => {}
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
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().expect("`kill` is there").success());
    }

    /// What is printed up to a line with this text.
    pub(crate) fn printed_until(&mut self, text: &str) -> String {
        let mut printed = String::new();
        while !printed.contains(text) {
            let more = self.stderr.read_line(&mut printed).expect("text");
            assert!(more > 0, "it ended without `{text}`: {printed}");
        }
        printed
    }

    /// Sends a signal by its name and waits for the end; answers the exit code, how long it took and what was printed.
    pub(crate) fn stop(mut self, signal: &str) -> (Option<i32>, Duration, String) {
        let asked = Instant::now();
        self.signal(signal);
        let status = self.child.wait().expect("it ends");
        let took = asked.elapsed();
        let mut printed = String::new();
        self.stderr.read_to_string(&mut printed).expect("text");
        (status.code(), took, printed)
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
    // Not where another one listens.
    command.arg("serve").args(arguments).env("SWARMKEEP_ADMIN", "off");
    command
}

pub(crate) fn refused(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = swarmkeep(arguments).output().expect("the program starts");
    assert_eq!(status.code(), Some(2), "{arguments:?}");
    String::from_utf8(stderr).expect("text")
}
