//! The messages between BitTorrent clients and trackers, sans-I/O: bytes in, values out, and back into the
//! caller's buffer.
//!
//! [`udp`] is BEP 15 with its IPv6 form and the options of BEP 41; [`http`] is BEP 3 and what has been added
//! to it. Both are for both sides. Parsing borrows from the packet, writing goes straight into the caller's
//! buffer, and neither allocates but to make that longer.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod http;
pub mod udp;

pub use swarmkeep_bittorrent as bittorrent;

/// What was wrong with a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The packet ends before the fields that its action must have.
    #[error("{got} bytes are too few: {what} takes {least}")]
    TooShort {
        /// The message that it began as.
        what: &'static str,
        /// The fewest bytes of such a message.
        least: usize,
        /// The bytes there were.
        got: usize,
    },
    /// BEP 15 has no such action on this side of the protocol.
    #[error("{0} is not an action of BEP 15 here")]
    Action(u32),
    /// A connect request without the number by which BEP 15 recognises it.
    #[error("{0:#018x} does not begin a connect request: BEP 15 has 0x0000041727101980 there")]
    Magic(u64),
    /// A field that holds no value of its kind.
    #[error(transparent)]
    Field(#[from] swarmkeep_bittorrent::Error),
    /// Bytes that should have been bencoded.
    #[error(transparent)]
    Bencode(#[from] swarmkeep_bittorrent::bencode::Error),
    /// A parameter of a request, or a field of a response, that is missing or wrong.
    #[error("{name}: {what}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A list that ends in the middle of an item.
    #[error("{len} bytes are no list of {each}-byte items")]
    List {
        /// Bytes in the list.
        len: usize,
        /// Bytes an item.
        each: usize,
    },
}
