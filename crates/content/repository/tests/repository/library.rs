//! Torrent files that are kept with their content: what is added is found again, whatever happened in
//! between, and no stranger's bytes pass for one.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, InfoHash, Library, Memory, NewTorrent,
    block::{Allocation, Barrier, BlockDevice, BlockStore, FormatOptions, Sector, SparseDevice},
    files::{self, FileStore},
};
use swarmkeep_metainfo::Metainfo;

/// A torrent file of `pieces` pieces, for the tracker of this name.
pub(crate) fn torrent(name: &str, pieces: usize, tracker: &str) -> Vec<u8> {
    let url = format!("http://{tracker}/announce");
    let mut torrent = format!("d8:announce{}:{url}4:info", url.len()).into_bytes();
    torrent.extend(
        format!("d6:lengthi{}e4:name{}:{name}12:piece lengthi16384e", pieces << 14, name.len()).bytes(),
    );
    torrent.extend(format!("6:pieces{}:", 20 * pieces).bytes());
    torrent.extend((0..20 * pieces).map(|at| (at * at / 7) as u8));
    torrent.extend(b"ee");
    torrent
}

pub(crate) fn device() -> Arc<SparseDevice> {
    let device = Arc::new(SparseDevice::new(64 << 8));
    BlockStore::format(&*device, FormatOptions::new().block_size(64 << 10)).unwrap();
    device
}

pub(crate) fn store(device: &Arc<SparseDevice>) -> Arc<BlockStore> {
    Arc::new(BlockStore::boot(Arc::clone(device), Allocation::Sequential).unwrap())
}

pub(crate) fn library(device: &Arc<SparseDevice>) -> Library {
    Library::open(store(device)).unwrap()
}

/// The shelves of a store, seen from below.
pub(crate) fn shelves(store: &dyn ContentRepository) -> Vec<Arc<dyn Content>> {
    let names = store.list().unwrap().into_iter().map(|summary| summary.info_hash);
    let names = names.filter(|name| name.as_bytes().starts_with(b"swarmkeep torrents"));
    names.map(|name| store.open(&name).unwrap()).collect()
}

fn taken(store: &dyn ContentRepository) -> u32 {
    shelves(store).iter().map(|shelf| shelf.pieces().unwrap().count()).sum()
}

#[test]
fn torrent_files_are_there_again_after_boot() {
    let device = device();
    let files: Vec<_> =
        [1, 100, 1_635, 1_636, 20_000].map(|pieces| torrent("some name", pieces, "a.example")).into();
    let first = library(&device);
    let hashes: Vec<_> = files.iter().map(|file| first.add(file).unwrap().info().info_hash()).collect();
    assert_eq!(first.statistics().torrents, 5);
    drop(first);
    let library = library(&device);
    assert_eq!(
        BTreeSet::from_iter(library.list().unwrap().iter().map(|torrent| torrent.info_hash)),
        BTreeSet::from_iter(hashes.clone())
    );
    assert_eq!(library.statistics().torrents, 5);
    for (file, hash) in files.iter().zip(&hashes) {
        assert!(library.torrent_file(hash).unwrap().as_ref() == Some(file));
        let metainfo = library.metainfo(hash).unwrap().unwrap();
        assert_eq!(metainfo.info().length(), library.open(hash).unwrap().geometry().len());
        assert!(matches!(library.add(file), Err(Error::Exists(_))));
    }
}

#[test]
fn a_shelf_is_nobodys_torrent() {
    let library = Library::open(Arc::new(Memory::new(&ContentConfig::new("")))).unwrap();
    library.add(&torrent("a", 1, "a.example")).unwrap();
    let name = InfoHash::new(*b"swarmkeep torrents\0\0");
    assert!(matches!(library.open(&name), Err(Error::NotFound(_))));
    assert!(!library.delete(&name).unwrap());
    assert!(matches!(library.create(&NewTorrent::new(name, 1, 1).unwrap()), Err(Error::Exists(_))));
    assert_eq!(library.list().unwrap().len(), 1);
}

