//! What each arrangement of machines needs, and what the loss of one machine costs.

use super::{figures::Costs, population::Population};

/// The load, and how it is spread.
pub(crate) struct Sizing {
    pub(crate) population: Population,
    pub(crate) costs: Costs,
    /// Seconds between two announces of a peer.
    pub(crate) interval: f64,
    /// Trackers where there are several.
    pub(crate) trackers: u32,
    /// The share of a core that may be used in ordinary times.
    pub(crate) busy: f64,
}

/// What one arrangement needs in all, and the share of it on the busiest machine.
pub(crate) struct Needs {
    pub(crate) name: String,
    pub(crate) announces: f64,
    pub(crate) cores: f64,
    pub(crate) bytes: f64,
    pub(crate) busiest: f64,
}

/// The loss of one machine, with all that it knew.
pub(crate) struct Failure {
    pub(crate) name: &'static str,
    /// The share of the peers that is not known any more.
    pub(crate) unknown: f64,
    /// How many times their usual announces the other machines have to answer.
    pub(crate) others: Option<f64>,
}

impl Sizing {
    /// Announces per second.
    pub(crate) fn announces(&self) -> f64 {
        self.population.peers / self.interval
    }

    /// One machine; trackers by info hash; independent trackers, each of which knows all peers; trackers on a
    /// Redis Cluster, its masters, and a replica of each.
    pub(crate) fn needs(&self) -> [Needs; 6] {
        let Self { population, costs, trackers: n, .. } = self;
        let all = f64::from(*n);
        // Connection ids live for two minutes (BEP 15), so there is a connect for each announce.
        let on_tracker = costs.connect + costs.tracker;
        let needs = |name: String, us: f64, bytes, busiest| {
            let announces = self.announces();
            Needs { name, announces, cores: announces * us / 1e6, bytes, busiest }
        };
        let bytes = population.bytes(&costs.packed);
        let by_hash = population.busiest_share(*n);
        let independent = needs(format!("{n} independent"), on_tracker * all, bytes * all, 1.0 / all);
        let masters = self.masters().map_or("too many".to_owned(), |masters| masters.to_string());
        let busiest = population.busiest_share(self.masters().unwrap_or(u32::MAX));
        let on_redis = population.bytes(&costs.redis);
        [
            needs("one machine".to_owned(), on_tracker, bytes, 1.0),
            needs(format!("{n} by info hash"), on_tracker, bytes, by_hash),
            Needs { announces: self.announces() * all, ..independent },
            needs(format!("{n} on Redis"), costs.connect + costs.redis_client, 0.0, 1.0 / all),
            needs(format!("Redis masters: {masters}"), costs.redis_master, on_redis, busiest),
            needs("a replica of each".to_owned(), costs.redis_replica, on_redis, busiest),
        ]
    }

    /// The least number of masters of a Redis Cluster none of which uses more than the permitted share of its
    /// one core. There are at least three, because fewer do not replace a lost one, and at most as many as
    /// slots. `None` if the largest swarm, which is on one master, is too much for it.
    pub(crate) fn masters(&self) -> Option<u32> {
        let cores = self.announces() * self.costs.redis_master / 1e6;
        let largest = cores * self.population.largest / self.population.peers;
        let masters = ((cores - largest) / (self.busy - largest)).ceil().max(3.0);
        (largest < self.busy && masters <= 16_384.0).then_some(masters as u32)
    }

    /// The processor time of an announce on a Redis Cluster, tracker and replicas included and connects not, as
    /// a multiple of that on the packed store.
    pub(crate) fn redis_factor(&self) -> f64 {
        let Costs { beside_redis, redis_client, redis_master, redis_replica, .. } = self.costs;
        (redis_client + redis_master + redis_replica) / beside_redis
    }

    /// The loss of one machine in each arrangement.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let trackers = f64::from(self.trackers);
        let taken_over = Some(trackers / (trackers - 1.0));
        let failure = |name, unknown, others| Failure { name, unknown, others };
        let mut failures = vec![
            failure("one machine", 1.0, None),
            failure("a tracker by info hash", 1.0 / trackers, taken_over),
            failure("an independent tracker", 0.0, Some(1.0)),
            failure("a tracker on Redis", 0.0, taken_over),
        ];
        if let Some(masters) = self.masters() {
            failures.push(failure("a Redis master", 1.0 / f64::from(masters), Some(1.0)));
            failures.push(failure("a Redis master with a replica", 0.0, Some(1.0)));
        }
        failures
    }
}

