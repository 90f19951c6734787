//! Whether the bytes of a piece are those that the torrent says.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{
    BLOCK, Info,
    hash_tree::{Hash, HashTree},
};

/// A piece that is being verified, as its bytes come. [`Info::check`] begins one.
#[derive(Debug, Clone)]
pub struct PieceCheck<'a> {
    /// How many bytes are still to come; `None` when there were too many.
    missing: Option<u32>,
    v1: Option<(Sha1, &'a [u8; 20])>,
    v2: Option<BlockTree<'a>>,
}

impl<'a> PieceCheck<'a> {
    pub(super) fn new(length: u32, v1: Option<&'a [u8; 20]>, v2: Option<BlockTree<'a>>) -> Self {
        Self { missing: Some(length), v1: v1.map(|expected| (Sha1::new(), expected)), v2 }
    }

    /// The next bytes, however many.
    pub fn update(&mut self, data: &[u8]) {
        self.missing = self.missing.and_then(|missing| missing.checked_sub(u32::try_from(data.len()).ok()?));
        if self.missing.is_none() {
            return;
        }
        if let Some((hash, _)) = &mut self.v1 {
            hash.update(data);
        }
        if let Some(tree) = &mut self.v2 {
            tree.update(data);
        }
    }

    /// Whether that was the whole piece, and all of its hashes are right.
    pub fn holds(self) -> bool {
        let v1 = self.v1.map(|(hash, expected)| <[u8; 20]>::from(hash.finalize()) == *expected);
        let v2 = self.v2.map(BlockTree::holds);
        let hashed = v1.is_some() || v2.is_some();
        self.missing == Some(0) && hashed && v1.unwrap_or(true) && v2.unwrap_or(true)
    }
}

/// The blocks of one file in one piece, and the root that their tree is to have.
#[derive(Debug, Clone)]
pub(super) struct BlockTree<'a> {
    tree: HashTree,
    levels: u32,
    expected: &'a Hash,
    block: Sha256,
    in_block: u32,
    /// Bytes of the file that are still to come. What follows is padding, which is not in the tree.
    missing: u32,
}

impl<'a> BlockTree<'a> {
    /// A tree of 2^`levels` blocks, of which the first hold `length` bytes and the others nothing.
    pub(super) fn new(length: u32, levels: u32, expected: &'a Hash) -> Self {
        let (tree, block) = (HashTree::new([0; 32]), Sha256::new());
        Self { tree, levels, expected, block, in_block: 0, missing: length }
    }

    fn update(&mut self, data: &[u8]) {
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

    fn holds(mut self) -> bool {
        if self.in_block > 0 {
            self.end_block();
        }
        self.tree.root(self.levels) == *self.expected
    }
}

impl Info {
    /// Whether `data` is that piece: all its bytes, as many as [`piece_len`](Self::piece_len) says, with zeroes for padding within.
    ///
    /// v1: their SHA-1 is the piece's. v2: the tree over the file's blocks of 16 KiB (the last as short as it is, missing ones 32 zero bytes in
    /// the place of their hash) has the root that the piece layer says, or `pieces root` for a file of no more than a piece. Of a hybrid both
    /// must hold; bytes of padding count for v1 only.
    ///
    /// `false` if there is no such piece, or its hash is not known ([`knows_hashes`](Self::knows_hashes)).
    pub fn verify(&self, piece: u32, data: &[u8]) -> bool {
        let Some(mut check) = self.check(piece) else { return false };
        check.update(data);
        check.holds()
    }
}
