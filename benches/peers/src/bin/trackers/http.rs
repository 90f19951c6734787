//! Trackers over HTTP: a connection for each request, connections that are kept, and pipelines.

use std::{
    env,
    error::Error,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use swarmkeep_workload::Workload;

use crate::{
    Load, Running, Tracker, WANT, aquatic_with, free_port,
    published::{AQUATIC_HTTP, TORRUST},
    torrust_command,
};

const KEPT: Load = Load { name: "kept", mix: "announce=1", shape: "zipf", torrents: 60_000, peers: 100_000 };
const EACH: Load = Load { name: "a connection each", ..KEPT };
const PIPELINED: Load = Load { name: "pipelined", ..KEPT };
const SCRAPES: Load = Load { name: "mix", mix: "announce=50,scrape=1", ..KEPT };
const IDLE: Load = Load { name: "10,000 idle", ..KEPT };

pub(crate) const LOADS: [Load; 5] = [EACH, KEPT, PIPELINED, SCRAPES, IDLE];

/// 64 requests in flight, or connections that are nearly idle. After 10 idle seconds, ours closes one.
pub(crate) fn in_flight(load: &Load) -> [&'static str; 6] {
    let [workers, option, value] = match load.name {
        name if name == EACH.name => ["64", "--connection-per-request", "--scrape-hashes=1"],
        name if name == PIPELINED.name => ["8", "--window", "8"],
        name if name == IDLE.name => ["10000", "--rate", "0.2"],
        _ => ["64", "--scrape-hashes", "20"],
    };
    ["--threads", "1", "--concurrency", workers, option, value]
}

/// Debian's opentracker closes each connection, and aquatic drops a request that it reads behind another.
pub(crate) fn can(tracker: &str, load: &Load) -> bool {
    match tracker {
        "opentracker" => load.name == EACH.name,
        "aquatic_http" => load.name != PIPELINED.name,
        "ceiling" => load.name != SCRAPES.name,
        _ => true,
    }
}

/// The trackers that can be built and run here. The reasons of the others are printed.
pub(crate) fn trackers(swarmkeep: &Path, wanted: impl Fn(&str) -> bool) -> Vec<Tracker> {
    let names = ["swarmkeep", "aquatic_http", "opentracker", "torrust-tracker", "ceiling"];
    let made = names.into_iter().filter(|name| wanted(name)).filter_map(|name| {
        let program = match name {
            "swarmkeep" => Ok(swarmkeep.to_owned()),
            "aquatic_http" => AQUATIC_HTTP.install(),
            "opentracker" => Ok(PathBuf::from(name)),
            "torrust-tracker" => TORRUST.install(),
            _ => env::current_exe().map_err(Into::into),
        };
        let tried = program.and_then(|program| {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            wait(&mut Running::start(&command(name, &program, at, &EACH)?, None)?, at)?;
            let command = Box::new(move |at: SocketAddr, load: &Load| command(name, &program, at, load));
            let announcer_uncounted = name == "aquatic_http";
            Ok(Tracker { name: name.into(), command, want: WANT, announcer_uncounted })
        });
        tried.inspect_err(|error| eprintln!("without {name}: {error}")).ok()
    });
    made.collect()
}

/// Waits until the tracker listens, and a while longer for opentracker, which then reads its list.
pub(crate) fn wait(server: &mut Running, at: SocketAddr) -> Result<(), Box<dyn Error>> {
    server.wait_until(|| TcpStream::connect(at).is_ok())?;
    thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn command(name: &str, program: &Path, at: SocketAddr, load: &Load) -> Result<Command, Box<dyn Error>> {
    let (mut command, is_proxied) = (Command::new(program), load.name == PIPELINED.name);
    match name {
        "swarmkeep" => {
            command.args(["serve", "--udp=off", "--admin=off", "--log=error", &format!("--http={at}")]);
            // The whole load comes from one address.
            command.args(["--http-connections=20000", "--http-connections-per-address=20000"]);
            command.arg("--endpoints-per-address=0").args(is_proxied.then_some("--http-proxy=127.0.0.0/8"));
        }
        "aquatic_http" => {
            let keep = load.name != EACH.name;
            let network = format!("[network]\naddress = \"{at}\"\nkeep_alive = {keep}\n");
            return aquatic_with(program, at.port(), &(network + "[cleaning]\nmax_peer_age = 2700\n"));
        }
        "opentracker" => {
            // Debian's serves only torrents on a list. These are the load generator's.
            let list = env::temp_dir().join(format!("swarmkeep-peers-opentracker-{}", at.port()));
            let workload = Workload::uniform(1, load.torrents.into(), 1);
            let lines = (0..workload.swarms()).map(|n| format!("{}\n", workload.info_hash(n)));
            fs::write(&list, lines.collect::<String>())?;
            command.args(["-i", &at.ip().to_string(), "-p", &at.port().to_string(), "-w"]).arg(list);
        }
        "torrust-tracker" => {
            let net = format!("[core.net]\non_reverse_proxy = {is_proxied}\n");
            let more = format!("{net}[[http_trackers]]\nbind_address = \"{at}\"\n");
            return torrust_command(program, &[at], &more);
        }
        _ => _ = command.args(["--http", "--ceiling", &at.to_string()]),
    }
    Ok(command)
}
