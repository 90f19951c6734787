//! The configuration of a server.

use std::{net::SocketAddr, num::NonZero, time::Duration};

use crate::{ConnectionIds, Rules, Tls, Token, xdp::Xdp};

/// The configuration of a [`Server`](crate::Server). Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The addresses to listen on over UDP. Without any address here and in `http` and `https`, the tracker
    /// listens at port 6969 on every interface over UDP and HTTP. All interfaces of IPv6 (`[::]`) are for
    /// IPv4 too, unless an IPv4 address has the same port and transport; on a machine without IPv6, they are
    /// left out if there is another address. Answers leave from the address that received the request.
    pub udp: Vec<SocketAddr>,
    /// How long a connection id over UDP is valid: from 2 minutes (BEP 15) to 16. Some clients announce by an
    /// id that is older.
    pub connection_id_lifetime: Duration,
    /// The number of threads that answer over UDP, 256 at most. Each has its own sockets. `None` is one per
    /// core.
    pub udp_workers: Option<NonZero<usize>>,
    /// The interface with datagrams that bypass the system's sockets. It takes privileges when the sockets
    /// are opened, and none afterwards.
    pub xdp: Option<Xdp>,
    /// The first rules of the tracker.
    pub rules: Rules,
    /// The time between two sweeps of the whole store. A peer can outlive its lifetime by this time.
    pub sweep_period: Duration,
    /// The addresses to listen on over HTTP.
    pub http: Vec<SocketAddr>,
    /// The addresses to listen on over HTTPS, which needs `tls` too.
    pub https: Vec<SocketAddr>,
    /// The certificate for HTTPS, and for the admin server if `admin_tls` is set.
    pub tls: Option<Tls>,
    /// The most HTTP and HTTPS connections that are open at once. When all are in use, a new connection
    /// replaces one that has been idle for long. A connection takes a file descriptor and up to 40 KiB; an
    /// HTTPS connection takes up to 80 KiB, since its handshake is kept until it is complete.
    pub http_connections: usize,
    /// The most HTTP connections per IPv4 address, or per 64-bit network of IPv6. Further connections are
    /// closed at once. [Proxies](Rules::http_proxies) have no limit.
    pub http_connections_per_address: usize,
    /// The longest time from connecting, or from one answer, to the end of the next request. After that the
    /// connection is closed.
    pub http_patience: Duration,
    /// The same for [proxies](Rules::http_proxies): longer than they keep an idle connection.
    pub http_proxy_patience: Duration,
    /// For how long a stop answers HTTP requests received before; twice as long with an asynchronous store.
    pub http_drain: Duration,
    /// The address of the admin server: metrics, health, an API and a dashboard. Metrics and health need no
    /// token, so only operators should be able to reach the address.
    pub admin: Option<SocketAddr>,
    /// The tokens for the API, which without any token refuses all requests.
    pub admin_tokens: Vec<Token>,
    /// Whether the admin server uses HTTPS instead of HTTP. It needs `tls` too.
    pub admin_tls: bool,
    /// The names of the admin server, besides `localhost` and IP addresses. Requests for other names get
    /// status 421: a web page can have its own name point to any address, and could read the answers.
    pub admin_hosts: Vec<String>,
    /// The name of the store in metrics and on the dashboard.
    pub repository_name: Option<String>,
    /// The most bytes that the store may take, as metrics show them. It limits nothing itself.
    pub store_limit: Option<u64>,
    /// The name of this tracker, among the trackers that share its store, in metrics and on the dashboard.
    pub node: Option<String>,
}

impl Config {
    /// The usual port of trackers.
    pub const PORT: u16 = 6969;

    /// UDP and HTTP at port 6969 on every interface, with the usual rules, a sweep of the store every 5
    /// minutes, at most 4,096 HTTP connections, 64 per address, with 10 seconds of patience (2 minutes
    /// for proxies), connection ids that are valid for 2 minutes, and no admin server.
    pub const fn new() -> Self {
        Self {
            udp: Vec::new(),
            connection_id_lifetime: Duration::from_secs(ConnectionIds::LIFETIME_SECS),
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
            http_proxy_patience: Duration::from_secs(120),
            http_drain: Duration::from_millis(250),
            admin: None,
            admin_tokens: Vec::new(),
            admin_tls: false,
            admin_hosts: Vec::new(),
            repository_name: None,
            store_limit: None,
            node: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
