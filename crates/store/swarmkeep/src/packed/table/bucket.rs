//! A bucket of a table: some dozens of peers in one block.

use crate::{
    CompactV4,
    packed::{
        arena::Block,
        clock::{Base, Tick, aged},
    },
};

/// Some dozens of peers: endpoints in wire form from the start of a block, one stamp per peer from its end.
#[derive(Debug)]
pub(super) struct Bucket<const N: usize> {
    pub(super) block: Block,
    /// A `u16` is enough: a remote peer that does not know the hash key cannot fill a bucket far beyond the
    /// mean.
    pub(super) len: u16,
    pub(super) base: Base,
}

impl<const N: usize> Bucket<N> {
    pub(super) fn new(base: Base) -> Self {
        Self { block: Block::empty(), len: 0, base }
    }

    /// The bytes that `peers` peers need.
    const fn needed(peers: usize) -> usize {
        peers * (N + 1)
    }

    pub(super) fn len(&self) -> usize {
        self.len.into()
    }

    pub(super) fn endpoints(&self) -> &[[u8; N]] {
        self.block[..N * self.len()].as_chunks().0
    }

    /// The stamps, in reverse order of the peers.
    fn stamps(&self) -> &[u8] {
        &self.block[self.block.capacity() - self.len()..]
    }

    fn stamps_mut(&mut self) -> &mut [u8] {
        let start = self.block.capacity() - self.len();
        &mut self.block[start..]
    }

    pub(super) fn stamp_mut(&mut self, at: usize) -> &mut u8 {
        let last = self.block.capacity() - 1;
        &mut self.block[last - at]
    }

    pub(super) fn tick(&self, at: usize) -> Tick {
        self.base.tick(self.block[self.block.capacity() - 1 - at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        let ticks = self.stamps().iter().rev().map(|&stamp| self.base.tick(stamp));
        self.endpoints().iter().zip(ticks)
    }

    pub(super) fn find(&self, endpoint: &[u8; N]) -> Option<usize> {
        position(self.endpoints(), endpoint)
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
            self.stamps_mut().iter_mut().for_each(|stamp| *stamp = aged(*stamp, by));
        }
    }

    /// Adds a peer. Returns its index. A full block grows to the next size, not by doubling: a spare byte
    /// costs as much as a byte of a peer.
    pub(super) fn push(&mut self, endpoint: &[u8; N], stamp: u8) -> usize {
        let at = self.len();
        if Self::needed(at + 1) > self.block.capacity() {
            self.resize(at + 1);
        }
        self.block[N * at..][..N].copy_from_slice(endpoint);
        *self.stamp_mut(at) = stamp;
        self.len += 1;
        at
    }

    /// Removes a peer. The last peer takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) {
        let last = self.len() - 1;
        self.block.copy_within(N * last..N * (last + 1), N * at);
        *self.stamp_mut(at) = *self.stamp_mut(last);
        self.len -= 1;
    }

    fn swap(&mut self, a: usize, b: usize) {
        let len = self.len();
        let (endpoints, _) = self.block.as_chunks_mut::<N>();
        endpoints.swap(a, b);
        self.stamps_mut().swap(len - 1 - a, len - 1 - b);
    }

    /// Removes the peers whose stamps are below `first_alive` and for which `inside` is true. Returns the
    /// number removed.
    pub(super) fn expire(&mut self, first_alive: u16, inside: impl Fn(&[u8; N]) -> bool) -> usize {
        let before = self.len();
        // Usually no peer has expired. This fold checks many stamps at once.
        let expired = |stamp: u8| u16::from(stamp) < first_alive;
        if self.stamps().iter().fold(false, |any, &stamp| any | expired(stamp)) {
            for at in (0..before).rev() {
                if expired(*self.stamp_mut(at)) && inside(&self.endpoints()[at]) {
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
        upper.extend(&self.endpoints()[stay..], &self.stamps()[..self.len() - stay]);
        self.len = stay as u16;
        self.compact();
        upper
    }

    /// Adds the peers of another bucket.
    pub(super) fn append(&mut self, mut other: Self) {
        self.advance_to(other.base);
        other.advance_to(self.base);
        self.extend(other.endpoints(), other.stamps());
    }

    /// Adds peers whose stamps, in reverse order, have the base of this bucket.
    fn extend(&mut self, endpoints: &[[u8; N]], stamps: &[u8]) {
        let (before, after) = (self.len(), self.len() + endpoints.len());
        if Self::needed(after) > self.block.capacity() {
            self.resize(after);
        }
        self.block[N * before..N * after].copy_from_slice(endpoints.as_flattened());
        self.len = after as u16;
        self.stamps_mut()[..stamps.len()].copy_from_slice(stamps);
    }

    /// Returns spare memory, but keeps room for an eighth more: peers that come and go must not move a bucket
    /// each time.
    pub(super) fn shrink(&mut self) {
        if Block::capacity_for(Self::needed(self.len() + self.len() / 8 + 1)) < self.block.capacity() {
            self.resize(self.len());
        }
    }

    /// Returns all spare memory, and moves out of a sparse page.
    pub(super) fn compact(&mut self) {
        let fits = Block::capacity_for(Self::needed(self.len())) == self.block.capacity();
        if !fits || self.block.is_sparse() {
            self.resize(self.len());
        }
    }

    /// Moves to the smallest block with room for `peers` peers.
    fn resize(&mut self, peers: usize) {
        let mut block = if peers == 0 { Block::empty() } else { Block::with_capacity(Self::needed(peers)) };
        let endpoints = N * self.len();
        block[..endpoints].copy_from_slice(&self.block[..endpoints]);
        let stamps = block.capacity() - self.len();
        block[stamps..].copy_from_slice(self.stamps());
        self.block = block;
    }
}

/// The position of an endpoint in a run.
pub(super) fn position<const N: usize>(run: &[[u8; N]], endpoint: &[u8; N]) -> Option<usize> {
    match endpoint.first_chunk::<{ CompactV4::LEN }>() {
        Some(endpoint) if N == CompactV4::LEN => position_v4(run.as_flattened(), endpoint),
        _ => run.iter().position(|peer| peer == endpoint),
    }
}

/// The position of an IPv4 endpoint in a run of bytes: eight endpoints at a time, with one branch for all of
/// them.
fn position_v4(run: &[u8], endpoint: &[u8; CompactV4::LEN]) -> Option<usize> {
    const EIGHT: usize = 8 * CompactV4::LEN;
    let &[a, b, c, d, e, f] = endpoint;
    let wanted = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    let (eights, rest) = run.as_chunks::<EIGHT>();
    for (nth, eight) in eights.iter().enumerate() {
        if let Some(at) = position_of_eight(eight, wanted) {
            return Some(8 * nth + at);
        }
    }
    match run.last_chunk::<EIGHT>() {
        // Some of these were compared already.
        Some(last) => position_of_eight(last, wanted).map(|at| run.len() / CompactV4::LEN - 8 + at),
        None => rest.as_chunks().0.iter().position(|peer| peer == endpoint),
    }
}

fn position_of_eight(eight: &[u8; 8 * CompactV4::LEN], wanted: u64) -> Option<usize> {
    let word = |at: usize| u64::from_le_bytes(*eight[at..].first_chunk().expect("within the eight"));
    let mut found = 0;
    for nth in 0..7 {
        found |= u32::from(word(CompactV4::LEN * nth) << 16 == wanted << 16) << nth;
    }
    // The eighth endpoint ends with the chunk.
    found |= u32::from(word(eight.len() - 8) >> 16 == wanted) << 7;
    (found != 0).then_some(found.trailing_zeros() as usize)
}
