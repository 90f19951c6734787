//! A stripe: the swarms behind one lock, in leaves that split and merge one at a time.

pub(super) mod announce;
pub(super) mod evict;
pub(super) mod expire;
mod read;
mod restore;
mod shape;

use std::{iter, mem};

use super::{
    clock::Tick,
    hash::Key,
    large::Large,
    leaf::{
        Leaf,
        slot::{Held, Nobody, Place, Prefix, Section, Slot, population_of},
    },
    linear,
    room::{Room, Shared},
};
use crate::{Cursor, Endpoint, Family, Role, SwarmStats, totals::Population};

/// The swarms behind one lock.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    leaves: Vec<Leaf>,
    /// Swarms too large for a leaf, by number; some numbers are free.
    large: Box<[Option<Box<Large>>]>,
    /// Bytes that have come, less those that have gone, since the last report to the store.
    untold: i64,
    /// Bytes that leaves use: what makes them split and merge.
    used: usize,
}

/// A swarm, a stripe's part of the key, and the time: what nearly every method is about.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) shared: &'a Shared,
    /// The leading bits that all keys of a stripe share.
    pub(super) home: Prefix,
    pub(super) key: &'a Key,
    pub(super) now: Tick,
}

/// The leaf of a swarm, valid while the number of the stripe's leaves is the same.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Way {
    leaf: usize,
    prefix: Prefix,
    leaves: usize,
}

/// Where a swarm is, until anything in its stripe changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct At {
    leaf: usize,
    slot: Slot,
}

/// Where a sweep or an export goes on: at this key or the next one behind it, and where within its peers if
/// it is a large swarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Position {
    pub(super) key: Key,
    pub(super) within: Cursor,
}

impl Position {
    pub(super) fn first(home: Prefix) -> Self {
        Self { key: home.first_key(), within: Cursor::START }
    }
}

impl Stripe {
    /// Tells the store what the stripe takes by now.
    pub(super) fn settle(&mut self, room: &mut Room<'_>) {
        room.settle(mem::take(&mut self.untold));
    }

