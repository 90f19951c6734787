//! The order in which a full store evicts swarms.

use std::collections::{BTreeMap, BTreeSet};

use swarmkeep::{Endpoint, Family, InfoHash, Timestamp};

use super::Swarm;

/// The network of a peer, the IPv4 /24 or the IPv6 /48, filled up with zeroes; or the /40 or /32 around it.
pub(crate) type Network = (Family, [u8; 18]);

/// The worth of a swarm in a full store. Each network has one unit of worth, which all swarms with a peer of
/// it share, and the size of a swarm is the sum of its shares, by powers of two. Among equals, a populated
/// swarm is worth more, then the fresher one. A swarm is populated if a peer has come back after a quarter of
/// the lifetime or more, or if a snapshot contained it.
type Worth = (u32, bool, Timestamp);

/// The swarms by their worth when they changed last.
#[derive(Clone)]
pub(crate) struct Ranks {
    /// Returns the network of a peer.
    pub(crate) network_of: fn(&Endpoint) -> Network,
    /// The most peers of a swarm that count for their networks: the latest announcers.
    pub(crate) looked_at: usize,
    /// The number of peers from which on a swarm is taken for a populated one.
    pub(crate) populated_from: usize,
    /// The widths at which the networks of an IPv6 prefix are one.
    pub(crate) widths: &'static [Width],
    /// The number of memberships of each network, and of each network around them: one per swarm and network.
    members: Members,
    ranked: BTreeMap<InfoHash, (Worth, BTreeSet<Network>)>,
    order: BTreeSet<(Worth, InfoHash)>,
}

/// An IPv6 prefix of this number of bytes is worth no more than this number of networks.
pub(crate) type Width = (usize, u64);

pub(super) const WIDTHS: &[Width] = &[(5, 4), (4, 8)];

/// The members of networks, and of the prefixes around them.
#[derive(Debug, Clone, Default)]
struct Members(BTreeMap<(Network, usize), u64>);

impl Members {
    fn around(network: Network, widths: &'static [Width]) -> impl Iterator<Item = ((Network, usize), u64)> {
        let (family, bytes) = network;
        let wider = widths.iter().filter(move |_| family == Family::V6).map(move |&(len, units)| {
            let mut prefix = [0; 18];
            prefix[..len].copy_from_slice(&bytes[..len]);
            (((family, prefix), len), units)
        });
        [((network, bytes.len()), 1)].into_iter().chain(wider)
    }

    fn add(&mut self, network: Network, widths: &'static [Width]) {
        Self::around(network, widths).for_each(|(prefix, _)| *self.0.entry(prefix).or_default() += 1);
    }

    fn remove(&mut self, network: Network, widths: &'static [Width]) {
        Self::around(network, widths)
            .for_each(|(prefix, _)| *self.0.get_mut(&prefix).expect("a member was counted") -= 1);
    }

    /// Returns the worth of a member of a network.
    fn share(&self, network: Network, widths: &'static [Width]) -> u64 {
        let shares =
            Self::around(network, widths).map(|(prefix, units)| units * Ranks::UNIT / self.0[&prefix]);
        shares.min().expect("a network is around itself")
    }
}

impl Ranks {
    /// One network that is in no other swarm.
    pub(super) const UNIT: u64 = 1 << 16;
    /// Peers of more networks than this add no worth.
    const NETWORKS: usize = 8;

    pub(crate) fn new() -> Self {
        let (members, ranked, order) = (Members::default(), BTreeMap::new(), BTreeSet::new());
        Self {
            network_of,
            looked_at: 256,
            populated_from: usize::MAX,
            widths: WIDTHS,
            members,
            ranked,
            order,
        }
    }

    /// Returns the swarms, the first one to evict in front, and whether each is worth no more than a new one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (InfoHash, bool)> {
        let of_one = Self::UNIT.ilog2() + 1;
        self.order.iter().map(move |&((size, populated, _), info_hash)| {
            (info_hash, size < of_one || size == of_one && !populated)
        })
    }

    pub(crate) fn remove(&mut self, info_hash: &InfoHash) {
        let Some((worth, networks)) = self.ranked.remove(info_hash) else { return };
        self.order.remove(&(worth, *info_hash));
        for network in networks {
            self.members.remove(network, self.widths);
        }
    }

    /// Ranks a swarm as it is now.
    pub(crate) fn set(&mut self, info_hash: InfoHash, swarm: &Swarm) {
        self.remove(&info_hash);
        let mut networks = BTreeSet::new();
        for (_, endpoint) in swarm.by_age.iter().rev().take(self.looked_at) {
            networks.insert((self.network_of)(endpoint));
            if networks.len() == Self::NETWORKS {
                break;
            }
        }
        networks.iter().for_each(|&network| self.members.add(network, self.widths));
        let shares = networks.iter().map(|&network| self.members.share(network, self.widths));
        let size = shares.sum::<u64>().checked_ilog2().map_or(0, |log| log + 1);
        let populated = swarm.populated || swarm.peers.len() >= self.populated_from;
        let worth = (size, populated, swarm.latest);
        self.order.insert((worth, info_hash));
        self.ranked.insert(info_hash, (worth, networks));
    }
}

pub(crate) fn network_of(endpoint: &Endpoint) -> Network {
    let (family, mut network) = (endpoint.family(), [0; 18]);
    let len = if family == Family::V4 { 3 } else { 6 };
    network[..len].copy_from_slice(&endpoint.as_bytes()[..len]);
    (family, network)
}

/// Returns the whole endpoint in place of its network.
pub(crate) fn endpoint_as_network(endpoint: &Endpoint) -> Network {
    let mut network = [0; 18];
    network[..endpoint.as_bytes().len()].copy_from_slice(endpoint.as_bytes());
    (endpoint.family(), network)
}
