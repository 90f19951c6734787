//! Cases of batches: a batch does the same as its announces one by one.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
};

use proptest::{
    collection::vec,
    prelude::{BoxedStrategy, Just, Strategy, any},
    prop_assert, prop_assert_eq, prop_oneof,
    strategy::{NewTree, ValueTree},
    test_runner::{TestCaseError, TestRunner},
};
use swarmkeep::{
    Announce, AnnounceEvent, Announced, Changes, Endpoint, Family, PeerBuffer, Random, Request, Retention,
    Role, SplitMix64, TorrentRepositoryExt, implement::SectionExt as _,
};

use crate::{
    Model, Subject,
    cases::stories::{self, TestAnnounce, announce_of, torrent_of},
    kit::*,
};

const TORRENTS: u8 = 4;

/// Batches of all sizes, with most announces for few swarms and from few endpoints. Earlier contents of an
/// answer or a buffer do not matter.
pub(crate) fn a_batch_does_what_single_announces_do(subject: &dyn Subject) {
    let turn = (0..40_u64, any::<bool>(), batch());
    let story = vec(turn.prop_map(|(pass, sweep, batch)| Turn { pass, sweep, batch }), 1..8);
    stories::run(&story, 40, |batches| {
        let mut world = World::new(subject);
        for Turn { pass, sweep, batch } in &batches {
            world.pass(*pass, *sweep);
            world.take(batch)?;
        }
        Ok(())
    });
}

/// A batch some seconds after the one before, and perhaps after a sweep of swarms without peers.
#[derive(Debug)]
struct Turn {
    pass: u64,
    sweep: bool,
    batch: Batch,
}

/// One request of a batch.
#[derive(Clone)]
struct TestRequest {
    announce: TestAnnounce,
    /// The room in the buffer, in peers of each family.
    room: (usize, usize),
    /// Whether the answer and the buffer contain an earlier result.
    used: bool,
}

/// Requests that shrink to fewer requests: `None` is omitted.
#[derive(Clone)]
struct Batch(Vec<Option<TestRequest>>);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().flatten()).finish()
    }
}

fn batch() -> BoxedStrategy<Batch> {
    let mixed = [0, 1, 2, 31, 32, 33, 64, 200].map(|size| vec(Omittable(request(0..12_u8)), size));
    let [none, one, two, below, whole, above, double, large] = mixed;
    prop_oneof![
        1 => none, 1 => one, 2 => two, 2 => below, 3 => whole, 2 => above, 2 => double, 1 => large,
        1 => tide(),
    ]
    .prop_map(Batch)
    .boxed()
}

/// Fills a swarm far beyond the size of small ones and empties it but for a few peers, among other announces.
fn tide() -> impl Strategy<Value = Vec<Option<TestRequest>>> {
    let flood =
        (0..TORRENTS, 60..160_u8, any::<bool>(), 0..3_u8).prop_map(|(torrent, size, seeder, stay)| {
            let step = |event| {
                move |endpoint: u8| {
                    let (seeders_too, want, families) = (endpoint.is_multiple_of(2), 5, 4);
                    let announce =
                        TestAnnounce { torrent, endpoint, event, seeder, seeders_too, want, families };
                    TestRequest { announce, room: (200, 200), used: false }
                }
            };
            let rising = (0..size).map(step(AnnounceEvent::Started));
            let falling = (stay..size).map(step(AnnounceEvent::Stopped));
            rising.chain(falling).collect::<Vec<_>>()
        });
    (flood, vec(request(0..160_u8), 20)).prop_flat_map(|(mut flood, others)| {
        for (n, other) in others.into_iter().enumerate() {
            flood.insert((n * 8 + 3).min(flood.len()), other);
        }
        flood.into_iter().map(|told| Omittable(Just(told)).boxed()).collect::<Vec<_>>()
    })
}

/// An element of a list of fixed length. To shrink, it first becomes `None`.
#[derive(Debug, Clone)]
struct Omittable<S>(S);

impl<S: Strategy> Strategy for Omittable<S> {
    type Tree = OmittableTree<S::Tree>;
    type Value = Option<S::Value>;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        Ok(OmittableTree { tree: self.0.new_tree(runner)?, tried: false, left_out: false })
    }
}

/// An [`Omittable`] element, whether it has been `None`, and whether it is.
struct OmittableTree<T> {
    tree: T,
    tried: bool,
    left_out: bool,
}

impl<T: ValueTree> ValueTree for OmittableTree<T> {
    type Value = Option<T::Value>;

    fn current(&self) -> Self::Value {
        (!self.left_out).then(|| self.tree.current())
    }

