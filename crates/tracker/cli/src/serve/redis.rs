//! The store on Redis: its settings, and the connection at the start.

use std::{fmt, fs, path::PathBuf, process, str::FromStr, time::Duration};

use clap::{ValueEnum, builder::NonEmptyStringValueParser};
use rustix::system::uname;
use swarmkeep::RepositoryConfig;
use swarmkeep_redis::{Engine, Error, RedisConfig, RedisRepository, password_in, without_password};
use tokio::time::{Instant, sleep};

use super::{
    schema::{RunState, Unread},
    secret::warn_of_others,
};
use crate::{settings::Contradiction, units};

const REDIS: &str = "Store on Redis (--repository redis)";

/// The time between counts of all torrents and peers, by one tracker for all.
const TOTALS_AGE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Redis {
    /// URL of the server, redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// over TLS; may be
    /// repeated. Several are nodes of one Cluster; one is enough, since it names the others, except with a
    /// password and without TLS: then name each host. Keep passwords in the environment, the file of settings
    /// or --redis-password-file: every user of this machine can see command lines.
    // Hidden, which `settings` takes as a sign that there may be a password in it.
    #[arg(long, value_name = "URL", value_delimiter = ',', hide_default_value = true, help_heading = REDIS)]
    pub(crate) redis_url: Vec<Url>,

    /// File with the password for the URLs without one. It is read again for each new connection.
    #[arg(long, value_name = "FILE", help_heading = REDIS)]
    redis_password_file: Option<PathBuf>,

    /// PEM file with the certificate authority of rediss:// servers. Default: the authorities that the system
    /// trusts.
    #[arg(long, value_name = "FILE", help_heading = REDIS)]
    pub(super) redis_ca: Option<PathBuf>,

    /// Prefix of all keys. Trackers with the same prefix share a store; trackers with another prefix have
    /// another store.
    #[arg(long, value_name = "TEXT", default_value = "swarmkeep:", help_heading = REDIS)]
    redis_prefix: String,

    /// Program in the servers that keeps the store: the module `swarmkeep`, which every server then needs, or
    /// functions in Lua; `auto` uses the existing store's, or else the module where it is loaded.
    #[arg(long, value_enum, default_value = "auto", help_heading = REDIS)]
    redis_engine: RedisEngine,

    /// Name of this tracker among the trackers of the store, in metrics and for the lease of the sweep.
    /// Default: HOST-PROCESS.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), help_heading = REDIS)]
    redis_node: Option<String>,

    /// Time after which a request to a slow or lost server fails, from 10ms to 4s (units ms, s); see
    /// when-unavailable.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = patience, help_heading = REDIS)]
    redis_patience: Duration,
}

/// The choice of the program that keeps the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RedisEngine {
    Auto,
    Module,
    Functions,
}

impl Redis {
    /// The servers of these settings. Reads the files.
    pub(crate) fn servers(&self, kept: &RunState) -> Result<Servers, Contradiction> {
        let wrong = |text: String| Err(Contradiction(text));
        if self.redis_url.is_empty() {
            return wrong(
                "the repository redis needs --redis-url: give one, as redis://127.0.0.1:6379".into(),
            );
        }
        self.check_password(kept)?;
        let mut urls = Vec::with_capacity(self.redis_url.len());
        for url in &self.redis_url {
            if let Some(problem) = url.problem() {
                return wrong(format!("redis-url: {url}: {problem}"));
            }
            urls.push(url.0.clone());
        }
        let node = self
            .redis_node
            .clone()
            .unwrap_or_else(|| format!("{}-{}", uname().nodename().to_string_lossy(), process::id()));
        let mut config = RedisConfig::new(urls);
        (config.prefix, config.node) = (self.redis_prefix.clone(), node);
        (config.patience, config.totals_age) = (self.redis_patience, TOTALS_AGE);
        config.clock = Some(swarmkeep_tracker::now);
        config.engine = match self.redis_engine {
            RedisEngine::Auto => None,
            RedisEngine::Module => Some(Engine::Module),
            RedisEngine::Functions => Some(Engine::Functions),
        };
        config.password_file.clone_from(&self.redis_password_file);
        let ca = self.redis_ca.as_ref();
        if ca.is_some() && !self.redis_url.iter().all(|url| url.0.starts_with("rediss://")) {
            return wrong("redis-ca is of no use without TLS: give URLs that begin with rediss://".into());
        }
        if let Some(path) = ca.filter(|path| !kept.leaves_out(path, Unread::Fixed)) {
            let unread = |error| Contradiction(format!("redis-ca: cannot read {}: {error}", path.display()));
            let pem = fs::read(path).map_err(unread)?;
            // Without an authority, the errors would blame the certificates of the servers.
            if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
                return wrong(format!("redis-ca: {}: it has no certificate in PEM", path.display()));
            }
            config.root_certificate = Some(pem);
        }
        Ok(Servers(config))
    }

    /// Checks that the file of the password has one, which the next connection will use.
    fn check_password(&self, kept: &RunState) -> Result<(), Contradiction> {
        let path = self.redis_password_file.as_ref().filter(|path| !kept.leaves_out(path, Unread::All));
        let Some(path) = path else { return Ok(()) };
        password_in(path).map_err(|error| Contradiction(format!("redis-password-file: {error}")))?;
        warn_of_others(path, "the password");
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Servers(pub(super) RedisConfig);

impl Servers {
    /// Connects to the store, in the runtime that its connections stay in. Tries again for as long as a
    /// request would.
    pub(crate) async fn reach(&self, config: &RepositoryConfig) -> Result<RedisRepository, Error> {
        const PAUSE: Duration = Duration::from_millis(100);
        let enough = Instant::now() + self.0.patience;
        loop {
            match RedisRepository::connect(&self.0, config).await {
                Err(Error::Unreachable(_)) if Instant::now() + PAUSE < enough => sleep(PAUSE).await,
                reached => return reached,
            }
        }
    }
}

/// A URL. Its password, if any, is not shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url(String);

impl Url {
    /// The reason why it is invalid, as far as that is known before a connection.
    fn problem(&self) -> Option<&'static str> {
        let rest = ["redis://", "rediss://"].iter().find_map(|scheme| self.0.strip_prefix(scheme));
        let Some(rest) = rest else { return Some("it begins with neither redis:// nor rediss://") };
        let user = rest.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
        matches!(user, Some((_, "***"))).then_some(
            "its password was left out where it was printed: write it again, or name its file by --redis-password-file",
        )
    }
}

impl FromStr for Url {
    type Err = std::convert::Infallible;

    // `Redis::servers` checks it: an error of clap would show the password.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A time from 10 ms to 4 s: the tracker waits for 5 seconds for any store.
fn patience(text: &str) -> Result<Duration, String> {
    let allowed = units::time(text).ok().filter(|time| (10..=4000).contains(&time.as_millis()));
    allowed.ok_or_else(|| "expected a time from 10ms to 4s; units are ms, s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_its_bounds() {
        let are_allowed = ["9ms", "10ms", "4s", "4001ms"].map(|text| patience(text).is_ok());
        assert_eq!(are_allowed, [false, true, true, false]);
    }
}
