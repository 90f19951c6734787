//! The trait: the contract of every store of swarms, method by method.

use std::{fmt, sync::Arc};

use crate::{
    Announce, Announced, Budget, Capabilities, CompactV4, CompactV6, Cursor, Endpoint, Export, Immediate,
    InfoHash, MemoryUse, PeerBuffer, PeerRecord, Random, Records, Removed, Request, Restored, Retention,
    SwarmStats, SwarmSummary, Swept, Timestamp, Totals, asynchronous::at_once, defaults, export,
    implement::forward_repository,
};

/// The hidden first lines of the examples: a store with one leecher, and another one that is empty.
macro_rules! one_leecher {
    () => {
        r#"# use swarmkeep::*;
# let config = RepositoryConfig::new(HashKey::from_os().unwrap());
# let (store, other) = (Packed::new(&config).unwrap(), Packed::new(&config).unwrap());
# let (torrent, now, mut rng) = (InfoHash::new([7; 20]), Timestamp::from_secs(1000), SplitMix64::new(1));
# let leecher = Announce::new(torrent, "192.0.2.1:6881".parse().unwrap());
# store.announce_vec(&leecher, now, &mut rng);"#
    };
}

/// A store of swarms: for each info hash, the peers that announced it.
///
/// These rules hold for all methods:
///
/// - A **swarm** is the set of peers of one info hash. The identity of a peer is its **endpoint**, not its
///   peer id. A **seeder** has nothing left to download; every other peer is a **leecher**.
/// - The caller provides time, randomness and limits. A time earlier than one already seen counts as the
///   latest time seen.
/// - Every method may be called from any number of threads. No announce can panic the store. A panic in the
///   randomness or the predicate of the caller leaves the store usable.
/// - Remote peers choose info hashes and endpoints. No choice makes a call cost more than documented.
///
/// The conformance suite tests these pages (package `swarmkeep-conformance`). Authors
/// of stores start at [`implement`](crate::implement).
///
/// ```
/// use swarmkeep::{
///     Announce, Budget, HashKey, InfoHash, Packed, PeerBuffer, RepositoryConfig, Retention, SplitMix64,
///     Timestamp, TorrentRepository,
/// };
///
/// let store = Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?;
/// let (torrent, mut rng) = (InfoHash::new([7; 20]), SplitMix64::new(1));
/// let seeder = Announce::new(torrent, "192.0.2.1:6881".parse().unwrap()).left(0);
/// let leecher = Announce::new(torrent, "192.0.2.2:6881".parse().unwrap()).want(50);
///
/// let mut packet = [0; 300];
/// let mut peers = PeerBuffer::of(leecher.endpoint.family(), &mut packet);
/// store.announce(&seeder, Timestamp::from_secs(1000), &mut rng, &mut peers);
/// let answer = store.announce(&leecher, Timestamp::from_secs(1500), &mut rng, &mut peers);
/// assert_eq!((answer.stats.complete, answer.stats.incomplete), (1, 1));
/// assert_eq!(peers.endpoints().collect::<Vec<_>>(), [seeder.endpoint]);
///
/// // The default lifetime is 45 minutes: the seeder has expired at 3,800, the leecher has not.
/// let swept = store.sweep(Timestamp::from_secs(3800), Retention::DropEmpty, Budget::peers(1000));
/// assert_eq!((swept.expired, store.scrape(&torrent).incomplete, store.totals().peers()), (1, 1, 1));
/// # Ok::<(), swarmkeep::ConfigError>(())
/// ```
pub trait TorrentRepository: fmt::Debug + Send + Sync {
    /// Updates the announcing peer, counts its swarm, and selects other peers, in one atomic step.
    ///
    /// The calls of several threads to one swarm are linearizable: announces, scrapes, removals, restores and
    /// added downloads give the answers that they give one after the other, in some order in which each is
    /// between its start and its return.
    ///
    /// **Update.** `started`, `completed` and no event insert the peer or refresh it. Its role and its time
    /// become those of this announce: a leecher with nothing left becomes a seeder, and may become a leecher
    /// again. `stopped` removes the peer; for an unknown peer or an unknown info hash it changes nothing.
    /// `downloaded` grows by one when a `completed` with nothing left comes from an endpoint that is not a
    /// seeder already.
    ///
    /// **Count.** The answer contains the counts of the swarm after the update. Counters saturate.
    ///
    /// **Select.** `peers` is cleared. Then at most [`want`](Announce::want) distinct peers are written, in
    /// compact form: peers that are in the swarm at that moment, never the announcing endpoint, no seeders
    /// for a seeder unless it [asks for them](Announce::seeders_too), only peers of the families asked for,
    /// none for `stopped`. If at most `want` peers are eligible, all of them are selected; otherwise each
    /// with the same probability, anew for each announce. If both families are asked for, each gets half of
    /// `want`, and the part that one family does not use goes to the other. Selecting allocates nothing.
    ///
    /// **Concurrency.** After the announce has returned, no call about other peers (announce, sweep, removal,
    /// eviction) can lose its peer.
    ///
    /// **Limits.** At a limit the announcing peer enters, and the store evicts other peers or swarms: those
    /// with few peers and old announces before large swarms with recent ones, and no more of them than it
    /// needs and a few besides. If only swarms of more than 64 peers could go for a new swarm, this one has
    /// no room, and the announce changes nothing. No number of announces or endpoints of one network (IPv4
    /// /24, IPv6 /48, and few of these per /32) makes its swarms worth more: its flood displaces itself, and
    /// in a full swarm its peers displace each other. So swarms that only one network keeps alive (a seedbox,
    /// a VPN exit, a carrier's NAT) go before those of other networks. Of equals, a swarm with a peer that
    /// came back after a quarter of the lifetime stays; no peer does so if clients announce more often.
    /// [`Announced::evicted`] counts evictions, which may follow the counts and the selection of the answer.
    /// The [limit on the endpoints of an address](crate::RepositoryConfig::max_endpoints_per_address) holds
    /// in each swarm: a new endpoint replaces the endpoint of the same address (or /56, or /48) that
    /// announced least recently. If the endpoint is in the swarm already, none is replaced.
    ///
    /// **Cost.** O(want + log n) for n swarms and peers, and O(limit) more for a new endpoint if the
    /// endpoints of an address are limited. Counts never come from a walk over a swarm.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let seeder = Announce::new(torrent, "192.0.2.2:6881".parse().unwrap()).left(0).want(50);
    /// let mut packet = [0; 300];
    /// let mut peers = PeerBuffer::new(&mut packet, &mut []);
    /// let answer = store.announce(&seeder, now, &mut rng, &mut peers);
    /// assert_eq!((answer.stats.complete, answer.stats.incomplete), (1, 1));
    /// assert_eq!(peers.v4.as_bytes(), [192, 0, 2, 1, 0x1a, 0xe1]);
    /// ```
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced;

