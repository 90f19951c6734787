//! Making room: what a swarm is worth, and which one goes.

use super::{At, Call, Stripe};
use crate::{
    Announce, Changes,
    announce::Transition,
    packed::{
        bounds::{MOST_GROWTH, MOST_REPLACED},
        clock::Tick,
        leaf::{Leaf, slot::Held},
        room::Room,
    },
    totals::Population,
};

/// What a swarm is worth to a full store: flood before swarms that live, small before large, stale before
/// fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::packed) struct Worth {
    proven: bool,
    /// Sizes count by powers of two: among similar ones the stale goes.
    size: u32,
    latest: Tick,
}

impl Worth {
    /// A swarm that comes displaces those without peers and those that have not shown that they live, and no
    /// others while there are such.
    pub(super) const NEWCOMER: Self = Self::new(true, 1, Tick::FIRST);

    const fn new(proven: bool, peers: u64, latest: Tick) -> Self {
        let size = match peers.checked_ilog2() {
            Some(log) => log + 1,
            None => 0,
        };
        Self { proven, size, latest }
    }
}

/// There is no room for a swarm that is worth so much, and nothing in its stripe is worth less.
#[derive(Debug)]
pub(in crate::packed) struct Full(pub(in crate::packed) Worth);

/// Swarms looked at to find the one worth least: where a fifth of all are flood, none of 64 is one in a
/// million times.
pub(in crate::packed) const EVICTION_SAMPLE: usize = 64;
/// Swarms that go at once when bytes are needed, and the peers that one swarm gives up at once: few enough
/// for one hold.
const MOST_EVICTED: usize = 8;
const MOST_PEERS_EVICTED: usize = 32;
/// The peers of a swarm that has plenty: a selection hands out less than a fifth of them.
const SATED: u64 = 1000;

impl Stripe {
    /// How many more bytes an announce may take than the store has already: most only say that a peer is
    /// still there.
    pub(super) fn growth(&self, call: &Call<'_>, found: Option<At>, announce: &Announce) -> usize {
        let known = found.and_then(|at| match self.held(at) {
            Held::Large(number) => self.large(number).role_of(&call.shared.hash, announce),
            _ => {
                let endpoint = &announce.endpoint;
                let place = self.leaves[at.leaf].locate(at.slot, endpoint.family(), endpoint.as_bytes());
                place.map(|place| place.section.role())
            }
        });
        let changes = Transition::new(announce, known).changes();
        if changes == Changes::REFRESHED || changes.is_empty() {
            return 0;
        }
        // An address at its limit displaces only itself.
        let most = call.shared.most.endpoints_per_address;
        match found.filter(|_| known.is_none()).map(|at| (at, self.held(at))) {
            Some((_, Held::Large(number)))
                if self.large(number).replaces(&call.shared.hash, announce, most) =>
            {
                MOST_REPLACED
            }
            Some((at, Held::One(_) | Held::Few(_)))
                if changes == Changes::JOINED
                    && self.leaves[at.leaf].rival(at.slot, &announce.endpoint, most).is_some() =>
            {
                0
            }
            _ => MOST_GROWTH,
        }
    }

    /// Reserves what one announce may need. Swarms of this stripe that are worth less than the one that needs
    /// it go for that; one that has plenty of peers gives up one of them instead.
    pub(super) fn make_room(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> Result<(), Full> {
        if room.reserve(MOST_GROWTH) {
            return Ok(());
        }
        let own = self.find(call);
        let worth = match own.map_or(0, |at| self.population(at).peers()) {
            0 => Worth::NEWCOMER,
            peers @ 1..SATED => Worth::new(true, peers + 1, call.now),
            SATED.. => match own {
                Some(at) if room.reserve(MOST_REPLACED) => {
                    self.evict_peer(call, at, room);
                    return Ok(());
                }
                _ => Worth::NEWCOMER,
            },
        };
        if self.evict_swarms(call, room, Some(worth)) { Ok(()) } else { Err(Full(worth)) }
    }

    /// Swarms other than that of the call, with their worths. Neighbours in the order of permuted keys are as
    /// good as random ones.
    fn sample(&self, call: &Call<'_>) -> impl Iterator<Item = (Worth, At)> {
        let own = self.find(call);
        // Nothing around is seen twice, since it ends where it began.
        let end = call.key.head();
        let behind = self.swarms_from(call.home, *call.key);
        let around = self.swarms_from(call.home, call.home.first_key());
        let around =
            around.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end);
        let others = behind.chain(around).map(|(_, at)| at).filter(move |&at| Some(at) != own);
        others.take(EVICTION_SAMPLE).map(|at| (self.worth(at), at))
    }

