//! The complete pieces of a torrent, and the written bytes of the others.

use std::ops::Range;

use crate::{Error, Geometry, Result, stretches::Stretches};

/// A bit for each piece.
///
/// Takes memory in chunks of 65,536 pieces that exist once a piece of them was set.
#[derive(Clone)]
pub struct PieceBits {
    /// Ascending, with their numbers. The first piece is in the highest bit of the first byte (BEP 3,
    /// `bitfield`).
    chunks: Vec<(u32, Box<[u8]>)>,
    pieces: u32,
    set: u32,
}

impl PieceBits {
    /// Pieces of a chunk.
    const CHUNK: u32 = 1 << 16;

    /// `pieces` pieces, none set.
    pub fn none(pieces: u32) -> Self {
        Self { chunks: Vec::new(), pieces, set: 0 }
    }

    /// The chunk of a piece, or where it would be.
    fn chunk(&self, piece: u32) -> Result<usize, usize> {
        self.chunks.binary_search_by_key(&(piece / Self::CHUNK), |(number, _)| *number)
    }

    /// Whether a piece is set; `false` beyond the last.
    pub fn contains(&self, piece: u32) -> bool {
        let byte = self.chunk(piece).ok().and_then(|at| self.chunks[at].1.get(byte_of(piece)));
        byte.is_some_and(|byte| byte & bit_of(piece) != 0)
    }

    /// Sets a piece; `false` if it was set.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn insert(&mut self, piece: u32) -> bool {
        assert!(piece < self.pieces, "piece {piece} of {}", self.pieces);
        let at = self.chunk(piece).unwrap_or_else(|at| {
            let number = piece / Self::CHUNK;
            let pieces = (self.pieces - number * Self::CHUNK).min(Self::CHUNK);
            self.chunks.insert(at, (number, vec![0; pieces.div_ceil(8) as usize].into()));
            at
        });
        let byte = &mut self.chunks[at].1[byte_of(piece)];
        let new = *byte & bit_of(piece) == 0;
        *byte |= bit_of(piece);
        self.set += u32::from(new);
        new
    }

    /// Clears a piece; `false` if it was clear.
    pub fn remove(&mut self, piece: u32) -> bool {
        let old = self.contains(piece);
        if old && let Ok(at) = self.chunk(piece) {
            self.chunks[at].1[byte_of(piece)] &= !bit_of(piece);
            self.set -= 1;
        }
        old
    }

    /// How many pieces are set.
    pub const fn count(&self) -> u32 {
        self.set
    }

    /// The number of pieces.
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }

    /// The pieces that are set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let chunks = self.chunks.iter().map(|(number, bytes)| (number * Self::CHUNK, bytes));
        let bytes =
            chunks.flat_map(|(first, bytes)| (0..).zip(bytes).map(move |(at, byte)| (first + 8 * at, byte)));
        bytes.filter(|(_, byte)| **byte != 0).flat_map(|(first, byte)| {
            (0..8).map(move |bit| first + bit).filter(move |&piece| byte & bit_of(piece) != 0)
        })
    }

    /// The bits as in a `bitfield` message. Spare bits are zero.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.pieces.div_ceil(8) as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// Reads these bytes from `first` on. `into` holds zeroes, which stay behind the last byte.
    pub(crate) fn read(&self, first: u64, into: &mut [u8]) {
        const BYTES: u64 = (PieceBits::CHUNK / 8) as u64;
        let end = first + into.len() as u64;
        let start = self.chunks.partition_point(|(number, _)| u64::from(number + 1) * BYTES <= first);
        for (number, bytes) in &self.chunks[start..] {
            let at = u64::from(*number) * BYTES;
            let part = first.max(at)..end.min(at + bytes.len() as u64);
            if part.is_empty() {
                break;
            }
            let within = |from: u64| (part.start - from) as usize..(part.end - from) as usize;
            into[within(first)].copy_from_slice(&bytes[within(at)]);
        }
    }
}

impl PartialEq for PieceBits {
    fn eq(&self, other: &Self) -> bool {
        (self.pieces, self.set) == (other.pieces, other.set) && self.iter().eq(other.iter())
    }
}

impl Eq for PieceBits {}

debug_as!(PieceBits, it, "{} of {} pieces", it.set, it.pieces);

/// Which byte of its chunk has a piece.
const fn byte_of(piece: u32) -> usize {
    (piece % PieceBits::CHUNK / 8) as usize
}

const fn bit_of(piece: u32) -> u8 {
    0x80 >> (piece % 8)
}

/// The state of a torrent's bytes: its complete pieces, and the bytes of the others that were written since
/// the store was opened.
///
/// Takes the memory of [`PieceBits`], and some 50 bytes for each written stretch of incomplete pieces.
#[derive(Debug, Clone)]
pub struct Pieces {
    geometry: Geometry,
    complete: PieceBits,
    /// The written bytes of incomplete pieces.
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
        std::mem::replace(&mut self.complete, PieceBits::none(self.geometry.pieces()))
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

    /// Notes that the bytes in a range of incomplete pieces are no longer known.
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

    /// The written stretches of the incomplete pieces of a range.
    pub(crate) fn written(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        self.written.within(range)
    }

    /// The unreadable parts of a range that lies in the torrent. No two of these touch.
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

    /// The expected state of [`Pieces`], byte by byte.
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
    fn bits_read_alike_across_chunks() {
        let last = u32::MAX - 1;
        let mut bits = PieceBits::none(u32::MAX);
        for piece in [last, 0, 65_535, 65_536, 200_000] {
            assert!(
                !bits.contains(piece) && bits.insert(piece) && !bits.insert(piece) && bits.contains(piece)
            );
        }
        assert!(!bits.contains(u32::MAX) && !bits.contains(1 << 24));
        assert!(bits.iter().eq([0, 65_535, 65_536, 200_000, last]));
        assert!(bits.remove(0) && !bits.remove(0) && !bits.remove(1 << 24));
        for (first, expected) in [
            (8190, [0, 1, 0x80, 0]),
            (24_998, [0, 0, 0x80, 0]),
            ((1 << 29) - 2, [0, 2, 0, 0]),
            (1 << 29, [0; 4]),
        ] {
            let mut read = [0; 4];
            bits.read(first, &mut read);
            assert_eq!(read, expected, "from byte {first} on");
        }
        bits = PieceBits::none(65_537);
        bits.insert(65_536);
        let (bytes, mut cleared) = (bits.to_bytes(), bits.clone());
        assert_eq!((bytes.len(), bytes[8192]), (8193, 0x80));
        assert!(cleared != PieceBits::none(65_537) && cleared.remove(65_536));
        assert_eq!(cleared, PieceBits::none(65_537));
    }

    #[test]
    fn stretches_agree_with_bytes_kept_one_by_one() {
        let mut numbers = swarmkeep_kit::draw::Draw::new(1);
        let mut draw = |below| numbers.below(below);
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
