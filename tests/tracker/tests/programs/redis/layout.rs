//! Trackers that share a store agree on its layout after any loss: the store is emptied, or another tracker
//! begins it anew.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, HashKey, PeerBuffer, RepositoryConfig, Request,
    Retention, SplitMix64,
};
use swarmkeep_redis::{RedisConfig, RedisRepository};
use swarmkeep_servers::{Cluster, Server, Value};
use swarmkeep_store_tests::{
    A_MINUTE,
    programs::{REDIS, Trial},
    tests, until, with,
};
use tokio::time::sleep;

use crate::redis::{
    crowd::{NOW, endpoint, members, tell, torrent},
    stores::{FUNCTIONS, LIFETIME, RUNTIME, calls, keys, listen, proxy, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_flushed_store_is_the_same_for_trackers_that_go_on_and_one_that_starts,
            redis_shards_of_a_layout_that_was_given_up_are_replaced,
            redis_layout_that_cannot_be_followed_is_an_error_until_the_store_is_as_it_was,
            redis_cluster_master_that_has_lost_all_takes_no_other_layout,
            redis_layout_that_is_lost_with_a_connection_is_written_again,
            redis_layout_that_could_not_be_confirmed_after_a_lost_connection_is_confirmed_later,
            redis_layout_of_most_shards_is_the_layout_of_the_store,
            redis_confirmed_call_that_is_lost_replaces_no_shard_of_a_store_begun_anew,
            redis_totals_that_are_kept_cost_one_call_and_are_as_old_as_allowed;
        [REDIS, FUNCTIONS]:
            redis_older_layouts_are_refused_with_a_commit_that_reads_them_and_stay,
            redis_functions_of_unused_versions_are_deleted,
            redis_lists_of_many_functions_cost_no_connection,
    }
}

const TORRENTS: u32 = 100;

/// A new tracker: it chooses its own key.
async fn start(settings: &RedisConfig, key: u8) -> Arc<RedisRepository> {
    let config = RepositoryConfig::new(HashKey::from_bytes([key; 16])).lifetime(LIFETIME);
    Arc::new(RedisRepository::connect(settings, &config).await.expect("reached"))
}

/// A peer of this tracker, in each torrent.
async fn announce_to(tracker: &RedisRepository, peer: u32) {
    for n in 0..TORRENTS {
        let announce = Announce::new(torrent(n), endpoint(peer)).left(0).event(AnnounceEvent::Completed);
        tell(tracker, &announce).await.expect("acknowledged");
    }
}

/// A store that a tracker has begun, with a peer of it in each torrent.
async fn begun(urls: impl IntoIterator<Item = String>) -> (RedisConfig, Arc<RedisRepository>) {
    let settings = settings(urls);
    let one = start(&settings, 1).await;
    announce_to(&one, 1).await;
    (settings, one)
}

/// The key with the layout.
fn layout_key(settings: &RedisConfig) -> String {
    format!("{}store", settings.prefix)
}

/// Asserts that a tracker that is only read from writes the lost layout again.
async fn assert_written_again(server: &Server, layout: &str, tracker: &RedisRepository) {
    let deadline = Instant::now() + A_MINUTE;
    while server.query::<u32>(&["EXISTS", layout]).expect("it answers") == 0 {
        tracker.scrape(&torrent(1)).await.expect("reached");
        assert!(Instant::now() < deadline, "no tracker writes the layout again");
    }
}

/// Announces one peer per tracker to all torrents. Returns the number of torrents on which they disagree.
async fn disagreements(trackers: &[&RedisRepository]) -> usize {
    for (peer, tracker) in (1..).zip(trackers) {
        announce_to(tracker, peer).await;
    }
    let all = trackers.len() as u32;
    let mut disagreed = 0;
    for n in 0..TORRENTS {
        let mut agree = true;
        for tracker in trackers {
            agree &= tracker.scrape(&torrent(n)).await.expect("reached").complete == all;
        }
        disagreed += usize::from(!agree);
    }
    disagreed
}

