//! The stripe cache in what the suite of all stores does not ask: what reaches the store below, when, and in
//! which order.
#![allow(clippy::single_range_in_vec_init, reason = "ranges are what is asserted")]

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    sync::{
        Arc, Barrier,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use swarmkeep_content::{
    Capabilities, Content, ContentConfig, ContentExt, ContentRepository, Error, Geometry, InfoHash, Memory,
    NewTorrent, PieceBits, Result, Statistics, Summary,
    block::{Allocation, BlockStore, FormatOptions, SECTOR, Sector, SparseDevice},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use zerocopy::FromBytes;

const KIB: u64 = 1 << 10;
const STRIPE: u64 = 256 * KIB;
const PIECE: u64 = 32 * KIB;
/// What the cache takes memory in.
const CHUNK: u64 = 256 * KIB;

fn hash(n: u64) -> InfoHash {
    let mut bytes = [0x5a; 20];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    InfoHash::new(bytes)
}

/// What torrent `n` holds at some place.
fn bytes(n: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|at| ((at + 1).wrapping_mul(n + 0x9e37_79b9) >> 7) as u8).collect()
}

/// Seeded, and the same on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// Fails if something takes longer than a minute: what hangs is a failure, not a test that never ends.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waits) = mpsc::channel();
    let worker = thread::spawn(move || {
        let result = work();
        let _ = done.send(());
        result
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = waits.recv_timeout(Duration::from_secs(60)) {
        panic!("it hangs");
    }
    match worker.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a store was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Write { torrent: InfoHash, range: Range<u64>, aligned: bool },
    Read { range: Range<u64> },
    Mark(u32),
    Unmark(u32),
    Flush,
}

/// A kind of call that can go otherwise than usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
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
enum How {
    Waits,
    Fails,
    Panics,
}

/// The place of a byte of a torrent.
type Places = fn(InfoHash, u64) -> u64;

/// A store that writes down what it is asked for, can be held up, and can be made to fail.
#[derive(Debug)]
struct Recorder {
    inner: Box<dyn ContentRepository>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    calls: Mutex<Vec<Call>>,
    how: Mutex<BTreeMap<Kind, How>>,
    changed: Condvar,
    /// How many wait.
    inside: AtomicU64,
    /// Reads and writes that have this byte fail.
    bad_byte: Mutex<Option<u64>>,
    /// How often a place was asked for.
    asked: AtomicU64,
    /// One of so many writes fails, if not 0.
    fail_one_of: AtomicU64,
    places: Mutex<Option<Places>>,
}

#[derive(Debug)]
struct Recorded {
    info_hash: InfoHash,
    inner: Arc<dyn Content>,
    shared: Arc<Shared>,
}

impl Shared {
    fn set(&self, kind: Kind, how: How) {
        self.how.lock().insert(kind, how);
        self.changed.notify_all();
    }

    fn clear(&self, kind: Kind) {
        self.how.lock().remove(&kind);
        self.changed.notify_all();
    }

    /// Lets reads and writes wait.
    fn close(&self) {
        [Kind::Read, Kind::Write].into_iter().for_each(|kind| self.set(kind, How::Waits));
    }

    /// Lets nothing wait any more.
    fn open(&self) {
        self.how.lock().retain(|_, how| *how != How::Waits);
        self.changed.notify_all();
    }

    fn pass(&self, kind: Kind) -> Result<()> {
        let mut how = self.how.lock();
        if how.get(&kind) == Some(&How::Waits) {
            self.inside.fetch_add(1, Relaxed);
            self.changed.wait_while(&mut how, |how| how.get(&kind) == Some(&How::Waits));
            self.inside.fetch_sub(1, Relaxed);
        }
        match how.get(&kind) {
            Some(How::Fails) => Err(broken()),
            Some(How::Panics) => {
                drop(how);
                panic!("as it was told")
            }
            _ => Ok(()),
        }
    }

    /// Waits until so many calls stand before the closed gate.
    fn wait_inside(&self, count: u64) {
        while self.inside.load(Relaxed) < count {
            thread::yield_now();
        }
    }

    fn writes(&self) -> Vec<(InfoHash, Range<u64>)> {
        let calls = self.calls.lock();
        let writes = calls.iter().filter_map(|call| match call {
            Call::Write { torrent, range, .. } => Some((*torrent, range.clone())),
            _ => None,
        });
        writes.collect()
    }

    fn reads(&self) -> Vec<Range<u64>> {
        let calls = self.calls.lock();
        let reads = calls.iter().filter_map(|call| match call {
            Call::Read { range } => Some(range.clone()),
            _ => None,
        });
        reads.collect()
    }
}

fn broken() -> Error {
    Error::Io { what: "writing to a broken disk", source: io::Error::from_raw_os_error(5) }
}

impl Content for Recorded {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        let aligned = offset.is_multiple_of(SECTOR as u64)
            && buffers.iter().all(|buffer| <[Sector]>::ref_from_bytes(buffer).is_ok());
        let call = Call::Write { torrent: self.info_hash, range: offset..offset + len, aligned };
        self.shared.calls.lock().push(call);
        self.shared.pass(Kind::Write)?;
        self.shared.pass(Kind::WriteOf(self.info_hash))?;
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
        self.shared.calls.lock().push(Call::Read { range: offset..offset + len });
        self.shared.pass(Kind::Read)?;
        if self.shared.bad_byte.lock().is_some_and(|bad| (offset..offset + len).contains(&bad)) {
            return Err(broken());
        }
        self.inner.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(Call::Mark(piece));
        self.shared.pass(Kind::Mark)?;
        let marked = self.inner.mark_complete(piece)?;
        self.shared.pass(Kind::Marked)?;
        Ok(marked)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(Call::Unmark(piece));
        self.inner.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        self.inner.pieces()
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.shared.asked.fetch_add(1, Relaxed);
        let places = *self.shared.places.lock();
        places.map(|place| place(self.info_hash, offset)).or_else(|| self.inner.place(offset))
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        self.shared.pass(Kind::RoomAt(range.start)).unwrap();
        self.inner.room_for(range)
    }
}

impl Recorder {
    fn content(&self, info_hash: InfoHash, inner: Arc<dyn Content>) -> Arc<dyn Content> {
        Arc::new(Recorded { info_hash, inner, shared: Arc::clone(&self.shared) })
    }
}

impl ContentRepository for Recorder {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        self.shared.pass(Kind::Create)?;
        Ok(self.content(torrent.info_hash, self.inner.create(torrent)?))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        self.shared.pass(Kind::Open)?;
        Ok(self.content(*info_hash, self.inner.open(info_hash)?))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        self.inner.list()
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.shared.pass(Kind::Delete)?;
        let deleted = self.inner.delete(info_hash)?;
        self.shared.pass(Kind::Deleted)?;
        Ok(deleted)
    }

    fn flush(&self) -> Result<()> {
        self.shared.calls.lock().push(Call::Flush);
        self.shared.pass(Kind::Flush)?;
        self.inner.flush()
    }

    fn statistics(&self) -> Statistics {
        self.inner.statistics()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

fn memory(most: Option<u64>) -> Box<dyn ContentRepository> {
    let config = ContentConfig::new("");
    Box::new(Memory::new(&match most {
        Some(most) => config.capacity(most),
        None => config,
    }))
}

fn over(inner: Box<dyn ContentRepository>, options: StripeCacheOptions) -> (Arc<StripeCache>, Arc<Shared>) {
    let shared = Arc::<Shared>::default();
    let recorder = Recorder { inner, shared: Arc::clone(&shared) };
    (Arc::new(StripeCache::new(Arc::new(recorder), options).unwrap()), shared)
}

/// A cache over memory, whose stripes are 256 KiB; one thread, so that there is one order.
fn cached(options: StripeCacheOptions) -> (Arc<StripeCache>, Arc<Shared>) {
    over(memory(None), options.threads(1))
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
fn a_whole_stripe_is_written_with_one_call_of_aligned_memory() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 2 * STRIPE + 40_000);
    let mut blocks: Vec<_> = (0..STRIPE / (16 * KIB)).collect();
    Draw(1).shuffle(&mut blocks);
    for block in blocks {
        assert_eq!(shared.writes(), []);
        put(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
    }
    settle(&cache);
    let whole = |range| Call::Write { torrent: hash(1), range, aligned: true };
    assert_eq!(*shared.calls.lock(), [whole(0..STRIPE)]);
    // The last one is shorter, and no less whole.
    put(&*content, 1, 2 * STRIPE..2 * STRIPE + 40_000);
    settle(&cache);
    assert_eq!(shared.writes()[1..], [(hash(1), 2 * STRIPE..2 * STRIPE + 40_000)]);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.whole, statistics.partial, statistics.calls), (2, 0, 2));
    holds(&*content, 1, 0..STRIPE);
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 40_000);
}

