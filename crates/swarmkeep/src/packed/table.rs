//! The peers of one family and one role in a large swarm: small buckets under linear hashing.

use std::ops::{Index, IndexMut};

use super::{
    arena::Block,
    clock::{Base, Tick, aged},
    hash::EndpointHash,
    linear,
    prefetch::{prefetch, prefetch_bytes},
};
use crate::CompactV4;

/// Peers with endpoints of `N` bytes, in buckets: by the keyed order of their endpoints, so that a listing in that order is
/// stable, and one at a time, so that no announce ever moves more than one bucket's peers.
///
/// Takes `N` + 1 bytes a peer, and about half a byte in IPv4 and one in IPv6 for what buckets have to spare and for their headers.
#[derive(Debug, Default)]
pub(super) struct Table<const N: usize> {
    buckets: Directory<N>,
    len: u32,
    densest: Densest,
    /// Bytes of all blocks.
    blocks: usize,
}

/// Where a peer stands in a table, until that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    bucket: usize,
    at: usize,
}

/// Numbers for all peers of a table and for some places where there is none.
///
/// Each of 2^`depth` equal parts of the order has `finest` slots, no fewer than peers. A bucket that covers two parts has the
/// slots of both. So a slot drawn uniformly, again and again until there is a peer in it, is that of a uniform peer, and as
/// buckets are about as full as their parts are wide, every second slot has one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slots {
    finest: u64,
    depth: u32,
}

/// Some dozens of peers: endpoints in wire form from the front of a block, one stamp a peer from its back.
#[derive(Debug)]
struct Bucket<const N: usize> {
    block: Block,
    /// With the hash key unknown, no bucket is far from the mean fill.
    len: u16,
    base: Base,
}

/// Buckets by number. In segments, so that no insert moves the headers of them all.
#[derive(Debug, Default)]
struct Directory<const N: usize> {
    segments: Vec<Vec<Bucket<N>>>,
    len: usize,
    bytes: usize,
}

/// How close together the peers of a table stand where they stand closest, in peers for the whole order.
///
/// Removals make the true number smaller. To find out, a hand goes round the buckets and looks at one with every change.
#[derive(Debug, Default)]
struct Densest {
    /// Never less than the true number.
    bound: u64,
    /// The same among the buckets that the hand has passed in this round.
    passed: u64,
    hand: usize,
}

impl Place {
    /// Where the first peer is, if there is any in the first bucket.
    pub(super) const FIRST: Self = Self { bucket: 0, at: 0 };

    /// How many peers of its own bucket this place is behind `other`.
    pub(super) fn behind(self, other: Self) -> Option<usize> {
        if self.bucket == other.bucket { self.at.checked_sub(other.at) } else { None }
    }
}

impl Slots {
    pub(super) const fn len(self) -> u64 {
        self.finest << self.depth
    }
}

impl<const N: usize> Table<N> {
    /// Mean peers a bucket, above which one splits. The header and the rest of the last 16 bytes are shared by so many; a search
    /// goes through up to twice as many. IPv4 with 32, 44 and 64: TODO B a peer. IPv6 with 16, 24 and 32: TODO.
    const SPLIT_ABOVE: usize = if N == CompactV4::LEN { 44 } else { 24 };

    /// The same, below which one merges: far enough away that no peer who comes and goes makes buckets do so.
    const MERGE_BELOW: usize = Self::SPLIT_ABOVE * 3 / 4;

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Memory held behind the table. O(1).
    pub(super) const fn bytes(&self) -> usize {
        self.blocks + self.buckets.bytes
    }

    pub(super) fn find(&self, order: u64, endpoint: &[u8; N]) -> Option<Place> {
        let bucket = linear::reach(order, self.buckets.len()).bucket;
        let at = self.buckets.get(bucket)?.find(endpoint)?;
        Some(Place { bucket, at })
    }

    pub(super) fn refresh(&mut self, place: Place, now: Tick) {
        let bucket = &mut self.buckets[place.bucket];
        bucket.advance(now);
        let stamp = bucket.base.stamp(now);
        *bucket.stamp_mut(place.at) = stamp;
    }

