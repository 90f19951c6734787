//! Servers that are lost, slow, full, moved or interrupted, and the fate of announces, acknowledged or not.
//! The table of `docs/operate/scaling.md` lists the results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, Changes, Cursor, HashKey, PeerBuffer,
    RepositoryConfig, Retention, SplitMix64, Timestamp,
};
use swarmkeep_redis::{Error, RedisConfig, RedisRepository};
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::{
    A_MINUTE,
    programs::{REDIS, Trial, note},
    tests, until, with,
};
use tokio::{
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};

use crate::redis::{
    crowd::{
        NOW, announce_while, assert_all_done, assert_counted_once, endpoint, finished, lost, members,
        requests, sweep, tell, tell_all, torrent,
    },
    stores::{RUNTIME, calls, config, connect, impatient, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_connections_cut_in_the_middle_of_announces_lose_no_peer_and_count_none_twice,
            redis_functions_that_a_server_has_lost_are_loaded_again,
            redis_busy_with_a_script_that_is_killed_answers_in_bounded_time,
            redis_out_of_memory_refuses_announces_whole_and_lets_peers_leave,
            redis_that_stands_still_is_unavailable_in_bounded_time_and_queues_are_bounded,
            redis_that_was_killed_and_comes_back_empty_is_filled_again,
            redis_cluster_failing_over_on_request_loses_no_peer,
            redis_cluster_master_killed_loses_only_announces_that_its_replica_did_not_get,
            redis_cluster_slots_moved_under_load_lose_no_peer_and_refuse_none,
            redis_cluster_slot_that_has_moved_is_found_without_a_server_that_stands_still,
            redis_cluster_with_a_silent_server_still_names_the_others,
            redis_cluster_that_grows_asks_the_new_server_through_few_connections,
            redis_trackers_with_clocks_apart_share_the_later_time,
            redis_sweeping_is_for_the_holder_of_the_lease_and_two_at_once_do_no_harm,
            redis_announces_that_are_dropped_are_done_or_not_and_never_half,
            redis_store_begun_otherwise_is_refused,
            redis_memory_of_a_large_swarm_is_small_and_is_returned,
    }
}

