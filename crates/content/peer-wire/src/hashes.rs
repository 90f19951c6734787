//! Requests for hashes of a v2 torrent's trees, and their answers (BEP 52).

use crate::{Error, limits::number};

/// Hashes of one layer of a file's tree, and the layers above that prove them.
///
/// Every range is one that BEP 52 allows. Whether the file has these hashes is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashRange<'a> {
    root: &'a [u8; 32],
    index: u32,
    length: u16,
    base_layer: u8,
    proof_layers: u8,
}

/// Bytes of the fields of a range on the wire.
pub(crate) const LEN: usize = 48;

impl<'a> HashRange<'a> {
    /// The most hashes of the base layer that a request should have (BEP 52). Longer answers are not read.
    pub const MOST: u32 = 512;
    /// The most hashes that a client requests: libtorrent does so for the blocks of a piece that turned out
    /// wrong.
    pub const LONGEST: u32 = 8192;
    /// The most layers: 2^63 bytes are 2^49 blocks of 16 KiB.
    pub const MOST_LAYERS: u32 = 49;

    /// The range of `length` hashes from `index` on in the layer `base_layer` (0: hashes of blocks) of the
    /// tree with the root `root`, with a proof of `proof_layers` layers.
    ///
    /// `length` should be a power of two from 2 to [`MOST`](Self::MOST). BEP 52 allows a shorter range at the
    /// end of a layer; libtorrent (2.0.8) requests a range of 1 for a file of 512 n + 1 pieces.
    ///
    /// # Errors
    /// [`Error::HashRange`] unless `length` is from 1 to [`LONGEST`](Self::LONGEST), `index` a multiple of
    /// the power of two that it is cut off from, and the layers at most [`MOST_LAYERS`](Self::MOST_LAYERS).
    pub fn new(
        root: &'a [u8; 32],
        base_layer: u32,
        index: u32,
        length: u32,
        proof_layers: u32,
    ) -> Result<Self, Error> {
        let wrong = |what, value| Err(Error::HashRange { what, value });
        if !(1..=Self::LONGEST).contains(&length) {
            return wrong("length is from 1 to 8192", length);
        }
        if index % length.next_power_of_two() != 0 {
            return wrong("index is a multiple of length, or of the power of two above", index);
        }
        if base_layer > Self::MOST_LAYERS {
            return wrong("base layer is at most 49", base_layer);
        }
        if proof_layers > Self::MOST_LAYERS {
            return wrong("proof layers are at most 49", proof_layers);
        }
        let [base_layer, proof_layers] = [base_layer, proof_layers].map(|layers| layers as u8);
        Ok(Self { root, index, length: length as u16, base_layer, proof_layers })
    }

    /// The root of the file's tree, `pieces root` in its torrent.
    pub const fn root(&self) -> &'a [u8; 32] {
        self.root
    }

    /// The requested layer; 0 is the hashes of 16 KiB blocks.
    pub const fn base_layer(&self) -> u32 {
        self.base_layer as u32
    }

    /// The first hash of that layer.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The number of hashes of that layer.
    pub const fn length(&self) -> u32 {
        self.length as u32
    }

    /// The number of layers of the proof above it.
    pub const fn proof_layers(&self) -> u32 {
        self.proof_layers as u32
    }

    pub(crate) fn parse(fields: &'a [u8; LEN]) -> Result<Self, Error> {
        let root = fields.first_chunk().expect("48 bytes begin with 32");
        let [base_layer, index, length, proof_layers] = [32, 36, 40, 44].map(|at| number(fields, at));
        Self::new(root, base_layer, index, length, proof_layers)
    }

    pub(crate) fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..32].copy_from_slice(self.root);
        let numbers = [self.base_layer(), self.index, self.length(), self.proof_layers()];
        bytes[32..].copy_from_slice(numbers.map(u32::to_be_bytes).as_flattened());
        bytes
    }

    /// The number of hashes that prove the range: one per proof layer in which one hash covers more than the
    /// range. The first log2(length) - 1 proof layers are counted but have no hash (BEP 52). For a single
    /// hash, its sibling comes first.
    pub const fn uncles(&self) -> u32 {
        let levels = self.length().next_power_of_two().trailing_zeros();
        (self.proof_layers() + 1).saturating_sub(levels)
    }

    /// The most hashes that an answer may have: the range, and one to prove it from each layer above.
    pub(crate) const fn most_hashes(&self) -> u32 {
        let (layers, uncles) = (self.proof_layers(), self.uncles());
        self.length() + if uncles > layers { uncles } else { layers }
    }
}

/// The answer to a request for hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashes<'a> {
    range: HashRange<'a>,
    hashes: &'a [[u8; 32]],
}

impl<'a> Hashes<'a> {
    /// The hashes of `range`, followed by the hashes that prove it, from the lowest layer up.
    ///
    /// # Errors
    /// [`Error::HashRange`] if there are fewer hashes than in the range, or more than one per proof layer
    /// after them. The receiver checks that their number [proves](HashRange::uncles) the range.
    pub fn new(range: HashRange<'a>, hashes: &'a [[u8; 32]]) -> Result<Self, Error> {
        let wrong =
            |what| Err(Error::HashRange { what, value: u32::try_from(hashes.len()).unwrap_or(u32::MAX) });
        if hashes.len() < range.length() as usize {
            return wrong("there are as many hashes as length says");
        }
        if hashes.len() > range.most_hashes() as usize {
            return wrong("there is at most one hash a proof layer behind the range");
        }
        Ok(Self { range, hashes })
    }

    /// Their range.
    pub const fn range(&self) -> HashRange<'a> {
        self.range
    }

    /// The hashes of the base layer.
    pub fn base(&self) -> &'a [[u8; 32]] {
        &self.hashes[..self.range.length() as usize]
    }

    /// The hashes that prove them, from the lowest layer up.
    pub fn proof(&self) -> &'a [[u8; 32]] {
        &self.hashes[self.range.length() as usize..]
    }

    /// All of them.
    pub const fn all(&self) -> &'a [[u8; 32]] {
        self.hashes
    }
}
