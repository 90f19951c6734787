//! The tracker over real sockets: what comes back, from whom, and what does not. How requests are understood
//! is tested without sockets in `swarmkeep-tracker`, the program around it in `swarmkeep-cli`.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    AnnounceEvent, AsyncTorrentRepository, Endpoint, Family, InfoHash, TorrentRepository, catalog::Repository,
};
use swarmkeep_store_tests::{in_a_process_of_its_own, resident_kb};
use swarmkeep_tests::{
    Tracker, any_port, runtime,
    udp::{Client, announce, bytes_of, error_in},
};
use swarmkeep_tracker::{Config, Rules, Server};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, ConnectRequest, ConnectionId, Response, ScrapeRequest, ScrapeStats, TransactionId,
};

#[test]
fn peers_meet_over_ipv4_and_ipv6_in_a_store_of_either_kind() {
    for name in ["packed", "btreemap-rwlock-tokio-mutex-tokio", "btreemap-rwlock-tokio"] {
        let tracker = over(build(name, Duration::from_secs(2700)));
        for address in tracker.udp.clone() {
            let (mut seeder, mut leecher) = (Client::of(address), Client::of(address));
            let ids = (seeder.connect(), leecher.connect());
            seeder.announce(AnnounceRequest { port: 1001, left: 0, ..announce(ids.0) });
            let (counts, peers) = leecher.announce(AnnounceRequest { port: 1002, ..announce(ids.1) });
            assert_eq!(counts.interval, 77, "{name}");
            assert_eq!(peers, [Endpoint::new(address.ip(), 1001).unwrap()], "{name} at {address}");
            let completed = AnnounceEvent::Completed;
            leecher.announce(AnnounceRequest { port: 1002, left: 0, event: completed, ..announce(ids.1) });
        }
        let mut client = Client::of(tracker.udp[1]);
        let id = client.connect();
        let both = ScrapeStats { seeders: 4, completed: 2, leechers: 0 };
        assert_eq!(client.scrape(id, &[[0xaa; 20], [0xbb; 20]]), [both, ScrapeStats::default()], "{name}");
    }
}

#[test]
fn answers_leave_from_the_address_that_was_asked() {
    for name in ["packed", "btreemap-rwlock-tokio"] {
        let config = Config::new().udp(any_port("0.0.0.0")).udp(any_port("::"));
        let tracker = Tracker::over(&config, build(name, Duration::from_secs(2700)));
        let [v4, v6] = [0, 1].map(|n| tracker.udp[n].port());
        let here = [127, 0, 0, 1].into();
        for (from, asked) in [
            (here, SocketAddr::from(([127, 0, 0, 3], v4))),
            (here, SocketAddr::from(([127, 0, 0, 1], v4))),
            ([127, 0, 0, 2].into(), SocketAddr::from(([127, 0, 0, 1], v4))),
            (Ipv6Addr::LOCALHOST.into(), SocketAddr::from((Ipv6Addr::LOCALHOST, v6))),
        ] {
            // It hears nothing from other addresses than the one that it asks.
            let mut client = Client::at(from, asked);
            let id = client.connect();
            assert_eq!(client.scrape(id, &[[0xaa; 20]]).len(), 1, "{name}: {asked}");
        }
    }
}

#[test]
fn a_connection_id_is_good_for_the_address_it_was_sent_to() {
    let tracker = over(build("packed", Duration::from_secs(2700)));
    let address = tracker.udp[0];
    let mut client = Client::of(address);
    let id = client.connect();
    // Another port of the same address is the same client behind its router.
    Client::of(address).announce(announce(id));
    let mut neighbour = Client::at(Ipv4Addr::new(127, 0, 0, 2).into(), address);
    for id in [id, ConnectionId(id.0 ^ 1 << 40), ConnectionId(0)] {
        let request = bytes_of(announce(id));
        neighbour.send(&request);
        let answer = neighbour.receive();
        assert!(answer.len() <= request.len());
        assert_eq!(error_in(&answer), "invalid connection id");
    }
}

