//! Other clients find each other only through our tracker, and download from one another.
//!
//! Each test has a network of its own (a namespace without a way out), a tracker over one store of the
//! catalog, and clients: one has the file, the others want it. DHT, peer exchange and local discovery are
//! switched off, and the torrent is private (BEP 27), so every peer comes from the tracker. A tap between the
//! clients and the tracker writes down every message. `SWARMKEEP_CAPTURE=DIR` keeps each client's requests
//! and their answers as fixtures.

mod clients;
mod links;
mod network;
pub(crate) mod ours;
mod restart;
mod tap;
mod two_trackers;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env, fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clients::{ARIA2, Client, ClientSetup, LIBTORRENT, OURS, QBITTORRENT, RTORRENT, Running, TRANSMISSION};
use network::{A_NETWORK, TRACKER_V6, address, file_name, in_a_network_of_its_own};
use swarmkeep::{
    Family::{self, V4, V6},
    HashKey, SwarmStats,
    catalog::Repository,
};
use swarmkeep_bittorrent::InfoHash;
use swarmkeep_content_tests::torrents::two_mib as content;
use swarmkeep_metainfo::{Creation, Format, Magnet, Metainfo};
use swarmkeep_store_tests::programs::{Trial, trial};
use swarmkeep_tests::{Tracker, build, serve::Serve, udp};
use swarmkeep_tracker::{Config, PasskeyList};
use tap::Tap;

macro_rules! real_clients {
    ($($test:ident: $([$kind:ident $($by_link:ident)?])? by $protocol:ident $family:ident$(, with $passkey:ident)?, over $repository:literal, from $seeder:ident to $($other:ident)*;)*) => {
        /// The story of each row.
        fn downloads() -> Vec<Trial> {
            vec![$({
                let row = ClientTest {
                    kind: [$(TorrentKind::$kind,)? TorrentKind::V1][0],
                    by_link: [$($(stringify!($by_link),)?)? ""][0] == "magnet",
                    protocol: Protocol::$protocol,
                    family: $family,
                    passkey: None$(.or(Some($passkey)))?,
                    repository: $repository,
                    seeder: &$seeder,
                    others: vec![$(&$other),*],
                };
                row.trial(stringify!($test))
            }),*]
        }
    };
}

