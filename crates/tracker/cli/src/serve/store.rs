//! Which store keeps the swarms, and how it comes to be.

use std::sync::Arc;

use clap::builder::PossibleValue;
use swarmkeep::{
    RepositoryConfig,
    catalog::{self, Implementation, Repository},
};
use swarmkeep_redis::{Error as RedisError, RedisRepository};
use swarmkeep_tracker::{ConnectionKey, Metrics, SharedStore};

use super::redis::Servers;

/// Which store keeps the swarms.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chosen {
    /// One of the catalog, in this process.
    Embedded(&'static Implementation),
    /// One that has settings of its own.
    Redis,
}

impl Chosen {
    /// What they are called: rows, families, and the other one. A family says what it is.
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
}

/// A store, and what it takes to build it.
pub(crate) enum Store {
    Embedded(&'static Implementation),
    Redis(Box<Servers>),
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuilt {
    /// The settings do not allow it.
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

impl Store {
    /// What this tracker is called among those that share the store, if it is shared.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Self::Embedded(_) => None,
            Self::Redis(servers) => Some(&servers.node),
        }
    }

    /// Builds it in the runtime in which it will be asked, where its connections stay.
    pub(crate) async fn build(&self, config: &RepositoryConfig) -> Result<Built, NotBuilt> {
        match self {
            Self::Embedded(row) => match row.build(config) {
                Ok(repository) => Ok(Built { repository, redis: None }),
                Err(error) => Err(NotBuilt::Settings(error.to_string())),
            },
            Self::Redis(servers) => match servers.reach(config).await {
                Ok(store) => {
                    let store = Arc::new(store);
                    Ok(Built { repository: Repository::Async(Arc::clone(&store) as _), redis: Some(store) })
                }
                Err(RedisError::Unreachable(reason)) => Err(NotBuilt::Unreachable(reason)),
                Err(error @ RedisError::Clock { .. }) => Err(NotBuilt::Clock(error.to_string())),
                Err(error) => Err(NotBuilt::Settings(error.to_string())),
            },
        }
    }
}

/// A store that was built.
pub(crate) struct Built {
    pub(crate) repository: Repository,
    redis: Option<Arc<RedisRepository>>,
}

impl Built {
    /// The key of connection ids that all trackers of the store share, if it is shared.
    pub(crate) fn connection_key(&self) -> Option<ConnectionKey> {
        self.redis.as_ref().map(|store| ConnectionKey::new(&store.shared_secret("connection ids")))
    }

    /// Tells the operator of a store that is shared.
    pub(crate) fn watch(&self, metrics: &Metrics) {
        if let Some(store) = self.redis.clone() {
            metrics.watch_shared_store(move || {
                let status = store.status();
                let ahead = |(own, server): (u64, u64)| own.cast_signed() - server.cast_signed();
                SharedStore {
                    refused: status.layout_refused,
                    layout_changes: status.layout_changes,
                    seconds_ahead: status.clock.map(ahead),
                }
            });
        }
    }
}
