//! The states of torrents: what is written is read again, and other bytes are refused or cost little.

use proptest::prelude::*;

use super::*;
use crate::{Geometry, PieceBits};

/// The bytes of a state of which no piece is complete, and where in them the have-bits begin.
fn encode(record: &StateRecord) -> (Vec<u8>, u64) {
    let mut bytes = record.head().unwrap();
    let bits = bytes.len() as u64;
    record.blank_bits().for_each(|part| bytes.extend(part));
    assert_eq!(bytes.len() as u64, bits + record.bits_len());
    (bytes, bits)
}

#[test]
fn have_bits_that_cannot_be_read_are_unknown_and_the_others_known() {
    let record = record(list([("a".to_owned(), 20_000)]), 1);
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

/// Its torrent files were kept in torrents of their own.
#[test]
fn a_folder_of_version_1_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let (mut state, _) = encode(&record(list([("a".to_owned(), 5)]), 5));
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
        let path = format!("safe/{}", "x".repeat(name.len()));
        let (mut bytes, _) = encode(&record(list([(path, 5)]), 5));
        let at = 60 + 1 + 8 + 2 + 1 + 4 + 1;
        assert_eq!(bytes[at], b'x');
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        seal(&mut bytes);
        assert!(matches!(decode(&bytes), Err(Fault::Files(_))), "{name:?}");
    }
}

#[test]
fn a_head_that_promises_more_than_there_is_takes_no_memory() {
    let (mut bytes, _) = encode(&record(list([("a".to_owned(), 5)]), 5));
    bytes[48..52].copy_from_slice(&0x3fff_ffff_u32.to_le_bytes());
    bytes[40..48].copy_from_slice(&(1_u64 << 33).to_le_bytes());
    bytes[36..40].copy_from_slice(&16_u32.to_le_bytes());
    seal(&mut bytes);
    assert!(matches!(decode(&bytes), Err(Fault::Wrong("not as long as it says"))));
}
