//! The workloads of a shootout and their sizes.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use swarmkeep_workload::Workload;

/// A workload, as named on the command line and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Swarms of `one-peer` and `zipf`, peers of `one-swarm`.
    pub(crate) swarms: u32,
    /// Peers of `zipf`.
    pub(crate) peers: u64,
}

impl Kind {
    /// The workload itself.
    pub(crate) fn workload(self, size: Size, seed: u64) -> Workload {
        // Bytes a swarm and a peer are those of IPv4 where there is one kind only, as others publish them.
        let ipv4 = |workload: Workload| workload.with_profile(|profile| profile.ipv6 = 0.0);
        match self {
            Self::OnePeer => ipv4(Workload::uniform(seed, size.swarms.into(), 1)),
            Self::OneSwarm => ipv4(Workload::uniform(seed, 1, size.swarms)),
            Self::Zipf => Workload::zipf(seed, size.swarms.into(), size.peers),
            Self::Hot => Workload::hot(seed, 1000.min(size.swarms), u64::from(size.swarms) / 10),
        }
    }

    /// Whether bytes are measured on it, a swarm or a peer.
    pub(crate) fn tells_bytes(self) -> bool {
        self.tells_bytes_per_swarm() || self.tells_bytes_per_peer()
    }

    /// In a single large swarm, bytes a swarm say nothing.
    pub(crate) fn tells_bytes_per_swarm(self) -> bool {
        matches!(self, Self::OnePeer | Self::Zipf)
    }

    /// In swarms of one peer, bytes a peer would be bytes a swarm.
    pub(crate) fn tells_bytes_per_peer(self) -> bool {
        matches!(self, Self::OneSwarm | Self::Zipf)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}
