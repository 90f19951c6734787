//! Content stores: crashes, and what real programs made and sent. Besides, what needs
//! more than the store ring may build: the rules of the house, and the schedules of a model checker.

mod block_store;
mod content;
mod crashes;
mod hash_exchange;
mod house;
mod metainfo;
mod peer_wire;
mod schedules;
mod verified;
