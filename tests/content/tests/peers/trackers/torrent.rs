//! A torrent that announces, and its status.

use std::ops::Range;

use swarmkeep_peer::trackers::{
    Found, Identity, Progress, TrackerClient, TrackerStatus, TrackersHandle, TrackersOptions,
};
use swarmkeep_store_tests::{A_MINUTE, with};
use swarmkeep_tracker_protocol::bittorrent::{InfoHash, PeerId};

use super::*;

/// A client that waits for each answer for as long as a test may take.
pub(crate) fn client() -> TrackerClient {
    of(patient())
}

/// Options of a client that gives up soon.
pub(crate) fn quick() -> ClientOptions {
    waiting(Duration::from_millis(150))
}

/// Options of a client that waits this long for the first answer to a datagram.
pub(crate) fn waiting(udp_wait: Duration) -> ClientOptions {
    with(ClientOptions::new(), |options| {
        (options.udp_wait, options.http_patience) = (udp_wait, Duration::from_millis(800));
    })
}

pub(crate) fn patient() -> ClientOptions {
    with(waiting(A_MINUTE), |options| options.http_patience = A_MINUTE)
}

/// Options of a client that knows the addresses of a host.
pub(crate) fn hosting(name: &str, addresses: impl Into<Vec<IpAddr>>) -> ClientOptions {
    with(patient(), |options| _ = options.hosts.insert(name.into(), addresses.into()))
}

pub(crate) fn of(options: ClientOptions) -> TrackerClient {
    TrackerClient::new(options).expect("there are sockets")
}

/// Announces often and tries again soon.
pub(crate) fn often() -> TrackersOptions {
    with(seldom(), |options| {
        options.shortest_interval = Duration::from_millis(200);
        options.first_back_off = Duration::from_millis(100);
    })
}

/// Announces once.
pub(crate) fn seldom() -> TrackersOptions {
    with(TrackersOptions::new(), |options| {
        options.first_back_off = Duration::from_secs(600);
        options.stop_patience = 10 * A_MINUTE;
    })
}

pub(crate) fn identity(torrent: u32, port: u16) -> Identity {
    let (mut info_hash, mut peer_id) = ([0xaa; 20], *b"-KP0001-000000000000");
    info_hash[..4].copy_from_slice(&torrent.to_be_bytes());
    peer_id[18..].copy_from_slice(&port.to_be_bytes());
    Identity {
        info_hash: InfoHash::new(info_hash),
        peer_id: PeerId::new(peer_id),
        ports: [port; 2],
        key: 0xdead_beef,
    }
}

/// A running torrent.
pub(crate) struct Announcer {
    pub(crate) handle: TrackersHandle,
    pub(crate) found: mpsc::Receiver<Found>,
    pub(crate) left: Arc<AtomicU64>,
}

impl Announcer {
    pub(crate) fn start(
        tiers: &[&[&str]],
        identity: Identity,
        client: &TrackerClient,
        options: &TrackersOptions,
    ) -> Self {
        let tiers = tiers.iter().map(|tier| tier.iter());
        let trackers = Trackers::new(tiers, identity, client.clone(), options);
        let left = Arc::new(AtomicU64::new(1000));
        let counted = Arc::clone(&left);
        let progress = move || {
            let left = counted.load(Relaxed);
            Progress { uploaded: 7, downloaded: 1000 - left, left }
        };
        let (sender, found) = mpsc::channel(1);
        let handle = trackers.spawn(progress, sender);
        assert_eq!(handle.refused(), []);
        Self { handle, found, left }
    }

    /// A torrent with one tracker, and the usual settings of these tests.
    pub(crate) fn one(url: &str, client: &TrackerClient, options: &TrackersOptions) -> Self {
        Self::start(&[&[url]], identity(1, 1001), client, options)
    }

    /// The torrents with these numbers, each with this tracker.
    pub(crate) fn all(torrents: Range<u32>, url: &str, client: &TrackerClient) -> Vec<Self> {
        torrents.map(|torrent| Self::start(&[&[url]], identity(torrent, 1), client, &seldom())).collect()
    }

    pub(crate) async fn peers(&mut self) -> Vec<Endpoint> {
        timeout(A_MINUTE, self.found.recv()).await.expect("peers in time").expect("it runs").peers
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        holds: impl Fn(&[TrackerStatus]) -> bool,
    ) -> Vec<TrackerStatus> {
        let began = Instant::now();
        loop {
            let status = self.handle.status();
            if holds(&status) {
                return status;
            }
            assert!(began.elapsed() < A_MINUTE, "{what}: {status:#?}");
            sleep(Duration::from_millis(3)).await;
        }
    }

    /// Waits until the only tracker has answered or failed over IPv4.
    pub(crate) async fn settled(&self) -> FamilyStatus {
        let settled = |tracker: &TrackerStatus| tracker.v4.latest.is_some() || tracker.v4.failures > 0;
        self.until("an answer", |status| settled(&status[0])).await.remove(0).v4
    }

    /// Waits until the only tracker has failed over IPv4. Returns the error.
    pub(crate) async fn failure(&self) -> String {
        let status = self.until("a failure", |status| status[0].v4.failures > 0).await;
        status[0].v4.error.as_ref().expect("it has failed").to_string()
    }

    pub(crate) async fn stop(self) {
        timeout(A_MINUTE, self.handle.stop()).await.expect("it stops in time");
    }
}

pub(crate) fn endpoints<const N: usize>(texts: [&str; N]) -> Vec<Endpoint> {
    texts.iter().map(|text| text.parse().expect("an endpoint")).collect()
}
