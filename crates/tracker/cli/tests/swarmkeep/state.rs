//! `swarmkeep serve --state`: the state of a tracker after a stop, after a kill, with damaged files, and with
//! a folder that it may not write to.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::UdpSocket,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    A_MINUTE, Folder, NOBODY, Serve, not_as_root,
    state::{Tracker, command, hash, metrics_show, of},
    until,
};
use nix::unistd::Uid;
use swarmkeep::{
    Announce, AnnounceEvent, Endpoint, HashKey, InfoHash, PeerBuffer, RepositoryConfig, SplitMix64,
    Timestamp, TorrentRepository as _, catalog,
};
use swarmkeep_state::{Directory, Pace, State};
use swarmkeep_tests::{
    admin::client::get,
    udp::{CONNECT, Client, uninterrupted},
};
use swarmkeep_tracker_protocol::udp::ScrapeStats;
use tempfile::TempDir;

const LATEST: &str = "swarms.snapshot";

#[test]
fn a_tracker_that_was_stopped_knows_the_same_before_it_answers() {
    let folder = folder();
    let state = folder.path().join("made by it");
    let (mut tracker, said) = Tracker::start(&state, &[]);
    assert!(said.contains("there is no snapshot: beginning with nothing but download counts"), "{said}");
    // Swarm n has n seeders, a leecher, and as many downloads as seeders; another one has no peers any more.
    for n in 0..20 {
        for port in 1..=n {
            tracker.starts(n, port, 1);
            tracker.completes(n, port);
        }
        tracker.starts(n, 100, 1);
    }
    tracker.downloads_twice(99);
    tracker.stops(99, 1);
    tracker.elsewhere(99, 1, AnnounceEvent::Stopped);
    let (before, udp) = ((0..20).map(|n| tracker.scrape(n)).collect::<Vec<_>>(), tracker.udp);
    assert_eq!(before[7], ScrapeStats { seeders: 7, completed: 7, leechers: 1 });
    let said = tracker.stop();
    assert!(said.contains("snapshot taken") && said.contains(" peers=210 "), "{said}");

    // Another thread sends requests all the time, so that an answer before the end of loading is noticed.
    let asking = thread::spawn(move || {
        let (socket, began) = (UdpSocket::bind("127.0.0.1:0").expect("loopback"), Instant::now());
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("above zero");
        while began.elapsed() < A_MINUTE {
            // Refused before the tracker listens.
            let _ = socket.send_to(&CONNECT, udp);
            if uninterrupted(|| socket.recv(&mut [0; 64])).is_ok() {
                let (mut client, connection_id) = Client::of(udp).connected();
                return client.announce(of(connection_id, 7, 200, AnnounceEvent::Started, 1));
            }
        }
        panic!("no answer");
    });
    let (mut tracker, said) = Tracker::start(&state, &[&format!("--udp={udp}")]);
    assert!(said.contains("snapshot loaded file=swarms.snapshot parts=2"), "{said}");
    assert!(said.contains(" peers=210 expired=0 refused=0 took="), "{said}");
    let (counts, found) = asking.join().expect("answered");
    assert_eq!((counts.seeders, counts.leechers), (7, 2));
    assert_eq!(ports(&found), (1..=7).chain([100]).collect());
    tracker.stops(7, 200);
    let after: Vec<_> = (0..20).map(|n| tracker.scrape(n)).collect();
    assert_eq!(after, before);
    // The downloads of a swarm without peers come back with its next peer.
    tracker.starts(99, 1, 0);
    tracker.has_downloads(99, 2);
    tracker.stop();
}

