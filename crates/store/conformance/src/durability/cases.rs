//! The cases: plain functions over a [`PersistentSubject`], one per sentence.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, Announced, BoundedBy, Budget, Changes, Cursor, Endpoint, Family, InfoHash, PeerBuffer,
    PeerRecord, Random, Records, RepositoryConfig, Request, Retention, Role, SplitMix64, SwarmStats,
    SwarmSummary, Timestamp, TorrentRepository, TorrentRepositoryExt,
};
use tempfile::TempDir;

use super::{Persistent, PersistentSubject};
use crate::{
    kit::{
        self, LIFETIME, PATIENCE, Panicking, assert_panics_with, at, completed, config, hash, leecher,
        of_network, peer, seeder, stats, stopped,
    },
    threads::{SetOnDrop, in_step},
};

/// The peers of a store with role and time.
type Peers = BTreeMap<(InfoHash, Endpoint), (Role, Timestamp)>;

// --- Tools of the cases. ---

/// Endpoint `n`, in a /24 of its own: a store may keep no count that one prefix alone has made.
fn v4(n: u32) -> Endpoint {
    kit::v4(n << 8)
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn open(subject: &dyn PersistentSubject, folder: &Path, seconds: u64) -> Box<dyn Persistent> {
    open_with(subject, folder, &config(), seconds)
}

fn open_with(
    subject: &dyn PersistentSubject,
    folder: &Path,
    config: &RepositoryConfig,
    seconds: u64,
) -> Box<dyn Persistent> {
    subject.open(folder, config, at(seconds)).unwrap_or_else(|error| panic!("it does not open: {error}"))
}

/// Returns a copy of a folder that is not open.
fn copy(of: &Path) -> TempDir {
    fn copy_into(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).expect("the folder can be read") {
            let (from, to) =
                entry.map(|entry| (entry.path(), to.join(entry.file_name()))).expect("so can its names");
            if from.is_dir() {
                fs::create_dir(&to).expect("a folder can be made");
                copy_into(&from, &to);
            } else {
                fs::copy(&from, &to).expect("a file can be copied");
            }
        }
    }
    let copy = folder();
    copy_into(of, copy.path());
    copy
}

fn snapshot(open: &dyn Persistent, seconds: u64) {
    open.snapshot(at(seconds)).expect("a snapshot can be taken");
}

/// Returns the bytes of the latest snapshot of a folder.
fn read_latest(subject: &dyn PersistentSubject, folder: &Path) -> Vec<u8> {
    let latest = subject.latest_snapshot(folder).expect("a snapshot was taken");
    fs::read(latest).expect("it can be read")
}

fn tell(open: &dyn Persistent, seconds: u64, announce: Announce) -> Announced {
    let (mut rng, mut nobody) = (SplitMix64::new(seconds), PeerBuffer::new(&mut [], &mut []));
    open.store().announce(&announce.want(0), at(seconds), &mut rng, &mut nobody)
}

/// Announces, and ignores the answer.
fn say(open: &dyn Persistent, seconds: u64, announce: Announce) {
    tell(open, seconds, announce);
}

fn remove(open: &dyn Persistent, torrent: u64) {
    open.store().remove(&hash(torrent));
}

/// Announces `times` peers that finish a download.
fn complete(open: &dyn Persistent, seconds: u64, torrent: u64, times: u32) {
    (0..times).for_each(|n| say(open, seconds, completed(hash(torrent), v4(n))));
}

/// Removes all peers that [`complete`] and [`come_back`] have announced, with their swarms.
fn leave(open: &dyn Persistent, seconds: u64, torrents: impl Iterator<Item = u64>) {
    for torrent in torrents {
        let members = open.store().all_peers(&hash(torrent));
        members.iter().for_each(|peer| say(open, seconds, stopped(hash(torrent), peer.endpoint)));
    }
    // The rest of the current pass, and one more.
    open.store().sweep_all(at(seconds), Retention::DropEmpty);
    open.store().sweep_all(at(seconds), Retention::DropEmpty);
}

/// Creates each swarm with a leecher.
fn come_back(open: &dyn Persistent, seconds: u64, torrents: impl Iterator<Item = u64>) {
    torrents.for_each(|torrent| say(open, seconds, leecher(hash(torrent), v4(7_000_000))));
}

fn count(open: &dyn Persistent, torrent: u64) -> u32 {
    open.store().scrape(&hash(torrent)).downloaded
}

/// Creates swarms, and asserts their counts after all stored counts are loaded.
fn assert_counts(
    open: &dyn Persistent,
    seconds: u64,
    expected: impl Iterator<Item = (u64, u32)>,
    what: &str,
) {
    let expected: Vec<_> = expected.collect();
    come_back(open, seconds, expected.iter().map(|(torrent, _)| *torrent));
    open.settle();
    for (torrent, expected) in expected {
        assert_eq!(count(open, torrent), expected, "the downloads of torrent {torrent} {what}");
    }
}

fn peers_of(store: &dyn TorrentRepository) -> Peers {
    let mut all = Peers::new();
    for swarm in store.swarms() {
        for PeerRecord { endpoint, role, last_announce, .. } in store.all_peers(&swarm.info_hash) {
            let twice = all.insert((swarm.info_hash, endpoint), (role, last_announce));
            assert!(twice.is_none(), "{endpoint} is listed twice");
        }
    }
    all
}

/// Asserts that the store has exactly these peers, and that each looks as old as its announce, or younger by
/// at most the resolution of the clock.
fn assert_peers(open: &dyn Persistent, announced: &Peers, what: &str) {
    let (there, resolution) = (peers_of(open.store()), open.store().capabilities().clock_resolution_secs);
    for ((torrent, endpoint), (role, time)) in announced {
        let shown = there.get(&(*torrent, *endpoint));
        let (shown_role, shown_time) =
            shown.unwrap_or_else(|| panic!("{endpoint} of {torrent:?} is lost {what}"));
        assert_eq!(shown_role, role, "the role of {endpoint} {what}");
        assert!(
            shown_time >= time,
            "{endpoint} is {} s older than it is {what}",
            time.secs_since(*shown_time)
        );
        let younger = shown_time.secs_since(*time);
        assert!(younger <= resolution, "{endpoint} is {younger} s younger than it is {what}");
    }
    assert_eq!(there.len(), announced.len(), "peers that are there {what}");
}

fn family(n: u32) -> Family {
    if n.is_multiple_of(3) { Family::V6 } else { Family::V4 }
}

/// Announces peers of both roles and families to some swarms, and adds them to `announced`.
fn populate(open: &dyn Persistent, seconds: u64, torrents: std::ops::Range<u64>, announced: &mut Peers) {
    for torrent in torrents {
        for n in 0..=torrent as u32 % 7 {
            let (endpoint, left, now) = (peer(family(n), n), u64::from(n % 2), seconds + torrent % 11);
            let announce = Announce::new(hash(torrent), endpoint).left(left);
            tell(open, now, announce);
            let time = announced.values().map(|(_, time)| *time).max().unwrap_or_default().max(at(now));
            announced.insert((hash(torrent), endpoint), (announce.role(), time));
        }
    }
}

