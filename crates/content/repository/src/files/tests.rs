//! Tests from within the store: the order of its steps, and its behaviour when a step fails.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use proptest::prelude::*;
use swarmkeep_metainfo::FileList;

use super::{
    Allocation, Damage, FileStore, HIDDEN,
    disk::{Disk, DiskStep, Op},
    state::{Fault, LoadedState, StateRecord},
};
use crate::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits,
    Result,
};

/// Called before each step and after each change.
#[derive(Clone)]
pub(super) struct Tap(pub(super) Arc<dyn Witness>);

pub(super) trait Witness: Send + Sync {
    /// Returns whether the step is done.
    fn before(&self, step: DiskStep) -> io::Result<bool>;

    fn done(&self, _: Op) {}
}

impl<F: Fn(DiskStep) -> io::Result<()> + Send + Sync> Witness for F {
    fn before(&self, step: DiskStep) -> io::Result<bool> {
        self(step).map(|()| true)
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

const PIECE: u32 = 1 << 14;
const HASH: InfoHash = InfoHash::new([7; 20]);

fn open(folder: &Path) -> FileStore {
    FileStore::open(&ContentConfig::new(folder), Allocation::Sparse).unwrap()
}

fn hook(store: &FileStore, hook: impl Fn(DiskStep) -> io::Result<()> + Send + Sync + 'static) {
    *store.store.volume.disk.tap.lock() = Some(Tap(Arc::new(hook)));
}

/// Opens a store that calls the hook from the beginning.
fn open_hooked(
    folder: &Path,
    hook: impl Fn(DiskStep) -> io::Result<()> + Send + Sync + 'static,
) -> FileStore {
    let disk = Disk::default();
    *disk.tap.lock() = Some(Tap(Arc::new(hook)));
    FileStore::open_on(disk, &ContentConfig::new(folder), Allocation::Sparse).unwrap()
}

fn unhook(store: &FileStore) {
    *store.store.volume.disk.tap.lock() = None;
}

fn broken() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(5))
}

/// Ten files of a piece and a half each.
fn create(store: &FileStore) -> Arc<dyn Content> {
    let mut files = FileList::builder();
    for name in 0..10 {
        files.file(&["t", &name.to_string()], 3 * u64::from(PIECE) / 2, false).unwrap();
    }
    store.create(&NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap()).unwrap()
}

fn put(content: &dyn Content, piece: u32, byte: u8) {
    content.write(u64::from(piece) * u64::from(PIECE), &[byte; PIECE as usize]).unwrap();
    assert!(content.mark_complete(piece).unwrap());
}

/// The pieces that the state says are complete.
fn on_disk(folder: &Path) -> Vec<u32> {
    let bytes = std::fs::read(folder.join(HIDDEN).join("torrents").join(HASH.to_string())).unwrap();
    decode(&bytes).unwrap().complete.iter().collect()
}

fn decode(bytes: &[u8]) -> Result<LoadedState, Fault> {
    StateRecord::read(bytes.len() as u64, |into, at| io::Read::read_exact(&mut &bytes[at as usize..], into))
}

/// The bytes of a state of which no piece is complete, and where in them the have-bits begin.
fn encode(record: &StateRecord) -> (Vec<u8>, u64) {
    let mut bytes = record.head().unwrap();
    let bits = bytes.len() as u64;
    record.blank_bits().for_each(|part| bytes.extend(part));
    assert_eq!(bytes.len() as u64, bits + record.bits_len());
    (bytes, bits)
}

#[test]
fn have_bits_are_written_when_their_data_is_flushed_and_flushed_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    // The flushed files without later writes, and whether have-bits are being written.
    let seen = Arc::new(Mutex::new((BTreeSet::new(), Vec::new())));
    let steps = Arc::clone(&seen);
    hook(&store, move |step| {
        let (dirty, log) = &mut *steps.lock();
        match step {
            DiskStep::Write(file) => _ = dirty.insert(file),
            DiskStep::Flush(file) => _ = dirty.remove(&file),
            DiskStep::WriteBits | DiskStep::FlushBits => log.push((step, dirty.clone())),
            _ => {}
        }
        Ok(())
    });
    for round in 0..20 {
        let pieces = [round % 15, (round * 7 + 3) % 15];
        for piece in pieces {
            content.mark_incomplete(piece).unwrap();
            assert!(!on_disk(folder.path()).contains(&piece));
            put(&*content, piece, round as u8);
            assert!(!on_disk(folder.path()).contains(&piece), "before it is flushed");
        }
        seen.lock().1.clear();
        store.flush().unwrap();
        let log = seen.lock().1.clone();
        assert_eq!(log, [(DiskStep::WriteBits, BTreeSet::new()), (DiskStep::FlushBits, BTreeSet::new())]);
        assert!(pieces.iter().all(|piece| on_disk(folder.path()).contains(piece)));
        store.flush().unwrap();
        assert_eq!(seen.lock().1.len(), 2, "nothing is flushed twice");
    }
}

