//! The messages between clients and tracker: recorded, checked, kept.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use swarmkeep::{AnnounceEvent, Endpoint, Family, InfoHash, PeerId};
use swarmkeep_tracker_protocol::{
    http,
    udp::{self, AnnounceOption},
};

use crate::real_clients::{FILE_LEN, PASSKEY, Protocol, clients::ClientSetup};

/// The beginning of the error of a private tracker.
const PRIVATE: &str = "this tracker is private";

/// Listens in place of the tracker, writes down every message and passes it on from its sender's address.
pub(crate) struct Tap {
    protocol: Protocol,
    /// The info hash of the torrent, then its other names.
    info_hashes: Vec<InfoHash>,
    /// Whether clients do not know the length of the torrent at first.
    unknown: bool,
    recorder: Recorder,
}

#[derive(Clone)]
struct Recorder {
    messages: Arc<Mutex<Vec<Message>>>,
    start: Instant,
}

/// A datagram, or a request or response of HTTP from its first line to the end of its body.
struct Message {
    at: Duration,
    client: SocketAddr,
    bytes: Vec<u8>,
    to_tracker: bool,
}

impl Tap {
    /// Listens at `outside`, where the clients look for the tracker that is at `tracker`.
    pub(crate) fn between(
        outside: SocketAddr,
        tracker: SocketAddr,
        protocol: Protocol,
        info_hashes: Vec<InfoHash>,
        unknown: bool,
    ) -> Self {
        let recorder = Recorder { messages: Arc::default(), start: Instant::now() };
        let tap = Self { protocol, info_hashes, unknown, recorder: recorder.clone() };
        match protocol {
            Protocol::Udp => {
                let outside = UdpSocket::bind(outside).expect("the address is ours");
                thread::spawn(move || relay_datagrams(Arc::new(outside), tracker, &recorder));
            }
            Protocol::Http => {
                let outside = TcpListener::bind(outside).expect("the address is ours");
                thread::spawn(move || relay_connections(&outside, tracker, &recorder));
            }
        }
        tap
    }

    /// Every message in a line.
    pub(crate) fn transcript(&self, places: &BTreeMap<&str, ClientSetup>) -> String {
        let messages = self.recorder.messages.lock().expect("nothing panics with it");
        let names = self.names(&messages, places);
        let lines = messages.iter().map(|message| {
            let (arrow, what) = if message.to_tracker {
                ("->", self.request(message).map_or_else(|error| error, |request| request.in_words()))
            } else {
                ("<-", self.response(message).map_or_else(|error| error, |response| response.in_words()))
            };
            let name = names.get(&message.client).map_or("?", |&name| name);
            format!("  {:6.2} s  {name:<12} {arrow} {what}\n", message.at.as_secs_f64())
        });
        lines.collect()
    }

    /// The number of clients that have completed, and the number of downloads. A client does not count as a
    /// download if its regular announce overtook its `completed` and said that nothing was left.
    /// (Transmission does that now and then.)
    pub(crate) fn completed(&self, places: &BTreeMap<&str, ClientSetup>) -> (usize, u32) {
        let messages = self.recorder.messages.lock().expect("nothing panics with it");
        let names = self.names(&messages, places);
        let (mut completed, mut seeding, mut downloads) = (BTreeSet::new(), BTreeSet::new(), 0);
        for message in messages.iter().filter(|message| message.to_tracker) {
            let Ok(Request::Announce(announce)) = self.request(message) else { continue };
            let name = names[&message.client];
            if announce.info_hash != self.info_hashes[0] {
                continue;
            }
            if announce.event == AnnounceEvent::Completed {
                completed.insert(name);
                downloads += u32::from(!seeding.contains(name));
            }
            if announce.event != AnnounceEvent::Stopped && announce.left == Some(0) {
                seeding.insert(name);
            } else {
                seeding.remove(name);
            }
        }
        (completed.len(), downloads)
    }

