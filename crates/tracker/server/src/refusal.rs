//! The errors that clients receive.

use swarmkeep::bittorrent;
use swarmkeep_tracker_protocol::{
    Error as ProtocolError,
    http::RetryIn,
    udp::{ErrorResponse, ScrapeRequest},
};

use crate::{metrics::Reason, store::NoAnswer};

const NOT_CONNECTED: &str = "invalid connection id";
const _: () = assert!(ErrorResponse::len_with(NOT_CONNECTED.len()) <= ScrapeRequest::LEAST);

/// The text of an error response over UDP, or of a `failure reason` over HTTP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Field(#[from] bittorrent::Error),
    #[error(transparent)]
    Request(#[from] ProtocolError),
    /// The source address of a packet may be forged, so this must not be longer than the shortest request
    /// that it can answer.
    #[error("{NOT_CONNECTED}")]
    NotConnected,
    #[error("this tracker does not serve this torrent")]
    NotAllowed,
    #[error("this tracker is private: announce to the address with your passkey that its site gives you")]
    NoPasskey,
    #[error("this passkey is not known here: get the tracker's address from its site again")]
    WrongPasskey,
    #[error("this passkey has expired: renew it at the tracker's site")]
    ExpiredPasskey,
    #[error("this tracker refuses requests from your address")]
    RefusedAddress,
    #[error("too many requests from your address; try again later")]
    TooOften,
    #[error(
        "this tracker takes no peers at local addresses such as yours (its operator can let it: --local-peers)"
    )]
    Address,
    #[error("the proxy in front of the tracker does not name the client")]
    NoClient,
    #[error("there is no scrape of all torrents: name those it is about")]
    FullScrape,
    #[error("too many torrents: a scrape is about {0} at most")]
    TooManyTorrents(usize),
    #[error("the tracker is overloaded; try again later")]
    Overloaded,
    #[error("the tracker's store is not available; try again later")]
    Unavailable,
}

impl Refusal {
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Field(_) | Self::Request(_) | Self::FullScrape | Self::TooManyTorrents(_) => {
                Reason::Malformed
            }
            Self::NotConnected => Reason::NotConnected,
            Self::NotAllowed => Reason::NotAllowed,
            Self::NoPasskey | Self::WrongPasskey | Self::ExpiredPasskey => Reason::NoPasskey,
            Self::RefusedAddress => Reason::RefusedAddress,
            Self::TooOften => Reason::TooOften,
            Self::Address => Reason::Address,
            Self::NoClient => Reason::NoClient,
            Self::Overloaded => Reason::Overloaded,
            Self::Unavailable => Reason::Unavailable,
        }
    }

    /// When to ask again (BEP 31), if that can help. Announces come every 30 minutes, so 5 is soon, and late
    /// enough for a store to come back before all of its clients do.
    pub(crate) const fn retry_in(&self) -> Option<RetryIn> {
        match self {
            Self::Unavailable | Self::Overloaded | Self::TooOften => Some(RetryIn::Minutes(5)),
            _ => None,
        }
    }
}

impl From<NoAnswer> for Refusal {
    fn from(NoAnswer: NoAnswer) -> Self {
        Self::Unavailable
    }
}
