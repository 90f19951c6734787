//! For tests: a store that cannot be reached.

use std::{future::ready, sync::Arc};

use swarmkeep::{
    HashKey, RepositoryConfig, Unavailable,
    catalog::{self, Repository},
};
use swarmkeep_conformance::Delayed;

pub(crate) fn packed() -> Repository {
    let config = RepositoryConfig::new(HashKey::from_bytes([1; 16]));
    catalog::find("packed").expect("in the catalog").build(&config).expect("no limits")
}

pub(crate) fn out_of_reach() -> Repository {
    let cut = |_| Box::pin(ready(Err(Unavailable::new("the cable is cut")))) as _;
    Repository::Async(Arc::new(Delayed::new(packed(), cut)))
}
