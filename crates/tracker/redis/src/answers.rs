//! Answers that are kept for a while, so that one server need not answer every announce of a very busy swarm.
//!
//! In a busy swarm, one announce fetches many peers, and regular announces are answered from these until they
//! are too old. The change of such an announce, the time of its peer, is sent later, together with the
//! changes of others. Each of these two delays is at most half of the allowed staleness, so no tracker sees
//! an older state of the swarm. An announce with an event goes to the server at once.

use std::{
    collections::HashMap,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, CompactV4, CompactV6, Endpoint, Families, InfoHash,
    PeerBuffer, SwarmStats, implement::SectionExt as _,
};
use tokio::sync::Notify;

/// Peers that one announce fetches for the others, half of them of each family: enough for an announce that
/// wants fewer than half, of either family.
pub(crate) const FETCHED: usize = 512;
const ENOUGH_PEERS: usize = FETCHED / 2;

/// The announces within half of the staleness that make a swarm hot. For fewer, a fetch does not pay.
const HOT: u32 = 16;

/// Changes of a swarm that are sent without waiting for more: at least 25 per page of a swarm of 10,000.
const ENOUGH: usize = 1 << 13;

/// The most swarms that are counted, the most hot swarms, and the most changes that wait or are being sent.
/// Announces beyond these limits go to the servers.
const COUNTED: usize = 1 << 16;
const KEPT: usize = 1 << 10;
const UNSENT: usize = 1 << 16;

/// The kept answers of hot swarms, and the changes that wait.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Half of the staleness.
    age: Duration,
    state: Mutex<TrackedSwarms>,
    /// Notified when all changes were sent.
    idle: Notify,
}

#[derive(Debug)]
struct TrackedSwarms {
    /// The announces per swarm since `since`.
    counted: HashMap<InfoHash, u32>,
    since: Instant,
    hot: HashMap<InfoHash, Hot>,
    /// Changes of all swarms that wait or are being sent.
    unsent: usize,
    /// Changes that did not reach a server.
    lost: u64,
}

#[derive(Debug, Default)]
struct Hot {
    with_seeders: Kept,
    without_seeders: Kept,
    /// Announces to be sent: the latest of each peer, and its time.
    waiting: HashMap<Endpoint, (Announce, u32)>,
    /// Waiting announces that came since a task last began to send. The first of them starts another task.
    since_sent: usize,
}

/// Peers for the announces that may be given seeders, or for the others.
#[derive(Debug, Default)]
struct Kept {
    /// When the fetch in progress began.
    asked: Option<Instant>,
    peers: Option<Arc<Sample>>,
}

/// Some peers of a swarm, and its counts, at one time.
#[derive(Debug)]
pub(crate) struct Sample {
    taken: Instant,
    stats: SwarmStats,
    v4: Vec<[u8; CompactV4::LEN]>,
    v6: Vec<[u8; CompactV6::LEN]>,
}

/// How to answer an announce.
#[derive(Debug)]
pub(crate) enum AnswerSource {
    /// The server answers.
    Asked,
    /// The server answers with up to [`FETCHED`] peers, which are kept with this time.
    Fetched(Instant),
    /// `from` answers, and the change of the announce waits. If `send` has a time, the caller sends all
    /// waiting changes of the swarm after it.
    Kept { from: Arc<Sample>, send: Option<Duration> },
}

impl Answers {
    /// `None` if answers may not be stale.
    pub(crate) fn new(staleness: Duration) -> Option<Arc<Self>> {
        (!staleness.is_zero()).then(|| {
            let state = TrackedSwarms {
                counted: HashMap::new(),
                since: Instant::now(),
                hot: HashMap::new(),
                unsent: 0,
                lost: 0,
            };
            Arc::new(Self { age: staleness / 2, state: Mutex::new(state), idle: Notify::new() })
        })
    }

