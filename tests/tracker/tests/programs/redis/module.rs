//! The module as servers expect it: files, replicas, memory, permissions, and incomplete bytes. The suite
//! tests its use by trackers, and so do the other tests here where all servers load it.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, Endpoint, HashKey, InfoHash, PeerBuffer,
    PeerRecord, Random as _, RepositoryConfig, Retention, Role, SplitMix64, SwarmStats, SwarmSummary,
    Timestamp,
};
use swarmkeep_redis::{Engine, Error, RedisConfig, RedisRepository};
use swarmkeep_servers::{Cluster, Server, Value};
use swarmkeep_store_tests::{
    A_MINUTE,
    programs::{REDIS, Trial, note},
    tests, until, with,
};
use tokio::time::sleep;

use crate::redis::{
    crowd::{
        NOW, announce_while, assert_all_done, endpoint, peers, requests, swarms, tell, tell_all, torrent,
    },
    stores::{FUNCTIONS, RUNTIME, config, connect, keys, module, server_with_module, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_module_keeps_all_in_files,
            redis_module_has_the_same_on_a_replica,
            redis_module_copies_dumps_and_restores_a_shard,
            redis_module_refuses_bytes_that_are_not_whole_and_lives_on,
            redis_module_memory_is_the_servers_and_returns,
            redis_module_obeys_permissions,
            redis_module_follows_the_sweeping_tracker_in_lifetime_and_limit,
            redis_module_is_upgraded_server_by_server_under_load_and_no_peer_is_lost;
        [REDIS, FUNCTIONS]:
            redis_module_that_some_servers_lack_is_refused_with_the_remedy,
            redis_module_that_is_missing_at_a_start_ends_the_server_without_a_failure,
    }
}

/// A replica is served at once, and not after the five seconds in which more could come.
const AT_ONCE: (&str, &str) = ("repl-diskless-sync-delay", "0");

/// The form of the keys of shards.
const SHARDS: &str = "*{*}";

/// All that is in a store.
type Picture = BTreeMap<InfoHash, (SwarmStats, BTreeMap<Endpoint, (Role, Timestamp)>)>;

async fn picture(store: &RedisRepository) -> Picture {
    let mut picture = Picture::new();
    for SwarmSummary { info_hash, stats } in swarms(store).await {
        let peers = peers(store, &info_hash).await;
        let peers = peers.iter().map(|peer| (peer.endpoint, (peer.role, peer.last_announce)));
        picture.insert(info_hash, (stats, peers.collect()));
    }
    picture
}

/// Announces, departures, removals, restored peers and sweeps: swarms of all sizes, of both families.
async fn live(store: &RedisRepository, seed: u64, from: Timestamp) -> Timestamp {
    let mut rng = SplitMix64::new(seed);
    let mut now = from;
    for step in 0..40 {
        let announces: Vec<_> = (0..250)
            .map(|_| {
                let n = rng.next_u64();
                let swarm = if n.is_multiple_of(3) { 1 } else { (n >> 8) as u32 % 400 };
                let peer = (n >> 32) as u32 % 2000;
                let at = match n >> 5 & 3 {
                    0 => Endpoint::new(
                        std::net::Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(peer)).into(),
                        7,
                    ),
                    // Many endpoints of few addresses, so that limits evict some.
                    1 => Endpoint::new([10, 1, 1, peer as u8 % 4].into(), 1 + peer as u16),
                    _ => Ok(endpoint(peer)),
                };
                let event = match n >> 16 & 15 {
                    0 | 1 => AnnounceEvent::Stopped,
                    2..=4 => AnnounceEvent::Completed,
                    _ => AnnounceEvent::None,
                };
                let left = if event == AnnounceEvent::Completed { 0 } else { n >> 20 & 1 };
                Announce::new(torrent(swarm), at.expect("a port")).left(left).event(event).want(0)
            })
            .collect();
        store.announce_batch(&mut requests(announces), now, &mut rng).await.expect("acknowledged");
        // Each shard has its own time.
        let ahead = Timestamp::from_secs(now.as_secs() + rng.next_u64() % 60);
        let one = Announce::new(torrent(rng.next_u64() as u32 % 400), endpoint(1));
        let mut nobody = PeerBuffer::new(&mut [], &mut []);
        store.announce(&one, ahead, &mut rng, &mut nobody).await.expect("acknowledged");
        let n = rng.next_u64() as u32 % 400;
        store.remove(&torrent(n)).await.expect("reached");
        store.add_downloads(&torrent(n + 1), 3).await.expect("reached");
        let (info_hash, stats) = (torrent(n + 2), SwarmStats { downloaded: 7, ..SwarmStats::default() });
        let restored = PeerRecord {
            endpoint: endpoint(9000 + step),
            role: Role::Seeder,
            last_announce: now,
            details: None,
        };
        store.restore(&SwarmSummary { info_hash, stats }, &[restored], now).await.expect("reached");
        now = Timestamp::from_secs(now.as_secs() + 100);
        let policy = if step % 2 == 0 { Retention::DropEmpty } else { Retention::KeepDownloaded };
        store.sweep(now, policy, Budget::peers(1 << 20)).await.expect("reached");
    }
    now
}

