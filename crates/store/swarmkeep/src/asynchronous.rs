//! The same repository for stores that must wait: tokio's locks, or another machine.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    Announce, Announced, Budget, Capabilities, Cursor, Export, InfoHash, MemoryUse, PeerBuffer, PeerRecord,
    Random, Records, Removed, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository, Totals, export,
};

/// What an asynchronous call gives: the answer of the synchronous one, unless the store could not be reached.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send + 'a>>;

/// The store could not be reached or did not answer in time; whether the call took effect is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {reason}")]
pub struct Unavailable {
    /// What was tried and what came of it.
    pub reason: String,
}

impl Unavailable {
    /// Says why.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// [`TorrentRepository`] for stores that must wait. Each method's contract is that of its namesake there.
/// Every synchronous store is one through [`Immediate`].
///
/// Dropping the future of an announce, a removal of one swarm or a count before it is ready leaves the whole
/// step done, or nothing of it. What goes through several swarms or many peers (a batch, a sweep,
/// `remove_where`, `restore`) is done up to one of them: a sweep goes on from there, a restore may be
/// repeated, and a removal has lost its report. A pass is complete only when the futures of all its steps
/// were finished or dropped.
pub trait AsyncTorrentRepository: fmt::Debug + Send + Sync {
    /// See [`TorrentRepository::announce`]. The boxed future is the one allocation allowed.
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced>;

    /// See [`TorrentRepository::announce_batch`]. After an error, requests without an answer may have taken
    /// effect.
    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            for request in batch {
                let answer = self.announce(&request.announce, now, &mut *rng, &mut request.peers).await?;
                request.answer = Some(answer);
            }
            Ok(())
        })
    }

    /// See [`TorrentRepository::scrape`].
    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats>;

    /// See [`TorrentRepository::totals`].
    fn totals(&self) -> Answer<'_, Totals>;

    /// See [`TorrentRepository::walk`].
    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::page`].
    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()>;

    /// See [`TorrentRepository::peers`].
    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::sweep`].
    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept>;

    /// See [`TorrentRepository::remove`].
    fn remove<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, Option<SwarmStats>>;

    /// See [`TorrentRepository::remove_where`].
    fn remove_where<'a>(
        &'a self,
        forbidden: &'a (dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Answer<'a, Removed>;

    /// See [`TorrentRepository::restore`].
    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored>;

    /// See [`TorrentRepository::export`]. After an error, or if the future is dropped, the next step goes on
    /// behind what was read last, and [`Export::records`] holds what was read until then.
    fn export<'a>(&'a self, export: &'a mut Export, now: Timestamp, budget: Budget) -> Answer<'a, ()> {
        Box::pin(export::by_walking(self, export, now, budget))
    }

    /// See [`TorrentRepository::import`].
    fn import<'a>(&'a self, records: &'a [Records], now: Timestamp) -> Answer<'a, Restored> {
        Box::pin(export::one_by_one(self, records, now))
    }

    /// See [`TorrentRepository::add_downloads`].
    fn add_downloads<'a>(&'a self, info_hash: &'a InfoHash, earlier: u32) -> Answer<'a, bool>;

    /// See [`TorrentRepository::capabilities`].
    fn capabilities(&self) -> Capabilities;

    /// See [`TorrentRepository::memory`].
    fn memory(&self) -> Answer<'_, MemoryUse>;
}

/// A synchronous store behind the asynchronous trait: every future is ready at its first poll.
#[derive(Debug, Clone)]
pub struct Immediate<R>(pub R);

/// What a future gives that is ready when it is first polled: of an [`Immediate`] store, or over locks that
/// block.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing in it waits for another poll"),
    }
}

