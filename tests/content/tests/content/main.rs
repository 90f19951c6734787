//! Content stores: crashes, and the files and messages of real programs.

mod block_store;
mod content;
mod crashes;
mod hash_exchange;
mod metainfo;
mod peer_wire;
mod verified;
