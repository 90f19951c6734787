//! `cargo shootout`: every store on the same work, each row in a process of its own.
//!
//! The figure of allocations needs `swarmkeep_kit::allocations::Counting` as the allocator of the program.

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    fs,
    io::{self, Write},
    num::NonZeroUsize,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use clap::{
    CommandFactory as _, FromArgMatches as _, Parser, ValueEnum, builder::PossibleValuesParser,
    error::ErrorKind,
};
use indicatif::{ProgressBar, ProgressStyle};
use swarmkeep::catalog::{self, Implementation};

use self::{
    growth::Reach,
    report::{AnnounceWay, Findings, Report},
    row::{Metric, Plan, Row},
    work::{Shape, Size},
};
use crate::{cores, origin::Origin, tables::Marked};

mod announcing;
mod charts;
mod figures;
mod flood;
mod forgetting;
mod growth;
mod report;
mod row;
mod work;

/// The number of visits of a step of a sweep while announces wait.
const SMALL_STEP: usize = 256;

const EXAMPLES: &str = "\
Examples:
  cargo shootout                                packed and the fastest of each map family
  cargo shootout --quick --only packed          a first impression of one store
  cargo shootout --all --json > shootout.json   every store, for scripts
  cargo shootout --memory --swarms 10000000     bytes only, ten million swarms
  cargo shootout --readme README.md --svg docs  rewrite the README's table and draw charts
  cargo shootout --figures --only packed        thirty figures of one store
  cargo shootout --growth --svg docs            charts over swarm size, swarms and threads

Workloads:
  one-peer    SWARMS swarms of one peer: most swarms of a tracker
  one-swarm   one swarm of SWARMS peers
  zipf        SWARMS swarms and PEERS peers, sizes by Zipf's law, all peers announce equally often
  hot         nine of ten announces to one swarm of 1,000 peers, the others to SWARMS / 10 swarms of one
In the last two 10 % of the peers have IPv6. In all of them 50 % of the peers are seeders; 5 % of the
announces are `stopped`, 1 % `completed`; each announce wants 50 peers.

The store on Redis is not measured here: its time and memory are those of servers and a network
(docs/operate/two-trackers.md).

Columns:
  ns          wall time per announce that updates, counts and selects, over all threads: the inverse of
              the throughput; the median of rounds of 16,384 announces per thread
  p99.9       time within which 99.9 % of single announces are answered while another thread sweeps
              without a pause; all threads together are as many as the cores
  RSS         growth of the resident set (anonymous memory) while an empty store is filled

Figures:
  batches     32 announces per call, as a UDP tracker receives them. The column `harness` is the cost of
              the calls and of passing the announces, measured on a store that does nothing; it is not
              subtracted
  one at a time
              one announce per call and a memory fence after it: without the fence the processor begins
              the next announce while this one waits for memory, which does not happen in a tracker
              that makes a system call in between
  step        a step of a sweep with 256 visits: an upper bound on the time that it holds any lock
  paced sweep a pass spread over 30 seconds; measured with and without it in turns, with the same number of
              threads
  fell to     all other peers have expired; sweeps in steps of 4,096 visits until they remove nothing";

/// Compare the swarm stores: time, tail latency and memory.
#[derive(Debug, Parser)]
#[command(
    name = "shootout",
    version,
    max_term_width = 110,
    after_long_help = EXAMPLES,
    after_help = "See --help for examples, workloads and columns."
)]
struct Args {
    /// Print the names of all stores, one per line.
    #[arg(long, exclusive = true)]
    list: bool,

    /// Measure only these stores.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,

    /// Measure every store.
    #[arg(long, conflicts_with = "only")]
    all: bool,

    /// Measure bytes, announces, sweeps and a flood on ten populations. Only the packed store is measured
    /// with ten million swarms.
    #[arg(long, conflicts_with_all = ["growth", "workload", "memory", "threads", "batch", "swarms", "peers", "svg"])]
    figures: bool,

    /// Measure how bytes and time grow with swarm size, swarms and threads, for charts. --swarms is the
    /// maximum number of swarms [default: 10000000], --peers the number of all peers while swarms grow
    /// [default: 1000000].
    #[arg(long, conflicts_with_all = ["workload", "memory", "batch", "readme"])]
    growth: bool,

    /// Measure only these workloads.
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    workload: Vec<Shape>,

    /// Measure bytes only.
    #[arg(long)]
    memory: bool,

    /// Take at most half a minute: small stores and short measurements. The numbers are not accurate.
    #[arg(long)]
    quick: bool,

    /// Measure everything N times, the stores in turns, and print medians [default: 1; with --figures 5,
    /// with both --quick and --figures 1].
    #[arg(long, value_name = "N")]
    repeat: Option<NonZeroUsize>,

    /// Numbers of threads to announce with [default: 1 and the number of cores].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,

