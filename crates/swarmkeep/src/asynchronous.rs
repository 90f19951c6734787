//! The same repository for stores that must wait: tokio's locks, or another machine.

use std::{fmt, future::Future, pin::Pin};

use crate::{
    Announce, Announced, Budget, Capabilities, Cursor, InfoHash, MemoryUse, PeerBuffer, PeerRecord, Random,
    Removed, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository,
    Totals,
};

/// What an asynchronous call gives: the answer of the synchronous one, unless the store could not be reached.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send + 'a>>;

/// The store could not be reached or did not answer in time; whether the call took effect is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {reason}")]
pub struct Unavailable {
    /// What was tried and what came of it.
    pub reason: String,
}

impl Unavailable {
    /// Says why.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// [`TorrentRepository`] for stores that must wait. Each method's contract is that of its namesake there; dropping a future
/// before it is ready leaves the whole step done, or nothing of it. Every synchronous store is one through [`Immediate`].
pub trait AsyncTorrentRepository: fmt::Debug + Send + Sync {
    /// See [`TorrentRepository::announce`]. The boxed future is the one allocation allowed.
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced>;

    /// See [`TorrentRepository::announce_batch`]. After an error, requests without an answer may have taken effect.
    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            for request in batch {
                let answer = self.announce(&request.announce, now, &mut *rng, &mut request.peers).await?;
                request.answer = Some(answer);
            }
            Ok(())
        })
    }

    /// See [`TorrentRepository::scrape`].
    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats>;

    /// See [`TorrentRepository::totals`].
    fn totals(&self) -> Answer<'_, Totals>;

    /// See [`TorrentRepository::walk`].
    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::page`].
    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()>;

    /// See [`TorrentRepository::peers`].
    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::sweep`].
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept>;

    /// See [`TorrentRepository::remove`].
    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>>;

    /// See [`TorrentRepository::remove_where`].
    fn remove_where<'a>(
        &'a self,
        forbidden: &'a (dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Answer<'a, Removed>;

    /// See [`TorrentRepository::restore`].
    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored>;

    /// See [`TorrentRepository::add_downloads`].
    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool>;

    /// See [`TorrentRepository::capabilities`].
    fn capabilities(&self) -> Capabilities;

    /// See [`TorrentRepository::memory`].
    fn memory(&self) -> Answer<'_, MemoryUse>;
}

/// A synchronous store behind the asynchronous trait: every future is ready at its first poll.
#[derive(Debug, Clone)]
pub struct Immediate<R>(pub R);

impl<R: TorrentRepository> AsyncTorrentRepository for Immediate<R> {
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced> {
        Box::pin(async move { Ok(self.0.announce(announce, now, rng, peers)) })
    }
    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            self.0.announce_batch(batch, now, rng);
            Ok(())
        })
    }
    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats> {
        Box::pin(async move { Ok(self.0.scrape(info_hash)) })
    }
    fn totals(&self) -> Answer<'_, Totals> {
        Box::pin(async move { Ok(self.0.totals()) })
    }
    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor> {
        Box::pin(async move { Ok(self.0.walk(from, limit, out)) })
    }
    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            self.0.page(after, limit, out);
            Ok(())
        })
    }
    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor> {
        Box::pin(async move { Ok(self.0.peers(info_hash, from, limit, out)) })
    }
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        Box::pin(async move { Ok(self.0.sweep(now, policy, budget)) })
    }
    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>> {
        Box::pin(async move { Ok(self.0.remove(info_hash)) })
    }
    fn remove_where<'a>(
        &'a self,
        forbidden: &'a (dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Answer<'a, Removed> {
        Box::pin(async move { Ok(self.0.remove_where(forbidden, from, budget)) })
    }
    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored> {
        Box::pin(async move { Ok(self.0.restore(swarm, peers, now)) })
    }
    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool> {
        Box::pin(async move { Ok(self.0.add_downloads(info_hash, earlier)) })
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn memory(&self) -> Answer<'_, MemoryUse> {
        Box::pin(async move { Ok(self.0.memory()) })
    }
}
