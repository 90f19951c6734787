//! Every content repository of the catalog goes through every case of the conformance suite.

use std::sync::Arc;

use swarmkeep_content::{
    ContentConfig, ContentExt, ContentRepository, Error, Geometry, InfoHash, Memory, NewTorrent, catalog,
};
use swarmkeep_kit::content_suite;
use swarmkeep_store_tests::with;

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
fn references_boxes_and_arcs_forward_to_the_repository_in_them() {
    fn goes_through(store: impl ContentRepository) {
        let torrent = NewTorrent::new(InfoHash::new([7; 20]), 100_000, 1000).unwrap();
        let content = store.create(&torrent).unwrap();
        content.write(0, &[1; 1000]).unwrap();
        assert!(content.mark_complete(0).unwrap());
        store.flush().unwrap();
        assert_eq!(store.open(&torrent.info_hash).unwrap().read_piece(0).unwrap(), [1; 1000]);
        assert_eq!(store.list().unwrap().len(), 1);
        let told = store.statistics();
        assert_eq!((told.torrents, told.writes, told.reads, told.flushes), (1, 1, 1, 1));
        assert!(told.free.is_some());
        assert!(store.capabilities().bounded);
        assert!(store.delete(&torrent.info_hash).unwrap());
    }
    let config = with(ContentConfig::new(""), |config| config.capacity = Some(1 << 20));
    let store = Memory::new(&config);
    goes_through(&store);
    goes_through(Box::new(Memory::new(&config)));
    goes_through(Arc::new(Memory::new(&config)));
    goes_through(Arc::new(Memory::new(&config)) as Arc<dyn ContentRepository>);
}

#[test]
fn no_torrent_has_impossible_measures() {
    for (length, piece_length) in [(0, 1), (0, 0), (1, 0), (1 << 32, 1), (u64::MAX, u32::MAX)] {
        assert!(matches!(Geometry::new(length, piece_length), Err(Error::Geometry { .. })));
    }
    assert_eq!(Geometry::new(u64::from(u32::MAX), 1).unwrap().pieces(), u32::MAX);
}
