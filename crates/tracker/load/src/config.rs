//! What a load test is told to do.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    time::Duration,
};

use serde::Serialize;
use swarmkeep_tracker_protocol::udp::MAX_SCRAPE;

use crate::Error;

/// What a load test is told to do. Start with [`new`](Self::new) and change what should differ.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The tracker: one address, or one for each family. Workers take turns. All are UDP, or all HTTP.
    pub targets: Vec<Target>,
    /// How long is measured; at most [`LONGEST`](Self::LONGEST).
    pub duration: Duration,
    /// How long the same requests are sent before that without being counted.
    pub warm_up: Duration,
    /// Clients at once, each with a socket of its own.
    pub workers: usize,
    /// Threads that run them; `None` is as many as there are cores, and no more than workers.
    pub threads: Option<usize>,
    /// Requests that a worker may have unanswered; `None` is 1 in a closed loop and 64 in an open one. HTTP
    /// has 1.
    pub window: Option<usize>,
    /// Requests a second of each worker (open loop); `None` sends whenever an answer has come (closed loop).
    pub rate: Option<f64>,
    /// After how long without an answer a request has failed.
    pub timeout: Duration,
    /// For how long a connection id is used. The next is asked for shortly before.
    pub connection_lifetime: Duration,
    /// How peers are spread over torrents.
    pub swarms: Swarms,
    /// Peers in the population.
    pub peers: u64,
    /// Peers that every announce asks for; `None` leaves it to the tracker.
    pub want: Option<u32>,
    /// How often each kind of request comes.
    pub mix: Mix,
    /// Info hashes a scrape.
    pub scrape_hashes: usize,
    /// Share of the peers that have nothing left to download.
    pub seeders: f64,
    /// Share of the announces with the event `started`.
    pub started: f64,
    /// Share of the announces with which a peer finishes its download; a leecher starts over with its next
    /// one.
    pub completed: f64,
    /// Share of the announces with which a peer leaves; it joins again with its next one.
    pub stopped: f64,
    /// Loopback addresses to send from (127.0.0.1, 127.0.0.2, …), so that a swarm can have more peers than
    /// there are ports.
    pub sources: u8,
    /// Whether each peer announces once, uncounted, before anything else.
    pub fill: bool,
    /// What population and requests are drawn from.
    pub seed: u64,
    /// The process whose CPU time and memory are to be reported.
    pub server_pid: Option<u32>,
    /// Whether the tracker's counts may leave out the peer that announces, as some trackers have it.
    pub announcer_uncounted: bool,
    /// Whether targets may be other machines.
    pub beyond_loopback: bool,
}

