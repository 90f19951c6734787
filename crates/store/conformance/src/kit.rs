//! The tools of the cases: a store under test, made-up peers, and answers that are easy to compare.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    env,
    fmt::Debug,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Deref,
    panic::{self, AssertUnwindSafe},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, Announced, AsyncTorrentRepository, BoundedBy, Capabilities, ConfigError,
    Endpoint, Families, Family, HashKey, Immediate, InfoHash, LongestHold, PeerBuffer, PeerId, PeerRecord,
    Random, RepositoryConfig, Request, Role, SplitMix64, SwarmStats, SwarmSummary, Timestamp,
    TorrentRepository, TorrentRepositoryExt, Totals, implement::forward_repository,
};

use crate::Subject;
pub use crate::common::hash;
pub(crate) use crate::common::within;

/// The lifetime of peers in the stores of cases, in seconds.
pub const LIFETIME: u64 = 1800;

/// The time at which the stories of the cases begin: late enough for years before it.
pub(crate) const T0: u64 = 1_800_000_000;

thread_local! {
    /// The time after which a call that should take microseconds counts as endless, on a busy machine.
    pub static PATIENCE: Cell<Duration> = const { Cell::new(Duration::from_secs(60)) };
}

/// How often two threads meet that a busy machine may keep apart.
pub(crate) const TRIES: u64 = 20;

pub(crate) const BOTH: Families = Families::all();

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A store under test.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    repository: Arc<dyn TorrentRepository>,
    /// The number of announces that may still be made one by one.
    alone: Arc<AtomicUsize>,
}

impl Deref for Store {
    type Target = dyn TorrentRepository;

    fn deref(&self) -> &Self::Target {
        &*self.repository
    }
}

impl From<Box<dyn TorrentRepository>> for Store {
    fn from(repository: Box<dyn TorrentRepository>) -> Self {
        // Further announces go in batches: a store over a network would need minutes otherwise.
        const ALONE: usize = 1000;
        Self { repository: repository.into(), alone: Arc::new(ALONE.into()) }
    }
}

pub fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([7; 16])).lifetime(Duration::from_secs(LIFETIME))
}

/// Returns a store without limits, with the lifetime [`LIFETIME`].
pub(crate) fn build(subject: &dyn Subject) -> Store {
    build_with(subject, &config())
}

pub(crate) fn build_with(subject: &dyn Subject, config: &RepositoryConfig) -> Store {
    match subject.build(config) {
        Ok(store) => store.into(),
        Err(error) => panic!("{config:?} is refused: {error}"),
    }
}

pub(crate) fn capabilities(subject: &dyn Subject) -> Capabilities {
    build(subject).capabilities()
}

/// Returns the clock resolution of `store` in seconds, which may depend on its lifetime.
pub(crate) fn resolution(store: &Store) -> u64 {
    store.capabilities().clock_resolution_secs
}

/// Returns the part of `swarms` that a store in shards visits in one hold, whatever the budget of a step.
pub(crate) fn swarms_per_shard(store: &Store, swarms: u64) -> f64 {
    match store.capabilities().longest_hold {
        LongestHold::Visits(_) => 0.0,
        LongestHold::ShareOfSwarms(share) => share * swarms as f64,
        other => panic!("this suite knows no bound of {other:?}"),
    }
}

/// Returns seconds at which stories begin, which together cover all phases of a tick of the clock, or many.
pub(crate) fn phases(resolution: u64) -> impl Iterator<Item = u64> {
    let more = (1..=8).map(move |n| n * (resolution / 8)).filter(|&phase| phase > 20);
    (0..=20.min(resolution + 9)).chain(more)
}

/// Returns a store with limits of the kinds `needs`; `None` if it does not declare them. It must then refuse
/// them.
pub(crate) fn bounded(subject: &dyn Subject, needs: BoundedBy, config: &RepositoryConfig) -> Option<Store> {
    let missing = needs - capabilities(subject).bounded;
    if missing.is_empty() {
        return Some(build_with(subject, config));
    }
    match subject.build(config) {
        Err(ConfigError::UnsupportedLimit(_)) => None,
        Err(other) => {
            panic!("{missing:?} is not declared and must be refused as UnsupportedLimit, not: {other}")
        }
        Ok(_) => panic!("{missing:?} is not declared as a limit, and yet not refused"),
    }
}

