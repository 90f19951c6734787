//! `swarmkeep simulate`: what a tracker for any number of peers needs, on one machine and on several, and what is lost when one of them fails.

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use swarmkeep_workload::Zipf;

use self::{
    costs::Costs,
    failures::{Delays, Failure, Fleet},
    lives::{Fate, Habits, SECOND, Time},
    place::{Loads, Places},
    population::Method,
    report::{Checked, Described, Failed, Grown, Imbalance, Report},
    sizing::{Given, Machine, Population, Sizing, Traffic},
    swarm::{Happening, Model, Tally},
};
use crate::units;

mod charts;
mod costs;
mod failures;
mod lives;
mod place;
mod population;
mod queue;
mod report;
mod sizing;
mod swarm;

const DETAILS: &str = "\
Examples:
  swarmkeep simulate                                            a million torrents, ten million peers
  swarmkeep simulate --torrents 100000000 --peers 1000000000    a hundred times that, from a sample
  swarmkeep simulate --peers 3000000 --cores 2 --memory 4GiB    what a small machine is good for
  swarmkeep simulate --exponent 0.8 --largest 0.001             swarms that are more alike
  swarmkeep simulate --restart 2m --snapshot-every 1m           another way to fail
  swarmkeep simulate --redis-announce 8 --json > found.json     with a cost of your own, for scripts

Arrangements:
  one machine            the packed store in the tracker's own memory
  sharded by info hash   several of those behind something that sends each info hash to one of them,
                         by rendezvous hashing
  trackers on a Redis    trackers without a store of their own, before a Redis or a Cluster of it, with
                         1,024 shards on 16,384 slots

What is simulated:
  Each peer: it joins, announces at intervals, asks again when nobody answers (after 15 s, 30 s, ...
  as BEP 15 says), and goes, with a word or without. A store knows it from an answered announce
  until it says `stopped` or has been silent for --lifetime. For an hour after each failure every
  announce is held against the same announce with nothing failing: was it answered, and with how
  many peers. Cores, memory, network and waiting are computed from rates and costs.

Samples:
  Up to 20 million peers each one is simulated. Of more, swarms that are about as large stand for each
  other, and a part of a large swarm for all of it. --exact simulates each in any case (a thousand
  million in some minutes), --check does both and prints the difference.

docs/simulation.md says what the model is, and what is known of real swarms.";

/// Simulate trackers of any size: what each arrangement needs, and loses when a machine fails.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, arrangements and the model.")]
pub(crate) struct Args {
    /// Torrents that somebody has.
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    torrents: u64,

    /// Peers that are there, each in one of the swarms.
    #[arg(long, value_name = "N", default_value = "10000000", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    peers: u64,

    /// How sizes fall: the n-th largest swarm has 1/n^S of the largest's peers.
    #[arg(long, value_name = "S", default_value = "1", value_parser = exponent)]
    exponent: f64,

    /// The largest share of all peers that one swarm has; sizes are flat where they would be above it.
    #[arg(long, value_name = "SHARE", default_value = "0.01", value_parser = share)]
    largest: f64,

    /// Share of the peers that have nothing left to download.
    #[arg(long, value_name = "SHARE", default_value = "0.75", value_parser = share)]
    seeders: f64,

    /// Share of the peers with IPv6.
    #[arg(long, value_name = "SHARE", default_value = "0.1", value_parser = share)]
    ipv6: f64,

    /// Peers that an announce asks for.
    #[arg(long, value_name = "N", default_value = "50")]
    want: u16,

    /// What clients are told to wait between announces.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = units::time)]
    interval: Duration,

    /// The interval is longer by up to this share, at random.
    #[arg(long, value_name = "SHARE", default_value = "0.1", value_parser = share)]
    jitter: f64,

    /// A peer that is silent for so long is forgotten.
    #[arg(long, value_name = "TIME", default_value = "45m", value_parser = units::time)]
    lifetime: Duration,

    /// Half of all sessions are shorter than that.
    #[arg(long, value_name = "TIME", default_value = "135m", value_parser = units::time)]
    session: Duration,

