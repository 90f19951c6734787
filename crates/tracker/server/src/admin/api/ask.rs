//! Questions to the store that may take long, for those who can wait.

use std::sync::Arc;

use swarmkeep::{
    Cursor, InfoHash, PageCost, PeerRecord, SwarmStats, SwarmSummary, TorrentRepository, catalog::Repository,
};
use tokio::task::spawn_blocking;

use crate::{
    admin::Shared,
    store::{self, NoAnswer, answered},
};

/// See [`TorrentRepository::walk`].
pub(in crate::admin) async fn walk(
    shared: &Shared,
    from: Cursor,
    limit: usize,
) -> Result<(Vec<SwarmSummary>, Cursor), NoAnswer> {
    let mut out = Vec::new();
    let next = match &shared.control.repository {
        Repository::Sync(store) => {
            return on_a_thread(shared, store, move |store| {
                let next = store.walk(from, limit, &mut out);
                (out, next)
            })
            .await;
        }
        Repository::Async(store) => answered(store.walk(from, limit, &mut out)).await?,
    };
    Ok((out, next))
}

/// See [`TorrentRepository::page`].
pub(super) async fn page(
    shared: &Shared,
    after: Option<InfoHash>,
    limit: usize,
) -> Result<Vec<SwarmSummary>, NoAnswer> {
    let mut out = Vec::new();
    match &shared.control.repository {
        Repository::Sync(store) => {
            return on_a_thread(shared, store, move |store| {
                store.page(after.as_ref(), limit, &mut out);
                out
            })
            .await;
        }
        Repository::Async(store) => answered(store.page(after.as_ref(), limit, &mut out)).await?,
    }
    Ok(out)
}

/// See [`TorrentRepository::peers`].
pub(super) async fn peers(
    shared: &Shared,
    info_hash: InfoHash,
    from: Cursor,
    limit: usize,
) -> Result<(Vec<PeerRecord>, Cursor), NoAnswer> {
    let mut out = Vec::new();
    let next = match &shared.control.repository {
        Repository::Sync(store) => {
            return on_a_thread(shared, store, move |store| {
                let next = store.peers(&info_hash, from, limit, &mut out);
                (out, next)
            })
            .await;
        }
        Repository::Async(store) => answered(store.peers(&info_hash, from, limit, &mut out)).await?,
    };
    Ok((out, next))
}

/// See [`TorrentRepository::remove`].
pub(super) async fn remove(shared: &Shared, info_hash: InfoHash) -> Result<Option<SwarmStats>, NoAnswer> {
    match &shared.control.repository {
        Repository::Sync(store) => on_a_thread(shared, store, move |store| store.remove(&info_hash)).await,
        Repository::Async(store) => answered(store.remove(&info_hash)).await,
    }
}

/// See [`TorrentRepository::scrape`].
pub(super) async fn scrape(shared: &Shared, info_hash: InfoHash) -> Result<SwarmStats, NoAnswer> {
    let mut found = SwarmStats::default();
    store::scrape(&shared.control.repository, std::iter::once(info_hash), |stats| found = stats).await?;
    Ok(found)
}

/// What a [`page`] costs.
pub(super) fn page_cost(shared: &Shared) -> PageCost {
    match &shared.control.repository {
        Repository::Sync(store) => store.capabilities().page_cost,
        Repository::Async(store) => store.capabilities().page_cost,
    }
}

/// Does what may take long where it holds up nobody, when it is its turn. Once begun, it is done whether or
/// not somebody waits.
pub(super) async fn on_a_thread<T: Send + 'static>(
    shared: &Shared,
    store: &Arc<dyn TorrentRepository>,
    ask: impl FnOnce(&dyn TorrentRepository) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let turn = Arc::clone(&shared.threads).acquire_owned().await.expect("never closed");
    let store = Arc::clone(store);
    let done = spawn_blocking(move || {
        let answer = ask(&*store);
        drop(turn);
        answer
    });
    match done.await {
        Ok(answer) => Ok(answer),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Err(NoAnswer),
        },
    }
}
