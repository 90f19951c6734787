//! The rules by which requests are answered. They can change while the tracker runs.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, Guard};
use ipnet::IpNet;
use swarmkeep::{AnnounceEvent, Endpoint, InfoHash, Random, Retention, Timestamp, bittorrent};
use swarmkeep_tracker_protocol::{LONGEST_PASSKEY, http::Escaped};
use tracing::warn;

use crate::{
    AccessList, LocalPeers, NetworkList, Observer, PasskeyList, ProxyHeader, RateLimiter, Reach,
    access::fingerprint, clock::today, refusal::Refusal,
};

/// The rules by which requests are answered. Start with [`new`](Self::new), and set other values.
/// [`LiveRules::replace`] gives other rules to a running tracker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rules {
    /// The interval between announces in seconds. The lifetime of the store should be at least 1.5 times as
    /// long.
    pub interval_secs: u32,
    /// The longest interval in seconds while the tracker is overloaded; `None` never makes it longer. The
    /// lifetime of the store must be longer than this interval with its jitter.
    pub longest_interval_secs: Option<u32>,
    /// The largest random addition to an interval, in percent of it.
    pub jitter_percent: u32,
    /// The least number of seconds between two HTTP announces of a client, even if its user asks for one.
    pub min_interval_secs: Option<u32>,
    /// The interval in seconds after an answer [without the store](WhenUnavailable::Empty). It is never
    /// longer than the interval, and it has the same jitter and grows in the same way.
    pub retry_interval_secs: u32,
    /// The answer to clients while the store cannot be reached.
    pub when_unavailable: WhenUnavailable,
    /// The number of peers for a client that does not give `numwant`.
    pub default_want: usize,
    /// The most peers per answer, whatever a client asks for. The length of an answer is a limit too.
    pub most_want: usize,
    /// Whether a client that starts with nothing left and nothing downloaded is given seeders too. Some
    /// clients announce so while they have only a magnet link. Without this they find no peer in a swarm of
    /// seeders. With it, seeders that start are given seeders too.
    pub seeders_for_links: bool,
    /// Whether swarms without peers are kept.
    pub retention: Retention,
    /// The treatment of peers at loopback and private addresses.
    pub local_peers: LocalPeers,
    /// The networks of trusted proxies. If a request comes from one, the client is the last address in
    /// `http_proxy_header` that is not a trusted proxy. An announce is refused if its proxy names no client.
    /// For every other connection the header is ignored, and the client is the remote end.
    pub http_proxies: Vec<IpNet>,
    /// The header in which trusted proxies name the client. They must overwrite it, or append to it: a header
    /// that they pass on as it came is the client's own word.
    pub http_proxy_header: ProxyHeader,
    /// Whether the address in `ip` of a client is trusted. Any client can then direct peers to any address:
    /// use it only if you know all clients.
    pub http_ip_parameter: bool,
    /// The list of the torrents that are served. All other torrents are removed from the store. The file is
    /// checked once per second, and read again when it has changed.
    pub access: Option<AccessList>,
    /// The list of members, if only members are served. They name their passkey in the URL, in any form of
    /// [`TrackerUrl`](swarmkeep_tracker_protocol::TrackerUrl). A scrape over UDP cannot, and is refused. The
    /// file is checked like the file of `access`.
    pub passkeys: Option<PasskeyList>,
    /// Receives each announce of a member, by its passkey.
    pub observer: Option<Arc<dyn Observer>>,
    /// The list of networks whose requests are refused. The file is checked like the file of `access`.
    pub refused: Option<NetworkList>,
    /// The limit on the number of requests per address. Over UDP, only requests with a valid connection id
    /// count, and requests above the limit are ignored: a client without an answer waits longer each time
    /// (BEP 15). Over HTTPS, a tenth of the limit holds for connections, before their handshakes begin.
    pub rate: Option<Arc<RateLimiter>>,
    /// The networks without a limit on requests.
    pub unlimited: Vec<IpNet>,
}

