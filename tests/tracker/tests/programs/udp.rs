//! The tracker over UDP, through sockets and past them: which packets get an answer, and from which address.
//! The tests of `swarmkeep-tracker` cover the meaning of requests without sockets, and `swarmkeep-cli` the
//! program.

use std::{
    net::{SocketAddr, UdpSocket},
    num::NonZero,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{Endpoint, Family, HashKey, InfoHash, TorrentRepository, Unavailable, catalog::Repository};
use swarmkeep_conformance::Delayed;
use swarmkeep_store_tests::{
    A_MINUTE, in_a_process_of_its_own,
    programs::{self, Trial, trial},
    resident_kb, until, with,
};
use swarmkeep_tests::{
    Tracker, any_port, listening,
    net::{A_WIRE, Net},
    runtime,
    udp::{CONNECT, Client, announce},
};
use swarmkeep_tracker::{Config, RateLimiter, Reason, XdpMode};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, ConnectionId, Response, ScrapeRequest, ScrapeStats, TransactionId,
};
use tokio::sync::watch;

/// The tests of this module: each through sockets, and past them in two modes.
pub(crate) fn tests() -> Vec<Trial> {
    macro_rules! named {
        ($($test:ident),+ $(,)?) => { [$((stringify!($test), $test as fn(&Net))),+] };
    }
    let tests = named![
        peers_meet_and_are_counted_over_each_family,
        answers_leave_from_the_address_of_the_request,
        an_invalid_request_gets_silence_and_its_neighbours_an_answer,
        a_long_announce_is_an_announce,
        a_peer_that_stays_away_is_swept,
        an_address_that_asks_too_often_is_left_alone_and_its_neighbours_are_answered,
        stopping_answers_all_received_requests,
        a_client_with_many_ports_is_answered_by_all_threads_from_one_store,
        a_second_tracker_at_the_same_address_is_refused,
        a_slow_store_delays_only_its_own_answers_and_gives_them_in_its_own_order,
        a_flood_on_a_slow_store_gets_overload_errors_and_it_recovers,
        a_slow_store_is_asked_for_many_at_once,
        announces_do_not_wait_for_scrapes_nor_these_for_one_another,
        stopping_waits_for_the_answers_of_a_slow_store,
        one_family_under_flood_does_not_starve_the_other,
        a_flood_from_one_address_takes_no_memory_and_its_neighbours_notice_little,
    ];
    let mode = |mode: XdpMode| {
        tests.map(move |(name, test)| {
            let path = format!("{}::xdp_{mode}::{name}", module_path!());
            trial(&path, &A_WIRE, move || test(&Net::xdp(mode)))
        })
    };
    let sockets = tests.map(|(name, test)| {
        trial(&format!("{}::sockets::{name}", module_path!()), &[], move || test(&Net::loopback()))
    });
    let all = sockets.into_iter().chain(mode(XdpMode::Native)).chain(mode(XdpMode::Generic));
    // A queue has one ring for both families. In native mode a flood goes through the tracker, which is the
    // same there.
    let is_left_out = |name: &str| {
        (name.contains("xdp_") && name.contains("one_family_under_flood"))
            || (name.contains("xdp_generic") && name.contains("flood"))
    };
    all.filter(|trial| !is_left_out(trial.name())).collect()
}

fn peers_meet_and_are_counted_over_each_family(net: &Net) {
    let tracker = over(net, build("packed", Duration::from_secs(2700)));
    for &address in &tracker.udp {
        let (mut first, mut second) = (net.client(address), net.client(address));
        let info_hash = hash(address);
        let id = first.connect();
        first.announce(AnnounceRequest { info_hash, port: 1001, ..announce(id) });
        let id = second.connect();
        let (counts, peers) = second.announce(AnnounceRequest { info_hash, port: 1002, ..announce(id) });
        let own = net.clients[usize::from(address.is_ipv6())];
        assert_eq!((counts.interval, peers), (77, vec![Endpoint::new(own, 1001).expect("no port 0")]));
        let both = ScrapeStats { leechers: 2, ..ScrapeStats::default() };
        assert_eq!(second.scrape(id, &[*info_hash.as_bytes()]), [both], "{address}");
    }
}

