//! Connection ids: a proof that a client receives at the address that its packets come from. Nothing is
//! stored.

use std::{
    fmt,
    net::IpAddr,
    sync::{PoisonError, RwLock},
};

use siphasher::sip::SipHasher13;
use swarmkeep::{Random, Timestamp};
use swarmkeep_tracker_protocol::udp::ConnectionId;

/// Issues and recognises connection ids (BEP 15).
///
/// An id is a keyed hash (SipHash-1-3) of the client's IP address and of the time at which it was issued, in
/// steps of 8 seconds. The lowest byte of that time is in the id, so that recognising an id takes one hash.
/// Without the key, the other 56 bits can only be guessed. Each hour has its own random key.
pub struct ConnectionIds {
    keys: RwLock<Keys>,
}

#[derive(Clone, Copy)]
struct Keys {
    hour: u64,
    current: SipHasher13,
    previous: SipHasher13,
}

impl ConnectionIds {
    /// How long an id is valid in seconds, as BEP 15 requires. The real time is at most 8 seconds longer.
    pub const LIFETIME_SECS: u64 = 120;

    const TICK_SECS: u64 = 8;
    const LIFETIME_TICKS: u8 = (Self::LIFETIME_SECS / Self::TICK_SECS) as u8;
    const TICKS_PER_HOUR: u64 = 3600 / Self::TICK_SECS;

    /// Draws the first key.
    pub fn new(now: Timestamp, rng: &mut dyn Random) -> Self {
        let (current, previous) = (draw(rng), draw(rng));
        Self { keys: RwLock::new(Keys { hour: hour(tick(now)), current, previous }) }
    }

    /// The ids at this moment. Take it anew for each batch of packets.
    pub fn at(&self, now: Timestamp, rng: &mut dyn Random) -> IdsAt {
        let now = tick(now);
        let keys = *self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let keys = match hour(now) {
            hour if hour == keys.hour => keys,
            // Another thread has looked at the clock later and come here earlier.
            hour if hour + 1 == keys.hour => Keys { hour, current: keys.previous, previous: keys.previous },
            hour => self.turn(hour, rng),
        };
        IdsAt { keys, now }
    }

    /// Goes on to the keys of an hour. A clock that was set makes all ids stale, and that is all.
    #[cold]
    fn turn(&self, hour: u64, rng: &mut dyn Random) -> Keys {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.hour != hour {
            let previous = if keys.hour + 1 == hour { keys.current } else { draw(rng) };
            *keys = Keys { hour, current: draw(rng), previous };
        }
        *keys
    }
}

impl fmt::Debug for ConnectionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionIds(secret)")
    }
}

/// [`ConnectionIds`] at one moment.
#[derive(Clone, Copy)]
pub struct IdsAt {
    keys: Keys,
    now: u64,
}

impl IdsAt {
    /// The id for a client at `ip`.
    pub fn issue(&self, ip: IpAddr) -> ConnectionId {
        id(&self.keys.current, ip, self.now)
    }

    /// Whether `id` was issued to `ip` within its lifetime.
    pub fn recognise(&self, id: ConnectionId, ip: IpAddr) -> bool {
        let age = (self.now as u8).wrapping_sub(id.0 as u8);
        age <= ConnectionIds::LIFETIME_TICKS
            && self.now.checked_sub(age.into()).is_some_and(|issued| {
                let keys = &self.keys;
                let key = if hour(issued) == keys.hour { &keys.current } else { &keys.previous };
                self::id(key, ip, issued) == id
            })
    }
}

impl fmt::Debug for IdsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdsAt(secret)")
    }
}

fn tick(now: Timestamp) -> u64 {
    now.as_secs() / ConnectionIds::TICK_SECS
}

const fn hour(tick: u64) -> u64 {
    tick / ConnectionIds::TICKS_PER_HOUR
}

fn draw(rng: &mut dyn Random) -> SipHasher13 {
    SipHasher13::new_with_keys(rng.next_u64(), rng.next_u64())
}

