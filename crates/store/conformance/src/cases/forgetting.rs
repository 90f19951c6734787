//! Cases of removal: the peers and swarms that a sweep removes, the size of one step, and removals by name.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use swarmkeep::{
    Budget, ConfigError, Cursor, Export, Family, InfoHash, LongestHold, PeerBuffer, PeerRecord, Retention,
    Role, SplitMix64, SwarmSummary, Swept, TorrentRepositoryExt,
};

use crate::{Subject, common::SetOnDrop, kit::*};

/// Sweeps until a pass is complete, which must happen within a reasonable number of steps.
fn sweep(store: &Store, seconds: u64, policy: Retention, budget: usize) -> Swept {
    let mut swept = Swept::default();
    for _ in 0..1_000_000 {
        swept += store.sweep(at(seconds), policy, Budget::peers(budget));
        if swept.pass_complete {
            return swept;
        }
    }
    panic!("no pass of a sweep was complete after a million steps of {budget}");
}

pub(crate) fn a_peer_is_never_swept_while_it_is_no_older_than_the_lifetime(subject: &dyn Subject) {
    let (store, crowd) = (build(subject), hash(u64::MAX));
    // At all phases of a coarse clock.
    let last = 40.max(resolution(&store).min(200) + 10);
    for joined in 0..last {
        let torrent = hash(joined);
        store.fill(
            joined,
            [leecher(torrent, v4(1)), seeder(torrent, v6(2)), leecher(crowd, v4(joined as u32))],
        );
    }
    for now in LIFETIME..=LIFETIME + last {
        let expired = sweep(&store, now, Retention::DropEmpty, 1000).expired;
        // Peers expire over time, but none too early.
        let outlived = now - LIFETIME;
        assert!(expired <= 3 * outlived, "{expired} went when {outlived} had outlived the lifetime");
        for joined in outlived..last {
            let age = now - joined;
            assert_eq!(store.scrape(&hash(joined)), stats(1, 1, 0), "swept {age} seconds after it announced");
        }
        assert!(
            store.scrape(&crowd).peers() >= last - outlived.min(last),
            "swept with older ones of its swarm"
        );
    }
}

pub(crate) fn a_peer_is_swept_once_its_age_exceeds_the_lifetime_by_the_clock_resolution(
    subject: &dyn Subject,
) {
    let resolution = resolution(&build(subject));
    for joined in phases(resolution) {
        let store = build(subject);
        let torrent = hash(1);
        store.fill(joined, (0..20).map(|n| leecher(torrent, v4(n))));
        store.fill(joined, (0..20).map(|n| seeder(torrent, v6(n))));
        store.fill(joined + 1000, [leecher(torrent, v4(99))]);
        let swept = sweep(&store, joined + LIFETIME + resolution + 1, Retention::DropEmpty, 1000);
        assert_eq!(swept.expired, 40, "peers that outlived the lifetime by more than {resolution} s");
        assert_eq!(store.members(&torrent).into_keys().collect::<Vec<_>>(), [v4(99)]);
        store.assert_consistent();
    }
}

pub(crate) fn an_announce_renews_the_lifetime(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    for turn in 0..30 {
        let now = turn * (LIFETIME - 10);
        store.fill(now, [leecher(torrent, v4(1)), seeder(torrent, v6(1))]);
        let swept = sweep(&store, now, Retention::DropEmpty, 1000);
        assert_eq!(swept.expired, 0, "renewed {turn} times");
    }
}

pub(crate) fn lifetimes_out_of_range_are_refused(subject: &dyn Subject) {
    let longest = capabilities(subject).longest_lifetime_secs;
    let too_long = longest.checked_add(1).map(Duration::from_secs);
    let fractions = [Duration::ZERO, Duration::from_millis(999), Duration::from_millis(1_800_001)];
    for lifetime in fractions.into_iter().chain(too_long) {
        match subject.build(&config().lifetime(lifetime)) {
            Err(ConfigError::Lifetime { given, .. }) => assert_eq!(given, lifetime),
            Err(other) => panic!("a lifetime of {lifetime:?} must be refused as a lifetime, not: {other}"),
            Ok(_) => panic!("a lifetime of {lifetime:?} is not refused; the longest declared is {longest} s"),
        }
    }
}

