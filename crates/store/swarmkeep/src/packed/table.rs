//! The peers of one family and one role in a large swarm: small buckets under linear hashing.

use std::ops::{Index, IndexMut};

use super::{
    arena::Block,
    clock::{Base, Tick, aged},
    hash::EndpointHash,
    linear,
    prefetch::{prefetch, prefetch_lines},
};
use crate::{CompactV4, announce::address};

/// Peers with endpoints of `N` bytes, in buckets: by the keyed order of their endpoints, so that a listing in
/// that order is stable, and one at a time, so that no announce ever moves more than one bucket's peers.
///
/// Takes `N` + 1 bytes a peer, and about half a byte in IPv4 and one in IPv6 for what buckets have to spare
/// and for their headers.
#[derive(Debug, Default)]
pub(super) struct Table<const N: usize> {
    buckets: Directory<N>,
    densest: Densest,
    /// Bytes of all that lies behind the table.
    bytes: usize,
    len: u32,
}

/// Where a peer stands in a table, until that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    bucket: u32,
    at: u32,
}

/// Numbers for all peers of a table and for some places where there is none.
///
/// Each of 2^`depth` equal parts of the order has `finest` slots, no fewer than peers. A bucket that covers
/// two parts has the slots of both. So a slot drawn uniformly, again and again until there is a peer in it,
/// is that of a uniform peer, and as buckets are about as full as their parts are wide, every second slot has
/// one.
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

/// Buckets by number. In segments, so that no insert moves the headers of them all; most tables have only the
/// first.
#[derive(Debug, Default)]
struct Directory<const N: usize> {
    first: Vec<Bucket<N>>,
    others: Vec<Vec<Bucket<N>>>,
}

/// How close together the peers of a table stand where they stand closest, in peers for the whole order.
///
/// Removals make the true number smaller. To find out, a hand goes round the buckets and looks at one with
/// every change.
#[derive(Debug, Default)]
struct Densest {
    /// Never less than the true number.
    bound: u64,
    /// The same among the buckets that the hand has passed in this round.
    passed: u64,
    hand: u32,
}

impl Place {
    /// Where the first peer is, if there is any in the first bucket.
    pub(super) const FIRST: Self = Self::new(0, 0);

    const fn new(bucket: usize, at: usize) -> Self {
        Self { bucket: bucket as u32, at: at as u32 }
    }

    const fn bucket(self) -> usize {
        self.bucket as usize
    }

    const fn at(self) -> usize {
        self.at as usize
    }

    /// How many peers of its own bucket this place is behind `other`.
    pub(super) fn behind(self, other: Self) -> Option<usize> {
        if self.bucket == other.bucket { self.at().checked_sub(other.at()) } else { None }
    }
}

impl Slots {
    pub(super) const fn len(self) -> u64 {
        self.finest << self.depth
    }
}

impl<const N: usize> Table<N> {
    /// Mean peers a bucket, above which one splits: they share a header and half of the last 16 bytes, and a
    /// search goes through up to twice as many. At 2 million peers, 32 / 44 / 64 of IPv4 take 7.73 / 7.53 /
    /// 7.37 B a peer and are found in 21 / 23 / 26 ns when warm; 16 / 24 / 32 of IPv6 take 20.5 / 20.0 / 19.7
    /// B and 16 / 17 / 25 ns.
    const SPLIT_ABOVE: usize = if N == CompactV4::LEN { 44 } else { 24 };

    /// The same, below which one merges: far enough below that a peer that comes and goes does not split and
    /// merge buckets.
    const MERGE_BELOW: usize = Self::SPLIT_ABOVE * 3 / 4;

    /// The most peers that a merge may bring together. While a sweep has emptied some buckets and not yet
    /// come to others, those would be merged without end, and then visited in one hold.
    const MOST_MERGED: usize = 8 * Self::SPLIT_ABOVE;

    /// Merges that follow one removal: more than it takes to keep up, few enough for one hold when some have
    /// waited.
    const MOST_MERGES: usize = 8;

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Memory held behind the table. O(1).
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn find(&self, order: u64, endpoint: &[u8; N]) -> Option<Place> {
        let bucket = self.bucket_of(order);
        let at = self.buckets.get(bucket)?.find(endpoint)?;
        Some(Place::new(bucket, at))
    }

