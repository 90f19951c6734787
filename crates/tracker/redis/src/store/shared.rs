//! What all trackers of a store agree on: how it is laid out, and what time it is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use data_encoding::HEXLOWER;
use parking_lot::{Mutex, RwLock};
use redis::Value;
use swarmkeep::{Timestamp, Unavailable};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    Status,
    calls::Calls,
    link::{Failure, Link, PAUSE},
    node::SlotCall,
    place::{Layout, SHARDS, is_number_of_shards},
    reply::{self, Shard, Unconfirmed},
};

/// How far a time that is told may be from the server's clock, in seconds; `library.lua` has the same.
pub(crate) const APART: u64 = 60;

/// Shards that are asked at once for the layout.
const PART: usize = 256;

/// The servers, and what this process knows of the store on them.
pub(super) struct Shared {
    pub(super) link: Link,
    calls: RwLock<Arc<Calls>>,
    /// When the layout was last read, and whether that could be done.
    confirmed: tokio::sync::Mutex<Option<(Instant, Result<(), Unavailable>)>>,
    /// The clock of this process, if the servers' clocks bound what it tells.
    clock: Option<fn() -> Timestamp>,
    status: Mutex<Status>,
    /// Shards of other layouts are being dropped.
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

    /// What calls are made of, for the layout as far as it is known.
    pub(super) fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls.read())
    }

    pub(super) fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// One call, and its answer.
    pub(super) async fn ask(
        self: &Arc<Self>,
        call: impl Fn(&Calls) -> SlotCall,
    ) -> Result<Value, Unavailable> {
        let mut answers = self.ask_all(1, |calls, _| call(calls)).await;
        answers.pop().expect("an answer for each call")
    }

    /// As many calls, made for the layout as it is, and their answers. Calls about one slot are done in
    /// order. What a shard refuses because of the layout is made and sent again.
    pub(super) async fn ask_all(
        self: &Arc<Self>,
        count: usize,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Vec<Result<Value, Unavailable>> {
        match self.link.let_in(count) {
            Ok(_place) => self.ask_those(count, call).await,
            Err(busy) => vec![Err(Unavailable::new(busy)); count],
        }
    }

    /// The same for calls that were let in, or are few.
    pub(super) async fn ask_those(
        self: &Arc<Self>,
        count: usize,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Vec<Result<Value, Unavailable>> {
        let calls = self.calls();
        let asked: Vec<_> = (0..count).map(|index| call(&calls, index)).collect();
        let answers = self.link.call_all(&asked).await;
        self.repeat(answers, call).await
    }

    /// Confirms the layout if shards want that, and asks them again: no shard refuses that. A call that has
    /// to wait then is confirmed anew. Once a server was lost, it may have lost the layout: it is told again.
    async fn repeat(
        self: &Arc<Self>,
        mut answers: Vec<Result<Value, Failure>>,
        call: impl Fn(&Calls, usize) -> SlotCall,
    ) -> Vec<Result<Value, Unavailable>> {
        let deadline = Instant::now() + self.link.patience();
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
                Ok(calls) => Calls { confirmed: true, ..(*calls).clone() },
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

    /// Drops all shards of layouts that the store has given up, so that processes which go by one of them
    /// notice at their next announce, wherever that goes.
    fn drop_others(self: &Arc<Self>) {
        if self.dropping.swap(true, Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        self.link.spawn(async move {
            let layout = shared.calls().layout.clone();
            let shards: Vec<_> = (0..layout.shards).collect();
            // What is left after an error is dropped by sweeps.
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
                let calls = Calls { confirmed: true, ..(*calls).clone() };
                let asked: Vec<_> = others.iter().map(|&shard| calls.sweep(shard, 0, false, 1)).collect();
                shared.link.call_all(&asked).await;
            }
            shared.dropping.store(false, Relaxed);
        });
    }

    /// Reads how the store is laid out, or writes it where nobody has, and goes by it from now on. Those who
    /// ask meanwhile share one reading.
    pub(super) async fn confirm(&self) -> Result<Arc<Calls>, Unavailable> {
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
        result.map(|()| self.calls())
    }

    async fn follow(&self) -> Result<(), Unavailable> {
        let ours = self.calls();
        let there = agree(&self.link, &ours).await?;
        if there == ours.layout {
            self.status.lock().layout_refused = None;
            return Ok(());
        }
        if there.by_address != ours.layout.by_address {
            let limited = if there.by_address { "limited" } else { "not limited" };
            let prefix = &ours.prefix;
            let reason = format!(
                "the store under {prefix} was begun anew, and its endpoints an address are {limited}: give all trackers the same setting, and start this one again"
            );
            let refused = &mut self.status.lock().layout_refused;
            if refused.is_none() {
                warn!("{reason}");
            }
            *refused = Some(reason.clone());
            return Err(Unavailable::new(reason));
        }
        warn!(prefix = %ours.prefix, "the store was begun anew by another tracker: following its layout");
        *self.calls.write() = Arc::new(Calls { layout: there, ..(*ours).clone() });
        let mut status = self.status.lock();
        status.layout_refused = None;
        status.layout_changes += 1;
        Ok(())
    }

    /// Whether the servers' clocks bound what is told.
    pub(super) const fn bounds_times(&self) -> bool {
        self.clock.is_some()
    }

    /// Compares the clock of this process with that of a server, and tells if it drifts.
    pub(super) async fn watch_clock(&self) -> Result<(), Unavailable> {
        let answer = self.link.call(self.calls().time()).await?;
        self.note_time(&answer)
    }

    /// The same, from the server's answer.
    pub(super) fn note_time(&self, answer: &Value) -> Result<(), Unavailable> {
        let Some(clock) = self.clock else { return Ok(()) };
        let clocks = Clocks { own: clock().as_secs(), server: reply::time(answer)? };
        let Clocks { own, server } = clocks;
        let before = self.status.lock().clock.replace((own, server));
        let was_apart = before.is_some_and(|(own, server)| Clocks { own, server }.are_apart());
        match clocks.are_apart() {
            true if !was_apart => warn!(
                own,
                server,
                "the clock is more than {APART} s from the Redis server's, and what it says counts as {APART} s from that: set both by NTP, and start again"
            ),
            false if was_apart => info!(own, server, "the clock is near the Redis server's again"),
            _ => {}
        }
        Ok(())
    }
}

/// Two clocks at the same time, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    pub(super) own: u64,
    pub(super) server: u64,
}

impl Clocks {
    /// `None` if no clock is to be compared.
    pub(super) async fn compare(
        link: &Link,
        calls: &Calls,
        clock: Option<fn() -> Timestamp>,
    ) -> Result<Option<Self>, Unavailable> {
        let Some(clock) = clock else { return Ok(None) };
        let server = reply::time(&link.call(calls.time()).await?)?;
        Ok(Some(Self { own: clock().as_secs(), server }))
    }

    pub(super) const fn are_apart(&self) -> bool {
        self.own.abs_diff(self.server) > APART
    }
}

/// How the store that is there is laid out. If nobody has written that, it is as its shards say, or as ours.
pub(super) async fn agree(link: &Link, calls: &Calls) -> Result<Layout, Unavailable> {
    // Reading is allowed when memory is full.
    let answer = match link.call(calls.command("GET", "store", &[])).await? {
        Value::Nil => {
            let layout = of_shards(link, calls).await?.unwrap_or_else(|| calls.layout.clone());
            let Layout { shards, salt, by_address } = &layout;
            let text = format!("1 {shards} {} {by_address}", HEXLOWER.encode(salt));
            match link.call(calls.command("SET", "store", &[&text, "NX", "GET"])).await? {
                Value::Nil => return Ok(layout),
                answer => answer,
            }
        }
        answer => answer,
    };
    let theirs = String::from_utf8_lossy(&reply::bulk(answer)?).into_owned();
    let unknown = || {
        let prefix = &calls.prefix;
        Unavailable::new(format!("what {prefix}store holds is of another version: {theirs:?}"))
    };
    let words: Vec<_> = theirs.split(' ').collect();
    let ["1", shards, salt, by_address] = words.as_slice() else { return Err(unknown()) };
    let salt = HEXLOWER.decode(salt.as_bytes()).ok().and_then(|salt| salt.try_into().ok());
    match (shards.parse(), salt, by_address.parse()) {
        (Ok(shards), Some(salt), Ok(by_address)) if is_number_of_shards(shards) => {
            Ok(Layout { shards, salt, by_address })
        }
        _ => Err(unknown()),
    }
}

/// The layout of most shards that are there: a few may be left of one that was given up. A server that has
/// lost all may have had the key with the layout, and others have their shards.
async fn of_shards(link: &Link, calls: &Calls) -> Result<Option<Layout>, Unavailable> {
    let shards: Vec<_> = (0..calls.layout.shards.max(SHARDS)).collect();
    let mut layouts: Vec<(Layout, usize)> = Vec::new();
    for part in shards.chunks(PART) {
        let asked: Vec<_> = part.iter().map(|&shard| calls.counts(shard)).collect();
        for answer in link.call_all(&asked).await {
            if let Some(Shard { layout: Some(layout), .. }) = Shard::of(answer?)? {
                match layouts.iter_mut().find(|(known, _)| *known == layout) {
                    Some((_, count)) => *count += 1,
                    None => layouts.push((layout, 1)),
                }
            }
        }
    }
    Ok(layouts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(layout, _)| layout))
}
