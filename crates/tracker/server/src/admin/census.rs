//! The busiest torrents: a walk through the store in the background, for as long as somebody wants to know.

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

/// How many torrents one step looks at, and how long it waits before the next: 150,000 a second, of which the
/// store notices a hundredth of a core.
const STEP: usize = 1024;
const PAUSE: Duration = Duration::from_millis(5);

/// How long to wait between two walks: at least so long, and as long as ten walks take.
const REST: Duration = Duration::from_secs(2);
const RESTS: u32 = 10;

/// For how long one question keeps the walks going.
const INTEREST: Duration = Duration::from_secs(60);

/// How long the first to ask waits for a walk through a small store.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the latest walk has found, and whether to go on another.
#[derive(Debug)]
pub(super) struct Census {
    latest: watch::Sender<Option<Arc<Busiest>>>,
    asked: watch::Sender<Option<Instant>>,
    /// How far the walk is that is under way.
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

/// What one walk has found.
#[derive(Debug)]
pub(super) struct Busiest {
    pub(super) finished: Instant,
    pub(super) took: Duration,
    /// How many torrents it has looked at.
    pub(super) torrents: u64,
    /// Those with the most peers, the busiest first.
    pub(super) busiest: Vec<SwarmSummary>,
}

impl Census {
    /// What the latest walk has found, if there was one; sets walks going.
    pub(super) async fn ask(&self) -> Option<Arc<Busiest>> {
        self.asked.send_replace(Some(Instant::now()));
        let mut latest = self.latest.subscribe();
        let found = timeout(PATIENCE, latest.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// How many torrents the walk that is under way has looked at.
    pub(super) fn under_way(&self) -> Option<u64> {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, walked: Option<u64>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = walked;
    }

    /// Waits until somebody wants to know. Who has asked and listens to events still does.
    async fn wanted(&self, is_listened_to: impl Fn() -> bool) {
        let mut asked = self.asked.subscribe();
        loop {
            match *asked.borrow_and_update() {
                Some(at) if is_listened_to() || at.elapsed() < INTEREST => return,
                // Nobody listens, and nobody has asked for a minute: the next question is a first one.
                _ => drop(self.latest.send_if_modified(|latest| latest.take().is_some())),
            }
            if asked.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Walks whenever it is wanted, which it is for longer while a client listens to events.
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
