//! Torrents over files that exist already.

use std::{fs::File, path::PathBuf};

use super::*;
use crate::PieceBits;

/// Two files of a piece and a half each.
fn pair() -> NewTorrent {
    torrent(["a", "b"].map(|name| (format!("pair/{name}"), 3 * u64::from(PIECE) / 2)))
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

/// Lengths of the files of [`pair`], if they are there: the first is of bytes that are 1, the second of 2.
fn pair_in(folder: &std::path::Path, lengths: [Option<usize>; 2]) -> [std::path::PathBuf; 2] {
    let paths = ["a", "b"].map(|name| folder.join("pair").join(name));
    std::fs::create_dir(folder.join("pair")).unwrap();
    for ((path, len), byte) in paths.iter().zip(lengths).zip(1..) {
        len.into_iter().for_each(|len| std::fs::write(path, vec![byte; len]).unwrap());
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
        (whole, Some(whole), vec![0, 1, 2], vec![0, 1, 2], false),
        (whole, None, vec![0], vec![0], false),
        (PIECE as usize, None, vec![0], vec![0], false),
        (whole, Some(half), vec![0, 1], vec![0, 1], false),
        (whole, Some(half), vec![0], vec![0], true),
        (whole, Some(0), vec![0], vec![0], false),
        // It is too long, and cut; or damaged too, and its right pieces are fetched again.
        (whole, Some(whole + 1), vec![0, 1, 2], vec![0, 1, 2], false),
        (whole, Some(whole + 1), vec![0, 1], vec![0], true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let paths = pair_in(folder.path(), [Some(a), b]);
        std::fs::write(folder.path().join("pair/mine"), "mine").unwrap();
        let store = open(folder.path());
        let case = format!("{a} {b:?} {right:?}");
        let found = folder.path().canonicalize().unwrap().join("pair/b.found");
        let right = pieces(right);
        let aside = adopt(&store, &right).unwrap().unwrap();
        assert_eq!(aside, Vec::from_iter(renamed.then(|| found.clone())), "{case}");
        assert!(matches!(adopt(&store, &right), Err(Error::Exists(_))), "{case}");
        assert_eq!(store.torrent_at("Pair"), Some(HASH), "{case}");
        let lengths = paths.each_ref().map(|path| std::fs::metadata(path).unwrap().len());
        assert_eq!(lengths, [whole as u64; 2], "{case}");
        assert_eq!(std::fs::read(&found).ok().map(|bytes| bytes.len()), b.filter(|_| renamed), "{case}");
        let content = store.open(&HASH).unwrap();
        assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), complete, "{case}");
        assert_eq!(on_disk(folder.path()), complete, "{case}");
        assert!(matches!(content.write(0, &[1]), Err(Error::Complete { piece: 0 })), "{case}");
        let all = [vec![1; whole], vec![2; whole]].concat();
        for (piece, bytes) in (0..).zip(all.chunks(PIECE as usize)) {
            let is_right = content.read_piece(piece).is_ok_and(|read| read == bytes);
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
        assert_eq!(paths.map(|path| path.exists()), [false; 2], "{case}");
        assert!(folder.path().join("pair/mine").exists(), "{case}");
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
    assert_eq!(std::fs::read(&others[1]).unwrap(), vec![2; whole]);

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
    let new = torrent(["a", "a.found", "b"].map(|name| (format!("pair/{name}"), PIECE.into())));
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
    let config = ContentConfig { capacity: Some(u64::from(PIECE)), ..ContentConfig::new(folder.path()) };
    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    let right = pieces(0..3);
    assert_eq!(adopt(&store, &right).unwrap(), None);
    std::fs::remove_file(folder.path().join("pair")).unwrap();
    std::fs::rename(elsewhere.path(), folder.path().join("pair")).unwrap();
    assert!(matches!(adopt(&store, &right), Err(Error::Full { .. })));
    drop(store);
    let store = open(folder.path());
    assert!(failing(&store, DiskStep::FlushState, || adopt(&store, &right)).is_err());
    assert_eq!(store.statistics().used, 0);
    assert!(adopt(&store, &right).unwrap().is_some());
}
