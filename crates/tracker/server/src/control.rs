//! The handle of a running tracker, for its keeper, its admin server and its program.

use std::{path::Path, sync::Arc};

use swarmkeep::catalog::Repository;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use crate::{AccessList, LiveRules, Metrics, PasskeyList, Rules, access::AccessError};

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
    /// Reads the list of torrents again if its file has changed, while the tracker runs. After an error the
    /// old list stays.
    ///
    /// # Errors
    /// As [`InfoHashList::load`](crate::access::InfoHashList::load). The error is also logged.
    pub async fn load_access_list(&self) -> Result<(), AccessError> {
        let rules = self.rules.clone();
        let load = move || {
            rules.renew(|rules| {
                let Some(list) = &rules.access else { return Ok(rules.clone()) };
                let loaded = log_loaded(list.load_again(), list.path(), "list of torrents", AccessList::len)?;
                Ok(Rules { access: Some(loaded), ..rules.clone() })
            })
        };
        spawn_blocking(load).await.expect("reading a list does not panic")
    }

    /// Reads the list of passkeys again if its file has changed, while the tracker runs. After an error the
    /// old list stays.
    ///
    /// # Errors
    /// As [`Passkeys::load`](crate::access::Passkeys::load). The error is also logged.
    pub async fn load_passkeys(&self) -> Result<(), AccessError> {
        let rules = self.rules.clone();
        let load = move || {
            rules.renew(|rules| {
                let Some(list) = &rules.passkeys else { return Ok(rules.clone()) };
                let len = |list: &PasskeyList| list.passkeys().len();
                let loaded = log_loaded(list.load_again(), list.path(), "list of passkeys", len)?;
                Ok(Rules { passkeys: Some(loaded), ..rules.clone() })
            })
        };
        spawn_blocking(load).await.expect("reading a list does not panic")
    }
}

/// Logs the result of loading a list.
fn log_loaded<L>(
    loaded: Result<L, AccessError>,
    path: &Path,
    name: &str,
    len: impl FnOnce(&L) -> usize,
) -> Result<L, AccessError> {
    match &loaded {
        Ok(list) => info!(file = %path.display(), entries = len(list), "{name} read again"),
        Err(error) => error!(%error, "the {name} stays as it was"),
    }
    loaded
}
