//! A thread that answers: its sockets, and its share of the clients.

use std::{
    io::{self, PipeReader},
    net::UdpSocket,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rand::rngs::StdRng;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use swarmkeep::{RandCore, TorrentRepository};
use tracing::warn;

use super::{
    Batch, Handler,
    later::Later,
    socket::{Receiver, send},
};
use crate::{Reach, clock::now, seldom::Seldom};

/// How often sockets that never run dry are looked at before the thread asks again which others have
/// something, and whether to stop.
const ROUNDS: usize = 16;

/// For how long, when told to stop, it goes on answering what has been received: there may be no end to it.
const LONGEST_DRAIN: Duration = Duration::from_millis(250);

/// How long to wait for requests before showing that the thread is alive.
const LONGEST_POLL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long to wait after the system has refused something, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// One thread's sockets and what it takes to answer the requests that come to them.
pub(crate) struct Worker {
    /// One for each address that the tracker listens at, and from how far it is reached.
    pub(crate) sockets: Vec<(Arc<UdpSocket>, Reach)>,
    pub(crate) handler: Arc<Handler>,
    pub(crate) answers: Answers,
    pub(crate) rng: RandCore<StdRng>,
}

/// Who answers what needs the store.
pub(crate) enum Answers {
    /// The thread itself, from a synchronous store.
    AtOnce(Arc<dyn TorrentRepository>),
    /// Tasks of an asynchronous runtime, for each socket, from an asynchronous store.
    Later(Vec<Later>),
}

impl Worker {
    /// Answers until the other end of `stop` is closed, and then what has been received by then.
    pub(crate) fn run(self, stop: &PipeReader) {
        let Self { sockets, handler, answers, rng } = self;
        let mut answerer = BatchAnswerer { handler, answers, rng, batch: Batch::new() };
        let mut receivers: Vec<_> = sockets.iter().map(|_| Receiver::new()).collect();
        let mut ready = vec![false; sockets.len()];
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(sockets.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
        let mut stopping = false;
        while !stopping {
            answerer.handler.counters().beat(now().as_secs());
            match poll(&mut polled, Some(&LONGEST_POLL)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => {
                    warn!(%error, "cannot wait for requests");
                    thread::sleep(PAUSE_AFTER_ERROR);
                }
            }
            stopping = !polled[0].revents().is_empty();
            for (ready, polled) in ready.iter_mut().zip(&polled[1..]) {
                *ready = stopping || !polled.revents().is_empty();
            }
            let enough = stopping.then(|| Instant::now() + LONGEST_DRAIN);
            let mut rounds = 0;
            // One batch from each socket in turn: however much there is for one, the others have their share.
            while ready.contains(&true) && enough.map_or(rounds < ROUNDS, |enough| Instant::now() < enough) {
                rounds += 1;
                for (n, (receiver, ready)) in receivers.iter_mut().zip(&mut ready).enumerate() {
                    let (socket, reach) = &sockets[n];
                    *ready = *ready && answerer.exchange(n, socket, *reach, receiver);
                }
            }
        }
        if let Answers::Later(later) = &answerer.answers {
            let enough = Instant::now() + LONGEST_DRAIN;
            later.iter().for_each(|later| later.finish(enough.saturating_duration_since(Instant::now())));
        }
    }
}

/// What every batch passes over, whichever socket it comes from.
struct BatchAnswerer {
    handler: Arc<Handler>,
    answers: Answers,
    rng: RandCore<StdRng>,
    batch: Batch,
}

impl BatchAnswerer {
    /// Receives one batch from the nth socket and answers it; says whether there may be more.
    fn exchange(&mut self, nth: usize, socket: &UdpSocket, reach: Reach, receiver: &mut Receiver) -> bool {
        let Self { handler, answers, rng, batch } = self;
        if let Err(error) = receiver.receive(socket, batch) {
            if error.kind() != io::ErrorKind::WouldBlock {
                static WARNED: Seldom = Seldom::new(1);
                if WARNED.is_time(now()) {
                    warn!(%error, "cannot receive");
                }
                thread::sleep(PAUSE_AFTER_ERROR);
            }
            return false;
        }
        let more = batch.is_full();
        let now = now();
        if handler.admit(batch, reach, now) {
            match answers {
                Answers::AtOnce(store) => handler.finish(&**store, batch, now, rng),
                Answers::Later(later) => later[nth].take(batch, rng),
            }
        }
        send(socket, batch, handler.counters());
        more
    }
}
