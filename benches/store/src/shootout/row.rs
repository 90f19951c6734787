//! One row: an empty store is filled, then measured, in a process of its own.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use swarmkeep::{
    ConfigError, HashKey, PeerBuffer, RepositoryConfig, SplitMix64, Timestamp, TorrentRepository,
    catalog::{self, Implementation},
};
use swarmkeep_conformance::Subject;
use swarmkeep_workload::Workload;

use super::{announcing, flood, forgetting, work::Population};
use crate::{at_once, cores, resident_bytes, tables::Spread};

/// The plan of one row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) store: String,
    /// The name of the population.
    pub(crate) workload: String,
    pub(crate) population: Population,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
    /// Whether a fence follows each call, so that the next announce cannot begin before this one is complete.
    pub(crate) fenced: bool,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) metrics: Vec<Metric>,
}

/// The measurements on a full store, in their order. Each measurement finds the store as the earlier ones
/// left it: equally full, with some peers gone and others back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Metric {
    /// Bytes per swarm and per peer.
    Bytes,
    /// Allocations of announces that refresh.
    Refreshes,
    /// Time of a sweep of the whole store in large steps.
    Pass,
    /// Times of the small steps of a sweep.
    Steps,
    /// Time per announce.
    Time,
    /// Time of the slowest announce in a thousand, without a sweep and during a paced sweep.
    Paced,
    /// Time of the slowest announce in a thousand while a sweep runs without a pause.
    Tail,
    /// Remaining bytes, and the time of the sweeps, after 99 swarms in 100 expire.
    Shrink,
    /// Swarms that a flood of made-up ones evicts from a limited store of its own.
    Flood,
}

/// One store on one workload. Numbers that were not measured are absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) store: String,
    pub(crate) workload: String,
    pub(crate) swarms: u64,
    pub(crate) peers: u64,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
    pub(crate) fenced: bool,
    #[serde(flatten)]
    numbers: BTreeMap<Number, f64>,
}

/// The meaning of a number; in JSON, its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Number {
    /// Wall time per announce, over all threads.
    NsPerAnnounce,
    /// The same with a store that does nothing: the part that the measuring itself takes.
    HarnessNs,
    /// Time within which 99.9 % of announces are answered while a sweep runs without a pause.
    P999Ns,
    RssBytesPerSwarm,
    RssBytesPerPeer,
    AllocationsPerRefresh,
    /// Time of a sweep of the whole store.
    PassMs,
    /// Time within which 99.99 % of the small steps of a sweep end.
    StepP9999Us,
    StepMaxUs,
    /// Time within which 99.9 % of announces are answered without a sweep.
    QuietP999Ns,
    /// Time within which 99.9 % of announces are answered during a paced sweep.
    PacedP999Ns,
    /// Share of the resident set that remains after most swarms have expired.
    ShrunkRss,
    /// Time of the sweeps after that expiry.
    ShrinkSeconds,
    /// Time of the longest of their steps.
    ShrinkStepUs,
    /// Share of the live swarms that a flood has evicted.
    FloodLost,
    /// Wall time per announce of a flood, over all threads.
    FloodNs,
}

/// The time of the first announce.
pub(crate) const START: u64 = 1_800_000_000;
/// The announce interval of 30 minutes: the peers of a full store are up to 30 minutes old.
pub(crate) const INTERVAL: u64 = 30 * 60;
/// The default lifetime of the stores.
pub(crate) const LIFETIME: u64 = 45 * 60;

/// Measures the store of `rows` that the plan names.
pub(crate) fn measure(rows: &[Implementation], plan: &Plan) -> Result<Row, Box<dyn Error>> {
    let implementation =
        catalog::find_in(rows, &plan.store).ok_or_else(|| format!("no store is called {}", plan.store))?;
    // Built first, so that its tables do not count as memory of the store.
    let workload = plan.population.workload(plan.seed);
    let config = RepositoryConfig::new(HashKey::from_bytes(u128::from(plan.seed).to_le_bytes()));
    let mut row = Row::new(plan, &workload);

    let empty = resident_bytes();
    // Memory of ended threads would count as memory of the store.
    let about_bytes = plan.metrics.iter().any(|metric| matches!(metric, Metric::Bytes | Metric::Shrink));
    let threads = if about_bytes { 1 } else { cores() as u64 };
    let build = || {
        let store = Subject::build(&implementation, &config)?;
        fill(&*store, &workload, threads);
        Ok::<_, ConfigError>(store)
    };
    let store = if plan.metrics.contains(&Metric::Bytes) {
        let store = build()?;
        if let Some((empty, full)) = empty.zip(resident_bytes()) {
            row.set_bytes(full.saturating_sub(empty));
        }
        store
    } else {
        build()?
    };
    let totals = store.totals();
    assert_eq!(
        (totals.swarms, totals.peers()),
        (workload.swarms(), workload.peers()),
        "a peer of the fill is missing"
    );

    for metric in &plan.metrics {
        match metric {
            Metric::Bytes => {}
            Metric::Refreshes => announcing::refreshes(&*store, &workload, plan, &mut row),
            Metric::Pass => forgetting::pass(&*store, &mut row),
            Metric::Steps => forgetting::steps(&*store, plan, &mut row),
            Metric::Time => announcing::time(&*store, &workload, plan, &mut row),
            Metric::Paced => announcing::paced(&*store, &workload, plan, &mut row),
            Metric::Tail => announcing::tail(&*store, &workload, plan, &mut row),
            Metric::Shrink => forgetting::shrink(&*store, &workload, empty, &mut row),
            Metric::Flood => flood::flood(implementation, &config, &workload, plan, &mut row)?,
        }
    }
    Ok(row)
}

/// Announces every peer of the workload once, with `threads` threads, over one announce interval.
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
    at_once(threads as usize, |n| part(n as u64));
}

/// Returns the result and the time of `work`.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.store, self.workload)?;
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        if self.batch > 1 { write!(f, ", batches of {}", self.batch) } else { Ok(()) }
    }
}

impl Row {
    /// Returns a row without numbers.
    fn new(plan: &Plan, workload: &Workload) -> Self {
        Self {
            store: plan.store.clone(),
            workload: plan.workload.clone(),
            swarms: workload.swarms(),
            peers: workload.peers(),
            threads: plan.threads,
            batch: plan.batch,
            fenced: plan.fenced,
            numbers: BTreeMap::new(),
        }
    }

    /// Returns a number; `None` if it was not measured.
    pub(crate) fn get(&self, number: Number) -> Option<f64> {
        self.numbers.get(&number).copied()
    }

    /// Sets a number, rounded to three places.
    pub(crate) fn set(&mut self, number: Number, value: f64) {
        self.numbers.insert(number, (value * 1e3).round() / 1e3);
    }

    /// Sets the growth of the resident set by a full store. For a single swarm, bytes per swarm have no
    /// meaning; for swarms of one peer, bytes per peer would equal bytes per swarm.
    fn set_bytes(&mut self, bytes: u64) {
        let (swarms, peers) = (self.swarms, self.peers);
        if swarms > 1 {
            self.set(Number::RssBytesPerSwarm, bytes as f64 / swarms as f64);
        }
        if peers > swarms || swarms == 1 {
            self.set(Number::RssBytesPerPeer, bytes as f64 / peers as f64);
        }
    }

    /// Returns one row for several rows of the same plan: the median of each number.
    pub(crate) fn median(rows: &[Self]) -> Self {
        let mut median = rows[0].clone();
        for (&number, value) in &mut median.numbers {
            *value = Spread::of(rows.iter().filter_map(|row| row.get(number))).expect("a row has it").median;
        }
        median
    }
}
