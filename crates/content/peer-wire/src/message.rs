//! Every message of the peer protocol.

use std::fmt;

use swarmkeep_bittorrent::bencode::Sink;

use crate::{Bitfield, Encode, Extended, HashRange, Hashes, encode::prefix, hashes};

/// A message, borrowed from its frame or from the data of the sender.
///
/// 40 bytes; large payloads are slices. [`Limits::decode`](crate::Limits::decode) reads it, [`Encode`] writes
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// An empty message, sent every two minutes to keep the connection (BEP 3).
    KeepAlive,
    /// The sender will not answer requests, except for allowed-fast pieces.
    Choke,
    /// The sender will answer requests.
    Unchoke,
    /// The sender wants pieces of the receiver.
    Interested,
    /// The sender wants no pieces of the receiver.
    NotInterested,
    /// The sender now has a piece.
    Have(PieceIndex),
    /// The pieces that the sender has; only as the first message.
    Bitfield(Bitfield<'a>),
    /// Asks for a block.
    Request(Block),
    /// A block, as asked for.
    Piece(Piece<'a>),
    /// Withdraws a request.
    Cancel(Block),
    /// The port of the sender's DHT node (BEP 5).
    Port(u16),
    /// The sender suggests to request a piece (BEP 6).
    Suggest(PieceIndex),
    /// The sender has every piece (BEP 6).
    HaveAll,
    /// The sender has no piece (BEP 6).
    HaveNone,
    /// A request will not be answered (BEP 6).
    Reject(Block),
    /// A piece that may be requested even while choked (BEP 6).
    AllowedFast(PieceIndex),
    /// A message of an extension (BEP 10); [`Extended::read`] reads it.
    Extended(Extended<'a>),
    /// Asks for hashes of a v2 torrent (BEP 52).
    HashRequest(HashRange<'a>),
    /// The hashes, as asked for (BEP 52).
    Hashes(Hashes<'a>),
    /// A request for hashes will not be answered (BEP 52).
    HashReject(HashRange<'a>),
    /// A request, or the withdrawal of one, for a block that is not in the torrent or is too long. Reject it.
    NoSuchBlock {
        /// [`MessageId::REQUEST`] or [`MessageId::CANCEL`].
        id: MessageId,
        /// The block.
        block: Block,
    },
    /// A message of an unknown id. Ignore it, or read it elsewhere.
    Unknown {
        /// Its id: none of those above.
        id: u8,
        /// All that follows the id.
        payload: &'a [u8],
    },
}

/// The number of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceIndex(pub u32);

/// A range of bytes of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The piece.
    pub piece: PieceIndex,
    /// The first byte in the piece. Usually a multiple of 16 KiB, but no BEP requires it.
    pub begin: u32,
    /// The number of bytes; usually 16 KiB, fewer at the end of a torrent.
    pub length: u32,
}

/// A block and its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The piece.
    pub piece: PieceIndex,
    /// The first byte of it.
    pub begin: u32,
    /// The bytes.
    pub data: &'a [u8],
}

/// The id of a message on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u8);

impl Encode for Message<'_> {
    #[inline]
    fn encode<S: Sink>(&self, out: &mut S) {
        /// The head first.
        macro_rules! both {
            ($head:expr, $payload:expr) => {{
                out.put(&$head);
                out.put($payload)
            }};
        }
        match *self {
            Self::KeepAlive => out.put(&[0; 4]),
            Self::Choke => out.put(&bare(MessageId::CHOKE)),
            Self::Unchoke => out.put(&bare(MessageId::UNCHOKE)),
            Self::Interested => out.put(&bare(MessageId::INTERESTED)),
            Self::NotInterested => out.put(&bare(MessageId::NOT_INTERESTED)),
            Self::HaveAll => out.put(&bare(MessageId::HAVE_ALL)),
            Self::HaveNone => out.put(&bare(MessageId::HAVE_NONE)),
            Self::Have(piece) => out.put(&of_piece(MessageId::HAVE, piece)),
            Self::Suggest(piece) => out.put(&of_piece(MessageId::SUGGEST, piece)),
            Self::AllowedFast(piece) => out.put(&of_piece(MessageId::ALLOWED_FAST, piece)),
            Self::Request(block) => out.put(&of_block(MessageId::REQUEST, block)),
            Self::Cancel(block) => out.put(&of_block(MessageId::CANCEL, block)),
            Self::Reject(block) => out.put(&of_block(MessageId::REJECT, block)),
            Self::NoSuchBlock { id, block } => out.put(&of_block(id, block)),
            Self::Piece(piece) => both!(piece.head(), piece.data),
            Self::Port(port) => {
                let [high, low] = port.to_be_bytes();
                out.put(&[0, 0, 0, 3, MessageId::PORT.0, high, low]);
            }
            Self::Bitfield(bitfield) => {
                both!(before(MessageId::BITFIELD, bitfield.as_bytes().len()), bitfield.as_bytes());
            }
            Self::Extended(Extended { id, payload }) => {
                let [a, b, c, d, e] = before(MessageId::EXTENDED, 1 + payload.len());
                both!([a, b, c, d, e, id], payload);
            }
            Self::HashRequest(range) => put_range(out, MessageId::HASH_REQUEST, range, 0),
            Self::HashReject(range) => put_range(out, MessageId::HASH_REJECT, range, 0),
            Self::Hashes(hashes) => {
                let all = hashes.all().as_flattened();
                put_range(out, MessageId::HASHES, hashes.range(), all.len());
                out.put(all);
            }
            Self::Unknown { id, payload } => both!(before(MessageId(id), payload.len()), payload),
        }
    }
}

impl Piece<'_> {
    /// The bytes before the data on the wire.
    ///
    /// # Panics
    /// If the length of the data does not fit in 32 bits.
    #[inline]
    pub fn head(&self) -> [u8; PIECE_HEAD] {
        head_of_piece(self.piece, self.begin, self.data.len())
    }

    /// Its block, without the data.
    pub const fn block(&self) -> Block {
        Block { piece: self.piece, begin: self.begin, length: self.data.len() as u32 }
    }
}

/// Bytes before the data of a piece.
const PIECE_HEAD: usize = 13;

#[inline]
pub(crate) fn head_of_piece(piece: PieceIndex, begin: u32, len: usize) -> [u8; PIECE_HEAD] {
    let ([a, b, c, d], [i, j, k, l], [m, n, o, p]) =
        (prefix(8 + len), piece.0.to_be_bytes(), begin.to_be_bytes());
    [a, b, c, d, MessageId::PIECE.0, i, j, k, l, m, n, o, p]
}

#[inline]
fn bare(id: MessageId) -> [u8; 5] {
    before(id, 0)
}

#[inline]
fn before(id: MessageId, payload: usize) -> [u8; 5] {
    let [a, b, c, d] = prefix(payload);
    [a, b, c, d, id.0]
}

#[inline]
fn of_piece(id: MessageId, piece: PieceIndex) -> [u8; 9] {
    let [a, b, c, d] = piece.0.to_be_bytes();
    [0, 0, 0, 5, id.0, a, b, c, d]
}

#[inline]
fn of_block(id: MessageId, block: Block) -> [u8; 17] {
    let mut message = [0, 0, 0, 13, id.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    message[5..9].copy_from_slice(&block.piece.0.to_be_bytes());
    message[9..13].copy_from_slice(&block.begin.to_be_bytes());
    message[13..].copy_from_slice(&block.length.to_be_bytes());
    message
}

fn put_range<S: Sink>(out: &mut S, id: MessageId, range: HashRange<'_>, hashes: usize) {
    out.put(&before(id, hashes::LEN + hashes));
    out.put(&range.bytes());
}

/// Gives each message its id and its name.
macro_rules! messages {
    ($($message:ident $id:ident = $number:literal $name:literal;)*) => {
        impl MessageId {
            $(
                #[doc = concat!("[`Message::", stringify!($message), "`].")]
                pub const $id: Self = Self($number);
            )*

            /// The name of the message, if it is known here.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$id => Some($name),)*
                    _ => None,
                }
            }
        }

        impl Message<'_> {
            /// Its id; a keep-alive has none.
            pub const fn id(&self) -> Option<MessageId> {
                match self {
                    Self::KeepAlive => None,
                    $(Self::$message { .. } => Some(MessageId::$id),)*
                    Self::NoSuchBlock { id, .. } => Some(*id),
                    Self::Unknown { id, .. } => Some(MessageId(*id)),
                }
            }
        }
    };
}

