//! The same repository for stores that must wait: tokio's locks, or another machine.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{__methods, TorrentRepository, implement::async_repository};

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
///
/// An announce allocates its boxed future and nothing else. After an error of `announce_batch`, requests
/// without an answer may have taken effect. After an error of `export`, or if its future is dropped, the next
/// step continues after the last record read, and [`Export::records`](crate::Export::records) holds what was
/// read until then.
pub trait AsyncTorrentRepository: fmt::Debug + Send + Sync {
    __methods! { __await_methods [] }
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
