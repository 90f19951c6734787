//! What a tracker of any size needs, and what the loss of a machine costs: by formula, from measured figures.
//! `docs/design/simulation.md` has the formulas.

use std::{
    error,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::value_parser;
use swarmkeep_workload::tables::significant;

use self::figures::{Engine, Figure, Figures};
use self::population::Population;
use self::sizing::Sizing;

mod figures;
mod population;
mod sizing;

/// Say what a tracker of any size needs, and what the loss of a machine costs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Torrents that have a peer; the n-th largest swarm has 1/n of the peers of the largest.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1 << 40))]
    torrents: u64,
    /// Peers, each in one swarm.
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = value_parser!(u64).range(1..=1 << 40))]
    peers: u64,
    /// The largest share of all peers that one swarm has.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    largest: f64,
    /// The share of the peers that have IPv6.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    ipv6: f64,
    /// Seconds between two announces of a peer.
    #[arg(long, value_name = "S", default_value_t = 1800, value_parser = value_parser!(u32).range(1..=86_400))]
    interval: u32,
    /// Trackers, where there are several.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(2..=1024))]
    trackers: u32,
    /// What keeps the store on Redis.
    #[arg(long, value_enum, default_value = "module")]
    engine: Engine,
    /// The percentage of cores and memory that may be used in ordinary times.
    #[arg(long, value_name = "P", default_value_t = 60, value_parser = value_parser!(u32).range(1..=100))]
    busy: u32,
    /// A checkout with the documents that benches wrote on your machine [default: those of this program's].
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
}

/// Why there is no report: options are out of range or contradict each other, or figures cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Prints the report.
///
/// # Errors
/// Standard output refuses it.
pub fn print(args: &Args) -> Result<ExitCode, Box<dyn error::Error>> {
    let report = run(args).unwrap_or_else(|error| crate::refuse(error.to_string()));
    io::stdout().write_all(report.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The report, in Markdown.
pub fn run(args: &Args) -> Result<String, Error> {
    let mut figures = Figures::of(args.figures.as_deref(), args.engine);
    let sizing = sizing(args, &mut figures)?;
    let Sizing { population, costs, busy, interval, .. } = &sizing;
    let needs = sizing.needs();
    let needs_rows = needs.iter().map(|needs| {
        let [cores, gb] = [needs.cores, needs.bytes / 1e9];
        let numbers = [needs.announces, cores, cores * needs.busiest, gb, gb * needs.busiest];
        row(&needs.name, numbers.map(significant))
    });
    let per_core = significant(population.peers * busy / needs[0].cores);
    let per_gib = significant(population.peers * busy * f64::from(1 << 30) / needs[0].bytes);
    let [peers, torrents] = [population.peers, population.torrents].map(significant);
    let [singles, largest] = [population.singles, population.largest].map(significant);
    let [announces, store] = [sizing.announces(), sizing.announces() * costs.store / 1e6].map(significant);
    let redis_factor = significant(sizing.redis_factor());
    let known_after = [0.0, 0.25, 0.5, 0.9, 1.0].map(|share| share * interval);
    let failure_rows = sizing.failures().into_iter().map(|failure| {
        let unknown = failure.unknown * population.peers;
        // Each of these peers is unknown for half an interval on average.
        let numbers = [unknown, unknown * interval / 7200.0].map(significant);
        let others = failure.others.map_or("–".to_owned(), significant);
        let known = known_after.map(|time| significant(100.0 * failure.known(time, *interval)));
        row(failure.name, numbers.into_iter().chain([others]).chain(known))
    });
    let figure_rows = figures.found.iter().map(|Figure { value, row: name, column, document, command }| {
        row(name, [value.to_string(), column.to_string(), document.to_string(), format!("`{command}`")])
    });
    let at = known_after.map(|time| format!("% known at {} s", significant(time))).join(" | ");
    let table_of_losses = format!("lost | peers unknown | peer-hours | load of others, × | {at}");
    let parts = [
        format!("# {peers} peers in {torrents} torrents"),
        format!("{announces} announces per second; {singles} swarms of one peer, the largest of {largest}."),
        table("trackers | announces/s | cores | of the busiest | GB | of the busiest", needs_rows),
        format!("The packed store takes {store} of the cores of one machine. {} % used,", args.busy)
            + &format!(" a core bears {per_core} peers and a GiB holds {per_gib}.")
            + &format!(
                " Without connects, an announce on Redis takes {redis_factor} times the CPU time of one on packed, all \
                 machines together."
            ),
        "## One machine is lost".to_owned(),
        table(&table_of_losses, failure_rows),
        "## Figures".to_owned(),
        table("figure | value | column | document | command", figure_rows),
    ];
    Ok(parts.join("\n\n") + "\n")
}

/// What the options say, checked against each other.
fn sizing(args: &Args, figures: &mut Figures<'_>) -> Result<Sizing, Error> {
    let [torrents, peers] = [args.torrents as f64, args.peers as f64];
    for (name, share) in [("largest", args.largest), ("ipv6", args.ipv6)] {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error(format!("--{name} {share} is not from 0 to 1")));
        }
    }
    if peers < torrents {
        return Err(Error(format!("--peers {peers} is less than --torrents {torrents}: a swarm has a peer")));
    }
    let law = Population::zipf(torrents, peers);
    let largest = law.largest.min(args.largest * peers).max(peers / torrents);
    Ok(Sizing {
        population: Population { largest, ipv6: args.ipv6, ..law },
        costs: figures.costs()?,
        interval: f64::from(args.interval),
        trackers: args.trackers,
        busy: f64::from(args.busy) / 100.0,
    })
}

fn table(header: &str, rows: impl IntoIterator<Item = String>) -> String {
    let rule = format!("|---|{}", "---:|".repeat(header.matches('|').count()));
    let lines = [format!("| {header} |"), rule].into_iter().chain(rows);
    lines.collect::<Vec<_>>().join("\n")
}

fn row(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    format!("| {name} |{}", cells.into_iter().map(|cell| format!(" {cell} |")).collect::<String>())
}

#[cfg(test)]
fn near(is: f64, should_be: f64, share: f64) {
    assert!((is - should_be).abs() <= share * should_be, "{is} instead of {should_be}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn report_of(options: &str) -> Result<String, String> {
        let options = ["simulate"].into_iter().chain(options.split_whitespace());
        run(&Line::parse_from(options).args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_report_has_every_arrangement_and_every_loss() {
        // A billion peers announce every 1,800 s; a quarter of them is unknown for a quarter of an hour.
        let report = report_of("--torrents 100000000 --peers 1000000000").unwrap();
        assert!(report.contains("\n555,556 announces per second;"), "{report}");
        let lost = "by info hash | 250,000,000 | 62,500,000 | 1.33 | 75.0 | 81.2 | 87.5 | 97.5 | 100 |";
        assert!(report.contains(lost), "{report}");
    }

    #[test]
    fn bad_input_is_refused_and_named() {
        for (options, why) in [
            ("--torrents 10 --peers 9", "a swarm has a peer"),
            ("--largest 1.1", "not from 0 to 1"),
            ("--ipv6 NaN", "not from 0 to 1"),
            ("--figures /nowhere", "/nowhere/docs/reports/trackers.md: No such file"),
        ] {
            let error = report_of(options).expect_err(options);
            assert!(error.contains(why), "{options}: {error}");
        }
    }
}
