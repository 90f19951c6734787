//! A cache in front of any store. Writes are gathered into whole stripes and written in the order of the
//! device; reads fetch whole stripes.

mod backlog;
mod gathered;
mod read_ahead;
mod torrent;
mod writers;

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use backlog::CacheCore;
use gathered::CHUNK;
use parking_lot::{Condvar, Mutex};
pub use torrent::Affinity;
use torrent::{CachedTorrent, Handle};
use writers::Writers;

use crate::{
    Capabilities, Content, ContentRepository, Error, InfoHash, NewTorrent, Result, Statistics, Summary,
    forward,
};

/// The options of a [`StripeCache`]. Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StripeCacheOptions {
    /// The stripe: a power of two, at least 16 KiB; `None` is the stripe of the store below. A smaller one is
    /// useful only in tests.
    pub stripe: Option<u32>,
    /// The most memory for writes that are not in the store below yet; at least one stripe.
    pub write_memory: u64,
    /// The most memory for content that was read ahead, besides memory that a caller is copying from. With
    /// less than a stripe, parts of stripes are read ahead.
    pub read_memory: u64,
    /// The number of threads that write to the store below, at least one. With one, a rotating disk is
    /// written strictly in order.
    pub threads: usize,
}

impl StripeCacheOptions {
    /// The stripe of the store below, 256 MiB for writes, 128 MiB for reads, 2 threads.
    pub const fn new() -> Self {
        Self { stripe: None, write_memory: 256 << 20, read_memory: 128 << 20, threads: 2 }
    }
}

impl Default for StripeCacheOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A store that gathers writes in memory, in front of another store, which must not be used by anything else
/// meanwhile.
///
/// A *stripe* is an aligned part of a torrent, of the size that the store below
/// [prefers](Capabilities::stripe). A write copies its bytes and returns. When no byte of a stripe is
/// missing, here or below, the threads of the cache write it. They sort all such stripes by their
/// [place](Content::place), those without a place by torrent and offset, and write each with one call. A
/// stripe that is not whole waits until a [flush](ContentRepository::flush), until a caller
/// [flushes stripes of its age](Self::flush_older), or until memory is needed. Then the stripes that miss the
/// fewest bytes are written as they are, each contiguous range with one call.
///
/// A read of a complete piece fetches as much of its stripe as can be read; later reads of the stripe are
/// served from memory. Concurrent reads of the same stripe wait for that read. A range that could not be read
/// ahead is not tried again for a while. If stripes leave the memory before half of their bytes were read,
/// because more peers read at once than there is memory for, only 256 KiB are read ahead, and for reads of
/// 128 KiB or more, nothing.
///
/// **Errors.** If the store below refuses bytes that were held back, they count as never written, and pieces
/// that were marked complete with them are incomplete again. The next write to the torrent returns the error
/// and writes nothing, and so does the next flush, which names the torrent ([`Refused`](Error::Refused)).
/// Marking a piece that lacks bytes returns it too. A panic of the store below in a call of the cache becomes
/// an error. If the store below knows how much room it has, a write that it may have [no room
/// for](Content::room_for) is not held back, so that the write itself returns [`Full`](Error::Full). Torrents
/// that are created meanwhile, and other programs on the same disk, can still make the store full.
///
/// Writes that were not flushed when the last handle is dropped are lost. The drop waits for the writes in
/// progress: drop the last handle on a thread that may block.
///
/// **Memory.** When nothing waits to be written, the cache keeps a sixteenth of the memory for writes. In
/// addition, it takes a few hundred bytes per torrent that was ever opened and is not deleted, one bit per
/// piece, 50 bytes per contiguous range that was written of incomplete pieces, 1 KiB per stripe of 4 MiB that
/// is begun, and 50 bytes per contiguous range in it. Single bytes that are written far apart take more
/// memory than their content.
pub struct StripeCache {
    running: Arc<Running>,
}

/// The threads, which run until the last handle is dropped.
#[derive(Debug)]
struct Running {
    writers: Arc<Writers>,
    /// Torrents that are being created, deleted, or opened for the first time; other such calls for them
    /// wait.
    claimed: Mutex<HashSet<InfoHash>>,
    /// Notified when one of them is released.
    free: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Makes other calls that create, delete or first open a torrent wait, until it is dropped.
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
    /// Reads of parts of stripes that were served from memory.
    pub hits: u64,
    /// Reads ahead.
    pub misses: u64,
    /// Bytes that were read ahead.
    pub read_ahead: u64,
    /// Bytes of memory that hold content that was read ahead.
    pub read_memory: u64,
}

