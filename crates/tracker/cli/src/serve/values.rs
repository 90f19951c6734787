//! Parsers of the values of settings.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use swarmkeep_bittorrent::programs::bytes;
use swarmkeep_tracker::{ConnectionIds, IpNet, LocalPeers, Reach, WhenUnavailable};
use tracing_subscriber::filter::LevelFilter;

use crate::units::{named, time};

pub(super) fn level() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"])
        .map(|level| level.parse().expect("each of them is a level"))
}

/// An address to listen at, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listen(pub(super) Option<SocketAddr>);

pub(super) fn listen(text: &str) -> Result<Listen, String> {
    let canonical = |address| match address {
        SocketAddr::V6(v6) if let Some(v4) = v6.ip().to_ipv4_mapped() => (v4, v6.port()).into(),
        address => address,
    };
    let address = (text != "off").then(|| text.parse().map(canonical)).transpose();
    let wrong = "expected an address and port, as 127.0.0.1:6970 or [::]:6970, or off";
    address.map(Listen).map_err(|_| wrong.into())
}

/// A network, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    let network: IpNet = text
        .parse()
        .or_else(|_| address())
        .map_err(|_| "expected a network or address, such as 192.0.2.0/24 or ::1")?;
    // Clients over IPv4 are at IPv4 addresses, whatever socket receives them.
    let mapped = network.prefix_len().checked_sub(96).filter(|_| network.addr().to_canonical().is_ipv4());
    let mapped = mapped.and_then(|len| IpNet::new(network.addr().to_canonical(), len).ok());
    Ok(mapped.filter(|_| network.addr().is_ipv6()).unwrap_or(network))
}

pub(super) fn local_peers(text: &str) -> Result<LocalPeers, String> {
    match text {
        "near" => return Ok(LocalPeers::Near),
        "refuse" => return Ok(LocalPeers::Refuse),
        "take" => return Ok(LocalPeers::Take),
        _ => {}
    }
    let (mut v4, mut v6): (Option<Ipv4Addr>, Option<Ipv6Addr>) = (None, None);
    for address in text.split(',') {
        let address = IpAddr::from_str(address.trim()).map(|address| address.to_canonical());
        let is_wrong = match address {
            Ok(address) if Reach::of_peer(address).is_none_or(|reach| reach == Reach::Loopback) => true,
            Ok(IpAddr::V4(address)) => v4.replace(address).is_some(),
            Ok(IpAddr::V6(address)) => v6.replace(address).is_some(),
            Err(_) => true,
        };
        if is_wrong {
            return Err(
                "expected near, refuse, take, or an address for each family, as 203.0.113.5,2001:db8::5"
                    .into(),
            );
        }
    }
    Ok(LocalPeers::At { v4, v6 })
}

/// A time in whole seconds.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    let whole = time(text).ok().filter(|time| !time.is_zero() && time.subsec_nanos() == 0);
    whole
        .and_then(|time| time.as_secs().try_into().ok())
        .ok_or_else(|| "expected a time above 0, such as 2700, 45m or 1h30m; units are s, m, h, d".into())
}

/// A lifetime of connection ids.
pub(super) fn id_lifetime(text: &str) -> Result<u32, String> {
    let is_allowed = |secs: &u32| {
        (ConnectionIds::LIFETIME_SECS..=ConnectionIds::LONGEST_LIFETIME_SECS).contains(&u64::from(*secs))
    };
    let allowed = seconds(text).ok().filter(is_allowed);
    allowed.ok_or_else(|| "expected a time from 2m to 16m; units are s, m".into())
}

/// A number of bytes of memory.
pub(super) fn most_bytes(text: &str) -> Result<usize, String> {
    if text == "0" {
        return Ok(0);
    }
    bytes(text)?.get().try_into().map_err(|_| "expected no more bytes than can be addressed".into())
}

/// The answer to announces while the store cannot be reached.
pub(super) fn unavailable() -> impl TypedValueParser<Value = WhenUnavailable> {
    named([WhenUnavailable::Error, WhenUnavailable::Empty], |answer| match answer {
        WhenUnavailable::Error => "error",
        WhenUnavailable::Empty => "empty",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_mapped_addresses_are_those_of_ipv4() {
        for (text, shown) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.1", "192.0.2.1/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(network(text).map(|network| network.to_string()).as_deref(), Ok(shown));
        }
        assert!(network("192.0.2.0/33").is_err());
    }

    #[test]
    fn local_peers_are_a_rule_or_addresses() {
        let at = |v4: Option<&str>, v6: Option<&str>| {
            Ok(LocalPeers::At { v4: v4.map(|ip| ip.parse().unwrap()), v6: v6.map(|ip| ip.parse().unwrap()) })
        };
        assert_eq!(local_peers("near"), Ok(LocalPeers::Near));
        assert_eq!(local_peers("203.0.113.5"), at(Some("203.0.113.5"), None));
        assert_eq!(local_peers("2001:db8::5, 203.0.113.5"), at(Some("203.0.113.5"), Some("2001:db8::5")));
        let wrong = "|far|203.0.113.5,203.0.113.6|203.0.113.5,|203.0.113.5:80|224.0.0.1|127.0.0.1|::";
        for wrong in wrong.split('|').chain(["::ffff:1.2.3.4,1.2.3.4"]) {
            assert!(local_peers(wrong).is_err(), "{wrong}");
        }
    }
}
