//! Parts that the tests of the content ring share: devices, and the torrents of the fixtures.

mod device;
pub mod torrents;

pub use device::{LoopDevice, device_of, image_of_version, scratch_folder};
