//! The worth of the swarms of a sample, by the networks of their peers.

use super::{Operation, Shard, SwarmLocation, evict::WHOLE};
use crate::{
    CompactV4, CompactV6, Endpoint, Role,
    packed::{
        clock::Tick,
        crowd::{self, Network, UNIT},
        large::LargeSwarm,
        leaf::slot::{Prefix, SlotContent},
        place::Placed,
        prefetch::prefetch_lines,
        reservation::NoRoom,
    },
};

/// The worth of a swarm to a full store.
///
/// In a sample, each network has one unit of worth. All sampled swarms in which it has a peer share it
/// equally, and the size of a swarm is the sum of its shares. So no number of announces, ports and made-up
/// swarms gives a network more than its unit. The swarms of a flood from few networks share few units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::packed) struct Worth {
    /// Whether it is more than the worth of the newcomer.
    pub(in crate::packed) is_more: bool,
    /// 0 without peers, or if all have expired. Counts by powers of two, so among swarms of similar size the
    /// stale one goes.
    pub(in crate::packed) size: u32,
    /// Whether the swarm [has shown that it lives](crate::packed::leaf::slot::PROVEN).
    proven: bool,
    latest: Tick,
}

impl Worth {
    /// Whether it is less than that of two networks, and no more than that of the newcomer or not proven.
    pub(in crate::packed) const fn is_cheap(&self) -> bool {
        self.size <= UNIT.ilog2() + 1 && !(self.is_more && self.proven)
    }
}

/// An announce that needs room, and the worth of its swarm.
#[derive(Debug)]
pub(in crate::packed) struct Newcomer {
    pub(in crate::packed) placed: Placed,
    pub(in crate::packed) now: Tick,
    pub(in crate::packed) endpoint: Option<Endpoint>,
    pub(in crate::packed) full: NoRoom,
    networks: Vec<Network>,
    proven: bool,
    /// Whether the swarm has other peers, which may go for this one.
    pub(in crate::packed) has_others: bool,
    /// The part of its network's unit that the peer is worth, beside others of this network in the swarm.
    pub(in crate::packed) share: u64,
    /// Whether the swarm has more peers than one that goes as a whole.
    pub(in crate::packed) is_popular: bool,
}

/// A swarm that may go, and its worth.
pub(in crate::packed) type Candidate = (Worth, Placed);

/// The number of swarms in the sample, how many of them are small, and the swarms of least worth: of small
/// ones, which go as a whole, and of larger ones.
#[derive(Debug, Default)]
pub(in crate::packed) struct Census {
    pub(in crate::packed) sampled: usize,
    pub(in crate::packed) sampled_small: usize,
    pub(in crate::packed) small: Option<Candidate>,
    pub(in crate::packed) large: Option<Candidate>,
    /// The shares of the newcomer in a sample: where only small swarms are in it, the least so far.
    own: u64,
}

impl Census {
    /// Whether an announce that needs a swarm to go as a whole has looked at a sample that is mostly large.
    fn is_mostly_large(&self, full: NoRoom) -> bool {
        full == NoRoom::Swarms && self.sampled >= EVICTION_SAMPLE && 2 * self.sampled_small < self.sampled
    }

    /// The swarm that is worth least of all.
    pub(in crate::packed) fn least(&self) -> Option<Candidate> {
        self.small.into_iter().chain(self.large).min_by_key(|(worth, _)| *worth)
    }
}

/// Swarms among which the one worth least is chosen. If a fifth of all swarms are flood, a sample of 64
/// contains none of them once in a million times.
pub(in crate::packed) const EVICTION_SAMPLE: usize = 64;
/// Peers of more networks than this add no worth.
const NETWORKS: usize = 8;
/// The places of a large swarm where peers are looked at, and the most in one of them.
const PLACES: u64 = 3;
const IN_PLACE: usize = 8;

