//! Sockets, threads and tasks around a store.

use std::{
    convert::Infallible,
    future::pending,
    io::{self, PipeReader, PipeWriter},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    num::NonZero,
    sync::Arc,
    thread,
    time::Duration,
};

use rand::{
    SeedableRng,
    rngs::{StdRng, SysRng},
};
use socket2::SockRef;
use swarmkeep::{Immediate, RandCore, catalog::Repository};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::warn;

use crate::{
    Config, Control, Error, HttpHandler, LiveRules, Metrics, Reach,
    admin::Admin,
    clock::{self, now},
    families, http,
    keeper::Keeper,
    sweep::sweep_for_ever,
    udp::{self, AnswerMode, ConnectionIds, ConnectionKey, Handler, Listener, StoreQueue, Worker},
    xdp::{Attachment, OpenedXdp},
};

/// A tracker with open sockets.
#[derive(Debug)]
pub struct Server {
    xdp: Option<OpenedXdp>,
    /// For each address, one socket per thread.
    udp: Vec<Vec<UdpSocket>>,
    http: Vec<TcpListener>,
    https: Vec<TcpListener>,
    admin: Option<Admin>,
    /// Closing the other end tells threads to stop.
    stopping: (PipeReader, PipeWriter),
    rng: StdRng,
    connection_key: ConnectionKey,
    config: Config,
    control: Control,
}

/// Sockets that are already open, such as those from a service manager. If there are sockets of a protocol,
/// the addresses of that protocol in the [`Config`] are not used.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Datagram sockets. If there is one per thread for an address, each thread has its own, and the system
    /// spreads clients over them. Otherwise threads share one.
    pub udp: Vec<UdpSocket>,
    /// Listeners for HTTP.
    pub http: Vec<TcpListener>,
    /// Listeners for HTTPS.
    pub https: Vec<TcpListener>,
    /// A listener for the admin server.
    pub admin: Option<TcpListener>,
}

impl Server {
    /// Opens the sockets. Requests wait in them until [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Bind`], [`Error::NoCertificate`], [`Error::NoInterface`], [`Error::NoPipe`], or
    /// [`Error::NoEntropy`].
    pub fn bind(config: &Config, repository: Repository) -> Result<Self, Error> {
        Bound::open(config, Sockets::default())?.over(repository)
    }

    /// Sets the key of the connection ids over UDP. Without this it is random, so that clients that connected
    /// to another tracker, or before a restart, are refused once and connect again.
    #[must_use]
    pub fn connection_key(mut self, key: ConnectionKey) -> Self {
        self.connection_key = key;
        self
    }

