//! Which tracker gets which announce, and when, over one address family. No I/O and no clock: time is a
//! parameter.

use std::time::Duration;

use rand::{Rng, RngExt, seq::SliceRandom};
use swarmkeep_bittorrent::AnnounceEvent;
use tokio::time::Instant;

use super::TrackersOptions;

/// The failures in a row after which the wait no longer grows; the bound on the interval is reached long
/// before.
const MOST_DOUBLINGS: u32 = 16;

/// For how long a tracker without an address in this family is not looked up again. Names change seldom, and
/// a machine gets IPv6 seldom.
const ABSENT: Duration = Duration::from_secs(60 * 60);

/// The longest time between two announces, whatever interval a tracker asks for.
const LONGEST_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);

/// The longest wait between two tries of a tracker that does not answer, as in libtorrent.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60 * 60);

/// The longest wait of all: for a client that was refused (BEP 31).
const LONGEST_RETRY: Duration = Duration::from_secs(24 * 60 * 60);

/// The tiers of one torrent over one family.
///
/// One tracker of each tier gets announces, where BEP 12 has one in all. Torrents of today have one tier per
/// tracker, and peers that announce to different trackers would not find each other. µTorrent, Transmission
/// and qBittorrent do the same.
#[derive(Debug)]
pub(super) struct Walk {
    pace: TrackersOptions,
    tiers: Vec<Tier>,
    /// Whether the download has become complete since the announces began.
    completed: bool,
    /// Whether something was left at the latest step.
    is_leecher: bool,
}

#[derive(Debug)]
struct Tier {
    /// In the order in which they are tried.
    states: Vec<TrackerState>,
    /// When the next announce is due.
    due: Instant,
    /// The tracker with an announce that is under way.
    asking: Option<usize>,
}

/// The state of one tracker over one family.
#[derive(Debug, Default)]
pub(super) struct TrackerState {
    /// Its number in the list of the torrent.
    pub(super) tracker: usize,
    /// Whether it accepted a `started`.
    pub(super) started: bool,
    /// Whether that `started` said that something is left to download.
    was_leecher: bool,
    completed: bool,
    /// The announce that is under way, and whether something is left to download.
    pub(super) under_way: Option<(AnnounceEvent, bool)>,
    /// Failures since the latest answer.
    pub(super) failures: u32,
    pause: Pause,
    /// The earliest time of the next announce, by its latest answer.
    not_before: Option<Instant>,
}

/// For how long a tracker is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Pause {
    #[default]
    No,
    Until(Instant),
    ForGood,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Announce to this tracker and report the result.
    Ask(usize, AnnounceEvent),
    /// Ask again at that time, or when something has happened.
    Wait(Option<Instant>),
}

/// Why there was no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It may answer another time; not before this time if it said so.
    Again(Option<Duration>),
    /// It said that it never will (BEP 31).
    Never,
    /// It has no address in this family.
    Absent,
}

impl Walk {
    /// Walks over `tiers`, of numbers of trackers in the order in which they are to be tried.
    pub(super) fn new(tiers: &[Vec<usize>], mut pace: TrackersOptions, now: Instant) -> Self {
        // A clock can add up these times, whatever the options.
        pace.shortest_interval = pace.shortest_interval.min(LONGEST_INTERVAL);
        let state = |&tracker: &usize| TrackerState { tracker, ..TrackerState::default() };
        let tier =
            |tier: &Vec<usize>| Tier { states: tier.iter().map(&state).collect(), due: now, asking: None };
        Self { pace, tiers: tiers.iter().map(tier).collect(), completed: false, is_leecher: true }
    }

