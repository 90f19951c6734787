//! One row: an empty store is filled, then announced to. Runs in a process of its own.

use std::{
    error::Error,
    fmt, fs,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use swarmkeep::{
    Announce, Announced, Budget, Changes, CompactV4, CompactV6, ConfigError, HashKey, PeerBuffer,
    RepositoryConfig, Request, Retention, SplitMix64, Timestamp, TorrentRepository, catalog,
};
use swarmkeep_conformance::Subject;
use swarmkeep_workload::{Announces, Workload};

use super::{
    report::Row,
    work::{Kind, Size},
};

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) store: String,
    pub(crate) workload: Kind,
    pub(crate) size: Size,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) metrics: Vec<Metric>,
}

/// One kind of number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Metric {
    /// Bytes a swarm and a peer.
    Bytes,
    /// Time an announce.
    Time,
    /// Time of the slowest announce in a thousand while a sweep runs.
    Tail,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.store, self.workload)?;
        if self.threads > 1 { write!(f, ", {} threads", self.threads) } else { Ok(()) }
    }
}

/// When the first peer announces.
const START: u64 = 1_800_000_000;
/// Peers announce every 30 minutes, so those of a full store are up to 30 minutes old.
const INTERVAL: u64 = 30 * 60;
/// The stores' lifetime as configured by default.
const LIFETIME: u64 = 45 * 60;
/// Announces that each thread makes ready before the clock starts: some milliseconds of work, and few enough that they do
/// not push the store out of the cache.
const ROUND: usize = 1 << 14;
/// The most peers that one announce asks for.
const WANT: usize = 50;

/// Measures one row.
pub(crate) fn measure(plan: &Plan) -> Result<Row, Box<dyn Error>> {
    let implementation =
        catalog::find(&plan.store).ok_or_else(|| format!("no store is called {}", plan.store))?;
    // Built first, so that its tables are no part of what the store takes.
    let workload = plan.workload.workload(plan.size, plan.seed);
    let config = RepositoryConfig::new(HashKey::from_bytes(u128::from(plan.seed).to_le_bytes()));
    let has = |metric| plan.metrics.contains(&metric);
    let mut row = Row::new(plan);

    let store = if has(Metric::Bytes) {
        let before = resident_bytes();
        let (store, live) = crate::ALLOCATOR.live_bytes(|| {
            let store = Subject::build(&implementation, &config)?;
            fill(&*store, &workload, 1);
            Ok::<_, ConfigError>(store)
        });
        let grown = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
        row.set_bytes(&workload, live, grown);
        store?
    } else {
        let store = Subject::build(&implementation, &config)?;
        fill(&*store, &workload, plan.threads as u64);
        store
    };
    let totals = store.totals();
    assert_eq!(
        (totals.swarms, totals.peers()),
        (workload.swarms(), workload.peers()),
        "a peer of the fill is missing"
    );

    if has(Metric::Time) {
        row.ns_per_announce = Some((time(&*store, &workload, plan) * 10.0).round() / 10.0);
    }
    if has(Metric::Tail) {
        row.p999_ns = Some(tail(&*store, &workload, plan));
    }
    Ok(row)
}

/// Announces every peer of the workload once, on so many threads, over one announce interval.
fn fill(store: &dyn TorrentRepository, workload: &Workload, threads: u64) {
    let part = |part| {
        let (mut rng, mut peers) = (SplitMix64::new(part), PeerBuffer::new(&mut [], &mut []));
        let announces = workload.fill_part(part, threads);
        let of = announces.len() as u64;
        for (n, announce) in announces.enumerate() {
            let now = Timestamp::from_secs(START + INTERVAL * n as u64 / of);
            store.announce(&announce.want(0), now, &mut rng, &mut peers);
        }
    };
    if threads == 1 {
        return part(0); // Memory of threads that are no more would count as the store's.
    }
    thread::scope(|scope| {
        for n in 0..threads {
            scope.spawn(move || part(n));
        }
    });
}