#[test]
fn a_mark_during_a_flush_waits_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    put(&*content, 0, 1);
    put(&*content, 4, 1);
    let (other, done) = (Arc::clone(&content), AtomicBool::new(false));
    hook(&store, move |step| {
        if matches!(step, DiskStep::Flush(_)) && !done.swap(true, Relaxed) {
            // Unmarked during the flush, and complete again with other bytes.
            assert!(other.mark_incomplete(4).unwrap());
            put(&*other, 4, 2);
            put(&*other, 9, 2);
        }
        Ok(())
    });
    store.flush().unwrap();
    unhook(&store);
    assert_eq!(on_disk(folder.path()), [0]);
    assert_eq!(content.read_piece(4).unwrap(), [2; PIECE as usize]);
    store.flush().unwrap();
    assert_eq!(on_disk(folder.path()), [0, 4, 9]);
}

#[test]
fn a_file_that_cannot_be_flushed_loses_its_fresh_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    (0..6).for_each(|piece| put(&*content, piece, 1));
    store.flush().unwrap();
    (6..15).for_each(|piece| put(&*content, piece, 2));
    assert!(content.mark_incomplete(2).unwrap());
    let half = u64::from(PIECE) / 2;
    content.write(2 * u64::from(PIECE), &[3; 100]).unwrap();
    content.write(3 * u64::from(PIECE) - 100, &[3; 100]).unwrap();
    // File 1 has half of piece 1 and piece 2; file 5 has half of 7 and 8.
    hook(&store, |step| if matches!(step, DiskStep::Flush(1 | 5)) { broken() } else { Ok(()) });
    assert!(matches!(store.flush(), Err(Error::Io { .. })));
    unhook(&store);
    let expected: Vec<_> = (0..15).filter(|piece| ![2, 7, 8].contains(piece)).collect();
    assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), expected);
    assert_eq!(on_disk(folder.path()), expected);
    for at in [2 * u64::from(PIECE), 7 * u64::from(PIECE), 7 * u64::from(PIECE) + half, 8 * u64::from(PIECE)]
    {
        assert!(matches!(content.read(at, &mut [0]), Err(Error::NotWritten { .. })), "at {at}");
    }
    [2, 7, 8].into_iter().for_each(|piece| put(&*content, piece, 4));
    store.flush().unwrap();
    assert_eq!(on_disk(folder.path()), (0..15).collect::<Vec<_>>());
}

#[test]
fn durable_pieces_without_bits_survive_a_file_that_cannot_be_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    let is_honest = || {
        let there: BTreeSet<_> = content.pieces().unwrap().iter().collect();
        let on_disk = on_disk(folder.path());
        assert!(on_disk.iter().all(|piece| there.contains(piece)), "{on_disk:?} of {there:?}");
    };
    // Its bit is in the file, and may be on the disk.
    put(&*content, 0, 1);
    hook(&store, |step| if step == DiskStep::FlushBits { broken() } else { Ok(()) });
    assert!(store.flush().is_err());
    put(&*content, 1, 1);
    hook(&store, |step| if step == DiskStep::Flush(0) { broken() } else { Ok(()) });
    assert!(store.flush().is_err());
    unhook(&store);
    is_honest();
    assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), [0], "1 was not flushed");
    // And one that is being unmarked.
    store.flush().unwrap();
    hook(&store, |step| if step == DiskStep::FlushBits { broken() } else { Ok(()) });
    assert!(content.mark_incomplete(0).is_err());
    put(&*content, 1, 2);
    hook(&store, |step| if step == DiskStep::Flush(0) { broken() } else { Ok(()) });
    assert!(store.flush().is_err());
    unhook(&store);
    is_honest();
    store.flush().unwrap();
    assert_eq!(on_disk(folder.path()), [0]);
    assert_eq!(content.read_piece(0).unwrap(), [1; PIECE as usize]);
}

/// Creates `count` files of a piece each.
fn create_many(store: &FileStore, count: u32) -> Arc<dyn Content> {
    let mut files = FileList::builder();
    for name in 0..count {
        files.file(&["t", &name.to_string()], PIECE.into(), false).unwrap();
    }
    store.create(&NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap()).unwrap()
}