pub fn v4(n: u32) -> Endpoint {
    endpoint(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)))
}

pub(crate) fn v6(n: u32) -> Endpoint {
    endpoint(IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + u128::from(n))))
}

pub fn peer(family: Family, n: u32) -> Endpoint {
    match family {
        Family::V4 => v4(n),
        Family::V6 => v6(n),
    }
}

/// Returns endpoint `n` of an address: for IPv4 a port of it, for IPv6 any interface of the first /64 of a
/// /48 of its own. Consecutive addresses differ in their last significant bit.
pub(crate) fn of_address(family: Family, address: u32, n: u32) -> Endpoint {
    let ip = Ipv4Addr::from_bits(0xac10_0000 + address);
    match family {
        Family::V4 => Endpoint::new(ip.into(), (1 + n % 65_535) as u16).expect("the port is not 0"),
        Family::V6 => of_subnet(address, 0, n),
    }
}

/// Returns endpoint `n` of a /64 in the /48 of an IPv6 address. A /56 is 256 consecutive ones.
pub(crate) fn of_subnet(address: u32, subnet: u16, n: u32) -> Endpoint {
    let interface = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let upper = (0x2001_u128 << 48) + (u128::from(address) << 16) + u128::from(subnet);
    let ip = Ipv6Addr::from_bits((upper << 64) + u128::from(interface));
    Endpoint::new(ip.into(), (1 + n % 7) as u16).expect("the port is not 0")
}

/// Returns endpoint `n` of a network, an IPv4 /24 or the first /48 of an IPv6 /32. For IPv4 it is a port of
/// one address.
pub(crate) fn of_network(family: Family, network: u32, n: u32) -> Endpoint {
    let (ip, port) = match family {
        Family::V4 => (Ipv4Addr::from_bits(0x2000_0001 + (network << 8)).into(), 1 + n % 65_535),
        Family::V6 => {
            let bits = (0x2a00_u128 << 112) + (u128::from(network) << 96) + u128::from(n);
            (Ipv6Addr::from_bits(bits).into(), 6881)
        }
    };
    Endpoint::new(ip, port as u16).expect("the port is not 0")
}

/// Returns the number of endpoints that belong to an address, as [`of_address`] makes them.
pub(crate) fn count_of_address<'a>(
    endpoints: impl IntoIterator<Item = &'a Endpoint>,
    family: Family,
    address: u32,
) -> usize {
    let bytes = if family == Family::V4 { 4 } else { 8 };
    let own = of_address(family, address, 0);
    let is_own = |endpoint: &&Endpoint| endpoint.as_bytes()[..bytes] == own.as_bytes()[..bytes];
    endpoints.into_iter().filter(|endpoint| endpoint.family() == family).filter(is_own).count()
}

/// Returns a configuration with a lifetime of `units` units, and the unit in seconds. A unit is longer than
/// the resolution of the store's clock, so that times that differ by one unit are distinguished.
pub(crate) fn config_with_units(subject: &dyn Subject, units: u64) -> (RepositoryConfig, u64) {
    let mut unit = 1;
    loop {
        let config = config().lifetime(Duration::from_secs(units * unit));
        let resolution = resolution(&build_with(subject, &config));
        if resolution < unit {
            return (config, unit);
        }
        unit = resolution + 1;
    }
}

fn endpoint(ip: IpAddr) -> Endpoint {
    Endpoint::new(ip, 6881).expect("the port is not 0")
}

pub fn leecher(info_hash: InfoHash, endpoint: Endpoint) -> Announce {
    Announce::new(info_hash, endpoint).left(1000)
}

pub fn seeder(info_hash: InfoHash, endpoint: Endpoint) -> Announce {
    Announce::new(info_hash, endpoint).left(0)
}

pub fn stopped(info_hash: InfoHash, endpoint: Endpoint) -> Announce {
    Announce::new(info_hash, endpoint).event(AnnounceEvent::Stopped)
}

pub fn completed(info_hash: InfoHash, endpoint: Endpoint) -> Announce {
    seeder(info_hash, endpoint).event(AnnounceEvent::Completed)
}

pub const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(T0 + seconds)
}

pub(crate) fn peer_id(n: u8) -> PeerId {
    PeerId::new([n; 20])
}

pub const fn stats(complete: u32, incomplete: u32, downloaded: u32) -> SwarmStats {
    SwarmStats { complete, incomplete, downloaded }
}

