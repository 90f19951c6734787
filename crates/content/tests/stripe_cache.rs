//! The stripe cache in what the suite of all stores does not ask: what reaches the store below, when, and in which order.
#![allow(clippy::single_range_in_vec_init, reason = "ranges are what is asserted")]

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
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
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use zerocopy::FromBytes;

const KIB: u64 = 1 << 10;
const STRIPE: u64 = 256 * KIB;
const PIECE: u64 = 32 * KIB;

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
    /// Whether writes and reads wait.
    closed: Mutex<bool>,
    opened: Condvar,
    /// How many are waiting at the gate, or writing.
    inside: AtomicU64,
    fail_writes: AtomicBool,
    fail_marks: AtomicBool,
    /// Reads that have this byte fail.
    bad_byte: Mutex<Option<u64>>,
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
    fn close(&self) {
        *self.closed.lock() = true;
    }

    fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.inside.fetch_add(1, Relaxed);
        self.opened.wait_while(&mut self.closed.lock(), |closed| *closed);
        self.inside.fetch_sub(1, Relaxed);
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
        self.shared.pass();
        let one_of = self.shared.fail_one_of.load(Relaxed);
        let unlucky = one_of > 0 && (self.shared.calls.lock().len() as u64).is_multiple_of(one_of);
        if unlucky || self.shared.fail_writes.load(Relaxed) {
            return Err(broken());
        }
        self.inner.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        self.shared.calls.lock().push(Call::Read { range: offset..offset + len });
        self.shared.pass();
        if self.shared.bad_byte.lock().is_some_and(|bad| (offset..offset + len).contains(&bad)) {
            return Err(broken());
        }
        self.inner.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(Call::Mark(piece));
        if self.shared.fail_marks.load(Relaxed) {
            return Err(broken());
        }
        self.inner.mark_complete(piece)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.shared.calls.lock().push(Call::Unmark(piece));
        self.inner.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        self.inner.pieces()
    }

    fn place(&self, offset: u64) -> Option<u64> {
        let places = *self.shared.places.lock();
        places.map(|place| place(self.info_hash, offset)).or_else(|| self.inner.place(offset))
    }
}

impl Recorder {
    fn content(&self, info_hash: InfoHash, inner: Arc<dyn Content>) -> Arc<dyn Content> {
        Arc::new(Recorded { info_hash, inner, shared: Arc::clone(&self.shared) })
    }
}

impl ContentRepository for Recorder {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(self.content(torrent.info_hash, self.inner.create(torrent)?))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(self.content(*info_hash, self.inner.open(info_hash)?))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        self.inner.list()
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.inner.delete(info_hash)
    }

    fn flush(&self) -> Result<()> {
        self.shared.calls.lock().push(Call::Flush);
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
        // Eight chunks of 64 KiB.
        let (cache, shared) = cached(StripeCacheOptions::new().write_memory(8 * 64 * KIB));
        let content = create(&*cache, 1, 8 * STRIPE);
        put(&*content, 1, 0..64 * KIB);
        put(&*content, 1, STRIPE..STRIPE + 192 * KIB);
        put(&*content, 1, 2 * STRIPE..2 * STRIPE + 128 * KIB);
        put(&*content, 1, 3 * STRIPE..3 * STRIPE + 128 * KIB);
        assert_eq!(shared.writes(), []);
        put(&*content, 1, 4 * STRIPE..4 * STRIPE + 1);
        assert_eq!(shared.writes(), [(hash(1), STRIPE..STRIPE + 192 * KIB)]);
        // It now misses but one chunk, and goes as soon as that has come.
        put(&*content, 1, STRIPE + 192 * KIB..2 * STRIPE);
        while shared.writes().len() < 2 {
            thread::yield_now();
        }
        assert_eq!(shared.writes()[1..], [(hash(1), STRIPE + 192 * KIB..2 * STRIPE)]);
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
    shared.fail_writes.store(true, Relaxed);
    shared.open();
    settle(&cache);
    shared.fail_writes.store(false, Relaxed);
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
    assert!(matches!(&told, Error::Io { source, .. } if source.raw_os_error() == Some(5)), "{told}");
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
        shared.fail_writes.store(true, Relaxed);
        assert!(matches!(cache.flush(), Err(Error::Io { .. })));
        shared.fail_writes.store(false, Relaxed);
        assert_eq!(content.pieces().unwrap().count(), 0);
        assert_eq!(cache.inner().open(&hash(1)).unwrap().pieces().unwrap().count(), 0);
        assert_eq!(first_missing(&*content, 0..PIECE), Some(0));
        assert_eq!(first_missing(&*content, 2 * PIECE..3 * PIECE), Some(2 * PIECE));
        assert!(matches!(content.write(0, &[1]), Err(Error::Io { .. })));
        // All of it is missing, so that it is whole when all has come again, and not before.
        let before = shared.writes().len();
        put(&*content, 1, 0..PIECE);
        assert_eq!(cache.affinity(&hash(1), 1).unwrap()[0].missing, STRIPE - PIECE);
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
        thread::sleep(Duration::from_millis(50));
        assert_eq!(shared.writes(), [(hash(1), 0..STRIPE)]);
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
    shared.fail_marks.store(true, Relaxed);
    assert!(matches!(cache.flush(), Err(Error::Io { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    holds(&*content, 1, 0..PIECE);
    // With its bytes below, it is told at once.
    assert!(matches!(content.mark_complete(0), Err(Error::Io { .. })));
    assert_eq!(content.pieces().unwrap().count(), 0);
    shared.fail_marks.store(false, Relaxed);
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
        let all = cache.affinity(&hash(1), usize::MAX).unwrap();
        assert_eq!(cache.affinity(&hash(1), 2).unwrap(), all[..all.len().min(2)]);
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
    assert_eq!(
        begun(96 * k, 4 * s, &[0..96 * k, s + 32 * k..2 * s]),
        [(2, 32), (0, 160), (1, 160)][..1].iter().copied().chain([(1, 160)]).collect::<Vec<_>>()
    );
    // The last stripe is shorter.
    assert_eq!(begun(64 * k, s + 100 * k, &[s..s + 64 * k]), [(5, 36)]);
    // What is whole is not begun.
    assert_eq!(begun(64 * k, 8 * s, &[0..s]), []);
}

/// Writes four torrents of 32 stripes in random order, as a fetcher with 4 MiB of 32 would; calls that wrote, and stripes that were
/// written whole.
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
        let best = if affinity { cache.affinity(&hash(*n), 1).unwrap() } else { Vec::new() };
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