    pub(super) fn refresh(&mut self, place: Place, now: Tick) {
        let bucket = &mut self.buckets[place.bucket()];
        bucket.advance(now);
        *bucket.stamp_mut(place.at()) = bucket.base.stamp(now);
    }

    /// Adds a peer that is not in the table and last announced at `tick`; where it is then. Moves up to a
    /// bucket's peers.
    pub(super) fn insert(
        &mut self,
        order: u64,
        endpoint: &[u8; N],
        tick: Tick,
        now: Tick,
        hash: &EndpointHash,
    ) -> Place {
        let place = self.put(order, endpoint, tick, now);
        if self.len() <= Self::SPLIT_ABOVE * self.buckets.len() {
            return place;
        }
        self.split(hash);
        self.find(order, endpoint).expect("just inserted")
    }

    /// The same without a split: takes no more bytes than the bucket does to grow by one peer.
    pub(super) fn put(&mut self, order: u64, endpoint: &[u8; N], tick: Tick, now: Tick) -> Place {
        if self.buckets.len() == 0 {
            self.push_bucket(Bucket::new(Base::new(now)));
        }
        let bucket = self.bucket_of(order);
        let at = self.change(bucket, |bucket| {
            bucket.advance(now);
            bucket.push(endpoint, bucket.base.stamp(tick))
        });
        self.len += 1;
        self.note_density(bucket);
        self.densest.advance(&self.buckets);
        // Buckets that grow leave gaps: one more moves out of a sparse page for each peer that comes.
        self.buckets[self.densest.hand as usize - 1].block.move_if_sparse();
        Place::new(bucket, at)
    }

