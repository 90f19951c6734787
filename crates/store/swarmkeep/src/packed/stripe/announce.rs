//! Announces: one in two halves, and what a batch asks for ahead.

use super::{
    At, Call, Stripe, Way,
    evict::{Full, Worth},
    stats_of,
};
use crate::{
    Announce, AnnounceEvent, Announced, Changes, CompactV4, CompactV6, Endpoint, Family, PeerBuffer, Random,
    Role, SwarmStats,
    announce::Transition,
    packed::{
        bounds::MOST_GROWTH,
        large::{self, Own},
        leaf::slot::{Few, Held, Narrow, Nobody, Place, Section, Slot, population_of},
        prefetch::{prefetch, prefetch_lines},
        room::Room,
        select::{Choice, select},
    },
    totals::Population,
};

/// An announce that has updated and not yet selected: the place of the peers, and the announcer.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) enum Selection {
    Nobody,
    Few(usize, Slot, Place),
    Large(u32, Own),
}

impl Stripe {
    /// An announce of the only peer of its swarm, which is held by its slot alone: the long tail, two thirds
    /// of all swarms.
    #[inline]
    pub(in crate::packed) fn announce_only(
        &mut self,
        call: &Call<'_>,
        At { leaf, slot }: At,
        announce: &Announce,
    ) -> Option<Announced> {
        let Endpoint::V4(endpoint) = &announce.endpoint else { return None };
        let leaf = &mut self.leaves[leaf];
        let one = leaf.only(slot, endpoint.as_bytes())?;
        let transition = Transition::new(announce, Some(one.role()));
        let downloaded = one.downloaded() + u32::from(transition.completed);
        let narrow = Narrow::new(downloaded)?;
        leaf.advance(call.now, slot);
        let stamp = leaf.base().stamp(call.now);
        let mut stats = SwarmStats { downloaded, ..SwarmStats::default() };
        match transition.after {
            None => leaf.set(slot, Held::Nobody(Nobody::new(downloaded, stamp, one.proven()))),
            Some(role) => {
                leaf.set(slot, Held::One(one.announced(role, stamp, narrow).prove()));
                *if role.is_seeder() { &mut stats.complete } else { &mut stats.incomplete } = 1;
            }
        }
        call.shared.totals.turn(Family::V4, transition.before, transition.after);
        Some(Announced::new(stats, transition.changes()))
    }

    /// The first half of an announce to the swarm that was `found`: updates and counts. `Err` if there is no
    /// room; nothing has changed then.
    pub(in crate::packed) fn announce(
        &mut self,
        call: &Call<'_>,
        mut found: Option<At>,
        announce: &Announce,
        room: &mut Room<'_>,
    ) -> Result<(Announced, Selection), Full> {
        if call.shared.most.bytes != u64::MAX {
            let growth = self.growth(call, found, announce);
            // Usually `MOST_GROWTH` is free. Near the limit, what this announce needs may still be.
            let fits =
                growth == 0 || (growth < MOST_GROWTH && (room.reserve(MOST_GROWTH) || room.reserve(growth)));
            if !fits {
                self.make_room(call, room)?;
                found = self.find(call);
            }
        }
        let stopped = announce.event == AnnounceEvent::Stopped;
        let family = announce.endpoint.family();
        let Some(at) = found else {
            return match stopped {
                true => Ok((Announced::default(), Selection::Nobody)),
                false => self.join(call, None, announce, room),
            };
        };
        let held = self.held(at);
        if let Held::Large(number) = held {
            return Ok(self.announce_large(call, number, announce, room));
        }
        match self.leaves[at.leaf].locate(at.slot, family, announce.endpoint.as_bytes()) {
            Some(place) => {
                let transition = Transition::new(announce, Some(place.section.role()));
                if let Held::Few(few) = held
                    && transition.changes() == Changes::REFRESHED
                {
                    return Ok(self.refresh(call, at, few, place));
                }
                let place = self.update(call, at, place, transition.after);
                Ok(self.done(call, at, family, transition, false, place))
            }
            None if stopped => Ok((Announced::new(self.stats(at), Changes::empty()), Selection::Nobody)),
            None => {
                let most = call.shared.most.endpoints_per_address;
                let rival = self.leaves[at.leaf].rival(at.slot, &announce.endpoint, most);
                self.join(call, rival.map(|rival| (at, rival)), announce, room)
            }
        }
    }