// --- Snapshots. ---

/// Meanwhile other peers announce, leave, complete, are swept and removed.
pub(crate) fn a_snapshot_holds_every_peer_whose_announce_returned_before_it_began(
    subject: &dyn PersistentSubject,
) {
    // To swarms with other peers, and to swarms of their own.
    let announces = || {
        (0..400_u32).map(|n| {
            let torrent = if n % 2 == 0 { n / 2 % 30 } else { 1000 + n };
            let endpoint = peer(family(n), 1_000_000 + n);
            Announce::new(hash(torrent.into()), endpoint).left(u64::from(n / 2 % 2))
        })
    };
    for round in 0..8 {
        let folder = folder();
        let (store, done) = (open(subject, folder.path(), 0), AtomicBool::new(false));
        thread::scope(|scope| {
            let (store, done) = (&*store, &done);
            let _set = SetOnDrop(done);
            scope.spawn(move || {
                for turn in (0..u64::MAX).take_while(|_| !done.load(SeqCst)) {
                    let (torrent, endpoint) = (hash(turn % 40), v4(turn as u32 % 300));
                    let event = [leecher, completed, stopped][(turn / 300 % 3) as usize];
                    say(store, 1, event(torrent, endpoint));
                    if turn % 50 == 0 {
                        store.store().sweep(at(1), Retention::DropEmpty, Budget::peers(20));
                        remove(store, 30 + turn / 50 % 10);
                    }
                }
            });
            announces().for_each(|announce| say(store, 1, announce));
            snapshot(store, 1);
        });
        store.kill();
        let store = open(subject, folder.path(), 2);
        let there = peers_of(store.store());
        for announce in announces() {
            let role = there.get(&(announce.info_hash, announce.endpoint)).map(|(role, _)| *role);
            let Announce { endpoint, .. } = announce;
            assert_eq!(role, Some(announce.role()), "{endpoint} had announced, in round {round}");
        }
        store.kill();
    }
}

pub(crate) fn a_snapshot_loads_with_its_counts_roles_and_downloads_and_ages_rounded_younger(
    subject: &dyn PersistentSubject,
) {
    let (folder, mut announced) = (folder(), Peers::new());
    let store = open(subject, folder.path(), 0);
    for (round, seconds) in [0, 100, 333, 700].into_iter().enumerate() {
        populate(&*store, seconds, round as u64 * 100..round as u64 * 100 + 90, &mut announced);
    }
    for n in 0..3000 {
        tell(&*store, 900, completed(hash(5000), peer(family(n), n)));
        announced.insert((hash(5000), peer(family(n), n)), (Role::Seeder, at(900)));
    }
    let (summaries, totals) = (by_info_hash(store.store()), store.store().totals());
    snapshot(&*store, 905);
    store.kill();
    for seconds in [905, 906, 950, 1000] {
        let store = open(subject, folder.path(), seconds);
        store.settle();
        assert_peers(&*store, &announced, &format!("{} s after the snapshot", seconds - 905));
        let loaded = by_info_hash(store.store());
        for (info_hash, stats) in &summaries {
            assert_eq!(loaded.get(info_hash), Some(stats), "the counts of {info_hash:?}");
        }
        assert_eq!((loaded.len(), store.store().totals()), (summaries.len(), totals));
        store.kill();
    }
}

fn by_info_hash(store: &dyn TorrentRepository) -> BTreeMap<InfoHash, SwarmStats> {
    store.swarms().into_iter().map(|swarm| (swarm.info_hash, swarm.stats)).collect()
}

pub(crate) fn what_expired_meanwhile_stays_out(subject: &dyn PersistentSubject) {
    let (folder, mut early, mut late) = (folder(), Peers::new(), Peers::new());
    let store = open(subject, folder.path(), 0);
    populate(&*store, 0, 0..50, &mut early);
    populate(&*store, 1000, 40..100, &mut late);
    early.retain(|peer, _| !late.contains_key(peer));
    assert!(!early.is_empty());
    let beyond = 20 + store.store().capabilities().clock_resolution_secs;
    snapshot(&*store, 1020);
    store.kill();
    let store = open(subject, folder.path(), LIFETIME + beyond);
    assert_peers(&*store, &late, "after the first have expired");
    store.kill();
    let store = open(subject, folder.path(), 1000 + LIFETIME + beyond);
    assert_peers(&*store, &Peers::new(), "after all have expired");
    // The lifetime starts at the announce, not at the restart.
    store.kill();
    let store = open(subject, folder.path(), LIFETIME + beyond);
    store.store().sweep_all(at(1000 + LIFETIME + beyond), Retention::DropEmpty);
    assert_peers(&*store, &Peers::new(), "after a sweep");
    store.kill();
}

/// Nothing is settled here: downloads of seeders that the snapshot does not contain are lost.
pub(crate) fn a_snapshot_counts_the_download_of_every_seeder_it_holds(subject: &dyn PersistentSubject) {
    for round in 0..15_u32 {
        const EACH: u32 = 60;
        let folder = folder();
        let (store, done, started) =
            (open(subject, folder.path(), 0), AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let store = &*store;
            let (done, started) = (&done, &started);
            scope.spawn(move || {
                for n in (0..400 * EACH).take_while(|_| !done.load(SeqCst)) {
                    // In an order that no store uses: one more download in each swarm, again and again.
                    tell(store, 1, completed(hash((n % EACH).into()), peer(family(n), n)));
                    if n == 4 * EACH {
                        started.store(true, SeqCst);
                    }
                }
            });
            while !started.load(SeqCst) {
                thread::yield_now();
            }
            snapshot(store, 1);
            done.store(true, SeqCst);
        });
        store.kill();
        let store = open(subject, folder.path(), 1);
        store.settle();
        for SwarmSummary { info_hash, stats } in store.store().swarms() {
            assert!(
                stats.downloaded >= stats.complete,
                "{} seeders and {} downloads of {info_hash:?} in round {round}",
                stats.complete,
                stats.downloaded
            );
        }
        store.kill();
    }
}

pub(crate) fn a_stop_keeps_everything_that_was_answered(subject: &dyn PersistentSubject) {
    let (folder, announced) = (folder(), Mutex::new(Peers::new()));
    // After a snapshot, and without any.
    for round in 0..3_u32 {
        let store = open(subject, folder.path(), 1);
        thread::scope(|scope| {
            for thread in 0..2_u32 {
                let (store, announced) = (&*store, &announced);
                scope.spawn(move || {
                    for n in 0..500_u32 {
                        let endpoint = v4(round << 20 | thread << 16 | n);
                        tell(store, 1, seeder(hash(u64::from(n % 90)), endpoint));
                        let mut announced = announced.lock().expect("nobody panics with it");
                        announced.insert((hash(u64::from(n % 90)), endpoint), (Role::Seeder, at(1)));
                    }
                });
            }
        });
        if round == 1 {
            snapshot(&*store, 1);
            tell(&*store, 1, leecher(hash(500), v4(1)));
            let endpoint = (hash(500), v4(1));
            announced.lock().expect("nobody panics with it").insert(endpoint, (Role::Leecher, at(1)));
        }
        store.stop(at(1));
        let store = open(subject, folder.path(), 1);
        assert_peers(
            &*store,
            &announced.lock().expect("nobody panics with it"),
            &format!("after stop {round}"),
        );
        store.stop(at(1));
    }
}