#[test]
fn a_write_returns_although_the_store_below_does_not() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 8 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        shared.wait_inside(1);
        put(&*content, 1, STRIPE..3 * STRIPE);
        holds(&*content, 1, 0..3 * STRIPE);
        assert!(content.mark_complete(0).unwrap());
        assert!(content.pieces().unwrap().contains(0));
        assert_eq!(cache.list().unwrap()[0].complete, 1);
        shared.open();
    });
}

#[test]
fn all_whole_stripes_are_written_in_the_order_of_their_places() {
    for places in [
        None,
        Some(
            (|torrent: InfoHash, offset| {
                // Backwards, and the torrents interleaved.
                (1 << 40) - 2 * offset - u64::from(torrent.as_bytes()[7])
            }) as fn(InfoHash, u64) -> u64,
        ),
    ] {
        bounded(move || {
            let (cache, shared) = cached(StripeCacheOptions::new());
            *shared.places.lock() = places;
            let torrents = [1, 2].map(|n| create(&*cache, n, 16 * STRIPE));
            shared.close();
            put(&*torrents[0], 1, 0..STRIPE);
            shared.wait_inside(1);
            let mut stripes: Vec<_> = (1..16).flat_map(|stripe| [(0, stripe), (1, stripe)]).collect();
            Draw(7).shuffle(&mut stripes);
            for (torrent, stripe) in stripes {
                put(&*torrents[torrent], torrent as u64 + 1, stripe * STRIPE..(stripe + 1) * STRIPE);
            }
            shared.open();
            settle(&cache);
            let writes = shared.writes();
            assert_eq!(writes.len(), 31);
            let key = |(torrent, range): &(InfoHash, Range<u64>)| {
                (places.map(|place| place(*torrent, range.start)), *torrent, range.start)
            };
            assert!(writes[1..].is_sorted_by_key(key), "{writes:?}");
        });
    }
}

#[test]
fn a_flush_writes_everything_in_order_then_marks_then_flushes() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 8 * STRIPE);
    for stripe in [5, 2, 7, 0] {
        put(&*content, 1, stripe * STRIPE..stripe * STRIPE + PIECE);
        put(&*content, 1, stripe * STRIPE + 2 * PIECE..stripe * STRIPE + 3 * PIECE + 5);
        assert!(content.mark_complete((stripe * STRIPE / PIECE) as u32).unwrap());
    }
    assert_eq!(*shared.calls.lock(), []);
    cache.flush().unwrap();
    let runs = [0, 2, 5, 7]
        .map(|stripe| stripe * STRIPE)
        .map(|start| [(hash(1), start..start + PIECE), (hash(1), start + 2 * PIECE..start + 3 * PIECE + 5)]);
    assert_eq!(shared.writes(), runs.as_flattened());
    let calls = shared.calls.lock().clone();
    assert_eq!(calls.last(), Some(&Call::Flush));
    for piece in [0, 16, 40, 56] {
        let mark = calls.iter().position(|call| *call == Call::Mark(piece)).unwrap();
        let start = u64::from(piece) * PIECE;
        let write = |call: &Call| matches!(call, Call::Write { range, .. } if range.start == start);
        assert!(mark > calls.iter().position(write).unwrap(), "{calls:?}");
    }
    assert_eq!(cache.inner().list().unwrap()[0].complete, 4);
    assert_eq!(cache.statistics().unwritten, 0);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.whole, statistics.partial, statistics.calls), (0, 4, 8));
    cache.flush().unwrap();
    assert_eq!(shared.writes().len(), 8, "nothing is written twice");
}

#[test]
fn at_the_limit_a_write_waits_and_memory_stays_below_it() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new().write_memory(2 * STRIPE));
        assert_eq!(cache.statistics().most_unwritten, 2 * STRIPE);
        let content = create(&*cache, 1, 8 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        put(&*content, 1, STRIPE..2 * STRIPE);
        assert_eq!(cache.statistics().unwritten, 2 * STRIPE);
        shared.wait_inside(1);
        let (done, waits) = mpsc::channel();
        let writer = {
            let content = Arc::clone(&content);
            thread::spawn(move || {
                put(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
                done.send(()).unwrap();
            })
        };
        assert!(waits.recv_timeout(Duration::from_millis(100)).is_err(), "it should wait");
        // What is in memory already is written to without more of it.
        put(&*content, 1, STRIPE..STRIPE + 100);
        assert_eq!(cache.statistics().unwritten, 2 * STRIPE);
        shared.open();
        writer.join().unwrap();
        holds(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
        cache.flush().unwrap();
        holds(&*content, 1, 0..2 * STRIPE);
    });
}

#[test]
fn without_whole_stripes_those_that_miss_least_make_room() {
    bounded(|| {
        const STRIPE: u64 = 4 * CHUNK;
        let options = StripeCacheOptions::new().stripe(STRIPE as u32).write_memory(8 * CHUNK);
        let (cache, shared) = cached(options);
        let content = create(&*cache, 1, 8 * STRIPE);
        put(&*content, 1, 0..CHUNK);
        put(&*content, 1, STRIPE..STRIPE + 3 * CHUNK);
        put(&*content, 1, 2 * STRIPE..2 * STRIPE + 2 * CHUNK);
        put(&*content, 1, 3 * STRIPE..3 * STRIPE + 2 * CHUNK);
        assert_eq!(shared.writes(), []);
        put(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
        assert_eq!(shared.writes(), [(hash(1), STRIPE..STRIPE + 3 * CHUNK)]);
        // It now misses but one chunk, and goes as soon as that has come.
        put(&*content, 1, STRIPE + 3 * CHUNK..2 * STRIPE);
        while shared.writes().len() < 2 {
            thread::yield_now();
        }
        assert_eq!(shared.writes()[1..], [(hash(1), STRIPE + 3 * CHUNK..2 * STRIPE)]);
    });
}

#[test]
fn many_threads_a_tiny_limit_deletions_and_errors_never_block() {
    for fail_one_of in [0, 7] {
        bounded(move || {
            let options = StripeCacheOptions::new().write_memory(STRIPE).read_memory(2 * STRIPE).threads(2);
            let (cache, shared) = over(memory(None), options);
            shared.fail_one_of.store(fail_one_of, Relaxed);
            let stop = Arc::new(AtomicBool::new(false));
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let cache = Arc::clone(&cache);
                    thread::spawn(move || {
                        let mut draw = Draw(thread);
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
            let _ = cache.flush();
            cache.flush().unwrap();
            assert_eq!(cache.statistics().unwritten, 0);
            // What the cache says is what the store below says.
            let below = cache.inner().list().unwrap();
            assert_eq!(cache.list().unwrap(), below);
        });
    }
}

#[test]
fn what_the_store_below_refuses_was_never_written_and_is_told() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    let other = create(&*cache, 2, 4 * STRIPE);
    shared.close();
    // A piece that lies in no other stripe, and one that was there before.
    put(&*content, 1, 0..STRIPE);
    shared.wait_inside(1);
    for piece in 0..8 {
        assert!(content.mark_complete(piece).unwrap());
    }
    shared.set(Kind::Write, How::Fails);
    shared.open();
    settle(&cache);
    shared.clear(Kind::Write);
    while content.pieces().unwrap().count() > 0 {
        thread::yield_now();
    }
    assert_eq!(first_missing(&*content, 0..STRIPE), Some(0));
    assert!(matches!(content.mark_complete(0), Err(Error::NotWritten { at: 0 })));
    // The next write of that torrent says so and writes nothing; the one after does not.
    put(&*other, 2, 0..5);
    let told = content.write(0, &bytes(1, 0..10)).unwrap_err();
    assert!(matches!(&told, Error::Io { source, .. } if source.raw_os_error() == Some(5)), "{told}");
    assert_eq!(first_missing(&*content, 0..1), Some(0));
    put(&*content, 1, 0..PIECE);
    assert!(content.mark_complete(0).unwrap());
    // So does the next flush, which does all the rest.
    let told = cache.flush().unwrap_err();
    assert!(matches!(&told, Error::Refused { info_hash, .. } if *info_hash == hash(1)), "{told}");
    cache.flush().unwrap();
    assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
    holds(&*content, 1, 0..PIECE);
    holds(&*other, 2, 0..5);
}

#[test]
fn what_was_refused_may_be_written_again_and_nothing_older_is_vouched_for() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        // An older version of the first piece is on the store below.
        put(&*content, 9, 0..PIECE);
        cache.flush().unwrap();
        put(&*content, 1, 0..PIECE);
        put(&*content, 1, 2 * PIECE..3 * PIECE);
        assert!(content.mark_complete(0).unwrap());
        shared.set(Kind::Write, How::Fails);
        assert!(matches!(cache.flush(), Err(Error::Refused { .. })));
        shared.clear(Kind::Write);
        assert_eq!(content.pieces().unwrap().count(), 0);
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 0);
        assert_eq!(first_missing(&*content, 0..PIECE), Some(0));
        assert_eq!(first_missing(&*content, 2 * PIECE..3 * PIECE), Some(2 * PIECE));
        assert!(matches!(content.write(0, &[1]), Err(Error::Io { .. })));
        // All of it is missing, so that it is whole when all has come again, and not before.
        let before = shared.writes().len();
        put(&*content, 1, 0..PIECE);
        assert_eq!(cache.affinity(&hash(1), 1)[0].missing, STRIPE - PIECE);
        put(&*content, 1, PIECE..STRIPE);
        settle(&cache);
        assert_eq!(shared.writes()[before..], [(hash(1), 0..STRIPE)]);
        holds(&*content, 1, 0..STRIPE);
    });
}

