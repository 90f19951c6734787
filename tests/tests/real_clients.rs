//! Other people's clients find each other through our tracker, and nothing else, and download from one another.
//!
//! Each test has a network of its own (a namespace without a way out), a tracker over one store of the catalog, and four
//! clients: one has the file, the others want it. DHT, peer exchange and local discovery are switched off, and the torrent
//! is private (BEP 27), so whoever finds a peer has it from the tracker. Between the clients and the tracker stands a tap
//! that writes down every packet. With `SWARMKEEP_CAPTURE=DIR` each client's requests are kept as fixtures.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    env, fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    AnnounceEvent, Family, HashKey, InfoHash, Random, RepositoryConfig, SplitMix64, SwarmStats,
    TorrentRepository,
    catalog::{self, Repository},
};
use swarmkeep_tracker::{Config, Server};
use swarmkeep_tracker_protocol::udp::{AnnounceOption, AnnounceRequest, Request, Response};

macro_rules! real_clients {
    ($($test:ident: over $repository:literal, from $seeder:ident;)*) => {$(
        #[test]
        fn $test() {
            download_over($repository, &$seeder, stringify!($test));
        }
    )*};
}

// One row of each family of the catalog, and each client once as the one that has the file.
real_clients! {
    needs_aria2_transmission_libtorrent_qbittorrent_to_download_over_packed: over "packed", from LIBTORRENT;
    needs_aria2_transmission_libtorrent_qbittorrent_to_download_over_a_btreemap:
        over "btreemap-rwlock-parking-lot-mutex-parking-lot", from TRANSMISSION;
    needs_aria2_transmission_libtorrent_qbittorrent_to_download_over_a_skipmap:
        over "skipmap-mutex-parking-lot", from ARIA2;
    needs_aria2_transmission_libtorrent_qbittorrent_to_download_over_a_dashmap:
        over "dashmap-rwlock-parking-lot", from QBITTORRENT;
}

/// The `info` dictionary of the torrent that is shared, as `fixtures/README.md` makes it.
const INFO: &[u8] = include_bytes!("../../fixtures/torrents/splitmix64-2MiB.info");
const INFO_HASH: &str = "f20521877e62b8a298f3cf15576fd3c7b975a027";
const FILE: &str = "splitmix64-2MiB.bin";
const FILE_LEN: usize = 2 << 20;

/// Where the tracker is to be found; the clients are at the addresses after it.
const TRACKER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 6969);

/// How long each part of the story may take.
const DEADLINE: Duration = Duration::from_secs(40);

/// The story that all tests tell.
fn download_over(repository: &str, seeder: &'static Client, test: &str) {
    let clients = [&ARIA2, &TRANSMISSION, &LIBTORRENT, &QBITTORRENT];
    let present: Vec<_> = clients.into_iter().filter(|client| client.is_installed()).collect();
    if present.len() < 2 {
        return; // Said by `is_installed`.
    }
    let seeder = if present.iter().any(|client| client.name == seeder.name) { seeder } else { present[0] };
    if !in_a_network_of_its_own(test) {
        return;
    }

    let content = content();
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-clients").join(repository);
    let _ = fs::remove_dir_all(&work);
    let mut places = BTreeMap::new();
    for (n, client) in (1..).zip(&present) {
        places.insert(client.name, Place::new(&work, client, n));
    }
    fs::write(places[seeder.name].download.join(FILE), &content).expect("room for 2 MiB");

    let store = build(repository);
    let tap = Tap::before(start_tracker(Repository::Sync(Arc::clone(&store))));
    let stats = || store.scrape(&INFO_HASH.parse().expect("a constant"));

    let mut running = vec![Running::start(seeder, &places[seeder.name])];
    wait_until("the seeder announces", || stats().complete == 1, || tap.transcript(&places));
    let others: Vec<_> = present.iter().filter(|client| client.name != seeder.name).collect();
    running.extend(others.iter().map(|client| Running::start(client, &places[client.name])));

    let downloads = others.len();
    let all_have_it = || {
        let (completed, counted) = tap.completed(&places);
        let expected = SwarmStats { complete: downloads as u32 + 1, incomplete: 0, downloaded: counted };
        completed >= downloads && stats() == expected
    };
    let so_far = || format!("{:?}\n{}", stats(), tap.transcript(&places));
    wait_until("every download is complete, announced and counted", all_have_it, so_far);
    for client in &others {
        let downloaded = fs::read(places[client.name].download.join(FILE)).expect("a file");
        assert!(downloaded == content, "{} has downloaded something else", client.name);
    }

    running.iter().for_each(Running::ask_to_stop);
    wait_until("every client says goodbye", || stats().peers() == 0, || tap.transcript(&places));
    drop(running);

    println!("{repository}: {downloads} downloads from {} complete, byte for byte", seeder.name);
    println!("{}", tap.transcript(&places));
    tap.assert_all_is_understood(&places);
    if let Some(dir) = env::var_os("SWARMKEEP_CAPTURE") {
        tap.keep(&places, Path::new(&dir));
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool, transcript: impl Fn() -> String) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}\n{}", transcript());
        thread::sleep(Duration::from_millis(50));
    }
}

