//! The way past the system's sockets: which packets take it, which do not, and its end.

use std::{net::SocketAddr, num::NonZero, process::Command, thread, time::Duration};

use swarmkeep::Family;
use swarmkeep_store_tests::{
    programs::{Need, Trial, find},
    tests, until, with,
};
use swarmkeep_tests::{
    Folder, Tracker, build, listening,
    net::{A_WIRE, Namespace, Wire, ip, program_that_passes_all},
    udp::{CONNECT, Client},
};
use swarmkeep_tracker::{
    Error, Kind, LocalPeers, NetworkList, Reason, Rules, Server, Xdp, XdpMode, XdpStatus,
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [A_WIRE[0], A_WIRE[1]]:
            a_second_program_is_refused_and_sockets_go_on,
            a_program_answers_connects_with_ids_that_the_tracker_recognises,
            an_interface_may_go_down_and_up_have_another_name_and_go,
            an_unknown_neighbour_and_another_way_back_pass,
            connects_of_refused_networks_get_no_answer,
            the_best_mode_that_works_is_used;
        [A_WIRE[0], A_WIRE[1], ETHTOOL]: queues_may_come_but_not_go
    }
}

const ETHTOOL: Need = Need::program("ethtool", "ethtool");

/// A tracker with two threads, at all addresses of the server's end, with one listener for both families.
fn tracker(wire: &Wire, xdp: Xdp) -> Tracker {
    let everywhere = "[::]:6969".parse().expect("a constant");
    let mut config = listening(&[everywhere], &[]);
    config.rules.local_peers = LocalPeers::Take;
    (config.xdp, config.udp_workers) = (Some(xdp), NonZero::new(2));
    let mut server = None;
    // A process that another test starts has the sockets of an earlier tracker for a moment.
    until("the ports are free", || {
        let bound = wire.server.run(|| Server::bind(&config, build("packed", |config| config)));
        !matches!(server.insert(bound), Err(Error::Bind { .. }))
    });
    let server = server.expect("bound above").expect("a tracker");
    wire.server.run(|| Tracker::of(server))
}

fn xdp(interface: &str, mode: XdpMode, connects: Option<bool>) -> Xdp {
    with(Xdp::at(interface), |xdp| (xdp.mode, xdp.connects) = (mode, connects))
}

fn status(tracker: &Tracker) -> XdpStatus {
    tracker.control.metrics.xdp().expect("it is asked for")
}

/// The connects that the program has answered.
fn past_sockets(tracker: &Tracker) -> u64 {
    status(tracker).connects.iter().sum()
}

/// All connects.
fn connects(tracker: &Tracker) -> u64 {
    let udp = tracker.control.metrics.counts().udp;
    [Family::V4, Family::V6].into_iter().map(|family| udp.requests(Kind::Connect, family)).sum()
}

/// Waits until the program has the keys of connection ids.
fn until_it_answers(wire: &Wire, tracker: &Tracker) {
    let mut client = wire.udp_client("10.9.0.2", "10.9.0.1");
    until("the program answers", || {
        client.connect();
        past_sockets(tracker) > 0
    });
}

fn the_best_mode_that_works_is_used() {
    let wire = Wire::new(1);
    wire.server.run(|| ip("link add b0 type bridge"));
    for (interface, best, expected) in [
        ("s", XdpMode::ZeroCopy, "native"),
        ("s", XdpMode::Generic, "generic"),
        // It runs no programs itself.
        ("b0", XdpMode::ZeroCopy, "generic"),
    ] {
        let tracker = tracker(&wire, xdp(interface, best, None));
        assert_eq!(status(&tracker).mode, Some(expected), "{interface} {best}");
        wire.udp_answers();
    }
    let mut nowhere = listening(&["0.0.0.0:6969".parse().expect("a constant")], &[]);
    nowhere.xdp = Some(Xdp::at("nowhere"));
    let error = Server::bind(&nowhere, build("packed", |config| config)).expect_err("no such interface");
    assert!(error.to_string().starts_with("there is no interface `nowhere`"), "{error}");
}