/// Exact to the second, for the shortest and longest lifetimes and some in between: every lifetime of the
/// declared range works.
pub(crate) fn every_lifetime_in_range_is_kept(subject: &dyn Subject) {
    const CENTURY: u64 = 100 * 365 * 86_400;
    let longest = capabilities(subject).longest_lifetime_secs.min(CENTURY);
    for lifetime in [1, 2, 59, 101, 2700, 86_400, longest / 2, longest - 1, longest] {
        let config = config().lifetime(Duration::from_secs(lifetime));
        // The resolution may depend on the lifetime.
        let resolution = resolution(&build_with(subject, &config));
        for joined in phases(resolution) {
            let (store, torrent) = (build_with(subject, &config), hash(1));
            store.fill(joined, [leecher(torrent, v4(1)), seeder(torrent, v6(2))]);
            sweep(&store, joined + lifetime, Retention::DropEmpty, 1000);
            assert_eq!(store.scrape(&torrent).peers(), 2, "as old as the lifetime of {lifetime} s, no older");
            sweep(&store, joined + lifetime + resolution + 1, Retention::DropEmpty, 1000);
            assert_eq!(store.scrape(&torrent).peers(), 0, "past the lifetime of {lifetime} s");
        }
    }
}

/// The sweep may be late by any time. A clock of few bits wraps after a number of ticks, and would then make
/// peers look young for a lifetime.
pub(crate) fn late_sweeps_make_no_expired_peer_young(subject: &dyn Subject) {
    let resolution = resolution(&build(subject));
    let begin = LIFETIME + resolution + 1;
    // For every point at which a clock wraps within three days.
    let days = (begin..260_000).step_by(LIFETIME as usize * 2 / 3);
    // Ticks of one second, of the declared resolution, and of common sizes.
    let ticks = [1, resolution + 1, 32, 60];
    let rounds = ticks.into_iter().flat_map(|tick| [16, 18, 20, 22, 24, 26, 28].map(|bits| tick << bits));
    let years =
        rounds.filter(|&round| round > 200_000).flat_map(|round| [round, 3 * round, 10 * 365 * 86_400]);
    // Each once: ticks, rounds and ten years repeat.
    let times: BTreeSet<_> =
        days.chain(years.flat_map(|late| [late, late + 1, late + LIFETIME / 2])).collect();
    for now in times {
        let store = build(subject);
        // In small swarms and in larger ones, which stores keep in different ways.
        let large = if now % 5 == 0 { 90 } else { 0 };
        store.fill(0, [leecher(hash(1), v4(1)), seeder(hash(1), v4(2)), leecher(hash(1), v6(3))]);
        store.fill(0, [leecher(hash(2), v4(1)), seeder(hash(3), v6(1))]);
        store.fill(0, (0..large).map(|n| leecher(hash(4), v4(n))));
        let swept = sweep(&store, now, Retention::DropEmpty, 1000);
        assert_eq!(swept.expired, 5 + u64::from(large), "first swept {now} s after they announced");
        assert_eq!(store.totals().peers(), 0);
    }
}

/// Announces in other swarms, and of other peers of the same swarm, for minutes or for years, without a
/// single sweep.
pub(crate) fn missing_sweeps_make_no_expired_peer_young(subject: &dyn Subject) {
    for stride in [100, 577, LIFETIME, 9_999, 65_536, 262_144] {
        for turns in [20, 33, 100, 150] {
            let (store, torrents) = (build(subject), [(hash(1), 5), (hash(2), 80)]);
            for (torrent, stale) in torrents {
                store.fill(0, (1..=stale).map(|n| leecher(torrent, v4(n)).left((n % 2).into())));
            }
            store.fill(0, [seeder(hash(3), v6(1)), leecher(hash(4), v4(1))]);
            let mut now = 0;
            for turn in 0..turns {
                now += stride;
                store.fill(now, torrents.map(|(torrent, _)| leecher(torrent, v4(99))));
                store.fill(now, [seeder(hash(1), v6(99)), leecher(hash(turn % 10 + 5), v4(1))]);
                let torrent = if turn % 10 == 0 { hash(2) } else { hash(1) };
                for (endpoint, record) in store.members(&torrent) {
                    let refreshed = [v4(99), v6(99)].contains(&endpoint);
                    if refreshed || now <= LIFETIME + resolution(&store) {
                        store.assert_time(&record, at(if refreshed { now } else { 0 }), at(now));
                        continue;
                    }
                    let age = at(now).secs_since(record.last_announce);
                    assert!(age >= LIFETIME, "{endpoint} is {now} s old and is listed as {age} s old");
                }
            }
            if now <= LIFETIME + resolution(&store) {
                now = LIFETIME + resolution(&store) + 1;
            }
            sweep(&store, now, Retention::DropEmpty, 1000);
            let left = |torrent| store.members(&torrent).into_keys().collect::<Vec<_>>();
            assert_eq!(left(hash(1)), [v4(99), v6(99)], "after {now} s without a sweep");
            assert_eq!(left(hash(2)), [v4(99)], "after {now} s without a sweep");
            for torrent in [hash(3), hash(4)] {
                assert_eq!(store.scrape(&torrent), stats(0, 0, 0), "if no peer announced meanwhile");
            }
            store.assert_consistent();
        }
    }
}

