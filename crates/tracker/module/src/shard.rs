//! A shard: the value of a key.

use std::{mem, slice, time::Duration};

use swarmkeep::{
    Announced, Budget, HashKey, Packed, PeerBuffer, Records, RepositoryConfig, Restored, Retention,
    SplitMix64, SwarmSummary, Swept, Timestamp, TorrentRepository as _,
};

use crate::request::{AnnounceCall, IDENTITY, SALT, Terms};

/// The most seconds between a caller's time and the server's clock, where that bounds it.
const APART: u32 = 60;

/// The most peers that one call of a sweep visits.
const HOLD: usize = 1024;

/// Some swarms of a store.
pub(crate) struct Shard {
    pub(crate) store: Packed,
    /// The layout under which it was created.
    pub(crate) identity: [u8; IDENTITY],
    pub(crate) terms: Terms,
    /// The latest time that it was given.
    pub(crate) newest: u32,
    /// Peers that were evicted before `store` was built.
    pub(crate) evicted_before: u64,
    /// Whether the present pass of sweeps has changed something.
    has_swept: bool,
}

/// The time that counts, and whether it lies before the time that the shard had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardTime {
    To(u32),
    BackTo(u32),
}

impl Shard {
    /// `None` if a store cannot have these terms.
    pub(crate) fn new(identity: [u8; IDENTITY], terms: Terms) -> Option<Self> {
        let salt = identity.first_chunk::<SALT>()?;
        let config = RepositoryConfig::new(HashKey::from_bytes(*salt))
            .lifetime(Duration::from_secs(terms.lifetime.into()))
            .shards(1);
        let config = match terms.limit {
            0 => config,
            limit => config.max_endpoints_per_address(limit.into()),
        };
        let store = Packed::new(&config).ok()?;
        Some(Self { store, identity, terms, newest: 0, evicted_before: 0, has_swept: false })
    }

    /// The time that counts: the latest given one. `clock` is the server's clock, if it bounds `now`.
    pub(crate) fn advance(&self, now: u32, clock: Option<impl FnOnce() -> u32>) -> ShardTime {
        let newest = self.newest;
        // The clock is read only if the time moves, or one of the two clocks is wrong.
        if let Some(clock) = clock
            && (now > newest || now < newest.saturating_sub(APART))
        {
            let clock = clock();
            let now = now.clamp(clock.saturating_sub(APART), clock.saturating_add(APART));
            if newest > clock.saturating_add(APART) {
                return ShardTime::BackTo(now);
            }
            return ShardTime::To(now.max(newest));
        }
        ShardTime::To(now.max(newest))
    }

    /// Builds the shard again, with other terms or an earlier time. `None` if a store cannot have these
    /// terms; then nothing has changed.
    pub(crate) fn rebuild(&mut self, terms: Terms, newest: u32) -> Option<()> {
        *self = self.rebuilt(terms, newest)?;
        Some(())
    }

    pub(crate) fn copied(&self) -> Option<Self> {
        self.rebuilt(self.terms, self.newest)
    }

    fn rebuilt(&self, terms: Terms, newest: u32) -> Option<Self> {
        let mut rebuilt = Self::new(self.identity, terms)?;
        (rebuilt.newest, rebuilt.evicted_before) = (newest, self.evicted());
        self.export(|records| {
            rebuilt.import(records);
        });
        Some(rebuilt)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.newest.into())
    }

    /// Announces, and appends the selected peers to `out`. Returns their numbers too, by family.
    pub(crate) fn announce(&self, asked: &AnnounceCall, out: &mut Vec<u8>) -> (Announced, usize, usize) {
        let AnnounceCall { announce, room: (v4, v6), random } = asked;
        let (start, v4) = (out.len(), v4 * 6);
        out.resize(start + v4 + v6 * 18, 0);
        let (first, second) = out[start..].split_at_mut(v4);
        let mut peers = PeerBuffer::new(first, second);
        let announced = self.store.announce(announce, self.now(), &mut SplitMix64::new(*random), &mut peers);
        let (v4_peers, v6_peers) = (peers.v4.len(), peers.v6.len());
        let behind = start + v4_peers * 6;
        out.copy_within(start + v4..start + v4 + v6_peers * 18, behind);
        out.truncate(behind + v6_peers * 18);
        (announced, v4_peers, v6_peers)
    }

    pub(crate) fn restore(&self, swarm: &SwarmSummary, peers: &[swarmkeep::PeerRecord]) -> Restored {
        self.store.restore(swarm, peers, self.now())
    }

    pub(crate) fn import(&self, records: &Records) -> Restored {
        self.store.import(slice::from_ref(records), self.now())
    }

    /// One step of a sweep. Also returns whether replicas must sweep: after a pass with changes.
    pub(crate) fn sweep(&mut self, policy: Retention, budget: u32) -> (Swept, bool) {
        let swept = self.store.sweep(self.now(), policy, Budget::peers(HOLD.min(budget as usize)));
        self.has_swept |= swept.expired > 0 || swept.swarms_removed > 0;
        (swept, swept.pass_complete && mem::take(&mut self.has_swept))
    }

    /// A whole pass, as this shard's master has done it.
    pub(crate) fn sweep_all(&mut self, policy: Retention) {
        while !self.store.sweep(self.now(), policy, Budget::peers(usize::MAX)).pass_complete {}
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted_before.saturating_add(self.store.totals().evicted.peers)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.store.memory().bytes + size_of::<Self>() as u64
    }

    /// About as many allocations as have to be freed.
    pub(crate) fn pieces(&self) -> usize {
        (self.store.memory().bytes / 1024) as usize + 1
    }
}
