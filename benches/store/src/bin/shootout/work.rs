//! The workloads of a shootout and their sizes.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use swarmkeep_workload::Workload;

/// A workload, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Many swarms of one IPv4 peer.
    OnePeer,
    /// One swarm of many IPv4 peers.
    OneSwarm,
    /// Sizes by Zipf's law.
    Zipf,
    /// Nearly all announces to one swarm.
    Hot,
}

/// How large the workloads are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Swarms of `one-peer` and `zipf`, peers of `one-swarm`.
    pub(crate) swarms: u32,
    /// Peers of `zipf`.
    pub(crate) peers: u64,
}

/// Who announces: in as few words as one process needs to tell another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Population {
    /// As many peers in each swarm; the share of `ipv6` among them.
    Uniform { swarms: u64, each: u32, ipv6: f64 },
    /// Sizes by Zipf's law; a tenth of the peers have IPv6.
    Zipf { swarms: u64, peers: u64 },
    /// A swarm of `peers` gets nine announces in ten; a tenth of the peers have IPv6.
    Hot { peers: u32, others: u64 },
}

impl Kind {
    /// The population itself. Bytes a swarm and a peer are those of IPv4 where there is one kind only, as
    /// others publish them.
    pub(crate) fn population(self, size: Size) -> Population {
        match self {
            Self::OnePeer => Population::ipv4(size.swarms.into(), 1),
            Self::OneSwarm => Population::ipv4(1, size.swarms),
            Self::Zipf => Population::Zipf { swarms: size.swarms.into(), peers: size.peers },
            Self::Hot => {
                Population::Hot { peers: 1000.min(size.swarms), others: u64::from(size.swarms) / 10 }
            }
        }
    }

    /// Whether bytes are measured on it, a swarm or a peer.
    pub(crate) fn tells_bytes(self) -> bool {
        self != Self::Hot
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}

impl Population {
    /// Swarms of as many IPv4 peers each.
    pub(crate) const fn ipv4(swarms: u64, each: u32) -> Self {
        Self::Uniform { swarms, each, ipv6: 0.0 }
    }

    /// The announces of these peers.
    pub(crate) fn workload(self, seed: u64) -> Workload {
        match self {
            Self::Uniform { swarms, each, ipv6 } => {
                Workload::uniform(seed, swarms, each).with_profile(|profile| profile.ipv6 = ipv6)
            }
            Self::Zipf { swarms, peers } => Workload::zipf(seed, swarms, peers),
            Self::Hot { peers, others } => Workload::hot(seed, peers, others),
        }
    }

    /// The same with a share of its swarms or, where there is one swarm, of its peers.
    pub(crate) const fn divided_by(self, divisor: u32) -> Self {
        match self {
            Self::Uniform { swarms: 1, each, ipv6 } => {
                Self::Uniform { swarms: 1, each: each / divisor, ipv6 }
            }
            Self::Uniform { swarms, each, ipv6 } => {
                Self::Uniform { swarms: swarms / divisor as u64, each, ipv6 }
            }
            Self::Zipf { swarms, peers } => {
                Self::Zipf { swarms: swarms / divisor as u64, peers: peers / divisor as u64 }
            }
            Self::Hot { peers, others } => Self::Hot { peers, others: others / divisor as u64 },
        }
    }
}
