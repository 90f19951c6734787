//! `swarmkeep serve`: a tracker over any store of the catalog.

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    num::NonZero,
    time::Duration,
};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use swarmkeep::{
    HashKey, RepositoryConfig, Retention,
    catalog::{self, Implementation},
};
use swarmkeep_tracker::{Config, IpNet, Rules, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

/// Runs a BitTorrent tracker over UDP (BEP 15) and HTTP (BEP 3), until SIGINT or SIGTERM.
///
/// With neither --udp nor --http it listens at port 6969 of all interfaces for both; with one of them, for that one alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to listen on over UDP, as 0.0.0.0:6969 or [::]:6969; may be repeated. A machine with several addresses in one
    /// network is to name each, or its answers may leave from another than was asked.
    #[arg(long, value_name = "ADDR")]
    udp: Vec<SocketAddr>,

    /// Address and port to listen on over HTTP; may be repeated. Clients announce to http://ADDR/announce.
    #[arg(long, value_name = "ADDR")]
    http: Vec<SocketAddr>,

    /// Network of proxies whose X-Forwarded-For is believed, as 192.0.2.0/24, or one address; may be repeated.
    #[arg(long, value_name = "NET", value_parser = network)]
    http_proxy: Vec<IpNet>,

    /// Believe the address that an HTTP client gives in `ip=`. Anyone can then send peers to anybody: only among friends.
    #[arg(long)]
    http_ip_parameter: bool,

    /// How many HTTP connections may be open; whoever comes when all are takes the place of one that has waited long.
    #[arg(long, value_name = "N", default_value = "4096")]
    http_connections: usize,

    /// How many HTTP connections one IPv4 address, or 64-bit network of IPv6, may have; proxies may have any number.
    #[arg(long, value_name = "N", default_value = "64")]
    http_connections_an_address: usize,

    /// How many threads answer over UDP, 1 to 256, each with sockets of its own [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,

    /// Which store keeps the swarms.
    #[arg(long, value_name = "NAME", default_value = "packed", value_parser = repository())]
    repository: &'static Implementation,

    /// How long a peer is remembered after its last announce, as 2700, 2700s, 45m or 1h.
    #[arg(long, value_name = "TIME", default_value = "45m", value_parser = seconds)]
    lifetime: u32,

    /// How long clients are told to wait between announces; shorter than the lifetime.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = seconds)]
    interval: u32,

    /// Keep torrents without peers for as long as the tracker runs, for the number of their downloads.
    #[arg(long)]
    keep_downloads: bool,

    /// How much to log to standard error; `debug` tells about strangers' errors too.
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "info",
        value_parser = PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"])
            .map(|level| level.parse::<LevelFilter>().expect("each of them is a level")),
    )]
    log: LevelFilter,
}

/// Serves until it is told to stop.
pub(crate) fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let Args {
        udp,
        http,
        http_proxy,
        http_ip_parameter,
        http_connections,
        http_connections_an_address,
        workers,
        repository,
        lifetime,
        interval,
        keep_downloads,
        log,
    } = args;
    tracing_subscriber::fmt().with_max_level(log).with_writer(io::stderr).init();
    if interval >= lifetime {
        crate::refuse(format!(
            "clients that announce every {interval} seconds would be forgotten after {lifetime}: \
             give a --lifetime longer than the --interval"
        ));
    }
    let config = RepositoryConfig::new(HashKey::from_os()?).lifetime(Duration::from_secs(lifetime.into()));
    let store = repository.build(&config).unwrap_or_else(|error| crate::refuse(error.to_string()));

    let retention = if keep_downloads { Retention::KeepDownloaded } else { Retention::DropEmpty };
    // By a tenth of its lifetime a dead peer may be handed out for longer.
    let sweep_period = Duration::from_secs(lifetime.div_ceil(10).into());
    let rules =
        Rules::new().interval_secs(interval).retention(retention).http_ip_parameter(http_ip_parameter);
    let rules = http_proxy.into_iter().fold(rules, Rules::http_proxy);
    let config = Config::new().rules(rules).sweep_period(sweep_period);
    let config = udp.into_iter().fold(config, Config::udp);
    let config = http
        .into_iter()
        .fold(config, Config::http)
        .http_connections(http_connections)
        .http_connections_an_address(http_connections_an_address);
    let config = workers
        .and_then(|workers| NonZero::new(workers.into()))
        .into_iter()
        .fold(config, Config::udp_workers);

    allow_all_files_that_may_be();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        // Before anyone can read that we listen and then tell us to stop.
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let server = Server::bind(&config, store)?;
        let (udp, http) = (server.udp_addresses()?, server.http_addresses()?);
        let listed = [("udp", udp), ("http", http)].map(|(protocol, addresses)| {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            (!addresses.is_empty()).then(|| format!("{protocol} {}", addresses.join(", ")))
        });
        let listed: Vec<_> = listed.into_iter().flatten().collect();
        eprintln!("listening on {}; repository {}", listed.join(", "), repository.name);
        server
            .run(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            })
            .await;
        Ok(())
    })
}

/// Each HTTP connection is a file, and what a process may open unless it asks (1,024 on most systems) is less than it could.
fn allow_all_files_that_may_be() {
    let limit = getrlimit(Resource::Nofile);
    // Refused, it goes on with fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// One of the catalog's names.
fn repository() -> impl TypedValueParser<Value = &'static Implementation> {
    PossibleValuesParser::new(catalog::ALL.iter().map(|row| row.name))
        .map(|name| catalog::find(&name).expect("only names of the catalog pass"))
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse()
        .or_else(|_| address())
        .map_err(|_| "expected a network or address, such as 192.0.2.0/24 or ::1".into())
}

/// A time in whole seconds, minutes or hours.
fn seconds(text: &str) -> Result<u32, String> {
    let unit = match text.as_bytes().last() {
        Some(b'h') => 3600,
        Some(b'm') => 60,
        _ => 1,
    };
    let number = text.strip_suffix(['s', 'm', 'h']).unwrap_or(text);
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    seconds
        .filter(|&seconds| seconds > 0)
        .ok_or_else(|| "expected a time above 0, such as 2700, 2700s, 45m or 1h".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_minutes_or_hours() {
        assert_eq!(seconds("2700"), Ok(2700));
        assert_eq!(seconds("2700s"), Ok(2700));
        assert_eq!(seconds("45m"), Ok(2700));
        assert_eq!(seconds("1h"), Ok(3600));
        for wrong in ["", "0", "0m", "-1", "m", "1d", "1.5h", "4294967295h", "45 m", "1hm"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
