//! Tests of the library through its public interface.

mod dropped_futures;
mod exports;
#[cfg(feature = "tokio")]
mod giving_way;
mod snapshots;