pub(crate) fn a_kill_loses_nothing_older_than_the_last_snapshot(subject: &dyn PersistentSubject) {
    let (folder, mut announced) = (folder(), Peers::new());
    for round in 0..4 {
        let store = open(subject, folder.path(), 20 * round);
        assert_peers(&*store, &announced, &format!("after kill {round}"));
        populate(&*store, 20 * round, 30 * round..30 * round + 50, &mut announced);
        snapshot(&*store, 20 * round + 12);
        // The kill may lose these announces, but need not.
        if round == 3 {
            tell(&*store, 80, leecher(hash(9999), v4(1)));
        }
        store.kill();
    }
    let store = open(subject, folder.path(), 90);
    store.store().remove(&hash(9999));
    assert_peers(&*store, &announced, "after the last kill");
    store.kill();
}

pub(crate) fn a_second_snapshot_replaces_the_first(subject: &dyn PersistentSubject) {
    let (folder, mut announced) = (folder(), Peers::new());
    let store = open(subject, folder.path(), 0);
    populate(&*store, 0, 0..60, &mut announced);
    snapshot(&*store, 20);
    assert!(subject.latest_snapshot(folder.path()).is_some());
    // Some peers leave, some change their roles, some join; three times.
    for (n, seconds) in [(1, 30), (2, 60), (3, 90)] {
        for torrent in (0..20).map(|torrent| n * 20 + torrent) {
            tell(&*store, seconds, stopped(hash(torrent), peer(family(0), 0)));
            announced.remove(&(hash(torrent), peer(family(0), 0)));
        }
        populate(&*store, seconds, 100 * n..100 * n + 20, &mut announced);
        snapshot(&*store, seconds + 15);
    }
    store.kill();
    let store = open(subject, folder.path(), 110);
    assert_peers(&*store, &announced, "after four snapshots");
    store.kill();
}

pub(crate) fn an_announce_after_a_restart_finds_the_peers_that_were_there(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..40).for_each(|n| say(&*store, 0, leecher(hash(1), v4(n))));
    complete(&*store, 0, 2, 3);
    store.stop(at(1));
    let store = open(subject, folder.path(), 2);
    store.settle();
    let mut bytes = [0; 6 * 100];
    let mut buffer = PeerBuffer::new(&mut bytes, &mut []);
    let newcomer = leecher(hash(1), v4(1000)).want(100);
    let answer = store.store().announce(&newcomer, at(2), &mut SplitMix64::new(1), &mut buffer);
    let mut found: Vec<_> = buffer.endpoints().collect();
    found.sort();
    assert_eq!(found, (0..40).map(v4).collect::<Vec<_>>(), "those who were there before");
    assert_eq!((answer.stats, answer.changes), (stats(0, 41, 0), Changes::JOINED));
    // A peer that comes back is known.
    let answer = tell(&*store, 2, completed(hash(2), v4(1)));
    assert_eq!((answer.stats, answer.changes), (stats(3, 0, 3), Changes::REFRESHED));
    store.kill();
}

/// A folder with two snapshots, the first with the peers `first`, the latest with more, and their contents.
struct TwoSnapshots {
    folder: TempDir,
    first_bytes: Vec<u8>,
    latest_bytes: Vec<u8>,
    /// The peers that a store with the first snapshot shows at `NOW`, and those of a store with the latest.
    first: Peers,
    latest: Peers,
    /// The download counts of all torrents, all of them settled.
    counts: Vec<(u64, u32)>,
}

impl TwoSnapshots {
    const NOW: u64 = 100;

    fn new(subject: &dyn PersistentSubject) -> Self {
        let (folder, mut announced) = (folder(), Peers::new());
        let store = open(subject, folder.path(), 0);
        populate(&*store, 0, 0..40, &mut announced);
        (0..10).for_each(|torrent| complete(&*store, 20, torrent, 1 + torrent as u32));
        store.settle();
        snapshot(&*store, 30);
        store.kill();
        let (first_bytes, alone) = (read_latest(subject, folder.path()), copy(folder.path()));
        let store = open(subject, alone.path(), Self::NOW);
        let first = peers_of(store.store());
        store.kill();
        let store = open(subject, folder.path(), 31);
        populate(&*store, 40, 20..60, &mut announced);
        (0..20).for_each(|torrent| say(&*store, 60, stopped(hash(torrent), v4(1))));
        (0..10).for_each(|torrent| say(&*store, 60, completed(hash(torrent), v4(500))));
        store.settle();
        snapshot(&*store, 70);
        let counts = (0..40).map(|torrent| (torrent, count(&*store, torrent))).collect();
        store.kill();
        let (latest_bytes, alone) = (read_latest(subject, folder.path()), copy(folder.path()));
        let store = open(subject, alone.path(), Self::NOW);
        let latest = peers_of(store.store());
        store.kill();
        assert_ne!(first, latest);
        assert!(first.len() > 100 && latest_bytes.len() > 16);
        Self { folder, first_bytes, latest_bytes, first, latest, counts }
    }

    /// Asserts that a folder opens with exactly these peers, and with all counts.
    fn assert_opens_with(
        &self,
        subject: &dyn PersistentSubject,
        folder: &Path,
        expected: &Peers,
        what: &str,
    ) {
        let store = open(subject, folder, Self::NOW);
        store.settle();
        let there = peers_of(store.store());
        if there != *expected {
            let more = there.iter().filter(|(peer, shown)| expected.get(*peer) != Some(*shown)).count();
            panic!(
                "{what}: of {} peers, {} are there, {more} of them others",
                expected.len(),
                there.len() - more
            );
        }
        // A swarm that is created here has only its stored count.
        assert_counts(&*store, Self::NOW, self.counts.iter().copied(), what);
        store.kill();
    }

    /// Asserts that the latest snapshot is rejected if it is replaced by `changed`, and that the first one is
    /// loaded instead.
    fn assert_refused(&self, subject: &dyn PersistentSubject, changed: &[u8], what: &str) {
        if changed == self.latest_bytes || changed == self.first_bytes {
            return;
        }
        let folder = copy(self.folder.path());
        let latest = subject.latest_snapshot(folder.path()).expect("it was copied");
        fs::write(latest, changed).expect("it can be damaged");
        self.assert_opens_with(subject, folder.path(), &self.first, what);
    }
}

