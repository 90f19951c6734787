//! The worth of the swarms of a sample, by the networks of their peers.

use super::{
    Operation, Stripe, SwarmLocation,
    evict::{Full, WHOLE},
};
use crate::{
    CompactV4, CompactV6, Endpoint, Family, Role,
    packed::{
        clock::Tick,
        crowd::{self, UNIT},
        hash::{Key, Network},
        leaf::slot::{Prefix, Section, SlotContent},
    },
};

/// The worth of a swarm to a full store.
///
/// In a sample, each network has one unit of worth. All sampled swarms in which it has a peer share it
/// equally, and the size of a swarm is the sum of its shares. So no number of announces, ports and made-up
/// swarms gives a network more than its unit. The swarms of a flood from few networks share few units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::packed) struct Worth {
    /// 0 without peers, or if all have expired. Counts by powers of two, so among swarms of similar size the
    /// stale one goes.
    size: u32,
    /// Whether the swarm [has shown that it lives](crate::packed::leaf::slot::PROVEN).
    proven: bool,
    latest: Tick,
}

/// An announce that needs room, and the worth of its swarm.
#[derive(Debug)]
pub(in crate::packed) struct Newcomer {
    pub(in crate::packed) endpoint: Option<Endpoint>,
    pub(in crate::packed) full: Full,
    networks: Vec<Network>,
    proven: bool,
    latest: Tick,
    /// Whether the swarm has other peers, which may go for this one.
    pub(in crate::packed) has_others: bool,
    /// Whether some of these are of the same network.
    pub(in crate::packed) in_crowd: bool,
    /// Whether the swarm has more peers than one that goes as a whole.
    pub(in crate::packed) is_popular: bool,
}

/// The result of a census.
#[derive(Debug, Default)]
pub(in crate::packed) struct Census {
    pub(in crate::packed) sampled: usize,
    /// The swarm that is worth least of those that go as a whole, and of the larger ones.
    pub(in crate::packed) small: Option<Least>,
    pub(in crate::packed) large: Option<Least>,
}

/// The swarm that is worth least of some.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) struct Least {
    pub(in crate::packed) worth: Worth,
    pub(in crate::packed) key: Key,
    /// Whether it is worth no more than the newcomer.
    pub(in crate::packed) is_less: bool,
}

impl Worth {
    /// Whether a swarm has a smaller size.
    pub(in crate::packed) const fn is_below(self, other: Self) -> bool {
        self.size < other.size
    }

    /// Whether a swarm is worth no more than one network.
    pub(in crate::packed) const fn is_of_one(self) -> bool {
        self.size <= UNIT.ilog2() + 1
    }
}

/// Swarms among which the one worth least is chosen. If a fifth of all swarms are flood, a sample of 64
/// contains none of them once in a million times.
pub(in crate::packed) const EVICTION_SAMPLE: usize = 64;
/// Peers of more networks than this add no worth.
const NETWORKS: usize = 8;
/// The places of a large swarm where peers are looked at, and the most in one of them.
const PLACES: u64 = 3;
const IN_PLACE: usize = 16;

impl Stripe {
    /// An announce of `endpoint` to the swarm of the operation, which may exist.
    pub(in crate::packed) fn newcomer(
        &self,
        op: &Operation<'_>,
        endpoint: Option<Endpoint>,
        full: Full,
    ) -> Newcomer {
        let mut networks: Vec<_> =
            endpoint.map(|endpoint| op.context.hash.network(endpoint.as_bytes())).into_iter().collect();
        let Some(at) = self.find(op) else {
            return Newcomer {
                endpoint,
                full,
                networks,
                proven: false,
                latest: op.now,
                has_others: false,
                in_crowd: false,
                is_popular: false,
            };
        };
        self.add_networks(op, at, &mut networks);
        let is_there = endpoint.is_some_and(|endpoint| {
            self.leaves[at.leaf].locate(at.slot, endpoint.family(), endpoint.as_bytes()).is_some()
        });
        let peers = self.population(at).peers();
        let (has_others, is_popular) = (peers > u64::from(is_there), peers > WHOLE);
        let in_crowd = endpoint.is_some_and(|endpoint| self.is_in_crowd(op, at, endpoint.as_bytes()));
        // A new swarm may displace a swarm of equal worth; a swarm that grows may not.
        let latest = if has_others { Tick::EARLIEST } else { op.now };
        let proven = self.leaves[at.leaf].is_proven(at.slot);
        Newcomer { endpoint, full, networks, proven, latest, has_others, in_crowd, is_popular }
    }