#[test]
fn a_file_of_which_a_part_is_missing_or_wrong_is_none_and_can_be_kept_again() {
    let device = device();
    let file = torrent("name", 10_000, "a.example");
    let hash = library(&device).add(&file).unwrap().info().info_hash();
    for (part, wrong) in [(0, false), (6, false), (3, true)] {
        let below = store(&device);
        let shelf = &shelves(&*below)[0];
        // Where the file that was kept last has that part.
        let pieces = shelf.pieces().unwrap();
        let id_of_part = |piece: &u32| {
            let head = shelf.read_piece(*piece).unwrap();
            (head[12] == part).then(|| head[40])
        };
        let piece = pieces.iter().max_by_key(id_of_part).unwrap();
        assert!(shelf.mark_incomplete(piece).unwrap());
        if wrong {
            let mut bytes = vec![1; 32 << 10];
            bytes[..48].copy_from_slice(&shelf.read_piece(piece + 1).unwrap()[..48]);
            bytes[12] = part;
            shelf.write(u64::from(piece) << 15, &bytes).unwrap();
            shelf.mark_complete(piece).unwrap();
        }
        let library = Library::open(below).unwrap();
        assert_eq!(library.torrent_file(&hash).unwrap(), None);
        assert!(library.metainfo(&hash).unwrap().is_none() && library.is_damaged(&hash).unwrap());
        // The torrent itself is as it was; it is whole again, and the room of what was left of the old file
        // is used.
        library.add(&file).unwrap();
        drop(library);
        for _ in 0..4 {
            let library = self::library(&device);
            assert!(library.torrent_file(&hash).unwrap().as_ref() == Some(&file));
            assert!(!library.is_damaged(&hash).unwrap());
        }
    }
    assert!(taken(&*store(&device)) <= 14, "{}", taken(&*store(&device)));
}

#[test]
fn room_of_deleted_torrents_is_used_again() {
    let device = device();
    for n in 0..100 {
        let library = library(&device);
        let file = torrent(&format!("name {n}"), 4_000, "a.example");
        let hash = library.add(&file).unwrap().info().info_hash();
        assert!(library.delete(&hash).unwrap());
        assert!(matches!(library.torrent_file(&hash), Err(Error::NotFound(_))));
    }
    let store = store(&device);
    assert_eq!((shelves(&*store).len(), taken(&*store)), (1, 3));
}

#[test]
fn a_lost_shelf_whose_file_stays_is_in_nobodys_way() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let config = ContentConfig::new(folder.path());
        let files = FileStore::open(&config, files::Allocation::Sparse).unwrap();
        Library::open(Arc::new(files)).unwrap()
    };
    let files = ["a", "b"].map(|name| torrent(name, 1, "a.example"));
    open().add(&files[0]).unwrap();
    let states = folder.path().join(".swarmkeep/torrents");
    let is_shelf = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("73776172");
    let mut states = fs::read_dir(states).unwrap().map(|entry| entry.unwrap().path());
    fs::remove_file(states.find(|path| is_shelf(path)).unwrap()).unwrap();
    let library = open();
    library.add(&files[1]).expect("another shelf");
    let hash = Metainfo::parse(&files[1]).unwrap().info().info_hash();
    assert_eq!(library.torrent_file(&hash).unwrap().as_ref(), Some(&files[1]));
}

#[test]
fn a_second_shelf_is_made_when_the_first_is_full() {
    let store = Arc::new(Memory::new(&ContentConfig::new("")));
    let library = Library::open(Arc::clone(&store) as _).unwrap();
    // 62 parts each, of 512 in a shelf.
    let files: Vec<_> = (0..9).map(|n| torrent(&format!("name {n}"), 100_000, "a.example")).collect();
    let hashes: Vec<_> = files.iter().map(|file| library.add(file).unwrap().info().info_hash()).collect();
    assert_eq!(shelves(&*store).len(), 2);
    assert!(
        files
            .iter()
            .zip(&hashes)
            .all(|(file, hash)| library.torrent_file(hash).unwrap().as_ref() == Some(file))
    );
}

