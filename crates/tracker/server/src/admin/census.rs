//! The busiest torrents: walks through the store in the background, while clients ask for them.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use swarmkeep::{Cursor, InfoHash, SwarmStats, SwarmSummary};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::queries::StoreQueries;
use crate::store::NoAnswer;

/// How many are kept.
pub(super) const MOST: usize = 100;

/// How many torrents a step visits, and the pause after it: 150,000 per second, which cost the store a
/// hundredth of a core.
const STEP: usize = 1024;
const PAUSE: Duration = Duration::from_millis(5);

/// The pause between two walks: at least this, and as long as ten walks take.
const REST: Duration = Duration::from_secs(2);
const RESTS: u32 = 10;

/// For how long walks go on after a request.
const INTEREST: Duration = Duration::from_secs(60);

/// How long the first request waits for a walk through a small store.
const PATIENCE: Duration = Duration::from_millis(500);

/// The result of the latest walk, and the time of the latest request.
#[derive(Debug)]
pub(super) struct Census {
    latest: watch::Sender<Option<Arc<Busiest>>>,
    asked: watch::Sender<Option<Instant>>,
    /// How many torrents the current walk has visited.
    under_way: Mutex<Option<u64>>,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            latest: watch::Sender::new(None),
            asked: watch::Sender::new(None),
            under_way: Mutex::default(),
        }
    }
}

/// The result of one walk.
#[derive(Debug)]
pub(super) struct Busiest {
    pub(super) finished: Instant,
    pub(super) took: Duration,
    /// The number of visited torrents.
    pub(super) torrents: u64,
    /// Those with the most peers, the busiest first.
    pub(super) busiest: Vec<SwarmSummary>,
}

impl Census {
    /// The result of the latest walk, if there was one. Starts walks.
    pub(super) async fn ask(&self) -> Option<Arc<Busiest>> {
        self.asked.send_replace(Some(Instant::now()));
        let mut latest = self.latest.subscribe();
        let found = timeout(PATIENCE, latest.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// How many torrents the current walk has visited.
    pub(super) fn under_way(&self) -> Option<u64> {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, walked: Option<u64>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = walked;
    }

    /// Waits for a request. A client that has made one and listens to events keeps the walks going.
    async fn wanted(&self, is_listened_to: impl Fn() -> bool) {
        let mut asked = self.asked.subscribe();
        loop {
            match *asked.borrow_and_update() {
                Some(at) if is_listened_to() || at.elapsed() < INTEREST => return,
                // No client listens, and there was no request for a minute: the next one is a first one.
                _ => drop(self.latest.send_if_modified(|latest| latest.take().is_some())),
            }
            if asked.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    pub(super) async fn walk_for_ever(
        &self,
        store: &StoreQueries,
        is_listened_to: impl Fn() -> bool,
    ) -> Infallible {
        loop {
            self.wanted(&is_listened_to).await;
            let walked = self.walk(store).await;
            self.note(None);
            let rest = match walked {
                Ok(busiest) => {
                    let took = busiest.took;
                    self.latest.send_replace(Some(Arc::new(busiest)));
                    REST.max(took * RESTS)
                }
                Err(NoAnswer) => REST,
            };
            sleep(rest).await;
        }
    }

    async fn walk(&self, store: &StoreQueries) -> Result<Busiest, NoAnswer> {
        let (began, mut top, mut torrents) = (Instant::now(), Top::default(), 0);
        let mut cursor = Cursor::START;
        while !cursor.is_end() {
            let (swarms, next) = store.walk(cursor, STEP).await?;
            torrents += swarms.len() as u64;
            swarms.iter().for_each(|swarm| top.add(swarm));
            self.note(Some(torrents));
            cursor = next;
            sleep(PAUSE).await;
        }
        Ok(Busiest { finished: Instant::now(), took: began.elapsed(), torrents, busiest: top.sorted() })
    }
}

/// The busiest so far.
#[derive(Debug, Default)]
struct Top(BinaryHeap<Reverse<Ranked>>);

/// The number of peers, which torrent, and its counts.
type Ranked = (u64, Reverse<InfoHash>, [u32; 3]);

impl Top {
    fn add(&mut self, swarm: &SwarmSummary) {
        let SwarmStats { complete, incomplete, downloaded } = swarm.stats;
        let peers = swarm.stats.peers();
        if peers == 0
            || self.0.len() == MOST && self.0.peek().is_some_and(|Reverse((least, ..))| *least >= peers)
        {
            return;
        }
        self.0.push(Reverse((peers, Reverse(swarm.info_hash), [complete, incomplete, downloaded])));
        if self.0.len() > MOST {
            self.0.pop();
        }
    }

    fn sorted(self) -> Vec<SwarmSummary> {
        let summary =
            |Reverse((_, Reverse(info_hash), [complete, incomplete, downloaded])): Reverse<Ranked>| {
                let mut stats = SwarmStats::default();
                (stats.complete, stats.incomplete, stats.downloaded) = (complete, incomplete, downloaded);
                SwarmSummary { info_hash, stats }
            };
        self.0.into_sorted_vec().into_iter().map(summary).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_are_kept_in_order_and_the_empty_are_not() {
        let swarm = |n: u32| SwarmSummary {
            info_hash: InfoHash::new(std::array::from_fn(|at| n.to_le_bytes()[at % 4])),
            stats: SwarmStats { complete: n * 7919 % 1000, incomplete: 0, downloaded: n },
        };
        let mut top = Top::default();
        (0..1000).for_each(|n| top.add(&swarm(n)));
        let peers: Vec<_> = top.sorted().iter().map(|swarm| swarm.stats.peers()).collect();
        assert_eq!(peers, (900..1000).rev().collect::<Vec<_>>());
        let mut top = Top::default();
        [0, 1].into_iter().for_each(|n| top.add(&swarm(n)));
        assert_eq!(top.sorted(), [swarm(1)]);
    }
}