#[test]
fn a_file_is_flushed_before_it_is_closed_and_its_error_is_reported_by_the_flush() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create_many(&store, 600);
    let seen = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    let steps = Arc::clone(&seen);
    hook(&store, move |step| {
        let (dirty, flushed) = &mut *steps.lock();
        match step {
            DiskStep::Write(file) => _ = dirty.insert(file),
            DiskStep::Flush(file) => {
                assert!(dirty.remove(&file), "{file} has nothing to flush");
                *flushed += 1;
                if file == 7 {
                    return broken();
                }
            }
            _ => {}
        }
        Ok(())
    });
    (0..600).for_each(|piece| put(&*content, piece, 3));
    assert!((300..400).contains(&seen.lock().1), "{} flushed as others were opened", seen.lock().1);
    assert!(content.pieces().unwrap().contains(7), "the error was not reported yet");
    assert!(matches!(store.flush(), Err(Error::Io { .. })));
    assert_eq!(*seen.lock(), (BTreeSet::new(), 600));
    let expected: Vec<_> = (0..600).filter(|&piece| piece != 7).collect();
    assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), expected);
    assert_eq!(on_disk(folder.path()), expected);
    unhook(&store);
    put(&*content, 7, 4);
    store.flush().unwrap();
    assert_eq!(on_disk(folder.path()).len(), 600);
}

#[test]
fn a_flush_keeps_no_file_of_a_torrent_open_that_is_deleted_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    put(&*content, 0, 1);
    put(&*content, 9, 1);
    let (other, done) = (store.clone(), AtomicBool::new(false));
    hook(&store, move |step| {
        if matches!(step, DiskStep::Flush(_)) && !done.swap(true, Relaxed) {
            assert!(other.delete(&HASH).unwrap());
        }
        Ok(())
    });
    store.flush().unwrap();
    unhook(&store);
    let root = folder.path().canonicalize().unwrap();
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.unwrap().path().read_link().ok());
    let kept: Vec<_> = open.filter(|path| path.starts_with(root.join("t"))).collect();
    assert!(kept.is_empty(), "{kept:?}");
}

#[test]
fn reads_do_not_wait_while_a_piece_is_unmarked_or_a_torrent_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    (0..3).for_each(|piece| put(&*content, piece, 1));
    store.flush().unwrap();
    let reads = Arc::new(Mutex::new(Vec::new()));
    let (other, log) = (Arc::clone(&content), Arc::clone(&reads));
    hook(&store, move |step| {
        if matches!(step, DiskStep::FlushBits | DiskStep::SyncDeleted) {
            let (tell, told) = std::sync::mpsc::channel();
            let content = Arc::clone(&other);
            std::thread::spawn(move || tell.send(content.read_piece(1).is_ok()));
            log.lock().push((step, told.recv_timeout(std::time::Duration::from_secs(5))));
        }
        Ok(())
    });
    assert!(content.mark_incomplete(0).unwrap());
    assert!(store.delete(&HASH).unwrap());
    unhook(&store);
    assert_eq!(*reads.lock(), [(DiskStep::FlushBits, Ok(true)), (DiskStep::SyncDeleted, Ok(true))]);
}

#[test]
fn a_torrent_is_not_used_if_its_missing_pieces_cannot_be_noted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    (0..15).for_each(|piece| put(&*content, piece, 1));
    store.flush().unwrap();
    drop((content, store));
    std::fs::remove_file(folder.path().join("t/0")).unwrap();
    for failing in [DiskStep::WriteBits, DiskStep::FlushBits, DiskStep::SyncMended] {
        let store = open_hooked(folder.path(), move |step| if step == failing { broken() } else { Ok(()) });
        assert!(
            matches!(store.report().damage[..], [Damage::Unavailable { info_hash: HASH, .. }]),
            "{failing:?}"
        );
        assert!(matches!(store.open(&HASH), Err(Error::Unavailable { .. })));
        assert_eq!(folder.path().join("t/0").exists(), failing == DiskStep::SyncMended);
        drop(store);
        // For the next, if it was made in the end.
        let _ = std::fs::remove_file(folder.path().join("t/0"));
    }
    let store = open(folder.path());
    assert_eq!(
        store.open(&HASH).unwrap().pieces().unwrap().iter().collect::<Vec<_>>(),
        (2..15).collect::<Vec<_>>()
    );
}

#[test]
fn a_create_that_cannot_be_undone_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let new = NewTorrent::new(HASH, 10, PIECE).unwrap();
    hook(&store, |step| match step {
        DiskStep::SyncPlaced | DiskStep::SyncDeleted => broken(),
        _ => Ok(()),
    });
    assert!(matches!(store.create(&new), Err(Error::Io { .. })));
    unhook(&store);
    assert!(matches!(store.create(&new), Err(Error::Unavailable { .. })), "its files are there");
    assert_eq!(store.statistics().used, 0);
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.report().damage, []);
    assert!(store.delete(&HASH).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no files of a torrent are left");
    // One that can is gone.
    hook(&store, |step| if step == DiskStep::SyncPlaced { broken() } else { Ok(()) });
    assert!(matches!(store.create(&new), Err(Error::Io { .. })));
    unhook(&store);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    store.create(&new).unwrap();
}

