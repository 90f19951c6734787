//! The time of day.

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

fn counted() -> Duration {
    static START: LazyLock<(Duration, Duration)> = LazyLock::new(|| (wall(), passed()));
    let (wall, start) = &*START;
    *wall + passed().saturating_sub(*start)
}

/// The time of the machine's clock.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The clock that goes on while the machine is suspended, on systems that have one.
#[cfg(target_os = "linux")]
const PASSING: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const PASSING: ClockId = ClockId::Monotonic;

fn passed() -> Duration {
    clock_gettime(PASSING).try_into().expect("it begins at zero")
}

/// The seconds since any moment in which the machine was not suspended: no thread runs then.
pub(crate) fn awake_secs() -> u64 {
    clock_gettime(ClockId::Monotonic).tv_sec.cast_unsigned()
}
