//! The measurements: time on workloads, and the resident set.

use std::time::{Duration, Instant};

use swarmkeep::SplitMix64;
use swarmkeep_benches::{at_once, resident_bytes};
use swarmkeep_workload::Workload;

use crate::{
    Scale,
    stores::{Input, Store},
};

/// Announces to time, and the earlier content of the store.
pub(crate) struct Timed {
    pub(crate) name: &'static str,
    workload: Workload,
}

/// The inputs of all threads, and the inputs that fill the store.
pub(crate) struct Inputs {
    fill: Vec<Input>,
    threads: Vec<Vec<Input>>,
}

/// Announces as a tracker gets them.
pub(crate) fn workloads(scale: &Scale, seed: u64) -> Vec<Timed> {
    let one_each = Workload::uniform(seed, scale.memory, 1).with_profile(|profile| profile.ipv6 = 0.0);
    vec![
        Timed { name: "hot", workload: Workload::hot(seed, 1000, 1000) },
        Timed { name: "zipf", workload: Workload::zipf(seed, scale.swarms, scale.peers) },
        Timed { name: "one peer each", workload: one_each },
    ]
}

impl Timed {
    pub(crate) fn inputs(&self, threads: usize, announces: usize) -> Inputs {
        let of_thread = |thread| self.workload.announces(thread).take(announces).map(Input::from);
        Inputs {
            fill: self.workload.fill().map(Input::from).collect(),
            threads: (0..threads as u64).map(|thread| of_thread(thread).collect()).collect(),
        }
    }

    /// Fills the store. Returns the wall time of an announce over all threads, in nanoseconds.
    pub(crate) fn time(&self, store: &dyn Store, inputs: &Inputs, limit: Duration) -> f64 {
        let mut rng = SplitMix64::new(0);
        for input in &inputs.fill {
            store.update(input, &mut rng);
        }
        let announcer = |thread: usize| {
            let (mut rng, mut selected, mut announced) = (SplitMix64::new(1), 0, 0);
            let start = Instant::now();
            for chunk in inputs.threads[thread].chunks(64) {
                selected += store.announce_some(chunk, &mut rng);
                announced += chunk.len();
                if start.elapsed() > limit {
                    break;
                }
            }
            (announced, selected)
        };
        let (took, threads) = at_once(inputs.threads.len(), announcer);
        if self.workload.peers() > self.workload.swarms() {
            assert!(threads.iter().all(|(_, selected)| *selected > 0), "no peer was selected");
        }
        took.as_nanos() as f64 / threads.iter().map(|(announced, _)| announced).sum::<usize>() as f64
    }
}

/// The growth of the resident set, in bytes, while a store is filled; `None` without `/proc`.
pub(crate) fn resident(store: &dyn Store, seed: u64, swarms: u64, peers: u32) -> Option<u64> {
    let workload = Workload::uniform(seed, swarms, peers);
    let mut rng = SplitMix64::new(0);
    let before = resident_bytes()?;
    for announce in workload.fill() {
        store.update(&announce.into(), &mut rng);
    }
    Some(resident_bytes()?.saturating_sub(before))
}
