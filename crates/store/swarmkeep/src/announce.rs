//! The arguments and the results of an announce.

use std::{fmt, net::SocketAddr, ops::AddAssign, slice};

use crate::{AnnounceEvent, CompactV4, CompactV6, Endpoint, Family, InfoHash, PeerId, SwarmStats};

/// One announce, as the client sent it.
///
/// ```
/// use swarmkeep::{Announce, AnnounceEvent, InfoHash};
///
/// let announce = Announce::new(InfoHash::new([7; 20]), "192.0.2.1:6881".parse()?)
///     .event(AnnounceEvent::Started)
///     .left(0)
///     .want(50);
/// assert!(announce.role().is_seeder());
/// # Ok::<(), swarmkeep::bittorrent::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announce {
    /// The info hash of the torrent.
    pub info_hash: InfoHash,
    /// The endpoint at which the announcing peer listens: its identity in the swarm.
    pub endpoint: Endpoint,
    /// The event that the client reports.
    pub event: AnnounceEvent,
    /// The number of bytes that the peer still has to download; 0 makes it a seeder.
    pub left: u64,
    /// The number of bytes that the client reports as downloaded.
    pub downloaded: u64,
    /// The number of bytes that the client reports as uploaded.
    pub uploaded: u64,
    /// The peer id that the client chose.
    pub peer_id: PeerId,
    /// The maximum number of peers to select. The room in the [`PeerBuffer`] limits it too.
    pub want: usize,
    /// The address families to select peers from.
    pub families: Families,
    /// Whether a seeder asks for seeders too. A leecher is given them in any case.
    pub seeders_too: bool,
}

impl Announce {
    /// Returns a regular announce (no event) of a leecher that wants 50 peers of its own family.
    pub const fn new(info_hash: InfoHash, endpoint: Endpoint) -> Self {
        Self {
            info_hash,
            endpoint,
            event: AnnounceEvent::None,
            left: u64::MAX,
            downloaded: 0,
            uploaded: 0,
            peer_id: PeerId::new([0; 20]),
            want: 50,
            families: Families::of(endpoint.family()),
            seeders_too: false,
        }
    }

    /// Returns the same for a peer at a socket address.
    ///
    /// # Errors
    /// [`bittorrent::Error::PortZero`](crate::bittorrent::Error::PortZero): no peer can be reached there.
    pub fn at(info_hash: InfoHash, address: SocketAddr) -> Result<Self, crate::bittorrent::Error> {
        Endpoint::try_from(address).map(|endpoint| Self::new(info_hash, endpoint))
    }

    /// Sets the event.
    #[must_use]
    pub const fn event(mut self, event: AnnounceEvent) -> Self {
        self.event = event;
        self
    }

    /// Sets the number of bytes left to download; 0 makes the peer a seeder.
    #[must_use]
    pub const fn left(mut self, left: u64) -> Self {
        self.left = left;
        self
    }

    /// Sets the numbers of bytes that the client reports as downloaded and uploaded.
    #[must_use]
    pub const fn transferred(mut self, downloaded: u64, uploaded: u64) -> Self {
        self.downloaded = downloaded;
        self.uploaded = uploaded;
        self
    }

    /// Sets the peer id.
    #[must_use]
    pub const fn peer_id(mut self, peer_id: PeerId) -> Self {
        self.peer_id = peer_id;
        self
    }

    /// Sets the maximum number of peers to select.
    #[must_use]
    pub const fn want(mut self, want: usize) -> Self {
        self.want = want;
        self
    }

    /// Sets the address families to select peers from.
    #[must_use]
    pub const fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    /// Sets whether a seeder asks for seeders too. Some clients announce `left = 0` before they know how much
    /// there is to download: they have a magnet link, and need a peer for the metadata.
    #[must_use]
    pub const fn seeders_too(mut self, asked: bool) -> Self {
        self.seeders_too = asked;
        self
    }

    /// Returns [`Role::Seeder`] if nothing is left to download, [`Role::Leecher`] otherwise.
    pub const fn role(&self) -> Role {
        if self.left == 0 { Role::Seeder } else { Role::Leecher }
    }

