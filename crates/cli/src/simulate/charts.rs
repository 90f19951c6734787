//! Charts of a simulation.

use std::{io, path::Path};

use swarmkeep_load::charts::{self, Line, Scale};

use super::{
    failures::Arrangement,
    report::{Failed, Grown, Report},
};

/// Draws all of them into the directory.
pub(crate) fn draw(report: &Report, directory: &Path) -> io::Result<()> {
    let logarithmic = [Scale::Logarithmic; 2];
    let grown = |file: &str, title: &str, value: fn(&Grown, usize) -> Option<f64>| {
        let lines = Arrangement::ALL.iter().enumerate().map(|(n, arrangement)| Line {
            label: arrangement.name().to_owned(),
            colour: n,
            dashed: false,
            points: report.growth.iter().filter_map(|grown| Some((grown.peers, value(grown, n)?))).collect(),
        });
        let lines: Vec<_> = lines.collect();
        charts::plot(&directory.join(file), title, "peers, as many torrents for each", logarithmic, &lines)
    };
    grown("cores.svg", "Cores kept busy", |grown, n| Some(grown.needs[n].cores))?;
    grown("memory.svg", "GB of memory for swarms and peers, replicas included", |grown, n| {
        Some(grown.needs[n].memory_bytes / 1e9)
    })?;
    grown(
        "machines.svg",
        "Machines, one of which may be missing but where there is only one",
        |grown, n| grown.needs[n].machines.map(f64::from),
    )?;

    let imbalance = |label: &str, colour, value: fn(&super::report::Imbalance) -> f64| {
        let points = report.imbalance.iter().map(|row| (f64::from(row.machines), value(row))).collect();
        Line { label: label.to_owned(), colour, dashed: false, points }
    };
    let lines = [
        imbalance("trackers, sharded by info hash", 1, |row| row.trackers),
        imbalance("masters of a Redis Cluster", 2, |row| row.masters),
    ];
    let title = "The busiest machine's load in terms of the mean";
    charts::plot(
        &directory.join("imbalance.svg"),
        title,
        "machines",
        [Scale::Logarithmic, Scale::Linear],
        &lines,
    )?;

    let line = |(n, failed): (usize, &Failed), points| Line {
        label: failed.key.to_owned(),
        colour: n,
        dashed: false,
        points,
    };
    let of = |value: fn(&Failed) -> Vec<(f64, f64)>| -> Vec<_> {
        let seen =
            report.failures.iter().filter(|failed| failed.unanswered > 0.0 || failed.lost_percent > 1.0);
        seen.enumerate().map(|(n, failed)| line((n, failed), value(failed))).collect()
    };
    let linear = [Scale::Linear; 2];
    let known = of(|failed| {
        let points = failed.reached_percent.iter().enumerate();
        let of_all = |share: f64| 100.0 - failed.hit_percent / 100.0 * (100.0 - share);
        points.step_by(6).map(|(n, &share)| (n as f64 * failed.step_seconds / 60.0, of_all(share))).collect()
    });
    let title = "Peers that can be handed out, in % of all";
    charts::plot(&directory.join("recovery.svg"), title, "minutes since the failure", linear, &known)?;
    let announces = of(|failed| {
        let points = failed.attempts_relative.iter().enumerate().take(300);
        points.map(|(second, &times)| (second as f64, times)).collect()
    });
    let title = "Announces sent a second by those hit, in terms of ordinary times";
    charts::plot(&directory.join("announces.svg"), title, "seconds since the failure", linear, &announces)
}
