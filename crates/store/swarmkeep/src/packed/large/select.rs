//! Selecting peers of a large swarm, and the prefetching for it.

use std::iter;

use super::{LargeSwarm, PeerLocation, Tables};
use crate::{
    Announce, Families, Family, PeerBuffer, Random as _, Role, Section, SplitMix64,
    implement::SectionExt as _,
    packed::{
        hash::EndpointHash,
        table::{BucketIndex, DrawSlots, Table},
    },
};

/// The number of slots that are drawn ahead. About every second slot contains a peer, so one of three does in
/// nine of ten selections.
const AHEAD: usize = 3;

/// A slot that was drawn from the eligible tables, with or without a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DrawnSlot {
    table: usize,
    index: BucketIndex,
}

/// The beginning of a selection, drawn before the turn of its announce. It holds for the same slots only:
/// peers that come and go meanwhile may change them.
#[derive(Debug, Clone, Copy)]
pub(in crate::packed) struct Draws {
    /// The position of the announcer in the keyed order, and the start of its bucket.
    pub(in crate::packed) order: u64,
    own: BucketIndex,
    /// The random word of the selection.
    pub(in crate::packed) seed: u64,
    slots: [DrawSlots; 2],
    drawn: [DrawnSlot; AHEAD],
}

/// The most draws of a selection. After them it starts at the last slot drawn, with or without a peer.
/// Without a limit the search could take long in a table that most peers have left, before a sweep has
/// merged its buckets.
const MAX_DRAWS: usize = 256;

impl LargeSwarm {
    /// The second half of an announce: hands out the peers that it asks for. Nothing may have changed since
    /// the update that returned `own`.
    ///
    /// In each family it selects a window that starts at a uniformly random peer and wraps around, so each
    /// peer is equally likely to be in it. The announcer is excluded before that peer is drawn. O(peers
    /// wanted); copies whole buckets.
    pub(in crate::packed) fn select(
        &self,
        announce: &Announce,
        own: PeerLocation,
        seed: u64,
        ahead: Option<&Draws>,
        peers: &mut PeerBuffer<'_>,
    ) {
        let v4 = Eligible::of(&self.v4, announce, Some(own));
        let v6 = Eligible::of(self.v6(), announce, Some(own));
        let (v4_count, v6_count) = peers.share(announce.want, v4.len(), v6.len());
        let ahead_in = |family| ahead.filter(|_| announce.endpoint.family() == family);
        v4.select(v4_count, seed_of(Family::V4, seed), ahead_in(Family::V4), &mut peers.v4);
        v6.select(v6_count, seed_of(Family::V6, seed), ahead_in(Family::V6), &mut peers.v6);
    }

    /// Draws the beginning of the selection of an announce, and prefetches the headers that the announce will
    /// need: of its own bucket, and of the slots that were drawn.
    pub(in crate::packed) fn look_ahead(&self, hash: &EndpointHash, announce: &Announce, seed: u64) -> Draws {
        let order = hash.order_of(&announce.endpoint);
        match announce.endpoint.family() {
            Family::V4 => self.v4.look_ahead(announce, order, seed),
            Family::V6 => self.v6().look_ahead(announce, order, seed),
        }
    }

    /// The same in one step, for the current announce: reads the headers, and prefetches the peers.
    pub(in crate::packed) fn look_now(&self, hash: &EndpointHash, announce: &Announce, seed: u64) -> Draws {
        let order = hash.order_of(&announce.endpoint);
        match announce.endpoint.family() {
            Family::V4 => self.v4.look_now(announce, order, seed),
            Family::V6 => self.v6().look_now(announce, order, seed),
        }
    }

    /// Prefetches the peers in those buckets. Call it when the headers have arrived, or it waits for them.
    pub(in crate::packed) fn prefetch_peers(&self, announce: &Announce, ahead: &Draws) {
        match announce.endpoint.family() {
            Family::V4 => self.v4.prefetch_peers(announce, ahead),
            Family::V6 => self.v6().prefetch_peers(announce, ahead),
        }
    }
}

impl DrawnSlot {
    const FIRST: Self = Self { table: 0, index: BucketIndex::FIRST };
    const NOWHERE: Self = Self { table: 0, index: BucketIndex::NOWHERE };
}

impl<const N: usize> Tables<N> {
    fn look_ahead(&self, announce: &Announce, order: u64, seed: u64) -> Draws {
        let table = self.table(announce.role());
        let own = table.start_of(order);
        table.prefetch_header(own);
        let eligible = Eligible::of(self, announce, None);
        let slots = eligible.slots();
        let mut draws = draws(slots, seed_of(Self::FAMILY, seed));
        let mut drawn = [DrawnSlot::FIRST; AHEAD];
        for (place, draw) in drawn.iter_mut().zip(&mut draws) {
            *place = draw;
            if let Some(table) = eligible.tables[draw.table] {
                table.prefetch_header(draw.index);
            }
        }
        Draws { order, own, seed, slots, drawn }
    }

