//! Which addresses belong together: one stranger may have many.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What one subscriber has: an IPv4 address, or an IPv6 network of 64 bits.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    masked(ip, 32, 64)
}

/// What one organization has: 256 IPv4 addresses, or an IPv6 network of 48 bits.
pub(crate) fn site(ip: IpAddr) -> IpAddr {
    masked(ip, 24, 48)
}

/// How many of `others` are in the [`network`] of `ip`, in its network of 28 or 56 bits, and in its [`site`].
pub(crate) fn neighbours(ip: IpAddr, others: impl Iterator<Item = IpAddr>) -> [usize; 3] {
    const BITS: [(u32, u32); 3] = [(32, 64), (28, 56), (24, 48)];
    others.fold([0; 3], |mut counts, other| {
        for (count, (v4, v6)) in counts.iter_mut().zip(BITS) {
            *count += usize::from(masked(other, v4, v6) == masked(ip, v4, v6));
        }
        counts
    })
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
    fn neighbours_are_counted_in_networks_of_three_sizes() {
        let count = |ip: &str, others: &[&str]| {
            neighbours(ip.parse().unwrap(), others.iter().map(|other| other.parse().unwrap()))
        };
        let v4 = ["192.0.2.1", "192.0.2.14", "192.0.2.200", "192.0.3.1", "::ffff:192.0.2.1"];
        assert_eq!(count("192.0.2.1", &v4), [2, 3, 4]);
        let v6 = ["2001:db8::1", "2001:db8::2", "2001:db8:0:ff::", "2001:db8:0:100::", "2001:db8:1::", "::1"];
        assert_eq!(count("2001:db8::1", &v6), [2, 3, 4]);
        assert_eq!(count("192.0.2.1", &["::"]), [0; 3]);
    }
}
