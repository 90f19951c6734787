//! Asks trackers: one client for all torrents of a process.

use std::{io, net::SocketAddr, sync::Arc};

use swarmkeep_bittorrent::Family;
use tokio::time::Instant;

use super::{
    announce::{Announce, Answer, TrackerError},
    http::HttpClient,
    options::ClientOptions,
    resolve::Resolver,
    udp::UdpClient,
    url::{Scheme, TrackerUrl},
};

/// Asks trackers over UDP and HTTP, for all torrents of a process. They share one UDP socket per family, one
/// connection id per tracker, HTTP connections, the results of name look-ups, and which trackers do not
/// answer. Clones are the same client.
#[derive(Debug, Clone)]
pub struct TrackerClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    resolver: Resolver,
    udp: UdpClient,
    http: HttpClient,
}

impl TrackerClient {
    /// Opens a UDP socket for each family that the machine has. Must be called within a runtime.
    ///
    /// # Errors
    /// If it has neither, or the file with authorities cannot be read.
    pub fn new(options: ClientOptions) -> io::Result<Self> {
        let udp = UdpClient::new(&options)?;
        let http = HttpClient::new(&options)?;
        Ok(Self(Arc::new(Inner { resolver: Resolver::new(options.hosts), udp, http })))
    }

    /// Announces to a tracker over one family, at the `nth` of its addresses. Returns that address, too.
    pub(super) async fn announce(
        &self,
        url: &TrackerUrl,
        family: Family,
        nth: u32,
        announce: &Announce<'_>,
    ) -> (Option<SocketAddr>, Result<Answer, TrackerError>) {
        let Inner { resolver, udp, http } = &*self.0;
        let asked = Instant::now();
        let to = match resolver.address(url, family, nth).await {
            Ok(to) => to,
            Err(error) => return (None, Err(error)),
        };
        let answer = match url.scheme {
            Scheme::Udp => udp.announce(to, &url.options(), announce, asked).await,
            Scheme::Http | Scheme::Https => http.announce(url, to, resolver, announce, asked).await,
        };
        (Some(to), answer)
    }
}
