//! The state of a tracker that survives a restart, in files of a folder: snapshots of all swarms, and
//! download counts.
//!
//! [`State`] wraps any repository: it loads the latest valid snapshot, takes new ones, and keeps download
//! counts. [`Durable`] is the part that counts, around a synchronous repository. [`Downloads`] is the
//! database of download counts, a table of redb. It opens at once, however many torrents it knows, needs a
//! few megabytes, and loses nothing that it has acknowledged when the process is killed or the power fails.
//! All of them use a [`Folder`], for example a [`Directory`] of the file system.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod candidates;
mod downloads;
mod durable;
mod error;
mod folder;
mod snapshots;
mod state;

pub use downloads::{Change, Counts, Downloads, look_at_downloads, restore_downloads};
pub use durable::{CountsStatus, Durable, Pace};
pub use error::Error;
pub use folder::{Directory, File, Folder};
pub use snapshots::{Loaded, look_at_snapshots};
pub use state::{Clock, SnapshotsStatus, State, StateStatus};
pub use swarmkeep_bittorrent::InfoHash;

/// The result of the methods of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