    fn look_now(&self, announce: &Announce, order: u64, seed: u64) -> Draws {
        let own = self.table(announce.role()).start_of(order);
        self.table(announce.role()).prefetch_bucket(own);
        let eligible = Eligible::of(self, announce, None);
        let slots = eligible.slots();
        let drawn = draws(slots, seed_of(Self::FAMILY, seed)).take(AHEAD).find(|drawn| eligible.holds(drawn));
        if let Some(drawn) = drawn {
            eligible.prefetch_window(drawn);
        }
        Draws { order, own, seed, slots, drawn: [drawn.unwrap_or(DrawnSlot::NOWHERE); AHEAD] }
    }

    fn prefetch_peers(&self, announce: &Announce, ahead: &Draws) {
        self.table(announce.role()).prefetch_bucket(ahead.own);
        let eligible = Eligible::of(self, announce, None);
        if let Some(&drawn) = ahead.drawn.iter().find(|drawn| eligible.holds(drawn)) {
            eligible.prefetch_window(drawn);
        }
    }
}

/// The seed for the selection in one family, if `seed` is the seed of both.
const fn seed_of(family: Family, seed: u64) -> u64 {
    match family {
        Family::V4 => seed,
        Family::V6 => !seed,
    }
}

/// The peers of one family that may be selected: those of some tables, without the announcer.
#[derive(Debug)]
struct Eligible<'a, const N: usize> {
    tables: [Option<&'a Table<N>>; 2],
    except: Option<DrawnSlot>,
}

impl<'a, const N: usize> Eligible<'a, N> {
    /// The peers that an announce asks for, without the announcer at `own` in the tables of its family.
    fn of(tables: &'a Tables<N>, announce: &Announce, own: Option<PeerLocation>) -> Self {
        if !announce.families.contains(Families::of(Tables::<N>::FAMILY)) {
            return Self { tables: [None, None], except: None };
        }
        if !announce.takes_seeders() {
            // The announcer is a seeder, and none of the leechers that it is given.
            return Self { tables: [None, Some(&tables.leechers)], except: None };
        }
        let own = own.filter(|_| announce.endpoint.family() == Tables::<N>::FAMILY);
        Self {
            tables: [Some(&tables.seeders), Some(&tables.leechers)],
            except: own.map(|at| DrawnSlot { table: usize::from(at.role == Role::Leecher), index: at.index }),
        }
    }

    fn len(&self) -> usize {
        let all: usize = self.tables.iter().flatten().map(|table| table.len()).sum();
        all - usize::from(self.except.is_some())
    }

    /// Copies `count` of them, table by table and bucket by bucket, from a uniformly random one on and
    /// wrapping around.
    fn select(&self, count: usize, seed: u64, ahead: Option<&Draws>, section: &mut Section<'_, N>) {
        if count == 0 {
            return;
        }
        let start = if count < self.len() { self.random_place(seed, ahead) } else { DrawnSlot::FIRST };
        let mut left = count;
        self.copy(start.table, start.index, &mut left, section);
        // The round ends where it began: `count` never exceeds the number of eligible peers.
        self.copy(1 - start.table, BucketIndex::FIRST, &mut left, section);
        self.copy(start.table, BucketIndex::FIRST, &mut left, section);
    }

    /// Copies up to `left` of them from one table, run by run. The run of the announcer is copied in two
    /// parts, around it.
    fn copy(&self, table: usize, from: BucketIndex, left: &mut usize, section: &mut Section<'_, N>) {
        let except = self.except.filter(|except| except.table == table);
        let Some(table) = self.tables[table].filter(|_| *left > 0) else { return };
        for (index, run) in table.runs(from) {
            if *left == 0 {
                return;
            }
            let mut write = |run: &[[u8; N]]| {
                let count = run.len().min(*left);
                section.extend(&run[..count]);
                *left -= count;
            };
            match except.and_then(|except| except.index.behind(index)) {
                Some(own) if own < run.len() => {
                    write(&run[..own]);
                    write(&run[own + 1..]);
                }
                _ => write(run),
            }
        }
    }

    /// The slot of a uniformly random one of them.
    fn random_place(&self, seed: u64, ahead: Option<&Draws>) -> DrawnSlot {
        let slots = self.slots();
        let is_one = |drawn: &DrawnSlot| self.holds(drawn) && self.except != Some(*drawn);
        let ahead = ahead.filter(|ahead| ahead.slots == slots);
        if let Some(drawn) = ahead.and_then(|ahead| ahead.drawn.iter().find(|drawn| is_one(drawn))) {
            return *drawn;
        }
        let mut last = DrawnSlot::FIRST;
        for drawn in draws(slots, seed).take(MAX_DRAWS) {
            last = drawn;
            if is_one(&drawn) {
                break;
            }
        }
        self.prefetch_window(last);
        last
    }

