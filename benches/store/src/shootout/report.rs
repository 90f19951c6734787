//! The results of a shootout: as JSON, as tables for people, and as the table of the README.

use std::{collections::BTreeSet, error::Error, fmt::Write, path::Path};

use serde::Serialize;
use swarmkeep::bittorrent::counted;

use super::{
    charts,
    row::{Number, Row},
    work::Shape,
};
use crate::{
    origin::Origin,
    tables::{grouped, markdown, significant},
};

/// The results of a shootout in all forms.
pub(crate) trait Findings {
    /// Returns the results as JSON, for scripts.
    fn json(&self) -> serde_json::Result<String>;

    /// Returns the results as text, for people.
    fn text(&self) -> String;

    /// Returns one table for a README.
    fn summary(&self) -> String {
        self.text()
    }

    /// Draws charts, if there are any, into the directory.
    fn draw(&self, _directory: &Path) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

/// The comparison: all rows, and the origin of their numbers.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    origin: Origin,
    pub(crate) rows: Vec<Row>,
}

/// A way to announce: the number of threads, and the number of announces per call.
pub(crate) type AnnounceWay = (usize, usize);

impl Report {
    pub(crate) const fn new(origin: Origin, rows: Vec<Row>) -> Self {
        Self { origin, rows }
    }

    /// Returns the stores, in the order of their rows.
    pub(crate) fn stores(&self) -> Vec<&str> {
        stores(&self.rows)
    }

    /// Returns the ways to announce, ascending.
    pub(crate) fn ways(&self) -> BTreeSet<AnnounceWay> {
        self.rows.iter().map(|row| (row.threads, row.batch)).collect()
    }

    /// Returns one number of a store on a workload, from the first of its rows that has it.
    pub(crate) fn find(&self, store: &str, shape: Shape, value: &dyn Fn(&Row) -> Option<f64>) -> Option<f64> {
        let workload = shape.to_string();
        self.rows.iter().filter(|row| row.store == store && row.workload == workload).find_map(value)
    }

    /// Returns columns with the times of announces in these ways, and of the slowest announces.
    fn columns(&self, shape: Shape, ways: BTreeSet<AnnounceWay>) -> Vec<Column> {
        let mut columns: Vec<_> = ways
            .into_iter()
            .map(|way| {
                Column::new(format!("ns, {}", in_words(way)), shape, move |row| {
                    row.get(Number::NsPerAnnounce).filter(|_| (row.threads, row.batch) == way)
                })
            })
            .collect();
        columns.push(Column::new("p99.9 in a sweep, ns", shape, |row| row.get(Number::P999Ns)));
        columns
    }

    /// Returns a Markdown table with a line for each store, without empty columns.
    fn table(&self, columns: Vec<Column>) -> String {
        let stores = self.stores();
        let names = stores.iter().map(|store| format!("`{store}`"));
        let mut cells = vec![["store".to_owned()].into_iter().chain(names).collect::<Vec<_>>()];
        for column in columns {
            let numbers: Vec<_> =
                stores.iter().map(|store| self.find(store, column.shape, &column.value)).collect();
            if numbers.iter().any(Option::is_some) {
                let numbers = numbers.into_iter().map(|number| number.map_or(String::new(), significant));
                cells.push([column.title].into_iter().chain(numbers).collect());
            }
        }
        markdown(&cells)
    }
}

impl Findings for Report {
    fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Returns a table for each workload, with all numbers.
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.origin);
        let mut seen = BTreeSet::new();
        for row in self.rows.iter().filter(|row| seen.insert(row.workload.as_str())) {
            let shape = clap::ValueEnum::from_str(&row.workload, false).expect("rows are of these workloads");
            let columns = self.columns(shape, self.ways()).into_iter().chain(bytes(shape)).collect();
            let swarms = if row.swarms == 1 { "swarm" } else { "swarms" };
            let population = format!("{} {swarms}, {} peers", grouped(row.swarms), grouped(row.peers));
            let _ = write!(text, "\n{shape}: {population}\n{}", self.table(columns));
        }
        text
    }

    /// Returns one table with the main numbers, and their origin: five columns beside the stores.
    fn summary(&self) -> String {
        let ways = self.ways();
        let ends = [ways.first(), ways.last()].into_iter().flatten().copied().collect();
        let bytes = [Shape::OnePeer, Shape::OneSwarm].into_iter().flat_map(bytes);
        let columns = self.columns(Shape::Zipf, ends).into_iter().chain(bytes).collect();
        format!("{}\nBy {}.\n", self.table(columns), self.origin)
    }

    fn draw(&self, directory: &Path) -> Result<(), Box<dyn Error>> {
        charts::draw(self, directory)
    }
}

/// Returns the columns of bytes of a workload.
fn bytes(shape: Shape) -> Vec<Column> {
    [("RSS bytes per swarm", Number::RssBytesPerSwarm), ("RSS bytes per peer", Number::RssBytesPerPeer)]
        .map(|(title, number)| Column::new(title, shape, move |row| row.get(number)))
        .into()
}

/// Returns a way in words: `2 threads, batches of 32`.
pub(crate) fn in_words((threads, batch): AnnounceWay) -> String {
    let threads = counted(threads, "thread");
    if batch == 1 { threads } else { format!("{threads}, batches of {batch}") }
}

/// Returns the stores of these rows, in their order.
pub(crate) fn stores(rows: &[Row]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|row| row.store.as_str()).filter(|&store| seen.insert(store)).collect()
}

type Value = Box<dyn Fn(&Row) -> Option<f64>>;

/// A column of a table: its title, and the function that returns its numbers.
struct Column {
    title: String,
    shape: Shape,
    value: Value,
}

impl Column {
    fn new(title: impl Into<String>, shape: Shape, value: impl Fn(&Row) -> Option<f64> + 'static) -> Self {
        Self { title: title.into(), shape, value: Box::new(value) }
    }
}