#[test]
fn what_is_written_again_meanwhile_is_read_at_once_and_written_last() {
    bounded(|| {
        let (cache, shared) = over(memory(None), StripeCacheOptions::new().threads(2));
        let content = create(&*cache, 1, 4 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        shared.wait_inside(1);
        put(&*content, 9, PIECE..2 * PIECE);
        holds(&*content, 9, PIECE..2 * PIECE);
        holds(&*content, 1, 2 * PIECE..STRIPE);
        // It is due, but does not overtake.
        assert!(content.mark_complete(1).unwrap());
        let asked = shared.asked.load(Relaxed);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE)]);
        assert!(shared.asked.load(Relaxed) - asked < 10, "nobody asks again and again");
        shared.open();
        cache.flush().unwrap();
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE), (hash(1), PIECE..2 * PIECE)]);
        holds(&*content, 9, PIECE..2 * PIECE);
    });
}

#[test]
fn a_mark_that_the_store_below_refuses_is_taken_back_and_told() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..PIECE);
    assert!(content.mark_complete(0).unwrap());
    shared.set(Kind::Mark, How::Fails);
    assert!(matches!(cache.flush(), Err(Error::Refused { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    holds(&*content, 1, 0..PIECE);
    // With its bytes below, it is told at once.
    assert!(matches!(content.mark_complete(0), Err(Error::Io { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    shared.clear(Kind::Mark);
    assert!(content.mark_complete(0).unwrap());
    cache.flush().unwrap();
    assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
}

#[test]
fn a_store_below_that_knows_its_room_says_at_once_that_it_is_full() {
    let (cache, _) = over(memory(Some(8 * STRIPE)), StripeCacheOptions::new());
    let content = create(&*cache, 1, 40 * STRIPE);
    let mut written = Vec::new();
    let full = loop {
        // Each into another stripe.
        let start = written.len() as u64 * STRIPE;
        match content.write(start, &bytes(1, start..start + 10)) {
            Ok(()) => written.push(start),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert_eq!(written.len(), 8, "all of it was used");
    cache.flush().unwrap();
    for start in written {
        holds(&*content, 1, start..start + 10);
    }
    assert!(cache.delete(&hash(1)).unwrap());
    let content = create(&*cache, 1, 40 * STRIPE);
    put(&*content, 1, 0..3 * STRIPE);
    cache.flush().unwrap();
}

#[test]
fn what_is_taken_back_or_deleted_never_reaches_the_store_below() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..PIECE);
    put(&*content, 1, 2 * PIECE..3 * PIECE);
    assert!(content.mark_complete(0).unwrap());
    assert!(content.mark_incomplete(0).unwrap());
    assert_eq!(first_missing(&*content, 0..PIECE), Some(0));
    let gone = create(&*cache, 2, 4 * STRIPE);
    put(&*gone, 2, 0..PIECE);
    assert!(gone.mark_complete(0).unwrap());
    assert!(cache.delete(&hash(2)).unwrap());
    assert!(matches!(gone.read(0, &mut [0]), Err(Error::Deleted)));
    cache.flush().unwrap();
    assert_eq!(
        *shared.calls.lock(),
        [Call::Write { torrent: hash(1), range: 2 * PIECE..3 * PIECE, aligned: true }, Call::Flush,]
    );
    assert_eq!(cache.statistics().unwritten, 0);
}

#[test]
fn taking_back_and_deleting_wait_for_what_is_under_way() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        shared.close();
        put(&*content, 1, 0..STRIPE);
        shared.wait_inside(1);
        let (done, waits) = mpsc::channel();
        let deleting = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                assert!(cache.delete(&hash(1)).unwrap());
                done.send(()).unwrap();
            })
        };
        assert!(waits.recv_timeout(Duration::from_millis(100)).is_err(), "it should wait");
        shared.open();
        deleting.join().unwrap();
        assert!(matches!(content.pieces(), Err(Error::Deleted)));
        // A new one of the same info hash has nothing of the old one.
        let content = create(&*cache, 1, 4 * STRIPE);
        assert_eq!(first_missing(&*content, 0..STRIPE), Some(0));
    });
}

#[test]
fn any_mixture_reads_as_from_the_store_alone() {
    for (seed, stripe, piece, length) in
        [(1, 16 * KIB, 5_000, 300_000), (2, 16 * KIB, 50_000, 300_001), (3, 64 * KIB, 16_384, 1 << 20)]
    {
        bounded(move || {
            let options = StripeCacheOptions::new()
                .stripe(stripe as u32)
                .write_memory(4 * stripe)
                .read_memory(6 * stripe)
                .threads(2);
            let (cache, _) = over(memory(None), options);
            let alone = memory(None);
            let torrent = NewTorrent::new(hash(1), length, piece).unwrap();
            let (ours, theirs) = (cache.create(&torrent).unwrap(), alone.create(&torrent).unwrap());
            let pieces = ours.geometry().pieces();
            let mut draw = Draw(seed);
            for step in 0..20_000 {
                let start = draw.below(length);
                let range = start..(start + draw.below(40_000) + 1).min(length);
                let len = (range.end - range.start) as usize;
                let number = draw.below(pieces.into()) as u32;
                match draw.below(12) {
                    0..4 => {
                        let bytes: Vec<_> = (0..len).map(|at| (at as u64 * 7 + step) as u8).collect();
                        let parts = bytes.split_at(draw.below(len as u64 + 1) as usize);
                        let buffers = [IoSlice::new(parts.0), IoSlice::new(parts.1)];
                        let (a, b) = (ours.write_at(start, &buffers), theirs.write_at(start, &buffers));
                        assert_eq!(format!("{a:?}"), format!("{b:?}"));
                    }
                    4..8 => {
                        let (mut a, mut b) = (vec![1; len], vec![2; len]);
                        let (first, second) = a.split_at_mut(draw.below(len as u64 + 1) as usize);
                        let mut buffers = [IoSliceMut::new(first), IoSliceMut::new(second)];
                        let read = ours.read_at(start, &mut buffers);
                        let expected = theirs.read(start, &mut b);
                        assert_eq!(format!("{read:?}"), format!("{expected:?}"));
                        assert!(read.is_err() || a == b, "{range:?}");
                    }
                    8 | 9 => {
                        let range = ours.geometry().piece(number).unwrap();
                        if draw.below(2) == 0 {
                            let bytes = vec![step as u8; (range.end - range.start) as usize];
                            let _ = (ours.write(range.start, &bytes), theirs.write(range.start, &bytes));
                        }
                        let (a, b) = (ours.mark_complete(number), theirs.mark_complete(number));
                        assert_eq!(format!("{a:?}"), format!("{b:?}"));
                    }
                    10 => {
                        let (a, b) = (ours.mark_incomplete(number), theirs.mark_incomplete(number));
                        assert_eq!(format!("{a:?}"), format!("{b:?}"));
                    }
                    _ if draw.below(20) == 0 => {
                        cache.flush().unwrap();
                        let below = cache.inner().open(&hash(1)).unwrap();
                        assert_eq!(below.pieces().unwrap(), theirs.pieces().unwrap());
                    }
                    _ => assert_eq!(ours.pieces().unwrap(), theirs.pieces().unwrap()),
                }
            }
            let statistics = cache.cache_statistics();
            assert!(statistics.hits > 100 && statistics.misses > 100, "{statistics:?}");
            assert!(statistics.whole > 0 && statistics.partial > 100, "{statistics:?}");
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
fn a_read_brings_its_stripe_and_what_follows_comes_from_memory() {
    let (cache, shared) = cached(StripeCacheOptions::new().read_memory(2 * STRIPE));
    let content = seeding(&cache, 1, 4);
    for block in (0..16).rev() {
        holds(&*content, 1, STRIPE + block * 16 * KIB..STRIPE + (block + 1) * 16 * KIB);
    }
    assert_eq!(shared.reads(), [STRIPE..2 * STRIPE]);
    let statistics = cache.cache_statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.read_ahead), (15, 1, STRIPE));
    // Two stripes find room; the one that was read least recently goes.
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 1);
    holds(&*content, 1, STRIPE..STRIPE + 1);
    holds(&*content, 1, 3 * STRIPE..3 * STRIPE + 1);
    assert_eq!(cache.cache_statistics().read_memory, 2 * STRIPE);
    holds(&*content, 1, STRIPE..STRIPE + 1);
    assert_eq!(shared.reads().len(), 3);
    holds(&*content, 1, 2 * STRIPE..2 * STRIPE + 1);
    assert_eq!(shared.reads().len(), 4);
}

#[test]
fn reading_ahead_stops_at_what_is_not_complete() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    for piece in [1, 2, 3, 5, 6] {
        put(&*content, 1, piece * PIECE..(piece + 1) * PIECE);
    }
    for piece in [1, 2, 3, 6] {
        assert!(content.mark_complete(piece).unwrap());
    }
    cache.flush().unwrap();
    holds(&*content, 1, 2 * PIECE..2 * PIECE + 1);
    // Nothing ahead of a piece that may still be written to.
    holds(&*content, 1, 5 * PIECE..5 * PIECE + 1);
    assert_eq!(shared.reads(), [PIECE..4 * PIECE, 5 * PIECE..5 * PIECE + 1]);
    // What has come since is not missed.
    put(&*content, 1, 4 * PIECE..5 * PIECE);
    assert!(content.mark_complete(4).unwrap());
    assert!(content.mark_complete(5).unwrap());
    holds(&*content, 1, PIECE..7 * PIECE);
    cache.flush().unwrap();
    holds(&*content, 1, 4 * PIECE..5 * PIECE);
    assert_eq!(*shared.reads().last().unwrap(), PIECE..7 * PIECE);
}

#[test]
fn what_was_read_ahead_is_forgotten_with_its_mark() {
    let (cache, _) = cached(StripeCacheOptions::new());
    let content = seeding(&cache, 1, 2);
    holds(&*content, 1, 0..STRIPE);
    assert!(content.mark_incomplete(3).unwrap());
    assert_eq!(first_missing(&*content, 0..STRIPE), Some(3 * PIECE));
    put(&*content, 9, 3 * PIECE..4 * PIECE);
    assert!(content.mark_complete(3).unwrap());
    holds(&*content, 9, 3 * PIECE..4 * PIECE);
    cache.flush().unwrap();
    holds(&*content, 9, 3 * PIECE..4 * PIECE);
    holds(&*content, 1, 4 * PIECE..STRIPE);
    // And with its torrent.
    assert!(cache.delete(&hash(1)).unwrap());
    assert_eq!(cache.cache_statistics().read_memory, 0);
}

#[test]
fn what_is_in_memory_is_read_without_the_store_below() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 2);
        let in_memory = |range: Range<u64>| {
            let mut into = vec![0; (range.end - range.start) as usize];
            let there = cache.read_in_memory(&hash(1), range.start, &mut into);
            assert!(!there || into == bytes(1, range), "other bytes");
            there
        };
        assert!(!in_memory(0..16 * KIB), "nothing was read");
        holds(&*content, 1, 0..16 * KIB);
        // Whoever asks the store from here on waits.
        shared.close();
        assert!(in_memory(100..STRIPE));
        assert!(!in_memory(STRIPE - 1..STRIPE + 1) && !in_memory(2 * STRIPE - 1..2 * STRIPE + 1));
        assert!(!cache.read_in_memory(&hash(2), 0, &mut [0]));
        shared.open();
        assert!(content.mark_incomplete(3).unwrap());
        assert!(!in_memory(3 * PIECE..4 * PIECE));
        holds(&*content, 1, 4 * PIECE..STRIPE);
        assert!(in_memory(4 * PIECE..STRIPE));
        shared.close();
        put(&*content, 9, 3 * PIECE..4 * PIECE);
        assert!(!in_memory(4 * PIECE..STRIPE), "some of the stripe is being written");
        shared.open();
        cache.flush().unwrap();
        assert!(!in_memory(3 * PIECE..4 * PIECE), "the piece is not complete");
        assert!(cache.delete(&hash(1)).unwrap());
        assert!(!in_memory(4 * PIECE..STRIPE));
    });
}