#[test]
fn names_that_a_file_system_takes_for_the_same_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // As if the file before had made it, under another name.
    let making = folder.path().join(HIDDEN).join("making").join(HASH.to_string());
    std::fs::create_dir_all(making.join("t")).unwrap();
    std::fs::write(making.join("t/4"), "").unwrap();
    let mut files = FileList::builder();
    (0..10).for_each(|name| _ = files.file(&["t", &name.to_string()], 10, false).unwrap());
    let new = NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap();
    assert!(matches!(store.create(&new), Err(Error::Unsupported(what)) if what.contains("distinguish")));
    assert!(!making.exists());
    store.create(&new).unwrap();
}

#[test]
fn few_new_files_are_flushed_one_by_one_and_many_all_at_once() {
    for (folders, flushes) in [(5, 12), (200, 33)] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let count = Arc::new(Mutex::new(0));
        let steps = Arc::clone(&count);
        hook(&store, move |step| {
            *steps.lock() += u32::from(matches!(step, DiskStep::SyncMade | DiskStep::FlushMade));
            Ok(())
        });
        let mut files = FileList::builder();
        (0..folders).for_each(|name| _ = files.file(&["t", &name.to_string(), "a"], 10, false).unwrap());
        store.create(&NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap()).unwrap();
        assert!(*count.lock() <= flushes, "{} for {folders}", *count.lock());
    }
}

#[test]
fn have_bits_that_cannot_be_read_are_unknown_and_the_others_known() {
    let mut files = FileList::builder();
    files.file(&["a"], 20_000, false).unwrap();
    let record = record(files.build().unwrap(), 1);
    let (mut bytes, at) = encode(&record);
    let mut complete = PieceBits::none(record.geometry.pieces());
    (0..complete.pieces()).for_each(|piece| _ = complete.insert(piece));
    for (index, sector) in (0..).zip(bytes[at as usize..].chunks_exact_mut(512)) {
        sector.copy_from_slice(&record.sector(index, &complete, |_| true));
    }
    // The disk does not give the third sector, nor anything that it is part of.
    let bad = at + 2 * 512..at + 3 * 512;
    let read = StateRecord::read(bytes.len() as u64, |into, at| {
        let range = at..at + into.len() as u64;
        if range.start < bad.end && bad.start < range.end {
            return broken();
        }
        into.copy_from_slice(&bytes[range.start as usize..range.end as usize]);
        Ok(())
    });
    let read = read.unwrap();
    assert_eq!(
        read.unknown.into_iter().flatten().collect::<Vec<_>>(),
        (2 * 4064..3 * 4064).collect::<Vec<_>>()
    );
    assert_eq!(read.complete.count(), 20_000 - 4064);
}

#[test]
fn have_bits_that_cannot_be_written_are_written_by_the_next_flush() {
    for failing in [DiskStep::WriteBits, DiskStep::FlushBits] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let content = create(&store);
        (0..3).for_each(|piece| put(&*content, piece, 1));
        hook(&store, move |step| if step == failing { broken() } else { Ok(()) });
        assert!(matches!(store.flush(), Err(Error::Io { .. })));
        unhook(&store);
        assert_eq!(content.pieces().unwrap().count(), 3);
        // One of them is unmarked: its bit on the disk is cleared when the call returns.
        assert!(content.mark_incomplete(1).unwrap());
        assert!(!on_disk(folder.path()).contains(&1));
        store.flush().unwrap();
        assert_eq!(on_disk(folder.path()), [0, 2]);
    }
}

#[test]
fn a_piece_that_cannot_be_taken_back_stays_complete() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    put(&*content, 3, 9);
    store.flush().unwrap();
    for failing in [DiskStep::WriteBits, DiskStep::FlushBits] {
        hook(&store, move |step| if step == failing { broken() } else { Ok(()) });
        assert!(matches!(content.mark_incomplete(3), Err(Error::Io { .. })));
        unhook(&store);
        assert_eq!(content.read_piece(3).unwrap(), [9; PIECE as usize]);
        store.flush().unwrap();
        assert_eq!(on_disk(folder.path()), [3]);
    }
}

