//! Addresses of peers to connect to, and the source of each.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use crate::network::network;

/// The addresses, and when to connect to each.
///
/// Addresses that one source makes up do not hide the addresses of another. If there is no room, an address
/// of the source with the most goes: at random among the ones that were not reached, or else among all.
/// Kinds of sources take turns, and so do the sources of a kind.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    known: HashMap<SocketAddr, Candidate>,
    counts: SourceCounts,
    /// When the latest turns of sources, and of kinds of them, were.
    turns: HashMap<Source, u64>,
    kinds: [u64; 4],
    turn: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The user. These addresses are always tried.
    User,
    /// The magnet link.
    Link,
    /// A tracker, by its number in the list of the torrent.
    Tracker(usize),
    /// A tracker, for the other info hash of a hybrid.
    OtherSwarm(usize),
    /// The peers of a [`site`](crate::network::site).
    Peers(IpAddr),
}

/// The result of an outgoing connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    OfUse,
    /// It was reached and did not answer to the info hash.
    Unanswered,
    OfNoUse,
}

#[derive(Debug)]
struct Candidate {
    source: Source,
    /// The info hash of a hybrid to name there: of the swarm in which it was found and, each time that it
    /// does not answer to this, the next.
    swarm: usize,
    /// Whether a connection to it is being opened, or is open.
    taken: bool,
    /// How often in a row it was not reached.
    failures: u32,
    next: Instant,
    /// Why it was not reached.
    why: Option<String>,
}

impl Candidates {
    /// Trackers answer with about 50, peers with 50 per minute.
    const MOST: usize = 1000;
    /// The most that the user, or the peers of one site, may name.
    const OF_USER: usize = 500;
    const OF_PEERS: usize = 100;
    /// The most per IPv4 address, or IPv6 network of 64 bits, of a source other than the user.
    const OF_ONE: usize = 8;
    /// An address is forgotten after this many failures; if a peer named it, after one, or one per info hash.
    const FAILURES: u32 = 5;
    /// The wait before the second attempt; it doubles before each further one.
    const PATIENCE: Duration = Duration::from_secs(15);