    /// How much sessions differ: the standard deviation of their logarithm.
    #[arg(long, value_name = "S", default_value = "1.5", value_parser = deviation)]
    session_deviation: f64,

    /// Share of the peers that go without saying `stopped`.
    #[arg(long, value_name = "SHARE", default_value = "0.2", value_parser = share)]
    silent: f64,

    /// How much more is announced in the busiest hour of a day than on average, as a share. What is needed is for that hour.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    swing: f64,

    /// Machines that torrents are sharded over [default: as many as it takes, and one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    nodes: Option<u32>,

    /// Trackers before Redis [default: as many as it takes, and one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    trackers: Option<u32>,

    /// Redis masters [default: as many as it takes, one or at least three].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    masters: Option<u32>,

    /// Replicas of each master.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(..=5))]
    replicas: u32,

    /// Cores of a machine.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,

    /// Memory of a machine, as 64GiB.
    #[arg(long, value_name = "BYTES", default_value = "64GiB", value_parser = units::bytes)]
    memory: std::num::NonZero<u64>,

    /// What a machine's network carries each way, in Gbit/s.
    #[arg(long, value_name = "GBIT", default_value = "10", value_parser = positive)]
    network: f64,

    /// Share of cores, memory and network that may be used in ordinary times.
    #[arg(long, value_name = "SHARE", default_value = "0.6", value_parser = share)]
    busy: f64,

    /// How long a process takes to be started again after it has died.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::time)]
    restart: Duration,

    /// How often a snapshot is taken; a failure comes just before the next.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::time)]
    snapshot_every: Duration,

    /// How long until whoever is in front of trackers knows that one has died.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::time)]
    detect: Duration,

    /// How long a Redis Cluster takes to put a replica in a dead master's place: its `cluster-node-timeout`, 15 s by default, and an election.
    #[arg(long, value_name = "TIME", default_value = "16s", value_parser = units::time)]
    failover: Duration,

    /// What a replica may lack of what its master has acknowledged.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    lag: Duration,

    /// How long a master takes to hand over to its replica when it is told to.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    hand_over: Duration,

    /// For how long a tracker tries to reach Redis before it gives up an announce.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
    patience: Duration,

    #[command(flatten)]
    costs: Costs,

    /// Simulate every peer, however many there are.
    #[arg(long)]
    exact: bool,

    /// Simulate a sample and every peer, and print how they differ.
    #[arg(long, conflicts_with = "exact")]
    check: bool,

    /// Peers of a sample that stand for swarms about as large, and for one large swarm.
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u64).range(100..))]
    sample: u64,

    /// What everything is drawn from.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Write JSON into this file; without a file, print it instead of Markdown.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,

    /// Write the Markdown into this file too.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Draw charts into this directory.
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// Up to so many peers, each one is simulated.
const EXACT: u64 = 20_000_000;
/// What is simulated after a failure.
const AFTER: Time = 3600 * SECOND;

/// Simulates and prints.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let simulation = Simulation::new(args).unwrap_or_else(|message| crate::refuse(message));
    let report = simulation.report();
    let json = serde_json::to_string_pretty(&report)? + "\n";
    let text = report.markdown();
    let to_stdout = args.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    if let Some(path) = args.json.as_ref().filter(|_| !to_stdout) {
        fs::write(path, &json).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        fs::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(directory) = &args.charts {
        let drawn = fs::create_dir_all(directory).and_then(|()| charts::draw(&report, directory));
        drawn.map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    Ok(io::stdout().write_all(if to_stdout { json } else { text }.as_bytes())?)
}

/// All that options say, checked.
struct Simulation<'a> {
    args: &'a Args,
    zipf: Zipf,
    places: Places,
    habits: Habits,
    nothing: Happening,
}