/// The store is emptied, and a tracker starts before any sweep. If no peer has announced meanwhile, it writes
/// the layout of the store.
fn redis_flushed_store_is_the_same_for_trackers_that_go_on_and_one_that_starts() {
    for announced in [true, false] {
        let server = started(Server::start());
        RUNTIME.block_on(async {
            let settings = settings([server.url()]);
            let (one, two) = (start(&settings, 1).await, start(&settings, 2).await);
            assert_eq!(disagreements(&[&one, &two, &*start(&settings, 3).await]).await, 0);
            server.command(&["FLUSHALL"]).expect("it answers");
            if announced {
                announce_to(&one, 1).await;
            }
            let three = start(&settings, 4).await;
            assert_eq!(disagreements(&[&one, &two, &three]).await, 0, "of {TORRENTS} torrents");
            assert_eq!(members(&three).await.len(), TORRENTS as usize);
        });
    }
}

/// Several trackers have begun the emptied store at once. Some still use a layout that was not the first to
/// be written: their shards go, and they follow.
fn redis_shards_of_a_layout_that_was_given_up_are_replaced() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let (one, two) = (start(&settings, 1).await, start(&settings, 2).await);
        assert_eq!(disagreements(&[&one, &two]).await, 0);
        let layout = layout_key(&settings);
        let written = server.query::<String>(&["GET", &layout]).expect("it answers");
        let salt = written.split(' ').nth(2).expect("a salt");
        let other = written.replace(salt, &"5a".repeat(16));
        server.command(&["SET", &layout, &other]).expect("it answers");
        let three = start(&settings, 3).await;
        assert_eq!(three.totals().await.expect("reached").swarms, 0, "their shards cannot be found");
        tell(&three, &Announce::new(torrent(1), endpoint(3))).await.expect("acknowledged");
        three.sweep(NOW, Retention::DropEmpty, Budget::peers(10_000)).await.expect("reached");
        assert_eq!(keys(&server, "*{*}").len(), 1, "a sweep removes them");
        assert_eq!(disagreements(&[&one, &two, &three]).await, 0, "of {TORRENTS} torrents");
        assert_eq!(one.status().layout_changes, 1);

        // Without a sweep, the first wrong shard is enough, each time.
        let four = start(&settings, 4).await;
        for digit in ["6", "7"] {
            server.command(&["SET", &layout, &other.replace('5', digit)]).expect("it answers");
            // It follows. Another tracker has the lease, so nothing is swept.
            four.sweep(NOW, Retention::DropEmpty, Budget::peers(10_000)).await.expect("reached");
            announce_to(&four, 4).await;
            assert_eq!(disagreements(&[&one, &two, &three, &four]).await, 0, "of {TORRENTS} torrents");
        }
    });
}

/// A tracker that cannot follow returns errors until it can.
fn redis_layout_that_cannot_be_followed_is_an_error_until_the_store_is_as_it_was() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (settings, one) = begun([server.url()]).await;
        server.command(&["FLUSHALL"]).expect("it answers");
        let limited = RepositoryConfig::new(HashKey::from_bytes([2; 16])).max_endpoints_per_address(8);
        let two = RedisRepository::connect(&settings, &limited).await.expect("reached");
        let comes = |n| Announce::new(torrent(n), endpoint(n));
        let refused = tell(&one, &comes(1)).await.expect_err("it keeps peers in other places");
        assert!(refused.reason.contains("endpoints per address are limited"), "{refused}");
        assert_eq!(one.status().layout_refused, Some(refused.reason));
        tell(&two, &comes(1)).await.expect("acknowledged");
        server.command(&["FLUSHALL"]).expect("it answers");
        tell(&one, &comes(1)).await.expect("it is the first now");
        assert_eq!(one.status().layout_refused, None);
    });
}

/// The master that had the key with the layout; the shards of the others stay.
fn redis_cluster_master_that_has_lost_all_takes_no_other_layout() {
    let cluster = started(Cluster::start(3, 0));
    RUNTIME.block_on(async {
        let (settings, one) = begun(cluster.urls()).await;
        let layout = layout_key(&settings);
        let slot = cluster.slot_of(&layout).expect("it answers");
        let master = cluster.master_of_slot(slot).expect("there is one");
        cluster.server(master).command(&["FLUSHALL"]).expect("it answers");
        let two = start(&settings, 2).await;
        let left = members(&two).await;
        assert!((30..=90).contains(&left.len()), "{} of {TORRENTS} are on the other two", left.len());
        assert_eq!(left, members(&one).await);
        assert_eq!(disagreements(&[&one, &two]).await, 0, "of {TORRENTS} torrents");
        assert_eq!([&one, &two].map(|tracker| tracker.status().layout_changes), [0, 0]);
    });
}

