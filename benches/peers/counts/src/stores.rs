//! The databases that are compared, behind one trait.

use std::{
    env,
    path::Path,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, config::PartitioningPolicy};
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use swarmkeep_state::{Change, Directory, Downloads, InfoHash, Options};

use crate::Result;

/// Names of the databases, in the order of the table.
const STORES: [&str; 3] = ["swarmkeep", "redb", "fjall"];

/// Those that are measured: all, or those that `COUNTS_STORES` names, with commas between.
pub(crate) fn chosen() -> Vec<&'static str> {
    let words = env::var("COUNTS_STORES").ok();
    let is_chosen =
        |store: &&str| words.as_ref().is_none_or(|words| words.split(',').any(|word| word == *store));
    STORES.into_iter().filter(is_chosen).collect()
}

/// What redb and fjall may cache.
const CACHE: usize = 16 << 20;

/// What fjall holds in memory before it is written as a sorted file; several of them may wait.
const MEMTABLE: u64 = 4 << 20;

/// A database of download counts.
pub(crate) trait Store {
    /// Adds one to the count of each torrent, all or none; durable when it returns.
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()>;
    /// The count of a torrent; 0 for one that is unknown.
    fn get(&self, torrent: &[u8; 20]) -> Result<u32>;
    /// What the owner of a database calls after each commit, where there is such a thing.
    fn tidy(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until nothing goes on in the background.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Opens the database that is in the folder, or begins it. One whose name begins with `small-` has an eighth
/// to a sixteenth of the memory, so that few torrents are in as many files as many are.
pub(crate) fn open(store: &str, folder: &Path) -> Result<Box<dyn Store>> {
    Ok(match store {
        "swarmkeep" => Box::new(Swarmkeep::open(folder, Options::default())?),
        "small-swarmkeep" => Box::new(Swarmkeep::open(folder, Options::default().log_entries(1 << 13))?),
        "redb" => Box::new(Redb::open(folder, CACHE, false)?),
        "small-redb" => Box::new(Redb::open(folder, CACHE / 16, false)?),
        "redb-checked" => Box::new(Redb::open(folder, CACHE, true)?),
        "fjall" => Box::new(Fjall::open(folder, CACHE, MEMTABLE)?),
        "small-fjall" => Box::new(Fjall::open(folder, CACHE / 16, MEMTABLE / 16)?),
        _ => return Err(format!("no store {store}").into()),
    })
}

struct Swarmkeep(Downloads);

impl Swarmkeep {
    fn open(folder: &Path, options: Options) -> Result<Self> {
        Ok(Self(Downloads::open_with(Arc::new(Directory::open(folder)?), options)?))
    }
}

impl Store for Swarmkeep {
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()> {
        let one_more = Change { forget: false, add: 1 };
        Ok(self.0.commit(torrents.iter().map(|&torrent| (InfoHash::new(torrent), one_more)))?)
    }

    fn get(&self, torrent: &[u8; 20]) -> Result<u32> {
        Ok(self.0.get(&InfoHash::new(*torrent))?)
    }

    fn tidy(&mut self) -> Result<()> {
        Ok(self.0.maintain()?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.0.settle()?)
    }
}

const COUNTS: TableDefinition<'_, [u8; 20], u32> = TableDefinition::new("counts");

struct Redb(Database);

impl Redb {
    fn open(folder: &Path, cache: usize, checked: bool) -> Result<Self> {
        let mut builder = Builder::new();
        builder.set_cache_size(cache).set_check_integrity_on_open(checked);
        Ok(Self(builder.create(folder.join("counts.redb"))?))
    }
}

impl Store for Redb {
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()> {
        let mut write = self.0.begin_write()?;
        write.set_quick_repair(true);
        {
            let mut table = write.open_table(COUNTS)?;
            // In order, which is what a B-tree likes best.
            let mut torrents = torrents.to_vec();
            torrents.sort_unstable();
            for torrent in &torrents {
                let count = table.get(torrent)?.map_or(0, |count| count.value());
                table.insert(torrent, count.saturating_add(1))?;
            }
        }
        Ok(write.commit()?)
    }

    fn get(&self, torrent: &[u8; 20]) -> Result<u32> {
        match self.0.begin_read()?.open_table(COUNTS) {
            Ok(table) => Ok(table.get(torrent)?.map_or(0, |count| count.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

struct Fjall {
    database: fjall::Database,
    counts: Keyspace,
}

impl Fjall {
    /// The fewest threads and smallest journals that it takes, and a memtable of 4 MiB: its default, 64 MiB,
    /// is all the memory that there is to be.
    fn open(folder: &Path, cache: usize, memtable: u64) -> Result<Self> {
        let database = fjall::Database::builder(folder)
            .cache_size(cache as u64)
            .max_journaling_size(64 << 20)
            .worker_threads(1)
            .open()?;
        // Filters and indexes in small blocks: by default a lookup reads and checks megabytes of them as soon
        // as they are more than the cache holds.
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable)
                .filter_block_partitioning_policy(PartitioningPolicy::all(true))
                .index_block_partitioning_policy(PartitioningPolicy::all(true))
        };
        let counts = database.keyspace("counts", options)?;
        Ok(Self { database, counts })
    }
}

impl Store for Fjall {
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()> {
        let mut torrents = torrents.to_vec();
        torrents.sort_unstable();
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        let mut torrents = torrents.into_iter().peekable();
        while let Some(torrent) = torrents.next() {
            // What cannot be read can be kept back; the others are not to wait for it.
            let Ok(count) = self.get(&torrent) else { continue };
            let mut count = count.saturating_add(1);
            while torrents.next_if_eq(&torrent).is_some() {
                count = count.saturating_add(1);
            }
            batch.insert(&self.counts, torrent, count.to_le_bytes());
        }
        Ok(batch.commit()?)
    }

    fn get(&self, torrent: &[u8; 20]) -> Result<u32> {
        match self.counts.get(torrent)? {
            Some(count) => Ok(u32::from_le_bytes((*count).try_into()?)),
            None => Ok(0),
        }
    }

    fn settle(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(120);
        let mut quiet = 0;
        // A merge may begin some time after the one before it.
        while quiet < 20 && Instant::now() < end {
            let busy = self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0;
            quiet = if busy { 0 } else { quiet + 1 };
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
