//! Randomness as the caller provides it.

/// A source of random numbers. Selection is as unpredictable as this is: a public tracker hands in a
/// cryptographic generator (with feature `rand_core`, `RandCore` adapts any), a test a seeded one.
pub trait Random: Send {
    /// 64 uniformly random bits.
    fn next_u64(&mut self) -> u64;
}

impl<R: Random + ?Sized> Random for &mut R {
    fn next_u64(&mut self) -> u64 {
        (**self).next_u64()
    }
}

impl dyn Random + '_ {
    /// A uniform number in `0..bound`; the bias is below `bound` / 2^64.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): for tests, benches and workloads that must repeat.
/// Predictable from one output, so not for a tracker.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that always gives the same numbers for the same `seed`.
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

/// Any generator of `rand_core` as [`Random`].
#[cfg(feature = "rand_core")]
#[derive(Debug, Clone)]
pub struct RandCore<R>(pub R);

#[cfg(feature = "rand_core")]
impl<R: rand_core::Rng + Send> Random for RandCore<R> {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}