    /// How many swarms other than that of the call there are to choose from, and the least worth among them.
    pub(in crate::packed) fn least(&self, call: &Call<'_>) -> (usize, Option<Worth>) {
        self.sample(call).fold((0, None), |(count, least), (worth, _)| {
            (count + 1, Some(least.map_or(worth, |least: Worth| least.min(worth))))
        })
    }

    /// Drops swarms until there is room for one announce; whether there is. Few at once, and one only if they
    /// are worth whatever they are.
    pub(in crate::packed) fn evict_swarms(
        &mut self,
        call: &Call<'_>,
        room: &mut Room<'_>,
        below: Option<Worth>,
    ) -> bool {
        for _ in 0..below.map_or(1, |_| MOST_EVICTED) {
            if !self.evict_swarm(call, room, below) {
                return false;
            }
            self.settle(room);
            if room.reserve(MOST_GROWTH) {
                return true;
            }
        }
        false
    }

    /// Drops the swarm that is worth least in a sample, if that is less than a limit; whether it was.
    pub(super) fn evict_swarm(&mut self, call: &Call<'_>, room: &mut Room<'_>, below: Option<Worth>) -> bool {
        let least = self.sample(call).min_by_key(|(worth, _)| *worth);
        let Some((_, at)) = least.filter(|&(worth, _)| below.is_none_or(|below| worth < below)) else {
            return false;
        };
        let (_, population, large) = self.remove_at(at);
        self.changing(at.leaf, Leaf::compact);
        room.evict_swarm(population, large);
        true
    }

    /// Drops peers of the swarm itself until there is room for one announce; whether there is. Few at once.
    pub(in crate::packed) fn evict_own_peers(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> bool {
        for _ in 0..MOST_PEERS_EVICTED {
            let Some(at) = self.find(call).filter(|&at| self.population(at).peers() > 0) else {
                return false;
            };
            self.evict_peer(call, at, room);
            self.settle(room);
            if room.reserve(MOST_GROWTH) {
                return true;
            }
        }
        false
    }

    fn worth(&self, at: At) -> Worth {
        let leaf = &self.leaves[at.leaf];
        let worth = |proven, peers, latest| Worth::new(proven, peers, leaf.base().tick(latest));
        match leaf.held(at.slot) {
            Held::Nobody(nobody) => worth(nobody.proven(), 0, nobody.latest()),
            Held::One(one) => worth(one.proven(), 1, one.stamp()),
            Held::Few(few) => {
                let latest = leaf.stamps(at.slot, few).iter().copied().max().unwrap_or(0);
                worth(few.proven(), few.peers() as u64, latest)
            }
            Held::Large(number) => {
                let large = self.large(number);
                Worth::new(true, large.population().peers(), large.latest)
            }
        }
    }

    /// Drops the peer of a swarm that has been silent longest, or nearly so.
    pub(super) fn evict_peer(&mut self, call: &Call<'_>, at: At, room: &mut Room<'_>) {
        let gone = match self.held(at) {
            Held::Large(number) => {
                // As good as random, and another one each time.
                let evicted = call.shared.totals.load().evicted.peers;
                let order = call.shared.hash.hash(&evicted.to_le_bytes());
                self.changing_large(number, |large| large.evict(order))
            }
            _ => {
                let stalest = self.leaves[at.leaf].stalest(at.slot);
                let Some(place) = stalest else { return };
                self.changing(at.leaf, |leaf| {
                    leaf.take(at.slot, place);
                    leaf.compact();
                });
                Population::one(place.section.family(), place.section.role())
            }
        };
        room.evict_peer(gone);
    }
}
