//! A store that cannot be reached.

use std::{future::ready, sync::Arc};

use swarmkeep::{Unavailable, catalog::Repository};
use swarmkeep_conformance::Delayed;

use swarmkeep_tests::build;

pub(crate) fn repository() -> Repository {
    let cut = |_| Box::pin(ready(Err(Unavailable::new("the cable is cut")))) as _;
    Repository::Async(Arc::new(Delayed::new(build("packed", |config| config), cut)))
}
