//! Swarms in the lock-free skip list of Crossbeam, each in a slot with its own lock.

use std::{fmt, iter, ops::Bound, sync::Arc};

use crossbeam_skiplist::{SkipMap, map::Entry};

use crate::{
    Capabilities, ConfigError, InfoHash, LongestHold, PageCost, RepositoryConfig,
    implement::{
        RecordSwarm, VISITS_PER_HOLD,
        lock::LockFamily,
        map::{BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots},
    },
};

/// A skip list of slots, each behind a lock of family `E`.
pub type SkipMapRepository<E> = MapRepository<Slots<SkipList<LockedSlot<E>>, E>>;

/// A skip list of slots.
pub struct SkipList<T>(SkipMap<InfoHash, Arc<T>>);

impl<E: LockFamily> SkipMapRepository<E>
where
    LockedSlot<E>: 'static,
{
    /// Returns an empty repository.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit other than that on the endpoints of an address is set, or if the lifetime
    /// is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let capabilities =
            Capabilities::new(LongestHold::Visits(VISITS_PER_HOLD)).with_page_cost(PageCost::Ordered);
        // Each node has a header of two words and a tower of pointers, 1.33 high on average.
        let bytes_per_swarm = size_of::<(InfoHash, Arc<RecordSwarm>, [usize; 6], RecordSwarm)>();
        Self::over(Slots::new(SkipList(SkipMap::new())), config, capabilities, bytes_per_swarm)
    }
}

impl<T> fmt::Debug for SkipList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SkipList")
    }
}

impl<T: Send + Sync + 'static> SlotMap<T> for SkipList<T> {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<T>> {
        self.0.get(info_hash).map(|entry| entry.value().clone())
    }

    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> Arc<T> {
        match self.0.get(info_hash) {
            Some(entry) => entry.value().clone(),
            None => self.0.get_or_insert_with(*info_hash, || Arc::new(make())).value().clone(),
        }
    }

    async fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) {
        // The entry refers to its own node: removing it never removes a later node with the same key.
        if let Some(entry) = self.0.get(info_hash).filter(|entry| Arc::ptr_eq(entry.value(), slot)) {
            entry.remove();
        }
    }

    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        // Not by `SkipMap::range`: in 0.1.3 it releases none of the nodes that it leaves, so that a swarm
        // which was listed is never freed (crossbeam-rs/crossbeam#1178).
        let first = self.0.lower_bound(after.map_or(Bound::Unbounded, Bound::Excluded));
        out.extend(iter::successors(first, Entry::next).take(limit).map(|entry| *entry.key()));
    }
}

impl<T> BlockingSlots for SkipList<T> {}