#[test]
fn what_is_no_request_gets_silence_and_its_neighbours_an_answer() {
    let tracker = over(build("packed", Duration::from_secs(2700)));
    for &address in &tracker.udp {
        let mut client = Client::of(address);
        let id = client.connect();
        let good = bytes_of(announce(id));
        let unknown_action = [&good[..8], &[0, 0, 0, 9], &good[12..]].concat();
        let response = [&[0, 0, 0, 3], &[b'x'; 40][..]].concat();
        let bad: [&[u8]; 7] =
            [&[], &[0], &good[..15], &good[..97], &unknown_action, &response, &[0xff; 60_000]];
        for packet in bad {
            client.send(packet);
            // The next answer is the one to the next request.
            client.connect();
        }
        client.announce(announce(id));
    }
}

#[test]
fn a_long_announce_is_an_announce() {
    let tracker = over(build("packed", Duration::from_secs(2700)));
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    for trailing in [&b"\x02\x09/announce"[..], &[0, 0], &[0xff; 2000], &[2; 60_000]] {
        let (counts, _) = client.announce(AnnounceRequest { trailing, ..announce(id) });
        assert_eq!(counts.leechers, 1);
    }
}

#[test]
fn port_0_is_refused_and_not_stored() {
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2700));
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    client.send(&bytes_of(AnnounceRequest { port: 0, ..announce(id) }));
    assert!(error_in(&client.receive()).starts_with("port 0"));
    assert_eq!(store.totals().swarms, 0);
}

#[test]
fn a_peer_that_stays_away_is_swept() {
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2));
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    client.announce(announce(id));
    assert_eq!(store.totals().peers(), 1);
    let deadline =
        Instant::now() + Duration::from_secs(2 * (2 + store.capabilities().clock_resolution_secs) + 5);
    while store.totals().swarms > 0 {
        assert!(Instant::now() < deadline, "{:?}", store.totals());
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn stopping_answers_what_has_been_received_and_takes_less_than_a_second() {
    let server = Server::bind(&config(), build("packed", Duration::from_secs(2700))).expect("loopback");
    let mut clients: Vec<_> = server.udp_addresses().expect("bound").into_iter().map(Client::of).collect();
    let mut packet = [0; ConnectRequest::LEN];
    ConnectRequest { transaction_id: TransactionId(1) }.write(&mut packet);
    for client in &mut clients {
        (0..20).for_each(|_| client.send(&packet));
    }
    let asked = Instant::now();
    runtime().block_on(server.run(std::future::ready(())));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    for client in &mut clients {
        (0..20).for_each(|_| assert_eq!(client.receive().len(), 16));
    }
}

#[test]
fn who_asks_from_many_ports_is_answered_by_all_threads_from_one_store() {
    let config = config().udp_workers(NonZero::new(4).expect("4"));
    let server = Server::bind(&config, build("packed", Duration::from_secs(2700))).expect("loopback");
    let tracker = Tracker::of(server);
    for &address in &tracker.udp {
        for n in 1..=64 {
            // The id that one thread issues is good for all.
            let id = Client::of(address).connect();
            let (counts, _) = Client::of(address).announce(AnnounceRequest {
                port: 1000 + n,
                info_hash: hash(address),
                ..announce(id)
            });
            assert_eq!(counts.leechers, u32::from(n), "{address}");
        }
    }
}

#[test]
fn a_second_tracker_at_the_same_address_is_refused() {
    let tracker = over(build("packed", Duration::from_secs(2700)));
    for &address in &tracker.udp {
        let second = Server::bind(&Config::new().udp(address), build("packed", Duration::from_secs(2700)));
        let error = second.expect_err("the port is taken").to_string();
        assert!(error.starts_with(&format!("cannot listen on udp {address}")), "{error}");
    }
}

#[test]
fn a_slow_store_holds_up_nobody_who_does_not_need_it_and_answers_in_its_own_order() {
    let tracker = over(slow(Duration::from_secs(2)));
    let address = tracker.udp[0];
    let mut client = Client::of(address);
    let id = client.connect();
    let asked = Instant::now();
    client.send(&bytes_of(AnnounceRequest { transaction_id: TransactionId(77), ..announce(id) }));
    for _ in 0..10 {
        client.connect();
    }
    assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
    let answer = client.receive();
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!(Response::parse(&answer, Family::V4).expect("a response").transaction_id(), TransactionId(77));
}

#[test]
fn who_floods_a_slow_store_is_told_that_it_is_overloaded_and_it_recovers() {
    let one = config().udp_workers(NonZero::<usize>::MIN);
    let tracker = Tracker::of(Server::bind(&one, slow(Duration::from_millis(500))).expect("loopback"));
    let address = tracker.udp[0];
    let (client, mut neighbour) = (Client::of(address), Client::of(address));
    let id = neighbour.connect();
    let (mut refused, mut answered, mut answer) = (0, 0, [0; 2048]);
    let mut drain = |client: &Client| {
        while let Ok(len) = client.socket.recv(&mut answer) {
            match Response::parse(&answer[..len], Family::V4) {
                Ok(Response::Announce(_)) => answered += 1,
                _ => {
                    assert_eq!(error_in(&answer[..len]), "the tracker is overloaded; try again later");
                    refused += 1;
                }
            }
        }
    };
    client.socket.set_nonblocking(true).expect("a socket");
    for _ in 0..100 {
        (0..30).for_each(|_| client.send(&bytes_of(announce(id))));
        // Once it has an answer, the announces have been taken.
        neighbour.connect();
        drain(&client);
    }
    // The queue is worked off at 1,024 a second.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(neighbour.announce(announce(id)).0.leechers, 1);
    drain(&client);
    // Of those that come together, the client's own socket loses most.
    assert!(refused > 1000 && answered > 100, "{refused} refused, {answered} answered");
}

#[test]
fn a_slow_store_is_asked_for_many_at_once() {
    // One by one, 100 announces would take it 50 seconds, and sixteen at a time 3.5.
    let tracker = over(slow(Duration::from_millis(500)));
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    let asked = Instant::now();
    for n in 0..100 {
        client.send(&bytes_of(AnnounceRequest { port: 1000 + n, want: Some(0), ..announce(id) }));
    }
    for _ in 0..100 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Announce(_))));
    }
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}

