//! Every case of the suite, on one server and on a Cluster.

use swarmkeep::catalog::Implementation;
use swarmkeep_conformance::CASES;
use swarmkeep_store_tests::programs::{REDIS, Trial, trial};

use crate::redis::stores::{on_a_cluster, on_one_server};

static ON_ONE_SERVER: Implementation =
    Implementation::asynchronous("redis", "redis", "Redis or Valkey, one server.", on_one_server);
static ON_A_CLUSTER: Implementation =
    Implementation::asynchronous("redis-cluster", "redis", "Redis or Valkey, a Cluster.", on_a_cluster);

/// A test per case and row.
pub(crate) fn tests() -> Vec<Trial> {
    let rows = [("redis_on_one_server", &ON_ONE_SERVER), ("redis_on_a_cluster", &ON_A_CLUSTER)];
    let test = |name: &str, row: &'static Implementation| {
        CASES
            .iter()
            .map(move |case| {
                let path = format!("{}::{name}::{}", module_path!(), case.name);
                trial(&path, &[REDIS], move || case.run(&row))
            })
            .collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(|(name, row)| test(name, row)).collect()
}