/// The limit at an IPv6 /64, shards without a sum of downloads, and shards without an identity: no tracker
/// mistakes them for its own layout, also if the key with the layout is lost.
fn redis_older_layouts_are_refused_with_a_commit_that_reads_them_and_stay() {
    let changes: [fn(&mut Vec<u8>); 3] =
        [|meta| meta[63] |= 1, |meta| meta.truncate(61), |meta| meta.truncate(44)];
    for change in changes {
        let server = started(Server::start());
        RUNTIME.block_on(async {
            let (settings, one) = begun([server.url()]).await;
            let key = layout_key(&settings);
            let written: String = server.query(&["GET", &key]).expect("it answers");
            server.command(&["SET", &key, &format!("1{}", &written[1..])]).expect("it answers");
            let shards = keys(&server, "*{*}");
            for shard in shards.iter().map(String::as_bytes) {
                let mut meta: Vec<u8> = server.query(&[b"HGET", shard, b"m"]).expect("it answers");
                change(&mut meta);
                server.command(&[b"HSET", shard, b"m", &meta]).expect("it answers");
            }
            let sentence = "an older layout (commit c279a9d reads it";
            // A tracker that runs is refused by the shards, one that starts by the key or by the shards.
            let refused =
                tell(&one, &Announce::new(torrent(1), endpoint(1))).await.expect_err("an older shard");
            assert!(refused.reason.contains(sentence), "{refused}");
            drop(one);
            for lost in [false, true] {
                if lost {
                    server.command(&["DEL", &key]).expect("it answers");
                }
                let config = RepositoryConfig::new(HashKey::from_bytes([2; 16]));
                let refused =
                    RedisRepository::connect(&settings, &config).await.expect_err("an older layout");
                assert!(refused.to_string().contains(sentence), "{refused}");
            }
            assert_eq!(keys(&server, "*{*}").len(), shards.len());
        });
    }
}

/// Without an announce to a missing shard.
fn redis_layout_that_is_lost_with_a_connection_is_written_again() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (settings, one) = begun([server.url()]).await;
        server.command(&["FLUSHALL"]).expect("it answers");
        server.client_kill_all().expect("it answers");
        // Reading begins no shard.
        assert_written_again(&server, &layout_key(&settings), &one).await;
    });
}

/// Some calls meanwhile ask to confirm the layout, others do not.
fn redis_layout_that_could_not_be_confirmed_after_a_lost_connection_is_confirmed_later() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let one = start(&settings, 1).await;
        let comes = |n| Announce::new(torrent(n), endpoint(n));
        tell(&one, &comes(0)).await.expect("acknowledged");
        let shard = keys(&server, "*{*}").remove(0);
        tell(&one, &comes(1)).await.expect("acknowledged");
        let layout = layout_key(&settings);
        server.command(&["DEL", &shard]).expect("it answers");
        server.command(&["SET", &layout, "of a later version"]).expect("it answers");
        server.client_kill_all().expect("it answers");
        let before = calls(&server, "get");
        one.scrape(&torrent(1)).await.expect("reached");
        until("it reads the layout", || calls(&server, "get") > before);
        let mut batch = [0, 1].map(|n| Request::new(comes(n), PeerBuffer::new(&mut [], &mut [])));
        let refused = one.announce_batch(&mut batch, NOW, &mut SplitMix64::new(1)).await;
        refused.expect_err("no tracker knows the layout");
        assert!(batch[0].answer.is_none() && batch[1].answer.is_some());
        server.command(&["DEL", &layout]).expect("it answers");
        assert_written_again(&server, &layout, &one).await;
    });
}

