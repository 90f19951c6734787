//! The options of the client of trackers.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    time::Duration,
};

/// Options of a [`TrackerClient`](super::TrackerClient). Start with [`new`](Self::new), and set other values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How long to wait for the answer to a datagram before it is sent again. Each wait is twice the one
    /// before.
    ///
    /// BEP 15 waits for 15 seconds and sends 9 times, which takes more than two hours, and meanwhile the next
    /// tracker gets no announce. Here it is sent 3 times. A tracker that has not answered after 3 seconds
    /// does not answer after 15 either. The back-off between announces takes the place of the longer waits.
    pub udp_wait: Duration,
    /// How long an announce over HTTP may take, from connecting to the last byte of the answer, redirects and
    /// all.
    pub http_patience: Duration,
    /// The name of the client over HTTP. One with characters that cannot be in a header is left out.
    pub user_agent: String,
    /// The PEM file with the authorities of accepted certificates; `None` is those of the system.
    pub root_certificates: Option<PathBuf>,
    /// The addresses of hosts that are not looked up.
    pub hosts: HashMap<String, Vec<IpAddr>>,
    /// URLs of HTTP trackers that the user has named: they may lead to any service of this machine and its
    /// network.
    pub trusted: Vec<String>,
    /// The local addresses that trackers see, the first of each family. Trackers of a family without an
    /// address get no announces.
    pub addresses: Vec<IpAddr>,
}

impl ClientOptions {
    /// For trackers on the Internet: a datagram is sent 3 times and waited for 21 seconds in all, an answer
    /// over HTTP for 30 seconds. Any address of both families.
    pub fn new() -> Self {
        Self {
            udp_wait: Duration::from_secs(3),
            http_patience: Duration::from_secs(30),
            user_agent: concat!("swarmkeep/", env!("CARGO_PKG_VERSION")).into(),
            root_certificates: None,
            hosts: HashMap::new(),
            trusted: Vec::new(),
            addresses: vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self::new()
    }
}
