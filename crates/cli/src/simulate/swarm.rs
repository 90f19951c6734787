//! One swarm through every failure at once: who is known, who is handed out, and what is missing.

use swarmkeep::{Random, SplitMix64};

use super::{
    lives::{Fate, Habits, Known, SECOND, Session, Time, Witness},
    place::unit,
};

/// What is simulated, of a swarm of whatever size.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) habits: Habits,
    /// Peers that an announce asks for.
    pub(crate) want: f64,
    pub(crate) seeders: f64,
    pub(crate) ipv6: f64,
    pub(crate) seed: u64,
    /// What happens, each for itself; the first is nothing.
    pub(crate) fates: Vec<Happening>,
}

/// A fate, and whose it is.
#[derive(Debug, Clone)]
pub(crate) struct Happening {
    pub(crate) fate: Fate,
    /// Of each swarm, this share of the peers; others fare as if nothing happened.
    pub(crate) peers: f64,
}

/// A swarm, and whom it stands for.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// Names the swarm: its rank.
    pub(crate) rank: u64,
    /// Its peers.
    pub(crate) size: u64,
    /// Of these, those that are simulated.
    pub(crate) peers: u64,
    /// How many peers each of those stands for.
    pub(crate) weight: f64,
    /// The share of that weight that each fate hits.
    pub(crate) hits: Vec<f64>,
}

/// What a fate did to those whom it hit, added up over swarms. Curves are differences from one step to the next until they are summed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tally {
    /// Peers that are there and would be known, at each step.
    pub(crate) live: Vec<f64>,
    /// Of those, the known ones.
    pub(crate) reached: Vec<f64>,
    /// Peers that the store knows, whether they are there or not.
    pub(crate) known: Vec<f64>,
    /// Announces that were sent in each second, `stopped` included.
    pub(crate) attempts: Vec<f64>,
    /// Those of them that nobody answered.
    pub(crate) failed: Vec<f64>,
    /// Announces of the same peers if nothing happens.
    pub(crate) usual: f64,
    /// Announces that were answered, `stopped` excluded: over IPv4, over IPv6.
    pub(crate) answered: [f64; 2],
    /// Peers handed out to those.
    pub(crate) handed: [f64; 2],
    /// Of those answers, the ones with fewer peers than if nothing happens.
    pub(crate) poor: f64,
    /// Shares of their peers that answers lack, summed.
    pub(crate) missing: f64,
    /// Peers that came, and that went.
    pub(crate) joined: f64,
    pub(crate) left: f64,
}

/// From one point of a curve to the next.
pub(crate) const STEP: Time = 5 * SECOND;

/// In larger swarms events are ordered by steps only: so many peers at least make no difference of one peer matter.
const ORDERED: u64 = 512;

impl Tally {
    pub(crate) fn new(habits: &Habits) -> Self {
        let span = habits.end - habits.failure;
        let [steps, seconds] = [STEP, SECOND].map(|step| vec![0.0; (span / step) as usize]);
        Self {
            live: steps.clone(),
            reached: steps.clone(),
            known: steps,
            attempts: seconds.clone(),
            failed: seconds,
            usual: 0.0,
            answered: [0.0; 2],
            handed: [0.0; 2],
            poor: 0.0,
            missing: 0.0,
            joined: 0.0,
            left: 0.0,
        }
    }

    /// Adds another one, of other swarms.
    pub(crate) fn add(&mut self, other: &Self) {
        let lists = [
            (&mut self.live, &other.live),
            (&mut self.reached, &other.reached),
            (&mut self.known, &other.known),
            (&mut self.attempts, &other.attempts),
            (&mut self.failed, &other.failed),
        ];
        for (mine, others) in lists {
            mine.iter_mut().zip(others).for_each(|(mine, other)| *mine += other);
        }
        for family in 0..2 {
            self.answered[family] += other.answered[family];
            self.handed[family] += other.handed[family];
        }
        self.usual += other.usual;
        self.poor += other.poor;
        self.missing += other.missing;
        self.joined += other.joined;
        self.left += other.left;
    }

