//! The resources that the torrents of a session share: one store, the same limits, and tasks.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use swarmkeep_content::stripe_cache::StripeCache;
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{config::SessionConfig, picker::PeerKey, rate::Limiter};

#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) config: SessionConfig,
    pub(crate) store: Arc<StripeCache>,
    pub(crate) up: Limiter,
    pub(crate) down: Limiter,
    listens: Vec<SocketAddr>,
    keys: AtomicU64,
    /// Whether something was written that is not known to be durable.
    pub(crate) unflushed: AtomicBool,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Whether content is being read for its hashes: one read at a time for the whole session.
    pub(crate) hashing: Arc<Semaphore>,
}

impl Resources {
    /// Remote peers connect to the addresses of `listens`.
    pub(crate) fn new(config: SessionConfig, store: Arc<StripeCache>, listens: Vec<SocketAddr>) -> Self {
        Self {
            store,
            up: Limiter::new(config.up),
            down: Limiter::new(config.down),
            listens,
            keys: AtomicU64::new(0),
            unflushed: AtomicBool::new(false),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            hashing: Arc::new(Semaphore::new(1)),
            config,
        }
    }

    pub(crate) fn next_key(&self) -> PeerKey {
        PeerKey(self.keys.fetch_add(1, Relaxed))
    }

    /// The port to which remote peers connect over IPv4 or over IPv6, if there is one.
    pub(crate) fn port(&self, v4: bool) -> Option<u16> {
        self.listens.iter().find(|address| address.is_ipv4() == v4).map(SocketAddr::port)
    }

    /// Runs a task until the session is stopped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(task).await });
    }

    /// Runs `work`, which may block, on a thread of its own; a session that is stopped waits for it.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_blocking(work)
    }
}
