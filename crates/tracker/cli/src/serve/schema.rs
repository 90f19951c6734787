//! Every setting of a tracker: the options of `swarmkeep serve`, which can also be set in its environment and
//! its file.

use std::{
    error::Error,
    fmt::Display,
    fs,
    net::SocketAddr,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{
    ArgAction, Args as _, Command, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use rustix::{
    fs::{Access, access},
    io::Errno,
};
use swarmkeep::{BoundedBy, ConfigError, HashKey, RepositoryConfig, Retention};
use swarmkeep_bittorrent::programs;
use swarmkeep_tracker::{
    AccessList, Config, ConnectionKey, IpNet, ListKind, LocalPeers, NetworkList, PasskeyList, ProxyHeader,
    RateLimiter, Rules, Scope, Tls, Token, WhenUnavailable,
};
use tracing::warn;
use tracing_subscriber::filter::LevelFilter;

use super::{
    connection_key,
    log::Log,
    redis::Redis,
    secret::warn_of_others,
    store::{StoreBuilder, StoreChoice},
    user::User,
    values::{Listen, id_lifetime, level, listen, local_peers, most_bytes, network, seconds, unavailable},
    xdp::Xdp,
};
use crate::{settings::Contradiction, units::named};

#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    pub(crate) fixed: Fixed,
    #[command(flatten)]
    pub(crate) live: Live,
}

impl Settings {
    /// All settings, as clap knows them.
    pub(crate) fn schema() -> Command {
        Self::augment_args(Command::new("serve"))
    }
}

/// Settings that need a restart to change.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Fixed {
    /// Address and port to listen on over UDP; may be repeated; or `off`. `[::]:PORT` is for both families,
    /// unless an IPv4 address has that port. Answers leave from the address that received the request.
    #[arg(long, value_name = "ADDR", default_values = EVERYWHERE, value_parser = listen, help_heading = LISTENING)]
    pub(crate) udp: Vec<Listen>,

    /// Address and port to listen on over HTTP; may be repeated; or `off`. Clients announce to
    /// http://ADDR/announce.
    #[arg(long, value_name = "ADDR", default_values = EVERYWHERE, value_parser = listen, help_heading = LISTENING)]
    pub(crate) http: Vec<Listen>,

    /// Address and port to listen on over HTTPS, with --tls-certificate and --tls-key; may be repeated.
    /// Clients announce to https://NAME:PORT/announce.
    #[arg(long, value_name = "ADDR", value_parser = listen, help_heading = LISTENING)]
    pub(crate) https: Vec<Listen>,

    /// Address and port of the dashboard, metrics, health and API for the operator; or `off`. Metrics and
    /// health need no token, everything else does.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6970", value_parser = listen, help_heading = LISTENING)]
    pub(crate) admin: Listen,

    /// Name by which the admin address is reached, such as tracker.example.com; may be repeated. Requests for
    /// other names than these, localhost and IP addresses are refused.
    #[arg(long, value_name = "NAME", help_heading = LISTENING)]
    pub(crate) admin_host: Vec<String>,

    /// Serve the admin address over HTTPS instead of HTTP, with the certificate of --tls-certificate.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, help_heading = LISTENING)]
    pub(crate) admin_tls: bool,

    /// File of the API's tokens, one per line: SECRET read,write,peers,members. A secret has 16 characters or
    /// more; the rights follow it. Without this option the tracker makes a random token for read and write,
    /// and shows it with the dashboard's address if standard error is a terminal.
    #[arg(long, value_name = "FILE", help_heading = LISTENING)]
    pub(crate) admin_tokens: Option<PathBuf>,

    /// Number of threads that answer over UDP, 1 to 256, each with its own sockets. Default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), help_heading = LISTENING)]
    pub(crate) workers: Option<u16>,

    #[command(flatten)]
    pub(crate) xdp: Xdp,

    /// File with the secret of connection ids over UDP, 32 bytes or more, that others cannot read. Trackers
    /// with the same secret accept each other's ids, and a restarted tracker accepts its earlier ones.
    /// Default: the secret of the store on Redis, or a random one.
    #[arg(long, value_name = "FILE", help_heading = LISTENING)]
    pub(crate) connection_key: Option<PathBuf>,

    /// Time for which a connection id over UDP is valid, from 2m (BEP 15) to 16m.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = id_lifetime, help_heading = LISTENING)]
    pub(crate) connection_id_lifetime: u32,

    /// Most HTTP and HTTPS connections that are open at once. When all are in use, a new connection replaces
    /// one that has been idle for long.
    #[arg(long, value_name = "N", default_value = "4096", help_heading = LISTENING)]
    pub(crate) http_connections: NonZero<usize>,

    /// Most HTTP connections per IPv4 address, or per 64-bit network of IPv6. Trusted proxies have no limit.
    #[arg(long, value_name = "N", default_value = "64", help_heading = LISTENING)]
    pub(crate) http_connections_per_address: NonZero<usize>,

    /// Store of the swarms: one in this process, or `redis`, which several trackers can share.
    #[arg(long, value_name = "NAME", default_value = "packed", value_parser = repository(), help_heading = STORE)]
    pub(crate) repository: StoreChoice,

    /// Time that a peer is kept after its last announce, such as 2700, 45m, 1h30m or 1d (units s, m, h, d).
    #[arg(long, value_name = "TIME", default_value = "45m", value_parser = seconds, help_heading = STORE)]
    pub(crate) lifetime: u32,

    /// Most torrents in the store. A new one displaces one of few peers, or has no room. Default: no limit.
    #[arg(long, value_name = "N", help_heading = STORE)]
    pub(crate) max_swarms: Option<NonZero<usize>>,

    /// Most peers per torrent. Default: no limit.
    #[arg(long, value_name = "N", help_heading = STORE)]
    pub(crate) max_peers_per_swarm: Option<NonZero<usize>>,

    /// Most endpoints per IPv4 address or IPv6 /64 in one torrent (5 times as many for a /56, 25 times for a
    /// /48); 0 is no limit. Default: 8, or no limit if the tracker listens on loopback addresses only and has
    /// no proxies.
    #[arg(long, value_name = "N", help_heading = STORE)]
    pub(crate) endpoints_per_address: Option<usize>,

    /// Most memory of the store, such as 500MB or 1.5GiB (units kB, MB, GB, TB, KiB, MiB, GiB, TiB); 0 is no
    /// limit. Default: half of the memory of this machine, or of its control group, if the store can keep a
    /// limit.
    #[arg(long, value_name = "BYTES", value_parser = most_bytes, help_heading = STORE)]
    pub(crate) max_bytes: Option<usize>,

    #[command(flatten)]
    pub(crate) redis: Redis,

    /// Folder for the state that survives a restart: snapshots of all swarms, and all download counts. It is
    /// made if it does not exist. Without this option a restart begins with nothing.
    #[arg(long, value_name = "DIR", help_heading = STATE)]
    pub(crate) state: Option<PathBuf>,

    /// Time between snapshots; announces go on meanwhile. Another snapshot is taken at the end. If the
    /// process is killed, the announces since the latest snapshot are lost until clients announce again.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = seconds, help_heading = STATE)]
    pub(crate) snapshot_every: u32,

    /// User to run as after sockets are open and files are read. Start as root for ports below 1024, or for
    /// keys that only root can read. The default group is the user's own. After SIGHUP, files are read as
    /// this user.
    #[arg(long, value_name = "NAME[:GROUP]", help_heading = PROCESS)]
    pub(crate) user: Option<User>,

    /// Log format: lines for people, or JSON objects for programs, one per line.
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = LOGS)]
    pub(crate) log_format: LogFormat,

    /// Record of each announce of a member, as a line of JSON: a file that only this user can read, and that
    /// becomes FILE.1 at 256 MiB; or unix:SOCKET, at which a program listens. It needs --passkeys, and shows
    /// what members fetch.
    #[arg(long, value_name = "FILE", help_heading = LOGS)]
    pub(crate) report_to: Option<PathBuf>,
}

