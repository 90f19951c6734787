//! A repository on Redis 7 or Valkey, on one server or a Cluster, so that several trackers share one set of
//! swarms.
//!
//! ```no_run
//! # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
//! use swarmkeep::{HashKey, RepositoryConfig};
//! use swarmkeep_redis::{RedisConfig, RedisRepository};
//!
//! let config = RepositoryConfig::new(HashKey::from_os()?);
//! let store = RedisRepository::connect(&RedisConfig::new(["redis://127.0.0.1"]), &config).await?;
//! # Ok(())
//! # }
//! ```
//!
//! An announce takes one round trip: a function in the server updates, counts and selects in one atomic step
//! ([`AsyncTorrentRepository`]). One key contains all swarms of a shard, and their counts. So the counts stay
//! exact, and move to another server with their swarms.
//!
//! [`AsyncTorrentRepository`]: swarmkeep::AsyncTorrentRepository

mod access;
mod address;
mod bounded;
mod calls;
mod config;
mod connection;
mod library;
mod link;
mod node;
mod place;
mod reply;
mod rights;
mod store;
mod topology;

pub use access::password_in;
pub use config::{Error, RedisConfig, Status, without_password};
pub use place::{Engine, SHARDS, SLOTS, slot};
pub use store::RedisRepository;

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