fn id(key: &SipHasher13, ip: IpAddr, tick: u64) -> ConnectionId {
    let hash = match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes[4..].copy_from_slice(&tick.to_le_bytes());
            key.hash(&bytes)
        }
        IpAddr::V6(ip) => {
            let mut bytes = [0; 24];
            bytes[..16].copy_from_slice(&ip.octets());
            bytes[16..].copy_from_slice(&tick.to_le_bytes());
            key.hash(&bytes)
        }
    };
    ConnectionId(hash & !0xff | tick & 0xff)
}

#[cfg(test)]
mod tests {
    use swarmkeep::SplitMix64;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// Ids, and the randomness that their keys come from.
    struct Ids(ConnectionIds, SplitMix64);

    impl Ids {
        fn new(seed: u64) -> Self {
            let mut rng = SplitMix64::new(seed);
            Self(ConnectionIds::new(START, &mut rng), rng)
        }

        fn at(&mut self, secs: u64) -> IdsAt {
            self.0.at(Timestamp::from_secs(secs), &mut self.1)
        }
    }

    #[test]
    fn an_id_is_good_for_two_minutes_and_not_for_eight_seconds_more() {
        for start in START.as_secs()..START.as_secs() + 3700 {
            let mut ids = Ids::new(7);
            let id = ids.at(start).issue(HERE);
            for age in [0, 1, 60, 119, 120] {
                assert!(ids.at(start + age).recognise(id, HERE), "{start} + {age}");
            }
            for age in [128, 129, 2047, 2048, 2049, 3600, 4096, 1 << 32] {
                assert!(!ids.at(start + age).recognise(id, HERE), "{start} + {age}");
            }
        }
    }

    #[test]
    fn an_id_is_good_for_its_address_only() {
        let ids = Ids::new(7).at(START.as_secs());
        let id = ids.issue(HERE);
        for other in ["192.0.2.2", "::1", "2001:db8::1"] {
            assert!(!ids.recognise(id, other.parse().unwrap()));
        }
        assert!(ids.recognise(id, "::ffff:192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn an_id_from_the_future_or_under_another_key_is_forged() {
        let now = START.as_secs();
        let mut ids = Ids::new(7);
        let later = ids.at(now + 8).issue(HERE);
        assert!(!ids.at(now).recognise(later, HERE));
        assert!(!ids.at(now).recognise(Ids::new(8).at(now).issue(HERE), HERE));
        assert!(!ids.at(0).recognise(ConnectionId(0), HERE));
        let ids = ids.at(now);
        for bit in 0..64 {
            let ConnectionId(id) = ids.issue(HERE);
            assert!(!ids.recognise(ConnectionId(id ^ 1 << bit), HERE), "bit {bit}");
        }
    }

    #[test]
    fn each_hour_has_a_key_of_its_own() {
        let hour = START.as_secs().next_multiple_of(3600);
        let mut ids = Ids::new(7);
        let before = ids.at(hour - 1).keys;
        let after = ids.at(hour).keys;
        assert_eq!(after.previous.keys(), before.current.keys());
        assert_ne!(after.current.keys(), before.current.keys());
        let long_after = ids.at(hour + 7200).keys;
        assert_ne!(long_after.previous.keys(), after.current.keys());
    }

    #[test]
    fn who_is_late_at_the_turn_leaves_the_keys_alone() {
        let hour = START.as_secs().next_multiple_of(3600);
        let mut ids = Ids::new(7);
        let before = ids.at(hour - 1).issue(HERE);
        ids.at(hour);
        let late = ids.at(hour - 1);
        assert!(late.recognise(before, HERE));
        assert!(ids.at(hour).recognise(late.issue(HERE), HERE));
        assert!(ids.at(hour).recognise(before, HERE));
    }

    #[test]
    fn a_clock_that_is_set_back_lets_clients_connect_at_once() {
        let mut ids = Ids::new(7);
        for now in [START.as_secs(), START.as_secs() - 3600, 0, START.as_secs()] {
            let ids = ids.at(now);
            assert!(ids.recognise(ids.issue(HERE), HERE));
        }
    }
}
