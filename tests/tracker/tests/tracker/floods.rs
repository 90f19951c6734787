//! All floods of strangers at once, on the program at its defaults, for `SWARMKEEP_FLOOD_SECS` seconds.

use std::{
    collections::VecDeque,
    env,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{AnnounceEvent, InfoHash, Random as _, SplitMix64};
use swarmkeep_tests::{
    admin::client::get,
    http,
    https::{self, CertificateAuthority},
    serve::{Serve, program, swarmkeep},
    udp::{self, announce},
};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectionId};

/// Without the floods, for comparison.
const QUIET: Duration = Duration::from_secs(20);

/// Until the store is full.
const FILLING: Duration = Duration::from_secs(100);

/// How many addresses announce made-up torrents, each as often as it may.
const ADDRESSES: u8 = 200;

#[test]
#[ignore = "takes minutes, and prints figures of docs/operate/security.md: `.ci/long soak`"]
fn under_all_floods_memory_has_its_bound_and_neighbours_are_served() {
    let secs =
        env::var("SWARMKEEP_FLOOD_SECS").map_or(150, |secs| secs.parse().expect("a number of seconds"));
    let authority = CertificateAuthority::new();
    let mut command = swarmkeep(&program(), "serve");
    // A limit that the flood reaches, and the limits that loopback addresses do not have by default.
    command.args(["--max-bytes=32MiB", "--unlimited=192.0.2.1"]);
    command.args(["--udp=127.0.0.1:0", "--http=127.0.0.1:0", "--https=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    command.args(authority.options());
    let serve = Serve::start(command);
    let at = ["udp", "https", "dashboard"].map(|protocol| serve.address(protocol));
    let neighbours = Neighbours::default();
    let (quiet, enough) = (AtomicBool::new(true), AtomicBool::new(false));
    let sent = FloodCounts::default();

    let (quietly, resident) = thread::scope(|scope| {
        scope.spawn(|| neighbours.announce(at[0], &enough));
        scope.spawn(|| neighbours.announce_over_https(at[1], &authority, &enough));
        scope.spawn(|| neighbours.ask_for_health(at[2], &enough));
        scope.spawn(|| sent.made_up(at[0], &quiet, &enough));
        let hello = authority.hello();
        let sent = &sent;
        scope.spawn({
            let (quiet, enough) = (&quiet, &enough);
            move || sent.connections(at[1], 3, &hello, quiet, enough)
        });
        scope.spawn(|| sent.connections(at[2], 4, b"", &quiet, &enough));

        thread::sleep(QUIET);
        let quietly = neighbours.take();
        quiet.store(false, Relaxed);
        let (mut resident, began) = (Vec::new(), Instant::now());
        while began.elapsed() < Duration::from_secs(secs) {
            thread::sleep(Duration::from_secs(1));
            if began.elapsed() > FILLING {
                resident.push(serve.resident_kb());
            }
        }
        enough.store(true, Relaxed);
        (quietly, resident)
    });

    let flooded = neighbours.take();
    let [announces, handshakes, silent] =
        [&sent.announces, &sent.handshakes, &sent.silent].map(|n| n.load(Relaxed));
    println!(
        "{announces} announces of made-up torrents, {handshakes} handshakes, {silent} silent connections in {secs} s"
    );
    for (n, name) in ["UDP announce", "HTTPS handshake and announce", "health check"].iter().enumerate() {
        println!("{name}: {} without floods, {} with", percentiles(&quietly[n]), percentiles(&flooded[n]));
    }
    let (least, most) = (*resident.iter().min().expect("samples"), *resident.iter().max().expect("samples"));
    println!("resident: {least} to {most} KiB, of which 32 MiB are the store's");
    let [udp, https, health] = [0, 1, 2].map(|n| flooded[n].len() as u64);
    assert!(announces > 100 * udp && handshakes > 4 * https && silent > 4 * health, "floods");
    assert!(most < 96 << 10 && most - least < 8 << 10, "{resident:?}");
    let quiet = quietly.iter().map(|times| percentile(times, 99)).max().expect("three kinds");
    for (n, times) in flooded.iter().enumerate() {
        let p99 = percentile(times, 99);
        assert!(p99 < 8 * quiet, "{n}: {p99:?}, at most {quiet:?} without floods");
    }
}

/// The times that neighbours waited for answers: over UDP, over HTTPS, for health.
#[derive(Default)]
struct Neighbours([Mutex<Vec<Duration>>; 3]);

impl Neighbours {
    fn time(&self, n: usize, enough: &AtomicBool, pause: Duration, mut ask: impl FnMut()) {
        while !enough.load(Relaxed) {
            let asked = Instant::now();
            ask();
            self.0[n].lock().expect("no thread panics").push(asked.elapsed());
            thread::sleep(pause);
        }
    }

    fn announce(&self, tracker: SocketAddr, enough: &AtomicBool) {
        let mut client = udp::Client::of(tracker);
        self.time(0, enough, Duration::from_millis(20), || {
            let id = client.connection_id();
            client.announce(AnnounceRequest { event: AnnounceEvent::None, ..announce(id) });
        });
    }

    fn announce_over_https(&self, to: SocketAddr, authority: &CertificateAuthority, enough: &AtomicBool) {
        let config = authority.client();
        self.time(1, enough, Duration::from_millis(200), || {
            https::Client::over_tls(to, &config).peers(&http::announce(1));
        });
    }

    fn ask_for_health(&self, admin: SocketAddr, enough: &AtomicBool) {
        self.time(2, enough, Duration::from_millis(100), || {
            assert_eq!(get(admin, "/health/ready").status, 200);
        });
    }

    fn take(&self) -> [Vec<Duration>; 3] {
        [0, 1, 2].map(|n| {
            let mut times = std::mem::take(&mut *self.0[n].lock().expect("no thread panics"));
            times.sort_unstable();
            times
        })
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[sorted.len() * percent / 100]
}

fn percentiles(sorted: &[Duration]) -> String {
    let [half, most] = [50, 99].map(|percent| percentile(sorted, percent).as_secs_f64() * 1e3);
    format!("p50 {half:.2} ms, p99 {most:.2} ms of {}", sorted.len())
}

/// The numbers of packets and connections from strangers.
#[derive(Default)]
struct FloodCounts {
    announces: AtomicU64,
    handshakes: AtomicU64,
    silent: AtomicU64,
}

impl FloodCounts {
    /// Made-up torrents from many addresses.
    fn made_up(&self, tracker: SocketAddr, quiet: &AtomicBool, enough: &AtomicBool) {
        let mut rng = SplitMix64::new(1);
        let mut sources: Vec<_> =
            (0..ADDRESSES).map(|n| udp::Client::at(Ipv4Addr::new(127, 2, n, 1).into(), tracker)).collect();
        let (mut ids, mut connected) = (Vec::<ConnectionId>::new(), Instant::now());
        let mut answer = [0; 2048];
        let drain = |socket: &UdpSocket, answer: &mut [u8]| while socket.recv(answer).is_ok() {};
        while !enough.load(Relaxed) {
            if quiet.load(Relaxed) {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            if ids.is_empty() || connected.elapsed() > Duration::from_secs(60) {
                // Answers to earlier announces are not counted.
                ids = sources
                    .iter_mut()
                    .map(|source| {
                        source.socket.set_nonblocking(true).expect("a socket");
                        drain(&source.socket, &mut answer);
                        source.socket.set_nonblocking(false).expect("a socket");
                        let id = source.connect();
                        source.socket.set_nonblocking(true).expect("a socket");
                        id
                    })
                    .collect();
                connected = Instant::now();
            }
            let round = Instant::now();
            for (source, &id) in sources.iter().zip(&ids) {
                let mut info_hash = [0; 20];
                info_hash.chunks_mut(8).for_each(|chunk| {
                    let word = rng.next_u64().to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                });
                let request = AnnounceRequest { info_hash: InfoHash::new(info_hash), ..announce(id) };
                if source.socket.send(&request.to_vec()).is_ok() {
                    self.announces.fetch_add(1, Relaxed);
                }
                drain(&source.socket, &mut answer);
            }
            // As often as each address may.
            thread::sleep(Duration::from_millis(10).saturating_sub(round.elapsed()));
        }
    }

    /// Connections that send `first` and nothing more, from many addresses.
    fn connections(
        &self,
        to: SocketAddr,
        network: u8,
        first: &[u8],
        quiet: &AtomicBool,
        enough: &AtomicBool,
    ) {
        let made = if first.is_empty() { &self.silent } else { &self.handshakes };
        let mut open: VecDeque<TcpStream> = VecDeque::new();
        for n in 0_u32.. {
            if enough.load(Relaxed) {
                return;
            }
            if quiet.load(Relaxed) {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            let from = IpAddr::V4(Ipv4Addr::new(127, network, (n % 250) as u8, 1));
            if let Ok(mut stream) = http::connect(from, to)
                && stream.write_all(first).is_ok()
            {
                made.fetch_add(1, Relaxed);
                open.push_back(stream);
            }
            if open.len() > 300 {
                open.pop_front();
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
