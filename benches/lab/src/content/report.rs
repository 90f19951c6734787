//! The report of a run: as JSON, as text, and as Markdown with two pictures.

use std::{fs, io, path::Path};

use serde::Serialize;
use serde_json::json;
use swarmkeep_benches::{
    charts::{Line, dots},
    origin::Origin,
    tables::{grouped, significant, table},
};

use crate::content::{Options, Row, StoreSetup, disk::modelled, row::memory_of};

/// The report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The origin of the numbers.
    pub origin: Origin,
    /// The options of the run.
    pub options: Options,
    /// The reason why requests were not traced, if they should have been.
    pub untraced: Option<String>,
    /// The rows, in their order.
    pub rows: Vec<Row>,
}

/// The pictures: file, row and title.
const PICTURES: [(&str, StoreSetup, &str); 2] = [
    ("offsets-files.svg", StoreSetup::Files, "Plain files"),
    ("offsets-block-store.svg", StoreSetup::Block, "The block store behind the stripe cache"),
];

impl Report {
    fn row(&self, way: StoreSetup) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way)
    }

    /// How many times as fast as `slow` `fast` is on the modelled disk.
    pub fn speedup(&self, slow: StoreSetup, fast: StoreSetup) -> Option<f64> {
        Some(self.row(slow)?.replay.seconds / self.row(fast)?.replay.seconds)
    }

    /// For scripts.
    pub fn json(&self) -> String {
        let speedup = |slow, fast| self.speedup(slow, fast);
        let report = json!({
            "speedup": speedup(StoreSetup::Files, StoreSetup::Block),
            "order_earns": speedup(StoreSetup::Files, StoreSetup::FilesByExtents),
            "cache_earns": speedup(StoreSetup::FilesByExtents, StoreSetup::FilesCached),
            "layout_earns": speedup(StoreSetup::FilesCached, StoreSetup::Block),
            "report": self,
        });
        format!("{report:#}\n")
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        format!("{}\nModelled disk: {}\n\n{}{}", self.origin(), modelled(), self.table(), self.headline())
    }

    /// Writes the report to `path`, and its pictures into the folder of the same name.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.with_extension("");
        fs::create_dir_all(&folder)?;
        let longest = PICTURES
            .iter()
            .filter_map(|(_, way, _)| self.row(*way).map(|row| row.replay.seconds))
            .fold(1.0, f64::max);
        let mut pictures = String::new();
        for (file, way, title) in PICTURES {
            let Some(row) = self.row(way) else { continue };
            let points = row.replay.points.iter().map(|&(seconds, at)| (seconds, at / 1e9)).collect();
            let seeks = grouped(row.replay.seeks);
            let title = format!("{title}: GB on the device over time, {seeks} seeks");
            let dot = Line { label: String::new(), colour: 0, points };
            dots(&folder.join(file), &title, "seconds on the modelled disk", longest, &[dot])?;
            let name = folder.file_name().unwrap_or_default().display();
            pictures += &format!("\n![{title}]({name}/{file})\n");
        }
        fs::write(path, self.markdown() + &pictures)
    }

    fn markdown(&self) -> String {
        let memory = grouped(memory_of(self.options.cache) / 1_000_000);
        let traced = match (&self.untraced, self.options.traced) {
            (_, true) => format!("{TRACED}\n\nEvery row had {memory} MB by a control group: {LIMITED}"),
            (Some(why), _) => format!("Requests were not traced: {why}. {UNTRACED}"),
            (None, _) => UNTRACED.to_owned(),
        };
        let versions = self.rows.iter().filter_map(|row| row.version.as_deref()).next();
        let libtorrent = versions.map_or(String::new(), |version| format!("\n\n{LIBTORRENT} {version}."));
        format!(
            "# The cost of stores of torrents' content\n\n{}\n\n\
             Measured by `cargo store-bench`. {DOWNLOAD}\n\n{}\n{traced}{libtorrent}\n{}\n\
             ## The modelled disk\n\n{}.\n\n{MODEL}\n\n## Offsets over time\n",
            self.origin(),
            self.table(),
            self.headline(),
            modelled(),
        )
    }

    fn origin(&self) -> String {
        let options = &self.options;
        format!(
            "{} torrents of {} MB, {} at a time, {} MB of cache, blocks of {} KiB, seed {};\n{}.",
            options.torrents,
            grouped(options.size / 1_000_000),
            options.parallel.min(options.torrents),
            grouped(options.cache / 1_000_000),
            options.block / 1024,
            options.seed,
            self.origin,
        )
    }

    fn table(&self) -> String {
        table(
            &self.rows,
            &[
                ("", &|row| row.name.clone()),
                ("requests", &|row| grouped(row.replay.requests)),
                ("seeks", &|row| grouped(row.replay.seeks)),
                ("modelled s", &|row| significant(row.replay.seconds)),
                ("measured s", &|row| significant(row.seconds)),
                ("CPU s", &|row| significant(row.cpu)),
            ],
        )
    }

    /// The parts of the order, of the cache and of the layout.
    fn headline(&self) -> String {
        use StoreSetup::{Block, Files, FilesByExtents, FilesCached, FilesFree};
        let part = |slow, fast| self.speedup(slow, fast);
        let parts = part(Files, FilesByExtents).zip(part(FilesByExtents, FilesCached));
        let Some(((order, cache), layout)) = parts.zip(part(FilesCached, Block)) else {
            return String::new();
        };
        let share = 100.0 / (order * cache * layout);
        let free = part(FilesFree, Block).map_or(String::new(), |times| {
            format!(", and {:.0} % of that of plain files with a free page cache", 100.0 / times)
        });
        let of = [("it takes", Block), ("plain files", Files), ("with a page cache", FilesFree)];
        let cpu = of.map(|(name, way)| self.row(way).map(|row| format!("{name} {} s", significant(row.cpu))));
        let cpu = cpu.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let Options { torrents, size, cache: memory, block, .. } = self.options;
        let held = u64::from(torrents) * size / memory.max(1);
        format!(
            "\nOn the modelled hard disk, with memory for 1/{held} of the content, the block store behind the stripe cache\n\
             takes **{share:.0} % of the time** of plain files that get pieces in random order{free}.\n\
             Of that, the order of pieces earns a factor of {order:.2}: plain files without a cache that get all pieces of an\n\
             aligned {} KiB, then of another. The stripe cache earns a further factor of {cache:.2}, and the layout one of\n\
             {layout:.2}. Where nothing seeks, CPU time is left: {cpu}. The block store needs no recheck after a crash. The\n\
             paper measured 3.19 times, with real disks.\n",
            block >> 10
        )
    }
}

