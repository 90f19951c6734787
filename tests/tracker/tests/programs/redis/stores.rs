//! Stores on servers that the tests share, each under a prefix of its own.

use std::{
    env,
    fmt::Debug,
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use swarmkeep::{AsyncTorrentRepository, ConfigError, HashKey, RepositoryConfig};
use swarmkeep_redis::{Error, RedisConfig, RedisRepository};
use swarmkeep_servers::{Cluster, MODULE_VARIABLE, Server};
use swarmkeep_store_tests::{A_MINUTE, programs::Need, with};
use tokio::runtime::{Builder, Runtime};

/// The runtime of connections and of tests of faults.
pub(crate) static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads"));

/// Stores that functions keep, as without the module.
pub(crate) const FUNCTIONS: Need = Need::other(
    "servers without the module",
    "this is about functions: leave SWARMKEEP_REDIS_MODULE unset",
    |_| env::var_os(MODULE_VARIABLE).is_none(),
);

static SERVER: LazyLock<Server> = LazyLock::new(|| started(Server::start()));
static SERVER_WITH_MODULE: LazyLock<Server> = LazyLock::new(|| {
    let module = module();
    started(Server::start_with(&[("loadmodule", module.to_str().expect("a path in UTF-8"))]))
});
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| started(Cluster::start(3, 0)));

/// Or says why there is none.
pub(crate) fn started<T, E: Debug>(started: Result<T, E>) -> T {
    started.unwrap_or_else(|error| panic!("these tests need real servers: {error:?}"))
}

/// Settings for a store of its own.
pub(crate) fn settings(urls: impl IntoIterator<Item = String>) -> RedisConfig {
    static STORES: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("store-{}:", STORES.fetch_add(1, Relaxed));
    // On a busy machine, a server may wait for long.
    impatient(with(RedisConfig::new(urls), |settings| settings.prefix = prefix), 30_000)
}

/// The settings with this patience in milliseconds.
pub(crate) fn impatient(settings: RedisConfig, patience: u64) -> RedisConfig {
    with(settings, |settings| settings.patience = Duration::from_millis(patience))
}

pub(crate) const LIFETIME: Duration = Duration::from_secs(1800);

/// The time that a slow machine may add to a bound.
pub(crate) const SLACK: Duration = A_MINUTE;

/// The number of calls of a command, by clients and by functions.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let statistics = server.info("commandstats").expect("it answers");
    let Some(of_command) = statistics.get(&format!("cmdstat_{command}")) else { return 0 };
    let field = |name| of_command.split(',').find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok());
    field("calls=").expect("a number") - field("failed_calls=").expect("a number")
}

/// A store with these settings. On a busy machine, a server may not greet in time.
pub(crate) async fn connect(settings: &RedisConfig) -> Arc<RedisRepository> {
    let enough = Instant::now() + A_MINUTE;
    loop {
        match RedisRepository::connect(settings, &config()).await {
            Ok(store) => return Arc::new(store),
            Err(Error::Unreachable(_)) if Instant::now() < enough => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// With few shards, since cases list a store all the time.
pub(crate) fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([7; 16])).lifetime(LIFETIME).shards(16)
}

/// A row of the catalog's kind, on one server.
pub(crate) fn on_one_server(
    config: &RepositoryConfig,
) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError> {
    on([SERVER.url()], config)
}

/// The same with the module.
pub(crate) fn on_one_server_with_module(
    config: &RepositoryConfig,
) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError> {
    on([SERVER_WITH_MODULE.url()], config)
}

/// The module of the variable, or as Cargo builds it for these tests.
pub(crate) fn module() -> PathBuf {
    let built = || env::current_exe().expect("a test is a program").with_file_name("libswarmkeep_module.so");
    env::var_os(MODULE_VARIABLE).map_or_else(built, PathBuf::from)
}

/// The same on a Cluster of three masters.
pub(crate) fn on_a_cluster(
    config: &RepositoryConfig,
) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError> {
    on(CLUSTER.urls(), config)
}

fn on(
    urls: impl IntoIterator<Item = String>,
    config: &RepositoryConfig,
) -> Result<Arc<dyn AsyncTorrentRepository>, ConfigError> {
    let config = match config.shard_count() {
        // Few shards for three masters, since cases list a store all the time.
        None => config.clone().shards(4),
        Some(_) => config.clone(),
    };
    match RUNTIME.block_on(RedisRepository::connect(&settings(urls), &config)) {
        Ok(store) => Ok(Arc::new(store)),
        Err(Error::Config(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}
