//! Asks the patched trackers, as their clients and operators do.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    num::NonZeroU16,
    sync::LazyLock,
    thread,
    time::Duration,
};

use aquatic_udp_protocol::{
    AnnounceEvent::{self, Completed, None as Regular, Started, Stopped},
    AnnounceRequest, AnnounceResponse, ConnectRequest, ConnectionId, InfoHash, Ip, NumberOfBytes,
    NumberOfPeers, PeerId, PeerKey, Port, Request, Response, ScrapeRequest, TransactionId,
};
use serde_json::json;

use super::*;

static AQUATIC_PATCHED: LazyLock<PathBuf> = LazyLock::new(|| AQUATIC.patch().unwrap());
static TORRUST_PATCHED: LazyLock<PathBuf> = LazyLock::new(|| TORRUST.patch().unwrap());

/// A client of a tracker, with a torrent.
struct Client {
    socket: UdpSocket,
    connection: ConnectionId,
    torrent: InfoHash,
    /// The tracker counts the peer that announces.
    counts_announcer: bool,
}

/// Other seeders, other leechers, and the ports of the peers of an answer.
type Answer = (i32, i32, Vec<u16>);

impl Client {
    fn connect(tracker: SocketAddr, torrent: u8, counts_announcer: bool) -> Self {
        let own = match tracker {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let socket = UdpSocket::bind((own, 0)).unwrap();
        socket.connect(tracker).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (connection, torrent) = (ConnectionId::new(0), InfoHash([torrent; 20]));
        let mut client = Self { socket, connection, torrent, counts_announcer };
        let connect = ConnectRequest { transaction_id: TransactionId::new(1) };
        let Response::Connect(answer) = client.ask(&connect.into()) else { panic!("no connection id") };
        client.connection = answer.connection_id;
        client
    }

    fn ask(&self, request: &Request) -> Response {
        let (mut packet, mut answer) = (Vec::new(), [0; 2048]);
        request.write_bytes(&mut packet).unwrap();
        self.socket.send(&packet).unwrap();
        let len = self.socket.recv(&mut answer).unwrap();
        Response::parse_bytes(&answer[..len], self.own().is_ipv4()).unwrap()
    }

    fn own(&self) -> IpAddr {
        self.socket.local_addr().unwrap().ip()
    }

    fn announce(&self, port: u16, left: i64, event: AnnounceEvent) -> Answer {
        let request = AnnounceRequest {
            connection_id: self.connection,
            action_placeholder: Default::default(),
            transaction_id: TransactionId::new(2),
            info_hash: self.torrent,
            peer_id: PeerId([port.to_be_bytes()[1]; 20]),
            bytes_downloaded: NumberOfBytes::new(0),
            bytes_left: NumberOfBytes::new(left),
            bytes_uploaded: NumberOfBytes::new(0),
            event: event.into(),
            ip_address: Ipv4Addr::UNSPECIFIED.into(),
            key: PeerKey::new(3),
            peers_wanted: NumberOfPeers::new(-1),
            port: Port::new(NonZeroU16::new(port).unwrap()),
        };
        let (mut seeders, mut leechers, ports) = match self.ask(&request.into()) {
            Response::AnnounceIpv4(answer) => self.read(answer, |ip| Ipv4Addr::from(ip).into()),
            Response::AnnounceIpv6(answer) => self.read(answer, |ip| Ipv6Addr::from(ip).into()),
            other => panic!("{other:?}"),
        };
        if self.counts_announcer && event != Stopped {
            *if left == 0 { &mut seeders } else { &mut leechers } -= 1;
        }
        (seeders, leechers, ports)
    }

    fn read<I: Ip>(&self, answer: AnnounceResponse<I>, address: fn(I) -> IpAddr) -> Answer {
        let addresses = answer.peers.iter().map(|peer| address(peer.ip_address));
        assert!(addresses.clone().all(|ip| ip == self.own()), "{:?}", addresses.collect::<Vec<_>>());
        let mut ports: Vec<_> = answer.peers.iter().map(|peer| peer.port.0.get()).collect();
        ports.sort_unstable();
        (answer.fixed.seeders.0.get(), answer.fixed.leechers.0.get(), ports)
    }

    /// Seeders, downloads and leechers.
    fn scrape(&self) -> [i32; 3] {
        let request = ScrapeRequest {
            connection_id: self.connection,
            transaction_id: TransactionId::new(4),
            info_hashes: vec![self.torrent],
        };
        let Response::Scrape(answer) = self.ask(&request.into()) else { panic!("no scrape") };
        let [of] = answer.torrent_stats[..] else { panic!("{answer:?}") };
        [of.seeders.0.get(), of.completed.0.get(), of.leechers.0.get()]
    }

    /// Leaves two seeders, 1002 and 1003, of which one has downloaded.
    fn asks_everything(&self) {
        assert_eq!(self.scrape(), [0, 0, 0]);
        assert_eq!(self.announce(1001, 0, Started), (0, 0, vec![]));
        assert_eq!(self.announce(1002, 9, Started), (1, 0, vec![1001]));
        assert_eq!(self.scrape(), [1, 0, 1]);
        assert_eq!(self.announce(1001, 0, Regular), (0, 1, vec![1002]));
        assert_eq!(self.announce(1002, 0, Completed), (1, 0, vec![1001]));
        assert_eq!(self.scrape(), [2, 1, 0]);
        // Seeders get seeders.
        assert_eq!(self.announce(1003, 0, Started), (2, 0, vec![1001, 1002]));
        assert_eq!(self.announce(1001, 0, Stopped), (2, 0, vec![]));
        assert_eq!(self.scrape(), [2, 1, 0]);
    }
}

#[test]
fn patched_aquatic_answers_as_before() {
    let port = free_port().unwrap();
    let listen = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let mut server =
        Running::start(&aquatic_command(&AQUATIC_PATCHED, listen, false).unwrap(), None).unwrap();
    server.wait_until_it_answers(port).unwrap();
    // Each IP version has swarms of its own.
    for tracker in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        Client::connect((tracker, port).into(), 7, false).asks_everything();
    }
}

