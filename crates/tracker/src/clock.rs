//! The time of day.

use std::time::SystemTime;

use swarmkeep::Timestamp;

/// Whole seconds since the Unix epoch; 0 where the machine believes to be before it.
pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_secs(since_epoch.map_or(0, |elapsed| elapsed.as_secs()))
}
