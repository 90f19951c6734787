//! Seeded announce mixes: the announces that clients of uniform, Zipf-distributed and hot swarms send to a
//! tracker.
//!
//! A [`Workload`] is a population of peers in swarms, and the announces that they send. Each property of a
//! peer (endpoint, peer id, role) is computed from the seed and the place of the peer in the population. A
//! benchmark can therefore fill ten million swarms, and find each of their peers again, without keeping any
//! of them in memory.
//!
//! ```
//! use swarmkeep_workload::Workload;
//!
//! let workload = Workload::zipf(7, 1_000, 5_000);
//! assert_eq!(workload.fill().count(), 5_000, "each peer once, swarms mixed");
//! let (one, other): (Vec<_>, Vec<_>) =
//!     (workload.announces(0).take(100).collect(), workload.announces(0).take(100).collect());
//! assert_eq!(one, other, "a stream repeats from its seed");
//! ```

mod zipf;

use std::{
    iter::FusedIterator,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
    sync::Arc,
};

use swarmkeep::{Announce, AnnounceEvent, Endpoint, InfoHash, PeerId, Random, SplitMix64};

/// A population of peers in swarms, and the announces that they send.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    shape: Shape,
    profile: Profile,
}

/// The properties of a population. All shares are from 0.0 to 1.0.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The share of peers with an IPv6 endpoint.
    pub ipv6: f64,
    /// The share of peers with nothing left to download.
    pub seeders: f64,
    /// The share of announces with which a peer leaves. The peer joins again with its next announce, so the
    /// mix can go on without end.
    pub stopped: f64,
    /// The share of announces with which a peer finishes its download. A leecher starts a new download with
    /// its next announce, so the mix stays the same over time.
    pub completed: f64,
    /// The number of peers that every announce asks for.
    pub want: usize,
}

impl Default for Profile {
    /// 10 % IPv6, 50 % seeders, 5 % stopped, 1 % completed, 50 peers wanted.
    fn default() -> Self {
        Self { ipv6: 0.1, seeders: 0.5, stopped: 0.05, completed: 0.01, want: 50 }
    }
}

/// The place of a peer in a population: the number of its swarm, and its own number in that swarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerIndex {
    /// The number of the swarm. If sizes differ, swarm 0 is the largest.
    pub swarm: u64,
    /// The number of the peer in that swarm, from 0.
    pub peer: u32,
}

/// The distribution of peers over swarms, and of announces over peers.
#[derive(Debug, Clone)]
enum Shape {
    /// All swarms have the same number of peers; all peers announce equally often.
    Uniform { swarms: u64, peers_each: u32 },
    /// Sizes fall with the rank. All peers announce equally often, so the announces of a swarm are
    /// proportional to its size.
    Zipf { swarms: u64, peers: u64, large: Arc<[u64]> },
    /// One swarm gets nine of ten announces; the others have one peer each.
    Hot { peers: u32, others: u64 },
}

impl Workload {
    /// Returns a workload of `swarms` swarms with `peers_each` peers each. All peers announce equally often.
    pub fn uniform(seed: u64, swarms: u64, peers_each: u32) -> Self {
        Self::new(seed, Shape::Uniform { swarms, peers_each })
    }

    /// Returns a workload of `swarms` swarms with `peers` peers in total, with sizes by Zipf's law: the n-th
    /// largest has 1/n of the peers of the largest, and at least one. All peers announce equally often.
    ///
    /// # Panics
    /// If there are fewer peers than swarms.
    pub fn zipf(seed: u64, swarms: u64, peers: u64) -> Self {
        Self::new(seed, Shape::Zipf { swarms, peers, large: zipf::starts(swarms, peers).into() })
    }

    /// Returns a workload in which one swarm of `peers` peers gets nine of ten announces, and `others` swarms
    /// of one peer get the rest.
    pub fn hot(seed: u64, peers: u32, others: u64) -> Self {
        Self::new(seed, Shape::Hot { peers, others })
    }

