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
use serde_json::{Value, json};

use self::stores::Store;

mod aquatic;
mod measure;
mod stores;

/// Swarm stores of other projects beside swarmkeep's: time, memory, and announces lost to races.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
struct Args {
    /// Take some seconds instead of some minutes.
    #[arg(long)]
    quick: bool,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,

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
    races: usize,
    memory: u64,
}

const FULL: Scale = Scale {
    swarms: 100_000,
    peers: 500_000,
    announces: 400_000,
    limit: Duration::from_secs(1),
    turns: 3,
    races: 200_000,
    memory: 1_000_000,
};
const QUICK: Scale = Scale {
    swarms: 5_000,
    peers: 25_000,
    announces: 20_000,
    limit: Duration::from_millis(100),
    turns: 1,
    races: 20_000,
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
    let report = json!({
        "cores": cores(),
        "seed": args.seed,
        "time": time(scale, args.seed),
        "lost": lost(scale, args.seed),
        "memory": memory(scale, args.seed)?,
    });
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { tables(&report) };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Nanoseconds per announce: for each workload and thread count, the median of some turns in which all stores
/// take part.
fn time(scale: &Scale, seed: u64) -> Vec<Value> {
    let mut rows = Vec::new();
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
            for ((store, _), mut turns) in stores::ALL.iter().zip(turns) {
                turns.sort_by(f64::total_cmp);
                let median = (turns[turns.len() / 2] * 10.0).round() / 10.0;
                rows.push(json!({
                    "store": store, "workload": workload.name, "threads": threads, "ns_per_announce": median,
                }));
            }
        }
    }
    rows
}

/// Announces that were acknowledged and then not there.
fn lost(scale: &Scale, seed: u64) -> Vec<Value> {
    type Race = fn(&dyn Store, u64, usize) -> measure::LostAnnounces;
    let races: [(&str, Race, usize); 2] = [
        ("two first announces", measure::first_announces, 1),
        ("a sweep of empty swarms", measure::sweeps, 5),
    ];
    let mut rows = Vec::new();
    for (race, run, times) in races {
        eprintln!("lost to {race}");
        for (store, build) in stores::ALL {
            let lost = run(&*build(), seed, times * scale.races);
            rows.push(json!({
                "store": store, "race": race, "acknowledged": lost.acknowledged, "lost": lost.lost,
            }));
        }
    }
    rows
}

/// Growth of the resident set, each in its own process: after another store, a process would reuse its pages.
fn memory(scale: &Scale, seed: u64) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for (store, _) in stores::ALL {
        eprintln!("memory of {store}");
        let bytes = |swarms: u64, peers: u64| -> Result<f64, Box<dyn Error>> {
            let [swarms, peers, seed] = [swarms, peers, seed].map(|number| number.to_string());
            let child = Command::new(env::current_exe()?)
                .args(["--seed", &seed, "--memory-of", store, &swarms, &peers])
                .output()?;
            if !child.status.success() {
                return Err(format!("{store}: {}", String::from_utf8_lossy(&child.stderr)).into());
            }
            let bytes: u64 = String::from_utf8(child.stdout)?.trim().parse()?;
            Ok((bytes as f64 / scale.memory as f64 * 10.0).round() / 10.0)
        };
        rows.push(json!({
            "store": store,
            "rss_bytes_per_swarm": bytes(scale.memory, 1)?,
            "rss_bytes_per_peer": bytes(1, scale.memory)?,
        }));
    }
    Ok(rows)
}

fn tables(report: &Value) -> String {
    let mut columns: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |title: String, cell: String| match columns.iter_mut().find(|(known, _)| *known == title) {
        Some((_, cells)) => cells.push(cell),
        None => columns.push((title, vec![cell])),
    };
    let rows = |key: &str| report[key].as_array().expect("made above").clone();
    for row in rows("time") {
        add(
            format!("{} ×{}", row["workload"].as_str().expect("a name"), row["threads"]),
            format!("{:.0}", row["ns_per_announce"].as_f64().expect("a number")),
        );
    }
    for row in rows("memory") {
        add("RSS bytes per swarm".into(), row["rss_bytes_per_swarm"].to_string());
        add("RSS bytes per peer".into(), row["rss_bytes_per_peer"].to_string());
    }
    for row in rows("lost") {
        let race = row["race"].as_str().expect("a name");
        add(format!("of {}, lost to {race}", row["acknowledged"]), row["lost"].to_string());
    }

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
    text + "\nNanoseconds per announce and number of threads; announces that were acknowledged, and lost of those.\n"
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
