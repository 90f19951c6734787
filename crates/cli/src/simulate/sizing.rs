//! What each arrangement needs for a population: cores, memory, network, machines, and how long announces wait.

use serde::Serialize;
use swarmkeep_workload::Zipf;

use super::{
    costs::Costs,
    failures::Arrangement,
    place::{Loads, Places},
    queue::Queue,
};

/// A machine, and how much of it may be used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: u32,
    pub(crate) memory_bytes: f64,
    pub(crate) network_bits: f64,
    /// The share of each that may be used in ordinary times.
    pub(crate) busy: f64,
}

/// What peers ask for, as simulated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Traffic {
    /// Announces a second of a peer that is there.
    pub(crate) announces_a_peer: f64,
    /// Peers that are known, of which some have gone, for each that is there.
    pub(crate) stored_a_peer: f64,
    /// Share of the announces over IPv6.
    pub(crate) ipv6: f64,
    /// Peers handed out to an announce over IPv4, and over IPv6.
    pub(crate) handed_out: [f64; 2],
}

/// Torrents and peers, and where they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Population {
    pub(crate) zipf: Zipf,
    pub(crate) peers: f64,
    pub(crate) places: Places,
}

/// How many of what is needed, and how busy it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Needs {
    pub(crate) arrangement: &'static str,
    pub(crate) trackers: u32,
    /// Masters of Redis; 0 without one, `None` where no number of them is enough.
    pub(crate) masters: Option<u32>,
    pub(crate) machines: Option<u32>,
    /// Cores that are kept busy, in all.
    pub(crate) cores: f64,
    pub(crate) memory_bytes: f64,
    /// Bits a second, to and from clients.
    pub(crate) network_in: f64,
    pub(crate) network_out: f64,
    /// Bits a second between trackers and Redis.
    pub(crate) network_redis: f64,
    pub(crate) round_trips: f64,
    /// The busiest machine's or master's load in terms of the mean.
    pub(crate) imbalance: f64,
    /// Share of its cores that the busiest machine or master uses.
    pub(crate) busiest: f64,
    /// Microseconds from arrival to answer at the busiest, mean and 99 %; `None` if it cannot keep up.
    pub(crate) waits: Option<[f64; 2]>,
}

/// How far one machine goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) used: f64,
    pub(crate) there_is: f64,
    /// Peers at which it is used as far as it may be, with as many torrents for each peer.
    pub(crate) peers: f64,
}

/// Trackers and masters that somebody has asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Given {
    pub(crate) sharded: Option<u32>,
    pub(crate) trackers: Option<u32>,
    pub(crate) masters: Option<u32>,
    pub(crate) replicas: u32,
}

/// More trackers are not tried.
const MOST_TRACKERS: u32 = 256;
/// A Redis Cluster has at least so many masters (`redis-cli --cluster create` refuses fewer).
const CLUSTER: u32 = 3;

/// Sizes for one kind of machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizing<'a> {
    pub(crate) costs: &'a Costs,
    pub(crate) machine: Machine,
    pub(crate) traffic: Traffic,
    /// The busiest hour of a day in terms of the mean.
    pub(crate) peak: f64,
}

