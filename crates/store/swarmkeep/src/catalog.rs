//! The list of implementations. Tests, benches, the command line and the documents are made from it: a new
//! store is its file, its `mod` line and its row here.
//!
//! The first row of a family stands for it: [`find`] takes the family's name for it. No choice of locks
//! within a family stands out of the noise, except that tokio's cost more. The families `skipmap` and
//! `dashmap`, and the locks of `parking_lot` and `tokio`, are features of these names.

use std::{fmt, ops::Deref, sync::Arc};

use crate::{
    AsyncTorrentRepository, BoundedBy, ConfigError, Immediate, Packed, RepositoryConfig, TorrentRepository,
    btree_map::{BTreeMapOfLocks, BTreeMapRepository},
    implement::lock::*,
};

/// Makes the list, and the macro that goes through its names, of the rows below.
macro_rules! rows {
    ($(#[doc = $summary:literal] $family:literal $limits:tt {
        $($(#[$cfg:meta])? $name:ident: $kind:ident, $store:ty;)*
    })*) => {
        const ROWS: &[Implementation] = &[
            $($($(#[$cfg])? Implementation {
                name: {
                    const DASHED: [u8; stringify!($name).len()] = dashed(stringify!($name));
                    match std::str::from_utf8(&DASHED) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                },
                family: $family,
                summary: $summary.trim_ascii(),
                bounded: rows!(@bounded $limits),
                build: rows!(@$kind $store),
            },)*)*
        ];

        /// Every implementation that the enabled features bring, the default one first.
        ///
        /// | family | stores | limits |
        /// |---|---|---|
        $(#[doc = rows!(@document $family $summary $limits)])*
        // Not a constant: each crate that reads one compiles all stores in it again. So would the unit tests
        // here, which need none.
        pub static ALL: &[Implementation] = if cfg!(test) { &[] } else { ROWS };

        rows! { @export ($) $($($name)*)* }
    };
    (@document $family:literal $summary:literal [$($limit:ident)*]) => {
        concat!("| `", $family, "` |", $summary, " |", $(" [`", stringify!($limit), "`](BoundedBy::", stringify!($limit), ")",)* " |")
    };
    (@bounded [$($limit:ident)*]) => { BoundedBy::empty()$(.union(BoundedBy::$limit))* };
    (@Sync $store:ty) => { Build::Sync(|config| Ok(Arc::new(<$store>::new(config)?))) };
    (@Async $store:ty) => { Build::Async(|config| Ok(Arc::new(crate::implement::map::Awaited(<$store>::new(config)?)))) };
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
    "packed" [SWARMS PEERS_PER_SWARM ENDPOINTS_PER_ADDRESS BYTES] {
        packed: Sync, Packed;
    }

    /// A B-tree behind a lock, and a lock around each swarm.
    "btreemap" [ENDPOINTS_PER_ADDRESS] {
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_parking_lot_mutex_parking_lot: Sync, BTreeMapOfLocks<ParkingLotRwLock, ParkingLotMutex>;
        btreemap_rwlock_std_mutex_std: Sync, BTreeMapOfLocks<StdRwLock, StdMutex>;
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_std_mutex_parking_lot: Sync, BTreeMapOfLocks<StdRwLock, ParkingLotMutex>;
        #[cfg(feature = "tokio")]
        btreemap_rwlock_std_mutex_tokio: Async, BTreeMapOfLocks<StdRwLock, TokioMutex>;
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_std_rwlock_parking_lot: Sync, BTreeMapOfLocks<StdRwLock, ParkingLotRwLock>;
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_parking_lot_mutex_std: Sync, BTreeMapOfLocks<ParkingLotRwLock, StdMutex>;
        #[cfg(all(feature = "tokio", feature = "parking_lot"))]
        btreemap_rwlock_parking_lot_mutex_tokio: Async, BTreeMapOfLocks<ParkingLotRwLock, TokioMutex>;
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_parking_lot_rwlock_parking_lot: Sync, BTreeMapOfLocks<ParkingLotRwLock, ParkingLotRwLock>;
        #[cfg(feature = "tokio")]
        btreemap_rwlock_tokio_mutex_std: Async, BTreeMapOfLocks<TokioRwLock, StdMutex>;
        #[cfg(all(feature = "tokio", feature = "parking_lot"))]
        btreemap_rwlock_tokio_mutex_parking_lot: Async, BTreeMapOfLocks<TokioRwLock, ParkingLotMutex>;
        #[cfg(feature = "tokio")]
        btreemap_rwlock_tokio_mutex_tokio: Async, BTreeMapOfLocks<TokioRwLock, TokioMutex>;
        #[cfg(all(feature = "tokio", feature = "parking_lot"))]
        btreemap_rwlock_tokio_rwlock_parking_lot: Async, BTreeMapOfLocks<TokioRwLock, ParkingLotRwLock>;
    }

    /// A B-tree behind one lock.
    "btreemap" [ENDPOINTS_PER_ADDRESS] {
        btreemap_rwlock_std: Sync, BTreeMapRepository<StdRwLock>;
        #[cfg(feature = "parking_lot")]
        btreemap_rwlock_parking_lot: Sync, BTreeMapRepository<ParkingLotRwLock>;
        #[cfg(feature = "tokio")]
        btreemap_rwlock_tokio: Async, BTreeMapRepository<TokioRwLock>;
    }

    /// A lock-free skip list, and a lock around each swarm.
    "skipmap" [ENDPOINTS_PER_ADDRESS] {
        #[cfg(all(feature = "skipmap", feature = "parking_lot"))]
        skipmap_mutex_parking_lot: Sync, crate::skip_map::SkipMapRepository<ParkingLotMutex>;
        #[cfg(feature = "skipmap")]
        skipmap_mutex_std: Sync, crate::skip_map::SkipMapRepository<StdMutex>;
        #[cfg(all(feature = "skipmap", feature = "parking_lot"))]
        skipmap_rwlock_parking_lot: Sync, crate::skip_map::SkipMapRepository<ParkingLotRwLock>;
    }

    /// A sharded hash map, and a lock around each swarm.
    "dashmap" [ENDPOINTS_PER_ADDRESS] {
        #[cfg(all(feature = "dashmap", feature = "parking_lot"))]
        dashmap_mutex_parking_lot: Sync, crate::dash_map::DashMapRepository<ParkingLotMutex>;
        #[cfg(feature = "dashmap")]
        dashmap_mutex_std: Sync, crate::dash_map::DashMapRepository<StdMutex>;
        #[cfg(all(feature = "dashmap", feature = "parking_lot"))]
        dashmap_rwlock_parking_lot: Sync, crate::dash_map::DashMapRepository<ParkingLotRwLock>;
    }
}

/// One implementation: its name, its properties, and the function that builds it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Implementation {
    /// Its name on command lines and in tables: lower case, parts joined by `-`.
    pub name: &'static str,
    /// The kind of store, of which the catalog may hold several with different locks.
    pub family: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// The limits that it supports.
    pub bounded: BoundedBy,
    build: Build,
}

/// How an implementation is built.
#[derive(Clone, Copy)]
pub enum Build {
    /// A store that answers at once.
    Sync(fn(&RepositoryConfig) -> Result<Arc<dyn TorrentRepository>, ConfigError>),
    /// A store that has to be awaited.
    Async(fn(&RepositoryConfig) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError>),
}

impl Implementation {
    /// A row for a store that this crate does not know.
    pub const fn new(
        name: &'static str,
        family: &'static str,
        summary: &'static str,
        bounded: BoundedBy,
        build: Build,
    ) -> Self {
        Self { name, family, summary, bounded, build }
    }

    /// Builds an empty repository.
    ///
    /// # Errors
    /// [`ConfigError`] if the store does not support a value of `config`.
    pub fn build(&self, config: &RepositoryConfig) -> Result<Repository, ConfigError> {
        match self.build {
            Build::Sync(build) => build(config).map(|store| Repository::Sync(Immediate(store))),
            Build::Async(build) => build(config).map(Repository::Async),
        }
    }
}

impl fmt::Debug for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A repository chosen at run time.
///
/// It points to an [`AsyncTorrentRepository`], so that a caller that can wait calls both variants alike. Each
/// such call allocates a future. A caller that must not pay for that matches once, when it is built, and then
/// calls the store inside.
#[derive(Debug, Clone)]
pub enum Repository {
    /// A store that answers at once.
    Sync(Immediate<Arc<dyn TorrentRepository>>),
    /// A store that has to be awaited.
    Async(Arc<dyn AsyncTorrentRepository>),
}

impl Repository {
    /// The store, if it answers at once.
    #[must_use]
    pub const fn as_sync(&self) -> Option<&Arc<dyn TorrentRepository>> {
        match self {
            Self::Sync(Immediate(store)) => Some(store),
            Self::Async(_) => None,
        }
    }
}

impl Deref for Repository {
    type Target = dyn AsyncTorrentRepository;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Sync(store) => store,
            Self::Async(store) => &**store,
        }
    }
}

/// The implementation called `name`, or the one that stands for the family of this name, if this build has
/// it.
pub fn find(name: &str) -> Option<&'static Implementation> {
    find_in(ALL, name)
}

/// The same among other rows.
pub fn find_in<'a>(rows: &'a [Implementation], name: &str) -> Option<&'a Implementation> {
    let named = rows.iter().find(|implementation| implementation.name == name);
    named.or_else(|| rows.iter().find(|implementation| implementation.family == name))
}

/// All that [`find`] finds: the names of the rows, and then those of the families that no row has.
pub fn names() -> impl Iterator<Item = &'static str> {
    let is_first = |row: &&Implementation| find(row.family).is_some_and(|first| first.name == row.name);
    let families = ALL.iter().filter(move |row| is_first(row) && row.name != row.family);
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
