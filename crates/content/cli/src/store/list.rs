//! `seedkeep store list`, `remove` and `stats`.

use std::{
    collections::HashSet,
    error::Error,
    io::{self, BufWriter, Write},
    iter,
    process::ExitCode,
};

use indicatif::BinaryBytes;
use serde::{Serialize, Serializer};
use serde_json::json;
use swarmkeep_content::{ContentRepository, Description, InfoHash};

use super::{
    StoreArg,
    opened::{Access, Kind, OpenStore, StoredTorrent},
    print_json, say,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    info_hash: String,
    /// `None` without the torrent file.
    name: Option<String>,
    bytes: u64,
    piece_length: u32,
    pieces: u32,
    complete: u32,
    files: Option<u32>,
    /// Whether the store has its torrent file.
    torrent_file: bool,
}

/// Rows, made one by one while they are printed: a hundred thousand of them use much memory.
struct Rows<'a, F>(&'a [StoredTorrent], F);

impl<'a, F: Fn(&'a StoredTorrent) -> Row> Serialize for Rows<'a, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

impl Row {
    fn of(torrent: &StoredTorrent, kept: &HashSet<InfoHash>) -> Self {
        let geometry = torrent.summary.geometry;
        Self {
            info_hash: torrent.info_hash().to_string(),
            name: torrent.name().map(ToOwned::to_owned),
            bytes: geometry.len(),
            piece_length: geometry.piece_length(),
            pieces: geometry.pieces(),
            complete: torrent.summary.complete,
            files: torrent.description.as_ref().map(Description::files),
            torrent_file: kept.contains(&torrent.info_hash()),
        }
    }

    fn cells(self) -> Vec<String> {
        vec![
            self.name.unwrap_or_else(|| "(no torrent file)".into()),
            BinaryBytes(self.bytes).to_string(),
            format!("{} of {}", self.complete, self.pieces),
            self.files.map_or_else(String::new, |files| files.to_string()),
            self.info_hash,
        ]
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = args.store.open(Access::Reading)?;
    let torrents = store.torrents()?;
    let (kept, missing) = store.kept(torrents.iter().map(StoredTorrent::info_hash));
    let row = |torrent| Row::of(torrent, &kept);
    if args.json {
        print_json(&Rows(&torrents, row))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(missing) = missing {
        say!("{missing}");
    }
    if torrents.is_empty() {
        say!("There are no torrents in the store.");
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["name", "bytes", "complete", "files", "info hash"];
    let rows = || {
        let heads = heads.map(ToOwned::to_owned).to_vec();
        iter::once(heads).chain(torrents.iter().map(|torrent| row(torrent).cells()))
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for line in lines(rows) {
        out.write_all(line.as_bytes())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The lines of a Markdown table. Makes the rows twice, first for the widths, instead of keeping them.
fn lines<I: Iterator<Item = Vec<String>>>(rows: impl Fn() -> I) -> impl Iterator<Item = String> {
    let mut widths = Vec::new();
    for row in rows() {
        widths.resize(row.len(), 0);
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
    }
    let dashes = widths.iter().enumerate().map(|(n, &width)| {
        let dashes = "-".repeat(width + 1);
        if n == 0 { format!("|{dashes}-|") } else { format!("{dashes}:|") }
    });
    let mut dashes = Some(dashes.collect::<String>() + "\n");
    rows().flat_map(move |row| {
        let cells = row.into_iter().zip(&widths).enumerate().map(|(n, (cell, &width))| match n {
            0 => format!("| {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
        [Some(cells.collect::<String>() + "\n"), dashes.take()].into_iter().flatten()
    })
}

/// Delete torrents and their content.
#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    store: StoreArg,

    /// The torrents: by name, info hash, or the beginning of an info hash.
    #[arg(required = true, value_name = "TORRENT")]
    torrents: Vec<String>,
}

pub(super) fn remove(args: &RemoveArgs) -> Result<ExitCode, Box<dyn Error>> {
    let store = args.store.open(Access::Writing)?;
    let delete = |info_hash: &InfoHash| -> Result<bool, Box<dyn Error>> {
        let is_deleted = store.repository.delete(info_hash)?;
        // The folder of torrent files within a folder belongs to this store alone.
        if is_deleted && matches!(store.kind, Kind::Files(_)) && args.store.torrent_files.folder.is_none() {
            store.torrents.forget(info_hash)?;
        }
        Ok(is_deleted)
    };
    for name in &args.torrents {
        // A lost torrent has no more than its info hash.
        if let Ok(info_hash) = name.parse()
            && delete(&info_hash)?
        {
            say!("removed {info_hash}");
            continue;
        }
        for torrent in store.named(std::slice::from_ref(name))? {
            delete(&torrent.info_hash())?;
            say!("removed {} ({})", torrent.title(), torrent.info_hash());
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn stats(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = OpenStore::open_quietly(&args.store.path, &args.store.torrent_files, Access::Reading)?;
    let statistics = store.repository.statistics();
    let (mut complete_torrents, mut bytes, mut complete_bytes) = (0, 0_u64, 0);
    for torrent in store.repository.list()? {
        complete_torrents += usize::from(torrent.complete == torrent.geometry.pieces());
        bytes = bytes.saturating_add(torrent.geometry.len());
        let pieces = store.repository.open(&torrent.info_hash)?.pieces()?;
        let lengths = pieces.iter().filter_map(|piece| torrent.geometry.piece(piece).ok());
        complete_bytes =
            lengths.fold(complete_bytes, |sum: u64, range| sum.saturating_add(range.end - range.start));
    }
    let block = match &store.kind {
        Kind::Block(block) => Some(block),
        Kind::Files(_) => None,
    };
    let root = block.map(|block| (block.block_size(), block.report().generation));
    let kind = if block.is_some() { "block" } else { "files" };
    let lost = block.into_iter().flat_map(|block| &block.report().lost).map(ToString::to_string);
    let (lost, damage, torrents) = (lost.collect::<Vec<_>>(), store.all_damage()?, statistics.torrents);
    if args.json {
        // `bytes` are of torrents, `used` and `free` of the medium. `generation` counts the writes of the
        // root. Of `lost` torrents only the info hash is known.
        print_json(&json!({
            "kind": kind, "torrents": torrents, "complete_torrents": complete_torrents, "bytes": bytes,
            "complete_bytes": complete_bytes, "used": statistics.used, "free": statistics.free,
            "block_size": root.map(|root| root.0), "generation": root.map(|root| root.1), "lost": lost,
            "damage": damage,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for damage in damage {
        say!("damage     {damage}");
    }
    say!("torrents   {torrents}, of which {complete_torrents} are complete");
    say!("content    {} of {}", BinaryBytes(complete_bytes), BinaryBytes(bytes));
    say!("used       {}", BinaryBytes(statistics.used));
    if let Some(free) = statistics.free {
        say!("free       {}", BinaryBytes(free));
    }
    if let Some((size, generation)) = root {
        say!("blocks     of {}", BinaryBytes(size.into()));
        say!("root       generation {generation}");
    }
    for lost in lost {
        say!("lost       {lost}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows = || [["a", "1 × 2"], ["long", "3"]].map(|row| row.map(str::to_owned).to_vec()).into_iter();
        let text: String = super::lines(rows).collect();
        assert_eq!(text, "| a    | 1 × 2 |\n|------|------:|\n| long |     3 |\n");
    }
}
