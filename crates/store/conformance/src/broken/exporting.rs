//! Faults of exports and imports.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Mutex, PoisonError},
};

use swarmkeep::{
    Budget, Cursor, Export, InfoHash, Limits, PeerRecord, Records, Restored, Role, SwarmStats, Timestamp,
    TorrentRepository, implement::CursorExt as _,
};

use super::{Broken, Fault, let_others_in, let_others_in_until};
use crate::model::Swarm;

impl Broken {
    pub(super) fn export_wrongly(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        match self.fault {
            Fault::ExportByPosition
            | Fault::ExportHoldsLock
            | Fault::ExportBelievesEarlierTimes
            | Fault::ExportOfEmpties => {
                self.export_under_one_lock(export, now, budget);
            }
            Fault::ExportInTwoReads => {
                let (from, records) = export.begin(now);
                let (mut shown, mut peers) = (Vec::new(), Vec::new());
                let next = self.model.walk(from, budget.get(), &mut shown);
                for swarm in shown {
                    peers.clear();
                    self.model.peers(&swarm.info_hash, Cursor::START, budget.get(), &mut peers);
                    let_others_in();
                    let downloaded = self.model.scrape(&swarm.info_hash).downloaded;
                    if !peers.is_empty() || downloaded > 0 {
                        records.push(&swarm.info_hash, downloaded, &peers);
                    }
                }
                export.go_on_at(next);
            }
            Fault::ExportForgetsTime => {
                let latest = self.state().latest;
                self.model.export(export, now, budget);
                self.state().latest = latest;
            }
            Fault::ExportIgnoresBudget => self.model.export(export, now, Budget::peers(usize::MAX)),
            _ => BrokenListings { broken: self, noted: Mutex::default() }.export(export, now, budget),
        }
    }

    pub(super) fn import_wrongly(&self, records: &[Records], now: Timestamp) -> Restored {
        let (mut restored, mut seen) = (Restored::default(), BTreeMap::new());
        let first = if self.is(Fault::ImportFirstRecords) { 1 } else { usize::MAX };
        for record in records.iter().take(first).flat_map(Records::iter) {
            let (torrent, mut peers) = (record.info_hash, record.peers().collect::<Vec<_>>());
            let mut swarm = record.summary();
            let known = self.state().swarms.get(&torrent).map(Swarm::stats);
            let earlier = seen.insert(torrent, swarm.stats.downloaded);
            match self.fault {
                Fault::ImportFirstDownloads => {
                    swarm.stats.downloaded = earlier.unwrap_or(swarm.stats.downloaded);
                    seen.insert(torrent, swarm.stats.downloaded);
                }
                Fault::ImportFresh => peers.iter_mut().for_each(|peer| peer.last_announce = now),
                Fault::ImportSkipsSecondParts if earlier.is_some() => continue,
                Fault::ImportSkipsKnown if known.is_some() && earlier.is_none() => continue,
                Fault::ImportDisplaces => {
                    let mut state = self.state();
                    let full = state.limits.swarms.is_some_and(|most| state.swarms.len() >= most);
                    if let Some(&victim) = state.swarms.keys().next().filter(|_| full) {
                        state.remove(&victim);
                    }
                }
                Fault::ImportInTwoSteps => {
                    let others: Vec<_> = {
                        let state = self.state();
                        let swarm = state.swarms.get(&torrent);
                        let is_there = |peer: &PeerRecord| {
                            swarm.is_some_and(|swarm| swarm.peers.contains_key(&peer.endpoint))
                        };
                        peers.iter().filter(|peer| !is_there(peer)).copied().collect()
                    };
                    let_others_in();
                    if !others.is_empty() {
                        self.state().change(torrent, |swarm| {
                            for peer in others {
                                swarm.put(peer.endpoint, peer.role, peer.last_announce, peer.details);
                            }
                        });
                    }
                }
                _ => {}
            }
            let limits = self.state().limits;
            if self.is(Fault::ImportIgnoresLimits) {
                self.state().limits = Limits::default();
            }
            let mut one = self.model.restore(&swarm, &peers, now);
            self.state().limits = limits;
            if self.is(Fault::ImportCountsExpiredAsKnown) {
                one.known += mem::take(&mut one.expired);
            }
            if let Some(known) = known.filter(|_| self.is(Fault::ImportAddsDownloads) && earlier.is_none()) {
                self.model.add_downloads(&torrent, known.downloaded.min(swarm.stats.downloaded));
            }
            restored += one;
        }
        restored
    }