    /// Adds a peer that is not in the table and last announced at `tick`; where it is then. Moves up to a bucket's peers.
    pub(super) fn insert(
        &mut self,
        order: u64,
        endpoint: &[u8; N],
        tick: Tick,
        now: Tick,
        hash: &EndpointHash,
    ) -> Place {
        if self.buckets.len() == 0 {
            self.buckets.push(Bucket::new(Base::new(now)));
        }
        let bucket = linear::reach(order, self.buckets.len()).bucket;
        let at = self.change(bucket, |bucket| {
            bucket.advance(now);
            bucket.push(endpoint, bucket.base.stamp(tick))
        });
        self.len += 1;
        self.note_density(bucket);
        self.densest.advance(&self.buckets);
        if self.len() <= Self::SPLIT_ABOVE * self.buckets.len() {
            return Place { bucket, at };
        }
        self.split(hash);
        self.find(order, endpoint).expect("just inserted")
    }

    /// Takes a peer out. Moves up to two buckets' peers.
    pub(super) fn remove(&mut self, place: Place) {
        self.change(place.bucket, |bucket| {
            bucket.swap_remove(place.at);
            bucket.shrink();
        });
        self.len -= 1;
        self.removed();
    }

    /// The first order behind the bucket of this one; `None` behind the last.
    pub(super) fn end_of(&self, order: u64) -> Option<u64> {
        linear::reach(order, self.buckets.len()).end
    }

    /// The peers whose orders are within `start..end`, which lies in the bucket of `start`.
    pub(super) fn within<'a>(
        &'a self,
        start: u64,
        end: Option<u64>,
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = (u64, &'a [u8; N], Tick)> {
        let bucket = self.buckets.get(linear::reach(start, self.buckets.len()).bucket);
        let peers = bucket.into_iter().flat_map(Bucket::iter);
        let ordered = peers.map(|(endpoint, tick)| (hash.order(endpoint), endpoint, tick));
        ordered.filter(move |(order, ..)| is_within(*order, start, end))
    }

    /// Removes those of them whose last announce was before `oldest`; how many there were, and how many went. Gives back what
    /// the bucket has to spare, and moves it out of a sparse page.
    pub(super) fn expire_within(
        &mut self,
        start: u64,
        end: Option<u64>,
        oldest: Tick,
        hash: &EndpointHash,
    ) -> (usize, usize) {
        if self.len == 0 {
            return (0, 0);
        }
        let reach = linear::reach(start, self.buckets.len());
        let whole = (reach.start, reach.end) == (start, end);
        let (visited, gone) = self.change(reach.bucket, |bucket| {
            let first_alive = bucket.base.first_alive(oldest);
            let counts = match whole {
                true => (bucket.len(), bucket.expire(first_alive, |_| true)),
                false => {
                    let inside = |endpoint: &[u8; N]| is_within(hash.order(endpoint), start, end);
                    let visited = bucket.endpoints().iter().filter(|endpoint| inside(endpoint)).count();
                    (visited, bucket.expire(first_alive, inside))
                }
            };
            bucket.compact();
            counts
        });
        self.len -= gone as u32;
        self.removed();
        (visited, gone)
    }

