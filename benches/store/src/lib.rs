//! The common parts of the benches: tables, charts, and the time of the stores.

pub mod charts;
pub mod tables;

use std::{num::NonZeroUsize, thread};

use swarmkeep::Timestamp;

/// The time of every bench; peers expire 45 minutes later.
pub const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// Returns the number of threads that can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
