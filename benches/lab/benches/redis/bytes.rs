//! What swarms and peers take in the server, in both designs.

use serde::Serialize;
use swarmkeep_servers::Server;
use swarmkeep_workload::Workload;
use swarmkeep_workload::tables::{grouped, significant};

use crate::{
    Bench, Result,
    drive::{Design, Stores},
    report::{Goal, Section, table},
};

/// From this size on a swarm is large.
const LARGE: u32 = 1_000;

/// Keys whose encodings are looked at.
const LOOKED_AT: usize = 5_000;

#[derive(Debug, Serialize)]
struct Row {
    way: Design,
    family: &'static str,
    swarms: u64,
    peers_per_swarm: u32,
    bytes: u64,
    bytes_per_peer: f64,
    bytes_per_swarm: f64,
    resident_bytes_per_peer: f64,
    lua_bytes: u64,
    keys: i64,
    listpacks_in_100: f64,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
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
            for way in [Design::Naive, Design::One, Design::ModuleOne] {
                bench.say(format!("bytes: {swarms} × {peers} over {family}, {way}"));
                rows.push(Row::measure(bench, way, family, &workload, peers)?);
            }
        }
    }
    let mut section = Section::new("bytes", &rows, text(&rows))?;
    let ours = rows.iter().filter(|row| row.way == Design::One && row.family == "IPv4");
    section.goals = ours
        .filter(|row| row.peers_per_swarm >= LARGE)
        .map(|row| {
            let what = format!("swarms of {}: bytes an IPv4 peer", grouped(row.peers_per_swarm.into()));
            Goal::at_most(60.0, what, row.bytes_per_peer)
        })
        .collect();
    Ok(section)
}

impl Row {
    /// On a server of its own, so that nothing is left of the one before.
    fn measure(
        bench: &Bench,
        way: Design,
        family: &'static str,
        workload: &Workload,
        peers_per_swarm: u32,
    ) -> Result<Self> {
        let stores = Stores::start(&bench.runtime, None)?;
        // The functions are loaded by the first announce, and buffers are there: what comes now is swarms.
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
            bytes,
            bytes_per_peer: bytes as f64 / peers,
            bytes_per_swarm: bytes as f64 / swarms as f64,
            resident_bytes_per_peer: after.resident.saturating_sub(before.resident) as f64 / peers,
            lua_bytes: after.lua,
            keys,
            listpacks_in_100: listpacks(&stores.server)?,
        })
    }
}

impl Row {
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
    lua: u64,
}

impl Memory {
    fn of(server: &Server) -> Result<Self> {
        let memory = server.info("memory")?;
        let number = |name: &str| memory.get(name).and_then(|value| value.parse().ok()).unwrap_or_default();
        Ok(Self {
            used: server.used_memory()?,
            resident: number("used_memory_rss"),
            lua: number("used_memory_vm_total"),
        })
    }
}

/// How many of a hundred hashes are listpacks, of the first some that the server names.
fn listpacks(server: &Server) -> Result<f64> {
    const SCRIPT: &str = "\
local cursor, hashes, listpacks = '0', 0, 0
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 500, 'TYPE', 'hash')
  for _, key in ipairs(page[2]) do
    hashes = hashes + 1
    if redis.call('OBJECT', 'ENCODING', key) == 'listpack' then listpacks = listpacks + 1 end
  end
  cursor = page[1]
until cursor == '0' or hashes >= tonumber(ARGV[1])
return {hashes, listpacks}";

    let (hashes, listpacks): (u64, u64) = server.query(&["EVAL", SCRIPT, "0", &LOOKED_AT.to_string()])?;
    Ok(listpacks as f64 / hashes.max(1) as f64 * 100.0)
}

fn text(rows: &[Row]) -> String {
    let table = table(
        rows,
        &[
            ("swarms × peers", &|row| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("family", &|row| row.family.to_owned()),
            ("design", &|row| row.design().to_owned()),
            ("bytes per peer", &|row| significant(row.bytes_per_peer)),
            ("a swarm", &|row| significant(row.bytes_per_swarm)),
            ("resident a peer", &|row| significant(row.resident_bytes_per_peer)),
            ("keys", &|row| grouped(row.keys as u64)),
            ("listpacks, %", &|row| significant(row.listpacks_in_100)),
        ],
    );
    format!("## Bytes\n\n{BYTES}\n\n{table}")
}

const BYTES: &str = "\
The growth of `used_memory` while announces filled a server of its own, divided by the peers and by the
swarms. It includes everything that a swarm takes: its keys, the directory of swarms, counts. **Resident** is
the same of `used_memory_rss`. It adds partly empty pages of the allocator, and for our design the memory of
the Lua interpreter, which `used_memory` leaves out: some megabytes, which are much per peer for 200,000 peers
and little for a million. **Listpacks** are the hashes that Redis keeps as one string. Of our shards only
those of a nearly empty store are listpacks.";
