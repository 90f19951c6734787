//! The connections that a torrent may have, and which of them end for others.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{Torrent, TorrentState};
use crate::{
    SessionConfig,
    network::{SIZES, are_neighbours, site},
    permits::{Permit, for_one_side},
    picker::PeerKey,
};

/// A place among the connections of a torrent, until this is dropped.
pub(crate) struct Seat {
    pub(crate) torrent: Arc<Torrent>,
    pub(crate) key: PeerKey,
    /// Whether this session opened the connection.
    pub(crate) outgoing: bool,
    /// Cancelled when the connection has to end.
    pub(crate) stop: CancellationToken,
}

/// A seat, as the torrent keeps it.
#[derive(Debug)]
pub(super) struct SeatEntry {
    pub(super) ip: IpAddr,
    outgoing: bool,
    since: Instant,
    /// When bytes were last transferred, or it began.
    pub(super) moved: Instant,
    pub(super) stop: CancellationToken,
    permit: Permit,
}

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoSeat {
    Refused(&'static str),
    /// There is room in the torrent, but none in the session.
    NoPermit,
}

/// How readily a connection ends for another: the greatest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dispensable {
    /// Whether neither side is interested in the other.
    useless: bool,
    /// Whether no bytes are transferred.
    idle: bool,
    /// Connections of its site.
    of_site: usize,
    /// Bytes per second.
    rate: Reverse<u64>,
    age: Duration,
}

/// A younger connection does not end for another,
const YOUNG: Duration = Duration::from_secs(30);
/// unless it is idle and its site has more than twice as many connections as the newcomer's.
const YOUNGEST: Duration = Duration::from_secs(5);
/// An outgoing connection that is useful does not end for another, unless it was idle for this time: a peer
/// may take some turns until it unchokes.
const OLD: Duration = Duration::from_secs(120);

impl Torrent {
    /// Takes a place for a connection with `ip`. If there is none, the most dispensable connection of the
    /// same side (incoming or outgoing) ends; if the networks of `ip` have as many as allowed, one of theirs.
    /// Without a `permit`, the place gets the permit of the connection that ends.
    pub(crate) fn seat(
        self: &Arc<Self>,
        ip: IpAddr,
        outgoing: bool,
        permit: Option<Permit>,
        now: Instant,
    ) -> Result<Seat, NoSeat> {
        let mut state = self.state.lock();
        let ends = state.ends_for(ip, outgoing, &self.session.config, now).map_err(NoSeat::Refused)?;
        // A permit of the other side is not for this one.
        let is_of_side = |key| state.seats.get(&key).is_some_and(|seat| seat.outgoing == outgoing);
        if permit.is_none() && !ends.is_some_and(is_of_side) {
            return Err(NoSeat::NoPermit);
        }
        let freed = ends.and_then(|key| state.end(key));
        let permit = permit.or(freed).ok_or(NoSeat::NoPermit)?;
        let (key, stop) = (self.session.next_key(), self.stop.child_token());
        let seat =
            SeatEntry { ip: ip.to_canonical(), outgoing, since: now, moved: now, stop: stop.clone(), permit };
        state.seats.insert(key, seat);
        Ok(Seat { torrent: Arc::clone(self), key, outgoing, stop })
    }

    /// The connection that ends first if another of its side, with `ip`, needs room.
    pub(crate) fn most_dispensable(
        &self,
        ip: IpAddr,
        outgoing: bool,
        now: Instant,
    ) -> Option<(Dispensable, PeerKey)> {
        self.state.lock().most_dispensable(ip, now, |seat| seat.outgoing == outgoing)
    }

    pub(crate) fn end(&self, key: PeerKey) -> Option<Permit> {
        self.state.lock().end(key)
    }
}

