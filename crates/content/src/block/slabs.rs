//! The blocks that i-nodes lie in: slots of 13 sizes, one size a block.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    format::{Class, Slot},
    inode::Inode,
};

/// Who lies where.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    blocks: HashMap<u32, Slab>,
    /// The free slots of each size, the lowest first.
    free: BTreeMap<Class, BTreeSet<(u32, u16)>>,
}

#[derive(Debug)]
struct Slab {
    class: Class,
    used: u32,
    slots: Vec<Occupant>,
}

/// What lies in a slot.
#[derive(Debug, Clone)]
enum Occupant {
    Nobody,
    /// It was given away, and nothing is written in it yet.
    Reserved,
    Inode(Arc<Inode>),
}

impl Slabs {
    /// The lowest free slot of a size, if a block has one.
    pub(super) fn take(&mut self, class: Class) -> Option<Slot> {
        let &(block, slot) = self.free.get(&class)?.first()?;
        self.claim(Slot { block, slot, class });
        Some(Slot { block, slot, class })
    }

    /// Makes slots of a block.
    pub(super) fn add(&mut self, block: u32, class: Class, block_shift: u8) {
        let slots = class.slots(block_shift);
        let slab = Slab { class, used: 0, slots: vec![Occupant::Nobody; slots as usize] };
        let old = self.blocks.insert(block, slab);
        assert!(old.is_none(), "block {block} has i-nodes already");
        self.free.entry(class).or_default().extend((0..slots).map(|slot| (block, slot as u16)));
    }

    /// Takes this very slot; `false` if it is not there or taken.
    pub(super) fn claim(&mut self, slot: Slot) -> bool {
        let free = self.free.get_mut(&slot.class).is_some_and(|free| free.remove(&(slot.block, slot.slot)));
        if free {
            let slab = self.blocks.get_mut(&slot.block).expect("free slots are of blocks");
            slab.used += 1;
            slab.slots[usize::from(slot.slot)] = Occupant::Reserved;
        }
        free
    }

    /// The size of the slots in a block, if it has i-nodes.
    pub(super) fn class_of(&self, block: u32) -> Option<Class> {
        self.blocks.get(&block).map(|slab| slab.class)
    }

    /// Puts an i-node into the slot that it was given.
    pub(super) fn occupy(&mut self, inode: &Arc<Inode>) {
        let slab = self.blocks.get_mut(&inode.slot.block).expect("it was given a slot of the block");
        slab.slots[usize::from(inode.slot.slot)] = Occupant::Inode(Arc::clone(inode));
    }

    /// Frees a slot. The block, if it was the last in it: that has no i-nodes any more.
    pub(super) fn release(&mut self, slot: Slot) -> Option<u32> {
        let slab = self.blocks.get_mut(&slot.block).expect("it was given a slot of the block");
        slab.slots[usize::from(slot.slot)] = Occupant::Nobody;
        slab.used -= 1;
        let free = self.free.entry(slot.class).or_default();
        if slab.used > 0 {
            free.insert((slot.block, slot.slot));
            return None;
        }
        let slots = slab.slots.len();
        (0..slots).for_each(|slot_of_block| {
            free.remove(&(slot.block, slot_of_block as u16));
        });
        self.blocks.remove(&slot.block);
        Some(slot.block)
    }

    /// Who lies in a logical sector of a block, and in which of their own it is.
    pub(super) fn at(&self, block: u32, logical: u64) -> Option<(&Arc<Inode>, u64)> {
        let slab = self.blocks.get(&block)?;
        match &slab.slots[(logical >> slab.class.0) as usize] {
            Occupant::Inode(inode) => Some((inode, logical & (slab.class.logical() - 1))),
            Occupant::Nobody | Occupant::Reserved => None,
        }
    }

    /// The blocks that have i-nodes.
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

    #[test]
    fn every_one_of_many_slots_is_taken_once() {
        // More than 64 of a size, where bits in a word would run out.
        let mut slabs = Slabs::default();
        slabs.add(3, Class(1), 22);
        let taken: BTreeSet<_> = std::iter::from_fn(|| slabs.take(Class(1))).collect();
        assert_eq!(taken.len(), 4096);
    }
}
