//! The contents of a folder after crashes, damage and restarts.

#[macro_use]
mod durability;
mod conformance;
mod downloads;
mod downloads_kill;
mod durable;
mod snapshot_crashes;
