//! The asynchronous trait: the same contract for stores that must wait, for a lock of tokio or for another
//! machine.

use std::{
    fmt,
    future::{Future, poll_fn, ready},
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use crate::{
    Announce, Announced, Budget, Capabilities, Cursor, Export, InfoHash, MemoryUse, PeerBuffer, PeerRecord,
    Random, Records, Removed, Request, Restored, Retention, SwarmStats, SwarmSummary, Swept, Timestamp,
    TorrentRepository, Totals, defaults, export, implement::forward_asynchronous,
};

/// The future of an asynchronous call. Its output is the result of the synchronous method, or
/// [`Unavailable`].
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send + 'a>>;

/// The error of a store that could not be reached or did not answer in time. The call may have
/// taken effect, or take effect later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {reason}")]
#[non_exhaustive]
pub struct Unavailable {
    /// The operation that was tried, and its result.
    pub reason: String,
}

impl Unavailable {
    /// Returns the error with its reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// [`TorrentRepository`] for stores that must wait. Each method has the contract of the method of the same
/// name there. [`Immediate`] wraps a synchronous store.
///
/// If the future of an announce, of the removal of one swarm, or of a count is dropped before it is ready,
/// either the whole step is done or nothing of it. A dropped call over several swarms or many peers (a batch,
/// a sweep, `remove_where`, `restore`) is done up to one of them: the next sweep continues there, a restore
/// may be repeated, and the list of removed swarms is lost. A pass is complete only when the futures of all
/// its steps were finished or dropped.
///
/// The sweep of a store in this process gives way to the other tasks of its thread every few thousand visits.
///
/// An announce allocates its boxed future and nothing else. After an error of `announce_batch`, requests
/// without an answer may have taken effect. After an error of `export`, or if its future is dropped, the next
/// step continues after the last record that was read, and [`Export::records`](crate::Export::records)
/// contains the records that were read before the error.
///
/// ```
/// use swarmkeep::*;
///
/// async fn leechers(store: &dyn AsyncTorrentRepository, torrent: &InfoHash) -> Result<u32, Unavailable> {
///     Ok(store.scrape(torrent).await?.incomplete)
/// }
/// # use std::{pin::pin, task::{Context, Poll, Waker}};
/// # let store = Immediate(Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?);
/// # let (torrent, mut context) = (InfoHash::new([7; 20]), Context::from_waker(Waker::noop()));
/// # assert_eq!(pin!(leechers(&store, &torrent)).poll(&mut context), Poll::Ready(Ok(0)));
/// # Ok::<(), ConfigError>(())
/// ```
pub trait AsyncTorrentRepository: fmt::Debug + Send + Sync {
    /// See [`TorrentRepository::announce`].
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced>;

    /// See [`TorrentRepository::announce_batch`].
    fn announce_batch<'a>(
        &'a self,
        batch: &'a mut [Request<'_>],
        now: Timestamp,
        rng: &'a mut dyn Random,
    ) -> Answer<'a, ()> {
        Box::pin(defaults::announce_one_by_one(self, batch, now, rng))
    }

    /// See [`TorrentRepository::scrape`].
    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats>;

    /// See [`TorrentRepository::totals`].
    fn totals(&self) -> Answer<'_, Totals>;

    /// See [`TorrentRepository::walk`].
    fn walk<'a>(&'a self, from: Cursor, limit: usize, out: &'a mut Vec<SwarmSummary>) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::page`]. After an error, or if the future is dropped, `out` may hold more
    /// swarms than before, in any order.
    fn page<'a>(
        &'a self,
        after: Option<&'a InfoHash>,
        limit: usize,
        out: &'a mut Vec<SwarmSummary>,
    ) -> Answer<'a, ()> {
        Box::pin(defaults::page_by_walking(self, after, limit, out))
    }

    /// See [`TorrentRepository::peers`].
    fn peers<'a>(
        &'a self,
        info_hash: &'a InfoHash,
        from: Cursor,
        limit: usize,
        out: &'a mut Vec<PeerRecord>,
    ) -> Answer<'a, Cursor>;

    /// See [`TorrentRepository::advance`].
    fn advance(&self, now: Timestamp) -> Answer<'_, Timestamp>;

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
    ) -> Answer<'a, Removed> {
        Box::pin(defaults::remove_by_walking(self, forbidden, from, budget))
    }

    /// See [`TorrentRepository::restore`].
    fn restore<'a>(
        &'a self,
        swarm: &'a SwarmSummary,
        peers: &'a [PeerRecord],
        now: Timestamp,
    ) -> Answer<'a, Restored>;

    /// See [`TorrentRepository::export`].
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

/// A synchronous store behind the asynchronous trait. Every future is ready when it is first polled, except
/// the future of a long sweep.
#[derive(Debug, Clone)]
pub struct Immediate<R>(pub R);

macro_rules! answer_of {
    ($store:ident, $method:expr, $call:expr) => {
        answer(async move { $call })
    };
}

impl<R: TorrentRepository> AsyncTorrentRepository for Immediate<R> {
    fn announce<'a>(
        &'a self,
        announce: &'a Announce,
        now: Timestamp,
        rng: &'a mut dyn Random,
        peers: &'a mut PeerBuffer<'_>,
    ) -> Answer<'a, Announced> {
        Box::pin(async move { Ok(self.0.announce(announce, now, rng, peers)) })
    }

    fn scrape<'a>(&'a self, info_hash: &'a InfoHash) -> Answer<'a, SwarmStats> {
        Box::pin(async move { Ok(self.0.scrape(info_hash)) })
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Answer<'_, Swept> {
        answer(sweep_in_turns(budget, move |budget| ready(self.0.sweep(now, policy, budget))))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    forward_asynchronous! { |store| store.0 => answer_of!, except announce, scrape, sweep }
}

/// Returns the answer of a store that can always be reached. It moves the call: announces and scrapes, of
/// which there are many, do without it.
pub(crate) fn answer<'a, T>(call: impl Future<Output = T> + Send + 'a) -> Answer<'a, T> {
    Box::pin(async { Ok(call.await) })
}

/// Returns the output of a future that is ready when it is first polled: the future of an [`Immediate`]
/// store, or of a store with locks that block.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing in it waits for another poll"),
    }
}

/// The number of visits after which an asynchronous sweep gives way to other tasks: less than a millisecond.
const VISITS_PER_TURN: usize = 4096;

/// Sweeps in steps, and gives way to other tasks between two of them.
pub(crate) async fn sweep_in_turns<F: Future<Output = Swept>>(
    budget: Budget,
    sweep: impl Fn(Budget) -> F,
) -> Swept {
    let (mut all, mut left) = (Swept::default(), budget.get());
    loop {
        let turn = left.min(VISITS_PER_TURN);
        let swept = sweep(Budget::peers(turn)).await;
        all += swept;
        left -= turn;
        // If a step visits nothing, other callers have claimed the rest of the pass.
        if left == 0 || swept.pass_complete || swept.visited == 0 {
            return all;
        }
        give_way().await;
    }
}

/// Waits until the other tasks of the thread had their turn.
async fn give_way() {
    let mut gave = false;
    let poll = |context: &mut Context<'_>| {
        if mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    };
    poll_fn(poll).await;
}
