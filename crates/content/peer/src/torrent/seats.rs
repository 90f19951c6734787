//! The connections that a torrent may have, and which of them end when others want in.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{Torrent, TorrentState};
use crate::{
    network::{neighbours, network, site},
    picker::PeerKey,
};

/// A place among the connections of a torrent, until this is dropped.
pub(crate) struct Seat {
    pub(crate) torrent: Arc<Torrent>,
    pub(crate) key: PeerKey,
    /// Whether this session opened the connection.
    pub(crate) called: bool,
    /// Cancelled when the connection has to end.
    pub(crate) stop: CancellationToken,
}

/// The same, as the torrent keeps it.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) ip: IpAddr,
    called: bool,
    since: Instant,
    pub(super) stop: CancellationToken,
}

/// How readily a connection ends for another: the greatest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dispensable {
    /// Whether neither wants anything of the other.
    useless: bool,
    /// Whether nothing goes either way.
    idle: bool,
    /// Connections of its site.
    of_site: usize,
    /// Bytes per second.
    rate: Reverse<u64>,
    age: Duration,
}

/// A connection that is younger does not end for others,
const YOUNG: Duration = Duration::from_secs(30);
/// unless nothing goes over it and its site has more than twice as many as that of the newcomer.
const YOUNGEST: Duration = Duration::from_secs(5);

/// Why there is no place.
pub(crate) const CROWDED: &str = "there are as many connections to its network as may be";
pub(crate) const FULL: &str = "there are as many connections as may be";

impl Torrent {
    /// Takes a place for a connection with `ip`.
    pub(crate) fn seat(
        self: &Arc<Self>,
        ip: IpAddr,
        called: bool,
        now: Instant,
    ) -> Result<Seat, &'static str> {
        let mut state = self.state.lock();
        if state.banned.contains(&network(ip)) {
            return Err("it brought wrong bytes");
        }
        let config = &self.session.config;
        if state.is_crowded(ip, config.connections_per_address) {
            return Err(CROWDED);
        }
        let most = config.connections_per_torrent;
        let callers = state.seats.values().filter(|taken| !taken.called).count();
        if state.seats.len() >= most || !called && callers >= for_callers(most) {
            let (_, key) = state.most_dispensable(ip, now).ok_or(FULL)?;
            state.end(key);
        }
        let (key, stop) = (self.session.next_key(), self.stop.child_token());
        state.seats.insert(key, Taken { ip: ip.to_canonical(), called, since: now, stop: stop.clone() });
        Ok(Seat { torrent: Arc::clone(self), key, called, stop })
    }

    /// The connection that ends first if a caller from `ip` needs room.
    pub(crate) fn most_dispensable(&self, ip: IpAddr, now: Instant) -> Option<(Dispensable, PeerKey)> {
        self.state.lock().most_dispensable(ip, now)
    }

    pub(crate) fn end(&self, key: PeerKey) {
        self.state.lock().end(key);
    }
}

impl TorrentState {
    /// Whether no more connections may be made to the networks of `ip`: `most` per address or IPv6 network of 64
    /// bits, twice as many per network of 28 or 56 bits, and four times as many per site.
    pub(super) fn is_crowded(&self, ip: IpAddr, most: usize) -> bool {
        let counts = neighbours(ip, self.seats.values().map(|taken| taken.ip));
        counts.iter().zip([most, 2 * most, 4 * most]).any(|(count, most)| *count >= most)
    }

    /// Of all that called, and of those that were called and are useless.
    fn most_dispensable(&self, newcomer: IpAddr, now: Instant) -> Option<(Dispensable, PeerKey)> {
        let mut sites = BTreeMap::new();
        for taken in self.seats.values() {
            *sites.entry(site(taken.ip)).or_insert(0) += 1;
        }
        let beside = sites.get(&site(newcomer)).copied().unwrap_or(0) + 1;
        let ranked = self.seats.iter().map(|(key, taken)| {
            let entry = self.peers.get(key);
            let rate = entry.map_or(0, |entry| entry.peer.up.rate() + entry.peer.down.rate());
            let rank = Dispensable {
                useless: self.picker.is_some()
                    && entry.is_some_and(|entry| !entry.interested && entry.wanted == 0),
                idle: rate == 0,
                of_site: sites[&site(taken.ip)],
                rate: Reverse(rate),
                age: now - taken.since,
            };
            (rank, *key, taken.called)
        });
        let may_end = ranked.filter(|(rank, _, called)| {
            let crowds = rank.idle && rank.of_site > 2 * beside && rank.age >= YOUNGEST;
            (rank.useless || !called) && (rank.age >= YOUNG || crowds)
        });
        may_end.map(|(rank, key, _)| (rank, key)).max()
    }

