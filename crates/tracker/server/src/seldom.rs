//! Limits for logs that strangers could fill.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use swarmkeep::Timestamp;
use tracing::debug;

use crate::clock::now;

/// A limit of `most` times per second.
#[derive(Debug)]
pub(crate) struct LogLimit {
    most: u64,
    /// The second, and in the lowest bits the number of times in it.
    times: AtomicU64,
    left_out: AtomicU64,
}

impl LogLimit {
    const COUNT_BITS: u32 = 24;

    pub(crate) const fn new(most: u64) -> Self {
        Self { most, times: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether there were fewer than `most` times in this second.
    pub(crate) fn is_time(&self, now: Timestamp) -> bool {
        let this_second = now.as_secs() << Self::COUNT_BITS;
        let count = |times: u64| {
            // A thread may be a second late; an earlier time means that the clock was set.
            let is_set = times >> Self::COUNT_BITS > now.as_secs() + 1;
            let next = if is_set { this_second } else { times.max(this_second) } + 1;
            (next - this_second <= self.most).then_some(next)
        };
        let is_time = self.times.try_update(Relaxed, Relaxed, count).is_ok();
        if !is_time {
            self.left_out.fetch_add(1, Relaxed);
        }
        is_time
    }

    /// The number of times above the limit since the last call.
    fn left_out(&self) -> u64 {
        self.left_out.swap(0, Relaxed)
    }
}

/// Whether an event of a stranger may be logged now.
pub(crate) fn may_log_stranger() -> bool {
    // More than a person reads, and far from filling a disk.
    static STRANGERS: LogLimit = LogLimit::new(100);
    let may = STRANGERS.is_time(now());
    if may {
        match STRANGERS.left_out() {
            0 => {}
            left_out => debug!(left_out, "more of what strangers do was not logged"),
        }
    }
    may
}

/// Logs an event of a stranger at `debug`, which may contain addresses; no more than 100 times per second.
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
    fn times_per_second_are_limited() {
        for (most, expected) in
            [(1, [true, false, false, true, false, true]), (2, [true, true, false, true, true, true])]
        {
            let limit = LogLimit::new(most);
            let times = [7, 7, 7, 8, 8, 9].map(|secs| limit.is_time(Timestamp::from_secs(secs)));
            assert_eq!(times, expected);
            let left_out = expected.iter().filter(|&&is_time| !is_time).count() as u64;
            assert_eq!([limit.left_out(), limit.left_out()], [left_out, 0]);
        }
    }

    #[test]
    fn a_thread_with_a_late_clock_counts_in_the_later_second() {
        let limit = LogLimit::new(1);
        let times = [8, 7, 7, 9, 3, 3].map(|secs| limit.is_time(Timestamp::from_secs(secs)));
        assert_eq!(times, [true, false, false, true, true, false], "set back by 6 seconds");
    }
}
