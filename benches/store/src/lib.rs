//! The common part of the benches: one function that runs a table of [`Benchmark`]s over every store of
//! the catalog.
//!
//! It measures real threads that start together. An iteration is a round of many operations on each thread,
//! so that starting the threads is not measured. Criterion's throughput is announces (or other
//! operations) per second over all threads.

pub mod charts;
pub mod tables;

use std::{
    env,
    num::NonZeroUsize,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use swarmkeep::{
    Announce, Announced, CompactV4, CompactV6, HashKey, PeerBuffer, RepositoryConfig, Request, SplitMix64,
    Timestamp, TorrentRepository,
    catalog::{self, Implementation},
};
use swarmkeep_conformance::Subject;

/// The time of every bench; peers expire 45 minutes later.
pub const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A measurement: the contents of the store, and the operation on it.
pub struct Benchmark<'a> {
    name: String,
    fill: Box<dyn Fn(&mut Caller<'_>) + 'a>,
    operation: Operation<'a>,
    round: usize,
    fresh: bool,
    parallel: bool,
    /// The number of announces per operation.
    pub each: usize,
    /// Measures one store only.
    pub only: Option<&'static str>,
    /// The number of shards of the store.
    pub shards: Option<usize>,
}

type Operation<'a> = Box<dyn Fn(&mut Caller<'_>, usize) + Sync + 'a>;

impl<'a> Benchmark<'a> {
    /// Returns a benchmark of an operation, which receives its number and asserts its result. A round of a
    /// thread has a thousand consecutive numbers; threads start far apart.
    pub fn new(name: impl Into<String>, operation: impl Fn(&mut Caller<'_>, usize) + Sync + 'a) -> Self {
        Self {
            name: name.into(),
            fill: Box::new(|_| {}),
            operation: Box::new(operation),
            round: shrunk(1000, 20),
            each: 1,
            fresh: false,
            parallel: false,
            only: None,
            shards: None,
        }
    }

    /// Sets the function that fills the empty store before the measurement.
    #[must_use]
    pub fn filled(mut self, fill: impl Fn(&mut Caller<'_>) + 'a) -> Self {
        self.fill = Box::new(fill);
        self
    }

    /// Sets the number of operations per round.
    #[must_use]
    pub const fn round(mut self, operations: usize) -> Self {
        self.round = operations;
        self
    }

    /// Uses a newly filled store for each round. Otherwise one store is used for all rounds.
    #[must_use]
    pub const fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// Measures with one thread per core as well as with one thread.
    #[must_use]
    pub const fn parallel(mut self) -> Self {
        self.parallel = true;
        self
    }
}

/// Measures every benchmark on every store, under the name `GROUP/BENCHMARK/STORE/THREADS`.
pub fn run(criterion: &mut Criterion, group: &str, benches: &[Benchmark<'_>]) {
    for bench in benches {
        let mut group = criterion.benchmark_group(format!("{group}/{}", bench.name));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
        let mut counts = vec![1, cores()];
        counts.dedup();
        for threads in counts.into_iter().filter(|&count| count == 1 || bench.parallel) {
            group.throughput(Throughput::Elements((bench.round * bench.each * threads) as u64));
            for store in catalog::ALL.iter().filter(|store| bench.only.is_none_or(|only| only == store.name))
            {
                let mut kept = None;
                // Criterion calls this for every sample, and not at all for benches that are filtered out.
                group.bench_function(BenchmarkId::new(store.name, threads), |bencher| {
                    bencher.iter_custom(|rounds| {
                        if !bench.fresh {
                            let (repository, done) = kept.get_or_insert_with(|| (filled(bench, store), 0));
                            let start = *done;
                            *done += rounds as usize * bench.round;
                            return timed(bench, &**repository, store, threads, start..*done);
                        }
                        let rounds = (0..rounds)
                            .map(|_| timed(bench, &*filled(bench, store), store, threads, 0..bench.round));
                        rounds.sum()
                    });
                });
            }
        }
    }
}

/// Returns `full`, or `test` in a run that only tests.
pub fn shrunk(full: usize, test: usize) -> usize {
    if env::args().any(|argument| argument == "--test") { test } else { full }
}

/// Returns the number of threads that can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns an empty store.
pub fn empty(store: &'static Implementation, shards: Option<usize>) -> Box<dyn TorrentRepository> {
    let config = RepositoryConfig::new(HashKey::from_bytes(*b"always this key."));
    let config = shards.map_or(config.clone(), |shards| config.shards(shards));
    Subject::build(&store, &config).expect("every store keeps the default configuration")
}

/// A thread that calls a store.
pub struct Caller<'a> {
    /// The store.
    pub repository: &'a dyn TorrentRepository,
    /// The implementation of the store.
    pub store: &'static Implementation,
    /// The number of the thread.
    pub thread: usize,
    rng: SplitMix64,
    answers: Vec<Answer>,
}

/// Room for the peers of one answer.
type Answer = ([u8; 50 * CompactV4::LEN], [u8; 50 * CompactV6::LEN]);

/// The number of announces of a batch.
pub const BATCH: usize = 32;

impl<'a> Caller<'a> {
    /// Returns thread number `thread`.
    pub fn new(repository: &'a dyn TorrentRepository, store: &'static Implementation, thread: usize) -> Self {
        let rng = SplitMix64::new(thread as u64);
        Self { repository, store, thread, rng, answers: vec![([0; _], [0; _]); BATCH] }
    }

    /// Announces; returns the answer and the number of selected peers.
    pub fn announce(&mut self, announce: &Announce) -> (Announced, usize) {
        let (v4, v6) = &mut self.answers[0];
        let mut peers = PeerBuffer::new(v4, v6);
        let answer = self.repository.announce(announce, NOW, &mut self.rng, &mut peers);
        (answer, peers.len())
    }

    /// Announces a batch of [`BATCH`] announces. `check` receives each answer and its number of selected
    /// peers.
    pub fn announce_batch(
        &mut self,
        announces: &[Announce; BATCH],
        check: impl Fn(&Announce, Announced, usize),
    ) {
        let mut answers = self.answers.iter_mut();
        let mut batch = announces.map(|announce| {
            let (v4, v6) = answers.next().expect("as many answers as announces");
            Request::new(announce, PeerBuffer::new(v4, v6))
        });
        self.repository.announce_batch(&mut batch, NOW, &mut self.rng);
        for Request { announce, peers, answer } in &batch {
            check(announce, answer.expect("a batch answers every request"), peers.len());
        }
    }
}

fn filled(bench: &Benchmark<'_>, store: &'static Implementation) -> Box<dyn TorrentRepository> {
    let repository = empty(store, bench.shards);
    (bench.fill)(&mut Caller::new(&*repository, store, 0));
    repository
}

/// Returns the time from the start of the first thread to the end of the last one.
fn timed(
    bench: &Benchmark<'_>,
    repository: &dyn TorrentRepository,
    store: &'static Implementation,
    threads: usize,
    numbers: std::ops::Range<usize>,
) -> Duration {
    let (barrier, operation) = (Barrier::new(threads), &*bench.operation);
    let body = |thread: usize| {
        let mut caller = Caller::new(repository, store, thread);
        barrier.wait();
        let start = Instant::now();
        for number in numbers.clone() {
            // Far apart, and not by a multiple of the periods of the operations.
            operation(&mut caller, thread * 0x4000_0123 + number);
        }
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
