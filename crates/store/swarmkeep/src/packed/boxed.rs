//! Blocks without unsafe code, in place of those of [`arena`](super::arena). The gain of the unsafe code is
//! measured against them, and tools that watch the global allocator see each block by itself.
//! `CONTRIBUTING.md` says how.

use std::ops::{Deref, DerefMut};

use crate::sync::atomic::AtomicU8;

/// Bytes with one owner, from the global allocator.
#[derive(Debug, Default)]
pub(super) struct Block(Box<[u8]>);

const UNIT: usize = 16;

impl Block {
    pub(super) fn with_capacity(at_least: usize) -> Self {
        Self(vec![0; Self::capacity_for(at_least)].into_boxed_slice())
    }

    pub(super) const fn capacity_for(at_least: usize) -> usize {
        at_least.next_multiple_of(UNIT)
    }

    pub(super) const fn capacity(&self) -> usize {
        self.0.len()
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

/// All blocks are from the global allocator.
#[cfg(feature = "global-alloc")]
pub(super) const fn take_global() -> bool {
    true
}

/// Peers with endpoints of `N` bytes and a stamp each.
#[derive(Debug, Default)]
pub(super) struct StampedBlock<const N: usize> {
    endpoints: Box<[[u8; N]]>,
    stamps: Box<[AtomicU8]>,
    len: usize,
}

impl<const N: usize> StampedBlock<N> {
    pub(super) fn with_room(peers: usize) -> Self {
        let room = Self::capacity_for(peers) / (N + 1);
        Self {
            endpoints: vec![[0; N]; room].into(),
            stamps: (0..room).map(|_| AtomicU8::new(0)).collect(),
            len: 0,
        }
    }

    pub(super) const fn capacity_for(peers: usize) -> usize {
        Block::capacity_for(peers * (N + 1))
    }

    pub(super) const fn capacity(&self) -> usize {
        Self::capacity_for(self.room())
    }

    pub(super) const fn room(&self) -> usize {
        self.stamps.len()
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn set_len(&mut self, len: usize) {
        assert!(len <= self.room(), "more peers than a block has room for");
        self.len = len;
    }

    pub(super) fn endpoints(&self) -> &[[u8; N]] {
        &self.endpoints[..self.len]
    }

    pub(super) fn stamps(&self) -> &[AtomicU8] {
        &self.stamps[self.room() - self.len..]
    }

    pub(super) fn parts_mut(&mut self) -> (&mut [[u8; N]], &mut [AtomicU8]) {
        let first = self.room() - self.len;
        (&mut self.endpoints[..self.len], &mut self.stamps[first..])
    }

    pub(super) const fn move_if_sparse(&mut self) {}
}
