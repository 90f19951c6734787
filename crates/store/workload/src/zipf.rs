//! Swarm sizes by Zipf's law with any exponent, without a number in memory for each swarm.

use std::iter;

/// The sizes of many swarms: the n-th largest has 1/n^s of the peers of the largest, at least one, and no
/// more than a bound.
///
/// ```
/// use swarmkeep_workload::Zipf;
///
/// let zipf = Zipf::new(100_000_000, 1_000_000_000, 1.0, u64::MAX);
/// let runs: Vec<_> = zipf.runs().collect();
/// assert_eq!(runs.iter().map(|run| run.swarms).sum::<u64>(), 100_000_000);
/// assert_eq!(runs.iter().map(|run| run.swarms * run.size).sum::<u64>(), 1_000_000_000);
/// assert!(runs.len() < 20_000, "as many as there are different sizes");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Zipf {
    swarms: u64,
    law: Law,
    /// The peers that rounding leaves over; the largest swarm gets them.
    left_over: u64,
}

/// Consecutive swarms of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The rank of the first of them. The largest swarm of all has rank 1.
    pub first: u64,
    /// The number of these swarms.
    pub swarms: u64,
    /// The number of peers in each of them.
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Law {
    largest: f64,
    exponent: f64,
    most: u64,
}

impl Zipf {
    /// Returns the sizes of `swarms` swarms with `peers` peers in total, none of them with more than `most`.
    ///
    /// # Panics
    /// If there are fewer peers than swarms, or more than `most` peers per swarm.
    pub fn new(swarms: u64, peers: u64, exponent: f64, most: u64) -> Self {
        assert!(peers >= swarms, "{peers} peers cannot be in {swarms} swarms: each has one or more");
        assert!(
            most.saturating_mul(swarms) >= peers,
            "{peers} peers cannot be in {swarms} swarms of {most} at most"
        );
        let law = |largest| Law { largest, exponent, most };
        // The number of peers beyond the one that each swarm has at least.
        let surplus = |largest: f64| -> u64 {
            law(largest)
                .runs(swarms)
                .take_while(|run| run.size > 1)
                .map(|run| run.swarms * (run.size - 1))
                .sum()
        };
        // If the bound cuts off the head, the law has to begin far above the number of all peers.
        let (mut low, mut high) = (1.0, peers as f64);
        while high < 1e30 && most < peers && surplus(high) <= peers - swarms {
            (low, high) = (high, high * 16.0);
        }
        // Twice as many steps if `high` is that large, so that few peers are left over.
        for _ in 0..if most < peers { 80 } else { 40 } {
            let middle = f64::midpoint(low, high);
            if surplus(middle) <= peers - swarms { low = middle } else { high = middle }
        }
        Self { swarms, law: law(low), left_over: peers - swarms - surplus(low) }
    }

    /// Returns the swarms of each size, largest first.
    pub fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        let mut runs = self.law.runs(self.swarms);
        let left_over = self.left_over;
        let first = runs.next();
        let largest = first.map(|run| Run { swarms: 1, size: run.size + left_over, ..run });
        let others = first.filter(|run| run.swarms > 1);
        let others = others.map(|run| Run { first: run.first + 1, swarms: run.swarms - 1, ..run });
        largest.into_iter().chain(others).chain(runs)
    }
}

impl Law {
    fn size(&self, rank: u64) -> u64 {
        let size = (self.largest / (rank as f64).powf(self.exponent)).round().max(1.0);
        (size as u64).min(self.most)
    }

    fn runs(self, swarms: u64) -> impl Iterator<Item = Run> {
        let mut first = 1;
        iter::from_fn(move || {
            if first > swarms {
                return None;
            }
            let size = self.size(first);
            let run = Run { first, swarms: self.last_of(size, first, swarms) - first + 1, size };
            first += run.swarms;
            Some(run)
        })
    }

    /// Returns the last rank of this size. The rank `from` has this size.
    fn last_of(&self, size: u64, from: u64, swarms: u64) -> u64 {
        if size == 1 || self.exponent == 0.0 {
            return swarms;
        }
        let about = (self.largest / (size as f64 - 0.5)).powf(self.exponent.recip());
        let mut last = (about as u64).clamp(from, swarms);
        // Rounding may make the result wrong by one or two.
        while last > from && self.size(last) != size {
            last -= 1;
        }
        while last < swarms && self.size(last + 1) == size {
            last += 1;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(zipf: &Zipf) -> Vec<u64> {
        zipf.runs().flat_map(|run| iter::repeat_n(run.size, run.swarms as usize)).collect()
    }

    #[test]
    fn runs_are_what_the_law_says_of_each_rank() {
        for (swarms, peers, exponent, most) in [
            (1, 50, 1.0, u64::MAX),
            (10, 10, 1.0, u64::MAX),
            (1_000, 5_000, 1.0, u64::MAX),
            (100_000, 700_000, 1.0, 7_000),
            (100_000, 500_000, 0.7, u64::MAX),
            (100_000, 500_000, 1.3, 40_000),
            (1_000, 50_000, 0.0, u64::MAX),
        ] {
            let zipf = Zipf::new(swarms, peers, exponent, most);
            let sizes = sizes(&zipf);
            assert_eq!(sizes.len() as u64, swarms);
            assert_eq!(sizes.iter().sum::<u64>(), peers);
            assert!(sizes.is_sorted_by(|larger, smaller| larger >= smaller));
            let of_the_law = (1..=swarms).map(|rank| zipf.law.size(rank));
            assert!(sizes.iter().copied().skip(1).eq(of_the_law.skip(1)));
            assert!(sizes[0] <= most.saturating_add(zipf.left_over));
        }
    }

    #[test]
    fn the_exponent_is_how_fast_sizes_fall() {
        for exponent in [0.7, 1.0, 1.3] {
            let sizes = sizes(&Zipf::new(100_000, 2_000_000, exponent, u64::MAX));
            let factor = sizes[9] as f64 / sizes[99] as f64;
            assert!((factor.log10() - exponent).abs() < 0.01, "{factor} at {exponent}");
        }
    }

    #[test]
    fn a_bound_flattens_the_head() {
        let sizes = sizes(&Zipf::new(100_000, 1_000_000, 1.0, 10_000));
        let at_the_bound = sizes.iter().filter(|&&size| size >= 10_000).count();
        assert!((2..100).contains(&at_the_bound), "{at_the_bound}");
        assert!(sizes[0] < 10_100, "{} with what was left over", sizes[0]);
    }
}
