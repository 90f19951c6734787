//! The asynchronous trait: the same contract for stores that must wait, for a lock of tokio or for another
//! machine.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{__methods, TorrentRepository, implement::async_repository};

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
/// An announce allocates its boxed future and nothing else. After an error of `announce_batch`, requests
/// without an answer may have taken effect. After an error of `export`, or if its future is dropped, the next
/// step continues after the last record that was read, and [`Export::records`](crate::Export::records)
/// contains the records that were read before the error.
pub trait AsyncTorrentRepository: fmt::Debug + Send + Sync {
    __methods! { __await_methods [] }
}

/// A synchronous store behind the asynchronous trait. Every future is ready when it is first polled.
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
