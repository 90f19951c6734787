//! A leaf: some dozens of swarms in one run of bytes.
//!
//! First the **slots**, one a swarm, sorted by key: what the leaf's prefix does not say of the key, then
//! eight bytes of [`Held`]. Behind them the **blocks**: the peers of swarms that a slot has no room for.
//! Nothing lies between them, so what a leaf takes beyond what it holds is the rest of its last 16 bytes. A
//! leaf is a few cache lines short of being worth an index.

use std::ops::Range;

use super::{
    arena::Block,
    clock::{Base, Tick, aged},
    hash::Key,
    prefetch::prefetch_lines,
};
use crate::{
    CompactV4, CompactV6, Endpoint, Family, PeerCounts, PeerRecord, Role, announce::address,
    totals::Population,
};

/// The leading bits that all keys of a leaf share. Whole bytes of them are not stored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prefix {
    /// The bits, from the top.
    pub(super) bits: u64,
    /// How many there are.
    pub(super) depth: u32,
}

/// Bytes of a key.
const KEY: usize = 20;
/// Bytes to either side of where a key is believed to be: twice as far as it is off by, in about the middle
/// of a leaf.
const NEAR: usize = 128;
/// Bytes of what a slot holds.
const HELD: usize = 8;

impl Prefix {
    /// Bytes of the key that a slot does not store.
    const fn dropped(self) -> usize {
        (self.depth / 8) as usize
    }

    /// Bytes of a slot.
    const fn stride(self) -> usize {
        KEY - self.dropped() + HELD
    }

    /// The first of all keys that share these bits.
    pub(super) fn first_key(self) -> Key {
        let mut key = Key([0; KEY]);
        key.0[..8].copy_from_slice(&self.bits.to_be_bytes());
        key
    }

    /// The key that a slot stores the rest of. Word by word: a look at bytes that were just written in other
    /// pieces waits until they have reached the cache.
    fn complete(self, rest: &[u8]) -> Key {
        let (head, tail) = (rest.first_chunk(), rest.last_chunk::<{ KEY - 8 }>());
        let (head, tail) = (*head.expect("more than a word"), tail.expect("more than a key's end"));
        let mut key = Key([0; KEY]);
        let head = self.bits & !(u64::MAX >> (8 * self.dropped()))
            | u64::from_be_bytes(head) >> (8 * self.dropped());
        key.0[..8].copy_from_slice(&head.to_be_bytes());
        key.0[8..].copy_from_slice(tail);
        key
    }
}

/// A swarm's place in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) index: usize,
    stride: usize,
}

impl Slot {
    /// The next swarm's place.
    pub(super) const fn next(self) -> Self {
        Self { index: self.index + 1, ..self }
    }

    const fn held(self) -> usize {
        (self.index + 1) * self.stride - HELD
    }
}

/// What a slot holds: one word, little-endian, whose last byte says which of these, and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// No peers.
    Nobody(Nobody),
    /// One IPv4 peer.
    One(One),
    /// Some peers in a block.
    Few(Few),
    /// Peers in tables of their own, with this number.
    Large(u32),
}

/// Bytes 0-3: downloads. Byte 6: the stamp of the last announce that was seen. Byte 7: flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nobody(u64);

/// Bytes 0-5: the endpoint. Byte 6: its stamp. Byte 7: flags, among them up to 15 downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct One(u64);

/// Bytes 0-3: peers by [`Section`]. Bytes 4-5: where the block begins behind the slots. Byte 6: downloads, if
/// they are less than 255 and not at the start of the block. Byte 7: flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Few(u64);

/// Downloads that fill four bytes at the start of the block.
const WIDE: u8 = u8::MAX;

/// What a slot holds.
const KIND: u64 = 0b11 << 56;
const ONE: u64 = 1 << 56;
const FEW: u64 = 2 << 56;
const LARGE: u64 = 3 << 56;
/// Whether the swarm has shown that it lives: a peer came back or a second one joined, here or in the
/// snapshot that it was restored from. A flood of made-up info hashes does neither.
const PROVEN: u64 = 1 << 58;
/// Whether the one peer is a seeder.
const SEEDER: u64 = 1 << 59;
/// Downloads of a swarm of one peer.
const ONE_DOWNLOADED: u32 = 60;

const STAMP: u32 = 48;
const ENDPOINT: u64 = (1 << STAMP) - 1;

const fn flag(is: bool, flag: u64) -> u64 {
    if is { flag } else { 0 }
}

impl Nobody {
    pub(super) fn new(downloaded: u32, latest: u8, proven: bool) -> Self {
        Self(u64::from(downloaded) | u64::from(latest) << STAMP | flag(proven, PROVEN))
    }

    pub(super) const fn downloaded(self) -> u32 {
        self.0 as u32
    }

    pub(super) const fn latest(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    pub(super) const fn proven(self) -> bool {
        self.0 & PROVEN != 0
    }
}

impl One {
    pub(super) fn new(
        endpoint: &[u8; CompactV4::LEN],
        role: Role,
        stamp: u8,
        downloaded: Narrow,
        proven: bool,
    ) -> Self {
        let peer = Self::endpoint_bits(endpoint) | u64::from(stamp) << STAMP;
        Self(
            peer | ONE
                | flag(role.is_seeder(), SEEDER)
                | flag(proven, PROVEN)
                | downloaded.0 << ONE_DOWNLOADED,
        )
    }

