//! Announces in batches: what each will need of memory is asked for before any of them waits for it.
//!
//! An announce finds its peers through up to six pieces of memory, each of which tells where the next is; with millions of swarms
//! none is in a cache. A single announce waits for them one by one. A batch goes one piece further for all of its announces at a
//! time, so that they wait together, and only then does them, one by one and in order.

use std::panic::{self, AssertUnwindSafe};

use parking_lot::MutexGuard;

use super::{
    Packed,
    large::Luck,
    place::Placed,
    prefetch::prefetch,
    room::Room,
    stripe::{Call, Near, Stripe},
};
use crate::{Random, Request, Timestamp};

/// How many announces wait together. A core has some dozens of requests for memory in flight.
pub(super) const GROUP: usize = 32;

/// How far an announce of a batch has come.
#[derive(Clone, Copy)]
struct Probe {
    at: Placed,
    near: Near,
    luck: Luck,
}

/// The stripe that is locked, if any. Announces that follow each other in one stripe, as those to a hot swarm do, take its lock
/// once.
struct Locked<'a> {
    store: &'a Packed,
    held: Option<(usize, MutexGuard<'a, Stripe>)>,
}

impl Locked<'_> {
    fn stripe(&mut self, index: usize) -> &mut Stripe {
        if self.held.as_ref().is_none_or(|(held, _)| *held != index) {
            // Never two at once: somebody may take them in the other order.
            self.held = None;
            self.held = Some((index, self.store.lock(index)));
        }
        &mut self.held.as_mut().expect("just locked").1
    }
}

/// Randomness whose first words were drawn ahead.
struct Ahead<'a> {
    drawn: &'a [u64],
    rng: &'a mut dyn Random,
}

impl Random for Ahead<'_> {
    fn next_u64(&mut self) -> u64 {
        match self.drawn.split_off_first() {
            Some(&word) => word,
            None => self.rng.next_u64(),
        }
    }
}

impl Packed {
    /// Does up to [`GROUP`] announces, each as if alone and in order.
    pub(super) fn announce_group(&self, group: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        let (tick, home) = (self.shared.clock.tick(now), self.shared.placement.home());
        let mut probes = [Probe { at: Placed::default(), near: Near::Nothing, luck: Luck::default() }; GROUP];
        let probes = &mut probes[..group.len()];
        for (probe, request) in probes.iter_mut().zip(&mut *group) {
            request.answer = None;
            request.peers.clear();
            probe.at = self.shared.placement.place(&request.announce.info_hash);
            prefetch(&self.stripes[probe.at.stripe]);
        }
        // Dropped last: what had to go is freed when no lock is held.
        let mut room = Room::new(&self.shared);
        let mut locked = Locked { store: self, held: None };
        let mut waiting = true;
        // Stripes with announces that wait, one bit for many: none behind them there may be done first.
        let mut blocked = 0_u64;
        while waiting {
            waiting = false;
            for (probe, request) in probes.iter_mut().zip(&mut *group) {
                if matches!(probe.near, Near::All) {
                    continue;
                }
                let stripe = locked.stripe(probe.at.stripe);
                let (announce, bit) = (&request.announce, 1 << (probe.at.stripe % 64));
                let found = matches!(probe.near, Near::Slots);
                if found && blocked & bit == 0 {
                    let call = Call { shared: &self.shared, home, key: &probe.at.key, now: tick };
                    request.answer = stripe.announce_only(&call, announce);
                    if request.answer.is_some() {
                        probe.near = Near::All;
                        continue;
                    }
                }
                blocked |= if found { bit } else { 0 };
                if let Near::Large(_) = probe.near {
                    let draw = || Luck::default().map(|_| rng.next_u64());
                    match panic::catch_unwind(AssertUnwindSafe(draw)) {
                        Ok(luck) => probe.luck = luck,
                        // Not ahead of its turn: whoever comes before is done first, and who needs randomness will ask again.
                        Err(_) => {
                            waiting = false;
                            break;
                        }
                    }
                }
                probe.near = stripe.approach(
                    home,
                    &probe.at.key,
                    probe.near,
                    &self.shared.hash,
                    announce,
                    &probe.luck,
                );
                waiting |= !matches!(probe.near, Near::All);
            }
        }
        for (probe, request) in probes.iter_mut().zip(group).filter(|(_, request)| request.answer.is_none()) {
            let Request { announce, peers, answer } = request;
            let call = Call { shared: &self.shared, home, key: &probe.at.key, now: tick };
            let drawn = if probe.luck == Luck::default() { &[][..] } else { &probe.luck };
            let mut ahead = Ahead { drawn, rng: &mut *rng };
            *answer = Some(loop {
                match self.announce_in(
                    locked.stripe(probe.at.stripe),
                    &call,
                    announce,
                    &mut room,
                    &mut ahead,
                    peers,
                ) {
                    Ok(announced) => break announced,
                    Err(_) => {
                        locked.held = None;
                        self.evict_elsewhere(&probe.at, now, &mut room);
                    }
                }
            });
        }
    }
}
