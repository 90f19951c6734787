//! A stripe: the swarms behind one lock, in leaves that split and merge one at a time.

use std::{iter, mem};

use super::{
    clock::Tick,
    hash::Key,
    large::{self, Large, Own, starts},
    leaf::{Few, Held, Leaf, Narrow, Nobody, Place, Prefix, Section, Slot, population_of},
    linear,
    prefetch::{prefetch, prefetch_lines},
    room::{Room, Shared},
    select::{Choice, select},
};
use crate::{
    Announce, AnnounceEvent, Announced, Changes, CompactV4, CompactV6, Cursor, Endpoint, Family, PeerBuffer,
    PeerRecord, Random, Records, Restored, Retention, Role, SwarmStats, Timestamp, announce::Transition,
    implement::CursorExt as _, report::NotRestored, totals::Population,
};

/// The swarms behind one lock.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    leaves: Vec<Leaf>,
    /// Swarms too large for a leaf, by number; some numbers are free.
    large: Box<[Option<Box<Large>>]>,
    /// Bytes that have come, less those that have gone, since the last report to the store.
    untold: i64,
    /// Bytes that leaves use: what makes them split and merge.
    used: usize,
}

/// A swarm, a stripe's part of the key, and the time: what nearly every method is about.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) shared: &'a Shared,
    /// The leading bits that all keys of a stripe share.
    pub(super) home: Prefix,
    pub(super) key: &'a Key,
    pub(super) now: Tick,
}

/// The leaf of a swarm, valid while the number of the stripe's leaves is the same.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Way {
    leaf: usize,
    prefix: Prefix,
    leaves: usize,
}

/// Where a swarm is, until anything in its stripe changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct At {
    leaf: usize,
    slot: Slot,
}

/// An announce that has updated and not yet selected: the place of the peers, and the announcer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Selection {
    Nobody,
    Few(usize, Slot, Place),
    Large(u32, Own),
}

/// What a swarm is worth to a full store: flood before swarms that live, small before large, stale before
/// fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    proven: bool,
    /// Sizes count by powers of two: among similar ones the stale goes.
    size: u32,
    latest: Tick,
}

impl Worth {
    /// A swarm that comes displaces those without peers and those that have not shown that they live, and no
    /// others while there are such.
    const NEWCOMER: Self = Self::new(true, 1, Tick::FIRST);

    const fn new(proven: bool, peers: u64, latest: Tick) -> Self {
        let size = match peers.checked_ilog2() {
            Some(log) => log + 1,
            None => 0,
        };
        Self { proven, size, latest }
    }
}

/// There is no room for a swarm that is worth so much, and nothing in its stripe is worth less.
#[derive(Debug)]
pub(super) struct Full(pub(super) Worth);

/// Where a sweep or an export goes on: at this key or the next one behind it, and where within its peers if
/// it is a large swarm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Position {
    pub(super) key: Key,
    pub(super) within: Cursor,
}

impl Position {
    pub(super) fn first(home: Prefix) -> Self {
        Self { key: home.first_key(), within: Cursor::START }
    }
}

/// What one hold of a sweep did.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) visited: usize,
    /// Leaves looked at, which may have been empty.
    leaves: usize,
    pub(super) gone: Population,
    pub(super) swarms_removed: u64,
}

/// Swarms looked at to find the one worth least: where a fifth of all are flood, none of 64 is one in a
/// million times.
pub(super) const EVICTION_SAMPLE: usize = 64;
/// Swarms that go at once when bytes are needed, and the peers that one swarm gives up at once: few enough
/// for one hold.
const MOST_EVICTED: usize = 8;
const MOST_PEERS_EVICTED: usize = 32;
/// The peers of a swarm that has plenty: a selection hands out less than a fifth of them.
const SATED: u64 = 1000;

/// Mean bytes a leaf, above which one splits and below which one merges. Around 1.5 KiB a look-up stays
/// within three cache lines, a join moves less than a microsecond's worth, and the leaf's own 20 bytes are
/// half a byte a swarm.
const SPLIT_ABOVE: usize = 1024;
const MERGE_BELOW: usize = 512;
/// Merges for each leaf that a sweep passes: enough to be done within one pass, whatever has gone.
const MERGES_A_LEAF: usize = 2;
/// Splits that one newcomer makes up when a sweep has filled leaves with swarms that were large.
const MOST_SPLITS: usize = 4;
/// The most headers of leaves, or numbers of large swarms, that a stripe has to spare.
const MOST_SPARE: usize = 64;

/// The most by which one announce makes a stripe grow: by a slot or a bucket, a split, tables instead of a
/// block, and spare room in a directory (1,280 bytes for leaves, 2,064 for buckets).
pub(super) const MOST_GROWTH: usize = 4096;

/// The same for an announce that takes the place of a peer in a large swarm: two buckets, neither by more
/// than a size of blocks.
const MOST_REPLACED: usize = 512;

/// Room for one swarm and for what some announces to it reserve.
pub(super) const LEAST_ROOM: usize = 16 * MOST_GROWTH;

impl Stripe {
    /// Tells the store what the stripe takes by now.
    pub(super) fn settle(&mut self, room: &mut Room<'_>) {
        room.settle(mem::take(&mut self.untold));
    }

