//! The tracker over HTTPS: real certificates and real sockets.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use socket2::{Domain, Socket, Type};
use swarmkeep::{HashKey, InfoHash, PeerId, catalog::Repository};
use swarmkeep_store_tests::{A_MINUTE, until, with};
use swarmkeep_tests::{Tracker, any_port, build};
use swarmkeep_tracker::{Config, Error, RateLimiter, Server, Tls};
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
    version::{TLS12, TLS13},
};

const HASH: InfoHash = InfoHash::new([0xaa; 20]);

#[test]
fn announces_over_https_are_answered_on_both_families_and_in_both_versions() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for &address in &tracker.https {
        for (version, port) in [(&TLS12, 1), (&TLS13, 2)] {
            let mut client = Client::of(address, &authority.client(&[version]));
            let peers = client.announce(port);
            assert_eq!(peers.len(), usize::from(port) - 1, "{address} {version:?}");
            assert!(peers.iter().all(|peer| peer.ip() == address.ip()), "{peers:?}");
            assert_eq!(client.tls.conn.protocol_version(), Some(version.version));
            assert_eq!(client.tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
            // One connection, many requests at once.
            let requests = announce(port).repeat(100);
            client.tls.write_all(&requests).expect("the tracker listens");
            (0..100).for_each(|_| assert_eq!(client.receive().0, 200));
        }
    }
}

#[test]
fn a_returning_client_resumes_without_the_certificate() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for version in [&TLS12, &TLS13] {
        let config = authority.client(&[version]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let mut client = Client::of(tracker.https[0], &config);
            client.announce(1);
            assert_eq!(client.tls.conn.handshake_kind(), Some(kind), "{version:?}");
        }
    }
}

#[test]
fn an_address_that_shakes_hands_too_often_is_closed_before_it_costs_anything_and_others_are_served() {
    const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let authority = CertificateAuthority::new();
    // Ten handshakes at once, and one per second.
    let limiter = RateLimiter::new(HashKey::from_bytes([1; 16]), 10, 100, 64);
    let tls = authority.tls();
    let mut config = config();
    (config.rules.rate, config.tls) = (Some(Arc::new(limiter)), Some(tls.clone()));
    let tracker = Tracker::over(&config, store());
    let (hello, began) = (hello(&authority), Instant::now());
    let answered = (0..200).filter(|_| {
        let mut stream = connect(ATTACKER, tracker.https[0]).expect("loopback");
        // It may be closed by now.
        let _ = stream.write_all(&hello);
        stream.read(&mut [0; 100]).is_ok_and(|read| read > 0)
    });
    let (answered, most) = (answered.count(), 10 + began.elapsed().as_secs() as usize + 1);
    assert!((10..=most).contains(&answered), "{answered} handshakes were answered");
    let mut client = Client::of(tracker.https[0], &authority.client(&[&TLS13]));
    assert!(client.announce(1).is_empty());
    let counts = || {
        let counts = tls.handshakes();
        [counts.completed, counts.failed, counts.refused]
    };
    until("each is counted", || counts() == [1, answered as u64, 200 - answered as u64]);
}

#[test]
fn plain_http_and_garbage_are_refused_and_the_connection_ends() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    let unfinished = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0x3f, 0xfc], &[0; 100]].concat();
    for bytes in [&announce(1)[..], &[0; 4096], &[22, 3, 1, 0xff, 0xff, 1, 0, 0, 0], &unfinished] {
        let mut stream = connect(tracker.https[0].ip(), tracker.https[0]).expect("loopback");
        stream.write_all(bytes).expect("the tracker listens");
        if bytes == unfinished {
            stream.shutdown(Shutdown::Write).expect("open");
        }
        let answer = rest(&mut stream);
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
        assert!(answer.is_empty() || answer[0] == 21, "an alert, if anything: {answer:?}");
    }
    assert_eq!(Client::of(tracker.https[0], &authority.client(&[&TLS13])).announce(1).len(), 0);
}

