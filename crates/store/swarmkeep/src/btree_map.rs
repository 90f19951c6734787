//! Swarms in the B-tree of the standard library under one lock. The tree contains the swarms themselves, or a
//! slot with a lock per swarm.

use std::{collections::BTreeMap, fmt, ops::Bound, sync::Arc};

use crate::{
    Capabilities, ConfigError, InfoHash, LongestHold, PageCost, RepositoryConfig,
    implement::{
        RecordSwarm, VISITS_PER_HOLD,
        lock::{Blocks, Lock, LockFamily},
        map::{BlockingMap, BlockingSlots, LockedSlot, MapRepository, Order, SlotMap, Slots, SwarmMap},
    },
};

/// A B-tree of swarms behind one lock of family `O`. An announce holds the lock exclusively.
pub type BTreeMapRepository<O> = MapRepository<Tree<O, RecordSwarm>>;

/// A B-tree of slots, with a lock of family `O` around the tree, which announces share, and one of family `E`
/// around each swarm.
pub type BTreeMapOfLocks<O, E> = MapRepository<Slots<Tree<O, Arc<LockedSlot<E>>>, E>>;

/// A B-tree behind a lock.
pub struct Tree<O: LockFamily, V: Send + Sync>(O::Lock<BTreeMap<InfoHash, V>>);

impl<O: LockFamily> BTreeMapRepository<O> {
    /// Returns an empty repository.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit other than that on the endpoints of an address is set, or if the lifetime
    /// is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        build(Tree::empty(), config)
    }
}

impl<O: LockFamily, E: LockFamily> BTreeMapOfLocks<O, E> {
    /// Returns an empty repository.
    ///
    /// # Errors
    /// [`ConfigError`] if a limit other than that on the endpoints of an address is set, or if the lifetime
    /// is not whole seconds.
    pub fn new(config: &RepositoryConfig) -> Result<Self, ConfigError> {
        build(Slots::new(Tree::empty()), config)
    }
}

fn build<M>(map: M, config: &RepositoryConfig) -> Result<MapRepository<M>, ConfigError> {
    let capabilities =
        Capabilities::new(LongestHold::Visits(VISITS_PER_HOLD)).with_page_cost(PageCost::Ordered);
    // B-tree nodes are about 70 % full.
    MapRepository::over(map, config, capabilities, size_of::<(InfoHash, RecordSwarm)>() * 10 / 7)
}

impl<O: LockFamily, V: Send + Sync> Tree<O, V> {
    fn empty() -> Self {
        Self(Lock::new(BTreeMap::new()))
    }

    async fn keys_behind(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        let (end, mut after) = (out.len().saturating_add(limit), after.copied());
        while out.len() < end {
            let (start, hold) = (out.len(), VISITS_PER_HOLD.min(end - out.len()));
            let behind = (after.as_ref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            self.0
                .read(|tree| out.extend(tree.range::<InfoHash, _>(behind).take(hold).map(|(key, _)| key)))
                .await;
            if out.len() - start < hold {
                break;
            }
            after = out.last().copied();
        }
    }
}

impl<O: LockFamily, V: Send + Sync> fmt::Debug for Tree<O, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tree")
    }
}

impl<O: LockFamily> SwarmMap for Tree<O, RecordSwarm> {
    async fn read<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&RecordSwarm) -> R + Send,
    ) -> Option<R> {
        self.0.read(|tree| tree.get(info_hash).map(section)).await
    }

    async fn write<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm) -> R + Send,
    ) -> Option<R> {
        self.0.write(|tree| tree.get_mut(info_hash).map(section)).await
    }

    async fn enter<R: Send>(
        &self,
        info_hash: &InfoHash,
        section: impl FnOnce(&mut RecordSwarm, bool) -> R + Send,
    ) -> R {
        self.0
            .write(|tree| {
                let mut created = false;
                let swarm = tree.entry(*info_hash).or_insert_with(|| {
                    created = true;
                    RecordSwarm::default()
                });
                section(swarm, created)
            })
            .await
    }

    async fn remove_if<R: Send>(
        &self,
        info_hash: &InfoHash,
        condemn: impl FnOnce(&RecordSwarm) -> Option<R> + Send,
    ) -> Option<R> {
        let section = |tree: &mut BTreeMap<_, _>| {
            let result = condemn(tree.get(info_hash)?)?;
            Some((result, tree.remove(info_hash)))
        };
        // The swarm is dropped here, after the lock is released: freeing a large swarm takes milliseconds.
        self.0.write(section).await.map(|(result, _)| result)
    }

    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        self.keys_behind(after, limit, out).await;
    }
}

impl<O: Blocks> BlockingMap for Tree<O, RecordSwarm> {}

impl<O: LockFamily, T: Send + Sync> SlotMap<T> for Tree<O, Arc<T>> {
    async fn get(&self, info_hash: &InfoHash) -> Option<Arc<T>> {
        self.0.read(|tree| tree.get(info_hash).cloned()).await
    }

    async fn get_or_insert(&self, info_hash: &InfoHash, make: fn() -> T) -> Arc<T> {
        if let Some(slot) = self.get(info_hash).await {
            return slot;
        }
        self.0.write(|tree| tree.entry(*info_hash).or_insert_with(|| Arc::new(make())).clone()).await
    }

    async fn discard(&self, info_hash: &InfoHash, slot: &Arc<T>) {
        self.0
            .write(|tree| {
                if tree.get(info_hash).is_some_and(|found| Arc::ptr_eq(found, slot)) {
                    tree.remove(info_hash);
                }
            })
            .await;
    }

    async fn keys(&self, _: Order, after: Option<&InfoHash>, limit: usize, out: &mut Vec<InfoHash>) {
        self.keys_behind(after, limit, out).await;
    }
}

impl<O: Blocks, T: Send + Sync> BlockingSlots for Tree<O, T> {}
