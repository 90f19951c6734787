//! Answers of a store that must wait: tasks work on requests while the thread that received them goes on.

use std::{
    collections::VecDeque,
    mem,
    net::UdpSocket,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::StdRng};
use swarmkeep::{AsyncTorrentRepository, RandCore};
use tokio::runtime::Handle;

use super::{
    Batch, Handler,
    batch::{Exchange, RequestState},
    socket::send,
};
use crate::clock::now;

/// The requests from one socket that wait for the store: a bounded queue, and the tasks that empty it. A task
/// takes as many requests at once as have gathered meanwhile, so the slower the store, the larger its
/// batches.
pub(crate) struct StoreQueue {
    queue: Arc<Queue>,
    runtime: Handle,
}

struct Queue {
    socket: Arc<UdpSocket>,
    store: Arc<dyn AsyncTorrentRepository>,
    handler: Arc<Handler>,
    waiting: Mutex<QueuedBatches>,
}

/// The requests of a queue, oldest first. Batches behind `open` are full.
struct QueuedBatches {
    full: VecDeque<Batch>,
    open: Batch,
    /// Empty batches, to be used again.
    spare: Vec<Batch>,
    tasks: usize,
}

impl StoreQueue {
    /// Batches that the store may be working on for one socket.
    const MOST_TASKS: usize = 16;

    /// Full batches that may wait, besides the open one and the batches of tasks: some 1,500 requests in all.
    const MOST_FULL: usize = 31;

    pub(crate) fn new(
        runtime: Handle,
        store: Arc<dyn AsyncTorrentRepository>,
        handler: Arc<Handler>,
        socket: Arc<UdpSocket>,
    ) -> Self {
        let (full, spare) = (VecDeque::new(), Vec::new());
        let waiting = Mutex::new(QueuedBatches { full, open: Batch::new(), spare, tasks: 0 });
        Self { queue: Arc::new(Queue { socket, store, handler, waiting }), runtime }
    }

    /// Takes requests that wait for the store out of `exchanges`, and answers them when the store has
    /// answered. If there is no room, they get an error at once.
    pub(super) fn take(&self, exchanges: &mut [Exchange<'_>], rng: &mut RandCore<StdRng>) {
        let Queue { handler, .. } = &*self.queue;
        let mut waiting = self.queue.waiting();
        if !waiting.admit(exchanges) {
            handler.turn_all_away(exchanges, rng);
        }
        if waiting.tasks < Self::MOST_TASKS {
            waiting.tasks += 1;
            // A runtime that is shutting down drops the task at once, which takes the lock.
            drop(waiting);
            let task = QueueTask { queue: Arc::clone(&self.queue), counted: true };
            let rng = RandCore(StdRng::from_rng(&mut rng.0));
            self.runtime.spawn(task.run(rng));
        }
    }

    /// Waits until the store has answered everything, at most `longest`.
    pub(super) fn finish(&self, longest: Duration) {
        let enough = Instant::now() + longest;
        while self.queue.waiting().tasks > 0 && Instant::now() < enough {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, QueuedBatches> {
        // No code under the lock panics.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedBatches {
    /// Moves requests that wait for the store to the queue. Returns whether there was room for all.
    fn admit(&mut self, exchanges: &mut [Exchange<'_>]) -> bool {
        for Exchange { source, asked, since, packet, state, .. } in exchanges {
            if !state.waits() {
                continue;
            }
            if self.open.is_full() {
                if self.full.len() == StoreQueue::MOST_FULL {
                    return false;
                }
                let next = self.spare.pop().unwrap_or_default();
                self.full.push_back(mem::replace(&mut self.open, next));
            }
            if self.open.received.is_empty() {
                self.open.since = *since;
            }
            self.open.push(packet, *source);
            let open = self.open.received.last_mut().expect("just pushed");
            open.asked = *asked;
            open.state = mem::replace(state, RequestState::Ignored);
        }
        true
    }

    /// The requests that have waited for the longest; none if none wait.
    fn next(&mut self) -> Option<Batch> {
        self.full.pop_front().or_else(|| {
            (!self.open.received.is_empty())
                .then(|| mem::replace(&mut self.open, self.spare.pop().unwrap_or_default()))
        })
    }
}

/// A task of a queue, which counts it until it ends, even by a panic.
struct QueueTask {
    queue: Arc<Queue>,
    counted: bool,
}

impl QueueTask {
    async fn run(mut self, mut rng: RandCore<StdRng>) {
        while let Some(mut batch) = self.next() {
            let Queue { socket, store, handler, .. } = &*self.queue;
            handler.announce_async(&**store, &mut batch, now(), &mut rng).await;
            send(socket, &batch, handler.counters());
            // Scrapes come last: one costs a store as much as many announces.
            batch.forget_answered();
            handler.scrape_async(&**store, &mut batch).await;
            send(socket, &batch, handler.counters());
            batch.clear();
            self.queue.waiting().spare.push(batch);
        }
    }

    /// The next batch. If there is none, the task is no longer counted: the next request starts another.
    fn next(&mut self) -> Option<Batch> {
        let mut waiting = self.queue.waiting();
        let next = waiting.next();
        if next.is_none() {
            waiting.tasks -= 1;
            self.counted = false;
        }
        next
    }
}

impl Drop for QueueTask {
    fn drop(&mut self) {
        if self.counted {
            self.queue.waiting().tasks -= 1;
        }
    }
}
