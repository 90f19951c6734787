//! The store on Redis: every case of the conformance suite on a real server and on a real Cluster, and the
//! fate of acknowledged announces when servers are lost, slow, full or moved.

use swarmkeep_store_tests::programs::Trial;

mod clocks;
mod conformance;
mod crowd;
mod faults;
mod histories;
mod hostile;
mod large;
mod layout;
mod module;
mod rights;
mod servers;
mod stores;

pub(crate) use crowd::torrent;
pub(crate) use stores::{FUNCTIONS, calls, keys, server_with_module, started};

pub(crate) fn tests() -> Vec<Trial> {
    let lists = [
        clocks::tests(),
        conformance::tests(),
        faults::tests(),
        histories::tests(),
        hostile::tests(),
        large::tests(),
        layout::tests(),
        module::tests(),
        rights::tests(),
        servers::tests(),
    ];
    lists.into_iter().flatten().collect()
}
