//! The layout and the time, on which all trackers of a store agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::{Mutex, RwLock};
use redis::Value;
use swarmkeep::{Timestamp, Unavailable};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    Error, Status,
    calls::Calls,
    link::{Failure, Link, PAUSE},
    node::SlotCall,
    place::{Engine, Layout, OLDER, SHARDS},
    reply::{self, Shard, Unconfirmed},
};

/// The most seconds between the time of a call and the server's clock; as in `library/shard.lua`.
pub(crate) const APART: u64 = 60;

/// A long list of calls is sent in parts of this length.
const PART: usize = 256;

/// The servers, and the state of their store as far as this process knows it.
pub(super) struct Shared {
    pub(super) link: Link,
    calls: RwLock<Arc<Calls>>,
    /// When the last read of the layout began, and its result.
    confirmed: tokio::sync::Mutex<Option<(Instant, Result<(), Unavailable>)>>,
    /// The clock of this process, if the servers' clocks bound the times of its calls.
    pub(super) clock: Option<fn() -> Timestamp>,
    pub(super) status: Mutex<Status>,
    /// Whether a task is dropping the shards of other layouts.
    dropping: AtomicBool,
}

impl Shared {
    pub(super) fn new(link: Link, calls: Calls, clock: Option<fn() -> Timestamp>) -> Arc<Self> {
        Arc::new(Self {
            link,
            calls: RwLock::new(Arc::new(calls)),
            confirmed: tokio::sync::Mutex::default(),
            clock,
            status: Mutex::default(),
            dropping: AtomicBool::new(false),
        })
    }