    /// Makes curves of their differences.
    pub(crate) fn sum_up(&mut self) {
        for curve in [&mut self.live, &mut self.reached, &mut self.known] {
            let mut sum = 0.0;
            curve.iter_mut().for_each(|point| {
                sum += *point;
                *point = sum;
            });
        }
    }
}

/// The role and family of a peer: the lower bit is set for seeders, the upper one for IPv6.
type Class = usize;

/// Known peers of each class.
type Counts = [i64; 4];

/// An announce that was answered.
#[derive(Debug, Clone, Copy)]
struct Answer {
    class: Class,
    /// Whether the store knew the peer: if nothing happens, and as it happened.
    knew: [bool; 2],
}

/// What happened in a swarm, in order. The second world is the one in which something happens.
#[derive(Debug, Default)]
struct Ledger {
    begin: [Counts; 2],
    /// Each is a time and what happened then, packed so that they sort by time, and answers before what they change.
    events: Vec<u64>,
    /// In large swarms, how many by step: changes of each world's counts, and answers by class and by who knew.
    changes: [Vec<Counts>; 2],
    answers: Vec<[u32; 16]>,
}

/// What is used again for each swarm.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    session: Session,
    ledgers: Vec<Ledger>,
}

impl Model {
    /// Simulates a swarm and adds to the tallies, one for each fate.
    pub(crate) fn simulate(&self, task: &Task, scratch: &mut Scratch, tallies: &mut [Tally]) {
        let Scratch { session, ledgers } = scratch;
        ledgers.resize_with(self.fates.len(), Ledger::default);
        let steps = ((self.habits.end - self.habits.failure) / STEP) as usize;
        let by_steps = task.peers > ORDERED;
        for ledger in ledgers.iter_mut() {
            ledger.clear(if by_steps { steps } else { 0 });
        }
        let mut rng = SplitMix64::new(self.seed ^ SplitMix64::new(task.rank).next_u64());
        for _ in 0..task.peers {
            let class =
                usize::from(unit(&mut rng) < self.seeders) | usize::from(unit(&mut rng) < self.ipv6) << 1;
            let luck = unit(&mut rng);
            self.habits.sessions(&mut rng, session, |session| {
                for (n, happening) in self.fates.iter().enumerate() {
                    let weight = task.weight * task.hits[n];
                    if weight > 0.0 {
                        let is_hit = luck < happening.peers;
                        let fate = if is_hit { &happening.fate } else { &self.fates[0].fate };
                        self.live_through(session, class, fate, weight, &mut ledgers[n], &mut tallies[n]);
                    }
                }
            });
        }
        let scale = task.size as f64 / task.peers as f64;
        for (n, ledger) in ledgers.iter_mut().enumerate() {
            let weight = task.weight * task.hits[n];
            if weight > 0.0 {
                ledger.close(by_steps, self.want, scale, weight, &mut tallies[n]);
            }
        }
    }

    /// What of a range is after the failure and before the end, since the failure.
    fn window(&self, range: Known) -> Known {
        let Habits { failure, end, .. } = self.habits;
        range.start.max(failure) - failure..range.end.min(end) - failure
    }

    fn live_through(
        &self,
        session: &Session,
        class: Class,
        fate: &Fate,
        weight: f64,
        ledger: &mut Ledger,
        tally: &mut Tally,
    ) {
        let Habits { failure, end, .. } = self.habits;
        let known = session.known(&self.habits);
        // A peer that stopped since what is gone back to is known again until it has expired.
        if known.end + self.habits.lifetime <= failure {
            return;
        }
        let span = end - failure;
        ledger.knows(0, class, &self.window(known.clone()), span);
        add_curve(&mut tally.live, &self.window(known.start..known.end.min(session.end)), weight, span);
        let in_window = |time: Time| (failure..end).contains(&time);
        let second = |time: Time| ((time - failure) / SECOND) as usize;
        if session.says_stopped && in_window(session.end) {
            let at = second(session.end);
            tally.usual += weight;
            tally.attempts[at] += weight;
            if fate.down.contains(&session.end) {
                tally.failed[at] += weight;
            }
        }
        tally.usual += weight * session.announces.iter().filter(|&&time| in_window(time)).count() as f64;
        tally.joined += if in_window(session.announces[0]) { weight } else { 0.0 };
        tally.left += if in_window(session.end) { weight } else { 0.0 };

        let mut passing = Passing { model: self, session, class, usually: known, weight, ledger, tally };
        session.under(&self.habits, fate, &mut passing);
    }
}

