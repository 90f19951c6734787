//! What stores of torrents' content cost: the benchmark of Norberg's paper, measured, and replayed on a
//! modelled disk.
//!
//! Machines with virtual disks and large caches hide what a disk's head does. So each row, a download of
//! torrents into one store, is measured as it is, and the offsets that reach the device or the files are then
//! replayed on a [`Disk`] that turns. `README.md` says what is measured and how it is modelled.
//!
//! [`run`] goes through the rows of [`Options`] and gives a [`Report`]. Each row wants a process of its own,
//! for its memory and its CPU time: [`child`] has both ends of that.

mod aging;
mod charts;
pub mod child;
mod device;
mod disk;
mod download;
mod extents;
mod libtorrent;
mod mix;
mod payload;
mod pictures;
mod plan;
mod process;
mod report;
mod row;
mod run;
mod seeding;
mod trace;
mod volume;

use std::{io, path::PathBuf};

pub use disk::{Access, Action, Disk, Replay};
pub use mix::{MEAN_TORRENT, PIECE_LENGTHS, piece_length, torrent_length, torrent_lengths};
pub use pictures::Pictures;
pub use plan::{Locality, Options, Plan, SeedingOptions, Setup, Store, What};
pub use report::{Goal, Report};
pub use row::{Requests, Row, Seeks};
pub use run::{Measure, Outcome, Progress, measure, run};
pub use seeding::{Seeded, Served};

/// What every function here answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options say something that cannot be.
    #[error("{0}")]
    Options(String),
    /// There is too little room for the largest store.
    #[error(
        "{}: {needed} bytes are needed at a time and {free} are free; name a folder with more room, or smaller torrents",
        folder.display()
    )]
    Room {
        /// Where the stores were to be.
        folder: PathBuf,
        /// Bytes that are needed at a time.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A store lost or altered what was written to it.
    #[error("piece {piece} of torrent {torrent} {what}")]
    Wrong {
        /// Number of the torrent, from 0 on.
        torrent: u32,
        /// Number of the piece.
        piece: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// What a store believes does not agree with itself.
    #[error("the store does not agree with itself: {0}")]
    Audit(String),
    /// A store refused.
    #[error(transparent)]
    Content(#[from] swarmkeep_content::Error),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A process that measured a row failed.
    #[error("{plan}: {what}")]
    Child {
        /// What it was to measure.
        plan: String,
        /// What it said.
        what: String,
    },
}