impl Sizing<'_> {
    /// Announces a second.
    pub(crate) fn rate(&self, peers: f64) -> f64 {
        peers * self.traffic.announces_a_peer * self.peak
    }

    /// What each arrangement needs, in the order of [`Arrangement::ALL`].
    pub(crate) fn needs(&self, population: &Population, given: Given) -> [Needs; 3] {
        [self.one(population), self.sharded(population, given.sharded), self.shared(population, given)]
    }

    /// The number of shards' trackers that is enough.
    fn enough_trackers(&self, population: &Population) -> u32 {
        let fits = |trackers: u32| {
            let imbalance = Loads::of_trackers(&population.zipf, population.places, trackers).imbalance();
            let share = imbalance / f64::from(trackers);
            self.limits(population).iter().all(|limit| limit.used * share <= limit.there_is)
        };
        // No fewer than would do if all were as busy.
        let limits = self.limits(population);
        let least =
            limits.iter().map(|limit| (limit.used / limit.there_is).ceil()).fold(1.0, f64::max) as u32;
        (least..MOST_TRACKERS).find(|&trackers| fits(trackers)).unwrap_or(MOST_TRACKERS)
    }

    fn one(&self, population: &Population) -> Needs {
        let [network_in, network_out] = self.network(population.peers);
        let queue = self.tracker_queue(population.peers, self.costs.embedded());
        Needs {
            arrangement: Arrangement::One.name(),
            trackers: 1,
            masters: Some(0),
            machines: self.limits(population).iter().all(|limit| limit.used <= limit.there_is).then_some(1),
            cores: self.rate(population.peers) * self.costs.embedded() / 1e6,
            memory_bytes: self.memory(population, |peers, ipv6| self.costs.packed_bytes(peers, ipv6)),
            network_in,
            network_out,
            network_redis: 0.0,
            round_trips: 0.0,
            imbalance: 1.0,
            busiest: queue.busy(),
            waits: queue.seconds().map(microseconds),
        }
    }

    fn sharded(&self, population: &Population, given: Option<u32>) -> Needs {
        // One more, so that one may be missing.
        let trackers = given.unwrap_or_else(|| (self.enough_trackers(population) + 1).max(2));
        let imbalance = Loads::of_trackers(&population.zipf, population.places, trackers).imbalance();
        let queue =
            self.tracker_queue(population.peers * imbalance / f64::from(trackers), self.costs.embedded());
        Needs {
            arrangement: Arrangement::Sharded.name(),
            trackers,
            machines: Some(trackers),
            imbalance,
            busiest: queue.busy(),
            waits: queue.seconds().map(microseconds),
            ..self.one(population)
        }
    }

    fn shared(&self, population: &Population, given: Given) -> Needs {
        let Costs { redis_announce, redis_round_trip, .. } = *self.costs;
        let rate = self.rate(population.peers);
        let shards = self.shards(population);
        let load = |masters: u32| Loads::of_masters(&shards, masters);
        // One thread runs the functions of a master.
        let busy = |loads: &Loads| {
            let most = loads.peers.iter().copied().fold(0.0, f64::max);
            self.rate(most) * redis_announce / 1e6
        };
        let memory = |loads: &Loads| loads.bytes.iter().copied().fold(0.0, f64::max);
        let may_use = self.machine.memory_bytes * self.machine.busy;
        let enough = |&masters: &u32| {
            let loads = load(masters);
            busy(&loads) <= self.machine.busy && memory(&loads) <= may_use
        };
        let counts = [1].into_iter().chain(CLUSTER..=swarmkeep_redis::SHARDS);
        let masters = given.masters.or_else(|| counts.clone().find(enough));
        let loads = load(masters.unwrap_or(swarmkeep_redis::SHARDS));
        let cores = rate * (self.costs.asking() + redis_announce) / 1e6;
        let on_trackers = rate * self.costs.asking() / 1e6;
        let may_run = f64::from(self.machine.cores) * self.machine.busy;
        let [network_in, network_out] = self.network(population.peers);
        let trackers_by =
            [on_trackers / may_run, network_out / self.machine.network_bits / self.machine.busy];
        let trackers =
            given.trackers.unwrap_or_else(|| trackers_by.into_iter().fold(1.0, f64::max).ceil() as u32 + 1);
        let copies = f64::from(1 + given.replicas);
        let bytes: f64 = loads.bytes.iter().sum::<f64>() * copies;
        let machines = masters.map(|masters| {
            let processes = f64::from(masters) * copies / f64::from(self.machine.cores);
            let servers = processes.max(bytes / may_use).ceil().max(copies);
            trackers + servers as u32
        });
        let [front, back] = [
            self.tracker_queue(population.peers / f64::from(trackers), self.costs.asking()),
            Queue { rate: busy(&loads) * 1e6 / redis_announce, service: redis_announce / 1e6, cores: 1 },
        ];
        let waits = front.seconds().zip(back.seconds());
        let waits =
            waits.map(|([a, b], [c, d])| [a + c, b + d].map(|seconds| seconds + redis_round_trip / 1e6));
        let [v4, v6] = [0, 1].map(|family| Costs::peers(family, self.traffic.handed_out[family]));
        let peers = v4 * (1.0 - self.traffic.ipv6) + v6 * self.traffic.ipv6;
        Needs {
            arrangement: Arrangement::Shared.name(),
            trackers,
            masters,
            machines,
            cores,
            memory_bytes: bytes,
            network_in,
            network_out,
            network_redis: rate * (self.costs.redis_wire + peers) * 8.0,
            round_trips: rate,
            imbalance: loads.imbalance(),
            busiest: back.busy(),
            waits: waits.map(microseconds),
        }
    }

    /// What one machine has of everything, and how much of it the population uses.
    pub(crate) fn limits(&self, population: &Population) -> [Limit; 3] {
        let Machine { cores, memory_bytes, network_bits, busy } = self.machine;
        let [network_in, network_out] = self.network(population.peers);
        let limit = |what, unit, used, has: f64| {
            let there_is = has * busy;
            Limit { what, unit, used, there_is, peers: population.peers * there_is / used }
        };
        let memory = self.memory(population, |peers, ipv6| self.costs.packed_bytes(peers, ipv6));
        [
            limit("cores", "", self.rate(population.peers) * self.costs.embedded() / 1e6, f64::from(cores)),
            limit("memory", "GB", memory / 1e9, memory_bytes / 1e9),
            limit("network", "Gbit/s", network_out.max(network_in) / 1e9, network_bits / 1e9),
        ]
    }

    /// The shards of a store on Redis: peers that are there, and bytes of all that are known.
    pub(crate) fn shards(&self, population: &Population) -> Loads {
        let Traffic { ipv6, stored_a_peer, .. } = self.traffic;
        Loads::of_shards(&population.zipf, population.places, self.costs, ipv6, stored_a_peer)
    }

    fn memory(&self, population: &Population, bytes: impl Fn(f64, f64) -> f64) -> f64 {
        let Traffic { ipv6, stored_a_peer, .. } = self.traffic;
        let runs = population.zipf.runs();
        runs.map(|run| run.swarms as f64 * bytes(run.size as f64 * stored_a_peer, ipv6)).sum()
    }

    /// Bits a second to and from clients.
    fn network(&self, peers: f64) -> [f64; 2] {
        let Traffic { ipv6, handed_out, .. } = self.traffic;
        let [v4, v6] = [0, 1].map(|family| self.costs.wire(family, handed_out[family]));
        [0, 1].map(|way| self.rate(peers) * 8.0 * (v4[way] * (1.0 - ipv6) + v6[way] * ipv6))
    }

    fn tracker_queue(&self, peers: f64, cost: f64) -> Queue {
        Queue { rate: self.rate(peers), service: cost / 1e6, cores: self.machine.cores }
    }
}

