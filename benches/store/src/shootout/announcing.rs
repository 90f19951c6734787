//! The cost of announces: time, slowest announces, allocations.

use std::{
    hint,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use swarmkeep::{
    Announce, Announced, Budget, Changes, CompactV4, CompactV6, PeerBuffer, Random, Request, Retention,
    SplitMix64, Timestamp, TorrentRepository, implement::forward_repository,
};
use swarmkeep_kit::allocations::{calls_of_all, of_thread};
use swarmkeep_workload::{Announces, Workload};

use super::row::{INTERVAL, LIFETIME, Number, Plan, Row, START};

/// The number of announces that each thread prepares before the clock starts: enough to make the start of the
/// threads negligible, and few enough that they do not push the store out of the cache.
const ROUND: usize = 1 << 14;
/// The number of peers that each announce asks for.
const WANT: usize = 50;
/// The maximum number of bytes of the peers of one answer.
const ANSWER: usize = WANT * (CompactV4::LEN + CompactV6::LEN);
/// The time at which a full store gets announces and sweeps; no peer has expired then.
pub(crate) const FULL: Timestamp = Timestamp::from_secs(START + INTERVAL);
/// The duration of a pass of a paced sweep, in seconds.
const PACED_PASS: f64 = 30.0;

/// Measures the wall time per announce over all threads, and the same for a store that does nothing.
pub(crate) fn time(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan, row: &mut Row) {
    row.set(Number::NsPerAnnounce, nanoseconds(store, workload, plan, plan.seconds));
    let nothing = Nothing(store);
    let nothing: &dyn TorrentRepository = hint::black_box(&nothing);
    row.set(Number::HarnessNs, nanoseconds(nothing, workload, plan, plan.seconds / 5.0));
}

/// A store of which announces do nothing, to measure the cost of the measuring itself.
#[derive(Debug)]
struct Nothing<'a>(&'a dyn TorrentRepository);

impl TorrentRepository for Nothing<'_> {
    fn announce(&self, _: &Announce, _: Timestamp, _: &mut dyn Random, _: &mut PeerBuffer<'_>) -> Announced {
        Announced::default()
    }

    forward_repository! { |nothing| nothing.0, except announce, announce_batch }
}

/// The clock runs while the threads announce. It is stopped while they prepare the announces of the next
/// round.
fn nanoseconds(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan, seconds: f64) -> f64 {
    let before = store.totals().peers();
    let clock = Instant::now();
    let (start_line, round_count) = (StartLine::new(plan.threads), AtomicUsize::new(usize::MAX));

    let announcer = |thread: u64| {
        let mut bytes = buffers(plan.batch);
        let mut caller = Announcer::new(store, workload, thread, plan.fenced, &mut bytes);
        let (mut rounds, mut mine) = (Vec::new(), Duration::ZERO);
        loop {
            caller.make_ready();
            start_line.wait(rounds.len());
            if rounds.len() == round_count.load(Relaxed) {
                return (caller.tally, rounds);
            }
            let start = clock.elapsed();
            caller.announce(FULL);
            let end = clock.elapsed();
            // The first round warms up.
            if !rounds.is_empty() {
                mine += end - start;
            }
            rounds.push((start, end));
            // A number and not a flag, because a late thread may read it after the next round was declared
            // the last one.
            if thread == 0 && mine.as_secs_f64() >= seconds {
                round_count.store(rounds.len(), Relaxed);
            }
        }
    };
    let done: Vec<(Tally, Vec<(Duration, Duration)>)> = beside(plan.threads as u64, announcer, || ());

    Tally::sum(done.iter().map(|(tally, _)| *tally)).check(before, store.totals().peers());
    let mut walls: Vec<Duration> = (1..done[0].1.len())
        .map(|round| {
            let start = done.iter().map(|(_, rounds)| rounds[round].0).min();
            let end = done.iter().map(|(_, rounds)| rounds[round].1).max();
            end.expect("a thread") - start.expect("a thread")
        })
        .collect();
    // The median: other work of the machine affects only a few rounds.
    walls.sort_unstable();
    walls[walls.len() / 2].as_nanos() as f64 / (ROUND * plan.threads) as f64
}

/// Measures the allocations of announces that only refresh a peer, in batches and one at a time. Measures
/// nothing if the program has another allocator than the one that counts.
pub(crate) fn refreshes(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan, row: &mut Row) {
    if of_thread(|| hint::black_box(Box::new(0_u8))).1.calls == 0 {
        return;
    }
    let steady = workload.clone().with_profile(|profile| (profile.stopped, profile.completed) = (0.0, 0.0));
    let calls = [plan.batch, 1].map(|batch| {
        let mut bytes = buffers(batch);
        let mut caller = Announcer::new(store, &steady, batch as u64, false, &mut bytes);
        caller.make_ready();
        let (refreshed, allocations) = calls_of_all(|| caller.announce(FULL));
        assert_eq!(refreshed, ROUND, "every peer was there");
        allocations
    });
    row.set(Number::AllocationsPerRefresh, calls.iter().sum::<u64>() as f64 / (calls.len() * ROUND) as f64);
}

