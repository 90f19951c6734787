//! Parts that the tests of the tracker ring share: a tracker in this process or in one of its own, and its
//! clients.

pub mod admin;
mod folder;
pub mod http;
pub mod https;
pub mod net;
pub mod serve;
mod tracker;
pub mod udp;

pub use folder::Folder;
pub use tracker::{Tracker, any_port, build, listening, runtime};

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The code of the page for users of the library, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/use/library.md")]
pub struct Library;
