//! The growth of bytes and time with the peers of a swarm, with the number of swarms, and with threads.

use std::{error::Error, path::Path};

use serde::Serialize;
use swarmkeep::catalog::Implementation;

use super::{
    figures::fits,
    report::{Findings, stores},
    row::{Metric, Number, Plan, Row},
    work::Population,
};
use crate::{
    charts::{self, Line, Scale},
    origin::Origin,
    tables::{grouped, markdown, significant},
};

/// A growing quantity, and the numbers drawn over it.
struct Curve {
    /// The workload of its rows.
    name: &'static str,
    /// The growing quantity.
    grows: &'static str,
    /// Returns the quantity of a row.
    x: fn(&Row) -> u64,
    metrics: &'static [Metric],
    charts: &'static [Chart],
}

struct Chart {
    file: &'static str,
    title: &'static str,
    value: fn(&Row) -> Option<f64>,
}

const BATCH: usize = 32;

const CURVES: [Curve; 3] = [
    Curve {
        name: "swarm-size",
        grows: "peers in each swarm",
        x: |row| row.peers / row.swarms,
        metrics: &[Metric::Bytes, Metric::Time],
        charts: &[
            Chart {
                file: "bytes-by-swarm-size.svg",
                title: "Bytes of resident memory per peer, with its share of the swarm",
                // For swarms of one peer, bytes per swarm are also bytes per peer.
                value: |row| row.get(Number::RssBytesPerPeer).or(row.get(Number::RssBytesPerSwarm)),
            },
            Chart {
                file: "ns-by-swarm-size.svg",
                title: "Nanoseconds per announce, batches of 32",
                value: |row| row.get(Number::NsPerAnnounce),
            },
        ],
    },
    Curve {
        name: "swarms",
        grows: "swarms of one peer",
        x: |row| row.swarms,
        metrics: &[Metric::Bytes, Metric::Time],
        charts: &[
            Chart {
                file: "bytes-by-swarms.svg",
                title: "Bytes of resident memory per swarm of one peer",
                value: |row| row.get(Number::RssBytesPerSwarm),
            },
            Chart {
                file: "ns-by-swarms.svg",
                title: "Nanoseconds per announce, batches of 32",
                value: |row| row.get(Number::NsPerAnnounce),
            },
        ],
    },
    Curve {
        name: "threads",
        grows: "threads",
        x: |row| row.threads as u64,
        metrics: &[Metric::Time],
        charts: &[Chart {
            file: "announces-by-threads.svg",
            title: "Million announces per second, Zipf's law, batches of 32",
            value: |row| Some(1e3 / row.get(Number::NsPerAnnounce)?),
        }],
    },
];

/// The upper ends of the growing quantities.
pub(crate) struct Reach {
    /// The number of peers of all swarms together while swarms grow.
    pub(crate) peers: u32,
    /// The maximum number of swarms of one peer.
    pub(crate) swarms: u64,
    /// The thread counts.
    pub(crate) threads: Vec<usize>,
}

impl Reach {
    /// Returns populations and thread counts, in the order of [`CURVES`].
    fn points(&self) -> [Vec<(Population, usize)>; 3] {
        let sizes = (0..9).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u32.pow(power)));
        // From 500 on, in powers of ten.
        let sizes = sizes.filter(|&size| size <= 500 || size.ilog10() != (size - 1).ilog10());
        let sizes = sizes.take_while(|&size| size <= self.peers);
        let counts = [1000, 100, 10, 1].map(|divisor| self.swarms / divisor);
        let counts = counts.into_iter().filter(|&count| count > 0);
        let zipf = Population::Zipf { swarms: u64::from(self.peers), peers: 5 * u64::from(self.peers) };
        [
            sizes.map(|size| (Population::ipv4((self.peers / size).into(), size), 1)).collect(),
            counts.map(|swarms| (Population::ipv4(swarms, 1), 1)).collect(),
            self.threads.iter().map(|&threads| (zipf, threads)).collect(),
        ]
    }
}

/// Returns a plan for each point and store.
pub(crate) fn plans(
    stores: &[&Implementation],
    named: bool,
    reach: &Reach,
    seconds: f64,
    seed: u64,
) -> Vec<Plan> {
    let plan = |curve: &Curve, (population, threads), store: &Implementation| Plan {
        store: store.name.to_owned(),
        workload: curve.name.to_owned(),
        population,
        threads,
        batch: BATCH,
        fenced: false,
        seconds,
        seed,
        metrics: curve.metrics.to_vec(),
    };
    let mut plans = Vec::new();
    for (curve, points) in CURVES.iter().zip(reach.points()) {
        for point in points {
            let swarms = point.0.workload(seed).swarms();
            let fit = stores.iter().filter(|store| named || fits(store, swarms));
            plans.extend(fit.map(|store| plan(curve, point, store)));
        }
    }
    plans
}

/// All rows.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    origin: Origin,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) const fn new(origin: Origin, rows: Vec<Row>) -> Self {
        Self { origin, rows }
    }

    fn lines(&self, curve: &Curve, chart: &Chart) -> Vec<Line> {
        let line = |(colour, store): (usize, &str)| {
            let rows = self.rows_of(curve).filter(|row| row.store == store);
            let points = rows.filter_map(|row| Some(((curve.x)(row) as f64, (chart.value)(row)?))).collect();
            Line { label: store.to_owned(), colour, points }
        };
        stores(&self.rows).into_iter().enumerate().map(line).collect()
    }

    fn rows_of(&self, curve: &Curve) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.workload == curve.name)
    }
}

impl Findings for Report {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns a table for each chart, with a line for each point and a column for each store.
    fn text(&self) -> String {
        let charts = CURVES.iter().flat_map(|curve| curve.charts.iter().map(move |chart| (curve, chart)));
        let tables = charts.map(|(curve, chart)| {
            let mut columns = vec![vec![curve.grows.to_owned()]];
            let rows: Vec<_> = self.rows_of(curve).collect();
            let mut points: Vec<_> = rows.iter().map(|row| (curve.x)(row)).collect();
            points.sort_unstable();
            points.dedup();
            columns[0].extend(points.iter().map(|&x| grouped(x)));
            for store in stores(&self.rows) {
                let number = |x: &u64| {
                    let row = rows.iter().find(|row| row.store == store && (curve.x)(row) == *x);
                    row.and_then(|row| (chart.value)(row)).map_or(String::new(), significant)
                };
                columns.push([format!("`{store}`")].into_iter().chain(points.iter().map(number)).collect());
            }
            format!("\n{}\n\n{}", chart.title, markdown(&columns))
        });
        format!("{}\n{}", self.origin, tables.collect::<String>())
    }

    fn draw(&self, directory: &Path) -> Result<(), Box<dyn Error>> {
        for curve in &CURVES {
            for chart in curve.charts {
                let lines = self.lines(curve, chart);
                let file = directory.join(chart.file);
                charts::lines(&file, chart.title, curve.grows, Scale::Logarithmic, &lines)?;
            }
        }
        Ok(())
    }
}
