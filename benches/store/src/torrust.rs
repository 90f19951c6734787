//! The four benches of `repository_benchmark` of torrust, under their names, over any stores:
//! `torrust/BENCH/STORE/THREADS`.
//!
//! The originals spawn a task for each operation, so that they mostly measure the runtime and hide the store.
//! Here real threads start together and announce for long enough: an iteration is a round of many operations
//! on each thread, so that starting the threads is not measured. As in the originals, swarms have one peer,
//! an update is the same peer again, and each operation updates and reads the counts, which is one announce
//! here. Criterion's throughput is operations per second over all threads.

use std::{env, time::Duration};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use swarmkeep::{
    Announce, HashKey, PeerBuffer, RepositoryConfig, SplitMix64, TorrentRepository, catalog::Implementation,
};
use swarmkeep_conformance::Subject;
use swarmkeep_workload::{PeerIndex, Workload};

use crate::{
    NOW, at_once, cores,
    origin::Origin,
    tables::{Spread, markdown},
};

/// A store under these benches. An `I` is an announce in the store's own form, made before the clock starts.
pub trait Store<I>: Sync {
    /// Updates the peer, and reads the counts of its swarm. Returns the number of its peers.
    fn announce(&self, announce: &I) -> u64;
}

/// A function that builds an empty store.
pub type Build<'a, I> = &'a (dyn Fn() -> Box<dyn Store<I>> + Sync);

impl Store<Announce> for Box<dyn TorrentRepository> {
    fn announce(&self, announce: &Announce) -> u64 {
        let mut none = PeerBuffer::new(&mut [], &mut []);
        let answer = (**self).announce(announce, NOW, &mut SplitMix64::new(1), &mut none);
        answer.stats.peers()
    }
}

/// A measurement: the contents of the store, and the operations on it.
struct Benchmark {
    name: &'static str,
    /// The number of swarms that each thread announces to, in turn. Where a store is kept, these are the same
    /// for all threads, and have their peer already.
    swarms: usize,
    /// The number of operations of each thread per round.
    round: usize,
    fresh: Fresh,
}

/// When a new store takes the place of the last one.
#[derive(Clone, Copy, PartialEq)]
enum Fresh {
    /// Building it is measured, like in the original.
    EachOperation,
    EachRound,
    Never,
}

/// The benches in full, or small, in a run that only tests.
fn benches(is_small: bool) -> [Benchmark; 4] {
    let (many, some) = if is_small { (100, 20) } else { (10_000, 1000) };
    let bench = |name, swarms, round, fresh| Benchmark { name, swarms, round, fresh };
    [
        bench("add_one_torrent", 1, some, Fresh::EachOperation),
        bench("add_multiple_torrents_in_parallel", many, many, Fresh::EachRound),
        bench("update_one_torrent_in_parallel", 1, some, Fresh::Never),
        bench("update_multiple_torrents_in_parallel", many, many, Fresh::Never),
    ]
}