    pub(crate) fn add(&mut self, address: SocketAddr, source: Source, now: Instant) {
        // An IPv4 address may come as IPv6, and is the same.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
            return;
        }
        if let Some(known) = self.known.get_mut(&address) {
            // It stays longer if it counts for the source that is trusted more, or has named fewer.
            let before = known.source;
            if (source.kind(), self.counts.of(source)) < (before.kind(), self.counts.of(before)) {
                known.source = source;
                self.counts.remove(before);
                self.counts.add(source);
            }
            return;
        }
        let place = network(address.ip());
        let is_alike =
            |other: &SocketAddr, known: &Candidate| known.source == source && network(other.ip()) == place;
        let alike = self.known.iter().filter(|(other, known)| is_alike(other, known)).count();
        let has_room = match source {
            Source::User => self.counts.of(source) < Self::OF_USER,
            _ if alike >= Self::OF_ONE => self.evict(is_alike),
            Source::Peers(_) if self.counts.of(source) >= Self::OF_PEERS => self.evict_of(source),
            Source::Peers(_) | Source::Tracker(_) | Source::OtherSwarm(_) | Source::Link => true,
        };
        if has_room
            && (self.known.len() < Self::MOST || self.counts.heaviest().is_some_and(|of| self.evict_of(of)))
        {
            let swarm = usize::from(matches!(source, Source::OtherSwarm(_)));
            let new = Candidate { source, swarm, taken: false, failures: 0, next: now, why: None };
            self.known.insert(address, new);
            self.counts.add(source);
        }
    }

    fn evict_of(&mut self, source: Source) -> bool {
        self.evict(|_, known| known.source == source)
    }

    /// Removes one for which `is_one` holds, if it has no connection. Returns whether there was one.
    fn evict(&mut self, is_one: impl Fn(&SocketAddr, &Candidate) -> bool) -> bool {
        let free = self.known.iter().filter(|(address, known)| !known.taken && is_one(address, known));
        let gone = free.max_by_key(|(_, known)| (known.failures > 0, rand::random::<u32>()));
        let gone = gone.map(|(address, _)| *address);
        gone.is_some_and(|address| self.remove(&address))
    }

    fn remove(&mut self, address: &SocketAddr) -> bool {
        let gone = self.known.remove(address);
        gone.is_some_and(|gone| {
            self.counts.remove(gone.source);
            true
        })
    }

    /// The address to connect to now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<SocketAddr> {
        let (kinds, turns) = (&self.kinds, &self.turns);
        let due = self.known.iter_mut().filter(|(_, candidate)| !candidate.taken && candidate.next <= now);
        let (address, candidate) = due.min_by_key(|(_, Candidate { source, next, .. })| {
            (kinds[source.kind()], turns.get(source).copied(), *next)
        })?;
        candidate.taken = true;
        self.turn += 1;
        self.kinds[candidate.source.kind()] = self.turn;
        self.turns.insert(candidate.source, self.turn);
        let address = *address;
        if self.turns.len() > Self::MOST {
            self.turns.retain(|source, _| self.counts.of(*source) > 0);
        }
        Some(address)
    }

    /// The number of the info hash to name there.
    pub(crate) fn swarm(&self, address: SocketAddr) -> usize {
        self.known.get(&address).map_or(0, |candidate| candidate.swarm)
    }

    /// A connection to it has ended, for the reason `why`. The torrent has `swarms` info hashes.
    pub(crate) fn ended(
        &mut self,
        address: SocketAddr,
        outcome: Outcome,
        swarms: usize,
        why: Option<String>,
        now: Instant,
    ) {
        let Some(candidate) = self.known.get_mut(&address) else { return };
        let (is_of_use, is_unanswered) = (outcome == Outcome::OfUse, outcome == Outcome::Unanswered);
        candidate.taken = false;
        candidate.why = why.filter(|_| !is_of_use);
        candidate.failures = if is_of_use { 1 } else { candidate.failures + 1 };
        candidate.swarm += usize::from(is_unanswered);
        let is_over = match candidate.source {
            Source::User => {
                candidate.failures = candidate.failures.min(Self::FAILURES - 1);
                false
            }
            Source::Peers(_) if is_unanswered => candidate.failures as usize >= swarms,
            Source::Peers(_) => !is_of_use,
            Source::Link | Source::Tracker(_) | Source::OtherSwarm(_) => candidate.failures >= Self::FAILURES,
        };
        candidate.next = now + Self::PATIENCE * 2_u32.pow(candidate.failures - 1);
        if is_over {
            self.remove(&address);
        }
    }

    /// Addresses that were not reached at the latest attempt that has ended: whether the user named it, why,
    /// and when the next attempt is. They may be connected to by now.
    pub(crate) fn unreached(&self) -> impl Iterator<Item = (SocketAddr, bool, &str, Instant)> {
        self.known.iter().filter_map(|(address, known)| {
            Some((*address, known.source == Source::User, known.why.as_deref()?, known.next))
        })
    }

    /// Puts off an address that is not connected to now, which is no failure.
    pub(crate) fn put_off(&mut self, address: SocketAddr, now: Instant) {
        if let Some(candidate) = self.known.get_mut(&address) {
            candidate.taken = false;
            candidate.next = now + Self::PATIENCE;
        }
    }

    /// Removes an address: it is one of this session, or of a peer that is not wanted.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        self.remove(&address);
    }
}

/// How many addresses each source, and each kind of sources, has named.
#[derive(Debug, Default)]
struct SourceCounts {
    sources: HashMap<Source, usize>,
    kinds: [usize; 4],
}

impl SourceCounts {
    fn add(&mut self, source: Source) {
        *self.sources.entry(source).or_default() += 1;
        self.kinds[source.kind()] += 1;
    }

