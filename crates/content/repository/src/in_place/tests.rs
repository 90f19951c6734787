//! Files that change, go and come back.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, UNIX_EPOCH},
};

use swarmkeep_metainfo::{Creation, Format, Metainfo};
use tempfile::TempDir;

use super::*;
use crate::{
    ContentConfig, ContentExt, Memory, Verified,
    stripe_cache::{StripeCache, StripeCacheOptions},
};

const PATHS: [&[&str]; 3] = [&["c"], &["one", "a"], &["one", "b"]];
const LEN: usize = 50_000;

fn bytes(file: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ file as u8).collect()
}

fn path(folder: &TempDir, file: usize) -> PathBuf {
    folder.path().join("album").join(PathBuf::from_iter(PATHS[file]))
}

/// Three files in a folder, and their description.
fn album(format: Format) -> (TempDir, Arc<Info>) {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = Creation::builder("album", format);
    builder.piece_length(16 << 10);
    fs::create_dir_all(folder.path().join("album/one")).unwrap();
    for (file, names) in PATHS.into_iter().enumerate() {
        builder.file(names, LEN as u64, false);
        fs::write(path(&folder, file), bytes(file)).unwrap();
    }
    let mut creation = builder.build().unwrap();
    for piece in 0.. {
        let Some(mut hasher) = creation.hasher(piece) else { break };
        for segment in creation.segments(piece) {
            let names = creation.files().get(segment.file).unwrap().path();
            let file = PATHS.iter().position(|path| names.ends_with(path)).unwrap();
            let start = segment.offset as usize;
            hasher.update(&bytes(file)[start..start + segment.length as usize]);
        }
        creation.set(hasher.finish().unwrap());
    }
    (folder, Metainfo::parse(&creation.finish().unwrap()).unwrap().into_info())
}

/// The right pieces, the wrong and the missing ones.
fn verified(place: &Place) -> (PieceBits, Vec<u32>, Vec<u32>) {
    let pieces = place.geometry().unwrap().pieces();
    let (mut right, mut wrong, mut missing) = (PieceBits::none(pieces), Vec::new(), Vec::new());
    let each = |piece, found: FoundPiece<'_>| {
        match found {
            FoundPiece::Right(_) => _ = right.insert(piece),
            FoundPiece::Wrong(_) => wrong.push(piece),
            FoundPiece::Missing(_) => missing.push(piece),
        }
        Ok(())
    };
    place.verify(|_| true, each).unwrap();
    (right, wrong, missing)
}

fn store(info: &Info, place: Place) -> (InPlace, Arc<dyn Content>) {
    let (right, ..) = verified(&place);
    let store = InPlace::new(Arc::new(Memory::new(&ContentConfig::new(""))));
    store.add(place, right).unwrap();
    let content = store.open(&info.info_hash()).unwrap();
    (store, content)
}

#[test]
fn nothing_is_written_and_a_changed_file_loses_all_of_its_pieces_until_it_is_right() {
    let (folder, info) = album(Format::V1);
    let (store, content) = store(&info, Place::find(&info, folder.path()).unwrap());
    assert!(content.is_read_only());
    assert!(matches!(content.write(0, &[1]), Err(Error::ReadOnly { .. })));
    assert!(matches!(store.create(&NewTorrent::of(&info).unwrap()), Err(Error::Exists(_))));
    assert!(content.mark_incomplete(0).unwrap() && !content.mark_incomplete(0).unwrap());
    assert!(matches!(content.read_piece(0), Err(Error::NotWritten { at: 0 })));
    assert!(Place::find(&info, &path(&folder, 0)).is_none(), "one file of three");
    assert!(matches!(content.mark_complete(0), Err(Error::NotWritten { at: 0 })));
    let (last, first_of_last) = (info.piece_count() - 1, 2 * LEN as u32 / (16 << 10));
    // Replaced by one of the same length and time of writing, and that by a right one.
    let written = fs::metadata(path(&folder, 2)).unwrap().modified().unwrap();
    for (file, there) in [(1, first_of_last - 1), (2, last)] {
        let other = folder.path().join("other");
        fs::write(&other, bytes(file)).unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(written).unwrap();
        fs::rename(other, path(&folder, 2)).unwrap();
        let changed = content.read_piece(last);
        assert!(file == 2 || changed.unwrap_err().to_string().contains("one/b: it has changed"));
        assert_eq!(content.pieces().unwrap().count(), first_of_last - 1);
        assert!(content.read_piece(1).is_ok());
        (0..2).for_each(|_| _ = content.verify_changes(&|| false));
        assert_eq!(content.pieces().unwrap().count(), there);
    }
    assert!(store.delete(&info.info_hash()).unwrap());
    assert!(fs::read(path(&folder, 1)).unwrap() == bytes(1));
}

/// Returns the paths of the open files below a folder.
fn open_below(folder: &TempDir) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fd.unwrap().path().read_link().ok());
    all.filter(|path| path.starts_with(folder.path())).collect()
}

