//! The hash trees of a v2 torrent's files (BEP 52): the hashes that peers request from each other, and their
//! proofs.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::{
    BLOCK, Error, Info,
    file_tree::FileRoot,
    hash_tree::{self, Hash, pair, root_of},
    info::V2,
};

/// The known part of the hash tree of a file. [`Info::tree`] and [`Info::trees`] return it.
///
/// Layer 0 has the hashes of the file's blocks of 16 KiB ([`BLOCK`]). Each layer above has half as many, and
/// the layer [`height`](Self::height) has only the root. Padding fills the number of blocks up to a power of
/// two. Files of the same content share one tree.
#[derive(Debug, Clone, Copy)]
pub struct MerkleTree<'a> {
    file: &'a FileRoot,
    piece_length: u32,
    /// From the piece layer on, as far as they are kept; see [`V2::nodes`].
    nodes: Option<&'a [Hash]>,
}

impl<'a> MerkleTree<'a> {
    /// The root, which is `pieces root` in the torrent.
    pub const fn root(&self) -> &'a [u8; 32] {
        &self.file.hash
    }

    /// Bytes of the file, at least 1.
    pub const fn length(&self) -> u64 {
        self.file.length
    }

    /// The file's pieces; if several files share this tree, those of the first file.
    pub const fn pieces(&self) -> Range<u32> {
        // Fits: all pieces together do.
        let count = self.file.pieces(self.piece_length) as u32;
        self.file.first_piece..self.file.first_piece + count
    }

    /// The layer of the root; at most 49.
    pub const fn height(&self) -> u32 {
        hash_tree::levels(self.file.blocks())
    }

    /// The layer of the hashes of pieces. For a file of at most one piece it is the layer of the root.
    pub const fn piece_layer(&self) -> u32 {
        let (layer, height) = (hash_tree::levels((self.piece_length / BLOCK) as u64), self.height());
        if layer < height { layer } else { height }
    }

    /// The hashes of the file's pieces, if they are known. For a file of one piece they always are.
    pub fn piece_hashes(&self) -> Option<&'a [[u8; 32]]> {
        let count = self.file.pieces(self.piece_length) as usize;
        if count == 1 { Some(std::slice::from_ref(self.root())) } else { Some(&self.nodes?[..count]) }
    }

    /// `length` hashes of a layer from `index` on, padding included. `None` if the layer is shorter or below
    /// the piece layer, or if the hashes of pieces are not known. O(1) per hash.
    pub fn hashes(&self, layer: u32, index: u64, length: u64) -> Option<Vec<[u8; 32]>> {
        let above = layer.checked_sub(self.piece_layer())?;
        let whole = 1_u64 << self.height().checked_sub(layer)?;
        if index.checked_add(length)? > whole {
            return None;
        }
        if layer == self.height() {
            return Some(vec![*self.root(); length as usize]);
        }
        let (nodes, pieces) = (self.nodes?, self.piece_hashes()?);
        let padding = hash_tree::missing(self.piece_layer());
        let missing = (0..above).fold(padding, |missing, _| pair(&missing, &missing));
        let kept = (above == 0).then_some(pieces).or_else(|| {
            let (at, count) = kept_layers(pieces.len()).find(|(level, ..)| *level == above)?.1;
            Some(&nodes[at..at + count])
        });
        let hash = |nth: u64| match kept {
            Some(kept) => kept.get(nth as usize).copied().unwrap_or(missing),
            None => {
                let below = (nth << above) as usize;
                let end = (below + (1 << above)).min(pieces.len());
                pieces.get(below..end).map_or(missing, |pieces| root_of(pieces, above, padding))
            }
        };
        Some((index..index + length).map(hash).collect())
    }

    /// Whether `hashes` are those of a layer from `index` on, padding included. `uncles` prove it: the
    /// siblings of the hashes that can be computed, from the lowest layer up to the one below the root.
    /// Padding must have the hash of padding.
    ///
    /// `index` must be a multiple of the number of hashes, rounded up to a power of two; otherwise the result
    /// is `false`.
    pub fn verify(&self, layer: u32, index: u64, hashes: &[[u8; 32]], uncles: &[[u8; 32]]) -> bool {
        let levels = hash_tree::levels(hashes.len() as u64);
        let Some(whole) = self.height().checked_sub(layer).map(|levels| 1_u64 << levels) else {
            return false;
        };
        let within = index.checked_add(hashes.len() as u64).is_some_and(|end| end <= whole);
        if hashes.is_empty()
            || !within
            || layer as usize + levels as usize + uncles.len() != self.height() as usize
        {
            return false;
        }
        let (missing, there) = (hash_tree::missing(layer), self.file.blocks().div_ceil(1 << layer));
        let there = there.saturating_sub(index).min(hashes.len() as u64) as usize;
        if !index.is_multiple_of(1 << levels) || hashes[there..].iter().any(|hash| *hash != missing) {
            return false;
        }
        let (mut root, mut at) = (root_of(hashes, levels, missing), index >> levels);
        let mut missing = (0..levels).fold(missing, |missing, _| pair(&missing, &missing));
        for (uncle, layer) in uncles.iter().zip(layer + levels..) {
            if (at ^ 1) << layer >= self.file.blocks() && *uncle != missing {
                return false;
            }
            root = if at & 1 == 0 { pair(&root, uncle) } else { pair(uncle, &root) };
            missing = pair(&missing, &missing);
            at >>= 1;
        }
        root == *self.root()
    }

    /// Begins to hash the blocks below one hash of a layer: the bytes [`BlockHasher::range`] of the file.
    /// `None` if the layer has no such hash, or only padding below it.
    pub fn blocks(&self, layer: u32, index: u64) -> Option<BlockHasher> {
        let whole = 1_u64 << self.height().checked_sub(layer)?;
        let width = u64::from(BLOCK) << layer;
        let begin = width.checked_mul(index).filter(|begin| index < whole && *begin < self.length())?;
        let range = begin..self.length().min(begin + width);
        let missing = range.end - range.start;
        Some(BlockHasher {
            range,
            layer,
            index,
            leaves: Vec::new(),
            block: Sha256::new(),
            in_block: 0,
            missing,
        })
    }
}