/// For half a day peers announce just before they expire, each at its own time; other peers leave and join
/// again, and some are restored. No peer ever looks older or younger than it is.
pub(crate) fn ages_stay_true_while_others_announce(subject: &dyn Subject) {
    const STEP: u64 = 59;
    // All peers announce in turn, within a lifetime less one step.
    const TURNS: u64 = LIFETIME / STEP - 1;
    for sweeps in [false, true] {
        let (store, mut told) = (build(subject), BTreeMap::new());
        let crowds = [(hash(1), 7), (hash(2), 150), (hash(3), 150)];
        for step in 0..700 {
            let now = step * STEP;
            for (n, (torrent, size)) in (0..).zip(crowds) {
                // One of the large swarms shrinks to a few peers and grows again, every other hour.
                let hours = step / 120 % 2;
                let most = if n == 2 && hours == 1 { 5 } else { size };
                for m in (0..size).filter(|m| (u64::from(*m) + n) % TURNS == step % TURNS) {
                    let endpoint = peer(if m % 4 == 0 { Family::V6 } else { Family::V4 }, m);
                    if m < most {
                        store.fill(now, [leecher(torrent, endpoint).left(step / TURNS % 2)]);
                        told.insert((torrent, endpoint), now);
                    } else {
                        store.fill(now, [stopped(torrent, endpoint)]);
                        told.remove(&(torrent, endpoint));
                    }
                }
                // Restored peers of all ages.
                if !sweeps && step % 40 == 39 {
                    let (endpoint, role) = (v4(1000 + step as u32), Role::Seeder);
                    let last_announce = at(now - step * 41 % LIFETIME);
                    let record = PeerRecord { endpoint, role, last_announce, details: None };
                    let swarm = SwarmSummary { info_hash: torrent, stats: stats(1, 0, 0) };
                    assert_eq!(store.restore(&swarm, &[record], at(now)).added, 1);
                    told.insert((torrent, endpoint), last_announce.secs_since(at(0)));
                }
            }
            if sweeps && step % 7 == 0 {
                let swept = sweep(&store, now, Retention::DropEmpty, 100);
                assert_eq!(swept.expired, 0, "all have come back in time");
            }
            if step % 20 == 0 {
                for (torrent, _) in crowds {
                    for (endpoint, record) in store.members(&torrent) {
                        let told = told[&(torrent, endpoint)];
                        if now - told <= LIFETIME {
                            store.assert_time(&record, at(told), at(now));
                        }
                    }
                }
            }
        }
        assert_eq!(store.totals().peers(), told.len() as u64);
    }
}

pub(crate) fn an_earlier_time_counts_as_the_latest_seen(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    store.fill(LIFETIME, [leecher(torrent, v4(1))]);
    // The clock is set back: a peer that announces now is not older than those before.
    store.fill(0, [leecher(torrent, v4(2)), seeder(torrent, v6(3))]);
    for record in store.members(&torrent).values() {
        store.assert_time(record, at(LIFETIME), at(LIFETIME));
    }
    sweep(&store, 2 * LIFETIME, Retention::DropEmpty, 1000);
    assert_eq!(store.scrape(&torrent).peers(), 3, "all announced at the latest time seen");
    let late = 2 * LIFETIME + resolution(&store) + 1;
    store.tell_at(late, leecher(hash(2), v4(1)));
    sweep(&store, 0, Retention::DropEmpty, 1000);
    assert_eq!(store.scrape(&torrent).peers(), 0, "a sweep in the past is one at the latest time seen");
}

pub(crate) fn advance_tells_the_time_and_returns_the_latest(subject: &dyn Subject) {
    let (store, torrent) = (build(subject), hash(1));
    assert_eq!([1000, 400].map(|secs| store.advance(at(secs))), [at(1000); 2]);
    store.fill(500, [leecher(torrent, v4(1))]);
    store.assert_time(&store.members(&torrent)[&v4(1)], at(1000), at(1000));
    store.fill(1500, [leecher(torrent, v4(2))]);
    assert_eq!(store.advance(at(400)), at(1500), "an announce told the store this time");
}

