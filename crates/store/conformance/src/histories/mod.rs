//! Random programs of several threads, and the record of their calls. [`assert_order`] looks for an order in
//! which all answers are right.

mod order;
mod story;

use std::{
    array,
    collections::BTreeSet,
    env, hint, iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, Cursor, Endpoint, Families, InfoHash,
    PeerRecord, Random, Request, Restored, Retention, Role, SplitMix64, SwarmStats, SwarmSummary,
    Unavailable,
};

use crate::{
    blocking::wait,
    cases::stories::endpoint_of,
    kit::{Answer, BOTH, FAMILIES, at, hash, peer, requests, stats},
    threads::{Gate, result_of},
};

const TORRENTS: usize = 3;
/// The endpoints that announce. A swarm may have others.
const ENDPOINTS: usize = 6;
/// The most effects of a call that is made again, besides its last one.
const EARLIER_EFFECTS: usize = 3;

/// Returns the store for the next call of a thread.
pub type StoreOf<'a> = &'a (dyn Fn(usize) -> Arc<dyn AsyncTorrentRepository> + Sync);

/// The effects that an announce or a restore may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effects {
    /// One.
    One,
    /// One or more, since the store makes a call again, and again, if its answer was lost. It does not report
    /// which calls it has made again, so this holds for all.
    OneOrMore,
}

/// Each call has programs of its own: on a busy machine it runs only the first of them.
static SEEDS: AtomicU64 = AtomicU64::new(1);

/// Runs random programs of 2 to 4 threads, for `SWARMKEEP_HISTORIES` seconds or less than one. Prints the
/// numbers of histories and calls.
///
/// # Panics
/// A history has no order of its calls in which all answers are right: the message is the shortest one.
pub fn assert_order(store_of: StoreOf<'_>, effects: Effects) {
    let seconds = |text: String| Duration::from_secs(text.parse().expect("seconds"));
    let time = env::var("SWARMKEEP_HISTORIES").map_or(Duration::from_millis(700), seconds);
    let (begun, mut count, mut calls, mut lost, mut given_up) = (Instant::now(), 0, 0, 0, 0);
    // A sweep without an answer may take effect in later rounds.
    let mut late: Vec<Call> = Vec::new();
    let seeds = iter::repeat_with(|| SEEDS.fetch_add(1, SeqCst));
    for (nth, seed) in (1..).zip(seeds) {
        // The searches take three times as long, on stores in memory.
        let patience = (time / 12).min(Duration::from_secs(1));
        let mut histories = run(store_of, effects, 2 + nth % 3, seed, patience);
        count += histories.len();
        calls += histories.iter().flatten().flatten().count();
        lost += histories.iter().flatten().flatten().filter(|call| call.is_lost()).count();
        for (n, history) in histories.iter_mut().enumerate() {
            let sweeps = history.iter().flatten().filter(|call| matches!(call.done, Done::Swept(_)));
            for call in sweeps.filter(|call| call.is_lost()) {
                let call = Call { start: 0, ..call.clone() };
                if !late.iter().any(|known| known.torrent == call.torrent && known.done == call.done) {
                    late.push(call);
                }
            }
            if effects == Effects::OneOrMore {
                add_earlier_effects(history);
            }
            let late = late.iter().filter(|call| call.torrent == n % TORRENTS);
            history.extend(late.map(|call| vec![call.clone()]));
        }
        let orderless = histories.iter().filter(|history| {
            let exists = order::exists(history);
            given_up += usize::from(exists.is_none());
            exists == Some(false)
        });
        if let Some(shortest) = orderless.min_by_key(|history| history.iter().map(Vec::len).sum::<usize>()) {
            panic!("seed {seed}: these calls have no order:\n{}", story::of(shortest));
        }
        if nth >= 3 && begun.elapsed() >= time {
            break;
        }
    }
    assert!(2 * lost < calls, "{lost} of {calls} calls have no answer");
    assert!(given_up <= 1 + count / 100, "{given_up} of {count} searches were given up");
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{count} histories, {rate:.0} per second, {given_up} given up; {calls} calls, {lost} without an answer"
    );
}

/// The calls to one swarm: a list for each thread, in the order of the thread, and one for each call without
/// an answer.
type History = Vec<Vec<Call>>;

/// A call, its answer, and the times of both.
#[derive(Debug, Clone)]
pub struct Call {
    torrent: usize,
    start: u64,
    /// [`Self::LOST`] if the store was unavailable: the call may take effect at any time, or never.
    end: u64,
    done: Done,
    /// The place of a call that may have taken effect before, and was made again: this is one of its
    /// earlier effects.
    earlier_of: Option<(usize, usize)>,
}

