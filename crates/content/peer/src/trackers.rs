//! A torrent's announces to its trackers: tiers (BEP 12), over UDP (BEP 15, 41) and HTTP (BEP 3, 7, 23, 24,
//! 31), in both address families.
//!
//! [`Trackers`] is the list of one torrent; one [`TrackerClient`] serves all torrents of a process. Each
//! address family goes through the tiers on its own. A tracker that has an IPv4 and an IPv6 address gets an
//! announce at both, and the peers of both families are found. A torrent with two info hashes (BEP 52,
//! hybrids) has two lists.
//!
//! The cost of a tracker is bounded: bytes and seconds per answer, and announces no more often than
//! [`shortest_interval`](TrackersOptions::shortest_interval) allows. Everything that it sends is checked
//! before it is shown or passed on.
//!
//! ```no_run
//! use swarmkeep_peer::trackers::{ClientOptions, TrackerClient, Trackers, TrackersOptions};
//! use swarmkeep_peer::trackers::{Identity, Progress};
//! # use swarmkeep_bittorrent::{InfoHash, PeerId};
//! # async fn example(info_hash: InfoHash, peer_id: PeerId) -> std::io::Result<()> {
//! let client = TrackerClient::new(ClientOptions::new())?;
//! let identity = Identity { info_hash, peer_id, ports: [6881; 2], key: 7 };
//! let tiers = [["udp://tracker.example:6969/announce"]];
//! let trackers = Trackers::new(&tiers, identity, client, &TrackersOptions::new());
//! let (found, mut peers) = tokio::sync::mpsc::channel(16);
//! let handle = trackers.spawn(|| Progress { left: 1 << 30, ..Progress::default() }, found);
//! for (url, error) in handle.refused() {
//!     eprintln!("{url}: {error}");
//! }
//! let first = peers.recv().await;
//! handle.stop().await;
//! # Ok(())
//! # }
//! ```

