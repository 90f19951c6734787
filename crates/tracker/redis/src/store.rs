//! The repository: the calls to each shard, and the meaning of the answers.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;
use swarmkeep::{
    Announce, Announced, Answer, AsyncTorrentRepository, BoundedBy, Budget, Capabilities, CompactV4,
    CompactV6, Cursor, Families, InfoHash, LongestHold, MemoryUse, Packed, PageCost, PeerBuffer, PeerRecord,
    Random, Records, Removed, RepositoryConfig, Request, Restored, Retention, SwarmStats, SwarmSummary,
    Swept, Timestamp, TorrentRepository as _, Totals, Unavailable, implement::Pass,
};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::{
    Error, RedisConfig, Status,
    answers::{AnswerSource, Answers, FETCHED, Sample},
    calls::{self, Calls, seconds},
    link::Link,
    node::SlotCall,
    place::{Engine, Layout, MOST_SHARDS, Order, Places, SHARDS, is_number_of_shards},
    reply::{self, Reader, bulk, stats},
};

mod listing;
mod moving;
mod shared;
mod sweeping;
mod totals;

pub use moving::Moved;
use shared::{Clocks, Shared, agree};

/// A long list of calls is sent in parts of this length.
const PART: usize = 256;

/// The most peers in one call of `restore`.
const RESTORED: usize = 128;

/// The most shards that a sweep or a walk asks at once.
const ABREAST: u32 = 64;

/// The average bytes of a swarm and of its peers in a server, measured with jemalloc 5.3
/// (docs/reports/redis-bench.md).
const BYTES: BytesPer = BytesPer { swarm: 108, v4_peer: 14, v6_peer: 27 };
const BYTES_IN_MODULE: BytesPer = BytesPer { swarm: 33, v4_peer: 9, v6_peer: 22 };

struct BytesPer {
    swarm: u64,
    v4_peer: u64,
    v6_peer: u64,
}

/// A repository that several processes share, on Redis or Valkey.
///
/// One call takes one round trip. If a server is lost or slow, a call is tried again until
/// [`RedisConfig::patience`] has passed, and then fails as [`Unavailable`]. An announce whose reply was lost
/// is sent again. If the server had already done it, the second one changes nothing and counts no download,
/// but reports [`REFRESHED`](swarmkeep::Changes::REFRESHED) where the first one reported `JOINED`. Removals
/// and added downloads are not sent again.
pub struct RedisRepository {
    shared: Arc<Shared>,
    node: String,
    /// The latest time that a caller or a shard has given to this process.
    latest: AtomicU32,
    pass: Pass<u32, ShardGroup>,
    lease: Mutex<Option<Instant>>,
    /// `None` if the server answers every announce.
    answers: Option<Arc<Answers>>,
    totals_age: Duration,
    /// The capabilities of a shard that the module keeps.
    packed: Capabilities,
}

/// Shards that are swept one after another.
#[derive(Debug)]
struct ShardGroup {
    shards: Vec<u32>,
    /// Whether shards without work were removed from `shards`.
    sifted: bool,
}

impl fmt::Debug for RedisRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.shared.calls();
        write!(f, "RedisRepository({} in {} shards)", calls.prefix, calls.layout.shards)
    }
}

impl RedisRepository {
    /// The limits that it supports.
    pub const BOUNDED: BoundedBy = BoundedBy::ENDPOINTS_PER_ADDRESS;