/// What is downloaded: as random as it gets, and the same each time.
fn content() -> Vec<u8> {
    let mut rng = SplitMix64::new(1);
    (0..FILE_LEN / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// The metainfo file (BEP 3) that names our tracker.
fn torrent() -> Vec<u8> {
    let url = format!("udp://{TRACKER}/announce");
    [format!("d8:announce{}:{url}4:info", url.len()).as_bytes(), INFO, b"e"].concat()
}

fn build(repository: &str) -> Arc<dyn TorrentRepository> {
    let config = RepositoryConfig::new(HashKey::from_os().expect("randomness"));
    match catalog::find(repository)
        .expect("a name of the catalog")
        .build(&config)
        .expect("the defaults are kept")
    {
        Repository::Sync(store) => store,
        Repository::Async(_) => panic!("{repository} has to be awaited"),
    }
}

/// Starts the tracker on a thread that ends with the process; answers where it listens.
fn start_tracker(repository: Repository) -> SocketAddr {
    // A short interval, so that a client that has missed somebody asks again within this test.
    let config = Config::new().udp(SocketAddr::new(TRACKER.ip(), 0)).interval_secs(5);
    let server = Server::bind(&config, repository).expect("the address is ours");
    let address = server.udp_addresses().expect("bound")[0];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    thread::spawn(move || runtime.block_on(server.run(std::future::pending())));
    address
}

/// Runs the test once more in a process with a network and processes of its own, where this answers `true`. Outside, where
/// it answers `false`, the test has passed if that one has.
fn in_a_network_of_its_own(test: &str) -> bool {
    const INSIDE: &str = "SWARMKEEP_TEST_INSIDE_NAMESPACE";
    if env::var_os(INSIDE).is_some() {
        let ip = |arguments: &[&str]| {
            assert!(
                Command::new("ip").args(arguments).status().expect("`ip` is there").success(),
                "{arguments:?}"
            );
        };
        ip(&["link", "set", "lo", "up"]);
        for n in 1..=5 {
            ip(&["address", "add", &format!("10.77.0.{n}/24"), "dev", "lo"]);
        }
        return true;
    }
    if !quietly(Command::new("ip").arg("-V")) {
        absent("iproute2 (`ip`)", "iproute2");
        return false;
    }
    // `--kill-child` and the namespace of processes: nothing outlives this, whatever happens.
    let alone = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let as_root = ["--user", "--map-root-user"];
    let unshare = |arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(arguments).args(alone);
        unshare
    };
    let mut unshare = match () {
        () if quietly(unshare(&[]).arg("true")) => unshare(&[]),
        () if quietly(unshare(&as_root).arg("true")) => unshare(&as_root),
        () => {
            absent("a network namespace (`unshare --net`, as root or with user namespaces)", "util-linux");
            return false;
        }
    };
    let this = env::current_exe().expect("a test is a program");
    let output = unshare
        .arg(this)
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .output()
        .expect("`unshare` has just run");
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    print!("{}", printed(&output.stdout));
    assert!(output.status.success(), "{}\n{}", printed(&output.stdout), printed(&output.stderr));
    false
}

fn quietly(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Says that something is missing: in CI by failing, elsewhere so that it is seen.
fn absent(what: &str, package: &str) {
    let message = format!("{what} is missing: apt-get install {package}");
    assert!(env::var_os("CI").is_none(), "{message}");
    // Past the test harness, which shows nothing of a test that passes.
    let _ = writeln!(io::stderr(), "SKIPPED: {message}");
}

/// Somebody else's client.
struct Client {
    name: &'static str,
    /// The Debian package that it is in.
    package: &'static str,
    /// Prints its version, and proves that it is there.
    version: &'static [&'static str],
    /// How its peer ids begin (BEP 20).
    peer_id: &'static str,
    /// Runs it in the foreground until SIGINT: downloads what is missing, shares what is there.
    command: fn(&Place) -> Command,
}

/// Where one client works.
struct Place {
    ip: IpAddr,
    port: u16,
    peer_id: &'static str,
    torrent: PathBuf,
    /// Where the file is or goes.
    download: PathBuf,
    /// Its configuration and whatever else it writes.
    home: PathBuf,
    /// Name and version, as a folder of fixtures is called.
    label: String,
}

static ARIA2: Client = Client {
    name: "aria2",
    package: "aria2",
    version: &["aria2c", "--version"],
    peer_id: "A2-",
    command: |place| {
        let mut command = Command::new("aria2c");
        // Without DHT this client has no UDP trackers. It knows no node to ask, and a private torrent is not looked up.
        command.args(["--no-conf", "--enable-dht=true", "--enable-dht6=false", "--disable-ipv6=true"]);
        command.args(["--bt-enable-lpd=false", "--enable-peer-exchange=false", "--check-integrity=true"]);
        command.args(["--file-allocation=none", "--seed-ratio=0.0", "--bt-stop-timeout=0"]);
        command.arg(format!("--dht-file-path={}", place.home.join("dht.dat").display()));
        command.arg(format!("--listen-port={}", place.port)).arg(format!("--dht-listen-port={}", place.port));
        command.arg(format!("--interface={}", place.ip)).arg(format!("--dir={}", place.download.display()));
        command.arg(&place.torrent);
        command
    },
};

static TRANSMISSION: Client = Client {
    name: "transmission",
    package: "transmission-cli",
    version: &["transmission-cli", "--version"],
    peer_id: "-TR",
    command: |place| {
        let settings = format!(
            r#"{{"bind-address-ipv4": "{}", "peer-port": {}, "dht-enabled": false, "lpd-enabled": false,
                "pex-enabled": false, "utp-enabled": false, "port-forwarding-enabled": false}}"#,
            place.ip, place.port
        );
        fs::write(place.home.join("settings.json"), settings).expect("a folder of ours");
        let mut command = Command::new("transmission-cli");
        command
            .args(["--no-portmap", "--no-blocklist", "--verify"])
            .arg("--port")
            .arg(place.port.to_string());
        command
            .arg("--config-dir")
            .arg(&place.home)
            .arg("--download-dir")
            .arg(&place.download)
            .arg(&place.torrent);
        command
    },
};