#[test]
fn readers_of_one_stripe_share_one_read() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 4);
        shared.close();
        let start = Arc::new(Barrier::new(8));
        let readers: Vec<_> = (0..8)
            .map(|reader| {
                let (content, start) = (Arc::clone(&content), Arc::clone(&start));
                thread::spawn(move || {
                    start.wait();
                    holds(&*content, 1, reader * PIECE..(reader + 1) * PIECE);
                })
            })
            .collect();
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(50));
        shared.open();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(shared.reads(), [0..STRIPE]);
        assert_eq!(cache.cache_statistics().hits, 7);
    });
}

#[test]
fn a_bad_place_in_the_stripe_spoils_no_other_read() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = seeding(&cache, 1, 1);
    *shared.bad_byte.lock() = Some(5 * PIECE + 7);
    holds(&*content, 1, 0..16 * KIB);
    holds(&*content, 1, 6 * PIECE..7 * PIECE);
    assert!(matches!(content.read(5 * PIECE, &mut [0; 16]), Err(Error::Io { .. })));
}

#[test]
fn affinity_names_the_pieces_that_complete_what_is_begun() {
    // Smaller than a stripe of 256 KiB, larger, and across two.
    let begun = |piece: u64, length: u64, written: &[Range<u64>]| {
        let (cache, _) = cached(StripeCacheOptions::new());
        let torrent = NewTorrent::new(hash(1), length, piece as u32).unwrap();
        let content = cache.create(&torrent).unwrap();
        for range in written {
            put(&*content, 1, range.clone());
        }
        let all = cache.affinity(&hash(1), usize::MAX);
        assert_eq!(cache.affinity(&hash(1), 2), all[..all.len().min(2)]);
        all.iter().map(|best| (best.piece, best.missing / KIB)).collect::<Vec<_>>()
    };
    let (k, s) = (KIB, STRIPE);
    assert_eq!(begun(64 * k, 8 * s, &[]), []);
    // Stripe 1 misses one piece, stripe 3 three of which one has begun.
    assert_eq!(
        begun(64 * k, 8 * s, &[3 * s..3 * s + 80 * k, s..s + 128 * k, s + 192 * k..2 * s]),
        [(6, 64), (13, 176), (14, 176), (15, 176)]
    );
    // Four stripes a piece.
    assert_eq!(begun(1024 * k, 16 * s, &[s..s + 16 * k, 9 * s..9 * s + 32 * k]), [(2, 224), (0, 240)]);
    // Pieces of 96 KiB: the third lies in stripes 0 and 1, and counts for the one that misses less.
    assert_eq!(begun(96 * k, 4 * s, &[0..96 * k, s + 32 * k..2 * s]), [(2, 32), (1, 160)]);
    // The last stripe is shorter.
    assert_eq!(begun(64 * k, s + 100 * k, &[s..s + 64 * k]), [(5, 36)]);
    // What is whole is not begun.
    assert_eq!(begun(64 * k, 8 * s, &[0..s]), []);
}