    /// The parts of calls for the last known layout.
    pub(super) fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls.read())
    }

    pub(super) async fn ask(
        self: &Arc<Self>,
        call: impl Fn(&Calls) -> SlotCall,
    ) -> Result<Value, Unavailable> {
        let mut answers = self.ask_all(1, |calls, _| call(calls)).await;
        answers.pop().expect("an answer for each call")
    }

    /// Makes `count` calls for the current layout, sends them, and returns their answers. Calls for one slot
    /// are done in order. A call that a shard refuses because of the layout is made and sent again.
    pub(super) async fn ask_all(
        self: &Arc<Self>,
        count: usize,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Vec<Result<Value, Unavailable>> {
        let _place = match self.link.let_in(count) {
            Ok(place) => place,
            Err(busy) => return vec![Err(Unavailable::new(busy)); count],
        };
        let calls = self.calls();
        let asked: Vec<_> = (0..count).map(|index| call(&calls, index)).collect();
        let answers = self.link.call_all(&asked).await;
        self.repeat(answers, call).await
    }

    /// The same for any number of calls. Each part has the full patience of one call, and leaves room for
    /// announces.
    pub(super) async fn ask_in_parts(
        self: &Arc<Self>,
        count: usize,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Result<Vec<Value>, Unavailable> {
        let mut answers = Vec::with_capacity(count);
        for from in (0..count).step_by(PART) {
            let part = PART.min(count - from);
            for answer in self.ask_all(part, |calls, index| call(calls, from + index)).await {
                answers.push(answer?);
            }
        }
        Ok(answers)
    }

    /// If shards refused calls because of the layout, confirms the layout and sends these calls again; no
    /// shard refuses a confirmed call. A call that then has to wait is confirmed again first. After an answer
    /// was lost, the layout is confirmed too, because the server may have lost it.
    async fn repeat(
        self: &Arc<Self>,
        mut answers: Vec<Result<Value, Failure>>,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Vec<Result<Value, Unavailable>> {
        let deadline = Instant::now() + self.link.patience;
        let lost = answers.iter().any(Result::is_ok) && self.link.lost.swap(false, Relaxed);
        let (mut confirms, mut pause) = (false, PAUSE.0);
        loop {
            let unconfirmed =
                |&index: &usize| matches!(answers[index], Err(Failure::Unconfirmed(_) | Failure::Stale(_)));
            let again: Vec<_> = (0..answers.len()).filter(unconfirmed).collect();
            if again.is_empty() || confirms && Instant::now() >= deadline {
                break;
            }
            if confirms {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            confirms = true;
            let elsewhere = again
                .iter()
                .any(|&index| matches!(answers[index], Err(Failure::Unconfirmed(Unconfirmed::Elsewhere))));
            let calls = match self.confirm().await {
                Ok(calls) => calls,
                Err(Unavailable { reason, .. }) => {
                    self.link.lost.fetch_or(lost, Relaxed);
                    let failed = |index: usize| answers[index] = Err(Failure::Unavailable(reason.clone()));
                    again.into_iter().for_each(failed);
                    break;
                }
            };
            if elsewhere {
                self.drop_others();
            }
            let asked: Vec<_> = again.iter().map(|&index| call(&calls, index)).collect();
            for (index, answer) in again.into_iter().zip(self.link.call_all(&asked).await) {
                answers[index] = answer;
            }
        }
        if lost && !confirms {
            let shared = Arc::clone(self);
            self.link.spawn(async move {
                if shared.confirm().await.is_err() {
                    shared.link.lost.store(true, Relaxed);
                }
            });
        }
        answers.into_iter().map(|answer| answer.map_err(Into::into)).collect()
    }

    /// Drops all shards of abandoned layouts, so that a process that still uses such a layout is refused at
    /// its next announce, in any shard.
    fn drop_others(self: &Arc<Self>) {
        if self.dropping.swap(true, Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        self.link.spawn(async move {
            let layout = shared.calls().layout.clone();
            let shards: Vec<_> = (0..layout.shards).collect();
            // After an error, sweeps drop the rest.
            for part in shards.chunks(PART) {
                let Ok(states) = shared.shards(part).await else { break };
                let is_other = |state: &Option<Shard>| {
                    state.as_ref().is_some_and(|shard| shared.is_of_another_layout(shard))
                };
                let others: Vec<_> = part
                    .iter()
                    .zip(states)
                    .filter_map(|(&shard, state)| is_other(&state).then_some(shard))
                    .collect();
                if others.is_empty() {
                    continue;
                }
                let Ok(calls) = shared.confirm().await else { break };
                if calls.layout != layout {
                    break;
                }
                let asked: Vec<_> = others.iter().map(|&shard| calls.sweep(shard, 0, false, 1)).collect();
                shared.link.call_all(&asked).await;
            }
            shared.dropping.store(false, Relaxed);
        });
    }

    /// Reads the layout of the store, or writes it if there is none, and uses it from now on. Returns
    /// confirmed calls for it. Concurrent callers share one read.
    pub(super) async fn confirm(&self) -> Result<Calls, Unavailable> {
        let asked = Instant::now();
        let mut confirmed = self.confirmed.lock().await;
        let result = match &*confirmed {
            Some((begun, result)) if *begun >= asked => result.clone(),
            _ => {
                let begun = Instant::now();
                let result = self.follow().await;
                *confirmed = Some((begun, result.clone()));
                result
            }
        };
        result.map(|()| self.calls().as_confirmed())
    }

    async fn follow(&self) -> Result<(), Unavailable> {
        let ours = self.calls();
        let there = agree(&self.link, &ours).await.map_err(|error| match error {
            Error::Unreachable(reason) => Unavailable::new(reason),
            other => Unavailable::new(other.to_string()),
        })?;
        if there == ours.layout {
            self.status.lock().layout_refused = None;
            return Ok(());
        }
        if there.places != ours.layout.places {
            let (prefix, differs) = (&ours.prefix, there.places.describe());
            let reason = format!(
                "the store under {prefix} was begun anew, and {differs}: give all trackers the same setting, and start this one again"
            );
            let refused = &mut self.status.lock().layout_refused;
            if refused.is_none() {
                warn!("{reason}");
            }
            *refused = Some(reason.clone());
            return Err(Unavailable::new(reason));
        }
        warn!(prefix = %ours.prefix, "the store was begun anew by another tracker: following its layout");
        *self.calls.write() = Arc::new(ours.with_layout(there));
        let mut status = self.status.lock();
        status.layout_refused = None;
        status.layout_changes += 1;
        Ok(())
    }

    /// Compares the clock of this process with a server's clock, and warns if they differ too much.
    pub(super) async fn watch_clock(&self) -> Result<(), Unavailable> {
        if let Some(clocks) = compare_clocks(&self.link, &self.calls(), self.clock).await? {
            self.note_clocks(clocks);
        }
        Ok(())
    }

    pub(super) fn note_clocks(&self, (own, server): (u64, u64)) {
        let before = self.status.lock().clock.replace((own, server));
        let was_apart = before.is_some_and(|(own, server)| are_apart(own, server));
        match are_apart(own, server) {
            true if !was_apart => warn!(
                own,
                server,
                "the clock is more than {APART} s from the Redis server's, and its times count as {APART} s from the server's: set both by NTP, and start again"
            ),
            false if was_apart => info!(own, server, "the clock is near the Redis server's again"),
            _ => {}
        }
    }
}

/// The time of `clock`, and of the server at the same time, in seconds; `None` without a `clock`.
pub(super) async fn compare_clocks(
    link: &Link,
    calls: &Calls,
    clock: Option<fn() -> Timestamp>,
) -> Result<Option<(u64, u64)>, Unavailable> {
    let Some(clock) = clock else { return Ok(None) };
    let compare = comparison(clock);
    compare(&link.call(calls.time()).await?).map(Some)
}

/// Returns a function of the server's answer to a `TIME` that is sent next. Its result is the time of `clock`
/// and that of the server, in seconds. A late answer does not set them apart: of the times between call and
/// answer, the nearest to the server's counts.
pub(super) fn comparison(clock: fn() -> Timestamp) -> impl FnOnce(&Value) -> Result<(u64, u64), Unavailable> {
    let sent = clock().as_secs();
    move |answer| {
        let server = reply::time(answer)?;
        Ok((server.max(sent).min(clock().as_secs()), server))
    }
}

pub(super) const fn are_apart(own: u64, server: u64) -> bool {
    own.abs_diff(server) > APART
}

/// Returns the layout of the store. If none is written, writes the layout of the existing shards, or the
/// layout of `calls` if there are no shards.
pub(super) async fn agree(link: &Link, calls: &Calls) -> Result<Layout, Error> {
    // Reading is allowed when memory is full.
    let answer = match link.call(calls.command("GET", "store", &[])).await? {
        Value::Nil => {
            let layout = of_shards(link, calls).await?.unwrap_or_else(|| calls.layout.clone());
            match link.call(calls.command("SET", "store", &[&layout.to_text(), "NX", "GET"])).await? {
                Value::Nil => return Ok(layout),
                answer => answer,
            }
        }
        answer => answer,
    };
    read(&answer, calls)
}

/// The layout in the value of the key `store`.
pub(super) fn read(value: &Value, calls: &Calls) -> Result<Layout, Error> {
    let Value::BulkString(text) = value else { return Err(reply::strange(value).into()) };
    let text = String::from_utf8_lossy(text);
    Layout::of_text(&text).map_err(|has| Error::Layout { prefix: calls.prefix.clone(), has })
}

/// The layout of most of the existing shards: a few may still have an abandoned one. If the server of the key
/// `store` has lost its data, the other servers of a Cluster still have their shards.
async fn of_shards(link: &Link, calls: &Calls) -> Result<Option<Layout>, Error> {
    let shards: Vec<_> = (0..calls.layout.shards.max(SHARDS)).collect();
    let mut layouts: Vec<(Layout, usize)> = Vec::new();
    // Servers without the module have none of its shards.
    let engines = [Engine::Functions, calls.layout.engine];
    for engine in &engines[usize::from(calls.layout.engine == Engine::Functions)..] {
        let layout = Layout { engine: *engine, shards: shards.len() as u32, ..calls.layout.clone() };
        let calls = calls.with_layout(layout);
        for part in shards.chunks(PART) {
            let asked: Vec<_> = part.iter().map(|&shard| calls.counts(shard)).collect();
            for answer in link.call_all(&asked).await {
                if let Some(Shard { layout, .. }) = Shard::of(answer?)? {
                    let older = || Error::Layout { prefix: calls.prefix.clone(), has: OLDER.to_owned() };
                    let layout = layout.ok_or_else(older)?;
                    match layouts.iter_mut().find(|(known, _)| *known == layout) {
                        Some((_, count)) => *count += 1,
                        None => layouts.push((layout, 1)),
                    }
                }
            }
        }
    }
    Ok(layouts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(layout, _)| layout))
}

/// Whether there is a shard of the module's. It needs no right on the module's commands.
pub(super) async fn has_shard_of_module(link: &Link, calls: &Calls) -> Result<bool, Error> {
    let shards = calls.layout.shards.max(SHARDS);
    let calls = calls.with_layout(Layout { engine: Engine::Module, shards, ..calls.layout.clone() });
    let gets: Vec<_> = (0..shards).map(|shard| calls.get(shard)).collect();
    for answer in link.call_all(&gets).await {
        match answer {
            Ok(_) => {}
            Err(Failure::Unavailable(reason)) if reason.contains("WRONGTYPE") => return Ok(true),
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(false)
}