static LIBTORRENT: Client = Client {
    name: "libtorrent",
    package: "python3-libtorrent",
    version: &["/usr/bin/python3", "-c", "import libtorrent; print(libtorrent.__version__)"],
    peer_id: "-LT",
    command: |place| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", LIBTORRENT_SCRIPT]).arg(&place.torrent).arg(&place.download);
        command.args([place.ip.to_string(), place.port.to_string()]);
        command
    },
};

/// A client in a few lines of Debian's own python, which is the one that has the binding.
const LIBTORRENT_SCRIPT: &str = r#"
import libtorrent, signal, sys, time
torrent, folder, ip, port = sys.argv[1:]
session = libtorrent.session({
    "listen_interfaces": f"{ip}:{port}", "outgoing_interfaces": ip, "enable_dht": False,
    "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
})
handle = session.add_torrent({"ti": libtorrent.torrent_info(torrent), "save_path": folder})
going = True
def stop(*_):
    global going
    going = False
signal.signal(signal.SIGINT, stop)
scraped = False
while going:
    time.sleep(0.1)
    if handle.status().is_seeding and not scraped:
        handle.scrape_tracker()
        scraped = True
session.remove_torrent(handle)
time.sleep(1)
"#;

static QBITTORRENT: Client = Client {
    name: "qbittorrent",
    package: "qbittorrent-nox",
    version: &["qbittorrent-nox", "--version"],
    peer_id: "-qB",
    command: |place| {
        let config = format!(
            "[LegalNotice]\nAccepted=true\n[Preferences]\nWebUI\\Enabled=false\n[Network]\nPortForwardingEnabled=false\n\
             [BitTorrent]\nSession\\DHTEnabled=false\nSession\\LSDEnabled=false\nSession\\PeXEnabled=false\n\
             Session\\Port={}\nSession\\Interface=lo\nSession\\InterfaceName=lo\nSession\\InterfaceAddress={}\n",
            place.port, place.ip
        );
        let folder = place.home.join("qBittorrent/config");
        fs::create_dir_all(&folder).expect("a folder of ours");
        fs::write(folder.join("qBittorrent.conf"), config).expect("a folder of ours");
        let mut command = Command::new("qbittorrent-nox");
        command.arg(format!("--profile={}", place.home.display())).arg("--skip-dialog=true");
        command.arg(format!("--save-path={}", place.download.display())).arg(&place.torrent);
        command.env("HOME", &place.home).env("XDG_CONFIG_HOME", &place.home);
        command
    },
};