impl StripeCache {
    /// A cache in front of `inner`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the stripe is not a power of two of at least 16 KiB, [`Error::Io`] if no
    /// thread can be started.
    pub fn new(inner: Arc<dyn ContentRepository>, options: StripeCacheOptions) -> Result<Self> {
        let stripe = options.stripe.unwrap_or(inner.capabilities().stripe);
        if !stripe.is_power_of_two() || stripe < 16 << 10 {
            return Err(Error::Unsupported(
                "have stripes of this size: it takes a power of two, at least 16 KiB",
            ));
        }
        let chunk = u64::from(CHUNK.min(stripe));
        let most = options.write_memory.max(stripe.into()) / chunk * chunk;
        let core = CacheCore::new(inner, stripe.into(), chunk, most, options.read_memory);
        // If a later thread fails to start, dropping it stops the earlier ones.
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
                .spawn(move || writers.core.write_until_stopped(&writers))
                .map_err(Error::io("starting a thread of the stripe cache"))?;
            running.threads.lock().push(thread);
        }
        Ok(Self { running })
    }

    /// The store below.
    pub fn inner(&self) -> &Arc<dyn ContentRepository> {
        &self.running.core().inner
    }

    /// Counts since the cache was made.
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

    /// The pieces that are best fetched next, at most `most`, each once: incomplete pieces with missing bytes
    /// in stripes that are begun and in memory. Pieces of stripes that miss the fewest bytes come first.
    ///
    /// If they are fetched first, stripes become whole before memory is needed. A piece that lies in several
    /// stripes is returned while one of them is begun. Takes time in proportion to the pieces of the stripes
    /// that it visits until it has found `most`, usually one stripe. Does not call the store below. For a
    /// torrent that was not opened, nothing is in memory.
    pub fn affinity(&self, info_hash: &InfoHash, most: usize) -> Vec<Affinity> {
        let torrent = self.running.writers.torrents.read().get(info_hash).cloned();
        torrent.map_or(Vec::new(), |torrent| torrent.state.lock().affinity(most))
    }

    /// Reads a range if all of it was read ahead: for callers that must not block, such as an asynchronous
    /// task. Returns `false` if not all of it was, if the torrent is being deleted, or if bytes of its
    /// stripes wait to be written. Then `into` holds any bytes, and the caller calls
    /// [`read_at`](Content::read_at) on a thread that may block. Does not call the store below; takes the
    /// time of the copy.
    pub fn read_in_memory(&self, info_hash: &InfoHash, offset: u64, into: &mut [u8]) -> bool {
        let core = self.running.core();
        let Some(torrent) = self.running.writers.torrents.read().get(info_hash).cloned() else {
            return false;
        };
        let Ok(range) = torrent.geometry.range(offset, into.len() as u64) else { return false };
        torrent.read_in_memory(core, range, into)
    }

    /// Makes whole stripes durable, and stripes whose first bytes were written `age` ago or earlier. Others
    /// can still become whole. Returns whether any are left.
    ///
    /// # Errors
    /// Errors of a [flush](ContentRepository::flush).
    pub fn flush_older(&self, age: Duration) -> Result<bool> {
        let (core, writers) = (self.running.core(), &self.running.writers);
        let began = core.serial();
        writers.write_out(Instant::now().checked_sub(age));
        if let Err(error) = core.inner.flush() {
            writers.torrents().iter().for_each(|torrent| torrent.follow(core));
            return Err(error);
        }
        let failure = writers.torrents().iter().find_map(|torrent| torrent.take_failure(began));
        failure.map_or(Ok(core.taken() > 0), Err)
    }

    fn handle(&self, torrent: Arc<CachedTorrent>) -> Arc<dyn Content> {
        Arc::new(Handle { torrent, cache: Arc::clone(&self.running) })
    }
}

impl Running {
    fn torrent(&self, info_hash: &InfoHash) -> Result<Arc<CachedTorrent>> {
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
    fn keep(&self, info_hash: InfoHash, content: Arc<dyn Content>) -> Result<Arc<CachedTorrent>> {
        let old = self.writers.torrents.write().remove(&info_hash);
        if let Some(old) = old {
            old.replace(self.core());
        }
        let torrent = Arc::new(CachedTorrent::new(self.core(), info_hash, content)?);
        self.writers.torrents.write().insert(info_hash, Arc::clone(&torrent));
        Ok(torrent)
    }

    fn core(&self) -> &CacheCore {
        &self.writers.core
    }

    /// Writes everything that is held back, of all torrents, and waits until it is written.
    fn write_out(&self) {
        self.writers.write_out(Some(Instant::now()));
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
    forward! { it, it.inner(); label, set_label }

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
        self.flush_older(Duration::ZERO).map(drop)
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

debug_as!(
    StripeCache,
    it,
    "StripeCache {{ inner: {:?}, stripe: {}, most_unwritten: {}, .. }}",
    it.running.core().inner,
    it.running.core().stripe,
    it.running.core().most
);
