use std::sync::{Arc, LazyLock, atomic::{AtomicU64, Ordering}};
use swarmkeep::{ConfigError, RepositoryConfig};
use swarmkeep_conformance::{Blocking, suite};
use swarmkeep_redis::{Error, RedisConfig, RedisRepository};
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
static COUNT: AtomicU64 = AtomicU64::new(0);

fn build(config: &RepositoryConfig) -> Result<Blocking<RedisRepository>, ConfigError> {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let servers = RedisConfig::new(["redis://127.0.0.1:17777"]).prefix(format!("t{}-{n}:", std::process::id())).patience(std::time::Duration::from_secs(20));
    let shards = config.clone().shards(64);
    match RUNTIME.block_on(RedisRepository::connect(&servers, &shards)) {
        Ok(store) => Ok(Blocking::new(Arc::new(store))),
        Err(Error::Config(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}
suite!(single, build);
