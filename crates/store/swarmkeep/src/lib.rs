//! The swarm store of a BitTorrent tracker: [`TorrentRepository`] is the [`contract`], the [`catalog`] lists
//! the implementations.
//!
//! ```
//! use std::{net::SocketAddr, time::SystemTime};
//! use swarmkeep::{
//!     Announce, HashKey, InfoHash, OsRandom, Packed, PeerBuffer, RepositoryConfig, Timestamp,
//!     TorrentRepository,
//! };
//!
//! let store = Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?;
//! let (now, mut rng) = (Timestamp::try_from(SystemTime::now())?, OsRandom::new()?);
//! let mut packet = [0; 300];
//! let client: SocketAddr = "192.0.2.1:6881".parse()?;
//! let announce = Announce::at(InfoHash::new([7; 20]), client)?;
//! let answer = store.announce(&announce, now, &mut rng, &mut PeerBuffer::new(&mut packet, &mut []));
//! assert_eq!(answer.stats.incomplete, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate opens no socket, reads no clock and draws no random numbers: the caller provides time,
//! randomness, limits and the hash key.
//!
//! [`Packed`] and the B-trees need no feature. `cargo doc --open -p swarmkeep --all-features` documents all:
//!
//! | feature | addition |
//! |---|---|
//! | `catalog` | the next four together: every row of the [`catalog`] |
//! | `parking_lot` | stores under the locks of `parking_lot` |
//! | `dashmap` | `DashMapRepository`: a sharded hash map, and a lock around each swarm |
//! | `skipmap` | `SkipMapRepository`: a lock-free skip list, and a lock around each swarm |
//! | `tokio` | the B-trees under the locks of tokio, through [`AsyncTorrentRepository`] |
//! | `snapshot` | the module `snapshot`: writes a store as one stream of bytes, and loads it |
//! | `rand_core` | `RandCore`: any generator of `rand_core` as a [`Random`] |
//! | `global-alloc` | `packed::use_global_allocator`, for processes with an allocator that counts memory |
//! | `serde` | reports and identifiers as serde values |
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use swarmkeep_bittorrent as bittorrent;
pub use swarmkeep_bittorrent::{AnnounceEvent, CompactV4, CompactV6, Endpoint, Family, InfoHash, PeerId};

mod announce;
mod asynchronous;
pub mod btree_map;
pub mod catalog;
mod config;
#[doc = include_str!("../contract.md")]
pub mod contract {}
#[cfg(feature = "dashmap")]
pub mod dash_map;
mod defaults;
mod export;
pub mod implement;
pub mod packed;
mod random;
mod records;
mod report;
mod repository;
#[cfg(feature = "skipmap")]
pub mod skip_map;
#[cfg(feature = "snapshot")]
pub mod snapshot;
mod sweep;
mod sync;
mod time;
mod totals;

pub use announce::{Announce, Announced, Changes, Evicted, Families, PeerBuffer, Request, Role, Section};
pub use asynchronous::{Answer, AsyncTorrentRepository, Immediate, Unavailable};
pub use config::{ConfigError, HashKey, Limits, RepositoryConfig};
pub use export::Export;
pub use packed::Packed;
#[cfg(feature = "rand_core")]
pub use random::RandCore;
pub use random::{OsRandom, Random, SplitMix64};
pub use records::{Malformed, Records, SwarmRecord};
pub use report::{
    BoundedBy, Capabilities, Cursor, LongestHold, MemoryUse, PageCost, PeerCounts, PeerDetails, PeerRecord,
    Restored, SwarmStats, SwarmSummary, Totals,
};
pub use repository::{TorrentRepository, TorrentRepositoryExt};
pub use sweep::{Budget, Removed, Retention, Swept};
pub use time::Timestamp;
