//! Our client beside `redis-benchmark`: the same bytes, as many connections, as deep pipelines.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt,
    io::{self, BufRead as _, BufReader, Write as _},
    net::TcpStream,
    os::unix::ffi::OsStrExt as _,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::Serialize;
use swarmkeep::{
    Announce, AsyncTorrentRepository, CompactV4, CompactV6, HashKey, PeerBuffer, Random, RepositoryConfig,
    Request, Timestamp,
};
use swarmkeep_redis::{RedisRepository, slot};
use swarmkeep_servers::Server;
use swarmkeep_workload::tables::significant;
use swarmkeep_workload::{PeerIndex, Workload};

use crate::{
    Bench, Result,
    drive::{client_cpu, median, settings},
    report::{Goal, Section, table, whole},
};

/// Connections, calls that wait on each at once, and announces that are one call. What the goals are about
/// has a little of each.
const SHAPES: [Shape; 6] = [
    Shape { connections: 1, pipeline: 1, bundle: 1 },
    Shape { connections: 2, pipeline: 32, bundle: 1 },
    Shape { connections: 8, pipeline: 32, bundle: 1 },
    Shape { connections: 50, pipeline: 1, bundle: 1 },
    Shape { connections: 2, pipeline: 4, bundle: 32 },
    Shape { connections: 8, pipeline: 1, bundle: 32 },
];
const GOALS: [usize; 2] = [1, 4];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Shape {
    connections: usize,
    pipeline: usize,
    bundle: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    shape: Shape,
    ours: f64,
    redis_benchmark: f64,
    /// Each turn's ratio, and the median of them.
    share: f64,
    our_client_us: f64,
    client_us: f64,
    our_server_us: f64,
    server_us: f64,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let shapes = if bench.test { &SHAPES[4..5] } else { &SHAPES[..] };
    let rows = shapes.iter().map(|&shape| Row::measure(bench, shape)).collect::<Result<Vec<_>>>()?;
    let mut section = Section::new("client", &rows, text(&rows))?;
    let goals = rows.iter().filter(|row| GOALS.iter().any(|&goal| SHAPES[goal] == row.shape));
    section.goals = goals
        .map(|row| Goal::at_least(0.9, format!("{}: of what redis-benchmark reaches", row.shape), row.share))
        .collect();
    Ok(section)
}

/// `redis-benchmark` takes what it sends from its arguments, which end at a zero: numbers have none in any of
/// their bytes, and what is drawn is drawn until it has none.
const SMALL: u16 = 0x0101;
const NOW: Timestamp = Timestamp::from_secs(0x7070_7070);
const LIFETIME: Duration = Duration::from_secs(0x0101_0101);
const ROOM: (usize, usize) = (SMALL as usize * CompactV4::LEN, SMALL as usize * CompactV6::LEN);

/// Peers that an announce is told.
const TOLD: usize = 50;

/// One run, by either.
#[derive(Debug, Clone, Copy)]
struct Run {
    rate: f64,
    client_us: f64,
    server_us: f64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, pipeline, bundle } = self;
        write!(f, "{connections} connections, {pipeline} calls at once, {bundle} announces a call")
    }
}

impl Row {
    fn measure(bench: &Bench, shape: Shape) -> Result<Self> {
        let Shape { connections, bundle, .. } = shape;
        let server = Server::start()?;
        let config = RepositoryConfig::new(HashKey::from_bytes([7; 16]))
            .lifetime(LIFETIME)
            .max_endpoints_per_address(SMALL.into());
        let connecting = async {
            let settings = settings(&server).connections(connections);
            RedisRepository::connect(&settings, &config).await
        };
        let store = Arc::new(bench.runtime.block_on(connecting)?);
        let (announces, command) = bench.runtime.block_on(swarms(&server, &store, connections, bundle))?;
        let mut runs = [Vec::new(), Vec::new()];
        for turn in 0..bench.turns {
            bench.say(format!("client: {shape}, turn {}", turn + 1));
            let ours = run_ours(bench, &server, &store, &announces, shape)?;
            let calls = (ours.rate * bench.during.as_secs_f64()) as u64 / bundle as u64;
            runs[0].push(ours);
            runs[1].push(redis_benchmark(&server, &command, shape, calls.max(1))?);
        }
        let [ours, theirs] = runs;
        let of = |runs: &[Run], number: fn(&Run) -> f64| median(runs.iter().map(number));
        Ok(Self {
            shape,
            ours: of(&ours, |run| run.rate),
            redis_benchmark: of(&theirs, |run| run.rate),
            share: median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours.rate / theirs.rate)),
            our_client_us: of(&ours, |run| run.client_us),
            client_us: of(&theirs, |run| run.client_us),
            our_server_us: of(&ours, |run| run.server_us),
            server_us: of(&theirs, |run| run.server_us),
        })
    }
}

