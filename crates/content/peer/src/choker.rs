//! Which peers to unchoke: the fastest to send, or to receive from a seeder, and the others in turn (BEP 3).

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

use rand::{Rng, RngExt};

use crate::picker::PeerKey;

/// A peer at the time of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChokerPeer {
    pub(crate) key: PeerKey,
    /// Its [site](crate::network::site).
    pub(crate) site: IpAddr,
    pub(crate) interested: bool,
    pub(crate) unchoked: bool,
    /// Whether it has sent requests since the last decision, or is being sent blocks.
    pub(crate) active: bool,
    /// Bytes per second that it sends, or receives from a seeder.
    pub(crate) rate: u64,
}

/// Decides every ten seconds.
#[derive(Debug)]
pub(crate) struct Choker {
    slots: usize,
    turn: u32,
    histories: HashMap<PeerKey, PeerHistory>,
    /// The latest turns of sites: a peer that connects again is not a new one.
    sites: HashMap<IpAddr, u32>,
}

#[derive(Debug, Clone, Copy)]
struct PeerHistory {
    /// The turn since which it is unchoked.
    since: u32,
    /// Turns in which it kept a slot from others, since its last request.
    idle: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Decision {
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
        Self { slots: slots.max(2), turn: 0, histories: HashMap::new(), sites: HashMap::new() }
    }