impl Call {
    const LOST: u64 = u64::MAX;

    const fn is_lost(&self) -> bool {
        self.end == Self::LOST
    }
}

type Peers = Vec<(Endpoint, Role)>;

/// A call and its answer. The answer of a lost call means nothing.
#[derive(Debug, Clone, PartialEq)]
enum Done {
    Announced(Announce, Answer),
    Scraped(SwarmStats),
    /// When no other call is in flight.
    Listed(Peers),
    /// Beside other calls. Each peer may be of another moment: on Redis without the module even one page is
    /// two calls, one for each family.
    Shown(Peers),
    /// One endpoint in such a listing.
    Seen(Endpoint, Option<Role>),
    /// By its name, or because it was forbidden.
    Removed(Option<SwarmStats>),
    /// No peer is old enough to expire. An idle swarm may go, be made again, and go again: another sweep may
    /// have moved the position back to the start.
    Swept(Retention),
    Restored(SwarmSummary, Vec<PeerRecord>, Restored),
    Added(u32, bool),
}

/// A call of a program.
enum Planned {
    Announces(Vec<Announce>),
    Scrape(usize),
    List(usize, fn(Peers) -> Done),
    Remove(usize),
    RemoveWhere([bool; TORRENTS]),
    Sweep(Retention),
    Restore(usize, u32, Vec<PeerRecord>),
    AddDownloads(usize, u32),
}

/// The calls that a thread makes.
pub struct Program {
    torrents: [InfoHash; TORRENTS],
    planned: Vec<Planned>,
    rng: SplitMix64,
}

impl Program {
    fn new(
        seed: u64,
        thread: u64,
        plan: impl FnOnce(&mut dyn Random, &[InfoHash; TORRENTS]) -> Vec<Planned>,
    ) -> Self {
        let torrents = array::from_fn(|n| hash(seed * TORRENTS as u64 + n as u64));
        let mut rng = SplitMix64::new(seed * 8 + thread);
        Self { torrents, planned: plan(&mut rng, &torrents), rng }
    }

    /// Returns a program of up to `most` calls of all kinds.
    pub fn random(seed: u64, thread: usize, most: usize) -> Self {
        Self::new(seed, thread as u64, |rng, torrents| {
            (0..1 + rng.below(most)).map(|_| random_call(rng, torrents)).collect()
        })
    }

    /// Returns the program that makes the swarms that there are before the others: none, idle ones, and some
    /// with bystanders. Their number is of any magnitude up to `most`, since stores keep large swarms in
    /// other ways than small ones.
    pub fn before(seed: u64, most: u32) -> Self {
        // A store may restore more peers in several steps.
        const AT_ONCE: usize = 100;
        Self::new(seed, 6, |rng, _| {
            let mut planned = Vec::new();
            for torrent in 0..TORRENTS {
                let bystanders = match rng.below(4) {
                    0 | 1 => continue,
                    2 => 0,
                    _ => {
                        let magnitude = 1 << rng.below(most.ilog2() as usize);
                        magnitude + rng.below(magnitude)
                    }
                };
                planned.push(Planned::Restore(torrent, 1, Vec::new()));
                let peers = (0..bystanders).map(|n| restored(rng, peer(FAMILIES[n % 2], 1000 + n as u32)));
                let peers: Vec<_> = peers.collect();
                planned.extend(peers.chunks(AT_ONCE).map(|some| Planned::Restore(torrent, 1, some.to_vec())));
            }
            planned
        })
    }

    /// Returns the program that looks at the swarms when all others have ended.
    pub fn after(seed: u64) -> Self {
        let looks = |torrent| [Planned::Scrape(torrent), Planned::List(torrent, Done::Listed)];
        Self::new(seed, 7, |_, _| (0..TORRENTS).flat_map(looks).collect())
    }

    /// Returns the program that removes the swarms.
    pub fn end(seed: u64) -> Self {
        Self::new(seed, 7, |_, _| (0..TORRENTS).map(Planned::Remove).collect())
    }

    /// Makes the calls. The times of calls and returns are those of a counter of all threads.
    pub fn run(self, store_of: &dyn Fn() -> Arc<dyn AsyncTorrentRepository>, clock: &AtomicU64) -> Vec<Call> {
        let Self { torrents, planned, mut rng } = self;
        let mut recorder = Recorder { store_of, torrents, clock, calls: Vec::new() };
        planned.into_iter().for_each(|planned| recorder.run(planned, &mut rng));
        recorder.calls
    }
}