/// Wall time an announce, over all threads, in nanoseconds. The clock runs while threads announce; it stands while they
/// make the announces of their next round.
fn time(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan) -> f64 {
    let before = store.totals().peers();
    let clock = Instant::now();
    let (barrier, round_count) = (Barrier::new(plan.threads), AtomicUsize::new(usize::MAX));

    let announcer = |thread: u64| {
        let mut bytes = buffers(plan.batch);
        let mut caller = Caller::new(store, workload, thread, &mut bytes);
        let (mut rounds, mut mine) = (Vec::new(), Duration::ZERO);
        loop {
            caller.make_ready();
            barrier.wait();
            if rounds.len() == round_count.load(Relaxed) {
                return (caller.tally, rounds);
            }
            let start = clock.elapsed();
            caller.announce(Timestamp::from_secs(START + INTERVAL));
            let end = clock.elapsed();
            // The first round warms up.
            if !rounds.is_empty() {
                mine += end - start;
            }
            rounds.push((start, end));
            // A number, since a thread that is late may ask when the next round has been said to be the last.
            if thread == 0 && mine.as_secs_f64() >= plan.seconds {
                round_count.store(rounds.len(), Relaxed);
            }
        }
    };
    let announcer = &announcer;
    let done: Vec<(Tally, Vec<(Duration, Duration)>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads as u64).map(|n| scope.spawn(move || announcer(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a store does not panic")).collect()
    });

    Tally::sum(done.iter().map(|(tally, _)| *tally)).check(before, store.totals().peers());
    let mut walls: Vec<Duration> = (1..done[0].1.len())
        .map(|round| {
            let start = done.iter().map(|(_, rounds)| rounds[round].0).min();
            let end = done.iter().map(|(_, rounds)| rounds[round].1).max();
            end.expect("a thread") - start.expect("a thread")
        })
        .collect();
    // The median: what else the machine does meanwhile falls into few of the rounds.
    walls.sort_unstable();
    walls[walls.len() / 2].as_nanos() as f64 / (ROUND * plan.threads) as f64
}

/// Nanoseconds within which 99.9 % of single announces are answered while one thread sweeps without a pause. The clock runs
/// faster meanwhile, so that a tenth of the peers that have not announced again expire.
fn tail(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan) -> u64 {
    let (now, over) = (AtomicU64::new(START + LIFETIME), AtomicBool::new(false));
    let announcer = |thread: u64| {
        let mut bytes = buffers(1);
        // Other peers than those that `time` has drawn.
        let mut caller = Caller::new(store, workload, 1 << 16 | thread, &mut bytes);
        let mut latencies = latencies();
        while !over.load(Relaxed) {
            caller.make_ready();
            caller.announce_each(&now, &mut latencies);
        }
        latencies
    };
    let announcer = &announcer;
    // More threads than cores would show how the system schedules.
    let announcers = plan.threads.saturating_sub(1).max(1) as u64;
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..announcers).map(|n| scope.spawn(move || announcer(n))).collect();
        let clock = Instant::now();
        loop {
            let share = clock.elapsed().as_secs_f64() / plan.seconds;
            if share >= 1.0 {
                break;
            }
            now.store(START + LIFETIME + (share * INTERVAL as f64 / 10.0) as u64, Relaxed);
            store.sweep(
                Timestamp::from_secs(now.load(Relaxed)),
                Retention::KeepDownloaded,
                Budget::peers(1024),
            );
        }
        over.store(true, Relaxed);
        threads
            .into_iter()
            .fold(latencies(), |all, thread| all + thread.join().expect("a store does not panic"))
    });
    all.value_at_quantile(0.999)
}

/// From a nanosecond to a minute, to three digits.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

/// Room for the answers to one batch.
fn buffers(batch: usize) -> Vec<[u8; WANT * (CompactV4::LEN + CompactV6::LEN)]> {
    vec![[0; _]; batch]
}

/// One thread that announces: what it will send next, where the answers go, what they said.
struct Caller<'a> {
    store: &'a dyn TorrentRepository,
    announces: Announces<'a>,
    ready: Vec<Announce>,
    requests: Vec<Request<'a>>,
    rng: SplitMix64,
    tally: Tally,
}

impl<'a> Caller<'a> {
    fn new(
        store: &'a dyn TorrentRepository,
        workload: &'a Workload,
        stream: u64,
        buffers: &'a mut [[u8; WANT * (CompactV4::LEN + CompactV6::LEN)]],
    ) -> Self {
        let nobody = workload.announce(workload.place(0));
        let requests = buffers
            .iter_mut()
            .map(|bytes| {
                let (v4, v6) = bytes.split_at_mut(WANT * CompactV4::LEN);
                Request::new(nobody, PeerBuffer::new(v4, v6))
            })
            .collect();
        let (announces, rng) = (workload.announces(stream), SplitMix64::new(stream));
        Self { store, announces, ready: Vec::with_capacity(ROUND), requests, rng, tally: Tally::default() }
    }

    fn make_ready(&mut self) {
        self.ready.clear();
        self.ready.extend(self.announces.by_ref().take(ROUND));
    }

    fn announce(&mut self, now: Timestamp) {
        if let [request] = self.requests.as_mut_slice() {
            for announce in &self.ready {
                self.tally.add(self.store.announce(announce, now, &mut self.rng, &mut request.peers));
            }
            return;
        }
        for chunk in self.ready.chunks(self.requests.len()) {
            let batch = &mut self.requests[..chunk.len()];
            for (request, announce) in batch.iter_mut().zip(chunk) {
                request.announce = *announce;
            }
            self.store.announce_batch(batch, now, &mut self.rng);
            for request in batch {
                self.tally.add(request.answer.take().expect("a batch answers every request"));
            }
        }
    }

    fn announce_each(&mut self, now: &AtomicU64, latencies: &mut Histogram<u64>) {
        let peers = &mut self.requests[0].peers;
        for announce in &self.ready {
            let start = Instant::now();
            self.store.announce(announce, Timestamp::from_secs(now.load(Relaxed)), &mut self.rng, peers);
            latencies.saturating_record(start.elapsed().as_nanos() as u64);
        }
    }
}

/// How many peers came and went, as the answers had it.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    joined: u64,
    left: u64,
}

impl Tally {
    fn add(&mut self, answer: Announced) {
        self.joined += u64::from(answer.changes.contains(Changes::JOINED));
        self.left += u64::from(answer.changes.contains(Changes::LEFT));
    }

    fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            joined: sum.joined + one.joined,
            left: sum.left + one.left,
        })
    }

    /// A store that loses peers is fast for the wrong reason.
    fn check(self, before: u64, after: u64) {
        assert_eq!(before + self.joined, after + self.left, "the answers and the totals disagree: {self:?}");
    }
}

/// The resident set of this process; `None` where there is no `/proc`.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}
