//! Answers that may be stale: what trackers see meanwhile, what they see in the end, and what the server is
//! spared.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Changes, Cursor, Endpoint, Families, PeerBuffer,
    PeerRecord, SplitMix64, SwarmStats, Timestamp,
};
use swarmkeep_redis::{
    RedisRepository,
    servers::{Cluster, Server},
};
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests,
};
use tokio::time::{sleep, timeout};

use crate::redis::{
    crowd::{NOW, endpoint, tell, torrent},
    stores::{RUNTIME, SLACK, calls, connect, settings, started},
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_answers_that_may_be_stale_spare_the_server_and_all_times_arrive,
            redis_answers_are_not_staler_than_allowed,
            redis_answers_end_when_they_are_stale_and_no_server_is_there,
            redis_answers_are_all_sent_by_a_flush_which_says_if_they_are_not,
            redis_answers_hold_as_many_of_one_family_as_are_wanted,
            redis_cluster_server_that_stands_still_keeps_no_answers_from_the_others,
    }
}

const STALENESS: Duration = Duration::from_millis(600);
const LATER: Timestamp = Timestamp::from_secs(NOW.as_secs() + 60);

/// Members of swarm 0: the odd ones have everything.
fn member(n: u32) -> Announce {
    Announce::new(torrent(0), endpoint(n)).left(u64::from(n.is_multiple_of(2)))
}

/// Two trackers' stores that are one: the first may answer from what it keeps.
async fn two(server: &Server, staleness: Duration) -> (Arc<RedisRepository>, Arc<RedisRepository>) {
    let settings = settings([server.url()]);
    (connect(&settings.clone().staleness(staleness)).await, connect(&settings).await)
}

/// Asks for 50 peers.
async fn ask(
    store: &RedisRepository,
    announce: &Announce,
    now: Timestamp,
    seed: u64,
) -> (SwarmStats, Vec<Endpoint>) {
    let mut room = [0; 300];
    let mut peers = PeerBuffer::new(&mut room, &mut []);
    let announced =
        store.announce(announce, now, &mut SplitMix64::new(seed), &mut peers).await.expect("reached");
    assert!(announced.changes.contains(Changes::REFRESHED) || announced.changes.contains(Changes::JOINED));
    (announced.stats, peers.endpoints().collect())
}

async fn listed(store: &RedisRepository) -> BTreeMap<Endpoint, PeerRecord> {
    let (mut cursor, mut peers) = (Cursor::START, Vec::new());
    while !cursor.is_end() {
        cursor = store.peers(&torrent(0), cursor, 1000, &mut peers).await.expect("reached");
    }
    peers.into_iter().map(|peer| (peer.endpoint, peer)).collect()
}

/// Thousands of regular announces of one swarm are a few hundred calls, and none is forgotten.
fn redis_answers_that_may_be_stale_spare_the_server_and_all_times_arrive() {
    const MEMBERS: u32 = 300;
    /// Also on a slow machine a swarm of so many announces is busy.
    const STALENESS: Duration = Duration::from_secs(2);
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (stale, exact) = two(&server, STALENESS).await;
        for n in 0..MEMBERS {
            tell(&exact, &member(n)).await.expect("reached");
        }
        let before = calls(&server, "fcall");
        let mut handed_out = BTreeMap::new();
        for n in 0..10 * MEMBERS {
            let (stats, peers) = ask(&stale, &member(n % MEMBERS), LATER, n.into()).await;
            assert_eq!((stats.complete, stats.incomplete), (MEMBERS / 2, MEMBERS / 2));
            assert_eq!(peers.len(), 50, "there are more");
            assert!(!peers.contains(&endpoint(n % MEMBERS)), "nobody is handed to itself");
            let mut distinct = peers.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), 50, "each once");
            for peer in peers {
                *handed_out.entry(peer).or_insert(0) += 1;
                let is_seeder = (0..MEMBERS).any(|m| m % 2 == 1 && endpoint(m) == peer);
                assert!(n % 2 == 0 || !is_seeder, "no seeder is handed to a seeder");
            }
        }
        assert_eq!(handed_out.len(), MEMBERS as usize, "everybody is handed out to somebody");

        sleep(STALENESS).await;
        let spent = calls(&server, "fcall") - before;
        assert!(spent < u64::from(MEMBERS), "{spent} calls for {} announces", 10 * MEMBERS);
        let listed = listed(&exact).await;
        assert_eq!(listed.len(), MEMBERS as usize);
        assert!(listed.values().all(|peer| peer.last_announce == LATER), "all times have arrived");
    });
}