#[test]
fn a_write_that_fails_counts_as_never_written_and_gives_its_room_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    let empty = store.statistics().used;
    content.write(0, &[1; PIECE as usize]).unwrap();
    hook(&store, |step| if step == DiskStep::Write(1) { broken() } else { Ok(()) });
    assert!(matches!(content.write(100, &[2; 2 * PIECE as usize]), Err(Error::Io { .. })));
    unhook(&store);
    content.read(0, &mut [0; 100]).unwrap();
    assert!(matches!(content.read(100, &mut [0]), Err(Error::NotWritten { at: 100 })));
    assert_eq!(store.statistics().used, empty + 100);
}

#[test]
fn a_deleted_torrent_stays_so_when_its_files_cannot_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    put(&*create(&store), 0, 1);
    store.flush().unwrap();
    hook(&store, |step| if step == DiskStep::Remove(5) { broken() } else { Ok(()) });
    assert!(matches!(store.delete(&HASH), Err(Error::Io { .. })));
    assert!(matches!(store.open(&HASH), Err(Error::NotFound(_))));
    assert!(store.create(&NewTorrent::new(HASH, 10, PIECE).unwrap()).is_err(), "they are still to go");
    assert!(matches!(store.delete(&HASH), Err(Error::Io { .. })), "that is tried again");
    unhook(&store);
    drop(store);
    assert!(folder.path().join("t/7").exists());
    let store = open(folder.path());
    assert!(store.list().unwrap().is_empty() && !folder.path().join("t").exists());
    assert_eq!(store.statistics().used, 0);
    create(&store);
    hook(&store, |step| if step == DiskStep::Remove(5) { broken() } else { Ok(()) });
    assert!(store.delete(&HASH).is_err());
    unhook(&store);
    // Created again, over files that are removed first.
    let content = create(&store);
    assert_eq!(content.pieces().unwrap().count(), 0);
    assert!(folder.path().join("t/7").exists());
    assert_eq!(store.statistics().used, 1024);
    drop(content);
    hook(&store, |step| if step == DiskStep::Remove(5) { broken() } else { Ok(()) });
    assert!(store.delete(&HASH).is_err());
    unhook(&store);
    assert!(store.delete(&HASH).unwrap() && !folder.path().join("t").exists());
    assert!(!store.delete(&HASH).unwrap());
}

/// Two files of a piece and a half each.
fn pair() -> NewTorrent {
    let mut files = FileList::builder();
    for name in ["a", "b"] {
        files.file(&["pair", name], 3 * u64::from(PIECE) / 2, false).unwrap();
    }
    NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap()
}

#[test]
fn files_that_are_all_there_are_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let pair_folder = folder.path().join("pair");
    std::fs::create_dir(&pair_folder).unwrap();
    for (name, byte) in [("a", 1), ("b", 2)] {
        std::fs::write(pair_folder.join(name), [byte; 3 * PIECE as usize / 2]).unwrap();
    }
    std::fs::write(pair_folder.join("mine"), "mine").unwrap();
    let store = open(folder.path());
    assert_eq!(adopt(&store, &pieces(0..3)).unwrap(), Some(vec![]));
    let content = store.open(&HASH).unwrap();
    assert_eq!(content.read_piece(2).unwrap(), [2; PIECE as usize]);
    assert!(matches!(content.write(0, &[1]), Err(Error::Complete { piece: 0 })));
    assert_eq!(on_disk(folder.path()), [0, 1, 2]);
    assert_eq!(store.torrent_at("Pair"), Some(HASH));
    assert!(matches!(adopt(&store, &pieces(0..3)), Err(Error::Exists(_))));
    let used = store.statistics().used;
    drop((content, store));
    let store = open(folder.path());
    assert_eq!((store.report().damage.len(), store.list().unwrap()[0].complete), (0, 3));
    assert_eq!(store.statistics().used, used);
    assert!(store.delete(&HASH).unwrap() && store.statistics().used == 0);
    let names = std::fs::read_dir(&pair_folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["mine"]);
}

/// Takes up the pair, of which files with a right piece have the content.
fn adopt(store: &FileStore, right: &PieceBits) -> Result<Option<Vec<PathBuf>>> {
    let NewTorrent { geometry, files, .. } = pair();
    let files = files.unwrap();
    let has_content = |index| {
        let file: swarmkeep_metainfo::File<'_> = files.get(index).unwrap();
        geometry.pieces_of(&file.range()).any(|piece| right.contains(piece))
    };
    store.adopt(&pair(), right, has_content)
}

fn pieces(right: impl IntoIterator<Item = u32>) -> PieceBits {
    let mut bits = PieceBits::none(3);
    right.into_iter().for_each(|piece| _ = bits.insert(piece));
    bits
}

