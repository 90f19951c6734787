//! The arguments of benches that print tables of their own.

use std::{env, str::FromStr};

/// The arguments of this bench.
#[derive(Debug)]
pub struct Arguments {
    words: Vec<String>,
    /// Whether this is a test of the bench, and not a measurement: as in Criterion.
    pub test: bool,
}

impl Arguments {
    /// The arguments of this process.
    pub fn of_bench() -> Self {
        let words: Vec<_> = env::args().skip(1).collect();
        let is_given = |flag: &str| words.iter().any(|word| word == flag);
        Self { test: !is_given("--bench") || is_given("--test"), words }
    }

    /// The words after the program, without Cargo's own `--bench`.
    pub fn flags(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str).filter(|word| *word != "--bench")
    }

    /// The word after `flag`.
    pub fn after(&self, flag: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == flag)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// The number after `flag`; without it, `in_test` in a test and `measured` otherwise.
    pub fn number<N: FromStr>(&self, flag: &str, in_test: N, measured: N) -> N {
        let default = if self.test { in_test } else { measured };
        self.after(flag).and_then(|word| word.parse().ok()).unwrap_or(default)
    }
}
