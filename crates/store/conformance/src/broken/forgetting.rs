//! Faults of sweeps, of clocks with few bits, and of removals by name.

use std::{
    hint::black_box,
    sync::{Mutex, PoisonError, atomic::Ordering::SeqCst},
};

use swarmkeep::{
    Announce, AnnounceEvent, Budget, Cursor, Endpoint, Family, InfoHash, PeerRecord, Removed, Retention,
    SwarmStats, Swept, Timestamp, TorrentRepository,
};

use super::{Broken, Fault, let_others_in};
use crate::model::{ModelState, Peer, Swarm};

impl Broken {
    pub(super) fn sweep_wrongly(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        self.note_change();
        match self.fault {
            Fault::SweepDropsFilling | Fault::SweepDropsRefreshed => {
                self.sweep_in_two_holds(now, policy, budget)
            }
            Fault::ClockOf16Bits | Fault::ClockOf8Bits => {
                let (tick, bits) = if self.is(Fault::ClockOf16Bits) { (1, 16) } else { (32, 8) };
                self.wrap_times(now, tick, bits);
                self.model.sweep(now, policy, budget)
            }
            Fault::SweepDropsWholeSwarms => {
                let mut state = self.state();
                let oldest = state.latest.max(now).saturating_sub(state.lifetime_secs);
                let expired = |swarm: &Swarm| swarm.peers.values().all(|peer| peer.last_announce < oldest);
                let large = state.swarms.iter().find(|(_, swarm)| swarm.peers.len() > 1000 && expired(swarm));
                let Some((&large, _)) = large else { return state.sweep(now, policy, budget.get()) };
                let expired = state.remove(&large).map_or(0, |stats| stats.peers());
                let mut swept = Swept::default();
                (swept.visited, swept.expired, swept.swarms_removed) = (budget.get() as u64, expired, 1);
                swept
            }
            Fault::LongSweepPanics if budget.get() > 1_000_000 => panic!("{budget:?}"),
            Fault::SweepLooksAtAll => {
                black_box(self.state().swarms.values().filter(|swarm| swarm.peers.is_empty()).count());
                self.model.sweep(now, policy, budget)
            }
            Fault::FreedBytesStayTaken | Fault::FreedRoomStaysTaken => {
                self.losing_room(|| self.model.sweep(now, policy, budget))
            }
            Fault::EarlierTimesBelieved => {
                self.state().latest = Timestamp::default();
                self.model.sweep(now, policy, budget)
            }
            Fault::SweepEndsWithIpv6 => {
                let oldest = self.oldest(now);
                let is_alive = |(endpoint, peer): (&Endpoint, &Peer)| {
                    endpoint.family() == Family::V6 && peer.last_announce >= oldest
                };
                let spared = |torrent: &InfoHash, endpoint: &Endpoint| {
                    endpoint.family() == Family::V4 && self.state().swarms[torrent].peers.iter().any(is_alive)
                };
                self.sparing(spared, || self.model.sweep(now, policy, budget))
            }
            Fault::RestoredNotSwept => {
                let spared = |torrent: &InfoHash, endpoint: &Endpoint| {
                    let restored = self.marked().get(&(*torrent, *endpoint)).copied();
                    restored == Some(self.state().swarms[torrent].peers[endpoint].last_announce)
                };
                self.sparing(spared, || self.model.sweep(now, policy, budget))
            }
            Fault::SweepByList => {
                let (oldest, mut listed, mut swept) = (self.oldest(now), self.marked(), Swept::default());
                if listed.is_empty() {
                    let expired =
                        self.everybody().into_iter().filter(|(_, peer)| peer.last_announce < oldest);
                    listed.extend(expired.map(|(torrent, peer)| ((torrent, peer.endpoint), now)));
                }
                while swept.visited < budget.get() as u64
                    && let Some(((torrent, endpoint), _)) = listed.pop_first()
                {
                    swept.visited += 1;
                    swept.expired += 1;
                    self.state().change(torrent, |swarm| swarm.remove(&endpoint));
                }
                if listed.is_empty() {
                    swept += self.model.sweep(now, policy, budget);
                }
                swept
            }
            Fault::EmptiesNotCounted => {
                let is_empty = |(_, swarm): &(&InfoHash, &Swarm)| swarm.peers.is_empty();
                let empty: Vec<_> =
                    self.state().swarms.iter().filter(is_empty).map(|(&empty, _)| empty).collect();
                let mut swept = self.model.sweep(now, policy, budget);
                let state = self.state();
                let gone = empty.iter().filter(|empty| !state.swarms.contains_key(*empty)).count();
                swept.swarms_removed -= gone as u64;
                swept
            }
            Fault::SweptHandedOut => {
                let before = self.everybody();
                let swept = self.model.sweep(now, policy, budget);
                let state = self.state();
                let is_gone = |torrent: &InfoHash, endpoint: &Endpoint| {
                    state.swarms.get(torrent).is_none_or(|swarm| !swarm.peers.contains_key(endpoint))
                };
                let gone = before.into_iter().filter(|(torrent, peer)| is_gone(torrent, &peer.endpoint));
                self.marked().extend(gone.map(|(torrent, peer)| ((torrent, peer.endpoint), now)));
                swept
            }
            Fault::BudgetOfRemoved => {
                let mut swept = Swept::default();
                while swept.expired < budget.get() as u64 && !swept.pass_complete {
                    swept += self.model.sweep(now, policy, budget);
                }
                swept
            }
            Fault::SweepIgnoresBudget => self.model.sweep(now, policy, Budget::peers(usize::MAX)),
            Fault::SweepFromTheStart => {
                let mut state = self.state();
                state.sweep = None;
                state.sweep(now, policy, usize::MAX)
            }
            Fault::SweepHoldsLock => self.state().sweep(now, policy, budget.get()),
            Fault::SweepMissesLast => {
                let mut state = self.state();
                let last = state.swarms.pop_last();
                let swept = state.sweep(now, policy, budget.get());
                state.swarms.extend(last);
                swept
            }
            Fault::EmptySwarmsStay => self.model.sweep(now, Retention::KeepDownloaded, budget),
            Fault::DownloadsForgotten => self.model.sweep(now, Retention::DropEmpty, budget),
            _ => self.model.sweep(now, policy, budget),
        }
    }

