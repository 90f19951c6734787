//! Linear hashing (Litwin 1980): buckets split and merge one at a time, in turn, so that no insertion moves
//! more than one of them.
//!
//! A bucket contains the items with an order that begins with its prefix. So a range of orders is always a
//! part of one bucket, or a few whole buckets: a listing in that order is stable, however often buckets split
//! and merge meanwhile.
//!
//! Buckets split in the order of their prefixes, and the upper half of each gets the next number. So the
//! number of a bucket is its prefix without the last bit that is set and the zeroes behind it, with a bit
//! before the prefix: `101` has number 6 (`1` `10`), and so have `1010` and `10100`.

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
#[inline]
pub(super) fn range_of(order: u64, buckets: usize) -> BucketRange {
    let buckets = buckets.max(1) as u64;
    let level = buckets.ilog2();
    let has_split = leading(order, level) < buckets - (1 << level);
    let depth = level + u32::from(has_split);
    let prefix = leading(order, depth);
    BucketRange {
        bucket: number(prefix, depth),
        depth,
        start: order_of(prefix, depth).unwrap_or(0),
        end: order_of(prefix + 1, depth),
    }
}

/// The range of a bucket.
pub(super) fn range(bucket: usize, buckets: usize) -> BucketRange {
    range_of(start_of(bucket), buckets)
}

/// The bucket that splits to create bucket `newest`, and into which that bucket merges.
pub(super) fn buddy(newest: usize) -> usize {
    let level = newest.ilog2();
    number(newest as u64 - (1 << level), level)
}

/// The bit, counted from the most significant one, that says whether an order belongs to `newest` or to its
/// buddy.
pub(super) const fn splitting_bit(newest: usize) -> u32 {
    newest.ilog2()
}

/// The first order of a bucket, however many buckets there are.
fn start_of(bucket: usize) -> u64 {
    let Some(level) = bucket.checked_ilog2() else { return 0 };
    // The bit before the prefix makes room for the last bit of it.
    (bucket as u64) << (64 - level - 1) << 1 | 1 << (63 - level)
}

/// The first `depth` bits.
const fn leading(order: u64, depth: u32) -> u64 {
    order >> 1 >> (63 - depth)
}

fn number(prefix: u64, depth: u32) -> usize {
    let marked = 1 << depth | prefix;
    (marked >> 1 >> marked.trailing_zeros()) as usize
}

/// The first order with a prefix; `None` after the last one.
fn order_of(prefix: u64, depth: u32) -> Option<u64> {
    (prefix < 1 << depth).then(|| prefix << (63 - depth) << 1)
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
                assert_eq!(range(here.bucket, buckets), here);
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
