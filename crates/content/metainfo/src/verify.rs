//! Verifying the bytes of a piece.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{
    BLOCK, Info,
    hash_tree::{Hash, HashTree},
};

/// Verifies a piece, part by part. [`Info::check`] begins one.
#[derive(Debug, Clone)]
pub struct PieceCheck<'a> {
    hashing: Hashing,
    v1: Option<&'a [u8; 20]>,
    v2: Option<&'a Hash>,
}

impl<'a> PieceCheck<'a> {
    /// One of `length` bytes, with the hashes that it should have: one of them at least.
    pub(super) fn new(length: u32, v1: Option<&'a [u8; 20]>, v2: Option<(Blocks, &'a Hash)>) -> Self {
        let (blocks, v2) = v2.unzip();
        Self { hashing: Hashing::new(length, v1.map(|_| 0), blocks), v1, v2 }
    }

    /// The next bytes, however many.
    pub fn update(&mut self, data: &[u8]) {
        self.hashing.update(data);
    }

    /// Whether the bytes were the whole piece and all hashes are right.
    pub fn holds(self) -> bool {
        let hashes = self.hashing.finish();
        hashes.is_some_and(|(v1, v2)| (v1.as_ref(), v2.as_ref()) == (self.v1, self.v2))
    }
}

/// The bytes of a piece on their way into its hashes, of v1, v2, or both.
#[derive(Debug, Clone)]
pub(super) struct Hashing {
    /// How many bytes are still to come; `None` when there were too many.
    missing: Option<u32>,
    /// And how many zeroes of padding follow, which only v1 has.
    v1: Option<(Sha1, u32)>,
    v2: Option<Blocks>,
}

impl Hashing {
    /// A piece of `length` bytes; in v1 with `padding` bytes behind them.
    pub(super) fn new(length: u32, padding: Option<u32>, v2: Option<Blocks>) -> Self {
        Self { missing: Some(length), v1: padding.map(|padding| (Sha1::new(), padding)), v2 }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        self.missing = self.missing.and_then(|missing| missing.checked_sub(u32::try_from(data.len()).ok()?));
        if self.missing.is_none() {
            return;
        }
        if let Some((hash, _)) = &mut self.v1 {
            hash.update(data);
        }
        if let Some(blocks) = &mut self.v2 {
            blocks.update(data);
        }
    }

    /// The hashes; `None` if not all bytes came, or too many.
    pub(super) fn finish(self) -> Option<(Option<[u8; 20]>, Option<Hash>)> {
        let v1 = self.v1.map(|(mut hash, mut padding)| {
            while padding > 0 {
                let now = padding.min(BLOCK);
                hash.update(&[0; BLOCK as usize][..now as usize]);
                padding -= now;
            }
            hash.finalize().into()
        });
        (self.missing == Some(0)).then(|| (v1, self.v2.map(Blocks::root)))
    }
}

/// The blocks of one file in one piece, as their bytes come.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    tree: HashTree,
    levels: u32,
    block: Sha256,
    in_block: u32,
    /// Bytes of the file that are still to come. Padding follows, which is not in the tree.
    missing: u32,
}

impl Blocks {
    /// A tree of 2^`levels` blocks, of which the first hold `length` bytes and the others nothing.
    pub(super) fn new(length: u32, levels: u32) -> Self {
        let (tree, block) = (HashTree::new([0; 32]), Sha256::new());
        Self { tree, levels, block, in_block: 0, missing: length }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        let mut data = &data[..data.len().min(self.missing as usize)];
        self.missing -= data.len() as u32;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min((BLOCK - self.in_block) as usize));
            self.block.update(now);
            self.in_block += now.len() as u32;
            if self.in_block == BLOCK {
                self.end_block();
            }
            data = later;
        }
    }

    fn end_block(&mut self) {
        self.tree.push(self.block.finalize_reset().into());
        self.in_block = 0;
    }

    pub(super) fn root(mut self) -> Hash {
        if self.in_block > 0 {
            self.end_block();
        }
        self.tree.root(self.levels)
    }
}

impl Info {
    /// Whether `data` is the piece: [`piece_len`](Self::piece_len) bytes, with zeroes for padding.
    ///
    /// v1: the SHA-1 of the bytes is the hash of the piece. v2: the tree over the file's blocks of 16 KiB has
    /// the root in the piece layer, or `pieces root` for a file of at most one piece; the last block may be
    /// shorter, and the hash of a missing block is 32 zero bytes. A hybrid must satisfy both; padding counts
    /// for v1 only.
    ///
    /// `false` if there is no such piece, or its hash is not known ([`knows_hashes`](Self::knows_hashes)).
    pub fn verify(&self, piece: u32, data: &[u8]) -> bool {
        let Some(mut check) = self.check(piece) else { return false };
        check.update(data);
        check.holds()
    }
}