/// The answer to an announce, with the selected peers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) announced: Announced,
    pub(crate) peers: Vec<Endpoint>,
}

impl Deref for Answer {
    type Target = Announced;

    fn deref(&self) -> &Announced {
        &self.announced
    }
}

impl Answer {
    /// Returns the selected peers in ascending order.
    pub(crate) fn sorted(&self) -> Vec<Endpoint> {
        let mut peers = self.peers.clone();
        peers.sort();
        peers
    }

    pub(crate) fn count(&self, family: Family) -> usize {
        self.peers.iter().filter(|peer| peer.family() == family).count()
    }

    /// Asserts the rules of every answer: at most `want` peers, all distinct, without the announcing peer.
    pub(crate) fn assert_fits(&self, announce: &Announce) {
        assert!(self.peers.len() <= announce.want, "{} peers for {announce:?}", self.peers.len());
        let mut distinct = self.sorted();
        distinct.dedup();
        assert_eq!(distinct.len(), self.peers.len(), "the same peer twice: {:?}", self.peers);
        assert!(!self.peers.contains(&announce.endpoint), "{} was handed to itself", announce.endpoint);
    }
}

/// Announces at `now` with randomness `rng`, with a buffer that has room for all wanted peers.
pub(crate) fn announce_with(
    store: &Store,
    announce: &Announce,
    now: Timestamp,
    rng: &mut dyn Random,
) -> Answer {
    let mut bytes = AnswerBytes::for_all(announce);
    let mut buffer = bytes.buffer();
    let announced = store.announce(announce, now, rng, &mut buffer);
    Answer { announced, peers: buffer.endpoints().collect() }
}

/// The bytes of a buffer.
pub(crate) struct AnswerBytes {
    v4: Vec<u8>,
    v6: Vec<u8>,
}

impl AnswerBytes {
    /// Room for `v4` and `v6` peers.
    pub(crate) fn new(v4: usize, v6: usize) -> Self {
        Self { v4: vec![0; 6 * v4], v6: vec![0; 18 * v6] }
    }

    /// Room for all wanted peers of an announce, for both families.
    fn for_all(announce: &Announce) -> Self {
        let room = room_for(announce);
        Self::new(room, room)
    }

    pub(crate) fn buffer(&mut self) -> PeerBuffer<'_> {
        PeerBuffer::new(&mut self.v4, &mut self.v6)
    }
}

/// Returns a batch of announces, each with room in `rooms` for all wanted peers.
pub(crate) fn requests<'a>(announces: &[Announce], rooms: &'a mut Vec<AnswerBytes>) -> Vec<Request<'a>> {
    *rooms = announces.iter().map(AnswerBytes::for_all).collect();
    announces.iter().zip(rooms).map(|(announce, room)| Request::new(*announce, room.buffer())).collect()
}

fn room_for(announce: &Announce) -> usize {
    announce.want.min(10_000)
}

/// Scrapes half of all swarms in batches, each behind a swarm that is not there.
#[derive(Debug)]
pub struct InBatches<R>(pub R);

impl<R: TorrentRepository> TorrentRepository for InBatches<R> {
    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        if info_hash.as_bytes()[0].is_multiple_of(2) {
            return self.0.scrape(info_hash);
        }
        let scrape = |info_hash| SwarmSummary { info_hash, stats: stats(9, 9, 9) };
        let mut swarms = [hash(u64::MAX), *info_hash].map(scrape);
        self.0.scrape_batch(&mut swarms);
        swarms[1].stats
    }

    forward_repository! { |store| store.0, except scrape }
}

impl Store {
    pub(crate) fn to_async(&self) -> Arc<dyn AsyncTorrentRepository> {
        Arc::new(Immediate(InBatches(self.repository.clone())))
    }

    /// Announces at the start of the story.
    pub(crate) fn tell(&self, announce: Announce) -> Answer {
        self.tell_at(0, announce)
    }

    /// Announces `seconds` after the start of the story.
    pub(crate) fn tell_at(&self, seconds: u64, announce: Announce) -> Answer {
        let seed = u64::from(announce.endpoint.port()) ^ seconds;
        announce_with(self, &announce, at(seconds), &mut SplitMix64::new(seed))
    }