/// A torrent that was put in by a program, or whose file was lost.
#[test]
fn a_torrent_that_is_there_is_given_its_file() {
    let library = Library::open(Arc::new(Memory::new(&ContentConfig::new("")))).unwrap();
    let file = torrent("name", 3, "a.example");
    let other = Library::open(Arc::new(Memory::new(&ContentConfig::new("")))).unwrap();
    let info = other.add(&file).unwrap();
    let hash = info.info().info_hash();
    let content = library.create(&NewTorrent::new(hash, 3 << 14, 16 << 10).unwrap()).unwrap();
    content.write(0, &[7; 16 << 10]).unwrap();
    content.mark_complete(0).unwrap();
    library.add(&file).unwrap();
    assert_eq!(library.open(&hash).unwrap().pieces().unwrap().count(), 1);
    assert!(library.metainfo(&hash).unwrap().is_some());

    let strange = Library::open(Arc::new(Memory::new(&ContentConfig::new("")))).unwrap();
    strange.create(&NewTorrent::new(hash, 4 << 14, 16 << 10).unwrap()).unwrap();
    assert!(matches!(strange.add(&file), Err(Error::Geometry { .. })));
}

/// What deleting and adding again leaves: two files of one torrent, each of them in parts. The second was
/// kept last and lies in front.
fn kept_twice() -> (Arc<Memory>, InfoHash, [Vec<u8>; 2]) {
    let below = Arc::new(Memory::new(&ContentConfig::new("")));
    let library = || Library::open(Arc::clone(&below) as _).unwrap();
    let files = ["a.example", "b.example"].map(|tracker| torrent("name", 5_000, tracker));
    let hash = library().add(&files[0]).unwrap().info().info_hash();
    let parts = [0, 1, 2, 3].map(|piece| shelves(&*below)[0].read_piece(piece).unwrap());
    library().delete(&hash).unwrap();
    library().add(&files[1]).unwrap();
    for (piece, part) in (4..).zip(&parts) {
        shelves(&*below)[0].write(u64::from(piece) << 15, part).unwrap();
        shelves(&*below)[0].mark_complete(piece).unwrap();
    }
    (below, hash, files)
}

#[test]
fn of_two_files_of_a_torrent_the_one_that_was_kept_last_counts() {
    for _ in 0..8 {
        let (below, hash, [_, last]) = kept_twice();
        let library = Library::open(Arc::clone(&below) as _).unwrap();
        assert!(library.torrent_file(&hash).unwrap().as_ref() == Some(&last));
        library.add(&torrent("another", 5_000, "a.example")).unwrap();
        assert!(library.torrent_file(&hash).unwrap().as_ref() == Some(&last));
        assert_eq!(taken(&*below), 8, "the other's room is used again");
    }
}

#[test]
fn an_older_file_counts_where_the_last_one_is_wrong() {
    let (below, hash, [first, _]) = kept_twice();
    let shelf = &shelves(&*below)[0];
    let mut part = shelf.read_piece(1).unwrap();
    part[1_000] ^= 1;
    shelf.mark_incomplete(1).unwrap();
    shelf.write(1 << 15, &part).unwrap();
    shelf.mark_complete(1).unwrap();
    assert!(Library::open(below).unwrap().torrent_file(&hash).unwrap() == Some(first));
}

#[test]
fn parts_of_two_files_are_not_mixed() {
    let (below, hash, _) = kept_twice();
    shelves(&*below)[0].mark_incomplete(0).unwrap();
    shelves(&*below)[0].mark_incomplete(5).unwrap();
    assert_eq!(Library::open(below).unwrap().torrent_file(&hash).unwrap(), None);
}

