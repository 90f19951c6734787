//! The trait: what every store of swarms does, method by method.

use std::{fmt, sync::Arc};

use crate::{
    Announce, Announced, Budget, Capabilities, Cursor, Export, Immediate, InfoHash, MemoryUse, PeerBuffer,
    PeerRecord, Random, Records, Removed, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept,
    Timestamp, Totals, asynchronous::at_once, export,
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
    /// The same order in every store; [`Capabilities::page_cost`] says what it costs.
    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>);

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
    /// exactly once. The predicate is called without a lock held.
    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed;

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

/// Within an implementation of [`TorrentRepository`], forwards every method that you do not write yourself to
/// an inner store.
///
/// `|this|` names `self`, the expression behind it is the inner store, and `except` lists the methods that
/// you write. [`announce_batch`](TorrentRepository::announce_batch) is forwarded too: its default would undo
/// what the inner store gains from one.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use swarmkeep::{InfoHash, SwarmStats, TorrentRepository, forward_repository};
///
/// /// Counts the scrapes of the store inside.
/// #[derive(Debug)]
/// struct Counting<R> {
///     inner: R,
///     scrapes: AtomicU64,
/// }
///
/// impl<R: TorrentRepository> TorrentRepository for Counting<R> {
///     fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
///         self.scrapes.fetch_add(1, Relaxed);
///         self.inner.scrape(info_hash)
///     }
///
///     forward_repository! { |counting| counting.inner, except scrape }
/// }
/// ```
///
/// With `|this| inner => function`, what the inner methods give goes through a function. So it may be
/// something else than the answer, such as a future of it.
#[macro_export]
macro_rules! forward_repository {
    (|$this:ident| $inner:expr $(, except $($written:ident),+)?) => {
        $crate::forward_repository! {
            |$this| $inner => ::core::convert::identity $(, except $($written),+)?
        }
    };
    (|$this:ident| $inner:expr => $answer:path $(, except $($written:ident),+)?) => {
        $crate::__forward_repository! { ($this, $inner, $answer) [$($($written)+)?]
            announce(
                announce: &$crate::Announce,
                now: $crate::Timestamp,
                rng: &mut dyn $crate::Random,
                peers: &mut $crate::PeerBuffer<'_>,
            ) -> $crate::Announced;
            announce_batch(
                batch: &mut [$crate::Request<'_>],
                now: $crate::Timestamp,
                rng: &mut dyn $crate::Random,
            ) -> ();
            scrape(info_hash: &$crate::InfoHash) -> $crate::SwarmStats;
            totals() -> $crate::Totals;
            walk(
                from: $crate::Cursor,
                limit: usize,
                out: &mut ::std::vec::Vec<$crate::SwarmSummary>,
            ) -> $crate::Cursor;
            page(
                after: ::core::option::Option<&$crate::InfoHash>,
                limit: usize,
                out: &mut ::std::vec::Vec<$crate::SwarmSummary>,
            ) -> ();
            peers(
                info_hash: &$crate::InfoHash,
                from: $crate::Cursor,
                limit: usize,
                out: &mut ::std::vec::Vec<$crate::PeerRecord>,
            ) -> $crate::Cursor;
            sweep(now: $crate::Timestamp, policy: $crate::Retention, budget: $crate::Budget) -> $crate::Swept;
            remove(info_hash: &$crate::InfoHash) -> ::core::option::Option<$crate::SwarmStats>;
            remove_where(
                forbidden: &(dyn ::core::ops::Fn(&$crate::InfoHash) -> bool + ::core::marker::Sync),
                from: $crate::Cursor,
                budget: $crate::Budget,
            ) -> $crate::Removed;
            restore(
                swarm: &$crate::SwarmSummary,
                peers: &[$crate::PeerRecord],
                now: $crate::Timestamp,
            ) -> $crate::Restored;
            export(export: &mut $crate::Export, now: $crate::Timestamp, budget: $crate::Budget) -> ();
            import(records: &[$crate::Records], now: $crate::Timestamp) -> $crate::Restored;
            add_downloads(info_hash: &$crate::InfoHash, earlier: u32) -> bool;
            capabilities() -> $crate::Capabilities;
            memory() -> $crate::MemoryUse;
        }
    };
}

/// The methods that [`forward_repository`] lists, less those that are written already.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_repository {
    ($to:tt $written:tt $($method:ident($($name:ident: $type:ty),* $(,)?) -> $output:ty;)*) => {
        $($crate::__forward_repository! { @unless $written $method $to ($($name: $type),*) -> $output })*
    };

    (@unless [announce $($more:ident)*] announce $($rest:tt)*) => {};
    (@unless [announce_batch $($more:ident)*] announce_batch $($rest:tt)*) => {};
    (@unless [scrape $($more:ident)*] scrape $($rest:tt)*) => {};
    (@unless [totals $($more:ident)*] totals $($rest:tt)*) => {};
    (@unless [walk $($more:ident)*] walk $($rest:tt)*) => {};
    (@unless [page $($more:ident)*] page $($rest:tt)*) => {};
    (@unless [peers $($more:ident)*] peers $($rest:tt)*) => {};
    (@unless [sweep $($more:ident)*] sweep $($rest:tt)*) => {};
    (@unless [remove $($more:ident)*] remove $($rest:tt)*) => {};
    (@unless [remove_where $($more:ident)*] remove_where $($rest:tt)*) => {};
    (@unless [restore $($more:ident)*] restore $($rest:tt)*) => {};
    (@unless [export $($more:ident)*] export $($rest:tt)*) => {};
    (@unless [import $($more:ident)*] import $($rest:tt)*) => {};
    (@unless [add_downloads $($more:ident)*] add_downloads $($rest:tt)*) => {};
    (@unless [capabilities $($more:ident)*] capabilities $($rest:tt)*) => {};
    (@unless [memory $($more:ident)*] memory $($rest:tt)*) => {};
    (@unless [$other:ident $($more:ident)*] $($rest:tt)*) => {
        $crate::__forward_repository! { @unless [$($more)*] $($rest)* }
    };
    (@unless []
        $method:ident ($this:ident, $inner:expr, $answer:path) ($($name:ident: $type:ty),*) -> $output:ty
    ) => {
        fn $method(&self, $($name: $type),*) -> $output {
            let $this = self;
            $answer($inner.$method($($name),*))
        }
    };
}

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

    /// One step of [`remove_where`](TorrentRepository::remove_where) by the store's own walk and
    /// [`remove`](TorrentRepository::remove), for stores that have no shorter way.
    fn remove_by_walking(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        let mut shown = Vec::new();
        let next = self.walk(from, budget.get(), &mut shown);
        let named = shown.into_iter().filter(|swarm| forbidden(&swarm.info_hash));
        let removed = named.filter_map(|SwarmSummary { info_hash, .. }| {
            self.remove(&info_hash).map(|stats| SwarmSummary { info_hash, stats })
        });
        Removed::new(removed.collect(), next)
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