    /// Does every announce of `batch` as if one by one in order, and sets each [`Request::answer`].
    ///
    /// All requests are [cleared](Request::clear) first, so that no answer of an earlier batch stays. Counts,
    /// changes and the final state are those of single announces. So is the selection if at most `want` peers
    /// are eligible. If the generator of the caller panics, the panic reaches the caller, and all announces
    /// before the one that uses the generator first are complete. A store that can overlap the work of
    /// several announces overrides this method.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// # let announces = [leecher, Announce::new(torrent, "192.0.2.2:6881".parse().unwrap())];
    /// let mut packets = [[0; 300]; 2];
    /// let mut batch: Vec<_> = announces
    ///     .into_iter()
    ///     .zip(&mut packets)
    ///     .map(|(announce, packet)| Request::new(announce, PeerBuffer::new(packet, &mut [])))
    ///     .collect();
    /// store.announce_batch(&mut batch, now, &mut rng);
    /// assert_eq!(batch[1].answer.as_ref().map(|answer| answer.stats.incomplete), Some(2));
    /// ```
    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        batch.iter_mut().for_each(Request::clear);
        for request in batch {
            request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
        }
    }

    /// Returns the counts of one swarm; zeroes for an unknown info hash, which stays unknown. O(log n).
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.scrape(&torrent).incomplete, 1);
    /// ```
    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats;

    /// Does every scrape of `swarms` as if one by one in order, and sets its counts.
    ///
    /// A store that can overlap the work of several scrapes overrides this method.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let mut swarms = [SwarmSummary { info_hash: torrent, stats: SwarmStats::default() }];
    /// store.scrape_batch(&mut swarms);
    /// assert_eq!(swarms[0].stats.incomplete, 1);
    /// ```
    fn scrape_batch(&self, swarms: &mut [SwarmSummary]) {
        swarms.iter_mut().for_each(|swarm| swarm.stats = self.scrape(&swarm.info_hash));
    }

    /// Returns the counts over all swarms, exact when no other call is in flight. O(1), without a walk. A
    /// swarm that is removed, swept or evicted takes its downloads along.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// store.add_downloads(&torrent, 3);
    /// assert_eq!((store.totals().swarms, store.totals().peers(), store.totals().downloaded), (1, 1, 3));
    /// ```
    fn totals(&self) -> Totals;

    /// Appends up to `limit` swarms after the cursor `from` to `out`, in the store's own stable order, and
    /// returns the cursor of the next call.
    ///
    /// From [`Cursor::START`] until [`Cursor::END`], a swarm that lives through the whole walk is shown
    /// exactly once, and every other swarm at most once. A call may append fewer than `limit` swarms before
    /// the end. The cost of a call does not grow with the position.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let (mut cursor, mut swarms) = (Cursor::START, Vec::new());
    /// while !cursor.is_end() {
    ///     cursor = store.walk(cursor, 1000, &mut swarms);
    /// }
    /// assert_eq!(swarms[0].info_hash, torrent);
    /// ```
    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor;

    /// Appends up to `limit` swarms that follow `after` in ascending order of info hashes to `out`; fewer
    /// only at the end.
    ///
    /// The order is the same in every store; [`Capabilities::page_cost`] declares the cost. The default
    /// [walks](Self::walk) over the whole store and keeps the next `limit` swarms. A store that is kept in
    /// this order overrides it.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let (mut first, mut second) = (Vec::new(), Vec::new());
    /// store.page(None, 100, &mut first);
    /// store.page(first.last().map(|swarm| &swarm.info_hash), 100, &mut second);
    /// assert_eq!((first.len(), second.len()), (1, 0));
    /// ```
    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        at_once(defaults::page_by_walking(&Immediate(self), after, limit, out)).expect(NEVER_AWAY);
    }

    /// Appends up to `limit` peers of one swarm after the cursor `from` to `out`, with role and time, and
    /// returns the cursor of the next call.
    ///
    /// A peer that stays from [`Cursor::START`] to [`Cursor::END`] is shown exactly once, even if its role or
    /// the peers around it change. Each peer is shown as it was at some moment in between. Times are those
    /// of the last announces; a time may be up to [`Capabilities::clock_resolution_secs`] too late, and
    /// never later than the latest time given. An expired peer that no [`sweep`](Self::sweep) has removed
    /// yet is shown with an age of a lifetime or more. If its own time is lost, the earliest time of the
    /// store's clock stands for it: the Unix epoch, or later by up to the resolution. Details that the
    /// store does not keep are absent ([`Capabilities::keeps_peer_details`]). An unknown info hash has no
    /// peers. A call may append fewer than `limit` peers before the end.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let (mut cursor, mut peers) = (Cursor::START, Vec::new());
    /// while !cursor.is_end() {
    ///     cursor = store.peers(&torrent, cursor, 1000, &mut peers);
    /// }
    /// assert_eq!((peers[0].endpoint, peers[0].role), (leecher.endpoint, Role::Leecher));
    /// ```
    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor;

    /// Tells the store the time, as every call with a time does, and returns the latest time given to it.
    /// O(1).
    ///
    /// Later calls count an earlier time as this one. The defaults of [`export`](Self::export) and
    /// [`import`](Self::import) tell the time with it.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.advance(now.saturating_add(5)), now.saturating_add(5));
    /// assert_eq!(store.advance(now), now.saturating_add(5));
    /// ```
    fn advance(&self, now: Timestamp) -> Timestamp;

    /// Does one bounded step of expiry: removes peers that are older than the lifetime, and swarms without
    /// peers as `policy` says.
    ///
    /// A peer is removed when its age exceeds the lifetime by more than
    /// [`Capabilities::clock_resolution_secs`], and never while it is younger than the lifetime. Late or
    /// missing sweeps make no peer young again. A peer that announces while a sweep runs survives it.
    ///
    /// The step visits about `budget` peers (a swarm counts as one more) and holds no lock for longer than
    /// [`Capabilities::longest_hold`]. The position belongs to the store: concurrent calls share one pass,
    /// and [`Swept::pass_complete`] marks its end. An expired peer is removed within one full pass if no
    /// other call runs. A pass costs time in proportion to the swarms and peers.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let later = now.saturating_add(3600);
    /// while !store.sweep(later, Retention::DropEmpty, Budget::peers(4096)).pass_complete {
    ///     // A tracker waits here: one pass per tenth of the lifetime is enough.
    /// }
    /// assert_eq!(store.totals().swarms, 0);
    /// ```
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept;

    /// Removes one swarm with its peers and its download count, and returns its counts; `None` for an unknown
    /// info hash.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.remove(&torrent).map(|last| last.incomplete), Some(1));
    /// assert_eq!(store.remove(&torrent), None);
    /// ```
    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats>;

    /// Removes every swarm for which `forbidden` returns true, among the next `budget` swarms after the
    /// cursor `from`; returns the removed swarms and the cursor of the next call.
    ///
    /// From [`Cursor::START`] until [`Cursor::END`], `forbidden` is called exactly once for every swarm that
    /// lives through all steps, without a lock held. The default uses [`walk`](Self::walk) and
    /// [`remove`](Self::remove).
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let (mut cursor, blocked) = (Cursor::START, [torrent]);
    /// while !cursor.is_end() {
    ///     cursor = store.remove_where(&|swarm| blocked.contains(swarm), cursor, Budget::peers(1000)).next;
    /// }
    /// assert_eq!(store.totals().swarms, 0);
    /// ```
    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        at_once(defaults::remove_by_walking(&Immediate(self), forbidden, from, budget)).expect(NEVER_AWAY)
    }

    /// Restores a swarm of a snapshot: its peers with role and age, and its download count.
    ///
    /// Peers that are older than the lifetime are left out. A peer that is in the swarm already stays as it
    /// announced itself. The download count becomes the larger of the two. A swarm may be restored in several
    /// calls with some of its peers each. A swarm without living peers and downloads is not created. Peers
    /// beyond a limit are refused, and replace none.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// for swarm in store.swarms() {
    ///     let restored = other.restore(&swarm, &store.all_peers(&swarm.info_hash), now);
    ///     assert_eq!((restored.added, restored.refused), (1, 0));
    /// }
    /// ```
    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored;

    /// Does one bounded step of a snapshot: reads the next swarms, with download counts and peers, into
    /// [`Export::records`].
    ///
    /// From [`Export::new`] until [`Export::is_complete`], every peer that stays in the store is read, with a
    /// role and a time that it had during the export. If a leecher finishes during the export and is read as
    /// a seeder, the record of its swarm contains its download. If a swarm is removed and made again
    /// meanwhile, a store that reads peers and downloads at once shows one of the two. A swarm that has
    /// neither peers nor downloads is not read. A step visits about `budget` peers (a swarm counts as one
    /// more), or fewer if it ends within a swarm. It holds no lock for longer than
    /// [`Capabilities::longest_hold`].
    ///
    /// The default uses [`walk`](Self::walk), [`peers`](Self::peers) and [`scrape`](Self::scrape), and reads
    /// a swarm again, up to 32 times, if its counts contradict its peers. A store that can read both under
    /// one lock overrides it.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let (mut export, mut file) = (Export::new(), Vec::new());
    /// while !export.is_complete() {
    ///     store.export(&mut export, now, Budget::peers(4096));
    ///     file.extend_from_slice(export.records().as_bytes());
    /// }
    /// assert!(!file.is_empty());
    /// ```
    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        at_once(export::by_walking(&Immediate(self), export, now, budget)).expect(NEVER_AWAY);
    }

    /// Restores every swarm of `records`, as if one by one by [`restore`](Self::restore) in some order. The
    /// default does that; a store that is faster with many swarms at once overrides it.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let mut export = Export::new();
    /// while !export.is_complete() {
    ///     store.export(&mut export, now, Budget::peers(4096));
    ///     other.import(std::slice::from_ref(export.records()), now);
    /// }
    /// assert_eq!(other.totals(), store.totals());
    /// ```
    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        at_once(export::one_by_one(&Immediate(self), records, now)).expect(NEVER_AWAY)
    }

    /// Adds `earlier`, the downloads that were counted before this store was built, to the download count of
    /// a swarm; returns `false` if there is no such swarm.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let new = Announce::new(InfoHash::new([8; 20]), leecher.endpoint);
    /// let (answer, _) = store.announce_vec(&new, now, &mut rng);
    /// if answer.changes.contains(Changes::CREATED) {
    ///     store.add_downloads(&new.info_hash, 40);
    /// }
    /// assert_eq!(store.scrape(&new.info_hash).downloaded, 40);
    /// ```
    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool;

    /// Returns the properties that this store declares: limits, clock, costs.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert!(store.capabilities().bounded.contains(BoundedBy::BYTES));
    /// ```
    fn capabilities(&self) -> Capabilities;

    /// Returns the memory that this store takes. O(1).
    ///
    /// ```
    #[doc = one_leecher!()]
    /// let MemoryUse { bytes, exact, .. } = store.memory();
    /// assert!(bytes > 0 && exact);
    /// ```
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
    /// Announces, and returns the answer and the selected peers, IPv4 first, 65,535 per family at most.
    /// Allocates: a tracker points a [`PeerBuffer`] into its packet instead.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use swarmkeep::*;
    ///
    /// let store = Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?;
    /// let (now, mut rng) = (Timestamp::try_from(SystemTime::now())?, OsRandom::new()?);
    /// let torrent = InfoHash::new([7; 20]);
    /// type Parsed = Result<Announce, Box<dyn std::error::Error>>;
    /// let announce = |address: &str| -> Parsed { Ok(Announce::at(torrent, address.parse()?)?) };
    /// store.announce_vec(&announce("192.0.2.1:6881")?, now, &mut rng);
    /// let (answer, peers) = store.announce_vec(&announce("192.0.2.2:6881")?, now, &mut rng);
    /// assert_eq!((answer.stats.incomplete, peers), (2, vec!["192.0.2.1:6881".parse()?]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn announce_vec(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
    ) -> (Announced, Vec<Endpoint>) {
        let most = announce.want.min(u16::MAX.into());
        let (mut v4, mut v6) = (vec![0; most * CompactV4::LEN], vec![0; most * CompactV6::LEN]);
        let mut peers = PeerBuffer::new(&mut v4, &mut v6);
        let announced = self.announce(announce, now, rng, &mut peers);
        (announced, peers.endpoints().collect())
    }

    /// Sweeps until a pass is complete, in steps: an announce waits for one
    /// [`sweep`](TorrentRepository::sweep) at most. For a thread that only cleans, every few minutes, and for
    /// tests and tools. A thread that also answers spreads the steps over time instead.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.sweep_all(now.saturating_add(3600), Retention::DropEmpty).expired, 1);
    /// ```
    fn sweep_all(&self, now: Timestamp, policy: Retention) -> Swept {
        let mut all = Swept::default();
        while !all.pass_complete {
            all += self.sweep(now, policy, Budget::peers(65_536));
        }
        all
    }

    /// Every swarm, in the store's own order.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.swarms()[0].info_hash, torrent);
    /// ```
    fn swarms(&self) -> Vec<SwarmSummary> {
        let (mut cursor, mut all) = (Cursor::START, Vec::new());
        while !cursor.is_end() {
            cursor = self.walk(cursor, 1024, &mut all);
        }
        all
    }

    /// Every peer of one swarm.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.all_peers(&torrent)[0].endpoint, leecher.endpoint);
    /// ```
    fn all_peers(&self, info_hash: &InfoHash) -> Vec<PeerRecord> {
        let (mut cursor, mut all) = (Cursor::START, Vec::new());
        while !cursor.is_end() {
            cursor = self.peers(info_hash, cursor, 1024, &mut all);
        }
        all
    }

    /// Removes every swarm for which `forbidden` returns true, and returns them. In steps, like
    /// [`sweep_all`](Self::sweep_all), and for the same callers.
    ///
    /// ```
    #[doc = one_leecher!()]
    /// assert_eq!(store.remove_all_where(&|swarm| *swarm == torrent)[0].stats.incomplete, 1);
    /// ```
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
