//! The part of an address that counts as one client.

use std::net::IpAddr;

/// An IPv4 address, or the 64 bits of an IPv6 address that its network gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Block {
    V4(u32),
    V6(u64),
}

impl Block {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.to_bits()),
            IpAddr::V6(ip) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }
}
