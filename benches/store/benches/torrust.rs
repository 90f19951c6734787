//! The four benches of `repository_benchmark` of torrust, under their names, over every store of the catalog:
//! `torrust/BENCH/STORE/THREADS`.
//!
//! The originals spawn a task for each operation, so that they mostly measure the runtime and hide the store.
//! Here real threads start together and announce for long enough: an iteration is a round of many operations
//! on each thread, so that starting the threads is not measured. As in the originals, swarms have one peer,
//! an update is the same peer again, and each operation updates and reads the counts, which is one announce
//! here. Criterion's throughput is announces per second over all threads.

use std::{
    env,
    ops::Range,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use swarmkeep::{
    Announce, Changes, HashKey, PeerBuffer, RepositoryConfig, SplitMix64, TorrentRepository,
    catalog::{self, Implementation},
};
use swarmkeep_benches::{NOW, cores};
use swarmkeep_conformance::Subject;
use swarmkeep_workload::{PeerIndex, Workload};

type Store = dyn TorrentRepository;

/// A measurement: the contents of the store, and the operation on it.
struct Benchmark<'a> {
    name: &'static str,
    fill: &'a dyn Fn(&Store),
    /// Gets the number of its thread and its own, of which a round of a thread has consecutive ones.
    operation: &'a (dyn Fn(&Store, &'static Implementation, usize, usize) + Sync),
    /// The number of operations per round.
    round: usize,
    /// Whether each round has a newly filled store. Otherwise one store is used for all rounds.
    fresh: bool,
    /// Whether one thread per core is measured as well as one thread.
    parallel: bool,
}

fn torrust(criterion: &mut Criterion) {
    let torrents = shrunk(10_000, 100);
    let workload = Workload::uniform(1, torrents as u64, 1);
    let peer = workload.endpoint(PeerIndex { swarm: 0, peer: 0 });
    let of = |swarm: usize| Announce::new(workload.info_hash(swarm as u64), peer).want(0);
    // The torrents that each thread adds; in an update the first of them exist already.
    let announces: Vec<Vec<_>> =
        (0..cores()).map(|thread| (0..torrents).map(|n| of(thread * torrents + n)).collect()).collect();
    let add = |store: &Store, announce: &Announce| {
        assert!(announced(store, announce).contains(Changes::JOINED | Changes::CREATED));
    };
    let update = |store: &Store, announce: &Announce| {
        assert_eq!(announced(store, announce), Changes::REFRESHED);
    };
    let first = &announces[0];
    let benches = [
        // Includes building the store, like the original.
        Benchmark {
            name: "add_one_torrent",
            fill: &|_| {},
            operation: &|_, row, _, _| add(&*empty(row), &first[0]),
            round: shrunk(1000, 20),
            fresh: false,
            parallel: false,
        },
        Benchmark {
            name: "add_multiple_torrents_in_parallel",
            fill: &|_| {},
            operation: &|store, _, thread, n| add(store, &announces[thread][n % torrents]),
            round: torrents,
            fresh: true,
            parallel: true,
        },
        Benchmark {
            name: "update_one_torrent_in_parallel",
            fill: &|store| add(store, &first[0]),
            operation: &|store, _, _, _| update(store, &first[0]),
            round: shrunk(1000, 20),
            fresh: false,
            parallel: true,
        },
        Benchmark {
            name: "update_multiple_torrents_in_parallel",
            fill: &|store| first.iter().for_each(|announce| add(store, announce)),
            operation: &|store, _, _, n| update(store, &first[n % torrents]),
            round: torrents,
            fresh: false,
            parallel: true,
        },
    ];
    benches.iter().for_each(|bench| bench.run(criterion));
}

/// Announces; returns the changes.
fn announced(store: &Store, announce: &Announce) -> Changes {
    let answer =
        store.announce(announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
    assert_eq!(answer.stats.peers(), 1);
    answer.changes
}

/// Returns `full`, or `test` in a run that only tests.
fn shrunk(full: usize, test: usize) -> usize {
    if env::args().any(|argument| argument == "--test") { test } else { full }
}

fn empty(row: &'static Implementation) -> Box<Store> {
    let config = RepositoryConfig::new(HashKey::from_bytes(*b"always this key."));
    Subject::build(&row, &config).expect("every store keeps the default configuration")
}

impl Benchmark<'_> {
    fn run(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group(format!("torrust/{}", self.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
        let mut counts = vec![1, cores()];
        counts.dedup();
        for threads in counts.into_iter().filter(|&count| count == 1 || self.parallel) {
            group.throughput(Throughput::Elements((self.round * threads) as u64));
            for row in catalog::ALL {
                let mut kept = None;
                // Criterion calls this for every sample, and not at all for benches that are filtered out.
                group.bench_function(BenchmarkId::new(row.name, threads), |bencher| {
                    bencher.iter_custom(|rounds| {
                        if self.fresh {
                            let round = |_| self.timed(&*self.filled(row), row, threads, 0..self.round);
                            return (0..rounds).map(round).sum();
                        }
                        let (store, done) = kept.get_or_insert_with(|| (self.filled(row), 0));
                        let start = *done;
                        *done += rounds as usize * self.round;
                        self.timed(&**store, row, threads, start..*done)
                    });
                });
            }
        }
    }

    fn filled(&self, row: &'static Implementation) -> Box<Store> {
        let store = empty(row);
        (self.fill)(&*store);
        store
    }

    /// Returns the time from the start of the first thread to the end of the last one.
    fn timed(
        &self,
        store: &Store,
        row: &'static Implementation,
        threads: usize,
        numbers: Range<usize>,
    ) -> Duration {
        let (barrier, operation) = (Barrier::new(threads), self.operation);
        let body = |thread: usize| {
            barrier.wait();
            let start = Instant::now();
            numbers.clone().for_each(|number| operation(store, row, thread, number));
            (start, Instant::now())
        };
        if threads == 1 {
            let (start, end) = body(0);
            return end - start;
        }
        let body = &body;
        let spans: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || body(n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("operations succeed")).collect()
        });
        let first = spans.iter().map(|(start, _)| *start).min().expect("a thread");
        spans.into_iter().map(|(_, end)| end).max().expect("a thread") - first
    }
}

criterion_group!(benches, torrust);
criterion_main!(benches);