fn limited() -> RepositoryConfig {
    config().max_endpoints_per_address(5)
}

async fn reach(settings: &RedisConfig) -> Arc<RedisRepository> {
    Arc::new(RedisRepository::connect(settings, &limited()).await.expect("reached"))
}

/// As docs/operate/module.md says. The server checks the file that it cannot load (`rdbReportError` in rdb.c
/// of Redis and Valkey), finds it right, and ends as that check does.
fn redis_module_that_is_missing_at_a_start_ends_the_server_without_a_failure() {
    let server = server_with_module(&[]);
    RUNTIME.block_on(async {
        let store = reach(&settings([server.url()])).await;
        live(&store, 1, NOW).await
    });
    server.command(&["SAVE"]).expect("it answers");
    let without = Server::start_with(&[("dir", server.folder().to_str().expect("UTF-8"))]);
    let Err(swarmkeep_servers::Error::Exited { status, log }) = without else { panic!("{without:?}") };
    assert!(status.ends_with(" 0") && log.contains("RDB looks OK"), "{status}: {log}");
}

/// In a snapshot, and in a file of commands with and without one.
fn redis_module_keeps_all_in_files() {
    for (directives, rewrite) in [
        (&[("appendonly", "no")][..], "SAVE"),
        (&[("appendonly", "yes")], "BGREWRITEAOF"),
        (&[("appendonly", "yes"), ("aof-use-rdb-preamble", "no")], "BGREWRITEAOF"),
    ] {
        let server = server_with_module(directives);
        RUNTIME.block_on(async {
            let settings = settings([server.url()]);
            let store = reach(&settings).await;
            let now = live(&store, 1, NOW).await;
            server.command(&[rewrite]).expect("it answers");
            if rewrite != "SAVE" {
                let is_zero = |field: &str| server.info("persistence").expect("it answers")[field] == "0";
                until("the file is written", || is_zero("aof_rewrite_in_progress"));
                live(&store, 2, now).await;
                // During a slow fsync, the server keeps new commands in memory for up to 2 s.
                until("all is on disk", || is_zero("aof_buffer_length"));
            }
            let (before, evicted) = (picture(&store).await, store.totals().await.expect("reached").evicted);
            assert!(before.len() > 300 && before[&torrent(1)].1.len() > 500 && evicted.peers > 0);
            server.restart().expect("it starts with its files");
            let store = reach(&settings).await;
            assert_eq!(picture(&store).await, before, "{directives:?}");
            assert_eq!(store.totals().await.expect("reached").evicted, evicted);
        });
    }
}

fn redis_module_has_the_same_on_a_replica() {
    let [master, replica] = [(); 2].map(|()| server_with_module(&[AT_ONCE]));
    RUNTIME.block_on(async {
        let settings = settings([master.url()]);
        let store = reach(&settings).await;
        let now = live(&store, 3, NOW).await;
        begin_to_follow(&replica, &master).await;
        live(&store, 4, now).await;
        wait_for_replica(&master);
        let there = reach(&with(settings.clone(), |settings| settings.urls = vec![replica.url()])).await;
        assert_eq!(picture(&there).await, picture(&store).await);
        assert_eq!(there.totals().await.expect("reached"), store.totals().await.expect("reached"));
    });
}

