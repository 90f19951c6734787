//! Any sequence of operations: the packed store answers as the model of the conformance suite does, and the
//! same store with limits keeps them and reports the evicted swarms and peers.
//!
//! The suite's own random stories stay in a small world and look at everything after each step; these are
//! longer, in a world where swarms grow through every size that the store treats differently.
#![no_main]

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use libfuzzer_sys::{arbitrary, arbitrary::Arbitrary, fuzz_target};
use swarmkeep::{
    Announce, AnnounceEvent, Announced, BoundedBy, Changes, ConfigError, Endpoint, Evicted, Families,
    HashKey, InfoHash, Packed, PeerBuffer, PeerRecord, RepositoryConfig, Request, Retention, Role,
    SplitMix64, SwarmStats, SwarmSummary, Timestamp, TorrentRepository, TorrentRepositoryExt,
    implement::SectionExt as _,
};
use swarmkeep_conformance::Model;

/// Longer than the resolution of the store's clock, so that every age is clearly on one side of the lifetime.
const UNIT: u64 = 100;
const LIFETIME_UNITS: u64 = 18;
const START: u64 = 1_800_000_000;
const TORRENTS: u8 = 8;

/// The limits of the store with limits.
const MOST_SWARMS: usize = 5;
const MOST_PEERS: usize = 100;
const MOST_ENDPOINTS: usize = 2;

#[derive(Debug, Arbitrary)]
struct AnnounceInput {
    torrent: u8,
    endpoint: u16,
    event: u8,
    seeder: bool,
    want: u8,
    families: u8,
}

#[derive(Debug, Arbitrary)]
enum Action {
    Announce(AnnounceInput),
    /// Neighbouring endpoints, one announce each.
    Crowd {
        torrent: u8,
        first: u16,
        count: u8,
        event: u8,
        seeder: bool,
    },
    Pass {
        units: u8,
    },
    SetClockBack {
        units: u8,
    },
    Sweep {
        keep_downloaded: bool,
    },
    Remove {
        torrent: u8,
    },
    RemoveWhere {
        forbidden: u8,
    },
    Restore {
        torrent: u8,
        downloaded: u32,
        peers: Vec<(u16, bool, u8)>,
    },
    AddDownloads {
        torrent: u8,
        earlier: u32,
    },
    /// With the content that an earlier announce has left in the answers and buffers.
    Batch {
        announces: Vec<AnnounceInput>,
        used: bool,
    },
    /// Neighbouring endpoints in one batch.
    CrowdedBatch {
        torrent: u8,
        first: u16,
        count: u8,
        event: u8,
        seeder: bool,
    },
}

fuzz_target!(|actions: Vec<Action>| {
    let mut stores = ComparedStores::new();
    for action in actions {
        stores.apply(action);
        assert_eq!(stores.packed.totals(), stores.model.totals());
        stores.limited.check();
    }
    stores.compare();
    stores.limited.check_addresses();
});

struct ComparedStores {
    packed: Packed,
    model: Model,
    limited: LimitedStore,
    rng: SplitMix64,
    now: u64,
    /// The latest time of both stores, from which ages count.
    latest: u64,
}

