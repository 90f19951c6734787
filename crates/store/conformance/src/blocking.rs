//! An asynchronous store behind the synchronous trait, so that the same cases test it.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use swarmkeep::{
    AsyncTorrentRepository, Capabilities, TorrentRepository, Unavailable, implement::forward_repository,
};

/// An asynchronous store with calls that block the calling thread until they are ready, for tests outside a
/// runtime.
///
/// Futures are polled under [`tokio::task::unconstrained`]: without it the locks of tokio return `Pending`
/// after 128 operations, in favor of other tasks of a runtime that does not exist here.
///
/// # Panics
/// Every method panics if the store returns [`Unavailable`], which fails the case that called it.
#[derive(Debug)]
pub struct Blocking<A: ?Sized>(Arc<A>);

impl<A: AsyncTorrentRepository + ?Sized> Blocking<A> {
    /// Returns the store with a synchronous interface.
    pub const fn new(store: Arc<A>) -> Self {
        Self(store)
    }
}

impl<A: AsyncTorrentRepository + ?Sized> TorrentRepository for Blocking<A> {
    forward_repository! { |blocking| blocking.0 => available, except capabilities }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// Blocks the thread until the call of an asynchronous store is ready.
pub(crate) fn wait<T>(answer: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut answer = pin!(tokio::task::unconstrained(answer));
    // Most calls are ready at once, and then no wake-up is needed.
    if let Poll::Ready(answer) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return answer;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

fn available<T>(answer: impl Future<Output = Result<T, Unavailable>>) -> T {
    wait(answer).unwrap_or_else(|error| panic!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_that_is_not_ready_at_once_is_waited_for() {
        let mut polls = 0;
        let third_time = std::future::poll_fn(|context| {
            polls += 1;
            let waker = context.waker().clone();
            // Late, so that the caller sleeps by then.
            thread::spawn(move || {
                thread::sleep(std::time::Duration::from_millis(20));
                waker.wake();
            });
            if polls < 3 { Poll::Pending } else { Poll::Ready(polls) }
        });
        assert_eq!(wait(third_time), 3);
    }

    #[test]
    #[should_panic(expected = "the store is unavailable: gone")]
    fn an_unavailable_store_fails_the_case() {
        available::<()>(async { Err(Unavailable::new("gone")) });
    }
}
