//! Time as the caller gives it: whole seconds since the Unix epoch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whole seconds since the Unix epoch, handed in by the caller; no store reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Timestamp(u64);

impl Timestamp {
    /// `seconds` after the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Seconds after the Unix epoch.
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// Seconds from `earlier` to here; 0 if `earlier` is the later one.
    pub const fn secs_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `seconds` before; stops at the epoch.
    pub const fn saturating_sub(self, seconds: u64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }

    /// The time `seconds` after.
    pub const fn saturating_add(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

/// The latest time that a store was given. A time earlier than one already seen counts as the latest seen, so
/// that a clock set back never makes a peer older than its neighbours.
#[derive(Debug, Default)]
pub(crate) struct LatestTime(AtomicU64);

impl LatestTime {
    /// Takes `now` in and answers the time that counts.
    pub(crate) fn advance(&self, now: Timestamp) -> Timestamp {
        let seen = self.0.load(Relaxed);
        // Time moves once a second, announces half a million times: nearly every call only reads.
        if now.0 > seen { Timestamp(self.0.fetch_max(now.0, Relaxed).max(now.0)) } else { Timestamp(seen) }
    }
}
