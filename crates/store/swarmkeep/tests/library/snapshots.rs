//! Ages in snapshots, records that a writer refuses, and the format of version 1.

mod reader;

use std::{
    fs,
    io::{self, Cursor as Bytes, Write},
    path::Path,
};

use swarmkeep::{
    Endpoint, InfoHash, PeerDetails, PeerId, PeerRecord, Records, Role, Timestamp,
    snapshot::{Reader, Summary, Writer},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const ID: [u8; 16] = *b"sixteen at least";

fn hash(n: u8) -> InfoHash {
    InfoHash::new([n; 20])
}

fn v4(n: u16) -> Endpoint {
    let [high, low] = n.to_be_bytes();
    Endpoint::try_from([192, 0, high, low, 26, 225]).expect("a port")
}

fn v6(n: u16) -> Endpoint {
    let mut bytes = [0x20; 18];
    bytes[14..16].copy_from_slice(&n.to_be_bytes());
    Endpoint::try_from(bytes).expect("a port")
}

// --- Ages. ---

#[test]
fn ages_grow_with_time_and_stay_if_the_clock_was_set_back() {
    let mut records = Records::new(NOW);
    let peer = |n, age| PeerRecord {
        endpoint: v4(n),
        role: Role::Leecher,
        last_announce: NOW.saturating_sub(age),
        details: None,
    };
    records.push(&hash(1), 9, &[peer(1, 0), peer(2, 100), peer(3, 2000), peer(4, 70_000)]);
    let bytes = written(&[records]);
    let ages = |now: Timestamp| {
        let (mut reader, mut records) =
            (Reader::new(Bytes::new(&bytes)).expect("it is whole"), Records::new(now));
        assert!(reader.next(&mut records, now).expect("it is whole"));
        let peers = records.iter().flat_map(|record| record.peers());
        peers.map(|peer| now.secs_since(peer.last_announce)).collect::<Vec<_>>()
    };
    assert_eq!(ages(NOW), [0, 100, 2000, 70_000]);
    assert_eq!(ages(NOW.saturating_add(500)), [500, 600, 2500, 70_500]);
    // By a second, an hour, and years.
    for back in [1, 3600, 1_000_000_000] {
        assert_eq!(ages(NOW.saturating_sub(back)), [0, 100, 2000, 70_000], "{back} seconds back");
    }
}

// --- Blocks, and their destination. ---

fn written_as(id: [u8; 16], blocks: &[Records]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), id, NOW).expect("memory");
    blocks.iter().for_each(|block| writer.write(block).expect("memory"));
    writer.finish().expect("memory").0
}

fn written(blocks: &[Records]) -> Vec<u8> {
    written_as(ID, blocks)
}

fn some_blocks(count: u8) -> Vec<Records> {
    let block = |n| {
        let mut records = Records::new(NOW);
        for peers in 0..3 {
            let peers: Vec<_> = (0..peers)
                .map(|peer| PeerRecord {
                    endpoint: if peer == 0 { v4(peer) } else { v6(peer) },
                    role: [Role::Seeder, Role::Leecher][usize::from(peer)],
                    last_announce: NOW,
                    details: None,
                })
                .collect();
            records.push(&hash(n), u32::from(n), &peers);
        }
        records
    };
    (1..=count).map(block).collect()
}

/// A writer that accepts a limited number of bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = bytes.len().min(self.0);
        self.0 -= some;
        if some == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(some) }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_of_the_destination_is_returned() {
    let long = written(&some_blocks(2)).len();
    for room in 0..=long {
        let written = Writer::new(Full(room), ID, NOW).and_then(|mut writer| {
            some_blocks(2).iter().try_for_each(|block| writer.write(block))?;
            writer.finish().map(|_| ())
        });
        match written {
            Ok(()) => assert_eq!(room, long),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
        }
    }
}

#[test]
fn a_block_is_no_longer_than_a_reader_takes() {
    let peers: Vec<_> = (0..=u16::MAX)
        .map(|n| PeerRecord { endpoint: v6(n), role: Role::Seeder, last_announce: NOW, details: None })
        .collect();
    let mut records = Records::new(NOW);
    (0..12).for_each(|n| records.push(&hash(n), 0, &peers));
    assert!(records.as_bytes().len() < 16 << 20);
    let mut writer = Writer::new(Vec::new(), ID, NOW).expect("memory");
    writer.write(&records).expect("just below 16 MiB");
    records.push(&hash(12), 0, &peers);
    let error = writer.write(&records).expect_err("above");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "more than 16 MiB for one block of a snapshot: export in smaller steps");
    // Nothing of it was written.
    let (bytes, summary) = writer.finish().expect("memory");
    assert_eq!((summary.records, summary.peers), (12, 12 << 16));
    assert_eq!(Reader::new(Bytes::new(bytes)).expect("whole").summary(), summary);
}

// --- The format of version 1. ---

