//! Announces to all designs on one server, and their cost.

use std::{
    fmt,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::try_join_all;
use rustix::time::{ClockId, clock_gettime};
use swarmkeep::{
    Announce, AsyncTorrentRepository, CompactV4, CompactV6, HashKey, PeerBuffer, RepositoryConfig, Request,
    SplitMix64, SwarmStats, Timestamp,
};
use swarmkeep_benches::tables::grouped;
use swarmkeep_lab::median;
use swarmkeep_redis::{Engine, RedisConfig, RedisRepository};
use swarmkeep_servers::Server;
use swarmkeep_workload::Workload;
use tokio::runtime::{Builder, Runtime};

use crate::{Bench, Result, naive::Naive};

/// The number of peers that each announce wants.
pub(crate) const WANT: usize = 50;

/// Announces that wait for their answers at once; in batches, `BATCHES` callers with `BATCH` each.
const TASKS: u64 = 64;
const BATCH: usize = 32;
const BATCHES: u64 = 8;

/// Connections of each design: the default of [`RedisConfig`].
const CONNECTIONS: usize = 2;

/// A design, and a way to announce.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Design {
    Published,
    Naive,
    Random,
    One,
    Batch,
    ModuleOne,
    ModuleBatch,
}

impl Design {
    pub(crate) const fn is_batch(self) -> bool {
        matches!(self, Self::Batch | Self::ModuleBatch)
    }

    pub(crate) const ALL: [Self; 7] = [
        Self::Published,
        Self::Naive,
        Self::Random,
        Self::One,
        Self::Batch,
        Self::ModuleOne,
        Self::ModuleBatch,
    ];

    /// One for each store.
    pub(crate) const STORES: [Self; 3] = [Self::Naive, Self::One, Self::ModuleOne];
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Published => "naive, as published",
            Self::Naive => "naive",
            Self::Random => "naive, `HRANDFIELD`",
            Self::One => "functions, `announce`",
            Self::Batch => "functions, `announce_batch`",
            Self::ModuleOne => "module, `announce`",
            Self::ModuleBatch => "module, `announce_batch`",
        })
    }
}

/// The threads that clients run on: all cores but the server's.
pub(crate) fn runtime() -> Result<Runtime> {
    let cores = available_parallelism().map_or(1, |cores| cores.get());
    Ok(Builder::new_multi_thread().worker_threads(cores.saturating_sub(1).max(1)).enable_all().build()?)
}

/// The module as Cargo builds it for this bench.
pub(crate) fn module() -> Result<String> {
    let module = std::env::current_exe()?.with_file_name("libswarmkeep_module.so");
    Ok(module.to_str().ok_or("a path in UTF-8")?.to_owned())
}

/// All designs on one server, and nothing else there.
pub(crate) struct Stores {
    // Dropped before the server, to which their connections lead.
    naive: Naive,
    functions: RedisRepository,
    module: RedisRepository,
    pub(crate) server: Server,
}

impl Stores {
    pub(crate) fn start(runtime: &Runtime, shards: Option<usize>) -> Result<Arc<Self>> {
        let server = Server::start_with(&[("loadmodule", &module()?)])?;
        let config = RepositoryConfig::new(HashKey::from_bytes([7; 16]));
        let config = shards.iter().fold(config, |config, &shards| config.shards(shards));
        let (mut functions, mut module) = (settings(&server), settings(&server));
        "m:".clone_into(&mut module.prefix);
        let module = runtime.block_on(RedisRepository::connect(&module, &config))?;
        functions.engine = Some(Engine::Functions);
        let functions = runtime.block_on(RedisRepository::connect(&functions, &config))?;
        let naive = runtime.block_on(Naive::connect(&server.url(), CONNECTIONS))?;
        Ok(Arc::new(Self { naive, functions, module, server }))
    }

    /// Puts every peer of a population into the empty store of one design.
    pub(crate) fn fill(self: &Arc<Self>, runtime: &Runtime, way: Design, workload: &Workload) -> Result<()> {
        runtime.block_on(async {
            let before = self.peers(way).await?;
            let parts = (0..BATCHES).map(|part| {
                let (stores, workload) = (Arc::clone(self), workload.clone());
                let filling = async move {
                    let fill = workload.fill_part(part, BATCHES);
                    match way {
                        Design::Published | Design::Naive | Design::Random => {
                            stores.naive.fill(part as usize, fill, clock()).await
                        }
                        _ => fill_ours(stores.of(way), fill).await,
                    }
                };
                async { tokio::spawn(filling).await? }
            });
            try_join_all(parts).await?;
            match self.peers(way).await? - before {
                added if added == workload.peers() => Ok(()),
                added => Err(format!("{way} has {added} peers more, of {}", workload.peers()).into()),
            }
        })
    }

