//! `swarmkeep load`: puts a tracker under load, checks its answers and reports.

use std::{
    error::Error,
    io::{self, IsTerminal, Write},
    num::NonZeroU64,
    process::{self, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::{ArgGroup, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use swarmkeep_load::{Config, Mix, Progress, Report, Swarms, Target};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use crate::units;

/// The exit code if answers were wrong.
const WRONG: u8 = 3;

const DETAILS: &str = "\
Examples:
  swarmkeep load --target 127.0.0.1:6969                        a closed loop
  swarmkeep load --target 127.0.0.1:6969 --rate 200 --fill      an open loop
  swarmkeep load --target 127.0.0.1:6969 --target '[::1]:6969'  both families
  swarmkeep load --target http://127.0.0.1:7070/announce        over HTTP
  swarmkeep load --target 127.0.0.1:6969 --fill --threads 1 --concurrency 4 \\
    --window 32 --mix connect=50,announce=50,scrape=1 --server-pid 1234 --json

Loops:
  closed   a worker sends when it has an answer. Shows the most requests per
           second of a tracker. Latencies are those of a tracker that is fully
           busy, and grow with the workers; a stall is one slow answer per worker
  open     --rate: requests are sent when the schedule has them, and latency
           counts from then, even if earlier ones are still unanswered. Shows
           the latencies of a tracker at this number of requests per second

Population:
  --peers peers in --torrents torrents that all workers share, sizes by Zipf's
  law with exponent 1: the n-th largest has 1/n of the largest's peers, and no
  fewer than one. Each peer has an id and a port of its own, and announces as
  often. Its announces are those of a client, which starts, completes once if it
  is a leecher, and stops once; then another client starts there. All is drawn
  from --seed: a worker sends the same requests in every run.

Answers:
  Each is checked: transaction id, action, length, counts that cannot be, an
  interval from a second to a day, more peers than requested, one twice and one
  at port 0. The announcing peer among the peers is a note, since some trackers
  return it, and wrong with --strict.

Ctrl-C:
  The first ends the measurement, and the report covers the time until then.
  The second ends the program.

Exit codes:
  0  measured; some requests may have failed, as the report says
  1  no measurement: there was no answer, or fewer than half of the requests
     succeeded
  2  options that are wrong
  3  answers were wrong";

/// Put a tracker under load, check its answers and report.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = DETAILS,
    after_help = "See --help for examples, loops and exit codes.",
    group = ArgGroup::new("swarms")
)]
pub struct Args {
    /// The tracker: 127.0.0.1:6969, udp://host:port or http://host:port/announce; once per family.
    #[arg(long, value_name = "ADDR", required = true)]
    target: Vec<Target>,

    /// Duration of the measurement, such as 500ms, 10s or 5m; at most 1h.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::time)]
    duration: Duration,

    /// Duration of the warm-up before the measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    warm_up: Duration,

    /// Number of clients, each with its own socket.
    #[arg(long, value_name = "N", default_value = "100")]
    concurrency: usize,

    /// Number of threads [default: one per core].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Most unanswered requests per worker [default: 1, over UDP with --rate 64]. Over HTTP, more are sent as
    /// a proxy sends them: behind each other, and from the loopback with X-Forwarded-For.
    #[arg(long, value_name = "N")]
    window: Option<usize>,

    /// Send each HTTP request on a connection of its own, which is a part of its latency.
    #[arg(long)]
    connection_per_request: bool,

    /// Requests per second and worker (open loop) [default: as fast as answers come].
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// Time after which a request without an answer has failed.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::time)]
    timeout: Duration,

    /// How long a connection id is used; the next one is requested shortly before.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = units::time)]
    connection_lifetime: Duration,

    /// Number of torrents that the workers share.
    #[arg(long, value_name = "N", default_value = "1000")]
    torrents: NonZeroU64,

    /// Distribution of the sizes of their swarms.
    #[arg(long, value_enum, default_value = "zipf")]
    shape: Shape,

    /// Number of peers [default: 100000, or the number of torrents if that is larger].
    #[arg(long, value_name = "N")]
    peers: Option<u64>,

    /// Number of peers that each announce requests; -1 leaves it to the tracker.
    #[arg(long, value_name = "N", default_value = "50", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-1..))]
    numwant: i32,

    /// Mix of the kinds of requests, as weights [default: announce=50,scrape=1].
    #[arg(long, value_name = "KIND=N,...")]
    mix: Option<Mix>,

    /// Info hashes per scrape, from 1 to 74.
    #[arg(long, value_name = "N", default_value = "1")]
    scrape_hashes: usize,

    /// Share of seeders among the peers. It stays the same if --completed is at most --seeders × --stopped.
    #[arg(long, value_name = "SHARE", default_value = "0.5")]
    seeders: f64,

    /// Share of the announces with the event `started`, at least --stopped.
    #[arg(long, value_name = "SHARE", default_value = "0.05")]
    started: f64,

    /// Share of the announces with the event `completed`, each from a leecher that is a seeder from then on.
    #[arg(long, value_name = "SHARE", default_value = "0.01")]
    completed: f64,

    /// Share of the announces with the event `stopped`, at most 0.5. Another client, with another peer id,
    /// starts with the next announce of that peer.
    #[arg(long, value_name = "SHARE", default_value = "0.05")]
    stopped: f64,

    /// Number of loopback addresses to send from, beginning with 127.0.0.1, so that a swarm can have more
    /// peers than there are ports.
    #[arg(long, value_name = "N", default_value = "1")]
    sources: u8,

    /// Let each peer announce once before anything is measured.
    #[arg(long)]
    fill: bool,

    /// Seed of the random population and requests.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Process of the tracker, to report its CPU time per million answers and its memory.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,

    /// Accept counts without the announcing peer, as some trackers give them.
    #[arg(long)]
    announcer_uncounted: bool,

    /// Count an answer with the announcing peer among its peers as wrong. Otherwise it is right and noted,
    /// since some trackers answer so.
    #[arg(long)]
    strict: bool,

    /// Send and receive the frames of this interface by AF_XDP, past the sockets: less CPU per request. Takes
    /// CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW, UDP targets, and one thread.
    #[arg(long, value_name = "INTERFACE")]
    xdp: Option<String>,

    /// Allow a target on another machine, which this test may overload.
    #[arg(long)]
    i_own_this_target: bool,

    /// Print one JSON object instead of tables; its times are in microseconds.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shape {
    /// Sizes by Zipf's law with exponent 1.
    Zipf,
    /// All swarms of the same size.
    Uniform,
}

/// Measures and prints.
///
/// # Errors
/// Nothing was measured, or fewer than half of the requests succeeded.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let report = measure(&args.config())?;
    let text = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text() };
    io::stdout().write_all(text.as_bytes())?;
    verdict(&[report])
}