impl Failure {
    /// The share of all peers that is known `time` seconds after announces are answered again: announces are
    /// spread evenly over the interval.
    pub(crate) fn known(&self, time: f64, interval: f64) -> f64 {
        1.0 - self.unknown * (1.0 - (time / interval).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{
        figures::{Bytes, Engine, Figures},
        near,
    };

    /// A thousand announces per second.
    fn thousand() -> Sizing {
        let packed = Bytes { swarm_of_one: 30.0, swarm_of_ten: 120.0, v4_peer: 10.0, v6_peer: 20.0 };
        let redis = Bytes { swarm_of_one: 100.0, ..packed };
        let [connect, tracker, store, beside_redis] = [4.0, 6.0, 1.0, 5.0];
        let [redis_client, redis_master, redis_replica] = [8.0, 20.0, 5.0];
        let costs = Costs {
            connect,
            tracker,
            store,
            beside_redis,
            redis_client,
            redis_master,
            redis_replica,
            packed,
            redis,
        };
        let population = Population { torrents: 1e5, peers: 1.8e6, singles: 5e4, largest: 1.8e5, ipv6: 0.1 };
        Sizing { population, costs, interval: 1800.0, trackers: 4, busy: 0.5 }
    }

    #[test]
    fn needs_are_what_the_costs_say() {
        let needs = thousand().needs();
        // 50,000 swarms of 30 bytes, 50,000 of 20 and their 1,750,000 peers of 10; 180,000 of all peers take
        // 10 more. A tenth of the peers is one swarm, and a quarter of the other nine tenths is with it; on
        // three masters a third.
        let bytes = 1.5e6 + 1e6 + 17.5e6 + 1.8e6;
        let expected = [
            [1000.0, 0.010, bytes, 1.0],
            [1000.0, 0.010, bytes, 0.325],
            [4000.0, 0.040, 4.0 * bytes, 0.25],
            [1000.0, 0.012, 0.0, 0.25],
            [1000.0, 0.020, bytes + 5e4 * 70.0, 0.4],
            [1000.0, 0.005, bytes + 5e4 * 70.0, 0.4],
        ];
        for (Needs { announces, cores, bytes, busiest, .. }, expected) in needs.into_iter().zip(expected) {
            for (is, should_be) in [announces, cores, bytes, busiest].into_iter().zip(expected) {
                near(is, should_be, 1e-9);
            }
        }
    }

    #[test]
    fn three_masters_and_three_replicas_take_the_time_that_was_measured() {
        let mut figures = Figures::of(None, Engine::Module);
        let costs = figures.costs().unwrap();
        let population = Population { largest: 1.0, ..thousand().population };
        let sizing = Sizing { population, costs, ..thousand() };
        assert_eq!(sizing.masters(), Some(3));
        let [.., trackers, masters, replicas] = sizing.needs().map(|needs| needs.cores * 1e6);
        let each = (trackers + masters + replicas) / sizing.announces() - costs.connect;
        near(each, figures.on_cluster("in all µs").unwrap(), 0.01);
        near(sizing.redis_factor(), figures.on_cluster("times packed").unwrap(), 0.01);
    }

    #[test]
    fn masters_are_as_many_as_the_largest_swarm_allows() {
        let masters = |peers: f64, largest| {
            let population = Population { peers, largest: peers * largest, ..thousand().population };
            Sizing { population, ..thousand() }.masters()
        };
        // Half a core each: 25,000 announces per second of 20 µs, or 45 million peers.
        assert_eq!([masters(1e6, 0.1), masters(136e6, 0.0)], [Some(3), Some(4)]);
        // Two cores, of which the largest swarm takes 0.2: 1.8 are shared out at 0.3 each.
        assert_eq!([masters(179.99e6, 0.1), masters(900e6, 0.1)], [Some(6), None]);
    }

    #[test]
    fn what_is_lost_is_the_share_of_the_machine() {
        let failures = thousand().failures();
        let unknown: Vec<_> = failures.iter().map(|failure| failure.unknown).collect();
        assert_eq!(unknown, [1.0, 0.25, 0.0, 0.0, 1.0 / 3.0, 0.0]);
        assert_eq!(failures[1].others, Some(4.0 / 3.0), "three do the work of four");
        let known = [0.0, 900.0, 1800.0, 3600.0].map(|time| failures[1].known(time, 1800.0));
        assert_eq!(known, [0.75, 0.875, 1.0, 1.0]);
    }
}
