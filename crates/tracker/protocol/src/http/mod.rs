//! HTTP tracker messages: BEP 3 with BEP 7 (IPv6), 21 (paused), 23 (compact), 24 (external ip), 31 (retry in)
//! and 48 (scrape).
//!
//! A request is the query of a URL, and a response is a bencoded body. The rest of HTTP is not here. A server
//! parses an [`AnnounceRequest`] or a [`ScrapeRequest`] and writes a response; a client writes a request and
//! parses a response.
//!
//! ```
//! use swarmkeep_tracker_protocol::http::*;
//!
//! let query = b"info_hash=%12aaaaaaaaaaaaaaaaaaa&peer_id=-XX0001-000000000000&port=6881&left=0&compact=1";
//! let request = AnnounceRequest::parse(query)?;
//! assert_eq!((request.port, request.left), (6881, Some(0)));
//!
//! let mut body = Vec::new();
//! let mut writer = AnnounceResponseWriter::new(&mut body, 50, 0);
//! writer.rooms().0[..6].copy_from_slice(&[192, 0, 2, 1, 0x1a, 0xe1]); // a store writes its peers here
//! let body = writer.finish(&AnnounceHead { interval: 1800, ..AnnounceHead::default() }, 6, None);
//! let response = AnnounceResponse::parse(body)?.expect("no failure");
//! assert_eq!(response.endpoints().next(), Some("192.0.2.1:6881".parse()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod request;
mod response;

pub use request::{AnnounceRequest, ScrapeRequest};
pub use response::{
    AnnounceHead, AnnounceResponse, AnnounceResponseWriter, FailureResponse, RetryIn, ScrapeResponse,
    ScrapeResponseWriter,
};
pub use swarmkeep_bittorrent::query::Escaped;
