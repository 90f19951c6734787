//! The workloads of a shootout and their sizes.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use swarmkeep_workload::Workload;

/// A workload, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Many swarms of one IPv4 peer.
    OnePeer,
    /// One swarm of many IPv4 peers.
    OneSwarm,
    /// Sizes by Zipf's law.
    Zipf,
    /// Nearly all announces to one swarm.
    Hot,
}

/// The sizes of the workloads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// The number of swarms of `one-peer` and `zipf`, and of peers of `one-swarm`.
    pub(crate) swarms: u32,
    /// The number of peers of `zipf`.
    pub(crate) peers: u64,
}

/// The peers that announce, in a short form that one process passes to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Population {
    /// The same number of peers in each swarm; the share `ipv6` of them has IPv6.
    Uniform { swarms: u64, each: u32, ipv6: f64 },
    /// Sizes by Zipf's law; a tenth of the peers have IPv6.
    Zipf { swarms: u64, peers: u64 },
    /// A swarm of `peers` peers gets nine of ten announces; a tenth of the peers have IPv6.
    Hot { peers: u32, others: u64 },
}

impl Shape {
    /// Returns the population. Workloads of one kind of peer use IPv4, so that their bytes per swarm and per
    /// peer can be compared with numbers that other projects publish.
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

    /// Returns whether bytes per swarm or per peer are measured on this workload.
    pub(crate) fn tells_bytes(self) -> bool {
        self != Self::Hot
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}

impl Population {
    /// Returns `swarms` swarms of `each` IPv4 peers.
    pub(crate) const fn ipv4(swarms: u64, each: u32) -> Self {
        Self::Uniform { swarms, each, ipv6: 0.0 }
    }

    /// Returns the workload of these peers.
    pub(crate) fn workload(self, seed: u64) -> Workload {
        match self {
            Self::Uniform { swarms, each, ipv6 } => {
                Workload::uniform(seed, swarms, each).with_profile(|profile| profile.ipv6 = ipv6)
            }
            Self::Zipf { swarms, peers } => Workload::zipf(seed, swarms, peers),
            Self::Hot { peers, others } => Workload::hot(seed, peers, others),
        }
    }

    /// Returns the population with its swarms divided by `divisor`, or its peers if there is one swarm.
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
