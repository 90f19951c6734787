//! The time of day, and how far the machine's clock is from it.

use std::{
    convert::Infallible,
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};
use swarmkeep::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::{Metrics, udp::ConnectionIds};

/// Seconds since the Unix epoch: the time of day at the first call, plus the time that has passed since then,
/// also while the machine was suspended. Later changes of the machine's clock have no effect; otherwise they
/// could expire all peers, or none for a long time.
pub fn now() -> Timestamp {
    Timestamp::from_secs(counted().as_secs())
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

/// How often the clocks are compared.
const EVERY: Duration = Duration::from_secs(1);

/// For ever: lets connection ids follow the machine's clock, and logs when it was set.
pub(crate) async fn follow(ids: &ConnectionIds, metrics: &Metrics) -> Infallible {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let ahead = seconds_ahead(wall(), counted());
        metrics.clock_is_ahead(ahead);
        if ids.follow(ahead, now()) {
            warn!(
                seconds_ahead = ahead,
                "the machine's clock was set: connection ids follow it, and the ages of peers do not"
            );
        }
    }
}

/// By how many seconds the machine's clock is ahead, to the nearest.
fn seconds_ahead(wall: Duration, counted: Duration) -> i64 {
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
            assert_eq!(seconds_ahead(Duration::from_millis(wall), Duration::from_millis(counted)), ahead);
        }
    }
}
