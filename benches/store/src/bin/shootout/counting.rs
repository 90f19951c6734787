//! The system's allocator, counting the bytes that live, and how often it was asked for some, when asked to.
#![expect(unsafe_code, reason = "an allocator can only be put in front of another through an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering::Relaxed},
};

/// Hands everything on to [`System`]. Counting is off until [`count`](Self::count) is called: until then an
/// allocation costs one load of a flag that nobody writes, so that what is timed is not slowed by what is
/// counted.
pub(crate) struct Counting {
    on: AtomicBool,
    live: AtomicIsize,
    calls: AtomicU64,
}

/// What all threads did with the allocator while they were watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    /// How many more bytes were allocated than freed, as asked for: what the system's allocator adds to each
    /// of them shows in the resident set.
    pub(crate) live_bytes: u64,
    /// Allocations, and changes of an allocation's size.
    pub(crate) calls: u64,
}

impl Counting {
    pub(crate) const fn new() -> Self {
        Self { on: AtomicBool::new(false), live: AtomicIsize::new(0), calls: AtomicU64::new(0) }
    }

    /// Counts while `work` is done.
    pub(crate) fn count<T>(&self, work: impl FnOnce() -> T) -> (T, Counts) {
        let (live, calls) = (self.live.load(Relaxed), self.calls.load(Relaxed));
        self.on.store(true, Relaxed);
        let result = work();
        self.on.store(false, Relaxed);
        let live_bytes = (self.live.load(Relaxed) - live).try_into().unwrap_or(0);
        (result, Counts { live_bytes, calls: self.calls.load(Relaxed) - calls })
    }

    fn add(&self, bytes: isize, calls: u64) {
        if self.on.load(Relaxed) {
            self.live.fetch_add(bytes, Relaxed);
            self.calls.fetch_add(calls, Relaxed);
        }
    }
}

/// The size of a layout never exceeds `isize::MAX`.
const fn signed(bytes: usize) -> isize {
    bytes as isize
}

// SAFETY: every call goes to `System` as it came, and its answer back; counting neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(signed(layout.size()), 1);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(signed(layout.size()), 1);
        // SAFETY: as above. Not left to the default, which would touch pages that the system has zeroed
        // already.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.add(-signed(layout.size()), 0);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(signed(size) - signed(layout.size()), 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
