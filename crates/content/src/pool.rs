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
    /// 8 threads and 64 MiB of calls in each lane.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many threads in each lane, at least one: as many of its calls are under way at once.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count;
        self
    }

    /// Lets calls into a lane whose buffers are at most so many bytes together, a single larger one aside. A call without a buffer counts as [`LEAST`].
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
/// Calls that change something go in one lane, calls that only look in another, each with threads and room of its own: a store that holds
/// bytes back may let those who write wait for as long as the disk does, and who reads goes on meanwhile.
///
/// A call waits until there is room for it, first come, first served, then for a thread. A future does nothing until it is polled; if it is
/// dropped, the whole call was made, or will be, or nothing of it; what a store tells only once may then be told to nobody. A call that panics does so where it is awaited.
///
/// Handles can be dropped anywhere: the store and its torrents are dropped by the threads, which end by themselves once the pool and all that it
/// opened have been dropped and their calls have returned.
#[derive(Clone)]
pub struct Pool {
    store: Arc<Kept<dyn ContentRepository>>,
}

/// The content of a torrent, for asynchronous programs.
#[derive(Clone)]
pub struct PooledContent {
    content: Arc<Kept<dyn Content>>,
}

/// Something that a thread of the pool drops, as that may wait for the medium.
struct Kept<T: ?Sized + Send + Sync + 'static> {
    /// There until it is dropped.
    value: Option<Arc<T>>,
    running: Arc<Running>,
}

/// The threads, until nobody can ask for anything any more.
struct Running {
    /// Calls that change something, and may wait for memory.
    writing: Arc<Lane>,
    /// Calls that only look.
    reading: Arc<Lane>,
}

/// Threads, and the calls that wait for them.
struct Lane {
    room: Semaphore,
    most: usize,
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
        // Dropped on an error, which stops those that were started.
        let running = Running { writing: Lane::new(&options), reading: Lane::new(&options) };
        for (name, lane) in [("content-write", &running.writing), ("content-read", &running.reading)] {
            for _ in 0..options.threads.max(1) {
                let lane = Arc::clone(lane);
                Builder::new()
                    .name(name.to_owned())
                    .spawn(move || lane.work())
                    .map_err(Error::io("starting a thread of the pool"))?;
            }
        }
        Ok(Self { store: Kept::new(store, Arc::new(running)) })
    }

    /// The store. Who keeps it drops it where that may wait for the medium.
    pub fn store(&self) -> &Arc<dyn ContentRepository> {
        self.store.get()
    }

    /// As [`ContentRepository::create`].
    ///
    /// # Errors
    /// The store's.
    pub async fn create(&self, torrent: NewTorrent) -> Result<PooledContent> {
        self.opened(self.store.change(0, move |store| store.create(&torrent)).await)
    }

    /// As [`ContentRepository::open`].
    ///
    /// # Errors
    /// The store's.
    pub async fn open(&self, info_hash: InfoHash) -> Result<PooledContent> {
        self.opened(self.store.look(0, move |store| store.open(&info_hash)).await)
    }

    /// As [`ContentRepository::list`].
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self) -> Result<Vec<Summary>> {
        self.store.look(0, |store| store.list()).await
    }

    /// As [`ContentRepository::delete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn delete(&self, info_hash: InfoHash) -> Result<bool> {
        self.store.change(0, move |store| store.delete(&info_hash)).await
    }

    /// As [`ContentRepository::flush`].
    ///
    /// # Errors
    /// The store's.
    pub async fn flush(&self) -> Result<()> {
        self.store.change(0, |store| store.flush()).await
    }

    /// As [`ContentRepository::statistics`].
    pub async fn statistics(&self) -> Statistics {
        self.store.look(0, |store| store.statistics()).await
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// Bytes of the calls that were let in and have not returned.
    pub fn queued(&self) -> u64 {
        let Running { writing, reading } = &*self.store.running;
        [writing, reading].map(|lane| (lane.most - lane.room.available_permits()) as u64).iter().sum()
    }

    fn opened(&self, content: Result<Arc<dyn Content>>) -> Result<PooledContent> {
        Ok(PooledContent { content: Kept::new(content?, Arc::clone(&self.store.running)) })
    }
}

