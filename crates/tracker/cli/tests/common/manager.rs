//! A service manager.

use std::{
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};

use swarmkeep_tests::udp::uninterrupted;

use crate::common::{A_MINUTE, Folder, Serve, swarmkeep};

/// A service manager, with the socket for notifications.
pub(crate) struct Manager {
    socket: UnixDatagram,
    folder: Folder,
}

impl Manager {
    pub(crate) fn new() -> Self {
        let folder = Folder::empty();
        Self { socket: UnixDatagram::bind(folder.join("notify")).expect("a short path"), folder }
    }

    /// Runs the program and watches it.
    pub(crate) fn run(&self, arguments: &[&str], watchdog: Duration) -> Serve {
        let mut command = swarmkeep(arguments);
        command
            .env("NOTIFY_SOCKET", self.folder.join("notify"))
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Serve::start(command)
    }

    pub(crate) fn next(&self) -> String {
        self.try_next(A_MINUTE).expect("a notification")
    }

    pub(crate) fn next_but_health(&self) -> String {
        let began = Instant::now();
        loop {
            let told = self.next();
            assert!(began.elapsed() < A_MINUTE, "nothing but health");
            if !told.starts_with("WATCHDOG") && !told.starts_with("STATUS") {
                return told;
            }
        }
    }

    pub(crate) fn try_next(&self, longest: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(longest)).expect("above zero");
        let mut told = [0; 1024];
        match uninterrupted(|| self.socket.recv(&mut told)) {
            Ok(len) => Some(String::from_utf8_lossy(&told[..len]).into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }
}
