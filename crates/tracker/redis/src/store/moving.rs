//! Moving a store from the functions to the module, while trackers use it.

use std::{ops::AddAssign, time::Duration};

use redis::Value;
use swarmkeep::{RepositoryConfig, Timestamp, Unavailable};
use tokio::time::sleep;

use super::{RedisRepository, shared::text_of};
use crate::{
    Error, RedisConfig,
    calls::{Calls, seconds},
    place::{Engine, Layout},
    reply::{Reader, bulk},
};

/// What the module has taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Moved {
    /// The number of swarms.
    pub swarms: u64,
    /// The number of peers. Those that have announced to the module before do not count.
    pub peers: u64,
    /// The number of peers that were older than the lifetime.
    pub expired: u64,
    /// The number of peers that were too many for their address.
    pub refused: u64,
}

/// The most shards that are moved at once: a server answers nobody else meanwhile.
const AT_ONCE: usize = 4;

/// Longer than a call of `serve` may wait.
const LATE: Duration = Duration::from_secs(5);

impl RedisRepository {
    /// Moves the store from the functions to the module. Does what is left of a move that was interrupted, and
    /// nothing if the module keeps the whole store.
    ///
    /// Trackers may use the store meanwhile, if all are of this version, with the same lifetime and limit as
    /// `config`: from their next announce on they use the module too, and no acknowledged announce is lost. A
    /// shard moves in one step, in which its server does nothing else; until then its swarms have only the peers
    /// that have announced since the beginning of the move, and a peer that leaves may be back until it expires.
    /// An earlier version refuses the store from then on.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Module`] if a server lacks the module.
    pub async fn move_to_module(
        servers: &RedisConfig,
        config: &RepositoryConfig,
        now: Timestamp,
    ) -> Result<Moved, Error> {
        let unreachable = |unavailable: Unavailable| Error::Unreachable(unavailable.reason);
        let store = Self::connect(servers, config).await?;
        let key = format!("{}store", servers.prefix);
        let (_, without) = store.shared.link.module(&key, true).await.map_err(Error::Unreachable)?;
        if !without.is_empty() {
            return Err(Error::Module { prefix: servers.prefix.clone(), without: without.join(", ") });
        }
        let layout = store.shared.calls().layout.clone();
        let was_of_functions = layout.engine == Engine::Functions;
        if was_of_functions {
            let text = text_of(&Layout { engine: Engine::Module, ..layout });
            let written =
                store.shared.link.call(store.shared.calls().command("SET", "store", &[&text])).await;
            written.map_err(|failure| unreachable(failure.into()))?;
            store.shared.confirm().await.map_err(unreachable)?;
        }
        let mut moved = store.take(now).await.map_err(unreachable)?;
        if was_of_functions || moved != Moved::default() {
            // A tracker that has just confirmed the old layout may still create a shard. It gives up in time.
            sleep(LATE).await;
            moved += store.take(now).await.map_err(unreachable)?;
        }
        Ok(moved)
    }

    /// Lets the module take over all shards that functions keep.
    async fn take(&self, now: Timestamp) -> Result<Moved, Unavailable> {
        let mut moved = Moved::default();
        let shards: Vec<_> = (0..self.shared.calls().layout.shards).collect();
        for shards in shards.chunks(AT_ONCE) {
            let take = |calls: &Calls, nth: usize| calls.as_confirmed().take(shards[nth], seconds(now));
            for taken in self.shared.ask_all(shards.len(), take).await {
                match taken? {
                    Value::Nil => {}
                    taken => {
                        let taken = bulk(taken)?;
                        let mut taken = Reader(&taken);
                        let all =
                            [&mut moved.swarms, &mut moved.peers, &mut moved.expired, &mut moved.refused];
                        for count in all {
                            *count += u64::from(taken.u32()?);
                        }
                    }
                }
            }
        }
        Ok(moved)
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.swarms += other.swarms;
        self.peers += other.peers;
        self.expired += other.expired;
        self.refused += other.refused;
    }
}