    /// A handle of the tracker while it runs.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// The addresses over UDP, HTTP and HTTPS. A port that was given as 0 is the real one here.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn addresses(&self) -> io::Result<[Vec<SocketAddr>; 3]> {
        let tcp = |all: &[TcpListener]| all.iter().map(TcpListener::local_addr).collect::<io::Result<_>>();
        let udp = self.udp.iter().map(|sockets| sockets[0].local_addr()).collect::<io::Result<_>>();
        Ok([udp?, tcp(&self.http)?, tcp(&self.https)?])
    }

    /// The addresses over UDP, HTTP and HTTPS as text: `udp [::]:6969 (both families), http 192.0.2.1:80`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn listening(&self) -> io::Result<String> {
        let udp: Vec<_> = self.udp.iter().map(|sockets| SockRef::from(&sockets[0])).collect();
        let [http, https] = [&self.http, &self.https].map(|all| all.iter().map(SockRef::from).collect());
        let mut protocols = Vec::new();
        for (protocol, sockets) in [("udp", udp), ("http", http), ("https", https)] {
            let described = sockets.iter().map(|socket| {
                let addresses = families::addresses(socket)?;
                Ok(format!("{}{}", addresses[0], if addresses.len() > 1 { " (both families)" } else { "" }))
            });
            let described = described.collect::<io::Result<Vec<_>>>()?.join(", ");
            protocols.extend((!sockets.is_empty()).then(|| format!("{protocol} {described}")));
        }
        Ok(protocols.join(", "))
    }

    /// The address of the admin server, if there is one. A port that was given as 0 is the real one here.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn admin_address(&self) -> io::Result<Option<SocketAddr>> {
        self.admin.as_ref().map(Admin::address).transpose()
    }

    /// Answers requests until `stop` is ready, and then the requests that it has received. Stopping takes 0.6
    /// seconds at most.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time. If a thread or a task of the server panics, with its panic.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { xdp, udp, http, https, admin, stopping, mut rng, connection_key, config, control } = self;
        let (stopped, stopping) = stopping;
        let is_http = !http.is_empty() || !https.is_empty();
        let cores = if is_http { usize::MAX } else { udp.first().map_or(0, Vec::len) };
        let keeper = Keeper::new(control.clone(), cores);
        let Control { repository, rules, metrics } = control;
        let stopped = Arc::new(stopped);
        let ids =
            Arc::new(ConnectionIds::new(connection_key).lifetime(config.connection_id_lifetime.as_secs()));
        let mut tasks = JoinSet::new();
        // A queue belongs to one thread, and there are no more queues than threads.
        let (guard, queues) = xdp.map(OpenedXdp::into_fronts).unzip();
        let mut queues = queues.into_iter().flatten();
        for sockets in by_worker(udp) {
            let handler = Arc::new(Handler::new(Arc::clone(&ids), rules.clone()));
            metrics.udp(handler.counters());
            let answers = match &repository {
                Repository::Sync(Immediate(store)) => AnswerMode::AtOnce(Arc::clone(store)),
                Repository::Async(store) => {
                    let later = |(socket, _): &(Arc<UdpSocket>, Listener)| {
                        let (store, handler) = (Arc::clone(store), Arc::clone(&handler));
                        StoreQueue::new(Handle::current(), store, handler, Arc::clone(socket))
                    };
                    AnswerMode::Later(sockets.iter().map(later).collect())
                }
            };
            let rng = RandCore(StdRng::from_rng(&mut rng));
            let worker = Worker { sockets, queue: queues.next(), handler, answers, rng };
            let stopped = Arc::clone(&stopped);
            tasks.spawn_blocking(move || worker.run(&stopped));
        }
        let (http_stopping, http_stopped) = watch::channel(());
        let (sweep_period, longest_stop) = (config.sweep_period, config.http_drain.saturating_mul(3));
        let http = http.into_iter().map(|listener| (listener, None));
        let https = https.into_iter().map(|listener| (listener, config.tls.clone()));
        let http: Vec<_> = http.chain(https).collect();
        if let Some(admin) = admin {
            tasks.spawn(admin.run(http_stopped.clone()));
        }
        if !http.is_empty() {
            let handler = Arc::new(HttpHandler::new(repository.clone(), rules.clone()));
            metrics.http(handler.counters());
            tasks.spawn(async move { http::serve(http, handler, &config, now, http_stopped).await });
        }

        // A task that ends before the signal to stop has panicked. A tracker without it would not answer, and
        // would not say why.
        let ended = tokio::select! {
            () = stop => None,
            ended = tasks.join_next() => ended,
            never = sweep_for_ever(repository, rules.clone(), &metrics, sweep_period, now) => match never {},
            never = keeper.keep() => match never {},
            never = follow_clock(&ids, &metrics) => match never {},
            never = care(guard.as_ref().map(|guard| &*guard.0), &ids, &rules) => match never {},
        };
        if let Some(guard) = &guard {
            guard.0.stop();
        }
        drop((stopping, http_stopping));
        if let Some(Err(error)) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        if timeout(longest_stop.max(LONGEST_STOP), tasks.join_all()).await.is_err() {
            warn!("stopped with requests unanswered");
        }
    }
}

/// The open sockets of a tracker that has no store yet. Opening sockets may need privileges, and building a
/// store may need a runtime or a remote server. Requests wait in the sockets until [`run`](Server::run).
#[derive(Debug)]
pub struct Bound {
    xdp: Option<OpenedXdp>,
    udp: Vec<Vec<UdpSocket>>,
    http: Vec<TcpListener>,
    https: Vec<TcpListener>,
    admin: Option<TcpListener>,
    config: Config,
}

impl Bound {
    /// Opens the sockets, except those in `open`.
    ///
    /// # Errors
    /// [`Error::Bind`], [`Error::HandedOver`], [`Error::NoCertificate`], or [`Error::NoInterface`].
    pub fn open(config: &Config, open: Sockets) -> Result<Self, Error> {
        let cores = || thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        // Each takes a thread of the runtime, which has no more than 512 for such work.
        let workers = config.udp_workers.unwrap_or_else(cores).min(const { NonZero::new(256).unwrap() });
        let given = (config.udp.len(), config.http.len(), config.https.len());
        let handed_over = (open.udp.len(), open.http.len(), open.https.len());
        let everywhere = EVERYWHERE.map(|ip| SocketAddr::new(ip, Config::PORT));
        let (udp, http) = match (given, handed_over) == Default::default() {
            true => (&everywhere[..], &everywhere[..]),
            false => (&config.udp[..], &config.http[..]),
        };
        let handed_over = open.http.iter().chain(&open.https).chain(&open.admin).map(TcpListener::local_addr);
        let tcp = http.iter().chain(&config.https).chain(&config.admin).copied();
        let tcp: Vec<_> = tcp.chain(handed_over.flatten()).collect();
        let bind_udp = |address| {
            udp::bind(address, udp, workers).map_err(|source| Error::Bind {
                protocol: "udp",
                address,
                source,
            })
        };
        let listen = |protocol| {
            let tcp = &tcp;
            move |address| {
                http::listen(address, tcp).map_err(|source| Error::Bind { protocol, address, source })
            }
        };
        let adopt_udp = |sockets| udp::adopt(sockets, workers);
        let adopt = |listeners: Vec<_>| listeners.into_iter().map(http::adopt).collect();
        let udp = either("udp", open.udp, adopt_udp, udp, bind_udp)?;
        let http = either("http", open.http, adopt, http, listen("http"))?;
        let https = either("https", open.https, adopt, &config.https, listen("https"))?;
        if !https.is_empty() && config.tls.is_none() {
            return Err(Error::NoCertificate);
        }
        let admin = Admin::listen(config, open.admin, &tcp)?;
        let xdp = config.xdp.as_ref().map(|xdp| OpenedXdp::at(xdp, &udp)).transpose()?;
        Ok(Self { xdp, udp, http, https, admin, config: config.clone() })
    }

