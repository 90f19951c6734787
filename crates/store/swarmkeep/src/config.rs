//! The configuration of a repository: lifetime, limits, shards and the hash key.

use std::{fmt, io, time::Duration};

use crate::BoundedBy;

/// The configuration that every implementation is built from. Start with [`new`](Self::new) and chain the
/// settings that differ: most are made in the expression that builds a store, where public fields need a
/// variable.
///
/// ```
/// use std::time::Duration;
/// use swarmkeep::{HashKey, RepositoryConfig};
///
/// let config = RepositoryConfig::new(HashKey::from_os()?)
///     .lifetime(Duration::from_secs(2700))
///     .max_swarms(1_000_000);
/// assert_eq!(config.limits().swarms, Some(1_000_000));
/// # Ok::<(), swarmkeep::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RepositoryConfig {
    hash_key: HashKey,
    lifetime: Duration,
    limits: Limits,
    shards: Option<usize>,
}

impl RepositoryConfig {
    /// Returns a configuration with a lifetime of 45 minutes (clients announce every 30 minutes), no limits,
    /// and the store's own number of shards.
    pub const fn new(hash_key: HashKey) -> Self {
        let limits = Limits { swarms: None, peers_per_swarm: None, endpoints_per_address: None, bytes: None };
        Self { hash_key, lifetime: Duration::from_secs(45 * 60), limits, shards: None }
    }

    /// Sets the time that a peer stays in its swarm after its last announce: whole seconds, at least one.
    #[must_use]
    pub const fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Sets the maximum number of swarms.
    #[must_use]
    pub const fn max_swarms(mut self, swarms: usize) -> Self {
        self.limits.swarms = Some(swarms);
        self
    }

    /// Sets the maximum number of peers in one swarm, both families together.
    #[must_use]
    pub const fn max_peers_per_swarm(mut self, peers: usize) -> Self {
        self.limits.peers_per_swarm = Some(peers);
        self
    }

    /// Sets the maximum number of endpoints of one address in one swarm; at least one. Without this limit one
    /// address can fill a swarm from its 65,535 ports.
    ///
    /// An address is an IPv4 address, or the upper 64 bits of an IPv6 address: a client with one IPv6 address
    /// there usually has all 2^64 of them (RFC 4291, section 2.5.1). Many have a whole /56 or /48 (RFC 6177),
    /// so an IPv6 /56 may have 5 times as many endpoints as an address, and a /48 25 times as many. An
    /// IPv4-mapped address counts as the IPv4 address. A newcomer to a large swarm costs time in proportion
    /// to the limit, over IPv6 to 25 times the limit: with 8 about a microsecond, with 1,000 a quarter of a
    /// millisecond in the packed store.
    #[must_use]
    pub const fn max_endpoints_per_address(mut self, endpoints: usize) -> Self {
        self.limits.endpoints_per_address = Some(endpoints);
        self
    }