/// A session on its way into ledger and tally.
struct Passing<'a> {
    model: &'a Model,
    session: &'a Session,
    class: Class,
    /// When the peer is known if nothing happens.
    usually: Known,
    weight: f64,
    ledger: &'a mut Ledger,
    tally: &'a mut Tally,
}

impl Witness for Passing<'_> {
    fn attempted(&mut self, at: Time, answered: bool) {
        let second = ((at - self.model.habits.failure) / SECOND) as usize;
        self.tally.attempts[second] += self.weight;
        if !answered {
            self.tally.failed[second] += self.weight;
        }
    }

    fn answered(&mut self, at: Time, knew: bool) {
        let usually = self.usually.contains(&at) && at > self.usually.start;
        let answer = Answer { class: self.class, knew: [usually, knew] };
        self.ledger.answered(at - self.model.habits.failure, answer);
    }

    fn known(&mut self, range: Known) {
        let Habits { failure, end, .. } = self.model.habits;
        let there = self.model.window(range.start..range.end.min(self.session.end));
        let range = self.model.window(range);
        self.ledger.knows(1, self.class, &range, end - failure);
        add_curve(&mut self.tally.known, &range, self.weight, end - failure);
        add_curve(&mut self.tally.reached, &there, self.weight, end - failure);
    }
}

fn add_curve(curve: &mut [f64], range: &Known, weight: f64, span: Time) {
    if range.start < range.end {
        let [start, end] = [range.start, range.end].map(|time| (time / STEP) as usize);
        if start < curve.len() {
            curve[start] += weight;
        }
        if range.end < span && end < curve.len() {
            curve[end] -= weight;
        }
    }
}

impl Ledger {
    fn clear(&mut self, steps: usize) {
        self.begin = Default::default();
        self.events.clear();
        for changes in &mut self.changes {
            changes.clear();
            changes.resize(steps, [0; 4]);
        }
        self.answers.clear();
        self.answers.resize(steps, [0; 16]);
    }

    /// A world knows a peer for so long.
    fn knows(&mut self, world: usize, class: Class, range: &Known, span: Time) {
        if range.start >= range.end {
            return;
        }
        if range.start <= 0 {
            self.begin[world][class] += 1;
        } else {
            self.change(range.start, world, class, true);
        }
        if range.end < span {
            self.change(range.end, world, class, false);
        }
    }

    fn change(&mut self, at: Time, world: usize, class: Class, more: bool) {
        if let Some(counts) = self.changes[world].get_mut((at / STEP) as usize) {
            counts[class] += if more { 1 } else { -1 };
        } else {
            let bits = 1 << 7 | u64::from(more) << 3 | (world as u64) << 2 | class as u64;
            self.events.push((at as u64) << 8 | bits);
        }
    }

    fn answered(&mut self, at: Time, Answer { class, knew }: Answer) {
        let bits = usize::from(knew[1]) << 3 | usize::from(knew[0]) << 2 | class;
        match self.answers.get_mut((at / STEP) as usize) {
            Some(answers) => answers[bits] += 1,
            None => self.events.push((at as u64) << 8 | bits as u64),
        }
    }

