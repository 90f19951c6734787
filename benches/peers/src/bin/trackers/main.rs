//! Trackers of other projects beside swarmkeep's: the same requests, over real sockets, in the same run, in
//! turns.
//!
//! Tracker and load generator share one core, both under SCHED_BATCH: that ranks. With a core each the same
//! program differs by half from run to run, as packets cross between cores that are more or less far from
//! each other, so that is only reported.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use swarmkeep::catalog;
use swarmkeep_benches::{
    origin::Origin,
    tables::{self, Marked, Spread},
};

mod ceiling;
mod http;
mod published;
#[cfg(test)]
mod tests;
mod wire;

use published::{AQUATIC, Published, TORRUST};
use wire::Wire;

/// Trackers of other projects beside swarmkeep's: CPU time of a million answers, memory, answers per second.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
struct Args {
    /// The number of turns of each tracker at each load.
    #[arg(long, default_value = "5")]
    rounds: usize,

    /// The duration of each load, in seconds.
    #[arg(long, default_value = "5")]
    seconds: u64,

    /// Only trackers whose names contain one of these.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Only loads with these names.
    #[arg(long, value_name = "LOAD")]
    load: Vec<String>,

    /// Give tracker and load a core each. Ranks nothing: see above.
    #[arg(long)]
    two_cores: bool,

    /// Every store of swarmkeep's catalog in the same tracker, instead of trackers of other projects.
    #[arg(long)]
    stores: bool,

    /// swarmkeep's tracker with everything that protects and shows it, and with nothing of that, instead of
    /// trackers of other projects.
    #[arg(long, conflicts_with = "stores")]
    operators: bool,

    /// Trackers of other projects as published, and on swarmkeep's packed store by the patches in `patches`;
    /// with loads of its own.
    #[arg(long, conflicts_with_all = ["stores", "operators"])]
    patched: bool,

    /// swarmkeep's tracker through sockets and past them (`serve --xdp`), and aquatic, over a veth pair. The
    /// load generator's frames go past the sockets too, and its CPU time counts. Takes root.
    #[arg(long, conflicts_with_all = ["stores", "operators", "patched", "two_cores"])]
    wire: bool,

    /// Trackers over HTTP.
    #[arg(long, conflicts_with_all = ["stores", "operators", "patched", "wire"])]
    http: bool,

    /// Write the table into this file as well, between `<!-- trackers:begin -->` and `<!-- trackers:end -->`;
    /// with --stores, between `<!-- tracker-on-stores:begin -->` and `<!-- tracker-on-stores:end -->`, with
    /// --operators `operators`, with --two-cores `trackers-on-two-cores`, with --wire `wire`, with --http
    /// `http`. `docs/reports/trackers.md` has all six. With --patched it is `patched`, which the `README.md`
    /// here has.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,

    /// Write a short form of that table into this file, between the same marks.
    #[arg(long, value_name = "FILE", requires = "patched")]
    readme: Option<PathBuf>,

    /// Answer at this address with constants, as fast as it goes.
    #[arg(long, hide = true, value_name = "ADDR")]
    ceiling: Option<SocketAddr>,
}

/// The settings of the load generator: the same requests in flight and the same seed for all.
struct Load {
    name: &'static str,
    mix: &'static str,
    shape: &'static str,
    torrents: u32,
    peers: u32,
}

/// As in other comparisons of trackers: connects alone, many torrents of few peers, few of many, and
/// all together.
const LOADS: [Load; 4] = [
    Load { name: "connect", mix: "connect=1", torrents: 1, peers: 10, ..COLD },
    COLD,
    Load { name: "hot", torrents: 1000, peers: 100_000, ..COLD },
    Load { name: "mix", mix: "connect=50,announce=50,scrape=1", ..COLD },
];
const COLD: Load = Load { name: "cold", mix: "announce=1", shape: "zipf", torrents: 300_000, peers: 500_000 };