    /// Checks that every client has announced, that each request is as it must be, that the tracker refused
    /// none, and that answers name only these clients.
    pub(crate) fn assert_all_is_understood(&self, places: &BTreeMap<&str, ClientSetup>) {
        let messages = self.recorder.messages.lock().expect("nothing panics with it");
        let names = self.names(&messages, places);
        let announcing: BTreeSet<_> = names.values().copied().collect();
        assert!(announcing.iter().eq(places.keys()), "only {announcing:?} announce");
        let mut named = BTreeSet::new();
        for message in messages.iter() {
            if message.to_tracker {
                match self.request(message).unwrap_or_else(|error| panic!("{error}")) {
                    Request::Connect => {}
                    Request::Announce(announce) => {
                        let place = &places[names[&message.client]];
                        assert!(self.info_hashes.contains(&announce.info_hash));
                        assert_eq!(announce.port, place.at.port());
                        let left = announce.left.expect("every one of them tells");
                        assert!(left == 0 || announce.event != AnnounceEvent::Completed);
                        assert!(left <= FILE_LEN as u64 || self.unknown);
                    }
                    Request::Scrape(about) => assert_eq!(about, 1),
                }
            } else {
                match self.response(message).unwrap_or_else(|error| panic!("{error}")) {
                    Response::Connect => {}
                    Response::Announce { peers, external_ip, .. } => {
                        assert!(external_ip.is_none_or(|ip| ip == message.client.ip()));
                        named.extend(peers);
                    }
                    Response::Scrape(about) => assert_eq!(about.len(), 1),
                    // There is no room for a passkey in a scrape over UDP.
                    Response::Error(error)
                        if self.protocol == Protocol::Udp && error.starts_with(PRIVATE) => {}
                    Response::Error(error) => panic!("the tracker refused: {error}"),
                }
            }
        }
        let places: BTreeSet<_> = places
            .values()
            .map(|place| Endpoint::new(place.at.ip(), place.at.port()).expect("a port"))
            .collect();
        assert!(!named.is_empty() && named.is_subset(&places), "{named:?} were named, {places:?} are there");
    }

    /// Writes the first request of each kind of each client to `dir/client-version/kind.bin`, and its answer
    /// to `kind.answer.bin`.
    pub(crate) fn keep(&self, places: &BTreeMap<&str, ClientSetup>, dir: &Path) {
        let messages = self.recorder.messages.lock().expect("nothing panics with it");
        let names = self.names(&messages, places);
        for (at, message) in messages.iter().enumerate().filter(|(_, message)| message.to_tracker) {
            let Some(name) = names.get(&message.client) else { continue };
            let kind = match self.request(message).expect("a request") {
                Request::Connect => "connect".to_owned(),
                Request::Announce(announce) => format!("announce-{}", announce.event),
                Request::Scrape(_) => "scrape".to_owned(),
            };
            let answer = messages[at..].iter().find(|later| {
                let it_is = match self.protocol {
                    Protocol::Udp => later.bytes.get(4..8) == message.bytes.get(12..16),
                    Protocol::Http => true, // In their order on a connection.
                };
                !later.to_tracker && later.client == message.client && it_is
            });
            let Some(answer) = answer else { continue };
            let folder = dir.join(&places[name].label);
            fs::create_dir_all(&folder).expect("a folder that can be written to");
            // Several rows run at once, and one of them keeps both.
            if let Ok(mut file) = File::create_new(folder.join(format!("{kind}.bin"))) {
                file.write_all(&message.bytes).expect("room");
                fs::write(folder.join(format!("{kind}.answer.bin")), &answer.bytes).expect("room");
            }
        }
    }

    /// The client of each address: a client may use other addresses than configured, but its announces have
    /// its peer id. An HTTP connection without announces belongs to the client of its IP address.
    fn names<'a>(
        &self,
        messages: &[Message],
        places: &BTreeMap<&'a str, ClientSetup>,
    ) -> HashMap<SocketAddr, &'a str> {
        let mut names = HashMap::new();
        for message in messages.iter().filter(|message| message.to_tracker) {
            let whose = |is: &dyn Fn(&ClientSetup) -> bool| {
                places.iter().find_map(|(&name, place)| is(place).then_some(name))
            };
            if let Ok(Request::Announce(Announce { peer_id, .. })) = self.request(message) {
                let name = whose(&|place| peer_id.as_bytes().starts_with(place.peer_id.as_bytes()));
                names.insert(message.client, name.expect("a peer id that is known"));
            } else if let Some(name) = whose(&|place| place.at.ip() == message.client.ip()) {
                names.entry(message.client).or_insert(name);
            }
        }
        names
    }

    fn request(&self, message: &Message) -> Result<Request, String> {
        let bytes = &message.bytes;
        let parsed = match self.protocol {
            Protocol::Udp => Request::of_datagram(bytes),
            Protocol::Http => Request::of_http(bytes),
        };
        parsed.map_err(|error| format!("{error}: {}", bytes.escape_ascii()))
    }

    fn response(&self, message: &Message) -> Result<Response, String> {
        let bytes = &message.bytes;
        let family = if message.client.is_ipv4() { Family::V4 } else { Family::V6 };
        let parsed = match self.protocol {
            Protocol::Udp => Response::of_datagram(bytes, family),
            Protocol::Http => Response::of_http(bytes),
        };
        parsed.map_err(|error| format!("{error}: {}", bytes.escape_ascii()))
    }
}