#[test]
fn announces_do_not_wait_for_scrapes_nor_these_for_one_another() {
    let one = config().udp_workers(NonZero::<usize>::MIN);
    let tracker = Tracker::of(Server::bind(&one, slow(Duration::from_millis(500))).expect("loopback"));
    let address = tracker.udp[0];
    let (mut client, mut other) = (Client::of(address), Client::of(address));
    let id = client.connect();
    let mut packet = vec![0; 16 + 74 * 20];
    ScrapeRequest::new(id, TransactionId(1), &[[0xaa; 20]; 74]).write(&mut packet);
    let asked = Instant::now();
    (0..5).for_each(|_| client.send(&packet));
    other.announce(announce(id));
    assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
    for _ in 0..5 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Scrape(_))));
    }
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[test]
fn stopping_waits_for_what_a_slow_store_owes() {
    let tracker = over(slow(Duration::from_millis(150)));
    let mut client = Client::of(tracker.udp[0]);
    let id = client.connect();
    client.send(&bytes_of(announce(id)));
    thread::sleep(Duration::from_millis(20));
    let asked = Instant::now();
    drop(tracker);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Announce(_))));
}

#[test]
fn one_family_under_flood_does_not_starve_the_other() {
    let server = Server::bind(
        &config().udp_workers(NonZero::<usize>::MIN),
        build("packed", Duration::from_secs(2700)),
    );
    let tracker = Tracker::of(server.expect("loopback"));
    let [flooded, quiet] = tracker.udp[..] else { panic!("two addresses") };
    let (sent, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let slowest = thread::scope(|scope| {
        // More of them than there are cores, so that what is there for the tracker never ends.
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::of(flooded);
                client.socket.set_nonblocking(true).expect("a socket");
                let mut packet = [0; ConnectRequest::LEN];
                ConnectRequest { transaction_id: TransactionId(1) }.write(&mut packet);
                // It ends, even where the other client has given up.
                let longest = Instant::now() + Duration::from_secs(30);
                while !enough.load(Relaxed) && Instant::now() < longest {
                    sent.fetch_add(client.socket.send(&packet).is_ok().into(), Relaxed);
                }
            });
        }
        let mut client = Client::of(quiet);
        let mut times = Vec::new();
        let longest = Instant::now() + Duration::from_secs(30);
        while sent.load(Relaxed) < 400_000 && Instant::now() < longest {
            let asked = Instant::now();
            client.connect();
            times.push(asked.elapsed());
        }
        enough.store(true, Relaxed);
        times.sort();
        times[times.len() * 95 / 100]
    });
    assert!(slowest < Duration::from_millis(500), "{slowest:?} for 95 of 100");
}