    fn simplify(&mut self) -> bool {
        if !self.tried {
            (self.tried, self.left_out) = (true, true);
            return true;
        }
        !self.left_out && self.tree.simplify()
    }

    fn complicate(&mut self) -> bool {
        if self.left_out {
            self.left_out = false;
            return true;
        }
        self.tree.complicate()
    }
}

fn request(endpoints: std::ops::Range<u8>) -> impl Strategy<Value = TestRequest> {
    let want = prop_oneof![2 => Just(0), 4 => 1..6_usize, 2 => Just(50), 1 => 6..=200_usize];
    let room = prop_oneof![4 => Just((200, 200)), 1 => (0..4_usize, 0..4_usize)];
    // Half of all announces are for one swarm.
    let torrent = prop_oneof![Just(0), 0..TORRENTS];
    (announce_of(torrent, endpoints, [4, 2, 2, 3], want), room, any::<bool>())
        .prop_map(|(announce, room, used)| TestRequest { announce, room, used })
}

impl fmt::Debug for TestRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in room for {:?}", self.announce, self.room)?;
        if self.used { write!(f, ", used before") } else { Ok(()) }
    }
}

/// Two stores of the same kind, and the model, which knows the peers of each swarm at each moment.
struct World {
    batched: Store,
    single: Store,
    model: Model,
    now: u64,
}

impl World {
    fn new(subject: &dyn Subject) -> Self {
        let model = Model::new(&config()).expect("a lifetime of whole seconds, and no limit");
        Self { batched: build(subject), single: build(subject), model, now: 0 }
    }

    fn pass(&mut self, seconds: u64, sweep: bool) {
        self.now += seconds;
        if sweep {
            self.batched.sweep_all(at(self.now), Retention::DropEmpty);
            self.single.sweep_all(at(self.now), Retention::DropEmpty);
            self.model.sweep_all(at(self.now), Retention::DropEmpty);
        }
    }

    fn take(&self, batch: &Batch) -> Result<(), TestCaseError> {
        let batch: Vec<&TestRequest> = batch.0.iter().flatten().collect();
        let bytes_of = |told: &&TestRequest| AnswerBytes::new(told.room.0, told.room.1);
        let mut bytes: Vec<_> = batch.iter().map(bytes_of).collect();
        let mut requests: Vec<_> =
            batch.iter().zip(&mut bytes).map(|(told, bytes)| told.request(bytes)).collect();
        self.batched.announce_batch(&mut requests, at(self.now), &mut SplitMix64::new(self.now));

        for (n, (told, request)) in batch.iter().zip(&requests).enumerate() {
            let mut bytes = bytes_of(told);
            let mut alone = told.request(&mut bytes);
            let announce = &alone.announce;
            let answer =
                self.single.announce(announce, at(self.now), &mut SplitMix64::new(7), &mut alone.peers);
            let place = format!("announce {n} of {}: {told:?}", batch.len());
            prop_assert_eq!(request.answer, Some(answer), "the answer to {}", place);
            self.judge(announce, answer, &request.peers, told.room, &place)?;
            let [batched, single] =
                [&request.peers, &alone.peers].map(|peers| (peers.v4.len(), peers.v6.len()));
            prop_assert_eq!(batched, single, "peers handed out of each family, to {}", place);
        }
        self.compare()
    }

    /// Returns whether `peers` is a valid selection at that moment.
    fn judge(
        &self,
        announce: &Announce,
        answer: Announced,
        peers: &PeerBuffer<'_>,
        room: (usize, usize),
        place: &str,
    ) -> Result<(), TestCaseError> {
        let mut state = self.model.state();
        prop_assert_eq!(answer, state.update(announce, at(self.now)), "the answer of the model to {}", place);
        let (mut handed, mut fitting): (Vec<Endpoint>, usize) = (peers.endpoints().collect(), 0);
        let swarm = state.swarms.get(&announce.info_hash);
        if let Some(swarm) = swarm.filter(|_| announce.event != AnnounceEvent::Stopped) {
            for endpoint in &handed {
                let role = swarm.peers.get(endpoint).map(|peer| peer.role);
                prop_assert!(role.is_some(), "{} is not in the swarm, and handed to {}", endpoint, place);
                let fits = role == Some(Role::Leecher) || announce.takes_seeders();
                prop_assert!(fits, "a seeder is handed to {}", place);
            }
            for (family, room) in [(Family::V4, room.0), (Family::V6, room.1)] {
                let eligible = swarm.eligible(announce, family).len();
                let count = handed.iter().filter(|endpoint| endpoint.family() == family).count();
                prop_assert!(count <= eligible, "{} of {} are handed to {}", count, eligible, place);
                fitting += eligible.min(room);
            }
        }
        let (count, expected) = (handed.len(), announce.want.min(fitting));
        prop_assert_eq!(count, expected, "peers handed out, of {}, to {}", fitting, place);
        handed.sort_unstable();
        handed.dedup();
        prop_assert_eq!(handed.len(), count, "a peer is selected twice for {}", place);
        prop_assert!(!handed.contains(&announce.endpoint), "the announcer is handed to {}", place);
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let (batched, single) = (&self.batched, &self.single);
        prop_assert_eq!(batched.totals(), single.totals(), "the totals");
        prop_assert_eq!(batched.summaries(), single.summaries(), "the swarms");
        for torrent in (0..TORRENTS).map(torrent_of) {
            prop_assert_eq!(batched.scrape(&torrent), single.scrape(&torrent), "a scrape");
            prop_assert_eq!(batched.members(&torrent), single.members(&torrent), "the peers of a swarm");
        }
        Ok(())
    }
}

