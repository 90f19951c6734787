//! How a repository is set up: lifetime, limits and the hash key.

use std::{fmt, time::Duration};

use crate::BoundedBy;

/// What every implementation is built from. Start with [`new`](Self::new) and chain what should differ.
///
/// ```
/// use std::time::Duration;
/// use swarmkeep::{HashKey, RepositoryConfig};
///
/// let config = RepositoryConfig::new(HashKey::from_os()?).lifetime(Duration::from_secs(2700)).max_swarms(1_000_000);
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
    /// A lifetime of 45 minutes (peers announce every 30), no limits, the store's own choice of shards.
    pub const fn new(hash_key: HashKey) -> Self {
        let limits = Limits { swarms: None, peers_per_swarm: None, endpoints_per_address: None, bytes: None };
        Self { hash_key, lifetime: Duration::from_secs(45 * 60), limits, shards: None }
    }

    /// How long a peer lives after its last announce. Whole seconds, at least one.
    #[must_use]
    pub const fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// The most swarms ever held.
    #[must_use]
    pub const fn max_swarms(mut self, swarms: usize) -> Self {
        self.limits.swarms = Some(swarms);
        self
    }

    /// The most peers ever held in one swarm, both families together.
    #[must_use]
    pub const fn max_peers_per_swarm(mut self, peers: usize) -> Self {
        self.limits.peers_per_swarm = Some(peers);
        self
    }

    /// The most endpoints that one address may hold in one swarm; at least one. Without it one address can
    /// fill a swarm from its 65,535 ports.
    ///
    /// An address is an IPv4 address, or the upper 64 bits of an IPv6 address: a client with one address
    /// there has the other 2^64 as well (RFC 4291, section 2.5.1). An IPv4-mapped address is the IPv4
    /// address.
    #[must_use]
    pub const fn max_endpoints_per_address(mut self, endpoints: usize) -> Self {
        self.limits.endpoints_per_address = Some(endpoints);
        self
    }

    /// The most bytes the store may take.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.limits.bytes = Some(bytes);
        self
    }

    /// How many shards a sharded store is made of; a power of two. Others ignore it.
    #[must_use]
    pub const fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// The key under which info hashes and endpoints are hashed.
    pub const fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// The bounds asked for.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// How many shards were asked for.
    pub const fn shard_count(&self) -> Option<usize> {
        self.shards
    }

    /// The lifetime in seconds, if it is one that a clock of whole seconds and up to `longest` seconds can
    /// keep.
    ///
    /// # Errors
    /// [`ConfigError::Lifetime`] if it is shorter than a second, has a fraction, or is longer than `longest`.
    pub const fn lifetime_secs(&self, longest: u64) -> Result<u64, ConfigError> {
        let seconds = self.lifetime.as_secs();
        if seconds == 0 || self.lifetime.subsec_nanos() != 0 || seconds > longest {
            return Err(ConfigError::Lifetime { given: self.lifetime, longest });
        }
        Ok(seconds)
    }

    /// Refuses every limit, in the words of a store that keeps none.
    ///
    /// # Errors
    /// [`ConfigError::UnsupportedLimit`] if a limit is set.
    pub const fn refuse_limits(&self) -> Result<(), ConfigError> {
        self.refuse_limits_but(BoundedBy::empty())
    }

    /// Refuses every limit but those that a store keeps.
    ///
    /// # Errors
    /// [`ConfigError::UnsupportedLimit`] if another one is set.
    pub const fn refuse_limits_but(&self, kept: BoundedBy) -> Result<(), ConfigError> {
        let Limits { swarms, peers_per_swarm, endpoints_per_address, bytes } = self.limits;
        let all = [
            (BoundedBy::SWARMS, swarms, "swarms"),
            (BoundedBy::PEERS_PER_SWARM, peers_per_swarm, "peers a swarm"),
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

/// Bounds on what a repository holds; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// The most swarms.
    pub swarms: Option<usize>,
    /// The most peers in one swarm, both families together.
    pub peers_per_swarm: Option<usize>,
    /// The most endpoints of one address in one swarm; see
    /// [`max_endpoints_per_address`](RepositoryConfig::max_endpoints_per_address).
    pub endpoints_per_address: Option<usize>,
    /// The most bytes.
    pub bytes: Option<usize>,
}

impl Limits {
    pub(crate) const ENDPOINTS_PER_ADDRESS: &'static str = "endpoints an address";
}

/// The secret key of a store's hashes of info hashes and endpoints, which clients choose. With it a client
/// could make a store slow, so draw it anew at every start and never log it ([`fmt::Debug`] doesn't).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// A key from the operating system: the only thing in this crate that is fetched and not handed in.
    ///
    /// # Errors
    /// [`ConfigError::NoEntropy`] if the system has none.
    pub fn from_os() -> Result<Self, ConfigError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(ConfigError::NoEntropy)?;
        Ok(Self::from_bytes(bytes))
    }

    /// A key from 16 bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(bytes);
        Self([key as u64, (key >> 64) as u64])
    }

    /// The key as two words.
    pub const fn words(&self) -> [u64; 2] {
        self.0
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// Why a repository was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A lifetime that the store's clock cannot keep.
    #[error("a lifetime of {given:?} cannot be kept: give whole seconds, from 1 to {longest}")]
    Lifetime {
        /// What was asked for.
        given: Duration,
        /// The most seconds that the store's clock keeps apart.
        longest: u64,
    },
    /// A limit that this store cannot keep.
    #[error(
        "this store cannot limit its {0}: leave the limit out, or take a store whose capabilities list it"
    )]
    UnsupportedLimit(&'static str),
    /// A limit outside the range in which this store keeps it.
    #[error("a limit of {given} {what} cannot be kept: give {least} or more")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// What was asked for.
        given: usize,
        /// The smallest limit that can be kept.
        least: usize,
    },
    /// A shard count that is no power of two, or too large.
    #[error("{given} shards: give a power of two from {least} to {most}")]
    Shards {
        /// What was asked for.
        given: usize,
        /// The smallest count.
        least: usize,
        /// The largest count.
        most: usize,
    },
    /// The operating system gave no randomness for a key.
    #[error("no randomness from the operating system: {0}")]
    NoEntropy(getrandom::Error),
}
