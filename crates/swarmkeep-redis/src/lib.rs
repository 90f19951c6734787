//! A repository on Redis or Valkey, one server or a Cluster, so that several trackers share one set of swarms.

mod config;
#[cfg(feature = "servers")]
pub mod servers;

pub use config::{Error, RedisConfig};
