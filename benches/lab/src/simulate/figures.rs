//! Measured figures, read from the tables of the documents that benches write.

use std::{fs, path::Path};

use clap::ValueEnum;

use super::Error;

/// A document: its path in the repository, its text when this was built, and the command that writes it.
type Document = (&'static str, &'static str, &'static str);

const STORE: Document = (
    "docs/design/packed-store.md",
    include_str!("../../../../docs/design/packed-store.md"),
    "cargo shootout --figures --only packed,dashmap-mutex-parking-lot --readme docs/design/packed-store.md",
);
const REDIS: Document = (
    "docs/reports/redis-bench.md",
    include_str!("../../../../docs/reports/redis-bench.md"),
    "cargo bench -p swarmkeep-lab --bench redis -- --markdown docs/reports/redis-bench.md",
);
const TRACKERS: Document = (
    "docs/reports/trackers.md",
    include_str!("../../../../docs/reports/trackers.md"),
    "cargo run --release --manifest-path benches/peers/Cargo.toml --bin trackers -- --into docs/reports/trackers.md",
);

/// What the formulas need: microseconds of one core for an announce, and bytes of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// The connect before it.
    pub(crate) connect: f64,
    /// On a tracker that has the packed store in its memory.
    pub(crate) tracker: f64,
    /// The part of this that the store takes.
    pub(crate) store: f64,
    /// On such a tracker where the next three were measured.
    pub(crate) beside_redis: f64,
    /// On a tracker in front of a Redis Cluster, on the masters, and on their replicas.
    pub(crate) redis_client: f64,
    pub(crate) redis_master: f64,
    pub(crate) redis_replica: f64,
    pub(crate) packed: Bytes,
    pub(crate) redis: Bytes,
}

/// Bytes of memory in one store: a swarm of one IPv4 peer, one of ten, and a peer of a large swarm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    pub(crate) swarm_of_one: f64,
    pub(crate) swarm_of_ten: f64,
    pub(crate) v4_peer: f64,
    pub(crate) v6_peer: f64,
}

/// What keeps a store on Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The module.
    Module,
    /// Functions in Lua.
    Functions,
}

/// One number: where it stands, and the command that wrote it there.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) row: String,
    pub(crate) column: &'static str,
    pub(crate) document: &'static str,
    pub(crate) command: &'static str,
}

/// The documents of a checkout, and the figures that were looked up in them.
pub(crate) struct Figures<'a> {
    root: Option<&'a Path>,
    /// What keeps a store on Redis.
    engine: Engine,
    pub(crate) found: Vec<Figure>,
}

impl<'a> Figures<'a> {
    /// Figures of the checkout at `root`; without one, of the repository when this was built.
    pub(crate) fn of(root: Option<&'a Path>, engine: Engine) -> Self {
        Self { root, engine, found: Vec::new() }
    }

    pub(crate) fn costs(&mut self) -> Result<Costs, Error> {
        let per_million = "CPU s a million (least–most)";
        let connect = self.get(&TRACKERS, &["connect", "swarmkeep"], per_million)?;
        let tracker = self.get(&TRACKERS, &["cold", "swarmkeep"], per_million)?;
        let store = self.get(&STORE, &["announce, Zipf, batches: ns"], "`packed`")? / 1000.0;
        let packed = |this: &mut Self, row| this.get(&STORE, &[row], "`packed`");
        let design = match self.engine {
            Engine::Module => "module",
            Engine::Functions => "functions",
        };
        let resident =
            |this: &mut Self, swarms, family| this.get(&REDIS, &[swarms, family, design], "resident a peer");
        Ok(Costs {
            connect,
            tracker,
            store,
            beside_redis: self.get(&REDIS, &["packed, no server"], "tracker µs")?,
            redis_client: self.on_cluster("tracker µs")?,
            redis_master: self.on_cluster("masters µs")?,
            redis_replica: self.on_cluster("replicas µs")?,
            packed: Bytes {
                swarm_of_one: packed(self, "10 M swarms × 1 IPv4 peer: RSS, bytes per swarm")?,
                swarm_of_ten: packed(self, "100 k swarms × 10 IPv4 peers: RSS, bytes per peer")? * 10.0,
                v4_peer: packed(self, "1 swarm × 2 M IPv4 peers: RSS, bytes per peer")?,
                v6_peer: packed(self, "1 swarm × 2 M IPv6 peers: RSS, bytes per peer")?,
            },
            redis: Bytes {
                swarm_of_one: resident(self, "1,000,000 × 1", "IPv4")?,
                swarm_of_ten: resident(self, "20,000 × 10", "IPv4")? * 10.0,
                v4_peer: resident(self, "1 × 1,000,000", "IPv4")?,
                v6_peer: resident(self, "1 × 1,000,000", "IPv6")?,
            },
        })
    }

