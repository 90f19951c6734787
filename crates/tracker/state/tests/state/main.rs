//! The contents of a folder after crashes, damage and restarts.

mod conformance;
mod downloads;
mod downloads_kill;
mod durable;
mod snapshot_crashes;
