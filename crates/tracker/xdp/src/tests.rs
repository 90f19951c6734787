use std::net::SocketAddr;

use crate::Path;

fn path(from: &str, to: &str) -> Path {
    let [from, to] = [from, to].map(|address| address.parse::<SocketAddr>().unwrap());
    Path { hardware: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]], from, to }
}

fn paths() -> [Path; 2] {
    [path("10.9.1.7:20006", "10.9.0.1:6969"), path("[fd09:1::7]:20006", "[fe80::1]:6969")]
}

fn written(path: &Path, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; path.headers() + payload.len() + 3];
    frame[path.headers()..][..payload.len()].copy_from_slice(payload);
    let len = path.write(&mut frame, payload.len());
    assert_eq!(frame[len..], [0xa5; 3]);
    frame
}

#[test]
fn anything_but_a_whole_datagram_without_options_is_not_read() {
    let [v4, v6] = paths().map(|path| written(&path, b"payload"));
    let of_v4 = [(12, 0x81), (14, 0x46), (17, 0), (20, 0x20), (21, 9), (23, 6), (39, 9)];
    let of_v6 = [(14, 0x45), (19, 9), (20, 44), (59, 9)];
    let all = of_v4.map(|change| (&v4, change)).into_iter().chain(of_v6.map(|change| (&v6, change)));
    for (frame, (at, byte)) in all {
        let changed = [&frame[..at], &[byte], &frame[at + 1..]].concat();
        assert_eq!((Path::read(&changed), Path::read(&frame[..frame.len() - 4])), (None, None), "{at}");
    }
}

/// Adds up words of 16 bits; a sum that is right is 0xffff.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).fold(0, |sum, word| (sum + word) % 0x10000 + (sum + word) / 0x10000)
}

#[test]
fn a_frame_reads_as_it_was_written_with_good_checksums() {
    for path in paths() {
        for len in (0..100).chain([1400, 1500, 9000]) {
            let payload: Vec<_> = (0..len).map(|n| (n * 7) as u8).collect();
            let frame = written(&path, &payload);
            let (read, range) = Path::read(&frame).unwrap();
            assert_eq!((read, &frame[range.clone()]), (path, &payload[..]));
            let (udp, addresses) = match path.from.is_ipv4() {
                true => (34, 26),
                false => (54, 22),
            };
            if path.from.is_ipv4() {
                assert_eq!(sum(&frame[14..34]), 0xffff);
            }
            let pseudo = [&[0, 17][..], &frame[udp + 4..udp + 6]].concat();
            assert_eq!(sum(&[&pseudo[..], &frame[addresses..range.end]].concat()), 0xffff, "{len}");
            assert_ne!(frame[udp + 6..udp + 8], [0; 2]);
        }
        assert_eq!(path.back().back(), path);
    }
}

#[test]
fn a_checksum_of_0_is_written_as_its_other_form() {
    for path in paths() {
        let udp = path.headers() - 8;
        let frame = written(&path, &[0; 2]);
        // With its own checksum as the payload, a datagram adds up to 0xffff without a checksum.
        let frame = written(&path, &frame[udp + 6..udp + 8]);
        assert_eq!(frame[udp + 6..udp + 8], [0xff; 2]);
    }
}

#[test]
fn an_ipv4_mapped_address_over_ipv6_is_not_read() {
    let mapped = "[::ffff:10.9.1.7]:7";
    let v6 = "[fd09::1]:6969";
    assert!(Path::read(&written(&path(v6, v6), b"payload")).is_some());
    for path in [path(mapped, v6), path(v6, mapped)] {
        assert_eq!(Path::read(&written(&path, b"payload")), None);
    }
}