    async fn peers(&self, way: Design) -> Result<u64> {
        match way {
            Design::Published | Design::Naive | Design::Random => self.naive.peers().await,
            _ => {
                let totals = self.of(way).totals().await?;
                Ok(totals.v4.peers() + totals.v6.peers())
            }
        }
    }

    /// Our store of a design.
    const fn of(&self, way: Design) -> &RedisRepository {
        match way {
            Design::ModuleOne | Design::ModuleBatch => &self.module,
            _ => &self.functions,
        }
    }

    /// One announce. Returns the number of peers in the answer.
    pub(crate) async fn announce(
        &self,
        way: Design,
        task: u64,
        announce: &Announce,
        rng: &mut SplitMix64,
    ) -> Result<usize> {
        let (mut v4, mut v6) = ([0; WANT * CompactV4::LEN], [0; WANT * CompactV6::LEN]);
        let mut peers = PeerBuffer::new(&mut v4, &mut v6);
        self.ask(way, task, announce, rng, &mut peers).await?;
        Ok(peers.len())
    }

    /// One announce. Returns the whole answer.
    pub(crate) async fn ask(
        &self,
        way: Design,
        task: u64,
        announce: &Announce,
        rng: &mut SplitMix64,
        peers: &mut PeerBuffer<'_>,
    ) -> Result<SwarmStats> {
        let (via, now) = (task as usize, clock());
        match way {
            Design::Published => self.naive.as_published(via, announce, now, peers).await,
            Design::Naive => self.naive.announce(via, false, announce, now, peers).await,
            Design::Random => self.naive.announce(via, true, announce, now, peers).await,
            _ => Ok(self.of(way).announce(announce, now, rng, peers).await?.stats),
        }
    }

    /// One caller's announces, one after another.
    async fn one_by_one(&self, way: Design, workload: &Workload, task: u64, until: Instant) -> Result<Tally> {
        let (mut rng, mut tally) = (SplitMix64::new(task), Tally::default());
        for announce in workload.announces(task) {
            if Instant::now() >= until && tally.announces > 0 {
                break;
            }
            tally.peers += self.announce(way, task, &announce, &mut rng).await?;
            tally.announces += 1;
        }
        Ok(tally)
    }

    /// One caller's batches.
    async fn in_batches(&self, way: Design, workload: &Workload, task: u64, until: Instant) -> Result<Tally> {
        const ROOM: usize = WANT * (CompactV4::LEN + CompactV6::LEN);
        let (mut rng, mut tally) = (SplitMix64::new(task), Tally::default());
        let (mut announces, mut room) = (workload.announces(task), vec![0; BATCH * ROOM]);
        while tally.announces == 0 || Instant::now() < until {
            let mut batch: Vec<_> = room
                .chunks_mut(ROOM)
                .zip(announces.by_ref())
                .map(|(room, announce)| {
                    let (v4, v6) = room.split_at_mut(WANT * CompactV4::LEN);
                    Request::new(announce, PeerBuffer::new(v4, v6))
                })
                .collect();
            self.of(way).announce_batch(&mut batch, clock(), &mut rng).await?;
            tally.peers += batch.iter().map(|request| request.peers.len()).sum::<usize>();
            tally.announces += batch.len();
        }
        Ok(tally)
    }

    /// As many announces as the store can answer in a time.
    fn saturate(
        self: &Arc<Self>,
        runtime: &Runtime,
        way: Design,
        workload: &Arc<Workload>,
        during: Duration,
    ) -> Result<Sample> {
        let before = RunTotals::take(&self.server)?;
        let until = before.at + during;
        let tallies = runtime.block_on(async {
            let tasks = if way.is_batch() { BATCHES } else { TASKS };
            let working = (0..tasks).map(|task| {
                let (stores, workload) = (Arc::clone(self), Arc::clone(workload));
                let working = async move {
                    match way {
                        way if way.is_batch() => stores.in_batches(way, &workload, task, until).await,
                        _ => stores.one_by_one(way, &workload, task, until).await,
                    }
                };
                async { tokio::spawn(working).await? }
            });
            try_join_all(working).await
        })?;
        let wall = before.at.elapsed();
        let after = RunTotals::take(&self.server)?;
        let announces = tallies.iter().map(|tally| tally.announces).sum::<usize>() as f64;
        let each = |used: Duration| used.as_secs_f64() * 1e6 / announces;
        Ok(Sample {
            announces_per_second: announces / wall.as_secs_f64(),
            server_us: each(after.server.saturating_sub(before.server)),
            client_us: each(after.client.saturating_sub(before.client)),
            bytes_to_server: (after.input - before.input) as f64 / announces,
            bytes_from_server: (after.output - before.output) as f64 / announces,
            peers: tallies.iter().map(|tally| tally.peers).sum::<usize>() as f64 / announces,
        })
    }
}

