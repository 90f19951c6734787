//! Whether an announce stays as cheap with many swarms in a store, and with many swarms in a shard.

use std::sync::Arc;

use serde::Serialize;
use swarmkeep_workload::Workload;
use swarmkeep_workload::tables::{grouped, significant};

use crate::{
    Bench, Result,
    drive::{Design, Sample, Stores},
    report::{Section, table, whole},
};

#[derive(Debug, Serialize)]
struct Row {
    swarms: u64,
    shards: usize,
    again: Sample,
    first: Sample,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let stores: &[(u64, usize)] = if bench.test {
        &[(1_000, 16), (1_000, 1)]
    } else {
        &[
            (1_000, 1_024),
            (10_000, 1_024),
            (100_000, 1_024),
            (1_000_000, 1_024),
            (100_000, 16_384),
            (100_000, 64),
            (100_000, 1),
        ]
    };
    let mut rows = Vec::new();
    for &(swarms, shards) in stores {
        let again = Workload::uniform(7, swarms, 1).with_profile(|profile| {
            (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
        });
        let first = Workload::flood(8, 1, 1, 1.0).with_profile(|profile| {
            (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
        });
        let stores = Stores::start(&bench.runtime, Some(shards))?;
        bench.say(format!("shards: filling {swarms} swarms in {shards}"));
        stores.fill(&bench.runtime, Design::One, &again)?;
        let again = Arc::new(again);
        let mut samples = Vec::new();
        for _ in 0..bench.turns {
            samples.push(stores.saturate(&bench.runtime, Design::One, &again, bench.during)?);
        }
        // Once, since each turn makes the store larger.
        let first = stores.saturate(&bench.runtime, Design::One, &Arc::new(first), bench.during / 2)?;
        rows.push(Row { swarms, shards, again: Sample::median(&samples), first });
    }
    Section::new("shards", &rows, text(&rows))
}

fn text(rows: &[Row]) -> String {
    let table = table(
        rows,
        &[
            ("swarms of one peer", &|row| grouped(row.swarms)),
            ("shards", &|row| grouped(row.shards as u64)),
            ("in each", &|row| significant(row.swarms as f64 / row.shards as f64)),
            ("announces per second", &|row| whole(row.again.announces_per_second)),
            ("server µs", &|row| significant(row.again.server_us)),
            ("new swarms per second", &|row| whole(row.first.announces_per_second)),
            ("server µs", &|row| significant(row.first.server_us)),
        ],
    );
    format!("## Many swarms, few shards\n\n{SHARDS}\n\n{table}")
}

const SHARDS: &str = "\
64 callers announce members of swarms of one peer again, and then, for half as long, peers of swarms without
an earlier announce.";
