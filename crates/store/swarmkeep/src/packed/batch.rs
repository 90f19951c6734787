//! Announces and scrapes in batches: the memory that all of them need is prefetched before any of them waits
//! for it.
//!
//! An announce finds its peers through up to six pieces of memory, each of which says where the next one is;
//! with millions of swarms none is in a cache. A batch prefetches each of these pieces for all of its
//! announces before it needs the first, so that they wait together. It executes them one by one and in order.

use std::{
    any::Any,
    array, mem,
    panic::{self, AssertUnwindSafe},
};

use super::{
    Packed,
    clock::Tick,
    hints::Sight,
    large::select::Draws,
    lock::{ExclusiveGuard, SharedGuard},
    place::{LeafLocation, Placed},
    prefetch::prefetch,
    reservation::Reservation,
    shard::{Operation, Shard, SwarmLocation},
};
use crate::{Random, Request, SwarmSummary, Timestamp};

/// The number of announces or scrapes that wait together. A core has dozens of requests for memory in flight.
pub(super) const GROUP: usize = 32;

/// An announce of a batch, and the results of its prefetches before its turn.
#[derive(Clone, Copy, Default)]
struct Probe<'a> {
    placed: Placed,
    seen: Sight<'a>,
    /// Where its swarm was, if it existed.
    found: Option<SwarmLocation>,
    /// Whether its swarm was a large one.
    is_large: bool,
}

/// The shard that is locked, if any. Consecutive announces to one shard, such as those to a hot swarm, take
/// its lock once. Never two locks at once: another thread may take them in the other order.
struct CurrentShard<'a> {
    store: &'a Packed,
    index: usize,
    locked: Locked<'a>,
}

enum Locked<'a> {
    Not,
    Shared(SharedGuard<'a, Shard>),
    Alone(ExclusiveGuard<'a, Shard>),
}

impl CurrentShard<'_> {
    /// The shard, to read.
    #[inline]
    fn shared(&mut self, index: usize) -> &Shard {
        if self.index != index {
            self.release();
            (self.index, self.locked) = (index, Locked::Shared(self.store.shards[index].0.read()));
        }
        match &self.locked {
            Locked::Shared(shard) => shard,
            Locked::Alone(shard) => shard,
            Locked::Not => unreachable!("has an index"),
        }
    }

    /// The same beside other threads that read it, and after threads that wait to change it: nothing that
    /// was found in it before holds.
    #[inline]
    fn shared_in_turn(&mut self, index: usize) -> &Shard {
        if self.index == index {
            self.locked = match mem::replace(&mut self.locked, Locked::Not) {
                Locked::Alone(shard) => Locked::Shared(ExclusiveGuard::downgrade(shard)),
                Locked::Shared(mut shard) => {
                    SharedGuard::bump(&mut shard);
                    Locked::Shared(shard)
                }
                Locked::Not => Locked::Not,
            };
        }
        self.shared(index)
    }

    /// The shard, to change.
    #[inline]
    fn alone(&mut self, index: usize) -> &mut Shard {
        if self.index != index || !matches!(self.locked, Locked::Alone(_)) {
            self.release();
            (self.index, self.locked) = (index, Locked::Alone(self.store.shards[index].0.write()));
        }
        match &mut self.locked {
            Locked::Alone(shard) => shard,
            _ => unreachable!("just locked"),
        }
    }

    /// The shard, to read: locked to change it if no other thread was there.
    #[inline]
    fn either(&mut self, index: usize) -> &Shard {
        if self.index != index {
            self.release();
            let lock = &self.store.shards[index].0;
            let locked = lock.try_write().map_or_else(|| Locked::Shared(lock.read()), Locked::Alone);
            (self.index, self.locked) = (index, locked);
        }
        self.shared(index)
    }

    #[inline]
    fn release(&mut self) {
        (self.index, self.locked) = (usize::MAX, Locked::Not);
    }
}

/// The randomness of the caller. Some words are drawn ahead.
pub(super) struct CallerRng<'a> {
    rng: &'a mut dyn Random,
    /// The word that was drawn ahead for the current announce.
    drawn: Option<u64>,
    /// A panic while a word was drawn ahead. It waits for the first announce that needs another word, so that
    /// the announces before it are done.
    panicked: Option<Box<dyn Any + Send>>,
}

