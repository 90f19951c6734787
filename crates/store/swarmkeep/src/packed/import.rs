//! Importing a snapshot: records are sorted by where they go, so that neighbours are filled together.
//!
//! In the order of the store that wrote them, each swarm would go to another leaf, none of them in a cache:
//! at 10 million swarms that took 720 ns per swarm. Sorted in groups of four million, with each leaf grown
//! once for all of its swarms, it takes 320 ns.

use std::ops::Range;

use super::{Packed, leaf::Leaf, place::Placed, prefetch::prefetch_lines, reservation::Reservation};
use crate::{PeerRecord, Records, Restored, SwarmRecord, Timestamp, implement::VISITS_PER_HOLD};

/// How far ahead records are prefetched: in sorted order, their bytes lie anywhere.
const AHEAD: usize = 16;
/// Bits of the number of a piece in [`Sorter`], and of the offset of a record in its piece.
const PIECE_BITS: u32 = 7;
const OFFSET_BITS: u32 = 24;
/// The most records that are sorted together. Memory for all of them is 32 MiB, of which only the used part
/// takes pages. glibc maps this much separately, and so returns it: it keeps smaller allocations.
const MOST_SORTED: usize = 1 << 22;
/// The most splits in one hold of the lock. After a sweep has turned large swarms into full leaves, each new
/// swarm splits some.
const SPLITS_PER_HOLD: usize = 16;

/// Records in the order of where they go. A word consists of the shard, the first bits of the key, and where
/// the record is: its piece and its offset there.
struct Sorter<'a> {
    order: Vec<u64>,
    /// Pieces of 2^[`OFFSET_BITS`] bytes: their [`Records`], and their starts in it.
    pieces: Vec<(&'a Records, usize)>,
}

/// Swarms of one shard, as many as one hold of its lock may visit.
#[derive(Default)]
struct Run {
    swarms: Vec<Swarm>,
    /// The peers of all of these swarms.
    peers: Vec<PeerRecord>,
}

/// A swarm, and the range of its peers.
struct Swarm {
    placed: Placed,
    downloaded: u32,
    peers: Range<usize>,
}

impl Packed {
    pub(super) fn import_records(&self, records: &[Records], now: Timestamp) -> Restored {
        let swarms: usize = records.iter().map(|records| records.swarms() as usize).sum();
        let mut sorter = Sorter { order: Vec::with_capacity(swarms.min(MOST_SORTED)), pieces: Vec::new() };
        let (mut restored, mut run) = (Restored::default(), Run::default());
        for records in records {
            // The start of the last piece, if it is one of these records.
            let mut start = None;
            for (at, record) in records.iter_from(0) {
                if sorter.order.len() == MOST_SORTED {
                    self.import_sorted(&mut sorter, &mut run, now, &mut restored);
                    start = None;
                }
                if start.is_none_or(|start| at - start >= 1 << OFFSET_BITS) {
                    if sorter.pieces.len() == 1 << PIECE_BITS {
                        self.import_sorted(&mut sorter, &mut run, now, &mut restored);
                    }
                    start = Some(at);
                    sorter.pieces.push((records, at));
                }
                sorter.push(self, &record, at);
            }
        }
        self.import_sorted(&mut sorter, &mut run, now, &mut restored);
        restored
    }

    fn import_sorted(&self, sorter: &mut Sorter<'_>, run: &mut Run, now: Timestamp, restored: &mut Restored) {
        sorter.order.sort_unstable();
        let mut rest = &*sorter.order;
        while let Some(first) = rest.first() {
            let shard = Sorter::shard(*first);
            run.swarms.clear();
            run.peers.clear();
            while run.swarms.len() + run.peers.len() < VISITS_PER_HOLD {
                let Some(word) = rest.first().filter(|word| Sorter::shard(**word) == shard) else { break };
                if let Some(ahead) = rest.get(AHEAD) {
                    let (records, at) = sorter.find(*ahead);
                    prefetch_lines::<2>(&records.as_bytes()[at..]);
                }
                let (records, at) = sorter.find(*word);
                let record = records.iter_from(at).next().expect("there is one").1;
                let placed = self.context.placement.place(&record.info_hash);
                let start = run.peers.len();
                self.living(record.peers(), now, &mut run.peers, restored);
                let peers = start..run.peers.len();
                if !peers.is_empty() || record.downloaded > 0 {
                    run.swarms.push(Swarm { placed, downloaded: record.downloaded, peers });
                }
                rest = &rest[1..];
            }
            self.import_run(shard, run, now, restored);
        }
        // Later shards have freed blocks beside those of earlier ones, so leaves may be in sparse pages
        // again. At 10 million swarms, that would cost 1.4 bytes per swarm.
        for run in sorter.order.chunk_by(|a, b| Sorter::shard(*a) == Sorter::shard(*b)) {
            for part in run.chunks(VISITS_PER_HOLD) {
                let mut locked = self.lock(Sorter::shard(part[0]));
                part.iter().for_each(|word| locked.move_if_sparse(Sorter::order(*word)));
            }
        }
        sorter.order.clear();
        sorter.pieces.clear();
    }

