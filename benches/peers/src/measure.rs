//! The measurements: time on workloads, announces lost to races, the resident set.

use std::{
    fs, hint, io,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{AnnounceEvent, SplitMix64};
use swarmkeep_workload::{PeerIndex, Workload};

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
    /// Each announce is the first of its swarm.
    Add,
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

/// Torrust's own benches, then announces as a tracker gets them.
pub(crate) fn workloads(scale: &Scale, seed: u64) -> Vec<Timed> {
    vec![
        Timed { name: "add many", workload: Workload::uniform(seed, 1, 1), kind: Kind::Add },
        Timed { name: "update one", workload: Workload::uniform(seed, 1, 1), kind: Kind::Update },
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
        let first = |thread: usize| 1 << 40 | (thread * announces) as u64;
        let of_thread = |thread: usize| -> Vec<Input> {
            match self.kind {
                Kind::Add => {
                    let swarms = first(thread)..first(thread) + announces as u64;
                    swarms.map(|swarm| self.workload.announce(PeerIndex { swarm, peer: 0 }).into()).collect()
                }
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

/// The announces that returned, and the number of them that were not there afterwards.
pub(crate) struct LostAnnounces {
    pub(crate) acknowledged: usize,
    pub(crate) lost: u64,
}

/// Two peers announce to a new swarm at the same moment, again and again; both must be in it.
pub(crate) fn first_announces(store: &dyn Store, seed: u64, swarms: usize) -> LostAnnounces {
    let workload = Workload::uniform(seed, swarms as u64, 2);
    let inputs = |peer: u32| -> Vec<Input> {
        let announces = (0..swarms as u64).map(|swarm| workload.announce(PeerIndex { swarm, peer }));
        announces.map(|announce| announce.event(AnnounceEvent::Started).into()).collect()
    };
    let inputs = [inputs(0), inputs(1)];
    let at = [AtomicUsize::new(0), AtomicUsize::new(0)];
    thread::scope(|scope| {
        for own in 0..2 {
            let (inputs, at) = (&inputs[own], &at);
            scope.spawn(move || {
                let mut rng = SplitMix64::new(own as u64);
                for (n, input) in inputs.iter().enumerate() {
                    // Step by step with the other thread, closer than a barrier of the system allows.
                    at[own].store(n, Ordering::Release);
                    let mut spins = 0;
                    while at[1 - own].load(Ordering::Acquire) < n {
                        spins += 1;
                        if spins % 1024 == 0 { thread::yield_now() } else { hint::spin_loop() }
                    }
                    store.update(input, &mut rng);
                }
                at[own].store(usize::MAX, Ordering::Release);
            });
        }
    });
    let lost = inputs[0].iter().map(|input| 2 - store.peers(input)).sum();
    LostAnnounces { acknowledged: 2 * swarms, lost }
}

/// A peer joins an empty swarm, must be in it, and leaves, while another thread removes empty swarms. There
/// is only this one swarm, so that the two meet often.
pub(crate) fn sweeps(store: &dyn Store, seed: u64, announces: usize) -> LostAnnounces {
    let workload = Workload::uniform(seed, 1, 1);
    let input = |event| Input::from(workload.announce(workload.peer_index(0)).event(event));
    let (join, leave) = (input(AnnounceEvent::Started), input(AnnounceEvent::Stopped));
    let over = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                store.drop_empty();
            }
        });
        let mut rng = SplitMix64::new(0);
        let lost = (0..announces).map(|_| {
            store.update(&join, &mut rng);
            let lost = 1 - store.peers(&join);
            store.update(&leave, &mut rng);
            lost
        });
        let lost = lost.sum();
        over.store(true, Ordering::Relaxed);
        lost
    });
    LostAnnounces { acknowledged: announces, lost }
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