const DOWNLOAD: &str = "\
Pieces come in random order, with the same number of bytes per
second for each torrent. A complete piece is written with one call, as by a client that checks its hash first.
The store is flushed after each torrent. With affinity, the cache chooses the next piece to fetch. After each
row the store was opened again, all pieces were complete, and a sample of them read as it was written.";

const TRACED: &str = "\
**Requests** are those that the kernel sent to the row's device (`block_rq_issue`), a loop device. Plain
files lie on an ext4 on it, whose journal, i-nodes and bitmaps are in the trace. The block store writes to
the device itself, without the page cache. **Seeks** and **modelled s** replay the requests, in their order,
on the modelled disk. **Measured s** is the time until all bytes were on the loop device, whose image lies
on the disk of this machine, and **CPU s** the processor time of the row's process, without libtorrent's
and that of threads of the kernel.";

const LIMITED: &str = "\
the stripe cache, the page cache, and the growth of
the process. Only *free page cache* had all of the machine's.";

const LIBTORRENT: &str = "\
libtorrent got the same pieces by `add_piece` and wrote them through its own disk I/O. It hashed nothing, as
the other rows, and all was flushed once, at the end. Its measured seconds are of pieces that were handed
over one by one. *Tuned*: preallocated files, calls instead of a mapping, one thread that writes, a quarter
of the memory as queue, and the order of pieces of `piece_extent_affinity`. Its version is";

const UNTRACED: &str = "\
**Requests** are calls. **Seeks** and **modelled s** replay them, in
their order, on the modelled disk, as if the torrents lay one after another. No kernel writes plain files in
the order of the calls: as root, with tracefs, real requests are traced. No memory was limited.";

const MODEL: &str = "\
Accesses go one after another, and the head stays where it was. A gap ahead takes the time in which it passes
under the head, if that is less than a seek and half a turn. Then it is no seek. Offsets are bytes of the
modelled disk, not scaled. Flushes cost nothing.";
