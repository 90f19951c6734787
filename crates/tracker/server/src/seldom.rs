//! Logs that strangers could fill.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use swarmkeep::Timestamp;
use tracing::debug;

use crate::clock::now;

/// So many times per second.
#[derive(Debug)]
pub(crate) struct Seldom {
    most: u64,
    /// The second, and how many times there were in it in the lowest bits.
    times: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    const COUNT_BITS: u32 = 24;

    pub(crate) const fn new(most: u64) -> Self {
        Self { most, times: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether it has not been so often in this second.
    pub(crate) fn is_time(&self, now: Timestamp) -> bool {
        let this_second = now.as_secs() << Self::COUNT_BITS;
        let count = |times: u64| {
            let next = times.max(this_second) + 1;
            (next - this_second <= self.most).then_some(next)
        };
        let is_time = self.times.try_update(Relaxed, Relaxed, count).is_ok();
        if !is_time {
            self.left_out.fetch_add(1, Relaxed);
        }
        is_time
    }

    /// How many times it was not the time since this was last asked.
    fn left_out(&self) -> u64 {
        self.left_out.swap(0, Relaxed)
    }
}

/// Whether what a stranger has done may be logged now.
pub(crate) fn may_log_stranger() -> bool {
    // More than anybody reads, and far from filling a disk.
    static STRANGERS: Seldom = Seldom::new(100);
    let may = STRANGERS.is_time(now());
    if may {
        match STRANGERS.left_out() {
            0 => {}
            left_out => debug!(left_out, "more of what strangers do was not logged"),
        }
    }
    may
}

/// Logs what a stranger has done, at `debug`, where addresses may stand; no more than 100 times per second.
macro_rules! log_stranger {
    ($($event:tt)*) => {
        if tracing::enabled!(tracing::Level::DEBUG) && $crate::seldom::may_log_stranger() {
            tracing::debug!($($event)*);
        }
    };
}
pub(crate) use log_stranger;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seldom_is_so_many_times_a_second() {
        for (most, expected) in
            [(1, [true, false, false, true, false, true]), (2, [true, true, false, true, true, true])]
        {
            let seldom = Seldom::new(most);
            let times = [7, 7, 7, 8, 8, 9].map(|secs| seldom.is_time(Timestamp::from_secs(secs)));
            assert_eq!(times, expected);
            let left_out = expected.iter().filter(|&&is_time| !is_time).count() as u64;
            assert_eq!([seldom.left_out(), seldom.left_out()], [left_out, 0]);
        }
    }

    #[test]
    fn a_thread_whose_clock_is_behind_counts_in_the_later_second() {
        let seldom = Seldom::new(1);
        let times = [8, 7, 7, 9].map(|secs| seldom.is_time(Timestamp::from_secs(secs)));
        assert_eq!(times, [true, false, false, true]);
    }
}
