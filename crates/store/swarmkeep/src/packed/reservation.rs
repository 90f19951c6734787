//! The room that one announce takes up, and what goes for it.

use std::{mem, sync::atomic::Ordering::Relaxed};

use super::{context::StoreContext, large::Large};
use crate::{Evicted, Family, Role, totals::Population};

/// The room that one announce takes up, and what had to go for it.
pub(super) struct Reservation<'a> {
    context: &'a StoreContext,
    reserved: u64,
    evicted: Evicted,
    /// Large swarms take milliseconds to free: that is left to when no lock is held.
    #[expect(clippy::vec_box, reason = "they are boxed already")]
    dropped: Vec<Box<Large>>,
    /// What has come and is not in the totals yet, where many come in one hold: an addition that threads
    /// share waits until all that was written before it has reached the cache.
    unreported: Option<(u64, Population)>,
}

impl<'a> Reservation<'a> {
    pub(super) const fn new(context: &'a StoreContext) -> Self {
        let evicted = Evicted { swarms: 0, peers: 0 };
        Self { context, reserved: 0, evicted, dropped: Vec::new(), unreported: None }
    }

    /// For many that come in one hold, at the end of which [`report`](Self::report) is called.
    pub(super) fn for_many(context: &'a StoreContext) -> Self {
        let mut reservation = Self::new(context);
        reservation.unreported = Some(Default::default());
        reservation
    }

    /// Brings the totals up to date.
    pub(super) fn report(&mut self) {
        if let Some(unreported) = &mut self.unreported {
            let (swarms, population) = mem::take(unreported);
            self.context.totals.add(swarms, population);
        }
    }

    /// Whether `bytes` more bytes fit. They are reserved until this room is given back.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let limit = self.context.bounds.bytes;
        if limit == u64::MAX {
            return true;
        }
        let missing = bytes.saturating_sub(self.reserved);
        let fits = |bytes: u64| Some(bytes + missing).filter(|&bytes| bytes <= limit);
        let reserved = self.context.bytes.try_update(Relaxed, Relaxed, fits).is_ok();
        self.reserved += if reserved { missing } else { 0 };
        reserved
    }

    /// Whether `bytes` bytes are reserved, or need not be.
    pub(super) const fn has_reserved(&self, bytes: usize) -> bool {
        self.context.bounds.bytes == u64::MAX || self.reserved >= bytes as u64
    }

    /// What was reserved has become so many bytes more, or less.
    pub(super) fn settle(&mut self, grown: i64) {
        let grown = grown - mem::take(&mut self.reserved) as i64;
        if grown != 0 {
            self.context.bytes.fetch_add(grown as u64, Relaxed);
        }
    }

    /// Whether one more swarm fits; if so, it counts from now on.
    pub(super) fn count_swarm(&mut self) -> bool {
        match &mut self.unreported {
            Some((swarms, _)) if self.context.bounds.swarms == u64::MAX => {
                *swarms += 1;
                true
            }
            _ => self.context.totals.add_swarm(self.context.bounds.swarms),
        }
    }

    /// A peer has come.
    pub(super) fn count_peer(&mut self, family: Family, role: Role) {
        match &mut self.unreported {
            Some((_, population)) => *population += Population::one(family, role),
            None => self.context.totals.turn(family, None, Some(role)),
        }
    }

    /// A swarm has gone to make room.
    pub(super) fn evict_swarm(&mut self, population: Population, large: Option<Box<Large>>) {
        let evicted = Evicted { swarms: 1, peers: population.peers() };
        self.context.totals.remove_swarm(population);
        self.note(evicted);
        self.dropped.extend(large);
    }

    /// A peer has gone to make room.
    pub(super) fn evict_peer(&mut self, population: Population) {
        self.context.totals.remove_peers(population);
        self.note(Evicted { swarms: 0, peers: population.peers() });
    }

    /// What has gone since this was asked last.
    pub(super) const fn take_evicted(&mut self) -> Evicted {
        mem::replace(&mut self.evicted, Evicted { swarms: 0, peers: 0 })
    }

    fn note(&mut self, evicted: Evicted) {
        self.context.totals.evict(evicted);
        self.evicted.swarms += evicted.swarms;
        self.evicted.peers += evicted.peers;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.report();
        if self.reserved > 0 {
            self.context.bytes.fetch_sub(self.reserved, Relaxed);
        }
    }
}
