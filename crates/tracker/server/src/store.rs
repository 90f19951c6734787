//! Calls to the store for requests: it answers, or it cannot be reached. A synchronous store is called
//! directly.

use std::time::Duration;

use futures_util::future::try_join_all;
use swarmkeep::{
    Announce, Announced, Answer, AsyncTorrentRepository, Immediate, InfoHash, PeerBuffer, Random, SwarmStats,
    SwarmSummary, Timestamp, catalog::Repository,
};
use tokio::time::timeout;
use tracing::warn;

use crate::{clock::now, seldom::LogLimit};

/// The longest wait for an asynchronous store. UDP clients repeat a request after 15 seconds (BEP 15).
const PATIENCE: Duration = Duration::from_secs(5);

/// The store has not answered. The reason is logged, and clients do not see it.
#[derive(Debug)]
pub(crate) struct NoAnswer;

/// See [`TorrentRepository::announce`](swarmkeep::TorrentRepository::announce).
pub(crate) async fn announce(
    repository: &Repository,
    announce: &Announce,
    now: Timestamp,
    rng: &mut dyn Random,
    peers: &mut PeerBuffer<'_>,
) -> Result<Announced, NoAnswer> {
    match repository {
        Repository::Sync(Immediate(store)) => Ok(store.announce(announce, now, rng, peers)),
        Repository::Async(store) => answered(store.announce(announce, now, rng, peers)).await,
    }
}

/// Sets the counts of each swarm.
pub(crate) async fn scrape(repository: &Repository, swarms: &mut [SwarmSummary]) -> Result<(), NoAnswer> {
    match repository {
        Repository::Sync(Immediate(store)) => store.scrape_batch(swarms),
        Repository::Async(store) => {
            let counts = scrape_async(&**store, swarms.iter().map(|swarm| swarm.info_hash)).await?;
            swarms.iter_mut().zip(counts).for_each(|(swarm, stats)| swarm.stats = stats);
        }
    }
    Ok(())
}

/// The counts of each swarm, in order, in one call to the store.
pub(crate) async fn scrape_async(
    store: &dyn AsyncTorrentRepository,
    info_hashes: impl Iterator<Item = InfoHash>,
) -> Result<Vec<SwarmStats>, NoAnswer> {
    let info_hashes: Vec<_> = info_hashes.collect();
    let counts = try_join_all(info_hashes.iter().map(|info_hash| store.scrape(info_hash)));
    answered(Box::pin(counts)).await
}

/// Waits for an answer of the store, at most [`PATIENCE`].
pub(crate) async fn answered<T>(answer: Answer<'_, T>) -> Result<T, NoAnswer> {
    static WARNED: LogLimit = LogLimit::new(1);
    let error = match timeout(PATIENCE, answer).await {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(unavailable)) => unavailable.to_string(),
        Err(_) => format!("no answer within {PATIENCE:?}"),
    };
    if WARNED.is_time(now()) {
        warn!(%error, "the store cannot be reached");
    }
    Err(NoAnswer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_answers_is_out_of_reach_after_its_patience() {
        let asked = tokio::time::Instant::now();
        assert!(answered::<()>(Box::pin(std::future::pending())).await.is_err());
        assert_eq!(asked.elapsed().as_secs(), PATIENCE.as_secs());
    }
}
