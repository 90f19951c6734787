//! Swarms of few peers: the one in the slot, and the blocks after the slots.

use std::{iter, mem};

use super::{
    Leaf,
    slot::{
        CONTENT_LEN, FewPeers, NarrowDownloads, NoPeers, OnePeer, PROVEN, Prefix, Section, SectionIndex,
        Slot, SlotContent, WIDE_DOWNLOADS,
    },
};
use crate::{
    CompactV4, CompactV6, Endpoint, Family, PeerRecord, Role,
    announce::{arrays, displaced, widest_network},
};

/// [`PROVEN`] in the last byte of a slot.
const PROVEN_FLAG: u8 = (PROVEN >> 56) as u8;

impl Leaf {
    /// The position of a peer, if it is in the swarm.
    pub(in crate::packed) fn locate(&self, slot: Slot, endpoint: &Endpoint) -> Option<SectionIndex> {
        match self.content(slot) {
            SlotContent::One(one) => {
                let section = Section::of(Family::V4, one.role());
                (one.endpoint() == endpoint.as_bytes()).then_some(SectionIndex { section, index: 0 })
            }
            SlotContent::Few(few) => {
                let index = match endpoint {
                    Endpoint::V4(v4) => self.position(slot, few, v4.as_bytes()),
                    Endpoint::V6(v6) => self.position(slot, few, v6.as_bytes()),
                }?;
                let of = |role| Section::of(endpoint.family(), role);
                Some(match index.checked_sub(few.count(of(Role::Seeder))) {
                    None => SectionIndex { section: of(Role::Seeder), index },
                    Some(index) => SectionIndex { section: of(Role::Leecher), index },
                })
            }
            SlotContent::Empty(_) | SlotContent::Large(_) => None,
        }
    }

    fn position<const N: usize>(&self, slot: Slot, few: FewPeers, endpoint: &[u8; N]) -> Option<usize> {
        self.endpoints::<N>(slot, few, Role::Seeder).iter().position(|peer| peer == endpoint)
    }

    /// The endpoints of `N` bytes, those of one family: seeders before leechers, from the role `first` on.
    #[inline]
    pub(in crate::packed) fn endpoints<const N: usize>(
        &self,
        slot: Slot,
        few: FewPeers,
        first: Role,
    ) -> &[[u8; N]] {
        let (family, sections) = if N == CompactV4::LEN { (Family::V4, 2) } else { (Family::V6, 4) };
        let start = self.start(slot, few);
        arrays(&self.block[start + few.start(Section::of(family, first))..start + few.end(sections)])
    }

    /// All bytes of a block.
    pub(in crate::packed) fn block(&self, slot: Slot, few: FewPeers) -> &[u8] {
        let start = self.start(slot, few);
        &self.block[start..start + few.len()]
    }

    /// The peers of a swarm of few peers as they are stored: the count of each section, all endpoints, all
    /// stamps.
    pub(in crate::packed) fn sections(&self, slot: Slot) -> ([u8; 4], &[u8], &[u8]) {
        match self.content(slot) {
            SlotContent::Empty(_) | SlotContent::Large(_) => Default::default(),
            SlotContent::One(one) => {
                let section = Section::of(Family::V4, one.role());
                let (endpoint, behind) = self.block[slot.content_at()..].split_at(CompactV4::LEN);
                ([0, 1, 2, 3].map(|n| u8::from(n == section.0)), endpoint, &behind[..1])
            }
            SlotContent::Few(few) => {
                let block = self.block(slot, few);
                (few.counts(), &block[few.end(0)..few.stamps()], &block[few.stamps()..])
            }
        }
    }

    /// The peers of a swarm of few peers, in the order of sections, with their stamps.
    pub(in crate::packed) fn peers(&self, slot: Slot) -> impl Iterator<Item = (Section, &[u8], u8)> {
        let (counts, mut endpoints, stamps) = self.sections(slot);
        let sections = Section::ALL.into_iter().zip(counts);
        let sections = sections.flat_map(|(section, count)| iter::repeat_n(section, count.into()));
        sections.zip(stamps).map(move |(section, &stamp)| {
            let endpoint;
            (endpoint, endpoints) = endpoints.split_at(section.width());
            (section, endpoint, stamp)
        })
    }

