//! The shape of a shard: leaves split and merge, swarms become large and small again, and their memory is
//! counted.

use std::mem;

use super::{Operation, Shard, SwarmLocation};
use crate::packed::{
    bounds::AFTER_SPLITS,
    hash::Key,
    large::{LargeSwarm, block_bytes},
    leaf::{
        Leaf,
        slot::{NoPeers, Prefix, SlotContent},
    },
    linear,
    place::LeafLocation,
    reservation::{NoRoom, Reservation},
};

/// Mean bytes per leaf, above which one splits and below which two merge. Around 1 KiB a look-up stays
/// within seven cache lines, a join moves bytes for less than a microsecond, and the header of the leaf is
/// half a byte per swarm.
const SPLIT_ABOVE: usize = 1024;
const MERGE_BELOW: usize = 512;
/// Merges for each leaf that a sweep passes. They are enough to be done within one pass, however many swarms
/// have gone.
const MERGES_PER_LEAF: usize = 2;
/// The most splits that one new swarm makes, after a sweep has filled leaves with swarms that were large.
const MAX_SPLITS: usize = 4;
/// The most spare headers of leaves, and spare numbers of large swarms, that a shard keeps.
const MAX_SPARE: usize = 64;

impl Shard {
    /// Changes a leaf, and updates the byte counts.
    pub(super) fn changing<R>(&mut self, leaf: usize, change: impl FnOnce(&mut Leaf) -> R) -> R {
        let leaf = &mut self.leaves[leaf];
        let (used, capacity) = (leaf.used(), leaf.capacity());
        let result = change(leaf);
        self.used = self.used + leaf.used() - used;
        if leaf.capacity() != capacity {
            let now = leaf.capacity();
            self.count(capacity, now);
            self.tidy();
        }
        result
    }

    /// A leaf that has moved has left a gap. So up to eight other leaves, as good as random ones, may move
    /// out of sparse pages.
    fn tidy(&mut self) {
        let leaves = self.leaves.len();
        let first = self.used % leaves;
        for other in first..(first + 8).min(leaves) {
            self.leaves[other].move_if_sparse();
        }
    }

    /// Changes a large swarm, and updates the byte counts.
    pub(super) fn changing_large<R>(&mut self, number: u32, change: impl FnOnce(&mut LargeSwarm) -> R) -> R {
        let large = self.large[number as usize].as_mut().expect("a number in a slot is one of a swarm");
        let before = large.bytes();
        let result = change(large);
        let now = large.bytes();
        self.count(before, now);
        result
    }

    /// Makes a swarm of few peers a large one, with tables of its own.
    pub(super) fn promote(&mut self, op: &Operation<'_>, at: SwarmLocation) {
        let leaf = &self.leaves[at.leaf];
        let mut large = Box::new(LargeSwarm::new(leaf.downloaded(at.slot), op.now));
        for (section, endpoint, stamp) in leaf.peers(at.slot) {
            let (hash, tick) = (&op.context.hash, leaf.base().tick(stamp));
            large.insert(hash, &section.endpoint(endpoint), section.role(), tick, op.now);
        }
        self.count(0, large.bytes());
        let number = self.large.iter().rposition(Option::is_none).unwrap_or_else(|| self.grow_large());
        self.large[number] = Some(large);
        self.changing(at.leaf, |leaf| leaf.make_large(at.slot, number as u32));
    }

    /// Adds numbers for large swarms. Returns the last one: they are given out from the end.
    fn grow_large(&mut self) -> usize {
        let before = self.large.len();
        let mut large = mem::take(&mut self.large).into_vec();
        large.resize_with(before + (1 + before / 8).min(MAX_SPARE), || None);
        self.large = large.into_boxed_slice();
        self.count(before * size_of::<Option<Box<LargeSwarm>>>(), size_of_val(&*self.large));
        self.large.len() - 1
    }

    pub(super) fn take_large(&mut self, number: u32) -> Box<LargeSwarm> {
        let large = self.large[number as usize].take().expect("a number in a slot is one of a swarm");
        self.count(large.bytes(), 0);
        if self.large.iter().all(Option::is_none) {
            self.count(size_of_val(&*self.large), 0);
            self.large = Box::default();
        }
        large
    }

