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
use parking_lot::Mutex;
use redis::Value;
use swarmkeep::{
    Announce, Announced, Answer, AsyncTorrentRepository, BoundedBy, Budget, Capabilities, ConfigError,
    Cursor, InfoHash, LongestHold, MemoryUse, Packed, PageCost, PeerBuffer, PeerRecord, Random, Records,
    Removed, RepositoryConfig, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository as _, Totals, Unavailable, implement::Pass,
};
use tracing::info;

use crate::{
    Error, RedisConfig, Status,
    calls::{self, Calls, seconds},
    link::Link,
    place::{Engine, Layout, MOST_SHARDS, Places, SHARDS, is_number_of_shards},
    reply::{self, Reader, bulk, stats},
};

mod listing;
mod shared;
mod sweeping;
mod totals;

use shared::{Shared, agree, are_apart, compare_clocks, has_shard_of_module, read};

/// The most peers in one call of `restore`.
const RESTORED: usize = 128;

/// The most shards that a sweep or a walk calls at once.
const ABREAST: u32 = 64;

/// The average bytes of a swarm and of its peers over IPv4 and IPv6 in a server, measured with jemalloc 5.3
/// (docs/reports/redis-bench.md).
const BYTES: [u64; 3] = [108, 14, 27];
const BYTES_IN_MODULE: [u64; 3] = [33, 9, 22];

/// A repository that several processes share, on Redis or Valkey.
///
/// One call takes one round trip. If a server is lost or slow, a call is tried again until
/// [`RedisConfig::patience`] has passed, and then fails as [`Unavailable`]. An announce or a restore is sent
/// again if its reply was lost. If the server had already done it, and no call came between, the second one
/// changes nothing and counts no download, but an announce reports
/// [`REFRESHED`](swarmkeep::Changes::REFRESHED) where the first one reported `JOINED`. Removals and added
/// downloads are not sent again.
pub struct RedisRepository {
    shared: Arc<Shared>,
    node: String,
    /// The latest time that a caller or a shard has given to this process.
    latest: AtomicU32,
    pass: Pass<u32, ShardGroup>,
    lease: Mutex<Option<Instant>>,
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

