//! The suite of all stores, put through the stripe cache with limits so small that every case comes up
//! against them.

use std::sync::Arc;

use swarmkeep_content::{
    ContentConfig, Memory, Result,
    block::{Allocation, BlockStore},
    files::{self, FileStore},
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_store_tests::with;

fn tiny() -> StripeCacheOptions {
    with(StripeCacheOptions::new(), |options| (options.write_memory, options.read_memory) = (0, 2 << 20))
}

fn over_memory(config: &ContentConfig) -> Result<StripeCache> {
    let options = with(tiny(), |options| (options.stripe, options.threads) = (Some(16 << 10), 1));
    StripeCache::new(Arc::new(Memory::new(config)), options)
}

fn over_block(config: &ContentConfig) -> Result<StripeCache> {
    StripeCache::new(Arc::new(BlockStore::open_or_create(config, Allocation::Ordered)?), tiny())
}

fn over_files(config: &ContentConfig) -> Result<StripeCache> {
    let options = with(tiny(), |options| options.stripe = Some(64 << 10));
    StripeCache::new(Arc::new(FileStore::open(config, files::Allocation::Sparse)?), options)
}

fn over_preallocated_files(config: &ContentConfig) -> Result<StripeCache> {
    StripeCache::new(Arc::new(FileStore::open(config, files::Allocation::Preallocated)?), tiny())
}

swarmkeep_kit::content_suite!(stripe_cache_over_memory, over_memory);
swarmkeep_kit::content_suite!(stripe_cache_over_block, over_block);
swarmkeep_kit::content_suite!(stripe_cache_over_files, over_files);
swarmkeep_kit::content_suite!(stripe_cache_over_preallocated_files, over_preallocated_files);
