//! Importing a snapshot: records are sorted by where they go, so that neighbours are filled together.
//!
//! In the order of the store that wrote them, each swarm would go to another leaf, none of them in a cache:
//! at 10 million swarms that took 720 ns per swarm. Sorted in groups of a million, with each leaf grown once
//! for all of its swarms, it takes 320 ns.

use std::ops::Range;

use super::{Packed, leaf::Leaf, place::Placed, prefetch::prefetch_lines, reservation::Reservation};
use crate::{PeerRecord, Records, Restored, SwarmRecord, Timestamp, implement::VISITS_PER_HOLD};

/// How far ahead records are prefetched: in sorted order, their bytes lie anywhere.
const AHEAD: usize = 16;
/// Bits of the number of a record in [`Sorted`].
const NUMBER_BITS: u32 = 24;
/// Bits of the offset of a record in its [`Records`]: 2^40 bytes.
const OFFSET_BITS: u32 = 40;
/// The most splits in one hold of the lock. After a sweep has turned large swarms into full leaves, each new
/// swarm splits some.
const SPLITS_PER_HOLD: usize = 16;

/// Records in the order of where they go. A word consists of the stripe, the first bits of the key, and the
/// number of the record.
#[derive(Default)]
struct Sorted {
    order: Vec<u64>,
    /// By the number of a record: the index of its [`Records`] and its offset there, in one word.
    places: Vec<u64>,
}

/// Swarms of one stripe, as many as one hold of its lock may visit.
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
        let (mut restored, mut sorted, mut run) = (Restored::default(), Sorted::default(), Run::default());
        for records in records.chunks(1 << (u64::BITS - OFFSET_BITS)) {
            for (number, some) in records.iter().enumerate() {
                for (at, record) in some.iter_from(0) {
                    if sorted.order.len() == 1 << NUMBER_BITS {
                        self.import_sorted(records, &mut sorted, &mut run, now, &mut restored);
                    }
                    sorted.push(self, &record, (number as u64) << OFFSET_BITS | at as u64);
                }
            }
            self.import_sorted(records, &mut sorted, &mut run, now, &mut restored);
        }
        restored
    }

    fn import_sorted(
        &self,
        records: &[Records],
        sorted: &mut Sorted,
        run: &mut Run,
        now: Timestamp,
        restored: &mut Restored,
    ) {
        sorted.order.sort_unstable();
        let mut rest = &*sorted.order;
        while let Some(first) = rest.first() {
            let stripe = Sorted::stripe(*first);
            run.clear();
            while let Some(word) = rest.first().filter(|word| Sorted::stripe(**word) == stripe)
                && run.visits() < VISITS_PER_HOLD
            {
                if let Some(ahead) = rest.get(AHEAD) {
                    let (of, at) = sorted.place(*ahead);
                    prefetch_lines::<2>(&records[of].as_bytes()[at..]);
                }
                let (of, at) = sorted.place(*word);
                let record = records[of].iter_from(at).next().expect("there is one").1;
                let placed = self.context.placement.place(&record.info_hash);
                let start = run.peers.len();
                self.living(record.peers(), now, &mut run.peers, restored);
                let peers = start..run.peers.len();
                if !peers.is_empty() || record.downloaded > 0 {
                    run.swarms.push(Swarm { placed, downloaded: record.downloaded, peers });
                }
                rest = &rest[1..];
            }
            self.import_run(stripe, run, now, restored);
        }
        sorted.order.clear();
        sorted.places.clear();
    }

    fn import_run(&self, stripe: usize, run: &Run, now: Timestamp, restored: &mut Restored) {
        let (tick, mut reservation) = (self.context.clock.tick(now), Reservation::for_many(&self.context));
        let home = self.context.placement.home();
        let sized = || {
            run.swarms.iter().map(|Swarm { placed, peers, .. }| {
                (placed.key, Leaf::bytes_of(home, &run.peers[peers.clone()]))
            })
        };
        // If bytes are limited, nothing is grown ahead: there may be room only for the next swarm.
        let is_free = self.context.bounds.bytes == u64::MAX;
        let mut locked = self.lock(stripe);
        let (mut in_leaf, mut leaves) = (0, locked.leaves());
        for (nth, Swarm { placed, downloaded, peers }) in run.swarms.iter().enumerate() {
            let op = self.operation_at(placed, tick);
            if locked.leaves().saturating_sub(leaves) > SPLITS_PER_HOLD {
                locked.settle(&mut reservation);
                reservation.report();
                drop(locked);
                locked = self.lock(stripe);
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
                    locked = self.lock(stripe);
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

impl Sorted {
    fn push(&mut self, store: &Packed, record: &SwarmRecord<'_>, place: u64) {
        let Placed { stripe, key } = store.context.placement.place(&record.info_hash);
        let within = key.head() << store.context.placement.home().depth >> (NUMBER_BITS + 16);
        self.order.push((stripe as u64) << 48 | within << NUMBER_BITS | self.places.len() as u64);
        self.places.push(place);
    }

    const fn stripe(word: u64) -> usize {
        (word >> 48) as usize
    }

    fn place(&self, word: u64) -> (usize, usize) {
        let place = self.places[(word & ((1 << NUMBER_BITS) - 1)) as usize];
        ((place >> OFFSET_BITS) as usize, (place & ((1 << OFFSET_BITS) - 1)) as usize)
    }
}

impl Run {
    fn clear(&mut self) {
        self.swarms.clear();
        self.peers.clear();
    }

    fn visits(&self) -> usize {
        self.swarms.len() + self.peers.len()
    }
}
