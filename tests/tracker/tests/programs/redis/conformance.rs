//! Every case of the suite on one server, and on a Cluster.

use std::sync::{Arc, LazyLock};

use swarmkeep::catalog::{Build, Implementation};
use swarmkeep::{AsyncTorrentRepository, ConfigError, RepositoryConfig};
use swarmkeep_conformance::{CASES, Case};
use swarmkeep_redis::{Error, RedisRepository};
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::programs::{REDIS, Trial, trial};
use tokio::runtime::{Builder, Runtime};

use crate::redis::stores::{server_with_module, settings, started};

/// A call waits for its answer, so there is nothing that a second worker would be woken for.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads"));
/// Without TCP, which the Cluster and all other tests have: a case makes thousands of calls, one after the
/// other.
const SOCKET: (&str, &str) = ("unixsocket", "socket");
static SERVER: LazyLock<Server> = LazyLock::new(|| started(Server::start_with(&[SOCKET])));
static SERVER_WITH_MODULE: LazyLock<Server> = LazyLock::new(|| server_with_module(&[SOCKET]));
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| started(Cluster::start(3, 0)));

static ON_ONE_SERVER: Implementation = row("redis_on_one_server", |config| on([at_socket(&SERVER)], config));
static WITH_MODULE: Implementation =
    row("redis_module_on_one_server", |config| on([at_socket(&SERVER_WITH_MODULE)], config));
static ON_A_CLUSTER: Implementation = row("redis_on_a_cluster", |config| on(CLUSTER.urls(), config));

type Built = Result<Arc<dyn AsyncTorrentRepository>, ConfigError>;

/// A row of the catalog's kind.
const fn row(name: &'static str, build: fn(&RepositoryConfig) -> Built) -> Implementation {
    Implementation::new(name, "redis", "Redis or Valkey.", RedisRepository::BOUNDED, Build::Async(build))
}

fn at_socket(server: &Server) -> String {
    format!("redis+unix://{}/{}", server.folder().display(), SOCKET.1)
}

fn on(urls: impl IntoIterator<Item = String>, config: &RepositoryConfig) -> Built {
    let urls: Vec<_> = urls.into_iter().collect();
    let config = match config.shard_count() {
        // Few shards, since cases list a store all the time; more than there are masters.
        None => config.clone().shards(if urls.len() > 1 { 4 } else { 2 }),
        Some(_) => config.clone(),
    };
    match RUNTIME.block_on(RedisRepository::connect(&settings(urls), &config)) {
        Ok(store) => Ok(Arc::new(store)),
        Err(Error::Config(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

/// A test per case and row. The nodes of a Cluster run the same functions as one server. So by default the
/// Cluster has only the cases whose calls go to several nodes, and no row has two of the longest cases, which
/// have shorter ones beside them; `--include-ignored` adds the rest.
pub(crate) fn tests() -> Vec<Trial> {
    let test = |store: &'static Implementation, case: &'static Case| {
        trial(&format!("{}::{}::{}", module_path!(), store.name, case.name), &[REDIS], move || {
            case.run(&store)
        })
    };
    // One store after the other, so that all servers work at once.
    let on_each = |case: &'static Case| {
        let is_longer = ["memory_falls_", "long_random_"].iter().any(|start| case.name.starts_with(start));
        let on_a_cluster = is_of_several_swarms(case) && !is_longer;
        [(&ON_ONE_SERVER, !is_longer), (&WITH_MODULE, !is_longer), (&ON_A_CLUSTER, on_a_cluster)]
            .map(|(store, runs)| test(store, case).with_ignored_flag(!runs))
    };
    CASES.iter().filter(|case| !is_of_this_process(case)).flat_map(on_each).collect()
}

/// Whether the case measures the memory of this process: here the server has the swarms.
fn is_of_this_process(case: &Case) -> bool {
    case.name == "swarms_that_were_listed_leave_no_memory_behind"
}

/// Whether a rule of the case is about threads, totals, listings, sweeps or removals. Exports are made of
/// listings, and the random stories announce in batches, so both count too. A large swarm is on one node.
fn is_of_several_swarms(case: &Case) -> bool {
    let one_swarm = ["_large_swarm", "_touches_no_more_than_its_budget"];
    case.rules.iter().any(|rule| [6, 13, 14, 18, 20].contains(rule))
        && !one_swarm.iter().any(|part| case.name.contains(part))
}