    /// Announces peers that want no peers, to fill a swarm: first one by one, and then in batches.
    pub(crate) fn fill(&self, seconds: u64, announces: impl IntoIterator<Item = Announce>) {
        self.fill_from(seconds, &mut announces.into_iter());
    }

    /// Compiled once for all iterators.
    fn fill_from(&self, seconds: u64, announces: &mut dyn Iterator<Item = Announce>) {
        const BATCH: usize = 256;
        let mut rng = SplitMix64::new(1);
        loop {
            let is_left = |alone: usize| alone.checked_sub(1);
            let count = if self.alone.fetch_update(Relaxed, Relaxed, is_left).is_ok() { 1 } else { BATCH };
            let batch: Vec<_> = announces.take(count).map(|announce| announce.want(0)).collect();
            match &*batch {
                [] => return,
                [one] => _ = announce_with(self, one, at(seconds), &mut rng),
                batch => self.tell_batch(at(seconds), batch, &mut rng, |_| {}),
            }
        }
    }

    /// Announces at `now` in one batch, and passes on the answers.
    pub(crate) fn tell_batch(
        &self,
        now: Timestamp,
        batch: &[Announce],
        rng: &mut dyn Random,
        mut told: impl FnMut(Answer),
    ) {
        let mut rooms = Vec::new();
        let mut requests = requests(batch, &mut rooms);
        self.announce_batch(&mut requests, now, rng);
        for Request { answer, peers, .. } in requests {
            let announced = answer.expect("a batch that has returned is answered");
            told(Answer { announced, peers: peers.endpoints().collect() });
        }
    }

    /// Removes swarms, whatever they contain.
    pub(crate) fn forget(&self, torrents: impl IntoIterator<Item = InfoHash>) {
        for torrent in torrents {
            self.remove(&torrent);
        }
    }

    /// Returns the peers of a swarm by endpoint. Each must be shown once.
    pub(crate) fn members(&self, info_hash: &InfoHash) -> BTreeMap<Endpoint, PeerRecord> {
        let all = self.all_peers(info_hash);
        let members: BTreeMap<_, _> = all.iter().map(|&record| (record.endpoint, record)).collect();
        assert_eq!(members.len(), all.len(), "a peer of {info_hash:?} is listed twice");
        members
    }

    /// Asserts that the time of `record` is `announced`: never older, younger by at most the resolution of
    /// the store's clock, and not in the future.
    pub(crate) fn assert_time(&self, record: &PeerRecord, announced: Timestamp, latest: Timestamp) {
        let (listed, resolution) = (record.last_announce, resolution(self));
        let is_right = (announced..=latest).contains(&listed) && listed.secs_since(announced) <= resolution;
        assert!(
            is_right,
            "{record:?} announced at {announced:?}, by a clock of {resolution} s that is at {latest:?}"
        );
    }

    /// Returns the swarms of all pages of `limit` each, and works between them.
    pub(crate) fn paged(&self, limit: usize, mut between: impl FnMut()) -> Vec<SwarmSummary> {
        let mut all: Vec<SwarmSummary> = Vec::new();
        loop {
            let (before, after) = (all.len(), all.last().map(|swarm| swarm.info_hash));
            self.page(after.as_ref(), limit, &mut all);
            assert!(all.len() <= before + limit, "more than {limit} in a page");
            let last = all.last().map(|swarm| swarm.info_hash);
            assert!(all.len() == before || last > after, "a page goes back");
            if all.len() < before + limit {
                return all;
            }
            between();
        }
    }

    /// Returns all swarms by info hash. Each must be shown once.
    pub(crate) fn summaries(&self) -> BTreeMap<InfoHash, SwarmStats> {
        let all = self.swarms();
        let summaries: BTreeMap<_, _> = all.iter().map(|&swarm| (swarm.info_hash, swarm.stats)).collect();
        assert_eq!(summaries.len(), all.len(), "a swarm is shown twice");
        summaries
    }

