//! Which peers to unchoke: the fastest to send, or to receive from a seeder, and the others in turn (BEP 3).

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

use rand::{Rng, RngExt};

use crate::picker::PeerKey;

/// A peer at the time of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) peer: PeerKey,
    /// Its [site](crate::network::site).
    pub(crate) site: IpAddr,
    pub(crate) interested: bool,
    pub(crate) unchoked: bool,
    /// Whether it has sent requests since the last decision, or is being sent blocks.
    pub(crate) asks: bool,
    /// Bytes per second that it sends, or receives from a seeder.
    pub(crate) rate: u64,
}

/// Decides every ten seconds.
#[derive(Debug)]
pub(crate) struct Choker {
    slots: usize,
    turn: u32,
    known: HashMap<PeerKey, Known>,
    /// The latest turns of sites: a peer that connects again is not a new one.
    sites: HashMap<IpAddr, u32>,
}

/// The history of a peer.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The turn since which it is unchoked.
    since: u32,
    /// Turns in which it kept a slot from others, since its last request.
    idle: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// The peers that are unchoked from now on.
    pub(crate) unchoked: Vec<PeerKey>,
    /// Peers that keep slots from others, and request nothing: at most as many as wait.
    pub(crate) idle: Vec<PeerKey>,
}

impl Choker {
    /// A peer of fewer bytes per second keeps its slot for three turns only.
    const FAST: u64 = 16 << 10;
    const TURNS: u32 = 3;
    /// The turns after which a peer that requests nothing is idle.
    const IDLE: u32 = 2;
    /// The turns of an hour, after which a site is forgotten.
    const HOUR: u32 = 360;

