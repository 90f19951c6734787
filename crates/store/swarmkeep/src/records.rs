//! Records: swarms between an export and an import, encoded as in a snapshot.

use std::{fmt, iter};

use crate::{
    CompactV4, CompactV6, Endpoint, Family, InfoHash, PeerDetails, PeerId, PeerRecord, Role, SwarmSummary,
    Timestamp,
};

/// A list of swarms with their download counts and peers, encoded in bytes. A swarm of one IPv4 peer takes 29
/// bytes; each further IPv4 peer takes 8 bytes, and each IPv6 peer 20.
///
/// A large swarm may be split into several records, each with the download count at its time. The last of
/// them has the largest count.
///
/// `docs/formats/snapshot.md` of the repository describes the encoding byte by byte: a block of a snapshot
/// contains these bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Records {
    bytes: Vec<u8>,
    until: Timestamp,
    swarms: u32,
    peers: u64,
}

/// The number of seconds after the start of the records up to which an announce keeps its exact time. Reading
/// a step takes milliseconds, while other peers go on announcing.
const SLACK: u64 = 255;

/// The first byte of a record: the widths of the fields that follow.
mod flags {
    /// The number of peers: none, one, counts of one byte per section, or counts of four bytes.
    pub(super) const PEERS: u8 = 0b11;
    pub(super) const NONE: u8 = 0;
    pub(super) const ONE: u8 = 1;
    pub(super) const COUNTS: u8 = 2;
    pub(super) const WIDE_COUNTS: u8 = 3;
    /// The width of the download count: absent for 0, one byte, or four bytes.
    pub(super) const DOWNLOADED: u8 = 0b11 << 2;
    pub(super) const NARROW: u8 = 1 << 2;
    pub(super) const WIDE: u8 = 2 << 2;
    /// Ages have four bytes instead of two.
    pub(super) const WIDE_AGES: u8 = 1 << 4;
    /// Each peer has its peer id and byte counts.
    pub(super) const DETAILS: u8 = 1 << 5;
    /// The section of the one peer.
    pub(super) const SECTION: u32 = 6;
}

/// The peers of a record are grouped by family and role, in this order.
const SECTIONS: [(Family, Role); 4] = [
    (Family::V4, Role::Seeder),
    (Family::V4, Role::Leecher),
    (Family::V6, Role::Seeder),
    (Family::V6, Role::Leecher),
];
const WIDTHS: [usize; 4] = [CompactV4::LEN, CompactV4::LEN, CompactV6::LEN, CompactV6::LEN];
/// The number of bytes reserved per visit: at least a swarm of one peer, the most frequent size.
const MOST_A_VISIT: usize = 40;
/// The maximum number of bytes of a record before its peers: flags, info hash, download count, counts per
/// section.
const LONGEST_HEAD: usize = 1 + InfoHash::LEN + 4 + 16;
const DETAILS: usize = PeerId::LEN + 3 * 8;

fn section_of(peer: &PeerRecord) -> usize {
    2 * usize::from(peer.endpoint.family() == Family::V6) + usize::from(!peer.role.is_seeder())
}

impl Records {
    /// Returns an empty list. Its peers announced before `now`, or announce while the records are collected.
    pub const fn new(now: Timestamp) -> Self {
        Self { bytes: Vec::new(), until: now.saturating_add(SLACK), swarms: 0, peers: 0 }
    }

