//! Sweeps of the store, at a steady pace.

use std::{convert::Infallible, time::Duration};

use swarmkeep::{Budget, Swept, Timestamp, Unavailable, catalog::Repository};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{debug, warn};

use crate::{LiveRules, Metrics};

/// The pause between two steps of a pass.
const STEP: Duration = Duration::from_millis(100);

/// The fewest visits per step, so that a small store takes one step.
const FEWEST_VISITS: u64 = 256;

/// Sweeps the store once every `period`, for ever, in steps that spread over half of it.
pub(crate) async fn sweep_for_ever(
    repository: Repository,
    rules: LiveRules,
    metrics: &Metrics,
    period: Duration,
    now: impl Fn() -> Timestamp,
) -> Infallible {
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_pass = Instant::now();
    loop {
        sleep_until(next_pass).await;
        next_pass = Instant::now() + period;
        let retention = rules.now().retention;
        let pass = async {
            let totals = repository.totals().await?;
            let budget = step_budget(totals.peers() + totals.swarms, period);
            let mut pass = Swept::default();
            while !pass.pass_complete {
                steps.tick().await;
                let began = Instant::now();
                let step = repository.sweep(now(), retention, budget).await?;
                metrics.sweeps().step(&step, began.elapsed());
                pass += step;
            }
            Ok::<_, Unavailable>(pass)
        };
        match pass.await {
            Ok(Swept { visited, expired, swarms_removed, .. }) => {
                debug!(visited, expired, swarms_removed, "swept")
            }
            Err(unavailable) => warn!(%unavailable, "a sweep was cut short"),
        }
    }
}

/// The visits per step so that a pass of `visits` takes half the period: the store may grow meanwhile.
fn step_budget(visits: u64, period: Duration) -> Budget {
    let steps = (period / 2).div_duration_f64(STEP).max(1.0) as u64;
    Budget::peers(visits.div_ceil(steps).max(FEWEST_VISITS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_half_its_period_and_a_small_store_one_step() {
        assert_eq!(step_budget(0, Duration::from_secs(300)).get(), 256);
        assert_eq!(step_budget(6_000_000, Duration::from_secs(300)).get(), 4000);
        assert_eq!(step_budget(6_000_000, Duration::ZERO).get(), 6_000_000);
    }
}