fn redis_functions_of_unused_versions_are_deleted() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let others = ["swarmkeep_of_other", "swarmkeep_0123456789", "others"];
        for name in ["swarmkeep_00000000", "swarmkeep_11111111"].into_iter().chain(others) {
            let code = format!("#!lua name={name}\nredis.register_function('{name}_f', function() end)");
            server.command(&["FUNCTION", "LOAD", &code]).expect("it is taken");
        }
        let noted = format!("{}uses:swarmkeep_11111111", settings.prefix);
        server.command(&["SET", &noted, "", "EX", "60"]).expect("it answers");
        let one = start(&settings, 1).await;
        announce_to(&one, 1).await;
        one.sweep(NOW, Retention::DropEmpty, Budget::peers(10)).await.expect("reached");
        let listed: Vec<Vec<Value>> = server.query(&["FUNCTION", "LIST"]).expect("it answers");
        let has = |name: &str| listed.iter().flatten().any(|field| *field == Value::BulkString(name.into()));
        assert_eq!(["swarmkeep_00000000", "swarmkeep_11111111"].map(has), [false, true]);
        assert_eq!(others.map(has), [true; 3], "they have no name of a version");
        assert_eq!(listed.len(), 5, "with the one in use");
        let notes = keys(&server, &format!("{}uses:*", settings.prefix));
        let own = notes.iter().find(|&note| *note != noted).expect("a note of its use");
        let lasts: u64 = server.query(&["TTL", own]).expect("it answers");
        assert!(lasts.abs_diff(LIFETIME.as_secs()) < 60, "for a lifetime, not for {lasts} s");
    });
}

/// Each renewal of the lease lists them: all that a server has after some upgrades.
fn redis_lists_of_many_functions_cost_no_connection() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let (settings, _one) = begun([server.url()]).await;
        let listed: Vec<Vec<Value>> = server.query(&["FUNCTION", "LIST", "WITHCODE"]).expect("it answers");
        let texts = listed.iter().flatten().filter_map(|field| match field {
            Value::BulkString(text) => str::from_utf8(text).ok(),
            _ => None,
        });
        let code = texts.max_by_key(|text| text.len()).expect("the functions").to_owned();
        let name = code.split_once("name=").expect("a library").1.lines().next().expect("its first line");
        let note = |n: u32| format!("{}uses:swarmkeep_0000000{n}", settings.prefix);
        for n in 0..5 {
            let other = code.replace(name, &format!("swarmkeep_0000000{n}"));
            server.command(&["FUNCTION", "LOAD", &other]).expect("it is taken");
            server.command(&["SET", &note(n), ""]).expect("it answers");
        }
        let libraries = || server.query::<Vec<Value>>(&["FUNCTION", "LIST"]).expect("it answers").len();
        let connections = || {
            let clients: String = server.query(&["CLIENT", "LIST"]).expect("it answers");
            let others = clients.lines().filter(|client| !client.contains("cmd=client"));
            others.map(|client| client.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let mut trackers = vec![];
        for n in 0..10 {
            server.command(&["DEL", &format!("{}lease", settings.prefix)]).expect("it answers");
            if n == 9 {
                (0..5).for_each(|n| drop(server.command(&["DEL", &note(n)]).expect("it answers")));
            }
            let next = start(&settings, 2).await;
            let before = connections();
            next.sweep(NOW, Retention::DropEmpty, Budget::peers(10)).await.expect("reached");
            trackers.push(next); // So that a connection that goes was cut.
            let cut = before.iter().filter(|&id| !connections().contains(id)).count();
            assert_eq!(cut, 0, "connections were cut by renewal {n}");
            assert_eq!(libraries(), if n == 9 { 1 } else { 6 });
        }
    });
}

/// One shard is left of a layout that was given up, and it is the first.
fn redis_layout_of_most_shards_is_the_layout_of_the_store() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let prefix = settings.prefix.clone();
        let given_up = with(settings.clone(), |settings| settings.prefix = "given-up:".into());
        let one = start(&settings, 1).await;
        announce_to(&one, 1).await;
        announce_to(&*start(&given_up, 9).await, 1).await;
        let shards = keys(&server, "given-up:*{*}");
        let given_up: Vec<u8> = server.query(&["DUMP", &shards[0]]).expect("it answers");
        let (before, _) = shards[0].split_once('{').expect("the number of a shard");
        let first = format!("{}{{0}}", before.replace("given-up:", &prefix));
        server.command(&[b"RESTORE", first.as_bytes(), b"0", &given_up, b"REPLACE"]).expect("it answers");
        server.command(&["DEL", &format!("{prefix}store")]).expect("it answers");
        let two = start(&settings, 2).await;
        assert_eq!(disagreements(&[&one, &two]).await, 0, "of {TORRENTS} torrents");
        assert_eq!([&one, &two].map(|tracker| tracker.status().layout_changes), [0, 0]);
    });
}

