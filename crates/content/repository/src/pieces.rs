//! Which pieces are complete, and which bytes of the others have been written: what every store knows of a
//! torrent.

use std::ops::Range;

use crate::{Error, Geometry, Result, stretches::Stretches};

/// A bit for each piece, the first in the highest bit of the first byte (BEP 3, `bitfield`). Spare bits are
/// zero.
#[derive(Clone, PartialEq, Eq)]
pub struct PieceBits {
    bytes: Box<[u8]>,
    pieces: u32,
    set: u32,
}

impl PieceBits {
    /// So many pieces, none set.
    pub fn none(pieces: u32) -> Self {
        Self { bytes: vec![0; pieces.div_ceil(8) as usize].into(), pieces, set: 0 }
    }

    /// Whether a piece is set; `false` beyond the last.
    pub fn contains(&self, piece: u32) -> bool {
        self.bytes.get(piece as usize / 8).is_some_and(|byte| byte & bit_of(piece) != 0)
    }

    /// Sets a piece; `false` if it was set.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn insert(&mut self, piece: u32) -> bool {
        assert!(piece < self.pieces, "piece {piece} of {}", self.pieces);
        let new = !self.contains(piece);
        self.bytes[piece as usize / 8] |= bit_of(piece);
        self.set += u32::from(new);
        new
    }

    /// Clears a piece; `false` if it was clear.
    pub fn remove(&mut self, piece: u32) -> bool {
        let old = self.contains(piece);
        if old {
            self.bytes[piece as usize / 8] &= !bit_of(piece);
            self.set -= 1;
        }
        old
    }

    /// How many pieces are set.
    pub const fn count(&self) -> u32 {
        self.set
    }

    /// How many pieces there are.
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }

    /// The pieces that are set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bytes = (0..).zip(&self.bytes).filter(|(_, byte)| **byte != 0);
        bytes.flat_map(|(at, byte)| {
            (0..8).map(move |bit| 8 * at + bit).filter(move |&piece| byte & bit_of(piece) != 0)
        })
    }

    /// The bits as they stand in a `bitfield` message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for PieceBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} pieces", self.set, self.pieces)
    }
}

const fn bit_of(piece: u32) -> u8 {
    0x80 >> (piece % 8)
}

/// What is known of a torrent's bytes: its complete pieces, and what was written of the others since the
/// store was opened.
///
/// Takes a bit a piece, and some 50 bytes for each stretch of incomplete pieces that was written.
#[derive(Debug, Clone)]
pub struct Pieces {
    geometry: Geometry,
    complete: PieceBits,
    /// What was written of incomplete pieces.
    written: Stretches,
}

