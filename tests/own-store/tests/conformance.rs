//! The whole suite in one line.

swarmkeep_conformance::suite!(own, own_store::OwnStore::new);