/// Writes four torrents of 32 stripes in random order, as a fetcher with 4 MiB of 32 would; calls that wrote,
/// and stripes that were written whole.
fn fetch(affinity: bool) -> (u64, u64) {
    let (cache, _) = cached(StripeCacheOptions::new().write_memory(16 * STRIPE));
    let stripes = 32;
    let mut draw = Draw(3);
    let torrents = [1, 2, 3, 4].map(|n| (n, create(&*cache, n, stripes * STRIPE)));
    let pieces = torrents[0].1.geometry().pieces();
    let mut left: Vec<_> =
        (0..4).flat_map(|torrent| (0..pieces).map(move |piece| (torrent, piece))).collect();
    draw.shuffle(&mut left);
    let mut wanted = BTreeMap::from_iter(left.iter().copied().map(|key| (key, ())));
    while let Some((torrent, piece)) = left.pop() {
        if !wanted.contains_key(&(torrent, piece)) {
            continue;
        }
        let (n, content) = &torrents[torrent];
        let best = if affinity { cache.affinity(&hash(*n), 1) } else { Vec::new() };
        let now = best.first().map_or(piece, |best| best.piece);
        if now != piece {
            left.push((torrent, piece));
        }
        wanted.remove(&(torrent, now)).expect("it was not complete");
        put(&**content, *n, content.geometry().piece(now).unwrap());
        assert!(content.mark_complete(now).unwrap());
    }
    cache.flush().unwrap();
    let statistics = cache.cache_statistics();
    for (n, content) in &torrents {
        assert_eq!(content.pieces().unwrap().count(), pieces);
        holds(&**content, *n, 0..stripes * STRIPE);
    }
    (statistics.calls, statistics.whole)
}

#[test]
fn with_affinity_a_random_order_gives_whole_stripes() {
    let (random, with) = (fetch(false), fetch(true));
    println!(
        "of 128 stripes and 1,024 pieces, calls and whole stripes: random {random:?}, with affinity {with:?}"
    );
    assert_eq!(with, (128, 128));
    assert!(random.0 > 600 && random.1 < 8, "{random:?}");
}

#[test]
fn the_cache_outlives_itself_while_a_handle_is_open() {
    bounded(|| {
        let (cache, _) = cached(StripeCacheOptions::new().write_memory(STRIPE));
        let content = create(&*cache, 1, 8 * STRIPE);
        drop(cache);
        put(&*content, 1, 0..4 * STRIPE);
        holds(&*content, 1, 0..4 * STRIPE);
    });
}

#[test]
fn what_was_flushed_is_on_the_device() {
    let device = Arc::new(SparseDevice::new(4096));
    BlockStore::format(&*device, FormatOptions::new()).unwrap();
    let store = BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap();
    let stripe = u64::from(store.block_size());
    let cache =
        StripeCache::new(Arc::new(store), StripeCacheOptions::new().write_memory(8 * stripe)).unwrap();
    let torrent = NewTorrent::new(hash(1), 100 * stripe + 5, 10_000).unwrap();
    let content = cache.create(&torrent).unwrap();
    let mut pieces: Vec<_> = (0..content.geometry().pieces()).filter(|piece| piece % 5 != 0).collect();
    Draw(1).shuffle(&mut pieces);
    for &piece in &pieces {
        put(&*content, 1, content.geometry().piece(piece).unwrap());
        assert!(content.mark_complete(piece).unwrap());
    }
    cache.flush().unwrap();
    drop((content, cache));
    let store = BlockStore::boot(device, Allocation::Sequential).unwrap();
    let content = store.open(&hash(1)).unwrap();
    pieces.sort_unstable();
    assert!(content.pieces().unwrap().iter().eq(pieces.iter().copied()));
    for piece in pieces {
        holds(&*content, 1, content.geometry().piece(piece).unwrap());
    }
}

/// Does something in a thread; it is told when that is done.
fn aside(work: impl FnOnce() + Send + 'static) -> mpsc::Receiver<()> {
    let (done, told) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    told
}

fn waits(told: &mpsc::Receiver<()>) {
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "it should wait");
}

fn ends(told: &mpsc::Receiver<()>) {
    told.recv_timeout(Duration::from_secs(10)).expect("it hangs, or has failed");
}

#[test]
fn a_long_delete_keeps_no_other_torrent_waiting() {
    let (cache, shared) = cached(StripeCacheOptions::new().write_memory(2 * STRIPE));
    let (other, gone) = (create(&*cache, 1, 8 * STRIPE), create(&*cache, 2, 8 * STRIPE));
    shared.close();
    put(&*other, 1, 0..STRIPE);
    shared.wait_inside(1);
    // It is whole, and nobody has time for it before it is deleted.
    put(&*gone, 2, 0..STRIPE);
    shared.set(Kind::Delete, How::Waits);
    let deleting = {
        let cache = Arc::clone(&cache);
        aside(move || assert!(cache.delete(&hash(2)).unwrap()))
    };
    shared.wait_inside(2);
    shared.clear(Kind::Write);
    shared.clear(Kind::Read);
    while cache.statistics().unwritten > STRIPE {
        thread::yield_now();
    }
    for stripe in 1..5 {
        put(&*other, 1, stripe * STRIPE..stripe * STRIPE + 64 * KIB);
    }
    let asked = shared.asked.load(Relaxed);
    // There is memory for no more, unless some of that is written.
    let writer = {
        let other = Arc::clone(&other);
        aside(move || put(&*other, 1, 5 * STRIPE..5 * STRIPE + 64 * KIB))
    };
    ends(&writer);
    assert!(shared.asked.load(Relaxed) - asked < 100, "nobody asks again and again");
    // Others come and go meanwhile.
    let naming = {
        let cache = Arc::clone(&cache);
        aside(move || {
            create(&*cache, 3, STRIPE);
            assert!(matches!(cache.open(&hash(4)), Err(Error::NotFound(_))));
        })
    };
    ends(&naming);
    shared.open();
    ends(&deleting);
    assert!(matches!(gone.pieces(), Err(Error::Deleted)));
    cache.flush().unwrap();
    assert!(shared.writes().iter().all(|(torrent, _)| *torrent == hash(1)));
}

#[test]
fn a_delete_that_fails_leaves_everything() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        let other = create(&*cache, 2, 4 * STRIPE);
        shared.close();
        put(&*other, 2, 0..STRIPE);
        shared.wait_inside(1);
        // Whole, and still to be written.
        put(&*content, 1, 0..STRIPE);
        put(&*content, 1, STRIPE..STRIPE + PIECE);
        assert!(content.mark_complete(8).unwrap());
        shared.set(Kind::Delete, How::Fails);
        assert!(matches!(cache.delete(&hash(1)), Err(Error::Io { .. })));
        shared.open();
        while cache.statistics().unwritten > CHUNK {
            thread::yield_now();
        }
        holds(&*content, 1, 0..STRIPE + PIECE);
        cache.flush().unwrap();
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 1);
        shared.clear(Kind::Delete);
        assert!(cache.delete(&hash(1)).unwrap());
    });
}

#[test]
fn a_delete_that_fails_when_the_torrent_is_gone_has_deleted_it() {
    bounded(|| {
        for anew in [false, true] {
            let (cache, shared) = cached(StripeCacheOptions::new().write_memory(STRIPE));
            let content = create(&*cache, 1, 4 * STRIPE);
            put(&*content, 1, 0..STRIPE - 1);
            shared.set(Kind::Deleted, How::Fails);
            if anew {
                // Not even whether it is there can be said.
                shared.set(Kind::Open, How::Fails);
            }
            assert!(matches!(cache.delete(&hash(1)), Err(Error::Io { .. })));
            shared.how.lock().clear();
            if !anew {
                assert!(matches!(content.write(0, &[1]), Err(Error::Deleted)));
                assert!(matches!(content.read(0, &mut [1]), Err(Error::Deleted)));
                assert!(matches!(cache.open(&hash(1)), Err(Error::NotFound(_))));
                cache.flush().unwrap();
                assert!(!cache.delete(&hash(1)).unwrap());
            }
            // One that is created anew has all the memory.
            let fresh = create(&*cache, 1, 4 * STRIPE);
            assert!(matches!(content.pieces(), Err(Error::Deleted)));
            assert_eq!(cache.statistics().unwritten, 0);
            assert_eq!(first_missing(&*fresh, 0..STRIPE), Some(0));
            put(&*fresh, 1, 0..3 * STRIPE);
            cache.flush().unwrap();
            holds(&*fresh, 1, 0..3 * STRIPE);
        }
    });
}