pub(crate) fn a_peer_that_announces_while_a_sweep_runs_survives_it(subject: &dyn Subject) {
    for budget in [1, 7, 100] {
        let store = build(subject);
        let late = LIFETIME + 1000;
        store.fill(0, (0..60).flat_map(|n| (0..5).map(move |m| leecher(hash(n), v4(m)))));
        let mut swept = Swept::default();
        let mut turn = 0;
        while !swept.pass_complete {
            // At any position of the sweep: in a swarm that it has passed, or not yet.
            let torrent = hash(turn % 60);
            store.tell_at(late, seeder(torrent, v6(1)));
            store.tell_at(late, leecher(torrent, v4((turn / 60 % 5) as u32)));
            swept += store.sweep(at(late), Retention::DropEmpty, Budget::peers(budget));
            turn += 1;
        }
        for n in 0..turn {
            let members = store.members(&hash(n % 60));
            assert!(members.contains_key(&v6(1)), "announced and swept in between");
            assert!(members.contains_key(&v4((n / 60 % 5) as u32)), "refreshed and swept in between");
        }
        store.assert_consistent();
    }
}

pub(crate) fn an_expired_peer_goes_within_one_full_pass(subject: &dyn Subject) {
    for budget in [1, 3, 50, 100_000] {
        let store = build(subject);
        store.fill(0, (0..70).flat_map(|n| (0..n as u32 % 9).map(move |m| leecher(hash(n), v4(m)))));
        store.fill(1, (0..300).map(|n| leecher(hash(7), v6(n))));
        store.fill(LIFETIME, (0..70).step_by(7).map(|n| seeder(hash(n), v4(50))));
        let before = store.totals().peers();
        let swept = sweep(&store, 2 * LIFETIME - 1, Retention::DropEmpty, budget);
        assert_eq!(store.totals().peers(), 10, "peers that announced later stay, in steps of {budget}");
        assert_eq!(swept.expired, before - 10);
        assert_eq!(store.totals().swarms, 10);
        store.assert_consistent();
        // The next pass starts anew.
        let swept = sweep(&store, 4 * LIFETIME, Retention::DropEmpty, budget);
        assert_eq!((swept.expired, swept.swarms_removed), (10, 10));
    }
}

pub(crate) fn a_sweep_says_what_it_removed(subject: &dyn Subject) {
    let store = build(subject);
    let swept = sweep(&store, 0, Retention::DropEmpty, 10);
    assert_eq!((swept.visited, swept.expired, swept.swarms_removed), (0, 0, 0), "in an empty store");
    store.fill(0, (0..20).flat_map(|n| [leecher(hash(n), v4(1)), seeder(hash(n), v6(2))]));
    store.fill(0, (0..5).flat_map(|n| [stopped(hash(n), v4(1)), stopped(hash(n), v6(2))]));
    store.fill(LIFETIME, (5..10).map(|n| leecher(hash(n), v4(1))));
    let swept = sweep(&store, 2 * LIFETIME - 1, Retention::DropEmpty, 10);
    assert_eq!((swept.expired, swept.swarms_removed), (25, 15));
    let swept = sweep(&store, 2 * LIFETIME - 1, Retention::DropEmpty, 10);
    assert_eq!((swept.expired, swept.swarms_removed), (0, 0), "nothing is removed twice");
}

/// No step visits many more than its budget, neither among many swarms nor inside a large one. All steps of a
/// pass together visit each peer and swarm once. If nothing has expired, a store that knows this visits
/// fewer.
pub(crate) fn a_step_of_a_sweep_visits_about_its_budget(subject: &dyn Subject) {
    let many_small: (u64, u32) = (3000, 1);
    let one_large = (1, 20_000);
    for (swarms, peers) in [many_small, one_large, (50, 300)] {
        let store = build(subject);
        store.fill(0, (0..swarms).flat_map(|n| (0..peers).map(move |m| leecher(hash(n), v4(m)))));
        for (budget, now) in [(100, 1), (1000, 2 * LIFETIME)] {
            let most = 2 * budget + 64 + (2.0 * swarms_per_shard(&store, swarms)) as u64;
            let (mut swept, mut steps) = (Swept::default(), 0);
            while !swept.pass_complete {
                let step = store.sweep(at(now), Retention::DropEmpty, Budget::peers(budget as usize));
                assert!(
                    step.visited <= most,
                    "a step of {budget} visited {}, more than {most}",
                    step.visited
                );
                assert!(step.visited > 0 || step.pass_complete, "an empty step in the middle of a pass");
                swept += step;
                steps += 1;
                assert!(steps <= 100_000, "a pass that never ends");
            }
            let all = swarms * (u64::from(peers) + 1);
            let times = swept.visited as f64 / all as f64;
            let least = if swept.expired > 0 { 0.9 } else { 0.0 };
            assert!(
                (least..=1.2).contains(&times),
                "a pass visited each of {all} peers and swarms {times:.2} times"
            );
        }
        assert_eq!(store.totals().swarms, 0);
    }
}