    /// Returns an empty list with room for `bytes` bytes of encoded records.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::new(Timestamp::default()) }
    }

    /// Clears the list, and starts a new one at `now`.
    pub fn begin(&mut self, now: Timestamp) {
        self.bytes.clear();
        (self.until, self.swarms, self.peers) = (now.saturating_add(SLACK), 0, 0);
    }

    /// Adds a swarm, or a part of one. Fields that a store does not keep are not written. O(peers).
    pub fn push(&mut self, info_hash: &InfoHash, downloaded: u32, peers: &[PeerRecord]) {
        let (with, without): (Vec<_>, Vec<_>);
        let parts: [&[PeerRecord]; 2] = if peers.iter().all(|peer| peer.details.is_none()) {
            [peers, &[]]
        } else {
            (with, without) = peers.iter().partition(|peer| peer.details.is_some());
            [&with, &without]
        };
        for part in parts.into_iter().enumerate().filter(|(n, part)| *n == 0 || !part.is_empty()) {
            self.push_alike(info_hash, downloaded, part.1);
        }
    }

    /// The same for peers that all have details, or all have none.
    fn push_alike(&mut self, info_hash: &InfoHash, downloaded: u32, peers: &[PeerRecord]) {
        let mut counts = [0; 4];
        peers.iter().for_each(|peer| counts[section_of(peer)] += 1);
        let has_details = peers.first().is_some_and(|peer| peer.details.is_some());
        let times = peers.iter().map(|peer| peer.last_announce);
        let is_wide = times.clone().any(|time| self.is_wide(time));
        self.head(info_hash, downloaded, counts, is_wide, has_details);
        let mut sorted: Vec<&PeerRecord> = peers.iter().collect();
        sorted.sort_by_key(|peer| section_of(peer));
        sorted.iter().for_each(|peer| self.bytes.extend_from_slice(peer.endpoint.as_bytes()));
        self.ages(sorted.iter().map(|peer| peer.last_announce), is_wide);
        for PeerDetails { peer_id, uploaded, downloaded, left } in
            sorted.iter().filter_map(|peer| peer.details)
        {
            self.bytes.extend_from_slice(peer_id.as_bytes());
            [uploaded, downloaded, left].iter().for_each(|n| self.bytes.extend_from_slice(&n.to_le_bytes()));
        }
    }

    /// Reserves memory for about `visits` swarms and peers.
    pub(crate) fn reserve(&mut self, visits: usize) {
        self.bytes.reserve(visits * MOST_A_VISIT);
    }

    /// Adds a swarm from a store that keeps its peers in this order already: endpoints and times by section.
    #[inline(always)]
    pub(crate) fn push_sections(
        &mut self,
        info_hash: &InfoHash,
        downloaded: u32,
        counts: [u32; 4],
        endpoints: &[u8],
        times: impl ExactSizeIterator<Item = Timestamp> + Clone,
    ) {
        let is_wide = times.clone().any(|time| self.is_wide(time));
        self.head(info_hash, downloaded, counts, is_wide, false);
        self.bytes.extend_from_slice(endpoints);
        self.ages(times, is_wide);
    }

    /// Adds a swarm of one IPv4 peer: the most frequent one, so it is written in place by words.
    #[inline(always)]
    pub(crate) fn push_one(
        &mut self,
        info_hash: &InfoHash,
        downloaded: u32,
        role: Role,
        endpoint: [u8; CompactV4::LEN],
        time: Timestamp,
    ) {
        const LONGEST: usize = 1 + InfoHash::LEN + 1 + CompactV4::LEN + 2;
        let section = usize::from(!role.is_seeder());
        let (Ok(downloaded), false) = (u8::try_from(downloaded), self.is_wide(time)) else {
            let counts = [0, 1, 2, 3].map(|n| u32::from(n == section));
            return self.push_sections(info_hash, downloaded, counts, &endpoint, iter::once(time));
        };
        let has_downloads = downloaded > 0;
        let age = self.until.secs_since(time) as u16;
        self.bytes.extend_from_slice(&[0; LONGEST]);
        let record: &mut [u8; LONGEST] = self.bytes.last_chunk_mut().expect("just made");
        let flags = flags::ONE | if has_downloads { flags::NARROW } else { 0 };
        record[0] = flags | (section as u8) << flags::SECTION;
        write_by_words(record, info_hash);
        record[21] = downloaded;
        let rest = &mut record[21 + usize::from(has_downloads)..];
        rest[..CompactV4::LEN].copy_from_slice(&endpoint);
        rest[CompactV4::LEN..][..2].copy_from_slice(&age.to_le_bytes());
        self.bytes.truncate(self.bytes.len() - usize::from(!has_downloads));
        self.swarms += 1;
        self.peers += 1;
    }

    #[inline(always)]
    fn head(
        &mut self,
        info_hash: &InfoHash,
        downloaded: u32,
        counts: [u32; 4],
        wide_ages: bool,
        details: bool,
    ) {
        let peers: u32 = counts.iter().sum();
        let (count_flags, narrow_counts) = match peers {
            0 => (flags::NONE, None),
            1 => {
                let section = counts.iter().position(|&count| count == 1).expect("they add up to 1");
                (flags::ONE | (section as u8) << flags::SECTION, None)
            }
            _ if counts.iter().all(|&count| count <= u32::from(u8::MAX)) => (flags::COUNTS, Some(true)),
            _ => (flags::WIDE_COUNTS, Some(false)),
        };
        let download_flags = match downloaded {
            0 => 0,
            1..=255 => flags::NARROW,
            _ => flags::WIDE,
        };
        let other = if wide_ages { flags::WIDE_AGES } else { 0 } | if details { flags::DETAILS } else { 0 };
        let start = self.bytes.len();
        self.bytes.resize(start + LONGEST_HEAD, 0);
        let head: &mut [u8; LONGEST_HEAD] = self.bytes.last_chunk_mut().expect("just made");
        head[0] = count_flags | download_flags | other;
        write_by_words(head, info_hash);
        let mut len = 1 + InfoHash::LEN;
        let mut put = |bytes: &[u8]| {
            head[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        match download_flags {
            0 => {}
            flags::NARROW => put(&[downloaded as u8]),
            _ => put(&downloaded.to_le_bytes()),
        }
        match narrow_counts {
            None => {}
            Some(true) => put(&counts.map(|count| count as u8)),
            Some(false) => counts.iter().for_each(|count| put(&count.to_le_bytes())),
        }
        self.bytes.truncate(start + len);
        self.swarms += 1;
        self.peers += u64::from(peers);
    }

    fn ages(&mut self, times: impl ExactSizeIterator<Item = Timestamp>, is_wide: bool) {
        let start = self.bytes.len();
        let until = self.until;
        let ages = times.map(|time| until.secs_since(time));
        if is_wide {
            self.bytes.resize(start + 4 * ages.len(), 0);
            for (bytes, age) in self.bytes[start..].chunks_exact_mut(4).zip(ages) {
                bytes.copy_from_slice(&u32::try_from(age).unwrap_or(u32::MAX).to_le_bytes());
            }
        } else {
            self.bytes.resize(start + 2 * ages.len(), 0);
            for (bytes, age) in self.bytes[start..].chunks_exact_mut(2).zip(ages) {
                bytes.copy_from_slice(&(age as u16).to_le_bytes());
            }
        }
    }

    fn is_wide(&self, time: Timestamp) -> bool {
        self.until.secs_since(time) > u64::from(u16::MAX)
    }

    /// Returns the number of records: swarms, and parts of swarms.
    pub const fn swarms(&self) -> u32 {
        self.swarms
    }

    /// Returns the number of peers in all records.
    pub const fn peers(&self) -> u64 {
        self.peers
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.swarms == 0
    }

    /// Returns the encoded records.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the time to which the encoded ages are relative.
    pub const fn until(&self) -> Timestamp {
        self.until
    }

    /// Replaces the records by the bytes that `fill` appends, with ages relative to `until`. After an error
    /// the list is empty.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not records, or an error of `fill`.
    pub fn read<E: From<Malformed>>(
        &mut self,
        until: Timestamp,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes.clear();
        let read = fill(&mut self.bytes).and_then(|()| Ok(count(&self.bytes)?));
        (self.until, self.swarms, self.peers) = (until, 0, 0);
        match read {
            Ok((swarms, peers)) => (self.swarms, self.peers) = (swarms, peers),
            Err(_) => self.bytes.clear(),
        }
        read.map(|_| ())
    }

    /// Adds the records of another list. Returns `false`, and adds nothing, if the encoded ages of both lists
    /// are relative to different times.
    pub fn append(&mut self, other: &Self) -> bool {
        if self.is_empty() {
            self.until = other.until;
        }
        let is_same = self.until == other.until;
        if is_same {
            self.bytes.extend_from_slice(&other.bytes);
            self.swarms += other.swarms;
            self.peers += other.peers;
        }
        is_same
    }

    /// Moves the time of every peer `seconds` into the past.
    #[cfg(feature = "snapshot")]
    pub(crate) fn move_back(&mut self, seconds: u64) {
        self.until = self.until.saturating_sub(seconds);
    }

    /// Returns the swarms, and the parts of swarms, in order.
    pub fn iter(&self) -> impl Iterator<Item = SwarmRecord<'_>> {
        self.iter_from(0).map(|(_, record)| record)
    }

    /// Returns the records from the byte position `at` on, each with its own position. A record must begin at
    /// `at`.
    pub(crate) fn iter_from(&self, at: usize) -> impl Iterator<Item = (usize, SwarmRecord<'_>)> {
        let mut rest = &self.bytes[at..];
        iter::from_fn(move || {
            (!rest.is_empty()).then(|| {
                let at = self.bytes.len() - rest.len();
                let record;
                (record, rest) =
                    SwarmRecord::split_off(rest, self.until).expect("looked at when they were read");
                (at, record)
            })
        })
    }
}

