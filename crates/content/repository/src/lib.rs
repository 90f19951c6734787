//! Where a torrent's bytes live: a trait for stores of content, and the stores.
//!
//! A [`ContentRepository`] holds torrents by info hash; a [`Content`] is the byte range of one of them, its
//! files one after another, so that pieces stay aligned. Bytes are written and read anywhere in it; a piece
//! whose hash was found right is marked complete, and what is marked survives once it was
//! [flushed](ContentRepository::flush). What was never written is an error to read: never zeroes, and never
//! the bytes of another torrent.
//!
//! [`Memory`] is the plainest store and the measure of the others. [`catalog`] lists them all. A [`Library`]
//! keeps torrent files in any of them. Any of them goes behind a [`StripeCache`](stripe_cache::StripeCache).
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod block;
mod buffers;
pub mod catalog;
mod config;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod error;
pub mod files;
mod library;
mod lock;
mod memory;
mod pieces;
mod repository;
mod statistics;
mod stretches;
pub mod stripe_cache;
mod torrent;

pub use config::ContentConfig;
pub use error::Error;
pub use library::Library;
pub use memory::Memory;
pub use pieces::{PieceBits, Pieces};
pub use repository::{Content, ContentExt, ContentRepository};
pub use statistics::{Capabilities, Counters, Statistics, Summary};
pub use swarmkeep_bittorrent::InfoHash;
pub use swarmkeep_metainfo::FileList;
pub use torrent::{Geometry, NewTorrent};

/// What every method here answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The README's own code, compiled and run.
#[cfg(all(doctest, feature = "conformance"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
