//! A table: the peers of one family and one role in a large swarm, in small buckets under linear hashing.

mod bucket;
mod directory;
#[cfg(test)]
mod tests;

use self::{
    bucket::Bucket,
    directory::{Densest, Directory},
};
use super::{
    arena::StampedBlock,
    clock::{Base, Tick},
    crowd::Network,
    hash::EndpointHash,
    linear,
    prefetch::{prefetch, prefetch_lines},
};
use crate::{CompactV4, announce::widest_network};

/// Peers with endpoints of `N` bytes, in buckets by the keyed order of their endpoints. So a listing in that
/// order is stable. Buckets split and merge one at a time, and some others move out of sparse pages, so no
/// announce moves the peers of more than twenty buckets.
///
/// Takes `N` + 1 bytes per peer, plus about half a byte in IPv4 and one in IPv6 for spare room in buckets and
/// for their headers.
#[derive(Debug, Default)]
pub(super) struct Table<const N: usize> {
    buckets: Directory<N>,
    densest: Densest,
    /// Heap bytes of the table.
    bytes: usize,
    len: u32,
}

/// Where a peer is in a table: its bucket, and its index in that bucket. Valid until the table changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BucketIndex {
    bucket: u32,
    at: u32,
}

/// A numbering of all peers of a table, and of some slots without a peer, to draw a peer at random.
///
/// The order is divided into 2^`depth` equal parts. Each part has `finest` slots, no fewer than peers. A
/// bucket that covers two parts has the slots of both. A slot is drawn uniformly, again and again until it
/// contains a peer; so each peer is equally likely. Buckets are about as full as their parts are wide, so
/// about every second slot contains a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DrawSlots {
    finest: u64,
    depth: u32,
    buckets: u32,
}

impl BucketIndex {
    /// The first peer, if the first bucket contains any.
    pub(super) const FIRST: Self = Self::new(0, 0);
    /// No peer.
    pub(super) const NOWHERE: Self = Self { bucket: u32::MAX, at: u32::MAX };

    const fn new(bucket: usize, at: usize) -> Self {
        Self { bucket: bucket as u32, at: at as u32 }
    }

    const fn bucket(self) -> usize {
        self.bucket as usize
    }

    const fn at(self) -> usize {
        self.at as usize
    }

    /// How many peers this one is after `other`, if both are in the same bucket.
    pub(super) fn behind(self, other: Self) -> Option<usize> {
        if self.bucket == other.bucket { self.at().checked_sub(other.at()) } else { None }
    }
}

impl DrawSlots {
    pub(super) const fn len(self) -> u64 {
        self.finest << self.depth
    }

    /// The index of a slot, which need not contain a peer. Without a branch: it could not be predicted.
    pub(super) fn index(self, slot: u64) -> BucketIndex {
        let (part, at) = (slot as usize & ((1 << self.depth) - 1), slot >> self.depth);
        // Parts are numbered like their buckets once all have split. A bucket that has not split has two
        // parts.
        let second = part >= (self.buckets as usize).max(1);
        let bucket = if second { linear::buddy(part) } else { part };
        BucketIndex::new(bucket, (at + u64::from(second) * self.finest) as usize)
    }
}

impl<const N: usize> Table<N> {
    pub(super) const EMPTY: Self = Self {
        buckets: Directory { first: Vec::new(), others: Vec::new() },
        densest: Densest { bound: 0, passed: 0, hand: 0 },
        bytes: 0,
        len: 0,
    };

    /// Mean peers per bucket, above which one splits. They share a header and half of the last 16 bytes, and
    /// a search goes through up to twice as many. At 2 million peers, 32 / 44 / 64 of IPv4 take 7.73 / 7.53 /
    /// 7.37 B per peer and are found in 21 / 23 / 26 ns when warm; 16 / 24 / 32 of IPv6 take 20.5 / 20.0 /
    /// 19.7 B and 16 / 17 / 25 ns. At 40 of IPv6, an announce in batches takes as long as at 24, within 2 %.
    const SPLIT_ABOVE: usize = if N == CompactV4::LEN { 44 } else { 40 };

