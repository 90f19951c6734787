//! The shootout and the Criterion benches over the rows of any crate: a program calls [`shootout::main`] or
//! [`torrust::main`] with the catalog's and its own, as `examples/own.rs` does. Beside them, the common parts
//! of all benches: tables, charts, and the origin of their numbers.

pub mod charts;
pub mod origin;
pub mod shootout;
pub mod tables;
pub mod torrust;

use std::{
    fs,
    num::NonZeroUsize,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use swarmkeep::Timestamp;

/// The time of every bench; peers expire 45 minutes later.
pub const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// Returns the number of threads that can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns the anonymous memory of this process: the pages of the program itself change with the code that it
/// calls. `None` without `/proc`.
pub fn resident_bytes() -> Option<u64> {
    // The counters in `status` are late by some megabytes on machines with many cores; this is an exact
    // count.
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// Calls `body` with the number of each thread, on this thread and others that start together. Returns the
/// time from the start of the first one to the end of the last one, and the results.
pub fn at_once<T: Send>(threads: usize, body: impl Fn(usize) -> T + Sync) -> (Duration, Vec<T>) {
    let barrier = Barrier::new(threads);
    let timed = |thread| {
        barrier.wait();
        let start = Instant::now();
        let result = body(thread);
        (start, Instant::now(), result)
    };
    let timed = &timed;
    let runs: Vec<_> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || timed(n))).collect();
        let others = others.into_iter().map(|thread| thread.join().expect("a thread does not panic"));
        [timed(0)].into_iter().chain(others).collect()
    });
    let first = runs.iter().map(|(start, ..)| *start).min().expect("a thread");
    let last = runs.iter().map(|(_, end, _)| *end).max().expect("a thread");
    (last - first, runs.into_iter().map(|(.., result)| result).collect())
}