impl<'a> Simulation<'a> {
    fn new(args: &'a Args) -> Result<Self, String> {
        let Args { torrents, peers, .. } = *args;
        if peers < torrents {
            return Err(format!(
                "--peers {peers} is less than --torrents {torrents}: every swarm has a peer"
            ));
        }
        let most = most_of_one(peers, args.largest);
        if most.saturating_mul(torrents) < peers {
            return Err(format!(
                "{torrents} swarms of {most} peers at most (--largest {}) cannot have {peers}: give a larger share",
                args.largest
            ));
        }
        let milliseconds = |name: &str, time: Duration| match Time::try_from(time.as_millis()) {
            Ok(time) if time <= 24 * 3600 * SECOND => Ok(time),
            _ => Err(format!("--{name} is more than a day")),
        };
        let (interval, lifetime) =
            (milliseconds("interval", args.interval)?, milliseconds("lifetime", args.lifetime)?);
        if interval < SECOND {
            return Err("--interval is less than a second".to_owned());
        }
        let longest = interval + (f64::from(interval) * args.jitter) as Time;
        if longest >= lifetime {
            return Err(format!(
                "peers that announce after up to {} seconds (--interval and --jitter) would be forgotten after --lifetime {}",
                longest / SECOND,
                lifetime / SECOND
            ));
        }
        let snapshot_age = milliseconds("snapshot-every", args.snapshot_every)?;
        // From then on the store knows everybody that it would know if it had always been there, as it was when its snapshot was taken.
        let failure = lifetime + longest + snapshot_age;
        let habits = Habits {
            interval,
            jitter: args.jitter,
            lifetime,
            median: args.session.as_secs_f64() * f64::from(SECOND),
            deviation: args.session_deviation,
            silent: args.silent,
            failure,
            end: failure + AFTER,
        };
        for (name, time) in [
            ("restart", args.restart),
            ("detect", args.detect),
            ("failover", args.failover),
            ("lag", args.lag),
            ("hand-over", args.hand_over),
            ("patience", args.patience),
        ] {
            if milliseconds(name, time)? > AFTER / 2 {
                return Err(format!("--{name} is more than half an hour, and an hour is simulated"));
            }
        }
        let nothing = Fate { down: failure..failure, forgets_since: None, has_others: false };
        Ok(Self {
            args,
            zipf: Zipf::new(torrents, peers, args.exponent, most),
            places: Places(args.seed),
            habits,
            nothing: Happening { fate: nothing, peers: 1.0 },
        })
    }

    fn report(&self) -> Report {
        let args = self.args;
        // What peers ask for says how many machines there are to fail.
        let (tallies, _) = self.simulate(&[], self.sample(), "peers, to see what they ask for");
        let traffic = self.traffic(&tallies[0]);
        let sizing = self.sizing(traffic);
        let population = self.population(args.torrents, args.peers);
        let given = Given {
            sharded: args.nodes,
            trackers: args.trackers,
            masters: args.masters,
            replicas: args.replicas,
        };
        let needs = sizing.needs(&population, given);
        let shards = sizing.shards(&population);
        let masters = needs[2].masters.unwrap_or(swarmkeep_redis::SHARDS);
        let fleet = Fleet {
            sharded: needs[1].trackers,
            busiest_tracker: Loads::of_trackers(&self.zipf, self.places, needs[1].trackers).busiest(),
            trackers: needs[2].trackers,
            masters,
            busiest_master: Loads::of_masters(&shards, masters).busiest(),
        };
        let stored = args.peers as f64 * traffic.stored_a_peer;
        let failures = failures::all(&self.habits, &fleet, &self.delays(stored));

        let method =
            if args.exact || !args.check && args.peers <= EXACT { Method::Exact } else { self.sample() };
        let (tallies, simulated_peers) =
            self.simulate(&failures, method, "peers, and what failures do to them");
        let failed = self.failed(&failures, &tallies);
        let check = args.check.then(|| {
            let (exact, _) = self.simulate(&failures, Method::Exact, "peers, every one of them");
            self.compare(&tallies[0], &exact[0], &failed, &self.failed(&failures, &exact))
        });
        Report {
            version: env!("CARGO_PKG_VERSION"),
            seed: args.seed,
            method: match method {
                Method::Exact => "every peer simulated".to_owned(),
                Method::Sample { .. } => format!("{} peers simulated", HumanCount(simulated_peers)),
            },
            simulated_peers,
            population: self.described(&tallies[0], traffic, &sizing),
            traffic,
            costs: args.costs,
            machine: sizing.machine,
            limits: sizing.limits(&population),
            largest_key_bytes: shards.bytes.iter().copied().fold(0.0, f64::max),
            imbalance: self.imbalance(&shards),
            growth: self.growth(&sizing),
            needs,
            failures: failed,
            check,
        }
    }

