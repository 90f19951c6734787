//! A swarm of the oracle: its peers by endpoint, role and age, and the eligible ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::{
        Bound::{Excluded, Unbounded},
        RangeInclusive,
    },
};

use super::ranks::{Ranks, WIDTHS};
use swarmkeep::{
    Announce, AnnounceEvent, Changes, Endpoint, Families, Family, PeerDetails, PeerRecord, Random, Retention,
    Role, SwarmStats, Timestamp, Totals,
};

/// The peers of one info hash.
#[derive(Debug, Clone, Default)]
pub(crate) struct Swarm {
    pub(crate) peers: BTreeMap<Endpoint, Peer>,
    /// The same endpoints by family and role, in no order. Selection draws from these lists.
    lists: BTreeMap<(Family, Role), Vec<Endpoint>>,
    /// The same endpoints, least recent announce first.
    pub(crate) by_age: BTreeSet<(Timestamp, Endpoint)>,
    pub(crate) downloaded: u32,
    pub(crate) latest: Timestamp,
    pub(crate) populated: bool,
}

/// One peer of a swarm.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) last_announce: Timestamp,
    details: Option<PeerDetails>,
    /// The place of the peer in the list of its family and role.
    place: usize,
}

impl Peer {
    /// Returns the peer as it is listed when `latest` is the latest time given, and with no later time.
    pub(crate) fn record(&self, endpoint: Endpoint, latest: Timestamp) -> PeerRecord {
        let last_announce = self.last_announce.min(latest);
        PeerRecord { endpoint, role: self.role, last_announce, details: self.details }
    }
}

impl Swarm {
    pub(super) fn announce(&mut self, announce: &Announce, now: Timestamp) -> Changes {
        if announce.event == AnnounceEvent::Stopped {
            return if self.remove(&announce.endpoint).is_some() { Changes::LEFT } else { Changes::empty() };
        }
        let details = PeerDetails {
            peer_id: announce.peer_id,
            uploaded: announce.uploaded,
            downloaded: announce.downloaded,
            left: announce.left,
        };
        let before = self.put(announce.endpoint, announce.role(), now, Some(details));
        let mut changes = match (before, announce.role()) {
            (None, _) => Changes::JOINED,
            (Some(Role::Leecher), Role::Seeder) => Changes::REFRESHED | Changes::PROMOTED,
            (Some(Role::Seeder), Role::Leecher) => Changes::REFRESHED | Changes::DEMOTED,
            _ => Changes::REFRESHED,
        };
        let finished = announce.event == AnnounceEvent::Completed && announce.left == 0;
        if finished && before != Some(Role::Seeder) {
            self.downloaded = self.downloaded.saturating_add(1);
            changes |= Changes::COMPLETED;
        }
        changes
    }