    const fn endpoint_bits(&[a, b, c, d, e, f]: &[u8; CompactV4::LEN]) -> u64 {
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    pub(super) const fn endpoint(self) -> [u8; CompactV4::LEN] {
        let [a, b, c, d, e, f, ..] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    #[inline]
    pub(super) const fn is_at(self, endpoint: &[u8; CompactV4::LEN]) -> bool {
        self.0 & ENDPOINT == Self::endpoint_bits(endpoint)
    }

    #[inline]
    pub(super) const fn role(self) -> Role {
        if self.0 & SEEDER != 0 { Role::Seeder } else { Role::Leecher }
    }

    pub(super) const fn stamp(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    #[inline]
    pub(super) const fn downloaded(self) -> u32 {
        (self.0 >> ONE_DOWNLOADED) as u32
    }

    pub(super) const fn proven(self) -> bool {
        self.0 & PROVEN != 0
    }

    /// The same peer in a swarm that has shown that it lives.
    #[inline]
    pub(super) const fn prove(self) -> Self {
        Self(self.0 | PROVEN)
    }

    /// The same peer after another announce.
    #[inline]
    pub(super) fn announced(self, role: Role, stamp: u8, downloaded: Narrow) -> Self {
        let rest = self.0 & (ENDPOINT | ONE | PROVEN);
        let changed =
            u64::from(stamp) << STAMP | flag(role.is_seeder(), SEEDER) | downloaded.0 << ONE_DOWNLOADED;
        Self(rest | changed)
    }
}

/// Downloads that fit beside a peer: up to 15.
#[derive(Debug, Clone, Copy)]
pub(super) struct Narrow(u64);

impl Narrow {
    #[inline]
    pub(super) const fn new(downloaded: u32) -> Option<Self> {
        if downloaded < 16 { Some(Self(downloaded as u64)) } else { None }
    }
}

impl Held {
    #[inline]
    const fn decode(word: u64) -> Self {
        match word & KIND {
            ONE => Self::One(One(word)),
            FEW => Self::Few(Few(word)),
            LARGE => Self::Large(word as u32),
            _ => Self::Nobody(Nobody(word)),
        }
    }

    #[inline]
    const fn encode(self) -> u64 {
        match self {
            Self::Nobody(Nobody(word)) | Self::One(One(word)) | Self::Few(Few(word)) => word,
            Self::Large(number) => LARGE | number as u64,
        }
    }
}

/// A part of a block: the peers of one family and one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Section(usize);

impl Section {
    pub(super) const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
    /// Bytes of an endpoint.
    const WIDTHS: [usize; 4] = [CompactV4::LEN, CompactV4::LEN, CompactV6::LEN, CompactV6::LEN];

    pub(super) const fn of(family: Family, role: Role) -> Self {
        Self(
            match family {
                Family::V4 => 0,
                Family::V6 => 2,
            } + !role.is_seeder() as usize,
        )
    }

    pub(super) const fn family(self) -> Family {
        if self.0 < 2 { Family::V4 } else { Family::V6 }
    }

    pub(super) const fn role(self) -> Role {
        if self.0.is_multiple_of(2) { Role::Seeder } else { Role::Leecher }
    }

    const fn width(self) -> usize {
        Self::WIDTHS[self.0]
    }

    /// The endpoint that these bytes of the section stand for.
    pub(super) fn endpoint(self, bytes: &[u8]) -> Endpoint {
        let valid = "was an endpoint when it announced";
        match self.family() {
            Family::V4 => <[u8; CompactV4::LEN]>::try_from(bytes).expect(valid).try_into().expect(valid),
            Family::V6 => <[u8; CompactV6::LEN]>::try_from(bytes).expect(valid).try_into().expect(valid),
        }
    }
}

/// The peers of a block, or of some of it, by [`Section`].
pub(super) fn population_of([v4_seeders, v4_leechers, v6_seeders, v6_leechers]: [u8; 4]) -> Population {
    let counts =
        |seeders: u8, leechers: u8| PeerCounts { seeders: seeders.into(), leechers: leechers.into() };
    Population { v4: counts(v4_seeders, v4_leechers), v6: counts(v6_seeders, v6_leechers) }
}

/// A peer's place in a swarm of few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) section: Section,
    pub(super) index: usize,
}

impl Place {
    const fn only(one: One) -> Self {
        Self { section: Section::of(Family::V4, one.role()), index: 0 }
    }
}

impl Few {
    fn new(offset: u16, proven: bool) -> Self {
        Self(u64::from(offset) << 32 | FEW | flag(proven, PROVEN))
    }

    pub(super) const fn counts(self) -> [u8; 4] {
        (self.0 as u32).to_le_bytes()
    }

    fn with_counts(self, counts: [u8; 4]) -> Self {
        Self(self.0 & !0xffff_ffff | u64::from(u32::from_le_bytes(counts)))
    }

    /// One peer more in a section.
    fn more(self, section: Section) -> Self {
        Self(self.0 + (1 << (8 * section.0)))
    }

    /// One peer less in a section.
    fn less(self, section: Section) -> Self {
        Self(self.0 - (1 << (8 * section.0)))
    }

    const fn offset(self) -> u16 {
        (self.0 >> 32) as u16
    }

    fn with_offset(self, offset: u16) -> Self {
        Self(self.0 & !(0xffff << 32) | u64::from(offset) << 32)
    }

    /// Downloads, or [`WIDE`].
    const fn downloaded(self) -> u8 {
        (self.0 >> STAMP) as u8
    }

    fn with_downloaded(self, downloaded: u8) -> Self {
        Self(self.0 & !(0xff << STAMP) | u64::from(downloaded) << STAMP)
    }

    pub(super) const fn proven(self) -> bool {
        self.0 & PROVEN != 0
    }

    pub(super) fn peers(self) -> usize {
        self.before(4)
    }

    #[inline]
    pub(super) const fn count(self, section: Section) -> usize {
        (self.0 >> (8 * section.0)) as u8 as usize
    }

    /// How many peers the sections before one have.
    #[inline]
    const fn before(self, section: usize) -> usize {
        // All but the counts of those sections is shifted out, and what is left is added up byte by byte.
        let counts = ((self.0 & 0xffff_ffff) as u32 as u64) & ((1 << (8 * section)) - 1);
        ((counts as u32).wrapping_mul(0x0101_0101) >> 24) as usize
    }

    /// The end of the endpoints of the first `sections` sections.
    #[inline]
    const fn end(self, sections: usize) -> usize {
        let head = if self.downloaded() == WIDE { 4 } else { 0 };
        let v4 = self.before(if sections < 2 { sections } else { 2 });
        head + v4 * CompactV4::LEN + (self.before(sections) - v4) * CompactV6::LEN
    }

    const fn start(self, section: Section) -> usize {
        self.end(section.0)
    }

    /// Where the stamps begin, one a peer, in the order of the endpoints.
    #[inline]
    const fn stamps(self) -> usize {
        self.end(4)
    }

    #[inline]
    const fn stamp(self, Place { section, index }: Place) -> usize {
        self.stamps() + self.before(section.0) + index
    }

    #[inline]
    fn len(self) -> usize {
        self.stamps() + self.peers()
    }
}

/// Some dozens of swarms in one run of bytes.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    block: Block,
    count: u16,
    used: u16,
    base: Base,
}

impl Leaf {
    /// No leaf grows further: its owner splits it first.
    pub(super) const MOST_BYTES: usize = 48 << 10;
    /// The largest block; a swarm that needs more gets tables. 512 bytes are 73 IPv4 peers, or 26 of IPv6.
    pub(super) const MOST_BLOCK: usize = 512;