/// Writes the info hash of a record in place and by words: a store that keeps it in another form has just
/// built it.
#[inline(always)]
fn write_by_words(record: &mut [u8], info_hash: &InfoHash) {
    let bytes = info_hash.as_bytes();
    record[1..9].copy_from_slice(&bytes[..8]);
    record[9..17].copy_from_slice(&bytes[8..16]);
    record[17..21].copy_from_slice(&bytes[16..]);
}

/// Returns the numbers of records and peers, if all of `bytes` is valid.
fn count(bytes: &[u8]) -> Result<(u32, u64), Malformed> {
    let (mut rest, mut swarms, mut peers) = (bytes, 0, 0);
    while !rest.is_empty() {
        let at = |malformed: Malformed| Malformed { at: bytes.len() - rest.len(), ..malformed };
        let (record, behind) = SwarmRecord::split_off(rest, Timestamp::default()).map_err(at)?;
        record.check().map_err(at)?;
        (rest, swarms, peers) = (behind, swarms + 1, peers + record.peers as u64);
    }
    Ok((swarms, peers))
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({} swarms, {} peers, {} bytes)", self.swarms, self.peers, self.bytes.len())
    }
}

/// The error of bytes that are not records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct Malformed {
    /// The byte position at which the record begins.
    pub at: usize,
    /// The problem with the record.
    pub what: &'static str,
}

