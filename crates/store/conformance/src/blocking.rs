//! An asynchronous store behind the synchronous trait, so that the same cases test it.

use std::{future::Future, sync::Arc};

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
    forward_repository! { |blocking| blocking.0 => available, except scrape_batch, capabilities }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// Blocks the thread until the call of an asynchronous store is ready.
pub(crate) fn wait<T>(answer: impl Future<Output = T>) -> T {
    pollster::block_on(tokio::task::unconstrained(answer))
}

fn available<T>(answer: impl Future<Output = Result<T, Unavailable>>) -> T {
    wait(answer).unwrap_or_else(|error| panic!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the store is unavailable: gone")]
    fn an_unavailable_store_fails_the_case() {
        available::<()>(async { Err(Unavailable::new("gone")) });
    }
}
