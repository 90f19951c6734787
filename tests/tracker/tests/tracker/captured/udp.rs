//! Datagrams of BEP 15, over either family.

use std::ops::Range;

use swarmkeep::{
    AnnounceEvent,
    Family::{self, V4, V6},
};
use swarmkeep_tests::udp::Client;
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, CONNECT_MAGIC, ConnectRequest, ConnectionId, Request, Response, TransactionId,
};

use crate::captured::{
    CapturedExchange, FILE_LEN, INFO_HASH, Swarms, captured,
    habits::{ClientHabits, habits_of},
    tracker,
};

const FOLDERS: [(Family, &str); 2] = [(V4, "udp"), (V6, "udp-ipv6")];

#[test]
fn every_field_of_every_captured_datagram_is_read_as_bep_15_lays_it_out() {
    for (_, folder) in FOLDERS {
        for one in captured(folder).iter().filter(|one| !one.answer.is_empty()) {
            check_request(habits_of(&one.client), one);
        }
    }
}

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
            let (left, stopped, port) = (field(64..72), field(80..84) == 3, field(96..98) as u16);
            let expected = swarms.after(&one.request[16..36], port, Some(left), stopped);
            assert_eq!((answered.header.seeders, answered.header.leechers), expected, "{}", one.what());
        }
    }
}

/// A number of a datagram.
fn field(datagram: &[u8], range: Range<usize>) -> u64 {
    datagram[range].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn check_request(client: &ClientHabits, one: &CapturedExchange) {
    let (what, kind, bytes) = (one.what(), &one.kind[..], &one.request[..]);
    let field = |range| field(bytes, range);
    let transaction_id = TransactionId(field(12..16) as u32);
    let written = match Request::parse(bytes).unwrap_or_else(|error| panic!("{what}: {error}")) {
        Request::Connect(request) => {
            assert_eq!((kind, field(0..8), bytes.len()), ("connect", CONNECT_MAGIC, 16));
            assert_eq!(request, ConnectRequest { transaction_id });
            request.to_bytes().to_vec()
        }
        Request::Announce(request) => {
            let (event, left) = match kind {
                "announce-started" => (AnnounceEvent::Started, request.left),
                "announce-empty" => (AnnounceEvent::None, request.left),
                "announce-completed" => (AnnounceEvent::Completed, 0),
                "announce-stopped" => (AnnounceEvent::Stopped, request.left),
                _ => panic!("{what} is an announce"),
            };
            let last = event == AnnounceEvent::Stopped && client.want.is_some();
            let info_hash = INFO_HASH.parse().expect("a constant");
            let peer_id = <[u8; 20]>::try_from(&bytes[36..56]).expect("20 bytes").into();
            assert_eq!(
                request,
                AnnounceRequest {
                    transaction_id,
                    downloaded: field(56..64),
                    left,
                    uploaded: field(72..80),
                    event,
                    key: field(88..92) as u32,
                    want: if last { Some(0) } else { client.want },
                    trailing: client.trailing,
                    ..AnnounceRequest::new(ConnectionId(field(0..8)), info_hash, peer_id, client.port)
                },
                "{what}"
            );
            assert_eq!(request.left, field(64..72));
            assert!(request.left <= FILE_LEN && request.downloaded <= 2 * FILE_LEN, "{what}");
            assert!(request.peer_id.as_bytes().starts_with(client.peer_id.as_bytes()), "{what}");
            assert!(request.options().eq(client.options.iter().copied()), "{what}");
            request.to_vec()
        }
        Request::Scrape(request) => {
            assert_eq!((kind, bytes.len()), ("scrape", 36));
            assert_eq!((request.connection_id.0, request.transaction_id), (field(0..8), transaction_id));
            assert!(request.info_hashes().eq([INFO_HASH.parse().expect("a constant")]), "{what}");
            request.to_vec()
        }
    };
    assert_eq!(written, bytes, "{what} is written as it was read");
}