pub(crate) fn a_truncated_snapshot_is_refused_as_a_whole(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let len = both.latest_bytes.len();
    let shares = (1..16).map(|n| len * n / 16);
    for left in [0, 1, 8, 63, len - 2, len - 1].into_iter().chain(shares).filter(|&left| left < len) {
        both.assert_refused(subject, &both.latest_bytes[..left], &format!("{left} of {len} bytes are left"));
    }
    // A snapshot of the same length with zeroes only.
    let mut empty = both.latest_bytes.clone();
    empty[len / 2..].fill(0);
    both.assert_refused(subject, &empty, "its second half is zeroes");
    both.assert_refused(subject, &vec![0; len], "all of it is zeroes");
    // Undamaged, it is loaded.
    both.assert_opens_with(subject, copy(both.folder.path()).path(), &both.latest, "as it was");
}

pub(crate) fn an_altered_snapshot_is_refused_as_a_whole(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let (len, mut draw) = (both.latest_bytes.len(), SplitMix64::new(1));
    let draw: &mut dyn Random = &mut draw;
    let places = [0, 9, 20, 40, 65, 90, len - 40, len - 1].into_iter().filter(|&at| at < len);
    let places: Vec<_> = places.chain((0..40).map(|n| len * n / 40 + draw.below(len / 40))).collect();
    for at in places {
        let (mut changed, bit) = (both.latest_bytes.clone(), draw.below(8));
        changed[at] ^= 1 << bit;
        both.assert_refused(subject, &changed, &format!("bit {bit} of byte {at} of {len} is another"));
    }
}

pub(crate) fn a_snapshot_with_something_behind_it_is_refused_as_a_whole(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let more: [(&str, &[u8]); 5] = [
        ("one byte", &[0]),
        ("a line", b"\n"),
        ("a page of zeroes", &[0; 4096]),
        ("itself", &both.latest_bytes),
        ("the one before it", &both.first_bytes),
    ];
    for (what, more) in more {
        let changed = [&both.latest_bytes, more].concat();
        both.assert_refused(subject, &changed, &format!("{what} is behind it"));
    }
}

/// Blocks that are valid, each by itself.
pub(crate) fn blocks_that_do_not_belong_together_are_no_snapshot(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let split = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let blocks = subject.blocks(bytes);
        assert_eq!(
            blocks.iter().map(|block| block.len()).sum::<usize>(),
            bytes.len(),
            "blocks are all of it"
        );
        blocks.into_iter().map(|block| bytes[block].to_vec()).collect()
    };
    let (first, latest) = (split(&both.first_bytes), split(&both.latest_bytes));
    let mut draw = SplitMix64::new(2);
    let draw: &mut dyn Random = &mut draw;
    for _ in 0..10 {
        let (one, other) = (draw.below(latest.len()), draw.below(latest.len()));
        let mut swapped = latest.clone();
        swapped.swap(one, other);
        both.assert_refused(
            subject,
            &swapped.concat(),
            &format!("blocks {one} and {other} have changed places"),
        );
        let mut without = latest.clone();
        without.remove(one);
        both.assert_refused(subject, &without.concat(), &format!("block {one} is missing"));
        let mut repeated = latest.clone();
        repeated.insert(one, latest[one].clone());
        both.assert_refused(subject, &repeated.concat(), &format!("block {one} is there twice"));
        let (mut mixed, of_first) = (latest.clone(), draw.below(first.len()));
        mixed[one] = first[of_first].clone();
        both.assert_refused(subject, &mixed.concat(), &format!("block {one} is another's block {of_first}"));
        let tail = draw.below(first.len());
        let crossed = [latest[..one].concat(), first[tail..].concat()].concat();
        both.assert_refused(subject, &crossed, &format!("it is another's from block {one} on"));
    }
}

pub(crate) fn without_a_good_snapshot_a_store_opens_empty_and_keeps_its_counts(
    subject: &dyn PersistentSubject,
) {
    let both = TwoSnapshots::new(subject);
    for left in [0, 3, 4] {
        let folder = copy(both.folder.path());
        // The previous snapshot, wherever the store keeps it.
        let mut damaged = 0;
        for entry in fs::read_dir(folder.path()).expect("it can be read") {
            let path = entry.expect("so can its names").path();
            let Ok(bytes) = fs::read(&path) else { continue };
            if bytes == both.first_bytes || bytes == both.latest_bytes {
                fs::write(&path, &bytes[..bytes.len() * left / 5]).expect("it can be damaged");
                damaged += 1;
            }
        }
        assert!(damaged > 0, "the latest snapshot is a file of its folder");
        both.assert_opens_with(subject, folder.path(), &Peers::new(), "both snapshots are damaged");
    }
    // A missing snapshot is not rejected.
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    complete(&*store, 0, 1, 5);
    store.settle();
    snapshot(&*store, 0);
    store.kill();
    let latest = subject.latest_snapshot(folder.path()).expect("it was taken");
    fs::remove_file(latest).expect("it can be removed");
    let store = open(subject, folder.path(), 1);
    assert_peers(&*store, &Peers::new(), "without a snapshot");
    assert_counts(&*store, 1, [(1, 5)].into_iter(), "without a snapshot");
    store.kill();
}

pub(crate) fn after_a_damaged_snapshot_the_next_one_is_good_again(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let damage = || {
        let latest = subject.latest_snapshot(both.folder.path()).expect("it was taken");
        let bytes = fs::read(&latest).expect("it can be read");
        fs::write(latest, &bytes[..bytes.len() - 1]).expect("it can be damaged");
    };
    damage();
    both.assert_opens_with(subject, both.folder.path(), &both.first, "the latest is damaged");
    // Killed before the next snapshot: the same as before.
    both.assert_opens_with(subject, both.folder.path(), &both.first, "the latest is still damaged");
    let store = open(subject, both.folder.path(), TwoSnapshots::NOW);
    tell(&*store, TwoSnapshots::NOW, seeder(hash(9000), v4(1)));
    let third = peers_of(store.store());
    snapshot(&*store, TwoSnapshots::NOW);
    store.kill();
    both.assert_opens_with(subject, both.folder.path(), &third, "there is one more");
    damage();
    both.assert_opens_with(subject, both.folder.path(), &both.first, "that is damaged too");
}

/// A process that is killed in the middle of a snapshot leaves a part of it, of any length.
pub(crate) fn an_unfinished_snapshot_leaves_the_last_good_one(subject: &dyn PersistentSubject) {
    let both = TwoSnapshots::new(subject);
    let alone = folder();
    let store = open(subject, alone.path(), TwoSnapshots::NOW);
    for (torrent, count) in &both.counts {
        complete(&*store, TwoSnapshots::NOW, *torrent, *count);
    }
    leave(&*store, TwoSnapshots::NOW, both.counts.iter().map(|(torrent, _)| *torrent));
    store.settle();
    store.kill();
    let bytes = &both.first_bytes;
    let shares = (0..8).map(|n| bytes.len() * n / 8);
    for written in shares.chain([1, bytes.len() - 1]) {
        for (folder, expected) in [(both.folder.path(), &both.latest), (alone.path(), &Peers::new())] {
            let folder = copy(folder);
            let what = format!("{written} bytes of the next were written");
            subject.leave_unfinished_snapshot(folder.path(), &bytes[..written]).expect("it can be written");
            both.assert_opens_with(subject, folder.path(), expected, &what);
            // The next snapshot is complete.
            let store = open(subject, folder.path(), TwoSnapshots::NOW);
            tell(&*store, TwoSnapshots::NOW, seeder(hash(9000), v4(1)));
            let next = peers_of(store.store());
            snapshot(&*store, TwoSnapshots::NOW);
            store.kill();
            both.assert_opens_with(subject, folder.path(), &next, "the next was finished");
        }
    }
}

