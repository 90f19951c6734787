//! What one peer does: when it comes, announces and goes, and when a store knows it, whatever happens to the store.

use std::ops::Range;

use swarmkeep::SplitMix64;

use super::place::{normal, unit};

/// Milliseconds since the simulation began.
pub(crate) type Time = i32;

pub(crate) const SECOND: Time = 1000;

/// How peers behave, and what the tracker tells them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) interval: Time,
    /// An announce comes up to this share later than the interval, at random.
    pub(crate) jitter: f64,
    /// For how long a peer is known that does not announce.
    pub(crate) lifetime: Time,
    /// Half of all sessions are shorter; in milliseconds.
    pub(crate) median: f64,
    /// How much sessions differ: the deviation of their logarithm.
    pub(crate) deviation: f64,
    /// Share of those who go without a word.
    pub(crate) silent: f64,
    /// When the failure is.
    pub(crate) failure: Time,
    /// When the simulation ends.
    pub(crate) end: Time,
}

/// One peer in one swarm, from when it joins until it goes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Session {
    /// When it announces, if each announce is answered: the first is when it joined, or when it last announced before the simulation began.
    pub(crate) announces: Vec<Time>,
    /// When it goes.
    pub(crate) end: Time,
    /// Whether it says so.
    pub(crate) says_stopped: bool,
}

/// What happens to whoever keeps a peer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fate {
    /// When announces are not answered.
    pub(crate) down: Range<Time>,
    /// What is forgotten when it begins: all that was learnt since then. `None` is nothing.
    pub(crate) forgets_since: Option<Time>,
    /// Clients whose announce is not answered ask another tracker of the same store next.
    pub(crate) has_others: bool,
}

/// Is told what becomes of a peer.
pub(crate) trait Witness {
    /// An announce was sent, and was answered or not.
    fn attempted(&mut self, at: Time, answered: bool);
    /// An announce was answered, by a store that knew the peer or did not.
    fn answered(&mut self, at: Time, knew: bool);
    /// The store knows the peer for so long, which may be no time at all.
    fn known(&mut self, range: Known);
}

/// How long a client waits for an answer over UDP before it asks again, doubled each time (BEP 15).
const PATIENCE: Time = 15 * SECOND;

impl Habits {
    /// The sessions of a place in a swarm, one after the other: whoever goes is followed by another peer. Each is handed to `each`.
    pub(crate) fn sessions(
        &self,
        rng: &mut SplitMix64,
        session: &mut Session,
        mut each: impl FnMut(&Session),
    ) {
        // Of a session that is going on at some moment, the length is biased by itself, and all of it may be over as likely. Of log-normal
        // lengths the biased ones are log-normal again, with a median that is higher by the variance.
        let length = self.length(self.deviation * self.deviation, rng);
        let mut end = (length * unit(rng)).min(f64::from(Time::MAX / 2)) as Time;
        // The same of intervals, which differ little.
        let interval = self.interval(rng);
        let mut first = (f64::from(interval) * -unit(rng)) as Time;
        let mut next = first + interval;
        loop {
            session.announces.clear();
            session.announces.push(first);
            while next < end.min(self.end) {
                session.announces.push(next);
                next += self.interval(rng);
            }
            session.end = end;
            session.says_stopped = unit(rng) >= self.silent;
            each(session);
            if end >= self.end {
                return;
            }
            first = end;
            next = first + self.interval(rng);
            let length = self.length(0.0, rng).min(f64::from(Time::MAX / 2));
            // One that is over at once would announce and stop in the same moment.
            end = end.saturating_add((length as Time).max(SECOND));
        }
    }

    /// The mean of all sessions, in milliseconds.
    pub(crate) fn mean_session(&self) -> f64 {
        self.median * (self.deviation * self.deviation / 2.0).exp()
    }

    fn length(&self, shift: f64, rng: &mut SplitMix64) -> f64 {
        self.median * (shift + self.deviation * normal(rng)).exp()
    }

    fn interval(&self, rng: &mut SplitMix64) -> Time {
        self.interval + (f64::from(self.interval) * self.jitter * unit(rng)) as Time
    }
}

/// From when until when somebody is known.
pub(crate) type Known = Range<Time>;

