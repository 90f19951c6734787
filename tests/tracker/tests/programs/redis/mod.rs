//! The store on Redis: every case of the conformance suite on a real server and on a real Cluster, and what becomes of acknowledged
//! announces when servers are lost, slow, full or moved. All names contain `redis`; where there is no `redis-server`, all of them fail.

mod conformance;
mod crowd;
mod faults;
mod large;
mod stale;
mod stores;