fn answers_leave_from_the_address_of_the_request(net: &Net) {
    let (both, v4) = (any_port("::"), any_port("0.0.0.0"));
    for (name, at) in [("packed", &[both, v4][..]), ("btreemap-rwlock-tokio", &[both])] {
        let config = listening(at, &[]);
        let tracker = net.run(net.bind(&config, build(name, Duration::from_secs(2700))).expect("free ports"));
        let v6 = tracker.udp[0].port();
        let v4 = tracker.udp.last().expect("a listener").port();
        let ([server, server_v6, other], [here, here_v6, neighbour, _]) = (net.server, net.clients);
        for (from, asked) in [
            (here, SocketAddr::new(other, v4)),
            (here, SocketAddr::new(server, v4)),
            (neighbour, SocketAddr::new(server, v4)),
            (here_v6, SocketAddr::new(server_v6, v6)),
        ] {
            // It receives nothing from addresses other than the one that it asks.
            let (mut client, id) = net.client_at(from, asked).connected();
            assert_eq!(client.scrape(id, &[[0xaa; 20]]).len(), 1, "{name}: {asked}");
        }
    }
}

fn an_invalid_request_gets_silence_and_its_neighbours_an_answer(net: &Net) {
    let tracker = over(net, build("packed", Duration::from_secs(2700)));
    for &address in &tracker.udp {
        let (mut client, id) = net.client(address).connected();
        for packet in [&[][..], &[0xff; 60_000]] {
            client.send(packet);
            // The next answer belongs to the next request.
            client.connect();
        }
        client.announce(announce(id));
    }
}

fn a_long_announce_is_an_announce(net: &Net) {
    let tracker = over(net, build("packed", Duration::from_secs(2700)));
    let (mut client, id) = net.client(tracker.udp[0]).connected();
    for trailing in [&b"\x02\x09/announce"[..], &[0, 0], &[0xff; 2000], &[2; 60_000]] {
        let (counts, _) = client.announce(AnnounceRequest { trailing, ..announce(id) });
        assert_eq!(counts.leechers, 1);
    }
}

fn an_address_that_asks_too_often_is_left_alone_and_its_neighbours_are_answered(net: &Net) {
    let limiter = Arc::new(RateLimiter::new(HashKey::from_bytes([7; 16]), 1, 20, 1024));
    let mut config = config(net);
    (config.rules.rate, config.rules.unlimited) = (Some(limiter), vec![net.clients[0].into()]);
    let server = net.bind(&config, build("packed", Duration::from_secs(2700)));
    let tracker = net.run(server.expect("free ports"));
    let of = |n: usize| net.client_at(net.clients[n], tracker.udp[0]);
    let (mut greedy, mut neighbour, mut friend) = (of(2), of(3), of(0));
    let [id, neighbours, friends] = [&mut greedy, &mut neighbour, &mut friend].map(Client::connect);
    greedy.socket.set_nonblocking(true).expect("a socket");
    let (mut answered, began) = (0, Instant::now());
    for _ in 0..200 {
        greedy.send(&announce(id).to_vec());
    }
    let refused = || tracker.control.metrics.counts().udp.refused(Reason::TooOften);
    until("each is answered or refused", || {
        while greedy.socket.recv(&mut [0; 2048]).is_ok() {
            answered += 1;
        }
        answered + refused() == 200
    });
    let most = 20 + began.elapsed().as_secs() + 1;
    assert!((20..=most).contains(&answered), "{answered}");
    neighbour.announce(announce(neighbours));
    for _ in 0..100 {
        friend.announce(announce(friends));
    }
    // Packets without a good id do not count against the address that they name.
    let mut forger = of(3);
    for _ in 0..100 {
        assert_eq!(forger.refusal(announce(ConnectionId(7))), "invalid connection id");
    }
    neighbour.announce(announce(neighbours));
    assert_eq!(refused(), 200 - answered);
}

