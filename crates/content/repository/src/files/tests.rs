//! Tests from within the store: the order of its steps, and its behaviour when a step fails.

mod adopting;
mod states;

use std::{
    collections::BTreeSet,
    fmt, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use swarmkeep_metainfo::FileList;
use tempfile::TempDir;

use super::{
    Allocation, Damage, FileStore, HIDDEN,
    disk::{Disk, DiskStep, Op},
    state::{Fault, LoadedState, StateRecord},
};
use crate::{Content, ContentConfig, ContentExt, ContentRepository, Error, InfoHash, NewTorrent, Result};

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

/// Does something while a step fails.
fn failing<T>(store: &FileStore, failing: DiskStep, act: impl FnOnce() -> T) -> T {
    hook(store, move |step| if step == failing { broken() } else { Ok(()) });
    let done = act();
    unhook(store);
    done
}

fn broken() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(5))
}

fn list(files: impl IntoIterator<Item = (String, u64)>) -> FileList {
    let mut list = FileList::builder();
    for (path, length) in files {
        list.file(&path.split('/').collect::<Vec<_>>(), length, false).unwrap();
    }
    list.build().unwrap()
}

fn torrent(files: impl IntoIterator<Item = (String, u64)>) -> NewTorrent {
    NewTorrent::with_files(HASH, PIECE, list(files)).unwrap()
}

/// Ten files of a piece and a half each.
fn create(store: &FileStore) -> Arc<dyn Content> {
    store.create(&torrent((0..10).map(|name| (format!("t/{name}"), 3 * u64::from(PIECE) / 2)))).unwrap()
}

fn created() -> (TempDir, FileStore, Arc<dyn Content>) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    (folder, store, content)
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

#[test]
fn a_mark_during_a_flush_waits_for_the_next() {
    let (folder, store, content) = created();
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
    hook(&store, |step| panic!("{step:?}: nothing is flushed twice"));
    store.flush().unwrap();
    unhook(&store);
}

#[test]
fn a_file_that_cannot_be_flushed_loses_its_fresh_pieces() {
    let (folder, store, content) = created();
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
    let (folder, store, content) = created();
    let is_honest = || {
        let there: BTreeSet<_> = content.pieces().unwrap().iter().collect();
        let on_disk = on_disk(folder.path());
        assert!(on_disk.iter().all(|piece| there.contains(piece)), "{on_disk:?} of {there:?}");
    };
    // Its bit is in the file, and may be on the disk.
    put(&*content, 0, 1);
    assert!(failing(&store, DiskStep::FlushBits, || store.flush()).is_err());
    put(&*content, 1, 1);
    assert!(failing(&store, DiskStep::Flush(0), || store.flush()).is_err());
    is_honest();
    assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), [0], "1 was not flushed");
    // And one that is being unmarked.
    store.flush().unwrap();
    assert!(failing(&store, DiskStep::FlushBits, || content.mark_incomplete(0)).is_err());
    put(&*content, 1, 2);
    assert!(failing(&store, DiskStep::Flush(0), || store.flush()).is_err());
    is_honest();
    store.flush().unwrap();
    assert_eq!(on_disk(folder.path()), [0]);
    assert_eq!(content.read_piece(0).unwrap(), [1; PIECE as usize]);
}

fn create_many(store: &FileStore, count: u32) -> Arc<dyn Content> {
    store.create(&torrent((0..count).map(|name| (format!("t/{name}"), PIECE.into())))).unwrap()
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
    let (folder, store, content) = created();
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
    let (_folder, store, content) = created();
    (0..3).for_each(|piece| put(&*content, piece, 1));
    store.flush().unwrap();
    let reads = Arc::new(Mutex::new(Vec::new()));
    let (other, log) = (Arc::clone(&content), Arc::clone(&reads));
    hook(&store, move |step| {
        if matches!(step, DiskStep::FlushBits | DiskStep::SyncDeleted) {
            let (tell, told) = std::sync::mpsc::channel();
            let content = Arc::clone(&other);
            std::thread::spawn(move || tell.send(content.read_piece(1).is_ok()));
            log.lock().push((step, told.recv_timeout(swarmkeep_store_tests::A_MINUTE)));
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
    let (folder, store, content) = created();
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

/// Nothing is flushed: folders of some such file systems cannot be.
#[test]
fn a_read_only_file_system_is_not_written_to() {
    let (folder, store, content) = created();
    put(&*content, 0, 1);
    store.flush().unwrap();
    drop((content, store));
    let store = open_hooked(folder.path(), |_| Err(rustix::io::Errno::ROFS.into()));
    let content = store.open(&HASH).unwrap();
    assert!(content.is_read_only());
    assert!(matches!(content.mark_incomplete(0), Err(Error::ReadOnly { .. })));
    store.flush().unwrap();
    assert_eq!(content.read_piece(0).unwrap(), [1; PIECE as usize]);
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
    let refused = failing(&store, DiskStep::SyncPlaced, || store.create(&new));
    assert!(matches!(refused, Err(Error::Io { .. })));
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
    let new = torrent((0..10).map(|name| (format!("t/{name}"), 10)));
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
        store.create(&torrent((0..folders).map(|name| (format!("t/{name}/a"), 10)))).unwrap();
        assert!(*count.lock() <= flushes, "{} for {folders}", *count.lock());
    }
}

#[test]
fn have_bits_that_cannot_be_written_are_written_by_the_next_flush() {
    for step in [DiskStep::WriteBits, DiskStep::FlushBits] {
        let (folder, store, content) = created();
        (0..3).for_each(|piece| put(&*content, piece, 1));
        assert!(matches!(failing(&store, step, || store.flush()), Err(Error::Io { .. })));
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
    let (folder, store, content) = created();
    put(&*content, 3, 9);
    store.flush().unwrap();
    for step in [DiskStep::WriteBits, DiskStep::FlushBits] {
        let refused = failing(&store, step, || content.mark_incomplete(3));
        assert!(matches!(refused, Err(Error::Io { .. })));
        assert_eq!(content.read_piece(3).unwrap(), [9; PIECE as usize]);
        store.flush().unwrap();
        assert_eq!(on_disk(folder.path()), [3]);
    }
}

#[test]
fn a_write_that_fails_counts_as_never_written_and_gives_its_room_back() {
    let (_folder, store, content) = created();
    let empty = store.statistics().used;
    content.write(0, &[1; PIECE as usize]).unwrap();
    let refused = failing(&store, DiskStep::Write(1), || content.write(100, &[2; 2 * PIECE as usize]));
    assert!(matches!(refused, Err(Error::Io { .. })));
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
    assert!(failing(&store, DiskStep::Remove(5), || store.delete(&HASH)).is_err());
    // Created again, over files that are removed first.
    let content = create(&store);
    assert_eq!(content.pieces().unwrap().count(), 0);
    assert!(folder.path().join("t/7").exists());
    assert_eq!(store.statistics().used, 1024);
    drop(content);
    assert!(failing(&store, DiskStep::Remove(5), || store.delete(&HASH)).is_err());
    assert!(store.delete(&HASH).unwrap() && !folder.path().join("t").exists());
    assert!(!store.delete(&HASH).unwrap());
}
