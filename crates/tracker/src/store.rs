//! The store, as those who answer requests see it: it answers, or it cannot be reached.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use futures_util::future::try_join_all;
use swarmkeep::{
    Announce, Announced, Answer, InfoHash, PeerBuffer, Random, Request, SwarmStats, Timestamp,
    catalog::Repository,
};
use tokio::time::timeout;
use tracing::warn;

use crate::clock::now;

/// For how long an asynchronous store may think. Clients of UDP ask again after 15 seconds (BEP 15).
const PATIENCE: Duration = Duration::from_secs(5);

/// The store has not answered. Why is logged, and for nobody else.
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
        Repository::Sync(store) => Ok(store.announce(announce, now, rng, peers)),
        Repository::Async(store) => answered(store.announce(announce, now, rng, peers)).await,
    }
}

/// See [`TorrentRepository::announce_batch`](swarmkeep::TorrentRepository::announce_batch). What the store could not be reached for has no
/// answer.
pub(crate) async fn announce_batch(
    repository: &Repository,
    batch: &mut [Request<'_>],
    now: Timestamp,
    rng: &mut dyn Random,
) {
    match repository {
        Repository::Sync(store) => store.announce_batch(batch, now, rng),
        Repository::Async(store) => {
            // Said by `answered`, and by what is missing in the batch.
            let _ = answered(store.announce_batch(batch, now, rng)).await;
        }
    }
}

/// Hands the counts of each swarm to `each`, in order. An asynchronous store is asked about all at once.
pub(crate) async fn scrape(
    repository: &Repository,
    info_hashes: impl Iterator<Item = InfoHash>,
    each: impl FnMut(SwarmStats),
) -> Result<(), NoAnswer> {
    match repository {
        Repository::Sync(store) => info_hashes.map(|info_hash| store.scrape(&info_hash)).for_each(each),
        Repository::Async(store) => {
            let info_hashes: Vec<_> = info_hashes.collect();
            let counts = try_join_all(info_hashes.iter().map(|info_hash| store.scrape(info_hash)));
            answered(Box::pin(counts)).await?.into_iter().for_each(each);
        }
    }
    Ok(())
}

async fn answered<T>(answer: Answer<'_, T>) -> Result<T, NoAnswer> {
    static WARNED: Seldom = Seldom::new();
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

/// Once a second, for what strangers could fill a log with.
#[derive(Debug)]
pub(crate) struct Seldom(AtomicU64);

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether nobody has been told so in this second.
    pub(crate) fn is_time(&self, now: Timestamp) -> bool {
        self.0.swap(now.as_secs(), Relaxed) != now.as_secs()
    }
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

    #[test]
    fn seldom_is_once_a_second() {
        let seldom = Seldom::new();
        let times = [7, 7, 7, 8, 8, 9].map(|secs| seldom.is_time(Timestamp::from_secs(secs)));
        assert_eq!(times, [true, false, false, true, false, true]);
    }
}
