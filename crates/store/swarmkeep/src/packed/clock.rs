//! Time in one byte per peer.
//!
//! A **tick** is a fraction of the lifetime. A **stamp** is the number of ticks between a base and the last
//! announce of a peer. Each leaf and each bucket has a base of its own. It moves when the leaf or bucket is
//! written to and a new stamp would not fit. A stamp that no longer fits becomes 0: its peer has expired, and
//! the [earliest](Tick::EARLIEST) time stands for its own. So no peer becomes young again because a clock has
//! wrapped around, however late the sweep is.

use crate::Timestamp;

/// The most ticks per lifetime. The clock is off by less than 1 % of the lifetime, or by a second.
const TICKS_PER_LIFETIME: u64 = 112;

/// The shortest tick. Ticks are counted in 32 bits: if they were seconds, no peer would expire from 2106 on.
/// These last until 2242.
const SHORTEST_TICK_SECS: u64 = 2;

/// How many ticks a new base lies before the time of writing: more than any lifetime, so that a stamp that no
/// longer fits belongs to an expired peer.
const HISTORY: u32 = 128;

/// A point in time, in ticks since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tick(u32);

/// The length of a tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    tick_secs: u64,
    /// A quarter of the lifetime in ticks.
    quarter: u32,
}

impl Tick {
    /// The earliest time. Also the time of a peer if the clock no longer holds its own: such a peer has
    /// expired, also in a store with longer lifetimes.
    pub(super) const EARLIEST: Self = Self(0);
}

impl Clock {
    pub(super) fn new(lifetime_secs: u64) -> Self {
        let tick_secs = lifetime_secs.div_ceil(TICKS_PER_LIFETIME).max(SHORTEST_TICK_SECS);
        Self { tick_secs, quarter: lifetime_secs.div_ceil(4 * tick_secs) as u32 }
    }

    /// The seconds by which a peer may outlive its lifetime.
    pub(super) const fn resolution_secs(self) -> u64 {
        self.tick_secs - 1
    }

    /// The tick that contains a time. A peer has expired when its tick is before the tick of the oldest time
    /// allowed: even the last second of its tick was too early.
    pub(super) fn tick(self, time: Timestamp) -> Tick {
        Tick(u32::try_from(time.as_secs() / self.tick_secs).unwrap_or(u32::MAX))
    }

    /// Whether a peer that announced at `earlier` has come back at `now`: a quarter of the lifetime or more
    /// lies between. A repeated announce is not a return.
    #[inline]
    pub(super) const fn is_return(self, earlier: Tick, now: Tick) -> bool {
        now.0.saturating_sub(earlier.0) >= self.quarter
    }

    /// Whether a peer that announced last at `latest` has expired at `now`, or will have some ticks later.
    pub(super) const fn is_expired(self, latest: Tick, now: Tick) -> bool {
        now.0.saturating_sub(latest.0) > 4 * self.quarter
    }

    /// The last second of a tick: a peer may look younger than it is, never older.
    pub(super) const fn time(self, tick: Tick) -> Timestamp {
        Timestamp::from_secs((tick.0 as u64 + 1).saturating_mul(self.tick_secs).saturating_sub(1))
    }
}

/// The tick of stamp 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Base(u32);

impl Base {
    /// A base such that peers that announced up to a lifetime before `now` have a stamp.
    pub(super) const fn new(now: Tick) -> Self {
        Self(now.0.saturating_sub(HISTORY))
    }

    /// Whether `now` has a stamp.
    pub(super) const fn fits(self, now: Tick) -> bool {
        now.0.saturating_sub(self.0) <= u8::MAX as u32
    }

    /// Moves the base if `now` no longer fits. Returns by how much all stamps must be [`aged`].
    #[must_use]
    pub(super) fn advance(&mut self, now: Tick) -> u32 {
        if self.fits(now) { 0 } else { self.advance_to(Self::new(now)) }
    }

    /// Moves the base to a later one. Returns by how much all stamps must be [`aged`].
    #[must_use]
    pub(super) fn advance_to(&mut self, later: Self) -> u32 {
        let before = self.0;
        self.0 = before.max(later.0);
        self.0 - before
    }

    /// The stamp of a tick. A tick at the base or before has expired: its stamp is 0. A tick too late for a
    /// stamp gets the latest one.
    pub(super) fn stamp(self, tick: Tick) -> u8 {
        u8::try_from(tick.0.saturating_sub(self.0)).unwrap_or(u8::MAX)
    }

    /// The tick of a stamp. Stamp 0 may be of any tick up to the base.
    pub(super) const fn tick(self, stamp: u8) -> Tick {
        if stamp == 0 { Tick::EARLIEST } else { Tick(self.0.saturating_add(stamp as u32)) }
    }

    /// The first stamp that is not before `oldest`; 256 if none is.
    pub(super) fn first_alive(self, oldest: Tick) -> u16 {
        u16::try_from(oldest.0.saturating_sub(self.0)).unwrap_or(256).min(256)
    }
}

/// A stamp relative to a base that is later by `by`.
pub(super) fn aged(stamp: u8, by: u32) -> u8 {
    u8::try_from(u32::from(stamp).saturating_sub(by)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_a_hundredth_of_the_lifetime_and_a_lifetime_fits_between_base_and_now() {
        for lifetime in [1, 2, 59, 112, 113, 1800, 2700, 86_400, u64::from(u32::MAX / 2)] {
            let clock = Clock::new(lifetime);
            assert!(clock.resolution_secs() * 100 <= lifetime.max(100), "{lifetime}");
            let now = Timestamp::from_secs(4_000_000_000);
            let oldest = clock.tick(now.saturating_sub(lifetime));
            assert!(Base::new(clock.tick(now)).first_alive(oldest) > 0, "the base itself has expired");
        }
    }

    /// Seconds do not fit into 32 bits from then on.
    #[test]
    fn peers_expire_after_2106_too() {
        for lifetime in [1, 112, 1800] {
            let clock = Clock::new(lifetime);
            let tick = |secs| clock.tick(Timestamp::from_secs((1 << 32) + secs));
            assert!(tick(0) < tick(1 + clock.resolution_secs()), "{lifetime}");
        }
    }

    #[test]
    fn stamps_keep_their_ticks_when_the_base_moves_and_lost_ones_have_expired() {
        let mut base = Base::new(Tick(10_000));
        let stamps: Vec<u8> = (9_900..=10_100).map(|tick| base.stamp(Tick(tick))).collect();
        assert_eq!(base.advance(Tick(10_127)), 0);
        let by = base.advance(Tick(10_128));
        assert!(by > 0);
        for (tick, stamp) in (9_900..=10_100).zip(stamps) {
            let read = base.tick(aged(stamp, by));
            assert_eq!(read, if tick > 10_000 { Tick(tick) } else { Tick::EARLIEST });
            assert!(read != Tick::EARLIEST || 10_128 - tick > TICKS_PER_LIFETIME as u32);
        }
    }
}
