//! What a shootout found: as JSON, as tables for people, as the README's table.

use std::{collections::BTreeSet, error::Error, fmt::Write, fs, num::NonZeroUsize, path::Path, thread};

use serde::{Deserialize, Serialize};
use swarmkeep_workload::Workload;

use super::{row::Plan, work::Kind};

/// All rows, and on what they were measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    version: &'static str,
    seed: u64,
    pub(crate) rows: Vec<Row>,
}

/// One store on one workload; what was not measured is absent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) store: String,
    pub(crate) workload: Kind,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_announce: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes_per_swarm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes_per_peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_bytes_per_swarm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_bytes_per_peer: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Machine {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    cores: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    system: String,
}

impl Report {
    pub(crate) fn new(seed: u64, rows: Vec<Row>) -> Self {
        Self { machine: Machine::this(), version: env!("CARGO_PKG_VERSION"), seed, rows }
    }

    /// The stores, in the order of their rows.
    pub(crate) fn stores(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        self.rows.iter().map(|row| row.store.as_str()).filter(|&store| seen.insert(store)).collect()
    }

    /// The thread counts, ascending.
    pub(crate) fn thread_counts(&self) -> BTreeSet<usize> {
        self.rows.iter().map(|row| row.threads).collect()
    }

    /// One number of a store on a workload, from the first of its rows that has it.
    pub(crate) fn find(&self, store: &str, kind: Kind, value: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        self.rows.iter().filter(|row| row.store == store && row.workload == kind).find_map(value)
    }

    /// A table for each workload, with all that was measured.
    pub(crate) fn tables(&self, plans: &[Plan]) -> String {
        let mut text = format!("{}, swarmkeep {}, seed {}\n", self.machine, self.version, self.seed);
        let mut seen = Vec::new();
        for plan in plans {
            if seen.contains(&plan.workload) {
                continue;
            }
            seen.push(plan.workload);
            let workload = plan.workload.workload(plan.size, plan.seed);
            let columns = self.columns(plan.workload, "");
            let _ = write!(text, "\n{}: {}\n{}", plan.workload, population(&workload), self.table(columns));
        }
        text
    }

    /// One table with what matters most, and on what it was measured.
    pub(crate) fn summary(&self) -> String {
        let zipf = self.columns(Kind::Zipf, "Zipf: ").into_iter().filter(|column| !column.is_bytes);
        let hot = self.columns(Kind::Hot, "hot swarm: ").into_iter().filter(|column| !column.is_bytes);
        let bytes = [Kind::OnePeer, Kind::OneSwarm].into_iter().flat_map(|kind| self.columns(kind, ""));
        let columns = zipf.chain(hot).chain(bytes.filter(|column| column.is_bytes)).collect();
        format!("{}\nMeasured by `swarmkeep shootout` on {}.\n", self.table(columns), self.machine)
    }

    fn columns(&self, kind: Kind, prefix: &str) -> Vec<Column> {
        let mut columns = Vec::new();
        for threads in self.thread_counts() {
            let title = format!("{prefix}ns, {threads} thread{}", if threads == 1 { "" } else { "s" });
            columns.push(Column::new(title, kind, false, move |row| {
                row.ns_per_announce.filter(|_| row.threads == threads)
            }));
        }
        let title = format!("{prefix}p99.9 in a sweep, ns");
        columns.push(Column::new(title, kind, false, |row| row.p999_ns.map(|ns| ns as f64)));
        columns.push(Column::new("live B a swarm", kind, true, |row| row.live_bytes_per_swarm));
        columns.push(Column::new("RSS B a swarm", kind, true, |row| row.rss_bytes_per_swarm));
        columns.push(Column::new("live B a peer", kind, true, |row| row.live_bytes_per_peer));
        columns.push(Column::new("RSS B a peer", kind, true, |row| row.rss_bytes_per_peer));
        columns
    }

