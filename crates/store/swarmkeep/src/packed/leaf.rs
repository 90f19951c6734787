//! A leaf: some dozens of swarms in one run of bytes.
//!
//! First come the **slots**, one per swarm, sorted by key: the part of the key that the prefix of the leaf
//! does not give, then eight bytes of [`SlotContent`]. After them come the **blocks**: the peers of swarms
//! for which a slot has no room. Nothing lies between them, so a leaf wastes only the rest of its last 16
//! bytes. A leaf is a few cache lines too small for an index to pay.

mod expire;
mod few;
mod shape;
pub(super) mod slot;
#[cfg(test)]
mod tests;

use std::mem;

use self::slot::{CONTENT_LEN, FewPeers, KEY_LEN, PROVEN, Prefix, Slot, SlotContent};
use super::{
    arena::Block,
    clock::{Base, Tick, aged},
    hash::Key,
    prefetch::{LINE, prefetch_lines},
};
use crate::announce::arrays;

#[derive(Debug, Default)]
pub(super) struct Leaf {
    block: Block,
    count: u16,
    used: u16,
    base: Base,
}

/// The slots that a search looks at first.
const NEAR: usize = 8;

impl Leaf {
    /// No leaf grows beyond this size: its shard splits it first.
    pub(super) const MAX_BYTES: usize = 48 << 10;

    /// The largest block: 146 IPv4 peers, or 53 of IPv6. A swarm that needs more gets tables. In tables,
    /// swarms of 100 IPv4 peers take 13 bytes per peer instead of 8, and an announce takes twice as long.
    pub(super) const MAX_BLOCK: usize = 1024;

    pub(super) fn new(now: Tick) -> Self {
        Self { base: Base::new(now), ..Self::default() }
    }

    pub(super) fn swarms(&self) -> usize {
        self.count.into()
    }

    pub(super) fn used(&self) -> usize {
        self.used.into()
    }

    pub(super) fn capacity(&self) -> usize {
        self.block.capacity()
    }

    pub(super) const fn base(&self) -> Base {
        self.base
    }

    /// The slots. A prefix of another time gives other bytes.
    #[inline]
    pub(super) fn slots(&self, prefix: Prefix) -> &[u8] {
        self.block.get(..self.swarms() * prefix.stride()).unwrap_or_default()
    }

    /// Prefetches a cache line at `at` and each further one before `end`. Returns where to go on.
    #[inline]
    pub(super) fn prefetch(&self, mut at: usize, end: usize) -> usize {
        while at < end {
            prefetch_lines::<1>(self.block.get(at..).unwrap_or_default());
            at += LINE;
        }
        at
    }

    /// The slot of a key, if it has the index of a slot that was found at an earlier time.
    #[inline]
    pub(super) fn find_at(&self, prefix: Prefix, earlier: Slot, key: &Key) -> Option<Slot> {
        let slot = Slot { stride: prefix.stride(), ..earlier };
        let rest = slot.stride - CONTENT_LEN;
        let same = |at: usize| {
            let word: Option<&[u8; 8]> = self.block[slot.start() + at..].first_chunk();
            word == key.0[KEY_LEN - rest + at..].first_chunk()
        };
        (slot.index < self.swarms() && same(0) && same(8) && same(rest - 8)).then_some(slot)
    }

    /// Returns the slot of a key, or the slot at which it would be inserted.
    #[inline]
    pub(super) fn find(&self, prefix: Prefix, key: &Key) -> Result<Slot, Slot> {
        match prefix.dropped() {
            // When the compiler knows the length of a slot, a probe is a comparison of two words.
            1 => self.find_by::<27, 19>(prefix, key),
            2 => self.find_by::<26, 18>(prefix, key),
            0 => self.find_by::<28, 20>(prefix, key),
            3 => self.find_by::<25, 17>(prefix, key),
            _ => unreachable!("no store has 2^32 leaves"),
        }
    }

