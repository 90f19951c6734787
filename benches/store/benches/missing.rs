//! Benches that neither torrust nor chihaya has: full swarms, every size of swarm, both families, sweeps,
//! Zipf's law.
//!
//! `cargo shootout` measures bytes, and the slowest announces during a sweep: both need a process of their
//! own.

use std::env;

use criterion::{Criterion, criterion_group, criterion_main};
use swarmkeep::{Announce, AnnounceEvent, Announced, Changes, Families, Retention, TorrentRepositoryExt};
use swarmkeep_benches::{BATCH, Caller, NOW, Work, cores, run, shrunk};
use swarmkeep_workload::{PeerIndex, Workload};

fn missing(criterion: &mut Criterion) {
    strangers(criterion);
    sizes(criterion);
    sweeps(criterion);
    mixes(criterion);
    contention(criterion);
}

/// First announces of peers that the store does not know.
fn strangers(criterion: &mut Criterion) {
    let full = Workload::uniform(1, 1, shrunk(10_000, 500) as u32);
    let strangers: Vec<_> =
        (1 << 30..(1 << 30) + 1000).map(|peer| full.announce(PeerIndex { swarm: 0, peer }).want(0)).collect();
    let many = Workload::uniform(2, shrunk(100_000, 500) as u64, 1);
    let round = shrunk(10_000, 20);
    let new: Vec<Vec<_>> = (0..cores())
        .map(|thread| {
            let first = 1 << 40 | (thread * round) as u64;
            (first..first + round as u64).map(|swarm| many.announce(PeerIndex { swarm, peer: 0 })).collect()
        })
        .collect();
    run(
        criterion,
        "missing",
        &[
            Work::new("delete-missing-from-full", |caller, n| {
                let (answer, _) = caller.announce(&strangers[n % 1000].event(AnnounceEvent::Stopped));
                assert!(answer.changes.is_empty() && answer.stats.peers() == full.peers());
            })
            .filled(|caller| fill(caller, &full))
            .parallel(),
            Work::new("first-insert", |caller, n| {
                let (answer, _) = caller.announce(&new[caller.thread][n % round]);
                assert_eq!(answer.changes, Changes::JOINED | Changes::CREATED);
            })
            .filled(|caller| fill(caller, &many))
            .round(round)
            .fresh()
            .parallel(),
        ],
    );
}

/// A regular announce of a member that wants 50 peers, in swarms from one peer to a million.
fn sizes(criterion: &mut Criterion) {
    for (name, size) in [("1", 1), ("10", 10), ("100", 100), ("1k", 1000), ("10k", 10_000), ("1M", 1_000_000)]
    {
        let size = shrunk(size, size.min(2000));
        // The total number of peers is the same for all sizes, so that only the size differs.
        let swarms = (shrunk(100_000, 1000) / size).max(1) as u64;
        let workload = Workload::uniform(3, swarms, size as u32).with_profile(|profile| profile.ipv6 = 0.0);
        let members = spread(&workload);
        let work = Work::new(format!("swarm-of-{name}"), |caller, n| {
            let announce = &members[n % members.len()];
            let (answer, selected) = caller.announce(announce);
            assert_eq!(answer.stats.peers(), size as u64);
            let eligible = if announce.left == 0 { answer.stats.incomplete } else { size as u32 - 1 };
            assert_eq!(selected, (eligible as usize).min(50));
        });
        run(criterion, "missing", &[work.filled(|caller| fill(caller, &workload)).parallel()]);
    }
}

/// Passes over the whole store; an operation is a pass.
fn sweeps(criterion: &mut Criterion) {
    let workload = Workload::zipf(4, shrunk(20_000, 100) as u64, shrunk(100_000, 500) as u64);
    let sweep = |caller: &mut Caller<'_>, age: u64| {
        let swept = caller.repository.sweep_all(NOW.saturating_add(age), Retention::DropEmpty);
        (swept.expired, swept.swarms_removed)
    };
    let nothing = Work::new("sweep-nothing-expired", |caller, _| assert_eq!(sweep(caller, 60), (0, 0)));
    let everything = Work::new("sweep-everything-expired", |caller, _| {
        assert_eq!(sweep(caller, 7200), (workload.peers(), workload.swarms()));
    });
    let works =
        [nothing, everything.fresh()].map(|work| work.round(1).filled(|caller| fill(caller, &workload)));
    run(criterion, "missing", &works);
}