    /// Mean peers per bucket, below which two merge. It is so far below that a peer that comes and goes does
    /// not split and merge buckets.
    const MERGE_BELOW: usize = Self::SPLIT_ABOVE * 3 / 4;

    /// The most peers after a merge of two well filled buckets. While a sweep has emptied
    /// some buckets and has not reached others, merges would otherwise fill one bucket without limit, and one
    /// hold would visit it. A block of this size is below 4 KiB: the sizes of larger blocks are far apart.
    const MAX_MERGED: usize = if N == CompactV4::LEN { 352 } else { 190 };

    /// A bucket with fewer peers than this merges into any other: a bucket that one network fills must not
    /// stop the merges of its table.
    const FEW: usize = Self::SPLIT_ABOVE / 2;

    /// The number of peers in a bucket from which on a newcomer [takes the place](Self::crowded) of another.
    /// No bucket gets there by chance. But answers show which peers are near each other, so a remote peer
    /// could collect endpoints of one bucket.
    pub(super) const CROWD: usize = 512;

    /// The most peers of a table that [splits ahead](Self::split_ahead): more would take long to move.
    const MOST_AHEAD: usize = 1 << 13;

    /// The most merges after one removal: more than it takes to keep up, and few enough for one hold of the
    /// lock.
    const MAX_MERGES: usize = 8;

    /// The number of buckets that may move out of sparse pages for each peer that comes. With one, two
    /// million peers of IPv6 take 0.8 bytes more each after a fill.
    const TIDIED: usize = 16;

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Heap bytes of the table. O(1).
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn find(&self, order: u64, endpoint: &[u8; N]) -> Option<BucketIndex> {
        let bucket = self.bucket_of(order);
        let at = self.buckets.get(bucket)?.find(endpoint)?;
        Some(BucketIndex::new(bucket, at))
    }

    /// The last announce of a peer.
    pub(super) fn tick(&self, index: BucketIndex) -> Tick {
        self.buckets[index.bucket()].tick(index.at())
    }

    pub(super) fn refresh(&mut self, index: BucketIndex, now: Tick) {
        let bucket = &mut self.buckets[index.bucket()];
        bucket.advance(now);
        bucket.refresh(index.at(), now);
    }

    /// The same in a table that others may refresh and read, unless `is_proof` is true of the earlier
    /// announce of the peer. `None`, and nothing has changed, if so, if the table has no such peer, or if the
    /// stamps have no room for `now`.
    pub(super) fn refresh_shared(
        &self,
        order: u64,
        endpoint: &[u8; N],
        now: Tick,
        is_proof: impl FnOnce(Tick) -> bool,
    ) -> Option<BucketIndex> {
        let number = self.bucket_of(order);
        let bucket = self.buckets.get(number)?;
        let at = bucket.find(endpoint)?;
        if is_proof(bucket.tick(at)) || !bucket.base.fits(now) {
            return None;
        }
        bucket.refresh(at, now);
        Some(BucketIndex::new(number, at))
    }

    /// Adds a peer that is not in the table and last announced at `tick`. Returns its index. Moves the peers
    /// of at most one bucket.
    pub(super) fn insert(
        &mut self,
        order: u64,
        endpoint: &[u8; N],
        tick: Tick,
        now: Tick,
        hash: &EndpointHash,
    ) -> BucketIndex {
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
        self.tidy();
        if self.len() <= Self::SPLIT_ABOVE * self.buckets.len() {
            return BucketIndex::new(bucket, at);
        }
        self.split(hash);
        self.find(order, endpoint).expect("just inserted")
    }

    /// Removes a peer. Moves the peers of at most two buckets.
    pub(super) fn remove(&mut self, index: BucketIndex) {
        self.change(index.bucket(), |bucket| {
            bucket.swap_remove(index.at());
            bucket.shrink();
        });
        self.removed(1);
    }

    /// Removes a peer to free its bytes: leaves no spare room in its bucket.
    pub(super) fn evict(&mut self, order: u64, endpoint: &[u8; N]) {
        if let Some(index) = self.find(order, endpoint) {
            self.change(index.bucket(), |bucket| {
                bucket.swap_remove(index.at());
                bucket.compact();
            });
            self.removed(1);
        }
    }