/// Settings that can change while the tracker runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Live {
    /// Time that clients wait between announces. With its jitter it must be shorter than the lifetime.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = seconds, help_heading = ANSWERS)]
    pub(crate) interval: u32,

    /// Longest interval while the tracker is overloaded. Without this option the interval is never made
    /// longer.
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = ANSWERS)]
    pub(crate) longest_interval: Option<u32>,

    /// Largest random addition to an interval, in percent, so that clients that come together do not come
    /// back together.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = clap::value_parser!(u32).range(0..=100), help_heading = ANSWERS)]
    pub(crate) jitter: u32,

    /// Shortest time between two announces of a client over HTTP, even if its user requests one.
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = ANSWERS)]
    pub(crate) min_interval: Option<u32>,

    /// Answer to announces while the store (on Redis) cannot be reached: `error`, or `empty`, a success
    /// without peers. After `empty`, clients come back in retry-interval and keep the peers that they know.
    /// Scrapes always get an error.
    #[arg(long, value_name = "ANSWER", default_value = "error", value_parser = unavailable(), help_heading = ANSWERS)]
    pub(crate) when_unavailable: WhenUnavailable,

    /// Time that clients wait after the answer `empty`, with the same jitter; at most the interval.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = seconds, help_heading = ANSWERS)]
    pub(crate) retry_interval: u32,

    /// Number of peers for a client that does not give `numwant`.
    #[arg(long, value_name = "N", default_value = "50", help_heading = ANSWERS)]
    pub(crate) peers: usize,

    /// Most peers in an answer, 65535 at most. A datagram holds 238 peers over IPv4 and 65 over IPv6.
    #[arg(long, value_name = "N", default_value = "200", help_heading = ANSWERS)]
    pub(crate) most_peers: NonZero<u16>,

    /// Give seeders also to clients that start with nothing left and nothing downloaded. rqbit over HTTP and
    /// webtorrent over UDP announce so while they have only a magnet link, and receive no peers in a swarm of
    /// seeders otherwise. Seeders that start are then given seeders too.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, help_heading = ANSWERS)]
    pub(crate) seeders_for_links: bool,

    /// Keep torrents without peers, and so their download counts, for as long as the tracker runs.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, help_heading = ANSWERS)]
    pub(crate) keep_downloads: bool,

    /// File of the only torrents that are served, one info hash per line in hex or base32. The file is
    /// checked every second and read again when it changes; after an error in it the former list stays.
    #[arg(long, value_name = "FILE", conflicts_with = "deny_list", help_heading = ACCESS)]
    pub(crate) allow_list: Option<PathBuf>,

    /// File of torrents that are not served, in the format of allow-list.
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    pub(crate) deny_list: Option<PathBuf>,

    /// File of the passkeys of a private tracker, one per line: KEY, or KEY name=alice until=2027-12-31. A
    /// key is 8 to 128 of A-Z, a-z, 0-9, _ and -. It is refused from its date, in UTC, or time, such as
    /// 2027-12-31T18:00:00Z. Members announce to http:// or udp://ADDR/KEY/announce;
    /// docs/operate/coming-from.md of the repository has the other forms.
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    pub(crate) passkeys: Option<PathBuf>,

    /// Most requests per second that are answered per IPv4 address, or per 64-bit network of IPv6, up to
    /// 1,000,000; 0 is no limit. Ten torrents of a scrape count as a request. A 56-bit network of IPv6 has 5
    /// times the limit, a 48-bit one 25 times.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(0..=1_000_000), help_heading = ACCESS)]
    pub(crate) requests: u32,

    /// Number of further requests that are answered at once after a pause.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=100_000_000), help_heading = ACCESS)]
    pub(crate) requests_at_once: u32,

    /// Network without a limit on requests; may be repeated. Default: the addresses of this machine.
    #[arg(long, value_name = "NET", value_parser = network, default_values = ["127.0.0.0/8", "::1/128"], help_heading = ACCESS)]
    pub(crate) unlimited: Vec<IpNet>,

    /// Treatment of peers at loopback and private addresses. `near` takes loopback peers on a loopback
    /// listening address and private peers on a private one; `refuse` takes none, `take` all. Or give
    /// addresses, one per family, such as 203.0.113.5,2001:db8::5: such peers are then listed at these
    /// addresses, all at one, so see endpoints-per-address.
    #[arg(long, value_name = "RULE", default_value = "near", value_parser = local_peers, help_heading = ACCESS)]
    pub(crate) local_peers: LocalPeers,

    /// Address or network of proxies with a trusted header of the client, such as 192.0.2.0/24; may be
    /// repeated.
    #[arg(long, value_name = "NET", value_parser = network, help_heading = ACCESS)]
    pub(crate) http_proxy: Vec<IpNet>,

    /// Header in which these proxies name the client. They must overwrite it, or append to it: otherwise
    /// clients choose their addresses.
    #[arg(long, value_name = "HEADER", default_value = "X-Forwarded-For", value_parser = named(ProxyHeader::ALL, ProxyHeader::name), help_heading = ACCESS)]
    pub(crate) http_proxy_header: ProxyHeader,

    /// File of the networks whose requests are refused, one per line, such as 192.0.2.0/24, 2001:db8::1 or
    /// 192.0.2.5-192.0.2.9.
    #[arg(long, value_name = "FILE", help_heading = ACCESS)]
    pub(crate) refused_networks: Option<PathBuf>,

    /// Trust the address that an HTTP client gives in `ip=`. Any client can then direct peers to any address:
    /// use it only if you know all clients.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set, help_heading = ACCESS)]
    pub(crate) http_ip_parameter: bool,

    /// PEM file with the certificate for HTTPS, followed by its chain.
    #[arg(long, value_name = "FILE", help_heading = LISTENING)]
    pub(crate) tls_certificate: Option<PathBuf>,

    /// PEM file with the key of that certificate, without a passphrase. Send SIGHUP after both are renewed.
    #[arg(long, value_name = "FILE", help_heading = LISTENING)]
    pub(crate) tls_key: Option<PathBuf>,

    /// Level of the log on standard error; `debug` includes clients' errors, with their addresses.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = level(), help_heading = LOGS)]
    pub(crate) log: LevelFilter,
}

