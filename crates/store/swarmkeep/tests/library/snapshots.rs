//! Snapshots between all stores of the catalog, records that a writer refuses, and the format of version 1.

mod reader;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Cursor as Bytes, Write},
    path::Path,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use swarmkeep::{
    Announce, AnnounceEvent, AsyncTorrentRepository, Budget, Cursor, Endpoint, Export, Family, HashKey,
    Immediate, InfoHash, Packed, PeerBuffer, PeerDetails, PeerId, PeerRecord, Records, RepositoryConfig,
    Restored, Role, SplitMix64, SwarmStats, Timestamp,
    catalog::{self, Implementation, Repository},
    snapshot::{Reader, Summary, Writer},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const ID: [u8; 16] = *b"sixteen at least";

// --- Stores. ---

type Store = Arc<dyn AsyncTorrentRepository>;

fn build(implementation: &Implementation) -> Store {
    let config = RepositoryConfig::new(HashKey::from_bytes(*b"a secret for one"));
    match implementation.build(&config).expect("the usual") {
        Repository::Sync(store) => Arc::new(store),
        Repository::Async(store) => store,
    }
}

/// Returns the result of a call. The store is used by one test only, so its locks are free.
fn wait<T>(answer: swarmkeep::Answer<'_, T>) -> T {
    let mut answer = pin!(answer);
    loop {
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return answer.expect("it is in this process");
        }
    }
}

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

/// Inserts swarms of one, a few and many peers, seeders that have completed, and a swarm that all peers have
/// left.
fn populate(store: &Store) {
    let mut rng = SplitMix64::new(1);
    let mut tell = |announce: Announce, age| {
        let mut nobody = PeerBuffer::new(&mut [], &mut []);
        wait(store.announce(&announce.want(0), NOW.saturating_sub(age), &mut rng, &mut nobody));
    };
    for n in 0..300_u16 {
        for (torrent, endpoint) in [(1, v4(n)), (2, v6(n))] {
            tell(Announce::new(hash(torrent), endpoint).left(1).peer_id(PeerId::new([7; 20])), 500);
            if n % 3 == 0 {
                let completed = AnnounceEvent::Completed;
                tell(Announce::new(hash(torrent), endpoint).event(completed).left(0).transferred(5, 6), 400);
            }
        }
        let torrent = 100 + (n % 100) as u8;
        tell(Announce::new(hash(torrent), if n % 2 == 0 { v4(n) } else { v6(n) }).left(u64::from(n) % 2), 10);
    }
    tell(Announce::new(hash(3), v4(1)).event(AnnounceEvent::Completed).left(0), 5);
    tell(Announce::new(hash(3), v4(1)).event(AnnounceEvent::Stopped), 5);
}

fn write(store: &Store, budget: usize) -> (Vec<u8>, Summary) {
    let mut writer = Writer::new(Vec::new(), ID, NOW).expect("memory");
    let mut export = Export::new();
    while !export.is_complete() {
        wait(store.export(&mut export, NOW, Budget::peers(budget)));
        writer.write(export.records()).expect("memory");
    }
    writer.finish().expect("memory")
}

fn load(bytes: &[u8], store: &Store, now: Timestamp) -> Restored {
    let mut reader = Reader::new(Bytes::new(bytes)).expect("it is whole");
    let (mut restored, mut records) = (Restored::default(), Records::new(now));
    while reader.next(&mut records, now).expect("it is whole") {
        restored += wait(store.import(std::slice::from_ref(&records), now));
    }
    restored
}

type Swarms = BTreeMap<InfoHash, (SwarmStats, BTreeMap<Endpoint, PeerRecord>)>;

fn swarms_of(store: &Store) -> Swarms {
    let (mut all, mut from) = (Vec::new(), Cursor::START);
    while !from.is_end() {
        from = wait(store.walk(from, 100, &mut all));
    }
    let peers_of = |info_hash| {
        let (mut peers, mut from) = (Vec::new(), Cursor::START);
        while !from.is_end() {
            from = wait(store.peers(info_hash, from, 100, &mut peers));
        }
        peers.into_iter().map(|peer| (peer.endpoint, peer)).collect()
    };
    all.iter().map(|swarm| (swarm.info_hash, (swarm.stats, peers_of(&swarm.info_hash)))).collect()
}

#[test]
fn every_store_imports_the_snapshot_of_any_other() {
    let packed = catalog::find("packed").expect("it always is");
    for one in catalog::ALL {
        let (store, other) = (build(one), build(packed));
        populate(&store);
        for budget in [1, 50, 100_000] {
            let (bytes, summary) = write(&store, budget);
            let totals = wait(store.totals());
            assert_eq!(
                (summary.peers, summary.bytes, summary.taken),
                (totals.peers(), bytes.len() as u64, NOW)
            );
            assert!(summary.swarms >= totals.swarms);
            for (from, into) in [(&store, &other), (&store, &build(one))] {
                if budget < 50 && Arc::ptr_eq(into, &other) {
                    continue;
                }
                assert_same(from, into, &bytes, one);
            }
            if budget == 50 {
                // The snapshot of the other store is restored in turn.
                let (bytes, _) = write(&other, budget);
                assert_same(&other, &build(one), &bytes, one);
            }
        }
    }
}

