//! The tracker over real sockets: what comes back, from whom, and what does not. How requests are understood is tested
//! without sockets in `swarmkeep-tracker`, the program around it in `swarmkeep-cli`.

use std::{
    env,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    num::NonZero,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use swarmkeep::{
    AnnounceEvent, AsyncTorrentRepository, Endpoint, Family, HashKey, Immediate, InfoHash, PeerId,
    RepositoryConfig, TorrentRepository,
    catalog::{self, Repository},
};
use swarmkeep_tracker::{Config, Rules, Server};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, AnnounceResponseHeader, ConnectRequest, ConnectionId, Response, ScrapeRequest,
    ScrapeStats, TransactionId,
};
use tokio::sync::oneshot;

const HASH: InfoHash = InfoHash::new([0xaa; 20]);

#[test]
fn peers_meet_over_ipv4_and_ipv6_in_a_store_of_either_kind() {
    for name in ["packed", "btreemap-rwlock-tokio-mutex-tokio", "btreemap-rwlock-tokio"] {
        let tracker = Tracker::over(build(name, Duration::from_secs(2700)));
        for address in tracker.addresses.clone() {
            let (mut seeder, mut leecher) = (Client::of(address), Client::of(address));
            let ids = (seeder.connect(), leecher.connect());
            seeder.announce(AnnounceRequest { port: 1001, left: 0, ..announce(ids.0) });
            let (counts, peers) = leecher.announce(AnnounceRequest { port: 1002, ..announce(ids.1) });
            assert_eq!(counts.interval, 77, "{name}");
            assert_eq!(peers, [Endpoint::new(address.ip(), 1001).unwrap()], "{name} at {address}");
            let completed = AnnounceEvent::Completed;
            leecher.announce(AnnounceRequest { port: 1002, left: 0, event: completed, ..announce(ids.1) });
        }
        let mut client = Client::of(tracker.addresses[1]);
        let id = client.connect();
        let both = ScrapeStats { seeders: 4, completed: 2, leechers: 0 };
        assert_eq!(client.scrape(id, &[[0xaa; 20], [0xbb; 20]]), [both, ScrapeStats::default()], "{name}");
    }
}

#[test]
fn a_connection_id_is_good_for_the_address_it_was_sent_to() {
    let tracker = Tracker::over(build("packed", Duration::from_secs(2700)));
    let address = tracker.addresses[0];
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
    let tracker = Tracker::over(build("packed", Duration::from_secs(2700)));
    for &address in &tracker.addresses {
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
    let tracker = Tracker::over(build("packed", Duration::from_secs(2700)));
    let mut client = Client::of(tracker.addresses[0]);
    let id = client.connect();
    for trailing in [&b"\x02\x09/announce"[..], &[0, 0], &[0xff; 2000], &[2; 60_000]] {
        let (counts, _) = client.announce(AnnounceRequest { trailing, ..announce(id) });
        assert_eq!(counts.leechers, 1);
    }
}

#[test]
fn port_0_is_refused_and_not_stored() {
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2700));
    let mut client = Client::of(tracker.addresses[0]);
    let id = client.connect();
    client.send(&bytes_of(AnnounceRequest { port: 0, ..announce(id) }));
    assert!(error_in(&client.receive()).starts_with("port 0"));
    assert_eq!(store.totals().swarms, 0);
}

#[test]
fn a_peer_that_stays_away_is_swept() {
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2));
    let mut client = Client::of(tracker.addresses[0]);
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
    for &address in &tracker.addresses {
        for n in 1..=64 {
            // The id that one thread issues is good for all.
            let id = Client::of(address).connect();
            let (counts, _) = Client::of(address).announce(AnnounceRequest {
                port: 1000 + n,
                info_hash: hash(address),
                ..announce(id)
            });
            assert_eq!(counts.leechers, n.into(), "{address}");
        }
    }
}

#[test]
fn a_second_tracker_at_the_same_address_is_refused() {
    let tracker = Tracker::over(build("packed", Duration::from_secs(2700)));
    for &address in &tracker.addresses {
        let second = Server::bind(&Config::new().udp(address), build("packed", Duration::from_secs(2700)));
        let error = second.expect_err("the port is taken").to_string();
        assert!(error.starts_with(&format!("cannot listen on udp {address}")), "{error}");
    }
}

#[test]
fn a_slow_store_holds_up_nobody_who_does_not_need_it_and_answers_in_its_own_order() {
    let tracker = Tracker::over(slow(Duration::from_millis(300)));
    let address = tracker.addresses[0];
    let mut client = Client::of(address);
    let id = client.connect();
    let asked = Instant::now();
    client.send(&bytes_of(AnnounceRequest { transaction_id: TransactionId(77), ..announce(id) }));
    for _ in 0..10 {
        client.connect();
    }
    assert!(asked.elapsed() < Duration::from_millis(250), "{:?}", asked.elapsed());
    let answer = client.receive();
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
    assert_eq!(Response::parse(&answer, Family::V4).expect("a response").transaction_id(), TransactionId(77));
}

