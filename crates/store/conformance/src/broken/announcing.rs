//! Faults of announces: the update of the peer, and the counts.

use std::{hint, mem, sync::atomic::Ordering::SeqCst};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, Endpoint, Evicted, Family, InfoHash, PeerBuffer, Random,
    Role, SwarmStats, Timestamp, TorrentRepository as _,
};

use super::{Broken, Fault, begin_of_tick, let_others_in, with_port};
use crate::model::{ModelState, Swarm};

impl Broken {
    pub(super) fn announce_wrongly(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let mut told = *announce;
        if self.is(Fault::EndpointsInTwoSteps) {
            let announced = self.announce_beyond_the_endpoints(&told, now);
            peers.clear();
            return announced;
        }
        if self.is(Fault::TimeOverflows) {
            now.as_secs().checked_add(self.state().lifetime_secs).expect("a time to expire at");
        }
        let evicted = self.before(&mut told);
        let mut state = self.state();
        state.totals.evicted += evicted;
        if self.is(Fault::TotalsAfterDraw) {
            let totals = state.totals;
            let announced = state.update(&told, now);
            let updated = mem::replace(&mut state.totals, totals);
            state.select(&told, rng, peers);
            state.totals = updated;
            return announced;
        }
        let before = StateBefore::of(&state, &told, self.fault);
        let mut announced = state.update(&told, now);
        announced.evicted += evicted;
        self.after_update(&mut state, &told, &before, &mut announced);
        let many = self.is(Fault::SelectsLaterFromMany) && announced.stats.peers() > 200;
        if many || self.is(Fault::SelectsLater) {
            drop(state);
            let_others_in();
            state = self.state();
        }
        if !self.select_wrongly(&state, &told, rng, peers) {
            state.select(&told, rng, peers);
        }
        match self.fault {
            Fault::TotalsInTwoSteps => {
                let totals = state.totals;
                drop(state);
                let_others_in();
                self.state().totals = totals;
            }
            Fault::EarlierTimeAges if now < state.latest && told.event != AnnounceEvent::Stopped => {
                state.change(told.info_hash, |swarm| swarm.alter(told.endpoint, told.role(), now));
            }
            Fault::CountsOfAnotherMoment => {
                drop(state);
                let_others_in();
                announced.stats = self.model.scrape(&told.info_hash);
            }
            Fault::PeerBeforeDownload if announced.changes.contains(Changes::COMPLETED) => {
                let counts = |state: &mut ModelState, change: fn(u32) -> u32| {
                    if let Some(swarm) = state.swarms.get_mut(&told.info_hash) {
                        swarm.downloaded = change(swarm.downloaded);
                    }
                };
                counts(&mut state, |downloaded| downloaded.saturating_sub(1));
                drop(state);
                let_others_in();
                counts(&mut self.state(), |downloaded| downloaded.saturating_add(1));
            }
            _ => {}
        }
        announced
    }