impl Recorder {
    fn record(&self, client: SocketAddr, bytes: &[u8], to_tracker: bool) {
        let message = Message { at: self.start.elapsed(), client, bytes: bytes.to_vec(), to_tracker };
        self.messages.lock().expect("nothing panics with it").push(message);
    }
}

fn relay_datagrams(outside: Arc<UdpSocket>, tracker: SocketAddr, recorder: &Recorder) {
    let mut inside = HashMap::new();
    let mut buffer = [0; 2048];
    loop {
        let (len, client) = outside.recv_from(&mut buffer).expect("a packet");
        recorder.record(client, &buffer[..len], true);
        let inside: &mut Arc<UdpSocket> = inside.entry(client).or_insert_with(|| {
            let inside = Arc::new(UdpSocket::bind((client.ip(), 0)).expect("every address is ours"));
            inside.connect(tracker).expect("it is there");
            let (from, to, recorder) = (Arc::clone(&inside), Arc::clone(&outside), recorder.clone());
            thread::spawn(move || {
                let mut buffer = [0; 2048];
                loop {
                    // While the tracker restarts, no socket is there.
                    let Ok(len) = from.recv(&mut buffer) else { continue };
                    recorder.record(client, &buffer[..len], false);
                    // The client may have left meanwhile.
                    let _ = to.send_to(&buffer[..len], client);
                }
            });
            inside
        });
        // Like any datagram, it may be lost.
        let _ = inside.send(&buffer[..len]);
    }
}

fn relay_connections(outside: &TcpListener, tracker: SocketAddr, recorder: &Recorder) {
    loop {
        let (outside, client) = outside.accept().expect("a connection");
        let inside = Socket::new(Domain::for_address(client), Type::STREAM, None).expect("a socket");
        inside.bind(&SocketAddr::new(client.ip(), 0).into()).expect("every address is ours");
        if inside.connect(&tracker.into()).is_err() {
            continue; // The client sees that nobody is there.
        }
        let inside = TcpStream::from(inside);
        for (from, to, to_tracker) in [(&outside, &inside, true), (&inside, &outside, false)] {
            let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
            let recorder = recorder.clone();
            thread::spawn(move || {
                relay_messages(from, to, |bytes| recorder.record(client, bytes, to_tracker))
            });
        }
    }
}

/// Passes on messages until the end of the stream, each when it is complete.
fn relay_messages(mut from: TcpStream, mut to: TcpStream, record: impl Fn(&[u8])) {
    let (mut waiting, mut buffer) = (Vec::new(), [0; 4096]);
    // A connection breaks off when one side has left, which needs no more messages then.
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        waiting.extend_from_slice(&buffer[..len]);
        while let Some(len) = HttpMessage::split(&waiting).map(|message| message.len) {
            record(&waiting[..len]);
            let _ = to.write_all(&waiting[..len]);
            waiting.drain(..len);
        }
    }
    if !waiting.is_empty() {
        record(&waiting); // Nothing that is understood, which the checks say.
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The parts of an HTTP/1 request or response that matter here.
struct HttpMessage<'a> {
    first_line: &'a str,
    body: &'a [u8],
    len: usize,
}

impl<'a> HttpMessage<'a> {
    /// The first message, if all of it is there.
    fn split(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
        let mut lines = std::str::from_utf8(&bytes[..head]).ok()?.split("\r\n");
        let first_line = lines.next()?;
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let len = head + 4 + length.unwrap_or_default();
        Some(Self { first_line, body: bytes.get(head + 4..len)?, len })
    }

    fn of(bytes: &'a [u8]) -> Result<Self, String> {
        Self::split(bytes).ok_or_else(|| "no whole message".to_owned())
    }
}

enum Request {
    Connect,
    Announce(Announce),
    /// The number of its torrents.
    Scrape(usize),
}

/// The fields of an announce over any protocol.
struct Announce {
    info_hash: InfoHash,
    peer_id: PeerId,
    event: AnnounceEvent,
    left: Option<u64>,
    port: u16,
    want: Option<u32>,
    /// Other fields of interest, in words.
    more: String,
}

impl Request {
    fn of_datagram(bytes: &[u8]) -> Result<Self, String> {
        Ok(match udp::Request::parse(bytes).map_err(|error| error.to_string())? {
            udp::Request::Connect(_) => Self::Connect,
            udp::Request::Announce(announce) => {
                let udp::AnnounceRequest { info_hash, peer_id, event, left, port, want, .. } = announce;
                let options = announce.options().map(|option| match option {
                    AnnounceOption::UrlData(data) => format!(", URL data {}", data.escape_ascii()),
                    option => format!(", {option:?}"),
                });
                let more = options.collect();
                Self::Announce(Announce { info_hash, peer_id, event, left: Some(left), port, want, more })
            }
            udp::Request::Scrape(scrape) => Self::Scrape(scrape.info_hashes().len()),
        })
    }

