//! Expiry: a sweep removes expired peers and idle swarms.

use super::{Operation, ResumePoint, Shard, SwarmLocation};
use crate::{
    Cursor, Retention,
    packed::{
        bounds::MAX_GROWTH,
        clock::Tick,
        context::StoreContext,
        leaf::{
            Leaf,
            slot::{Prefix, SlotContent},
        },
        linear,
        reservation::Reservation,
    },
    totals::Population,
};

/// The leaves that are on their way from memory while one is swept. With one, three or four, a sweep takes
/// as long.
const LEAVES_AHEAD: usize = 2;

/// The limits and the results of a sweep in one hold of the lock.
pub(in crate::packed) struct SweepStep<'a> {
    limit: usize,
    pub(in crate::packed) reservation: Reservation<'a>,
    pub(in crate::packed) visited: usize,
    /// Leaves visited, including empty ones.
    leaves: usize,
    pub(in crate::packed) gone: Population,
    pub(in crate::packed) swarms_removed: u64,
}

impl<'a> SweepStep<'a> {
    pub(in crate::packed) fn of(limit: usize, context: &'a StoreContext) -> Self {
        let (reservation, gone) = (Reservation::without_slack(context), Population::default());
        Self { limit, reservation, visited: 0, leaves: 0, gone, swarms_removed: 0 }
    }
}

impl Shard {
    /// Visits peers from `from` on, about as many as the limit of `step`. Removes expired peers, and swarms
    /// without peers as `policy` says. Returns where to go on, or `None` at the end.
    pub(in crate::packed) fn expire(
        &mut self,
        op: &Operation<'_>,
        from: Option<ResumePoint>,
        oldest: Tick,
        policy: Retention,
        step: &mut SweepStep<'_>,
    ) -> Option<ResumePoint> {
        let home = op.home;
        let from = from.unwrap_or(ResumePoint::first(home));
        let mut order = Some(from.key.head() << home.depth);
        let mut resumed = Some(from);
        let mut ahead = order;
        for _ in 0..LEAVES_AHEAD {
            ahead = self.prefetch_at(ahead);
        }
        while let Some(start) = order.filter(|_| !self.leaves.is_empty()) {
            let range = linear::range_of(start, self.leaves.len());
            let (leaf, prefix) = (range.bucket, home.extended(range));
            ahead = self.prefetch_at(ahead);
            // Not the first key of the leaf: it may have been merged with a leaf that was visited already.
            let first = ResumePoint::first(Prefix { bits: home.bits | start >> home.depth, ..prefix });
            if resumed.is_none() && step.visited + step.leaves >= step.limit {
                return Some(first);
            }
            step.leaves += 1;
            let from = resumed.take().unwrap_or(first);
            let (mut slot, mut within) = match self.leaves[leaf].find(prefix, &from.key) {
                Ok(slot) => (slot, from.within),
                Err(slot) => (slot, Cursor::START),
            };
            loop {
                if within == Cursor::START {
                    let left = step.limit.saturating_sub(step.visited);
                    let passed;
                    (slot, passed) = self.leaves[leaf].pass_unchanged(slot, oldest, policy, left);
                    step.visited += passed;
                }
                if slot.index >= self.leaves[leaf].swarms() {
                    break;
                }
                let resume = |shard: &Self, within| {
                    Some(ResumePoint { key: shard.leaves[leaf].key(prefix, slot), within })
                };
                if step.visited >= step.limit {
                    return resume(self, within);
                }
                let left = step.limit - step.visited;
                match self.leaves[leaf].content(slot) {
                    SlotContent::Large(number) => {
                        step.visited += usize::from(within == Cursor::START);
                        let expired = self.changing_large(number, |large| {
                            large.expire(&op.context.hash, oldest, within, left)
                        });
                        step.visited += expired.visited;
                        step.gone += expired.gone;
                        op.context.totals.remove_population(expired.gone);
                        if self.fits(0, MAX_GROWTH, &mut step.reservation) {
                            self.changing_large(number, |large| large.merge(MAX_GROWTH));
                        }
                        if !expired.next.is_end() {
                            return resume(self, expired.next);
                        }
                        let at = SwarmLocation { leaf, slot };
                        self.demote_if_small(op, at, number, &mut step.reservation);
                        // If it has become small, it is visited once more, as a swarm of the leaf.
                        if matches!(self.content(at), SlotContent::Large(_)) {
                            slot = slot.next();
                        }
                    }
                    _ => {
                        let done = self.changing(leaf, |leaf| leaf.expire(slot, oldest, policy, left));
                        slot = done.next;
                        step.visited += done.visits;
                        step.gone += done.gone;
                        step.swarms_removed += done.swarms_removed;
                        op.context.totals.remove(done.swarms_removed, done.gone);
                    }
                }
                within = Cursor::START;
            }
            self.changing(leaf, Leaf::compact);
            self.merge_some(home, &mut step.reservation);
            order = range.end;
        }
        None
    }

    /// Prefetches the leaf of an order, if there is one. Returns the first order after it.
    fn prefetch_at(&self, order: Option<u64>) -> Option<u64> {
        let range = linear::range_of(order?, self.leaves.len());
        if let Some(leaf) = self.leaves.get(range.bucket) {
            leaf.prefetch(0, leaf.used());
        }
        range.end
    }
}
