//! A cache in front of any store: writes are gathered into whole stripes and written in the order of the
//! device, reads bring whole stripes.

mod backlog;
mod gathered;
mod read_ahead;
mod torrent;
mod writers;

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{Builder, JoinHandle},
};

use gathered::CHUNK;
use parking_lot::{Condvar, Mutex};
pub use torrent::Affinity;
use torrent::{Cache, Core, Handle, Torrent};
use writers::Writers;

use crate::{
    Capabilities, Content, ContentRepository, Error, InfoHash, NewTorrent, Result, Statistics, Summary,
};

/// How a [`StripeCache`] is made.
#[derive(Debug, Clone)]
pub struct StripeCacheOptions {
    stripe: Option<u32>,
    write_memory: u64,
    read_memory: u64,
    threads: usize,
}

impl Default for StripeCacheOptions {
    fn default() -> Self {
        Self { stripe: None, write_memory: 256 << 20, read_memory: 128 << 20, threads: 2 }
    }
}

impl StripeCacheOptions {
    /// The stripes of the store below; 256 MiB to write, 128 MiB to read, 2 threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stripes of so many bytes: a power of two, at least 16 KiB. Less than the store below likes is of use
    /// to tests alone.
    #[must_use]
    pub fn stripe(mut self, bytes: u32) -> Self {
        self.stripe = Some(bytes);
        self
    }

    /// Holds at most so much memory for what is not on the store below yet, whatever state it is in; less
    /// than a stripe counts as one.
    #[must_use]
    pub fn write_memory(mut self, bytes: u64) -> Self {
        self.write_memory = bytes;
        self
    }

    /// Holds at most so much memory for what was read ahead, besides what somebody is just copying from; with
    /// less than a stripe, parts of stripes.
    #[must_use]
    pub fn read_memory(mut self, bytes: u64) -> Self {
        self.read_memory = bytes;
        self
    }

    /// Writes to the store below with so many threads, at least one. With one, a disk that turns is written
    /// to strictly in order.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count;
        self
    }
}

/// A store whose writes are gathered in memory, in front of another store, which nobody else uses meanwhile.
///
/// A *stripe* is an aligned part of a torrent, as large as the store below [likes](Capabilities::stripe).
/// What is written is copied, and the call returns. As soon as no byte of a stripe is missing, here or below,
/// it is written by threads of the cache: all such stripes there are, sorted by their
/// [place](Content::place), those without one by torrent and offset, each with one call. What is not whole
/// waits for more until a [flush](ContentRepository::flush), or until memory is needed: then the stripes that
/// miss the fewest bytes are written as they are, each stretch with one call.
///
/// A read of a complete piece brings as much of its stripe as can be read, and what follows is read from
/// memory. Who reads the same stripe meanwhile waits for that read. What could not be read ahead is not tried
/// again for a while. If stripes go from memory before half of them was wanted, because more peers read at
/// once than there is memory for, 256 KiB are read ahead instead, and of who asks for 128 KiB at once,
/// nothing.
///
/// **Errors.** Where the store below refuses bytes that were held back, they count as never written, and
/// pieces that were marked complete with them are incomplete again. The next write to the torrent says why
/// and writes nothing, and so does the next flush, which names the torrent ([`Refused`](Error::Refused)).
/// What the store below panics with while it is called by the cache is an error like any other. If the store
/// below knows how much room it has, a write that it may have [no room for](Content::room_for) is not held
/// back, so that it says [`Full`](Error::Full) itself; torrents that are created meanwhile, and others on the
/// same disk, can still make it full.
///
/// What was not flushed when the last handle is dropped is lost. Dropping it waits for what is being written:
/// drop it on a thread that may block.
///
/// A sixteenth of the memory for writes is kept when nothing waits. Besides, it takes a few hundred bytes for
/// each torrent that was ever opened and is not deleted, a bit for each of its pieces and 50 bytes for each
/// stretch that was written of incomplete ones, 1 KiB for each stripe of 4 MiB that is begun, and 50 bytes
/// for each stretch in it: who writes single bytes far apart makes that more than what is written.
pub struct StripeCache {
    running: Arc<Running>,
}

