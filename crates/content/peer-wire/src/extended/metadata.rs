//! The info dictionary, piece by piece (BEP 9).

use swarmkeep_bittorrent::bencode::{Sink, Value, Writer};

use super::{Extension, Fields};
use crate::Error;

/// Bytes of a piece of metadata, except the last (BEP 9).
pub const METADATA_PIECE: u32 = 16 << 10;

/// A request for a piece of the info dictionary, or the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataMessage<'a> {
    /// Asks for a piece.
    Request {
        /// The piece, counted in [`METADATA_PIECE`].
        piece: u32,
    },
    /// A piece.
    Data {
        /// The piece, counted in [`METADATA_PIECE`].
        piece: u32,
        /// Bytes of the whole dictionary.
        total_size: u32,
        /// The bytes of the piece: as many as it has in a dictionary of that size.
        data: &'a [u8],
    },
    /// The sender does not have the piece, or has sent too many.
    Reject {
        /// The piece, counted in [`METADATA_PIECE`].
        piece: u32,
    },
    /// Of another type; to be ignored (BEP 9).
    Unknown {
        /// `msg_type`: neither 0, 1 nor 2.
        kind: i64,
        /// The piece, counted in [`METADATA_PIECE`].
        piece: u32,
    },
}

impl<'a> MetadataMessage<'a> {
    /// Bytes of a piece of a dictionary of `total_size` bytes; 0 after its end.
    pub const fn piece_len(total_size: u32, piece: u32) -> u32 {
        let left = (total_size as u64).saturating_sub(piece as u64 * METADATA_PIECE as u64);
        if left < METADATA_PIECE as u64 { left as u32 } else { METADATA_PIECE }
    }

    pub(super) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let (value, data) = Value::parse_first(payload)?;
        let fields = Fields::of(value, Extension::Metadata)?;
        let kind = fields.number("msg_type", "msg_type is no number")?;
        let kind = kind.ok_or_else(|| fields.wrong("msg_type is missing"))?;
        let piece = fields.number("piece", "piece is no number of 32 bits")?;
        let piece = piece.ok_or_else(|| fields.wrong("piece is missing"))?;
        let message = match kind {
            0 => Self::Request { piece },
            1 => {
                let total_size = fields.number("total_size", "total_size is no number of 32 bits")?;
                let total_size = total_size.ok_or_else(|| fields.wrong("total_size is missing"))?;
                if data.is_empty() || data.len() != Self::piece_len(total_size, piece) as usize {
                    return Err(
                        fields.wrong("there are more or fewer bytes than the piece has in total_size")
                    );
                }
                return Ok(Self::Data { piece, total_size, data });
            }
            2 => Self::Reject { piece },
            kind => return Ok(Self::Unknown { kind, piece }),
        };
        if data.is_empty() {
            Ok(message)
        } else {
            Err(fields.wrong("something stands behind the dictionary"))
        }
    }

    pub(super) fn encode<S: Sink>(&self, out: &mut S) {
        let (kind, piece, total_size, data) = match *self {
            Self::Request { piece } => (0, piece, None, &[][..]),
            Self::Data { piece, total_size, data } => (1, piece, Some(total_size), data),
            Self::Reject { piece } => (2, piece, None, &[][..]),
            Self::Unknown { kind, piece } => (kind, piece, None, &[][..]),
        };
        let mut writer = Writer::new(out);
        writer.dict().bytes(b"msg_type").integer(kind).bytes(b"piece").integer(piece.into());
        if let Some(total_size) = total_size {
            writer.bytes(b"total_size").integer(total_size.into());
        }
        writer.end().put(data);
    }
}