    /// Connects to the servers, and opens the existing store or creates one.
    ///
    /// A new store has [`RepositoryConfig::shards`] shards, or 1,024 if that is not set; an existing store
    /// keeps its number. Call it in a tokio runtime, which drives the connections. Later calls may come from
    /// outside of it.
    ///
    /// # Errors
    /// [`Error`] if no server is reached, if the store does not support a value of `config`, or if the
    /// existing store has other settings.
    pub async fn connect(servers: &RedisConfig, config: &RepositoryConfig) -> Result<Self, Error> {
        const LONGEST: u64 = u32::MAX as u64 / 2;

        let lifetime = config.lifetime_secs(LONGEST)? as u32;
        config.refuse_limits_but(Self::BOUNDED)?;
        let limit = match config.limits().endpoints_per_address {
            None => 0,
            Some(0) => {
                let what = "endpoints per address";
                return Err(swarmkeep::ConfigError::Limit { what, given: 0, least: 1 }.into());
            }
            Some(limit) => u16::try_from(limit).unwrap_or(u16::MAX),
        };
        if servers.prefix.contains(['{', '}']) {
            return Err(Error::Prefix(servers.prefix.clone()));
        }
        let asked = config.shard_count();
        let shards = match asked.map(u32::try_from) {
            None => SHARDS,
            Some(Ok(shards)) if is_number_of_shards(shards) => shards,
            Some(_) => {
                let given = asked.unwrap_or_default();
                return Err(
                    swarmkeep::ConfigError::Shards { given, least: 1, most: MOST_SHARDS as usize }.into()
                );
            }
        };
        let mut node = [0; 8];
        getrandom::fill(&mut node).map_err(swarmkeep::ConfigError::NoEntropy)?;
        let node = if servers.node.is_empty() { HEXLOWER.encode(&node) } else { servers.node.clone() };
        let mut salt = [0; 16];
        for (bytes, word) in salt.chunks_mut(8).zip(config.hash_key().words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let link = Link::connect(servers).await?;
        let key = format!("{}store", servers.prefix);
        let (some, without) = link.module(&key, false).await.map_err(Error::Unreachable)?;
        let engine = if some && without.is_empty() { Engine::Module } else { Engine::Functions };
        let lacks = || Error::Module { prefix: servers.prefix.clone(), without: without.join(", ") };
        let layout = Layout { shards, salt, places: Places::limited(limit), engine };
        let calls = Calls::new(servers.prefix.clone(), layout, lifetime, limit, servers.clock.is_some());
        let unreachable = |unavailable: Unavailable| Error::Unreachable(unavailable.reason);
        let clocks = Clocks::compare(&link, &calls, servers.clock).await.map_err(unreachable)?;
        if let Some(Clocks { own, server }) = clocks.filter(Clocks::are_apart) {
            return Err(Error::Clock { own, server });
        }
        if some {
            // An existing store says what keeps it. A new one needs the same of all servers.
            let store = link.call(calls.command("GET", "store", &[])).await;
            if store.map_err(|failure| unreachable(failure.into()))? == Value::Nil {
                link.module(&key, true).await.map_err(Error::Unreachable)?;
                if !without.is_empty() {
                    return Err(lacks());
                }
            }
        }
        let there = agree(&link, &calls).await.map_err(unreachable)?;
        let mismatch = |what: String| Err(Error::Mismatch { prefix: servers.prefix.clone(), what });
        if asked.is_some() && there.shards != shards {
            return mismatch(format!("it has {} shards", there.shards));
        }
        if there.places != calls.layout.places {
            return mismatch(there.places.describe().into());
        }
        match (there.engine, engine) {
            (Engine::Module, _) if !without.is_empty() => return Err(lacks()),
            (Engine::Functions, Engine::Module) => info!(
                prefix = %servers.prefix,
                "the servers have the module swarmkeep, and the store is still kept by functions"
            ),
            _ => {}
        }
        let calls = calls.with_layout(there);
        let shard = RepositoryConfig::new(config.hash_key()).lifetime(Duration::from_secs(lifetime.into()));
        let shard = Packed::new(&shard.shards(1))?;
        Ok(Self {
            shared: Shared::new(link, calls, servers.clock),
            node,
            latest: AtomicU32::new(0),
            pass: Pass::new(0),
            lease: Mutex::new(None),
            answers: Answers::new(servers.staleness),
            totals_age: servers.totals_age,
            packed: shard.capabilities(),
        })
    }

    /// The name under which this process holds the lease.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// A secret that all trackers of the store share, a different one for each purpose. It is derived from
    /// the store's salt, and does not reveal it. It changes only if the store is emptied and created again.
    pub fn shared_secret(&self, purpose: &str) -> [u8; 20] {
        self.shared.calls().layout.secret(purpose)
    }

    /// The state of the store, as this process sees it.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// The time that counts: the latest known time, or `now` if the servers' clocks bound times.
    fn advance(&self, now: Timestamp) -> u32 {
        let now = seconds(now);
        if self.shared.bounds_times() {
            return now;
        }
        self.latest.fetch_max(now, Relaxed).max(now)
    }

    /// Notes the time of a shard. It counts for all shards, unless the servers' clocks bound times.
    fn learn(&self, newest: u32) {
        if !self.shared.bounds_times() && newest > self.latest.load(Relaxed) {
            self.latest.fetch_max(newest, Relaxed);
        }
    }

    /// Decides how to answer an announce. If this process answers it, the change is sent to the server later.
    fn plan(&self, announce: &Announce, now: u32, peers: &PeerBuffer<'_>, random: u64) -> Plan {
        let ask = |fetched| Plan::Ask(Asked { announce: *announce, now, random, fetched });
        let Some(answers) = &self.answers else { return ask(None) };
        match answers.source(announce, now, calls::draws(announce, peers)) {
            AnswerSource::Asked => ask(None),
            AnswerSource::Fetched(at) => ask(Some(at)),
            AnswerSource::Kept { from, send } => {
                if let Some(after) = send {
                    let shared = Arc::clone(&self.shared);
                    let (answers, info_hash) = (Arc::clone(answers), announce.info_hash);
                    self.shared.link.spawn(async move {
                        sleep(after).await;
                        send_waiting(&shared, &answers, &info_hash).await;
                    });
                }
                Plan::Answer(from)
            }
        }
    }

    /// Sends the changes of announces that were answered without the server ([`RedisConfig::staleness`]).
    /// Call it before the process ends.
    ///
    /// # Errors
    /// [`Unavailable`] if not all of them were sent within [`RedisConfig::patience`].
    pub fn flush(&self) -> Answer<'_, ()> {
        self.shared.link.inside(async move {
            let Some(answers) = &self.answers else { return Ok(()) };
            let (_, before) = answers.unsent_and_lost();
            let send = async {
                loop {
                    let swarms = answers.swarms_with_waiting();
                    if swarms.is_empty() {
                        break;
                    }
                    // A lost server does not delay the changes for other servers.
                    let send = |info_hash| send_waiting(&self.shared, answers, info_hash);
                    join_all(swarms.iter().map(send)).await;
                }
                answers.all_sent().await;
            };
            let _ = timeout(self.shared.link.patience(), send).await;
            let (unsent, lost) = answers.unsent_and_lost();
            match unsent as u64 + lost - before {
                0 => Ok(()),
                all => {
                    Err(Unavailable::new(format!("{all} announces that were answered already were not sent")))
                }
            }
        })
    }

