//! The table of figures: the numbers that describe one store, on the populations that show them.

use serde::Serialize;
use swarmkeep::catalog::{self, Implementation};

use super::{
    report::{Findings, stores},
    row::{Metric, Number, Plan, Row},
    work::Population,
};
use crate::{
    origin::Origin,
    tables::{Spread, markdown, significant},
};

/// One line of the table.
struct Figure {
    /// The measured quantity, with its unit.
    what: &'static str,
    on: &'static Run,
    value: Measure,
}

/// The measurements of one process, for one line or several.
struct Run {
    name: &'static str,
    population: Population,
    threads: usize,
    batch: usize,
    fenced: bool,
    metrics: &'static [Metric],
}

/// The way to compute the number of a line from a row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    Of(Number),
    /// The time per announce and thread.
    NsPerThread,
    /// The slowest announces during a paced sweep, relative to those without a sweep.
    PacedRatio,
    ShrunkPercent,
    FloodPercent,
}

use Measure::{FloodPercent, NsPerThread, Of, PacedRatio, ShrunkPercent};

const BATCH: usize = 32;

impl Run {
    const fn new(name: &'static str, population: Population, metrics: &'static [Metric]) -> Self {
        Self { name, population, threads: 1, batch: BATCH, fenced: false, metrics }
    }

    const fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Measures one announce at a time. The fence keeps the processor from beginning the next announce while
    /// this one waits for memory, as if each came in a system call of its own.
    const fn one_at_a_time(mut self) -> Self {
        (self.batch, self.fenced) = (1, true);
        self
    }
}

const TEN_THOUSAND: Run = Run::new("10 k × 1", Population::ipv4(10_000, 1), &[Metric::Bytes]);

const MILLION: Population = Population::ipv4(1_000_000, 1);
const ONE_PEER: Run = Run::new("1 M × 1", MILLION, &[Metric::Bytes, Metric::Time]);
const ONE_PEER_BOTH: Run = Run::new("1 M × 1", MILLION, &[Metric::Time]).threads(2);
const ONE_BY_ONE: Run = Run::new("1 M × 1", MILLION, &[Metric::Time]).one_at_a_time();
const ONE_BY_ONE_BOTH: Run = ONE_BY_ONE.threads(2);
const FLOODED: Run = Run::new("flood", MILLION, &[Metric::Flood]).threads(2);

const TEN_MILLION: Run =
    Run::new("10 M × 1", Population::ipv4(10_000_000, 1), &[Metric::Bytes, Metric::Time]);
const TWO_EACH: Run =
    Run::new("10 M × 2", Population::ipv4(10_000_000, 2), &[Metric::Pass, Metric::Steps, Metric::Paced])
        .threads(2);
const SHRINKING: Run = Run::new("10 M to 100 k", Population::ipv4(10_000_000, 1), &[Metric::Shrink]);

const TEN_EACH: Run = Run::new("100 k × 10", Population::ipv4(100_000, 10), &[Metric::Bytes]);

const ONE_SWARM: Population = Population::ipv4(1, 2_000_000);
const LARGE_BOTH: Run =
    Run::new("1 × 2 M IPv4", ONE_SWARM, &[Metric::Bytes, Metric::Steps, Metric::Time]).threads(2);
const LARGE_ONE_BY_ONE: Run = Run::new("1 × 2 M IPv4", ONE_SWARM, &[Metric::Time]).one_at_a_time();
const LARGE_ONE_BY_ONE_BOTH: Run = LARGE_ONE_BY_ONE.threads(2);
const LARGE_V6: Run =
    Run::new("1 × 2 M IPv6", Population::Uniform { swarms: 1, each: 2_000_000, ipv6: 1.0 }, &[Metric::Bytes]);

const MIXED: Population = Population::Zipf { swarms: 1_000_000, peers: 4_530_000 };
const ZIPF: Run = Run::new("Zipf", MIXED, &[Metric::Bytes, Metric::Refreshes, Metric::Time]);
const ZIPF_ONE_BY_ONE: Run = Run::new("Zipf", MIXED, &[Metric::Time]).one_at_a_time();
const ZIPF_ONE_BY_ONE_BOTH: Run = ZIPF_ONE_BY_ONE.threads(2);

