//! The repository: what is asked of which shard, and what is made of the answers.

use std::{
    collections::BinaryHeap,
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
use redis::{Cmd, Value};
use swarmkeep::{
    Announce, AnnounceEvent, Announced, Answer, AsyncTorrentRepository, BoundedBy, Budget, Capabilities,
    CompactV4, CompactV6, Cursor, Families, Family, InfoHash, LongestHold, MemoryUse, PageCost, PeerBuffer,
    PeerRecord, Random, Records, Removed, RepositoryConfig, Request, Restored, Retention, Role, SwarmStats,
    SwarmSummary, Swept, Timestamp, Totals, Unavailable,
    sweep::{Next, Pass},
};
use tokio::time::sleep;
use tracing::warn;

use crate::{
    Error, RedisConfig,
    answers::{Answers, FETCHED, Sample, Way},
    library::LIBRARY,
    link::{Call, Link, What},
    place::{Layout, Order, SHARDS, slot},
    wire::{self, Garbled, Page, Reader, Shard, Terms, seconds},
};

/// Peers of one call of `restore`.
const RESTORED: usize = 128;

/// Calls that are sent together where there are many.
const PART: usize = 256;

/// Shards that are asked at once when something is looked for in all of them.
const ABREAST: u32 = 64;

/// The lease on sweeping is good for this part of the lifetime, so that who sweeps ten times in one keeps it; and for so long at least.
/// After a third of it, it is renewed.
const LEASE: (u32, Duration) = (8, Duration::from_secs(30));

/// What a swarm and its peers take in a server, on average: measured with jemalloc 5.3, docs/redis-bench.md.
const BYTES_A_SWARM: u64 = 108;
const BYTES_A_V4_PEER: u64 = 14;
const BYTES_A_V6_PEER: u64 = 27;

/// A repository that several processes share, on Redis or Valkey.
///
/// One call is one round trip. Where a server is lost or slow, calls try again until [`RedisConfig::patience`] has passed and are
/// [`Unavailable`] then. An announce that may have been done already is sent again: done twice it leaves the same, and counts no
/// download twice, but says [`REFRESHED`](swarmkeep::Changes::REFRESHED) where the first would have said `JOINED`. A removal and downloads
/// that are added are not sent again.
pub struct RedisRepository {
    link: Arc<Link>,
    layout: Layout,
    prefix: String,
    node: String,
    lifetime: u32,
    /// Endpoints an address; 0 is any number.
    limit: u16,
    /// The latest time that this process was told, or has learnt of.
    latest: AtomicU32,
    pass: Pass<u32, Group>,
    lease: Mutex<Option<Instant>>,
    /// Where answers may be stale.
    answers: Option<Arc<Answers>>,
}

/// Shards that are swept one after another.
#[derive(Debug)]
struct Group {
    shards: Vec<u32>,
    /// Only those are left in which something is due.
    sifted: bool,
}

impl fmt::Debug for RedisRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisRepository({} in {} shards)", self.prefix, self.layout.shards)
    }
}

