//! A running tracker, as what looks after it and its admin server see it.

use std::{path::Path, sync::Arc};

use swarmkeep::catalog::Repository;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use crate::{AccessList, LiveRules, Metrics, PasskeyList, Rules, access::AccessError};

/// What can be asked of a tracker while it runs, and told to it. Clones are for the same one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Control {
    /// Where it keeps the swarms.
    pub repository: Repository,
    /// By what rules it answers.
    pub rules: LiveRules,
    /// What it counts.
    pub metrics: Arc<Metrics>,
}

impl Control {
    /// Reads the list of torrents again if its file has changed, while the tracker goes on. If it cannot, the
    /// old one stays.
    ///
    /// # Errors
    /// As [`InfoHashList::load`](crate::access::InfoHashList::load); it is logged too.
    pub async fn load_access_list(&self) -> Result<(), AccessError> {
        let rules = self.rules.clone();
        let load = move || {
            rules.renew(|rules| {
                let Some(list) = &rules.access else { return Ok(rules.clone()) };
                let loaded = told(list.load_again(), list.path(), "list of torrents", AccessList::len)?;
                Ok(Rules { access: Some(loaded), ..rules.clone() })
            })
        };
        spawn_blocking(load).await.expect("reading a list does not panic")
    }

    /// Reads the list of passkeys again if its file has changed, while the tracker goes on. If it cannot, the
    /// old one stays.
    ///
    /// # Errors
    /// As [`Passkeys::load`](crate::access::Passkeys::load); it is logged too.
    pub async fn load_passkeys(&self) -> Result<(), AccessError> {
        let rules = self.rules.clone();
        let load = move || {
            rules.renew(|rules| {
                let Some(list) = &rules.passkeys else { return Ok(rules.clone()) };
                let len = |list: &PasskeyList| list.passkeys().len();
                let loaded = told(list.load_again(), list.path(), "list of passkeys", len)?;
                Ok(Rules { passkeys: Some(loaded), ..rules.clone() })
            })
        };
        spawn_blocking(load).await.expect("reading a list does not panic")
    }
}

/// Logs how loading went.
fn told<L>(
    loaded: Result<L, AccessError>,
    path: &Path,
    what: &str,
    len: impl FnOnce(&L) -> usize,
) -> Result<L, AccessError> {
    match &loaded {
        Ok(list) => info!(file = %path.display(), entries = len(list), "{what} read again"),
        Err(error) => error!(%error, "the {what} stays as it was"),
    }
    loaded
}