    /// Counts the networks of a sample and of a newcomer. The sample begins at the key of the operation, without
    /// the swarm of the key `own`, the newcomer's.
    pub(in crate::packed) fn census(
        &self,
        op: &Operation<'_>,
        own: Option<&Key>,
        newcomer: &Newcomer,
    ) -> Census {
        if self.is_empty() {
            return Census::default();
        }
        let own = own.and_then(|key| self.find(&Operation { key, ..*op }));
        let mut members = Vec::with_capacity(4 * (1 + EVICTION_SAMPLE));
        members.extend(newcomer.networks.iter().map(|network| network.member(0)));
        let mut shares = [0; 1 + EVICTION_SAMPLE];
        let others = self.around(op).filter(|&(_, at)| Some(at) != own).take(EVICTION_SAMPLE);
        let sample: Vec<_> = others.inspect(|&(_, at)| _ = self.prefetch_swarm(at)).collect();
        let mut networks = Vec::with_capacity(NETWORKS);
        for (nth, &(_, at)) in (1..).zip(&sample) {
            // Some peers of one network, however many, do not take the place of others.
            self.add_networks(op, at, &mut networks);
            members.extend(networks.drain(..).map(|network| network.member(nth)));
        }
        crowd::share(&mut members, |nth, share| shares[nth] += share);
        let worth = |shares: u64, proven, latest| Worth {
            size: shares.checked_ilog2().map_or(0, |log| log + 1),
            proven,
            latest,
        };
        let own = worth(shares[0], newcomer.proven, newcomer.latest);
        let mut least: [Option<(Worth, Prefix, SwarmLocation)>; 2] = [None; 2];
        for (&(prefix, at), &shares) in sample.iter().zip(&shares[1..]) {
            let latest = self.latest(at);
            let shares = if op.context.clock.is_expired(latest, op.now) { 0 } else { shares };
            let worth = worth(shares, self.leaves[at.leaf].is_proven(at.slot), latest);
            let least = &mut least[usize::from(self.population(at).peers() > WHOLE)];
            if least.is_none_or(|(least, ..)| worth < least) {
                *least = Some((worth, prefix, at));
            }
        }
        let [small, large] = least.map(|least| {
            let (worth, prefix, at) = least?;
            let key = self.leaves[at.leaf].key(prefix, at.slot);
            Some(Least { worth, key, is_less: worth <= own })
        });
        Census { sampled: sample.len(), small, large }
    }

    /// All swarms, from the key of the operation on and then from the first one. Neighbours in the order of
    /// permuted keys are as good as random ones.
    fn around(&self, op: &Operation<'_>) -> impl Iterator<Item = (Prefix, SwarmLocation)> {
        // No swarm is seen twice: the second part ends where the first began.
        let end = op.key.head();
        let behind = self.swarms_from(op.home, *op.key);
        let before = self.swarms_from(op.home, op.home.first_key());
        behind.chain(
            before.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end),
        )
    }

    /// Adds the networks of some peers of a swarm, up to [`NETWORKS`] in all.
    fn add_networks(
        &self,
        op: &Operation<'_>,
        SwarmLocation { leaf, slot }: SwarmLocation,
        networks: &mut Vec<Network>,
    ) {
        let (leaf, hash) = (&self.leaves[leaf], &op.context.hash);
        let mut is_enough = |network| {
            if !networks.contains(&network) {
                networks.push(network);
            }
            networks.len() >= NETWORKS
        };
        match leaf.content(slot) {
            SlotContent::Empty(_) => {}
            SlotContent::One(one) => _ = is_enough(hash.network(&one.endpoint())),
            SlotContent::Few(few) => {
                let v4 =
                    leaf.endpoints::<{ CompactV4::LEN }>(slot, few, Section::of(Family::V4, Role::Seeder));
                let v6 =
                    leaf.endpoints::<{ CompactV6::LEN }>(slot, few, Section::of(Family::V6, Role::Seeder));
                // Most peers of a network come one after another.
                let v4 = v4.chunk_by(|a, b| a[..3] == b[..3]).map(|of_one| hash.network(&of_one[0]));
                let v6 = v6.chunk_by(|a, b| a[..6] == b[..6]).map(|of_one| hash.network(&of_one[0]));
                v4.chain(v6).any(is_enough);
            }
            SlotContent::Large(number) => {
                let runs = self.large(number).runs(op.context.draw(), PLACES, IN_PLACE);
                runs.map(|peer| hash.network(peer)).any(is_enough);
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