/// Waits until `more` announces have begun.
async fn until_told(next: &AtomicU32, more: u32) {
    let enough = next.load(Relaxed) + more;
    let told = async {
        while next.load(Relaxed) < enough {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(A_MINUTE, told).await.expect("announces go on");
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Causes faults in a server while peers announce. Each announce takes effect once in the end, and none is
/// refused, since patience is longer than a reconnection takes. `fault` returns the number of faults.
fn announce_through(fault: fn(&Server) -> u64) {
    let server = Arc::new(started(Server::start()));
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        let again_and_again = async |next: Arc<AtomicU32>| {
            let mut faults = 0;
            while faults < 40 || next.load(Relaxed) < 300 {
                sleep(Duration::from_millis(15)).await;
                let server = Arc::clone(&server);
                faults += blocking(move || fault(&server)).await;
            }
        };
        let (told, ()) = announce_while(&store, 0, again_and_again).await;
        assert_all_done(&store, &told).await;
    });
}

fn redis_connections_cut_in_the_middle_of_announces_lose_no_peer_and_count_none_twice() {
    announce_through(|server| server.client_kill_all().expect("it answers"));
}

/// A tracker that misses the functions loads them.
fn redis_functions_that_a_server_has_lost_are_loaded_again() {
    announce_through(|server| {
        server.command(&["FUNCTION", "FLUSH"]).expect("it answers");
        1
    });
}

/// A foreign script keeps the server busy until it is killed: announces wait for as long as they may, and no
/// longer.
fn redis_busy_with_a_script_that_is_killed_answers_in_bounded_time() {
    let server = Arc::new(started(Server::start_with(&[("busy-reply-threshold", "100")])));
    RUNTIME.block_on(async {
        let patient = connect(&settings([server.url()])).await;
        let impatient = connect(&impatient(settings([server.url()]), 300)).await;
        tell(&patient, &finished(0)).await.expect("reached");
        tell(&impatient, &finished(0)).await.expect("reached");
        let endless = {
            let server = Arc::clone(&server);
            tokio::task::spawn_blocking(move || server.command(&["EVAL", "while true do end", "0"]))
        };
        let probe = Arc::clone(&server);
        blocking(move || until("it is busy", || probe.command(&["PING"]).is_err())).await;
        let begin = Instant::now();
        let kill = async {
            let refused = tell(&impatient, &finished(1)).await.expect_err("it is busy");
            let took = begin.elapsed();
            assert!(took < Duration::from_millis(300) + A_MINUTE, "{took:?}: {refused}");
            let server = Arc::clone(&server);
            blocking(move || server.command(&["SCRIPT", "KILL"]).expect("it has written nothing")).await
        };
        let (waited, _) = tokio::join!(async { tell(&patient, &finished(2)).await }, kill);
        waited.expect("the script was killed in time");
        assert!(endless.await.expect("no panic").is_err(), "the script's own caller gets an error");
        assert_counted_once(&patient).await;
    });
}

/// A refused announce had no effect, not even in part. A departure makes room, and so does a sweep.
fn redis_out_of_memory_refuses_announces_whole_and_lets_peers_leave() {
    let limits = [("maxmemory", "5mb"), ("maxmemory-policy", "noeviction")];
    let server = Arc::new(started(Server::start_with(&limits)));
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let store = connect(&settings).await;
        let mut acknowledged = Vec::new();
        let refused = loop {
            let numbers = acknowledged.len() as u32..acknowledged.len() as u32 + 500;
            let mut batch = requests(numbers.clone().map(|n| Announce::new(torrent(n), endpoint(n))));
            let result = store.announce_batch(&mut batch, NOW, &mut SplitMix64::new(1)).await;
            acknowledged
                .extend(numbers.zip(&batch).filter(|(_, request)| request.answer.is_some()).map(|(n, _)| n));
            if let Err(refused) = result {
                break refused;
            }
            assert!(acknowledged.len() < 1_000_000, "memory without end");
        };
        assert!(refused.reason.contains("OOM"), "{refused}");
        let held = members(&store).await;
        let is_there = |n: u32| held.get(&torrent(n)).is_some_and(|peers| peers.contains(&endpoint(n)));
        assert!(acknowledged.iter().all(|&n| is_there(n)), "acknowledged and lost");
        assert_eq!(held.len(), acknowledged.len(), "refused announces had no effect");
        assert_eq!(store.scrape(&torrent(0)).await.expect("reading takes no memory").incomplete, 1);

        // Room must come from departures, not from smaller buffers of clients.
        let limit =
            |megabytes| server.command(&["CONFIG", "SET", "maxmemory", megabytes]).expect("it answers");
        limit("2mb");
        let leaves = |n| Announce::new(torrent(n), endpoint(n)).event(AnnounceEvent::Stopped);
        for n in 0..1000 {
            tell(&store, &leaves(n)).await.expect("a departure makes room");
        }
        // Memory that is free in a packed shard returns in larger pieces.
        let half: Vec<_> = (4000..acknowledged.len() as u32 / 2).map(leaves).collect();
        for part in half.chunks(1000) {
            tell_all(&store, part.iter().copied(), NOW).await;
        }
        connect(&settings).await.totals().await.expect("a tracker that starts now is no trouble");
        let comes = |n| Announce::new(torrent(n), endpoint(n));
        let mut batch = requests((1000..2000).flat_map(|n| [comes(1_000_000 + n), leaves(n)]));
        store.announce_batch(&mut batch, NOW, &mut SplitMix64::new(1)).await.expect_err("some come");
        for request in &batch {
            let leaves = request.announce.event == AnnounceEvent::Stopped;
            assert_eq!(request.answer.is_some(), leaves, "arrivals and departures in one batch");
        }
        let mut swept = 0;
        while swept < 2000 + half.len() as u64 {
            let step =
                store.sweep(NOW, Retention::DropEmpty, Budget::peers(4096)).await.expect("it makes room");
            swept += step.swarms_removed;
        }
        store.remove(&torrent(3000)).await.expect("it makes room").expect("it was there");
        limit("5mb");
        let mut room = false;
        for n in 2_000_000..2_000_050 {
            room |= tell(&store, &finished(n)).await.is_ok();
        }
        assert!(room, "there is room again");
        members(&store).await;
    });
}

