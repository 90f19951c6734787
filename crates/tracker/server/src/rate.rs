//! A limit on the requests per address: a token bucket for each, in memory that never grows.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use siphasher::sip::SipHasher13;
use swarmkeep::HashKey;

use crate::block::Block;

/// Limits the requests per second of an address, with a burst after a pause. An address is an IPv4 address or
/// a 64-bit network of IPv6. The networks of 56 and of 48 bits around it have limits too, 5 and 25 times as
/// high: a client often has all of them.
///
/// Each address has a bucket that holds `burst` tokens and gets `rate` new tokens per second. A request takes
/// one token, or several for more work, and is refused if there are fewer. A refused request costs nothing:
/// asking too often does not make the wait longer. In any t seconds, at most `burst` + `rate` × t tokens of
/// an address are taken, exactly, unless its bucket is [forgotten](#memory). A request over IPv6 takes tokens
/// of each of three buckets, or of none.
///
/// # Memory
/// The limiter keeps the buckets of the addresses with most requests lately, 8 bytes each. No sequence of
/// requests makes the memory grow. A keyed hash (SipHash-1-3) assigns an address to a set of eight buckets.
/// If other addresses use all eight, a new address replaces the fullest bucket: a full bucket contains no
/// more information than none, and a bucket that has just been emptied stays while another is fuller. So a
/// flood of made-up addresses with one request each displaces its own buckets. A displaced address starts
/// again with a full bucket: a limiter that is too small admits more, and refuses no request wrongly.
///
/// A bucket contains only 24 bits of the hash of its address. An address shares the bucket of another address
/// in its set with a probability of at most 7 / 2^24 = 4 × 10^-7, and is then refused if the other asks too
/// often. A client that knows neither the key nor that it has happened cannot cause it.
///
/// # Time
/// The caller gives the time in milliseconds since any moment, from a clock that is never set. Threads may
/// differ by some milliseconds: a thread that is late finds fewer tokens. After 2^38 / `rate` milliseconds (3
/// days at 1,000 per second), the next request forgets full buckets, before their times could be mistaken for
/// later ones. This takes up to 2 ms per million buckets, and other requests wait for it.
///
/// # Other rates
/// Other rates need another limiter, in which all buckets are full. Replace this one by it.
///
/// # Cost
/// One hash and one cache line, three each over IPv6; no lock and no allocation.
pub struct RateLimiter {
    key: SipHasher13,
    /// [Shares](SHARES) per millisecond: the same number as tokens per second.
    rate: u64,
    /// Shares in a full bucket.
    burst: u64,
    sets: Box<[BucketSet]>,
    /// Milliseconds after which full buckets are forgotten.
    forget_after: u64,
    /// The time of the last such pass.
    forgot: AtomicU64,
    /// Held during such a pass.
    forgetting: Mutex<()>,
    of_a_tenth: OnceLock<Box<Self>>,
}

/// The shares of a token, so that each millisecond adds a whole number of them at any rate.
const SHARES: u64 = 1000;

/// The limit of a network of 56 bits in limits of 64 bits, and of 48 bits in limits of 56 bits.
const WIDER: u64 = 5;

/// The bits of the time in a bucket, counted in shares.
const CLOCK_BITS: u32 = 40;
/// The bits of the hash.
const TAG_BITS: u32 = u64::BITS - CLOCK_BITS;

/// A quarter of the range of the clock. No bucket needs longer to fill, and after this time full buckets are
/// forgotten.
const QUARTER: u64 = 1 << (CLOCK_BITS - 2);

impl RateLimiter {
    /// The highest rate in tokens per second.
    pub const MOST_RATE: u32 = 1_000_000;
    /// The most tokens in a bucket.
    pub const MOST_BURST: u32 = 100_000_000;

    /// A limiter for `rate` requests per second, from 1 to [`MOST_RATE`](Self::MOST_RATE), and `burst` at
    /// once, from 1 to [`MOST_BURST`](Self::MOST_BURST). A value outside is replaced by the nearest limit. It
    /// allocates space for `entries` addresses, or up to 7 more. `key` is a random secret that has no other
    /// use.
    pub fn new(key: HashKey, rate: u32, burst: u32, entries: usize) -> Self {
        let [first, second] = key.words();
        let burst = u64::from(burst.clamp(1, Self::MOST_BURST)) * SHARES;
        let (key, sets) =
            (SipHasher13::new_with_keys(first, second), entries.div_ceil(BucketSet::PLACES).max(1));
        Self::with(key, rate.clamp(1, Self::MOST_RATE).into(), burst, sets)
    }

