//! Datagrams of BEP 15, over either family.

use std::ops::Range;

use swarmkeep::{
    Family::{self, V4, V6},
    InfoHash,
};
use swarmkeep_tests::udp::Client;
use swarmkeep_tracker_protocol::udp::{AnnounceOption, Request, Response};

use crate::captured::{CapturedExchange, FILE_LEN, INFO_HASH, Swarms, captured, tracker};

pub(super) const FOLDERS: [(Family, &str); 2] = [(V4, "udp"), (V6, "udp-ipv6")];

/// Sends each captured request to a tracker over a real socket, with the connection id of this tracker.
#[test]
fn every_captured_announce_is_answered() {
    for (family, folder) in FOLDERS {
        let tracker = tracker(family);
        let client = Client::of(tracker.udp[0]);
        let ask = |request: &[u8]| {
            client.send(request);
            client.receive()
        };
        let all = captured(folder);
        let mut swarms = Swarms::default();
        for one in all.iter().filter(|one| one.kind.starts_with("announce")) {
            let connect = all.iter().find(|other| other.client == one.client && other.kind == "connect");
            let connected = ask(&connect.expect("each has connected").request);
            let mut request = one.request.clone();
            request[..8].copy_from_slice(&connected[8..16]);
            let answer = ask(&request);
            let Ok(Response::Announce(answered)) = Response::parse(&answer, family) else {
                panic!("{}: {}", one.what(), answer.escape_ascii())
            };
            let field = |range| field(&one.request, range);
            let event = ["", "completed", "started", "stopped", "paused"][field(80..84) as usize];
            let (left, port) = (field(64..72), field(96..98) as u16);
            one.check_state(event, Some(left));
            let expected = swarms.after(&one.request[16..36], port, Some(left), event == "stopped");
            assert_eq!((answered.header.seeders, answered.header.leechers), expected, "{}", one.what());
        }
    }
}

/// A number of a datagram.
fn field(datagram: &[u8], range: Range<usize>) -> u64 {
    datagram[range].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Each field is read at its place in BEP 15: those of the writer are tested in its crate.
pub(super) fn check_request(one: &CapturedExchange) {
    let (what, bytes) = (one.what(), &one.request[..]);
    let info_hash: InfoHash = INFO_HASH.parse().expect("a constant");
    let (kind, written) = match Request::parse(bytes).unwrap_or_else(|error| panic!("{what}: {error}")) {
        Request::Connect(request) => ("connect".to_owned(), request.to_bytes().to_vec()),
        Request::Announce(request) => {
            assert_eq!(request.info_hash, info_hash, "{what}");
            assert!(request.left <= FILE_LEN && request.downloaded <= 2 * FILE_LEN, "{what}");
            let url = request.trailing.contains(&b'/').then_some(AnnounceOption::UrlData(b"/announce"));
            assert!(request.options().eq(url), "{what}");
            (format!("announce-{}", request.event), request.to_vec())
        }
        Request::Scrape(request) => {
            assert!(request.info_hashes().eq([info_hash]), "{what}");
            ("scrape".to_owned(), request.to_vec())
        }
    };
    assert_eq!((&kind, &written[..]), (&one.kind, bytes), "{what} is written as it was read");
}
