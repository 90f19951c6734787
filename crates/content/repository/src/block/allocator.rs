//! The free blocks, and the choice of the next one.

/// How blocks are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Allocation {
    /// The next free block after the latest one, around the device: blocks that are written together lie
    /// together.
    #[default]
    Sequential,
    /// The lowest free block for data, the highest for i-nodes: used blocks stay in front, where disks are
    /// fastest.
    Ordered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockUse {
    Data,
    Inodes,
}

/// A bit for each block, in memory only: a block is free if nothing points at it.
#[derive(Debug)]
pub(super) struct Allocator {
    /// 1 where a block is free.
    free: Vec<u64>,
    blocks: u32,
    count: u32,
    policy: Allocation,
    /// Where the search for the next block begins.
    next: u32,
    /// No block below is free, and none from there on.
    bounds: (u32, u32),
}

impl Allocator {
    /// All blocks from `first` on are free.
    pub(super) fn new(first: u32, blocks: u32, policy: Allocation) -> Self {
        let mut free = vec![u64::MAX; blocks.div_ceil(64) as usize];
        if !blocks.is_multiple_of(64) {
            *free.last_mut().expect("a device has blocks") = (1 << (blocks % 64)) - 1;
        }
        let mut allocator =
            Self { free, blocks, count: blocks, policy, next: first, bounds: (first, blocks) };
        (0..first).for_each(|block| assert!(allocator.claim(block), "no block is claimed twice here"));
        allocator
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Where the sequential policy goes on.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Goes on where an earlier life of the store left off.
    pub(super) fn resume(&mut self, next: u32) {
        self.next = if next < self.blocks { next } else { 0 };
    }

    pub(super) fn is_free(&self, block: u32) -> bool {
        self.free.get(block as usize / 64).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Takes this very block; `false` if it is not free.
    pub(super) fn claim(&mut self, block: u32) -> bool {
        let free = self.is_free(block);
        if free {
            self.free[block as usize / 64] &= !(1 << (block % 64));
            self.count -= 1;
        }
        free
    }

    pub(super) fn take(&mut self, purpose: BlockUse) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let block = match (self.policy, purpose) {
            (Allocation::Sequential, _) => {
                let block = self.first_free(self.next).or_else(|| self.first_free(0))?;
                self.next = if block + 1 < self.blocks { block + 1 } else { 0 };
                block
            }
            (Allocation::Ordered, BlockUse::Data) => {
                let block = self.first_free(self.bounds.0)?;
                self.bounds.0 = block + 1;
                block
            }
            (Allocation::Ordered, BlockUse::Inodes) => {
                let block = self.last_free(self.bounds.1)?;
                self.bounds.1 = block;
                block
            }
        };
        assert!(self.claim(block), "it was found to be free");
        Some(block)
    }

    pub(super) fn release(&mut self, block: u32) {
        assert!(!self.is_free(block), "block {block} is given back twice");
        self.free[block as usize / 64] |= 1 << (block % 64);
        self.count += 1;
        self.bounds = (self.bounds.0.min(block), self.bounds.1.max(block + 1));
    }

    fn first_free(&self, from: u32) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut bits = self.free.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.free.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    fn last_free(&self, below: u32) -> Option<u32> {
        let last = below.checked_sub(1)?;
        let mut word = last as usize / 64;
        let mut bits = self.free[word] & (u64::MAX >> (63 - last % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.free[word];
        }
        Some(word as u32 * 64 + 63 - bits.leading_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_goes_around_and_takes_each_block_once() {
        let mut allocator = Allocator::new(2, 130, Allocation::Sequential);
        allocator.resume(100);
        let taken: Vec<_> = std::iter::from_fn(|| allocator.take(BlockUse::Data)).collect();
        assert_eq!(taken, (100..130).chain(2..100).collect::<Vec<_>>());
        allocator.release(50);
        allocator.release(20);
        // Past the last one taken, then around.
        allocator.resume(30);
        assert_eq!((allocator.take(BlockUse::Inodes), allocator.take(BlockUse::Data)), (Some(50), Some(20)));
        assert_eq!(allocator.take(BlockUse::Data), None);
    }

    #[test]
    fn ordered_takes_the_lowest_for_data_and_the_highest_for_inodes() {
        let mut allocator = Allocator::new(2, 130, Allocation::Ordered);
        assert_eq!((allocator.take(BlockUse::Data), allocator.take(BlockUse::Inodes)), (Some(2), Some(129)));
        assert_eq!((allocator.take(BlockUse::Data), allocator.take(BlockUse::Inodes)), (Some(3), Some(128)));
        allocator.release(2);
        allocator.release(129);
        assert_eq!((allocator.take(BlockUse::Data), allocator.take(BlockUse::Inodes)), (Some(2), Some(129)));
        assert_eq!(std::iter::from_fn(|| allocator.take(BlockUse::Inodes)).count(), 124);
        assert_eq!(allocator.count(), 0);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_block_is_not_given_back_twice() {
        Allocator::new(2, 130, Allocation::Sequential).release(60);
    }
}