    /// All peers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        self.buckets.iter().flat_map(Bucket::iter)
    }

    /// The endpoints from a place on, run by run: to the end of its bucket, then bucket after bucket, to the last.
    pub(super) fn runs(&self, from: Place) -> impl Iterator<Item = (Place, &[[u8; N]])> {
        (from.bucket..self.buckets.len()).map(move |bucket| {
            let at = if bucket == from.bucket { from.at } else { 0 };
            (Place { bucket, at }, self.buckets[bucket].endpoints().get(at..).unwrap_or_default())
        })
    }

    /// The slots of now; those of a table without peers are none.
    pub(super) fn slots(&self) -> Slots {
        // The first bucket is always among those that have split already, if there are any.
        let depth = linear::depth(0, self.buckets.len());
        Slots { finest: self.densest.bound.div_ceil(1 << depth), depth }
    }

    /// Where a slot is; there may be no peer.
    pub(super) const fn at_slot(&self, slots: Slots, slot: u64) -> Place {
        let (part, at) = (slot as usize & ((1 << slots.depth) - 1), slot >> slots.depth);
        // Parts are numbered as their buckets would be if all had split.
        match part < self.buckets.len() {
            true => Place { bucket: part, at: at as usize },
            false => Place { bucket: linear::buddy(part), at: (at + slots.finest) as usize },
        }
    }

    /// Whether there is a peer in a place.
    pub(super) fn holds(&self, place: Place) -> bool {
        self.buckets.get(place.bucket).is_some_and(|bucket| place.at < bucket.len())
    }

    /// The peer that has been silent longest, of the first bucket from this order's on that has any.
    pub(super) fn stalest_near(&self, order: u64) -> Option<(Tick, Place)> {
        let buckets = self.buckets.len();
        let first = linear::reach(order, buckets).bucket;
        let bucket = (first..buckets).chain(0..first).find(|&bucket| self.buckets[bucket].len > 0)?;
        let ticks = self.buckets[bucket].iter().map(|(_, tick)| tick);
        let (at, tick) = ticks.enumerate().min_by_key(|(_, tick)| *tick)?;
        Some((tick, Place { bucket, at }))
    }

    // --- Hints. ---

    /// Brings the header of the bucket of an order closer.
    pub(super) fn prefetch_bucket(&self, order: u64) {
        if let Some(bucket) = self.buckets.get(linear::reach(order, self.buckets.len()).bucket) {
            prefetch(bucket);
        }
    }

    /// Brings the endpoints of that bucket closer.
    pub(super) fn prefetch_endpoints(&self, order: u64) {
        if let Some(bucket) = self.buckets.get(linear::reach(order, self.buckets.len()).bucket) {
            prefetch_bytes(bucket.endpoints().as_flattened());
        }
    }

    /// Brings the header of the bucket of a place closer.
    pub(super) fn prefetch_place(&self, place: Place) {
        if let Some(bucket) = self.buckets.get(place.bucket) {
            prefetch(bucket);
        }
    }

    /// Brings `count` endpoints from a place on closer.
    pub(super) fn prefetch_run(&self, from: Place, count: usize) {
        let mut left = count;
        for (_, run) in self.runs(from) {
            prefetch_bytes(run[..left.min(run.len())].as_flattened());
            left = left.saturating_sub(run.len());
            if left == 0 {
                break;
            }
        }
    }

    // --- Buckets. ---

    /// Changes a bucket, and what is counted of it.
    fn change<R>(&mut self, bucket: usize, change: impl FnOnce(&mut Bucket<N>) -> R) -> R {
        let bucket = &mut self.buckets[bucket];
        let before = bucket.block.capacity();
        let result = change(bucket);
        self.blocks = self.blocks + bucket.block.capacity() - before;
        result
    }

    /// A bucket has more peers than before, or a smaller part of the order.
    fn note_density(&mut self, bucket: usize) {
        self.densest.note(self.buckets.density(bucket));
    }

    fn split(&mut self, hash: &EndpointHash) {
        let newest = self.buckets.len();
        let (buddy, bit) = (linear::buddy(newest), linear::splitting_bit(newest));
        let moves = |endpoint: &[u8; N]| hash.order(endpoint).rotate_left(1 + bit) & 1 == 1;
        let upper = self.change(buddy, |bucket| bucket.split(moves));
        self.blocks += upper.block.capacity();
        self.buckets.push(upper);
        self.note_density(buddy);
        self.note_density(newest);
    }

    /// Follows a removal: what the table has become too large for goes.
    fn removed(&mut self) {
        if self.len == 0 {
            *self = Self::default();
            return;
        }
        while self.buckets.len() > 1 && self.len() < Self::MERGE_BELOW * self.buckets.len() {
            let newest = self.buckets.pop().expect("more than one");
            let into = linear::buddy(self.buckets.len());
            self.blocks -= newest.block.capacity();
            self.change(into, |bucket| bucket.append(newest));
            self.note_density(into);
        }
        self.densest.advance(&self.buckets);
    }
}

