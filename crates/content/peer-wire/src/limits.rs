//! The limits of the messages of a peer, and reading messages within them.

use crate::{
    Bitfield, Block, Error, Extended, HashRange, Hashes, Message, MessageId, Piece, PieceIndex, hashes,
};

/// The limits of the messages that a peer may send in one torrent. They keep no state between messages.
///
/// The longest frame bounds the buffer of a connection: see [`longest`](Self::longest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The last there could be, while the torrent is not known.
    last_piece: PieceIndex,
    piece_length: u32,
    last_piece_length: u32,
    /// Whether the torrent is known.
    known: bool,
    /// The most bytes of a block, in requests and in pieces; at least 1.
    pub longest_block: u32,
    /// The most bytes, after the length prefix, of frames that have no other bound: extended and unknown
    /// messages, and bitfields while the torrent is not known. In a known torrent, a bitfield always has its
    /// exact length.
    pub longest_frame: u32,
}

impl Limits {
    /// The default limit of the bytes of a block: some old clients request as many, all others 16 KiB.
    pub const LONGEST_BLOCK: u32 = 128 << 10;
    /// The default limit of the bytes of a frame that has no other bound: the bitfield of 8 million pieces.
    pub const LONGEST_FRAME: u32 = 1 << 20;

    /// For a torrent without known metadata (magnet links): any piece is allowed, and bitfields are [not
    /// checked](Bitfield::check).
    pub const fn new() -> Self {
        Self {
            last_piece: PieceIndex(u32::MAX - 1),
            piece_length: u32::MAX,
            last_piece_length: u32::MAX,
            known: false,
            longest_block: Self::LONGEST_BLOCK,
            longest_frame: Self::LONGEST_FRAME,
        }
    }

    /// For a v1 or hybrid torrent of `length` bytes in pieces of `piece_length`, of which the last may be
    /// shorter.
    ///
    /// # Errors
    /// [`Error::Torrent`] if either is 0, or if there are more than 2³² − 1 pieces.
    pub fn for_torrent(length: u64, piece_length: u32) -> Result<Self, Error> {
        let wrong = Error::Torrent { length, piece_length };
        let Some(before_last) = length.checked_sub(1).and_then(|last| last.checked_div(piece_length.into()))
        else {
            return Err(wrong);
        };
        // As many as 32 bits can count.
        let Some(last_piece) = u32::try_from(before_last).ok().filter(|&last| last < u32::MAX) else {
            return Err(wrong);
        };
        let last_piece_length = (length - before_last * u64::from(piece_length)) as u32;
        Ok(Self {
            last_piece: PieceIndex(last_piece),
            piece_length,
            last_piece_length,
            known: true,
            ..Self::new()
        })
    }

    /// For a v2-only torrent of `pieces` pieces. All pieces count as equally long: each file begins with a
    /// piece, and the ends of files are not known here. libtorrent requests whole blocks at the end of a
    /// file, and answers with zeroes after the end.
    ///
    /// # Errors
    /// [`Error::Torrent`] if either is 0.
    pub fn for_v2_torrent(pieces: u32, piece_length: u32) -> Result<Self, Error> {
        Self::for_torrent(u64::from(pieces) * u64::from(piece_length), piece_length)
    }

    /// The number of pieces, if it is known.
    pub const fn pieces(&self) -> Option<u32> {
        if self.known { Some(self.most_pieces()) } else { None }
    }

    const fn most_pieces(&self) -> u32 {
        self.last_piece.0 + 1
    }

    const fn longest_piece(&self) -> u32 {
        self.longest_block.saturating_add(9)
    }

    /// The most bytes of a message, with its length prefix, and so the most that has to be buffered.
    pub const fn longest(&self) -> usize {
        (self.longest_length() as usize).saturating_add(4)
    }

    /// The same without the prefix.
    const fn longest_length(&self) -> u32 {
        let (mut longest, others) =
            (self.longest_frame, [self.longest_piece(), self.bitfield_length().1, MOST_HASHES]);
        let mut nth = 0;
        while nth < others.len() {
            if others[nth] > longest {
                longest = others[nth];
            }
            nth += 1;
        }
        longest
    }

