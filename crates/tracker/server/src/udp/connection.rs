//! Connection ids: a proof that a client receives at the address that its packets come from. Nothing is
//! stored.

use std::{
    fmt,
    net::IpAddr,
    sync::{PoisonError, RwLock},
};

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher13;
use swarmkeep::{Random, Timestamp};
use swarmkeep_tracker_protocol::udp::ConnectionId;

/// The secret of connection ids. Trackers with the same key recognise each other's ids, and a tracker with
/// the key of its last run recognises the ids of that run.
#[derive(Clone)]
pub struct ConnectionKey([u8; 32]);

impl ConnectionKey {
    /// Derives a key from a secret, which must not be easier to guess than 128 random bits.
    pub fn new(secret: &[u8]) -> Self {
        let label = b"swarmkeep connection ids\n";
        Self(Sha256::new_with_prefix(label).chain_update(secret).finalize().into())
    }

    /// Draws a key.
    pub fn draw(rng: &mut dyn Random) -> Self {
        let words = [(); 4].map(|()| rng.next_u64().to_le_bytes());
        Self::new(words.as_flattened())
    }

    fn of_hour(&self, hour: u64) -> SipHasher13 {
        let digest = Sha256::new_with_prefix(self.0).chain_update(hour.to_le_bytes()).finalize();
        let [k0, k1, ..] = *digest.as_chunks().0 else { unreachable!("32 bytes are four words") };
        SipHasher13::new_with_keys(u64::from_le_bytes(k0), u64::from_le_bytes(k1))
    }
}

impl fmt::Debug for ConnectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionKey(secret)")
    }
}

/// Issues and recognises connection ids (BEP 15).
///
/// An id is a keyed hash (SipHash-1-3) of the client's IP address and of the time at which it was issued, in
/// steps of 8 seconds. The lowest byte of that time is in the id, so that recognising an id takes one hash.
/// Without the key, the other 56 bits can only be guessed. Each hour has its own key, derived from the
/// [`ConnectionKey`]. The time comes from the machine's clock, on which trackers with one key agree.
pub struct ConnectionIds {
    key: ConnectionKey,
    lifetime_secs: u64,
    latest: RwLock<(Clocks, Hours)>,
}

/// By how many seconds the machine's clock is ahead of the times that the caller gives.
#[derive(Clone, Copy)]
struct Clocks {
    ahead: i64,
    /// The least and the most of the same since the latest jump.
    since: (i64, i64),
    /// The least between the jumps before that, and until when ids by that clock are valid. Those by a clock
    /// that was at most 8 seconds ahead of it are valid too.
    before: [(i64, Timestamp); 4],
}

/// The keys of an hour, of the hour before it and of the hour after it.
#[derive(Clone, Copy)]
struct Hours {
    hour: u64,
    keys: [SipHasher13; 3],
}

impl Hours {
    fn around(hour: u64, key: &ConnectionKey) -> Self {
        Self { hour, keys: [hour.wrapping_sub(1), hour, hour + 1].map(|hour| key.of_hour(hour)) }
    }

    /// The key of the hour of `tick`, which is at most an hour away.
    fn key_at(&self, tick: u64) -> &SipHasher13 {
        &self.keys[(hour(tick) + 1 - self.hour) as usize]
    }
}

impl ConnectionIds {
    /// How long an id is valid in seconds, as BEP 15 requires. The real time is at most 8 seconds longer. An
    /// id of a tracker with a clock at most 8 seconds ahead is valid too.
    pub const LIFETIME_SECS: u64 = 120;
    /// The longest lifetime in seconds, of the bits of the time that are in an id.
    pub const LONGEST_LIFETIME_SECS: u64 = 960;

    pub(crate) const TICK_SECS: u64 = 8;
    const TICKS_AHEAD: i8 = 1;
    const TICKS_PER_HOUR: u64 = 3600 / Self::TICK_SECS;

    /// The ids of a key.
    pub fn new(key: ConnectionKey) -> Self {
        let clocks = Clocks { ahead: 0, since: (0, 0), before: [(0, Timestamp::from_secs(0)); 4] };
        let latest = RwLock::new((clocks, Hours::around(0, &key)));
        Self { key, lifetime_secs: Self::LIFETIME_SECS, latest }
    }

    /// With another lifetime in seconds. A value outside of the limits is replaced by the nearest.
    pub fn lifetime(self, secs: u64) -> Self {
        Self { lifetime_secs: secs.clamp(Self::LIFETIME_SECS, Self::LONGEST_LIFETIME_SECS), ..self }
    }