/// The threads, and what they do: until nobody can ask for anything any more.
#[derive(Debug)]
struct Running {
    writers: Arc<Writers>,
    /// Torrents that somebody creates, deletes, or opens for the first time: another one who wants that
    /// waits.
    claimed: Mutex<HashSet<InfoHash>>,
    /// Told when one of them no longer is.
    free: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Keeps others from creating, deleting or first opening a torrent, until it is dropped.
struct Claim<'a>(&'a Running, InfoHash);

/// Counts of a [`StripeCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StripeCacheStatistics {
    /// Stripes that were written whole, each with one call.
    pub whole: u64,
    /// Stripes that were written in part.
    pub partial: u64,
    /// Calls that wrote to the store below.
    pub calls: u64,
    /// Parts of stripes that were read from memory that was read ahead.
    pub hits: u64,
    /// Reads ahead.
    pub misses: u64,
    /// Bytes that were read ahead.
    pub read_ahead: u64,
    /// Bytes of memory that hold what was read ahead.
    pub read_memory: u64,
}

impl StripeCache {
    /// A cache in front of `inner`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for stripes of another size than there can be, [`Error::Io`] if no thread can
    /// be started.
    pub fn new(inner: Arc<dyn ContentRepository>, options: StripeCacheOptions) -> Result<Self> {
        let stripe = options.stripe.unwrap_or(inner.capabilities().stripe);
        if !stripe.is_power_of_two() || stripe < 16 << 10 {
            return Err(Error::Unsupported(
                "have stripes of this size: it takes a power of two, at least 16 KiB",
            ));
        }
        let chunk = u64::from(CHUNK.min(stripe));
        let most = options.write_memory.max(stripe.into()) / chunk * chunk;
        let core = Core::new(inner, stripe.into(), chunk, most, options.read_memory);
        // Dropped on an error, which stops those that were started.
        let running = Arc::new(Running {
            writers: Arc::new(Writers::new(core)),
            claimed: Mutex::default(),
            free: Condvar::new(),
            threads: Mutex::default(),
        });
        for _ in 0..options.threads.max(1) {
            let writers = Arc::clone(&running.writers);
            let thread = Builder::new()
                .name("stripe-cache".to_owned())
                .spawn(move || writers.write_until_stopped())
                .map_err(Error::io("starting a thread of the stripe cache"))?;
            running.threads.lock().push(thread);
        }
        Ok(Self { running })
    }

    /// The store below.
    pub fn inner(&self) -> &Arc<dyn ContentRepository> {
        &self.running.core().inner
    }

    /// Counts since it was made.
    pub fn cache_statistics(&self) -> StripeCacheStatistics {
        let core = self.running.core();
        StripeCacheStatistics {
            whole: core.whole.load(Relaxed),
            partial: core.partial.load(Relaxed),
            calls: core.calls.load(Relaxed),
            hits: core.read_ahead.hits.load(Relaxed),
            misses: core.read_ahead.misses.load(Relaxed),
            read_ahead: core.read_ahead.bytes.load(Relaxed),
            read_memory: core.read_ahead.taken(),
        }
    }

    /// Which pieces are best fetched next: those with missing bytes in stripes that are begun and in memory,
    /// of which those that miss the fewest bytes come first; at most `most` of them, each once. None of them
    /// is complete.
    ///
    /// Fetching them first is what makes stripes whole before memory is needed. A piece larger than a stripe
    /// is named while one of its stripes is begun, one that lies across two while either is. Takes time with
    /// the pieces of the stripes it goes through until it has found `most`: those of one stripe, mostly.
    /// Waits for no store; of a torrent that was not opened, nothing is in memory.
    pub fn affinity(&self, info_hash: &InfoHash, most: usize) -> Vec<Affinity> {
        let torrent = self.running.writers.torrents.read().get(info_hash).cloned();
        torrent.map_or(Vec::new(), |torrent| torrent.state.lock().affinity(most))
    }

    /// Reads what was read ahead, if it holds all of a range: for who must not wait, as a task that has a
    /// thread with others. `false` if it does not, or somebody deletes the torrent, or was told to write
    /// there: `into` then holds anything, and [`read_at`](Content::read_at) is to be called, on a thread that
    /// may wait. Waits for no store, and takes the time of the copy.
    pub fn read_in_memory(&self, info_hash: &InfoHash, offset: u64, into: &mut [u8]) -> bool {
        let core = self.running.core();
        let Some(torrent) = self.running.writers.torrents.read().get(info_hash).cloned() else {
            return false;
        };
        let Ok(range) = torrent.geometry.range(offset, into.len() as u64) else { return false };
        torrent.read_in_memory(core, range, into)
    }