impl PooledContent {
    /// The content itself, whose calls block. Who keeps it drops it where that may wait for the medium.
    pub fn blocking(&self) -> &Arc<dyn Content> {
        self.content.get()
    }

    /// Its measures.
    pub fn geometry(&self) -> Geometry {
        self.blocking().geometry()
    }

    /// As [`Content::write_at`], of one buffer, which is given back.
    pub async fn write<B>(&self, offset: u64, buffer: B) -> (Result<()>, B)
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let len = buffer.as_ref().len();
        self.content
            .change(len, move |content| (content.write_at(offset, &[IoSlice::new(buffer.as_ref())]), buffer))
            .await
    }

    /// As [`Content::read_at`], of one buffer, which is filled and given back.
    pub async fn read<B>(&self, offset: u64, mut buffer: B) -> (Result<()>, B)
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let len = buffer.as_mut().len();
        self.content
            .look(len, move |content| {
                (content.read_at(offset, &mut [IoSliceMut::new(buffer.as_mut())]), buffer)
            })
            .await
    }

    /// As [`Content::mark_complete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.content.change(0, move |content| content.mark_complete(piece)).await
    }

    /// As [`Content::mark_incomplete`].
    ///
    /// # Errors
    /// The store's.
    pub async fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.content.change(0, move |content| content.mark_incomplete(piece)).await
    }

    /// As [`Content::pieces`].
    ///
    /// # Errors
    /// The store's.
    pub async fn pieces(&self) -> Result<PieceBits> {
        self.content.look(0, |content| content.pieces()).await
    }
}

impl<T: ?Sized + Send + Sync + 'static> Kept<T> {
    fn new(value: Arc<T>, running: Arc<Running>) -> Arc<Self> {
        Arc::new(Self { value: Some(value), running })
    }

    fn get(&self) -> &Arc<T> {
        self.value.as_ref().expect("it is there until it is dropped")
    }

    /// Makes a call that changes something, with a buffer of so many bytes.
    async fn change<A: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&T) -> A + Send + 'static,
    ) -> A {
        let value = Arc::clone(self.get());
        self.running.writing.call(bytes, move || work(&value)).await
    }

    /// Makes a call that only looks.
    async fn look<A: Send + 'static>(&self, bytes: usize, work: impl FnOnce(&T) -> A + Send + 'static) -> A {
        let value = Arc::clone(self.get());
        self.running.reading.call(bytes, move || work(&value)).await
    }
}

impl<T: ?Sized + Send + Sync + 'static> Drop for Kept<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        self.running.writing.push(Box::new(move || drop(value)));
    }
}

impl Lane {
    fn new(options: &PoolOptions) -> Arc<Self> {
        // On 32 bits a semaphore cannot count as far as the options can.
        let most = (options.most_queued.max(LEAST) as usize).min(Semaphore::MAX_PERMITS);
        Arc::new(Self { room: Semaphore::new(most), most, state: Mutex::default(), told: Condvar::new() })
    }

    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        // As many as 32 bits count, which is how the room was given.
        let permits = bytes.clamp(LEAST as usize, self.most) as u32;
        let room = self.room.acquire_many(permits).await.expect("nobody closes it");
        // It is the thread's from here on, whatever becomes of this future.
        room.forget();
        let (answer, answered) = oneshot::channel();
        let lane = Arc::clone(self);
        self.push(Box::new(move || {
            let room = Room { lane: &lane, permits };
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
    lane: &'a Lane,
    permits: u32,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.lane.room.add_permits(self.permits as usize);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for lane in [&self.writing, &self.reading] {
            lane.state.lock().stop = true;
            lane.told.notify_all();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("store", self.store()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PooledContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledContent").field("content", self.blocking()).finish_non_exhaustive()
    }
}