#[test]
fn a_panic_of_the_store_below_is_an_error_and_nothing_hangs() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new().write_memory(STRIPE));
        let content = create(&*cache, 1, 8 * STRIPE);
        shared.set(Kind::Write, How::Panics);
        put(&*content, 1, 0..STRIPE);
        let told = cache.flush().unwrap_err();
        assert!(format!("{told:?}").contains("as it was told"), "{told:?}");
        shared.clear(Kind::Write);
        assert!(content.write(0, &[1]).is_err());
        put(&*content, 1, 0..2 * STRIPE);
        shared.set(Kind::Mark, How::Panics);
        assert!(content.mark_complete(0).is_err() || cache.flush().is_err());
        let _ = (cache.flush(), content.write(0, &[1]));
        assert_eq!(content.pieces().unwrap().count(), 0);
        shared.clear(Kind::Mark);
        put(&*content, 1, 0..8 * STRIPE);
        assert!(content.mark_complete(0).unwrap());
        cache.flush().unwrap();
        // What a read panics with is its caller's.
        shared.set(Kind::Read, How::Panics);
        let reader = Arc::clone(&content);
        assert!(thread::spawn(move || reader.read(0, &mut [0])).join().is_err());
        shared.clear(Kind::Read);
        holds(&*content, 1, 0..PIECE);
        assert!(content.mark_incomplete(0).unwrap());
        shared.set(Kind::Delete, How::Panics);
        let deleted = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.delete(&hash(1)))
        };
        assert!(!matches!(deleted.join(), Ok(Ok(_))));
        shared.clear(Kind::Delete);
        holds(&*content, 1, PIECE..STRIPE);
        put(&*content, 1, 0..STRIPE);
        assert!(cache.delete(&hash(1)).unwrap());
    });
}

/// A cache over files, with what reaches them.
fn over_files(
    folder: &tempfile::TempDir,
    allocation: files::Allocation,
    capacity: u64,
) -> (Arc<StripeCache>, Arc<Shared>) {
    let config = ContentConfig::new(folder.path()).capacity(capacity);
    over(Box::new(FileStore::open(&config, allocation).unwrap()), StripeCacheOptions::new())
}

#[test]
fn files_with_just_enough_room_are_written_in_whole_stripes() {
    let large = 4 << 20;
    for (allocation, length, calls) in
        [(files::Allocation::Sparse, 16 * large, 160), (files::Allocation::Preallocated, 4 * large, 4)]
    {
        let folder = tempfile::tempdir().unwrap();
        // The state takes less than a sector a piece. Where files are sparse, the last pieces find that most
        // of the room is kept for the others, and those are written out once or twice before they are whole.
        let (cache, shared) = over_files(&folder, allocation, length + 4096);
        let torrent = NewTorrent::new(hash(1), length, 256 << 10).unwrap();
        let content = cache.create(&torrent).unwrap();
        let mut pieces: Vec<_> = (0..content.geometry().pieces()).collect();
        Draw(5).shuffle(&mut pieces);
        for piece in pieces {
            let piece = content.geometry().piece(piece).unwrap();
            for start in piece.step_by(16 << 10) {
                put(&*content, 1, start..start + 16 * KIB);
            }
        }
        for piece in 0..content.geometry().pieces() {
            assert!(content.mark_complete(piece).unwrap());
        }
        cache.flush().unwrap();
        let statistics = cache.cache_statistics();
        println!("{allocation:?}: {statistics:?}");
        assert!(shared.writes().len() <= calls, "{statistics:?}");
        holds(&*content, 1, 0..length);
    }
}

#[test]
fn no_room_of_the_store_below_is_promised_twice() {
    bounded(|| {
        // A write that begins in a stripe that has its block and ends in one that has none.
        let device = Arc::new(SparseDevice::new(64 * 64));
        BlockStore::format(&*device, FormatOptions::new().block_size(STRIPE as u32)).unwrap();
        let store = BlockStore::boot(device, Allocation::Sequential).unwrap();
        let (cache, _) = over(Box::new(store), StripeCacheOptions::new().threads(1));
        let content = create(&*cache, 1, 200 * STRIPE);
        let free = cache.statistics().free.unwrap() / STRIPE;
        let placed = free / 2 + 1;
        for stripe in 0..placed {
            put(&*content, 1, 2 * stripe * STRIPE..(2 * stripe + 1) * STRIPE);
        }
        cache.flush().unwrap();
        for stripe in 0..placed {
            let end = (2 * stripe + 1) * STRIPE;
            match content.write(end - PIECE, &bytes(1, end - PIECE..end + 100)) {
                Ok(()) => {}
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            // What is in the first goes, and what room was kept for it.
            assert!(content.mark_complete(((end - 1) / PIECE) as u32).unwrap());
            while cache.statistics().unwritten > (stripe + 1) * CHUNK {
                thread::yield_now();
            }
        }
        // Whatever was taken finds its place.
        cache.flush().unwrap();
    });
}

#[test]
fn a_flush_tells_what_was_refused_torrent_by_torrent() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let torrents = [1, 2].map(|n| create(&*cache, n, 4 * STRIPE));
        for (n, content) in (1..).zip(&torrents) {
            put(&**content, n, 0..PIECE);
            assert!(content.mark_complete(0).unwrap());
        }
        shared.set(Kind::Write, How::Fails);
        // What the store below says of itself is worse, and comes first.
        shared.set(Kind::Flush, How::Fails);
        assert!(matches!(cache.flush(), Err(Error::Io { .. })));
        shared.how.lock().clear();
        let mut told: Vec<_> = (0..2)
            .map(|_| match cache.flush() {
                Err(Error::Refused { info_hash, source }) => {
                    assert!(matches!(*source, Error::Io { .. }), "{source}");
                    info_hash
                }
                other => panic!("{other:?}"),
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, [hash(1), hash(2)]);
        cache.flush().unwrap();
    });
}

#[test]
fn of_two_flushes_at_once_both_tell_what_was_refused() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, 4 * STRIPE);
        put(&*content, 1, 0..PIECE);
        assert!(content.mark_complete(0).unwrap());
        shared.close();
        let both = Arc::new(Barrier::new(3));
        let flushes = [0, 1].map(|_| {
            let (cache, both) = (Arc::clone(&cache), Arc::clone(&both));
            thread::spawn(move || {
                both.wait();
                cache.flush()
            })
        });
        both.wait();
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(300));
        shared.set(Kind::Write, How::Fails);
        for flush in flushes {
            assert!(flush.join().unwrap().is_err(), "the mark was lost");
        }
        shared.how.lock().clear();
        cache.flush().unwrap();
    });
}

#[test]
fn what_the_store_below_loses_in_a_flush_is_not_complete() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 2);
        holds(&*content, 1, 0..STRIPE);
        put(&*create(&*cache, 2, STRIPE), 2, 0..1);
        // As a store does whose system does not say which bytes have reached the disk.
        assert!(cache.inner().open(&hash(1)).unwrap().mark_incomplete(3).unwrap());
        shared.set(Kind::Flush, How::Fails);
        assert!(matches!(cache.flush(), Err(Error::Io { .. })));
        shared.how.lock().clear();
        assert!(!content.pieces().unwrap().contains(3));
        assert_eq!(first_missing(&*content, 0..STRIPE), Some(3 * PIECE));
        put(&*content, 9, 3 * PIECE..4 * PIECE);
        assert!(content.mark_complete(3).unwrap());
        cache.flush().unwrap();
        holds(&*content, 9, 3 * PIECE..4 * PIECE);
        holds(&*content, 1, 4 * PIECE..STRIPE);
    });
}

#[test]
fn what_is_lost_while_its_mark_is_being_told_is_not_complete() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = create(&*cache, 1, STRIPE);
        shared.set(Kind::Flush, How::Waits);
        let flushing = {
            let cache = Arc::clone(&cache);
            aside(move || assert!(matches!(cache.flush(), Err(Error::Io { .. }))))
        };
        shared.wait_inside(1);
        // Its bytes are in memory: it is told by a thread, after they were written.
        shared.set(Kind::Write, How::Waits);
        put(&*content, 1, 0..STRIPE);
        assert!(content.mark_complete(2).unwrap());
        shared.set(Kind::Marked, How::Waits);
        shared.clear(Kind::Write);
        let below = cache.inner().open(&hash(1)).unwrap();
        while !below.pieces().unwrap().contains(2) {
            thread::yield_now();
        }
        assert!(below.mark_incomplete(2).unwrap());
        shared.set(Kind::Flush, How::Fails);
        let waited = flushing.recv_timeout(Duration::from_millis(100)).is_err();
        shared.clear(Kind::Marked);
        assert!(waited, "what is being told may be lost already");
        ends(&flushing);
        shared.clear(Kind::Flush);
        cache.flush().unwrap();
        assert_eq!((content.pieces().unwrap().count(), below.pieces().unwrap().count()), (0, 0));
    });
}