impl Client {
    fn is_installed(&self) -> bool {
        let installed = self.version_printed().is_some();
        if !installed {
            absent(self.version[0], self.package);
        }
        installed
    }

    fn version_printed(&self) -> Option<String> {
        let output =
            Command::new(self.version[0]).args(&self.version[1..]).stdin(Stdio::null()).output().ok()?;
        // One of them prints its version on standard error.
        let printed = [output.stdout, output.stderr].concat();
        output.status.success().then(|| String::from_utf8_lossy(&printed).into_owned())
    }

    /// The version alone, out of whatever is printed with it.
    fn version(&self) -> String {
        let printed = self.version_printed().expect("`is_installed` has been asked");
        let mut words = printed.split_whitespace().map(|word| word.trim_start_matches('v'));
        words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).expect("a version").to_owned()
    }
}

impl Place {
    fn new(work: &Path, client: &Client, n: u8) -> Self {
        let folder = work.join(client.name);
        let place = Self {
            ip: Ipv4Addr::new(10, 77, 0, 1 + n).into(),
            port: 6880 + u16::from(n),
            peer_id: client.peer_id,
            torrent: folder.join("shared.torrent"),
            download: folder.join("download"),
            home: folder.join("home"),
            label: format!("{}-{}", client.name, client.version()),
        };
        fs::create_dir_all(&place.download).expect("a folder of ours");
        fs::create_dir_all(&place.home).expect("a folder of ours");
        fs::write(&place.torrent, torrent()).expect("a folder of ours");
        place
    }
}

/// A client at work, until this is dropped.
struct Running(Child);

impl Running {
    fn start(client: &Client, place: &Place) -> Self {
        let log = fs::File::create(place.home.join("log")).expect("a folder of ours");
        let mut command = (client.command)(place);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        Self(command.spawn().expect("`is_installed` has run it"))
    }

