//! Announces to swarms of four sizes: the naive design, and ours by functions and by the module, in turns on
//! one server.

use swarmkeep_benches::tables::{grouped, significant, table, whole};
use swarmkeep_workload::Workload;

use crate::{
    Bench, Result,
    drive::{Design, Sample, Stores, in_turns},
};

struct Row {
    peers_per_swarm: u32,
    swarms: u64,
    way: Design,
    sample: Sample,
    /// Announces per second of the naive design.
    naive: f64,
}

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    // The number of all peers is the same, so that only the size of swarms differs.
    let peers: u64 = if bench.test { 2_000 } else { 200_000 };
    let sizes: &[u32] = if bench.test { &[1, 100] } else { &[1, 100, 1_000, 10_000] };
    let mut rows = Vec::new();
    for &size in sizes {
        let members = Workload::uniform(1, peers / u64::from(size), size).with_profile(|profile| {
            (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
        });
        let stores = Stores::start(&bench.runtime, None)?;
        for way in [Design::Naive, Design::One, Design::ModuleOne] {
            bench.say(format!("{size} peers per swarm: filling, {way}"));
            stores.fill(&bench.runtime, way, &members)?;
        }
        let swarms = members.swarms();
        let samples = in_turns(bench, &stores, &Design::ALL, members, &format!("{size} peers per swarm"))?;
        // All designs select the same number of peers, or they do not do the same work.
        let peers = samples.iter().map(|sample| sample.peers).collect::<Vec<_>>();
        if peers.iter().any(|found| (found - peers[0]).abs() > 0.05 * found.max(1.0)) {
            return Err(format!("the designs do not do the same work: they return {peers:?} peers").into());
        }
        let naive = samples[1].announces_per_second;
        let row = |(way, sample)| Row { peers_per_swarm: size, swarms, way, sample, naive };
        rows.extend(Design::ALL.into_iter().zip(samples).map(row));
    }
    let table = table(
        &rows,
        &[
            ("swarms × peers", &|row| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("", &|row| row.way.to_string()),
            ("a second", &|row| whole(row.sample.announces_per_second)),
            ("× naive", &|row| significant(row.sample.announces_per_second / row.naive)),
            ("server µs", &|row| significant(row.sample.server_us)),
            ("if the server were alone", &|row| whole(row.sample.bound())),
            ("client µs", &|row| significant(row.sample.client_us)),
            ("bytes there", &|row| whole(row.sample.bytes_to_server)),
            ("and back", &|row| whole(row.sample.bytes_from_server)),
            ("peers told", &|row| significant(row.sample.peers)),
        ],
    );
    Ok(format!("## Announces beside the naive design\n\n{ANNOUNCES}\n\n{table}"))
}

const ANNOUNCES: &str = "\
All stores are on the same server, filled with the same peers, over two connections each. Half
of the peers are seeders, all over IPv4. An announce wants 50 peers and gets the counts of the swarm. 64
callers make one announce after another, each of a random member, or 8 callers make batches of 32.

The **naive design** is the usual one of trackers on Redis, modelled on chihaya's: per swarm a hash of seeders
and a hash of leechers, peers as fields, `HKEYS` of all of them to select from, and separate counters. **As
published** sends the commands of chihaya's store one after another. The other variant is as cheap as the
design allows: one round trip for commands that can go together, no `MULTI`, the second hash read only if the
first has too few peers. Both have shorter keys and values than chihaya's, and nothing is swept.
`benches/lab/benches/redis/naive.rs` has the details.";