/// The runs of a design on one population, one for each turn.
pub(crate) struct Row {
    pub(crate) swarms: u64,
    pub(crate) peers_per_swarm: u32,
    pub(crate) way: Design,
    samples: Vec<Sample>,
}

impl Row {
    pub(crate) fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.samples, number)
    }

    pub(crate) fn population(&self) -> String {
        population(self.swarms, self.peers_per_swarm)
    }
}

/// A population as tables show it.
pub(crate) fn population(swarms: u64, peers_per_swarm: u32) -> String {
    format!("{} × {}", grouped(swarms), grouped(peers_per_swarm.into()))
}

/// Announces over IPv4 to one server that is filled with a population, none of which leaves. The ways take
/// turns.
pub(crate) fn compare(bench: &Bench, ways: &[Design], swarms: u64, peers_per_swarm: u32) -> Result<Vec<Row>> {
    let name = population(swarms, peers_per_swarm);
    let workload = Workload::uniform(1, swarms, peers_per_swarm).with_profile(|profile| {
        (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
    });
    let stores = Stores::start(&bench.runtime, None)?;
    for way in Design::STORES.into_iter().filter(|way| ways.contains(way)) {
        bench.say(format!("{name}: filling, {way}"));
        stores.fill(&bench.runtime, way, &workload)?;
    }
    let workload = Arc::new(workload);
    let row = |&way| Row { swarms, peers_per_swarm, way, samples: Vec::new() };
    let mut rows: Vec<_> = ways.iter().map(row).collect();
    for turn in 0..bench.turns {
        for Row { way, samples, .. } in &mut rows {
            bench.say(format!("{name}, turn {}, {way}", turn + 1));
            samples.push(stores.saturate(&bench.runtime, *way, &workload, bench.during)?);
        }
    }
    Ok(rows)
}

async fn fill_ours(store: &RedisRepository, mut announces: impl Iterator<Item = Announce>) -> Result<()> {
    const AT_ONCE: usize = 128;
    loop {
        let batch = announces.by_ref().take(AT_ONCE);
        let mut batch: Vec<_> =
            batch.map(|announce| Request::new(announce.want(0), PeerBuffer::new(&mut [], &mut []))).collect();
        if batch.is_empty() {
            return Ok(());
        }
        store.announce_batch(&mut batch, clock(), &mut SplitMix64::new(1)).await?;
    }
}

/// The settings of a store of a bench, with much patience, since a run keeps the server busy.
fn settings(server: &Server) -> RedisConfig {
    let mut config = RedisConfig::new([server.url()]);
    config.clock = Some(clock);
    (config.prefix, config.connections, config.in_flight, config.patience) =
        ("b:".into(), CONNECTIONS, 1 << 20, Duration::from_secs(60));
    config
}

/// The time. As under `serve`, the server's clock bounds it.
fn clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_secs(since.unwrap_or_default().as_secs())
}

/// The announces of one caller, at least one, however busy the machine is; and the peers in their answers.
#[derive(Default)]
struct Tally {
    announces: usize,
    peers: usize,
}

/// The cost of a run, per announce.
pub(crate) struct Sample {
    pub(crate) announces_per_second: f64,
    pub(crate) server_us: f64,
    pub(crate) client_us: f64,
    pub(crate) bytes_to_server: f64,
    pub(crate) bytes_from_server: f64,
    pub(crate) peers: f64,
}

impl Sample {
    /// Announces per second of a server that waits for no client.
    pub(crate) fn bound(&self) -> f64 {
        1e6 / self.server_us
    }
}

/// The totals at one moment.
struct RunTotals {
    at: Instant,
    server: Duration,
    client: Duration,
    input: u64,
    output: u64,
}

impl RunTotals {
    fn take(server: &Server) -> Result<Self> {
        let net = server.info("stats")?;
        let bytes = |field: &str| -> Result<u64> { Ok(net.get(field).ok_or("no such field")?.parse()?) };
        Ok(Self {
            server: server.cpu()?,
            client: Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?,
            input: bytes("total_net_input_bytes")?,
            output: bytes("total_net_output_bytes")?,
            at: Instant::now(),
        })
    }
}
