//! Announces to swarms of four sizes: the naive design, and ours by functions and by the module, in turns on one
//! server.

use std::sync::Arc;

use serde::Serialize;
use swarmkeep_workload::Workload;
use swarmkeep_workload::tables::{grouped, significant};

use crate::{
    Bench, Result,
    drive::{Design, Latency, Sample, Stores},
    report::{Goal, Section, table, whole},
};

/// The size whose swarms the goal is about.
const GOAL: u32 = 1_000;

const MEMBERS: &str = "of members";

/// Announces a second at which latency is measured, where both designs bear twice as many.
const MODERATE: f64 = 5_000.0;

/// The most announces a second that one thread of this bench makes at regular times.
pub(crate) const MOST_PACED: f64 = 30_000.0;

#[derive(Debug, Serialize)]
struct Row {
    peers_per_swarm: u32,
    swarms: u64,
    announces: &'static str,
    way: Design,
    #[serde(flatten)]
    sample: Sample,
    paced: Vec<Paced>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Paced {
    rate: f64,
    #[serde(flatten)]
    latency: Latency,
}

pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    // As many peers in all, so that only the size of swarms differs.
    let peers: u64 = if bench.test { 2_000 } else { 200_000 };
    let sizes: &[u32] = if bench.test { &[1, 100] } else { &[1, 100, 1_000, 10_000] };
    let mut rows = Vec::new();
    for &size in sizes {
        let members = Workload::uniform(1, peers / u64::from(size), size).with_profile(|profile| {
            (profile.ipv6, profile.stopped, profile.completed) = (0.0, 0.0, 0.0);
        });
        let churn = members.clone().with_profile(|profile| profile.stopped = 0.05);
        let stores = Stores::start(&bench.runtime, None)?;
        for way in [Design::Naive, Design::One, Design::ModuleOne] {
            bench.say(format!("{size} peers per swarm: filling, {way}"));
            stores.fill(&bench.runtime, way, &members)?;
        }
        for (announces, workload) in [(MEMBERS, members), ("5 % leave", churn)] {
            rows.extend(in_turns(bench, &stores, size, announces, workload)?);
        }
    }
    let mut section = Section::new("announces", &rows, text(&rows))?;
    section.goals = goals(&rows);
    Ok(section)
}

fn in_turns(
    bench: &Bench,
    stores: &Arc<Stores>,
    size: u32,
    announces: &'static str,
    workload: Workload,
) -> Result<Vec<Row>> {
    let workload = Arc::new(workload);
    let mut samples = [const { Vec::new() }; 6];
    for turn in 0..bench.turns {
        for (way, samples) in Design::ALL.into_iter().zip(&mut samples) {
            bench.say(format!("{size} peers per swarm: announces {announces}, turn {}, {way}", turn + 1));
            samples.push(stores.saturate(&bench.runtime, way, &workload, bench.during)?);
        }
    }
    let samples = samples.map(|samples| Sample::median(&samples));
    let is_members = announces == MEMBERS;
    let peers = samples.map(|sample| sample.peers);
    // Of the same swarms all are told as many; of those that somebody leaves it depends on who has.
    if is_members && peers.iter().any(|peers| (peers - samples[0].peers).abs() > 0.05 * peers.max(1.0)) {
        return Err(format!("the designs do not do the same work: they tell of {peers:?} peers").into());
    }
    let [_, half_of_naive, half, _, half_of_module, _] =
        samples.map(|sample| (sample.announces_per_second / 2.0).min(MOST_PACED));
    let moderate = half_of_naive.min(MODERATE);
    let mut runs = vec![
        (Design::Naive, moderate),
        (Design::One, moderate),
        (Design::ModuleOne, moderate),
        (Design::One, half),
        (Design::ModuleOne, half_of_module),
    ];
    let mut took = vec![Vec::new(); runs.len()];
    if !is_members {
        runs.clear();
    }
    for turn in 0..bench.turns {
        for (&(way, rate), took) in runs.iter().zip(&mut took) {
            let at = whole(rate);
            bench.say(format!("{size} peers per swarm: {at} announces per second, turn {}, {way}", turn + 1));
            took.extend(stores.paced(&bench.runtime, way, &workload, rate, bench.during)?);
        }
    }
    let paced: Vec<_> = runs
        .into_iter()
        .zip(took)
        .map(|((way, rate), took)| (way, Paced { rate, latency: Latency::of(took) }))
        .collect();
    let rows = Design::ALL.into_iter().zip(samples).map(|(way, sample)| Row {
        peers_per_swarm: size,
        swarms: workload.swarms(),
        announces,
        way,
        sample,
        paced: paced.iter().filter(|(of, _)| *of == way).map(|(_, paced)| *paced).collect(),
    });
    Ok(rows.collect())
}