    /// Sets the maximum number of bytes of memory that the store may take.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.limits.bytes = Some(bytes);
        self
    }

    /// Sets the number of shards of a sharded store; a power of two. A store without shards ignores it. Where
    /// swarms are limited, shards of fewer than 256 swarms give an eviction little to choose from.
    #[must_use]
    pub const fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Returns the key of the hashes of info hashes and endpoints.
    pub const fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// Returns the configured limits.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the configured number of shards; `None` if the store chooses.
    pub const fn shard_count(&self) -> Option<usize> {
        self.shards
    }

    /// Returns the lifetime in seconds, for a clock of whole seconds that can keep up to `longest` seconds.
    ///
    /// # Errors
    /// [`ConfigError::Lifetime`] if the lifetime is shorter than a second, is not whole seconds, or is longer
    /// than `longest`.
    pub const fn lifetime_secs(&self, longest: u64) -> Result<u64, ConfigError> {
        let seconds = self.lifetime.as_secs();
        if seconds == 0 || self.lifetime.subsec_nanos() != 0 || seconds > longest {
            return Err(ConfigError::Lifetime { given: self.lifetime, longest });
        }
        Ok(seconds)
    }

    /// Checks that no limit is set; for a store that supports none.
    ///
    /// # Errors
    /// [`ConfigError::UnsupportedLimit`] if a limit is set.
    pub const fn refuse_limits(&self) -> Result<(), ConfigError> {
        self.refuse_limits_but(BoundedBy::empty())
    }

    /// Checks that only limits of `kept` are set, which are the limits that the store supports.
    ///
    /// # Errors
    /// [`ConfigError::UnsupportedLimit`] if another limit is set.
    pub const fn refuse_limits_but(&self, kept: BoundedBy) -> Result<(), ConfigError> {
        let Limits { swarms, peers_per_swarm, endpoints_per_address, bytes } = self.limits;
        let all = [
            (BoundedBy::SWARMS, swarms, "swarms"),
            (BoundedBy::PEERS_PER_SWARM, peers_per_swarm, "peers per swarm"),
            (BoundedBy::ENDPOINTS_PER_ADDRESS, endpoints_per_address, Limits::ENDPOINTS_PER_ADDRESS),
            (BoundedBy::BYTES, bytes, "bytes"),
        ];
        let mut asked = all.as_slice();
        while let [(bound, limit, what), others @ ..] = asked {
            if limit.is_some() && !kept.contains(*bound) {
                return Err(ConfigError::UnsupportedLimit(what));
            }
            asked = others;
        }
        Ok(())
    }
}

/// The limits of a repository; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of swarms.
    pub swarms: Option<usize>,
    /// The maximum number of peers in one swarm, both families together.
    pub peers_per_swarm: Option<usize>,
    /// The maximum number of endpoints of one address in one swarm; see
    /// [`max_endpoints_per_address`](RepositoryConfig::max_endpoints_per_address).
    pub endpoints_per_address: Option<usize>,
    /// The maximum number of bytes of memory.
    pub bytes: Option<usize>,
}

impl Limits {
    pub(crate) const ENDPOINTS_PER_ADDRESS: &'static str = "endpoints per address";
}

/// The secret key of the hashes that a store computes of info hashes and endpoints. Clients choose both: a
/// client that knows the key could make the store slow. Draw a new key at every start and never log it;
/// [`fmt::Debug`] does not print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// Returns a key from the randomness of the operating system. Nothing else in this crate asks the system
    /// for input.
    ///
    /// # Errors
    /// [`ConfigError::NoEntropy`] if the operating system provides no randomness.
    pub fn from_os() -> Result<Self, ConfigError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other).map_err(ConfigError::NoEntropy)?;
        Ok(Self::from_bytes(bytes))
    }

    /// Returns a key of 16 bytes that the caller has drawn at random.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(bytes);
        Self([key as u64, (key >> 64) as u64])
    }

    /// Returns the key as two 64-bit words.
    pub const fn words(&self) -> [u64; 2] {
        self.0
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// The reason why a repository was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A lifetime that the store's clock cannot keep.
    #[error("a lifetime of {given:?} cannot be kept: give whole seconds, from 1 to {longest}")]
    Lifetime {
        /// The configured lifetime.
        given: Duration,
        /// The longest lifetime of this store, in seconds.
        longest: u64,
    },
    /// A limit that this store does not support.
    #[error(
        "this store cannot limit its {0}: leave the limit out, or take a store with it in its capabilities"
    )]
    UnsupportedLimit(&'static str),
    /// A limit below the smallest one that this store supports.
    #[error("a limit of {given} {what} cannot be kept: give {least} or more")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The configured limit.
        given: usize,
        /// The smallest supported limit.
        least: usize,
    },
    /// A number of shards that is not a power of two, or is out of range.
    #[error("{given} shards: give a power of two from {least} to {most}")]
    Shards {
        /// The configured number of shards.
        given: usize,
        /// The smallest supported number.
        least: usize,
        /// The largest supported number.
        most: usize,
    },
    /// The operating system provided no randomness for a key.
    #[error("no randomness from the operating system: {0}")]
    NoEntropy(io::Error),
}
