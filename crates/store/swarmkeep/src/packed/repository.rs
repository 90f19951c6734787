//! The packed store as a [`TorrentRepository`].

use std::sync::atomic::Ordering::Relaxed;

use super::{
    LONGEST_LIFETIME_SECS, Packed, Visit, batch,
    hash::Key,
    import::holds,
    place::Placed,
    reservation::Reservation,
    shard::{ResumePoint, expire::SweepStep},
};
use crate::{
    Announce, Announced, BoundedBy, Budget, Capabilities, Cursor, Export, InfoHash, LongestHold, MemoryUse,
    PageCost, PeerBuffer, PeerRecord, Random, Records, Request, Restored, Retention, SwarmStats,
    SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
    implement::{CursorExt as _, Next, VISITS_PER_HOLD},
    sync::yield_now,
};

/// The shards that one sweep claims at once.
const SHARDS_PER_CLAIM: usize = 8;

impl TorrentRepository for Packed {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let now = self.latest.advance(now);
        self.announce_at(&self.context.placement.place(&announce.info_hash), announce, now, rng, peers)
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        batch.iter_mut().for_each(Request::clear);
        let mut rng = batch::CallerRng::new(rng);
        for group in batch.chunks_mut(batch::GROUP) {
            self.announce_group(group, self.latest.advance(now), &mut rng);
        }
        rng.raise();
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.with(info_hash, |shard, op| shard.scrape(op)).unwrap_or_default()
    }

    fn scrape_batch(&self, swarms: &mut [SwarmSummary]) {
        swarms.chunks_mut(batch::GROUP).for_each(|group| self.scrape_group(group));
    }

    fn totals(&self) -> Totals {
        self.context.totals.load()
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        if from.is_end() || limit == 0 {
            return from;
        }
        let placement = &self.context.placement;
        let after = from.info_hash().map(|info_hash| placement.place(&info_hash));
        let mut left = limit;
        for shard in after.map_or(0, |after| after.shard)..self.shards.len() {
            let mut behind = after.filter(|after| after.shard == shard).map(|after| after.key);
            loop {
                if let Some(last) = out.last().filter(|_| left == 0) {
                    return Cursor::after(last.info_hash.as_bytes());
                }
                let (start, hold) = (out.len(), left.min(VISITS_PER_HOLD));
                // Before the lock is taken: the contents of the vector may have to move.
                out.reserve(hold);
                let of_shard = placement.of_shard(shard);
                behind = self.lock(shard).list(placement.home(), behind.as_ref(), hold, |key, stats| {
                    out.push(SwarmSummary { info_hash: of_shard.info_hash(&key), stats });
                });
                left -= out.len() - start;
                if behind.is_none() {
                    break;
                }
            }
        }
        Cursor::END
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        let (start, limit) = (out.len(), limit.min(VISITS_PER_HOLD));
        let latest = self.latest.advance(Timestamp::default());
        out.reserve(limit);
        let next = self.with(info_hash, |shard, op| shard.peers(op, from, limit, out));
        for peer in &mut out[start..] {
            // Times are rounded up, but not into the future.
            peer.last_announce = peer.last_announce.min(latest);
        }
        next
    }

    fn advance(&self, now: Timestamp) -> Timestamp {
        self.latest.advance(now)
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        let now = self.latest.advance(now);
        let [now, oldest] =
            [now, now.saturating_sub(self.lifetime_secs)].map(|time| self.context.clock.tick(time));
        let (mut swept, mut left) = (Swept::default(), budget.get());
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::LookFrom(from) => {
                    let populated = (from..self.shards.len()).filter(|&shard| !self.lock(shard).is_empty());
                    let found: Vec<usize> = populated.take(SHARDS_PER_CLAIM).collect();
                    let next = found.last().filter(|_| found.len() == SHARDS_PER_CLAIM).map(|last| last + 1);
                    let visits = found.into_iter().map(|shard| Visit { shard, from: None });
                    let Some(claim) = self.pass.claim(from, visits, next) else { continue };
                    claim
                }
                Next::Leave => break,
            };
            while left > 0 {
                let Some(visit) = claim.current() else { break };
                let mut step = SweepStep::of(left.min(VISITS_PER_HOLD), &self.context);
                let (placed, from) = (Placed { shard: visit.shard, key: Key::default() }, visit.from);
                let next = self.with_shard(&placed, now, |shard, op| {
                    let next = shard.expire(op, from, oldest, policy, &mut step);
                    shard.settle(&mut step.reservation);
                    next
                });
                visit.from = next;
                // A hold that found no peer is a visit all the same.
                left = left.saturating_sub(step.visited.max(1));
                if next.is_none() {
                    claim.done();
                } else if !claim.turn() && left > 0 {
                    // Announces wait for this shard, the last one, and an unfair lock would let the sweep
                    // take it again at once. On a busy machine, to yield can take milliseconds.
                    yield_now();
                }
                swept.visited += step.visited as u64;
                swept.expired += step.gone.peers();
                swept.swarms_removed += step.swarms_removed;
            }
            swept.pass_complete = claim.finish();
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        // The peers of a large swarm are freed after the lock is released.
        let (stats, _large) = self.with(info_hash, |shard, op| shard.remove(op))?;
        Some(stats)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let now = self.latest.advance(now);
        let (mut restored, mut living) = (Restored::default(), Vec::new());
        self.living(peers.iter().copied(), now, &mut living, &mut restored);
        let (placed, downloaded) = (self.context.placement.place(&swarm.info_hash), swarm.stats.downloaded);
        let tick = self.context.clock.tick(now);
        for hold in holds(&living, downloaded) {
            let mut shard = self.lock(placed.shard);
            // Dropped first: it reports before the lock is released.
            let mut reservation = Reservation::without_slack(&self.context);
            shard.restore(&self.operation(&placed, tick), hold, downloaded, &mut reservation, &mut restored);
        }
        restored
    }

    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        let (placement, mut left, within) = (&self.context.placement, budget.get(), export.within);
        let (at, records) = export.begin(self.latest.advance(now));
        let begun = at.bytes().and_then(Placed::from_bytes);
        let mut from = begun.map(|Placed { key, .. }| ResumePoint { key, within });
        let first = begun.map_or(0, |begun| begun.shard);
        let shards = if at.is_end() { 0..0 } else { first..self.shards.len() };
        for shard in shards {
            loop {
                if left == 0 {
                    let ResumePoint { key, within } = from.unwrap_or(ResumePoint::first(placement.home()));
                    export.within = within;
                    return export.go_on_at(Cursor::after(&Placed { shard, key }.to_bytes()));
                }
                let hold = left.min(VISITS_PER_HOLD);
                // Before the lock is taken: the contents of the vector may have to move.
                records.reserve(hold);
                let locked = self.lock(shard);
                // The latest announce of all peers in the shard.
                let latest = self.latest.advance(Timestamp::default());
                let visited;
                (visited, from) = locked.export(&self.context, shard, (from, hold), latest, records);
                drop(locked);
                left = left.saturating_sub(visited.max(1));
                match from {
                    None => break,
                    // All announces to a large swarm wait for this lock: the caller decides how often it is
                    // taken.
                    Some(ResumePoint { within, .. }) if within != Cursor::START => left = 0,
                    Some(_) => {}
                }
            }
        }
        export.within = Cursor::START;
        export.go_on_at(Cursor::END);
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        self.import_records(records, self.latest.advance(now))
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let now = self.context.clock.tick(self.latest.advance(Timestamp::default()));
        let placed = self.context.placement.place(info_hash);
        let mut reservation = Reservation::new(&self.context);
        loop {
            let added = self.with_reservation(&placed, now, &mut reservation, |shard, op, reservation| {
                let added = shard.add_downloads(op, earlier, reservation);
                added.map_err(|full| shard.newcomer(op, None, full))
            });
            match added {
                Ok(added) => return added,
                Err(newcomer) if self.make_room(&newcomer, &mut reservation) => {}
                Err(_) => return false,
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(8 * VISITS_PER_HOLD))
            .with_page_cost(PageCost::WholeStore)
            .with_bounds(BoundedBy::all())
            .with_clock(self.context.clock.resolution_secs(), LONGEST_LIFETIME_SECS)
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::exact(self.context.bytes.load(Relaxed))
    }
}
