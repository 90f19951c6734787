//! One clock for all threads of a run: nanoseconds since it began.

use std::time::{Duration, Instant};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Nanoseconds since the run began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Sleeps until this time.
    pub(crate) fn sleep_until(&self, at: u64) {
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(self.now())));
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