fn a_second_program_is_refused_and_sockets_go_on() {
    let wire = Wire::new(1);
    let first = wire.server.run(|| program_that_passes_all("s"));
    let second = tracker(&wire, Xdp::at("s"));
    assert_eq!(status(&second).mode, None);
    wire.udp_answers();
    drop(second);
    drop(first);
    // It waits for a tracker that ends a little later.
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let wire = Wire::new(1);
        let first = wire.server.run(|| program_that_passes_all("s"));
        let next = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(300));
                drop(first);
            });
            tracker(&wire, xdp("s", mode, None))
        });
        assert_eq!(status(&next).mode, Some(mode.to_string().as_str()));
    }
}

fn a_program_answers_connects_with_ids_that_the_tracker_recognises() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let wire = Wire::new(1);
        // In native mode a veth pair drops the packets of a program unless the other end has a program too.
        let _other_end = wire.client.run(|| program_that_passes_all("c"));
        let tracker = tracker(&wire, xdp("s", mode, Some(true)));
        until_it_answers(&wire, &tracker);
        let before = (past_sockets(&tracker), connects(&tracker));
        (0..10).for_each(|_| wire.udp_answers());
        assert_eq!((past_sockets(&tracker), connects(&tracker)), (before.0 + 20, before.1 + 20), "{mode}");
        assert_eq!(tracker.control.metrics.counts().udp.refused(Reason::NotConnected), 0);
    }
}

fn connects_of_refused_networks_get_no_answer() {
    let (wire, folder) = (Wire::new(1), Folder::empty());
    let tracker = tracker(&wire, xdp("s", XdpMode::Generic, Some(true)));
    until_it_answers(&wire, &tracker);
    let refuse = |networks: &str| {
        let list = NetworkList::load((), folder.write("networks", networks)).expect("a good list");
        tracker.control.rules.replace(with(Rules::new(), |rules| {
            (rules.local_peers, rules.refused) = (LocalPeers::Take, Some(list));
        }));
    };
    refuse("10.9.0.3\n");
    let (stranger, mut other) =
        (wire.udp_client("10.9.0.3", "10.9.0.1"), wire.udp_client("10.9.0.2", "10.9.0.1"));
    until("the tracker refuses its connects", || {
        stranger.send(&CONNECT);
        tracker.control.metrics.counts().udp.refused(Reason::RefusedAddress) > 0
    });
    let before = past_sockets(&tracker);
    other.connect();
    assert_eq!(past_sockets(&tracker), before);
    refuse("");
    until("the program answers again", || {
        other.connect();
        past_sockets(&tracker) > before
    });
}

fn an_interface_may_go_down_and_up_have_another_name_and_go() {
    let wire = Wire::new(1);
    let tracker = tracker(&wire, xdp("s", XdpMode::Generic, None));
    until_it_answers(&wire, &tracker);
    wire.server.run(|| {
        ip("link set s down");
        ip("link set s name s2");
        ip("link set s2 up");
        // The link takes its IPv6 addresses with it.
        ip("address add fd09::1/64 dev s2 nodad");
        ip("address add 10.9.0.77/24 dev s2");
    });
    wire.udp_answers();
    let mut client = wire.udp_client("10.9.0.2", "10.9.0.77");
    until("a new address is the program's", || {
        let before = past_sockets(&tracker);
        client.connect();
        past_sockets(&tracker) > before
    });
    let before = past_sockets(&tracker);
    wire.server.run(|| ip("link delete s2"));
    until("the interface is gone", || status(&tracker).mode.is_none());
    assert_eq!(past_sockets(&tracker), before, "a counter does not go back");
    let mut here = wire.server.run(|| Client::of(SocketAddr::from(([127, 0, 0, 1], 6969))));
    here.connect();
}