    /// Adds the store.
    ///
    /// # Errors
    /// [`Error::NoPipe`], or [`Error::NoEntropy`].
    pub fn over(self, repository: Repository) -> Result<Server, Error> {
        let Self { xdp, udp, http, https, admin, mut config } = self;
        let rng = StdRng::try_from_rng(&mut SysRng);
        let mut rng = rng.map_err(io::Error::other).map_err(Error::NoEntropy)?;
        let connection_key = ConnectionKey::draw(&mut RandCore(&mut rng));
        let stopping = io::pipe().map_err(Error::NoPipe)?;
        // The config keeps no rules: their lists would stay in memory after others have replaced them.
        let rules = LiveRules::new(mem::take(&mut config.rules));
        let control = Control { repository, rules, metrics: Arc::default() };
        if let Some(tls) = &config.tls {
            control.metrics.watch_tls(tls.clone());
        }
        for socket in udp.iter().flatten() {
            control.metrics.watch_drops(socket);
        }
        if let Some(opened) = &xdp {
            let attachment = Arc::clone(&opened.guard.0);
            control.metrics.watch_xdp(move || attachment.status());
        }
        let admin = admin.map(|listener| Admin::over(listener, &config, &control)).transpose()?;
        Ok(Server { xdp, udp, http, https, admin, stopping, rng, connection_key, config, control })
    }
}

/// For ever: lets connection ids follow the machine's clock, and logs when it was set.
async fn follow_clock(ids: &ConnectionIds, metrics: &Metrics) -> Infallible {
    loop {
        let seconds_ahead = clock::seconds_ahead();
        metrics.clock_is_ahead(seconds_ahead);
        if ids.follow(seconds_ahead, now()) {
            warn!(
                seconds_ahead,
                "the machine's clock was set: connection ids and the dates of members follow it, and the ages of peers do not"
            );
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// For ever: maintains the way past the sockets, if there is one.
async fn care(attachment: Option<&Attachment>, ids: &ConnectionIds, rules: &LiveRules) -> Infallible {
    match attachment {
        Some(attachment) => attachment.care(ids, rules).await,
        None => pending().await,
    }
}

/// The longest stop of UDP: half for requests in the sockets, half for answers of an asynchronous store.
const LONGEST_STOP: Duration = Duration::from_millis(600);

/// The sockets per thread, from the sockets per address.
fn by_worker(udp: Vec<Vec<UdpSocket>>) -> Vec<Vec<(Arc<UdpSocket>, Listener)>> {
    let mut workers: Vec<_> = (0..udp.first().map_or(0, Vec::len)).map(|_| Vec::new()).collect();
    for (nth, sockets) in udp.into_iter().enumerate() {
        for (worker, socket) in workers.iter_mut().zip(sockets) {
            let reach = socket.local_addr().map_or(Reach::Public, |address| Reach::of_listener(address.ip()));
            worker.push((Arc::new(socket), Listener { nth, reach }));
        }
    }
    workers
}

/// All interfaces. Every machine has the first family.
const EVERYWHERE: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The sockets that were handed over or, if there are none, new sockets at the addresses. On a machine
/// without IPv6, all its interfaces are left out if there is another address.
fn either<P, S>(
    protocol: &'static str,
    open: Vec<P>,
    adopt: impl Fn(Vec<P>) -> io::Result<Vec<S>>,
    addresses: &[SocketAddr],
    bind: impl Fn(SocketAddr) -> Result<S, Error>,
) -> Result<Vec<S>, Error> {
    if !open.is_empty() {
        return adopt(open).map_err(|source| Error::HandedOver { protocol, source });
    }
    let mut sockets = Vec::new();
    for &address in addresses {
        match bind(address) {
            Ok(socket) => sockets.push(socket),
            Err(error) if address.ip() == EVERYWHERE[1] && addresses.len() > 1 && !error.is_in_use() => {
                warn!(%error, "serving without IPv6");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}
