//! A tracker with an admin server, and a client of it.

pub mod client;
pub mod tracker;
