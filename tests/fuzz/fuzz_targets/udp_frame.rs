//! Any frame of a link, also one that lies about its lengths: nothing panics, and a payload is inside of its
//! frame. Headers that are written read as the same, and their checksums are right.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use swarmkeep_xdp::Path;

fuzz_target!(|frame: &[u8]| {
    if let Some((path, payload)) = Path::read(frame) {
        let lengths = [payload.start - 4, if path.from.is_ipv4() { 16 } else { 18 }];
        let [udp, ip] = lengths.map(|at| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]])));
        assert_eq!(payload.start, path.headers());
        assert_eq!(payload.len(), udp - 8);
        assert_eq!(ip, udp + if path.from.is_ipv4() { 20 } else { 0 });
        assert_survives_writing(&path, &frame[payload]);
        assert_eq!(path.back().back(), path);
        assert_eq!([path.back().from, path.back().to], [path.to, path.from]);
    }
    // The same bytes as a path and a payload.
    if let Some((&[kind, ref addresses @ ..], payload)) = frame.split_first_chunk::<49>()
        && let Some(path) = path(kind, addresses)
    {
        assert_survives_writing(&path, payload);
    }
});

/// A path between any addresses of one family.
fn path(kind: u8, bytes: &[u8; 48]) -> Option<Path> {
    let (hardware, ports, ips) = (bytes[..12].as_chunks().0, bytes[12..16].as_chunks().0, &bytes[16..]);
    let address = |n: usize| {
        let ip = match kind % 2 {
            0 => IpAddr::from(*ips.as_chunks::<4>().0.get(n)?),
            _ => IpAddr::from(*ips.as_chunks::<16>().0.get(n)?),
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(ports[n])))
    };
    let [from, to] = [address(0)?, address(1)?];
    let is_mapped = [from, to].iter().any(|address| address.ip() != address.ip().to_canonical());
    (!is_mapped).then_some(Path { hardware: [hardware[0], hardware[1]], from, to })
}

fn assert_survives_writing(path: &Path, payload: &[u8]) {
    let (start, end) = (path.headers(), path.headers() + payload.len());
    let mut frame = [&vec![0xa5; start][..], payload, &[0xa5; 3]].concat();
    assert_eq!(path.write(&mut frame, payload.len()), end);
    assert_eq!(Path::read(&frame), Some((*path, start..end)));
    assert_eq!((&frame[start..end], &frame[end..]), (payload, &[0xa5; 3][..]));
    let (ip, udp) = (14, start - 8);
    let addresses = if path.from.is_ipv4() { udp - 8 } else { udp - 32 };
    if path.from.is_ipv4() {
        assert_eq!(sum(&frame[ip..udp]), 0xffff);
    }
    let pseudo = [&[0, 17], &frame[udp + 4..udp + 6], &frame[addresses..end]].concat();
    assert_eq!(sum(&pseudo), 0xffff);
    assert_ne!(frame[udp + 6..udp + 8], [0; 2]);
}

/// Adds up words of 16 bits as RFC 1071 does; with a right checksum among them, the sum is 0xffff.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    (0..2).fold(sum, |sum, _| (sum >> 16) + (sum & 0xffff))
}
