//! The store on a real block device with real torrents, and the image that must always open.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    Content, ContentExt, ContentRepository, Error, InfoHash, NewTorrent,
    block::{Allocation, BlockDevice, BlockStore, FileDevice, FormatOptions, Sector},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_content_tests::{device_of, image_of_version, scratch_folder, torrents};
use swarmkeep_store_tests::with;

use crate::{blocks_of, crashes::kills::reopen};

/// Makes a process of this program the writer: its path and its seed.
const WRITER: &str = "SWARMKEEP_BLOCK_STORE_WRITER";

#[test]
fn real_torrents_through_the_stripe_cache_and_killed_read_back_as_they_were() {
    let folder = scratch_folder();
    let (_device, path) = device_of(folder.path(), 1 << 30);
    let raw = FileDevice::open(&path, true).unwrap();
    BlockStore::format(&raw, FormatOptions::new()).unwrap();
    drop(raw);
    let mut complete = 0;
    for (kill, seen) in [2, 4, usize::MAX].into_iter().enumerate() {
        let mut writer = Command::new(env::current_exe().unwrap())
            .args(["--exact", "block_store::the_writer_of_real_torrents", "--nocapture"])
            .env(WRITER, format!("{}\n{kill}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let flushed = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
        let flushes = flushed.filter(|line| line.starts_with("flushed")).take(seen).count();
        if seen == usize::MAX {
            assert!(writer.wait().unwrap().success());
        } else {
            assert_eq!(flushes, seen, "the writer ended before it was killed");
            thread::sleep(Duration::from_millis(2));
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        let store = reopen(&path);
        store.audit().unwrap();
        assert_eq!(store.report().damage, []);
        // Each piece marked complete has the hash in the torrent file.
        let had = std::mem::take(&mut complete);
        for name in torrents::ALL {
            let metainfo = torrents::torrent(name);
            let Ok(content) = store.open(&metainfo.info().info_hash()) else { continue };
            for piece in content.pieces().unwrap().iter() {
                let bytes = content.read_piece(piece).unwrap();
                let length = metainfo.info().piece_len(piece) as usize;
                assert!(metainfo.info().verify(piece, &bytes[..length]), "piece {piece} of {name}");
                complete += 1;
            }
        }
        assert!(complete >= had, "{complete} pieces where {had} were");
        println!("{}, end {}: {complete} complete pieces with the right hash", path.display(), kill + 1);
    }
    let store = reopen(&path);
    for name in torrents::ALL {
        let metainfo = torrents::torrent(name);
        let content = store.open(&metainfo.info().info_hash()).unwrap();
        assert_eq!(content.pieces().unwrap().count(), metainfo.info().piece_count(), "{name}");
    }
}

/// Not a test by itself: the test above starts it, and kills it.
#[test]
fn the_writer_of_real_torrents() {
    let Ok(told) = env::var(WRITER) else { return };
    let (path, seed) = told.split_once('\n').unwrap_or_else(|| panic!("{told}"));
    let options = with(StripeCacheOptions::new(), |options| options.write_memory = 32 << 20);
    let store = StripeCache::new(Arc::new(reopen(Path::new(path))), options).unwrap();
    let mut rng = SplitMix64::new(seed.parse().unwrap());
    let metainfos = torrents::ALL.map(torrents::torrent);
    let mut missing = Vec::new();
    for (nth, info) in metainfos.iter().map(|metainfo| metainfo.info()).enumerate() {
        let content = match store.open(&info.info_hash()) {
            Err(Error::NotFound(_)) => store.create(&NewTorrent::of(info).unwrap()),
            opened => opened,
        }
        .unwrap();
        let complete = content.pieces().unwrap();
        missing.extend(
            (0..info.piece_count()).filter(|&piece| !complete.contains(piece)).map(|piece| (nth, piece)),
        );
    }
    for at in (1..missing.len()).rev() {
        missing.swap(at, (rng.next_u64() % (at as u64 + 1)) as usize);
    }
    for pieces in missing.chunks(40) {
        for &(nth, piece) in pieces {
            let info = metainfos[nth].info();
            let content = store.open(&info.info_hash()).unwrap();
            let range = content.geometry().piece(piece).unwrap();
            let mut bytes = torrents::piece(info, piece);
            // Behind the files of a v2 torrent, up to the next piece, is padding.
            bytes.resize((range.end - range.start) as usize, 0);
            // As from peers: in blocks of 16 KiB, from the last to the first.
            for start in (0..bytes.len()).step_by(16 << 10).rev() {
                let block = &bytes[start..bytes.len().min(start + (16 << 10))];
                content.write(range.start + start as u64, block).unwrap();
            }
            assert!(content.mark_complete(piece).unwrap());
        }
        store.flush().unwrap();
        println!("flushed");
    }
}

fn hash(n: u8) -> InfoHash {
    InfoHash::new([n; 20])
}

/// The content of a piece of torrent `n` of the image.
fn piece_of(content: &dyn Content, n: u8, piece: u32) -> (u64, Vec<u8>) {
    let range = content.geometry().piece(piece).unwrap();
    let mut rng = SplitMix64::new(u64::from(n) << 32 | u64::from(piece));
    (range.start, (range.start..range.end).map(|_| rng.next_u64() as u8).collect())
}

/// Torrents of the image: their lengths, piece lengths and complete pieces.
const TORRENTS: [(u8, u64, u32, &[u32]); 4] = [
    (1, 100_000, 16 << 10, &[0, 1, 2, 3, 4, 5, 6]),
    (2, 1, 1, &[0]),
    (3, 33_333, 5_000, &[0, 2, 6]),
    // More blocks than an i-node of 16 KiB can name: its map lies in blocks of its own.
    (4, (70 << 20) + 1, 32 << 10, &[0, 1_000, 2_240]),
];

fn label_of(n: u8) -> Vec<u8> {
    vec![n; 100 * usize::from(n)]
}

#[test]
fn the_image_of_version_3_opens() {
    let folder = scratch_folder();
    let path = image_of_version(3, folder.path());
    assert_eq!(BlockStore::open_read_only(&path).unwrap().report().generation, 10);
    opens_as_made(&path);
}

#[test]
fn images_of_earlier_versions_are_refused_and_stay_as_they_are() {
    let folder = scratch_folder();
    for version in [1, 2] {
        let path = image_of_version(version, folder.path());
        let before = fs::read(&path).unwrap();
        let salvage = || BlockStore::salvage(FileDevice::open(&path, true).unwrap(), &|_| None);
        let salvaged = salvage().map(drop);
        for opened in [BlockStore::open(&path, None).map(drop), salvaged] {
            let told = opened.unwrap_err().to_string();
            let expected =
                format!("its format has version {version}, and commit 7132e1d is the last that reads it");
            assert!(told.ends_with(&expected), "{told}");
        }
        assert!(fs::read(&path).unwrap() == before);
        // Nor are i-nodes of such a version those of a store without a root.
        let device = FileDevice::open(&path, true).unwrap();
        [0, 4].into_iter().for_each(|copy| device.write(copy, &[&[Sector::ZERO]]).unwrap());
        drop(device);
        assert_eq!(salvage().unwrap().0, 0, "version {version}");
    }
}

/// `SWARMKEEP_MAKE_IMAGE` is the path of the image, for one of a later version.
#[test]
fn an_image_made_today_opens_as_the_one_of_version_3_does() {
    let folder = scratch_folder();
    let path = folder.path().join("image");
    make_image(&path);
    if let Some(kept) = env::var_os("SWARMKEEP_MAKE_IMAGE") {
        let mut zipped = GzEncoder::new(File::create(kept).unwrap(), Compression::best());
        zipped.write_all(&fs::read(&path).unwrap()).unwrap();
        zipped.finish().unwrap();
    }
    opens_as_made(&path);
}

fn make_image(path: &Path) {
    let device = FileDevice::create_image(path, 512 << 10).unwrap();
    BlockStore::format(&device, blocks_of(16 << 10)).unwrap();
    drop(device);
    let store = BlockStore::open(path, Allocation::Sequential).unwrap();
    for (n, length, piece_length, complete) in TORRENTS.into_iter().chain([(9, 20_000, 20_000, &[0][..])]) {
        let content = store.create(&NewTorrent::new(hash(n), length, piece_length).unwrap()).unwrap();
        for &piece in complete {
            let (start, bytes) = piece_of(&*content, n, piece);
            content.write(start, &bytes).unwrap();
            content.mark_complete(piece).unwrap();
        }
        if n < 9 {
            store.set_label(&hash(n), &label_of(n)).unwrap();
        }
    }
    store.flush().unwrap();
    // Leaves a block there that belongs to no torrent.
    store.delete(&hash(9)).unwrap();
}

fn opens_as_made(image: &Path) {
    let store = BlockStore::open(image, Allocation::Sequential).unwrap();
    store.audit().unwrap();
    assert_eq!(store.report().damage, []);
    assert_eq!((store.block_size(), store.list().unwrap().len()), (16 << 10, 4));
    for (n, length, piece_length, complete) in TORRENTS {
        let content = store.open(&hash(n)).unwrap();
        assert_eq!((content.geometry().len(), content.geometry().piece_length()), (length, piece_length));
        assert_eq!(content.pieces().unwrap().iter().collect::<Vec<_>>(), complete);
        assert!(*store.label(&hash(n)).unwrap() == *label_of(n), "the label of torrent {n}");
        for &piece in complete {
            let (start, bytes) = piece_of(&*content, n, piece);
            let mut read = vec![0; bytes.len()];
            content.read(start, &mut read).unwrap();
            assert!(read == bytes, "piece {piece} of torrent {n}");
        }
    }
    // And it can be written to.
    let content = store.create(&NewTorrent::new(hash(5), 10, 10).unwrap()).unwrap();
    content.write(0, b"0123456789").unwrap();
    content.mark_complete(0).unwrap();
    store.set_label(&hash(1), b"another").unwrap();
    store.flush().unwrap();
    drop((content, store));
    assert_eq!(&*reopen(image).label(&hash(1)).unwrap(), b"another");
}
