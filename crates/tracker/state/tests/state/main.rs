//! What a folder keeps through crashes, damage and restarts.

mod common;
mod conformance;
mod downloads_crashes;
mod downloads_damage;
mod downloads_kill;
mod downloads_model;
mod durable;
mod snapshot_crashes;
mod state;
