//! The suite for stores of content is itself tested: each deliberately broken store is rejected by the case
//! meant for it, which the same store without its fault passes.

use std::panic::{self, AssertUnwindSafe};

use swarmkeep_content::ContentConfig;
use swarmkeep_kit::{
    content::{
        Case, Model,
        broken::{Broken, Fault},
    },
    content_suite,
};

content_suite!(model, Model::open);

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

swarmkeep_kit::for_each_content_fault! { rejections }

fn assert_rejected(fault: Fault) {
    let case = Case::find(fault.case()).expect("a fault names a case of the list");
    let broken = |config: &ContentConfig| Broken::open(fault, config);
    // On a busy machine threads may keep missing each other, so a race gets many tries at finding its fault.
    let rejected = (0..20).any(|_| panic::catch_unwind(AssertUnwindSafe(|| case.run(&broken))).is_err());
    assert!(rejected, "{fault:?} passes {}", case.name);
}