/// Measures the slowest announce in a thousand, without a sweep and during a sweep that spreads a pass over
/// half a minute. Both alternate, with the same number of threads.
pub(crate) fn paced(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan, row: &mut Row) {
    const TURNS: usize = 10;
    let (turn, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let announcer = |thread: u64| {
        let mut bytes = buffers(1);
        let mut caller = Announcer::new(store, workload, 1 << 17 | thread, false, &mut bytes);
        let mut latencies = [latencies(), latencies()];
        while turn.load(Relaxed) < TURNS {
            caller.make_ready();
            caller.announce_each(|| FULL, |ns| latencies[turn.load(Relaxed) % 2].saturating_record(ns));
            rounds.fetch_add(1, Relaxed);
        }
        latencies
    };
    let sweeper = || {
        for n in 0..TURNS {
            turn.store(n, Relaxed);
            let first = rounds.load(Relaxed);
            // At least two rounds: the first may have begun before this turn, the next is whole.
            let is_over =
                |at: Duration| at.as_secs_f64() >= plan.seconds && rounds.load(Relaxed) >= first + 2;
            sweep_at_a_pace(store, if n % 2 == 0 { 0.0 } else { 1.0 / PACED_PASS }, is_over);
        }
        turn.store(TURNS, Relaxed);
    };
    let [quiet, swept] = beside(announcers(plan), announcer, sweeper)
        .into_iter()
        .reduce(|[quiet, swept], [more_quiet, more_swept]| [quiet + more_quiet, swept + more_swept])
        .expect("a thread");
    row.set(Number::QuietP999Ns, quiet.value_at_quantile(0.999) as f64);
    row.set(Number::PacedP999Ns, swept.value_at_quantile(0.999) as f64);
}

/// Sweeps at `passes` passes per second in small steps, each at its time.
fn sweep_at_a_pace(store: &dyn TorrentRepository, passes: f64, is_over: impl Fn(Duration) -> bool) {
    let totals = store.totals();
    let visits = (totals.swarms + totals.peers()) as f64 * passes;
    let (clock, mut visited) = (Instant::now(), 0.0);
    while !is_over(clock.elapsed()) {
        while visited < clock.elapsed().as_secs_f64() * visits {
            let step = store.sweep(FULL, Retention::KeepDownloaded, Budget::peers(super::SMALL_STEP));
            // A step that completes a pass may have nothing to visit.
            visited += step.visited.max(1) as f64;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// Measures the nanoseconds within which 99.9 % of single announces are answered while one thread sweeps
/// without a pause. The clock of the store runs faster meanwhile, so that a tenth of the peers that have not
/// announced again expire.
pub(crate) fn tail(store: &dyn TorrentRepository, workload: &Workload, plan: &Plan, row: &mut Row) {
    let (now, over) = (AtomicU64::new(START + LIFETIME), AtomicBool::new(false));
    let announcer = |thread: u64| {
        let mut bytes = buffers(1);
        // Other peers than those of `time`.
        let mut caller = Announcer::new(store, workload, 1 << 16 | thread, false, &mut bytes);
        let mut latencies = latencies();
        loop {
            caller.make_ready();
            caller.announce_each(
                || Timestamp::from_secs(now.load(Relaxed)),
                |ns| latencies.saturating_record(ns),
            );
            if over.load(Relaxed) {
                return latencies;
            }
        }
    };
    let sweeper = || {
        let clock = Instant::now();
        loop {
            let share = clock.elapsed().as_secs_f64() / plan.seconds;
            if share >= 1.0 {
                break;
            }
            now.store(START + LIFETIME + (share * INTERVAL as f64 / 10.0) as u64, Relaxed);
            let now = Timestamp::from_secs(now.load(Relaxed));
            store.sweep(now, Retention::KeepDownloaded, Budget::peers(1024));
        }
        over.store(true, Relaxed);
    };
    let all =
        beside(announcers(plan), announcer, sweeper).into_iter().fold(latencies(), |all, one| all + one);
    row.set(Number::P999Ns, all.value_at_quantile(0.999) as f64);
}

/// Returns the number of threads that announce beside one that sweeps. More threads than cores would show how
/// the system schedules.
fn announcers(plan: &Plan) -> u64 {
    plan.threads.saturating_sub(1).max(1) as u64
}

/// Runs `announcers` announcers, and a sweeper on this thread; returns the results of the announcers.
fn beside<T: Send>(announcers: u64, announcer: impl Fn(u64) -> T + Sync, sweeper: impl FnOnce()) -> Vec<T> {
    let announcer = &announcer;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..announcers).map(|n| scope.spawn(move || announcer(n))).collect();
        sweeper();
        threads.into_iter().map(|thread| thread.join().expect("a store does not panic")).collect()
    })
}

/// Returns a histogram from a nanosecond to a minute, with three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds")
}