    /// Takes a peer out. Moves up to two buckets' peers.
    pub(super) fn remove(&mut self, place: Place) {
        self.change(place.bucket(), |bucket| {
            bucket.swap_remove(place.at());
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
        let bucket = self.buckets.get(self.bucket_of(start));
        let peers = bucket.into_iter().flat_map(Bucket::iter);
        let ordered = peers.map(|(endpoint, tick)| (hash.order(endpoint), endpoint, tick));
        ordered.filter(move |(order, ..)| is_within(*order, start, end))
    }

    /// The same without their places in it, which those of a whole bucket need not be asked for.
    pub(super) fn all_within<'a>(
        &'a self,
        start: u64,
        end: Option<u64>,
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = (&'a [u8; N], Tick)> {
        let reach = linear::reach(start, self.buckets.len());
        let is_whole = (reach.start, reach.end) == (start, end);
        let peers = self.buckets.get(reach.bucket).into_iter().flat_map(Bucket::iter);
        peers.filter(move |(endpoint, _)| is_whole || is_within(hash.order(endpoint), start, end))
    }

    /// Removes those of them whose last announce was before `oldest`; how many there were, and how many went.
    /// Gives back what the bucket has to spare, and moves it out of a sparse page.
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

    /// The endpoints from a place on, run by run: to the end of its bucket, then bucket after bucket, to the
    /// last.
    pub(super) fn runs(&self, from: Place) -> impl Iterator<Item = (Place, &[[u8; N]])> {
        (from.bucket()..self.buckets.len()).map(move |bucket| {
            let at = if bucket == from.bucket() { from.at() } else { 0 };
            (Place::new(bucket, at), self.buckets[bucket].endpoints().get(at..).unwrap_or_default())
        })
    }

    /// The slots of now; those of a table without peers are none.
    pub(super) fn slots(&self) -> Slots {
        // The first bucket is always among those that have split already, if there are any.
        let depth = linear::depth(0, self.buckets.len());
        Slots { finest: self.densest.bound.div_ceil(1 << depth), depth }
    }

    /// Where a slot is; there may be no peer. Without a branch, since none could be predicted.
    pub(super) fn at_slot(&self, slots: Slots, slot: u64) -> Place {
        let (part, at) = (slot as usize & ((1 << slots.depth) - 1), slot >> slots.depth);
        // Parts are numbered as their buckets would be if all had split; one that has not has two of them.
        let second = usize::from(part >= self.buckets.len());
        Place::new(part - (second << slots.depth >> 1), (at + second as u64 * slots.finest) as usize)
    }

    /// Whether there is a peer in a place.
    pub(super) fn holds(&self, place: Place) -> bool {
        self.buckets.get(place.bucket()).is_some_and(|bucket| place.at() < bucket.len())
    }

    /// How many endpoints of this one's address have this place in the order. Where they are limited, all of
    /// them are in those of [`EndpointHash::places_of_address`].
    pub(super) fn count_of_address(&self, order: u64, endpoint: &[u8; N], hash: &EndpointHash) -> usize {
        self.of_address(order, endpoint, hash).count()
    }

    /// The one of them that has been silent longest.
    pub(super) fn stalest_of_address(
        &self,
        order: u64,
        endpoint: &[u8; N],
        hash: &EndpointHash,
    ) -> Option<(Tick, Place)> {
        let bucket = self.bucket_of(order);
        let stamped = |at: usize| (self.buckets[bucket].tick(at), Place::new(bucket, at));
        self.of_address(order, endpoint, hash).map(stamped).min_by_key(|(tick, _)| *tick)
    }

    /// Where in the bucket of an order they are.
    fn of_address<'a>(
        &'a self,
        order: u64,
        endpoint: &'a [u8; N],
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = usize> {
        let peers = self.buckets.get(self.bucket_of(order)).map_or(&[][..], Bucket::endpoints);
        let own = peers.iter().enumerate().filter(|(_, peer)| address(peer) == address(endpoint));
        // Two places of one address may be in the same bucket.
        own.filter(move |(_, peer)| hash.order(peer) == order).map(|(at, _)| at)
    }

    /// Whether the next split must happen: too many were postponed.
    pub(super) fn must_split(&self) -> bool {
        self.len() >= 2 * Self::SPLIT_ABOVE * self.buckets.len().max(1)
    }

    /// The peer that has been silent longest, of the first bucket from this order's on that has any.
    pub(super) fn stalest_near(&self, order: u64) -> Option<(Tick, Place)> {
        let buckets = self.buckets.len();
        let first = self.bucket_of(order);
        let bucket = (first..buckets).chain(0..first).find(|&bucket| self.buckets[bucket].len > 0)?;
        let ticks = self.buckets[bucket].iter().map(|(_, tick)| tick);
        let (at, tick) = ticks.enumerate().min_by_key(|(_, tick)| *tick)?;
        Some((tick, Place::new(bucket, at)))
    }

    // --- Hints: a place in them need not exist. ---

    /// Where the bucket of an order begins.
    pub(super) fn start_of(&self, order: u64) -> Place {
        Place::new(self.bucket_of(order), 0)
    }

    /// Brings the header of a bucket closer.
    pub(super) fn prefetch_header(&self, place: Place) {
        if let Some(bucket) = self.buckets.get(place.bucket()) {
            prefetch(bucket);
        }
    }

    /// Brings the endpoints of a bucket closer.
    pub(super) fn prefetch_bucket(&self, place: Place) {
        if let Some(bucket) = self.buckets.get(place.bucket()) {
            prefetch_lines::<8>(&bucket.block);
        }
    }

    /// Brings the endpoints closer that a window from a place on begins with: to the end of its bucket, and
    /// in the next.
    pub(super) fn prefetch_window(&self, from: Place) {
        let ahead = |bucket: usize| self.buckets.get(bucket).map_or(&[][..], |bucket| &bucket.block);
        let own = ahead(from.bucket()).get(N * from.at()..).unwrap_or_default();
        if N == CompactV4::LEN {
            prefetch_lines::<4>(own);
            prefetch_lines::<4>(ahead(from.bucket() + 1));
        } else {
            prefetch_lines::<4>(own);
            prefetch_lines::<8>(ahead(from.bucket() + 1));
            prefetch_lines::<4>(ahead(from.bucket() + 2));
        }
    }

    // --- Buckets. ---

    fn bucket_of(&self, order: u64) -> usize {
        linear::reach(order, self.buckets.len()).bucket
    }

    /// Changes a bucket, and what is counted of it.
    fn change<R>(&mut self, bucket: usize, change: impl FnOnce(&mut Bucket<N>) -> R) -> R {
        let bucket = &mut self.buckets[bucket];
        let before = bucket.block.capacity();
        let result = change(bucket);
        self.bytes = self.bytes + bucket.block.capacity() - before;
        result
    }

    fn push_bucket(&mut self, bucket: Bucket<N>) {
        let block = bucket.block.capacity();
        let (before, after) = self.buckets.push(bucket);
        self.bytes = self.bytes + block + after - before;
    }

    fn pop_bucket(&mut self) -> Option<Bucket<N>> {
        let (bucket, before, after) = self.buckets.pop()?;
        self.bytes = self.bytes + after - before - bucket.block.capacity();
        Some(bucket)
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
        self.push_bucket(upper);
        self.note_density(buddy);
        self.note_density(newest);
    }

    /// Follows a removal: what the table has become too large for goes.
    fn removed(&mut self) {
        if self.len == 0 {
            *self = Self::default();
            return;
        }
        for _ in 0..Self::MOST_MERGES {
            if self.buckets.len() == 1 || self.len() >= Self::MERGE_BELOW * self.buckets.len() {
                break;
            }
            let newest = self.buckets.len() - 1;
            let into = linear::buddy(newest);
            if self.buckets[newest].len() + self.buckets[into].len() > Self::MOST_MERGED {
                break;
            }
            let newest = self.pop_bucket().expect("more than one");
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

    /// The bytes that `peers` peers need.
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

    fn tick(&self, at: usize) -> Tick {
        self.base.tick(self.block[self.block.capacity() - 1 - at])
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        let ticks = self.stamps().iter().rev().map(|&stamp| self.base.tick(stamp));
        self.endpoints().iter().zip(ticks)
    }

    fn find(&self, endpoint: &[u8; N]) -> Option<usize> {
        position(self.endpoints(), endpoint)
    }

    /// Rebases the stamps so that `now` can be encoded.
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

    /// Adds a peer; where it is then. A full block grows to the next size, not by doubling: a spare byte
    /// costs as much as one of a peer.
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

    /// Gives spare memory back, but keeps room for an eighth more: peers that come and go must not move a
    /// bucket each time.
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

    /// Moves to the smallest block that `peers` peers fit in.
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

    /// Segments that the list of them makes room for at once.
    const MORE_SEGMENTS: usize = 16;

    fn len(&self) -> usize {
        match self.others.last() {
            Some(last) => self.others.len() * Self::SEGMENT + last.len(),
            None => self.first.len(),
        }
    }

    fn get(&self, bucket: usize) -> Option<&Bucket<N>> {
        match bucket.checked_sub(Self::SEGMENT) {
            None => self.first.get(bucket),
            Some(behind) => self.others.get(behind / Self::SEGMENT)?.get(behind % Self::SEGMENT),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Bucket<N>> {
        self.first.iter().chain(self.others.iter().flatten())
    }

    /// How many peers there would be if they stood as close everywhere as in this bucket.
    fn density(&self, bucket: usize) -> u64 {
        (self[bucket].len() as u64) << linear::depth(bucket, self.len())
    }

    /// Bytes of the list of segments and of the last one: all others keep theirs.
    fn changing_bytes(&self) -> usize {
        let last = self.others.last().unwrap_or(&self.first);
        self.others.capacity() * size_of::<Vec<Bucket<N>>>() + last.capacity() * size_of::<Bucket<N>>()
    }

    /// Adds a bucket; bytes before and after.
    fn push(&mut self, bucket: Bucket<N>) -> (usize, usize) {
        let mut before = self.changing_bytes();
        if self.len() >= Self::SEGMENT && self.len().is_multiple_of(Self::SEGMENT) {
            if self.others.len() == self.others.capacity() {
                self.others.reserve_exact(Self::MORE_SEGMENTS);
            }
            self.others.push(Vec::new());
            before -= Self::SEGMENT * size_of::<Bucket<N>>();
        }
        let last = self.others.last_mut().unwrap_or(&mut self.first);
        if last.len() == last.capacity() {
            last.reserve_exact((1 + last.len() / 8).min(Self::SEGMENT - last.len()));
        }
        last.push(bucket);
        (before, self.changing_bytes())
    }

    /// Takes the last bucket out; bytes before and after.
    fn pop(&mut self) -> Option<(Bucket<N>, usize, usize)> {
        let mut before = self.changing_bytes();
        let last = self.others.last_mut().unwrap_or(&mut self.first);
        let newest = last.pop()?;
        if 2 * last.len() < last.capacity() {
            last.shrink_to(last.len() + last.len() / 8);
        }
        if self.others.last().is_some_and(Vec::is_empty) {
            self.others.pop();
            if 2 * self.others.len() < self.others.capacity() {
                self.others.shrink_to_fit();
            }
            before += Self::SEGMENT * size_of::<Bucket<N>>();
        }
        Some((newest, before, self.changing_bytes()))
    }
}

impl<const N: usize> Index<usize> for Directory<N> {
    type Output = Bucket<N>;

    fn index(&self, bucket: usize) -> &Bucket<N> {
        match bucket.checked_sub(Self::SEGMENT) {
            None => &self.first[bucket],
            Some(behind) => &self.others[behind / Self::SEGMENT][behind % Self::SEGMENT],
        }
    }
}

impl<const N: usize> IndexMut<usize> for Directory<N> {
    fn index_mut(&mut self, bucket: usize) -> &mut Bucket<N> {
        match bucket.checked_sub(Self::SEGMENT) {
            None => &mut self.first[bucket],
            Some(behind) => &mut self.others[behind / Self::SEGMENT][behind % Self::SEGMENT],
        }
    }
}

impl Densest {
    fn note(&mut self, density: u64) {
        self.bound = self.bound.max(density);
        self.passed = self.passed.max(density);
    }

    /// Moves the hand by one bucket; behind the last, what it has seen becomes the bound.
    fn advance<const N: usize>(&mut self, buckets: &Directory<N>) {
        if self.hand as usize >= buckets.len() {
            *self = Self { bound: self.passed, passed: 0, hand: 0 };
        }
        self.passed = self.passed.max(buckets.density(self.hand as usize));
        self.hand += 1;
    }
}

#[cfg(test)]
impl<const N: usize> Table<N> {
    pub(super) fn fullest_bucket(&self) -> usize {
        self.buckets.iter().map(Bucket::len).max().unwrap_or(0)
    }

    /// What [`bytes`](Self::bytes) should be, and other things that are kept in step, looked at one by one.
    pub(super) fn recount(&self) -> usize {
        let Directory { first, others } = &self.buckets;
        let headers: usize =
            others.iter().chain([first]).map(|segment| segment.capacity() * size_of::<Bucket<N>>()).sum();
        let blocks: usize = self.buckets.iter().map(|bucket| bucket.block.capacity()).sum();
        assert_eq!(self.buckets.iter().map(Bucket::len).sum::<usize>(), self.len());
        assert_eq!(self.buckets.iter().count(), self.buckets.len());
        let densest = (0..self.buckets.len()).map(|bucket| self.buckets.density(bucket)).max();
        assert!(densest.is_none_or(|densest| densest <= self.densest.bound), "a peer without a slot");
        headers + blocks + others.capacity() * size_of::<Vec<Bucket<N>>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::{HashKey, Random, SplitMix64, Timestamp, packed::clock::Clock};

    const LIFETIME: u64 = 112;

    /// Ticks are seconds here.
    fn tick(second: u64) -> Tick {
        Clock::new(LIFETIME).tick(Timestamp::from_secs(second))
    }

    fn hash(seed: u8) -> EndpointHash {
        EndpointHash::new(HashKey::from_bytes([seed; 16]), None)
    }

    fn endpoint<const N: usize>(n: u32) -> [u8; N] {
        let mut bytes = [7; N];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        bytes
    }

    fn insert<const N: usize>(table: &mut Table<N>, n: u32, at: Tick, hash: &EndpointHash) {
        let (order, endpoint) = (hash.order(&endpoint::<N>(n)), endpoint(n));
        let place = table.insert(order, &endpoint, at, at, hash);
        assert_eq!(table.find(order, &endpoint), Some(place));
    }

    fn find<const N: usize>(table: &Table<N>, n: u32, hash: &EndpointHash) -> Option<Place> {
        table.find(hash.order(&endpoint::<N>(n)), &endpoint(n))
    }

    fn filled<const N: usize>(count: u32, hash: &EndpointHash) -> Table<N> {
        let mut table = Table::default();
        (0..count).for_each(|n| insert(&mut table, n, tick(1000), hash));
        table
    }

    /// The whole order, range by range.
    fn ranges<const N: usize>(table: &Table<N>) -> Vec<(u64, Option<u64>)> {
        let mut ranges = vec![(0, table.end_of(0))];
        while let Some((_, Some(end))) = ranges.last() {
            ranges.push((*end, table.end_of(*end)));
        }
        ranges
    }

    fn all<const N: usize>(table: &Table<N>, hash: &EndpointHash) -> Vec<(u64, [u8; N])> {
        let mut found = Vec::new();
        for (start, end) in ranges(table) {
            let mut some: Vec<_> =
                table.within(start, end, hash).map(|(order, peer, _)| (order, *peer)).collect();
            some.sort_unstable();
            found.extend(some);
        }
        found
    }

    fn peers_are_found_while_buckets_split_and_merge<const N: usize>() {
        let hash = hash(5);
        let count = 3000;
        let mut table = filled::<N>(count, &hash);
        let buckets = count as usize / Table::<N>::SPLIT_ABOVE;
        assert!(table.buckets.len() >= buckets, "{} buckets", table.buckets.len());
        for gone in 0..count {
            let place = find(&table, gone, &hash).expect("still there");
            table.remove(place);
            assert!(find(&table, gone, &hash).is_none());
            if gone % 100 == 0 {
                assert!((gone + 1..count).all(|n| find(&table, n, &hash).is_some()));
                assert_eq!(all(&table, &hash).len(), table.len());
                assert_eq!(table.iter().count(), table.len());
                assert!(table.buckets.len() <= 1 + table.len() / Table::<N>::MERGE_BELOW);
            }
        }
        assert_eq!((table.len(), table.bytes(), table.buckets.first.capacity()), (0, 0, 0));
    }

    #[test]
    fn ipv4_peers_are_found_while_buckets_split_and_merge() {
        peers_are_found_while_buckets_split_and_merge::<6>();
    }

    #[test]
    fn ipv6_peers_are_found_while_buckets_split_and_merge() {
        peers_are_found_while_buckets_split_and_merge::<18>();
    }

    #[test]
    fn the_order_of_a_listing_does_not_depend_on_the_buckets() {
        let hash = hash(6);
        for count in [0, 1, 43, 44, 45, 88, 89, 133, 1000, 1025] {
            let found = all(&filled::<6>(count, &hash), &hash);
            let expected: BTreeSet<_> =
                (0..count).map(|n| (hash.order(&endpoint::<6>(n)), endpoint(n))).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{count} peers");
        }
    }

    #[test]
    fn no_insert_moves_more_than_a_bucket_and_a_segment_of_headers() {
        let hash = hash(7);
        let (mut table, mut buckets) = (Table::<6>::default(), 0);
        for n in 0..100_000 {
            insert(&mut table, n, tick(1000), &hash);
            assert!(table.buckets.len() <= buckets + 1);
            buckets = table.buckets.len();
        }
        let fullest = table.buckets.iter().map(Bucket::len).max().unwrap();
        // Twice the mean, and five standard deviations.
        assert!(fullest <= 88 + 47, "a bucket of {fullest}");
        let segments = table.buckets.others.iter().chain([&table.buckets.first]);
        assert!(segments.map(Vec::capacity).all(|capacity| capacity <= Directory::<6>::SEGMENT));
        assert!(table.bytes() < 100_000 * 8, "{} bytes", table.bytes());
    }

    #[test]
    fn expiry_visits_each_peer_once() {
        let hash = hash(8);
        let mut table = Table::<6>::default();
        for n in 0..5000 {
            let at = tick(1000 + u64::from(n % 5 == 0));
            insert(&mut table, n, at, &hash);
        }
        let (mut start, mut visited, mut gone) = (0, 0, 0);
        loop {
            let end = table.end_of(start);
            let (seen, removed) = table.expire_within(start, end, tick(1001), &hash);
            (visited, gone) = (visited + seen, gone + removed);
            let Some(end) = end else { break };
            start = end;
        }
        assert_eq!((visited, gone, table.len()), (5000, 4000, 1000));
        assert!((0..5000).all(|n| find(&table, n, &hash).is_some() == (n % 5 == 0)));
    }

    #[test]
    fn expiry_of_a_part_of_a_bucket_leaves_the_rest_alone() {
        let hash = hash(9);
        let mut table = filled::<18>(20, &hash);
        assert_eq!(ranges(&table).len(), 1);
        let half = 1 << 63;
        let inside = table.within(0, Some(half), &hash).count();
        assert!(inside > 0 && inside < 20);
        assert_eq!(table.expire_within(0, Some(half), tick(1000), &hash), (inside, 0));
        assert_eq!(table.expire_within(0, Some(half), tick(1001), &hash), (inside, inside));
        assert_eq!(table.expire_within(half, None, tick(1000), &hash), (20 - inside, 0));
    }

    /// Each peer has one slot, so each is equally likely to be drawn; and slots without a peer are not so
    /// many that many draws are needed.
    fn assert_fair<const N: usize>(table: &Table<N>) {
        let slots = table.slots();
        let places =
            (0..slots.len()).map(|slot| table.at_slot(slots, slot)).filter(|place| table.holds(*place));
        let places: Vec<_> = places.map(|place| (place.bucket, place.at)).collect();
        assert_eq!(places.len(), table.len(), "slots with a peer");
        assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), table.len(), "peers with a slot");
    }

    #[test]
    fn every_peer_has_one_slot_and_few_slots_are_empty() {
        let hash = hash(10);
        let mut table = Table::<6>::default();
        assert_eq!(table.slots().len(), 0);
        for n in 0..12_000_u32 {
            insert(&mut table, n, tick(1000), &hash);
            if n < 200 || n % 97 == 0 {
                assert_fair(&table);
            }
            if n > 3000 {
                assert!(
                    table.len() as u64 * 5 > table.slots().len() * 2,
                    "{n}: {} slots",
                    table.slots().len()
                );
            }
        }
        for n in 0..12_000 {
            table.remove(find(&table, n, &hash).unwrap());
            if n > 11_800 || n % 97 == 0 {
                assert_fair(&table);
                assert!(table.len() as u64 * 5 >= table.slots().len(), "{n}: {} slots", table.slots().len());
            }
        }
    }

    #[test]
    fn runs_hold_everybody_from_a_place_on() {
        let hash = hash(11);
        let table = filled::<6>(1000, &hash);
        let places: Vec<_> = (0..1000).map(|n| find(&table, n, &hash).unwrap()).collect();
        for from in places.iter().step_by(17) {
            let shown: usize = table.runs(*from).map(|(_, run)| run.len()).sum();
            let behind = |place: &&Place| (place.bucket, place.at) >= (from.bucket, from.at);
            assert_eq!(shown, places.iter().filter(behind).count());
        }
        for (n, place) in (0..).zip(&places) {
            assert_eq!(table.runs(*place).next().unwrap().1[0], endpoint(n));
        }
        assert_eq!(table.runs(Place::new(99, 99)).count(), 0);
    }

    /// Runs random operations on a table and on a map, and compares.
    fn is_as_a_naive_model_says<const N: usize>(seed: u64) {
        let hash = hash(seed as u8);
        let (mut table, mut model) = (Table::<N>::default(), BTreeMap::new());
        let (mut rng, mut now) = (SplitMix64::new(seed), 1_000_000);
        let mut below = |bound: usize| (&mut rng as &mut dyn Random).below(bound);
        for step in 0..60_000 {
            // The swarm grows, shrinks to nothing, and grows again.
            let growing = step % 20_000 < 12_000;
            let n = below(4000) as u32;
            let at = tick(now);
            match (find(&table, n, &hash), below(8)) {
                (Some(place), 0..3) => {
                    table.refresh(place, at);
                    model.insert(endpoint::<N>(n), now);
                }
                (Some(place), _) if !growing => {
                    table.remove(place);
                    model.remove(&endpoint::<N>(n));
                }
                (None, _) if growing => {
                    // Sometimes a peer from a snapshot, up to a lifetime old.
                    let age = if below(4) == 0 { below(112) as u64 } else { 0 };
                    table.insert(hash.order(&endpoint::<N>(n)), &endpoint(n), tick(now - age), at, &hash);
                    model.insert(endpoint(n), now - age);
                }
                (found, _) => assert_eq!(found.is_some(), model.contains_key(&endpoint::<N>(n))),
            }
            if below(400) == 0 {
                now += [1, 1, 1, 1, 5, 100, 200, 300, 10_000][below(9)];
            }
            if below(700) == 0 {
                let oldest = now - LIFETIME;
                let ranges = ranges(&table);
                let sizes =
                    ranges.iter().map(|&(start, end)| table.expire_within(start, end, tick(oldest), &hash));
                let gone: usize = sizes.map(|(_, gone)| gone).sum();
                let before = model.len();
                model.retain(|_, last| *last >= oldest);
                assert_eq!(gone, before - model.len());
            }
            if step % 200 == 0 {
                let peers: BTreeMap<_, _> = table.iter().map(|(peer, at)| (*peer, at)).collect();
                assert_eq!(table.len(), model.len());
                assert!(peers.keys().eq(model.keys()));
                // What has outlived its lifetime may look younger, but not alive.
                let alive = |last: &u64| *last >= now - LIFETIME;
                let wrong = peers.values().zip(model.values()).find(|(at, last)| match alive(last) {
                    true => **at != tick(**last),
                    false => **at >= tick(now - LIFETIME),
                });
                assert_eq!(wrong, None);
                assert_eq!(table.bytes(), table.recount());
                let stalest = table.stalest_near(below(usize::MAX) as u64).map(|(at, _)| at);
                assert_eq!(stalest.is_some(), !model.is_empty());
            }
        }
    }

    #[test]
    fn ipv4_is_as_a_naive_model_says() {
        (0..4).for_each(is_as_a_naive_model_says::<6>);
    }

    #[test]
    fn ipv6_is_as_a_naive_model_says() {
        (4..8).for_each(is_as_a_naive_model_says::<18>);
    }

    #[test]
    fn stamps_survive_a_clock_that_jumps() {
        for jumps in [[1, 100, 200, 300, 10_000], [300, 300, 1, 127, 128], [255, 256, 254, 1, 10_000]] {
            let hash = hash(12);
            let (mut table, mut last) = (Table::<6>::default(), BTreeMap::new());
            let (mut now, mut n) = (50_000, 0_u32);
            for jump in jumps.into_iter().cycle().take(25) {
                for _ in 0..60 {
                    insert(&mut table, n, tick(now), &hash);
                    last.insert(n, now);
                    n += 1;
                }
                for refreshed in (0..n).step_by(7) {
                    if let Some(place) = find(&table, refreshed, &hash) {
                        table.refresh(place, tick(now));
                        last.insert(refreshed, now);
                    }
                }
                now += jump;
                for (start, end) in ranges(&table) {
                    table.expire_within(start, end, tick(now - LIFETIME), &hash);
                }
                last.retain(|_, last| *last >= now - LIFETIME);
                assert_eq!(table.len(), last.len());
                for (&n, &last) in &last {
                    let place = find(&table, n, &hash).unwrap();
                    let bucket = &table.buckets[place.bucket()];
                    assert_eq!(bucket.iter().nth(place.at()).unwrap().1, tick(last));
                }
            }
        }
    }

    #[test]
    fn the_stalest_of_a_bucket_is_found() {
        let hash = hash(13);
        let mut table = Table::<18>::default();
        for n in 0..20 {
            insert(&mut table, n, tick(1000 + u64::from((n + 13) % 20)), &hash);
        }
        let (at, place) = table.stalest_near(3).unwrap();
        assert_eq!((at, place), (tick(1000), find(&table, 7, &hash).unwrap()));
    }

    #[test]
    fn an_endpoint_is_found_wherever_it_is_in_a_run_and_only_where_it_begins() {
        let peers: Vec<[u8; 6]> = (0..70_u8).map(|n| [1, n, 1, 1, n, 1]).collect();
        for len in 0..peers.len() {
            let run = &peers[..len];
            for (at, peer) in peers.iter().enumerate() {
                assert_eq!(position(run, peer), Some(at).filter(|&at| at < len), "{at} of {len}");
            }
            // Bytes of two neighbours.
            let bytes = run.as_flattened();
            for window in bytes.windows(6) {
                assert_eq!(
                    position(run, window.try_into().unwrap()),
                    run.iter().position(|peer| peer == window)
                );
            }
        }
    }

    #[test]
    fn memory_goes_back_as_the_table_shrinks() {
        let hash = hash(14);
        let mut table = filled::<6>(100_000, &hash);
        for n in 1000..100_000 {
            table.remove(find(&table, n, &hash).unwrap());
        }
        let loose = table.bytes();
        assert!(loose < 1000 * 10, "{loose} bytes for 1,000 peers");
        for (start, end) in ranges(&table) {
            table.expire_within(start, end, tick(1000), &hash);
        }
        assert!(table.bytes() < loose && table.bytes() < 1000 * 9, "{} bytes", table.bytes());
    }

    #[test]
    fn a_bucket_has_sixteen_bytes_of_its_own() {
        assert_eq!(size_of::<Bucket<6>>(), (size_of::<Block>() + 6).next_multiple_of(4).max(16));
    }
}
