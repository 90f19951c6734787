//! A program with its maps, and frames for it.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::atomic::Ordering::Relaxed,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use siphasher::sip::SipHasher13;

use crate::{
    attach,
    frame::Path,
    kernel::{Kind, Map, MapWords, Program},
    program::{self, Maps, Options},
};

/// The addresses in the program's map.
pub(crate) const OURS: [&str; 3] = ["10.9.0.1:6969", "[fd09::1]:6969", "[fe80::1]:6969"];

/// A path to a server for each family.
pub(crate) const PATHS: [(&str, &str); 2] = [("10.9.1.7:20006", OURS[0]), ("[fd09:1::7]:20006", OURS[1])];

/// The keys for even and for odd hours.
pub(crate) const KEYS: [[u64; 2]; 2] = [[1, 2], [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]];

pub(crate) const TICK: u64 = 224_475_000;

/// The action of a program for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Answer,
    Redirect,
}

pub(crate) struct Fixture {
    program: Program,
    sockets: Map,
    /// With the option to answer connects.
    connects: Option<(MapWords, Map)>,
    _addresses: Map,
    /// In the map of sockets. It is at no queue.
    _socket: OwnedFd,
}

impl Fixture {
    /// A server's program without routes.
    pub(crate) fn new(connects: bool) -> Self {
        Self::with(connects, false, [false; 2])
    }

    pub(crate) fn with(connects: bool, is_client: bool, routes: [bool; 2]) -> Self {
        let map = |kind, key, value, entries| Map::new(kind, key, value, entries).expect("a map");
        let (addresses, sockets) = (map(Kind::Hash, 20, 4, 16), map(Kind::Sockets, 4, 4, 1));
        for address in OURS {
            addresses.set(&attach::key(&address.parse().unwrap()), &[0; 4]).unwrap();
        }
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        sockets.set(&[0; 4], &socket.as_raw_fd().to_ne_bytes()).unwrap();
        let connects = connects.then(|| (map(Kind::Array, 4, 40, 1), map(Kind::Counts, 4, 8, 2)));
        let maps = Maps {
            addresses: addresses.descriptor(),
            sockets: sockets.descriptor(),
            connects: connects.as_ref().map(|(array, counts)| (array.descriptor(), counts.descriptor())),
        };
        let program = Program::load(&program::build(&Options { maps, is_client, routes })).unwrap();
        let connects = connects.map(|(array, counts)| (array.words().unwrap(), counts));
        Self { program, sockets, connects, _addresses: addresses, _socket: socket }
    }

    pub(crate) fn set_tick(&self, tick: u64) {
        let (words, _) = self.connects.as_ref().expect("a program with the option");
        for (word, value) in words.all().iter().zip([tick].iter().chain(KEYS.as_flattened())) {
            word.store(*value, Relaxed);
        }
    }

    /// The connects that the program has counted, by family.
    pub(crate) fn counted(&self) -> [u64; 2] {
        let (_, counts) = self.connects.as_ref().expect("a program with the option");
        [0, 1].map(|family| counts.sum(family).unwrap())
    }

    pub(crate) fn name(&self) -> String {
        self.program.name().unwrap()
    }

    pub(crate) fn remove_socket(&self) {
        self.sockets.remove(&[0; 4]).unwrap();
    }

    /// Runs the program on a frame at queue 0; returns the frame as it is afterwards, too.
    pub(crate) fn run(&self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let (verdict, after) = self.program.run(frame).unwrap();
        let verdict = match verdict {
            2 => Verdict::Pass,
            3 => Verdict::Answer,
            4 => Verdict::Redirect,
            other => panic!("verdict {other}"),
        };
        (verdict, after)
    }

    /// Fails unless the program gives this verdict, and leaves the frame as it is.
    #[track_caller]
    pub(crate) fn assert(&self, case: &str, expected: Verdict, frame: &[u8]) {
        let (verdict, after) = self.run(frame);
        assert_eq!(verdict, expected, "{case}: {frame:02x?}");
        assert!(after == frame, "{case}: {frame:02x?} has become {after:02x?}");
    }
}

/// A frame with a datagram.
pub(crate) fn datagram(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let path = Path {
        hardware: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    };
    let mut frame = vec![0; path.headers() + payload.len()];
    frame[path.headers()..].copy_from_slice(payload);
    path.write(&mut frame, payload.len());
    frame
}

/// The payload of a connect (BEP 15).
pub(crate) fn connect() -> [u8; 16] {
    let mut connect = [0; 16];
    connect[..8].copy_from_slice(&0x0417_2710_1980_u64.to_be_bytes());
    connect[12..].copy_from_slice(&[1, 2, 3, 4]);
    connect
}

/// A connect's frame as this process would have answered it.
pub(crate) fn answer(request: &[u8], tick: u64) -> Vec<u8> {
    let (path, payload) = Path::read(request).expect("a whole datagram");
    let mut answer = request.to_vec();
    answer[payload.start..][..4].fill(0);
    answer.copy_within(payload.start + 12..payload.end, payload.start + 4);
    answer[payload.start + 8..payload.end].copy_from_slice(&id(path.from, tick).to_be_bytes());
    path.back().write(&mut answer, payload.len());
    answer
}

/// The connection id of the tracker for a client.
fn id(client: SocketAddr, tick: u64) -> u64 {
    let [k0, k1] = KEYS[(tick / 450 % 2) as usize];
    let mut bytes = match client.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    bytes.extend(tick.to_le_bytes());
    SipHasher13::new_with_keys(k0, k1).hash(&bytes) & !0xff | tick & 0xff
}