impl Session {
    /// When the store knows the peer if nothing happens.
    pub(crate) fn known(&self, habits: &Habits) -> Known {
        let last = self.announces[self.announces.len() - 1];
        let gone = if self.says_stopped { self.end } else { last + habits.lifetime };
        // One that stays announces again before it is forgotten.
        self.announces[0]..if self.end >= habits.end { habits.end } else { gone }
    }

    /// What becomes of the peer from the failure on.
    pub(crate) fn under(&self, habits: &Habits, fate: &Fate, witness: &mut impl Witness) {
        let mut now = self.known_after(habits, fate);
        let mut delay = 0;
        let first = self.announces.partition_point(|&time| time < habits.failure);
        let gone = self.end.min(habits.end);
        for &time in &self.announces[first..] {
            let (mut at, mut patience, mut elsewhere) = (time + delay, PATIENCE, false);
            while at < gone && fate.down.contains(&at) && !elsewhere {
                witness.attempted(at, false);
                at += patience;
                patience *= 2;
                elsewhere = fate.has_others;
            }
            if at >= gone {
                break;
            }
            delay = at - time;
            witness.attempted(at, true);
            let is_known = now.contains(&at);
            witness.answered(at, is_known);
            if is_known {
                now.end = at + habits.lifetime;
            } else {
                witness.known(now);
                now = at..at + habits.lifetime;
            }
        }
        // Who goes while nobody answers cannot say so, and does not try again.
        if self.says_stopped && self.end >= habits.failure && !fate.down.contains(&self.end) {
            now.end = now.end.min(self.end);
        }
        witness.known(now);
    }

