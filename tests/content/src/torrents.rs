//! The torrents of the fixtures, and their content.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_metainfo::{File, Info, Metainfo};

/// The torrents of the fixtures that have files: `NAME.torrent`.
pub const ALL: [&str; 7] =
    ["many-v1", "some-v1", "some-v2", "some-hybrid", "one-v2", "one-hybrid", "large-v1"];

/// The bytes of a torrent file.
pub fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torrents");
    fs::read(folder.join(name).with_extension("torrent")).expect("it is a fixture")
}

/// A torrent file.
pub fn torrent(name: &str) -> Metainfo {
    Metainfo::parse(&fixture(name)).expect("a real program made it")
}

/// Bytes of a file of the fixtures: SplitMix64 of its number, any part of it.
fn content(number: u64, offset: u64, length: usize) -> Vec<u8> {
    let skipped = offset / 8;
    // The generator's state grows by the same number each time, so it can begin anywhere.
    let mut numbers = SplitMix64::new((number + 1).wrapping_add(skipped.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let start = (offset % 8) as usize;
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < start + length {
        bytes.extend_from_slice(&numbers.next_u64().to_le_bytes());
    }
    bytes[start..start + length].to_vec()
}

/// The content of `splitmix64-2MiB.info`.
pub fn two_mib() -> Vec<u8> {
    content(0, 0, 2 << 20)
}

/// Part of a file of a torrent of the fixtures; zeroes of padding.
pub fn part_of_file(info: &Info, file: File<'_>, offset: u64, length: usize) -> Vec<u8> {
    if file.is_padding() {
        return vec![0; length];
    }
    let number = info.files().iter().take(file.index()).filter(|file| !file.is_padding()).count();
    content(number as u64, offset, length)
}

/// A piece of a torrent of the fixtures.
pub fn piece(info: &Info, piece: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in info.files().segments(info.piece_range(piece).expect("it is one of the torrent's")) {
        let file = info.files().get(segment.file).expect("it is one of the torrent's");
        bytes.extend(part_of_file(info, file, segment.offset, segment.length as usize));
    }
    bytes
}

/// Writes the files of a torrent of the fixtures into a folder.
pub fn write_files(name: &str, folder: &Path) {
    let metainfo = torrent(name);
    let info = metainfo.info();
    for file in info.files().iter().filter(|file| !file.is_padding()) {
        let path = folder.join(PathBuf::from_iter(file.path()));
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("the folder takes a folder");
        let mut written = fs::File::create(path).expect("the folder takes a file");
        for offset in (0..file.length()).step_by(1 << 20) {
            let length = (file.length() - offset).min(1 << 20) as usize;
            written.write_all(&part_of_file(info, file, offset, length)).expect("there is room");
        }
    }
}
