//! A tracker in a process of its own.

use std::{
    io::{self, BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

/// A running tracker, until it is dropped.
#[derive(Debug)]
pub struct Tracker {
    process: Child,
    /// Stays open, because the tracker may print errors.
    said: BufReader<ChildStderr>,
}

impl Tracker {
    /// Starts `program`, which is a tracker under the name `swarmkeep`, on a UDP port of the loopback.
    /// Returns its address too.
    pub fn start(program: &Path, arguments: &[&str]) -> io::Result<(Self, SocketAddr)> {
        let mut command = Command::new(program);
        command.arg0("swarmkeep").args(["serve", "--udp", "127.0.0.1:0", "--http", "off", "--admin", "off"]);
        let mut process = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let said = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut tracker = Self { process, said };
        let mut line = String::new();
        tracker.said.read_line(&mut line)?;
        let behind = line.split_once("listening on udp ").map(|(_, behind)| behind);
        let address = behind.and_then(|behind| behind.split([' ', ',', ';', '\n']).next()?.parse().ok());
        let address =
            address.ok_or_else(|| io::Error::other(format!("the tracker does not listen: {line}")))?;
        Ok((tracker, address))
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
