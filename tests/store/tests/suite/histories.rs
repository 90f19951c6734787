//! Histories of every row, for longer than the suite has.

use std::{env, sync::Arc, time::Duration};

use swarmkeep::{
    AsyncTorrentRepository, HashKey, RepositoryConfig,
    catalog::{self, Repository},
};
use swarmkeep_conformance::histories::{self, Effects};

/// Takes the seconds of `SWARMKEEP_HISTORIES`, an hour by default, for all rows together.
#[test]
#[ignore = "takes an hour: .ci/long histories"]
fn calls_of_several_threads_have_an_order_for_an_hour() {
    let seconds = env::var("SWARMKEEP_HISTORIES").map_or(3600, |seconds| seconds.parse().expect("seconds"));
    let each = Duration::from_secs(seconds) / catalog::ALL.len() as u32;
    for implementation in catalog::ALL {
        let config = RepositoryConfig::new(HashKey::from_bytes([7; 16]));
        let store: Arc<dyn AsyncTorrentRepository> =
            match implementation.build(&config).expect("a store without limits") {
                Repository::Sync(store) => Arc::new(store),
                Repository::Async(store) => store,
            };
        match histories::check_for(each, &|_| store.clone(), Effects::One) {
            Ok(checked) => println!("{:48}{checked}", implementation.name),
            Err(story) => panic!("{}, {story}", implementation.name),
        }
    }
}
