//! Forgetting, by whoever holds the lease on it.

use std::time::{Duration, Instant};

use redis::Value;
use swarmkeep::{Budget, Retention, Swept, Timestamp, Unavailable, implement::Next};

use super::{ABREAST, RedisRepository, ShardGroup, agree};
use crate::reply::{Reader, bulk};

/// The lease on sweeping is good for this part of the lifetime, so that who sweeps ten times in one keeps it;
/// and for so long at least. After a third of it, it is renewed.
const LEASE: (u32, Duration) = (8, Duration::from_secs(30));

impl RedisRepository {
    /// Whether it is this process that sweeps: one at a time is enough, and if two did they would only share
    /// the work.
    async fn holds_lease(&self) -> Result<bool, Unavailable> {
        let lease = Duration::from_secs((self.calls.lifetime / LEASE.0).into()).max(LEASE.1);
        if self.lease.lock().is_some_and(|taken| taken.elapsed() < lease / 3) {
            return Ok(true);
        }
        // Servers that have lost everything are told again how the store is laid out, or its trackers would
        // part ways.
        if agree(&self.link, &self.calls).await? != self.calls.layout {
            return Err(Unavailable::new(format!(
                "what lives under {} was begun anew with another layout: start again",
                self.calls.prefix
            )));
        }
        let milliseconds = lease.as_millis().to_string();
        let command = |verb, arguments: &[&str]| self.link.call(self.calls.command(verb, "lease", arguments));
        // Reading is allowed when memory is full.
        let holds = match command("GET", &[]).await? {
            Value::Nil => match command("SET", &[&self.node, "NX", "PX", &milliseconds]).await {
                Ok(taken) => taken != Value::Nil,
                // Somebody has to make room, and two may.
                Err(unavailable) if unavailable.reason.contains("OOM") => true,
                Err(unavailable) => return Err(unavailable),
            },
            Value::BulkString(holder) if holder == self.node.as_bytes() => {
                command("PEXPIRE", &[&milliseconds]).await?;
                true
            }
            _ => false,
        };
        *self.lease.lock() = holds.then(Instant::now);
        Ok(holds)
    }

    pub(super) async fn sweep_on(
        &self,
        now: Timestamp,
        policy: Retention,
        budget: Budget,
    ) -> Result<Swept, Unavailable> {
        let mut swept = Swept::default();
        let now = self.advance(now);
        if !self.holds_lease().await? {
            swept.pass_complete = true;
            return Ok(swept);
        }
        let drops = policy == Retention::DropEmpty;
        let mut left = budget.get() as u64;
        while left > 0 && !swept.pass_complete {
            let mut claim = match self.pass.next() {
                Next::Visit(claim) => claim,
                Next::Leave => break,
                Next::LookFrom(from) => {
                    let to = self.calls.layout.shards.min(from + ABREAST);
                    let group = ShardGroup { shards: (from..to).rev().collect(), sifted: false };
                    let next = (to < self.calls.layout.shards).then_some(to);
                    match self.pass.claim(from, [group].into_iter(), next) {
                        Some(claim) => claim,
                        None => continue,
                    }
                }
            };
            while left > 0
                && let Some(group) = claim.current()
            {
                if !group.sifted {
                    let states = self.shards(&group.shards).await?;
                    let mut due = states.iter().map(|shard| {
                        shard.is_some_and(|shard| {
                            shard.due <= now.max(shard.newest) || drops && shard.kept > 0
                        })
                    });
                    group.shards.retain(|_| due.next().unwrap_or_default());
                    group.sifted = true;
                }
                while left > 0
                    && let Some(&shard) = group.shards.last()
                {
                    let (step, more) = self.sweep_shard(shard, now, drops, left).await?;
                    left = left.saturating_sub(step.visited);
                    swept += step;
                    if !more {
                        group.shards.pop();
                    }
                }
                if group.shards.is_empty() {
                    claim.done();
                }
            }
            swept.pass_complete = claim.finish();
        }
        Ok(swept)
    }

    /// One hold, and whether there is more to do in that shard.
    async fn sweep_shard(
        &self,
        shard: u32,
        now: u32,
        drops: bool,
        budget: u64,
    ) -> Result<(Swept, bool), Unavailable> {
        let answer = bulk(self.link.call(self.calls.sweep(shard, now, drops, budget)).await?)?;
        let mut answer = Reader(&answer);
        self.learn(answer.u32()?);
        let mut swept = Swept::default();
        swept.visited = answer.u32()?.into();
        swept.expired = answer.u32()?.into();
        swept.swarms_removed = answer.u32()?.into();
        Ok((swept, answer.u8()? == 1))
    }
}