/// Lengths of the files of [`pair`], if they are there, of bytes that are 1.
fn pair_in(folder: &std::path::Path, lengths: [Option<usize>; 2]) -> [std::path::PathBuf; 2] {
    let paths = ["a", "b"].map(|name| folder.join("pair").join(name));
    std::fs::create_dir(folder.join("pair")).unwrap();
    for (path, len) in paths.iter().zip(lengths) {
        len.into_iter().for_each(|len| std::fs::write(path, vec![1; len]).unwrap());
    }
    paths
}

#[test]
fn a_part_of_a_torrent_is_adopted_and_other_files_get_other_names() {
    let whole = 3 * PIECE as usize / 2;
    let half = PIECE as usize / 2;
    // Lengths of the files, right pieces, then complete pieces, and whether the second file is renamed.
    for (a, b, right, complete, renamed) in [
        (whole, Some(whole), vec![0], vec![0], true),
        (whole, Some(whole), vec![0, 1], vec![0, 1], false),
        (whole, None, vec![0], vec![0], false),
        (PIECE as usize, None, vec![0], vec![0], false),
        (whole, Some(half), vec![0, 1], vec![0, 1], false),
        (whole, Some(half), vec![0], vec![0], true),
        (whole, Some(0), vec![0], vec![0], false),
        // It is too long: its right pieces are fetched again.
        (whole, Some(whole + 1), vec![0, 1, 2], vec![0], true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let paths = pair_in(folder.path(), [Some(a), b]);
        let store = open(folder.path());
        let case = format!("{a} {b:?} {right:?}");
        let found = folder.path().canonicalize().unwrap().join("pair/b.found");
        let aside = adopt(&store, &pieces(right)).unwrap().unwrap();
        assert_eq!(aside, Vec::from_iter(renamed.then(|| found.clone())), "{case}");
        let lengths = paths.map(|path| std::fs::metadata(path).unwrap().len());
        assert_eq!(lengths, [whole as u64; 2], "{case}");
        assert_eq!(std::fs::read(&found).ok().map(|bytes| bytes.len()), b.filter(|_| renamed), "{case}");
        let content = store.open(&HASH).unwrap();
        assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), complete, "{case}");
        assert_eq!(on_disk(folder.path()), complete, "{case}");
        for piece in 0..3 {
            let is_right = content.read_piece(piece).is_ok_and(|bytes| bytes == [1; PIECE as usize]);
            assert_eq!(is_right, complete.contains(&piece), "{case}");
        }
        let rest: Vec<_> = (0..3).filter(|piece| !complete.contains(piece)).collect();
        rest.iter().for_each(|&piece| put(&*content, piece, 2));
        store.flush().unwrap();
        let used = store.statistics().used;
        drop((content, store));
        let store = open(folder.path());
        assert_eq!((store.report().damage.len(), store.list().unwrap()[0].complete), (0, 3), "{case}");
        assert_eq!(store.statistics().used, used, "{case}");
        assert!(store.delete(&HASH).unwrap());
        assert_eq!(store.statistics().used, 0, "{case}");
    }
}

#[test]
fn only_files_of_its_own_are_written_to() {
    use std::os::unix::fs::PermissionsExt;
    let whole = 3 * PIECE as usize / 2;
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = pair_in(folder.path(), [Some(whole), Some(whole)]);
    // A file with all of its pieces may have other names, one that will be written may not.
    let others = ["other a", "other b"].map(|name| folder.path().join(name));
    for (file, other) in [&a, &b].into_iter().zip(&others) {
        std::fs::hard_link(file, other).unwrap();
    }
    let store = open(folder.path());
    let found = folder.path().canonicalize().unwrap().join("pair/b.found");
    assert_eq!(adopt(&store, &pieces([0, 1])).unwrap(), Some(vec![found]));
    let content = store.open(&HASH).unwrap();
    assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), [0]);
    [1, 2].into_iter().for_each(|piece| put(&*content, piece, 2));
    store.flush().unwrap();
    assert_eq!(std::fs::read(&others[1]).unwrap(), vec![1; whole]);

    // Two names of one file are not distinguished.
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = pair_in(folder.path(), [Some(whole), None]);
    std::fs::hard_link(&a, &b).unwrap();
    assert_eq!(adopt(&open(folder.path()), &pieces(0..3)).unwrap(), None);

    // One that cannot be written to, before anything else is renamed.
    let folder = tempfile::tempdir().unwrap();
    let [_, b] = pair_in(folder.path(), [Some(whole), Some(whole / 2)]);
    std::fs::set_permissions(&b, PermissionsExt::from_mode(0o400)).unwrap();
    let writable = File::options().write(true).open(&b).is_ok();
    let adopted = open(folder.path()).adopt(&pair(), &pieces([2]), |index| index == 1);
    assert_eq!(adopted.is_ok(), writable);
    assert_eq!(folder.path().join("pair/a.found").exists(), writable);

    // A new name is none of the torrent's.
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("pair")).unwrap();
    std::fs::write(folder.path().join("pair/a"), [7; 9]).unwrap();
    std::fs::write(folder.path().join("pair/b"), vec![1; PIECE as usize]).unwrap();
    let mut files = FileList::builder();
    for name in ["a", "a.found", "b"] {
        files.file(&["pair", name], PIECE.into(), false).unwrap();
    }
    let new = NewTorrent::with_files(HASH, PIECE, files.build().unwrap()).unwrap();
    let renamed = open(folder.path()).adopt(&new, &pieces([2]), |index| index == 2).unwrap();
    assert_eq!(renamed, Some(vec![folder.path().canonicalize().unwrap().join("pair/a.found-2")]));
}

