//! Sweeps, by the process that holds the lease.

use std::time::{Duration, Instant};

use redis::Value;
use swarmkeep::{Budget, Retention, Swept, Timestamp, Unavailable, implement::Next};
use tracing::{debug, info};

use super::{ABREAST, RedisRepository, ShardGroup, shared::APART};
use crate::{
    calls::Calls,
    library::{self, LIBRARY},
    link::Failure,
    place::Engine,
    reply::{self, Reader, Shard, bulk},
};

/// The lease on sweeping lasts an eighth of the lifetime, so that a process that sweeps ten times per
/// lifetime keeps it, and 30 seconds at least. It is renewed after a third of that time.
const LEASE: (u32, Duration) = (8, Duration::from_secs(30));

/// The shortest time, in seconds, that a note of a version in use lasts.
const SHORTEST_NOTE: u32 = 60;

impl RedisRepository {
    /// Whether this process sweeps. One process at a time is enough; two would only share the work.
    async fn holds_lease(&self) -> Result<bool, Unavailable> {
        let calls = self.shared.calls();
        let lease = Duration::from_secs((calls.lifetime / LEASE.0).into()).max(LEASE.1);
        if self.lease.lock().is_some_and(|taken| taken.elapsed() < lease / 3) {
            return Ok(true);
        }
        // A server that has lost its data gets the layout again.
        self.shared.confirm().await?;
        self.shared.watch_clock().await?;
        let milliseconds = lease.as_millis().to_string();
        let command =
            |verb, arguments: &[&str]| self.shared.link.call(calls.command(verb, "lease", arguments));
        // Reading is allowed when memory is full.
        let holds = match command("GET", &[]).await? {
            Value::Nil => match command("SET", &[&self.node, "NX", "PX", &milliseconds]).await {
                Ok(taken) => taken != Value::Nil,
                // Memory is full: a sweep must make room, and two processes may sweep.
                Err(Failure::Unavailable(reason)) if reason.contains("OOM") => true,
                Err(failure) => return Err(failure.into()),
            },
            Value::BulkString(holder) if holder == self.node.as_bytes() => {
                command("PEXPIRE", &[&milliseconds]).await?;
                true
            }
            _ => false,
        };
        *self.lease.lock() = holds.then(Instant::now);
        if let Err(unavailable) = self.delete_old_libraries(holds).await {
            debug!(%unavailable, "functions of other versions stay as they are");
        }
        Ok(holds)
    }

    /// Notes for a lifetime that this version is in use. The holder of the lease deletes the functions of
    /// versions without a note. A process that still uses such a version loads it again.
    async fn delete_old_libraries(&self, holds: bool) -> Result<(), Unavailable> {
        let (link, calls) = (&self.shared.link, self.shared.calls());
        if calls.layout.engine == Engine::Module {
            return Ok(());
        }
        let note = |verb, library: &str, arguments: &[&str]| {
            link.call(calls.command(verb, &format!("uses:{library}"), arguments))
        };
        let lifetime = calls.lifetime.max(SHORTEST_NOTE).to_string();
        note("SET", &LIBRARY.name, &["", "EX", &lifetime]).await?;
        for slot in if holds { link.slot_of_each_server() } else { Vec::new() } {
            let listed =
                link.call(Calls::of_functions(slot, &["LIST", "LIBRARYNAME", "swarmkeep_*"])).await?;
            let is_other = |library: &String| *library != LIBRARY.name && library::is_of_a_version(library);
            for library in reply::libraries(&listed).into_iter().filter(is_other) {
                if note("GET", &library, &[]).await? == Value::Nil {
                    link.call(Calls::of_functions(slot, &["DELETE", &library])).await?;
                    info!(library, "functions of an unused version are deleted");
                }
            }
        }
        Ok(())
    }

    /// Whether the shard has an abandoned layout, or a time in the future.
    fn is_to_be_mended(&self, shard: &Shard, now: u32) -> bool {
        let is_ahead = u64::from(shard.newest) > u64::from(now) + APART;
        self.shared.is_of_another_layout(shard) || self.shared.clock.is_some() && is_ahead
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
                    let shards = self.shared.calls().layout.shards;
                    let to = shards.min(from + ABREAST);
                    let group = ShardGroup { shards: (from..to).rev().collect(), sifted: false };
                    let next = (to < shards).then_some(to);
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
                    let states = self.shared.shards(&group.shards).await?;
                    let mut due = states.iter().map(|shard| {
                        shard.as_ref().is_some_and(|shard| {
                            shard.due <= now.max(shard.newest)
                                || drops && shard.kept > 0
                                || self.is_to_be_mended(shard, now)
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

    /// Does one step in a shard. Also returns whether more is to be done there.
    async fn sweep_shard(
        &self,
        shard: u32,
        now: u32,
        drops: bool,
        budget: u64,
    ) -> Result<(Swept, bool), Unavailable> {
        let answer = bulk(self.shared.ask(|calls| calls.sweep(shard, now, drops, budget)).await?)?;
        let mut answer = Reader(&answer);
        self.learn(answer.u32()?);
        let mut swept = Swept::default();
        swept.visited = answer.u32()?.into();
        swept.expired = answer.u32()?.into();
        swept.swarms_removed = answer.u32()?.into();
        Ok((swept, answer.u8()? == 1))
    }
}
