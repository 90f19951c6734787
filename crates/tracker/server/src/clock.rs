//! The time of day.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use swarmkeep::Timestamp;

/// Seconds since the Unix epoch: the time of day at the first call, plus the time that has passed since then.
/// Later changes of the machine's clock have no effect; otherwise they could expire all peers, or none for a
/// long time.
pub fn now() -> Timestamp {
    static START: LazyLock<(u64, Instant)> = LazyLock::new(|| {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        (since_epoch.map_or(0, |elapsed| elapsed.as_secs()), Instant::now())
    });
    let (secs, start) = &*START;
    Timestamp::from_secs(secs + start.elapsed().as_secs())
}
