//! What a run found: as JSON, as text for people, as Markdown.

use std::{fmt::Write, io, path::Path};

use serde::Serialize;
use swarmkeep_workload::{
    Machine,
    tables::{grouped, markdown, significant},
};

use crate::content::{
    Locality, Options, Pictures, Requests, Row, Seeded, charts,
    plan::{BY_MEMORY, SETUPS, Setup, Store},
    process,
    row::memory_of,
};

/// What a run found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    version: &'static str,
    machine: Machine,
    /// What else the machine did: requests and modelled seconds hardly depend on it, measured ones do.
    load: Option<f64>,
    /// What was run.
    pub options: Options,
    /// How many times as fast as sparse files the block store with the stripe cache is on the modelled disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup_over_sparse_files: Option<f64>,
    /// The part of it that the stripe cache earns: sparse files behind it over sparse files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_earns: Option<f64>,
    /// The part of it that the layout earns: the block store over sparse files, both behind the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_earns: Option<f64>,
    /// The same over sparse files with all of the machine's memory for a page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup_over_free_page_cache: Option<f64>,
    /// The same if calls reached the disk in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup_in_the_order_of_calls: Option<f64>,
    /// Why requests were not traced, if they were to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untraced: Option<String>,
    /// What is to be reached, and what was.
    pub goals: Vec<Goal>,
    /// The rows, in their order.
    pub rows: Vec<Row>,
    /// Further rows, with more memory.
    pub by_memory: Vec<Row>,
    /// What seeding takes.
    pub seeding: Vec<Seeded>,
    #[serde(skip)]
    pictures: Vec<(Setup, Pictures)>,
}

/// Something to reach.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// What.
    pub what: String,
    /// What was measured.
    pub measured: f64,
    /// What is to be reached.
    pub goal: f64,
    /// Whether it was.
    pub reached: bool,
}

impl Goal {
    fn at_least(goal: f64, what: impl Into<String>, measured: f64) -> Self {
        Self { what: what.into(), measured, goal, reached: measured >= goal }
    }

    fn at_most(goal: f64, what: impl Into<String>, measured: f64) -> Self {
        Self { what: what.into(), measured, goal, reached: measured <= goal }
    }
}

impl Report {
    pub(crate) fn new(
        options: Options,
        rows: Vec<Row>,
        pictures: Vec<Option<Box<Pictures>>>,
        seeding: Vec<Seeded>,
    ) -> Self {
        let ways = rows.iter().map(|row| row.way);
        let pictures = ways.zip(pictures).filter_map(|(way, pictures)| Some((way, *pictures?))).collect();
        let mut report = Self {
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::this(),
            load: process::load(),
            options,
            speedup_over_sparse_files: None,
            cache_earns: None,
            layout_earns: None,
            speedup_over_free_page_cache: None,
            speedup_in_the_order_of_calls: None,
            untraced: None,
            goals: Vec::new(),
            rows,
            by_memory: Vec::new(),
            seeding,
            pictures,
        };
        report.speedup_over_sparse_files = report.speedup(Setup::SPARSE, Setup::BEST);
        report.cache_earns = report.speedup(Setup::SPARSE, Setup::BEHIND);
        report.layout_earns = report.speedup(Setup::BEHIND, Setup::BEST);
        report.speedup_over_free_page_cache = report.speedup(Setup::FREE, Setup::BEST);
        let calls = |way| Some(report.row(way)?.calls.modelled.seconds);
        report.speedup_in_the_order_of_calls =
            calls(Setup::SPARSE).zip(calls(Setup::BEST)).map(|(sparse, best)| sparse / best);
        report.goals = report.goals();
        report
    }

