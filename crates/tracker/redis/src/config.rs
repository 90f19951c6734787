//! The addresses of the servers, and how the store uses them.

use std::{path::PathBuf, time::Duration};

use swarmkeep::{ConfigError, Timestamp, Unavailable};

use crate::{link::Failure, place::Engine};

/// The addresses of the servers, and how the store uses them. Start with [`new`](Self::new), and set
/// other values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The servers: `redis://[user:password@]host[:port][/database]`, or `rediss://` over TLS.
    ///
    /// Several URLs are nodes of one Cluster. One URL may be a single server or a node of a Cluster. The
    /// store asks one node for the others. Without TLS, it sends no password to a host that is in no URL,
    /// since an attacker could have named that host: give a URL for each host that `CLUSTER SLOTS` shows.
    pub urls: Vec<String>,
    /// The prefix of all keys. Stores with different prefixes are separate.
    pub prefix: String,
    /// The program in the servers that keeps the store. `None` keeps the program of an existing store; for a
    /// new one, it is the module if any server has it, and functions otherwise.
    ///
    /// [`connect`](crate::RedisRepository::connect) fails if the other one keeps an existing store, and, with
    /// [`Engine::Module`], if a server lacks the module.
    pub engine: Option<Engine>,
    /// The name of this process, under which it holds a lease; a random one if it is empty.
    pub node: String,
    /// The time after which a call fails as [`Unavailable`](swarmkeep::Unavailable). It includes reconnecting
    /// and following a fail-over.
    pub patience: Duration,
    /// The number of connections per server. A second one makes the bundles of announces smaller, and an
    /// announce 11 % dearer for the tracker and 16 % for the servers.
    pub connections: usize,
    /// The most calls that wait for an answer, except for the few with which the store maintains itself. A
    /// further call fails as [`Unavailable`](swarmkeep::Unavailable) at once.
    pub in_flight: usize,
    /// The approximate age of totals and of the memory use. With 0 they are exact, and cost one call per
    /// shard.
    ///
    /// Otherwise one process counts every `totals_age`, and stores the sum for all processes. Totals then
    /// cost one round trip. They are at most about twice as old if they are read at least that often, and
    /// eight times if they are read less often.
    pub totals_age: Duration,
    /// The clock from which the caller takes the times of its calls. The servers' clocks then bound these
    /// times: a time more than a minute away from a server's clock counts as one minute away, and a shard
    /// with a later time is set back. So a process with a wrong clock does not harm the others.
    ///
    /// [`connect`](crate::RedisRepository::connect) fails if the clock is more than a minute from the
    /// server's; later, [`status`](crate::RedisRepository::status) shows both clocks. Without a clock, a
    /// shard accepts any time, and the latest that it was given counts.
    pub clock: Option<fn() -> Timestamp>,
    /// The certificate authority of `rediss://` servers, in PEM; `None` is the authorities that the system
    /// trusts.
    pub root_certificate: Option<Vec<u8>>,
    /// The file with the password of URLs without one, in its first line. It is read for each new
    /// connection, so that the password can change while the store is in use.
    pub password_file: Option<PathBuf>,
}

impl RedisConfig {
    /// Settings for the servers at `urls`: keys begin with `swarmkeep:`, a call fails after 2 seconds, and
    /// 4,096 calls wait on one connection per server. Totals are exact.
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            prefix: "swarmkeep:".to_owned(),
            engine: None,
            node: String::new(),
            patience: Duration::from_secs(2),
            connections: 1,
            in_flight: 4096,
            totals_age: Duration::ZERO,
            clock: None,
            root_certificate: None,
            password_file: None,
        }
    }
}

