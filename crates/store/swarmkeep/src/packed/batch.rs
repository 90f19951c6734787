//! Announces in batches: the memory that all of them need is prefetched before any of them waits for it.
//!
//! An announce finds its peers through up to six pieces of memory, each of which says where the next one is;
//! with millions of swarms none is in a cache. A single announce waits for them one by one. A batch goes one
//! piece further for all of its announces at a time, so that they wait together. Only then does it execute
//! them, one by one and in order.

use std::{
    any::Any,
    ops::Deref,
    panic::{self, AssertUnwindSafe},
};

use super::{
    Packed,
    clock::Tick,
    large,
    lock::{ExclusiveGuard, Lock, SharedGuard},
    place::Placed,
    prefetch::prefetch,
    reservation::Reservation,
    stripe::{LeafLocation, Stripe},
};
use crate::{Random, Request, Timestamp};

/// The number of announces that wait together. A core has some dozens of requests for memory in flight.
pub(super) const GROUP: usize = 32;

/// An announce of a batch, and what is known of it before its turn.
#[derive(Clone, Copy, Default)]
struct Probe {
    placed: Placed,
    leaf: LeafLocation,
    /// The number of its swarm, if that is a large one.
    large: Option<u32>,
    /// The position of its endpoint in the keyed order.
    order: u64,
    /// The random word that its selection will take.
    drawn: Option<u64>,
}

/// The stripe that is locked, if any. Consecutive announces to one stripe, such as those to a hot swarm, take
/// its lock once. Never two locks at once: another thread may take them in the other order.
struct CurrentStripe<'a> {
    store: &'a Packed,
    locked: Option<(usize, Locked<'a>)>,
}

enum Locked<'a> {
    Shared(SharedGuard<'a, Stripe>),
    Alone(ExclusiveGuard<'a, Stripe>),
}

impl Deref for Locked<'_> {
    type Target = Stripe;

    fn deref(&self) -> &Stripe {
        match self {
            Self::Shared(stripe) => stripe,
            Self::Alone(stripe) => stripe,
        }
    }
}

impl<'a> CurrentStripe<'a> {
    /// The stripe, to read.
    fn shared(&mut self, index: usize) -> &Stripe {
        self.locked_by(index, |_| true, |lock| Locked::Shared(lock.read()))
    }

    /// The stripe, to change.
    fn alone(&mut self, index: usize) -> &mut Stripe {
        let is_alone = |locked: &Locked<'_>| matches!(locked, Locked::Alone(_));
        match self.locked_by(index, is_alone, |lock| Locked::Alone(lock.write())) {
            Locked::Alone(stripe) => stripe,
            Locked::Shared(_) => unreachable!("just locked"),
        }
    }

    /// The stripe, to change if no other thread is there.
    fn either(&mut self, index: usize) -> &mut Locked<'a> {
        let lock = |lock: &'a Lock<Stripe>| match lock.try_write() {
            Some(stripe) => Locked::Alone(stripe),
            None => Locked::Shared(lock.read()),
        };
        self.locked_by(index, |_| true, lock)
    }

    fn locked_by(
        &mut self,
        index: usize,
        is_enough: impl FnOnce(&Locked<'a>) -> bool,
        lock: impl FnOnce(&'a Lock<Stripe>) -> Locked<'a>,
    ) -> &mut Locked<'a> {
        if !self.locked.as_ref().is_some_and(|(current, locked)| *current == index && is_enough(locked)) {
            self.release();
            self.locked = Some((index, lock(&self.store.stripes[index].0)));
        }
        &mut self.locked.as_mut().expect("just locked").1
    }

    fn release(&mut self) {
        self.locked = None;
    }
}

/// The randomness of the caller. Some words are drawn ahead.
pub(super) struct Words<'a> {
    rng: &'a mut dyn Random,
    /// The word that was drawn ahead for the announce whose turn it is.
    drawn: Option<u64>,
    /// A panic while a word was drawn ahead. It waits for the first announce that needs another word, so that
    /// the announces before it are done.
    panicked: Option<Box<dyn Any + Send>>,
}

impl<'a> Words<'a> {
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

    /// Resumes a panic of the generator that no announce has raised.
    pub(super) fn raise(&mut self) {
        if let Some(panicked) = self.panicked.take() {
            panic::resume_unwind(panicked);
        }
    }
}

impl Random for Words<'_> {
    fn next_u64(&mut self) -> u64 {
        self.drawn.take().unwrap_or_else(|| {
            self.raise();
            self.rng.next_u64()
        })
    }
}