impl Pieces {
    /// A torrent of which nothing is known.
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, complete: PieceBits::none(geometry.pieces()), written: Stretches::default() }
    }

    /// A torrent of which these pieces are complete.
    ///
    /// # Panics
    /// If the bits are those of another number of pieces.
    pub fn with_complete(geometry: Geometry, complete: PieceBits) -> Self {
        assert_eq!(complete.pieces(), geometry.pieces());
        Self { geometry, complete, written: Stretches::default() }
    }

    /// The complete ones.
    pub const fn complete(&self) -> &PieceBits {
        &self.complete
    }

    /// Takes the complete ones away, so that none is.
    pub(crate) fn take_complete(&mut self) -> PieceBits {
        std::mem::replace(
            &mut self.complete,
            PieceBits { bytes: Box::default(), pieces: self.geometry.pieces(), set: 0 },
        )
    }

    /// Asserts that all of a range, which lies in the torrent, can be read.
    ///
    /// # Errors
    /// [`Error::NotWritten`] with the first byte that cannot.
    pub fn check_read(&self, range: &Range<u64>) -> Result<()> {
        match self.first_missing(range) {
            Some(at) => Err(Error::NotWritten { at }),
            None => Ok(()),
        }
    }

    /// Asserts that none of a range, which lies in the torrent, is of a complete piece.
    ///
    /// # Errors
    /// [`Error::Complete`] with the first that is.
    pub fn check_write(&self, range: &Range<u64>) -> Result<()> {
        match self.geometry.pieces_of(range).find(|&piece| self.complete.contains(piece)) {
            Some(piece) => Err(Error::Complete { piece }),
            None => Ok(()),
        }
    }

    /// Takes note that a range of incomplete pieces was written.
    pub fn wrote(&mut self, range: Range<u64>) {
        self.wrote_anew(range);
    }

    /// As [`wrote`](Self::wrote); how many bytes of it had not been.
    pub(crate) fn wrote_anew(&mut self, range: Range<u64>) -> u64 {
        self.written.insert(range)
    }

    /// Takes note that what a range of incomplete pieces holds is no longer known.
    pub fn lost(&mut self, range: Range<u64>) {
        self.written.remove(&range);
    }

    /// Marks a piece complete; `false` if it was.
    ///
    /// # Errors
    /// [`Error::NoSuchPiece`], [`Error::NotWritten`].
    pub fn mark_complete(&mut self, piece: u32) -> Result<bool> {
        let range = self.geometry.piece(piece)?;
        if self.complete.contains(piece) {
            return Ok(false);
        }
        self.check_read(&range)?;
        self.lost(range);
        Ok(self.complete.insert(piece))
    }

    /// Marks a piece incomplete, with nothing of it written; `false` if it was incomplete.
    ///
    /// # Errors
    /// [`Error::NoSuchPiece`].
    pub fn mark_incomplete(&mut self, piece: u32) -> Result<bool> {
        self.geometry.piece(piece)?;
        Ok(self.complete.remove(piece))
    }

    /// Whether any byte of a range, which may reach beyond the torrent, can be read.
    pub fn knows_any_of(&self, range: &Range<u64>) -> bool {
        let range = range.start..range.end.min(self.geometry.len());
        !range.is_empty()
            && (self.geometry.pieces_of(&range).any(|piece| self.complete.contains(piece))
                || self.written.overlaps(&range))
    }

    /// What was written of the incomplete pieces of a range.
    pub(crate) fn written(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        self.written.within(range)
    }

    /// What of a range, which lies in the torrent, cannot be read. No two of these touch.
    pub(crate) fn unknown(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut unknown: Vec<Range<u64>> = Vec::new();
        let mut pieces = self.geometry.pieces_of(range);
        // Neighbours that are incomplete are looked at together.
        while let Some(first) = pieces.find(|&piece| !self.complete.contains(piece)) {
            let behind = pieces.find(|&piece| self.complete.contains(piece));
            let start_of = |piece| u64::from(piece) * u64::from(self.geometry.piece_length());
            let end = behind.map_or(range.end, start_of);
            unknown.append(&mut self.written.outside(&(start_of(first).max(range.start)..end)));
        }
        unknown
    }

    /// How many bytes of a range, which lies in the torrent, can be read.
    pub(crate) fn known(&self, range: &Range<u64>) -> u64 {
        let length = |part: Range<u64>| part.end - part.start;
        let complete = self.geometry.pieces_of(range).filter(|&piece| self.complete.contains(piece));
        let complete = complete.map(|piece| {
            let piece = self.geometry.piece(piece).expect("it holds a byte of the torrent");
            length(piece.start.max(range.start)..piece.end.min(range.end))
        });
        complete.sum::<u64>() + self.written.within(range).map(length).sum::<u64>()
    }

    fn first_missing(&self, range: &Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let piece = (at / u64::from(self.geometry.piece_length())) as u32;
            if self.complete.contains(piece) {
                at = self.geometry.piece(piece).expect("it holds a byte of the torrent").end;
            } else {
                match self.written.end_of(at) {
                    Some(end) => at = end,
                    None => return Some(at),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`Pieces`] should know, byte by byte.
    struct Naive {
        geometry: Geometry,
        written: Vec<bool>,
        complete: Vec<bool>,
    }

    impl Naive {
        fn readable(&self, at: u64) -> bool {
            self.written[at as usize]
                || self.complete[(at / u64::from(self.geometry.piece_length())) as usize]
        }
    }

    #[test]
    fn stretches_agree_with_bytes_kept_one_by_one() {
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for (length, piece_length) in [(100, 10), (97, 16), (33, 64), (64, 1)] {
            let geometry = Geometry::new(length, piece_length).unwrap();
            let mut pieces = Pieces::new(geometry);
            let mut naive = Naive {
                geometry,
                written: vec![false; length as usize],
                complete: vec![false; geometry.pieces() as usize],
            };
            for _ in 0..20_000 {
                let start = draw(length);
                let range = start..start + draw((length - start).min(20) + 1);
                let piece = draw(geometry.pieces().into()) as u32;
                match draw(5) {
                    0 | 1 => {
                        let free = geometry.pieces_of(&range).all(|piece| !naive.complete[piece as usize]);
                        assert_eq!(pieces.check_write(&range).is_ok(), free);
                        if free {
                            let new = range.clone().filter(|&at| !naive.written[at as usize]).count();
                            assert_eq!(pieces.wrote_anew(range.clone()), new as u64);
                            range.for_each(|at| naive.written[at as usize] = true);
                        }
                    }
                    2 => {
                        pieces.lost(range.clone());
                        range.for_each(|at| naive.written[at as usize] = false);
                    }
                    3 => {
                        let mut bytes = geometry.piece(piece).unwrap();
                        let all = bytes.clone().all(|at| naive.readable(at));
                        assert_eq!(pieces.mark_complete(piece).is_ok(), all);
                        if all {
                            naive.complete[piece as usize] = true;
                            bytes.by_ref().for_each(|at| naive.written[at as usize] = false);
                        }
                    }
                    _ => {
                        let was = std::mem::take(&mut naive.complete[piece as usize]);
                        assert_eq!(pieces.mark_incomplete(piece).unwrap(), was);
                    }
                }
                let start = draw(length);
                let range = start..start + draw(length - start + 1);
                let missing = range.clone().find(|&at| !naive.readable(at));
                assert_eq!(pieces.first_missing(&range), missing);
                let known = range.clone().filter(|&at| naive.readable(at)).count();
                assert_eq!(pieces.known(&range), known as u64);
                let missing: Vec<_> = range.clone().filter(|&at| !naive.readable(at)).collect();
                let unknown = pieces.unknown(&range);
                assert!(unknown.iter().zip(unknown.iter().skip(1)).all(|(a, b)| a.end < b.start));
                assert!(unknown.into_iter().flatten().eq(missing));
                let unwritten: Vec<_> = pieces.written.outside(&range).into_iter().flatten().collect();
                assert!(range.clone().filter(|&at| !naive.written[at as usize]).eq(unwritten));
                assert_eq!(pieces.knows_any_of(&range), range.clone().any(|at| naive.readable(at)));
                let apart =
                    pieces.written.iter().zip(pieces.written.iter().skip(1)).all(|(a, b)| a.end < b.start);
                assert!(apart, "{:?}", pieces.written);
                assert_eq!(pieces.complete.count() as usize, pieces.complete.iter().count());
            }
        }
    }
}