/// Implements [`AsyncTorrentRepository`] for wrappers and the like, each method by one call of a macro of
/// yours: `call!(self, method, arguments…)`, or `call!(@plain self, method)` where nothing is awaited.
///
/// ```
/// use swarmkeep::{AsyncTorrentRepository, async_repository};
///
/// #[derive(Debug)]
/// struct Logged<R>(R);
///
/// macro_rules! log {
///     (@plain $this:ident, $method:ident) => { $this.0.$method() };
///     ($this:ident, $method:ident $(, $argument:ident)*) => {
///         Box::pin(async move {
///             let answer = $this.0.$method($($argument),*).await;
///             eprintln!("{} has answered: {}", stringify!($method), answer.is_ok());
///             answer
///         })
///     };
/// }
/// async_repository! { [R: AsyncTorrentRepository] Logged<R>, log }
/// ```
#[macro_export]
macro_rules! async_repository {
    ([$($generics:tt)*] $target:ty, $call:ident) => {
        impl<$($generics)*> $crate::AsyncTorrentRepository for $target {
            fn announce<'a>(
                &'a self,
                announce: &'a $crate::Announce,
                now: $crate::Timestamp,
                rng: &'a mut dyn $crate::Random,
                peers: &'a mut $crate::PeerBuffer<'_>,
            ) -> $crate::Answer<'a, $crate::Announced> {
                $call!(self, announce, announce, now, rng, peers)
            }
            fn announce_batch<'a>(
                &'a self,
                batch: &'a mut [$crate::Request<'_>],
                now: $crate::Timestamp,
                rng: &'a mut dyn $crate::Random,
            ) -> $crate::Answer<'a, ()> {
                $call!(self, announce_batch, batch, now, rng)
            }
            fn scrape<'a>(&'a self, info_hash: &'a $crate::InfoHash) -> $crate::Answer<'a, $crate::SwarmStats> {
                $call!(self, scrape, info_hash)
            }
            fn totals(&self) -> $crate::Answer<'_, $crate::Totals> {
                $call!(self, totals)
            }
            fn walk<'a>(
                &'a self,
                from: $crate::Cursor,
                limit: usize,
                out: &'a mut Vec<$crate::SwarmSummary>,
            ) -> $crate::Answer<'a, $crate::Cursor> {
                $call!(self, walk, from, limit, out)
            }
            fn page<'a>(
                &'a self,
                after: Option<&'a $crate::InfoHash>,
                limit: usize,
                out: &'a mut Vec<$crate::SwarmSummary>,
            ) -> $crate::Answer<'a, ()> {
                $call!(self, page, after, limit, out)
            }
            fn peers<'a>(
                &'a self,
                info_hash: &'a $crate::InfoHash,
                from: $crate::Cursor,
                limit: usize,
                out: &'a mut Vec<$crate::PeerRecord>,
            ) -> $crate::Answer<'a, $crate::Cursor> {
                $call!(self, peers, info_hash, from, limit, out)
            }
            fn sweep(
                &self,
                now: $crate::Timestamp,
                policy: $crate::Retention,
                budget: $crate::Budget,
            ) -> $crate::Answer<'_, $crate::Swept> {
                $call!(self, sweep, now, policy, budget)
            }
            fn remove<'a>(
                &'a self,
                info_hash: &'a $crate::InfoHash,
            ) -> $crate::Answer<'a, Option<$crate::SwarmStats>> {
                $call!(self, remove, info_hash)
            }
            fn remove_where<'a>(
                &'a self,
                forbidden: &'a (dyn Fn(&$crate::InfoHash) -> bool + Sync),
                from: $crate::Cursor,
                budget: $crate::Budget,
            ) -> $crate::Answer<'a, $crate::Removed> {
                $call!(self, remove_where, forbidden, from, budget)
            }
            fn restore<'a>(
                &'a self,
                swarm: &'a $crate::SwarmSummary,
                peers: &'a [$crate::PeerRecord],
                now: $crate::Timestamp,
            ) -> $crate::Answer<'a, $crate::Restored> {
                $call!(self, restore, swarm, peers, now)
            }
            fn export<'a>(
                &'a self,
                export: &'a mut $crate::Export,
                now: $crate::Timestamp,
                budget: $crate::Budget,
            ) -> $crate::Answer<'a, ()> {
                $call!(self, export, export, now, budget)
            }
            fn import<'a>(
                &'a self,
                records: &'a [$crate::Records],
                now: $crate::Timestamp,
            ) -> $crate::Answer<'a, $crate::Restored> {
                $call!(self, import, records, now)
            }
            fn add_downloads<'a>(
                &'a self,
                info_hash: &'a $crate::InfoHash,
                earlier: u32,
            ) -> $crate::Answer<'a, bool> {
                $call!(self, add_downloads, info_hash, earlier)
            }
            fn capabilities(&self) -> $crate::Capabilities {
                $call!(@plain self, capabilities)
            }
            fn memory(&self) -> $crate::Answer<'_, $crate::MemoryUse> {
                $call!(self, memory)
            }
        }
    };
}
macro_rules! at_once {
    (@plain $this:ident, $method:ident) => { $this.0.$method() };
    ($this:ident, $method:ident $(, $argument:ident)*) => {
        Box::pin(async move { Ok($this.0.$method($($argument),*)) })
    };
}

macro_rules! forward {
    ($(@plain)? $this:ident, $method:ident $(, $argument:ident)*) => { (**$this).$method($($argument),*) };
}

async_repository! { [R: TorrentRepository] Immediate<R>, at_once }
async_repository! { [R: AsyncTorrentRepository + ?Sized] &R, forward }
async_repository! { [R: AsyncTorrentRepository + ?Sized] Box<R>, forward }
async_repository! { [R: AsyncTorrentRepository + ?Sized] Arc<R>, forward }