    pub(super) fn remove_wrongly(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let before = self.model.scrape(info_hash);
        match self.fault {
            Fault::RemoveInTwoSteps => {
                let_others_in();
                return self.model.remove(info_hash).map(|_| before);
            }
            Fault::RemoveByPosition => {
                let position = self.state().swarms.keys().position(|there| there == info_hash)?;
                let_others_in();
                let mut state = self.state();
                let there = *state.swarms.keys().nth(position)?;
                return state.remove(&there);
            }
            _ => {}
        }
        let removed = self.losing_room(|| self.model.remove(&self.known_as(info_hash)));
        if self.is(Fault::RemoveKeepsTotals) {
            self.drift.fetch_add(removed.is_some().into(), SeqCst);
        }
        removed
    }

    pub(super) fn remove_where_wrongly(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        match self.fault {
            Fault::RemovalSkipsNext => {
                let skip = Mutex::new(false);
                let skipping = |info_hash: &InfoHash| {
                    let mut skip = skip.lock().unwrap_or_else(PoisonError::into_inner);
                    *skip = !*skip && forbidden(info_hash);
                    *skip
                };
                self.model.remove_where(&skipping, from, budget)
            }
            Fault::RemovalAsksTwice => self.model.remove_where(
                &|info_hash| forbidden(info_hash) && forbidden(info_hash),
                from,
                budget,
            ),
            Fault::TakenOutWhileAsked => {
                let asking = |info_hash: &InfoHash| {
                    let taken = self.state().swarms.remove(info_hash);
                    let is_forbidden = forbidden(info_hash);
                    self.state().swarms.extend(taken.map(|taken| (*info_hash, taken)));
                    is_forbidden
                };
                self.model.remove_where(&asking, from, budget)
            }
            Fault::PredicateUnderLock => {
                let all: Vec<_> = self.state().swarms.keys().copied().collect();
                let held = self.state();
                let named: Vec<_> = all.into_iter().filter(|info_hash| forbidden(info_hash)).collect();
                drop(held);
                self.model.remove_where(&|info_hash| named.contains(info_hash), from, budget)
            }
            Fault::RemovalKeepsIpv6 => {
                let before = self.state().totals.v6.peers();
                let removed = self.model.remove_where(forbidden, from, budget);
                self.drift.fetch_add(before.saturating_sub(self.state().totals.v6.peers()), SeqCst);
                removed
            }
            _ => self.losing_room(|| self.model.remove_where(forbidden, from, budget)),
        }
    }

