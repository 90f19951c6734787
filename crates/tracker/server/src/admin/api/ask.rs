//! Questions to the store that may take long, for those who can wait.

use std::sync::Arc;

use swarmkeep::{
    AsyncTorrentRepository as _, Cursor, InfoHash, PageCost, PeerRecord, SwarmStats, SwarmSummary,
    Unavailable, catalog::Repository,
};
use tokio::{runtime::Handle, task::spawn_blocking};

use crate::{
    admin::Shared,
    store::{NoAnswer, answered},
};

/// See [`TorrentRepository::walk`](swarmkeep::TorrentRepository::walk).
pub(in crate::admin) async fn walk(
    shared: &Shared,
    from: Cursor,
    limit: usize,
) -> Result<(Vec<SwarmSummary>, Cursor), NoAnswer> {
    let store = shared.control.repository.clone();
    ask(shared, async move {
        let mut out = Vec::new();
        let next = store.walk(from, limit, &mut out).await?;
        Ok((out, next))
    })
    .await
}

/// See [`TorrentRepository::page`](swarmkeep::TorrentRepository::page).
pub(super) async fn page(
    shared: &Shared,
    after: Option<InfoHash>,
    limit: usize,
) -> Result<Vec<SwarmSummary>, NoAnswer> {
    let store = shared.control.repository.clone();
    ask(shared, async move {
        let mut out = Vec::new();
        store.page(after.as_ref(), limit, &mut out).await?;
        Ok(out)
    })
    .await
}

/// See [`TorrentRepository::peers`](swarmkeep::TorrentRepository::peers).
pub(super) async fn peers(
    shared: &Shared,
    info_hash: InfoHash,
    from: Cursor,
    limit: usize,
) -> Result<(Vec<PeerRecord>, Cursor), NoAnswer> {
    let store = shared.control.repository.clone();
    ask(shared, async move {
        let mut out = Vec::new();
        let next = store.peers(&info_hash, from, limit, &mut out).await?;
        Ok((out, next))
    })
    .await
}

/// See [`TorrentRepository::remove`](swarmkeep::TorrentRepository::remove).
pub(super) async fn remove(shared: &Shared, info_hash: InfoHash) -> Result<Option<SwarmStats>, NoAnswer> {
    let store = shared.control.repository.clone();
    ask(shared, async move { store.remove(&info_hash).await }).await
}

/// See [`TorrentRepository::scrape`](swarmkeep::TorrentRepository::scrape).
pub(super) async fn scrape(shared: &Shared, info_hash: InfoHash) -> Result<SwarmStats, NoAnswer> {
    answered(shared.control.repository.scrape(&info_hash)).await
}

/// What a [`page`] costs.
pub(super) fn page_cost(shared: &Shared) -> PageCost {
    shared.control.repository.capabilities().page_cost
}

/// Waits for the answer to a question of which a synchronous store may take long. Such a store works on a
/// thread of its own where it holds up nobody, when it is its turn; once begun, that is done whether or not
/// somebody waits.
async fn ask<T: Send + 'static>(
    shared: &Shared,
    question: impl Future<Output = Result<T, Unavailable>> + Send + 'static,
) -> Result<T, NoAnswer> {
    if let Repository::Async(_) = shared.control.repository {
        return answered(Box::pin(question)).await;
    }
    let turn = Arc::clone(&shared.threads).acquire_owned().await.expect("never closed");
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