    pub(super) fn end(&mut self, key: PeerKey) {
        if let Some(taken) = self.seats.remove(&key) {
            taken.stop.cancel();
        }
    }
}

/// Of `most` connections, those that callers may have: the others are for calls of one's own.
pub(crate) const fn for_callers(most: usize) -> usize {
    most - most / 4
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.torrent.state.lock().seats.remove(&self.key);
        self.torrent.calling.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use swarmkeep_bittorrent::{InfoHash, PeerId};
    use swarmkeep_content::{
        ContentConfig, Memory,
        stripe_cache::{StripeCache, StripeCacheOptions},
    };

    use super::*;
    use crate::{SessionConfig, resources::Resources};

    fn torrent() -> Arc<Torrent> {
        let store = Arc::new(Memory::new(&ContentConfig::new("")));
        let store = Arc::new(StripeCache::new(store, StripeCacheOptions::new()).unwrap());
        let resources = Resources::new(SessionConfig::new(PeerId::new([1; 20])), store, 0);
        Arc::new(Torrent::new(InfoHash::new([1; 20]), Arc::new(resources), None))
    }

    fn taken(torrent: &Arc<Torrent>, ips: impl Iterator<Item = IpAddr>, now: Instant) -> Vec<Seat> {
        ips.filter_map(|ip| torrent.seat(ip, false, now).ok()).collect()
    }

    #[tokio::test]
    async fn no_network_takes_all_seats() {
        let now = Instant::now();
        let networks = [
            ("2001:db8::", 0, 8),
            ("2001:db8::", 64, 16),
            ("2001:db8::", 72, 32),
            ("2001:db8::", 80, 45),
            ("192.0.2.0", 0, 32),
            ("192.0.2.0", 8, 45),
        ];
        for (first, shift, most) in networks {
            let ip = |n: u32| match first.parse().unwrap() {
                IpAddr::V4(ip) => IpAddr::from((ip.to_bits() + (n << shift)).to_be_bytes()),
                IpAddr::V6(ip) => IpAddr::from((ip.to_bits() + (u128::from(n) << shift)).to_be_bytes()),
            };
            let seats = taken(&torrent(), (0..100).map(ip), now);
            assert_eq!(seats.len(), most, "{first} << {shift}");
        }
    }

    #[tokio::test]
    async fn callers_leave_seats_for_calls_of_ones_own() {
        let (torrent, now) = (torrent(), Instant::now());
        let callers = taken(&torrent, (0..100).map(|n| IpAddr::from([10, 0, n, 1])), now);
        let called = |n| torrent.seat(IpAddr::from([10, 1, n, 1]), true, now);
        let calls: Vec<_> = (0..100).filter_map(|n| called(n).ok()).collect();
        assert_eq!((callers.len(), calls.len()), (45, 15));
        assert_eq!(torrent.to_call(), None);
        drop(calls);
        assert!(torrent.seat(IpAddr::from([10, 2, 0, 1]), false, now).is_err(), "they stay free");
    }

    #[tokio::test]
    async fn the_slowest_of_the_largest_site_makes_room() {
        let (torrent, begin) = (torrent(), Instant::now());
        let site = |n: u8| IpAddr::from([10, 0, n / 3, n]);
        let mut seats = taken(&torrent, (0..45).map(site), begin);
        // One alone, the fastest, and the others by what they take.
        for (n, seat) in seats.iter().enumerate().skip(1) {
            let id = PeerId::new([n as u8 + 2; 20]);
            let peer = torrent.join(seat, SocketAddr::new(site(n as u8), 1), id).unwrap();
            peer.up.add(if n == 1 { 1 << 20 } else { 100 - n as u64 });
            peer.up.tick(Duration::from_secs(1));
        }
        seats.push(torrent.seat(IpAddr::from([10, 1, 0, 1]), true, begin).unwrap());
        let other = |n| torrent.seat(IpAddr::from([10, 2, n, 1]), false, begin + YOUNGEST);
        let newcomer = other(0).expect("it is alone, and the idle one among three of its site");
        assert!(seats[0].stop.is_cancelled());
        assert!(other(1).is_err(), "the others are young, and not idle");
        for n in [44, 41, 38, 35, 32] {
            seats.push(torrent.seat(IpAddr::from([10, 3, n, 1]), false, begin + YOUNG).unwrap());
            assert!(seats[usize::from(n)].stop.is_cancelled(), "{n}");
        }
        assert!(!newcomer.stop.is_cancelled() && !seats[45].stop.is_cancelled());
    }
}