/// The exit code.
///
/// # Errors
/// Fewer than half of the requests succeeded.
pub fn verdict(reports: &[Report]) -> Result<ExitCode, Box<dyn Error>> {
    if reports.iter().any(|report| report.wrong > 0) {
        return Ok(ExitCode::from(WRONG));
    }
    if let Some(Report { succeeded, requests, .. }) =
        reports.iter().find(|report| report.success_percent < 50.0)
    {
        return Err(format!("only {succeeded} of {requests} requests succeeded").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures with a line per second on standard error, and a bar if that is a terminal. Ends the program if
/// options conflict. SIGINT ends the measurement.
///
/// # Errors
/// Nothing was measured.
pub fn measure(config: &Config) -> Result<Report, swarmkeep_load::Error> {
    config.validate().unwrap_or_else(|error| crate::refuse(error.to_string()));
    let stop = Arc::new(AtomicBool::new(false));
    let watching = interrupts(Arc::clone(&stop)).map_err(|source| {
        let what = "cannot watch for Ctrl-C".to_owned();
        swarmkeep_load::Error::Socket { what, source }
    })?;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    let seconds = config.duration.as_secs_f64().ceil() as u64;
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(seconds).with_style(style).with_message("seconds")
    } else {
        ProgressBar::hidden()
    };
    let line = |text: &str| if bar.is_hidden() { eprintln!("{text}") } else { bar.println(text) };
    let report = swarmkeep_load::run_until(config, &stop, &mut |progress| match progress {
        // Without `fill`, the warm-up follows at once.
        Progress::Filling { peers: 0, .. } => bar.tick(),
        Progress::Filling { announced, peers } => {
            bar.set_message("peers announced");
            bar.set_length(*peers);
            bar.set_position(*announced);
        }
        Progress::WarmingUp => {
            bar.set_message("seconds");
            bar.set_position(0);
            bar.set_length(seconds);
        }
        Progress::Second(second) => {
            bar.set_position(seconds.min(second.second + 1));
            // The number of a part of a second is no rate.
            let is_whole = second.second < config.duration.as_secs() && !stop.load(Ordering::Relaxed);
            if !is_whole && second.succeeded + second.failed + second.wrong == 0 {
                return;
            }
            let number = if is_whole { format!("{:>4} s", second.second + 1) } else { "   end".into() };
            line(&format!(
                "{number}  {:>7}{}  p50 {:>7.0} µs  p99 {:>7.0} µs  failed {}  wrong {}",
                second.succeeded,
                if is_whole { "/s" } else { "  " },
                second.p50,
                second.p99,
                second.failed,
                second.wrong
            ));
        }
        _ => {}
    });
    bar.finish_and_clear();
    drop(watching);
    report
}

/// Sets `stop` at the first SIGINT, and ends the program at the second, for as long as the runtime is there.
fn interrupts(stop: Arc<AtomicBool>) -> io::Result<Runtime> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_io().build()?;
    let mut interrupt = runtime.block_on(async { signal(SignalKind::interrupt()) })?;
    runtime.spawn(async move {
        interrupt.recv().await;
        stop.store(true, Ordering::Relaxed);
        interrupt.recv().await;
        process::exit(130)
    });
    Ok(runtime)
}

impl Args {
    /// The measurement of these options.
    pub fn config(&self) -> Config {
        let mut config = Config::new(self.target.iter().cloned());
        config.duration = self.duration;
        config.warm_up = self.warm_up;
        config.workers = self.concurrency;
        config.threads = self.threads;
        config.window = self.window;
        config.connection_per_request = self.connection_per_request;
        config.rate = self.rate;
        config.timeout = self.timeout;
        config.connection_lifetime = self.connection_lifetime;
        config.swarms = match self.shape {
            Shape::Zipf => Swarms::Zipf(self.torrents.get()),
            Shape::Uniform => Swarms::Uniform(self.torrents.get()),
        };
        config.peers = self.peers.unwrap_or(config.torrents().max(config.peers));
        config.want = u32::try_from(self.numwant).ok();
        config.mix = self.mix.unwrap_or_default();
        config.scrape_hashes = self.scrape_hashes;
        config.seeders = self.seeders;
        config.started = self.started;
        config.completed = self.completed;
        config.stopped = self.stopped;
        config.sources = self.sources;
        config.fill = self.fill;
        config.seed = self.seed;
        config.server_pid = self.server_pid;
        config.announcer_uncounted = self.announcer_uncounted;
        config.strict = self.strict;
        config.xdp.clone_from(&self.xdp);
        config.beyond_loopback = self.i_own_this_target;
        config
    }
}
