//! The stripe cache, beyond the suite of all stores: which calls reach the store below, when, and in which
//! order.
#![allow(clippy::single_range_in_vec_init, reason = "the tests assert ranges")]

mod affinity;
mod deleting;
mod reading;
mod refusals;
mod room;
mod writing;

use std::{
    collections::BTreeMap,
    io::{IoSlice, IoSliceMut},
    sync::{Barrier, mpsc},
};

use parking_lot::{Condvar, Mutex};
use swarmkeep_content::{
    Result,
    files::{self, FileStore},
    forward,
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_kit::content::within;
use zerocopy::FromBytes;

use super::*;

const KIB: u64 = 1 << 10;
const STRIPE: u64 = 256 * KIB;
const PIECE: u64 = 32 * KIB;
const CHUNK: u64 = 256 * KIB;

/// Fails if `work` takes longer than ten minutes: a test that hangs must fail, and not run forever.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    within(Duration::from_secs(600), "a test of the stripe cache", work)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StoreCall {
    Write { torrent: InfoHash, range: Range<u64>, aligned: bool },
    Read { range: Range<u64> },
    Mark(u32),
    Unmark(u32),
    Flush,
}

/// A kind of call that can go otherwise than usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallKind {
    Create,
    Open,
    Read,
    Write,
    /// Of this torrent.
    WriteOf(InfoHash),
    /// Before it is done.
    Mark,
    /// After it is done.
    Marked,
    Flush,
    /// Asking how much room a range takes that begins here.
    RoomAt(u64),
    /// Before it is done.
    Delete,
    /// After it is done.
    Deleted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallFault {
    Waits,
    Fails,
    Panics,
}

/// The place of a byte of a torrent.
type Places = fn(InfoHash, u64) -> u64;

/// A store that records its calls, can be held up, and can be made to fail.
#[derive(Debug)]
struct Recorder {
    inner: Box<dyn ContentRepository>,
    shared: Arc<Probe>,
}

#[derive(Debug, Default)]
struct Probe {
    calls: Mutex<Vec<StoreCall>>,
    how: Mutex<BTreeMap<CallKind, CallFault>>,
    changed: Condvar,
    /// How many wait.
    inside: AtomicU64,
    /// Reads and writes that have this byte fail.
    bad_byte: Mutex<Option<u64>>,
    /// How often a place was asked for.
    asked: AtomicU64,
    /// One of this many writes fails, if not 0.
    fail_one_of: AtomicU64,
    places: Mutex<Option<Places>>,
}

#[derive(Debug)]
struct Recorded {
    info_hash: InfoHash,
    inner: Arc<dyn Content>,
    shared: Arc<Probe>,
}

impl Probe {
    fn set(&self, kind: CallKind, how: CallFault) {
        self.how.lock().insert(kind, how);
        self.changed.notify_all();
    }

    fn clear(&self, kind: CallKind) {
        self.how.lock().remove(&kind);
        self.changed.notify_all();
    }

    /// Lets reads and writes wait.
    fn close(&self) {
        [CallKind::Read, CallKind::Write].into_iter().for_each(|kind| self.set(kind, CallFault::Waits));
    }

    /// Lets nothing wait any more.
    fn open(&self) {
        self.how.lock().retain(|_, how| *how != CallFault::Waits);
        self.changed.notify_all();
    }

    fn pass(&self, kind: CallKind) -> Result<()> {
        let mut how = self.how.lock();
        if how.get(&kind) == Some(&CallFault::Waits) {
            self.inside.fetch_add(1, Relaxed);
            self.changed.wait_while(&mut how, |how| how.get(&kind) == Some(&CallFault::Waits));
            self.inside.fetch_sub(1, Relaxed);
        }
        match how.get(&kind) {
            Some(CallFault::Fails) => Err(broken()),
            Some(CallFault::Panics) => {
                drop(how);
                panic!("as it was told")
            }
            _ => Ok(()),
        }
    }

    fn wait_inside(&self, count: u64) {
        while self.inside.load(Relaxed) < count {
            thread::yield_now();
        }
    }

    fn writes(&self) -> Vec<(InfoHash, Range<u64>)> {
        let calls = self.calls.lock();
        let writes = calls.iter().filter_map(|call| match call {
            StoreCall::Write { torrent, range, .. } => Some((*torrent, range.clone())),
            _ => None,
        });
        writes.collect()
    }

    fn reads(&self) -> Vec<Range<u64>> {
        let calls = self.calls.lock();
        let reads = calls.iter().filter_map(|call| match call {
            StoreCall::Read { range } => Some(range.clone()),
            _ => None,
        });
        reads.collect()
    }
}

fn broken() -> Error {
    Error::Io { what: "writing to a broken disk", source: io::Error::from_raw_os_error(5) }
}

