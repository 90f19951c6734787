//! Every store of content goes through every case of the conformance suite: a new store is its module and its
//! row here.

use std::sync::Arc;

use swarmkeep_content::{
    Error, Geometry, Memory,
    block::{Allocation, BlockStore},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_kit::content_suite;

content_suite!(memory, |config| Ok(Memory::new(config)));
content_suite!(files_sparse, |config| FileStore::open(config, files::Allocation::Sparse));
content_suite!(files_preallocated, |config| FileStore::open(config, files::Allocation::Preallocated));
content_suite!(block_sequential, |config| BlockStore::open_or_create(config, Allocation::Sequential));
content_suite!(block_ordered, |config| BlockStore::open_or_create(config, Allocation::Ordered));
content_suite!(cached_files_sparse, |config| {
    let store = FileStore::open(config, files::Allocation::Sparse)?;
    StripeCache::new(Arc::new(store), StripeCacheOptions::new())
});
content_suite!(cached_block_sequential, |config| {
    let store = BlockStore::open_or_create(config, Allocation::Sequential)?;
    StripeCache::new(Arc::new(store), StripeCacheOptions::new())
});

#[test]
fn no_torrent_has_impossible_measures() {
    for (length, piece_length) in [(0, 1), (0, 0), (1, 0), (1 << 32, 1), (u64::MAX, u32::MAX)] {
        assert!(matches!(Geometry::new(length, piece_length), Err(Error::Geometry { .. })));
    }
    assert_eq!(Geometry::new(u64::from(u32::MAX), 1).unwrap().pieces(), u32::MAX);
}
