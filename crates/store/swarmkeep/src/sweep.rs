//! Forgetting in bounded steps: what a step is given, and what it reports.

use std::ops::AddAssign;

use crate::{Cursor, SwarmSummary, totals::Population};

/// How much one step may do, counted in peers visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(usize);

impl Budget {
    /// About `peers` visits, at least one. A swarm counts as one more, so that empty ones are not free.
    pub const fn peers(peers: usize) -> Self {
        Self(if peers == 0 { 1 } else { peers })
    }

    /// The number of visits.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// What becomes of a swarm without peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// It goes with the next sweep that passes it.
    #[default]
    DropEmpty,
    /// It stays for its download count; a swarm without downloads goes.
    KeepDownloaded,
}

/// What one step of a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Swept {
    /// Peers looked at, one more for each swarm.
    pub visited: u64,
    /// Peers removed because they had outlived their lifetime.
    pub expired: u64,
    /// Swarms removed because they had no peers left.
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

/// What one step of a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The swarms that went, with the counts they had.
    pub removed: Vec<SwarmSummary>,
    /// Where to go on.
    pub next: Cursor,
}

impl Removed {
    /// A step that removed `removed` and goes on at `next`.
    pub const fn new(removed: Vec<SwarmSummary>, next: Cursor) -> Self {
        Self { removed, next }
    }
}

/// What one step of expiry did to a swarm.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Expired {
    /// The number of peers visited.
    pub visited: usize,
    /// The peers removed.
    pub gone: Population,
    /// Where the next step continues.
    pub next: Cursor,
}