fn is_within(order: u64, start: u64, end: Option<u64>) -> bool {
    order >= start && end.is_none_or(|end| order < end)
}

impl<const N: usize> Bucket<N> {
    fn new(base: Base) -> Self {
        Self { block: Block::empty(), len: 0, base }
    }

    /// Bytes that so many peers need.
    const fn needed(peers: usize) -> usize {
        peers * (N + 1)
    }

    fn len(&self) -> usize {
        self.len.into()
    }

    fn endpoints(&self) -> &[[u8; N]] {
        self.block[..N * self.len()].as_chunks().0
    }

    /// The stamps, that of the last peer first.
    fn stamps(&self) -> &[u8] {
        &self.block[self.block.capacity() - self.len()..]
    }

    fn stamps_mut(&mut self) -> &mut [u8] {
        let start = self.block.capacity() - self.len();
        &mut self.block[start..]
    }

    fn stamp_mut(&mut self, at: usize) -> &mut u8 {
        let last = self.block.capacity() - 1;
        &mut self.block[last - at]
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        let ticks = self.stamps().iter().rev().map(|&stamp| self.base.tick(stamp));
        self.endpoints().iter().zip(ticks)
    }

    fn find(&self, endpoint: &[u8; N]) -> Option<usize> {
        position(self.endpoints(), endpoint)
    }