impl Content for Recorded {
    forward! { it, it.inner; geometry, pieces }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let aligned = offset.is_multiple_of(SECTOR as u64)
            && buffers.iter().all(|buffer| <[Sector]>::ref_from_bytes(buffer).is_ok());
        let call = StoreCall::Write { torrent: self.info_hash, range: offset..offset + len, aligned };
        self.shared.calls.lock().push(call);
        self.shared.pass(CallKind::Write)?;
        self.shared.pass(CallKind::WriteOf(self.info_hash))?;
        let one_of = self.shared.fail_one_of.load(Relaxed);
        let unlucky = one_of > 0 && (self.shared.calls.lock().len() as u64).is_multiple_of(one_of);
        let bad = self.shared.bad_byte.lock().is_some_and(|bad| (offset..offset + len).contains(&bad));
        if unlucky || bad {
            return Err(broken());
        }
        self.inner.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        self.shared.calls.lock().push(StoreCall::Read { range: offset..offset + len });
        self.shared.pass(CallKind::Read)?;
        if self.shared.bad_byte.lock().is_some_and(|bad| (offset..offset + len).contains(&bad)) {
            return Err(broken());
        }
        self.inner.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(StoreCall::Mark(piece));
        self.shared.pass(CallKind::Mark)?;
        let marked = self.inner.mark_complete(piece)?;
        self.shared.pass(CallKind::Marked)?;
        Ok(marked)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(StoreCall::Unmark(piece));
        self.inner.mark_incomplete(piece)
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.shared.asked.fetch_add(1, Relaxed);
        let places = *self.shared.places.lock();
        places.map(|place| place(self.info_hash, offset)).or_else(|| self.inner.place(offset))
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        self.shared.pass(CallKind::RoomAt(range.start)).unwrap();
        self.inner.room_for(range)
    }
}

impl Recorder {
    fn content(&self, info_hash: InfoHash, inner: Arc<dyn Content>) -> Arc<dyn Content> {
        Arc::new(Recorded { info_hash, inner, shared: Arc::clone(&self.shared) })
    }
}

impl ContentRepository for Recorder {
    forward! { it, it.inner; list, statistics, capabilities }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        self.shared.pass(CallKind::Create)?;
        Ok(self.content(torrent.info_hash, self.inner.create(torrent)?))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        self.shared.pass(CallKind::Open)?;
        Ok(self.content(*info_hash, self.inner.open(info_hash)?))
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.shared.pass(CallKind::Delete)?;
        let deleted = self.inner.delete(info_hash)?;
        self.shared.pass(CallKind::Deleted)?;
        Ok(deleted)
    }

    fn flush(&self) -> Result<()> {
        self.shared.calls.lock().push(StoreCall::Flush);
        self.shared.pass(CallKind::Flush)?;
        self.inner.flush()
    }
}

fn memory(most: Option<u64>) -> Box<dyn ContentRepository> {
    Box::new(Memory::new(&with(ContentConfig::new(""), |config| config.capacity = most)))
}

fn over(inner: Box<dyn ContentRepository>, options: StripeCacheOptions) -> (Arc<StripeCache>, Arc<Probe>) {
    let shared = Arc::<Probe>::default();
    let recorder = Recorder { inner, shared: Arc::clone(&shared) };
    (Arc::new(StripeCache::new(Arc::new(recorder), options).unwrap()), shared)
}

/// A cache over memory with stripes of 256 KiB; one thread, so that there is one order.
fn cached(options: StripeCacheOptions) -> (Arc<StripeCache>, Arc<Probe>) {
    over(memory(None), with(options, |options| options.threads = 1))
}

fn create(store: &dyn ContentRepository, n: u64, length: u64) -> Arc<dyn Content> {
    store.create(&NewTorrent::new(hash(n), length, PIECE as u32).unwrap()).unwrap()
}

fn put(content: &dyn Content, n: u64, range: Range<u64>) {
    content.write(range.start, &bytes(n, range)).unwrap();
}

fn holds(content: &dyn Content, n: u64, range: Range<u64>) {
    let mut read = vec![0; (range.end - range.start) as usize];
    content.read(range.start, &mut read).unwrap();
    assert!(read == bytes(n, range.clone()), "{range:?} of torrent {n}");
}