    /// The first order after the bucket of this one; `None` for the last bucket.
    pub(super) fn end_of(&self, order: u64) -> Option<u64> {
        linear::range_of(order, self.buckets.len()).end
    }

    /// The peers with orders in `start..end`, a range within the bucket of `start`. Computes no orders if it
    /// is the whole bucket.
    pub(super) fn within<'a>(
        &'a self,
        start: u64,
        end: Option<u64>,
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = (&'a [u8; N], Tick)> {
        let range = linear::range_of(start, self.buckets.len());
        let is_whole = (range.start, range.end) == (start, end);
        let peers = self.buckets.get(range.bucket).into_iter().flat_map(Bucket::iter);
        peers.filter(move |(endpoint, _)| is_whole || is_within(hash.order(endpoint), start, end))
    }

    /// Removes the peers in that range with a last announce before `oldest`. Returns the number of peers in
    /// the range, and the number removed. Returns spare memory of the bucket, and moves it out of a sparse
    /// page.
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
        let range = linear::range_of(start, self.buckets.len());
        let whole = (range.start, range.end) == (start, end);
        let (visited, gone) = self.change(range.bucket, |bucket| {
            let inside = |endpoint: &[u8; N]| whole || is_within(hash.order(endpoint), start, end);
            let visited = bucket.endpoints().iter().filter(|endpoint| inside(endpoint)).count();
            let gone = bucket.expire(bucket.base.first_alive(oldest), inside);
            bucket.compact();
            (visited, gone)
        });
        self.removed(gone);
        (visited, gone)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8; N], Tick)> {
        self.buckets.iter().flat_map(Bucket::iter)
    }

    /// The endpoints from an index on, run by run: to the end of its bucket, then each following bucket.
    pub(super) fn runs(&self, from: BucketIndex) -> impl Iterator<Item = (BucketIndex, &[[u8; N]])> {
        (from.bucket()..self.buckets.len()).map(move |bucket| {
            let at = if bucket == from.bucket() { from.at() } else { 0 };
            (BucketIndex::new(bucket, at), self.buckets[bucket].endpoints().get(at..).unwrap_or_default())
        })
    }

    /// The current slots. A table without peers has none.
    pub(super) fn slots(&self) -> DrawSlots {
        // The first bucket has always split already, if any bucket has.
        let depth = self.buckets.len().next_power_of_two().ilog2();
        let finest = (self.densest.bound + (1 << depth) - 1) >> depth;
        DrawSlots { finest, depth, buckets: self.buckets.len() as u32 }
    }

    /// The peer in a slot of the current [`slots`](Self::slots), if it contains one.
    pub(super) fn drawn(&self, slot: u64) -> Option<(&[u8; N], Tick)> {
        let index = self.slots().index(slot);
        let bucket = self.buckets.get(index.bucket())?;
        Some((bucket.endpoints().get(index.at())?, bucket.tick(index.at())))
    }

    /// All endpoints, from those in a slot of the current [`slots`](Self::slots) and behind it on.
    pub(super) fn around(&self, slot: u64) -> impl Iterator<Item = &[u8; N]> {
        let from = self.slots().index(slot);
        self.runs(from).chain(self.runs(BucketIndex::FIRST)).flat_map(|(_, run)| run).take(self.len())
    }

    pub(super) fn holds(&self, index: BucketIndex) -> bool {
        self.buckets.get(index.bucket()).is_some_and(|bucket| index.at() < bucket.len())
    }

    /// The endpoints in the widest limited network of `endpoint`, if endpoints per address are limited. Looks
    /// only where they may be, or at all buckets if these are fewer.
    pub(super) fn of_network<'a>(
        &'a self,
        endpoint: &'a [u8; N],
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = (&'a [u8; N], Tick, BucketIndex)> {
        let is_everywhere = hash.places::<N>() >= self.buckets.len() as u64;
        let all = is_everywhere.then(|| (0..self.buckets.len()).map(|bucket| (bucket, None)));
        let orders = (!is_everywhere).then(|| hash.places_of_network(endpoint));
        let some = orders.into_iter().flatten().map(|order| (self.bucket_of(order), Some(order)));
        all.into_iter().flatten().chain(some).flat_map(move |(index, order)| {
            let bucket = &self.buckets[index];
            let peers = bucket.endpoints().iter().enumerate();
            let own = peers.filter(|(_, peer)| widest_network(*peer) == widest_network(endpoint));
            // Two orders of one network may be in the same bucket.
            let own = own.filter(move |(_, peer)| order.is_none_or(|order| hash.order(peer) == order));
            own.map(move |(at, peer)| (peer, bucket.tick(at), BucketIndex::new(index, at)))
        })
    }

    /// The peer that has been silent longest of the network that has the most peers in the bucket of `order`,
    /// if that bucket has no room for another.
    pub(super) fn crowded(&self, order: u64, hash: &EndpointHash) -> Option<BucketIndex> {
        let number = self.bucket_of(order);
        let bucket = self.buckets.get(number).filter(|bucket| bucket.len() >= Self::CROWD)?;
        let mut networks: Vec<_> = bucket.endpoints().iter().map(|peer| Network::of(peer)).collect();
        networks.sort_unstable();
        let networks = networks.chunk_by(|a, b| a == b);
        let largest = networks.max_by_key(|peers| (peers.len(), hash.hash(&peers[0].to_bytes())))?[0];
        let peers = bucket.iter().enumerate().filter(|(_, (peer, _))| Network::of(*peer) == largest);
        // Of several, the smallest: stores with the same peers choose the same one.
        let (at, _) = peers.min_by_key(|(_, (peer, tick))| (*tick, **peer))?;
        Some(BucketIndex::new(number, at))
    }

    /// Splits buckets ahead of further peers if the bucket of `order` is full. A store with the same key
    /// lists its peers in this order, so they fill one bucket after another. The table gets as many buckets
    /// as it needs if the whole order is as dense as that bucket.
    pub(super) fn split_ahead(&mut self, order: u64, hash: &EndpointHash) {
        let full = self.buckets.get(self.bucket_of(order)).filter(|bucket| bucket.len() >= Self::CROWD);
        let Some(bucket) = full.filter(|_| self.len() <= Self::MOST_AHEAD) else { return };
        let mut orders: Vec<_> = bucket.endpoints().iter().map(|peer| hash.order(peer)).collect();
        orders.sort_unstable();
        let (peers, width) = (orders.len() as u128, u128::from(orders[orders.len() - 1] - orders[0]));
        orders.dedup();
        // By the steps between orders: no split separates a crowd with one order.
        let (orders, steps) = (orders.len() as u128, orders.len() as u128 - 1);
        let expected = ((peers * steps) << 64) / (orders * width.max(1));
        // A crowd gets eight buckets for each peer. So do two million peers at their first full bucket, which
        // is enough for all of them.
        let enough = (expected / Self::SPLIT_ABOVE as u128).min(8 * self.len() as u128) as usize;
        while self.buckets.len() < enough {
            self.split(hash);
        }
    }

    // --- Hints: an index in them need not exist. ---

    /// The start of the bucket of an order.
    pub(super) fn start_of(&self, order: u64) -> BucketIndex {
        BucketIndex::new(self.bucket_of(order), 0)
    }

    /// Prefetches the header of a bucket.
    pub(super) fn prefetch_header(&self, index: BucketIndex) {
        if let Some(bucket) = self.buckets.get(index.bucket()) {
            prefetch(bucket);
        }
    }

    /// Prefetches the endpoints of a bucket.
    pub(super) fn prefetch_bucket(&self, index: BucketIndex) {
        if let Some(bucket) = self.buckets.get(index.bucket()) {
            prefetch_lines::<8>(bucket.endpoints().as_flattened());
        }
    }

    /// Prefetches the first endpoints of a window: to the end of its bucket, and in the next.
    pub(super) fn prefetch_window(&self, from: BucketIndex) {
        let ahead = |bucket: usize| self.buckets.get(bucket).map_or(&[][..], Bucket::endpoints);
        let own = ahead(from.bucket()).get(from.at()..).unwrap_or_default();
        prefetch_lines::<4>(own.as_flattened());
        if N == CompactV4::LEN {
            prefetch_lines::<4>(ahead(from.bucket() + 1).as_flattened());
        } else {
            prefetch_lines::<8>(ahead(from.bucket() + 1).as_flattened());
            prefetch_lines::<4>(ahead(from.bucket() + 2).as_flattened());
        }
    }

    // --- Buckets. ---

    fn bucket_of(&self, order: u64) -> usize {
        linear::range_of(order, self.buckets.len()).bucket
    }

    /// Changes a bucket, and updates the byte count.
    fn change<R>(&mut self, bucket: usize, change: impl FnOnce(&mut Bucket<N>) -> R) -> R {
        let bucket = &mut self.buckets[bucket];
        let before = bucket.block.capacity();
        let result = change(bucket);
        self.bytes = self.bytes + bucket.block.capacity() - before;
        result
    }

    fn push_bucket(&mut self, bucket: Bucket<N>) {
        let (before, block) = (self.buckets.bytes(), bucket.block.capacity());
        self.buckets.push(bucket);
        self.bytes = self.bytes + block + self.buckets.bytes() - before;
    }

    fn pop_bucket(&mut self) -> Option<Bucket<N>> {
        let before = self.buckets.bytes();
        let bucket = self.buckets.pop()?;
        self.bytes = self.bytes + self.buckets.bytes() - before - bucket.block.capacity();
        Some(bucket)
    }

    /// Buckets that grow leave gaps: for each peer that comes, a few others may move out of sparse pages.
    fn tidy(&mut self) {
        let buckets = self.buckets.len();
        let first = Self::TIDIED * self.densest.hand as usize % buckets;
        for bucket in first..(first + Self::TIDIED).min(buckets) {
            self.buckets[bucket].block.move_if_sparse();
        }
    }

    /// To be called when a bucket has more peers than before, or a smaller part of the order.
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

    /// Counts peers that have left a bucket.
    fn removed(&mut self, peers: usize) {
        self.len -= peers as u32;
        if self.len == 0 {
            *self = Self::default();
            return;
        }
        self.merge(&mut 0);
        self.densest.advance(&self.buckets);
    }

    /// Merges buckets of a table that has become too large for its peers. May take `spare` bytes, and lowers
    /// it by the bytes that it takes.
    pub(super) fn merge(&mut self, spare: &mut usize) {
        for _ in 0..Self::MAX_MERGES {
            if self.buckets.len() <= 1 || self.len() >= Self::MERGE_BELOW * self.buckets.len() {
                break;
            }
            let newest = self.buckets.len() - 1;
            let into = linear::buddy(newest);
            let parts = [newest, into].map(|bucket| &self.buckets[bucket]);
            let [a, b] = parts.map(Bucket::len);
            let bytes: usize = parts.iter().map(|bucket| bucket.block.capacity()).sum();
            // Where sizes of blocks are far apart, a merge may take more bytes than it frees.
            let more = StampedBlock::<N>::capacity_for(a + b).saturating_sub(bytes);
            if (a + b > Self::MAX_MERGED && a.min(b) >= Self::FEW) || more > *spare {
                break;
            }
            *spare -= more;
            let newest = self.pop_bucket().expect("more than one");
            self.change(into, |bucket| bucket.append(newest));
            self.note_density(into);
        }
    }
}

fn is_within(order: u64, start: u64, end: Option<u64>) -> bool {
    order >= start && end.is_none_or(|end| order < end)
}

#[cfg(test)]
impl<const N: usize> Table<N> {
    /// The number of buckets, and of peers in the fullest one.
    pub(super) fn buckets(&self) -> (usize, usize) {
        (self.buckets.len(), self.buckets.iter().map(Bucket::len).max().unwrap_or(0))
    }

    /// The expected [`bytes`](Self::bytes), counted piece by piece. Checks other running totals too.
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