    /// Returns whether seeders may be selected: for each leecher, and for a seeder that asks for them.
    pub const fn takes_seeders(&self) -> bool {
        self.left != 0 || self.seeders_too
    }
}

/// The role of a peer in its swarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Role {
    /// The peer has nothing left to download (`left == 0`).
    Seeder,
    /// The peer still has to download.
    Leecher,
}

impl Role {
    /// Returns whether the role is [`Role::Seeder`].
    pub const fn is_seeder(self) -> bool {
        matches!(self, Self::Seeder)
    }
}

bitflags::bitflags! {
    /// Address families to select peers from.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Families: u8 {
        /// IPv4 peers.
        const V4 = 1;
        /// IPv6 peers.
        const V6 = 2;
    }

    /// The changes that one announce made. Several can hold at once: a peer can join and complete in one
    /// announce.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Changes: u8 {
        /// The endpoint was not in the swarm before.
        const JOINED = 1;
        /// The endpoint was in the swarm already, and still is.
        const REFRESHED = 1 << 1;
        /// A download was counted.
        const COMPLETED = 1 << 2;
        /// A leecher became a seeder.
        const PROMOTED = 1 << 3;
        /// A seeder became a leecher.
        const DEMOTED = 1 << 4;
        /// The peer was in the swarm and has left it.
        const LEFT = 1 << 5;
        /// The swarm did not exist before.
        const CREATED = 1 << 6;
    }
}

/// The answer to an announce; the selected peers are in the caller's [`PeerBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Announced {
    /// The counts of the swarm after the announce.
    pub stats: SwarmStats,
    /// The changes that the announce made.
    pub changes: Changes,
    /// The peers and swarms that were evicted to make room; zero in a store without limits.
    pub evicted: Evicted,
}

impl Families {
    /// Returns the set of one family.
    pub const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

impl Announced {
    /// Returns an answer with no evictions.
    pub const fn new(stats: SwarmStats, changes: Changes) -> Self {
        Self { stats, changes, evicted: Evicted::peers(0) }
    }

    /// Returns the same answer with the evictions set.
    #[must_use]
    pub const fn evicting(mut self, evicted: Evicted) -> Self {
        self.evicted = evicted;
        self
    }
}

/// The numbers of swarms and peers that a store with limits evicted to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Evicted {
    /// The number of whole swarms.
    pub swarms: u64,
    /// The number of peers, including the peers of the evicted swarms.
    pub peers: u64,
}

impl Evicted {
    /// Returns the eviction of `peers` peers, and of no whole swarm.
    pub const fn peers(peers: u64) -> Self {
        Self { swarms: 0, peers }
    }
}

impl AddAssign for Evicted {
    fn add_assign(&mut self, other: Self) {
        self.swarms += other.swarms;
        self.peers += other.peers;
    }
}

/// One announce of a batch: the caller fills in `announce` and `peers`, the store `answer`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The announce of the client.
    pub announce: Announce,
    /// The buffer that the store writes the selected peers to.
    pub peers: PeerBuffer<'a>,
    /// The answer of the store; `None` until the announce is done.
    pub answer: Option<Announced>,
}

impl<'a> Request<'a> {
    /// Returns a request that has no answer yet.
    pub const fn new(announce: Announce, peers: PeerBuffer<'a>) -> Self {
        Self { announce, peers, answer: None }
    }

    /// Discards an earlier answer and the peers that were written with it. A store does so with all requests
    /// of a batch before it does the first.
    pub const fn clear(&mut self) {
        self.answer = None;
        self.peers.clear();
    }
}

/// The destination of the selected peers: bytes of the caller, one section per family, in the compact form of
/// BEP 23 and BEP 7. A tracker points it into the packet that it is about to send.
#[non_exhaustive]
pub struct PeerBuffer<'a> {
    /// The IPv4 peers, 6 bytes per peer.
    pub v4: Section<'a, { CompactV4::LEN }>,
    /// The IPv6 peers, 18 bytes per peer.
    pub v6: Section<'a, { CompactV6::LEN }>,
}

