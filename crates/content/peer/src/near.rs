//! Addresses of this machine and of its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address is one of this machine or of its network.
pub(crate) fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_near_v4(ip),
        IpAddr::V6(ip) => match (ip.segments(), ip.octets()) {
            // NAT64 (RFC 6052), and 6to4 (RFC 3056): an IPv4 address is in them.
            ([0x64, 0xff9b, 0, 0, 0, 0, ..], [.., a, b, c, d]) => is_near_v4(Ipv4Addr::new(a, b, c, d)),
            ([0x2002, ..], [_, _, a, b, c, d, ..]) => is_near_v4(Ipv4Addr::new(a, b, c, d)),
            // NAT64 of one network (RFC 8215).
            ([0x64, 0xff9b, 1, ..], _) => true,
            _ => is_near_v6(ip),
        },
    }
}

fn is_near_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    // 100.64.0.0/10 is between a provider and its customers (RFC 6598).
    let is_shared = a == 100 && b & 0xc0 == 64;
    ip.is_loopback() || ip.is_private() || ip.is_link_local() || a == 0 || is_shared
}

fn is_near_v6(ip: Ipv6Addr) -> bool {
    // fec0::/10 were the addresses of a site (RFC 3879).
    let is_of_a_site = ip.segments()[0] & 0xffc0 == 0xfec0;
    ip.is_unique_local()
        || ip.is_unicast_link_local()
        || is_of_a_site
        // Loopback, and IPv4 in the form that was given up (RFC 4291).
        || matches!(ip.segments(), [0, 0, 0, 0, 0, 0, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_its_network_are_near() {
        let near = "127.0.0.1 10.0.0.1 192.168.1.1 172.16.0.1 169.254.169.254 0.0.0.0 0.1.2.3 100.64.0.1 \
            100.127.255.255 ::1 :: ::7f00:1 fe80::1 fec0::1 fd00::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 \
            64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 2002:7f00:1::1 2002:a00:1:: 2002:c0a8:101:1::1";
        for near in near.split(' ') {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in "192.0.2.1 8.8.8.8 100.128.0.1 2001:db8::1 64:ff9b::8.8.8.8 2002:808:808::1".split(' ') {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }
}