    /// The ids at this moment. Take it anew for each batch of packets.
    pub fn at(&self, now: Timestamp) -> IdsAt {
        let (clocks, mut hours) = *self.latest.read().unwrap_or_else(PoisonError::into_inner);
        let at = tick(now, clocks.ahead);
        if hours.hour != hour(at) {
            hours = Hours::around(hour(at), &self.key);
            self.latest.write().unwrap_or_else(PoisonError::into_inner).1 = hours;
        }
        IdsAt {
            key: self.key.clone(),
            before: clocks.before,
            hours,
            now,
            tick: at,
            ticks: self.lifetime_secs.div_ceil(Self::TICK_SECS) as i8,
        }
    }

    /// Sets by how many seconds the machine's clock is ahead of the times that [`at`](Self::at) is given. For
    /// the lifetime of an id after each jump of more than 8 seconds, ids by the clock as it was before are
    /// valid too. Smaller steps add up to a jump. Returns whether there was one.
    pub fn follow(&self, ahead: i64, now: Timestamp) -> bool {
        let clocks = &mut self.latest.write().unwrap_or_else(PoisonError::into_inner).0;
        let (least, most) = clocks.since;
        let since = (least.min(ahead), most.max(ahead));
        let is_jump = since.0.abs_diff(since.1) > Self::TICK_SECS;
        if is_jump {
            clocks.before.rotate_right(1);
            clocks.before[0] = (least, now.saturating_add(self.lifetime_secs));
        }
        clocks.since = if is_jump { (ahead, ahead) } else { since };
        clocks.ahead = ahead;
        is_jump
    }
}

impl fmt::Debug for ConnectionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionIds(secret)")
    }
}

/// [`ConnectionIds`] at one moment.
#[derive(Clone)]
pub struct IdsAt {
    key: ConnectionKey,
    /// See [`Clocks`].
    before: [(i64, Timestamp); 4],
    hours: Hours,
    now: Timestamp,
    tick: u64,
    /// The lifetime of an id.
    ticks: i8,
}

impl IdsAt {
    /// The id for a client at `ip`.
    pub fn issue(&self, ip: IpAddr) -> ConnectionId {
        self.issued(ip, self.tick)
    }

    /// The time in steps of 8 seconds, and the key of its hour and of the next, by whether the hour is odd.
    pub(crate) fn keys(&self) -> swarmkeep_xdp::ConnectKeys {
        let [_, now, next] = self.hours.keys.map(|key| <[u64; 2]>::from(key.keys()));
        let keys = if self.hours.hour.is_multiple_of(2) { [now, next] } else { [next, now] };
        swarmkeep_xdp::ConnectKeys { tick: self.tick, keys }
    }

    /// Whether `id` was issued to `ip` within its lifetime.
    pub fn recognise(&self, id: ConnectionId, ip: IpAddr) -> bool {
        let is_by_one_before = |&(ahead, until): &(i64, Timestamp)| {
            let issued = |tick| self::id(&self.key.of_hour(hour(tick)), ip, tick);
            self.now <= until
                && self.issued_at(id, tick(self.now, ahead)).is_some_and(|tick| issued(tick) == id)
        };
        self.issued_at(id, self.tick).is_some_and(|tick| self.issued(ip, tick) == id)
            || self.before.iter().any(is_by_one_before)
    }

    fn issued(&self, ip: IpAddr, tick: u64) -> ConnectionId {
        id(self.hours.key_at(tick), ip, tick)
    }

    /// When `id` was issued, unless that is longer ago than its lifetime.
    fn issued_at(&self, id: ConnectionId, now: u64) -> Option<u64> {
        let age = (now as u8).wrapping_sub(id.0 as u8).cast_signed();
        let is_valid = (-ConnectionIds::TICKS_AHEAD..=self.ticks).contains(&age);
        now.checked_add_signed(-i64::from(age)).filter(|_| is_valid)
    }
}

impl fmt::Debug for IdsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdsAt(secret)")
    }
}

/// The time by a clock that is ahead, in steps of 8 seconds.
const fn tick(now: Timestamp, ahead: i64) -> u64 {
    now.as_secs().saturating_add_signed(ahead) / ConnectionIds::TICK_SECS
}