impl Config {
    /// The longest measurement.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// 100 workers in a closed loop for 10 seconds: 50 announces for each scrape, 100,000 peers in 1,000
    /// torrents by Zipf's law, half of them seeders, 50 peers wanted.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Self {
        Self {
            targets: targets.into_iter().collect(),
            duration: Duration::from_secs(10),
            warm_up: Duration::from_secs(1),
            workers: 100,
            threads: None,
            window: None,
            rate: None,
            timeout: Duration::from_secs(5),
            connection_lifetime: Duration::from_secs(120),
            swarms: Swarms::Zipf(1_000),
            peers: 100_000,
            want: Some(50),
            mix: Mix::default(),
            scrape_hashes: 1,
            seeders: 0.5,
            started: 0.05,
            completed: 0.01,
            stopped: 0.05,
            sources: 1,
            fill: false,
            seed: 1,
            server_pid: None,
            announcer_uncounted: false,
            beyond_loopback: false,
        }
    }

    /// The same with another number of workers.
    #[must_use]
    pub fn with_workers(&self, workers: usize) -> Self {
        Self { workers, ..self.clone() }
    }

    /// Whether requests go by a schedule and not by answers.
    pub const fn is_open(&self) -> bool {
        self.rate.is_some()
    }

    /// Whether the targets are HTTP trackers.
    pub fn is_http(&self) -> bool {
        matches!(self.targets[..], [Target::Http { .. }, ..])
    }

    /// Requests that a worker may have unanswered.
    pub(crate) fn window(&self) -> usize {
        match self.window {
            _ if self.is_http() => 1,
            Some(window) => window,
            None if self.is_open() => 64,
            None => 1,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(swarmkeep_workload::cores).min(self.workers)
    }

    /// Where workers send from and to, in turns.
    pub(crate) fn origins(&self) -> Vec<Origin> {
        let mut origins = Vec::new();
        for target in &self.targets {
            let sources = match target.address().ip() {
                IpAddr::V4(ip) if ip.is_loopback() => (1..=self.sources)
                    .map(|n| if self.sources == 1 { ip } else { Ipv4Addr::new(127, 0, 0, n) }.into())
                    .collect(),
                ip if ip.is_loopback() => vec![ip],
                IpAddr::V4(_) => vec![Ipv4Addr::UNSPECIFIED.into()],
                IpAddr::V6(_) => vec![std::net::Ipv6Addr::UNSPECIFIED.into()],
            };
            origins.extend(sources.into_iter().map(|source| Origin { target: target.clone(), source }));
        }
        origins.truncate(self.workers);
        origins
    }

    /// Says what is wrong with it, if anything.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NotYours`].
    pub fn validate(&self) -> Result<(), Error> {
        let say = |wrong: bool, what: &str| if wrong { Err(Error::Config(what.into())) } else { Ok(()) };
        say(self.targets.is_empty(), "no target: give the tracker's address")?;
        let http = |target: &Target| matches!(target, Target::Http { .. });
        say(
            self.targets.iter().any(|target| http(target) != self.is_http()),
            "targets are UDP or HTTP, not both: measure one after the other",
        )?;
        if let Some(stranger) =
            self.targets.iter().find(|target| !target.address().ip().to_canonical().is_loopback())
            && !self.beyond_loopback
        {
            return Err(Error::NotYours(stranger.clone()));
        }
        let within = |time: Duration| (Duration::from_millis(1)..=Self::LONGEST).contains(&time);
        say(!within(self.duration), "the duration is from 1 ms to 1 hour")?;
        say(self.warm_up > Self::LONGEST, "the warm-up is at most 1 hour")?;
        say(!within(self.timeout), "the timeout is from 1 ms to 1 hour")?;
        say(!within(self.connection_lifetime), "the lifetime of connection ids is from 1 ms to 1 hour")?;
        say(!(1..=20_000).contains(&self.workers), "workers are from 1 to 20,000")?;
        say(
            self.threads.is_some_and(|threads| !(1..=1024).contains(&threads)),
            "threads are from 1 to 1,024",
        )?;
        say(!(1..=4096).contains(&self.window()), "the window is from 1 to 4,096 requests")?;
        let paced = |rate: f64| (0.001..=10_000_000.0).contains(&rate);
        say(self.rate.is_some_and(|rate| !paced(rate)), "the rate is from 0.001 to 10,000,000 a second")?;
        say(self.want.is_some_and(|want| want > 3000), "at most 3,000 peers can be asked for")?;
        say(!(1..=MAX_SCRAPE).contains(&self.scrape_hashes), "a scrape has from 1 to 74 info hashes")?;
        for share in [self.seeders, self.started, self.completed, self.stopped] {
            say(!(0.0..=1.0).contains(&share), "shares are from 0 to 1")?;
        }
        say(
            self.started + self.completed + self.stopped > 1.0,
            "the shares of started, completed and stopped add up to more than 1",
        )?;
        say(!(1..=254).contains(&self.sources), "there are from 1 to 254 sources")?;
        self.mix.validate(self.is_http())?;
        say(
            self.is_http()
                && self.mix.scrape > 0
                && self.targets.iter().any(|target| target.scrape_path().is_none()),
            "a URL that does not end in `announce` has no scrapes (BEP 48): leave them out of the mix",
        )?;
        say(
            self.is_http() && self.window.is_some_and(|window| window > 1),
            "an HTTP worker has one request at a time",
        )?;
        let torrents = self.torrents();
        say(torrents == 0, "there must be a torrent")?;
        say(torrents > 100_000_000 || self.peers > 1_000_000_000, "at most 100 M torrents and 1 G peers")?;
        if self.peers < torrents {
            let peers = self.peers;
            return Err(Error::Config(format!(
                "{peers} peers cannot be in {torrents} swarms: each has one or more"
            )));
        }
        Ok(())
    }

    /// Torrents of all workers together.
    pub(crate) fn torrents(&self) -> u64 {
        match self.swarms {
            Swarms::Zipf(torrents) | Swarms::Uniform(torrents) => torrents,
            Swarms::Private(each) => each.saturating_mul(self.workers as u64),
        }
    }
}

