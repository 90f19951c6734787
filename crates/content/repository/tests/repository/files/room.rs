//! The room that torrents take on the disk and of the capacity.

use super::*;

#[test]
fn sparse_files_take_room_as_they_are_written_and_preallocated_ones_at_once() {
    for allocation in BOTH {
        let folder = temporary();
        let store = FileStore::open(&ContentConfig::new(folder.path()), allocation).unwrap();
        store.create(&torrent(1, &[("t/a", 8 << 20), ("t/empty", 0)])).unwrap();
        let file = fs::metadata(folder.path().join("t/a")).unwrap();
        assert_eq!(file.len(), 8 << 20);
        assert_eq!(file.blocks() * 512 >= 8 << 20, allocation == Allocation::Preallocated);
        assert_eq!(fs::metadata(folder.path().join("t/empty")).unwrap().len(), 0);
    }
}

#[test]
fn a_capacity_counts_earlier_content() {
    let folder = temporary();
    let config = with(ContentConfig::new(folder.path()), |config| config.capacity = Some(1 << 20));
    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    let content = store.create(&NewTorrent::new(hash(1), 4 << 20, PIECE).unwrap()).unwrap();
    let piece = [1; PIECE as usize];
    let full =
        (0..).map(|piece| piece * u64::from(PIECE)).find(|&at| content.write(at, &piece).is_err()).unwrap();
    assert_eq!(full, (1 << 20) - u64::from(PIECE), "the state takes 1 KiB");
    assert!(content.mark_complete(0).unwrap());
    // Rewritten bytes are not counted twice.
    content.write(u64::from(PIECE), &piece).unwrap();
    let used = store.statistics().used;
    store.flush().unwrap();
    drop((content, store));
    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    assert_eq!(store.statistics().used, used);
    let content = store.open(&hash(1)).unwrap();
    // Bytes that have room on the disk take none when they are written again, however full the store is.
    for at in (1..full / u64::from(PIECE)).map(|piece| piece * u64::from(PIECE)) {
        content.write(at, &piece).unwrap();
    }
    assert!(matches!(content.write(full, &piece), Err(Error::Full { .. })));
    assert_eq!(store.statistics().used, used);
    assert!(content.mark_incomplete(0).unwrap());
    assert_eq!(store.statistics().used, used - u64::from(PIECE));
    content.write(full, &piece).unwrap();
    assert!(store.delete(&hash(1)).unwrap());
    assert_eq!(store.statistics().used, 0);
}

#[test]
fn preallocated_files_take_no_more_room_however_the_store_is_opened() {
    let folder = temporary();
    let config = with(ContentConfig::new(folder.path()), |config| config.capacity = Some(1 << 20));
    let new = torrent(1, &[("t/a", 500_000), ("t/b", 500_000)]);
    let store = FileStore::open(&config, Allocation::Preallocated).unwrap();
    let (content, bytes) = fill(&store, &new);
    let used = store.statistics().used;
    assert_eq!(used, 1_000_000 + 1024);
    assert!(content.mark_incomplete(3).unwrap() && content.mark_incomplete(30).unwrap());
    drop((content, store));
    for allocation in BOTH {
        let store = FileStore::open(&config, allocation).unwrap();
        assert_eq!(store.statistics().used, used, "{allocation:?}");
        let content = store.open(&hash(1)).unwrap();
        for piece in [3, 30] {
            let at = piece * PIECE as usize;
            content.write(at as u64, &bytes[at..at + PIECE as usize]).unwrap();
        }
        assert_eq!(store.statistics().used, used, "{allocation:?}");
    }
}

#[test]
fn padding_takes_no_room() {
    let folder = temporary();
    let mut files = FileList::builder();
    for name in 0..100 {
        files.file(&["t", &name.to_string()], 100, false).unwrap().padding(u64::from(PIECE) - 100).unwrap();
    }
    let new = NewTorrent::with_files(hash(1), PIECE, files.build().unwrap()).unwrap();
    for allocation in BOTH {
        let config = with(ContentConfig::new(folder.path()), |config| config.capacity = Some(16 << 10));
        let store = FileStore::open(&config, allocation).unwrap();
        let (content, _) = fill(&store, &new);
        let used = store.statistics().used;
        let list = 3000_u64.next_multiple_of(512);
        assert!((100 * 100..100 * 100 + list + 1024).contains(&used), "{used}");
        drop((content, store));
        let store = FileStore::open(&config, allocation).unwrap();
        assert_eq!(store.statistics().used, used);
        assert!(store.delete(&hash(1)).unwrap());
        assert_eq!(store.statistics().used, 0);
    }
}
