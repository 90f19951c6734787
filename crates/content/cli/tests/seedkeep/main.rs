//! The program `seedkeep`, as people use it.

#[path = "../common/mod.rs"]
mod common;
mod create;
mod news;
mod peers;
mod store;