impl Shard {
    /// An announce of `endpoint` to the swarm of the operation, which may exist.
    pub(in crate::packed) fn newcomer(
        &self,
        op: &Operation<'_>,
        endpoint: Option<Endpoint>,
        full: NoRoom,
    ) -> Newcomer {
        let own = endpoint.as_ref().map(Endpoint::as_bytes);
        let mut newcomer = Newcomer {
            placed: *op.placed,
            now: op.now,
            endpoint,
            full,
            networks: own.map(Network::of).into_iter().collect(),
            proven: false,
            has_others: false,
            share: UNIT,
            is_popular: false,
        };
        if let Some(at) = self.find(op) {
            let leaf = &self.leaves[at.leaf];
            let is_there = endpoint.is_some_and(|own| leaf.locate(at.slot, &own).is_some());
            let peers = self.population(at).peers();
            newcomer.has_others = peers > u64::from(is_there);
            newcomer.is_popular = peers > WHOLE;
            newcomer.share = own.map_or(UNIT, |own| self.share_of(op, at, own));
            if newcomer.share == UNIT {
                self.add_networks(op.context.draw(), at, &mut newcomer.networks);
                newcomer.proven = leaf.is_proven(at.slot);
            }
        }
        newcomer
    }

    /// Adds a sample of swarms to a census: from the key of the operation on, without the newcomer's swarm.
    pub(in crate::packed) fn census(&self, op: &Operation<'_>, newcomer: &Newcomer, census: &mut Census) {
        if self.is_empty() {
            return;
        }
        let own = if op.placed.shard == newcomer.placed.shard {
            self.find(&Operation { placed: &newcomer.placed, ..*op })
        } else {
            None
        };
        let mut members = Vec::with_capacity(4 * (1 + EVICTION_SAMPLE));
        members.extend(newcomer.networks.iter().map(|network| network.member(0)));
        let mut shares = [0; 1 + EVICTION_SAMPLE];
        // Looking at large swarms takes long. Once many were seen, small ones are looked for among more, but
        // not in tables, where some that have shrunk are until a sweep.
        let only_small = census.is_mostly_large(newcomer.full);
        let most = if only_small { 2 * EVICTION_SAMPLE } else { EVICTION_SAMPLE };
        let others = self.around(op).filter(|&(_, at)| Some(at) != own).take(most);
        let sample: Vec<_> = others
            .inspect(|_| census.sampled += 1)
            .filter(|&(_, at)| !only_small || self.large_at(at).is_none() && self.is_small(at))
            .inspect(|&(_, at)| _ = self.prefetch_swarm(at))
            .take(EVICTION_SAMPLE)
            .collect();
        // Large swarms take long to come from memory: their tables, and then the peers that are looked at.
        let large = || sample.iter().filter_map(|&(_, at)| self.large_at(at));
        large().for_each(LargeSwarm::prefetch_tables);
        let seed = op.context.draw();
        large().flat_map(|large| large.runs(seed, PLACES, 1)).for_each(prefetch_lines::<2>);
        let mut networks = Vec::with_capacity(NETWORKS);
        for (nth, &(_, at)) in (1..).zip(&sample) {
            // Some peers of one network, however many, do not take the place of others.
            self.add_networks(seed, at, &mut networks);
            members.extend(networks.drain(..).map(|network| network.member(nth)));
        }
        let units = match newcomer.full {
            NoRoom::Bytes(_) => crowd::UNITS_FOR_BYTES,
            _ => crowd::UNITS,
        };
        crowd::share(&mut members, units, |nth, share| shares[nth] += share);
        let worth = |shares: u64, proven, latest| Worth {
            is_more: false,
            size: shares.checked_ilog2().map_or(0, |log| log + 1),
            proven,
            latest,
        };
        // A new swarm may displace a swarm of equal worth; a swarm that grows may not.
        let latest = if newcomer.has_others { Tick::EARLIEST } else { op.now };
        // However many share it, it is more than expired swarms.
        let own = (shares[0] * newcomer.share / UNIT).max((newcomer.share < UNIT).into());
        // The large swarms of a flood share the unit of a newcomer from its network.
        let own = if only_small { own.min(census.own) } else { own };
        census.own = own;
        let own = worth(own, newcomer.proven, latest);
        for ((prefix, at), shares) in sample.into_iter().zip(&shares[1..]) {
            let leaf = &self.leaves[at.leaf];
            let latest = self.latest(at);
            let shares = if op.context.clock.is_expired(latest, op.now) { 0 } else { *shares };
            let worth = worth(shares, leaf.is_proven(at.slot), latest);
            let worth = Worth { is_more: worth > own, ..worth };
            let is_small = self.is_small(at);
            census.sampled_small += usize::from(is_small);
            let least = if is_small { &mut census.small } else { &mut census.large };
            if least.is_none_or(|(least, _)| worth < least) {
                *least = Some((worth, Placed { key: leaf.key(prefix, at.slot), ..*op.placed }));
            }
        }
    }

