//! Content on a raw block device or an image of one: a store that survives a crash at any moment.
//!
//! Built after A. Norberg, "Improving BitTorrent performance with a custom filesystem" (2012): large blocks,
//! one file per torrent, no bitmap of free blocks, the order of flushing instead of a journal.
//! `docs/formats/block-store.md` of the repository gives the format byte by byte, and why a crash at any
//! moment leaves a store that boots with everything that was reported durable.

mod allocator;
mod boot;
mod device;
mod find;
#[cfg(feature = "mutants")]
mod forge;
mod format;
mod handle;
mod inode;
#[cfg_attr(not(feature = "mutants"), allow(dead_code, unreachable_pub, reason = "unused without tests"))]
mod mutant;
mod root;
mod salvage;
mod slabs;
mod store;

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

pub use allocator::Allocation;
use boot::Access;
pub use boot::{BootReport, Damage};
pub use device::{Barrier, BlockDevice, FileDevice, SECTOR, Sector, sectors};
use find::BLOCK_SHIFTS;
#[cfg(feature = "mutants")]
pub use forge::forge;
use format::{ENTRIES, LABEL, LOGICAL_PER_SECTOR, RootHeader};
use handle::Handle;
use inode::InodeByHash;
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
use mutant::Mutation;
use root::{HEAD, Root};
use store::Store;
use swarmkeep_metainfo::Metainfo;

use crate::{
    Capabilities, Content, ContentRepository, Error, InfoHash, NewTorrent, Result, Summary, forward,
    random::random,
};

/// The options of a format. Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct FormatOptions {
    /// The size of a block: a power of two from 16 KiB to 64 MiB; `None` is 4 MiB, or less on a device that
    /// has less than 1,024 of these.
    pub block_size: Option<u32>,
    /// The least number of torrents that there is room for, at most 16,777,216; `None` is as many as suits
    /// the device. One block of 4 MiB names 114,464 of them.
    pub torrents: Option<u32>,
    /// How blocks are chosen, unless a call that opens the store says otherwise.
    pub allocation: Allocation,
}

impl FormatOptions {
    /// Those that suit the device.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Content on a block device.
///
/// A block is a range of the device that belongs to one torrent, by default of 4 MiB. The store keeps its
/// i-nodes in memory: 4 bytes per block of a torrent, one bit per piece, about 350 bytes and the label.
#[derive(Clone)]
pub struct BlockStore {
    store: Arc<Store>,
    report: Arc<BootReport>,
}

impl BlockStore {
    /// Makes an empty store on a device. Everything that was on the device is lost. If it is cut off, the
    /// device has the store that it had, untouched, or none until it is formatted again.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a block size that the format does not have, [`Error::Full`] if the device
    /// is too small, [`Error::Io`].
    pub fn format(device: &dyn BlockDevice, options: FormatOptions) -> Result<()> {
        let bytes = device.sectors() * SECTOR as u64;
        let block_size = options.block_size.unwrap_or_else(|| default_block_size(bytes));
        let shift = block_size.trailing_zeros() as u8;
        if !block_size.is_power_of_two() || !BLOCK_SHIFTS.contains(&shift) {
            return Err(Error::Unsupported(
                "have blocks of this size: choose a power of two from 16 KiB to 64 MiB",
            ));
        }
        let torrents = options.torrents.unwrap_or(0);
        if torrents > MOST_TORRENTS {
            return Err(Error::Unsupported("name more than 16,777,216 torrents"));
        }
        let root_blocks = root_blocks(torrents, shift);
        // Block numbers have 32 bits.
        let blocks = u32::try_from(bytes >> shift).unwrap_or(u32::MAX);
        if blocks <= root_blocks.saturating_mul(2) {
            return Err(Error::Full { what: "the device is too small for the two copies of the root" });
        }
        let uuid = random()?;
        let wrote = Error::io("formatting the device");
        (|| {
            // One step removes the old store, even if the rest fails.
            let header = RootHeader::new(shift, root_blocks, blocks, uuid, options.allocation);
            device.write(0, &[&[header.seal()]])?;
            device.flush(Barrier::Wiped)?;
            // Nothing of an earlier store must be found where this one has nothing.
            for shift in BLOCK_SHIFTS.filter(|&shift| 1_u64 << (shift - 12) < device.sectors()) {
                device.write(1 << (shift - 12), &[&[Sector::ZERO]])?;
            }
            let mut root = Root::empty(header, Mutation::default());
            root.fill(device)?;
            root.write(device, Barrier::Formatted)?;
            root.write(device, Barrier::Formatted)
        })()
        .map_err(wrote)
    }

