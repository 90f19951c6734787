//! A store that is slow or cannot be reached, for tests of its callers.

use std::fmt;

use swarmkeep::{
    Announce, Announced, Answer, AsyncTorrentRepository, Budget, Capabilities, Cursor, InfoHash, MemoryUse,
    PeerBuffer, PeerRecord, Random, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    Totals, catalog::Repository,
};

/// A store with calls that first wait for a future of the test, which gets the name of the method. If that
/// future fails, the call fails too.
pub struct Delayed {
    store: Repository,
    before: Box<dyn Fn(&'static str) -> Answer<'static, ()> + Send + Sync>,
}

impl Delayed {
    /// Returns `store` with `before` in front of each call.
    pub fn new(
        store: Repository,
        before: impl Fn(&'static str) -> Answer<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { store, before: Box::new(before) }
    }

    fn then<'a, T: 'a>(&self, method: &'static str, call: Answer<'a, T>) -> Answer<'a, T> {
        let before = (self.before)(method);
        Box::pin(async move {
            before.await?;
            call.await
        })
    }
}

impl fmt::Debug for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delayed").field(&self.store).finish()
    }
}

impl AsyncTorrentRepository for Delayed {
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced> {
        self.then("announce", self.store.announce(announce, now, rng, peers))
    }

    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        self.then("announce_batch", self.store.announce_batch(batch, now, rng))
    }

    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats> {
        self.then("scrape", self.store.scrape(info_hash))
    }

    fn totals(&self) -> Answer<'_, Totals> {
        self.then("totals", self.store.totals())
    }

    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor> {
        self.then("walk", self.store.walk(from, limit, out))
    }

    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor> {
        self.then("peers", self.store.peers(info_hash, from, limit, out))
    }

    fn advance(&self, now: Timestamp) -> Answer<'_, Timestamp> {
        self.then("advance", self.store.advance(now))
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        self.then("sweep", self.store.sweep(now, policy, budget))
    }

    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
        self.then("remove", self.store.remove(info_hash))
    }

    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored> {
        self.then("restore", self.store.restore(swarm, peers, now))
    }

    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool> {
        self.then("add_downloads", self.store.add_downloads(info_hash, earlier))
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn memory(&self) -> Answer<'_, MemoryUse> {
        self.then("memory", self.store.memory())
    }
}
