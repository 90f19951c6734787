//! Addresses that belong together: one remote party may have many.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network of one subscriber: an IPv4 address, or an IPv6 network of 64 bits.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    masked(ip, 32, 64)
}

/// The network of one organization: 256 IPv4 addresses, or an IPv6 network of 48 bits.
pub(crate) fn site(ip: IpAddr) -> IpAddr {
    masked(ip, 24, 48)
}

/// The bits of the IPv6 networks that one subscriber may have, from the smallest network to the largest.
pub(crate) const SIZES: [u32; 3] = [64, 56, 48];

/// Whether both are the same IPv4 address, or in the same IPv6 network of `bits` bits.
pub(crate) fn are_neighbours(one: IpAddr, other: IpAddr, bits: u32) -> bool {
    masked(one, 32, bits) == masked(other, 32, bits)
}

/// The first bits of an IPv4 address, or of an IPv6 address.
fn masked(ip: IpAddr, v4: u32, v6: u32) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & !u32::MAX.unbounded_shr(v4)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::MAX.unbounded_shr(v6)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_an_ipv4_address_or_an_ipv6_network() {
        let sizes = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|ip| ip.parse().unwrap());
            SIZES.map(|bits| are_neighbours(one, other, bits))
        };
        assert_eq!(sizes("192.0.2.1", "::ffff:192.0.2.1"), [true; 3]);
        assert_eq!(sizes("192.0.2.1", "192.0.2.2"), [false; 3]);
        assert_eq!(sizes("2001:db8::1", "2001:db8::2"), [true; 3]);
        assert_eq!(sizes("2001:db8::1", "2001:db8:0:ff::"), [false, true, true]);
        assert_eq!(sizes("2001:db8::1", "2001:db8:0:100::"), [false, false, true]);
        assert_eq!(sizes("2001:db8::1", "2001:db8:1::"), [false; 3]);
        assert_eq!(sizes("192.0.2.1", "::"), [false; 3]);
    }
}
