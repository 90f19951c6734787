//! The endpoint at which a peer listens, and its compact forms.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use crate::Error;

/// The address families that peers of one swarm keep apart (BEP 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4, 6 bytes per endpoint.
    V4,
    /// IPv6, 18 bytes per endpoint.
    V6,
}

/// The IP address and port at which a peer listens: the identity of the peer in a swarm.
///
/// An endpoint is always canonical: an IPv4-mapped IPv6 address becomes the IPv4 address, and port 0 is
/// rejected. Endpoints are ordered by family, then by the bytes of the compact form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// An IPv4 endpoint.
    V4(CompactV4),
    /// An IPv6 endpoint that is not IPv4-mapped.
    V6(CompactV6),
}

/// An IPv4 endpoint in the compact form of BEP 23: 4 bytes of address, 2 of port, network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactV4([u8; 6]);

/// An IPv6 endpoint in the compact form of BEP 7: 16 bytes of address, 2 of port, network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactV6([u8; 18]);

impl Endpoint {
    /// Returns the endpoint of `ip` and `port`.
    ///
    /// # Errors
    /// [`Error::PortZero`] if `port` is 0.
    #[inline]
    pub const fn new(ip: IpAddr, port: u16) -> Result<Self, Error> {
        if port == 0 {
            return Err(Error::PortZero);
        }
        Ok(match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let ([a, b, c, d], [p, q]) = (ip.octets(), port.to_be_bytes());
                Self::V4(CompactV4([a, b, c, d, p, q]))
            }
            IpAddr::V6(ip) => {
                let mut bytes = [0; 18];
                let [address @ .., high, low] = &mut bytes;
                (*address, [*high, *low]) = (ip.octets(), port.to_be_bytes());
                Self::V6(CompactV6(bytes))
            }
        })
    }

    /// Returns the address family.
    pub const fn family(&self) -> Family {
        match self {
            Self::V4(_) => Family::V4,
            Self::V6(_) => Family::V6,
        }
    }

    /// Returns the IP address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::V4(compact) => IpAddr::V4(compact.ip()),
            Self::V6(compact) => IpAddr::V6(compact.ip()),
        }
    }

    /// Returns the port, which is never 0.
    pub fn port(&self) -> u16 {
        let compact = self.as_bytes();
        let [.., high, low] = *compact else { unreachable!("compact forms are 6 or 18 bytes") };
        u16::from_be_bytes([high, low])
    }

    /// Returns the compact form: 6 bytes for IPv4, 18 for IPv6, in network order.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::V4(compact) => compact.as_bytes(),
            Self::V6(compact) => compact.as_bytes(),
        }
    }
}

macro_rules! compact {
    ($name:ident, $family:ident, $len:literal, $ip:ty, $address:literal) => {
        impl $name {
            /// The length in bytes.
            pub const LEN: usize = $len;

            /// Returns the bytes in network order.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// Returns the IP address.
            pub fn ip(&self) -> $ip {
                let (address, _) = self.0.split_first_chunk::<$address>().expect("longer than an address");
                <$ip>::from(*address)
            }
        }

        impl AsRef<[u8; $len]> for $name {
            fn as_ref(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl From<$name> for Endpoint {
            fn from(compact: $name) -> Self {
                Self::$family(compact)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Endpoint::from(*self).fmt(f)
            }
        }
    };
}

compact!(CompactV4, V4, 6, Ipv4Addr, 4);
compact!(CompactV6, V6, 18, Ipv6Addr, 16);

/// Reads the compact form of BEP 23; [`Error::PortZero`] if the port is 0.
impl TryFrom<[u8; 6]> for CompactV4 {
    type Error = Error;

    fn try_from(bytes: [u8; 6]) -> Result<Self, Error> {
        if bytes[4..] == [0, 0] { Err(Error::PortZero) } else { Ok(Self(bytes)) }
    }
}

/// Reads the compact form of BEP 7, also of a mapped IPv4 address; [`Error::PortZero`] if the port is 0.
impl TryFrom<[u8; 18]> for Endpoint {
    type Error = Error;

    fn try_from(bytes: [u8; 18]) -> Result<Self, Error> {
        let (address, port) = bytes.split_first_chunk::<16>().expect("18 bytes hold 16");
        Self::new(IpAddr::from(*address), u16::from_be_bytes([port[0], port[1]]))
    }
}

/// Reads the compact form of BEP 23; [`Error::PortZero`] if the port is 0.
impl TryFrom<[u8; 6]> for Endpoint {
    type Error = Error;

    fn try_from(bytes: [u8; 6]) -> Result<Self, Error> {
        CompactV4::try_from(bytes).map(Self::V4)
    }
}

impl TryFrom<SocketAddr> for Endpoint {
    type Error = Error;

    fn try_from(address: SocketAddr) -> Result<Self, Error> {
        Self::new(address.ip(), address.port())
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(endpoint: Endpoint) -> Self {
        Self::new(endpoint.ip(), endpoint.port())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SocketAddr::from(*self).serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SocketAddr::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// `ip:port`, as [`SocketAddr`] reads it.
impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse::<SocketAddr>()?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn compact_forms_are_those_of_bep_23_and_bep_7() {
        assert_eq!(endpoint("10.1.2.3:6881").as_bytes(), [10, 1, 2, 3, 0x1a, 0xe1]);
        let v6 = endpoint("[2001:db8::7]:443");
        assert_eq!(v6.as_bytes()[..4], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(v6.as_bytes()[15..], [7, 1, 0xbb]);
        assert_eq!(<[u8; 18]>::try_from(v6.as_bytes()).unwrap().try_into(), Ok(v6));
        assert_eq!(Endpoint::try_from([10, 1, 2, 3, 0x1a, 0xe1]), Ok(endpoint("10.1.2.3:6881")));
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_ipv4_address() {
        let mapped = endpoint("[::ffff:10.1.2.3]:6881");
        assert_eq!(mapped, endpoint("10.1.2.3:6881"));
        assert_eq!(mapped.family(), Family::V4);
        let mut bytes = [0; 18];
        bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 1, 2, 3, 0x1a, 0xe1]);
        assert_eq!(Endpoint::try_from(bytes), Ok(mapped));
    }

    #[test]
    fn port_0_is_refused_in_every_form() {
        assert_eq!(Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), Err(Error::PortZero));
        assert_eq!(Endpoint::try_from([1, 2, 3, 4, 0, 0]), Err(Error::PortZero));
        assert_eq!(Endpoint::try_from([0; 18]), Err(Error::PortZero));
        assert_eq!("1.2.3.4:0".parse::<Endpoint>(), Err(Error::PortZero));
    }

    #[test]
    fn ip_and_port_come_back() {
        for text in ["1.2.3.4:1", "255.255.255.255:65535", "[::1]:6969", "[fe80::1]:80"] {
            assert_eq!(endpoint(text).to_string(), text);
            assert_eq!(SocketAddr::from(endpoint(text)), text.parse().unwrap());
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_is_ip_and_port() {
        let json = serde_json::to_string(&endpoint("1.2.3.4:80")).unwrap();
        assert_eq!(json, "\"1.2.3.4:80\"");
        assert_eq!(serde_json::from_str::<Endpoint>(&json).unwrap(), endpoint("1.2.3.4:80"));
        assert!(serde_json::from_str::<Endpoint>("\"1.2.3.4:0\"").is_err());
    }
}