/// A server stands still: each call ends in time, calls beyond the queue are refused at once, and afterwards
/// all work again.
fn redis_that_stands_still_is_unavailable_in_bounded_time_and_queues_are_bounded() {
    let server = Arc::new(started(Server::start()));
    RUNTIME.block_on(async {
        let patience = Duration::from_secs(3);
        let settings = settings([server.url()]);
        let patient = connect(&settings).await;
        tell(&patient, &finished(0)).await.expect("reached");
        let mut bounded = settings.clone();
        (bounded.patience, bounded.in_flight) = (patience, 32);
        let store = connect(&bounded).await;
        server.pause().expect("it is ours");
        let begin = Instant::now();
        let waits = Arc::clone(&patient);
        let waits = tokio::spawn(async move { tell(&waits, &finished(0)).await });
        let mut waiting = JoinSet::new();
        for n in 1..=40 {
            let store = Arc::clone(&store);
            waiting.spawn(async move { tell(&store, &finished(n)).await });
        }
        for ended in 0..40 {
            let refused = waiting.join_next().await.expect("40").expect("no panic");
            let refused = refused.expect_err("no server answers");
            let is_full = refused.reason.contains("32 calls are waiting");
            assert_eq!(is_full, ended < 8, "those that do not wait end before the others: {refused}");
        }
        assert!(!waits.is_finished(), "a call with less patience ends before one that waits a minute");
        server.resume().expect("it is ours");
        waits.await.expect("no panic").expect("in time");
        let mut back = tell(&store, &finished(200)).await;
        while back.is_err() && begin.elapsed() < A_MINUTE {
            back = tell(&store, &finished(200)).await;
        }
        back.expect("it goes on");
        assert_counted_once(&patient).await;
    });
}

/// Without persistence, the server comes back empty. So does the store, and all trackers agree on its layout.
fn redis_that_was_killed_and_comes_back_empty_is_filled_again() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let store = connect(&settings).await;
        let hasty = connect(&impatient(settings.clone(), 300)).await;
        let (told, ()) = announce_while(&store, 0, async |told| until_told(&told, 300).await).await;
        assert_eq!(told.refused, []);
        let restart = async |told: Arc<AtomicU32>| {
            server.kill();
            tell(&hasty, &finished(3_000_000)).await.expect_err("there is no server");
            server.restart().expect("the port is still ours");
            until_told(&told, 300).await;
        };
        let (told, ()) = announce_while(&store, 1_000_000, restart).await;
        assert_eq!(told.refused, [], "patience is longer than the restart takes");
        let after: Vec<_> = members(&store).await.into_values().flatten().collect();
        assert!(after.iter().all(|there| *there >= endpoint(1_000_000)), "the old peers have gone");
        assert!(!after.is_empty());
        assert_counted_once(&store).await;
        // The first sweep writes the layout of the store again, before another tracker begins another one.
        store.sweep(NOW, Retention::DropEmpty, Budget::peers(1)).await.expect("reached");
        let theirs = RepositoryConfig::new(HashKey::from_bytes([8; 16])).lifetime(Duration::from_secs(1800));
        let other = RedisRepository::connect(&settings, &theirs).await.expect("reached");
        assert_eq!(members(&other).await, members(&store).await);
        let known =
            tell(&other, &finished(told.acknowledged[told.acknowledged.len() - 1])).await.expect("reached");
        assert_eq!(known.changes, Changes::REFRESHED, "both look for a peer in the same place");
    });
}

/// A fail-over on request: the replica has everything before it takes over.
fn redis_cluster_failing_over_on_request_loses_no_peer() {
    let cluster = Arc::new(started(Cluster::start(3, 1)));
    RUNTIME.block_on(async {
        let store = connect(&settings(cluster.urls())).await;
        let (told, masters) = announce_while(&store, 0, async |told| {
            until_told(&told, 300).await;
            let failing = Arc::clone(&cluster);
            let masters = blocking(move || {
                let slot = failing.slot_of("{0}").expect("it answers");
                (
                    failing.master_of_slot(slot).expect("there is one"),
                    failing.failover(slot).expect("there is a replica"),
                )
            })
            .await;
            until_told(&told, 300).await;
            masters
        })
        .await;
        assert_ne!(masters.0, masters.1);
        assert_all_done(&store, &told).await;
    });
}