    /// Goes through it all.
    fn close(&mut self, by_steps: bool, want: f64, scale: f64, weight: f64, tally: &mut Tally) {
        let mut counts = self.begin;
        let mut give = |counts: &[Counts; 2], bits: usize, times: f64| {
            let answer = Answer { class: bits & 3, knew: [bits >> 2 & 1 == 1, bits >> 3 & 1 == 1] };
            let [would, got] = [0, 1].map(|world| answer.eligible(&counts[world], world, scale).min(want));
            let family = answer.class >> 1;
            let weight = weight * times;
            tally.answered[family] += weight;
            tally.handed[family] += weight * got;
            if got < would {
                tally.poor += weight;
                tally.missing += weight * (would - got) / would;
            }
        };
        if by_steps {
            for (step, answers) in self.answers.iter().enumerate() {
                for (bits, &times) in answers.iter().enumerate().filter(|(_, times)| **times > 0) {
                    give(&counts, bits, f64::from(times));
                }
                for (counts, changes) in counts.iter_mut().zip(&self.changes) {
                    (0..4).for_each(|class| counts[class] += changes[step][class]);
                }
            }
            return;
        }
        self.events.sort_unstable();
        for &event in &self.events {
            let bits = (event & 0xff) as usize;
            if bits < 1 << 7 {
                give(&counts, bits, 1.0);
            } else {
                counts[bits >> 2 & 1][bits & 3] += if bits >> 3 & 1 == 1 { 1 } else { -1 };
            }
        }
    }
}