pub(crate) fn a_folder_is_open_once_at_a_time(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    tell(&*store, 0, seeder(hash(1), v4(1)));
    for _ in 0..3 {
        assert!(subject.open(folder.path(), &config(), at(0)).is_err(), "the folder is open");
    }
    snapshot(&*store, 0);
    store.kill();
    let store = open(subject, folder.path(), 0);
    assert_eq!(store.store().scrape(&hash(1)), stats(1, 0, 0), "who was refused has changed nothing");
    assert!(subject.open(folder.path(), &config(), at(0)).is_err(), "the folder is open again");
    store.stop(at(0));
    open(subject, folder.path(), 0).stop(at(0));
}

/// No announce takes as long as half a snapshot of one large swarm and many small ones.
pub(crate) fn a_snapshot_does_not_stall_announces(subject: &dyn PersistentSubject) {
    const SHORT: Duration = Duration::from_millis(4);
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..30_000).for_each(|n| say(&*store, 0, leecher(hash(1), v4(n))));
    (0..20_000).for_each(|n| say(&*store, 0, leecher(hash(u64::from(n) / 3), v4(n))));
    let begin = Instant::now();
    loop {
        let (done, turns) = (AtomicBool::new(false), AtomicU32::new(0));
        let (took, longest) = thread::scope(|scope| {
            let announcer = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !done.load(SeqCst) {
                    let turn = turns.fetch_add(1, SeqCst);
                    let begin = Instant::now();
                    tell(&*store, 0, seeder(hash((turn % 5).into()), v4(turn % 1000)));
                    longest = longest.max(begin.elapsed());
                }
                longest
            });
            while turns.load(SeqCst) < 100 {
                thread::yield_now();
            }
            let begin = Instant::now();
            let taken = store.snapshot(at(0));
            let took = begin.elapsed();
            done.store(true, SeqCst);
            taken.expect("it can be taken");
            (took, announcer.join().expect("announces do not panic"))
        });
        if longest < SHORT.max(took / 2) {
            break;
        }
        // A busy machine may keep one of the two threads from running, so there are several tries.
        assert!(
            begin.elapsed() < PATIENCE,
            "an announce waited for {longest:?} during a snapshot of {took:?}, time after time"
        );
    }
    store.kill();
}

// --- Download counts. ---

/// Torrents with 0 downloads, or 2 and more, of as many peers.
fn some(torrent: u64) -> (u64, u32) {
    (torrent, [0, 2, 3, 4, 5][torrent as usize % 5])
}

pub(crate) fn download_counts_outlive_a_stop(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3 {
        let store = open(subject, folder.path(), round);
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, round, (0..100).map(some).map(so_far), &format!("after {round} stops"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, round, torrent, count));
        // The last snapshot contains half of the swarms.
        leave(&*store, round, 0..50);
        let gone = (50..100).flat_map(|torrent| (0..5).map(move |n| stopped(hash(torrent), v4(n))));
        gone.for_each(|announce| say(&*store, round, announce));
        store.stop(at(round));
    }
}

pub(crate) fn download_counts_outlive_a_kill_once_they_are_settled(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3 {
        let store = open(subject, folder.path(), round);
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, round, (0..100).map(some).map(so_far), &format!("after {round} kills"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, round, torrent, count));
        if round == 1 {
            leave(&*store, round, 0..50);
        }
        store.settle();
        store.kill();
    }
}

pub(crate) fn a_kill_loses_no_more_than_what_was_not_settled(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..60).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.settle();
    store.kill();
    let (mut settled, mut all) = ([2; 60], [2; 60]);
    for round in 0..4 {
        let store = open(subject, folder.path(), round);
        come_back(&*store, round, 0..60);
        store.settle();
        for (torrent, (settled, all)) in (0..60).zip(settled.iter_mut().zip(&mut all)) {
            let count = count(&*store, torrent);
            assert!(
                (*settled..=*all).contains(&count),
                "{count} of {settled} settled and {all} counted downloads"
            );
            // Lost downloads stay lost.
            (*settled, *all) = (count, count);
        }
        let mut newcomer = 1000 * (1 + round as u32);
        // Each step uses some of the torrents, and no torrent is in all steps.
        for step in 0..4 {
            for torrent in (0..60).filter(|torrent| torrent % 4 != step) {
                tell(&*store, round, completed(hash(torrent), v4(newcomer)));
                newcomer += 1;
                all[torrent as usize] += 1;
            }
            if step < 3 {
                store.settle();
                settled = all;
            }
        }
        store.kill();
    }
}

pub(crate) fn a_swarm_that_was_swept_comes_back_with_its_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    for round in 0..4 {
        let now = 3 * LIFETIME * round;
        let so_far = |(torrent, count)| (torrent, round as u32 * count);
        assert_counts(&*store, now, (0..100).map(some).map(so_far), &format!("after {round} sweeps"));
        (0..100).map(some).for_each(|(torrent, count)| complete(&*store, now, torrent, count));
        // Their peers leave or expire. Nothing is settled before that.
        leave(&*store, now, 0..30);
        store.store().sweep_all(at(now + 2 * LIFETIME), Retention::DropEmpty);
        store.store().sweep_all(at(now + 2 * LIFETIME), Retention::DropEmpty);
        assert_eq!(store.store().totals().swarms, 0, "in round {round}");
        for torrent in 0..100 {
            let count = count(&*store, torrent);
            let stored = some(torrent).1 * (1 + round as u32);
            assert!(count == 0 || count == stored, "{count} of {stored} downloads where there is no swarm");
        }
    }
    store.kill();
}

pub(crate) fn an_eviction_forgets_no_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    let is_bounded = store.store().capabilities().bounded.contains(BoundedBy::SWARMS);
    store.kill();
    let config = config().max_swarms(200);
    if !is_bounded {
        let opened = subject.open(folder.path(), &config, at(0));
        assert!(opened.is_err(), "a limit that is not declared must be refused");
        return;
    }
    let store = open_with(subject, folder.path(), &config, 0);
    (0..50).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    for torrent in 0..5000_u32 {
        for n in 0..2 {
            tell(&*store, 1, seeder(hash(10_000 + u64::from(torrent)), of_network(Family::V4, torrent, n)));
        }
    }
    assert!(store.store().totals().evicted.swarms > 4000);
    for (torrent, expected) in (0..50).map(some) {
        // One by one: swarms that come back evict each other.
        assert_counts(&*store, 2, [(torrent, expected)].into_iter(), "after an eviction");
    }
    store.kill();
}

