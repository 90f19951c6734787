//! Exports: reading a whole store in steps; and the default implementations of `export` and `import`.

use std::{mem, vec};

use crate::{
    AsyncTorrentRepository, Budget, Cursor, Records, Restored, SwarmStats, SwarmSummary, Timestamp,
    Unavailable,
};

/// A store that is being read out: where that stands, and what the latest step has read.
#[derive(Debug)]
pub struct Export {
    records: Records,
    at: Cursor,
    /// Where to go on among the peers of the next swarm.
    pub(crate) within: Cursor,
    /// Swarms that a walk has shown and that were not read yet. The position is behind them.
    listed: vec::IntoIter<SwarmSummary>,
    /// The latest announce that was later than the records of its step could tell.
    latest: Timestamp,
}

impl Export {
    /// Before the first swarm.
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

    /// What the latest step has read.
    pub const fn records(&self) -> &Records {
        &self.records
    }

    /// Takes what the latest step has read, for another thread, and leaves `spare` for the next one.
    #[must_use]
    pub fn take(&mut self, spare: Records) -> Records {
        mem::replace(&mut self.records, spare)
    }

    /// Whether the latest step ended in the middle of a swarm. The rest of the swarm should be read soon: it
    /// may change.
    pub fn is_within_a_swarm(&self) -> bool {
        self.within != Cursor::START
    }

    /// Whether everything has been read.
    pub fn is_complete(&self) -> bool {
        self.at.is_end() && self.listed.as_slice().is_empty()
    }

    /// For stores: forgets what the latest step has read. Where to go on among the swarms, and where to put
    /// them.
    pub fn begin(&mut self, now: Timestamp) -> (Cursor, &mut Records) {
        self.records.begin(now);
        (self.at, &mut self.records)
    }

    /// For stores: goes on there with the next step.
    pub const fn go_on_at(&mut self, at: Cursor) {
        self.at = at;
    }
}

impl Default for Export {
    fn default() -> Self {
        Self::new()
    }
}

/// Swarms that one walk lists at most before their peers are read: a map that finds them by looking at a
/// whole shard is to do so seldom.
const LISTED: usize = 1 << 14;

/// [`export`](crate::TorrentRepository::export) by the store's own walk, `peers` and `scrape`.
pub(crate) async fn by_walking(
    store: &(impl AsyncTorrentRepository + ?Sized),
    export: &mut Export,
    now: Timestamp,
    budget: Budget,
) -> Result<(), Unavailable> {
    // Others may have been told a later time, and announced since.
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
                // Ages in these records go back from an earlier time. The next step reads the peers again.
                return Ok(());
            }
            export.begin(latest);
        }
        // After the peers: who is among them as a seeder is among the downloads too.
        let SwarmStats { complete, incomplete, downloaded } = store.scrape(&info_hash).await?;
        if complete == 0 && incomplete == 0 {
            // They have gone, perhaps with their swarm and its downloads.
            peers.clear();
        }
        left = left.saturating_sub(1 + peers.len());
        if !peers.is_empty() || downloaded > 0 {
            export.records.push(&info_hash, downloaded, &peers);
        }
        export.within = if next.is_end() { Cursor::START } else { next };
        if !next.is_end() {
            // All who announce to a large swarm wait for its lock: whoever reads it out says how often.
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
