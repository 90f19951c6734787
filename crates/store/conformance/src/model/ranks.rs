//! The order in which a full store evicts swarms.

use std::collections::{BTreeMap, BTreeSet};

use swarmkeep::{Endpoint, Family, InfoHash, Timestamp};

use super::Swarm;

/// The network of a peer: the IPv4 /24 or the IPv6 /48, filled up with zeroes.
pub(crate) type Network = (Family, [u8; 18]);

/// What a swarm is worth in a full store. Each network has one unit of worth, which all swarms with a peer of
/// it share, and the size of a swarm is the sum of its shares, by powers of two. Among equals, a populated
/// swarm is worth more, then the fresher one. A swarm is populated if a peer has come back after a quarter of
/// the lifetime or more, or if a snapshot contained it.
type Worth = (u32, bool, Timestamp);

/// The swarms by their worth when they changed last.
pub(crate) struct Ranks {
    /// Returns the network of a peer.
    pub(crate) network_of: fn(&Endpoint) -> Network,
    /// The most peers of a swarm whose networks are looked at: those that announced last.
    pub(crate) looked_at: usize,
    /// The number of peers from which on a swarm is taken for a populated one.
    pub(crate) populated_from: usize,
    /// The number of swarms in which each network has a peer.
    swarms: BTreeMap<Network, u64>,
    ranked: BTreeMap<InfoHash, (Worth, BTreeSet<Network>)>,
    order: BTreeSet<(Worth, InfoHash)>,
}

impl Ranks {
    /// One network that is in no other swarm.
    const UNIT: u64 = 1 << 16;
    /// Peers of more networks than this add no worth.
    const NETWORKS: usize = 8;

    pub(crate) fn new() -> Self {
        let (swarms, ranked, order) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { network_of, looked_at: 256, populated_from: usize::MAX, swarms, ranked, order }
    }

    /// Returns the swarms, the first one to evict in front.
    pub(crate) fn iter(&self) -> impl Iterator<Item = InfoHash> {
        self.order.iter().map(|&(_, info_hash)| info_hash)
    }

    pub(crate) fn remove(&mut self, info_hash: &InfoHash) {
        let Some((worth, networks)) = self.ranked.remove(info_hash) else { return };
        self.order.remove(&(worth, *info_hash));
        for network in networks {
            *self.swarms.get_mut(&network).expect("it has a peer in this one") -= 1;
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
        let shares = networks.iter().map(|&network| {
            let swarms = self.swarms.entry(network).or_default();
            *swarms += 1;
            Self::UNIT / *swarms
        });
        let size = shares.sum::<u64>().checked_ilog2().map_or(0, |log| log + 1);
        let populated = swarm.populated || swarm.peers.len() >= self.populated_from;
        let worth = (size, populated, swarm.latest);
        self.order.insert((worth, info_hash));
        self.ranked.insert(info_hash, (worth, networks));
    }
}

fn network_of(endpoint: &Endpoint) -> Network {
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
