//! The addresses of trackers' hosts: looked up once for all torrents, and again after a while.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use swarmkeep_bittorrent::{Family, in_words};
use tokio::{
    net::lookup_host,
    sync::{Mutex, Semaphore},
    time::{Instant, timeout},
};

use super::{announce::TrackerError, turns::Cache, url::TrackerUrl};

/// Remembers the addresses of names. A look-up takes a blocking thread, so their number is limited.
#[derive(Debug)]
pub(super) struct Resolver {
    /// Names that are not looked up.
    fixed: HashMap<String, Vec<IpAddr>>,
    hosts: Cache<String, Mutex<Option<Lookup>>>,
    lookups: Semaphore,
}

/// The addresses of a name, and until when they are believed.
#[derive(Debug)]
struct Lookup {
    until: Instant,
    addresses: Result<Vec<IpAddr>, TrackerError>,
}

/// The system's resolver does not say for how long an answer holds. Announces are half an hour apart; this
/// saves the look-ups of many torrents at once.
const BELIEVED: Duration = Duration::from_secs(5 * 60);

/// For how long a name that is not found is not looked up again.
const MISSING: Duration = Duration::from_secs(30);

/// The system's resolver gives up after 10 seconds as a rule (two tries of 5); this is for the case that it
/// does not.
const LONGEST_LOOKUP: Duration = Duration::from_secs(20);

/// How many of the addresses of a host are tried in turn.
const MOST_ADDRESSES: usize = 8;

impl Resolver {
    pub(super) fn new(fixed: HashMap<String, Vec<IpAddr>>) -> Self {
        let fixed =
            fixed.into_iter().map(|(name, addresses)| (name.to_ascii_lowercase(), addresses)).collect();
        Self { fixed, hosts: Cache::default(), lookups: Semaphore::new(16) }
    }

    /// The `nth` address of a tracker in a family, around and around, so that the next try after a failure
    /// uses the next.
    ///
    /// # Errors
    /// [`TrackerError::NoAddress`] if it has none in the family, [`TrackerError::Lookup`] if the name is not
    /// found.
    pub(super) async fn address(
        &self,
        url: &TrackerUrl,
        family: Family,
        nth: u32,
    ) -> Result<SocketAddr, TrackerError> {
        let addresses = match (url.address(), self.fixed.get(&url.host)) {
            (Some(address), _) => vec![address],
            (_, Some(fixed)) => fixed.clone(),
            _ => self.lookup(&url.host).await?,
        };
        let of_family: Vec<_> =
            addresses.into_iter().filter(|ip| ip.is_ipv4() == (family == Family::V4)).collect();
        let nth = (nth as usize).checked_rem(of_family.len()).ok_or(TrackerError::NoAddress(family))?;
        Ok(SocketAddr::new(of_family[nth], url.port))
    }

    async fn lookup(&self, host: &str) -> Result<Vec<IpAddr>, TrackerError> {
        let known = self.hosts.get(host.to_owned(), Mutex::default);
        // Other announces wait for the same look-up.
        let mut known = known.lock().await;
        if let Some(lookup) = &*known
            && lookup.until > Instant::now()
        {
            return lookup.addresses.clone();
        }
        let _turn = self.lookups.acquire().await.expect("it is never closed");
        let problem = |problem: String| TrackerError::Lookup { host: host.to_owned(), problem };
        let addresses = match timeout(LONGEST_LOOKUP, lookup_host((host, 0))).await {
            Ok(Ok(found)) => {
                let mut addresses: Vec<IpAddr> = Vec::new();
                for address in found.map(|address| address.ip().to_canonical()) {
                    let of_family = addresses.iter().filter(|ip| ip.is_ipv4() == address.is_ipv4()).count();
                    if !addresses.contains(&address) && of_family < MOST_ADDRESSES {
                        addresses.push(address);
                    }
                }
                Ok(addresses)
            }
            Ok(Err(error)) => Err(problem(in_words(&error))),
            Err(_) => Err(problem("no answer".into())),
        };
        let believed = if addresses.is_ok() { BELIEVED } else { MISSING };
        *known = Some(Lookup { until: Instant::now() + believed, addresses: addresses.clone() });
        addresses
    }
}
