//! What tests of the content ring have in common: devices, and the torrents of the fixtures.

mod device;
pub mod torrents;

pub use device::{LoopDevice, device_of, image_of_version, scratch_folder};