impl<'a> PeerBuffer<'a> {
    /// Returns an empty buffer with room for `v4.len() / 6` IPv4 peers and `v6.len() / 18` IPv6 peers. An
    /// empty slice has no room.
    pub const fn new(v4: &'a mut [u8], v6: &'a mut [u8]) -> Self {
        Self { v4: Section { bytes: v4, used: 0 }, v6: Section { bytes: v6, used: 0 } }
    }

    /// Returns an empty buffer with room for peers of one family only.
    pub const fn of(family: Family, bytes: &'a mut [u8]) -> Self {
        match family {
            Family::V4 => Self::new(bytes, &mut []),
            Family::V6 => Self::new(&mut [], bytes),
        }
    }

    /// Discards the peers that were written.
    pub const fn clear(&mut self) {
        self.v4.used = 0;
        self.v6.used = 0;
    }

    /// Returns the number of peers that were written, both families together.
    pub const fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns whether no peer was written.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of IPv4 and IPv6 peers to select into this buffer, if `v4_eligible` and
    /// `v6_eligible` peers are eligible: half of `want` for each family, and the part that one family does
    /// not use for the other. If `want` is odd, IPv4 gets the larger half.
    pub fn share(&self, want: usize, v4_eligible: usize, v6_eligible: usize) -> (usize, usize) {
        let (v4, v6) = (v4_eligible.min(self.v4.room()), v6_eligible.min(self.v6.room()));
        let v6 = v6.min((want / 2).max(want.saturating_sub(v4)));
        (v4.min(want - v6), v6)
    }

    /// Returns the peers that were written, IPv4 first.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + '_ {
        let valid = "stores write only endpoints that were valid when they announced";
        let v4 = self.v4.peers().iter().map(move |&bytes| Endpoint::try_from(bytes).expect(valid));
        let v6 = self.v6.peers().iter().map(move |&bytes| Endpoint::try_from(bytes).expect(valid));
        v4.chain(v6)
    }
}

impl fmt::Debug for PeerBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerBuffer({} IPv4, {} IPv6)", self.v4.len(), self.v6.len())
    }
}

/// The part of a [`PeerBuffer`] for one family: `N` bytes per peer.
pub struct Section<'a, const N: usize> {
    bytes: &'a mut [u8],
    used: usize,
}

impl<const N: usize> Section<'_, N> {
    /// Returns the number of peers that still fit.
    pub const fn room(&self) -> usize {
        (self.bytes.len() - self.used) / N
    }

    /// Returns the number of peers that were written.
    pub const fn len(&self) -> usize {
        self.used / N
    }

    /// Returns whether no peer was written.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the bytes that were written, ready to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns the peers that were written, in compact form.
    pub fn peers(&self) -> &[[u8; N]] {
        arrays(self.as_bytes())
    }
}

/// The methods with which a store writes the peers that it selects.
pub trait SectionExt<const N: usize> {
    /// Writes several peers at once.
    ///
    /// # Panics
    /// If there is not enough room. [`PeerBuffer::share`] never returns more peers than fit.
    fn extend(&mut self, peers: &[[u8; N]]);

    /// Writes one peer.
    ///
    /// # Panics
    /// If there is not enough room. [`PeerBuffer::share`] never returns more peers than fit.
    fn push(&mut self, peer: &[u8; N]) {
        self.extend(slice::from_ref(peer));
    }
}

impl<const N: usize> SectionExt<N> for Section<'_, N> {
    fn extend(&mut self, peers: &[[u8; N]]) {
        let bytes = peers.as_flattened();
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

impl<const N: usize> fmt::Debug for Section<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Section({} peers of {N} bytes)", self.len())
    }
}

/// The effect of an announce on its peer: the roles before and after, and whether a download is counted.
/// Every store uses this one definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// The role of the peer before the announce; `None` if it was not in the swarm.
    pub before: Option<Role>,
    /// The role of the peer after the announce; `None` if it has left.
    pub after: Option<Role>,
    /// Whether the announce counts a download: a `completed` with nothing left, of a peer that was not a
    /// seeder before.
    pub completed: bool,
}

impl Transition {
    /// Returns the effect of `announce` on a peer with the role `before`; `None` for a peer that was not in
    /// the swarm.
    pub fn new(announce: &Announce, before: Option<Role>) -> Self {
        let after = (announce.event != AnnounceEvent::Stopped).then(|| announce.role());
        let completed = announce.event == AnnounceEvent::Completed
            && after == Some(Role::Seeder)
            && before != Some(Role::Seeder);
        Self { before, after, completed }
    }

