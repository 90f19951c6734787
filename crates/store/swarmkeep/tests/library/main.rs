//! What is tested from outside of the library.

mod dropped_futures;
mod snapshots;
