//! Where an info hash belongs: its shard, its key in that shard, and its leaf.
//!
//! The permuted info hash is uniform. Its first bits are the shard. The rest is stretched by a factor
//! between one and two that differs from shard to shard. Without it, all shards would have about the same
//! size, and so would their leaves. All leaves would outgrow one size of blocks at the same time, and leave
//! pages of half-empty blocks (measured: 33.4 bytes per swarm where 27.7 are needed, at 10 M swarms). With
//! it, leaves of all sizes between one and two times the smallest exist at any time.

use super::{
    hash::{Key, Permutation},
    leaf::slot::Prefix,
    linear,
};
use crate::{HashKey, InfoHash};

/// Maps info hashes to 2^`bits` shards.
pub(super) struct Placement {
    permutation: Permutation,
    bits: u32,
}

/// Where an info hash belongs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Placed {
    pub(super) shard: usize,
    pub(super) key: Key,
}

impl Placed {
    /// The bytes of a cursor. No info hash need belong here: an export may stop at the first key of a leaf.
    pub(super) fn to_bytes(self) -> [u8; 22] {
        let mut bytes = [0; 22];
        bytes[..2].copy_from_slice(&(self.shard as u16).to_be_bytes());
        bytes[2..].copy_from_slice(&self.key.0);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (shard, key) = bytes.split_first_chunk()?;
        Some(Self { shard: u16::from_be_bytes(*shard).into(), key: Key(key.try_into().ok()?) })
    }
}

/// The leaf in which a swarm belongs. Valid as long as the number of leaves in the shard stays `leaves`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeafLocation {
    pub(super) leaf: usize,
    pub(super) prefix: Prefix,
    pub(super) leaves: usize,
}

impl LeafLocation {
    /// The leaf of a swarm in a shard of `leaves` leaves. All their keys begin with `home`.
    #[inline]
    pub(super) fn new(home: Prefix, key: &Key, leaves: usize) -> Self {
        let range = linear::range_of(key.head() << home.depth, leaves);
        Self { leaf: range.bucket, prefix: home.extended(range), leaves }
    }
}

impl Placement {
    pub(super) fn new(key: HashKey, shards: usize) -> Self {
        Self { permutation: Permutation::new(key), bits: shards.ilog2() }
    }

    #[inline]
    pub(super) fn place(&self, info_hash: &InfoHash) -> Placed {
        let permuted = self.permutation.permute(info_hash);
        let head = permuted.head();
        let shard = (head >> 1 >> (63 - self.bits)) as usize;
        let within = head & (u64::MAX >> self.bits);
        let stretched = (u128::from(within) * u128::from(self.factor(shard))) >> ONE.ilog2();
        Placed { shard, key: permuted.with_head(stretched as u64) }
    }

    /// The inverse of [`place`](Self::place) for one shard.
    pub(super) fn of_shard(&self, shard: usize) -> ShardPlacement<'_> {
        let factor = self.factor(shard);
        let reciprocal = (u128::MAX >> (128 - 80)) / u128::from(factor);
        let shard = (shard as u64) << 1 << (63 - self.bits);
        ShardPlacement { permutation: &self.permutation, shard, factor, reciprocal: reciprocal as u64 }
    }

    /// The bits that all keys of a shard share: zeroes, since the number of the shard is not stored. They
    /// are one fewer than the bits of that number: keys are stretched into that one.
    pub(super) const fn home(&self) -> Prefix {
        Prefix { bits: 0, depth: self.bits.saturating_sub(1) }
    }

    /// The factor by which the keys of a shard are stretched, in 65,536ths. The golden section spreads the
    /// factors evenly.
    fn factor(&self, shard: usize) -> u64 {
        // A single shard has no bit to stretch into.
        if self.bits == 0 { ONE } else { ONE + (shard as u64 * 40_503) % ONE }
    }
}

const ONE: u64 = 1 << 16;

