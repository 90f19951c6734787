//! The common parts of the tests of all rings.

mod alone;
#[cfg(feature = "programs")]
pub mod programs;
mod waiting;

pub use alone::{in_a_process_of_its_own, resident_kb, resident_kb_of};
pub use waiting::{A_MINUTE, found, until};

/// A value with a change.
pub fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}
