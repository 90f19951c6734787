//! The databases that are compared, behind one trait.

use std::{path::Path, sync::Arc};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use swarmkeep_state::{Change, Directory, Downloads, InfoHash};

use crate::{Result, file};

/// A database of download counts.
pub(crate) trait Store {
    /// Counts one more of each, durably.
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()>;
    /// 0 for an unknown one.
    fn get(&self, torrent: &[u8; 20]) -> Result<u32>;
    /// Ends what goes on in the background.
    fn settle(&mut self) -> Result<()>;
}

/// Opens what is in the folder, or begins it.
pub(crate) fn open(store: &str, folder: &Path) -> Result<Box<dyn Store>> {
    Ok(match store {
        "swarmkeep" => Box::new(Swarmkeep(Downloads::open(Arc::new(Directory::open(folder)?))?)),
        "redb" | "redb-quick" => {
            Box::new(Redb { database: Database::create(file(folder))?, quick: store == "redb-quick" })
        }
        _ => return Err(format!("no store {store}").into()),
    })
}

struct Swarmkeep(Downloads);

impl Store for Swarmkeep {
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()> {
        let one_more = Change { forget: false, add: 1 };
        self.0.commit(torrents.iter().map(|&torrent| (InfoHash::new(torrent), one_more)))?;
        Ok(self.0.maintain()?)
    }

    fn get(&self, torrent: &[u8; 20]) -> Result<u32> {
        Ok(self.0.get(&InfoHash::new(*torrent))?)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(self.0.settle()?)
    }
}

const COUNTS: TableDefinition<'_, [u8; 20], u32> = TableDefinition::new("counts");

struct Redb {
    database: Database,
    quick: bool,
}

impl Store for Redb {
    fn commit(&mut self, torrents: &[[u8; 20]]) -> Result<()> {
        let mut write = self.database.begin_write()?;
        write.set_quick_repair(self.quick);
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
        match self.database.begin_read()?.open_table(COUNTS) {
            Ok(table) => Ok(table.get(torrent)?.map_or(0, |count| count.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}