impl Rules {
    /// An interval of 30 minutes, plus up to 10 % at random so that clients that come together do not come
    /// back together. 50 peers per answer, or up to 200 if a client asks for another number. An error while
    /// the store cannot be reached. All torrents are served, to all clients, without a limit on requests.
    pub const fn new() -> Self {
        Self {
            interval_secs: 30 * 60,
            longest_interval_secs: None,
            jitter_percent: 10,
            min_interval_secs: None,
            retry_interval_secs: 60,
            when_unavailable: WhenUnavailable::Error,
            default_want: 50,
            most_want: 200,
            seeders_for_links: false,
            retention: Retention::DropEmpty,
            local_peers: LocalPeers::Near,
            http_proxies: Vec::new(),
            http_proxy_header: ProxyHeader::XForwardedFor,
            http_ip_parameter: false,
            access: None,
            passkeys: None,
            observer: None,
            refused: None,
            rate: None,
            unlimited: Vec::new(),
        }
    }

    /// Admits a request from this address now, or refuses it. `hashes` is the number of info hashes of a
    /// scrape: ten cost as much as an announce.
    pub(crate) fn is_in_time(&self, ip: IpAddr, hashes: usize, now: Timestamp) -> Result<(), Refusal> {
        if self.refuses(ip) {
            return Err(Refusal::RefusedAddress);
        }
        let tokens = hashes.div_ceil(10).max(1);
        if self.admits(self.rate.as_deref(), ip, tokens, now) { Ok(()) } else { Err(Refusal::TooOften) }
    }

    /// Whether requests from this address are refused.
    pub(crate) fn refuses(&self, ip: IpAddr) -> bool {
        self.refused.as_ref().is_some_and(|list| list.list().contains(ip))
    }

    /// Whether this address may begin a handshake of TLS now.
    pub(crate) fn may_shake_hands(&self, ip: IpAddr, now: Timestamp) -> bool {
        !self.refuses(ip) && self.admits(self.rate.as_deref().map(RateLimiter::of_a_tenth), ip, 1, now)
    }

    /// Addresses without a limit take no tokens from their wider networks.
    fn admits(&self, limiter: Option<&RateLimiter>, ip: IpAddr, tokens: usize, now: Timestamp) -> bool {
        let is_unlimited = || self.unlimited.iter().any(|network| network.contains(&ip));
        // Seconds are fine enough for limits of some hundred requests per second.
        limiter.is_none_or(|limiter| is_unlimited() || limiter.admit(ip, now.as_secs() * 1000, tokens as u64))
    }

    /// Refuses a request without the passkey of a member, if only members are served. Returns the member's
    /// name, or the fingerprint of the passkey, if there is an observer.
    pub(crate) fn member(&self, passkey: Option<Escaped<'_>>) -> Result<Option<String>, Refusal> {
        let Some(list) = &self.passkeys else { return Ok(None) };
        let passkey = passkey.ok_or(Refusal::NoPasskey)?;
        let known = |passkey: &str| {
            let member = list.list().find(passkey.as_bytes())?;
            if member.until.is_some_and(|until| until <= today()) {
                return Some(Err(Refusal::ExpiredPasskey));
            }
            let name = || member.name.as_deref().map_or_else(|| fingerprint(passkey), str::to_owned);
            Some(Ok(self.observer.is_some().then(name)))
        };
        passkey.parse::<LONGEST_PASSKEY, _>(known).ok_or(Refusal::WrongPasskey)?
    }

    pub(crate) fn is_allowed(&self, info_hash: &InfoHash) -> Result<(), Refusal> {
        let allowed = self.access.as_ref().is_none_or(|list| list.list().admits(info_hash));
        if allowed { Ok(()) } else { Err(Refusal::NotAllowed) }
    }

    /// The number of peers for a client with this `numwant`.
    pub(crate) fn want(&self, asked: Option<u32>) -> usize {
        asked.map_or(self.default_want, |want| want as usize).min(self.most_want)
    }