impl TorrentState {
    /// Which connection has to end for one with `ip`, if any has to.
    pub(super) fn ends_for(
        &self,
        ip: IpAddr,
        outgoing: bool,
        config: &SessionConfig,
        now: Instant,
    ) -> Result<Option<PeerKey>, &'static str> {
        if self.refuses(SocketAddr::new(ip, 0)) {
            return Err(LIED);
        }
        let most = config.connections_per_torrent;
        let of_side = self.seats.values().filter(|seat| seat.outgoing == outgoing).count();
        for (nth, bits) in SIZES.into_iter().enumerate() {
            let is_neighbour = |seat: &SeatEntry| are_neighbours(seat.ip, ip, bits);
            let count = self.seats.values().filter(|seat| is_neighbour(seat)).count();
            if count >= config.connections_per_address.saturating_mul(1 << nth) {
                let may_grow = of_side < for_one_side(most);
                let may_end =
                    |seat: &SeatEntry| is_neighbour(seat) && (may_grow || seat.outgoing == outgoing);
                let (_, key) = self.most_dispensable(ip, now, may_end).ok_or(CROWDED)?;
                return Ok(Some(key));
            }
        }
        if self.seats.len() < most && of_side < for_one_side(most) {
            return Ok(None);
        }
        let (_, key) = self.most_dispensable(ip, now, |seat| seat.outgoing == outgoing).ok_or(FULL)?;
        Ok(Some(key))
    }

    fn most_dispensable(
        &self,
        newcomer: IpAddr,
        now: Instant,
        may_end: impl Fn(&SeatEntry) -> bool,
    ) -> Option<(Dispensable, PeerKey)> {
        let mut sites = BTreeMap::new();
        for seat in self.seats.values() {
            *sites.entry(site(seat.ip)).or_insert(0) += 1;
        }
        let beside = sites.get(&site(newcomer)).copied().unwrap_or(0) + 1;
        let ranked = self.seats.iter().filter(|(_, seat)| may_end(seat)).filter_map(|(key, seat)| {
            let entry = self.peers.get(key);
            let rate = entry.map_or(0, |entry| entry.peer.up.rate() + entry.peer.down.rate());
            let rank = Dispensable {
                useless: self.have.pieces() > 0
                    && entry.is_some_and(|entry| !entry.interested && entry.wanted == 0),
                idle: rate == 0,
                of_site: sites[&site(seat.ip)],
                rate: Reverse(rate),
                age: now.saturating_duration_since(seat.since),
            };
            let crowds = rank.idle && rank.of_site > 2 * beside && rank.age >= YOUNGEST;
            let still = now.saturating_duration_since(seat.moved);
            let ends = match seat.outgoing && !rank.useless {
                true => still >= OLD,
                // A crowded site does not replace active connections of other sites.
                false => crowds || rank.age >= YOUNG && (rank.useless || rank.idle || rank.of_site >= beside),
            };
            ends.then_some((rank, *key))
        });
        ranked.max()
    }

    pub(super) fn end(&mut self, key: PeerKey) -> Option<Permit> {
        let seat = self.seats.remove(&key)?;
        seat.stop.cancel();
        Some(seat.permit)
    }
}

pub(super) const LIED: &str = "it sent wrong bytes";
const CROWDED: &str = "too many connections to its network";
const FULL: &str = "too many connections";

