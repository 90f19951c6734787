//! The 27 benches of `storage_bench.go` of chihaya: 1,000 info hashes and 1,000 IPv4 peers; each operation
//! uses one of them or all in turn.
//!
//! An announce here updates and selects. If the original only updates, no peers are wanted. Benches that
//! cannot run in parallel there do not here.

use criterion::{Criterion, criterion_group, criterion_main};
use swarmkeep::{Announce, AnnounceEvent, Changes, Endpoint, InfoHash};
use swarmkeep_benches::{Benchmark, Caller, run, shrunk};
use swarmkeep_workload::{PeerIndex, Workload};

/// The numbers of the info hash and the peer of operation `i`.
type Indexes = fn(usize) -> (usize, usize);

/// The suffix of the name of a bench, and its indexes.
type Variant = (&'static str, Indexes);

const ONE_PEER: Variant = ("", |_| (0, 0));
const ALL_PEERS: Variant = ("-1k", |i| (0, i % 1000));
const ALL_SWARMS: Variant = ("-1k-infohash", |i| (i % 1000, 0));
const ALL_OF_BOTH: Variant = ("-1k-infohash-1k", |i| (i % 1000, i * 3 % 1000));

const EVERY: [Variant; 4] = [ONE_PEER, ALL_PEERS, ALL_SWARMS, ALL_OF_BOTH];
const BY_SWARM: [Variant; 2] = [ONE_PEER, ALL_SWARMS];

/// An operation on an info hash and a peer.
type Operation = fn(&mut Caller<'_>, InfoHash, Endpoint);

/// Name, operation, variants; whether it can run in parallel; whether it needs swarms of 500 and 500.
type Row = (&'static str, Operation, &'static [Variant], bool, bool);

fn chihaya(criterion: &mut Criterion) {
    let workload = Workload::uniform(1, 1000, 1000).with_profile(|profile| profile.ipv6 = 0.0);
    let info_hashes: Vec<_> = (0..1000).map(|swarm| workload.info_hash(swarm)).collect();
    let peers: Vec<_> = (0..1000).map(|peer| workload.endpoint(PeerIndex { swarm: 0, peer })).collect();
    // Full swarms; a test has only a few of them. Operations on other swarms would not find their 500 seeders
    // and 500 leechers.
    let full = shrunk(1000, 2);

    let table: [Row; 9] = [
        ("nop", |_, _, _| {}, &[ONE_PEER], true, false),
        ("put", put, &EVERY, true, false),
        ("put-delete", put_delete, &EVERY, false, false),
        ("delete-nonexist", delete_nonexist, &EVERY, true, false),
        ("grad-nonexist", grad_nonexist, &EVERY, true, false),
        ("put-grad-delete", put_grad_delete, &EVERY, false, false),
        ("announce-leecher", announce_leecher, &BY_SWARM, true, true),
        ("announce-seeder", announce_seeder, &BY_SWARM, true, true),
        ("scrape-swarm", scrape_swarm, &BY_SWARM, true, true),
    ];
    let mut benchmarks = Vec::new();
    for (name, operation, variants, parallel, needs_peers) in table {
        for (suffix, indexes) in variants {
            let (info_hashes, peers) = (&info_hashes, &peers);
            let mut benchmark = Benchmark::new(format!("{name}{suffix}"), move |caller, i| {
                let (swarm, peer) = indexes(i);
                let swarm = if needs_peers { swarm % full } else { swarm };
                // The last peer of a full swarm is a seeder.
                let peer = if name == "announce-seeder" { 999 } else { peer };
                operation(caller, info_hashes[swarm], peers[peer]);
            });
            if parallel {
                benchmark = benchmark.parallel();
            }
            if needs_peers {
                benchmark = benchmark.filled(move |caller| put_peers(caller, &info_hashes[..full], peers));
            }
            benchmarks.push(benchmark);
        }
    }
    assert_eq!(benchmarks.len(), 27);
    run(criterion, "chihaya", &benchmarks);
}

fn leecher(info_hash: InfoHash, peer: Endpoint) -> Announce {
    Announce::new(info_hash, peer).want(0)
}

fn seeder(info_hash: InfoHash, peer: Endpoint) -> Announce {
    leecher(info_hash, peer).left(0)
}

fn put(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    assert!(caller.announce(&seeder(info_hash, peer)).0.stats.complete >= 1);
}

fn put_delete(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    assert!(caller.announce(&seeder(info_hash, peer)).0.changes.contains(Changes::JOINED));
    delete(caller, info_hash, peer);
}

fn delete(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    let (answer, _) = caller.announce(&seeder(info_hash, peer).event(AnnounceEvent::Stopped));
    assert_eq!((answer.changes, answer.stats.peers()), (Changes::LEFT, 0));
}

fn delete_nonexist(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    let (answer, _) = caller.announce(&seeder(info_hash, peer).event(AnnounceEvent::Stopped));
    assert!(answer.changes.is_empty());
}

fn grad_nonexist(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    let (answer, _) = caller.announce(&seeder(info_hash, peer).event(AnnounceEvent::Completed));
    assert!(answer.stats.complete >= 1 && answer.stats.downloaded >= 1);
}

fn put_grad_delete(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    assert!(caller.announce(&leecher(info_hash, peer)).0.changes.contains(Changes::JOINED));
    let (answer, _) = caller.announce(&seeder(info_hash, peer).event(AnnounceEvent::Completed));
    assert!(answer.changes.contains(Changes::PROMOTED | Changes::COMPLETED));
    delete(caller, info_hash, peer);
}

fn put_peers(caller: &mut Caller<'_>, info_hashes: &[InfoHash], peers: &[Endpoint]) {
    for &info_hash in info_hashes {
        for (n, &peer) in peers.iter().enumerate() {
            caller.announce(&if n < 500 { leecher(info_hash, peer) } else { seeder(info_hash, peer) });
        }
    }
}

fn announce_leecher(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    assert_eq!(caller.announce(&leecher(info_hash, peer).want(50)).1, 50);
}

fn announce_seeder(caller: &mut Caller<'_>, info_hash: InfoHash, peer: Endpoint) {
    assert_eq!(caller.announce(&seeder(info_hash, peer).want(50)).1, 50);
}

fn scrape_swarm(caller: &mut Caller<'_>, info_hash: InfoHash, _: Endpoint) {
    let stats = caller.repository.scrape(&info_hash);
    assert_eq!((stats.complete, stats.incomplete), (500, 500));
}

criterion_group!(benches, chihaya);
criterion_main!(benches);
