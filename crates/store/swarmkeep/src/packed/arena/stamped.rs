//! Blocks of peers that can be refreshed through a shared reference.

use std::{slice, sync::atomic::AtomicU8};

use super::Block;

/// Peers in one block: endpoints of `N` bytes from its start, one stamp per peer from its end, in reverse
/// order. A stamp is atomic: many threads may refresh peers at once.
#[derive(Debug, Default)]
pub(in crate::packed) struct StampedBlock<const N: usize> {
    block: Block,
    /// A `u16` is enough: from 512 peers on, a newcomer takes the place of another of its bucket.
    len: u16,
}

impl<const N: usize> StampedBlock<N> {
    /// A block without peers, with room for `peers` or more.
    pub(in crate::packed) fn with_room(peers: usize) -> Self {
        Self { block: Block::with_capacity(peers * (N + 1)), len: 0 }
    }

    /// The number of bytes that [`with_room`](Self::with_room) takes.
    pub(in crate::packed) const fn capacity_for(peers: usize) -> usize {
        Block::capacity_for(peers * (N + 1))
    }

    pub(in crate::packed) const fn capacity(&self) -> usize {
        self.block.capacity()
    }

    /// The number of peers for which there is room.
    pub(in crate::packed) const fn room(&self) -> usize {
        self.capacity() / (N + 1)
    }

    pub(in crate::packed) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Changes the number of peers. New ones have any values.
    pub(in crate::packed) fn set_len(&mut self, len: usize) {
        assert!(len <= self.room(), "more peers than a block has room for");
        self.len = len as u16;
    }

    pub(in crate::packed) const fn endpoints(&self) -> &[[u8; N]] {
        // SAFETY: peers never exceed the room, so the stamps lie behind these bytes, which only `parts_mut`
        // lends to be written.
        unsafe { slice::from_raw_parts(self.block.bytes.as_ptr().cast(), self.len()) }
    }

    /// The stamps, the last peer's first.
    pub(in crate::packed) const fn stamps(&self) -> &[AtomicU8] {
        // SAFETY: as many bytes at the end of the block, and no shared reference to plain bytes covers them.
        unsafe { slice::from_raw_parts(self.first_stamp(), self.len()) }
    }

    /// The endpoints and the stamps.
    pub(in crate::packed) const fn parts_mut(&mut self) -> (&mut [[u8; N]], &mut [AtomicU8]) {
        let (endpoints, stamps, len) = (self.block.bytes.as_ptr().cast(), self.first_stamp(), self.len());
        // SAFETY: they do not overlap, and the block is borrowed mutably.
        unsafe { (slice::from_raw_parts_mut(endpoints, len), slice::from_raw_parts_mut(stamps, len)) }
    }

    const fn first_stamp(&self) -> *mut AtomicU8 {
        // SAFETY: a block has a byte or more per peer.
        unsafe { self.block.bytes.as_ptr().add(self.capacity() - self.len()).cast() }
    }

    /// See [`Block::move_if_sparse`].
    pub(in crate::packed) fn move_if_sparse(&mut self) {
        self.block.move_if_sparse();
    }
}
