//! Reservations: the bytes that an announce may use, and the evictions for it.

use std::mem;

use super::{bounds::SLACK, context::StoreContext, large::LargeSwarm};
use crate::{Changes, Evicted, sync::atomic::Ordering::Relaxed, totals::Population};

/// The bytes that one operation has reserved, and the evictions for it.
pub(super) struct Reservation<'a> {
    context: &'a StoreContext,
    /// The most bytes of the store.
    limit: u64,
    reserved: u64,
    /// The bytes that were in use without the slack, when the last operation had ended.
    over: u64,
    has_grown: bool,
    evicted: Evicted,
    /// Evicted large swarms. To free one takes milliseconds, so it is done when no lock is held.
    #[expect(clippy::vec_box, reason = "they are boxed already")]
    pub(super) dropped: Vec<Box<LargeSwarm>>,
    /// Swarms, peers and downloads that are not in the totals yet. Used where one hold of the lock adds many:
    /// an addition to a number that threads share waits until all earlier writes have reached the cache.
    unreported: Option<(u64, Population)>,
}

/// Why an announce has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// This number of bytes is to be freed.
    Bytes(u64),
    /// The store has as many swarms as it may have.
    Swarms,
    /// The keys of too many swarms begin with the same bits. Only info hashes that are chosen with the secret
    /// key of the store do that.
    Crowded,
}

impl NoRoom {
    /// The bytes that an announce reserves do not fit.
    pub(super) const BYTES: Self = Self::Bytes(SLACK as u64);
}

impl<'a> Reservation<'a> {
    pub(super) const fn new(context: &'a StoreContext) -> Self {
        Self {
            context,
            limit: context.bounds.bytes,
            reserved: 0,
            over: 0,
            has_grown: false,
            evicted: Evicted { swarms: 0, peers: 0 },
            dropped: Vec::new(),
            unreported: None,
        }
    }

    /// A reservation for many swarms, of a sweep or of a snapshot, that leaves the slack to announces. A
    /// caller that counts any calls [`report`](Self::report) at the end of each hold of the lock.
    pub(super) fn without_slack(context: &'a StoreContext) -> Self {
        let mut reservation = Self::new(context);
        (reservation.limit, reservation.unreported) = (context.bounds.settled(), Some(Default::default()));
        reservation
    }

    /// Adds the unreported swarms, peers and downloads to the totals.
    pub(super) fn report(&mut self) {
        if let Some(unreported) = &mut self.unreported {
            let (swarms, population) = mem::take(unreported);
            self.context.totals.add(swarms, population);
        }
    }

    /// Reserves more, until `bytes` bytes are reserved, if they fit into the limit. Returns whether they do.
    /// They stay reserved until this reservation is settled or dropped.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        if self.limit == u64::MAX {
            return true;
        }
        let missing = (bytes as u64).saturating_sub(self.reserved);
        let fits = |bytes: u64| Some(bytes + missing).filter(|&bytes| bytes <= self.limit);
        let reserved = missing == 0 || self.context.bytes.fetch_update(Relaxed, Relaxed, fits).is_ok();
        self.reserved += if reserved { missing } else { 0 };
        reserved
    }

    /// Replaces the reserved bytes by the bytes by which the shard has grown. Panics in debug
    /// builds if these are more.
    pub(super) fn settle(&mut self, grown: i64) {
        let reserved = mem::take(&mut self.reserved) as i64;
        debug_assert!(
            self.limit == u64::MAX || grown <= reserved,
            "{grown} bytes, of which {reserved} were reserved"
        );
        // Without `over`, nothing reads whether an earlier announce of a batch has grown.
        self.over = 0;
        if grown == 0 && reserved == 0 {
            return;
        }
        let more = grown - reserved;
        let bytes = self.context.bytes.fetch_add(more as u64, Relaxed).wrapping_add_signed(more);
        if self.limit != u64::MAX {
            self.over = bytes.saturating_sub(self.context.bounds.settled());
            self.has_grown = grown > 0;
        }
    }

    /// Whether an announce has to free bytes for the next ones. Not if others were evicted for its peer
    /// already.
    pub(super) const fn debt(&self, changes: Changes) -> Option<NoRoom> {
        let has_to = self.has_grown || changes.contains(Changes::JOINED);
        if self.over > 0 && self.evicted.peers == 0 && has_to { Some(NoRoom::Bytes(self.over)) } else { None }
    }

    /// Counts one more swarm, if it fits into the limit. Returns whether it does.
    pub(super) fn count_swarm(&mut self) -> bool {
        match &mut self.unreported {
            Some((swarms, _)) if self.context.bounds.swarms == u64::MAX => {
                *swarms += 1;
                true
            }
            _ => self.context.totals.add_swarm(self.context.bounds.swarms),
        }
    }

    /// Counts peers or downloads that were added.
    pub(super) fn count(&mut self, more: Population) {
        match &mut self.unreported {
            Some((_, population)) => *population += more,
            None => self.context.totals.add(0, more),
        }
    }

    /// Counts swarms that were evicted with their downloads, and peers.
    pub(super) fn evict(&mut self, swarms: u64, population: Population) {
        let evicted = Evicted { swarms, peers: population.peers() };
        self.context.totals.remove(swarms, population);
        self.context.totals.evict(evicted);
        self.evicted += evicted;
    }

    /// Returns the evictions since the last call.
    pub(super) const fn take_evicted(&mut self) -> Evicted {
        mem::replace(&mut self.evicted, Evicted { swarms: 0, peers: 0 })
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
