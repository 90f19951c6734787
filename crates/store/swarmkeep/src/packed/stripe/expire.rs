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
        while let Some(start) = order
            && !self.leaves.is_empty()
        {
            let range = linear::range_of(start, self.leaves.len());
            let (leaf, prefix) = (range.bucket, home.extended(range));
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
            while slot.index < self.leaves[leaf].swarms() {
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

    fn expire_swarm(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        within: Cursor,
        oldest: Tick,
        limit: usize,
        step: &mut SweepStep,
    ) -> Cursor {
        let leaf = &self.leaves[at.leaf];
        let first_alive = leaf.base().first_alive(oldest);
        match leaf.content(at.slot) {
            SlotContent::Empty(_) => {}
            SlotContent::One(one) => {
                step.visited += 1;
                if u16::from(one.stamp()) < first_alive {
                    self.expire_few(op, at, first_alive, step);
                }
            }
            SlotContent::Few(few) => {
                step.visited += few.peers();
                if leaf.stamps(at.slot, few).iter().any(|&stamp| u16::from(stamp) < first_alive) {
                    self.expire_few(op, at, first_alive, step);
                }
            }
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

    fn expire_few(&mut self, op: &Operation<'_>, at: SwarmLocation, first_alive: u16, step: &mut SweepStep) {
        let counts = self.changing(at.leaf, |leaf| leaf.expire(at.slot, first_alive));
        let gone = population_of(counts);
        step.gone += gone;
        op.context.totals.remove_peers(gone);
    }

    fn is_idle(&self, at: SwarmLocation, policy: Retention) -> bool {
        match self.content(at) {
            SlotContent::Empty(empty) => policy == Retention::DropEmpty || empty.downloaded() == 0,
            _ => false,
        }
    }
}