fn random_call(rng: &mut dyn Random, torrents: &[InfoHash; TORRENTS]) -> Planned {
    let torrent = rng.below(TORRENTS).min(rng.below(TORRENTS));
    match rng.below(40) {
        0..22 => Planned::Announces(vec![announce(rng, torrents[torrent])]),
        22..26 => {
            let batch = (0..2 + rng.below(3)).map(|_| {
                let torrent = rng.below(TORRENTS).min(rng.below(TORRENTS));
                announce(rng, torrents[torrent])
            });
            Planned::Announces(batch.collect())
        }
        26..29 => Planned::Scrape(torrent),
        29 => Planned::List(torrent, Done::Shown),
        30..32 => Planned::Remove(torrent),
        32..34 => Planned::RemoveWhere(array::from_fn(|_| rng.below(2) == 0)),
        34..37 => Planned::Sweep([Retention::DropEmpty, Retention::KeepDownloaded][rng.below(2)]),
        37..39 => {
            let peers: BTreeSet<_> = (0..rng.below(3)).map(|_| rng.below(ENDPOINTS)).collect();
            let downloaded = rng.below(4) as u32;
            let peers = peers.into_iter().map(|n| restored(rng, endpoint_of(n as u8)));
            Planned::Restore(torrent, downloaded, peers.collect())
        }
        _ => Planned::AddDownloads(torrent, 1 + rng.below(3) as u32),
    }
}

fn announce(rng: &mut dyn Random, torrent: InfoHash) -> Announce {
    use AnnounceEvent::{Completed, None, Started, Stopped};
    let event = [None, None, Started, Completed, Completed, Stopped, Stopped][rng.below(7)];
    Announce::new(torrent, endpoint_of(rng.below(ENDPOINTS) as u8))
        .event(event)
        .left(rng.below(2) as u64)
        .seeders_too(rng.below(4) == 0)
        .want([0, 1, 2, ENDPOINTS, 1000][rng.below(5)])
        .families([Families::V4, Families::V6, BOTH, BOTH][rng.below(4)])
}

fn restored(rng: &mut dyn Random, endpoint: Endpoint) -> PeerRecord {
    let role = [Role::Leecher, Role::Seeder][rng.below(2)];
    PeerRecord { endpoint, role, last_announce: at(0), details: None }
}

/// Runs programs on a store for `patience`, and at least a few. Returns the histories of all swarms.
fn run(
    store_of: StoreOf<'_>,
    effects: Effects,
    threads: usize,
    seed: u64,
    patience: Duration,
) -> Vec<History> {
    const LEAST: u64 = 8;
    const CALLS: usize = 6;
    const BYSTANDERS: u32 = 512;
    let (arrived, clock, goes_on) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(true));
    let begun = Instant::now();
    let work = |me: usize| {
        let mut gate = Gate::new(&arrived, threads);
        let store_of = move || store_of(me);
        let mut rounds = Vec::new();
        for round in 0.. {
            let seed = (seed << 32) + round;
            let mut program = Program::random(seed, me, CALLS);
            let rng: &mut dyn Random = &mut program.rng;
            let most = 2 + rng.below(200);
            let delay = rng.below(most);
            let mut calls = Vec::new();
            if me == 0 {
                calls.extend(Program::before(seed, BYSTANDERS).run(&store_of, &clock));
                goes_on.store(round < LEAST || begun.elapsed() < patience, SeqCst);
            }
            if !gate.meet() || !goes_on.load(SeqCst) {
                if me == 0 {
                    Program::end(seed).run(&store_of, &clock);
                }
                break;
            }
            (0..delay).for_each(|_| hint::spin_loop());
            calls.extend(program.run(&store_of, &clock));
            gate.meet();
            if me == 0 {
                let after = Program::after(seed).run(&store_of, &clock);
                if effects == Effects::One {
                    let listed = after.iter().map(|call| match &call.done {
                        Done::Listed(peers) => peers.len() as u64,
                        _ => 0,
                    });
                    let totals = wait(store_of().totals()).map(|totals| totals.peers());
                    assert_eq!(totals, Ok(listed.sum()), "the totals, and all peers, by seed {seed}");
                }
                calls.extend(after);
                calls.extend(Program::end(seed).run(&store_of, &clock));
            }
            rounds.push(calls);
        }
        rounds
    };
    let work = &work;
    let mut rounds: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|me| scope.spawn(move || work(me))).collect();
        workers.into_iter().map(|worker| result_of(worker).into_iter()).collect()
    });
    let mut histories = Vec::new();
    while let Some(calls) = rounds.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
        histories.extend(by_swarm(calls));
    }
    histories
}