async fn begin_to_follow(replica: &Server, master: &Server) {
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).expect("it answers");
    let deadline = Instant::now() + A_MINUTE;
    while replica.info("replication").expect("it answers")["master_link_status"] != "up" {
        assert!(Instant::now() < deadline, "the replica does not reach its master");
        sleep(Duration::from_millis(10)).await;
    }
}

fn wait_for_replica(master: &Server) {
    let mut connection = master.connect().expect("it answers");
    connection.command(&["SET", "mark", "1"]).expect("it answers");
    assert_eq!(connection.query::<u64>(&["WAIT", "1", "60000"]).expect("it answers"), 1);
}

fn redis_module_copies_dumps_and_restores_a_shard() {
    let server = server_with_module(&[]);
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let store = reach(&settings).await;
        live(&store, 5, NOW).await;
        let before = picture(&store).await;
        for shard in keys(&server, SHARDS) {
            let dumped: Vec<u8> = server.query(&["DUMP", &shard]).expect("it answers");
            server.command(&["COPY", &shard, "copy"]).expect("it answers");
            server.command(&["DEL", &shard]).expect("it answers");
            server.command(&[b"RESTORE", shard.as_bytes(), b"0", &dumped]).expect("it answers");
            assert_eq!(picture(&store).await, before, "dumped and restored");
            server.command(&["RENAME", "copy", &shard]).expect("it answers");
            assert_eq!(picture(&store).await, before, "copied");
        }
    });
}

/// The shards of a file of commands, as arguments of the module's loading command.
fn parts(server: &Server) -> Vec<Vec<u8>> {
    server.command(&["BGREWRITEAOF"]).expect("it answers");
    let is_written = || server.info("persistence").expect("it answers")["aof_rewrite_in_progress"] == "0";
    until("the file is written", is_written);
    let folder = fs::read_dir(server.folder().join("appendonlydir")).expect("it writes there");
    let mut paths = folder.map(|entry| entry.expect("it is read").path());
    let base = paths.find(|path| path.to_string_lossy().ends_with(".base.aof")).expect("it is written");
    let text = fs::read(base).expect("it is read");
    let mut rest = text.as_slice();
    let mut words = Vec::new();
    while let Some(line) = rest.iter().position(|&byte| byte == b'\n') {
        let head = String::from_utf8_lossy(&rest[..line - 1]).into_owned();
        rest = &rest[line + 1..];
        if let Some(len) = head.strip_prefix('$') {
            let len: usize = len.parse().expect("a length");
            words.push(rest[..len].to_vec());
            rest = &rest[len + 2..];
        }
    }
    let loads = words.iter().enumerate().filter(|(_, word)| *word == b"swarmkeep.load");
    loads.map(|(at, _)| words[at + 3].clone()).collect()
}

fn redis_module_refuses_bytes_that_are_not_whole_and_lives_on() {
    let server = server_with_module(&[("appendonly", "yes"), ("aof-use-rdb-preamble", "no")]);
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let store = reach(&settings).await;
        live(&store, 6, NOW).await;
        let (before, mut rng) = (picture(&store).await, SplitMix64::new(7));
        let parts = parts(&server);
        let (mut connection, mut refused) = (server.connect().expect("it answers"), 0);
        for turn in 0..2000_u64 {
            let whole = &parts[turn as usize % parts.len()];
            let (mut part, at) = (whole.clone(), rng.next_u64() as usize % whole.len());
            match turn % 3 {
                0 => part.truncate(at),
                1 => part[at % 64] ^= 1 << (turn % 8),
                _ => part[at] = rng.next_u64() as u8,
            }
            refused += u32::from(
                connection.command(&[b"swarmkeep.load".as_slice(), &[0; 28], b"hostile", &part]).is_err(),
            );
        }
        assert!(refused > 600, "{refused}");
        // Any arguments, and any number of them.
        let names: Vec<Vec<Value>> = connection
            .query(&["COMMAND", "LIST", "FILTERBY", "PATTERN", "swarmkeep.*"])
            .map(|names| vec![names])
            .expect("it answers");
        let names: Vec<String> = names[0].iter().map(text).collect();
        assert_eq!(names.len(), 13);
        for turn in 0..20_000_u64 {
            let name = names[turn as usize % names.len()].clone().into_bytes();
            let mut words = vec![name];
            for _ in 0..rng.next_u64() % 6 {
                let len = [0, 1, 6, 17, 20, 24, 25, 28, 41, 53][rng.next_u64() as usize % 10];
                words.push((0..len).map(|_| rng.next_u64() as u8).collect());
            }
            if words.len() > 2 {
                words[2] = b"hostile".to_vec();
            }
            let _ = connection.command(&words);
        }
        server.command(&["DEL", "hostile"]).expect("it lives");
        assert_eq!(picture(&store).await, before);
        let log = fs::read_to_string(server.folder().join("log")).expect("it is written");
        assert!(!log.contains("panicked"), "{log}");
    });
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => panic!("{other:?} is no text"),
    }
}

