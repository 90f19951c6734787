//! The state that all requests to the admin server share.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Mutex, Semaphore, watch},
    time::{MissedTickBehavior, interval},
};

use super::{
    census::Census,
    history::History,
    pace::Pace,
    queries::StoreQueries,
    stats::{Identity, Sample},
};
use crate::{
    Config, Control, Error,
    tokens::{Key, Tokens},
};

/// The time between two samples.
const STEP: Duration = Duration::from_secs(1);

/// The number of steps for rates and latencies.
const WINDOW: usize = 5;

/// The most clients that listen to events at a time.
const MOST_LISTENERS: usize = 16;

/// The most full scrapes at a time. Each takes some 20 MiB.
const MOST_FULL_SCRAPES: usize = 2;

/// The shared state of all requests.
#[derive(Debug)]
pub(super) struct AdminState {
    pub(super) control: Control,
    pub(super) identity: Identity,
    /// The names of the admin server.
    pub(super) hosts: Vec<String>,
    pub(super) tokens: Tokens,
    pub(super) key: Key,
    pub(super) pace: Pace,
    pub(super) store: StoreQueries,
    pub(super) latest: watch::Sender<Arc<Sample>>,
    pub(super) history: History,
    pub(super) census: Census,
    /// One permit for each client that may listen to events.
    pub(super) listeners: Arc<Semaphore>,
    /// One permit for each full scrape that may be under way.
    pub(super) scrapes: Arc<Semaphore>,
    /// Held by the edit of a list that is under way.
    pub(super) editing: Arc<Mutex<()>>,
    pub(super) stopping: watch::Sender<bool>,
}

impl AdminState {
    pub(super) fn new(config: &Config, control: &Control) -> Result<Self, Error> {
        Ok(Self {
            identity: Identity {
                store_name: config.repository_name.clone(),
                store_limit: config.store_limit,
                node: config.node.clone(),
                started: SystemTime::now(),
            },
            hosts: config.admin_hosts.clone(),
            tokens: Tokens::new(config.admin_tokens.clone()),
            key: Key::drawn().map_err(Error::NoEntropy)?,
            pace: Pace::new(),
            store: StoreQueries::new(control.repository.clone()),
            latest: watch::Sender::new(Arc::new(Sample::before_any(control))),
            history: History::default(),
            census: Census::default(),
            listeners: Arc::new(Semaphore::new(MOST_LISTENERS)),
            scrapes: Arc::new(Semaphore::new(MOST_FULL_SCRAPES)),
            editing: Arc::default(),
            stopping: watch::Sender::new(false),
            control: control.clone(),
        })
    }

    /// The latest sample.
    pub(super) fn latest(&self) -> Arc<Sample> {
        Arc::clone(&self.latest.borrow())
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Takes samples and, while clients ask for them, censuses.
    pub(super) async fn gather_for_ever(&self) -> Infallible {
        let is_listened_to = || self.listeners.available_permits() < MOST_LISTENERS;
        tokio::select! {
            never = self.sample_for_ever() => never,
            never = self.census.walk_for_ever(&self.store, is_listened_to) => never,
        }
    }

    async fn sample_for_ever(&self) -> Infallible {
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut recent = VecDeque::from([self.latest()]);
        loop {
            steps.tick().await;
            let (wrong_tokens, last_answer) = (self.tokens.wrong(), self.latest().answered);
            let sample =
                Sample::take(&self.control, &self.identity, wrong_tokens, &recent[0], last_answer).await;
            let sample = Arc::new(sample);
            self.history.add(&sample);
            self.latest.send_replace(Arc::clone(&sample));
            recent.push_back(sample);
            if recent.len() > WINDOW {
                recent.pop_front();
            }
        }
    }
}
