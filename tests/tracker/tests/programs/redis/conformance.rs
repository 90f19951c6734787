//! Every case of the suite on one server, and on a Cluster.

use swarmkeep::catalog::Implementation;
use swarmkeep_conformance::{CASES, Case};
use swarmkeep_redis::RedisRepository;
use swarmkeep_store_tests::programs::{REDIS, Trial, trial};

use crate::redis::stores::{on_a_cluster, on_one_server, on_one_server_with_module};

static ON_ONE_SERVER: Implementation = Implementation::asynchronous(
    "redis",
    "redis",
    "Redis or Valkey, one server.",
    RedisRepository::BOUNDED,
    on_one_server,
);
static WITH_MODULE: Implementation = Implementation::asynchronous(
    "redis-module",
    "redis",
    "Redis or Valkey with the module, one server.",
    RedisRepository::BOUNDED,
    on_one_server_with_module,
);
static ON_A_CLUSTER: Implementation = Implementation::asynchronous(
    "redis-cluster",
    "redis",
    "Redis or Valkey, a Cluster.",
    RedisRepository::BOUNDED,
    on_a_cluster,
);

/// A test per case and row. The nodes of a Cluster run the same functions as one server. So by default the
/// Cluster has only the cases whose calls go to several nodes; `--include-ignored` adds the rest.
pub(crate) fn tests() -> Vec<Trial> {
    let test = |row: &str, store: &'static Implementation, case: &'static Case| {
        trial(&format!("{}::{row}::{}", module_path!(), case.name), &[REDIS], move || case.run(&store))
    };
    let cases = || CASES.iter().filter(|case| !is_of_this_process(case));
    let on_one_server = cases().map(|case| test("redis_on_one_server", &ON_ONE_SERVER, case));
    let with_module = cases().map(|case| test("redis_module_on_one_server", &WITH_MODULE, case));
    let on_a_cluster = cases().map(|case| {
        test("redis_on_a_cluster", &ON_A_CLUSTER, case).with_ignored_flag(!is_of_several_swarms(case))
    });
    on_one_server.chain(with_module).chain(on_a_cluster).collect()
}

/// Whether the case measures the memory of this process: here the server has the swarms.
fn is_of_this_process(case: &Case) -> bool {
    case.name == "swarms_that_were_listed_leave_no_memory_behind"
}

/// Whether a rule of the case is about threads, totals, listings, sweeps or removals. Exports are made of
/// listings, and the random stories announce in batches, so both count too.
fn is_of_several_swarms(case: &Case) -> bool {
    case.rules.iter().any(|rule| [6, 13, 14, 18, 20].contains(rule))
}
