//! The pieces that a peer has, as its first message.

use std::fmt;

use crate::{Error, PieceIndex};

/// A bit for each piece, the first in the highest bit of the first byte (BEP 3).
///
/// Borrowed from the frame or from the sender. If the torrent is known, [`Limits`](crate::Limits) have
/// checked its length and spare bits. If it is not known yet (magnet links), call [`check`](Self::check) when
/// it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bitfield<'a>(&'a [u8]);

impl<'a> Bitfield<'a> {
    /// The bits as they stand on the wire.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The number of bytes of a bitfield for `pieces` pieces.
    pub const fn bytes_for(pieces: u32) -> usize {
        pieces.div_ceil(8) as usize
    }

    /// The bits as they stand on the wire.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Checks that it is a bitfield for `pieces` pieces.
    ///
    /// # Errors
    /// [`Error::BitfieldLength`], or [`Error::SpareBits`] if a bit after the last piece is set.
    pub fn check(self, pieces: u32) -> Result<(), Error> {
        if self.0.len() != Self::bytes_for(pieces) {
            return Err(Error::BitfieldLength { bytes: self.0.len(), pieces });
        }
        let spare = 0xff_u8.checked_shr(pieces % 8).filter(|_| pieces % 8 != 0).unwrap_or(0);
        match self.0.last() {
            Some(last) if last & spare != 0 => Err(Error::SpareBits { pieces }),
            _ => Ok(()),
        }
    }

    /// Whether the peer has `piece`; `false` for a piece after the last byte.
    pub fn contains(self, piece: PieceIndex) -> bool {
        let PieceIndex(piece) = piece;
        self.0.get(piece as usize / 8).is_some_and(|byte| byte << (piece % 8) & 0x80 != 0)
    }

    /// The number of pieces that the peer has.
    pub fn count(self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }

    /// The pieces that the peer has, in order. O(pieces + bytes).
    pub fn iter(self) -> impl Iterator<Item = PieceIndex> + use<'a> {
        self.0.iter().zip((0..).step_by(8)).flat_map(|(&byte, first)| {
            let mut left = byte;
            std::iter::from_fn(move || {
                let nth = left.leading_zeros();
                left &= !0x80_u8.checked_shr(nth)?;
                Some(PieceIndex(first + nth))
            })
        })
    }
}

impl fmt::Debug for Bitfield<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bitfield({} of {} bits)", self.count(), 8 * self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_piece_is_the_highest_bit_of_the_first_byte() {
        let bits = Bitfield::new(&[0b1000_0001, 0b0100_0000]);
        let pieces: Vec<u32> = bits.iter().map(|PieceIndex(piece)| piece).collect();
        assert_eq!(pieces, [0, 7, 9]);
        assert!((0..20).all(|piece| bits.contains(PieceIndex(piece)) == pieces.contains(&piece)));
        assert_eq!((bits.count(), bits.check(10), bits.check(16)), (3, Ok(()), Ok(())));
    }

    #[test]
    fn a_bit_behind_the_last_piece_is_an_error() {
        for pieces in 1..=64 {
            let mut bytes = vec![0xff; Bitfield::bytes_for(pieces)];
            let spare = bytes.len() as u32 * 8 - pieces;
            assert_eq!(Bitfield::new(&bytes).check(pieces).is_err(), spare > 0, "{pieces} pieces");
            if let Some(last) = bytes.last_mut() {
                *last <<= spare;
            }
            assert_eq!(Bitfield::new(&bytes).check(pieces), Ok(()), "{pieces} pieces");
            for spare in 0..spare {
                let mut bytes = bytes.clone();
                *bytes.last_mut().unwrap() |= 1 << spare;
                assert_eq!(Bitfield::new(&bytes).check(pieces), Err(Error::SpareBits { pieces }));
            }
        }
    }
}