    fn ask_to_stop(&self) {
        quietly(Command::new("kill").args(["-s", "INT"]).arg(self.0.id().to_string()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stands where the tracker is to be found, writes down every packet and passes it on from the address it came from.
struct Tap {
    packets: Arc<Mutex<Vec<Packet>>>,
}

struct Packet {
    at: Duration,
    client: SocketAddr,
    bytes: Vec<u8>,
    to_tracker: bool,
}

impl Tap {
    fn before(tracker: SocketAddr) -> Self {
        let (packets, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let outside = Arc::new(UdpSocket::bind(TRACKER).expect("the address is ours"));
        let record = {
            let packets = Arc::clone(&packets);
            move |client, bytes: &[u8], to_tracker| {
                let packet = Packet { at: start.elapsed(), client, bytes: bytes.to_vec(), to_tracker };
                packets.lock().expect("nothing panics with it").push(packet);
            }
        };
        thread::spawn(move || {
            let mut inside = HashMap::new();
            let mut buffer = [0; 2048];
            loop {
                let (len, client) = outside.recv_from(&mut buffer).expect("a packet");
                record(client, &buffer[..len], true);
                let inside: &mut Arc<UdpSocket> = inside.entry(client).or_insert_with(|| {
                    let inside = Arc::new(UdpSocket::bind((client.ip(), 0)).expect("every address is ours"));
                    inside.connect(tracker).expect("it is there");
                    let (from, to, record) = (Arc::clone(&inside), Arc::clone(&outside), record.clone());
                    thread::spawn(move || {
                        let mut buffer = [0; 2048];
                        loop {
                            let len = from.recv(&mut buffer).expect("a packet");
                            record(client, &buffer[..len], false);
                            // Whoever has gone meanwhile does not miss it.
                            let _ = to.send_to(&buffer[..len], client);
                        }
                    });
                    inside
                });
                inside.send(&buffer[..len]).expect("it is there");
            }
        });
        Self { packets }
    }

    /// Every packet in a line.
    fn transcript(&self, places: &BTreeMap<&str, Place>) -> String {
        let packets = self.packets.lock().expect("nothing panics with it");
        let names = names(&packets, places);
        let lines = packets.iter().map(|packet| {
            let (arrow, what) = if packet.to_tracker {
                ("->", request_in_words(&packet.bytes))
            } else {
                ("<-", response_in_words(&packet.bytes))
            };
            let name = names.get(&packet.client).map_or("?", |&name| name);
            format!("  {:6.2} s  {name:<12} {arrow} {what}\n", packet.at.as_secs_f64())
        });
        lines.collect()
    }

    /// How many clients have told that they are complete, and how many downloads that is: none for one whose regular
    /// announce overtook its `completed`, and told that nothing was left. (Transmission does that now and then.)
    fn completed(&self, places: &BTreeMap<&str, Place>) -> (usize, u32) {
        let packets = self.packets.lock().expect("nothing panics with it");
        let names = names(&packets, places);
        let (mut completed, mut seeding, mut downloads) = (BTreeSet::new(), BTreeSet::new(), 0);
        for packet in packets.iter().filter(|packet| packet.to_tracker) {
            let Ok(Request::Announce(announce)) = Request::parse(&packet.bytes) else { continue };
            let name = names[&packet.client];
            if announce.event == AnnounceEvent::Completed {
                completed.insert(name);
                downloads += u32::from(!seeding.contains(name));
            }
            if announce.event != AnnounceEvent::Stopped && announce.left == 0 {
                seeding.insert(name);
            } else {
                seeding.remove(name);
            }
        }
        (completed.len(), downloads)
    }

    /// That every client has announced, that what they sent means what it must, and that nothing of it was refused.
    fn assert_all_is_understood(&self, places: &BTreeMap<&str, Place>) {
        let packets = self.packets.lock().expect("nothing panics with it");
        let names = names(&packets, places);
        let announcing: BTreeSet<_> = names.values().copied().collect();
        assert!(announcing.iter().eq(places.keys()), "only {announcing:?} announce");
        for packet in packets.iter() {
            if packet.to_tracker {
                let request = Request::parse(&packet.bytes).expect("a request");
                if let Request::Announce(announce) = request {
                    let place = &places[names[&packet.client]];
                    assert_eq!(announce.info_hash, INFO_HASH.parse::<InfoHash>().expect("a constant"));
                    assert_eq!(announce.port, place.port);
                    assert!(announce.left == 0 || announce.event != AnnounceEvent::Completed);
                    assert!(announce.left <= FILE_LEN as u64);
                }
            } else {
                let response = Response::parse(&packet.bytes, Family::V4).expect("a response");
                assert!(!matches!(response, Response::Error(_)), "{}", response_in_words(&packet.bytes));
            }
        }
    }

    /// Writes the first request of each kind that each client sent to `dir/client-version/kind.bin`.
    fn keep(&self, places: &BTreeMap<&str, Place>, dir: &Path) {
        let packets = self.packets.lock().expect("nothing panics with it");
        let names = names(&packets, places);
        for packet in packets.iter().filter(|packet| packet.to_tracker) {
            let Some(name) = names.get(&packet.client) else { continue };
            let folder = dir.join(&places[name].label);
            fs::create_dir_all(&folder).expect("a folder that can be written to");
            let kind = match Request::parse(&packet.bytes).expect("a request") {
                Request::Connect(_) => "connect".to_owned(),
                Request::Announce(announce) => format!("announce-{}", announce.event),
                Request::Scrape(_) => "scrape".to_owned(),
            };
            let file = folder.join(format!("{kind}.bin"));
            if !file.exists() {
                fs::write(file, &packet.bytes).expect("a folder that can be written to");
            }
        }
    }
}

/// Whose packets come from which address: a client may use several, and not those it was told to, but its announces have
/// its peer id.
fn names<'a>(packets: &[Packet], places: &BTreeMap<&'a str, Place>) -> HashMap<SocketAddr, &'a str> {
    let announces = packets.iter().filter(|packet| packet.to_tracker).filter_map(|packet| {
        let Ok(Request::Announce(AnnounceRequest { peer_id, .. })) = Request::parse(&packet.bytes) else {
            return None;
        };
        let whose = |place: &Place| peer_id.as_bytes().starts_with(place.peer_id.as_bytes());
        let name = places.iter().find_map(|(&name, place)| whose(place).then_some(name));
        Some((packet.client, name.expect("a peer id that is known")))
    });
    announces.collect()
}

fn request_in_words(bytes: &[u8]) -> String {
    match Request::parse(bytes) {
        Ok(Request::Connect(_)) => "connect".into(),
        Ok(Request::Announce(announce)) => {
            let AnnounceRequest { event, left, port, want, .. } = announce;
            let want = want.map_or("default".into(), |want| want.to_string());
            let url_data = announce.options().map(|option| match option {
                AnnounceOption::UrlData(data) => format!(", URL data {}", String::from_utf8_lossy(data)),
                option => format!(", {option:?}"),
            });
            let options: String = url_data.collect();
            format!("announce {event}: left {left}, port {port}, want {want}{options}")
        }
        Ok(Request::Scrape(scrape)) => format!("scrape of {}", scrape.info_hashes().len()),
        Err(error) => format!("{error}: {bytes:02x?}"),
    }
}

fn response_in_words(bytes: &[u8]) -> String {
    match Response::parse(bytes, Family::V4) {
        Ok(Response::Connect(_)) => "connected".into(),
        Ok(Response::Announce(announce)) => {
            let peers: Vec<_> =
                announce.peers().map(|peer| peer.expect("no peer at port 0").to_string()).collect();
            let (seeders, leechers) = (announce.header.seeders, announce.header.leechers);
            format!("{seeders} seeders, {leechers} leechers, peers [{}]", peers.join(", "))
        }
        Ok(Response::Scrape(scrape)) => format!("{:?}", scrape.swarms().collect::<Vec<_>>()),
        Ok(Response::Error(error)) => format!("error: {}", String::from_utf8_lossy(error.message)),
        Err(error) => format!("{error}: {bytes:02x?}"),
    }
}
