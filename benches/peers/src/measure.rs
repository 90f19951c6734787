//! The measurements: time on workloads, and the resident set.

use std::{
    fs, io,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use swarmkeep::SplitMix64;
use swarmkeep_workload::Workload;

use crate::{
    Scale,
    stores::{Input, Store},
};

/// Announces to time, and the earlier content of the store.
pub(crate) struct Timed {
    pub(crate) name: &'static str,
    workload: Workload,
    kind: Kind,
}

enum Kind {
    /// Each swarm's one peer announces again.
    Update,
    /// The announces of a running tracker.
    Running,
}

/// The inputs of all threads, and the inputs that fill the store.
pub(crate) struct Inputs {
    fill: Vec<Input>,
    threads: Vec<Vec<Input>>,
}

/// Torrust's own bench of updates, then announces as a tracker gets them.
pub(crate) fn workloads(scale: &Scale, seed: u64) -> Vec<Timed> {
    vec![
        Timed { name: "update many", workload: Workload::uniform(seed, 10_000, 1), kind: Kind::Update },
        Timed { name: "hot", workload: Workload::hot(seed, 1000, 1000), kind: Kind::Running },
        Timed {
            name: "zipf",
            workload: Workload::zipf(seed, scale.swarms, scale.peers),
            kind: Kind::Running,
        },
        Timed {
            name: "one peer each",
            workload: Workload::uniform(seed, scale.memory, 1).with_profile(|profile| profile.ipv6 = 0.0),
            kind: Kind::Running,
        },
    ]
}

impl Timed {
    pub(crate) fn inputs(&self, threads: usize, announces: usize) -> Inputs {
        let of_thread = |thread: usize| -> Vec<Input> {
            match self.kind {
                Kind::Update => {
                    let peers = self.workload.peers();
                    let turn = (0..announces as u64).map(|n| self.workload.peer_index(n % peers));
                    turn.map(|peer| self.workload.announce(peer).into()).collect()
                }
                Kind::Running => {
                    // Swarms of a thousand cost torrust's store microseconds each.
                    self.workload.announces(thread as u64).take(announces / 4).map(Input::from).collect()
                }
            }
        };
        Inputs {
            fill: self.workload.fill().map(Input::from).collect(),
            threads: (0..threads).map(of_thread).collect(),
        }
    }

    /// Fills the store. Returns the wall time of an announce over all threads, in nanoseconds.
    pub(crate) fn time(&self, store: &dyn Store, inputs: &Inputs, limit: Duration) -> f64 {
        let mut rng = SplitMix64::new(0);
        for input in &inputs.fill {
            store.update(input, &mut rng);
        }
        let barrier = Barrier::new(inputs.threads.len());
        let announcer = |inputs: &[Input]| {
            let (mut rng, mut selected, mut announced) = (SplitMix64::new(1), 0, 0);
            barrier.wait();
            let start = Instant::now();
            for chunk in inputs.chunks(64) {
                selected += store.announce_some(chunk, &mut rng);
                announced += chunk.len();
                if start.elapsed() > limit {
                    break;
                }
            }
            ThreadRun { start, end: Instant::now(), announced, selected }
        };
        let announcer = &announcer;
        let spans: Vec<ThreadRun> = thread::scope(|scope| {
            let threads: Vec<_> =
                inputs.threads.iter().map(|inputs| scope.spawn(move || announcer(inputs))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a store does not panic")).collect()
        });
        if let Kind::Running = self.kind
            && self.workload.peers() > self.workload.swarms()
        {
            assert!(spans.iter().all(|span| span.selected > 0), "no peer was selected");
        }
        let first = spans.iter().map(|span| span.start).min().expect("a thread");
        let last = spans.iter().map(|span| span.end).max().expect("a thread");
        let announced: usize = spans.iter().map(|span| span.announced).sum();
        (last - first).as_nanos() as f64 / announced as f64
    }
}

struct ThreadRun {
    start: Instant,
    end: Instant,
    announced: usize,
    selected: usize,
}

/// The growth of the resident set, in bytes, while a store is filled.
pub(crate) fn resident(store: &dyn Store, seed: u64, swarms: u64, peers: u32) -> io::Result<u64> {
    let workload = Workload::uniform(seed, swarms, peers);
    let mut rng = SplitMix64::new(0);
    let before = resident_bytes()?;
    for announce in workload.fill() {
        store.update(&announce.into(), &mut rng);
    }
    Ok(resident_bytes()?.saturating_sub(before))
}

fn resident_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).ok_or_else(|| io::Error::other("no VmRSS"))?;
    Ok(kib * 1024)
}