    /// Reads whole swarms up to the budget under one hold of the lock.
    fn export_under_one_lock(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        let state = self.state();
        let now = if self.is(Fault::ExportBelievesEarlierTimes) { now } else { now.max(state.latest) };
        let (from, records) = export.begin(now);
        let position = from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
        let (mut visited, mut shown) = (0, position);
        for (info_hash, swarm) in
            state.swarms.iter().skip(if from.is_end() { usize::MAX } else { position as usize })
        {
            if visited >= budget.get() {
                return export.go_on_at(Cursor::after(&shown.to_le_bytes()));
            }
            let peers: Vec<_> =
                swarm.peers.iter().map(|(&endpoint, peer)| peer.record(endpoint, state.latest)).collect();
            if !peers.is_empty() || swarm.downloaded > 0 || self.is(Fault::ExportOfEmpties) {
                records.push(info_hash, swarm.downloaded, &peers);
            }
            visited += 1 + peers.len();
            shown += 1;
        }
        export.go_on_at(Cursor::END);
    }
}

/// The listings that broken exports use.
#[derive(Debug)]
struct BrokenListings<'a> {
    broken: &'a Broken,
    /// The counts of a swarm before its peers were read, for a fault.
    noted: Mutex<BTreeMap<InfoHash, SwarmStats>>,
}

impl BrokenListings<'_> {
    /// Returns all peers of a swarm in the order of the listing.
    fn all(&self, info_hash: &InfoHash) -> Vec<PeerRecord> {
        let state = self.broken.state();
        let swarm = state.swarms.get(info_hash);
        let peers = swarm.into_iter().flat_map(|swarm| &swarm.peers);
        peers.map(|(&endpoint, peer)| peer.record(endpoint, state.latest)).collect()
    }

    /// Lists peers by position, in an order by role.
    fn by_position(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let mut all = self.all(info_hash);
        all.sort_by_key(|record| record.role);
        let position =
            from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
        out.extend(all.iter().skip(position).take(limit));
        match position.saturating_add(limit) {
            next if next >= all.len() => Cursor::END,
            next => Cursor::after(&(next as u64).to_le_bytes()),
        }
    }

    /// Lists the seeders in order, and then the leechers.
    fn seeders_first(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let all = self.all(info_hash);
        let mut role = Role::Seeder;
        let mut after: Vec<u8> = Vec::new();
        if let Some((&first, rest)) = from.bytes().and_then(|bytes| bytes.split_first()) {
            role = if first == 0 { Role::Seeder } else { Role::Leecher };
            after = rest.to_vec();
        }
        let behind =
            all.iter().filter(|peer| peer.role == role && peer.endpoint.as_bytes() > after.as_slice());
        let mut own: Vec<_> = behind.copied().collect();
        own.sort_by(|one, other| one.endpoint.as_bytes().cmp(other.endpoint.as_bytes()));
        own.truncate(limit);
        out.extend(&own);
        match own.last() {
            Some(last) if own.len() == limit => {
                let mut cursor = vec![u8::from(role == Role::Leecher)];
                cursor.extend_from_slice(last.endpoint.as_bytes());
                Cursor::after(&cursor)
            }
            _ if role == Role::Seeder => Cursor::after(&[1]),
            _ => Cursor::END,
        }
    }
}

impl TorrentRepository for BrokenListings<'_> {
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (start, fault) = (out.len(), self.broken.fault);
        if fault == Fault::ExportSkipsBusy {
            for _ in 0..20 {
                let_others_in();
                if self.broken.model.is_busy() {
                    return Cursor::END;
                }
            }
        }
        if from.is_end() || limit == 0 {
            return from;
        }
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.broken.model.scrape(info_hash);
        noted.insert(*info_hash, before);
        if fault == Fault::ExportDownloadsFirst && before.incomplete > 0 {
            let_others_in_until(|| self.broken.model.scrape(info_hash).downloaded > before.downloaded);
        }
        let next = match fault {
            Fault::ExportPeersByPosition => self.by_position(info_hash, from, limit, out),
            Fault::ExportSeedersFirst => self.seeders_first(info_hash, from, limit, out),
            _ => self.broken.model.peers(info_hash, from, limit, out),
        };
        let latest = self.broken.state().latest;
        match fault {
            Fault::ExportWithoutRoles => out[start..].iter_mut().for_each(|peer| peer.role = Role::Leecher),
            Fault::ExportWithoutTimes => out[start..].iter_mut().for_each(|peer| peer.last_announce = latest),
            _ => {}
        }
        next
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        let mut stats = self.broken.model.scrape(info_hash);
        match self.broken.fault {
            Fault::ExportDownloadsFirst => {
                let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
                stats.downloaded = noted.get(info_hash).map_or(0, |noted| noted.downloaded);
            }
            Fault::ExportSkipsPeerless if stats.peers() == 0 => stats.downloaded = 0,
            _ => {}
        }
        stats
    }

    swarmkeep::implement::forward_repository! { |reading| reading.broken, except peers, scrape, export }
}