    /// Brings the stamps to a base from which `now` can be told.
    fn advance(&mut self, now: Tick) {
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

    /// Adds a peer; where it is then. A full block grows to the next size, not by doubling: a spare byte costs as much as one
    /// of a peer.
    fn push(&mut self, endpoint: &[u8; N], stamp: u8) -> usize {
        let at = self.len();
        if Self::needed(at + 1) > self.block.capacity() {
            self.resize(at + 1);
        }
        self.block[N * at..][..N].copy_from_slice(endpoint);
        *self.stamp_mut(at) = stamp;
        self.len += 1;
        at
    }

    /// Takes a peer out; the last one gets its place.
    fn swap_remove(&mut self, at: usize) {
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

    /// Removes the peers inside whose stamps are below `first_alive`; how many went.
    fn expire(&mut self, first_alive: u16, inside: impl Fn(&[u8; N]) -> bool) -> usize {
        let before = self.len();
        // Mostly nobody has expired, and that is told at once for many stamps.
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

    /// Moves the peers that `moves` names to a new bucket. Both have nothing to spare then.
    fn split(&mut self, moves: impl Fn(&[u8; N]) -> bool) -> Self {
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

    /// Takes in the peers of another bucket.
    fn append(&mut self, mut other: Self) {
        self.advance_to(other.base);
        other.advance_to(self.base);
        self.extend(other.endpoints(), other.stamps());
    }

    /// Adds peers whose stamps, from the last peer's on, are of the same base.
    fn extend(&mut self, endpoints: &[[u8; N]], stamps: &[u8]) {
        let (before, after) = (self.len(), self.len() + endpoints.len());
        if Self::needed(after) > self.block.capacity() {
            self.resize(after);
        }
        self.block[N * before..N * after].copy_from_slice(endpoints.as_flattened());
        self.len = after as u16;
        self.stamps_mut()[..stamps.len()].copy_from_slice(stamps);
    }

    /// Gives spare memory back, but keeps room for an eighth more: peers who come and go must not move a bucket each time.
    fn shrink(&mut self) {
        if Block::capacity_for(Self::needed(self.len() + self.len() / 8 + 1)) < self.block.capacity() {
            self.resize(self.len());
        }
    }

    /// Gives all spare memory back, and moves out of a sparse page.
    fn compact(&mut self) {
        let fits = Block::capacity_for(Self::needed(self.len())) == self.block.capacity();
        if !fits || self.block.is_sparse() {
            self.resize(self.len());
        }
    }

    /// Moves to a block that so many peers just fit in.
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
fn position<const N: usize>(run: &[[u8; N]], endpoint: &[u8; N]) -> Option<usize> {
    match endpoint.first_chunk::<{ CompactV4::LEN }>() {
        Some(endpoint) if N == CompactV4::LEN => position_v4(run.as_flattened(), endpoint),
        _ => run.iter().position(|peer| peer == endpoint),
    }
}

/// The position of an IPv4 endpoint in a run of bytes: eight endpoints at a time, with one branch for all of them.
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
        // Some of these were looked at already.
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
    // The eighth ends with the chunk.
    found |= u32::from(word(eight.len() - 8) >> 16 == wanted) << 7;
    (found != 0).then_some(found.trailing_zeros() as usize)
}

impl<const N: usize> Directory<N> {
    /// Buckets a segment. Up to 16 KiB of headers are moved when one grows, in less than a microsecond.
    const SEGMENT: usize = 1024;

    const fn len(&self) -> usize {
        self.len
    }

    fn get(&self, bucket: usize) -> Option<&Bucket<N>> {
        self.segments.get(bucket / Self::SEGMENT)?.get(bucket % Self::SEGMENT)
    }

    fn iter(&self) -> impl Iterator<Item = &Bucket<N>> {
        self.segments.iter().flatten()
    }

    /// How many peers there would be if they stood as close everywhere as in this bucket.
    fn density(&self, bucket: usize) -> u64 {
        (self[bucket].len() as u64) << linear::depth(bucket, self.len)
    }

    fn push(&mut self, bucket: Bucket<N>) {
        if self.len.is_multiple_of(Self::SEGMENT) {
            let before = self.segments.capacity();
            if before == self.segments.len() {
                self.segments.reserve_exact(1 + before / 4);
            }
            self.count(before, self.segments.capacity(), size_of::<Vec<Bucket<N>>>());
            self.segments.push(Vec::new());
        }
        self.change_last(|last| {
            if last.len() == last.capacity() {
                last.reserve_exact((1 + last.len() / 4).min(Self::SEGMENT - last.len()));
            }
            last.push(bucket);
        });
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Bucket<N>> {
        self.len = self.len.checked_sub(1)?;
        let newest = self.change_last(|last| {
            let newest = last.pop();
            if 2 * last.len() < last.capacity() {
                last.shrink_to(last.len() + last.len() / 4);
            }
            newest
        });
        if self.len.is_multiple_of(Self::SEGMENT) {
            self.segments.pop();
            let before = self.segments.capacity();
            if self.segments.len() < before / 2 {
                self.segments.shrink_to_fit();
            }
            self.count(before, self.segments.capacity(), size_of::<Vec<Bucket<N>>>());
        }
        newest
    }

    fn change_last<R>(&mut self, change: impl FnOnce(&mut Vec<Bucket<N>>) -> R) -> R {
        let last = self.segments.last_mut().expect("there is a bucket");
        let before = last.capacity();
        let result = change(last);
        let after = last.capacity();
        self.count(before, after, size_of::<Bucket<N>>());
        result
    }

    const fn count(&mut self, before: usize, after: usize, size: usize) {
        self.bytes = self.bytes + after * size - before * size;
    }
}

impl<const N: usize> Index<usize> for Directory<N> {
    type Output = Bucket<N>;

    fn index(&self, bucket: usize) -> &Bucket<N> {
        &self.segments[bucket / Self::SEGMENT][bucket % Self::SEGMENT]
    }
}

impl<const N: usize> IndexMut<usize> for Directory<N> {
    fn index_mut(&mut self, bucket: usize) -> &mut Bucket<N> {
        &mut self.segments[bucket / Self::SEGMENT][bucket % Self::SEGMENT]
    }
}

impl Densest {
    fn note(&mut self, density: u64) {
        self.bound = self.bound.max(density);
        self.passed = self.passed.max(density);
    }

    /// Moves the hand by one bucket; behind the last, what it has seen becomes the bound.
    fn advance<const N: usize>(&mut self, buckets: &Directory<N>) {
        if self.hand >= buckets.len() {
            *self = Self { bound: self.passed, passed: 0, hand: 0 };
        }
        self.passed = self.passed.max(buckets.density(self.hand));
        self.hand += 1;
    }
}