    /// Moves a large swarm that has shrunk to a few peers back into its leaf, if the limit on bytes allows
    /// it.
    pub(super) fn demote_if_small(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        number: u32,
        reservation: &mut Reservation<'_>,
    ) {
        let (peers, freed) = (block_bytes(self.large(number).population()), self.large(number).bytes());
        // Without peers, there is no block.
        let block = if peers == 0 { 0 } else { peers + size_of::<u32>() };
        let growth = self.leaves[at.leaf].growth_for(block) as i64 - freed as i64;
        if peers > Leaf::MAX_BLOCK / 8 || !self.fits(growth, 0, reservation) {
            return;
        }
        let large = self.take_large(number);
        self.changing(at.leaf, |leaf| {
            leaf.advance(op.now, at.slot);
            let latest = leaf.base().stamp(large.latest);
            leaf.set(at.slot, SlotContent::Empty(NoPeers::new(0, latest)));
            for (section, endpoint, tick) in large.peers() {
                leaf.add(at.slot, section, endpoint, leaf.base().stamp(tick));
            }
            leaf.set_downloaded(at.slot, large.downloaded);
        });
    }

    /// Splits leaves before a swarm is added, so that its leaf has room. Returns the location of that leaf.
    pub(super) fn split_if_full(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
    ) -> Result<LeafLocation, NoRoom> {
        if self.leaves.is_empty() {
            self.push_leaf(Leaf::new(op.now));
        }
        for _ in 0..MAX_SPLITS {
            if self.used <= SPLIT_ABOVE * self.leaves.len() || !self.split(op.home, Some(reservation)) {
                break;
            }
        }
        let mut location = self.locate_leaf(op);
        while self.leaves[location.leaf].used() > Leaf::MAX_BYTES {
            // Keys are uniform. Splits do not separate keys that begin with the same bits.
            if self.used < MERGE_BELOW * self.leaves.len() {
                return Err(NoRoom::Crowded);
            }
            if !self.split(op.home, Some(reservation)) {
                return Err(NoRoom::BYTES);
            }
            location = self.locate_leaf(op);
        }
        Ok(location)
    }

    /// Splits leaves ahead of swarms and peers of `bytes` bytes, which would otherwise split them one by one
    /// with more to move each time. The number of splits is limited: leaves that a sweep has filled are split
    /// over several holds.
    pub(in crate::packed) fn split_for(&mut self, op: &Operation<'_>, bytes: usize) {
        if self.leaves.is_empty() {
            self.push_leaf(Leaf::new(op.now));
        }
        for _ in 0..MAX_SPLITS + bytes / SPLIT_ABOVE {
            if self.used + bytes <= SPLIT_ABOVE * self.leaves.len() {
                break;
            }
            self.split(op.home, None);
        }
    }

    /// Makes the leaf of the operation as large as it will be when the next swarms have come. `next` yields
    /// their keys, in ascending order, and their bytes. Returns how many of them belong in this leaf.
    pub(in crate::packed) fn grow_for(
        &mut self,
        op: &Operation<'_>,
        next: impl Iterator<Item = (Key, usize)>,
    ) -> usize {
        if self.leaves.is_empty() {
            return 0;
        }
        let range = linear::range_of(op.placed.key.head() << op.home.depth, self.leaves.len());
        let is_here = |key: &Key| range.end.is_none_or(|end| key.head() << op.home.depth < end);
        let (count, bytes) = next
            .take_while(|(key, _)| is_here(key))
            .fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
        self.changing(range.bucket, |leaf| leaf.grow(bytes));
        count
    }

    /// Returns the spare memory of the leaf of a swarm. Where there was no room, the leaf may not exist.
    pub(in crate::packed) fn compact(&mut self, op: &Operation<'_>) {
        let leaf = self.locate_leaf(op).leaf;
        if leaf < self.leaves.len() {
            self.changing(leaf, Leaf::compact);
        }
    }

    /// Moves the leaf of a swarm out of a sparse page. `order` begins with the key of the swarm, without the
    /// bits that all keys of the shard share.
    pub(in crate::packed) fn move_if_sparse(&mut self, order: u64) {
        let leaf = linear::range_of(order, self.leaves.len()).bucket;
        if let Some(leaf) = self.leaves.get_mut(leaf) {
            leaf.move_if_sparse();
        }
    }