/// Always the same randomness, so that an announce is the same bytes each time.
struct Constant;

impl Random for Constant {
    fn next_u64(&mut self) -> u64 {
        0x0123_4567_89ab_cdef
    }
}

/// A swarm for each connection with as many peers as are told, the announce of one of its leechers, and the
/// words that our client sends for the first of them.
async fn swarms(
    server: &Server,
    store: &RedisRepository,
    connections: usize,
    bundle: usize,
) -> Result<(Vec<Announce>, Vec<Vec<u8>>)> {
    /// Nine swarms in ten will do; a request that has a zero in whatever swarm never will.
    const TRIES: u64 = 10_000;
    let workload = Workload::uniform(5, u64::MAX, TOLD as u32 + 1)
        .with_profile(|profile| (profile.ipv6, profile.seeders, profile.want) = (0.0, 0.0, SMALL.into()));
    let (mut taken, mut announces, mut command) = (BTreeSet::new(), Vec::new(), Vec::new());
    for swarm in 0..TRIES {
        let announce = workload.announce(PeerIndex { swarm, peer: 0 });
        let mut monitor = Monitor::start(server)?;
        tell(store, &announce).await?;
        let seen = monitor.call()?;
        let key = seen.get(3).ok_or("a call has a key")?;
        if seen.iter().any(|word| word.contains(&0)) || !taken.insert(usize::from(slot(key)) % connections) {
            continue;
        }
        for peer in 1..=TOLD as u32 {
            tell(store, &workload.announce(PeerIndex { swarm, peer })).await?;
        }
        let told = tell(store, &announce).await?;
        if told != TOLD {
            return Err(format!("an announce to a swarm of {} is told {told} peers", TOLD + 1).into());
        }
        announces.push(announce);
        if command.is_empty() {
            let mut monitor = Monitor::start(server)?;
            tell_all(store, &announce, bundle).await?;
            command = monitor.call()?;
            let keys = command.get(2).and_then(|keys| str::from_utf8(keys).ok()?.parse().ok());
            if keys != Some(bundle) {
                return Err(format!("{bundle} announces are sent as one call: {keys:?}").into());
            }
        }
        if taken.len() == connections {
            return Ok((announces, command));
        }
    }
    Err("there is a zero in every request, and redis-benchmark cannot send any: choose other numbers".into())
}

/// How many peers an announce is told.
async fn tell(store: &RedisRepository, announce: &Announce) -> Result<usize> {
    let (mut v4, mut v6) = (vec![0; ROOM.0], vec![0; ROOM.1]);
    let mut peers = PeerBuffer::new(&mut v4, &mut v6);
    store.announce(announce, NOW, &mut Constant, &mut peers).await?;
    Ok(peers.len())
}

/// A batch of the same announce.
async fn tell_all(store: &RedisRepository, announce: &Announce, bundle: usize) -> Result<()> {
    let (mut v4, mut v6) = (vec![0; bundle * ROOM.0], vec![0; bundle * ROOM.1]);
    let rooms = v4.chunks_mut(ROOM.0).zip(v6.chunks_mut(ROOM.1));
    let mut batch: Vec<_> = rooms.map(|(v4, v6)| Request::new(*announce, PeerBuffer::new(v4, v6))).collect();
    Ok(store.announce_batch(&mut batch, NOW, &mut Constant).await?)
}

/// As many callers for each connection as its pipeline is deep; each waits for its call before it makes the
/// next.
fn run_ours(
    bench: &Bench,
    server: &Server,
    store: &Arc<RedisRepository>,
    announces: &[Announce],
    Shape { pipeline, bundle, .. }: Shape,
) -> Result<Run> {
    let (server_before, client_before, began) = (server.cpu()?, client_cpu(), Instant::now());
    let until = began + bench.during;
    let callers = announces.iter().flat_map(|announce| std::iter::repeat_n(*announce, pipeline));
    let counts = bench.runtime.block_on(try_join_all(callers.map(|announce| {
        let store = Arc::clone(store);
        let calling = async move {
            let (mut v4, mut v6) = (vec![0; bundle * ROOM.0], vec![0; bundle * ROOM.1]);
            let mut count = 0;
            while count == 0 || Instant::now() < until {
                let rooms = v4.chunks_mut(ROOM.0).zip(v6.chunks_mut(ROOM.1));
                let mut batch: Vec<_> =
                    rooms.map(|(v4, v6)| Request::new(announce, PeerBuffer::new(v4, v6))).collect();
                store.announce_batch(&mut batch, NOW, &mut Constant).await?;
                count += batch.len() as u64;
            }
            Ok(count)
        };
        async { tokio::spawn(calling).await? }
    })));
    let counts: Vec<u64> = counts.map_err(|error: Box<dyn std::error::Error + Send + Sync>| error)?;
    let (wall, count) = (began.elapsed(), counts.iter().sum::<u64>() as f64);
    let each = |used: Duration| used.as_secs_f64() * 1e6 / count;
    Ok(Run {
        rate: count / wall.as_secs_f64(),
        client_us: each(client_cpu().saturating_sub(client_before)),
        server_us: each(server.cpu()?.saturating_sub(server_before)),
    })
}

