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

use super::{
    Broken, Fault, let_others_in, let_others_in_until,
    reading::{by_position, by_role},
};
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
            Fault::ExportPeersByPosition => by_position(self.broken.records(info_hash), from, limit, out),
            Fault::ExportSeedersFirst => {
                by_role(&self.broken.records(info_hash), [Role::Seeder, Role::Leecher], from, limit, out)
            }
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