/// The state of a store, as this process sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Why this process can no longer use the store: the store was emptied, and another process created it
    /// again with other settings. `None` while this process can use it.
    pub layout_refused: Option<String>,
    /// How often this process has switched to another layout, because the store was emptied and another
    /// process created it again.
    pub layout_changes: u64,
    /// Seconds since the Unix epoch by the clock of this process, and by the server's clock at the same time,
    /// at the last comparison; `None` without [`RedisConfig::clock`].
    pub clock: Option<(u64, u64)>,
    /// The number of keys that the servers have evicted since their starts, at the last count of this
    /// process. Each shard is a key.
    pub evicted_keys: Option<u64>,
}

/// Why a repository was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store does not support a value of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A URL is invalid.
    #[error("the Redis server {url} cannot be used: {reason}")]
    Url {
        /// The given URL, without its password.
        url: String,
        /// The reason.
        reason: String,
    },
    /// No server was reached.
    #[error("no server was reached: {0}")]
    Unreachable(String),
    /// A server named other servers, at hosts that are in no URL.
    #[error("{0}")]
    Stranger(String),
    /// The prefix cannot be used in keys.
    #[error(
        "{0:?} cannot be the prefix of keys: leave out braces, which decide the slot of a key in a Cluster"
    )]
    Prefix(String),
    /// The clock of [`RedisConfig::clock`] is wrong, or the server's clock.
    #[error(
        "this machine's clock says {own} and the Redis server's {server}, in seconds since 1970, which is more than a minute apart: set both by NTP, and start again"
    )]
    Clock {
        /// Seconds since the Unix epoch, by the clock of this process.
        own: u64,
        /// The same, by the server's clock.
        server: u64,
    },
    /// The servers contain a store with other settings.
    #[error(
        "the store under {prefix} was created with other settings: {what}; use the same, or another prefix"
    )]
    Mismatch {
        /// The prefix of the store's keys.
        prefix: String,
        /// The setting that differs.
        what: String,
    },
    /// The store has a layout that this version does not read.
    #[error("the store under {prefix} {has}: use another prefix, or delete its keys")]
    Layout {
        /// The prefix of the store's keys.
        prefix: String,
        /// The description of the layout.
        has: String,
    },
    /// A server does not know a command. Nothing was written.
    #[error("{server} does not know the command {command}: use Redis 7 or later, or Valkey")]
    Command {
        /// The address of the server.
        server: String,
        /// The name of the command.
        command: String,
    },
    /// The user lacks rights on a server. Nothing was written.
    #[error("the user of the store under {prefix} lacks rights on {server}: allow {missing}")]
    Rights {
        /// The prefix of the store's keys.
        prefix: String,
        /// The address of the server.
        server: String,
        /// The missing rights, as rules of an ACL.
        missing: String,
    },
    /// Some servers lack the module that keeps the store, or would keep it.
    #[error(
        "the module swarmkeep is missing on {without}: load it on all servers of the store under {prefix}, replicas too (`loadmodule` in their configuration)"
    )]
    Module {
        /// The prefix of the store's keys.
        prefix: String,
        /// The addresses of the servers without it.
        without: String,
    },
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unreachable(unavailable.reason)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Unavailable::from(failure).into()
    }
}

/// Returns the URL with `***` in place of its password, or of any part that may be one.
pub fn without_password(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.into() };
    let (scheme, user) = before
        .split_once("://")
        .map_or(("", before), |(_, user)| (&before[..before.len() - user.len()], user));
    match user.split_once(':') {
        Some((name, _)) if !scheme.is_empty() => format!("{scheme}{name}:***@{host}"),
        _ => format!("{scheme}***@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://192.0.2.1:6379/3", "redis://192.0.2.1:6379/3"),
            ("redis://:secret@192.0.2.1", "redis://:***@192.0.2.1"),
            ("rediss://tracker:se:c@ret://@[2001:db8::1]:1", "rediss://tracker:***@[2001:db8::1]:1"),
            ("redis://secret@192.0.2.1", "redis://***@192.0.2.1"),
            ("tracker:secret@192.0.2.1", "***@192.0.2.1"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
