//! Room for an announce in a full store: the swarms and peers of least worth are evicted for it.

use super::{
    Packed,
    bounds::SLACK,
    crowd::UNIT,
    hash::join,
    place::Placed,
    reservation::{NoRoom, Reservation},
    shard::{
        Operation, Shard,
        census::{Candidate, Census, EVICTION_SAMPLE, Newcomer},
        evict::{SHARE, WHOLE},
    },
};
use crate::{Announced, Changes, InfoHash};

/// The fewest shards that are searched for a swarm that is not worth more than the newcomer.
const SHARDS_SEARCHED: usize = 3;
/// The most shards that are searched once a swarm was found. Without any, four times as many are.
const MOST_SEARCHED: usize = 256;
/// The bytes after which an announce frees no more: about the yield of one eviction, and more than most
/// announces take. The next announces free the rest, by two evictions each if half of the slack is used up.
const FREED: u64 = 25;

impl Packed {
    /// Ends an announce that needs room, while no lock is held: makes room before the announce is `done` or
    /// after it. Returns `None` if there is room now, and the announce is to be repeated.
    #[cold]
    pub(super) fn conclude(
        &self,
        newcomer: &Newcomer,
        done: Option<Announced>,
        reservation: &mut Reservation<'_>,
    ) -> Option<Announced> {
        let has_room = self.make_room(newcomer, reservation);
        let announced = match done {
            None if has_room => return None,
            None => {
                let stats = self.with_shard(&newcomer.placed, newcomer.now, |shard, op| shard.scrape(op));
                Announced::new(stats.unwrap_or_default(), Changes::empty())
            }
            Some(announced) => announced,
        };
        Some(announced.evicting(reservation.take_evicted()))
    }

    /// Evicts swarms or peers of least worth, so that the newcomer has room. Returns whether it has.
    pub(super) fn make_room(&self, newcomer: &Newcomer, reservation: &mut Reservation<'_>) -> bool {
        match newcomer.full {
            NoRoom::Bytes(missing) => {
                let times = if missing > SLACK as u64 / 2 { 2 } else { 1 };
                self.free_bytes(newcomer, missing.min(times * FREED), reservation)
            }
            NoRoom::Swarms => self.free_swarm(newcomer, reservation),
            NoRoom::Crowded => false,
        }
    }

    /// Evicts swarms that are worth no more than the newcomer, or some of their peers if they have many; else
    /// other peers of its swarm; if it has none, the swarm of least worth all the same. Returns whether
    /// anything was evicted.
    fn free_bytes(&self, newcomer: &Newcomer, mut missing: u64, reservation: &mut Reservation<'_>) -> bool {
        let (mut any, mut has_others) = (false, newcomer.has_others);
        for is_first in [true, false] {
            // A peer of a crowd is not worth a longer search: others of its crowd go.
            let fewest = if newcomer.share < UNIT { 1 } else { SHARDS_SEARCHED };
            let freed = match self.least(newcomer, fewest).least() {
                Some((worth, placed)) if !worth.is_more || !has_others && is_first => {
                    // If it is gone, another thread has made room.
                    any = true;
                    self.with_reservation(&placed, newcomer.now, reservation, |shard, op, reservation| {
                        shard.evict(op, SHARE, reservation)
                    })
                }
                _ if has_others => {
                    // Beside others of its network a peer is worth no more than one of them.
                    let most = if newcomer.share < UNIT { 1 } else { SHARE };
                    let evict = |shard: &mut Shard, op: &Operation<'_>, reservation: &mut Reservation<'_>| {
                        let (at, endpoint) = (shard.find(op), newcomer.endpoint.as_ref());
                        at.map_or(0, |at| shard.evict_peers(op, at, endpoint, most, reservation))
                    };
                    let freed = self.with_reservation(&newcomer.placed, newcomer.now, reservation, evict);
                    // Its peers may have gone meanwhile.
                    has_others = freed > 0;
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

    /// Evicts a swarm of few peers. A larger one gives up as many peers if it is cheap, and worth less than a
    /// small one that may go: the next newcomers find it small. There is no room if all swarms of a sample
    /// are large, or if the newcomer would displace one that is worth more than itself and more than a large
    /// one. Returns whether there is room.
    fn free_swarm(&self, newcomer: &Newcomer, reservation: &mut Reservation<'_>) -> bool {
        let Census { sampled, small, large, .. } = self.least(newcomer, SHARDS_SEARCHED);
        if sampled == 0 {
            // Others have gone meanwhile.
            return self.context.totals.swarms() < self.context.bounds.swarms;
        }
        let mut evict = |(_, placed): Candidate| {
            self.with_reservation(&placed, newcomer.now, reservation, |shard, op, reservation| {
                shard.evict(op, WHOLE as usize, reservation)
            })
        };
        let is_cheap = |(large, _): &Candidate| {
            let has_less = |(small, _): Candidate| !small.is_more && small.size <= large.size;
            large.is_cheap() && !small.is_some_and(has_less)
        };
        let cheap = large.filter(is_cheap);
        cheap.map(&mut evict);
        let small = small.filter(|(small, _)| {
            let is_least = large.is_none_or(|(large, _)| small.size <= large.size);
            !small.is_more || cheap.is_none() && is_least
        });
        small.map(evict).is_some()
    }

    /// The swarms that are worth least in samples of `fewest` shards or more. Stops at the first that is
    /// worth no more than the newcomer, if the newcomer needs bytes or the swarm goes as a whole.
    fn least(&self, newcomer: &Newcomer, fewest: usize) -> Census {
        let (seed, mut census) = (self.context.draw(), Census::default());
        let mut first = None;
        // A store of one shard is searched at several places.
        for nth in 0..self.shards.len().max(SHARDS_SEARCHED) {
            // Evictions are near the newcomer, so chance empties no part of a store. But the neighbours of a
            // popular swarm would all be evicted for its peers.
            let at = match nth > 0 || newcomer.is_popular {
                true => self.context.placement.place(&InfoHash::new(join(seed, nth as u64, 0))),
                false => newcomer.placed,
            };
            let first = *first.get_or_insert(at.shard);
            let at = Placed { shard: (first + nth) % self.shards.len(), ..at };
            let shard = self.shards[at.shard].0.read();
            shard.census(&self.operation(&at, newcomer.now), newcomer, &mut census);
            drop(shard);
            let least = match newcomer.full {
                NoRoom::Bytes(_) => census.least(),
                _ => census.small,
            };
            // A newcomer is refused only after a longer search for a swarm that may go as a whole.
            let seeks_small = newcomer.full == NoRoom::Swarms && census.sampled_small == 0;
            let enough = if seeks_small { 4 * EVICTION_SAMPLE } else { EVICTION_SAMPLE };
            let searched = nth + 1;
            if least.is_some_and(|(worth, _)| !worth.is_more)
                || searched >= fewest && census.sampled >= enough
                || searched >= if census.sampled > 0 { MOST_SEARCHED } else { 4 * MOST_SEARCHED }
            {
                break;
            }
        }
        census
    }
}