    /// The next step at `now`, with something left to download or not. Each announce of it must be followed
    /// by [`answered`](Self::answered) or [`failed`](Self::failed); until then its tier waits.
    pub(super) fn step(&mut self, now: Instant, is_leecher: bool) -> NextStep {
        let mut next = None;
        self.is_leecher = is_leecher;
        let completed = self.is_complete();
        for tier in &mut self.tiers {
            if tier.asking.is_none()
                && let Some((nth, at)) = tier.next(now, completed)
            {
                let state = &mut tier.states[nth];
                if at <= now {
                    let event = state.event(completed);
                    state.under_way = Some((event, is_leecher));
                    tier.asking = Some(state.tracker);
                    return NextStep::Ask(state.tracker, event);
                }
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            }
        }
        NextStep::Wait(next)
    }

    /// A tracker has answered, with its interval and its shortest one if it gave that. It is the first of its
    /// tier from now on.
    pub(super) fn answered(
        &mut self,
        tracker: usize,
        interval: Duration,
        min_interval: Option<Duration>,
        now: Instant,
    ) {
        let shortest_interval = self.pace.shortest_interval;
        let Some((tier, nth)) = self.find(tracker) else { return };
        let interval = interval.clamp(shortest_interval, LONGEST_INTERVAL);
        let min_interval = min_interval.unwrap_or(shortest_interval).clamp(shortest_interval, interval);
        tier.asking = None;
        tier.due = now + interval;
        let state = &mut tier.states[nth];
        match state.under_way.take() {
            Some((AnnounceEvent::Started, leecher)) => (state.started, state.was_leecher) = (true, leecher),
            Some((AnnounceEvent::Completed, _)) => state.completed = true,
            _ => {}
        }
        state.failures = 0;
        state.pause = Pause::No;
        state.not_before = Some(now + min_interval);
        tier.states[..=nth].rotate_right(1);
    }

    /// A tracker has not answered, or not as it should.
    pub(super) fn failed(&mut self, tracker: usize, why: Failure, now: Instant, rng: &mut impl Rng) {
        let first_back_off = self.pace.first_back_off;
        let Some((tier, nth)) = self.find(tracker) else { return };
        tier.asking = None;
        let state = &mut tier.states[nth];
        state.under_way = None;
        state.pause = match why {
            Failure::Absent => Pause::Until(now + ABSENT),
            Failure::Never => Pause::ForGood,
            Failure::Again(told) => {
                let doubled = first_back_off.saturating_mul(1 << state.failures.min(MOST_DOUBLINGS));
                // Half of it at random: clients of a tracker that fell over do not all come back at once.
                let wait = doubled.min(LONGEST_BACK_OFF).mul_f64(rng.random_range(0.5..1.0));
                Pause::Until(now + wait.max(told.unwrap_or_default().min(LONGEST_RETRY)))
            }
        };
        if why != Failure::Absent {
            state.failures = state.failures.saturating_add(1);
        }
    }

    /// The download is complete: trackers that accepted `started` get `completed` without a wait for the
    /// interval.
    pub(super) fn complete(&mut self) {
        self.completed = true;
    }

    /// Whether a tracker is still to get `completed`, with something left to download or not.
    pub(super) fn owes_completed(&self, state: &TrackerState, is_leecher: bool) -> bool {
        state.owes_completed(self.completed && !is_leecher)
    }

    /// With something left, trackers would not count `completed` as the end of a download, and it is sent
    /// only once.
    fn is_complete(&self) -> bool {
        self.completed && !self.is_leecher
    }

    /// All trackers, tier by tier.
    pub(super) fn states(&self) -> impl Iterator<Item = &TrackerState> {
        self.tiers.iter().flat_map(|tier| &tier.states)
    }

    /// The state of a tracker, and the time of its next announce if it is the next of its tier.
    pub(super) fn state(&self, tracker: usize, now: Instant) -> Option<(&TrackerState, Option<Instant>)> {
        self.tiers.iter().find_map(|tier| {
            let state = tier.states.iter().find(|state| state.tracker == tracker)?;
            let next = tier.next(now, self.is_complete()).filter(|_| tier.asking.is_none());
            Some((state, next.filter(|&(nth, _)| tier.states[nth].tracker == tracker).map(|(_, at)| at)))
        })
    }

