//! The peer wire: messages of real clients, the seeds of the fuzz target, and what the fuzz targets assert of
//! messages and bytes that are drawn.

pub(crate) mod captured;
mod properties;
mod seeds;

#[path = "../../../../fuzz/fuzz_targets/peer_wire/check.rs"]
mod check;
#[path = "../../../../fuzz/fuzz_targets/peer_messages/check.rs"]
mod messages;