pub(crate) fn concurrent_sweeps_share_one_pass(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..2000).flat_map(|n| (0..4).map(move |m| leecher(hash(n), v4(m)))));
    for (now, expired, swarms_removed) in [(1, 0, 0), (2 * LIFETIME, 8000, 2000)] {
        // A caller that continued after the end is in the next pass now, so this pass is a new one.
        sweep(&store, 0, Retention::KeepDownloaded, 1000);
        let mut total = Swept::default();
        while !total.pass_complete {
            // A few steps at a time: a thread that is late to tell the end must not leave the others a pass.
            thread::scope(|scope| {
                let few_steps = || {
                    let mut swept = Swept::default();
                    for _ in 0..4 {
                        swept += store.sweep(at(now), Retention::DropEmpty, Budget::peers(64));
                    }
                    swept
                };
                let callers = [(); 3].map(|()| scope.spawn(few_steps));
                for caller in callers {
                    total += caller.join().expect("a sweep does not panic");
                }
            });
        }
        let removed = (total.expired, total.swarms_removed);
        assert_eq!(removed, (expired, swarms_removed), "the removals of all callers together");
        assert!(total.visited <= 13_000, "{} visits in one pass over 10,000 peers and swarms", total.visited);
    }
    assert_eq!(store.totals().swarms, 0);
}

/// One thread sweeps a large swarm of expired peers in one unlimited step; others announce into it again and
/// again. Some announce must run in the middle of the step: its counts show that a part of the peers was
/// removed.
pub(crate) fn a_sweep_holds_no_lock_for_long_even_in_a_large_swarm(subject: &dyn Subject) {
    const PEERS: u32 = 20_000;
    match capabilities(subject).longest_hold {
        LongestHold::Visits(visits) => assert!(visits <= 10_000, "{visits} visits under a lock are no bound"),
        LongestHold::ShareOfSwarms(share) => {
            assert!(share > 0.0 && share < 0.5, "{share} of all swarms is no bound");
        }
        other => panic!("this suite knows no bound of {other:?}"),
    }
    let (store, torrent) = (build(subject), hash(1));
    let is_let_in = |now| {
        store.fill(now, (1..=PEERS).map(|n| leecher(torrent, v4(n))));
        let (later, started, done) = (now + 2 * LIFETIME, AtomicU32::new(0), AtomicBool::new(false));
        // Each sleeps between its announces: a thread that wakes up may run before the sweep on one core.
        let announcer = || {
            let (mut rng, mut others) = (SplitMix64::new(1), Vec::new());
            while !done.load(SeqCst) {
                let announce = leecher(torrent, v4(0)).want(0);
                let mut nobody = PeerBuffer::new(&mut [], &mut []);
                others.push(store.announce(&announce, at(later), &mut rng, &mut nobody).stats.incomplete);
                started.fetch_add(1, SeqCst);
                thread::sleep(Duration::from_micros(50));
            }
            others.into_iter().any(|others| (2..=PEERS).contains(&others))
        };
        thread::scope(|scope| {
            let announcers = [(); 4].map(|()| scope.spawn(announcer));
            let ends = SetOnDrop(&done);
            while started.load(SeqCst) < 4 && !announcers.iter().any(|one| one.is_finished()) {
                thread::yield_now();
            }
            let swept = store.sweep(at(later), Retention::DropEmpty, Budget::peers(10_000_000));
            drop(ends);
            assert_eq!((swept.expired, swept.pass_complete), (PEERS.into(), true));
            announcers.map(|one| one.join().expect("an announce does not panic")).contains(&true)
        })
    };
    // Locks need not be fair, and a busy machine may keep threads from running.
    let is_ever = (0..TRIES).any(|n| is_let_in(2 * LIFETIME * n));
    assert!(is_ever, "{TRIES} sweeps of {PEERS} peers let no announce in: yield between holds of a lock");
}

