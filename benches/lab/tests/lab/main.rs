//! The laboratory: what it measures and writes.

mod load_report;
mod store_bench;
