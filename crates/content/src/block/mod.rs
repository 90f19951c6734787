//! Content on a raw block device or an image of one: the store that survives anything.

mod device;

pub use device::{Barrier, BlockDevice, FileDevice, SECTOR, Sector, SparseDevice, sectors};