    fn remove(&mut self, source: Source) {
        if let Entry::Occupied(mut count) = self.sources.entry(source) {
            self.kinds[source.kind()] -= 1;
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn of(&self, source: Source) -> usize {
        self.sources.get(&source).copied().unwrap_or(0)
    }

    /// The source with the most addresses, of the kind with the most, but never the user.
    fn heaviest(&self) -> Option<Source> {
        let others = self.sources.iter().filter(|(source, _)| **source != Source::User);
        others.max_by_key(|(source, count)| (self.kinds[source.kind()], **count)).map(|(source, _)| *source)
    }
}

impl Source {
    /// The kind that is trusted most first.
    const fn kind(self) -> usize {
        match self {
            Self::User => 0,
            Self::Link => 1,
            Self::Tracker(_) | Self::OtherSwarm(_) => 2,
            Self::Peers(_) => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6881);

    #[test]
    fn an_unreached_address_is_called_later_each_time_and_then_no_more() {
        let waits = |source| {
            let (mut candidates, mut now) = (Candidates::default(), Instant::now());
            candidates.add(ADDRESS, source, now);
            let mut waited = Vec::new();
            for _ in 0..7 {
                assert_eq!((candidates.take(now), candidates.take(now)), (Some(ADDRESS), None));
                let told = (!waited.is_empty()).then_some("why");
                assert_eq!(
                    candidates.unreached().next().map(|(_, _, why, _)| why),
                    told,
                    "while it is called"
                );
                candidates.ended(ADDRESS, Outcome::OfNoUse, 1, Some("why".into()), now);
                let Some(known) = candidates.known.get(&ADDRESS) else { break };
                waited.push((known.next - now).as_secs());
                now = known.next;
            }
            waited
        };
        assert_eq!(waits(Source::Tracker(0)), [15, 30, 60, 120]);
        assert_eq!(waits(Source::Link), [15, 30, 60, 120]);
        assert!(waits(Source::Peers(ADDRESS.ip())).is_empty());
        assert_eq!(waits(Source::User), [15, 30, 60, 120, 120, 120, 120]);
    }

    #[test]
    fn a_peer_that_does_not_answer_to_one_info_hash_of_a_hybrid_is_called_by_the_other() {
        let calls = |source, swarms| {
            let (mut candidates, now) = (Candidates::default(), Instant::now());
            candidates.add(ADDRESS, source, now);
            let outcomes = [Outcome::OfNoUse, Outcome::OfUse, Outcome::Unanswered, Outcome::Unanswered];
            // A peer's word is worth one attempt of no use.
            let outcomes = &outcomes[if matches!(source, Source::Peers(_)) { 2.. } else { 0.. }];
            let called = outcomes.iter().map_while(|outcome| {
                let swarm = candidates.known.get(&ADDRESS)?.swarm;
                candidates.ended(ADDRESS, *outcome, swarms, None, now);
                Some(swarm % swarms)
            });
            called.collect::<Vec<_>>()
        };
        assert_eq!(calls(Source::Tracker(0), 2), [0, 0, 0, 1]);
        assert_eq!(calls(Source::OtherSwarm(0), 2), [1, 1, 1, 0]);
        let peers = Source::Peers(ADDRESS.ip());
        assert_eq!((calls(peers, 2), calls(peers, 1)), (vec![0, 1], vec![0]));
    }

    fn made_up(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 6881))
    }

    #[test]
    fn no_source_exceeds_its_limit() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        for n in 1..2_000_u16 {
            candidates.add(made_up(u32::from(n)), Source::Tracker(0), now);
            candidates.add(SocketAddr::from(([192, 0, 2, 1], n)), Source::Tracker(1), now);
            let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 6881));
            candidates.add(v6, Source::Tracker(1), now);
            candidates.add(made_up(1 << 20 | u32::from(n)), Source::Peers(ADDRESS.ip()), now);
        }
        assert_eq!(candidates.known.len(), Candidates::MOST);
        let of = |source| candidates.known.values().filter(|known| known.source == source).count();
        assert_eq!(of(Source::Tracker(1)), 2 * Candidates::OF_ONE);
        assert_eq!(of(Source::Peers(ADDRESS.ip())), Candidates::OF_PEERS);
    }

    #[test]
    fn no_source_takes_the_address_of_another() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        let (seeder, peers) = (made_up(1), Source::Peers(ADDRESS.ip()));
        candidates.add(seeder, Source::Tracker(1), now);
        candidates.add(seeder, peers, now);
        assert_eq!(candidates.take(now), Some(seeder));
        candidates.ended(seeder, Outcome::OfNoUse, 1, None, now);
        (2..500).for_each(|n| candidates.add(made_up(n), peers, now));
        assert!(candidates.known.contains_key(&seeder), "it still counts for the tracker");
        // Ports of the same address that are being called.
        let mut candidates = Candidates::default();
        (2..20).for_each(|port| candidates.add(SocketAddr::new(seeder.ip(), port), Source::Tracker(0), now));
        while candidates.take(now).is_some() {}
        candidates.add(seeder, Source::Tracker(1), now);
        assert_eq!(candidates.take(now), Some(seeder));
    }

    #[test]
    fn addresses_of_the_user_have_room_beside_all_others() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        (0..1000).for_each(|n| candidates.add(made_up(1 << 24 | n), Source::Tracker(0), now));
        (0..1000).for_each(|n| candidates.add(made_up(2 << 24 | n), Source::User, now));
        (0..1000).for_each(|n| candidates.add(made_up(3 << 24 | n), Source::Tracker(1), now));
        let count = |source| candidates.known.values().filter(|known| known.source == source).count();
        let counts = [Source::User, Source::Tracker(0), Source::Tracker(1)].map(count);
        assert!(counts[0] == 500 && counts[1].abs_diff(counts[2]) <= 2, "{counts:?}");
        assert_eq!(candidates.counts.kinds, [500, 0, 500, 0]);
    }

    #[test]
    fn addresses_that_one_source_makes_up_do_not_hide_others() {
        let everything = |n: u32| (0..1_500).map(move |k| made_up(1 << 24 | n << 16 | k));
        let sites = |n: u32| Source::Peers(IpAddr::from(n.to_be_bytes()));
        let honest = [(1, Source::User), (2, Source::Link), (3, Source::Tracker(9)), (4, sites(7))];
        let rounds = |before: bool| {
            let (mut candidates, now) = (Candidates::default(), Instant::now());
            let name = |candidates: &mut Candidates| {
                for (n, source) in honest {
                    candidates.add(made_up(n), source, now);
                }
            };
            if before {
                name(&mut candidates);
            }
            for address in everything(0) {
                candidates.add(address, Source::Tracker(0), now);
            }
            // A hundred sites, each with less than an honest tracker has.
            for (n, address) in everything(1).enumerate() {
                candidates.add(address, sites(n as u32 % 100 + 1000), now);
            }
            // Other ports at the addresses that are to be hidden.
            for (port, (n, _)) in (1..100).flat_map(|port| honest.map(|honest| (port, honest))) {
                candidates.add(SocketAddr::new(made_up(n).ip(), port), Source::Tracker(0), now);
            }
            name(&mut candidates);
            let called: Vec<_> = (0..500).filter_map(|_| candidates.take(now)).collect();
            honest.map(|(n, _)| called.iter().position(|called| *called == made_up(n)))
        };
        for before in [false, true] {
            let [user, link, tracker, peer] = rounds(before);
            assert!(user.is_some_and(|nth| nth < 4) && link.is_some_and(|nth| nth < 4), "{user:?} {link:?}");
            assert!(tracker.is_some_and(|nth| nth < 20), "{tracker:?}");
            assert!(peer.is_some_and(|nth| nth < 450), "{peer:?}");
        }
    }
}
