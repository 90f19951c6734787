//! The suite itself is tested: each deliberately broken store is rejected by its case, which the same store
//! without its fault passes.

use std::panic::{self, AssertUnwindSafe};

use super::{Case, DURABILITY_CASES, Fault, Reference};

durability_suite!(reference, Reference::new());
durability_suite!(lazy_reference, Reference::lazy());

macro_rules! rejections {
    ($($test:ident $fault:ident)*) => {
        $(
            #[test]
            fn $test() {
                assert_rejected(Fault::$fault);
            }
        )*
    };
}

for_each_durability_fault! { rejections }

fn assert_rejected(fault: Fault) {
    let case = Case::find(fault.case()).expect("a fault names a case of the list");
    // On a busy machine threads may miss each other, so a race gets many tries to find its fault.
    let rejected = (0..10).flat_map(|_| [Reference::lazy(), Reference::new()]).any(|reference| {
        panic::catch_unwind(AssertUnwindSafe(|| case.run(&reference.broken(fault)))).is_err()
    });
    assert!(rejected, "{fault:?} passes {}", case.name);
}

#[test]
fn every_case_rejects_a_broken_store() {
    let is_target = |case: &&Case| Fault::ALL.iter().any(|fault| fault.case() == case.name);
    let all = DURABILITY_CASES.iter();
    let others: Vec<_> = all.filter(|case| !is_target(case)).map(|case| case.name).collect();
    assert!(others.is_empty(), "no fault is meant for these cases: {others:#?}");
}
