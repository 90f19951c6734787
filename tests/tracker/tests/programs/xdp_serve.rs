//! `swarmkeep serve --xdp`: its privileges, its end, and clients of other projects.

use std::{
    fs,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use swarmkeep_store_tests::{
    programs::{ARIA2, LIBTORRENT, Need, PYTHON, TRANSMISSION, Trial},
    tests, until,
};
use swarmkeep_tests::{
    admin::client::get,
    net::{A_WIRE, Wire, ip, program_that_passes_all},
    serve::{PROGRAM, Serve, program, swarmkeep},
    udp::{CONNECT, Client, announce},
};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, Response};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [A_WIRE[0], A_WIRE[1], PROGRAM]:
            a_tracker_that_is_killed_loses_no_client_that_asks_again,
            frames_of_queues_without_a_thread_pass,
            the_load_generator_sends_past_the_sockets,
            packets_lost_by_a_full_ring_are_counted,
            a_tracker_with_a_user_of_its_own_keeps_no_privilege_and_goes_on_after_sighup;
        [A_WIRE[0], A_WIRE[1], PROGRAM, SETPRIV]:
            three_capabilities_are_enough_and_are_given_up,
            without_them_sockets_serve_and_the_log_says_why;
        [A_WIRE[0], A_WIRE[1], PROGRAM, ARIA2, LIBTORRENT, TRANSMISSION]: clients_that_are_not_ours_announce
    }
}

const SETPRIV: Need = Need::program("setpriv", "util-linux");

/// The tracker with these arguments, on the server's end.
fn start(wire: &Wire, before: &[&str], arguments: &[&str]) -> Serve {
    let [first, rest @ ..] = before else {
        let mut command = swarmkeep(&program(), "serve");
        command.args(ARGUMENTS.split(' ')).args(arguments);
        return wire.server.run(|| Serve::start(command));
    };
    let mut command = Command::new(first);
    command.env_clear().args(rest).arg(program()).arg("serve").args(ARGUMENTS.split(' ')).args(arguments);
    wire.server.run(|| Serve::start(command))
}

const ARGUMENTS: &str = "--udp=0.0.0.0:6969 --udp=[::]:6969 --http=off --admin=127.0.0.1:6970 \
    --local-peers=take --requests=0";

/// The metric of this name and these labels.
fn metric(wire: &Wire, name: &str) -> u64 {
    let text = wire.server.run(|| get(SocketAddr::from(([127, 0, 0, 1], 6970)), "/metrics"));
    let found = text.text().lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name}: {}", text.text()))
}

fn a_tracker_that_is_killed_loses_no_client_that_asks_again() {
    let wire = Wire::new(1);
    let mut first = start(&wire, &[], &["--xdp=s"]);
    takes_datagrams(&wire);
    assert_eq!(metric(&wire, r#"swarmkeep_xdp_info{mode="native"}"#), 1);
    let (enough, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|n| {
                let (wire, enough, answered) = (&wire, &enough, &answered);
                scope.spawn(move || {
                    ask_again_and_again(
                        {
                            let [from, to] = [["10.9.0.2", "10.9.0.1"], ["fd09::2", "fd09::1"]][n % 2];
                            wire.udp_client(from, to)
                        },
                        enough,
                        answered,
                    )
                })
            })
            .collect();
        let until_answered = |more| {
            let before = answered.load(Relaxed);
            until("clients are answered", || answered.load(Relaxed) >= before + more);
        };
        until_answered(2000);
        first.kill();
        // Through sockets: a program that is still there would take its datagrams.
        let second = start(&wire, &[], &[]);
        until_answered(2000);
        enough.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
        drop(second);
    });
}

