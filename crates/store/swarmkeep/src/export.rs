//! Exports: reading a whole store in steps; and the default implementations of `export` and `import`.

use std::{future::Future, mem, vec};

use crate::{
    AsyncTorrentRepository, Budget, Cursor, PeerRecord, Records, Restored, Role, SwarmStats, SwarmSummary,
    Timestamp, Unavailable,
};

/// The state of an export: its position, and the records that the latest step read.
#[derive(Debug)]
pub struct Export {
    records: Records,
    at: Cursor,
    /// The position among the peers of the next swarm.
    pub(crate) within: Cursor,
    /// Swarms that a walk has shown, with peers that were not read yet. `at` is after them.
    listed: vec::IntoIter<SwarmSummary>,
    /// The latest time at which a peer announced that was read.
    latest: Timestamp,
}

impl Export {
    /// Returns an export at its start.
    pub fn new() -> Self {
        Self {
            records: Records::new(Timestamp::default()),
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

/// The number of times that a swarm is read again if it may have been removed and made again meanwhile.
const READ_AGAIN: usize = 32;

/// The reads of which an export consists.
pub(crate) trait Source: Sync {
    /// The reason why a read fails.
    type Error: Send;

    /// Lists swarms, as [`walk`](crate::TorrentRepository::walk) does.
    fn list(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> impl Future<Output = Result<Cursor, Self::Error>> + Send;

    /// Reads peers of a listed swarm, as [`peers`](crate::TorrentRepository::peers) does, and the download
    /// count that it has at the same moment.
    fn part(
        &self,
        listed: &SwarmSummary,
        from: Cursor,
        limit: usize,
        peers: &mut Vec<PeerRecord>,
    ) -> impl Future<Output = Result<(Cursor, u32), Self::Error>> + Send;
}

/// One step of an export. `now` is the latest time of the store.
pub(crate) async fn step<S: Source>(
    store: &S,
    export: &mut Export,
    now: Timestamp,
    budget: Budget,
) -> Result<(), S::Error> {
    // Peers of an earlier step may have announced at a later time.
    export.begin(now.max(export.latest));
    let (mut left, mut peers) = (budget.get(), Vec::new());
    while left > 0 && !export.is_complete() {
        let Some(swarm) = export.listed.as_slice().first().copied() else {
            let mut listed = Vec::new();
            export.at = store.list(export.at, budget.get().min(LISTED), &mut listed).await?;
            export.listed = listed.into_iter();
            continue;
        };
        peers.clear();
        let (next, downloaded) = store.part(&swarm, export.within, left, &mut peers).await?;
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
        left = left.saturating_sub(1 + peers.len());
        if !peers.is_empty() || downloaded > 0 {
            export.records.push(&swarm.info_hash, downloaded, &peers);
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

/// [`export`](crate::TorrentRepository::export) by the store's own walk, `peers` and `scrape`.
pub(crate) async fn by_walking(
    store: &(impl AsyncTorrentRepository + ?Sized),
    export: &mut Export,
    now: Timestamp,
    budget: Budget,
) -> Result<(), Unavailable> {
    let now = store.advance(now).await?;
    step(&InTwoReads(store), export, now, budget).await
}

/// A store that shows the peers and the download count of a swarm in two reads.
struct InTwoReads<'a, S: ?Sized>(&'a S);

impl<S: AsyncTorrentRepository + ?Sized> Source for InTwoReads<'_, S> {
    type Error = Unavailable;

    async fn list(
        &self,
        from: Cursor,
        limit: usize,
        out: &mut Vec<SwarmSummary>,
    ) -> Result<Cursor, Unavailable> {
        self.0.walk(from, limit, out).await
    }

    async fn part(
        &self,
        listed: &SwarmSummary,
        from: Cursor,
        limit: usize,
        peers: &mut Vec<PeerRecord>,
    ) -> Result<(Cursor, u32), Unavailable> {
        let (mut known, mut again) = (listed.stats.downloaded, 0);
        loop {
            peers.clear();
            let next = self.0.peers(&listed.info_hash, from, limit, peers).await?;
            // The counts are read after the peers, so that they contain the download of each seeder that was
            // read. They do not if the swarm was removed and made again in between. Then the download count
            // has fallen, or other numbers of seeders and leechers were read than there are.
            let SwarmStats { complete, incomplete, downloaded } = self.0.scrape(&listed.info_hash).await?;
            let count = |role| peers.iter().filter(|peer| peer.role == role).count();
            let read = (count(Role::Seeder), count(Role::Leecher));
            let there = (complete as usize, incomplete as usize);
            let is_all = from == Cursor::START && next.is_end();
            let agrees = if is_all { read == there } else { read.0 <= there.0 && read.1 <= there.1 };
            let fits = agrees && downloaded >= known;
            // In a hot swarm of a slow store, peers may come and leave between the reads every time.
            if fits || again == READ_AGAIN {
                if !fits && there == (0, 0) {
                    // The peers are those of an earlier life.
                    peers.clear();
                }
                return Ok((next, downloaded));
            }
            (known, again) = (downloaded, again + 1);
        }
    }
}

/// [`import`](crate::TorrentRepository::import) swarm by swarm.
pub(crate) async fn one_by_one(
    store: &(impl AsyncTorrentRepository + ?Sized),
    records: &[Records],
    now: Timestamp,
) -> Result<Restored, Unavailable> {
    store.advance(now).await?;
    let (mut restored, mut peers) = (Restored::default(), Vec::new());
    for record in records.iter().flat_map(Records::iter) {
        peers.clear();
        peers.extend(record.peers());
        restored += store.restore(&record.summary(), &peers, now).await?;
    }
    Ok(restored)
}
