//! Peers that could be called.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

/// Addresses that trackers and peers have told, and when each is to be called.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    known: HashMap<SocketAddr, Candidate>,
}

#[derive(Debug)]
struct Candidate {
    /// Whether it is being called, or is connected.
    taken: bool,
    /// How often in a row it was not reached.
    failures: u32,
    next: Instant,
}

impl Candidates {
    /// Of more than that, those that come later are forgotten. Trackers answer with some ten, peers with 50 a
    /// minute.
    const MOST: usize = 1000;
    /// Of one address, and of one network of IPv6, those that come later are forgotten.
    const OF_ONE: usize = 8;
    /// Who is not reached so often is forgotten.
    const FAILURES: u32 = 5;
    /// Before the second call; before each further one twice as long.
    const PATIENCE: Duration = Duration::from_secs(15);

    pub(crate) fn add(&mut self, address: SocketAddr, now: Instant) {
        // A v4 address may come as v6, and is the same.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if address.port() != 0
            && !address.ip().is_unspecified()
            && !address.ip().is_multicast()
            && self.known.len() < Self::MOST
            && self.known.keys().filter(|other| network(other.ip()) == network(address.ip())).count()
                < Self::OF_ONE
        {
            self.known.entry(address).or_insert(Candidate { taken: false, failures: 0, next: now });
        }
    }

    /// Who is to be called now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<SocketAddr> {
        let due = self.known.iter_mut().filter(|(_, candidate)| !candidate.taken && candidate.next <= now);
        let (address, candidate) = due.min_by_key(|(_, candidate)| candidate.next)?;
        candidate.taken = true;
        Some(*address)
    }

    /// A connection to it has ended, which had been of `use` or not.
    pub(crate) fn ended(&mut self, address: SocketAddr, of_use: bool, now: Instant) {
        let Some(candidate) = self.known.get_mut(&address) else { return };
        candidate.taken = false;
        candidate.failures = if of_use { 1 } else { candidate.failures + 1 };
        candidate.next = now + Self::PATIENCE * 2_u32.pow(candidate.failures - 1);
        if candidate.failures >= Self::FAILURES {
            self.known.remove(&address);
        }
    }

    /// It is one's own address, or that of somebody who is not wanted.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        self.known.remove(&address);
    }
}

/// What one subscriber has: an address, or a network of IPv6.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_reached_is_called_later_each_time_and_then_no_more() {
        let (mut candidates, begin) = (Candidates::default(), Instant::now());
        let address = SocketAddr::from(([127, 0, 0, 1], 6881));
        candidates.add(address, begin);
        let mut now = begin;
        let mut waited = Vec::new();
        for _ in 1..Candidates::FAILURES {
            assert_eq!((candidates.take(now), candidates.take(now)), (Some(address), None));
            candidates.ended(address, false, now);
            let before = now;
            while candidates.known[&address].next > now {
                now += Duration::from_secs(1);
            }
            waited.push((now - before).as_secs());
        }
        assert_eq!(waited, [15, 30, 60, 120]);
        candidates.take(now);
        candidates.ended(address, false, now);
        assert_eq!(candidates.take(now + Duration::from_secs(10_000)), None);
    }

    #[test]
    fn nobody_makes_them_more_than_there_may_be() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        for n in 0..10_000_u32 {
            candidates.add(SocketAddr::from((n.to_be_bytes(), 6881)), now);
        }
        assert_eq!(candidates.known.len(), Candidates::MOST);
    }

    #[test]
    fn nobody_is_all_of_them() {
        let (mut candidates, now) = (Candidates::default(), Instant::now());
        for n in 1..1000 {
            candidates.add(SocketAddr::from(([192, 0, 2, 1], n)), now);
            candidates.add(SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 6881)), now);
        }
        assert_eq!(candidates.known.len(), 2 * Candidates::OF_ONE);
    }
}
