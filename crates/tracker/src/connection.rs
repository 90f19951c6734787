//! Connection ids: proof that a client receives at the address its packets come from, with nothing stored.

use std::{fmt, hash::Hasher, net::IpAddr};

use siphasher::sip::SipHasher13;
use swarmkeep::Timestamp;
use swarmkeep_tracker_protocol::udp::ConnectionId;

/// Issues and recognises connection ids (BEP 15).
///
/// An id is a keyed hash (SipHash-1-3) of the client's IP address and the time, to 8 seconds, at which it was issued; the
/// lowest byte of that time stands in the id itself, so that recognising it takes one hash. Whoever does not know the key
/// can only guess the other 56 bits.
#[derive(Clone)]
pub struct ConnectionIds {
    hasher: SipHasher13,
}

impl ConnectionIds {
    /// For how many seconds at least an id is good, as BEP 15 has it; never for 8 more.
    pub const LIFETIME_SECS: u64 = 120;

    const TICK_SECS: u64 = 8;
    const LIFETIME_TICKS: u8 = (Self::LIFETIME_SECS / Self::TICK_SECS) as u8;

    /// Ids under a key that nobody else knows: draw it at start.
    pub fn new(key: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&key) }
    }

    /// The id for a client at `ip`.
    pub fn issue(&self, ip: IpAddr, now: Timestamp) -> ConnectionId {
        self.at(ip, now.as_secs() / Self::TICK_SECS)
    }

    /// Whether `id` was issued to `ip` within its lifetime.
    pub fn recognise(&self, id: ConnectionId, ip: IpAddr, now: Timestamp) -> bool {
        let tick = now.as_secs() / Self::TICK_SECS;
        let age = (tick as u8).wrapping_sub(id.0 as u8);
        age <= Self::LIFETIME_TICKS
            && tick.checked_sub(age.into()).is_some_and(|issued| self.at(ip, issued) == id)
    }

    fn at(&self, ip: IpAddr, tick: u64) -> ConnectionId {
        let mut hasher = self.hasher;
        match ip.to_canonical() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write_u64(tick);
        ConnectionId(hasher.finish() & !0xff | tick & 0xff)
    }
}

impl fmt::Debug for ConnectionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionIds(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn ids() -> ConnectionIds {
        ConnectionIds::new([7; 16])
    }

    #[test]
    fn an_id_is_good_for_two_minutes_and_not_for_eight_seconds_more() {
        for start in 1_800_000_000..1_800_002_100 {
            let id = ids().issue(HERE, Timestamp::from_secs(start));
            for age in [0, 1, 60, 119, 120] {
                assert!(ids().recognise(id, HERE, Timestamp::from_secs(start + age)), "{start} + {age}");
            }
            for age in [128, 129, 2047, 2048, 2049, 4096, 1 << 32] {
                assert!(!ids().recognise(id, HERE, Timestamp::from_secs(start + age)), "{start} + {age}");
            }
        }
    }

    #[test]
    fn an_id_is_good_for_its_address_only() {
        let now = Timestamp::from_secs(1_800_000_000);
        let id = ids().issue(HERE, now);
        for other in ["192.0.2.2", "::1", "2001:db8::1"] {
            assert!(!ids().recognise(id, other.parse().unwrap(), now));
        }
        assert!(ids().recognise(id, "::ffff:192.0.2.1".parse().unwrap(), now));
    }

    #[test]
    fn an_id_from_the_future_or_under_another_key_is_forged() {
        let now = Timestamp::from_secs(1_800_000_000);
        assert!(!ids().recognise(ids().issue(HERE, now.saturating_add(8)), HERE, now));
        assert!(!ids().recognise(ConnectionIds::new([8; 16]).issue(HERE, now), HERE, now));
        assert!(!ids().recognise(ConnectionId(0), HERE, Timestamp::from_secs(0)));
        for bit in 0..64 {
            let ConnectionId(id) = ids().issue(HERE, now);
            assert!(!ids().recognise(ConnectionId(id ^ 1 << bit), HERE, now), "bit {bit}");
        }
    }
}