/// Announces as a tracker receives them.
fn mixes(criterion: &mut Criterion) {
    let half = Workload::uniform(5, shrunk(1000, 2) as u64, 100).with_profile(|profile| profile.ipv6 = 0.5);
    let both: Vec<_> = spread(&half).into_iter().map(|announce| announce.families(Families::all())).collect();
    let families = Work::new("mixed-families", |caller, n| {
        let (answer, selected) = caller.announce(&both[n % both.len()]);
        assert!(answer.stats.peers() == 100 && selected > 20);
    });
    run(criterion, "missing", &[families.filled(|caller| fill(caller, &half)).parallel()]);

    for (name, swarms, large) in [("zipf-1M", 1_000_000, false), ("zipf-10M", 10_000_000, true)] {
        // To fill in fifty million peers takes minutes, and in the map-backed stores more memory than most
        // machines have.
        if large && env::var_os("SWARMKEEP_BENCH_LARGE").is_none() {
            continue;
        }
        let swarms = shrunk(swarms, 500) as u64;
        let workload = Workload::zipf(6, swarms, 5 * swarms);
        let announces: Vec<Vec<_>> = (0..cores() as u64)
            .map(|stream| workload.announces(stream).take(shrunk(1 << 18, 1000)).collect())
            .collect();
        let check = |announce: &Announce, answer: Announced, selected| {
            let stopped = announce.event == AnnounceEvent::Stopped;
            assert!(selected <= if stopped { 0 } else { 50 });
            assert!(stopped || answer.stats.peers() > selected as u64);
        };
        let single = Work::new(name, |caller, n| {
            let announces = &announces[caller.thread];
            let announce = &announces[n % announces.len()];
            let (answer, selected) = caller.announce(announce);
            check(announce, answer, selected);
        });
        let batch = Work::new(format!("{name}-batch-{BATCH}"), |caller, n| {
            let batches = announces[caller.thread].as_chunks().0;
            caller.announce_batch(&batches[n % batches.len()], check);
        });
        let round = shrunk(10_000, 128);
        let works = [single.round(round), batch.round(round / BATCH).announces_each(BATCH)].map(|work| {
            let work = work.filled(|caller| fill(caller, &workload)).parallel();
            if large { work.only("packed") } else { work }
        });
        run(criterion, "missing", &works);
    }
}

/// The contention of more cores: few threads on few stripes wait for each other like many threads on many.
/// Two threads on 16 stripes correspond to 65 on 1,024.
fn contention(criterion: &mut Criterion) {
    let workload = Workload::uniform(7, shrunk(100_000, 500) as u64, 10);
    let announces: Vec<Vec<_>> = (0..cores() as u64)
        .map(|stream| workload.announces(stream).take(shrunk(1 << 16, 1000)).collect())
        .collect();
    for stripes in [1024, 256, 64, 16, 4] {
        let work = Work::new(format!("stripes-{stripes}"), |caller, n| {
            let batches = announces[caller.thread].as_chunks::<BATCH>().0;
            let check = |_: &Announce, answer: Announced, _| assert!(answer.stats.peers() <= 10);
            caller.announce_batch(&batches[n % batches.len()], check);
        });
        let work = work.round(shrunk(10_000, 128) / BATCH).announces_each(BATCH);
        let work = work.filled(|caller| fill(caller, &workload)).parallel().only("packed").shards(stripes);
        run(criterion, "missing", &[work]);
    }
}

fn fill(caller: &mut Caller<'_>, workload: &Workload) {
    for announce in workload.fill() {
        caller.announce(&announce.want(0));
    }
    assert_eq!(caller.repository.totals().peers(), workload.peers());
}

/// Returns some thousand members from all parts of a population.
fn spread(workload: &Workload) -> Vec<Announce> {
    let step = (workload.peers() / 4096).max(1) as usize;
    workload.fill().step_by(step).map(|announce| announce.event(AnnounceEvent::None)).collect()
}

criterion_group!(benches, missing);
criterion_main!(benches);
