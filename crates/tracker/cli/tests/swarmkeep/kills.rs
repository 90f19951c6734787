//! The tracker under load, killed at random moments, also while it writes a snapshot, and started again: it
//! has kept the announces that it promised to keep.
//!
//! For many kills: `KILLS=1000 cargo test --release -p swarmkeep-cli --test swarmkeep kills:: --
//! --nocapture`; `KILLS_SEED` for other ones.

use std::{
    collections::HashMap,
    env,
    io::{Write as _, stderr},
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::common::{A_MINUTE, Serve, logged_at, start, state::metrics_show, swarmkeep, took};
use swarmkeep::{AnnounceEvent, InfoHash, Random as _, SplitMix64};
use swarmkeep_state::{Directory, Downloads};
use swarmkeep_tests::udp::{Client, announce};
use swarmkeep_tracker_protocol::{
    bittorrent::Family,
    udp::{AnnounceRequest, ConnectionId, Response, ScrapeRequest, ScrapeStats, TransactionId},
};

/// Enough swarms that writing a snapshot takes a while. Each has one peer, so that a scrape shows its state.
const SWARMS: usize = 50_000;
/// The swarms of most announces: their peers start, complete and stop within one life of the tracker.
const BUSY: usize = 2_000;
const SCRAPED: usize = 70;

#[test]
fn answered_announces_outlive_kills_at_any_moment() {
    let kills = env::var("KILLS").map_or(8, |kills| kills.parse().expect("a number of kills"));
    let seed = env::var("KILLS_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let folder =
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder can be made");
    let mut test = KillTest::new(seed);
    let began = Instant::now();
    are_known(folder.path());

    let tracker = KilledTracker::start(folder.path(), &mut test);
    test.fill(&tracker);
    test.stop(tracker);
    let mut tracker = KilledTracker::start(folder.path(), &mut test);
    test.check(&tracker);
    for kill in 1..=kills {
        test.live_and_die(tracker, folder.path());
        if test.rng.next_u64().is_multiple_of(10) {
            test.die_early(folder.path());
        }
        tracker = KilledTracker::start(folder.path(), &mut test);
        test.check(&tracker);
        if kill % 50 == 0 || kill == kills {
            // To stderr itself: the test harness shows no output of a test that passes.
            let _ = writeln!(stderr(), "{kill} kills in {} s: {:?}", began.elapsed().as_secs(), test.totals);
        }
    }
    // After a clean stop all is equal. Peers that were gone come back, and their swarms have their downloads.
    test.load(&tracker, &mut |_| false, 2_000);
    test.stop(tracker);
    let tracker = KilledTracker::start(folder.path(), &mut test);
    test.check(&tracker);
    test.fill(&tracker);
    test.check_again(&tracker);
    let late = test.totals.snapshots_logged + test.totals.killed_while_writing;
    assert!(late > 0, "some are killed late enough");
    test.stop(tracker);
}

/// Gives each torrent a download, so that downloads of one address are kept.
fn are_known(folder: &Path) {
    let mut known: Vec<_> = (0..SWARMS).map(|swarm| (InfoHash::new(hash(swarm)), 1)).collect();
    known.sort();
    let mut downloads = Downloads::open(Arc::new(Directory::open(folder).expect("ours"))).expect("empty");
    downloads.raise(&known).expect("room");
}

/// The history of one peer, which is alone in its swarm.
#[derive(Default)]
struct PeerHistory {
    /// At the start of the tracker.
    base: Peer,
    /// Its announces since then.
    announced: Vec<SentAnnounce>,
    /// Downloads that were ever sent.
    sent: u32,
    /// Downloads that outlive any kill.
    settled: u32,
    /// Downloads that a scrape has shown since the start.
    seen: u32,
}

struct SentAnnounce {
    action: Action,
    answered: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Peer {
    #[default]
    Absent,
    Leecher,
    Seeder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Starts,
    StartsSeeding,
    Completes,
    Seeds,
    Stops,
}

impl Action {
    fn leads_to(self) -> Peer {
        match self {
            Self::Starts => Peer::Leecher,
            Self::StartsSeeding | Self::Completes | Self::Seeds => Peer::Seeder,
            Self::Stops => Peer::Absent,
        }
    }

    fn packet(self, connection_id: ConnectionId, transaction_id: u32, swarm: usize) -> Vec<u8> {
        let event = match self {
            Self::Starts | Self::StartsSeeding => AnnounceEvent::Started,
            Self::Completes => AnnounceEvent::Completed,
            Self::Seeds => AnnounceEvent::None,
            Self::Stops => AnnounceEvent::Stopped,
        };
        AnnounceRequest {
            transaction_id: TransactionId(transaction_id),
            info_hash: InfoHash::new(hash(swarm)),
            left: u64::from(self == Self::Starts),
            event,
            ..announce(connection_id)
        }
        .to_vec()
    }
}

impl PeerHistory {
    /// After the last announce, answered or not.
    fn now(&self) -> Peer {
        self.announced.last().map_or(self.base, |last| last.action.leads_to())
    }

    fn is_waiting(&self) -> bool {
        self.announced.last().is_some_and(|last| last.answered.is_none())
    }

    fn answered_by(&self, when: SystemTime) -> usize {
        self.announced.iter().filter(|it| it.answered.is_some_and(|answered| answered <= when)).count()
    }

    /// Whether this may be the peer in a tracker with at least all announces that were answered at `by`.
    fn may_be(&self, peer: Peer, by: Option<SystemTime>) -> bool {
        let sure = by.map_or(0, |by| self.answered_by(by));
        (sure..=self.announced.len()).any(|n| match n.checked_sub(1) {
            None => self.base == peer,
            Some(last) => self.announced[last].action.leads_to() == peer,
        })
    }
}

/// The announces to all trackers that were killed, one after the other.
struct KillTest {
    peers: Vec<PeerHistory>,
    rng: SplitMix64,
    /// The next tracker has all announces that were answered at this time.
    held_by: Option<SystemTime>,
    /// The duration of a snapshot.
    took: Duration,
    /// The duration of a start.
    start: Duration,
    totals: Totals,
}

/// Printed with its names.
#[derive(Debug, Default)]
struct Totals {
    restarts: u64,
    killed_while_writing: u64,
    killed_while_stopping: u64,
    killed_while_starting: u64,
    announces_answered: u64,
    snapshots_logged: u64,
    peers_checked: u64,
    peers_newer_than_the_snapshot: u64,
    settled_downloads: u64,
}

struct KilledTracker {
    serve: Serve,
    udp: SocketAddr,
    admin: SocketAddr,
}

impl KilledTracker {
    /// Starts it, and asserts that it refuses no part of its state.
    fn start(folder: &Path, test: &mut KillTest) -> Self {
        let began = Instant::now();
        let serve = start(&arguments(folder));
        let [_, said] = serve.listening();
        test.start = began.elapsed();
        test.totals.restarts += 1;
        assert!(!said.contains("ERROR") && !said.contains("WARN"), "{said}");
        for refused in ["swarms.snapshot.refused", "swarms.snapshot.previous.refused"] {
            assert!(!folder.join(refused).exists(), "{said}");
        }
        let is_first = test.totals.restarts == 1;
        assert!(said.contains(if is_first { "there is no snapshot" } else { "snapshot loaded" }), "{said}");
        Self { udp: serve.address("udp"), admin: serve.address("dashboard"), serve }
    }
}

fn arguments(folder: &Path) -> Vec<&str> {
    let fixed =
        "--udp=127.0.0.1:0 --admin=127.0.0.1:0 --workers=1 --lifetime=2h --interval=1h --snapshot-every=1s";
    fixed.split(' ').chain(["--state", folder.to_str().expect("text")]).collect()
}

impl KillTest {
    fn new(seed: u64) -> Self {
        Self {
            peers: (0..SWARMS).map(|_| PeerHistory { sent: 1, settled: 1, ..Default::default() }).collect(),
            rng: SplitMix64::new(seed),
            held_by: None,
            took: Duration::ZERO,
            start: Duration::from_millis(100),
            totals: Totals::default(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn random(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.below(1 << 20) as f64 / (1 << 20) as f64)
    }

    /// Starts every absent peer.
    fn fill(&mut self, tracker: &KilledTracker) {
        let absent = (0..SWARMS).filter(|&n| self.peers[n].now() == Peer::Absent).collect::<Vec<_>>();
        let mut absent = absent.into_iter();
        self.drive(
            tracker,
            256,
            |_, rng| {
                let seeds = rng.next_u64().is_multiple_of(3);
                absent.next().map(|swarm| (swarm, if seeds { Action::StartsSeeding } else { Action::Starts }))
            },
            &mut |_| false,
        );
    }

    /// Announces at random until `enough`, or `most` times.
    fn load(&mut self, tracker: &KilledTracker, enough: &mut dyn FnMut(Instant) -> bool, most: usize) {
        let mut left = most;
        let next = move |peers: &[PeerHistory], rng: &mut SplitMix64| {
            left = left.checked_sub(1)?;
            loop {
                let among = if rng.next_u64().is_multiple_of(4) { SWARMS } else { BUSY };
                let swarm = (rng.next_u64() % among as u64) as usize;
                if peers[swarm].is_waiting() {
                    continue;
                }
                let often = !rng.next_u64().is_multiple_of(3);
                let action = match (peers[swarm].now(), often) {
                    (Peer::Absent, true) => Action::Starts,
                    (Peer::Absent, false) => Action::StartsSeeding,
                    (Peer::Leecher, true) => Action::Completes,
                    (Peer::Seeder, false) => Action::Seeds,
                    (Peer::Leecher, false) | (Peer::Seeder, true) => Action::Stops,
                };
                return Some((swarm, action));
            }
        };
        self.drive(tracker, 16, next, enough);
    }

    /// Keeps `at_once` announces unanswered, and notes the time of each answer.
    fn drive(
        &mut self,
        tracker: &KilledTracker,
        at_once: usize,
        mut next: impl FnMut(&[PeerHistory], &mut SplitMix64) -> Option<(usize, Action)>,
        enough: &mut dyn FnMut(Instant) -> bool,
    ) {
        let (client, connection_id) = Client::of(tracker.udp).connected();
        let (mut waiting, mut number, mut is_over) = (HashMap::new(), 1 << 16, false);
        loop {
            while waiting.len() < at_once && !is_over {
                let Some((swarm, action)) = next(&self.peers, &mut self.rng) else {
                    is_over = true;
                    break;
                };
                number += 1;
                let history = &mut self.peers[swarm];
                history.sent += u32::from(action == Action::Completes);
                history.announced.push(SentAnnounce { action, answered: None });
                waiting.insert(number, swarm);
                client.send(&action.packet(connection_id, number, swarm));
            }
            if waiting.is_empty() || enough(Instant::now()) {
                return;
            }
            for _ in 0..waiting.len() {
                let answer = client.receive();
                let Ok(Response::Announce(response)) = Response::parse(&answer, Family::V4) else {
                    panic!("{answer:?}");
                };
                let swarm =
                    waiting.remove(&response.header.transaction_id.0).expect("one answer per request");
                let last = self.peers[swarm].announced.last_mut().expect("it has announced");
                last.answered = Some(SystemTime::now());
                self.totals.announces_answered += 1;
            }
            if at_once < 64 {
                // Leaves time for other programs on this machine.
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Loads a tracker until a random moment, and kills it.
    fn live_and_die(&mut self, mut tracker: KilledTracker, folder: &Path) {
        let partial = folder.join("swarms.snapshot.partial");
        // The moment is while a snapshot is written, or after some time. Before, downloads may have settled.
        let waits_for_writing = self.below(100) < 40;
        let most = if waits_for_writing {
            Duration::from_secs(3)
        } else {
            self.random(Duration::from_millis(1_600))
        };
        let settled = (self.below(100) < 20).then(|| {
            self.load(&tracker, &mut |_| false, 300);
            let answered = SystemTime::now();
            metrics_show(tracker.admin, &["swarmkeep_unsaved_downloads 0"]);
            answered
        });
        let mut at = Instant::now() + most;
        let into_writing = self.random(self.took.max(Duration::from_millis(20)));
        let mut has_seen_it = !waits_for_writing;
        let mut enough = |now| {
            if !has_seen_it && partial.exists() {
                (has_seen_it, at) = (true, now + into_writing);
            }
            now >= at
        };
        self.load(&tracker, &mut enough, usize::MAX);
        if self.below(10) == 0 {
            // As after an impatient stop: while it takes its last snapshot.
            tracker.serve.signal("TERM");
            thread::sleep(self.random(2 * self.took));
            self.totals.killed_while_stopping += 1;
        }
        let said = tracker.serve.kill();
        self.totals.killed_while_writing += u64::from(partial.exists());
        assert!(!said.contains("ERROR"), "{said}");
        let taken: Vec<_> = said.lines().filter(|line| line.contains("snapshot taken")).collect();
        self.totals.snapshots_logged += taken.len() as u64;
        // A snapshot begins after the line about the one before. It is renamed a moment before its own line:
        // the folder may have one more, with more announces.
        self.took = taken.last().map_or(self.took, |line| took(line));
        self.held_by = taken.iter().rev().nth(1).map(|line| logged_at(line));
        let Some(settled) = settled else { return };
        for history in self.peers.iter_mut() {
            history.settled = history.settled.max(history.seen);
            let completed = history.announced.iter().filter(|it| it.action == Action::Completes);
            history.settled +=
                completed.filter(|it| it.answered.is_some_and(|answered| answered <= settled)).count() as u32;
        }
    }

    /// Starts a tracker and kills it before it is ready, or at that moment.
    fn die_early(&mut self, folder: &Path) {
        let mut child = swarmkeep(&arguments(folder)).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(self.random(self.start));
        child.kill().expect("ours");
        child.wait().expect("ours");
        self.totals.killed_while_starting += 1;
    }

    /// Stops a tracker with SIGTERM: it keeps everything.
    fn stop(&mut self, tracker: KilledTracker) {
        let (code, said) = tracker.serve.stop("TERM");
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("snapshot taken"), "{said}");
        self.held_by = Some(SystemTime::now());
        for history in &mut self.peers {
            let completed = history.announced.iter().filter(|it| it.action == Action::Completes).count();
            history.settled = history.settled.max(history.seen) + completed as u32;
        }
    }

    /// Compares the whole state of a tracker after its start.
    fn check(&mut self, tracker: &KilledTracker) {
        let all = (0..SWARMS).collect::<Vec<_>>();
        let mut pending = Vec::new();
        for (swarm, stats) in scrape(tracker.udp, &all) {
            let peer = match (stats.leechers, stats.seeders) {
                (0, 0) => Peer::Absent,
                (1, 0) => Peer::Leecher,
                (0, 1) => Peer::Seeder,
                _ => panic!("there is one peer in swarm {swarm}: {stats:?}"),
            };
            let (held_by, history) = (self.held_by, &mut self.peers[swarm]);
            assert!(
                history.may_be(peer, held_by),
                "swarm {swarm}: {peer:?}, was {:?}, then {:?}; snapshot of {held_by:?}",
                history.base,
                history.announced.iter().map(|it| (it.action, it.answered)).collect::<Vec<_>>(),
            );
            self.totals.peers_checked += 1;
            self.totals.peers_newer_than_the_snapshot +=
                u64::from(held_by.is_some_and(|by| history.answered_by(by) > 0));
            history.base = peer;
            history.announced.clear();
            history.seen = history.settled;
            if peer != Peer::Absent {
                pending.push(swarm);
            }
        }
        self.check_downloads(tracker, pending);
    }

    /// Compares the downloads of peers that have started since.
    fn check_again(&mut self, tracker: &KilledTracker) {
        self.check_downloads(tracker, (0..SWARMS).collect());
    }

    /// Waits, since the database gives new swarms their downloads a little later.
    fn check_downloads(&mut self, tracker: &KilledTracker, mut pending: Vec<usize>) {
        let began = Instant::now();
        while !pending.is_empty() {
            let mut again = Vec::new();
            for (swarm, stats) in scrape(tracker.udp, &pending) {
                let history = &mut self.peers[swarm];
                assert!(stats.completed <= history.sent, "swarm {swarm}: {stats:?}, {} sent", history.sent);
                if stats.completed < history.settled {
                    let (shown, settled) = (stats.completed, history.settled);
                    assert!(began.elapsed() < A_MINUTE, "swarm {swarm}: {shown}, {settled} settled");
                    again.push(swarm);
                    continue;
                }
                history.seen = stats.completed;
                self.totals.settled_downloads += u64::from(history.settled);
            }
            pending = again;
        }
    }
}

fn hash(swarm: usize) -> [u8; 20] {
    let mut rng = SplitMix64::new(swarm as u64);
    let mut hash = [0; 20];
    hash.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..4]));
    hash
}

/// Counts of swarms, with some packets unanswered at a time.
fn scrape(tracker: SocketAddr, swarms: &[usize]) -> Vec<(usize, ScrapeStats)> {
    let (client, connection_id) = Client::of(tracker).connected();
    let mut found = Vec::with_capacity(swarms.len());
    let groups = swarms.chunks(SCRAPED).collect::<Vec<_>>();
    for (n, together) in groups.chunks(16).enumerate() {
        let first = (n as u32 + 1) << 8;
        for (number, group) in (first..).zip(together) {
            let hashes = group.iter().map(|&swarm| hash(swarm)).collect::<Vec<_>>();
            client.send(&ScrapeRequest::new(connection_id, TransactionId(number), &hashes).to_vec());
        }
        for _ in together {
            let answer = client.receive();
            let Ok(Response::Scrape(response)) = Response::parse(&answer, Family::V4) else {
                panic!("{answer:?}");
            };
            let group = together[(response.transaction_id.0 - first) as usize];
            assert_eq!(response.swarms().len(), group.len());
            found.extend(group.iter().copied().zip(response.swarms()));
        }
    }
    found
}