    fn placed(&self, slot: Slot) -> impl Iterator<Item = (&[u8], u8, SectionIndex)> {
        let mut before = [0; 4];
        self.peers(slot).map(move |(section, endpoint, stamp)| {
            before[section.0] += 1;
            (endpoint, stamp, SectionIndex { section, index: before[section.0] - 1 })
        })
    }

    /// Among the endpoints of the narrowest full network of `newcomer`, the one that has been silent longest,
    /// if an address may have `limit` endpoints.
    pub(in crate::packed) fn displaced(
        &self,
        slot: Slot,
        newcomer: &Endpoint,
        limit: u64,
    ) -> Option<SectionIndex> {
        let content = self.content(slot);
        let peers = match content {
            SlotContent::Empty(_) | SlotContent::Large(_) => 0,
            SlotContent::One(_) => 1,
            SlotContent::Few(few) => few.peers() as u64,
        };
        // If the whole swarm has fewer peers, so has each address.
        if peers < limit {
            return None;
        }
        match newcomer {
            Endpoint::V4(v4) => self.displaced_of(slot, content, v4.as_bytes(), limit),
            Endpoint::V6(v6) => self.displaced_of(slot, content, v6.as_bytes(), limit),
        }
    }

    #[inline(never)]
    fn displaced_of<const N: usize>(
        &self,
        slot: Slot,
        content: SlotContent,
        newcomer: &[u8; N],
        limit: u64,
    ) -> Option<SectionIndex> {
        if let SlotContent::Few(few) = content {
            let family = self.endpoints::<N>(slot, few, Role::Seeder).iter();
            let own = family.filter(|peer| widest_network(*peer) == widest_network(newcomer));
            if (own.count() as u64) < limit {
                return None;
            }
        }
        displaced(newcomer, self.placed(slot).filter(|(peer, ..)| peer.len() == N), limit)
    }

    fn stamp_at(&self, slot: Slot, peer: SectionIndex) -> usize {
        match self.content(slot) {
            SlotContent::One(_) => slot.stamp_at(),
            SlotContent::Few(few) => self.start(slot, few) + few.stamp(peer),
            SlotContent::Empty(_) | SlotContent::Large(_) => unreachable!("has no places"),
        }
    }

    pub(in crate::packed) fn stamp(&self, slot: Slot, peer: SectionIndex) -> u8 {
        self.block[self.stamp_at(slot, peer)]
    }

    /// Changes the stamp of a peer. Returns the earlier one.
    pub(in crate::packed) fn refresh(&mut self, slot: Slot, peer: SectionIndex, stamp: u8) -> u8 {
        let at = self.stamp_at(slot, peer);
        mem::replace(&mut self.block[at], stamp)
    }

    /// The bytes that a swarm of these peers takes in a leaf with about this prefix. An underestimate if the
    /// swarm is a large one.
    pub(in crate::packed) fn bytes_of(prefix: Prefix, peers: &[PeerRecord]) -> usize {
        let block = match peers {
            [] => 0,
            [one] if one.endpoint.family() == Family::V4 => 0,
            _ => peers.iter().map(|peer| peer.endpoint.as_bytes().len() + 1).sum(),
        };
        prefix.stride() + if block > Self::MAX_BLOCK { 0 } else { block }
    }

    /// The bytes of the block if the swarm had one more peer.
    pub(in crate::packed) fn block_with(&self, slot: Slot, section: Section) -> usize {
        let block = match self.content(slot) {
            SlotContent::Few(few) => few.len(),
            SlotContent::One(_) => CompactV4::LEN + 1,
            SlotContent::Empty(_) | SlotContent::Large(_) => 0,
        };
        block + section.width() + 1
    }