    fn handle(&self, torrent: Arc<Torrent>) -> Arc<dyn Content> {
        Arc::new(Handle { torrent, cache: Arc::clone(&self.running) })
    }
}

impl Running {
    fn torrent(&self, info_hash: &InfoHash) -> Result<Arc<Torrent>> {
        if let Some(torrent) = self.writers.torrents.read().get(info_hash) {
            return Ok(Arc::clone(torrent));
        }
        let _claim = self.claim(*info_hash);
        if let Some(torrent) = self.writers.torrents.read().get(info_hash) {
            return Ok(Arc::clone(torrent));
        }
        self.keep(*info_hash, self.core().inner.open(info_hash)?)
    }

    fn claim(&self, info_hash: InfoHash) -> Claim<'_> {
        let mut claimed = self.claimed.lock();
        while !claimed.insert(info_hash) {
            self.free.wait(&mut claimed);
        }
        Claim(self, info_hash)
    }

    /// Takes in a torrent of the store below. One that is there already is another, and gone.
    fn keep(&self, info_hash: InfoHash, content: Arc<dyn Content>) -> Result<Arc<Torrent>> {
        let old = self.writers.torrents.write().remove(&info_hash);
        if let Some(old) = old {
            old.replace(self.core());
        }
        let torrent = Arc::new(Torrent::new(self.core(), info_hash, content)?);
        self.writers.torrents.write().insert(info_hash, Arc::clone(&torrent));
        Ok(torrent)
    }
}

impl Cache for Running {
    fn core(&self) -> &Core {
        &self.writers.core
    }

    fn write_out(&self) {
        self.writers.write_out();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claimed.lock().remove(&self.1);
        self.0.free.notify_all();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.core().stop();
        for thread in self.threads.lock().drain(..) {
            // If it panicked, it has said so.
            let _ = thread.join();
        }
    }
}

impl ContentRepository for StripeCache {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let _claim = self.running.claim(torrent.info_hash);
        let content = self.running.core().inner.create(torrent)?;
        self.running.keep(torrent.info_hash, content).map(|torrent| self.handle(torrent))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        self.running.torrent(info_hash).map(|torrent| self.handle(torrent))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let mut all = self.running.core().inner.list()?;
        let torrents = self.running.writers.torrents.read();
        for summary in &mut all {
            if let Some(torrent) = torrents.get(&summary.info_hash) {
                summary.complete = torrent.state.lock().pieces.complete().count();
            }
        }
        Ok(all)
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let _claim = self.running.claim(*info_hash);
        let core = self.running.core();
        let torrents = &self.running.writers.torrents;
        let torrent = torrents.read().get(info_hash).cloned();
        let Some(torrent) = torrent else {
            return core.inner.delete(info_hash);
        };
        let deleted = torrent.delete(core);
        if !torrent.is_there() {
            torrents.write().remove(info_hash);
        }
        deleted
    }

    fn flush(&self) -> Result<()> {
        let (core, writers) = (self.running.core(), &self.running.writers);
        let began = core.serial();
        writers.write_out();
        if let Err(error) = core.inner.flush() {
            writers.torrents().iter().for_each(|torrent| torrent.follow(core));
            return Err(error);
        }
        writers.torrents().iter().find_map(|torrent| torrent.take_failure(began)).map_or(Ok(()), Err)
    }

    fn statistics(&self) -> Statistics {
        let core = self.running.core();
        let inner = core.inner.statistics();
        Statistics {
            torrents: inner.torrents,
            used: inner.used,
            free: inner.free,
            unwritten: core.taken() + inner.unwritten,
            most_unwritten: core.most + inner.most_unwritten,
            flushes: inner.flushes,
            ..core.counters.statistics()
        }
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.running.core().inner.capabilities();
        Capabilities { stripe: inner.stripe.max(self.running.core().stripe as u32), ..inner }
    }
}

impl fmt::Debug for StripeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripeCache")
            .field("inner", &self.running.core().inner)
            .field("stripe", &self.running.core().stripe)
            .field("most_unwritten", &self.running.core().most)
            .finish_non_exhaustive()
    }
}
