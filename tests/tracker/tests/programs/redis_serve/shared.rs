//! Trackers that share a store are one tracker to clients.

use std::net::TcpListener;

use swarmkeep::{
    AnnounceEvent::{Completed, Started, Stopped},
    InfoHash,
};
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::{
    found,
    programs::{REDIS, Trial},
    tests, until,
};
use swarmkeep_tests::{
    serve::{PROGRAM, Serve},
    udp,
};
use swarmkeep_tracker_protocol::http::ScrapeResponse;

use swarmkeep_tests::admin::client::ask;

use crate::redis::{keys, server_with_module, started, torrent as hash};
use crate::redis_serve::trackers::{Tracker, TrackerSetup, at, escaped};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS, PROGRAM]:
            redis_peers_of_two_trackers_find_each_other_and_stay_when_one_tracker_goes,
            redis_trackers_of_one_store_accept_each_others_connection_ids,
            redis_cluster_is_served_from_one_url_and_a_lost_master_is_replaced,
            redis_that_was_emptied_and_begun_by_a_tracker_with_other_settings_is_left_by_the_first,
            redis_that_comes_a_little_later_than_the_tracker_is_waited_for,
            redis_engine_that_is_named_keeps_the_store_or_the_tracker_does_not_start,
    }
}

fn scrape(tracker: &Tracker, info_hash: InfoHash) -> (u32, u32, u32) {
    let path = format!("/scrape?info_hash={}", escaped(&info_hash));
    let body = ask(tracker.http, "GET", &path, "").answer().body;
    let response = ScrapeResponse::parse(&body).expect("a response").expect("no failure");
    let (_, counts) = response.swarms().next().expect("the one asked for");
    (counts.seeders, counts.leechers, counts.completed)
}

fn redis_trackers_of_one_store_accept_each_others_connection_ids() {
    let (setup, server) = (TrackerSetup::new(), started(Server::start()));
    let urls = [server.url()];
    let key = setup.folder.write_secret("connection-key", "0123456789abcdef0123456789abcdef");
    let (one, two) = (setup.tracker(&urls, &[]), setup.tracker(&urls, &[]));
    let other = setup.tracker(&urls, &["--redis-prefix=other:"]);
    let own = setup.tracker(&urls, &["--connection-key", &key]);
    let id = udp::Client::of(one.udp).connect();
    let accepts = |tracker: &Tracker| udp::accepts(tracker.udp, id);
    assert!(accepts(&one) && accepts(&two), "trackers of one store have one key");
    assert!(!accepts(&other), "another store has another key");
    assert!(!accepts(&own), "the key of a file overrides the key of the store");
}