    /// `slots` peers are unchoked at a time, at least 2. One of them is not for the fastest.
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: slots.max(2), turn: 0, known: HashMap::new(), sites: HashMap::new() }
    }

    pub(crate) fn decide(&mut self, asking: &[Asking], rng: &mut impl Rng) -> Decision {
        self.turn += 1;
        self.sites.retain(|_, last| self.turn - *last < Self::HOUR);
        let mut interested: Vec<_> = asking.iter().filter(|asking| asking.interested).collect();
        let waiting = interested.len().saturating_sub(self.slots);
        let before = std::mem::take(&mut self.known);
        let mut of_site = HashMap::<_, usize>::new();
        for asking in asking {
            let mut known = before.get(&asking.peer).copied().unwrap_or(Known { since: self.turn, idle: 0 });
            let is_idle = waiting > 0 && asking.unchoked;
            known.idle = if asking.asks { 0 } else { known.idle + u32::from(is_idle) };
            self.known.insert(asking.peer, known);
            *of_site.entry(asking.site).or_default() += 1;
        }
        let mut idle = Vec::new();
        if waiting > 0 {
            interested.sort_by_key(|asking| Reverse(asking.rate));
            let fast = interested.iter().take_while(|asking| asking.rate >= Self::FAST).count();
            let in_turn = &mut interested[fast.min(self.slots - 1)..];
            let rank = |asking: &Asking| {
                let Known { since, idle } = self.known[&asking.peer];
                let had_its_turns = asking.unchoked && (idle > 0 || self.turn - since >= Self::TURNS);
                if had_its_turns { 2 } else { u32::from(!asking.unchoked) }
            };
            in_turn.sort_by_cached_key(|asking| {
                let last = self.sites.get(&asking.site).copied();
                (rank(asking), last, of_site[&asking.site], rng.random::<u32>())
            });
            // One of each site before a second one.
            let (mut so_far, mut nth_of_site) = (HashMap::<_, usize>::new(), HashMap::new());
            for asking in in_turn.iter() {
                let nth = so_far.entry(asking.site).or_default();
                *nth += 1;
                nth_of_site.insert(asking.peer, *nth);
            }
            in_turn.sort_by_key(|asking| (rank(asking), nth_of_site[&asking.peer]));
            let is_idle = |asking: &&&Asking| self.known[&asking.peer].idle >= Self::IDLE;
            idle = interested.iter().filter(is_idle).take(waiting).map(|asking| asking.peer).collect();
            interested.truncate(self.slots);
        }
        for asking in &interested {
            if !asking.unchoked {
                self.known.entry(asking.peer).and_modify(|known| known.since = self.turn);
            }
            self.sites.insert(asking.site, self.turn);
        }
        Decision { unchoked: interested.iter().map(|asking| asking.peer).collect(), idle }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    /// A peer that requests blocks whenever it may, alone in its site.
    fn asking(peer: u64, kib: u64) -> Asking {
        let (site, rate) = (IpAddr::from([10, 0, peer as u8, 0]), kib << 10);
        Asking { peer: PeerKey(peer), site, interested: true, unchoked: false, asks: true, rate }
    }

    fn turn(choker: &mut Choker, all: &mut Vec<Asking>) -> (Vec<u64>, usize) {
        let Decision { unchoked, idle } = choker.decide(all, &mut SmallRng::seed_from_u64(1));
        all.retain(|asking| !idle.contains(&asking.peer));
        all.iter_mut().for_each(|asking| asking.unchoked = unchoked.contains(&asking.peer));
        (unchoked.iter().map(|peer| peer.0).collect(), idle.len())
    }

    /// The numbers of the peers that are unchoked in each of the next turns.
    fn turns(choker: &mut Choker, all: &mut Vec<Asking>, turns: usize) -> Vec<Vec<u64>> {
        (0..turns).map(|_| turn(choker, all).0).collect()
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
    fn a_peer_that_connects_again_waits_for_its_turn_as_before() {
        let mut choker = Choker::new(8);
        let attacker = |peer| Asking { site: IpAddr::from([10, 1, peer as u8 % 3, 0]), ..asking(peer, 1) };
        let (mut had, mut next) = ([0; 2], 1000);
        let mut all: Vec<_> = (0..12).map(|n| asking(n, 1)).collect();
        for _ in 0..60 {
            // The attacker's peers are new each time.
            all.truncate(12);
            all.extend((0..24).map(|n| attacker(next + n)));
            next += 24;
            turn(&mut choker, &mut all).0.iter().for_each(|n| had[usize::from(*n >= 1000)] += 1);
        }
        assert!(had[0] > had[1], "{had:?} turns of honest peers and of others");
    }

    #[test]
    fn a_site_of_many_peers_gets_no_more_turns_than_one_of_few() {
        let mut choker = Choker::new(8);
        let silent = |peer: u64| {
            let site = IpAddr::from([10, 1, peer as u8 % 8, 0]);
            Asking { asks: false, site, ..asking(peer, 0) }
        };
        let (mut waited, mut next) = (Vec::new(), 1000);
        let mut all = vec![asking(0, 1)];
        for _ in 0..60 {
            // The attacker's peers connect again as soon as they are disconnected.
            while all.len() < 46 {
                all.push(silent(next));
                next += 1;
            }
            match turn(&mut choker, &mut all).0.contains(&0) {
                true => waited.push(0),
                false => *waited.last_mut().expect("the first turn is its own") += 1,
            }
        }
        assert!(waited.iter().all(|turns| *turns <= 1), "turns that it waited: {waited:?}");
    }

    #[test]
    fn peers_without_requests_keep_no_slots_from_others() {
        let silent = |peer| Asking { asks: false, site: IpAddr::from([10, 1, 1, 0]), ..asking(peer, 0) };
        // Each of the peers that have taken all slots loses its slot after one turn,
        let (mut choker, mut all) = (Choker::new(8), (0..60).map(silent).collect());
        let first = turn(&mut choker, &mut all).0;
        assert!(turn(&mut choker, &mut all).0.iter().all(|peer| !first.contains(peer)));
        all.push(asking(60, 0));
        assert!(turn(&mut choker, &mut all).0.contains(&60), "an honest one is next");
        // and its connection after another.
        (0..20).for_each(|_| _ = turn(&mut choker, &mut all));
        assert!(all.len() <= 8 && all.last().is_some_and(|last| last.peer == PeerKey(60)), "{all:?}");
        // Peers that keep no slots from others stay, and no more leave than wait.
        let (mut choker, mut all) = (Choker::new(8), (0..8).map(silent).collect());
        (0..10).for_each(|_| assert_eq!(turn(&mut choker, &mut all).1, 0));
        all.push(asking(8, 0));
        assert_eq!(turn(&mut choker, &mut all).1, 0);
        assert!(all[8].unchoked);
        assert_eq!([turn(&mut choker, &mut all).1, turn(&mut choker, &mut all).1], [1, 0]);
    }

    #[test]
    fn a_peer_that_was_unchoked_between_decisions_has_its_turns() {
        let mut choker = Choker::new(2);
        let mut all = vec![asking(0, 1)];
        (0..5).for_each(|_| _ = turn(&mut choker, &mut all));
        all.push(Asking { unchoked: true, ..asking(1, 1) });
        all.extend([asking(2, 1), asking(3, 1)]);
        assert!(turn(&mut choker, &mut all).0.contains(&1));
    }
}
