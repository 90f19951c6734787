//! The values that a repository reports: counts, peers, positions, capabilities.

use std::{fmt, ops::AddAssign};

use crate::{CompactV4, CompactV6, Endpoint, Evicted, InfoHash, PeerId, Role, Timestamp};

/// The counts of one swarm, as a scrape shows them (BEP 15, BEP 48). Counters saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwarmStats {
    /// The number of seeders.
    pub complete: u32,
    /// The number of leechers.
    pub incomplete: u32,
    /// The number of finished downloads.
    pub downloaded: u32,
}

impl SwarmStats {
    /// Returns the number of seeders and leechers together.
    pub const fn peers(&self) -> u64 {
        self.complete as u64 + self.incomplete as u64
    }
}

/// One swarm, as [`walk`](crate::TorrentRepository::walk) and [`page`](crate::TorrentRepository::page) show
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwarmSummary {
    /// The info hash of the torrent.
    pub info_hash: InfoHash,
    /// The counts of the swarm.
    pub stats: SwarmStats,
}

/// One peer, as [`peers`](crate::TorrentRepository::peers) shows it and
/// [`restore`](crate::TorrentRepository::restore) accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerRecord {
    /// The endpoint at which the peer listens.
    pub endpoint: Endpoint,
    /// The role of the peer in the swarm.
    pub role: Role,
    /// The time of its last announce, rounded by up to [`Capabilities::clock_resolution_secs`]. If the clock
    /// of a store no longer holds the time of an expired peer, the store shows the earliest time.
    pub last_announce: Timestamp,
    /// The other fields of its last announce; `None` in a store that does not keep them.
    pub details: Option<PeerDetails>,
}

/// The fields of an announce that a tracker does not need to answer other announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerDetails {
    /// The peer id that the client chose.
    pub peer_id: PeerId,
    /// The number of bytes that the client reports as uploaded.
    pub uploaded: u64,
    /// The number of bytes that the client reports as downloaded.
    pub downloaded: u64,
    /// The number of bytes that the client reports as left to download.
    pub left: u64,
}

/// The numbers of seeders and leechers of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerCounts {
    /// The number of peers with nothing left to download.
    pub seeders: u64,
    /// The number of all other peers.
    pub leechers: u64,
}

impl PeerCounts {
    /// Returns the number of seeders and leechers together.
    pub const fn peers(&self) -> u64 {
        self.seeders + self.leechers
    }
}

/// The counts over the whole repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// The number of swarms, including the swarms without peers that are kept for their download count.
    pub swarms: u64,
    /// The IPv4 peers.
    pub v4: PeerCounts,
    /// The IPv6 peers.
    pub v6: PeerCounts,
    /// The sum of the download counts of these swarms.
    pub downloaded: u64,
    /// The evictions at limits since the store was built.
    pub evicted: Evicted,
}

impl Totals {
    /// Returns the number of peers of both families.
    pub const fn peers(&self) -> u64 {
        self.v4.peers() + self.v6.peers()
    }
}

/// A position in a listing: up to 24 bytes that only the store that made them can read. A cursor stays valid
/// for as long as the store lives, even if swarms and peers come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    at: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Position {
    Start,
    After { bytes: [u8; 24], len: u8 },
    End,
}

impl Cursor {
    /// The position before the first item.
    pub const START: Self = Self { at: Position::Start };
    /// The position after the last item.
    pub const END: Self = Self { at: Position::End };

    /// Returns whether the listing has ended.
    pub const fn is_end(&self) -> bool {
        matches!(self.at, Position::End)
    }
}

/// The methods with which a store makes and reads its cursors.
///
/// In a listing in the order of info hashes or endpoints, the cursor is the last item shown.
pub trait CursorExt: Sized {
    /// Returns the position after the item that `bytes` identify in this store.
    ///
    /// # Panics
    /// If there are more than 24 bytes.
    fn after(bytes: &[u8]) -> Self;

    /// Returns the bytes of the item before the position; `None` at the start and at the end.
    fn bytes(&self) -> Option<&[u8]>;

    /// Returns the swarm before the position in a listing of swarms; `None` at the start and at the end.
    fn info_hash(&self) -> Option<InfoHash> {
        Some(InfoHash::new(self.bytes()?.try_into().ok()?))
    }

    /// Returns the peer before the position in a listing of peers; `None` at the start and at the end. The
    /// number of bytes determines the family.
    fn endpoint(&self) -> Option<Endpoint> {
        let bytes = self.bytes()?;
        match (<[u8; CompactV4::LEN]>::try_from(bytes), <[u8; CompactV6::LEN]>::try_from(bytes)) {
            (Ok(v4), _) => Endpoint::try_from(v4).ok(),
            (_, Ok(v6)) => Endpoint::try_from(v6).ok(),
            _ => None,
        }
    }
}

impl CursorExt for Cursor {
    fn after(bytes: &[u8]) -> Self {
        let mut padded = [0; 24];
        padded[..bytes.len()].copy_from_slice(bytes);
        Self { at: Position::After { bytes: padded, len: bytes.len() as u8 } }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match &self.at {
            Position::After { bytes, len } => Some(&bytes[..usize::from(*len)]),
            Position::Start | Position::End => None,
        }
    }
}

/// The properties in which stores differ. The conformance suite asserts each declared property, and that a
/// store refuses limits that it does not declare.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether [`peers`](crate::TorrentRepository::peers) returns peer ids and byte counts.
    pub keeps_peer_details: bool,
    /// The cost of a [`page`](crate::TorrentRepository::page) in ascending order of info hashes.
    pub page_cost: PageCost,
    /// The limits that the store supports. It returns an error if it is built with another limit.
    pub bounded: BoundedBy,
    /// The number of seconds by which the age of a peer may exceed the lifetime before a sweep removes the
    /// peer.
    pub clock_resolution_secs: u64,
    /// The longest lifetime that the store can be built with, in seconds.
    pub longest_lifetime_secs: u64,
    /// The longest time that one step of a sweep, walk or page keeps an announce waiting.
    pub longest_hold: LongestHold,
}

