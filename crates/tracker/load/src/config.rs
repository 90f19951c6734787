//! The configuration of a load test.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    time::Duration,
};

use serde::{Serialize, Serializer};
use swarmkeep_tracker_protocol::{bittorrent::in_words, udp::MAX_SCRAPE};

use crate::{Error, machine::cores};

/// The configuration of a load test. Start with [`new`](Self::new), and change some fields.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Config {
    /// The tracker: one address, or one per family. Workers take turns. All are UDP, or all are HTTP.
    #[serde(skip)]
    pub targets: Vec<Target>,
    /// The duration of the measurement, at most [`LONGEST`](Self::LONGEST).
    #[serde(serialize_with = "seconds")]
    pub duration: Duration,
    /// The duration of the warm-up. Its requests are not counted.
    #[serde(serialize_with = "seconds")]
    pub warm_up: Duration,
    /// The number of clients, each with its own socket.
    pub workers: usize,
    /// The number of threads; `None` is one per core, and no more than workers; with `xdp`, one.
    #[serde(skip)]
    pub threads: Option<usize>,
    /// The most unanswered requests per worker; `None` is 64 over UDP in an open loop, and 1 otherwise. Over
    /// HTTP, more than one are sent as a proxy sends them: behind each other, and from the loopback with
    /// `X-Forwarded-For`.
    #[serde(skip)]
    pub window: Option<usize>,
    /// Whether each HTTP request has a connection of its own, which is a part of its latency.
    pub connection_per_request: bool,
    /// Requests per second and worker (open loop); `None` sends after each answer (closed loop).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The time after which a request without an answer has failed.
    #[serde(serialize_with = "seconds")]
    pub timeout: Duration,
    /// How long a connection id is used. The next one is requested shortly before.
    #[serde(serialize_with = "seconds")]
    pub connection_lifetime: Duration,
    /// The distribution of peers over torrents.
    pub swarms: Swarms,
    /// The number of peers.
    pub peers: u64,
    /// The number of peers that each announce requests; `None` leaves it to the tracker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub want: Option<u32>,
    /// The mix of the kinds of requests.
    pub mix: Mix,
    /// Info hashes per scrape.
    pub scrape_hashes: usize,
    /// Share of seeders among the peers. It stays the same if `completed` is at most `seeders × stopped`.
    pub seeders: f64,
    /// Share of the announces with the event `started`, at least `stopped`.
    pub started: f64,
    /// Share of the announces with which a leecher finishes its download, and becomes a seeder.
    pub completed: f64,
    /// Share of the announces with which a client leaves, at most 0.5. With the next announce of that peer
    /// another client starts, with another peer id.
    pub stopped: f64,
    /// Loopback addresses to send from (127.0.0.1, 127.0.0.2, …), so that a swarm can have more peers than
    /// there are ports.
    pub sources: u8,
    /// Whether each peer announces once, uncounted, before the warm-up.
    pub fill: bool,
    /// The seed of the random population and requests.
    pub seed: u64,
    /// The process of the tracker. The report then has its CPU time and memory.
    #[serde(skip)]
    pub server_pid: Option<u32>,
    /// Whether the tracker's counts may exclude the announcing peer, as some trackers do.
    pub announcer_uncounted: bool,
    /// Whether an answer with the announcing peer among its peers is wrong. Otherwise it is right and noted,
    /// since some trackers answer so.
    pub strict: bool,
    /// The interface over which UDP workers exchange frames by AF_XDP, past their sockets. Takes one thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xdp: Option<String>,
    /// Whether targets may be other machines.
    pub beyond_loopback: bool,
}

fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