    fn new(seed: u64, shape: Shape) -> Self {
        Self { seed, shape, profile: Profile::default() }
    }

    /// Changes the properties of the population.
    #[must_use]
    pub fn with_profile(mut self, change: impl FnOnce(&mut Profile)) -> Self {
        change(&mut self.profile);
        self
    }

    /// Returns the number of swarms in the population.
    pub fn swarms(&self) -> u64 {
        match &self.shape {
            Shape::Uniform { swarms, .. } | Shape::Zipf { swarms, .. } => *swarms,
            Shape::Hot { others, .. } => others + 1,
        }
    }

    /// Returns the number of peers in the population.
    pub fn peers(&self) -> u64 {
        match &self.shape {
            Shape::Uniform { swarms, peers_each } => swarms * u64::from(*peers_each),
            Shape::Zipf { peers, .. } => *peers,
            Shape::Hot { peers, others } => u64::from(*peers) + others,
        }
    }

    /// Returns the place of the `n`-th of all [`peers`](Self::peers).
    pub fn peer_index(&self, n: u64) -> PeerIndex {
        match &self.shape {
            Shape::Uniform { peers_each, .. } => {
                let each = u64::from(*peers_each);
                PeerIndex { swarm: n / each, peer: (n % each) as u32 }
            }
            Shape::Zipf { large, .. } => {
                // After the last start each swarm has one peer.
                let swarm = large.partition_point(|&start| start <= n) - 1;
                let behind = n - large[swarm];
                if swarm + 1 == large.len() {
                    PeerIndex { swarm: swarm as u64 + behind, peer: 0 }
                } else {
                    PeerIndex { swarm: swarm as u64, peer: behind as u32 }
                }
            }
            Shape::Hot { peers, .. } => match n.checked_sub(u64::from(*peers)) {
                None => PeerIndex { swarm: 0, peer: n as u32 },
                Some(other) => PeerIndex { swarm: other + 1, peer: 0 },
            },
        }
    }

    /// Returns the info hash of a swarm.
    pub fn info_hash(&self, swarm: u64) -> InfoHash {
        let mut bytes = [0; 20];
        for (n, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&mix([self.seed, 1 + n as u64, swarm]).to_le_bytes()[..chunk.len()]);
        }
        InfoHash::new(bytes)
    }

    /// Returns the endpoint of a peer. No two peers of a swarm have the same endpoint.
    pub fn endpoint(&self, at: PeerIndex) -> Endpoint {
        let noise = mix([self.seed, 11, at.swarm, u64::from(at.peer)]);
        // A bijection of the number of the peer, so that no two addresses are equal by chance.
        let host = permute(at.peer ^ mix([self.seed, 12, at.swarm]) as u32);
        let ip = if is_among(self.profile.ipv6, mix([noise, 1])) {
            let network = 0x2001_0db8 << 96;
            IpAddr::V6(Ipv6Addr::from(network | u128::from(mix([noise, 2])) << 32 | u128::from(host)))
        } else {
            IpAddr::V4(Ipv4Addr::from(host))
        };
        Endpoint::new(ip, 1024 + (noise % 64_512) as u16).expect("ports start at 1024")
    }

    /// Returns the peer id of a peer. No two peers of a swarm have the same peer id.
    pub fn peer_id(&self, at: PeerIndex) -> PeerId {
        let mut bytes = *b"-KP0001-............";
        bytes[8..12].copy_from_slice(&permute(at.peer).to_le_bytes());
        bytes[12..].copy_from_slice(&mix([self.seed, 21, at.swarm, u64::from(at.peer)]).to_le_bytes());
        PeerId::new(bytes)
    }

    /// Returns the regular announce of a peer.
    pub fn announce(&self, at: PeerIndex) -> Announce {
        let seeder = is_among(self.profile.seeders, mix([self.seed, 31, at.swarm, u64::from(at.peer)]));
        let size = 1 << 30;
        let left = if seeder { 0 } else { size / 2 };
        Announce::new(self.info_hash(at.swarm), self.endpoint(at))
            .peer_id(self.peer_id(at))
            .left(left)
            .transferred(size - left, u64::from(at.peer))
            .want(self.profile.want)
    }

    /// Returns the first announce of every peer, which fill an empty store. Announces of different swarms are
    /// mixed.
    pub fn fill(&self) -> Fill<'_> {
        self.fill_part(0, 1)
    }

    /// Returns part `part` of `parts` disjoint parts of [`fill`](Self::fill), for example for one thread
    /// each.
    ///
    /// # Panics
    /// If `part` is not less than `parts`.
    pub fn fill_part(&self, part: u64, parts: u64) -> Fill<'_> {
        assert!(part < parts, "part {part} of {parts}");
        let peers = self.peers();
        let step = coprime_near(peers, mix([self.seed, 41]) % 1024);
        Fill { workload: self, step, next: peers * part / parts..peers * (part + 1) / parts }
    }

    /// Returns the announces to a running tracker, without end. Streams with different numbers are different
    /// random announces of the same population: use one per thread.
    pub fn announces(&self, stream: u64) -> Announces<'_> {
        Announces { workload: self, rng: SplitMix64::new(mix([self.seed, 51, stream])) }
    }
}

