//! Apparatus that tests and benches of several packages use.

pub mod content;
