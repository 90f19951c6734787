//! A slot of a leaf: the rest of a key, and one word that contains a swarm or says where its peers are.

use crate::{
    CompactV4, CompactV6, Endpoint, Family, PeerCounts, Retention, Role,
    packed::{hash::Key, linear::BucketRange},
    totals::Population,
};

/// The leading bits that all keys of a leaf share. Slots do not store their whole bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::packed) struct Prefix {
    /// The bits, from the most significant one.
    pub(in crate::packed) bits: u64,
    /// The number of bits.
    pub(in crate::packed) depth: u32,
}

/// Bytes of a key.
pub(super) const KEY_LEN: usize = 20;
/// Bytes of [`SlotContent`].
pub(super) const CONTENT_LEN: usize = 8;

impl Prefix {
    /// The prefix of all keys in a range of the keys that begin with this one.
    pub(in crate::packed) const fn extended(self, range: BucketRange) -> Self {
        Self { bits: self.bits | range.start >> self.depth, depth: self.depth + range.depth }
    }

    /// Bytes of a key that a slot does not store.
    pub(super) const fn dropped(self) -> usize {
        (self.depth / 8) as usize
    }

    pub(super) const fn stride(self) -> usize {
        KEY_LEN - self.dropped() + CONTENT_LEN
    }

    /// The first of all keys with this prefix.
    pub(in crate::packed) fn first_key(self) -> Key {
        Key::default().with_head(self.bits)
    }

    /// The whole key, from the part that a slot stores. Reads word by word: a read of bytes that were just
    /// written in other pieces has to wait until they have reached the cache.
    pub(super) fn complete(self, rest: &[u8]) -> Key {
        let (head, tail) = (rest.first_chunk(), rest.last_chunk::<{ KEY_LEN - 8 }>());
        let (head, tail) = (*head.expect("more than a word"), tail.expect("more than a key's end"));
        let mut key = Key([0; KEY_LEN]);
        let head = self.bits & !(u64::MAX >> (8 * self.dropped()))
            | u64::from_be_bytes(head) >> (8 * self.dropped());
        key.0[..8].copy_from_slice(&head.to_be_bytes());
        key.0[8..].copy_from_slice(tail);
        key
    }
}

/// The position of a swarm in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct Slot {
    pub(in crate::packed) index: usize,
    pub(super) stride: usize,
}

impl Slot {
    /// The position of the next swarm.
    pub(in crate::packed) const fn next(self) -> Self {
        Self { index: self.index + 1, ..self }
    }

    pub(super) const fn start(self) -> usize {
        self.index * self.stride
    }

    pub(super) const fn content_at(self) -> usize {
        (self.index + 1) * self.stride - CONTENT_LEN
    }

    /// The position of the stamp in the content.
    pub(super) const fn stamp_at(self) -> usize {
        self.content_at() + CONTENT_LEN - 2
    }
}

/// The content of a slot: one little-endian word. Its last byte has the variant, among other flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) enum SlotContent {
    /// No peers.
    Empty(NoPeers),
    /// One IPv4 peer.
    One(OnePeer),
    /// Some peers, in a block.
    Few(FewPeers),
    /// Peers in tables of their own. The shard finds them by this number.
    Large(u32),
}

/// Bytes 0-3: downloads. Byte 6: the stamp of the last announce that was seen. Byte 7: flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct NoPeers(u64);

/// Bytes 0-5: the endpoint. Byte 6: its stamp. Byte 7: flags, among them up to 15 downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct OnePeer(u64);

/// Bytes 0-3: peers per [`Section`]. Bytes 4-5: where the block begins, counted from the end of the slots.
/// Byte 6: the downloads, or [`WIDE_DOWNLOADS`]. Byte 7: flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct FewPeers(pub(super) u64);

/// In byte 6: the downloads are in the first four bytes of the block.
pub(super) const WIDE_DOWNLOADS: u8 = u8::MAX;

/// The bits that say which variant of [`SlotContent`] a word is.
const KIND: u64 = 0b11 << 56;
const ONE: u64 = 1 << 56;
const FEW: u64 = 2 << 56;
const LARGE: u64 = 3 << 56;
/// Whether the swarm has shown that it lives: a peer [came back](crate::packed::clock::Clock::is_return), or
/// a snapshot contained the swarm. Most made-up swarms are evicted before that.
pub(in crate::packed) const PROVEN: u64 = 1 << 58;
/// Whether the only peer is a seeder.
const SEEDER: u64 = 1 << 59;
/// The shift of the downloads of a swarm of one peer.
const ONE_DOWNLOADED: u32 = 60;

