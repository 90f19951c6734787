//! Checks of a running tracker, once per second: lists that have changed, and overload.

use std::{
    convert::Infallible,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use swarmkeep::{Budget, Cursor, InfoHash, Unavailable, catalog::Repository};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{error, info, warn};

use crate::{
    Control, ListFormat, Listed, LiveRules, Rules,
    access::{Access, Change, Networks, Passkeys, Watched},
};

/// The time between two checks. A changed list is loaded after two checks at most, unless it is being
/// written.
const EVERY: Duration = Duration::from_secs(1);

/// After this time, forbidden torrents are removed a second time: an announce that the old list admitted may
/// have waited for the store until then.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The swarms and peers that one step of a removal visits, some 100 µs of work, and the pause after it.
const STEP: Budget = Budget::peers(1024);
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Keeper {
    control: Control,
    access: SeenList<Access>,
    passkeys: SeenList<Passkeys>,
    refused: SeenList<Networks>,
    /// The list of the latest removal of torrents.
    removed_by: Option<Arc<Access>>,
    /// That removal. It ends with the tracker: the next tracker over the same store may have other rules.
    removing: JoinSet<()>,
    load: LoadSample,
}

impl Keeper {
    /// The keeper of a tracker that uses at most `cores`.
    pub(crate) fn new(control: Control, cores: usize) -> Self {
        let machine = thread::available_parallelism().map_or(1, Into::into);
        let drops = control.metrics.drops();
        let load = LoadSample { cores: machine.min(cores), since: Instant::now(), cpu: cpu_time(), drops };
        Self {
            control,
            access: SeenList(None),
            passkeys: SeenList(None),
            refused: SeenList(None),
            removed_by: None,
            removing: JoinSet::new(),
            load,
        }
    }

    /// For ever.
    pub(crate) async fn keep(mut self) -> Infallible {
        let mut looks = interval(EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.access.look(&self.control, |rules| &mut rules.access).await;
            self.passkeys.look(&self.control, |rules| &mut rules.passkeys).await;
            self.refused.look(&self.control, |rules| &mut rules.refused).await;
            self.remove_forbidden();
            let drops = self.control.metrics.drops();
            let overloaded = self.load.is_over(Instant::now(), cpu_time(), drops);
            self.control.rules.adapt(overloaded);
        }
    }

    /// If there is another list, begins to remove the torrents that it forbids.
    fn remove_forbidden(&mut self) {
        let access = self.control.rules.now().access.as_ref().map(|list| Arc::clone(list.list()));
        let Some(access) = access else {
            self.removed_by = None;
            return;
        };
        if self.removed_by.as_ref().is_some_and(|by| Arc::ptr_eq(by, &access)) {
            return;
        }
        self.removed_by = Some(Arc::clone(&access));
        let (repository, rules) = (self.control.repository.clone(), self.control.rules.clone());
        // A replaced list need not stay in memory for this.
        let access = Arc::downgrade(&access);
        self.removing = JoinSet::new();
        self.removing.spawn(async move {
            let mut passes = 0;
            while let Some(access) = access.upgrade().filter(|access| is_current(access, &rules)) {
                match remove(&repository, &access, &rules).await {
                    Ok(swarms) => {
                        if swarms > 0 {
                            info!(swarms, "removed forbidden torrents");
                        }
                        passes += 1;
                    }
                    Err(unavailable) => error!(%unavailable, "cannot remove forbidden torrents yet"),
                }
                drop(access);
                if passes == 2 {
                    break;
                }
                sleep(AGAIN_AFTER).await;
            }
        });
    }
}

/// A list of the rules, and its file as it was when it was last looked at.
struct SeenList<L>(Option<(Arc<L>, Watched)>);

impl<L: ListFormat> SeenList<L> {
    /// Loads the list again if its file has changed since it was loaded, and is not being written.
    async fn look(&mut self, control: &Control, list: fn(&mut Rules) -> &mut Option<Listed<L>>) {
        let in_force = list(&mut Rules::clone(&control.rules.now())).take();
        let Some(in_force) = in_force else {
            self.0 = None;
            return;
        };
        if self.0.as_ref().is_some_and(|(seen, _)| !Arc::ptr_eq(seen, in_force.list())) {
            self.0 = None;
        }
        let (_, watched) =
            self.0.get_or_insert_with(|| (Arc::clone(in_force.list()), in_force.watched().clone()));
        match watched.look() {
            Change::Changed => _ = control.load_again(list).await,
            Change::Gone(reason) => {
                warn!(file = %watched.path().display(), %reason, "a list is gone; it stays as it was");
            }
            Change::Same | Change::Changing => {}
        }
    }
}

fn is_current(access: &Arc<Access>, rules: &LiveRules) -> bool {
    rules.now().access.as_ref().is_some_and(|list| Arc::ptr_eq(list.list(), access))
}

/// Removes the swarms that a list forbids, until there is another list. Returns their number.
async fn remove(
    repository: &Repository,
    access: &Arc<Access>,
    rules: &LiveRules,
) -> Result<usize, Unavailable> {
    let is_forbidden = |info_hash: &InfoHash| !access.admits(info_hash);
    let (mut from, mut count) = (Cursor::START, 0);
    while !from.is_end() && is_current(access, rules) {
        let step = repository.remove_where(&is_forbidden, from, STEP).await?;
        count += step.removed.len();
        from = step.next;
        sleep(PAUSE).await;
    }
    Ok(count)
}

/// The core time of the process and its lost requests at some moment.
struct LoadSample {
    cores: usize,
    since: Instant,
    cpu: Duration,
    drops: u64,
}

impl LoadSample {
    /// Above this share of the time of the cores, requests begin to wait for each other.
    const MOST: f64 = 0.85;

    /// Whether too much core time was used, or a request lost, since the last call.
    fn is_over(&mut self, now: Instant, cpu: Duration, drops: u64) -> bool {
        let used = cpu.saturating_sub(self.cpu).as_secs_f64();
        let had = (now - self.since).as_secs_f64() * self.cores as f64;
        let lost = drops > self.drops;
        (self.since, self.cpu, self.drops) = (now, cpu, drops);
        lost || used > had * Self::MOST
    }
}

/// The time that the process has spent on cores.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("every process can ask for its own");
    let times = [usage.user_time(), usage.system_time()];
    times.iter().map(|time| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_that_uses_most_of_the_cores_or_loses_requests_is_overloaded() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut load = LoadSample { cores: 2, since: start, cpu: second, drops: 5 };
        assert!(!load.is_over(start + second, second * 2, 5));
        assert!(load.is_over(start + second * 2, second * 4, 5));
        assert!(!load.is_over(start + second * 4, second * 7, 5), "it was longer");
        assert!(load.is_over(start + second * 5, second * 7, 6));
        assert!(!load.is_over(start + second * 6, second * 7, 6));
    }
}