#[test]
fn patched_torrust_answers_as_before_and_writes_down_downloads() {
    for own in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let port = free_port().unwrap();
        let both = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        // It replaces addresses of local clients by its own, which must be configured.
        let more = format!(
            "[core.net]\nexternal_ip = \"{own}\"\n\
             [core.tracker_policy]\npersistent_torrent_completed_stat = true\n"
        );
        let command = torrust_command(&TORRUST_PATCHED, &both.map(|ip| (ip, port).into()), &more).unwrap();
        let mut server = Running::start(&command, None).unwrap();
        server.wait_until_it_answers(port).unwrap();
        let is_written = || {
            let database = fs::read(torrust_file(port, "db")).unwrap();
            database.windows(40).any(|bytes| bytes == "07".repeat(20).as_bytes())
        };
        assert!(!is_written());
        Client::connect((own, port).into(), 7, true).asks_everything();
        assert!(is_written());
    }
}

/// The answer to a GET through a proxy, for a client at `client`, once the server listens.
fn get(port: u16, path: &str, client: &str) -> String {
    let enough = Instant::now() + Duration::from_secs(10);
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Err(_) if Instant::now() < enough => thread::sleep(Duration::from_millis(50)),
            stream => break stream.unwrap(),
        }
    };
    write!(stream, "GET {path} HTTP/1.0\r\nX-Forwarded-For: {client}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // Every byte is a character.
    let answer: String = answer.into_iter().map(char::from).collect();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{answer}");
    body.to_owned()
}

