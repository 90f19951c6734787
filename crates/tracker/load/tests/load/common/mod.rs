//! Trackers for load tests: the real one, and scripted ones that are wrong, slow or silent in a known way.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use swarmkeep_load::{Config, Error, Report, Target};
use swarmkeep_tests::{Tracker, any_port, build, listening};
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, AnnounceResponseHeader, ConnectRequest, ConnectResponse, ConnectionId, ErrorResponse,
    Request, ScrapeRequest, ScrapeResponse, ScrapeResponseWriter, ScrapeStats,
};

/// Asserts that no answer was wrong, and that all failures are requests of `rate` that a busy machine could
/// not send.
pub(crate) fn assert_only_unsent(report: &Report, rate: Option<f64>) {
    let is_unsent = |failure: &String| rate.is_some() && failure.starts_with("never sent");
    assert!(report.failures.keys().all(is_unsent), "{:?}", report.failures);
    assert_eq!(report.wrong, 0, "{:?}", report.wrong_answers);
}

/// The real tracker on the packed store, at work on 127.0.0.1 and ::1.
pub(crate) fn tracker() -> Tracker {
    let addresses = ["127.0.0.1", "::1"].map(any_port);
    Tracker::over(&listening(&addresses, &addresses), build("packed", |config| config))
}

/// A tracker that answers each request by a closure, in one thread.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    announces: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Sends back the packets that `script` answers.
    pub(crate) fn start(mut script: impl FnMut(&Request<'_>) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (announces, stop) = <(Arc<AtomicU32>, Arc<AtomicBool>)>::default();
        let (counted, stopped) = (Arc::clone(&announces), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut packet = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((len, source)) = socket.recv_from(&mut packet) else { continue };
                let request = Request::parse(&packet[..len]).expect("the generator sends requests");
                counted.fetch_add(matches!(request, Request::Announce(_)).into(), Ordering::Relaxed);
                for answer in script(&request) {
                    socket.send_to(&answer, source).unwrap();
                }
            }
        });
        Self { address, announces, stop, thread: Some(thread) }
    }

    pub(crate) fn target(&self) -> Target {
        Target::Udp(self.address)
    }

    /// The number of announces so far.
    pub(crate) fn announces(&self) -> u32 {
        self.announces.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().expect("the script does not panic");
        }
    }
}

/// The answer of a tracker without any other peer.
pub(crate) fn right(request: &Request<'_>) -> Vec<u8> {
    match request {
        Request::Connect(connect) => connected(connect, 7),
        Request::Announce(announce) => announced(announce, &[]),
        Request::Scrape(scrape) => scraped(scrape, scrape.info_hashes().len()),
    }
}

pub(crate) fn connected(connect: &ConnectRequest, id: u64) -> Vec<u8> {
    let mut out = [0; ConnectResponse::LEN];
    let connection_id = ConnectionId(id);
    ConnectResponse { transaction_id: connect.transaction_id, connection_id }.write(&mut out);
    out.to_vec()
}

/// An answer with these peers at 127.0.0.1, and the right counts.
pub(crate) fn announced(announce: &AnnounceRequest<'_>, ports: &[u16]) -> Vec<u8> {
    let count = ports.len() as u32 + 1;
    let transaction_id = announce.transaction_id;
    let head = AnnounceResponseHeader { transaction_id, interval: 1800, leechers: count, seeders: count };
    let mut out = vec![0; AnnounceResponseHeader::LEN];
    head.write(out.first_chunk_mut().unwrap());
    for port in ports {
        out.extend(Ipv4Addr::LOCALHOST.octets());
        out.extend(port.to_be_bytes());
    }
    out
}

pub(crate) fn scraped(scrape: &ScrapeRequest<'_>, swarms: usize) -> Vec<u8> {
    let mut out = [0; ScrapeResponse::MOST];
    let mut writer = ScrapeResponseWriter::new(scrape.transaction_id, &mut out);
    (0..swarms).for_each(|_| writer.push(ScrapeStats::default()));
    let len = writer.finish();
    out[..len].to_vec()
}