mod announce;
mod client;
mod http;
mod options;
mod resolve;
mod tls;
mod turns;
mod udp;
mod url;
mod walk;

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use swarmkeep_bittorrent::{AnnounceEvent, Endpoint, Family};
use swarmkeep_metainfo::MOST_TRACKERS;
use tokio::{
    sync::{Notify, mpsc},
    task::{JoinError, JoinHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tracing::debug;

use self::{
    announce::{Announce, Answer, MOST_PEERS},
    url::TrackerUrl,
    walk::{Failure, NextStep, Walk, shuffled},
};
pub use self::{
    announce::{Identity, LatestAnswer, Progress, Retry, TrackerError},
    client::TrackerClient,
    options::ClientOptions,
    url::UrlError,
};

/// How a torrent announces. Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TrackersOptions {
    /// The shortest time between an answer of a tracker and the next announce to it, whatever interval it
    /// asks for; at most two hours. Only `completed` and `stopped` are sent sooner.
    pub shortest_interval: Duration,
    /// The time that passes before the next announce to a tracker that failed once. It doubles with each
    /// failure in a row, up to an hour. Up to half of it is subtracted at random.
    pub first_back_off: Duration,
    /// For how long [`stop`](TrackersHandle::stop) waits for trackers in all.
    pub stop_patience: Duration,
}

impl TrackersOptions {
    /// For trackers on the Internet: announces to a tracker of every tier, a minute to two hours after an
    /// answer, 30 seconds after the first failure; a stop waits for 5 seconds.
    pub const fn new() -> Self {
        Self {
            shortest_interval: Duration::from_secs(60),
            first_back_off: Duration::from_secs(30),
            stop_patience: Duration::from_secs(5),
        }
    }
}

impl Default for TrackersOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The trackers of one torrent, before they are announced to.
#[derive(Debug)]
pub struct Trackers {
    listed: Vec<ListedTracker>,
    walks: [Walk; 2],
    refused: Vec<(String, UrlError)>,
    identity: Identity,
    client: TrackerClient,
    options: TrackersOptions,
}

#[derive(Debug)]
struct ListedTracker {
    url: TrackerUrl,
    /// By family.
    results: [FamilyResults; 2],
}

/// The latest results of one tracker over one family.
#[derive(Debug, Default)]
struct FamilyResults {
    address: Option<SocketAddr>,
    latest: Option<LatestAnswer>,
    error: Option<TrackerError>,
    tracker_id: Option<Vec<u8>>,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Peers of a tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The number of the tracker in the list of the torrent, as in [`TrackersHandle::status`].
    pub tracker: usize,
    /// Its peers, in its order; the client's own endpoint may be among them.
    pub peers: Vec<Endpoint>,
}

/// How long `stopped` is tried at a tracker that has not answered `started`. It may have counted it, but a
/// stop should not wait long for a tracker that does not answer.
const DOUBTFUL: Duration = Duration::from_secs(1);

impl Trackers {
    /// Takes the tiers of a torrent in their order; within a tier, trackers are shuffled (BEP 12). URLs that
    /// cannot be used are left out and listed in [`refused`](TrackersHandle::refused). The list may be empty.
    pub fn new<T, U>(
        tiers: impl IntoIterator<Item = T>,
        identity: Identity,
        client: TrackerClient,
        options: &TrackersOptions,
    ) -> Self
    where
        T: IntoIterator<Item = U>,
        U: AsRef<str>,
    {
        let (mut listed, mut refused, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut order = Vec::new();
        for urls in tiers {
            let mut of_tier = Vec::new();
            for url in urls {
                let text = url.as_ref();
                let parsed = TrackerUrl::parse(text).and_then(|url| match () {
                    () if !seen.insert(url.clone()) => Err(UrlError::Twice),
                    () if listed.len() == MOST_TRACKERS => Err(UrlError::TooMany),
                    () => Ok(url),
                });
                match parsed {
                    Ok(url) => {
                        of_tier.push(listed.len());
                        listed.push(ListedTracker { url, results: Default::default() });
                    }
                    // Bounded as the others are, so that an endless list costs no more.
                    Err(error) if refused.len() < MOST_TRACKERS => {
                        refused.push((announce::readable(text.as_bytes()), error));
                    }
                    Err(_) => {}
                }
            }
            order.push(of_tier);
        }
        let order = shuffled(order, &mut rand::rng());
        let now = Instant::now();
        let walks = FAMILIES.map(|_| Walk::new(&order, *options, now));
        Self { listed, walks, refused, identity, client, options: *options }
    }

    /// Begins to announce, in a task. `progress` is called at each announce and must not block. Peers go to
    /// `found` as they come. If the receiver is slow, they come in larger portions; peers of a tracker beyond
    /// 1,000 that wait are dropped.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn spawn(
        self,
        progress: impl Fn() -> Progress + Send + 'static,
        found: mpsc::Sender<Found>,
    ) -> TrackersHandle {
        let Self { listed, walks, refused, identity, client, options } = self;
        let state = AnnounceState { listed, walks, is_stopping: false };
        let shared = Arc::new(AnnounceControl { state: Mutex::new(state), changed: Notify::new() });
        let announcer = Announcer {
            shared: Arc::clone(&shared),
            client,
            identity,
            progress,
            asking: JoinSet::new(),
            options,
        };
        TrackersHandle { shared, refused, task: tokio::spawn(announcer.run(found)) }
    }
}

/// The announces of a running torrent. Dropping it ends them without notice to the trackers;
/// [`stop`](Self::stop) notifies them.
#[derive(Debug)]
pub struct TrackersHandle {
    shared: Arc<AnnounceControl>,
    refused: Vec<(String, UrlError)>,
    task: JoinHandle<()>,
}

/// The state of a tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrackerStatus {
    /// Its URL, with the passkey if there is one in it.
    pub url: String,
    /// Over IPv4.
    pub v4: FamilyStatus,
    /// Over IPv6.
    pub v6: FamilyStatus,
}

/// The state of a tracker over one family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyStatus {
    /// Its address at the latest announce.
    pub address: Option<SocketAddr>,
    /// Whether an announce is under way.
    pub is_asking: bool,
    /// Whether it has accepted the `started`.
    pub is_started: bool,
    /// Its latest good answer.
    pub latest: Option<LatestAnswer>,
    /// The number of failures since then.
    pub failures: u32,
    /// The latest failure, if it came after the latest good answer.
    pub error: Option<TrackerError>,
    /// The time until its next announce; `None` while one is under way, while another tracker comes first, or
    /// if there will be none.
    pub next_in: Option<Duration>,
}

impl TrackersHandle {
    /// Sends `completed` at once to the trackers that accepted `started`. Does nothing if called again, or
    /// for a torrent that was complete at its start. `left` must be 0 before the call: `completed` is not
    /// sent while something is left.
    pub fn completed(&self) {
        self.tell(|state| state.walks.iter_mut().for_each(Walk::complete));
    }

    /// The URLs that were left out of the list, and why; the first 256.
    pub fn refused(&self) -> &[(String, UrlError)] {
        &self.refused
    }

