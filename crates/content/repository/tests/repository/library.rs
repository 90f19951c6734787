//! Torrent files beside the store that has their content: they are found again, a list reads none of them,
//! and no other bytes pass for one.

use std::collections::HashSet;

use swarmkeep_content::{FileFolder, Library, TorrentFolder};

use super::{hostile::sectors_read, *};

/// A torrent file of `pieces` pieces, for the tracker of this name.
fn torrent(name: &str, pieces: usize, tracker: &str) -> Vec<u8> {
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

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(&ContentConfig::new("")))
}

/// The number of reads after which the file system of a folder is full.
const FULL: u64 = 1 << 32;

#[derive(Debug)]
struct Counting(FileFolder, Arc<AtomicU64>);

impl TorrentFolder for Counting {
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.1.fetch_add(1, Relaxed);
        self.0.read(name)
    }

    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()> {
        self.0.names(each)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if self.1.load(Relaxed) >= FULL {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write(name, bytes)
    }

    fn flush_file(&self, name: &str) -> io::Result<()> {
        self.0.flush_file(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A device, and a folder of torrent files that is made with the first of them.
struct Medium {
    device: Arc<SparseDevice>,
    scratch: TempDir,
}

impl Medium {
    fn new() -> Self {
        let device = Arc::new(SparseDevice::new(64 << 8));
        BlockStore::format(&*device, blocks_of(64 << 10)).unwrap();
        Self { device, scratch: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.scratch.path().join("made/torrents")
    }

    fn file(&self, info_hash: &InfoHash) -> std::path::PathBuf {
        self.folder().join(format!("{info_hash}.torrent"))
    }

    fn open(&self) -> Library {
        let store = BlockStore::boot(Arc::clone(&self.device), Allocation::Sequential).unwrap();
        Library::new(Arc::new(store), FileFolder::new(self.folder()))
    }

    /// A library that reads, the sectors of its device that are read, and the reads of its folder.
    fn counted(&self) -> (Library, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (of_device, of_folder) = (sectors_read(&self.device), Arc::default());
        let folder = Counting(FileFolder::new(self.folder()), Arc::clone(&of_folder));
        let store = BlockStore::boot_read_only(Arc::clone(&self.device)).unwrap();
        (Library::new(Arc::new(store), folder), of_device, of_folder)
    }
}

fn add(library: &Library, count: usize) -> Vec<InfoHash> {
    let files = (0..count).map(|n| torrent(&format!("torrent {n}"), 1 + 700 * (n % 4), "a.example"));
    files.map(|file| library.add(&file).unwrap().info().info_hash()).collect()
}

#[test]
fn torrent_files_are_there_again_after_boot() {
    let medium = Medium::new();
    let files: Vec<_> = [1, 100, 20_000].map(|pieces| torrent("some name", pieces, "a.example")).into();
    let first = medium.open();
    let hashes: Vec<_> = files.iter().map(|file| first.add(file).unwrap().info().info_hash()).collect();
    drop(first);
    let library = medium.open();
    assert_eq!(library.store().list().unwrap().len(), 3);
    assert_eq!(library.kept().unwrap(), HashSet::from_iter(hashes.clone()));
    for (file, hash) in files.iter().zip(&hashes) {
        assert!(library.torrent_file(hash).unwrap().as_ref() == Some(file));
        let metainfo = library.metainfo(hash).unwrap().unwrap();
        assert_eq!(metainfo.info().length(), library.store().open(hash).unwrap().geometry().len());
        assert!(!library.is_damaged(hash).unwrap());
        assert!(matches!(library.add(file), Err(Error::Exists(_))));
    }
    assert_eq!(fs::read_dir(medium.folder()).unwrap().count(), 3, "no file of another name is left");
}

#[test]
fn a_list_reads_no_torrent_file() {
    let medium = Medium::new();
    let library = medium.open();
    let torrents = add(&library, 100);
    library.store().flush().unwrap();
    drop(library);
    let (library, of_device, of_folder) = medium.counted();
    let before = of_device.load(Relaxed);
    assert_eq!(library.store().list().unwrap().len(), 100);
    for (n, info_hash) in torrents.iter().enumerate() {
        let described = library.description(info_hash).unwrap().unwrap();
        let length = torrent(&format!("torrent {n}"), 1 + 700 * (n % 4), "a.example").len();
        assert_eq!((described.name(), described.files()), (&*format!("torrent {n}"), 1));
        assert_eq!(described.length() as usize, length);
    }
    assert_eq!(library.kept().unwrap().len(), 100);
    assert_eq!(of_device.load(Relaxed), before);
    assert_eq!(of_folder.load(Relaxed), 0);
}

/// The process ends before the label is flushed.
#[test]
fn a_torrent_without_a_durable_label_is_described_by_its_file() {
    let medium = Medium::new();
    let torrents = add(&medium.open(), 3);
    let (library, _, of_folder) = medium.counted();
    for (n, info_hash) in torrents.iter().enumerate() {
        assert_eq!(library.description(info_hash).unwrap().unwrap().name(), format!("torrent {n}"));
    }
    assert!(of_folder.load(Relaxed) > 0);
    // A second call finds the torrent and its file, and makes its label.
    let library = medium.open();
    for n in 0..3 {
        let again = torrent(&format!("torrent {n}"), 1 + 700 * n, "a.example");
        assert!(matches!(library.add(&again), Err(Error::Exists(_))));
    }
    library.store().flush().unwrap();
    drop(library);
    let (library, _, of_folder) = medium.counted();
    assert!(torrents.iter().all(|info_hash| library.description(info_hash).unwrap().is_some()));
    assert_eq!(of_folder.load(Relaxed), 0);
}

#[test]
fn a_file_that_is_not_the_torrents_is_damaged_and_is_replaced() {
    let medium = Medium::new();
    let library = medium.open();
    let file = torrent("name", 10_000, "a.example");
    let hash = library.add(&file).unwrap().info().info_hash();
    let wrong = [
        file[..file.len() - 1].to_vec(),
        Vec::new(),
        torrent("another", 10_000, "a.example"),
        file.iter().enumerate().map(|(at, &byte)| byte ^ u8::from(at == 150_000)).collect(),
    ];
    for wrong in wrong {
        fs::write(medium.file(&hash), wrong).unwrap();
        assert!(library.is_damaged(&hash).unwrap());
        assert!(library.torrent_file(&hash).unwrap().is_none() && library.metainfo(&hash).unwrap().is_none());
        library.add(&file).unwrap();
        assert!(library.torrent_file(&hash).unwrap().as_ref() == Some(&file));
    }
    // A folder is in its place.
    fs::remove_file(medium.file(&hash)).unwrap();
    fs::create_dir(medium.file(&hash)).unwrap();
    assert!(library.is_damaged(&hash).unwrap());
    assert!(matches!(library.add(&file), Err(Error::Io { .. })));
    assert_eq!(fs::read_dir(medium.folder()).unwrap().count(), 1, "no file of another name is left");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_is_not_replaced() {
    let medium = Medium::new();
    let library = medium.open();
    let file = torrent("name", 3, "a.example");
    let hash = library.add(&file).unwrap().info().info_hash();
    fs::remove_file(medium.file(&hash)).unwrap();
    symlink(medium.file(&hash), medium.file(&hash)).unwrap();
    let told = library.is_damaged(&hash).unwrap_err();
    let path = medium.file(&hash).display().to_string();
    assert!(matches!(told, Error::Io { .. }) && told.to_string().contains(&path), "{told}");
    assert!(matches!(library.metainfo(&hash), Err(Error::Io { .. })));
    assert!(matches!(library.add(&file), Err(Error::Io { .. })));
    assert!(medium.file(&hash).is_symlink());
}

#[test]
fn a_full_file_system_of_the_folder_is_not_a_full_store() {
    let medium = Medium::new();
    let folder = Counting(FileFolder::new(medium.folder()), Arc::new(AtomicU64::new(FULL)));
    let told = Library::new(memory(), folder).add(&torrent("name", 3, "a.example")).unwrap_err();
    let is_full = matches!(&told, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull);
    assert!(is_full, "{told}");
}

#[test]
fn a_file_under_another_name_than_its_own_is_not_kept() {
    let medium = Medium::new();
    let library = medium.open();
    let hash = add(&library, 1)[0];
    let name = format!("{}.torrent", hash.to_string().to_uppercase());
    fs::rename(medium.file(&hash), medium.folder().join(name)).unwrap();
    assert!(library.kept().unwrap().is_empty() && library.metainfo(&hash).unwrap().is_none());
}

#[test]
fn a_file_is_written_through_no_link() {
    let medium = Medium::new();
    let (folder, other) = (FileFolder::new(medium.folder()), medium.scratch.path().join("other"));
    folder.write("first", b"first").unwrap();
    fs::write(&other, "other").unwrap();
    symlink(&other, medium.folder().join("link")).unwrap();
    folder.write("link", b"longer").unwrap();
    folder.write("link", b"new").unwrap();
    assert_eq!((folder.read("link").unwrap(), fs::read(other).unwrap()), (b"new".into(), b"other".into()));
}

#[test]
fn a_file_with_piece_hashes_takes_the_place_of_one_without_and_stays() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/torrents");
    let full = fs::read(fixtures.join("one-v2.torrent")).unwrap();
    let layers = full.windows(14).position(|part| part == b"12:piece layer").unwrap();
    let poor = [&full[..layers], b"e"].concat();
    let medium = Medium::new();
    let library = medium.open();
    let hash = library.add(&poor).unwrap().info().info_hash();
    assert!(library.is_damaged(&hash).unwrap() && library.metainfo(&hash).unwrap().is_none());
    library.add(&full).unwrap();
    for file in [&full, &poor] {
        assert!(matches!(library.add(file), Err(Error::Exists(_))));
    }
    assert!(library.torrent_file(&hash).unwrap().as_ref() == Some(&full));
    library.store().delete(&hash).unwrap();
    assert!(library.add(&poor).unwrap().info().knows_hashes());
    assert!(library.torrent_file(&hash).unwrap() == Some(full));
}

/// A torrent that a program has created, or that has lost its file.
#[test]
fn a_torrent_that_is_there_is_given_its_file() {
    let medium = Medium::new();
    let library = medium.open();
    let file = torrent("name", 3, "a.example");
    let hash = Library::without_files(memory()).add(&file).unwrap().info().info_hash();
    let content = library.store().create(&NewTorrent::new(hash, 3 << 14, 16 << 10).unwrap()).unwrap();
    content.write(0, &[7; 16 << 10]).unwrap();
    content.mark_complete(0).unwrap();
    library.add(&file).unwrap();
    assert_eq!(library.store().open(&hash).unwrap().pieces().unwrap().count(), 1);
    assert!(library.metainfo(&hash).unwrap().is_some());

    let strange = Library::new(memory(), FileFolder::new(medium.folder()));
    strange.store().create(&NewTorrent::new(hash, 4 << 14, 16 << 10).unwrap()).unwrap();
    assert!(matches!(strange.add(&file), Err(Error::Geometry { .. })));
    assert!(strange.metainfo(&hash).unwrap().is_none(), "a file of other measures is not the torrent's");
}

#[test]
fn a_torrent_file_stays_for_other_stores_until_it_is_forgotten() {
    let medium = Medium::new();
    let library = medium.open();
    let file = torrent("name", 3, "a.example");
    let hash = library.add(&file).unwrap().info().info_hash();
    library.store().delete(&hash).unwrap();
    assert!(matches!(library.torrent_file(&hash), Err(Error::NotFound(_))));
    assert!(fs::read(medium.file(&hash)).unwrap() == file);
    // It is replaced by the file of the next creation.
    let other = torrent("name", 3, "b.example");
    library.add(&other).unwrap();
    assert!(library.torrent_file(&hash).unwrap() == Some(other));
    for _ in 0..2 {
        library.forget(&hash).unwrap();
        assert!(library.kept().unwrap().is_empty());
    }
}

#[test]
fn bytes_that_are_no_torrent_file_change_nothing() {
    let medium = Medium::new();
    let library = medium.open();
    assert!(matches!(library.add(b"no"), Err(Error::Metainfo(_))));
    assert!(library.store().list().unwrap().is_empty() && !medium.folder().exists());
}

#[test]
fn a_torrent_is_not_created_if_its_file_cannot_be_kept() {
    let library = Library::new(memory(), FileFolder::new("/dev/null/torrents"));
    assert!(matches!(library.add(&torrent("name", 3, "a.example")), Err(Error::Io { .. })));
    assert!(library.store().list().unwrap().is_empty());
}

#[test]
fn a_library_without_files_keeps_none() {
    let library = Library::without_files(memory());
    let hash = library.add(&torrent("name", 3, "a.example")).unwrap().info().info_hash();
    assert!(library.store().open(&hash).is_ok() && library.metainfo(&hash).unwrap().is_none());
    assert!(library.kept().unwrap().is_empty());
}