#[test]
fn a_stripe_that_cannot_be_read_ahead_is_not_tried_again_and_again() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 1);
        *shared.bad_byte.lock() = Some(5 * PIECE + 7);
        for block in 0..10 {
            holds(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
        }
        let ahead = shared.reads().iter().filter(|range| **range == (0..STRIPE)).count();
        assert_eq!((ahead, shared.reads().len()), (1, 11));
        // Nor by those who waited for it.
        let (cache, shared) = cached(StripeCacheOptions::new());
        let content = seeding(&cache, 1, 1);
        *shared.bad_byte.lock() = Some(5 * PIECE + 7);
        shared.close();
        let readers: Vec<_> = [0, 1, 2, 3]
            .map(|reader| {
                let content = Arc::clone(&content);
                aside(move || holds(&*content, 1, reader * PIECE..reader * PIECE + 10))
            })
            .into();
        shared.wait_inside(1);
        thread::sleep(Duration::from_millis(50));
        shared.open();
        readers.iter().for_each(ends);
        let ahead = shared.reads().iter().filter(|range| **range == (0..STRIPE)).count();
        assert_eq!(ahead, 1);
        // A piece that comes anew makes it worth another attempt.
        *shared.bad_byte.lock() = None;
        assert!(content.mark_incomplete(5).unwrap());
        put(&*content, 1, 5 * PIECE..6 * PIECE);
        assert!(content.mark_complete(5).unwrap());
        cache.flush().unwrap();
        holds(&*content, 1, 0..10);
        assert_eq!(shared.reads().last(), Some(&(0..STRIPE)));
    });
}

#[test]
fn a_read_that_fails_leaves_nobody_waiting_for_the_rest_of_its_stripe() {
    for how in [How::Fails, How::Panics] {
        bounded(move || {
            let (cache, shared) = cached(StripeCacheOptions::new());
            let content = create(&*cache, 1, STRIPE);
            for piece in [0, 2] {
                put(&*content, 1, piece * PIECE..(piece + 1) * PIECE);
                assert!(content.mark_complete(piece as u32).unwrap());
            }
            cache.flush().unwrap();
            put(&*content, 1, PIECE..2 * PIECE);
            assert!(content.mark_complete(1).unwrap());
            // Either side of what is in memory is read ahead; the first ends the read.
            shared.set(Kind::Read, how);
            let reader = Arc::clone(&content);
            let read = thread::spawn(move || reader.read(0, &mut vec![0; 3 * PIECE as usize]));
            assert!(!matches!(read.join(), Ok(Ok(()))));
            shared.clear(Kind::Read);
            let reader = Arc::clone(&content);
            ends(&aside(move || holds(&*reader, 1, 2 * PIECE..3 * PIECE)));
            holds(&*content, 1, 0..3 * PIECE);
            assert_eq!(shared.reads().last(), Some(&(0..PIECE)), "the other side was read ahead");
            assert!(cache.delete(&hash(1)).unwrap());
            assert_eq!(cache.cache_statistics().read_memory, 0);
        });
    }
}

#[test]
fn either_side_of_an_incomplete_piece_is_read_ahead_once() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = seeding(&cache, 1, 1);
    assert!(content.mark_incomplete(4).unwrap());
    for block in 0..8 {
        holds(&*content, 1, block * 16 * KIB..(block + 1) * 16 * KIB);
        if block < 6 {
            holds(&*content, 1, 5 * PIECE + block * 16 * KIB..5 * PIECE + (block + 1) * 16 * KIB);
        }
    }
    assert_eq!(shared.reads(), [0..4 * PIECE, 5 * PIECE..STRIPE]);
    // When it has come, all is one again.
    put(&*content, 1, 4 * PIECE..5 * PIECE);
    assert!(content.mark_complete(4).unwrap());
    cache.flush().unwrap();
    holds(&*content, 1, 0..STRIPE);
    holds(&*content, 1, 4 * PIECE..5 * PIECE);
    assert_eq!(shared.reads()[2..], [0..STRIPE]);
}

#[test]
fn more_readers_than_there_is_memory_for_read_little_ahead() {
    // 4 MiB, as large stripes are, and memory for four of them; 16 peers fetch a torrent each, block by
    // block.
    let large = 4 << 20;
    let options = StripeCacheOptions::new().stripe(large as u32).read_memory(4 * large);
    let (cache, shared) = over(memory(None), options);
    let peers: Vec<_> = (0..16)
        .map(|n| {
            let content = create(&*cache, n, 2 * large);
            put(&*content, n, 0..2 * large);
            (0..content.geometry().pieces()).for_each(|piece| assert!(content.mark_complete(piece).unwrap()));
            content
        })
        .collect();
    cache.flush().unwrap();
    for block in 0..2 * large / (16 * KIB) {
        for (n, content) in (0..).zip(&peers) {
            holds(&**content, n, block * 16 * KIB..(block + 1) * 16 * KIB);
        }
    }
    let read: u64 = shared.reads().iter().map(|range| range.end - range.start).sum();
    println!("{:.1} bytes read for each that was asked for", read as f64 / (16 * 2 * large) as f64);
    assert!(read < 3 * 16 * 2 * large);
    // Fewer peers have whole stripes again, sooner or later.
    let before = shared.reads().len();
    for _ in 0..2 {
        for (n, content) in (0..).zip(&peers) {
            for block in 0..2 * large / (16 * KIB) {
                holds(&**content, n, block * 16 * KIB..(block + 1) * 16 * KIB);
            }
        }
    }
    assert!(shared.reads()[before..].contains(&(0..large)), "it never tries again");
    assert_eq!(*shared.reads().last().unwrap(), large..2 * large);
}

#[test]
fn who_asks_for_one_torrent_waits_for_no_other() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    drop(cache.inner().create(&NewTorrent::new(hash(7), STRIPE, PIECE as u32).unwrap()).unwrap());
    shared.set(Kind::Create, How::Waits);
    let creating = {
        let cache = Arc::clone(&cache);
        aside(move || drop(create(&*cache, 1, STRIPE)))
    };
    shared.wait_inside(1);
    let others = {
        let cache = Arc::clone(&cache);
        aside(move || {
            drop(cache.open(&hash(7)).unwrap());
            assert!(matches!(cache.open(&hash(8)), Err(Error::NotFound(_))));
            assert!(!cache.delete(&hash(9)).unwrap());
        })
    };
    ends(&others);
    // A picker may ask from wherever it is.
    shared.set(Kind::Open, How::Waits);
    let picking = {
        let cache = Arc::clone(&cache);
        aside(move || assert!(affinity(&cache, 1).is_empty() && affinity(&cache, 8).is_empty()))
    };
    ends(&picking);
    shared.open();
    ends(&creating);
}

fn affinity(cache: &StripeCache, n: u64) -> Vec<(u32, u64)> {
    cache.affinity(&hash(n), usize::MAX).iter().map(|best| (best.piece, best.missing)).collect()
}

#[test]
fn after_a_refusal_the_rest_of_a_stripe_is_tried_all_the_same() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        // Pieces that lie in two stripes.
        let torrent = NewTorrent::new(hash(1), 4 * STRIPE, 96 << 10).unwrap();
        let content = cache.create(&torrent).unwrap();
        let piece = |n: u32| content.geometry().piece(n).unwrap();
        for n in [0, 2, 4] {
            put(&*content, 1, piece(n));
            assert!(content.mark_complete(n).unwrap());
        }
        *shared.bad_byte.lock() = Some(5);
        let told = cache.flush().unwrap_err();
        assert!(matches!(told, Error::Refused { info_hash, .. } if info_hash == hash(1)), "{told}");
        *shared.bad_byte.lock() = None;
        assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(first_missing(&*content, piece(0)), Some(0));
        holds(&*content, 1, piece(2));
        assert!(content.write(0, &[1]).is_err());
        // Of a piece that is refused in one stripe, what lies in the other is not lost.
        assert!(content.mark_incomplete(2).unwrap());
        put(&*content, 1, piece(2));
        assert!(content.mark_complete(2).unwrap());
        *shared.bad_byte.lock() = Some(STRIPE + 1);
        cache.flush().unwrap_err();
        *shared.bad_byte.lock() = None;
        assert!(!content.pieces().unwrap().contains(2));
        holds(&*content, 1, piece(2).start..STRIPE);
        assert_eq!(first_missing(&*content, piece(2)), Some(STRIPE));
        assert!(content.write(STRIPE, &[1]).is_err());
        put(&*content, 1, STRIPE..piece(2).end);
        assert!(content.mark_complete(2).unwrap());
        cache.flush().unwrap();
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 2);
        holds(&*content, 1, piece(2));
        let statistics = cache.cache_statistics();
        assert_eq!((statistics.whole, statistics.partial), (0, 3), "what failed counts as neither");
    });
}

