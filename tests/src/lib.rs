//! What crosses swarmkeep's crates is tested in `tests/`; here is only what the tests have in common.

mod alone;
mod device;
pub mod serve;
pub mod torrents;
mod tracker;
pub mod udp;

pub use alone::{in_a_process_of_its_own, resident_kb};
pub use device::{LoopDevice, device_of, scratch_folder};
pub use tracker::{Tracker, any_port, build, runtime};

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