const fn hour(tick: u64) -> u64 {
    tick / ConnectionIds::TICKS_PER_HOUR
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

    fn ids(secret: &str) -> ConnectionIds {
        ConnectionIds::new(ConnectionKey::new(secret.as_bytes()))
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn an_id_is_good_for_two_minutes_or_up_to_16_and_not_for_eight_seconds_more() {
        for (given, kept) in [(0, 120), (120, 120), (300, 304), (960, 960), (u64::MAX, 960)] {
            for start in START.as_secs()..START.as_secs() + 3700 {
                let ids = ids("one").lifetime(given);
                let id = ids.at(at(start)).issue(HERE);
                let is_good = |age: u64| ids.at(at(start + age)).recognise(id, HERE);
                assert!([0, 1, 60, kept - 1, kept].into_iter().all(is_good), "{given} {start}");
                let later = [kept + 8, kept + 9, 2040, 2047, 2048, 2049, 3600, 4096, 1 << 32];
                assert!(!later.into_iter().any(is_good), "{given} {start}");
            }
        }
    }

    #[test]
    fn an_id_is_good_for_its_address_only() {
        let ids = ids("one").at(START);
        let id = ids.issue(HERE);
        for other in ["192.0.2.2", "::1", "2001:db8::1"] {
            assert!(!ids.recognise(id, other.parse().unwrap()));
        }
        assert!(ids.recognise(id, "::ffff:192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn an_id_from_far_in_the_future_or_under_another_key_is_forged() {
        let now = START.as_secs();
        let ours = ids("one");
        assert!(!ours.at(at(now)).recognise(ours.at(at(now + 16)).issue(HERE), HERE));
        assert!(!ours.at(at(now)).recognise(ids("two").at(at(now)).issue(HERE), HERE));
        assert!(!ours.at(at(0)).recognise(ConnectionId(0), HERE));
        let ids = ours.at(at(now));
        for bit in 0..64 {
            let ConnectionId(id) = ids.issue(HERE);
            assert!(!ids.recognise(ConnectionId(id ^ 1 << bit), HERE), "bit {bit}");
        }
    }

    #[test]
    fn trackers_with_one_key_recognise_each_others_ids_with_clocks_that_differ_a_little() {
        let hour = START.as_secs().next_multiple_of(3600);
        for now in hour - 20..hour + 20 {
            let issued = ids("one").at(at(now)).issue(HERE);
            for other in now - 8..=now + 120 {
                assert!(ids("one").at(at(other)).recognise(issued, HERE), "{now} and {other}");
            }
        }
    }

    #[test]
    fn each_hour_has_a_key_of_its_own() {
        let hour = START.as_secs().next_multiple_of(3600);
        let ids = ids("one");
        let [before, after] = [hour - 1, hour].map(|now| ids.at(at(now)).hours.keys.map(|key| key.keys()));
        assert_eq!(before[1..], after[..2]);
        assert!(before[0] != before[1] && before[1] != before[2] && before[0] != before[2]);
    }

    #[test]
    fn ids_follow_a_clock_that_jumps_and_those_of_both_clocks_are_good_for_two_minutes() {
        for jump in [9, 600, -600, 3600, -3600, 86_400 * 365, -1_000_000_000] {
            let (ours, neighbours, now) = (ids("one"), ids("one"), START.as_secs());
            let theirs = |now: u64| neighbours.at(at(now.checked_add_signed(jump).unwrap()));
            let before = ours.at(START).issue(HERE);
            assert!(ours.follow(jump, START), "{jump}: more than 8 seconds are a jump");
            assert_eq!(ours.at(START).keys().tick, theirs(now).keys().tick, "the program issues them too");
            for age in [0, 1, 120, 121, 7300] {
                let ids = ours.at(at(now + age));
                assert!(ids.recognise(theirs(now + age).issue(HERE), HERE), "{jump}: their id after {age}");
                assert!(theirs(now + age).recognise(ids.issue(HERE), HERE), "{jump}: our id after {age}");
                assert_eq!(ids.recognise(before, HERE), age <= 120, "{jump}: an id of before after {age}");
                // As with a clock that is a little slow.
                assert!(!ours.follow(jump + 2, at(now + age)), "{jump}: 2 seconds are no jump");
            }
            for jump in [-jump, 3 * jump] {
                ours.follow(jump, START);
                assert!(ours.at(START).recognise(before, HERE), "{jump}: more jumps");
            }
        }
        for steps in [[-5, -10], [8, -8]] {
            let ids = ids("one");
            let mut issued = vec![ids.at(START).issue(HERE)];
            for ahead in steps {
                ids.follow(ahead, START);
                assert!(issued.iter().all(|&id| ids.at(START).recognise(id, HERE)), "{steps:?} add up");
                issued.push(ids.at(START).issue(HERE));
            }
        }
    }

    #[test]
    fn drawn_keys_differ() {
        let mut rng = SplitMix64::new(1);
        let [one, two] = [(); 2].map(|()| ConnectionIds::new(ConnectionKey::draw(&mut rng)).at(START));
        assert!(one.issue(HERE) != two.issue(HERE));
    }
}
