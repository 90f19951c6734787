//! Random numbers that are the same in each run.

use swarmkeep::{Random as _, SplitMix64};

/// Numbers that depend on a seed alone.
#[derive(Debug)]
pub struct Draw(SplitMix64);

impl Draw {
    /// Numbers of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Puts a list into any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for left in (1..list.len()).rev() {
            list.swap(left, self.below(left as u64 + 1) as usize);
        }
    }

    /// Lengths that add up to `total`, some of them 0.
    pub(crate) fn split(&mut self, total: u64) -> Vec<usize> {
        let mut cuts: Vec<_> = (0..self.below(6)).map(|_| self.below(total + 1)).collect();
        cuts.extend([0, total]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| (cut[1] - cut[0]) as usize).collect()
    }
}