    fn find(&mut self, tracker: usize) -> Option<(&mut Tier, usize)> {
        self.tiers.iter_mut().find_map(|tier| {
            let nth = tier.states.iter().position(|state| state.tracker == tracker)?;
            Some((tier, nth))
        })
    }
}

impl Tier {
    /// The next tracker, and when: the first that has not just failed or, if all have, the first to be tried
    /// again. A tracker that is still to get `completed` comes in between.
    fn next(&self, now: Instant, completed: bool) -> Option<(usize, Instant)> {
        let rested = |state: &TrackerState| match state.pause {
            Pause::ForGood => None,
            Pause::Until(until) => Some(until.max(now)),
            Pause::No => Some(now),
        };
        let states = || self.states.iter().enumerate().filter_map(|(nth, state)| Some((nth, rested(state)?)));
        let regular = states().min_by_key(|&(_, at)| at).map(|(nth, at)| {
            let due = self.states[nth].not_before.map_or(self.due, |not_before| not_before.max(self.due));
            (nth, at.max(due))
        });
        let owed = states().filter(|&(nth, _)| self.states[nth].owes_completed(completed));
        owed.chain(regular).min_by_key(|&(_, at)| at)
    }
}

impl TrackerState {
    /// Whether a `completed` is under way.
    pub(super) fn knows_of_completion(&self) -> bool {
        matches!(self.under_way, Some((AnnounceEvent::Completed, _)))
    }

    fn owes_completed(&self, completed: bool) -> bool {
        completed && self.was_leecher && !self.completed
    }

    fn event(&self, completed: bool) -> AnnounceEvent {
        match self {
            _ if !self.started => AnnounceEvent::Started,
            _ if self.owes_completed(completed) => AnnounceEvent::Completed,
            _ => AnnounceEvent::None,
        }
    }
}

