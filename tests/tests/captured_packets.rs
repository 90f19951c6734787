//! The requests that real clients have sent (`fixtures/README.md`) mean what they meant.

use std::{fs, net::Ipv4Addr, path::Path};

use swarmkeep::{AnnounceEvent, InfoHash};
use swarmkeep_tracker_protocol::udp::{
    AnnounceOption, AnnounceRequest, CONNECT_MAGIC, ConnectRequest, ConnectionId, Request, TransactionId,
};

/// What tells one client's announces from another's.
struct Habits {
    folder: &'static str,
    peer_id: &'static str,
    port: u16,
    want: u32,
    trailing: &'static [u8],
    options: &'static [AnnounceOption<'static>],
    /// The kinds of request there are of it.
    kinds: &'static [&'static str],
}

const CAPTURED: [Habits; 4] = [
    Habits {
        folder: "aria2-1.36.0",
        peer_id: "A2-1-36-0-",
        port: 6881,
        want: 50,
        trailing: &[0, 0],
        options: &[],
        kinds: &["connect", "announce-started", "announce-empty", "announce-completed", "announce-stopped"],
    },
    Habits {
        folder: "transmission-3.00",
        peer_id: "-TR3000-",
        port: 6882,
        want: 80,
        trailing: &[],
        options: &[],
        kinds: &[
            "connect",
            "announce-started",
            "announce-empty",
            "announce-completed",
            "announce-stopped",
            "scrape",
        ],
    },
    Habits {
        folder: "libtorrent-2.0.8.0",
        peer_id: "-LT2080-",
        port: 6883,
        want: 200,
        trailing: b"\x02\x09/announce",
        options: &[AnnounceOption::UrlData(b"/announce")],
        kinds: &["connect", "announce-started", "announce-completed", "announce-stopped", "scrape"],
    },
    Habits {
        folder: "qbittorrent-4.5.2",
        peer_id: "-qB4520-",
        port: 6884,
        want: 200,
        trailing: b"\x02\x09/announce",
        options: &[AnnounceOption::UrlData(b"/announce")],
        kinds: &["connect", "announce-started", "announce-completed", "announce-stopped"],
    },
];

const INFO_HASH: &str = "f20521877e62b8a298f3cf15576fd3c7b975a027";
const FILE_LEN: u64 = 2 << 20;

#[test]
fn every_field_of_every_captured_request_is_read_as_bep_15_lays_it_out() {
    let captured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/udp");
    let mut files = 0;
    for client in &CAPTURED {
        for kind in client.kinds {
            let bytes =
                fs::read(captured.join(client.folder).join(kind).with_extension("bin")).expect("a fixture");
            check(client, kind, &bytes);
            files += 1;
        }
    }
    let folders =
        fs::read_dir(&captured).expect("the fixtures").map(|folder| folder.expect("a folder").path());
    let there: usize = folders.map(|folder| fs::read_dir(folder).expect("a folder").count()).sum();
    assert_eq!(files, there, "every fixture is read");
}

fn check(client: &Habits, kind: &str, bytes: &[u8]) {
    let what = format!("{} {kind}", client.folder);
    let field =
        |range: std::ops::Range<usize>| bytes[range].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let transaction_id = TransactionId(field(12..16) as u32);
    let mut written = vec![0; bytes.len()];
    match Request::parse(bytes).unwrap_or_else(|error| panic!("{what}: {error}")) {
        Request::Connect(request) => {
            assert_eq!((kind, field(0..8), bytes.len()), ("connect", CONNECT_MAGIC, 16));
            assert_eq!(request, ConnectRequest { transaction_id });
            request.write(written.first_chunk_mut().expect("16 bytes"));
        }
        Request::Announce(request) => {
            let (event, left) = match kind {
                "announce-started" => (AnnounceEvent::Started, request.left),
                "announce-empty" => (AnnounceEvent::None, request.left),
                "announce-completed" => (AnnounceEvent::Completed, 0),
                "announce-stopped" => (AnnounceEvent::Stopped, request.left),
                _ => panic!("{what} is an announce"),
            };
            let want = Some(if event == AnnounceEvent::Stopped { 0 } else { client.want });
            assert_eq!(
                request,
                AnnounceRequest {
                    connection_id: ConnectionId(field(0..8)),
                    transaction_id,
                    info_hash: INFO_HASH.parse::<InfoHash>().expect("a constant"),
                    peer_id: <[u8; 20]>::try_from(&bytes[36..56]).expect("20 bytes").into(),
                    downloaded: field(56..64),
                    left,
                    uploaded: field(72..80),
                    event,
                    ip: Ipv4Addr::UNSPECIFIED,
                    key: field(88..92) as u32,
                    want,
                    port: client.port,
                    trailing: client.trailing,
                },
                "{what}"
            );
            assert_eq!(request.left, field(64..72));
            assert!(request.left <= FILE_LEN && request.downloaded <= 2 * FILE_LEN, "{what}");
            assert!(request.peer_id.as_bytes().starts_with(client.peer_id.as_bytes()), "{what}");
            assert!(request.options().eq(client.options.iter().copied()), "{what}");
            assert_eq!(request.write(&mut written), bytes.len());
        }
        Request::Scrape(request) => {
            assert_eq!((kind, bytes.len()), ("scrape", 36));
            assert_eq!((request.connection_id.0, request.transaction_id), (field(0..8), transaction_id));
            assert!(request.info_hashes().eq([INFO_HASH.parse().expect("a constant")]), "{what}");
            assert_eq!(request.write(&mut written), bytes.len());
        }
    }
    assert_eq!(written, bytes, "{what} is written as it was read");
}