    /// Whether a swarm may go as a whole.
    fn is_small(&self, at: SwarmLocation) -> bool {
        self.population(at).peers() <= WHOLE
    }

    /// All swarms, from the key of the operation on and then from the first one. Neighbours in the order of
    /// permuted keys are as good as random ones.
    fn around(&self, op: &Operation<'_>) -> impl Iterator<Item = (Prefix, SwarmLocation)> {
        // No swarm is seen twice: the second part ends where the first began.
        let end = op.placed.key.head();
        let behind = self.swarms_from(op.home, op.placed.key);
        let before = self.swarms_from(op.home, op.home.first_key());
        behind.chain(
            before.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end),
        )
    }

    /// Adds the networks of some peers of a swarm, up to [`NETWORKS`] in all.
    fn add_networks(
        &self,
        seed: u64,
        SwarmLocation { leaf, slot }: SwarmLocation,
        networks: &mut Vec<Network>,
    ) {
        let leaf = &self.leaves[leaf];
        let mut is_enough = |network| {
            if !networks.contains(&network) {
                networks.push(network);
            }
            networks.len() >= NETWORKS
        };
        match leaf.content(slot) {
            SlotContent::Empty(_) => {}
            SlotContent::One(one) => _ = is_enough(Network::of(&one.endpoint())),
            SlotContent::Few(few) => {
                let v4 = leaf.endpoints::<{ CompactV4::LEN }>(slot, few, Role::Seeder);
                let v6 = leaf.endpoints::<{ CompactV6::LEN }>(slot, few, Role::Seeder);
                // Most peers of a network come one after another. None of a swarm that may go as a whole is
                // left out.
                let most = if few.peers() as u64 > WHOLE { PLACES as usize * IN_PLACE } else { usize::MAX };
                let v4 = v4.chunk_by(|a, b| a[..3] == b[..3]).map(|of_one| Network::of(&of_one[0]));
                let v6 = v6.chunk_by(|a, b| a[..6] == b[..6]).map(|of_one| Network::of(&of_one[0]));
                v4.chain(v6).take(most).any(is_enough);
            }
            SlotContent::Large(number) => {
                let runs = self.large(number).runs(seed, PLACES, IN_PLACE);
                runs.map(Network::of).any(is_enough);
            }
        }
    }

    /// The time of the latest announce to a swarm.
    fn latest(&self, SwarmLocation { leaf, slot }: SwarmLocation) -> Tick {
        let leaf = &self.leaves[leaf];
        match leaf.content(slot) {
            SlotContent::Empty(empty) => leaf.base().tick(empty.latest()),
            SlotContent::One(one) => leaf.base().tick(one.stamp()),
            SlotContent::Few(few) => leaf.base().tick(leaf.latest(slot, few)),
            SlotContent::Large(number) => self.large(number).latest,
        }
    }
}