#[test]
fn one_write_that_stalls_keeps_no_thread_from_making_room() {
    let (cache, shared) = over(memory(None), StripeCacheOptions::new().write_memory(2 * STRIPE).threads(2));
    let (stalled, other) = (create(&*cache, 1, 8 * STRIPE), create(&*cache, 2, 8 * STRIPE));
    shared.set(Kind::WriteOf(hash(1)), How::Waits);
    put(&*stalled, 1, 0..STRIPE);
    shared.wait_inside(1);
    for stripe in 0..4 {
        put(&*other, 2, stripe * STRIPE..stripe * STRIPE + 64 * KIB);
    }
    let writer = {
        let other = Arc::clone(&other);
        aside(move || put(&*other, 2, 4 * STRIPE..4 * STRIPE + 64 * KIB))
    };
    ends(&writer);
    shared.open();
    cache.flush().unwrap();
    holds(&*other, 2, 4 * STRIPE..4 * STRIPE + 64 * KIB);
}

#[test]
fn what_was_whole_and_begins_anew_waits_until_it_is_whole_again() {
    bounded(|| {
        let (cache, shared) = cached(StripeCacheOptions::new());
        let (content, other) = (create(&*cache, 1, 4 * STRIPE), create(&*cache, 2, 4 * STRIPE));
        shared.close();
        put(&*other, 2, 0..STRIPE);
        shared.wait_inside(1);
        put(&*content, 1, 0..STRIPE);
        for piece in 0..8 {
            assert!(content.mark_complete(piece).unwrap());
        }
        for piece in 0..8 {
            assert!(content.mark_incomplete(piece).unwrap());
        }
        put(&*content, 1, 0..16 * KIB);
        shared.open();
        // What comes after it has been written, so that would be.
        put(&*other, 2, 2 * STRIPE..3 * STRIPE);
        while cache.statistics().unwritten > CHUNK {
            thread::yield_now();
        }
        assert_eq!(shared.writes(), [(hash(2), 0..STRIPE), (hash(2), 2 * STRIPE..3 * STRIPE)]);
    });
}

#[test]
fn taking_back_waits_for_a_mark_that_is_being_told() {
    let (cache, shared) = cached(StripeCacheOptions::new());
    let content = create(&*cache, 1, 4 * STRIPE);
    put(&*content, 1, 0..4 * PIECE);
    // Its bytes are in memory: it is told by a thread, after they were written.
    assert!(content.mark_complete(2).unwrap());
    shared.set(Kind::Mark, How::Waits);
    let flushing = {
        let cache = Arc::clone(&cache);
        aside(move || cache.flush().unwrap())
    };
    shared.wait_inside(1);
    waits(&flushing);
    let taking = {
        let content = Arc::clone(&content);
        aside(move || assert!(content.mark_incomplete(2).unwrap()))
    };
    waits(&taking);
    shared.open();
    [flushing, taking].iter().for_each(ends);
    let below = cache.inner().open(&hash(1)).unwrap();
    assert_eq!((content.pieces().unwrap().count(), below.pieces().unwrap().count()), (0, 0));
    assert_eq!(first_missing(&*content, 0..4 * PIECE), Some(2 * PIECE));
}

#[test]
fn who_waited_first_for_memory_gets_it_first() {
    const STRIPE: u64 = 2 * CHUNK;
    let options = StripeCacheOptions::new().stripe(STRIPE as u32).write_memory(2 * STRIPE);
    let (cache, shared) = cached(options);
    let torrents = [1, 2, 3].map(|n| create(&*cache, n, 8 * STRIPE));
    // Half of the memory is stuck, and half can be taken back chunk by chunk.
    shared.close();
    put(&*torrents[2], 3, 0..STRIPE);
    shared.wait_inside(1);
    for stripe in [0, 1] {
        put(&*torrents[0], 1, stripe * STRIPE..stripe * STRIPE + CHUNK);
    }
    for piece in (0..8).chain(16..24) {
        assert!(torrents[0].mark_complete(piece).unwrap());
    }
    // The first wants most: nobody overtakes it.
    let writers = [STRIPE, 1, 1].map(|len| {
        let content = Arc::clone(&torrents[1]);
        let start = if len == 1 { 5 * STRIPE } else { 2 * STRIPE };
        let told = aside(move || put(&*content, 2, start..start + len));
        waits(&told);
        told
    });
    let take_back = |pieces: Range<u32>| {
        pieces.for_each(|piece| assert!(torrents[0].mark_incomplete(piece).unwrap()));
    };
    take_back(0..8);
    take_back(16..22);
    writers.iter().for_each(waits);
    take_back(22..24);
    ends(&writers[0]);
    writers[1..].iter().for_each(waits);
    shared.open();
    writers[1..].iter().for_each(ends);
}

#[test]
fn writes_that_go_through_at_once_all_end() {
    for seed in 0..3 {
        bounded(move || {
            // Room for 10 stripes, of which eight threads want 40.
            let options = StripeCacheOptions::new().write_memory(2 * STRIPE).threads(2);
            let (cache, _) = over(memory(Some(10 * STRIPE)), options);
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let cache = Arc::clone(&cache);
                    let content = create(&*cache, thread, 5 * STRIPE);
                    thread::spawn(move || {
                        let mut draw = Draw(seed * 8 + thread);
                        let mut kept = Vec::new();
                        for _ in 0..40 {
                            let start = draw.below(5 * STRIPE / PIECE) * PIECE;
                            match content.write(start, &bytes(thread, start..start + PIECE)) {
                                Ok(()) => kept.push(start),
                                Err(Error::Full { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        kept.into_iter().for_each(|start| holds(&*content, thread, start..start + PIECE));
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // Nothing of what was taken was refused later.
            cache.flush().unwrap();
            assert!(cache.statistics().used <= 10 * STRIPE);
        });
    }
}

#[test]
fn a_write_that_goes_through_makes_way_again_for_what_is_put_meanwhile() {
    bounded(|| {
        let (cache, shared) = over(memory(Some(3 * STRIPE)), StripeCacheOptions::new().threads(1));
        let torrents = [1, 2].map(|n| create(&*cache, n, 2 * STRIPE));
        put(&*torrents[1], 2, STRIPE..2 * STRIPE);
        cache.flush().unwrap();
        // It has room for the one stripe, and still asks for the other, which needs none. Neither is whole
        // then, nor written by itself.
        shared.set(Kind::RoomAt(STRIPE), How::Waits);
        let gathering = {
            let content = Arc::clone(&torrents[1]);
            aside(move || put(&*content, 2, PIECE..2 * STRIPE))
        };
        shared.wait_inside(1);
        let through = {
            let content = Arc::clone(&torrents[0]);
            aside(move || put(&*content, 1, 0..PIECE))
        };
        waits(&through);
        shared.open();
        [gathering, through].iter().for_each(ends);
        cache.flush().unwrap();
        holds(&*torrents[0], 1, 0..PIECE);
        holds(&*torrents[1], 2, PIECE..2 * STRIPE);
    });
}

/// What generation `n` of a piece holds: its number and the generation, again and again.
fn generation(piece: u64, n: u64, len: u64) -> Vec<u8> {
    (piece << 32 | n).to_le_bytes().into_iter().cycle().take(len as usize).collect()
}

#[test]
fn whoever_reads_meanwhile_sees_the_last_version_or_one_that_is_being_written() {
    for fail_one_of in [0, 23] {
        bounded(move || {
            let options = StripeCacheOptions::new().write_memory(STRIPE).read_memory(3 * STRIPE).threads(2);
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
                    let mut draw = Draw(writer);
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
                            // Of what was refused, nobody knows what it holds: until it is written again,
                            // anything before.
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
                    let mut draw = Draw(reader + 100);
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
            // What is below is the last of each.
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
