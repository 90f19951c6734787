//! Cases of snapshots: what they contain, what a restart loads, and damaged ones.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, Budget, Changes, InfoHash, PeerBuffer, Random, Retention, Role, SplitMix64, SwarmStats,
    SwarmSummary, TorrentRepository, TorrentRepositoryExt,
};
use swarmkeep_conformance::{
    kit::{LIFETIME, TRIES, at, completed, config, hash, leecher, peer, seeder, stats, stopped},
    threads::SetOnDrop,
};
use tempfile::TempDir;

use super::{
    Peers, assert_counts, assert_peers, complete, copy, count, family, folder, leave, open, peers_of,
    populate, read_latest, remove, say, snapshot, tell, v4,
};
use crate::durability::PersistentSubject;

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
        let (store, done, started) =
            (open(subject, folder.path(), 0), AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let (store, done, started) = (&*store, &done, &started);
            let _set = SetOnDrop(done);
            let others = scope.spawn(move || {
                for turn in (0..u64::MAX).take_while(|_| !done.load(SeqCst)) {
                    let (torrent, endpoint) = (hash(turn % 40), v4(turn as u32 % 300));
                    let event = [leecher, completed, stopped][(turn / 300 % 3) as usize];
                    say(store, 1, event(torrent, endpoint));
                    if turn % 50 == 0 {
                        store.store().sweep(at(1), Retention::DropEmpty, Budget::peers(20));
                        remove(store, 30 + turn / 50 % 10);
                    }
                    started.store(true, SeqCst);
                }
            });
            while !started.load(SeqCst) && !others.is_finished() {
                thread::yield_now();
            }
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
    let folder = folder();
    let store = open(subject, folder.path(), 0);
    (0..30_000).for_each(|n| say(&*store, 0, leecher(hash(1), v4(n))));
    (0..20_000).for_each(|n| say(&*store, 0, leecher(hash(u64::from(n) / 3), v4(n))));
    let is_free = |_| {
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
            // A busy machine may keep the announcer away during a snapshot, whether it would have to wait or not.
            let snapshot = |_| {
                let (begin, before) = (Instant::now(), turns.load(SeqCst));
                let taken = store.snapshot(at(0));
                let (took, during) = (begin.elapsed(), turns.load(SeqCst) - before);
                taken.expect("it can be taken");
                (during > 2).then_some(took)
            };
            let _done = SetOnDrop(&done);
            let took = (0..10).find_map(snapshot);
            drop(_done);
            (took, announcer.join().expect("announces do not panic"))
        });
        took.is_some_and(|took| longest < took / 2)
    };
    // A busy machine may keep one of the two threads from running.
    assert!((0..TRIES).any(is_free), "some announce waited for half of each of {TRIES} snapshots");
    store.kill();
}