/// Returns the histories of the swarms of one round, of the calls of each thread.
fn by_swarm(calls: Vec<Vec<Call>>) -> [History; TORRENTS] {
    array::from_fn(|torrent| {
        let of_thread = calls.iter().map(|calls| calls.iter().filter(move |call| call.torrent == torrent));
        let lost = of_thread.clone().flatten().filter(|call| call.is_lost()).map(|call| vec![call.clone()]);
        let answered = of_thread.map(|calls| calls.filter(|call| !call.is_lost()).cloned().collect());
        answered.chain(lost).collect()
    })
}

fn add_earlier_effects(history: &mut History) {
    for list in 0..history.len() {
        for nth in 0..history[list].len() {
            let call = &history[list][nth];
            if matches!(call.done, Done::Announced(..) | Done::Restored(..)) {
                let earlier = Call { end: Call::LOST, earlier_of: Some((list, nth)), ..call.clone() };
                history.push(vec![earlier; EARLIER_EFFECTS]);
            }
        }
    }
}

/// Judges the calls of one round, of each thread.
///
/// # Errors
/// A history that has no order, as text.
pub fn judge(calls: Vec<Vec<Call>>) -> Result<(), String> {
    match by_swarm(calls).iter().find(|history| order::exists(history) != Some(true)) {
        Some(history) => Err(story::of(history)),
        None => Ok(()),
    }
}

/// Makes the calls of one thread.
struct Recorder<'a> {
    store_of: &'a dyn Fn() -> Arc<dyn AsyncTorrentRepository>,
    torrents: [InfoHash; TORRENTS],
    clock: &'a AtomicU64,
    calls: Vec<Call>,
}

impl Recorder<'_> {
    fn run(&mut self, planned: Planned, rng: &mut SplitMix64) {
        let (store, torrents) = ((self.store_of)(), self.torrents);
        let start = self.clock.fetch_add(1, SeqCst);
        let mut done = Vec::new();
        let mut record = |torrent: usize, call, is_lost| done.push((torrent, call, is_lost));
        match planned {
            Planned::Announces(announces) => {
                let answers = announce_all(&*store, &announces, rng);
                for (announce, answer) in announces.into_iter().zip(answers) {
                    let torrent = number(&torrents, &announce.info_hash).expect("a torrent of the program");
                    let is_lost = answer.is_none();
                    record(torrent, Done::Announced(announce, answer.unwrap_or_default()), is_lost);
                }
            }
            Planned::Scrape(torrent) => {
                if let Ok(stats) = wait(store.scrape(&torrents[torrent])) {
                    record(torrent, Done::Scraped(stats), false);
                }
            }
            Planned::List(torrent, done) => {
                if let Ok(peers) = list(&*store, &torrents[torrent]) {
                    record(torrent, done(peers), false);
                }
            }
            Planned::Remove(torrent) => {
                let removed = wait(store.remove(&torrents[torrent]));
                record(torrent, Done::Removed(*removed.as_ref().unwrap_or(&None)), removed.is_err());
            }
            Planned::RemoveWhere(forbidden) => {
                let removed = remove_where(&*store, &torrents, &forbidden);
                let all_forbidden = removed.iter().flatten().all(|&(torrent, _)| forbidden[torrent]);
                assert!(all_forbidden, "one was removed that was not forbidden: {removed:?}, {forbidden:?}");
                for torrent in (0..TORRENTS).filter(|&torrent| forbidden[torrent]) {
                    let mut of_torrent =
                        removed.iter().flatten().filter(|(removed, _)| *removed == torrent).peekable();
                    if of_torrent.peek().is_none() {
                        record(torrent, Done::Removed(None), removed.is_err());
                    }
                    of_torrent.for_each(|(_, stats)| record(torrent, Done::Removed(Some(*stats)), false));
                }
            }
            Planned::Sweep(retention) => {
                let swept = wait(store.sweep(at(0), retention, Budget::peers(1000)));
                assert_eq!(swept.as_ref().map_or(0, |swept| swept.expired), 0, "no peer is old");
                (0..TORRENTS).for_each(|torrent| record(torrent, Done::Swept(retention), swept.is_err()));
            }
            Planned::Restore(torrent, downloaded, peers) => {
                let swarm = SwarmSummary { info_hash: torrents[torrent], stats: stats(0, 0, downloaded) };
                let restored = wait(store.restore(&swarm, &peers, at(0)));
                let is_lost = restored.is_err();
                record(torrent, Done::Restored(swarm, peers, restored.unwrap_or_default()), is_lost);
            }
            Planned::AddDownloads(torrent, count) => {
                let added = wait(store.add_downloads(&torrents[torrent], count));
                record(torrent, Done::Added(count, *added.as_ref().unwrap_or(&false)), added.is_err());
            }
        }
        let end = self.clock.fetch_add(1, SeqCst);
        self.calls.extend(done.into_iter().map(|(torrent, done, is_lost)| {
            let end = if is_lost { Call::LOST } else { end };
            Call { torrent, start, end, done, earlier_of: None }
        }));
    }
}

