//! The cost of sweeps: a pass, its steps, and the memory after most swarms have expired.

use std::time::{Duration, Instant};

use swarmkeep::{
    AnnounceEvent, Budget, PeerBuffer, Retention, SplitMix64, Swept, Timestamp, TorrentRepository,
};
use swarmkeep_workload::Workload;

use super::{
    SMALL_STEP,
    announcing::{FULL, latencies},
    row::{INTERVAL, LIFETIME, Number, Plan, Row, START, timed},
};
use crate::{resident_bytes, tables::Spread};

/// The number of visits of a step while no announce waits.
const LARGE_STEP: usize = 1 << 16;
/// The number of visits of a step after everything has expired at once.
const SHRINK_STEP: usize = 4096;

/// Measures a pass in large steps over a full store without expired peers: the median of three.
pub(crate) fn pass(store: &dyn TorrentRepository, row: &mut Row) {
    let all = store.totals().peers();
    let passes = (0..3).map(|_| timed(|| sweep(store, FULL, LARGE_STEP, |_| {})).1.as_secs_f64() * 1e3);
    row.set(Number::PassMs, Spread::of(passes).expect("three passes").median);
    assert_eq!(store.totals().peers(), all, "no peer has expired");
}

/// Measures the small steps of as many whole passes as fit in the time. No lock is held for longer than a
/// step.
pub(crate) fn steps(store: &dyn TorrentRepository, plan: &Plan, row: &mut Row) {
    let mut steps = latencies();
    let clock = Instant::now();
    while clock.elapsed().as_secs_f64() < plan.seconds {
        sweep(store, FULL, SMALL_STEP, |step| steps.saturating_record(step.as_nanos() as u64));
    }
    row.set(Number::StepP9999Us, steps.value_at_quantile(0.9999) as f64 / 1e3);
    row.set(Number::StepMaxUs, steps.max() as f64 / 1e3);
}

/// Announces one peer in a hundred again and lets the others expire. Sweeps until a pass removes nothing
/// more.
pub(crate) fn shrink(store: &dyn TorrentRepository, workload: &Workload, empty: Option<u64>, row: &mut Row) {
    const MOST_PASSES: usize = 10;
    let grown = || resident_bytes().zip(empty).map_or(0, |(now, empty)| now.saturating_sub(empty));
    let peak = grown();
    let end = START + INTERVAL + LIFETIME + store.capabilities().clock_resolution_secs + 1;
    let kept = announce_one_in_a_hundred(store, workload, Timestamp::from_secs(end - 60));

    let (mut took, mut longest) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..MOST_PASSES {
        let before = grown();
        let (swept, pass) = timed(|| {
            sweep(store, Timestamp::from_secs(end), SHRINK_STEP, |step| longest = longest.max(step))
        });
        took += pass;
        if swept.expired == 0 && grown() >= before - before / 100 {
            break;
        }
    }
    assert_eq!(store.totals().peers(), kept, "peers with late announces live");
    if peak > 0 {
        row.set(Number::ShrunkRss, grown() as f64 / peak as f64);
    }
    row.set(Number::ShrinkSeconds, took.as_secs_f64());
    row.set(Number::ShrinkStepUs, longest.as_secs_f64() * 1e6);
}

fn announce_one_in_a_hundred(store: &dyn TorrentRepository, workload: &Workload, late: Timestamp) -> u64 {
    let (mut rng, mut peers) = (SplitMix64::new(0), PeerBuffer::new(&mut [], &mut []));
    let places = (0..workload.peers()).step_by(100);
    for n in places.clone() {
        let announce = workload.announce(workload.peer_index(n)).event(AnnounceEvent::None).want(0);
        store.announce(&announce, late, &mut rng, &mut peers);
    }
    places.count() as u64
}

/// Does one pass in steps of `visits` visits; `each` receives the time of each step.
fn sweep(
    store: &dyn TorrentRepository,
    now: Timestamp,
    visits: usize,
    mut each: impl FnMut(Duration),
) -> Swept {
    let mut pass = Swept::default();
    while !pass.pass_complete {
        let (step, took) = timed(|| store.sweep(now, Retention::DropEmpty, Budget::peers(visits)));
        each(took);
        pass += step;
    }
    pass
}
