//! What a repository reports: counts, peers, positions, capabilities.

use std::ops::AddAssign;

use crate::{CompactV4, CompactV6, Endpoint, Evicted, InfoHash, PeerId, Role, Timestamp};

/// The counts of one swarm, as a scrape shows them (BEP 15, BEP 48). Counters saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwarmStats {
    /// Seeders.
    pub complete: u32,
    /// Leechers.
    pub incomplete: u32,
    /// Finished downloads.
    pub downloaded: u32,
}

impl SwarmStats {
    /// Seeders and leechers together.
    pub const fn peers(&self) -> u64 {
        self.complete as u64 + self.incomplete as u64
    }
}

/// One swarm as [`walk`](crate::TorrentRepository::walk) and [`page`](crate::TorrentRepository::page) show
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwarmSummary {
    /// The torrent.
    pub info_hash: InfoHash,
    /// Its counts.
    pub stats: SwarmStats,
}

/// One peer as [`peers`](crate::TorrentRepository::peers) shows it and
/// [`restore`](crate::TorrentRepository::restore) takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerRecord {
    /// Where the peer listens.
    pub endpoint: Endpoint,
    /// What it is in the swarm.
    pub role: Role,
    /// When it last announced, to the store's clock resolution.
    pub last_announce: Timestamp,
    /// What else it said; `None` in a store that does not keep it.
    pub details: Option<PeerDetails>,
}

/// What a peer says of itself beyond what a tracker needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerDetails {
    /// What the client calls itself.
    pub peer_id: PeerId,
    /// Bytes it says it has uploaded.
    pub uploaded: u64,
    /// Bytes it says it has downloaded.
    pub downloaded: u64,
    /// Bytes it says it has left.
    pub left: u64,
}

/// Seeders and leechers of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerCounts {
    /// Peers that have everything.
    pub seeders: u64,
    /// Peers that have not.
    pub leechers: u64,
}

impl PeerCounts {
    /// Seeders and leechers together.
    pub const fn peers(&self) -> u64 {
        self.seeders + self.leechers
    }
}

/// Counts over the whole repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Totals {
    /// Swarms, those included that are kept only for their download count.
    pub swarms: u64,
    /// IPv4 peers.
    pub v4: PeerCounts,
    /// IPv6 peers.
    pub v6: PeerCounts,
    /// What limits have cost since the store was built.
    pub evicted: Evicted,
}

impl Totals {
    /// Peers of both families.
    pub const fn peers(&self) -> u64 {
        self.v4.peers() + self.v6.peers()
    }
}

/// A position in a listing: up to 24 bytes that only the store that made them understands. It stays good for
/// as long as the store lives, whatever changes meanwhile.
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
    /// Before the first.
    pub const START: Self = Self { at: Position::Start };
    /// Behind the last: there is nothing more to ask for.
    pub const END: Self = Self { at: Position::End };

    /// Whether there is nothing more to ask for.
    pub const fn is_end(&self) -> bool {
        matches!(self.at, Position::End)
    }
}

/// How a store makes its cursors, and reads them again.
///
/// A listing whose order is that of info hashes or endpoints needs no more than these: the cursor is the last
/// item shown.
pub trait CursorExt: Sized {
    /// The position after the item that `bytes` name to the store.
    ///
    /// # Panics
    /// If there are more than 24 bytes.
    fn after(bytes: &[u8]) -> Self;

    /// The bytes of the item before the position; `None` at the start and at the end.
    fn bytes(&self) -> Option<&[u8]>;

    /// The swarm before the position in a listing of swarms; `None` at the start and at the end.
    fn info_hash(&self) -> Option<InfoHash> {
        Some(InfoHash::new(self.bytes()?.try_into().ok()?))
    }

    /// The peer before the position in a listing of peers; `None` at the start and at the end. The number of
    /// bytes decides the family.
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

/// What a store can do beyond what all of them must. The conformance suite asserts each of these, and the
/// refusal of what is not declared.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Peer ids and byte counts come back from [`peers`](crate::TorrentRepository::peers).
    pub keeps_peer_details: bool,
    /// What a [`page`](crate::TorrentRepository::page) in info-hash order costs.
    pub page_cost: PageCost,
    /// The limits that the store keeps; it refuses to be built with others.
    pub bounded: BoundedBy,
    /// Seconds by which a peer may outlive its lifetime in front of a sweep.
    pub clock_resolution_secs: u64,
    /// The longest lifetime it can be built with, in seconds.
    pub longest_lifetime_secs: u64,
    /// The longest that one step of a sweep, walk or page keeps an announce waiting.
    pub longest_hold: LongestHold,
}

impl Capabilities {
    /// A store with none: no details, no limits, a clock of whole seconds, pages by looking at everything.
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

    /// Declares that peer ids and byte counts come back.
    #[must_use]
    pub const fn with_peer_details(mut self) -> Self {
        self.keeps_peer_details = true;
        self
    }

    /// Declares what a page costs.
    #[must_use]
    pub const fn with_page_cost(mut self, cost: PageCost) -> Self {
        self.page_cost = cost;
        self
    }

    /// Declares which limits are kept.
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
    /// Which limits a store keeps.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct BoundedBy: u8 {
        /// The number of swarms.
        const SWARMS = 1;
        /// The number of peers in one swarm.
        const PEERS_PER_SWARM = 2;
        /// Bytes.
        const BYTES = 4;
        /// The number of endpoints of one address in one swarm.
        const ENDPOINTS_PER_ADDRESS = 8;
    }
}

/// What it costs to show `limit` of `n` swarms in info-hash order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCost {
    /// O(limit + log n): the store is kept in that order.
    Ordered,
    /// O(n): the store looks at every swarm to find the next ones.
    WholeStore,
}

/// The longest that one step keeps an announce waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LongestHold {
    /// While this number of peers or swarms is visited, however large the store is.
    Visits(usize),
    /// While this share of all swarms is visited, above 0 and below 1: the map cannot stop in between, so it
    /// has to be divided into shards. A map that is visited as a whole makes a sweep take quadratic time, and
    /// the conformance suite rejects it.
    ShareOfSwarms(f64),
}

/// What a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryUse {
    /// Bytes of swarms, peers and what finds them.
    pub bytes: u64,
    /// Whether `bytes` is counted from allocations; otherwise estimated from the number of swarms and peers.
    pub exact: bool,
}

impl MemoryUse {
    /// Bytes that were counted.
    pub const fn exact(bytes: u64) -> Self {
        Self { bytes, exact: true }
    }

    /// Bytes that were estimated.
    pub const fn estimated(bytes: u64) -> Self {
        Self { bytes, exact: false }
    }
}

/// What [`restore`](crate::TorrentRepository::restore) took in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Restored {
    /// Peers that are now in the swarm and were not before.
    pub added: u64,
    /// Peers that were in the swarm already; what they announced themselves stays.
    pub known: u64,
    /// Peers that have outlived their lifetime meanwhile.
    pub expired: u64,
    /// Peers that a limit kept out.
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
    /// Counts what became of a peer that has not expired.
    pub const fn count(&mut self, result: Result<(), NotRestored>) {
        match result {
            Ok(()) => self.added += 1,
            Err(NotRestored::Known) => self.known += 1,
            Err(NotRestored::Full) => self.refused += 1,
        }
    }
}

/// Why a swarm did not accept a peer of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRestored {
    /// The peer is in the swarm already.
    Known,
    /// A limit excludes it.
    Full,
}
