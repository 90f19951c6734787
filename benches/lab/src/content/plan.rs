//! What can be measured, and what a run measures.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::content::{disk::Disk, download::Work};

/// The store that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// Plain files, which take room as they are written.
    FilesSparse,
    /// Plain files, all of whose room is taken at once.
    FilesPreallocated,
    /// An image, blocks taken around the device.
    BlockSequential,
    /// An image, the lowest free blocks taken first.
    BlockOrdered,
    /// Plain files, written by libtorrent with the settings that it comes with.
    Libtorrent,
    /// The same with settings for disks that turn, and with the order of pieces that `piece_extent_affinity`
    /// gives.
    LibtorrentTuned,
}

/// A store, in what state it is, and how it is used: what a row of the tables is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The store.
    pub store: Store,
    /// Whether it is full to three quarters of what used to be there before, with holes.
    pub aged: bool,
    /// Whether the stripe cache is in front of it.
    pub cache: bool,
    /// Whether the cache says which piece comes next.
    pub affinity: bool,
    /// Whether the page cache may have all of the machine's memory.
    pub free: bool,
}

/// What a run is made of, all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Where the stores are made. All of it is removed again.
    pub folder: PathBuf,
    /// How many torrents there are.
    pub torrents: u32,
    /// Bytes of each.
    pub size: u64,
    /// How many are downloaded at a time.
    pub parallel: u32,
    /// Bytes of the stripe cache. With [`traced`](Self::traced), the memory of every row.
    pub cache: u64,
    /// Bytes of a block of the block store, and of a stripe.
    pub block: u32,
    /// Threads of the stripe cache that write.
    pub writers: u32,
    /// How often each row is measured; of each number the median is reported.
    pub rounds: u32,
    /// What everything is drawn from.
    pub seed: u64,
    /// Only rows whose names have one of these words in them, and all if there are none.
    pub only: Vec<String>,
    /// The disk that traces are replayed on.
    pub disk: Disk,
    /// What is modelled of seeding; nothing if there is none.
    pub seeding: Option<SeedingOptions>,
    /// Whether points are kept for pictures.
    pub pictures: bool,
    /// Whether the kernel records the requests that reach a loop device, and limits memory; it takes root.
    pub traced: bool,
    /// Whether libtorrent is compared; it takes its bindings for Python, and [`traced`](Self::traced).
    pub libtorrent: bool,
    /// What the content is divided by for the memory of further rows; it takes [`traced`](Self::traced).
    pub shares: Vec<u64>,
}

/// Peers that download from a store of [`Options::torrents`] complete torrents.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SeedingOptions {
    /// How many. They spread over the torrents evenly, and all are as fast.
    pub peers: u32,
    /// Requests of 16 KiB, all together.
    pub requests: u32,
    /// How they choose pieces.
    pub locality: Locality,
}