/// Loads for a tracker on two stores: small swarms and large ones, of the same number of peers.
const PATCHED_LOADS: [Load; 2] = [
    Load {
        name: "1,000,000 × 1",
        mix: "announce=1",
        shape: "uniform",
        torrents: 1_000_000,
        peers: 1_000_000,
    },
    Load { name: "10,000 × 100", mix: "announce=1", shape: "uniform", torrents: 10_000, peers: 1_000_000 },
];

/// 128 requests in flight, from four sockets of one thread.
const IN_FLIGHT: [&str; 6] = ["--concurrency", "4", "--window", "32", "--threads", "1"];

/// At an address, for a load.
type StartTracker = dyn Fn(SocketAddr, &Load) -> Result<Command, Box<dyn Error>>;

/// A tracker, and how to start it.
struct Tracker {
    name: String,
    command: Box<StartTracker>,
    /// The number of peers in each request.
    want: usize,
    /// Its counts leave out the announcer.
    announcer_uncounted: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(address) = args.ceiling {
        return Ok(if args.http { ceiling::serve_http(address) } else { ceiling::serve(address) }?);
    }
    let swarmkeep = build_swarmkeep()?;
    let wanted =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|wanted| name.contains(wanted));
    let only = |name: &str| wanted(&args.only, name);
    let trackers = match &args {
        Args { stores: true, .. } => stores(&swarmkeep, only),
        Args { operators: true, .. } => operators(&swarmkeep)?,
        Args { patched: true, .. } => others(only, &[AS_PUBLISHED, PATCHED])?,
        Args { wire: true, .. } => on_a_wire(&swarmkeep, only)?,
        Args { http: true, .. } => http::trackers(&swarmkeep, only),
        _ => trackers(&swarmkeep, only)?,
    };
    let loads = match &args {
        Args { patched: true, .. } => &PATCHED_LOADS[..],
        Args { http: true, .. } => &http::LOADS,
        _ => &LOADS,
    };
    // Trackers get it too, for their connections.
    let (_, most_files) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most_files, most_files)?;
    let _wire = args.wire.then(Wire::new).transpose()?;
    let readme = args.readme.as_deref().map(|file| Marked::read(file, "patched")).transpose()?;
    let origin = Origin::here(1, args.rounds, false);

    let mut rows = Vec::new();
    for load in loads.iter().filter(|load| wanted(&args.load, load.name)) {
        let can = |tracker: &&Tracker| !args.http || http::can(&tracker.name, load);
        let trackers: Vec<_> = trackers.iter().filter(can).collect();
        let mut turns: Vec<Vec<Turn>> = trackers.iter().map(|_| Vec::new()).collect();
        for round in 1..=args.rounds {
            for (tracker, turns) in trackers.iter().zip(&mut turns) {
                eprint!("{}, round {round} of {}: {} … ", load.name, args.rounds, tracker.name);
                let turn = measure(tracker, load, &swarmkeep, &args)
                    .map_err(|error| format!("{} under {}: {error}", tracker.name, load.name))?;
                eprintln!("{:.2} CPU s a million, {:.0}/s", turn.cpu, turn.per_second);
                turns.push(turn);
            }
        }
        let named = trackers.into_iter().zip(turns);
        rows.extend(named.map(|(tracker, turns)| Row { tracker: &tracker.name, load: load.name, turns }));
    }
    let medians = medians(&args, &origin.ended());
    let text = table(&rows, &args) + &medians;
    if let Some(file) = &args.into {
        let mark = match &args {
            Args { stores: true, .. } => "tracker-on-stores",
            Args { operators: true, .. } => "operators",
            Args { patched: true, .. } => "patched",
            Args { two_cores: true, .. } => "trackers-on-two-cores",
            Args { wire: true, .. } => "wire",
            Args { http: true, .. } => "http",
            _ => "trackers",
        };
        Marked::read(file, mark)?.write(&text)?;
    }
    if let Some(readme) = readme {
        readme.write(&(table_of_patches(&rows)? + &medians))?;
    }
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// The requested number of peers, if a tracker obeys it.
const WANT: usize = 50;

