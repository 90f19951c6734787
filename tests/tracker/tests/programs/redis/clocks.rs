//! Trackers with wrong clocks. The servers' clocks bound the times that they send: no peer of another tracker
//! expires too early, or stays longer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use swarmkeep::{Announce, AsyncTorrentRepository, Budget, Retention, Timestamp};
use swarmkeep_redis::{Error, RedisConfig, RedisRepository};
use swarmkeep_servers::Server;
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests, with,
};

use crate::redis::{
    crowd::{self, endpoint, tell_all, torrent},
    stores::{LIFETIME, RUNTIME, config, keys, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_one_tracker_an_hour_ahead,
            redis_one_tracker_an_hour_behind,
            redis_clock_that_was_wrong_once_leaves_one_shard_ahead_at_most,
            redis_shards_from_the_future_are_corrected,
            redis_swarm_in_the_middle_of_a_sweep_is_corrected_whole,
            redis_clock_that_is_wrong_is_refused_and_one_that_drifts_is_reported,
            redis_clock_is_right_however_late_the_servers_time_comes,
    }
}

const HOUR: i64 = 3600;

/// The number of peers in the bug report.
const PEERS: u32 = 1260;
const TORRENTS: u32 = 100;

pub(crate) fn clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    Timestamp::from_secs(since.as_secs())
}

pub(crate) fn by(seconds: i64) -> Timestamp {
    Timestamp::from_secs(clock().as_secs().saturating_add_signed(seconds))
}

async fn start(settings: &RedisConfig) -> Arc<RedisRepository> {
    Arc::new(RedisRepository::connect(settings, &config()).await.expect("reached"))
}

/// These peers announce, each to one torrent.
pub(crate) async fn announce(store: &RedisRepository, peers: std::ops::Range<u32>, now: Timestamp) {
    tell_all(store, peers.map(|n| Announce::new(torrent(n % TORRENTS), endpoint(n))), now).await;
}

/// Sweeps the whole store, also if another tracker holds the lease. Returns the number of expired peers.
async fn sweep(store: &RedisRepository, server: &Server, now: Timestamp) -> u64 {
    for lease in keys(server, "*lease") {
        server.command(&["DEL", &lease]).expect("it answers");
    }
    crowd::sweep(store, now, 4096).await
}

/// The time of each peer's announce, relative to now, in seconds.
async fn times(store: &RedisRepository) -> Vec<i64> {
    let (mut listed, now) = (Vec::new(), clock().as_secs());
    for n in 0..TORRENTS {
        listed.extend(crowd::peers(store, &torrent(n)).await);
    }
    listed.iter().map(|peer| peer.last_announce.as_secs().cast_signed() - now.cast_signed()).collect()
}

/// The number of peers, and the earliest and the latest of their announces, relative to now.
async fn ages(store: &RedisRepository) -> (usize, i64, i64) {
    let times = times(store).await;
    let (earliest, latest) = (times.iter().min(), times.iter().max());
    (times.len(), earliest.copied().unwrap_or_default(), latest.copied().unwrap_or_default())
}

/// The tracker announces and sweeps with a wrong clock.
fn redis_one_tracker_an_hour_ahead() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = with(settings([server.url()]), |settings| settings.clock = Some(clock));
        let (right, wrong) = (start(&settings).await, start(&settings).await);
        announce(&right, 0..PEERS, clock()).await;
        announce(&wrong, PEERS..PEERS + TORRENTS, by(HOUR)).await;
        let cost = sweep(&wrong, &server, by(HOUR)).await;
        assert_eq!(cost, 0, "of {PEERS} peers");
        announce(&right, 0..100, clock()).await;
        let (peers, _, latest) = ages(&right).await;
        assert_eq!(peers, (PEERS + TORRENTS) as usize);
        assert!(latest <= 60, "peers are noted {latest} s ahead, and expire as much later");
        // With a clock of 2096 too.
        announce(&wrong, PEERS..PEERS + TORRENTS, Timestamp::from_secs(4_000_000_000)).await;
        assert!(ages(&right).await.2 <= 61, "no peer is noted as far ahead as that");
    });
}

/// Its peers do not look old to the others, and it expires none.
fn redis_one_tracker_an_hour_behind() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = with(settings([server.url()]), |settings| settings.clock = Some(clock));
        let (right, wrong) = (start(&settings).await, start(&settings).await);
        // At first, only the wrong one.
        announce(&wrong, 0..PEERS, by(-HOUR)).await;
        let (_, earliest, _) = ages(&right).await;
        assert!(earliest >= -62, "its peers look {earliest} s old");
        announce(&right, PEERS..PEERS + TORRENTS, clock()).await;
        announce(&wrong, 0..PEERS, by(-HOUR)).await;
        let cost = [sweep(&right, &server, clock()).await, sweep(&wrong, &server, by(-HOUR)).await];
        assert_eq!(cost, [0, 0]);
        let (peers, earliest, latest) = ages(&wrong).await;
        assert_eq!(peers, (PEERS + TORRENTS) as usize);
        assert!(earliest >= -10 && latest <= 0, "the others' times count for all: {earliest} to {latest} s");
    });
}

