//! Which machine a swarm is on: by rendezvous hashing in front of trackers, and by the hash slots of a Redis Cluster.

use swarmkeep::{Random, SplitMix64};
use swarmkeep_redis::{SHARDS, SLOTS, slot};
use swarmkeep_workload::{Run, Zipf};

use super::costs::Costs;

/// Swarms up to this rank are placed one by one, and those behind it, which have few peers each, by what the hash does on average.
const PLACED: u64 = 1 << 20;

/// Where swarms go, which are known by their ranks: each seed is another set of info hashes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places(pub(crate) u64);

impl Places {
    /// The tracker with the highest random weight for the swarm (Thaler and Ravishankar, 1998).
    pub(crate) fn tracker(self, rank: u64, trackers: u32) -> u32 {
        let swarm = mix(self.0 ^ rank);
        (0..trackers).max_by_key(|&n| mix(swarm ^ mix(u64::from(n)))).unwrap_or(0)
    }

    /// The shard of the swarm in a store on Redis: a hash of its info hash.
    pub(crate) fn shard(self, rank: u64) -> u32 {
        (mix(self.0 ^ mix(rank)) >> 32) as u32 % SHARDS
    }
}

/// The master that has the slot of a shard, where `redis-cli --cluster create` has dealt the slots to so many of them.
pub(crate) fn master(shard: u32, masters: u32) -> u32 {
    let slot = u64::from(slot(shard.to_string().as_bytes()));
    // As many slots each, in order; the last has the rest.
    (slot * u64::from(masters) / u64::from(SLOTS)) as u32
}

/// How much of everything each of some machines has.
#[derive(Debug, Clone)]
pub(crate) struct Loads {
    /// Peers, as announces are in proportion to them.
    pub(crate) peers: Vec<f64>,
    /// Bytes of memory in Redis, once.
    pub(crate) bytes: Vec<f64>,
}

impl Loads {
    /// Of so many trackers, each with its own swarms.
    pub(crate) fn of_trackers(zipf: &Zipf, places: Places, trackers: u32) -> Self {
        Self::spread(zipf, trackers, places.0, |rank| places.tracker(rank, trackers), |_| 0.0)
    }

    /// Of the shards of a store on Redis.
    pub(crate) fn of_shards(zipf: &Zipf, places: Places, costs: &Costs, ipv6: f64, stored: f64) -> Self {
        let bytes = |size: u64| costs.redis_bytes(size as f64 * stored, ipv6);
        Self::spread(zipf, SHARDS, places.0, |rank| places.shard(rank), bytes)
    }

    /// Of so many masters that have these shards.
    pub(crate) fn of_masters(shards: &Self, masters: u32) -> Self {
        let mut loads = Self::none(masters);
        for (shard, (peers, bytes)) in (0..).zip(shards.peers.iter().zip(&shards.bytes)) {
            let master = master(shard, masters) as usize;
            loads.peers[master] += peers;
            loads.bytes[master] += bytes;
        }
        loads
    }

    fn none(machines: u32) -> Self {
        Self { peers: vec![0.0; machines as usize], bytes: vec![0.0; machines as usize] }
    }

    fn spread(
        zipf: &Zipf,
        machines: u32,
        seed: u64,
        place: impl Fn(u64) -> u32,
        bytes: impl Fn(u64) -> f64,
    ) -> Self {
        let mut loads = Self::none(machines);
        let mut rng = SplitMix64::new(mix(seed));
        for Run { first, swarms, size } in zipf.runs() {
            let bytes = bytes(size);
            let one_by_one = PLACED.saturating_sub(first - 1).min(swarms);
            for rank in first..first + one_by_one {
                let machine = place(rank) as usize;
                loads.peers[machine] += size as f64;
                loads.bytes[machine] += bytes;
            }
            let others = (swarms - one_by_one) as f64;
            if others > 0.0 {
                let share = 1.0 / f64::from(machines);
                let spread = (others * share * (1.0 - share)).sqrt();
                for machine in 0..machines as usize {
                    // So many swarms fall to a machine by a binomial law, which is a normal one where there are many.
                    let swarms = (others * share + spread * normal(&mut rng)).max(0.0);
                    loads.peers[machine] += swarms * size as f64;
                    loads.bytes[machine] += swarms * bytes;
                }
            }
        }
        loads
    }

    /// The machine with the most peers.
    pub(crate) fn busiest(&self) -> u32 {
        let peers = (0..).zip(&self.peers);
        peers.max_by(|(_, one), (_, other)| one.total_cmp(other)).map_or(0, |(machine, _)| machine)
    }

    /// The most peers of a machine, in terms of their mean.
    pub(crate) fn imbalance(&self) -> f64 {
        let most = self.peers.iter().copied().fold(0.0, f64::max);
        most * self.peers.len() as f64 / self.peers.iter().sum::<f64>()
    }
}

/// A standard normal number (Box and Muller, 1958).
pub(crate) fn normal(rng: &mut SplitMix64) -> f64 {
    let [one, other] = [unit(rng), unit(rng)];
    (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

/// A uniform number from 0 to 1, without 1.
pub(crate) fn unit(rng: &mut SplitMix64) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number that looks random and is always the same for the same one.
pub(crate) fn mix(number: u64) -> u64 {
    SplitMix64::new(number).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_tracker_takes_its_share_from_all_and_moves_nothing_else() {
        let places = Places(7);
        for trackers in [1, 4, 9] {
            let mut moved = 0;
            for rank in 0..100_000 {
                let [before, after] = [trackers, trackers + 1].map(|n| places.tracker(rank, n));
                assert!(after == before || after == trackers, "from {before} to {after}");
                moved += usize::from(after != before);
            }
            let share = moved as f64 / 1e5;
            assert!((share * f64::from(trackers + 1) - 1.0).abs() < 0.03, "{share} of {trackers}");
        }
    }

    #[test]
    fn every_shard_has_a_master() {
        assert_eq!((0..SHARDS).map(|shard| master(shard, 5)).max(), Some(4));
        assert_eq!((0..SHARDS).filter(|&shard| master(shard, 1) == 0).count(), SHARDS as usize);
    }

    #[test]
    fn loads_add_up_and_are_those_of_single_swarms() {
        // More swarms than are placed one by one.
        let zipf = Zipf::new(2_000_000, 8_000_000, 1.0, 80_000);
        let places = Places(3);
        let loads = Loads::of_trackers(&zipf, places, 5);
        assert!((loads.peers.iter().sum::<f64>() / 8e6 - 1.0).abs() < 0.002);
        let mut one_by_one = [0.0; 5];
        for run in zipf.runs() {
            for rank in run.first..run.first + run.swarms {
                one_by_one[places.tracker(rank, 5) as usize] += run.size as f64;
            }
        }
        for (load, exact) in loads.peers.iter().zip(one_by_one) {
            assert!((load / exact - 1.0).abs() < 0.003, "{load} for {exact}");
        }
        assert!(loads.imbalance() > 1.0 && loads.imbalance() < 1.3);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut rng = SplitMix64::new(1);
        let all: Vec<_> = (0..100_000).map(|_| normal(&mut rng)).collect();
        let mean = all.iter().sum::<f64>() / 1e5;
        let variance = all.iter().map(|number| number * number).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
