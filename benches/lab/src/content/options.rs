//! The options of a run, and its rows.

use std::path::PathBuf;

use clap::ArgAction;
use serde::{Deserialize, Serialize};
use swarmkeep_bittorrent::programs;

use crate::content::{self, Error, download::DownloadPlan};

/// The options of a run.
#[derive(Debug, Clone, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Options {
    /// The folder in which the stores are made, one after another; all is removed again. By default 28 GB are
    /// needed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,

    /// The number of torrents.
    #[arg(long, value_name = "N", default_value = "25", default_value_if("quick", "true", "10"))]
    pub torrents: u32,

    /// Bytes of each, as 1GB, 128MB or 1GiB.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GB",
        default_value_if("quick", "true", "128MB"),
        value_parser = bytes::<u64>
    )]
    pub size: u64,

    /// The number of torrents that are downloaded at a time. All get the same number of bytes per second.
    #[arg(long, value_name = "N", default_value = "10", default_value_if("quick", "true", "5"))]
    pub parallel: u32,

    /// Bytes of the stripe cache; with traced requests, the memory of every row.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GB",
        default_value_if("quick", "true", "64MB"),
        value_parser = bytes::<u64>
    )]
    pub cache: u64,

    /// Bytes of a block and of a stripe.
    #[arg(long, value_name = "BYTES", default_value = "4MiB", value_parser = bytes::<u32>)]
    pub block: u32,

    /// Threads of the stripe cache that write; with one, a disk that turns is written to strictly in order.
    #[arg(long, value_name = "N", default_value = "1")]
    pub writers: u32,

    /// The seed of all random numbers.
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,

    /// Do not trace requests and limit memory, even if this process is root.
    #[arg(long = "untraced", action = ArgAction::SetFalse)]
    pub traced: bool,
}

impl Options {
    pub(crate) const fn download_plan(&self) -> DownloadPlan {
        let Self { torrents, size, parallel, seed, .. } = *self;
        DownloadPlan { torrents, size, parallel, seed, extent: 0 }
    }

    /// Bytes that the largest store takes: the torrents, a tenth of free blocks and some metadata, and a
    /// sector of each block of earlier content.
    pub(crate) fn room(&self) -> u64 {
        let content = u64::from(self.torrents) * self.size.next_multiple_of(self.block.into());
        content
            + content / 10
            + 4 * (content / u64::from(self.block)) * 4096
            + 64 * u64::from(self.block)
            + (64 << 20)
    }

    pub(crate) fn check(&self) -> content::Result<()> {
        let fault = if self.torrents == 0 || self.parallel == 0 || self.writers == 0 {
            "--torrents, --parallel and --writers are at least 1"
        } else if !self.block.is_power_of_two() || !(16 << 10..=64 << 20).contains(&self.block) {
            "blocks have a power of two of bytes, from 16 KiB to 64 MiB"
        } else if self.size < u64::from(self.block) {
            "a torrent is at least as long as a block"
        } else if self.cache < u64::from(self.block) {
            "the cache holds a stripe at least, which is as long as a block"
        } else {
            return Ok(());
        };
        Err(Error::Options(fault.to_owned()))
    }
}

/// A row: a store, and the use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSetup {
    /// Plain files.
    Files,
    /// The same with all of the machine's memory for the page cache.
    FilesFree,
    /// Plain files, written by libtorrent with its default settings.
    Libtorrent,
    /// The same with settings for disks that turn, and with the order of pieces of `piece_extent_affinity`.
    LibtorrentTuned,
    /// Plain files without a cache, with the same order of pieces.
    FilesByExtents,
    /// Plain files behind the stripe cache, which chooses the next piece.
    FilesCached,
    /// The block store behind the stripe cache, with pieces in random order.
    BlockWithoutAffinity,
    /// The block store behind the stripe cache, which chooses the next piece.
    Block,
    /// The same on a device that is full to three quarters, with holes.
    BlockAged,
}

impl StoreSetup {
    /// All rows; compared rows are next to each other.
    pub const ALL: [Self; 9] = [
        Self::Files,
        Self::FilesFree,
        Self::Libtorrent,
        Self::LibtorrentTuned,
        Self::FilesByExtents,
        Self::FilesCached,
        Self::BlockWithoutAffinity,
        Self::Block,
        Self::BlockAged,
    ];

    /// The name of the row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::FilesFree => "files, free page cache",
            Self::Libtorrent => "libtorrent",
            Self::LibtorrentTuned => "libtorrent, tuned",
            Self::FilesByExtents => "files, pieces by extents",
            Self::FilesCached => "files, cache",
            Self::BlockWithoutAffinity => "block store, cache without affinity",
            Self::Block => "block store, cache",
            Self::BlockAged => "block store, aged, cache",
        }
    }

    pub(crate) const fn is_block(self) -> bool {
        matches!(self, Self::BlockWithoutAffinity | Self::Block | Self::BlockAged)
    }

    pub(crate) const fn is_libtorrent(self) -> bool {
        matches!(self, Self::Libtorrent | Self::LibtorrentTuned)
    }
}

/// `1GB`, `128MB`, `4MiB`, `65536`.
fn bytes<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    programs::bytes(text)?.get().try_into().map_err(|_| "the number is too large".into())
}
