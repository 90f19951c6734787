//! What tests of every ring have in common.

mod alone;
#[cfg(feature = "programs")]
pub mod programs;

pub use alone::{in_a_process_of_its_own, resident_kb};