#[test]
fn who_floods_a_slow_store_is_told_that_it_is_overloaded_and_it_recovers() {
    let one = config().udp_workers(NonZero::<usize>::MIN);
    let tracker = Tracker::of(Server::bind(&one, slow(Duration::from_millis(500))).expect("loopback"));
    let address = tracker.addresses[0];
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
    // One by one, 100 announces would take it 10 seconds, and sixteen at a time 0.7.
    let tracker = Tracker::over(slow(Duration::from_millis(100)));
    let mut client = Client::of(tracker.addresses[0]);
    let id = client.connect();
    let asked = Instant::now();
    for n in 0..100 {
        client.send(&bytes_of(AnnounceRequest { port: 1000 + n, want: Some(0), ..announce(id) }));
    }
    for _ in 0..100 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Announce(_))));
    }
    assert!(asked.elapsed() < Duration::from_millis(600), "{:?}", asked.elapsed());
}

#[test]
fn announces_do_not_wait_for_scrapes_nor_these_for_one_another() {
    let one = config().udp_workers(NonZero::<usize>::MIN);
    let tracker = Tracker::of(Server::bind(&one, slow(Duration::from_millis(100))).expect("loopback"));
    let address = tracker.addresses[0];
    let (mut client, mut other) = (Client::of(address), Client::of(address));
    let id = client.connect();
    let mut packet = vec![0; 16 + 74 * 20];
    ScrapeRequest::new(id, TransactionId(1), &[[0xaa; 20]; 74]).write(&mut packet);
    let asked = Instant::now();
    (0..5).for_each(|_| client.send(&packet));
    other.announce(announce(id));
    assert!(asked.elapsed() < Duration::from_millis(300), "{:?}", asked.elapsed());
    for _ in 0..5 {
        assert!(matches!(Response::parse(&client.receive(), Family::V4), Ok(Response::Scrape(_))));
    }
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn stopping_waits_for_what_a_slow_store_owes() {
    let tracker = Tracker::over(slow(Duration::from_millis(150)));
    let mut client = Client::of(tracker.addresses[0]);
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
    let [flooded, quiet] = tracker.addresses[..] else { panic!("two addresses") };
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
        "a_million_packets_from_one_address_take_no_memory_and_its_neighbours_notice_little",
    ) {
        return;
    }
    let (store, tracker) = packed_and_its_tracker(Duration::from_secs(2700));
    let address = tracker.addresses[0];
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
            // Connects; announces and scrapes with the id of another; those cut short; and what is nothing at all.
            let stolen = bytes_of(announce(id));
            let packets = [&connect[..], &connect, &connect, &stolen, &stolen[..97], &[0xff; 1400], &[]];
            for packet in packets.iter().cycle().take(1_000_000) {
                sent.fetch_add(flooder.socket.send(packet).is_ok().into(), Relaxed);
            }
            enough.store(true, Relaxed);
        });
        neighbour.socket.set_read_timeout(Some(Duration::from_millis(500))).expect("above zero");
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
    // What overflows the socket's queue is lost, to whomever it belongs; clients ask again (BEP 15).
    assert!(times.len() > 100 && lost <= times.len() / 50, "{lost} lost, {} answered", times.len());
    let slow = times[times.len() * 95 / 100];
    assert!(slow < Duration::from_millis(50), "{slow:?} for 95 of 100");
    assert_eq!(store.totals().peers(), 1, "nobody else has announced");
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB");
}