/// Announces without a pause, and after a tenth of a second without an answer connects again.
fn ask_again_and_again(mut client: Client, enough: &AtomicBool, answered: &AtomicU64) {
    client.socket.set_read_timeout(Some(Duration::from_millis(100))).expect("above zero");
    while !enough.load(Relaxed) {
        let (mut answer, id) = ([0; 2048], client.protocol.connection_id(Instant::now()));
        let request = match id {
            None => CONNECT.to_vec(),
            Some(id) => AnnounceRequest { want: Some(0), ..announce(id) }.to_vec(),
        };
        let received = client.socket.send(&request).and_then(|_| client.socket.recv(&mut answer));
        match received.map(|len| client.protocol.answer(&request, &answer[..len], Instant::now())) {
            Ok(Ok(Some(Response::Connect(_)))) => {}
            Ok(Ok(Some(Response::Announce(_)))) => _ = answered.fetch_add(1, Relaxed),
            // From another run of the tracker, or no tracker listens.
            _ => {
                id.inspect(|id| client.protocol.forget(*id));
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn a_tracker_with_a_user_of_its_own_keeps_no_privilege_and_goes_on_after_sighup() {
    let wire = Wire::new(1);
    let serve = start(&wire, &[], &["--xdp=s", "--xdp-mode=generic", "--user=nobody"]);
    takes_datagrams(&wire);
    for field in ["CapEff", "CapPrm", "CapAmb"] {
        let capabilities = serve.statuses(field);
        assert!(capabilities.len() > 2 && capabilities.iter().all(|set| set == NONE), "{capabilities:?}");
    }
    wire.udp_answers();
    serve.signal("HUP");
    until("it reads them", || serve.log().contains("settings read again"));
    wire.udp_answers();
    // Its reads and writes of the program need no capability.
    wire.server.run(|| ip("address add 10.9.0.77/24 dev s"));
    let connects = || metric(&wire, r#"swarmkeep_xdp_connects_total{family="ipv4"}"#);
    let (mut client, before) = (wire.udp_client("10.9.0.3", "10.9.0.77"), connects());
    assert!(before > 0, "{}", serve.log());
    until("the program knows the new address", || {
        client.connect();
        connects() > before
    });
}

const NONE: &str = "0000000000000000";

fn three_capabilities_are_enough_and_are_given_up() {
    let wire = Wire::new(1);
    wire.look_up_routes();
    let before = ["setpriv", "--bounding-set=-all,+net_admin,+net_raw,+bpf"];
    let serve = start(&wire, &before, &["--xdp=s"]);
    let log = serve.log();
    // The memory that it may lock is enough for one queue, also after a mode that does not work.
    assert!(log.contains(r#"XDP: attached interface="s" mode=native queues=1"#), "{log}");
    assert!(serve.statuses("CapPrm").iter().all(|set| set == NONE));
    wire.udp_answers();
}

fn without_them_sockets_serve_and_the_log_says_why() {
    let wire = Wire::new(1);
    let serve = start(&wire, &["setpriv", "--bounding-set=-all"], &["--xdp=s"]);
    assert_eq!(metric(&wire, r#"swarmkeep_xdp_info{mode="sockets"}"#), 1);
    let log = serve.log();
    assert!(log.contains("all datagrams come through sockets") && log.contains("CAP_NET_ADMIN"), "{log}");
    wire.udp_answers();
}

fn frames_of_queues_without_a_thread_pass() {
    let wire = Wire::new(2);
    for workers in [1, 2] {
        let serve = start(&wire, &[], &["--xdp=s", "--xdp-connects=false", &format!("--workers={workers}")]);
        takes_datagrams(&wire);
        pause(&serve);
        // The ports decide the queue.
        let mut clients: Vec<_> = (0..64).map(|_| wire.udp_client("10.9.0.2", "10.9.0.1")).collect();
        clients.iter().for_each(|client| client.send(&CONNECT));
        let waits = || wire.server.run(waits_in_sockets);
        match workers {
            1 => until("some wait in a socket", waits),
            _ => thread::sleep(Duration::from_millis(100)),
        }
        assert_eq!(waits(), workers == 1, "{workers} threads for two queues");
        serve.signal("CONT");
        clients.iter_mut().for_each(|client| assert_eq!(client.receive().len(), 16));
    }
}

/// Stops all threads of a tracker until SIGCONT.
fn pause(serve: &Serve) {
    serve.signal("STOP");
    until("it is stopped", || serve.statuses("State").iter().all(|state| state.starts_with('T')));
}

/// Whether datagrams wait in a UDP socket of the network.
fn waits_in_sockets() -> bool {
    let table = fs::read_to_string("/proc/thread-self/net/udp").expect("Linux has it");
    let mut waiting =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(4)?.split_once(':'));
    waiting.any(|(_, received)| received != "00000000")
}

/// Waits until datagrams come past the sockets.
fn takes_datagrams(wire: &Wire) {
    until("the program has addresses", || metric(wire, "swarmkeep_xdp_addresses ") > 0);
}

fn packets_lost_by_a_full_ring_are_counted() {
    let wire = Wire::new(1);
    let serve = start(&wire, &[], &["--xdp=s", "--xdp-connects=false", "--workers=1"]);
    takes_datagrams(&wire);
    let mut client = wire.udp_client("10.9.0.2", "10.9.0.1");
    client.connect();
    pause(&serve);
    (0..5000).for_each(|_| client.send(&CONNECT));
    serve.signal("CONT");
    let connects =
        || metric(&wire, r#"swarmkeep_requests_total{protocol="udp",kind="connect",family="ipv4"}"#);
    let drops = || metric(&wire, "swarmkeep_udp_socket_drops_total ");
    until("each is answered or counted", || connects() + drops() == 5001);
    assert!(drops() >= 2900, "{} of 5,000", drops());
    let of_ring = |reason: &str| metric(&wire, &format!("swarmkeep_xdp_drops_total{{reason=\"{reason}\"}}"));
    assert_eq!(of_ring("ring_full") + of_ring("no_place"), drops());
    wire.udp_answers();
}

fn the_load_generator_sends_past_the_sockets() {
    let wire = Wire::new(1);
    let serve = start(&wire, &[], &["--xdp=s", "--xdp-connects"]);
    takes_datagrams(&wire);
    let load = |more: &[&str]| {
        let mut load = swarmkeep(&program(), "load");
        load.args(["--i-own-this-target", "--json", "--duration=1s", "--warm-up=0s", "--concurrency=16"]);
        load.args(["--target=10.9.0.1:6969", "--target=[fd09::1]:6969"]).args(more);
        wire.client.run(|| load.output().expect("it runs"))
    };
    let output = load(&["--xdp=c", "--mix=connect=1,announce=2,scrape=1"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(report["succeeded"].as_u64().is_some_and(|succeeded| succeeded > 1000), "{report}");
    assert_eq!([&report["failed"], &report["wrong"]], [0, 0], "{report}");
    assert_eq!(report["generator"]["xdp_mode"], "native");
    for family in ["ipv4", "ipv6"] {
        let connects = metric(&wire, &format!("swarmkeep_xdp_connects_total{{family=\"{family}\"}}"));
        assert!(connects > 100, "{family}: {}", serve.log());
    }
    let _other_end = wire.client.run(|| program_that_passes_all("c"));
    let elsewhere = load(&["--xdp=lo"]);
    let error = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(error.contains("the answers to 16 of 16 workers do not come by it"), "{error}");
}

fn clients_that_are_not_ours_announce() {
    let wire = Wire::new(1);
    let _serve = start(&wire, &[], &["--xdp=s"]);
    takes_datagrams(&wire);
    let folder = tempfile::tempdir().expect("a folder of ours");
    let url = "udp://10.9.0.1:6969/announce";
    let torrent = format!(
        "d8:announce{}:{url}4:infod6:lengthi1e4:name1:x12:piece lengthi16384e6:pieces20:{}7:privatei1eee",
        url.len(),
        "x".repeat(20)
    );
    let path = folder.path().join("x.torrent");
    fs::write(&path, torrent).expect("a folder of ours");
    let folder = folder.path().display();
    // aria2 has no UDP trackers without DHT.
    let aria2 = format!(
        "aria2c --no-conf --dir={folder} --interface=10.9.0.2 --enable-dht6=false --dht-file-path={folder}/dht"
    );
    let transmission = format!("transmission-cli --config-dir {folder} --download-dir {folder} --port 7000");
    let script = "import libtorrent as lt, sys, time\n\
        s = lt.session({'listen_interfaces': '10.9.0.2:6881', 'enable_dht': False, 'enable_lsd': False})\n\
        t = s.add_torrent({'ti': lt.torrent_info(sys.argv[1]), 'save_path': sys.argv[1] + '.d'})\n\
        time.sleep(60)\n";
    let [aria2, transmission] = [&aria2, &transmission].map(|line| line.split(' ').collect::<Vec<_>>());
    for (n, line) in [aria2, transmission, vec![PYTHON, "-c", script]].into_iter().enumerate() {
        let mut client = Command::new(line[0]);
        client.args(&line[1..]).arg(&path).env("HOME", &path);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = wire.client.run(|| client.spawn().expect("a need of this test"));
        until(line[0], || metric(&wire, r#"swarmkeep_peers_joined_total{protocol="udp"}"#) > n as u64);
        client.kill().and_then(|()| client.wait()).expect("a child");
    }
}
