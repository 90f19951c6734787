//! What one swarm bears, which is one key: however large it is, beside as many announces to many swarms.

use std::sync::Arc;

use serde::Serialize;
use swarmkeep_workload::Workload;
use swarmkeep_workload::tables::{grouped, significant};

use crate::{
    Bench, Result,
    announces::MOST_PACED,
    drive::{Design, Latency, Sample, Stores},
    report::{Goal, Section, table, whole},
};

/// Larger swarms are not asked of the naive design: one announce reads half a million peers.
const LARGEST_NAIVE: u32 = 10_000;

#[derive(Debug, Serialize)]
struct Row {
    swarms: u64,
    peers_per_swarm: u32,
    way: Design,
    #[serde(flatten)]
    sample: Sample,
    at_half_the_rate: Latency,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
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
        let ways = [Design::Naive, Design::One, Design::Batch, Design::ModuleOne, Design::ModuleBatch];
        let ways = &ways[usize::from(size > LARGEST_NAIVE)..];
        let stores = Stores::start(&bench.runtime, None)?;
        bench.say(format!("hot: filling {swarms} × {size}"));
        stores.fill(&bench.runtime, Design::One, &workload)?;
        stores.fill(&bench.runtime, Design::ModuleOne, &workload)?;
        if ways.contains(&Design::Naive) {
            stores.fill(&bench.runtime, Design::Naive, &workload)?;
        }
        rows.extend(in_turns(bench, &stores, ways, size, workload)?);
    }
    let mut section = Section::new("hot", &rows, text(&rows))?;
    let hot = rows.iter().filter(|row| row.swarms == 1 && row.way == Design::ModuleBatch);
    section.goals = hot
        .map(|row| {
            let what = format!(
                "a hot swarm of {}, {}: announces per second",
                grouped(row.peers_per_swarm.into()),
                row.way
            );
            Goal::at_least(400_000.0, what, row.sample.bound())
        })
        .collect();
    Ok(section)
}

fn in_turns(
    bench: &Bench,
    stores: &Arc<Stores>,
    ways: &[Design],
    size: u32,
    workload: Workload,
) -> Result<Vec<Row>> {
    let workload = Arc::new(workload);
    let mut samples = vec![Vec::new(); ways.len()];
    for turn in 0..bench.turns {
        for (&way, samples) in ways.iter().zip(&mut samples) {
            bench.say(format!("hot: {} × {size}, turn {}, {way}", workload.swarms(), turn + 1));
            samples.push(stores.saturate(&bench.runtime, way, &workload, bench.during)?);
        }
    }
    let mut rows = Vec::new();
    for (&way, samples) in ways.iter().zip(samples) {
        let sample = Sample::median(&samples);
        // A batch has no rate of its own: those of single announces are what a caller feels.
        let at_half_the_rate = if way.is_batch() {
            Latency::default()
        } else {
            let rate = (sample.announces_per_second / 2.0).min(MOST_PACED);
            Latency::of(stores.paced(&bench.runtime, way, &workload, rate, bench.during)?)
        };
        rows.push(Row { swarms: workload.swarms(), peers_per_swarm: size, way, sample, at_half_the_rate });
    }
    Ok(rows)
}

fn text(rows: &[Row]) -> String {
    let micros = |micros: f64| if micros == 0.0 { String::new() } else { whole(micros) };
    let table = table(
        rows,
        &[
            ("swarms × peers", &|row| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("", &|row| row.way.to_string()),
            ("announces per second", &|row| whole(row.sample.announces_per_second)),
            ("server µs", &|row| significant(row.sample.server_us)),
            ("if the server were alone", &|row| whole(row.sample.bound())),
            ("p50, µs", &|row| micros(row.sample.latency.p50_us)),
            ("p99, µs", &|row| micros(row.sample.latency.p99_us)),
            ("p50 at half the rate", &|row| micros(row.at_half_the_rate.p50_us)),
            ("p99", &|row| micros(row.at_half_the_rate.p99_us)),
        ],
    );
    format!("## A hot swarm\n\n{HOT}\n\n{table}")
}

const HOT: &str = "\
All announces go to one swarm: to one key, which is on one server of a Cluster, over one of the connections.
The rows with several swarms show the rate of the whole server. p50 and p99 are those of 64 callers that do
nothing else, or of batches. At half the rate, or 30,000, announces come at regular times.";
