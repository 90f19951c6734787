//! What things cost: every constant of the simulation that was measured, with its source, each of them an option.

use serde::Serialize;

/// What an announce, a swarm and a peer cost. Times in microseconds of one core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Costs, each measured unless it says otherwise")]
pub(crate) struct Costs {
    /// µs of a core for a connect over UDP.
    #[arg(long, value_name = "US", default_value = "3.70", value_parser = super::positive)]
    pub(crate) cost_connect: f64,

    /// µs of a core for an announce over UDP on the packed store.
    #[arg(long, value_name = "US", default_value = "3.97", value_parser = super::positive)]
    pub(crate) cost_announce: f64,

    /// Bytes of memory of a swarm in the packed store, its only IPv4 peer included.
    #[arg(long, value_name = "BYTES", default_value = "28.2", value_parser = super::positive)]
    pub(crate) packed_swarm: f64,

    /// Bytes of an IPv4 peer in the packed store, where the swarm has more than one.
    #[arg(long, value_name = "BYTES", default_value = "8.85", value_parser = super::positive)]
    pub(crate) packed_v4_peer: f64,

    /// Bytes of an IPv6 peer in the packed store.
    #[arg(long, value_name = "BYTES", default_value = "21.6", value_parser = super::positive)]
    pub(crate) packed_v6_peer: f64,

    /// µs of the server's core for an announce in Redis that wants 50 peers.
    #[arg(long, value_name = "US", default_value = "13.9", value_parser = super::positive)]
    pub(crate) redis_announce: f64,

    /// µs of the tracker's core for asking Redis, in batches.
    #[arg(long, value_name = "US", default_value = "1.33", value_parser = super::positive)]
    pub(crate) redis_client: f64,

    /// Bytes of memory of a swarm in Redis.
    #[arg(long, value_name = "BYTES", default_value = "108", value_parser = super::positive)]
    pub(crate) redis_swarm: f64,

    /// Bytes of an IPv4 peer in Redis.
    #[arg(long, value_name = "BYTES", default_value = "14", value_parser = super::positive)]
    pub(crate) redis_v4_peer: f64,

    /// Bytes of an IPv6 peer in Redis.
    #[arg(long, value_name = "BYTES", default_value = "27", value_parser = super::positive)]
    pub(crate) redis_v6_peer: f64,

    /// Bytes between tracker and Redis for an announce, both ways, without the peers.
    #[arg(long, value_name = "BYTES", default_value = "141", value_parser = super::positive)]
    pub(crate) redis_wire: f64,

    /// µs of the way to Redis and back, within one data centre; assumed.
    #[arg(long, value_name = "US", default_value = "200", value_parser = super::positive)]
    pub(crate) redis_round_trip: f64,

    /// Bytes that Ethernet adds to a packet: preamble, header, checksum and gap.
    #[arg(long, value_name = "BYTES", default_value = "38", value_parser = super::positive)]
    pub(crate) frame: f64,

    /// Seconds that a million peers take to be loaded from a snapshot.
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = super::positive)]
    pub(crate) load_million: f64,
}

/// Where each of these numbers is from, as the report says it.
pub(crate) const SOURCES: [(&str, &str); 14] = [
    ("cost-connect", "`docs/trackers.md`, load `connect`, row `swarmkeep`: CPU s a million"),
    ("cost-announce", "`docs/trackers.md`, load `cold`, row `swarmkeep`: CPU s a million"),
    ("packed-swarm", "`docs/packed-store.md`, 10 M swarms × 1 IPv4 peer: RSS, B a swarm"),
    ("packed-v4-peer", "`README.md`, row `packed`: RSS B a peer"),
    ("packed-v6-peer", "`docs/packed-store.md`, 1 swarm × 2 M IPv6 peers: RSS, B a peer"),
    ("redis-announce", "`docs/redis-bench.md`, 200 × 1,000 of members, `announce_batch`: server µs"),
    ("redis-client", "the same row: client µs"),
    ("redis-swarm", "`BYTES_A_SWARM` in `crates/swarmkeep-redis/src/store.rs`"),
    ("redis-v4-peer", "`BYTES_A_V4_PEER`, the same file"),
    ("redis-v6-peer", "`BYTES_A_V6_PEER`, the same file"),
    ("redis-wire", "the same row: bytes there and back, less 6 for each of 50 peers"),
    ("redis-round-trip", "**assumed**: one data centre"),
    ("frame", "IEEE 802.3: 8 of preamble, 14 of header, 4 of checksum, 12 of gap"),
    (
        "load-million",
        "`docs/snapshot-format.md`, rows 10,000,000 × 1 and 1 × 2,000,000: s to look at and load",
    ),
];

