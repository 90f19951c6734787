//! The blocks that i-nodes lie in: slots of 13 sizes, one size a block.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    format::{Class, Slot},
    inode::Inode,
};

/// The i-nodes in each block of i-nodes.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    blocks: HashMap<u32, Slab>,
    /// The blocks of each size that have free slots, the lowest first.
    open: BTreeMap<Class, BTreeSet<u32>>,
}

/// A block of i-nodes. Takes a bit a slot, and more only for slots that are used.
#[derive(Debug)]
struct Slab {
    class: Class,
    slots: u32,
    used: u32,
    /// 1 where a slot is free.
    free: Vec<u64>,
    /// By slot, up to the last one that was ever used.
    inodes: Vec<Option<Arc<Inode>>>,
}

impl Slabs {
    /// The lowest free slot of a size, if a block has one.
    pub(super) fn take(&mut self, class: Class) -> Option<Slot> {
        let &block = self.open.get(&class)?.first()?;
        let free = &self.blocks[&block].free;
        let word = free.iter().position(|&word| word != 0).expect("the block has free slots");
        let slot = Slot { block, slot: (word as u32 * 64 + free[word].trailing_zeros()) as u16, class };
        self.claim(slot);
        Some(slot)
    }

    /// Makes slots of a block.
    pub(super) fn add(&mut self, block: u32, class: Class, block_shift: u8) {
        let slots = class.slots(block_shift);
        let mut free = vec![u64::MAX; slots.div_ceil(64) as usize];
        if slots < 64 {
            free[0] = (1 << slots) - 1;
        }
        let slab = Slab { class, slots, used: 0, free, inodes: Vec::new() };
        let old = self.blocks.insert(block, slab);
        assert!(old.is_none(), "block {block} has i-nodes already");
        self.open.entry(class).or_default().insert(block);
    }

    /// Takes this slot; `false` if it does not exist or is in use.
    pub(super) fn claim(&mut self, slot: Slot) -> bool {
        let Some(slab) = self.blocks.get_mut(&slot.block).filter(|slab| slab.class == slot.class) else {
            return false;
        };
        let (word, bit) = (usize::from(slot.slot) / 64, 1 << (slot.slot % 64));
        if slab.free.get(word).is_none_or(|word| word & bit == 0) {
            return false;
        }
        slab.free[word] &= !bit;
        slab.used += 1;
        if slab.used == slab.slots {
            self.open.entry(slot.class).or_default().remove(&slot.block);
        }
        true
    }

    /// The size of the slots in a block, if it has i-nodes.
    pub(super) fn class_of(&self, block: u32) -> Option<Class> {
        self.blocks.get(&block).map(|slab| slab.class)
    }

    /// Puts an i-node into the slot that it was given.
    pub(super) fn occupy(&mut self, inode: &Arc<Inode>) {
        let slab = self.blocks.get_mut(&inode.slot.block).expect("it was given a slot of the block");
        let slot = usize::from(inode.slot.slot);
        if slab.inodes.len() <= slot {
            slab.inodes.resize(slot + 1, None);
        }
        slab.inodes[slot] = Some(Arc::clone(inode));
    }

    /// Frees a slot. The block, if it was the last in it: that has no i-nodes any more.
    pub(super) fn release(&mut self, slot: Slot) -> Option<u32> {
        let slab = self.blocks.get_mut(&slot.block).expect("it was given a slot of the block");
        if let Some(inode) = slab.inodes.get_mut(usize::from(slot.slot)) {
            *inode = None;
        }
        slab.free[usize::from(slot.slot) / 64] |= 1 << (slot.slot % 64);
        slab.used -= 1;
        let open = self.open.entry(slot.class).or_default();
        if slab.used > 0 {
            open.insert(slot.block);
            return None;
        }
        open.remove(&slot.block);
        self.blocks.remove(&slot.block);
        Some(slot.block)
    }

    /// The i-node that has this logical sector of a block, and the number of the sector within the i-node.
    pub(super) fn at(&self, block: u32, logical: u64) -> Option<(&Arc<Inode>, u64)> {
        let slab = self.blocks.get(&block)?;
        let inode = slab.inodes.get((logical >> slab.class.0) as usize)?.as_ref()?;
        Some((inode, logical & (slab.class.logical() - 1)))
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_lowest_first_and_the_last_one_to_go_frees_the_block() {
        let (mut slabs, class) = (Slabs::default(), Class(1));
        slabs.add(9, class, 14);
        slabs.add(5, class, 14);
        let taken: Vec<_> =
            (0..20).map(|_| slabs.take(class).unwrap()).map(|slot| (slot.block, slot.slot)).collect();
        let expected: Vec<_> = (0..16).map(|slot| (5, slot)).chain((0..4).map(|slot| (9, slot))).collect();
        assert_eq!(taken, expected);
        let slot = |block, slot| Slot { block, slot, class };
        // Freeing one frees that one alone.
        assert_eq!(slabs.release(slot(5, 7)), None);
        assert_eq!(slabs.take(class), Some(slot(5, 7)));
        assert_eq!(slabs.take(class), Some(slot(9, 4)));
        assert!(!slabs.claim(slot(5, 0)) && !slabs.claim(slot(6, 0)) && slabs.claim(slot(9, 5)));
        for at in [0, 1, 2, 3, 5] {
            assert_eq!(slabs.release(slot(9, at)), None);
        }
        assert_eq!(slabs.release(slot(9, 4)), Some(9));
        assert_eq!(slabs.take(class), None);
        assert_eq!(slabs.blocks().collect::<Vec<_>>(), [5]);
    }
}
