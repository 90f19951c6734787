//! The time of day, and how far the machine's clock is from it.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};
use swarmkeep::Timestamp;

/// Seconds since the Unix epoch: the time of day at the first call, plus the time that has passed since then,
/// also while the machine was suspended. Later changes of the machine's clock have no effect; otherwise they
/// could expire all peers, or none for a long time.
pub fn now() -> Timestamp {
    Timestamp::from_secs(counted().as_secs())
}

/// The time of the machine's clock, for dates that people give.
pub(crate) fn today() -> Timestamp {
    Timestamp::from_secs(wall().as_secs())
}

fn counted() -> Duration {
    static START: LazyLock<(Duration, Duration)> = LazyLock::new(|| (wall(), passed()));
    let (wall, start) = &*START;
    *wall + passed().saturating_sub(*start)
}

/// The time of the machine's clock.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A clock that goes on while the machine is suspended, on systems that have one.
#[cfg(target_os = "linux")]
const PASSING: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const PASSING: ClockId = ClockId::Monotonic;

fn passed() -> Duration {
    clock_gettime(PASSING).try_into().expect("it begins at zero")
}

/// Seconds since some moment, without the time in which the machine was suspended and no thread ran.
pub(crate) fn awake_secs() -> u64 {
    clock_gettime(ClockId::Monotonic).tv_sec.cast_unsigned()
}

/// By how many seconds the machine's clock is ahead of [`now`].
pub(crate) fn seconds_ahead() -> i64 {
    to_the_nearest(wall(), counted())
}

fn to_the_nearest(wall: Duration, counted: Duration) -> i64 {
    let [wall, counted] = [wall, counted].map(|time| time.as_millis() as i64);
    (wall - counted + 500).div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_goes_on_and_a_difference_is_rounded_to_the_nearest_second() {
        assert!(now() <= now());
        for (wall, counted, ahead) in
            [(10_499, 10_000, 0), (10_500, 10_000, 1), (9_501, 10_000, 0), (9_499, 10_000, -1), (0, 9000, -9)]
        {
            assert_eq!(to_the_nearest(Duration::from_millis(wall), Duration::from_millis(counted)), ahead);
        }
    }
}