/// Sizes of BEP 15, in bytes.
const CONNECT: [f64; 2] = [16.0, 16.0];
const ANNOUNCE: [f64; 2] = [98.0, 20.0];
/// IP and UDP headers, and a peer in an answer: over IPv4 and IPv6.
const HEADERS: [f64; 2] = [28.0, 48.0];
const PEER: [f64; 2] = [6.0, 18.0];

impl Costs {
    /// Microseconds of a core that an announce takes on a tracker with the store in its own memory. Clients announce each half hour and
    /// connection ids live for two minutes (BEP 15), so there is a connect for each.
    pub(crate) fn embedded(&self) -> f64 {
        self.cost_connect + self.cost_announce
    }

    /// The same on a tracker that asks Redis.
    pub(crate) fn asking(&self) -> f64 {
        self.embedded() + self.redis_client
    }

    /// Bytes of a swarm of so many peers in the packed store, this share of them IPv6.
    pub(crate) fn packed_bytes(&self, peers: f64, ipv6: f64) -> f64 {
        let v6 = peers * ipv6 * self.packed_v6_peer;
        // Its only IPv4 peer is in the swarm's own bytes.
        let v4 = if peers > 1.5 { peers * (1.0 - ipv6) * self.packed_v4_peer } else { 0.0 };
        self.packed_swarm + v4 + v6
    }

    /// The same in Redis, once.
    pub(crate) fn redis_bytes(&self, peers: f64, ipv6: f64) -> f64 {
        self.redis_swarm + peers * ((1.0 - ipv6) * self.redis_v4_peer + ipv6 * self.redis_v6_peer)
    }

    /// Bytes on the wire that a connect and an announce of a family bring, and those of their answers, with so many peers handed out.
    pub(crate) fn wire(&self, family: usize, handed_out: f64) -> [f64; 2] {
        let packets = 2.0 * (HEADERS[family] + self.frame);
        let asked = CONNECT[0] + ANNOUNCE[0] + packets;
        let answered = CONNECT[1] + ANNOUNCE[1] + PEER[family] * handed_out + packets;
        [asked, answered]
    }

    /// Bytes of the peers in an answer.
    pub(crate) fn peers(family: usize, handed_out: f64) -> f64 {
        PEER[family] * handed_out
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use swarmkeep_workload::Zipf;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        costs: Costs,
    }

    fn costs() -> Costs {
        Only::parse_from(["costs"]).costs
    }

    #[test]
    fn bytes_are_those_that_were_measured() {
        // docs/packed-store.md: 100 k swarms × 10 at 11.6 B a peer; Zipf with 5 peers a swarm, a tenth of them IPv6, at 67.9 B a swarm.
        let ten = costs().packed_bytes(10.0, 0.0) / 10.0;
        assert!((ten / 11.6 - 1.0).abs() < 0.05, "{ten}");
        let zipf = Zipf::new(1_000_000, 5_000_000, 1.0, u64::MAX);
        let bytes: f64 =
            zipf.runs().map(|run| run.swarms as f64 * costs().packed_bytes(run.size as f64, 0.1)).sum();
        let a_swarm = bytes / 1e6;
        assert!((a_swarm / 67.9 - 1.0).abs() < 0.1, "{a_swarm}");
    }

    #[test]
    fn packets_have_the_sizes_of_bep_15() {
        let none = Costs { frame: 0.0, ..costs() };
        assert_eq!(none.wire(0, 50.0), [16.0 + 98.0 + 56.0, 16.0 + 20.0 + 300.0 + 56.0]);
        assert_eq!(none.wire(1, 50.0), [16.0 + 98.0 + 96.0, 16.0 + 20.0 + 900.0 + 96.0]);
    }

    #[test]
    fn every_constant_has_a_source() {
        let fields = serde_json::to_value(costs()).unwrap();
        let fields: Vec<_> = fields.as_object().unwrap().keys().map(|key| key.replace('_', "-")).collect();
        let mut named: Vec<_> = SOURCES.iter().map(|(name, _)| name.to_string()).collect();
        named.sort_unstable();
        assert_eq!(fields, named);
    }
}