/// The first announce of every peer; see [`Workload::fill`].
#[derive(Debug, Clone)]
pub struct Fill<'a> {
    workload: &'a Workload,
    step: u64,
    next: Range<u64>,
}

impl Iterator for Fill<'_> {
    type Item = Announce;

    fn next(&mut self) -> Option<Announce> {
        let n = u128::from(self.next.next()?);
        let mixed = (n * u128::from(self.step) % u128::from(self.workload.peers())) as u64;
        Some(self.workload.announce(self.workload.peer_index(mixed)).event(AnnounceEvent::Started))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.next.size_hint()
    }
}

impl ExactSizeIterator for Fill<'_> {}

impl FusedIterator for Fill<'_> {}

/// Endless announces; see [`Workload::announces`].
#[derive(Debug, Clone)]
pub struct Announces<'a> {
    workload: &'a Workload,
    rng: SplitMix64,
}

impl Announces<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    fn next_peer(&mut self) -> PeerIndex {
        let n = match self.workload.shape {
            Shape::Hot { peers, others } if others == 0 || is_among(0.9, self.rng.next_u64()) => {
                self.below(u64::from(peers))
            }
            Shape::Hot { peers, others } => u64::from(peers) + self.below(others),
            Shape::Uniform { .. } | Shape::Zipf { .. } => self.below(self.workload.peers()),
        };
        self.workload.peer_index(n)
    }
}

impl Iterator for Announces<'_> {
    type Item = Announce;

    fn next(&mut self) -> Option<Announce> {
        let peer = self.next_peer();
        let announce = self.workload.announce(peer);
        let Profile { stopped, completed, .. } = self.workload.profile;
        let luck = self.rng.next_u64();
        Some(if is_among(stopped, luck) {
            announce.event(AnnounceEvent::Stopped)
        } else if is_among(stopped + completed, luck) {
            announce.event(AnnounceEvent::Completed).left(0)
        } else {
            announce
        })
    }
}

impl FusedIterator for Announces<'_> {}

/// Returns a step that visits all of `0..n` when taken `n` times modulo `n`. It is near the golden section of
/// `n`, so that consecutive visits are far apart.
fn coprime_near(n: u64, offset: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = (n as f64 * 0.618_033_988_749_895) as u64 + offset;
    (start..).find(|&step| gcd(step, n.max(1)) == 1).expect("every range of numbers as long as n holds one")
}

/// Returns whether `luck`, uniform over all 64-bit numbers, is within the share `share` of them.
fn is_among(share: f64, luck: u64) -> bool {
    ((luck >> 11) as f64 / (1_u64 << 53) as f64) < share
}

/// Returns a number that looks random and depends on the words alone.
fn mix<const N: usize>(words: [u64; N]) -> u64 {
    words.into_iter().fold(0, |state, word| SplitMix64::new(state ^ word).next_u64())
}

