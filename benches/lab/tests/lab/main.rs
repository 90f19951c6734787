//! The laboratory: what it shows, measures and writes.

mod content;
mod load_report;
mod store_bench;