messages! {
    Choke CHOKE = 0 "choke";
    Unchoke UNCHOKE = 1 "unchoke";
    Interested INTERESTED = 2 "interested";
    NotInterested NOT_INTERESTED = 3 "not interested";
    Have HAVE = 4 "have";
    Bitfield BITFIELD = 5 "bitfield";
    Request REQUEST = 6 "request";
    Piece PIECE = 7 "piece";
    Cancel CANCEL = 8 "cancel";
    Port PORT = 9 "port";
    Suggest SUGGEST = 13 "suggest piece";
    HaveAll HAVE_ALL = 14 "have all";
    HaveNone HAVE_NONE = 15 "have none";
    Reject REJECT = 16 "reject request";
    AllowedFast ALLOWED_FAST = 17 "allowed fast";
    Extended EXTENDED = 20 "extended";
    HashRequest HASH_REQUEST = 21 "hash request";
    Hashes HASHES = 22 "hashes";
    HashReject HASH_REJECT = 23 "hash reject";
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "message {}", self.0),
        }
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({}: {self})", self.0)
    }
}

impl fmt::Display for PieceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "piece {}", self.0)
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece")
            .field("piece", &self.piece)
            .field("begin", &self.begin)
            .field("data", &format_args!("{} bytes", self.data.len()))
            .finish()
    }
}
