//! Calls to a store from asynchronous programs: a bounded pool of threads that makes them, and futures of what they answer.

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    io::{IoSlice, IoSliceMut},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread::Builder,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};

use crate::{
    Capabilities, Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits, Result,
    Statistics, Summary,
};

/// How a [`Pool`] is made.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    threads: usize,
    most_queued: u32,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { threads: 8, most_queued: 64 << 20 }
    }
}

impl PoolOptions {
    /// 8 threads, and 64 MiB of calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many threads, at least one: as many calls are under way at once.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count;
        self
    }

    /// Lets in calls whose buffers are at most so many bytes together, a single larger one aside. A call without a buffer counts as [`LEAST`].
    #[must_use]
    pub fn most_queued(mut self, bytes: u32) -> Self {
        self.most_queued = bytes;
        self
    }
}

/// Bytes that any call counts as, so that those without a buffer are bounded too.
pub const LEAST: u32 = 1 << 10;

/// A store for asynchronous programs, whatever their runtime. Its futures block nobody, however slow the store is.
///
/// A call waits until there is room for it, first come, first served, then for a thread. A future does nothing until it is polled; if it is
/// dropped, the whole call was made, or will be, or nothing of it. A call that panics does so where it is awaited.
///
/// The threads end by themselves once the pool and all that it opened have been dropped and their calls have returned.
#[derive(Clone)]
pub struct Pool {
    store: Arc<dyn ContentRepository>,
    running: Arc<Running>,
}

/// The content of a torrent, for asynchronous programs.
#[derive(Clone)]
pub struct PooledContent {
    content: Arc<dyn Content>,
    running: Arc<Running>,
}

/// The threads, until nobody can ask for anything any more.
struct Running(Arc<Queue>);

struct Queue {
    room: Semaphore,
    most: u32,
    state: Mutex<State>,
    /// Told when there is a call, or none any more.
    told: Condvar,
}

#[derive(Default)]
struct State {
    calls: VecDeque<Box<dyn FnOnce() + Send>>,
    stop: bool,
}

impl Pool {
    /// A pool for a store.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub fn new(store: Arc<dyn ContentRepository>, options: PoolOptions) -> Result<Self> {
        let most = options.most_queued.max(LEAST);
        let queue = Queue {
            room: Semaphore::new(most as usize),
            most,
            state: Mutex::default(),
            told: Condvar::new(),
        };
        // Dropped on an error, which stops those that were started.
        let running = Arc::new(Running(Arc::new(queue)));
        for _ in 0..options.threads.max(1) {
            let queue = Arc::clone(&running.0);
            Builder::new()
                .name("content-pool".to_owned())
                .spawn(move || queue.work())
                .map_err(Error::io("starting a thread of the pool"))?;
        }
        Ok(Self { store, running })
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn ContentRepository> {
        &self.store
    }

    /// As [`ContentRepository::create`].
    ///
    /// # Errors
    /// The store's.
    pub async fn create(&self, torrent: NewTorrent) -> Result<PooledContent> {
        let content = self.call(move |store| store.create(&torrent)).await?;
        Ok(PooledContent { content, running: Arc::clone(&self.running) })
    }

    /// As [`ContentRepository::open`].
    ///
    /// # Errors
    /// The store's.
    pub async fn open(&self, info_hash: InfoHash) -> Result<PooledContent> {
        let content = self.call(move |store| store.open(&info_hash)).await?;
        Ok(PooledContent { content, running: Arc::clone(&self.running) })
    }

    /// As [`ContentRepository::list`].
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self) -> Result<Vec<Summary>> {
        self.call(|store| store.list()).await
    }

    /// As [`ContentRepository::delete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn delete(&self, info_hash: InfoHash) -> Result<bool> {
        self.call(move |store| store.delete(&info_hash)).await
    }

    /// As [`ContentRepository::flush`].
    ///
    /// # Errors
    /// The store's.
    pub async fn flush(&self) -> Result<()> {
        self.call(|store| store.flush()).await
    }

    /// As [`ContentRepository::statistics`].
    pub async fn statistics(&self) -> Statistics {
        self.call(|store| store.statistics()).await
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Bytes of the calls that were let in and have not returned.
    pub fn queued(&self) -> u32 {
        self.running.0.most - self.running.0.room.available_permits() as u32
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ContentRepository) -> T + Send + 'static,
    ) -> T {
        let store = Arc::clone(&self.store);
        self.running.0.call(0, move || work(&*store)).await
    }
}

impl PooledContent {
    /// The content itself, whose calls block.
    pub fn blocking(&self) -> &Arc<dyn Content> {
        &self.content
    }

    /// Its measures.
    pub fn geometry(&self) -> Geometry {
        self.content.geometry()
    }

    /// As [`Content::write_at`], of one buffer, which is given back.
    pub async fn write<B>(&self, offset: u64, buffer: B) -> (Result<()>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let len = buffer.as_ref().len();
        self.call(len, move |content| (content.write_at(offset, &[IoSlice::new(buffer.as_ref())]), buffer))
            .await
    }

    /// As [`Content::read_at`], of one buffer, which is filled and given back.
    pub async fn read<B>(&self, offset: u64, mut buffer: B) -> (Result<()>, B)
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let len = buffer.as_mut().len();
        self.call(len, move |content| {
            (content.read_at(offset, &mut [IoSliceMut::new(buffer.as_mut())]), buffer)
        })
        .await
    }

    /// As [`Content::mark_complete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.call(0, move |content| content.mark_complete(piece)).await
    }

    /// As [`Content::mark_incomplete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.call(0, move |content| content.mark_incomplete(piece)).await
    }

    /// As [`Content::pieces`].
    ///
    /// # Errors
    /// The store's.
    pub async fn pieces(&self) -> Result<PieceBits> {
        self.call(0, |content| content.pieces()).await
    }

    async fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&dyn Content) -> T + Send + 'static,
    ) -> T {
        let content = Arc::clone(&self.content);
        self.running.0.call(bytes, move || work(&*content)).await
    }
}

impl Queue {
    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(LEAST, self.most);
        let room = self.room.acquire_many(permits).await.expect("nobody closes it");
        // It is the thread's from here on, whatever becomes of this future.
        room.forget();
        let (answer, answered) = oneshot::channel();
        let queue = Arc::clone(self);
        self.push(Box::new(move || {
            let room = Room { queue: &queue, permits };
            // Nobody waits for it any more: nothing of it was done, nothing of it will be.
            if !answer.is_closed() {
                let result: Result<T, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(work));
                drop(room);
                let _ = answer.send(result);
            }
        }));
        match answered.await.expect("a thread answers for as long as somebody waits") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn push(&self, call: Box<dyn FnOnce() + Send>) {
        self.state.lock().calls.push_back(call);
        self.told.notify_one();
    }

    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            self.told.wait_while(&mut state, |state| state.calls.is_empty() && !state.stop);
            let Some(call) = state.calls.pop_front() else {
                return;
            };
            drop(state);
            call();
        }
    }
}

/// What a call counts as, until it has returned.
struct Room<'a> {
    queue: &'a Queue,
    permits: u32,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.queue.room.add_permits(self.permits as usize);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.told.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("store", &self.store).finish_non_exhaustive()
    }
}

impl fmt::Debug for PooledContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledContent").field("content", &self.content).finish_non_exhaustive()
    }
}