/// Another thread reads the counts all the time.
pub(crate) fn counts_that_come_back_never_fall_and_end_exactly_right(subject: &dyn PersistentSubject) {
    const TORRENTS: u64 = 500;
    const MORE: u32 = 4;
    let (folder, stored) = (folder(), |torrent: u64| 2 + (torrent % 3) as u32);
    let store = open(subject, folder.path(), 0);
    (0..TORRENTS).for_each(|torrent| complete(&*store, 0, torrent, stored(torrent)));
    leave(&*store, 0, 0..TORRENTS);
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (store, done) = (&*store, &done);
        let _set = SetOnDrop(done);
        scope.spawn(move || {
            let mut seen = vec![0; TORRENTS as usize];
            while !done.load(SeqCst) {
                for torrent in 0..TORRENTS {
                    let stats = store.store().scrape(&hash(torrent));
                    let before = std::mem::replace(&mut seen[torrent as usize], stats.downloaded);
                    let most = stored(torrent) + MORE;
                    assert!(stats.downloaded <= most, "{} of {most} downloads", stats.downloaded);
                    assert!(stats.downloaded >= before, "from {before} downloads to {}", stats.downloaded);
                }
            }
        });
        for torrent in 0..TORRENTS {
            (0..MORE).for_each(|n| say(store, 1, completed(hash(torrent), v4(100 + n))));
        }
        store.settle();
    });
    for torrent in 0..TORRENTS {
        assert_eq!(count(&*store, torrent), stored(torrent) + MORE, "the downloads of torrent {torrent}");
    }
    store.kill();
}

/// Two threads complete downloads of the same torrents at the same time. No peer has announced these torrents
/// since the last restart.
pub(crate) fn downloads_that_race_with_a_stored_count_are_counted_once(subject: &dyn PersistentSubject) {
    const TORRENTS: u64 = 150;
    let folder = folder();
    let mut expected = 0;
    for round in 0..8_u32 {
        let store = open(subject, folder.path(), 0);
        let counted = AtomicU64::new(0);
        for (times, early) in [(2, true), (1, false)] {
            in_step(TORRENTS as usize, |me, n| {
                let torrent = hash(n as u64);
                for turn in 0..times {
                    let newcomer = round << 12 | u32::from(early) << 8 | me << 4 | turn;
                    let answer = tell(&*store, 0, completed(torrent, v4(newcomer)));
                    counted.fetch_add(answer.changes.contains(Changes::COMPLETED).into(), SeqCst);
                    if early && me == 1 {
                        tell(&*store, 0, stopped(torrent, v4(newcomer)));
                    }
                }
            });
        }
        assert_eq!(counted.into_inner(), TORRENTS * 6);
        expected += 6;
        if round % 4 == 1 {
            // Its swarms come back in the same process.
            leave(&*store, 0, 0..TORRENTS);
        }
        if round % 2 == 0 {
            let all = (0..TORRENTS).map(|torrent| (torrent, expected));
            assert_counts(&*store, 0, all, &format!("in round {round}"));
            leave(&*store, 0, 0..TORRENTS);
            store.settle();
            store.kill();
        } else {
            // The snapshot contains some of them.
            leave(&*store, 0, 0..TORRENTS / 2);
            store.stop(at(0));
        }
    }
    let store = open(subject, folder.path(), 0);
    assert_counts(&*store, 0, (0..TORRENTS).map(|torrent| (torrent, expected)), "in the end");
    let total: u64 = store.store().swarms().iter().map(|swarm| u64::from(swarm.stats.downloaded)).sum();
    assert_eq!(total, TORRENTS * u64::from(expected), "the downloads of all torrents");
    store.kill();
}

/// Swarms come and go while their downloads are counted.
pub(crate) fn downloads_that_race_with_sweeps_are_counted_once(subject: &dyn PersistentSubject) {
    const TORRENTS: u32 = 8;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    let (done, counted) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; TORRENTS as usize]);
    thread::scope(|scope| {
        let (store, done, counted) = (&*store, &done, &counted);
        let _set = SetOnDrop(done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                store.store().sweep(at(0), Retention::DropEmpty, Budget::peers(30));
                thread::yield_now();
            }
        });
        let workers = [0, 1].map(|me| {
            scope.spawn(move || {
                for n in 0..6000_u32 {
                    let torrent = n % TORRENTS;
                    let peer = v4(1 + me);
                    let answer = tell(store, 0, completed(hash(torrent.into()), peer));
                    assert!(answer.changes.contains(Changes::COMPLETED), "it had left");
                    counted[torrent as usize].fetch_add(1, SeqCst);
                    tell(store, 0, stopped(hash(torrent.into()), peer));
                }
            })
        });
        workers.into_iter().for_each(|worker| worker.join().expect("nobody panics"));
    });
    let counted: Vec<_> = (0..).zip(counted.iter().map(|counted| counted.load(SeqCst))).collect();
    assert_counts(&*store, 0, counted.iter().copied(), "after all sweeps");
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 0);
    assert_counts(&*store, 0, counted.iter().copied(), "after a restart");
    store.kill();
}

pub(crate) fn a_count_that_both_snapshot_and_store_hold_is_not_added_up(subject: &dyn PersistentSubject) {
    let folder = folder();
    let some = |torrent: u64| (torrent, 2 + (torrent % 4) as u32);
    let store = open(subject, folder.path(), 0);
    (0..60).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    store.settle();
    snapshot(&*store, 0);
    store.kill();
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, (0..60).map(some), "that are in both");
    // The stored counts are newer than the snapshot...
    (0..60).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(100))));
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    let one_more = |(torrent, count)| (torrent, count + 1);
    assert_counts(&*store, 2, (0..60).map(some).map(one_more), "that are newer in the store");
    // ... or the snapshot is newer than the stored counts.
    (0..60).for_each(|torrent| say(&*store, 2, completed(hash(torrent), v4(101))));
    snapshot(&*store, 2);
    store.kill();
    let store = open(subject, folder.path(), 3);
    let two_more = |(torrent, count)| (torrent, count + 2);
    assert_counts(&*store, 3, (0..60).map(some).map(two_more), "that are newer in the snapshot");
    // The counts of the snapshot are stored from then on.
    (0..60).for_each(|torrent| say(&*store, 3, completed(hash(torrent), v4(102))));
    store.settle();
    leave(&*store, 3, 0..60);
    snapshot(&*store, 3);
    store.kill();
    let store = open(subject, folder.path(), 4);
    let three_more = |(torrent, count)| (torrent, count + 3);
    assert_counts(&*store, 4, (0..60).map(some).map(three_more), "that were newer in the snapshot");
    store.kill();
}

