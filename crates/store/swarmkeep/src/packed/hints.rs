//! Hints: where the leaves of a shard and their slots were when an announce last looked.
//!
//! They are read without a lock, so an announce prefetches the header and the slots of its leaf at once,
//! and before it takes the lock of its shard. A hint may be out of date: then a prefetch is wasted, and the
//! announce that finds its leaf under the lock corrects the hint.

use std::{iter, sync::OnceLock};

use super::{
    hash::Key,
    leaf::Leaf,
    place::LeafLocation,
    prefetch::{prefetch, prefetch_around, prefetch_at},
};
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Hints for all leaves of a store, 8 bytes per leaf.
pub(super) struct Hints {
    shards: Box<[ShardHint]>,
    rows: Box<[OnceLock<Box<[SlotsHint]>>]>,
}

/// The address of the headers of a shard's leaves, and their number.
#[derive(Default)]
struct ShardHint {
    headers: AtomicUsize,
    leaves: AtomicU32,
}

/// The address of the slots of a leaf times 2^16, plus their length in bytes.
#[derive(Default)]
pub(super) struct SlotsHint(AtomicU64);

/// The leaf of a swarm, by hints, before the lock is held.
#[derive(Clone, Copy, Default)]
pub(super) struct Sight<'a> {
    pub(super) leaf: LeafLocation,
    /// `None` as long as there is no room for it.
    pub(super) slots: Option<&'a SlotsHint>,
}

/// Four rows have the hints of 1, of 2, of 4, … leaves of each shard: so no more than a fifth of all hints
/// is for leaves that do not exist.
const ROWS: usize = 4 * 28;

/// None for a store of one shard: such stores are many, and parts of a larger one. Unit tests are about one
/// shard, and its hints.
const fn rows(shards: usize) -> usize {
    if shards > 1 || cfg!(test) { ROWS } else { 0 }
}

impl Hints {
    pub(super) fn new(shards: usize) -> Self {
        Self {
            shards: iter::repeat_with(ShardHint::default).take(shards).collect(),
            rows: iter::repeat_with(OnceLock::new).take(rows(shards)).collect(),
        }
    }

    /// The bytes of a store's hints before it has any leaf.
    pub(super) const fn fixed_bytes(shards: usize) -> usize {
        shards * size_of::<ShardHint>() + rows(shards) * size_of::<OnceLock<Box<[SlotsHint]>>>()
    }

    /// The number of leaves that a shard had.
    pub(super) fn leaves(&self, shard: usize) -> usize {
        self.shards[shard].leaves.load(Relaxed) as usize
    }

    /// Prefetches the header of a leaf, and the hint for its slots. Returns that hint, if there is room for
    /// it.
    #[inline]
    pub(super) fn prefetch_header(&self, shard: usize, leaf: usize) -> Option<&SlotsHint> {
        let headers = self.shards[shard].headers.load(Relaxed);
        prefetch_at(headers.wrapping_add(leaf * size_of::<Leaf>()));
        let HintPlace { row, width, at } = place(leaf);
        let hint = self.rows.get(row)?.get()?.get(shard * width + at)?;
        prefetch(hint);
        Some(hint)
    }

    /// Corrects the hints for the headers of the leaves of a locked shard.
    #[inline]
    pub(super) fn correct(&self, shard: usize, leaves: &[Leaf]) {
        let ShardHint { headers, leaves: number } = &self.shards[shard];
        // Threads share these lines, so they write nothing that is right already.
        if number.load(Relaxed) != leaves.len() as u32 {
            number.store(leaves.len() as u32, Relaxed);
        }
        if headers.load(Relaxed) != leaves.as_ptr().addr() {
            headers.store(leaves.as_ptr().addr(), Relaxed);
        }
    }

    /// Whether there is room for the hints for a leaf of each shard.
    pub(super) fn has_room(&self, leaf: usize) -> bool {
        self.rows.get(place(leaf).row).is_none_or(|row| row.get().is_some())
    }

    /// The bytes that [`make_room`](Self::make_room) takes for a leaf.
    pub(super) const fn bytes_for(&self, leaf: usize) -> usize {
        self.shards.len() * place(leaf).width * size_of::<SlotsHint>()
    }

    /// Makes room for the hints for a leaf of each shard.
    pub(super) fn make_room(&self, leaf: usize) {
        let hints = iter::repeat_with(SlotsHint::default).take(self.shards.len() * place(leaf).width);
        if let Some(row) = self.rows.get(place(leaf).row) {
            row.get_or_init(|| hints.collect());
        }
    }
}

impl Sight<'_> {
    /// Prefetches the slots among which a search for `key` will look.
    #[inline]
    pub(super) fn prefetch_slots(&self, key: &Key) {
        if let Some(hint) = self.slots {
            let hint = hint.0.load(Relaxed);
            // About how far into the slots the key is, in 2^64ths.
            let within = key.head() << self.leaf.prefix.depth;
            let at = (u128::from(within) * u128::from(hint as u16)) >> 64;
            prefetch_around((hint >> u16::BITS) as usize + at as usize);
        }
    }
}

impl SlotsHint {
    #[inline]
    pub(super) fn correct(&self, slots: &[u8]) {
        let now = (slots.as_ptr().addr() as u64) << u16::BITS | slots.len() as u64;
        if self.0.load(Relaxed) != now {
            self.0.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
impl Hints {
    /// Whether the hints for a shard are right.
    pub(super) fn are_right(&self, shard: usize, leaves: &[Leaf]) -> bool {
        self.shards[shard].headers.load(Relaxed) == leaves.as_ptr().addr()
            && self.leaves(shard) == leaves.len()
    }

    /// The bytes of all hints.
    pub(super) fn recount(&self) -> usize {
        let rows: usize = self.rows.iter().filter_map(OnceLock::get).map(|row| size_of_val(&**row)).sum();
        size_of_val(&*self.shards) + size_of_val(&*self.rows) + rows
    }
}

/// The place of the hints for a leaf: at `at` of `width` hints per shard in row `row`.
struct HintPlace {
    row: usize,
    width: usize,
    at: usize,
}

const fn place(leaf: usize) -> HintPlace {
    let nth = leaf + 4;
    let level = nth.ilog2() - 2;
    let width = 1 << level;
    HintPlace { row: (nth >> level) - 4 + 4 * level as usize, width, at: nth & (width - 1) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_leaf_has_a_place_of_its_own_and_few_places_are_spare() {
        let (mut taken, mut places) = (BTreeSet::new(), 0);
        for leaf in 0..100_000 {
            let HintPlace { row, width, at } = place(leaf);
            assert!(row < ROWS && at < width);
            assert!(taken.insert((row, at)), "leaf {leaf}");
            places += if at == 0 { width } else { 0 };
            assert!(places <= leaf + 1 + leaf / 4, "{places} places for {} leaves", leaf + 1);
        }
        assert!(place(u32::MAX as usize - 4).row >= ROWS, "a store without hints for all leaves works too");
    }
}
