//! Answers of a store that must wait: tasks work on batches while the thread that received them goes on.

use std::{
    mem,
    net::UdpSocket,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::StdRng};
use swarmkeep::{RandCore, Timestamp, catalog::Repository};
use tokio::{runtime::Handle, sync::mpsc};

use super::{Batch, Handler, batch::State, socket::send};

/// Lends batches to tasks. There are so many and no more: when all are lent, requests that need the store are turned away.
pub(crate) struct Later {
    runtime: Handle,
    repository: Repository,
    handler: Arc<Handler>,
    spare: mpsc::Receiver<Batch>,
    back: mpsc::Sender<Batch>,
}

impl Later {
    /// Batches that a store may be working on for one thread: of one request each where there is little to do, of
    /// [`Batch::MOST`] where there is much.
    const MOST: usize = 64;

    pub(crate) fn new(runtime: Handle, repository: Repository, handler: Arc<Handler>) -> Self {
        let (back, spare) = mpsc::channel(Self::MOST);
        (0..Self::MOST).for_each(|_| back.try_send(Batch::new()).expect("there is room for all"));
        Self { runtime, repository, handler, spare, back }
    }

    /// Takes what waits for the store out of `batch`, and sends it to `socket` when the store has answered. What is answered
    /// already stays.
    pub(super) fn take(
        &mut self,
        socket: &Arc<UdpSocket>,
        batch: &mut Batch,
        now: Timestamp,
        rng: &mut RandCore<StdRng>,
    ) {
        let Self { runtime, repository, handler, spare, back } = self;
        let Ok(spare) = spare.try_recv() else { return handler.turn_away(batch) };
        send(socket, batch);
        let mut lent = Lent { batch: Some(mem::replace(batch, spare)), back: back.clone() };
        let (repository, handler, socket) = (repository.clone(), Arc::clone(handler), Arc::clone(socket));
        let mut rng = RandCore(StdRng::from_rng(&mut rng.0));
        runtime.spawn(async move {
            let batch = lent.batch.as_mut().expect("it goes back when this is dropped");
            batch.forget_answered();
            handler.finish(&repository, batch, now, &mut rng).await;
            send(&socket, batch);
        });
    }

    /// Waits until the store has answered everything, but no longer than that.
    pub(super) fn finish(&mut self, longest: Duration) {
        let enough = Instant::now() + longest;
        let mut spare = 0;
        while spare < Self::MOST && Instant::now() < enough {
            match self.spare.try_recv() {
                Ok(_) => spare += 1,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// A batch that a task works on. It comes back whatever becomes of the task.
struct Lent {
    batch: Option<Batch>,
    back: mpsc::Sender<Batch>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(mut batch) = self.batch.take() {
            batch.clear();
            // Nobody takes it any more where the thread has ended.
            drop(self.back.try_send(batch));
        }
    }
}

impl Batch {
    /// Leaves only what is not answered yet.
    fn forget_answered(&mut self) {
        for exchange in &mut self.exchanges {
            if let State::Answered(_) = exchange.state {
                exchange.state = State::Ignored;
            }
        }
    }
}