impl Packed {
    /// Executes up to [`GROUP`] announces, each as if alone and in order. The requests are cleared.
    pub(super) fn announce_group(&self, group: &mut [Request<'_>], now: Timestamp, rng: &mut Words<'_>) {
        let tick = self.context.clock.tick(now);
        let mut probes = [Probe::default(); GROUP];
        let probes = &mut probes[..group.len()];
        for (probe, request) in probes.iter_mut().zip(&*group) {
            probe.placed = self.context.placement.place(&request.announce.info_hash);
            prefetch(&self.stripes[probe.placed.stripe]);
        }
        // Dropped last: evicted swarms are freed when no lock is held.
        let mut reservation = Reservation::new(&self.context);
        let mut current = CurrentStripe { store: self, locked: None };
        for probe in &mut *probes {
            probe.leaf =
                current.shared(probe.placed.stripe).prefetch_leaf(&self.operation_at(&probe.placed, tick));
        }
        for probe in &*probes {
            current
                .shared(probe.placed.stripe)
                .prefetch_slots(&self.operation_at(&probe.placed, tick), &probe.leaf);
        }
        current.release();
        if self.announce_only(probes, group, tick, &mut current) {
            self.approach_large(probes, group, &mut current, rng);
        }
        for (probe, request) in probes.iter_mut().zip(group).filter(|(_, request)| request.answer.is_none()) {
            let Request { announce, peers, answer } = request;
            let op = self.operation_at(&probe.placed, tick);
            rng.drawn = probe.drawn;
            if probe.large.is_some() {
                let stripe = current.shared(probe.placed.stripe);
                *answer = stripe.refresh_large(&op, Some(&probe.leaf), announce, rng, peers);
                if answer.is_some() {
                    continue;
                }
            }
            *answer = Some(loop {
                let stripe = current.alone(probe.placed.stripe);
                let found = stripe.find_from(&op, &probe.leaf);
                match self.announce_in(stripe, &op, found, announce, &mut reservation, rng, peers) {
                    Ok(announced) => break announced,
                    Err(full) => {
                        current.release();
                        self.evict_elsewhere(&probe.placed, now, &full, &mut reservation);
                    }
                }
            });
        }
    }

    /// Executes the announces that need no more than a slot, if no earlier announce to their stripe is
    /// waiting. Prefetches the swarms of all others. Returns whether any of these is large.
    fn announce_only(
        &self,
        probes: &mut [Probe],
        group: &mut [Request<'_>],
        now: Tick,
        current: &mut CurrentStripe<'_>,
    ) -> bool {
        let mut any_large = false;
        // The stripes with announces that wait; one bit stands for many stripes. An announce that has to make
        // room may evict a swarm in any stripe.
        let mut waiting = 0_u64;
        let waits = |bit| if self.context.is_nearly_full(GROUP) { u64::MAX } else { bit };
        for (probe, request) in probes.iter_mut().zip(group) {
            let (op, bit) = (self.operation_at(&probe.placed, now), 1 << (probe.placed.stripe % 64));
            let locked = current.either(probe.placed.stripe);
            let found = locked.find_from(&op, &probe.leaf);
            if waiting & bit == 0
                && let Some(at) = found
                && let Locked::Alone(stripe) = locked
            {
                request.answer = stripe.refresh_only(&op, at, &request.announce);
            }
            if request.answer.is_none() {
                waiting |= waits(bit);
                probe.large = found.and_then(|at| locked.prefetch_swarm(at));
                any_large |= probe.large.is_some();
            }
        }
        current.release();
        any_large
    }

    /// Prefetches what announces to large swarms will need: headers first, then the peers of those buckets.
    fn approach_large(
        &self,
        probes: &mut [Probe],
        group: &[Request<'_>],
        current: &mut CurrentStripe<'_>,
        rng: &mut Words<'_>,
    ) {
        for (probe, Request { announce, .. }) in probes.iter_mut().zip(group) {
            if let Some(number) = probe.large
                && let Some(large) = current.shared(probe.placed.stripe).numbered(number)
            {
                let Some(seed) = rng.draw_ahead() else { return };
                probe.drawn = Some(seed);
                probe.order = large::order(&self.context.hash, &announce.endpoint);
                large.prefetch_headers(announce, probe.order, seed);
            }
        }
        for (probe, Request { announce, .. }) in probes.iter().zip(group) {
            if let (Some(number), Some(seed)) = (probe.large, probe.drawn)
                && let Some(large) = current.shared(probe.placed.stripe).numbered(number)
            {
                large.prefetch_peers(announce, probe.order, seed);
            }
        }
    }
}
