//! The configuration of a server.

use std::{net::SocketAddr, num::NonZero, time::Duration};

use crate::{Rules, Tls, Token, xdp::Xdp};

/// The configuration of a [`Server`](crate::Server). Start with [`new`](Self::new), and chain what differs.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) udp: Vec<SocketAddr>,
    pub(crate) udp_workers: Option<NonZero<usize>>,
    pub(crate) xdp: Option<Xdp>,
    pub(crate) rules: Rules,
    pub(crate) sweep_period: Duration,
    pub(crate) http: Vec<SocketAddr>,
    pub(crate) https: Vec<SocketAddr>,
    pub(crate) tls: Option<Tls>,
    pub(crate) http_connections: usize,
    pub(crate) http_connections_per_address: usize,
    pub(crate) http_patience: Duration,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_tokens: Vec<Token>,
    pub(crate) admin_tls: bool,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) repository_name: Option<String>,
    pub(crate) store_limit: Option<u64>,
    pub(crate) node: Option<String>,
}

impl Config {
    /// The usual port of trackers.
    pub const PORT: u16 = 6969;

    /// UDP and HTTP at port 6969 on every interface, and a sweep of the store every 5 minutes.
    pub const fn new() -> Self {
        Self {
            udp: Vec::new(),
            udp_workers: None,
            xdp: None,
            rules: Rules::new(),
            sweep_period: Duration::from_secs(5 * 60),
            http: Vec::new(),
            https: Vec::new(),
            tls: None,
            http_connections: 4096,
            http_connections_per_address: 64,
            http_patience: Duration::from_secs(10),
            admin: None,
            admin_tokens: Vec::new(),
            admin_tls: false,
            admin_hosts: Vec::new(),
            repository_name: None,
            store_limit: None,
            node: None,
        }
    }

    /// Sets the first rules of the tracker; [`Rules::new`] without this.
    #[must_use]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Adds an address to listen on over UDP. Without any address, the tracker listens at port 6969 on every
    /// interface over UDP and HTTP. All interfaces of IPv6 (`[::]`) are for IPv4 too, unless an IPv4 address
    /// has the same port and transport; on a machine without IPv6, they are left out if there is another
    /// address. Answers leave from the address that was asked.
    #[must_use]
    pub fn udp(mut self, address: SocketAddr) -> Self {
        self.udp.push(address);
        self
    }

    /// Sets the number of threads that answer over UDP, 256 at most. Each has its own sockets. The default is
    /// one per core.
    #[must_use]
    pub const fn udp_workers(mut self, threads: NonZero<usize>) -> Self {
        self.udp_workers = Some(threads);
        self
    }

    /// Sets the interface whose datagrams come past the system's sockets. It takes privileges when the
    /// sockets are opened, and none afterwards.
    #[must_use]
    pub fn xdp(mut self, xdp: Xdp) -> Self {
        self.xdp = Some(xdp);
        self
    }

    /// Sets the time between two sweeps of the whole store. A peer can outlive its lifetime by this time.
    #[must_use]
    pub const fn sweep_period(mut self, period: Duration) -> Self {
        self.sweep_period = period;
        self
    }

    /// Adds an address to listen on over HTTP. See [`udp`](Self::udp) for the addresses without this.
    #[must_use]
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http.push(address);
        self
    }

    /// Adds an address to listen on over HTTPS. It needs [`tls`](Self::tls) too.
    #[must_use]
    pub fn https(mut self, address: SocketAddr) -> Self {
        self.https.push(address);
        self
    }

    /// Sets the certificate for HTTPS, and for the admin server if [`admin_tls`](Self::admin_tls) is set.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the most HTTP and HTTPS connections that are open at once; 4,096 unless set. When all are in use,
    /// a new connection replaces one that has been idle for long. A connection takes a file descriptor and up
    /// to 40 KiB; an HTTPS connection takes up to 80 KiB, since so much of a handshake is kept until it is
    /// complete.
    #[must_use]
    pub const fn http_connections(mut self, most: usize) -> Self {
        self.http_connections = most;
        self
    }

    /// Sets the most HTTP connections per IPv4 address, or per 64-bit network of IPv6; 64 unless set. Further
    /// connections are closed at once. [Proxies](Rules::http_proxy) have no limit.
    #[must_use]
    pub const fn http_connections_per_address(mut self, most: usize) -> Self {
        self.http_connections_per_address = most;
        self
    }

    /// Sets the longest time from connecting, or from one answer, to the end of the next request; 10 seconds
    /// unless set. After that the connection is closed.
    #[must_use]
    pub const fn http_patience(mut self, longest: Duration) -> Self {
        self.http_patience = longest;
        self
    }

    /// Sets the address of the admin server: metrics, health, an API and a dashboard. There is none unless
    /// set. Metrics and health need no token, so only operators should be able to reach the address.
    #[must_use]
    pub const fn admin(mut self, address: SocketAddr) -> Self {
        self.admin = Some(address);
        self
    }

    /// Adds a token for the API. Without any token, the API refuses all requests.
    #[must_use]
    pub fn admin_token(mut self, token: Token) -> Self {
        self.admin_tokens.push(token);
        self
    }

    /// Adds a name by which the admin server is reached, besides `localhost` and IP addresses. Requests for other
    /// names get status 421: a web page can have its own name point to any address, and could read the answers.
    #[must_use]
    pub fn admin_host(mut self, name: impl Into<String>) -> Self {
        self.admin_hosts.push(name.into());
        self
    }

    /// Sets whether the admin server uses HTTPS instead of HTTP. It needs [`tls`](Self::tls) too.
    #[must_use]
    pub const fn admin_tls(mut self, on: bool) -> Self {
        self.admin_tls = on;
        self
    }

    /// Sets the name of the store in metrics and on the dashboard.
    #[must_use]
    pub fn repository_name(mut self, name: impl Into<String>) -> Self {
        self.repository_name = Some(name.into());
        self
    }

    /// Sets the most bytes that the store may take, as metrics show them. It limits nothing itself.
    #[must_use]
    pub const fn store_limit(mut self, bytes: u64) -> Self {
        self.store_limit = Some(bytes);
        self
    }

    /// Sets the name of this tracker, among those that share its store, in metrics and on the dashboard.
    #[must_use]
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.node = Some(name.into());
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
