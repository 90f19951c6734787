//! Selecting peers of a large swarm, and the prefetching for it.

use std::iter;

use super::{Large, PeerLocation, Tables};
use crate::{
    Announce, Families, Family, PeerBuffer, Random, Role, Section, SplitMix64,
    implement::SectionExt as _,
    packed::table::{BucketIndex, DrawSlots, Table},
};

/// The number of slots that a prefetch looks at. About every second slot contains a peer, so one of three
/// does in nine of ten selections.
const LIKELY: usize = 3;

/// A slot that was drawn from the eligible tables, with or without a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drawn {
    in_second: bool,
    index: BucketIndex,
}

/// The most draws of a selection. After them it starts at the last slot drawn, with or without a peer.
/// Without a limit the search could take long in a table that most peers have left, and whose buckets no
/// sweep has merged yet.
const MAX_DRAWS: usize = 256;

impl Large {
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
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) {
        let seed = rng.next_u64();
        let own_in = |family| (announce.endpoint.family() == family).then_some(own);
        let v4 = match announce.families.contains(Families::V4) {
            true => Eligible::of(&self.v4, own.role, own_in(Family::V4)),
            false => Eligible::NONE,
        };
        let v6 = match &self.v6 {
            Some(v6) if announce.families.contains(Families::V6) => {
                Eligible::of(v6, own.role, own_in(Family::V6))
            }
            _ => Eligible::NONE,
        };
        let (v4_count, v6_count) = peers.share(announce.want, v4.len(), v6.len());
        v4.select(v4_count, seed_of(Family::V4, seed), &mut peers.v4);
        v6.select(v6_count, seed_of(Family::V6, seed), &mut peers.v6);
    }

    /// Prefetches the headers that the announce will need: that of its own bucket, and those of the first
    /// peers that its selection draws if its random word is `seed`.
    pub(in crate::packed) fn prefetch_headers(&self, announce: &Announce, order: u64, seed: u64) {
        match (announce.endpoint.family(), &self.v6) {
            (Family::V6, Some(v6)) => v6.prefetch_headers(announce, order, seed),
            _ => self.v4.prefetch_headers(announce, order, seed),
        }
    }

    /// Prefetches the peers in those buckets. Call it when the headers have arrived, or it waits for them.
    pub(in crate::packed) fn prefetch_peers(&self, announce: &Announce, order: u64, seed: u64) {
        match (announce.endpoint.family(), &self.v6) {
            (Family::V6, Some(v6)) => v6.prefetch_peers(announce, order, seed),
            _ => self.v4.prefetch_peers(announce, order, seed),
        }
    }
}

impl Drawn {
    const FIRST: Self = Self { in_second: false, index: BucketIndex::FIRST };

    fn table(self) -> usize {
        self.in_second.into()
    }
}

impl<const N: usize> Tables<N> {
    fn prefetch_headers(&self, announce: &Announce, order: u64, seed: u64) {
        let table = self.table(announce.role());
        table.prefetch_header(table.start_of(order));
        Eligible::of(self, announce.role(), None).prefetch_headers(seed_of(Self::FAMILY, seed));
    }

    fn prefetch_peers(&self, announce: &Announce, order: u64, seed: u64) {
        let table = self.table(announce.role());
        table.prefetch_bucket(table.start_of(order));
        Eligible::of(self, announce.role(), None).prefetch_window(seed_of(Self::FAMILY, seed));
    }
}

/// The seed for the selection in one family, if `seed` is that of both.
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
    except: Option<Drawn>,
}

impl<'a, const N: usize> Eligible<'a, N> {
    const NONE: Self = Self { tables: [None, None], except: None };

    fn of(tables: &'a Tables<N>, role: Role, own: Option<PeerLocation>) -> Self {
        match role {
            // A seeder is not among the leechers that it receives.
            Role::Seeder => Self { tables: [None, Some(&tables.leechers)], except: None },
            Role::Leecher => Self {
                tables: [Some(&tables.seeders), Some(&tables.leechers)],
                except: own.map(|own| Drawn { in_second: own.role == Role::Leecher, index: own.index }),
            },
        }
    }

    fn len(&self) -> usize {
        let all: usize = self.tables.iter().flatten().map(|table| table.len()).sum();
        all - usize::from(self.except.is_some())
    }

    /// Copies `count` of them, table by table and bucket by bucket, from a uniformly random one on and
    /// wrapping around.
    fn select(&self, count: usize, seed: u64, section: &mut Section<'_, N>) {
        if count == 0 {
            return;
        }
        let start = if count < self.len() { self.random_place(seed) } else { Drawn::FIRST };
        if let Some(table) = self.tables[start.table()] {
            table.prefetch_window(start.index);
        }
        let mut left = count;
        // The round ends where it began: `count` never exceeds the number of eligible peers.
        for (in_second, from) in [
            (start.in_second, start.index),
            (!start.in_second, BucketIndex::FIRST),
            (start.in_second, BucketIndex::FIRST),
        ] {
            if left > 0 {
                self.copy(in_second, from, &mut left, section);
            }
        }
    }

    /// Copies up to `left` of them from one table, run by run. The run of the announcer is copied in two
    /// parts, around it.
    fn copy(&self, in_second: bool, from: BucketIndex, left: &mut usize, section: &mut Section<'_, N>) {
        let Some(table) = self.tables[usize::from(in_second)] else { return };
        let except = self.except.filter(|except| except.in_second == in_second);
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
    fn random_place(&self, seed: u64) -> Drawn {
        let mut last = Drawn::FIRST;
        for drawn in self.draws(seed).take(MAX_DRAWS) {
            last = drawn;
            if self.holds(&drawn) && self.except != Some(drawn) {
                break;
            }
        }
        last
    }

    /// An endless sequence of uniformly random slots.
    fn draws(&self, seed: u64) -> impl Iterator<Item = Drawn> {
        let (slots, mut words) = (self.slots(), SplitMix64::new(seed));
        iter::repeat_with(move || self.slot(slots, words.next_u64()))
    }

    fn slots(&self) -> [DrawSlots; 2] {
        self.tables.map(|table| table.map_or_else(DrawSlots::default, Table::slots))
    }

    /// The slot that a random word draws. All slots are equally likely, up to a difference of slots / 2^64.
    fn slot(&self, slots: [DrawSlots; 2], word: u64) -> Drawn {
        let [first, second] = slots.map(DrawSlots::len);
        let slot = ((u128::from(word) * u128::from(first + second)) >> 64) as u64;
        // Without a branch: it could not be predicted.
        let in_second = slot >= first;
        let (which, slot) = (usize::from(in_second), slot - first * u64::from(in_second));
        let index = self.tables[which].map_or(BucketIndex::FIRST, |table| table.index_at(slots[which], slot));
        Drawn { in_second, index }
    }

    fn holds(&self, drawn: &Drawn) -> bool {
        self.tables[drawn.table()].is_some_and(|table| table.holds(drawn.index))
    }

    fn prefetch_headers(&self, seed: u64) {
        for drawn in self.draws(seed).take(LIKELY) {
            if let Some(table) = self.tables[drawn.table()] {
                table.prefetch_header(drawn.index);
            }
        }
    }

    fn prefetch_window(&self, seed: u64) {
        if let Some(drawn) = self.draws(seed).take(LIKELY).find(|drawn| self.holds(drawn))
            && let Some(table) = self.tables[drawn.table()]
        {
            table.prefetch_window(drawn.index);
        }
    }
}
