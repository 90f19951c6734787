//! The limit of a session's connections: incoming and outgoing ones each have a share of their own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    incoming: Arc<Semaphore>,
    outgoing: Arc<Semaphore>,
}

/// The permit for one connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _permits: [OwnedSemaphorePermit; 2],
}

/// The most incoming connections, and the most outgoing ones, if `most` are allowed in all: a quarter is
/// always kept for the other side.
pub(crate) const fn for_one_side(most: usize) -> usize {
    let quarter = most / 4;
    most - if quarter == 0 && most > 1 { 1 } else { quarter }
}

impl Permits {
    pub(crate) fn new(most: usize) -> Self {
        let side = || Arc::new(Semaphore::new(for_one_side(most)));
        Self { all: Arc::new(Semaphore::new(most)), incoming: side(), outgoing: side() }
    }

    /// A permit for an outgoing or an incoming connection; `None` if there is none.
    pub(crate) fn take(&self, outgoing: bool) -> Option<Permit> {
        let side = if outgoing { &self.outgoing } else { &self.incoming };
        let side = Arc::clone(side).try_acquire_owned().ok()?;
        let any = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Permit { _permits: [side, any] })
    }
}