fn redis_module_memory_is_the_servers_and_returns() {
    let server = server_with_module(&[]);
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        tell(&store, &Announce::new(torrent(0), endpoint(0))).await.expect("acknowledged");
        let empty = server.used_memory().expect("it answers");
        let announces: Vec<_> = (0..300_000).map(|n| Announce::new(torrent(n), endpoint(n))).collect();
        for part in announces.chunks(1000) {
            tell_all(&store, part.iter().copied(), NOW).await;
        }
        let used = server.used_memory().expect("it answers") - empty;
        let told: u64 = keys(&server, SHARDS)
            .iter()
            .map(|shard| server.query::<u64>(&["MEMORY", "USAGE", shard]).expect("it answers"))
            .sum();
        let each = used as f64 / 300_000.0;
        assert!((26.0..50.0).contains(&each), "{each} bytes for a swarm of one");
        assert!((0.8..1.1).contains(&(told as f64 / used as f64)), "{told} of {used} bytes are reported");
        server.command(&["FLUSHALL", "SYNC"]).expect("it answers");
        let left = server.used_memory().expect("it answers");
        assert!(left < empty + 200_000, "{left} bytes, {empty} before");
    });
}

fn redis_module_obeys_permissions() {
    let server = server_with_module(&[]);
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        tell(&store, &Announce::new(torrent(0), endpoint(0))).await.expect("acknowledged");
    });
    let shard = keys(&server, SHARDS).remove(0);
    let mut connection = server.connect().expect("it answers");
    connection
        .command(&["ACL", "SETUSER", "reads", "on", "nopass", "~store*", "+swarmkeep.meta"])
        .expect("it answers");
    connection.command(&["AUTH", "reads", "any"]).expect("it answers");
    let mut refusal = |words: &[&str]| match connection.command(words) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert_eq!(refusal(&["swarmkeep.meta", "", &shard]), "");
    for words in [&["swarmkeep.meta", "", "other"][..], &["swarmkeep.announce", "", &shard, ""]] {
        let refused = refusal(words);
        assert!(refused.contains("NOPERM"), "{words:?}: {refused}");
    }
}

/// The sweeping tracker decides, so that different trackers do not build shards again and again.
fn redis_module_follows_the_sweeping_tracker_in_lifetime_and_limit() {
    let server = server_with_module(&[]);
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let config = |lifetime, limit| {
            let config = RepositoryConfig::new(HashKey::from_bytes([7; 16])).shards(16);
            config.lifetime(Duration::from_secs(lifetime)).max_endpoints_per_address(limit)
        };
        let at = |seconds| Timestamp::from_secs(NOW.as_secs() + seconds);
        let come = async |store: &RedisRepository, ports: std::ops::RangeInclusive<u16>, now| {
            for port in ports {
                let endpoint = Endpoint::new([10, 0, 0, 1].into(), port).expect("a port");
                let mut nobody = PeerBuffer::new(&mut [], &mut []);
                let announce = Announce::new(torrent(1), endpoint);
                store.announce(&announce, now, &mut SplitMix64::new(1), &mut nobody).await.expect("reached");
            }
        };
        let old = RedisRepository::connect(&settings, &config(1800, 3)).await.expect("reached");
        come(&old, 1..=5, NOW).await;
        assert_eq!(old.scrape(&torrent(1)).await.expect("reached").incomplete, 3);
        let new = RedisRepository::connect(&settings, &config(600, 5)).await.expect("reached");
        come(&new, 6..=9, NOW).await;
        assert_eq!(
            new.scrape(&torrent(1)).await.expect("reached").incomplete,
            3,
            "the shard is the first one's"
        );
        let swept = new.sweep(at(500), Retention::DropEmpty, Budget::peers(1000)).await.expect("reached");
        assert_eq!(swept.expired, 0);
        come(&old, 4..=9, at(500)).await;
        assert_eq!(old.scrape(&torrent(1)).await.expect("reached").incomplete, 5, "the sweeping tracker's");
        let swept = new.sweep(at(1200), Retention::DropEmpty, Budget::peers(1000)).await.expect("reached");
        assert_eq!(swept.expired, 5, "the lifetime of the sweeping tracker");
    });
}