    fn of_http(bytes: &[u8]) -> Result<Self, String> {
        let line = HttpMessage::of(bytes)?.first_line;
        let asked =
            line.strip_prefix("GET ").and_then(|line| line.strip_suffix(" HTTP/1.1")?.split_once('?'));
        let (path, query) = asked.ok_or("no such request")?;
        match (path.strip_prefix("/").and_then(|path| path.strip_prefix(PASSKEY)).unwrap_or(path), query) {
            ("/announce", query) => {
                let announce =
                    http::AnnounceRequest::parse(query.as_bytes()).map_err(|error| error.to_string())?;
                let http::AnnounceRequest { info_hash, peer_id, event, left, port, want, .. } = announce;
                let form = match announce.compact {
                    None => "of either form",
                    Some(true) => "compact",
                    Some(false) => "long",
                };
                let ipv6 = announce.ipv6.map_or(String::new(), |at| format!(", listens at {at}"));
                let more = format!(" {form}{ipv6}");
                Ok(Self::Announce(Announce { info_hash, peer_id, event, left, port, want, more }))
            }
            ("/scrape", query) => {
                let scrape =
                    http::ScrapeRequest::parse(query.as_bytes()).map_err(|error| error.to_string())?;
                Ok(Self::Scrape(scrape.info_hashes().count()))
            }
            _ => Err("nothing at that path".into()),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Connect => "connect".into(),
            Self::Announce(Announce { event, left, port, want, more, .. }) => {
                let left = left.map_or("?".into(), |left| left.to_string());
                let want = want.map_or("default".into(), |want| want.to_string());
                format!("announce {event}: left {left}, port {port}, want {want}{more}")
            }
            Self::Scrape(about) => format!("scrape of {about}"),
        }
    }
}

enum Response {
    Connect,
    Announce {
        seeders: u32,
        leechers: u32,
        peers: Vec<Endpoint>,
        /// The client's address as the tracker sees it, if given.
        external_ip: Option<IpAddr>,
    },
    Scrape(Vec<udp::ScrapeStats>),
    Error(String),
}

impl Response {
    fn of_datagram(bytes: &[u8], family: Family) -> Result<Self, String> {
        Ok(match udp::Response::parse(bytes, family).map_err(|error| error.to_string())? {
            udp::Response::Connect(_) => Self::Connect,
            udp::Response::Announce(announce) => {
                let peers = announce.peers().map(|peer| peer.expect("no peer at port 0")).collect();
                let (seeders, leechers) = (announce.header.seeders, announce.header.leechers);
                Self::Announce { seeders, leechers, peers, external_ip: None }
            }
            udp::Response::Scrape(scrape) => Self::Scrape(scrape.swarms().collect()),
            udp::Response::Error(error) => Self::Error(error.message.escape_ascii().to_string()),
        })
    }

    fn of_http(bytes: &[u8]) -> Result<Self, String> {
        let HttpMessage { first_line, body, .. } = HttpMessage::of(bytes)?;
        if first_line != "HTTP/1.1 200 OK" {
            return Err("not the usual answer".into());
        }
        let wrong = |error: swarmkeep_tracker_protocol::Error| error.to_string();
        // Each kind requires a field that the other lacks.
        if let Ok(Ok(scrape)) = http::ScrapeResponse::parse(body) {
            return Ok(Self::Scrape(scrape.swarms().map(|(_, stats)| stats).collect()));
        }
        Ok(match http::AnnounceResponse::parse(body).map_err(wrong)? {
            Ok(announce) => Self::Announce {
                seeders: announce.head.complete,
                leechers: announce.head.incomplete,
                peers: announce.endpoints().collect(),
                external_ip: announce.head.external_ip,
            },
            Err(failure) => Self::Error(failure.reason.escape_ascii().to_string()),
        })
    }

    fn in_words(&self) -> String {
        match self {
            Self::Connect => "connected".into(),
            Self::Announce { seeders, leechers, peers, .. } => {
                let peers: Vec<_> = peers.iter().map(Endpoint::to_string).collect();
                format!("{seeders} seeders, {leechers} leechers, peers [{}]", peers.join(", "))
            }
            Self::Scrape(swarms) => format!("{swarms:?}"),
            Self::Error(error) => format!("error: {error}"),
        }
    }
}