impl Answer {
    /// Peers that the announcer may be handed: of its family, others than itself, and no seeders if it is one.
    fn eligible(self, counts: &Counts, world: usize, scale: f64) -> f64 {
        let family = self.class & 2;
        let others = if self.class & 1 == 1 {
            counts[family]
        } else {
            counts[family] + counts[family | 1] - i64::from(self.knew[world])
        };
        others as f64 * scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Time = 60 * SECOND;

    fn model(fates: Vec<Fate>) -> Model {
        let habits = Habits {
            interval: 30 * MINUTE,
            jitter: 0.1,
            lifetime: 45 * MINUTE,
            median: 135.0 * 60e3,
            deviation: 1.5,
            silent: 0.2,
            failure: 80 * MINUTE,
            end: 140 * MINUTE,
        };
        let nothing = Fate { down: 0..0, forgets_since: None, has_others: false };
        let fates = [nothing].into_iter().chain(fates).map(|fate| Happening { fate, peers: 1.0 }).collect();
        Model { habits, want: 50.0, seeders: 0.5, ipv6: 0.1, seed: 5, fates }
    }

    fn task(model: &Model, size: u64, peers: u64) -> Task {
        Task { rank: 1, size, peers, weight: size as f64 / peers as f64, hits: vec![1.0; model.fates.len()] }
    }

    fn simulated(model: &Model, tasks: &[Task]) -> Vec<Tally> {
        let mut tallies = vec![Tally::new(&model.habits); model.fates.len()];
        for task in tasks {
            model.simulate(task, &mut Scratch::default(), &mut tallies);
        }
        tallies.iter_mut().for_each(Tally::sum_up);
        tallies
    }

    fn crash() -> Fate {
        Fate { down: 80 * MINUTE..80 * MINUTE, forgets_since: Some(Time::MIN), has_others: false }
    }

    #[test]
    fn nothing_that_happens_changes_nothing() {
        let model = model(vec![]);
        let tallies = simulated(&model, &[task(&model, 3000, 3000), task(&model, 40, 40)]);
        let Tally { live, reached, known, poor, failed, attempts, usual, .. } = &tallies[0];
        assert_eq!(*poor, 0.0);
        assert_eq!(failed.iter().sum::<f64>(), 0.0);
        assert_eq!(attempts.iter().sum::<f64>(), *usual);
        assert_eq!(live, reached);
        assert!(live.iter().all(|&live| live == 3040.0), "whoever goes is followed by another one");
        // One in five goes without a word and is known for half an hour more on average, of sessions of seven hours.
        let ghosts = known.iter().sum::<f64>() / live.iter().sum::<f64>() - 1.0;
        assert!((0.005..0.03).contains(&ghosts), "{ghosts}");
    }

    #[test]
    fn an_empty_store_fills_as_intervals_pass() {
        let mut model = model(vec![crash()]);
        // Nobody comes or goes, and all intervals are the same: then announces are uniform over one.
        model.habits = Habits { jitter: 0.0, median: 1e9, deviation: 0.0, ..model.habits };
        let tallies = simulated(&model, &[task(&model, 100_000, 100_000)]);
        let Tally { live, reached, .. } = &tallies[1];
        for (n, (reached, live)) in reached.iter().zip(live).enumerate() {
            let at = f64::from(n as Time * STEP + STEP / 2);
            let expected = (at / f64::from(model.habits.interval)).min(1.0);
            assert!(
                (reached / live - expected).abs() < 0.006,
                "{} for {expected} after {at} ms",
                reached / live
            );
        }
    }

    #[test]
    fn order_within_a_step_makes_no_difference_to_large_swarms() {
        let model = model(vec![crash()]);
        let large: Vec<_> = simulated(&model, &[task(&model, 700, 700)]);
        // The same swarm with every event in order.
        let mut scratch = Scratch::default();
        let mut tallies = vec![Tally::new(&model.habits); 2];
        let ordered = Task { peers: ORDERED, ..task(&model, ORDERED, ORDERED) };
        model.simulate(&ordered, &mut scratch, &mut tallies);
        let by_steps = Task { peers: ORDERED + 1, ..task(&model, ORDERED + 1, ORDERED + 1) };
        let mut others = vec![Tally::new(&model.habits); 2];
        model.simulate(&by_steps, &mut scratch, &mut others);
        for (one, other) in tallies.iter().zip(&others) {
            let per_answer = |tally: &Tally| {
                let answered: f64 = tally.answered.iter().sum();
                [tally.poor / answered, tally.missing / answered, tally.handed[0] / tally.answered[0]]
            };
            for (one, other) in per_answer(one).into_iter().zip(per_answer(other)) {
                assert!((one - other).abs() < 0.003 * one.max(1.0), "{one} {other}");
            }
        }
        assert!(large[1].poor > 0.0);
    }

    #[test]
    fn a_part_of_a_swarm_stands_for_all_of_it() {
        let model = model(vec![crash()]);
        let whole = simulated(&model, &[task(&model, 200_000, 200_000)]);
        let part = simulated(&model, &[task(&model, 200_000, 20_000)]);
        for (whole, part) in whole.iter().zip(&part) {
            assert!((part.usual / whole.usual - 1.0).abs() < 0.01);
            assert!((part.handed[0] / whole.handed[0] - 1.0).abs() < 0.01);
            for (whole, part) in whole.reached.iter().zip(&part.reached).step_by(60) {
                assert!((part - whole).abs() < 0.01 * 200_000.0, "{part} for {whole}");
            }
            let answers = whole.answered[0] + whole.answered[1];
            assert!((part.poor - whole.poor).abs() < 0.002 * answers, "{} for {}", part.poor, whole.poor);
        }
    }

    #[test]
    fn who_is_alone_misses_nobody() {
        let model = model(vec![crash()]);
        let alone = simulated(&model, &[task(&model, 1, 1)]);
        assert_eq!(alone[1].handed, [0.0; 2]);
        let two = Task { rank: 3, ..task(&model, 30, 30) };
        let tallies = simulated(&model, &[two]);
        assert!(tallies[1].poor > 5.0 && tallies[1].missing <= tallies[1].poor);
        assert!(tallies[1].handed[0] < tallies[0].handed[0]);
    }

    #[test]
    fn seeders_are_handed_leechers_of_their_family_and_nobody_is_handed_itself() {
        let counts = [10, 100, 3, 7];
        let eligible = |class, knew| Answer { class, knew: [knew; 2] }.eligible(&counts, 0, 1.0);
        assert_eq!((eligible(0, true), eligible(0, false)), (109.0, 110.0));
        assert_eq!((eligible(1, true), eligible(3, true)), (10.0, 3.0));
        assert_eq!(eligible(2, true), 9.0);
    }
}