// One row of each family of the catalog, one of each other way to a tracker, and each client as the seeder.
real_clients! {
    clients_download_by_udp_over_packed:
        by Udp V4, over "packed", from LIBTORRENT to ARIA2 TRANSMISSION QBITTORRENT RTORRENT;
    clients_download_by_udp_over_a_btreemap: by Udp V4,
        over "btreemap-rwlock-parking-lot-mutex-parking-lot", from TRANSMISSION to ARIA2 LIBTORRENT QBITTORRENT RTORRENT;
    clients_download_by_udp_over_a_skipmap: by Udp V4,
        over "skipmap-mutex-parking-lot", from ARIA2 to TRANSMISSION LIBTORRENT QBITTORRENT RTORRENT;
    clients_download_by_udp_over_a_dashmap: by Udp V4,
        over "dashmap-rwlock-parking-lot", from QBITTORRENT to ARIA2 TRANSMISSION LIBTORRENT RTORRENT;
    // Without aria2 1.36.0: it asks UDP trackers from the socket of its IPv4 DHT, and sends nothing at all
    // here. Transmission 3.00 reads every answer over UDP as IPv4 peers: others find it by IPv6, but it finds
    // no peer.
    clients_download_by_udp_and_ipv6:
        by Udp V6, over "packed", from TRANSMISSION to LIBTORRENT QBITTORRENT RTORRENT;
    clients_download_by_http:
        by Http V4, over "packed", from RTORRENT to ARIA2 TRANSMISSION LIBTORRENT QBITTORRENT;
    clients_download_by_http_and_ipv6:
        by Http V6, over "packed", from LIBTORRENT to ARIA2 TRANSMISSION QBITTORRENT RTORRENT;
    clients_download_by_http_from_a_private_tracker:
        by Http V4, with PASSKEY, over "packed", from QBITTORRENT to ARIA2 TRANSMISSION LIBTORRENT RTORRENT;
    // The two clients that send the path of an announce (BEP 41).
    clients_download_by_udp_from_a_private_tracker:
        by Udp V4, with PASSKEY, over "packed", from LIBTORRENT to QBITTORRENT;
    // Our own peer, which seeds to all of them, and fetches from each.
    clients_download_from_our_peer:
        by Udp V4, over "packed", from OURS to ARIA2 TRANSMISSION LIBTORRENT QBITTORRENT RTORRENT;
    clients_download_from_our_peer_by_http_and_ipv6:
        by Http V6, over "packed", from OURS to ARIA2 TRANSMISSION LIBTORRENT QBITTORRENT RTORRENT;
    aria2_seeds_to_our_peer: by Udp V4, over "packed", from ARIA2 to OURS;
    transmission_seeds_to_our_peer: by Http V4, over "packed", from TRANSMISSION to OURS;
    libtorrent_seeds_to_our_peer: by Udp V6, over "packed", from LIBTORRENT to OURS;
    qbittorrent_seeds_to_our_peer: by Http V6, over "packed", from QBITTORRENT to OURS;
    rtorrent_seeds_to_our_peer: by Udp V4, over "packed", from RTORRENT to OURS;
    // Only clients that know v2.
    clients_download_v2_from_our_peer:
        [V2] by Udp V4, over "packed", from OURS to LIBTORRENT QBITTORRENT;
    libtorrent_seeds_v2_to_our_peer: [V2] by Udp V4, over "packed", from LIBTORRENT to OURS;
    qbittorrent_seeds_v2_to_our_peer: [V2] by Http V4, over "packed", from QBITTORRENT to OURS;
    // Without aria2 1.36.0, which finds another info hash in it, and transmission 3.00: "Failed opening
    // torrent file".
    clients_download_a_hybrid_from_our_peer:
        [Hybrid] by Udp V4, over "packed", from OURS to LIBTORRENT QBITTORRENT RTORRENT;
    libtorrent_seeds_a_hybrid_to_our_peer: [Hybrid] by Http V4, over "packed", from LIBTORRENT to OURS;
    // By a link only.
    clients_download_by_a_link_from_our_peer:
        [Public magnet] by Http V4, over "packed", from OURS to ARIA2 TRANSMISSION LIBTORRENT QBITTORRENT RTORRENT;
    clients_download_v2_by_a_link_from_our_peer:
        [V2 magnet] by Udp V4, over "packed", from OURS to LIBTORRENT QBITTORRENT;
    clients_download_a_hybrid_by_a_link_of_v2_from_our_peer:
        [HybridByV2 magnet] by Udp V4, over "packed", from OURS to LIBTORRENT QBITTORRENT;
    libtorrent_seeds_a_hybrid_by_a_link_of_v2_to_our_peer:
        [HybridByV2 magnet] by Udp V4, over "packed", from LIBTORRENT to OURS;
    aria2_seeds_by_a_link_to_our_peer: [Public magnet] by Udp V4, over "packed", from ARIA2 to OURS;
    transmission_seeds_by_a_link_to_our_peer:
        [Public magnet] by Http V4, over "packed", from TRANSMISSION to OURS;
    libtorrent_seeds_v2_by_a_link_to_our_peer:
        [V2 magnet] by Udp V4, over "packed", from LIBTORRENT to OURS;
    qbittorrent_seeds_a_hybrid_by_a_link_to_our_peer:
        [Hybrid magnet] by Udp V4, over "packed", from QBITTORRENT to OURS;
    rtorrent_seeds_by_a_link_to_our_peer:
        [Public magnet] by Http V4, over "packed", from RTORRENT to OURS;
}

pub(crate) fn tests() -> Vec<Trial> {
    [downloads(), links::tests(), restart::tests(), two_trackers::tests()].into_iter().flatten().collect()
}

/// The `info` dictionary of the torrent that is shared, as `fixtures/README.md` makes it.
const INFO: &[u8] = include_bytes!("../../../../../fixtures/torrents/splitmix64-2MiB.info");
const PASSKEY: &str = "s3cret-Passkey_0";
const FILE: &str = "splitmix64-2MiB.bin";
const FILE_LEN: usize = 2 << 20;

/// The longest time of each part of the story: on an idle machine, they take a second or two.
const DEADLINE: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Udp,
    Http,
}

