//! Where a torrent's bytes live: a trait for stores of content, and the stores.
//!
//! A [`ContentRepository`] holds torrents by info hash; a [`Content`] is the byte range of one of them, its
//! files one after another, so that pieces stay aligned. Bytes can be written and read anywhere in it. The
//! caller marks a piece complete when its hash is right; a [flush](ContentRepository::flush) makes that
//! durable. A read of bytes that were never written is an error: a store returns neither zeroes nor bytes of
//! another torrent.
//!
//! [`Memory`] is the simplest store, with which the others are compared: [`files`] and [`block`]. A
//! [`Library`] keeps torrent files beside any of them; a [`StripeCache`](stripe_cache::StripeCache) can be
//! put in front of any of them. [`Verified`] verifies the content that is read.

/// Implements `Debug` by a text about `$it`, the value.
macro_rules! debug_as {
    ($for:ty, $it:ident, $($text:tt)+) => {
        impl std::fmt::Debug for $for {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                write!(f, $($text)+)
            }
        }
    };
}

pub mod block;
mod buffers;
mod config;
mod error;
pub mod files;
pub mod in_place;
mod library;
mod lock;
mod memory;
mod pieces;
mod random;
mod repository;
mod statistics;
mod stretches;
pub mod stripe_cache;
mod torrent;
mod verified;

pub use config::ContentConfig;
pub use error::Error;
pub use library::{Description, FileFolder, Library, TorrentFolder};
pub use memory::Memory;
pub use pieces::{PieceBits, Pieces};
pub use repository::{Content, ContentExt, ContentRepository};
pub use statistics::{Capabilities, Counters, Statistics, Summary};
pub use swarmkeep_bittorrent::InfoHash;
pub use swarmkeep_metainfo::FileList;
pub use torrent::{Geometry, NewTorrent};
pub use verified::{Verified, verify};

/// The result of the methods of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
