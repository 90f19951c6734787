//! Eviction: a swarm of few peers goes as a whole, and a swarm of many gives up some.

use super::{Operation, Shard, SwarmLocation};
use crate::{
    Endpoint,
    packed::{
        clock::Tick,
        crowd,
        large::{SAMPLED_SLOTS, block_bytes},
        leaf::{
            Leaf,
            slot::{Section, SlotContent},
        },
        reservation::Reservation,
    },
    totals::Population,
};

/// A swarm of up to this number of peers goes as a whole. A larger one is not evicted for one newcomer.
pub(in crate::packed) const WHOLE: u64 = 64;
/// The peers that a larger swarm gives up for bytes at once, at most.
pub(in crate::packed) const SHARE: usize = 4;

impl Shard {
    /// Evicts the swarm of the operation, or up to `share` peers if it has many. Returns the bytes that they
    /// took; blocks shrink by several of them at a time.
    pub(in crate::packed) fn evict(
        &mut self,
        op: &Operation<'_>,
        share: usize,
        reservation: &mut Reservation<'_>,
    ) -> u64 {
        let Some(at) = self.find(op) else { return 0 };
        if self.population(at).peers() > WHOLE {
            return self.evict_peers(op, at, None, share, reservation);
        }
        let used = self.used;
        let (_, population, large) = self.remove_at(at);
        self.changing(at.leaf, Leaf::compact);
        let bytes = used - self.used + large.as_ref().map_or(0, |large| large.bytes());
        reservation.evict(1, population);
        reservation.dropped.extend(large);
        // A shard without swarms must not keep the bytes of its leaf from others.
        self.merge_some(op.home, reservation);
        bytes as u64
    }

    /// Evicts up to `most` peers of a swarm that are worth least beside `newcomer`. Returns the bytes that
    /// they took.
    pub(in crate::packed) fn evict_peers(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        newcomer: Option<&Endpoint>,
        most: usize,
        reservation: &mut Reservation<'_>,
    ) -> u64 {
        let newcomer = newcomer.map(Endpoint::as_bytes);
        let mut gone = Population::default();
        if let SlotContent::Large(number) = self.content(at) {
            gone = self.changing_large(number, |large| large.evict(op.context, op.now, newcomer, most));
        } else {
            let least = crowd::least(op.context, op.now, newcomer, self.few(at), most);
            for (role, endpoint) in least {
                let peer = self.leaves[at.leaf].locate(at.slot, &endpoint);
                self.changing(at.leaf, |leaf| leaf.take(at.slot, peer.expect("it is one of its peers")));
                gone += Population::one(endpoint.family(), role);
            }
            self.changing(at.leaf, Leaf::compact);
        }
        reservation.evict(0, gone);
        block_bytes(gone) as u64
    }

    /// The share of `newcomer` in the unit of its network, or in those of an IPv6 prefix around it, in a
    /// sample of its swarm.
    pub(super) fn share_of(&self, op: &Operation<'_>, at: SwarmLocation, newcomer: &[u8]) -> u64 {
        match self.large_at(at) {
            Some(large) => crowd::share_of(newcomer, large.sample(op.context.draw(), SAMPLED_SLOTS)),
            None => crowd::share_of(newcomer, self.few(at)),
        }
    }

    /// The peers of a swarm of few.
    fn few(&self, at: SwarmLocation) -> impl Iterator<Item = (Section, &[u8], Tick)> {
        let leaf = &self.leaves[at.leaf];
        let peers = leaf.peers(at.slot);
        peers.map(|(section, endpoint, stamp)| (section, endpoint, leaf.base().tick(stamp)))
    }
}
