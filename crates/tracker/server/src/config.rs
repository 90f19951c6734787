//! How a tracker is set up.

use std::{net::SocketAddr, num::NonZero, time::Duration};

use crate::{Rules, Tls, Token};

/// What a [`Server`](crate::Server) is started with. Start with [`new`](Self::new) and chain what should
/// differ.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) udp: Vec<SocketAddr>,
    pub(crate) udp_workers: Option<NonZero<usize>>,
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
    pub(crate) repository_name: Option<String>,
    pub(crate) node: Option<String>,
}

impl Config {
    /// The port that trackers are usually found at.
    pub const PORT: u16 = 6969;

    /// UDP and HTTP at port 6969 of every interface, and a sweep through the store every 5 minutes.
    pub const fn new() -> Self {
        Self {
            udp: Vec::new(),
            udp_workers: None,
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
            repository_name: None,
            node: None,
        }
    }

    /// Sets by what rules requests are answered at first; [`Rules::new`] without this.
    #[must_use]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Adds an address to listen on over UDP. With none for any protocol, the tracker listens at port 6969 on
    /// every interface for UDP and HTTP, over IPv4 alone where the machine has no IPv6. Where it has several
    /// addresses in one network, name each: from a socket for all, the system may send answers from another
    /// address than was asked.
    #[must_use]
    pub fn udp(mut self, address: SocketAddr) -> Self {
        self.udp.push(address);
        self
    }

    /// Sets how many threads answer over UDP, 256 at most, each with sockets of its own; as many as the
    /// machine has cores without this.
    #[must_use]
    pub const fn udp_workers(mut self, threads: NonZero<usize>) -> Self {
        self.udp_workers = Some(threads);
        self
    }

    /// Sets how often the store is swept from end to end: by so much may a peer outlive its lifetime.
    #[must_use]
    pub const fn sweep_period(mut self, period: Duration) -> Self {
        self.sweep_period = period;
        self
    }

    /// Adds an address to listen on over HTTP; see [`udp`](Self::udp) for what happens with none.
    #[must_use]
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.http.push(address);
        self
    }

    /// Adds an address to listen on over HTTPS, which needs [`tls`](Self::tls) too.
    #[must_use]
    pub fn https(mut self, address: SocketAddr) -> Self {
        self.https.push(address);
        self
    }

    /// Sets the certificate that connections of HTTPS, and of the admin server [if it wants
    /// one](Self::admin_tls), begin with.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets how many HTTP connections may be open, HTTPS ones among them; 4,096 unless set. Whoever comes
    /// when all are takes the place of one that has waited long for a request. Each takes a file descriptor
    /// and up to 40 KiB, one of HTTPS up to 80 KiB: that much of a handshake is kept until it is understood.
    #[must_use]
    pub const fn http_connections(mut self, most: usize) -> Self {
        self.http_connections = most;
        self
    }

    /// Sets how many HTTP connections one IPv4 address, or 64-bit network of IPv6, may have; 64 unless set.
    /// More are closed at once. [Proxies](Rules::http_proxy) may have any number.
    #[must_use]
    pub const fn http_connections_per_address(mut self, most: usize) -> Self {
        self.http_connections_per_address = most;
        self
    }

    /// Sets how long a client may take from one answer, or from connecting, to having sent all of its next
    /// request; 10 seconds unless set. After that, its connection is closed.
    #[must_use]
    pub const fn http_patience(mut self, longest: Duration) -> Self {
        self.http_patience = longest;
        self
    }

    /// Sets the address for those who run the tracker: metrics, health, an API and a dashboard. There is none
    /// unless set. Metrics and health are for whoever reaches it, so it should be one that only they do.
    #[must_use]
    pub const fn admin(mut self, address: SocketAddr) -> Self {
        self.admin = Some(address);
        self
    }

    /// Adds a token that the API takes. With none, it answers nobody.
    #[must_use]
    pub fn admin_token(mut self, token: Token) -> Self {
        self.admin_tokens.push(token);
        self
    }

    /// Sets whether the admin server is reached over HTTPS, which needs [`tls`](Self::tls) too, and not over
    /// HTTP.
    #[must_use]
    pub const fn admin_tls(mut self, on: bool) -> Self {
        self.admin_tls = on;
        self
    }

    /// Sets what the store is called in metrics and on the dashboard.
    #[must_use]
    pub fn repository_name(mut self, name: impl Into<String>) -> Self {
        self.repository_name = Some(name.into());
        self
    }

    /// Sets what this tracker is called in metrics and on the dashboard, among others that share its store.
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
