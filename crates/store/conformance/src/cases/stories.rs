//! Random stories: sequences of operations that are compared with the [`Model`] step by step, and shrunk to
//! the shortest one that still fails.
//!
//! Few swarms and endpoints are used, so that operations meet all the time. Seeds are fixed: a failure
//! repeats.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any},
    prop_assert, prop_assert_eq, prop_oneof,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};
use swarmkeep::{
    Announce, AnnounceEvent, BoundedBy, Cursor, Endpoint, Families, Family, InfoHash, PeerRecord, Retention,
    Role, SplitMix64, SwarmSummary, Timestamp, TorrentRepository, TorrentRepositoryExt,
};

use crate::{Model, Subject, kit::*};

const TORRENTS: u8 = 3;
const ENDPOINTS: u8 = 6;
const LIFETIME_UNITS: u64 = 18;

pub(crate) fn random_stories_go_as_with_the_model(subject: &dyn Subject) {
    tell(subject, 160, 1..40);
}

/// Fewer stories, but long enough for swarms to fill and become empty several times.
pub(crate) fn long_random_stories_go_as_with_the_model(subject: &dyn Subject) {
    tell(subject, 12, 300..500);
}

/// Few endpoints of few addresses, in small and large swarms, so that every other step replaces an endpoint.
pub(crate) fn random_stories_of_limited_addresses_go_as_with_the_model(subject: &dyn Subject) {
    if bounded(subject, BoundedBy::ENDPOINTS_PER_ADDRESS, &config().max_endpoints_per_address(1)).is_none() {
        return;
    }
    for (most, bystanders, stories) in [(1, 0, 30), (3, 0, 60), (3, 100, 20), (40, 100, 4)] {
        run(&vec(crowded_step(), 1..LIMITED_STEPS), stories, |steps| {
            let mut world = World::new(subject, LIMITED_LIFETIME_UNITS, Some(most));
            world.fill(bystanders);
            world.tell(&apart_in_time(steps))
        });
    }
}

fn tell(subject: &dyn Subject, stories: u32, length: std::ops::Range<usize>) {
    run(&vec(step(), length), stories, |steps| World::new(subject, LIFETIME_UNITS, None).tell(&steps));
}

/// Runs `tell` on `stories` random stories, which must all pass. A failing story is shrunk and printed step
/// by step.
pub(crate) fn run<T: fmt::Debug>(
    story: &impl Strategy<Value = Vec<T>>,
    stories: u32,
    tell: impl Fn(Vec<T>) -> Result<(), TestCaseError>,
) {
    let config = Config {
        cases: stories,
        failure_persistence: None,
        max_shrink_iters: 4000,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(story, tell) {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => {
            let lines: Vec<_> = steps.iter().map(|step| format!("  {step:?}")).collect();
            panic!("the last of these steps goes otherwise than it should: {reason}\n{}", lines.join("\n"));
        }
        Err(error) => panic!("{error}"),
    }
}

/// One step of a story. Its numbers stand for torrents, endpoints, and multiples of a unit of time that is
/// longer than the resolution of any clock.
#[derive(Clone)]
enum Step {
    Announce(TestAnnounce),
    Batch(Vec<TestAnnounce>),
    Pass(u32),
    ClockSetBack(u32),
    Sweep { keep_downloaded: bool },
    Remove(u8),
    RemoveWhere { forbidden: [bool; TORRENTS as usize] },
    Restore { torrent: u8, downloaded: u32, peers: Vec<(u8, bool, u32)> },
    AddDownloads(u8, u32),
}

/// An announce, by numbers.
#[derive(Clone)]
pub(crate) struct TestAnnounce {
    pub(crate) torrent: u8,
    pub(crate) endpoint: u8,
    pub(crate) event: AnnounceEvent,
    pub(crate) seeder: bool,
    pub(crate) seeders_too: bool,
    pub(crate) want: usize,
    pub(crate) families: u8,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => announce().prop_map(Step::Announce),
        2 => vec(announce(), 0..6).prop_map(Step::Batch),
        4 => prop_oneof![Just(1), Just(2), Just(9), Just(17), Just(18), Just(19), Just(40), Just(700), Just(100_000)]
            .prop_map(Step::Pass),
        1 => (1..30_u32).prop_map(Step::ClockSetBack),
        3 => any::<bool>().prop_map(|keep_downloaded| Step::Sweep { keep_downloaded }),
        1 => torrent().prop_map(Step::Remove),
        1 => any::<[bool; TORRENTS as usize]>().prop_map(|forbidden| Step::RemoveWhere { forbidden }),
        2 => (torrent(), download_count(), vec((0..ENDPOINTS, any::<bool>(), 0..21_u32), 0..4))
            .prop_map(|(torrent, downloaded, peers)| Step::Restore { torrent, downloaded, peers }),
        1 => (torrent(), download_count()).prop_map(|(torrent, earlier)| Step::AddDownloads(torrent, earlier)),
    ]
}

