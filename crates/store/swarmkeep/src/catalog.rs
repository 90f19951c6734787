//! The list of implementations. Tests, benches, the command line and the documents are made from it: a new
//! store is its file, its `mod` line and its row here.
//!
//! The first row of a family stands for it: [`find`] takes the family's name for it. No choice of locks
//! within a family stands out of the noise, except that tokio's cost more.

use std::{fmt, sync::Arc};

#[cfg(feature = "dashmap")]
use crate::dash_map::DashMapRepository;
#[cfg(feature = "skipmap")]
use crate::skip_map::SkipMapRepository;
use crate::{
    AsyncTorrentRepository, Capabilities, ConfigError, HashKey, Packed, RepositoryConfig, TorrentRepository,
    asynchronous::sweep_giving_way,
    btree_map::{BTreeMapOfLocks, BTreeMapRepository},
    implement::{
        async_repository,
        lock::{ParkingLotMutex, ParkingLotRwLock, StdMutex, StdRwLock},
    },
};
#[cfg(feature = "tokio")]
use crate::{
    implement::lock::{TokioMutex, TokioRwLock},
    implement::map::Awaited,
};

/// Makes the list, and the macro that goes through its names, of the rows below.
macro_rules! rows {
    ($(#[doc = $summary:literal] $(#[$cfg:meta])? $name:ident: $family:literal, $kind:ident, $store:ty;)*) => {
        /// Every implementation that the enabled features bring, the default one first.
        pub const ALL: &[Implementation] = &[
            $($(#[$cfg])? Implementation {
                name: {
                    const DASHED: [u8; stringify!($name).len()] = dashed(stringify!($name));
                    match std::str::from_utf8(&DASHED) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                },
                family: $family,
                summary: $summary.trim_ascii(),
                build: rows!(@$kind $store),
            },)*
        ];

        rows! { @export ($) $($name)* }
    };
    (@Sync $store:ty) => { Build::Sync(|config| Ok(Arc::new(<$store>::new(config)?))) };
    (@Async $store:ty) => { Build::Async(|config| Ok(Arc::new(Awaited(<$store>::new(config)?)))) };
    (@export ($d:tt) $($name:ident)*) => {
        /// Calls a macro with the name of every implementation of the catalog as an identifier: `packed
        /// btreemap_rwlock_std …`, whatever features are enabled. `-` in a name is `_` here.
        #[macro_export]
        macro_rules! for_each_implementation {
            ($d callback:ident) => { $d callback! { $($name)* } };
        }
    };
}

rows! {
    /// Sharded, packed peers: the default.
    packed: "packed", Sync, Packed;

    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_parking_lot_mutex_parking_lot: "btreemap", Sync, BTreeMapOfLocks<ParkingLotRwLock, ParkingLotMutex>;
    /// A B-tree behind one lock.
    btreemap_rwlock_std: "btreemap", Sync, BTreeMapRepository<StdRwLock>;
    /// A B-tree behind one lock.
    btreemap_rwlock_parking_lot: "btreemap", Sync, BTreeMapRepository<ParkingLotRwLock>;
    /// A B-tree behind one lock.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_tokio: "btreemap", Async, BTreeMapRepository<TokioRwLock>;

    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_std_mutex_std: "btreemap", Sync, BTreeMapOfLocks<StdRwLock, StdMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_std_mutex_parking_lot: "btreemap", Sync, BTreeMapOfLocks<StdRwLock, ParkingLotMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_std_mutex_tokio: "btreemap", Async, BTreeMapOfLocks<StdRwLock, TokioMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_std_rwlock_parking_lot: "btreemap", Sync, BTreeMapOfLocks<StdRwLock, ParkingLotRwLock>;

    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_parking_lot_mutex_std: "btreemap", Sync, BTreeMapOfLocks<ParkingLotRwLock, StdMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_parking_lot_mutex_tokio: "btreemap", Async, BTreeMapOfLocks<ParkingLotRwLock, TokioMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    btreemap_rwlock_parking_lot_rwlock_parking_lot: "btreemap", Sync, BTreeMapOfLocks<ParkingLotRwLock, ParkingLotRwLock>;

    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_tokio_mutex_std: "btreemap", Async, BTreeMapOfLocks<TokioRwLock, StdMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_tokio_mutex_parking_lot: "btreemap", Async, BTreeMapOfLocks<TokioRwLock, ParkingLotMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_tokio_mutex_tokio: "btreemap", Async, BTreeMapOfLocks<TokioRwLock, TokioMutex>;
    /// A B-tree behind a lock, and a lock around each swarm.
    #[cfg(feature = "tokio")]
    btreemap_rwlock_tokio_rwlock_parking_lot: "btreemap", Async, BTreeMapOfLocks<TokioRwLock, ParkingLotRwLock>;

    /// A lock-free skip list, and a lock around each swarm.
    #[cfg(feature = "skipmap")]
    skipmap_mutex_parking_lot: "skipmap", Sync, SkipMapRepository<ParkingLotMutex>;
    /// A lock-free skip list, and a lock around each swarm.
    #[cfg(feature = "skipmap")]
    skipmap_mutex_std: "skipmap", Sync, SkipMapRepository<StdMutex>;
    /// A lock-free skip list, and a lock around each swarm.
    #[cfg(feature = "skipmap")]
    skipmap_rwlock_parking_lot: "skipmap", Sync, SkipMapRepository<ParkingLotRwLock>;

    /// A sharded hash map, and a lock around each swarm.
    #[cfg(feature = "dashmap")]
    dashmap_mutex_parking_lot: "dashmap", Sync, DashMapRepository<ParkingLotMutex>;
    /// A sharded hash map, and a lock around each swarm.
    #[cfg(feature = "dashmap")]
    dashmap_mutex_std: "dashmap", Sync, DashMapRepository<StdMutex>;
    /// A sharded hash map, and a lock around each swarm.
    #[cfg(feature = "dashmap")]
    dashmap_rwlock_parking_lot: "dashmap", Sync, DashMapRepository<ParkingLotRwLock>;
}

/// One implementation: what it is called, what it is, and how to build it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Implementation {
    /// Its name on command lines and in tables: lower case, parts joined by `-`.
    pub name: &'static str,
    /// The kind of store, of which the catalog may hold several with different locks.
    pub family: &'static str,
    /// One line about it.
    pub summary: &'static str,
    build: Build,
}

