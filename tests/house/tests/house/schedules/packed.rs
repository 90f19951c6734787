//! The packed store under schedules of shuttle.

use std::sync::{Arc, atomic::AtomicU64};

use shuttle::{
    Config, Runner,
    rand::{Rng as _, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
    thread,
};
use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Evicted, HashKey, Immediate, InfoHash, Packed,
    PeerBuffer, RepositoryConfig, Request, Retention, SplitMix64, Timestamp, TorrentRepository,
    TorrentRepositoryExt as _, Totals,
};
use swarmkeep_conformance::{
    histories::{self, Program},
    kit::InBatches,
};

use super::{
    HASH, NOW, announce, announces_against_removals, announces_against_remove, two_sweepers_share_one_pass,
};

const FEW: u32 = 4;

fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([1; 16])).shards(2)
}

fn packed() -> Packed {
    Packed::new(&config()).unwrap()
}

/// Half of the schedules are random; the others change threads at few places. They are the same in each run.
fn check(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let mut config = Config::new();
    (config.stack_size, config.silence_warnings) = (1 << 20, true);
    let again = test.clone();
    Runner::new(RandomScheduler::new_from_seed(1, schedules / 2), config.clone()).run(move || again());
    Runner::new(PctScheduler::new_from_seed(1, 3, schedules / 2), config).run(move || test());
}

/// Random programs of two or three threads have an order in which all answers are right. In the end no swarm
/// and no byte is left.
fn calls_have_an_order(bystanders: u32) {
    let store = Arc::new(packed());
    // Room for hints stays.
    announce(&*store, 1, AnnounceEvent::Started);
    store.remove(&HASH);
    let swept = {
        let store = store.clone();
        move || {
            store.sweep_all(NOW, Retention::DropEmpty);
            store.memory()
        }
    };
    let empty = swept();
    let called: Arc<dyn AsyncTorrentRepository> = Arc::new(Immediate(InBatches(store.clone())));
    let clock = Arc::new(AtomicU64::new(0));
    let run = move |program: Program| program.run(&|| called.clone(), &clock);
    let seed = thread_rng().gen_range(0..1 << 30);
    let mut calls = vec![run(Program::before(seed, bystanders))];
    let threads: Vec<_> = (0..2 + (seed % 2) as usize)
        .map(|thread| {
            let run = run.clone();
            thread::spawn(move || run(Program::random(seed, thread, 3)))
        })
        .collect();
    calls.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    calls.push(run(Program::after(seed)));
    calls.push(run(Program::end(seed)));
    histories::judge(calls).unwrap_or_else(|story| panic!("seed {seed}:\n{story}"));
    assert_eq!(store.totals(), Totals::default());
    // A large swarm leaves room for hints of more leaves.
    assert!(bystanders > FEW || swept() == empty);
}

#[test]
fn calls_to_small_swarms_have_an_order() {
    check(100_000, || calls_have_an_order(FEW));
}

#[test]
fn calls_to_large_swarms_have_an_order() {
    check(10_000, || calls_have_an_order(512));
}

#[test]
fn packed_swarms_lose_no_announce() {
    check(10_000, || announces_against_removals(packed()));
    check(10_000, || announces_against_remove(packed()));
    check(10_000, || two_sweepers_share_one_pass(packed()));
}

/// A store with a swarm to which refreshes share the lock.
fn with_a_large_swarm() -> Arc<Packed> {
    let store = Arc::new(packed());
    (0..255).for_each(|host| announce(&*store, host, AnnounceEvent::Started));
    store
}

fn announce_thrice(store: &Packed, host: u8) {
    let announce = Announce::new(HASH, format!("192.0.2.{host}:6881").parse().unwrap());
    let request = || Request::new(announce, PeerBuffer::new(&mut [], &mut []));
    store.announce_batch(&mut [request(), request(), request()], NOW, &mut SplitMix64::new(1));
}

/// Between two announces, a batch lets in a thread that wants the lock alone.
#[test]
fn batches_that_share_the_lock_lose_no_newcomer() {
    check(10_000, || {
        let store = with_a_large_swarm();
        [1, 2].map(|host| announce_thrice(&store, host));
        let threads = [1, 2].map(|host| {
            let store = store.clone();
            thread::spawn(move || announce_thrice(&store, host))
        });
        announce(&*store, 255, AnnounceEvent::Started);
        threads.map(|thread| thread.join().unwrap());
        assert_eq!(store.scrape(&HASH).peers(), 256);
    });
}

/// An announce finds a large swarm, and another thread removes it before the announce has the lock again.
#[test]
fn a_large_swarm_that_is_removed_is_found_no_more() {
    check(2_000, || {
        let store = with_a_large_swarm();
        let works: [fn(&Packed); 2] = [|store| _ = store.remove(&HASH), |store| announce_thrice(store, 1)];
        let threads = works.map(|work| {
            let store = store.clone();
            thread::spawn(move || work(&store))
        });
        announce(&*store, 255, AnnounceEvent::Started);
        threads.map(|thread| thread.join().unwrap());
        let left = store.scrape(&HASH).peers();
        assert_eq!((store.all_peers(&HASH).len() as u64, store.totals().peers()), (left, left));
    });
}

/// Newcomers to a full store: it has no more swarms than it may have, and each peer is there or was evicted.
#[test]
fn newcomers_keep_to_the_limit_and_are_counted() {
    const MOST: u64 = 2;
    check(10_000, || {
        let store = Arc::new(Packed::new(&config().max_swarms(MOST as usize)).unwrap());
        let tell = |store: &Packed, n: u8| {
            let announce =
                Announce::new(InfoHash::new([n; 20]), format!("192.0.{n}.1:6881").parse().unwrap());
            let mut peers = PeerBuffer::new(&mut [], &mut []);
            store.announce(&announce, NOW, &mut SplitMix64::new(1), &mut peers).evicted
        };
        let mut evicted = vec![tell(&store, 1), tell(&store, 2)];
        let threads = [3, 4].map(|n| {
            let store = store.clone();
            thread::spawn(move || tell(&store, n))
        });
        evicted.extend(threads.map(|thread| thread.join().unwrap()));
        let totals = store.totals();
        assert!(totals.swarms <= MOST, "{totals:?}");
        assert_eq!(totals.peers() + totals.evicted.peers, 4, "{totals:?}");
        let sum = |part: fn(&Evicted) -> u64| evicted.iter().map(part).sum::<u64>();
        let told = (sum(|one| one.swarms), sum(|one| one.peers));
        assert_eq!((totals.evicted.swarms, totals.evicted.peers), told);
        assert_eq!(totals.swarms, store.swarms().len() as u64);
    });
}

#[test]
fn time_does_not_go_back() {
    check(1000, || {
        let store = Arc::new(packed());
        let threads = [5, 3].map(|seconds| {
            let store = store.clone();
            thread::spawn(move || {
                let now = NOW.saturating_add(seconds);
                assert!(store.advance(now) >= now);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(store.advance(Timestamp::default()), NOW.saturating_add(5));
    });
}
