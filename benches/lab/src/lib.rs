//! Measurements over more than one ring: the benchmark of content stores, and results files of a load.

mod arguments;
pub mod content;
pub mod load;
pub mod store_bench;
mod tracker;

pub use arguments::Arguments;
pub use tracker::Tracker;

use std::process;

/// The median of a number of some samples; not a number without samples.
pub fn median<S>(samples: &[S], number: impl Fn(&S) -> f64) -> f64 {
    let mut numbers: Vec<_> = samples.iter().map(number).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Ends the program for options that are wrong together, as clap does for those wrong by themselves: exit
/// code 2.
fn refuse(message: String) -> ! {
    eprintln!("error: {message}");
    process::exit(2)
}
