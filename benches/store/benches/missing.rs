//! Benches that neither torrust nor chihaya has: first announces, both families, contention.
//!
//! `cargo shootout` measures sizes of swarms, Zipf's law, bytes, and sweeps.

use criterion::{Criterion, criterion_group, criterion_main};
use swarmkeep::{Announce, AnnounceEvent, Announced, Changes, Families};
use swarmkeep_benches::{BATCH, Benchmark, Caller, cores, run, shrunk};
use swarmkeep_workload::{PeerIndex, Workload};

fn missing(criterion: &mut Criterion) {
    strangers(criterion);
    families(criterion);
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
            Benchmark::new("delete-missing-from-full", |caller, n| {
                let (answer, _) = caller.announce(&strangers[n % 1000].event(AnnounceEvent::Stopped));
                assert!(answer.changes.is_empty() && answer.stats.peers() == full.peers());
            })
            .filled(|caller| fill(caller, &full))
            .parallel(),
            Benchmark::new("first-insert", |caller, n| {
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

/// Announces of peers with both families.
fn families(criterion: &mut Criterion) {
    let half = Workload::uniform(5, shrunk(1000, 2) as u64, 100).with_profile(|profile| profile.ipv6 = 0.5);
    let step = (half.peers() / 4096).max(1) as usize;
    let members = half.fill().step_by(step).map(|announce| announce.event(AnnounceEvent::None));
    let both: Vec<_> = members.map(|announce| announce.families(Families::all())).collect();
    let families = Benchmark::new("mixed-families", |caller, n| {
        let (answer, selected) = caller.announce(&both[n % both.len()]);
        assert!(answer.stats.peers() == 100 && selected > 20);
    });
    run(criterion, "missing", &[families.filled(|caller| fill(caller, &half)).parallel()]);
}

/// The contention of more cores: few threads on few stripes wait for each other like many threads on many.
/// Two threads on 16 stripes correspond to 65 on 1,024.
fn contention(criterion: &mut Criterion) {
    let workload = Workload::uniform(7, shrunk(100_000, 500) as u64, 10);
    let announces: Vec<Vec<_>> = (0..cores() as u64)
        .map(|stream| workload.announces(stream).take(shrunk(1 << 16, 1000)).collect())
        .collect();
    for stripes in [1024, 256, 64, 16, 4] {
        let bench = Benchmark::new(format!("stripes-{stripes}"), |caller, n| {
            let batches = announces[caller.thread].as_chunks::<BATCH>().0;
            let check = |_: &Announce, answer: Announced, _| assert!(answer.stats.peers() <= 10);
            caller.announce_batch(&batches[n % batches.len()], check);
        });
        let mut bench =
            bench.parallel().round(shrunk(10_000, 128) / BATCH).filled(|caller| fill(caller, &workload));
        (bench.each, bench.only, bench.shards) = (BATCH, Some("packed"), Some(stripes));
        run(criterion, "missing", &[bench]);
    }
}

fn fill(caller: &mut Caller<'_>, workload: &Workload) {
    for announce in workload.fill() {
        caller.announce(&announce.want(0));
    }
    assert_eq!(caller.repository.totals().peers(), workload.peers());
}

criterion_group!(benches, missing);
criterion_main!(benches);
