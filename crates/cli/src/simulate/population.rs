//! All swarms through all failures: one by one, or a sample of those that are alike.

use std::{
    iter,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use swarmkeep_workload::{Run, Zipf};

use super::{
    failures::Failure,
    place::Places,
    swarm::{Model, Scratch, Tally, Task},
};

/// Which swarms are simulated for the others too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Every peer of every swarm.
    Exact,
    /// Of swarms that are about as large, so many peers in all; and of a larger swarm so many of its peers.
    Sample { peers: u64 },
}

/// Swarms are about as large if the largest of them has up to this much more than the smallest.
const ALIKE: f64 = 1.1;
/// Of swarms that are about as large, no fewer are simulated.
const FEWEST: u64 = 4;
/// Ranks up to this are looked at one by one to know what they are hit by.
const LOOKED_AT: u64 = 1 << 20;
/// Parts that the work is cut into, whatever the number of threads: sums come out the same.
const PARTS: usize = 64;

/// Swarms about as large as each other.
struct Stratum {
    runs: Vec<Run>,
    swarms: u64,
    peers: u64,
}

/// Simulates, tells `progress` how many of how many peers are done now and then, and answers a tally for each of the model's fates: that
/// nothing happens, then each failure. With them comes how many peers were simulated.
pub(crate) fn simulate(
    model: &Model,
    zipf: &Zipf,
    places: Places,
    failures: &[Failure],
    method: Method,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> (Vec<Tally>, u64) {
    let sample = match method {
        Method::Exact => Vec::new(),
        Method::Sample { peers } => sample(zipf, places, failures, peers),
    };
    let in_all = match method {
        Method::Exact => zipf.runs().map(|run| run.swarms * run.size).sum(),
        Method::Sample { .. } => sample.iter().map(|task| task.peers).sum(),
    };
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let parts: Vec<_> = iter::repeat_with(|| Mutex::new(None)).take(PARTS).collect();
    let work = || {
        let mut scratch = Scratch::default();
        loop {
            let part = next.fetch_add(1, Relaxed);
            let Some(result) = parts.get(part) else { return };
            let mut tallies = vec![Tally::new(&model.habits); model.fates.len()];
            let mut unsaid = 0;
            let mut simulate = |task: &Task| {
                model.simulate(task, &mut scratch, &mut tallies);
                unsaid += task.peers;
                if unsaid > 10_000 {
                    progress(done.fetch_add(unsaid, Relaxed) + unsaid, in_all);
                    unsaid = 0;
                }
            };
            match method {
                Method::Exact => each_swarm(zipf, places, failures, part as u64, &mut simulate),
                Method::Sample { .. } => sample.iter().skip(part).step_by(PARTS).for_each(&mut simulate),
            }
            done.fetch_add(unsaid, Relaxed);
            *result.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(tallies);
        }
    };
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut sums = vec![Tally::new(&model.habits); model.fates.len()];
    for part in parts {
        let tallies = part.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (sum, tally) in sums.iter_mut().zip(tallies.iter().flatten()) {
            sum.add(tally);
        }
    }
    sums.iter_mut().for_each(Tally::sum_up);
    (sums, in_all)
}

/// Every swarm of a part.
fn each_swarm(zipf: &Zipf, places: Places, failures: &[Failure], part: u64, simulate: &mut dyn FnMut(&Task)) {
    let parts = PARTS as u64;
    let mut task = Task { rank: 0, size: 0, peers: 0, weight: 1.0, hits: Vec::new() };
    for Run { first, swarms, size } in zipf.runs() {
        let begin = first + (part + parts - first % parts) % parts;
        for rank in (begin..first + swarms).step_by(PARTS) {
            task.hits.clear();
            task.hits.push(1.0);
            let hits = failures.iter().map(|failure| f64::from(u8::from(failure.hits.swarm(places, rank))));
            task.hits.extend(hits);
            (task.rank, task.size, task.peers) = (rank, size, size);
            simulate(&task);
        }
    }
}

fn sample(zipf: &Zipf, places: Places, failures: &[Failure], peers: u64) -> Vec<Task> {
    let mut tasks = Vec::new();
    for stratum in strata(zipf) {
        let mean = stratum.peers.div_ceil(stratum.swarms);
        let count = (peers / mean).clamp(FEWEST.min(stratum.swarms), stratum.swarms);
        // In the middle of as many equal parts of the ranks.
        let chosen = (0..count).map(|n| stratum.swarm((2 * n + 1) * stratum.swarms / (2 * count)));
        let chosen: Vec<_> = chosen.collect();
        let stands_for = stratum.peers as f64 / chosen.iter().map(|&(_, size)| size as f64).sum::<f64>();
        let hits: Vec<_> =
            iter::once(1.0).chain(failures.iter().map(|failure| stratum.hit(places, failure))).collect();
        tasks.extend(chosen.into_iter().map(|(rank, size)| Task {
            rank,
            size,
            peers: size.min(peers),
            weight: stands_for * size as f64 / size.min(peers) as f64,
            hits: hits.clone(),
        }));
    }
    tasks
}

fn strata(zipf: &Zipf) -> Vec<Stratum> {
    let mut strata: Vec<Stratum> = Vec::new();
    for run in zipf.runs() {
        let alike = strata.last_mut().filter(|stratum| {
            let largest = stratum.runs[0].size as f64;
            largest <= run.size as f64 * ALIKE
        });
        match alike {
            Some(stratum) => {
                stratum.swarms += run.swarms;
                stratum.peers += run.swarms * run.size;
                stratum.runs.push(run);
            }
            None => {
                strata.push(Stratum { runs: vec![run], swarms: run.swarms, peers: run.swarms * run.size })
            }
        }
    }
    strata
}

impl Stratum {
    /// Rank and size of one of its swarms.
    fn swarm(&self, n: u64) -> (u64, u64) {
        let rank = self.runs[0].first + n;
        let run = self.runs.partition_point(|run| run.first <= rank) - 1;
        (rank, self.runs[run].size)
    }

    /// The share of its peers that a failure hits.
    fn hit(&self, places: Places, failure: &Failure) -> f64 {
        let first = self.runs[0].first;
        if first + self.swarms > LOOKED_AT {
            return failure.hits.share();
        }
        let hit = self.runs.iter().map(|run| {
            let ranks = run.first..run.first + run.swarms;
            run.size * ranks.filter(|&rank| failure.hits.swarm(places, rank)).count() as u64
        });
        hit.sum::<u64>() as f64 / self.peers as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{
        failures::{self, Delays, Fleet},
        lives::{Fate, Habits, SECOND},
        swarm::Happening,
    };

    const MINUTE: i32 = 60 * SECOND;

    fn run(torrents: u64, peers: u64, method: Method, seed: u64) -> Vec<Tally> {
        let zipf = Zipf::new(torrents, peers, 1.0, peers / 50);
        let habits = Habits {
            interval: 30 * MINUTE,
            jitter: 0.1,
            lifetime: 45 * MINUTE,
            median: 135.0 * 60e3,
            deviation: 1.5,
            silent: 0.2,
            failure: 80 * MINUTE,
            end: 140 * MINUTE,
        };
        let fleet = Fleet { sharded: 4, busiest_tracker: 1, trackers: 3, masters: 5, busiest_master: 2 };
        let delays = Delays {
            restart: 10 * SECOND,
            load: 5 * SECOND,
            snapshot_age: 10 * MINUTE,
            detect: 10 * SECOND,
            failover: 17 * SECOND,
            lag: SECOND,
            planned: SECOND,
            patience: 2 * SECOND,
        };
        let failures = failures::all(&habits, &fleet, &delays);
        let nothing = Fate { down: 0..0, forgets_since: None, has_others: false };
        let nothing = Happening { fate: nothing, peers: 1.0 };
        let fates = [nothing].into_iter().chain(failures.iter().map(|failure| failure.happening.clone()));
        let model = Model { habits, want: 50.0, seeders: 0.75, ipv6: 0.1, seed, fates: fates.collect() };
        simulate(&model, &zipf, Places(seed), &failures, method, &|_, _| {}).0
    }

    #[test]
    fn a_sample_says_what_all_swarms_say() {
        let exact = run(100_000, 1_000_000, Method::Exact, 1);
        let sample = run(100_000, 1_000_000, Method::Sample { peers: 5_000 }, 1);
        for (n, (exact, sample)) in exact.iter().zip(&sample).enumerate() {
            let near = |what: &str, share: f64, one: f64, other: f64| {
                assert!((one - other).abs() <= share, "{what} of fate {n}: {one} {other}");
            };
            let answered = |tally: &Tally| tally.answered[0] + tally.answered[1];
            near("peers hit", 0.01, sample.live[0] / exact.live[0], 1.0);
            near("announces", 0.01, sample.usual / exact.usual, 1.0);
            near(
                "handed out",
                0.3,
                sample.handed[0] / sample.answered[0],
                exact.handed[0] / exact.answered[0],
            );
            near("poor answers", 0.01, sample.poor / answered(sample), exact.poor / answered(exact));
            near("missing", 0.005, sample.missing / answered(sample), exact.missing / answered(exact));
            let failed = |tally: &Tally| tally.failed.iter().sum::<f64>() / tally.usual;
            near("failed", 0.001, failed(sample), failed(exact));
            for (one, other) in sample.reached.iter().zip(&exact.reached).step_by(20) {
                near("reached", 0.01, one / sample.live[0], other / exact.live[0]);
            }
        }
    }

    #[test]
    fn a_seed_says_it_all_and_a_peer_is_in_one_part() {
        let small = |seed| run(1_000, 10_000, Method::Exact, seed);
        let one = small(3);
        assert_eq!(one, small(3));
        assert_ne!(one, small(4));
        assert_eq!(one[0].live[0], 10_000.0);
        let sample = |seed| run(1_000, 10_000, Method::Sample { peers: 500 }, seed);
        assert_eq!(sample(3), sample(3));
    }

    #[test]
    fn strata_hold_every_swarm_once() {
        let zipf = Zipf::new(1_000_000, 10_000_000, 1.0, 100_000);
        let strata = strata(&zipf);
        assert_eq!(strata.iter().map(|stratum| stratum.swarms).sum::<u64>(), 1_000_000);
        assert_eq!(strata.iter().map(|stratum| stratum.peers).sum::<u64>(), 10_000_000);
        assert!(strata.len() < 150, "{}", strata.len());
        let mut next = 1;
        for stratum in &strata {
            assert_eq!(stratum.swarm(0).0, next);
            next += stratum.swarms;
            let (_, last) = stratum.swarm(stratum.swarms - 1);
            assert!(stratum.runs[0].size as f64 <= last as f64 * ALIKE);
        }
    }
}
