//! Servers, proxies of them, and stores on them, each under a prefix of its own.

use std::{
    env,
    fmt::Debug,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{HashKey, RepositoryConfig};
use swarmkeep_redis::{Error, RedisConfig, RedisRepository};
use swarmkeep_servers::{MODULE_VARIABLE, Server};
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

/// Or says why there is none.
pub(crate) fn started<T, E: Debug>(started: Result<T, E>) -> T {
    started.unwrap_or_else(|error| panic!("these tests need real servers: {error:?}"))
}

/// Settings for a store of its own.
pub(crate) fn settings(urls: impl IntoIterator<Item = String>) -> RedisConfig {
    static STORES: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("store-{}:", STORES.fetch_add(1, Relaxed));
    // On a busy machine, a server may wait for long.
    with(RedisConfig::new(urls), |settings| (settings.prefix, settings.patience) = (prefix, A_MINUTE))
}

/// The settings with this patience in milliseconds.
pub(crate) fn impatient(settings: RedisConfig, patience: u64) -> RedisConfig {
    with(settings, |settings| settings.patience = Duration::from_millis(patience))
}

pub(crate) const LIFETIME: Duration = Duration::from_secs(1800);

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

/// The module of the variable, or as Cargo builds it for these tests.
pub(crate) fn module() -> String {
    let built = || env::current_exe().expect("a test is a program").with_file_name("libswarmkeep_module.so");
    let module = env::var_os(MODULE_VARIABLE).unwrap_or_else(|| built().into_os_string());
    module.into_string().expect("a path in UTF-8")
}

pub(crate) fn server_with_module(directives: &[(&str, &str)]) -> Server {
    started(Server::start_with(&[&[("loadmodule", &*module())], directives].concat()))
}

/// The keys of this form.
pub(crate) fn keys(server: &Server, form: &str) -> Vec<String> {
    server.query(&["KEYS", form]).expect("it answers")
}

/// A listener for [`proxy`], and its port.
pub(crate) fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    (listener, port)
}

/// Connects each client of a listener with the server at a port. `passes` returns whether the server gets a
/// request; an error ends the connection.
pub(crate) fn proxy(
    listener: TcpListener,
    server: u16,
    passes: impl Fn(&[u8], &mut TcpStream) -> io::Result<bool> + Send + Sync + 'static,
) {
    let passes = Arc::new(passes);
    let serve = move |mut client: TcpStream| {
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).expect("it listens");
        let (mut answers, mut to) = (server.try_clone().expect("ours"), client.try_clone().expect("ours"));
        let back = thread::spawn(move || io::copy(&mut answers, &mut to));
        let mut request = [0; 1 << 16];
        while let Ok(len @ 1..) = client.read(&mut request)
            && let Ok(passes) = passes(&request[..len], &mut client)
        {
            if passes {
                server.write_all(&request[..len]).expect("it reads");
            }
        }
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
        let _ = back.join();
    };
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(client));
        }
    });
}
