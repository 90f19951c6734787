//! Sockets, a clock and tasks around a [`Handler`].

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rand::{
    Rng, SeedableRng,
    rngs::{StdRng, SysRng},
};
use socket2::{Domain, Socket, Type};
use swarmkeep::{RandCore, Timestamp, catalog::Repository};
use tokio::{
    net::UdpSocket,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use crate::{AnswerBuffer, Config, ConnectionIds, Error, Handler, sweep::sweep_for_ever};

/// A tracker that listens.
#[derive(Debug)]
pub struct Server {
    sockets: Vec<std::net::UdpSocket>,
    repository: Repository,
    handler: Handler,
    rng: StdRng,
    config: Config,
}

impl Server {
    /// Opens the sockets. Requests wait in them until [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Bind`], or [`Error::NoEntropy`].
    pub fn bind(config: &Config, repository: Repository) -> Result<Self, Error> {
        let sockets = if config.udp.is_empty() {
            on_every_interface()?
        } else {
            config.udp.iter().map(|&address| open(address)).collect::<Result<_, _>>()?
        };
        let mut rng = StdRng::try_from_rng(&mut SysRng).map_err(Error::NoEntropy)?;
        let mut key = [0; 16];
        rng.fill_bytes(&mut key);
        let handler = Handler::new(repository.clone(), ConnectionIds::new(key), config);
        Ok(Self { sockets, repository, handler, rng, config: config.clone() })
    }

    /// The addresses it listens on over UDP; a port that was given as 0 is the real one here.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn udp_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(std::net::UdpSocket::local_addr).collect()
    }

    /// Answers requests until `stop` is ready, then what has been received by then. Takes half a second at most to stop.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time, and with whatever a task of the server has panicked with.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let handler = Arc::new(self.handler);
        let (stopping, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        for socket in self.sockets {
            let socket = UdpSocket::from_std(socket).expect("`open` makes sockets that tokio takes");
            let rng = RandCore(StdRng::from_rng(&mut self.rng));
            let receiver = Receiver { socket, handler: Arc::clone(&handler), rng, answer: [0; _] };
            tasks.spawn(receiver.run(stopped.clone()));
        }
        let Config { retention, sweep_period, .. } = self.config;

        // No task ends before it is told to, so one that does has panicked, and going on without it would be a tracker
        // that does not answer and does not say why.
        let ended = tokio::select! {
            () = stop => None,
            ended = tasks.join_next() => ended,
            never = sweep_for_ever(self.repository, retention, sweep_period, now) => match never {},
        };
        if let Some(Err(error)) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        drop(stopping);
        if timeout(LONGEST_STOP, tasks.join_all()).await.is_err() {
            warn!("stopped with requests unanswered");
        }
    }
}

/// How long stopping may take: half of it for what is in the sockets, half for what an asynchronous store still owes.
const LONGEST_STOP: Duration = Duration::from_millis(500);

/// After how long without a request a socket counts as empty.
const QUIET: Duration = Duration::from_millis(10);

/// How long to wait after the system has refused to receive, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// The longest request that is looked at in full: a scrape of 74 info hashes, or an announce with options, fits. The rest of
/// a longer datagram is lost, and only options can be there.
const LONGEST_REQUEST: usize = 2048;

/// One socket and what it takes to answer its requests.
struct Receiver {
    socket: UdpSocket,
    handler: Arc<Handler>,
    rng: RandCore<StdRng>,
    answer: AnswerBuffer,
}

impl Receiver {
    async fn run(mut self, mut stopped: watch::Receiver<()>) {
        let mut packet = [0; LONGEST_REQUEST];
        loop {
            let received = tokio::select! {
                received = self.socket.recv_from(&mut packet) => received,
                _ = stopped.changed() => break,
            };
            match received {
                Ok((len, source)) => self.answer(&packet[..len], source).await,
                Err(error) => {
                    warn!(%error, "cannot receive");
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
        // What has been received by now deserves its answer; `try_recv_from` would see only what the reactor has heard of.
        let enough = Instant::now() + LONGEST_STOP / 2;
        while Instant::now() < enough
            && let Ok(Ok((len, source))) = timeout(QUIET, self.socket.recv_from(&mut packet)).await
        {
            self.answer(&packet[..len], source).await;
        }
    }

    async fn answer(&mut self, packet: &[u8], source: SocketAddr) {
        let Self { socket, handler, rng, answer } = self;
        if let Some(len) = handler.answer(packet, source, now(), rng, answer).await
            && let Err(error) = socket.send_to(&answer[..len], source).await
        {
            debug!(%source, %error, "cannot send");
        }
    }
}

/// IPv4 and, where the machine has it, IPv6.
fn on_every_interface() -> Result<Vec<std::net::UdpSocket>, Error> {
    let mut sockets = vec![open((Ipv4Addr::UNSPECIFIED, Config::PORT).into())?];
    match open((Ipv6Addr::UNSPECIFIED, Config::PORT).into()) {
        Ok(socket) => sockets.push(socket),
        Err(error) => warn!(%error, "serving over IPv4 only"),
    }
    Ok(sockets)
}

/// A socket for one family: an IPv6 one leaves IPv4 to its neighbour.
fn open(address: SocketAddr) -> Result<std::net::UdpSocket, Error> {
    let open = || {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    open().map_err(|source| Error::Bind { address, source })
}

fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_secs(since_epoch.map_or(0, |elapsed| elapsed.as_secs()))
}
