//! Announces to a shard: an update, then a selection; and the prefetching for a batch.

use super::{Operation, Shard, SwarmLocation, stats_of};
use crate::{
    Announce, AnnounceEvent, Announced, Changes, Endpoint, Families, Family, PeerBuffer, Random, Role,
    SwarmStats,
    announce::Transition,
    packed::{
        bounds::MAX_GROWTH,
        hints::Sight,
        large::{LargeSwarm, PeerLocation, select::Draws},
        leaf::{
            Leaf,
            slot::{FewPeers, Section, SectionIndex, Slot, SlotContent, population_of},
        },
        prefetch::{prefetch, prefetch_lines},
        reservation::{NoRoom, Reservation},
        select::Choice,
    },
    totals::Population,
};

/// The source of the second half of an announce: the swarm and the announcer in it.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) enum Selection {
    NoPeers,
    Few(usize, Slot, SectionIndex),
    Large(u32, PeerLocation),
}

impl Shard {
    /// An announce that only says that the only peer of its swarm is still there. Two thirds of all swarms
    /// have one peer. Any other announce gets `None`, and nothing has changed.
    #[inline(always)]
    pub(in crate::packed) fn refresh_only(
        &mut self,
        op: &Operation<'_>,
        SwarmLocation { leaf, slot }: SwarmLocation,
        announce: &Announce,
    ) -> Option<Announced> {
        let Endpoint::V4(endpoint) = &announce.endpoint else { return None };
        let leaf = &mut self.leaves[leaf];
        let SlotContent::One(one) = leaf.content(slot) else { return None };
        if !one.is_at(endpoint.as_bytes())
            || announce.event == AnnounceEvent::Stopped
            || announce.role() != one.role()
        {
            return None;
        }
        leaf.advance(op.now, slot);
        let earlier = leaf.refresh_only(slot, leaf.base().stamp(op.now));
        prove_if_back(op, leaf, slot, earlier);
        let stats = SwarmStats {
            complete: one.role().is_seeder().into(),
            incomplete: (!one.role().is_seeder()).into(),
            downloaded: one.downloaded(),
        };
        Some(Announced::new(stats, Changes::REFRESHED))
    }

    /// An announce that only says that a peer of a large swarm is still there, and its selection. Many
    /// threads may execute such announces at once: they write nothing but stamps. Any other announce gets
    /// `None`, and nothing has changed.
    pub(in crate::packed) fn refresh_large(
        &self,
        op: &Operation<'_>,
        at: SwarmLocation,
        announce: &Announce,
        ahead: &Draws,
        peers: &mut PeerBuffer<'_>,
    ) -> Option<Announced> {
        let large = self.large_at(at)?;
        let is_proof =
            |earlier| op.context.clock.is_return(earlier, op.now) && !self.leaves[at.leaf].is_proven(at.slot);
        let own = large.refresh(announce, ahead.order, op.now, is_proof)?;
        large.select(announce, own, ahead.seed, Some(ahead), peers);
        Some(Announced::new(stats_of(large), Changes::REFRESHED))
    }

    /// The first half of an announce: updates and counts. `found` is the location of the swarm, if it exists.
    /// If there is no room, the result is `Err` and nothing has changed. The caller [settles](Shard::settle)
    /// it.
    #[inline(never)]
    pub(in crate::packed) fn announce(
        &mut self,
        op: &Operation<'_>,
        found: Option<SwarmLocation>,
        announce: &Announce,
        reservation: &mut Reservation<'_>,
    ) -> Result<(Announced, Selection), NoRoom> {
        let stopped = announce.event == AnnounceEvent::Stopped;
        let family = announce.endpoint.family();
        let Some(at) = found else {
            return match stopped {
                true => Ok((Announced::default(), Selection::NoPeers)),
                false => self.join(op, None, announce, reservation),
            };
        };
        let content = self.content(at);
        if matches!(content, SlotContent::Large(_)) {
            // A refresh and a stop take no bytes. Most refreshes do not come here.
            if !stopped && !reservation.reserve(MAX_GROWTH) {
                return Err(NoRoom::BYTES);
            }
            return Ok(self.announce_large(op, at, announce, reservation));
        }
        match self.leaves[at.leaf].locate(at.slot, &announce.endpoint) {
            Some(peer) => {
                let transition = Transition::new(announce, Some(peer.section.role()));
                if let (SlotContent::Few(few), Changes::REFRESHED) = (content, transition.changes()) {
                    return Ok(self.refresh(op, at, few, peer));
                }
                if !stopped && !reservation.reserve(MAX_GROWTH) {
                    return Err(NoRoom::BYTES);
                }
                let peer = self.update(op, at, peer, transition.after);
                Ok(self.done(op, at, family, transition, peer))
            }
            None if stopped => Ok((Announced::new(self.stats(at), Changes::empty()), Selection::NoPeers)),
            None => {
                let limit = op.context.bounds.endpoints_per_address;
                let displaced = self.leaves[at.leaf].displaced(at.slot, &announce.endpoint, limit);
                self.join(op, displaced.map(|displaced| (at, displaced)), announce, reservation)
            }
        }
    }

