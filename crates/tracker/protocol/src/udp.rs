//! UDP tracker messages: BEP 15, with its IPv6 form and the options of BEP 41.
//!
//! A client [connects](ConnectRequest), is given a [`ConnectionId`] that proves it receives what is sent to
//! its address, and announces and scrapes with it. A server parses a [`Request`] and writes a response; a
//! client writes a request and parses a [`Response`]. All integers are in network order.
//!
//! ```
//! use swarmkeep_tracker_protocol::udp::{ConnectRequest, ConnectResponse, ConnectionId, Request, TransactionId};
//!
//! let mut packet = [0; ConnectRequest::LEN];
//! ConnectRequest { transaction_id: TransactionId(7) }.write(&mut packet);
//!
//! let Request::Connect(request) = Request::parse(&packet)? else { unreachable!() };
//! let mut answer = [0; ConnectResponse::LEN];
//! ConnectResponse { transaction_id: request.transaction_id, connection_id: ConnectionId(99) }.write(&mut answer);
//! # Ok::<(), swarmkeep_tracker_protocol::Error>(())
//! ```

mod bytes;
mod options;
mod request;
mod response;

pub use options::{AnnounceOption, Options};
pub use request::{AnnounceRequest, ConnectRequest, Header, Request, ScrapeRequest};
pub use response::{
    AnnounceResponse, AnnounceResponseHeader, ConnectResponse, ErrorResponse, Response, ScrapeResponse,
    ScrapeResponseWriter, ScrapeStats,
};

use crate::Error;

/// The most info hashes that one scrape asks about (BEP 15 says "about 74"): both packets then stay below
/// 1,500 bytes.
pub const MAX_SCRAPE: usize = 74;

/// The first 8 bytes of every connect request.
pub const CONNECT_MAGIC: u64 = 0x0417_2710_1980;

/// What a client takes from a connect response and shows in every other request, proof that it receives at
/// its address.
///
/// A client may use it for one minute after it has received it; a tracker accepts it for two after it has
/// sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// By what a client tells which of its requests a response is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u32);

/// What a message is; the discriminants are those of BEP 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Action {
    /// Asks for, or brings, a connection id.
    Connect = 0,
    /// Announces, or lists peers.
    Announce = 1,
    /// Asks for, or brings, the counts of swarms.
    Scrape = 2,
    /// Says what was wrong; only in responses.
    Error = 3,
}

impl TryFrom<u32> for Action {
    type Error = Error;

    fn try_from(number: u32) -> Result<Self, Error> {
        match number {
            0 => Ok(Self::Connect),
            1 => Ok(Self::Announce),
            2 => Ok(Self::Scrape),
            3 => Ok(Self::Error),
            other => Err(Error::Action(other)),
        }
    }
}
