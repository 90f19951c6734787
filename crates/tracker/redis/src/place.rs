//! The position of a swarm and of its peers: its shard, and its order in it.

use data_encoding::HEXLOWER;
use sha1::{Digest, Sha1};
use swarmkeep::InfoHash;

/// The number of hash slots of a Cluster.
pub const SLOTS: u16 = 16_384;

/// The default number of shards of a store.
pub const SHARDS: u32 = 1024;

/// The most shards that a store may have.
pub(crate) const MOST_SHARDS: u32 = 16_384;

pub(crate) const fn is_number_of_shards(shards: u32) -> bool {
    shards.is_power_of_two() && shards <= MOST_SHARDS
}

/// Bytes of [`Layout::identity`], and bits of its last byte.
pub(crate) const IDENTITY: usize = 17;
const OF_MODULE: u8 = 32;
const BY_NETWORKS: u8 = 128;

/// The description of a store of an earlier version; `library/shard.lua` has it too.
pub(crate) const OLDER: &str = "has an older layout (commit c279a9d reads it, or names the commit that does)";

/// The settings on which all trackers of a store must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shards: u32,
    /// The key of the hashes, so that remote peers cannot choose their places.
    pub(crate) salt: [u8; 16],
    pub(crate) places: Places,
    pub(crate) engine: Engine,
}

/// The program in the servers that executes the calls, and keeps the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// The functions in Lua that trackers load into a server.
    Functions,
    /// The module `swarmkeep`, which the operator loads.
    Module,
}

impl Engine {
    /// The version of the store's format.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Functions => "3",
            Self::Module => "2",
        }
    }

    /// Its name in settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Module => "module",
        }
    }

    pub(crate) fn of_version(version: &str) -> Option<Self> {
        [Self::Functions, Self::Module].into_iter().find(|engine| engine.version() == version)
    }
}

/// The part of an endpoint on which the place of a peer in its swarm depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Places {
    /// Its endpoint.
    Endpoints,
    /// Its IPv4 address or IPv6 /48, if endpoints per address are limited.
    Networks,
}

impl Places {
    pub(crate) const fn limited(endpoints_per_address: u16) -> Self {
        if endpoints_per_address > 0 { Self::Networks } else { Self::Endpoints }
    }

    /// The text of an error for an operator that has set the other one.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Endpoints => "its endpoints per address are not limited",
            Self::Networks => "its endpoints per address are limited",
        }
    }

    /// The word for it in the key `store`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Endpoints => "false",
            Self::Networks => "by-network",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Endpoints, Self::Networks].into_iter().find(|places| places.word() == word)
    }
}

impl Layout {
    /// The bytes that each call carries and each shard keeps, so that no call uses a shard of another layout.
    pub(crate) fn identity(&self) -> [u8; IDENTITY] {
        let mut identity = [0; IDENTITY];
        identity[..16].copy_from_slice(&self.salt);
        let places = if self.places == Places::Networks { BY_NETWORKS } else { 0 };
        let engine = if self.engine == Engine::Module { OF_MODULE } else { 0 };
        identity[16] = 64 | (self.shards.ilog2() as u8) << 1 | places | engine;
        identity
    }

    /// `None` for an older layout, with a limit of endpoints at an IPv6 /64.
    pub(crate) fn of_identity(identity: &[u8; IDENTITY]) -> Option<Self> {
        let (salt, shape) = (identity.first_chunk().expect("16 of 17 bytes"), identity[16]);
        let places = if shape & BY_NETWORKS == 0 { Places::Endpoints } else { Places::Networks };
        let engine = if shape & OF_MODULE == 0 { Engine::Functions } else { Engine::Module };
        let layout = Self { shards: 1 << (shape >> 1 & 15), salt: *salt, places, engine };
        (shape & 1 == 0).then_some(layout)
    }

    /// The layout as the key `store` has it.
    pub(crate) fn to_text(&self) -> String {
        let Self { shards, salt, places, engine } = self;
        format!("{} {shards} {} {}", engine.version(), HEXLOWER.encode(salt), places.word())
    }

