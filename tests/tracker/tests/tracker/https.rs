//! The tracker over HTTPS: real certificates and real sockets.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown},
    sync::Arc,
    time::{Duration, Instant},
};

use swarmkeep::{HashKey, Timestamp, catalog::Repository};
use swarmkeep_store_tests::{A_MINUTE, until, with};
use swarmkeep_tests::{
    Tracker, any_port, build,
    http::{self, announce, announce_path, request},
    https::{CertificateAuthority, Client},
};
use swarmkeep_tracker::{Config, Error, RateLimiter, Server, Tls};
use tokio_rustls::rustls::{
    HandshakeKind,
    version::{TLS12, TLS13},
};

#[test]
fn announces_over_https_are_answered_on_both_families_and_in_both_versions() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for &address in &tracker.https {
        for (version, port) in [(&TLS12, 1), (&TLS13, 2)] {
            let mut client = Client::over_tls(address, &authority.client_of(&[version]));
            let peers = client.peers(&announce(port));
            assert_eq!(peers.len(), usize::from(port) - 1, "{address} {version:?}");
            assert!(peers.iter().all(|peer| peer.ip() == address.ip()), "{peers:?}");
            assert_eq!(client.stream().conn.protocol_version(), Some(version.version));
            assert_eq!(client.stream().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
            // One connection, many requests at once.
            client.send(&announces(port, 100));
            (0..100).for_each(|_| assert_eq!(client.answer().status, 200));
        }
    }
}

#[test]
fn a_returning_client_resumes_without_the_certificate() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for version in [&TLS12, &TLS13] {
        let config = authority.client_of(&[version]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let mut client = Client::over_tls(tracker.https[0], &config);
            client.peers(&announce(1));
            assert_eq!(client.stream().conn.handshake_kind(), Some(kind), "{version:?}");
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
    let (hello, began) = (authority.hello(), Instant::now());
    let answered = (0..200).filter(|_| {
        let mut stream = http::connect(ATTACKER, tracker.https[0]).expect("loopback");
        // It may be closed by now.
        let _ = stream.write_all(&hello);
        stream.read(&mut [0; 100]).is_ok_and(|read| read > 0)
    });
    let (answered, most) = (answered.count(), 10 + began.elapsed().as_secs() as usize + 1);
    assert!((10..=most).contains(&answered), "{answered} handshakes were answered");
    let mut client = Client::over_tls(tracker.https[0], &authority.client());
    assert!(client.peers(&announce(1)).is_empty());
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
    for bytes in [&announces(1, 1)[..], &[0; 4096], &[22, 3, 1, 0xff, 0xff, 1, 0, 0, 0], &unfinished] {
        let mut client = http::Client::of(tracker.https[0]);
        client.send(bytes);
        if bytes == unfinished {
            client.stream().shutdown(Shutdown::Write).expect("open");
        }
        let answer = client.rest();
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
        assert!(answer.is_empty() || answer[0] == 21, "an alert, if anything: {answer:?}");
    }
    assert_eq!(Client::over_tls(tracker.https[0], &authority.client()).peers(&announce(1)), []);
}

#[test]
fn errors_of_a_certificate_or_key_name_its_file() {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let (certificate, key) = (authority.certificate(), authority.key());
    let file = |name: &str, text: &str| {
        let path = authority.file(name);
        fs::write(&path, text).expect("room");
        path
    };
    let pem = fs::read_to_string(&certificate).expect("written");
    let missing = authority.file("missing");
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
        let mut client = Client::over_tls(address, &authority.client());
        client.peers(&announce(1));
        let shown = client.stream().conn.peer_certificates().expect("shown")[0].clone().into_owned();
        assert_eq!(shown, authority.leaf);
        client
    };
    let mut before = shows(&old);
    let nowhere = old.file("nowhere");
    for (certificate, key) in [(new.certificate(), old.key()), (nowhere, old.key())] {
        tls.reload(&certificate, &key).unwrap_err();
        shows(&old);
    }
    let at = |secs| Some(Timestamp::from_secs(secs));
    let own = CertificateAuthority::self_signed().tls().certificate();
    // The default of rcgen.
    assert_eq!((&*own.names, own.expires), ("127.0.0.1, 0::1, localhost", at(67_090_118_400)));
    assert_eq!(tls.certificate().expires, at(4_107_456_000), "its issuer ends before it");
    // A client with a ticket of the old one gets the new one too.
    let again = old.client();
    Client::over_tls(address, &again).peers(&announce(1));
    tls.reload(&new.certificate(), &new.key()).expect("they belong together");
    shows(&new);
    let error = Client::over_tls(address, &again).stream().write_all(&announces(1, 1)).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert_eq!(before.peers(&announce(2)).len(), 1, "a connection that was open");
}