    /// An announce that only says that a peer of a swarm of few is still there. Most announces do.
    fn refresh(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        few: FewPeers,
        peer: SectionIndex,
    ) -> (Announced, Selection) {
        let leaf = &mut self.leaves[at.leaf];
        leaf.advance(op.now, at.slot);
        let earlier = leaf.refresh(at.slot, peer, leaf.base().stamp(op.now));
        prove_if_back(op, leaf, at.slot, earlier);
        let stats = population_of(few.counts()).stats(leaf.downloaded(at.slot));
        (Announced::new(stats, Changes::REFRESHED), Selection::Few(at.leaf, at.slot, peer))
    }

    /// Updates a peer of a swarm of few peers. Returns its new index, if it stays.
    fn update(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        peer: SectionIndex,
        after: Option<Role>,
    ) -> Option<SectionIndex> {
        let leaf = &mut self.leaves[at.leaf];
        leaf.advance(op.now, at.slot);
        let stamp = leaf.base().stamp(op.now);
        let earlier = leaf.stamp(at.slot, peer);
        prove_if_back(op, leaf, at.slot, earlier);
        if after == Some(peer.section.role()) {
            leaf.refresh(at.slot, peer, stamp);
            return Some(peer);
        }
        self.changing(at.leaf, |leaf| match after {
            None => {
                leaf.take(at.slot, peer);
                None
            }
            Some(role) => Some(leaf.change_role(at.slot, peer, role, stamp)),
        })
    }

    /// An announce of a peer that is not in its swarm; the swarm need not exist. `displaced` is an endpoint
    /// of the same address or network in a swarm of few peers: it is evicted for the new peer.
    fn join(
        &mut self,
        op: &Operation<'_>,
        displaced: Option<(SwarmLocation, SectionIndex)>,
        announce: &Announce,
        reservation: &mut Reservation<'_>,
    ) -> Result<(Announced, Selection), NoRoom> {
        if !reservation.reserve(MAX_GROWTH) {
            return Err(NoRoom::BYTES);
        }
        let (at, created) = match displaced {
            // The bytes that come equal the bytes that go, so no leaf has to split.
            Some((at, peer)) => {
                self.leaves[at.leaf].advance(op.now, at.slot);
                self.changing(at.leaf, |leaf| leaf.take(at.slot, peer));
                reservation.evict(0, Population::one(peer.section.family(), peer.section.role()));
                (at, false)
            }
            None => self.admit(op, reservation)?,
        };
        if !created && self.population(at).peers() >= op.context.bounds.peers_per_swarm {
            self.evict_peers(op, at, Some(&announce.endpoint), 1, reservation);
        }
        let (family, transition) = (announce.endpoint.family(), Transition::new(announce, None));
        match self.add(op, at, announce.role(), &announce.endpoint, op.now) {
            Some(peer) => {
                let (mut announced, selection) = self.done(op, at, family, transition, Some(peer));
                announced.changes.set(Changes::CREATED, created);
                Ok((announced, selection))
            }
            None => Ok(self.announce_large(op, at, announce, reservation)),
        }
    }

    /// Completes an announce to a swarm of few peers.
    fn done(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        family: Family,
        transition: Transition,
        peer: Option<SectionIndex>,
    ) -> (Announced, Selection) {
        self.count_transition(op, at, family, transition);
        let selection = match (peer, self.content(at)) {
            (Some(peer), SlotContent::Few(_)) => Selection::Few(at.leaf, at.slot, peer),
            _ => Selection::NoPeers,
        };
        (Announced::new(self.stats(at), transition.changes()), selection)
    }

