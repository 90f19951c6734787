//! The announce rate of one swarm, which is one key, beside announces to many swarms.

use swarmkeep_benches::tables::{grouped, significant, table, whole};
use swarmkeep_workload::Workload;

use crate::{
    Bench, Result,
    drive::{Design, Sample, Stores, in_turns},
};

/// The naive design has no larger swarms: one announce reads half a million peers there.
const LARGEST_NAIVE: u32 = 10_000;

struct Row {
    swarms: u64,
    peers_per_swarm: u32,
    way: Design,
    sample: Sample,
}

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    let populations: &[(u64, u32)] = if bench.test {
        &[(1, 100), (1, 1_000), (20, 100)]
    } else {
        &[(1, 100), (1, 10_000), (1, 1_000_000), (2_000, 100), (20, 10_000)]
    };
    let mut rows = Vec::new();
    for &(swarms, size) in populations {
        let workload = Workload::uniform(6, swarms, size).with_profile(|profile| {
            (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
        });
        // All but the published one.
        let ways = &Design::ALL[if size > LARGEST_NAIVE { 2 } else { 1 }..];
        let stores = Stores::start(&bench.runtime, None)?;
        bench.say(format!("hot: filling {swarms} × {size}"));
        for way in ways.iter().filter(|way| !way.is_batch()) {
            stores.fill(&bench.runtime, *way, &workload)?;
        }
        let samples = in_turns(bench, &stores, ways, workload, &format!("hot: {swarms} × {size}"))?;
        let row = |(&way, sample)| Row { swarms, peers_per_swarm: size, way, sample };
        rows.extend(ways.iter().zip(samples).map(row));
    }
    let table = table(
        &rows,
        &[
            ("swarms × peers", &|row| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("", &|row| row.way.to_string()),
            ("announces per second", &|row| whole(row.sample.announces_per_second)),
            ("server µs", &|row| significant(row.sample.server_us)),
            ("if the server were alone", &|row| whole(row.sample.bound())),
        ],
    );
    Ok(format!("## A hot swarm\n\n{HOT}\n\n{table}"))
}

const HOT: &str = "\
All announces go to one swarm: to one key, which is on one server of a Cluster, over one of the connections.
The rows with several swarms show the rate of the whole server.";