    /// Inserts or refreshes a peer; returns its previous state.
    pub(crate) fn put(
        &mut self,
        endpoint: Endpoint,
        role: Role,
        last_announce: Timestamp,
        details: Option<PeerDetails>,
    ) -> Option<Role> {
        self.latest = self.latest.max(last_announce);
        self.by_age.insert((last_announce, endpoint));
        let mut before = None;
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            if peer.last_announce != last_announce {
                self.by_age.remove(&(peer.last_announce, endpoint));
            }
            if peer.role == role {
                *peer = Peer { role, last_announce, details, place: peer.place };
                return Some(role);
            }
            before = Some(peer.role);
            self.unlist(&endpoint);
        }
        let list = self.lists.entry((endpoint.family(), role)).or_default();
        self.peers.insert(endpoint, Peer { role, last_announce, details, place: list.len() });
        list.push(endpoint);
        before
    }

    /// Changes the role and the time of a peer.
    pub(crate) fn alter(&mut self, endpoint: Endpoint, role: Role, last_announce: Timestamp) {
        let details = self.peers[&endpoint].details;
        self.put(endpoint, role, last_announce, details);
    }

    pub(crate) fn remove(&mut self, endpoint: &Endpoint) -> Option<Role> {
        self.by_age.remove(&(self.peers.get(endpoint)?.last_announce, *endpoint));
        self.unlist(endpoint);
        self.peers.remove(endpoint).map(|peer| peer.role)
    }

    /// Removes a peer from its list. The last peer of the list moves to its place.
    fn unlist(&mut self, endpoint: &Endpoint) {
        let Peer { role, place, .. } = self.peers[endpoint];
        let list = self.lists.entry((endpoint.family(), role)).or_default();
        list.swap_remove(place);
        if let Some(moved) = list.get(place) {
            self.peers.get_mut(moved).expect("a listed endpoint is a peer").place = place;
        }
    }

    /// Evicts the peers that announced least recently, except `announcer`, until at most `most` are left;
    /// returns the number of evicted peers.
    pub(crate) fn drop_stalest_but(&mut self, announcer: Endpoint, most: Option<usize>) -> u64 {
        let before = self.peers.len();
        while most.is_some_and(|most| self.peers.len() > most) {
            let Some(&(_, stalest)) = self.by_age.iter().find(|(_, endpoint)| *endpoint != announcer) else {
                break;
            };
            self.remove(&stalest);
        }
        (before - self.peers.len()) as u64
    }

    /// Evicts peers of the networks that have most peers here, the least recent announcers first, except
    /// `announcer`, until at most `most` are left; returns the number of evicted peers.
    pub(crate) fn drop_least_but(&mut self, announcer: Option<Endpoint>, most: Option<usize>) -> u64 {
        let before = self.peers.len();
        while most.is_some_and(|most| self.peers.len() > most) {
            let others = self.shares().into_iter().filter(|(.., endpoint)| Some(*endpoint) != announcer);
            let Some((.., least)) = others.min() else { break };
            self.remove(&least);
        }
        (before - self.peers.len()) as u64
    }

    /// Returns the peers with their shares of the worth of their networks.
    fn shares(&self) -> Vec<(u64, Timestamp, Endpoint)> {
        let with_time = |(&endpoint, peer): (_, &Peer)| (u64::MAX, peer.last_announce, endpoint);
        let mut peers: Vec<_> = self.peers.iter().map(with_time).collect();
        let wider = WIDTHS.iter().map(|&(len, units)| (Family::V6, len, units));
        for (family, len, units) in [(Family::V4, 3, 1), (Family::V6, 6, 1)].into_iter().chain(wider) {
            // In ascending order the peers of a network are neighbours.
            let members = peers.chunk_by_mut(|(.., a), (.., b)| {
                a.family() == b.family() && a.as_bytes()[..len] == b.as_bytes()[..len]
            });
            for members in members.filter(|members| members[0].2.family() == family) {
                let share = units * Ranks::UNIT / members.len() as u64;
                members.iter_mut().for_each(|member| member.0 = member.0.min(share));
            }
        }
        peers
    }

    /// Evicts the endpoints of the address of `announcer` that announced least recently, except itself, until
    /// at most `most` are left; returns the number of evicted endpoints.
    pub(crate) fn drop_stalest_of_address_but(&mut self, announcer: Endpoint, most: Option<usize>) -> u64 {
        most.map_or(0, |most| self.drop_stalest_of_networks_but(announcer, most, &NETWORKS[..1]))
    }

    /// The same for each of `networks` that `announcer` is in, with its multiple of `most`.
    pub(crate) fn drop_stalest_of_networks_but(
        &mut self,
        announcer: Endpoint,
        most: usize,
        networks: &[LimitedNetwork],
    ) -> u64 {
        let before = self.peers.len();
        for network in networks {
            let within = network.range(announcer);
            while self.peers.range(within.clone()).count() > most.saturating_mul(network.times) {
                let others = self.peers.range(within.clone()).filter(|(endpoint, _)| **endpoint != announcer);
                let Some((&stalest, _)) = others.min_by_key(|(_, peer)| peer.last_announce) else { break };
                self.remove(&stalest);
            }
        }
        (before - self.peers.len()) as u64
    }

    /// Whether one of `networks` that `newcomer` is in has no room for it.
    pub(crate) fn is_crowded(&self, newcomer: Endpoint, most: usize, networks: &[LimitedNetwork]) -> bool {
        let is_full = |network: &LimitedNetwork| {
            self.peers.range(network.range(newcomer)).count() >= most.saturating_mul(network.times)
        };
        networks.iter().any(is_full)
    }

    /// Returns the peers of an address.
    pub(crate) fn of_address(&self, endpoint: Endpoint) -> impl Iterator<Item = (&Endpoint, &Peer)> {
        self.peers.range(NETWORKS[0].range(endpoint))
    }

    pub(crate) fn count(&self, family: Family, role: Role) -> u64 {
        self.list(family, role).len() as u64
    }

    pub(crate) fn list(&self, family: Family, role: Role) -> &[Endpoint] {
        self.lists.get(&(family, role)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn stats(&self) -> SwarmStats {
        let both = |role| {
            (self.count(Family::V4, role) + self.count(Family::V6, role)).try_into().unwrap_or(u32::MAX)
        };
        SwarmStats {
            complete: both(Role::Seeder),
            incomplete: both(Role::Leecher),
            downloaded: self.downloaded,
        }
    }

    /// Returns `totals` with `change` applied to each count and the same count of this swarm.
    pub(super) fn counted(&self, mut totals: Totals, change: impl Fn(u64, u64) -> u64) -> Totals {
        for (family, counts) in [(Family::V4, &mut totals.v4), (Family::V6, &mut totals.v6)] {
            counts.seeders = change(counts.seeders, self.count(family, Role::Seeder));
            counts.leechers = change(counts.leechers, self.count(family, Role::Leecher));
        }
        totals.downloaded = change(totals.downloaded, self.downloaded.into());
        totals
    }

    pub(crate) fn is_idle(&self, policy: Retention) -> bool {
        let kept = policy == Retention::KeepDownloaded && self.downloaded > 0;
        self.peers.is_empty() && !kept
    }

    /// Returns the peers after one endpoint, in ascending order.
    pub(super) fn behind(&self, after: Option<Endpoint>) -> impl Iterator<Item = (&Endpoint, &Peer)> {
        self.peers.range((after.map_or(Unbounded, Excluded), Unbounded))
    }

    /// Returns the peers of one family that are eligible for the announcing peer.
    pub(crate) fn eligible(&self, announce: &Announce, family: Family) -> Eligible<'_> {
        if !announce.families.contains(Families::of(family)) {
            return Eligible::default();
        }
        let leechers = self.list(family, Role::Leecher);
        let seeders = if announce.takes_seeders() { self.list(family, Role::Seeder) } else { &[] };
        let announcer = self.peers.get(&announce.endpoint).filter(|_| announce.endpoint.family() == family);
        let announcer = announcer.and_then(|peer| match peer.role {
            Role::Leecher => Some(peer.place),
            Role::Seeder => announce.takes_seeders().then_some(leechers.len() + peer.place),
        });
        Eligible { leechers, seeders, announcer }
    }
}