/// Hashes blocks, part by part. [`MerkleTree::blocks`] begins it. Takes 32 bytes per block.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    range: Range<u64>,
    layer: u32,
    index: u64,
    leaves: Vec<Hash>,
    block: Sha256,
    in_block: u32,
    /// Bytes that are still to come.
    missing: u64,
}

impl BlockHasher {
    /// The bytes of the file that are hashed.
    pub const fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Hashes the next bytes, any number of them; bytes after the range are ignored.
    pub fn update(&mut self, data: &[u8]) {
        let mut data =
            &data[..usize::try_from(self.missing).map_or(data.len(), |missing| missing.min(data.len()))];
        self.missing -= data.len() as u64;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min((BLOCK - self.in_block) as usize));
            self.block.update(now);
            self.in_block += now.len() as u32;
            if self.in_block == BLOCK || (self.missing == 0 && later.is_empty()) {
                self.leaves.push(self.block.finalize_reset().into());
                self.in_block = 0;
            }
            data = later;
        }
    }

    /// The hashes above the blocks; `None` if not all bytes came.
    pub fn finish(self) -> Option<BlockHashes> {
        if self.missing > 0 {
            return None;
        }
        let mut layers = vec![self.leaves];
        let mut missing = [0; 32];
        for _ in 0..self.layer {
            let below = layers.last().expect("there are leaves");
            let pairs = below.chunks(2).map(|both| pair(&both[0], both.get(1).unwrap_or(&missing)));
            layers.push(pairs.collect());
            missing = pair(&missing, &missing);
        }
        Some(BlockHashes { index: self.index, layers })
    }
}

/// The hashes of a subtree.
#[derive(Debug, Clone)]
pub struct BlockHashes {
    /// The index of the hash at the top, in its layer.
    index: u64,
    /// From the hashes of blocks up to the top, without padding.
    layers: Vec<Vec<Hash>>,
}