/// A point at which threads wait for each other. A barrier alone wakes them tens of microseconds apart.
struct StartLine {
    barrier: Barrier,
    threads: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    fn new(threads: usize) -> Self {
        Self { barrier: Barrier::new(threads), threads, arrived: AtomicUsize::new(0) }
    }

    fn wait(&self, round: usize) {
        self.barrier.wait();
        // All threads are awake, or about to be.
        self.arrived.fetch_add(1, SeqCst);
        let mut spins = 0;
        while self.arrived.load(SeqCst) < self.threads * (round + 1) {
            spins += 1;
            // There may be fewer cores than threads, or other programs that use them.
            if spins > 1000 { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

/// Returns buffers for the answers to one batch.
fn buffers(batch: usize) -> Vec<[u8; ANSWER]> {
    vec![[0; _]; batch]
}

/// A thread that announces: its next announces, the buffers of the answers, and the counted answers.
struct Announcer<'a> {
    store: &'a dyn TorrentRepository,
    announces: Announces<'a>,
    ready: Vec<Announce>,
    /// The requests of one batch, reused for each batch. An announce is copied into them, as a server parses
    /// packets into them: 2 ns. With complete requests prepared in advance, the buffers had to move from one
    /// to the next: 5 ns.
    requests: Vec<Request<'a>>,
    fenced: bool,
    rng: SplitMix64,
    tally: Tally,
}

impl<'a> Announcer<'a> {
    fn new(
        store: &'a dyn TorrentRepository,
        workload: &'a Workload,
        stream: u64,
        fenced: bool,
        buffers: &'a mut [[u8; ANSWER]],
    ) -> Self {
        let nobody = workload.announce(workload.peer_index(0));
        let request = |bytes: &'a mut [u8; ANSWER]| {
            let (v4, v6) = bytes.split_at_mut(WANT * CompactV4::LEN);
            Request::new(nobody, PeerBuffer::new(v4, v6))
        };
        Self {
            store,
            announces: workload.announces(stream),
            ready: Vec::with_capacity(ROUND),
            requests: buffers.iter_mut().map(request).collect(),
            fenced,
            rng: SplitMix64::new(stream),
            tally: Tally::default(),
        }
    }

    fn make_ready(&mut self) {
        self.ready.clear();
        self.ready.extend(self.announces.by_ref().take(ROUND));
    }

    /// Announces the prepared announces; returns the number of those that only refreshed a peer.
    fn announce(&mut self, now: Timestamp) -> usize {
        let refreshed = self.tally.refreshed;
        if let [request] = self.requests.as_mut_slice() {
            for announce in &self.ready {
                self.tally.add(self.store.announce(announce, now, &mut self.rng, &mut request.peers));
                if self.fenced {
                    fence(SeqCst);
                }
            }
        } else {
            for announces in self.ready.chunks(self.requests.len()) {
                let batch = &mut self.requests[..announces.len()];
                for (request, announce) in batch.iter_mut().zip(announces) {
                    request.announce = *announce;
                }
                self.store.announce_batch(batch, now, &mut self.rng);
                for request in batch {
                    self.tally.add(request.answer.take().expect("a batch answers every request"));
                }
            }
        }
        self.tally.refreshed - refreshed
    }

    /// Announces the prepared announces one at a time, and reports the nanoseconds of each.
    fn announce_each(&mut self, now: impl Fn() -> Timestamp, mut took: impl FnMut(u64)) {
        let peers = &mut self.requests[0].peers;
        for announce in &self.ready {
            let start = Instant::now();
            self.store.announce(announce, now(), &mut self.rng, peers);
            took(start.elapsed().as_nanos() as u64);
        }
    }
}

/// The numbers of peers that joined, left and stayed, according to the answers.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    joined: u64,
    left: u64,
    refreshed: usize,
}

impl Tally {
    fn add(&mut self, answer: Announced) {
        self.joined += u64::from(answer.changes.contains(Changes::JOINED));
        self.left += u64::from(answer.changes.contains(Changes::LEFT));
        self.refreshed += usize::from(answer.changes == Changes::REFRESHED);
    }

    fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            joined: sum.joined + one.joined,
            left: sum.left + one.left,
            refreshed: sum.refreshed + one.refreshed,
        })
    }

    /// Checks that the store has lost no peers: a store that loses peers is fast for the wrong reason.
    fn check(self, before: u64, after: u64) {
        assert_eq!(before + self.joined, after + self.left, "the answers and the totals disagree: {self:?}");
    }
}
