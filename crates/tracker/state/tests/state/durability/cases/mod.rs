//! The cases: plain functions over a [`PersistentSubject`], one per sentence; and their tools.

pub(crate) mod counts;
pub(crate) mod snapshots;

use std::{collections::BTreeMap, fs, path::Path};

use swarmkeep::{
    Announce, Announced, Endpoint, Family, InfoHash, PeerBuffer, PeerRecord, RepositoryConfig, Retention,
    Role, SplitMix64, Timestamp, TorrentRepository, TorrentRepositoryExt,
};
use swarmkeep_conformance::kit::{self, at, completed, config, hash, leecher, peer, stopped};
use tempfile::TempDir;

use super::{Persistent, PersistentSubject};

/// The peers of a store with role and time.
type Peers = BTreeMap<(InfoHash, Endpoint), (Role, Timestamp)>;

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
