//! The trait: what every store of swarms does, method by method.

use std::{fmt, sync::Arc};

use crate::{
    Announce, Announced, Budget, Capabilities, Cursor, Export, Immediate, InfoHash, MemoryUse, PeerBuffer,
    PeerRecord, Random, Records, Removed, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept,
    Timestamp, Totals, asynchronous::at_once, defaults, export, implement::forward_repository,
};

/// A store of swarms: for each info hash, the peers that announced it.
///
/// Each sentence of these contracts is a case of the conformance suite (package `swarmkeep-conformance`).
/// What holds for all methods:
///
/// - A **swarm** is the peers of one info hash; a peer is its **endpoint**, whatever peer id it uses. A
///   **seeder** has nothing left to download, a **leecher** has.
/// - Time, randomness and limits are handed in. A time earlier than one already seen counts as the latest
///   seen.
/// - Every method may be called from any number of threads. No call panics for what an announce holds, and a
///   panic in the caller's randomness or predicate leaves the store usable.
/// - Clients choose info hashes and endpoints. Whatever they choose, a call costs what its documentation
///   says.
pub trait TorrentRepository: fmt::Debug + Send + Sync {
    /// Updates the announcing peer, counts, and selects other peers, in one atomic step.
    ///
    /// **Update.** `started`, no event and `completed` insert the peer or refresh it: its role and time
    /// become those of this announce, so that a leecher with nothing left moves to the seeders and may move
    /// back, and is never counted twice. `stopped` removes the peer and selects none; without such a peer or
    /// swarm it changes nothing. `downloaded` grows by one when a `completed` with nothing left finds the
    /// endpoint not already a seeder.
    ///
    /// **Count.** The answer holds the swarm's counts after the update. Counters saturate.
    ///
    /// **Select.** `peers` is cleared, then filled with at most [`want`](Announce::want) distinct peers,
    /// alive at that moment, never the announcing endpoint, no seeders for a seeder, only of the families
    /// asked for. If no more than that are eligible, all are selected; otherwise each with the same
    /// probability, anew each time. Where both families are asked for, each gets half, and what one leaves
    /// unused goes to the other. Writes compact forms; allocates nothing.
    ///
    /// **Concurrency.** Once it has returned, no call about *other* peers (announce, sweep, removal,
    /// eviction) can lose the announced one.
    ///
    /// **Limits.** At a limit the announcer enters, and the store evicts the peers or swarms that are worth
    /// least; [`Announced::evicted`] counts them. The [limit on the endpoints of an
    /// address](crate::RepositoryConfig::max_endpoints_per_address) holds for each swarm: a new endpoint
    /// replaces the endpoint of the same address that announced least recently (any one of them if several
    /// are equally old), so an address displaces only itself. An endpoint that is already there displaces
    /// none; `stopped` frees its place.
    ///
    /// **Cost.** O(want + log n) for n swarms and peers, and O(limit) more for a newcomer where the endpoints
    /// of an address are limited; counts never come from walking a swarm.
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced;

