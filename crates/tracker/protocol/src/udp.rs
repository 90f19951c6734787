//! UDP tracker messages: BEP 15, with its IPv6 form and the options of BEP 41.
//!
//! A client [connects](ConnectRequest) and gets a [`ConnectionId`], which proves that it receives at its
//! address. It announces and scrapes with this id. A server parses a [`Request`] and writes a response; a
//! client writes a request, and a [`Client`] judges the response. All integers are in network order.
//!
//! ```
//! use std::time::Instant;
//! use swarmkeep_tracker_protocol::{bittorrent::Family, udp::*};
//!
//! let packet = ConnectRequest { transaction_id: TransactionId(7) }.to_bytes();
//! let Request::Connect(ConnectRequest { transaction_id }) = Request::parse(&packet)? else { panic!() };
//! let mut answer = [0; ConnectResponse::LEN];
//! ConnectResponse { transaction_id, connection_id: ConnectionId(99) }.write(&mut answer);
//!
//! let mut client = Client::new(Family::V4);
//! client.answer(&packet, &answer, Instant::now())?;
//! assert_eq!(client.connection_id(Instant::now()), Some(ConnectionId(99)));
//! # Ok::<(), swarmkeep_tracker_protocol::Error>(())
//! ```

mod bytes;
mod client;
mod options;
mod request;
mod response;

pub use client::Client;
pub use options::{AnnounceOption, Options};
pub use request::{AnnounceRequest, ConnectRequest, Header, Request, ScrapeRequest};
pub use response::{
    AnnounceResponse, AnnounceResponseHeader, ConnectResponse, ErrorResponse, Response, ScrapeResponse,
    ScrapeResponseWriter, ScrapeStats,
};

use crate::Error;

/// The most info hashes per scrape (BEP 15 says "about 74"). Both packets then stay below 1,500 bytes.
pub const MAX_SCRAPE: usize = 74;

/// The first 8 bytes of every connect request.
pub const CONNECT_MAGIC: u64 = 0x0417_2710_1980;

/// The id that a client gets in a connect response and sends in every other request. It proves that the
/// client receives at its address.
///
/// A client may use it for one minute after it received it. A tracker accepts it for two minutes after it
/// sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// The number by which a client finds the request that a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u32);

/// The kind of a message. The discriminants are those of BEP 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Action {
    /// Requests or returns a connection id.
    Connect = 0,
    /// Announces, or returns peers.
    Announce = 1,
    /// Requests or returns the counts of swarms.
    Scrape = 2,
    /// Returns an error. Only in responses.
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