impl ComparedStores {
    fn new() -> Self {
        let lifetime = Duration::from_secs(LIFETIME_UNITS * UNIT);
        let config = RepositoryConfig::new(HashKey::from_bytes([9; 16])).lifetime(lifetime);
        let limited = LimitedStore::new(&config);
        let config = config.shards(2);
        let (packed, model) = (Packed::new(&config).unwrap(), Model::new(&config).unwrap());
        assert!(packed.capabilities().clock_resolution_secs < UNIT);
        Self { packed, model, limited, rng: SplitMix64::new(1), now: START, latest: START }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Announce(input) => self.announce(input.announce()),
            Action::Batch { mut announces, used } => {
                announces.truncate(200);
                self.batch(announces.iter().map(AnnounceInput::announce).collect(), used);
            }
            Action::CrowdedBatch { torrent, first, count, event, seeder } => {
                let one = |n| announce(torrent, first.wrapping_add(n), event, seeder).want(4);
                self.batch((0..u16::from(count)).map(one).collect(), false);
            }
            Action::Crowd { torrent, first, count, event, seeder } => {
                for n in 0..u16::from(count) {
                    self.announce(announce(torrent, first.wrapping_add(n), event, seeder).want(4));
                }
            }
            Action::Pass { units } => self.now += u64::from(units) * UNIT,
            Action::SetClockBack { units } => self.now -= (u64::from(units) * UNIT).min(self.now - START / 2),
            Action::Sweep { keep_downloaded } => {
                let policy = if keep_downloaded { Retention::KeepDownloaded } else { Retention::DropEmpty };
                let now = self.known_time();
                let (swept, expected) =
                    (self.packed.sweep_all(now, policy), self.model.sweep_all(now, policy));
                assert_eq!(
                    (swept.expired, swept.swarms_removed),
                    (expected.expired, expected.swarms_removed)
                );
                self.limited.peers -= self.limited.store.sweep_all(now, policy).expired;
            }
            Action::Remove { torrent } => {
                let torrent = info_hash(torrent);
                assert_eq!(self.packed.remove(&torrent), self.model.remove(&torrent));
                self.limited.peers -= self.limited.store.remove(&torrent).map_or(0, |stats| stats.peers());
            }
            Action::RemoveWhere { forbidden } => {
                let named = |hash: &InfoHash| forbidden >> hash.as_bytes()[19] & 1 == 1;
                let removed = by_hash(self.packed.remove_all_where(&named));
                assert_eq!(removed, by_hash(self.model.remove_all_where(&named)));
                let removed = self.limited.store.remove_all_where(&named);
                self.limited.peers -= removed.iter().map(|swarm| swarm.stats.peers()).sum::<u64>();
            }
            Action::Restore { torrent, downloaded, peers } => {
                let now = self.known_time();
                let stats = SwarmStats { downloaded, ..SwarmStats::default() };
                let swarm = SwarmSummary { info_hash: info_hash(torrent), stats };
                // A snapshot holds an endpoint once.
                let peers: BTreeMap<_, _> =
                    peers.into_iter().map(|(n, seeder, age)| (endpoint(n), (seeder, age))).collect();
                let record = |(endpoint, (seeder, age))| PeerRecord {
                    endpoint,
                    role: if seeder { Role::Seeder } else { Role::Leecher },
                    last_announce: Timestamp::from_secs(self.latest - u64::from(age % 32) * UNIT),
                    details: None,
                };
                let peers: Vec<_> = peers.into_iter().map(record).collect();
                assert_eq!(self.packed.restore(&swarm, &peers, now), self.model.restore(&swarm, &peers, now));
                self.limited.peers += self.limited.store.restore(&swarm, &peers, now).added;
            }
            Action::AddDownloads { torrent, earlier } => {
                let torrent = info_hash(torrent);
                let added = self.packed.add_downloads(&torrent, earlier);
                assert_eq!(added, self.model.add_downloads(&torrent, earlier));
                self.limited.store.add_downloads(&torrent, earlier);
            }
        }
    }

    /// The time, which from now on both know.
    fn known_time(&mut self) -> Timestamp {
        self.latest = self.latest.max(self.now);
        Timestamp::from_secs(self.now)
    }

    fn announce(&mut self, announce: Announce) {
        let now = self.known_time();
        let (mut v4, mut v6, mut unused_v4, mut unused_v6) =
            ([0; 6 * 300], [0; 18 * 300], [0; 6 * 300], [0; 18 * 300]);
        let (mut peers, mut expected) =
            (PeerBuffer::new(&mut v4, &mut v6), PeerBuffer::new(&mut unused_v4, &mut unused_v6));
        let answer = self.packed.announce(&announce, now, &mut self.rng, &mut peers);
        assert_eq!(answer, self.model.announce(&announce, now, &mut self.rng, &mut expected), "{announce:?}");
        assert_eq!((peers.v4.len(), peers.v6.len()), (expected.v4.len(), expected.v6.len()), "{announce:?}");
        check_handed(&announce, &peers);
        let answer = self.limited.store.announce(&announce, now, &mut self.rng, &mut peers);
        check_handed(&announce, &peers);
        self.limited.count(&announce, &answer);
    }

    /// A batch in the packed stores, one announce after the other in the model.
    fn batch(&mut self, announces: Vec<Announce>, used: bool) {
        let now = self.known_time();
        let mut room: Vec<_> = announces
            .iter()
            .map(|announce| (vec![0; 6 * announce.want], vec![0; 18 * announce.want]))
            .collect();
        let mut requests: Vec<_> = announces
            .iter()
            .zip(&mut room)
            .map(|(&announce, (v4, v6))| Request::new(announce, PeerBuffer::new(v4, v6)))
            .collect();
        for request in requests.iter_mut().filter(|_| used) {
            request.answer = Some(Announced::new(SwarmStats::default(), Changes::all()));
            (0..request.peers.v4.room()).for_each(|_| request.peers.v4.push(&[7; 6]));
        }
        self.packed.announce_batch(&mut requests, now, &mut self.rng);
        for (announce, request) in announces.iter().zip(&requests) {
            let (mut v4, mut v6) = (vec![0; 6 * announce.want], vec![0; 18 * announce.want]);
            let mut expected = PeerBuffer::new(&mut v4, &mut v6);
            let answer = self.model.announce(announce, now, &mut self.rng, &mut expected);
            assert_eq!(request.answer, Some(answer), "{announce:?}");
            let peers = &request.peers;
            assert_eq!(
                (peers.v4.len(), peers.v6.len()),
                (expected.v4.len(), expected.v6.len()),
                "{announce:?}"
            );
            check_handed(announce, peers);
        }
        self.limited.store.announce_batch(&mut requests, now, &mut self.rng);
        for (announce, request) in announces.iter().zip(&requests) {
            check_handed(announce, &request.peers);
            self.limited.count(announce, &request.answer.unwrap());
        }
    }

    fn compare(&self) {
        let swarms = by_hash(self.packed.swarms());
        assert_eq!(swarms, by_hash(self.model.swarms()));
        for SwarmSummary { info_hash, stats } in swarms {
            assert_eq!(self.packed.scrape(&info_hash), stats);
            let sorted = |mut peers: Vec<PeerRecord>| {
                peers.sort_unstable_by_key(|peer| peer.endpoint);
                peers
            };
            let (listed, expected) =
                (sorted(self.packed.all_peers(&info_hash)), sorted(self.model.all_peers(&info_hash)));
            let identity = |peer: &PeerRecord| (peer.endpoint, peer.role);
            assert!(listed.iter().map(identity).eq(expected.iter().map(identity)));
            for (listed, expected) in listed.iter().zip(&expected) {
                let age = |peer: &PeerRecord| {
                    let age = self.latest.checked_sub(peer.last_announce.as_secs());
                    age.expect("no announce is later than the latest time")
                };
                let (listed_age, age) = (age(listed), age(expected));
                let resolution = self.packed.capabilities().clock_resolution_secs;
                // A clock of few bits knows of the dead only that they are dead.
                let dead = age > LIFETIME_UNITS * UNIT && listed_age >= LIFETIME_UNITS * UNIT;
                let younger = listed_age <= age && age - listed_age <= resolution;
                assert!(dead || younger, "{listed:?} where {expected:?} is meant");
            }
        }
    }
}

