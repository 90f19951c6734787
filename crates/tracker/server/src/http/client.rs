//! The client of a request: the remote end of the connection, or the client that a proxy names.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use ipnet::IpNet;

use crate::Rules;

named! {
    /// The header in which a proxy names the client of a request.
    pub enum ProxyHeader {
        /// Each proxy appends the address from which it received the request.
        XForwardedFor = "X-Forwarded-For",
        /// One address, as of nginx.
        XRealIp = "X-Real-IP",
        /// One address, as of Cloudflare.
        CfConnectingIp = "CF-Connecting-IP",
        /// RFC 7239.
        Forwarded = "Forwarded",
    }
}

impl ProxyHeader {
    /// The elements of a line of the header; `None` if it cannot be read.
    fn elements(self, line: &str) -> Option<Vec<&str>> {
        match self {
            Self::Forwarded => unquoted(line, b','),
            _ => Some(line.split(',').collect()),
        }
    }

    /// The client in one of them.
    fn client(self, element: &str) -> Option<IpAddr> {
        let named = |pair: &str| {
            let (key, value) = pair.split_once('=')?;
            let value = value.trim();
            let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            key.trim().eq_ignore_ascii_case("for").then(|| address(bare))
        };
        match self {
            Self::Forwarded => unquoted(element, b';')?.into_iter().find_map(named)?,
            _ => address(element),
        }
    }
}

/// Splits a text at a sign outside of quotes; `None` if a quote does not end, or a client may have begun it.
fn unquoted(text: &str, sign: u8) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if !is_quoted => return None,
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if byte == sign && !is_quoted => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    (!is_quoted).then_some(parts)
}

/// Whether the operator has listed this address as a proxy's.
pub(super) fn is_proxy(ip: IpAddr, proxies: &[IpNet]) -> bool {
    proxies.iter().any(|network| network.contains(&ip))
}

/// The client of a request from `peer`: the last address in the header that is not a listed proxy, since the
/// addresses before it can be forged. If all are listed, the first is in the proxies' own network.
///
/// `None` if `peer` is a proxy and names no client: with the proxy's own address, all peers of a swarm would
/// be at the proxy.
pub(super) fn client_of(peer: IpAddr, headers: &HeaderMap, rules: &Rules) -> Option<IpAddr> {
    let (proxies, header) = (&rules.http_proxies, rules.http_proxy_header);
    if !is_proxy(peer, proxies) {
        return Some(peer);
    }
    let mut client = None;
    // Several lines of a header are one list, in their order.
    for line in headers.get_all(header.name()).iter().rev() {
        let line = String::from_utf8_lossy(line.as_bytes());
        let names = header.elements(&line)?.into_iter().rev();
        for name in names.map(str::trim).filter(|name| !name.is_empty()) {
            let ip = header.client(name)?;
            if !is_proxy(ip, proxies) {
                return Some(ip);
            }
            client = Some(ip);
        }
    }
    client
}

/// An address in the notations of proxies: some add the port, and brackets with IPv6.
fn address(name: &str) -> Option<IpAddr> {
    let bare = || name.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || name.parse::<SocketAddr>().ok().map(|address| address.ip());
    let ip = name.parse().ok().or_else(with_port).or_else(bare)?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, lines: &[&str]) -> Option<String> {
        client_by(ProxyHeader::XForwardedFor, peer, lines)
    }

    fn client_by(header: ProxyHeader, peer: &str, lines: &[&str]) -> Option<String> {
        let mut rules = Rules::new();
        rules.http_proxies = ["10.0.0.0/8", "2001:db8:ffff::/48"].map(|proxy| proxy.parse().unwrap()).into();
        rules.http_proxy_header = header;
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header.name(), line.parse().unwrap());
        }
        client_of(peer.parse().unwrap(), &headers, &rules).map(|ip| ip.to_string())
    }

    #[test]
    fn the_header_is_the_one_of_the_setting() {
        for (header, line, named) in [
            (ProxyHeader::XRealIp, "198.51.100.7", Some("198.51.100.7")),
            (ProxyHeader::CfConnectingIp, "2001:db8::7", Some("2001:db8::7")),
            (
                ProxyHeader::Forwarded,
                "for=forged, For=\"[2001:db8::7]:47011\";proto=http",
                Some("2001:db8::7"),
            ),
            (ProxyHeader::Forwarded, "for=198.51.100.7;by=10.0.0.2, for=10.1.1.1", Some("198.51.100.7")),
            (ProxyHeader::Forwarded, "for=198.51.100.7, proto=http", None),
            (ProxyHeader::Forwarded, "for=_hidden", None),
            (ProxyHeader::Forwarded, r#"for=198.51.100.7;host="x,for=203.0.113.9""#, Some("198.51.100.7")),
            (ProxyHeader::Forwarded, r#"host="x;for=203.0.113.9\",";for=198.51.100.7"#, Some("198.51.100.7")),
            (ProxyHeader::Forwarded, r#"for=198.51.100.7;host="x"#, None),
            (ProxyHeader::Forwarded, r#"for=203.0.113.9;x=", for=198.51.100.7;host="a\"b""#, None),
            (ProxyHeader::Forwarded, "for=unknown;for=203.0.113.9", None),
            (ProxyHeader::Forwarded, "198.51.100.7", None),
        ] {
            assert_eq!(client_by(header, "10.0.0.1", &[line]).as_deref(), named, "{line}");
            assert_eq!(client_by(header, "192.0.2.1", &[line]).as_deref(), Some("192.0.2.1"));
        }
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy_and_only_a_proxy_names_another() {
        let silent =
            [&[][..], &[""], &[" , "], &["unknown"], &["198.51.100.7, unknown"], &["_hidden, 10.1.1.1"]];
        let silent = silent.map(|lines| (lines, None));
        let naming = [
            (&["198.51.100.7"][..], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            (&["203.0.113.9, 198.51.100.7 ,10.1.1.1,2001:db8:ffff::2"], "198.51.100.7"),
            (&["forged", "198.51.100.7", "10.1.1.1"], "198.51.100.7"),
            (&["not even text \u{e9}", "198.51.100.7"], "198.51.100.7"),
            (&["not even text \u{e9}, 198.51.100.7"], "198.51.100.7"),
            (&["198.51.100.7, ,", ""], "198.51.100.7"),
            (&["198.51.100.7:50123"], "198.51.100.7"),
            (&["::ffff:198.51.100.7"], "198.51.100.7"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["[2001:db8::7]"], "2001:db8::7"),
            (&["[2001:db8::7]:50123"], "2001:db8::7"),
            (&["10.9.9.9, 10.1.1.1"], "10.9.9.9"),
        ];
        for (lines, named) in naming.map(|(lines, named)| (lines, Some(named))).into_iter().chain(silent) {
            assert_eq!(client("10.0.0.1", lines).as_deref(), named, "{lines:?}");
            assert_eq!(client("2001:db8:ffff::1", lines).as_deref(), named, "{lines:?}");
            assert_eq!(client("192.0.2.1", lines).as_deref(), Some("192.0.2.1"), "{lines:?}");
        }
    }
}