    /// A peer that is in a swarm of few is still there: so are most that announce.
    fn refresh(&mut self, call: &Call<'_>, at: At, few: Few, place: Place) -> (Announced, Selection) {
        let leaf = &mut self.leaves[at.leaf];
        leaf.advance(call.now, at.slot);
        leaf.refresh(at.slot, place, leaf.base().stamp(call.now));
        leaf.set_proven(at.slot);
        let stats = population_of(few.counts()).stats(leaf.downloaded(at.slot));
        (Announced::new(stats, Changes::REFRESHED), Selection::Few(at.leaf, at.slot, place))
    }

    /// A peer that is in a swarm of few announces; where it is then.
    fn update(&mut self, call: &Call<'_>, at: At, place: Place, after: Option<Role>) -> Option<Place> {
        let leaf = &mut self.leaves[at.leaf];
        leaf.advance(call.now, at.slot);
        let stamp = leaf.base().stamp(call.now);
        if after == Some(place.section.role()) {
            leaf.refresh(at.slot, place, stamp);
            leaf.set_proven(at.slot);
            return Some(place);
        }
        self.changing(at.leaf, |leaf| match after {
            None => {
                leaf.take(at.slot, place);
                None
            }
            Some(role) => {
                leaf.set_proven(at.slot);
                Some(leaf.change_role(at.slot, place, role, stamp))
            }
        })
    }

    /// A peer that is not in the swarm announces, and there may be no swarm yet. In a swarm of few, an
    /// endpoint of its own address may have to go for it.
    fn join(
        &mut self,
        call: &Call<'_>,
        rival: Option<(At, Place)>,
        announce: &Announce,
        room: &mut Room<'_>,
    ) -> Result<(Announced, Selection), Full> {
        let (at, created) = loop {
            // As many bytes come as go, so nothing is to be split.
            if let Some((at, place)) = rival {
                self.leaves[at.leaf].advance(call.now, at.slot);
                self.changing(at.leaf, |leaf| leaf.take(at.slot, place));
                room.evict_peer(Population::one(place.section.family(), place.section.role()));
                break (at, false);
            }
            match self.admit(call, room) {
                Some(admitted) => break admitted,
                None if self.evict_swarm(call, room, Some(Worth::NEWCOMER)) => {}
                None => return Err(Full(Worth::NEWCOMER)),
            }
        };
        if self.population(at).peers() >= call.shared.most.peers_per_swarm {
            self.evict_peer(call, at, room);
        }
        let (family, transition) = (announce.endpoint.family(), Transition::new(announce, None));
        match self.add(call, at, announce.role(), &announce.endpoint, call.now) {
            Some(place) => {
                if !created && self.population(at).peers() > 1 {
                    self.leaves[at.leaf].set_proven(at.slot);
                }
                Ok(self.done(call, at, family, transition, created, Some(place)))
            }
            None => {
                let Held::Large(number) = self.held(at) else { unreachable!("has just become large") };
                Ok(self.announce_large(call, number, announce, room))
            }
        }
    }