/// The same store with limits, of which the model knows no more than how many peers must be left.
struct LimitedStore {
    store: Packed,
    most_bytes: u64,
    peers: u64,
    evicted: Evicted,
}

impl LimitedStore {
    fn new(config: &RepositoryConfig) -> Self {
        let config = config
            .clone()
            .max_swarms(MOST_SWARMS)
            .max_peers_per_swarm(MOST_PEERS)
            .max_endpoints_per_address(MOST_ENDPOINTS);
        let (mut store, mut most_bytes) = (Packed::new(&config).unwrap(), u64::MAX);
        if store.capabilities().bounded.contains(BoundedBy::BYTES) {
            let Err(ConfigError::Limit { least, .. }) = Packed::new(&config.clone().max_bytes(1)) else {
                panic!("a store of one byte");
            };
            store = Packed::new(&config.max_bytes(least + least / 4)).unwrap();
            most_bytes = (least + least / 4) as u64;
        }
        Self { store, most_bytes, peers: 0, evicted: Evicted::default() }
    }

    fn count(&mut self, announce: &Announce, answer: &Announced) {
        self.peers += u64::from(answer.changes.contains(Changes::JOINED));
        self.peers -= u64::from(answer.changes.contains(Changes::LEFT)) + answer.evicted.peers;
        self.evicted += answer.evicted;
        assert!(answer.stats.peers() <= MOST_PEERS as u64);
        // If all swarms have many peers, a store has no room for a new one, and makes some for the next one.
        let is_refused =
            answer.changes.is_empty() && answer.evicted.swarms == 0 && answer.evicted.peers <= 64;
        let is_there = answer.stats.peers() > 0 || announce.event == AnnounceEvent::Stopped;
        assert!(is_there || is_refused, "the announcer is gone: {answer:?}");
    }

