//! What outlives a tracker's restart, in files of a folder: snapshots of all swarms, and download counts.
//!
//! [`State`] goes around any repository: it loads the latest good snapshot, takes more, and keeps counts.
//! [`Durable`] is the part of it that counts, around a synchronous repository, and [`Downloads`] the database
//! of how often each torrent was downloaded: it opens at once however many torrents are known, holds a few
//! megabytes, and loses nothing that it has acknowledged when the process is killed or the power fails. All
//! of it stands on a [`Folder`]: a [`Directory`] of the file system, or (feature `simulated`) one in memory
//! that fails on demand.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod downloads;
mod durable;
mod error;
mod folder;
#[cfg(feature = "simulated")]
#[cfg_attr(docsrs, doc(cfg(feature = "simulated")))]
pub mod simulated;
mod snapshots;
mod state;

pub use downloads::{Change, Downloads, Options};
pub use durable::{CountsStatus, Durable, Pace};
pub use error::Error;
pub use folder::{Directory, File, Folder};
pub use snapshots::{Loaded, look_at_snapshots};
pub use state::{Clock, SnapshotsStatus, State, StateStatus};
pub use swarmkeep_bittorrent::InfoHash;

/// What every method here answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