impl<'a> CallerRng<'a> {
    pub(super) fn new(rng: &'a mut dyn Random) -> Self {
        Self { rng, drawn: None, panicked: None }
    }

    fn draw_ahead(&mut self) -> Option<u64> {
        if self.panicked.is_some() {
            return None;
        }
        let drawn = panic::catch_unwind(AssertUnwindSafe(|| self.rng.next_u64()));
        drawn.map_err(|panicked| self.panicked = Some(panicked)).ok()
    }

    /// Draws the word for the current announce. `None` if the generator has panicked.
    pub(super) fn draw_now(&mut self) -> Option<u64> {
        self.drawn = self.draw_ahead();
        self.drawn
    }

    /// Resumes a panic of the generator that no announce has raised.
    pub(super) fn raise(&mut self) {
        if let Some(panicked) = self.panicked.take() {
            panic::resume_unwind(panicked);
        }
    }
}

impl Random for CallerRng<'_> {
    fn next_u64(&mut self) -> u64 {
        self.drawn.take().unwrap_or_else(|| {
            self.raise();
            self.rng.next_u64()
        })
    }
}

impl Packed {
    /// Prefetches the shard of a swarm, the header of its leaf, and the hint for the slots.
    #[inline(always)]
    pub(super) fn look_ahead(&self, op: &Operation<'_>) -> Sight<'_> {
        let (shard, hints) = (op.placed.shard, &self.context.hints);
        prefetch(&self.shards[shard]);
        let leaf = LeafLocation::new(op.home, &op.placed.key, hints.leaves(shard));
        let slots = hints.prefetch_header(shard, leaf.leaf);
        if slots.is_none() {
            self.context.make_room_for_hints(leaf.leaf);
        }
        Sight { leaf, slots }
    }

    /// Sets the counts of up to [`GROUP`] swarms.
    pub(super) fn scrape_group(&self, group: &mut [SwarmSummary]) {
        let seen: [_; GROUP] = array::from_fn(|nth| {
            let placed = self.context.placement.place(&group.get(nth)?.info_hash);
            Some((placed, self.look_ahead(&self.operation(&placed, Tick::EARLIEST))))
        });
        let seen = || seen.iter().flatten();
        seen().for_each(|(placed, seen)| seen.prefetch_slots(&placed.key));
        let mut current = CurrentShard { store: self, index: usize::MAX, locked: Locked::Not };
        for (swarm, (placed, seen)) in group.iter_mut().zip(seen()) {
            let (op, shard) = (self.operation(placed, Tick::EARLIEST), current.shared(placed.shard));
            let found = shard.find_from(&op, &seen.leaf);
            shard.correct(&op, seen);
            swarm.stats = found.map(|at| shard.stats(at)).unwrap_or_default();
        }
    }

    /// Executes up to [`GROUP`] announces, each as if alone and in order. The requests are cleared.
    pub(super) fn announce_group(&self, group: &mut [Request<'_>], now: Timestamp, rng: &mut CallerRng<'_>) {
        let tick = self.context.clock.tick(now);
        let mut probes = [Probe::default(); GROUP];
        let probes = &mut probes[..group.len()];
        for nth in 0..group.len() {
            let info_hash = &group[nth].announce.info_hash;
            // Consecutive announces to a hot swarm look ahead once.
            (probes[nth].placed, probes[nth].seen) = match nth.checked_sub(1) {
                Some(before) if group[before].announce.info_hash == *info_hash => {
                    (probes[before].placed, probes[before].seen)
                }
                _ => {
                    let placed = self.context.placement.place(info_hash);
                    (placed, self.look_ahead(&self.operation(&placed, tick)))
                }
            };
        }
        for probe in &*probes {
            probe.seen.prefetch_slots(&probe.placed.key);
        }
        // Dropped last: evicted swarms are freed when no lock is held.
        let mut reservation = Reservation::new(&self.context);
        let mut current = CurrentShard { store: self, index: usize::MAX, locked: Locked::Not };
        let ahead = if self.announce_only(probes, group, tick, &mut current) {
            self.approach_large(probes, group, tick, &mut current, rng)
        } else {
            [None; GROUP]
        };
        let probed = probes.iter().zip(&ahead).zip(group);
        for ((probe, ahead), request) in probed.filter(|(_, request)| request.answer.is_none()) {
            let Request { announce, peers, answer } = request;
            let op = self.operation(&probe.placed, tick);
            rng.drawn = None;
            if let Some(ahead) = ahead {
                rng.drawn = Some(ahead.seed);
                let shard = current.shared_in_turn(probe.placed.shard);
                *answer = shard
                    .find_again(&op, &probe.seen.leaf, probe.found)
                    .and_then(|at| shard.refresh_large(&op, at, announce, ahead, peers));
                if answer.is_some() {
                    continue;
                }
            }
            while answer.is_none() {
                let shard = current.alone(probe.placed.shard);
                let found = shard.find_again(&op, &probe.seen.leaf, probe.found);
                let updated = shard.announce(&op, found, announce, &mut reservation);
                shard.settle(&mut reservation);
                let (done, full) = match updated {
                    Ok((announced, selection)) => {
                        // The store does not change any more, but for evictions: the randomness of the caller
                        // may panic.
                        shard.select(selection, announce, rng, peers);
                        match reservation.debt(announced.changes) {
                            None => {
                                *answer = Some(announced.evicting(reservation.take_evicted()));
                                break;
                            }
                            Some(full) => (Some(announced), full),
                        }
                    }
                    Err(full) => (None, full),
                };
                let newcomer = shard.newcomer(&op, Some(announce.endpoint), full);
                current.release();
                *answer = self.conclude(&newcomer, done, &mut reservation);
            }
        }
    }

    /// Executes the announces that need no more than a slot, if no earlier announce to their shard is
    /// waiting. Prefetches the swarms of all others. Returns whether any of these is large.
    fn announce_only(
        &self,
        probes: &mut [Probe<'_>],
        group: &mut [Request<'_>],
        now: Tick,
        current: &mut CurrentShard<'_>,
    ) -> bool {
        let mut any_large = false;
        // The shards with announces that wait; one bit stands for many shards. An announce that has to make
        // room may evict a swarm in any shard.
        let mut waiting = 0_u64;
        let waits = |bit| if self.context.is_nearly_full(GROUP) { u64::MAX } else { bit };
        for (probe, request) in probes.iter_mut().zip(group) {
            let (op, shard) = (self.operation(&probe.placed, now), probe.placed.shard);
            let bit = 1 << (shard % 64);
            let locked = current.either(shard);
            let found = locked.find_from(&op, &probe.seen.leaf);
            locked.correct(&op, &probe.seen);
            if let (Locked::Alone(shard), Some(at), 0) = (&mut current.locked, found, waiting & bit) {
                request.answer = shard.refresh_only(&op, at, &request.announce);
            }
            if request.answer.is_none() {
                probe.found = found;
                waiting |= waits(bit);
                probe.is_large = found.is_some_and(|at| current.shared(shard).prefetch_swarm(at));
                any_large |= probe.is_large;
            }
        }
        current.release();
        any_large
    }

    /// Prefetches memory for announces to large swarms: headers first, then the peers of those buckets.
    fn approach_large(
        &self,
        probes: &[Probe<'_>],
        group: &[Request<'_>],
        now: Tick,
        current: &mut CurrentShard<'_>,
        rng: &mut CallerRng<'_>,
    ) -> [Option<Draws>; GROUP] {
        let mut ahead = [None; GROUP];
        let large = || probes.iter().zip(group).enumerate().filter(|(_, (probe, _))| probe.is_large);
        for (nth, (probe, Request { announce, .. })) in large() {
            let op = self.operation(&probe.placed, now);
            let shard = current.shared_in_turn(probe.placed.shard);
            let found = shard.find_again(&op, &probe.seen.leaf, probe.found);
            let Some(large) = found.and_then(|at| shard.large_at(at)) else { continue };
            let Some(seed) = rng.draw_ahead() else { return ahead };
            ahead[nth] = Some(large.look_ahead(&self.context.hash, announce, seed));
        }
        for (nth, (probe, Request { announce, .. })) in large() {
            let op = self.operation(&probe.placed, now);
            let Some(ahead) = &ahead[nth] else { continue };
            let shard = current.shared_in_turn(probe.placed.shard);
            let found = shard.find_again(&op, &probe.seen.leaf, probe.found);
            if let Some(large) = found.and_then(|at| shard.large_at(at)) {
                large.prefetch_peers(announce, ahead);
            }
        }
        ahead
    }
}
