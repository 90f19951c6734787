//! Many torrents with one tracker: announces wait in a queue, and a failure is for all of them.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::announce::TrackerError;

/// Lets a limited number of announces ask one tracker at a time. The others wait. When the tracker turns out
/// to be silent, they all get that error: one by one, a thousand torrents would take hours to find out.
#[derive(Debug)]
pub(super) struct TurnQueue {
    turns: Semaphore,
    silent: Mutex<Option<(Instant, TrackerError)>>,
}

impl TurnQueue {
    pub(super) fn new(at_once: usize) -> Self {
        Self { turns: Semaphore::new(at_once), silent: Mutex::default() }
    }

    /// Waits for a turn. Fails if another announce has found out since `asked` that the tracker is silent.
    pub(super) async fn turn(&self, asked: Instant) -> Result<SemaphorePermit<'_>, TrackerError> {
        let permit = self.turns.acquire().await.expect("it is never closed");
        self.check(asked)?;
        Ok(permit)
    }

    /// Fails if another announce has found out since `asked` that the tracker is silent.
    pub(super) fn check(&self, asked: Instant) -> Result<(), TrackerError> {
        match &*self.silent.lock() {
            Some((found_out, error)) if *found_out >= asked => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Passes the error to all announces that wait.
    pub(super) fn is_silent(&self, error: &TrackerError) {
        *self.silent.lock() = Some((Instant::now(), error.clone()));
    }
}

/// The state of trackers, or of hosts: of all that are in use, and of some others.
#[derive(Debug)]
pub(super) struct Cache<K, V>(Mutex<HashMap<K, Arc<V>>>);

/// Beyond this number, unused values are dropped. Idle connections are among them.
const MOST_UNUSED: usize = 1024;

impl<K: Eq + Hash, V> Cache<K, V> {
    /// The value of `key`, which `new` makes if there is none.
    pub(super) fn get(&self, key: K, new: impl FnOnce() -> V) -> Arc<V> {
        let mut cache = self.0.lock();
        if cache.len() >= MOST_UNUSED && !cache.contains_key(&key) {
            cache.retain(|_, value| Arc::strong_count(value) > 1);
        }
        Arc::clone(cache.entry(key).or_insert_with(|| Arc::new(new())))
    }

    pub(super) fn find(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().get(key).map(Arc::clone)
    }

    pub(super) fn all(&self) -> Vec<Arc<V>> {
        self.0.lock().values().map(Arc::clone).collect()
    }
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_stay_and_the_number_of_others_is_limited() {
        let cache = Cache::default();
        let used = cache.get(usize::MAX, || 0);
        for key in 0..10 * MOST_UNUSED {
            assert_eq!(*cache.get(key, || key), key);
            assert!(cache.all().len() <= MOST_UNUSED);
        }
        assert!(Arc::ptr_eq(&used, &cache.get(usize::MAX, || 1)));
    }
}
