//! How a tracker is set up.

use std::{net::SocketAddr, num::NonZero, time::Duration};

use ipnet::IpNet;
use swarmkeep::Retention;

/// What a [`Server`](crate::Server) is started with. Start with [`new`](Self::new) and chain what should differ.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) udp: Vec<SocketAddr>,
    pub(crate) udp_workers: Option<NonZero<usize>>,
    pub(crate) interval_secs: u32,
    pub(crate) default_want: usize,
    pub(crate) most_want: usize,
    pub(crate) sweep_period: Duration,
    pub(crate) retention: Retention,
    pub(crate) http: Vec<SocketAddr>,
    pub(crate) http_proxies: Vec<IpNet>,
    pub(crate) http_ip_parameter: bool,
    pub(crate) http_connections: usize,
    pub(crate) http_connections_an_address: usize,
    pub(crate) http_patience: Duration,
}

impl Config {
    /// The port that trackers are usually found at.
    pub const PORT: u16 = 6969;

    /// UDP and HTTP at port 6969 of every interface, an announce every 30 minutes, 50 peers an answer unless a client asks for
    /// another number up to 200, and a sweep through the store every 5 minutes.
    pub const fn new() -> Self {
        Self {
            udp: Vec::new(),
            udp_workers: None,
            interval_secs: 30 * 60,
            default_want: 50,
            most_want: 200,
            sweep_period: Duration::from_secs(5 * 60),
            retention: Retention::DropEmpty,
            http: Vec::new(),
            http_proxies: Vec::new(),
            http_ip_parameter: false,
            http_connections: 4096,
            http_connections_an_address: 64,
            http_patience: Duration::from_secs(10),
        }
    }

    /// Adds an address to listen on over UDP. With none for either protocol, the tracker listens at port 6969 on every interface for
    /// both, over IPv4 alone where the machine has no IPv6. Where it has several addresses in one network, name each: from a socket for
    /// all, the system may send answers from another address than was asked.
    #[must_use]
    pub fn udp(mut self, address: SocketAddr) -> Self {
        self.udp.push(address);
        self
    }

    /// Sets how many threads answer over UDP, 256 at most, each with sockets of its own; as many as the machine has cores without this.
    #[must_use]
    pub const fn udp_workers(mut self, threads: NonZero<usize>) -> Self {
        self.udp_workers = Some(threads);
        self
    }

    /// Sets how many seconds clients are told to wait between announces. The store's lifetime should be longer by half.
    #[must_use]
    pub const fn interval_secs(mut self, seconds: u32) -> Self {
        self.interval_secs = seconds;
        self
    }

    /// Sets how many peers a client gets that leaves it to the tracker.
    #[must_use]
    pub const fn default_want(mut self, peers: usize) -> Self {
        self.default_want = peers;
        self
    }

    /// Sets the most peers a client gets, whatever it asks for; the length of an answer bounds it too.
    #[must_use]
    pub const fn most_want(mut self, peers: usize) -> Self {
        self.most_want = peers;
        self
    }

    /// Sets how often the store is swept from end to end: by so much may a peer outlive its lifetime.
    #[must_use]
    pub const fn sweep_period(mut self, period: Duration) -> Self {
        self.sweep_period = period;
        self
    }

    /// Sets what becomes of swarms without peers.
    #[must_use]
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Adds an address to listen on over HTTP; see [`udp`](Self::udp) for what happens with none.
    #[must_use]
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http.push(address);
        self
    }

    /// Adds a network of proxies. Of a request that comes from one, the client is whom `X-Forwarded-For` names there: the last one that
    /// is not such a proxy itself. Announces for which a proxy does not name anybody are refused. Everybody else is taken for whom the
    /// connection comes from, whatever that header says.
    #[must_use]
    pub fn http_proxy(mut self, network: IpNet) -> Self {
        self.http_proxies.push(network);
        self
    }

    /// Sets whether a client is believed that says in `ip` that it is at another address. Anyone can send peers to anybody's address
    /// then: only for trackers among friends.
    #[must_use]
    pub const fn http_ip_parameter(mut self, believed: bool) -> Self {
        self.http_ip_parameter = believed;
        self
    }

    /// Sets how many HTTP connections may be open; 4,096 unless set. Whoever comes when all are takes the place of one that has waited
    /// long for a request. Each takes a file descriptor and up to 40 KiB.
    #[must_use]
    pub const fn http_connections(mut self, most: usize) -> Self {
        self.http_connections = most;
        self
    }

    /// Sets how many HTTP connections one IPv4 address, or 64-bit network of IPv6, may have; 64 unless set. More are closed at once.
    /// [Proxies](Self::http_proxy) may have any number.
    #[must_use]
    pub const fn http_connections_an_address(mut self, most: usize) -> Self {
        self.http_connections_an_address = most;
        self
    }

    /// Sets how long a client may take from one answer to having sent all of its next request; 10 seconds unless set. After that, its
    /// connection is closed.
    #[must_use]
    pub const fn http_patience(mut self, longest: Duration) -> Self {
        self.http_patience = longest;
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
