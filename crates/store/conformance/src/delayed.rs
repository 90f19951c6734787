//! A store that is slow or cannot be reached, for tests of its callers.

use std::fmt;

use swarmkeep::{
    Answer, AsyncTorrentRepository, Capabilities, catalog::Repository, implement::forward_asynchronous,
};

/// A store with calls that first wait for a future of the test, which gets the name of the method. If that
/// future fails, the call fails too.
pub struct Delayed {
    store: Repository,
    before: Box<dyn Fn(&'static str) -> Answer<'static, ()> + Send + Sync>,
}

impl Delayed {
    /// Returns `store` with `before` in front of each call.
    pub fn new(
        store: Repository,
        before: impl Fn(&'static str) -> Answer<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { store, before: Box::new(before) }
    }

    fn then<'a, T: 'a>(&self, method: &'static str, call: Answer<'a, T>) -> Answer<'a, T> {
        let before = (self.before)(method);
        Box::pin(async move {
            before.await?;
            call.await
        })
    }
}

impl fmt::Debug for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delayed").field(&self.store).finish()
    }
}

macro_rules! then {
    ($delayed:ident, $method:expr, $call:expr) => {
        $delayed.then($method, $call)
    };
}

impl AsyncTorrentRepository for Delayed {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    forward_asynchronous! { |delayed| delayed.store => then!, except page, remove_where, export, import }
}
