//! The choice of the store, and building it.

use std::sync::Arc;

use clap::builder::PossibleValue;
use swarmkeep::{
    ConfigError, RepositoryConfig,
    catalog::{self, Implementation, Repository},
};
use swarmkeep_redis::{Error as RedisError, RedisRepository};
use swarmkeep_tracker::{ConnectionKey, Metrics, SharedStore};

use super::redis::Servers;

#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreChoice {
    /// A store of the catalog, in this process.
    Embedded(&'static Implementation),
    Redis,
}

impl StoreChoice {
    /// The names of rows, of families, and `redis`. Families and `redis` have a help text.
    pub(crate) fn values() -> impl Iterator<Item = PossibleValue> {
        catalog::names().chain([Self::Redis.name()]).map(|name| {
            let (summary, bounded) = match Self::find(name) {
                Some(Self::Embedded(row)) if row.family == name => (row.summary, row.bounded),
                Some(Self::Redis) => ("A server of Redis or Valkey, or a Cluster.", RedisRepository::BOUNDED),
                _ => return name.into(),
            };
            PossibleValue::new(name).help(format!("{summary} Limits: {bounded}"))
        })
    }

    pub(crate) fn find(name: &str) -> Option<Self> {
        if name == Self::Redis.name() { Some(Self::Redis) } else { catalog::find(name).map(Self::Embedded) }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Embedded(row) => row.name,
            Self::Redis => "redis",
        }
    }

    /// Whether the store supports these sizes.
    pub(crate) fn check(self, sizes: &RepositoryConfig) -> Result<(), ConfigError> {
        match self {
            Self::Embedded(row) => row.build(sizes).map(drop),
            Self::Redis => RedisRepository::check(sizes),
        }
    }
}

pub(crate) enum StoreBuilder {
    Embedded(&'static Implementation),
    Redis(Box<Servers>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuilt {
    #[error("{0}")]
    Settings(String),
    #[error(
        "cannot reach the store on Redis: {0}; start the server, or give the address, the user and the password of one that answers"
    )]
    Unreachable(String),
    /// The clock of this machine, or of the server, is wrong.
    #[error("{0}")]
    Clock(String),
}

impl StoreBuilder {
    /// The name of this tracker among the trackers of the store, if it is shared.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Self::Embedded(_) => None,
            Self::Redis(servers) => Some(&servers.0.node),
        }
    }

    /// Builds it in the runtime that its connections stay in.
    pub(crate) async fn build(&self, config: &RepositoryConfig) -> Result<BuiltStore, NotBuilt> {
        match self {
            Self::Embedded(row) => match row.build(config) {
                Ok(repository) => Ok(BuiltStore { repository, redis: None }),
                Err(error) => Err(NotBuilt::Settings(error.to_string())),
            },
            Self::Redis(servers) => match servers.reach(config).await {
                Ok(store) => {
                    let store = Arc::new(store);
                    let repository = Repository::Async(Arc::clone(&store) as _);
                    Ok(BuiltStore { repository, redis: Some(store) })
                }
                Err(RedisError::Unreachable(reason)) => Err(NotBuilt::Unreachable(reason)),
                Err(error @ RedisError::Clock { .. }) => Err(NotBuilt::Clock(error.to_string())),
                Err(error) => Err(NotBuilt::Settings(error.to_string())),
            },
        }
    }
}

pub(crate) struct BuiltStore {
    pub(crate) repository: Repository,
    redis: Option<Arc<RedisRepository>>,
}

impl BuiltStore {
    /// The key of connection ids that all trackers of the store share, if it is shared.
    pub(crate) fn connection_key(&self) -> Option<ConnectionKey> {
        self.redis.as_ref().map(|store| ConnectionKey::new(&store.shared_secret("connection ids")))
    }

    /// Adds a shared store to the metrics.
    pub(crate) fn watch(&self, metrics: &Metrics) {
        if let Some(store) = self.redis.clone() {
            metrics.watch_shared_store(move || {
                let status = store.status();
                let ahead = |(own, server): (u64, u64)| own.cast_signed() - server.cast_signed();
                let [a, b, c, d, ..] = store.shared_secret("metrics");
                SharedStore {
                    id: format!("{:08x}", u32::from_be_bytes([a, b, c, d])),
                    engine: store.engine().name(),
                    refused: status.layout_refused,
                    layout_changes: status.layout_changes,
                    seconds_ahead: status.clock.map(ahead),
                    evicted: status.evicted_keys,
                }
            });
        }
    }
}