/// A snapshot with both families and roles, details, downloads and ages of each width, a swarm without peers,
/// and a swarm in two parts in two blocks.
fn first_ever() -> Vec<u8> {
    let peer = |endpoint: &str, role, age, details| PeerRecord {
        endpoint: endpoint.parse().expect("an endpoint"),
        role,
        last_announce: NOW.saturating_sub(age),
        details,
    };
    let details =
        |n| PeerDetails { peer_id: PeerId::new([n; 20]), uploaded: 1, downloaded: 1 << 40, left: u64::MAX };
    let mut first = Records::new(NOW);
    first.push(&hash(1), 0, &[peer("192.0.2.1:6881", Role::Leecher, 0, None)]);
    first.push(&hash(2), 255, &[peer("[2001:db8::1]:65535", Role::Seeder, 2700, None)]);
    first.push(&hash(3), 70_000, &[]);
    first.push(
        &hash(4),
        1,
        &[
            peer("192.0.2.2:1", Role::Seeder, 10, None),
            peer("[2001:db8::2]:2", Role::Leecher, 100_000, None),
            peer("192.0.2.3:3", Role::Leecher, 20, None),
            peer("[2001:db8::3]:4", Role::Seeder, 30, None),
        ],
    );
    first.push(
        &hash(5),
        0,
        &[
            peer("192.0.2.4:5", Role::Leecher, 40, Some(details(b'a'))),
            peer("[2001:db8::4]:6", Role::Seeder, 50, Some(details(b'b'))),
            peer("192.0.2.5:7", Role::Leecher, 60, None),
        ],
    );
    first.push(&hash(6), 8, &[peer("192.0.2.6:8", Role::Seeder, 70, None)]);
    let mut second = Records::new(NOW.saturating_add(1));
    second.push(&hash(6), 9, &[peer("192.0.2.7:9", Role::Seeder, 0, None)]);
    let many: Vec<_> =
        (0..257).map(|n| peer(&format!("198.51.100.1:{}", n + 1), Role::Leecher, n, None)).collect();
    second.push(&hash(7), 0, &many);
    written(&[first, second])
}

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/snapshots/v1.snapshot")
}

/// The fixture was made once, with `SWARMKEEP_FIXTURE=1`. Every later version must read it.
#[test]
fn the_first_version_can_be_read_for_ever() {
    if std::env::var_os("SWARMKEEP_FIXTURE").is_some() && !fixture().exists() {
        fs::write(fixture(), first_ever()).expect("a folder");
    }
    // A published package does not contain the fixtures.
    let Ok(bytes) = fs::read(fixture()) else {
        assert!(!Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").exists(), "it is lost");
        return;
    };
    let mut reader = Reader::new(Bytes::new(&bytes)).expect("it is whole");
    let Summary { taken, records, peers, bytes: long, .. } = reader.summary();
    assert_eq!((taken.as_secs(), records, peers, long), (1_800_000_000, 9, 268, 2693));
    let mut records = Records::new(NOW);
    let mut read = Vec::new();
    while reader.next(&mut records, NOW).expect("it is whole") {
        for record in records.iter() {
            let peers = record.peers().map(|peer| {
                let age = NOW.as_secs() as i64 - peer.last_announce.as_secs() as i64;
                (peer.endpoint.to_string(), peer.role.is_seeder(), age, peer.details)
            });
            read.push((record.info_hash.as_bytes()[0], record.downloaded, peers.collect::<Vec<_>>()));
        }
    }
    let peer = |endpoint: &str, is_seeder, age| (endpoint.to_owned(), is_seeder, age, None);
    let detailed = |endpoint: &str, is_seeder, age, id| {
        let peer_id = PeerId::new([id; 20]);
        let details = PeerDetails { peer_id, uploaded: 1, downloaded: 1_099_511_627_776, left: u64::MAX };
        (endpoint.to_owned(), is_seeder, age, Some(details))
    };
    let expected = vec![
        (1, 0, vec![peer("192.0.2.1:6881", false, 0)]),
        (2, 255, vec![peer("[2001:db8::1]:65535", true, 2700)]),
        (3, 70_000, vec![]),
        (
            4,
            1,
            vec![
                peer("192.0.2.2:1", true, 10),
                peer("192.0.2.3:3", false, 20),
                peer("[2001:db8::3]:4", true, 30),
                peer("[2001:db8::2]:2", false, 100_000),
            ],
        ),
        (5, 0, vec![detailed("192.0.2.4:5", false, 40, b'a'), detailed("[2001:db8::4]:6", true, 50, b'b')]),
        (5, 0, vec![peer("192.0.2.5:7", false, 60)]),
        (6, 8, vec![peer("192.0.2.6:8", true, 70)]),
        (6, 9, vec![peer("192.0.2.7:9", true, 0)]),
        (7, 0, (0..257).map(|n| peer(&format!("198.51.100.1:{}", n + 1), false, n)).collect()),
    ];
    assert_eq!(read, expected);
}

/// The bytes written today are those of the fixture. A change of these bytes requires a new `VERSION`.
#[test]
fn the_first_version_is_written_as_it_was() {
    if let Ok(bytes) = fs::read(fixture()) {
        assert_eq!(first_ever(), bytes);
    }
}

/// The example of `docs/formats/snapshot.md`.
#[test]
fn a_snapshot_of_one_peer_is_173_bytes() {
    let mut records = Records::new(NOW);
    let endpoint: Endpoint = "192.0.2.1:6881".parse().expect("an endpoint");
    let peer =
        PeerRecord { endpoint, role: Role::Leecher, last_announce: NOW.saturating_sub(60), details: None };
    records.push(&hash(0xab), 0, &[peer]);
    let bytes = written_as(*b"0123456789abcdef", &[records]);
    assert_eq!(bytes.len(), 173);
    // A published package does not contain the documents.
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let Ok(page) = fs::read_to_string(docs.join("formats/snapshot.md")) else {
        assert!(!docs.exists(), "the page is lost");
        return;
    };
    let (_, example) = page.split_once("## An example").expect("the page has one");
    let rows = example.split("```").nth(1).expect("a dump of bytes").lines();
    let shown: Vec<_> = rows.flat_map(|row| row.get(5..52).unwrap_or_default().split_whitespace()).collect();
    assert_eq!(shown, bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>());
}