    /// Does the work of a fault before the step of an announce, without a lock held in between. Returns the
    /// evictions.
    fn before(&self, told: &mut Announce) -> Evicted {
        let (torrent, stopped) = (told.info_hash, told.event == AnnounceEvent::Stopped);
        match self.fault {
            Fault::GetThenInsert if !stopped => {
                let known = self.state().swarms.contains_key(&torrent);
                let_others_in();
                if !known {
                    self.state().remove(&torrent);
                }
            }
            Fault::AnnounceInTwoSteps => {
                let mut state = self.state();
                let known = state.swarms.contains_key(&torrent);
                let role = known.then(|| state.change(torrent, |swarm| swarm.remove(&told.endpoint)));
                drop(state);
                let_others_in();
                if let Some(Some(role)) = role {
                    self.state()
                        .change(torrent, |swarm| swarm.put(told.endpoint, role, Timestamp::default(), None));
                }
            }
            Fault::CopyPutBack if !stopped => {
                let own = |state: &ModelState| {
                    let swarm = state.swarms.get(&torrent)?;
                    Some(swarm.list(told.endpoint.family(), Role::Leecher).to_vec())
                };
                let copy = own(&self.state());
                let_others_in();
                let mut state = self.state();
                if let (Some(copy), Some(now)) = (copy, own(&state)) {
                    let joined = &now[copy.len().min(now.len())..];
                    state.change(torrent, |swarm| joined.iter().for_each(|joined| _ = swarm.remove(joined)));
                }
            }
            Fault::RemovedPutBack if !stopped => {
                let copy = self.state().swarms.get(&torrent).cloned();
                let_others_in();
                let mut state = self.state();
                if let Some(copy) = copy.filter(|_| !state.swarms.contains_key(&torrent)) {
                    state.change(torrent, |swarm| *swarm = copy);
                }
            }
            Fault::IdentityByPeerId => {
                told.endpoint = with_port(told.endpoint, 1 + told.peer_id.as_bytes()[0] as u16)
            }
            Fault::IdentityByAddress => told.endpoint = with_port(told.endpoint, 6881),
            Fault::InfoHashesOf16Bytes => told.info_hash = self.known_as(&torrent),
            Fault::WantOf32Bits => told.want &= u32::MAX as usize,
            Fault::WantOf16Bits => told.want &= usize::from(u16::MAX),
            Fault::StoppedByAddress | Fault::PortsOfAnIpv6Address => {
                let state = self.state();
                let Some(swarm) = state.swarms.get(&torrent) else { return Evicted::default() };
                let is_meant = match self.fault {
                    Fault::StoppedByAddress => stopped,
                    _ => told.endpoint.family() == Family::V6 && swarm.peers.len() > 100,
                };
                let of_address =
                    || swarm.of_address(told.endpoint).find(|(at, _)| at.ip() == told.endpoint.ip());
                if is_meant
                    && !swarm.peers.contains_key(&told.endpoint)
                    && let Some((&other, _)) = of_address()
                {
                    told.endpoint = other;
                }
            }
            Fault::MovedNotSelected if stopped => {
                let state = self.state();
                let swarm = state.swarms.get(&torrent);
                let role = swarm.and_then(|swarm| Some(swarm.peers.get(&told.endpoint)?.role));
                let last = |role| swarm?.list(told.endpoint.family(), role).last();
                if let Some(&moved) = role.and_then(last).filter(|&&last| last != told.endpoint) {
                    self.marked().insert((torrent, moved), state.latest);
                }
            }
            Fault::StoppedCreates => self.state().change(torrent, |_| ()),
            Fault::UnkeyedHash | Fault::UnkeyedHashOfLastBytes | Fault::UnkeyedMultiplyHash => {
                self.search_a_list(&torrent);
            }
            Fault::EarlierTimesBelieved => self.state().latest = Timestamp::default(),
            _ => {}
        }
        self.make_room_wrongly(told)
    }

    /// Searches the list in which an unkeyed hash keeps the info hash.
    fn search_a_list(&self, torrent: &InfoHash) {
        const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
        let word =
            |from: usize| u64::from_le_bytes(torrent.as_bytes()[from..from + 8].try_into().expect("8 bytes"));
        let hash = match self.fault {
            Fault::UnkeyedHash => word(0),
            Fault::UnkeyedHashOfLastBytes => word(12),
            _ => (word(0) ^ word(12)).wrapping_mul(FACTOR) >> 48,
        };
        let mut list = [0; 20];
        list[..8].copy_from_slice(&hash.to_le_bytes());
        let (state, mut notes) = (self.state(), self.notes());
        let length = notes.entry(InfoHash::new(list)).or_default();
        *length += u32::from(!state.swarms.contains_key(torrent));
        state.swarms.keys().take(*length as usize).for_each(|key| _ = hint::black_box(key));
    }