/// Keeps a peer of each torrent in the folder, by this clock.
fn keep(folder: &Path, torrents: impl Iterator<Item = [u8; 20]>, clock: fn() -> Timestamp) {
    let config = RepositoryConfig::new(HashKey::from_os().expect("entropy"));
    let store = catalog::find("packed").expect("in the catalog").build(&config).expect("no limits");
    let state = State::new(store, Pace::default());
    let directory = Arc::new(Directory::open(folder).expect("ours"));
    state.open(directory, None, Arc::new(clock)).expect("an empty folder");
    let store = state.repository().as_sync().cloned().expect("packed is synchronous");
    let endpoint = Endpoint::new([127, 0, 0, 9].into(), 6881).expect("a port");
    let mut rng = SplitMix64::new(1);
    for torrent in torrents {
        let announce = Announce::new(torrent.into(), endpoint).want(0);
        store.announce(&announce, clock(), &mut rng, &mut PeerBuffer::new(&mut [], &mut []));
    }
    state.close().expect("room");
}

/// With a snapshot that is older than the counts, as after a kill. There are enough torrents to notice an
/// answer before all counts are read.
#[test]
fn the_first_answer_has_the_stored_counts() {
    const TORRENTS: u32 = 60_000;
    let folder = folder();
    let torrent = |n: u32| {
        let mut hash = [0x5a; 20];
        hash[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
        hash
    };
    keep(folder.path(), (0..TORRENTS).map(torrent), swarmkeep_tracker::now);
    let lines: String = (0..TORRENTS).map(|n| format!("{}\t7\n", InfoHash::new(torrent(n)))).collect();
    import(folder.path(), lines);
    let (_, said) = state(folder.path(), &["--json"]);
    assert!(said.contains(&format!("\"records\": {TORRENTS},")), "{said}");

    let (mut tracker, said) = Tracker::start(folder.path(), &[]);
    assert!(said.contains(&format!(" parts={TORRENTS} ")), "{said}");
    let asked: Vec<_> = (0..TORRENTS).step_by(913).map(torrent).collect();
    let answers = tracker.client.scrape(tracker.connection_id, &asked);
    assert!(answers.iter().all(|answer| answer.completed == 7), "{answers:?}");
    tracker.stop();
}

#[test]
fn a_damaged_snapshot_is_refused_and_the_one_before_is_loaded() {
    let folder = folder();
    for port in [1, 2] {
        let (mut tracker, _) = Tracker::start(folder.path(), &[]);
        tracker.starts(1, port, 1);
        tracker.stop();
    }
    change(&folder.path().join(LATEST), |bytes| *bytes.iter_mut().rev().nth(40).expect("long") ^= 1);
    let (mut tracker, said) = Tracker::start(folder.path(), &[]);
    let refusal = "a snapshot was refused, and nothing of it was loaded file=swarms.snapshot reason=";
    let (_, refused) = said.split_once(refusal).unwrap_or_else(|| panic!("{said}"));
    assert!(said.contains("ERROR") && refused.contains("at byte "), "{said}");
    assert!(said.contains("snapshot loaded file=swarms.snapshot.previous parts=1 peers=1 "), "{said}");
    assert_eq!(ports(&tracker.starts(1, 3, 1).1), BTreeSet::from([1]), "none of the damaged one");
    tracker.stop();
}

/// The tracker starts, logs the damage, serves and is not ready; the check fails, and the copy is restored.
#[test]
fn damaged_download_counts_are_logged_and_the_tracker_goes_on_until_their_copy_is_restored() {
    let folder = folder();
    let (file, copy) = (folder.path().join("downloads.redb"), folder.path().join("downloads.redb.copy"));
    import(folder.path(), format!("{}\t7\n", InfoHash::new(hash(1))));
    let good = fs::read(&copy).expect("made by the import");
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(0) && said.contains("downloads.redb.copy: download counts of 1 torrent,"), "{said}");
    change(&file, |bytes| bytes[..20_000].fill(0xa5));
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(1) && said.contains("downloads.redb: damaged: "), "{said}");

    let (mut tracker, said) = Tracker::start(folder.path(), &["--admin=127.0.0.1:0"]);
    assert!(said.contains("ERROR") && said.contains("the stored download counts are damaged"), "{said}");
    assert!(said.contains("swarmkeep state DIR --restore"), "{said}");
    let admin = tracker.admin();
    tracker.downloads_twice(2);
    assert_eq!(tracker.scrape(2).completed, 2, "it serves");
    metrics_show(admin, &["swarmkeep_downloads_damaged 1"]);
    until("it is not ready because of the counts", || {
        let ready = get(admin, "/health/ready");
        ready.status == 503 && ready.text().contains("counts are damaged")
    });
    let (code, said) = tracker.serve.stop("TERM");
    assert_eq!(code, Some(1), "counts were not saved: {said}");
    assert!(fs::read(&copy).expect("there") == good, "the copy stays");

    let (code, said) = state(folder.path(), &["--restore"]);
    assert!(code == Some(0) && said.contains("the copy is in the place of the download counts"), "{said}");
    let (mut tracker, said) = Tracker::start(folder.path(), &[]);
    assert!(!said.contains("ERROR"), "{said}");
    assert_eq!(tracker.scrape(2).completed, 2, "from the snapshot");
    tracker.starts(1, 1, 1);
    tracker.has_downloads(1, 7);
    tracker.stop();
    let (code, said) = state(folder.path(), &["--forget-below=8"]);
    assert!(code == Some(0) && said.contains("forgotten: download counts of 2 torrents"), "{said}");
    [file, copy].iter().for_each(|file| fs::remove_file(file).expect("there"));
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(0) && said.contains("no download counts\n"), "{said}");
    let (tracker, said) = Tracker::start(folder.path(), &[]);
    assert!(said.contains("WARN") && said.contains("no stored download counts in "), "{said}");
    tracker.stop();
}