impl Drop for Seat {
    fn drop(&mut self) {
        let gone = self.torrent.state.lock().seats.remove(&self.key);
        drop(gone);
        self.torrent.calling.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use swarmkeep_bittorrent::{InfoHash, PeerId};
    use swarmkeep_content::{
        ContentConfig, Memory,
        stripe_cache::{StripeCache, StripeCacheOptions},
    };

    use super::*;
    use crate::{permits::Permits, resources::Resources, torrent::Peer};

    fn torrent() -> Arc<Torrent> {
        let store = Arc::new(Memory::new(&ContentConfig::new("")));
        let store = Arc::new(StripeCache::new(store, StripeCacheOptions::new()).unwrap());
        let resources = Resources::new(SessionConfig::new(PeerId::new([1; 20])), store, Vec::new());
        Arc::new(Torrent::new(InfoHash::new([1; 20]), Arc::new(resources), None))
    }

    /// Takes a seat with a permit.
    fn seat(torrent: &Arc<Torrent>, ip: IpAddr, outgoing: bool, now: Instant) -> Result<Seat, NoSeat> {
        torrent.seat(ip, outgoing, Permits::new(4).take(outgoing), now)
    }

    fn callers(torrent: &Arc<Torrent>, ips: impl Iterator<Item = IpAddr>, now: Instant) -> Vec<Seat> {
        ips.filter_map(|ip| seat(torrent, ip, false, now).ok()).collect()
    }

    fn own(torrent: &Arc<Torrent>, ips: impl Iterator<Item = IpAddr>, now: Instant) -> Vec<Seat> {
        ips.filter_map(|ip| seat(torrent, ip, true, now).ok()).collect()
    }

    fn ip(net: u8, n: u8) -> IpAddr {
        IpAddr::from([10, net, n, 1])
    }

    #[tokio::test]
    async fn no_network_takes_all_seats() {
        let now = Instant::now();
        for (first, shift, most) in [
            ("2001:db8::", 0, 8),
            ("2001:db8::", 64, 16),
            ("2001:db8::", 72, 32),
            ("2001:db8::", 80, 45),
            ("192.0.2.0", 32, 8),
            ("192.0.2.0", 0, 45),
        ] {
            let ip = |n: u32| match first.parse().unwrap() {
                IpAddr::V4(ip) => IpAddr::from((ip.to_bits() + n.unbounded_shl(shift)).to_be_bytes()),
                IpAddr::V6(ip) => IpAddr::from((ip.to_bits() + (u128::from(n) << shift)).to_be_bytes()),
            };
            let torrent = torrent();
            let seats = callers(&torrent, (0..100).map(ip), now);
            assert_eq!(seats.len(), most, "{first} << {shift}");
            // Later, idle ones make room in their own network.
            assert!(seat(&torrent, ip(1), true, now + YOUNG).is_ok());
            let ended = seats.iter().filter(|seat| seat.stop.is_cancelled()).count();
            assert_eq!(ended, usize::from(most < 45), "{first} << {shift}");
        }
    }

    #[tokio::test]
    async fn incoming_and_outgoing_connections_leave_each_other_a_quarter() {
        let (torrent, now) = (torrent(), Instant::now());
        let incoming = callers(&torrent, (0..100).map(|n| ip(0, n)), now);
        let calls = own(&torrent, (0..100).map(|n| ip(1, n)), now);
        assert_eq!((incoming.len(), calls.len()), (45, 15));
        assert_eq!(torrent.to_call(), None);
        // A new address replaces an outgoing connection that was idle for long.
        assert!(seat(&torrent, ip(2, 0), true, now + OLD - YOUNG).is_err());
        let later = seat(&torrent, ip(2, 0), true, now + OLD).unwrap();
        assert!(incoming.iter().all(|seat| !seat.stop.is_cancelled()));
        assert_eq!(calls.iter().filter(|seat| seat.stop.is_cancelled()).count(), 1);
        drop((later, incoming));
        let more = own(&torrent, (0..100).map(|n| ip(3, n)), now);
        assert_eq!(more.len(), 45 - 14);
        assert_eq!(callers(&torrent, (0..100).map(|n| ip(4, n)), now).len(), 15);
    }

    #[tokio::test]
    async fn without_a_permit_a_seat_gets_the_permit_of_the_connection_that_ends() {
        let (torrent, now) = (torrent(), Instant::now());
        assert_eq!(torrent.seat(ip(1, 1), false, None, now).err(), Some(NoSeat::NoPermit));
        let all = callers(&torrent, (0..45).map(|n| ip(0, n)), now);
        let refused = torrent.seat(ip(1, 1), false, None, now).err();
        assert_eq!(refused, Some(NoSeat::Refused(FULL)));
        assert!(all.iter().all(|seat| !seat.stop.is_cancelled()));
        assert!(torrent.seat(ip(1, 1), false, None, now + YOUNG).is_ok());
        drop(all);
        // Not with a permit of the other side.
        let calls = own(&torrent, [ip(1, 1); 8].into_iter(), now);
        assert_eq!(torrent.seat(ip(1, 1), false, None, now + OLD).err(), Some(NoSeat::NoPermit));
        assert!(calls.iter().all(|seat| !seat.stop.is_cancelled()));
    }

    #[tokio::test]
    async fn a_freed_upload_slot_is_for_waiting_peers() {
        let (torrent, now) = (torrent(), Instant::now());
        let seats = callers(&torrent, (0..10).map(|n| ip(0, n)), now);
        let wants = |n: u8| {
            let address = SocketAddr::new(ip(0, n), 1);
            let peer = torrent.join(&seats[usize::from(n)], address, PeerId::new([n + 2; 20])).unwrap();
            torrent.peer_wants(&peer, true);
            peer
        };
        let peers: Vec<_> = (0..9).map(wants).collect();
        let unchoked = |peer: &Peer| peer.unchoked.load(Relaxed);
        assert_eq!(peers.iter().filter(|peer| unchoked(peer)).count(), 8);
        torrent.leave(&peers[0]);
        assert!(!unchoked(&wants(9)), "the ninth waits");
        torrent.peer_wants(&peers[8], true);
        assert!(!unchoked(&peers[8]), "until the next decision");
        torrent.choke();
        assert!(unchoked(&peers[8]));
    }

    #[tokio::test]
    async fn a_peer_with_wrong_bytes_goes_once_another_may_have_metadata_or_sends_missing_pieces() {
        for is_learnt in [true, false] {
            let torrent = if is_learnt { torrent() } else { crate::torrent::pieces::tests::torrent(None) };
            let seats = callers(&torrent, (0..2).map(|n| ip(0, n)), Instant::now());
            let join = |n: u8, id| torrent.join(&seats[usize::from(n)], SocketAddr::new(ip(0, n), 1), id);
            let [liar, other] = [0, 1].map(|n| {
                let peer = join(n, PeerId::new([n + 2; 20])).unwrap();
                torrent.peer_has(&peer, [0]);
                peer
            });
            let blamed = || {
                torrent.state.lock().blame(liar.address, Some(0));
                seats[0].stop.is_cancelled()
            };
            if !is_learnt {
                assert!(!blamed(), "the other chokes");
                other.chokes.store(false, Relaxed);
                other.snubs.store(true, Relaxed);
                assert!(!blamed(), "and sends no requested block");
                other.snubs.store(false, Relaxed);
            }
            assert!(blamed() && !seats[1].stop.is_cancelled());
            torrent.leave(&liar);
            assert_eq!(join(0, PeerId::new([4; 20])).err(), Some(LIED));
            torrent.leave(&other);
            assert!(join(0, PeerId::new([4; 20])).is_ok(), "it is the only source");
        }
    }

    #[tokio::test]
    async fn a_crowded_network_takes_no_seat_from_outgoing_connections() {
        let (torrent, now) = (torrent(), Instant::now());
        let calls = own(&torrent, [ip(1, 1); 8].into_iter(), now);
        let incoming = callers(&torrent, (0..100).map(|n| ip(0, n)), now);
        assert_eq!((calls.len(), incoming.len()), (8, 45));
        assert!(seat(&torrent, ip(1, 1), false, now + OLD).is_err());
        assert!(calls.iter().all(|seat| !seat.stop.is_cancelled()));
    }

    #[tokio::test]
    async fn a_crowd_replaces_no_active_connections_of_other_sites() {
        let (torrent, now) = (torrent(), Instant::now());
        let seats = callers(&torrent, (0..45).map(|n| ip(0, n)), now);
        for (n, seat) in (0..).zip(&seats) {
            let peer = torrent.join(seat, SocketAddr::new(ip(0, n), 1), PeerId::new([n + 2; 20])).unwrap();
            peer.up.add(1000);
            peer.up.tick(Duration::from_secs(1));
        }
        let of_site = |n: u8| IpAddr::from([10, 9, 0, n]);
        let crowd = callers(&torrent, (0..20).map(of_site), now + YOUNG);
        assert_eq!(crowd.len(), 1, "one newcomer of a new site");
        assert_eq!(seats.iter().filter(|seat| seat.stop.is_cancelled()).count(), 1);
    }

    #[tokio::test]
    async fn the_slowest_of_the_largest_site_makes_room() {
        let (torrent, begin) = (torrent(), Instant::now());
        let site = |n: u8| IpAddr::from([10, 0, n / 3, n]);
        let mut seats = callers(&torrent, (0..45).map(site), begin);
        // An idle one, the fastest, and the others by falling rate.
        for (n, seat) in seats.iter().enumerate().skip(1) {
            let id = PeerId::new([n as u8 + 2; 20]);
            let peer = torrent.join(seat, SocketAddr::new(site(n as u8), 1), id).unwrap();
            peer.up.add(if n == 1 { 1 << 20 } else { 100 - n as u64 });
            peer.up.tick(Duration::from_secs(1));
        }
        let other = |net, n, now| seat(&torrent, ip(net, n), false, now);
        let newcomer = other(2, 0, begin + YOUNGEST).expect("it is alone; the idle one is among three");
        assert!(seats[0].stop.is_cancelled());
        assert!(other(2, 1, begin + YOUNGEST).is_err(), "the others are young, and not idle");
        for n in [44, 41, 38, 35, 32] {
            seats.push(other(3, n, begin + YOUNG).unwrap());
            assert!(seats[usize::from(n)].stop.is_cancelled(), "{n}");
        }
        assert!(!newcomer.stop.is_cancelled());
    }
}