    /// The row of a way, if it was measured.
    pub fn row(&self, way: Setup) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way)
    }

    pub(crate) fn pictures(&self, way: Setup) -> Option<&Pictures> {
        self.pictures.iter().find(|(of, _)| *of == way).map(|(_, pictures)| pictures)
    }

    /// How many times as fast as `slow` `fast` is on the modelled disk.
    fn speedup(&self, slow: Setup, fast: Setup) -> Option<f64> {
        Some(self.row(slow)?.modelled() / self.row(fast)?.modelled())
    }

    /// Everything that is to be reached and for which there are numbers.
    fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let cached = |store, aged| Setup { store, aged, ..Setup::BEST };
        for store in [Store::BlockSequential, Store::BlockOrdered] {
            for (aged, goal) in [(false, 3.0), (true, 2.0)] {
                let way = cached(store, aged);
                if let Some(speedup) = self.speedup(Setup::SPARSE, way) {
                    goals.push(Goal::at_least(
                        goal,
                        format!("{way}: times as fast as files-sparse, modelled"),
                        speedup,
                    ));
                }
            }
        }
        for way in SETUPS.iter().filter(|way| way.store.is_block() && way.affinity) {
            if let Some(seeks) = self.row(*way).and_then(|row| row.seeks) {
                let each = seeks.fresh as f64 / seeks.stretches.max(1) as f64;
                goals.push(Goal::at_most(1.0, format!("{way}: seeks for each fresh stretch"), each));
            }
        }
        for store in [Store::FilesSparse, Store::FilesPreallocated] {
            let plain = Setup { store, ..Setup::SPARSE };
            if let Some(speedup) = self.speedup(plain, cached(store, false)) {
                let what = format!("{}: times as fast as without, modelled", cached(store, false));
                goals.push(Goal::at_least(2.0, what, speedup));
            }
        }
        let sparse = self.row(Setup::SPARSE).map(Row::cpu_per_gb);
        for way in SETUPS.iter().filter(|way| way.store.is_block() && way.affinity) {
            if let Some((row, sparse)) = self.row(*way).zip(sparse) {
                let what = format!("{way}: CPU seconds a GB, of those of files-sparse");
                // Of a few seconds, what does not grow with the content is a larger part.
                let goal = if row.bytes < 5_000_000_000 { 0.75 } else { 0.5 };
                goals.push(Goal::at_most(goal, what, row.cpu_per_gb() / sparse));
            }
        }
        for row in self.rows.iter().filter(|row| row.way.cache) {
            if let Some(memory) = row.memory_bytes {
                // A process has some that does not grow with the cache: 24 MiB were seen.
                let share = memory as f64 / (self.options.cache + (24 << 20)) as f64;
                goals.push(Goal::at_most(
                    1.05,
                    format!("{}: memory, of the cache and 24 MiB", row.name),
                    share,
                ));
            }
        }
        for seeded in &self.seeding {
            // Peers without locality are shown, and are no goal.
            if seeded.locality == self.options.seeding.unwrap_or_default().locality {
                let what = "seeding, reading ahead: times as fast as single reads, modelled";
                goals.push(Goal::at_least(5.0, what, seeded.speedup()));
            }
        }
        goals
    }

    /// For scripts.
    ///
    /// # Panics
    /// Never: it holds nothing that JSON cannot.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, texts and lists of them")
    }

    /// For people, on a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\nModelled disk: {}\n\n{}", self.origin(), self.options.disk, self.table());
        if let Some(why) = &self.untraced {
            let _ = write!(text, "\nRequests were not traced, so calls count in their order: {why}\n");
        }
        if let Some(table) = self.memory_table() {
            let _ = write!(text, "\n{table}");
        }
        if !self.seeding.is_empty() {
            let _ = write!(text, "\n{}", self.seeding_table());
        }
        if !self.goals.is_empty() {
            let _ = write!(text, "\n{}", self.goals_table());
        }
        for row in self.rows.iter().filter(|row| row.note.is_some()) {
            let _ = write!(text, "\n{}: {}", row.name, row.note.as_deref().unwrap_or_default());
        }
        text
    }

    /// A file of its own, with the pictures if they were drawn into `pictures`, a path as seen from where the
    /// file lies.
    pub fn markdown(&self, pictures: Option<&Path>) -> String {
        let mut text = format!("# What stores of torrents' content cost\n\n{}\n", self.origin());
        let options = &self.options;
        let _ = write!(
            text,
            "\nMeasured by `cargo store-bench`. Pieces come in random order, to {} torrents at a time,\n\
             with the same number of bytes per second for each. A complete piece is written with one call, as by a client\n\
             that checks its hash first. The store is flushed after each torrent. With affinity, the cache chooses the next\n\
             piece to fetch. After each row the store was opened again, all pieces were complete, and a sample of them\n\
             ({} MB in all rows) read as it was written.\n\n{}\n",
            options.parallel.min(options.torrents),
            grouped(self.rows.iter().map(|row| row.compared).sum::<u64>() / 1_000_000),
            self.table(),
        );
        let _ = writeln!(text, "{COLUMNS}\n\n{}", self.traced_or_not());
        for row in self.rows.iter().filter(|row| row.note.is_some()) {
            let _ = write!(text, "\n`{}`: {}.\n", row.name, row.note.as_deref().unwrap_or_default());
        }
        text += &self.headline().unwrap_or_default();
        if let Some(table) = self.memory_table() {
            let _ = write!(text, "\n## With more memory\n\n{table}\n{MEMORY}\n");
        }
        if !self.goals.is_empty() {
            let _ = write!(text, "\n## Goals\n\n{}", self.goals_table());
        }
        let _ = write!(text, "\n## The modelled disk\n\n{}.\n\n{MODEL}\n", options.disk);
        let seeks = self.seeks_table();
        if let Some(seeks) = seeks {
            let _ = write!(text, "\n## Where the head went in the block store\n\n{seeks}\n{SEEKS}\n");
        }
        if let (false, Some(seeding)) = (self.seeding.is_empty(), options.seeding) {
            let _ = write!(
                text,
                "\n## Seeding\n\n{} peers, spread over the torrents evenly, ask for {} blocks of 16 KiB, one at a time each,\nin the order of the piece. They choose pieces by their habit.\n\n{}\n{SEEDING}\n",
                seeding.peers,
                grouped(seeding.requests.into()),
                self.seeding_table(),
            );
        }
        if let Some(folder) = pictures {
            let _ = writeln!(text, "\n## Pictures");
            for (file, title) in charts::files(self) {
                let _ = write!(text, "\n![{title}]({})\n", folder.join(file).display());
            }
        }
        text
    }

    /// Draws all pictures for which there are points; answers the names of their files.
    ///
    /// # Errors
    /// What the file system says.
    pub fn draw(&self, folder: &Path) -> io::Result<Vec<String>> {
        charts::draw(self, folder)
    }

    fn origin(&self) -> String {
        let options = &self.options;
        let rounds = if options.rounds > 1 {
            format!(", medians of {} rounds", options.rounds)
        } else {
            String::new()
        };
        format!(
            "{} torrents of {} MB, {} at a time, {} MB of cache, blocks of {} KiB, seed {}{rounds};\n{}, swarmkeep {}{}{}.",
            options.torrents,
            grouped(options.size / 1_000_000),
            options.parallel.min(options.torrents),
            grouped(options.cache / 1_000_000),
            options.block / 1024,
            options.seed,
            self.machine,
            self.version,
            if cfg!(debug_assertions) { ", a build without all optimisations" } else { "" },
            self.load.map_or(String::new(), |load| format!(", load average {load:.1} at the end")),
        )
    }

    fn traced_or_not(&self) -> String {
        if self.options.traced {
            let memory = grouped(memory_of(self.options.cache) / 1_000_000);
            let libtorrent = if self.options.libtorrent { LIBTORRENT } else { "" };
            return format!(
                "{TRACED}\n\nEvery row had {memory} MB by a control group: {LIMITED}{libtorrent}"
            );
        }
        let why = self.untraced.as_deref().unwrap_or("it was not asked for");
        format!("Requests were not traced: {why}. {UNTRACED}")
    }

    /// What the cache earns and what the layout does.
    fn headline(&self) -> Option<String> {
        let (together, cache, layout) =
            (self.speedup_over_sparse_files?, self.cache_earns?, self.layout_earns?);
        let mut text = format!(
            "\nOn the modelled disk the block store behind the stripe cache is **{together:.2} times** as fast as sparse files\n\
             with the same memory. The cache earns {cache:.2} of that: sparse files behind it over sparse files. The layout\n\
             earns {layout:.2}: the block store over sparse files, both behind the cache."
        );
        if let Some((free, calls)) = self.speedup_over_free_page_cache.zip(self.speedup_in_the_order_of_calls)
        {
            let _ = write!(
                text,
                " Over sparse files with a free page\ncache it is {free:.2} times as fast. In the order of the calls it would be {calls:.2}."
            );
        }
        Some(text + " The paper measured\n3.19 times, with real disks.\n")
    }

    fn table(&self) -> String {
        let lines = self.rows.iter().map(|row| Line {
            name: row.name.clone(),
            row: Some(row),
            requests: *row.requests(),
            seconds: Some(row.seconds),
        });
        let mut lines: Vec<_> = lines.collect();
        if let Some(row) = self.row(Setup::SPARSE).filter(|row| row.traced.is_some()) {
            let name = format!("{}, in the order of the calls", row.name);
            lines.push(Line { name, row: None, requests: row.calls, seconds: None });
        }
        if let Some((requests, seconds)) = self.row(Setup::BEST).and_then(|row| row.zeroed) {
            let name = "zeroes, written to the device before".to_owned();
            lines.push(Line { name, row: None, requests, seconds: Some(seconds) });
        }
        let of = |line: &Line<'_>, value: &dyn Fn(&Row) -> String| line.row.map_or(String::new(), value);
        let own = |line: &Line<'_>, value: &dyn Fn(&Row) -> String| {
            line.row.filter(|row| !row.way.store.is_libtorrent()).map_or(String::new(), value)
        };
        let columns: [Column<'_, Line<'_>>; 9] = [
            ("", &|line| line.name.clone()),
            ("writes", &|line| of(line, &|row| grouped(row.writes))),
            ("flushes", &|line| of(line, &|row| grouped(row.flushes))),
            ("requests", &|line| grouped(line.requests.count)),
            ("seeks", &|line| grouped(line.requests.modelled.seeks)),
            ("modelled s", &|line| significant(line.requests.modelled.seconds)),
            ("measured s", &|line| line.seconds.map_or(String::new(), significant)),
            ("CPU s/GB", &|line| own(line, &|row| format!("{:.3}", row.cpu_per_gb()))),
            ("memory, MB", &|line| {
                own(line, &|row| {
                    row.memory_bytes.map_or(String::new(), |bytes| significant(bytes as f64 / 1e6))
                })
            }),
        ];
        table(&columns, &lines)
    }

    /// What the cache and the layout earn, by memory.
    fn memory_table(&self) -> Option<String> {
        let mut memories: Vec<_> = self.by_memory.iter().map(|row| row.cache).collect();
        memories.insert(0, self.options.cache);
        memories.dedup();
        let seconds = |memory: u64, way| {
            let row =
                self.rows.iter().chain(&self.by_memory).find(|row| row.cache == memory && row.way == way);
            Some(row?.modelled())
        };
        let rows = memories.iter().filter_map(|&memory| {
            let [files, behind, block] = BY_MEMORY.map(|way| seconds(memory, way));
            Some((memory, files?, behind?, block?))
        });
        let rows: Vec<_> = rows.collect();
        let content = f64::from(self.options.torrents) * self.options.size as f64;
        let columns: [Column<'_, (u64, f64, f64, f64)>; 7] = [
            ("memory, of the content", &|row| match content / row.0 as f64 {
                all if all < 1.05 => "all".to_owned(),
                share => format!("1/{share:.0}"),
            }),
            ("files, s", &|row| significant(row.1)),
            ("files behind the cache, s", &|row| significant(row.2)),
            ("block store behind it, s", &|row| significant(row.3)),
            ("the cache earns", &|row| format!("{:.2}", row.1 / row.2)),
            ("the layout earns", &|row| format!("{:.2}", row.2 / row.3)),
            ("together", &|row| format!("{:.2}", row.1 / row.3)),
        ];
        (!self.by_memory.is_empty()).then(|| table(&columns, &rows))
    }

    fn seeks_table(&self) -> Option<String> {
        let rows: Vec<_> = self.rows.iter().filter_map(|row| Some((row.clone(), row.seeks?))).collect();
        let columns: [Column<'_, (Row, crate::content::Seeks)>; 9] = [
            ("", &|(row, _)| row.name.clone()),
            ("stretches", &|(_, seeks)| grouped(seeks.stretches)),
            ("fresh", &|(_, seeks)| grouped(seeks.fresh)),
            ("in part", &|(_, seeks)| grouped(seeks.part)),
            ("back", &|(_, seeks)| grouped(seeks.back)),
            ("again", &|(_, seeks)| grouped(seeks.again)),
            ("metadata", &|(_, seeks)| grouped(seeks.metadata)),
            ("whole stripes", &|(row, _)| row.stripes.map_or(String::new(), |(whole, _)| grouped(whole))),
            ("stripes in part", &|(row, _)| {
                row.stripes.map_or(String::new(), |(_, partial)| grouped(partial))
            }),
        ];
        (!rows.is_empty()).then(|| table(&columns, &rows))
    }

    fn seeding_table(&self) -> String {
        let columns: [Column<'_, Seeded>; 6] = [
            ("peers", &|seeded| habits(seeded.locality)),
            ("single, MB/s", &|seeded| significant(seeded.single.rate())),
            ("sorted", &|seeded| significant(seeded.single_sorted.rate())),
            ("cached", &|seeded| significant(seeded.single_cached.rate())),
            ("reading ahead", &|seeded| significant(seeded.read_ahead.rate())),
            ("times single", &|seeded| significant(seeded.speedup())),
        ];
        table(&columns, &self.seeding)
    }

    fn goals_table(&self) -> String {
        let columns: [Column<'_, Goal>; 4] = [
            ("goal", &|goal| goal.what.clone()),
            ("measured", &|goal| significant(goal.measured)),
            ("to reach", &|goal| goal.goal.to_string()),
            ("reached", &|goal| if goal.reached { "yes" } else { "no" }.to_owned()),
        ];
        table(&columns, &self.goals)
    }
}

