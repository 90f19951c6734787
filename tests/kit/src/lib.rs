//! Apparatus that tests and benches of several packages use.

pub mod allocations;
#[cfg(feature = "content")]
pub mod content;
#[cfg(feature = "content")]
pub mod device;
pub mod disk;
#[cfg(feature = "content")]
pub mod draw;
#[cfg(feature = "state")]
pub mod folder;
