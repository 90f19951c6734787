//! The four benches of `repository_benchmark` of torrust, under their names.
//!
//! The originals spawn a task for each operation, so that they mostly measure the runtime and hide the store.
//! Here real threads start together and announce for long enough. As in the originals, swarms have one peer,
//! an update is the same peer again, and each operation updates and reads the counts, which is one announce
//! here.

use criterion::{Criterion, criterion_group, criterion_main};
use swarmkeep::{Announce, Changes};
use swarmkeep_benches::{Benchmark, Caller, empty, run, shrunk};
use swarmkeep_workload::{PeerIndex, Workload};

fn torrust(criterion: &mut Criterion) {
    let torrents = shrunk(10_000, 100);
    let workload = Workload::uniform(1, torrents as u64, 1);
    let peer = workload.endpoint(PeerIndex { swarm: 0, peer: 0 });
    let of = |info_hash| Announce::new(info_hash, peer).want(0);
    let info_hashes: Vec<_> = (0..torrents as u64).map(|swarm| workload.info_hash(swarm)).collect();
    // The torrents that each thread adds; in an update the first of them exists already.
    let threads = swarmkeep_benches::cores();
    let added: Vec<Vec<_>> = (0..threads)
        .map(|thread| (0..torrents).map(|n| workload.info_hash((thread * torrents + n) as u64)).collect())
        .collect();
    let add = |caller: &mut Caller<'_>, announce: &Announce| {
        assert!(caller.announce(announce).0.changes.contains(Changes::JOINED | Changes::CREATED));
    };
    let update = |caller: &mut Caller<'_>, announce: &Announce| {
        let answer = caller.announce(announce).0;
        assert_eq!((answer.changes, answer.stats.peers()), (Changes::REFRESHED, 1));
    };
    run(
        criterion,
        "torrust",
        &[
            // Includes building the store, like the original.
            Benchmark::new("add_one_torrent", |caller, _| {
                let repository = empty(caller.store, None);
                let mut other = Caller::new(&*repository, caller.store, caller.thread);
                add(&mut other, &of(info_hashes[0]));
            }),
            Benchmark::new("add_multiple_torrents_in_parallel", |caller, n| {
                add(caller, &of(added[caller.thread][n % torrents]));
            })
            .round(torrents)
            .fresh()
            .parallel(),
            Benchmark::new("update_one_torrent_in_parallel", |caller, _| update(caller, &of(info_hashes[0])))
                .filled(|caller| add(caller, &of(info_hashes[0])))
                .parallel(),
            Benchmark::new("update_multiple_torrents_in_parallel", |caller, n| {
                update(caller, &of(info_hashes[n % torrents]));
            })
            .filled(|caller| info_hashes.iter().for_each(|&info_hash| add(caller, &of(info_hash))))
            .round(torrents)
            .parallel(),
        ],
    );
}

criterion_group!(benches, torrust);
criterion_main!(benches);
