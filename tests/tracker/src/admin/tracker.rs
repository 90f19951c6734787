//! A tracker in this process, with an admin server, and clients that announce to it.
#![expect(missing_docs, reason = "read by tests only")]

use std::{
    cell::RefCell,
    net::SocketAddr,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use swarmkeep::{AnnounceEvent, InfoHash, PeerId, catalog::Repository};
use swarmkeep_kit::folder::Simulated;
use swarmkeep_state::{Pace, State};
use swarmkeep_store_tests::{until, with};
use swarmkeep_tracker::{Config, Metrics, Scope, Server, Token};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectionId};

use super::client::get;
use crate::{build, listening, udp::Client};

/// May do everything.
pub const ALL: &str = "secret-for-everything";
/// May only read.
pub const READ: &str = "secret-for-reading-only";
/// May only change things.
pub const WRITE: &str = "secret-for-writing-only";

/// A tracker that runs until it is dropped.
pub struct Tracker {
    pub admin: SocketAddr,
    pub udp: SocketAddr,
    pub metrics: Arc<Metrics>,
    running: Option<crate::Tracker>,
}

/// The common configuration of the tests' trackers.
pub fn config() -> Config {
    let local: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let tokens = [(ALL, &Scope::ALL[..]), (READ, &[Scope::Read]), (WRITE, &[Scope::Write])];
    with(listening(&[local], &[]), |config| {
        config.udp_workers = NonZero::new(1);
        config.admin = Some(local);
        config.repository_name = Some("packed".into());
        config.store_limit = Some(1 << 30);
        config.admin_tokens =
            tokens.map(|(secret, scopes)| Token::new(secret, scopes).expect("long enough")).into();
    })
}

pub fn packed() -> Repository {
    build("packed", |config| config)
}

/// The state that outlives a restart, on a disk that fails on demand, and its first snapshot.
pub fn state(disk: &Simulated) -> Arc<State> {
    let state = State::new(packed(), Pace::default());
    let clock = Arc::new(swarmkeep_tracker::now);
    state.open(Arc::new(disk.clone()), Some(Duration::from_secs(600)), clock).expect("an empty disk");
    state.snapshot().expect("room");
    Arc::new(state)
}

impl Tracker {
    pub fn over(repository: Repository) -> Self {
        Self::with(&config(), repository)
    }

    pub fn with(config: &Config, repository: Repository) -> Self {
        Self::run(Server::bind(config, repository).expect("loopback"))
    }

    /// A tracker that keeps its store over restarts.
    pub fn keeping(state: &Arc<State>) -> Self {
        let server = Server::bind(&config(), state.repository()).expect("loopback");
        server.control().metrics.watch_state(Arc::clone(state));
        Self::run(server)
    }

    fn run(server: Server) -> Self {
        let admin = server.admin_address().expect("bound").expect("configured");
        let running = crate::Tracker::of(server);
        let (udp, metrics) = (running.udp[0], Arc::clone(&running.control.metrics));
        // Until its threads work, and the store has answered.
        until("it starts", || !get(admin, "/health/ready").text().contains("starting"));
        Self { admin, udp, metrics, running: Some(running) }
    }

    /// Tells it to stop, and waits until it has.
    pub fn stop(&mut self) {
        drop(self.running.take());
    }

    pub fn announcer(&self) -> Announcer {
        Announcer::of(self.udp)
    }
}

/// A client over UDP, which announces one peer per port.
pub struct Announcer(RefCell<(Client, ConnectionId)>);

impl Announcer {
    pub fn of(tracker: SocketAddr) -> Self {
        Self(RefCell::new(Client::of(tracker).connected()))
    }

    pub fn announce(&self, info_hash: InfoHash, port: u16, left: u64, event: AnnounceEvent) {
        let (client, id) = &mut *self.0.borrow_mut();
        let peer_id = PeerId::new(*b"-TR4060-not-a-label-");
        let request =
            |id| AnnounceRequest { left, event, ..AnnounceRequest::new(id, info_hash, peer_id, port) };
        let answer = client.try_announce(request(*id));
        // On a busy machine, the latest announce may be minutes ago.
        if answer.is_err_and(|error| error == "invalid connection id") {
            *id = client.connect();
            client.announce(request(*id));
        }
    }
}

/// Announces until it is dropped, each time another peer of another torrent.
pub struct AnnounceLoad {
    stop: Arc<AtomicBool>,
    running: Option<JoinHandle<()>>,
}

impl AnnounceLoad {
    /// Announces to `torrents` torrents, some far busier than others.
    pub fn on(tracker: &Tracker, torrents: u32) -> Self {
        let (announcer, stop) = (tracker.announcer(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let running = thread::spawn(move || {
            let mut n = 0u32;
            while !stopped.load(Relaxed) {
                n = n.wrapping_add(1);
                // Squared, so that some torrents are far busier than others.
                let at = n.wrapping_mul(2_654_435_761) >> 16;
                let torrent = (((at * at) >> 16) * torrents) >> 16;
                let event =
                    if n.is_multiple_of(7) { AnnounceEvent::Completed } else { AnnounceEvent::Started };
                let left = u64::from(!n.is_multiple_of(7) && !n.is_multiple_of(3));
                announcer.announce(hash(torrent), 1024 + (n % 50_000) as u16, left, event);
                if n.is_multiple_of(64) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Self { stop, running: Some(running) }
    }
}

impl Drop for AnnounceLoad {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(running) = self.running.take() {
            drop(running.join());
        }
    }
}

/// The nth torrent.
pub fn hash(n: u32) -> InfoHash {
    let [a, b, c, d] = n.wrapping_mul(2_654_435_761).to_be_bytes();
    InfoHash::new(std::array::from_fn(|at| [a, b, c, d][at % 4].wrapping_add((at as u8).wrapping_mul(37))))
}
