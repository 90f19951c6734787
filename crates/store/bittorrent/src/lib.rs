//! The vocabulary of BitTorrent: info hashes, peer ids, endpoints and their compact forms, [`bencode`] and
//! [`query`].
//!
//! Nothing here does I/O or reads a clock; but for what is written into a vector of the caller's, nothing
//! allocates. A value that exists is valid: an [`Endpoint`] never has port 0 and never hides an IPv4 address
//! in an IPv6 one, so two endpoints are the same peer exactly when they are equal.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bencode;
mod endpoint;
mod event;
mod id;
pub mod query;

pub use endpoint::{CompactV4, CompactV6, Endpoint, Family};
pub use event::AnnounceEvent;
pub use id::{InfoHash, PeerId};

/// What was wrong with a value that someone handed in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer cannot listen on port 0, so such an endpoint could only mislead those it is handed to.
    #[error("port 0 is not an endpoint anybody can connect to")]
    PortZero,
    /// A text that is not `ip:port`.
    #[error("expected ip:port: {0}")]
    Address(#[from] std::net::AddrParseError),
    /// Hex of another length than the 40 digits of 20 bytes.
    #[error("expected 40 hexadecimal digits, got {0} bytes")]
    HexLength(usize),
    /// A byte of the text is no hexadecimal digit.
    #[error("the byte at position {0} is not a hexadecimal digit")]
    HexDigit(usize),
    /// A number that BEP 15 gives no event.
    #[error("{0} is not an announce event: 0 none, 1 completed, 2 started, 3 stopped")]
    Event(u32),
    /// A word that BEP 3 gives no event.
    #[error("not an announce event: expected started, stopped, completed or nothing")]
    EventName,
}