fn a_peer_that_stays_away_is_swept(net: &Net) {
    let (store, tracker) = packed_and_its_tracker(net, Duration::from_secs(2));
    let (mut client, id) = net.client(tracker.udp[0]).connected();
    assert_eq!(client.announce(announce(id)).0.leechers, 1);
    until("it is swept", || store.totals().swarms == 0);
}

fn stopping_answers_all_received_requests(net: &Net) {
    let server = net.bind(&config(net), build("packed", Duration::from_secs(2700))).expect("loopback");
    let [addresses, ..] = server.addresses().expect("bound");
    let mut clients: Vec<_> = addresses.iter().map(|&at| net.client(at)).collect();
    for (client, at) in clients.iter().zip(&addresses) {
        (0..20).for_each(|_| client.send(&CONNECT));
        // The requests have arrived when a later datagram has.
        let later = net.at_server(|| UdpSocket::bind((at.ip(), 0)).expect("an address of the server"));
        net.client(later.local_addr().expect("bound")).send(b"later");
        later.recv(&mut [0; 5]).expect("it comes");
    }
    net.at_server(|| runtime().block_on(server.run(std::future::ready(()))));
    for client in &mut clients {
        (0..20).for_each(|_| assert_eq!(client.receive().len(), 16));
    }
}

fn a_client_with_many_ports_is_answered_by_all_threads_from_one_store(net: &Net) {
    let config = with(config(net), |config| config.udp_workers = NonZero::new(4));
    let server = net.bind(&config, build("packed", Duration::from_secs(2700))).expect("loopback");
    let tracker = net.run(server);
    for &address in &tracker.udp {
        for n in 1..=64 {
            // The id that one thread issues is good for all.
            let id = net.client(address).connect();
            let (counts, _) = net.client(address).announce(AnnounceRequest {
                port: 1000 + n,
                info_hash: hash(address),
                ..announce(id)
            });
            assert_eq!(counts.leechers, u32::from(n), "{address}");
        }
    }
}

fn a_second_tracker_at_the_same_address_is_refused(net: &Net) {
    let tracker = over(net, build("packed", Duration::from_secs(2700)));
    for &address in &tracker.udp {
        let second = net.bind(&listening(&[address], &[]), build("packed", Duration::from_secs(2700)));
        let error = second.expect_err("the port is taken").to_string();
        assert!(error.starts_with(&format!("cannot listen on udp {address}")), "{error}");
    }
}

fn a_slow_store_delays_only_its_own_answers_and_gives_them_in_its_own_order(net: &Net) {
    let gate = StoreGate::default();
    let tracker = over(net, slow(&gate));
    let address = tracker.udp[0];
    let (mut client, id) = net.client(address).connected();
    client.send(&AnnounceRequest { transaction_id: TransactionId(77), ..announce(id) }.to_vec());
    for _ in 0..10 {
        client.connect();
    }
    gate.open();
    let answer = client.receive();
    assert_eq!(Response::parse(&answer, Family::V4).expect("a response").transaction_id(), TransactionId(77));
}

