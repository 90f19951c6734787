//! The laboratory: its measurements and files.

mod load_report;
mod store_bench;
