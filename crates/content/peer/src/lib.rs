//! A BitTorrent peer: seeds and fetches torrents over any content repository.
//!
//! A [`Session`] listens for peers and has a store; each torrent that is [added](Session::add) is seeded as
//! far as the store has it, and fetched as far as it does not. Runs on tokio; the store is called on threads
//! that may block, and pieces are hashed there.

mod blame;
mod blocks;
mod candidates;
mod choker;
mod config;
mod connection;
mod exchange;
pub mod hashes;
mod learning;
pub mod metadata;
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
use swarmkeep_bittorrent::InfoHash;
pub use torrent::{
    Progress,
    status::{PeerStatus, Status},
};

/// What went wrong with a session or one of its torrents. What goes wrong with a peer costs its connection,
/// and nothing else.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody can call there.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The session has the torrent already.
    #[error("{0} is there already")]
    Exists(InfoHash),
    /// A torrent that no messages can be about.
    #[error("{0}")]
    Torrent(String),
    /// The store.
    #[error(transparent)]
    Store(swarmkeep_content::Error),
    /// The store took no more of a torrent that was fetched.
    #[error("fetching has ended: {0}")]
    Failed(String),
    /// The session was stopped.
    #[error("the session was stopped")]
    Stopped,
    /// The system.
    #[error(transparent)]
    Io(io::Error),
}

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
