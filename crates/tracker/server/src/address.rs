//! The addresses that peers may have: other peers cannot reach every address that a request comes from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The distance from which an address can be reached, nearest first. A listener takes peers at addresses of
/// its own distance and of shorter ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The same machine.
    Loopback,
    /// One network: private (RFC 1918), shared (RFC 6598), link-local, unique local (RFC 4193) and site-local
    /// (RFC 3879) addresses.
    Private,
    /// The whole internet.
    Public,
}

impl Reach {
    /// The distance from which a peer at `ip` can be reached. `None` if no peer can be there: unspecified,
    /// multicast, broadcast and reserved addresses.
    pub fn of_peer(ip: IpAddr) -> Option<Self> {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, ..] = ip.octets();
                match a {
                    0 | 224.. => None,
                    127 => Some(Self::Loopback),
                    100 if b & 0xc0 == 64 => Some(Self::Private),
                    _ if ip.is_private() || ip.is_link_local() => Some(Self::Private),
                    _ => Some(Self::Public),
                }
            }
            IpAddr::V6(ip) if ip.is_unspecified() || ip.is_multicast() => None,
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Self::Loopback),
            IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local() => Some(Self::Private),
            IpAddr::V6(ip) => match ip.segments() {
                [0xfec0..=0xfeff, ..] => Some(Self::Private),
                // 6to4 (RFC 3056) leads to an IPv4 address.
                [0x2002, high, low, ..] => {
                    Self::of_peer(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into())
                }
                _ => Some(Self::Public),
            },
        }
    }

    /// The distance from which an address can be reached that a client claims. As [`of_peer`](Self::of_peer),
    /// but `None` for link-local addresses: every interface has one, and another machine needs its name.
    pub(crate) fn of_claim(ip: IpAddr) -> Option<Self> {
        let link_local = match ip.to_canonical() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        Self::of_peer(ip).filter(|_| !link_local)
    }

    /// The distance from which a socket that is bound to `ip` can be reached. A socket for all interfaces
    /// counts as public.
    pub fn of_listener(ip: IpAddr) -> Self {
        Self::of_peer(ip).unwrap_or(Self::Public)
    }
}

/// The treatment of peers at loopback and private addresses, out of reach of a public tracker's peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LocalPeers {
    /// Takes a peer if the listener that it announces to is at an address as near: loopback peers on a
    /// loopback address, private and loopback peers on a private address. Refuses all others.
    #[default]
    Near,
    /// Refuses all.
    Refuse,
    /// Takes all.
    Take,
    /// Lists all of them at these addresses, one per family, such as those of a router that forwards to this
    /// network. Refuses a peer if its family has no address.
    At {
        /// For IPv4 peers.
        v4: Option<Ipv4Addr>,
        /// For IPv6 peers.
        v6: Option<Ipv6Addr>,
    },
}

impl LocalPeers {
    /// The address at which a peer is listed that announces from `ip` to a socket of this reach. `None` if it
    /// is refused.
    pub fn listed(self, ip: IpAddr, listener: Reach) -> Option<IpAddr> {
        let (ip, reach) = (ip.to_canonical(), Reach::of_peer(ip)?);
        match self {
            _ if reach == Reach::Public => Some(ip),
            Self::Near => (reach <= listener && listener != Reach::Public).then_some(ip),
            Self::Refuse => None,
            Self::Take => Some(ip),
            Self::At { v4, .. } if ip.is_ipv4() => v4.map(IpAddr::V4),
            Self::At { v6, .. } => v6.map(IpAddr::V6),
        }
    }

    /// Whether `ip`, which `client` claims, counts at a listener of this reach: peers may be at it, and it
    /// can be reached from as far as the listener, and as the client behind a router or proxy.
    pub(crate) fn admits_claim(self, ip: IpAddr, client: IpAddr, listener: Reach) -> bool {
        let farthest = Reach::of_peer(client).max(Some(listener));
        let nearest = if self == Self::Take { Some(Reach::Loopback) } else { farthest };
        Reach::of_claim(ip) >= nearest && self.listed(ip, listener).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_of_this_machine_of_one_network_or_of_everywhere() {
        for (addresses, reach) in [
            (
                &["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "2002:7f00:1::1"][..],
                Some(Reach::Loopback),
            ),
            (
                &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.1.1"],
                Some(Reach::Private),
            ),
            (&["100.64.0.1", "100.127.255.255", "fe80::1", "fc00::1", "fdff::1"], Some(Reach::Private)),
            (&["fec0::1", "feff::1", "2002:a00:1::1", "2002:c0a8:101:1::1"], Some(Reach::Private)),
            (&["1.1.1.1", "100.63.0.1", "100.128.0.1", "172.32.0.1", "223.255.255.255"], Some(Reach::Public)),
            (&["192.0.2.1", "2001:db8::1", "2002:101:101::1", "2600::1", "::2"], Some(Reach::Public)),
            (&["0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"], None),
            (&["::", "ff02::1", "::ffff:224.0.0.1"], None),
        ] {
            for address in addresses {
                assert_eq!(Reach::of_peer(ip(address)), reach, "{address}");
            }
        }
        assert_eq!(Reach::of_listener(ip("0.0.0.0")), Reach::Public);
        assert_eq!(Reach::of_listener(ip("::")), Reach::Public);
        assert_eq!(Reach::of_listener(ip("192.168.0.1")), Reach::Private);
    }

    #[test]
    fn local_peers_are_taken_refused_or_replaced_by_rule() {
        use Reach::{Loopback, Private, Public};
        let at = LocalPeers::At { v4: Some(Ipv4Addr::new(203, 0, 113, 5)), v6: None };
        for (rule, address, listener, listed) in [
            (LocalPeers::Near, "127.0.0.1", Loopback, Some("127.0.0.1")),
            (LocalPeers::Near, "127.0.0.1", Private, Some("127.0.0.1")),
            (LocalPeers::Near, "127.0.0.1", Public, None),
            (LocalPeers::Near, "10.0.0.1", Loopback, None),
            (LocalPeers::Near, "10.0.0.1", Private, Some("10.0.0.1")),
            (LocalPeers::Near, "10.0.0.1", Public, None),
            (LocalPeers::Refuse, "127.0.0.1", Loopback, None),
            (LocalPeers::Take, "10.0.0.1", Public, Some("10.0.0.1")),
            (at, "10.0.0.1", Loopback, Some("203.0.113.5")),
            (at, "::ffff:10.0.0.1", Loopback, Some("203.0.113.5")),
            (at, "::1", Loopback, None),
        ] {
            assert_eq!(rule.listed(ip(address), listener), listed.map(ip), "{rule:?} {address} {listener:?}");
        }
        for rule in [LocalPeers::Near, LocalPeers::Refuse, LocalPeers::Take, at] {
            for listener in [Loopback, Private, Public] {
                assert_eq!(rule.listed(ip("192.0.2.1"), listener), Some(ip("192.0.2.1")));
                assert_eq!(rule.listed(ip("224.0.0.1"), listener), None, "no peer is there");
            }
        }
    }
}
