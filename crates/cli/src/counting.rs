//! The system's allocator, counting the bytes that live when asked to.
#![expect(unsafe_code, reason = "an allocator can only be put in front of another through an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed},
};

/// Hands everything on to [`System`]. Counting is off until [`live_bytes`](Self::live_bytes) is wanted: until then an
/// allocation costs one load of a flag that nobody writes, so that what is timed is not slowed by what is counted.
pub(crate) struct Counting {
    on: AtomicBool,
    live: AtomicIsize,
}

impl Counting {
    pub(crate) const fn new() -> Self {
        Self { on: AtomicBool::new(false), live: AtomicIsize::new(0) }
    }

    /// How many more bytes were allocated than freed while `work` was done, by all threads, as asked for: what the system's
    /// allocator adds to each of them shows in the resident set.
    pub(crate) fn live_bytes<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.live.load(Relaxed);
        self.on.store(true, Relaxed);
        let result = work();
        self.on.store(false, Relaxed);
        (result, (self.live.load(Relaxed) - before).try_into().unwrap_or(0))
    }

    fn count(&self, bytes: isize) {
        if self.on.load(Relaxed) {
            self.live.fetch_add(bytes, Relaxed);
        }
    }
}

/// The size of a layout never exceeds `isize::MAX`.
const fn signed(bytes: usize) -> isize {
    bytes as isize
}

// SAFETY: every call goes to `System` as it came, and its answer back; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(signed(layout.size()));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(signed(layout.size()));
        // SAFETY: as above. Not left to the default, which would touch pages that the system has zeroed already.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.count(-signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count(signed(size) - signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