    /// The state of each tracker, in the order of the torrent.
    pub fn status(&self) -> Vec<TrackerStatus> {
        let now = Instant::now();
        let state = self.shared.state.lock();
        let status = |(nth, listed): (usize, &ListedTracker)| {
            let [v4, v6] = [0, 1].map(|family: usize| {
                let (tracker, next) = state.walks[family].state(nth, now)?;
                Some(listed.results[family].status(tracker, next, now))
            });
            Some(TrackerStatus { url: listed.url.to_string(), v4: v4?, v6: v6? })
        };
        state.listed.iter().enumerate().filter_map(status).collect()
    }

    /// Ends the announces, and sends `stopped` to all trackers that accepted `started`; before it
    /// `completed`, if that was not sent yet. Takes at most 5 seconds, or the time of
    /// [`stop_patience`](TrackersOptions::stop_patience).
    pub async fn stop(mut self) {
        self.tell(|state| state.is_stopping = true);
        if let Err(error) = (&mut self.task).await {
            pass_on(error);
        }
    }

    fn tell(&self, what: impl FnOnce(&mut AnnounceState)) {
        what(&mut self.shared.state.lock());
        self.shared.changed.notify_one();
    }
}

impl Drop for TrackersHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FamilyResults {
    fn status(&self, tracker: &walk::TrackerState, next: Option<Instant>, now: Instant) -> FamilyStatus {
        FamilyStatus {
            address: self.address,
            is_asking: tracker.under_way.is_some(),
            is_started: tracker.started,
            latest: self.latest.clone(),
            failures: tracker.failures,
            error: self.error.clone(),
            next_in: next.map(|next| next.saturating_duration_since(now)),
        }
    }
}

/// The state that the handle and the task share.
#[derive(Debug)]
struct AnnounceControl {
    state: Mutex<AnnounceState>,
    changed: Notify,
}

#[derive(Debug)]
struct AnnounceState {
    listed: Vec<ListedTracker>,
    /// By family.
    walks: [Walk; 2],
    is_stopping: bool,
}

/// The task of one torrent.
struct Announcer<P> {
    shared: Arc<AnnounceControl>,
    client: TrackerClient,
    identity: Identity,
    progress: P,
    asking: JoinSet<AnnounceResult>,
    options: TrackersOptions,
}

struct AnnounceResult {
    tracker: usize,
    family: usize,
    address: Option<SocketAddr>,
    answer: Result<Answer, TrackerError>,
}