/// The number of steps of a story with limited addresses: one per unit of time. Restored peers take up to
/// three units more. All of it fits in one lifetime.
const LIMITED_STEPS: usize = 24;
const LIMITED_LIFETIME_UNITS: u64 = 100;

/// Endpoints from this number on belong to few addresses.
const FIRST_CROWDED: u8 = 100;
const CROWDED: u8 = 48;

fn crowded_step() -> impl Strategy<Value = Step> {
    let crowded = || FIRST_CROWDED..FIRST_CROWDED + CROWDED;
    let announce = move || (announce(), crowded()).prop_map(|(it, endpoint)| TestAnnounce { endpoint, ..it });
    prop_oneof![
        16 => announce().prop_map(Step::Announce),
        4 => vec(announce(), 1..12).prop_map(Step::Batch),
        1 => any::<bool>().prop_map(|keep_downloaded| Step::Sweep { keep_downloaded }),
        1 => torrent().prop_map(Step::Remove),
        2 => (torrent(), download_count(), vec((crowded(), any::<bool>(), Just(0)), 0..4))
            .prop_map(|(torrent, downloaded, peers)| Step::Restore { torrent, downloaded, peers }),
    ]
}

/// Returns the same steps, in which no two endpoints of an address have the same age, so that the contract
/// determines which one is replaced.
fn apart_in_time(steps: Vec<Step>) -> Vec<Step> {
    let apart = |(nth, mut step)| {
        match &mut step {
            Step::Batch(all) => {
                let mut seen = BTreeSet::new();
                all.retain(|told| seen.insert((told.torrent, address_of_crowded(told.endpoint))));
            }
            // Before the story began, and each before all peers that were restored earlier.
            Step::Restore { peers, .. } => {
                let first = 4 * nth as u32 + 2;
                peers.iter_mut().zip(first..).for_each(|((.., age), earlier)| *age = earlier);
            }
            _ => {}
        }
        [Step::Pass(1), step]
    };
    steps.into_iter().enumerate().flat_map(apart).collect()
}

/// Returns one of four addresses, two of each family.
const fn address_of_crowded(n: u8) -> u8 {
    n % 4
}

fn announce() -> impl Strategy<Value = TestAnnounce> {
    announce_of(torrent(), 0..ENDPOINTS, [4, 1, 3, 2], (0..7_u8).prop_map(usize::from))
}

/// Returns announces with these shares of events: none, started, completed, stopped.
pub(crate) fn announce_of(
    torrent: impl Strategy<Value = u8>,
    endpoint: impl Strategy<Value = u8>,
    [none, started, completed, stopped]: [u32; 4],
    want: impl Strategy<Value = usize>,
) -> impl Strategy<Value = TestAnnounce> {
    use AnnounceEvent::{Completed, None, Started, Stopped};
    let event = prop_oneof![
        none => Just(None), started => Just(Started), completed => Just(Completed), stopped => Just(Stopped),
    ];
    (torrent, endpoint, event, any::<bool>(), any::<bool>(), want, 0..5_u8).prop_map(
        |(torrent, endpoint, event, seeder, seeders_too, want, families)| TestAnnounce {
            torrent,
            endpoint,
            event,
            seeder,
            seeders_too,
            want,
            families,
        },
    )
}

fn torrent() -> impl Strategy<Value = u8> {
    0..TORRENTS
}

fn download_count() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..4_u32, 1 => Just(u32::MAX - 1)]
}

impl TestAnnounce {
    pub(crate) fn announce(&self) -> Announce {
        let announce = Announce::new(torrent_of(self.torrent), endpoint_of(self.endpoint))
            .event(self.event)
            .left(if self.seeder { 0 } else { 5 })
            .seeders_too(self.seeders_too)
            .want(self.want);
        match self.families {
            4 => announce,
            bits => announce.families(Families::from_bits_truncate(bits)),
        }
    }
}

