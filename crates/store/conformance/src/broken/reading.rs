//! Faults of scrapes, totals, and the listings of swarms and peers.

use std::{
    hint,
    sync::{PoisonError, atomic::Ordering::SeqCst},
};

use swarmkeep::{
    Cursor, Family, InfoHash, PeerRecord, Role, SwarmStats, SwarmSummary, TorrentRepository, Totals,
    implement::CursorExt as _,
};

use super::{Broken, Fault, TICK_SECS, announcing::of_16_bits, begin_of_tick, let_others_in};
use crate::model::{ModelState, Swarm};

impl Broken {
    pub(super) fn scrape_wrongly(&self, info_hash: &InfoHash) -> SwarmStats {
        if self.is(Fault::ScrapeCreates) {
            self.state().change(*info_hash, |_| ());
        }
        if self.is(Fault::ScrapeFromCache) {
            let mut scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
            let known = scraped.get(info_hash).filter(|(changes, _)| *changes == self.drift.load(SeqCst));
            let stats = known.map_or_else(|| self.model.scrape(info_hash), |(_, stats)| *stats);
            let_others_in();
            scraped.insert(*info_hash, (self.drift.load(SeqCst), stats));
            return stats;
        }
        let mut stats = self.model.scrape(&self.known_as(info_hash));
        if self.is(Fault::CountsOf16Bits) {
            return of_16_bits(stats);
        }
        stats.incomplete += self.ghosts(info_hash);
        if self.is(Fault::ScrapeWithoutIpv6)
            && let Some(swarm) = self.state().swarms.get(info_hash)
        {
            stats.complete -= swarm.count(Family::V6, Role::Seeder) as u32;
            stats.incomplete -= swarm.count(Family::V6, Role::Leecher) as u32;
        }
        stats
    }

    pub(super) fn totals_wrongly(&self) -> Totals {
        let mut totals = self.state().totals;
        match self.fault {
            Fault::TotalsDrift => totals.v4.leechers += self.drift.load(SeqCst),
            Fault::StoppedCountsUnknown => {
                totals.v4.leechers = totals.v4.leechers.saturating_sub(self.drift.load(SeqCst));
            }
            Fault::RemoveKeepsTotals => totals.swarms += self.drift.load(SeqCst),
            Fault::RemovalKeepsIpv6 => totals.v6.leechers += self.drift.load(SeqCst),
            Fault::SumKeepsEvicted => totals.downloaded += totals.evicted.swarms,
            Fault::SumNeverFalls => {
                totals.downloaded = self.drift.fetch_max(totals.downloaded, SeqCst).max(totals.downloaded);
            }
            Fault::TotalsByWalking => {
                totals.swarms =
                    self.state().swarms.keys().filter(|info_hash| info_hash.as_bytes() != &[0; 20]).count()
                        as u64
            }
            _ => {}
        }
        totals
    }

    pub(super) fn walk_wrongly(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        match (self.fault, from.bytes()) {
            (Fault::WalkKeepsNodes, _) => {
                let next = self.model.walk(from, limit, out);
                vec![1_u8; 232 * out.len()].leak();
                next
            }
            (Fault::WalkRepeats, _) => {
                let first = out.len();
                let next = self.model.walk(from, limit, out);
                if next.is_end() && first < out.len() && out.len() - first < limit {
                    out.push(out[first]);
                }
                next
            }
            (Fault::WalkByPosition, bytes) if !from.is_end() => {
                let position =
                    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
                let (limit, start) = (limit.min(1000), out.len());
                self.page_from(position, limit, out);
                let shown = out.len() - start;
                if shown < limit {
                    Cursor::END
                } else {
                    Cursor::after(&((position + shown) as u64).to_le_bytes())
                }
            }
            (Fault::WalkByLastAnnounce, bytes) if !from.is_end() => {
                let state = self.state();
                let place = |(info_hash, swarm): (&InfoHash, &Swarm)| {
                    let latest = swarm.latest.as_secs() as u32;
                    ([&latest.to_be_bytes()[..], info_hash.as_bytes()].concat(), *info_hash)
                };
                let mut behind: Vec<_> = state.swarms.iter().map(place).collect();
                behind.retain(|(place, _)| place.as_slice() > bytes.unwrap_or_default());
                behind.sort();
                behind.truncate(limit);
                let summary = |&(_, info_hash): &(Vec<u8>, InfoHash)| SwarmSummary {
                    info_hash,
                    stats: state.swarms[&info_hash].stats(),
                };
                out.extend(behind.iter().map(summary));
                behind
                    .last()
                    .filter(|_| behind.len() == limit)
                    .map_or(Cursor::END, |(place, _)| Cursor::after(place))
            }
            (Fault::WalkCountsFromTheStart, Some(bytes)) => {
                let after = InfoHash::new(bytes.try_into().expect("the model's cursors are info hashes"));
                hint::black_box(self.state().swarms.range(..after).map(|(_, swarm)| swarm.downloaded).max());
                self.model.walk(from, limit, out)
            }
            _ => self.model.walk(from, limit, out),
        }
    }

