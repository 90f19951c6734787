//! The design of the store of `aquatic_udp` 0.9, which is no library: 16 shards per family, each a lock
//! around an ordered hash map of swarms; each swarm behind its own lock, with up to two peers in place, and
//! more in an ordered hash map.
//!
//! An announce works as in the original: it removes the announcer, selects peers, and inserts the announcer
//! again. Of a swarm with more than `want` peers, it selects two runs, each from a random peer of one half
//! on. Nothing reads the counts of seeders and some fields of a peer: they are there for their cost.

use std::{mem, sync::Arc};

use arrayvec::ArrayVec;
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use parking_lot::{RwLock, RwLockUpgradableReadGuard};
use swarmkeep::{Announce, AnnounceEvent, CompactV4, CompactV6, Endpoint, Random as _, SplitMix64};

use crate::stores::{Input, NOW, Store, WANT};

/// Swarms by family.
#[derive(Default)]
pub(crate) struct Aquatic {
    v4: Shards<{ CompactV4::LEN }>,
    v6: Shards<{ CompactV6::LEN }>,
}

#[derive(Default)]
struct Shards<const N: usize>([RwLock<Swarms<N>>; 16]);

type Swarms<const N: usize> = IndexMap<[u8; 20], Arc<RwLock<Swarm<N>>>, RandomState>;

enum Swarm<const N: usize> {
    Few(ArrayVec<([u8; N], Peer), 2>),
    Many { peers: IndexMap<[u8; N], Peer, RandomState>, seeders: usize },
}

#[derive(Clone, Copy)]
struct Peer {
    _id: [u8; 20],
    is_seeder: bool,
    _valid_until: u32,
}

impl Store for Aquatic {
    fn announce(&self, input: &Input, rng: &mut SplitMix64) -> usize {
        match input.announce.endpoint {
            Endpoint::V4(v4) => self.v4.announce(&input.announce, *v4.as_bytes(), WANT, rng),
            Endpoint::V6(v6) => self.v6.announce(&input.announce, *v6.as_bytes(), WANT, rng),
        }
    }

    fn update(&self, input: &Input, rng: &mut SplitMix64) {
        match input.announce.endpoint {
            Endpoint::V4(v4) => self.v4.announce(&input.announce, *v4.as_bytes(), 0, rng),
            Endpoint::V6(v6) => self.v6.announce(&input.announce, *v6.as_bytes(), 0, rng),
        };
    }
}

impl<const N: usize> Shards<N> {
    fn announce(&self, announce: &Announce, endpoint: [u8; N], want: usize, rng: &mut SplitMix64) -> usize {
        let info_hash = announce.info_hash.as_bytes();
        let shard = &self.0[usize::from(info_hash[0]) % self.0.len()];
        let swarm = {
            let shard = shard.upgradable_read();
            let known = shard.get(info_hash).map(Arc::clone);
            known.unwrap_or_else(|| {
                Arc::clone(RwLockUpgradableReadGuard::upgrade(shard).entry(*info_hash).or_default())
            })
        };
        let stays = announce.event != AnnounceEvent::Stopped;
        let peer =
            Peer { _id: announce.peer_id.into(), is_seeder: announce.left == 0, _valid_until: NOW as u32 };
        // Freed after the lock is released.
        let selected = swarm.write().announce(endpoint, stays.then_some(peer), want, rng);
        selected.len()
    }
}

impl<const N: usize> Default for Swarm<N> {
    fn default() -> Self {
        Self::Few(ArrayVec::new())
    }
}

impl<const N: usize> Swarm<N> {
    fn announce(
        &mut self,
        endpoint: [u8; N],
        peer: Option<Peer>,
        want: usize,
        rng: &mut SplitMix64,
    ) -> Vec<[u8; N]> {
        self.remove(&endpoint);
        let selected = self.select(want, rng);
        if let Some(peer) = peer {
            self.insert(endpoint, peer);
        }
        selected
    }

    fn remove(&mut self, endpoint: &[u8; N]) {
        match self {
            Self::Few(peers) => peers.retain(|(other, _)| other != endpoint),
            Self::Many { peers, seeders } => {
                if let Some(peer) = peers.swap_remove(endpoint) {
                    *seeders -= usize::from(peer.is_seeder);
                }
            }
        }
    }

    fn insert(&mut self, endpoint: [u8; N], peer: Peer) {
        if let Self::Few(few) = self {
            match few.try_push((endpoint, peer)) {
                Ok(()) => return,
                Err(_) => {
                    let peers: IndexMap<_, _, RandomState> = mem::take(few).into_iter().collect();
                    let seeders = peers.values().filter(|peer| peer.is_seeder).count();
                    *self = Self::Many { peers, seeders };
                }
            }
        }
        if let Self::Many { peers, seeders } = self {
            *seeders += usize::from(peer.is_seeder);
            peers.insert(endpoint, peer);
        }
    }

    fn select(&self, want: usize, rng: &mut SplitMix64) -> Vec<[u8; N]> {
        match self {
            Self::Few(peers) => peers.iter().take(want).map(|(endpoint, _)| *endpoint).collect(),
            Self::Many { peers, .. } if peers.len() <= want => peers.keys().copied().collect(),
            Self::Many { peers, .. } => {
                let (middle, each) = (peers.len() / 2, want / 2);
                let mut selected = Vec::with_capacity(want);
                for (half, count) in [(0..middle, each), (middle..peers.len(), want - each)] {
                    let last = half.len().saturating_sub(count);
                    let word = u128::from(rng.next_u64());
                    let from = half.start + ((word * last as u128) >> 64) as usize;
                    selected.extend(peers.keys().skip(from).take(count));
                }
                selected
            }
        }
    }
}
