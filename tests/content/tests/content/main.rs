//! Content stores: crashes, and what real programs made and sent.

mod block_store;
mod content;
mod crashes;
mod hash_exchange;
mod metainfo;
mod peer_wire;
mod verified;