#[test]
fn a_check_of_a_folder_changes_nothing_in_it_even_after_a_kill() {
    let folder = folder();
    for more in [&[][..], &["--json"], &["--restore"], &["--forget-below=1"]] {
        let (code, said) = state(folder.path(), more);
        assert!(code == Some(1) && said.contains(" has neither snapshots nor download counts"), "{said}");
        assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 0, "{more:?}");
    }
    let (mut tracker, _) = Tracker::start(folder.path(), &["--admin=127.0.0.1:0"]);
    let admin = tracker.admin();
    tracker.downloads_twice(1);
    metrics_show(admin, &["swarmkeep_unsaved_downloads 0", "swarmkeep_downloads_database_entries 1"]);
    tracker.serve.kill();
    fs::remove_file(folder.path().join(Directory::LOCK)).expect("ours");
    let files = || -> BTreeMap<_, _> {
        let files = fs::read_dir(folder.path()).expect("ours").map(|entry| entry.expect("ours"));
        files.map(|file| (file.file_name(), fs::read(file.path()).expect("ours"))).collect()
    };
    let before = files();
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(0) && said.contains("downloads.redb: download counts of 1 torrent,"), "{said}");
    assert!(before == files());
    let (code, said) = state(folder.path(), &["--forget-below=1"]);
    assert!(code == Some(0), "{said}");
    assert!(folder.path().join(Directory::LOCK).exists(), "a change locks the folder");
}

/// Imports lines of counts.
fn import(folder: &Path, lines: String) {
    let file = folder.join("lines");
    fs::write(&file, lines).expect("ours");
    let mut import = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    let output = import.arg("import").arg("--state").args([folder, &file]).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}

/// The exit code and output of `swarmkeep state`.
fn state(folder: &Path, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_swarmkeep"))
        .arg("state")
        .arg(folder)
        .args(more)
        .output()
        .expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_snapshot_of_the_latest_time_is_shown_and_loaded() {
    let folder = folder();
    keep(folder.path(), (1..=4).map(hash), || Timestamp::from_secs(u64::MAX));
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(0) && said.contains("taken at a time that is still to come, 4 swarms"), "{said}");
    let (tracker, said) = Tracker::start(folder.path(), &[]);
    assert!(said.contains("snapshot loaded"), "{said}");
    tracker.stop();
}