/// How an implementation is built.
#[derive(Clone, Copy)]
enum Build {
    Sync(fn(&RepositoryConfig) -> Result<Arc<dyn TorrentRepository>, ConfigError>),
    Async(fn(&RepositoryConfig) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError>),
}

impl Implementation {
    /// A row for a synchronous store that this crate does not know.
    pub const fn synchronous(
        name: &'static str,
        family: &'static str,
        summary: &'static str,
        build: fn(&RepositoryConfig) -> Result<Arc<dyn TorrentRepository>, ConfigError>,
    ) -> Self {
        Self { name, family, summary, build: Build::Sync(build) }
    }

    /// A row for an asynchronous store that this crate does not know.
    pub const fn asynchronous(
        name: &'static str,
        family: &'static str,
        summary: &'static str,
        build: fn(&RepositoryConfig) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError>,
    ) -> Self {
        Self { name, family, summary, build: Build::Async(build) }
    }

    /// Builds an empty repository.
    ///
    /// # Errors
    /// [`ConfigError`] if the store cannot keep what `config` asks for.
    pub fn build(&self, config: &RepositoryConfig) -> Result<Repository, ConfigError> {
        match self.build {
            Build::Sync(build) => build(config).map(Repository::Sync),
            Build::Async(build) => build(config).map(Repository::Async),
        }
    }

    /// What it declares, and which limits it keeps ([`Capabilities::bounded`]), with the default lifetime and
    /// as many shards as it takes by itself. Costs as much as an empty store.
    pub fn capabilities(&self) -> Capabilities {
        let config = RepositoryConfig::new(HashKey::from_bytes([0; 16]));
        self.build(&config).expect("every store keeps the defaults").capabilities()
    }

