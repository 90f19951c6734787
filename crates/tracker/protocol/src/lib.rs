//! The messages between BitTorrent clients and trackers, without I/O: they are parsed from bytes, and written
//! to the caller's buffer.
//!
//! [`udp`] is BEP 15 with its IPv6 form and the options of BEP 41; [`http`] is BEP 3 and its additions. Both
//! serve clients and trackers. Parsing borrows from the packet. Writing goes directly to the caller's buffer,
//! and allocates only if that must grow.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod fields;
pub mod http;
mod software;
pub mod udp;
mod url;

pub use fields::{Field, Fields};
pub use software::Software;
pub use swarmkeep_bittorrent as bittorrent;
pub use url::{LONGEST_PASSKEY, TrackerUrl, is_passkey};

/// The reason why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The packet is too short for its action.
    #[error("{got} bytes are too few: {what} takes {least}")]
    TooShort {
        /// The kind of message.
        what: &'static str,
        /// The fewest bytes of such a message.
        least: usize,
        /// The number of bytes.
        got: usize,
    },
    /// BEP 15 has no such action on this side of the protocol.
    #[error("{0} is not an action of BEP 15 here")]
    Action(u32),
    /// A connect request does not begin with the magic number of BEP 15.
    #[error("{0:#018x} does not begin a connect request: BEP 15 has 0x0000041727101980 there")]
    Magic(u64),
    /// A field has an invalid value.
    #[error(transparent)]
    Field(#[from] swarmkeep_bittorrent::Error),
    /// The body is not valid bencode.
    #[error(transparent)]
    Bencode(#[from] swarmkeep_bittorrent::bencode::Error),
    /// A parameter of a request or a field of a response is missing or wrong.
    #[error("{name}: {what}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// The problem with it.
        what: &'static str,
    },
    /// A list ends in the middle of an item.
    #[error("{len} bytes are no list of {each}-byte items")]
    List {
        /// Bytes in the list.
        len: usize,
        /// Bytes per item.
        each: usize,
    },
}

/// The bytes of a list, if its items are whole.
fn whole(list: &[u8], each: usize) -> Result<&[u8], Error> {
    if list.len() % each == 0 { Ok(list) } else { Err(Error::List { len: list.len(), each }) }
}

/// The items of a list, without one that is cut short.
fn items<const N: usize>(list: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> {
    list.chunks_exact(N).map(|item| item.try_into().expect("a chunk has N bytes"))
}
