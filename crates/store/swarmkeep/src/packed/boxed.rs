//! Blocks without unsafe code, in place of those of [`arena`](super::arena). The gain of the unsafe code is
//! measured against them, and tools that watch the global allocator see each block by itself.
//! `CONTRIBUTING.md` says how.

use std::ops::{Deref, DerefMut};

/// Bytes with one owner, from the global allocator.
#[derive(Debug, Default)]
pub(super) struct Block(Box<[u8]>);

const UNIT: usize = 16;

impl Block {
    pub(super) fn empty() -> Self {
        Self::default()
    }

    pub(super) fn with_capacity(at_least: usize) -> Self {
        Self(vec![0; Self::capacity_for(at_least)].into_boxed_slice())
    }

    pub(super) const fn capacity_for(at_least: usize) -> usize {
        at_least.next_multiple_of(UNIT)
    }

    pub(super) const fn capacity(&self) -> usize {
        self.0.len()
    }

    pub(super) const fn is_sparse(&self) -> bool {
        false
    }

    pub(super) const fn move_if_sparse(&mut self) {}
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