    #[inline]
    fn prefetch_window(&self, drawn: DrawnSlot) {
        if let Some(table) = self.tables[drawn.table] {
            table.prefetch_window(drawn.index);
        }
    }

    fn slots(&self) -> [DrawSlots; 2] {
        let of = |table: Option<&Table<N>>| table.map_or_else(DrawSlots::default, Table::slots);
        let [first, second] = self.tables;
        [of(first), of(second)]
    }

    fn holds(&self, drawn: &DrawnSlot) -> bool {
        self.tables[drawn.table].is_some_and(|table| table.holds(drawn.index))
    }
}

/// An endless sequence of uniformly random slots.
fn draws(slots: [DrawSlots; 2], seed: u64) -> impl Iterator<Item = DrawnSlot> {
    let mut words = SplitMix64::new(seed);
    iter::repeat_with(move || slot(slots, words.next_u64()))
}

/// The slot that a random word draws. All slots are equally likely, up to a difference of slots / 2^64.
fn slot(slots: [DrawSlots; 2], word: u64) -> DrawnSlot {
    let [first, second] = [slots[0].len(), slots[1].len()];
    let slot = ((u128::from(word) * u128::from(first + second)) >> 64) as u64;
    // Without a branch: it could not be predicted.
    let table = usize::from(slot >= first);
    DrawnSlot { table, index: slots[table].index(slot - first * table as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompactV4, Endpoint, HashKey, Timestamp, packed::clock::Clock};

    fn endpoint(n: u32, family: Family) -> Endpoint {
        match family {
            Family::V4 => format!("10.0.{}.{}:6881", n >> 8, n & 0xff).parse(),
            Family::V6 => format!("[2001:db8::{n:x}]:6881").parse(),
        }
        .expect("an endpoint")
    }

    /// The selection of an announce with this random word.
    fn selected(
        large: &LargeSwarm,
        hash: &EndpointHash,
        announce: &Announce,
        seed: u64,
        ahead: Option<&Draws>,
    ) -> Vec<u8> {
        let order = hash.order_of(&announce.endpoint);
        let own = match &announce.endpoint {
            Endpoint::V4(v4) => large.v4.find(order, v4.as_bytes(), announce.role()),
            Endpoint::V6(v6) => large.v6().find(order, v6.as_bytes(), announce.role()),
        };
        let (mut v4, mut v6) = ([0; 50 * CompactV4::LEN], [0; 900]);
        let mut peers = PeerBuffer::new(&mut v4, &mut v6);
        large.select(announce, own.expect("is in the swarm"), seed, ahead, &mut peers);
        [peers.v4.as_bytes(), peers.v6.as_bytes()].concat()
    }

    #[test]
    fn a_selection_that_was_drawn_ahead_is_the_one_that_is_drawn_in_turn() {
        let (hash, now) =
            (EndpointHash::new(HashKey::from_bytes([7; 16]), None), Timestamp::from_secs(10_000));
        let now = Clock::new(1800).tick(now);
        let mut large = LargeSwarm::new(0, now);
        let role = |n: u32| if n.is_multiple_of(3) { Role::Seeder } else { Role::Leecher };
        let mut rng = SplitMix64::new(1);
        let insert = |large: &mut LargeSwarm, n, family| {
            large.insert(&hash, &endpoint(n, family), role(n), now, now);
        };
        for n in 0..400 {
            insert(&mut large, n, Family::V4);
            insert(&mut large, n, Family::V6);
        }
        let mut reused = 0;
        for turn in 0..3000 {
            let (word, n) = (rng.next_u64(), rng.next_u64() as u32 % 400);
            let family = if word & 1 == 0 { Family::V4 } else { Family::V6 };
            let families = [Families::V4, Families::V6, Families::V4 | Families::V6][turn % 3];
            let announce = Announce::new(Default::default(), endpoint(n, family));
            let announce = announce.left(u64::from(!role(n).is_seeder())).seeders_too(word & 2 == 0);
            let announce = announce.want(turn % 60).families(families);
            let seed = rng.next_u64();
            let ahead = [large.look_ahead(&hash, &announce, seed), large.look_now(&hash, &announce, seed)];
            if turn % 4 == 0 {
                // A peer joins before the turn of this announce.
                insert(&mut large, 400 + turn as u32, Family::V4);
            }
            let in_turn = selected(&large, &hash, &announce, seed, None);
            for ahead in &ahead {
                assert_eq!(selected(&large, &hash, &announce, seed, Some(ahead)), in_turn, "turn {turn}");
            }
            // Another word makes no difference if the beginning is the one that was drawn ahead.
            let by_other_word = selected(&large, &hash, &announce, !seed, Some(&ahead[0]));
            reused += usize::from(!in_turn.is_empty() && by_other_word == in_turn);
        }
        assert!(reused > 500, "{reused} beginnings of 3,000 were of use");
    }
}