/// A tracker at work on two loopback sockets, IPv4 first, until this is dropped.
struct Tracker {
    addresses: Vec<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracker {
    fn over(repository: Repository) -> Self {
        Self::of(Server::bind(&config(), repository).expect("loopback"))
    }

    fn of(server: Server) -> Self {
        let addresses = server.udp_addresses().expect("bound");
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || runtime().block_on(server.run(async { drop(stopped.await) })));
        Self { addresses, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().expect("taken here only").join();
        if !thread::panicking() {
            ended.expect("the tracker does not panic");
        }
    }
}

fn config() -> Config {
    let any_port = |address: &str| SocketAddr::new(address.parse().expect("a constant"), 0);
    let config = Config::new().udp(any_port("127.0.0.1")).udp(any_port("::1"));
    config.rules(Rules::new().interval_secs(77).jitter_percent(0)).sweep_period(Duration::from_millis(200))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn build(name: &str, lifetime: Duration) -> Repository {
    let config = RepositoryConfig::new(HashKey::from_os().expect("randomness")).lifetime(lifetime);
    catalog::find(name)
        .expect("a name of the catalog")
        .build(&config)
        .expect("a lifetime that every store keeps")
}

fn packed_and_its_tracker(lifetime: Duration) -> (Arc<dyn TorrentRepository>, Tracker) {
    let Repository::Sync(store) = build("packed", lifetime) else { panic!("packed does not wait") };
    (Arc::clone(&store), Tracker::over(Repository::Sync(store)))
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
swarmkeep::async_repository! { [R: AsyncTorrentRepository] Slow<R>, slowly }

fn slow(answers_after: Duration) -> Repository {
    let Repository::Sync(store) = build("packed", Duration::from_secs(2700)) else {
        panic!("packed does not wait")
    };
    Repository::Async(Arc::new(Slow(Immediate(store), answers_after)))
}

/// A swarm for each address.
fn hash(address: SocketAddr) -> InfoHash {
    InfoHash::new([address.is_ipv4().into(); 20])
}

/// The other end.
struct Client {
    socket: UdpSocket,
    family: Family,
    transaction_id: u32,
}

impl Client {
    fn of(tracker: SocketAddr) -> Self {
        Self::at(tracker.ip(), tracker)
    }

    fn at(address: IpAddr, tracker: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("loopback");
        socket.connect(tracker).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("above zero");
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        Self { socket, family, transaction_id: 0 }
    }

    fn send(&self, packet: &[u8]) {
        assert_eq!(self.socket.send(packet).expect("it fits"), packet.len());
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut packet = vec![0; 2048];
        let len = self.socket.recv(&mut packet).expect("an answer within 5 seconds");
        let longest = if self.family == Family::V4 { 1452 } else { 1200 };
        assert!(len <= longest, "{len} bytes");
        packet.truncate(len);
        packet
    }

    fn next_transaction(&mut self) -> TransactionId {
        self.transaction_id += 1;
        TransactionId(self.transaction_id)
    }

    fn connect(&mut self) -> ConnectionId {
        let transaction_id = self.next_transaction();
        let mut packet = [0; ConnectRequest::LEN];
        ConnectRequest { transaction_id }.write(&mut packet);
        self.send(&packet);
        let answer = self.receive();
        assert!(answer.len() <= packet.len());
        match Response::parse(&answer, self.family) {
            Ok(Response::Connect(response)) if response.transaction_id == transaction_id => {
                response.connection_id
            }
            other => panic!("{other:?}"),
        }
    }

    fn announce(&mut self, request: AnnounceRequest<'_>) -> (AnnounceResponseHeader, Vec<Endpoint>) {
        let transaction_id = self.next_transaction();
        self.send(&bytes_of(AnnounceRequest { transaction_id, ..request }));
        let answer = self.receive();
        match Response::parse(&answer, self.family) {
            Ok(Response::Announce(response)) if response.header.transaction_id == transaction_id => {
                (response.header, response.peers().map(|peer| peer.expect("no peer at port 0")).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn scrape(&mut self, connection_id: ConnectionId, hashes: &[[u8; 20]]) -> Vec<ScrapeStats> {
        let transaction_id = self.next_transaction();
        let mut packet = vec![0; 16 + hashes.len() * 20];
        ScrapeRequest::new(connection_id, transaction_id, hashes).write(&mut packet);
        self.send(&packet);
        let answer = self.receive();
        match Response::parse(&answer, self.family) {
            Ok(Response::Scrape(response)) if response.transaction_id == transaction_id => {
                response.swarms().collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Runs the test once more where no other test takes memory, in a process in which this answers `true`. Here, where it answers `false`,
/// the test has passed if that one has.
fn in_a_process_of_its_own(test: &str) -> bool {
    const INSIDE: &str = "SWARMKEEP_TEST_ALONE";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let this = env::current_exe().expect("a test is a program");
    let output =
        Command::new(this).args([test, "--exact", "--nocapture"]).env(INSIDE, "1").output().expect("it runs");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    false
}

/// The resident set of this process, where the system tells.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse().expect("a number"))
}

fn error_in(answer: &[u8]) -> String {
    match Response::parse(answer, Family::V4) {
        Ok(Response::Error(error)) => String::from_utf8(error.message.to_vec()).expect("text"),
        other => panic!("{other:?}"),
    }
}

fn announce(connection_id: ConnectionId) -> AnnounceRequest<'static> {
    AnnounceRequest {
        connection_id,
        transaction_id: TransactionId(0),
        info_hash: HASH,
        peer_id: PeerId::new([1; 20]),
        downloaded: 0,
        left: 1,
        uploaded: 0,
        event: AnnounceEvent::Started,
        ip: Ipv4Addr::UNSPECIFIED,
        key: 0,
        want: None,
        port: 6881,
        trailing: &[],
    }
}

fn bytes_of(request: AnnounceRequest<'_>) -> Vec<u8> {
    let mut packet = vec![0; AnnounceRequest::LEN + request.trailing.len()];
    request.write(&mut packet);
    packet
}
