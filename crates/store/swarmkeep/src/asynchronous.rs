//! The asynchronous trait: the same contract for stores that must wait, for a lock of tokio or for another
//! machine.

use std::{
    fmt,
    future::{Future, poll_fn, ready},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{__methods, Budget, Retention, Swept, Timestamp, TorrentRepository, implement::async_repository};

/// The future of an asynchronous call. Its output is the result of the synchronous method, or
/// [`Unavailable`].
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send + 'a>>;

/// The error of a store that could not be reached or did not answer in time. The call may or may not have
/// taken effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {reason}")]
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
    __methods! { __await_methods [] }
}

/// A synchronous store behind the asynchronous trait. Every future is ready when it is first polled, except
/// that of a long sweep.
#[derive(Debug, Clone)]
pub struct Immediate<R>(pub R);

/// Returns the output of a future that is ready when it is first polled: the future of an [`Immediate`]
/// store, or of a store whose locks block.
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

/// The sweep of a synchronous store behind the asynchronous trait.
pub(crate) fn sweep_giving_way<R: TorrentRepository + ?Sized>(
    store: &R,
    now: Timestamp,
    policy: Retention,
    budget: Budget,
) -> Answer<'_, Swept> {
    let sweep = move |budget| ready(store.sweep(now, policy, budget));
    Box::pin(async move { Ok(sweep_in_turns(budget, sweep).await) })
}

macro_rules! at_once {
    (@plain $this:ident, $method:ident) => { $this.0.$method() };
    ($this:ident, sweep $(, $argument:ident)*) => { sweep_giving_way(&$this.0 $(, $argument)*) };
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