/// How peers choose pieces: so many of them, as shares of one, in each way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Locality {
    /// From a random piece on, one after another: who watches or listens while it comes, or has the client's
    /// sequential mode on.
    pub in_order: f64,
    /// All pieces of an aligned 4 MiB, then another 4 MiB at random: `piece_extent_affinity` of libtorrent,
    /// and clients with a cache of stripes.
    pub by_extent: f64,
    /// Of the others, who take pieces at random, how many choices are not random: the piece that another peer
    /// of the swarm began last is taken, if it is missing. Rarest first makes peers want the same.
    pub same_rare: f64,
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
            rounds: 1,
            seed: 1,
            only: Vec::new(),
            disk: Disk::default(),
            seeding: Some(SeedingOptions::default()),
            pictures: false,
            traced: true,
            libtorrent: true,
            shares: vec![8, 2, 1],
        }
    }

    /// A tenth of the bytes of the torrents that are downloaded at a time in the cache, as in the paper's, and
    /// so small that all rows take a few minutes.
    #[must_use]
    pub fn quick(mut self) -> Self {
        (self.torrents, self.size, self.parallel, self.cache) = (10, 128_000_000, 5, 64_000_000);
        self.seeding = self.seeding.map(|seeding| SeedingOptions { peers: 12, requests: 10_000, ..seeding });
        self
    }

    /// What is measured in each round, and what once after the rounds; what is compared is next to each
    /// other.
    pub fn plans(&self) -> (Vec<Plan>, Vec<Plan>) {
        let plan = |way, options: Self| Plan { what: What::Download(way), options };
        let can = |way: &Setup| !way.free && !way.store.is_libtorrent() || self.traced;
        let ways = SETUPS.iter().filter(|way| can(way) && (self.libtorrent || !way.store.is_libtorrent()));
        let ways = ways.filter(|way| self.wants(&way.to_string()));
        let rows = ways.map(|&way| plan(way, self.clone())).collect();
        let mut once = Vec::new();
        for share in self.shares.iter().filter(|_| self.traced && self.wants("memory")) {
            let cache = (u64::from(self.torrents) * self.size / share).max(self.block.into());
            let options = Self { cache, pictures: false, ..self.clone() };
            once.extend(BY_MEMORY.map(|way| plan(way, options.clone())));
        }
        if self.seeding.is_some() && self.wants("seeding") {
            once.push(Plan { what: What::Seeding, options: self.clone() });
        }
        (rows, once)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    pub(crate) const fn work(&self) -> Work {
        let Self { torrents, size, parallel, seed, .. } = *self;
        Work { torrents, size, parallel, seed, extent: 0 }
    }

    /// What is wrong with it, if something is.
    pub(crate) fn fault(&self) -> Option<String> {
        let shares = |locality: Locality| {
            let shares = [locality.in_order, locality.by_extent, locality.same_rare];
            shares.iter().all(|share| (0.0..=1.0).contains(share))
                && locality.in_order + locality.by_extent <= 1.0
        };
        let disk = self.disk;
        let fault = match self {
            _ if self.torrents == 0 || self.parallel == 0 || self.rounds == 0 => {
                "torrents, torrents at a time and rounds: at least one of each"
            }
            _ if self.size < u64::from(self.block) => "a torrent is at least as long as a block",
            _ if !self.block.is_power_of_two() || !(16 << 10..=64 << 20).contains(&self.block) => {
                "blocks have a power of two of bytes, from 16 KiB to 64 MiB"
            }
            _ if self.cache < u64::from(self.block) => {
                "the cache holds a stripe at least, which is as long as a block"
            }
            _ if self.seeding.is_some_and(|seeding| seeding.peers == 0 || seeding.requests == 0) => {
                "peers and requests: at least one of each"
            }
            _ if self.seeding.is_some_and(|seeding| !shares(seeding.locality)) => {
                "shares of peers are from 0 to 1, and together no more than 1"
            }
            _ if disk.capacity == 0
                || [disk.rate, disk.turns].iter().any(|&number| !number.is_finite() || number <= 0.0)
                || !(0.0 <= disk.shortest_seek_ms && disk.shortest_seek_ms <= disk.longest_seek_ms)
                || !disk.longest_seek_ms.is_finite() =>
            {
                "a disk has a size, turns, a rate, and no seek is longer than the longest"
            }
            _ if {
                let (rows, once) = self.plans();
                rows.is_empty() && once.is_empty()
            } =>
            {
                "no row has one of these words in its name"
            }
            _ => return None,
        };
        Some(fault.to_owned())
    }
}

impl Default for SeedingOptions {
    fn default() -> Self {
        Self { peers: 100, requests: 50_000, locality: Locality::default() }
    }
}

impl Default for Locality {
    /// Half of the peers at random, the others half and half.
    fn default() -> Self {
        Self { in_order: 0.25, by_extent: 0.25, same_rare: 0.25 }
    }
}

impl Locality {
    /// All pieces at random, and no peer wants what another one wants.
    pub const RANDOM: Self = Self { in_order: 0.0, by_extent: 0.0, same_rare: 0.0 };
}

/// One thing to measure, in a process of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What.
    pub what: What,
    /// With what.
    pub options: Options,
}

/// What a process measures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A download into a store.
    Download(Setup),
    /// Peers that download from a store.
    Seeding,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Download(way) => way.fmt(f),
            What::Seeding => f.write_str("seeding"),
        }
    }
}

