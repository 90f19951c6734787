//! The program `swarmkeep`, as people and scripts use it.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod import;
mod kills;
mod load;
mod privacy;
mod running;
mod serve;
mod settings;
mod soak;
mod state;
