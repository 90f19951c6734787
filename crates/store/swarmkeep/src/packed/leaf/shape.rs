//! Leaves that split and merge.

use std::ops::Range;

use super::{
    Leaf,
    slot::{Prefix, Slot, SlotContent},
};
use crate::packed::{arena::Block, clock::Base};

impl Leaf {
    /// Divides the swarms by the first bit after the prefix. Swarms with that bit set go to the second leaf.
    pub(in crate::packed) fn split(&self, prefix: Prefix) -> [Self; 2] {
        let bit = 1 << (63 - prefix.depth);
        let lower = Prefix { bits: prefix.bits, depth: prefix.depth + 1 };
        let upper = Prefix { bits: prefix.bits | bit, ..lower };
        let (mut low, mut high) = (0, self.swarms());
        while low < high {
            let middle = low.midpoint(high);
            let slot = Slot { index: middle, stride: prefix.stride() };
            if self.key(prefix, slot).head() & bit == 0 { low = middle + 1 } else { high = middle }
        }
        let part = |to, range| Self::gather(to, self.base, &[(prefix, self, range)]);
        [part(lower, 0..low), part(upper, low..self.swarms())]
    }

    /// Joins two leaves that a split would make.
    pub(in crate::packed) fn merge(
        prefix: Prefix,
        lower: (Prefix, &mut Self),
        upper: (Prefix, &mut Self),
    ) -> Self {
        let bases = [lower.1.base, upper.1.base];
        let parts = [lower, upper].map(|(prefix, leaf)| {
            let by = bases.into_iter().map(|base| leaf.base.advance_to(base)).sum();
            leaf.age(by, Self::first(prefix));
            (prefix, &*leaf, 0..leaf.swarms())
        });
        Self::gather(prefix, parts[0].1.base, &parts)
    }

    /// A leaf of the swarms of some ranges of other leaves, in order and without a spare byte.
    fn gather(prefix: Prefix, base: Base, parts: &[(Prefix, &Self, Range<usize>)]) -> Self {
        let slots = || {
            parts.iter().flat_map(|(from, leaf, range)| {
                let slot = |index| Slot { index, stride: from.stride() };
                range.clone().map(move |index| (*from, *leaf, slot(index)))
            })
        };
        let count = slots().count();
        let blocks: usize = slots()
            .map(|(_, leaf, slot)| if let SlotContent::Few(few) = leaf.content(slot) { few.len() } else { 0 })
            .sum();
        let mut offset = count * prefix.stride();
        let used = offset + blocks;
        let mut leaf =
            Self { block: Block::with_capacity(used), count: count as u16, used: used as u16, base };
        for (to, (from, source, slot)) in slots().enumerate() {
            let key = source.key(from, slot);
            let to = Slot { index: to, stride: prefix.stride() };
            leaf.block[to.index * to.stride..to.content_at()].copy_from_slice(&key.0[prefix.dropped()..]);
            let mut content = source.content(slot);
            if let SlotContent::Few(few) = &mut content {
                let start = source.start(slot, *few);
                let bytes = &source.block[start..start + few.len()];
                leaf.block[offset..offset + bytes.len()].copy_from_slice(bytes);
                *few = few.with_offset((offset - count * prefix.stride()) as u16);
                offset += bytes.len();
            }
            leaf.set(to, content);
            if source.is_proven(slot) {
                leaf.set_proven(to);
            }
        }
        leaf
    }
}
