//! A shard: the swarms behind one lock, in leaves that split and merge one at a time.
//!
//! The child modules divide the methods: announcing, valuing, evicting, expiring, reading and restoring, and
//! the shape of the shard.

pub(super) mod announce;
pub(super) mod census;
pub(super) mod evict;
pub(super) mod expire;
mod read;
mod restore;
mod shape;

use std::{iter, mem};

use super::{
    clock::Tick,
    context::StoreContext,
    hash::Key,
    large::LargeSwarm,
    leaf::{
        Leaf,
        slot::{NoPeers, Prefix, Section, SectionIndex, Slot, SlotContent, population_of},
    },
    linear,
    place::{LeafLocation, Placed},
    reservation::{NoRoom, Reservation},
};
use crate::{Cursor, Endpoint, Family, Role, SwarmStats, totals::Population};

#[derive(Debug, Default)]
pub(super) struct Shard {
    leaves: Vec<Leaf>,
    /// The swarms that are too large for a leaf, by number. `None` at a number that is free.
    large: Box<[Option<Box<LargeSwarm>>]>,
    /// Bytes allocated less bytes freed since the last report to the store.
    unreported: i64,
    /// Bytes that all leaves use. They decide when a leaf splits and when two leaves merge.
    used: usize,
}

/// The parameters of most methods: the swarm, the prefix of the shard, the time, and the shared state.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(super) context: &'a StoreContext,
    /// The leading bits that all keys of the shard share.
    pub(super) home: Prefix,
    pub(super) placed: &'a Placed,
    pub(super) now: Tick,
}

/// Where a swarm is. Valid until anything in its shard changes: [`Shard::find_again`] checks an older one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SwarmLocation {
    leaf: usize,
    slot: Slot,
}

/// Where a sweep or an export goes on: at this key, or at the next key if this one is gone, and within the
/// peers of that swarm if it is a large one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResumePoint {
    pub(super) key: Key,
    pub(super) within: Cursor,
}

impl ResumePoint {
    pub(super) fn first(home: Prefix) -> Self {
        Self { key: home.first_key(), within: Cursor::START }
    }
}

impl Shard {
    /// Reports the bytes that were allocated and freed since the last report.
    pub(super) fn settle(&mut self, reservation: &mut Reservation<'_>) {
        reservation.settle(mem::take(&mut self.unreported));
    }