/// `redis-benchmark` with the same call.
fn redis_benchmark(
    server: &Server,
    command: &[Vec<u8>],
    Shape { connections, pipeline, bundle }: Shape,
    calls: u64,
) -> Result<Run> {
    let (server_before, client_before) = (server.cpu()?, children_cpu()?);
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "--csv"])
        .args(["-c", &connections.to_string(), "-P", &pipeline.to_string(), "-n", &calls.to_string()])
        .args(command.iter().map(|word| OsStr::from_bytes(word)))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
    let rate: f64 = rate.ok_or_else(|| {
        format!("redis-benchmark says {text:?} and {:?}", String::from_utf8_lossy(&output.stderr))
    })?;
    let each = |used: Duration| used.as_secs_f64() * 1e6 / (calls * bundle as u64) as f64;
    Ok(Run {
        rate: rate * bundle as f64,
        client_us: each(children_cpu()?.saturating_sub(client_before)),
        server_us: each(server.cpu()?.saturating_sub(server_before)),
    })
}

/// The processor time of children that have ended.
fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.try_into()?))
}

/// What clients ask the server, as it sees it.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &Server) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"*1\r\n$7\r\nMONITOR\r\n")?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.line()?;
        Ok(monitor)
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        Ok(line)
    }

    /// The next call of a function, without those for which the functions are loaded first.
    fn call(&mut self) -> Result<Vec<Vec<u8>>> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Err("the server has closed MONITOR".into());
            }
            let arguments = arguments(&line);
            if arguments.first().is_some_and(|name| name == b"FCALL") {
                return Ok(arguments);
            }
        }
    }
}

/// The quoted arguments of a line of `MONITOR`.
fn arguments(line: &[u8]) -> Vec<Vec<u8>> {
    let mut arguments = Vec::new();
    let mut bytes = line.iter().copied();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut argument = Vec::new();
        while let Some(byte) = bytes.next().filter(|&byte| byte != b'"') {
            argument.push(match byte {
                b'\\' => match bytes.next() {
                    Some(b'n') => b'\n',
                    Some(b'r') => b'\r',
                    Some(b't') => b'\t',
                    Some(b'a') => 7,
                    Some(b'b') => 8,
                    Some(b'x') => {
                        let mut digit =
                            || char::from(bytes.next().unwrap_or(b'0')).to_digit(16).unwrap_or(0) as u8;
                        digit() * 16 + digit()
                    }
                    Some(other) => other,
                    None => break,
                },
                other => other,
            });
        }
        arguments.push(argument);
    }
    arguments
}

fn text(rows: &[Row]) -> String {
    let table = table(
        rows,
        &[
            ("connections × calls × announces", &|row| {
                let Shape { connections, pipeline, bundle } = row.shape;
                format!("{connections} × {pipeline} × {bundle}")
            }),
            ("ours, a second", &|row| whole(row.ours)),
            ("redis-benchmark", &|row| whole(row.redis_benchmark)),
            ("of it", &|row| format!("{:.1} %", row.share * 100.0)),
            ("client µs", &|row| significant(row.our_client_us)),
            ("redis-benchmark's", &|row| significant(row.client_us)),
            ("server µs", &|row| significant(row.our_server_us)),
            ("with redis-benchmark", &|row| significant(row.server_us)),
        ],
    );
    format!("## The client beside `redis-benchmark`\n\n{CLIENT}\n\n{table}")
}

const CLIENT: &str = "\
A leecher of a swarm of 51 announces repeatedly and gets the 50 others. `redis-benchmark -c CONNECTIONS -P
PIPELINE` sends exactly the bytes that our client sent (`MONITOR`). It has one swarm, and ours has one per
connection. Ours calls `announce_batch` from PIPELINE tasks per connection, with the given number of
announces, which it sends as one call. `redis-benchmark` makes its request once, and reads only the length of
a reply. Our client makes each request anew, and decodes each reply.";