#[test]
fn files_without_a_right_piece_are_not_adopted_and_stay() {
    let whole = 3 * PIECE as usize / 2;
    for (a, b, right) in [
        (None, None, vec![]),
        (None, None, vec![0, 1, 2]),
        (Some(whole), Some(whole), vec![]),
        (Some(whole), None, vec![2]),
        (Some(whole + 1), None, vec![0]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let paths = pair_in(folder.path(), [a, b]);
        let store = open(folder.path());
        assert_eq!(adopt(&store, &pieces(right)).unwrap(), None, "{a:?} {b:?}");
        assert_eq!((store.list().unwrap().len(), store.statistics().used), (0, 0));
        // It can be created all the same, elsewhere.
        store.create(&pair()).unwrap();
        let there = paths.map(|path| std::fs::read(path).ok().map(|bytes| bytes.len()));
        assert_eq!(there, [a, b]);
    }
    // Nor if something else than a file has the place of one.
    let folder = tempfile::tempdir().unwrap();
    let [_, b] = pair_in(folder.path(), [Some(whole), None]);
    std::fs::create_dir(b).unwrap();
    let store = open(folder.path());
    assert_eq!(adopt(&store, &pieces([0])).unwrap(), None);
    // Nor beyond the capacity, behind a link, or if its state cannot be written.
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        std::fs::write(elsewhere.path().join(name), vec![1; whole]).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("pair")).unwrap();
    let config = ContentConfig::new(folder.path()).capacity(u64::from(PIECE));
    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    let right = pieces(0..3);
    assert_eq!(adopt(&store, &right).unwrap(), None);
    std::fs::remove_file(folder.path().join("pair")).unwrap();
    std::fs::rename(elsewhere.path(), folder.path().join("pair")).unwrap();
    assert!(matches!(adopt(&store, &right), Err(Error::Full { .. })));
    drop(store);
    let store = open(folder.path());
    hook(&store, |step| if step == DiskStep::FlushState { broken() } else { Ok(()) });
    assert!(adopt(&store, &right).is_err());
    unhook(&store);
    assert_eq!(store.statistics().used, 0);
    assert!(adopt(&store, &right).unwrap().is_some());
}

/// Its torrent files were kept in torrents of their own.
#[test]
fn a_folder_of_version_1_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let mut files = FileList::builder();
    files.file(&["a"], 5, false).unwrap();
    let (mut state, _) = encode(&record(files.build().unwrap(), 5));
    state[8] = 1;
    let checksum = crc32c::crc32c(&state[..56]);
    state[56..60].copy_from_slice(&checksum.to_le_bytes());
    let path = folder.path().join(HIDDEN).join("torrents").join(HASH.to_string());
    std::fs::write(&path, &state).unwrap();
    let refused = FileStore::open(&ContentConfig::new(folder.path()), Allocation::Sparse).unwrap_err();
    let told = "its states have version 1, and commit 7132e1d is the last that reads them";
    assert_eq!(refused.to_string(), format!("{}: {told}", folder.path().canonicalize().unwrap().display()));
    assert_eq!(std::fs::read(&path).unwrap(), state);
    // A flipped bit is damage of one torrent.
    state[56] ^= 1;
    std::fs::write(&path, &state).unwrap();
    assert!(matches!(open(folder.path()).report().damage[..], [Damage::State { .. }]));
}

fn record(files: FileList, piece_length: u32) -> StateRecord {
    let geometry = Geometry::new(files.length(), piece_length).unwrap();
    StateRecord { info_hash: HASH, geometry, files: Arc::new(files), apart: false }
}