    /// Asserts that the totals and other global counts agree with the swarms, listed one by one.
    pub(crate) fn assert_consistent(&self) {
        let mut counted = Totals::default();
        counted.evicted = self.totals().evicted;
        for (info_hash, shown) in self.summaries() {
            counted.swarms += 1;
            counted.downloaded += u64::from(shown.downloaded);
            let mut listed = SwarmStats { downloaded: shown.downloaded, ..SwarmStats::default() };
            for record in self.members(&info_hash).values() {
                let counts = match record.endpoint.family() {
                    Family::V4 => &mut counted.v4,
                    Family::V6 => &mut counted.v6,
                };
                match record.role {
                    Role::Seeder => {
                        (counts.seeders, listed.complete) = (counts.seeders + 1, listed.complete + 1)
                    }
                    Role::Leecher => {
                        (counts.leechers, listed.incomplete) = (counts.leechers + 1, listed.incomplete + 1);
                    }
                }
            }
            assert_eq!(shown, listed, "the counts of {info_hash:?} and its peers");
            assert_eq!(self.scrape(&info_hash), shown, "the scrape of {info_hash:?} and its summary");
        }
        assert_eq!(self.totals(), counted, "the totals and the listed peers");
    }
}

/// A generator that panics after `good` numbers.
pub struct Panicking {
    pub good: u32,
}

impl Panicking {
    /// The message of its panic.
    pub const TEXT: &str = "the caller's generator";
}

impl Random for Panicking {
    fn next_u64(&mut self) -> u64 {
        if self.good == 0 {
            // Unlike `panic!`, this reports nothing on the terminal.
            panic::resume_unwind(Box::new(Self::TEXT));
        }
        self.good -= 1;
        0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(self.good.into())
    }
}

/// Runs `work`, which must panic with `message`, without a report on the terminal.
pub fn assert_panics_with(message: &'static str, work: impl FnOnce()) {
    let panicked = panic::catch_unwind(AssertUnwindSafe(work)).expect_err("the panic must reach the caller");
    assert_eq!(text_of(&*panicked), message, "another panic than the caller's own");
}

/// Returns the message of a panic.
pub(crate) fn text_of(panicked: &(dyn Any + Send)) -> &str {
    let owned = panicked.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("something else")
}

/// Asserts that `tried` takes at most `factor` times as long as `against`. Both run in turn, and the best of
/// all runs counts.
pub(crate) fn assert_costs_at_most(
    factor: f64,
    name: &str,
    mut tried: impl FnMut(),
    mut against: impl FnMut(),
) {
    let (mut best_tried, mut best_against) = (Duration::MAX, Duration::MAX);
    let mut ratios = Vec::new();
    let is_exact = waited().is_some();
    for _ in 0..if is_exact { 5 } else { 12 } {
        for _ in 0..3 {
            best_against = best_against.min(time(&mut against));
            best_tried = best_tried.min(time(&mut tried));
        }
        let ratio = best_tried.as_secs_f64() / best_against.as_secs_f64().max(1e-9);
        if ratio <= factor {
            return;
        }
        ratios.push(ratio);
        // No noise does this to each of three long runs.
        if is_exact && ratio > 5.0 * factor && best_tried > Duration::from_millis(100) {
            break;
        }
    }
    panic!("{name} costs more than {factor} times as much, time after time: {ratios:.1?}");
}

/// The time that the work takes, without the time for which other threads kept this one from running.
fn time(work: &mut dyn FnMut()) -> Duration {
    let (start, before) = (Instant::now(), waited());
    work();
    let waited = waited().unwrap_or_default().saturating_sub(before.unwrap_or_default());
    start.elapsed().saturating_sub(waited)
}

/// The time for which this thread was ready to run and waited for a processor, if the system reports it.
fn waited() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Whether this is a process of its own for the case called `name`; otherwise, the case has run in one.
///
/// The harness of the standard library names the thread of a test after it. A case that runs under another
/// harness stays where it is.
pub(crate) fn runs_alone(name: &str) -> bool {
    const INSIDE: &str = "SWARMKEEP_SUITE_ALONE";
    let test = thread::current().name().filter(|test| test.ends_with(name)).map(str::to_owned);
    let Some(test) = test.filter(|_| env::var_os(INSIDE).is_none()) else { return true };
    let this = env::current_exe().expect("a test is a program");
    let run = Command::new(this).args([&test, "--exact", "--nocapture"]).env(INSIDE, "1").output();
    let output = run.expect("a test can run once more");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    false
}

/// The bytes of the resident set of this process; 0 where the system does not report them.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024)
}

/// Asserts that two lists contain the same items, in any order.
pub(crate) fn assert_same<T: Ord + Debug>(mut left: Vec<T>, mut right: Vec<T>, what: &str) {
    left.sort();
    right.sort();
    assert_eq!(left, right, "{what}");
}
