//! `seedkeep store map`: the owner of each block of a device, as text and as a picture.

use std::{
    collections::HashMap,
    error::Error,
    fs::File,
    io::{self, BufWriter, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
};

use indicatif::BinaryBytes;
use serde_json::{Value, json};
use swarmkeep_content::{
    InfoHash,
    block::{BlockStore, Owner},
};

use super::{
    StoreArg, counted,
    opened::{Access, Kind, OpenStore},
    print_json, say,
};

const COLUMNS: usize = 64;
/// The most rows. If there are more blocks than cells, a cell stands for several.
const ROWS: usize = 32;
/// Letters of torrents, which share them in turn.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Colours of torrents, which share them in turn.
const COLOURS: [&str; 8] =
    ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#d62728", "#8c564b", "#e377c2", "#7f7f7f"];

/// Show the owner of each block of a device.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// Also draw a map.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON: each run of blocks with its owner.
    #[arg(long)]
    json: bool,
}

/// The owners of the blocks of a device, and the titles of its torrents.
struct Layout {
    runs: Vec<(Range<u32>, Owner)>,
    blocks: u32,
    block_size: u32,
    /// In the order in which they lie on the device.
    torrents: Vec<(InfoHash, String)>,
    places: HashMap<InfoHash, usize>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = args.store.open(Access::Reading)?;
    let Kind::Block(block) = &store.kind else {
        let path = args.store.path.display();
        return Err(format!("{path} is a folder of files: the file system says where they are").into());
    };
    let layout = Layout::of(block, &store)?;
    if let Some(path) = &args.svg {
        layout.draw(path)?;
    }
    if args.json {
        print_json(&layout.json())?;
    } else {
        layout.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Layout {
    fn of(block: &BlockStore, store: &OpenStore) -> Result<Self, Box<dyn Error>> {
        let named: HashMap<_, _> =
            store.torrents()?.into_iter().map(|torrent| (torrent.info_hash(), torrent.title())).collect();
        let runs = block.owners();
        let (mut torrents, mut places) = (Vec::new(), HashMap::new());
        for (_, owner) in &runs {
            if let Owner::Content(torrent) | Owner::Map(torrent) = owner
                && !places.contains_key(torrent)
            {
                places.insert(*torrent, torrents.len());
                torrents.push((*torrent, named[torrent].clone()));
            }
        }
        Ok(Self { runs, blocks: block.blocks(), block_size: block.block_size(), torrents, places })
    }

    /// Blocks of no run are free.
    fn json(&self) -> Value {
        let run = |(run, owner): &(Range<u32>, Owner)| {
            let (owner, torrent) = match owner {
                Owner::Root => ("root", None),
                Owner::Map(torrent) => ("map", Some(torrent)),
                Owner::Content(torrent) => ("content", Some(torrent)),
                _ => ("inodes", None),
            };
            let name = torrent.map(|torrent| &self.torrents[self.place(torrent)].1);
            let info_hash = torrent.map(ToString::to_string);
            json!({ "first": run.start, "blocks": run.len(), "owner": owner, "info_hash": info_hash, "name": name })
        };
        let runs: Vec<_> = self.runs.iter().map(run).collect();
        json!({ "block_size": self.block_size, "blocks": self.blocks, "runs": runs })
    }

    fn place(&self, torrent: &InfoHash) -> usize {
        self.places[torrent]
    }

    fn letter(&self, owner: &Owner) -> char {
        match owner {
            Owner::Root => '#',
            Owner::Content(torrent) | Owner::Map(torrent) => {
                LETTERS[self.place(torrent) % LETTERS.len()].into()
            }
            _ => '%',
        }
    }

    fn cell(&self, blocks: u32) -> String {
        format!("{} of {}", counted(blocks as usize, "block"), BinaryBytes(self.block_size.into()))
    }

    /// The owner of most blocks of each cell; `None` if more of them are free.
    fn cells(&self, blocks_per_cell: u32) -> Vec<Option<Owner>> {
        let mut cells: Vec<Vec<(Owner, u32)>> =
            vec![Vec::new(); self.blocks.div_ceil(blocks_per_cell) as usize];
        for (run, owner) in &self.runs {
            for cell in run.start / blocks_per_cell..=(run.end - 1) / blocks_per_cell {
                let (start, end) = (cell * blocks_per_cell, (cell + 1).saturating_mul(blocks_per_cell));
                let blocks = run.end.min(end) - run.start.max(start);
                let owners = &mut cells[cell as usize];
                match owners.iter_mut().find(|(other, _)| other == owner) {
                    Some((_, sum)) => *sum += blocks,
                    None => owners.push((*owner, blocks)),
                }
            }
        }
        let most = |owners: Vec<(Owner, u32)>| {
            let free = blocks_per_cell - owners.iter().map(|(_, blocks)| blocks).sum::<u32>();
            let most = owners.into_iter().max_by_key(|(_, blocks)| *blocks);
            most.filter(|(_, blocks)| *blocks >= free).map(|(owner, _)| owner)
        };
        cells.into_iter().map(most).collect()
    }

    fn print(&self) -> Result<(), Box<dyn Error>> {
        let blocks_per_cell = self.blocks.div_ceil((COLUMNS * ROWS) as u32).max(1);
        let cells = self.cells(blocks_per_cell);
        for (row, cells) in cells.chunks(COLUMNS).enumerate() {
            let first = row as u64 * COLUMNS as u64 * u64::from(blocks_per_cell);
            let cells: String =
                cells.iter().map(|owner| owner.as_ref().map_or('.', |owner| self.letter(owner))).collect();
            say!("{first:>10}  {cells}");
        }
        say!("\n  A letter is {}.\n  #  the root\n  %  i-nodes\n  .  free", self.cell(blocks_per_cell));
        for (torrent, title) in &self.torrents {
            let owner = Owner::Content(*torrent);
            let runs = self.runs.iter().filter(|(_, other)| *other == owner);
            let (count, blocks) =
                runs.fold((0, 0), |(count, blocks), (run, _)| (count + 1, blocks + run.len()));
            let (blocks, runs) = (counted(blocks, "block"), counted(count, "run"));
            say!("  {}  {title}: {blocks} in {runs}", self.letter(&owner));
        }
        Ok(())
    }

    fn draw(&self, path: &Path) -> io::Result<()> {
        const CELL: usize = 12;
        const SIDE: usize = 20;
        let blocks_per_cell = self.blocks.div_ceil((COLUMNS * ROWS) as u32).max(1);
        let cells = self.cells(blocks_per_cell);
        let shade = |owner: Option<&Owner>| match owner {
            None => "#ebebeb",
            Some(Owner::Root) => "#1e1e1e",
            Some(Owner::Content(torrent) | Owner::Map(torrent)) => {
                COLOURS[self.place(torrent) % COLOURS.len()]
            }
            Some(_) => "#828282",
        };
        let free = format!("free; a square is {}", self.cell(blocks_per_cell));
        let mut legend = vec![
            (shade(None), free),
            (shade(Some(&Owner::Root)), "the root".to_owned()),
            (shade(Some(&Owner::Inodes)), "i-nodes".to_owned()),
        ];
        let torrents = self.torrents.iter().take(LETTERS.len());
        legend
            .extend(torrents.map(|(torrent, title)| (shade(Some(&Owner::Content(*torrent))), title.clone())));
        let below = 2 * SIDE + cells.len().div_ceil(COLUMNS) * CELL;
        let (width, height) = (2 * SIDE + COLUMNS * CELL, SIDE + below + legend.len() * 18);

        let mut svg = BufWriter::new(File::create(path)?);
        writeln!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>"#
        )?;
        let side = CELL - 1;
        for (at, owner) in cells.iter().enumerate() {
            let (x, y) = (SIDE + at % COLUMNS * CELL, SIDE + at / COLUMNS * CELL);
            let colour = shade(owner.as_ref());
            writeln!(svg, r#"<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{colour}"/>"#)?;
        }
        for (at, (colour, title)) in legend.into_iter().enumerate() {
            let (y, x) = (below + at * 18, SIDE + 20);
            let title = title.replace('&', "&amp;").replace('<', "&lt;");
            writeln!(svg, r#"<rect x="{SIDE}" y="{y}" width="{side}" height="{side}" fill="{colour}"/>"#)?;
            writeln!(svg, r#"<text x="{x}" y="{}">{title}</text>"#, y + side)?;
        }
        writeln!(svg, "</svg>")?;
        svg.flush()
    }
}
