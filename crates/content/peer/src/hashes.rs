//! The hashes of v2 torrents (BEP 52): requests are answered from the piece layers and from pieces, and the
//! hashes that a magnet link lacks are requested.

mod fetch;

use std::ops::Range;

use swarmkeep_metainfo::{BLOCK, BlockHasher, Info};
use swarmkeep_peer_wire::HashRange;

pub use self::fetch::{HashFault, HashFetch, TooManyHashes};

/// The answer to a request for hashes.
#[derive(Debug)]
pub enum Answer {
    /// The hashes, as [`Hashes::new`](swarmkeep_peer_wire::Hashes::new): the range, and the hashes that prove
    /// it.
    Hashes(Vec<[u8; 32]>),
    /// The range is below the piece layer: the hashes are computed from the content.
    Read(Box<Reading>),
}

/// The most hashes in one answer: those of the blocks of a piece of 16 MiB.
pub const MOST_HASHES: u32 = 1024;

/// The most bytes of content that are read and hashed for one answer: a piece of 16 MiB, the longest that
/// programs make by default.
///
/// libtorrent requests the hashes of a piece's blocks after the piece turned out wrong, and no others below
/// the piece layer. It requests them from any peer, choked or not. So the caller counts [`Reading::bytes`]
/// like blocks that it sends: BEP 52 has the same limits for both.
pub const MOST_READ: u64 = 16 << 20;

/// Answers a request from the known hashes of the file, in O(length), or returns the content to read.
///
/// Every layer is served, whole or in part, with up to as many proof layers as there are below the root.
///
/// # Errors
/// Why it is to be rejected.
pub fn answer(info: &Info, range: &HashRange<'_>) -> Result<Answer, Refusal> {
    let tree = info.tree(range.root()).ok_or(Refusal("no file has that root"))?;
    let (base, index, length) = (range.base_layer(), u64::from(range.index()), u64::from(range.length()));
    if range.length() > MOST_HASHES {
        return Err(Refusal("more hashes than are sent at once"));
    }
    let height = tree.height();
    if base >= height {
        return Err(Refusal("the layer is not below the root"));
    }
    if index + length > 1 << (height - base) {
        return Err(Refusal("hashes behind the end of the layer"));
    }
    if !range.length().is_power_of_two() && index + length < tree.length().div_ceil(u64::from(BLOCK) << base)
    {
        return Err(Refusal("neither a power of two, nor the last hashes of the layer"));
    }
    // The layer of the hash above the range, and of the one that the proof leads to.
    let whole = base + range.length().next_power_of_two().trailing_zeros();
    let top = whole.max(base + range.proof_layers() + 1);
    if top > height {
        return Err(Refusal("a proof that goes on above the root"));
    }
    let beside = |layer: u32| (index >> (layer - base)) ^ 1;
    let known = |layer, index, length| tree.hashes(layer, index, length).ok_or(Refusal::UNKNOWN);
    let uncles = |from: u32| (from..top).map(move |layer| Ok(known(layer, beside(layer), 1)?[0]));
    if base >= tree.piece_layer() {
        let mut hashes = known(base, index, length)?;
        for uncle in uncles(whole) {
            hashes.push(uncle?);
        }
        return Ok(Answer::Hashes(hashes));
    }
    // All hashes that are below the piece layer are below this one.
    let below = whole.max(top.min(tree.piece_layer()));
    let nth = index >> (below - base);
    let Some(blocks) = tree.blocks(below, nth) else {
        // Only padding, of which no peer needs a proof.
        return Err(Refusal("only padding is below those hashes"));
    };
    let bytes = blocks.range().end - blocks.range().start;
    if bytes > MOST_READ {
        return Err(Refusal("more bytes than are hashed at once"));
    }
    let piece_length = u64::from(info.piece_length());
    let file = u64::from(tree.pieces().start) * piece_length;
    let piece = |at: u64| ((file + at) / piece_length) as u32;
    Ok(Answer::Read(Box::new(Reading {
        bytes: file + blocks.range().start..file + blocks.range().end,
        pieces: piece(blocks.range().start)..piece(blocks.range().end - 1) + 1,
        expected: tree.hashes(below, nth, 1).map(|hashes| hashes[0]),
        uncles: uncles(below).collect::<Result<_, _>>()?,
        blocks,
        range: (base, index, length),
        layers: whole..below,
        top: (below, nth),
    })))
}

/// Hashes that are to be computed from content.
#[derive(Debug)]
pub struct Reading {
    bytes: Range<u64>,
    pieces: Range<u32>,
    blocks: BlockHasher,
    range: (u32, u64, u64),
    /// The layers with a hash of the proof that is computed, too.
    layers: Range<u32>,
    /// Layer and index of the hash above all that is computed.
    top: (u32, u64),
    /// That hash, if it is known.
    expected: Option<[u8; 32]>,
    uncles: Vec<[u8; 32]>,
}

impl Reading {
    /// The bytes to read, as a range of the torrent; no more than [`MOST_READ`].
    pub const fn bytes(&self) -> &Range<u64> {
        &self.bytes
    }

    /// The pieces of these bytes. A caller that does not have them all rejects the request.
    pub const fn pieces(&self) -> &Range<u32> {
        &self.pieces
    }

    /// Hashes the next of these bytes, any number of them. To be called on a thread that may block.
    pub fn update(&mut self, data: &[u8]) {
        self.blocks.update(data);
    }

    /// The hashes, as in [`Answer::Hashes`].
    ///
    /// # Errors
    /// If bytes are missing, or are not those of the torrent as far as the piece layer
    /// shows.
    pub fn finish(self) -> Result<Vec<[u8; 32]>, Refusal> {
        let (base, index, length) = self.range;
        let blocks = self.blocks.finish().ok_or(Refusal::CONTENT)?;
        let one = |layer, index| Some(blocks.hashes(layer, index, 1)?[0]);
        if self.expected.is_some() && one(self.top.0, self.top.1) != self.expected {
            return Err(Refusal::CONTENT);
        }
        let mut hashes = blocks.hashes(base, index, length).ok_or(Refusal::CONTENT)?;
        for layer in self.layers {
            hashes.push(one(layer, (index >> (layer - base)) ^ 1).ok_or(Refusal::CONTENT)?);
        }
        hashes.extend(self.uncles);
        Ok(hashes)
    }
}

/// Why a request for hashes is rejected. The connection goes on: the peer cannot know all of these reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub struct Refusal(pub &'static str);

impl Refusal {
    pub(crate) const UNKNOWN: Self = Self("the hashes of the file's pieces are not known");
    const CONTENT: Self = Self("the content is not the torrent's");
}