/// Computes the info hashes of one shard from their keys.
#[derive(Clone, Copy)]
pub(super) struct ShardPlacement<'a> {
    permutation: &'a Permutation,
    /// The number of the shard, in the most significant bits.
    shard: u64,
    factor: u64,
    /// 2^80 divided by the factor: a division of 64 bits takes longer than all other work here.
    reciprocal: u64,
}

impl ShardPlacement<'_> {
    #[inline]
    pub(super) fn info_hash(&self, key: &Key) -> InfoHash {
        self.permutation.invert(&key.with_head(self.shard | self.unstretched(key.head())))
    }

    /// Stretched neighbours are at least one apart, so rounding up undoes the rounding down.
    #[inline]
    fn unstretched(&self, word: u64) -> u64 {
        let mut whole = ((u128::from(word) * u128::from(self.reciprocal)) >> 64) as u64;
        let mut rest = (u128::from(word) << ONE.ilog2()) - u128::from(whole) * u128::from(self.factor);
        // The reciprocal is a little too small: the loop runs once or twice.
        while rest > 0 {
            rest = rest.saturating_sub(self.factor.into());
            whole += 1;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Random, SplitMix64};

    fn hash(n: u32) -> InfoHash {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        InfoHash::new(bytes)
    }

    #[test]
    fn info_hashes_come_back_and_keep_the_order_of_their_permutation() {
        for shards in [1, 2, 64, 4096, 65_536] {
            let placement = Placement::new(HashKey::from_bytes(*b"another secret 1"), shards);
            let mut placed: Vec<_> = (0..5000).map(|n| (placement.place(&hash(n)), hash(n))).collect();
            for (place, hash) in &placed {
                assert!(place.shard < shards);
                assert!(place.key.head().leading_zeros() >= placement.home().depth);
                assert_eq!(placement.of_shard(place.shard).info_hash(&place.key), *hash, "{shards} shards");
            }
            placed.sort_by_key(|(place, _)| (place.shard, place.key));
            assert!(placed.is_sorted_by_key(|(_, hash)| placement.permutation.permute(hash)));
        }
    }

    /// Undoes the stretching by a division of 128 bits.
    fn divided(word: u64, factor: u64) -> u64 {
        (u128::from(word) << ONE.ilog2()).div_ceil(u128::from(factor)) as u64
    }

    #[test]
    fn a_reciprocal_gives_the_same_as_a_division() {
        let mut rng = SplitMix64::new(1);
        for bits in 0..=16 {
            let placement = Placement::new(HashKey::from_bytes([3; 16]), 1 << bits);
            let last = (1_usize << bits) - 1;
            let shards = (0..=last).step_by(1 + last / 300).chain([last]);
            for shard in shards {
                let of_shard = placement.of_shard(shard);
                let factor = placement.factor(shard);
                assert!((ONE..2 * ONE).contains(&factor));
                // The range of stretched words, and values around it.
                let most = u64::MAX >> bits;
                let edges = [0, 1, 2, most / 2, most - 1, most]
                    .into_iter()
                    .map(|within| ((u128::from(within) * u128::from(factor)) >> ONE.ilog2()) as u64);
                let random = std::iter::from_fn(|| Some(rng.next_u64() >> bits.max(1) << 1)).take(20);
                for word in edges.chain(random).chain((0..64).map(|n| (1 << n) - 1)) {
                    if divided(word, factor) > most {
                        continue;
                    }
                    assert_eq!(of_shard.unstretched(word), divided(word, factor), "{word:#x} by {factor}");
                }
                for within in [0, 1, 2, most / 3, most - 1, most, rng.next_u64() & most] {
                    let head = (shard as u64) << 1 << (63 - bits) | within;
                    let info_hash = placement.permutation.invert(&Key([0x5a; 20]).with_head(head));
                    let placed = placement.place(&info_hash);
                    let back = (placed.shard, of_shard.info_hash(&placed.key));
                    assert_eq!(back, (shard, info_hash), "{within:#x} of 2^{bits}");
                }
            }
        }
    }
}
