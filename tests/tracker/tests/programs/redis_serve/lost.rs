//! A server that is lost, or that does not answer: the errors of clients, how soon they come, and that all is
//! well again when the server is.

use std::collections::{BTreeMap, BTreeSet};

use swarmkeep::{AnnounceEvent::Started, Family};
use swarmkeep_servers::Server;
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests, until,
};
use swarmkeep_tests::serve::PROGRAM;
use swarmkeep_tests::udp::{Client, HASH, announce, announced};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, Response, TransactionId};

use swarmkeep_tests::admin::client::ask;

use crate::{
    redis::started,
    redis_serve::trackers::{Tracker, TrackerAnswer, TrackerSetup, at, escaped, of_udp},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS, PROGRAM]:
            redis_lost_is_an_error_for_clients_within_bounded_time_and_is_found_again,
            redis_silent_under_a_flood_delays_no_answer_for_long,
    }
}

/// The patience of requests here.
const PATIENCE: &str = "--redis-patience=300ms";

const OVER: &str = "the tracker's store is not available; try again later";

/// Asserts that the tracker keeps answering with an error over both protocols while the store is lost.
fn assert_lost(tracker: &Tracker) {
    for _ in 0..3 {
        assert_eq!(tracker.announce_by_udp(9), Err(OVER.into()));
        assert_eq!(tracker.announce(HASH, 9, 5, Started), Err(OVER.into()));
    }
    let path = format!("/scrape?info_hash={}", escaped(&HASH));
    let scrape = ask(tracker.http, "GET", &path, "").answer();
    assert!(scrape.text().contains(OVER), "no counts are better than wrong ones: {}", scrape.text());
    until("the tracker says so", || !tracker.is_ready() && tracker.metric("swarmkeep_store_up") == Some(0.0));
    assert_eq!(tracker.metric("swarmkeep_torrents"), None);
    let unavailable = |protocol: &str| {
        let labels = format!("{{protocol=\"{protocol}\",reason=\"unavailable\"}}");
        tracker.metric(&format!("swarmkeep_refused_requests_total{labels}")).expect("always there")
    };
    assert!(unavailable("udp") >= 3.0 && unavailable("http") >= 4.0);
    let problem = tracker.get(&format!("/api/v1/torrents/{HASH}"));
    assert_eq!(problem.status, 503, "{}", problem.text());
    assert_eq!(tracker.get("/api/v1/stats").json()["store"]["reachable"], false);
}

/// Asserts that the tracker serves again soon.
fn assert_found(tracker: &Tracker) {
    until("announces are answered again", || tracker.announce(HASH, 1, 0, Started) == Ok((600, vec![])));
    until("over UDP too", || tracker.announce_by_udp(2) == Ok((600, vec![at(1)])));
    until("the tracker says so", || tracker.is_ready() && tracker.metric("swarmkeep_store_up") == Some(1.0));
}

/// The server is killed and started again, and stopped and resumed.
fn redis_lost_is_an_error_for_clients_within_bounded_time_and_is_found_again() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    let arguments = [PATIENCE, "--interval=600"];
    let tracker = setup.tracker(&[server.url()], &arguments);
    assert_found(&tracker);
    server.kill();
    assert_lost(&tracker);
    let silent = tracker.get("/api/v1/stats").json();
    assert!(silent["store"]["answered"].as_u64() < silent["time"].as_u64(), "{silent}");
    server.restart().expect("it starts");
    assert_found(&tracker);
    server.pause().expect("it runs");
    assert_lost(&tracker);
    server.resume().expect("it stands still");
    // It has kept its peers, and perhaps has some that have announced since.
    until(
        "announces are answered again",
        || matches!(tracker.announce(HASH, 2, 5, Started), Ok((600, peers)) if peers.contains(&at(1))),
    );
    let log = tracker.serve.log();
    assert!(log.contains("the store cannot be reached"), "{log}");
}

/// Many requests at once wait for a server that stands still: none waits long, with or without room in the
/// queue.
fn redis_silent_under_a_flood_delays_no_answer_for_long() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    for (answer, expected) in [("error", None), ("empty", Some(TrackerAnswer::Ok((45, vec![]))))] {
        let arguments =
            [PATIENCE, "--retry-interval=45", "--workers=1", &format!("--when-unavailable={answer}")];
        let tracker = setup.tracker(&[server.url()], &arguments);
        server.pause().expect("it runs");
        let (mut neighbour, connection_id) = Client::of(tracker.udp).connected();
        // Enough clients that the answers to one fit into its socket, whenever they come.
        let clients: Vec<_> = (0..20).map(|_| Client::of(tracker.udp)).collect();
        clients.iter().for_each(|client| client.socket.set_nonblocking(true).expect("a socket"));
        let (mut sent, mut answers) = (BTreeSet::new(), BTreeMap::new());
        let mut receive = |sent: &mut BTreeSet<u32>| {
            let mut packet = [0; 2048];
            for client in &clients {
                while let Ok(len) = client.socket.recv(&mut packet) {
                    let id = u32::from_be_bytes(packet[4..8].try_into().expect("a header"));
                    assert!(sent.remove(&id), "asked for");
                    let response = Response::parse(&packet[..len], Family::V4).expect("a response");
                    *answers.entry(format!("{:?}", of_udp(announced(response)))).or_insert(0) += 1;
                }
            }
        };
        const ASKED: u32 = 4000;
        for n in 1..=ASKED {
            let (port, transaction_id) = (1 + (n % 60_000) as u16, TransactionId(n));
            let request = AnnounceRequest { port, transaction_id, ..announce(connection_id) };
            clients[n as usize % clients.len()].send(&request.to_vec());
            sent.insert(n);
            if n % 32 == 0 {
                // After this answer, the tracker has received the announces.
                neighbour.connect();
                receive(&mut sent);
            }
        }
        until("all but a few are answered", || {
            receive(&mut sent);
            sent.len() < ASKED as usize / 100
        });
        match expected {
            None => assert!(answers.keys().all(|answer| answer.contains("try again later")), "{answers:?}"),
            Some(empty) => assert!(answers.keys().eq([&format!("{empty:?}")]), "{answers:?}"),
        }
        server.resume().expect("it stands still");
        until("announces are answered again", || {
            matches!(tracker.announce(HASH, 1, 0, Started), Ok((1800, _)))
        });
    }
}
