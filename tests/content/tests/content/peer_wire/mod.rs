//! The peer wire: messages of real clients, and the seeds of the fuzz target.

pub(crate) mod captured;
mod seeds;

#[path = "../../../../fuzz/fuzz_targets/peer_wire/check.rs"]
mod check;