/// A line of the table of rows, of which some are no rows.
struct Line<'a> {
    name: String,
    row: Option<&'a Row>,
    requests: Requests,
    seconds: Option<f64>,
}

/// A column of a table: its title, and what stands in it for a row.
type Column<'a, T> = (&'static str, &'a dyn Fn(&T) -> String);

fn table<T>(columns: &[Column<'_, T>], rows: &[T]) -> String {
    let columns = columns.iter().map(|(title, cell)| {
        [(*title).to_owned()].into_iter().chain(rows.iter().map(cell)).collect::<Vec<_>>()
    });
    markdown(&columns.collect::<Vec<_>>())
}

/// `25 % in order, 25 % by extent, 50 % at random (of which 25 % the same)`.
fn habits(locality: Locality) -> String {
    let Locality { in_order, by_extent, same_rare } = locality;
    let random = 1.0 - in_order - by_extent;
    let mut parts = Vec::new();
    for (share, what) in [(in_order, "in order"), (by_extent, "by extent"), (random, "at random")] {
        if share > 0.0 {
            parts.push(format!("{:.0} % {what}", share * 100.0));
        }
    }
    if random > 0.0 && same_rare > 0.0 {
        parts.push(format!("of which {:.0} % as another peer", same_rare * 100.0));
    }
    parts.join(", ")
}

const COLUMNS: &str = "\
**Writes** are calls: to the device, with metadata, or to the files, without metadata. **CPU** is the time of
all threads of the process, user and system, with the last flush. The time of the kernel's own threads for the
page cache of plain files is not included. **Memory** is the largest growth of the process, without the
kernel's page cache. Each row had a process of its own.";

const TRACED: &str = "\
**Requests** are those that the kernel sent to the row's device (`block_rq_issue`), a loop device. Plain
files lie on an ext4 on it, whose journal, i-nodes and bitmaps are in the trace. The block store writes to
the device itself, without the page cache. **Seeks** and **modelled s** replay the requests, in their order,
on the modelled disk. **Measured s** is the time until all bytes were on the loop device, whose image lies
on the disk of this machine. *In the order of the calls* replays the calls of sparse files, through their
extents, as if each reached the disk at once: no kernel writes like that. *Zeroes* were written to each
device before its row, so that it is like a used disk. A disk needs none of that, and an image only if it
shall be in one piece.";

const LIMITED: &str = "\
the stripe cache, the page cache, and the growth of
the process. Only *free page cache* had all of the machine's.";

const LIBTORRENT: &str = "\n\n\
libtorrent got the same pieces by `add_piece` and wrote them through its own disk I/O. It hashed nothing, as
the other rows, and all was flushed once, at the end. Its measured seconds are of pieces that were handed
over one by one. *Tuned*: preallocated files, calls instead of a mapping, one thread that writes, a quarter
of the memory as queue, and the order of pieces of `piece_extent_affinity`.";

const UNTRACED: &str = "\
**Seeks** and **modelled s** replay the offsets of the calls, in their
order, on the modelled disk. Offsets of an image are used as they are, those of files go through the extents of
the file system, without its journal, i-nodes and bitmaps. No kernel writes plain files in the order of the
calls: as root, with tracefs, real requests are traced. No memory was limited.";

const MEMORY: &str = "\
Modelled seconds of the same download with more memory. The cache earns what it gathers and a page cache of
the same size does not. The layout earns what the places of the block store save, behind the same cache.";

const MODEL: &str = "\
Accesses go one after another, and the head stays where it was. A gap ahead takes the time in which it passes
under the head, if that is less than a seek and half a turn. Then it is no seek. Offsets are bytes of the
modelled disk, not scaled. Flushes cost nothing.";

const SEEKS: &str = "\
**Stretches** are runs of neighbouring bytes that content was written to. Their number, or less where gaps are
short, is the least possible number of seeks. **Fresh** are the seeks to unwritten blocks. **In part** are
seeks into the middle of such a block and onward. **Again** are seeks to a block of which a part was already
written, because a flush, or the need for memory, did not wait for the rest of a stripe. **Back** are seeks to
the place where content was written last, after metadata.";

const SEEDING: &str = "\
**Single** reads each request from the disk, in the order of arrival. **Sorted** lets the drive sort 32 of
them at a time. **Cached** puts a cache of the size of the stripe cache over single reads, and evicts the
least recently used bytes. **In order**: from a random piece on, one after another, like a user who watches
during the download. **By extent**: all pieces of an aligned 4 MiB, then another 4 MiB at random, as
libtorrent does with `piece_extent_affinity`. **At random**: any missing piece. **As another peer**: the piece
that another peer of the swarm began last, because with rarest first peers want the same pieces. The shares of
these habits are an assumption, because nobody has published them.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_are_told_in_words() {
        assert_eq!(
            habits(Locality::default()),
            "25 % in order, 25 % by extent, 50 % at random, of which 25 % as another peer"
        );
        assert_eq!(habits(Locality::RANDOM), "100 % at random");
    }
}