    /// Adds a peer that is not in the swarm. Returns its position.
    pub(in crate::packed) fn add(
        &mut self,
        slot: Slot,
        section: Section,
        endpoint: &[u8],
        stamp: u8,
    ) -> SectionIndex {
        if let (SlotContent::Empty(empty), Ok(endpoint)) = (self.content(slot), endpoint.try_into()) {
            if let Some(downloaded) = NarrowDownloads::new(empty.downloaded()) {
                let one = OnePeer::new(endpoint, section.role(), stamp, downloaded);
                self.set(slot, SlotContent::One(one));
                return SectionIndex { section, index: 0 };
            }
        }
        let few = self.make_few(slot);
        let start = self.start(slot, few);
        let peer = SectionIndex { section, index: few.count(section) };
        let (at, stamp_at) = (start + few.end(section.0 + 1), start + few.stamp(peer));
        let width = section.width();
        // Makes both gaps at once: after the last endpoint of the section, and after its last stamp.
        self.reserve(width + 1);
        let used = self.used();
        self.block.copy_within(stamp_at..used, stamp_at + width + 1);
        self.block.copy_within(at..stamp_at, at + width);
        self.block[at..at + width].copy_from_slice(endpoint);
        self.block[stamp_at + width] = stamp;
        self.used += width as u16 + 1;
        self.set(slot, SlotContent::Few(few.more(section)));
        self.shift_blocks(slot, few.offset(), width as i16 + 1);
        peer
    }

    /// Removes a peer. The swarm goes back into its slot if it fits there.
    pub(in crate::packed) fn take(&mut self, slot: Slot, peer: SectionIndex) {
        match self.content(slot) {
            SlotContent::One(one) => {
                self.set(slot, SlotContent::Empty(NoPeers::new(one.downloaded(), one.stamp())));
            }
            SlotContent::Few(few) => {
                let latest = self.latest(slot, few);
                let few = self.cut(slot, few, peer);
                if let Some(content) = few.simplified(self.block(slot, few), latest) {
                    self.close_block(slot, few);
                    self.set(slot, content);
                }
            }
            SlotContent::Empty(_) | SlotContent::Large(_) => unreachable!("has no places"),
        }
    }

    /// Moves a peer to the other role of its family. Returns its new position.
    pub(in crate::packed) fn change_role(
        &mut self,
        slot: Slot,
        peer: SectionIndex,
        role: Role,
        stamp: u8,
    ) -> SectionIndex {
        let section = Section::of(peer.section.family(), role);
        match self.content(slot) {
            SlotContent::One(one) => {
                let downloaded = NarrowDownloads::new(one.downloaded()).expect("was narrow");
                self.set(slot, SlotContent::One(one.announced(role, stamp, downloaded)));
                SectionIndex { section, index: 0 }
            }
            SlotContent::Few(few) => {
                let (mut endpoint, width) = ([0; CompactV6::LEN], section.width());
                let at = self.start(slot, few) + few.start(peer.section) + peer.index * width;
                endpoint[..width].copy_from_slice(&self.block[at..at + width]);
                // Adds before it cuts: an empty block would have the same offset as the block after it.
                let moved = self.add(slot, section, &endpoint[..width], stamp);
                let SlotContent::Few(few) = self.content(slot) else { unreachable!("has got more") };
                self.cut(slot, few, peer);
                moved
            }
            SlotContent::Empty(_) | SlotContent::Large(_) => unreachable!("has no places"),
        }
    }

    /// Whether a swarm of any shape has shown that it lives.
    pub(in crate::packed) fn is_proven(&self, slot: Slot) -> bool {
        self.block[slot.content_at() + CONTENT_LEN - 1] & PROVEN_FLAG != 0
    }

    pub(in crate::packed) fn set_proven(&mut self, slot: Slot) {
        self.block[slot.content_at() + CONTENT_LEN - 1] |= PROVEN_FLAG;
    }

    pub(in crate::packed) fn downloaded(&self, slot: Slot) -> u32 {
        match self.content(slot) {
            SlotContent::Empty(empty) => empty.downloaded(),
            SlotContent::One(one) => one.downloaded(),
            SlotContent::Few(few) => few.all_downloaded(self.block(slot, few)),
            SlotContent::Large(_) => unreachable!("kept beside the tables"),
        }
    }