const FIGURES: &[Figure] = &[
    figure("10 k swarms × 1 IPv4 peer: RSS, bytes per swarm", &TEN_THOUSAND, Of(Number::RssBytesPerSwarm)),
    figure("1 M swarms × 1 IPv4 peer: RSS, bytes per swarm", &ONE_PEER, Of(Number::RssBytesPerSwarm)),
    figure("10 M swarms × 1 IPv4 peer: RSS, bytes per swarm", &TEN_MILLION, Of(Number::RssBytesPerSwarm)),
    figure("1 swarm × 2 M IPv4 peers: RSS, bytes per peer", &LARGE_BOTH, Of(Number::RssBytesPerPeer)),
    figure("1 swarm × 2 M IPv6 peers: RSS, bytes per peer", &LARGE_V6, Of(Number::RssBytesPerPeer)),
    figure("100 k swarms × 10 IPv4 peers: RSS, bytes per peer", &TEN_EACH, Of(Number::RssBytesPerPeer)),
    figure("Zipf: RSS, bytes per swarm", &ZIPF, Of(Number::RssBytesPerSwarm)),
    figure("announce, 1 M × 1, batches, 1 thread: ns", &ONE_PEER, NsPerThread),
    figure("announce, 1 M × 1, batches, 2 threads: ns per thread", &ONE_PEER_BOTH, NsPerThread),
    figure("announce, 1 M × 1, one at a time, 1 thread: ns", &ONE_BY_ONE, NsPerThread),
    figure("announce, 1 M × 1, one at a time, 2 threads: ns per thread", &ONE_BY_ONE_BOTH, NsPerThread),
    figure("announce, 10 M × 1, batches: ns", &TEN_MILLION, NsPerThread),
    figure("announce, Zipf, batches: ns", &ZIPF, NsPerThread),
    figure("announce, Zipf, one at a time, 1 thread: ns", &ZIPF_ONE_BY_ONE, NsPerThread),
    figure("announce, Zipf, one at a time, 2 threads: ns per thread", &ZIPF_ONE_BY_ONE_BOTH, NsPerThread),
    figure("announce, 1 × 2 M, batches, 2 threads: ns per thread", &LARGE_BOTH, NsPerThread),
    figure("announce, 1 × 2 M, one at a time, 1 thread: ns", &LARGE_ONE_BY_ONE, NsPerThread),
    figure("announce, 1 × 2 M, one at a time, 2 threads: ns per thread", &LARGE_ONE_BY_ONE_BOTH, NsPerThread),
    figure("allocations of a refresh, Zipf", &ZIPF, Of(Number::AllocationsPerRefresh)),
    figure("step of a sweep of 10 M swarms: p99.99, µs", &TWO_EACH, Of(Number::StepP9999Us)),
    figure("step of a sweep of 10 M swarms: longest, µs", &TWO_EACH, Of(Number::StepMaxUs)),
    figure("step of a sweep of a 2 M-peer swarm: p99.99, µs", &LARGE_BOTH, Of(Number::StepP9999Us)),
    figure("step of a sweep of a 2 M-peer swarm: longest, µs", &LARGE_BOTH, Of(Number::StepMaxUs)),
    figure("announce p99.9 during a paced sweep, against without: ×", &TWO_EACH, PacedRatio),
    figure("sweep of 10 M swarms, 20 M peers: ms", &TWO_EACH, Of(Number::PassMs)),
    figure("RSS after 10 M swarms fell to 100 k: % of the peak", &SHRINKING, ShrunkPercent),
    figure("sweeps until then: s", &SHRINKING, Of(Number::ShrinkSeconds)),
    figure("longest step of these: µs", &SHRINKING, Of(Number::ShrinkStepUs)),
    figure(
        "swarms with two peers or one that came back, lost to a flood of 100 made-up ones for each: %",
        &FLOODED,
        FloodPercent,
    ),
    figure("announce of that flood, batches, 2 threads: ns", &FLOODED, Of(Number::FloodNs)),
];

const fn figure(what: &'static str, on: &'static Run, value: Measure) -> Figure {
    Figure { what, on, value }
}

/// The divisor of the populations of a quick run; ten times it for the flood, which adds 100 swarms for each.
const QUICK: u32 = 100;

/// Returns whether a store is measured on `swarms` swarms: most stores take gigabytes and minutes for ten
/// million.
pub(crate) fn fits(store: &Implementation, swarms: u64) -> bool {
    swarms < 10_000_000 || store.name == catalog::ALL[0].name
}

