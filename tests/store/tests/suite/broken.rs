//! A test of the suite itself: each deliberately broken store is rejected by its case. The same store without
//! its fault passes: it is the model, which the suite runs on as well.

use std::{
    env,
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use swarmkeep::RepositoryConfig;
use swarmkeep_conformance::{
    Case,
    broken::{Broken, Fault},
    kit::PATIENCE,
};

macro_rules! rejections {
    ($($test:ident $fault:ident)*) => {
        mod broken {
            $(
                #[test]
                fn $test() {
                    super::assert_rejected(super::Fault::$fault);
                }
            )*
        }
    };
}

swarmkeep_conformance::for_each_fault! { rejections }

fn assert_rejected(fault: Fault) {
    let case = Case::find(fault.case()).expect("a fault names a case of the list");
    if matches!(fault, Fault::PredicateUnderLock | Fault::DrawsForEver) {
        PATIENCE.set(Duration::from_secs(5));
    }
    let broken = |config: &RepositoryConfig| Broken::new(fault, config);
    // On a busy machine threads may miss each other, so a race gets many tries to find its fault.
    let tries = env::var("SWARMKEEP_TRIES").map_or(100, |tries| tries.parse().expect("a number"));
    let rejected = (0..tries).any(|_| panic::catch_unwind(AssertUnwindSafe(|| case.run(&broken))).is_err());
    assert!(rejected, "{fault:?} passes {}", case.name);
}
