//! How trackers are asked.

use std::{collections::HashMap, net::IpAddr, path::PathBuf, time::Duration};

use crate::source::Source;

/// How a [`TrackerClient`](super::TrackerClient) asks. Start with [`new`](Self::new) and chain what should
/// differ.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub(super) udp_wait: Duration,
    pub(super) udp_tries: u32,
    pub(super) http_patience: Duration,
    pub(super) user_agent: String,
    pub(super) roots: Option<PathBuf>,
    pub(super) hosts: HashMap<String, Vec<IpAddr>>,
    pub(crate) source: Source,
}

impl ClientOptions {
    /// What suits trackers on the Internet.
    pub fn new() -> Self {
        Self {
            udp_wait: Duration::from_secs(3),
            udp_tries: 3,
            http_patience: Duration::from_secs(30),
            user_agent: concat!("swarmkeep/", env!("CARGO_PKG_VERSION")).into(),
            roots: None,
            hosts: HashMap::new(),
            source: Source::ANY,
        }
    }

    /// Sets how long to wait for the answer to a datagram before it is sent again, and how often it is sent
    /// in all. Each wait is twice the one before. Unless set, 3 seconds and 3 times: 21 seconds in all.
    ///
    /// BEP 15 waits for 15 seconds and sends 9 times, which takes more than two hours, and meanwhile the next
    /// tracker is not asked. A tracker that has not answered after 3 seconds does not answer after 15 either.
    /// The back-off between announces takes the place of the longer waits.
    #[must_use]
    pub const fn udp(mut self, first_wait: Duration, tries: u32) -> Self {
        (self.udp_wait, self.udp_tries) = (first_wait, if tries == 0 { 1 } else { tries });
        self
    }

    /// Sets how long an announce over HTTP may take, from connecting to the last byte of the answer,
    /// redirects and all; 30 seconds unless set.
    #[must_use]
    pub const fn http_patience(mut self, longest: Duration) -> Self {
        self.http_patience = longest;
        self
    }

    /// Sets the name of the client over HTTP. Characters that cannot be in a header are left out.
    #[must_use]
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.user_agent = name.into();
        self
    }

    /// Sets the PEM file with the authorities whose certificates are accepted; unless set, those of the
    /// system.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<PathBuf>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Sets the addresses of a host, so that it is not looked up.
    #[must_use]
    pub fn host(mut self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.hosts.insert(name.to_ascii_lowercase(), addresses.into_iter().collect());
        self
    }

    /// Sets the local addresses that trackers see, one per family. Trackers of a family without an address
    /// are not asked. Unless set, any address of both families.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.source = Source::of(addresses);
        self
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self::new()
    }
}
