//! Snapshots: how fast stores are read out, written, looked at and loaded, how large they are, and what announces feel of it.
//!
//! `cargo bench -p swarmkeep-benches --bench snapshot -- --swarms 10000000` for the table of `docs/snapshot-format.md`; `--only packed`
//! for one store. Criterion has no place for a run that takes seconds and a file, so this prints its own table: medians of `--turns 5`.

use std::{
    env,
    error::Error,
    fs::File,
    io::{BufReader, Cursor, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Budget, Export, HashKey, PeerBuffer, Records, RepositoryConfig, SplitMix64, Timestamp, TorrentRepository,
    catalog, snapshot,
};
use swarmkeep_benches::NOW;
use swarmkeep_conformance::Subject;
use swarmkeep_workload::Workload;

/// Visits of one step: as a tracker takes its snapshots.
const STEP: Budget = Budget::peers(16_384);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    // As Criterion has it: a test of the bench, not a measurement.
    let test = !arguments.iter().any(|argument| argument == "--bench")
        || arguments.iter().any(|argument| argument == "--test");
    let number = |name: &str, otherwise: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let only =
        arguments.iter().position(|argument| argument == "--only").and_then(|at| arguments.get(at + 1));
    let swarms = number("--swarms", if test { 2_000 } else { 1_000_000 });
    let turns = number("--turns", if test { 1 } else { 5 }) as usize;
    let workloads = [
        (format!("{swarms} × 1"), Workload::uniform(1, swarms, 1)),
        (format!("Zipf {} in {}", swarms / 2, swarms / 10), Workload::zipf(1, swarms / 10, swarms / 2)),
        (format!("1 × {}", swarms / 5), Workload::uniform(1, 1, (swarms / 5) as u32)),
    ];
    println!(
        "| store | population | bytes a swarm | GB/s read out | GB/s to a synced file | s to look at | s to load | store before | after |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for name in
        ["packed", "btreemap-rwlock-parking-lot", "skipmap-mutex-parking-lot", "dashmap-mutex-parking-lot"]
    {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        for (population, workload) in &workloads {
            let row = Row::measure(name, workload, turns)?;
            row.print(name, population);
        }
    }
    Ok(())
}

fn build(name: &str, key: u8) -> Box<dyn TorrentRepository> {
    let row = catalog::find(name).expect("in the catalog");
    row.build_boxed(&RepositoryConfig::new(HashKey::from_bytes([key; 16])))
}

trait Boxed {
    fn build_boxed(&self, config: &RepositoryConfig) -> Box<dyn TorrentRepository>;
}

impl Boxed for &'static catalog::Implementation {
    fn build_boxed(&self, config: &RepositoryConfig) -> Box<dyn TorrentRepository> {
        Subject::build(self, config).expect("no limits are asked for")
    }
}

/// Takes a snapshot as fast as it goes.
fn take(store: &dyn TorrentRepository, out: impl Write) -> Result<snapshot::Summary, Box<dyn Error>> {
    let mut writer = snapshot::Writer::new(out, [7; 16], NOW)?;
    let mut export = Export::new();
    while !export.is_complete() {
        store.export(&mut export, NOW, STEP);
        writer.write(export.records())?;
    }
    let (mut out, summary) = writer.finish()?;
    out.flush()?;
    Ok(summary)
}

#[derive(Default)]
struct Row {
    swarms: u64,
    bytes: u64,
    read_out: Vec<f64>,
    written: Vec<f64>,
    looked_at: Vec<f64>,
    loaded: Vec<f64>,
    before: u64,
    after: u64,
    announces: [Vec<Duration>; 2],
}

impl Row {
    fn measure(name: &str, workload: &Workload, turns: usize) -> Result<Self, Box<dyn Error>> {
        let store = build(name, 1);
        let mut rng = SplitMix64::new(1);
        for announce in workload.fill() {
            store.announce(&announce.want(0), NOW, &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
        }
        let mut row = Self { swarms: store.totals().swarms, before: store.memory().bytes, ..Self::default() };
        let folder = tempfile::tempdir()?;
        for _ in 0..turns {
            let mut bytes = Vec::with_capacity(1 << 30);
            bytes.resize(1 << 30, 1);
            bytes.clear();
            let clock = Instant::now();
            let summary = take(&*store, &mut bytes)?;
            let gigabytes = summary.bytes as f64 / 1e9;
            row.read_out.push(gigabytes / clock.elapsed().as_secs_f64());
            row.bytes = summary.bytes;
            drop(bytes);

            let path = folder.path().join("snapshot");
            let clock = Instant::now();
            let file = File::create(&path)?;
            take(&*store, &file)?;
            file.sync_all()?;
            row.written.push(gigabytes / clock.elapsed().as_secs_f64());

            let clock = Instant::now();
            let mut reader = snapshot::Reader::new(File::open(&path)?)?;
            row.looked_at.push(clock.elapsed().as_secs_f64());
            let other = build(name, 2);
            let mut records = Records::new(NOW);
            while reader.next(&mut records, NOW)? {
                other.import(&records, NOW);
            }
            row.loaded.push(clock.elapsed().as_secs_f64());
            row.after = other.memory().bytes;
            assert_eq!(other.totals(), store.totals());
        }
        Ok(row)
    }

    fn print(self, name: &str, population: &str) {
        let each = |bytes: u64| bytes as f64 / self.swarms as f64;
        println!(
            "| {name} | {population} | {:.1} | {:.2} | {:.2} | {:.3} | {:.3} | {:.1} | {:.1} |",
            each(self.bytes),
            median(self.read_out),
            median(self.written),
            median(self.looked_at),
            median(self.loaded),
            self.before as f64 / self.swarms as f64,
            self.after as f64 / self.swarms as f64,
        );
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