    /// What the store knows of the peer right after the failure.
    fn known_after(&self, habits: &Habits, fate: &Fate) -> Known {
        let failure = habits.failure;
        // What it had heard by the moment to which it goes back.
        let heard = fate.forgets_since.unwrap_or(failure);
        let last = self.announces.partition_point(|&time| time < heard).checked_sub(1);
        let Some(last) = last.map(|last| self.announces[last]) else { return failure..failure };
        if self.says_stopped && self.end < heard {
            return failure..failure;
        }
        failure..(last + habits.lifetime).max(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Time = 60 * SECOND;

    fn habits() -> Habits {
        Habits {
            interval: 30 * MINUTE,
            jitter: 0.0,
            lifetime: 45 * MINUTE,
            median: 135.0 * 60e3,
            deviation: 1.5,
            silent: 0.2,
            failure: 80 * MINUTE,
            end: 140 * MINUTE,
        }
    }

    fn session(announces: &[Time], end: Time, says_stopped: bool) -> Session {
        let announces = announces.iter().map(|minutes| minutes * MINUTE).collect();
        Session { announces, end: end * MINUTE, says_stopped }
    }

    fn fate(down: Range<Time>, forgets_since: Option<Time>) -> Fate {
        Fate {
            down: down.start * MINUTE..down.end * MINUTE,
            forgets_since: forgets_since.map(|minutes| minutes * MINUTE),
            has_others: false,
        }
    }

    /// Seconds of attempts that failed, of answers with whether the peer was known, and when it is known.
    type Seconds = (Vec<Time>, Vec<(Time, bool)>, Vec<(Time, Time)>);

    #[derive(Default)]
    struct Seen(Seconds);

    impl Witness for Seen {
        fn attempted(&mut self, at: Time, answered: bool) {
            if !answered {
                self.0.0.push(at / SECOND);
            }
        }

        fn answered(&mut self, at: Time, knew: bool) {
            self.0.1.push((at / SECOND, knew));
        }

        fn known(&mut self, range: Known) {
            if !range.is_empty() {
                self.0.2.push((range.start / SECOND, range.end / SECOND));
            }
        }
    }

    fn happens(session: &Session, fate: &Fate) -> Seconds {
        let mut seen = Seen::default();
        session.under(&habits(), fate, &mut seen);
        seen.0
    }

    #[test]
    fn without_a_failure_a_store_knows_who_announced_in_its_lifetime() {
        let nothing = fate(80..80, None);
        let stays = session(&[-5, 25, 55, 85, 115], 1000, false);
        assert_eq!(stays.known(&habits()), -5 * MINUTE..140 * MINUTE);
        let (failed, answers, known) = happens(&stays, &nothing);
        assert_eq!((failed, answers), (vec![], vec![(85 * 60, true), (115 * 60, true)]));
        assert_eq!(known, [(80 * 60, 160 * 60)]);

        let silent = session(&[-5, 25, 55, 85], 90, false);
        assert_eq!(silent.known(&habits()), -5 * MINUTE..130 * MINUTE);
        assert_eq!(happens(&silent, &nothing).2, [(80 * 60, 130 * 60)]);
        let stops = session(&[-5, 25, 55, 85], 90, true);
        assert_eq!(stops.known(&habits()), -5 * MINUTE..90 * MINUTE);
        assert_eq!(happens(&stops, &nothing).2, [(80 * 60, 90 * 60)]);
        assert_eq!(happens(&session(&[-5, 25], 30, true), &nothing), (vec![], vec![], vec![]));
    }

    #[test]
    fn who_is_not_answered_asks_again_after_15_seconds_and_twice_that() {
        let (failed, answers, known) =
            happens(&session(&[55, 85, 115], 1000, true), &fate(80..87, Some(Time::MIN / MINUTE)));
        assert_eq!(failed, [5100, 5115, 5145, 5205], "until 5220");
        assert_eq!(answers, [(5325, false), (5325 + 1800, true)], "and what follows is as late");
        assert_eq!(known, [(5325, 5325 + 1800 + 2700)]);
        let others = Fate { has_others: true, ..fate(80..87, None) };
        let (failed, answers, _) = happens(&session(&[55, 85], 1000, true), &others);
        assert_eq!((failed, answers), (vec![5100], vec![(5115, true)]));
    }

    #[test]
    fn a_store_goes_back_to_what_it_knew_then() {
        let snapshot = fate(80..80, Some(70));
        let since = session(&[75, 105], 1000, true);
        assert_eq!(happens(&since, &snapshot).2, [(105 * 60, 150 * 60)], "it came since");
        let before = session(&[39, 69, 99], 1000, true);
        assert_eq!(happens(&before, &snapshot).2, [(80 * 60, 144 * 60)], "it came at 69");
        let older = session(&[41, 71, 101], 1000, true);
        let gap = [(80 * 60, 86 * 60), (101 * 60, 146 * 60)];
        assert_eq!(happens(&older, &snapshot).2, gap, "as old as it was then, from 41");
        let stopped = session(&[40], 75, true);
        assert_eq!(happens(&stopped, &snapshot).2, [(80 * 60, 85 * 60)], "it stopped since, and is back");
        assert_eq!(happens(&session(&[40], 65, true), &snapshot).2, []);
        // Not heard since 34, and forgotten at 79.
        assert_eq!(happens(&session(&[34], 36, false), &snapshot).2, []);
    }

    #[test]
    fn who_stops_while_nobody_answers_stays_known() {
        let outage = fate(80..82, None);
        assert_eq!(happens(&session(&[55], 81, true), &outage).2, [(80 * 60, 100 * 60)]);
        assert_eq!(happens(&session(&[55], 83, true), &outage).2, [(80 * 60, 83 * 60)]);
    }

    #[test]
    fn a_place_is_never_empty_and_sessions_are_as_long_as_they_should_be() {
        let habits = Habits { median: 20.0 * 60e3, deviation: 1.0, ..habits() };
        let mut rng = SplitMix64::new(1);
        let (mut joined, mut left, mut stopped) = (0, 0, 0);
        const PLACES: i32 = 20_000;
        for _ in 0..PLACES {
            let mut last_end = 0;
            habits.sessions(&mut rng, &mut Session::default(), |session| {
                if last_end > 0 {
                    assert_eq!(session.announces[0], last_end);
                    joined += 1;
                } else {
                    assert!((-habits.interval..=0).contains(&session.announces[0]));
                }
                assert!(session.announces.is_sorted() && session.end >= last_end);
                last_end = session.end;
                if last_end < habits.end {
                    left += 1;
                    stopped += i32::from(session.says_stopped);
                }
            });
            assert!(last_end >= habits.end);
        }
        assert_eq!(joined, left, "live = those at the beginning + joined − left");
        // In the long run a place changes hands once in a mean session.
        let expected = f64::from(PLACES) * f64::from(habits.end) / habits.mean_session();
        assert!((f64::from(left) / expected - 1.0).abs() < 0.02, "{left} of {expected}");
        assert!((f64::from(stopped) / f64::from(left) - 0.8).abs() < 0.01);
    }
}