    /// Counts a download, and updates the totals.
    fn count_transition(&mut self, op: &Operation<'_>, at: SwarmLocation, family: Family, turn: Transition) {
        if turn.completed {
            let more = self.raise_downloaded(at, |downloaded| downloaded.saturating_add(1));
            op.context.totals.add(0, more);
        }
        op.context.totals.turn(family, turn.before, turn.after);
    }

    /// The second half of an announce: draws from the randomness of the caller.
    pub(in crate::packed) fn select(
        &self,
        selection: Selection,
        announce: &Announce,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) {
        match selection {
            Selection::NoPeers => {}
            Selection::Few(leaf, slot, peer) => {
                let leaf = &self.leaves[leaf];
                let SlotContent::Few(few) = leaf.content(slot) else { return };
                let seeders_too = announce.takes_seeders();
                let first = if seeders_too { Role::Seeder } else { Role::Leecher };
                // Where only leechers are given, the announcer is a seeder and none of them.
                let own = |family| {
                    let before = match peer.section.role() {
                        Role::Seeder => 0,
                        Role::Leecher => few.count(Section::of(family, Role::Seeder)),
                    };
                    (seeders_too && peer.section.family() == family).then_some(before + peer.index)
                };
                let v4 = Choice { run: leaf.endpoints(slot, few, first), own: own(Family::V4) };
                let v6 = Choice { run: leaf.endpoints(slot, few, first), own: own(Family::V6) };
                let asked = |family, len: usize| if announce.families.contains(family) { len } else { 0 };
                let (v4_count, v6_count) =
                    peers.share(announce.want, asked(Families::V4, v4.len()), asked(Families::V6, v6.len()));
                v4.write(v4_count, rng, &mut peers.v4);
                v6.write(v6_count, rng, &mut peers.v6);
            }
            Selection::Large(number, own) => {
                self.large(number).select(announce, own, rng.next_u64(), None, peers);
            }
        }
    }

    fn announce_large(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        announce: &Announce,
        reservation: &mut Reservation<'_>,
    ) -> (Announced, Selection) {
        let SlotContent::Large(number) = self.content(at) else { unreachable!("is large") };
        let order = op.context.hash.order_of(&announce.endpoint);
        let updated = self.changing_large(number, |large| large.update(op.context, announce, order, op.now));
        if updated.earlier.is_some_and(|earlier| op.context.clock.is_return(earlier, op.now)) {
            self.leaves[at.leaf].set_proven(at.slot);
        }
        let transition = updated.transition;
        self.count_transition(op, at, announce.endpoint.family(), transition);
        if updated.evicted != Population::default() {
            reservation.evict(0, updated.evicted);
        }
        let selection = updated.own.map_or(Selection::NoPeers, |own| Selection::Large(number, own));
        (Announced::new(stats_of(self.large(number)), transition.changes()), selection)
    }

    // --- Before the turn of an announce. ---

    /// Prefetches the peers of a swarm that are not in its slot. Returns whether the swarm is a large one.
    pub(in crate::packed) fn prefetch_swarm(&self, at: SwarmLocation) -> bool {
        match self.content(at) {
            SlotContent::Few(few) => prefetch_lines::<8>(self.leaves[at.leaf].block(at.slot, few)),
            SlotContent::Large(number) => {
                prefetch(self.large(number));
                return true;
            }
            SlotContent::Empty(_) | SlotContent::One(_) => {}
        }
        false
    }

    /// The swarm, if it is a large one.
    pub(in crate::packed) fn large_at(&self, at: SwarmLocation) -> Option<&LargeSwarm> {
        match self.content(at) {
            SlotContent::Large(number) => Some(self.large(number)),
            _ => None,
        }
    }

    /// Corrects the hints that led to a leaf.
    #[inline]
    pub(in crate::packed) fn correct(&self, op: &Operation<'_>, seen: &Sight<'_>) {
        op.context.hints.correct(op.placed.shard, &self.leaves);
        let hint = seen.slots.filter(|_| seen.leaf.leaves == self.leaves.len());
        if let (Some(hint), Some(leaf)) = (hint, self.leaves.get(seen.leaf.leaf)) {
            hint.correct(leaf.slots(seen.leaf.prefix));
        }
    }
}

/// Notes that a swarm has shown that it lives, if a peer has come back: `earlier` is its earlier stamp.
#[inline]
fn prove_if_back(op: &Operation<'_>, leaf: &mut Leaf, slot: Slot, earlier: u8) {
    if op.context.clock.is_return(leaf.base().tick(earlier), op.now) {
        leaf.set_proven(slot);
    }
}
