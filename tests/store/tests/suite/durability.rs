//! Every case of the durability suite runs on every persistent store. The suite itself is tested: each
//! deliberately broken store is rejected by its case, which the same store without its fault passes.

use std::panic::{self, AssertUnwindSafe};

use swarmkeep_conformance::{
    durability::{Case, Fault, Reference},
    durability_suite,
};

durability_suite!(reference, Reference::new());
durability_suite!(lazy_reference, Reference::lazy());

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

swarmkeep_conformance::for_each_durability_fault! { rejections }

fn assert_rejected(fault: Fault) {
    let case = Case::find(fault.case()).expect("a fault names a case of the list");
    // On a busy machine threads may miss each other, so a race gets many tries to find its fault.
    let rejected = (0..10).flat_map(|_| [Reference::lazy(), Reference::new()]).any(|reference| {
        panic::catch_unwind(AssertUnwindSafe(|| case.run(&reference.broken(fault)))).is_err()
    });
    assert!(rejected, "{fault:?} passes {}", case.name);
}