fn assert_same(from: &Store, into: &Store, bytes: &[u8], one: &Implementation) {
    let (totals, clock) = (wait(from.totals()), from.capabilities().clock_resolution_secs);
    let coarser = clock.max(into.capabilities().clock_resolution_secs);
    let restored = load(bytes, into, NOW);
    assert_eq!(restored.added + restored.known, totals.peers(), "{one:?}: {restored:?}");
    assert_eq!(wait(into.totals()), totals);
    let (before, after) = (swarms_of(from), swarms_of(into));
    let keep_details = from.capabilities().keeps_peer_details && into.capabilities().keeps_peer_details;
    assert_eq!(before.len(), after.len());
    for (info_hash, (stats, peers)) in before {
        let (stats_after, peers_after) = &after[&info_hash];
        assert_eq!(*stats_after, stats, "{one:?}");
        assert_eq!(wait(into.scrape(&info_hash)), stats);
        assert_eq!(peers_after.len(), peers.len());
        for (endpoint, peer) in peers {
            let same = &peers_after[&endpoint];
            assert_eq!(same.role, peer.role);
            // Times are rounded later, by at most the coarser clock resolution.
            assert!(same.last_announce >= peer.last_announce && same.last_announce <= NOW);
            assert!(same.last_announce.secs_since(peer.last_announce) <= coarser, "{one:?}");
            let details = if keep_details { peer.details } else { None };
            if keep_details || !into.capabilities().keeps_peer_details {
                assert_eq!(same.details, details, "{one:?}");
            }
        }
    }
}

#[test]
fn expired_peers_are_left_out_and_a_clock_that_was_set_back_keeps_ages() {
    let mut records = Records::new(NOW);
    let peer = |n, age| PeerRecord {
        endpoint: v4(n),
        role: Role::Leecher,
        last_announce: NOW.saturating_sub(age),
        details: None,
    };
    records.push(&hash(1), 9, &[peer(1, 0), peer(2, 100), peer(3, 2000), peer(4, 70_000)]);
    let bytes = written(&[records]);
    let times = |now: Timestamp| {
        let mut all = Vec::new();
        for implementation in [catalog::find("packed").expect("it is"), &catalog::ALL[1]] {
            let store = build(implementation);
            let restored = load(&bytes, &store, now);
            let swarms = swarms_of(&store);
            assert_eq!(swarms[&hash(1)].0.downloaded, 9);
            let ages: Vec<_> =
                swarms[&hash(1)].1.values().map(|peer| now.secs_since(peer.last_announce)).collect();
            all.push((restored.added, restored.expired, ages));
        }
        let [(packed, map)] = all.as_chunks().0.iter().map(|[a, b]| (a, b)).collect::<Vec<_>>()[..] else {
            panic!("two stores")
        };
        assert_eq!((packed.0, packed.1), (map.0, map.1));
        // The clock of the packed store is off by 24 seconds at most.
        for (coarse, fine) in packed.2.iter().zip(&map.2) {
            assert!(coarse <= fine && fine - coarse <= 24, "{coarse} of {fine}");
        }
        map.clone()
    };
    assert_eq!(times(NOW), (3, 1, vec![0, 100, 2000]));
    assert_eq!(times(NOW.saturating_add(500)), (3, 1, vec![500, 600, 2500]));
    assert_eq!(times(NOW.saturating_add(2600)), (2, 2, vec![2600, 2700]));
    assert_eq!(times(NOW.saturating_add(1 << 40)), (0, 4, vec![]));
    // A clock that was set back by an hour or by years.
    for back in [1, 3600, 1_000_000_000] {
        assert_eq!(times(NOW.saturating_sub(back)), (3, 1, vec![0, 100, 2000]), "{back} seconds back");
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
    for n in 0..12 {
        records.push(&hash(n), 0, &peers);
    }
    assert!(records.as_bytes().len() < 16 << 20);
    let mut writer = Writer::new(Vec::new(), ID, NOW).expect("memory");
    writer.write(&records).expect("just below 16 MiB");
    records.push(&hash(12), 0, &peers);
    let error = writer.write(&records).expect_err("above");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "more than 16 MiB for one block of a snapshot: export in smaller steps");
    // Nothing of it was written.
    let (bytes, summary) = writer.finish().expect("memory");
    assert_eq!((summary.swarms, summary.peers), (12, 12 << 16));
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
    let Summary { taken, swarms, peers, bytes: long, .. } = reader.summary();
    assert_eq!((taken.as_secs(), swarms, peers, long), (1_800_000_000, 9, 268, 2693));
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
    let store = Packed::new(&RepositoryConfig::new(HashKey::from_bytes([1; 16]))).expect("the usual");
    let restored = load(&bytes, &(Arc::new(Immediate(Arc::new(store))) as Store), NOW);
    assert_eq!((restored.added, restored.expired), (267, 1));
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
    assert_eq!(endpoint.family(), Family::V4);
    let peer =
        PeerRecord { endpoint, role: Role::Leecher, last_announce: NOW.saturating_sub(60), details: None };
    records.push(&hash(0xab), 0, &[peer]);
    let bytes = written_as(*b"0123456789abcdef", &[records]);
    let hex: Vec<String> = bytes
        .chunks(16)
        .map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(hex, EXAMPLE, "{hex:#?}");
}

const EXAMPLE: [&str; 11] = [
    "73 77 61 72 6d 73 6e 70 01 00 00 00 00 00 00 00",
    "30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66",
    "00 d2 49 6b 00 00 00 00 00 00 00 00 00 00 00 00",
    "00 00 00 00 00 00 00 00 00 00 00 00 2f ae 45 c5",
    "62 6c 6f 6b 00 00 00 00 1d 00 00 00 00 00 00 00",
    "ff d2 49 6b 00 00 00 00 01 00 00 00 00 00 00 00",
    "14 19 a6 af d8 b3 cd 93 41 ab ab ab ab ab ab ab",
    "ab ab ab ab ab ab ab ab ab ab ab ab ab c0 00 02",
    "01 1a e1 3b 01 65 6e 64 21 01 00 00 00 85 00 00",
    "00 00 00 00 00 01 00 00 00 00 00 00 00 01 00 00",
    "00 00 00 00 00 80 3b 54 4b dd 45 a2 49",
];
