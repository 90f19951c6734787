//! How trackers are asked.

use std::{collections::HashMap, net::IpAddr, path::PathBuf, time::Duration};

use crate::source::Source;

/// How a [`TrackerClient`](super::TrackerClient) asks. Start with [`new`](Self::new) and chain what should differ.
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

    /// Sets for how long the answer to a datagram is waited for before it is sent again, and how often it is
    /// sent in all; each wait is twice the one before. 3 seconds and 3 times unless set: 21 seconds in all.
    ///
    /// BEP 15 waits for 15 seconds and sends 9 times, which makes more than two hours. Meanwhile the next
    /// tracker would not be asked, and no answer comes after 3 seconds that would come after 15. Its long end
    /// is the back-off between announces here.
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

    /// Sets what the client calls itself over HTTP. What cannot stand in a header is left out.
    #[must_use]
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.user_agent = name.into();
        self
    }

    /// Sets the file in PEM with the authorities whose certificates are believed; those of the system unless
    /// set.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<PathBuf>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Sets the addresses of a host, which is not looked up then.
    #[must_use]
    pub fn host(mut self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.hosts.insert(name.to_ascii_lowercase(), addresses.into_iter().collect());
        self
    }

    /// Sets the addresses that trackers see, one of each family; those of a family that has none are not
    /// asked. Any of both unless set.
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