const STAMP: u32 = 48;
const ENDPOINT: u64 = (1 << STAMP) - 1;

impl NoPeers {
    pub(in crate::packed) fn new(downloaded: u32, latest: u8) -> Self {
        Self(u64::from(downloaded) | u64::from(latest) << STAMP)
    }

    pub(in crate::packed) const fn downloaded(self) -> u32 {
        self.0 as u32
    }

    pub(in crate::packed) const fn latest(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    /// Whether a sweep removes the swarm.
    pub(in crate::packed) fn is_idle(self, policy: Retention) -> bool {
        policy == Retention::DropEmpty || self.downloaded() == 0
    }
}

impl OnePeer {
    pub(in crate::packed) fn new(
        endpoint: &[u8; CompactV4::LEN],
        role: Role,
        stamp: u8,
        downloaded: NarrowDownloads,
    ) -> Self {
        Self(Self::endpoint_bits(endpoint) | ONE).announced(role, stamp, downloaded)
    }

    const fn endpoint_bits(&[a, b, c, d, e, f]: &[u8; CompactV4::LEN]) -> u64 {
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    pub(in crate::packed) const fn endpoint(self) -> [u8; CompactV4::LEN] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    #[inline]
    pub(in crate::packed) const fn is_at(self, endpoint: &[u8; CompactV4::LEN]) -> bool {
        self.0 & ENDPOINT == Self::endpoint_bits(endpoint)
    }

    #[inline]
    pub(in crate::packed) const fn role(self) -> Role {
        if self.0 & SEEDER != 0 { Role::Seeder } else { Role::Leecher }
    }

    pub(in crate::packed) const fn stamp(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    #[inline]
    pub(in crate::packed) const fn downloaded(self) -> u32 {
        (self.0 >> ONE_DOWNLOADED) as u32
    }

    /// The same peer after another announce.
    #[inline]
    pub(in crate::packed) fn announced(self, role: Role, stamp: u8, downloaded: NarrowDownloads) -> Self {
        let rest = self.0 & (ENDPOINT | ONE | PROVEN);
        let seeder = if role.is_seeder() { SEEDER } else { 0 };
        Self(rest | u64::from(stamp) << STAMP | seeder | downloaded.0 << ONE_DOWNLOADED)
    }
}

/// A download count that fits beside a single peer: at most 15.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) struct NarrowDownloads(u64);

impl NarrowDownloads {
    #[inline]
    pub(in crate::packed) const fn new(downloaded: u32) -> Option<Self> {
        if downloaded < 16 { Some(Self(downloaded as u64)) } else { None }
    }
}

impl SlotContent {
    #[inline]
    pub(super) const fn decode(word: u64) -> Self {
        match word & KIND {
            ONE => Self::One(OnePeer(word)),
            FEW => Self::Few(FewPeers(word)),
            LARGE => Self::Large(word as u32),
            _ => Self::Empty(NoPeers(word)),
        }
    }

    #[inline]
    pub(super) const fn encode(self) -> u64 {
        match self {
            Self::Empty(NoPeers(word)) | Self::One(OnePeer(word)) | Self::Few(FewPeers(word)) => word,
            Self::Large(number) => LARGE | number as u64,
        }
    }
}

/// A part of a block: the peers of one family and one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct Section(pub(in crate::packed) usize);

impl Section {
    pub(in crate::packed) const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
    /// Bytes of an endpoint.
    const WIDTHS: [usize; 4] = [CompactV4::LEN, CompactV4::LEN, CompactV6::LEN, CompactV6::LEN];

    pub(in crate::packed) const fn of(family: Family, role: Role) -> Self {
        Self(
            match family {
                Family::V4 => 0,
                Family::V6 => 2,
            } + !role.is_seeder() as usize,
        )
    }

    pub(in crate::packed) const fn family(self) -> Family {
        if self.0 < 2 { Family::V4 } else { Family::V6 }
    }

    pub(in crate::packed) const fn role(self) -> Role {
        if self.0 % 2 == 0 { Role::Seeder } else { Role::Leecher }
    }

    pub(super) const fn width(self) -> usize {
        Self::WIDTHS[self.0]
    }

    /// The endpoint that is encoded in `bytes`, an entry of this section.
    pub(in crate::packed) fn endpoint(self, bytes: &[u8]) -> Endpoint {
        let valid = "was an endpoint when it announced";
        match self.family() {
            Family::V4 => <[u8; CompactV4::LEN]>::try_from(bytes).expect(valid).try_into().expect(valid),
            Family::V6 => <[u8; CompactV6::LEN]>::try_from(bytes).expect(valid).try_into().expect(valid),
        }
    }
}

/// Counts per [`Section`] as a population.
pub(in crate::packed) fn population_of(
    [v4_seeders, v4_leechers, v6_seeders, v6_leechers]: [u8; 4],
) -> Population {
    let counts =
        |seeders: u8, leechers: u8| PeerCounts { seeders: seeders.into(), leechers: leechers.into() };
    let (v4, v6) = (counts(v4_seeders, v4_leechers), counts(v6_seeders, v6_leechers));
    Population { v4, v6, downloaded: 0 }
}

/// The position of a peer in a swarm of few peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::packed) struct SectionIndex {
    pub(in crate::packed) section: Section,
    pub(in crate::packed) index: usize,
}

impl FewPeers {
    pub(super) fn new(offset: u16) -> Self {
        Self(u64::from(offset) << 32 | FEW)
    }

