//! Keyed hashing: a permutation of info hashes, and the order of endpoints in a table.

use std::fmt;

use crate::{HashKey, InfoHash, Random, SplitMix64};

/// An info hash under the permutation: uniform, whatever strangers choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Key(pub(super) [u8; 20]);

impl Key {
    /// The first eight bytes: they choose where a swarm goes.
    pub(super) fn head(&self) -> u64 {
        self.word(0)
    }

    /// The same key with other first eight bytes.
    pub(super) fn with_head(mut self, head: u64) -> Self {
        self.0[..8].copy_from_slice(&head.to_be_bytes());
        self
    }

    /// The eight bytes from `at` on.
    pub(super) fn word(&self, at: usize) -> u64 {
        let (word, _) = self.0[at..].split_first_chunk().expect("at most 12 bytes are skipped");
        u64::from_be_bytes(*word)
    }
}

/// A keyed permutation of info hashes: a two-round Feistel network over their first sixteen bytes, tweaked by the last four.
///
/// The second word is mixed with a function of the other sixteen bytes, then the first with a function of that. Info hashes
/// that differ anywhere get first words that differ unpredictably, and those choose shard and place.
pub(super) struct Permutation {
    keys: [u64; 4],
}

impl Permutation {
    pub(super) fn new(key: HashKey) -> Self {
        Self { keys: subkeys(key, 1) }
    }

    pub(super) fn permute(&self, info_hash: &InfoHash) -> Key {
        let (mut a, mut b, c) = split(info_hash.as_bytes());
        b ^= self.round(0, a, c);
        a ^= self.round(2, b, c);
        Key(join(a, b, c))
    }

    pub(super) fn invert(&self, key: &Key) -> InfoHash {
        let (mut a, mut b, c) = split(&key.0);
        a ^= self.round(2, b, c);
        b ^= self.round(0, a, c);
        InfoHash::new(join(a, b, c))
    }

    fn round(&self, round: usize, word: u64, tweak: u32) -> u64 {
        let folded = fold(word ^ self.keys[round], u64::from(tweak) ^ self.keys[round + 1]);
        fold(folded ^ self.keys[round + 1], self.keys[round])
    }
}

/// A keyed order of endpoints that no stranger can predict.
pub(super) struct EndpointHash {
    keys: [u64; 4],
}

impl fmt::Debug for EndpointHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointHash(secret)")
    }
}

impl EndpointHash {
    pub(super) fn new(key: HashKey) -> Self {
        Self { keys: subkeys(key, 2) }
    }

    pub(super) fn order<const N: usize>(&self, endpoint: &[u8; N]) -> u64 {
        let [start, multiplier, last, finish] = self.keys;
        let mixed = endpoint.chunks(8).fold(start, |state, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            fold(state ^ u64::from_le_bytes(word), multiplier)
        });
        fold(mixed ^ last, finish)
    }
}

/// Both halves of a 128-bit product, folded into one word.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Independent keys for one purpose. Odd, so that none is zero.
fn subkeys(key: HashKey, purpose: u64) -> [u64; 4] {
    let [low, high] = key.words();
    let mut lows = SplitMix64::new(low ^ purpose);
    let mut highs = SplitMix64::new(high.rotate_left(32) ^ purpose);
    [(); 4].map(|()| (lows.next_u64() ^ highs.next_u64().rotate_left(17)) | 1)
}

fn split(bytes: &[u8; 20]) -> (u64, u64, u32) {
    let (a, rest) = bytes.split_first_chunk().expect("20 bytes hold 8");
    let (b, rest) = rest.split_first_chunk().expect("12 bytes hold 8");
    let c = rest.try_into().expect("4 bytes are left");
    (u64::from_be_bytes(*a), u64::from_be_bytes(*b), u32::from_be_bytes(c))
}

fn join(a: u64, b: u64, c: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&a.to_be_bytes());
    bytes[8..16].copy_from_slice(&b.to_be_bytes());
    bytes[16..].copy_from_slice(&c.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HashKey {
        HashKey::from_bytes(*b"a secret for one")
    }

    type Numbered = fn(u64) -> InfoHash;

    /// Info hashes that agree in all but one part, which counts.
    fn families() -> [(&'static str, Numbered); 3] {
        [
            ("first 8 bytes", |n| InfoHash::new(join(n, 7, 7))),
            ("next 8 bytes", |n| InfoHash::new(join(7, n, 7))),
            ("last 4 bytes", |n| InfoHash::new(join(7, 7, n as u32))),
        ]
    }

    #[test]
    fn the_permutation_can_be_inverted() {
        let permutation = Permutation::new(key());
        for (_, info_hash) in families() {
            for n in 0..1000 {
                let info_hash = info_hash(n * 0x0123_4567);
                assert_eq!(permutation.invert(&permutation.permute(&info_hash)), info_hash);
            }
        }
    }

    #[test]
    fn info_hashes_that_differ_in_one_part_spread_over_all_shards() {
        let permutation = Permutation::new(key());
        for (part, info_hash) in families() {
            let mut shards = [0_u32; 64];
            for n in 0..64_000 {
                shards[(permutation.permute(&info_hash(n)).head() >> 58) as usize] += 1;
            }
            let (least, most) = (shards.iter().min().unwrap(), shards.iter().max().unwrap());
            // Five standard deviations around 1,000.
            assert!(*least > 840 && *most < 1160, "{part}: {least} to {most}");
        }
    }

    #[test]
    fn another_key_is_another_order() {
        let (a, b) = (EndpointHash::new(key()), EndpointHash::new(HashKey::from_bytes([3; 16])));
        assert_ne!(a.order(&[1; 6]), b.order(&[1; 6]));
        assert_ne!(a.order(&[1; 18]), a.order(&[2; 18]));
    }
}
