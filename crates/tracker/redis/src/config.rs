//! Where the servers are, and how patient to be with them.

use std::time::Duration;

use swarmkeep::ConfigError;

/// Where the servers are and how they are used. Start with [`new`](Self::new) and chain what should differ.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub(crate) urls: Vec<String>,
    pub(crate) prefix: String,
    pub(crate) node: String,
    pub(crate) patience: Duration,
    pub(crate) connections: usize,
    pub(crate) in_flight: usize,
    pub(crate) staleness: Duration,
    pub(crate) root_certificate: Option<Vec<u8>>,
}

impl RedisConfig {
    /// Settings for the servers at `urls`: `redis://[user:password@]host[:port][/database]`, or `rediss://`
    /// over TLS.
    ///
    /// Several URLs are nodes of one Cluster, and a single server may be a node of a Cluster too. The other
    /// nodes are learnt from those that answer.
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            prefix: "swarmkeep:".to_owned(),
            node: String::new(),
            patience: Duration::from_secs(2),
            connections: 2,
            in_flight: 4096,
            staleness: Duration::ZERO,
            root_certificate: None,
        }
    }

    /// What all keys begin with: stores with different prefixes know nothing of each other. `swarmkeep:`
    /// without this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// What [`prefix`](Self::prefix) was set to.
    pub fn keys_begin_with(&self) -> &str {
        &self.prefix
    }

    /// What this process is called where it holds a lease; drawn at random without this.
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = node.into();
        self
    }

    /// For how long a call may try before it is [`Unavailable`](swarmkeep::Unavailable): reconnecting and
    /// following a fail-over included.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How stale the answers to regular announces may be in swarms that are announced to often; not at all
    /// without this.
    ///
    /// Such a swarm is asked about once in half of that time, for as many peers as will do for all who
    /// announce meanwhile, and what these change is sent together within the other half. So the server of one
    /// very large swarm bears several times as many announces (docs/operate/scaling.md). What it costs:
    /// counts and peers are so old; an announce that was answered from here says
    /// [`REFRESHED`](swarmkeep::Changes::REFRESHED) whatever it was; and it is lost if this process or the
    /// server is lost before it was sent: call [`flush`](crate::RedisRepository::flush) before you end.
    /// Whoever wants 256 peers or more is answered by the server.
    #[must_use]
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.staleness = staleness;
        self
    }

    /// The certificate authority, in PEM, that vouches for servers of `rediss://`; those of the system
    /// without this.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// How many connections to each server.
    #[must_use]
    pub const fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How many calls may wait for an answer at once; one more is [`Unavailable`](swarmkeep::Unavailable) at
    /// once.
    #[must_use]
    pub const fn in_flight(mut self, in_flight: usize) -> Self {
        self.in_flight = in_flight;
        self
    }
}

/// Why a repository was not built, or not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for cannot be kept.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A URL that says nothing.
    #[error("{url} is no URL of a Redis server: {reason}")]
    Url {
        /// What was given, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No server was reached.
    #[error("no server was reached: {0}")]
    Unreachable(String),
    /// A name that keys cannot begin with.
    #[error(
        "{0:?} cannot be what keys begin with: leave braces out, they tell a Cluster where a key belongs"
    )]
    Prefix(String),
    /// Another store lives there.
    #[error(
        "what lives under {prefix} was built with other settings: {what}; give the same, or another prefix"
    )]
    Mismatch {
        /// Where.
        prefix: String,
        /// What differs.
        what: String,
    },
}

/// A URL as it may be shown: with `***` in the place of its password, or of whatever may be one.
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