    fn import_run(&self, shard: usize, run: &Run, now: Timestamp, restored: &mut Restored) {
        let (tick, mut reservation) =
            (self.context.clock.tick(now), Reservation::without_slack(&self.context));
        let home = self.context.placement.home();
        let sized = || {
            run.swarms.iter().map(|Swarm { placed, peers, .. }| {
                (placed.key, Leaf::bytes_of(home, &run.peers[peers.clone()]))
            })
        };
        // If bytes are limited, nothing is grown ahead: there may be room only for the next swarm.
        let is_free = self.context.bounds.bytes == u64::MAX;
        let mut locked = self.lock(shard);
        let (mut in_leaf, mut leaves) = (0, locked.leaves());
        for (nth, Swarm { placed, downloaded, peers }) in run.swarms.iter().enumerate() {
            let op = self.operation(placed, tick);
            if locked.leaves().saturating_sub(leaves) > SPLITS_PER_HOLD {
                locked.settle(&mut reservation);
                reservation.report();
                drop(locked);
                locked = self.lock(shard);
                leaves = locked.leaves();
            }
            if is_free && nth == 0 {
                locked.split_for(&op, sized().map(|(_, bytes)| bytes).sum());
            }
            if is_free && in_leaf == 0 {
                in_leaf = locked.grow_for(&op, sized().skip(nth));
            }
            for (nth, hold) in holds(&run.peers[peers.clone()], *downloaded).enumerate() {
                if nth > 0 {
                    reservation.report();
                    drop(locked);
                    locked = self.lock(shard);
                }
                locked.restore(&op, hold, *downloaded, &mut reservation, restored);
            }
            in_leaf = in_leaf.saturating_sub(1);
            if in_leaf == 0 {
                locked.compact(&op);
            }
        }
        locked.settle(&mut reservation);
        reservation.report();
    }

    /// Appends the peers that are within their lifetime to `living`, with times of at most `now`.
    pub(super) fn living(
        &self,
        peers: impl Iterator<Item = PeerRecord>,
        now: Timestamp,
        living: &mut Vec<PeerRecord>,
        restored: &mut Restored,
    ) {
        let oldest = now.saturating_sub(self.lifetime_secs);
        for peer in peers {
            if peer.last_announce < oldest {
                restored.expired += 1;
            } else {
                living.push(PeerRecord { last_announce: peer.last_announce.min(now), ..peer });
            }
        }
    }
}

/// Divides peers into parts for one hold of the lock each. Without peers, there is one empty part if
/// downloads are to be restored.
pub(super) fn holds(peers: &[PeerRecord], downloaded: u32) -> impl Iterator<Item = &[PeerRecord]> {
    peers.chunks(VISITS_PER_HOLD).chain((peers.is_empty() && downloaded > 0).then_some(peers))
}

impl<'a> Sorter<'a> {
    /// Adds a record of the last piece, which is at `at` in its [`Records`].
    fn push(&mut self, store: &Packed, record: &SwarmRecord<'_>, at: usize) {
        let Placed { shard, key } = store.context.placement.place(&record.info_hash);
        let within = key.head() << store.context.placement.home().depth >> (PIECE_BITS + OFFSET_BITS + 16);
        let piece = self.pieces.len() - 1;
        let place = piece << OFFSET_BITS | (at - self.pieces[piece].1);
        self.order.push((shard as u64) << 48 | within << (PIECE_BITS + OFFSET_BITS) | place as u64);
    }

    const fn shard(word: u64) -> usize {
        (word >> 48) as usize
    }

    /// The first bits of the key, without the bits that all keys of a shard share.
    const fn order(word: u64) -> u64 {
        word << 16
    }

    /// The record of a word: its [`Records`], and its position there.
    fn find(&self, word: u64) -> (&'a Records, usize) {
        let piece = word >> OFFSET_BITS & ((1 << PIECE_BITS) - 1);
        let (records, start) = self.pieces[piece as usize];
        (records, start + (word & ((1 << OFFSET_BITS) - 1)) as usize)
    }
}
