//! The peers of a load test, and each worker's stream of requests.

use swarmkeep::{AnnounceEvent, InfoHash, PeerId, Random, SplitMix64};
use swarmkeep_workload::{PeerIndex, Workload};

use crate::{
    Error,
    config::{Config, Mix, Swarms},
};

/// The first port that a peer listens at. Lower ports belong to the system, and trackers may refuse them.
const FIRST_PORT: u16 = 1025;
const PORTS: u64 = (u16::MAX - FIRST_PORT) as u64 + 1;

/// The peers of a load test.
///
/// Peers are numbered through all swarms, and every peer belongs to one worker, which knows its history. So
/// it has one [`Origin`](crate::config::Origin), since a tracker takes a peer's address from the packet.
/// Within a swarm no two peers have the same endpoint.
#[derive(Debug)]
pub(crate) struct Population {
    workload: Workload,
    seed: u64,
    origins: u64,
    workers: u64,
    mix: Mix,
    scrape_hashes: usize,
    /// Shares of the announces with the events `started` and `stopped`.
    started: f64,
    stopped: f64,
    /// Share of the leechers' announces with the event `completed`.
    completed: f64,
    /// Share of seeders among the clients that join.
    born_seeders: f64,
}

/// A request of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Request {
    Connect,
    Announce(PlannedAnnounce),
    /// A scrape of [`Stream::hashes`].
    Scrape,
}

/// The torrents of a scrape.
pub(crate) type Hashes = [[u8; InfoHash::LEN]];

/// An announce, without the fields of the protocol.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlannedAnnounce {
    pub(crate) info_hash: InfoHash,
    pub(crate) peer_id: PeerId,
    pub(crate) port: u16,
    pub(crate) uploaded: u64,
    pub(crate) downloaded: u64,
    pub(crate) left: u64,
    pub(crate) event: AnnounceEvent,
}

impl Population {
    pub(crate) fn new(config: &Config, origins: usize) -> Result<Self, Error> {
        let (seed, peers, workers) = (config.seed, config.peers, config.workers as u64);
        let workload = match config.swarms {
            Swarms::Zipf(torrents) => Workload::zipf(seed, torrents, peers),
            Swarms::Uniform(torrents) => {
                Workload::uniform(seed, torrents, u32::try_from(peers / torrents).unwrap_or(u32::MAX))
            }
        };
        let workload = workload.with_profile(|profile| profile.seeders = config.seeders);
        let population = Self {
            workload,
            seed,
            origins: origins as u64,
            workers,
            mix: config.mix,
            scrape_hashes: config.scrape_hashes,
            // Each client that leaves makes room for one that joins.
            started: config.started.max(config.stopped),
            stopped: config.stopped,
            completed: config.completed / (1.0 - config.seeders),
            // As many leechers join as complete and as stop, so that the share of seeders stays.
            born_seeders: config.seeders - config.completed / config.stopped,
        };
        let (largest, at_one) = (population.largest(), population.largest().div_ceil(population.origins));
        if at_one > PORTS {
            return Err(Error::Config(format!(
                "the largest swarm has {largest} peers, and an address has {PORTS} ports: \
                 give more sources, fewer peers or more torrents"
            )));
        }
        Ok(population)
    }

