//! Randomness as the caller provides it.

use std::{fmt, io};

use crate::ConfigError;

/// A source of random numbers. The selection of peers is only as unpredictable as its source. A public
/// tracker provides [`OsRandom`] or a cryptographic generator (with the feature `rand_core`, `RandCore`
/// adapts any); a test provides a seeded one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source of random numbers for a store",
    label = "does not implement `swarmkeep::Random`",
    note = "without another crate: `let mut rng = swarmkeep::OsRandom::new()?;`",
    note = "with a generator of `rand` and the feature `rand_core`: `let mut rng = swarmkeep::RandCore(rng);`"
)]
pub trait Random: Send {
    /// Returns 64 uniformly random bits.
    fn next_u64(&mut self) -> u64;
}

impl<R: Random + ?Sized> Random for &mut R {
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

impl dyn Random + '_ {
    /// Returns a uniform number in `0..bound`. The bias is below `bound` / 2^64.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }
}

/// The random numbers of the operating system, fetched 128 at a time. Unpredictable, so fit for a public
/// tracker. A number takes 26 ns on Linux 6.18; a generator of `rand` is faster.
///
/// ```
/// use swarmkeep::{OsRandom, Random as _};
///
/// let mut rng = OsRandom::new()?;
/// assert_ne!(rng.next_u64(), rng.next_u64());
/// # Ok::<(), swarmkeep::ConfigError>(())
/// ```
pub struct OsRandom {
    words: [[u8; 8]; Self::WORDS],
    used: usize,
}

impl OsRandom {
    const WORDS: usize = 128;

    /// Fetches the first numbers.
    ///
    /// # Errors
    /// [`ConfigError::NoEntropy`] if the operating system provides no randomness.
    pub fn new() -> Result<Self, ConfigError> {
        let mut random = Self { words: [[0; 8]; Self::WORDS], used: 0 };
        random.fetch().map_err(ConfigError::NoEntropy)?;
        Ok(random)
    }

    fn fetch(&mut self) -> io::Result<()> {
        self.used = 0;
        getrandom::fill(self.words.as_flattened_mut()).map_err(io::Error::other)
    }
}

impl Random for OsRandom {
    /// # Panics
    /// If the operating system, which had randomness before, has none any more.
    fn next_u64(&mut self) -> u64 {
        if self.used == Self::WORDS {
            self.fetch().expect("the operating system had randomness before");
        }
        let word = u64::from_le_bytes(self.words[self.used]);
        self.used += 1;
        word
    }
}

impl fmt::Debug for OsRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OsRandom")
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), for tests, benches and workloads that must be repeatable.
/// One output reveals all later ones, so it is not for a tracker.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns a generator of numbers that depend on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Random for SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Adapts any generator of `rand_core` to [`Random`].
#[cfg(feature = "rand_core")]
#[derive(Debug, Clone)]
pub struct RandCore<R>(pub R);

#[cfg(feature = "rand_core")]
impl<R: rand_core::Rng + Send> Random for RandCore<R> {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_of_the_system_differ_also_across_fetches_and_are_not_shown() {
        let (mut one, mut other) = (OsRandom::new().unwrap(), OsRandom::new().unwrap());
        let drawn: HashSet<_> = (0..1000).flat_map(|_| [one.next_u64(), other.next_u64()]).collect();
        assert_eq!(drawn.len(), 2000);
        assert_eq!(format!("{one:?}"), "OsRandom");
    }
}
