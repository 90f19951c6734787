//! Content stores: crashes, and the files and messages of real programs.

mod block_store;
mod content;
mod crashes;
mod hash_exchange;
mod metainfo;
mod peer_wire;
mod verified;

use swarmkeep_content::block::FormatOptions;
use swarmkeep_store_tests::with;

fn blocks_of(bytes: u32) -> FormatOptions {
    with(FormatOptions::new(), |options| options.block_size = Some(bytes))
}
