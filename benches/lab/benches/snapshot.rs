//! Snapshots: how fast stores are read out, written and loaded, how large they are, and how long announces
//! take meanwhile.
//!
//! `cargo bench -p swarmkeep-lab --bench snapshot -- --swarms 10000000 --turns 3` for the table of
//! `docs/reports/packed-store.md`; `--only packed` for one store. Criterion has no place for a run that takes
//! seconds and a file, so this prints its own table of medians.

use std::{
    error::Error,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use swarmkeep::{
    Budget, CompactV4, CompactV6, Export, HashKey, PeerBuffer, RepositoryConfig, SplitMix64,
    TorrentRepository,
    catalog::{self, Repository},
};
use swarmkeep_benches::NOW;
use swarmkeep_lab::{Arguments, median};
use swarmkeep_state::{Directory, Pace, State};
use swarmkeep_workload::Workload;

const STORES: [&str; 4] =
    ["packed", "btreemap-rwlock-parking-lot", "skipmap-mutex-parking-lot", "dashmap-mutex-parking-lot"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::of_bench();
    let swarms: u64 = arguments.number("--swarms", 2_000, 1_000_000);
    let turns = arguments.number("--turns", 1, 5);
    let announcing = Duration::from_millis(if arguments.test { 20 } else { 2_000 });
    let workloads = [
        (format!("{swarms} × 1"), Workload::uniform(1, swarms, 1)),
        (format!("{} × {} by Zipf", swarms / 10, swarms / 2), Workload::zipf(1, swarms / 10, swarms / 2)),
        (format!("1 × {}", swarms / 5), Workload::uniform(1, 1, (swarms / 5) as u32)),
    ];
    println!(
        "| store | swarms × peers | bytes of snapshot a swarm | of memory | GB/s read out | to a synced file | s to load | p99.9 of an announce, µs | while a snapshot is taken |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for name in STORES.into_iter().filter(|name| arguments.after("--only").is_none_or(|only| only == *name)) {
        for (population, workload) in &workloads {
            Row::measure(name, workload, turns, announcing)?.print(name, population);
        }
    }
    Ok(())
}

fn build(name: &str, key: u8) -> Repository {
    let row = catalog::find(name).expect("in the catalog");
    row.build(&RepositoryConfig::new(HashKey::from_bytes([key; 16]))).expect("no limits are asked for")
}

fn synchronous(repository: &Repository) -> &Arc<dyn TorrentRepository> {
    repository.as_sync().expect("measured stores are synchronous")
}

#[derive(Default)]
struct Row {
    swarms: u64,
    bytes: u64,
    memory: u64,
    read_out: Vec<f64>,
    written: Vec<f64>,
    loaded: Vec<f64>,
    slowest: [Vec<f64>; 2],
}

impl Row {
    fn measure(
        name: &str,
        workload: &Workload,
        turns: usize,
        announcing: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        let repository = build(name, 1);
        let store = synchronous(&repository);
        let mut rng = SplitMix64::new(1);
        for announce in workload.fill() {
            store.announce(&announce.want(0), NOW, &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
        }
        let (swarms, memory) = (store.totals().swarms, store.memory().bytes);
        let mut row = Self { swarms, memory, ..Self::default() };
        for _ in 0..turns {
            let (clock, mut bytes, mut export) = (Instant::now(), 0, Export::new());
            while !export.is_complete() {
                store.export(&mut export, NOW, Budget::peers(16_384));
                bytes += black_box(export.records()).as_bytes().len();
            }
            row.read_out.push(bytes as f64 / 1e9 / clock.elapsed().as_secs_f64());

            let folder = tempfile::tempdir()?;
            let directory = || Directory::open(folder.path()).map(Arc::new);
            let state = State::new(repository.clone(), Pace::default());
            state.open(directory()?, None, Arc::new(|| NOW))?;
            state.settle()?;
            let clock = Instant::now();
            row.bytes = state.snapshot()?.bytes;
            row.written.push(row.bytes as f64 / 1e9 / clock.elapsed().as_secs_f64());
            drop(state);

            let other = build(name, 2);
            let state = State::new(other.clone(), Pace::default());
            let loaded = state.open(directory()?, None, Arc::new(|| NOW))?;
            row.loaded.push(loaded.took.as_secs_f64());
            let [there, here] = [synchronous(&other), store].map(|store| store.totals());
            assert_eq!((there.v4, there.v6), (here.v4, here.v6));
            drop((state, other));

            row.slowest[0].push(slowest(&**store, workload, announcing));
            let folder = tempfile::tempdir()?;
            let directory = Arc::new(Directory::open(folder.path())?);
            let state = State::new(repository.clone(), Pace::default());
            state.open(directory, Some(Duration::from_millis(1)), Arc::new(|| NOW))?;
            state.settle()?;
            row.slowest[1].push(slowest(&**store, workload, announcing));
        }
        Ok(row)
    }

    fn print(self, name: &str, population: &str) {
        let each = |bytes: u64| bytes as f64 / self.swarms as f64;
        let median = |numbers: &[f64]| median(numbers, |number| *number);
        let [alone, beside] = self.slowest.each_ref().map(|numbers| median(numbers));
        println!(
            "| {name} | {population} | {:.1} | {:.1} | {:.2} | {:.2} | {:.3} | {alone:.2} | {beside:.2} |",
            each(self.bytes),
            each(self.memory),
            median(&self.read_out),
            median(&self.written),
            median(&self.loaded),
        );
    }
}

/// The 99.9th percentile of the announces of one thread, in µs.
fn slowest(store: &dyn TorrentRepository, workload: &Workload, during: Duration) -> f64 {
    let mut room = [0; 50 * (CompactV4::LEN + CompactV6::LEN)];
    let (mut rng, mut took) = (SplitMix64::new(2), Vec::with_capacity(1 << 22));
    let began = Instant::now();
    for announce in workload.announces(0) {
        let (v4, v6) = room.split_at_mut(50 * CompactV4::LEN);
        let start = Instant::now();
        black_box(store.announce(&announce, NOW, &mut rng, &mut PeerBuffer::new(v4, v6)));
        took.push(start.elapsed().as_nanos() as u32);
        if start - began > during {
            break;
        }
    }
    let nth = took.len() * 999 / 1000;
    f64::from(*took.select_nth_unstable(nth).1) / 1e3
}
