//! The tracker over HTTP and real sockets: connections, their faults, and the effect on other connections.
//! The tests of `swarmkeep-tracker` cover the meaning of requests without sockets.

use std::{
    io::Write as _,
    net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use socket2::SockRef;
use swarmkeep::{Endpoint, Family, InfoHash};
use swarmkeep_store_tests::{A_MINUTE, until, with};
use swarmkeep_tests::{
    Tracker, any_port, build,
    http::{Client, announce, announce_path, connect, request, scrape_path},
    listening, runtime,
    udp::{self, HASH},
};
use swarmkeep_tracker::{Config, Kind, LocalPeers, Server};
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse, ScrapeResponse};

/// A store that answers at once, and one that may wait.
const STORES: [&str; 2] = ["packed", "btreemap-rwlock-tokio-mutex-tokio"];

#[test]
fn one_connection_serves_many_requests_over_ipv4_and_ipv6() {
    let tracker = Tracker::of(server("packed", &config()));
    for &address in &tracker.http {
        let mut client = Client::of(address);
        for port in 1..=50 {
            let answer = client.get(&announce_path(&announce(port)));
            assert_eq!((answer.status, answer.closes()), (200, false));
            let response = AnnounceResponse::parse(&answer.body).unwrap().expect("no failure");
            assert_eq!((response.head.interval, response.head.external_ip), (77, Some(address.ip())));
            let mut peers: Vec<_> = response.endpoints().collect();
            peers.sort();
            let others: Vec<_> = (1..port).map(|port| Endpoint::new(address.ip(), port).unwrap()).collect();
            assert_eq!(peers, others, "{address}");
        }
    }
    let answer = Client::of(tracker.http[0]).get(&scrape_path(HASH));
    let response = ScrapeResponse::parse(&answer.body).unwrap().expect("no failure");
    assert_eq!(response.swarms().next().expect("the one asked for").1.leechers, 100);
}

#[test]
fn a_listener_at_all_ipv6_addresses_is_for_both_families_unless_ipv4_has_one_at_its_port() {
    let config = |udp: &[SocketAddr], http: &[SocketAddr]| {
        with(listening(udp, http), |config| config.rules.local_peers = LocalPeers::Take)
    };
    let is_answered = |tracker: &Tracker| {
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let [udp, http] = [&tracker.udp, &tracker.http].map(|at| SocketAddr::new(ip, at[0].port()));
            let mut client = Client::of(http);
            client.peers(&announce(1));
            assert_eq!(client.peers(&announce(2)), [Endpoint::new(ip, 1).unwrap()]);
            let (mut client, id) = udp::Client::of(udp).connected();
            let (_, peers) = client.announce(with(udp::announce(id), |request| request.port = 1));
            assert_eq!(peers, [Endpoint::new(ip, 2).unwrap()]);
        }
    };
    let any = [any_port("::")];
    let alone = Tracker::of(server("packed", &config(&any, &any)));
    is_answered(&alone);
    let [udp, http] = [&alone.udp, &alone.http]
        .map(|at| ["::", "0.0.0.0"].map(|ip| SocketAddr::new(ip.parse().expect("an address"), at[0].port())));
    drop(alone);
    is_answered(&Tracker::of(server("packed", &config(&udp, &http))));
    // HTTP and the admin server share the ports of TCP.
    let [v6, v4] = http;
    let _beside_admin = server("packed", &with(config(&[], &[v6]), |config| config.admin = Some(v4)));
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let tracker = Tracker::of(server("packed", &config()));
    let mut client = Client::of(tracker.http[0]);
    let hashes: Vec<_> = (0..200).map(|n| InfoHash::new([n; 20])).collect();
    let requests: Vec<_> = hashes.iter().map(|&hash| request(&scrape_path(hash))).collect();
    // In one go, and in pieces that end anywhere.
    for piece in [usize::MAX, 997] {
        let requests = requests.concat();
        for piece in requests.chunks(piece.min(requests.len())) {
            client.send(piece);
        }
        for &hash in &hashes {
            let answer = client.answer();
            assert_eq!((answer.status, answer.closes()), (200, false));
            let response = ScrapeResponse::parse(&answer.body).unwrap().expect("no failure");
            assert_eq!(response.swarms().next().expect("the one asked for").0, hash);
        }
    }
}

