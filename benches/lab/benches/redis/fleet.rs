//! The cost of an announce for a tracker and all servers of its store: none, one with a replica, and a
//! Cluster of three masters with a replica each. The tracker is a process; announces come over UDP.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use swarmkeep_benches::tables::{significant, table, whole};
use swarmkeep_lab::{Tracker, median};
use swarmkeep_load::{Config, Report, Swarms, Target};
use swarmkeep_servers::{Cluster, Server};

use crate::{Bench, Result, drive::module};

/// The processor time of an announce, in microseconds, and the announces of a call.
struct Sample {
    announces_per_second: f64,
    per_call: f64,
    tracker_us: f64,
    masters_us: f64,
    replicas_us: f64,
}

struct Row {
    name: &'static str,
    samples: Vec<Sample>,
}

/// A tracker, which is this program, and the servers of its store: the masters, then their replicas.
struct Fleet {
    _tracker: Tracker,
    load: Config,
    servers: Servers,
    masters: usize,
}

enum Servers {
    None,
    Pair([Server; 2]),
    Cluster(Cluster),
}

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    let module = module()?;
    let module = [("loadmodule", module.as_str())];
    let mut fleets = [
        ("packed, no server", Fleet::start(bench, Servers::None, 0)?),
        ("functions: 1 server, 1 replica", Fleet::start(bench, Servers::Pair(pair(&[])?), 1)?),
        ("functions: 3 masters, 3 replicas", Fleet::start(bench, Servers::Cluster(cluster(&[])?), 3)?),
        ("module: 1 server, 1 replica", Fleet::start(bench, Servers::Pair(pair(&module)?), 1)?),
        ("module: 3 masters, 3 replicas", Fleet::start(bench, Servers::Cluster(cluster(&module)?), 3)?),
    ];
    for (name, fleet) in &mut fleets {
        bench.say(format!("{name}: filling"));
        fleet.load.fill = true;
        fleet.run()?;
        fleet.load.fill = false;
    }
    let mut rows = fleets.each_ref().map(|&(name, _)| Row { name, samples: Vec::new() });
    for turn in 0..bench.turns {
        for ((name, fleet), row) in fleets.iter().zip(&mut rows) {
            bench.say(format!("{name}: turn {}", turn + 1));
            row.samples.push(fleet.sample()?);
        }
    }
    Ok(text(&rows))
}