pub(crate) const LISTENING: &str = "Listening";
const STORE: &str = "Store";
const STATE: &str = "Across restarts";
const ANSWERS: &str = "Answers";
const ACCESS: &str = "Access";
const LOGS: &str = "Logs";
const PROCESS: &str = "Process";

/// All interfaces at the usual port.
const EVERYWHERE: [&str; 2] = ["0.0.0.0:6969", "[::]:6969"];

/// The addresses to bind: sockets of a service manager replace the default ones.
fn to_bind(given: Vec<SocketAddr>, handed_over: bool) -> Vec<SocketAddr> {
    let is_default = given == EVERYWHERE.map(|address| address.parse().expect("a constant"));
    if handed_over && is_default { Vec::new() } else { given }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl Settings {
    /// The sizes of the store.
    fn repository(&self, key: HashKey) -> RepositoryConfig {
        let Fixed { lifetime, max_swarms, max_peers_per_swarm, .. } = self.fixed;
        let mut config = RepositoryConfig::new(key).lifetime(Duration::from_secs(lifetime.into()));
        if let Some(most) = max_swarms {
            config = config.max_swarms(most.get());
        }
        if let Some(most) = max_peers_per_swarm {
            config = config.max_peers_per_swarm(most.get());
        }
        if let Some(most) = self.endpoints_per_address() {
            config = config.max_endpoints_per_address(most.get());
        }
        if let Some(most) = self.most_bytes() {
            config = config.max_bytes(most);
        }
        config
    }

    /// The limit on the memory of the store.
    fn most_bytes(&self) -> Option<usize> {
        match (self.fixed.max_bytes, self.fixed.repository) {
            (Some(most), _) => Some(most).filter(|most| *most > 0),
            (None, StoreChoice::Embedded(row)) if row.bounded.contains(BoundedBy::BYTES) => {
                // There is a limit also if the memory is unknown.
                let memory = programs::memory(|path| fs::read_to_string(path).ok());
                let half = memory.unwrap_or(1 << 30) / 2;
                Some(usize::try_from(half).unwrap_or(usize::MAX))
            }
            (None, _) => None,
        }
    }

    /// The most endpoints of one address in one torrent.
    fn endpoints_per_address(&self) -> Option<NonZero<usize>> {
        let listening = self.listening().unwrap_or_default();
        let is_alone = listening.iter().flatten().all(|address| address.ip().is_loopback())
            && self.live.http_proxy.is_empty();
        let unset = if is_alone { 0 } else { 8 };
        NonZero::new(self.fixed.endpoints_per_address.unwrap_or(unset))
    }

    /// Judges the whole set of settings, for `config`, the start and a reload, which has rules already. The
    /// start alone judges the ports, interfaces and rights of this machine.
    pub(crate) fn judge(&self, kept: &mut RunState, now: Option<&Rules>) -> Result<Judged, Box<dyn Error>> {
        let sizes = self.judge_without_files(kept.handed_over)?;
        let (mut server, store) = (self.server(kept, now)?, self.store(kept)?);
        let secret = self.fixed.connection_key.as_deref();
        let secret = secret.filter(|path| !kept.leaves_out(path, Unread::Fixed));
        let connection_key = secret.map(connection_key::read).transpose()?;
        let mut drawn_secret = None;
        if server.admin.is_some() {
            (server.admin_tokens, drawn_secret) = self.tokens(kept)?;
        }
        Ok(Judged { server, store, sizes, connection_key, drawn_secret })
    }

    /// Judges times, listening addresses and the sizes of the store, for which it reads no file.
    fn judge_without_files(&self, handed_over: bool) -> Result<RepositoryConfig, Box<dyn Error>> {
        self.times()?;
        let [of_udp, mut of_tcp, of_https] = self.listening()?.map(|given| to_bind(given, handed_over));
        of_tcp.extend(of_https.into_iter().chain(self.fixed.admin.0));
        for (addresses, is_tcp) in [(of_udp, false), (of_tcp, true)] {
            for (n, one) in addresses.iter().enumerate().filter(|(_, one)| one.port() > 0) {
                // Over TCP, a socket at all addresses of a family leaves none of them to another socket.
                let is_taken_by = |other: &&SocketAddr| {
                    let has_all = is_tcp && other.ip().is_unspecified() && other.is_ipv4() == one.is_ipv4();
                    *other == one || has_all && other.port() == one.port()
                };
                let wrong = match addresses[..n].iter().chain(&addresses[n + 1..]).find(is_taken_by) {
                    None => continue,
                    Some(other) if other == one => format!("{one} is given twice: leave one of them out"),
                    Some(all) => format!("{one} is a part of {all}: give one another port, or off"),
                };
                return Err(Contradiction(wrong).into());
            }
        }
        let sizes = self.repository(HashKey::from_os()?);
        self.fixed.repository.check(&sizes)?;
        Ok(sizes)
    }

    /// The store, with all but its sizes.
    fn store(&self, kept: &RunState) -> Result<StoreBuilder, Contradiction> {
        let Fixed { repository, redis, state, .. } = &self.fixed;
        match repository {
            StoreChoice::Embedded(_) if !redis.redis_url.is_empty() => Err(Contradiction(format!(
                "redis-url is given, and the repository is {}: give --repository redis, or leave the URL out",
                repository.name()
            ))),
            StoreChoice::Embedded(row) => Ok(StoreBuilder::Embedded(row)),
            // Each tracker would add peers and downloads of its own past to the shared ones.
            StoreChoice::Redis if state.is_some() => Err(Contradiction(
                "state is of no use with the repository redis, which outlives this tracker: leave --state out, and have the server write to \
                 its disk (appendonly yes)"
                    .into(),
            )),
            StoreChoice::Redis => Ok(StoreBuilder::Redis(Box::new(redis.servers(kept)?))),
        }
    }

    /// The addresses over UDP, HTTP and HTTPS.
    fn listening(&self) -> Result<[Vec<SocketAddr>; 3], Contradiction> {
        let Fixed { udp, http, https, .. } = &self.fixed;
        let mut listening = [const { Vec::new() }; 3];
        for ((name, given), addresses) in
            [("udp", udp), ("http", http), ("https", https)].into_iter().zip(&mut listening)
        {
            addresses.extend(given.iter().filter_map(|one| one.0));
            let is_wrong = if given.is_empty() && name != "https" {
                "has no address: give one, or off"
            } else if !addresses.is_empty() && addresses.len() < given.len() {
                "is off and has an address: leave one of them out"
            } else {
                continue;
            };
            return Err(Contradiction(format!("{name} {is_wrong}")));
        }
        match listening.iter().all(Vec::is_empty) {
            true => Err(Contradiction("udp, http and https are off: give one of them an address".into())),
            false => Ok(listening),
        }
    }

    /// The configuration of the server.
    fn server(&self, kept: &mut RunState, now: Option<&Rules>) -> Result<Config, Box<dyn Error>> {
        let Fixed { workers, http_connections, http_connections_per_address, repository, lifetime, .. } =
            &self.fixed;
        let mut config = Config::new();
        if let Some((certificate, key)) = self.certificate()?
            && ![certificate, key].iter().any(|path| kept.leaves_out(path, Unread::All))
        {
            config.tls = Some(Tls::load(certificate, key)?);
        }
        config.rules = self.rules(kept, now)?;
        // By a tenth of its lifetime a dead peer may be handed out for longer.
        config.sweep_period = Duration::from_secs(lifetime.div_ceil(10).into());
        config.connection_id_lifetime = Duration::from_secs(self.fixed.connection_id_lifetime.into());
        config.http_connections = http_connections.get();
        config.http_connections_per_address = http_connections_per_address.get();
        config.repository_name = Some(repository.name().to_owned());
        config.admin = self.fixed.admin.0;
        (config.admin_tls, config.admin_hosts) = (self.fixed.admin_tls, self.fixed.admin_host.clone());
        let listening = self.listening()?.map(|given| to_bind(given, kept.handed_over));
        [config.udp, config.http, config.https] = listening;
        config.xdp = self.fixed.xdp.settings(!self.fixed.udp.contains(&Listen(None)))?;
        config.udp_workers = workers.and_then(|workers| NonZero::new(workers.into()));
        Ok(config)
    }

    /// The tokens of the API: from the file, or a random one, with its secret.
    fn tokens(&self, kept: &RunState) -> Result<(Vec<Token>, Option<String>), Box<dyn Error>> {
        let Some(path) = &self.fixed.admin_tokens else {
            let (token, secret) = Token::draw(&[Scope::Read, Scope::Write])?;
            return Ok((vec![token], Some(secret)));
        };
        if kept.leaves_out(path, Unread::Fixed) {
            return Ok(Default::default());
        }
        let wrong =
            |problem: &dyn Display| Contradiction(format!("admin-tokens: {}: {problem}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        warn_of_others(path, "the tokens");
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).zip(1..);
        let lines = lines.filter(|(line, _)| !line.is_empty());
        let tokens =
            lines.map(|(line, n)| line.parse().map_err(|error| wrong(&format!("line {n}: {error}"))));
        let tokens: Vec<Token> = tokens.collect::<Result<_, _>>()?;
        if tokens.is_empty() {
            return Err(wrong(&"there is no token in it: give at least one, or leave the file out").into());
        }
        Ok((tokens, None))
    }

    /// The files of the certificate and its key.
    fn certificate(&self) -> Result<Option<(&Path, &Path)>, Contradiction> {
        match (&self.live.tls_certificate, &self.live.tls_key) {
            (Some(certificate), Some(key)) => {
                warn_of_others(key, "the key of the certificate");
                Ok(Some((certificate, key)))
            }
            (None, None) if self.listening()?[2].is_empty() && !self.fixed.admin_tls => Ok(None),
            _ => Err(Contradiction(
                "HTTPS needs both --tls-certificate and --tls-key: give the other too".into(),
            )),
        }
    }

    /// Reads the certificate again for the connections to come.
    pub(crate) fn renew_certificate(&self, kept: &RunState) -> Result<(), Box<dyn Error>> {
        let is_named = self.live.tls_certificate.is_some() || self.live.tls_key.is_some();
        match (&kept.tls, if is_named { self.certificate()? } else { None }) {
            (Some(tls), Some((certificate, key))) => {
                tls.reload(certificate, key)?;
                Log::certificate(tls);
            }
            (None, Some(_)) => {
                warn!("the tracker began without a certificate: one for HTTPS needs a restart")
            }
            (_, None) => {}
        }
        Ok(())
    }

    /// The rules of its answers. Reads the lists, except lists of `now` that have not changed.
    fn rules(&self, kept: &mut RunState, now: Option<&Rules>) -> Result<Rules, Box<dyn Error>> {
        let mut rules = self.times()?;
        let Live { allow_list, deny_list, passkeys, requests, requests_at_once, .. } = &self.live;
        (rules.default_want, rules.most_want) = (self.live.peers, self.live.most_peers.get().into());
        rules.seeders_for_links = self.live.seeders_for_links;
        if self.live.keep_downloads {
            rules.retention = Retention::KeepDownloaded;
        }
        rules.local_peers = self.live.local_peers;
        rules.http_ip_parameter = self.live.http_ip_parameter;
        // Clap checks this only on the command line.
        if allow_list.is_some() && deny_list.is_some() {
            let message = "allow-list and deny-list exclude each other: give one of them";
            return Err(Contradiction(message.into()).into());
        }
        let lists = [(ListKind::Allow, allow_list), (ListKind::Deny, deny_list)];
        let lists = lists.into_iter().filter_map(|(kind, path)| Some((kind, path.as_ref()?)));
        for (kind, path) in lists.filter(|(_, path)| !kept.leaves_out(path, Unread::All)) {
            let now = now.and_then(|now| now.access.as_ref());
            rules.access = Some(AccessList::load_after(now, kind, path)?);
        }
        if let Some(path) = passkeys.as_ref().filter(|path| !kept.leaves_out(path, Unread::All)) {
            warn_of_others(path, "the passkeys");
            let now = now.and_then(|now| now.passkeys.as_ref());
            rules.passkeys = Some(PasskeyList::load_after(now, kept.passkey_key, path)?);
        }
        if self.fixed.report_to.is_some() && passkeys.is_none() {
            let message = "report-to records members, and there are no passkeys: give both, or leave it out";
            return Err(Contradiction(message.into()).into());
        }
        rules.observer = now.and_then(|now| now.observer.clone());
        let refused = self.live.refused_networks.as_ref();
        if let Some(path) = refused.filter(|path| !kept.leaves_out(path, Unread::All)) {
            let now = now.and_then(|now| now.refused.as_ref());
            rules.refused = Some(NetworkList::load_after(now, (), path)?);
        }
        rules.rate = kept.limiter_of(*requests, *requests_at_once);
        rules.unlimited.clone_from(&self.live.unlimited);
        rules.http_proxies.clone_from(&self.live.http_proxy);
        if rules.http_proxies.iter().any(|network| network.prefix_len() == 0) {
            warn!("http-proxy contains all addresses, so every client can choose its own: name the proxies");
        }
        rules.http_proxy_header = self.live.http_proxy_header;
        Ok(rules)
    }

    /// The rules for the times that clients wait.
    pub(crate) fn times(&self) -> Result<Rules, Contradiction> {
        let Live {
            interval, longest_interval, jitter, min_interval, when_unavailable, retry_interval, ..
        } = self.live;
        let lifetime = self.fixed.lifetime;
        if longest_interval.is_some_and(|longest| longest < interval) {
            let message = format!(
                "longest-interval is shorter than the interval of {interval} s: give more, or leave it out"
            );
            return Err(Contradiction(message));
        }
        if min_interval.is_some_and(|min| min > interval) {
            let message = format!(
                "min-interval is longer than the interval of {interval} s: give less, or leave it out"
            );
            return Err(Contradiction(message));
        }
        let longest = u64::from(longest_interval.unwrap_or(interval));
        let longest = longest + longest * u64::from(jitter) / 100;
        if longest >= u64::from(lifetime) {
            return Err(Contradiction(format!(
                "clients that are told to announce after up to {longest} s (interval and jitter) would be forgotten after \
                 {lifetime} s: give a longer lifetime, or a shorter interval"
            )));
        }
        let mut rules = Rules::new();
        (rules.interval_secs, rules.jitter_percent) = (interval, jitter);
        (rules.longest_interval_secs, rules.min_interval_secs) = (longest_interval, min_interval);
        (rules.when_unavailable, rules.retry_interval_secs) = (when_unavailable, retry_interval);
        Ok(rules)
    }
}

/// The files that are left to the next start if this process lacks the right to read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Unread {
    /// At the start.
    None,
    /// In a running tracker, which may have given up that right: those that only a start reads.
    Fixed,
    /// In `config`.
    All,
}

/// Whether this process lacks the right to read a file.
pub(super) fn is_unreadable(path: &Path) -> bool {
    access(path, Access::READ_OK) == Err(Errno::ACCESS)
}

/// The result of a right set of settings.
pub(crate) struct Judged {
    pub(crate) server: Config,
    pub(crate) store: StoreBuilder,
    pub(crate) sizes: RepositoryConfig,
    /// From the file of the setting.
    pub(crate) connection_key: Option<ConnectionKey>,
    /// The secret of the random token.
    pub(crate) drawn_secret: Option<String>,
}

/// Keys, limits and certificates that stay when settings are read again.
pub(crate) struct RunState {
    passkey_key: HashKey,
    rate_key: HashKey,
    pub(crate) limiter: Option<((u32, u32), Arc<RateLimiter>)>,
    pub(crate) tls: Option<Tls>,
    /// Whether a service manager has handed over sockets for clients.
    pub(crate) handed_over: bool,
    pub(crate) unread: Unread,
}

impl RunState {
    /// The number of addresses above their rate for which there is room: 512 KiB, which stays in a core's
    /// cache. A slower address needs no room.
    const ADDRESSES: usize = 1 << 16;

    pub(crate) fn new(unread: Unread) -> Result<Self, ConfigError> {
        Ok(Self {
            passkey_key: HashKey::from_os()?,
            rate_key: HashKey::from_os()?,
            limiter: None,
            tls: None,
            handed_over: false,
            unread,
        })
    }

    /// Whether a file, of those that only a start reads or of all others, is left to the next start.
    pub(super) fn leaves_out(&self, path: &Path, of: Unread) -> bool {
        self.unread >= of && is_unreadable(path)
    }

    /// The present limiter, or a new one if its limits have changed.
    fn limiter_of(&mut self, rate: u32, burst: u32) -> Option<Arc<RateLimiter>> {
        if rate == 0 {
            self.limiter = None;
        } else if self.limiter.as_ref().is_none_or(|(limits, _)| *limits != (rate, burst)) {
            let limiter = RateLimiter::new(self.rate_key, rate, burst, Self::ADDRESSES);
            self.limiter = Some(((rate, burst), Arc::new(limiter)));
        }
        self.limiter.as_ref().map(|(_, limiter)| Arc::clone(limiter))
    }
}

/// A name of a row or of a family of the catalog, or the other one.
fn repository() -> impl TypedValueParser<Value = StoreChoice> {
    PossibleValuesParser::new(StoreChoice::values())
        .map(|name| StoreChoice::find(&name).expect("only names of these pass"))
}

#[cfg(test)]
mod tests;
