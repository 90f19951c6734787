//! The frames of an interface, for workers that send and receive past their sockets.

use std::{
    collections::HashMap,
    io, mem,
    net::SocketAddr,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use swarmkeep_xdp::{Attached, Datagrams, Frame, Mode, Path, Queue, Settings};

use crate::{Config, Error, clock::Clock};

/// All queues of an interface, and the workers of their frames.
#[derive(Debug)]
pub(crate) struct Frames {
    interface: String,
    attached: Attached,
    queues: Vec<Queue>,
    workers: Workers,
    received: Option<ReceivedFrame>,
    /// The time of the answers that are read now.
    now: Option<u64>,
    unsent: usize,
}

/// The way of frames from a worker to its tracker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    path: Path,
    /// The queue of the answers.
    queue: usize,
}

#[derive(Debug)]
struct ReceivedFrame {
    frame: Frame,
    payload: Range<usize>,
    /// The way back.
    route: Route,
}

/// As many frames as one system call sends.
const BATCH: usize = 32;

/// The longest request that fits into a packet on every link. Sockets send longer ones in fragments.
const LONGEST_REQUEST: usize = 1280 - 40 - 8;

impl Frames {
    /// Attaches to the interface of the configuration, if there is one.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let Some(interface) = &config.xdp else { return Ok(None) };
        let targets = config.targets.iter().map(|target| unmapped(target.address()));
        let settings = Settings {
            interface: interface.clone(),
            datagrams: Datagrams::From(targets.collect()),
            connects: false,
            most_queues: usize::MAX,
            modes: Mode::ALL.to_vec(),
        };
        let interface = interface.clone();
        match Attached::new(&settings) {
            Ok((attached, queues)) => {
                let workers = Workers::default();
                Ok(Some(Self { interface, attached, queues, workers, received: None, now: None, unsent: 0 }))
            }
            Err(error) => Err(Error::Xdp { interface, reason: error.to_string() }),
        }
    }

    pub(crate) fn mode(&self) -> &'static str {
        self.attached.mode().map_or("none", Mode::name)
    }

    /// Sockets that become readable when a frame is received.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.queues.iter().map(Queue::socket)
    }

    /// Expects frames for a worker that has this connected socket.
    pub(crate) fn expect(&mut self, socket: BorrowedFd<'_>, worker: usize) -> io::Result<()> {
        let socket = socket2::SockRef::from(&socket);
        let ends = [socket.peer_addr()?, socket.local_addr()?].map(|end| end.as_socket());
        let [Some(from), Some(to)] = ends else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
        self.workers.add(from, to, worker);
        Ok(())
    }

    /// Refuses an interface that does not receive the answers to all of these connected workers.
    pub(crate) fn check(&self, connected: usize) -> Result<(), Error> {
        let missing = connected.saturating_sub(self.workers.heard);
        if missing == 0 {
            return Ok(());
        }
        let reason = format!(
            "the answers to {missing} of {connected} workers do not come by it; `ip route get` names the \
             interface that leads to a target"
        );
        Err(Error::Xdp { interface: self.interface.clone(), reason })
    }

    /// Takes the next answer from a queue, and returns the number of its worker.
    pub(crate) fn next(&mut self, number: usize) -> Option<usize> {
        let queue = &mut self.queues[number];
        while let Some(frame) = queue.receive() {
            if let Some((path, payload)) = Path::read(queue.bytes(&frame))
                && let Some(worker) = self.workers.find(path.from, path.to)
            {
                let route = Route { path: path.back(), queue: number };
                self.received = Some(ReceivedFrame { frame, payload, route });
                return Some(worker);
            }
            queue.give_back(frame);
        }
        None
    }

    /// Reads the answer that [`next`](Self::next) has taken, once, and its time. Returns `false` without one.
    pub(crate) fn read(&mut self, clock: &Clock, read: impl FnOnce(Route, &[u8], u64)) -> bool {
        let Some(ReceivedFrame { frame, payload, route }) = self.received.take() else { return false };
        let queue = &mut self.queues[route.queue];
        read(route, &queue.bytes(&frame)[payload], *self.now.get_or_insert_with(|| clock.now()));
        queue.give_back(frame);
        true
    }

    /// Sends a request, with the next [`flush`](Self::flush) at the latest. Returns whether there was room.
    pub(crate) fn send(&mut self, route: &Route, request: &[u8]) -> bool {
        let queue = &mut self.queues[route.queue];
        let frame = if request.len() > LONGEST_REQUEST { None } else { queue.take() };
        let Some(mut frame) = frame else {
            self.now = None;
            return false;
        };
        let bytes = queue.bytes_mut(&mut frame);
        bytes[route.path.headers()..][..request.len()].copy_from_slice(request);
        let len = route.path.write(bytes, request.len());
        let is_sent = queue.send(frame, len);
        self.unsent += 1;
        if self.unsent == BATCH {
            self.flush();
        }
        is_sent
    }

    /// Sends, and makes room for answers.
    pub(crate) fn flush(&mut self) {
        (self.unsent, self.now) = (0, None);
        for queue in &mut self.queues {
            // If the interface is down, the requests fail by their timeout.
            let _ = queue.flush();
        }
    }
}

/// Workers by the addresses that their answers go to.
#[derive(Debug, Default)]
struct Workers {
    workers: HashMap<SocketAddr, Worker>,
    /// The number of workers that have received a frame.
    heard: usize,
}

#[derive(Debug)]
struct Worker {
    number: usize,
    tracker: SocketAddr,
    has_heard: bool,
}

impl Workers {
    fn add(&mut self, from: SocketAddr, to: SocketAddr, number: usize) {
        self.workers.insert(unmapped(to), Worker { number, tracker: unmapped(from), has_heard: false });
    }

    fn find(&mut self, from: SocketAddr, to: SocketAddr) -> Option<usize> {
        let worker = self.workers.get_mut(&to).filter(|worker| worker.tracker == from)?;
        self.heard += usize::from(!mem::replace(&mut worker.has_heard, true));
        Some(worker.number)
    }
}

/// An address as frames have it: without an IPv4-mapped IP address, and without a scope.
fn unmapped(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_by_their_addresses() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut workers = Workers::default();
        for (number, (from, to)) in [
            ("10.0.0.9:6969", "10.0.0.1:1"),
            ("[::ffff:10.0.0.9]:6969", "[::ffff:10.0.0.1]:2"),
            ("[fe80::9%3]:6969", "[fe80::1%3]:1"),
            ("[fd00::9]:6969", "[fd00::1]:1"),
        ]
        .into_iter()
        .enumerate()
        {
            workers.add(address(from), address(to), number);
        }
        for (from, to, number) in [
            ("10.0.0.9:6969", "10.0.0.1:1", Some(0)),
            ("10.0.0.9:6969", "10.0.0.1:2", Some(1)),
            ("[fe80::9]:6969", "[fe80::1]:1", Some(2)),
            ("[fd00::9]:6969", "[fd00::1]:1", Some(3)),
            ("10.0.0.9:6969", "10.0.0.2:1", None),
            ("[fd00::9]:6969", "[fd00::1]:2", None),
            ("10.0.0.9:6968", "10.0.0.1:1", None),
            ("10.0.0.8:6969", "10.0.0.1:1", None),
            ("10.0.0.9:6969", "10.0.0.1:1", Some(0)),
        ] {
            assert_eq!(workers.find(address(from), address(to)), number, "{from} to {to}");
        }
        assert_eq!(workers.heard, 4, "each counts once");
    }
}