fn pair(directives: &[(&str, &str)]) -> Result<[Server; 2]> {
    let [master, replica] = [Server::start_with(directives)?, Server::start_with(directives)?];
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while replica.info("replication")?.get("master_link_status").is_none_or(|status| status != "up") {
        if Instant::now() > deadline {
            return Err("the replica does not reach its master".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok([master, replica])
}

fn cluster(directives: &[(&str, &str)]) -> Result<Cluster> {
    // A second, as in tests, is too little for servers that share two cores.
    Ok(Cluster::start_with(3, 1, &[&[("cluster-node-timeout", "15000")], directives].concat())?)
}

impl Fleet {
    fn start(bench: &Bench, servers: Servers, masters: usize) -> Result<Self> {
        let urls = match &servers {
            Servers::None => Vec::new(),
            Servers::Pair([master, _]) => vec![master.url()],
            Servers::Cluster(cluster) => cluster.urls(),
        };
        let mut arguments = vec!["--log", "error", "--workers", "1"];
        if !urls.is_empty() {
            arguments.extend(["--repository", "redis"]);
            arguments.extend(urls.iter().flat_map(|url| ["--redis-url", url]));
        }
        let (tracker, address) = Tracker::start(&env::current_exe()?, &arguments)?;
        let mut load = Config::new([Target::Udp(address)]);
        load.duration = bench.during;
        load.warm_up = Duration::ZERO;
        (load.workers, load.window, load.threads) = (4, Some(32), Some(1));
        load.mix = "announce=1".parse()?;
        let (swarms, peers) = if bench.test { (1_000, 2_000) } else { (300_000, 500_000) };
        (load.swarms, load.peers) = (Swarms::Zipf(swarms), peers);
        load.server_pid = Some(tracker.pid());
        Ok(Self { _tracker: tracker, load, servers, masters })
    }

    fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::None => &[],
            Servers::Pair(pair) => pair,
            Servers::Cluster(cluster) => cluster.servers(),
        }
    }

    /// The processor time of the masters and of the replicas, and the calls that the masters have answered.
    fn used(&self) -> Result<([Duration; 2], u64)> {
        let (masters, replicas) = self.servers().split_at(self.masters);
        let cpu = |servers: &[Server]| -> Result<Duration> {
            servers.iter().try_fold(Duration::ZERO, |sum, server| Ok(sum + server.cpu()?))
        };
        let mut calls = 0;
        for master in masters {
            let stats = master.info("commandstats")?;
            let of = |command: &str| {
                let stats = stats.get(&format!("cmdstat_{command}"))?;
                stats.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
            };
            let commands = ["fcall", "swarmkeep.announce", "swarmkeep.leave"];
            calls += commands.into_iter().filter_map(of).sum::<u64>();
        }
        Ok(([cpu(masters)?, cpu(replicas)?], calls))
    }

    fn run(&self) -> Result<Report> {
        let report = swarmkeep_load::run(&self.load, &mut |_| {})?;
        if report.failed + report.wrong > 0 {
            return Err(format!("{} failed, {:?}", report.failed, report.wrong_answers).into());
        }
        Ok(report)
    }

    fn sample(&self) -> Result<Sample> {
        let (cpu, calls) = self.used()?;
        let report = self.run()?;
        // The stream to a replica ends a moment later.
        thread::sleep(Duration::from_millis(100));
        let (cpu_now, calls_now) = self.used()?;
        let announces = report.succeeded as f64;
        let each = |now: Duration, before| now.saturating_sub(before).as_secs_f64() * 1e6 / announces;
        let tracker = report.server.ok_or("the tracker has ended")?;
        Ok(Sample {
            announces_per_second: report.requests_per_second,
            per_call: if calls_now > calls { announces / (calls_now - calls) as f64 } else { 0.0 },
            tracker_us: tracker.cpu_seconds_per_million,
            masters_us: each(cpu_now[0], cpu[0]),
            replicas_us: each(cpu_now[1], cpu[1]),
        })
    }
}

impl Row {
    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.samples, number)
    }

    fn in_all(&self) -> f64 {
        self.median(|sample| sample.tracker_us)
            + self.median(|sample| sample.masters_us)
            + self.median(|sample| sample.replicas_us)
    }
}

fn text(rows: &[Row]) -> String {
    let times = |row: &Row| significant(row.in_all() / rows[0].in_all());
    let table = table(
        rows,
        &[
            ("servers", &|row| row.name.to_owned()),
            ("announces per second", &|row| whole(row.median(|sample| sample.announces_per_second))),
            ("announces per call", &|row| significant(row.median(|sample| sample.per_call))),
            ("tracker µs", &|row| significant(row.median(|sample| sample.tracker_us))),
            ("masters µs", &|row| significant(row.median(|sample| sample.masters_us))),
            ("replicas µs", &|row| significant(row.median(|sample| sample.replicas_us))),
            ("in all µs", &|row| significant(row.in_all())),
            ("times packed", &times),
        ],
    );
    format!("## A tracker with replicas, and with a Cluster\n\n{FLEET}\n\n{table}")
}

const FLEET: &str = "\
A tracker with one worker, as a process of its own, its servers, and a load generator (`swarmkeep load`, 128
requests in flight over UDP, 500,000 peers in 300,000 torrents, sizes by Zipf's law, 50 peers wanted, 5 %
`stopped`) share this machine. The tracker sends what has come meanwhile in calls of up to 32 announces to a
single server. A call to a Cluster has announces of one shard only, so nearly always a single one. The times
are processor time per announce: of the tracker, and of the main threads of all masters and of all replicas.";