/// How peers are spread over torrents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Swarms {
    /// So many torrents shared by all workers, sizes by Zipf's law with exponent 1: the n-th largest has 1/n
    /// of the largest's peers, and no fewer than one. Every peer announces as often.
    Zipf(u64),
    /// So many torrents shared by all workers, all of the same size.
    Uniform(u64),
    /// So many torrents for each worker that no other worker announces to.
    Private(u64),
}

/// How often each kind of request comes, as weights. A connect that is needed for want of a connection id
/// comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Connect requests (UDP only).
    pub connect: u32,
    /// Announces, with any event.
    pub announce: u32,
    /// Scrapes.
    pub scrape: u32,
}

impl Mix {
    fn validate(&self, http: bool) -> Result<(), Error> {
        let say = |wrong: bool, what: &str| if wrong { Err(Error::Config(what.into())) } else { Ok(()) };
        say(http && self.connect > 0, "HTTP has no connect requests: leave `connect` out of the mix")?;
        let sum = u64::from(self.connect) + u64::from(self.announce) + u64::from(self.scrape);
        say(sum == 0, "the mix is empty: give one of connect, announce and scrape a weight")
    }
}

impl Default for Mix {
    /// 50 announces for each scrape.
    fn default() -> Self {
        Self { connect: 0, announce: 50, scrape: 1 }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connect, announce, scrape } = self;
        write!(f, "connect={connect},announce={announce},scrape={scrape}")
    }
}

/// `connect=50,announce=50,scrape=1`; what is not named does not come.
impl FromStr for Mix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong =
            || Error::Config(format!("expected weights like connect=50,announce=50,scrape=1, not {text}"));
        let mut mix = Self { connect: 0, announce: 0, scrape: 0 };
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').ok_or_else(wrong)?;
            let slot = match name.trim() {
                "connect" => &mut mix.connect,
                "announce" => &mut mix.announce,
                "scrape" => &mut mix.scrape,
                _ => return Err(wrong()),
            };
            *slot = weight.trim().parse().map_err(|_| wrong())?;
        }
        mix.validate(false)?;
        Ok(mix)
    }
}

/// A tracker's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Over UDP.
    Udp(SocketAddr),
    /// Over HTTP.
    Http {
        /// Where to connect to.
        address: SocketAddr,
        /// What stands in the `Host` field.
        host: String,
        /// The announce URL's path, such as `/announce`.
        path: String,
    },
}

impl Target {
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        match self {
            Self::Udp(address) | Self::Http { address, .. } => *address,
        }
    }

    /// The path of scrapes: the announce URL's with `scrape` for `announce` in its last part (BEP 48).
    pub(crate) fn scrape_path(&self) -> Option<String> {
        let Self::Http { path, .. } = self else { return None };
        let (before, last) = path.rsplit_once('/')?;
        Some(format!("{before}/scrape{}", last.strip_prefix("announce")?))
    }
}

