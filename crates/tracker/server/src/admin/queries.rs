//! Calls to the store that may take long, for clients that can wait.

use std::sync::Arc;

use swarmkeep::{
    Cursor, InfoHash, PageCost, PeerRecord, SwarmStats, SwarmSummary, Unavailable, catalog::Repository,
};
use tokio::{runtime::Handle, sync::Semaphore, task::spawn_blocking};

use crate::store::{NoAnswer, answered};

/// The most threads that work in the store for all clients of the API.
const MOST_THREADS: usize = 4;

/// The store, as the API and the census use it.
#[derive(Debug)]
pub(super) struct StoreQueries {
    store: Repository,
    /// One permit for each thread that may work in a synchronous store.
    threads: Arc<Semaphore>,
}

/// A part of a listing, and where the next begins.
type Listing<T> = Result<(Vec<T>, Cursor), NoAnswer>;

impl StoreQueries {
    pub(super) fn new(store: Repository) -> Self {
        Self { store, threads: Arc::new(Semaphore::new(MOST_THREADS)) }
    }

    /// See [`TorrentRepository::walk`](swarmkeep::TorrentRepository::walk).
    pub(super) async fn walk(&self, from: Cursor, limit: usize) -> Listing<SwarmSummary> {
        self.ask(|store| async move {
            let mut out = Vec::new();
            let next = store.walk(from, limit, &mut out).await?;
            Ok((out, next))
        })
        .await
    }

    /// See [`TorrentRepository::page`](swarmkeep::TorrentRepository::page). The page replaces the contents of
    /// `out`.
    pub(super) async fn page(
        &self,
        after: Option<InfoHash>,
        limit: usize,
        mut out: Vec<SwarmSummary>,
    ) -> Result<Vec<SwarmSummary>, NoAnswer> {
        self.ask(|store| async move {
            out.clear();
            store.page(after.as_ref(), limit, &mut out).await?;
            Ok(out)
        })
        .await
    }

    /// See [`TorrentRepository::peers`](swarmkeep::TorrentRepository::peers).
    pub(super) async fn peers(&self, info_hash: InfoHash, from: Cursor, limit: usize) -> Listing<PeerRecord> {
        self.ask(|store| async move {
            let mut out = Vec::new();
            let next = store.peers(&info_hash, from, limit, &mut out).await?;
            Ok((out, next))
        })
        .await
    }

    /// See [`TorrentRepository::remove`](swarmkeep::TorrentRepository::remove).
    pub(super) async fn remove(&self, info_hash: InfoHash) -> Result<Option<SwarmStats>, NoAnswer> {
        self.ask(|store| async move { store.remove(&info_hash).await }).await
    }

    /// See [`TorrentRepository::scrape`](swarmkeep::TorrentRepository::scrape).
    pub(super) async fn scrape(&self, info_hash: InfoHash) -> Result<SwarmStats, NoAnswer> {
        answered(self.store.scrape(&info_hash)).await
    }

    /// The cost of a [`page`](Self::page).
    pub(super) fn page_cost(&self) -> PageCost {
        self.store.capabilities().page_cost
    }

    /// Waits for a call that may take long. A synchronous store works on a thread for blocking calls, when a
    /// permit is free; a call that has begun ends even if its client is gone.
    async fn ask<T: Send + 'static, F: Future<Output = Result<T, Unavailable>> + Send + 'static>(
        &self,
        question: impl FnOnce(Repository) -> F,
    ) -> Result<T, NoAnswer> {
        let question = question(self.store.clone());
        if let Repository::Async(_) = self.store {
            return answered(Box::pin(question)).await;
        }
        let turn = Arc::clone(&self.threads).acquire_owned().await.expect("never closed");
        let done = spawn_blocking(move || {
            let answer = Handle::current().block_on(question);
            drop(turn);
            answer
        });
        match done.await {
            Ok(answer) => answer.map_err(|_| NoAnswer),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(NoAnswer),
            },
        }
    }
}