#[test]
fn patched_torrust_answers_over_http_and_shows_torrents() {
    let [udp, http, api] = [(); 3].map(|()| free_port().unwrap());
    let more = format!(
        "[core.net]\non_reverse_proxy = true\n\
         [[http_trackers]]\nbind_address = \"127.0.0.1:{http}\"\n\
         [http_api]\nbind_address = \"127.0.0.1:{api}\"\n[http_api.access_tokens]\nadmin = \"secret\"\n"
    );
    let listen = [(Ipv4Addr::LOCALHOST, udp).into()];
    let mut server =
        Running::start(&torrust_command(&TORRUST_PATCHED, &listen, &more).unwrap(), None).unwrap();
    server.wait_until_it_answers(udp).unwrap();

    let announce = |torrent: &str, client: &str, port: u16, more: &str| {
        let query = format!("peer_id=-qB0000000000000{port:04}&port={port}&{more}");
        get(http, &format!("/announce?info_hash={}&{query}", torrent.repeat(20)), client)
    };
    announce("%02", "192.0.2.1", 1001, "left=0&compact=1");
    announce("%02", "2001:db8::2", 1002, "left=9&compact=1");
    // One swarm has peers of both IP versions, and so has an answer.
    let compact = announce("%02", "192.0.2.3", 1003, "left=9&compact=1");
    assert!(compact.starts_with("d8:completei1e10:incompletei2e"), "{compact:?}");
    let v6 = "6:peers618: \u{1}\r\u{b8}\0\0\0\0\0\0\0\0\0\0\0\u{2}\u{3}\u{ea}e";
    assert!(compact.ends_with(&format!("5:peers6:\u{c0}\0\u{2}\u{1}\u{3}\u{e9}{v6}")), "{compact:?}");
    // The peer id, which BEP 3 has here, is not kept.
    let whole = announce("%02", "2001:db8::2", 1002, "left=9&compact=0&event=stopped");
    assert!(whole.ends_with("5:peerslee"), "{whole}");
    let whole = announce("%02", "192.0.2.3", 1003, "left=9&compact=0");
    assert!(whole.ends_with("5:peersld2:ip9:192.0.2.14:porti1001eeee"), "{whole}");
    // No peer listens on port 0.
    let refused = announce("%02", "192.0.2.4", 0, "left=9&compact=0");
    assert!(refused.ends_with("5:peerslee") && refused.contains("10:incompletei1e"), "{refused}");
    announce("%01", "192.0.2.5", 1005, "left=9&compact=1");

    let show = |path: &str| -> Value {
        let token = if path.contains('?') { "&token=secret" } else { "?token=secret" };
        serde_json::from_str(&get(api, &format!("/api/v1/{path}{token}"), "192.0.2.6")).unwrap()
    };
    let [first, second] = ["01", "02"].map(|byte| byte.repeat(20));
    let torrent = show(&format!("torrent/{second}"));
    assert_eq!([&torrent["seeders"], &torrent["completed"], &torrent["leechers"]], [1, 0, 1]);
    let mut peers: Vec<_> = torrent["peers"].as_array().unwrap().iter().collect();
    peers.sort_by_key(|peer| peer["peer_addr"].as_str());
    assert_eq!((&peers[0]["peer_addr"], &peers[0]["left"]), (&json!("192.0.2.1:1001"), &json!(0)));
    assert_eq!((&peers[1]["peer_addr"], &peers[1]["left"]), (&json!("192.0.2.3:1003"), &json!(i64::MAX)));
    // In ascending order, as before.
    let listed = |page: &str| -> Vec<String> {
        let page = show(page);
        let hashes = page.as_array().unwrap().iter().map(|torrent| torrent["info_hash"].as_str().unwrap());
        hashes.map(str::to_owned).collect()
    };
    assert_eq!(listed("torrents"), [&*first, &*second]);
    assert_eq!(listed("torrents?offset=1&limit=1"), [&*second]);
    let stats = show("stats");
    assert_eq!([&stats["torrents"], &stats["seeders"], &stats["leechers"]], [2, 1, 2]);
}

#[test]
fn a_patched_tracker_stands_beside_its_original() {
    let turn = |cpu, rss_full: u64| Turn {
        machine: 0.0,
        cpu,
        per_second: 0.0,
        p99: 0.0,
        failed: u64::from(rss_full == 20_000_000),
        peers_an_answer: 0.0,
        rss_empty: 0,
        rss_full,
    };
    let row = |tracker, load, turns| Row { tracker, load, turns };
    let rows = [
        row("a", "1 × 1", vec![turn(9.0, 80_000_000)]),
        row("a", "2 × 1", vec![turn(5.0, 0)]),
        row("a patched", "1 × 1", vec![turn(3.0, 20_000_000)]),
    ];
    let table = table_of_patches(&rows).unwrap();
    let cells: Vec<_> = table.lines().nth(2).unwrap().split('|').map(str::trim).collect();
    assert_eq!(cells, ["", "a", "1 × 1", "9.00 → 3.00", "80.0 → 20.0", ""], "{table}");
    assert!(table.lines().count() == 5 && table.ends_with(" in all rows: 1.\n"), "one pair: {table}");
    assert!(table_of_patches(&rows[..2]).is_err());
}

#[test]
fn the_own_tests_of_patched_trackers_pass() {
    for (tracker, patched) in [(AQUATIC, &AQUATIC_PATCHED), (TORRUST, &TORRUST_PATCHED)] {
        assert!(LazyLock::force(patched).exists());
        tracker.test().unwrap();
    }
}

#[test]
fn settings_that_the_store_cannot_keep_are_refused() {
    let mut refused: Vec<_> = ["[statistics]\npeer_clients = true", "[cleaning]\nmax_peer_age = 0"]
        .into_iter()
        .map(|setting| {
            let config = env::temp_dir().join(format!("swarmkeep-peers-refused-{}", free_port().unwrap()));
            fs::write(&config, setting).unwrap();
            let mut command = Command::new(&*AQUATIC_PATCHED);
            command.arg("-c").arg(&config);
            (setting, command)
        })
        .collect();
    let setting = "[core.tracker_policy]\nmax_peer_timeout = 0";
    let listen = [(Ipv4Addr::LOCALHOST, free_port().unwrap()).into()];
    refused.push((setting, torrust_command(&TORRUST_PATCHED, &listen, setting).unwrap()));
    for (setting, mut command) in refused {
        let mut program = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let enough = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match program.0.try_wait().unwrap() {
                None if Instant::now() < enough => thread::sleep(Duration::from_millis(50)),
                status => break status,
            }
        };
        assert!(status.is_some_and(|status| !status.success()), "{setting}: {status:?}");
    }
}
