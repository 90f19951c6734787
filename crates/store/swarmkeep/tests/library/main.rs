//! Tests of the library through its public interface.

mod dropped_futures;
mod exports;
mod snapshots;