pub(crate) fn memory_that_was_freed_is_returned_when_a_store_has_shrunk_a_lot(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..5000).flat_map(|n| (0..3).map(move |m| leecher(hash(n), v4(m)))));
    store.fill(0, (0..20_000).map(|n| leecher(hash(1), v4(n))));
    let full = store.memory().bytes;
    assert!(full > 35_000 * 8, "{full} bytes hold no 35,000 peers");
    store.fill(LIFETIME, [leecher(hash(1), v4(1))]);
    for pass in 0..3 {
        sweep(&store, 2 * LIFETIME - 3 + pass, Retention::DropEmpty, 1000);
    }
    assert_eq!(store.totals().peers(), 1);
    let left = store.memory().bytes;
    assert!(
        left < full / 2,
        "{left} of {full} bytes are still taken after all but one of 35,000 peers have gone"
    );
    // Memory that was freed can be used again.
    store.fill(3 * LIFETIME, (0..5000).flat_map(|n| (0..3).map(move |m| leecher(hash(n), v4(m)))));
    let again = store.memory().bytes;
    assert!(again > left && again < full * 5 / 4, "{again} bytes the second time, {full} the first");
}

/// One in a hundred swarms of all sizes stays, so that the remaining swarms are scattered among the removed
/// ones. The memory of an empty store is not counted.
pub(crate) fn memory_falls_to_a_tenth_when_99_of_100_swarms_expire(subject: &dyn Subject) {
    const SWARMS: u64 = 50_000;
    let members = |n: u64| {
        let size = match n {
            0 => 3000,
            n if n % 1000 == 0 => 200,
            n if n % 100 == 1 => 20,
            n if n % 7 == 0 => 3,
            _ => 1,
        };
        let family = move |m: u32| if (n + u64::from(m)) % 10 == 9 { Family::V6 } else { Family::V4 };
        (0..size).map(move |m| leecher(hash(n), peer(family(m), m)).left((m % 3).into()))
    };
    let store = build(subject);
    let empty = store.memory().bytes;
    store.fill(0, (0..SWARMS).flat_map(members));
    let peak = store.memory().bytes - empty;
    let left = || (0..SWARMS).filter(|n| n % 101 == 50);
    store.fill(LIFETIME, left().flat_map(members));
    for pass in 0..2 {
        sweep(&store, 2 * LIFETIME - 2 + pass, Retention::DropEmpty, 4096);
    }
    assert_eq!(store.totals().swarms, left().count() as u64);
    let (bytes, peers) = (store.memory().bytes.saturating_sub(empty), store.totals().peers());
    assert!(
        bytes <= peak / 10,
        "{bytes} of {peak} bytes are still taken by {peers} peers, two passes after 99 of 100 swarms have expired"
    );
    store.assert_consistent();
}

/// All peers of a large swarm expire at once. Each step removes a bounded number of peers and reports a
/// bounded number of visits.
pub(crate) fn a_step_of_a_sweep_touches_no_more_than_its_budget_and_one_hold(subject: &dyn Subject) {
    const PEERS: u32 = 100_000;
    const BUDGET: u64 = 256;
    let (store, torrent) = (build(subject), hash(1));
    let family = |n: u32| if n.is_multiple_of(8) { Family::V6 } else { Family::V4 };
    store.fill(0, (0..PEERS).map(|n| leecher(torrent, peer(family(n), n)).left((n % 3).into())));
    let hold = match store.capabilities().longest_hold {
        LongestHold::Visits(visits) => visits as u64,
        // A share of one swarm: a hold is a part of it, no longer than the step should be.
        LongestHold::ShareOfSwarms(_) => BUDGET,
        other => panic!("this suite knows no bound of {other:?}"),
    };
    let (mut all, mut steps) = (Swept::default(), 0);
    while !all.pass_complete {
        let before = store.totals().peers();
        let step = store.sweep(at(2 * LIFETIME), Retention::DropEmpty, Budget::peers(BUDGET as usize));
        let gone = before - store.totals().peers();
        assert_eq!(step.expired, gone, "the reported and the real removals of a step");
        let touched = gone.max(step.visited);
        assert!(
            touched <= BUDGET + hold,
            "a step of {BUDGET} touched {touched} peers, with holds of {hold} declared"
        );
        all += step;
        steps += 1;
        assert!(steps <= PEERS, "a pass that never ends");
    }
    assert_eq!((all.expired, all.swarms_removed, store.totals().swarms), (PEERS.into(), 1, 0));
}

