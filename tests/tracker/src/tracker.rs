//! A tracker at work in this process.

use std::{
    net::{IpAddr, SocketAddr},
    thread::{self, JoinHandle},
};

use swarmkeep::{
    HashKey, RepositoryConfig,
    catalog::{self, Repository},
};
use swarmkeep_store_tests::with;
use swarmkeep_tracker::{Config, Control, Server};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

/// A tracker at work until this is dropped.
#[derive(Debug)]
pub struct Tracker {
    /// Where it listens over UDP.
    pub udp: Vec<SocketAddr>,
    /// Where it listens over HTTP.
    pub http: Vec<SocketAddr>,
    /// Where it listens over HTTPS.
    pub https: Vec<SocketAddr>,
    /// Its controls.
    pub control: Control,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracker {
    /// Around a store.
    pub fn over(config: &Config, repository: Repository) -> Self {
        Self::of(Server::bind(config, repository).expect("loopback"))
    }

    /// Runs it in two threads, beside its own.
    pub fn of(server: Server) -> Self {
        Self::on(runtime(), server)
    }

    /// Runs it on a runtime.
    pub fn on(runtime: Runtime, server: Server) -> Self {
        let [udp, http, https] = server.addresses().expect("bound");
        let control = server.control();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || runtime.block_on(server.run(async { drop(stopped.await) })));
        Self { udp, http, https, control, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().expect("taken here only").join();
        if !thread::panicking() {
            ended.expect("the tracker does not panic");
        }
    }
}

/// A runtime of two threads.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A store of the catalog, set up as `set` says.
pub fn build(name: &str, set: impl FnOnce(RepositoryConfig) -> RepositoryConfig) -> Repository {
    let config = set(RepositoryConfig::new(HashKey::from_os().expect("randomness")));
    catalog::find(name).expect("a name of the catalog").build(&config).expect("limits of every store")
}

/// A configuration that listens at these addresses over UDP and HTTP.
pub fn listening(udp: &[SocketAddr], http: &[SocketAddr]) -> Config {
    with(Config::new(), |config| (config.udp, config.http) = (udp.into(), http.into()))
}

/// Any free port of an address.
pub fn any_port(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("a constant"), 0)
}
