//! Room for an announce in a full store: the swarms and peers of least worth go for it.

use super::{
    Packed,
    place::Placed,
    reservation::Reservation,
    stripe::{
        census::{Census, EVICTION_SAMPLE, Least, Newcomer},
        evict::{Full, SHARE, WHOLE},
    },
};
use crate::{Announced, Changes, InfoHash, Random as _, SplitMix64, Timestamp};

/// The fewest stripes that are searched for a swarm that is not worth more than the newcomer.
const STRIPES_SEARCHED: usize = 3;
/// The most stripes that are searched once a swarm was found.
const MOST_SEARCHED: usize = 256;
/// The most bytes that one announce frees, by two evictions at most: more than most take. The next announces free
/// the rest, as long as there is slack.
const FREED: u64 = 64;

impl Packed {
    /// Ends an announce that needs room, while no lock is held: makes it before the announce is `done` or after it.
    /// Returns `None` if there is room now, and the announce is to be repeated.
    #[cold]
    pub(super) fn conclude(
        &self,
        placed: &Placed,
        now: Timestamp,
        newcomer: Newcomer,
        done: Option<Announced>,
        reservation: &mut Reservation<'_>,
    ) -> Option<Announced> {
        let has_room = self.make_room(placed, now, newcomer, reservation);
        let announced = match done {
            None if has_room => return None,
            None => {
                let stats = self.with_stripe(placed, now, |stripe, op| stripe.scrape(op));
                Announced::new(stats.unwrap_or_default(), Changes::empty())
            }
            Some(announced) => announced,
        };
        Some(announced.evicting(reservation.take_evicted()))
    }

    /// Evicts swarms or peers of least worth, so that the newcomer has room. Returns whether it has.
    pub(super) fn make_room(
        &self,
        placed: &Placed,
        now: Timestamp,
        newcomer: Newcomer,
        reservation: &mut Reservation<'_>,
    ) -> bool {
        match newcomer.full {
            Full::Bytes(missing) => self.free_bytes(placed, now, newcomer, missing.min(FREED), reservation),
            Full::Swarms => self.free_swarm(placed, now, &newcomer, reservation),
            Full::Crowded => false,
        }
    }

    /// Evicts swarms, or some of their peers if they have many, that are worth no more than the newcomer; else
    /// other peers of its swarm; if it has none, the swarm of least worth all the same. A newcomer of a network that is
    /// in the swarm already displaces peers of that swarm first. Returns whether anything has gone.
    fn free_bytes(
        &self,
        placed: &Placed,
        now: Timestamp,
        mut newcomer: Newcomer,
        mut missing: u64,
        reservation: &mut Reservation<'_>,
    ) -> bool {
        let mut any = false;
        for fewest in [STRIPES_SEARCHED, 1] {
            let found = match newcomer.in_crowd {
                true => None,
                false => self.least(placed, now, &newcomer, fewest),
            };
            let least = found.and_then(|found| found.least());
            let freed = match least {
                Some((is_less, least)) if is_less || !newcomer.has_others && fewest > 1 => {
                    self.with_stripe(&least, now, |stripe, op| stripe.evict(op, SHARE, reservation))
                }
                _ if newcomer.has_others => {
                    let freed = self.with_stripe(placed, now, |stripe, op| {
                        let endpoint = newcomer.endpoint.as_ref();
                        stripe
                            .find(op)
                            .map_or(0, |at| stripe.evict_peers(op, at, endpoint, SHARE, reservation))
                    });
                    // Its peers may have gone meanwhile.
                    newcomer.has_others = freed > 0;
                    newcomer.in_crowd = false;
                    freed
                }
                _ => return any,
            };
            any |= freed > 0;
            missing = missing.saturating_sub(freed);
            if missing == 0 {
                break;
            }
        }
        any
    }