/// An error with this text.
pub(crate) fn refused(request: &Request<'_>, message: &[u8]) -> Vec<u8> {
    let transaction_id = match request {
        Request::Connect(connect) => connect.transaction_id,
        Request::Announce(announce) => announce.transaction_id,
        Request::Scrape(scrape) => scrape.transaction_id,
    };
    let mut out = [0; 64];
    let len = ErrorResponse { transaction_id, message }.write(&mut out);
    out[..len].to_vec()
}

/// An HTTP tracker that answers the path and query of each request by a closure, each connection in its own
/// thread.
pub(crate) struct HttpFake {
    pub(crate) address: SocketAddr,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicU32,
    pipelined: AtomicUsize,
}

impl HttpFake {
    /// `script` receives the path and the query, and returns all bytes of the answer. No bytes end the
    /// connection.
    pub(crate) fn start(script: impl FnMut(&str, &str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (counts, stop) = <(Arc<Counts>, Arc<AtomicBool>)>::default();
        let (counted, stopped) = (Arc::clone(&counts), Arc::clone(&stop));
        let script = Arc::new(Mutex::new(script));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                counted.connections.fetch_add(1, Ordering::Relaxed);
                let (script, counted) = (Arc::clone(&script), Arc::clone(&counted));
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let _ = serve(stream, &counted, |path, query| (script.lock().unwrap())(path, query));
                });
            }
        });
        Self { address, counts, stop, thread: Some(thread) }
    }

    pub(crate) fn target(&self) -> Target {
        format!("http://{}/announce", self.address).parse().unwrap()
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u32 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// The number of requests for a client that a proxy names, with another one behind.
    pub(crate) fn pipelined(&self) -> usize {
        self.counts.pipelined.load(Ordering::Relaxed)
    }
}

fn serve(
    stream: TcpStream,
    counts: &Counts,
    mut script: impl FnMut(&str, &str) -> Vec<u8>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let url = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut is_named = false;
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            is_named |= line == "X-Forwarded-For: 127.0.0.1\r\n";
        }
        let is_behind = is_named && !reader.buffer().is_empty();
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.pipelined.fetch_add(is_behind.into(), Ordering::Relaxed);
        let (path, query) = url.split_once('?').unwrap_or((&url, ""));
        let answer = script(path, query);
        stream.write_all(&answer)?;
        if answer.is_empty() || answer.windows(17).any(|bytes| bytes == b"Connection: close") {
            return Ok(());
        }
    }
}

impl Drop for HttpFake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener up.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub(crate) const A_MINUTE: Duration = Duration::from_secs(60);

/// A short run without warm-up: 4 workers on one thread.
pub(crate) fn config(target: Target) -> Config {
    let mut config = Config::new([target]);
    (config.workers, config.threads, config.timeout) = (4, Some(1), A_MINUTE);
    (config.duration, config.warm_up) = (Duration::from_millis(300), Duration::ZERO);
    config
}

pub(crate) fn run(config: &Config) -> Report {
    swarmkeep_load::run(config, &mut |_| {}).expect("a report")
}

/// Runs until `enough` holds, a minute at most.
pub(crate) fn run_until(config: &Config, enough: impl Fn() -> bool + Sync) -> Report {
    let (mut config, stop) = (config.clone(), AtomicBool::new(false));
    config.duration = A_MINUTE;
    thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !enough() && began.elapsed() < config.duration {
                thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
        });
        loop {
            match swarmkeep_load::run_until(&config, &stop, &mut |_| {}) {
                // A busy machine may answer no connect within a short time-out.
                Err(Error::NoAnswer(_)) if !stop.load(Ordering::Relaxed) => {}
                report => break report.expect("a report"),
            }
        }
    })
}