fn redis_engine_that_is_named_keeps_the_store_or_the_tracker_does_not_start() {
    let (setup, server) = (TrackerSetup::new(), server_with_module(&[]));
    let urls = [server.url()];
    let shards = |kind: &str| keys(&server, "*{*}").iter().filter(|key| key.starts_with(kind)).count();
    let first = setup.tracker(&urls, &["--redis-engine=functions", "--interval=600"]);
    assert_eq!(first.announce(hash(1), 1, 0, Completed), Ok((600, vec![])));
    assert_eq!([shards("swarmkeep:{"), shards("swarmkeep:packed{")], [1, 0]);
    let (code, said) = Serve::refused(setup.serve(&urls, &["--redis-engine=module"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("its engine is functions"), "{said}");
    let auto = setup.tracker(&urls, &["--interval=600"]);
    assert_eq!(auto.announce(hash(1), 2, 9, Started), Ok((600, vec![at(1)])), "the store that is there");
    let other = setup.tracker(&urls, &["--redis-engine=module", "--redis-prefix=other:", "--interval=600"]);
    assert_eq!(other.announce(hash(1), 1, 0, Started), Ok((600, vec![])));
    assert_eq!(shards("other:packed{"), 1);
    let new = setup.tracker(&urls, &["--redis-prefix=new:"]);
    for (tracker, engine) in [(&auto, "functions"), (&other, "module"), (&new, "module")] {
        let info = format!("swarmkeep_store_info{{repository=\"redis\",engine=\"{engine}\",");
        assert!(tracker.get("/metrics").text().contains(&info), "{info}");
        let log = tracker.serve.log();
        assert!(log.contains(&format!("engine=\"{engine}\"\n")), "{log}");
    }
    drop(other);
    // The key with the layout was lost, and the module's shards were not.
    server.command(&["DEL", "other:store"]).expect("it answers");
    let functions = ["--redis-engine=functions", "--redis-prefix=other:"];
    let (code, said) = Serve::refused(setup.serve(&urls, &functions));
    assert!(code == Some(2) && said.contains("its engine is module"), "{said}");
    assert_eq!(shards("other:{"), 0);
}

fn redis_peers_of_two_trackers_find_each_other_and_stay_when_one_tracker_goes() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    let urls = [server.url()];
    let mut one = setup.tracker(&urls, &["--redis-node=one", "--interval=600"]);
    let two = setup.tracker(&urls, &["--redis-node=two", "--interval=600"]);
    let other = setup.tracker(&urls, &["--redis-node=three", "--redis-prefix=other:", "--interval=600"]);

    assert_eq!(one.announce(hash(1), 1, 0, Started), Ok((600, vec![])));
    assert_eq!(two.announce(hash(1), 2, 9, Started), Ok((600, vec![at(1)])));
    assert_eq!(one.announce(hash(1), 3, 9, Started), Ok((600, vec![at(1), at(2)])));
    assert_eq!(two.announce(hash(1), 2, 0, Completed), Ok((600, vec![at(3)])));
    assert_eq!(one.announce(hash(1), 3, 9, Stopped), Ok((600, vec![])));
    for tracker in [&one, &two] {
        assert_eq!(scrape(tracker, hash(1)), (2, 0, 1));
    }
    assert_eq!(scrape(&other, hash(1)), (0, 0, 0), "another prefix is another store");
    assert_eq!(one.announce_by_udp(7), Ok((600, vec![])));
    assert_eq!(two.announce_by_udp(8), Ok((600, vec![at(7)])));

    let text = |tracker: &Tracker| tracker.get("/metrics").text().to_owned();
    let ids = [&one, &two, &other]
        .map(|tracker| text(tracker).split_once(",id=\"").expect("an id").1[..8].to_owned());
    assert!(ids[0] == ids[1] && ids[0] != ids[2], "{ids:?}");
    for (tracker, name) in [(&one, "one"), (&two, "two")] {
        let info = format!(",node=\"{name}\",id=\"{}\"}} 1\n", ids[0]);
        assert!(text(tracker).contains(&info), "{info}");
        assert!(tracker.serve.log().contains(&format!("node=\"{name}\"")), "{}", tracker.serve.log());
        until("both count the same peers", || tracker.metric("swarmkeep_torrents") == Some(2.0));
        let stats = tracker.get("/api/v1/stats").json();
        assert_eq!(stats["store"]["node"], name);
        let (answered, now) = (&stats["store"]["answered"], &stats["time"]);
        assert!(now.as_u64().zip(answered.as_u64()).is_some_and(|(now, at)| now - at < 10), "{stats}");
        assert!(tracker.metric("swarmkeep_store_answered_timestamp_seconds").is_some());
    }

    one.serve.kill();
    assert_eq!(scrape(&two, hash(1)), (2, 0, 1), "announced to the other");
    let again = setup.tracker(&urls, &["--interval=600"]);
    assert_eq!(again.announce(hash(1), 4, 9, Started), Ok((600, vec![at(1), at(2)])));
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = format!("node=\"{}-", name.expect("Linux tells").trim());
    assert!(text(&again).contains(&name), "named by the machine without a name of its own");

    let (_, log) = other.serve.stop("TERM");
    assert!(log.contains("stopped reason=\"SIGTERM\" requests=1\n"), "without totals of others: {log}");
}

/// One node of the Cluster is enough to find the others, and a master that is lost is replaced.
fn redis_cluster_is_served_from_one_url_and_a_lost_master_is_replaced() {
    let setup = TrackerSetup::new();
    let cluster = started(Cluster::start(3, 1));
    let arguments = ["--redis-patience=4s", "--interval=600"];
    let one = setup.tracker(&cluster.urls()[..1], &arguments);
    let two = setup.tracker(&cluster.urls(), &arguments);
    let announce_all = |first: u16, others: &[u16], all: &[u16]| {
        let [others, all] = [others, all].map(|ports| ports.iter().map(|&port| at(port)).collect::<Vec<_>>());
        for n in 0..60 {
            let [here, there] = if n % 2 == 0 { [&one, &two] } else { [&two, &one] };
            // Seeders get leechers only.
            assert_eq!(here.announce(hash(n), first, 0, Started), Ok((600, others.clone())));
            assert_eq!(there.announce(hash(n), first + 1, 9, Started), Ok((600, all.clone())));
        }
    };
    announce_all(1, &[], &[1]);
    let slot = cluster.slot_of("swarmkeep:{0}").expect("it answers");
    let master = cluster.master_of_slot(slot).expect("there is one");
    let mut master = cluster.server(master).connect().expect("it is live");
    master.command(&["SET", "{0}last", ""]).expect("it answers");
    assert_eq!(
        master.query::<u64>(&["WAIT", "1", "60000"]).expect("it answers"),
        1,
        "its replica has all of it"
    );
    let killed = cluster.kill_master_of(slot).expect("there is one");
    until("all are answered while another takes its place", || {
        (0..60).all(|n| one.announce(hash(n), 1, 0, Started).is_ok())
    });
    assert_ne!(cluster.master_of_slot(slot).expect("there is one"), killed);
    announce_all(3, &[2], &[1, 2, 3]);
    until("both say so", || one.is_ready() && two.is_ready());
}

/// With another setting it cannot be shared.
fn redis_that_was_emptied_and_begun_by_a_tracker_with_other_settings_is_left_by_the_first() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    let urls = [server.url()];
    let one = setup.tracker(&urls, &["--interval=600"]);
    assert_eq!(one.announce(hash(1), 1, 0, Started), Ok((600, vec![])));
    assert_eq!(one.metric("swarmkeep_store_layout_refused"), Some(0.0));
    let ahead = one.metric("swarmkeep_store_clock_ahead_seconds");
    assert!(ahead.is_some_and(|ahead| ahead.abs() <= 2.0), "{ahead:?}");

    // So that it does not begin the store again.
    one.serve.signal("STOP");
    server.command(&["FLUSHALL"]).expect("it answers");
    let limited = setup.tracker(&urls, &["--endpoints-per-address=8"]);
    one.serve.signal("CONT");
    one.announce(hash(1), 1, 0, Started).unwrap_err();
    until("it says so", || !one.is_ready() && one.metric("swarmkeep_store_layout_refused") == Some(1.0));
    until("the other serves", || limited.is_ready());
}

fn redis_that_comes_a_little_later_than_the_tracker_is_waited_for() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    server.kill();
    let urls = [server.url()];
    let (code, said) = Serve::refused(setup.serve(&urls, &["--redis-patience=500ms"]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot reach the store on Redis") && said.contains("start the server"), "{said}");
    let tracker = std::thread::scope(|scope| {
        let tracker = scope.spawn(|| setup.tracker(&urls, &["--redis-patience=4s"]));
        let at = TcpListener::bind(("127.0.0.1", server.port())).expect("the server is gone");
        at.set_nonblocking(true).expect("a listener");
        found("the tracker comes", || at.accept().ok());
        drop(at);
        server.restart().expect("it starts");
        tracker.join().expect("it listens")
    });
    tracker.announce(udp::HASH, 1, 0, Started).expect("the store is there");
}