    /// Decides how to answer. `selects` says whether the answer may contain peers.
    pub(crate) fn source(&self, announce: &Announce, now: u32, selects: bool) -> AnswerSource {
        let mut state = self.state.lock();
        let source = self.choose(&mut state, announce, now, selects);
        if !matches!(source, AnswerSource::Kept { .. }) {
            // A waiting announce of the same peer must not arrive after this one.
            let state = &mut *state;
            if let Some(hot) = state.hot.get_mut(&announce.info_hash)
                && hot.waiting.remove(&announce.endpoint).is_some()
            {
                state.sent(1, &self.idle);
            }
        }
        source
    }

    fn choose(
        &self,
        state: &mut TrackedSwarms,
        announce: &Announce,
        now: u32,
        selects: bool,
    ) -> AnswerSource {
        if !selects || announce.event != AnnounceEvent::None || announce.want >= ENOUGH_PEERS {
            return AnswerSource::Asked;
        }
        let at = Instant::now();
        if at.duration_since(state.since) > self.age {
            state.since = at;
            let counted = mem::take(&mut state.counted);
            let is_hot = |info_hash: &InfoHash| counted.get(info_hash).is_some_and(|count| *count >= HOT);
            state.hot.retain(|info_hash, hot| !hot.waiting.is_empty() || is_hot(info_hash));
        }
        let counts = state.counted.len() < COUNTED || state.counted.contains_key(&announce.info_hash);
        let count = if counts { state.counted.entry(announce.info_hash).or_default() } else { &mut 0 };
        *count = count.saturating_add(1);
        let may_be = *count >= HOT && state.hot.len() < KEPT || state.hot.contains_key(&announce.info_hash);
        if !may_be {
            return AnswerSource::Asked;
        }
        let hot = state.hot.entry(announce.info_hash).or_default();
        let has_room = state.unsent < UNSENT;
        let kept = hot.kept(announce);
        match &kept.peers {
            Some(from) if at.duration_since(from.taken) < self.age => {
                if !has_room {
                    return AnswerSource::Asked;
                }
                let from = Arc::clone(from);
                if hot.waiting.insert(announce.endpoint, (*announce, now)).is_some() {
                    return AnswerSource::Kept { from, send: None };
                }
                state.unsent += 1;
                hot.since_sent += 1;
                let send = match hot.since_sent {
                    1 => Some(self.age),
                    ENOUGH => Some(Duration::ZERO),
                    _ => None,
                };
                AnswerSource::Kept { from, send }
            }
            // One announce fetches, and the others go to the server until it has. After `age`, the fetch
            // counts as lost.
            _ if kept.asked.is_none_or(|asked| at.duration_since(asked) > self.age) => {
                kept.asked = Some(at);
                AnswerSource::Fetched(at)
            }
            _ => AnswerSource::Asked,
        }
    }

    /// Keeps the fetched peers for the next announces that may be given the same.
    pub(crate) fn keep(&self, announce: &Announce, sample: Arc<Sample>) {
        let mut state = self.state.lock();
        if let Some(hot) = state.hot.get_mut(&announce.info_hash) {
            *hot.kept(announce) = Kept { asked: None, peers: Some(sample) };
        }
    }

    /// Drops a swarm that is removed, with its waiting announces.
    pub(crate) fn forget(&self, info_hash: &InfoHash) {
        let mut state = self.state.lock();
        let hot = state.hot.remove(info_hash);
        state.sent(hot.map_or(0, |hot| hot.waiting.len()), &self.idle);
    }

    /// The peers of a swarm whose announces wait. The caller takes and sends these.
    pub(crate) fn waiting(&self, info_hash: &InfoHash) -> Vec<Endpoint> {
        let mut state = self.state.lock();
        let Some(hot) = state.hot.get_mut(info_hash) else { return Vec::new() };
        hot.since_sent = 0;
        hot.waiting.keys().copied().collect()
    }

