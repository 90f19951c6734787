//! The effect of a flood of made-up info hashes on a store with a limit: the share of the live swarms that it
//! evicts.

use std::error::Error;

use swarmkeep::{
    Announce, ConfigError, PeerBuffer, RepositoryConfig, Request, SplitMix64, Timestamp, TorrentRepository,
    catalog::Implementation,
};
use swarmkeep_conformance::Subject;
use swarmkeep_workload::{PeerIndex, Workload};

use super::row::{INTERVAL, Number, Plan, Row, START};
use crate::at_once;

/// The number of made-up swarms per live swarm.
const MADE_UP: u64 = 100;
/// The number of the first made-up swarm, larger than any population.
const FIRST: u64 = 1 << 40;

/// Fills a store that has room for a quarter more. Every second swarm has two peers; the others have one that
/// came back an interval later. Then each made-up swarm gets one announce, over one announce interval without
/// other announces.
/// Measures nothing if the store does not support such a limit.
pub(crate) fn flood(
    implementation: &Implementation,
    config: &RepositoryConfig,
    workload: &Workload,
    plan: &Plan,
    row: &mut Row,
) -> Result<(), Box<dyn Error>> {
    let lives = workload.swarms();
    let limited = config.clone().max_swarms((lives + lives / 4) as usize);
    let store = match Subject::build(&implementation, &limited) {
        Err(ConfigError::UnsupportedLimit(_)) => return Ok(()),
        built => built?,
    };
    let store: &dyn TorrentRepository = &*store;

    let of_each = |peer: fn(u64) -> u32| {
        (0..lives).map(move |swarm| workload.announce(PeerIndex { swarm, peer: peer(swarm) }))
    };
    announce(store, START, lives, of_each(|_| 0), plan.batch);
    announce(store, START + INTERVAL, lives, of_each(|swarm| (swarm % 2) as u32), plan.batch);

    let (made_up, threads) = (lives * MADE_UP, plan.threads as u64);
    let part = |thread: u64| {
        let swarms = (thread..made_up).step_by(plan.threads);
        let announces = swarms.map(|n| workload.announce(PeerIndex { swarm: FIRST + n, peer: 0 }));
        announce(store, START + 2 * INTERVAL, made_up / threads, announces, plan.batch);
    };
    let (took, _) = at_once(plan.threads, |thread| part(thread as u64));

    let lost = (0..lives).filter(|&swarm| store.scrape(&workload.info_hash(swarm)).peers() == 0).count();
    row.set(Number::FloodLost, lost as f64 / lives as f64);
    row.set(Number::FloodNs, took.as_nanos() as f64 / made_up as f64);
    Ok(())
}

/// Announces in batches, evenly over an announce interval.
fn announce(
    store: &dyn TorrentRepository,
    start: u64,
    count: u64,
    mut announces: impl Iterator<Item = Announce>,
    batch: usize,
) {
    let (mut rng, mut done) = (SplitMix64::new(start), 0);
    loop {
        let some = announces.by_ref().take(batch).map(|announce| announce.want(0));
        let mut requests: Vec<_> =
            some.map(|announce| Request::new(announce, PeerBuffer::new(&mut [], &mut []))).collect();
        if requests.is_empty() {
            return;
        }
        store.announce_batch(&mut requests, Timestamp::from_secs(start + INTERVAL * done / count), &mut rng);
        done += requests.len() as u64;
    }
}