/// Six rounds: swarms come, are listed in every way, and go. The allocator has its spare memory after the
/// second.
pub(crate) fn swarms_that_were_listed_leave_no_memory_behind(subject: &dyn Subject) {
    const SWARMS: u64 = 10_000;
    const BYTES_PER_SWARM: u64 = 40;

    if !runs_alone("swarms_that_were_listed_leave_no_memory_behind") {
        return;
    }
    let store = build(subject);
    let mut round = |round: u64| {
        let now = round * 3 * LIFETIME;
        store.fill(now, (0..SWARMS).map(|n| leecher(hash(n), v4(1))));
        assert_eq!(store.sweep_all(at(now), Retention::DropEmpty).expired, 0);
        assert_eq!(store.swarms().len() as u64, SWARMS);
        let mut page = Vec::new();
        store.page(None, usize::MAX, &mut page);
        assert_eq!(page.len() as u64, SWARMS);
        assert_eq!(store.remove_all_where(&|_| false), []);
        let mut export = Export::new();
        while !export.is_complete() {
            store.export(&mut export, at(now), Budget::peers(4096));
        }
        assert_eq!(store.sweep_all(at(now + 2 * LIFETIME), Retention::DropEmpty).swarms_removed, SWARMS);
        resident_bytes()
    };
    let (most, mut grown) = (4 * SWARMS * BYTES_PER_SWARM, Vec::new());
    // Other tests take and free memory where this one is not alone: a leak shows in every attempt.
    for first in [0, 6, 12] {
        let rounds: Vec<_> = (first..first + 6).map(&mut round).collect();
        grown.push(rounds[5].saturating_sub(rounds[1]));
        if grown.last() < Some(&most) {
            return;
        }
    }
    panic!("from the second of six rounds to the last, memory grew by {grown:?} bytes");
}

pub(crate) fn a_swarm_without_peers_goes_with_the_next_sweep(subject: &dyn Subject) {
    let store = build(subject);
    for n in 0..20 {
        store.fill(0, [completed(hash(n), v4(1)), stopped(hash(n), v4(1))]);
    }
    store.fill(0, [leecher(hash(20), v4(1))]);
    assert_eq!(store.totals().swarms, 21);
    let swept = sweep(&store, 1, Retention::DropEmpty, 1000);
    assert_eq!((swept.expired, swept.swarms_removed), (0, 20));
    assert_eq!((store.totals().swarms, store.swarms().len()), (1, 1));
    assert_eq!(store.scrape(&hash(1)), stats(0, 0, 0), "its download count has gone with it");
}

pub(crate) fn a_swarm_without_peers_stays_for_its_downloads_if_the_policy_says_so(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..20).flat_map(|n| [leecher(hash(n), v4(1)), leecher(hash(n), v6(2))]));
    store.fill(0, (0..5).map(|n| completed(hash(n), v4(1))));
    let swept = sweep(&store, 2 * LIFETIME, Retention::KeepDownloaded, 1000);
    assert_eq!((swept.expired, swept.swarms_removed), (40, 15), "swarms without downloads go");
    assert_eq!((store.totals().swarms, store.totals().peers()), (5, 0));
    assert!((0..5).all(|n| store.scrape(&hash(n)) == stats(0, 0, 1)));
    let shown = store.summaries();
    assert_eq!((shown.len(), shown[&hash(3)]), (5, stats(0, 0, 1)), "and are listed");
    let answer = store.tell_at(2 * LIFETIME, completed(hash(2), v4(9)));
    assert_eq!(answer.stats, stats(1, 0, 2), "and can fill again");
    store.assert_consistent();
    let swept = sweep(&store, 4 * LIFETIME, Retention::DropEmpty, 1000);
    assert_eq!((swept.expired, swept.swarms_removed), (1, 5), "under the other policy they go");
}

pub(crate) fn remove_says_what_was_there(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(
        0,
        (0..30).flat_map(|n| [completed(hash(n), v4(1)), leecher(hash(n), v4(2)), leecher(hash(n), v6(3))]),
    );
    assert_eq!(store.remove(&hash(7)), Some(stats(1, 2, 1)));
    assert_eq!(store.remove(&hash(7)), None, "removed twice");
    assert_eq!(store.remove(&hash(99)), None, "never there");
    assert_eq!(store.scrape(&hash(7)), stats(0, 0, 0));
    assert_eq!((store.totals().swarms, store.totals().peers()), (29, 87));
    assert_eq!(store.tell(leecher(hash(7), v4(1))).stats, stats(0, 1, 0), "its download count is gone too");
    store.assert_consistent();
}

