//! What can go wrong in each arrangement, and whose swarms it hits.

use swarmkeep_redis::SHARDS;

use super::{
    lives::{Fate, Habits, SECOND, Time},
    place::{Places, master},
    swarm::Happening,
};

/// One thing that happens.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// What it is called in JSON and charts.
    pub(crate) key: &'static str,
    pub(crate) arrangement: Arrangement,
    pub(crate) what: String,
    pub(crate) happening: Happening,
    pub(crate) hits: Hits,
}

/// How machines share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Arrangement {
    One,
    Sharded,
    Shared,
}

/// Which swarms it hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Hits {
    All,
    /// Those of one tracker of several.
    Tracker {
        trackers: u32,
        victim: u32,
    },
    /// Those that one more tracker takes over.
    Added {
        trackers: u32,
    },
    /// Those of one master of several.
    Master {
        masters: u32,
        victim: u32,
    },
}

/// How long things take, and how far back what is left of them goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delays {
    pub(crate) restart: Time,
    pub(crate) load: Time,
    pub(crate) snapshot_age: Time,
    pub(crate) detect: Time,
    pub(crate) failover: Time,
    pub(crate) lag: Time,
    pub(crate) planned: Time,
    /// For so long a tracker keeps trying before it gives up an announce.
    pub(crate) patience: Time,
}

/// What there is to fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fleet {
    pub(crate) sharded: u32,
    pub(crate) busiest_tracker: u32,
    pub(crate) trackers: u32,
    pub(crate) masters: u32,
    pub(crate) busiest_master: u32,
}

impl Arrangement {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Sharded, Self::Shared];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "one machine",
            Self::Sharded => "sharded by info hash",
            Self::Shared => "trackers on a Redis",
        }
    }
}

impl Hits {
    /// Whether the swarm of this rank is hit.
    pub(crate) fn swarm(self, places: Places, rank: u64) -> bool {
        match self {
            Self::All => true,
            Self::Tracker { trackers, victim } => places.tracker(rank, trackers) == victim,
            Self::Added { trackers } => places.tracker(rank, trackers + 1) == trackers,
            Self::Master { masters, victim } => master(places.shard(rank), masters) == victim,
        }
    }

    /// Of many swarms, this share is hit.
    pub(crate) fn share(self) -> f64 {
        match self {
            Self::All => 1.0,
            Self::Tracker { trackers, .. } => 1.0 / f64::from(trackers),
            Self::Added { trackers } => 1.0 / f64::from(trackers + 1),
            Self::Master { masters, victim } => {
                let shards = (0..SHARDS).filter(|&shard| master(shard, masters) == victim).count();
                shards as f64 / f64::from(SHARDS)
            }
        }
    }
}

/// All there is to simulate, without the first fate of a model, which is nothing.
pub(crate) fn all(habits: &Habits, fleet: &Fleet, delays: &Delays) -> Vec<Failure> {
    let at = habits.failure;
    let everything = Some(Time::MIN);
    let fate = |down: Time, forgets_since| Fate { down: at..at + down, forgets_since, has_others: false };
    // Announces that come less than that before the end wait for it.
    let waited_for = |down: Time| (down - delays.patience).max(0);
    let failure = |key, arrangement, what: String, fate, hits| Failure {
        key,
        arrangement,
        what,
        happening: Happening { fate, peers: 1.0 },
        hits,
    };
    let seconds = |time: Time| format!("{} s", f64::from(time) / f64::from(SECOND));
    let Fleet { sharded, trackers, masters, .. } = *fleet;
    let with_load = delays.restart + delays.load;
    let master = Hits::Master { masters, victim: fleet.busiest_master };
    let mut all = vec![
        failure(
            "one-empty",
            Arrangement::One,
            format!("it dies and starts empty after {}", seconds(delays.restart)),
            fate(delays.restart, everything),
            Hits::All,
        ),
        failure(
            "one-snapshot",
            Arrangement::One,
            format!(
                "it dies and starts after {} from a snapshot that is {} old",
                seconds(with_load),
                seconds(delays.snapshot_age)
            ),
            fate(with_load, Some(at - delays.snapshot_age)),
            Hits::All,
        ),
        failure(
            "one-planned",
            Arrangement::One,
            format!("it is stopped and started, {} with its snapshot", seconds(with_load)),
            fate(with_load, None),
            Hits::All,
        ),
        failure(
            "sharded-dies",
            Arrangement::Sharded,
            format!(
                "one of {sharded} dies; after {} its torrents go to the others, which do not know them",
                seconds(delays.detect)
            ),
            fate(delays.detect, everything),
            Hits::Tracker { trackers: sharded, victim: fleet.busiest_tracker },
        ),
        failure(
            "sharded-added",
            Arrangement::Sharded,
            format!("one is added to {sharded}, or comes back"),
            fate(0, everything),
            Hits::Added { trackers: sharded },
        ),
        failure(
            "shared-tracker",
            Arrangement::Shared,
            format!(
                "one of {trackers} trackers dies, others are asked next; after {} nobody asks it",
                seconds(delays.detect)
            ),
            Fate { has_others: trackers > 1, ..fate(delays.detect, None) },
            Hits::All,
        ),
        failure(
            "shared-failover",
            Arrangement::Shared,
            format!(
                "one of {masters} masters dies; its replica follows after {} without the last {}",
                seconds(delays.failover),
                seconds(delays.lag)
            ),
            fate(waited_for(delays.failover), Some(at - delays.lag)),
            master,
        ),
        failure(
            "shared-empty",
            Arrangement::Shared,
            format!(
                "one of {masters} masters dies without a replica and starts empty after {}",
                seconds(delays.restart)
            ),
            fate(waited_for(delays.restart), everything),
            master,
        ),
        failure(
            "shared-planned",
            Arrangement::Shared,
            format!(
                "one of {masters} masters hands over to its replica (`CLUSTER FAILOVER`), {}",
                seconds(delays.planned)
            ),
            fate(waited_for(delays.planned), None),
            master,
        ),
    ];
    for failure in &mut all {
        if failure.key == "shared-tracker" {
            failure.happening.peers = 1.0 / f64::from(trackers);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_single_swarms() {
        let places = Places(11);
        let hits = [
            Hits::All,
            Hits::Tracker { trackers: 4, victim: 2 },
            Hits::Added { trackers: 7 },
            Hits::Master { masters: 6, victim: 5 },
        ];
        for hits in hits {
            let hit = (1..=100_000).filter(|&rank| hits.swarm(places, rank)).count();
            assert!((hit as f64 / 1e5 - hits.share()).abs() < 0.005, "{hit} by {hits:?}");
        }
    }
}