fn number(torrents: &[InfoHash; TORRENTS], info_hash: &InfoHash) -> Option<usize> {
    torrents.iter().position(|torrent| torrent == info_hash)
}

/// Announces, several in one batch. Returns the answers; those of lost announces are missing.
fn announce_all(
    store: &dyn AsyncTorrentRepository,
    announces: &[Announce],
    rng: &mut SplitMix64,
) -> Vec<Option<Answer>> {
    let mut rooms = Vec::new();
    let mut requests = requests(announces, &mut rooms);
    if let [Request { announce, peers, answer, .. }] = &mut *requests {
        *answer = wait(store.announce(announce, at(0), rng, peers)).ok();
    } else {
        // After an error, the answers that there are count.
        let _ = wait(store.announce_batch(&mut requests, at(0), rng));
    }
    let answer = |Request { answer, peers, .. }: Request<'_>| {
        Some(Answer { announced: answer?, peers: peers.endpoints().collect() })
    };
    requests.into_iter().map(answer).collect()
}

fn list(store: &dyn AsyncTorrentRepository, torrent: &InfoHash) -> Result<Peers, Unavailable> {
    let (mut cursor, mut peers) = (Cursor::START, Vec::new());
    while !cursor.is_end() {
        cursor = wait(store.peers(torrent, cursor, 1024, &mut peers))?;
    }
    let mut peers: Vec<_> = peers.iter().map(|peer| (peer.endpoint, peer.role)).collect();
    peers.sort();
    Ok(peers)
}

fn remove_where(
    store: &dyn AsyncTorrentRepository,
    torrents: &[InfoHash; TORRENTS],
    forbidden: &[bool; TORRENTS],
) -> Result<Vec<(usize, SwarmStats)>, Unavailable> {
    let is_forbidden =
        |info_hash: &InfoHash| number(torrents, info_hash).is_some_and(|torrent| forbidden[torrent]);
    let (mut cursor, mut all) = (Cursor::START, Vec::new());
    while !cursor.is_end() {
        let step = wait(store.remove_where(&is_forbidden, cursor, Budget::peers(1024)))?;
        let removed = step.removed.iter();
        all.extend(removed.filter_map(|swarm| Some((number(torrents, &swarm.info_hash)?, swarm.stats))));
        cursor = step.next;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use swarmkeep::Immediate;

    use super::*;
    use crate::{
        Model,
        kit::{config, v4},
    };

    /// The answers of the first two are lost, and the swarm is removed after each. A client that sends again
    /// until an answer comes runs a command any number of times ("at-least-once execution" of Lettuce).
    #[test]
    fn a_call_that_is_made_again_may_have_three_effects() {
        let model = Model::new(&config()).expect("a lifetime of whole seconds");
        let store: Arc<dyn AsyncTorrentRepository> = Arc::new(Immediate(model));
        let program = Program::new(1, 0, |_, torrents| {
            let join = || Planned::Announces(vec![Announce::new(torrents[0], v4(1))]);
            vec![join(), Planned::Remove(0), join(), Planned::Remove(0), join()]
        });
        let calls = program.run(&|| store.clone(), &AtomicU64::new(0));
        let [_, first, _, second, last] = <[Call; 5]>::try_from(calls).expect("five calls");
        let mut history = vec![vec![Call { start: 0, ..last }], vec![first, second]];
        assert_eq!(order::exists(&history), Some(false), "one effect");
        add_earlier_effects(&mut history);
        assert_eq!(order::exists(&history), Some(true), "three effects");
    }

    /// It is unknown, as Knossos says after its `:time-limit`.
    #[test]
    fn a_search_that_is_given_up_has_found_no_order() {
        let call = |end, done| vec![Call { torrent: 0, start: 0, end, done, earlier_of: None }];
        let join = |n| Done::Announced(Announce::new(hash(1), v4(n)), Answer::default());
        let mut history: History = (0..20).map(|n| call(Call::LOST, join(n))).collect();
        history.push(call(1, Done::Scraped(stats(0, 0, 1))));
        assert_eq!(order::exists(&history), None);
    }
}
