//! Torrents and peers: how many swarms have one peer, how large the largest is, what all take in memory.

use super::figures::Bytes;

/// Swarms and the peers in them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Population {
    pub(crate) torrents: f64,
    pub(crate) peers: f64,
    /// Swarms of one peer.
    pub(crate) singles: f64,
    /// Peers of the largest swarm.
    pub(crate) largest: f64,
    /// Share of the peers that have IPv6.
    pub(crate) ipv6: f64,
}

impl Population {
    /// Sizes by Zipf's law: the n-th largest swarm has `largest / n` peers, and none has fewer than one.
    /// `singles` are the swarms that the law gives less than one peer and a half.
    pub(crate) fn zipf(torrents: f64, peers: f64) -> Self {
        let peers_if = |largest: f64| {
            let with_more = largest.min(torrents);
            largest * harmonic(with_more) + torrents - with_more
        };
        let (mut low, mut high) = (1.0, peers);
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            if peers_if(middle) <= peers { low = middle } else { high = middle }
        }
        let singles = torrents - (low / 1.5).min(torrents).floor();
        Self { torrents, peers, singles, largest: low, ipv6: 0.0 }
    }

    /// The share of all peers on the machine with the largest swarm; the other swarms are spread evenly.
    pub(crate) fn busiest_share(&self, machines: u32) -> f64 {
        let largest = self.largest / self.peers;
        largest + (1.0 - largest) / f64::from(machines)
    }

    /// Bytes of memory of all swarms.
    pub(crate) fn bytes(&self, bytes: &Bytes) -> f64 {
        let swarm = bytes.swarm_of_ten - 10.0 * bytes.v4_peer;
        let v6_peers = self.ipv6 * self.peers * (bytes.v6_peer - bytes.v4_peer);
        self.singles * bytes.swarm_of_one
            + (self.torrents - self.singles) * swarm
            + (self.peers - self.singles) * bytes.v4_peer
            + v6_peers
    }
}

/// The sum of `1 / n` for n from 1 to `last`: term by term at first, then as an integral.
fn harmonic(last: f64) -> f64 {
    let whole = last.min(1000.0).floor();
    (1..=whole as u32).map(|n| f64::from(n).recip()).sum::<f64>() + ((last + 0.5) / (whole + 0.5)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{
        figures::{Engine, Figures},
        near,
    };

    #[test]
    fn sizes_follow_the_law() {
        // 8 + 8/2 + 8/3 + ... + 8/8 = 21.743, and two more swarms of one peer.
        let ten = Population::zipf(10.0, 23.743);
        near(ten.largest, 8.0, 1e-3);
        near(ten.singles, 5.0, 0.0);
        // Counted swarm by swarm: 52 million peers in the largest.
        near(Population::zipf(1e8, 1e9).largest, 52e6, 0.01);
        near(Population::zipf(7.0, 7.0).singles, 7.0, 0.0);
    }

    #[test]
    fn bytes_of_a_mix_are_those_that_were_measured() {
        // docs/design/packed-store.md: 1 M swarms, 4.53 M peers, a tenth of them IPv6: 66.6 bytes per swarm.
        let packed = Figures::of(None, Engine::Module).costs().unwrap().packed;
        let mix = Population { ipv6: 0.1, ..Population::zipf(1e6, 4.53e6) };
        near(mix.bytes(&packed) / 1e6, 66.6, 0.05);
    }
}