fn a_flood_on_a_slow_store_gets_overload_errors_and_it_recovers(net: &Net) {
    let (gate, one) = (StoreGate::default(), with_one_thread(net));
    let tracker = net.run(net.bind(&one, slow(&gate)).expect("loopback"));
    let address = tracker.udp[0];
    let (client, mut neighbour) = (net.client(address), net.client(address));
    let id = neighbour.connect();
    let (mut refused, mut answered, mut answer) = (0, 0, [0; 2048]);
    let mut drain = |client: &Client| {
        while let Ok(len) = client.socket.recv(&mut answer) {
            match Response::parse(&answer[..len], Family::V4) {
                Ok(Response::Announce(_)) => answered += 1,
                _ => refused += 1,
            }
        }
    };
    client.socket.set_nonblocking(true).expect("a socket");
    for _ in 0..100 {
        (0..30).for_each(|_| client.send(&announce(id).to_vec()));
        // After this answer, the tracker has received the announces. Connects need no tracker.
        assert_eq!(neighbour.refusal(announce(ConnectionId(0))), "invalid connection id");
        drain(&client);
    }
    gate.open();
    until("the queue is worked off", || {
        drain(&client);
        neighbour.try_announce(announce(id)).is_ok()
    });
    drain(&client);
    // Of datagrams that come together, the client's own socket loses most.
    assert!(refused > 1000 && answered > 100, "{refused} refused, {answered} answered");
}

fn a_slow_store_is_asked_for_many_at_once(net: &Net) {
    let gate = StoreGate::default();
    let tracker = over(net, slow(&gate));
    let (mut client, id) = net.client(tracker.udp[0]).connected();
    for n in 0..100 {
        client.send(&AnnounceRequest { port: 1000 + n, want: Some(0), ..announce(id) }.to_vec());
    }
    // After this answer, the tracker has received the announces. Connects need no tracker.
    assert_eq!(client.refusal(announce(ConnectionId(0))), "invalid connection id");
    gate.open();
    for _ in 0..100 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Announce(_))));
    }
    let calls = gate.calls("announce");
    assert!(calls <= 50, "{calls} calls for 100 announces");
}

fn announces_do_not_wait_for_scrapes_nor_these_for_one_another(net: &Net) {
    let (gate, one) = (StoreGate::default(), with_one_thread(net));
    let tracker = net.run(net.bind(&one, slow(&gate)).expect("loopback"));
    let address = tracker.udp[0];
    let (mut client, other) = (net.client(address), net.client(address));
    let id = client.connect();
    let packet = ScrapeRequest::new(id, TransactionId(1), &[[0xaa; 20]; 74]).to_vec();
    (0..5).for_each(|_| client.send(&packet));
    until("it is asked for some scrapes", || gate.calls("scrape") >= 5);
    other.send(&announce(id).to_vec());
    until("it is asked for the announce too", || gate.calls("announce") == 1);
    gate.open();
    other.receive();
    for _ in 0..5 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Scrape(_))));
    }
}

fn stopping_waits_for_the_answers_of_a_slow_store(net: &Net) {
    let gate = StoreGate::default();
    let tracker = over(net, slow(&gate));
    let (client, id) = net.client(tracker.udp[0]).connected();
    client.send(&announce(id).to_vec());
    until("it is asked", || gate.calls("announce") == 1);
    thread::scope(|scope| {
        scope.spawn(|| drop(tracker));
        thread::sleep(Duration::from_millis(20));
        gate.open();
    });
    assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Announce(_))));
}

fn one_family_under_flood_does_not_starve_the_other(net: &Net) {
    let server = net.bind(&with_one_thread(net), build("packed", Duration::from_secs(2700)));
    let tracker = net.run(server.expect("loopback"));
    let [flooded, quiet] = tracker.udp[..] else { panic!("two addresses") };
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        // More threads than cores, so that the tracker always has datagrams to read.
        for _ in 0..4 {
            scope.spawn(|| {
                let client = net.client(flooded);
                client.socket.set_nonblocking(true).expect("a socket");
                // It ends, even if the other client has given up.
                let longest = Instant::now() + 2 * A_MINUTE;
                while !enough.load(Relaxed) && Instant::now() < longest {
                    let _ = client.socket.send(&CONNECT);
                }
            });
        }
        let mut client = net.client(quiet);
        for _ in 0..100 {
            client.connect();
        }
        enough.store(true, Relaxed);
    });
}

