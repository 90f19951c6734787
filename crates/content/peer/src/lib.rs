//! A BitTorrent peer: seeds and fetches torrents over any content repository.
//!
//! A [`Session`] listens for peers and has a store. It seeds the pieces of each [added](Session::add) torrent
//! that the store has, and fetches the others. It runs on tokio. The store is called, and pieces are hashed,
//! on threads that may block.

mod blame;
mod blocks;
mod candidates;
mod choker;
mod config;
mod connection;
mod exchange;
pub mod hashes;
mod learning;
mod lobby;
pub mod metadata;
mod near;
mod network;
mod permits;
mod picker;
mod rarest;
mod rate;
mod ready;
mod resources;
mod session;
mod source;
mod torrent;
pub mod trackers;

use std::{io, net::SocketAddr};

pub use config::SessionConfig;
pub use session::{Handle, Session};
use swarmkeep_bittorrent::{InfoHash, in_words};
pub use torrent::{
    Progress,
    status::{PeerStatus, Status, UnreachedPeer},
};

/// An error of a session or of one of its torrents. An error of a remote peer ends its connection and is not
/// one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session cannot listen at the address.
    #[error("cannot listen at {address}: {}; give one of this machine, and a free port", in_words(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The session has the torrent already.
    #[error("{0} is there already")]
    Exists(InfoHash),
    /// The torrent cannot be shared: the messages of the protocol cannot describe it.
    #[error("{0}")]
    Torrent(String),
    /// An error of the store.
    #[error(transparent)]
    Store(swarmkeep_content::Error),
    /// The store refused pieces of the torrent, so that fetching ended.
    #[error("fetching has ended: {0}")]
    Failed(String),
    /// The session was stopped.
    #[error("the session was stopped")]
    Stopped,
    /// An error of the system.
    #[error("{}", in_words(.0))]
    Io(io::Error),
}

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