impl fmt::Debug for TestAnnounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let announce = self.announce();
        let role = if self.seeder { "seeder" } else { "leecher" };
        write!(f, "{role} {} in torrent {}: {}", announce.endpoint, self.torrent, announce.event)?;
        let seeders = if announce.takes_seeders() { "" } else { "no seeders and " };
        write!(f, ", wants {seeders}{} of {:?}", announce.want, announce.families)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Announce(told) => told.fmt(f),
            Self::Batch(all) => write!(f, "in one batch: {all:?}"),
            Self::Pass(units) => write!(f, "{units} eighteenths of the lifetime pass"),
            Self::ClockSetBack(units) => {
                write!(f, "the clock is set back by {units} eighteenths of the lifetime")
            }
            Self::Sweep { keep_downloaded } => {
                write!(f, "a full sweep, keeping download counts: {keep_downloaded}")
            }
            Self::Remove(torrent) => write!(f, "remove torrent {torrent}"),
            Self::RemoveWhere { forbidden } => write!(f, "remove where forbidden: {forbidden:?}"),
            Self::Restore { torrent, downloaded, peers } => {
                write!(
                    f,
                    "restore torrent {torrent} with {downloaded} downloads and peers (endpoint, seeder, age) {peers:?}"
                )
            }
            Self::AddDownloads(torrent, earlier) => write!(f, "add {earlier} downloads to torrent {torrent}"),
        }
    }
}

pub(crate) fn torrent_of(n: u8) -> InfoHash {
    hash(n.into())
}

/// Returns endpoint `n`; every third is an IPv6 endpoint.
pub(crate) fn endpoint_of(n: u8) -> Endpoint {
    if n >= FIRST_CROWDED {
        return match address_of_crowded(n) {
            address @ (0 | 1) => of_address(Family::V4, address.into(), n.into()),
            // One with all endpoints in one /64, and one with each in another.
            2 => of_subnet(2, 0, n.into()),
            address => of_subnet(address.into(), n.into(), n.into()),
        };
    }
    peer(if n % 3 == 2 { Family::V6 } else { Family::V4 }, n.into())
}

/// The store under test, the model, and the time of both.
struct World {
    store: Store,
    model: Model,
    /// The unit of time, longer than the resolution of the store's clock, so that all ages are clearly above
    /// or below the lifetime.
    unit: u64,
    lifetime_units: u64,
    now: u64,
}

impl World {
    /// Returns a world in which an address has at most `most` endpoints in a swarm, if any number is given.
    fn new(subject: &dyn Subject, lifetime_units: u64, most: Option<usize>) -> Self {
        let (config, unit) = config_with_units(subject, lifetime_units);
        let config = most.map_or(config.clone(), |most| config.max_endpoints_per_address(most));
        let store = build_with(subject, &config);
        let model = Model::new(&config).expect("a lifetime of whole seconds, and limits of one or more");
        Self { store, model, unit, lifetime_units, now: T0 }
    }

    /// Fills the swarms with `bystanders` peers that have addresses of their own.
    fn fill(&mut self, bystanders: u32) {
        let endpoint = |n| of_address(if n % 3 == 0 { Family::V6 } else { Family::V4 }, 1000 + n, 1);
        for (torrent, n) in (0..TORRENTS).flat_map(|torrent| (0..bystanders).map(move |n| (torrent, n))) {
            let announce = leecher(torrent_of(torrent), endpoint(n)).want(0);
            self.store.fill(0, [announce]);
            self.model.state().update(&announce, at(0));
        }
    }

    fn tell(mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for (n, step) in steps.iter().enumerate() {
            self.take(step, n as u64)?;
            // A store that is not called stays as it is.
            if !matches!(step, Step::Pass(_) | Step::ClockSetBack(_)) {
                self.compare()?;
            }
        }
        self.compare_listings()
    }

    fn take(&mut self, step: &Step, n: u64) -> Result<(), TestCaseError> {
        let (store, model, now) = (&self.store, &self.model, Timestamp::from_secs(self.now));
        match step {
            Step::Announce(told) => {
                let answer = announce_with(store, &told.announce(), now, &mut SplitMix64::new(n));
                self.judge(&told.announce(), &answer, now)?;
            }
            Step::Batch(all) => {
                let (batch, mut answers): (Vec<_>, _) =
                    (all.iter().map(TestAnnounce::announce).collect(), Vec::new());
                store.tell_batch(now, &batch, &mut SplitMix64::new(n), |answer| answers.push(answer));
                for (announce, answer) in batch.iter().zip(&answers) {
                    self.judge(announce, answer, now)?;
                }
            }
            Step::Pass(units) => self.now += u64::from(*units) * self.unit,
            Step::ClockSetBack(units) => self.now -= u64::from(*units) * self.unit,
            Step::Sweep { keep_downloaded } => {
                let policy = if *keep_downloaded { Retention::KeepDownloaded } else { Retention::DropEmpty };
                let (swept, expected) = (store.sweep_all(now, policy), model.sweep_all(now, policy));
                prop_assert_eq!(swept.expired, expected.expired, "peers expired");
                prop_assert_eq!(swept.swarms_removed, expected.swarms_removed, "swarms removed");
            }
            Step::Remove(torrent) => {
                let torrent = torrent_of(*torrent);
                prop_assert_eq!(store.remove(&torrent), model.remove(&torrent), "the removed swarm");
            }
            Step::RemoveWhere { forbidden } => {
                let forbidden = |info_hash: &InfoHash| {
                    (0..TORRENTS).any(|n| forbidden[usize::from(n)] && *info_hash == torrent_of(n))
                };
                let removed = by_hash(store.remove_all_where(&forbidden));
                prop_assert_eq!(removed, by_hash(model.remove_all_where(&forbidden)), "the removed swarms");
            }
            Step::Restore { torrent, downloaded, peers } => {
                let swarm = SwarmSummary { info_hash: torrent_of(*torrent), stats: stats(0, 0, *downloaded) };
                // A snapshot contains each endpoint once.
                let peers: BTreeMap<_, _> =
                    peers.iter().map(|&(n, seeder, age)| (endpoint_of(n), (seeder, age))).collect();
                let latest = self.model.state().latest.max(now);
                let record = |(endpoint, (seeder, age)): (Endpoint, (bool, u32))| PeerRecord {
                    endpoint,
                    role: if seeder { Role::Seeder } else { Role::Leecher },
                    last_announce: latest.saturating_sub(u64::from(age) * self.unit),
                    details: None,
                };
                let peers: Vec<_> = peers.into_iter().map(record).collect();
                let restored = store.restore(&swarm, &peers, now);
                prop_assert_eq!(restored, model.restore(&swarm, &peers, now), "the restored peers");
            }
            Step::AddDownloads(torrent, earlier) => {
                let torrent = torrent_of(*torrent);
                let added = store.add_downloads(&torrent, *earlier);
                prop_assert_eq!(added, model.add_downloads(&torrent, *earlier), "whether there was a swarm");
            }
        }
        Ok(())
    }

