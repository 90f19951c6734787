//! Exports: reading a whole store in steps; and the default implementations of `export` and `import`.

use std::{mem, vec};

use crate::{
    AsyncTorrentRepository, Budget, Cursor, Records, Restored, SwarmStats, SwarmSummary, Timestamp,
    Unavailable,
};

/// The state of an export: its position, and the records that the latest step read.
#[derive(Debug)]
pub struct Export {
    records: Records,
    at: Cursor,
    /// The position among the peers of the next swarm.
    pub(crate) within: Cursor,
    /// Swarms that a walk has shown and whose peers were not read yet. `at` is after them.
    listed: vec::IntoIter<SwarmSummary>,
    /// The time of the latest announce that was later than [`Records::until`] of its step.
    latest: Timestamp,
}

impl Export {
    /// Returns an export at its start.
    pub fn new() -> Self {
        let records = Records::new(Timestamp::default());
        Self {
            records,
            at: Cursor::START,
            within: Cursor::START,
            listed: Vec::new().into_iter(),
            latest: Timestamp::default(),
        }
    }

    /// Returns the records that the latest step read.
    pub const fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the records that the latest step read, for example to another thread, and leaves `spare` for
    /// the next step.
    #[must_use]
    pub fn take(&mut self, spare: Records) -> Records {
        mem::replace(&mut self.records, spare)
    }

    /// Returns whether the latest step ended in the middle of a swarm. Read the rest of the swarm soon: the
    /// swarm may change.
    pub fn is_within_a_swarm(&self) -> bool {
        self.within != Cursor::START
    }

    /// Returns whether the whole store has been read.
    pub fn is_complete(&self) -> bool {
        self.at.is_end() && self.listed.as_slice().is_empty()
    }

    /// For stores: clears the records of the latest step. Returns the position among the swarms, and the
    /// records to write to.
    pub fn begin(&mut self, now: Timestamp) -> (Cursor, &mut Records) {
        self.records.begin(now);
        (self.at, &mut self.records)
    }

    /// For stores: sets the position at which the next step continues.
    pub const fn go_on_at(&mut self, at: Cursor) {
        self.at = at;
    }
}

impl Default for Export {
    fn default() -> Self {
        Self::new()
    }
}

/// The maximum number of swarms that one walk lists before their peers are read. It is large because a map in
/// shards reads a whole shard for each walk.
const LISTED: usize = 1 << 14;

/// [`export`](crate::TorrentRepository::export) by the store's own walk, `peers` and `scrape`.
pub(crate) async fn by_walking(
    store: &(impl AsyncTorrentRepository + ?Sized),
    export: &mut Export,
    now: Timestamp,
    budget: Budget,
) -> Result<(), Unavailable> {
    // Another call may have given the store a later time, and peers may have announced at it.
    export.begin(now.max(export.latest));
    let (mut left, mut peers) = (budget.get(), Vec::new());
    while left > 0 && !export.is_complete() {
        let Some(&SwarmSummary { info_hash, .. }) = export.listed.as_slice().first() else {
            let mut listed = Vec::new();
            export.at = store.walk(export.at, budget.get().min(LISTED), &mut listed).await?;
            export.listed = listed.into_iter();
            continue;
        };
        peers.clear();
        let next = store.peers(&info_hash, export.within, left, &mut peers).await?;
        let latest = peers.iter().map(|peer| peer.last_announce).max().unwrap_or_default();
        if latest > export.records.until() {
            export.latest = latest;
            if !export.records.is_empty() {
                // The ages in these records are relative to an earlier time. The next step reads these peers
                // again.
                return Ok(());
            }
            export.begin(latest);
        }
        // The counts are read after the peers, so that they contain the download of each seeder that was
        // read.
        let SwarmStats { complete, incomplete, downloaded } = store.scrape(&info_hash).await?;
        if complete == 0 && incomplete == 0 {
            // The peers have left since, perhaps with their swarm and its download count.
            peers.clear();
        }
        left = left.saturating_sub(1 + peers.len());
        if !peers.is_empty() || downloaded > 0 {
            export.records.push(&info_hash, downloaded, &peers);
        }
        export.within = if next.is_end() { Cursor::START } else { next };
        if !next.is_end() {
            // Announces to a large swarm wait for its lock. The caller decides how often to take it.
            return Ok(());
        }
        export.listed.next();
    }
    Ok(())
}

/// [`import`](crate::TorrentRepository::import) swarm by swarm.
pub(crate) async fn one_by_one(
    store: &(impl AsyncTorrentRepository + ?Sized),
    records: &[Records],
    now: Timestamp,
) -> Result<Restored, Unavailable> {
    let (mut restored, mut peers) = (Restored::default(), Vec::new());
    for record in records.iter().flat_map(Records::iter) {
        peers.clear();
        peers.extend(record.peers());
        restored += store.restore(&record.summary(), &peers, now).await?;
    }
    Ok(restored)
}