#[test]
fn files_that_share_pieces_are_closed_when_they_are_gone_and_come_back() {
    let (folder, info) = album(Format::V1);
    let (_store, content) = store(&info, Place::find(&info, folder.path()).unwrap());
    let (album, aside) = (folder.path().join("album"), folder.path().join("aside"));
    (0..info.piece_count()).for_each(|piece| _ = content.read_piece(piece).unwrap());
    assert_eq!(open_below(&folder).len(), 3);
    fs::rename(&album, &aside).unwrap();
    // Without a read.
    assert!(content.verify_changes(&|| false));
    assert_eq!((content.pieces().unwrap().count(), open_below(&folder)), (0, vec![]));
    fs::rename(&aside, &album).unwrap();
    (0..2).for_each(|_| _ = content.verify_changes(&|| false));
    assert_eq!(content.pieces().unwrap().count(), info.piece_count());
    // One that changes again while it is verified.
    let touch = |seconds| {
        let file = File::options().write(true).open(path(&folder, 0)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    touch(1);
    let touched = AtomicU64::new(0);
    let ends = || {
        if touched.fetch_add(1, Relaxed) == 1 {
            touch(2);
            assert!(content.read_piece(0).is_err());
        }
        false
    };
    (0..5).for_each(|_| _ = content.verify_changes(&ends));
    assert_eq!((content.pieces().unwrap().count(), touched.into_inner()), (info.piece_count(), 8));
}

/// Another link, another mode, owner or attribute, and the old time of writing set again.
#[test]
fn a_change_of_the_change_time_alone_keeps_the_pieces_and_each_is_verified_again() {
    let (folder, info) = album(Format::V1);
    let (right, ..) = verified(&Place::find(&info, folder.path()).unwrap());
    let path = path(&folder, 0);
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    let write = |byte: u8| {
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes(0)[20_000] ^ byte], 20_000).unwrap();
        file.set_modified(written).unwrap();
    };
    // As a page that was mapped and dirty before: it changes without a change of any time.
    write(1);
    let place = Place::find(&info, folder.path()).unwrap();
    verified(&place);
    let store = InPlace::new(Arc::new(Memory::new(&ContentConfig::new(""))));
    store.add(place, right).unwrap();
    let placed = Arc::clone(&store.torrents.read()[&info.info_hash()]);
    let known = Arc::clone(&info);
    let verified = Verified::new(Arc::new(store), move |_| Ok(Some(Arc::clone(&known))));
    let content = verified.open(&info.info_hash()).unwrap();
    let cache = StripeCache::new(Arc::new(verified), StripeCacheOptions::new()).unwrap();
    assert!(matches!(content.read_piece(1), Err(Error::Wrong { piece: 1 })));
    let link = folder.path().join("link");
    let changes: [&dyn Fn(); 6] = [
        &|| write(0),
        &|| _ = fs::remove_file(&link).or_else(|_| fs::hard_link(&path, &link)),
        &|| fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap(),
        &|| std::os::unix::fs::chown(&path, None, None).unwrap(),
        &|| rustix::fs::setxattr(&path, "user.it", b"1", rustix::fs::XattrFlags::empty()).unwrap(),
        &|| write(1),
    ];
    for (nth, change) in (0..).zip(changes) {
        let before = placed.place.now(0).unwrap();
        // Until the clock of the file system goes on.
        while placed.place.now(0).unwrap() == before {
            change();
        }
        let error = placed.check(0, Err(io::Error::from_raw_os_error(5))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        content.read_piece(2).unwrap();
        let read = content.read_piece(1);
        assert_eq!(matches!(read, Err(Error::Wrong { piece: 1 })), nth == 5, "{nth}: {read:?}");
        assert_eq!(content.pieces().unwrap().count(), info.piece_count());
        let counted = [content.changes(), cache.open(&info.info_hash()).unwrap().changes()];
        assert_eq!(counted, [nth + 1; 2]);
    }
}

#[test]
fn a_pipe_or_folder_counts_as_missing_and_blocks_no_read() {
    let (folder, info) = album(Format::V2);
    let pipe = path(&folder, 0);
    fs::remove_file(&pipe).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    fs::remove_file(path(&folder, 1)).unwrap();
    fs::create_dir(path(&folder, 1)).unwrap();
    let (right, wrong, missing) = verified(&Place::find(&info, folder.path()).unwrap());
    assert_eq!((right.count(), wrong, missing), (4, vec![], (0..8).collect()));
}

#[test]
fn torrents_of_the_store_behind_are_there_too() {
    let (folder, info) = album(Format::V1);
    let (store, _) = store(&info, Place::find(&info, folder.path()).unwrap());
    let other = NewTorrent::new(InfoHash::new([1; 20]), 10, 16 << 10).unwrap();
    store.create(&other).unwrap().write(0, &[7; 10]).unwrap();
    let listed: Vec<_> = store.list().unwrap().iter().map(|summary| summary.info_hash).collect();
    let mut expected = [other.info_hash, info.info_hash()];
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(store.open(&other.info_hash).unwrap().pieces().unwrap().count(), 0);
    assert!(store.delete(&other.info_hash).unwrap());
}
