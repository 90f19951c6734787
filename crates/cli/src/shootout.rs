//! `swarmkeep shootout`: every store on the same work, each row in a process of its own.

use std::{
    env,
    error::Error,
    fs,
    io::{self, Write},
    num::NonZeroUsize,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use indicatif::{ProgressBar, ProgressStyle};
use swarmkeep::catalog::{self, Implementation};

use self::{
    report::{Report, Row},
    row::{Metric, Plan},
    work::{Kind, Size},
};

mod charts;
mod report;
mod row;
mod work;

/// What stands for each map family by default. On `zipf` and `hot` with all cores no choice of locks within a family
/// stands out of the noise, except that tokio's cost more: so one and the same lock for all, to compare the maps. A family
/// without an entry is shown whole.
const FASTEST: [&str; 3] = [
    "btreemap-rwlock-parking-lot-mutex-parking-lot",
    "skipmap-mutex-parking-lot",
    "dashmap-mutex-parking-lot",
];

const EXAMPLES: &str = "\
Examples:
  swarmkeep shootout                                packed and the fastest of each map family
  swarmkeep shootout --quick --only packed          a first impression of one store
  swarmkeep shootout --all --json > shootout.json   every store, for scripts
  swarmkeep shootout --memory --swarms 10000000     bytes only, ten million swarms
  swarmkeep shootout --readme README.md --svg docs  rewrite the README's table and draw charts

Workloads:
  one-peer    SWARMS swarms of one peer: a tracker's long tail
  one-swarm   one swarm of SWARMS peers
  zipf        SWARMS swarms and PEERS peers, sizes by Zipf's law, all peers announcing as often
  hot         nine announces in ten to one swarm of 1,000 peers, others to SWARMS / 10 of one
In all of them 10 % of the peers have IPv6 and 50 % are seeders; 5 % of the announces are `stopped`,
1 % `completed`; 50 peers are wanted.

Columns:
  ns          wall time of an announce that updates, counts and selects, over all threads (so the
              inverse of the throughput); the median of rounds of 16,384 announces a thread
  p99.9       of single announces while another thread sweeps without a pause; together they are
              as many threads as there are cores
  live, RSS   bytes asked of the allocator, and growth of the resident set, while an empty store is
              filled";

/// Compare the swarm stores: time, tail latency and memory.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "See --help for examples, workloads and columns.")]
pub(crate) struct Args {
    /// Print the names of all stores, one a line.
    #[arg(long, exclusive = true)]
    list: bool,

    /// Measure only these stores.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = store_names())]
    only: Vec<&'static Implementation>,

    /// Measure every store in the catalog.
    #[arg(long, conflicts_with = "only")]
    all: bool,

    /// Only these workloads.
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    workload: Vec<Kind>,

    /// Measure bytes only.
    #[arg(long)]
    memory: bool,

    /// Take at most half a minute: small stores, short measurements. Shows that it works, not how well.
    #[arg(long)]
    quick: bool,

    /// Numbers of threads to announce with [default: 1 and as many as there are cores].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,

    /// Announces a call; more than one go through `announce_batch`.
    #[arg(long, value_name = "N", default_value = "1")]
    batch: NonZeroUsize,

    /// Swarms of `one-peer` and `zipf`, peers of `one-swarm` [default: 1000000, with --quick 20000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    swarms: Option<u32>,

    /// Peers of `zipf` [default: five for each swarm].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    peers: Option<u64>,

    /// Seconds that each number is measured for [default: 1, with --quick less].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,

    /// What the workloads and the stores' hash keys are drawn from.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,

    /// Draw charts into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Rewrite the table between `<!-- shootout:begin -->` and `<!-- shootout:end -->` in this file.
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
}

/// Measure one row of a shootout in this process.
#[derive(Debug, clap::Args)]
pub(crate) struct RowArgs {
    /// What to measure, as JSON.
    plan: String,
}

/// Runs the whole comparison and prints it.
pub(crate) fn run(args: Args) -> Result<(), Box<dyn Error>> {
    if args.list {
        let names: String = catalog::ALL.iter().map(|store| format!("{}\n", store.name)).collect();
        return Ok(io::stdout().write_all(names.as_bytes())?);
    }
    // A file that cannot be rewritten is better known before the measuring than after it.
    let readme = args
        .readme
        .as_ref()
        .map(|path| Ok::<_, Box<dyn Error>>((path, report::Marked::read(path)?)))
        .transpose()?;

    let plans = args.plans().unwrap_or_else(|message| crate::refuse(message));
    let bar = ProgressBar::new(plans.len() as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {msg}").expect("a valid template"),
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut rows = Vec::with_capacity(plans.len());
    for plan in &plans {
        bar.set_message(plan.to_string());
        rows.push(in_a_fresh_process(plan)?);
        bar.inc(1);
    }
    bar.finish_and_clear();

    let report = Report::new(args.seed, rows);
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.tables(&plans) };
    io::stdout().write_all(text.as_bytes())?;
    if let Some((path, marked)) = readme {
        fs::write(path, marked.with(&report.summary()))?;
    }
    if let Some(directory) = &args.svg {
        fs::create_dir_all(directory)?;
        charts::draw(&report, directory)?;
    }
    Ok(())
}

/// Measures one row and prints it for the process that asked.
pub(crate) fn run_row(args: RowArgs) -> Result<(), Box<dyn Error>> {
    let plan: Plan = serde_json::from_str(&args.plan)?;
    let row = row::measure(&plan)?;
    println!("{}", serde_json::to_string(&row)?);
    Ok(())
}

impl Args {
    /// The rows to measure, in an order that puts next to each other what is compared.
    fn plans(&self) -> Result<Vec<Plan>, String> {
        let size = self.size()?;
        let threads = self.thread_counts();
        let mut plans = Vec::new();
        for kind in self.kinds() {
            for (n, &count) in threads.iter().enumerate() {
                let mut metrics = Vec::new();
                // Bytes do not depend on how many threads announce afterwards.
                if n == 0 && kind.tells_bytes() {
                    metrics.push(Metric::Bytes);
                }
                if !self.memory {
                    metrics.push(Metric::Time);
                }
                // Tails show where threads meet.
                if !self.memory && n + 1 == threads.len() {
                    metrics.push(Metric::Tail);
                }
                if metrics.is_empty() {
                    continue;
                }
                plans.extend(self.stores().into_iter().map(|store| Plan {
                    store: store.name.to_owned(),
                    workload: kind,
                    size,
                    threads: count,
                    batch: self.batch.get(),
                    seconds: 0.0,
                    seed: self.seed,
                    metrics: metrics.clone(),
                }));
            }
        }
        let timed =
            plans.iter().flat_map(|plan| &plan.metrics).filter(|&&metric| metric != Metric::Bytes).count();
        let seconds = self.seconds.unwrap_or(if self.quick { (6.0 / timed as f64).min(0.2) } else { 1.0 });
        for plan in &mut plans {
            plan.seconds = seconds;
        }
        Ok(plans)
    }

    fn stores(&self) -> Vec<&'static Implementation> {
        let chosen = |store: &&Implementation| {
            let mut family = catalog::ALL.iter().filter(|other| other.family == store.family);
            FASTEST.contains(&store.name) || !family.any(|other| FASTEST.contains(&other.name))
        };
        match (self.all, self.only.as_slice()) {
            (true, _) => catalog::ALL.iter().collect(),
            (false, []) => catalog::ALL.iter().filter(chosen).collect(),
            (false, only) => only.to_vec(),
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        if self.workload.is_empty() { Kind::value_variants().to_vec() } else { self.workload.clone() }
    }

    fn thread_counts(&self) -> Vec<usize> {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut counts: Vec<_> = self.threads.iter().map(|count| count.get()).collect();
        if counts.is_empty() {
            counts = vec![1, cores];
        }
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn size(&self) -> Result<Size, String> {
        let swarms = self.swarms.unwrap_or(if self.quick { 20_000 } else { 1_000_000 });
        let peers = self.peers.unwrap_or(u64::from(swarms) * 5);
        if peers < u64::from(swarms) {
            return Err(format!(
                "--peers {peers} is less than --swarms {swarms}: every swarm of `zipf` has a peer"
            ));
        }
        Ok(Size { swarms, peers })
    }
}

/// A store that has run before leaves pages behind that the next one finds; a fresh process starts from nothing.
fn in_a_fresh_process(plan: &Plan) -> Result<Row, Box<dyn Error>> {
    let child = Command::new(env::current_exe()?)
        .arg("shootout-row")
        .arg(serde_json::to_string(plan)?)
        .stdin(Stdio::null())
        .output()?;
    if !child.status.success() {
        return Err(format!(
            "{plan}: {}\n{}",
            child.status,
            String::from_utf8_lossy(&child.stderr).trim_end()
        )
        .into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}

fn store_names() -> impl TypedValueParser<Value = &'static Implementation> {
    PossibleValuesParser::new(catalog::ALL.iter().map(|store| store.name))
        .map(|name| catalog::find(&name).expect("clap lets only names of the catalog through"))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.001 to 3600".into()),
    }
}