impl RedisRepository {
    /// Reaches the servers and takes up the store that is there, or begins one.
    ///
    /// The number of shards is that of [`RepositoryConfig::shards`], 1,024 without it, and stays what it was when the store was begun.
    /// Must be called within a tokio runtime, which the connections stay in; calls may come from anywhere.
    ///
    /// # Errors
    /// [`Error`] if no server is reached, if the store cannot keep what `config` asks for, or was begun with something else.
    pub async fn connect(servers: &RedisConfig, config: &RepositoryConfig) -> Result<Self, Error> {
        const LONGEST: u64 = u32::MAX as u64 / 2;

        let lifetime = config.lifetime_secs(LONGEST)? as u32;
        config.refuse_limits_but(BoundedBy::ENDPOINTS_AN_ADDRESS)?;
        let limit = match config.limits().endpoints_an_address {
            None => 0,
            Some(0) => {
                let what = "endpoints an address";
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
            Some(Ok(shards)) if shards.is_power_of_two() && shards <= 16_384 => shards,
            Some(_) => {
                let given = asked.unwrap_or_default();
                return Err(swarmkeep::ConfigError::Shards { given, least: 1, most: 16_384 }.into());
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
        let mut store = Self {
            link: Arc::new(link),
            layout: Layout { shards, salt, by_address: limit > 0 },
            prefix: servers.prefix.clone(),
            node,
            lifetime,
            limit,
            latest: AtomicU32::new(0),
            pass: Pass::new(0),
            lease: Mutex::new(None),
            answers: Answers::new(servers.staleness),
        };
        let there = store.agree().await.map_err(|unavailable| Error::Unreachable(unavailable.reason))?;
        let mismatch = |what: String| Err(Error::Mismatch { prefix: servers.prefix.clone(), what });
        if asked.is_some() && there.shards != shards {
            return mismatch(format!("it has {} shards", there.shards));
        }
        if there.by_address != store.layout.by_address {
            let limited = if there.by_address { "limited" } else { "not limited" };
            return mismatch(format!("its endpoints an address are {limited}"));
        }
        store.layout = there;
        Ok(store)
    }

    /// What this process is called where it holds the lease.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// How the store that is there is laid out: as ours, if there was none.
    async fn agree(&self) -> Result<Layout, Unavailable> {
        let key = format!("{}store", self.prefix);
        let Layout { shards, salt, by_address } = &self.layout;
        let ours = format!("1 {shards} {} {by_address}", HEXLOWER.encode(salt));
        // Reading is allowed when memory is full.
        let answer = match self.command(&key, Cmd::get(&key)).await? {
            Value::Nil => {
                let mut cmd = Cmd::new();
                cmd.arg("SET").arg(&key).arg(&ours).arg("NX").arg("GET");
                self.command(&key, cmd).await?
            }
            answer => answer,
        };
        let theirs = match answer {
            Value::Nil => return Ok(self.layout.clone()),
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => return Err(strange(&other)),
        };
        let unknown = || Unavailable::new(format!("what {key} holds is of another version: {theirs:?}"));
        let words: Vec<_> = theirs.split(' ').collect();
        let ["1", shards, salt, by_address] = words.as_slice() else { return Err(unknown()) };
        let salt = HEXLOWER.decode(salt.as_bytes()).ok().and_then(|salt| salt.try_into().ok());
        match (shards.parse(), salt, by_address.parse()) {
            (Ok(shards @ 1..), Some(salt), Ok(by_address)) => Ok(Layout { shards, salt, by_address }),
            _ => Err(unknown()),
        }
    }

    /// A command about one key.
    async fn command(&self, key: &str, cmd: Cmd) -> Result<Value, Unavailable> {
        let call = Call { slot: slot(key.as_bytes()), what: What::Command(cmd), repeatable: true };
        self.link.call(call).await
    }

    /// The time that counts here.
    fn advance(&self, now: Timestamp) -> u32 {
        let now = seconds(now);
        self.latest.fetch_max(now, Relaxed).max(now)
    }

    /// A shard has been told this time.
    fn learn(&self, newest: u32) {
        if newest > self.latest.load(Relaxed) {
            self.latest.fetch_max(newest, Relaxed);
        }
    }

    fn terms(&self, now: Timestamp) -> Terms {
        Terms { now: self.advance(now), lifetime: self.lifetime, limit: self.limit }
    }

    fn key(&self, shard: u32) -> Vec<u8> {
        format!("{}{{{shard}}}", self.prefix).into_bytes()
    }

    fn ask(&self, shard: u32, function: &str, request: &[u8], repeatable: bool) -> Call {
        let key = self.key(shard);
        Call { slot: slot(&key), what: What::Command(wire::call(function, &key, request)), repeatable }
    }

    /// An announce into an empty buffer.
    fn announcing(&self, announce: &Announce, terms: Terms, peers: &PeerBuffer<'_>, random: u64) -> Call {
        let (shard, place) = self.layout.place(&announce.info_hash);
        let key = self.key(shard);
        Call {
            slot: slot(&key),
            what: What::Announce {
                key,
                request: wire::announce(announce, place, terms, &self.layout, peers, random),
                leaves: announce.event == AnnounceEvent::Stopped,
            },
            repeatable: true,
        }
    }

    /// How an announce is to be answered. What changes where it is answered from here is sent later.
    fn plan(&self, announce: &Announce, terms: Terms, peers: &PeerBuffer<'_>, random: u64) -> Plan {
        let asked = || self.announcing(announce, terms, peers, random);
        let Some(answers) = &self.answers else { return Plan::Ask { call: asked(), fetched: None } };
        let nobody = PeerBuffer::new(&mut [], &mut []);
        let change = || {
            let hash = self.layout.hash_of_peer(announce.endpoint.as_bytes());
            (Order::of(hash), self.announcing(&announce.want(0), terms, &nobody, 0))
        };
        match answers.way(announce, wire::draws(announce, peers), change) {
            Way::Asked => Plan::Ask { call: asked(), fetched: None },
            Way::Fetched(now) => {
                let wide = announce.want(FETCHED).families(Families::all());
                let call = self.announcing(&wide, terms, &Room::default().buffer(), random);
                Plan::Ask { call, fetched: Some(now) }
            }
            Way::Kept { from, send } => {
                if let Some(after) = send {
                    self.send(after, Arc::clone(answers), announce.info_hash);
                }
                Plan::Answer(from)
            }
        }
    }

    /// Sends what is waiting of a swarm after a while.
    fn send(&self, after: Duration, answers: Arc<Answers>, info_hash: InfoHash) {
        let link = Arc::clone(&self.link);
        self.link.spawn(async move {
            sleep(after).await;
            let calls = answers.waiting(&info_hash);
            if calls.is_empty() {
                return;
            }
            for part in calls.chunks(PART) {
                let sent = link.call_those(part).await;
                answers.sent(part.len());
                let lost: Vec<_> = sent.into_iter().filter_map(Result::err).collect();
                if let Some(error) = lost.first() {
                    warn!(%error, announces = lost.len(), "what was answered already could not be sent");
                }
            }
        });
    }

    fn announced(
        &self,
        answer: &Value,
        fetched: Option<Instant>,
        announce: &Announce,
        random: u64,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<Announced, Unavailable> {
        let (announced, newest) = match (&self.answers, fetched) {
            (Some(answers), Some(asked)) => {
                let mut room = Room::default();
                let mut wide = room.buffer();
                let (announced, newest) = wire::announced(answer, &mut wide)?;
                let sample = Sample::new(asked, announce, announced.stats, &wide);
                sample.answer(announce, random, peers);
                answers.keep(announce, sample);
                (announced, newest)
            }
            _ => wire::announced(answer, peers)?,
        };
        self.learn(newest);
        Ok(announced)
    }

    async fn answers(&self, calls: &[Call]) -> Result<Vec<Value>, Unavailable> {
        let mut answers = Vec::with_capacity(calls.len());
        // Each part has as long as one call has, and does not keep announces out.
        for part in calls.chunks(PART) {
            for answer in self.link.call_all(part).await {
                answers.push(answer?);
            }
        }
        Ok(answers)
    }

    /// What the shards say of themselves; `None` of one that nobody has announced to.
    async fn shards(&self, shards: &[u32]) -> Result<Vec<Option<Shard>>, Unavailable> {
        let calls: Vec<_> = shards
            .iter()
            .map(|&shard| {
                let key = self.key(shard);
                let mut cmd = Cmd::new();
                cmd.arg("HGET").arg(&key).arg("m");
                Call { slot: slot(&key), what: What::Command(cmd), repeatable: true }
            })
            .collect();
        let answers = self.answers(&calls).await?;
        let read = |answer| match answer {
            Value::Nil => Ok(None),
            answer => Ok(Some(Shard::read(&bulk(answer)?)?)),
        };
        answers.into_iter().map(read).collect()
    }

    async fn sum(&self) -> Result<Totals, Unavailable> {
        let shards: Vec<_> = (0..self.layout.shards).collect();
        let mut totals = Totals::default();
        for shard in self.shards(&shards).await?.into_iter().flatten() {
            self.learn(shard.newest);
            totals.swarms += shard.totals.swarms;
            for (sum, part) in [(&mut totals.v4, shard.totals.v4), (&mut totals.v6, shard.totals.v6)] {
                sum.seeders += part.seeders;
                sum.leechers += part.leechers;
            }
            totals.evicted.peers += shard.totals.evicted.peers;
        }
        Ok(totals)
    }

    /// Where a listing of swarms goes on: a shard, a place in its order, and the swarm that was shown last there.
    fn position(&self, from: Cursor) -> Option<Position> {
        if from.is_end() {
            return None;
        }
        let Some(bytes) = from.bytes() else {
            return Some(Position { shard: 0, order: Order(0), after: None });
        };
        if let Ok(bytes) = <[u8; 20]>::try_from(bytes) {
            let info_hash = InfoHash::new(bytes);
            let (shard, hash) = self.layout.place(&info_hash);
            return Some(Position { shard, order: Order::of(hash), after: Some(info_hash) });
        }
        let mut words = Reader(bytes);
        let (shard, order) = (words.u32().ok()?, words.u32().ok()?);
        Some(Position { shard, order: Order(order), after: None })
    }

    async fn walk_on(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<Cursor, Unavailable> {
        let Some(mut at) = self.position(from) else { return Ok(Cursor::END) };
        let (mut left, mut abreast) = (limit, 1);
        while at.shard < self.layout.shards {
            // Empty shards are passed more and more at once.
            let shards: Vec<_> = (at.shard..self.layout.shards.min(at.shard + abreast)).collect();
            let calls = shards.iter().map(|&shard| {
                let order = if shard == at.shard { at.order } else { Order(0) };
                self.ask(shard, &LIBRARY.walk, &order.hash().to_le_bytes(), true)
            });
            let answers = self.answers(&calls.collect::<Vec<_>>()).await?;
            abreast = (abreast * 2).min(ABREAST);
            for (shard, answer) in shards.into_iter().zip(answers) {
                if shard != at.shard {
                    at = Position { shard, order: Order(0), after: None };
                }
                let answer = bulk(answer)?;
                let mut answer = Reader(&answer);
                let behind = at.order.behind_page(answer.u32()?);
                let mut found = Vec::new();
                while !answer.is_empty() {
                    let info_hash = InfoHash::new(answer.array()?);
                    let order = Order::of(self.layout.place(&info_hash).1);
                    let stats = answer.stats()?;
                    if (order, Some(info_hash)) > (at.order, at.after) {
                        found.push((order, SwarmSummary { info_hash, stats }));
                    }
                }
                if !found.is_empty() {
                    abreast = 1;
                }
                found.sort_unstable_by_key(|(order, swarm)| (*order, swarm.info_hash));
                let fits = found.len().min(left);
                out.extend(found[..fits].iter().map(|(_, swarm)| *swarm));
                left -= fits;
                if fits < found.len() {
                    return Ok(match fits.checked_sub(1) {
                        Some(last) => Cursor::after(found[last].1.info_hash.as_bytes()),
                        None => from_or(from, &at),
                    });
                }
                at = match behind {
                    Some(order) => Position { shard, order, after: None },
                    None => Position { shard: shard + 1, order: Order(0), after: None },
                };
                if left == 0 {
                    return Ok(at.cursor(self.layout.shards));
                }
                if behind.is_some() {
                    // The rest of this shard comes before the others.
                    break;
                }
            }
            // One hold visits a page; a step is a few of them.
            if limit - left >= limit.min(4096) {
                return Ok(at.cursor(self.layout.shards));
            }
        }
        Ok(Cursor::END)
    }

    /// All info hashes behind `after`, the `limit` smallest of them in order.
    async fn smallest(&self, after: Option<&InfoHash>, limit: usize) -> Result<Vec<InfoHash>, Unavailable> {
        let mut smallest = BinaryHeap::new();
        let mut asked: Vec<_> = (0..self.layout.shards).map(|shard| (shard, Order(0))).collect();
        while !asked.is_empty() {
            let calls = asked
                .iter()
                .map(|(shard, order)| self.ask(*shard, &LIBRARY.names, &order.hash().to_le_bytes(), true));
            let answers = self.answers(&calls.collect::<Vec<_>>()).await?;
            let mut more = Vec::new();
            for ((shard, order), answer) in asked.into_iter().zip(answers) {
                let answer = bulk(answer)?;
                let mut answer = Reader(&answer);
                more.extend(order.behind_page(answer.u32()?).map(|order| (shard, order)));
                while !answer.is_empty() {
                    let info_hash = InfoHash::new(answer.array()?);
                    // Not what was on pages before, which may have become this one.
                    let is_new = Order::of(self.layout.place(&info_hash).1) >= order;
                    if is_new && after.is_none_or(|after| info_hash > *after) {
                        smallest.push(info_hash);
                        if smallest.len() > limit {
                            smallest.pop();
                        }
                    }
                }
            }
            asked = more;
        }
        Ok(smallest.into_sorted_vec())
    }

    async fn page_on(
        &self,
        after: Option<&InfoHash>,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<(), Unavailable> {
        let (mut after, mut left) = (after.copied(), limit);
        while left > 0 {
            let names = self.smallest(after.as_ref(), left).await?;
            let asked = names.len();
            let calls: Vec<_> = names.iter().map(|info_hash| self.scraping(info_hash)).collect();
            for (info_hash, answer) in names.into_iter().zip(self.answers(&calls).await?) {
                after = Some(info_hash);
                // It may have gone in between.
                if answer != Value::Nil {
                    out.push(SwarmSummary { info_hash, stats: Reader(&bulk(answer)?).stats()? });
                    left -= 1;
                }
            }
            if asked == 0 {
                break;
            }
        }
        Ok(())
    }

    fn scraping(&self, info_hash: &InfoHash) -> Call {
        let (shard, _) = self.layout.place(info_hash);
        self.ask(shard, &LIBRARY.scrape, info_hash.as_bytes(), true)
    }

    async fn peers_on(
        &self,
        info_hash: &InfoHash,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Result<Cursor, Unavailable> {
        let order_of = |compact: &[u8]| Order::of(self.layout.hash_of_peer(compact));
        let family_of = |v6: bool| if v6 { Family::V6 } else { Family::V4 };
        let (mut family, mut order, mut after) = match from.bytes() {
            _ if from.is_end() => return Ok(Cursor::END),
            None => (Family::V4, Order(0), Vec::new()),
            Some([v6, order @ ..]) if order.len() == 4 => {
                (family_of(*v6 == 1), Order(Reader(order).u32()?), Vec::new())
            }
            Some(compact) => (family_of(compact.len() > CompactV4::LEN), order_of(compact), compact.to_vec()),
        };
        let (shard, _) = self.layout.place(info_hash);
        let mut left = limit;
        loop {
            let mut request = info_hash.as_bytes().to_vec();
            request.push(if family == Family::V4 { 1 } else { 3 });
            request.extend(order.hash().to_le_bytes());
            let answer = self.link.call(self.ask(shard, &LIBRARY.list, &request, true)).await?;
            if answer == Value::Nil {
                return Ok(Cursor::END);
            }
            let answer = bulk(answer)?;
            let mut answer = Reader(&answer);
            let kinds = [
                Page::read(&mut answer, family, Role::Seeder)?,
                Page::read(&mut answer, family, Role::Leecher)?,
            ];
            // As far as both pages go: `None` is the end of the table.
            let behind = kinds.iter().filter_map(|page| order.behind_page(page.pages)).min();
            let mut found = Vec::new();
            for record in kinds.iter().flat_map(|page| page.peers(family)) {
                let record = record?;
                let at = order_of(record.endpoint.as_bytes());
                let seen = (at, record.endpoint.as_bytes()) <= (order, after.as_slice()) && !after.is_empty();
                if at >= order && !seen && behind.is_none_or(|behind| at < behind) {
                    found.push((at, record));
                }
            }
            found.sort_unstable_by_key(|(at, record)| (*at, record.endpoint));
            let fits = found.len().min(left);
            out.extend(found[..fits].iter().map(|(_, record)| *record));
            left -= fits;
            if fits < found.len() {
                return Ok(match fits.checked_sub(1) {
                    Some(last) => Cursor::after(found[last].1.endpoint.as_bytes()),
                    None => from,
                });
            }
            (family, order) = match (behind, family) {
                (Some(behind), family) => (family, behind),
                (None, Family::V4) => (Family::V6, Order(0)),
                (None, Family::V6) => return Ok(Cursor::END),
            };
            after.clear();
            if left == 0 {
                let mut cursor = vec![u8::from(family == Family::V6)];
                cursor.extend(order.0.to_le_bytes());
                return Ok(Cursor::after(&cursor));
            }
        }
    }

    /// Whether it is this process that sweeps: one at a time is enough, and if two did they would only share the work.
    async fn holds_lease(&self) -> Result<bool, Unavailable> {
        let lease = Duration::from_secs((self.lifetime / LEASE.0).into()).max(LEASE.1);
        if self.lease.lock().is_some_and(|taken| taken.elapsed() < lease / 3) {
            return Ok(true);
        }
        // Servers that have lost everything are told again how the store is laid out, or its trackers would part ways.
        if self.agree().await? != self.layout {
            return Err(Unavailable::new(format!(
                "what lives under {} was begun anew with another layout: start again",
                self.prefix
            )));
        }
        let key = format!("{}lease", self.prefix);
        let milliseconds = lease.as_millis() as u64;
        let holds = match self.command(&key, Cmd::get(&key)).await? {
            Value::Nil => {
                let mut cmd = Cmd::new();
                cmd.arg("SET").arg(&key).arg(&self.node).arg("NX").arg("PX").arg(milliseconds);
                match self.command(&key, cmd).await {
                    Ok(taken) => taken != Value::Nil,
                    // Somebody has to make room, and two may.
                    Err(unavailable) if unavailable.reason.contains("OOM") => true,
                    Err(unavailable) => return Err(unavailable),
                }
            }
            Value::BulkString(holder) if holder == self.node.as_bytes() => {
                let mut cmd = Cmd::new();
                cmd.arg("PEXPIRE").arg(&key).arg(milliseconds);
                self.command(&key, cmd).await?;
                true
            }
            _ => false,
        };
        *self.lease.lock() = holds.then(Instant::now);
        Ok(holds)
    }

    async fn sweep_on(
        &self,
        now: Timestamp,
        policy: Retention,
        budget: Budget,
    ) -> Result<Swept, Unavailable> {
        let mut swept = Swept::default();
        let now = self.advance(now);
        if !self.holds_lease().await? {
            swept.pass_complete = true;
            return Ok(swept);
        }
        let drops = policy == Retention::DropEmpty;
        let mut left = budget.get() as u64;
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::Leave => break,
                Next::LookFrom(from) => {
                    let to = self.layout.shards.min(from + ABREAST);
                    let group = Group { shards: (from..to).rev().collect(), sifted: false };
                    let next = (to < self.layout.shards).then_some(to);
                    match self.pass.claim(from, [group].into_iter(), next) {
                        Some(claim) => claim,
                        None => continue,
                    }
                }
            };
            while left > 0
                && let Some(group) = claim.current()
            {
                if !group.sifted {
                    let states = self.shards(&group.shards).await?;
                    let mut due = states.iter().map(|shard| {
                        shard.is_some_and(|shard| {
                            shard.due <= now.max(shard.newest) || drops && shard.kept > 0
                        })
                    });
                    group.shards.retain(|_| due.next().unwrap_or_default());
                    group.sifted = true;
                }
                while left > 0
                    && let Some(&shard) = group.shards.last()
                {
                    let (step, more) = self.sweep_shard(shard, now, drops, left).await?;
                    left = left.saturating_sub(step.visited);
                    swept += step;
                    if !more {
                        group.shards.pop();
                    }
                }
                if group.shards.is_empty() {
                    claim.done();
                }
            }
            swept.pass_complete = claim.finish();
        }
        Ok(swept)
    }

    /// One hold, and whether there is more to do in that shard.
    async fn sweep_shard(
        &self,
        shard: u32,
        now: u32,
        drops: bool,
        budget: u64,
    ) -> Result<(Swept, bool), Unavailable> {
        let mut request = Vec::with_capacity(13);
        request.extend(now.to_le_bytes());
        request.extend(self.lifetime.to_le_bytes());
        request.push(drops.into());
        request.extend(u32::try_from(budget).unwrap_or(u32::MAX).to_le_bytes());
        let answer = bulk(self.link.call(self.ask(shard, &LIBRARY.sweep, &request, true)).await?)?;
        let mut answer = Reader(&answer);
        self.learn(answer.u32()?);
        let mut swept = Swept::default();
        swept.visited = answer.u32()?.into();
        swept.expired = answer.u32()?.into();
        swept.swarms_removed = answer.u32()?.into();
        Ok((swept, answer.u8()? == 1))
    }

    fn removing(&self, info_hash: &InfoHash) -> Call {
        if let Some(answers) = &self.answers {
            answers.forget(info_hash);
        }
        let (shard, place) = self.layout.place(info_hash);
        let mut request = info_hash.as_bytes().to_vec();
        request.extend(place.to_le_bytes());
        request.extend(self.layout.salt);
        self.ask(shard, &LIBRARY.remove, &request, false)
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
        let calls: Vec<_> = named.iter().map(|info_hash| self.removing(info_hash)).collect();
        let mut removed = Vec::new();
        for (info_hash, answer) in named.into_iter().zip(self.answers(&calls).await?) {
            removed.extend(stats(answer)?.map(|stats| SwarmSummary { info_hash, stats }));
        }
        Ok(Removed::new(removed, next))
    }

    /// The calls that restore a swarm: one for each few peers.
    fn restoring(&self, swarm: &SwarmSummary, peers: &[PeerRecord], terms: Terms, calls: &mut Vec<Call>) {
        let (shard, place) = self.layout.place(&swarm.info_hash);
        let none: &[PeerRecord] = &[];
        let parts = peers.chunks(RESTORED).chain(peers.is_empty().then_some(none));
        calls.extend(parts.map(|part| {
            let downloaded = swarm.stats.downloaded;
            let mut request = wire::restore(&swarm.info_hash, place, terms, downloaded, &self.layout);
            part.iter().for_each(|peer| wire::push_record(&mut request, peer, &self.layout));
            self.ask(shard, &LIBRARY.restore, &request, true)
        }));
    }

    async fn restored(&self, calls: &[Call]) -> Result<Restored, Unavailable> {
        let mut all = Restored::default();
        for answer in self.answers(calls).await? {
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

/// How an announce is to be answered.
enum Plan {
    Answer(Arc<Sample>),
    Ask {
        call: Call,
        /// Since when, where others are to be answered from it.
        fetched: Option<Instant>,
    },
}

/// Room for as many peers as are fetched, of either family.
struct Room {
    v4: Vec<u8>,
    v6: Vec<u8>,
}

impl Default for Room {
    fn default() -> Self {
        Self { v4: vec![0; FETCHED * CompactV4::LEN], v6: vec![0; FETCHED * CompactV6::LEN] }
    }
}

impl Room {
    fn buffer(&mut self) -> PeerBuffer<'_> {
        PeerBuffer::new(&mut self.v4, &mut self.v6)
    }
}

/// Where a listing of swarms stands.
#[derive(Debug, Clone, Copy)]
struct Position {
    shard: u32,
    order: Order,
    /// The swarm that was shown last, at that place of the order.
    after: Option<InfoHash>,
}

impl Position {
    fn cursor(&self, shards: u32) -> Cursor {
        if self.shard >= shards {
            return Cursor::END;
        }
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.shard.to_le_bytes());
        bytes[4..].copy_from_slice(&self.order.0.to_le_bytes());
        Cursor::after(&bytes)
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
        self.link.inside(async move {
            peers.clear();
            let random = if wire::draws(announce, peers) { rng.next_u64() } else { 0 };
            match self.plan(announce, self.terms(now), peers, random) {
                Plan::Answer(from) => Ok(from.answer(announce, random, peers)),
                Plan::Ask { call, fetched } => {
                    let answer = self.link.call(call).await?;
                    self.announced(&answer, fetched, announce, random, peers)
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
        self.link.inside(async move {
            let terms = self.terms(now);
            let (mut calls, mut asked) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
            let mut panicked = None;
            for (index, request) in batch.iter_mut().enumerate() {
                request.peers.clear();
                let mut random = 0;
                if wire::draws(&request.announce, &request.peers) {
                    // A panic of the caller's: what comes before it is done.
                    match panic::catch_unwind(AssertUnwindSafe(|| rng.next_u64())) {
                        Ok(drawn) => random = drawn,
                        Err(panic) => {
                            panicked = Some(panic);
                            break;
                        }
                    }
                }
                match self.plan(&request.announce, terms, &request.peers, random) {
                    Plan::Answer(from) => {
                        request.answer = Some(from.answer(&request.announce, random, &mut request.peers));
                    }
                    Plan::Ask { call, fetched } => {
                        calls.push(call);
                        asked.push((index, fetched, random));
                    }
                }
            }
            let mut result = Ok(());
            for ((index, fetches, random), answer) in asked.into_iter().zip(self.link.call_all(&calls).await)
            {
                let Request { announce, peers, .. } = &mut batch[index];
                let announced =
                    answer.and_then(|answer| self.announced(&answer, fetches, announce, random, peers));
                let request = &mut batch[index];
                match announced {
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
        self.link.inside(async move {
            Ok(stats(self.link.call(self.scraping(info_hash)).await?)?.unwrap_or_default())
        })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        self.link.inside(self.sum())
    }

    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor> {
        self.link.inside(self.walk_on(from, limit, out))
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()> {
        self.link.inside(self.page_on(after, limit, out))
    }

    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor> {
        self.link.inside(self.peers_on(info_hash, from, limit, out))
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        self.link.inside(self.sweep_on(now, policy, budget))
    }

    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
        self.link.inside(async move { stats(self.link.call(self.removing(info_hash)).await?) })
    }

    fn remove_where<'a>(
        &'a self,
        forbidden: &'a (dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Answer<'a, Removed> {
        self.link.inside(self.remove_on(forbidden, from, budget))
    }

    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored> {
        self.link.inside(async move {
            let mut calls = Vec::new();
            self.restoring(swarm, peers, self.terms(now), &mut calls);
            self.restored(&calls).await
        })
    }

    fn import<'a>(&'a self, records: &'a [Records], now: Timestamp) -> Answer<'a, Restored> {
        const AT_ONCE: usize = 256;

        self.link.inside(async move {
            let (mut all, mut calls, mut peers) = (Restored::default(), Vec::new(), Vec::new());
            for record in records.iter().flat_map(Records::iter) {
                peers.clear();
                peers.extend(record.peers());
                self.restoring(&record.summary(), &peers, self.terms(now), &mut calls);
                if calls.len() >= AT_ONCE {
                    all += self.restored(&calls).await?;
                    calls.clear();
                }
            }
            all += self.restored(&calls).await?;
            Ok(all)
        })
    }

    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool> {
        self.link.inside(async move {
            let (shard, _) = self.layout.place(info_hash);
            let mut request = info_hash.as_bytes().to_vec();
            request.extend(earlier.to_le_bytes());
            let answer = self.link.call(self.ask(shard, &LIBRARY.add_downloads, &request, false)).await?;
            Ok(answer == Value::Int(1))
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(LongestHold::Visits(512))
            .with_page_cost(PageCost::WholeStore)
            .with_bounds(BoundedBy::ENDPOINTS_AN_ADDRESS)
            .with_clock(0, u64::from(u32::MAX / 2))
    }

    fn memory(&self) -> Answer<'_, MemoryUse> {
        self.link.inside(async move {
            let totals = self.sum().await?;
            let peers = totals.v4.peers() * BYTES_A_V4_PEER + totals.v6.peers() * BYTES_A_V6_PEER;
            Ok(MemoryUse::estimated(totals.swarms * BYTES_A_SWARM + peers))
        })
    }
}

/// Goes on where it stood: not even one fitted.
fn from_or(from: Cursor, at: &Position) -> Cursor {
    if at.after.is_some() { from } else { at.cursor(u32::MAX) }
}

fn bulk(answer: Value) -> Result<Vec<u8>, Unavailable> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(strange(&other)),
    }
}

/// Counts, where there is a swarm.
fn stats(answer: Value) -> Result<Option<SwarmStats>, Unavailable> {
    match answer {
        Value::Nil => Ok(None),
        answer => Ok(Some(Reader(&bulk(answer)?).stats()?)),
    }
}

fn strange(answer: &Value) -> Unavailable {
    Unavailable::new(format!("a server answers with what nobody asked for: {answer:?}"))
}

impl From<Garbled> for Unavailable {
    fn from(_: Garbled) -> Self {
        Self::new("a server's answer is shorter or longer than it says: are all trackers of one version?")
    }
}