/// Trackers within a tier in random order (BEP 12), so that each of them gets its share of all clients.
pub(super) fn shuffled(mut tiers: Vec<Vec<usize>>, rng: &mut impl Rng) -> Vec<Vec<usize>> {
    tiers.iter_mut().for_each(|tier| tier.shuffle(rng));
    tiers
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;
    use AnnounceEvent::{Completed, None as Regular, Started};

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

    struct Test {
        walk: Walk,
        now: Instant,
        rng: SmallRng,
        is_leecher: bool,
    }

    impl Test {
        fn of(tiers: &[&[usize]]) -> Self {
            let tiers: Vec<_> = tiers.iter().map(|tier| tier.to_vec()).collect();
            let now = Instant::now();
            Self {
                walk: Walk::new(&tiers, TrackersOptions::new(), now),
                now,
                rng: SmallRng::seed_from_u64(7),
                is_leecher: true,
            }
        }

        fn step(&mut self) -> NextStep {
            self.walk.step(self.now, self.is_leecher)
        }

        fn due(&mut self) -> Vec<(usize, AnnounceEvent)> {
            std::iter::from_fn(|| match self.step() {
                NextStep::Ask(tracker, event) => Some((tracker, event)),
                NextStep::Wait(_) => None,
            })
            .collect()
        }

        /// For how long there is nothing to do.
        fn waits(&mut self) -> Duration {
            match self.step() {
                NextStep::Wait(Some(until)) => until - self.now,
                other => panic!("{other:?}"),
            }
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
        }

        fn answers(&mut self, tracker: usize) {
            self.walk.answered(tracker, HALF_AN_HOUR, None, self.now);
        }

        fn fails(&mut self, tracker: usize) {
            self.walk.failed(tracker, Failure::Again(None), self.now, &mut self.rng);
        }
    }

    #[test]
    fn one_tracker_of_every_tier_is_asked_and_the_next_of_it_when_that_fails() {
        let mut test = Test::of(&[&[0, 1], &[2]]);
        assert_eq!(test.due(), [(0, Started), (2, Started)]);
        test.answers(2);
        assert_eq!(test.due(), []);
        test.fails(0);
        assert_eq!(test.due(), [(1, Started)]);
        test.answers(1);
        assert_eq!(test.waits(), HALF_AN_HOUR);
    }

    #[test]
    fn a_tracker_that_answered_is_the_first_of_its_tier_from_then_on() {
        let mut test = Test::of(&[&[0, 1, 2]]);
        for tracker in [0, 1] {
            assert_eq!(test.due(), [(tracker, Started)]);
            test.fails(tracker);
        }
        assert_eq!(test.due(), [(2, Started)]);
        test.answers(2);
        assert_eq!(test.walk.states().map(|state| state.tracker).collect::<Vec<_>>(), [2, 0, 1]);
        for _ in 0..3 {
            test.pass(HALF_AN_HOUR);
            assert_eq!(test.due(), [(2, Regular)]);
            test.answers(2);
        }
        test.pass(HALF_AN_HOUR);
        assert_eq!(test.due(), [(2, Regular)]);
        test.fails(2);
        assert_eq!(test.due(), [(0, Started)], "in the order of the tier");
    }

    #[test]
    fn completed_is_sent_at_once_until_it_is_accepted_and_never_again() {
        let mut test = Test::of(&[&[0]]);
        test.due();
        test.answers(0);
        test.is_leecher = false;
        test.walk.complete();
        assert_eq!(test.due(), [(0, Completed)], "without waiting for the interval");
        test.fails(0);
        test.pass(HOUR);
        assert_eq!(test.due(), [(0, Completed)]);
        test.answers(0);
        test.walk.complete();
        assert_eq!(test.waits(), HALF_AN_HOUR);
        test.pass(HOUR);
        assert_eq!(test.due(), [(0, Regular)]);
    }

    #[test]
    fn completed_comes_after_started() {
        let mut test = Test::of(&[&[0]]);
        assert_eq!(test.due(), [(0, Started)]);
        test.walk.complete();
        test.is_leecher = false;
        test.answers(0);
        assert_eq!(test.due(), [(0, Completed)]);
    }

    #[test]
    fn completed_waits_until_nothing_is_left() {
        let mut test = Test::of(&[&[0]]);
        test.due();
        test.answers(0);
        // `left` was counted just before the last piece came.
        test.walk.complete();
        assert_eq!(test.due(), []);
        test.is_leecher = false;
        assert_eq!(test.due(), [(0, Completed)]);
    }

    #[test]
    fn a_torrent_that_began_complete_never_sends_completed() {
        let mut test = Test::of(&[&[0]]);
        test.is_leecher = false;
        test.walk.complete();
        assert_eq!(test.due(), [(0, Started)]);
        test.answers(0);
        test.walk.complete();
        test.pass(HOUR);
        assert_eq!(test.due(), [(0, Regular)]);
        // Nor does a tracker get it that gets its first `started` only now.
        let mut test = Test::of(&[&[0, 1]]);
        test.due();
        test.answers(0);
        test.walk.complete();
        test.is_leecher = false;
        assert_eq!(test.due(), [(0, Completed)]);
        test.fails(0);
        assert_eq!(test.due(), []);
        test.pass(HALF_AN_HOUR);
        assert_eq!(test.due(), [(0, Completed)]);
        test.fails(0);
        assert_eq!(test.due(), [(1, Started)]);
        test.answers(1);
        test.walk.failed(0, Failure::Never, test.now, &mut test.rng);
        test.pass(HALF_AN_HOUR);
        assert_eq!(test.due(), [(1, Regular)]);
    }

    #[test]
    fn intervals_stay_within_bounds_whatever_a_tracker_says() {
        let most = Duration::from_secs(u32::MAX.into());
        for (interval, min_interval, waits, hurried) in [
            (Duration::ZERO, None, MINUTE, MINUTE),
            (most, None, 2 * HOUR, MINUTE),
            (most, Some(most), 2 * HOUR, 2 * HOUR),
            (HALF_AN_HOUR, Some(most), HALF_AN_HOUR, HALF_AN_HOUR),
            (HALF_AN_HOUR, Some(Duration::ZERO), HALF_AN_HOUR, MINUTE),
            (HALF_AN_HOUR, Some(2 * MINUTE), HALF_AN_HOUR, 2 * MINUTE),
        ] {
            let mut test = Test::of(&[&[0]]);
            test.due();
            test.walk.answered(0, interval, min_interval, test.now);
            assert_eq!(test.waits(), waits, "{interval:?} {min_interval:?}");
            test.walk.tiers[0].due = test.now;
            assert_eq!(test.waits(), hurried, "{interval:?} {min_interval:?}");
        }
    }

    #[test]
    fn a_tracker_that_fails_is_tried_at_growing_random_intervals_up_to_the_longest() {
        let mut test = Test::of(&[&[0]]);
        let mut longest = MINUTE / 2;
        let mut waits = Vec::new();
        for _ in 0..100 {
            test.due();
            test.fails(0);
            let wait = test.waits();
            assert!(longest / 2 <= wait && wait <= longest, "{wait:?} of {longest:?}");
            longest = (longest * 2).min(HOUR);
            waits.push(wait);
            test.pass(wait);
        }
        let of_an_hour = &waits[20..];
        assert!(of_an_hour.iter().any(|wait| *wait < HOUR * 6 / 10));
        assert!(of_an_hour.iter().any(|wait| *wait > HOUR * 9 / 10));
        // One answer, and it begins anew.
        test.due();
        test.answers(0);
        test.pass(HALF_AN_HOUR);
        test.due();
        test.fails(0);
        assert!(test.waits() <= MINUTE / 2);
    }

    #[test]
    fn a_tracker_that_says_when_to_come_back_is_left_alone_until_then() {
        let mut test = Test::of(&[&[0, 1]]);
        test.due();
        test.walk.failed(0, Failure::Again(Some(2 * HOUR)), test.now, &mut test.rng);
        assert_eq!(test.due(), [(1, Started)]);
        test.walk.failed(1, Failure::Again(Some(Duration::MAX)), test.now, &mut test.rng);
        assert_eq!(test.waits(), 2 * HOUR);
        test.pass(2 * HOUR);
        assert_eq!(test.due(), [(0, Started)]);
        test.walk.failed(0, Failure::Never, test.now, &mut test.rng);
        assert_eq!(test.waits(), 22 * HOUR, "a day at most");
        test.pass(22 * HOUR);
        test.due();
        test.walk.failed(1, Failure::Never, test.now, &mut test.rng);
        assert_eq!(test.step(), NextStep::Wait(None));
    }

    #[test]
    fn a_missing_address_in_the_family_is_no_failure_and_looked_up_seldom() {
        let mut test = Test::of(&[&[0, 1]]);
        assert_eq!(test.due(), [(0, Started)]);
        test.walk.failed(0, Failure::Absent, test.now, &mut test.rng);
        assert_eq!(test.walk.states().next().unwrap().failures, 0);
        assert_eq!(test.due(), [(1, Started)]);
        test.answers(1);
        for expected in [vec![], vec![(0, Started)]] {
            test.pass(HALF_AN_HOUR);
            assert_eq!(test.due(), [(1, Regular)]);
            test.fails(1);
            assert_eq!(test.due(), expected);
        }
    }

    #[test]
    fn a_torrent_without_trackers_waits_for_nothing() {
        for tiers in [&[][..], &[&[][..]]] {
            let mut test = Test::of(tiers);
            assert_eq!(test.step(), NextStep::Wait(None));
        }
    }

    #[test]
    fn tiers_are_shuffled_and_stay_in_their_order() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut firsts = [0; 3];
        for _ in 0..300 {
            let tiers = shuffled(vec![vec![0, 1, 2], vec![3]], &mut rng);
            assert_eq!((tiers[0].len(), &tiers[1]), (3, &vec![3]));
            firsts[tiers[0][0]] += 1;
        }
        assert!(firsts.iter().all(|&count| (60..140).contains(&count)), "{firsts:?}");
    }
}