/// A master is killed. Its replica takes over with all that it received. The other masters continue.
fn redis_cluster_master_killed_loses_only_announces_that_its_replica_did_not_get() {
    let cluster = Arc::new(started(Cluster::start(3, 1)));
    RUNTIME.block_on(async {
        let settings = settings(cluster.urls());
        let patient = connect(&settings).await;
        let store = connect(&impatient(settings, 1500)).await;
        let (before, ()) = announce_while(&patient, 0, async |told| until_told(&told, 300).await).await;
        assert_eq!(before.refused, []);
        // Each replica has all that came before.
        for master in cluster.masters() {
            let waited: u64 = cluster.server(master).query(&["WAIT", "1", "60000"]).expect("it answers");
            assert_eq!(waited, 1, "a replica that does not keep up");
        }
        let slot = cluster.slot_of("{0}").expect("it answers");
        let (during, ()) = announce_while(&store, 1_000_000, async |told| {
            until_told(&told, 300).await;
            let failing = Arc::clone(&cluster);
            blocking(move || {
                let killed = failing.kill_master_of(slot).expect("there is one");
                failing.wait_for_failover(slot, killed).expect("a replica takes over");
            })
            .await;
        })
        .await;
        assert!(!during.refused.is_empty(), "a third of all has no server for more than a second");
        assert!(
            during.slowest < Duration::from_millis(1500) + A_MINUTE,
            "{:?} is not bounded",
            during.slowest
        );
        assert!(during.acknowledged.len() > during.refused.len(), "two thirds go on");
        // A busy machine may answer some later than the patience allows.
        let begin = Instant::now();
        let after = loop {
            let (after, ()) =
                announce_while(&store, 2_000_000, async |told| until_told(&told, 300).await).await;
            if after.refused.is_empty() {
                break after;
            }
            assert!(begin.elapsed() < A_MINUTE, "not all is served again: {:?}", after.refused);
        };

        assert_eq!(lost(&patient, &before).await, [] as [u32; 0], "acknowledged, replicated and lost");
        assert_eq!(lost(&patient, &after).await, [] as [u32; 0], "acknowledged after the fail-over and lost");
        let lost = lost(&patient, &during).await.len();
        note(format_args!(
            "{lost} of {} that were acknowledged around the kill were lost",
            during.acknowledged.len()
        ));
        // At most the announces on their way to a replica: one for each task, and little more.
        assert!(lost <= 64, "{lost} of {} acknowledged announces were lost", during.acknowledged.len());
        assert_counted_once(&patient).await;
    });
}

/// Slots go from one master to another, key by key, while peers announce: a shard is one key, so it is here
/// or there. Then each goes on to the third, in one step where the servers can do that.
fn redis_cluster_slots_moved_under_load_lose_no_peer_and_refuse_none() {
    let cluster = Arc::new(started(Cluster::start(3, 1)));
    RUNTIME.block_on(async {
        let store = connect(&settings(cluster.urls())).await;
        let (told, moved) = announce_while(&store, 0, async |told| {
            until_told(&told, 300).await;
            let (moving, asked, begun) = (Arc::clone(&cluster), Arc::clone(&store), Arc::clone(&told));
            let moved = blocking(move || {
                let (mut moved, mut at_once) = (0, 0);
                let next = |from| {
                    let masters = moving.masters();
                    let at = masters.iter().position(|&master| master == from).expect("it is one of them");
                    masters[(at + 1) % masters.len()]
                };
                // All shards of the store, each to the next master.
                for shard in 0..16 {
                    let slot = moving.slot_of(format!("{{{shard}}}")).expect("it answers");
                    let to = next(moving.master_of_slot(slot).expect("there is one"));
                    let mut migration = moving.begin_migration(slot, to).expect("both are live");
                    // Announces come while the key has not moved yet, and when it has and the slot has not.
                    RUNTIME.block_on(until_told(&begun, 100));
                    moved += migration.move_keys(100).expect("both are live");
                    // However long the move takes: the server that has the key answers.
                    if shard == 0 {
                        RUNTIME.block_on(async {
                            for n in 1_000_000..1_000_300 {
                                tell(&asked, &finished(n)).await.expect("by the server that has the key");
                            }
                        });
                    }
                    RUNTIME.block_on(until_told(&begun, 100));
                    moved += migration.finish().expect("both are live");
                    at_once +=
                        usize::from(moving.migrate_slot_at_once(slot, next(to)).expect("both are live"));
                }
                note(format_args!("{at_once} of 16 slots were moved on in one step"));
                moved
            })
            .await;
            until_told(&told, 300).await;
            moved
        })
        .await;
        assert!(moved >= 16, "{moved} keys were moved");
        assert_all_done(&store, &told).await;
    });
}