/// `127.0.0.1:6969`, `udp://localhost:6969` or `http://127.0.0.1:7070/announce`. Of a name's addresses the
/// first counts.
impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::Config(format!("{text}: {what}"));
        let resolve = |host: &str| {
            let found = host.to_socket_addrs().map_err(|error| wrong(&format!("{error}; give host:port")))?;
            found.into_iter().next().ok_or_else(|| wrong("the name has no address"))
        };
        if let Some(rest) = text.strip_prefix("http://") {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let path = if path.is_empty() { "/announce" } else { path };
            if path.contains(['?', '#', ' ']) || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong("expected a path without a query"));
            }
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let address = if has_port { resolve(host)? } else { resolve(&format!("{host}:80"))? };
            return Ok(Self::Http { address, host: host.to_owned(), path: path.to_owned() });
        }
        if text.contains("://") && !text.starts_with("udp://") {
            return Err(wrong("expected udp:// or http://"));
        }
        let rest = text.strip_prefix("udp://").unwrap_or(text);
        resolve(rest.split('/').next().unwrap_or(rest)).map(Self::Udp)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Http { host, path, .. } => write!(f, "http://{host}{path}"),
        }
    }
}

/// Where a worker sends from and to.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) target: Target,
    pub(crate) source: IpAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn targets_are_addresses_or_urls() {
        for text in ["127.0.0.1:6969", "udp://127.0.0.1:6969", "udp://127.0.0.1:6969/announce"] {
            assert_eq!(target(text), Target::Udp("127.0.0.1:6969".parse().unwrap()));
        }
        assert_eq!(target("[::1]:1"), Target::Udp("[::1]:1".parse().unwrap()));
        for (text, address, path) in [
            ("http://127.0.0.1:7070", "127.0.0.1:7070", "/announce"),
            ("http://127.0.0.1/a/announce", "127.0.0.1:80", "/a/announce"),
            ("http://[::1]:7070/x", "[::1]:7070", "/x"),
        ] {
            let Target::Http { address: found, path: found_path, .. } = target(text) else {
                panic!("{text}")
            };
            assert_eq!((found, found_path.as_str()), (address.parse().unwrap(), path));
        }
        for wrong in ["127.0.0.1", "https://127.0.0.1:1/announce", "http://127.0.0.1:1/a?b", "", "::1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn scrapes_have_the_path_of_bep_48() {
        let scrape = |path: &str| target(&format!("http://127.0.0.1:1{path}")).scrape_path();
        assert_eq!(scrape(""), Some("/scrape".to_owned()));
        assert_eq!(scrape("/x/announce.php"), Some("/x/scrape.php".to_owned()));
        assert_eq!(scrape("/announce/x"), None);
    }

    #[test]
    fn a_mix_is_weights() {
        let mix: Mix = "connect=50,announce=50, scrape=1".parse().unwrap();
        assert_eq!(mix, Mix { connect: 50, announce: 50, scrape: 1 });
        assert_eq!(mix.to_string().parse::<Mix>().unwrap(), mix);
        assert_eq!("announce=1".parse::<Mix>().unwrap(), Mix { connect: 0, announce: 1, scrape: 0 });
        for wrong in ["", "announce", "announce=0", "announce=-1", "stopped=1", "announce=1;scrape=1"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stranger_is_not_a_target_by_accident() {
        let mut config = Config::new([target("192.0.2.1:6969")]);
        assert!(matches!(config.validate(), Err(Error::NotYours(_))));
        config.beyond_loopback = true;
        config.validate().unwrap();
        Config::new([target("127.9.9.9:1"), target("[::1]:1")]).validate().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = || Config::new([target("127.0.0.1:1")]);
        good().validate().unwrap();
        let bad: [fn(&mut Config); 12] = [
            |c| c.targets.clear(),
            |c| c.targets.push(target("http://127.0.0.1:1")),
            |c| c.duration = Config::LONGEST + Duration::from_millis(1),
            |c| c.duration = Duration::ZERO,
            |c| c.workers = 0,
            |c| c.window = Some(0),
            |c| c.rate = Some(f64::NAN),
            |c| c.stopped = 1.1,
            |c| (c.stopped, c.completed) = (0.6, 0.6),
            |c| c.peers = 999,
            |c| c.sources = 0,
            |c| c.scrape_hashes = 75,
        ];
        for (n, spoil) in bad.into_iter().enumerate() {
            let mut config = good();
            spoil(&mut config);
            assert!(config.validate().is_err(), "number {n}");
        }
    }
}