/// Eligible peers as one row, without the announcing peer: the leechers, then the seeders.
#[derive(Debug, Default)]
pub(crate) struct Eligible<'a> {
    pub(crate) leechers: &'a [Endpoint],
    pub(crate) seeders: &'a [Endpoint],
    pub(crate) announcer: Option<usize>,
}

impl Eligible<'_> {
    pub(crate) fn len(&self) -> usize {
        self.leechers.len() + self.seeders.len() - usize::from(self.announcer.is_some())
    }

    pub(crate) fn get(&self, index: usize) -> Endpoint {
        let index = index + usize::from(self.announcer.is_some_and(|announcer| index >= announcer));
        *self.leechers.get(index).unwrap_or_else(|| &self.seeders[index - self.leechers.len()])
    }

    /// Selects `count` of the peers: all, or a window at a random place of the row, which is a ring.
    pub(super) fn draw(&self, count: usize, rng: &mut dyn Random, mut take: impl FnMut(Endpoint)) {
        // No random number is drawn if there is no choice.
        let start = if 0 < count && count < self.len() { rng.below(self.len()) } else { 0 };
        for offset in 0..count {
            take(self.get((start + offset) % self.len()));
        }
    }
}

/// A network with a limit of endpoints in a swarm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitedNetwork {
    pub(crate) v4_bits: u32,
    pub(crate) v6_bits: u32,
    /// The multiple of the limit of an address.
    pub(crate) times: usize,
}

/// An address, and for IPv6 the networks that a client may have whole.
pub(crate) const NETWORKS: &[LimitedNetwork] = &[
    LimitedNetwork { v4_bits: 32, v6_bits: 64, times: 1 },
    LimitedNetwork { v4_bits: 32, v6_bits: 56, times: 5 },
    LimitedNetwork { v4_bits: 32, v6_bits: 48, times: 25 },
];

impl LimitedNetwork {
    /// Returns all possible endpoints of the network of `endpoint`.
    fn range(&self, endpoint: Endpoint) -> RangeInclusive<Endpoint> {
        let (first, last) = match endpoint.ip() {
            IpAddr::V4(ip) => {
                let hosts = u32::MAX.checked_shr(self.v4_bits).unwrap_or(0);
                let (first, last) = (ip.to_bits() & !hosts, ip.to_bits() | hosts);
                (IpAddr::V4(first.into()), IpAddr::V4(last.into()))
            }
            IpAddr::V6(ip) => {
                let hosts = u128::MAX.checked_shr(self.v6_bits).unwrap_or(0);
                let (first, last) = (ip.to_bits() & !hosts, ip.to_bits() | hosts);
                (IpAddr::V6(first.into()), IpAddr::V6(last.into()))
            }
        };
        let at = |ip, port| Endpoint::new(ip, port).expect("the port is not 0");
        at(first, 1)..=at(last, u16::MAX)
    }
}
