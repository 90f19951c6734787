//! The time of day.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use swarmkeep::Timestamp;

/// Whole seconds since the Unix epoch, as the machine believed when it was first asked, and as many since
/// then as have passed. A clock that is set while the tracker runs would expire all peers, or none for as
/// long as it was ahead.
pub fn now() -> Timestamp {
    static START: LazyLock<(u64, Instant)> = LazyLock::new(|| {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        (since_epoch.map_or(0, |elapsed| elapsed.as_secs()), Instant::now())
    });
    let (secs, start) = &*START;
    Timestamp::from_secs(secs + start.elapsed().as_secs())
}
