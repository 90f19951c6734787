//! Measurements over more than one ring: the benchmark of content stores, and results files of a load.

pub mod content;
pub mod load;
pub mod store_bench;

pub use load::Date;

use std::process;

/// Ends the program for options that are wrong together, as clap does for those wrong by themselves: exit
/// code 2.
fn refuse(message: String) -> ! {
    eprintln!("error: {message}");
    process::exit(2)
}
