//! Rates of bytes: measured, and limited.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Counts bytes, and measures their rate, smoothed over some seconds.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    total: AtomicU64,
    counted: AtomicU64,
    rate: AtomicU64,
}

impl Meter {
    pub(crate) fn add(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Bytes per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// Counts the bytes since the last call into the rate, with a quarter of the weight: bytes of four
    /// seconds ago have a third of the weight of new ones.
    pub(crate) fn tick(&self, since: Duration) {
        let total = self.total();
        let bytes = total - self.counted.swap(total, Relaxed);
        let now = bytes as f64 / since.as_secs_f64().max(0.001);
        let before = self.rate() as f64;
        // A meter that has just begun is not slow because of the time before.
        let rate = if before == 0.0 { now } else { 0.75 * before + 0.25 * now };
        self.rate.store(rate as u64, Relaxed);
    }
}

/// Lets `rate` bytes per second pass, those of a quarter of a second at once.
#[derive(Debug)]
pub(crate) struct Limiter {
    rate: Option<u64>,
    /// The time by which the limit allows all bytes that have passed.
    paid: Mutex<Instant>,
}

impl Limiter {
    const AT_ONCE: Duration = Duration::from_millis(250);

    /// `None` is no limit.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate, paid: Mutex::new(Instant::now()) }
    }

    /// How long to wait before more may pass.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.rate?;
        self.paid.lock().checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// Bytes that pass in [`AT_ONCE`](Self::AT_ONCE).
    pub(crate) fn at_once(&self) -> Option<u64> {
        self.rate.map(|rate| rate / 4)
    }

    /// Lets bytes pass, and says how long to wait before the next.
    pub(crate) fn pass(&self, bytes: u64, now: Instant) -> Option<Duration> {
        let rate = self.rate?;
        let mut paid = self.paid.lock();
        let least = now.checked_sub(Self::AT_ONCE).unwrap_or(now);
        *paid = (*paid).max(least) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        paid.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limiter_passes_its_rate_and_no_more() {
        let limiter = Limiter::new(Some(1_000_000));
        let begin = Instant::now();
        let mut now = begin;
        let mut passed = 0_u64;
        while now < begin + Duration::from_secs(10) {
            passed += 16_384;
            now += limiter.pass(16_384, now).unwrap_or_default();
        }
        assert!((9_990_000..=10_300_000).contains(&passed), "{passed} bytes in 10 seconds");
    }

    #[test]
    fn a_meter_measures_a_steady_stream() {
        let meter = Meter::default();
        for _ in 0..3 {
            meter.add(500);
            meter.tick(Duration::from_millis(500));
        }
        assert_eq!((meter.total(), meter.rate()), (1500, 1000));
        (0..40).for_each(|_| meter.tick(Duration::from_secs(1)));
        assert!(meter.rate() < 2, "{}", meter.rate());
    }
}
