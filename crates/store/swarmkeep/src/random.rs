//! Randomness as the caller provides it.

/// A source of random numbers. The selection of peers is only as unpredictable as its source. A public
/// tracker provides a cryptographic generator (with the feature `rand_core`, `RandCore` adapts any); a test
/// provides a seeded one.
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

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), for tests, benches and workloads that must be repeatable.
/// One output reveals all later ones, so it is not for a tracker.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns a generator whose numbers depend on `seed` alone.
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