    /// Returns the effect as [`Announced::changes`] reports it, without [`Changes::CREATED`].
    pub fn changes(self) -> Changes {
        let mut changes = match (self.before, self.after) {
            (None, Some(_)) => Changes::JOINED,
            (Some(Role::Leecher), Some(Role::Seeder)) => Changes::REFRESHED | Changes::PROMOTED,
            (Some(Role::Seeder), Some(Role::Leecher)) => Changes::REFRESHED | Changes::DEMOTED,
            (Some(_), Some(_)) => Changes::REFRESHED,
            (Some(_), None) => Changes::LEFT,
            (None, None) => Changes::empty(),
        };
        changes.set(Changes::COMPLETED, self.completed);
        changes
    }
}

/// The networks of a compact endpoint of `len` bytes that
/// [`RepositoryConfig::max_endpoints_per_address`](crate::RepositoryConfig::max_endpoints_per_address)
/// limits, from narrow to wide: the bytes that their endpoints share, and the multiple of the limit.
pub(crate) const fn limited_networks(len: usize) -> &'static [(usize, u64)] {
    if len == CompactV4::LEN { &[(4, 1)] } else { &[(8, 1), (7, 5), (6, 25)] }
}

/// Returns the bytes that all endpoints of the widest limited network of `endpoint` share.
#[inline]
pub(crate) fn widest_network(endpoint: &[u8]) -> &[u8] {
    let (bytes, _) = limited_networks(endpoint.len()).last().expect("one at least");
    &endpoint[..*bytes]
}

/// Returns the place of the peer that announced least recently in the narrowest full network of `newcomer`,
/// or `None` if all its networks have room. Of several, the one with the smallest endpoint: stores with the
/// same peers choose the same one. `others` are the endpoint, the time and the place of all peers in the
/// widest, and perhaps of others.
#[inline]
pub(crate) fn displaced<'a, Time: Copy + Ord, Place: Copy>(
    newcomer: &[u8],
    others: impl Iterator<Item = (&'a [u8], Time, Place)>,
    limit: u64,
) -> Option<Place> {
    let (networks, mut held) = (limited_networks(newcomer.len()), [(0_u64, None::<(Time, &[u8], Place)>); 3]);
    others.for_each(|(other, time, place)| {
        for ((count, stalest), (bytes, _)) in held.iter_mut().zip(networks) {
            if other[..*bytes] == newcomer[..*bytes] {
                *count += 1;
                if stalest.is_none_or(|(least, first, _)| time < least || time == least && other < first) {
                    *stalest = Some((time, other, place));
                }
            }
        }
    });
    let is_full = |((count, _), (_, times)): &((u64, _), &(_, u64))| *count >= limit.saturating_mul(*times);
    held.into_iter()
        .zip(networks)
        .find(is_full)
        .and_then(|((_, stalest), _)| stalest.map(|(.., place)| place))
}

/// The bytes as arrays. Panics if there is a shorter rest.
#[inline]
pub(crate) fn arrays<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytemuck::cast_slice(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_gives_each_family_half_and_the_rest_to_the_larger_one() {
        let (mut v4, mut v6) = ([0; 70 * CompactV4::LEN], [0; 50 * CompactV6::LEN]);
        let peers = PeerBuffer::new(&mut v4, &mut v6);
        let share = |want, v4, v6| peers.share(want, v4, v6);
        assert_eq!(share(50, 80, 80), (25, 25));
        assert_eq!(share(50, 80, 3), (47, 3));
        assert_eq!(share(50, 3, 80), (3, 47));
        assert_eq!(share(51, 80, 80), (26, 25));
        assert_eq!(share(50, 0, 0), (0, 0));
        assert_eq!(share(1, 1, 1), (1, 0));
        assert_eq!(share(0, 9, 9), (0, 0));
        // The room limits the shares.
        assert_eq!(share(200, 100, 100), (70, 50));
        assert_eq!(share(90, 20, 100), (20, 50));
    }
}