#[test]
fn an_answer_does_not_wait_for_the_request_behind_it() {
    let tracker = Tracker::of(server("packed", &config()));
    let mut client = Client::of(tracker.http[0]);
    let request = request(&scrape_path(HASH));
    client.send(&[&request[..], &request[..30]].concat());
    assert_eq!(client.answer().status, 200);
    client.send(&request[30..]);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn only_a_listed_proxy_may_name_its_client() {
    let proxy = "127.0.0.9/32".parse().expect("a network");
    let config = with(config(), |config| config.rules.http_proxies.push(proxy));
    let tracker = Tracker::of(server("packed", &config));
    let address = tracker.http[0];
    let mut proxy = Client::at([127, 0, 0, 9].into(), address);
    let mut stranger = Client::at([127, 0, 0, 8].into(), address);
    for (client, port) in [(&mut proxy, 1), (&mut stranger, 2)] {
        let request = request(&announce_path(&announce(port)));
        let (lines, _) = request.split_at(request.len() - 2);
        client.send(&[lines, b"X-Forwarded-For: nonsense\r\nx-FORWARDED-FOR: 198.51.100.1\r\n\r\n"].concat());
        assert_eq!(client.answer().status, 200);
    }
    let expected = ["127.0.0.8:2", "198.51.100.1:1"].map(|peer| peer.parse().expect("an endpoint"));
    assert_eq!(Client::of(address).peers(&announce(5)), expected);
}

#[test]
fn methods_and_paths_that_are_not_there() {
    let tracker = Tracker::of(server("packed", &config()));
    let mut client = Client::of(tracker.http[0]);
    for path in ["/", "/stats?x=1", "/announce/", "/alice-1234/announce", "http://localhost/elsewhere"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.closes()), (404, false), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        client.send(format!("{method} /announce HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (405, false), "{method}");
        assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    }
    let scraped = client.get(&format!("http://localhost{}", scrape_path(HASH)));
    assert_eq!(scraped.status, 200, "a proxy may ask for the whole URL");
    assert!(ScrapeResponse::parse(&scraped.body).unwrap().is_ok());
    client.send(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.answer().status, 405, "it is not that kind of proxy");
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    client.send(format!("GET {} HTTP/1.1\r\n{upgrade}", scrape_path(HASH)).as_bytes());
    assert_eq!(client.answer().status, 200, "it stays with HTTP");
    let answer = client.get("/announce");
    assert_eq!(answer.status, 200, "clients read failures where they read answers");
    assert_eq!(AnnounceResponse::parse(&answer.body).unwrap().unwrap_err().reason, b"info_hash: is missing");

    client.send(format!("HEAD {} HTTP/1.1\r\nHost: localhost\r\n\r\n", scrape_path(HASH)).as_bytes());
    let (_, head) = client.head();
    assert!(
        head.starts_with("HTTP/1.1 200 ")
            && head.contains(&format!("\r\ncontent-length: {}\r\n", scraped.body.len())),
        "{head}"
    );
    assert_eq!(client.get("/").status, 404, "without a body, the next answer follows");
}

#[test]
fn a_request_with_a_body_is_answered_before_its_connection_closes() {
    let tracker = Tracker::of(server("packed", &config()));
    for (method, status) in [("GET", 200), ("POST", 405)] {
        for body in
            ["Content-Length: 1000000000\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
        {
            let mut client = Client::of(tracker.http[0]);
            client.send(
                format!("{method} {} HTTP/1.1\r\nHost: localhost\r\n{body}", scrape_path(HASH)).as_bytes(),
            );
            let answer = client.answer();
            assert_eq!((answer.status, answer.closes()), (status, true), "{method} {body}");
            assert!(takes_little(&mut client, &[b'x'; 1 << 16]), "{method} {body}");
        }
    }
}

#[test]
fn http_1_0_and_half_closed_connections_are_answered() {
    let tracker = Tracker::of(server("packed", &config()));
    let mut client = Client::of(tracker.http[0]);
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", scrape_path(HASH)).as_bytes());
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.rest(), b"");
    drop(tracker);
    for name in STORES {
        // All of it is there before the tracker first reads.
        let server = server(name, &config());
        let mut clients: Vec<_> = addresses(&server).into_iter().map(Client::of).collect();
        for client in &mut clients {
            client.send(&request(&scrape_path(HASH)).repeat(3));
            client.stream().shutdown(Shutdown::Write).expect("connected");
        }
        let _tracker = Tracker::of(server);
        for client in &mut clients {
            (0..3).for_each(|_| assert_eq!(client.answer().status, 200));
            assert_eq!(client.rest(), b"");
        }
    }
}

#[test]
fn an_invalid_request_gets_an_error_or_silence_and_its_neighbours_answers() {
    let tracker = Tracker::of(server("packed", &config()));
    let neighbour = Neighbour::of(tracker.http[0]);
    let (line, lines) = ("a".repeat(20_000), "A: b\r\n".repeat(200));
    let requests = [
        "\0\0\x04\x17\x27\x10\x19\u{80}\0\0\0\0\0\0\0\0\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03\r\n\r\n".to_owned(),
        "\x13BitTorrent protocol\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET /announce\r\n\r\n".to_owned(),
        "GET /announce HTTP/9.9\r\n\r\n".to_owned(),
        "GET /ann ounce HTTP/1.1\r\n\r\n".to_owned(),
        "GET /announce\0 HTTP/1.1\r\n\r\n".to_owned(),
        "G\u{cb}T /announce HTTP/1.1\r\n\r\n".to_owned(),
        "GET /scrape HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        "GET /scrape HTTP/1.1\r\n: no name\r\n\r\n".to_owned(),
        "GET /scrape HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(),
        "GET /scrape HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
        "GET /scrape HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n".to_owned(),
        format!("GET /scrape?{line} HTTP/1.1\r\n\r\n"),
        format!("GET /scrape HTTP/1.1\r\n{line}: b\r\n\r\n"),
        format!("GET /scrape HTTP/1.1\r\n{lines}\r\n"),
    ];
    for request in requests.iter().cycle().take(10 * requests.len()) {
        let shown = &request[..request.len().min(60)];
        let mut client = Client::of(tracker.http[0]);
        client.send(request.as_bytes());
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        assert!(matches!(status, None | Some("400" | "414" | "431")), "{shown:?}: {answer}");
    }
    neighbour.has_noticed_nothing();
}

#[test]
fn endless_heads_are_cut_off() {
    let tracker = Tracker::of(server("packed", &config()));
    let neighbour = Neighbour::of(tracker.http[0]);
    for (begin, more) in [
        ("GET /announce?", "info_hash=aaaaaaaaaaaaaaaaaaaa&".repeat(100)),
        ("GET /announce HTTP/1.1\r\nCookie: ", "a".repeat(4096)),
        ("GET /announce HTTP/1.1\r\n", "Cookie: a\r\n".repeat(400)),
        ("", "\r\n".repeat(4096)),
    ] {
        for _ in 0..20 {
            let mut client = Client::of(tracker.http[0]);
            client.send(begin.as_bytes());
            assert!(takes_little(&mut client, more.as_bytes()), "{begin}");
        }
    }
    neighbour.has_noticed_nothing();
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let tracker = Tracker::of(server("packed", &config()));
    let address = tracker.http[0];
    let mut client = Client::of(address);
    (1..=200).for_each(|port| drop(client.peers(&announce(port))));
    let neighbour = Neighbour::of(address);
    let announces = || tracker.control.metrics.counts().http.requests(Kind::Announce, Family::V4);
    // Each answer is longer than a thousand bytes, so more of them than the system buffers would pile up in
    // the tracker.
    let most = 10_000;
    let request = request(&announce_path(&AnnounceRequest { want: Some(200), ..announce(1) }));
    for ends_at in [0, 30] {
        let mut client = Client::of(address);
        SockRef::from(&*client.stream()).set_recv_buffer_size(4096).expect("a size");
        client.send(&request[..ends_at]);
        let mut requests = request.repeat(100);
        requests.rotate_left(ends_at);
        let before = announces();
        assert!(takes_little(&mut client, &requests));
        let answered = announces() - before;
        assert!(answered < most, "{answered} answers are somewhere");
    }
    neighbour.has_noticed_nothing();
}

#[test]
fn a_slow_request_is_cut_off_and_neighbours_notice_nothing() {
    let proxy = "127.0.0.3/32".parse().expect("a network");
    let config = with(config(), |config| config.rules.http_proxies.push(proxy));
    let tracker = Tracker::of(server("packed", &config));
    let address = tracker.http[0];
    let neighbour = Neighbour::of(address);
    let began = Instant::now();
    let mut of_proxy = Client::at(proxy.addr(), address);
    let scrape =
        format!("GET {} HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n", scrape_path(HASH));
    of_proxy.send(scrape.as_bytes());
    assert_eq!(of_proxy.answer().status, 200);
    let mut slow: Vec<_> = (0..50).map(|_| Client::of(address)).collect();
    // These have sent requests before, and then send nothing.
    let mut idle: Vec<_> = (0..10).map(|_| Client::of(address)).collect();
    idle.iter_mut().for_each(|client| assert_eq!(client.get(&scrape_path(HASH)).status, 200));
    let request = request(&scrape_path(HASH));
    let mut bytes = request.iter();
    while !slow.is_empty() {
        assert!(began.elapsed() < A_MINUTE, "{} are still there", slow.len());
        thread::sleep(Duration::from_secs(1));
        let byte = [*bytes.next().expect("the request is long")];
        slow.retain_mut(|client| client.stream().write_all(&byte).is_ok() && client.is_open());
    }
    assert!(began.elapsed() >= config.http_patience, "after {:?}", began.elapsed());
    idle.iter_mut().for_each(|client| assert_eq!(client.rest(), b""));
    assert!(of_proxy.is_open(), "an idle proxy may stay longer");
    neighbour.has_noticed_nothing();
}

#[test]
fn connections_of_one_address_are_limited_and_its_neighbours_notice_nothing() {
    let tracker =
        Tracker::of(server("packed", &with(config(), |config| config.http_connections_per_address = 20)));
    let address = tracker.http[0];
    let neighbour = Neighbour::of(address);
    let mut held: Vec<Client<TcpStream>> = Vec::new();
    for _ in 0..100 {
        // Some close before the client has seen that they were open.
        let opened = (0..50).filter_map(|_| connect([127, 0, 0, 3].into(), address).ok());
        held.extend(opened.map(Client::on));
        held.retain(Client::is_open);
    }
    // Until the latest are closed too.
    until("no more are open", || {
        held.retain(Client::is_open);
        held.len() <= 20
    });
    assert_eq!(held.len(), 20);
    held.iter_mut().for_each(|client| assert_eq!(client.get(&scrape_path(HASH)).status, 200));
    neighbour.has_noticed_nothing();
}

#[test]
fn stopping_answers_all_received_requests() {
    for name in STORES {
        // Received before the tracker reads, on more connections than may be open at once.
        let limits = with(config(), |config| (config.http_connections, config.http_drain) = (4, A_MINUTE));
        let server = server(name, &limits);
        let mut clients: Vec<_> = (0..6).map(|n| Client::of(addresses(&server)[n % 2])).collect();
        clients.iter_mut().for_each(|client| client.send(&request(&scrape_path(HASH)).repeat(5)));
        runtime().block_on(server.run(std::future::ready(())));
        for client in &mut clients {
            (0..5).for_each(|_| assert_eq!(client.answer().status, 200));
            assert_eq!(client.rest(), b"");
        }
    }
}

#[test]
fn stopping_does_not_wait_for_idle_connections() {
    let tracker = Tracker::of(server("packed", &config()));
    let address = tracker.http[0];
    let mut clients: Vec<_> = (0..50).map(|_| Client::of(address)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get(&scrape_path(HASH)).status, 200));
    let request = request(&scrape_path(HASH));
    clients.iter_mut().step_by(2).for_each(|client| client.send(&request[..30]));
    drop(tracker);
    clients.iter_mut().for_each(|client| assert_eq!(client.rest(), b""));
    assert!(TcpStream::connect(address).is_err());
}

fn config() -> Config {
    let mut config = listening(&[any_port("127.0.0.1")], &[any_port("127.0.0.1"), any_port("::1")]);
    (config.rules.interval_secs, config.rules.jitter_percent) = (77, 0);
    config
}

fn server(name: &str, config: &Config) -> Server {
    Server::bind(config, build(name, |config| config)).expect("loopback")
}

fn addresses(server: &Server) -> Vec<SocketAddr> {
    let [_, http, _] = server.addresses().expect("bound");
    http
}

/// A client at another address that goes on asking, on new connections and on an old one.
struct Neighbour {
    enough: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Neighbour {
    fn of(address: SocketAddr) -> Self {
        let (enough, answers) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (stop, answered) = (Arc::clone(&enough), Arc::clone(&answers));
        let thread = thread::spawn(move || {
            let here = Ipv4Addr::new(127, 0, 0, 2).into();
            let mut old = Client::at(here, address);
            while !stop.load(Relaxed) {
                for fresh in [false, true] {
                    let mut fresh = fresh.then(|| Client::at(here, address));
                    assert_eq!(fresh.as_mut().unwrap_or(&mut old).get(&scrape_path(HASH)).status, 200);
                    answered.fetch_add(1, Relaxed);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self { enough, answers, thread }
    }

    fn has_noticed_nothing(self) {
        let meanwhile = self.answers.load(Relaxed);
        self.enough.store(true, Relaxed);
        self.thread.join().expect("each of its requests is answered");
        assert!(meanwhile >= 2, "{meanwhile} answers on both connections");
    }
}

/// Sends the same again and again. Returns whether the tracker closes before 64 MiB.
fn takes_little(client: &mut Client<TcpStream>, bytes: &[u8]) -> bool {
    client.stream().set_write_timeout(Some(Duration::from_millis(500))).expect("above zero");
    (0..(64_usize << 20).div_ceil(bytes.len())).any(|_| client.stream().write_all(bytes).is_err())
}