    /// The inverse of [`to_text`](Self::to_text). The error describes the layout.
    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        let unknown = || format!("has a layout that this version does not know, {text:?}");
        let words: Vec<_> = text.split(' ').collect();
        let [version, shards, salt, places] = words.as_slice() else { return Err(unknown()) };
        let salt = HEXLOWER.decode(salt.as_bytes()).ok().and_then(|salt| salt.try_into().ok());
        let shards = shards.parse().ok().filter(|&shards| is_number_of_shards(shards));
        match (shards, salt, Engine::of_version(version), Places::of_word(places)) {
            (Some(shards), Some(salt), Some(engine), Some(places)) => {
                Ok(Self { shards, salt, places, engine })
            }
            (Some(_), Some(_), ..) if *version == "1" => Err(OLDER.to_owned()),
            _ => Err(unknown()),
        }
    }

    /// The key of a shard.
    pub(crate) fn key(&self, prefix: &str, shard: u32) -> Vec<u8> {
        let mark = if self.engine == Engine::Module { "packed" } else { "" };
        format!("{prefix}{mark}{{{shard}}}").into_bytes()
    }

    /// The shard of a swarm, and its hash within the shard's directory.
    pub(crate) fn place(&self, info_hash: &InfoHash) -> (u32, u32) {
        let digest = self.digest(info_hash.as_bytes());
        let [hash, shard, ..] = *digest.as_chunks().0 else { unreachable!("20 bytes are five words") };
        (u32::from_be_bytes(shard) % self.shards, u32::from_be_bytes(hash))
    }

    /// The hash of a peer within its swarm, from its compact form.
    pub(crate) fn hash_of_peer(&self, compact: &[u8]) -> u32 {
        let len = match (self.places, compact.len()) {
            (Places::Endpoints, len) => len,
            (Places::Networks, 6) => 4,
            (Places::Networks, _) => 6,
        };
        let digest = self.digest(&compact[..len]);
        let [hash, ..] = *digest.as_chunks().0 else { unreachable!("20 bytes are five words") };
        u32::from_be_bytes(hash)
    }

    /// A secret that is derived from the salt, for one purpose.
    pub(crate) fn secret(&self, purpose: &str) -> [u8; 20] {
        // This text is longer than any info hash or endpoint, so that the secret is never the digest of one.
        self.digest(format!("secret of trackers for {purpose}").as_bytes())
    }

    fn digest(&self, text: &[u8]) -> [u8; 20] {
        Sha1::new_with_prefix(self.salt).chain_update(text).finalize().into()
    }
}

/// A position in the order of a table that grows and shrinks by linear hashing: the hash with its bits
/// reversed. A page holds a contiguous part of that order, and a split cuts it in two, so a listing in this
/// order misses no key that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(pub(crate) u32);

impl Order {
    pub(crate) const fn of(hash: u32) -> Self {
        Self(hash.reverse_bits())
    }

    /// A hash at this position.
    pub(crate) const fn hash(self) -> u32 {
        self.0.reverse_bits()
    }

    /// The first position after the page that contains this one, in a table of `pages` pages; `None` at the
    /// end.
    pub(crate) fn behind_page(self, pages: u32) -> Option<Self> {
        let pages = u64::from(pages.max(1));
        let power = 1_u64 << pages.ilog2();
        let hash = u64::from(self.hash());
        let page = if hash % (2 * power) < pages { hash % (2 * power) } else { hash % power };
        // One bit more if this round of splits has split the page, or made it.
        let split = page >= power || page + power < pages;
        let bits = pages.ilog2() + u32::from(split);
        let width = 1_u64 << (32 - bits);
        let behind = (u64::from(self.0) / width + 1) * width;
        u32::try_from(behind).ok().map(Self)
    }
}

/// The hash slot of a key (Redis Cluster specification): CRC-16/XMODEM of the text in its first braces.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(hash: u32, pages: u32) -> u32 {
        let power = 1 << pages.ilog2();
        let page = u64::from(hash) % (2 * power);
        (if page < u64::from(pages) { page } else { u64::from(hash) % power }) as u32
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        // From its example of a CRC, and its rules for braces.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn pages_are_contiguous_in_the_order_and_cover_it() {
        for pages in 1..200 {
            let (mut at, mut seen) = (Some(Order(0)), Vec::new());
            while let Some(order) = at {
                let behind = order.behind_page(pages);
                let last = Order(behind.map_or(u32::MAX, |behind| behind.0 - 1));
                let middle = Order(order.0 + (last.0 - order.0) / 2);
                let page = page_of(order.hash(), pages);
                assert_eq!(page_of(last.hash(), pages), page, "of {pages}");
                assert_eq!(page_of(middle.hash(), pages), page, "of {pages}");
                assert_eq!(middle.behind_page(pages), behind);
                seen.push(page);
                at = behind;
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..pages).collect::<Vec<_>>());
        }
    }
}