fn first_missing(content: &dyn Content, range: Range<u64>) -> Option<u64> {
    match content.read(range.start, &mut vec![0; (range.end - range.start) as usize]) {
        Ok(()) => None,
        Err(Error::NotWritten { at }) => Some(at),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until nothing is held back.
fn settle(cache: &StripeCache) {
    while cache.statistics().unwritten > 0 {
        thread::yield_now();
    }
}

#[test]
fn many_threads_a_tiny_limit_deletions_and_errors_never_block() {
    for fail_one_of in [0, 7] {
        bounded(move || {
            let options = with(StripeCacheOptions::new(), |options| {
                (options.write_memory, options.read_memory) = (STRIPE, 2 * STRIPE);
            });
            let (cache, shared) = over(memory(None), options);
            shared.fail_one_of.store(fail_one_of, Relaxed);
            let stop = Arc::new(AtomicBool::new(false));
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let cache = Arc::clone(&cache);
                    thread::spawn(move || {
                        let mut draw = Draw::new(thread);
                        // Two threads share a torrent.
                        let n = thread / 2;
                        for _ in 0..400 {
                            let torrent = NewTorrent::new(hash(n), 10 * STRIPE + 77, PIECE as u32).unwrap();
                            let content = match cache.create(&torrent) {
                                Err(Error::Exists(_)) => cache.open(&hash(n)),
                                created => created,
                            };
                            let Ok(content) = content else { continue };
                            let start = draw.below(10 * STRIPE);
                            let range = start..(start + draw.below(100 * KIB)).min(10 * STRIPE + 77);
                            let piece = (start / PIECE) as u32;
                            match draw.below(20) {
                                0 => drop(cache.delete(&hash(n))),
                                1 => drop(cache.flush()),
                                2 | 3 => drop(content.mark_incomplete(piece)),
                                4..8 => drop(content.mark_complete(piece)),
                                8..14 => drop(content.write(range.start, &bytes(n, range))),
                                _ => {
                                    let mut read = vec![0; (range.end - range.start) as usize];
                                    match content.read(range.start, &mut read) {
                                        Ok(()) => assert!(read == bytes(n, range)),
                                        Err(Error::NotWritten { .. } | Error::Deleted) => {}
                                        Err(error) => panic!("{error}"),
                                    }
                                }
                            }
                        }
                    })
                })
                .collect();
            let watcher = {
                let (cache, stop) = (Arc::clone(&cache), Arc::clone(&stop));
                thread::spawn(move || {
                    let mut most = 0;
                    while !stop.load(Relaxed) {
                        let statistics = cache.statistics();
                        assert!(statistics.unwritten <= statistics.most_unwritten, "{statistics:?}");
                        assert!(cache.cache_statistics().read_memory <= 2 * STRIPE);
                        most = most.max(statistics.unwritten);
                        thread::yield_now();
                    }
                    most
                })
            };
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            stop.store(true, Relaxed);
            assert_eq!(watcher.join().unwrap(), STRIPE, "the limit was reached");
            shared.fail_one_of.store(0, Relaxed);
            // A flush reports the refused writes of one torrent, and there are three.
            (0..3).for_each(|_| drop(cache.flush()));
            cache.flush().unwrap();
            assert_eq!(cache.statistics().unwritten, 0);
            // The cache lists the same as the store below.
            let below = cache.inner().list().unwrap();
            assert_eq!(cache.list().unwrap(), below);
        });
    }
}

/// A torrent of `stripes` stripes that is all below, complete, and not in memory.
fn seeding(cache: &StripeCache, n: u64, stripes: u64) -> Arc<dyn Content> {
    let content = create(cache, n, stripes * STRIPE);
    put(&*content, n, 0..stripes * STRIPE);
    for piece in 0..content.geometry().pieces() {
        content.mark_complete(piece).unwrap();
    }
    cache.flush().unwrap();
    content
}

#[test]
fn the_cache_outlives_itself_while_a_handle_is_open() {
    bounded(|| {
        let (cache, _) = cached(with(StripeCacheOptions::new(), |options| options.write_memory = STRIPE));
        let content = create(&*cache, 1, 8 * STRIPE);
        drop(cache);
        put(&*content, 1, 0..4 * STRIPE);
        holds(&*content, 1, 0..4 * STRIPE);
    });
}

/// Does something in a thread; the receiver gets a message when that is done.
fn aside<T: Send + Sync + ?Sized + 'static>(
    shared: &Arc<T>,
    work: impl FnOnce(&T) + Send + 'static,
) -> mpsc::Receiver<()> {
    let (done, told) = mpsc::channel();
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        work(&shared);
        drop(shared);
        let _ = done.send(());
    });
    told
}

fn waits(told: &mpsc::Receiver<()>) {
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "it should wait");
}

fn ends(told: &mpsc::Receiver<()>) {
    told.recv_timeout(Duration::from_secs(60)).expect("it hangs, or has failed");
}

fn affinity(cache: &StripeCache, n: u64) -> Vec<(u32, u64)> {
    cache.affinity(&hash(n), usize::MAX).iter().map(|best| (best.piece, best.missing)).collect()
}

