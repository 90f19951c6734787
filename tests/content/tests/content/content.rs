//! Every content repository of the catalog goes through every case of the conformance suite.

use swarmkeep_content::{Error, Geometry, catalog};
use swarmkeep_kit::content_suite;

macro_rules! suite_for_each {
    ($($name:literal $identifier:ident)*) => {
        $(content_suite!($identifier, |config| catalog::find($name).expect("the catalog lists it").open(config));)*

        #[test]
        fn the_catalog_has_no_implementation_without_a_suite() {
            let listed: Vec<_> = catalog::ALL.iter().map(|implementation| implementation.name).collect();
            assert_eq!(listed, [$($name),*]);
        }
    };
}

swarmkeep_content::for_each_content_repository! { suite_for_each }

#[test]
fn no_torrent_has_impossible_measures() {
    for (length, piece_length) in [(0, 1), (0, 0), (1, 0), (1 << 32, 1), (u64::MAX, u32::MAX)] {
        assert!(matches!(Geometry::new(length, piece_length), Err(Error::Geometry { .. })));
    }
    assert_eq!(Geometry::new(u64::from(u32::MAX), 1).unwrap().pieces(), u32::MAX);
}
