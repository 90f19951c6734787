//! How many connections the session may have: callers and calls of its own have a part that is theirs.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The permits of all connections of a session.
#[derive(Debug)]
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    callers: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

/// The permit for one connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _permits: [OwnedSemaphorePermit; 2],
}

/// Of `most` connections, those that callers may have at most, and calls of one's own: each side has a quarter that
/// the other never takes.
pub(crate) const fn for_one_side(most: usize) -> usize {
    most - most / 4
}

impl Permits {
    pub(crate) fn new(most: usize) -> Self {
        let side = || Arc::new(Semaphore::new(for_one_side(most)));
        Self { all: Arc::new(Semaphore::new(most)), callers: side(), calls: side() }
    }

    /// For a caller, who does not wait.
    pub(crate) fn caller(&self) -> Option<Permit> {
        let caller = Arc::clone(&self.callers).try_acquire_owned().ok()?;
        let any = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Permit { _permits: [caller, any] })
    }

    /// For a call of one's own, when there is one.
    pub(crate) async fn call(&self) -> Result<Permit, AcquireError> {
        let call = Arc::clone(&self.calls).acquire_owned().await?;
        Ok(Permit { _permits: [call, Arc::clone(&self.all).acquire_owned().await?] })
    }
}