impl Malformed {
    const fn new(what: &'static str) -> Self {
        Self { at: 0, what }
    }
}

/// One swarm of [`Records`], or a part of one.
#[derive(Debug, Clone, Copy)]
pub struct SwarmRecord<'a> {
    /// The info hash of the torrent.
    pub info_hash: InfoHash,
    /// The number of finished downloads.
    pub downloaded: u32,
    counts: [u32; 4],
    peers: usize,
    endpoints: &'a [u8],
    ages: &'a [u8],
    details: &'a [u8],
    until: Timestamp,
}

impl<'a> SwarmRecord<'a> {
    fn split_off(bytes: &'a [u8], until: Timestamp) -> Result<(Self, &'a [u8]), Malformed> {
        let mut rest = bytes;
        let mut take = |len: usize| {
            let (taken, behind) =
                rest.split_at_checked(len).ok_or(Malformed::new("a record ends too early"))?;
            rest = behind;
            Ok::<_, Malformed>(taken)
        };
        let head = take(1 + InfoHash::LEN)?;
        let (flags, info_hash) = head.split_first().expect("one byte and an info hash");
        let info_hash = InfoHash::new(info_hash.try_into().expect("as long as one"));
        let downloaded = match flags & flags::DOWNLOADED {
            0 => 0,
            flags::NARROW => take(1)?[0].into(),
            flags::WIDE => le32(take(4)?),
            _ => return Err(Malformed::new("a download count has an unknown width")),
        };
        let section = usize::from(flags >> flags::SECTION);
        let counts = match flags & flags::PEERS {
            flags::ONE => [0, 1, 2, 3].map(|n| u32::from(n == section)),
            _ if section != 0 => return Err(Malformed::new("bits are set that mean nothing")),
            flags::NONE => [0; 4],
            flags::COUNTS => std::array::from_fn({
                let counts = take(4)?;
                |n| counts[n].into()
            }),
            _ => std::array::from_fn({
                let counts = take(16)?;
                |n| le32(&counts[4 * n..4 * n + 4])
            }),
        };
        // At most 2^32 peers per section, of 18 bytes each: far below 2^64. On machines with smaller
        // addresses `fits` rejects the length.
        let peers = counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        let long: u64 =
            counts.iter().zip(WIDTHS).map(|(&count, width)| u64::from(count) * width as u64).sum();
        let fits = |len: u64| usize::try_from(len).map_err(|_| Malformed::new("a record ends too early"));
        let endpoints = take(fits(long)?)?;
        let ages = take(fits(peers * if flags & flags::WIDE_AGES == 0 { 2 } else { 4 })?)?;
        let details = if flags & flags::DETAILS == 0 { 0 } else { DETAILS as u64 };
        let details = take(fits(peers * details)?)?;
        let peers = fits(peers)?;
        Ok((Self { info_hash, downloaded, counts, peers, endpoints, ages, details, until }, rest))
    }

