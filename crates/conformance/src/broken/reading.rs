//! Faults of reading: scrapes, totals, and the listings of swarms and peers.

use std::{hint, sync::atomic::Ordering::SeqCst};

use swarmkeep::{Cursor, InfoHash, PeerRecord, SwarmStats, SwarmSummary, TorrentRepository, Totals};

use super::{Broken, Fault, TICK_SECS, begin_of_tick};

impl Broken {
    pub(super) fn scrape_wrongly(&self, info_hash: &InfoHash) -> SwarmStats {
        if self.is(Fault::ScrapeCreates) {
            self.state().change(*info_hash, |_| ());
        }
        let mut stats = self.model.scrape(&self.known_as(info_hash));
        stats.incomplete += self.ghosts(info_hash);
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
                let limit = limit.min(1000);
                let (state, start) = (self.state(), out.len());
                let some = state.swarms.iter().skip(position).take(limit);
                out.extend(some.map(|(&info_hash, swarm)| SwarmSummary { info_hash, stats: swarm.stats() }));
                let shown = out.len() - start;
                if shown < limit {
                    Cursor::END
                } else {
                    Cursor::after(&((position + shown) as u64).to_le_bytes())
                }
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
            (Fault::PageSkips, Some(after)) => {
                let mut skipped = Vec::new();
                self.model.page(Some(after), 1, &mut skipped);
                if let Some(skipped) = skipped.first() {
                    self.model.page(Some(&skipped.info_hash), limit, out);
                }
            }
            (Fault::PageNeedsItsInfoHash, Some(after)) if !self.state().swarms.contains_key(after) => {}
            _ => self.model.page(after, limit, out),
        }
    }

    pub(super) fn peers_wrongly(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        if !self.is(Fault::PeersByPosition) || from.is_end() {
            let (start, next) = (out.len(), self.model.peers(info_hash, from, limit, out));
            let latest = self.state().latest;
            for record in &mut out[start..] {
                let begin = begin_of_tick(record.last_announce);
                match self.fault {
                    Fault::TimesNotKept => record.last_announce = latest,
                    Fault::TimesRoundedOlder => record.last_announce = begin,
                    Fault::TimesInTheFuture => record.last_announce = begin.saturating_add(TICK_SECS - 1),
                    _ => {}
                }
            }
            return next;
        }
        let position =
            from.bytes().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
        let mut all = Vec::new();
        let mut cursor = Cursor::START;
        while !cursor.is_end() {
            cursor = self.model.peers(info_hash, cursor, usize::MAX, &mut all);
        }
        all.sort_by_key(|record| record.role);
        out.extend(all.iter().skip(position).take(limit));
        if all.len() <= position.saturating_add(limit) {
            return Cursor::END;
        }
        Cursor::after(&((position + limit) as u64).to_le_bytes())
    }
}
