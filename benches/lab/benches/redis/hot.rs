//! The announce rate of one swarm, which is one key, beside announces to many swarms.

use swarmkeep_benches::tables::{significant, table, whole};

use crate::{
    Bench, Result,
    drive::{Design, Row, Sample, compare},
};

/// The naive design has no larger swarms: one announce reads half a million peers there.
const LARGEST_NAIVE: u32 = 10_000;

pub(crate) fn measure(bench: &Bench) -> Result<String> {
    let populations: &[(u64, u32)] = if bench.test {
        &[(1, 100), (1, 1_000), (20, 100)]
    } else {
        &[(1, 100), (1, 10_000), (1, 1_000_000), (2_000, 100), (20, 10_000)]
    };
    let mut rows = Vec::new();
    for &(swarms, size) in populations {
        // All but the published one.
        let ways = &Design::ALL[if size > LARGEST_NAIVE { 3 } else { 1 }..];
        rows.extend(compare(bench, ways, swarms, size)?);
    }
    let table = table(
        &rows,
        &[
            ("swarms × peers", &Row::population),
            ("", &|row| row.way.to_string()),
            ("announces per second", &|row| whole(row.median(|sample| sample.announces_per_second))),
            ("server µs", &|row| significant(row.median(|sample| sample.server_us))),
            ("if the server were alone", &|row| whole(row.median(Sample::bound))),
        ],
    );
    Ok(format!("## A hot swarm\n\n{HOT}\n\n{table}"))
}

const HOT: &str = "\
All announces go to one swarm: to one key, which is on one server of a Cluster, over one of the connections.
The rows with several swarms show the rate of the whole server.";