    /// The requests of the worker with this number, without end.
    pub(crate) fn stream(&self, worker: usize) -> Stream<'_> {
        // Seeds are random numbers: with consecutive states of SplitMix64, the streams of neighbours would be
        // the same, but shifted.
        let seed =
            SplitMix64::new(self.seed ^ (worker as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95)).next_u64();
        let members = self.members(worker as u64);
        Stream {
            population: self,
            rng: SplitMix64::new(seed),
            members,
            histories: vec![History { client: Client::Unseen, before: 0 }; members.count as usize],
            hashes: Vec::with_capacity(self.scrape_hashes),
        }
    }

    /// The peers that a worker announces once each to fill the tracker, as their numbers among its own.
    pub(crate) fn fill(&self, worker: usize) -> Fill {
        let count = self.members(worker as u64).count;
        Fill { next: 0, count, stride: coprime(count) }
    }

    /// The first announce of the `n`-th of a worker's peers.
    pub(crate) fn first_announce(&self, worker: usize, n: u64) -> PlannedAnnounce {
        let members = self.members(worker as u64);
        PlannedAnnounce { event: AnnounceEvent::Started, ..self.announcing(members.first + n * members.step) }
    }

    fn members(&self, worker: u64) -> Members {
        let (origin, turn) = (worker % self.origins, worker / self.origins);
        let first = origin + turn * self.origins;
        let step = (self.workers - origin).div_ceil(self.origins) * self.origins;
        Members { first, step, count: (self.workload.peers() - first).div_ceil(step) }
    }

    fn announcing(&self, n: u64) -> PlannedAnnounce {
        let at = self.workload.peer_index(n);
        let announce = self.workload.announce(at);
        PlannedAnnounce {
            info_hash: announce.info_hash,
            peer_id: announce.peer_id,
            port: self.port(at),
            uploaded: announce.uploaded,
            downloaded: announce.downloaded,
            left: announce.left,
            event: AnnounceEvent::None,
        }
    }

    /// Peers of a swarm at one address have numbers that are `origins` apart, so that the numbers, divided
    /// by it, give each its own port.
    fn port(&self, at: PeerIndex) -> u16 {
        let offset = at.swarm.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        FIRST_PORT + ((u64::from(at.peer) / self.origins + offset) % PORTS) as u16
    }

    /// The number of peers of the largest swarm, which is the first.
    fn largest(&self) -> u64 {
        let (mut low, mut high) = (0, self.workload.peers());
        while low < high {
            let middle = low.midpoint(high);
            if self.workload.peer_index(middle).swarm == 0 { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// The numbers of the peers that a worker announces.
#[derive(Debug, Clone, Copy)]
struct Members {
    first: u64,
    step: u64,
    count: u64,
}

/// A worker's share of a fill, swarms mixed.
#[derive(Debug, Clone)]
pub(crate) struct Fill {
    next: u64,
    count: u64,
    stride: u64,
}

impl Iterator for Fill {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let n = self.next;
        self.next += 1;
        (n < self.count).then(|| (u128::from(n) * u128::from(self.stride) % u128::from(self.count)) as u64)
    }
}

/// A number near the golden section of `n` without a common factor: its multiples, modulo `n`, are all
/// different.
fn coprime(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = (n as f64 * 0.618_033_988_749_895) as u64;
    (start.max(1)..).find(|&step| gcd(step, n.max(1)) == 1).expect("every range as long as n holds one")
}

/// A worker's requests. They depend on the seed and the worker only, not on answers and their times.
#[derive(Debug)]
pub(crate) struct Stream<'p> {
    population: &'p Population,
    rng: SplitMix64,
    members: Members,
    histories: Vec<History>,
    hashes: Vec<[u8; InfoHash::LEN]>,
}

/// The state of a peer.
#[derive(Debug, Clone, Copy)]
struct History {
    client: Client,
    /// The number of earlier clients.
    before: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It has sent nothing in this run: it is old, or about to start.
    Unseen,
    Leecher,
    Seeder,
    Stopped,
}

impl Stream<'_> {
    pub(crate) fn next(&mut self) -> Request {
        let Mix { connect, announce, scrape } = self.population.mix;
        let [connect, announce, scrape] = [connect, announce, scrape].map(u64::from);
        let luck = self.below(connect + announce + scrape);
        if luck < announce {
            return Request::Announce(self.announce());
        }
        if luck < announce + connect {
            return Request::Connect;
        }
        self.hashes.clear();
        for _ in 0..self.population.scrape_hashes {
            let n = self.members.first + self.below(self.members.count) * self.members.step;
            let workload = &self.population.workload;
            self.hashes.push(*workload.info_hash(workload.peer_index(n).swarm).as_bytes());
        }
        Request::Scrape
    }

    /// The torrents of the last scrape.
    pub(crate) fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// The next announce of a peer. Its client starts, completes if it is a leecher, and stops once; then
    /// another client, with another peer id, starts there.
    fn announce(&mut self) -> PlannedAnnounce {
        let n = self.below(self.members.count);
        let [luck, role] = [(); 2].map(|()| (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64);
        let &Population { started, stopped, completed, born_seeders, .. } = self.population;
        let mut announcing = self.population.announcing(self.members.first + n * self.members.step);
        let History { client, before } = &mut self.histories[n as usize];
        // Shares are of all announces. In a share of `stopped`, another client starts.
        let (was, luck, again) = match *client {
            Client::Unseen => {
                (if announcing.left == 0 { Client::Seeder } else { Client::Leecher }, luck, started)
            }
            client => (client, luck * (1.0 - stopped), started - stopped),
        };
        (announcing.event, *client) = match was {
            Client::Stopped => {
                *before = before.wrapping_add(1);
                (AnnounceEvent::Started, if role < born_seeders { Client::Seeder } else { Client::Leecher })
            }
            _ if luck < stopped => (AnnounceEvent::Stopped, Client::Stopped),
            client if luck < stopped + again => (AnnounceEvent::Started, client),
            Client::Leecher if luck < stopped + again + completed => {
                (AnnounceEvent::Completed, Client::Seeder)
            }
            client => (AnnounceEvent::None, client),
        };
        let seeds = [was, *client].contains(&Client::Seeder);
        let size = announcing.left + announcing.downloaded;
        announcing.left = if seeds { 0 } else { size / 2 };
        announcing.downloaded = size - announcing.left;
        let mut peer_id = *announcing.peer_id.as_bytes();
        for (byte, before) in peer_id[12..].iter_mut().zip(before.to_le_bytes()) {
            *byte ^= before;
        }
        PlannedAnnounce { peer_id: PeerId::new(peer_id), ..announcing }
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::Target;

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::new(["127.0.0.1:1".parse::<Target>().unwrap()]);
        (config.swarms, config.peers, config.workers) = (Swarms::Zipf(50), 3_000, 7);
        change(&mut config);
        config
    }

    fn population(change: impl FnOnce(&mut Config)) -> (Population, usize) {
        let config = config(change);
        let origins = config.origins().len();
        (Population::new(&config, origins).unwrap(), config.workers)
    }

    fn take(population: &Population, worker: usize, count: usize) -> Vec<Request> {
        let mut stream = population.stream(worker);
        (0..count).map(|_| stream.next()).collect()
    }

    #[test]
    fn the_same_seed_and_worker_send_the_same() {
        let (one, _) = population(|_| {});
        let (two, _) = population(|_| {});
        let (other, _) = population(|c| c.seed = 2);
        assert_eq!(take(&one, 3, 500), take(&two, 3, 500));
        assert_ne!(take(&one, 3, 500), take(&one, 4, 500));
        assert_ne!(take(&one, 3, 500), take(&other, 3, 500));
    }

    #[test]
    fn a_fill_is_every_peer_once_and_endpoints_and_ids_are_distinct() {
        let shapes: [fn(&mut Config); 4] =
            [|_| {}, |c| c.sources = 3, |c| c.sources = 9, |c| c.swarms = Swarms::Uniform(50)];
        for (n, shape) in shapes.into_iter().enumerate() {
            let (population, workers) = population(shape);
            let (mut endpoints, mut ids, mut count) = (HashSet::new(), HashSet::new(), 0);
            for worker in 0..workers {
                for n in population.fill(worker) {
                    let announcing = population.first_announce(worker, n);
                    assert_eq!(announcing.event, AnnounceEvent::Started);
                    assert!(announcing.port >= FIRST_PORT);
                    let source = worker as u64 % population.origins;
                    endpoints.insert((announcing.info_hash, source, announcing.port));
                    ids.insert((announcing.info_hash, announcing.peer_id));
                    count += 1;
                }
            }
            assert_eq!(count, population.workload.peers(), "shape {n}");
            assert_eq!((endpoints.len() as u64, ids.len() as u64), (count, count), "shape {n}");
        }
    }

    #[test]
    fn a_worker_announces_peers_of_its_own_address_only() {
        let (population, workers) = population(|c| c.sources = 3);
        let mut at: HashMap<_, u64> = HashMap::new();
        for worker in 0..workers {
            for request in take(&population, worker, 2_000) {
                let Request::Announce(announcing) = request else { continue };
                let source = worker as u64 % population.origins;
                assert_eq!(*at.entry((announcing.info_hash, announcing.peer_id)).or_insert(source), source);
            }
        }
        assert!(at.len() > 2_000);
    }

    #[test]
    fn shares_and_weights_are_as_configured_and_stay_so() {
        let (population, _) = population(|c| {
            c.mix = Mix { connect: 25, announce: 50, scrape: 25 };
            (c.stopped, c.completed, c.started, c.seeders) = (0.2, 0.04, 0.3, 0.25);
        });
        for requests in take(&population, 0, 120_000).chunks(40_000) {
            let share = |count: usize, of: usize| count as f64 / of as f64;
            let near = |found: f64, share: f64| assert!((found - share).abs() < 0.02, "{found} for {share}");
            let announces: Vec<_> = requests
                .iter()
                .filter_map(|request| if let Request::Announce(a) = request { Some(a) } else { None })
                .collect();
            let connects = requests.iter().filter(|request| **request == Request::Connect).count();
            near(share(connects, requests.len()), 0.25);
            near(share(announces.len(), requests.len()), 0.5);
            let event = |event| announces.iter().filter(|a| a.event == event).count();
            near(share(event(AnnounceEvent::Stopped), announces.len()), 0.2);
            near(share(event(AnnounceEvent::Completed), announces.len()), 0.04);
            near(share(event(AnnounceEvent::Started), announces.len()), 0.3);
            let seeders =
                announces.iter().filter(|a| a.left == 0 && a.event == AnnounceEvent::Stopped).count();
            near(share(seeders, event(AnnounceEvent::Stopped)), 0.25);
        }
    }

    #[test]
    fn more_peers_in_a_swarm_than_ports_take_more_sources() {
        let large = |sources| {
            let config = config(|c| (c.swarms, c.peers, c.sources) = (Swarms::Uniform(1), 100_000, sources));
            Population::new(&config, config.origins().len()).map(drop)
        };
        assert!(large(1).unwrap_err().to_string().contains("give more sources"));
        large(2).unwrap();
    }
}