/// Whoever comes, finishes or leaves is seen by the other tracker at once, whichever of the two was told; a
/// regular announce of somebody unknown within the staleness; and what the others say is seen here within it.
fn redis_answers_are_not_staler_than_allowed() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (stale, exact) = two(&server, STALENESS).await;
        for n in 0..100 {
            tell(&exact, &member(n)).await.expect("reached");
        }
        let count = async |store: &RedisRepository| {
            let stats = store.scrape(&torrent(0)).await.expect("reached");
            (stats.complete, stats.incomplete, stats.downloaded)
        };
        let heat = async || {
            for n in 0..100 {
                ask(&stale, &member(n), LATER, n.into()).await;
            }
        };
        heat().await;
        assert_eq!(count(&exact).await, (50, 50, 0));

        tell(&stale, &member(200).event(AnnounceEvent::Started)).await.expect("reached");
        assert_eq!(count(&exact).await, (50, 51, 0), "who starts");
        tell(&stale, &member(200).left(0).event(AnnounceEvent::Completed)).await.expect("reached");
        assert_eq!(count(&exact).await, (51, 50, 1), "who completes");
        tell(&stale, &member(200).left(0).event(AnnounceEvent::Stopped)).await.expect("reached");
        assert_eq!(count(&exact).await, (50, 50, 1), "who stops");

        heat().await;
        ask(&stale, &member(300), LATER, 1).await;
        ask(&stale, &member(302), LATER, 1).await;
        tell(&stale, &member(302).event(AnnounceEvent::Stopped)).await.expect("reached");
        sleep(STALENESS).await;
        assert_eq!(
            count(&exact).await,
            (50, 51, 1),
            "who was never seen before, and not who has stopped since"
        );

        heat().await;
        for n in 400..420 {
            tell(&exact, &member(n).event(AnnounceEvent::Started)).await.expect("reached");
        }
        let begin = Instant::now();
        loop {
            let asked = begin.elapsed();
            if ask(&stale, &member(0), LATER, 1).await.0.incomplete == 61 {
                break;
            }
            assert!(asked <= STALENESS, "older than allowed");
            sleep(Duration::from_millis(5)).await;
        }
    });
}

/// A server that is gone: answers end with what may be stale, and do not go on as if nothing were.
fn redis_answers_end_when_they_are_stale_and_no_server_is_there() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let patience = Duration::from_secs(1);
        let settings = settings([server.url()]).staleness(STALENESS).patience(patience);
        let store = connect(&settings).await;
        for n in 0..200 {
            tell(&store, &member(n % 100)).await.expect("reached");
        }
        server.kill();
        let begin = Instant::now();
        loop {
            let asked = begin.elapsed();
            if tell(&store, &member(1)).await.is_err() {
                break;
            }
            assert!(asked <= STALENESS, "older than allowed");
            sleep(Duration::from_millis(5)).await;
        }
        let begin = Instant::now();
        assert!(tell(&store, &member(2)).await.is_err());
        assert!(begin.elapsed() < patience + SLACK, "as long as patience lasts");
    });
}

