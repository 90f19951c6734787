//! Expiry in a leaf.

use super::{
    Leaf,
    slot::{FewPeers, NoPeers, Section, Slot, SlotContent, population_of},
};
use crate::{Family, Retention, packed::clock::Tick, totals::Population};

/// The result of a sweep in a leaf.
#[derive(Debug)]
pub(in crate::packed) struct LeafSweep {
    /// The slot where it stopped.
    pub(in crate::packed) next: Slot,
    /// One per swarm and one per peer.
    pub(in crate::packed) visits: usize,
    pub(in crate::packed) gone: Population,
    pub(in crate::packed) swarms_removed: u64,
}

impl Leaf {
    /// Passes the swarms from a slot on that a sweep leaves as they are, until it has made `limit` visits.
    /// Stops at a large swarm. Returns the slot where it stopped, and the visits: one per swarm and per peer.
    pub(in crate::packed) fn pass_unchanged(
        &self,
        from: Slot,
        oldest: Tick,
        policy: Retention,
        limit: usize,
    ) -> (Slot, usize) {
        let first_alive = self.base.first_alive(oldest);
        let expired = |stamp: u8| u16::from(stamp) < first_alive;
        let (slots, blocks) = self.block[..self.used()].split_at(self.swarms_end(from));
        let (mut slot, mut visits) = (from, 0);
        for bytes in slots[from.index * from.stride..].chunks_exact(from.stride) {
            if visits >= limit {
                break;
            }
            let content = bytes.last_chunk().expect("slots are longer");
            let (peers, changes) = match SlotContent::decode(u64::from_le_bytes(*content)) {
                SlotContent::Empty(empty) => (0, empty.is_idle(policy)),
                SlotContent::One(one) => (1, expired(one.stamp())),
                SlotContent::Few(few) => {
                    let (peers, end) = (few.peers(), usize::from(few.offset()) + few.len());
                    (peers, blocks[end - peers..end].iter().any(|&stamp| expired(stamp)))
                }
                SlotContent::Large(_) => (0, true),
            };
            if changes {
                break;
            }
            visits += 1 + peers;
            slot = slot.next();
        }
        (slot, visits)
    }

    /// Removes expired peers, and the swarms without peers that `policy` does not keep, from a slot on, until
    /// it has made `limit` visits. Stops at a large swarm. Writes the leaf once, however much goes.
    pub(in crate::packed) fn expire(
        &mut self,
        from: Slot,
        oldest: Tick,
        policy: Retention,
        limit: usize,
    ) -> LeafSweep {
        let first_alive = self.base.first_alive(oldest);
        let is_alive = |stamp: u8| u16::from(stamp) >= first_alive;
        let mut done = LeafSweep { next: from, visits: 0, gone: Population::default(), swarms_removed: 0 };
        let mut blocks = Vec::with_capacity(self.used() - self.swarms_end(from));
        let (mut to, mut stopped) = (Slot { index: 0, ..from }, false);
        for index in 0..self.swarms() {
            let slot = Slot { index, ..from };
            let (mut content, block_at) = (self.content(slot), blocks.len());
            stopped |=
                index >= from.index && (done.visits >= limit || matches!(content, SlotContent::Large(_)));
            if let SlotContent::Few(few) = content {
                blocks.extend_from_slice(self.block(slot, few));
                content = SlotContent::Few(few.with_offset(block_at as u16));
            }
            if index >= from.index && !stopped {
                content = expire(content, &mut blocks, is_alive, &mut done);
                match content {
                    SlotContent::Empty(empty) if empty.is_idle(policy) => {
                        done.swarms_removed += 1;
                        done.gone += Population::downloads(empty.downloaded());
                        continue;
                    }
                    _ => done.next = to.next(),
                }
            }
            self.block.copy_within(slot.start()..slot.start() + slot.stride, to.start());
            if !matches!(content, SlotContent::Large(_)) {
                self.set(to, content);
            }
            to = to.next();
        }
        self.count = to.index as u16;
        self.used = (to.start() + blocks.len()) as u16;
        self.block[to.start()..][..blocks.len()].copy_from_slice(&blocks);
        done
    }
}

/// Expires the peers of a swarm. Its block is the end of `blocks`, and is removed if the swarm does not need
/// it any more.
fn expire(
    content: SlotContent,
    blocks: &mut Vec<u8>,
    is_alive: impl Fn(u8) -> bool,
    done: &mut LeafSweep,
) -> SlotContent {
    done.visits += 1;
    match content {
        SlotContent::One(one) => {
            done.visits += 1;
            if is_alive(one.stamp()) {
                return content;
            }
            done.gone += Population::one(Family::V4, one.role());
            SlotContent::Empty(NoPeers::new(one.downloaded(), one.stamp()))
        }
        SlotContent::Few(few) => {
            done.visits += few.peers();
            let at = few.offset().into();
            let latest = blocks[at + few.stamps()..].iter().copied().max().unwrap_or(0);
            let kept = retain(few, blocks, is_alive);
            let (before, after) = (few.counts(), kept.counts());
            done.gone += population_of([0, 1, 2, 3].map(|section| before[section] - after[section]));
            match kept.simplified(&blocks[at..], latest) {
                Some(simple) => {
                    blocks.truncate(at);
                    simple
                }
                None => SlotContent::Few(kept),
            }
        }
        SlotContent::Empty(_) | SlotContent::Large(_) => content,
    }
}

/// Keeps the peers that are alive in the block at the end of `blocks`.
fn retain(few: FewPeers, blocks: &mut Vec<u8>, is_alive: impl Fn(u8) -> bool) -> FewPeers {
    let at = usize::from(few.offset());
    let stamps = at + few.stamps();
    let (mut counts, mut peer) = ([0; 4], 0);
    let mut end = at + few.end(0);
    for section in Section::ALL {
        for index in 0..few.count(section) {
            if is_alive(blocks[stamps + peer]) {
                let endpoint = at + few.start(section) + index * section.width();
                blocks.copy_within(endpoint..endpoint + section.width(), end);
                end += section.width();
                counts[section.0] += 1;
            }
            peer += 1;
        }
    }
    for stamp in stamps..stamps + peer {
        if is_alive(blocks[stamp]) {
            blocks[end] = blocks[stamp];
            end += 1;
        }
    }
    blocks.truncate(end);
    few.with_counts(counts)
}