    /// Takes the announces of `peers` that still wait, for the caller to send now.
    pub(crate) fn take(&self, info_hash: &InfoHash, peers: &[Endpoint]) -> OnTheirWay<'_> {
        let mut state = self.state.lock();
        let waiting = state.hot.get_mut(info_hash).map(|hot| &mut hot.waiting);
        let taken =
            waiting.into_iter().flat_map(|waiting| peers.iter().filter_map(|peer| waiting.remove(peer)));
        let announces: Vec<_> = taken.collect();
        OnTheirWay { lost: announces.len(), announces, of: self }
    }

    /// The swarms with waiting announces.
    pub(crate) fn swarms_with_waiting(&self) -> Vec<InfoHash> {
        let state = self.state.lock();
        let waiting = state.hot.iter().filter(|(_, hot)| !hot.waiting.is_empty());
        waiting.map(|(info_hash, _)| *info_hash).collect()
    }

    /// The number of changes that wait or are being sent, and of those that were lost so far.
    pub(crate) fn unsent_and_lost(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.unsent, state.lost)
    }

    /// Waits until no change waits or is being sent.
    pub(crate) async fn all_sent(&self) {
        loop {
            let idle = self.idle.notified();
            if self.state.lock().unsent == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Announces that are being sent, and their times.
pub(crate) struct OnTheirWay<'a> {
    announces: Vec<(Announce, u32)>,
    lost: usize,
    of: &'a Answers,
}

impl OnTheirWay<'_> {
    pub(crate) fn announces(&self) -> &[(Announce, u32)] {
        &self.announces
    }

    /// Notes that all but `lost` announces have arrived. Without this call, all of them count as lost.
    pub(crate) fn arrived_but(mut self, lost: usize) {
        self.lost = lost;
    }
}

impl Drop for OnTheirWay<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.lost += self.lost as u64;
        state.sent(self.announces.len(), &self.of.idle);
    }
}

impl TrackedSwarms {
    fn sent(&mut self, count: usize, idle: &Notify) {
        self.unsent -= count;
        if self.unsent == 0 {
            idle.notify_waiters();
        }
    }
}

impl Hot {
    const fn kept(&mut self, announce: &Announce) -> &mut Kept {
        if announce.takes_seeders() { &mut self.with_seeders } else { &mut self.without_seeders }
    }
}

impl Sample {
    /// The peers in the answer to `announce`, and its own peer if others that use these may be given it.
    pub(crate) fn new(
        taken: Instant,
        announce: &Announce,
        stats: SwarmStats,
        peers: &PeerBuffer<'_>,
    ) -> Arc<Self> {
        let (mut v4, mut v6) = (peers.v4.peers().to_vec(), peers.v6.peers().to_vec());
        if announce.takes_seeders() {
            match announce.endpoint {
                Endpoint::V4(endpoint) => v4.push(*endpoint.as_bytes()),
                Endpoint::V6(endpoint) => v6.push(*endpoint.as_bytes()),
            }
        }
        Arc::new(Self { taken, stats, v4, v6 })
    }

    /// Answers an announce as a store with just these peers would.
    pub(crate) fn answer(&self, announce: &Announce, random: u64, peers: &mut PeerBuffer<'_>) -> Announced {
        let own = announce.endpoint.as_bytes();
        let v4_mine = self.v4.iter().position(|peer| peer.as_slice() == own);
        let v6_mine = self.v6.iter().position(|peer| peer.as_slice() == own);
        let eligible = |family, len: usize, mine: Option<usize>| {
            if announce.families.contains(family) { len - usize::from(mine.is_some()) } else { 0 }
        };
        let v4 = eligible(Families::V4, self.v4.len(), v4_mine);
        let v6 = eligible(Families::V6, self.v6.len(), v6_mine);
        peers.clear();
        let (want_v4, want_v6) = peers.share(announce.want, v4, v6);
        window(&self.v4, v4_mine, want_v4, random as u32, |part| peers.v4.extend(part));
        window(&self.v6, v6_mine, want_v6, (random >> 32) as u32, |part| peers.v6.extend(part));
        Announced::new(self.stats, Changes::REFRESHED)
    }
}