#[test]
fn errors_of_a_certificate_or_key_name_its_file() {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let (certificate, key) = (authority.certificate(), authority.key());
    let file = |name: &str, text: &str| {
        let path = authority.folder.path().join(name);
        fs::write(&path, text).expect("room");
        path
    };
    let pem = fs::read_to_string(&certificate).expect("written");
    let missing = authority.folder.path().join("missing");
    let empty = file("empty", "");
    let cut = file("cut", &pem[..pem.len() / 4]);
    let no_base64 = file("no-base64", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n");
    let no_der = file("no-der", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (certificate, key, path, problem) in [
        (&missing, &key, &missing, "cannot take the certificate"),
        (&certificate, &missing, &missing, "No such file or directory"),
        (&empty, &key, &empty, "it has no certificate in PEM"),
        (&certificate, &empty, &empty, "it has no key in PEM"),
        (&key, &key, &key, "it has no certificate in PEM"),
        (&certificate, &certificate, &certificate, "it has no key in PEM"),
        (&cut, &key, &cut, "it is not PEM"),
        (&no_base64, &key, &no_base64, "it is not PEM"),
        (&no_der, &key, &no_der, "cannot use the key in"),
        (&certificate, &other.key(), &other.key(), "it is the key of another; give"),
    ] {
        let error = Tls::load(certificate, key).expect_err(problem).to_string();
        let path = path.to_str().expect("text");
        assert!(
            error.contains(problem) && error.contains(path) && error.contains("give "),
            "{problem}: {error}"
        );
    }
    let server = Server::bind(&config(), store());
    assert!(matches!(server, Err(Error::NoCertificate)), "{server:?}");
}

#[test]
fn another_certificate_is_for_new_connections_and_a_broken_one_for_none() {
    let (old, new) = (CertificateAuthority::new(), CertificateAuthority::new());
    let tls = old.tls();
    let tracker = Tracker::over(&with(config(), |config| config.tls = Some(tls.clone())), store());
    let address = tracker.https[0];
    let shows = |authority: &CertificateAuthority| {
        let mut client = Client::of(address, &authority.client(&[&TLS13]));
        client.announce(1);
        let shown = client.tls.conn.peer_certificates().expect("shown")[0].clone().into_owned();
        assert_eq!(shown, authority.leaf);
        client
    };
    let mut before = shows(&old);
    let nowhere = old.folder.path().join("nowhere");
    for (certificate, key) in [(new.certificate(), old.key()), (nowhere, old.key())] {
        tls.reload(&certificate, &key).unwrap_err();
        shows(&old);
    }
    // A client with a ticket of the old one gets the new one too.
    let again = old.client(&[&TLS13]);
    Client::of(address, &again).announce(1);
    tls.reload(&new.certificate(), &new.key()).expect("they belong together");
    shows(&new);
    let stream = connect(address.ip(), address).expect("loopback");
    let session = ClientConnection::new(again, address.ip().into()).expect("a name");
    let error = StreamOwned::new(session, stream).write_all(&announce(1)).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert_eq!(before.announce(2).len(), 1, "a connection that was open");
}

#[test]
fn a_request_is_answered_of_a_client_that_closes_its_side_without_a_word() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for says_so in [false, true] {
        let mut client = Client::of(tracker.https[0], &authority.client(&[&TLS13]));
        client.announce(1);
        client.tls.write_all(&announce(2).repeat(3)).expect("the tracker listens");
        if says_so {
            client.tls.conn.send_close_notify();
            client.tls.flush().expect("the tracker listens");
        }
        client.tls.sock.shutdown(Shutdown::Write).expect("open");
        (0..3).for_each(|_| assert_eq!(client.receive().0, 200, "{says_so}"));
    }
}

#[test]
fn a_thousand_unfinished_handshakes_keep_no_client_out_and_are_closed_when_patience_ends() {
    let authority = CertificateAuthority::new();
    let mut config = config();
    (config.http_connections, config.http_connections_per_address) = (32, 32);
    config.http_patience = Duration::from_secs(2);
    let tracker = tracker(&authority, config);
    let address = tracker.https[0];
    let hello = hello(&authority);
    let mut crowd = Vec::new();
    let client = authority.client(&[&TLS13]);
    for n in 0..1000_u32 {
        let from = Ipv4Addr::from_bits(0x7f01_0000 + n / 10).into();
        let mut stream = connect(from, address).expect("loopback");
        // Nothing, a part of the first message, all of it, or byte by byte.
        let _ = stream.write_all(&hello[..[0, 1, hello.len() / 2, hello.len()][n as usize % 4]]);
        crowd.push(stream);
        if n % 50 == 49 {
            assert_eq!(
                Client::at([127, 0, 0, 2].into(), address, &client).try_announce(1),
                Some(200),
                "after {n}"
            );
        }
    }
    let open = crowd.iter().filter(|stream| is_open(stream)).count();
    assert!(open <= 32, "{open}");
    crowd.iter_mut().for_each(|stream| drop(rest(stream)));
}

#[test]
fn stopping_answers_received_requests_and_does_not_wait_for_handshakes() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, with(config(), |config| config.http_connections_per_address = 100));
    let address = tracker.https[0];
    let (config, hello) = (authority.client(&[&TLS13]), hello(&authority));
    let mut stalled: Vec<_> = (0..50).map(|_| connect(address.ip(), address).expect("loopback")).collect();
    stalled.iter_mut().step_by(2).for_each(|stream| stream.write_all(&hello[..50]).expect("open"));
    let mut idle = Client::of(address, &config);
    idle.announce(1);
    let mut clients: Vec<_> = (0..20).map(|_| Client::of(address, &config)).collect();
    clients.iter_mut().for_each(|client| drop(client.announce(1)));
    clients.iter_mut().for_each(|client| client.tls.write_all(&announce(1).repeat(10)).expect("open"));
    drop(tracker);
    for client in &mut clients {
        (0..10).for_each(|_| assert_eq!(client.receive().0, 200));
        assert_eq!(client.tls.read(&mut [0]).expect("told that it ends"), 0);
    }
    assert_eq!(idle.tls.read(&mut [0]).expect("told that it ends"), 0);
    stalled.iter_mut().for_each(|stream| assert_eq!(rest(stream), b""));
}

