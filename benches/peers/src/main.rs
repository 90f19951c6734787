//! Swarm stores of other projects beside swarmkeep's: the same announces, in the same run, in turns.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
    num::NonZeroUsize,
    process::Command,
    thread,
    time::Duration,
};

use clap::Parser;

mod aquatic;
mod measure;
mod stores;

/// Swarm stores of other projects beside swarmkeep's: time and memory.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
struct Args {
    /// Take some seconds instead of some minutes.
    #[arg(long)]
    quick: bool,

    /// The seed of the workloads.
    #[arg(long, default_value = "1")]
    seed: u64,

    /// Print the bytes of one store's resident set for a number of swarms of one peer, or of peers in one
    /// swarm.
    #[arg(long, hide = true, num_args = 3, value_names = ["STORE", "SWARMS", "PEERS"])]
    memory_of: Option<Vec<String>>,
}

/// The sizes of the measurements.
struct Scale {
    swarms: u64,
    peers: u64,
    announces: usize,
    /// The longest time of one store's announces in a turn: some take milliseconds per announce.
    limit: Duration,
    turns: usize,
    memory: u64,
}

const FULL: Scale = Scale {
    swarms: 100_000,
    peers: 500_000,
    announces: 400_000,
    limit: Duration::from_secs(1),
    turns: 3,
    memory: 1_000_000,
};
const QUICK: Scale = Scale {
    swarms: 5_000,
    peers: 25_000,
    announces: 20_000,
    limit: Duration::from_millis(100),
    turns: 1,
    memory: 50_000,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(of) = &args.memory_of {
        let [store, swarms, peers] = of.as_slice() else { unreachable!("clap takes three") };
        let (_, build) = stores::ALL.iter().find(|(name, _)| name == store).ok_or("no such store")?;
        println!("{}", measure::resident(&*build(), args.seed, swarms.parse()?, peers.parse()?)?);
        return Ok(());
    }

    let scale = if args.quick { &QUICK } else { &FULL };
    let mut columns = time(scale, args.seed);
    columns.extend(memory(scale, args.seed)?);
    Ok(io::stdout().write_all(table(columns).as_bytes())?)
}

/// A title, and a cell for each store.
type Column = (String, Vec<String>);

/// Nanoseconds per announce: for each workload and thread count, the median of some turns in which all stores
/// take part.
fn time(scale: &Scale, seed: u64) -> Vec<Column> {
    let mut columns = Vec::new();
    for workload in measure::workloads(scale, seed) {
        let mut counts = vec![1, cores()];
        counts.dedup();
        for threads in counts {
            eprintln!("{}, {threads} threads", workload.name);
            let inputs = workload.inputs(threads, scale.announces);
            let mut turns = vec![Vec::new(); stores::ALL.len()];
            for _ in 0..scale.turns {
                for ((_, build), turns) in stores::ALL.iter().zip(&mut turns) {
                    turns.push(workload.time(&*build(), &inputs, scale.limit));
                }
            }
            let medians = turns.into_iter().map(|mut turns| {
                turns.sort_by(f64::total_cmp);
                format!("{:.0}", turns[turns.len() / 2])
            });
            columns.push((format!("{} ×{threads}", workload.name), medians.collect()));
        }
    }
    columns
}

/// Growth of the resident set, each in its own process: after another store, a process would reuse its pages.
fn memory(scale: &Scale, seed: u64) -> Result<Vec<Column>, Box<dyn Error>> {
    let bytes = |store: &str, swarms: u64, peers: u64| -> Result<String, Box<dyn Error>> {
        let [swarms, peers, seed] = [swarms, peers, seed].map(|number| number.to_string());
        let child = Command::new(env::current_exe()?)
            .args(["--seed", &seed, "--memory-of", store, &swarms, &peers])
            .output()?;
        if !child.status.success() {
            return Err(format!("{store}: {}", String::from_utf8_lossy(&child.stderr)).into());
        }
        let bytes: u64 = String::from_utf8(child.stdout)?.trim().parse()?;
        Ok(format!("{:.1}", bytes as f64 / scale.memory as f64))
    };
    let mut columns = Vec::new();
    for (title, swarms, peers) in
        [("RSS bytes per swarm", scale.memory, 1), ("RSS bytes per peer", 1, scale.memory)]
    {
        eprintln!("{title}");
        let cells = stores::ALL.iter().map(|(store, _)| bytes(store, swarms, peers));
        columns.push((title.to_owned(), cells.collect::<Result<_, _>>()?));
    }
    Ok(columns)
}

fn table(mut columns: Vec<Column>) -> String {
    let names: Vec<_> = stores::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut lines = vec![String::new(); names.len() + 2];
    columns.insert(0, ("store".to_owned(), names));
    for (title, cells) in columns {
        let width = cells.iter().chain([&title]).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let dashes = "-".repeat(width);
        for (line, cell) in lines.iter_mut().zip([&title, &dashes].into_iter().chain(&cells)) {
            *line += &format!("| {cell:<width$} ");
        }
    }
    let text: String = lines.into_iter().map(|line| line + "|\n").collect();
    text + "\nNanoseconds per announce and number of threads.\n"
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