    fn announced(
        &self,
        answer: &Value,
        asked: &Asked,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<Announced, Unavailable> {
        let Asked { announce, random, fetched, .. } = asked;
        let (announced, newest) = match (&self.answers, *fetched) {
            (Some(answers), Some(asked)) => {
                let mut room = FetchBuffers::default();
                let mut wide = room.buffer();
                let (announced, newest) = reply::announced(answer, &mut wide)?;
                let sample = Sample::new(asked, announce, announced.stats, &wide);
                sample.answer(announce, *random, peers);
                answers.keep(announce, sample);
                (announced, newest)
            }
            _ => reply::announced(answer, peers)?,
        };
        self.learn(newest);
        Ok(announced)
    }

    async fn ask_all(
        &self,
        count: usize,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Result<Vec<Value>, Unavailable> {
        let mut answers = Vec::with_capacity(count);
        // Each part has the full patience of one call, and leaves room for announces.
        for from in (0..count).step_by(PART) {
            let part = PART.min(count - from);
            for answer in self.shared.ask_all(part, |calls, index| call(calls, from + index)).await {
                answers.push(answer?);
            }
        }
        Ok(answers)
    }

    /// Drops the waiting announces of a swarm that is removed.
    fn forget(&self, info_hash: &InfoHash) {
        if let Some(answers) = &self.answers {
            answers.forget(info_hash);
        }
    }

    async fn remove_on(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Result<Removed, Unavailable> {
        let mut shown = Vec::new();
        let next = self.walk_on(from, budget.get(), &mut shown).await?;
        let named: Vec<_> =
            shown.into_iter().map(|swarm| swarm.info_hash).filter(|info_hash| forbidden(info_hash)).collect();
        named.iter().for_each(|info_hash| self.forget(info_hash));
        let mut removed = Vec::new();
        let answers = self.ask_all(named.len(), |calls, index| calls.remove(&named[index])).await?;
        for (info_hash, answer) in named.into_iter().zip(answers) {
            removed.extend(stats(answer)?.map(|stats| SwarmSummary { info_hash, stats }));
        }
        Ok(Removed::new(removed, next))
    }

    async fn restored(
        &self,
        parts: &[(SwarmSummary, Vec<PeerRecord>)],
        now: u32,
    ) -> Result<Restored, Unavailable> {
        let mut all = Restored::default();
        let restore = |calls: &Calls, index: usize| calls.restore(&parts[index].0, &parts[index].1, now);
        for answer in self.ask_all(parts.len(), restore).await? {
            let answer = bulk(answer)?;
            let mut answer = Reader(&answer);
            self.learn(answer.u32()?);
            for count in [&mut all.added, &mut all.known, &mut all.expired, &mut all.refused] {
                *count += u64::from(answer.u32()?);
            }
        }
        Ok(all)
    }
}

/// Sends the waiting announces of a swarm in the order of its pages, so that the server reads and writes a
/// page once for several of them. If one of these peers announces again meanwhile, its waiting announce is
/// dropped; an announce that is being sent arrives first, through the same connection.
async fn send_waiting(shared: &Arc<Shared>, answers: &Answers, info_hash: &InfoHash) {
    let mut peers = answers.waiting(info_hash);
    let calls = shared.calls();
    peers.sort_by_cached_key(|peer| Order::of(calls.layout.hash_of_peer(peer.as_bytes())));
    let nobody = PeerBuffer::new(&mut [], &mut []);
    for part in peers.chunks(PART) {
        let taken = answers.take(info_hash, part);
        let announces = taken.announces();
        let announce = |calls: &Calls, index: usize| {
            let (announce, now) = &announces[index];
            calls.announce(&announce.want(0), *now, &nobody, 0)
        };
        let answers = shared.ask_those(announces.len(), announce).await;
        let lost: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        if let Some(error) = lost.first() {
            warn!(%error, announces = lost.len(), "announces that were already answered could not be sent");
        }
        taken.arrived_but(lost.len());
    }
}

/// Splits a swarm into parts for one call of `restore` each.
fn split(swarm: &SwarmSummary, peers: &[PeerRecord], parts: &mut Vec<(SwarmSummary, Vec<PeerRecord>)>) {
    let none: &[PeerRecord] = &[];
    let some = peers.chunks(RESTORED).chain(peers.is_empty().then_some(none));
    parts.extend(some.map(|part| (*swarm, part.to_vec())));
}

/// How to answer an announce.
enum Plan {
    Answer(Arc<Sample>),
    Ask(Asked),
}

/// An announce that the server answers.
#[derive(Debug)]
struct Asked {
    announce: Announce,
    now: u32,
    random: u64,
    /// When the fetch began, if other announces are to be answered from its reply.
    fetched: Option<Instant>,
}

impl Asked {
    fn call(&self, calls: &Calls, peers: &PeerBuffer<'_>) -> SlotCall {
        let Self { announce, now, random, fetched } = self;
        match fetched {
            None => calls.announce(announce, *now, peers, *random),
            Some(_) => {
                let wide = announce.want(FETCHED).families(Families::all());
                calls.announce(&wide, *now, &FetchBuffers::default().buffer(), *random)
            }
        }
    }
}

/// Buffers for [`FETCHED`] peers of each family.
struct FetchBuffers {
    v4: Vec<u8>,
    v6: Vec<u8>,
}

impl Default for FetchBuffers {
    fn default() -> Self {
        Self { v4: vec![0; FETCHED * CompactV4::LEN], v6: vec![0; FETCHED * CompactV6::LEN] }
    }
}

impl FetchBuffers {
    fn buffer(&mut self) -> PeerBuffer<'_> {
        PeerBuffer::new(&mut self.v4, &mut self.v6)
    }
}

impl AsyncTorrentRepository for RedisRepository {
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced> {
        self.shared.link.inside(async move {
            peers.clear();
            let random = if calls::draws(announce, peers) { rng.next_u64() } else { 0 };
            match self.plan(announce, self.advance(now), peers, random) {
                Plan::Answer(from) => Ok(from.answer(announce, random, peers)),
                Plan::Ask(asked) => {
                    let answer = self.shared.ask(|calls| asked.call(calls, peers)).await?;
                    self.announced(&answer, &asked, peers)
                }
            }
        })
    }

    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        self.shared.link.inside(async move {
            let now = self.advance(now);
            let mut asked = Vec::with_capacity(batch.len());
            let mut panicked = None;
            batch.iter_mut().for_each(Request::clear);
            for (index, request) in batch.iter_mut().enumerate() {
                let mut random = 0;
                if calls::draws(&request.announce, &request.peers) {
                    // If the caller's randomness panics, the announces before are still done.
                    match panic::catch_unwind(AssertUnwindSafe(|| rng.next_u64())) {
                        Ok(drawn) => random = drawn,
                        Err(panic) => {
                            panicked = Some(panic);
                            break;
                        }
                    }
                }
                match self.plan(&request.announce, now, &request.peers, random) {
                    Plan::Answer(from) => {
                        request.answer = Some(from.answer(&request.announce, random, &mut request.peers));
                    }
                    Plan::Ask(ask) => asked.push((index, ask)),
                }
            }
            let mut result = Ok(());
            let call = |calls: &Calls, at: usize| {
                let (index, ask) = &asked[at];
                ask.call(calls, &batch[*index].peers)
            };
            let answers = self.shared.ask_all(asked.len(), call).await;
            for ((index, ask), answer) in asked.into_iter().zip(answers) {
                let request = &mut batch[index];
                match answer.and_then(|answer| self.announced(&answer, &ask, &mut request.peers)) {
                    Ok(announced) => request.answer = Some(announced),
                    Err(unavailable) => result = Err(unavailable),
                }
            }
            if let Some(panic) = panicked {
                panic::resume_unwind(panic);
            }
            result
        })
    }

    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats> {
        self.shared.link.inside(async move {
            Ok(stats(self.shared.ask(|calls| calls.scrape(info_hash)).await?)?.unwrap_or_default())
        })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        self.shared.link.inside(self.sum())
    }

    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor> {
        self.shared.link.inside(self.walk_on(from, limit, out))
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()> {
        self.shared.link.inside(self.page_on(after, limit, out))
    }

    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor> {
        self.shared.link.inside(self.peers_on(info_hash, from, limit, out))
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        self.shared.link.inside(self.sweep_on(now, policy, budget))
    }

    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
        self.shared.link.inside(async move {
            self.forget(info_hash);
            stats(self.shared.ask(|calls| calls.remove(info_hash)).await?)
        })
    }

    fn remove_where<'a>(
        &'a self,
        forbidden: &'a (dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Answer<'a, Removed> {
        self.shared.link.inside(self.remove_on(forbidden, from, budget))
    }

    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored> {
        self.shared.link.inside(async move {
            let mut parts = Vec::new();
            split(swarm, peers, &mut parts);
            self.restored(&parts, self.advance(now)).await
        })
    }

    fn import<'a>(&'a self, records: &'a [Records], now: Timestamp) -> Answer<'a, Restored> {
        const AT_ONCE: usize = 256;

        self.shared.link.inside(async move {
            let now = self.advance(now);
            let (mut all, mut parts, mut peers) = (Restored::default(), Vec::new(), Vec::new());
            for record in records.iter().flat_map(Records::iter) {
                peers.clear();
                peers.extend(record.peers());
                split(&record.summary(), &peers, &mut parts);
                if parts.len() >= AT_ONCE {
                    all += self.restored(&parts, now).await?;
                    parts.clear();
                }
            }
            all += self.restored(&parts, now).await?;
            Ok(all)
        })
    }

    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool> {
        self.shared.link.inside(async move {
            let answer = self.shared.ask(|calls| calls.add_downloads(info_hash, earlier)).await?;
            Ok(answer == Value::Int(1))
        })
    }

    fn capabilities(&self) -> Capabilities {
        match self.shared.calls().layout.engine {
            Engine::Functions => Capabilities::new(LongestHold::Visits(512))
                .with_page_cost(PageCost::WholeStore)
                .with_clock(0, u64::from(u32::MAX / 2)),
            Engine::Module => self.packed,
        }
        .with_bounds(Self::BOUNDED)
    }

    fn memory(&self) -> Answer<'_, MemoryUse> {
        self.shared.link.inside(async move {
            let totals = self.sum().await?;
            let BytesPer { swarm, v4_peer, v6_peer } = match self.shared.calls().layout.engine {
                Engine::Functions => BYTES,
                Engine::Module => BYTES_IN_MODULE,
            };
            let peers = totals.v4.peers() * v4_peer + totals.v6.peers() * v6_peer;
            Ok(MemoryUse::estimated(totals.swarms * swarm + peers))
        })
    }
}
