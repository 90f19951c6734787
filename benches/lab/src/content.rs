//! The cost of stores of torrents' content: the benchmark of Norberg's paper, on a modelled disk.
//!
//! Machines with virtual disks and large caches hide the ways of a disk's head. So the requests of each row,
//! a download of torrents into one store, are recorded and replayed on a `Disk` that turns.
//! `README.md` describes the measurements and the model.
//!
//! [`run`] measures rows of [`Options`] for a [`Report`]. Each row has its own process, for its memory:
//! [`child`] has both ends of that.

mod aging;
pub mod child;
mod disk;
mod download;
mod libtorrent;
mod mix;
mod options;
mod payload;
mod report;
mod row;
mod trace;
mod volume;

use std::{io, process::Command};

use swarmkeep_benches::origin::Origin;

pub use options::{Options, StoreSetup};
pub use report::Report;
pub use row::Row;

/// The result of each function here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options are wrong.
    #[error("{0}")]
    Options(String),
    /// A row cannot be measured.
    #[error("{0}")]
    Failed(String),
    /// A store refused.
    #[error(transparent)]
    Content(#[from] swarmkeep_content::Error),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Measures the rows with one of these words in their names, or all if there are no words, each in a process
/// that `command` starts. `progress` receives the row, the number of rows before it, the number of all rows,
/// and the finished share of this one.
pub fn run(
    options: &Options,
    only: &[String],
    origin: Origin,
    command: &dyn Fn() -> Command,
    progress: &mut dyn FnMut(StoreSetup, usize, usize, f64),
) -> Result<Report> {
    let mut options = options.clone();
    options.check()?;
    let is_wanted = |way: &StoreSetup| only.is_empty() || only.iter().any(|word| way.name().contains(word));
    if !StoreSetup::ALL.iter().any(is_wanted) {
        return Err(Error::Options("no row has one of these words in its name".to_owned()));
    }
    let system = rustix::fs::statvfs(&options.folder).map_err(io::Error::from)?;
    let (needed, free) = (options.room(), system.f_bavail * system.f_frsize);
    if free < needed {
        return Err(Error::Failed(format!(
            "{}: {needed} bytes are needed at a time and {free} are free; name a folder with more room, or smaller torrents",
            options.folder.display()
        )));
    }
    let mut untraced = None;
    if options.traced
        && let Err(why) = volume::probe(&options.folder)
    {
        (options.traced, untraced) = (false, Some(why.to_string()));
    }
    let has_libtorrent = libtorrent::is_there();
    let ways: Vec<_> = StoreSetup::ALL
        .into_iter()
        // Calls do not show the work of the page cache, or of libtorrent.
        .filter(|way| options.traced || !(way.is_libtorrent() || *way == StoreSetup::FilesFree))
        .filter(|way| has_libtorrent || !way.is_libtorrent())
        .filter(is_wanted)
        .collect();
    let mut rows = Vec::new();
    for (n, way) in ways.iter().enumerate() {
        rows.push(child::ask(command(), &options, *way, &mut |share| progress(*way, n, ways.len(), share))?);
    }
    Ok(Report { origin: origin.ended(), options, untraced, rows })
}
