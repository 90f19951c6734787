//! Frames of UDP datagrams: Ethernet, IPv4 or IPv6, and UDP, without options.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

/// The addresses of a datagram on its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The hardware addresses of the receiver and of the sender.
    pub hardware: [[u8; 6]; 2],
    /// The sender.
    pub from: SocketAddr,
    /// The receiver. Both are of one family; [`read`](Self::read) gives no IPv4-mapped address.
    pub to: SocketAddr,
}

const ETHERNET: usize = 14;
const UDP: usize = 8;

impl Path {
    /// The bytes of the longest headers, those over IPv6.
    pub const LONGEST_HEADERS: usize = ETHERNET + 40 + UDP;

    /// Reads the headers of a frame, and returns the range of its payload, too. A frame may end with padding.
    ///
    /// `None` if the frame is anything but a whole UDP datagram: a fragment, or one with a VLAN tag, with IP
    /// options or extension headers, with lengths that do not agree, or with an IPv4-mapped address over
    /// IPv6. Checksums are not verified: a virtual device delivers frames without them. Does not allocate,
    /// and costs some nanoseconds for a payload of any length.
    pub fn read(frame: &[u8]) -> Option<(Self, Range<usize>)> {
        let (ethernet, rest) = frame.split_first_chunk::<ETHERNET>()?;
        let [receiver, sender] =
            [0, 6].map(|at| <[u8; 6]>::try_from(&ethernet[at..at + 6]).expect("6 bytes"));
        let (ips, ip_len, udp_len): ([IpAddr; 2], usize, usize) = match ethernet[12..] {
            [0x08, 0x00] => {
                let (ip, _) = rest.split_first_chunk::<20>()?;
                let is_plain = ip[0] == 0x45 && ip[6] & 0x3f == 0 && ip[7] == 0 && ip[9] == 17;
                let all = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                let address =
                    |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).expect("4 bytes"));
                is_plain.then_some(())?;
                ([12, 16].map(|at| address(at).into()), 20, all.checked_sub(20)?)
            }
            [0x86, 0xdd] => {
                let (ip, _) = rest.split_first_chunk::<40>()?;
                let is_plain = ip[0] >> 4 == 6 && ip[6] == 17;
                let address =
                    |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).expect("16 bytes"));
                let ips = [8, 24].map(address);
                (is_plain && ips.iter().all(|ip| ip.to_ipv4_mapped().is_none())).then_some(())?;
                (ips.map(IpAddr::from), 40, usize::from(u16::from_be_bytes([ip[4], ip[5]])))
            }
            _ => return None,
        };
        let udp = rest.get(ip_len..)?.get(..udp_len)?;
        let (header, _) = udp.split_first_chunk::<UDP>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        (usize::from(word(4)) == udp_len).then_some(())?;
        let [from, to] = [(ips[0], word(0)), (ips[1], word(2))].map(SocketAddr::from);
        let start = ETHERNET + ip_len + UDP;
        Some((Self { hardware: [receiver, sender], from, to }, start..start + udp_len - UDP))
    }

    /// Returns the path of an answer.
    #[must_use]
    pub const fn back(&self) -> Self {
        let Self { hardware: [receiver, sender], from, to } = *self;
        Self { hardware: [sender, receiver], from: to, to: from }
    }

    /// Returns the number of bytes before the payload.
    pub const fn headers(&self) -> usize {
        if self.from.is_ipv4() { ETHERNET + 20 + UDP } else { Self::LONGEST_HEADERS }
    }

    /// Writes the headers and checksums of a frame, and returns its length. The payload, of `payload` bytes,
    /// must be in its place after the [`headers`](Self::headers) before. Reads the payload once, for the
    /// checksum.
    ///
    /// # Panics
    /// If the frame is shorter than the headers and the payload, if these exceed 64 KiB, or if `from` and
    /// `to` are of different families.
    pub fn write(&self, frame: &mut [u8], payload: usize) -> usize {
        let (start, len) = (self.headers(), self.headers() + payload);
        let frame = &mut frame[..len];
        let [receiver, sender] = self.hardware;
        frame[..6].copy_from_slice(&receiver);
        frame[6..12].copy_from_slice(&sender);
        let udp_len = u16::try_from(UDP + payload).expect("a datagram of less than 64 KiB").to_be_bytes();
        let (ip, udp) = (ETHERNET, start - UDP);
        // The start of the addresses, which the UDP checksum covers, too.
        let addresses = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame[12..14].copy_from_slice(&[0x08, 0x00]);
                let all = u16::try_from(len - ETHERNET).expect("as above").to_be_bytes();
                // May not be fragmented, as from sockets.
                frame[ip..ip + 12].copy_from_slice(&[0x45, 0, all[0], all[1], 0, 0, 0x40, 0, HOPS, 17, 0, 0]);
                frame[ip + 12..ip + 16].copy_from_slice(&from.octets());
                frame[ip + 16..udp].copy_from_slice(&to.octets());
                let checksum = checksum(&frame[ip..udp], 0);
                frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_ne_bytes());
                ip + 12
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                frame[ip..ip + 8].copy_from_slice(&[0x60, 0, 0, 0, udp_len[0], udp_len[1], 17, HOPS]);
                frame[ip + 8..ip + 24].copy_from_slice(&from.octets());
                frame[ip + 24..udp].copy_from_slice(&to.octets());
                ip + 8
            }
            _ => panic!("a datagram does not change its family"),
        };
        frame[udp..udp + 2].copy_from_slice(&self.from.port().to_be_bytes());
        frame[udp + 2..udp + 4].copy_from_slice(&self.to.port().to_be_bytes());
        frame[udp + 4..udp + 6].copy_from_slice(&udp_len);
        frame[udp + 6..udp + 8].fill(0);
        let protocol = u64::from(17_u16.to_be()) + u64::from(u16::from_ne_bytes(udp_len));
        // 0 would mean that there is no checksum.
        let checksum = match checksum(&frame[addresses..], protocol) {
            0 => u16::MAX,
            other => other,
        };
        frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_ne_bytes());
        len
    }
}

/// The hops that systems allow by default.
const HOPS: u8 = 64;

/// Returns the checksum of `bytes` (RFC 1071) and of other words with this `sum`, in the order of memory.
fn checksum(bytes: &[u8], sum: u64) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u128::from(u64::from_ne_bytes(*word)));
    let mut sum = words.sum::<u128>() + u128::from(sum);
    while sum > u128::from(u16::MAX) {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