    /// Whether a client may have only a magnet link, whatever its `left`.
    pub(crate) fn may_have_a_link(&self, event: AnnounceEvent, downloaded: u64) -> bool {
        self.seeders_for_links && event == AnnounceEvent::Started && downloaded == 0
    }

    /// The endpoint of a peer that announces from `ip` to a socket of this reach.
    pub(crate) fn endpoint(&self, ip: IpAddr, port: u16, listener: Reach) -> Result<Endpoint, Refusal> {
        if port == 0 {
            return Err(Refusal::Field(bittorrent::Error::PortZero));
        }
        let ip = self.local_peers.listed(ip, listener).ok_or_else(|| {
            static FIRST: Once = Once::new();
            if self.local_peers == LocalPeers::Near && Reach::of_peer(ip).is_some() {
                FIRST.call_once(|| warn!("a peer at a private or loopback address was refused: {ON_A_LAN}"));
            }
            Refusal::Address
        })?;
        Endpoint::new(ip, port).map_err(Refusal::Field)
    }
}

/// The advice for networks of one's own.
pub const ON_A_LAN: &str =
    "for peers in your own network set local-peers to `take`, or listen on an address of that network";

impl Default for Rules {
    fn default() -> Self {
        Self::new()
    }
}

/// The answer to clients while the store cannot be reached, or while too many requests wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenUnavailable {
    /// An error, which clients show to their users. Over HTTP it contains the time to come back (BEP 31).
    #[default]
    Error,
    /// A success without peers for announces. Clients come back soon, and keep the peers that they know.
    /// Nothing of such an announce is kept, not even a finished download. Scrapes still get an error, because
    /// counts would be wrong.
    Empty,
}

/// The rules of a running tracker. All threads and connections share them, and so do all clones.
#[derive(Debug, Clone)]
pub struct LiveRules(Arc<Live>);

#[derive(Debug)]
struct Live {
    rules: ArcSwap<Rules>,
    /// Held while they are changed.
    changing: Mutex<()>,
    /// The factor of the interval, in thousandths.
    stretch: AtomicU32,
}

impl LiveRules {
    /// The first rules.
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Live {
            rules: ArcSwap::from_pointee(rules),
            changing: Mutex::new(()),
            stretch: AtomicU32::new(UNSTRETCHED),
        }))
    }

    /// The rules at this moment. Call it once per request of HTTP and per step of a batch of UDP, so that
    /// only one set of rules applies to a request.
    pub(crate) fn now(&self) -> Guard<Arc<Rules>> {
        self.0.rules.load()
    }

    /// Replaces the rules, and does not wait. Requests that are being answered keep the old rules until they
    /// are done.
    pub fn replace(&self, rules: Rules) {
        let Ok(()) = self.renew(|_| Ok::<_, Infallible>(rules));
    }

    /// Replaces the rules by rules that are made from them. One caller at a time: the files that `make` reads
    /// are never older than the rules that it replaces.
    ///
    /// # Errors
    /// The errors of `make`. The rules then stay as they were.
    pub fn renew<E>(&self, make: impl FnOnce(&Rules) -> Result<Rules, E>) -> Result<(), E> {
        let _one_at_a_time = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.rules.load_full();
        self.0.rules.store(Arc::new(make(&now)?));
        Ok(())
    }

    /// The factor by which the interval is longer than set; 1 if it is not.
    pub fn stretch(&self) -> f64 {
        f64::from(self.0.stretch.load(Relaxed)) / f64::from(UNSTRETCHED)
    }

    /// Makes the interval a little longer if overloaded, otherwise a little shorter.
    pub(crate) fn adapt(&self, overloaded: bool) {
        let rules = self.now();
        let longest = rules.longest_interval_secs.unwrap_or(0);
        let most = u64::from(longest) * u64::from(UNSTRETCHED) / u64::from(rules.interval_secs.max(1));
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(UNSTRETCHED);
        let stretch = self.0.stretch.load(Relaxed);
        let next = if overloaded { stretch + stretch / 20 } else { stretch - stretch / 100 };
        self.0.stretch.store(next.clamp(UNSTRETCHED, most), Relaxed);
    }

    /// The interval in seconds for one client.
    pub(crate) fn interval(&self, rules: &Rules, rng: &mut dyn Random) -> u32 {
        self.stretched(rules.interval_secs, rules, rng)
    }

    /// The interval in seconds for one client after an answer without the store.
    pub(crate) fn retry_interval(&self, rules: &Rules, rng: &mut dyn Random) -> u32 {
        self.stretched(rules.retry_interval_secs.min(rules.interval_secs), rules, rng)
    }

    fn stretched(&self, seconds: u32, rules: &Rules, rng: &mut dyn Random) -> u32 {
        let stretch = u64::from(self.0.stretch.load(Relaxed));
        let interval = u64::from(seconds) * stretch / u64::from(UNSTRETCHED);
        let jitter = interval * u64::from(rules.jitter_percent) / 100;
        let more = if jitter == 0 { 0 } else { rng.below(jitter as usize + 1) as u64 };
        u32::try_from(interval + more).unwrap_or(u32::MAX)
    }
}

