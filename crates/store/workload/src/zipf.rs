//! Swarm sizes by Zipf's law, without a number in memory for each swarm of one peer.

use std::{iter, mem};

/// Returns the first peer number of each swarm of more than one peer, largest swarm first, and then of the
/// first swarm of one peer. The n-th largest swarm has 1/n of the peers of the largest, and at least one.
///
/// # Panics
/// If there are fewer peers than swarms.
pub(crate) fn starts(swarms: u64, peers: u64) -> Vec<u64> {
    assert!(peers >= swarms, "{peers} peers cannot be in {swarms} swarms: each has one or more");
    // The number of peers beyond the one that each swarm has at least.
    let surplus = |largest| large(largest, swarms).map(|(count, size)| count * (size - 1)).sum::<u64>();
    let (mut low, mut high) = (1.0, peers as f64);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if surplus(middle) <= peers - swarms { low = middle } else { high = middle }
    }
    // The peers that rounding leaves over; the largest swarm gets them.
    let mut left_over = peers - swarms - surplus(low);
    let (mut starts, mut end) = (vec![0], 0);
    for (count, size) in large(low, swarms) {
        for _ in 0..count {
            end += size + mem::take(&mut left_over);
            starts.push(end);
        }
    }
    starts
}

/// Returns the sizes above one, and the number of swarms of each.
fn large(largest: f64, swarms: u64) -> impl Iterator<Item = (u64, u64)> {
    let size = move |rank: u64| (largest / rank as f64).round() as u64;
    let mut first = 1;
    iter::from_fn(move || {
        let here = size(first);
        if first > swarms || here <= 1 {
            return None;
        }
        let mut last = ((largest / (here as f64 - 0.5)) as u64).clamp(first, swarms);
        // Rounding may make it wrong by one or two.
        while last > first && size(last) != here {
            last -= 1;
        }
        while last < swarms && size(last + 1) == here {
            last += 1;
        }
        let count = last - first + 1;
        first = last + 1;
        Some((count, here))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_all_ranks_follow_the_law() {
        for (swarms, peers) in [(1, 50), (10, 10), (1_000, 5_000), (100_000, 700_000)] {
            let starts = starts(swarms, peers);
            let sizes: Vec<_> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let ones = swarms - sizes.len() as u64;
            assert_eq!(starts[sizes.len()] + ones, peers);
            assert!(sizes.is_sorted_by(|larger, smaller| larger >= smaller));
            for (rank, size) in (1..).zip(&sizes) {
                let of_the_law = sizes[0] as f64 / f64::from(rank);
                assert!((*size as f64 - of_the_law).abs() < 1.0 + of_the_law / 100.0, "{size} at {rank}");
            }
        }
    }
}