/// A proxy that holds the first confirmed call: it reports the call, ends that connection when it may go on,
/// and passes on everything later.
fn holds_a_confirmed_call(server: u16) -> (u16, mpsc::Receiver<mpsc::Sender<()>>) {
    let (listener, port) = listen();
    let (met, meets) = mpsc::channel();
    let met = Mutex::new(Some(met));
    proxy(listener, server, move |call, _| {
        if is_confirmed(call)
            && let Some(met) = met.lock().expect("no panic").take()
        {
            let (go, goes) = mpsc::channel();
            met.send(go).expect("the test waits");
            goes.recv().expect("it may go on");
            return Err(ErrorKind::ConnectionAborted.into());
        }
        Ok(true)
    });
    (port, meets)
}

/// The flags of a caller follow its 17 bytes of identity. A function has the caller last, the module first.
fn is_confirmed(call: &[u8]) -> bool {
    let behind = |word: &[u8]| call.windows(word.len()).position(|at| at == word).map(|at| at + word.len());
    let flags = match behind(b"swarmkeep.announce\r\n$28\r\n") {
        Some(caller) => Some(caller + 17),
        None => behind(b"_announce").map(|_| call.len() - 3),
    };
    flags.is_some_and(|flags| call[flags] & 1 == 1)
}

/// The store was emptied and begun by another tracker between the confirmation and the second attempt.
fn redis_confirmed_call_that_is_lost_replaces_no_shard_of_a_store_begun_anew() {
    let server = started(Server::start());
    let (port, meets) = holds_a_confirmed_call(server.port());
    RUNTIME.block_on(async {
        let settings = settings([server.url()]);
        let config = |key| RepositoryConfig::new(HashKey::from_bytes([key; 16])).shards(1);
        let mut through = settings.clone();
        through.urls = vec![format!("redis://127.0.0.1:{port}")];
        let one = RedisRepository::connect(&through, &config(1)).await.expect("reached");
        let comes = tokio::spawn(async move { tell(&one, &Announce::new(torrent(1), endpoint(1))).await });
        let go = tokio::task::spawn_blocking(move || meets.recv_timeout(A_MINUTE))
            .await
            .expect("no panic")
            .expect("it is met");
        server.command(&["FLUSHALL"]).expect("it answers");
        let two = RedisRepository::connect(&settings, &config(2)).await.expect("reached");
        announce_to(&two, 2).await;
        go.send(()).expect("it waits");
        comes.await.expect("no panic").expect("acknowledged");
        let members = members(&two).await;
        assert_eq!(members.len(), TORRENTS as usize, "swarms that another tracker had begun");
        assert_eq!(members[&torrent(1)].len(), 2);
    });
}

/// As the metrics of a tracker ask. The suite asks for exact totals, which ask each shard.
fn redis_totals_that_are_kept_cost_one_call_and_are_as_old_as_allowed() {
    let server = started(Server::start());
    RUNTIME.block_on(async {
        let age = Duration::from_millis(300);
        let settings = with(settings([server.url()]), |settings| settings.totals_age = age);
        let (one, two) = (start(&settings, 1).await, start(&settings, 2).await);
        announce_to(&one, 1).await;
        assert_eq!(
            one.totals().await.expect("reached").v4.seeders,
            100,
            "there were none yet: they are counted"
        );
        let asked = || -> u64 {
            let stats = server.info("stats").expect("it answers");
            stats["total_commands_processed"].parse().expect("a number")
        };
        let (before, begun) = (asked(), Instant::now());
        for _ in 0..50 {
            two.totals().await.expect("reached");
        }
        let (each, counts) = ((asked() - before) as f64 / 50.0, begun.elapsed().div_duration_f64(age));
        // Three commands, and 1,024 more once in that time.
        let most = 4.0 + (counts + 1.0) * 1100.0 / 50.0;
        assert!(each < most, "{each:.1} commands for totals, {counts:.1} ages");
        announce_to(&two, 2).await;
        let told = Instant::now();
        while two.totals().await.expect("reached").v4.seeders != 200 {
            assert!(told.elapsed() < A_MINUTE, "the sum is not counted again");
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(one.totals().await.expect("reached").v4.seeders, 200, "of both");
        assert!(two.memory().await.expect("reached").bytes > 0);
    });
}
