//! The peers of one family and one role: one small array, then linear hashing over many.

use crate::{PeerRecord, Random, Role, Timestamp, packed::hash::EndpointHash};

/// A peer: its endpoint in wire form and the second of its last announce. Bytes only, so that nothing is lost to alignment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<const N: usize> {
    pub(super) endpoint: [u8; N],
    second: [u8; 4],
}

/// Peers in buckets. A bucket holds the endpoints whose order begins with its prefix; buckets split one at a time, in turn
/// (linear hashing, Litwin 1980), so that no announce ever moves more than one bucket's peers.
///
/// Prefixes are taken from the top of the order and number buckets in reverse, so a range of orders is always one bucket or
/// a few whole ones: a listing in that order is stable, however often buckets split and merge meanwhile.
#[derive(Debug, Default)]
pub(super) struct Table<const N: usize> {
    buckets: Vec<Vec<Record<N>>>,
    len: u32,
    /// No bucket holds more; one of many that has shrunk may have held it once.
    fullest: u32,
}

/// Where a peer stands in a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    bucket: usize,
    at: usize,
}

/// A bucket and the orders that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    bucket: usize,
    start: u64,
    /// The first order behind; `None` behind the last bucket.
    pub(super) end: Option<u64>,
}

/// Mean peers a bucket, above which one splits and below which one merges. Around 32, a search stays within ten cache lines
/// and the bucket's own 24 bytes are less than one a peer.
const SPLIT_ABOVE: usize = 32;
const MERGE_BELOW: usize = 12;

/// Randomness that has not hit a peer after so many draws is not random (0.9^256 is 10^-12).
pub(super) const MOST_TRIES: usize = 256;

impl<const N: usize> Record<N> {
    pub(super) fn new(endpoint: [u8; N], second: u32) -> Self {
        Self { endpoint, second: second.to_ne_bytes() }
    }

    pub(super) fn second(&self) -> u32 {
        u32::from_ne_bytes(self.second)
    }

    pub(super) fn show(&self, role: Role) -> PeerRecord
    where
        crate::Endpoint: TryFrom<[u8; N]>,
    {
        let Ok(endpoint) = self.endpoint.try_into() else {
            unreachable!("was an endpoint when it announced")
        };
        let last_announce = Timestamp::from_secs(self.second().into());
        PeerRecord { endpoint, role, last_announce, details: None }
    }
}

impl<const N: usize> Table<N> {
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn find(&self, order: u64, endpoint: &[u8; N]) -> Option<Place> {
        if self.len == 0 {
            return None;
        }
        let bucket = self.reach(order).bucket;
        let at = self.buckets[bucket].iter().position(|record| record.endpoint == *endpoint)?;
        Some(Place { bucket, at })
    }

    pub(super) fn refresh(&mut self, place: Place, second: u32) {
        self.buckets[place.bucket][place.at].second = second.to_ne_bytes();
    }

    /// Adds a peer that is not in the table.
    pub(super) fn insert(&mut self, order: u64, record: Record<N>, hash: &EndpointHash) {
        if self.buckets.is_empty() {
            self.buckets.reserve_exact(1);
            self.buckets.push(Vec::new());
        }
        let bucket = self.reach(order).bucket;
        self.push(bucket, record);
        self.len += 1;
        if self.len() > SPLIT_ABOVE * self.buckets.len() {
            self.split(hash);
        }
    }

    pub(super) fn remove(&mut self, place: Place) -> Record<N> {
        let record = self.buckets[place.bucket].swap_remove(place.at);
        self.len -= 1;
        self.give_back(place.bucket);
        self.merge_while_sparse();
        record
    }

    /// The bucket that an order belongs to, and all orders that do.
    pub(super) fn reach(&self, order: u64) -> Reach {
        let Some(level) = self.buckets.len().checked_ilog2() else {
            return Reach { bucket: 0, start: 0, end: None };
        };
        let reversed = order.reverse_bits();
        let bucket_at = |depth: u32| (reversed & ((1 << depth) - 1)) as usize;
        let split = self.buckets.len() - (1 << level);
        let depth = if bucket_at(level) < split { level + 1 } else { level };
        let shift = 64 - depth;
        let prefix = order.checked_shr(shift).unwrap_or(0);
        Reach {
            bucket: bucket_at(depth),
            start: prefix.checked_shl(shift).unwrap_or(0),
            end: (prefix + 1).checked_shl(shift).filter(|&end| end != 0),
        }
    }