    /// A Markdown table that is readable as it stands; columns without a number are left out.
    fn table(&self, columns: Vec<Column>) -> String {
        let stores = self.stores();
        let mut cells = vec![vec!["store".to_owned()]];
        cells[0].extend(stores.iter().map(|store| format!("`{store}`")));
        for column in columns {
            let numbers: Vec<_> =
                stores.iter().map(|store| self.find(store, column.kind, &column.value)).collect();
            if numbers.iter().any(Option::is_some) {
                let numbers = numbers.into_iter().map(|number| number.map_or(String::new(), significant));
                cells.push([column.title].into_iter().chain(numbers).collect());
            }
        }

        let widths: Vec<_> =
            cells.iter().map(|column| column.iter().map(String::len).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for line in 0..=stores.len() {
            for (n, (column, &width)) in cells.iter().zip(&widths).enumerate() {
                let cell = &column[line];
                let _ = if n == 0 {
                    write!(text, "| {cell:<width$} |")
                } else {
                    write!(text, " {cell:>width$} |")
                };
            }
            text.push('\n');
            if line == 0 {
                for (n, &width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(width + 1);
                    let _ = if n == 0 { write!(text, "|{dashes}-|") } else { write!(text, "{dashes}:|") };
                }
                text.push('\n');
            }
        }
        text
    }
}

impl Row {
    /// A row without numbers.
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            store: plan.store.clone(),
            workload: plan.workload,
            threads: plan.threads,
            batch: plan.batch,
            ns_per_announce: None,
            p999_ns: None,
            rss_bytes_per_swarm: None,
            rss_bytes_per_peer: None,
            live_bytes_per_swarm: None,
            live_bytes_per_peer: None,
        }
    }

    /// Sets the bytes that a full store takes, by the allocator and by the resident set.
    pub(crate) fn set_bytes(&mut self, workload: &Workload, live: u64, resident: Option<u64>) {
        let each = |bytes: u64, of: u64| (bytes as f64 / of as f64 * 10.0).round() / 10.0;
        if self.workload.tells_bytes_per_swarm() {
            self.live_bytes_per_swarm = Some(each(live, workload.swarms()));
            self.rss_bytes_per_swarm = resident.map(|bytes| each(bytes, workload.swarms()));
        }
        if self.workload.tells_bytes_per_peer() {
            self.live_bytes_per_peer = Some(each(live, workload.peers()));
            self.rss_bytes_per_peer = resident.map(|bytes| each(bytes, workload.peers()));
        }
    }
}

/// Where in a row a number is.
pub(crate) type Value = Box<dyn Fn(&Row) -> Option<f64>>;

/// A column of a table: its title, and where in the rows its numbers are.
struct Column {
    title: String,
    kind: Kind,
    is_bytes: bool,
    value: Value,
}

impl Column {
    fn new(
        title: impl Into<String>,
        kind: Kind,
        is_bytes: bool,
        value: impl Fn(&Row) -> Option<f64> + 'static,
    ) -> Self {
        Self { title: title.into(), kind, is_bytes, value: Box::new(value) }
    }
}

impl Machine {
    fn this() -> Self {
        let after = |path: &str, key: &str| {
            let text = fs::read_to_string(path).ok()?;
            let (_, value) = text.lines().find(|line| line.starts_with(key))?.split_once(':')?;
            Some(value.trim().to_owned())
        };
        let kib =
            after("/proc/meminfo", "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        Self {
            cpu: after("/proc/cpuinfo", "model name"),
            cores: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            memory_bytes: kib.map(|kib| kib * 1024),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or(&self.system);
        write!(f, "{cpu}, {} core{}", self.cores, if self.cores == 1 { "" } else { "s" })
    }
}

/// A file with the two marks between which the table stands.
pub(crate) struct Marked {
    text: String,
    between: std::ops::Range<usize>,
}

impl Marked {
    const BEGIN: &str = "<!-- shootout:begin -->";
    const END: &str = "<!-- shootout:end -->";

    /// Reads the file and finds the marks.
    pub(crate) fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let begin = text.find(Self::BEGIN).map(|at| at + Self::BEGIN.len());
        let between = begin.and_then(|begin| Some(begin..begin + text[begin..].find(Self::END)?));
        let between = between.ok_or_else(|| {
            format!("{}: expected {} and, behind it, {}", path.display(), Self::BEGIN, Self::END)
        })?;
        Ok(Self { text, between })
    }

    /// The text with this between the marks.
    pub(crate) fn with(mut self, table: &str) -> String {
        self.text.replace_range(self.between, &format!("\n{table}"));
        self.text
    }
}

fn population(workload: &Workload) -> String {
    let (swarms, peers) = (workload.swarms(), workload.peers());
    format!("{} swarm{}, {} peers", grouped(swarms), if swarms == 1 { "" } else { "s" }, grouped(peers))
}

/// Three digits and more: measured to no better than some per cent.
pub(crate) fn significant(number: f64) -> String {
    if number < 99.95 { format!("{number:.1}") } else { grouped(number.round() as u64) }
}

fn grouped(number: u64) -> String {
    if number < 1000 {
        number.to_string()
    } else {
        format!("{},{:03}", grouped(number / 1000), number % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (12, "12"), (123, "123"), (1234, "1,234"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(significant(99.94), "99.9");
        assert_eq!(significant(99.95), "100");
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let marked = |text: &str| {
            let path = std::env::temp_dir().join(format!(
                "swarmkeep-marks-{}-{}.md",
                std::process::id(),
                text.len()
            ));
            fs::write(&path, text).unwrap();
            let marked = Marked::read(&path).map(|marked| marked.with("| new |\n"));
            fs::remove_file(&path).unwrap();
            marked
        };
        let old = "a\n<!-- shootout:begin -->\n| old |\n| table |\n<!-- shootout:end -->\nb <!-- shootout:begin -->\n";
        let new = "a\n<!-- shootout:begin -->\n| new |\n<!-- shootout:end -->\nb <!-- shootout:begin -->\n";
        assert_eq!(marked(old).unwrap(), new);
        assert!(marked("<!-- shootout:end --> <!-- shootout:begin -->").is_err());
        assert!(marked("").is_err());
    }
}