/// Also if the settings require the module and no server has it. Nothing is written.
fn redis_module_that_some_servers_lack_is_refused_with_the_remedy() {
    RUNTIME.block_on(async {
        let mixed = started(Cluster::start_with(3, 0, &[("enable-module-command", "yes")]));
        mixed.server(0).command(&["MODULE", "LOAD", &module()]).expect("it loads");
        let without = started(Server::start());
        let mut asked = RedisConfig::new([without.url()]);
        asked.engine = Some(Engine::Module);
        for (settings, lacks) in
            [(RedisConfig::new(mixed.urls()), mixed.server(1)), (asked.clone(), &without)]
        {
            let refused = RedisRepository::connect(&settings, &config()).await;
            let Err(refused @ Error::Module { .. }) = refused else { panic!("{refused:?}") };
            let refused = refused.to_string();
            let named = refused.contains("loadmodule") && refused.contains(&lacks.port().to_string());
            assert!(named, "{refused}");
            assert_eq!(keys(lacks, "*"), [""; 0]);
        }
        asked.engine = Some(Engine::Functions);
        let store = connect(&asked).await;
        tell(&store, &Announce::new(torrent(0), endpoint(0))).await.expect("acknowledged");
    });
}

/// As in `docs/operate/module.md`: each replica, then its master. No server keeps anything on disk. One pair
/// of servers is enough: three pairs take 38 s under this load, since they fill up.
fn redis_module_is_upgraded_server_by_server_under_load_and_no_peer_is_lost() {
    let module = module();
    let cluster = Arc::new(started(Cluster::start_with(1, 1, &[("loadmodule", &module), AT_ONCE])));
    RUNTIME.block_on(async {
        let store = connect(&settings(cluster.urls())).await;
        let upgrading = tokio::task::spawn_blocking({
            let cluster = Arc::clone(&cluster);
            move || {
                let begun = Instant::now();
                let say =
                    |what: String| note(format_args!("{:5.2} s: {what}", begun.elapsed().as_secs_f64()));
                let restarted = |node: usize| {
                    cluster.server(node).restart().expect("it starts");
                    let deadline = Instant::now() + A_MINUTE;
                    let follows = || {
                        let state = cluster.server(node).info("replication").ok()?;
                        Some(state.get("master_link_status")? == "up")
                    };
                    while follows() != Some(true) {
                        assert!(Instant::now() < deadline, "server {node} does not follow its master again");
                        thread::sleep(Duration::from_millis(20));
                    }
                    say(format!("server {node} is restarted, and has all of its master"));
                };
                for master in cluster.masters() {
                    let slot = (0..16384).find(|&slot| cluster.master_of_slot(slot).ok() == Some(master));
                    let [replica] = cluster.replicas_of(master)[..] else { panic!("it has a replica") };
                    restarted(replica);
                    let new =
                        cluster.failover(slot.expect("it serves some")).expect("its replica takes over");
                    say(format!("server {new} takes over from server {master}"));
                    restarted(master);
                }
            }
        });
        let (told, ()) = announce_while(&store, 0, async |_| upgrading.await.expect("no panic")).await;
        note(format_args!(
            "{} announces acknowledged, {} refused",
            told.acknowledged.len(),
            told.refused.len()
        ));
        assert_all_done(&store, &told).await;
    });
}
