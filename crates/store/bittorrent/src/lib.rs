//! The basic types of BitTorrent: info hashes, peer ids, endpoints and their compact forms, [`bencode`] and
//! [`query`].
//!
//! This crate does no I/O and reads no clock. It allocates only in vectors of the caller. A value that exists
//! is valid: an [`Endpoint`] never has port 0 and never contains an IPv4-mapped IPv6 address, so two
//! endpoints are the same peer exactly when they are equal.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bencode;
mod endpoint;
mod event;
mod id;
#[doc(hidden)]
pub mod programs;
pub mod query;
mod words;

pub use endpoint::{CompactV4, CompactV6, Endpoint, Family};
pub use event::AnnounceEvent;
pub use id::{InfoHash, PeerId};
#[doc(hidden)]
pub use words::{counted, in_words};

/// The reason why a value is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The port is 0, on which no peer can listen.
    #[error("port 0 is not an endpoint that a peer can connect to")]
    PortZero,
    /// The text is not `ip:port`.
    #[error("expected ip:port: {0}")]
    Address(#[from] std::net::AddrParseError),
    /// The text does not have the 40 hexadecimal digits of 20 bytes.
    #[error("expected 40 hexadecimal digits, got {0} bytes")]
    HexLength(usize),
    /// A byte of the text is not a hexadecimal digit.
    #[error("the byte at position {0} is not a hexadecimal digit")]
    HexDigit(usize),
}
