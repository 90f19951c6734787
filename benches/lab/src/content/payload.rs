//! The content of the torrents: slices of one random buffer, so that it costs nothing during a measurement.

use std::io::IoSlice;

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    Geometry,
    block::{SECTOR, Sector, sectors},
};
use zerocopy::IntoBytes;

/// More than the caches of processors hold, since pieces from peers are not in a cache either.
const PLACES: u64 = (64 << 20) / SECTOR as u64;
/// Bytes of a block, and of a buffer of a client.
pub(crate) const REQUEST: usize = 16 << 10;

/// The bytes of all pieces.
#[derive(Debug)]
pub(crate) struct Payload {
    buffer: Vec<Sector>,
}

impl Payload {
    /// Pieces have at most `longest` bytes.
    pub(crate) fn new(longest: u32) -> Self {
        let mut buffer = sectors(PLACES as usize + (longest as usize).div_ceil(SECTOR));
        let mut rng = SplitMix64::new(0x7061_796c);
        for word in buffer.as_mut_bytes().chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        Self { buffer }
    }

    /// The content of a piece of a torrent: another part of the buffer for almost any two.
    pub(crate) fn piece(&self, geometry: Geometry, torrent: u32, piece: u32) -> &[u8] {
        let range = geometry.piece(piece).expect("the caller goes through its pieces");
        let draw = SplitMix64::new(u64::from(torrent) << 32 | u64::from(piece)).next_u64();
        let from = (draw % PLACES) as usize * SECTOR;
        &self.buffer.as_bytes()[from..from + (range.end - range.start) as usize]
    }

    /// The same in the buffers in which a client has it: one for each request.
    pub(crate) fn buffers(&self, geometry: Geometry, torrent: u32, piece: u32) -> Vec<IoSlice<'_>> {
        self.piece(geometry, torrent, piece).chunks(REQUEST).map(IoSlice::new).collect()
    }
}