    fn with(key: SipHasher13, rate: u64, burst: u64, sets: usize) -> Self {
        Self {
            key,
            rate,
            burst,
            sets: (0..sets).map(|_| BucketSet::default()).collect(),
            forget_after: QUARTER / rate,
            forgot: AtomicU64::new(0),
            forgetting: Mutex::new(()),
            of_a_tenth: OnceLock::new(),
        }
    }

    /// Returns whether a request from `ip` is admitted, and takes this number of tokens for it, or a full
    /// bucket if that is less.
    pub fn admit(&self, ip: IpAddr, now_millis: u64, tokens: u64) -> bool {
        if self.is_late(now_millis) {
            self.forget_full_buckets(now_millis);
        }
        let now = self.shares_at(now_millis);
        let shares = tokens.saturating_mul(SHARES).min(self.burst);
        match Block::of(ip) {
            Block::V4(bits) => self.take(self.find(&bits.to_be_bytes()), shares, now),
            Block::V6(bits) => {
                // Networks of different sizes differ in the number of hashed bytes.
                let bytes = bits.to_be_bytes();
                let buckets = [(8, shares), (7, shares / WIDER), (6, shares / WIDER / WIDER)]
                    .map(|(length, token)| (self.find(&bytes[..length]), token));
                // If another thread takes the last token of one, the tokens of the others are lost.
                buckets.iter().all(|((set, tag), token)| self.has(set, *tag, *token, now))
                    && buckets.into_iter().all(|(found, token)| self.take(found, token, now))
            }
        }
    }

    /// Whether a bucket has a token of `token` shares.
    fn has(&self, set: &BucketSet, tag: u64, token: u64, now: u64) -> bool {
        let (_, bucket) = set.bucket_of(tag, now);
        bucket.tag() != tag || bucket.missing(now) + token <= self.burst
    }

    /// Takes a token of `token` shares from a bucket, if it has one.
    fn take(&self, (set, tag): (&BucketSet, u64), token: u64, now: u64) -> bool {
        loop {
            let (place, bucket) = set.bucket_of(tag, now);
            let missing = if bucket.tag() == tag { bucket.missing(now) } else { 0 };
            if missing + token > self.burst {
                return false;
            }
            // If an unknown address comes to two threads at once, the second one tries again, unless it has
            // chosen another place at another time: then one more request is admitted, and the first place
            // counts from then on.
            if place.replace(bucket, Bucket::new(tag, now, missing + token)) {
                return true;
            }
        }
    }

    /// The limiter of a tenth of the rate and the burst, at least 1 each, with buckets of its own.
    pub fn of_a_tenth(&self) -> &Self {
        self.of_a_tenth.get_or_init(|| {
            let (rate, burst) = ((self.rate / 10).max(1), (self.burst / 10).max(SHARES));
            Box::new(Self::with(self.key, rate, burst, self.sets.len()))
        })
    }

    /// The memory of the buckets in bytes, which is constant.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// The set of the bucket of an address or network, and the tag of the bucket in it.
    fn find(&self, address: &[u8]) -> (&BucketSet, u64) {
        let hash = self.key.hash(address);
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        // From the other end of the hash, and never the tag of `NONE`.
        let tag = (hash & ((1 << TAG_BITS) - 1)).max(1);
        (&self.sets[set as usize], tag)
    }

    /// The time in shares. A bucket contains its lowest bits.
    fn shares_at(&self, millis: u64) -> u64 {
        millis.wrapping_mul(self.rate)
    }

    /// Whether full buckets were forgotten so long ago that their times will soon be ambiguous.
    fn is_late(&self, now_millis: u64) -> bool {
        // Synchronises with the store of `forgot`: the buckets before it are seen.
        now_millis.saturating_sub(self.forgot.load(Acquire)) >= self.forget_after
    }

    #[cold]
    fn forget_full_buckets(&self, now_millis: u64) {
        let _one_at_a_time = self.forgetting.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_late(now_millis) {
            return;
        }
        // A bucket that lost tokens in one quarter is full at the end of the next one, but its time is soon
        // ambiguous.
        let passed = (now_millis - self.forgot.load(Relaxed)).saturating_mul(self.rate);
        let all_are_full = passed >= 2 * QUARTER;
        let now = self.shares_at(now_millis);
        for place in self.sets.iter().flat_map(|set| &set.0) {
            let bucket = place.load();
            if bucket != Bucket::NONE && (all_are_full || bucket.missing(now) == 0) {
                // If another thread takes a token meanwhile, it is no longer full.
                place.replace(bucket, Bucket::NONE);
            }
        }
        self.forgot.store(now_millis, Release);
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, sets, .. } = self;
        let (burst, entries) = (burst / SHARES, sets.len() * BucketSet::PLACES);
        write!(f, "RateLimiter({rate} a second, {burst} at once, room for {entries} addresses)")
    }
}