/// One announce with a clock of 2096, and then correct ones: only the shard of that one is ahead.
fn redis_clock_that_was_wrong_once_leaves_one_shard_ahead_at_most() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = with(settings([server.url()]), |settings| settings.clock = Some(clock));
        let once = start(&settings).await;
        announce(&once, 0..1, Timestamp::from_secs(4_000_000_000)).await;
        announce(&once, 1..PEERS, clock()).await;
        let ahead = times(&once).await.iter().filter(|&&time| time > 2).count();
        assert!(ahead <= PEERS as usize / 4, "{ahead} of {PEERS} peers announced in the future");
    });
}

/// Earlier versions, which the server's clock did not bound, wrote future times into shards.
fn redis_shards_from_the_future_are_corrected() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let earlier = start(&settings).await;
        // Also in swarms of many pages.
        announce(&earlier, 0..PEERS, by(HOUR)).await;
        for n in 0..5 {
            announce(&earlier, 10_000 * n..10_000 * n + 400, by(HOUR)).await;
        }
        let there = ages(&earlier).await.0;
        let bounded = start(&with(settings.clone(), |settings| settings.clock = Some(clock))).await;
        assert_eq!(sweep(&bounded, &server, clock()).await, 0);
        let (peers, earliest, latest) = ages(&bounded).await;
        assert_eq!(peers, there);
        assert!(earliest >= -62 && latest <= 60, "{earliest} to {latest} s");
        announce(&bounded, 0..PEERS, clock()).await;
        let (lifetime, later) = (LIFETIME.as_secs().cast_signed(), start(&settings).await);
        assert_eq!(sweep(&later, &server, by(lifetime - 120)).await, 0);
        assert_eq!(sweep(&later, &server, by(lifetime + 120)).await, there as u64, "as they do always");
    });
}

/// Also the pages that the sweep had passed before.
fn redis_swarm_in_the_middle_of_a_sweep_is_corrected_whole() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let earlier = start(&settings).await;
        let of_one = |peers: std::ops::Range<u32>| peers.map(|n| n * TORRENTS);
        let tell = |peers: std::ops::Range<u32>, now| {
            let earlier = &earlier;
            async move {
                for n in of_one(peers) {
                    announce(earlier, n..n + 1, now).await;
                }
            }
        };
        tell(0..10, clock()).await;
        tell(10..1000, by(HOUR)).await;
        let middle =
            earlier.sweep(by(HOUR), Retention::DropEmpty, Budget::peers(300)).await.expect("reached");
        assert!((100..900).contains(&middle.visited), "{middle:?}");
        let bounded = start(&with(settings.clone(), |settings| settings.clock = Some(clock))).await;
        sweep(&bounded, &server, clock()).await;
        let ahead = times(&bounded).await.iter().filter(|&&time| time > 60).count();
        assert_eq!(ahead, 0, "peers announced in the future");
    });
}

fn redis_clock_that_is_wrong_is_refused_and_one_that_drifts_is_reported() {
    static AHEAD: AtomicU64 = AtomicU64::new(0);
    fn drifts() -> Timestamp {
        Timestamp::from_secs(clock().as_secs() + AHEAD.load(Relaxed))
    }
    let server = started(Server::start());
    RUNTIME.block_on(async {
        for wrong in [(|| by(HOUR)) as fn() -> Timestamp, || by(-HOUR)] {
            let settings = with(settings([server.url()]), |settings| settings.clock = Some(wrong));
            let refused = RedisRepository::connect(&settings, &config()).await;
            match refused {
                Err(Error::Clock { own, server }) => assert!(own.abs_diff(server).abs_diff(3600) <= 2),
                other => panic!("{other:?}"),
            }
            assert_eq!(keys(&server, "*"), [""; 0], "it has written nothing");
        }
        let mut settings = settings([server.url()]);
        settings.clock = Some(drifts);
        settings.totals_age = Duration::from_millis(1);
        let store = start(&settings).await;
        let mut apart = Vec::new();
        for ahead in [0, 61, 3600, 0] {
            AHEAD.store(ahead, Relaxed);
            store.totals().await.expect("reached");
            let (own, server) = store.status().clock.expect("compared");
            apart.push(own.abs_diff(server).abs_diff(ahead));
        }
        assert!(apart.iter().all(|&off| off <= 2), "{apart:?}");
    });
}

fn redis_clock_is_right_however_late_the_servers_time_comes() {
    static READINGS: AtomicU64 = AtomicU64::new(0);
    /// 200 seconds pass in each call.
    fn passing() -> Timestamp {
        by(if READINGS.fetch_add(1, Relaxed).is_multiple_of(2) { -100 } else { 100 })
    }
    let server = started(Server::start());
    let mut settings = settings([server.url()]);
    settings.clock = Some(passing);
    settings.totals_age = Duration::from_millis(1);
    RUNTIME.block_on(async {
        let store = start(&settings).await;
        store.totals().await.expect("reached");
        let (own, server) = store.status().clock.expect("compared");
        assert_eq!(own, server);
    });
}