pub(crate) fn remove_where_removes_all_that_is_forbidden_and_says_what(subject: &dyn Subject) {
    for budget in [1, 10, 1000] {
        let store = build(subject);
        store.fill(0, (0..200).flat_map(|n| [seeder(hash(n), v4(1)), leecher(hash(n), v6(2))]));
        let forbidden: HashSet<InfoHash> = (0..200).filter(|n| n % 3 == 0).map(hash).collect();
        let (mut cursor, mut removed, mut steps) = (Cursor::START, Vec::new(), 0);
        while !cursor.is_end() {
            let mut step =
                store.remove_where(&|info_hash| forbidden.contains(info_hash), cursor, Budget::peers(budget));
            removed.append(&mut step.removed);
            cursor = step.next;
            steps += 1;
            assert!(steps <= 100_000, "a removal that never ends");
        }
        assert!(removed.iter().all(|swarm: &SwarmSummary| swarm.stats == stats(1, 1, 0)));
        let named = removed.iter().map(|swarm| swarm.info_hash).collect();
        assert_same(named, forbidden.iter().copied().collect(), "the reported removals");
        assert_eq!((store.totals().swarms, store.totals().peers()), (133, 266));
        assert!(store.summaries().keys().all(|info_hash| !forbidden.contains(info_hash)));
        store.assert_consistent();
    }
}

/// Removals take out the swarms around them, and announces create new ones.
pub(crate) fn remove_where_asks_once_about_every_swarm_that_stays(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..400).map(|n| leecher(hash(n), v4(1))));
    let asked = Mutex::new(Vec::new());
    let predicate = |info_hash: &InfoHash| {
        let mut asked = asked.lock().expect("no holder panics");
        asked.push(*info_hash);
        // Some of them are removed at once.
        asked.len() % 5 == 0
    };
    let (mut cursor, mut removed, mut step) = (Cursor::START, HashSet::new(), 1000);
    while !cursor.is_end() {
        let answer = store.remove_where(&predicate, cursor, Budget::peers(23));
        removed.extend(answer.removed.iter().map(|swarm| swarm.info_hash));
        cursor = answer.next;
        store.fill(0, (step..step + 20).map(|n| leecher(hash(n), v4(1))));
        store.forget((step..step + 15).map(hash));
        step += 20;
        assert!(step <= 1_000_000, "a removal that never ends");
    }
    let asked = asked.into_inner().expect("no holder panics");
    for n in 0..400 {
        let times = asked.iter().filter(|&&info_hash| info_hash == hash(n)).count();
        assert_eq!(times, 1, "times that the predicate was asked about a swarm that was there all the time");
        assert_eq!(store.scrape(&hash(n)).peers(), u64::from(!removed.contains(&hash(n))));
    }
}

pub(crate) fn a_predicate_is_called_without_a_lock_held(subject: &dyn Subject) {
    let store = build(subject);
    store.fill(0, (0..50).map(|n| leecher(hash(n), v4(1))));
    let inside = store.clone();
    let removed = within(PATIENCE.get(), "a removal with a predicate that uses the store", move || {
        inside.remove_all_where(&|info_hash| {
            inside.tell(seeder(*info_hash, v4(2)));
            inside.tell(leecher(hash(1000), v6(1)));
            inside.remove(&hash(2000));
            inside.sweep(at(1), Retention::DropEmpty, Budget::peers(10));
            *info_hash == hash(3)
        })
    });
    assert_eq!(removed, [SwarmSummary { info_hash: hash(3), stats: stats(1, 1, 0) }]);
    store.assert_consistent();
}

/// Both halves of a mixed swarm expire, whatever the order of its peers.
pub(crate) fn peers_of_both_families_and_roles_expire(subject: &dyn Subject) {
    for (survivor, left) in [(v4(500), 0), (v4(500), 1), (v6(500), 0), (v6(500), 1)] {
        let (store, torrent) = (build(subject), hash(1));
        for family in [Family::V4, Family::V6] {
            store.fill(0, (0..100).map(|n| leecher(torrent, peer(family, n)).left((n % 2).into())));
        }
        store.fill(LIFETIME, [leecher(torrent, survivor).left(left)]);
        sweep(&store, 2 * LIFETIME - 1, Retention::DropEmpty, 13);
        assert_eq!(store.members(&torrent).into_keys().collect::<Vec<_>>(), [survivor]);
        store.assert_consistent();
    }
}
