//! What the swarms of a sample are worth, by the networks of their peers.

use std::iter;

use super::{Operation, Stripe, SwarmLocation};
use crate::{
    CompactV4, CompactV6, Family, Role,
    packed::{
        clock::Tick,
        hash::Network,
        leaf::slot::{Section, SlotContent},
    },
};

/// What a swarm is worth to a full store.
///
/// In a sample, each network has one unit of worth. All sampled swarms in which it has a peer share it
/// equally, and the size of a swarm is the sum of its shares. So no number of announces, ports and made-up
/// swarms gives a network more than its unit. The swarms of a flood from few networks share few units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::packed) struct Worth {
    /// 0 without peers. Counts by powers of two, so among swarms of similar size the stale one goes.
    size: u32,
    /// Whether the swarm [has shown that it lives](crate::packed::leaf::slot::PROVEN).
    proven: bool,
    latest: Tick,
}

/// What a census found: the worth of the announced swarm, the number of other swarms, and the one worth
/// least.
#[derive(Debug)]
pub(in crate::packed) struct Census {
    pub(super) own: Worth,
    pub(in crate::packed) sampled: usize,
    pub(in crate::packed) least: Option<(Worth, SwarmLocation)>,
}

/// A swarm of a census.
struct Counted {
    at: Option<SwarmLocation>,
    peers: u64,
    /// Its shares of the units of its networks.
    shares: u64,
    proven: bool,
    latest: Tick,
}

/// Swarms among which the one worth least is chosen. If a fifth of all swarms are flood, a sample of 64
/// contains none of them once in a million times.
pub(in crate::packed) const EVICTION_SAMPLE: usize = 64;
/// Peers of more networks than this add no worth.
const NETWORKS: usize = 8;
/// The most peers of one family and role of a large swarm whose networks are looked at.
const LOOKED_AT: usize = 64;

impl Stripe {
    /// Counts the networks of a sample and of the announced swarm, to which a peer of `network` announces.
    pub(in crate::packed) fn census(&self, op: &Operation<'_>, network: Option<Network>) -> Census {
        let own = self.find(op);
        let mut swarms = Vec::with_capacity(1 + EVICTION_SAMPLE);
        let mut found = Vec::with_capacity(4 * (1 + EVICTION_SAMPLE));
        found.extend(network.map(|network| network.within(0)));
        for at in iter::once(own).chain(self.sample(op, own).map(Some)) {
            let nth = swarms.len() as u8;
            let first = found.len();
            // Some peers of one network, however many, do not take the place of others.
            swarms.push(self.counted(op, at, |network| {
                let within = network.within(nth);
                if !found[first..].contains(&within) {
                    found.push(within);
                }
                found.len() - first == NETWORKS
            }));
        }
        found.sort_unstable();
        found.dedup();
        for of_one in found.chunk_by(|a, b| a.network() == b.network()) {
            let share = Worth::UNIT / of_one.len() as u64;
            for within in of_one {
                swarms[usize::from(within.index())].shares += share;
            }
        }
        // A new swarm may displace a swarm of equal worth; a swarm that grows may not.
        swarms[0].latest = if swarms[0].peers == 0 { op.now } else { Tick::EARLIEST };
        let others = swarms[1..].iter().filter_map(|swarm| Some((swarm.worth(), swarm.at?)));
        let least = others.min_by_key(|(worth, _)| *worth);
        Census { own: swarms[0].worth(), sampled: swarms.len() - 1, least }
    }

    /// Up to [`EVICTION_SAMPLE`] swarms other than `own`, that of the operation. Neighbours in the order of
    /// permuted keys are as good as random ones.
    fn sample(&self, op: &Operation<'_>, own: Option<SwarmLocation>) -> impl Iterator<Item = SwarmLocation> {
        // No swarm is seen twice: the second part ends where the first began.
        let end = op.key.head();
        let behind = self.swarms_from(op.home, *op.key);
        let around = self.swarms_from(op.home, op.home.first_key());
        let around =
            around.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end);
        let others = behind.chain(around).map(|(_, at)| at).filter(move |&at| Some(at) != own);
        others.take(EVICTION_SAMPLE)
    }

    /// Passes the networks of the peers of a swarm to `is_enough`, until that returns true.
    fn counted(
        &self,
        op: &Operation<'_>,
        at: Option<SwarmLocation>,
        is_enough: impl FnMut(Network) -> bool,
    ) -> Counted {
        let mut counted = Counted { at, peers: 0, shares: 0, proven: false, latest: Tick::EARLIEST };
        let Some(SwarmLocation { leaf, slot }) = at else { return counted };
        let (leaf, hash) = (&self.leaves[leaf], &op.context.hash);
        counted.proven = leaf.is_proven(slot);
        match leaf.content(slot) {
            SlotContent::Empty(empty) => counted.latest = leaf.base().tick(empty.latest()),
            SlotContent::One(one) => {
                counted.peers = 1;
                counted.latest = leaf.base().tick(one.stamp());
                iter::once(hash.network(&one.endpoint())).any(is_enough);
            }
            SlotContent::Few(few) => {
                counted.peers = few.peers() as u64;
                counted.latest = leaf.base().tick(leaf.latest(slot, few));
                let v4 = leaf.endpoints(slot, few, Section::of(Family::V4, Role::Seeder)).iter();
                let v6 = leaf.endpoints(slot, few, Section::of(Family::V6, Role::Seeder)).iter();
                let v4 = v4.map(|peer: &[u8; CompactV4::LEN]| hash.network(peer));
                let v6 = v6.map(|peer: &[u8; CompactV6::LEN]| hash.network(peer));
                v4.chain(v6).any(is_enough);
            }
            SlotContent::Large(number) => {
                let large = self.large(number);
                counted.peers = large.population().peers();
                counted.latest = large.latest;
                large.some_endpoints(LOOKED_AT).map(|peer| hash.network(peer)).any(is_enough);
            }
        }
        counted
    }
}

impl Counted {
    fn worth(&self) -> Worth {
        let size = self.shares.checked_ilog2().map_or(0, |log| log + 1);
        Worth { size, proven: self.proven, latest: self.latest }
    }
}

impl Worth {
    /// One network that is in no other swarm.
    const UNIT: u64 = 1 << 12;
    /// More than any swarm is worth.
    pub(in crate::packed) const MOST: Self = Self { size: u32::MAX, proven: true, latest: Tick::EARLIEST };
}