/// Returns a plan for each run and store.
pub(crate) fn plans(stores: &[&Implementation], quick: bool, seconds: f64, seed: u64) -> Vec<Plan> {
    let mut runs: Vec<&Run> = Vec::new();
    for figure in FIGURES {
        if !runs.iter().any(|run| run.is(figure.on)) {
            runs.push(figure.on);
        }
    }
    let divisor = |run: &Run| if run.is(&FLOODED) { 10 * QUICK } else { QUICK };
    let plan = |run: &Run, store: &Implementation| Plan {
        store: store.name.to_owned(),
        workload: run.name.to_owned(),
        population: if quick { run.population.divided_by(divisor(run)) } else { run.population },
        threads: run.threads,
        batch: run.batch,
        fenced: run.fenced,
        seconds,
        seed,
        metrics: run.metrics.to_vec(),
    };
    let fit = |run: &Run, store: &Implementation| {
        fits(store, run.population.workload(0).swarms()).then(|| plan(run, store))
    };
    runs.into_iter().flat_map(|run| stores.iter().filter_map(move |store| fit(run, store))).collect()
}

impl Run {
    fn is(&self, other: &Self) -> bool {
        (self.name, self.threads, self.batch) == (other.name, other.threads, other.batch)
    }

    fn made(&self, row: &Row) -> bool {
        (self.name, self.threads, self.batch) == (&*row.workload, row.threads, row.batch)
    }
}

impl Measure {
    fn of(self, row: &Row) -> Option<f64> {
        match self {
            Of(number) => row.get(number),
            NsPerThread => Some(row.get(Number::NsPerAnnounce)? * row.threads as f64),
            PacedRatio => Some(row.get(Number::PacedP999Ns)? / row.get(Number::QuietP999Ns)?),
            ShrunkPercent => Some(row.get(Number::ShrunkRss)? * 100.0),
            FloodPercent => Some(row.get(Number::FloodLost)? * 100.0),
        }
    }
}

/// The table, and all its rows.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    origin: Origin,
    /// The divisor by which the populations are smaller than their names.
    divided_by: u32,
    figures: Vec<FigureRow>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct FigureRow {
    what: &'static str,
    /// The part of the number that the measuring itself takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    harness: Option<f64>,
    stores: Vec<FigureCell>,
}

#[derive(Debug, Serialize)]
struct FigureCell {
    store: String,
    #[serde(flatten)]
    spread: Spread,
}

impl Report {
    pub(crate) fn new(origin: Origin, quick: bool, rows: Vec<Row>) -> Self {
        let figures = FIGURES.iter().map(|figure| FigureRow::new(figure, &rows)).collect();
        Self { origin, divided_by: if quick { QUICK } else { 1 }, figures, rows }
    }

    /// Returns a table with a line for each figure and a column for each store.
    fn table(&self) -> String {
        let column = |title: &str, cell: &dyn Fn(&FigureRow) -> String| {
            [title.to_owned()].into_iter().chain(self.figures.iter().map(cell)).collect::<Vec<_>>()
        };
        let mut columns = vec![column("", &|line| line.what.to_owned())];
        for store in stores(&self.rows) {
            columns.push(column(&format!("`{store}`"), &|line| line.cell(store)));
        }
        columns.push(column("harness", &|line| line.harness.map_or(String::new(), significant)));
        markdown(&columns)
    }
}

impl Findings for Report {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    fn text(&self) -> String {
        let smaller = match self.divided_by {
            1 => String::new(),
            divisor => format!(" All sizes are divided by {divisor}."),
        };
        format!("{}\nMeasured by {}.{smaller}\n", self.table(), self.origin)
    }
}

impl FigureRow {
    fn new(figure: &Figure, rows: &[Row]) -> Self {
        let mine: Vec<_> = rows.iter().filter(|row| figure.on.made(row)).collect();
        let harness = |row: &Row| Some(row.get(Number::HarnessNs)? * row.threads as f64);
        let harness = Spread::of(mine.iter().filter_map(|row| harness(row)));
        let cell = |store: &str| {
            let numbers = mine.iter().filter(|row| row.store == store).filter_map(|row| figure.value.of(row));
            Some(FigureCell { store: store.to_owned(), spread: Spread::of(numbers)? })
        };
        Self {
            what: figure.what,
            harness: harness.filter(|_| figure.value == NsPerThread).map(|spread| spread.median),
            stores: stores(rows).into_iter().filter_map(cell).collect(),
        }
    }

    fn cell(&self, store: &str) -> String {
        let cell = self.stores.iter().find(|cell| cell.store == store);
        cell.map_or(String::new(), |cell| cell.spread.to_string())
    }
}
