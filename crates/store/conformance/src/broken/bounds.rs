//! Faults of limits: limits that are not kept, and wrong evictions.

use std::sync::atomic::Ordering::SeqCst;

use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, Endpoint, Evicted, Family, Limits, Role, Timestamp,
};

use super::{Broken, Fault, announcing::StateBefore, let_others_in};
use crate::model::{LimitedNetwork, ModelState, Swarm};

impl Broken {
    /// Evicts wrongly before the step of an announce, or for it.
    pub(super) fn make_room_wrongly(&self, told: &Announce) -> Evicted {
        let mut evicted = Evicted::default();
        let torrent = told.info_hash;
        match self.fault {
            Fault::EvictsAnything => {
                let mut state = self.state();
                let full = state.limits.swarms.is_some_and(|most| state.swarms.len() >= most);
                if full && !state.swarms.contains_key(&torrent) {
                    let victim = *state.swarms.keys().next().expect("it is full");
                    state.evict(&victim, &mut evicted);
                }
            }
            Fault::EvictsInTwoSteps if told.event != AnnounceEvent::Stopped => {
                let chosen = {
                    let state = self.state();
                    let full = state.limits.swarms.is_some_and(|most| state.swarms.len() >= most);
                    let victim = state.swarms.iter().next().map(|(&victim, swarm)| (victim, swarm.stats()));
                    victim.filter(|_| full && !state.swarms.contains_key(&torrent))
                };
                let_others_in();
                if let Some((victim, stats)) = chosen {
                    self.state().remove(&victim);
                    (evicted.swarms, evicted.peers) = (1, stats.peers());
                }
            }
            Fault::BytesDropPopulated => {
                let mut state = self.state();
                let full = state.limits.bytes.is_some_and(|most| state.bytes() + 96 > most as u64);
                let populated = state.swarms.iter().find(|(_, swarm)| swarm.peers.len() > 1);
                if let Some((&victim, _)) = populated.filter(|_| full) {
                    state.evict(&victim, &mut evicted);
                }
            }
            Fault::GrowthTakesOwnPeers | Fault::SatedTakesOwnPeers => {
                let mut state = self.state();
                let full = state.limits.bytes.is_some_and(|most| state.bytes() + 96 > most as u64);
                let peers = state.swarms.get(&torrent).map_or(0, |swarm| swarm.peers.len());
                let sated = if self.is(Fault::SatedTakesOwnPeers) { 1000 } else { 2 };
                if full && peers >= sated {
                    let left = Some(peers - 1);
                    let drop = |swarm: &mut Swarm| swarm.drop_stalest_but(told.endpoint, left);
                    evicted.peers += state.change(torrent, drop);
                }
            }
            Fault::RefreshDisplaces | Fault::StoppedKeepsPlace => {
                evicted.peers += self.make_needless_place(told);
            }
            Fault::StalestOfAnyNetwork
            | Fault::StalestOfAnyPrefix
            | Fault::SeedersDroppedFirst
            | Fault::EndpointForEachLimit => {
                let mut state = self.state();
                let most = state.limits.peers_per_swarm.unwrap_or(usize::MAX);
                let of_48 = [LimitedNetwork { v4_bits: 24, v6_bits: 48, times: 1 }];
                let full = state.swarms.get(&torrent).is_some_and(|swarm| {
                    let is_known = match self.fault {
                        Fault::StalestOfAnyPrefix => swarm.is_crowded(told.endpoint, 1, &of_48),
                        _ => swarm.peers.contains_key(&told.endpoint),
                    };
                    swarm.peers.len() >= most && !is_known
                });
                if full {
                    evicted.peers += state.change(torrent, |swarm| {
                        let seeder = swarm.list(Family::V4, Role::Seeder).first().copied();
                        match seeder.filter(|_| self.is(Fault::SeedersDroppedFirst)) {
                            Some(seeder) => swarm.remove(&seeder).map_or(0, |_| 1),
                            None => swarm.drop_stalest_but(told.endpoint, Some(most - 1)),
                        }
                    });
                }
            }
            Fault::EvictsOwnFamily | Fault::PeersLimitedByFamily => {
                let mut state = self.state();
                let (family, most) =
                    (told.endpoint.family(), state.limits.peers_per_swarm.unwrap_or(usize::MAX));
                let least = state.swarms.get(&torrent).and_then(|swarm| {
                    let mut own = swarm.clone();
                    let others = swarm.peers.keys().filter(|endpoint| endpoint.family() != family);
                    others.for_each(|endpoint| _ = own.remove(endpoint));
                    let full = match self.fault {
                        Fault::PeersLimitedByFamily => own.peers.len() >= most / 2,
                        _ => swarm.peers.len() >= most,
                    };
                    own.drop_least_but(None, own.peers.len().checked_sub(1));
                    let mut all = swarm.peers.keys().filter(|endpoint| endpoint.family() == family);
                    let least = all.find(|endpoint| !own.peers.contains_key(endpoint))?;
                    (full && !swarm.peers.contains_key(&told.endpoint)).then_some(*least)
                });
                if let Some(least) = least.filter(|_| told.event != AnnounceEvent::Stopped) {
                    state.change(torrent, |swarm| swarm.remove(&least));
                    evicted.peers += 1;
                }
            }
            Fault::EndpointsOverAllSwarms => {
                let mut state = self.state();
                let most = state.limits.endpoints_per_address.unwrap_or(usize::MAX);
                let of_address = |swarm: &Swarm| swarm.of_address(told.endpoint).count();
                let first = state.swarms.iter().find(|(_, swarm)| of_address(swarm) > 0);
                let (first, all) = (first.map(|(&first, _)| first), state.swarms.values().map(of_address));
                if all.sum::<usize>() >= most
                    && let Some(first) = first
                {
                    let left = Some(of_address(&state.swarms[&first]) - 1);
                    let drop = |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, left);
                    evicted.peers += state.change(first, drop);
                }
            }
            _ => {}
        }
        evicted
    }

    /// Evicts an endpoint for an announce that needs no room; returns the number of evicted endpoints.
    pub(super) fn make_needless_place(&self, told: &Announce) -> u64 {
        let mut state = self.state();
        let Some(most) = state.limits.endpoints_per_address else { return 0 };
        let Some(swarm) = state.swarms.get(&told.info_hash) else { return 0 };
        let (held, known) =
            (swarm.of_address(told.endpoint).count(), swarm.peers.contains_key(&told.endpoint));
        let stopped = told.event == AnnounceEvent::Stopped;
        match self.fault {
            Fault::RefreshDisplaces if held >= most && known && !stopped => {
                let drop =
                    |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(most - 1));
                state.change(told.info_hash, drop)
            }
            Fault::StoppedKeepsPlace if stopped => {
                *self.notes().entry(told.info_hash).or_default() += u32::from(known);
                0
            }
            Fault::StoppedKeepsPlace if !known => {
                let left = self
                    .notes()
                    .get(&told.info_hash)
                    .map_or(most, |&gone| most.saturating_sub(gone as usize).max(1));
                let drop =
                    |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(left - 1));
                if held >= left { state.change(told.info_hash, drop) } else { 0 }
            }
            _ => 0,
        }
    }

    /// Does an announce that counts the endpoints of its address, releases the lock, and then joins.
    pub(super) fn announce_beyond_the_endpoints(&self, told: &Announce, now: Timestamp) -> Announced {
        let (limits, full) = {
            let state = self.state();
            let (most, swarm) = (state.limits.endpoints_per_address, state.swarms.get(&told.info_hash));
            let held = swarm.map_or(0, |swarm| {
                swarm.of_address(told.endpoint).filter(|(endpoint, _)| **endpoint != told.endpoint).count()
            });
            (state.limits, most.filter(|&most| held >= most))
        };
        let_others_in();
        let mut state = self.state();
        state.limits = Limits::default();
        let mut announced = state.update(told, now);
        state.limits = limits;
        if full.is_some() && announced.changes.contains(Changes::JOINED) {
            let held = state.swarms[&told.info_hash].of_address(told.endpoint).count();
            let drop = |swarm: &mut Swarm| swarm.drop_stalest_of_address_but(told.endpoint, Some(held - 1));
            let dropped = state.change(told.info_hash, drop);
            state.totals.evicted.peers += dropped;
            announced.evicted.peers += dropped;
            announced.stats = state.swarms[&told.info_hash].stats();
        }
        announced
    }

    /// Changes the evictions of an announce.
    pub(super) fn after_evicting(
        &self,
        state: &mut ModelState,
        told: &Announce,
        before: &StateBefore,
        announced: &mut Announced,
    ) {
        let torrent = told.info_hash;
        if announced.evicted.peers > 0
            && let Some(stale) = before.stalest_of_address
        {
            self.after_displacing(state, told, stale, announced);
        }
        match self.fault {
            Fault::EvictionsNotTold => announced.evicted = Evicted::default(),
            Fault::ByteEvictionsNotCounted => {
                state.totals.evicted.swarms -= announced.evicted.swarms;
                state.totals.evicted.peers -= announced.evicted.peers;
            }
            Fault::BytesDropAnnouncer if announced.evicted.swarms == 0 && announced.evicted.peers > 0 => {
                state.change(torrent, |swarm| swarm.remove(&told.endpoint));
            }
            Fault::DropsFreshest | Fault::BytesDropFreshest if announced.evicted.peers > 0 => {
                // Puts an evicted old peer back and evicts the freshest instead, except the announcing peer.
                let swarm = &state.swarms[&torrent];
                let others = swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
                let freshest =
                    others.max_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint);
                if let (Some(freshest), Some(stale)) = (freshest, before.stalest) {
                    state.change(torrent, |swarm| {
                        swarm.remove(&freshest);
                        swarm.put(stale.0, stale.1, stale.2, None);
                    });
                }
            }
            _ => {}
        }
    }

    /// Finds the endpoint that was replaced by another of its address, and does the work of the fault with
    /// it.
    pub(super) fn after_displacing(
        &self,
        state: &mut ModelState,
        told: &Announce,
        stale: (Endpoint, Role, Timestamp),
        announced: &mut Announced,
    ) {
        let (torrent, most) = (told.info_hash, state.limits.endpoints_per_address.unwrap_or(usize::MAX));
        let swarm = &state.swarms[&torrent];
        let others = || swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
        let put_back = |swarm: &mut Swarm| swarm.put(stale.0, stale.1, stale.2, None);
        let instead = match self.fault {
            Fault::EndpointKeptOut => Some(told.endpoint),
            Fault::FreshestEndpointDropped => {
                let own = swarm.of_address(told.endpoint).filter(|(endpoint, _)| **endpoint != told.endpoint);
                own.max_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint)
            }
            Fault::EndpointDisplacesOthers => {
                others().min_by_key(|(_, peer)| peer.last_announce).map(|(endpoint, _)| *endpoint)
            }
            _ => None,
        };
        let with_role = swarm.of_address(told.endpoint).filter(|(_, peer)| peer.role == told.role()).count();
        let spared = match self.fault {
            Fault::EndpointsByRole => with_role + usize::from(stale.1 == told.role()) <= most,
            Fault::EndpointsInLargeSwarms => swarm.peers.len() > 1000,
            _ => false,
        };
        let second = swarm.of_address(told.endpoint).map(|(&endpoint, _)| endpoint);
        let second = second.filter(|endpoint| *endpoint != told.endpoint).min();
        if let Some(instead) = instead {
            state.change(torrent, |swarm| {
                swarm.remove(&instead);
                put_back(swarm);
            });
        } else if spared {
            state.change(torrent, put_back);
            state.totals.evicted.peers -= 1;
            announced.evicted.peers -= 1;
        } else if self.is(Fault::EndpointEvictionsNotCounted) {
            state.totals.evicted.peers -= announced.evicted.peers;
        } else if self.is(Fault::TwoEndpointsForOne)
            && told.endpoint.family() == Family::V6
            && announced.changes.contains(Changes::COMPLETED)
            && let Some(second) = second
        {
            state.change(torrent, |swarm| swarm.remove(&second));
            state.totals.evicted.peers += 1;
            announced.evicted.peers += 1;
        }
        announced.stats = state.swarms[&torrent].stats();
    }

    /// Runs `work`; if the fault asks for it, counts the freed room as used.
    pub(super) fn losing_room<T>(&self, work: impl FnOnce() -> T) -> T {
        let taken = || {
            let state = self.state();
            (state.bytes(), state.swarms.len())
        };
        let before = taken();
        let result = work();
        let after = taken();
        let (bytes, swarms) = (before.0.saturating_sub(after.0), before.1.saturating_sub(after.1));
        let limits = &mut self.state().limits;
        match self.fault {
            Fault::FreedBytesStayTaken => {
                self.drift.fetch_add(bytes, SeqCst);
                limits.bytes = limits.bytes.map(|most| most.saturating_sub(bytes as usize).max(96));
            }
            Fault::FreedRoomStaysTaken => {
                limits.swarms = limits.swarms.map(|most| most.saturating_sub(swarms).max(1));
            }
            _ => {}
        }
        result
    }
}
