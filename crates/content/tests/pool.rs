//! The pool that calls a store for asynchronous programs: with a store that is slow on purpose, and one that can be held up.

use std::{
    future::Future,
    io::{IoSlice, IoSliceMut},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use swarmkeep_content::{
    Capabilities, Content, ContentConfig, ContentRepository, Error, Geometry, InfoHash, Memory, NewTorrent,
    PieceBits, Result, Statistics, Summary,
    pool::{LEAST, Pool, PoolOptions},
    stripe_cache::{StripeCache, StripeCacheOptions},
};

const PIECE: u32 = 16 << 10;

fn hash(n: u8) -> InfoHash {
    InfoHash::new([n; 20])
}

fn torrent(n: u8) -> NewTorrent {
    NewTorrent::new(hash(n), 64 * u64::from(PIECE), PIECE).unwrap()
}

/// A store each of whose calls takes a while, or waits at a gate.
#[derive(Debug)]
struct Slow {
    inner: Memory,
    how: Arc<How>,
}

#[derive(Debug, Default)]
struct How {
    takes: Duration,
    closed: Mutex<bool>,
    /// Whether reads and what is asked of the store pass all the same.
    reads_pass: AtomicBool,
    opened: Condvar,
    /// Calls that were begun.
    begun: AtomicUsize,
    panics: AtomicBool,
}

#[derive(Debug)]
struct SlowContent {
    inner: Arc<dyn Content>,
    how: Arc<How>,
}

impl How {
    fn pass(&self) {
        self.begun.fetch_add(1, Relaxed);
        thread::sleep(self.takes);
        self.opened.wait_while(&mut self.closed.lock(), |closed| *closed);
        assert!(!self.panics.load(Relaxed), "as it was told");
    }

    fn pass_reading(&self) {
        if !self.reads_pass.load(Relaxed) {
            self.pass();
        }
    }

    fn close(&self) {
        *self.closed.lock() = true;
    }

    fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    fn wait_begun(&self, count: usize) {
        while self.begun.load(Relaxed) < count {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ContentRepository for Slow {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        self.how.pass();
        let inner = self.inner.create(torrent)?;
        Ok(Arc::new(SlowContent { inner, how: Arc::clone(&self.how) }))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        self.how.pass_reading();
        let inner = self.inner.open(info_hash)?;
        Ok(Arc::new(SlowContent { inner, how: Arc::clone(&self.how) }))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        self.how.pass_reading();
        self.inner.list()
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        self.how.pass();
        self.inner.delete(info_hash)
    }

    fn flush(&self) -> Result<()> {
        self.how.pass();
        self.inner.flush()
    }

    fn statistics(&self) -> Statistics {
        self.how.pass_reading();
        self.inner.statistics()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl Content for SlowContent {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        self.how.pass();
        self.inner.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.how.pass_reading();
        self.inner.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.how.pass();
        self.inner.mark_complete(piece)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.how.pass();
        self.inner.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        self.how.pass_reading();
        self.inner.pieces()
    }
}

fn pool(takes: Duration, options: PoolOptions) -> (Pool, Arc<How>) {
    let how = Arc::new(How { takes, ..How::default() });
    let slow = Slow { inner: Memory::new(&ContentConfig::new("")), how: Arc::clone(&how) };
    (Pool::new(Arc::new(slow), options).unwrap(), how)
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_store_never_stalls_the_runtime() {
    let (pool, _) = pool(Duration::from_millis(200), PoolOptions::new().threads(4));
    let late = Arc::new(Mutex::new(Vec::new()));
    let ticker = {
        let late = Arc::clone(&late);
        tokio::spawn(async move {
            loop {
                let due = Instant::now() + Duration::from_millis(5);
                tokio::time::sleep_until(due.into()).await;
                late.lock().push(due.elapsed());
            }
        })
    };
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let content = pool.create(torrent(n)).await.unwrap();
                let buffer = vec![n; PIECE as usize];
                let address = buffer.as_ptr().addr();
                let (written, buffer) = content.write(0, buffer).await;
                written.unwrap();
                assert_eq!(buffer.as_ptr().addr(), address, "the same buffer comes back");
                assert!(content.mark_complete(0).await.unwrap());
                let content = pool.open(hash(n)).await.unwrap();
                let (read, buffer) = content.read(0, vec![0; PIECE as usize]).await;
                read.unwrap();
                assert_eq!(buffer, vec![n; PIECE as usize]);
                assert_eq!(content.pieces().await.unwrap().count(), 1);
                assert!(content.mark_incomplete(0).await.unwrap());
                let (read, _) = content.read(0, [0; 1]).await;
                assert!(matches!(read, Err(Error::NotWritten { at: 0 })));
                pool.flush().await.unwrap();
                assert!(pool.delete(hash(n)).await.unwrap());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pool.list().await.unwrap(), []);
    assert_eq!(pool.statistics().await.torrents, 0);
    ticker.abort();
    let mut late = std::mem::take(&mut *late.lock());
    late.sort_unstable();
    let (usual, most) = (late[late.len() * 95 / 100], late[late.len() - 1]);
    println!("of {} ticks, 95 in 100 were late by {usual:?} at most, and all by {most:?}", late.len());
    // With a call in the way each would be late by 200 ms; the rest is for machines that do something else as well.
    assert!(usual < Duration::from_millis(100), "{usual:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn calls_wait_until_there_is_room() {
    let options = PoolOptions::new().threads(2).most_queued(2 * PIECE);
    let (pool, how) = pool(Duration::ZERO, options);
    let content = pool.create(torrent(1)).await.unwrap();
    how.close();
    let write = |piece: u32| content.write(u64::from(piece * PIECE), vec![1; PIECE as usize]);
    let (mut first, mut second, mut third) = (pin!(write(0)), pin!(write(1)), pin!(write(2)));
    for write in [first.as_mut(), second.as_mut(), third.as_mut()] {
        assert!(poll(write).is_pending());
    }
    how.wait_begun(3);
    assert_eq!(pool.queued(), u64::from(2 * PIECE));
    // Not even a call without a buffer is let in.
    let mut mark = pin!(content.mark_complete(0));
    assert!(poll(mark.as_mut()).is_pending());
    assert_eq!(pool.queued(), u64::from(2 * PIECE));
    how.open();
    for write in [first, second, third] {
        write.await.0.unwrap();
    }
    assert!(mark.await.unwrap());
    assert_eq!(how.begun.load(Relaxed), 5);
    assert_eq!(pool.queued(), 0);
    // What is larger than all there may be is let in alone.
    content.write(3 * u64::from(PIECE), vec![1; 3 * PIECE as usize]).await.0.unwrap();
    const { assert!(LEAST < PIECE) };
}

#[tokio::test(flavor = "current_thread")]
async fn a_dropped_future_leaves_the_whole_call_done_or_nothing() {
    let options = PoolOptions::new().threads(1).most_queued(2 * PIECE);
    let (pool, how) = pool(Duration::ZERO, options);
    let content = pool.create(torrent(1)).await.unwrap();
    how.close();
    {
        let write = |piece: u32| content.write(u64::from(piece * PIECE), vec![7; PIECE as usize]);
        // Under way, in the queue, not let in, and never polled.
        let (mut first, mut second, mut third, _fourth) =
            (pin!(write(0)), pin!(write(1)), pin!(write(2)), write(3));
        assert!(poll(first.as_mut()).is_pending());
        how.wait_begun(2);
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
    }
    how.open();
    // The call that was under way is done; the others were never begun. What reads has a lane of its own, and would not wait for it.
    pool.flush().await.unwrap();
    let (read, first) = content.read(0, vec![0; PIECE as usize]).await;
    read.unwrap();
    assert_eq!(first, vec![7; PIECE as usize]);
    let (read, _) = content.read(0, vec![0; 4 * PIECE as usize]).await;
    assert!(matches!(read, Err(Error::NotWritten { at }) if at == u64::from(PIECE)), "{read:?}");
    assert_eq!(how.begun.load(Relaxed), 5);
    assert_eq!(pool.queued(), 0, "what was dropped takes no room");
}

#[tokio::test(flavor = "current_thread")]
async fn a_panic_of_the_store_is_the_callers_and_the_pool_goes_on() {
    let (pool, how) = pool(Duration::ZERO, PoolOptions::new().threads(1));
    how.panics.store(true, Relaxed);
    let panicking = pool.clone();
    let error = tokio::spawn(async move { panicking.flush().await }).await.unwrap_err();
    assert!(error.is_panic());
    how.panics.store(false, Relaxed);
    pool.flush().await.unwrap();
    assert_eq!(pool.queued(), 0);
}

#[test]
fn its_threads_end_with_the_last_handle() {
    let (pool, how) = pool(Duration::ZERO, PoolOptions::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let content = runtime.block_on(pool.create(torrent(1))).unwrap();
    drop(pool);
    runtime.block_on(content.write(0, [1])).0.unwrap();
    drop(content);
    let began = Instant::now();
    // The store went with them.
    while Arc::strong_count(&how) > 1 {
        assert!(began.elapsed() < Duration::from_secs(10), "the store is still held");
        thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_reads_never_waits_behind_what_writes() {
    for threads in [1, 2] {
        let options = PoolOptions::new().threads(threads).most_queued(2 * PIECE);
        let (pool, how) = pool(Duration::ZERO, options);
        let content = pool.create(torrent(1)).await.unwrap();
        content.write(0, vec![7; PIECE as usize]).await.0.unwrap();
        assert!(content.mark_complete(0).await.unwrap());
        how.reads_pass.store(true, Relaxed);
        how.close();
        let writes = (1..8).map(|piece| {
            let content = content.clone();
            tokio::spawn(
                async move { content.write(piece * u64::from(PIECE), vec![1; PIECE as usize]).await.0 },
            )
        });
        let writes: Vec<_> = writes.collect();
        tokio::task::yield_now().await;
        how.wait_begun(3 + threads);
        let reading = async {
            for _ in 0..20 {
                let (read, buffer) = content.read(0, vec![0; PIECE as usize]).await;
                read.unwrap();
                assert_eq!(buffer[0], 7);
                assert_eq!(content.pieces().await.unwrap().count(), 1);
                assert_eq!(pool.statistics().await.torrents, 1);
                assert_eq!(pool.list().await.unwrap().len(), 1);
                drop(pool.open(hash(1)).await.unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect("it waits behind writes");
        assert_eq!(pool.queued(), u64::from(2 * PIECE));
        how.open();
        for write in writes {
            write.await.unwrap().unwrap();
        }
        assert_eq!(pool.queued(), 0);
    }
}

#[test]
fn whoever_drops_the_last_handle_waits_for_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for content_last in [false, true] {
        let how = Arc::new(How::default());
        let slow = Slow { inner: Memory::new(&ContentConfig::new("")), how: Arc::clone(&how) };
        let options = StripeCacheOptions::new().stripe(16 << 10);
        let cache = StripeCache::new(Arc::new(slow), options).unwrap();
        let pool = Pool::new(Arc::new(cache), PoolOptions::new()).unwrap();
        let (content, other) = runtime.block_on(async {
            let content = pool.create(torrent(1)).await.unwrap();
            (content, pool.open(hash(1)).await.unwrap())
        });
        let begun = how.begun.load(Relaxed);
        how.close();
        runtime.block_on(content.write(0, vec![1; PIECE as usize])).0.unwrap();
        how.wait_begun(begun + 1);
        // The cache ends when that write has: nobody waits for it here.
        let opening = {
            let how = Arc::clone(&how);
            thread::spawn(move || {
                thread::sleep(Duration::from_secs(2));
                how.open();
            })
        };
        let began = Instant::now();
        if content_last {
            drop((other, pool, content));
        } else {
            drop((content, other, pool));
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        opening.join().unwrap();
        while Arc::strong_count(&how) > 1 {
            assert!(began.elapsed() < Duration::from_secs(10), "the store is still held");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_pool_may_be_given_any_bound() {
    let how = Arc::new(How::default());
    let slow = Slow { inner: Memory::new(&ContentConfig::new("")), how };
    let pool = Pool::new(Arc::new(slow), PoolOptions::new().most_queued(u32::MAX)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(pool.create(torrent(1))).unwrap();
}