/// The buckets among which an address has its own: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct BucketSet([BucketSlot; BucketSet::PLACES]);

const _: () = assert!(size_of::<BucketSet>() == 64);

impl BucketSet {
    const PLACES: usize = 8;

    /// The bucket with this tag; if there is none, the one that makes room for it.
    fn bucket_of(&self, tag: u64, now: u64) -> (&BucketSlot, Bucket) {
        let buckets = self.0.each_ref().map(BucketSlot::load);
        let mut chosen = 0;
        if let Some(place) = buckets.iter().position(|bucket| bucket.tag() == tag) {
            chosen = place;
        } else {
            let mut least = u64::MAX;
            for (place, bucket) in buckets.iter().enumerate() {
                let missing = bucket.missing(now);
                if missing < least {
                    (chosen, least) = (place, missing);
                }
            }
        }
        (&self.0[chosen], buckets[chosen])
    }
}

#[derive(Debug, Default)]
struct BucketSlot(AtomicU64);

impl BucketSlot {
    fn load(&self) -> Bucket {
        // A bucket is complete in itself: no other memory has to be seen with it.
        Bucket(self.0.load(Relaxed))
    }

    /// Replaces `old` by `new`, if it is still there.
    fn replace(&self, old: Bucket, new: Bucket) -> bool {
        self.0.compare_exchange(old.0, new.0, Relaxed, Relaxed).is_ok()
    }
}

/// The time at which the bucket will be full, in shares, and above it the tag of its address. The missing
/// shares are added until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket(u64);

impl Bucket {
    /// No address has a tag of 0.
    const NONE: Self = Self(0);

    /// A bucket from which `missing` shares are missing now.
    fn new(tag: u64, now: u64, missing: u64) -> Self {
        Self(tag << CLOCK_BITS | now.wrapping_add(missing) & ((1 << CLOCK_BITS) - 1))
    }

    fn tag(self) -> u64 {
        self.0 >> CLOCK_BITS
    }

    /// How many shares are missing now. The time at which it was or will be full is within half of the range
    /// of the clock.
    fn missing(self, now: u64) -> u64 {
        if self == Self::NONE {
            return 0;
        }
        let until_full = (self.0.wrapping_sub(now) << TAG_BITS).cast_signed() >> TAG_BITS;
        until_full.max(0).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        sync::atomic::AtomicUsize,
        thread,
    };