/// A slot has moved, and one of the other servers stands still: a tracker that is redirected asks the new
/// master, and does not wait for the silent one.
fn redis_cluster_slot_that_has_moved_is_found_without_a_server_that_stands_still() {
    let cluster = started(Cluster::start(3, 0));
    RUNTIME.block_on(async {
        let store = connect(&settings(cluster.urls())).await;
        for n in 0..200 {
            tell(&store, &finished(n)).await.expect("reached");
        }
        // It serves the first slots, so it is the first server to get a request without a known master.
        let first = cluster.server(cluster.master_of_slot(0).expect("there is one"));
        let announce_without_it = |numbers: Vec<u32>| {
            first.pause().expect("it is ours");
            let mut asked = JoinSet::new();
            for n in numbers {
                let store = Arc::clone(&store);
                asked.spawn(async move { tell(&store, &finished(n)).await.map(|_| n).expect("answered") });
            }
            asked
        };
        let mut asked = announce_without_it((0..200).collect());
        let mut of_others = vec![];
        // More than one server has.
        while of_others.len() < 80 {
            of_others.push(asked.join_next().await.expect("two servers answer").expect("no panic"));
        }
        asked.shutdown().await;
        first.resume().expect("it is ours");

        let [_, from, to] = cluster.masters()[..] else { panic!("there are three masters") };
        let mut moved = 0;
        for shard in 0..16 {
            let slot = cluster.slot_of(format!("{{{shard}}}")).expect("it answers");
            if cluster.master_of_slot(slot).expect("there is one") == from {
                cluster.begin_migration(slot, to).and_then(|moving| moving.finish()).expect("both are live");
                moved += 1;
            }
        }
        assert!(moved > 0, "no shard was there");
        let before = calls(first, "cluster|slots");
        assert!(before > 0, "it is asked first at the start");
        announce_without_it(of_others).join_all().await;
        first.resume().expect("it is ours");
        assert_eq!(calls(first, "cluster|slots"), before, "the silent server was asked for the slots");
    });
}

/// The first server of the settings, a replica, is silent. Trackers ask it first which server has replaced a
/// lost master.
fn redis_cluster_with_a_silent_server_still_names_the_others() {
    let cluster = Arc::new(started(Cluster::start(3, 1)));
    RUNTIME.block_on(async {
        let slot = cluster.slot_of("{0}").expect("it answers");
        let lost = cluster.master_of_slot(slot).expect("there is one");
        let silent = (0..6)
            .find(|&node| !cluster.masters().contains(&node) && !cluster.replicas_of(lost).contains(&node));
        let silent = silent.expect("two other replicas");
        let mut urls = cluster.urls();
        urls.swap(0, silent);
        let store = connect(&impatient(settings(urls), 1000)).await;
        let failing = Arc::clone(&cluster);
        blocking(move || {
            failing.server(lost).kill();
            failing.wait_for_failover(slot, lost).expect("a replica takes over");
            failing.server(silent).pause().expect("it is ours");
        })
        .await;
        for n in 0..300 {
            // The first call to the lost master may only learn which server is silent.
            let _ = tell(&store, &finished(n)).await;
        }
        for n in 300..600 {
            tell(&store, &finished(n)).await.expect("all masters are known");
        }
        cluster.server(silent).resume().expect("it is ours");
    });
}