    /// Counts a change from `before` bytes to `now` bytes.
    const fn count(&mut self, before: usize, now: usize) {
        self.unreported += now as i64 - before as i64;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    pub(super) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    // --- Finding. ---

    #[inline]
    fn locate_leaf(&self, op: &Operation<'_>) -> LeafLocation {
        LeafLocation::new(op.home, &op.placed.key, self.leaves.len())
    }

    pub(super) fn find(&self, op: &Operation<'_>) -> Option<SwarmLocation> {
        self.find_by(op, &self.locate_leaf(op))
    }

    #[inline]
    fn find_by(&self, op: &Operation<'_>, location: &LeafLocation) -> Option<SwarmLocation> {
        let found = self.leaves.get(location.leaf)?.find(location.prefix, &op.placed.key);
        found.ok().map(|slot| SwarmLocation { leaf: location.leaf, slot })
    }

    /// Finds the swarm, where `known` is the location of its leaf at an earlier time.
    #[inline]
    pub(super) fn find_from(&self, op: &Operation<'_>, known: &LeafLocation) -> Option<SwarmLocation> {
        if known.leaves == self.leaves.len() { self.find_by(op, known) } else { self.find(op) }
    }

    /// Finds the swarm again, where `known` and `found` are the locations of its leaf and of itself at an
    /// earlier time.
    #[inline]
    pub(super) fn find_again(
        &self,
        op: &Operation<'_>,
        known: &LeafLocation,
        found: Option<SwarmLocation>,
    ) -> Option<SwarmLocation> {
        let found = found.filter(|at| known.leaves == self.leaves.len() && at.leaf == known.leaf);
        if let Some(SwarmLocation { leaf, slot }) = found {
            if let Some(slot) = self.leaves.get(leaf)?.find_at(known.prefix, slot, &op.placed.key) {
                return Some(SwarmLocation { leaf, slot });
            }
        }
        self.find_from(op, known)
    }

    fn prefix(&self, home: Prefix, leaf: usize) -> Prefix {
        home.extended(linear::range(leaf, self.leaves.len()))
    }

    /// The leaves in the order of their keys, from the leaf of `key` on.
    fn leaves_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (usize, Prefix)> {
        let leaves = self.leaves.len();
        let first = (leaves > 0).then(|| linear::range_of(key.head() << home.depth, leaves));
        iter::successors(first, move |reached| reached.end.map(|end| linear::range_of(end, leaves)))
            .map(move |reached| (reached.bucket, home.extended(reached)))
    }

    /// The swarms in the order of their keys, from `key` on. A swarm with this key need not exist.
    fn swarms_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (Prefix, SwarmLocation)> {
        self.leaves_from(home, key).enumerate().flat_map(move |(nth, (leaf, prefix))| {
            let (Ok(first) | Err(first)) = match nth {
                0 => self.leaves[leaf].find(prefix, &key),
                _ => Ok(Leaf::first(prefix)),
            };
            iter::successors(Some(first), |slot| Some(slot.next()))
                .take_while(move |slot| slot.index < self.leaves[leaf].swarms())
                .map(move |slot| (prefix, SwarmLocation { leaf, slot }))
        })
    }

    fn content(&self, at: SwarmLocation) -> SlotContent {
        self.leaves[at.leaf].content(at.slot)
    }

    fn large(&self, number: u32) -> &LargeSwarm {
        self.large[number as usize].as_ref().expect("a number in a slot is one of a swarm")
    }

    fn population(&self, at: SwarmLocation) -> Population {
        match self.content(at) {
            SlotContent::Empty(_) => Population::default(),
            SlotContent::One(one) => Population::one(Family::V4, one.role()),
            SlotContent::Few(few) => population_of(few.counts()),
            SlotContent::Large(number) => self.large(number).population(),
        }
    }

    pub(super) fn stats(&self, at: SwarmLocation) -> SwarmStats {
        match self.content(at) {
            SlotContent::Large(number) => stats_of(self.large(number)),
            _ => self.population(at).stats(self.leaves[at.leaf].downloaded(at.slot)),
        }
    }

    // --- Swarms come and go. ---

    /// Returns the location of the swarm, which is created if it does not exist, and whether it was created.
    /// Nothing has changed if there is no room.
    fn admit(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
    ) -> Result<(SwarmLocation, bool), NoRoom> {
        let LeafLocation { leaf, prefix, .. } = self.split_if_full(op, reservation)?;
        let found = self.leaves[leaf].find(prefix, &op.placed.key);
        let (Ok(slot) | Err(slot)) = found;
        self.leaves[leaf].advance(op.now, slot);
        if found.is_ok() {
            return Ok((SwarmLocation { leaf, slot }, false));
        }
        if !reservation.count_swarm() {
            return Err(NoRoom::Swarms);
        }
        self.changing(leaf, |leaf| {
            let latest = leaf.base().stamp(op.now);
            leaf.insert(slot, &op.placed.key, SlotContent::Empty(NoPeers::new(0, latest)));
        });
        Ok((SwarmLocation { leaf, slot }, true))
    }

    /// Adds a peer to a swarm of few peers. If it has too many for a block, the swarm becomes a large one
    /// without the new peer, and the result is `None`.
    fn add(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        role: Role,
        endpoint: &Endpoint,
        tick: Tick,
    ) -> Option<SectionIndex> {
        let section = Section::of(endpoint.family(), role);
        if self.leaves[at.leaf].block_with(at.slot, section) > Leaf::MAX_BLOCK {
            self.promote(op, at);
            return None;
        }
        Some(self.changing(at.leaf, |leaf| {
            leaf.add(at.slot, section, endpoint.as_bytes(), leaf.base().stamp(tick))
        }))
    }

    fn remove_at(&mut self, at: SwarmLocation) -> (SwarmStats, Population, Option<Box<LargeSwarm>>) {
        let (stats, mut population) = (self.stats(at), self.population(at));
        population.downloaded = stats.downloaded.into();
        let large = match self.content(at) {
            SlotContent::Large(number) => Some(self.take_large(number)),
            _ => None,
        };
        self.changing(at.leaf, |leaf| leaf.remove(at.slot));
        (stats, population, large)
    }

    /// Removes a swarm. Returns its counts, and its tables if it was a large one.
    pub(super) fn remove(&mut self, op: &Operation<'_>) -> Option<(SwarmStats, Option<Box<LargeSwarm>>)> {
        let (stats, population, large) = self.remove_at(self.find(op)?);
        op.context.totals.remove(1, population);
        Some((stats, large))
    }

    /// Raises the download count of a swarm. Returns the difference, which the caller adds to the totals.
    fn raise_downloaded(&mut self, at: SwarmLocation, raise: impl FnOnce(u32) -> u32) -> Population {
        let current = self.stats(at).downloaded;
        let raised = raise(current);
        if raised != current {
            match self.content(at) {
                SlotContent::Large(number) => self.changing_large(number, |large| large.downloaded = raised),
                _ => self.changing(at.leaf, |leaf| leaf.set_downloaded(at.slot, raised)),
            }
        }
        Population::downloads(raised - current)
    }
}

fn stats_of(large: &LargeSwarm) -> SwarmStats {
    large.population().stats(large.downloaded)
}

#[cfg(test)]
impl Shard {
    /// Whether the hints are those of a store of this shard alone.
    pub(super) fn has_right_hints(&self, hints: &super::hints::Hints) -> bool {
        hints.are_right(0, &self.leaves)
    }

    /// The number of buckets of the first large swarm, and of peers in the fullest of them.
    pub(super) fn buckets(&self) -> (usize, usize) {
        self.large.iter().flatten().next().map_or((0, 0), |large| large.buckets())
    }

    /// The memory of the shard, counted piece by piece. Checks the running totals too.
    pub(super) fn recount(&self) -> usize {
        assert_eq!(self.unreported, 0);
        assert_eq!(self.used, self.leaves.iter().map(Leaf::used).sum());
        let blocks: usize = self.leaves.iter().map(Leaf::capacity).sum();
        let large: usize = self.large.iter().flatten().map(|large| large.recount()).sum();
        self.leaves.capacity() * size_of::<Leaf>() + blocks + size_of_val(&*self.large) + large
    }
}