    use proptest::{collection::vec, prelude::*};
    use swarmkeep::{Random, SplitMix64};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn limiter(rate: u32, burst: u32, entries: usize) -> RateLimiter {
        RateLimiter::new(HashKey::from_bytes(*b"a secret for one"), rate, burst, entries)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// How many of `requests` at once are admitted.
    fn admitted(limiter: &RateLimiter, ip: IpAddr, now: u64, requests: usize) -> usize {
        (0..requests).filter(|_| limiter.admit(ip, now, 1)).count()
    }

    fn made_up(rng: &mut SplitMix64) -> IpAddr {
        let bits = rng.next_u64();
        match bits % 4 {
            0 => Ipv6Addr::from_bits(u128::from(bits) << 64).into(),
            _ => Ipv4Addr::from_bits((bits >> 32) as u32).into(),
        }
    }

    /// The expected behaviour for one address, in plain arithmetic: each millisecond adds thousandths of
    /// tokens.
    struct Model {
        rate: u64,
        burst: u64,
        thousandths: u64,
        at: u64,
    }

    impl Model {
        fn admit(&mut self, now: u64) -> bool {
            let come = (now - self.at).saturating_mul(self.rate);
            self.thousandths = self.thousandths.saturating_add(come).min(self.burst * 1000);
            self.at = now;
            let admitted = self.thousandths >= 1000;
            self.thousandths -= if admitted { 1000 } else { 0 };
            admitted
        }
    }

    proptest! {
        /// Most waits are as short as the time for a token, and some of any length up to more than the range
        /// of the clock of a bucket.
        #[test]
        fn one_address_alone_is_admitted_exactly_as_its_bucket_allows(
            (rate, burst) in (
                prop_oneof![1..10_u32, 1..2000_u32, 1..=RateLimiter::MOST_RATE],
                prop_oneof![1..10_u32, 1..=RateLimiter::MOST_BURST],
            ),
            (start, many) in (any::<u32>(), 1..20_usize),
            waits in vec(prop_oneof![8 => 0..3_u64, 8 => 0..300_u64, 1 => 0..(8 * QUARTER)], 1..300),
        ) {
            let limiter = limiter(rate, burst, 64);
            let (rate, burst) = (u64::from(rate), u64::from(burst));
            let mut model = Model { rate, burst, thousandths: burst * 1000, at: 0 };
            let mut now = u64::from(start);
            for wait in waits {
                now += if wait < 300 { wait } else { wait / rate };
                for _ in 0..many {
                    prop_assert_eq!(limiter.admit(HERE, now, 1), model.admit(now), "at {}", now);
                }
            }
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_so_is_an_ipv4_address_in_ipv6() {
        let limiter = limiter(1, 2, 64);
        for (one, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::ffff:0:0:2", "2001:db8:0:1::1"),
        ] {
            assert!(limiter.admit(ip(one), 0, 1) && limiter.admit(ip(same), 0, 1));
            assert!(!limiter.admit(ip(one), 0, 1) && !limiter.admit(ip(same), 0, 1));
            assert!(limiter.admit(ip(other), 0, 1));
        }
    }

    #[test]
    fn wider_networks_of_ipv6_have_a_few_times_the_limit_and_their_neighbours_their_own() {
        let limiter = limiter(10, 20, 65_536);
        let subnet = |n: u16| ip(&format!("2001:db8:0:{n:x}::1"));
        let all = |first: u16, count: u16, now| {
            (first..=first + (count - 1)).map(|n| admitted(&limiter, subnet(n), now, 3)).sum::<usize>()
        };
        assert_eq!(all(0, 256, 0), 5 * 20, "a network of 56 bits");
        assert_eq!(all(256, 65_280, 0), 20 * 20, "the rest of the network of 48 bits");
        assert_eq!(all(0, 65_535, 1000), 250, "its rate, in the first networks that ask");
        let neighbours = ["2001:db8:1::1", "2001:db7::1", "192.0.2.1"];
        neighbours
            .iter()
            .for_each(|other| assert_eq!(admitted(&limiter, ip(other), 1000, 100), 20, "{other}"));
        // A refused request costs nothing: the tokens of the time that has passed are there.
        assert_eq!(admitted(&limiter, subnet(65_535), 2000, 100), 20);
    }

    #[test]
    fn a_limiter_of_a_tenth_has_buckets_of_its_own() {
        let limiter = limiter(100, 25, 64);
        let tenth = limiter.of_a_tenth();
        assert_eq!([admitted(tenth, HERE, 0, 100), admitted(&limiter, HERE, 0, 100)], [2, 25]);
        assert_eq!([admitted(tenth, HERE, 100, 100), admitted(&limiter, HERE, 100, 100)], [1, 10]);
        let least = format!("{:?}", super::tests::limiter(5, 5, 64).of_a_tenth());
        assert_eq!(least, "RateLimiter(1 a second, 1 at once, room for 64 addresses)");
    }

    #[test]
    fn rates_and_bursts_out_of_range_count_as_the_nearest() {
        let least = limiter(0, 0, 0);
        assert_eq!(format!("{least:?}"), "RateLimiter(1 a second, 1 at once, room for 8 addresses)");
        let most = limiter(u32::MAX, u32::MAX, 9);
        assert_eq!(
            format!("{most:?}"),
            "RateLimiter(1000000 a second, 100000000 at once, room for 16 addresses)"
        );
        assert_eq!(limiter(1, 1, 65_536).heap_bytes(), 512 << 10);
        // An empty bucket must fill within a quarter of the range of the clock.
        assert!(u64::from(RateLimiter::MOST_BURST) * SHARES <= QUARTER);
    }

    /// The time of a thread that has read the clock earlier than another.
    #[test]
    fn a_time_that_goes_back_a_little_admits_no_more_and_does_not_refuse_for_long() {
        let limiter = limiter(10, 5, 64);
        assert_eq!(admitted(&limiter, HERE, 1000, 3), 3);
        assert_eq!(admitted(&limiter, HERE, 995, 100), 1, "5 ms are 5 hundredths of a token");
        assert_eq!(admitted(&limiter, HERE, 1000, 100), 1);
        assert_eq!(admitted(&limiter, HERE, 990, 100), 0);
        assert_eq!(admitted(&limiter, HERE, 1100, 100), 1);
    }

    /// Waits around all multiples of the range of the clock, with or without requests of others meanwhile.
    #[test]
    fn an_address_finds_a_full_bucket_after_any_time() {
        let (rate, burst) = (1000, 50);
        let turn = (1 << CLOCK_BITS) / u64::from(rate);
        for eighths in 1..=40 {
            for off in [-51_i64, -50, -25, -1, 0, 1, 25, 50, 51] {
                let wait = (turn * eighths / 8).saturating_add_signed(off);
                for others in [0, 1, 3, 10] {
                    let limiter = limiter(rate, burst, 64);
                    let start = 12_345;
                    assert_eq!(admitted(&limiter, HERE, start, 100), 50);
                    for nth in 1..=others {
                        assert!(limiter.admit(ip("192.0.2.2"), start + wait * nth / (others + 1), 1));
                    }
                    let admitted = admitted(&limiter, HERE, start + wait, 100);
                    assert_eq!(admitted, 50, "after {eighths} eighths and {off} ms, {others} others");
                }
            }
        }
    }

    #[test]
    fn full_buckets_are_forgotten_and_others_are_not() {
        let limiter = limiter(1000, 100_000_000, 64);
        let quarter = QUARTER / 1000;
        let (long_ago, lately) = (ip("192.0.2.1"), ip("192.0.2.2"));
        let first = quarter;
        assert_eq!(admitted(&limiter, long_ago, first, 1000), 1000);
        assert_eq!(admitted(&limiter, lately, first + quarter - 900, 1000), 1000);
        assert!(limiter.admit(ip("192.0.2.3"), first + quarter, 1));
        let kept = |ip| {
            let IpAddr::V4(ip) = ip else { unreachable!() };
            let (set, tag) = limiter.find(&ip.octets());
            set.0.iter().any(|place| place.load().tag() == tag)
        };
        assert_eq!([long_ago, lately].map(kept), [false, true]);
    }

    #[test]
    fn an_unknown_address_takes_the_place_of_the_fullest_bucket() {
        // One set only.
        let limiter = limiter(1, 100, 8);
        let address = |n: usize| IpAddr::V4(Ipv4Addr::new(192, 0, 2, n as u8));
        let asked = [90, 20, 30, 10, 50, 60, 70, 80];
        for (n, requests) in asked.into_iter().enumerate() {
            assert_eq!(admitted(&limiter, address(n), 0, requests), requests);
        }
        // The address with 10 requests is displaced, then the new ones.
        for n in 100..200 {
            assert!(limiter.admit(address(n), 0, 1));
        }
        for (n, requests) in asked.into_iter().enumerate().rev() {
            let left = if requests == 10 { 100 } else { 100 - requests };
            assert_eq!(admitted(&limiter, address(n), 0, 200), left, "address {n}");
        }
    }

    /// 10 million addresses in 10 seconds, in room for 65,536: each set gets 1,220 of them.
    #[test]
    fn a_flood_of_made_up_addresses_neither_shuts_out_the_good_nor_lets_in_the_bad() {
        let limiter = limiter(10, 20, 65_536);
        let mut rng = SplitMix64::new(7);
        let good: Vec<IpAddr> = (0..100).map(|n| IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))).collect();
        let bad: Vec<IpAddr> = (0..100).map(|n| IpAddr::V4(Ipv4Addr::new(198, 51, 100, n))).collect();
        let mut let_in = 0;
        for now in 0..10_000 {
            for _ in 0..1000 {
                limiter.admit(made_up(&mut rng), now, 1);
            }
            if now % 100 == 0 {
                // Exactly at the rate, after a full burst.
                let burst = if now == 0 { 20 } else { 1 };
                for &ip in &good {
                    assert_eq!(admitted(&limiter, ip, now, burst), burst, "{ip} at {now} ms");
                }
            }
            if now % 10 == 0 {
                let_in += bad.iter().filter(|&&ip| limiter.admit(ip, now, 1)).count();
            }
        }
        // 20 at once and 10 per second are 119 by the last request of each, after 9.99 seconds.
        assert!(let_in <= 119 * bad.len(), "{let_in}");
    }

    #[test]
    fn many_threads_get_no_more_from_one_address_than_one_would() {
        let (burst, threads) = (200_000, 8);
        let limiter = limiter(1_000, burst, 64);
        let (admitted, clock) = (AtomicUsize::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for n in 0..burst / 4 {
                        // One request in 256 advances the time for all.
                        let tick = u64::from(n % 256 == 0);
                        let now = clock.fetch_add(tick, Relaxed) + tick;
                        admitted.fetch_add(usize::from(limiter.admit(HERE, now, 1)), Relaxed);
                    }
                });
            }
        });
        let (admitted, burst, passed) = (admitted.into_inner() as u64, u64::from(burst), clock.into_inner());
        assert!((burst..=burst + passed).contains(&admitted), "{admitted} in {passed} ms");
    }
}
