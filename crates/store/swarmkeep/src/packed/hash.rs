//! Keyed hashing: a permutation of info hashes, and the order of endpoints in a table.

use crate::{
    Endpoint, HashKey, InfoHash, Random, SplitMix64,
    announce::{limited_networks, widest_network},
};

/// An info hash under the permutation: uniform, whatever info hashes clients choose.
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

/// A keyed permutation of info hashes: a two-round Feistel network over their first sixteen bytes, tweaked by
/// the last four.
///
/// The second word is mixed with a function of the first word and the tweak, then the first word with a
/// function of the new second word and the tweak. Info hashes that differ anywhere get first words that
/// differ unpredictably. The first word determines the shard and the position in it.
pub(super) struct Permutation {
    keys: [u64; 4],
}

impl Permutation {
    pub(super) fn new(key: HashKey) -> Self {
        Self { keys: subkeys(key, 1) }
    }

    #[inline]
    pub(super) fn permute(&self, info_hash: &InfoHash) -> Key {
        let (mut a, mut b, c) = split(info_hash.as_bytes());
        b ^= self.round(0, a, c);
        a ^= self.round(2, b, c);
        Key(join(a, b, c))
    }

    #[inline]
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

/// A keyed order of endpoints that no peer can predict.
///
/// Each endpoint has a position of its own in the order. But if the number of endpoints per address is
/// limited, the endpoints of one address, or one /48 of IPv6, share a few positions, so that they can be
/// counted without looking at all other endpoints.
pub(super) struct EndpointHash {
    keys: [u64; 4],
    /// The most endpoints per address. 0: each endpoint has a position of its own.
    limit: u64,
}

/// About how many endpoints of a network share a position, and so a bucket, which on average has 44 peers of
/// IPv4 or 40 of IPv6. If all networks had this number, the fullest of a million buckets would have about
/// ten times the mean (the number of networks in a bucket has a Poisson distribution), and one draw of a
/// peer in ten would find one. The owner of a network can learn from answers which of its endpoints are near
/// each other, and have all of them at one position; [`Table::crowded`](super::table::Table::crowded) bounds
/// the bucket.
const ENDPOINTS_PER_PLACE: u64 = 32;

impl EndpointHash {
    pub(super) fn new(key: HashKey, endpoints_per_address: Option<usize>) -> Self {
        Self { keys: subkeys(key, 2), limit: endpoints_per_address.unwrap_or(0) as u64 }
    }

    /// The position of an endpoint.
    #[inline]
    pub(super) fn order<const N: usize>(&self, endpoint: &[u8; N]) -> u64 {
        match self.places::<N>() {
            0 => self.hash(endpoint),
            1 => self.place_of_network(endpoint, 0),
            places => {
                let nth = (u128::from(self.hash(endpoint)) * u128::from(places)) >> 64;
                self.place_of_network(endpoint, nth as u64)
            }
        }
    }

    /// The same for an endpoint of any family.
    #[inline]
    pub(super) fn order_of(&self, endpoint: &Endpoint) -> u64 {
        match endpoint {
            Endpoint::V4(v4) => self.order(v4.as_bytes()),
            Endpoint::V6(v6) => self.order(v6.as_bytes()),
        }
    }

    /// The positions of all endpoints of the widest limited network of an endpoint, if they are limited.
    pub(super) fn places_of_network<const N: usize>(&self, endpoint: &[u8; N]) -> impl Iterator<Item = u64> {
        (0..self.places::<N>()).map(|nth| self.place_of_network(endpoint, nth))
    }

    /// The number of positions per network.
    pub(super) fn places<const N: usize>(&self) -> u64 {
        let most = limited_networks(N).last().map_or(0, |(_, times)| self.limit.saturating_mul(*times));
        most.div_ceil(ENDPOINTS_PER_PLACE)
    }

    fn place_of_network<const N: usize>(&self, endpoint: &[u8; N], nth: u64) -> u64 {
        let [start, multiplier, last, finish] = self.keys;
        let (network, mut word) = (widest_network(endpoint), [0; 8]);
        word[..network.len()].copy_from_slice(network);
        let mixed = fold(start ^ u64::from_le_bytes(word), multiplier);
        // `nth` is added only here: no remote peer can choose two networks that have the same positions in
        // turn.
        fold((mixed ^ last).wrapping_add(nth), finish)
    }

    /// A word that is as good as random.
    pub(super) fn hash<const N: usize>(&self, bytes: &[u8; N]) -> u64 {
        let [start, multiplier, last, finish] = self.keys;
        let mixed = bytes.chunks(8).fold(start, |state, chunk| {
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

pub(super) fn join(a: u64, b: u64, c: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&a.to_be_bytes());
    bytes[8..16].copy_from_slice(&b.to_be_bytes());
    bytes[16..].copy_from_slice(&c.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn key() -> HashKey {
        HashKey::from_bytes(*b"a secret for one")
    }

    type Numbered = fn(u64) -> InfoHash;

    /// Info hashes that differ in one part only, a counter.
    fn families() -> [(&'static str, Numbered); 3] {
        [
            ("first 8 bytes", |n| InfoHash::new(join(n, 7, 7))),
            ("next 8 bytes", |n| InfoHash::new(join(7, n, 7))),
            ("last 4 bytes", |n| InfoHash::new(join(7, 7, n as u32))),
        ]
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
        let (a, b) = (EndpointHash::new(key(), None), EndpointHash::new(HashKey::from_bytes([3; 16]), None));
        assert_ne!(a.order(&[1; 6]), b.order(&[1; 6]));
        assert_ne!(a.order(&[1; 18]), a.order(&[2; 18]));
    }

    #[test]
    fn the_endpoints_of_an_address_share_as_many_places_as_their_limit_needs() {
        for (most, places) in [(1, 1), (8, 1), (32, 1), (33, 2), (1000, 32)] {
            let hash = EndpointHash::new(key(), Some(most));
            let endpoint = |n: u16| [[192, 0, 2, 1].as_slice(), &n.to_be_bytes()].concat();
            let endpoint = |n: u16| <[u8; 6]>::try_from(endpoint(n)).expect("six bytes");
            let mut own = BTreeMap::<_, u32>::new();
            (1..=u16::MAX).for_each(|n| *own.entry(hash.order(&endpoint(n))).or_default() += 1);
            assert_eq!(
                own.keys().copied().collect::<BTreeSet<_>>(),
                hash.places_of_network(&endpoint(1)).collect()
            );
            assert_eq!(own.len(), places, "for {most}");
            let (least, most) = (own.values().min().unwrap(), own.values().max().unwrap());
            assert!(most - least < 65_535 / places as u32 / 4, "{least} to {most}");
        }
    }

    #[test]
    fn an_ipv6_address_has_the_places_of_its_48_bits() {
        let endpoint = |upper: u8, lower: u8| {
            let mut bytes = [lower; 18];
            bytes[..6].fill(upper);
            bytes
        };
        for (most, places) in [(1, 1), (2, 2), (8, 7)] {
            let hash = EndpointHash::new(key(), Some(most));
            let own: BTreeSet<_> = (0..=255).map(|lower| hash.order(&endpoint(1, lower))).collect();
            assert_eq!(own, hash.places_of_network(&endpoint(1, 0)).collect());
            assert_eq!(own.len(), places, "for {most}");
            assert!(!own.contains(&hash.order(&endpoint(2, 1))));
        }
    }
}