fn goals(rows: &[Row]) -> Vec<Goal> {
    let of = |size, way| {
        let mut rows = rows.iter().filter(|row| row.peers_per_swarm == size && row.announces == MEMBERS);
        rows.find(|row| row.way == way).map_or(f64::NAN, |row| row.sample.server_us)
    };
    let times = |least, size, way, rival| {
        let what = format!("swarms of {}, {way}: server µs, times {rival}", grouped(u64::from(size)));
        Goal::at_least(least, what, of(size, rival) / of(size, way))
    };
    let goals = vec![
        times(10.0, GOAL, Design::ModuleOne, Design::Naive),
        times(15.0, GOAL, Design::ModuleBatch, Design::Naive),
        times(3.0, 1, Design::ModuleOne, Design::One),
        times(3.0, 1, Design::ModuleBatch, Design::Batch),
    ];
    // A test of the bench has other sizes.
    goals.into_iter().filter(|goal| goal.is_measured()).collect()
}

fn text(rows: &[Row]) -> String {
    let naive = |row: &Row| {
        let alike = |other: &&Row| {
            other.way == Design::Naive
                && other.peers_per_swarm == row.peers_per_swarm
                && other.announces == row.announces
        };
        rows.iter().find(alike).map_or(1.0, |naive| naive.sample.announces_per_second)
    };
    let announces = table(
        rows,
        &[
            ("swarms × peers", &|row| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("announces", &|row| row.announces.to_owned()),
            ("", &|row| row.way.to_string()),
            ("a second", &|row| whole(row.sample.announces_per_second)),
            ("× naive", &|row| significant(row.sample.announces_per_second / naive(row))),
            ("server µs", &|row| significant(row.sample.server_us)),
            ("if the server were alone", &|row| whole(row.sample.bound())),
            ("client µs", &|row| significant(row.sample.client_us)),
            ("bytes there", &|row| whole(row.sample.bytes_to_server)),
            ("and back", &|row| whole(row.sample.bytes_from_server)),
            ("peers told", &|row| significant(row.sample.peers)),
        ],
    );
    let paced: Vec<_> = rows.iter().flat_map(|row| row.paced.iter().map(move |paced| (row, paced))).collect();
    let latency = table(
        &paced,
        &[
            ("swarms × peers", &|(row, _)| {
                format!("{} × {}", grouped(row.swarms), grouped(row.peers_per_swarm.into()))
            }),
            ("", &|(row, _)| row.way.to_string()),
            ("announces per second", &|(_, paced)| whole(paced.rate)),
            ("p50, µs", &|(_, paced)| whole(paced.latency.p50_us)),
            ("p99, µs", &|(_, paced)| whole(paced.latency.p99_us)),
        ],
    );
    format!(
        "## Announces beside the naive design\n\n{ANNOUNCES}\n\n{announces}\n### Latency at a fixed rate\n\n{LATENCY}\n\n{latency}"
    )
}

const ANNOUNCES: &str = "\
All stores are on the same server, filled with the same peers, over two connections each. Half
of the peers are seeders, all over IPv4. An announce wants 50 peers and gets the counts of the swarm. 64
callers make one announce after another, each of a random member, or 8 callers make batches of 32. Where 5 %
leave, a peer that has left joins again with its next announce.

The **naive design** is the usual one of trackers on Redis, modelled on chihaya's: per swarm a hash of seeders
and a hash of leechers, peers as fields, `HKEYS` of all of them to select from, and separate counters. **As
published** sends the commands of chihaya's store one after another. The other variant is as cheap as the
design allows: one round trip for commands that can go together, no `MULTI`, the second hash read only if the
first has too few peers. Both have shorter keys and values than chihaya's, and nothing is swept.
`benches/lab/benches/redis/naive.rs` has the details.";

const LATENCY: &str = "\
Announces come at regular times, whether or not the earlier ones were answered, and are measured from the time
when they are due. All designs get 5,000 per second, or half the maximum rate of the naive design if that is
less. Ours also get half of their own maximum rates, or the 30,000 that this bench can make.";
