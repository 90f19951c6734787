//! The names and limits of the rows.

use std::collections::HashSet;

use swarmkeep::{
    BoundedBy, HashKey, RepositoryConfig,
    catalog::{ALL, find, names},
};

#[test]
fn names_are_unique_and_find_their_rows() {
    for implementation in ALL {
        assert_eq!(find(implementation.name).unwrap().summary, implementation.summary);
        assert_eq!(ALL.iter().filter(|other| other.name == implementation.name).count(), 1);
        assert!(implementation.name.starts_with(implementation.family), "{implementation:?}");
    }
    assert_eq!(ALL[0].name, "packed");
    assert!(find("btreemap-rwlock-std-mutex-parking-lot").is_some());
    assert!(find("hashmap").is_none());
}

#[test]
fn a_family_is_found_by_its_name() {
    for implementation in ALL {
        let first = find(implementation.family).unwrap();
        assert_eq!((first.family, first.bounded), (implementation.family, implementation.bounded));
    }
    let known: HashSet<_> = names().collect();
    assert_eq!(names().count(), known.len(), "each once");
    assert!(ALL.iter().all(|row| known.contains(row.name) && known.contains(row.family)));
    assert!(known.into_iter().all(|name| find(name).is_some()));
    assert_eq!(find("btreemap").unwrap().name, "btreemap-rwlock-parking-lot-mutex-parking-lot");
}

#[test]
fn a_row_has_the_limits_that_its_store_supports() {
    let config = RepositoryConfig::new(HashKey::from_bytes([0; 16]));
    for implementation in ALL {
        let store = implementation.build(&config).unwrap();
        assert_eq!(implementation.bounded, store.capabilities().bounded, "{implementation:?}");
        let limited = implementation.build(&config.clone().max_bytes(1 << 30));
        assert_eq!(implementation.bounded.contains(BoundedBy::BYTES), limited.is_ok(), "{implementation:?}");
    }
    assert_eq!(find("btreemap").unwrap().bounded.to_string(), "endpoints per address");
    assert!(find("packed").unwrap().bounded.is_all());
}
