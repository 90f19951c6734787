//! This project's own tracker, over all that it speaks.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread::{self, JoinHandle},
    time::Duration,
};

use swarmkeep::{HashKey, RepositoryConfig, TorrentRepository, catalog};
use swarmkeep_tracker::{Config, Control, Server};
use tokio::{runtime::Builder, sync::oneshot, time::sleep};

use crate::trackers::torrent::{LONG, Torrent, client, endpoints, identity, of, often, quick, seldom};

/// One at work until this is dropped.
struct Tracker {
    udp: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    https: Vec<SocketAddr>,
    control: Control,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracker {
    fn new(config: &Config) -> Self {
        let packed = catalog::find("packed").expect("it is in the catalog");
        let store = packed.build(&RepositoryConfig::new(HashKey::from_os().expect("randomness")));
        let server = Server::bind(config, store.expect("any store keeps that")).expect("loopback");
        let [udp, http, https] = [server.udp_addresses(), server.http_addresses(), server.https_addresses()]
            .map(|at| at.expect("bound"));
        let control = server.control();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime =
                Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
            runtime.block_on(server.run(async { drop(stopped.await) }));
        });
        Self { udp, http, https, control, stop: Some(stop), thread: Some(thread) }
    }

    fn store(&self) -> &dyn TorrentRepository {
        &**self.control.repository.as_sync().expect("packed is synchronous")
    }

    /// Seeders, leechers and downloads of the torrent of these tests, once they are as expected.
    async fn counts(&self, expected: [u32; 3]) {
        let began = std::time::Instant::now();
        loop {
            let stats = self.store().scrape(&identity(1, 1).info_hash);
            let counts = [stats.complete, stats.incomplete, stats.downloaded];
            if counts == expected {
                return;
            }
            assert!(began.elapsed() < LONG, "{counts:?}, expected {expected:?}");
            sleep(Duration::from_millis(3)).await;
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

fn everywhere() -> Config {
    Config::new().udp(V4).udp(V6).http(V4).http(V6)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torrents_find_each_other_complete_and_leave_over_each_protocol_and_family() {
    for nth in 0..4 {
        let tracker = Tracker::new(&everywhere());
        let (scheme, at) = [
            ("udp", tracker.udp[0]),
            ("udp", tracker.udp[1]),
            ("http", tracker.http[0]),
            ("http", tracker.http[1]),
        ][nth];
        let (url, client) = (format!("{scheme}://{at}/announce"), client());
        let first = Torrent::start(&[&[&url]], identity(1, 1001), &client, &seldom());
        tracker.counts([0, 1, 0]).await;
        let mut second = Torrent::start(&[&[&url]], identity(1, 1002), &client, &seldom());
        assert_eq!(second.peers().await, [format!("{}:1001", ip(at)).parse().unwrap()], "{url}");
        tracker.counts([0, 2, 0]).await;
        second.left.store(0, std::sync::atomic::Ordering::Relaxed);
        second.handle.completed();
        tracker.counts([1, 1, 1]).await;
        let [status] = &second.handle.status()[..] else { panic!("one tracker") };
        let (family, other) = if at.is_ipv4() { (&status.v4, &status.v6) } else { (&status.v6, &status.v4) };
        assert_eq!((status.url.as_str(), family.address), (url.as_str(), Some(at)));
        assert_eq!(other.address, None, "an address is of one family");
        first.stop().await;
        tracker.counts([1, 0, 1]).await;
        second.stop().await;
        tracker.counts([0, 0, 1]).await;
    }
}

fn ip(at: SocketAddr) -> String {
    if at.is_ipv4() { at.ip().to_string() } else { format!("[{}]", at.ip()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_addresses_of_both_families_is_told_at_both_and_gives_peers_of_both() {
    // The same port in both families, if it can be had.
    let tracker = (0..50).find_map(|_| {
        let tracker = Tracker::new(&Config::new().udp(V4).http(V4));
        let (udp, http) = (tracker.udp[0].port(), tracker.http[0].port());
        drop(tracker);
        let both = |port| [V4, V6].map(|at| SocketAddr::new(at.ip(), port));
        let is_free = both(udp).iter().all(|at| std::net::UdpSocket::bind(at).is_ok())
            && both(http).iter().all(|at| std::net::TcpListener::bind(at).is_ok());
        let config = both(udp).into_iter().fold(Config::new(), Config::udp);
        is_free.then(|| Tracker::new(&both(http).into_iter().fold(config, Config::http)))
    });
    let tracker = tracker.expect("a free port");
    let name = "tracker.test";
    let client = of(quick().host(name, [V4.ip(), V6.ip()]));
    for (torrent, scheme, port) in [(2, "udp", tracker.udp[0].port()), (3, "http", tracker.http[0].port())] {
        let url = format!("{scheme}://{name}:{port}/announce");
        let first = Torrent::start(&[&[&url]], identity(torrent, 1001), &client, &seldom());
        first.until("both", |status| status[0].v4.is_started && status[0].v6.is_started).await;
        let mut second = Torrent::start(&[&[&url]], identity(torrent, 1002), &client, &seldom());
        let mut found = Vec::new();
        while found.len() < 2 {
            found.extend(second.peers().await);
        }
        found.sort();
        assert_eq!(found, endpoints(["127.0.0.1:1001", "[::1]:1001"]), "{scheme}");
        first.stop().await;
        second.stop().await;
        let stats = tracker.store().scrape(&identity(torrent, 1).info_hash);
        assert_eq!((stats.complete, stats.incomplete), (0, 0), "they have left over both");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_torrents_are_told_to_one_tracker_through_one_client() {
    let tracker = Tracker::new(&everywhere());
    let client = of(quick().http_patience(LONG).udp(Duration::from_secs(1), 3));
    let patient = seldom().stop_patience(LONG);
    for url in [format!("udp://{}", tracker.udp[0]), format!("http://{}/announce", tracker.http[0])] {
        let began = std::time::Instant::now();
        let start = |torrent| Torrent::start(&[&[&url]], identity(torrent, 1001), &client, &patient);
        let torrents: Vec<_> = (0..1000).map(start).collect();
        for torrent in &torrents {
            let status = torrent.settled().await;
            assert!(status.is_started, "{:?}", status.error);
        }
        assert_eq!(tracker.store().totals().peers(), 1000);
        println!("{url}: 1000 torrents in {:?}", began.elapsed());
        for task in torrents.into_iter().map(|torrent| tokio::spawn(torrent.stop())).collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        assert_eq!(tracker.store().totals().peers(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_https_who_is_vouched_for_is_announced_to_and_nobody_else() {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use swarmkeep_tracker::Tls;
    use tempfile::TempDir;

    let folder = TempDir::new().expect("room");
    let file = |name: &str| folder.path().join(name);
    let key = || KeyPair::generate().expect("randomness");
    let authority = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let (root_key, leaf_key, other_key) = (key(), key(), key());
    let names = ["127.0.0.1", "::1"].map(String::from);
    let leaf = CertificateParams::new(names).expect("names");
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(authority(), &root_key)).expect("a certificate");
    fs::write(file("root.pem"), authority().self_signed(&root_key).expect("one").pem()).expect("room");
    fs::write(file("other.pem"), authority().self_signed(&other_key).expect("one").pem()).expect("room");
    fs::write(file("leaf.pem"), leaf.pem()).expect("room");
    fs::write(file("key.pem"), leaf_key.serialize_pem()).expect("room");
    let tls = Tls::load(&file("leaf.pem"), &file("key.pem")).expect("they belong together");
    let tracker = Tracker::new(&Config::new().https(V4).https(V6).tls(tls));

    let client = of(quick().http_patience(LONG).root_certificates(file("root.pem")));
    let urls = tracker.https.iter().map(|at| format!("https://{at}/announce"));
    for (nth, url) in urls.enumerate() {
        let _first = Torrent::start(&[&[&url]], identity(1, 1001), &client, &seldom());
        tracker.counts([0, 1 + 2 * nth as u32, 0]).await;
        let mut second = Torrent::start(&[&[&url]], identity(1, 1002), &client, &seldom());
        assert_eq!(second.peers().await.len(), 1, "{url}");
        tracker.counts([0, 2 + 2 * nth as u32, 0]).await;
    }
    let of_another = of(quick().http_patience(LONG).root_certificates(file("other.pem")));
    let url = format!("https://{}/announce", tracker.https[0]);
    let failure = Torrent::one(&url, &of_another, &seldom()).failure().await;
    assert!(failure.contains("certificate"), "{failure}");
    let wrong_name = of(quick().root_certificates(file("root.pem")).host("else.test", [V4.ip()]));
    let url = format!("https://else.test:{}/announce", tracker.https[0].port());
    let failure = Torrent::one(&url, &wrong_name, &seldom()).failure().await;
    assert!(failure.contains("certificate"), "{failure}");
    let unreadable = quick().root_certificates(file("key.pem"));
    let error = swarmkeep_peer::trackers::TrackerClient::new(unreadable).unwrap_err().to_string();
    assert!(error.contains("key.pem") && error.contains("no certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tracker_that_was_started_again_is_announced_to_again() {
    let tracker = Tracker::new(&Config::new().udp(V4));
    let at = tracker.udp[0];
    let url = format!("udp://{at}");
    let client = client();
    let torrent = Torrent::one(&url, &client, &often());
    assert!(torrent.settled().await.is_started);
    drop(tracker);
    let tracker = Tracker::new(&Config::new().udp(at));
    torrent.handle.announce_now();
    // It knows nothing of the connection id, and the torrent must not have to fail for that.
    tracker.counts([0, 1, 0]).await;
    assert_eq!(torrent.handle.status()[0].v4.failures, 0);
    torrent.stop().await;
    tracker.counts([0, 0, 0]).await;
}