    /// Makes a new root for a store that cannot be opened because its root is gone or its device is shorter
    /// than it was. If it finds no torrent, nothing is written. Without any root, the whole device is read,
    /// and i-nodes are recognised by their checksums. Content may look like i-nodes: of those that contradict
    /// each other, those count whose pieces verify by `torrent_files`, then those with fewest contradictions.
    /// Deleted torrents may be back. Verify all pieces afterwards. Returns the number of torrents that the
    /// root names, and of i-nodes that were left out although no piece that verifies decided it.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if the store is of a later version, [`Error::Io`], also if much of the device
    /// cannot be read.
    pub fn salvage(
        device: impl BlockDevice + 'static,
        torrent_files: &dyn Fn(&InfoHash) -> Option<Metainfo>,
    ) -> Result<(u32, u32)> {
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        salvage::salvage(&device, torrent_files)
            .map_err(|refused| refused.into_error(Path::new("the device")))
    }

    /// Opens the store on a [formatted](Self::format) device, for reading and writing. It chooses blocks
    /// according to `allocation`, or else as the device was formatted.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if the device has no store that this program knows, [`Error::Io`].
    pub fn boot(
        device: impl BlockDevice + 'static,
        allocation: impl Into<Option<Allocation>>,
    ) -> Result<Self> {
        Self::boot_as(
            Arc::new(device),
            allocation.into(),
            Access::Write,
            Mutation::default(),
            Path::new("the device"),
        )
    }

    /// Opens the store on a [formatted](Self::format) device, and never writes to it.
    ///
    /// # Errors
    /// As [`boot`](Self::boot).
    pub fn boot_read_only(device: impl BlockDevice + 'static) -> Result<Self> {
        let path = Path::new("the device");
        Self::boot_as(Arc::new(device), None, Access::Read, Mutation::default(), path)
    }

    /// A store that gets one thing wrong.
    ///
    /// # Errors
    /// As [`boot`](Self::boot).
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn boot_mutant(
        device: impl BlockDevice + 'static,
        allocation: Allocation,
        mutant: Option<Mutant>,
    ) -> Result<Self> {
        let path = Path::new("the device");
        Self::boot_as(Arc::new(device), Some(allocation), Access::Write, Mutation(mutant), path)
    }

    fn boot_as(
        device: Arc<dyn BlockDevice>,
        allocation: Option<Allocation>,
        access: Access,
        mutation: Mutation,
        path: &Path,
    ) -> Result<Self> {
        match boot::boot(device, allocation, access, mutation) {
            Ok((store, report)) => Ok(Self { store: Arc::new(store), report: Arc::new(report) }),
            Err(refused) => Err(refused.into_error(path)),
        }
    }

    /// Opens the store on a block device or an image, as [`boot`](Self::boot) does.
    ///
    /// # Errors
    /// As [`boot`](Self::boot), and [`Error::InUse`].
    pub fn open(path: &Path, allocation: impl Into<Option<Allocation>>) -> Result<Self> {
        let device = FileDevice::open(path, true)?;
        Self::boot_as(Arc::new(device), allocation.into(), Access::Write, Mutation::default(), path)
    }

    /// Opens the store on a block device or an image read-only. Several processes may do so at the same time.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let device = FileDevice::open(path, false)?;
        Self::boot_as(Arc::new(device), None, Access::Read, Mutation::default(), path)
    }

    /// The findings when the device was read.
    pub fn report(&self) -> &BootReport {
        &self.report
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        1 << self.store.block_shift()
    }

    /// Blocks of the device, including the root.
    pub fn blocks(&self) -> u32 {
        self.store.shape.blocks.get()
    }

    /// The owners of all blocks in use, in runs, in the order of the device. Takes time and memory in
    /// proportion to these blocks.
    pub fn owners(&self) -> Vec<(Range<u32>, Owner)> {
        let meta = self.store.meta.lock();
        let root = 2 * self.store.shape.root_blocks.get();
        let mut owners = BTreeMap::from_iter((0..root).map(|block| (block, Owner::Root)));
        owners.extend(meta.slabs.blocks().map(|block| (block, Owner::Inodes)));
        for InodeByHash(inode) in self.store.torrents.read().iter() {
            let state = inode.state.lock();
            owners.extend(state.map_blocks.iter().map(|(_, block)| (block, Owner::Map(inode.info_hash))));
            owners.extend(state.map.iter().map(|(_, block)| (block, Owner::Content(inode.info_hash))));
        }
        let mut runs: Vec<(Range<u32>, Owner)> = Vec::new();
        for (block, owner) in owners {
            match runs.last_mut() {
                Some((run, of)) if run.end == block && *of == owner => run.end += 1,
                _ => runs.push((block..block + 1, owner)),
            }
        }
        runs
    }