/// A tracker that ends: what it has answered is sent before.
fn redis_answers_are_all_sent_by_a_flush_which_says_if_they_are_not() {
    const LONG: Duration = Duration::from_secs(1000);
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (stale, exact) = two(&server, LONG).await;
        let refresh = async |now| {
            for n in 0..200 {
                ask(&stale, &member(n), now, n.into()).await;
            }
        };
        refresh(NOW).await;
        refresh(LATER).await;
        let late = |peers: BTreeMap<_, PeerRecord>| {
            peers.values().filter(|peer| peer.last_announce == LATER).count()
        };
        assert!(late(listed(&exact).await) < 20, "it may answer for long from what it has");
        stale.flush().await.expect("reached");
        assert_eq!(late(listed(&exact).await), 200);
        exact.flush().await.expect("there is nothing to be sent");

        let patience = Duration::from_secs(1);
        let settings = settings([server.url()]).staleness(LONG).patience(patience);
        let store = connect(&settings).await;
        for n in 0..200 {
            ask(&store, &member(n), NOW, n.into()).await;
        }
        server.pause().expect("it is ours");
        let begin = Instant::now();
        store.flush().await.expect_err("nobody answers");
        assert!(begin.elapsed() < patience + SLACK, "{:?}", begin.elapsed());
        server.resume().expect("it is ours");
    });
}

/// Who asks for one family of a swarm that has both gets as many as there are, however few of either were
/// fetched.
fn redis_answers_hold_as_many_of_one_family_as_are_wanted() {
    const EACH: u32 = 400;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (stale, exact) = two(&server, Duration::from_secs(1000)).await;
        let v6 = |n: u32| {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n as u16);
            Endpoint::new(address.into(), 6881).expect("the port is not 0")
        };
        for n in 0..EACH {
            tell(&exact, &member(2 * n)).await.expect("reached");
            tell(&exact, &Announce::new(torrent(0), v6(n))).await.expect("reached");
        }
        for want in [10, 255, 256, 257, 300, 512] {
            for n in 0..40 {
                let of_v4 = member(2 * n).families(Families::V4);
                let of_v6 = Announce::new(torrent(0), v6(n)).families(Families::V6);
                for announce in [of_v4, of_v6] {
                    let mut room = ([0; 6 * 512], [0; 18 * 512]);
                    let mut peers = PeerBuffer::new(&mut room.0, &mut room.1);
                    let mut rng = SplitMix64::new(n.into());
                    stale.announce(&announce.want(want), LATER, &mut rng, &mut peers).await.expect("reached");
                    let expected = want.min(EACH as usize - 1);
                    assert_eq!(peers.endpoints().count(), expected, "{want} of {EACH} of each family");
                }
            }
        }
    });
}

/// A server that stands still when a tracker ends: what is for the others arrives.
fn redis_cluster_server_that_stands_still_keeps_no_answers_from_the_others() {
    const SWARMS: u32 = 30;
    const MEMBERS: u32 = 40;
    let cluster = started(Cluster::start(3, 0));
    RUNTIME.block_on(async {
        let settings = settings(cluster.urls());
        let patience = Duration::from_millis(1500);
        let may_be_stale = settings.clone().staleness(Duration::from_secs(1000)).patience(patience);
        let (stale, exact) = (connect(&may_be_stale).await, connect(&settings).await);
        for now in [NOW, NOW, LATER] {
            for (swarm, n) in (0..SWARMS).flat_map(|swarm| (0..MEMBERS).map(move |n| (swarm, n))) {
                let announce = Announce::new(torrent(swarm), endpoint(n));
                let mut nobody = [0; 6];
                let mut peers = PeerBuffer::new(&mut nobody, &mut []);
                stale.announce(&announce, now, &mut SplitMix64::new(1), &mut peers).await.expect("reached");
            }
        }
        let lost = cluster.server(cluster.masters()[0]);
        lost.pause().expect("it is ours");
        stale.flush().await.expect_err("one does not answer");
        let listed = (0..SWARMS).map(async |swarm| {
            let (info_hash, mut peers) = (torrent(swarm), Vec::new());
            let listing = exact.peers(&info_hash, Cursor::START, 1000, &mut peers);
            let answer = timeout(Duration::from_secs(5), listing).await;
            answer.is_ok().then(|| {
                let late = peers.iter().filter(|peer| peer.last_announce == LATER).count();
                assert_eq!(late, MEMBERS as usize, "of swarm {swarm}, whose server answers");
            })
        });
        let arrived = join_all(listed).await.into_iter().flatten().count() as u32;
        lost.resume().expect("it is ours");
        assert!((10..SWARMS).contains(&arrived), "{arrived} of {SWARMS} are of the other two servers");
    });
}
