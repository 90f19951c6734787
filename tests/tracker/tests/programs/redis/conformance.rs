//! Every case, on both.

use swarmkeep::{ConfigError, RepositoryConfig, TorrentRepository, catalog::Implementation};
use swarmkeep_conformance::{Subject, suite};

use crate::redis::stores::{on_a_cluster, on_one_server};

static ON_ONE_SERVER: Implementation =
    Implementation::asynchronous("redis", "redis", "Redis or Valkey, one server.", on_one_server);
static ON_A_CLUSTER: Implementation =
    Implementation::asynchronous("redis-cluster", "redis", "Redis or Valkey, a Cluster.", on_a_cluster);

fn build(
    row: &'static Implementation,
    config: &RepositoryConfig,
) -> Result<Box<dyn TorrentRepository>, ConfigError> {
    Subject::build(&row, config)
}

suite!(redis_on_one_server, |config| build(&ON_ONE_SERVER, config));
suite!(redis_on_a_cluster, |config| build(&ON_A_CLUSTER, config));