fn microseconds(seconds: [f64; 2]) -> [f64; 2] {
    seconds.map(|seconds| seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        costs: Costs,
    }

    fn needs(peers: u64, change: impl FnOnce(&mut Machine)) -> ([Needs; 3], [Limit; 3]) {
        let costs = Only::parse_from(["costs"]).costs;
        let mut machine = Machine { cores: 16, memory_bytes: 64e9, network_bits: 10e9, busy: 0.6 };
        change(&mut machine);
        let traffic = Traffic {
            announces_a_peer: 1.0 / 1800.0,
            stored_a_peer: 1.02,
            ipv6: 0.1,
            handed_out: [30.0, 20.0],
        };
        let sizing = Sizing { costs: &costs, machine, traffic, peak: 1.0 };
        let zipf = Zipf::new(peers / 10, peers, 1.0, peers / 100);
        let population = Population { zipf, peers: peers as f64, places: Places(1) };
        let given = Given { replicas: 1, ..Given::default() };
        (sizing.needs(&population, given), sizing.limits(&population))
    }

    #[test]
    fn what_is_needed_is_what_the_costs_say() {
        let ([one, sharded, shared], limits) = needs(1_800_000, |_| {});
        // A thousand announces a second at 7.67 µs, and at 1.33 and 13.9 more.
        assert!((one.cores - 0.00767).abs() < 1e-9 && one.machines == Some(1));
        assert!((shared.cores - 0.0229).abs() < 1e-9 && shared.masters == Some(1));
        assert!((shared.round_trips - 1000.0).abs() < 1e-9);
        assert_eq!((sharded.trackers, shared.trackers), (2, 2), "one may be missing");
        let out = 1000.0 * 8.0 * (0.9 * (36.0 + 180.0 + 132.0) + 0.1 * (36.0 + 360.0 + 172.0));
        assert!((one.network_out / out - 1.0).abs() < 1e-9, "{}", one.network_out);
        let cores = &limits[0];
        assert!((cores.peers / (9.6 / 7.67e-6 * 1800.0) - 1.0).abs() < 1e-9, "{}", cores.peers);
        assert!(shared.waits.unwrap()[0] > one.waits.unwrap()[0] + 200.0);
    }

    #[test]
    fn more_is_needed_of_smaller_machines() {
        let peers = 100_000_000;
        let ([one, sharded, shared], limits) = needs(peers, |machine| machine.memory_bytes = 1e9);
        assert_eq!(one.machines, None, "it has to hold {} GB", limits[1].used);
        assert_eq!(sharded.trackers, (limits[1].used / 0.6).ceil() as u32 + 1);
        let masters = shared.masters.unwrap();
        assert!(masters >= 3, "{masters}");
        let (_, more) = needs(peers, |_| {});
        assert!(more.iter().all(|limit| limit.used < limit.there_is));
        let ([.., slow], _) = needs(1_000_000_000, |_| {});
        assert!(slow.masters.unwrap() >= 10, "5.6 busy cores at 60 %, and none the busiest");
    }
}