    fn simulate(&self, failures: &[Failure], method: Method, what: &str) -> (Vec<Tally>, u64) {
        let args = self.args;
        let happenings = failures.iter().map(|failure| failure.happening.clone());
        let model = Model {
            habits: self.habits,
            want: f64::from(args.want),
            seeders: args.seeders,
            ipv6: args.ipv6,
            seed: args.seed,
            fates: [self.nothing.clone()].into_iter().chain(happenings).collect(),
        };
        let style = ProgressStyle::with_template("{bar:30} {human_pos}/{human_len} [{elapsed}] {msg}");
        let bar = ProgressBar::new(0).with_style(style.expect("a valid template"));
        bar.set_message(what.to_owned());
        let progress = |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        };
        let simulated = population::simulate(&model, &self.zipf, self.places, failures, method, &progress);
        bar.finish_and_clear();
        simulated
    }

    const fn sample(&self) -> Method {
        Method::Sample { peers: self.args.sample }
    }

    fn traffic(&self, nothing: &Tally) -> Traffic {
        let live = nothing.live.iter().sum::<f64>() / nothing.live.len() as f64;
        let known = nothing.known.iter().sum::<f64>() / nothing.known.len() as f64;
        let [v4, v6] = nothing.answered;
        let handed = |family: usize| {
            if nothing.answered[family] > 0.0 {
                nothing.handed[family] / nothing.answered[family]
            } else {
                0.0
            }
        };
        Traffic {
            announces_a_peer: nothing.usual / live / f64::from(AFTER / SECOND),
            stored_a_peer: known / live,
            ipv6: v6 / (v4 + v6),
            handed_out: [handed(0), handed(1)],
        }
    }

    fn sizing(&self, traffic: Traffic) -> Sizing<'_> {
        let args = self.args;
        let machine = Machine {
            cores: args.cores,
            memory_bytes: args.memory.get() as f64,
            network_bits: args.network * 1e9,
            busy: args.busy,
        };
        Sizing { costs: &args.costs, machine, traffic, peak: 1.0 + args.swing }
    }

    fn population(&self, torrents: u64, peers: u64) -> Population {
        let most = most_of_one(peers, self.args.largest).max(peers.div_ceil(torrents));
        let zipf = Zipf::new(torrents, peers, self.args.exponent, most);
        Population { zipf, peers: peers as f64, places: self.places }
    }

    fn delays(&self, stored: f64) -> Delays {
        let milliseconds = |time: Duration| time.as_millis() as Time;
        let Args { restart, snapshot_every, detect, failover, lag, hand_over, patience, .. } = *self.args;
        let load = stored / 1e6 * self.args.costs.load_million * f64::from(SECOND);
        Delays {
            restart: milliseconds(restart),
            load: (load as Time).min(AFTER / 2) / SECOND * SECOND,
            snapshot_age: milliseconds(snapshot_every),
            detect: milliseconds(detect),
            failover: milliseconds(failover),
            lag: milliseconds(lag),
            planned: milliseconds(hand_over),
            patience: milliseconds(patience),
        }
    }

    fn failed(&self, failures: &[Failure], tallies: &[Tally]) -> Vec<Failed> {
        let since = self.habits.failure;
        let pairs = failures.iter().zip(&tallies[1..]);
        let failed = pairs.map(|(failure, tally)| {
            let down = &failure.happening.fate.down;
            Failed::new(failure, tally, &tallies[0], down.start - since..down.end - since)
        });
        failed.collect()
    }

    fn described(&self, nothing: &Tally, traffic: Traffic, sizing: &Sizing<'_>) -> Described {
        let args = self.args;
        let seconds = f64::from(AFTER / SECOND);
        let count = |what: &dyn Fn(u64) -> bool, each: &dyn Fn(u64) -> u64| {
            let runs = self.zipf.runs().filter(|run| what(run.size));
            runs.map(|run| run.swarms * each(run.size)).sum::<u64>()
        };
        Described {
            torrents: args.torrents,
            peers: args.peers,
            stored_peers: args.peers as f64 * traffic.stored_a_peer,
            largest_swarm: self.zipf.runs().next().map_or(0, |run| run.size),
            swarms_of_one: count(&|size| size == 1, &|_| 1),
            peers_in_large_percent: 100.0 * count(&|size| size > 50, &|size| size) as f64 / args.peers as f64,
            announces_a_second: sizing.rate(args.peers as f64),
            joined_a_second: nothing.joined / seconds,
            left_a_second: nothing.left / seconds,
            mean_session_minutes: self.habits.mean_session() / 60e3,
            gone_percent: 100.0 * (1.0 - 1.0 / traffic.stored_a_peer),
        }
    }

    fn imbalance(&self, shards: &Loads) -> Vec<Imbalance> {
        let rows = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].map(|machines| Imbalance {
            machines,
            trackers: Loads::of_trackers(&self.zipf, self.places, machines).imbalance(),
            masters: Loads::of_masters(shards, machines).imbalance(),
        });
        rows.into()
    }

    fn growth(&self, sizing: &Sizing<'_>) -> Vec<Grown> {
        let Args { torrents, peers, replicas, .. } = *self.args;
        let most = peers.max(1_000_000_000);
        let sizes = (5..11).flat_map(|power| [1, 3].map(|digit| digit * 10_u64.pow(power)));
        let grown = sizes.take_while(|&size| size <= most).map(|size| {
            let torrents = (size as f64 / peers as f64 * torrents as f64).ceil().max(1.0) as u64;
            let given = Given { replicas, ..Given::default() };
            Grown {
                peers: size as f64,
                torrents,
                needs: sizing.needs(&self.population(torrents, size), given),
            }
        });
        grown.collect()
    }

    fn compare(&self, sample: &Tally, exact: &Tally, samples: &[Failed], exacts: &[Failed]) -> Vec<Checked> {
        let [traffic, other] = [sample, exact].map(|tally| self.traffic(tally));
        let row = |what: &str, sample, exact| Checked { what: what.to_owned(), sample, exact };
        let mut rows = vec![
            row(
                "announces of 1,000 peers a second",
                1e3 * traffic.announces_a_peer,
                1e3 * other.announces_a_peer,
            ),
            row(
                "peers known for 100 that are there",
                100.0 * traffic.stored_a_peer,
                100.0 * other.stored_a_peer,
            ),
            row("peers handed out over IPv4", traffic.handed_out[0], other.handed_out[0]),
            row("peers handed out over IPv6", traffic.handed_out[1], other.handed_out[1]),
        ];
        for (sample, exact) in samples.iter().zip(exacts) {
            type Number = fn(&Failed) -> f64;
            let pairs: [(&str, Number); 5] = [
                ("hit, %", |failed| failed.hit_percent),
                ("lost, %", |failed| failed.lost_percent),
                ("minutes till 90 % back", |failed| failed.back_seconds[1] / 60.0),
                ("answers with fewer peers, %", |failed| failed.poor_percent),
                ("peers missing, %", |failed| failed.missing_percent),
            ];
            for (what, number) in pairs {
                rows.push(row(&format!("`{}`: {what}", sample.key), number(sample), number(exact)));
            }
        }
        rows
    }
}

/// The most peers of a swarm, given the most of its share.
fn most_of_one(peers: u64, largest: f64) -> u64 {
    ((peers as f64 * largest).ceil() as u64).max(1)
}

fn number(text: &str, range: std::ops::RangeInclusive<f64>) -> Option<f64> {
    text.parse().ok().filter(|number| range.contains(number))
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 0.0..=1.0).ok_or_else(|| "expected a share from 0 to 1, such as 0.25".into())
}

fn exponent(text: &str) -> Result<f64, String> {
    number(text, 0.0..=3.0).ok_or_else(|| "expected an exponent from 0 to 3, such as 1".into())
}

fn deviation(text: &str) -> Result<f64, String> {
    number(text, 0.0..=4.0).ok_or_else(|| "expected a number from 0 to 4, such as 1.5".into())
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, 1e-9..=1e15).ok_or_else(|| "expected a number above 0".into())
}