    pub(in crate::packed) const fn counts(self) -> [u8; 4] {
        (self.0 as u32).to_le_bytes()
    }

    pub(super) fn with_counts(self, counts: [u8; 4]) -> Self {
        Self(self.0 & !0xffff_ffff | u64::from(u32::from_le_bytes(counts)))
    }

    /// Adds one peer to the count of a section.
    pub(super) fn more(self, section: Section) -> Self {
        Self(self.0 + (1 << (8 * section.0)))
    }

    /// Subtracts one peer from the count of a section.
    pub(super) fn less(self, section: Section) -> Self {
        Self(self.0 - (1 << (8 * section.0)))
    }

    pub(super) const fn offset(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(super) fn with_offset(self, offset: u16) -> Self {
        Self(self.0 & !(0xffff << 32) | u64::from(offset) << 32)
    }

    /// Downloads, or [`WIDE_DOWNLOADS`].
    pub(super) const fn downloaded(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    /// Downloads, from the block if they are there.
    pub(super) fn all_downloaded(self, block: &[u8]) -> u32 {
        match self.downloaded() {
            WIDE_DOWNLOADS => u32::from_le_bytes(*block.first_chunk().expect("wide blocks are longer")),
            narrow => narrow.into(),
        }
    }

    /// The swarm without a block, if it has become small enough. `latest` is the latest stamp of the peers
    /// that it had.
    pub(super) fn simplified(self, block: &[u8], latest: u8) -> Option<SlotContent> {
        let downloaded = self.all_downloaded(block);
        let role = match self.counts() {
            [0, 0, 0, 0] => return Some(SlotContent::Empty(NoPeers::new(downloaded, latest))),
            [1, 0, 0, 0] => Role::Seeder,
            [0, 1, 0, 0] => Role::Leecher,
            _ => return None,
        };
        let downloaded = NarrowDownloads::new(downloaded)?;
        let endpoint = block[self.end(0)..].first_chunk().expect("it has one endpoint");
        Some(SlotContent::One(OnePeer::new(endpoint, role, block[self.stamps()], downloaded)))
    }

    pub(super) fn with_downloaded(self, downloaded: u8) -> Self {
        Self(self.0 & !(0xff << STAMP) | u64::from(downloaded) << STAMP)
    }

    pub(in crate::packed) fn peers(self) -> usize {
        self.before(4)
    }

    #[inline]
    pub(in crate::packed) const fn count(self, section: Section) -> usize {
        (self.0 >> (8 * section.0)) as u8 as usize
    }

    /// The number of peers in all sections before `section`.
    #[inline]
    pub(super) const fn before(self, section: usize) -> usize {
        // Masks out all other counts, and adds up the remaining bytes by one multiplication.
        let counts = ((self.0 & 0xffff_ffff) as u32 as u64) & ((1 << (8 * section)) - 1);
        ((counts as u32).wrapping_mul(0x0101_0101) >> 24) as usize
    }

    /// The end of the endpoints of the first `sections` sections.
    #[inline]
    pub(super) const fn end(self, sections: usize) -> usize {
        let head = if self.downloaded() == WIDE_DOWNLOADS { 4 } else { 0 };
        let v4 = self.before(if sections < 2 { sections } else { 2 });
        head + v4 * CompactV4::LEN + (self.before(sections) - v4) * CompactV6::LEN
    }

    pub(super) const fn start(self, section: Section) -> usize {
        self.end(section.0)
    }

    /// Where the stamps begin: one per peer, in the order of the endpoints.
    #[inline]
    pub(super) const fn stamps(self) -> usize {
        self.end(4)
    }

    #[inline]
    pub(super) const fn stamp(self, SectionIndex { section, index }: SectionIndex) -> usize {
        self.stamps() + self.before(section.0) + index
    }

    #[inline]
    pub(in crate::packed) fn len(self) -> usize {
        self.stamps() + self.peers()
    }
}
