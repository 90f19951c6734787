//! What all stripes of a store share, and the room that its limits leave.

use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    bounds::{MOST_GROWTH, Most},
    clock::Clock,
    hash::EndpointHash,
    large::Large,
    place::Placement,
};
use crate::{
    Evicted, Family, Role,
    totals::{AtomicTotals, Population},
};

/// What all stripes of a store share.
pub(super) struct Shared {
    pub(super) placement: Placement,
    pub(super) hash: EndpointHash,
    pub(super) clock: Clock,
    pub(super) totals: AtomicTotals,
    /// Bytes of all stripes, and those that announces in flight have reserved.
    pub(super) bytes: AtomicU64,
    pub(super) most: Most,
}

impl Shared {
    /// Whether `announces` more announces may exceed a limit.
    pub(super) fn is_nearly_full(&self, announces: usize) -> bool {
        let more = announces as u64;
        self.bytes.load(Relaxed).saturating_add(more * MOST_GROWTH as u64) > self.most.bytes
            || self.totals.swarms().saturating_add(more) > self.most.swarms
    }
}

/// The room that one announce takes up, and what had to go for it.
pub(super) struct Room<'a> {
    shared: &'a Shared,
    reserved: u64,
    evicted: Evicted,
    /// Large swarms take milliseconds to free: that is left to when no lock is held.
    #[expect(clippy::vec_box, reason = "they are boxed already")]
    dropped: Vec<Box<Large>>,
    /// What has come and is not in the totals yet, where many come in one hold: an addition that threads
    /// share waits until all that was written before it has reached the cache.
    untold: Option<(u64, Population)>,
}

impl<'a> Room<'a> {
    pub(super) const fn new(shared: &'a Shared) -> Self {
        let evicted = Evicted { swarms: 0, peers: 0 };
        Self { shared, reserved: 0, evicted, dropped: Vec::new(), untold: None }
    }

    /// For many that come in one hold, at the end of which [`tell`](Self::tell) is called.
    pub(super) fn for_many(shared: &'a Shared) -> Self {
        let mut room = Self::new(shared);
        room.untold = Some(Default::default());
        room
    }

    /// Brings the totals up to date.
    pub(super) fn tell(&mut self) {
        if let Some(untold) = &mut self.untold {
            let (swarms, population) = mem::take(untold);
            self.shared.totals.add(swarms, population);
        }
    }

    /// Whether `bytes` more bytes fit. They are reserved until this room is given back.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let most = self.shared.most.bytes;
        if most == u64::MAX {
            return true;
        }
        let missing = bytes.saturating_sub(self.reserved);
        let fits = |bytes: u64| Some(bytes + missing).filter(|&bytes| bytes <= most);
        let reserved = self.shared.bytes.try_update(Relaxed, Relaxed, fits).is_ok();
        self.reserved += if reserved { missing } else { 0 };
        reserved
    }

    /// Whether `bytes` bytes are reserved, or need not be.
    pub(super) const fn has_reserved(&self, bytes: usize) -> bool {
        self.shared.most.bytes == u64::MAX || self.reserved >= bytes as u64
    }

    /// What was reserved has become so many bytes more, or less.
    pub(super) fn settle(&mut self, grown: i64) {
        let grown = grown - mem::take(&mut self.reserved) as i64;
        if grown != 0 {
            self.shared.bytes.fetch_add(grown as u64, Relaxed);
        }
    }

    /// Whether one more swarm fits; if so, it counts from now on.
    pub(super) fn count_swarm(&mut self) -> bool {
        match &mut self.untold {
            Some((swarms, _)) if self.shared.most.swarms == u64::MAX => {
                *swarms += 1;
                true
            }
            _ => self.shared.totals.add_swarm(self.shared.most.swarms),
        }
    }

    /// A peer has come.
    pub(super) fn count_peer(&mut self, family: Family, role: Role) {
        match &mut self.untold {
            Some((_, population)) => *population += Population::one(family, role),
            None => self.shared.totals.turn(family, None, Some(role)),
        }
    }

    /// A swarm has gone to make room.
    pub(super) fn evict_swarm(&mut self, population: Population, large: Option<Box<Large>>) {
        let evicted = Evicted { swarms: 1, peers: population.peers() };
        self.shared.totals.remove_swarm(population);
        self.note(evicted);
        self.dropped.extend(large);
    }

    /// A peer has gone to make room.
    pub(super) fn evict_peer(&mut self, population: Population) {
        self.shared.totals.remove_peers(population);
        self.note(Evicted { swarms: 0, peers: population.peers() });
    }

    /// What has gone since this was asked last.
    pub(super) const fn take_evicted(&mut self) -> Evicted {
        mem::replace(&mut self.evicted, Evicted { swarms: 0, peers: 0 })
    }

    fn note(&mut self, evicted: Evicted) {
        self.shared.totals.evict(evicted);
        self.evicted.swarms += evicted.swarms;
        self.evicted.peers += evicted.peers;
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.tell();
        if self.reserved > 0 {
            self.shared.bytes.fetch_sub(self.reserved, Relaxed);
        }
    }
}