    /// Changes the result of the update.
    fn after_update(
        &self,
        state: &mut ModelState,
        told: &Announce,
        before: &StateBefore,
        announced: &mut Announced,
    ) {
        let torrent = told.info_hash;
        let completed = told.event == AnnounceEvent::Completed;
        let counted = announced.changes.contains(Changes::COMPLETED);
        let mut downloads = announced.stats.downloaded;
        self.after_evicting(state, told, before, announced);
        if let Some(last_announce) =
            before.last_announce.filter(|_| announced.changes.contains(Changes::REFRESHED))
        {
            let keeps_time = match self.fault {
                Fault::RefreshKeepsTime => true,
                Fault::CompletedKeepsTime => completed,
                Fault::PromotedKeepsTime => announced.changes.contains(Changes::PROMOTED) && !completed,
                Fault::MinuteKeepsTime => state.latest.secs_since(last_announce) < 60,
                _ => false,
            };
            if keeps_time {
                state.change(torrent, |swarm| swarm.alter(told.endpoint, told.role(), last_announce));
            }
            let restored = || self.marked().get(&(torrent, told.endpoint)) == Some(&last_announce);
            let counts = match self.fault {
                Fault::ExpiredSeederCompletes => state.latest.secs_since(last_announce) > state.lifetime_secs,
                Fault::RestoredSeederCompletes => restored(),
                _ => false,
            };
            downloads += u32::from(counts && completed && told.left == 0 && !counted);
        }
        match self.fault {
            Fault::CountsBeforeUpdate => announced.stats = before.stats,
            Fault::CountsOf16Bits => announced.stats = of_16_bits(announced.stats),
            Fault::LeecherLeftBehind if announced.changes.contains(Changes::PROMOTED) => {
                *self.notes().entry(torrent).or_default() += 1;
            }
            Fault::SeederForEver if announced.changes.contains(Changes::DEMOTED) => {
                state.change(torrent, |swarm| swarm.put(told.endpoint, Role::Seeder, before.latest, None));
            }
            Fault::StoppedCountsUnknown
                if told.event == AnnounceEvent::Stopped && announced.changes.is_empty() =>
            {
                self.drift.fetch_add(1, SeqCst);
            }
            Fault::LastPeerTakesSwarm
                if announced.changes.contains(Changes::LEFT) && announced.stats.peers() == 0 =>
            {
                state.remove(&torrent);
            }
            Fault::AgesRoundedOlder if told.event != AnnounceEvent::Stopped => {
                let time = begin_of_tick(state.latest);
                state.change(torrent, |swarm| swarm.put(told.endpoint, told.role(), time, None));
            }
            Fault::BaseMovesAlone | Fault::AgesLostWithTheBase => self.move_base(state, told),
            Fault::CompletedCountsAgain if completed && told.left == 0 && !counted => downloads += 1,
            Fault::CompletedCountsWithBytesLeft if completed && told.left > 0 => downloads += 1,
            Fault::EvictedSeederTakesDownload
                if announced.evicted.peers > 0
                    && announced.stats.complete < before.stats.complete + u32::from(told.left == 0) =>
            {
                downloads = downloads.saturating_sub(1);
            }
            Fault::MovedNotSelected if announced.changes.contains(Changes::JOINED) => {
                self.marked().retain(|&(marked, _), _| marked != torrent);
            }
            Fault::CompletedFromUnknownIgnored if counted && before.last_announce.is_none() => downloads -= 1,
            Fault::CompletedLooksTooLate if counted && before.last_announce.is_some() => downloads -= 1,
            Fault::LivesOf3Bits => {
                let mut notes = self.notes();
                let lives = notes.entry(torrent).or_default();
                *lives += u32::from(announced.changes.contains(Changes::CREATED));
                if announced.changes.contains(Changes::CREATED) && lives.is_multiple_of(8) {
                    state.change(torrent, |swarm| swarm.remove(&told.endpoint));
                }
            }
            Fault::PromotionCounts if announced.changes.contains(Changes::PROMOTED) && !counted => {
                downloads += 1
            }
            Fault::CountersWrap if counted && before.stats.downloaded == u32::MAX => downloads = 0,
            Fault::ChangesNotTold if announced.changes.contains(Changes::REFRESHED) => {
                announced.changes = Changes::REFRESHED;
            }
            Fault::TotalsDrift if announced.changes.contains(Changes::PROMOTED) => {
                self.drift.fetch_add(1, SeqCst);
            }
            // Not while a test fills the swarm: these walks would take longer than all other faults.
            Fault::CountsByWalking if !announced.changes.contains(Changes::JOINED) => {
                let swarm = &state.swarms[&torrent];
                hint::black_box(swarm.peers.values().filter(|peer| peer.role.is_seeder()).count());
            }
            Fault::DownloadsExceedBytes if counted => {
                self.drift.fetch_add(8, SeqCst);
            }
            Fault::RareLoss
                if counted && announced.stats.peers() == 3 && told.endpoint.family() == Family::V6 =>
            {
                state.change(torrent, |swarm| swarm.remove(&told.endpoint));
            }
            _ => {}
        }
        if downloads != announced.stats.downloaded {
            state.change(torrent, |swarm| swarm.downloaded = downloads);
            announced.stats.downloaded = downloads;
        }
        announced.stats.incomplete += self.ghosts(&torrent);
    }

