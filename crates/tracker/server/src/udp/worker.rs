//! A thread that answers requests from its fronts.

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
use swarmkeep::{RandCore, TorrentRepository, bittorrent::in_words};
use tracing::warn;

use super::{
    Batch, Handler,
    batch::Exchange,
    front::{Front, Listener, SocketFront},
    later::StoreQueue,
};
use crate::{
    clock::{awake_secs, now},
    seldom::LogLimit,
};

/// How many rounds a thread makes over fronts that are never empty before it checks for other fronts with
/// requests, and for the signal to stop.
const ROUNDS: usize = 16;

/// The longest time for received requests after the signal to stop: new ones may never end.
const LONGEST_DRAIN: Duration = Duration::from_millis(250);

/// How long to wait for requests before showing that the thread is alive.
const LONGEST_POLL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The pause after an error of the system, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// One thread: its sources of requests, and the parts that answer them.
pub(crate) struct Worker {
    /// One per listener.
    pub(crate) sockets: Vec<(Arc<UdpSocket>, Listener)>,
    /// A queue of an interface.
    pub(crate) queue: Option<Box<dyn Front + Send>>,
    pub(crate) handler: Arc<Handler>,
    pub(crate) answers: AnswerMode,
    pub(crate) rng: RandCore<StdRng>,
}

/// The way to answer requests that need the store.
pub(crate) enum AnswerMode {
    /// The thread itself, from a synchronous store.
    AtOnce(Arc<dyn TorrentRepository>),
    /// Tasks of an asynchronous runtime, for each listener, from an asynchronous store.
    Later(Vec<StoreQueue>),
}

impl Worker {
    /// Answers until the other end of `stop` is closed, and then the requests received before.
    pub(crate) fn run(self, stop: &PipeReader) {
        let Self { sockets, queue, handler, answers, rng } = self;
        let sockets = sockets.into_iter().map(|(socket, at)| Box::new(SocketFront::new(socket, at)) as _);
        let mut fronts: Vec<Box<dyn Front>> = sockets.collect();
        fronts.extend(queue.map(|queue| queue as _));
        let mut answerer = BatchAnswerer { handler, answers, rng, batch: Batch::new() };
        let descriptors: Vec<_> = fronts.iter().map(|front| front.descriptor()).collect();
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(descriptors.iter().map(|front| PollFd::new(front, PollFlags::IN)));
        let mut ready = vec![false; fronts.len()];
        let mut stopping = false;
        while !stopping {
            answerer.handler.counters().beat(awake_secs());
            match poll(&mut polled, Some(&LONGEST_POLL)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => {
                    warn!(error = %in_words(&error), "cannot wait for requests");
                    thread::sleep(PAUSE_AFTER_ERROR);
                }
            }
            stopping = !polled[0].revents().is_empty();
            for (ready, polled) in ready.iter_mut().zip(&polled[1..]) {
                *ready = stopping || !polled.revents().is_empty();
            }
            let enough = stopping.then(|| Instant::now() + LONGEST_DRAIN);
            let mut rounds = 0;
            // One batch from each in turn, so that a busy front leaves the others their share.
            while ready.contains(&true) && enough.map_or(rounds < ROUNDS, |enough| Instant::now() < enough) {
                rounds += 1;
                for (front, ready) in fronts.iter_mut().zip(&mut ready) {
                    *ready = *ready && answerer.exchange(&mut **front);
                }
            }
        }
        if let AnswerMode::Later(later) = &answerer.answers {
            let enough = Instant::now() + LONGEST_DRAIN;
            later.iter().for_each(|later| later.finish(enough.saturating_duration_since(Instant::now())));
        }
    }
}

/// Answers the batches of all fronts.
struct BatchAnswerer {
    handler: Arc<Handler>,
    answers: AnswerMode,
    rng: RandCore<StdRng>,
    batch: Batch,
}

impl BatchAnswerer {
    /// Receives one batch and answers it. Returns whether there may be more.
    fn exchange(&mut self, front: &mut dyn Front) -> bool {
        let Self { handler, answers, rng, batch } = self;
        if let Err(error) = front.receive(batch) {
            if error.kind() != io::ErrorKind::WouldBlock {
                static WARNED: LogLimit = LogLimit::new(1);
                if WARNED.is_time(now()) {
                    warn!(error = %in_words(&error), "cannot receive");
                }
                thread::sleep(PAUSE_AFTER_ERROR);
            }
            return false;
        }
        let now = now();
        let mut exchanges = front.exchanges(batch);
        let more = exchanges.is_full();
        if handler.admit_all(&mut exchanges, now) {
            match answers {
                AnswerMode::AtOnce(store) => handler.finish_all(&**store, &mut exchanges, now, rng),
                AnswerMode::Later(later) => {
                    let same = |a: &Exchange<'_>, b: &Exchange<'_>| a.listener.nth == b.listener.nth;
                    for of_one in exchanges.chunk_by_mut(same) {
                        later[of_one[0].listener.nth].take(of_one, rng);
                    }
                }
            }
        }
        drop(exchanges);
        front.send(batch, handler.counters());
        more
    }
}