#[derive(Debug, Clone, Copy)]
enum TorrentKind {
    /// Private. Its info dictionary is a fixture.
    V1,
    /// Not private, so peers teach each other the info dictionary.
    Public,
    V2,
    Hybrid,
    /// A hybrid. Its link has only the info hash of v2.
    HybridByV2,
}

struct ClientTest {
    kind: TorrentKind,
    /// Whether all but the seeder know only a magnet link.
    by_link: bool,
    protocol: Protocol,
    family: Family,
    /// The passkey of all clients, if the tracker is private.
    passkey: Option<&'static str>,
    repository: &'static str,
    seeder: &'static Client,
    others: Vec<&'static Client>,
}

impl ClientTest {
    /// A test, which needs the clients of the row.
    fn trial(self, name: &str) -> Trial {
        let needs: Vec<_> =
            self.clients().iter().flat_map(|client| client.needs).chain(&A_NETWORK).copied().collect();
        trial(&format!("{}::{name}", module_path!()), &needs, move || self.download())
    }

    /// The seeder first.
    fn clients(&self) -> Vec<&'static Client> {
        [&[self.seeder][..], &self.others].concat()
    }

    /// The story of all tests.
    fn download(&self) {
        if !in_a_network_of_its_own() {
            return;
        }
        let (test, clients, others) = (file_name(), self.clients(), &self.others);
        let seeder = self.seeder;

        let content = content();
        let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-clients").join(&test);
        let _ = fs::remove_dir_all(&work);
        let torrent = self.torrent(&content);
        let metainfo = Metainfo::parse(&torrent).expect("it was made just now");
        let mut info_hashes: Vec<_> = metainfo.info().info_hashes().collect();
        let by_v2 = matches!(self.kind, TorrentKind::HybridByV2);
        if by_v2 {
            // First the one that all clients know.
            info_hashes.reverse();
        }
        let info_hash = info_hashes[0];
        let link = self.by_link.then(|| {
            let link = Magnet::from(&metainfo).to_string();
            let v1 = format!("xt=urn:btih:{}&", metainfo.info().info_hash());
            let link = if by_v2 { link.replace(&v1, "") } else { link };
            assert_eq!(link.contains("urn:btih:"), !by_v2 && metainfo.info().has_v1());
            link
        });
        let place = |client: &Client| {
            let link = link.clone().filter(|_| client.name != seeder.name);
            ClientSetup::new(&work, client, self.family, &torrent, link)
        };
        let places: BTreeMap<_, _> = clients.iter().map(|client| (client.name, place(client))).collect();
        fs::write(places[seeder.name].download.join(FILE), &content).expect("room for 2 MiB");

        let repository = build(self.repository, |config| config);
        let store = Arc::clone(repository.as_sync().expect("it is synchronous"));
        let tracker = self.start_tracker(repository);
        let at = *tracker.udp.first().or(tracker.http.first()).expect("it listens");
        let tap = Tap::between(self.tracker(), at, self.protocol, info_hashes, self.by_link);
        let stats = || store.scrape(&info_hash);

        let running = RefCell::new(vec![Running::start(seeder, &places[seeder.name])]);
        wait_until("the seeder announces", || stats().complete == 1, || tap.transcript(&places));
        let start = |client: &&Client| Running::start(client, &places[client.name]);
        running.borrow_mut().extend(others.iter().map(start));

        let downloads = others.len();
        let all_have_it = || {
            running.borrow_mut().iter_mut().for_each(Running::start_if_ended);
            let (completed, counted) = tap.completed(&places);
            let expected = SwarmStats { complete: downloads as u32 + 1, incomplete: 0, downloaded: counted };
            completed >= downloads && stats() == expected
        };
        let so_far = || format!("{:?}\n{}", stats(), tap.transcript(&places));
        wait_until("every download is complete, announced and counted", all_have_it, so_far);
        // A client may announce that it is complete while it still writes, as libtorrent and ours do.
        for client in others {
            let file = places[client.name].download.join(FILE);
            let is_there = || fs::read(&file).is_ok_and(|downloaded| downloaded == content);
            wait_until(&format!("{} has written the content", client.name), is_there, so_far);
        }

        let running = running.into_inner();
        running.iter().for_each(Running::ask_to_stop);
        let silent = clients.iter().filter(|client| client.leaves_in_silence == Some(self.protocol)).count();
        wait_until(
            "every client says goodbye",
            || stats().peers() == silent as u64,
            || tap.transcript(&places),
        );
        drop(running);

        println!("{test}: {downloads} downloads from {} complete, byte for byte", seeder.name);
        println!("{}", tap.transcript(&places));
        tap.assert_all_is_understood(&places);
        if let Some(dir) = env::var_os("SWARMKEEP_CAPTURE") {
            tap.keep(&places, &Path::new(&dir).join(self.fixtures()));
        }
    }

    /// The torrent file, which names our tracker.
    fn torrent(&self, content: &[u8]) -> Vec<u8> {
        let url = self.url();
        let format = match self.kind {
            TorrentKind::V1 => {
                return [format!("d8:announce{}:{url}4:info", url.len()).as_bytes(), INFO, b"e"].concat();
            }
            TorrentKind::Public => Format::V1,
            TorrentKind::V2 => Format::V2,
            TorrentKind::Hybrid | TorrentKind::HybridByV2 => Format::Hybrid,
        };
        let mut builder = Creation::builder(FILE, format);
        builder.tier([url]).piece_length(64 << 10).file([""; 0], FILE_LEN as u64, false);
        let mut creation = builder.build().expect("a torrent of one file");
        for (piece, bytes) in content.chunks(64 << 10).enumerate() {
            let mut hasher = creation.hasher(piece as u32).expect("it has as many");
            hasher.update(bytes);
            creation.set(hasher.finish().expect("a piece"));
        }
        creation.finish().expect("every piece is hashed")
    }

    /// The address of the tracker for clients, which have the addresses after it.
    fn tracker(&self) -> SocketAddr {
        SocketAddr::new(address(self.family, 1), 6969)
    }

    fn url(&self) -> String {
        let scheme = match self.protocol {
            Protocol::Udp => "udp",
            Protocol::Http => "http",
        };
        let path = self.passkey.map(|passkey| format!("/{passkey}")).unwrap_or_default();
        match (self.protocol, self.family) {
            // Transmission 3.00 does not know brackets in the URL of a UDP tracker: it looks for a host
            // called `[2001`.
            (Protocol::Udp, V6) => {
                format!("{scheme}://{TRACKER_V6}:{}{path}/announce", self.tracker().port())
            }
            _ => format!("{scheme}://{}{path}/announce", self.tracker()),
        }
    }

    /// The folder of fixtures for this protocol and family.
    fn fixtures(&self) -> &'static str {
        match (self.protocol, self.family) {
            (Protocol::Udp, V4) => "udp",
            (Protocol::Udp, V6) => "udp-ipv6",
            (Protocol::Http, V4) => "http",
            (Protocol::Http, V6) => "http-ipv6",
        }
    }

    fn start_tracker(&self, repository: Repository) -> Tracker {
        let address = SocketAddr::new(self.tracker().ip(), 0);
        // A short interval: a client that missed a peer announces again within this test.
        let mut config = Config::new();
        config.rules.interval_secs = 2;
        if let Some(passkey) = self.passkey {
            let list = env::temp_dir().join(format!("swarmkeep-{}-{}", file_name(), std::process::id()));
            fs::write(&list, format!("{passkey}\n")).expect("a file of ours");
            let key = HashKey::from_os().expect("randomness");
            config.rules.passkeys = Some(PasskeyList::load(key, &list).expect("one passkey"));
            fs::remove_file(list).expect("ours");
        }
        match self.protocol {
            Protocol::Udp => config.udp.push(address),
            Protocol::Http => config.http.push(address),
        }
        Tracker::over(&config, repository)
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool, transcript: impl Fn() -> String) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}\n{}", transcript());
        thread::sleep(Duration::from_millis(50));
    }
}

/// A tracker in a process of its own, over UDP and HTTP at one address.
struct ServedTracker {
    serve: Serve,
    at: SocketAddr,
}

impl ServedTracker {
    fn start(mut command: Command, at: SocketAddr) -> Self {
        command.arg(format!("--udp={at}")).arg(format!("--http={at}"));
        Self { serve: Serve::start(command), at }
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        let mut client = udp::Client::of(self.at);
        let connection_id = client.connect();
        let stats = client.scrape(connection_id, &[*info_hash.as_bytes()])[0];
        SwarmStats { complete: stats.seeders, incomplete: stats.leechers, downloaded: stats.completed }
    }
}