    /// Announces per call; more than one use `announce_batch`.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,32")]
    batch: Vec<NonZeroUsize>,

    /// Swarms of `one-peer` and `zipf`, peers of `one-swarm` [default: 1000000, with --quick 20000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    swarms: Option<u32>,

    /// Peers of `zipf` [default: five for each swarm].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    peers: Option<u64>,

    /// Seconds of the measurement of each number [default: 1, with --quick less].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,

    /// Seed of the workloads and of the hash keys of the stores.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,

    /// Draw charts into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Rewrite the table between `<!-- shootout:begin -->` and `<!-- shootout:end -->` in this file; with
    /// --figures, between `<!-- figures:begin -->` and `<!-- figures:end -->`.
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,
}

/// The first word of a call that measures one row; the second is what to measure, as JSON.
const ROW: &str = "row";

/// Runs the program over these rows: it reads its arguments, and calls itself for each measurement. The
/// first row of a family stands for it.
pub fn main(rows: &[Implementation]) -> ExitCode {
    let words: Vec<_> = env::args().collect();
    let done = match &words[..] {
        [_, row, plan] if row == ROW => run_row(rows, plan),
        _ => run(rows, &Args::of(rows)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shootout: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Ends the program for options that are invalid together, with exit code 2, as clap does for a single
/// invalid option.
fn refuse(message: String) -> ! {
    Args::command().error(ErrorKind::ValueValidation, message).exit()
}

/// The name of two rows. The second one would not be measured: processes find a row by its name.
fn twice(rows: &[Implementation]) -> Option<&'static str> {
    let mut names = BTreeSet::new();
    rows.iter().map(|row| row.name).find(|name| !names.insert(*name))
}

/// Runs the whole comparison and prints it.
fn run(rows: &[Implementation], args: &Args) -> Result<(), Box<dyn Error>> {
    if args.list {
        let names: String = rows.iter().map(|store| format!("{}\n", store.name)).collect();
        return Ok(io::stdout().write_all(names.as_bytes())?);
    }
    if let Some(name) = twice(rows) {
        refuse(format!("two stores are called {name}: give yours another name"));
    }
    // Checked first, so that an unusable file is reported before the measurements.
    let name = if args.figures { "figures" } else { "shootout" };
    let readme = args.readme.as_deref().map(|path| Marked::read(path, name)).transpose()?;

    let plans = args.plans(rows).unwrap_or_else(|message| refuse(message));
    let origin = Origin::here(args.seed, args.repeat(), args.quick);
    let rows = measure(&plans, args.repeat())?;
    let findings = args.findings(origin.ended(), rows);
    let text = if args.json { findings.json()? + "\n" } else { findings.text() };
    io::stdout().write_all(text.as_bytes())?;
    if let Some(readme) = readme {
        readme.write(&findings.summary())?;
    }
    if let Some(directory) = &args.svg {
        fs::create_dir_all(directory)?;
        findings.draw(directory)?;
    }
    Ok(())
}

/// Measures every plan `repeat` times, each time in a fresh process; returns the rows of each plan. The plans
/// take turns, so that other work of the machine affects all of them alike.
fn measure(plans: &[Plan], repeat: usize) -> Result<Vec<Vec<Row>>, Box<dyn Error>> {
    let bar = ProgressBar::new((plans.len() * repeat) as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}] {msg}").expect("a valid template"),
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut rows = vec![Vec::new(); plans.len()];
    for _ in 0..repeat {
        for (plan, rows) in plans.iter().zip(&mut rows) {
            bar.set_message(plan.to_string());
            rows.push(in_a_fresh_process(plan)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Measures one row and prints it for the process that asked.
fn run_row(rows: &[Implementation], plan: &str) -> Result<(), Box<dyn Error>> {
    let plan: Plan = serde_json::from_str(plan)?;
    let row = row::measure(rows, &plan)?;
    println!("{}", serde_json::to_string(&row)?);
    Ok(())
}

impl Args {
    /// Returns the arguments of this process, in which these stores have names.
    fn of(rows: &[Implementation]) -> Self {
        let names: BTreeSet<_> = rows.iter().flat_map(|row| [row.name, row.family]).collect();
        let command =
            Self::command().mut_arg("only", |only| only.value_parser(PossibleValuesParser::new(names)));
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// Returns the requested findings from the rows of each plan.
    fn findings(&self, origin: Origin, rows: Vec<Vec<Row>>) -> Box<dyn Findings> {
        if self.figures {
            return Box::new(figures::Report::new(origin, self.quick, rows.into_iter().flatten().collect()));
        }
        let medians = rows.iter().map(|rows| Row::median(rows)).collect();
        if self.growth {
            Box::new(growth::Report::new(origin, medians))
        } else {
            Box::new(Report::new(origin, medians))
        }
    }

    /// Returns the plans, in an order in which compared measurements follow each other.
    fn plans(&self, rows: &[Implementation]) -> Result<Vec<Plan>, String> {
        let (stores, named) = (self.stores(rows), !self.only.is_empty());
        let seconds = self.seconds.unwrap_or(if self.quick { 0.01 } else { 1.0 });
        if self.figures {
            return Ok(figures::plans(&stores, self.quick, seconds, self.seed));
        }
        if self.growth {
            return Ok(growth::plans(&stores, named, &self.reach(), seconds, self.seed));
        }
        self.comparison(&stores)
    }

    fn comparison(&self, stores: &[&Implementation]) -> Result<Vec<Plan>, String> {
        let size = self.size()?;
        let ways = self.ways();
        let mut plans = Vec::new();
        for shape in self.shapes() {
            for &(threads, batch) in &ways {
                let way = (threads, batch);
                let metrics = self.metrics(shape, way == ways[0], way == ways[ways.len() - 1]);
                if metrics.is_empty() {
                    continue;
                }
                plans.extend(stores.iter().map(|store| Plan {
                    store: store.name.to_owned(),
                    workload: shape.to_string(),
                    population: shape.population(size),
                    threads,
                    batch,
                    fenced: false,
                    seconds: 0.0,
                    seed: self.seed,
                    metrics: metrics.clone(),
                }));
            }
        }
        let timed =
            plans.iter().flat_map(|plan| &plan.metrics).filter(|&&metric| metric != Metric::Bytes).count();
        let seconds = self.seconds.unwrap_or(if self.quick { (3.0 / timed as f64).min(0.2) } else { 1.0 });
        for plan in &mut plans {
            plan.seconds = seconds;
        }
        Ok(plans)
    }

    fn metrics(&self, shape: Shape, first: bool, last: bool) -> Vec<Metric> {
        let all = [
            // Bytes do not depend on the threads and batches of later announces.
            (Metric::Bytes, first && shape.tells_bytes()),
            (Metric::Time, !self.memory),
            // Slow announces show where threads wait for each other.
            (Metric::Tail, !self.memory && last),
        ];
        all.into_iter().filter_map(|(metric, wanted)| wanted.then_some(metric)).collect()
    }

    fn stores<'a>(&self, rows: &'a [Implementation]) -> Vec<&'a Implementation> {
        let find = |name: &str| catalog::find_in(rows, name);
        match (self.all, self.only.as_slice()) {
            (true, _) => rows.iter().collect(),
            (false, []) => rows
                .iter()
                .filter(|row| find(row.family).is_some_and(|first| first.name == row.name))
                .collect(),
            (false, only) => only.iter().filter_map(|name| find(name)).collect(),
        }
    }

    fn shapes(&self) -> Vec<Shape> {
        if self.workload.is_empty() { Shape::value_variants().to_vec() } else { self.workload.clone() }
    }

    fn repeat(&self) -> usize {
        let default = if self.figures && !self.quick { 5 } else { 1 };
        self.repeat.map_or(default, NonZeroUsize::get)
    }

    /// Returns the ways to announce: each number of threads with each size of a batch, ascending.
    fn ways(&self) -> Vec<AnnounceWay> {
        let batches = ascending(&self.batch);
        let threads = if self.threads.is_empty() { vec![1, cores()] } else { ascending(&self.threads) };
        let ways: BTreeSet<_> =
            threads.iter().flat_map(|&threads| batches.iter().map(move |&batch| (threads, batch))).collect();
        ways.into_iter().collect()
    }

    /// Returns the upper ends of the growing quantities.
    fn reach(&self) -> Reach {
        let (peers, swarms) = if self.quick { (10_000, 100_000) } else { (1_000_000, 10_000_000) };
        let doubling = (0..).map(|power| 1 << power).take_while(|&threads| threads < cores());
        let threads = if self.threads.is_empty() {
            doubling.chain([cores()]).collect()
        } else {
            ascending(&self.threads)
        };
        let peers = self.peers.map_or(peers, |peers| peers.try_into().unwrap_or(u32::MAX));
        Reach { peers, swarms: self.swarms.map_or(swarms, u64::from), threads }
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

fn ascending(numbers: &[NonZeroUsize]) -> Vec<usize> {
    let numbers: BTreeSet<_> = numbers.iter().map(|number| number.get()).collect();
    numbers.into_iter().collect()
}

/// Measures a plan in a fresh process: a store in the same process would reuse pages of an earlier one.
fn in_a_fresh_process(plan: &Plan) -> Result<Row, Box<dyn Error>> {
    let child = Command::new(env::current_exe()?)
        .arg(ROW)
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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.001 to 3600".into()),
    }
}

#[test]
fn no_two_stores_have_one_name() {
    let all = catalog::ALL;
    assert_eq!((twice(all), twice(&[all, &all[1..2]].concat())), (None, Some(all[1].name)));
}