    /// Counts what was there before and what is there now.
    const fn count(&mut self, before: usize, now: usize) {
        self.untold += now as i64 - before as i64;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    pub(super) const fn leaves(&self) -> usize {
        self.leaves.len()
    }

    // --- Finding. ---

    #[inline]
    fn way(&self, call: &Call<'_>) -> Way {
        let leaves = self.leaves.len();
        let reach = linear::reach(call.key.head() << call.home.depth, leaves);
        let depth = call.home.depth + reach.depth;
        let prefix = Prefix { bits: call.key.head() & !(u64::MAX >> depth), depth };
        Way { leaf: reach.bucket, prefix, leaves }
    }

    /// The way by now, if it was `known` at another time.
    #[inline]
    fn way_from(&self, call: &Call<'_>, known: &Way) -> Way {
        if known.leaves == self.leaves.len() { *known } else { self.way(call) }
    }

    pub(super) fn find(&self, call: &Call<'_>) -> Option<At> {
        self.find_by(call, &self.way(call))
    }

    #[inline]
    fn find_by(&self, call: &Call<'_>, way: &Way) -> Option<At> {
        let found = self.leaves.get(way.leaf)?.find(way.prefix, call.key);
        found.ok().map(|slot| At { leaf: way.leaf, slot })
    }

    /// The swarm, from a way that was known at another time.
    #[inline]
    pub(super) fn find_from(&self, call: &Call<'_>, known: &Way) -> Option<At> {
        self.find_by(call, &self.way_from(call, known))
    }

    fn prefix(&self, home: Prefix, leaf: usize) -> Prefix {
        let order = (leaf as u64).reverse_bits();
        Prefix {
            bits: home.bits | order >> home.depth,
            depth: home.depth + linear::depth(leaf, self.leaves.len()),
        }
    }

    /// The leaves in the order of their keys, from the one of `key` on.
    fn leaves_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (usize, Prefix)> {
        let leaves = self.leaves.len();
        let first = (leaves > 0).then(|| linear::reach(key.head() << home.depth, leaves));
        iter::successors(first, move |reached| reached.end.map(|end| linear::reach(end, leaves)))
            .map(move |reached| (reached.bucket, self.prefix(home, reached.bucket)))
    }

    /// The swarms in the order of their keys, from `key` on, or from where it would be.
    fn swarms_from(&self, home: Prefix, key: Key) -> impl Iterator<Item = (Prefix, At)> {
        self.leaves_from(home, key).enumerate().flat_map(move |(nth, (leaf, prefix))| {
            let (Ok(first) | Err(first)) = match nth {
                0 => self.leaves[leaf].find(prefix, &key),
                _ => Ok(Leaf::first(prefix)),
            };
            iter::successors(Some(first), |slot| Some(slot.next()))
                .take_while(move |slot| slot.index < self.leaves[leaf].swarms())
                .map(move |slot| (prefix, At { leaf, slot }))
        })
    }

    fn held(&self, at: At) -> Held {
        self.leaves[at.leaf].held(at.slot)
    }

    fn large(&self, number: u32) -> &Large {
        self.large[number as usize].as_ref().expect("a number in a slot is one of a swarm")
    }

    // --- Announcing. ---

    /// An announce of the only peer of its swarm, which is held by its slot alone: the long tail, two thirds
    /// of all swarms.
    #[inline]
    pub(super) fn announce_only(
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
    pub(super) fn announce(
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
    pub(super) fn select(
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
    pub(super) fn prefetch_leaf(&self, call: &Call<'_>) -> Way {
        let way = self.way(call);
        if let Some(leaf) = self.leaves.get(way.leaf) {
            prefetch(leaf);
        }
        way
    }

    /// Brings the slots closer among which that of the swarm will be looked for.
    #[inline]
    pub(super) fn prefetch_slots(&self, call: &Call<'_>, known: &Way) {
        let way = self.way_from(call, known);
        if let Some(leaf) = self.leaves.get(way.leaf) {
            prefetch_lines::<5>(leaf.near(way.prefix, call.key));
        }
        prefetch(&*self.large);
    }

    /// Brings a swarm closer that its slot does not hold; its number if it is a large one.
    pub(super) fn prefetch_swarm(&self, at: At) -> Option<u32> {
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

    /// The large swarm that has this number by now, if any.
    pub(super) fn numbered(&self, number: u32) -> Option<&Large> {
        self.large.get(number as usize)?.as_deref()
    }

    // --- Swarms come and go. ---

    /// The place of a swarm, made if there is none; whether it was. `None` if there are as many as may be.
    fn admit(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> Option<(At, bool)> {
        self.split_if_full(call);
        let Way { leaf, prefix, .. } = self.way(call);
        let found = self.leaves[leaf].find(prefix, call.key);
        let (Ok(slot) | Err(slot)) = found;
        self.leaves[leaf].advance(call.now, slot);
        if found.is_ok() {
            return Some((At { leaf, slot }, false));
        }
        if !room.count_swarm() {
            return None;
        }
        self.changing(leaf, |leaf| {
            let latest = leaf.base().stamp(call.now);
            leaf.insert(slot, call.key, Held::Nobody(Nobody::new(0, latest, false)));
        });
        Some((At { leaf, slot }, true))
    }

    /// Adds a peer to a swarm of few. `None` if there are too many for that; the swarm is a large one then,
    /// without it.
    fn add(&mut self, call: &Call<'_>, at: At, role: Role, endpoint: &Endpoint, tick: Tick) -> Option<Place> {
        let section = Section::of(endpoint.family(), role);
        if self.leaves[at.leaf].block_with(at.slot, section) > Leaf::MOST_BLOCK {
            self.promote(call, at);
            return None;
        }
        Some(self.changing(at.leaf, |leaf| {
            leaf.add(at.slot, section, endpoint.as_bytes(), leaf.base().stamp(tick))
        }))
    }

    /// Takes a swarm out.
    fn remove_at(&mut self, at: At) -> (SwarmStats, Population, Option<Box<Large>>) {
        let (stats, population) = (self.stats(at), self.population(at));
        let large = match self.held(at) {
            Held::Large(number) => Some(self.take_large(number)),
            _ => None,
        };
        self.changing(at.leaf, |leaf| leaf.remove(at.slot));
        (stats, population, large)
    }

    /// Removes a swarm and says what was there.
    pub(super) fn remove(&mut self, call: &Call<'_>) -> Option<(SwarmStats, Option<Box<Large>>)> {
        let (stats, population, large) = self.remove_at(self.find(call)?);
        call.shared.totals.remove_swarm(population);
        Some((stats, large))
    }

    /// Splits now what swarms and peers that are about to come would make split one by one, with more to move
    /// each time. But not all that a sweep has filled: that takes as many holds.
    pub(super) fn split_for(&mut self, call: &Call<'_>, bytes: usize) {
        if self.leaves.is_empty() {
            self.push_leaf(Leaf::new(call.now));
        }
        for _ in 0..MOST_SPLITS + bytes / SPLIT_ABOVE {
            if self.used + bytes <= SPLIT_ABOVE * self.leaves.len() {
                break;
            }
            self.split(call.home);
        }
    }

    /// Makes a leaf as large as it will be when the next swarms have come; how many of them belong there.
    /// They follow each other by their keys, and each says how many bytes it takes.
    pub(super) fn grow_for(&mut self, call: &Call<'_>, next: impl Iterator<Item = (Key, usize)>) -> usize {
        if self.leaves.is_empty() {
            return 0;
        }
        let reach = linear::reach(call.key.head() << call.home.depth, self.leaves.len());
        let is_here = |key: &Key| reach.end.is_none_or(|end| key.head() << call.home.depth < end);
        let (count, bytes) = next
            .take_while(|(key, _)| is_here(key))
            .fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
        self.changing(reach.bucket, |leaf| leaf.grow(bytes));
        count
    }

    /// Gives back what the leaf of a swarm has to spare, if there is one: where there was no room, there may
    /// not be.
    pub(super) fn compact(&mut self, call: &Call<'_>) {
        if self.leaves.is_empty() {
            // There was no room for a first one.
            return;
        }
        let leaf = self.way(call).leaf;
        if leaf < self.leaves.len() {
            self.changing(leaf, Leaf::compact);
        }
    }

    /// Puts a swarm back, with some of its peers, as far as there is room.
    pub(super) fn restore(
        &mut self,
        call: &Call<'_>,
        peers: &[PeerRecord],
        downloaded: u32,
        room: &mut Room<'_>,
        restored: &mut Restored,
    ) {
        let mut at = None;
        // Peer by peer, and once more for the download count.
        for peer in peers.iter().map(Some).chain((downloaded > 0).then_some(None)) {
            // What was is worth less than what is: nothing goes to make room for it.
            if room.reserve(MOST_GROWTH) && at.is_none() {
                at = self.admit(call, room).map(|(at, _)| at);
            }
            match (at.filter(|_| room.has_reserved(MOST_GROWTH)), peer) {
                (Some(at), Some(peer)) => restored.count(self.restore_peer(call, at, peer, room)),
                (None, Some(_)) => restored.count(Err(NotRestored::Full)),
                (Some(at), None) => self.change_downloaded(at, |current| current.max(downloaded)),
                (None, None) => {}
            }
            self.settle(room);
        }
    }

    fn restore_peer(
        &mut self,
        call: &Call<'_>,
        at: At,
        peer: &PeerRecord,
        room: &mut Room<'_>,
    ) -> Result<(), NotRestored> {
        let (family, tick) = (peer.endpoint.family(), call.shared.clock.tick(peer.last_announce));
        let full = self.population(at).peers() >= call.shared.most.peers_per_swarm;
        if let Held::Large(number) = self.held(at) {
            let most = call.shared.most;
            self.changing_large(number, |large| {
                large.restore(&call.shared.hash, peer, tick, call.now, most)
            })?;
        } else {
            if self.leaves[at.leaf].locate(at.slot, family, peer.endpoint.as_bytes()).is_some() {
                return Err(NotRestored::Known);
            }
            let most = call.shared.most.endpoints_per_address;
            if full || self.leaves[at.leaf].rival(at.slot, &peer.endpoint, most).is_some() {
                return Err(NotRestored::Full);
            }
            if self.add(call, at, peer.role, &peer.endpoint, tick).is_none() {
                return self.restore_peer(call, at, peer, room);
            }
            self.leaves[at.leaf].set_proven(at.slot);
        }
        room.count_peer(family, peer.role);
        Ok(())
    }

    fn change_downloaded(&mut self, at: At, change: impl FnOnce(u32) -> u32) {
        match self.held(at) {
            Held::Large(number) => {
                self.changing_large(number, |large| large.downloaded = change(large.downloaded))
            }
            _ => self.changing(at.leaf, |leaf| {
                let (current, changed) = (leaf.downloaded(at.slot), change(leaf.downloaded(at.slot)));
                if changed != current {
                    leaf.set_downloaded(at.slot, changed);
                }
            }),
        }
    }

    /// Adds downloads that were counted earlier; whether there is such a swarm. `Err` if there is no room;
    /// nothing has changed then.
    pub(super) fn add_downloads(
        &mut self,
        call: &Call<'_>,
        earlier: u32,
        room: &mut Room<'_>,
    ) -> Result<bool, Full> {
        if self.find(call).is_some() {
            self.make_room(call, room)?;
        }
        let at = self.find(call);
        Ok(at.inspect(|&at| self.change_downloaded(at, |now| now.saturating_add(earlier))).is_some())
    }

    // --- Making room. ---

    /// How many more bytes an announce may take than the store has already: most only say that a peer is
    /// still there.
    fn growth(&self, call: &Call<'_>, found: Option<At>, announce: &Announce) -> usize {
        let known = found.and_then(|at| match self.held(at) {
            Held::Large(number) => self.large(number).role_of(&call.shared.hash, announce),
            _ => {
                let endpoint = &announce.endpoint;
                let place = self.leaves[at.leaf].locate(at.slot, endpoint.family(), endpoint.as_bytes());
                place.map(|place| place.section.role())
            }
        });
        let changes = Transition::new(announce, known).changes();
        if changes == Changes::REFRESHED || changes.is_empty() {
            return 0;
        }
        // An address at its limit displaces only itself.
        let most = call.shared.most.endpoints_per_address;
        match found.filter(|_| known.is_none()).map(|at| (at, self.held(at))) {
            Some((_, Held::Large(number)))
                if self.large(number).replaces(&call.shared.hash, announce, most) =>
            {
                MOST_REPLACED
            }
            Some((at, Held::One(_) | Held::Few(_)))
                if changes == Changes::JOINED
                    && self.leaves[at.leaf].rival(at.slot, &announce.endpoint, most).is_some() =>
            {
                0
            }
            _ => MOST_GROWTH,
        }
    }

    /// Reserves what one announce may need. Swarms of this stripe that are worth less than the one that needs
    /// it go for that; one that has plenty of peers gives up one of them instead.
    fn make_room(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> Result<(), Full> {
        if room.reserve(MOST_GROWTH) {
            return Ok(());
        }
        let own = self.find(call);
        let worth = match own.map_or(0, |at| self.population(at).peers()) {
            0 => Worth::NEWCOMER,
            peers @ 1..SATED => Worth::new(true, peers + 1, call.now),
            SATED.. => match own {
                Some(at) if room.reserve(MOST_REPLACED) => {
                    self.evict_peer(call, at, room);
                    return Ok(());
                }
                _ => Worth::NEWCOMER,
            },
        };
        if self.evict_swarms(call, room, Some(worth)) { Ok(()) } else { Err(Full(worth)) }
    }

    /// Swarms other than that of the call, with their worths. Neighbours in the order of permuted keys are as
    /// good as random ones.
    fn sample(&self, call: &Call<'_>) -> impl Iterator<Item = (Worth, At)> {
        let own = self.find(call);
        // Nothing around is seen twice, since it ends where it began.
        let end = call.key.head();
        let behind = self.swarms_from(call.home, *call.key);
        let around = self.swarms_from(call.home, call.home.first_key());
        let around =
            around.take_while(move |&(prefix, at)| self.leaves[at.leaf].key(prefix, at.slot).head() < end);
        let others = behind.chain(around).map(|(_, at)| at).filter(move |&at| Some(at) != own);
        others.take(EVICTION_SAMPLE).map(|at| (self.worth(at), at))
    }

    /// How many swarms other than that of the call there are to choose from, and the least worth among them.
    pub(super) fn least(&self, call: &Call<'_>) -> (usize, Option<Worth>) {
        self.sample(call).fold((0, None), |(count, least), (worth, _)| {
            (count + 1, Some(least.map_or(worth, |least: Worth| least.min(worth))))
        })
    }

    /// Drops swarms until there is room for one announce; whether there is. Few at once, and one only if they
    /// are worth whatever they are.
    pub(super) fn evict_swarms(
        &mut self,
        call: &Call<'_>,
        room: &mut Room<'_>,
        below: Option<Worth>,
    ) -> bool {
        for _ in 0..below.map_or(1, |_| MOST_EVICTED) {
            if !self.evict_swarm(call, room, below) {
                return false;
            }
            self.settle(room);
            if room.reserve(MOST_GROWTH) {
                return true;
            }
        }
        false
    }

    /// Drops the swarm that is worth least in a sample, if that is less than a limit; whether it was.
    fn evict_swarm(&mut self, call: &Call<'_>, room: &mut Room<'_>, below: Option<Worth>) -> bool {
        let least = self.sample(call).min_by_key(|(worth, _)| *worth);
        let Some((_, at)) = least.filter(|&(worth, _)| below.is_none_or(|below| worth < below)) else {
            return false;
        };
        let (_, population, large) = self.remove_at(at);
        self.changing(at.leaf, Leaf::compact);
        room.evict_swarm(population, large);
        true
    }

    /// Drops peers of the swarm itself until there is room for one announce; whether there is. Few at once.
    pub(super) fn evict_own_peers(&mut self, call: &Call<'_>, room: &mut Room<'_>) -> bool {
        for _ in 0..MOST_PEERS_EVICTED {
            let Some(at) = self.find(call).filter(|&at| self.population(at).peers() > 0) else {
                return false;
            };
            self.evict_peer(call, at, room);
            self.settle(room);
            if room.reserve(MOST_GROWTH) {
                return true;
            }
        }
        false
    }

    fn worth(&self, at: At) -> Worth {
        let leaf = &self.leaves[at.leaf];
        let worth = |proven, peers, latest| Worth::new(proven, peers, leaf.base().tick(latest));
        match leaf.held(at.slot) {
            Held::Nobody(nobody) => worth(nobody.proven(), 0, nobody.latest()),
            Held::One(one) => worth(one.proven(), 1, one.stamp()),
            Held::Few(few) => {
                let latest = leaf.stamps(at.slot, few).iter().copied().max().unwrap_or(0);
                worth(few.proven(), few.peers() as u64, latest)
            }
            Held::Large(number) => {
                let large = self.large(number);
                Worth::new(true, large.population().peers(), large.latest)
            }
        }
    }

    /// Drops the peer of a swarm that has been silent longest, or nearly so.
    fn evict_peer(&mut self, call: &Call<'_>, at: At, room: &mut Room<'_>) {
        let gone = match self.held(at) {
            Held::Large(number) => {
                // As good as random, and another one each time.
                let evicted = call.shared.totals.load().evicted.peers;
                let order = call.shared.hash.hash(&evicted.to_le_bytes());
                self.changing_large(number, |large| large.evict(order))
            }
            _ => {
                let stalest = self.leaves[at.leaf].stalest(at.slot);
                let Some(place) = stalest else { return };
                self.changing(at.leaf, |leaf| {
                    leaf.take(at.slot, place);
                    leaf.compact();
                });
                Population::one(place.section.family(), place.section.role())
            }
        };
        room.evict_peer(gone);
    }

    // --- Forgetting. ---

    /// Visits about `limit` peers from a position on, removes those that have expired, and swarms without
    /// peers as `policy` says; where to go on, unless that was the end.
    pub(super) fn expire(
        &mut self,
        call: &Call<'_>,
        from: Option<Position>,
        oldest: Tick,
        policy: Retention,
        limit: usize,
        step: &mut Step,
    ) -> Option<Position> {
        let home = call.home;
        let from = from.unwrap_or(Position::first(home));
        let mut order = Some(from.key.head() << home.depth);
        let mut resumed = Some(from);
        while let Some(start) = order
            && !self.leaves.is_empty()
        {
            let reach = linear::reach(start, self.leaves.len());
            let (leaf, prefix) = (reach.bucket, self.prefix(home, reach.bucket));
            // Not the first of the leaf, which may have been merged with one that was visited.
            let first = Prefix { bits: home.bits | start >> home.depth, depth: prefix.depth }.first_key();
            if resumed.is_none() && step.visited + step.leaves >= limit {
                return Some(Position { key: first, within: Cursor::START });
            }
            step.leaves += 1;
            let (mut slot, mut within) = match resumed.take() {
                None => {
                    let (Ok(slot) | Err(slot)) = self.leaves[leaf].find(prefix, &first);
                    (slot, Cursor::START)
                }
                Some(from) => match self.leaves[leaf].find(prefix, &from.key) {
                    Ok(slot) => (slot, from.within),
                    Err(slot) => (slot, Cursor::START),
                },
            };
            while slot.index < self.leaves[leaf].swarms() {
                let key = || self.leaves[leaf].key(prefix, slot);
                if step.visited >= limit {
                    return Some(Position { key: key(), within });
                }
                step.visited += usize::from(within == Cursor::START);
                let at = At { leaf, slot };
                let next = self.expire_swarm(call, at, within, oldest, limit, step);
                if !next.is_end() {
                    return Some(Position { key: self.leaves[leaf].key(prefix, slot), within: next });
                }
                within = Cursor::START;
                if self.is_idle(at, policy) {
                    self.changing(leaf, |leaf| leaf.remove(slot));
                    call.shared.totals.remove_swarm(Population::default());
                    step.swarms_removed += 1;
                } else {
                    slot = slot.next();
                }
            }
            self.changing(leaf, Leaf::compact);
            self.merge_some(home);
            order = reach.end;
        }
        None
    }

    fn expire_swarm(
        &mut self,
        call: &Call<'_>,
        at: At,
        within: Cursor,
        oldest: Tick,
        limit: usize,
        step: &mut Step,
    ) -> Cursor {
        let leaf = &self.leaves[at.leaf];
        let first_alive = leaf.base().first_alive(oldest);
        match leaf.held(at.slot) {
            Held::Nobody(_) => {}
            Held::One(one) => {
                step.visited += 1;
                if u16::from(one.stamp()) < first_alive {
                    self.expire_few(call, at, first_alive, step);
                }
            }
            Held::Few(few) => {
                step.visited += few.peers();
                if leaf.stamps(at.slot, few).iter().any(|&stamp| u16::from(stamp) < first_alive) {
                    self.expire_few(call, at, first_alive, step);
                }
            }
            Held::Large(number) => {
                let left = limit.saturating_sub(step.visited).max(1);
                let expired = self
                    .changing_large(number, |large| large.expire(&call.shared.hash, oldest, within, left));
                step.visited += expired.visited;
                step.gone += expired.gone;
                call.shared.totals.remove_peers(expired.gone);
                if expired.next.is_end() {
                    self.demote_if_small(call, at, number);
                }
                return expired.next;
            }
        }
        Cursor::END
    }

    fn expire_few(&mut self, call: &Call<'_>, at: At, first_alive: u16, step: &mut Step) {
        let counts = self.changing(at.leaf, |leaf| leaf.expire(at.slot, first_alive));
        let gone = population_of(counts);
        step.gone += gone;
        call.shared.totals.remove_peers(gone);
    }

    fn is_idle(&self, at: At, policy: Retention) -> bool {
        match self.held(at) {
            Held::Nobody(nobody) => policy == Retention::DropEmpty || nobody.downloaded() == 0,
            _ => false,
        }
    }

    // --- Reading. ---

    fn population(&self, at: At) -> Population {
        match self.held(at) {
            Held::Nobody(_) => Population::default(),
            Held::One(one) => Population::one(Family::V4, one.role()),
            Held::Few(few) => population_of(few.counts()),
            Held::Large(number) => self.large(number).population(),
        }
    }

    fn stats(&self, at: At) -> SwarmStats {
        match self.held(at) {
            Held::Large(number) => stats_of(self.large(number)),
            _ => self.population(at).stats(self.leaves[at.leaf].downloaded(at.slot)),
        }
    }

    pub(super) fn scrape(&self, call: &Call<'_>) -> Option<SwarmStats> {
        self.find(call).map(|at| self.stats(at))
    }

    /// Shows up to `limit` swarms behind `after`, in the order of their keys; the last key, if there are
    /// more.
    pub(super) fn list(
        &self,
        home: Prefix,
        after: Option<&Key>,
        limit: usize,
        mut show: impl FnMut(Key, SwarmStats),
    ) -> Option<Key> {
        let first = home.first_key();
        let mut last = None;
        let swarms = self.swarms_from(home, *after.unwrap_or(&first));
        let keyed = swarms.map(|(prefix, at)| (self.leaves[at.leaf].key(prefix, at.slot), at));
        for (shown, (key, at)) in keyed.filter(|(key, _)| Some(key) != after).enumerate() {
            if shown == limit {
                return last;
            }
            show(key, self.stats(at));
            last = Some(key);
        }
        None
    }

    /// Reads about `limit` peers and swarms of the nth stripe out, from a position on, each leaf behind the
    /// first counting as one; how many it was, and where to go on, unless that was the end.
    pub(super) fn export(
        &self,
        shared: &Shared,
        nth: usize,
        from: Option<Position>,
        limit: usize,
        latest: Timestamp,
        records: &mut Records,
    ) -> (usize, Option<Position>) {
        let (placement, clock) = (shared.placement.of_stripe(nth), shared.clock);
        let home = shared.placement.home();
        let from = from.unwrap_or(Position::first(home));
        let mut visited = 0;
        let mut is_first = true;
        let mut leaves = self.leaves_from(home, from.key).peekable();
        let mut resumed = Some(from);
        while let Some((number, prefix)) = leaves.next() {
            // Sweeps merge what is empty, but until then there may be any number of such leaves.
            if !mem::take(&mut is_first) {
                if visited >= limit {
                    return (visited, Some(Position::first(prefix)));
                }
                visited += 1;
            }
            if let Some(&(next, _)) = leaves.peek() {
                self.leaves[next].prefetch();
            }
            let leaf = &self.leaves[number];
            let (Ok(mut slot) | Err(mut slot)) = leaf.find(prefix, &prefix.first_key().max(from.key));
            while slot.index < leaf.swarms() {
                let key = leaf.key(prefix, slot);
                // What it stood in the middle of is the first, or gone.
                let within =
                    resumed.take().filter(|from| from.key == key).map_or(Cursor::START, |from| from.within);
                if visited >= limit {
                    return (visited, Some(Position { key, within }));
                }
                visited += 1;
                let info_hash = placement.info_hash(&key);
                if let Held::Large(number) = leaf.held(slot) {
                    let large = self.large(number);
                    let (left, before) = ((limit - visited).max(1), visited);
                    let next = large.export(&shared.hash, within, left, |counts, endpoints, ticks| {
                        visited += ticks.len();
                        let times = ticks.iter().map(|&tick| clock.time(tick).min(latest));
                        records.push_sections(&info_hash, large.downloaded, counts, endpoints, times);
                    });
                    if !next.is_end() {
                        return (visited, Some(Position { key, within: next }));
                    }
                    // Whatever became of its peers since it was begun.
                    if visited == before && large.downloaded > 0 {
                        records.push(&info_hash, large.downloaded, &[]);
                    }
                } else {
                    let (counts, endpoints, stamps) = leaf.sections(slot);
                    let downloaded = leaf.downloaded(slot);
                    visited += stamps.len();
                    if !stamps.is_empty() || downloaded > 0 {
                        let times =
                            stamps.iter().map(|&stamp| clock.time(leaf.base().tick(stamp)).min(latest));
                        let counts = counts.map(u32::from);
                        records.push_sections(&info_hash, downloaded, counts, endpoints, times);
                    }
                }
                slot = slot.next();
            }
        }
        (visited, None)
    }

    /// Appends up to `limit` peers of a swarm, from the cursor on; where to go on.
    pub(super) fn peers(
        &self,
        call: &Call<'_>,
        from: Cursor,
        limit: usize,
        out: &mut Vec<PeerRecord>,
    ) -> Cursor {
        let Some(at) = self.find(call) else { return Cursor::END };
        let (hash, clock) = (&call.shared.hash, call.shared.clock);
        if let Held::Large(number) = self.held(at) {
            return self.large(number).list(hash, clock, from, limit, out);
        }
        if from.is_end() || limit == 0 {
            return from;
        }
        // In the order of a large swarm, which it may become.
        let leaf = &self.leaves[at.leaf];
        let (v4_start, v6_start) = starts(from, hash);
        let mut found: Vec<_> = leaf
            .peers(at.slot)
            .filter_map(|(section, endpoint, stamp)| {
                let (order, behind) = match section.endpoint(endpoint) {
                    Endpoint::V4(v4) => {
                        let order = hash.order(v4.as_bytes());
                        (order, v4_start.is_some_and(|start| start.is_before(order, v4.as_bytes())))
                    }
                    Endpoint::V6(v6) => {
                        let order = hash.order(v6.as_bytes());
                        (order, v6_start.is_before(order, v6.as_bytes()))
                    }
                };
                behind.then_some((section, order, endpoint, stamp))
            })
            .collect();
        found.sort_unstable_by_key(|&(section, order, endpoint, _)| {
            (section.family() == Family::V6, order, endpoint)
        });
        let more = found.len() > limit;
        found.truncate(limit);
        out.extend(found.iter().map(|&(section, _, endpoint, stamp)| PeerRecord {
            endpoint: section.endpoint(endpoint),
            role: section.role(),
            last_announce: clock.time(leaf.base().tick(stamp)),
            details: None,
        }));
        match found.last() {
            Some(&(_, _, last, _)) if more => Cursor::after(last),
            _ => Cursor::END,
        }
    }

    // --- Leaves and tables. ---

    /// Changes a leaf, and what is counted of it.
    fn changing<R>(&mut self, leaf: usize, change: impl FnOnce(&mut Leaf) -> R) -> R {
        let leaf = &mut self.leaves[leaf];
        let (used, capacity) = (leaf.used(), leaf.capacity());
        let result = change(leaf);
        self.used = self.used + leaf.used() - used;
        if leaf.capacity() != capacity {
            let now = leaf.capacity();
            self.count(capacity, now);
            self.tidy();
        }
        result
    }

    /// A leaf that has moved has left a gap. So two others may move out of sparse pages, as good as random
    /// ones.
    fn tidy(&mut self) {
        let leaves = self.leaves.len();
        let first = self.used % leaves;
        for other in first..(first + 8).min(leaves) {
            self.leaves[other].move_if_sparse();
        }
    }

    /// Changes a large swarm, and what is counted of it.
    fn changing_large<R>(&mut self, number: u32, change: impl FnOnce(&mut Large) -> R) -> R {
        let large = self.large[number as usize].as_mut().expect("a number in a slot is one of a swarm");
        let before = large.bytes();
        let result = change(large);
        let now = large.bytes();
        self.count(before, now);
        result
    }

    /// Gives a swarm tables of its own.
    fn promote(&mut self, call: &Call<'_>, at: At) {
        let leaf = &self.leaves[at.leaf];
        let mut large = Box::new(Large::new(leaf.downloaded(at.slot), call.now));
        for (section, endpoint, stamp) in leaf.peers(at.slot) {
            let (hash, tick) = (&call.shared.hash, leaf.base().tick(stamp));
            match section.endpoint(endpoint) {
                Endpoint::V4(v4) => large.insert_v4(hash, v4.as_bytes(), section.role(), tick, call.now),
                Endpoint::V6(v6) => large.insert_v6(hash, v6.as_bytes(), section.role(), tick, call.now),
            }
        }
        self.count(0, large.bytes());
        let number = self.large.iter().rposition(Option::is_none).unwrap_or_else(|| self.grow_large());
        self.large[number] = Some(large);
        self.changing(at.leaf, |leaf| leaf.make_large(at.slot, number as u32));
    }

    /// More numbers, from the last of which on they are given out.
    fn grow_large(&mut self) -> usize {
        let before = self.large.len();
        let mut large = mem::take(&mut self.large).into_vec();
        large.resize_with(before + (1 + before / 8).min(MOST_SPARE), || None);
        self.large = large.into_boxed_slice();
        self.count(before * size_of::<Option<Box<Large>>>(), size_of_val(&*self.large));
        self.large.len() - 1
    }

    fn take_large(&mut self, number: u32) -> Box<Large> {
        let large = self.large[number as usize].take().expect("a number in a slot is one of a swarm");
        self.count(large.bytes(), 0);
        if self.large.iter().all(Option::is_none) {
            self.count(size_of_val(&*self.large), 0);
            self.large = Box::default();
        }
        large
    }

    /// Puts a large swarm that has shrunk to a few peers back into its leaf.
    fn demote_if_small(&mut self, call: &Call<'_>, at: At, number: u32) {
        if self.large(number).block_bytes() > Leaf::MOST_BLOCK / 4 {
            return;
        }
        let large = self.take_large(number);
        self.changing(at.leaf, |leaf| {
            leaf.advance(call.now, at.slot);
            let latest = leaf.base().stamp(large.latest);
            leaf.set(at.slot, Held::Nobody(Nobody::new(0, latest, true)));
            for role in [Role::Seeder, Role::Leecher] {
                for (endpoint, tick) in large.v4(role) {
                    leaf.add(at.slot, Section::of(Family::V4, role), endpoint, leaf.base().stamp(tick));
                }
                for (endpoint, tick) in large.v6(role) {
                    leaf.add(at.slot, Section::of(Family::V6, role), endpoint, leaf.base().stamp(tick));
                }
            }
            leaf.set_downloaded(at.slot, large.downloaded);
        });
    }

    fn split_if_full(&mut self, call: &Call<'_>) {
        if self.leaves.is_empty() {
            self.push_leaf(Leaf::new(call.now));
        }
        let mut splits = 0;
        while (self.used > SPLIT_ABOVE * self.leaves.len() && splits < MOST_SPLITS)
            || self.leaves[self.way(call).leaf].used() > Leaf::MOST_BYTES
        {
            self.split(call.home);
            splits += 1;
        }
    }

    fn split(&mut self, home: Prefix) {
        let old = linear::buddy(self.leaves.len());
        let prefix = self.prefix(home, old);
        let [lower, upper] = self.take_leaf(old).split(prefix);
        self.put_leaf(old, lower);
        self.push_leaf(upper);
    }

    /// A few merges, if the stripe has become sparse: what splits have taken long to make goes in as many
    /// steps.
    fn merge_some(&mut self, home: Prefix) {
        for _ in 0..MERGES_A_LEAF {
            let newest = self.leaves.len().saturating_sub(1);
            if newest == 0 {
                if self.leaves.first().is_some_and(|leaf| leaf.swarms() == 0) {
                    self.pop_leaf();
                }
                return;
            }
            let old = linear::buddy(newest);
            let together = self.leaves[newest].used() + self.leaves[old].used();
            if self.used >= MERGE_BELOW * self.leaves.len() || together > Leaf::MOST_BYTES {
                return;
            }
            let prefixes = [old, newest].map(|leaf| self.prefix(home, leaf));
            let [lower, upper] = [self.take_leaf(old), self.pop_leaf()];
            let merged = Leaf::merge(self.prefix(home, old), (prefixes[0], lower), (prefixes[1], upper));
            self.put_leaf(old, merged);
        }
    }

    fn take_leaf(&mut self, leaf: usize) -> Leaf {
        let leaf = mem::take(&mut self.leaves[leaf]);
        self.used -= leaf.used();
        self.count(leaf.capacity(), 0);
        leaf
    }

    fn put_leaf(&mut self, at: usize, leaf: Leaf) {
        self.used += leaf.used();
        self.count(0, leaf.capacity());
        self.leaves[at] = leaf;
    }

    fn push_leaf(&mut self, leaf: Leaf) {
        let capacity = self.leaves.capacity();
        if self.leaves.len() == capacity {
            // By an eighth, not by doubling: a spare leaf costs as much as half a swarm.
            self.leaves.reserve_exact((1 + capacity / 8).min(MOST_SPARE));
        }
        self.count(capacity * size_of::<Leaf>(), self.leaves.capacity() * size_of::<Leaf>());
        self.leaves.push(Leaf::default());
        self.put_leaf(self.leaves.len() - 1, leaf);
    }

    fn pop_leaf(&mut self) -> Leaf {
        let leaf = self.take_leaf(self.leaves.len() - 1);
        self.leaves.pop();
        let capacity = self.leaves.capacity();
        if self.leaves.len() <= capacity / 2 {
            self.leaves.shrink_to_fit();
        }
        self.count(capacity * size_of::<Leaf>(), self.leaves.capacity() * size_of::<Leaf>());
        leaf
    }
}

fn stats_of(large: &Large) -> SwarmStats {
    large.population().stats(large.downloaded)
}

#[cfg(test)]
impl Stripe {
    /// What the stripe takes, looked at piece by piece; what is kept in step with that is checked.
    pub(super) fn recount(&self) -> usize {
        assert_eq!(self.untold, 0);
        assert_eq!(self.used, self.leaves.iter().map(Leaf::used).sum());
        let blocks: usize = self.leaves.iter().map(Leaf::capacity).sum();
        let large: usize = self.large.iter().flatten().map(|large| large.recount()).sum();
        self.leaves.capacity() * size_of::<Leaf>() + blocks + size_of_val(&*self.large) + large
    }
}
