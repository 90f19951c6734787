//! Whom to unchoke: those who give most, or take fastest from who has everything, and somebody else by chance
//! (BEP 3).

use std::cmp::Reverse;

use rand::{Rng, seq::IndexedRandom};

use crate::picker::PeerKey;

/// What is known of a peer when it is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) peer: PeerKey,
    /// Whether it wants something.
    pub(crate) interested: bool,
    /// Whether it has something outstanding that it does not bring: it gets nothing for it.
    pub(crate) snubs: bool,
    /// Bytes a second that it brings.
    pub(crate) brings: u64,
    /// Bytes a second that it takes.
    pub(crate) takes: u64,
}

/// Decides every ten seconds; every thirty, who is unchoked by chance.
#[derive(Debug)]
pub(crate) struct Choker {
    slots: usize,
    turn: u32,
    by_chance: Option<PeerKey>,
}

impl Choker {
    /// With so many slots, one of them for chance.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: slots.max(2), turn: 0, by_chance: None }
    }

    /// Who is to be unchoked from now on.
    pub(crate) fn decide(&mut self, asking: &[Asking], seeding: bool, rng: &mut impl Rng) -> Vec<PeerKey> {
        let mut interested: Vec<_> = asking.iter().filter(|asking| asking.interested).copied().collect();
        let merit = |asking: &Asking| if seeding { asking.takes } else { asking.brings };
        interested.sort_by_key(|asking| Reverse((!asking.snubs, merit(asking))));
        if interested.len() <= self.slots {
            return interested.iter().map(|asking| asking.peer).collect();
        }
        let (best, others) = interested.split_at(self.slots - 1);
        let stays = |by_chance: &PeerKey| others.iter().any(|asking| asking.peer == *by_chance);
        self.by_chance = self.by_chance.filter(|by_chance| !self.turn.is_multiple_of(3) && stays(by_chance));
        self.turn = self.turn.wrapping_add(1);
        let by_chance = self.by_chance.or_else(|| others.choose(rng).map(|asking| asking.peer));
        self.by_chance = by_chance;
        best.iter().map(|asking| asking.peer).chain(by_chance).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    fn asking(peer: u64, brings: u64, takes: u64) -> Asking {
        Asking { peer: PeerKey(peer), interested: true, snubs: false, brings, takes }
    }

    #[test]
    fn who_gives_most_is_unchoked_and_everybody_else_gets_a_turn() {
        let mut rng = SmallRng::seed_from_u64(1);
        let all: Vec<_> = (0..10).map(|n| asking(n, 10 * n, 0)).collect();
        let mut choker = Choker::new(4);
        let mut by_chance = BTreeSet::new();
        for _ in 0..300 {
            let unchoked = choker.decide(&all, false, &mut rng);
            assert_eq!(unchoked[..3], [PeerKey(9), PeerKey(8), PeerKey(7)]);
            by_chance.insert(unchoked[3]);
        }
        assert_eq!(by_chance, (0..7).map(PeerKey).collect());
    }

    #[test]
    fn who_is_unchoked_by_chance_has_three_turns() {
        let mut rng = SmallRng::seed_from_u64(2);
        let all: Vec<_> = (0..50).map(|n| asking(n, n, 0)).collect();
        let mut choker = Choker::new(2);
        let turns: Vec<_> = (0..30).map(|_| choker.decide(&all, false, &mut rng)[1]).collect();
        assert!(turns.chunks(3).all(|three| three[0] == three[1] && three[1] == three[2]), "{turns:?}");
    }

    #[test]
    fn a_seed_unchokes_who_takes_fastest_and_a_snub_counts_for_nothing() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut all: Vec<_> = (0..10).map(|n| asking(n, 100 - n, 10 * n)).collect();
        assert_eq!(Choker::new(4).decide(&all, true, &mut rng)[..3], [PeerKey(9), PeerKey(8), PeerKey(7)]);
        all[9].snubs = true;
        all[8].interested = false;
        assert_eq!(Choker::new(4).decide(&all, true, &mut rng)[..3], [PeerKey(7), PeerKey(6), PeerKey(5)]);
    }
}