/// A certificate for the loopback addresses with its chain, and a root that clients trust.
pub(crate) struct CertificateAuthority {
    folder: TempDir,
    leaf: CertificateDer<'static>,
    root: CertificateDer<'static>,
}

impl CertificateAuthority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("room");
        let name = folder.path().display();
        let key = || KeyPair::generate().expect("randomness");
        let authority = |level: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, format!("{level} of {name}"));
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let (root_key, middle_key, leaf_key) = (key(), key(), key());
        let root = authority("root").self_signed(&root_key).expect("a certificate");
        let issuer = Issuer::new(authority("root"), &root_key);
        let middle = authority("middle").signed_by(&middle_key, &issuer).expect("a certificate");
        let names = ["127.0.0.1", "::1", "localhost"].map(String::from);
        let params = CertificateParams::new(names).expect("names");
        let leaf = params
            .signed_by(&leaf_key, &Issuer::new(authority("middle"), &middle_key))
            .expect("a certificate");
        fs::write(folder.path().join("certificate.pem"), leaf.pem() + &middle.pem()).expect("room");
        fs::write(folder.path().join("key.pem"), leaf_key.serialize_pem()).expect("room");
        Self { folder, leaf: leaf.der().clone(), root: root.der().clone() }
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn tls(&self) -> Tls {
        Tls::load(&self.certificate(), &self.key()).expect("they belong together")
    }

    /// A client that trusts the root alone.
    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".into()];
        Arc::new(config)
    }
}

/// The first message of a handshake.
pub(crate) fn hello(authority: &CertificateAuthority) -> Vec<u8> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut hello = Vec::new();
    let mut session = ClientConnection::new(authority.client(&[&TLS13]), name).expect("a name");
    session.write_tls(&mut hello).expect("room");
    hello
}

fn tracker(authority: &CertificateAuthority, config: Config) -> Tracker {
    Tracker::over(&with(config, |config| config.tls = Some(authority.tls())), store())
}

/// On two loopback listeners, IPv4 first.
fn config() -> Config {
    with(Config::new(), |config| {
        config.https = vec![any_port("127.0.0.1"), any_port("::1")];
        config.rules.jitter_percent = 0;
    })
}

fn store() -> Repository {
    build("packed", |config| config)
}

pub(crate) fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    socket.set_read_timeout(Some(A_MINUTE))?;
    Ok(socket.into())
}

/// Everything until the tracker closes the connection.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if is_timeout(&error) => panic!("open after a minute"),
        // A close with unread bytes resets the connection.
        _ => rest,
    }
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 8192];
    let open = matches!(stream.peek(&mut bytes), Err(error) if is_timeout(&error)) || {
        // There may be an answer to read.
        let mut stream = stream;
        let _ = stream.read(&mut bytes);
        matches!(stream.peek(&mut bytes), Err(error) if is_timeout(&error))
    };
    stream.set_nonblocking(false).expect("a socket");
    open
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The other end.
pub(crate) struct Client {
    tls: StreamOwned<ClientConnection, TcpStream>,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn of(tracker: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::at(tracker.ip(), tracker, config)
    }

    fn at(from: IpAddr, tracker: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let stream = connect(from, tracker).expect("loopback");
        let session = ClientConnection::new(Arc::clone(config), tracker.ip().into()).expect("a name");
        Self { tls: StreamOwned::new(session, stream), received: Vec::new() }
    }

    /// Announces. Returns the peers.
    pub(crate) fn announce(&mut self, port: u16) -> Vec<swarmkeep::Endpoint> {
        self.tls.write_all(&announce(port)).expect("the tracker listens");
        let (status, body) = self.receive();
        assert_eq!(status, 200);
        AnnounceResponse::parse(&body).expect("an answer").expect("no failure").endpoints().collect()
    }

    /// The status of the answer, if there is one.
    fn try_announce(&mut self, port: u16) -> Option<u16> {
        self.tls.write_all(&announce(port)).ok()?;
        Some(self.receive().0)
    }

    /// A status and a body.
    fn receive(&mut self) -> (u16, Vec<u8>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
        loop {
            let head = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|end| end + 4);
            if let Some(end) = head {
                let head = text(&self.received[..end]);
                let (_, len) = head.split_once("content-length: ").expect("a length");
                let len: usize = len.lines().next().expect("a line").parse().expect("a number");
                if self.received.len() >= end + len {
                    let status = head[9..12].parse().expect("a number");
                    let body = self.received[end..end + len].to_vec();
                    self.received.drain(..end + len);
                    return (status, body);
                }
            }
            let mut bytes = [0; 16 * 1024];
            match self.tls.read(&mut bytes).expect("an answer within 5 seconds") {
                0 => panic!("closed after {}", text(&self.received)),
                len => self.received.extend_from_slice(&bytes[..len]),
            }
        }
    }
}

fn announce(port: u16) -> Vec<u8> {
    let request = AnnounceRequest {
        left: Some(1),
        want: Some(60),
        ..AnnounceRequest::new(HASH, PeerId::new([1; 20]), port)
    };
    let mut bytes = b"GET /announce?".to_vec();
    request.write(&mut bytes);
    bytes.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n\r\n");
    bytes
}