impl BlockHashes {
    /// `length` hashes of a layer from `index` on, padding included; `None` if some are not in the subtree.
    pub fn hashes(&self, layer: u32, index: u64, length: u64) -> Option<Vec<[u8; 32]>> {
        let up = (self.layers.len() - 1).checked_sub(layer as usize)?;
        let begin = index.checked_sub(self.index << up)?;
        let end = begin.checked_add(length).filter(|end| *end <= 1 << up)?;
        let (hashes, missing) = (&self.layers[layer as usize], hash_tree::missing(layer));
        Some((begin..end).map(|nth| hashes.get(nth as usize).copied().unwrap_or(missing)).collect())
    }
}

impl Info {
    /// The tree with this root (`pieces root`), if a file has it. O(log n).
    pub fn tree(&self, root: &[u8; 32]) -> Option<MerkleTree<'_>> {
        let v2 = self.v2()?;
        let nth = v2.with_root(root).first()?;
        Some(v2.tree(*nth, self.piece_length()))
    }

    /// The trees of all non-empty files, each once, in the order of their roots. Empty for a v1 torrent.
    pub fn trees(&self) -> impl Iterator<Item = MerkleTree<'_>> {
        self.v2().into_iter().flat_map(|v2| {
            let alike =
                |one: &u32, other: &u32| v2.roots[*one as usize].hash == v2.roots[*other as usize].hash;
            v2.by_hash.chunk_by(alike).map(|alike| v2.tree(alike[0], self.piece_length()))
        })
    }

    /// Sets the hashes of the pieces of a file, and of all files of the same content: its piece layer without
    /// padding, as in `piece layers` of a torrent file. Each piece of the file can then be
    /// [checked](Self::check).
    ///
    /// # Errors
    /// [`Error::Layer`] if they do not match the root, [`Error::Field`] if no file of several pieces has that
    /// root. Then nothing is changed.
    pub fn set_piece_layer(&mut self, root: &[u8; 32], layer: &[[u8; 32]]) -> Result<(), Error> {
        let (piece_length, v2) = self.v2_mut();
        let nth = v2.as_ref().and_then(|v2| v2.with_root(root).first().copied());
        let (Some(v2), Some(nth)) = (v2, nth) else {
            return Err(Error::Field { key: "pieces root", what: "belongs to no file" });
        };
        let set = v2.set_layer(nth, layer, piece_length);
        set.map_err(|what| Error::Layer { file: self.file_of_root(nth), what })
    }
}

impl V2 {
    /// Which of `roots` have this hash, in their order.
    fn with_root(&self, root: &Hash) -> &[u32] {
        let hash = |nth: u32| &self.roots[nth as usize].hash;
        let begin = self.by_hash.partition_point(|nth| hash(*nth) < root);
        let count = self.by_hash[begin..].partition_point(|nth| hash(*nth) == root);
        &self.by_hash[begin..begin + count]
    }

    fn tree(&self, nth: u32, piece_length: u32) -> MerkleTree<'_> {
        let file = &self.roots[nth as usize];
        let count = file.pieces(piece_length) as usize;
        let nodes = file.layer.map(|begin| {
            let end = begin as usize + count + kept_layers(count).map(|(_, (_, count))| count).sum::<usize>();
            &self.nodes[begin as usize..end]
        });
        MerkleTree { file, piece_length, nodes }
    }

    /// Sets the piece layer of a file of several pieces, and of each file with the same root, if it has that
    /// root. Otherwise fails with its fault.
    pub(super) fn set_layer(
        &mut self,
        nth: u32,
        layer: &[Hash],
        piece_length: u32,
    ) -> Result<(), &'static str> {
        let file = &self.roots[nth as usize];
        if layer.len() as u64 != file.pieces(piece_length) || layer.len() == 1 {
            return Err("has not a hash of 32 bytes for each piece");
        }
        let (begin, height) = (self.nodes.len(), hash_tree::levels(layer.len() as u64));
        let fits = u32::try_from(begin).ok().filter(|_| u32::try_from(begin + 2 * layer.len()).is_ok());
        let from = fits.ok_or("has more hashes than can be counted")?;
        let mut missing = hash_tree::missing(hash_tree::levels((piece_length / BLOCK).into()));
        let root = if height <= FIRST_KEPT {
            self.nodes.extend_from_slice(layer);
            root_of(layer, height, missing)
        } else {
            self.nodes.extend_from_slice(layer);
            let mut below = self.nodes.len();
            self.nodes
                .extend(layer.chunks(1 << FIRST_KEPT).map(|leaves| root_of(leaves, FIRST_KEPT, missing)));
            missing = (0..FIRST_KEPT).fold(missing, |missing, _| pair(&missing, &missing));
            for _ in FIRST_KEPT + 1..height {
                let end = self.nodes.len();
                for at in (below..end).step_by(2) {
                    let right = if at + 1 < end { self.nodes[at + 1] } else { missing };
                    self.nodes.push(pair(&self.nodes[at], &right));
                }
                (below, missing) = (end, pair(&missing, &missing));
            }
            root_of(&self.nodes[below..], 1, missing)
        };
        if root != file.hash {
            self.nodes.truncate(begin);
            return Err("does not have its `pieces root`");
        }
        let hash = file.hash;
        for nth in self.with_root(&hash).to_vec() {
            self.roots[nth as usize].layer = Some(from);
        }
        Ok(())
    }
}

