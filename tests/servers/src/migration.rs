//! The migration of a slot from one master to another.

use crate::{Cluster, Result, Server, wait_until};

/// A slot that is being moved step by step. If it is dropped before [`finish`](Self::finish), the slot stays
/// half moved, as after the crash of an operator's tool.
#[derive(Debug)]
#[must_use = "without `finish` the slot stays half moved"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: usize,
    to: usize,
    moved: usize,
}

impl Cluster {
    /// Moves a slot with all its keys to another master in one atomic step, if the servers can (Valkey from 9
    /// on); otherwise returns `false`. When it returns `true`, all live nodes know the new master.
    pub fn migrate_slot_at_once(&self, slot: u16, to: usize) -> Result<bool> {
        let (from, number) = (self.server(self.master_of_slot(slot)?), slot.to_string());
        let info = from.info("server")?;
        let version = info.get("valkey_version").and_then(|version| version.split('.').next()?.parse().ok());
        if version.is_none_or(|version: u32| version < 9) {
            return Ok(false);
        }
        from.command(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &number, &number, "NODE", self.id(to)])?;
        wait_until(&format!("moving slot {slot} at once"), || self.agree_on(slot, to))?;
        Ok(true)
    }

    /// Begins to move a slot to another master. From now on, the masters redirect clients to each other for
    /// single keys (`ASK`).
    pub fn begin_migration(&self, slot: u16, to: usize) -> Result<Migration<'_>> {
        let from = self.master_of_slot(slot)?;
        let migration = Migration { cluster: self, slot, from, to, moved: 0 };
        // In this order, the source never redirects a client to a target that would redirect it back.
        migration.set_slot(migration.target(), &["IMPORTING", self.id(from)])?;
        migration.set_slot(migration.source(), &["MIGRATING", self.id(to)])?;
        Ok(migration)
    }
}

impl<'a> Migration<'a> {
    /// Moves at most `count` keys, and returns how many. 0 if none are left.
    pub fn move_keys(&mut self, count: usize) -> Result<usize> {
        let (slot, count) = (self.slot.to_string(), count.to_string());
        let keys: Vec<Vec<u8>> = self.source().query(&["CLUSTER", "GETKEYSINSLOT", &slot, &count])?;
        if keys.is_empty() {
            return Ok(0);
        }
        let port = self.target().port().to_string();
        let mut migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", MILLISECONDS].map(str::as_bytes).to_vec();
        migrate.push(b"KEYS");
        migrate.extend(keys.iter().map(Vec::as_slice));
        self.source().command(&migrate)?;
        self.moved += keys.len();
        Ok(keys.len())
    }

    /// Moves the remaining keys, assigns the slot to its new master, waits until all live nodes know that,
    /// and returns the number of keys that were moved in all.
    pub fn finish(mut self) -> Result<usize> {
        const BATCH: usize = 64;
        while self.move_keys(BATCH)? > 0 {}
        let owner = ["NODE", self.cluster.id(self.to)];
        // The target first: otherwise no master would own the slot for a moment.
        self.set_slot(self.target(), &owner)?;
        self.set_slot(self.source(), &owner)?;
        for other in self.cluster.masters().into_iter().filter(|other| ![self.from, self.to].contains(other))
        {
            self.set_slot(self.cluster.server(other), &owner)?;
        }
        wait_until(&format!("moving slot {}", self.slot), || self.cluster.agree_on(self.slot, self.to))?;
        Ok(self.moved)
    }

    fn source(&self) -> &'a Server {
        self.cluster.server(self.from)
    }

    fn target(&self) -> &'a Server {
        self.cluster.server(self.to)
    }

    fn set_slot(&self, server: &Server, what: &[&str]) -> Result<()> {
        let slot = self.slot.to_string();
        server.command(&[&["CLUSTER", "SETSLOT", &slot], what].concat())?;
        Ok(())
    }
}

/// The longest time that the source waits for the target, and serves no client. It is shorter than the wait
/// here for the source's reply.
const MILLISECONDS: &str = "60000";
