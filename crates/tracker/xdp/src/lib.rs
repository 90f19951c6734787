//! UDP past the kernel's sockets: AF_XDP on Linux, and the program that redirects datagrams to it.
//!
//! The program reads each frame of an interface before the kernel does. Whole UDP datagrams to given
//! addresses go to this process, which reads and writes frames in shared memory. The program can answer the
//! connects of BitTorrent trackers (BEP 15) itself. All other frames pass to the kernel. This crate generates
//! the program's instructions: they need no compiler, no object file and no C library.
//!
//! [`Attached::new`] attaches the program, and returns a [`Queue`] for each queue of the interface. [`Path`]
//! reads and writes the headers of frames. When the [`Attached`] is dropped, or the process ends in any way,
//! the program is detached, and sockets receive again.
#![cfg(target_os = "linux")]

mod assembler;
mod attach;
mod frame;
mod kernel;
mod program;
mod queue;
#[cfg(test)]
mod tests;

pub use attach::{Attached, ConnectKeys, Datagrams, Error, Mode, Settings, listens};
pub use frame::Path;
pub use queue::{FRAME, Frame, Queue, Statistics};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