    pub(crate) fn decide(&mut self, peers: &[ChokerPeer], rng: &mut impl Rng) -> Decision {
        self.turn += 1;
        self.sites.retain(|_, last| self.turn - *last < Self::HOUR);
        let mut interested: Vec<_> = peers.iter().filter(|peer| peer.interested).collect();
        let waiting = interested.len().saturating_sub(self.slots);
        let before = std::mem::take(&mut self.histories);
        let mut of_site = HashMap::<_, usize>::new();
        for peer in peers {
            let mut history =
                before.get(&peer.key).copied().unwrap_or(PeerHistory { since: self.turn, idle: 0 });
            let is_idle = waiting > 0 && peer.unchoked;
            history.idle = if peer.active { 0 } else { history.idle + u32::from(is_idle) };
            self.histories.insert(peer.key, history);
            *of_site.entry(peer.site).or_default() += 1;
        }
        let mut idle = Vec::new();
        if waiting > 0 {
            interested.sort_by_key(|peer| Reverse(peer.rate));
            let fast = interested.iter().take_while(|peer| peer.rate >= Self::FAST).count();
            let in_turn = &mut interested[fast.min(self.slots - 1)..];
            let rank = |peer: &ChokerPeer| {
                let PeerHistory { since, idle } = self.histories[&peer.key];
                let had_its_turns = peer.unchoked && (idle > 0 || self.turn - since >= Self::TURNS);
                if had_its_turns { 2 } else { u32::from(!peer.unchoked) }
            };
            in_turn.sort_by_cached_key(|peer| {
                let last = self.sites.get(&peer.site).copied();
                (rank(peer), last, of_site[&peer.site], rng.random::<u32>())
            });
            // One of each site before a second one.
            let (mut so_far, mut nth_of_site) = (HashMap::<_, usize>::new(), HashMap::new());
            for peer in in_turn.iter() {
                let nth = so_far.entry(peer.site).or_default();
                *nth += 1;
                nth_of_site.insert(peer.key, *nth);
            }
            in_turn.sort_by_key(|peer| (rank(peer), nth_of_site[&peer.key]));
            let is_idle = |peer: &&&ChokerPeer| self.histories[&peer.key].idle >= Self::IDLE;
            idle = interested.iter().filter(is_idle).take(waiting).map(|peer| peer.key).collect();
            interested.truncate(self.slots);
        }
        for peer in &interested {
            if !peer.unchoked {
                self.histories.entry(peer.key).and_modify(|history| history.since = self.turn);
            }
            self.sites.insert(peer.site, self.turn);
        }
        Decision { unchoked: interested.iter().map(|peer| peer.key).collect(), idle }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    /// A peer that requests blocks whenever it may, alone in its site.
    fn alone(peer: u64, kib: u64) -> ChokerPeer {
        let (site, rate) = (IpAddr::from([10, 0, peer as u8, 0]), kib << 10);
        ChokerPeer { key: PeerKey(peer), site, interested: true, unchoked: false, active: true, rate }
    }

    fn turn(choker: &mut Choker, all: &mut Vec<ChokerPeer>) -> (Vec<u64>, usize) {
        let Decision { unchoked, idle } = choker.decide(all, &mut SmallRng::seed_from_u64(1));
        all.retain(|peer| !idle.contains(&peer.key));
        all.iter_mut().for_each(|peer| peer.unchoked = unchoked.contains(&peer.key));
        (unchoked.iter().map(|peer| peer.0).collect(), idle.len())
    }

    /// The numbers of the peers that are unchoked in each of the next turns.
    fn turns(choker: &mut Choker, all: &mut Vec<ChokerPeer>, turns: usize) -> Vec<Vec<u64>> {
        (0..turns).map(|_| turn(choker, all).0).collect()
    }

    #[test]
    fn the_fastest_are_unchoked_and_each_other_peer_gets_three_turns() {
        let mut all: Vec<_> = (0..10).map(|n| alone(n, 20 * n)).collect();
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
        let mut all: Vec<_> = (0..13).map(|n| alone(n, if n == 0 { 16 } else { n % 10 })).collect();
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
        let attacker = |peer| ChokerPeer { site: IpAddr::from([10, 1, peer as u8 % 3, 0]), ..alone(peer, 1) };
        let (mut had, mut next) = ([0; 2], 1000);
        let mut all: Vec<_> = (0..12).map(|n| alone(n, 1)).collect();
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
            ChokerPeer { active: false, site, ..alone(peer, 0) }
        };
        let (mut waited, mut next) = (Vec::new(), 1000);
        let mut all = vec![alone(0, 1)];
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
        let silent = |peer| ChokerPeer { active: false, site: IpAddr::from([10, 1, 1, 0]), ..alone(peer, 0) };
        // Each of the peers that have taken all slots loses its slot after one turn,
        let (mut choker, mut all) = (Choker::new(8), (0..60).map(silent).collect());
        let first = turn(&mut choker, &mut all).0;
        assert!(turn(&mut choker, &mut all).0.iter().all(|peer| !first.contains(peer)));
        all.push(alone(60, 0));
        assert!(turn(&mut choker, &mut all).0.contains(&60), "an honest one is next");
        // and its connection after another.
        (0..20).for_each(|_| _ = turn(&mut choker, &mut all));
        assert!(all.len() <= 8 && all.last().is_some_and(|last| last.key == PeerKey(60)), "{all:?}");
        // Peers that keep no slots from others stay, and no more leave than wait.
        let (mut choker, mut all) = (Choker::new(8), (0..8).map(silent).collect());
        (0..10).for_each(|_| assert_eq!(turn(&mut choker, &mut all).1, 0));
        all.push(alone(8, 0));
        assert_eq!(turn(&mut choker, &mut all).1, 0);
        assert!(all[8].unchoked);
        assert_eq!([turn(&mut choker, &mut all).1, turn(&mut choker, &mut all).1], [1, 0]);
    }

    #[test]
    fn a_peer_that_was_unchoked_between_decisions_has_its_turns() {
        let mut choker = Choker::new(2);
        let mut all = vec![alone(0, 1)];
        (0..5).for_each(|_| _ = turn(&mut choker, &mut all));
        all.push(ChokerPeer { unchoked: true, ..alone(1, 1) });
        all.extend([alone(2, 1), alone(3, 1)]);
        assert!(turn(&mut choker, &mut all).0.contains(&1));
    }
}