/// A Cluster grows: slots move to a server that no answer names yet. Trackers open few connections to it, and
/// lose no peer.
fn redis_cluster_that_grows_asks_the_new_server_through_few_connections() {
    let mut cluster = started(Cluster::start(3, 0));
    let new = started(cluster.add_master());
    let cluster = Arc::new(cluster);
    RUNTIME.block_on(async {
        let store = connect(&settings(cluster.urls()[..3].to_vec())).await;
        let connections = || {
            let statistics = cluster.server(new).info("stats").expect("it answers");
            let received = statistics.get("total_connections_received").expect("it counts them");
            received.parse::<u32>().expect("a number")
        };
        let (told, ()) = announce_while(&store, 0, async |told| until_told(&told, 300).await).await;
        assert_eq!(told.refused, []);
        let slot = cluster.slot_of("{0}").expect("it answers");
        let mut migration = cluster.begin_migration(slot, new).expect("both are live");
        migration.move_keys(100).expect("both are live");
        let before = connections();
        let (asked, ()) = announce_while(&store, 1_000_000, async |told| until_told(&told, 1000).await).await;
        assert_eq!(asked.refused, []);
        let received = connections() - before;
        assert!(received <= 8, "{received} connections for {} announces", asked.acknowledged.len());
        migration.finish().expect("both are live");
        let (after, ()) = announce_while(&store, 2_000_000, async |told| until_told(&told, 300).await).await;
        assert_eq!(after.refused, []);
        for told in [told, asked, after] {
            assert_eq!(lost(&store, &told).await, [] as [u32; 0], "acknowledged and lost");
        }
        assert_counted_once(&store).await;
    });
}

/// The clocks of two trackers are two minutes apart. No peer ages by that, and none is swept too early.
fn redis_trackers_with_clocks_apart_share_the_later_time() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let (early, late) = (connect(&settings).await, connect(&settings).await);
        let (lifetime, resolution) = (1800, early.capabilities().clock_resolution_secs as i64);
        let at = |seconds: i64| Timestamp::from_secs((1_800_000_000 + seconds) as u64);
        let say = |store: Arc<RedisRepository>, n: u32, now: Timestamp| async move {
            let mut nobody = PeerBuffer::new(&mut [], &mut []);
            let announce = Announce::new(torrent(1), endpoint(n));
            store.announce(&announce, now, &mut SplitMix64::new(1), &mut nobody).await.expect("reached");
        };
        say(Arc::clone(&late), 1, at(60)).await;
        say(Arc::clone(&early), 2, at(-60)).await;
        let mut listed = Vec::new();
        early.peers(&torrent(1), Cursor::START, 10, &mut listed).await.expect("reached");
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|peer| peer.last_announce == at(60)), "{listed:?}");

        // Each by its own clock, at the same time.
        assert_eq!(sweep(&late, at(60 + lifetime), 1000).await, 0);
        assert_eq!(sweep(&early, at(-60 + lifetime), 1000).await, 0);
        let expired = sweep(&late, at(61 + lifetime + resolution), 1000).await;
        assert_eq!(expired, 2, "both are as old as the later clock says");
    });
}

/// Of two trackers one sweeps. When it has gone, the other does, and two at once only share the work.
fn redis_sweeping_is_for_the_holder_of_the_lease_and_two_at_once_do_no_harm() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let named = |node: &str| with(settings.clone(), |settings| settings.node = node.into());
        let first = connect(&named("first")).await;
        let second = connect(&named("second")).await;
        let peers = 2000;
        tell_all(&first, (0..2000).map(finished), NOW).await;
        let step = first.sweep(NOW, Retention::DropEmpty, Budget::peers(1 << 20)).await.expect("reached");
        assert!(step.pass_complete && step.expired == 0);
        let later = Timestamp::from_secs(NOW.as_secs() + 2000);
        let idle = second.sweep(later, Retention::DropEmpty, Budget::peers(1000)).await.expect("reached");
        assert_eq!(
            (idle.visited, idle.expired, idle.pass_complete),
            (0, 0, true),
            "the first one holds the lease"
        );
        assert_eq!(second.totals().await.expect("reached").peers(), peers);

        // The tracker and its lease are gone: both others find it free, and one takes it from the other.
        let lease = format!("{}lease", settings.prefix);
        server.command(&["DEL", &lease]).expect("it answers");
        let both = [Arc::clone(&second), Arc::clone(&first)]
            .map(|store| tokio::spawn(async move { sweep(&store, later, 64).await }));
        let mut expired = Vec::new();
        for sweeping in both {
            expired.push(sweeping.await.expect("no panic"));
        }
        assert_eq!(expired.iter().sum::<u64>(), peers, "each peer expired once: {expired:?}");
        assert_eq!(first.totals().await.expect("reached").swarms, 0);
        note(format_args!("two at once: {expired:?}"));
    });
}