    /// Whether it stands for its family.
    pub fn is_first_of_its_family(&self) -> bool {
        find(self.family).is_some_and(|first| first.name == self.name)
    }

    /// Whether it has to be awaited.
    pub const fn is_async(&self) -> bool {
        matches!(self.build, Build::Async(_))
    }
}

impl fmt::Debug for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A repository chosen at run time.
///
/// It is an [`AsyncTorrentRepository`], so that a caller that can wait calls both variants alike. Each such
/// call allocates a future. A caller that must not pay for that matches once, when it is built, and then
/// calls the store inside.
#[derive(Debug, Clone)]
pub enum Repository {
    /// A store that answers at once.
    Sync(Arc<dyn TorrentRepository>),
    /// A store that has to be awaited.
    Async(Arc<dyn AsyncTorrentRepository>),
}

impl Repository {
    /// The store, if it answers at once.
    #[must_use]
    pub const fn as_sync(&self) -> Option<&Arc<dyn TorrentRepository>> {
        match self {
            Self::Sync(store) => Some(store),
            Self::Async(_) => None,
        }
    }
}

macro_rules! either {
    (@plain $this:ident, $method:ident) => {
        match $this {
            Self::Sync(store) => store.$method(),
            Self::Async(store) => store.$method(),
        }
    };
    ($this:ident, sweep $(, $argument:ident)*) => {
        match $this {
            Self::Sync(store) => sweep_giving_way(store $(, $argument)*),
            Self::Async(store) => store.sweep($($argument),*),
        }
    };
    ($this:ident, $method:ident $(, $argument:ident)*) => {
        match $this {
            Self::Sync(store) => Box::pin(async move { Ok(store.$method($($argument),*)) }),
            Self::Async(store) => store.$method($($argument),*),
        }
    };
}
async_repository! { [] Repository, either }

/// The implementation called `name`, or the one that stands for the family of this name, if this build has
/// it.
pub fn find(name: &str) -> Option<&'static Implementation> {
    let named = ALL.iter().find(|implementation| implementation.name == name);
    named.or_else(|| ALL.iter().find(|implementation| implementation.family == name))
}

/// All that [`find`] finds: the names of the rows, and then those of the families that no row has.
pub fn names() -> impl Iterator<Item = &'static str> {
    let families = ALL.iter().filter(|row| row.is_first_of_its_family() && row.name != row.family);
    ALL.iter().map(|row| row.name).chain(families.map(|row| row.family))
}

/// The name of a row as it is written on a command line.
const fn dashed<const N: usize>(name: &str) -> [u8; N] {
    let (mut dashed, mut at) = ([0; N], 0);
    while at < N {
        dashed[at] = if name.as_bytes()[at] == b'_' { b'-' } else { name.as_bytes()[at] };
        at += 1;
    }
    dashed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_find_their_rows() {
        for implementation in ALL {
            assert_eq!(find(implementation.name).unwrap().summary, implementation.summary);
            assert_eq!(ALL.iter().filter(|other| other.name == implementation.name).count(), 1);
            assert!(implementation.name.starts_with(implementation.family), "{implementation:?}");
        }
        assert_eq!(ALL[0].name, "packed");
        assert!(find("btreemap-rwlock-std-mutex-parking-lot").is_some());
        assert!(find("hashmap").is_none());
    }

    #[test]
    fn a_family_is_found_by_its_name_and_tells_what_it_keeps() {
        for implementation in ALL {
            let first = find(implementation.family).unwrap();
            assert_eq!(first.family, implementation.family);
            assert!(first.is_first_of_its_family());
            let (bounded, of_first) = (implementation.capabilities().bounded, first.capabilities().bounded);
            assert_eq!(bounded, of_first, "{implementation:?}");
        }
        assert!(names().all(|name| find(name).is_some()));
        assert_eq!(names().count(), ALL.len() + 3);
        assert_eq!(find("btreemap").unwrap().name, "btreemap-rwlock-parking-lot-mutex-parking-lot");
        assert!(find("packed").unwrap().capabilities().bounded.is_all());
        assert!(!find("btreemap").unwrap().capabilities().bounded.is_all());
    }
}