    pub(super) fn page_wrongly(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        match (self.fault, after) {
            (Fault::PageSkips, Some(after)) | (Fault::PageSkipsAfterRemoved, Some(after))
                if self.is(Fault::PageSkips) || !self.state().swarms.contains_key(after) =>
            {
                let mut skipped = Vec::new();
                self.model.page(Some(after), 1, &mut skipped);
                if let Some(skipped) = skipped.first() {
                    self.model.page(Some(&skipped.info_hash), limit, out);
                }
            }
            (Fault::PageLimitOverflows, _) => {
                self.model.page(after, limit.wrapping_add(out.len()).saturating_sub(out.len()), out);
            }
            (Fault::PageByPosition, _) => {
                let (known, start) = (after.and_then(|after| self.notes().remove(after)), out.len());
                match known {
                    Some(position) => self.page_from(position as usize, limit, out),
                    None => self.model.page(after, limit, out),
                }
                let position = known.unwrap_or_default() + (out.len() - start) as u32;
                if let Some(last) = out[start..].last().filter(|_| after.is_none() || known.is_some()) {
                    self.notes().insert(last.info_hash, position);
                }
            }
            (Fault::PageInTwoHolds, _) => {
                let before = |state: &ModelState| {
                    let up_to = |after| state.swarms.range(..=after).count();
                    after.copied().map_or(0, up_to)
                };
                let (position, half) = (before(&self.state()), limit.div_ceil(2));
                self.page_from(position, half, out);
                let_others_in();
                self.page_from(position.saturating_add(half), limit - half, out);
            }
            (Fault::PageNeedsItsInfoHash, Some(after)) if !self.state().swarms.contains_key(after) => {}
            _ => self.model.page(after, limit, out),
        }
    }

    /// Appends the swarms from a position on.
    fn page_from(&self, position: usize, limit: usize, out: &mut Vec<SwarmSummary>) {
        let state = self.state();
        let some = state.swarms.iter().skip(position).take(limit);
        out.extend(some.map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }));
    }

    pub(super) fn peers_wrongly(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let is_known = || self.state().swarms.contains_key(info_hash);
        match self.fault {
            Fault::PeersCreates => self.state().change(*info_hash, |_| ()),
            Fault::PeersByRole => {
                return by_role(&self.records(info_hash), [Role::Leecher, Role::Seeder], from, limit, out);
            }
            Fault::PeersInTwoHolds if from == Cursor::START && self.records(info_hash).len() < limit => {
                let of_role =
                    |role: Role| self.records(info_hash).into_iter().filter(move |peer| peer.role == role);
                out.extend(of_role(Role::Leecher));
                let_others_in();
                out.extend(of_role(Role::Seeder));
                return Cursor::END;
            }
            Fault::PeersNeverEnd if from != Cursor::START && !is_known() => return from,
            Fault::PeersSkip => {
                let next = self.model.peers(info_hash, from, limit, out);
                return self.model.peers(info_hash, next, 1, &mut Vec::new());
            }
            _ => {}
        }
        if !self.is(Fault::PeersByPosition) || from.is_end() {
            let (start, next) = (out.len(), self.model.peers(info_hash, from, limit, out));
            let ModelState { latest, lifetime_secs, .. } = *self.model.state();
            for record in &mut out[start..] {
                let begin = begin_of_tick(record.last_announce);
                match self.fault {
                    Fault::AgesEnd => {
                        let oldest = latest.saturating_sub(lifetime_secs + lifetime_secs / 7);
                        record.last_announce = record.last_announce.max(oldest);
                    }
                    Fault::TimesNotKept => record.last_announce = latest,
                    Fault::TimesRoundedOlder => record.last_announce = begin,
                    Fault::TimesInTheFuture => record.last_announce = begin.saturating_add(TICK_SECS - 1),
                    _ => {}
                }
            }
            return next;
        }
        by_position(self.records(info_hash), from, limit, out)
    }

    /// Returns all peers of a swarm in ascending order.
    pub(super) fn records(&self, info_hash: &InfoHash) -> Vec<PeerRecord> {
        let state = self.state();
        let peers = state.swarms.get(info_hash).into_iter().flat_map(|swarm| &swarm.peers);
        peers.map(|(&endpoint, peer)| peer.record(endpoint, state.latest)).collect()
    }
}

/// Lists peers by position, in an order by role.
pub(super) fn by_position(
    mut all: Vec<PeerRecord>,
    from: Cursor,
    limit: usize,
    out: &mut Vec<PeerRecord>,
) -> Cursor {
    all.sort_by_key(|record| record.role);
    let position =
        from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
    out.extend(all.iter().skip(position).take(limit));
    match position.saturating_add(limit) {
        next if next >= all.len() => Cursor::END,
        next => Cursor::after(&(next as u64).to_le_bytes()),
    }
}

/// Lists the peers of one role in order, and then those of the other.
pub(super) fn by_role(
    all: &[PeerRecord],
    roles: [Role; 2],
    from: Cursor,
    limit: usize,
    out: &mut Vec<PeerRecord>,
) -> Cursor {
    let (second, after) = match from.bytes().and_then(|bytes| bytes.split_first()) {
        Some((&second, after)) => (usize::from(second), after.to_vec()),
        None => (0, Vec::new()),
    };
    let is_left =
        |peer: &&PeerRecord| peer.role == roles[second] && peer.endpoint.as_bytes() > after.as_slice();
    let mut own: Vec<_> = all.iter().filter(is_left).copied().collect();
    own.sort_by(|one, other| one.endpoint.as_bytes().cmp(other.endpoint.as_bytes()));
    own.truncate(limit);
    out.extend(&own);
    match own.last() {
        Some(last) if own.len() == limit => {
            Cursor::after(&[&[second as u8], last.endpoint.as_bytes()].concat())
        }
        _ if second == 0 && !all.is_empty() => Cursor::after(&[1]),
        _ => Cursor::END,
    }
}