pub(crate) fn a_snapshot_taken_before_counts_have_come_counts_nothing_twice(subject: &dyn PersistentSubject) {
    const STORED: u32 = 5;
    for ending in ["a kill", "a settled kill", "a stop"] {
        let folder = folder();
        let store = open(subject, folder.path(), 0);
        (0..200).for_each(|torrent| complete(&*store, 0, torrent, STORED));
        leave(&*store, 0, 0..200);
        store.stop(at(0));
        let store = open(subject, folder.path(), 1);
        // A snapshot while their counts are being loaded.
        (0..100).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
        snapshot(&*store, 1);
        (100..200).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
        let least = match ending {
            "a kill" => {
                store.kill();
                STORED
            }
            "a settled kill" => {
                store.settle();
                store.kill();
                STORED + 1
            }
            _ => {
                store.stop(at(1));
                STORED + 1
            }
        };
        let store = open(subject, folder.path(), 2);
        come_back(&*store, 2, 0..200);
        store.settle();
        for torrent in 0..200 {
            let count = count(&*store, torrent);
            assert!(
                (least..=STORED + 1).contains(&count),
                "{count} downloads of torrent {torrent} after {ending}"
            );
        }
        store.kill();
    }
}

/// For a swarm with peers, and for a torrent without a swarm.
pub(crate) fn remove_forgets_the_stored_count(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..80).for_each(|torrent| complete(&*store, 0, torrent, 5));
    store.settle();
    leave(&*store, 0, 0..40);
    // Two of four torrents, with a swarm or without.
    (0..80).filter(|torrent| torrent % 4 < 2).for_each(|torrent| remove(&*store, torrent));
    let expected = || (0..80).map(|torrent| (torrent, if torrent % 4 < 2 { 0 } else { 5 }));
    let back = |torrent: &(u64, u32)| torrent.0.is_multiple_of(2);
    assert_counts(&*store, 0, expected().filter(back), "in the same process");
    (0..80).filter(|torrent| torrent % 4 == 0).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    let later = expected().map(|(torrent, count)| (torrent, if torrent % 4 == 0 { 2 } else { count }));
    assert_counts(&*store, 1, later, "after a restart");
    store.kill();
}

pub(crate) fn remove_where_forgets_the_stored_counts(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..80).for_each(|torrent| complete(&*store, 0, torrent, 5));
    store.settle();
    let forbidden: Vec<_> = (0..80).filter(|torrent| torrent % 4 < 2).map(hash).collect();
    let (mut cursor, mut removed) = (Cursor::START, 0);
    while !cursor.is_end() {
        let is_forbidden = |info_hash: &InfoHash| forbidden.contains(info_hash);
        let step = store.store().remove_where(&is_forbidden, cursor, Budget::peers(7));
        (cursor, removed) = (step.next, removed + step.removed.len());
    }
    assert_eq!(removed, 40);
    let expected = || (0..80).map(|torrent| (torrent, if torrent % 4 < 2 { 0 } else { 5 }));
    assert_counts(&*store, 0, expected().filter(|torrent| torrent.0 % 2 == 0), "in the same process");
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, expected(), "after a restart");
    store.kill();
}

/// Counts are requested when their swarms are created, and the swarms are removed at once.
pub(crate) fn no_stored_count_comes_after_a_removal(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..300).for_each(|torrent| complete(&*store, 0, torrent, 5));
    leave(&*store, 0, 0..300);
    store.stop(at(0));
    let store = open(subject, folder.path(), 1);
    for some in [0..1, 1..20, 20..300] {
        come_back(&*store, 1, some.clone());
        some.clone().for_each(|torrent| remove(&*store, torrent));
        some.for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(50))));
    }
    store.settle();
    for torrent in 0..300 {
        assert_eq!(count(&*store, torrent), 1, "the downloads of torrent {torrent} since it was removed");
    }
    store.stop(at(1));
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, (0..300).map(|torrent| (torrent, 1)), "after a restart");
    store.kill();
}

pub(crate) fn only_live_swarms_are_in_memory_after_a_restart(subject: &dyn PersistentSubject) {
    const KNOWN: u64 = 20_000;
    const LIVE: u64 = 50;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..KNOWN).for_each(|torrent| complete(&*store, 0, torrent, 2));
    store.settle();
    let full = store.store().memory().bytes;
    for n in 0..2 {
        (LIVE..KNOWN).for_each(|torrent| say(&*store, 0, stopped(hash(torrent), v4(n))));
    }
    store.store().sweep_all(at(0), Retention::DropEmpty);
    store.store().sweep_all(at(0), Retention::DropEmpty);
    assert_eq!(store.store().totals().swarms, LIVE);
    store.stop(at(0));
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        let store = open(subject, folder.path(), 1);
        shortest = shortest.min(begin.elapsed());
        store.settle();
        assert_eq!(store.store().totals().swarms, LIVE, "swarms of {KNOWN} torrents there have been");
        assert_eq!(store.store().swarms().len() as u64, LIVE);
        let bytes = store.store().memory().bytes;
        assert!(bytes <= full / 4, "{bytes} bytes for {LIVE} swarms, and {full} for {KNOWN}");
        store.kill();
    }
    assert!(shortest < Duration::from_secs(1), "it takes {shortest:?} to open");
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, (0..KNOWN).step_by(97).map(|torrent| (torrent, 2)), "of those that come back");
    assert!(store.store().totals().swarms < LIVE + KNOWN / 90);
    store.kill();
}

pub(crate) fn downloads_that_were_added_are_stored_once(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..60).map(some).for_each(|(torrent, count)| complete(&*store, 0, torrent, count));
    come_back(&*store, 0, 0..60);
    (0..60).for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), 100), "there is a swarm"));
    assert!(!store.store().add_downloads(&hash(999), 5), "there is no such swarm");
    let more = |more: u32| move |(torrent, count): (u64, u32)| (torrent, count + more);
    assert_counts(&*store, 0, (0..60).map(some).map(more(100)), "in the same process");
    leave(&*store, 0, 0..30);
    assert_counts(&*store, 0, (0..30).map(some).map(more(100)), "after a sweep");
    leave(&*store, 0, 0..30);
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 1);
    // Added to the stored count, whether it is loaded yet or not.
    come_back(&*store, 1, 0..60);
    (0..60)
        .for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), 1000), "there is a swarm"));
    store.settle();
    snapshot(&*store, 1);
    assert_counts(&*store, 1, (0..60).map(some).map(more(1100)), "after a kill");
    store.stop(at(1));
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, (0..60).map(some).map(more(1100)), "after a stop");
    assert_counts(&*store, 2, [(999, 0)].into_iter(), "that had no swarm");
    store.kill();
}