/// The number of peers in an answer of torrust's tracker, which ignores the requested number.
const TORRUST_ANSWERS: usize = 74;

/// swarmkeep's tracker on its default store, the fastest other one both ways, a widely used one, and the
/// ceiling.
fn trackers(swarmkeep: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Tracker>, Box<dyn Error>> {
    let mut trackers = Vec::new();
    if wanted("swarmkeep") {
        trackers.push(serve(swarmkeep, "swarmkeep", &["--admin", "off"]));
    }
    trackers.extend(others(&wanted, &[AS_PUBLISHED])?);
    if wanted("ceiling") {
        trackers.push(Tracker {
            name: "ceiling".into(),
            command: Box::new(|at, _| {
                let mut command = Command::new(env::current_exe()?);
                command.arg("--ceiling").arg(at.to_string());
                Ok(command)
            }),
            want: WANT,
            announcer_uncounted: false,
        });
    }
    Ok(trackers)
}

/// The suffix of a build for the name of a tracker, and a function that builds it or finds it built.
type Build = (&'static str, fn(&Published) -> Result<PathBuf, Box<dyn Error>>);

const AS_PUBLISHED: Build = ("", Published::install);
const PATCHED: Build = (" patched", Published::patch);

/// Trackers of other projects in these builds: `aquatic_udp` with both of its ways to the network, and
/// torrust's, which is left out where it does not build.
fn others(wanted: impl Fn(&str) -> bool, builds: &[Build]) -> Result<Vec<Tracker>, Box<dyn Error>> {
    let mut trackers = Vec::new();
    for (way, uring) in [("io_uring", true), ("mio", false)] {
        for (added, build) in builds {
            let name = format!("aquatic_udp {way}{added}");
            if wanted(&name) {
                let program = build(&AQUATIC)?;
                trackers.push(Tracker {
                    name,
                    command: Box::new(move |at, _| aquatic_command(&program, at, uring)),
                    want: WANT,
                    announcer_uncounted: true,
                });
            }
        }
    }
    for (added, build) in builds {
        let name = format!("torrust-tracker{added}");
        if wanted(&name) {
            match build(&TORRUST) {
                Ok(program) => trackers.push(Tracker {
                    name,
                    command: Box::new(move |at, _| torrust_command(&program, &[at], "")),
                    want: TORRUST_ANSWERS,
                    announcer_uncounted: false,
                }),
                Err(error) => eprintln!("without {name}, which does not build: {error}"),
            }
        }
    }
    Ok(trackers)
}

/// swarmkeep's tracker on each store of the catalog.
fn stores(swarmkeep: &Path, wanted: impl Fn(&str) -> bool) -> Vec<Tracker> {
    let names = catalog::ALL.iter().map(|store| store.name).filter(|name| wanted(name));
    names.map(|name| serve(swarmkeep, name, &["--repository", name, "--admin", "off"])).collect()
}

/// The defaults, with limits that a load from one address does not reach; and a tracker with all of it off.
fn operators(swarmkeep: &Path) -> Result<Vec<Tracker>, Box<dyn Error>> {
    let list = env::temp_dir().join(format!("swarmkeep-denied-{}", std::process::id()));
    let denied = (0..1_000_000_u64)
        .map(|n| format!("{:040x}\n", u128::from(n) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    fs::write(&list, denied.collect::<String>())?;
    let list = list.to_str().ok_or("a folder for temporary files that is text")?;
    let on =
        ["--admin=127.0.0.1:0", "--deny-list", list, "--requests=1000000", "--requests-at-once=100000000"];
    let on = [&on[..], &["--unlimited=192.0.2.1", "--jitter=10", "--longest-interval=35m"]].concat();
    let off = ["--admin", "off", "--requests", "0", "--jitter", "0"];
    Ok(vec![serve(swarmkeep, "everything on", &on), serve(swarmkeep, "everything off", &off)])
}

/// swarmkeep's tracker with some more options.
fn serve(swarmkeep: &Path, name: &str, options: &[&str]) -> Tracker {
    let swarmkeep = swarmkeep.to_owned();
    let options: Vec<_> = options.iter().map(ToString::to_string).collect();
    Tracker {
        name: name.into(),
        command: Box::new(move |at, _| {
            let mut command = Command::new(&swarmkeep);
            command.args(["serve", "--http=off", "--workers=1", "--log=error", &format!("--udp={at}")]);
            command.args(&options);
            Ok(command)
        }),
        want: WANT,
        announcer_uncounted: false,
    }
}

/// swarmkeep's tracker through sockets and past them, and aquatic.
fn on_a_wire(swarmkeep: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Tracker>, Box<dyn Error>> {
    // There are no limits for the loopback.
    let open = ["--admin", "off", "--local-peers", "take", "--requests", "0", "--endpoints-per-address", "0"];
    let ways: [(&str, &[&str]); 4] = [
        (SOCKETS, &[]),
        ("swarmkeep, XDP native", &["--xdp", wire::SERVER, "--xdp-connects"]),
        ("swarmkeep, XDP native, connects in user space", &["--xdp", wire::SERVER, "--xdp-connects=false"]),
        ("swarmkeep, XDP generic", &["--xdp", wire::SERVER, "--xdp-mode", "generic"]),
    ];
    let ways = ways.into_iter().filter(|(name, _)| wanted(name));
    let mut trackers: Vec<_> =
        ways.map(|(name, way)| serve(swarmkeep, name, &[&open[..], way].concat())).collect();
    trackers.extend(others(|name: &str| name.starts_with("aquatic") && wanted(name), &[AS_PUBLISHED])?);
    Ok(trackers)
}

/// The row with which the others are compared there.
const SOCKETS: &str = "swarmkeep, sockets";

/// The results of one turn.
struct Turn {
    /// The load generator's time too, for a million answers.
    machine: f64,
    /// CPU seconds per million answers, user and system.
    cpu: f64,
    per_second: f64,
    /// In microseconds.
    p99: f64,
    failed: u64,
    peers_an_answer: f64,
    /// Resident sets, in bytes: before the first announce, and the largest.
    rss_empty: u64,
    rss_full: u64,
}

/// Starts the tracker, loads it, stops it.
fn measure(tracker: &Tracker, load: &Load, swarmkeep: &Path, args: &Args) -> Result<Turn, Box<dyn Error>> {
    let at = SocketAddr::from((if args.wire { wire::TRACKER } else { Ipv4Addr::LOCALHOST }, free_port()?));
    let mut server = Running::start(&(tracker.command)(at, load)?, args.wire.then_some(wire::SERVER))?;
    // A client at the other end has no socket here.
    match args {
        Args { wire: true, .. } => thread::sleep(Duration::from_secs(1)),
        Args { http: true, .. } => http::wait(&mut server, at)?,
        _ => server.wait_until_it_answers(at.port())?,
    }
    let (target, in_flight) = match args.http {
        true => (format!("http://{at}/announce"), http::in_flight(load)),
        false => (at.to_string(), IN_FLIGHT),
    };
    let rss_empty = rss_of(server.0.id(), "VmRSS:")?;
    let mut command = on_core(usize::from(args.two_cores), args.wire.then_some(wire::LOAD), swarmkeep);
    command
        .args(["load", "--target", &target, "--json", "--numwant", &tracker.want.to_string()])
        .args(["--duration", &format!("{}s", args.seconds), "--server-pid", &server.0.id().to_string()])
        .args(in_flight)
        .args(["--mix", load.mix, "--shape", load.shape])
        .args(["--torrents", &load.torrents.to_string(), "--peers", &load.peers.to_string()])
        .args(load.mix.contains("announce").then_some("--fill"))
        .args(tracker.announcer_uncounted.then_some("--announcer-uncounted"))
        .args(args.wire.then_some(["--i-own-this-target", "--xdp", wire::LOAD]).into_iter().flatten());
    let output = command.stderr(Stdio::piped()).output()?;
    let failed = || format!("the load generator: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| failed())?;
    if !output.status.success() {
        return Err(failed().into());
    }
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let cpu = number(&report["server"]["cpu_seconds_per_million"]);
    let answers = number(&report["succeeded"]) + number(&report["failed"]);
    Ok(Turn {
        machine: cpu + number(&report["generator"]["cpu_seconds"]) / answers * 1e6,
        cpu,
        per_second: number(&report["requests_per_second"]),
        p99: number(&report["latency"]["all"]["p99"]),
        failed: report["failed"].as_u64().unwrap_or(u64::MAX),
        peers_an_answer: number(&report["peers"]["per_answer"]),
        rss_empty,
        rss_full: rss_of(server.0.id(), "VmHWM:")?,
    })
}

/// A tracker's process, which ends with this.
struct Running(Child);

impl Running {
    fn start(command: &Command, namespace: Option<&str>) -> io::Result<Self> {
        let mut pinned = on_core(0, namespace, Path::new(command.get_program()));
        let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        pinned.args(command.get_args()).envs(variables).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(pinned.spawn()?))
    }

    fn wait_until_it_answers(&mut self, port: u16) -> Result<(), Box<dyn Error>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let connect = [0, 0, 4, 0x17, 0x27, 0x10, 0x19, 0x80, 0, 0, 0, 0, 1, 2, 3, 4];
        let is_id = |len: usize| len == 16;
        self.wait_until(|| socket.send(&connect).is_ok() && socket.recv(&mut [0; 64]).is_ok_and(is_id))
    }

    fn wait_until(&mut self, answers: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
        let enough = Instant::now() + Duration::from_secs(10);
        while Instant::now() < enough {
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("it ended at once: {status}").into());
            }
            if answers() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err("it does not answer".into())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors would have no reader, and there are none: the child is ours and has not been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program under SCHED_BATCH on one core, and in a network namespace. `ip`, `taskset` and `chrt`
/// (util-linux) replace themselves by it, so its process id is theirs.
fn on_core(core: usize, namespace: Option<&str>, program: &Path) -> Command {
    let mut command = namespace.map_or_else(|| Command::new("env"), Wire::at);
    command.args(["taskset", "--cpu-list", &core.to_string(), "chrt", "--batch", "0"]).arg(program);
    command
}

fn free_port() -> io::Result<u16> {
    Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn rss_of(pid: u32, field: &str) -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no resident set")?;
    Ok(rss.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn build_swarmkeep() -> Result<PathBuf, Box<dyn Error>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or(workspace.join("target"), PathBuf::from);
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--package", "swarmkeep-cli"]);
    run(command.arg("--target-dir").arg(&target).current_dir(workspace))?;
    Ok(target.join("release/swarmkeep"))
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.stdout(io::stderr()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// One worker, as many peers an answer as ours, and no statistics.
fn aquatic_command(aquatic: &Path, address: SocketAddr, uring: bool) -> Result<Command, Box<dyn Error>> {
    let text = format!(
        "socket_workers = 1\n\
         [network]\naddress = \"{address}\"\nuse_io_uring = {uring}\n\
         [protocol]\nmax_response_peers = 50\n\
         [statistics]\ninterval = 0\nprint_to_stdout = false\n\
         [cleaning]\nmax_peer_age = 2700\n"
    );
    aquatic_with(aquatic, address.port(), &text)
}

fn aquatic_with(aquatic: &Path, port: u16, text: &str) -> Result<Command, Box<dyn Error>> {
    let config = env::temp_dir().join(format!("swarmkeep-peers-aquatic-{port}.toml"));
    fs::write(&config, text)?;
    let mut command = Command::new(aquatic);
    command.arg("-c").arg(config);
    Ok(command)
}

/// Public, and without statistics; with `more` settings. It has as many threads as its runtime likes; all are
/// on the one core.
fn torrust_command(torrust: &Path, udp: &[SocketAddr], more: &str) -> Result<Command, Box<dyn Error>> {
    let [config, database] = ["toml", "db"].map(|suffix| torrust_file(udp[0].port(), suffix));
    let udp: String =
        udp.iter().map(|address| format!("[[udp_trackers]]\nbind_address = \"{address}\"\n")).collect();
    let text = format!(
        "[metadata]\napp = \"torrust-tracker\"\npurpose = \"configuration\"\nschema_version = \"2.0.0\"\n\
         [logging]\nthreshold = \"error\"\n\
         [core]\nlisted = false\nprivate = false\ntracker_usage_statistics = false\n\
         [core.database]\ndriver = \"sqlite3\"\npath = {database:?}\n\
         [health_check_api]\nbind_address = \"127.0.0.1:0\"\n\
         {udp}{more}"
    );
    fs::write(&config, text)?;
    let mut command = Command::new(torrust);
    command.env("TORRUST_TRACKER_CONFIG_TOML_PATH", config);
    Ok(command)
}

/// Where torrust's tracker at a port has its settings and its database.
fn torrust_file(port: u16, suffix: &str) -> PathBuf {
    env::temp_dir().join(format!("swarmkeep-peers-torrust-{port}.{suffix}"))
}

/// The turns of a tracker at a load.
struct Row<'a> {
    tracker: &'a str,
    load: &'static str,
    turns: Vec<Turn>,
}

impl Row<'_> {
    /// The least, the median, and the most.
    fn spread(&self, of: fn(&Turn) -> f64) -> [f64; 3] {
        let Spread { least, median, most } = Spread::of(self.turns.iter().map(of)).expect("a turn");
        [least, median, most]
    }

    fn median(&self, of: fn(&Turn) -> f64) -> f64 {
        self.spread(of)[1]
    }

    fn failed(&self) -> u64 {
        self.turns.iter().map(|turn| turn.failed).sum()
    }
}

/// The whole machine's CPU time beside the tracker's own.
fn table_of_wire(rows: &[Row<'_>]) -> String {
    let mut lines = vec![
        "| load | tracker | CPU s a million, with the load generator (least–most) | of our sockets | the tracker's alone | of our sockets | answers/s | failed |".to_owned(),
        "|---".repeat(8) + "|",
    ];
    for row in rows {
        let sockets = rows.iter().find(|other| other.load == row.load && other.tracker == SOCKETS);
        let ratio =
            |of: fn(&Turn) -> f64| sockets.map_or(f64::NAN, |sockets| row.median(of) / sockets.median(of));
        let [least, machine, most] = row.spread(|turn| turn.machine);
        lines.push(format!(
            "| {} | {} | {machine:.2} ({least:.2}–{most:.2}) | {:.2} | {:.2} | {:.2} | {:.0} | {} |",
            row.load,
            row.tracker,
            ratio(|turn| turn.machine),
            row.median(|turn| turn.cpu),
            ratio(|turn| turn.cpu),
            row.median(|turn| turn.per_second),
            row.failed(),
        ));
    }
    lines.join("\n") + "\n"
}

/// The trackers on two stores, for a front page.
fn table_of_patches(rows: &[Row<'_>]) -> Result<String, &'static str> {
    let patch = |row: &Row<'_>| {
        let is_patched = |name: &str| name.strip_suffix(PATCHED.0) == Some(row.tracker);
        rows.iter().find(|other| other.load == row.load && is_patched(other.tracker))
    };
    let pairs: Vec<_> = rows.iter().filter_map(|row| Some((row, patch(row)?))).collect();
    pairs.first().ok_or("no tracker was measured with its patch and without it: change --only or --load")?;
    let table = tables::table(
        &pairs,
        &[
            ("tracker", &|(row, _)| row.tracker.to_owned()),
            ("torrents × peers", &|(row, _)| row.load.to_owned()),
            ("CPU seconds per million answers", &|(row, patched)| {
                let [before, after] = [row, patched].map(|row| row.median(|turn| turn.cpu));
                format!("{before:.2} → {after:.2}")
            }),
            ("largest RSS, MB", &|(row, patched)| {
                let [before, after] = [row, patched].map(|row| row.median(|turn| turn.rss_full as f64) / 1e6);
                format!("{before:.1} → {after:.1}")
            }),
        ],
    );
    let failed: u64 = rows.iter().map(Row::failed).sum();
    let price = "Patched, a tracker keeps no peer ids or byte counts, and `stopped` gets no peers.";
    Ok(format!("{table}\n{price} Unanswered requests, in all rows: {failed}.\n"))
}

fn medians(args: &Args, origin: &Origin) -> String {
    format!(
        "\nMedians of {} turns of {} s; tracker and load generator {}. By {origin}.\n",
        args.rounds,
        args.seconds,
        if args.two_cores { "on a core each" } else { "on the same core" },
    )
}

fn table(rows: &[Row<'_>], args: &Args) -> String {
    if args.wire {
        return table_of_wire(rows);
    }
    let mut best: BTreeMap<&str, f64> = BTreeMap::new();
    let others = if args.http { &["aquatic", "opentracker", "torrust"][..] } else { &["aquatic"] };
    let is_other = |row: &&Row<'_>| others.iter().any(|other| row.tracker.starts_with(other));
    // A refusal costs little.
    for row in rows.iter().filter(|row| is_other(row) && row.failed() == 0) {
        let cpu = row.median(|turn| turn.cpu);
        best.entry(row.load).and_modify(|best| *best = best.min(cpu)).or_insert(cpu);
    }
    let of_other_trackers = !args.stores && !args.patched;
    let what = if args.stores { "store" } else { "tracker" };
    let ratio_title = match args {
        Args { http: true, .. } => " of the best other without failures | of the ceiling |",
        _ if of_other_trackers => " of the better aquatic |",
        _ => "",
    };
    let full_title = if args.patched { "RSS full (least–most)" } else { "RSS full" };
    let titles = format!(
        "| load | {what} | CPU s a million (least–most) |{ratio_title} answers/s | p99 | failed | peers an answer | RSS empty | {full_title} |"
    );
    let dashes = "|---".repeat(titles.matches('|').count() - 1) + "|";
    let mut lines = vec![titles, dashes];
    for row in rows {
        let [fastest, cpu, slowest] = row.spread(|turn| turn.cpu);
        let ceiling = rows.iter().find(|other| other.load == row.load && other.tracker == "ceiling");
        let ceiling = ceiling.map(|ceiling| ceiling.median(|turn| turn.cpu));
        let ratios = [of_other_trackers.then(|| best.get(row.load).copied()), args.http.then_some(ceiling)];
        let ratio = |of: Option<f64>| of.map_or("  |".to_owned(), |of| format!(" {:.2} |", cpu / of));
        let ratio: String = ratios.into_iter().flatten().map(ratio).collect();
        let [least, full, most] = row.spread(|turn| turn.rss_full as f64 / 1e6);
        let full = if args.patched {
            format!("{full:.1} ({least:.1}–{most:.1}) MB")
        } else {
            format!("{full:.1} MB")
        };
        lines.push(format!(
            "| {} | {} | {cpu:.2} ({fastest:.2}–{slowest:.2}) |{ratio} {:.0} | {:.0} µs | {} | {:.1} | {:.1} MB | {full} |",
            row.load,
            row.tracker,
            row.median(|turn| turn.per_second),
            row.median(|turn| turn.p99),
            row.failed(),
            row.median(|turn| turn.peers_an_answer),
            row.median(|turn| turn.rss_empty as f64) / 1e6,
        ));
    }
    lines.join("\n") + "\n"
}