/// Passes `want` consecutive peers to `out`: from a random one on, around the end, without the one at `mine`.
fn window<T>(peers: &[T], mine: Option<usize>, want: usize, random: u32, mut out: impl FnMut(&[T])) {
    let eligible = peers.len() - usize::from(mine.is_some());
    if want == 0 || eligible == 0 {
        return;
    }
    let start = (u64::from(random) * eligible as u64) >> 32;
    let start = start as usize;
    // `from` and `to` are ranks among the eligible peers: from `mine` on, each peer is one place further.
    let mut part = |from: usize, to: usize| match mine {
        Some(mine) if to <= mine => out(&peers[from..to]),
        Some(mine) if from >= mine => out(&peers[from + 1..to + 1]),
        Some(mine) => {
            out(&peers[from..mine]);
            out(&peers[mine + 1..to + 1]);
        }
        None => out(&peers[from..to]),
    };
    let end = (start + want).min(eligible);
    part(start, end);
    part(0, want - (end - start));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_as_many_as_wanted_each_once_and_never_the_announcer() {
        for size in 0..20_u32 {
            let peers: Vec<_> = (0..size).collect();
            for mine in (0..size as usize).map(Some).chain([None]) {
                let eligible = size as usize - usize::from(mine.is_some());
                let mut hits = vec![0; size as usize];
                for want in 0..=eligible {
                    for start in 0..eligible as u64 {
                        let random = ((start << 32) / eligible as u64 + 1) as u32;
                        let mut found = Vec::new();
                        window(&peers, mine, want, random, |part| found.extend_from_slice(part));
                        assert_eq!(found.len(), want, "of {size} without {mine:?} from {start}");
                        found.iter().for_each(|&peer| hits[peer as usize] += 1);
                        found.sort_unstable();
                        found.dedup();
                        assert_eq!(found.len(), want, "each once");
                    }
                }
                let expected = |peer| if Some(peer) == mine { 0 } else { (0..=eligible).sum::<usize>() };
                assert!(
                    hits.iter().enumerate().all(|(peer, &hits)| hits == expected(peer)),
                    "all alike: {hits:?}"
                );
            }
        }
    }

    const NOW: u32 = 1000;

    fn peer(n: u32) -> Announce {
        let endpoint = Endpoint::new(std::net::Ipv4Addr::from_bits(n + 1).into(), 1).expect("a port");
        Announce::new(InfoHash::new([1; 20]), endpoint)
    }

    fn hot() -> Arc<Answers> {
        let answers = Answers::new(Duration::from_secs(1000)).expect("something may be stale");
        for _ in 1..HOT {
            assert!(matches!(answers.source(&peer(0), NOW, true), AnswerSource::Asked));
        }
        let AnswerSource::Fetched(asked) = answers.source(&peer(0), NOW, true) else { panic!("one for all") };
        assert!(matches!(answers.source(&peer(0), NOW, true), AnswerSource::Asked), "while it is fetched");
        let mut room = [0; 6];
        let peers = PeerBuffer::new(&mut room, &mut []);
        answers.keep(&peer(0), Sample::new(asked, &peer(0), SwarmStats::default(), &peers));
        answers
    }

    fn waiting(answers: &Answers) -> Vec<(Announce, u32)> {
        let info_hash = peer(0).info_hash;
        let taken = answers.take(&info_hash, &answers.waiting(&info_hash));
        let mut waiting = taken.announces().to_vec();
        taken.arrived_but(0);
        waiting.sort_unstable_by_key(|(announce, _)| announce.endpoint);
        waiting
    }

    #[test]
    fn few_announces_are_asked_for_and_many_are_not() {
        let answers = hot();
        assert!(matches!(answers.source(&peer(0), NOW, true), AnswerSource::Kept { send: Some(_), .. }));
        assert!(matches!(answers.source(&peer(1), NOW, true), AnswerSource::Kept { send: None, .. }));
        let seeder = peer(3).left(0);
        let asks = answers.source(&seeder.seeders_too(true), NOW, true);
        assert!(matches!(asks, AnswerSource::Kept { send: None, .. }), "a seeder that asks for seeders");
        assert!(
            matches!(answers.source(&seeder, NOW, true), AnswerSource::Fetched(_)),
            "a seeder that does not"
        );
        for event in [AnnounceEvent::Started, AnnounceEvent::Completed, AnnounceEvent::Stopped] {
            assert!(matches!(answers.source(&peer(2).event(event), NOW, true), AnswerSource::Asked));
        }
        assert_eq!(waiting(&answers), [(peer(0), NOW), (peer(1), NOW)]);
        assert_eq!(waiting(&answers), []);
        let mut on_their_way = Vec::new();
        for n in 0..UNSENT as u32 {
            let AnswerSource::Kept { send, .. } = answers.source(&peer(n), NOW, true) else {
                panic!("{n} changes are not too many")
            };
            if send == Some(Duration::ZERO) {
                let waiting = answers.waiting(&peer(n).info_hash);
                assert_eq!(waiting.len(), ENOUGH, "enough are not to wait");
                on_their_way.push(answers.take(&peer(n).info_hash, &waiting));
            }
        }
        let more = peer(UNSENT as u32);
        assert!(
            matches!(answers.source(&more, NOW, true), AnswerSource::Asked),
            "no more are unsent than may be"
        );
        assert_eq!(answers.unsent_and_lost(), (UNSENT, 0));
        on_their_way.pop();
        assert_eq!(
            answers.unsent_and_lost(),
            (UNSENT - ENOUGH, ENOUGH as u64),
            "nobody has said that they arrived"
        );
        assert!(matches!(answers.source(&more, NOW, true), AnswerSource::Kept { .. }));
    }

    #[test]
    fn whoever_comes_while_others_are_sent_has_nobody_sent_for_them_at_once() {
        let answers = hot();
        let source = |n| match answers.source(&peer(n), NOW, true) {
            AnswerSource::Kept { send, .. } => send,
            other => panic!("{other:?}"),
        };
        let many = ENOUGH as u32;
        assert_eq!((0..many).filter(|&n| source(n) == Some(Duration::ZERO)).count(), 1);
        let all = answers.waiting(&peer(0).info_hash);
        answers.take(&peer(0).info_hash, &all[..256]).arrived_but(0);
        let sent_for: Vec<_> = (many..many + 512).filter_map(source).collect();
        assert_eq!(sent_for, [answers.age], "the others are on their way already");
    }

    #[test]
    fn nothing_that_waits_arrives_behind_what_the_peer_says_later() {
        let answers = hot();
        let waits = |n| assert!(matches!(answers.source(&peer(n), NOW, true), AnswerSource::Kept { .. }));
        (0..4).for_each(waits);
        // The same again, later: one change, the latest.
        answers.source(&peer(0), NOW + 1, true);
        assert!(matches!(
            answers.source(&peer(1).event(AnnounceEvent::Stopped), NOW, false),
            AnswerSource::Asked
        ));
        assert!(matches!(answers.source(&peer(2).left(0), NOW, true), AnswerSource::Fetched(_)));
        assert_eq!(waiting(&answers), [(peer(0), NOW + 1), (peer(3), NOW)]);
        // A peer whose announce is about to be sent, and that makes another announce before.
        (4..6).for_each(waits);
        let next = answers.waiting(&peer(0).info_hash);
        answers.source(&peer(4).event(AnnounceEvent::Stopped), NOW, false);
        waits(6);
        let taken = answers.take(&peer(0).info_hash, &next);
        assert_eq!(taken.announces(), [(peer(5), NOW)]);
        drop(taken);
        assert_eq!(waiting(&answers), [(peer(6), NOW)]);
        (0..4).for_each(waits);
        answers.forget(&peer(0).info_hash);
        assert_eq!(waiting(&answers), []);
        assert_eq!(answers.state.lock().unsent, 0, "all are accounted for");
    }
}
