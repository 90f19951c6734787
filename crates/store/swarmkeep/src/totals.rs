//! Peers counted by family and role, and downloads, in one swarm and over all of them.

use std::ops::{AddAssign, SubAssign};

use crate::{
    Evicted, Family, PeerCounts, Role, SwarmStats, Totals,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Totals that are updated under the locks of the swarms: exact when no call is in flight. In a cache line of
/// their own: other fields of a store are read by threads that change no total.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct AtomicTotals {
    swarms: AtomicU64,
    /// [`Population::numbers`] over all swarms.
    numbers: [AtomicU64; 5],
    evicted_swarms: AtomicU64,
    evicted_peers: AtomicU64,
}

impl AtomicTotals {
    /// Counts a peer that is inserted, removed, or changes its role.
    pub(crate) fn turn(&self, family: Family, before: Option<Role>, after: Option<Role>) {
        // A refresh, which is by far the most frequent announce, writes nothing that threads share.
        if before == after {
            return;
        }
        let of =
            |role| &self.numbers[2 * usize::from(family == Family::V6) + usize::from(role == Role::Leecher)];
        if let Some(role) = after {
            of(role).fetch_add(1, Relaxed);
        }
        if let Some(role) = before {
            of(role).fetch_sub(1, Relaxed);
        }
    }

    /// Counts a swarm unless there are `most` swarms already; returns whether it was counted.
    pub(crate) fn add_swarm(&self, most: u64) -> bool {
        if most == u64::MAX {
            self.swarms.fetch_add(1, Relaxed);
            return true;
        }
        self.swarms.fetch_update(Relaxed, Relaxed, |swarms| (swarms < most).then_some(swarms + 1)).is_ok()
    }

    /// Adds swarms, peers and downloads.
    pub(crate) fn add(&self, swarms: u64, population: Population) {
        if swarms > 0 {
            self.swarms.fetch_add(swarms, Relaxed);
        }
        for (total, come) in self.numbers.iter().zip(population.numbers()).filter(|(_, come)| *come > 0) {
            total.fetch_add(come, Relaxed);
        }
    }

    /// Subtracts swarms, peers and downloads.
    pub(crate) fn remove(&self, swarms: u64, population: Population) {
        self.swarms.fetch_sub(swarms, Relaxed);
        self.remove_population(population);
    }

    /// Subtracts peers and downloads.
    pub(crate) fn remove_population(&self, population: Population) {
        for (total, gone) in self.numbers.iter().zip(population.numbers()).filter(|(_, gone)| *gone > 0) {
            total.fetch_sub(gone, Relaxed);
        }
    }

    pub(crate) fn evict(&self, evicted: Evicted) {
        if evicted != Evicted::default() {
            self.evicted_swarms.fetch_add(evicted.swarms, Relaxed);
            self.evicted_peers.fetch_add(evicted.peers, Relaxed);
        }
    }

    pub(crate) fn swarms(&self) -> u64 {
        self.swarms.load(Relaxed)
    }

    pub(crate) fn load(&self) -> Totals {
        let [v4_seeders, v4_leechers, v6_seeders, v6_leechers, downloaded] =
            self.numbers.each_ref().map(|total| total.load(Relaxed));
        Totals {
            swarms: self.swarms.load(Relaxed),
            v4: PeerCounts { seeders: v4_seeders, leechers: v4_leechers },
            v6: PeerCounts { seeders: v6_seeders, leechers: v6_leechers },
            downloaded,
            evicted: Evicted {
                swarms: self.evicted_swarms.load(Relaxed),
                peers: self.evicted_peers.load(Relaxed),
            },
        }
    }
}

/// The peers of a swarm, or of a part of it, by family and role, and finished downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Population {
    /// The IPv4 peers.
    pub v4: PeerCounts,
    /// The IPv6 peers.
    pub v6: PeerCounts,
    /// The number of finished downloads; 0 for a part of a swarm.
    pub downloaded: u64,
}

impl Population {
    const fn numbers(&self) -> [u64; 5] {
        let Self { v4, v6, downloaded } = self;
        [v4.seeders, v4.leechers, v6.seeders, v6.leechers, *downloaded]
    }

    /// Returns a number of downloads without peers.
    pub(crate) fn downloads(downloaded: u32) -> Self {
        Self { downloaded: downloaded.into(), ..Self::default() }
    }

    /// Returns the population of one peer.
    pub fn one(family: Family, role: Role) -> Self {
        let mut population = Self::default();
        let counts = match family {
            Family::V4 => &mut population.v4,
            Family::V6 => &mut population.v6,
        };
        match role {
            Role::Seeder => counts.seeders = 1,
            Role::Leecher => counts.leechers = 1,
        }
        population
    }

    /// Returns the number of peers of both families and roles.
    pub const fn peers(&self) -> u64 {
        self.v4.peers() + self.v6.peers()
    }

    pub(crate) fn stats(&self, downloaded: u32) -> SwarmStats {
        let saturate = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        SwarmStats {
            complete: saturate(self.v4.seeders + self.v6.seeders),
            incomplete: saturate(self.v4.leechers + self.v6.leechers),
            downloaded,
        }
    }
}

impl AddAssign for Population {
    fn add_assign(&mut self, other: Self) {
        for (counts, more) in [(&mut self.v4, other.v4), (&mut self.v6, other.v6)] {
            counts.seeders += more.seeders;
            counts.leechers += more.leechers;
        }
        self.downloaded += other.downloaded;
    }
}

/// Adds peers and downloads.
impl AddAssign<Population> for Totals {
    fn add_assign(&mut self, Population { v4, v6, downloaded }: Population) {
        self.downloaded += downloaded;
        for (counts, come) in [(&mut self.v4, v4), (&mut self.v6, v6)] {
            counts.seeders += come.seeders;
            counts.leechers += come.leechers;
        }
    }
}

/// Subtracts peers and downloads.
impl SubAssign<Population> for Totals {
    fn sub_assign(&mut self, Population { v4, v6, downloaded }: Population) {
        self.downloaded -= downloaded;
        for (counts, gone) in [(&mut self.v4, v4), (&mut self.v6, v6)] {
            counts.seeders -= gone.seeders;
            counts.leechers -= gone.leechers;
        }
    }
}
