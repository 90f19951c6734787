//! An immutable set: a sorted array, and the position at which each prefix begins.

/// A set of arrays of `N` bytes. If the first bytes of the entries are uniform, as in hashes, a lookup reads
/// one place of the prefix table and a few neighbouring entries. Otherwise it costs O(log n).
///
/// Memory is `N` bytes per entry, and at most 1 more for the table.
#[derive(Clone)]
pub(super) struct SortedSet<const N: usize> {
    entries: Box<[[u8; N]]>,
    /// The first entry of each prefix, and the end of the last prefix.
    starts: Box<[u32]>,
    prefix_bits: u32,
}

/// The fewest entries per prefix if they are uniform; the most are fewer than twice this number. Five
/// entries of 20 bytes lie in two or three cache lines. With fewer, the table would cost more than a byte
/// per entry.
const ENTRIES_PER_PREFIX: usize = 4;

/// The most entries of one prefix for a linear search. It loads their cache lines at once; a binary search
/// waits for each. In 10 million entries, a lookup that waits for the one before takes 190 ns with it, and
/// 490 ns with a binary search alone.
const WALKED: usize = 16;

impl<const N: usize> SortedSet<N> {
    /// The set of `entries`, in any order and possibly repeated. Returns them as the error if a `u32` cannot
    /// count them. Sorts in place.
    pub(super) fn new(mut entries: Vec<[u8; N]>) -> Result<Self, Vec<[u8; N]>> {
        entries.sort_unstable();
        entries.dedup();
        if u32::try_from(entries.len()).is_err() {
            return Err(entries);
        }
        let prefix_bits = (entries.len() / ENTRIES_PER_PREFIX).checked_ilog2().unwrap_or(0);
        let mut starts = vec![0_u32; (1 << prefix_bits) + 1];
        for entry in &entries {
            starts[prefix(entry, prefix_bits) + 1] += 1;
        }
        let mut start = 0;
        for count in &mut starts {
            start += *count;
            *count = start;
        }
        Ok(Self { entries: entries.into_boxed_slice(), starts: starts.into_boxed_slice(), prefix_bits })
    }

    pub(super) fn contains(&self, entry: &[u8; N]) -> bool {
        let prefix = prefix(entry, self.prefix_bits);
        let alike = self.starts[prefix] as usize..self.starts[prefix + 1] as usize;
        let alike = &self.entries[alike];
        if alike.len() <= WALKED { alike.contains(entry) } else { alike.binary_search(entry).is_ok() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.starts)
    }
}

impl<const N: usize> Default for SortedSet<N> {
    fn default() -> Self {
        Self { entries: Box::default(), starts: Box::new([0, 0]), prefix_bits: 0 }
    }
}

/// The first `bits` bits, of 32 at most.
fn prefix<const N: usize>(entry: &[u8; N], bits: u32) -> usize {
    let first = entry.first_chunk().expect("entries are names of 4 bytes or more");
    (u64::from(u32::from_be_bytes(*first)) >> (u32::BITS - bits)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*};
    use swarmkeep::{Random, SplitMix64};

    use super::*;

    fn set_of<const N: usize>(entries: Vec<[u8; N]>) -> SortedSet<N> {
        SortedSet::new(entries).ok().unwrap()
    }

    /// Entries like hashes, entries that an adversary would choose, and the least and greatest of all.
    fn entry() -> impl Strategy<Value = [u8; 20]> {
        prop_oneof![
            any::<[u8; 20]>(),
            any::<[u8; 2]>().prop_map(|last| {
                let mut entry = [7; 20];
                entry[18..].copy_from_slice(&last);
                entry
            }),
            any::<u8>().prop_map(|byte| [byte; 20]),
            Just([0; 20]),
            Just([0xff; 20]),
        ]
    }

    proptest! {
        #[test]
        fn it_has_the_entries_of_a_set_of_the_standard_library(
            entries in vec(entry(), 0..600),
            others in vec(entry(), 0..100),
        ) {
            let model: BTreeSet<_> = entries.iter().copied().collect();
            let set = set_of(entries.clone());
            prop_assert_eq!(set.len(), model.len());
            for entry in entries.iter().chain(&others) {
                prop_assert_eq!(set.contains(entry), model.contains(entry));
            }
        }
    }

    #[test]
    fn an_empty_set_holds_nothing() {
        for set in [SortedSet::<20>::default(), set_of(Vec::new())] {
            assert!(!set.contains(&[0; 20]) && !set.contains(&[0xff; 20]));
            assert_eq!(set.len(), 0);
        }
    }

    #[test]
    fn an_entry_costs_its_bytes_and_one_more_at_most() {
        let mut rng = SplitMix64::new(1);
        for len in [100, 1000, 4095, 4096, 65_537, 200_000] {
            let mut entries = Vec::with_capacity(4 * len);
            entries.resize_with(len, || {
                let mut entry = [0; 20];
                entry.chunks_mut(4).for_each(|part| part.copy_from_slice(&rng.next_u64().to_le_bytes()[..4]));
                entry
            });
            let set = set_of(entries);
            assert!(set.heap_bytes() <= 21 * len + 8, "{len}: {}", set.heap_bytes());
            let longest = set.starts.windows(2).map(|both| both[1] - both[0]).max().unwrap();
            assert!(longest < 32, "{len}: {longest} with one prefix");
        }
    }

    /// Entries with the same prefix are found by binary search. The time of the lookups shows it.
    #[test]
    fn entries_of_one_prefix_take_no_walk() {
        let numbered = |n: u32| {
            let mut entry = [7; 16];
            entry[12..].copy_from_slice(&n.to_be_bytes());
            entry
        };
        let began = std::time::Instant::now();
        let set = set_of((0..2_000_000).map(|n| numbered(2 * n)).collect());
        let made = began.elapsed();
        let began = std::time::Instant::now();
        let found = (0..100_000).filter(|n| set.contains(&numbered(40 * n + n % 2))).count();
        assert_eq!(found, 50_000);
        // A twentieth with binary search, and hundreds of times as long with linear search.
        assert!(began.elapsed() < 4 * made, "{:?} and {made:?}", began.elapsed());
    }
}