    /// Does every announce of `batch` as if one by one in order, and fills in each [`Request::answer`].
    ///
    /// Counts, changes and the final state are those of single announces; so are selections where there is no
    /// choice. If the caller's randomness panics, the announces before the first one that draws are done. A
    /// store that can overlap the work of several announces overrides this.
    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        for request in batch {
            request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
        }
    }

    /// The counts of one swarm; zeroes for an unknown info hash, which stays unknown. O(log n).
    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats;

    /// Counts over all swarms: exact whenever no other call is in flight. O(1), no walk.
    fn totals(&self) -> Totals;

    /// Appends up to `limit` swarms to `out`, in the store's own stable order, from the cursor on; answers
    /// where to go on.
    ///
    /// From [`Cursor::START`] until [`Cursor::END`], a swarm that lives through the whole walk is shown
    /// exactly once; one that comes or goes meanwhile at most once. A call may append fewer than `limit` and
    /// still not be at the end. The cost of a call does not grow with the position.
    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor;

    /// Appends the up to `limit` swarms that follow `after` in ascending info-hash order; fewer than `limit`
    /// only at the end.
    ///
    /// The same order in every store; [`Capabilities::page_cost`] says what it costs. The default
    /// [walks](Self::walk) over the whole store and keeps the next `limit` swarms; a store that is kept in
    /// this order overrides it.
    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        at_once(defaults::page_by_walking(&Immediate(self), after, limit, out)).expect(NEVER_AWAY);
    }

    /// Appends up to `limit` peers of one swarm to `out`, with role and time, from the cursor on; answers
    /// where to go on.
    ///
    /// A peer that stays from [`Cursor::START`] to [`Cursor::END`] is shown exactly once, whatever moves
    /// around it, its own role included. Times are those of the last announces, later by up to
    /// [`Capabilities::clock_resolution_secs`] and never later than the latest time given. What the store
    /// does not keep is absent, never invented ([`Capabilities::keeps_peer_details`]). An unknown info hash
    /// has no peers. A call may append fewer than `limit` and still not be at the end.
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor;

    /// Does one bounded step of forgetting: removes peers that are older than the lifetime, and swarms
    /// without peers as `policy` says.
    ///
    /// A peer goes when its age exceeds the lifetime by more than [`Capabilities::clock_resolution_secs`],
    /// never while it is younger; sweeps that come late or never make no peer young again. A peer that
    /// announces while a sweep runs survives it. The step visits about `budget` peers (a swarm counts as one
    /// more) and holds no lock for longer than [`Capabilities::longest_hold`]. The position is the store's
    /// own: concurrent calls share one pass. The answer says when a pass over all swarms is complete; an
    /// expired peer goes within one full pass if nothing else runs.
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept;

    /// Removes one swarm with its peers and its download count; says what was there, `None` for an unknown
    /// info hash.
    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats>;

    /// Removes every swarm that `forbidden` names, among the next `budget` swarms from the cursor on; says
    /// which they were and where to go on.
    ///
    /// From [`Cursor::START`] until [`Cursor::END`], every swarm that lives through all steps is asked about
    /// exactly once. The predicate is called without a lock held. The default uses [`walk`](Self::walk) and
    /// [`remove`](Self::remove).
    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        at_once(defaults::remove_by_walking(&Immediate(self), forbidden, from, budget)).expect(NEVER_AWAY)
    }

    /// Puts a swarm back as a snapshot had it: its peers with role and age, and its download count.
    ///
    /// Peers older than the lifetime stay out; a peer that is there already stays as it announced itself. The
    /// download count becomes the larger of the two, so a swarm may be restored in several calls with some of
    /// its peers each. A swarm without living peers and downloads is not created. Peers beyond a limit are
    /// refused, and displace none.
    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored;

    /// Reads the next swarms out, with download counts and peers, into [`Export::records`]: one bounded step
    /// of a snapshot.
    ///
    /// From [`Export::new`] until [`Export::is_complete`], every peer that stays in the store is read, with a
    /// role and a time that it had during the export. The download of a seeder that is read is counted in the
    /// swarm's record. A swarm that has neither peers nor downloads is not read. A step visits about `budget`
    /// peers (a swarm counts as one more), or fewer if it ends in the middle of a swarm; it holds no lock for
    /// longer than [`Capabilities::longest_hold`]. The default uses [`walk`](Self::walk) and
    /// [`peers`](Self::peers); a store with a faster way overrides it.
    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        at_once(export::by_walking(&Immediate(self), export, now, budget)).expect(NEVER_AWAY);
    }

    /// Restores every swarm of `records`, as if one by one by [`restore`](Self::restore) in some order. A
    /// store that can do so faster for many at once overrides this; a million swarms at a time are many for
    /// every store.
    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        at_once(export::one_by_one(&Immediate(self), records, now)).expect(NEVER_AWAY)
    }

    /// Adds downloads that were counted earlier, before this store began, to a swarm; `false` if there is no
    /// such swarm.
    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool;

    /// What this store can do beyond the rest of this trait.
    fn capabilities(&self) -> Capabilities;

    /// What this store takes. O(1).
    fn memory(&self) -> MemoryUse;
}

const NEVER_AWAY: &str = "a store in this process can always be reached";

impl<R: TorrentRepository + ?Sized> TorrentRepository for &R {
    forward_repository! { |reference| **reference }
}

impl<R: TorrentRepository + ?Sized> TorrentRepository for Box<R> {
    forward_repository! { |boxed| **boxed }
}

impl<R: TorrentRepository + ?Sized> TorrentRepository for Arc<R> {
    forward_repository! { |shared| **shared }
}

/// Conveniences over any repository.
pub trait TorrentRepositoryExt: TorrentRepository {
    /// Sweeps until a pass is complete; for tests and tools. A tracker paces its steps instead.
    fn sweep_all(&self, now: Timestamp, policy: Retention) -> Swept {
        let mut all = Swept::default();
        while !all.pass_complete {
            all += self.sweep(now, policy, Budget::peers(65_536));
        }
        all
    }

    /// Every swarm, in the store's own order.
    fn swarms(&self) -> Vec<SwarmSummary> {
        let (mut cursor, mut all) = (Cursor::START, Vec::new());
        while !cursor.is_end() {
            cursor = self.walk(cursor, 1024, &mut all);
        }
        all
    }

    /// Every peer of one swarm.
    fn all_peers(&self, info_hash: &InfoHash) -> Vec<PeerRecord> {
        let (mut cursor, mut all) = (Cursor::START, Vec::new());
        while !cursor.is_end() {
            cursor = self.peers(info_hash, cursor, 1024, &mut all);
        }
        all
    }

    /// Removes every swarm that `forbidden` names and answers what they were.
    fn remove_all_where(&self, forbidden: &(dyn Fn(&InfoHash) -> bool + Sync)) -> Vec<SwarmSummary> {
        let (mut cursor, mut all) = (Cursor::START, Vec::new());
        while !cursor.is_end() {
            let mut step = self.remove_where(forbidden, cursor, Budget::peers(1024));
            all.append(&mut step.removed);
            cursor = step.next;
        }
        all
    }
}

impl<R: TorrentRepository + ?Sized> TorrentRepositoryExt for R {}