fn queues_may_come_but_not_go() {
    let set = |namespace: &Namespace, end: &str, queues: &str| {
        let mut ethtool = Command::new(find("ethtool").expect("a need of this test"));
        ethtool.args(["--set-channels", end, "rx", queues, "tx", queues]);
        let output = namespace.run(|| ethtool.output()).expect("it runs");
        String::from_utf8(output.stderr).expect("English")
    };
    let start = |wire: &Wire| {
        let tracker = tracker(wire, xdp("s", XdpMode::Native, Some(false)));
        until("the program has addresses", || status(&tracker).addresses > 0);
        tracker
    };
    // Sockets with datagrams from all queues.
    let many_answers = |wire: &Wire| {
        let mut clients: Vec<_> = (0..16).map(|_| wire.udp_client("10.9.0.2", "10.9.0.1")).collect();
        clients.iter().for_each(|client| client.send(&CONNECT));
        clients.iter_mut().for_each(|client| assert_eq!(client.receive().len(), 16));
    };

    let wire = Wire::new(2);
    assert_eq!([set(&wire.client, "c", "1"), set(&wire.server, "s", "1")], ["", ""]);
    let tracker = start(&wire);
    many_answers(&wire);
    assert_eq!([set(&wire.server, "s", "2"), set(&wire.client, "c", "2")], ["", ""]);
    many_answers(&wire);
    assert_eq!(status(&tracker).mode, Some("native"));

    let wire = Wire::new(2);
    let tracker = start(&wire);
    many_answers(&wire);
    assert_eq!(set(&wire.client, "c", "1"), "");
    let refusal = set(&wire.server, "s", "1");
    assert!(refusal.contains("AF_XDP"), "{refusal}");
    many_answers(&wire);
    assert_eq!(status(&tracker).mode, Some("native"));
}

fn an_unknown_neighbour_and_another_way_back_pass() {
    let wire = Wire::new(1);
    wire.look_up_routes();
    wire.server.run(|| {
        ip("link add b0 type bridge");
        ip("link set b0 up");
        ip("route add 10.9.7.0/24 dev b0");
        // True for the main table, but not for answers from this address.
        ip("route add 10.9.8.0/24 dev s");
        ip("route add 10.9.8.0/24 dev b0 table 7");
        ip("rule add from 10.9.0.9 table 7");
        // Known there, so that only the interface is wrong.
        for address in ["10.9.7.1", "10.9.8.1"] {
            ip(&format!("neighbour add {address} lladdr 02:00:00:00:00:07 dev b0 nud permanent"));
        }
    });
    wire.client.run(|| {
        ip("address add 10.9.7.1/24 dev c");
        ip("address add 10.9.8.1/24 dev c");
    });
    let tracker = tracker(&wire, xdp("s", XdpMode::Generic, None));
    until_it_answers(&wire, &tracker);
    for _ in 0..3 {
        wire.server.run(|| ip("neighbour flush dev s"));
        wire.udp_answers();
    }
    let before = past_sockets(&tracker);
    wire.udp_answers();
    assert_eq!(past_sockets(&tracker), before + 2, "both neighbours are known again");

    // Answers that leave by another interface, as routes and rules say, are never seen again.
    for (from, to, is_past) in
        [("10.9.7.1", "10.9.0.1", 0), ("10.9.8.1", "10.9.0.9", 0), ("10.9.8.1", "10.9.0.1", 1)]
    {
        let (before, client) = ((past_sockets(&tracker), connects(&tracker)), wire.udp_client(from, to));
        until("the neighbour is known", || {
            client.send(&CONNECT);
            thread::sleep(Duration::from_millis(10));
            is_past == 0 || past_sockets(&tracker) > before.0
        });
        until("it has come", || connects(&tracker) > before.1);
        assert_eq!(past_sockets(&tracker) > before.0, is_past == 1, "{from} to {to}");
    }
}
