//! The allocator of the system, with a count of its calls.
#![expect(unsafe_code, reason = "an allocator can only be put in front of another through an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Forwards every call to [`System`]. Counting is off until [`count`](Self::count) is called. Until then an
/// allocation costs one load of a flag that no thread writes, so that the allocator does not slow down
/// measurements.
pub(crate) struct Counting {
    on: AtomicBool,
    calls: AtomicU64,
}

impl Counting {
    pub(crate) const fn new() -> Self {
        Self { on: AtomicBool::new(false), calls: AtomicU64::new(0) }
    }

    /// Does `work`; returns its result, and the number of allocations and reallocations of all threads during
    /// it.
    pub(crate) fn count<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.calls.load(Relaxed);
        self.on.store(true, Relaxed);
        let result = work();
        self.on.store(false, Relaxed);
        (result, self.calls.load(Relaxed) - before)
    }

    fn call(&self) {
        if self.on.load(Relaxed) {
            self.calls.fetch_add(1, Relaxed);
        }
    }
}

// SAFETY: every call is forwarded to `System` unchanged, and so is its result; counting neither allocates nor
// unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.call();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.call();
        // SAFETY: as above. Not left to the default, which would touch pages that the system has zeroed
        // already.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.call();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
