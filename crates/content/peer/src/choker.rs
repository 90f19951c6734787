//! Which peers to unchoke: those that give most, or take fastest from a seeder, and the others in turn (BEP 3).

use std::{cmp::Reverse, collections::HashMap};

use rand::{Rng, RngExt};

use crate::picker::PeerKey;

/// What is known of a peer at a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) peer: PeerKey,
    /// Whether it wants something.
    pub(crate) interested: bool,
    /// Whether it is unchoked now.
    pub(crate) unchoked: bool,
    /// Whether it has asked for something since the last decision.
    pub(crate) asks: bool,
    /// Bytes per second that it brings, or takes from a seeder.
    pub(crate) rate: u64,
    /// Peers of its site.
    pub(crate) of_site: usize,
}

/// Decides every ten seconds.
#[derive(Debug)]
pub(crate) struct Choker {
    slots: usize,
    turn: u32,
    known: HashMap<PeerKey, Known>,
}

/// What is remembered of a peer.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// The turns since which, and in which last, it was unchoked.
    since: u32,
    last: u32,
    /// Turns in which it was unchoked, since it has asked for anything.
    idle: u32,
}

/// What is to change.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// The peers that are unchoked from now on.
    pub(crate) unchoked: Vec<PeerKey>,
    /// Peers that keep slots from others, and ask for nothing.
    pub(crate) idle: Vec<PeerKey>,
}

impl Choker {
    /// A peer of fewer bytes per second keeps its slot for three turns only.
    const FAST: u64 = 16 << 10;
    const TURNS: u32 = 3;
    /// The turns after which a peer that asks for nothing is idle.
    const IDLE: u32 = 2;

    /// `slots` peers are unchoked at a time, at least 2. One of them is not for the fastest.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: slots.max(2), turn: 0, known: HashMap::new() }
    }

    pub(crate) fn decide(&mut self, asking: &[Asking], rng: &mut impl Rng) -> Decision {
        self.turn += 1;
        let before = std::mem::take(&mut self.known);
        for asking in asking {
            let mut known = before.get(&asking.peer).copied().unwrap_or_default();
            known.idle = if asking.asks { 0 } else { known.idle + u32::from(asking.unchoked) };
            self.known.insert(asking.peer, known);
        }
        let mut interested: Vec<_> = asking.iter().filter(|asking| asking.interested).collect();
        let mut idle = Vec::new();
        if interested.len() > self.slots {
            interested.sort_by_key(|asking| Reverse(asking.rate));
            let fast = interested.iter().take_while(|asking| asking.rate >= Self::FAST).count();
            interested[fast.min(self.slots - 1)..].sort_by_cached_key(|asking| {
                let Known { since, last, idle } = self.known[&asking.peer];
                let had_its_turns = asking.unchoked && (idle > 0 || self.turn - since >= Self::TURNS);
                let rank = if had_its_turns { 2 } else { u32::from(!asking.unchoked) };
                (rank, last, asking.of_site, rng.random::<u32>())
            });
            let is_idle = |asking: &&&Asking| self.known[&asking.peer].idle >= Self::IDLE;
            idle = interested.iter().filter(is_idle).map(|asking| asking.peer).collect();
            interested.truncate(self.slots);
        }
        for asking in &interested {
            let known = self.known.get_mut(&asking.peer).expect("all are known");
            if !asking.unchoked || known.last == 0 {
                known.since = self.turn;
            }
            known.last = self.turn;
        }
        Decision { unchoked: interested.iter().map(|asking| asking.peer).collect(), idle }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    /// A peer that asks for blocks whenever it may.
    fn asking(peer: u64, kib: u64) -> Asking {
        let rate = kib << 10;
        Asking { peer: PeerKey(peer), interested: true, unchoked: false, asks: true, rate, of_site: 1 }
    }

    /// The numbers of the peers that are unchoked in each of the next turns.
    fn turns(choker: &mut Choker, all: &mut [Asking], turns: usize) -> Vec<Vec<u64>> {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut turn = || {
            let Decision { unchoked, idle } = choker.decide(all, &mut rng);
            assert!(idle.is_empty());
            all.iter_mut().for_each(|asking| asking.unchoked = unchoked.contains(&asking.peer));
            unchoked.iter().map(|peer| peer.0).collect()
        };
        (0..turns).map(|_| turn()).collect()
    }

    #[test]
    fn the_fastest_are_unchoked_and_each_other_peer_gets_three_turns() {
        let mut all: Vec<_> = (0..10).map(|n| asking(n, 20 * n)).collect();
        let turns = turns(&mut Choker::new(4), &mut all, 42);
        let mut in_turn = BTreeMap::new();
        for turns in turns.chunks(3) {
            assert!(turns.iter().all(|turn| turn[..3] == [9, 8, 7] && turn[3] == turns[0][3]), "{turns:?}");
            *in_turn.entry(turns[0][3]).or_insert(0) += 1;
        }
        assert_eq!(in_turn, (0..7).map(|n| (n, 2)).collect());
    }

    #[test]
    fn slow_peers_take_turns_in_all_slots_that_the_fastest_leave() {
        let mut all: Vec<_> = (0..13).map(|n| asking(n, if n == 0 { 16 } else { n % 10 })).collect();
        let turns = turns(&mut Choker::new(4), &mut all, 12);
        let mut had = BTreeMap::new();
        for turn in turns {
            assert_eq!((turn[0], turn.len()), (0, 4));
            turn[1..].iter().for_each(|n| *had.entry(*n).or_insert(0) += 1);
        }
        assert_eq!(had, (1..13).map(|n| (n, 3)).collect());
    }

    #[test]
    fn peers_that_ask_for_nothing_keep_slots_from_nobody() {
        let mut rng = SmallRng::seed_from_u64(2);
        let mut turn = |choker: &mut Choker, all: &mut Vec<Asking>| {
            let Decision { unchoked, idle } = choker.decide(all, &mut rng);
            all.retain(|asking| !idle.contains(&asking.peer));
            all.iter_mut().for_each(|asking| asking.unchoked = unchoked.contains(&asking.peer));
            (unchoked, idle.len())
        };
        let silent = |peer| Asking { asks: false, of_site: 8, ..asking(peer, 0) };
        // Of those that have taken all slots, each loses its slot after one turn,
        let (mut choker, mut all) = (Choker::new(8), (0..60).map(silent).collect());
        (0..7).for_each(|_| assert_eq!(turn(&mut choker, &mut all).1, 0));
        all.push(asking(60, 0));
        assert!(turn(&mut choker, &mut all).0.contains(&PeerKey(60)), "an honest one is next");
        // and its connection after another.
        (0..20).for_each(|_| _ = turn(&mut choker, &mut all));
        assert!(all.len() <= 8 && all.last().is_some_and(|last| last.peer == PeerKey(60)), "{all:?}");
        // Of those that keep slots from nobody, none.
        let (mut choker, mut all) = (Choker::new(8), (0..8).map(silent).collect());
        (0..10).for_each(|_| assert_eq!(turn(&mut choker, &mut all).1, 0));
        all.push(asking(8, 0));
        let (unchoked, idle) = turn(&mut choker, &mut all);
        assert_eq!((unchoked[0], idle), (PeerKey(8), 8));
    }
}
