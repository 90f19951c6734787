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
        self.halves(prefix).map(|(to, range)| Self::gather(to, self.base, &[(prefix, self, range)]))
    }

    /// By how many bytes the two leaves of a split exceed this one.
    pub(in crate::packed) fn growth_of_split(&self, prefix: Prefix) -> i64 {
        let halves = self.halves(prefix);
        let bytes = halves.map(|(to, range)| Block::capacity_for(gathered(to, &[(prefix, self, range)])));
        bytes.iter().sum::<usize>() as i64 - self.capacity() as i64
    }

    fn halves(&self, prefix: Prefix) -> [(Prefix, Range<usize>); 2] {
        let bit = 1 << (63 - prefix.depth);
        let lower = Prefix { bits: prefix.bits, depth: prefix.depth + 1 };
        let upper = Prefix { bits: prefix.bits | bit, ..lower };
        let (mut low, mut high) = (0, self.swarms());
        while low < high {
            let middle = low.midpoint(high);
            let slot = Slot { index: middle, stride: prefix.stride() };
            if self.key(prefix, slot).head() & bit == 0 { low = middle + 1 } else { high = middle }
        }
        [(lower, 0..low), (upper, low..self.swarms())]
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
            leaf.whole(prefix)
        });
        Self::gather(prefix, parts[0].1.base, &parts)
    }

    /// By how many bytes the leaf of a merge exceeds the two leaves.
    pub(in crate::packed) fn growth_of_merge(prefix: Prefix, parts: [(Prefix, &Self); 2]) -> i64 {
        let before: usize = parts.iter().map(|(_, leaf)| leaf.capacity()).sum();
        let parts = parts.map(|(prefix, leaf)| leaf.whole(prefix));
        Block::capacity_for(gathered(prefix, &parts)) as i64 - before as i64
    }

    fn whole(&self, prefix: Prefix) -> Part<'_> {
        (prefix, self, 0..self.swarms())
    }

    /// A leaf of the swarms of some ranges of other leaves, in order and without a spare byte.
    fn gather(prefix: Prefix, base: Base, parts: &[Part<'_>]) -> Self {
        let (count, used) = (slots(parts).count(), gathered(prefix, parts));
        let mut offset = count * prefix.stride();
        let mut leaf =
            Self { block: Block::with_capacity(used), count: count as u16, used: used as u16, base };
        for (to, (from, source, slot)) in slots(parts).enumerate() {
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
            leaf.put(to, content);
            if source.is_proven(slot) {
                leaf.set_proven(to);
            }
        }
        leaf
    }
}

/// The swarms of a range of slots, with the prefix of their leaf.
type Part<'a> = (Prefix, &'a Leaf, Range<usize>);

fn slots<'a>(parts: &[Part<'a>]) -> impl Iterator<Item = (Prefix, &'a Leaf, Slot)> {
    parts.iter().flat_map(|(from, leaf, range)| {
        let (from, leaf) = (*from, *leaf);
        range.clone().map(move |index| (from, leaf, Slot { index, stride: from.stride() }))
    })
}

/// The bytes that a leaf of these swarms uses.
fn gathered(prefix: Prefix, parts: &[Part<'_>]) -> usize {
    let bytes = slots(parts).map(|(_, leaf, slot)| match leaf.content(slot) {
        SlotContent::Few(few) => prefix.stride() + few.len(),
        _ => prefix.stride(),
    });
    bytes.sum()
}
