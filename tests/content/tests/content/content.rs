//! Every store of content goes through every case of the conformance suite: a new store is its module and its
//! row here.

use std::{fs::File, sync::Arc};

use swarmkeep_content::{
    ContentConfig, ContentRepository, Error, Geometry, Memory, Result,
    block::{Allocation, BlockStore, FileDevice, FormatOptions, SECTOR},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_kit::content_suite;
use swarmkeep_store_tests::with;

content_suite!(memory, |config| Ok(Memory::new(config)));
content_suite!(files_sparse, sparse);
content_suite!(files_preallocated, preallocated);
content_suite!(block_sequential, |config| block(config, Allocation::Sequential));
content_suite!(block_ordered, |config| block(config, Allocation::Ordered));
content_suite!(cached_files_sparse, |config| cached(sparse(config)?, StripeCacheOptions::new()));
content_suite!(cached_block_sequential, |config| {
    cached(block(config, Allocation::Sequential)?, StripeCacheOptions::new())
});
// The limits of these are so small that every case comes up against them.
content_suite!(stripe_cache_over_memory, |config| {
    let options = with(tiny(), |options| (options.stripe, options.threads) = (Some(16 << 10), 1));
    cached(Memory::new(config), options)
});
content_suite!(stripe_cache_over_block, |config| cached(block(config, Allocation::Ordered)?, tiny()));
content_suite!(stripe_cache_over_files, |config| {
    cached(sparse(config)?, with(tiny(), |options| options.stripe = Some(64 << 10)))
});
content_suite!(stripe_cache_over_preallocated_files, |config| cached(preallocated(config)?, tiny()));

fn sparse(config: &ContentConfig) -> Result<FileStore> {
    FileStore::open(config, files::Allocation::Sparse)
}

fn preallocated(config: &ContentConfig) -> Result<FileStore> {
    FileStore::open(config, files::Allocation::Preallocated)
}

/// The store whose image is in the folder, or else a new one, sparse behind its first sector.
fn block(config: &ContentConfig, allocation: Allocation) -> Result<BlockStore> {
    let path = config.folder.join("image");
    if !path.exists() {
        let bytes = config.capacity.unwrap_or(512 << 20);
        drop(FileDevice::create_image(&path, bytes.min(SECTOR as u64))?);
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("a folder of our own");
        BlockStore::format(&FileDevice::open(&path, true)?, FormatOptions::new())?;
    }
    BlockStore::open(&path, allocation)
}

fn cached(store: impl ContentRepository + 'static, options: StripeCacheOptions) -> Result<StripeCache> {
    StripeCache::new(Arc::new(store), options)
}

fn tiny() -> StripeCacheOptions {
    with(StripeCacheOptions::new(), |options| (options.write_memory, options.read_memory) = (0, 2 << 20))
}

#[test]
fn no_torrent_has_impossible_measures() {
    for (length, piece_length) in [(0, 1), (0, 0), (1, 0), (1 << 32, 1), (u64::MAX, u32::MAX)] {
        assert!(matches!(Geometry::new(length, piece_length), Err(Error::Geometry { .. })));
    }
    assert_eq!(Geometry::new(u64::from(u32::MAX), 1).unwrap().pieces(), u32::MAX);
}
