//! Time as the caller provides it: whole seconds since the Unix epoch.

use std::time::{SystemTime, SystemTimeError, UNIX_EPOCH};

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whole seconds since the Unix epoch, provided by the caller. No store reads a clock.
///
/// ```
/// use std::time::SystemTime;
/// use swarmkeep::Timestamp;
///
/// let now = Timestamp::try_from(SystemTime::now())?;
/// assert!(now > Timestamp::from_secs(1_700_000_000));
/// # Ok::<(), std::time::SystemTimeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the time `seconds` after the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Returns the number of seconds since the Unix epoch.
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// Returns the number of seconds from `earlier` to this time; 0 if `earlier` is the later one.
    pub const fn secs_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time `seconds` before this time, at least the epoch.
    pub const fn saturating_sub(self, seconds: u64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }

    /// Returns the time `seconds` after this time, at most the largest number of seconds.
    pub const fn saturating_add(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

/// Fails for a time before the epoch.
impl TryFrom<SystemTime> for Timestamp {
    type Error = SystemTimeError;

    fn try_from(time: SystemTime) -> Result<Self, Self::Error> {
        time.duration_since(UNIX_EPOCH).map(|since| Self(since.as_secs()))
    }
}

/// The latest time that a store was given. An earlier time counts as the latest one, so that a clock that is
/// set back never makes a peer older than the peers around it.
#[derive(Debug, Default)]
pub(crate) struct LatestTime(AtomicU64);

impl LatestTime {
    /// Raises the latest time to `now` if `now` is later, and returns the latest time.
    pub(crate) fn advance(&self, now: Timestamp) -> Timestamp {
        let seen = self.0.load(Relaxed);
        // The time changes once per second, at up to half a million announces: nearly every call only reads.
        if now.0 > seen { Timestamp(self.0.fetch_max(now.0, Relaxed).max(now.0)) } else { Timestamp(seen) }
    }
}