/// A caller that gives up waiting leaves the whole step done, or nothing.
fn redis_announces_that_are_dropped_are_done_or_not_and_never_half() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        let mut acknowledged = 0;
        for n in 0..2000 {
            let announce = finished(n);
            // The first is dropped after one poll, and each later one after one poll more; two are not.
            let polls = if n % 1000 == 999 { u32::MAX } else { n % 1000 };
            let patience = async {
                for _ in 0..polls {
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                told = tell(&store, &announce) => acknowledged += usize::from(told.is_ok()),
                () = patience => {}
            }
        }
        assert_counted_once(&store).await;
        let there: usize = members(&store).await.values().map(|peers| peers.len()).sum();
        let expected = 2..=there.min(1998);
        assert!(expected.contains(&acknowledged), "{acknowledged} acknowledged, {there} done");
    });
}

/// A store has one layout, and a tracker with another one gets an error.
fn redis_store_begun_otherwise_is_refused() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let _store = connect(&settings).await;
        let key = HashKey::from_bytes([8; 16]);
        let refusal = |config: RepositoryConfig| {
            let settings = settings.clone();
            async move {
                match RedisRepository::connect(&settings, &config).await {
                    Err(Error::Mismatch { what, .. }) => what,
                    other => panic!("{other:?}"),
                }
            }
        };
        assert_eq!(refusal(RepositoryConfig::new(key).shards(32)).await, "it has 16 shards");
        let limited = RepositoryConfig::new(key).max_endpoints_per_address(8);
        assert_eq!(refusal(limited).await, "its endpoints per address are not limited");
        // Another key of a tracker does not matter: the key of the store counts.
        RedisRepository::connect(&settings, &RepositoryConfig::new(key))
            .await
            .expect("the number of shards is adopted");

        let refused = RedisRepository::connect(&RedisConfig::new(["redis://127.0.0.1:1"]), &config()).await;
        assert!(matches!(refused, Err(Error::Unreachable(_))), "{refused:?}");
        let refused = RedisRepository::connect(&RedisConfig::new(["nonsense"]), &config()).await;
        assert!(matches!(refused, Err(Error::Url { .. })), "{refused:?}");
        let refused = RedisRepository::connect(&settings, &config().max_bytes(1 << 30)).await;
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
        let braces = with(settings.clone(), |settings| settings.prefix = "a{b}".into());
        let braces = RedisRepository::connect(&braces, &config()).await;
        assert!(matches!(braces, Err(Error::Prefix(_))), "{braces:?}");
    });
}

/// In a swarm of many, an IPv4 peer takes less than 60 bytes of the server's `used_memory`, and all of it is
/// returned.
fn redis_memory_of_a_large_swarm_is_small_and_is_returned() {
    const PEERS: u32 = 200_000;
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let store = connect(&settings([server.url()])).await;
        tell(&store, &finished(0)).await.expect("reached");
        // The buffers of a connection stay for a while after much traffic.
        let used = || {
            let memory = server.info("memory").expect("it answers");
            let number = |field: &str| memory[field].parse::<u64>().expect("a number");
            number("used_memory") - number("mem_clients_normal")
        };
        let empty = used();
        for first in (0..PEERS).step_by(500) {
            let announces = (first..first + 500).map(|n| Announce::new(torrent(9), endpoint(n)));
            tell_all(&store, announces, NOW).await;
        }
        let full = used() - empty;
        let each = full as f64 / f64::from(PEERS);
        note(format_args!("{each:.1} bytes per peer"));
        assert!(each < 20.0, "{each:.1} bytes an IPv4 peer");
        let later = Timestamp::from_secs(NOW.as_secs() + 4000);
        sweep(&store, later, 10_000).await;
        assert_eq!(store.totals().await.expect("reached").swarms, 0);
        let left = used().saturating_sub(empty);
        note(format_args!("{left} of {full} bytes are left"));
        // Redis 8 always keeps 190 kB of its own.
        assert!(left < full / 10, "{left} of {full} bytes are still in use");
    });
}