/// Generation `n` of a piece: its number and the generation, again and again.
fn generation(piece: u64, n: u64, len: u64) -> Vec<u8> {
    (piece << 32 | n).to_le_bytes().into_iter().cycle().take(len as usize).collect()
}

#[test]
fn a_read_sees_the_last_version_or_one_that_is_being_written() {
    for fail_one_of in [0, 23] {
        bounded(move || {
            let options = with(StripeCacheOptions::new(), |options| {
                (options.write_memory, options.read_memory) = (STRIPE, 3 * STRIPE);
            });
            let (cache, shared) = over(memory(None), options);
            shared.fail_one_of.store(fail_one_of, Relaxed);
            let pieces = 6 * STRIPE / PIECE;
            let content = create(&*cache, 1, 6 * STRIPE);
            // Of each piece: the last that was written, and the last that was begun.
            let versions: Arc<Vec<_>> =
                Arc::new((0..pieces).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect());
            let stop = Arc::new(AtomicBool::new(false));
            let writers = (0..3).map(|writer| {
                let (cache, content, versions) =
                    (Arc::clone(&cache), Arc::clone(&content), Arc::clone(&versions));
                thread::spawn(move || {
                    let mut draw = Draw::new(writer);
                    for n in 1..400 {
                        // Its own: every third.
                        let piece = draw.below(pieces / 3) * 3 + writer;
                        let (written, begun) = &versions[piece as usize];
                        let _ = content.mark_incomplete(piece as u32);
                        begun.store(n, SeqCst);
                        let all = generation(piece, n, PIECE);
                        let whole = all
                            .chunks(8 << 10)
                            .zip(0..)
                            .all(|(part, at)| content.write(piece * PIECE + at * (8 << 10), part).is_ok());
                        if !whole {
                            // The bytes of a refused write are unknown until they are written again.
                            continue;
                        }
                        written.store(n, SeqCst);
                        let marked = draw.below(3) > 0 && content.mark_complete(piece as u32).is_ok();
                        if draw.below(60) == 0 {
                            let _ = cache.flush();
                        }
                        if marked {
                            match content.read_piece(piece as u32) {
                                Ok(read) => assert!(read == all, "piece {piece}, generation {n}"),
                                Err(Error::NotWritten { .. }) if fail_one_of > 0 => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            let readers = (0..2).map(|reader| {
                let (content, versions, stop) =
                    (Arc::clone(&content), Arc::clone(&versions), Arc::clone(&stop));
                thread::spawn(move || {
                    let mut draw = Draw::new(reader + 100);
                    let mut seen = 0_u64;
                    while !stop.load(Relaxed) {
                        let start = draw.below(6 * STRIPE / 64) * 64;
                        let range = start..(start + 64 * (1 + draw.below(1024))).min(6 * STRIPE);
                        let of = range.start / PIECE..range.end.div_ceil(PIECE);
                        let before: Vec<_> =
                            of.clone().map(|piece| versions[piece as usize].0.load(SeqCst)).collect();
                        let mut read = vec![0; (range.end - range.start) as usize];
                        match content.read(range.start, &mut read) {
                            Ok(()) => {}
                            Err(Error::NotWritten { .. }) => continue,
                            Err(error) => panic!("{error}"),
                        }
                        for (at, word) in (range.start..).step_by(8).zip(read.chunks(8)) {
                            let word = u64::from_le_bytes(word.try_into().unwrap());
                            let piece = at / PIECE;
                            let last = versions[piece as usize].1.load(SeqCst);
                            assert_eq!(word >> 32, piece, "another's bytes at {at}");
                            let version = word & 0xffff_ffff;
                            assert!(
                                (before[(piece - of.start) as usize]..=last).contains(&version),
                                "version {version} of piece {piece}, after {} to {last}",
                                before[(piece - of.start) as usize]
                            );
                        }
                        seen += 1;
                    }
                    seen
                })
            });
            let readers: Vec<_> = readers.collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Relaxed);
            let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
            let statistics = cache.cache_statistics();
            println!("{seen} reads, {statistics:?}");
            assert!(seen > 100 && statistics.hits > 10, "{seen} reads, {statistics:?}");
            shared.fail_one_of.store(0, Relaxed);
            while cache.flush().is_err() {}
            // The store below has the last version of each.
            let below = cache.inner().open(&hash(1)).unwrap();
            for piece in below.pieces().unwrap().iter() {
                let n = versions[piece as usize].0.load(SeqCst);
                assert!(
                    below.read_piece(piece).unwrap() == generation(piece.into(), n, PIECE),
                    "piece {piece}"
                );
            }
            assert_eq!(below.pieces().unwrap(), content.pieces().unwrap());
        });
    }
}