/// All peers have expired, as under a clock that is ahead.
#[test]
fn a_snapshot_that_has_expired_is_warned_of_and_kept() {
    let folder = folder();
    keep(folder.path(), (1..=4).map(hash), || swarmkeep_tracker::now().saturating_sub(3600));
    let good = fs::read(folder.path().join(LATEST)).expect("taken at the end");
    let (tracker, said) = Tracker::start(folder.path(), &[]);
    assert!(said.contains(" peers=0 expired=4 ") && said.contains("is the clock right?"), "{said}");
    assert!(said.contains("rename swarms.snapshot.kept-1 to swarms.snapshot"), "{said}");
    tracker.stop();
    assert!(fs::read(folder.path().join("swarms.snapshot.kept-1")).expect("kept") == good);
    let (code, said) = state(folder.path(), &[]);
    assert!(code == Some(0) && said.contains("swarms.snapshot.kept-1: taken "), "{said}");
}

/// The folder belongs to root where root runs this, and else its owner may not write to it.
#[test]
fn a_folder_that_cannot_be_written_to_ends_the_tracker_with_its_owner_and_the_remedy() {
    let folder = Folder::empty();
    let state = folder.join("state");
    fs::create_dir(&state).expect("ours");
    let command = || not_as_root(&folder, &command(&state, &[]));
    let owner = Uid::effective();
    let user = if owner.is_root() { NOBODY } else { owner.as_raw() };
    for lock in [None, Some("lock")] {
        if let Some(lock) = lock {
            // The lock of an earlier start, with the right to write.
            fs::write(state.join(lock), "").expect("ours");
            chown(state.join(lock), Some(user), None).expect("ours, or root may");
        }
        fs::set_permissions(&state, fs::Permissions::from_mode(0o555)).expect("ours");
        let (code, said) = Serve::refused(command());
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).expect("ours");
        assert_eq!(code, Some(1), "{said}");
        let owners = format!("it belongs to user {owner} and group ");
        let us = format!("with mode 0555, and this process is user {user} and group ");
        let advice = format!(" {}`", state.display());
        for text in [&format!("cannot write to {}", state.display()), &owners, &us, "as by `ch", &advice] {
            assert!(said.contains(text), "{text}: {said}");
        }
        assert!(!said.contains("listening"), "{said}");
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_warned_of() {
    for (mode, is_warned_of) in [(0o700, false), (0o755, false), (0o770, true), (0o1777, true)] {
        let folder = folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("ours");
        let (tracker, said) = Tracker::start(folder.path(), &[]);
        let warning = format!("others may write to the folder of --state {}", folder.path().display());
        assert_eq!(said.contains(&warning), is_warned_of, "{mode:o}: {said}");
        tracker.stop();
    }
}

#[test]
fn a_folder_that_was_moved_is_loaded_into_another_store() {
    let folder = folder();
    let (mut tracker, _) = Tracker::start(&folder.path().join("here"), &[]);
    (1..=30).for_each(|port| drop(tracker.starts(1, port, 1)));
    (1..=20).for_each(|port| tracker.completes(1, port));
    tracker.stop();
    fs::rename(folder.path().join("here"), folder.path().join("there")).expect("ours");
    for repository in
        ["dashmap-rwlock-parking-lot", "btreemap-rwlock-std-mutex-std", "btreemap-rwlock-tokio", "packed"]
    {
        let store = format!("--repository={repository}");
        let (mut tracker, said) = Tracker::start(&folder.path().join("there"), &[&store]);
        assert!(said.contains(" parts=1 peers=30 expired=0 refused=0 "), "{said}");
        let warned = said.contains("this store keeps download counts in snapshots only");
        assert_eq!(warned, repository.ends_with("-tokio"), "{said}");
        assert_eq!(
            tracker.scrape(1),
            ScrapeStats { seeders: 20, completed: 20, leechers: 10 },
            "{repository}"
        );
        tracker.stop();
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("room")
}

/// Changes a file.
fn change(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("there");
    how(&mut bytes);
    fs::write(path, bytes).expect("ours");
}

fn ports(peers: &[Endpoint]) -> BTreeSet<u16> {
    peers.iter().map(|peer| peer.port()).collect()
}