fn a_flood_from_one_address_takes_no_memory_and_its_neighbours_notice_little(net: &Net) {
    if !in_a_process_of_its_own(&programs::name()) {
        return;
    }
    let (store, tracker) = packed_and_its_tracker(net, Duration::from_secs(2700));
    let address = tracker.udp[0];
    let (neighbour, id) = net.client_at(net.clients[3], address).connected();
    let before = resident_kb();
    let (sent, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let (answered, lost) = thread::scope(|scope| {
        scope.spawn(|| {
            let flooder = net.client_at(net.clients[2], address);
            flooder.socket.set_nonblocking(true).expect("a socket");
            // Connects; announces and scrapes with the id of another client; cut ones; and pure garbage.
            let stolen = announce(id).to_vec();
            let packets = [&CONNECT[..], &CONNECT, &CONNECT, &stolen, &stolen[..97], &[0xff; 1400], &[]];
            for packet in packets.iter().cycle().take(400_000) {
                sent.fetch_add(flooder.socket.send(packet).is_ok().into(), Relaxed);
            }
            enough.store(true, Relaxed);
        });
        neighbour.socket.set_read_timeout(Some(Duration::from_millis(500))).expect("above zero");
        let (mut answered, mut lost, mut answer) = (0, 0, [0; 2048]);
        while !enough.load(Relaxed) {
            neighbour.send(&announce(id).to_vec());
            *(if neighbour.socket.recv(&mut answer).is_ok() { &mut answered } else { &mut lost }) += 1;
        }
        (answered, lost)
    });
    assert!(sent.load(Relaxed) > 360_000, "{} have been sent", sent.load(Relaxed));
    // Datagrams beyond the socket's queue are lost, from any client. Clients repeat them (BEP 15). Beside
    // other tests, a tenth was lost.
    assert!(answered > 0 && lost <= answered, "{lost} lost, {answered} answered");
    assert_eq!(store.totals().peers(), 1, "no other peer has announced");
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 4 * 1024, "{grown} KiB");
}

fn config(net: &Net) -> Config {
    with(Config::new(), |config| {
        config.udp = net.server[..2].iter().map(|&ip| SocketAddr::new(ip, 0)).collect();
        (config.rules.interval_secs, config.rules.jitter_percent) = (77, 0);
        config.sweep_period = Duration::from_millis(200);
    })
}

fn with_one_thread(net: &Net) -> Config {
    with(config(net), |config| config.udp_workers = NonZero::new(1))
}

fn over(net: &Net, repository: Repository) -> Tracker {
    net.run(net.bind(&config(net), repository).expect("free ports"))
}

fn build(name: &str, lifetime: Duration) -> Repository {
    swarmkeep_tests::build(name, |config| config.lifetime(lifetime))
}

fn packed_and_its_tracker(net: &Net, lifetime: Duration) -> (Arc<dyn TorrentRepository>, Tracker) {
    let repository = build("packed", lifetime);
    (Arc::clone(repository.as_sync().expect("packed is synchronous")), over(net, repository))
}

/// Records the requests to a store, and holds its answers until the gate opens.
#[derive(Debug, Default, Clone)]
struct StoreGate {
    calls: Arc<Mutex<Vec<&'static str>>>,
    is_open: Arc<watch::Sender<bool>>,
}

impl StoreGate {
    fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// The number of calls of the methods with this prefix.
    fn calls(&self, method: &str) -> usize {
        let calls = self.calls.lock().expect("no panic with it");
        calls.iter().filter(|call| call.starts_with(method)).count()
    }

    async fn pass(self, method: &'static str) -> Result<(), Unavailable> {
        self.calls.lock().expect("no panic with it").push(method);
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        Ok(())
    }
}

fn slow(gate: &StoreGate) -> Repository {
    let gate = gate.clone();
    let pass = move |method| Box::pin(gate.clone().pass(method)) as _;
    Repository::Async(Arc::new(Delayed::new(build("packed", Duration::from_secs(2700)), pass)))
}

/// A swarm for each address.
fn hash(address: SocketAddr) -> InfoHash {
    InfoHash::new([address.is_ipv4().into(); 20])
}
