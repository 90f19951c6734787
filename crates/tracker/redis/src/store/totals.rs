//! Totals: the sum of the counts of all shards, and a stored sum for frequent calls.

use std::{sync::Arc, time::Duration};

use redis::Value;
use swarmkeep::{Totals, Unavailable};

use super::{RedisRepository, shared::Shared};
use crate::reply::{self, Shard, bulk};

impl RedisRepository {
    /// The totals: exact, or as one process has counted and stored them for all.
    pub(super) async fn sum(&self) -> Result<Totals, Unavailable> {
        if self.totals_age.is_zero() {
            let (totals, newest) = self.shared.count().await?;
            self.learn(newest);
            return Ok(totals);
        }
        let (kept, is_ours) = self.shared.kept_totals(self.totals_age).await?;
        match kept {
            Some(kept) => {
                if is_ours {
                    let (shared, age) = (Arc::clone(&self.shared), self.totals_age);
                    self.shared.link.spawn(async move {
                        // If this fails, another call counts after the same time.
                        let _ = shared.count_for_all(age).await;
                    });
                }
                Ok(kept)
            }
            None => self.shared.count_for_all(self.totals_age).await,
        }
    }
}

/// Stored totals expire after `KEPT` times `totals_age`.
const KEPT: u32 = 8;

impl Shared {
    /// The sum over all shards, and the latest time in any of them.
    async fn count(self: &Arc<Self>) -> Result<(Totals, u32), Unavailable> {
        let shards: Vec<_> = (0..self.calls().layout.shards).collect();
        let (mut sums, mut newest) = ([0_u64; reply::NUMBERS], 0);
        let states = self.shards(&shards).await?;
        let evicted = self.link.evicted_keys().await;
        self.status.lock().evicted_keys = evicted;
        for shard in states.into_iter().flatten().filter(|shard| !self.is_of_another_layout(shard)) {
            newest = newest.max(shard.newest);
            for (sum, part) in sums.iter_mut().zip(reply::numbers_of(&shard.totals)) {
                *sum = sum.saturating_add(part);
            }
        }
        Ok((reply::totals_of(sums), newest))
    }

    /// The stored totals, if there are any, and whether this process is to count again.
    async fn kept_totals(&self, age: Duration) -> Result<(Option<Totals>, bool), Unavailable> {
        let (calls, milliseconds) = (self.calls(), age.as_millis().to_string());
        let asked = [
            calls.command("GET", "totals", &[]),
            calls.command("SET", "counting", &["", "NX", "PX", &milliseconds]),
            calls.time(),
        ];
        let _place = self.link.let_in(asked.len()).map_err(Unavailable::new)?;
        let compare = self.clock.map(super::shared::comparison);
        let mut answers = self.link.call_all(&asked).await.into_iter();
        let mut next = || answers.next().expect("an answer for each call");
        let (kept, ours, time) = (next()?, next(), next()?);
        if let Some(compare) = compare {
            self.note_clocks(compare(&time)?);
        }
        let kept = match kept {
            Value::Nil => None,
            // `None` for totals of a later version.
            kept => reply::totals(&bulk(kept)?),
        };
        // When memory is full, no process can write `counting`, and stored totals would stay old: they are
        // not used.
        Ok((kept.filter(|_| ours.is_ok()), ours.is_ok_and(|answer| answer != Value::Nil)))
    }

    async fn count_for_all(self: &Arc<Self>, age: Duration) -> Result<Totals, Unavailable> {
        let (totals, _) = self.count().await?;
        let (text, milliseconds) = (reply::totals_to_text(&totals), (age * KEPT).as_millis().to_string());
        let keep = self.calls().command("SET", "totals", &[&text, "PX", &milliseconds]);
        // If this fails, other processes count for themselves.
        let _ = self.link.call(keep).await;
        Ok(totals)
    }

    pub(super) fn is_of_another_layout(&self, shard: &Shard) -> bool {
        shard.layout.as_ref().is_some_and(|layout| *layout != self.calls().layout)
    }

    /// The counts of shards; `None` for a shard that does not exist. If a shard has another layout, the
    /// store's layout is read again before this returns.
    pub(super) async fn shards(self: &Arc<Self>, shards: &[u32]) -> Result<Vec<Option<Shard>>, Unavailable> {
        let answers = self.ask_in_parts(shards.len(), |calls, index| calls.counts(shards[index])).await?;
        let states: Vec<_> = answers.into_iter().map(Shard::of).collect::<Result<_, _>>()?;
        if states.iter().flatten().any(|shard| self.is_of_another_layout(shard)) {
            self.confirm().await?;
        }
        Ok(states)
    }
}