/// A bijection on 32-bit numbers (the finaliser of MurmurHash3, Appleby 2011).
const fn permute(mut x: u32) -> u32 {
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn near(share: f64, hits: usize, of: usize) -> bool {
        (hits as f64 / of as f64 - share).abs() < 0.01
    }

    #[test]
    fn a_fill_holds_every_peer_once_and_its_parts_are_the_whole() {
        for workload in [
            Workload::zipf(3, 500, 2_000),
            Workload::hot(3, 100, 37),
            Workload::uniform(3, 50, 40),
            Workload::uniform(3, 1, 1),
        ] {
            let whole: Vec<_> = workload.fill().collect();
            let parts: Vec<_> = (0..3).flat_map(|part| workload.fill_part(part, 3)).collect();
            assert_eq!(whole, parts);
            let peers: HashSet<_> =
                whole.iter().map(|announce| (announce.info_hash, announce.endpoint)).collect();
            assert_eq!(peers.len() as u64, workload.peers());
            let ids: HashSet<_> =
                whole.iter().map(|announce| (announce.info_hash, announce.peer_id)).collect();
            assert_eq!(ids.len() as u64, workload.peers());
            let swarms: HashSet<_> = whole.iter().map(|announce| announce.info_hash).collect();
            assert_eq!(swarms.len() as u64, workload.swarms());
        }
    }

    #[test]
    fn zipf_sizes_fall_with_the_rank_and_add_up() {
        for (swarms, peers) in [(1, 1), (1, 50), (10, 10), (1_000, 5_000), (100_000, 500_000)] {
            let workload = Workload::zipf(1, swarms, peers);
            let mut sizes = vec![0_u64; swarms as usize];
            for n in 0..peers {
                let PeerIndex { swarm, peer } = workload.peer_index(n);
                assert_eq!(u64::from(peer), sizes[swarm as usize], "peers of a swarm are numbered from 0");
                sizes[swarm as usize] += 1;
            }
            assert!(sizes.is_sorted_by(|larger, smaller| larger >= smaller) && sizes[sizes.len() - 1] >= 1);
            if swarms > 100 {
                assert!(
                    (sizes[0] as f64 / sizes[9] as f64 - 10.0).abs() < 1.0,
                    "the tenth is a tenth of the first"
                );
            }
        }
    }

    #[test]
    fn announces_have_the_shares_of_the_profile() {
        let workload = Workload::uniform(5, 100, 1_000);
        let of = 100_000;
        let announces: Vec<_> = workload.announces(0).take(of).collect();
        let count =
            |what: &dyn Fn(&Announce) -> bool| announces.iter().filter(|announce| what(announce)).count();
        assert!(near(0.1, count(&|a| matches!(a.endpoint, Endpoint::V6(_))), of));
        assert!(near(0.05, count(&|a| a.event == AnnounceEvent::Stopped), of));
        assert!(near(0.01, count(&|a| a.event == AnnounceEvent::Completed), of));
        assert!(near(0.505, count(&|a| a.left == 0), of));
        assert_eq!(count(&|a| a.want == 50), of);
        assert_eq!(workload.clone().with_profile(|p| p.ipv6 = 0.0).fill().filter(is_v6).count(), 0);
        assert_eq!(workload.with_profile(|p| p.ipv6 = 1.0).fill().filter(is_v6).count(), 100_000);
    }

    fn is_v6(announce: &Announce) -> bool {
        matches!(announce.endpoint, Endpoint::V6(_))
    }

    #[test]
    fn a_stream_is_its_seed_and_its_number() {
        let take =
            |seed, stream| Workload::uniform(seed, 10, 10).announces(stream).take(50).collect::<Vec<_>>();
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn a_hot_swarm_gets_nine_announces_in_ten() {
        let workload = Workload::hot(9, 1_000, 10_000);
        let hot = workload.info_hash(0);
        assert!(near(0.9, workload.announces(0).take(20_000).filter(|a| a.info_hash == hot).count(), 20_000));
    }
}
