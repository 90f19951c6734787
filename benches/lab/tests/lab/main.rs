//! The laboratory: what it shows, measures and writes.

mod content;
mod demo;
mod load_report;
mod store_bench;