    /// Takes a message from the front of `bytes`; `None`, with `bytes` unchanged, while it is not complete.
    ///
    /// The first bytes are checked at once: the length after five bytes, the piece and the block of a piece
    /// message after 13. Nothing after the frame is read.
    ///
    /// # Errors
    /// The error of the message. `bytes` stay unchanged: the next message cannot be found.
    // Always: a call writes to memory the values that the caller would keep in registers, and takes twice as
    // long (docs/reports/peer-wire.md).
    #[inline(always)]
    pub fn decode<'a>(&self, bytes: &mut &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        /// Returns a message. In each arm, so that it is made in its place.
        macro_rules! done {
            ($message:expr, $rest:expr) => {{
                *bytes = $rest;
                Ok(Some($message))
            }};
        }
        // Most messages that a seeder reads name a block. Each is there as a whole or not at all: so one
        // comparison is enough.
        if let Some((frame, rest)) = bytes.split_first_chunk::<17>() {
            let [piece, begin, length] = [number(frame, 5), number(frame, 9), number(frame, 13)];
            if number(frame, 0) == 13 && self.allows(piece, begin, length) {
                let block = Block { piece: PieceIndex(piece), begin, length };
                match MessageId(frame[4]) {
                    MessageId::REQUEST => return done!(Message::Request(block), rest),
                    MessageId::CANCEL => return done!(Message::Cancel(block), rest),
                    MessageId::REJECT => return done!(Message::Reject(block), rest),
                    _ => {}
                }
            }
        }
        let Some((prefix, frame)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix);
        if length == 0 {
            *bytes = frame;
            return Ok(Some(Message::KeepAlive));
        }
        let Some((&id, body)) = frame.split_first() else {
            let most = self.longest_length();
            return if length > most { Err(Error::Longest { length, most }) } else { Ok(None) };
        };
        let id = MessageId(id);
        /// Takes the fields of a message that has always as many, or returns.
        macro_rules! fields {
            ($len:literal) => {{
                if length != 1 + $len {
                    return Err(self.length_error(id, length, 1 + $len, 1 + $len));
                }
                let Some((fields, rest)) = body.split_first_chunk::<$len>() else { return Ok(None) };
                (fields, rest)
            }};
        }
        macro_rules! bare {
            ($message:expr) => {{
                let (_, rest) = fields!(0);
                done!($message, rest)
            }};
        }
        macro_rules! of_piece {
            ($message:expr) => {{
                let (fields, rest) = fields!(4);
                let piece = PieceIndex(u32::from_be_bytes(*fields));
                if piece > self.last_piece {
                    return Err(Error::Piece { id, piece, pieces: self.most_pieces() });
                }
                done!($message(piece), rest)
            }};
        }
        match id {
            MessageId::CHOKE => bare!(Message::Choke),
            MessageId::UNCHOKE => bare!(Message::Unchoke),
            MessageId::INTERESTED => bare!(Message::Interested),
            MessageId::NOT_INTERESTED => bare!(Message::NotInterested),
            MessageId::HAVE_ALL => bare!(Message::HaveAll),
            MessageId::HAVE_NONE => bare!(Message::HaveNone),
            MessageId::HAVE => of_piece!(Message::Have),
            MessageId::SUGGEST => of_piece!(Message::Suggest),
            MessageId::ALLOWED_FAST => of_piece!(Message::AllowedFast),
            MessageId::PIECE => {
                let (least, most) = (10, self.longest_piece());
                if length < least || length > most {
                    return Err(self.length_error(id, length, least, most));
                }
                let Some((fields, body)) = body.split_first_chunk::<8>() else { return Ok(None) };
                let [piece, begin] = [number(fields, 0), number(fields, 4)];
                if !self.allows(piece, begin, length - 9) {
                    return Err(self.block_error(id, piece, begin, length - 9));
                }
                let Some((data, rest)) = body.split_at_checked(length as usize - 9) else { return Ok(None) };
                done!(Message::Piece(Piece { piece: PieceIndex(piece), begin, data }), rest)
            }
            _ => {
                let message = self.decode_seldom(id, length, body);
                if let Ok(Some(_)) = message {
                    *bytes = &body[length as usize - 1..];
                }
                message
            }
        }
    }

    /// The same for messages that are rare.
    #[inline(never)]
    fn decode_seldom<'a>(
        &self,
        id: MessageId,
        length: u32,
        body: &'a [u8],
    ) -> Result<Option<Message<'a>>, Error> {
        let (least, most) = match id {
            MessageId::BITFIELD => self.bitfield_length(),
            MessageId::PORT => (3, 3),
            MessageId::REQUEST | MessageId::CANCEL | MessageId::REJECT => (13, 13),
            MessageId::EXTENDED => (2, self.longest_frame),
            MessageId::HASH_REQUEST | MessageId::HASH_REJECT => (49, 49),
            MessageId::HASHES => return self.decode_hashes(length, body),
            _ => (1, self.longest_frame),
        };
        if length < least || length > most {
            return Err(self.length_error(id, length, least, most));
        }
        let Some(payload) = body.get(..length as usize - 1) else { return Ok(None) };
        let of_length = "the length was checked";
        let message = match id {
            MessageId::BITFIELD => {
                let bitfield = Bitfield::new(payload);
                if self.known {
                    bitfield.check(self.most_pieces())?;
                }
                Message::Bitfield(bitfield)
            }
            // One that is allowed was read at once.
            MessageId::REQUEST | MessageId::CANCEL | MessageId::REJECT => {
                let fields: &[u8; 12] = payload.first_chunk().expect(of_length);
                let [piece, begin, length] = [number(fields, 0), number(fields, 4), number(fields, 8)];
                if id == MessageId::REJECT {
                    return Err(self.block_error(id, piece, begin, length));
                }
                Message::NoSuchBlock { id, block: Block { piece: PieceIndex(piece), begin, length } }
            }
            MessageId::PORT => Message::Port(u16::from_be_bytes(*payload.first_chunk().expect(of_length))),
            MessageId::EXTENDED => {
                let (&id, payload) = payload.split_first().expect(of_length);
                Message::Extended(Extended { id, payload })
            }
            MessageId::HASH_REQUEST => {
                Message::HashRequest(HashRange::parse(payload.first_chunk().expect(of_length))?)
            }
            MessageId::HASH_REJECT => {
                Message::HashReject(HashRange::parse(payload.first_chunk().expect(of_length))?)
            }
            MessageId(id) => Message::Unknown { id, payload },
        };
        Ok(Some(message))
    }

    /// The error of a length does not depend on whether the id came with it.
    #[cold]
    fn length_error(&self, id: MessageId, length: u32, least: u32, most: u32) -> Error {
        match self.longest_length() {
            longest if length > longest => Error::Longest { length, most: longest },
            _ => Error::Length { id, length, least, most },
        }
    }

    /// The lengths that a bitfield may have, with the id.
    const fn bitfield_length(&self) -> (u32, u32) {
        if self.known {
            let length = 1 + self.most_pieces().div_ceil(8);
            (length, length)
        } else {
            (2, self.longest_frame)
        }
    }

    // Numbers and not a `Block`: the compiler would put one together in memory and copy it from there, which
    // takes longer than all the rest.
    #[inline]
    const fn allows(&self, piece: u32, begin: u32, length: u32) -> bool {
        let within = begin as u64 + length as u64 <= self.length_of(piece) as u64;
        piece <= self.last_piece.0 && length.wrapping_sub(1) < self.longest_block && within
    }

    #[inline]
    const fn length_of(&self, piece: u32) -> u32 {
        if piece == self.last_piece.0 { self.last_piece_length } else { self.piece_length }
    }

    /// Why a block is not one that is allowed.
    #[cold]
    const fn block_error(&self, id: MessageId, piece: u32, begin: u32, length: u32) -> Error {
        let block = Block { piece: PieceIndex(piece), begin, length };
        if length == 0 || length > self.longest_block {
            Error::BlockLength { id, length, most: self.longest_block }
        } else if piece > self.last_piece.0 {
            Error::Piece { id, piece: block.piece, pieces: self.most_pieces() }
        } else {
            Error::Block { id, block, piece_length: self.length_of(piece) }
        }
    }

    /// The same for hashes. Their range is checked before they are waited for, and how many they are with it.
    fn decode_hashes<'a>(&self, length: u32, body: &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        // libtorrent requests one hash for a file of 512 n + 1 pieces.
        const LEAST: u32 = 49 + 32;
        let (id, least) = (MessageId::HASHES, LEAST);
        if length < least || length > MOST_HASHES || (length - 49) % 32 != 0 {
            return Err(self.length_error(id, length, least, MOST_HASHES));
        }
        let Some((fields, rest)) = body.split_first_chunk::<{ hashes::LEN }>() else { return Ok(None) };
        let range = HashRange::parse(fields)?;
        let most = 49 + 32 * range.most_hashes();
        let least = 49 + 32 * range.length();
        if length < least || length > most {
            return Err(self.length_error(id, length, least, most));
        }
        let Some(payload) = rest.get(..length as usize - 49) else { return Ok(None) };
        let all = bytemuck::cast_slice(payload);
        Ok(Some(Message::Hashes(Hashes::new(range, all)?)))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

/// The number at a place that is known when this is compiled.
#[inline]
pub(crate) fn number<const N: usize>(fields: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]])
}

/// The most that a message of hashes has, with the id.
const MOST_HASHES: u32 = 49 + 32 * (HashRange::MOST + HashRange::MOST_LAYERS);
