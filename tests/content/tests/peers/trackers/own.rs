//! This project's own tracker, over each of its protocols.

use std::net::{Ipv4Addr, Ipv6Addr};

use swarmkeep::TorrentRepository;
use swarmkeep_store_tests::{A_MINUTE, with};
use swarmkeep_tests::{Tracker, build, https::CertificateAuthority, listening};
use swarmkeep_tracker::Config;

use super::*;

fn start(config: &Config) -> Tracker {
    Tracker::over(config, build("packed", |config| config))
}

fn store(tracker: &Tracker) -> &dyn TorrentRepository {
    &**tracker.control.repository.as_sync().expect("packed is synchronous")
}

/// Waits until the torrent of these tests has these seeders, leechers and downloads.
async fn counts(tracker: &Tracker, expected: [u32; 3]) {
    let began = std::time::Instant::now();
    loop {
        let stats = store(tracker).scrape(&identity(1, 1).info_hash);
        let counts = [stats.complete, stats.incomplete, stats.downloaded];
        if counts == expected {
            return;
        }
        assert!(began.elapsed() < A_MINUTE, "{counts:?}, expected {expected:?}");
        sleep(Duration::from_millis(3)).await;
    }
}

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torrents_find_each_other_complete_and_leave_over_each_protocol_and_family() {
    for nth in 0..4 {
        let tracker = start(&listening(&[V4, V6], &[V4, V6]));
        let (scheme, addresses) = if nth < 2 { ("udp", &tracker.udp) } else { ("http", &tracker.http) };
        let at = addresses[nth % 2];
        let (url, client) = (format!("{scheme}://{at}/announce"), client());
        let first = Announcer::start(&[&[&url]], identity(1, 1001), &client, &seldom());
        counts(&tracker, [0, 1, 0]).await;
        let mut second = Announcer::start(&[&[&url]], identity(1, 1002), &client, &seldom());
        assert_eq!(second.peers().await, [Endpoint::new(at.ip(), 1001).unwrap()], "{url}");
        counts(&tracker, [0, 2, 0]).await;
        second.left.store(0, std::sync::atomic::Ordering::Relaxed);
        second.handle.completed();
        counts(&tracker, [1, 1, 1]).await;
        let [status] = &second.handle.status()[..] else { panic!("one tracker") };
        let (family, other) = if at.is_ipv4() { (&status.v4, &status.v6) } else { (&status.v6, &status.v4) };
        assert_eq!((status.url.as_str(), family.address), (url.as_str(), Some(at)));
        assert_eq!(other.address, None, "an address is of one family");
        first.stop().await;
        counts(&tracker, [1, 0, 1]).await;
        second.stop().await;
        counts(&tracker, [0, 0, 1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_addresses_of_both_families_gets_announces_at_both_and_gives_peers_of_both() {
    // The same port in both families, if it can be had.
    let tracker = (0..50).find_map(|_| {
        let tracker = start(&listening(&[V4], &[V4]));
        let (udp, http) = (tracker.udp[0].port(), tracker.http[0].port());
        drop(tracker);
        let both = |port| [V4, V6].map(|at| SocketAddr::new(at.ip(), port));
        let is_free = both(udp).iter().all(|at| std::net::UdpSocket::bind(at).is_ok())
            && both(http).iter().all(|at| std::net::TcpListener::bind(at).is_ok());
        is_free.then(|| start(&listening(&both(udp), &both(http))))
    });
    let tracker = tracker.expect("a free port");
    let name = "tracker.test";
    let client = of(hosting(name, [V4.ip(), V6.ip()]));
    for (torrent, scheme, port) in [(2, "udp", tracker.udp[0].port()), (3, "http", tracker.http[0].port())] {
        let url = format!("{scheme}://{name}:{port}/announce");
        let first = Announcer::start(&[&[&url]], identity(torrent, 1001), &client, &seldom());
        first.until("both", |status| status[0].v4.is_started && status[0].v6.is_started).await;
        let mut second = Announcer::start(&[&[&url]], identity(torrent, 1002), &client, &seldom());
        let mut found = Vec::new();
        while found.len() < 2 {
            found.extend(second.peers().await);
        }
        found.sort();
        assert_eq!(found, endpoints(["127.0.0.1:1001", "[::1]:1001"]), "{scheme}");
        first.stop().await;
        second.stop().await;
        let stats = store(&tracker).scrape(&identity(torrent, 1).info_hash);
        assert_eq!((stats.complete, stats.incomplete), (0, 0), "they have left over both");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_https_only_a_tracker_with_a_trusted_certificate_gets_announces() {
    let [authority, other] = [(); 2].map(|()| CertificateAuthority::new());
    let mut config = Config::new();
    (config.https, config.tls) = (vec![V4, V6], Some(authority.tls()));
    let tracker = start(&config);

    let trusting =
        |options, file| with(options, |options: &mut ClientOptions| options.root_certificates = Some(file));
    let client = of(trusting(patient(), authority.root()));
    let urls = tracker.https.iter().map(|at| format!("https://{at}/announce"));
    for (nth, url) in urls.enumerate() {
        let _first = Announcer::start(&[&[&url]], identity(1, 1001), &client, &seldom());
        counts(&tracker, [0, 1 + 2 * nth as u32, 0]).await;
        let mut second = Announcer::start(&[&[&url]], identity(1, 1002), &client, &seldom());
        assert_eq!(second.peers().await.len(), 1, "{url}");
        counts(&tracker, [0, 2 + 2 * nth as u32, 0]).await;
    }
    let of_another = of(trusting(patient(), other.root()));
    let url = format!("https://{}/announce", tracker.https[0]);
    let failure = Announcer::one(&url, &of_another, &seldom()).failure().await;
    assert!(failure.contains("certificate"), "{failure}");
    let wrong_name = of(trusting(hosting("else.test", [V4.ip()]), authority.root()));
    let url = format!("https://else.test:{}/announce", tracker.https[0].port());
    let failure = Announcer::one(&url, &wrong_name, &seldom()).failure().await;
    assert!(failure.contains("certificate"), "{failure}");
    let unreadable = trusting(patient(), authority.key());
    let error = swarmkeep_peer::trackers::TrackerClient::new(unreadable).unwrap_err().to_string();
    assert!(error.contains("key.pem") && error.contains("no certificate"), "{error}");
}