prop_compose! {
    fn lists()(
        entries in prop::collection::vec((0..4_u8, 0..5_u8, 0..100_u64, 0..3_u8), 1..30)
    ) -> FileList {
        let mut files = FileList::builder();
        files.file(&["t", "first"], 1, true).unwrap();
        for (nth, (folder, deep, length, kind)) in entries.into_iter().enumerate() {
            if kind == 2 {
                files.padding(length).unwrap();
                continue;
            }
            let name = format!("ü{nth}");
            let folder = format!("folder {folder}");
            let mut path = vec!["t"];
            path.resize(1 + usize::from(deep), &folder);
            path.push(&name);
            files.file(&path, length, kind == 1).unwrap();
        }
        files.build().unwrap()
    }
}

/// A state as it is on the disk, with the checksums that its bytes should have.
fn seal(bytes: &mut [u8]) {
    let field = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    if bytes.len() < 60 {
        return;
    }
    let list = 60..(60 + field(bytes, 48) as usize).min(bytes.len());
    let checksum = crc32c::crc32c(&bytes[list]);
    bytes[52..56].copy_from_slice(&checksum.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..56]);
    bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
}

proptest! {
    #[test]
    fn states_read_as_they_were_written(files in lists(), piece_length in 1..50_u32, apart: bool, seed: u64) {
        let record = StateRecord { apart, ..record(files, piece_length) };
        let (mut bytes, at) = encode(&record);
        let mut complete = PieceBits::none(record.geometry.pieces());
        for piece in (0..complete.pieces()).filter(|piece| seed >> (piece % 64) & 1 == 1) {
            complete.insert(piece);
        }
        let sector = record.sector(0, &complete, |_| true);
        bytes[at as usize..at as usize + 512].copy_from_slice(&sector);
        let read = decode(&bytes).unwrap();
        prop_assert_eq!(&*read.record.files, &*record.files);
        prop_assert_eq!(read.record.geometry, record.geometry);
        prop_assert_eq!((read.record.info_hash, read.record.apart, read.bits), (HASH, apart, at));
        prop_assert_eq!((read.complete, read.unknown), (complete, vec![]));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 60..3000), list: u16) {
        prop_assert!(decode(&bytes).is_err());
        // Through the magic, the version and the checksums, one after another.
        bytes[..12].copy_from_slice(b"swkfiles\x01\0\0\0");
        prop_assert!(decode(&bytes).is_err());
        let list = u32::from(list) % (bytes.len() as u32 - 59);
        bytes[48..52].copy_from_slice(&list.to_le_bytes());
        seal(&mut bytes);
        prop_assert!(decode(&bytes).is_err());
        // As long as it says.
        let bits = (60 + list).next_multiple_of(512);
        bytes[36..48].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        bytes.resize(bits as usize + 512, 0);
        seal(&mut bytes);
        prop_assert!(!matches!(decode(&bytes), Err(Fault::Wrong("not as long as it says" | "its head is damaged"))));
    }

    #[test]
    fn no_state_that_was_changed_and_sealed_makes_the_reader_panic(
        files in lists(),
        changes in prop::collection::vec((0..400_usize, any::<u8>()), 1..6),
    ) {
        let (mut bytes, _) = encode(&record(files, 7));
        for (at, byte) in changes {
            // Not the bytes that are checked first.
            let at = 16 + at % (bytes.len() - 16);
            bytes[at] = byte;
        }
        seal(&mut bytes);
        if let Ok(read) = decode(&bytes) {
            prop_assert_eq!(read.record.files.length(), read.record.geometry.len());
        }
    }
}

#[test]
fn a_state_with_paths_that_lead_out_is_refused() {
    for name in ["..", ".", "a/b", "a\\b"] {
        let mut files = FileList::builder();
        files.file(&["safe", &"x".repeat(name.len())], 5, false).unwrap();
        let (mut bytes, _) = encode(&record(files.build().unwrap(), 5));
        let at = 60 + 1 + 8 + 2 + 1 + 4 + 1;
        assert_eq!(bytes[at], b'x');
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        seal(&mut bytes);
        assert!(matches!(decode(&bytes), Err(Fault::Files(_))), "{name:?}");
    }
}

#[test]
fn a_head_that_promises_more_than_there_is_takes_no_memory() {
    let mut files = FileList::builder();
    files.file(&["a"], 5, false).unwrap();
    let (mut bytes, _) = encode(&record(files.build().unwrap(), 5));
    bytes[48..52].copy_from_slice(&0x3fff_ffff_u32.to_le_bytes());
    bytes[40..48].copy_from_slice(&(1_u64 << 33).to_le_bytes());
    bytes[36..40].copy_from_slice(&16_u32.to_le_bytes());
    seal(&mut bytes);
    assert!(matches!(decode(&bytes), Err(Fault::Wrong("not as long as it says"))));
}
