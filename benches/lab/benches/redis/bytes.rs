//! The memory of swarms and peers in the server, in all designs.

use swarmkeep_benches::tables::{grouped, significant, table};
use swarmkeep_servers::Server;
use swarmkeep_workload::Workload;

use crate::{
    Bench, Result,
    drive::{Design, Stores, population},
};

struct Row {
    way: Design,
    family: &'static str,
    swarms: u64,
    peers_per_swarm: u32,
    bytes_per_peer: f64,
    bytes_per_swarm: f64,
    resident_bytes_per_peer: f64,
    keys: i64,
}

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    let populations: &[(u64, u32)] = if bench.test {
        &[(2_000, 1), (2, 1_000)]
    } else {
        &[
            (1_000_000, 1),
            (20_000, 10),
            (2_000, 100),
            (200, 1_000),
            (20, 10_000),
            (2, 100_000),
            (1, 1_000_000),
        ]
    };
    let mut rows = Vec::new();
    for (family, ipv6) in [("IPv4", 0.0), ("IPv6", 1.0)] {
        for &(swarms, peers) in populations {
            let workload = Workload::uniform(2, swarms, peers).with_profile(|profile| profile.ipv6 = ipv6);
            for way in Design::STORES {
                bench.say(format!("bytes: {swarms} × {peers} over {family}, {way}"));
                rows.push(Row::measure(bench, way, family, &workload, peers)?);
            }
        }
    }
    Ok(text(&rows))
}

impl Row {
    /// On its own server, so that nothing of an earlier measurement remains.
    fn measure(
        bench: &Bench,
        way: Design,
        family: &'static str,
        workload: &Workload,
        peers_per_swarm: u32,
    ) -> Result<Self> {
        let stores = Stores::start(&bench.runtime, None)?;
        // The first announce loads the functions and makes buffers, so that only swarms follow.
        let other = Workload::uniform(3, 1, 1);
        stores.fill(&bench.runtime, way, &other)?;
        let before = Memory::of(&stores.server)?;
        stores.fill(&bench.runtime, way, workload)?;
        let after = Memory::of(&stores.server)?;
        let (swarms, peers) = (workload.swarms(), workload.peers() as f64);
        let bytes = after.used.saturating_sub(before.used);
        let keys: i64 = stores.server.query(&["DBSIZE"])?;
        Ok(Self {
            way,
            family,
            swarms,
            peers_per_swarm,
            bytes_per_peer: bytes as f64 / peers,
            bytes_per_swarm: bytes as f64 / swarms as f64,
            resident_bytes_per_peer: after.resident.saturating_sub(before.resident) as f64 / peers,
            keys,
        })
    }

    const fn design(&self) -> &'static str {
        match self.way {
            Design::Naive => "naive",
            Design::ModuleOne => "module",
            _ => "functions",
        }
    }
}

struct Memory {
    used: u64,
    resident: u64,
}

impl Memory {
    fn of(server: &Server) -> Result<Self> {
        let resident = server.info("memory")?.get("used_memory_rss").map_or(Ok(0), |value| value.parse())?;
        Ok(Self { used: server.used_memory()?, resident })
    }
}

fn text(rows: &[Row]) -> String {
    let table = table(
        rows,
        &[
            ("swarms × peers", &|row| population(row.swarms, row.peers_per_swarm)),
            ("family", &|row| row.family.to_owned()),
            ("design", &|row| row.design().to_owned()),
            ("bytes per peer", &|row| significant(row.bytes_per_peer)),
            ("a swarm", &|row| significant(row.bytes_per_swarm)),
            ("resident a peer", &|row| significant(row.resident_bytes_per_peer)),
            ("keys", &|row| grouped(row.keys as u64)),
        ],
    );
    format!("## Bytes\n\n{BYTES}\n\n{table}")
}

const BYTES: &str = "\
The growth of `used_memory` while announces filled a server of its own, divided by the peers and by the
swarms. It includes everything that a swarm takes: its keys, the directory of swarms, counts. **Resident** is
the same of `used_memory_rss`. It adds partly empty pages of the allocator, and for our design the memory of
the Lua interpreter, which `used_memory` leaves out: some megabytes, which are much per peer for 200,000 peers
and little for a million.";
