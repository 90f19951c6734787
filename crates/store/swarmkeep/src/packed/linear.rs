//! Linear hashing (Litwin 1980): buckets split and merge one at a time, in turn, so that no insertion moves
//! more than one of them.
//!
//! A bucket contains the items whose order begins with its prefix. Prefixes are the leading bits of the
//! order, and the number of a bucket is its prefix in reverse. So a range of orders is always a part of one
//! bucket, or a few whole buckets: a listing in that order is stable, however often buckets split and merge
//! meanwhile.

/// A bucket, and the range of orders that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BucketRange {
    pub(super) bucket: usize,
    /// The number of leading bits that all orders of the bucket share.
    pub(super) depth: u32,
    pub(super) start: u64,
    /// The first order after the range; `None` for the last bucket.
    pub(super) end: Option<u64>,
}

/// The bucket of an order among `buckets` buckets; 0 counts as 1.
pub(super) fn range_of(order: u64, buckets: usize) -> BucketRange {
    let level = buckets.max(1).ilog2();
    let reversed = order.reverse_bits();
    let bucket_at = |depth: u32| (reversed & ((1 << depth) - 1)) as usize;
    let depth = depth(bucket_at(level), buckets);
    let shift = 64 - depth;
    let prefix = order.checked_shr(shift).unwrap_or(0);
    BucketRange {
        bucket: bucket_at(depth),
        depth,
        start: prefix.checked_shl(shift).unwrap_or(0),
        end: (prefix + 1).checked_shl(shift).filter(|&end| end != 0),
    }
}

/// The number of leading bits that the orders of a bucket share.
pub(super) fn depth(bucket: usize, buckets: usize) -> u32 {
    let level = buckets.max(1).ilog2();
    let split = buckets.max(1) - (1 << level);
    let at_level = bucket & ((1 << level) - 1);
    if at_level < split { level + 1 } else { level }
}

/// The bucket that splits to create bucket `newest`, and into which that bucket merges.
pub(super) const fn buddy(newest: usize) -> usize {
    newest - (1 << newest.ilog2())
}

/// The bit, counted from the most significant one, that says whether an order belongs to `newest` or to its
/// buddy.
pub(super) const fn splitting_bit(newest: usize) -> u32 {
    newest.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_belongs_to_one_bucket_and_ranges_follow_each_other() {
        for buckets in [0, 1, 2, 3, 5, 8, 13, 64, 100] {
            let (mut start, mut seen) = (0, vec![false; buckets.max(1)]);
            loop {
                let here = range_of(start, buckets);
                assert_eq!(here.start, start);
                assert!(!std::mem::replace(&mut seen[here.bucket], true), "bucket {} twice", here.bucket);
                assert_eq!(depth(here.bucket, buckets), here.depth);
                let last = here.end.map_or(u64::MAX, |end| end - 1);
                assert_eq!(range_of(last, buckets), here);
                let Some(end) = here.end else { break };
                start = end;
            }
            assert!(seen.iter().all(|&seen| seen));
        }
    }

    #[test]
    fn a_new_bucket_takes_the_upper_half_of_its_buddy() {
        for newest in 1..40 {
            for order in [0, 1 << 63, 0x5555 << 48, u64::MAX, 0x0123_4567_89ab_cdef] {
                let (before, after) = (range_of(order, newest).bucket, range_of(order, newest + 1).bucket);
                let upper = order.rotate_left(1 + splitting_bit(newest)) & 1 == 1;
                match before == buddy(newest) {
                    true => assert_eq!(after, if upper { newest } else { before }),
                    false => assert_eq!(after, before),
                }
            }
        }
    }
}