    /// Evicts a swarm of few peers. A larger one that is worth no more than one network gives up as many peers: the
    /// next newcomers find it small. A newcomer has no room if all swarms are large, or if it would displace one
    /// that is worth more than itself and than a large one. Returns whether it has.
    fn free_swarm(
        &self,
        placed: &Placed,
        now: Timestamp,
        newcomer: &Newcomer,
        reservation: &mut Reservation<'_>,
    ) -> bool {
        let Some(Found { small, large }) = self.least(placed, now, newcomer, STRIPES_SEARCHED) else {
            // Others have gone meanwhile.
            return self.context.totals.swarms() < self.context.bounds.swarms;
        };
        let mut evict = |stripe, least: Least| {
            let placed = Placed { stripe, key: least.key };
            self.with_stripe(&placed, now, |stripe, op| stripe.evict(op, WHOLE as usize, reservation))
        };
        let cheap = large.filter(|(_, large)| large.worth.is_of_one());
        cheap.map(|(stripe, large)| evict(stripe, large));
        let small = small.filter(|(_, small)| {
            let is_least = large.is_none_or(|(_, large)| !large.worth.is_below(small.worth));
            small.is_less || cheap.is_none() && is_least
        });
        small.map(|(stripe, small)| evict(stripe, small)).is_some()
    }

    /// The swarms that are worth least in samples of `fewest` stripes or more. Stops at the first that is worth no
    /// more than the newcomer, if that needs bytes, or if it is one that goes as a whole.
    fn least(&self, placed: &Placed, now: Timestamp, newcomer: &Newcomer, fewest: usize) -> Option<Found> {
        let mut rng = SplitMix64::new(self.context.draw());
        let (mut sampled, mut found) = (0, Found::default());
        let (mut at, mut first) = (*placed, None);
        for nth in 0..self.stripes.len() {
            // Where swarms come, others go: chance empties no part of a store. But the swarms beside a popular one
            // would all go for its peers.
            if nth > 0 || newcomer.is_popular {
                let drawn = self.context.placement.place(&random_hash(&mut rng));
                first = first.or(Some(drawn.stripe));
                at = Placed { stripe: (first.unwrap_or(0) + nth) % self.stripes.len(), key: drawn.key };
            }
            let own = (at.stripe == placed.stripe).then_some(&placed.key);
            let stripe = self.stripes[at.stripe].0.read();
            let census = stripe.census(&self.operation(&at, now), own, newcomer);
            drop(stripe);
            sampled += census.sampled;
            found.note(at.stripe, &census);
            let is_less = match newcomer.full {
                Full::Bytes(_) => found.least().is_some_and(|(is_less, _)| is_less),
                _ => found.small.is_some_and(|(_, small)| small.is_less),
            };
            let searched = nth + 1;
            if is_less
                || searched >= fewest
                    && (sampled >= EVICTION_SAMPLE || sampled > 0 && searched >= MOST_SEARCHED)
            {
                break;
            }
        }
        (sampled > 0).then_some(found)
    }
}

/// The swarms that are worth least of those that go as a whole and of the larger ones, with their stripes.
#[derive(Default, Clone, Copy)]
struct Found {
    small: Option<(usize, Least)>,
    large: Option<(usize, Least)>,
}

impl Found {
    fn note(&mut self, stripe: usize, census: &Census) {
        for (found, least) in [(&mut self.small, census.small), (&mut self.large, census.large)] {
            if let Some(least) = least
                && found
                    .is_none_or(|(_, found)| (!least.is_less, least.worth) < (!found.is_less, found.worth))
            {
                *found = Some((stripe, least));
            }
        }
    }

    /// The one worth least of both, and whether it is worth no more than the newcomer.
    fn least(&self) -> Option<(bool, Placed)> {
        let both = self.small.into_iter().chain(self.large);
        let (stripe, least) = both.min_by_key(|(_, least)| (!least.is_less, least.worth))?;
        Some((least.is_less, Placed { stripe, key: least.key }))
    }
}

fn random_hash(rng: &mut SplitMix64) -> InfoHash {
    let mut bytes = [0; InfoHash::LEN];
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]));
    InfoHash::new(bytes)
}