    /// Does the work of a clock of 8 bits with the other peers of a swarm when a peer announces beyond its
    /// range.
    pub(super) fn move_base(&self, state: &mut ModelState, told: &Announce) {
        const TICK: u64 = 32;
        let (latest, now) = (state.latest, (state.latest.as_secs() / TICK) as u32);
        let mut notes = self.notes();
        let base = notes.entry(told.info_hash).or_insert(now.saturating_sub(128));
        if now - *base < 256 || told.event == AnnounceEvent::Stopped {
            return;
        }
        let by = u64::from(now - 128 - *base) * TICK;
        *base = now - 128;
        let swarm = &state.swarms[&told.info_hash];
        let others = swarm.peers.iter().filter(|(endpoint, _)| **endpoint != told.endpoint);
        let others: Vec<_> =
            others.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)).collect();
        state.change(told.info_hash, |swarm| {
            for (endpoint, role, last_announce) in others {
                let shown = match self.fault {
                    Fault::BaseMovesAlone => last_announce.saturating_add(by),
                    _ => latest.saturating_sub(128 * TICK),
                };
                swarm.put(endpoint, role, shown, None);
            }
        });
    }

    /// Collects swarms and peers under the lock, and removes them unchecked under another hold of it.
    fn sweep_in_two_holds(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let (oldest, state) = (self.oldest(now), self.state());
        let idle = state.swarms.iter().filter(|(_, swarm)| swarm.is_idle(policy));
        let idle: Vec<_> = idle.map(|(&torrent, _)| torrent).collect();
        let mut expired = Vec::new();
        for (&torrent, swarm) in &state.swarms {
            let old = swarm.peers.iter().filter(|(_, peer)| peer.last_announce < oldest);
            expired.extend(old.map(|(&endpoint, _)| (torrent, endpoint)));
        }
        drop(state);
        let_others_in();
        if self.is(Fault::SweepDropsFilling) {
            for torrent in idle {
                self.state().remove(&torrent);
            }
        } else {
            for (torrent, endpoint) in expired {
                let mut state = self.state();
                if state.swarms.contains_key(&torrent) {
                    state.change(torrent, |swarm| swarm.remove(&endpoint));
                }
            }
        }
        self.model.sweep(now, policy, budget)
    }

    /// Returns the earliest announce of a peer that has not expired.
    fn oldest(&self, now: Timestamp) -> Timestamp {
        let state = self.state();
        state.latest.max(now).saturating_sub(state.lifetime_secs)
    }

    /// Sweeps without removing the peers for which `is_spared` returns true.
    fn sparing(
        &self,
        is_spared: impl Fn(&InfoHash, &Endpoint) -> bool,
        sweep: impl FnOnce() -> Swept,
    ) -> Swept {
        let mut spared = self.everybody();
        spared.retain(|(torrent, peer)| is_spared(torrent, &peer.endpoint));
        let put = |fresh: bool| {
            let mut state = self.state();
            let latest = state.latest;
            for (torrent, peer) in &spared {
                let time = if fresh { latest } else { peer.last_announce };
                state.change(*torrent, |swarm| swarm.put(peer.endpoint, peer.role, time, peer.details));
            }
        };
        put(true);
        let swept = sweep();
        put(false);
        swept
    }

    /// Returns all peers of all swarms.
    fn everybody(&self) -> Vec<(InfoHash, PeerRecord)> {
        let state = self.state();
        let of_swarm = |(&torrent, swarm): (&InfoHash, &Swarm)| {
            let records = swarm.peers.iter().map(|(&endpoint, peer)| peer.record(endpoint, state.latest));
            records.map(move |record| (torrent, record)).collect::<Vec<_>>()
        };
        state.swarms.iter().flat_map(of_swarm).collect()
    }

    /// Changes the times of peers to the times of a clock of `bits` bits, which ticks every `tick` seconds.
    fn wrap_times(&self, now: Timestamp, tick: u64, bits: u32) {
        let all = self.everybody();
        let mut state = self.state();
        for (torrent, peer) in all {
            let ticks = now.as_secs() / tick - peer.last_announce.as_secs() / tick;
            let shown = now.saturating_sub((ticks & ((1 << bits) - 1)) * tick);
            state.change(torrent, |swarm| swarm.put(peer.endpoint, peer.role, shown, peer.details));
        }
    }
}