impl TestRequest {
    /// Returns the announce as a request. If it was used before, it has an earlier answer and its peers.
    fn request<'a>(&self, bytes: &'a mut AnswerBytes) -> Request<'a> {
        let mut request = Request::new(self.announce.announce(), bytes.buffer());
        if self.used {
            request.answer = Some(Announced::new(stats(7, 7, 7), Changes::all()));
            (0..request.peers.v4.room().min(3)).for_each(|_| request.peers.v4.push(&[9; 6]));
            (0..request.peers.v6.room()).for_each(|_| request.peers.v6.push(&[9; 18]));
        }
        request
    }
}

/// The announces before the first one that draws are done, and so is every announce that has an answer.
pub(crate) fn a_panic_in_the_middle_of_a_batch_leaves_what_came_before_it_done(subject: &dyn Subject) {
    let crowd = hash(1);
    // One announce with a choice, at several positions among announces that want no peers; and all announces
    // with a choice.
    let places = [0, 1, 15, 31, 32, 47, 63].map(|place| (place..place + 1, 0));
    let everywhere = [0, 1, 30, 200].map(|good| (0..64, good));
    for (choosing, good) in places.into_iter().chain(everywhere) {
        let announces: Vec<_> = (0..64_u32)
            .map(|n| {
                let torrent = [crowd, hash(u64::from(n % 7) + 2), hash(u64::from(n) + 100)][n as usize % 3];
                let torrent = if choosing.contains(&n) { crowd } else { torrent };
                let endpoint = peer(if n % 4 == 1 { Family::V6 } else { Family::V4 }, 1000 + n);
                let want = if choosing.contains(&n) { 10 } else { 0 };
                Announce::new(torrent, endpoint).left((n % 2).into()).want(want).families(BOTH)
            })
            .collect();
        let [batched, single, drawing] = [(); 3].map(|()| {
            let store = build(subject);
            let announce = |endpoint, n: u32| Announce::new(crowd, endpoint).left((n % 2).into()).want(0);
            let members: Vec<_> = (0..300).flat_map(|n| [announce(v4(n), n), announce(v6(n), n)]).collect();
            store.tell_batch(at(0), &members, &mut SplitMix64::new(1), |_| {});
            store
        });
        within(PATIENCE.get(), "a store after a panic in a batch", move || {
            let alone: Vec<_> = announces
                .iter()
                .map(|announce| announce_with(&single, announce, at(1), &mut SplitMix64::new(1)).announced)
                .collect();
            let undrawn = announces.iter().take_while(|announce| {
                let told = || announce_with(&drawing, announce, at(1), &mut Panicking { good });
                good == 0 && panic::catch_unwind(AssertUnwindSafe(told)).is_ok()
            });
            let undrawn = undrawn.count();

            let mut rooms = Vec::new();
            let mut requests = requests(&announces, &mut rooms);
            let told = panic::catch_unwind(AssertUnwindSafe(|| {
                batched.announce_batch(&mut requests, at(1), &mut Panicking { good });
            }));
            if let Err(panicked) = told {
                assert_eq!(text_of(&*panicked), Panicking::TEXT, "another panic than the caller's own");
            }
            batched.assert_consistent();
            for (n, (request, alone)) in requests.iter().zip(&alone).enumerate() {
                let Some(answer) = request.answer else {
                    assert!(n >= undrawn, "announce {n} is not done, where the first to draw is {undrawn}");
                    continue;
                };
                assert_eq!(answer, *alone, "the answer to announce {n}");
                let Announce { info_hash, endpoint, .. } = request.announce;
                assert!(batched.members(&info_hash).contains_key(&endpoint), "answered, and not there");
            }
            // Later announces work.
            for store in [&batched, &single] {
                let again = announces
                    .iter()
                    .map(|&announce| Request::new(announce, PeerBuffer::new(&mut [], &mut [])));
                store.announce_batch(&mut again.collect::<Vec<_>>(), at(2), &mut SplitMix64::new(1));
                store.assert_consistent();
            }
            assert_eq!((batched.totals(), batched.summaries()), (single.totals(), single.summaries()));
        });
    }
}

