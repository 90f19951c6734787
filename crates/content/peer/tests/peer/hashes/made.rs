//! Torrents of v2 made here, with hash trees as BEP 52 describes them: all layers, each from the one below.

use sha2::{Digest, Sha256};
use swarmkeep_bittorrent::bencode::Writer;
use swarmkeep_metainfo::{Info, Metainfo};

pub(crate) const BLOCK: usize = 16 << 10;

pub(crate) type Hash = [u8; 32];

/// A file, every hash of its tree (padding among them), layer by layer, and its bytes if it was made from
/// bytes.
pub(crate) struct Made {
    pub(crate) length: usize,
    pub(crate) layers: Vec<Vec<Hash>>,
    pub(crate) content: Vec<u8>,
}

impl Made {
    pub(crate) fn of_bytes(seed: u32, length: usize) -> Self {
        let words = (0..length as u32).map(|nth| (nth ^ seed << 20).wrapping_mul(0x9e37_79b1));
        let content: Vec<u8> = words.map(|word| (word >> 13) as u8).collect();
        let leaves = content.chunks(BLOCK).map(|block| Sha256::digest(block).into()).collect();
        Self { length, layers: layers(leaves), content }
    }

    /// A file of `blocks` blocks that has no bytes, but only hashes.
    pub(crate) fn of_hashes(seed: u8, blocks: usize) -> Self {
        let leaf = |nth: usize| Sha256::digest([&nth.to_le_bytes()[..], &[seed]].concat()).into();
        Self { length: blocks * BLOCK, layers: layers((0..blocks).map(leaf).collect()), content: Vec::new() }
    }

    /// A file with a tree that has something else in the place of padding, from the hash of that block on.
    pub(crate) fn with_wrong_padding(blocks: usize, from: usize) -> Self {
        let mut made = Self::of_hashes(1, blocks);
        made.layers[0][from..].fill([9; 32]);
        Self { layers: layers(made.layers.swap_remove(0)), ..made }
    }

    pub(crate) fn root(&self) -> &Hash {
        &self.layers.last().expect("there is a root")[0]
    }

    pub(crate) fn blocks(&self) -> usize {
        self.length.div_ceil(BLOCK)
    }

    pub(crate) fn height(&self) -> usize {
        self.layers.len() - 1
    }
}

fn layers(mut leaves: Vec<Hash>) -> Vec<Vec<Hash>> {
    leaves.resize(leaves.len().next_power_of_two(), [0; 32]);
    let mut layers = vec![leaves];
    while layers[layers.len() - 1].len() > 1 {
        let pairs = layers[layers.len() - 1].chunks(2);
        layers.push(pairs.map(|both| Sha256::digest(both.as_flattened()).into()).collect());
    }
    layers
}

/// A torrent of `files` in pieces of 2^`log` blocks: as a torrent file has it, and as a peer sends it.
pub(crate) fn torrent(files: &[Made], log: u32) -> (Info, Info) {
    let mut info = Vec::new();
    let mut writer = Writer::new(&mut info);
    writer.dict().bytes(b"file tree").dict();
    for (nth, file) in files.iter().enumerate() {
        writer.bytes(format!("{nth:04}").as_bytes()).dict().bytes(b"").dict();
        writer.bytes(b"length").integer(file.length as i64);
        if file.length > 0 {
            writer.bytes(b"pieces root").bytes(file.root());
        }
        writer.end().end();
    }
    writer.end().bytes(b"meta version").integer(2).bytes(b"name").bytes(b"made");
    writer.bytes(b"piece length").integer((BLOCK as i64) << log).end();
    let mut torrent = Vec::new();
    let mut writer = Writer::new(&mut torrent);
    writer.dict().bytes(b"info").put(&info).bytes(b"piece layers").dict();
    for file in files.iter().filter(|file| file.length > BLOCK << log) {
        let pieces = file.length.div_ceil(BLOCK << log);
        writer.bytes(file.root()).bytes(file.layers[log as usize][..pieces].as_flattened());
    }
    writer.end().end();
    let whole = Metainfo::parse(&torrent).expect("a torrent").info().as_ref().clone();
    (whole, Info::parse(&info).expect("its info dictionary"))
}