    /// Counts what was there before and what is there now.
    const fn count(&mut self, before: usize, now: usize) {
        self.untold += now as i64 - before as i64;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    pub(super) const fn leaves(&self) -> usize {
        self.leaves.len()
    }

    // --- Finding. ---

    #[inline]
    fn way(&self, call: &Call<'_>) -> Way {
        let leaves = self.leaves.len();
        let reach = linear::reach(call.key.head() << call.home.depth, leaves);
        let depth = call.home.depth + reach.depth;
        let prefix = Prefix { bits: call.key.head() & !(u64::MAX >> depth), depth };
        Way { leaf: reach.bucket, prefix, leaves }
    }

    /// The way by now, if it was `known` at another time.
    #[inline]
    fn way_from(&self, call: &Call<'_>, known: &Way) -> Way {
        if known.leaves == self.leaves.len() { *known } else { self.way(call) }
    }

    pub(super) fn find(&self, call: &Call<'_>) -> Option<At> {
        self.find_by(call, &self.way(call))
    }

    #[inline]
    fn find_by(&self, call: &Call<'_>, way: &Way) -> Option<At> {
        let found = self.leaves.get(way.leaf)?.find(way.prefix, call.key);
        found.ok().map(|slot| At { leaf: way.leaf, slot })
    }

    /// The swarm, from a way that was known at another time.
    #[inline]
    pub(super) fn find_from(&self, call: &Call<'_>, known: &Way) -> Option<At> {
        self.find_by(call, &self.way_from(call, known))
    }

    fn prefix(&self, home: Prefix, leaf: usize) -> Prefix {
        let order = (leaf as u64).reverse_bits();
        Prefix {
            bits: home.bits | order >> home.depth,
            depth: home.depth + linear::depth(leaf, self.leaves.len()),
        }
    }

    /// The leaves in the order of their keys, from the one of `key` on.
    fn leaves_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (usize, Prefix)> {
        let leaves = self.leaves.len();
        let first = (leaves > 0).then(|| linear::reach(key.head() << home.depth, leaves));
        iter::successors(first, move |reached| reached.end.map(|end| linear::reach(end, leaves)))
            .map(move |reached| (reached.bucket, self.prefix(home, reached.bucket)))
    }

    /// The swarms in the order of their keys, from `key` on, or from where it would be.
    fn swarms_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (Prefix, At)> {
        self.leaves_from(home, key).enumerate().flat_map(move |(nth, (leaf, prefix))| {
            let (Ok(first) | Err(first)) = match nth {
                0 => self.leaves[leaf].find(prefix, &key),
                _ => Ok(Leaf::first(prefix)),
            };
            iter::successors(Some(first), |slot| Some(slot.next()))
                .take_while(move |slot| slot.index < self.leaves[leaf].swarms())
                .map(move |slot| (prefix, At { leaf, slot }))
        })
    }

    fn held(&self, at: At) -> Held {
        self.leaves[at.leaf].held(at.slot)
    }

    fn large(&self, number: u32) -> &Large {
        self.large[number as usize].as_ref().expect("a number in a slot is one of a swarm")
    }

    /// The large swarm that has this number by now, if any.
    pub(super) fn numbered(&self, number: u32) -> Option<&Large> {
        self.large.get(number as usize)?.as_deref()
    }

    fn population(&self, at: At) -> Population {
        match self.held(at) {
            Held::Nobody(_) => Population::default(),
            Held::One(one) => Population::one(Family::V4, one.role()),
            Held::Few(few) => population_of(few.counts()),
            Held::Large(number) => self.large(number).population(),
        }
    }

    fn stats(&self, at: At) -> SwarmStats {
        match self.held(at) {
            Held::Large(number) => stats_of(self.large(number)),
            _ => self.population(at).stats(self.leaves[at.leaf].downloaded(at.slot)),
        }
    }

    // --- Swarms come and go. ---

    /// The place of a swarm, made if there is none; whether it was. `None` if there are as many as may be.
    fn admit(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> Option<(At, bool)> {
        self.split_if_full(call);
        let Way { leaf, prefix, .. } = self.way(call);
        let found = self.leaves[leaf].find(prefix, call.key);
        let (Ok(slot) | Err(slot)) = found;
        self.leaves[leaf].advance(call.now, slot);
        if found.is_ok() {
            return Some((At { leaf, slot }, false));
        }
        if !room.count_swarm() {
            return None;
        }
        self.changing(leaf, |leaf| {
            let latest = leaf.base().stamp(call.now);
            leaf.insert(slot, call.key, Held::Nobody(Nobody::new(0, latest, false)));
        });
        Some((At { leaf, slot }, true))
    }

    /// Adds a peer to a swarm of few. `None` if there are too many for that; the swarm is a large one then,
    /// without it.
    fn add(&mut self, call: &Call<'_>, at: At, role: Role, endpoint: &Endpoint, tick: Tick) -> Option<Place> {
        let section = Section::of(endpoint.family(), role);
        if self.leaves[at.leaf].block_with(at.slot, section) > Leaf::MOST_BLOCK {
            self.promote(call, at);
            return None;
        }
        Some(self.changing(at.leaf, |leaf| {
            leaf.add(at.slot, section, endpoint.as_bytes(), leaf.base().stamp(tick))
        }))
    }

    /// Takes a swarm out.
    fn remove_at(&mut self, at: At) -> (SwarmStats, Population, Option<Box<Large>>) {
        let (stats, population) = (self.stats(at), self.population(at));
        let large = match self.held(at) {
            Held::Large(number) => Some(self.take_large(number)),
            _ => None,
        };
        self.changing(at.leaf, |leaf| leaf.remove(at.slot));
        (stats, population, large)
    }

    /// Removes a swarm and says what was there.
    pub(super) fn remove(&mut self, call: &Call<'_>) -> Option<(SwarmStats, Option<Box<Large>>)> {
        let (stats, population, large) = self.remove_at(self.find(call)?);
        call.shared.totals.remove_swarm(population);
        Some((stats, large))
    }

    fn change_downloaded(&mut self, at: At, change: impl FnOnce(u32) -> u32) {
        match self.held(at) {
            Held::Large(number) => {
                self.changing_large(number, |large| large.downloaded = change(large.downloaded))
            }
            _ => self.changing(at.leaf, |leaf| {
                let (current, changed) = (leaf.downloaded(at.slot), change(leaf.downloaded(at.slot)));
                if changed != current {
                    leaf.set_downloaded(at.slot, changed);
                }
            }),
        }
    }
}

fn stats_of(large: &Large) -> SwarmStats {
    large.population().stats(large.downloaded)
}

#[cfg(test)]
impl Stripe {
    /// What the stripe takes, looked at piece by piece; what is kept in step with that is checked.
    pub(super) fn recount(&self) -> usize {
        assert_eq!(self.untold, 0);
        assert_eq!(self.used, self.leaves.iter().map(Leaf::used).sum());
        let blocks: usize = self.leaves.iter().map(Leaf::capacity).sum();
        let large: usize = self.large.iter().flatten().map(|large| large.recount()).sum();
        self.leaves.capacity() * size_of::<Leaf>() + blocks + size_of_val(&*self.large) + large
    }
}