    /// The peers whose orders are within `start..end`, which lies in the bucket of `start`.
    pub(super) fn within<'a>(
        &'a self,
        start: u64,
        end: Option<u64>,
        hash: &'a EndpointHash,
    ) -> impl Iterator<Item = (u64, &'a Record<N>)> {
        let bucket = self.buckets.get(self.reach(start).bucket).map_or(&[][..], Vec::as_slice);
        let ordered = bucket.iter().map(|record| (hash.order(&record.endpoint), record));
        ordered.filter(move |(order, _)| *order >= start && end.is_none_or(|end| *order < end))
    }

    /// Removes those of them that `expired` names; how many there were, and how many went.
    pub(super) fn expire_within(
        &mut self,
        start: u64,
        end: Option<u64>,
        hash: &EndpointHash,
        expired: impl Fn(&Record<N>) -> bool,
    ) -> (usize, usize) {
        let reach = self.reach(start);
        let Some(bucket) = self.buckets.get_mut(reach.bucket) else { return (0, 0) };
        let whole = (reach.start, reach.end) == (start, end);
        let inside = |record: &Record<N>| {
            whole || {
                let order = hash.order(&record.endpoint);
                order >= start && end.is_none_or(|end| order < end)
            }
        };
        let (mut visited, before) = (0, bucket.len());
        bucket.retain(|record| {
            let inside = inside(record);
            visited += usize::from(inside);
            !(inside && expired(record))
        });
        let gone = before - bucket.len();
        self.len -= gone as u32;
        if gone > 0 {
            self.give_back(reach.bucket);
            self.merge_while_sparse();
        }
        (visited, gone)
    }

    /// The peers from a place on: to the end of their buckets, then bucket by bucket.
    pub(super) fn from(&self, place: Place) -> impl Iterator<Item = &Record<N>> {
        let (first, rest) = match self.buckets.get(place.bucket..) {
            Some([first, rest @ ..]) => (first.get(place.at..).unwrap_or_default(), rest),
            _ => (&[][..], &[][..]),
        };
        first.iter().chain(rest.iter().flatten())
    }

    /// The place of a uniformly random peer: a random slot of a random bucket, until there is a peer in it. Of several buckets
    /// the mean one is filled to about a tenth of the fullest at the least, so a few tries find one.
    pub(super) fn random_place(&self, rng: &mut dyn Random) -> Place {
        for _ in 0..MOST_TRIES {
            let (bucket, at) = (rng.below(self.buckets.len()), rng.below(self.fullest as usize));
            if at < self.buckets[bucket].len() {
                return Place { bucket, at };
            }
        }
        Self::first()
    }

    /// The first peer.
    pub(super) const fn first() -> Place {
        Place { bucket: 0, at: 0 }
    }

    /// The peer that has been silent longest, of the first bucket from this order's on that has any.
    pub(super) fn stalest_near(&self, order: u64) -> Option<(u32, Place)> {
        let first = self.reach(order).bucket;
        let (before, behind) = self.buckets.split_at(first.min(self.buckets.len()));
        let numbered = (first..).zip(behind).chain((0..).zip(before));
        let (bucket, records) = numbered.into_iter().find(|(_, records)| !records.is_empty())?;
        let (at, record) = records.iter().enumerate().min_by_key(|(_, record)| record.second())?;
        Some((record.second(), Place { bucket, at }))
    }

    fn push(&mut self, bucket: usize, record: Record<N>) {
        let records = &mut self.buckets[bucket];
        if records.len() == records.capacity() {
            // By an eighth, not by doubling: a bucket is small and a spare record costs as much as a peer.
            records.reserve_exact(1 + records.len() / 8);
        }
        records.push(record);
        self.fullest = self.fullest.max(records.len() as u32);
    }

    fn split(&mut self, hash: &EndpointHash) {
        let new = self.buckets.len();
        let level = new.ilog2();
        let old = new - (1 << level);
        let moves = |record: &mut Record<N>| hash.order(&record.endpoint).reverse_bits() >> level & 1 == 1;
        let moved: Vec<_> = self.buckets[old].extract_if(.., moves).collect();
        self.buckets[old].shrink_to_fit();
        self.buckets.push(moved);
        self.buckets[new].shrink_to_fit();
    }

    fn merge_while_sparse(&mut self) {
        while self.buckets.len() > 1 && self.len() < MERGE_BELOW * self.buckets.len() {
            let last = self.buckets.pop().expect("more than one");
            let into = self.buckets.len() - (1 << self.buckets.len().ilog2());
            self.buckets[into].reserve_exact(last.len());
            for record in last {
                self.push(into, record);
            }
        }
        if self.buckets.len() < self.buckets.capacity() / 4 {
            self.buckets.shrink_to(self.buckets.len() * 2);
        }
        match &self.buckets[..] {
            [] | [_] if self.len == 0 => *self = Self::default(),
            [only] => self.fullest = only.len() as u32,
            _ => {}
        }
    }

    fn give_back(&mut self, bucket: usize) {
        let records = &mut self.buckets[bucket];
        if records.len() < records.capacity() / 2 {
            records.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::HashKey;

    fn endpoint(n: u32) -> [u8; 6] {
        let [a, b, c, d] = n.to_be_bytes();
        [a, b, c, d, 0x1a, 0xe1]
    }

    fn filled(count: u32, hash: &EndpointHash) -> Table<6> {
        let mut table = Table::default();
        for n in 0..count {
            table.insert(hash.order(&endpoint(n)), Record::new(endpoint(n), n), hash);
        }
        table
    }

    fn all(table: &Table<6>, hash: &EndpointHash) -> Vec<(u64, [u8; 6])> {
        let (mut start, mut found) = (0, Vec::new());
        loop {
            let end = table.reach(start).end;
            let mut some: Vec<_> =
                table.within(start, end, hash).map(|(order, r)| (order, r.endpoint)).collect();
            some.sort_unstable();
            found.extend(some);
            match end {
                Some(end) => start = end,
                None => return found,
            }
        }
    }

    #[test]
    fn peers_are_found_while_buckets_split_and_merge() {
        let hash = EndpointHash::new(HashKey::from_bytes([5; 16]));
        let count = 3000;
        let mut table = filled(count, &hash);
        assert!(table.buckets.len() > 90, "{} buckets", table.buckets.len());
        for gone in 0..count {
            let place = table.find(hash.order(&endpoint(gone)), &endpoint(gone)).expect("still there");
            assert_eq!(table.remove(place).second(), gone);
            assert!(table.find(hash.order(&endpoint(gone)), &endpoint(gone)).is_none());
            if gone % 100 == 0 {
                assert_eq!(all(&table, &hash).len(), table.len());
            }
        }
        assert_eq!((table.len(), table.buckets.capacity()), (0, 0));
    }

    #[test]
    fn the_order_of_a_listing_does_not_depend_on_the_buckets() {
        let hash = EndpointHash::new(HashKey::from_bytes([6; 16]));
        for count in [0, 1, 31, 33, 64, 65, 127, 1000, 1025] {
            let found = all(&filled(count, &hash), &hash);
            let expected: BTreeSet<_> = (0..count).map(|n| (hash.order(&endpoint(n)), endpoint(n))).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{count} peers");
        }
    }

    #[test]
    fn no_insert_moves_more_than_a_bucket() {
        let hash = EndpointHash::new(HashKey::from_bytes([7; 16]));
        let table = filled(100_000, &hash);
        let fullest = table.buckets.iter().map(Vec::len).max().unwrap();
        assert!(fullest <= 128, "a bucket of {fullest}");
        assert!(table.fullest >= fullest as u32);
    }

    #[test]
    fn expiry_visits_each_peer_once() {
        let hash = EndpointHash::new(HashKey::from_bytes([8; 16]));
        let mut table = filled(5000, &hash);
        let (mut start, mut visited, mut gone) = (0, 0, 0);
        loop {
            let end = table.reach(start).end;
            let (seen, removed) = table.expire_within(start, end, &hash, |record| record.second() % 5 != 0);
            (visited, gone) = (visited + seen, gone + removed);
            let Some(end) = end else { break };
            start = end;
        }
        assert_eq!((visited, gone, table.len()), (5000, 4000, 1000));
    }
}