const UNSTRETCHED: u32 = 1000;

#[cfg(test)]
mod tests {
    use swarmkeep::SplitMix64;

    use super::*;

    fn every(interval_secs: u32) -> Rules {
        Rules { interval_secs, ..Rules::new() }
    }

    fn intervals(live: &LiveRules, rng: &mut SplitMix64) -> (u32, u32) {
        let rules = live.now();
        let all: Vec<_> = (0..10_000).map(|_| live.interval(&rules, rng)).collect();
        (*all.iter().min().unwrap(), *all.iter().max().unwrap())
    }

    #[test]
    fn intervals_are_longer_by_chance_and_never_shorter() {
        let mut rng = SplitMix64::new(1);
        let live = LiveRules::new(every(1000));
        assert_eq!(intervals(&live, &mut rng), (1000, 1100));
        live.replace(Rules { jitter_percent: 0, ..every(1000) });
        assert_eq!(intervals(&live, &mut rng), (1000, 1000));
        live.replace(every(u32::MAX));
        assert_eq!(intervals(&live, &mut rng), (u32::MAX, u32::MAX));
    }

    #[test]
    fn the_retry_interval_is_stretched_but_never_longer_than_the_interval() {
        let mut rng = SplitMix64::new(1);
        let rules = Rules { longest_interval_secs: Some(2000), retry_interval_secs: 100, ..every(1000) };
        let live = LiveRules::new(rules.clone());
        let mut retries = |live: &LiveRules| {
            let rules = live.now();
            let all: Vec<_> = (0..10_000).map(|_| live.retry_interval(&rules, &mut rng)).collect();
            (*all.iter().min().unwrap(), *all.iter().max().unwrap())
        };
        assert_eq!(retries(&live), (100, 110));
        (0..100).for_each(|_| live.adapt(true));
        assert_eq!(retries(&live), (200, 220));
        let live = LiveRules::new(Rules { retry_interval_secs: 5000, jitter_percent: 0, ..rules });
        assert_eq!(retries(&live), (1000, 1000));
    }

    #[test]
    fn intervals_stretch_under_load_up_to_the_longest_and_come_back() {
        let mut rng = SplitMix64::new(1);
        let live = LiveRules::new(Rules { jitter_percent: 0, ..every(1000) });
        live.adapt(true);
        assert_eq!(intervals(&live, &mut rng), (1000, 1000), "not unless it may");
        live.replace(Rules { longest_interval_secs: Some(2000), jitter_percent: 0, ..every(1000) });
        live.adapt(true);
        assert_eq!(intervals(&live, &mut rng), (1050, 1050));
        (0..100).for_each(|_| live.adapt(true));
        assert_eq!(intervals(&live, &mut rng), (2000, 2000));
        live.adapt(false);
        assert_eq!(intervals(&live, &mut rng), (1980, 1980));
        (0..100).for_each(|_| live.adapt(false));
        assert_eq!(intervals(&live, &mut rng), (1000, 1000));
    }
}