impl Config {
    /// The longest measurement.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// 100 workers in a closed loop for 10 seconds: 50 announces per scrape, 100,000 peers in 1,000 torrents
    /// by Zipf's law, half of them seeders, and 50 peers per announce.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Self {
        Self {
            targets: targets.into_iter().collect(),
            duration: Duration::from_secs(10),
            warm_up: Duration::from_secs(1),
            workers: 100,
            threads: None,
            window: None,
            connection_per_request: false,
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
            strict: false,
            xdp: None,
            beyond_loopback: false,
        }
    }

    /// Whether requests follow a schedule (open loop).
    pub const fn is_open(&self) -> bool {
        self.rate.is_some()
    }

    /// Whether the targets are HTTP trackers.
    pub fn is_http(&self) -> bool {
        matches!(self.targets[..], [Target::Http { .. }, ..])
    }

    pub(crate) fn window(&self) -> usize {
        match self.window {
            Some(window) => window,
            None if self.is_open() && !self.is_http() => 64,
            None => 1,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        match self.xdp {
            Some(_) => 1,
            None => self.threads.unwrap_or_else(cores).min(self.workers),
        }
    }

    /// The sources and targets of workers, which use them in turns.
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

    /// Checks the configuration.
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
        if self.xdp.is_some() {
            say(self.is_http(), "HTTP goes through sockets: AF_XDP is for UDP targets")?;
            say(
                self.threads.is_some_and(|threads| threads > 1),
                "with AF_XDP one thread has all queues: leave `threads` out",
            )?;
        }
        say(!(1..=4096).contains(&self.window()), "the window is from 1 to 4,096 requests")?;
        let paced = |rate: f64| (0.001..=10_000_000.0).contains(&rate);
        say(self.rate.is_some_and(|rate| !paced(rate)), "the rate is from 0.001 to 10,000,000 a second")?;
        say(self.want.is_some_and(|want| want > 3000), "at most 3,000 peers can be requested")?;
        say(!(1..=MAX_SCRAPE).contains(&self.scrape_hashes), "a scrape has from 1 to 74 info hashes")?;
        for share in [self.seeders, self.started, self.completed, self.stopped] {
            say(!(0.0..=1.0).contains(&share), "shares are from 0 to 1")?;
        }
        say(
            self.started + self.completed + self.stopped > 1.0,
            "the shares of started, completed and stopped add up to more than 1",
        )?;
        say(self.stopped > 0.5, "a client starts before it stops: `stopped` is at most 0.5")?;
        say(!(1..=254).contains(&self.sources), "there are from 1 to 254 sources")?;
        self.mix.validate(self.is_http())?;
        say(
            self.is_http()
                && self.mix.scrape > 0
                && self.targets.iter().any(|target| target.scrape_path().is_none()),
            "a URL that does not end in `announce` has no scrapes (BEP 48): leave them out of the mix",
        )?;
        say(
            self.connection_per_request && !(self.is_http() && self.window() == 1),
            "a connection per request is for HTTP, with one request at a time: leave the window out",
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
        let workers = self.workers as u64;
        let left_over = if let Swarms::Zipf(_) = self.swarms { 0 } else { self.peers % torrents };
        say(
            self.peers - left_over < workers,
            "each worker has peers of its own: give more peers or fewer workers",
        )
    }

    /// Torrents of all workers together.
    pub fn torrents(&self) -> u64 {
        let (Swarms::Zipf(torrents) | Swarms::Uniform(torrents)) = self.swarms;
        torrents
    }
}

/// The distribution of peers over torrents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Swarms {
    /// This number of torrents, shared by all workers, with sizes by Zipf's law with exponent 1: the n-th
    /// largest has 1/n of the peers of the largest, and at least one. All peers announce equally often.
    Zipf(u64),
    /// This number of torrents of the same size, shared by all workers.
    Uniform(u64),
}

/// The mix of the kinds of requests, as weights. A connect that is needed for a connection id is additional.
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

/// Parses `connect=50,announce=50,scrape=1`. A kind that is missing has the weight 0.
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
        /// The value of the `Host` field.
        host: String,
        /// The announce URL's path, such as `/announce`.
        path: String,
    },
}

impl Target {
    /// Its socket address.
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

/// Parses `127.0.0.1:6969`, `udp://localhost:6969` or `http://127.0.0.1:7070/announce`. A name is replaced by
/// the first of its addresses.
impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |problem: &str| Error::Config(in_words(problem));
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

/// The source and the target of a worker.
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
    fn impossible_settings_are_refused() {
        let good = || Config::new([target("127.0.0.1:1")]);
        good().validate().unwrap();
        let bad: [fn(&mut Config); 18] = [
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
            |c| c.connection_per_request = true,
            |c| {
                (c.connection_per_request, c.window) = (true, Some(2));
                c.targets = vec![target("http://127.0.0.1:1")];
            },
            |c| c.scrape_hashes = 75,
            |c| c.stopped = 0.51,
            |c| (c.workers, c.swarms, c.peers) = (11, Swarms::Uniform(10), 19),
            |c| (c.xdp, c.threads) = (Some("eth0".into()), Some(2)),
            |c| (c.xdp, c.targets) = (Some("eth0".into()), vec![target("http://127.0.0.1:1")]),
        ];
        for (n, spoil) in bad.into_iter().enumerate() {
            let mut config = good();
            spoil(&mut config);
            assert!(config.validate().is_err(), "number {n}");
        }
    }
}