    fn check(&self) {
        let (totals, bytes) = (self.store.totals(), self.store.memory().bytes);
        assert_eq!((totals.peers(), totals.evicted), (self.peers, self.evicted));
        assert!(totals.swarms <= MOST_SWARMS as u64, "{} swarms", totals.swarms);
        assert!(bytes <= self.most_bytes, "{bytes} bytes of {}", self.most_bytes);
    }

    /// That no address has more endpoints in a swarm than it may.
    fn check_addresses(&self) {
        for SwarmSummary { info_hash, .. } in self.store.swarms() {
            let mut held = BTreeMap::<_, usize>::new();
            for PeerRecord { endpoint, .. } in self.store.all_peers(&info_hash) {
                let address = match endpoint.ip() {
                    IpAddr::V4(ip) => u64::from(ip.to_bits()),
                    IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
                };
                *held.entry((endpoint.family(), address)).or_default() += 1;
            }
            assert!(held.values().all(|&held| held <= MOST_ENDPOINTS), "{held:?}");
        }
    }
}

fn check_handed(announce: &Announce, peers: &PeerBuffer<'_>) {
    let mut handed: Vec<_> = peers.endpoints().collect();
    handed.sort_unstable();
    handed.dedup();
    assert_eq!(handed.len(), peers.len(), "a peer is handed out twice");
    assert!(!handed.contains(&announce.endpoint), "the announcer is handed out");
}

impl AnnounceInput {
    fn announce(&self) -> Announce {
        let announce = announce(self.torrent, self.endpoint, self.event, self.seeder)
            .seeders_too(self.families & 4 != 0)
            .want(self.want.into());
        match self.families % 4 {
            0 => announce,
            bits => announce.families(Families::from_bits_truncate(bits)),
        }
    }
}

fn announce(torrent: u8, n: u16, event: u8, seeder: bool) -> Announce {
    let event = AnnounceEvent::of_number(u32::from(event % 4)).unwrap();
    Announce::new(info_hash(torrent), endpoint(n)).event(event).left(if seeder { 0 } else { 5 })
}

fn info_hash(torrent: u8) -> InfoHash {
    let mut bytes = [0xaa; 20];
    bytes[19] = torrent % TORRENTS;
    InfoHash::new(bytes)
}

/// One of about 700 endpoints, a fifth of them IPv6, several at one address or in one /64.
fn endpoint(n: u16) -> Endpoint {
    let n = n % 700;
    let [high, low] = (n / 3).to_be_bytes();
    let ip = if n % 5 == 0 {
        IpAddr::from([0x2001, 0xdb8, 0, n / 20, 0, 0, 0, n / 3])
    } else {
        IpAddr::from([10, 0, high, low])
    };
    Endpoint::new(ip, 1000 + n).unwrap()
}

fn by_hash(mut swarms: Vec<SwarmSummary>) -> Vec<SwarmSummary> {
    swarms.sort_unstable_by_key(|swarm| swarm.info_hash);
    swarms
}
