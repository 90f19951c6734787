//! Where the spans of this process come from: decided once, by the first block or before it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

static SOURCE: AtomicU8 = AtomicU8::new(UNDECIDED);

const UNDECIDED: u8 = 0;
const ARENA: u8 = 1;
const GLOBAL: u8 = 2;

/// Decides for the arena, if nothing is decided. Called before each block: a block returns to its source.
pub(super) fn settle() {
    if SOURCE.load(Relaxed) == UNDECIDED {
        // So that all tests can be run with either: `.ci/long miri` and `sanitizers` do.
        let is_asked_for = cfg!(test) && std::env::var_os("SWARMKEEP_TEST_GLOBAL_ALLOC").is_some();
        decide(if is_asked_for { GLOBAL } else { ARENA });
    }
}

/// Whether blocks come from the global allocator. A thread that has a block knows the decision, which was
/// made before the block.
pub(super) fn is_global() -> bool {
    SOURCE.load(Relaxed) == GLOBAL
}

/// Decides for the global allocator, if nothing is decided. Returns whether that is the decision.
pub(in crate::packed) fn take_global() -> bool {
    decide(GLOBAL) == GLOBAL
}

fn decide(source: u8) -> u8 {
    SOURCE.compare_exchange(UNDECIDED, source, Relaxed, Relaxed).map_or_else(|decided| decided, |_| source)
}
