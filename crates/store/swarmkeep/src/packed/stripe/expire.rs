//! A sweep: peers that have expired go, and swarms without peers.

use super::{At, Call, Position, Stripe};
use crate::{
    Cursor, Retention,
    packed::{
        clock::Tick,
        leaf::{
            Leaf,
            slot::{Held, Prefix, population_of},
        },
        linear,
    },
    totals::Population,
};

/// What one hold of a sweep did.
#[derive(Debug, Default)]
pub(in crate::packed) struct Step {
    pub(in crate::packed) visited: usize,
    /// Leaves looked at, which may have been empty.
    leaves: usize,
    pub(in crate::packed) gone: Population,
    pub(in crate::packed) swarms_removed: u64,
}

impl Stripe {
    /// Visits about `limit` peers from a position on, removes those that have expired, and swarms without
    /// peers as `policy` says; where to go on, unless that was the end.
    pub(in crate::packed) fn expire(
        &mut self,
        call: &Call<'_>,
        from: Option<Position>,
        oldest: Tick,
        policy: Retention,
        limit: usize,
        step: &mut Step,
    ) -> Option<Position> {
        let home = call.home;
        let from = from.unwrap_or(Position::first(home));
        let mut order = Some(from.key.head() << home.depth);
        let mut resumed = Some(from);
        while let Some(start) = order
            && !self.leaves.is_empty()
        {
            let reach = linear::reach(start, self.leaves.len());
            let (leaf, prefix) = (reach.bucket, self.prefix(home, reach.bucket));
            // Not the first of the leaf, which may have been merged with one that was visited.
            let first = Prefix { bits: home.bits | start >> home.depth, depth: prefix.depth }.first_key();
            if resumed.is_none() && step.visited + step.leaves >= limit {
                return Some(Position { key: first, within: Cursor::START });
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
                    return Some(Position { key: key(), within });
                }
                step.visited += usize::from(within == Cursor::START);
                let at = At { leaf, slot };
                let next = self.expire_swarm(call, at, within, oldest, limit, step);
                if !next.is_end() {
                    return Some(Position { key: self.leaves[leaf].key(prefix, slot), within: next });
                }
                within = Cursor::START;
                if self.is_idle(at, policy) {
                    self.changing(leaf, |leaf| leaf.remove(slot));
                    call.shared.totals.remove_swarm(Population::default());
                    step.swarms_removed += 1;
                } else {
                    slot = slot.next();
                }
            }
            self.changing(leaf, Leaf::compact);
            self.merge_some(home);
            order = reach.end;
        }
        None
    }

    fn expire_swarm(
        &mut self,
        call: &Call<'_>,
        at: At,
        within: Cursor,
        oldest: Tick,
        limit: usize,
        step: &mut Step,
    ) -> Cursor {
        let leaf = &self.leaves[at.leaf];
        let first_alive = leaf.base().first_alive(oldest);
        match leaf.held(at.slot) {
            Held::Nobody(_) => {}
            Held::One(one) => {
                step.visited += 1;
                if u16::from(one.stamp()) < first_alive {
                    self.expire_few(call, at, first_alive, step);
                }
            }
            Held::Few(few) => {
                step.visited += few.peers();
                if leaf.stamps(at.slot, few).iter().any(|&stamp| u16::from(stamp) < first_alive) {
                    self.expire_few(call, at, first_alive, step);
                }
            }
            Held::Large(number) => {
                let left = limit.saturating_sub(step.visited).max(1);
                let expired = self
                    .changing_large(number, |large| large.expire(&call.shared.hash, oldest, within, left));
                step.visited += expired.visited;
                step.gone += expired.gone;
                call.shared.totals.remove_peers(expired.gone);
                if expired.next.is_end() {
                    self.demote_if_small(call, at, number);
                }
                return expired.next;
            }
        }
        Cursor::END
    }

    fn expire_few(&mut self, call: &Call<'_>, at: At, first_alive: u16, step: &mut Step) {
        let counts = self.changing(at.leaf, |leaf| leaf.expire(at.slot, first_alive));
        let gone = population_of(counts);
        step.gone += gone;
        call.shared.totals.remove_peers(gone);
    }

    fn is_idle(&self, at: At, policy: Retention) -> bool {
        match self.held(at) {
            Held::Nobody(nobody) => policy == Retention::DropEmpty || nobody.downloaded() == 0,
            _ => false,
        }
    }
}
