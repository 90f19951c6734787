//! The allocator of the system, with counts: `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
#![expect(unsafe_code, reason = "an allocator can only be put in front of another through an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Forwards every call to [`System`]. It counts only while a function of this module asks for it. Otherwise a
/// call costs two loads of numbers that no thread writes, so that the allocator does not slow down
/// measurements.
#[derive(Debug)]
pub struct Counting;

/// Allocations of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Allocations and reallocations.
    pub calls: u64,
    /// The bytes that they returned.
    pub bytes: u64,
    /// The bytes that were allocated, less the freed ones.
    pub live: isize,
    /// The largest value of `live`. A reallocation counts as a copy.
    pub most: isize,
}

static BY_THREAD: AtomicUsize = AtomicUsize::new(0);
static BY_ALL: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static OF_THREAD: Cell<Counts> = const { Cell::new(Counts { calls: 0, bytes: 0, live: 0, most: 0 }) };
}

/// Does `work`; returns its result, and the allocations of this thread during it.
pub fn of_thread<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    BY_THREAD.fetch_add(1, Relaxed);
    OF_THREAD.take();
    let result = work();
    let counts = OF_THREAD.get();
    BY_THREAD.fetch_sub(1, Relaxed);
    (result, counts)
}

/// Does `work`; returns its result, and the number of allocations and reallocations of all threads during it.
pub fn calls_of_all<T>(work: impl FnOnce() -> T) -> (T, u64) {
    BY_ALL.fetch_add(1, Relaxed);
    let before = CALLS.load(Relaxed);
    let result = work();
    let calls = CALLS.load(Relaxed) - before;
    BY_ALL.fetch_sub(1, Relaxed);
    (result, calls)
}

/// Bytes that all threads have allocated and not freed, less those of the first call: only differences have a
/// meaning. From the first call on, the allocator counts.
pub fn live() -> isize {
    BY_ALL.fetch_add(1, Relaxed);
    LIVE.load(Relaxed)
}

fn count(taken: usize, freed: usize) {
    let (calls, change) = (u64::from(taken > 0), taken as isize - freed as isize);
    if BY_THREAD.load(Relaxed) > 0 {
        // A thread that is ending has no counts any more.
        let _ = OF_THREAD.try_with(|cell| {
            let mut counts = cell.get();
            counts.calls += calls;
            counts.bytes += taken as u64;
            counts.most = counts.most.max(counts.live + taken as isize);
            counts.live += change;
            cell.set(counts);
        });
    }
    if BY_ALL.load(Relaxed) > 0 {
        CALLS.fetch_add(calls, Relaxed);
        LIVE.fetch_add(change, Relaxed);
    }
}

// SAFETY: every call is forwarded to `System` unchanged, and so is its result; counting neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above. Not left to the default, which would touch pages that the system has zeroed
        // already.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