impl<P: Fn() -> Progress + 'static> Announcer<P> {
    async fn run(mut self, found: mpsc::Sender<Found>) {
        let mut waiting = BTreeMap::new();
        while !self.shared.state.lock().is_stopping {
            let next = self.ask();
            let due = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.changed.notified() => {}
                Some(result) = self.asking.join_next() => match result {
                    Ok(result) => self.note(result, &mut waiting),
                    Err(error) => pass_on(error),
                },
                () = due => {}
                room = found.reserve(), if !waiting.is_empty() => {
                    // If the receiver is gone, announces go on: other peers look for this one.
                    if let (Some((tracker, peers)), Ok(room)) = (waiting.pop_first(), room) {
                        room.send(Found { tracker, peers });
                    }
                }
            }
        }
        self.take_leave().await;
    }

    /// Begins all announces that are due; returns when the next one is.
    fn ask(&mut self) -> Option<Instant> {
        let now = Instant::now();
        // Before the lock: `progress` may call `status`.
        let progress = (self.progress)();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.lock();
        let mut next: Option<Instant> = None;
        for family in 0..FAMILIES.len() {
            loop {
                match state.walks[family].step(now, progress.left > 0) {
                    NextStep::Ask(tracker, event) => {
                        // How many peers it names is left to the tracker.
                        self.asking.spawn(self.announce(&state, (tracker, family), event, None, progress));
                    }
                    NextStep::Wait(until) => {
                        next = next.into_iter().chain(until).min();
                        break;
                    }
                }
            }
        }
        next
    }

    fn announce(
        &self,
        state: &AnnounceState,
        (tracker, family): (usize, usize),
        event: AnnounceEvent,
        want: Option<u32>,
        progress: Progress,
    ) -> impl Future<Output = AnnounceResult> + use<P> {
        let (client, identity) = (self.client.clone(), self.identity);
        let listed = &state.listed[tracker];
        let (url, tracker_id) = (listed.url.clone(), listed.results[family].tracker_id.clone());
        let failures = state.walks[family].state(tracker, Instant::now()).map_or(0, |state| state.0.failures);
        async move {
            let (port, tracker_id) = (identity.ports[family], tracker_id.as_deref());
            let announce = Announce { identity, port, progress, event, want, tracker_id };
            let (address, answer) = client.announce(&url, FAMILIES[family], failures, &announce).await;
            match &answer {
                Ok(answer) => debug!(%url, ?address, ?event, peers = answer.peers.len(), "announced"),
                Err(error) => debug!(%url, ?address, ?event, %error, "not announced"),
            }
            AnnounceResult { tracker, family, address, answer }
        }
    }

    /// Records the result of an announce, and adds its peers to `waiting`.
    fn note(&self, result: AnnounceResult, waiting: &mut BTreeMap<usize, Vec<Endpoint>>) {
        let AnnounceResult { tracker, family, address, answer } = result;
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let AnnounceState { listed, walks, .. } = &mut *state;
        let (results, walk) = (&mut listed[tracker].results[family], &mut walks[family]);
        results.address = address.or(results.address);
        match answer {
            Ok(answer) => {
                let Answer { mut latest, peers, tracker_id } = answer;
                walk.answered(tracker, latest.interval, latest.min_interval, now);
                latest.peers = peers.len();
                let waiting = waiting.entry(tracker).or_default();
                waiting.extend(peers.into_iter().take(MOST_PEERS.saturating_sub(waiting.len())));
                // Without a new one, the old one stays good (BEP 3).
                results.tracker_id = tracker_id.or(results.tracker_id.take());
                (results.error, results.latest) = (None, Some(latest));
            }
            Err(error) => {
                let why = match &error {
                    TrackerError::NoAddress(_) | TrackerError::NoFamily(_) => Failure::Absent,
                    TrackerError::Refused { retry: Some(Retry::Never), .. } => Failure::Never,
                    TrackerError::Refused { retry: Some(Retry::After(wait)), .. } => {
                        Failure::Again(Some(*wait))
                    }
                    TrackerError::Status { retry, .. } => Failure::Again(*retry),
                    _ => Failure::Again(None),
                };
                results.error = Some(error);
                walk.failed(tracker, why, now, &mut rand::rng());
            }
        }
    }

    /// Sends `stopped` to each tracker that accepted a `started`, or may have; before it `completed` to each
    /// that has not got it. At most half of the patience is for the latter.
    async fn take_leave(mut self) {
        let TrackersOptions { stop_patience, .. } = self.options;
        let (until, half) = (Instant::now() + stop_patience, stop_patience / 2);
        let told = timeout(half, self.completed_is_announced()).await;
        // A tracker that has not answered may have counted it: a second one would count twice.
        let in_doubt = told.is_err();
        self.asking.shutdown().await;
        let progress = (self.progress)();
        let shared = Arc::clone(&self.shared);
        {
            let state = shared.state.lock();
            for (family, walk) in state.walks.iter().enumerate() {
                for tracker_state in walk.states() {
                    let patience = until.saturating_duration_since(Instant::now());
                    let patience = match tracker_state.under_way {
                        _ if tracker_state.started => patience,
                        Some((AnnounceEvent::Started, _)) => DOUBTFUL.min(patience),
                        _ => continue,
                    };
                    let tracker = tracker_state.tracker;
                    let tell = |event| self.announce(&state, (tracker, family), event, Some(0), progress);
                    let is_asked = in_doubt && tracker_state.knows_of_completion();
                    let owes_completed = walk.owes_completed(tracker_state, progress.left > 0) && !is_asked;
                    let completed = owes_completed.then(|| tell(AnnounceEvent::Completed));
                    let stopped = tell(AnnounceEvent::Stopped);
                    self.asking.spawn(async move {
                        let answer = Err(TrackerError::Silent);
                        let late = AnnounceResult { tracker, family, address: None, answer };
                        let both = async {
                            if let Some(completed) = completed {
                                let _ = timeout(half, completed).await;
                            }
                            stopped.await
                        };
                        timeout(patience, both).await.unwrap_or(late)
                    });
                }
            }
        }
        while let Some(result) = self.asking.join_next().await {
            result.map_or_else(pass_on, drop);
        }
    }

    /// Waits for `completed` announces that are under way, and records the results that are there.
    async fn completed_is_announced(&mut self) {
        let is_telling = |shared: &AnnounceControl| {
            let state = shared.state.lock();
            state.walks.iter().flat_map(Walk::states).any(walk::TrackerState::knows_of_completion)
        };
        loop {
            let result = match self.asking.try_join_next() {
                Some(result) => result,
                None if is_telling(&self.shared) => match self.asking.join_next().await {
                    Some(result) => result,
                    None => return,
                },
                None => return,
            };
            match result {
                Ok(result) => self.note(result, &mut BTreeMap::new()),
                Err(error) => pass_on(error),
            }
        }
    }
}

/// A task of this module has panicked, which is a mistake in here, or it was ended with the runtime.
fn pass_on(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}