#[test]
fn a_million_packets_from_one_address_take_no_memory_and_its_neighbours_notice_little() {
    if !in_a_process_of_its_own(
        "serve::a_million_packets_from_one_address_take_no_memory_and_its_neighbours_notice_little",
    ) {
        return;
    }
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2700));
    let address = tracker.udp[0];
    let mut neighbour = Client::at(Ipv4Addr::new(127, 0, 0, 3).into(), address);
    let id = neighbour.connect();
    let before = resident_kb();
    let (sent, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let (times, lost) = thread::scope(|scope| {
        scope.spawn(|| {
            let flooder = Client::at(Ipv4Addr::new(127, 0, 0, 2).into(), address);
            flooder.socket.set_nonblocking(true).expect("a socket");
            let mut connect = [0; ConnectRequest::LEN];
            ConnectRequest { transaction_id: TransactionId(1) }.write(&mut connect);
            // Connects; announces and scrapes with the id of another; those cut short; and what is nothing at
            // all.
            let stolen = bytes_of(announce(id));
            let packets = [&connect[..], &connect, &connect, &stolen, &stolen[..97], &[0xff; 1400], &[]];
            for packet in packets.iter().cycle().take(1_000_000) {
                sent.fetch_add(flooder.socket.send(packet).is_ok().into(), Relaxed);
            }
            enough.store(true, Relaxed);
        });
        neighbour.socket.set_read_timeout(Some(Duration::from_millis(50))).expect("above zero");
        let (mut times, mut lost, mut answer) = (Vec::new(), 0, [0; 2048]);
        while !enough.load(Relaxed) {
            let asked = Instant::now();
            neighbour.send(&bytes_of(announce(id)));
            match neighbour.socket.recv(&mut answer) {
                Ok(_) => times.push(asked.elapsed()),
                Err(_) => lost += 1,
            }
        }
        times.sort();
        (times, lost)
    });
    assert!(sent.load(Relaxed) > 900_000, "{} have been sent", sent.load(Relaxed));
    // What overflows the socket's queue is lost, to whomever it belongs; clients ask again (BEP 15). Beside
    // other tests, a tenth was.
    assert!(times.len() > 50 && lost <= times.len() / 4, "{lost} lost, {} answered", times.len());
    let slow = times[times.len() * 95 / 100];
    assert!(slow < Duration::from_millis(50), "{slow:?} for 95 of 100");
    assert_eq!(store.totals().peers(), 1, "nobody else has announced");
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB");
}

fn config() -> Config {
    let config = Config::new().udp(any_port("127.0.0.1")).udp(any_port("::1"));
    config.rules(Rules::new().interval_secs(77).jitter_percent(0)).sweep_period(Duration::from_millis(200))
}

fn over(repository: Repository) -> Tracker {
    Tracker::over(&config(), repository)
}

fn build(name: &str, lifetime: Duration) -> Repository {
    swarmkeep_tests::build(name, |config| config.lifetime(lifetime))
}

fn packed_and_its_tracker(lifetime: Duration) -> (Arc<dyn TorrentRepository>, Tracker) {
    let repository = build("packed", lifetime);
    (Arc::clone(repository.as_sync().expect("packed is synchronous")), over(repository))
}

/// Does what it is asked after so much time.
#[derive(Debug)]
struct Slow<R>(R, Duration);

macro_rules! slowly {
    (@plain $this:ident, $method:ident) => { $this.0.$method() };
    ($this:ident, $method:ident $(, $argument:ident)*) => {
        Box::pin(async move {
            tokio::time::sleep($this.1).await;
            $this.0.$method($($argument),*).await
        })
    };
}
swarmkeep::implement::async_repository! { [R: AsyncTorrentRepository] Slow<R>, slowly }

fn slow(answers_after: Duration) -> Repository {
    let store = build("packed", Duration::from_secs(2700));
    Repository::Async(Arc::new(Slow(store, answers_after)))
}

/// A swarm for each address.
fn hash(address: SocketAddr) -> InfoHash {
    InfoHash::new([address.is_ipv4().into(); 20])
}
