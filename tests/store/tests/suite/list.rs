//! The list of cases, and the broken stores that they are for.

use swarmkeep_conformance::{CASES, Case, broken::Fault};

#[test]
fn every_rule_that_a_store_alone_can_keep_has_a_case() {
    for rule in 1..=25 {
        assert!(CASES.iter().any(|case| case.rules.contains(&rule)), "rule {rule}");
    }
}

#[test]
fn every_case_rejects_a_broken_store() {
    let is_target = |case: &&Case| Fault::ALL.iter().any(|fault| fault.case() == case.name);
    let others: Vec<_> = CASES.iter().filter(|case| !is_target(case)).map(|case| case.name).collect();
    assert!(others.is_empty(), "no fault is meant for these cases: {others:#?}");
}

#[test]
fn each_case_is_found_by_its_name() {
    for case in CASES {
        assert_eq!(Case::find(case.name).map(|found| found.name), Some(case.name));
        assert_eq!(CASES.iter().filter(|other| other.name == case.name).count(), 1, "{}", case.name);
    }
    assert!(Case::find("announce").is_none());
}
