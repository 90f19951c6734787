//! Any sequence of operations: the packed store answers as the model of the conformance suite does.
//!
//! The suite's own random stories stay in a small world and look at everything after each step; these are longer, in a
//! world where swarms grow through every size that the store treats differently.
#![no_main]

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use libfuzzer_sys::{arbitrary, arbitrary::Arbitrary, fuzz_target};
use swarmkeep::{
    Announce, AnnounceEvent, Endpoint, Families, HashKey, InfoHash, Packed, PeerBuffer, PeerRecord,
    RepositoryConfig, Retention, Role, SplitMix64, SwarmStats, SwarmSummary, Timestamp, TorrentRepository,
    TorrentRepositoryExt,
};
use swarmkeep_conformance::Model;

/// Longer than the resolution of the store's clock, so that every age is clearly on one side of the lifetime.
const UNIT: u64 = 100;
const LIFETIME_UNITS: u64 = 18;
const START: u64 = 1_800_000_000;
const TORRENTS: u8 = 8;

#[derive(Debug, Arbitrary)]
enum Step {
    Announce {
        torrent: u8,
        endpoint: u16,
        event: u8,
        seeder: bool,
        want: u8,
        families: u8,
    },
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
}

fuzz_target!(|steps: Vec<Step>| {
    let mut world = World::new();
    for step in steps {
        world.take(step);
        assert_eq!(world.packed.totals(), world.model.totals());
    }
    world.compare();
});

struct World {
    packed: Packed,
    model: Model,
    rng: SplitMix64,
    now: u64,
    /// The latest time that both have been told, which is what ages count from.
    latest: u64,
}

impl World {
    fn new() -> Self {
        let lifetime = Duration::from_secs(LIFETIME_UNITS * UNIT);
        let config = RepositoryConfig::new(HashKey::from_bytes([9; 16])).lifetime(lifetime).shards(2);
        let (packed, model) = (Packed::new(&config).unwrap(), Model::new(&config).unwrap());
        assert!(packed.capabilities().clock_resolution_secs < UNIT);
        Self { packed, model, rng: SplitMix64::new(1), now: START, latest: START }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Announce { torrent, endpoint, event, seeder, want, families } => {
                let announce = announce(torrent, endpoint, event, seeder).want(want.into());
                self.announce(match families % 4 {
                    0 => announce,
                    bits => announce.families(Families::from_bits_truncate(bits)),
                });
            }
            Step::Crowd { torrent, first, count, event, seeder } => {
                for n in 0..u16::from(count) {
                    self.announce(announce(torrent, first.wrapping_add(n), event, seeder).want(4));
                }
            }
            Step::Pass { units } => self.now += u64::from(units) * UNIT,
            Step::SetClockBack { units } => self.now -= (u64::from(units) * UNIT).min(self.now - START / 2),
            Step::Sweep { keep_downloaded } => {
                let policy = if keep_downloaded { Retention::KeepDownloaded } else { Retention::DropEmpty };
                let now = self.told();
                let (swept, expected) =
                    (self.packed.sweep_all(now, policy), self.model.sweep_all(now, policy));
                assert_eq!(
                    (swept.expired, swept.swarms_removed),
                    (expected.expired, expected.swarms_removed)
                );
            }
            Step::Remove { torrent } => {
                let torrent = info_hash(torrent);
                assert_eq!(self.packed.remove(&torrent), self.model.remove(&torrent));
            }
            Step::RemoveWhere { forbidden } => {
                let named = |hash: &InfoHash| forbidden >> hash.as_bytes()[19] & 1 == 1;
                let removed = by_hash(self.packed.remove_all_where(&named));
                assert_eq!(removed, by_hash(self.model.remove_all_where(&named)));
            }
            Step::Restore { torrent, downloaded, peers } => {
                let now = self.told();
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
            }
            Step::AddDownloads { torrent, earlier } => {
                let torrent = info_hash(torrent);
                let added = self.packed.add_downloads(&torrent, earlier);
                assert_eq!(added, self.model.add_downloads(&torrent, earlier));
            }
        }
    }

    /// The time, which from now on both know.
    fn told(&mut self) -> Timestamp {
        self.latest = self.latest.max(self.now);
        Timestamp::from_secs(self.now)
    }

    fn announce(&mut self, announce: Announce) {
        let now = self.told();
        let (mut v4, mut v6, mut unused_v4, mut unused_v6) =
            ([0; 6 * 300], [0; 18 * 300], [0; 6 * 300], [0; 18 * 300]);
        let (mut peers, mut expected) =
            (PeerBuffer::new(&mut v4, &mut v6), PeerBuffer::new(&mut unused_v4, &mut unused_v6));
        let answer = self.packed.announce(&announce, now, &mut self.rng, &mut peers);
        assert_eq!(answer, self.model.announce(&announce, now, &mut self.rng, &mut expected), "{announce:?}");
        assert_eq!((peers.v4.len(), peers.v6.len()), (expected.v4.len(), expected.v6.len()), "{announce:?}");
        let mut handed: Vec<_> = peers.endpoints().collect();
        handed.sort_unstable();
        handed.dedup();
        assert_eq!(handed.len(), peers.len(), "somebody is handed out twice");
        assert!(!handed.contains(&announce.endpoint), "the announcer is handed out");
    }

    /// Everything that both hold.
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
                let age = |peer: &PeerRecord| self.latest - peer.last_announce.as_secs();
                // A clock of few bits knows of the dead only that they are dead.
                let dead = age(expected) > LIFETIME_UNITS * UNIT && age(listed) >= LIFETIME_UNITS * UNIT;
                assert!(
                    dead || age(listed).abs_diff(age(expected)) < UNIT,
                    "{listed:?} where {expected:?} is meant"
                );
            }
        }
    }
}

fn announce(torrent: u8, n: u16, event: u8, seeder: bool) -> Announce {
    let event = AnnounceEvent::try_from(u32::from(event % 4)).unwrap();
    Announce::new(info_hash(torrent), endpoint(n)).event(event).left(if seeder { 0 } else { 5 })
}

fn info_hash(torrent: u8) -> InfoHash {
    let mut bytes = [0xaa; 20];
    bytes[19] = torrent % TORRENTS;
    InfoHash::new(bytes)
}

/// One of about 700 endpoints, a fifth of them IPv6, several at one address.
fn endpoint(n: u16) -> Endpoint {
    let n = n % 700;
    let [high, low] = (n / 3).to_be_bytes();
    let ip = if n % 5 == 0 {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n / 3])
    } else {
        IpAddr::from([10, 0, high, low])
    };
    Endpoint::new(ip, 1000 + n).unwrap()
}

fn by_hash(mut swarms: Vec<SwarmSummary>) -> Vec<SwarmSummary> {
    swarms.sort_unstable_by_key(|swarm| swarm.info_hash);
    swarms
}
