//! What only tests within the store can see: the order of its steps, and what it does when one of them fails.

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
use proptest::prelude::*;
use swarmkeep_bittorrent::metainfo::FileList;

use super::{
    Allocation, FileStore, HIDDEN,
    state::{Fault, Loaded, Record},
    store::Step,
};
use crate::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits,
};

/// What is asked before each step.
#[derive(Clone)]
pub(super) struct Hook(pub(super) Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

const PIECE: u32 = 1 << 14;
const HASH: InfoHash = InfoHash::new([7; 20]);

fn open(folder: &Path) -> FileStore {
    FileStore::open(&ContentConfig::new(folder), Allocation::Sparse).unwrap()
}

fn hook(store: &FileStore, hook: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static) {
    *store.store.shared.hook.lock() = Some(Hook(Arc::new(hook)));
}

fn unhook(store: &FileStore) {
    *store.store.shared.hook.lock() = None;
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

fn decode(mut bytes: &[u8]) -> Result<Loaded, Fault> {
    Record::read(bytes.len() as u64, |into| io::Read::read_exact(&mut bytes, into))
}

#[test]
fn have_bits_are_written_when_their_data_is_flushed_and_flushed_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    // What is flushed since it was written to last, of each file; and whether have-bits are under way.
    let seen = Arc::new(Mutex::new((BTreeSet::new(), Vec::new())));
    let steps = Arc::clone(&seen);
    hook(&store, move |step| {
        let (dirty, log) = &mut *steps.lock();
        match step {
            Step::Write(file) => _ = dirty.insert(file),
            Step::Flush(file) => _ = dirty.remove(&file),
            Step::WriteBits | Step::FlushBits => log.push((step, dirty.clone())),
            Step::Remove(_) => {}
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
        assert_eq!(log, [(Step::WriteBits, BTreeSet::new()), (Step::FlushBits, BTreeSet::new())]);
        assert!(pieces.iter().all(|piece| on_disk(folder.path()).contains(piece)));
        store.flush().unwrap();
        assert_eq!(seen.lock().1.len(), 2, "nothing is flushed twice");
    }
}

#[test]
fn what_is_marked_during_a_flush_waits_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let content = create(&store);
    put(&*content, 0, 1);
    put(&*content, 4, 1);
    let (other, done) = (Arc::clone(&content), AtomicBool::new(false));
    hook(&store, move |step| {
        if matches!(step, Step::Flush(_)) && !done.swap(true, Relaxed) {
            // Taken back while the flush is under way, and complete again with other bytes.
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
fn a_file_that_cannot_be_flushed_costs_what_is_not_durable_and_is_not_believed() {
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
    hook(&store, |step| if [Step::Flush(1), Step::Flush(5)].contains(&step) { broken() } else { Ok(()) });
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
fn have_bits_that_cannot_be_written_are_written_by_the_next_flush() {
    for failing in [Step::WriteBits, Step::FlushBits] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let content = create(&store);
        (0..3).for_each(|piece| put(&*content, piece, 1));
        hook(&store, move |step| if step == failing { broken() } else { Ok(()) });
        assert!(matches!(store.flush(), Err(Error::Io { .. })));
        unhook(&store);
        assert_eq!(content.pieces().unwrap().count(), 3);
        // One of them is taken back: whatever arrived of it, it is cleared when that returns.
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
    for failing in [Step::WriteBits, Step::FlushBits] {
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
    hook(&store, |step| if step == Step::Write(1) { broken() } else { Ok(()) });
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
    hook(&store, |step| if step == Step::Remove(5) { broken() } else { Ok(()) });
    assert!(matches!(store.delete(&HASH), Err(Error::Io { .. })));
    assert!(matches!(store.open(&HASH), Err(Error::NotFound(_))));
    assert!(store.create(&NewTorrent::new(HASH, 10, PIECE).unwrap()).is_err(), "they are still to go");
    unhook(&store);
    drop(store);
    assert!(folder.path().join("t/7").exists());
    let store = open(folder.path());
    assert!(store.list().unwrap().is_empty() && !folder.path().join("t").exists());
    assert_eq!(store.statistics().used, 0);
    create(&store);
    hook(&store, |step| if step == Step::Remove(5) { broken() } else { Ok(()) });
    assert!(store.delete(&HASH).is_err());
    unhook(&store);
    // Created anew, in the place of what is removed before.
    let content = create(&store);
    assert_eq!(content.pieces().unwrap().count(), 0);
    assert!(folder.path().join("t/7").exists());
    assert_eq!(store.statistics().used, 1024);
}

fn record(files: FileList, piece_length: u32) -> Record {
    let geometry = Geometry::new(files.length(), piece_length).unwrap();
    Record { info_hash: HASH, geometry, files: Arc::new(files), apart: false }
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
        let record = Record { apart, ..record(files, piece_length) };
        let (mut bytes, at) = record.encode().unwrap();
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
        prop_assert_eq!((read.complete, read.unknown, read.len), (complete, vec![], bytes.len() as u64));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn no_state_that_was_changed_and_sealed_makes_the_reader_panic(
        files in lists(),
        changes in prop::collection::vec((0..400_usize, any::<u8>()), 1..6),
    ) {
        let (mut bytes, _) = record(files, 7).encode().unwrap();
        for (at, byte) in changes {
            // Not what is looked at first of all.
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
fn a_list_of_a_state_whose_paths_lead_out_is_refused() {
    for name in ["..", ".", "a/b", "con"] {
        let mut files = FileList::builder();
        files.file(&["safe", &"x".repeat(name.len())], 5, false).unwrap();
        let (mut bytes, _) = record(files.build().unwrap(), 5).encode().unwrap();
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
    let (mut bytes, _) = record(files.build().unwrap(), 5).encode().unwrap();
    bytes[48..52].copy_from_slice(&0x3fff_ffff_u32.to_le_bytes());
    bytes[40..48].copy_from_slice(&(1_u64 << 33).to_le_bytes());
    bytes[36..40].copy_from_slice(&16_u32.to_le_bytes());
    seal(&mut bytes);
    assert!(matches!(decode(&bytes), Err(Fault::Wrong("not as long as it says"))));
}