    /// Checks that the store is consistent: each block either has one owner or is free.
    ///
    /// # Errors
    /// The contradiction.
    pub fn audit(&self) -> Result<(), String> {
        let meta = self.store.meta.lock();
        let torrents = self.store.torrents.read();
        let states: Vec<_> = torrents.iter().map(|InodeByHash(inode)| (inode, inode.state.lock())).collect();
        let allocator = self.store.allocator.lock();
        let blocks = self.store.shape.blocks.get();
        let root = 2 * self.store.shape.root_blocks.get();
        let mut taken = std::collections::HashMap::new();
        let mut take = |block: u32, owner: String| match taken.insert(block, owner.clone()) {
            _ if block < root || block >= blocks => {
                Err(format!("{owner} has block {block}, which can belong to no torrent"))
            }
            Some(other) => Err(format!("block {block} is both {other}'s and {owner}'s")),
            None if allocator.is_free(block) => Err(format!("block {block} is {owner}'s and free")),
            None => Ok(()),
        };
        meta.slabs.blocks().try_for_each(|block| take(block, "an i-node".to_owned()))?;
        for (inode, state) in &states {
            let mut blocks = state.map.iter().chain(state.map_blocks.iter());
            blocks.try_for_each(|(_, block)| take(block, inode.info_hash.to_string()))?;
            let without = state.pieces_without_blocks(inode.geometry, self.store.block_shift());
            if !without.is_empty() {
                return Err(format!(
                    "{}: pieces {without:?} are complete and have no blocks",
                    inode.info_hash
                ));
            }
        }
        let (free, rest) = (allocator.count(), blocks - root - taken.len() as u32);
        if free == rest { Ok(()) } else { Err(format!("{free} blocks are free, and {rest} have no owner")) }
    }

    fn inode(&self, info_hash: &InfoHash) -> Result<Arc<inode::Inode>> {
        self.store.inode(info_hash).ok_or(Error::NotFound(*info_hash))
    }

    fn handle(&self, inode: Arc<inode::Inode>) -> Arc<dyn Content> {
        Arc::new(Handle { inode, store: Arc::clone(&self.store) })
    }
}

/// The owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// The root.
    Root,
    /// I-nodes of any torrents.
    Inodes,
    /// The block map of a torrent that is too large for its i-node.
    Map(InfoHash),
    /// The content of a torrent.
    Content(InfoHash),
}

impl ContentRepository for BlockStore {
    forward! { it, it.store; delete, flush, statistics }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        self.store.create(torrent).map(|inode| self.handle(inode))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        self.inode(info_hash).map(|inode| self.handle(inode))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        Ok(self.store.list())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.block_size()).durable().bounded().labels(LABEL as u32)
    }

    fn label(&self, info_hash: &InfoHash) -> Result<Arc<[u8]>> {
        self.inode(info_hash).map(|inode| Arc::clone(&inode.state.lock().label))
    }

    fn set_label(&self, info_hash: &InfoHash, label: &[u8]) -> Result<()> {
        Handle { inode: self.inode(info_hash)?, store: Arc::clone(&self.store) }.set_label(label)
    }
}

debug_as!(
    BlockStore,
    it,
    "BlockStore {{ device: {:?}, block_size: {}, generation: {}, .. }}",
    it.store.device,
    it.block_size(),
    it.report.generation
);

/// No root names more, so that a foreign image cannot cause an allocation of any size before it is found to
/// be damaged. With this many the root takes 600 MB.
const MOST_TORRENTS: u32 = 1 << 24;

/// 4 MiB as in the paper, less where a device would have few of them.
fn default_block_size(bytes: u64) -> u32 {
    let fitting = (bytes / 1024).max(1).ilog2() as u8;
    1 << fitting.clamp(*BLOCK_SHIFTS.start(), 22)
}

fn root_blocks(torrents: u32, shift: u8) -> u32 {
    let sectors = u64::from(torrents).div_ceil((ENTRIES * LOGICAL_PER_SECTOR) as u64) + HEAD;
    (sectors.div_ceil(1 << (shift - 12)) as u32).max(1)
}
