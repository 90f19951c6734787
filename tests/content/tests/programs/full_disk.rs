//! The store in plain files on a disk that is full.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, FileList, InfoHash, NewTorrent,
    files::{Allocation, FileStore, HIDDEN},
};
use swarmkeep_store_tests::{
    programs::{EXT4, MOUNT, Trial, find},
    tests,
};
use tempfile::TempDir;

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [EXT4]: a_full_disk_is_an_error_that_leaves_nothing_half_done_on_ext4;
        [MOUNT]: a_full_disk_is_an_error_that_leaves_nothing_half_done_on_tmpfs
    }
}

fn a_full_disk_is_an_error_that_leaves_nothing_half_done_on_ext4() {
    store_on_a_disk_that_is_full("ext4");
}

fn a_full_disk_is_an_error_that_leaves_nothing_half_done_on_tmpfs() {
    store_on_a_disk_that_is_full("tmpfs");
}

/// A file system, mounted until this is dropped.
struct SmallFileSystem(TempDir);

impl SmallFileSystem {
    fn new(kind: &str, mib: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("mount");
        fs::create_dir(&mount).unwrap();
        if kind == "tmpfs" {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"])
                .arg(&mount));
        } else {
            let image = folder.path().join("image");
            File::create(&image).unwrap().set_len(mib << 20).unwrap();
            let mkfs = find(&format!("mkfs.{kind}")).expect("a need of this test");
            run(Command::new(mkfs).args(["-q", "-m", "0"]).arg(&image));
            run(Command::new("mount").args(["-o", "loop"]).args([&image, &mount]));
        }
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("mount")
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().expect("a need of this test").success(), "{command:?}");
}

const PIECE: u32 = 16 << 10;

fn store_on_a_disk_that_is_full(kind: &str) {
    let disk = SmallFileSystem::new(kind, 8);
    let folder = disk.path().join("content");
    fs::create_dir(&folder).unwrap();
    let config = ContentConfig::new(&folder);
    let store = FileStore::open(&config, Allocation::Preallocated).unwrap();
    let small = store.create(&torrent(1, &[("small/a", 100_000), ("small/b", 100_000)])).unwrap();
    put(&*small, &[1; 200_000], 0..small.geometry().pieces());
    store.flush().unwrap();
    drop(small);
    let before = store.statistics();
    for _ in 0..2 {
        let refused =
            store.create(&torrent(2, &[("large/a", 1 << 20), ("large/b", 1 << 30), ("large/c", 1)]));
        assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        assert_eq!(names(&folder), ["small"]);
        assert_eq!(fs::read_dir(folder.join(HIDDEN).join("making")).unwrap().count(), 0);
        assert_eq!(store.statistics().used, before.used);
        assert_eq!(store.list().unwrap().len(), 1);
    }
    drop(store);

    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    let torrent = store.create(&torrent(3, &[("wide", 64 << 20)])).unwrap();
    let bytes: Vec<u8> = (0..64 << 20).map(|at: u32| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut written = 0;
    // Parts of two pieces are written: these bytes must stay.
    let last = 64 << 20;
    for at in [last - 40_000, last - 400_000] {
        torrent.write(at as u64, &bytes[at..at + 1000]).unwrap();
    }
    // A failed write returns its space: smaller writes may still find room.
    for step in [64 << 10, 4 << 10] {
        let error = loop {
            match torrent.write(written as u64, &bytes[written..written + step]) {
                Ok(()) => written += step,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error:?}");
        let content = (written + 2000) as u64;
        assert!(
            (content..content + (200 << 10)).contains(&store.statistics().used),
            "{:?}",
            store.statistics()
        );
    }
    assert!(written > 2 << 20, "{written} bytes");
    for at in [last - 40_000, last - 400_000] {
        let from = at - 10_000;
        let refused = torrent.write(from as u64, &bytes[from - 7..from + 39_993]);
        assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        let mut read = [0; 1000];
        torrent.read(at as u64, &mut read).unwrap();
        assert!(read == bytes[at..at + 1000], "old content stays");
        assert!(matches!(torrent.read(from as u64, &mut [0]), Err(Error::NotWritten { .. })));
    }
    let pieces = (written / PIECE as usize) as u32;
    (0..pieces).for_each(|piece| assert!(torrent.mark_complete(piece).unwrap()));
    store.flush().unwrap();
    drop((torrent, store));
    let store = FileStore::open(&config, Allocation::Sparse).unwrap();
    assert_eq!(store.report().damage, []);
    let content = store.open(&hash(3)).unwrap();
    assert_eq!(content.pieces().unwrap().count(), pieces);
    for piece in 0..pieces {
        let range = content.geometry().piece(piece).unwrap();
        assert!(content.read_piece(piece).unwrap() == bytes[range.start as usize..range.end as usize]);
    }
    assert!(content.mark_incomplete(0).unwrap());
    put(&*content, &bytes, [0]);
    store.flush().unwrap();
    assert!(store.delete(&hash(3)).unwrap());
    assert_eq!(names(&folder), ["small"]);
}

fn hash(n: u8) -> InfoHash {
    InfoHash::new([n; 20])
}

fn torrent(n: u8, files: &[(&str, u64)]) -> NewTorrent {
    let mut list = FileList::builder();
    for (path, length) in files {
        list.file(&path.split('/').collect::<Vec<_>>(), *length, false).unwrap();
    }
    NewTorrent::with_files(hash(n), PIECE, list.build().unwrap()).unwrap()
}

fn put(content: &dyn Content, bytes: &[u8], pieces: impl IntoIterator<Item = u32>) {
    for piece in pieces {
        let range = content.geometry().piece(piece).unwrap();
        content.write(range.start, &bytes[range.start as usize..range.end as usize]).unwrap();
        assert!(content.mark_complete(piece).unwrap());
    }
}

/// The names that lie in a folder, but for the store's own.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != HIDDEN).collect()
}