impl Capabilities {
    /// Returns the capabilities of a store without peer details and limits, with a clock of whole seconds,
    /// and with pages that visit the whole store.
    pub const fn new(longest_hold: LongestHold) -> Self {
        Self {
            keeps_peer_details: false,
            page_cost: PageCost::WholeStore,
            bounded: BoundedBy::empty(),
            clock_resolution_secs: 0,
            longest_lifetime_secs: u32::MAX as u64 / 2,
            longest_hold,
        }
    }

    /// Declares that peer ids and byte counts are returned.
    #[must_use]
    pub const fn with_peer_details(mut self) -> Self {
        self.keeps_peer_details = true;
        self
    }

    /// Declares the cost of a page.
    #[must_use]
    pub const fn with_page_cost(mut self, cost: PageCost) -> Self {
        self.page_cost = cost;
        self
    }

    /// Declares the supported limits.
    #[must_use]
    pub const fn with_bounds(mut self, bounded: BoundedBy) -> Self {
        self.bounded = bounded;
        self
    }

    /// Declares the clock: its resolution and the longest lifetime, both in seconds.
    #[must_use]
    pub const fn with_clock(mut self, resolution_secs: u64, longest_lifetime_secs: u64) -> Self {
        self.clock_resolution_secs = resolution_secs;
        self.longest_lifetime_secs = longest_lifetime_secs;
        self
    }
}

bitflags::bitflags! {
    /// The limits that a store supports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct BoundedBy: u8 {
        /// The number of swarms.
        const SWARMS = 1;
        /// The number of peers in one swarm.
        const PEERS_PER_SWARM = 2;
        /// The number of bytes of memory.
        const BYTES = 4;
        /// The number of endpoints of one address in one swarm.
        const ENDPOINTS_PER_ADDRESS = 8;
    }
}

/// In words: `swarms, bytes`.
impl fmt::Display for BoundedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            self.iter_names().map(|(name, _)| name.to_lowercase().replace('_', " ")).collect();
        f.write_str(&names.join(", "))
    }
}

/// The cost of showing `limit` of `n` swarms in ascending order of info hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageCost {
    /// O(limit + log n): the store is kept in that order.
    Ordered,
    /// O(n): the store looks at every swarm to find the next ones.
    WholeStore,
}

/// The longest time that one step keeps an announce waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LongestHold {
    /// The time to visit this number of peers or swarms, whatever the size of the store.
    Visits(usize),
    /// The time to visit this share of all swarms, above 0 and below 1. It is for maps that cannot be left in
    /// the middle of a visit and are therefore divided into shards. A map that is visited as a whole makes a
    /// sweep take quadratic time, and the conformance suite rejects it.
    ShareOfSwarms(f64),
}

/// The memory that a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryUse {
    /// The number of bytes of swarms, peers and indexes.
    pub bytes: u64,
    /// Whether `bytes` is counted from allocations. Otherwise it is estimated from the numbers of swarms and
    /// peers.
    pub exact: bool,
}

impl MemoryUse {
    /// Returns a number of bytes that was counted.
    pub const fn exact(bytes: u64) -> Self {
        Self { bytes, exact: true }
    }

    /// Returns a number of bytes that was estimated.
    pub const fn estimated(bytes: u64) -> Self {
        Self { bytes, exact: false }
    }
}

/// The result of [`restore`](crate::TorrentRepository::restore): the number of peers by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Restored {
    /// Peers that were inserted.
    pub added: u64,
    /// Peers that were in the swarm already and stayed as they announced themselves.
    pub known: u64,
    /// Peers that were older than the lifetime.
    pub expired: u64,
    /// Peers that were refused because of a limit.
    pub refused: u64,
}

impl AddAssign for Restored {
    fn add_assign(&mut self, other: Self) {
        self.added += other.added;
        self.known += other.known;
        self.expired += other.expired;
        self.refused += other.refused;
    }
}

impl Restored {
    /// Counts the outcome for a peer that has not expired.
    pub const fn count(&mut self, result: Result<(), NotRestored>) {
        match result {
            Ok(()) => self.added += 1,
            Err(NotRestored::Known) => self.known += 1,
            Err(NotRestored::Full) => self.refused += 1,
        }
    }
}

/// The reason why a swarm did not accept a peer of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRestored {
    /// The peer is in the swarm already.
    Known,
    /// A limit is reached.
    Full,
}

#[cfg(test)]
mod tests {
    use serde::{
        Deserialize,
        de::value::{Error, MapDeserializer},
    };

    use super::*;
    use crate::Swept;

    #[test]
    fn a_count_that_an_older_version_did_not_write_is_zero() {
        fn read<'de, T: Deserialize<'de>>(written: &[(&'static str, u64)]) -> T {
            T::deserialize(MapDeserializer::<_, Error>::new(written.iter().copied())).unwrap()
        }
        assert_eq!(read::<Totals>(&[("swarms", 3)]), Totals { swarms: 3, ..Totals::default() });
        assert_eq!(read::<Evicted>(&[("peers", 3)]), Evicted::peers(3));
        assert_eq!(read::<Swept>(&[("expired", 3)]), Swept { expired: 3, ..Swept::default() });
        assert_eq!(read::<Restored>(&[("added", 3)]), Restored { added: 3, ..Restored::default() });
    }
}