    /// Checks that every endpoint is valid and of the family of its section.
    fn check(&self) -> Result<(), Malformed> {
        let is_good = |section: usize, endpoint: &[u8]| {
            let endpoint = endpoint_of(section, endpoint);
            endpoint.is_some_and(|endpoint| endpoint.family() == SECTIONS[section].0)
        };
        match self.endpoints().all(|(section, endpoint)| is_good(section, endpoint)) {
            true => Ok(()),
            false => Err(Malformed::new("an endpoint has port 0 or is of the other family")),
        }
    }

    fn endpoints(&self) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let (counts, mut rest) = (self.counts, self.endpoints);
        (0..4).flat_map(move |section| {
            let (own, behind) = rest.split_at(counts[section] as usize * WIDTHS[section]);
            rest = behind;
            own.chunks_exact(WIDTHS[section]).map(move |endpoint| (section, endpoint))
        })
    }

    fn age(&self, nth: usize) -> u64 {
        match self.ages.len() / self.peers {
            2 => u16::from_le_bytes([self.ages[2 * nth], self.ages[2 * nth + 1]]).into(),
            _ => le32(&self.ages[4 * nth..4 * nth + 4]).into(),
        }
    }

    fn details(&self, nth: usize) -> Option<PeerDetails> {
        let details = self.details.chunks_exact(DETAILS).nth(nth)?;
        let (peer_id, counts) = details.split_first_chunk().expect("longer than a peer id");
        let [uploaded, downloaded, left] =
            [0, 8, 16].map(|at| u64::from_le_bytes(*counts[at..].first_chunk().expect("three counts")));
        Some(PeerDetails { peer_id: PeerId::new(*peer_id), uploaded, downloaded, left })
    }

    /// Returns the number of peers.
    pub const fn len(&self) -> usize {
        self.peers
    }

    /// Returns whether the record has no peers.
    pub const fn is_empty(&self) -> bool {
        self.peers == 0
    }

    /// Returns the peers: IPv4 before IPv6, and seeders before leechers in each family.
    pub fn peers(&self) -> impl Iterator<Item = PeerRecord> + use<'a> {
        let record = *self;
        self.endpoints().enumerate().map(move |(nth, (section, endpoint))| PeerRecord {
            endpoint: endpoint_of(section, endpoint).expect("looked at when it was read"),
            role: SECTIONS[section].1,
            last_announce: record.until.saturating_sub(record.age(nth)),
            details: record.details(nth),
        })
    }

    /// Returns the swarm as [`restore`](crate::TorrentRepository::restore) expects it: with its download
    /// count, and zero seeders and leechers.
    pub fn summary(&self) -> SwarmSummary {
        let stats = crate::SwarmStats { downloaded: self.downloaded, ..Default::default() };
        SwarmSummary { info_hash: self.info_hash, stats }
    }
}

fn endpoint_of(section: usize, bytes: &[u8]) -> Option<Endpoint> {
    match SECTIONS[section].0 {
        Family::V4 => <[u8; CompactV4::LEN]>::try_from(bytes).ok()?.try_into().ok(),
        Family::V6 => <[u8; CompactV6::LEN]>::try_from(bytes).ok()?.try_into().ok(),
    }
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(*bytes.first_chunk().expect("four bytes were taken"))
}

#[cfg(test)]
mod tests;