    pub(super) fn new(now: Tick) -> Self {
        Self { base: Base::new(now), ..Self::default() }
    }

    pub(super) fn swarms(&self) -> usize {
        self.count.into()
    }

    pub(super) fn used(&self) -> usize {
        self.used.into()
    }

    pub(super) fn capacity(&self) -> usize {
        self.block.capacity()
    }

    pub(super) const fn base(&self) -> Base {
        self.base
    }

    /// The bytes that a look for `key` will touch first.
    pub(super) fn near(&self, prefix: Prefix, key: &Key) -> &[u8] {
        let at = self.estimate(prefix, key.word(prefix.dropped())) * prefix.stride();
        // A look goes a few slots to either side.
        let near = at.saturating_sub(NEAR)..(at + NEAR).min(self.used());
        self.block.get(near).unwrap_or_default()
    }

    /// Brings all of it closer, if it is not much larger than most.
    pub(super) fn prefetch(&self) {
        prefetch_lines::<24>(&self.block);
    }

    /// The slot of a key, or the one that it would get.
    #[inline]
    pub(super) fn find(&self, prefix: Prefix, key: &Key) -> Result<Slot, Slot> {
        match prefix.dropped() {
            // With the length of a slot known, a probe is a comparison of two words.
            1 => self.find_by::<27, 19>(prefix, key),
            2 => self.find_by::<26, 18>(prefix, key),
            0 => self.find_by::<28, 20>(prefix, key),
            3 => self.find_by::<25, 17>(prefix, key),
            _ => unreachable!("no store has 2^32 leaves"),
        }
    }

    /// The same for slots of `STRIDE` bytes, `REST` of which are the key's.
    #[inline]
    fn find_by<const STRIDE: usize, const REST: usize>(
        &self,
        prefix: Prefix,
        key: &Key,
    ) -> Result<Slot, Slot> {
        let (slots, _) = self.block[..self.swarms() * STRIDE].as_chunks::<STRIDE>();
        let word = |slot: &[u8; STRIDE]| u64::from_be_bytes(*slot.first_chunk().expect("slots are longer"));
        let wanted = key.word(KEY - REST);
        let near = self.estimate(prefix, wanted);
        let (before, behind) = slots.split_at_checked(near).unwrap_or((slots, &[]));
        let above = before.iter().rev().take_while(|slot| word(slot) >= wanted).count();
        let below = behind.iter().take_while(|slot| above == 0 && word(slot) < wanted).count();
        let mut index = near - above + below;
        let wanted: &[u8; REST] = key.0.last_chunk().expect("a part of a key");
        // Two keys with the first word in common are met once in 2^50 looks or so.
        while let Some(slot) = slots.get(index) {
            let rest: &[u8; REST] = slot.first_chunk().expect("slots are longer");
            // Equality alone takes a few instructions, an order a call.
            if rest == wanted {
                return Ok(Slot { index, stride: STRIDE });
            }
            if rest > wanted {
                break;
            }
            index += 1;
        }
        Err(Slot { index, stride: STRIDE })
    }

    /// About where a key stands: keys are uniform, so it is a few slots off at most.
    fn estimate(&self, prefix: Prefix, word: u64) -> usize {
        let within = word << (prefix.depth % 8);
        ((u128::from(within) * u128::from(self.count)) >> 64) as usize
    }

    /// The first slot.
    pub(super) const fn first(prefix: Prefix) -> Slot {
        Slot { index: 0, stride: prefix.stride() }
    }

    /// The key of a slot.
    pub(super) fn key(&self, prefix: Prefix, slot: Slot) -> Key {
        prefix.complete(&self.block[slot.index * slot.stride..slot.held()])
    }