#[test]
fn a_request_is_answered_of_a_client_that_closes_its_side_without_a_word() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, config());
    for says_so in [false, true] {
        let mut client = Client::over_tls(tracker.https[0], &authority.client());
        client.peers(&announce(1));
        client.send(&announces(2, 3));
        let stream = client.stream();
        if says_so {
            stream.conn.send_close_notify();
            stream.flush().expect("the tracker listens");
        }
        stream.sock.shutdown(Shutdown::Write).expect("open");
        (0..3).for_each(|_| assert_eq!(client.answer().status, 200, "{says_so}"));
    }
}

#[test]
fn a_thousand_unfinished_handshakes_keep_no_client_out_and_are_closed_when_patience_ends() {
    let authority = CertificateAuthority::new();
    let limited = |patience| {
        let mut config = config();
        (config.http_connections, config.http_connections_per_address) = (32, 32);
        config.http_patience = patience;
        tracker(&authority, config)
    };
    let hello = authority.hello();
    let stranger = |n: u32, tracker: &Tracker| {
        let from = Ipv4Addr::from_bits(0x7f01_0000 + n / 10).into();
        let mut client = http::Client::at(from, tracker.https[0]);
        // Nothing, a part of the first message, or all of it.
        let _ = client.stream().write_all(&hello[..[0, 1, hello.len() / 2, hello.len()][n as usize % 4]]);
        client
    };
    let patient = limited(A_MINUTE);
    let (address, config) = (patient.https[0], authority.client());
    let mut crowd = Vec::new();
    for n in 0..1000 {
        crowd.push(stranger(n, &patient));
        if n % 50 == 49 {
            Client::over_tls_at([127, 0, 0, 2].into(), address, &config).peers(&announce(1));
        }
    }
    let open = crowd.iter().filter(|client| client.is_open()).count();
    assert!(open <= 32, "{open}");
    let impatient = limited(Duration::from_millis(500));
    let mut crowd: Vec<_> = (0..4).map(|n| stranger(n, &impatient)).collect();
    crowd.iter_mut().for_each(|client| drop(client.rest()));
}

#[test]
fn stopping_answers_received_requests_and_does_not_wait_for_handshakes() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority, with(config(), |config| config.http_connections_per_address = 100));
    let address = tracker.https[0];
    let (config, hello) = (authority.client(), authority.hello());
    let mut stalled: Vec<_> = (0..50).map(|_| http::Client::of(address)).collect();
    stalled.iter_mut().step_by(2).for_each(|client| client.send(&hello[..50]));
    let mut idle = Client::over_tls(address, &config);
    idle.peers(&announce(1));
    let mut clients: Vec<_> = (0..20).map(|_| Client::over_tls(address, &config)).collect();
    clients.iter_mut().for_each(|client| drop(client.peers(&announce(1))));
    clients.iter_mut().for_each(|client| client.send(&announces(1, 10)));
    drop(tracker);
    for client in &mut clients {
        (0..10).for_each(|_| assert_eq!(client.answer().status, 200));
        assert_eq!(client.stream().read(&mut [0]).expect("told that it ends"), 0);
    }
    assert_eq!(idle.stream().read(&mut [0]).expect("told that it ends"), 0);
    stalled.iter_mut().for_each(|client| assert_eq!(client.rest(), b""));
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

/// Requests of the same announce, one behind the other.
fn announces(port: u16, count: usize) -> Vec<u8> {
    request(&announce_path(&announce(port))).repeat(count)
}
