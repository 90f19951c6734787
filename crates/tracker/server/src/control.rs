//! The handle of a running tracker, for its keeper, its admin server and its program.

use std::sync::Arc;

use swarmkeep::catalog::Repository;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use crate::{ListFormat, Listed, LiveRules, Metrics, Rules, access::AccessError};

/// The handle of a running tracker. Clones are handles of the same tracker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Control {
    /// The store of the swarms.
    pub repository: Repository,
    /// The rules by which it answers.
    pub rules: LiveRules,
    /// Its counters.
    pub metrics: Arc<Metrics>,
}

impl Control {
    /// Reads a list of its rules again if the file has changed, while the tracker runs. After an error the
    /// old list stays.
    ///
    /// # Errors
    /// As [`ListFormat::read`]. The error is also logged.
    pub async fn load_again<L: ListFormat>(
        &self,
        list: fn(&mut Rules) -> &mut Option<Listed<L>>,
    ) -> Result<(), AccessError> {
        let rules = self.rules.clone();
        let load = move || {
            rules.renew(|rules| {
                let mut rules = rules.clone();
                if let Some(list) = list(&mut rules) {
                    let (name, file) = (L::NAME, list.path().display().to_string());
                    let read = list
                        .load_again()
                        .inspect_err(|error| error!(%error, "the {name} stays as it was"))?;
                    if !Arc::ptr_eq(read.list(), list.list()) {
                        info!(file, entries = read.list().entries(), "{name} read again");
                    }
                    *list = read;
                }
                Ok(rules)
            })
        };
        spawn_blocking(load).await.expect("reading a list does not panic")
    }
}
