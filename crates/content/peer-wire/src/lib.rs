//! The messages of the BitTorrent peer protocol, sans-I/O: borrowed from the bytes they came in, written
//! straight into the buffer they are sent from.
//!
//! A connection begins with a [`Handshake`] each way; then both sides send [`Message`]s.
//!
//! - **In**: a [`ReceiveBuffer`] takes the bytes of the socket and returns messages that borrow from it.
//!   [`Limits`], made from the torrent, say which messages are allowed: a frame that no message of this
//!   torrent could be is refused by its first five bytes, before the rest of it is waited for.
//! - **Out**: a [`SendQueue`] takes messages and blocks, copies the small and keeps the large as they are,
//!   and returns slices for one vectored write over many of them.
//! - **On top**: an [`Extended`] message is read with the ids that were agreed on ([`ExtensionIds`]) into an
//!   [`ExtendedMessage`].
//!
//! Each is of use without the others: [`Limits::decode`] reads from any slice, [`Encode`] writes into any
//! [`Sink`], and [`Piece::head`] is the 13 bytes before a block that is somewhere else.
//!
//! ```
//! use swarmkeep_peer_wire::{Encode, Limits, Message, PieceIndex, ReceiveBuffer};
//!
//! let mut sent = Vec::new();
//! Message::Unchoke.encode(&mut sent);
//! Message::Have(PieceIndex(7)).encode(&mut sent);
//!
//! let mut received = ReceiveBuffer::new(Limits::for_torrent(1 << 20, 1 << 16)?);
//! received.space()[..sent.len()].copy_from_slice(&sent);
//! received.filled(sent.len());
//! assert_eq!(received.next_message()?, Some(Message::Unchoke));
//! assert_eq!(received.next_message()?, Some(Message::Have(PieceIndex(7))));
//! assert_eq!(received.next_message()?, None);
//! # Ok::<(), swarmkeep_peer_wire::Error>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bitfield;
mod encode;
mod extended;
mod handshake;
mod hashes;
mod limits;
mod message;
mod receive;
mod send;

pub use bitfield::Bitfield;
pub use encode::Encode;
pub use extended::{
    Extended, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds, Holepunch, HolepunchError,
    METADATA_PIECE, MetadataMessage, Pex, PexFlags, PexPeer, ToPeer,
};
pub use handshake::{Handshake, Reserved};
pub use hashes::{HashRange, Hashes};
pub use limits::Limits;
pub use message::{Block, Message, MessageId, Piece, PieceIndex};
pub use receive::ReceiveBuffer;
pub use send::{Full, SendQueue};
pub use swarmkeep_bittorrent::{
    self as bittorrent,
    bencode::{Length, Sink},
};

/// An error in the bytes of a peer. The connection cannot go on: the beginning of the next message is not
/// known.
///
/// Only [`Extension`](Error::Extension), [`Bencode`](Error::Bencode) and [`Endpoint`](Error::Endpoint) come
/// from reading an [`Extended`] message in a valid frame: the caller decides whether the connection goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No message of that id has that length, in this torrent.
    #[error("{id} of {length} bytes: from {least} to {most} are allowed")]
    Length {
        /// The message.
        id: MessageId,
        /// The length of the prefix: the id and the bytes after it.
        length: u32,
        /// The least that such a message has.
        least: u32,
        /// The most that it may have.
        most: u32,
    },
    /// A length prefix that exceeds the longest message.
    #[error("a message of {length} bytes: none may have more than {most}")]
    Longest {
        /// The length of the prefix.
        length: u32,
        /// The most that any message may have.
        most: u32,
    },
    /// A piece that the torrent does not have.
    #[error("{id}: {piece} of {pieces}")]
    Piece {
        /// The message.
        id: MessageId,
        /// The piece it names.
        piece: PieceIndex,
        /// How many there are.
        pieces: u32,
    },
    /// A block that does not lie within its piece.
    #[error("{id}: {} bytes at {} of {}, which has {piece_length}", block.length, block.begin, block.piece)]
    Block {
        /// The message.
        id: MessageId,
        /// The block it names.
        block: Block,
        /// Bytes of that piece.
        piece_length: u32,
    },
    /// A block that is empty or too long.
    #[error("{id}: a block of {length} bytes: from 1 to {most} are allowed")]
    BlockLength {
        /// The message.
        id: MessageId,
        /// Bytes that it asks for.
        length: u32,
        /// The most that are allowed.
        most: u32,
    },
    /// Bits after the last piece are set (BEP 3).
    #[error("a bitfield with bits set behind the last of {pieces} pieces")]
    SpareBits {
        /// How many pieces there are.
        pieces: u32,
    },
    /// A bitfield for another number of pieces.
    #[error("a bitfield of {bytes} bytes for {pieces} pieces")]
    BitfieldLength {
        /// Bytes of the bitfield.
        bytes: usize,
        /// How many pieces there are.
        pieces: u32,
    },
    /// A range of hashes that BEP 52 does not allow.
    #[error("a range of hashes: {what}, got {value}")]
    HashRange {
        /// The field and the rule for it.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// Not the handshake of BEP 3; it may be an encrypted one.
    #[error("the handshake does not begin with \"BitTorrent protocol\"")]
    Protocol,
    /// A torrent with more pieces than the protocol can number, or none.
    #[error(
        "no torrent has {length} bytes in pieces of {piece_length}: from 1 to 4294967295 pieces can be named"
    )]
    Torrent {
        /// Bytes in all.
        length: u64,
        /// Bytes per piece.
        piece_length: u32,
    },
    /// An extended message with wrong contents.
    #[error("{extension}: {what}")]
    Extension {
        /// Which.
        extension: Extension,
        /// The field and its fault.
        what: &'static str,
    },
    /// The bytes are not bencoded.
    #[error(transparent)]
    Bencode(#[from] swarmkeep_bittorrent::bencode::Error),
    /// An endpoint that is not valid.
    #[error(transparent)]
    Endpoint(#[from] swarmkeep_bittorrent::Error),
}

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
