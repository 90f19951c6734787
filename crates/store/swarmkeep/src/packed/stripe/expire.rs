//! Expiry: a sweep removes expired peers and idle swarms.

use super::{Operation, ResumePoint, Stripe, SwarmLocation};
use crate::{
    Cursor, Retention,
    packed::{
        clock::Tick,
        leaf::{
            Leaf,
            slot::{Prefix, SlotContent, population_of},
        },
        linear,
    },
    totals::Population,
};

/// The leaves that are on their way from memory while one is swept. With one, three or four, a sweep takes
/// as long.
const LEAVES_AHEAD: usize = 2;

/// What one hold of the lock did for a sweep.
#[derive(Debug, Default)]
pub(in crate::packed) struct SweepStep {
    pub(in crate::packed) visited: usize,
    /// Leaves visited, including empty ones.
    leaves: usize,
    pub(in crate::packed) gone: Population,
    pub(in crate::packed) swarms_removed: u64,
}

impl Stripe {
    /// Visits about `limit` peers from `from` on. Removes those that have expired, and swarms without peers
    /// as `policy` says. Returns where to go on, or `None` at the end.
    pub(in crate::packed) fn expire(
        &mut self,
        op: &Operation<'_>,
        from: Option<ResumePoint>,
        oldest: Tick,
        policy: Retention,
        limit: usize,
        step: &mut SweepStep,
    ) -> Option<ResumePoint> {
        let home = op.home;
        let from = from.unwrap_or(ResumePoint::first(home));
        let mut order = Some(from.key.head() << home.depth);
        let mut resumed = Some(from);
        let mut ahead = order;
        for _ in 0..LEAVES_AHEAD {
            ahead = self.prefetch_at(ahead);
        }
        while let Some(start) = order
            && !self.leaves.is_empty()
        {
            let range = linear::range_of(start, self.leaves.len());
            let (leaf, prefix) = (range.bucket, home.extended(range));
            ahead = self.prefetch_at(ahead);
            // Not the first key of the leaf: it may have been merged with a leaf that was visited already.
            let first = Prefix { bits: home.bits | start >> home.depth, depth: prefix.depth }.first_key();
            if resumed.is_none() && step.visited + step.leaves >= limit {
                return Some(ResumePoint { key: first, within: Cursor::START });
            }
            step.leaves += 1;
            let (mut slot, mut within) = match resumed.take() {
                None => {
                    let (Ok(slot) | Err(slot)) = self.leaves[leaf].find(prefix, &first);
                    (slot, Cursor::START)
                }
                Some(from) => match self.leaves[leaf].find(prefix, &from.key) {
                    Ok(slot) => (slot, from.within),
                    Err(slot) => (slot, Cursor::START),
                },
            };
            loop {
                if within == Cursor::START {
                    let left = limit.saturating_sub(step.visited);
                    let passed;
                    (slot, passed) = self.leaves[leaf].pass_unchanged(slot, oldest, policy, left);
                    step.visited += passed;
                }
                if slot.index >= self.leaves[leaf].swarms() {
                    break;
                }
                let key = || self.leaves[leaf].key(prefix, slot);
                if step.visited >= limit {
                    return Some(ResumePoint { key: key(), within });
                }
                step.visited += usize::from(within == Cursor::START);
                let at = SwarmLocation { leaf, slot };
                let next = self.expire_swarm(op, at, within, oldest, limit, step);
                if !next.is_end() {
                    return Some(ResumePoint { key: self.leaves[leaf].key(prefix, slot), within: next });
                }
                within = Cursor::START;
                if self.is_idle(at, policy) {
                    self.changing(leaf, |leaf| leaf.remove(slot));
                    op.context.totals.remove_swarm(Population::default());
                    step.swarms_removed += 1;
                } else {
                    slot = slot.next();
                }
            }
            self.changing(leaf, Leaf::compact);
            self.merge_some(home);
            order = range.end;
        }
        None
    }

    /// Prefetches the leaf of an order, if there is one. Returns the first order after it.
    fn prefetch_at(&self, order: Option<u64>) -> Option<u64> {
        let range = linear::range_of(order?, self.leaves.len());
        if let Some(leaf) = self.leaves.get(range.bucket) {
            leaf.prefetch();
        }
        range.end
    }

    fn expire_swarm(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        within: Cursor,
        oldest: Tick,
        limit: usize,
        step: &mut SweepStep,
    ) -> Cursor {
        match self.content(at) {
            SlotContent::Empty(_) => {}
            SlotContent::One(_) => self.expire_few(op, at, oldest, 1, step),
            SlotContent::Few(few) => self.expire_few(op, at, oldest, few.peers(), step),
            SlotContent::Large(number) => {
                let left = limit.saturating_sub(step.visited).max(1);
                let expired =
                    self.changing_large(number, |large| large.expire(&op.context.hash, oldest, within, left));
                step.visited += expired.visited;
                step.gone += expired.gone;
                op.context.totals.remove_peers(expired.gone);
                if expired.next.is_end() {
                    self.demote_if_small(op, at, number);
                }
                return expired.next;
            }
        }
        Cursor::END
    }

    fn expire_few(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        oldest: Tick,
        peers: usize,
        step: &mut SweepStep,
    ) {
        step.visited += peers;
        let counts = self.changing(at.leaf, |leaf| leaf.expire(at.slot, oldest));
        let gone = population_of(counts);
        step.gone += gone;
        op.context.totals.remove_peers(gone);
    }

    fn is_idle(&self, at: SwarmLocation, policy: Retention) -> bool {
        match self.content(at) {
            SlotContent::Empty(empty) => empty.is_idle(policy),
            _ => false,
        }
    }
}