    /// Returns the known info hash that begins with the same bytes, if the fault confuses them, or this one.
    pub(super) fn known_as(&self, info_hash: &InfoHash) -> InfoHash {
        if !self.is(Fault::InfoHashesOf16Bytes) {
            return *info_hash;
        }
        let (mut first, mut last) = ([0; 20], [0xff; 20]);
        first[..16].copy_from_slice(&info_hash.as_bytes()[..16]);
        last[..16].copy_from_slice(&info_hash.as_bytes()[..16]);
        let state = self.state();
        let known = state.swarms.range(InfoHash::new(first)..=InfoHash::new(last)).next();
        known.map_or(*info_hash, |(&known, _)| known)
    }

    /// Returns the number of leechers that wrongly stayed in the counts of a swarm.
    pub(super) fn ghosts(&self, info_hash: &InfoHash) -> u32 {
        let notes = self.is(Fault::LeecherLeftBehind).then(|| self.notes());
        notes.and_then(|notes| notes.get(info_hash).copied()).unwrap_or_default()
    }
}

/// Returns the counts as counters of 16 bits would have them.
pub(super) fn of_16_bits(stats: SwarmStats) -> SwarmStats {
    let [complete, incomplete, downloaded] =
        [stats.complete, stats.incomplete, stats.downloaded].map(|count| count & 0xffff);
    SwarmStats { complete, incomplete, downloaded }
}

/// Of a swarm, before an announce.
pub(super) struct StateBefore {
    pub(super) stats: SwarmStats,
    pub(super) last_announce: Option<Timestamp>,
    pub(super) latest: Timestamp,
    pub(super) stalest: Option<(Endpoint, Role, Timestamp)>,
    /// `None` if the endpoints of an address are not limited.
    pub(super) stalest_of_address: Option<(Endpoint, Role, Timestamp)>,
}

impl StateBefore {
    fn of(state: &ModelState, told: &Announce, fault: Fault) -> Self {
        let swarm = state.swarms.get(&told.info_hash);
        let needed = matches!(fault, Fault::DropsFreshest | Fault::BytesDropFreshest);
        let stalest = swarm
            .filter(|_| needed)
            .and_then(|swarm| swarm.peers.iter().min_by_key(|(_, peer)| peer.last_announce));
        let limited = swarm.filter(|_| state.limits.endpoints_per_address.is_some());
        let own = limited.into_iter().flat_map(|swarm| swarm.of_address(told.endpoint));
        let own = own.min_by_key(|(_, peer)| peer.last_announce);
        Self {
            stalest_of_address: own.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)),
            stats: swarm.map(Swarm::stats).unwrap_or_default(),
            last_announce: swarm
                .and_then(|swarm| swarm.peers.get(&told.endpoint))
                .map(|peer| peer.last_announce),
            latest: state.latest,
            stalest: stalest.map(|(&endpoint, peer)| (endpoint, peer.role, peer.last_announce)),
        }
    }
}