    pub(in crate::packed) fn set_downloaded(&mut self, slot: Slot, downloaded: u32) {
        match (self.content(slot), NarrowDownloads::new(downloaded)) {
            (SlotContent::Empty(empty), _) => {
                self.set(slot, SlotContent::Empty(NoPeers::new(downloaded, empty.latest())));
            }
            (SlotContent::One(one), Some(downloaded)) => {
                self.set(slot, SlotContent::One(one.announced(one.role(), one.stamp(), downloaded)));
            }
            (SlotContent::One(_) | SlotContent::Few(_), _) => {
                let few = self.make_few(slot);
                match u8::try_from(downloaded) {
                    Ok(narrow) if few.downloaded() != WIDE_DOWNLOADS && narrow != WIDE_DOWNLOADS => {
                        self.set(slot, SlotContent::Few(few.with_downloaded(narrow)));
                    }
                    _ => self.set_wide(slot, few, downloaded),
                }
            }
            (SlotContent::Large(_), _) => unreachable!("kept beside the tables"),
        }
    }

    fn set_wide(&mut self, slot: Slot, few: FewPeers, downloaded: u32) {
        let start = self.start(slot, few);
        if few.downloaded() != WIDE_DOWNLOADS {
            self.open(start, 4);
            self.set(slot, SlotContent::Few(few.with_downloaded(WIDE_DOWNLOADS)));
            self.shift_blocks(slot, few.offset(), 4);
        }
        self.block[start..start + 4].copy_from_slice(&downloaded.to_le_bytes());
    }

    /// Removes a peer from its block. Returns the swarm without it.
    fn cut(&mut self, slot: Slot, few: FewPeers, peer: SectionIndex) -> FewPeers {
        let SectionIndex { section, index } = peer;
        let (start, width, last) = (self.start(slot, few), section.width(), few.count(section) - 1);
        let endpoint = |index: usize| start + few.start(section) + index * width;
        let (own, other) = (endpoint(index), endpoint(last));
        let (own_stamp, other_stamp) =
            (start + few.stamp(peer), start + few.stamp(SectionIndex { section, index: last }));
        self.block.copy_within(other..other + width, own);
        self.block[own_stamp] = self.block[other_stamp];
        let used = self.used();
        self.block.copy_within(other + width..other_stamp, other);
        self.block.copy_within(other_stamp + 1..used, other_stamp - width);
        self.used -= width as u16 + 1;
        let left = few.less(section);
        self.set(slot, SlotContent::Few(left));
        self.shift_blocks(slot, few.offset(), -(width as i16 + 1));
        left
    }

    /// Gives a swarm a block, unless it has one already.
    fn make_few(&mut self, slot: Slot) -> FewPeers {
        let offset = self.used - self.swarms_end(slot) as u16;
        let (few, downloaded) = match self.content(slot) {
            SlotContent::Few(few) => return few,
            SlotContent::Empty(empty) => (FewPeers::new(offset), empty.downloaded()),
            SlotContent::One(one) => {
                let at = self.used();
                self.open(at, CompactV4::LEN + 1);
                self.block[at..at + CompactV4::LEN].copy_from_slice(&one.endpoint());
                self.block[at + CompactV4::LEN] = one.stamp();
                (FewPeers::new(offset).more(Section::of(Family::V4, one.role())), one.downloaded())
            }
            SlotContent::Large(_) => unreachable!("is larger"),
        };
        self.set(slot, SlotContent::Few(few));
        self.set_downloaded(slot, downloaded);
        let SlotContent::Few(few) = self.content(slot) else { unreachable!("just made") };
        few
    }

    /// The stamp of the latest announce; 0 without peers.
    pub(in crate::packed) fn latest(&self, slot: Slot, few: FewPeers) -> u8 {
        self.block(slot, few)[few.stamps()..].iter().copied().max().unwrap_or(0)
    }

    /// Makes a swarm a large one, with this number. Its peers have been copied to tables.
    pub(in crate::packed) fn make_large(&mut self, slot: Slot, number: u32) {
        if let SlotContent::Few(few) = self.content(slot) {
            self.close_block(slot, few);
        }
        self.set(slot, SlotContent::Large(number));
    }

    /// Removes the block of a swarm. The caller sets its slot afterwards.
    pub(super) fn close_block(&mut self, slot: Slot, few: FewPeers) {
        let (start, len) = (self.start(slot, few), few.len());
        self.close(start, len);
        self.shift_blocks(slot, few.offset(), -(len as i16));
    }
}
