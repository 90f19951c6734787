//! The buckets of a table by number, and the highest density of peers among them.

use std::ops::{Index, IndexMut};

use super::bucket::Bucket;
use crate::packed::linear;

/// Buckets by number, in segments, so that no insertion moves the headers of all buckets. Most tables have
/// only the first segment.
#[derive(Debug, Default)]
pub(super) struct Directory<const N: usize> {
    pub(super) first: Vec<Bucket<N>>,
    pub(super) others: Vec<Vec<Bucket<N>>>,
}

/// The highest density of a bucket: the number of peers in the table if all buckets were as dense.
///
/// Removals lower the true number. To notice, a hand goes around the buckets and looks at one bucket with
/// each change.
#[derive(Debug, Default)]
pub(super) struct Densest {
    /// At least the true number.
    pub(super) bound: u64,
    /// The highest density among the buckets that the hand has passed in this round.
    pub(super) passed: u64,
    pub(super) hand: u32,
}

impl<const N: usize> Directory<N> {
    /// Buckets per segment. Up to 16 KiB of headers are moved when a segment grows, in less than a
    /// microsecond.
    pub(super) const SEGMENT: usize = 1024;

    /// The number of segments by which the list of segments grows.
    const MORE_SEGMENTS: usize = 16;

    pub(super) fn len(&self) -> usize {
        match self.others.last() {
            Some(last) => self.others.len() * Self::SEGMENT + last.len(),
            None => self.first.len(),
        }
    }

    pub(super) fn get(&self, bucket: usize) -> Option<&Bucket<N>> {
        match bucket.checked_sub(Self::SEGMENT) {
            None => self.first.get(bucket),
            Some(behind) => self.others.get(behind / Self::SEGMENT)?.get(behind % Self::SEGMENT),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Bucket<N>> {
        self.first.iter().chain(self.others.iter().flatten())
    }

    /// The number of peers in the table if all buckets were as dense as this one.
    pub(super) fn density(&self, bucket: usize) -> u64 {
        (self[bucket].len() as u64) << linear::range(bucket, self.len()).depth
    }

    /// Heap bytes of the headers, and of the list of segments. All segments before the last are full.
    pub(super) fn bytes(&self) -> usize {
        let last = self.others.last().unwrap_or(&self.first);
        let headers = self.others.len() * Self::SEGMENT + last.capacity();
        self.others.capacity() * size_of::<Vec<Bucket<N>>>() + headers * size_of::<Bucket<N>>()
    }

    pub(super) fn push(&mut self, bucket: Bucket<N>) {
        if self.len() >= Self::SEGMENT && self.len() % Self::SEGMENT == 0 {
            if self.others.len() == self.others.capacity() {
                self.others.reserve_exact(Self::MORE_SEGMENTS);
            }
            self.others.push(Vec::new());
        }
        let last = self.others.last_mut().unwrap_or(&mut self.first);
        if last.len() == last.capacity() {
            last.reserve_exact((1 + last.len() / 8).min(Self::SEGMENT - last.len()));
        }
        last.push(bucket);
    }

    pub(super) fn pop(&mut self) -> Option<Bucket<N>> {
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
        }
        Some(newest)
    }
}

impl<const N: usize> Index<usize> for Directory<N> {
    type Output = Bucket<N>;

    fn index(&self, bucket: usize) -> &Bucket<N> {
        self.get(bucket).expect("a number of a bucket")
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
    pub(super) fn note(&mut self, density: u64) {
        self.bound = self.bound.max(density);
        self.passed = self.passed.max(density);
    }

    /// Moves the hand by one bucket. After the last bucket, the highest density that it has seen becomes the
    /// bound.
    pub(super) fn advance<const N: usize>(&mut self, buckets: &Directory<N>) {
        if self.hand as usize >= buckets.len() {
            *self = Self { bound: self.passed, passed: 0, hand: 0 };
        }
        self.passed = self.passed.max(buckets.density(self.hand as usize));
        self.hand += 1;
    }
}
