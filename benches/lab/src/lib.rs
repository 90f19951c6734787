//! What is measured or shown over more than one ring: the demo, the benchmark of content stores, results
//! files of a load.

pub mod content;
pub mod demo;
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
