//! Eviction: what a swarm is worth, and which swarm or peer goes when there is no room.

use super::{Operation, Stripe, SwarmLocation};
use crate::{
    Announce, Changes,
    announce::Transition,
    packed::{
        bounds::{MAX_GROWTH, MAX_REPLACEMENT},
        clock::Tick,
        leaf::{Leaf, slot::SlotContent},
        reservation::Reservation,
    },
    totals::Population,
};

/// What a swarm is worth to a full store. Swarms that have not shown that they live go before those that
/// have, small swarms before large ones, stale swarms before fresh ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::packed) struct Worth {
    proven: bool,
    /// The size counts by powers of two, so among swarms of similar size the stale one goes.
    size: u32,
    latest: Tick,
}

impl Worth {
    /// A new swarm displaces swarms without peers and swarms that have not shown that they live. It displaces
    /// no other swarm while there are such swarms.
    pub(super) const NEWCOMER: Self = Self::new(true, 1, Tick::EARLIEST);

    const fn new(proven: bool, peers: u64, latest: Tick) -> Self {
        let size = match peers.checked_ilog2() {
            Some(log) => log + 1,
            None => 0,
        };
        Self { proven, size, latest }
    }
}

/// There is no room for a swarm of this worth, and no swarm in its stripe is worth less.
#[derive(Debug)]
pub(in crate::packed) struct Full(pub(in crate::packed) Worth);

/// Swarms among which the one worth least is chosen. If a fifth of all swarms are flood, a sample of 64
/// contains none of them once in a million times.
pub(in crate::packed) const EVICTION_SAMPLE: usize = 64;
/// The most swarms that one hold of the lock evicts when bytes are needed, and the most peers that one swarm
/// gives up in one hold.
const MAX_EVICTED_SWARMS: usize = 8;
const MAX_EVICTED_PEERS: usize = 32;
/// From this number of peers on, a swarm has plenty: one selection hands out less than a fifth of them.
const SATED: u64 = 1000;

impl Stripe {
    /// The most bytes by which an announce may make the store grow. Most announces only say that a peer is
    /// still there.
    pub(super) fn growth(
        &self,
        op: &Operation<'_>,
        found: Option<SwarmLocation>,
        announce: &Announce,
    ) -> usize {
        let known = found.and_then(|at| match self.content(at) {
            SlotContent::Large(number) => self.large(number).role_of(&op.context.hash, announce),
            _ => {
                let endpoint = &announce.endpoint;
                let peer = self.leaves[at.leaf].locate(at.slot, endpoint.family(), endpoint.as_bytes());
                peer.map(|peer| peer.section.role())
            }
        });
        let changes = Transition::new(announce, known).changes();
        if changes == Changes::REFRESHED || changes.is_empty() {
            return 0;
        }
        // An address at its limit displaces only its own endpoints.
        let limit = op.context.bounds.endpoints_per_address;
        match found.filter(|_| known.is_none()).map(|at| (at, self.content(at))) {
            Some((_, SlotContent::Large(number)))
                if self.large(number).replaces(&op.context.hash, announce, limit) =>
            {
                MAX_REPLACEMENT
            }
            Some((at, SlotContent::One(_) | SlotContent::Few(_)))
                if changes == Changes::JOINED
                    && self.leaves[at.leaf].rival(at.slot, &announce.endpoint, limit).is_some() =>
            {
                0
            }
            _ => MAX_GROWTH,
        }
    }

    /// Reserves the bytes that one announce may need. Swarms of this stripe that are worth less than the
    /// announced swarm are evicted for it. A swarm that has plenty of peers gives up one of its own instead.
    pub(super) fn make_room(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), Full> {
        if reservation.reserve(MAX_GROWTH) {
            return Ok(());
        }
        let own = self.find(op);
        let worth = match own.map_or(0, |at| self.population(at).peers()) {
            0 => Worth::NEWCOMER,
            peers @ 1..SATED => Worth::new(true, peers + 1, op.now),
            SATED.. => match own {
                Some(at) if reservation.reserve(MAX_REPLACEMENT) => {
                    self.evict_peer(op, at, reservation);
                    return Ok(());
                }
                _ => Worth::NEWCOMER,
            },
        };
        if self.evict_swarms(op, reservation, Some(worth)) { Ok(()) } else { Err(Full(worth)) }
    }

    /// Up to [`EVICTION_SAMPLE`] swarms other than that of the operation, with their worths. Neighbours in
    /// the order of permuted keys are as good as random ones.
    fn sample(&self, op: &Operation<'_>) -> impl Iterator<Item = (Worth, SwarmLocation)> {
        let own = self.find(op);
        // No swarm is seen twice: the second part ends where the first began.
        let end = op.key.head();
        let behind = self.swarms_from(op.home, *op.key);
        let around = self.swarms_from(op.home, op.home.first_key());
        let around =
            around.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end);
        let others = behind.chain(around).map(|(_, at)| at).filter(move |&at| Some(at) != own);
        others.take(EVICTION_SAMPLE).map(|at| (self.worth(at), at))
    }

    /// The size of the sample and the least worth in it.
    pub(in crate::packed) fn least(&self, op: &Operation<'_>) -> (usize, Option<Worth>) {
        self.sample(op).fold((0, None), |(count, least), (worth, _)| {
            (count + 1, Some(least.map_or(worth, |least: Worth| least.min(worth))))
        })
    }

    /// Evicts swarms until there is room for one announce. Returns whether there is. With a limit `below`,
    /// evicts up to [`MAX_EVICTED_SWARMS`] swarms that are worth less; without one, a single swarm of any
    /// worth.
    pub(in crate::packed) fn evict_swarms(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
        below: Option<Worth>,
    ) -> bool {
        for _ in 0..below.map_or(1, |_| MAX_EVICTED_SWARMS) {
            if !self.evict_swarm(op, reservation, below) {
                return false;
            }
            self.settle(reservation);
            if reservation.reserve(MAX_GROWTH) {
                return true;
            }
        }
        false
    }

    /// Evicts the swarm that is worth least in a sample, if its worth is less than `below`. Returns whether
    /// it was.
    pub(super) fn evict_swarm(
        &mut self,
        op: &Operation<'_>,
        reservation: &mut Reservation<'_>,
        below: Option<Worth>,
    ) -> bool {
        let least = self.sample(op).min_by_key(|(worth, _)| *worth);
        let Some((_, at)) = least.filter(|&(worth, _)| below.is_none_or(|below| worth < below)) else {
            return false;
        };
        let (_, population, large) = self.remove_at(at);
        self.changing(at.leaf, Leaf::compact);
        reservation.evict_swarm(population, large);
        true
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

    fn worth(&self, at: SwarmLocation) -> Worth {
        let leaf = &self.leaves[at.leaf];
        let worth = |proven, peers, latest| Worth::new(proven, peers, leaf.base().tick(latest));
        match leaf.content(at.slot) {
            SlotContent::Empty(empty) => worth(empty.proven(), 0, empty.latest()),
            SlotContent::One(one) => worth(one.proven(), 1, one.stamp()),
            SlotContent::Few(few) => {
                let latest = leaf.stamps(at.slot, few).iter().copied().max().unwrap_or(0);
                worth(few.proven(), few.peers() as u64, latest)
            }
            SlotContent::Large(number) => {
                let large = self.large(number);
                Worth::new(true, large.population().peers(), large.latest)
            }
        }
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