/// Runs the benches over these implementations with Criterion, which reads the arguments of the program.
pub fn main(rows: &[Implementation]) {
    let mut criterion = Criterion::default().configure_from_args();
    // Criterion's own rule: `cargo test` gives no `--bench`, and `cargo bench -- --test` both.
    let has = |flag: &str| env::args().any(|argument| argument == flag);
    let is_small = has("--test") || !has("--bench");
    let (origin, benches) = (Origin::here(1, 10, is_small), benches(is_small));
    let announces = announces::<Announce>(&benches);
    let config = RepositoryConfig::new(HashKey::from_bytes(*b"always this key."));
    for bench in &benches {
        let mut group = criterion.benchmark_group(format!("torrust/{}", bench.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
        for threads in bench.threads() {
            group.throughput(Throughput::Elements((bench.round * threads) as u64));
            for row in rows {
                let build = || -> Box<dyn Store<Announce>> {
                    Box::new(
                        Subject::build(&row, &config).expect("every store keeps the default configuration"),
                    )
                };
                let mut kept = None;
                // Criterion calls this for every sample, and not at all for benches that are filtered out.
                group.bench_function(BenchmarkId::new(row.name, threads), |bencher| {
                    bencher.iter_custom(|rounds| {
                        let running =
                            kept.get_or_insert_with(|| Running::new(bench, &build, &announces[..threads]));
                        running.run(rounds as usize)
                    });
                });
            }
        }
    }
    criterion.final_summary();
    println!("{}", origin.ended());
}

/// Runs the benches `turns` times over named stores, which take turns, each for `least` at least. Returns a
/// table of the nanoseconds per operation over all threads, with a line for each store.
pub fn table<I: From<Announce> + Sync + 'static>(
    rows: &[(&str, Build<'_, I>)],
    turns: usize,
    least: Duration,
    is_small: bool,
) -> String {
    let benches = benches(is_small);
    let announces = announces(&benches);
    let mut columns = vec![vec!["store".to_owned()]];
    columns[0].extend(rows.iter().map(|(name, _)| format!("`{name}`")));
    for bench in &benches {
        for threads in bench.threads() {
            let mut spent = vec![Vec::new(); rows.len()];
            for _ in 0..turns {
                for ((_, build), spent) in rows.iter().zip(&mut spent) {
                    spent.push(Running::new(bench, *build, &announces[..threads]).nanoseconds(least));
                }
            }
            let cell = |spent: Vec<f64>| Spread::of(spent.into_iter()).expect("a turn").to_string();
            let title = format!("{} ×{threads}", bench.name);
            columns.push([title].into_iter().chain(spent.into_iter().map(cell)).collect());
        }
    }
    markdown(&columns)
}

/// The announces of each thread, each to a swarm of its own.
fn announces<I: From<Announce>>(benches: &[Benchmark]) -> Vec<Vec<I>> {
    let swarms = benches.iter().map(|bench| bench.swarms).max().unwrap_or(0);
    let workload = Workload::uniform(1, swarms as u64, 1);
    let peer = workload.endpoint(PeerIndex { swarm: 0, peer: 0 });
    let of = |swarm: usize| I::from(Announce::new(workload.info_hash(swarm as u64), peer).want(0));
    (0..cores()).map(|thread| (0..swarms).map(|n| of(thread * swarms + n)).collect()).collect()
}

impl Benchmark {
    fn threads(&self) -> impl Iterator<Item = usize> {
        let is_parallel = self.fresh != Fresh::EachOperation;
        [1, cores()].into_iter().take(if is_parallel && cores() > 1 { 2 } else { 1 })
    }
}

/// A bench on a store.
struct Running<'a, I: 'static> {
    bench: &'a Benchmark,
    build: Build<'a, I>,
    /// The announces of each thread.
    announces: &'a [Vec<I>],
    store: Box<dyn Store<I>>,
}

impl<'a, I: Sync + 'static> Running<'a, I> {
    fn new(bench: &'a Benchmark, build: Build<'a, I>, announces: &'a [Vec<I>]) -> Self {
        let store = build();
        if bench.fresh == Fresh::Never {
            announces[0][..bench.swarms].iter().for_each(|announce| check(&*store, announce));
        }
        Self { bench, build, announces, store }
    }

    /// Returns the time per operation, of at least this time together.
    fn nanoseconds(&mut self, least: Duration) -> f64 {
        let (mut rounds, mut took) = (1, self.run(1));
        while took < least {
            rounds *= 2;
            took = self.run(rounds);
        }
        took.as_nanos() as f64 / (rounds * self.bench.round * self.announces.len()) as f64
    }

    fn run(&mut self, rounds: usize) -> Duration {
        match self.bench.fresh {
            Fresh::EachRound => (0..rounds).map(|_| self.round(self.bench.round)).sum(),
            Fresh::EachOperation | Fresh::Never => self.round(rounds * self.bench.round),
        }
    }

    /// Does these operations on each thread.
    fn round(&mut self, operations: usize) -> Duration {
        let Self { bench, build, .. } = *self;
        if bench.fresh == Fresh::EachRound {
            self.store = build();
        }
        let this = &*self;
        let operate = |thread: usize| {
            for announce in this.turns(thread).take(operations) {
                match bench.fresh {
                    Fresh::EachOperation => check(&*build(), announce),
                    Fresh::EachRound | Fresh::Never => check(&*this.store, announce),
                }
            }
        };
        at_once(self.announces.len(), operate).0
    }

    /// The announces of a thread, without end. Each of torrust's tasks updates another swarm, so threads
    /// begin at different ones.
    fn turns(&self, thread: usize) -> impl Iterator<Item = &I> {
        let Self { bench, announces, .. } = self;
        let own = &announces[if bench.fresh == Fresh::Never { 0 } else { thread }][..bench.swarms];
        own.iter().cycle().skip(thread * bench.swarms / announces.len())
    }
}

/// One operation, after which the swarm has its peer.
fn check<I>(store: &dyn Store<I>, announce: &I) {
    assert_eq!(store.announce(announce), 1);
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Mutex};

    use swarmkeep::InfoHash;

    use super::*;

    /// The numbers of stores, of announces to new swarms, and of announces to known ones.
    static COUNTS: Mutex<[usize; 3]> = Mutex::new([0; 3]);

    impl Store<Announce> for Mutex<HashSet<InfoHash>> {
        fn announce(&self, announce: &Announce) -> u64 {
            let is_new = self.lock().expect("no panic").insert(announce.info_hash);
            COUNTS.lock().expect("no panic")[if is_new { 1 } else { 2 }] += 1;
            1
        }
    }

    #[test]
    fn adds_are_to_new_swarms_and_updates_to_known_ones() {
        let build = || -> Box<dyn Store<Announce>> {
            COUNTS.lock().expect("no panic")[0] += 1;
            Box::new(Mutex::new(HashSet::new()))
        };
        let table = table::<Announce>(&[("set", &build)], 1, Duration::ZERO, true);
        let (ways, threads) = if cores() == 1 { (1, 1) } else { (2, 1 + cores()) };
        // Stores: one for each way of each bench, and those that an operation or a round builds. Then one
        // torrent, many torrents, and those that are updated.
        let expected = [1 + 20 + 2 * ways + 2 * ways, 20 + 100 * threads + ways + 100 * ways, 120 * threads];
        assert_eq!(*COUNTS.lock().expect("no panic"), expected, "{table}");
        assert_eq!(table.matches("_torrent").count(), 1 + 3 * ways, "{table}");

        let benches = benches(true);
        let announces = [&announces::<Announce>(&benches)[0][..]; 2].map(<[Announce]>::to_vec);
        let running = Running::<Announce>::new(&benches[3], &build, &announces);
        let [first, second] = [0, 1].map(|thread| running.turns(thread).next().expect("an announce"));
        assert_ne!(first.info_hash, second.info_hash);
    }
}
