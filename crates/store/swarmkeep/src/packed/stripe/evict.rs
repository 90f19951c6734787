//! Eviction: which swarm or peer goes when there is no room.

use super::{Operation, Stripe, SwarmLocation, census::Worth};
use crate::{
    Announce, Changes, Role,
    packed::{
        bounds::{MAX_GROWTH, WITHOUT_SPLIT},
        hash::Network,
        large::Large,
        leaf::{Leaf, slot::SlotContent},
        reservation::Reservation,
    },
    totals::Population,
};

/// There is no room, and each sampled swarm of this stripe is worth more than `own`. `network`: of the
/// announcing peer.
#[derive(Debug)]
pub(in crate::packed) struct Full {
    pub(in crate::packed) network: Option<Network>,
    pub(in crate::packed) own: Worth,
}

/// The most swarms that one hold of the lock evicts when bytes are needed, and the most peers that one swarm
/// gives up in one hold.
const MAX_EVICTED_SWARMS: usize = 8;
const MAX_EVICTED_PEERS: usize = 32;
/// From this number of peers on, a swarm has plenty: one selection hands out less than a fifth of them.
const SATED: u64 = 1000;

impl Stripe {
    /// The role of the announcer, if it is in its swarm.
    pub(super) fn role_of(
        &self,
        op: &Operation<'_>,
        found: Option<SwarmLocation>,
        announce: &Announce,
    ) -> Option<Role> {
        found.and_then(|at| match self.content(at) {
            SlotContent::Large(number) => self.large(number).role_of(&op.context.hash, announce),
            _ => {
                let endpoint = &announce.endpoint;
                let peer = self.leaves[at.leaf].locate(at.slot, endpoint.family(), endpoint.as_bytes());
                peer.map(|peer| peer.section.role())
            }
        })
    }

    /// The most bytes by which a newcomer may make the store grow: few if it takes the place of another
    /// endpoint of its address or network. Takes as long as its announce.
    pub(super) fn growth(
        &self,
        op: &Operation<'_>,
        found: Option<SwarmLocation>,
        announce: &Announce,
        changes: Changes,
    ) -> usize {
        let limit = op.context.bounds.endpoints_per_address;
        match found.map(|at| (at, self.content(at))) {
            Some((_, SlotContent::Large(number)))
                if changes.contains(Changes::JOINED)
                    && !self.large(number).must_split(announce)
                    && self.large(number).replaces(&op.context.hash, announce, limit) =>
            {
                WITHOUT_SPLIT
            }
            // With a long download count, a block may be too long for one more change.
            Some((at, content @ (SlotContent::One(_) | SlotContent::Few(_))))
                if changes == Changes::JOINED
                    && !matches!(content, SlotContent::Few(few) if few.len() > Leaf::MAX_BLOCK)
                    && self.leaves[at.leaf].rival(at.slot, &announce.endpoint, limit).is_some() =>
            {
                0
            }
            _ => MAX_GROWTH,
        }
    }

    /// Evicts a peer of a swarm that has plenty of them, if that makes room for the announce. Returns whether
    /// it does.
    pub(super) fn replace_own(
        &mut self,
        op: &Operation<'_>,
        found: Option<SwarmLocation>,
        announce: &Announce,
        reservation: &mut Reservation<'_>,
    ) -> bool {
        let fits = |large: &Large| large.population().peers() >= SATED && !large.must_split(announce);
        match found {
            Some(at) if self.large_at(at).is_some_and(fits) && reservation.reserve(WITHOUT_SPLIT) => {
                self.evict_peer(op, at, reservation);
                true
            }
            _ => false,
        }
    }

    /// Evicts up to [`MAX_EVICTED_SWARMS`] swarms of this stripe that are not worth more than `most`, by default
    /// the announced swarm, until the bytes for one announce from `network` are reserved.
    pub(in crate::packed) fn evict_swarms(
        &mut self,
        op: &Operation<'_>,
        network: Option<Network>,
        most: Option<Worth>,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), Full> {
        let mut evicted = 0;
        loop {
            let own = self.evict_swarm(op, network, most, reservation)?;
            self.settle(reservation);
            evicted += 1;
            if reservation.reserve(MAX_GROWTH) {
                return Ok(());
            }
            if evicted == MAX_EVICTED_SWARMS {
                return Err(Full { network, own });
            }
        }
    }

    /// Evicts the swarm that is worth least in a sample, if it is not worth more than `most`, by default the
    /// announced swarm. Returns that bound.
    pub(in crate::packed) fn evict_swarm(
        &mut self,
        op: &Operation<'_>,
        network: Option<Network>,
        most: Option<Worth>,
        reservation: &mut Reservation<'_>,
    ) -> Result<Worth, Full> {
        let census = self.census(op, network);
        let own = most.unwrap_or(census.own);
        let Some((_, at)) = census.least.filter(|(worth, _)| *worth <= own) else {
            return Err(Full { network, own });
        };
        let (_, population, large) = self.remove_at(at);
        self.changing(at.leaf, Leaf::compact);
        reservation.evict_swarm(population, large);
        Ok(own)
    }

    /// Evicts up to [`MAX_EVICTED_PEERS`] peers of the swarm of the operation, until there is room for one
    /// announce. Returns whether there is.
    pub(in crate::packed) fn evict_own_peers(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
    ) -> bool {
        for _ in 0..MAX_EVICTED_PEERS {
            let Some(at) = self.find(op).filter(|&at| self.population(at).peers() > 0) else {
                return false;
            };
            self.evict_peer(op, at, reservation);
            self.settle(reservation);
            if reservation.reserve(MAX_GROWTH) {
                return true;
            }
        }
        false
    }

    /// Evicts the peer of a swarm that has been silent longest; in a large swarm, the one in a sample.
    pub(super) fn evict_peer(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        reservation: &mut Reservation<'_>,
    ) {
        let gone = match self.content(at) {
            SlotContent::Large(number) => {
                // As good as random, and different each time.
                let evicted = op.context.totals.load().evicted.peers;
                let order = op.context.hash.hash(&evicted.to_le_bytes());
                self.changing_large(number, |large| large.evict(order))
            }
            _ => {
                let stalest = self.leaves[at.leaf].stalest(at.slot);
                let Some(peer) = stalest else { return };
                self.changing(at.leaf, |leaf| {
                    leaf.take(at.slot, peer);
                    leaf.compact();
                });
                Population::one(peer.section.family(), peer.section.role())
            }
        };
        reservation.evict_peer(gone);
    }
}
