//! The peer wire and the world outside: what real clients sent, and what the fuzz target begins with.

mod captured;
mod seeds;

#[path = "../../../../fuzz/fuzz_targets/peer_wire/check.rs"]
mod check;