    /// The same for slots of `STRIDE` bytes, of which the first `REST` are from the key.
    #[inline]
    fn find_by<const STRIDE: usize, const REST: usize>(
        &self,
        prefix: Prefix,
        key: &Key,
    ) -> Result<Slot, Slot> {
        let slots = arrays::<STRIDE>(&self.block[..self.swarms() * STRIDE]);
        let word = |slot: &[u8; STRIDE]| u64::from_be_bytes(*slot.first_chunk().expect("slots are longer"));
        let rest: &[u8; REST] = key.0.last_chunk().expect("a part of a key");
        let wanted = key.word(KEY_LEN - REST);
        // Keys are uniform, so this estimate is wrong by a few slots at most.
        let within = wanted << (prefix.depth % 8);
        let estimate = ((u128::from(within) * u128::from(self.count)) >> 64) as usize;
        // Most searches end among a few slots around the estimate. How many of these are before the
        // key is counted without a branch: none could be predicted.
        let from = estimate.saturating_sub(NEAR / 2).min(slots.len().saturating_sub(NEAR));
        let near = slots[from..].first_chunk::<NEAR>();
        let lower = near.map_or(0, |near| near.iter().map(|slot| usize::from(word(slot) < wanted)).sum());
        let mut index = from + lower;
        while lower == 0 && index > 0 && slots.get(index - 1).is_some_and(|slot| word(slot) >= wanted) {
            index -= 1;
        }
        // Two keys with the same first word are met about once in 2^50 searches.
        while let Some(slot) = slots.get(index) {
            if word(slot) >= wanted {
                let other: &[u8; REST] = slot.first_chunk().expect("slots are longer");
                if is_same(other, rest) {
                    return Ok(Slot { index, stride: STRIDE });
                }
                if other > rest {
                    break;
                }
            }
            index += 1;
        }
        Err(Slot { index, stride: STRIDE })
    }

    pub(super) const fn first(prefix: Prefix) -> Slot {
        Slot { index: 0, stride: prefix.stride() }
    }

    /// The key of a slot.
    pub(super) fn key(&self, prefix: Prefix, slot: Slot) -> Key {
        prefix.complete(&self.block[slot.index * slot.stride..slot.content_at()])
    }

    #[inline]
    pub(super) fn content(&self, slot: Slot) -> SlotContent {
        let word = self.block[slot.content_at()..].first_chunk().expect("slots lie within the leaf");
        SlotContent::decode(u64::from_le_bytes(*word))
    }

    fn put(&mut self, slot: Slot, content: SlotContent) {
        self.block[slot.content_at()..][..CONTENT_LEN].copy_from_slice(&content.encode().to_le_bytes());
    }

    /// Changes the content of a slot. A swarm that is [proven](slot::PROVEN) stays so.
    #[inline]
    pub(super) fn set(&mut self, slot: Slot, content: SlotContent) {
        let word = self.block[slot.content_at()..].first_chunk_mut().expect("slots lie within the leaf");
        *word = (content.encode() | u64::from_le_bytes(*word) & PROVEN).to_le_bytes();
    }

    /// Changes the stamp of the only peer of a swarm. Returns the earlier one.
    #[inline]
    pub(super) fn refresh_only(&mut self, slot: Slot, stamp: u8) -> u8 {
        mem::replace(&mut self.block[slot.stamp_at()], stamp)
    }

    /// Inserts a swarm at the slot that [`find`](Self::find) returned for its key.
    pub(super) fn insert(&mut self, slot: Slot, key: &Key, content: SlotContent) {
        let at = slot.index * slot.stride;
        self.open(at, slot.stride);
        let rest = KEY_LEN + CONTENT_LEN - slot.stride;
        self.block[at..slot.content_at()].copy_from_slice(&key.0[rest..]);
        self.put(slot, content);
        self.count += 1;
    }

    /// Removes a swarm and its block.
    pub(super) fn remove(&mut self, slot: Slot) {
        if let SlotContent::Few(few) = self.content(slot) {
            self.close_block(slot, few);
        }
        self.close(slot.index * slot.stride, slot.stride);
        self.count -= 1;
    }

    /// Rebases all stamps so that `now` can be encoded. `any` is any slot of the leaf.
    #[inline]
    pub(super) fn advance(&mut self, now: Tick, any: Slot) {
        let by = self.base.advance(now);
        if by > 0 {
            self.age(by, any);
        }
    }