    /// The one peer of a swarm, if it is the one at `endpoint`.
    #[inline]
    pub(super) fn only(&self, slot: Slot, endpoint: &[u8; CompactV4::LEN]) -> Option<One> {
        match self.held(slot) {
            Held::One(one) if one.is_at(endpoint) => Some(one),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn held(&self, slot: Slot) -> Held {
        let word = self.block[slot.held()..].first_chunk().expect("slots lie within the leaf");
        Held::decode(u64::from_le_bytes(*word))
    }

    #[inline]
    pub(super) fn set(&mut self, slot: Slot, held: Held) {
        self.block[slot.held()..][..HELD].copy_from_slice(&held.encode().to_le_bytes());
    }

    /// Makes room for a swarm without peers.
    pub(super) fn insert(&mut self, slot: Slot, key: &Key, held: Held) {
        let at = slot.index * slot.stride;
        self.open(at, slot.stride);
        let rest = KEY + HELD - slot.stride;
        self.block[at..slot.held()].copy_from_slice(&key.0[rest..]);
        self.set(slot, held);
        self.count += 1;
    }

    /// Takes a swarm out, its block included.
    pub(super) fn remove(&mut self, slot: Slot) {
        if let Held::Few(few) = self.held(slot) {
            self.close_block(slot, few);
        }
        self.close(slot.index * slot.stride, slot.stride);
        self.count -= 1;
    }

    /// Rebases all stamps so that `now` can be encoded. Any slot of the leaf will do.
    #[inline]
    pub(super) fn advance(&mut self, now: Tick, any: Slot) {
        let by = self.base.advance(now);
        if by > 0 {
            self.age(by, any);
        }
    }

    #[cold]
    fn age(&mut self, by: u32, any: Slot) {
        let mut slot = Slot { index: 0, ..any };
        while slot.index < self.swarms() {
            match self.held(slot) {
                held @ (Held::Nobody(_) | Held::One(_)) => {
                    let [.., stamp, _] = &mut held.encode().to_le_bytes();
                    self.block[slot.held() + HELD - 2] = aged(*stamp, by);
                }
                Held::Few(few) => {
                    let start = self.start(slot, few);
                    for stamp in &mut self.block[start + few.stamps()..start + few.len()] {
                        *stamp = aged(*stamp, by);
                    }
                }
                Held::Large(_) => {}
            }
            slot = slot.next();
        }
    }

    // --- Swarms of few peers. ---

    /// Where a peer is, if it is in the swarm.
    pub(super) fn locate(&self, slot: Slot, family: Family, endpoint: &[u8]) -> Option<Place> {
        match self.held(slot) {
            Held::One(one) => (one.endpoint() == endpoint).then(|| Place::only(one)),
            Held::Few(few) => {
                let seeders = Section::of(family, Role::Seeder);
                let index = match family {
                    Family::V4 => self
                        .endpoints::<{ CompactV4::LEN }>(slot, few, seeders)
                        .iter()
                        .position(|p| p == endpoint),
                    Family::V6 => self
                        .endpoints::<{ CompactV6::LEN }>(slot, few, seeders)
                        .iter()
                        .position(|p| p == endpoint),
                }?;
                let count = few.count(seeders);
                Some(match index.checked_sub(count) {
                    None => Place { section: seeders, index },
                    Some(index) => Place { section: Section::of(family, Role::Leecher), index },
                })
            }
            Held::Nobody(_) | Held::Large(_) => None,
        }
    }

    /// The endpoints of a family, seeders first; `from` is where to begin: at its seeders or at its leechers.
    #[inline]
    pub(super) fn endpoints<const N: usize>(&self, slot: Slot, few: Few, from: Section) -> &[[u8; N]] {
        debug_assert_eq!(N, from.width());
        let start = self.start(slot, few);
        let family_end = few.end(if from.0 < 2 { 2 } else { 4 });
        self.block[start + few.start(from)..start + family_end].as_chunks().0
    }

    /// All bytes of a block.
    pub(super) fn block(&self, slot: Slot, few: Few) -> &[u8] {
        let start = self.start(slot, few);
        &self.block[start..start + few.len()]
    }

    /// The stamps of all peers, in the order of sections.
    pub(super) fn stamps(&self, slot: Slot, few: Few) -> &[u8] {
        let start = self.start(slot, few);
        &self.block[start + few.stamps()..start + few.len()]
    }

    /// The peers of a swarm of few as they lie there: how many in each section, their endpoints, and their
    /// stamps, in that order.
    pub(super) fn sections(&self, slot: Slot) -> ([u8; 4], &[u8], &[u8]) {
        match self.held(slot) {
            Held::Nobody(_) | Held::Large(_) => Default::default(),
            Held::One(one) => {
                let section = Section::of(Family::V4, one.role());
                let (endpoint, behind) = self.block[slot.held()..].split_at(CompactV4::LEN);
                ([0, 1, 2, 3].map(|n| u8::from(n == section.0)), endpoint, &behind[..1])
            }
            Held::Few(few) => {
                let block = self.block(slot, few);
                (few.counts(), &block[few.end(0)..few.stamps()], &block[few.stamps()..])
            }
        }
    }

    /// The peers of a swarm of few, in the order of sections, with their stamps.
    pub(super) fn peers(&self, slot: Slot) -> impl Iterator<Item = (Section, &[u8], u8)> {
        let held = self.held(slot);
        let one = if let Held::One(one) = held {
            let endpoint = &self.block[slot.held()..][..CompactV4::LEN];
            Some((Section::of(Family::V4, one.role()), endpoint, one.stamp()))
        } else {
            None
        };
        let few = if let Held::Few(few) = held { Some(few) } else { None };
        let few = few.into_iter().flat_map(move |few| {
            let block = &self.block[self.start(slot, few)..];
            Section::ALL.into_iter().flat_map(move |section| {
                let endpoints =
                    block[few.start(section)..few.end(section.0 + 1)].chunks_exact(section.width());
                let stamps = &block[few.stamps() + few.before(section.0)..];
                endpoints.zip(stamps).map(move |(endpoint, &stamp)| (section, endpoint, stamp))
            })
        });
        one.into_iter().chain(few)
    }

    /// The peer that has been silent longest.
    pub(super) fn stalest(&self, slot: Slot) -> Option<Place> {
        self.stalest_where(slot, |_| true)
    }

    fn stalest_where(&self, slot: Slot, is_meant: impl Fn(&[u8]) -> bool) -> Option<Place> {
        let mut before = [0; 4];
        let placed = self.peers(slot).map(|(section, endpoint, stamp)| {
            before[section.0] += 1;
            (endpoint, stamp, Place { section, index: before[section.0] - 1 })
        });
        let meant = placed.filter(|(endpoint, ..)| is_meant(endpoint));
        meant.min_by_key(|&(_, stamp, _)| stamp).map(|(.., place)| place)
    }

    /// The endpoint of a newcomer's address that has been silent longest, if there are `most`.
    pub(super) fn rival(&self, slot: Slot, newcomer: &Endpoint, most: u64) -> Option<Place> {
        let held = self.held(slot);
        let peers = match held {
            Held::Nobody(_) | Held::Large(_) => 0,
            Held::One(_) => 1,
            Held::Few(few) => few.peers() as u64,
        };
        // Where all are fewer, so are those of any address.
        if peers < most {
            return None;
        }
        match newcomer {
            Endpoint::V4(v4) => self.rival_of(slot, held, v4.as_bytes(), most),
            Endpoint::V6(v6) => self.rival_of(slot, held, v6.as_bytes(), most),
        }
    }

    #[inline(never)]
    fn rival_of<const N: usize>(
        &self,
        slot: Slot,
        held: Held,
        newcomer: &[u8; N],
        most: u64,
    ) -> Option<Place> {
        let is_own = |peer: &[u8; N]| address(peer) == address(newcomer);
        if let Held::Few(few) = held {
            let seeders = Section(if N == CompactV4::LEN { 0 } else { 2 });
            let family = self.endpoints::<N>(slot, few, seeders);
            if (family.iter().filter(|peer| is_own(peer)).count() as u64) < most {
                return None;
            }
        }
        self.stalest_where(slot, |peer| peer.try_into().is_ok_and(is_own))
    }

    pub(super) fn refresh(&mut self, slot: Slot, place: Place, stamp: u8) {
        match self.held(slot) {
            Held::One(_) => self.block[slot.held() + HELD - 2] = stamp,
            Held::Few(few) => {
                let at = self.start(slot, few) + few.stamp(place);
                self.block[at] = stamp;
            }
            Held::Nobody(_) | Held::Large(_) => unreachable!("has no places"),
        }
    }

    /// Bytes that a swarm of such peers takes in a leaf of about that prefix, or less if it is a large one.
    pub(super) fn bytes_of(prefix: Prefix, peers: &[PeerRecord]) -> usize {
        let block = match peers {
            [] => 0,
            [one] if one.endpoint.family() == Family::V4 => 0,
            _ => peers.iter().map(|peer| peer.endpoint.as_bytes().len() + 1).sum(),
        };
        prefix.stride() + if block > Self::MOST_BLOCK { 0 } else { block }
    }

    /// Bytes of the block that the swarm would have with one more peer.
    pub(super) fn block_with(&self, slot: Slot, section: Section) -> usize {
        let block = match self.held(slot) {
            Held::Few(few) => few.len(),
            Held::One(_) => CompactV4::LEN + 1,
            Held::Nobody(_) | Held::Large(_) => 0,
        };
        block + section.width() + 1
    }

    /// Adds a peer that is not in the swarm; where it is then.
    pub(super) fn add(&mut self, slot: Slot, section: Section, endpoint: &[u8], stamp: u8) -> Place {
        if let Held::Nobody(nobody) = self.held(slot)
            && let Ok(endpoint) = endpoint.try_into()
            && let Some(downloaded) = Narrow::new(nobody.downloaded())
        {
            let one = One::new(endpoint, section.role(), stamp, downloaded, nobody.proven());
            self.set(slot, Held::One(one));
            return Place { section, index: 0 };
        }
        let few = self.make_few(slot);
        let start = self.start(slot, few);
        let place = Place { section, index: few.count(section) };
        let (at, stamp_at) = (start + few.end(section.0 + 1), start + few.stamp(place));
        let width = section.width();
        // Both gaps at once: behind the last endpoint of the section, and behind the last stamp of it.
        self.reserve(width + 1);
        let used = self.used();
        self.block.copy_within(stamp_at..used, stamp_at + width + 1);
        self.block.copy_within(at..stamp_at, at + width);
        self.block[at..at + width].copy_from_slice(endpoint);
        self.block[stamp_at + width] = stamp;
        self.used += width as u16 + 1;
        self.set(slot, Held::Few(few.more(section)));
        self.shift_blocks(slot, few.offset(), width as i16 + 1);
        place
    }

    /// Takes a peer out. Its swarm goes back into its slot where that is enough.
    pub(super) fn take(&mut self, slot: Slot, place: Place) {
        match self.held(slot) {
            Held::One(one) => {
                self.set(slot, Held::Nobody(Nobody::new(one.downloaded(), one.stamp(), one.proven())));
            }
            Held::Few(few) => {
                self.cut(slot, few, place);
                self.simplify(slot);
            }
            Held::Nobody(_) | Held::Large(_) => unreachable!("has no places"),
        }
    }

    /// Moves a peer to the other role of its family; where it is then.
    pub(super) fn change_role(&mut self, slot: Slot, place: Place, role: Role, stamp: u8) -> Place {
        let section = Section::of(place.section.family(), role);
        match self.held(slot) {
            Held::One(one) => {
                let downloaded = Narrow::new(one.downloaded()).expect("was narrow");
                self.set(slot, Held::One(one.announced(role, stamp, downloaded)));
                Place { section, index: 0 }
            }
            Held::Few(few) => {
                let (mut endpoint, width) = ([0; CompactV6::LEN], section.width());
                let at = self.start(slot, few) + few.start(place.section) + place.index * width;
                endpoint[..width].copy_from_slice(&self.block[at..at + width]);
                // Before the other is cut: no block is ever empty, or it could not be told from the one
                // behind it.
                let moved = self.add(slot, section, &endpoint[..width], stamp);
                let Held::Few(few) = self.held(slot) else { unreachable!("has got more") };
                self.cut(slot, few, place);
                moved
            }
            Held::Nobody(_) | Held::Large(_) => unreachable!("has no places"),
        }
    }

    pub(super) fn set_proven(&mut self, slot: Slot) {
        self.block[slot.held() + HELD - 1] |= (PROVEN >> 56) as u8;
    }

    pub(super) fn downloaded(&self, slot: Slot) -> u32 {
        match self.held(slot) {
            Held::Nobody(nobody) => nobody.downloaded(),
            Held::One(one) => one.downloaded(),
            Held::Few(few) if few.downloaded() == WIDE => {
                let start = self.start(slot, few);
                u32::from_le_bytes(*self.block[start..].first_chunk().expect("wide blocks are longer"))
            }
            Held::Few(few) => few.downloaded().into(),
            Held::Large(_) => unreachable!("kept beside the tables"),
        }
    }

    pub(super) fn set_downloaded(&mut self, slot: Slot, downloaded: u32) {
        match self.held(slot) {
            Held::Nobody(nobody) => {
                self.set(slot, Held::Nobody(Nobody::new(downloaded, nobody.latest(), nobody.proven())));
            }
            Held::One(one) if let Some(downloaded) = Narrow::new(downloaded) => {
                self.set(slot, Held::One(one.announced(one.role(), one.stamp(), downloaded)));
            }
            Held::One(_) | Held::Few(_) => {
                let few = self.make_few(slot);
                match u8::try_from(downloaded) {
                    Ok(narrow) if few.downloaded() != WIDE && narrow != WIDE => {
                        self.set(slot, Held::Few(few.with_downloaded(narrow)));
                    }
                    _ => self.set_wide(slot, few, downloaded),
                }
            }
            Held::Large(_) => unreachable!("kept beside the tables"),
        }
    }

    fn set_wide(&mut self, slot: Slot, few: Few, downloaded: u32) {
        let start = self.start(slot, few);
        if few.downloaded() != WIDE {
            self.open(start, 4);
            self.set(slot, Held::Few(few.with_downloaded(WIDE)));
            self.shift_blocks(slot, few.offset(), 4);
        }
        self.block[start..start + 4].copy_from_slice(&downloaded.to_le_bytes());
    }

    /// Removes the peers whose stamps are below `first_alive`, and answers how many of each section went.
    pub(super) fn expire(&mut self, slot: Slot, first_alive: u16) -> [u8; 4] {
        let expired = |stamp: u8| u16::from(stamp) < first_alive;
        match self.held(slot) {
            Held::One(one) if expired(one.stamp()) => {
                let place = Place::only(one);
                self.take(slot, place);
                let mut gone = [0; 4];
                gone[place.section.0] = 1;
                gone
            }
            Held::Few(few) if self.stamps(slot, few).iter().any(|&stamp| expired(stamp)) => {
                let gone = self.filter(slot, few, expired);
                self.simplify(slot);
                gone
            }
            _ => [0; 4],
        }
    }

    fn filter(&mut self, slot: Slot, few: Few, gone: impl Fn(u8) -> bool) -> [u8; 4] {
        let start = self.start(slot, few);
        let mut counts = few.counts();
        let (mut from, mut to) = (few.end(0), few.end(0));
        let (stamps, mut kept_stamps) = (few.stamps(), Vec::with_capacity(few.peers()));
        let block = &mut self.block[start..start + few.len()];
        let mut nth = 0;
        for section in Section::ALL {
            let width = section.width();
            for _ in 0..few.count(section) {
                let stamp = block[stamps + nth];
                nth += 1;
                if gone(stamp) {
                    counts[section.0] -= 1;
                } else {
                    block.copy_within(from..from + width, to);
                    kept_stamps.push(stamp);
                    to += width;
                }
                from += width;
            }
        }
        block[to..to + kept_stamps.len()].copy_from_slice(&kept_stamps);
        let kept = few.with_counts(counts);
        let surplus = few.len() - kept.len();
        self.set(slot, Held::Few(kept));
        self.close(start + kept.len(), surplus);
        self.shift_blocks(slot, few.offset(), -(surplus as i16));
        [0, 1, 2, 3].map(|section| few.counts()[section] - counts[section])
    }

    fn cut(&mut self, slot: Slot, few: Few, place: Place) {
        let Place { section, index } = place;
        let (start, width, last) = (self.start(slot, few), section.width(), few.count(section) - 1);
        let endpoint = |index: usize| start + few.start(section) + index * width;
        let (own, other) = (endpoint(index), endpoint(last));
        let (own_stamp, other_stamp) =
            (start + few.stamp(place), start + few.stamp(Place { section, index: last }));
        self.block.copy_within(other..other + width, own);
        self.block[own_stamp] = self.block[other_stamp];
        let used = self.used();
        self.block.copy_within(other + width..other_stamp, other);
        self.block.copy_within(other_stamp + 1..used, other_stamp - width);
        self.used -= width as u16 + 1;
        self.set(slot, Held::Few(few.less(section)));
        self.shift_blocks(slot, few.offset(), -(width as i16 + 1));
    }

    /// Gives a swarm a block, for which there was no need while it was smaller.
    fn make_few(&mut self, slot: Slot) -> Few {
        let offset = self.used - self.swarms_end(slot) as u16;
        let (few, downloaded) = match self.held(slot) {
            Held::Few(few) => return few,
            Held::Nobody(nobody) => (Few::new(offset, nobody.proven()), nobody.downloaded()),
            Held::One(one) => {
                let at = self.used();
                self.open(at, CompactV4::LEN + 1);
                self.block[at..at + CompactV4::LEN].copy_from_slice(&one.endpoint());
                self.block[at + CompactV4::LEN] = one.stamp();
                (Few::new(offset, one.proven()).more(Section::of(Family::V4, one.role())), one.downloaded())
            }
            Held::Large(_) => unreachable!("is larger"),
        };
        self.set(slot, Held::Few(few));
        self.set_downloaded(slot, downloaded);
        let Held::Few(few) = self.held(slot) else { unreachable!("just made") };
        few
    }

    /// Puts a swarm back into its slot if it fits.
    fn simplify(&mut self, slot: Slot) {
        let Held::Few(few) = self.held(slot) else { return };
        let downloaded = self.downloaded(slot);
        let start = self.start(slot, few);
        let held = match few.counts() {
            [0, 0, 0, 0] => Held::Nobody(Nobody::new(downloaded, 0, few.proven())),
            [seeders, leechers, 0, 0] if seeders + leechers == 1 => {
                let Some(downloaded) = Narrow::new(downloaded) else { return };
                let at = start + few.end(0);
                let endpoint = self.block[at..].first_chunk().expect("it has one endpoint");
                let role = if seeders == 1 { Role::Seeder } else { Role::Leecher };
                let stamp = self.block[at + CompactV4::LEN];
                Held::One(One::new(endpoint, role, stamp, downloaded, few.proven()))
            }
            _ => return,
        };
        self.close_block(slot, few);
        self.set(slot, held);
    }

    /// Puts a swarm whose peers are elsewhere by now behind a number.
    pub(super) fn make_large(&mut self, slot: Slot, number: u32) {
        if let Held::Few(few) = self.held(slot) {
            self.close_block(slot, few);
        }
        self.set(slot, Held::Large(number));
    }

    /// Takes the block of a swarm out; its slot must be set then.
    fn close_block(&mut self, slot: Slot, few: Few) {
        let (start, len) = (self.start(slot, few), few.len());
        self.close(start, len);
        self.shift_blocks(slot, few.offset(), -(len as i16));
    }

    // --- Bytes. ---

    fn swarms_end(&self, slot: Slot) -> usize {
        self.swarms() * slot.stride
    }

    /// Where the block of a swarm begins.
    fn start(&self, slot: Slot, few: Few) -> usize {
        self.swarms_end(slot) + usize::from(few.offset())
    }

    /// Moves the beginnings of all blocks behind one whose length has changed.
    fn shift_blocks(&mut self, slot: Slot, behind: u16, by: i16) {
        let stride = slot.stride;
        let end = self.swarms_end(slot);
        for slot in self.block[..end].chunks_exact_mut(stride) {
            let held = slot.last_chunk_mut::<HELD>().expect("slots are longer");
            if let Held::Few(few) = Held::decode(u64::from_le_bytes(*held))
                && few.offset() > behind
            {
                *held = few.with_offset(few.offset().wrapping_add_signed(by)).0.to_le_bytes();
            }
        }
    }

    /// Makes a gap of `bytes` in front of `at`.
    fn open(&mut self, at: usize, bytes: usize) {
        self.reserve(bytes);
        let used = self.used();
        self.block.copy_within(at..used, at + bytes);
        self.used += bytes as u16;
    }

    /// Closes the gap of `bytes` behind `at`.
    fn close(&mut self, at: usize, bytes: usize) {
        let used = self.used();
        self.block.copy_within(at + bytes..used, at);
        self.used -= bytes as u16;
        // With room to grow again: a swarm that comes and goes must not move its leaf each time.
        if Block::capacity_for(self.used() + self.used() / 8) < self.capacity() {
            self.resize(self.used());
        }
    }

    fn reserve(&mut self, bytes: usize) {
        let needed = self.used() + bytes;
        if needed > self.capacity() {
            self.resize(needed);
        }
    }

    fn resize(&mut self, capacity: usize) {
        let mut block = Block::with_capacity(capacity);
        block[..self.used()].copy_from_slice(&self.block[..self.used()]);
        self.block = block;
    }

    /// Makes room for `bytes` more bytes, unless the leaf has to be split first.
    pub(super) fn grow(&mut self, bytes: usize) {
        if self.used() + bytes <= Self::MOST_BYTES {
            self.reserve(bytes);
        }
    }

    /// Gives back what is spare, and moves out of a sparse page.
    pub(super) fn compact(&mut self) {
        if Block::capacity_for(self.used()) < self.capacity() {
            self.resize(self.used());
        }
        self.block.move_if_sparse();
    }

    /// Moves out of a sparse page.
    pub(super) fn move_if_sparse(&mut self) {
        self.block.move_if_sparse();
    }

    /// Divides the swarms by the bit behind the prefix: those that have it go to the second leaf.
    pub(super) fn split(self, prefix: Prefix) -> [Self; 2] {
        let bit = 1 << (63 - prefix.depth);
        let lower = Prefix { bits: prefix.bits, depth: prefix.depth + 1 };
        let upper = Prefix { bits: prefix.bits | bit, ..lower };
        let (mut low, mut high) = (0, self.swarms());
        while low < high {
            let middle = low.midpoint(high);
            let slot = Slot { index: middle, stride: prefix.stride() };
            if self.key(prefix, slot).head() & bit == 0 { low = middle + 1 } else { high = middle }
        }
        let part = |to, range| Self::gather(to, self.base, &[(prefix, &self, range)]);
        [part(lower, 0..low), part(upper, low..self.swarms())]
    }

    /// Puts the swarms of two leaves that a split would make together again.
    pub(super) fn merge(prefix: Prefix, mut lower: (Prefix, Self), mut upper: (Prefix, Self)) -> Self {
        let bases = [lower.1.base, upper.1.base];
        for (prefix, leaf) in [&mut lower, &mut upper] {
            let by = bases.into_iter().map(|base| leaf.base.advance_to(base)).sum();
            leaf.age(by, Self::first(*prefix));
        }
        let parts = [(lower.0, &lower.1, 0..lower.1.swarms()), (upper.0, &upper.1, 0..upper.1.swarms())];
        Self::gather(prefix, lower.1.base, &parts)
    }

    /// A leaf of the swarms of some parts of others, in order and without a spare byte.
    fn gather(prefix: Prefix, base: Base, parts: &[(Prefix, &Self, Range<usize>)]) -> Self {
        let slots = || {
            parts.iter().flat_map(|(from, leaf, range)| {
                let slot = |index| Slot { index, stride: from.stride() };
                range.clone().map(move |index| (*from, *leaf, slot(index)))
            })
        };
        let count = slots().count();
        let blocks: usize = slots()
            .map(|(_, leaf, slot)| if let Held::Few(few) = leaf.held(slot) { few.len() } else { 0 })
            .sum();
        let mut offset = count * prefix.stride();
        let used = offset + blocks;
        let mut leaf =
            Self { block: Block::with_capacity(used), count: count as u16, used: used as u16, base };
        for (to, (from, source, slot)) in slots().enumerate() {
            let key = source.key(from, slot);
            let to = Slot { index: to, stride: prefix.stride() };
            leaf.block[to.index * to.stride..to.held()].copy_from_slice(&key.0[prefix.dropped()..]);
            let mut held = source.held(slot);
            if let Held::Few(few) = &mut held {
                let start = source.start(slot, *few);
                let bytes = &source.block[start..start + few.len()];
                leaf.block[offset..offset + bytes.len()].copy_from_slice(bytes);
                *few = few.with_offset((offset - count * prefix.stride()) as u16);
                offset += bytes.len();
            }
            leaf.set(to, held);
        }
        leaf
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Random, SplitMix64, Timestamp, packed::clock::Clock};

    /// What a leaf should hold: by key, downloads and peers with their ticks.
    type Model = BTreeMap<Key, (u32, BTreeMap<(Family, Vec<u8>), (Role, Tick)>)>;

    const HOME: Prefix = Prefix { bits: 0, depth: 11 };

    fn tick(n: u64) -> Tick {
        Clock::new(100).tick(Timestamp::from_secs(n))
    }

    fn key(rng: &mut dyn Random) -> Key {
        let head = rng.next_u64() >> HOME.depth;
        let mut key = Key::default().with_head(head);
        key.0[19] = rng.next_u64() as u8;
        key
    }

    fn endpoint(family: Family, n: usize) -> Vec<u8> {
        let len = if family == Family::V4 { CompactV4::LEN } else { CompactV6::LEN };
        let mut bytes = vec![0x20; len];
        bytes[len - 1] = n as u8;
        bytes
    }

    fn assert_holds(leaf: &Leaf, prefix: Prefix, model: &Model) {
        assert_eq!(leaf.swarms(), model.len());
        let mut used = leaf.swarms() * prefix.stride();
        for (index, (key, (downloaded, peers))) in model.iter().enumerate() {
            let slot = leaf.find(prefix, key).expect("every swarm is found");
            assert_eq!((slot.index, leaf.key(prefix, slot)), (index, *key), "sorted by key");
            assert_eq!(leaf.downloaded(slot), *downloaded);
            let held: BTreeMap<_, _> = leaf
                .peers(slot)
                .map(|(section, endpoint, stamp)| {
                    let tick = leaf.base().tick(stamp);
                    ((section.family(), endpoint.to_vec()), (section.role(), tick))
                })
                .collect();
            assert_eq!(held, *peers);
            for ((family, endpoint), (role, _)) in peers {
                let place = leaf.locate(slot, *family, endpoint).expect("every peer is located");
                assert_eq!((place.section.family(), place.section.role()), (*family, *role));
            }
            if let Held::Few(few) = leaf.held(slot) {
                used += few.len();
            }
        }
        assert_eq!(leaf.used(), used, "nothing lies between slots and blocks");
    }

    /// One random change of one swarm, made to the leaf and to the model.
    fn change(leaf: &mut Leaf, prefix: Prefix, model: &mut Model, now: Tick, rng: &mut dyn Random) {
        let keys: Vec<_> = model.keys().copied().collect();
        if keys.is_empty() || (keys.len() < 40 && rng.below(8) == 0) {
            let key = key(rng);
            if let Err(slot) = leaf.find(prefix, &key) {
                leaf.insert(slot, &key, Held::Nobody(Nobody::new(0, 0, false)));
                model.insert(key, Default::default());
            }
            return;
        }
        let key = keys[rng.below(keys.len())];
        let slot = leaf.find(prefix, &key).expect("it is in the model");
        let (downloaded, peers) = model.get_mut(&key).expect("it is in the model");
        let family = if rng.below(3) == 0 { Family::V6 } else { Family::V4 };
        let role = if rng.below(2) == 0 { Role::Seeder } else { Role::Leecher };
        let endpoint = endpoint(family, rng.below(9));
        leaf.advance(now, slot);
        let stamp = leaf.base().stamp(now);
        match (rng.below(12), leaf.locate(slot, family, &endpoint)) {
            (0, _) => {
                *downloaded = [0, 1, 15, 16, 254, 255, 256, u32::MAX][rng.below(8)];
                leaf.set_downloaded(slot, *downloaded);
            }
            (1, _) => {
                leaf.remove(slot);
                model.remove(&key);
            }
            (2..5, Some(place)) => {
                leaf.take(slot, place);
                peers.remove(&(family, endpoint));
            }
            (_, None) => {
                leaf.add(slot, Section::of(family, role), &endpoint, stamp);
                peers.insert((family, endpoint), (role, now));
            }
            (_, Some(place)) if place.section.role() == role => {
                leaf.refresh(slot, place, stamp);
                peers.insert((family, endpoint), (role, now));
            }
            (_, Some(place)) => {
                leaf.change_role(slot, place, role, stamp);
                peers.insert((family, endpoint), (role, now));
            }
        }
    }

    #[test]
    fn a_leaf_holds_what_it_was_told_through_changes_splits_and_merges() {
        let mut rng = SplitMix64::new(7);
        for round in 0..20 {
            let (mut leaf, mut model) = (Leaf::new(tick(1000)), Model::new());
            for step in 0..800 {
                // Within one base: what it does when it moves is `clock`'s to test, and
                // `stamps_age_together`'s.
                change(&mut leaf, HOME, &mut model, tick(1000 + step / 10), &mut rng);
                assert!(leaf.used() <= leaf.capacity());
            }
            leaf.compact();
            assert_eq!(leaf.capacity(), Block::capacity_for(leaf.used()));
            assert_holds(&leaf, HOME, &model);

            // Deep enough for a byte of the prefix to be dropped on the way, and to be put back.
            let mut parts = vec![(HOME, leaf)];
            for _ in 0..3 + round % 6 {
                let split = |(prefix, leaf): (Prefix, Leaf)| {
                    let bit = 1 << (63 - prefix.depth);
                    let lower = Prefix { bits: prefix.bits, depth: prefix.depth + 1 };
                    let upper = Prefix { bits: prefix.bits | bit, ..lower };
                    let [low, high] = leaf.split(prefix);
                    [(lower, low), (upper, high)]
                };
                parts = parts.into_iter().flat_map(split).collect();
            }
            for (prefix, leaf) in &parts {
                let inside = |key: &Key| key.head() & !(u64::MAX >> prefix.depth) == prefix.bits;
                let part =
                    model.iter().filter(|(key, _)| inside(key)).map(|(key, held)| (*key, held.clone()));
                assert_holds(leaf, *prefix, &part.collect());
            }
            while parts.len() > 1 {
                let mut halves = parts.into_iter();
                parts = Vec::new();
                while let (Some(lower), Some(upper)) = (halves.next(), halves.next()) {
                    let prefix = Prefix { bits: lower.0.bits, depth: lower.0.depth - 1 };
                    parts.push((prefix, Leaf::merge(prefix, lower, upper)));
                }
            }
            let (prefix, leaf) = parts.pop().expect("merged to one");
            assert_holds(&leaf, prefix, &model);
        }
    }

    #[test]
    fn those_below_a_stamp_expire_and_nobody_else() {
        let mut rng = SplitMix64::new(8);
        let (mut leaf, mut model) = (Leaf::new(tick(1000)), Model::new());
        for step in 0..3000 {
            change(&mut leaf, HOME, &mut model, tick(1000 + step / 40), &mut rng);
        }
        let oldest = tick(1040);
        let mut slot = Leaf::first(HOME);
        for (_, peers) in model.values_mut() {
            let before = peers.len();
            peers.retain(|_, (_, tick)| *tick >= oldest);
            let gone = leaf.expire(slot, leaf.base().first_alive(oldest));
            assert_eq!(gone.into_iter().map(usize::from).sum::<usize>(), before - peers.len());
            slot = slot.next();
        }
        assert_holds(&leaf, HOME, &model);
    }

    #[test]
    fn stamps_age_together() {
        let mut rng = SplitMix64::new(9);
        let (mut leaf, mut model) = (Leaf::new(tick(1000)), Model::new());
        for step in 0..2000 {
            change(&mut leaf, HOME, &mut model, tick(1000 + step / 20), &mut rng);
        }
        // Far enough for the base to move, near enough for all that were there to be told apart.
        leaf.advance(tick(1130), Leaf::first(HOME));
        let kept = |tick: Tick| leaf.base().tick(leaf.base().stamp(tick));
        for (_, peers) in model.values_mut() {
            peers.values_mut().for_each(|(_, tick)| *tick = kept(*tick));
        }
        assert_holds(&leaf, HOME, &model);
    }
}
