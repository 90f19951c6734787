//! What crosses swarmkeep's crates is tested in `tests/`; here is only what the tests have in common.

/// The README's own code, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