/// A reused request loses its earlier answer, even if a panic comes before its turn.
pub(crate) fn no_answer_of_an_earlier_batch_stays_when_a_later_one_panics(subject: &dyn Subject) {
    let (store, crowd) = (build(subject), hash(1));
    store.fill(0, (0..300).map(|n| leecher(crowd, v4(n))));
    let announces: Vec<_> = (0..100_u32)
        .map(|n| {
            let (torrent, want) = if n % 10 == 3 { (crowd, 10) } else { (hash(u64::from(n) + 2), 5) };
            leecher(torrent, v4(1000 + n)).want(want)
        })
        .collect();
    let mut rooms = Vec::new();
    let mut requests = requests(&announces, &mut rooms);
    for good in [0, 1, 4, 9] {
        store.announce_batch(&mut requests, at(1), &mut SplitMix64::new(1));
        assert!(requests.iter().all(|request| request.answer.is_some()));
        store.forget(announces.iter().map(|announce| announce.info_hash).filter(|torrent| *torrent != crowd));
        assert_panics_with(Panicking::TEXT, || {
            store.announce_batch(&mut requests, at(2), &mut Panicking { good });
        });
        for (n, Request { announce, peers, answer, .. }) in requests.iter().enumerate() {
            let is_done = store.scrape(&announce.info_hash).peers() > 0;
            if announce.info_hash != crowd {
                assert!(answer.is_none() || is_done, "announce {n} of {good} has an earlier answer");
            }
            if answer.is_none() {
                let earlier = peers.len();
                assert_eq!(earlier, 0, "announce {n} of {good} has no answer, and earlier peers");
            }
        }
        let last = requests.last().map(|request| request.answer.is_some());
        assert_eq!(last, Some(false), "the last announce comes after the panic with {good}");
        store.assert_consistent();
    }
}

/// A generator that panics once, and then goes on.
struct PanicsOnce {
    good: u32,
    panicked: bool,
}

impl Random for PanicsOnce {
    fn next_u64(&mut self) -> u64 {
        match self.good.checked_sub(1) {
            _ if self.panicked => 7,
            None => {
                self.panicked = true;
                panic::resume_unwind(Box::new(Panicking::TEXT));
            }
            Some(good) => {
                self.good = good;
                0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(good.into())
            }
        }
    }
}

/// No panic is lost, whichever announce of the batch the store draws for.
pub(crate) fn a_panic_of_the_randomness_in_a_batch_reaches_the_caller(subject: &dyn Subject) {
    let (store, crowd) = (build(subject), hash(1));
    store.fill(0, (0..300).flat_map(|n| [leecher(crowd, v4(n)), leecher(crowd, v6(n))]));
    let announces = (0..40_u32).map(|n| {
        let announce = match n % 4 {
            0 => stopped(crowd, v4(n)),
            1 => leecher(hash(u64::from(n) + 2), v4(n)).want(10),
            2 => leecher(crowd, v4(n)).want(0),
            _ => leecher(crowd, peer(if n % 8 == 3 { Family::V4 } else { Family::V6 }, n)).want(10),
        };
        announce.families(BOTH)
    });
    let announces: Vec<_> = announces.collect();
    let mut reached = 0;
    for good in 0..50 {
        let (mut rooms, mut rng) = (Vec::new(), PanicsOnce { good, panicked: false });
        let mut requests = requests(&announces, &mut rooms);
        let told = panic::catch_unwind(AssertUnwindSafe(|| {
            store.announce_batch(&mut requests, at(1), &mut rng);
        }));
        assert_eq!(told.is_err(), rng.panicked, "whether the caller sees the panic after {good} numbers");
        if let Err(panicked) = told {
            assert_eq!(text_of(&*panicked), Panicking::TEXT, "another panic than the caller's own");
            reached += 1;
        }
        store.assert_consistent();
    }
    assert!(reached >= 10, "a store that draws for ten announces at least panics, not {reached} times");
}
