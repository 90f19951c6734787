//! The options of a run, and its rows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::content::{Error, Result, download::DownloadPlan};

/// The options of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The folder of the stores. All of it is removed again.
    pub folder: PathBuf,
    /// The number of torrents.
    pub torrents: u32,
    /// Bytes of each torrent.
    pub size: u64,
    /// The number of torrents that are downloaded at a time.
    pub parallel: u32,
    /// Bytes of the stripe cache. With [`traced`](Self::traced), the memory of every row.
    pub cache: u64,
    /// Bytes of a block of the block store, and of a stripe.
    pub block: u32,
    /// Threads of the stripe cache that write.
    pub writers: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether the kernel records the requests that reach a loop device, and limits memory; this needs root.
    pub traced: bool,
}

impl Options {
    /// The paper's benchmark: 25 torrents of 1 GB, 10 at a time, 1 GB of cache.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            torrents: 25,
            size: 1_000_000_000,
            parallel: 10,
            cache: 1_000_000_000,
            block: 4 << 20,
            writers: 1,
            seed: 1,
            traced: true,
        }
    }

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

    pub(crate) fn check(&self) -> Result<()> {
        let fault = if self.torrents == 0 || self.parallel == 0 {
            "torrents, and torrents at a time: at least one of each"
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
    pub const ALL: [Self; 8] = [
        Self::Files,
        Self::FilesFree,
        Self::Libtorrent,
        Self::LibtorrentTuned,
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

    pub(crate) const fn is_cached(self) -> bool {
        self.is_block() || matches!(self, Self::FilesCached)
    }

    /// Whether it needs a trace: calls do not show the work of the page cache, or of libtorrent.
    pub(crate) const fn needs_trace(self) -> bool {
        self.is_libtorrent() || matches!(self, Self::FilesFree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused() {
        assert!(Options::new("").check().is_ok());
        let wrong = |change: fn(&mut Options)| {
            let mut options = Options::new("");
            change(&mut options);
            options.check().unwrap_err().to_string()
        };
        assert!(wrong(|options| options.torrents = 0).contains("at least one"));
        assert!(wrong(|options| options.block = 5 << 20).contains("power of two"));
        assert!(wrong(|options| options.cache = 1 << 20).contains("cache"));
        assert!(wrong(|options| options.size = 1).contains("as long as a block"));
    }
}