    /// What is kept beside a swarm of few is brought in line with it.
    fn done(
        &mut self,
        call: &Call<'_>,
        at: At,
        family: Family,
        transition: Transition,
        created: bool,
        place: Option<Place>,
    ) -> (Announced, Selection) {
        if transition.completed {
            self.changing(at.leaf, |leaf| {
                leaf.set_downloaded(at.slot, leaf.downloaded(at.slot).saturating_add(1));
            });
        }
        call.shared.totals.turn(family, transition.before, transition.after);
        let mut changes = transition.changes();
        changes.set(Changes::CREATED, created);
        let selection = match (place, self.held(at)) {
            (Some(place), Held::Few(_)) => Selection::Few(at.leaf, at.slot, place),
            _ => Selection::Nobody,
        };
        (Announced::new(self.stats(at), changes), selection)
    }

    /// The second half of an announce, that draws from the caller's randomness.
    pub(in crate::packed) fn select(
        &self,
        selection: Selection,
        announce: &Announce,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) {
        match selection {
            Selection::Nobody => {}
            Selection::Few(leaf, slot, place) => {
                let leaf = &self.leaves[leaf];
                let Held::Few(few) = leaf.held(slot) else { return };
                let seeder = place.section.role().is_seeder();
                let from = |family| Section::of(family, if seeder { Role::Leecher } else { Role::Seeder });
                // A seeder is not among the leechers it is shown.
                let own = |family| {
                    let index = few.count(Section::of(family, Role::Seeder)) + place.index;
                    (!seeder && place.section.family() == family).then_some(index)
                };
                let v4 = leaf.endpoints::<{ CompactV4::LEN }>(slot, few, from(Family::V4));
                let v6 = leaf.endpoints::<{ CompactV6::LEN }>(slot, few, from(Family::V6));
                let (v4, v6) = (Choice::new(v4, own(Family::V4)), Choice::new(v6, own(Family::V6)));
                select(announce, v4, v6, rng, peers);
            }
            Selection::Large(number, own) => self.large(number).select(announce, own, rng, peers),
        }
    }

    fn announce_large(
        &mut self,
        call: &Call<'_>,
        number: u32,
        announce: &Announce,
        room: &mut Room<'_>,
    ) -> (Announced, Selection) {
        let (hash, most) = (&call.shared.hash, call.shared.most);
        let order = large::order(hash, &announce.endpoint);
        let may_split = room.has_reserved(MOST_GROWTH);
        let updated = self
            .changing_large(number, |large| large.update(hash, announce, order, call.now, most, may_split));
        let transition = updated.transition;
        call.shared.totals.turn(announce.endpoint.family(), transition.before, transition.after);
        if updated.evicted != Population::default() {
            room.evict_peer(updated.evicted);
        }
        let selection = updated.own.map_or(Selection::Nobody, |own| Selection::Large(number, own));
        (Announced::new(stats_of(self.large(number)), transition.changes()), selection)
    }

    // --- Hints for a batch: they change nothing, and may be wrong. ---

    /// Brings the leaf of a swarm closer, and says which that is.
    #[inline]
    pub(in crate::packed) fn prefetch_leaf(&self, call: &Call<'_>) -> Way {
        let way = self.way(call);
        if let Some(leaf) = self.leaves.get(way.leaf) {
            prefetch(leaf);
        }
        way
    }

    /// Brings the slots closer among which that of the swarm will be looked for.
    #[inline]
    pub(in crate::packed) fn prefetch_slots(&self, call: &Call<'_>, known: &Way) {
        let way = self.way_from(call, known);
        if let Some(leaf) = self.leaves.get(way.leaf) {
            prefetch_lines::<5>(leaf.near(way.prefix, call.key));
        }
        prefetch(&*self.large);
    }

    /// Brings a swarm closer that its slot does not hold; its number if it is a large one.
    pub(in crate::packed) fn prefetch_swarm(&self, at: At) -> Option<u32> {
        match self.held(at) {
            Held::Few(few) => {
                prefetch_lines::<8>(self.leaves[at.leaf].block(at.slot, few));
                None
            }
            Held::Large(number) => {
                prefetch(self.large(number));
                Some(number)
            }
            Held::Nobody(_) | Held::One(_) => None,
        }
    }
}