const fn way(store: Store, aged: bool, cache: bool, affinity: bool) -> Setup {
    Setup { store, aged, cache, affinity, free: false }
}

/// Every row.
pub(crate) const SETUPS: &[Setup] = &[
    Setup::SPARSE,
    Setup::FREE,
    way(Store::FilesPreallocated, false, false, false),
    way(Store::Libtorrent, false, false, false),
    way(Store::LibtorrentTuned, false, false, false),
    way(Store::FilesSparse, false, true, false),
    Setup::BEHIND,
    way(Store::FilesPreallocated, false, true, true),
    way(Store::BlockSequential, false, false, false),
    way(Store::BlockOrdered, false, false, false),
    way(Store::BlockSequential, false, true, false),
    Setup::BEST,
    way(Store::BlockOrdered, false, true, true),
    way(Store::BlockSequential, true, true, true),
    way(Store::BlockOrdered, true, true, true),
];

/// What is compared with more memory, too.
pub(crate) const BY_MEMORY: [Setup; 3] = [Setup::SPARSE, Setup::BEHIND, Setup::BEST];

impl Setup {
    /// Plain files as everybody has them.
    pub const SPARSE: Self = way(Store::FilesSparse, false, false, false);
    /// The same with as much page cache as the kernel likes.
    pub const FREE: Self = Self { free: true, ..Self::SPARSE };
    /// Plain files behind the stripe cache.
    pub const BEHIND: Self = way(Store::FilesSparse, false, true, true);
    /// The block store as it is meant to be used.
    pub const BEST: Self = way(Store::BlockSequential, false, true, true);
}

impl Store {
    /// As in the catalog of stores.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FilesSparse => "files-sparse",
            Self::FilesPreallocated => "files-preallocated",
            Self::BlockSequential => "block-sequential",
            Self::BlockOrdered => "block-ordered",
            Self::Libtorrent => "libtorrent",
            Self::LibtorrentTuned => "libtorrent, tuned",
        }
    }

    /// Whether it is the block store.
    pub const fn is_block(self) -> bool {
        matches!(self, Self::BlockSequential | Self::BlockOrdered)
    }

    /// Whether it is libtorrent's.
    pub const fn is_libtorrent(self) -> bool {
        matches!(self, Self::Libtorrent | Self::LibtorrentTuned)
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.store.name())?;
        if self.aged {
            f.write_str(", aged")?;
        }
        match (self.cache, self.affinity) {
            (true, true) => f.write_str(", cache"),
            (true, false) => f.write_str(", cache without affinity"),
            (false, _) if self.free => f.write_str(", free page cache"),
            (false, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_words_of_their_names() {
        let mut options = Options::new("");
        let names = |options: &Options| {
            let (rows, once) = options.plans();
            rows.iter().chain(&once).map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&options).len(), SETUPS.len() + 3 * BY_MEMORY.len() + 1);
        options.traced = false;
        assert_eq!(names(&options).len(), SETUPS.len() - 3 + 1);
        options.only = vec!["ordered, aged".to_owned(), "seeding".to_owned()];
        assert_eq!(names(&options), ["block-ordered, aged, cache", "seeding"]);
        options.only = vec!["tape".to_owned()];
        assert!(options.fault().unwrap().contains("no row"));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert_eq!(Options::new("").fault(), None);
        assert_eq!(Options::new("").quick().fault(), None);
        let wrong = |change: fn(&mut Options)| {
            let mut options = Options::new("");
            change(&mut options);
            options.fault().expect("it is wrong")
        };
        assert!(wrong(|options| options.block = 5 << 20).contains("power of two"));
        assert!(wrong(|options| options.cache = 1 << 20).contains("cache"));
        assert!(wrong(|options| options.disk.rate = 0.0).contains("disk"));
        assert!(wrong(|options| options.disk.longest_seek_ms = 0.5).contains("seek"));
        assert!(
            wrong(|options| options.seeding.as_mut().unwrap().locality.by_extent = 0.9).contains("shares")
        );
    }
}