/// A shelf that a program has made which knows nothing of torrent files.
#[test]
fn a_shelf_that_cannot_be_used_is_passed_over() {
    let store = Arc::new(Memory::new(&ContentConfig::new("")));
    let strange = InfoHash::new(*b"swarmkeep torrents\0\0");
    store.create(&NewTorrent::new(strange, 100, 10).unwrap()).unwrap();
    let file = torrent("name", 3, "a.example");
    let library = Library::open(Arc::clone(&store) as _).unwrap();
    let hash = library.add(&file).unwrap().info().info_hash();
    assert_eq!((library.statistics().torrents, store.statistics().torrents), (1, 3));
    drop(library);
    assert!(Library::open(store).unwrap().torrent_file(&hash).unwrap() == Some(file));
}

/// The torrent was deleted, and made again by somebody who says that it is another.
#[test]
fn a_file_of_other_measures_is_not_the_torrents() {
    let store = Arc::new(Memory::new(&ContentConfig::new("")));
    let library = Library::open(Arc::clone(&store) as _).unwrap();
    let hash = library.add(&torrent("name", 3, "a.example")).unwrap().info().info_hash();
    library.delete(&hash).unwrap();
    library.create(&NewTorrent::new(hash, 100, 10).unwrap()).unwrap();
    drop(library);
    let library = Library::open(store).unwrap();
    assert!(library.metainfo(&hash).unwrap().is_none());
}

/// Sectors that the device does not give.
#[derive(Debug)]
struct Failing(Arc<SparseDevice>, std::sync::Mutex<Vec<u64>>);

