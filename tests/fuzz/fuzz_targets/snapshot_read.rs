//! Any file as a snapshot, raw and with any records and any time under matching checksums: it is read, or
//! refused at a byte that it has. Its records go into stores that agree with themselves and return them.
#![no_main]

use std::{collections::BTreeMap, io::Cursor as Bytes, time::Duration};

use libfuzzer_sys::fuzz_target;
use swarmkeep::{
    Budget, Cursor, Endpoint, Export, HashKey, InfoHash, Malformed, Packed, Records, RepositoryConfig,
    Restored, Role, Timestamp, TorrentRepository, TorrentRepositoryExt, Totals,
    snapshot::{Error, Reader, Writer},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const ID: [u8; 16] = [7; 16];
const HEADER: usize = 64;
const BLOCK_HEADER: usize = 40;

fuzz_target!(|input: &[u8]| {
    // A file as it is begins as one.
    if input.starts_with(b"sw") {
        if let Some(blocks) = read(input) {
            assert_taken_in(&blocks);
        }
        return;
    }
    let Some((&kind, mut input)) = input.split_first() else { return };
    let mut taken = NOW;
    if kind >= 128
        && let Some((time, rest)) = input.split_first_chunk()
    {
        (taken, input) = (Timestamp::from_secs(u64::from_le_bytes(*time)), rest);
    }
    // Otherwise it is the records of some blocks.
    let contents: Vec<&[u8]> = match kind % 4 {
        0 => vec![input],
        parts => input.chunks(1 + input.len() / usize::from(parts + 1)).collect(),
    };
    let parsed: Vec<_> = contents.iter().map(|content| parse(content, taken)).collect();
    let bytes = wrap(&contents, &parsed, taken);
    match parsed.iter().position(Result::is_err) {
        None => {
            let blocks = read(&bytes).expect("all records are good");
            assert_eq!(blocks, parsed.into_iter().map(Result::unwrap).collect::<Vec<_>>());
            assert_taken_in(&blocks);
        }
        Some(bad) => {
            let before: usize = contents[..bad].iter().map(|content| BLOCK_HEADER + content.len()).sum();
            let Err(Malformed { at: within, what: why, .. }) = parsed[bad] else {
                unreachable!("it is the bad one")
            };
            match Reader::new(Bytes::new(&bytes)) {
                Err(Error::Damaged { at, block, what }) => {
                    assert_eq!(at as usize, HEADER + before + BLOCK_HEADER + within);
                    assert_eq!((block as usize, what), (bad, why));
                }
                other => panic!("{other:?}"),
            }
        }
    }
});

/// The records of a block, with the ages that they have in a snapshot of this time.
fn parse(content: &[u8], taken: Timestamp) -> Result<Records, Malformed> {
    let mut records = Records::new(taken);
    let until = records.until().saturating_sub(taken.secs_since(NOW));
    records.read(until, |bytes| {
        bytes.extend_from_slice(content);
        Ok::<_, Malformed>(())
    })?;
    Ok(records)
}

/// A snapshot of such blocks, with checksums that fit, and counts that do where there is anything to count.
fn wrap(contents: &[&[u8]], parsed: &[Result<Records, Malformed>], taken: Timestamp) -> Vec<u8> {
    let mut bytes = b"swarmsnp\x01\0\0\0\0\0\0\0".to_vec();
    bytes.extend(ID);
    bytes.extend(taken.as_secs().to_le_bytes());
    bytes.resize(HEADER - 4, 0);
    let mut chain = crc32c::crc32c(&bytes);
    bytes.extend(chain.to_le_bytes());
    let (mut swarms, mut peers) = (0, 0);
    for (n, (content, parsed)) in contents.iter().zip(parsed).enumerate() {
        let found = parsed.as_ref().map_or(0, Records::swarms);
        swarms += u64::from(found);
        peers += parsed.as_ref().map_or(0, Records::peers);
        let until = Records::new(taken).until().as_secs();
        let checksum = crc32c::crc32c(content);
        let numbers = [content.len() as u64, until, found.into()];
        chain = header(&mut bytes, chain, (*b"blok", n as u32), numbers, checksum);
        bytes.extend(*content);
    }
    let (blocks, before) = (contents.len() as u32, bytes.len() as u64);
    header(&mut bytes, chain, (*b"end!", blocks), [before, peers, swarms], chain);
    bytes
}

/// Appends the header of a block or of the end.
fn header(
    bytes: &mut Vec<u8>,
    chain: u32,
    (tag, number): ([u8; 4], u32),
    numbers: [u64; 3],
    checksum: u32,
) -> u32 {
    let start = bytes.len();
    bytes.extend(tag);
    bytes.extend(number.to_le_bytes());
    bytes.extend(numbers.map(u64::to_le_bytes).as_flattened());
    bytes.extend(checksum.to_le_bytes());
    let own = crc32c::crc32c_append(crc32c::crc32c(&ID), &bytes[start..]);
    let chain = crc32c::crc32c_append(chain, &bytes[start..]);
    bytes.extend(own.to_le_bytes());
    chain
}

/// The records of a snapshot. If it is none, checks the position of the error.
fn read(bytes: &[u8]) -> Option<Vec<Records>> {
    let mut reader = match Reader::new(Bytes::new(bytes)) {
        Ok(reader) => reader,
        Err(error) => {
            let long = bytes.len() as u64;
            match error {
                Error::Truncated { at } => assert_eq!(at, long),
                Error::Damaged { at, .. } | Error::Trailing { at } => assert!(at < long),
                Error::NotASnapshot | Error::Version { .. } => {}
                other => panic!("{other}"),
            }
            return None;
        }
    };
    let summary = reader.summary();
    assert_eq!(summary.bytes, bytes.len() as u64);
    let (mut blocks, mut records) = (Vec::new(), Records::new(NOW));
    while reader.next(&mut records, NOW).expect("it was looked at") {
        blocks.push(records.clone());
    }
    assert_eq!(blocks.iter().map(|block| u64::from(block.swarms())).sum::<u64>(), summary.records);
    assert_eq!(blocks.iter().map(Records::peers).sum::<u64>(), summary.peers);
    Some(blocks)
}

type Swarms = BTreeMap<InfoHash, (u32, BTreeMap<Endpoint, (Role, Timestamp)>)>;

fn config() -> RepositoryConfig {
    RepositoryConfig::new(HashKey::from_bytes([9; 16])).shards(2).lifetime(Duration::from_secs(2700))
}

fn assert_taken_in(blocks: &[Records]) {
    let peers: u64 = blocks.iter().map(Records::peers).sum();
    let store = Packed::new(&config()).unwrap();
    let restored = store.import(blocks, NOW);
    assert_eq!(restored.added + restored.known + restored.expired, peers);
    assert_eq!(restored.refused, 0);
    // Everyone once, as the first record has it that does not come too late.
    let mut expected = Swarms::new();
    for record in blocks.iter().flat_map(Records::iter) {
        let oldest = NOW.saturating_sub(2700);
        let living: Vec<_> = record.peers().filter(|peer| peer.last_announce >= oldest).collect();
        if living.is_empty() && record.downloaded == 0 {
            continue;
        }
        let (downloaded, peers) = expected.entry(record.info_hash).or_default();
        *downloaded = record.downloaded.max(*downloaded);
        for peer in living {
            peers.entry(peer.endpoint).or_insert((peer.role, peer.last_announce.min(NOW)));
        }
    }
    let found = swarms_of(&store);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for ((downloaded, peers), (expected_downloaded, expected)) in found.values().zip(expected.values()) {
        assert_eq!(downloaded, expected_downloaded);
        assert_eq!(peers.len(), expected.len());
        for ((endpoint, (role, time)), (same, (expected_role, expected_time))) in peers.iter().zip(expected) {
            assert_eq!((endpoint, role), (same, expected_role));
            let younger = time.secs_since(*expected_time);
            assert!(time >= expected_time && younger <= store.capabilities().clock_resolution_secs);
        }
    }
    assert_eq!(store.totals().peers(), restored.added);

    // One by one it is the same.
    let single = Packed::new(&config()).unwrap();
    let mut one_by_one = Restored::default();
    for record in blocks.iter().flat_map(Records::iter) {
        one_by_one += single.restore(&record.summary(), &record.peers().collect::<Vec<_>>(), NOW);
    }
    assert_eq!((one_by_one, single.totals()), (restored, store.totals()));

    // With limits, all are kept.
    let limited = config().max_swarms(3).max_peers_per_swarm(20).max_endpoints_per_address(2);
    let limited = Packed::new(&limited.max_bytes(100 << 10)).unwrap();
    let restored = limited.import(blocks, NOW);
    assert_eq!(restored.added + restored.known + restored.expired + restored.refused, peers);
    assert_eq!(limited.totals().peers(), restored.added);
    assert!(limited.totals().swarms <= 3 && limited.memory().bytes <= 100 << 10);

    // And it comes back.
    let (mut writer, mut export) = (Writer::new(Vec::new(), ID, NOW).unwrap(), Export::new());
    while !export.is_complete() {
        store.export(&mut export, NOW, Budget::peers(3));
        writer.write(export.records()).unwrap();
    }
    let (bytes, _) = writer.finish().unwrap();
    let again = Packed::new(&config()).unwrap();
    again.import(&read(&bytes).expect("just written"), NOW);
    assert_eq!(swarms_of(&again), found);
    assert_eq!(again.totals(), store.totals());
}

fn swarms_of(store: &Packed) -> Swarms {
    let (mut all, mut from) = (Vec::new(), Cursor::START);
    while !from.is_end() {
        from = store.walk(from, 100, &mut all);
    }
    let mut totals = Totals::default();
    let swarms: Swarms = all
        .iter()
        .map(|swarm| {
            let peers = store.all_peers(&swarm.info_hash);
            assert_eq!(peers.len() as u64, swarm.stats.peers());
            totals.swarms += 1;
            let peers = peers.into_iter().map(|peer| (peer.endpoint, (peer.role, peer.last_announce)));
            (swarm.info_hash, (swarm.stats.downloaded, peers.collect()))
        })
        .collect();
    assert_eq!(store.totals().swarms, totals.swarms);
    swarms
}
