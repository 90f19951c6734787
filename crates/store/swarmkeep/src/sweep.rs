//! Removal in bounded steps: the arguments and results of a step.

use std::ops::AddAssign;

use crate::{Cursor, SwarmSummary, totals::Population};

/// The limit of one step, in peers visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(usize);

impl Budget {
    /// Returns a budget of about `peers` visits, at least one. A swarm counts as one visit more, so that
    /// swarms without peers count too.
    pub const fn peers(peers: usize) -> Self {
        Self(if peers == 0 { 1 } else { peers })
    }

    /// Returns the number of visits.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// The policy of a sweep for swarms without peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// The next sweep that visits the swarm removes it.
    #[default]
    DropEmpty,
    /// The swarm stays if it has a download count; otherwise the sweep removes it.
    KeepDownloaded,
}

/// The result of one step of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Swept {
    /// The number of peers visited; each swarm counts as one more.
    pub visited: u64,
    /// The number of peers removed because they were older than the lifetime.
    pub expired: u64,
    /// The number of swarms removed because they had no peers.
    pub swarms_removed: u64,
    /// Whether this step completed a pass over all swarms.
    pub pass_complete: bool,
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.visited += other.visited;
        self.expired += other.expired;
        self.swarms_removed += other.swarms_removed;
        self.pass_complete |= other.pass_complete;
    }
}

/// The result of one step of [`remove_where`](crate::TorrentRepository::remove_where).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The removed swarms, with their last counts.
    pub removed: Vec<SwarmSummary>,
    /// The cursor of the next step.
    pub next: Cursor,
}

impl Removed {
    /// Returns the result of a step that removed `removed`; the next step continues at `next`.
    pub const fn new(removed: Vec<SwarmSummary>, next: Cursor) -> Self {
        Self { removed, next }
    }
}

/// The result of one step of expiry in one swarm.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Expired {
    /// The number of peers visited.
    pub visited: usize,
    /// The numbers of removed peers.
    pub gone: Population,
    /// The cursor of the next step.
    pub next: Cursor,
}