    /// [`ConfigError`] if a store does not support a value of `config`. Asks no server.
    pub fn check(config: &RepositoryConfig) -> Result<(), ConfigError> {
        sizes(config).map(drop)
    }

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
        let (lifetime, limit, shards) = sizes(config)?;
        if servers.prefix.contains(['{', '}']) {
            return Err(Error::Prefix(servers.prefix.clone()));
        }
        let mut node = [0; 8];
        getrandom::fill(&mut node).map_err(std::io::Error::other).map_err(ConfigError::NoEntropy)?;
        let node = if servers.node.is_empty() { HEXLOWER.encode(&node) } else { servers.node.clone() };
        let salt = config.hash_key().words().map(u64::to_le_bytes);
        let salt = salt.as_flattened().try_into().expect("two words are 16 bytes");
        let link = Link::connect(servers).await?;
        let prefix = &servers.prefix;
        link.require(prefix, None, false).await?;
        let places = Places::limited(limit);
        let layout = Layout { shards, salt, places, engine: Engine::Functions };
        let calls = Calls::new(prefix.clone(), layout, lifetime, limit, servers.clock.is_some());
        if let Some((own, server)) = compare_clocks(&link, &calls, servers.clock).await?
            && are_apart(own, server)
        {
            return Err(Error::Clock { own, server });
        }
        let there = open(&link, &calls, servers.engine).await?;
        let mismatch = |what: String| Err(Error::Mismatch { prefix: prefix.clone(), what });
        if config.shard_count().is_some() && there.shards != shards {
            return mismatch(format!("it has {} shards", there.shards));
        }
        if there.places != places {
            return mismatch(there.places.describe().into());
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

    /// The program in the servers that keeps the store. It changes only after the store was emptied.
    pub fn engine(&self) -> Engine {
        self.shared.calls().layout.engine
    }

    /// The state of the store, as this process sees it.
    pub fn status(&self) -> Status {
        self.shared.status.lock().clone()
    }

    /// The time that counts: the latest known time, or `now` if the servers' clocks bound times.
    fn advance(&self, now: Timestamp) -> u32 {
        let now = seconds(now);
        if self.shared.clock.is_some() {
            return now;
        }
        self.latest.fetch_max(now, Relaxed).max(now)
    }

    /// Notes the time of a shard. It counts for all shards, unless the servers' clocks bound times.
    fn learn(&self, newest: u32) {
        if self.shared.clock.is_none() && newest > self.latest.load(Relaxed) {
            self.latest.fetch_max(newest, Relaxed);
        }
    }

    fn announced(&self, answer: &Value, peers: &mut PeerBuffer<'_>) -> Result<Announced, Unavailable> {
        let (announced, newest) = reply::announced(answer, peers)?;
        self.learn(newest);
        Ok(announced)
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
        let mut removed = Vec::new();
        let answers =
            self.shared.ask_in_parts(named.len(), |calls, index| calls.remove(&named[index])).await?;
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
        for answer in self.shared.ask_in_parts(parts.len(), restore).await? {
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

/// The lifetime, the most endpoints per address (0: any number), and the shards.
fn sizes(config: &RepositoryConfig) -> Result<(u32, u16, u32), ConfigError> {
    let lifetime = config.lifetime_secs(u64::from(u32::MAX / 2))? as u32;
    config.refuse_limits_but(RedisRepository::BOUNDED)?;
    let limit = match config.limits().endpoints_per_address {
        Some(0) => return Err(ConfigError::Limit { what: "endpoints per address", given: 0, least: 1 }),
        limit => limit.map_or(0, |limit| u16::try_from(limit).unwrap_or(u16::MAX)),
    };
    let given = config.shard_count().unwrap_or(SHARDS as usize);
    let shards = u32::try_from(given).ok().filter(|&shards| is_number_of_shards(shards));
    let wrong = ConfigError::Shards { given, least: 1, most: MOST_SHARDS as usize };
    shards.map(|shards| (lifetime, limit, shards)).ok_or(wrong)
}

/// Returns the layout of the existing store, or creates one. `asked` is the only program that may keep it.
async fn open(link: &Link, calls: &Calls, asked: Option<Engine>) -> Result<Layout, Error> {
    let prefix = &calls.prefix;
    let there = match link.call(calls.command("GET", "store", &[])).await? {
        Value::Nil => None,
        written => Some(read(&written, calls)?),
    };
    // An existing store has its engine. A new one needs the same of all servers.
    let is_new = there.is_none();
    let all = is_new && asked != Some(Engine::Functions);
    let (some, without) = link.module(&format!("{prefix}store"), all).await?;
    let new = asked.unwrap_or(if some { Engine::Module } else { Engine::Functions });
    let engine = there.as_ref().map_or(new, |there| there.engine);
    let mismatch = |engine: Engine| {
        let what = format!("its engine is {}", engine.name());
        Err(Error::Mismatch { prefix: prefix.clone(), what })
    };
    if asked.is_some_and(|asked| asked != engine) {
        return mismatch(engine);
    }
    if engine == Engine::Module && !without.is_empty() {
        return Err(Error::Module { prefix: prefix.clone(), without: without.join(", ") });
    }
    link.require(prefix, Some(engine), is_new).await?;
    if is_new && some && engine == Engine::Functions && has_shard_of_module(link, calls).await? {
        return mismatch(Engine::Module);
    }
    let layout = agree(link, &calls.with_layout(Layout { engine, ..calls.layout.clone() })).await?;
    // Its key was lost and its shards were not, or another tracker has just created it.
    if layout.engine != engine {
        if asked.is_some() {
            return mismatch(layout.engine);
        }
        link.require(prefix, Some(layout.engine), is_new).await?;
    }
    if layout.engine == Engine::Functions && asked.is_none() && some && without.is_empty() {
        info!(%prefix, "the servers have the module swarmkeep, and functions keep the store");
    }
    Ok(layout)
}

/// Splits a swarm into parts for one call of `restore` each.
fn split(swarm: &SwarmSummary, peers: &[PeerRecord], parts: &mut Vec<(SwarmSummary, Vec<PeerRecord>)>) {
    let none: &[PeerRecord] = &[];
    let some = peers.chunks(RESTORED).chain(peers.is_empty().then_some(none));
    parts.extend(some.map(|part| (*swarm, part.to_vec())));
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
            let now = self.advance(now);
            let answer = self.shared.ask(|calls| calls.announce(announce, now, peers, random)).await?;
            self.announced(&answer, peers)
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
            let mut drawn = Vec::with_capacity(batch.len());
            let mut panicked = None;
            batch.iter_mut().for_each(Request::clear);
            for request in &*batch {
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
                drawn.push(random);
            }
            let mut result = Ok(());
            let call = |calls: &Calls, at: usize| {
                let Request { announce, peers, .. } = &batch[at];
                calls.announce(announce, now, peers, drawn[at])
            };
            let answers = self.shared.ask_all(drawn.len(), call).await;
            for (request, answer) in batch.iter_mut().zip(answers) {
                match answer.and_then(|answer| self.announced(&answer, &mut request.peers)) {
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

    fn advance(&self, now: Timestamp) -> Answer<'_, Timestamp> {
        let latest = Timestamp::from_secs(self.advance(now).into());
        Box::pin(std::future::ready(Ok(latest)))
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        self.shared.link.inside(self.sweep_on(now, policy, budget))
    }

    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
        self.shared.link.inside(async move { stats(self.shared.ask(|calls| calls.remove(info_hash)).await?) })
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
            let [swarm, v4_peer, v6_peer] = match self.shared.calls().layout.engine {
                Engine::Functions => BYTES,
                Engine::Module => BYTES_IN_MODULE,
            };
            let peers = totals.v4.peers() * v4_peer + totals.v6.peers() * v6_peer;
            Ok(MemoryUse::estimated(totals.swarms * swarm + peers))
        })
    }
}