    #[cold]
    fn age(&mut self, by: u32, any: Slot) {
        let mut slot = Slot { index: 0, ..any };
        while slot.index < self.swarms() {
            match self.content(slot) {
                SlotContent::Empty(_) | SlotContent::One(_) => {
                    let stamp = &mut self.block[slot.stamp_at()];
                    *stamp = aged(*stamp, by);
                }
                SlotContent::Few(few) => {
                    let start = self.start(slot, few);
                    for stamp in &mut self.block[start + few.stamps()..start + few.len()] {
                        *stamp = aged(*stamp, by);
                    }
                }
                SlotContent::Large(_) => {}
            }
            slot = slot.next();
        }
    }

    // --- Bytes. ---

    fn swarms_end(&self, slot: Slot) -> usize {
        self.swarms() * slot.stride
    }

    /// The position of the block of a swarm.
    fn start(&self, slot: Slot, few: FewPeers) -> usize {
        self.swarms_end(slot) + usize::from(few.offset())
    }

    /// Adjusts the offsets of all blocks after a block at offset `behind` that has grown by `by` bytes.
    fn shift_blocks(&mut self, slot: Slot, behind: u16, by: i16) {
        let stride = slot.stride;
        let end = self.swarms_end(slot);
        for slot in self.block[..end].chunks_exact_mut(stride) {
            let content = slot.last_chunk_mut::<CONTENT_LEN>().expect("slots are longer");
            if let SlotContent::Few(few) = SlotContent::decode(u64::from_le_bytes(*content)) {
                if few.offset() > behind {
                    *content = few.with_offset(few.offset().wrapping_add_signed(by)).0.to_le_bytes();
                }
            }
        }
    }

    /// Makes a gap of `bytes` before `at`.
    fn open(&mut self, at: usize, bytes: usize) {
        self.reserve(bytes);
        let used = self.used();
        self.block.copy_within(at..used, at + bytes);
        self.used += bytes as u16;
    }

    /// Closes the gap of `bytes` after `at`.
    fn close(&mut self, at: usize, bytes: usize) {
        let used = self.used();
        self.block.copy_within(at + bytes..used, at);
        self.used -= bytes as u16;
        // Keeps room to grow: a swarm that comes and goes must not move its leaf each time.
        if Block::capacity_for(self.used() + self.used() / 8) < self.capacity() {
            self.resize(self.used());
        }
    }

    fn reserve(&mut self, bytes: usize) {
        let needed = self.used() + bytes;
        if needed > self.capacity() {
            self.resize(needed);
        }
    }

    fn resize(&mut self, capacity: usize) {
        let mut block = Block::with_capacity(capacity);
        block[..self.used()].copy_from_slice(&self.block[..self.used()]);
        self.block = block;
    }

    /// By how much the block would grow for `bytes` more bytes.
    pub(super) fn growth_for(&self, bytes: usize) -> usize {
        Block::capacity_for(self.used() + bytes).saturating_sub(self.capacity())
    }

    /// Makes room for `bytes` more bytes, unless the leaf has to split first.
    pub(super) fn grow(&mut self, bytes: usize) {
        if self.used() + bytes <= Self::MAX_BYTES {
            self.reserve(bytes);
        }
    }

    /// Returns spare memory, and moves out of a sparse page.
    pub(super) fn compact(&mut self) {
        if Block::capacity_for(self.used()) < self.capacity() {
            self.resize(self.used());
        }
        self.block.move_if_sparse();
    }

    /// Moves out of a sparse page.
    pub(super) fn move_if_sparse(&mut self) {
        self.block.move_if_sparse();
    }
}

/// Whether two parts of keys are the same: three comparisons of words instead of a call.
fn is_same<const REST: usize>(a: &[u8; REST], b: &[u8; REST]) -> bool {
    const { assert!(2 * size_of::<u64>() <= REST && REST <= 3 * size_of::<u64>()) }
    let word =
        |part: &[u8; REST], at| u64::from_le_bytes(*part[at..].first_chunk().expect("words are inside"));
    let differ = |at| word(a, at) ^ word(b, at);
    differ(0) | differ(8) | differ(REST - 8) == 0
}
