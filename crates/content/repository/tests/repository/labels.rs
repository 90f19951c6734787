//! Torrent files that labels lead to: what is listed costs no reads, and a label that is missing, late or wrong
//! costs no torrent file.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use swarmkeep_content::{
    ContentRepository, InfoHash, Library, NewTorrent,
    block::{Allocation, Barrier, BlockDevice, BlockStore, Sector, SparseDevice},
};

use crate::library::{device, library, shelves, store, torrent};

/// Counts reads.
#[derive(Debug)]
struct Counting(Arc<SparseDevice>, AtomicU64);

impl BlockDevice for Counting {
    fn sectors(&self) -> u64 {
        self.0.sectors()
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> std::io::Result<()> {
        self.1.fetch_add(1, Relaxed);
        self.0.read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> std::io::Result<()> {
        self.0.write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> std::io::Result<()> {
        self.0.flush(barrier)
    }
}

/// Adds torrents; their info hashes.
fn add(library: &Library, count: usize) -> Vec<InfoHash> {
    let files = (0..count).map(|n| torrent(&format!("torrent {n}"), 1 + 700 * (n % 4), "a.example"));
    files.map(|file| library.add(&file).unwrap().info().info_hash()).collect()
}

/// Asserts that each torrent is described, and how many reads it took to open the store and to do that.
fn reads_of_a_list(device: &Arc<SparseDevice>, torrents: &[InfoHash]) -> u64 {
    let counting = Arc::new(Counting(Arc::clone(device), AtomicU64::new(0)));
    let library = Library::open(Arc::new(BlockStore::boot(Arc::clone(&counting), None).unwrap())).unwrap();
    assert_eq!(library.list().unwrap().len(), torrents.len());
    for (n, info_hash) in torrents.iter().enumerate() {
        let described = library.description(info_hash).unwrap().unwrap();
        assert_eq!((described.name(), described.files()), (&*format!("torrent {n}"), 1));
    }
    counting.1.load(Relaxed)
}

fn assert_files_are_there(library: &Library, torrents: &[InfoHash]) {
    for (n, info_hash) in torrents.iter().enumerate() {
        let file = torrent(&format!("torrent {n}"), 1 + 700 * (n % 4), "a.example");
        assert!(library.torrent_file(info_hash).unwrap() == Some(file), "torrent {n}");
        assert!(!library.is_damaged(info_hash).unwrap());
    }
}

#[test]
fn a_list_reads_no_torrent_file() {
    let device = device();
    let library = library(&device);
    let torrents = add(&library, 100);
    library.flush().unwrap();
    drop(library);
    let reads = reads_of_a_list(&device, &torrents);
    assert!(reads < 30, "{reads} reads");
}

#[test]
fn a_torrent_without_a_label_is_given_one() {
    let device = device();
    let torrents = add(&library(&device), 40);
    // The list has others before torrent 14 and behind it.
    for unlabelled in [0..40, 20..40, 14..15] {
        let below = store(&device);
        for info_hash in &torrents[unlabelled] {
            below.set_label(info_hash, &[]).unwrap();
        }
        below.flush().unwrap();
        drop(below);
        let read_only =
            Library::open(Arc::new(BlockStore::boot_read_only(Arc::clone(&device)).unwrap())).unwrap();
        assert_files_are_there(&read_only, &torrents);
        assert!(reads_of_a_list(&device, &torrents) > 20);
        assert!(reads_of_a_list(&device, &torrents) < 30);
        assert_files_are_there(&self::library(&device), &torrents);
    }
}

/// The process ends before the label is flushed.
#[test]
fn a_torrent_whose_label_is_not_durable_has_its_file() {
    let device = device();
    let torrents = add(&library(&device), 3);
    assert!(torrents.iter().any(|info_hash| store(&device).label(info_hash).unwrap().is_empty()));
    assert_files_are_there(&library(&device), &torrents);
    // Deleted and added again, with the same number of parts in the same places.
    for n in 0..3 {
        let library = library(&device);
        library.delete(&torrents[n]).unwrap();
        library.add(&torrent(&format!("torrent {n}"), 1 + 700 * n, "a.example")).unwrap();
        drop(library);
        assert_files_are_there(&self::library(&device), &torrents);
    }
}

/// The label says where the file lay, another file is kept there, and the process ends before its label is
/// flushed.
#[test]
fn a_file_in_the_place_of_a_damaged_one_is_its_own() {
    let device = device();
    let [old, new] = ["old", "new"].map(|name| torrent(name, 1, "a.example"));
    let first = library(&device);
    let old_hash = first.add(&old).unwrap().info().info_hash();
    first.flush().unwrap();
    drop(first);
    shelves(&*store(&device))[0].mark_incomplete(0).unwrap();
    let new_hash = library(&device).add(&new).unwrap().info().info_hash();
    for _ in 0..2 {
        let again = library(&device);
        assert_eq!(again.torrent_file(&new_hash).unwrap().as_ref(), Some(&new));
        assert_eq!(again.torrent_file(&old_hash).unwrap(), None);
    }
    library(&device).add(&old).unwrap();
    let again = library(&device);
    assert_eq!(again.torrent_file(&new_hash).unwrap().as_ref(), Some(&new));
    assert_eq!(again.torrent_file(&old_hash).unwrap().as_ref(), Some(&old));
    drop(again);
    // Another file of the same torrent.
    shelves(&*store(&device))[0].mark_incomplete(0).unwrap();
    let kept_again = torrent("new", 1, "a.longer.example");
    library(&device).add(&kept_again).unwrap();
    assert_eq!(library(&device).torrent_file(&new_hash).unwrap(), Some(kept_again));
}

#[test]
fn a_file_that_was_deleted_does_not_come_back() {
    for _ in 0..8 {
        let device = device();
        let first = library(&device);
        let [other, info_hash] = ["other", "name"]
            .map(|name| first.add(&torrent(name, 5_000, "a.example")).unwrap().info().info_hash());
        first.flush().unwrap();
        assert!(first.delete(&other).unwrap() && first.delete(&info_hash).unwrap());
        drop(first);
        let new = torrent("name", 5_000, "b.example");
        library(&device).add(&new).unwrap();
        assert!(library(&device).torrent_file(&info_hash).unwrap() == Some(new));
    }
}

#[test]
fn torrents_without_files_have_labels_too() {
    let device = device();
    let library = library(&device);
    let torrents = add(&library, 50);
    let bare = InfoHash::new([7; 20]);
    library.create(&NewTorrent::new(bare, 100, 10).unwrap()).unwrap();
    library.flush().unwrap();
    drop(library);
    let counting = Arc::new(Counting(Arc::clone(&device), AtomicU64::new(0)));
    let store = Arc::new(BlockStore::boot(Arc::clone(&counting), None).unwrap());
    let library = Library::open(store).unwrap();
    assert!(counting.1.load(Relaxed) < 30);
    assert!(library.description(&bare).unwrap().is_none() && !library.is_damaged(&bare).unwrap());
    assert_files_are_there(&library, &torrents);
}

#[test]
fn a_store_that_is_read_gets_no_labels_and_reads_each_file_once() {
    let device = device();
    let torrents = add(&library(&device), 40);
    let below = store(&device);
    torrents.iter().for_each(|info_hash| below.set_label(info_hash, &[]).unwrap());
    below.flush().unwrap();
    drop(below);
    let counting = Arc::new(Counting(Arc::clone(&device), AtomicU64::new(0)));
    let store = Arc::new(BlockStore::boot_read_only(Arc::clone(&counting)).unwrap());
    let library = Library::open(store).unwrap();
    let reads = counting.1.load(Relaxed);
    assert!(reads < 80, "{reads} reads");
    assert_files_are_there(&library, &torrents);
}

/// As after a repair has brought a deleted torrent back, whose parts are another's by now.
#[test]
fn a_label_that_names_the_parts_of_another_torrent_costs_that_one_nothing() {
    let device = device();
    let torrents = add(&library(&device), 8);
    library(&device).flush().unwrap();
    let label = store(&device).label(&torrents[3]).unwrap();
    for unlabelled in [None, Some(3)] {
        let below = store(&device);
        below.set_label(&torrents[5], &label).unwrap();
        unlabelled.iter().for_each(|&n| below.set_label(&torrents[n], &[]).unwrap());
        below.flush().unwrap();
        drop(below);
        // Found by their parts, and labelled again.
        assert_files_are_there(&library(&device), &torrents);
    }
    // Where its own parts are gone, it has no file, and a new one is kept elsewhere.
    let below = store(&device);
    let own = below.label(&torrents[5]).unwrap();
    let piece = u32::from(u16::from_le_bytes(own[own.len() - 4..][..2].try_into().unwrap()));
    shelves(&*below)[0].mark_incomplete(piece).unwrap();
    below.set_label(&torrents[5], &label).unwrap();
    below.flush().unwrap();
    drop(below);
    let library = library(&device);
    assert!(library.torrent_file(&torrents[5]).unwrap().is_none());
    library.add(&torrent("torrent 5", 701, "a.example")).unwrap();
    assert_files_are_there(&library, &torrents);
    drop(library);
    assert_files_are_there(&self::library(&device), &torrents);
}

#[test]
fn a_file_of_which_a_part_is_gone_is_none_and_can_be_kept_again() {
    let device = device();
    let library = library(&device);
    let torrents = add(&library, 4);
    library.flush().unwrap();
    drop(library);
    for piece in 0..6 {
        if !shelves(&*store(&device))[0].mark_incomplete(piece).unwrap() {
            continue;
        }
        let library = self::library(&device);
        let is_gone = |info_hash: &&InfoHash| library.torrent_file(info_hash).unwrap().is_none();
        assert_eq!(torrents.iter().filter(is_gone).count(), 1, "piece {piece}");
        add_again(&library, &torrents);
        library.flush().unwrap();
        assert_files_are_there(&library, &torrents);
    }
}

fn add_again(library: &Library, torrents: &[InfoHash]) {
    for (n, info_hash) in torrents.iter().enumerate() {
        if library.torrent_file(info_hash).unwrap().is_none() {
            library.add(&torrent(&format!("torrent {n}"), 1 + 700 * (n % 4), "a.example")).unwrap();
        }
    }
}

/// Blocks are taken in order, and the label of a torrent with many parts in many places is too long.
#[test]
fn a_file_in_too_many_places_for_a_label_is_found_by_its_parts() {
    let device = device();
    let library = library(&device);
    let torrents = add(&library, 300);
    for info_hash in torrents.iter().step_by(2) {
        library.delete(info_hash).unwrap();
    }
    let file = torrent("large", 150_000, "a.example");
    let info_hash = library.add(&file).unwrap().info().info_hash();
    library.flush().unwrap();
    drop(library);
    let read_only = BlockStore::boot_read_only(Arc::clone(&device)).unwrap();
    for below in [BlockStore::boot(Arc::clone(&device), Allocation::Ordered).unwrap(), read_only] {
        assert!(below.label(&info_hash).unwrap().is_empty());
        let library = Library::open(Arc::new(below)).unwrap();
        assert!(library.torrent_file(&info_hash).unwrap().as_ref() == Some(&file));
        assert_eq!(library.description(&info_hash).unwrap().unwrap().name(), "large");
        let others = torrents.iter().skip(1).step_by(2);
        let lost = others.filter(|info_hash| library.torrent_file(info_hash).unwrap().is_none());
        assert_eq!(lost.count(), 0);
    }
}