/// The first layer that is kept above the piece layer. Those between are computed, from 8 hashes at most:
/// keeping them would take almost as much memory as the piece layer itself, the others take an eighth of
/// that. Without those, a hash near the root would be computed from millions.
const FIRST_KEPT: u32 = 4;

/// The layers that are kept above a piece layer of `pieces` hashes, without the root: how far above it, where
/// among its nodes, and how many nodes.
fn kept_layers(pieces: usize) -> impl Iterator<Item = (u32, (usize, usize))> {
    let mut at = pieces;
    (FIRST_KEPT..hash_tree::levels(pieces as u64)).map(move |level| {
        let count = pieces.div_ceil(1 << level);
        at += count;
        (level, (at - count, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarmkeep_bittorrent::bencode::Writer;

    use crate::Metainfo;

    /// Every hash of a tree with these leaves, layer by layer, padding among them.
    fn plain(mut leaves: Vec<Hash>) -> Vec<Vec<Hash>> {
        leaves.resize(leaves.len().next_power_of_two(), [0; 32]);
        let mut layers = vec![leaves];
        while layers.last().unwrap().len() > 1 {
            let below = layers.last().unwrap();
            layers.push(below.chunks(2).map(|both| pair(&both[0], &both[1])).collect());
        }
        layers
    }

    /// Torrents of such files: lengths and roots.
    fn info_of(files: &[(u64, Hash)], piece_length: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.dict().bytes(b"file tree").dict();
        for (nth, (length, root)) in files.iter().enumerate() {
            writer.bytes(format!("{nth:04}").as_bytes()).dict().bytes(b"").dict();
            writer.bytes(b"length").integer(*length as i64).bytes(b"pieces root").bytes(root).end().end();
        }
        writer.end().bytes(b"meta version").integer(2).bytes(b"name").bytes(b"n");
        writer.bytes(b"piece length").integer(piece_length.into()).end();
        out
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length as u32)
            .flat_map(|nth| (nth / 4).wrapping_mul(0x9e37_79b9).to_le_bytes())
            .take(length)
            .collect()
    }

    fn counts() -> impl Iterator<Item = usize> {
        (1..=18).chain([31, 32, 33, 63, 64, 65])
    }

    #[test]
    fn every_hash_of_every_layer_is_as_in_the_whole_tree() {
        for (log, blocks) in [0, 1, 3].into_iter().flat_map(|log| counts().map(move |blocks| (log, blocks))) {
            let data = content((blocks << 14) - 100);
            let layers = plain(data.chunks(1 << 14).map(|block| Sha256::digest(block).into()).collect());
            let root = layers.last().unwrap()[0];
            let mut info = Info::parse(&info_of(&[(data.len() as u64, root)], BLOCK << log)).unwrap();
            let pieces = blocks.div_ceil(1 << log);
            assert_eq!(info.knows_hashes(), pieces == 1);
            if pieces > 1 {
                assert_eq!(info.tree(&root).unwrap().hashes(log, 0, 1), None);
                info.set_piece_layer(&root, &layers[log as usize][..pieces]).unwrap();
            }
            assert!(info.knows_hashes() && info.verify(0, &data[..info.piece_len(0) as usize]));
            let tree = info.tree(&root).unwrap();
            assert_eq!((tree.height() as usize, tree.length()), (layers.len() - 1, data.len() as u64));
            assert_eq!(tree.piece_hashes().unwrap(), &layers[tree.piece_layer() as usize][..pieces]);
            assert_eq!(tree.hashes(tree.height() + 1, 0, 1), None);
            for layer in 0..=tree.height() {
                let whole = &layers[layer as usize];
                let all = tree.hashes(layer, 0, whole.len() as u64);
                assert_eq!(
                    all.as_ref(),
                    (layer >= tree.piece_layer()).then_some(whole),
                    "{blocks} blocks, layer {layer}"
                );
                assert_eq!(tree.hashes(layer, 0, whole.len() as u64 + 1), None);
                for index in 0..whole.len() as u64 {
                    let Some(mut hasher) = tree.blocks(layer, index) else {
                        assert!(index << layer >= blocks as u64);
                        continue;
                    };
                    let range = hasher.range().start as usize..hasher.range().end as usize;
                    assert!(hasher.clone().finish().is_none(), "its bytes are missing");
                    data[range].chunks(10_007).for_each(|part| hasher.update(part));
                    let hashes = hasher.finish().unwrap();
                    for below in 0..=layer {
                        let (first, count) = (index << (layer - below), 1 << (layer - below));
                        let expected = &layers[below as usize][first as usize..][..count as usize];
                        assert_eq!(hashes.hashes(below, first, count).unwrap(), expected);
                        assert_eq!(hashes.hashes(below, first, count + 1), None);
                        assert!(first == 0 || hashes.hashes(below, first - 1, 1).is_none());
                    }
                    assert_eq!(hashes.hashes(layer + 1, index / 2, 1), None);
                }
            }
        }
    }

    #[test]
    fn ranges_are_proved_by_their_uncles_and_by_nothing_else() {
        for blocks in counts() {
            let layers = plain((0..blocks as u8).map(|nth| [nth + 1; 32]).collect());
            let root = layers.last().unwrap()[0];
            let info = Info::parse(&info_of(&[((blocks as u64) << 14, root)], BLOCK)).unwrap();
            let tree = info.tree(&root).unwrap();
            for layer in 0..tree.height() as usize {
                for levels in 0..layers.len() - layer {
                    for nth in 0..layers[layer].len() >> levels {
                        let index = nth << levels;
                        let mut hashes = layers[layer][index..][..1 << levels].to_vec();
                        let uncle = |up: usize| layers[layer + up][index >> up ^ 1];
                        let mut uncles: Vec<_> = (levels..layers.len() - 1 - layer).map(uncle).collect();
                        let holds = |hashes: &[Hash], uncles: &[Hash], at: usize| {
                            tree.verify(layer as u32, at as u64, hashes, uncles)
                        };
                        assert!(
                            holds(&hashes, &uncles, index),
                            "{blocks} blocks, {layer}, {index}, {levels}"
                        );
                        let other = (index + (1 << levels)) % layers[layer].len();
                        let same = layers[layer][other..].starts_with(&hashes);
                        assert!(other == index || same || !holds(&hashes, &uncles, other));
                        assert!(levels == 0 || !holds(&hashes, &uncles, index + 1));
                        assert!(!holds(&hashes, &[&uncles[..], &[[0; 32]]].concat(), index));
                        assert!(uncles.is_empty() || !holds(&hashes, &uncles[1..], index));
                        assert!(!holds(&[], &uncles, index));
                        for at in [0, hashes.len() - 1] {
                            hashes[at][31] ^= 1;
                            assert!(!holds(&hashes, &uncles, index), "a hash that is wrong");
                            hashes[at][31] ^= 1;
                        }
                        for at in 0..uncles.len() {
                            uncles[at][0] ^= 0x80;
                            assert!(!holds(&hashes, &uncles, index), "an uncle that is wrong");
                            uncles[at][0] ^= 0x80;
                        }
                    }
                }
            }
            assert!(
                !tree.verify(tree.height() + 1, 0, &[root], &[])
                    && tree.verify(tree.height(), 0, &[root], &[])
            );
        }
    }

    #[test]
    fn a_layer_is_taken_for_all_files_of_its_root_and_only_if_it_has_that() {
        let layers = plain((0..21).map(|nth| [nth; 32]).collect());
        let (root, other) = (layers.last().unwrap()[0], [7; 32]);
        let files = [(20 << 14 | 1, root), (5, other), (20 << 14 | 1, root)];
        let mut info = Info::parse(&info_of(&files, BLOCK)).unwrap();
        let unknown = info.clone();
        let layer = &layers[0][..21];
        let wrong = |what| Err(Error::Layer { file: 0, what });
        assert_eq!(
            info.set_piece_layer(&root, &layer[1..]),
            wrong("has not a hash of 32 bytes for each piece")
        );
        assert_eq!(
            info.set_piece_layer(&root, &layers[0]),
            wrong("has not a hash of 32 bytes for each piece")
        );
        assert_eq!(info.set_piece_layer(&root, &[[1; 32]; 21]), wrong("does not have its `pieces root`"));
        assert!(
            info.set_piece_layer(&[8; 32], layer).is_err() && info.set_piece_layer(&other, &[other]).is_err()
        );
        assert!(info == unknown && !info.knows_hashes());
        let pieces: Vec<_> = info.trees().map(|tree| tree.pieces()).collect();
        assert_eq!(pieces, [21..22, 0..21], "in the order of the roots, each once");
        info.set_piece_layer(&root, layer).unwrap();
        assert!(info.knows_hashes() && (0..43).all(|piece| info.check(piece).is_some()));
        let with_layers = [
            b"d4:info",
            &info_of(&files, BLOCK)[..],
            b"12:piece layersd32:",
            &root,
            b"672:",
            layer.as_flattened(),
            b"ee",
        ];
        assert_eq!(*Metainfo::parse(&with_layers.concat()).unwrap().into_info(), info);
        let memory = info.v2().unwrap().nodes.len();
        assert_eq!(memory, 21 + 2, "once for both files, and the layers above");
    }

    #[test]
    fn files_of_one_root_are_as_long_as_each_other() {
        let error =
            Info::parse(&info_of(&[(40_000, [1; 32]), (5, [2; 32]), (40_001, [1; 32])], BLOCK)).unwrap_err();
        assert_eq!(error.to_string(), "file 4: `pieces root` belongs to a file of another length");
    }

    #[test]
    fn a_hash_near_the_root_of_millions_of_pieces_is_not_computed_from_those() {
        let leaves: Vec<Hash> =
            (0..1_000_003_u32).map(|nth| Sha256::digest(nth.to_le_bytes()).into()).collect();
        let began = std::time::Instant::now();
        let layers = plain(leaves);
        let once = began.elapsed();
        let root = layers.last().unwrap()[0];
        let mut info = Info::parse(&info_of(&[(1_000_003 << 14, root)], BLOCK)).unwrap();
        info.set_piece_layer(&root, &layers[0][..1_000_003]).unwrap();
        let tree = info.tree(&root).unwrap();
        let began = std::time::Instant::now();
        for _ in 0..1000 {
            for layer in FIRST_KEPT..tree.height() {
                assert_eq!(tree.hashes(layer, 1, 1).unwrap(), layers[layer as usize][1..2]);
            }
        }
        assert!(began.elapsed() < 4 * once, "{:?} and {once:?}", began.elapsed());
        for (layer, whole) in layers.iter().enumerate() {
            let last = whole.len() as u64 - whole.len().min(600) as u64;
            assert_eq!(
                tree.hashes(layer as u32, last, whole.len() as u64 - last).unwrap(),
                whole[last as usize..]
            );
            let there = 1_000_003 >> layer;
            assert_eq!(tree.hashes(layer as u32, there, 1).unwrap(), whole[there as usize..][..1]);
        }
    }
}