    /// Whether `growth` more bytes fit, and `more` for the rest of the operation.
    pub(super) fn fits(&self, growth: i64, more: usize, reservation: &mut Reservation<'_>) -> bool {
        let total = self.unreported + growth + more as i64;
        reservation.reserve(usize::try_from(total).unwrap_or(0))
    }

    /// Splits the next leaf in turn, if the reservation covers the bytes of the two leaves and of the rest of
    /// the announce. A leaf of 13 KiB may take 3 KiB more as two. Without a reservation it is split in any
    /// case. Returns whether it was.
    fn split(&mut self, home: Prefix, reservation: Option<&mut Reservation<'_>>) -> bool {
        let old = linear::buddy(self.leaves.len());
        let prefix = self.prefix(home, old);
        let fits = reservation.is_none_or(|reservation| {
            let headers = self.headers_to_add() * size_of::<Leaf>();
            let growth = self.leaves[old].growth_of_split(prefix) + headers as i64;
            self.fits(growth, AFTER_SPLITS, reservation)
        });
        if fits {
            let [lower, upper] = self.leaves[old].split(prefix);
            self.take_leaf(old);
            self.put_leaf(old, lower);
            self.push_leaf(upper);
        }
        fits
    }

    /// Makes a few merges if the shard has become sparse. The leaves that many splits have made are merged
    /// in as many steps.
    pub(super) fn merge_some(&mut self, home: Prefix, reservation: &mut Reservation<'_>) {
        for _ in 0..MERGES_PER_LEAF {
            let newest = self.leaves.len().saturating_sub(1);
            if newest == 0 {
                if self.leaves.first().is_some_and(|leaf| leaf.swarms() == 0) {
                    self.pop_leaf();
                }
                return;
            }
            let old = linear::buddy(newest);
            let together = self.leaves[newest].used() + self.leaves[old].used();
            if self.used >= MERGE_BELOW * self.leaves.len() || together > Leaf::MAX_BYTES {
                return;
            }
            let [low, high] = [old, newest].map(|leaf| self.prefix(home, leaf));
            let joined = home.extended(linear::range(old, newest));
            let parts = [(low, &self.leaves[old]), (high, &self.leaves[newest])];
            // Sizes of blocks are far apart above 4 KiB, and a slot may become a byte longer.
            if !self.fits(Leaf::growth_of_merge(joined, parts), 0, reservation) {
                return;
            }
            let [mut lower, mut upper] = [self.take_leaf(old), self.pop_leaf()];
            self.put_leaf(old, Leaf::merge(joined, (low, &mut lower), (high, &mut upper)));
        }
    }

    fn take_leaf(&mut self, leaf: usize) -> Leaf {
        let leaf = mem::take(&mut self.leaves[leaf]);
        self.used -= leaf.used();
        self.count(leaf.capacity(), 0);
        leaf
    }

    fn put_leaf(&mut self, at: usize, leaf: Leaf) {
        self.used += leaf.used();
        self.count(0, leaf.capacity());
        self.leaves[at] = leaf;
    }

    fn push_leaf(&mut self, leaf: Leaf) {
        let capacity = self.leaves.capacity();
        self.leaves.reserve_exact(self.headers_to_add());
        self.count(capacity * size_of::<Leaf>(), self.leaves.capacity() * size_of::<Leaf>());
        self.leaves.push(Leaf::default());
        self.put_leaf(self.leaves.len() - 1, leaf);
    }

    /// The number of headers by which the directory grows for the next leaf. It grows by an eighth and does
    /// not double, since a spare header takes as many bytes as half a swarm.
    fn headers_to_add(&self) -> usize {
        let capacity = self.leaves.capacity();
        if self.leaves.len() == capacity { (1 + capacity / 8).min(MAX_SPARE) } else { 0 }
    }

    fn pop_leaf(&mut self) -> Leaf {
        let leaf = self.take_leaf(self.leaves.len() - 1);
        self.leaves.pop();
        let capacity = self.leaves.capacity();
        if self.leaves.len() <= capacity / 2 {
            self.leaves.shrink_to_fit();
        }
        self.count(capacity * size_of::<Leaf>(), self.leaves.capacity() * size_of::<Leaf>());
        leaf
    }
}
