//! How many connections the session may have: callers and calls of its own have a part that is theirs.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    let quarter = most / 4;
    most - if quarter == 0 && most > 1 { 1 } else { quarter }
}

impl Permits {
    pub(crate) fn new(most: usize) -> Self {
        let side = || Arc::new(Semaphore::new(for_one_side(most)));
        Self { all: Arc::new(Semaphore::new(most)), callers: side(), calls: side() }
    }

    /// For a call of the session's own or for a caller, if there is one.
    pub(crate) fn take(&self, called: bool) -> Option<Permit> {
        let side = if called { &self.calls } else { &self.callers };
        let side = Arc::clone(side).try_acquire_owned().ok()?;
        let any = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Permit { _permits: [side, any] })
    }
}