/// The larger of the restored and the stored count holds, whether there is a swarm or not.
pub(crate) fn restored_downloads_are_stored_and_never_added_up(subject: &dyn PersistentSubject) {
    const STORED: u32 = 7;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..90).for_each(|torrent| complete(&*store, 0, torrent, STORED));
    store.settle();
    leave(&*store, 0, 0..90);
    store.kill();
    let store = open(subject, folder.path(), 1);
    come_back(&*store, 1, 0..30);
    store.settle();
    let given = |torrent: u64| [5, 7, 12][torrent as usize % 3];
    let record = PeerRecord { endpoint: v4(3), role: Role::Seeder, last_announce: at(1), details: None };
    for torrent in 0..60 {
        let swarm = SwarmSummary { info_hash: hash(torrent), stats: stats(0, 0, given(torrent)) };
        store.store().restore(&swarm, &[record], at(1));
    }
    let mut records = Records::new(at(1));
    (60..120).for_each(|torrent| records.push(&hash(torrent), given(torrent), &[record]));
    store.store().import(&[records], at(1));
    let expected = |torrent| (torrent, given(torrent).max(if torrent < 90 { STORED } else { 0 }));
    let all = || (0..120).map(expected);
    assert_counts(&*store, 1, all(), "in the same process");
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, all(), "after a kill");
    (0..120).for_each(|torrent| say(&*store, 2, completed(hash(torrent), v4(60))));
    store.stop(at(2));
    let store = open(subject, folder.path(), 3);
    assert_counts(&*store, 3, all().map(|(torrent, count)| (torrent, count + 1)), "after a stop");
    store.kill();
}

pub(crate) fn stored_counts_saturate(subject: &dyn PersistentSubject) {
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    come_back(&*store, 0, 1..4);
    (1..4).for_each(|torrent| assert!(store.store().add_downloads(&hash(torrent), u32::MAX - 2)));
    complete(&*store, 0, 1, 5);
    complete(&*store, 0, 2, 2);
    complete(&*store, 0, 3, 1);
    let all = || [(1, u32::MAX), (2, u32::MAX), (3, u32::MAX - 1)].into_iter();
    assert_counts(&*store, 0, all(), "in the same process");
    leave(&*store, 0, 1..4);
    store.stop(at(0));
    for round in 0..2 {
        let store = open(subject, folder.path(), 1);
        // Counted before the stored count has come.
        complete(&*store, 1, 1, 3);
        assert_counts(&*store, 1, all(), &format!("after {round} more restarts"));
        store.settle();
        leave(&*store, 1, 1..4);
        store.kill();
    }
}

pub(crate) fn batches_count_like_single_announces(subject: &dyn PersistentSubject) {
    let folder = folder();
    for round in 0..3_u32 {
        let store = open(subject, folder.path(), 0);
        // Each torrent several times in a batch: two peers finish, one of them twice; one has not finished;
        // one leaves.
        let of = |torrent: u64| {
            let (torrent, newcomer) = (hash(torrent), |n| v4(round * 10 + n));
            [
                completed(torrent, newcomer(1)),
                leecher(torrent, newcomer(2)),
                completed(torrent, newcomer(1)),
                completed(torrent, newcomer(2)),
                completed(torrent, newcomer(3)).left(5),
                stopped(torrent, newcomer(1)),
            ]
        };
        let announces: Vec<Announce> =
            (0..6).flat_map(|nth| (0..40).map(move |torrent| of(torrent)[nth])).collect();
        for some in announces.chunks(60) {
            let nobody = || PeerBuffer::new(&mut [], &mut []);
            let mut batch: Vec<_> = some.iter().map(|announce| Request::new(*announce, nobody())).collect();
            store.store().announce_batch(&mut batch, at(0), &mut SplitMix64::new(1));
            assert!(batch.iter().all(|request| request.answer.is_some()));
        }
        let so_far = (0..40).map(|torrent| (torrent, 2 * (round + 1)));
        assert_counts(&*store, 0, so_far, &format!("in round {round}"));
        leave(&*store, 0, 0..40);
        store.settle();
        store.kill();
    }
}

pub(crate) fn a_panic_in_the_callers_randomness_leaves_one_count_in_memory_and_store(
    subject: &dyn PersistentSubject,
) {
    const TORRENTS: u64 = 20;
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    for torrent in 0..TORRENTS {
        (0..30).for_each(|n| say(&*store, 0, leecher(hash(torrent), v4(n))));
        complete(&*store, 0, torrent, (torrent % 3) as u32);
    }
    for torrent in 0..TORRENTS {
        // A new peer, and one that was a leecher.
        for endpoint in [v4(100), v4(20)] {
            assert_panics_with(Panicking::TEXT, || {
                let (mut bytes, mut rng) = ([0; 6 * 3], Panicking { good: 0 });
                let mut buffer = PeerBuffer::new(&mut bytes, &mut []);
                let announce = completed(hash(torrent), endpoint).want(3);
                store.store().announce(&announce, at(0), &mut rng, &mut buffer);
            });
        }
    }
    store.settle();
    let counts: Vec<_> = (0..TORRENTS).map(|torrent| (torrent, count(&*store, torrent))).collect();
    for (torrent, count) in &counts {
        let least = (torrent % 3) as u32;
        assert!((least..=least + 2).contains(count), "{count} downloads of torrent {torrent}");
    }
    store.kill();
    let store = open(subject, folder.path(), 1);
    assert_counts(&*store, 1, counts.iter().copied(), "after a panic and a restart");
    // The store is as usable as before.
    (0..TORRENTS).for_each(|torrent| say(&*store, 1, completed(hash(torrent), v4(200))));
    store.settle();
    store.kill();
    let store = open(subject, folder.path(), 2);
    assert_counts(&*store, 2, counts.into_iter().map(|(torrent, count)| (torrent, count + 1)), "later");
    store.kill();
}

/// Ten thousand swarms are created at once. No announce waits for the counts of all of them.
pub(crate) fn announces_do_not_wait_for_stored_counts(subject: &dyn PersistentSubject) {
    const TORRENTS: u64 = 10_000;
    const PROMPTLY: Duration = Duration::from_secs(1);
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..TORRENTS).for_each(|torrent| complete(&*store, 0, torrent, 2));
    for n in 0..2 {
        (0..TORRENTS).for_each(|torrent| say(&*store, 0, stopped(hash(torrent), v4(n))));
    }
    leave(&*store, 0, 0..0);
    store.settle();
    store.kill();
    // A busy machine gets several tries.
    let mut waits = Vec::new();
    for _ in 0..3 {
        let copied = copy(folder.path());
        let store = open(subject, copied.path(), 1);
        let mut longest = Duration::ZERO;
        for torrent in 0..TORRENTS + 10 {
            let begin = Instant::now();
            tell(&*store, 1, leecher(hash(torrent), v4(2)));
            longest = longest.max(begin.elapsed());
        }
        store.settle();
        for torrent in (0..TORRENTS).step_by(101) {
            assert_eq!(count(&*store, torrent), 2, "the downloads of torrent {torrent}");
        }
        store.kill();
        if longest < PROMPTLY {
            return;
        }
        waits.push(longest);
    }
    panic!("announces waited for {waits:?}, time after time");
}