    /// Does the same announce in the model. Counts and changes must be equal. The selection must be equal if
    /// there is no choice; otherwise it must be valid.
    fn judge(&self, announce: &Announce, answer: &Answer, now: Timestamp) -> Result<(), TestCaseError> {
        let mut state = self.model.state();
        prop_assert_eq!(answer.announced, state.update(announce, now), "the answer");
        let eligible = state.eligible(announce);
        let expected = eligible.len().min(announce.want);
        prop_assert_eq!(answer.peers.len(), expected, "peers handed out, of {:?}", eligible);
        let mut handed = answer.sorted();
        handed.dedup();
        prop_assert_eq!(handed.len(), answer.peers.len(), "a peer handed out twice: {:?}", &answer.peers);
        prop_assert!(handed.iter().all(|peer| eligible.contains(peer)), "{:?} of {:?}", &handed, &eligible);
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.store.totals(), self.model.totals(), "the totals");
        let (store, model) = (by_hash(self.store.swarms()), by_hash(self.model.swarms()));
        prop_assert_eq!(store, model, "the swarms");
        for torrent in (0..TORRENTS).map(torrent_of) {
            prop_assert_eq!(self.store.scrape(&torrent), self.model.scrape(&torrent), "a scrape");
            let (mut store, mut model) = (self.store.all_peers(&torrent), self.model.all_peers(&torrent));
            store.sort_by_key(|record| record.endpoint);
            model.sort_by_key(|record| record.endpoint);
            prop_assert_eq!(store.len(), model.len(), "how many peers are listed");
            for (listed, expected) in store.iter().zip(&model) {
                prop_assert_eq!(
                    (listed.endpoint, listed.role),
                    (expected.endpoint, expected.role),
                    "a peer as listed"
                );
                let (latest, lifetime) = (self.model.state().latest, self.lifetime_units * self.unit);
                let (told, shown) = (expected.last_announce, listed.last_announce);
                let close =
                    shown >= told && shown <= latest && shown.secs_since(told) <= resolution(&self.store);
                // A clock of few bits only knows that an expired peer has expired.
                let dead = latest.secs_since(told) > lifetime && latest.secs_since(shown) >= lifetime;
                prop_assert!(close || dead, "{listed:?} where {expected:?} is meant, at {latest:?}");
            }
        }
        Ok(())
    }

    fn compare_listings(&self) -> Result<(), TestCaseError> {
        for limit in 1..5 {
            let (mut store, mut model) = (Vec::new(), Vec::new());
            self.store.page(None, limit, &mut store);
            self.model.page(None, limit, &mut model);
            prop_assert_eq!(store, model, "a page of {}", limit);
            let (mut cursor, mut walked) = (Cursor::START, Vec::new());
            while !cursor.is_end() {
                cursor = self.store.walk(cursor, limit, &mut walked);
            }
            prop_assert_eq!(by_hash(walked), by_hash(self.model.swarms()), "a walk by {}", limit);
        }
        Ok(())
    }
}

fn by_hash(mut swarms: Vec<SwarmSummary>) -> Vec<SwarmSummary> {
    swarms.sort_by_key(|swarm| swarm.info_hash);
    swarms
}