impl BlockDevice for Failing {
    fn sectors(&self) -> u64 {
        self.0.sectors()
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> std::io::Result<()> {
        let read = first..first + into.len() as u64;
        if self.1.lock().unwrap().iter().any(|bad| read.contains(bad)) {
            return Err(std::io::Error::other("a bad sector"));
        }
        self.0.read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> std::io::Result<()> {
        self.0.write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> std::io::Result<()> {
        self.0.flush(barrier)
    }
}

#[test]
fn a_sector_of_a_shelf_that_cannot_be_read_costs_its_file_and_no_other() {
    let device = Arc::new(Failing(device(), std::sync::Mutex::default()));
    let store = Arc::new(BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap());
    let library = Library::open(Arc::clone(&store) as _).unwrap();
    let files = ["one", "two"].map(|name| torrent(name, 1, "a.example"));
    let hashes = files.each_ref().map(|file| library.add(file).unwrap().info().info_hash());
    let shelf = &shelves(&*store)[0];
    device.1.lock().unwrap().push(shelf.place(0).unwrap() / 4096);
    assert_eq!(library.torrent_file(&hashes[0]).unwrap(), None);
    assert!(library.is_damaged(&hashes[0]).unwrap());
    assert!(library.torrent_file(&hashes[1]).unwrap().as_ref() == Some(&files[1]));
    let library = Library::open(Arc::clone(&store) as _).unwrap();
    assert!(library.torrent_file(&hashes[1]).unwrap().as_ref() == Some(&files[1]));
    library.add(&files[0]).unwrap();
    assert!(library.torrent_file(&hashes[0]).unwrap().as_ref() == Some(&files[0]));
}

#[test]
fn what_cannot_be_read_is_never_reused() {
    let device = Arc::new(Failing(device(), std::sync::Mutex::default()));
    let store = Arc::new(BlockStore::boot(Arc::clone(&device), Allocation::Sequential).unwrap());
    let open = || Library::open(Arc::clone(&store) as _).unwrap();
    let files = [("one", 1), ("four", 5_000)].map(|(name, pieces)| torrent(name, pieces, "a.example"));
    let hashes = files.each_ref().map(|file| open().add(file).unwrap().info().info_hash());
    for piece in 0..5 {
        device.1.lock().unwrap().push(shelves(&*store)[0].place(piece << 15).unwrap() / 4096);
        let library = open();
        library.add(&torrent(&format!("another {piece}"), 2_000, "a.example")).unwrap();
        device.1.lock().unwrap().clear();
        for (file, hash) in files.iter().zip(&hashes) {
            let found = open().torrent_file(hash).unwrap();
            assert!(found.as_ref() == Some(file), "piece {piece}: {hash} has lost its torrent file");
        }
    }
}

#[test]
fn a_part_with_a_wrong_head_is_told_and_never_reused() {
    let store = Arc::new(Memory::new(&ContentConfig::new("")));
    let open = || Library::open(Arc::clone(&store) as _).unwrap();
    let files = [("one", 1), ("two", 2_000)].map(|(name, pieces)| torrent(name, pieces, "a.example"));
    let hashes = files.each_ref().map(|file| open().add(file).unwrap().info().info_hash());
    let flip = |piece: u32, byte: usize| {
        let shelf = &shelves(&*store)[0];
        let mut bytes = shelf.read_piece(piece).unwrap();
        bytes[byte] ^= 1;
        shelf.mark_incomplete(piece).unwrap();
        shelf.write(u64::from(piece) << 15, &bytes).unwrap();
        shelf.mark_complete(piece).unwrap();
    };
    for (piece, byte) in (0..3).flat_map(|piece| (0..48).map(move |byte| (piece, byte))) {
        flip(piece, byte);
        let library = open();
        let named = hashes.iter().any(|hash| library.is_damaged(hash).unwrap());
        assert!(named || library.damaged_parts().unwrap() > 0, "byte {byte} of piece {piece}");
        let other = library.add(&torrent("another", 2_000, "a.example")).unwrap().info().info_hash();
        library.delete(&other).unwrap();
        flip(piece, byte);
        let library = open();
        for (file, hash) in files.iter().zip(&hashes) {
            let found = library.torrent_file(hash).unwrap();
            assert!(found.as_ref() == Some(file), "byte {byte} of piece {piece}: {hash}");
        }
        assert_eq!(library.damaged_parts().unwrap(), 0);
    }
}

/// A torrent file whose bytes look like parts of another, in a place where they would be found if parts had
/// no headers of their own.
#[test]
fn a_strangers_bytes_never_pass_for_a_file() {
    let device = device();
    let victim = torrent("victim", 3, "a.example");
    let hash = library(&device).add(&victim).unwrap().info().info_hash();
    let evil_file = torrent("victim", 3, "evil.example");
    let mut head = b"swktorr1".to_vec();
    head.extend((evil_file.len() as u32).to_le_bytes());
    head.extend(0_u32.to_le_bytes());
    head.extend(hash.as_bytes());
    let mut comment = Vec::new();
    while comment.len() < 200_000 {
        comment.extend(&head);
        comment.extend([0; 12]);
        comment.extend(&evil_file);
    }
    let mut evil = format!("d7:comment{}:", comment.len()).into_bytes();
    evil.extend(&comment);
    evil.extend(&torrent("evil", 1, "evil.example")[1..]);
    library(&device).add(&evil).unwrap();
    assert_eq!(library(&device).torrent_file(&hash).unwrap(), Some(victim));
}

#[test]
fn bytes_that_are_no_torrent_file_change_nothing() {
    let library = Library::open(Arc::new(Memory::new(&ContentConfig::new("")))).unwrap();
    assert!(matches!(library.add(b"no"), Err(Error::Metainfo(_))));
    assert_eq!(library.list().unwrap(), []);
}

mod suite {
    use super::*;

    fn over_memory(config: &ContentConfig) -> swarmkeep_content::Result<Library> {
        Library::open(Arc::new(Memory::new(config)))
    }

    fn over_block(config: &ContentConfig) -> swarmkeep_content::Result<Library> {
        Library::open(Arc::new(BlockStore::open_or_create(config, Allocation::Sequential)?))
    }

    swarmkeep_content::suite!(library_over_memory, over_memory);
    swarmkeep_content::suite!(library_over_block, over_block);
}
