//! Every case runs on every implementation of the catalog, on the example of the documentation, on the store
//! of `tests/own-store`, and on the oracle, with a clock of seconds and with a coarse one.

use swarmkeep::{ConfigError, RepositoryConfig, TorrentRepository, catalog};
use swarmkeep_conformance::{Model, Subject, suite};

#[path = "../../../../crates/store/swarmkeep/examples/hash_map.rs"]
#[expect(dead_code, reason = "an example has a main function")]
mod hash_map;

macro_rules! suite_for_each {
    ($($name:ident)*) => {
        $(suite!($name, |config| build(stringify!($name), config));)*

        #[test]
        fn the_catalog_has_no_implementation_without_a_suite() {
            let tested = [$(stringify!($name)),*].map(|name| name.replace('_', "-"));
            let listed: Vec<_> = catalog::ALL.iter().map(|implementation| implementation.name).collect();
            assert_eq!(listed, tested);
        }
    };
}

swarmkeep::for_each_implementation! { suite_for_each }
suite!(model, Model::new);
suite!(hash_map_of_the_documentation, hash_map::hash_map);
suite!(model_with_a_coarse_clock, Model::coarse);
suite!(own, own_store::OwnStore::new);

fn build(identifier: &str, config: &RepositoryConfig) -> Result<Box<dyn TorrentRepository>, ConfigError> {
    let implementation = catalog::find(&identifier.replace('_', "-")).expect("all features are on");
    Subject::build(&implementation, config)
}
