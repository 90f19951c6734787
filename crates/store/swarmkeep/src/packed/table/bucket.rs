//! A bucket of a table: some dozens of peers in one block.

use std::mem;

use crate::{
    packed::{
        arena::StampedBlock,
        clock::{Base, Tick, aged},
    },
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

#[derive(Debug)]
pub(super) struct Bucket<const N: usize> {
    pub(super) block: StampedBlock<N>,
    pub(super) base: Base,
}

impl<const N: usize> Bucket<N> {
    pub(super) fn new(base: Base) -> Self {
        Self { block: StampedBlock::default(), base }
    }

    pub(super) fn len(&self) -> usize {
        self.block.len()
    }

    pub(super) fn endpoints(&self) -> &[[u8; N]] {
        self.block.endpoints()
    }

    fn stamp(&self, at: usize) -> &AtomicU8 {
        &self.block.stamps()[self.len() - 1 - at]
    }

    pub(super) fn tick(&self, at: usize) -> Tick {
        self.base.tick(self.stamp(at).load(Relaxed))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        let ticks = self.block.stamps().iter().rev().map(|stamp| self.base.tick(stamp.load(Relaxed)));
        self.endpoints().iter().zip(ticks)
    }

    pub(super) fn find(&self, endpoint: &[u8; N]) -> Option<usize> {
        self.endpoints().iter().position(|peer| peer == endpoint)
    }

    /// Notes that a peer has announced at `now`. The base must [fit](Base::fits).
    pub(super) fn refresh(&self, at: usize, now: Tick) {
        self.stamp(at).store(self.base.stamp(now), Relaxed);
    }

    /// Rebases the stamps so that `now` can be encoded.
    pub(super) fn advance(&mut self, now: Tick) {
        let by = self.base.advance(now);
        self.age(by);
    }

    fn advance_to(&mut self, later: Base) {
        let by = self.base.advance_to(later);
        self.age(by);
    }

    fn age(&mut self, by: u32) {
        if by > 0 {
            self.stamps_mut().for_each(|stamp| *stamp = aged(*stamp, by));
        }
    }

    fn stamps_mut(&mut self) -> impl ExactSizeIterator<Item = &mut u8> {
        self.block.parts_mut().1.iter_mut().map(AtomicU8::get_mut)
    }

    /// Adds a peer. Returns its index. A full block grows to the next size, not by doubling: a spare byte
    /// costs as much as a byte of a peer.
    pub(super) fn push(&mut self, endpoint: &[u8; N], stamp: u8) -> usize {
        let at = self.len();
        if at == self.block.room() {
            self.resize(at + 1);
        }
        self.block.set_len(at + 1);
        let (endpoints, stamps) = self.block.parts_mut();
        endpoints[at] = *endpoint;
        *stamps[0].get_mut() = stamp;
        at
    }

    /// Removes a peer. The last peer takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) {
        let last = self.len() - 1;
        self.swap(at, last);
        self.block.set_len(last);
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (endpoints, stamps) = self.block.parts_mut();
        endpoints.swap(a, b);
        stamps.swap(endpoints.len() - 1 - a, endpoints.len() - 1 - b);
    }

    /// Removes the peers with stamps below `first_alive` for which `inside` is true. Returns the number
    /// removed.
    pub(super) fn expire(&mut self, first_alive: u16, inside: impl Fn(&[u8; N]) -> bool) -> usize {
        let before = self.len();
        // Usually no peer has expired. This fold checks many stamps at once.
        let expired = |stamp: u8| u16::from(stamp) < first_alive;
        if self.stamps_mut().fold(false, |any, stamp| any | expired(*stamp)) {
            for at in (0..before).rev() {
                if expired(self.stamp(at).load(Relaxed)) && inside(&self.endpoints()[at]) {
                    self.swap_remove(at);
                }
            }
        }
        before - self.len()
    }

    /// Moves the peers for which `moves` is true to a new bucket. Neither bucket has spare memory afterwards.
    pub(super) fn split(&mut self, moves: impl Fn(&[u8; N]) -> bool) -> Self {
        let (mut stay, mut end) = (0, self.len());
        while stay < end {
            if moves(&self.endpoints()[stay]) {
                end -= 1;
                self.swap(stay, end);
            } else {
                stay += 1;
            }
        }
        let mut upper = Self::new(self.base);
        upper.take_behind(stay, &mut self.block);
        self.compact();
        upper
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.advance_to(other.base);
        other.advance_to(self.base);
        self.take_behind(0, &mut other.block);
    }

    /// Takes over the peers from an index on. Their stamps must have the base of this bucket.
    fn take_behind(&mut self, first: usize, from: &mut StampedBlock<N>) {
        let (before, more) = (self.len(), from.len() - first);
        if before + more > self.block.room() {
            self.resize(before + more);
        }
        self.block.set_len(before + more);
        let (endpoints, stamps) = self.block.parts_mut();
        let (taken, taken_stamps) = from.parts_mut();
        endpoints[before..].copy_from_slice(&taken[first..]);
        stamps[..more].swap_with_slice(&mut taken_stamps[..more]);
        from.set_len(first);
    }

    /// Returns spare memory, but keeps room for an eighth more: peers that come and go must not move a bucket
    /// each time.
    pub(super) fn shrink(&mut self) {
        if StampedBlock::<N>::capacity_for(self.len() + self.len() / 8 + 1) < self.block.capacity() {
            self.resize(self.len());
        }
    }

    /// Returns all spare memory, and moves out of a sparse page.
    pub(super) fn compact(&mut self) {
        if StampedBlock::<N>::capacity_for(self.len()) < self.block.capacity() {
            self.resize(self.len());
        }
        self.block.move_if_sparse();
    }

    /// Moves to the smallest block with room for `peers` peers.
    fn resize(&mut self, peers: usize) {
        let mut old = mem::replace(&mut self.block, StampedBlock::with_room(peers));
        self.take_behind(0, &mut old);
    }
}
