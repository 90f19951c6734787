//! Content stores and peers: crashes, what real programs made and sent, sessions with trackers and with each other.

mod block_store;
mod content;
mod crashes;
mod hash_exchange;
mod metainfo;
mod peer_wire;
mod sessions;
mod trackers;