    /// A figure of an announce on a Redis Cluster.
    pub(crate) fn on_cluster(&mut self, column: &'static str) -> Result<f64, Error> {
        let row = match self.engine {
            Engine::Module => "module: 3 masters, 3 replicas",
            Engine::Functions => "functions: 3 masters, 3 replicas",
        };
        self.get(&REDIS, &[row], column)
    }

    /// The number in the row that begins with `row`, in the column called `column`.
    fn get(&mut self, from: &Document, row: &[&str], column: &'static str) -> Result<f64, Error> {
        let &(document, built, command) = from;
        let text = match self.root {
            None => built.to_owned(),
            Some(root) => {
                let path = root.join(document);
                fs::read_to_string(&path).map_err(|error| Error(format!("{}: {error}", path.display())))?
            }
        };
        let cell = cell(&text, row, column);
        let row = row.join(", ");
        // `1,341 (1,200–1,500)`: the median, and between what.
        let number = cell.and_then(|cell| cell.split(' ').next()?.replace(',', "").parse::<f64>().ok());
        let value = number.filter(|value| *value > 0.0);
        let value = value.ok_or_else(|| Error(format!("{document}: no number at `{row}`, `{column}`")))?;
        self.found.push(Figure { value, row, column, document, command });
        Ok(value)
    }
}

/// A cell of the first table that has the column and the row.
fn cell<'t>(text: &'t str, row: &[&str], column: &str) -> Option<&'t str> {
    let mut at = None;
    for line in text.lines() {
        let Some(line) = line.strip_prefix('|') else {
            at = None;
            continue;
        };
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        match at {
            None => at = Some(cells.iter().position(|cell| *cell == column)),
            Some(Some(at)) if cells.starts_with(row) => return cells.get(at).copied(),
            Some(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_have_all_that_is_needed() {
        let of = |engine| Figures::of(None, engine).costs().unwrap();
        let (module, functions) = (of(Engine::Module), of(Engine::Functions));
        assert!(module.store < module.tracker, "the store is a part of it");
        assert!(module.packed.swarm_of_one < module.redis.swarm_of_one);
        assert!(module.redis.swarm_of_one < functions.redis.swarm_of_one);
        assert!(module.redis_master < functions.redis_master);
    }

    #[test]
    fn a_cell_is_found_by_its_row_and_column() {
        let text =
            "| a | b |\n|---|--:|\n| x | 1 |\n\n| a | y | c |\n|---|---|---|\n| x | y | 1,234 (9–10) |\n";
        assert_eq!(cell(text, &["x"], "b"), Some("1"));
        assert_eq!(cell(text, &["x", "y"], "c"), Some("1,234 (9–10)"));
        assert_eq!((cell(text, &["y"], "b"), cell(text, &["x"], "d")), (None, None));
    }

    #[test]
    fn errors_name_the_document_and_the_cell() {
        let folder = tempfile::tempdir().unwrap();
        let problem = || Figures::of(Some(folder.path()), Engine::Module).costs().unwrap_err().to_string();
        assert!(problem().contains("trackers.md: No such file"), "{}", problem());
        fs::create_dir_all(folder.path().join("docs/reports")).unwrap();
        fs::write(folder.path().join(TRACKERS.0), "| load | x |\n").unwrap();
        assert!(problem().starts_with("docs/reports/trackers.md: no number at `connect, swarmkeep`"));
    }
}
