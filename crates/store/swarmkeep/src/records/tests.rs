use super::*;
use crate::{Random, SplitMix64};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn below(rng: &mut SplitMix64, bound: usize) -> usize {
    (rng as &mut dyn Random).below(bound)
}

fn hash(rng: &mut SplitMix64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]));
    InfoHash::new(bytes)
}

/// Returns a random endpoint of a family, including the smallest and the largest.
fn endpoint(family: Family, rng: &mut SplitMix64) -> Endpoint {
    let port = [1, 255, 256, 6881, u16::MAX][below(rng, 5)];
    match family {
        Family::V4 => {
            let mut bytes = [0; CompactV4::LEN];
            bytes[..4].copy_from_slice(&rng.next_u64().to_le_bytes()[..4]);
            bytes[4..].copy_from_slice(&port.to_be_bytes());
            bytes.try_into().expect("a port")
        }
        Family::V6 => {
            let mut bytes = [0; CompactV6::LEN];
            bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
            bytes[8..16].copy_from_slice(&rng.next_u64().to_le_bytes());
            bytes[0] |= 0x20;
            bytes[16..].copy_from_slice(&port.to_be_bytes());
            bytes.try_into().expect("a port")
        }
    }
}

fn details(rng: &mut SplitMix64) -> PeerDetails {
    let mut id = [0; PeerId::LEN];
    id.fill_with(|| rng.next_u64() as u8);
    let counts = [0, 1, u64::from(u32::MAX), u64::MAX];
    let mut count = || counts[below(rng, 4)];
    PeerDetails { peer_id: PeerId::new(id), uploaded: count(), downloaded: count(), left: count() }
}

/// The ages of the peers, and the share of them with details.
#[derive(Debug, Clone, Copy)]
struct Kind {
    oldest: u64,
    /// Per hundred peers.
    with_details: usize,
}

fn peer(rng: &mut SplitMix64, kind: Kind) -> PeerRecord {
    let family = [Family::V4, Family::V6][below(rng, 2)];
    PeerRecord {
        endpoint: endpoint(family, rng),
        role: [Role::Seeder, Role::Leecher][below(rng, 2)],
        // Also times after the start of the records.
        last_announce: NOW.saturating_add(SLACK).saturating_sub(rng.next_u64() % (kind.oldest + 1)),
        details: (below(rng, 100) < kind.with_details).then(|| details(rng)),
    }
}

/// Returns an IPv4 leecher without details.
fn leecher(last_announce: Timestamp, rng: &mut SplitMix64) -> PeerRecord {
    PeerRecord { endpoint: endpoint(Family::V4, rng), role: Role::Leecher, last_announce, details: None }
}

/// Returns the peers in the order of the encoding: peers with details first, each part by section.
fn in_order(peers: &[PeerRecord]) -> Vec<PeerRecord> {
    let mut sorted = peers.to_vec();
    sorted.sort_by_key(|peer| (peer.details.is_none(), section_of(peer)));
    sorted
}

fn read(bytes: &[u8]) -> Result<Records, Malformed> {
    let mut records = Records::new(Timestamp::default());
    let until = NOW.saturating_add(SLACK);
    records.read(until, |into| {
        into.extend_from_slice(bytes);
        Ok::<_, Malformed>(())
    })?;
    Ok(records)
}

fn refused(bytes: &[u8]) -> Malformed {
    read(bytes).map(|records| format!("{records:?}")).expect_err("it is malformed")
}

/// Pushes a swarm and checks that it is read back as it was. All its parts must have the same info hash and
/// download count. Returns the encoded bytes.
fn assert_round_trip(info_hash: &InfoHash, downloaded: u32, peers: &[PeerRecord]) -> Vec<u8> {
    let mut records = Records::new(NOW);
    records.push(info_hash, downloaded, peers);
    let again = read(records.as_bytes()).expect("just written");
    assert_eq!(again, records);
    assert_eq!(again.peers(), peers.len() as u64);
    assert_eq!(again.swarms() as usize, again.iter().count());
    let mut found = Vec::new();
    for record in again.iter() {
        assert_eq!((record.info_hash, record.downloaded), (*info_hash, downloaded));
        assert_eq!(record.summary().stats.downloaded, downloaded);
        assert_eq!((record.len(), record.is_empty()), (record.peers().count(), record.peers().count() == 0));
        found.extend(record.peers());
    }
    assert_eq!(found, in_order(peers));
    records.bytes
}

#[test]
fn every_swarm_comes_back_as_it_was_pushed() {
    let mut rng = SplitMix64::new(1);
    for oldest in [0, 10, 65_535, 65_536, 3_000_000, u64::from(u32::MAX)] {
        for with_details in [0, 50, 100] {
            for downloaded in [0, 1, 255, 256, u32::MAX] {
                for count in [0, 1, 2, 3, 255, 256, 1100] {
                    let kind = Kind { oldest, with_details };
                    let peers: Vec<_> = (0..count).map(|_| peer(&mut rng, kind)).collect();
                    assert_round_trip(&hash(&mut rng), downloaded, &peers);
                }
            }
        }
    }
    for with_details in [0, 50] {
        let kind = Kind { oldest: 70_000, with_details };
        let many: Vec<_> = (0..70_000).map(|_| peer(&mut rng, kind)).collect();
        assert_round_trip(&hash(&mut rng), 7, &many);
    }
}

#[test]
fn a_record_is_as_long_as_it_must_be() {
    let mut rng = SplitMix64::new(2);
    let mut len = |family, count: usize, downloaded, age, with_details: bool| {
        let peers: Vec<_> = (0..count)
            .map(|_| PeerRecord {
                endpoint: endpoint(family, &mut rng),
                details: with_details.then(|| details(&mut rng)),
                ..leecher(NOW.saturating_add(SLACK).saturating_sub(age), &mut rng)
            })
            .collect();
        assert_round_trip(&InfoHash::new([9; 20]), downloaded, &peers).len()
    };
    // Flags and info hash; then the download count, the counts per section, and the peers.
    assert_eq!(len(Family::V4, 0, 0, 0, false), 21);
    assert_eq!(len(Family::V4, 0, 255, 0, false), 21 + 1);
    assert_eq!(len(Family::V4, 0, 256, 0, false), 21 + 4);
    assert_eq!(len(Family::V4, 1, 0, 65_535, false), 21 + 8);
    assert_eq!(len(Family::V4, 1, 0, 65_536, false), 21 + 10);
    assert_eq!(len(Family::V6, 1, 1, 0, false), 21 + 1 + 20);
    assert_eq!(len(Family::V6, 1, 0, 0, true), 21 + 20 + 44);
    assert_eq!(len(Family::V4, 2, 0, 0, false), 21 + 4 + 2 * 8);
    assert_eq!(len(Family::V4, 255, 0, 0, false), 21 + 4 + 255 * 8);
    assert_eq!(len(Family::V4, 256, 0, 0, false), 21 + 16 + 256 * 8);
}

#[test]
fn times_behind_until_are_until_and_ages_beyond_32_bits_are_as_old_as_can_be_said() {
    let mut records = Records::new(NOW);
    let until = records.until();
    assert_eq!(until.secs_since(NOW), 255);
    let mut rng = SplitMix64::new(4);
    let oldest = until.saturating_sub(u64::from(u32::MAX)).as_secs();
    for (told, kept) in [
        (until.as_secs() + 1, until.as_secs()),
        (u64::MAX, until.as_secs()),
        (until.as_secs(), until.as_secs()),
        (NOW.as_secs(), NOW.as_secs()),
        (oldest, oldest),
        (0, oldest),
    ] {
        let peers = [Timestamp::from_secs(told), NOW].map(|time| leecher(time, &mut rng));
        for count in [1, 2] {
            records.begin(NOW);
            records.push(&InfoHash::new([1; 20]), 0, &peers[..count]);
            let found = records.iter().flat_map(|record| record.peers());
            let times: Vec<_> = found.map(|peer| peer.last_announce.as_secs()).collect();
            assert_eq!(times, [kept, NOW.as_secs()][..count]);
        }
    }
}

#[test]
fn beginning_anew_forgets_and_several_swarms_follow_each_other() {
    let mut rng = SplitMix64::new(5);
    let mut records = Records::new(Timestamp::from_secs(5));
    for _ in 0..3 {
        records.begin(NOW);
        assert!(records.is_empty() && records.swarms() == 0 && records.peers() == 0);
        let swarms: Vec<(InfoHash, u32, Vec<PeerRecord>)> = (0..300)
            .map(|_| {
                let kind = Kind { oldest: 70_000, with_details: 0 };
                let count = below(&mut rng, 6);
                let peers = (0..count).map(|_| peer(&mut rng, kind)).collect();
                (hash(&mut rng), rng.next_u64() as u32 >> below(&mut rng, 32), peers)
            })
            .collect();
        swarms.iter().for_each(|(hash, downloaded, peers)| records.push(hash, *downloaded, peers));
        let again = read(records.as_bytes()).expect("just written");
        assert_eq!(again, records);
        assert_eq!(again.swarms(), 300);
        for ((hash, downloaded, peers), record) in swarms.iter().zip(again.iter()) {
            assert_eq!((record.info_hash, record.downloaded), (*hash, *downloaded));
            assert_eq!(record.peers().collect::<Vec<_>>(), in_order(peers));
        }
        // Starts in the middle, like a store that imports the records in another order.
        for (nth, (at, record)) in again.iter_from(0).enumerate() {
            let (again_at, same) = again.iter_from(at).next().expect("there is one");
            assert_eq!((again_at, same.info_hash, record.info_hash), (at, swarms[nth].0, swarms[nth].0));
            assert_eq!(again.iter_from(at).count(), 300 - nth);
        }
    }
}

#[test]
fn sections_and_swarms_of_one_are_written_as_the_same_peers_are() {
    let mut rng = SplitMix64::new(6);
    for round in 0..500 {
        let kind = Kind { oldest: [100, 65_535, 65_536, 1 << 30][below(&mut rng, 4)], with_details: 0 };
        let count = [0, 1, 1, 2, 40, 255, 256, 700][below(&mut rng, 8)];
        let peers = in_order(&(0..count).map(|_| peer(&mut rng, kind)).collect::<Vec<_>>());
        let downloaded = [0, 1, 255, 256, u32::MAX][round % 5];
        let info_hash = hash(&mut rng);
        let [mut pushed, mut one, mut sections] = [(); 3].map(|()| Records::new(NOW));
        let mut counts = [0; 4];
        peers.iter().for_each(|peer| counts[section_of(peer)] += 1);
        let endpoints: Vec<u8> = peers.iter().flat_map(|peer| peer.endpoint.as_bytes()).copied().collect();
        let times = peers.iter().map(|peer| peer.last_announce);
        for _ in 0..2 {
            pushed.push(&info_hash, downloaded, &peers);
            sections.push_sections(&info_hash, downloaded, counts, &endpoints, times.clone());
            assert_eq!(sections, pushed);
            if let [PeerRecord { endpoint: Endpoint::V4(endpoint), role, last_announce, .. }] = *peers {
                one.push_one(&info_hash, downloaded, role, *endpoint.as_bytes(), last_announce);
                assert_eq!(one, pushed);
            }
        }
    }
}

#[test]
fn lists_are_joined_if_their_ages_are_relative_to_one_time() {
    let (mut rng, kind) = (SplitMix64::new(6), Kind { oldest: 3000, with_details: 0 });
    let [first, second] = [(); 2].map(|()| (hash(&mut rng), peer(&mut rng, kind)));
    let list = |now, swarms: &[(InfoHash, PeerRecord)]| {
        let mut records = Records::new(now);
        swarms.iter().for_each(|(info_hash, peer)| records.push(info_hash, 1, &[*peer]));
        records
    };
    let mut joined = Records::with_capacity(1000);
    assert!(joined.append(&list(NOW, &[first])) && joined.append(&list(NOW, &[second])));
    assert_eq!(joined, list(NOW, &[first, second]));
    assert!(!joined.append(&list(NOW.saturating_add(1), &[first])));
    assert_eq!(joined, list(NOW, &[first, second]));
}

/// One record of each kind, with the position of each.
fn of_all_kinds() -> (Vec<u8>, Vec<usize>) {
    let (mut rng, mut bytes, mut starts) = (SplitMix64::new(7), Vec::new(), Vec::new());
    for (count, downloaded, oldest, with_details) in [
        (0, 0, 0, 0),
        (0, 9, 0, 0),
        (1, 0, 10, 0),
        (1, 300, 1 << 20, 100),
        (2, 1, 10, 0),
        (3, 0, 1 << 20, 100),
        (9, 70_000, 10, 0),
        (1030, 0, 1 << 20, 0),
    ] {
        let kind = Kind { oldest, with_details };
        let peers: Vec<_> = (0..count).map(|_| peer(&mut rng, kind)).collect();
        let mut records = Records::new(NOW);
        records.push(&hash(&mut rng), downloaded, &peers);
        starts.push(bytes.len());
        bytes.extend_from_slice(records.as_bytes());
    }
    (bytes, starts)
}

#[test]
fn records_that_are_cut_off_anywhere_are_refused_where_the_last_one_begins() {
    let (bytes, starts) = of_all_kinds();
    for len in 0..bytes.len() {
        match starts.binary_search(&len) {
            Ok(_) => assert_eq!(read(&bytes[..len]).expect("whole records").as_bytes(), &bytes[..len]),
            Err(behind) => {
                let at = starts[behind - 1];
                assert_eq!(refused(&bytes[..len]), Malformed { at, what: "a record ends too early" });
            }
        }
    }
}

#[test]
fn nothing_is_there_after_a_refusal() {
    let (bytes, _) = of_all_kinds();
    let mut records = Records::new(NOW);
    records.push(&InfoHash::new([1; 20]), 1, &[]);
    let fill = |into: &mut Vec<u8>| {
        into.extend_from_slice(&bytes[..bytes.len() - 1]);
        Ok::<_, Malformed>(())
    };
    records.read(NOW, fill).expect_err("it is cut off");
    assert!(records.is_empty() && records.swarms() == 0 && records.peers() == 0);
    records.push(&InfoHash::new([1; 20]), 1, &[]);
    let other = Malformed { at: 3, what: "an error of the closure" };
    let failed = records.read(NOW, |into| {
        into.push(1);
        Err(other)
    });
    assert_eq!(failed, Err(other));
    assert!(records.is_empty() && records.swarms() == 0 && records.peers() == 0);
}

/// Every possible first byte, followed by enough bytes for the record that it declares.
#[test]
fn every_first_byte_is_understood_or_refused() {
    for flags in 0..=u8::MAX {
        let (peers, downloaded, section) = (flags & 3, flags >> 2 & 3, usize::from(flags >> 6));
        let count_len = [0, 0, 4, 16][usize::from(peers)];
        let downloaded_len = [0, 1, 4, 0][usize::from(downloaded)];
        let counts: [usize; 4] = match peers {
            0 => [0; 4],
            1 => [0, 1, 2, 3].map(|n| usize::from(n == section)),
            _ => [1, 0, 2, 1],
        };
        let mut bytes = vec![flags];
        bytes.extend([0x20; InfoHash::LEN]);
        bytes.extend(std::iter::repeat_n(5, downloaded_len));
        let own = counts.map(|count| count as u32);
        match peers {
            2 => bytes.extend(own.map(|count| count as u8)),
            3 => bytes.extend(own.iter().flat_map(|count| count.to_le_bytes())),
            _ => {}
        }
        let total: usize = counts.iter().sum();
        let endpoints: usize = counts.iter().zip(WIDTHS).map(|(count, width)| count * width).sum();
        let ages = if flags & 1 << 4 == 0 { 2 } else { 4 };
        let details = if flags & 1 << 5 == 0 { 0 } else { DETAILS };
        bytes.extend(vec![0x20; endpoints + total * (ages + details)]);
        assert!(bytes.len() >= 21 + downloaded_len + count_len);

        // After a valid record, so that the reported position is not 0.
        let mut behind = Records::new(NOW);
        behind.push(&InfoHash::new([3; 20]), 0, &[]);
        let start = behind.as_bytes().len();
        let all = [behind.as_bytes(), &bytes].concat();
        if downloaded == 3 {
            assert_eq!(refused(&all), Malformed { at: start, what: "a download count has an unknown width" });
        } else if peers != 1 && section != 0 {
            assert_eq!(refused(&all), Malformed { at: start, what: "bits are set that mean nothing" });
        } else {
            let records = read(&all).unwrap_or_else(|error| panic!("{flags:#b}: {error}"));
            assert_eq!((records.swarms(), records.peers()), (2, total as u64), "{flags:#b}");
            let record = records.iter().nth(1).expect("the second");
            let found: Vec<_> = record.peers().collect();
            let of = |n: usize| found.iter().filter(|peer| section_of(peer) == n).count();
            assert_eq!([0, 1, 2, 3].map(of), counts);
            assert!(found.iter().all(|peer| peer.details.is_some() == (details > 0)));
            assert_eq!(record.downloaded, [0, 5, 0x0505_0505][usize::from(downloaded)]);
        }
    }
}

#[test]
fn endpoints_that_are_none_are_refused_where_their_record_begins() {
    let what = "an endpoint has port 0 or is of the other family";
    let (mut bytes, starts) = of_all_kinds();
    let whole = bytes.clone();
    // The only peer of the third record, IPv4 or IPv6: its port follows its address.
    let record = read(&bytes).expect("whole");
    let one = record.iter().nth(2).expect("the third");
    let (at, width) = (starts[2] + 21, one.endpoints.len());
    bytes[at + width - 2..at + width].fill(0);
    assert_eq!(refused(&bytes), Malformed { at: starts[2], what });

    // An IPv4-mapped address is an IPv4 address.
    let mut mapped = vec![flags::ONE | 2 << flags::SECTION];
    mapped.extend([7; InfoHash::LEN]);
    mapped.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 26, 225]);
    mapped.extend([0, 0]);
    assert_eq!(refused(&mapped), Malformed { at: 0, what });
    assert_eq!(refused(&[&whole[..], &mapped].concat()), Malformed { at: whole.len(), what });

    // Also the last of many peers.
    let (mut rng, mut many) = (SplitMix64::new(8), Records::new(NOW));
    let peers: Vec<_> = (0..300).map(|_| leecher(NOW, &mut rng)).collect();
    many.push(&InfoHash::new([1; 20]), 0, &peers);
    let port = 21 + 16 + 300 * 6 - 2;
    many.bytes[port..port + 2].fill(0);
    assert_eq!(refused(&many.bytes), Malformed { at: 0, what });
}

/// The largest counts that can be encoded, which need more bytes than any memory has.
#[test]
fn counts_beyond_the_bytes_are_refused_without_an_allocation() {
    for counts in [[u32::MAX; 4], [u32::MAX, 0, 0, 0], [0, 0, 0, u32::MAX], [1 << 31, 1 << 31, 0, 0]] {
        for others in [0, flags::WIDE_AGES, flags::DETAILS, flags::WIDE_AGES | flags::DETAILS] {
            let mut bytes = vec![flags::WIDE_COUNTS | others];
            bytes.extend([7; InfoHash::LEN]);
            bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            bytes.extend([1; 1000]);
            assert_eq!(refused(&bytes), Malformed { at: 0, what: "a record ends too early" });
            let mut records = Records::new(NOW);
            let read = records.read(NOW, |into| {
                *into = bytes.clone();
                Ok::<_, Malformed>(())
            });
            read.expect_err("there are fewer peers");
            assert!(records.bytes.capacity() < 2000);
        }
    }
}

/// Records without peers in wide counts, which the library never writes.
#[test]
fn no_peers_can_be_said_in_four_ways() {
    for (flags, counts) in [(flags::NONE, 0), (flags::COUNTS, 4), (flags::WIDE_COUNTS, 16)] {
        for others in [0, flags::WIDE_AGES, flags::DETAILS] {
            let mut bytes = vec![flags | others];
            bytes.extend([7; InfoHash::LEN]);
            bytes.extend(vec![0; counts]);
            let records = read(&bytes).expect("nobody");
            assert_eq!((records.swarms(), records.peers()), (1, 0));
            assert_eq!(records.iter().flat_map(|record| record.peers()).count(), 0);
        }
    }
}

#[test]
fn records_print_their_numbers_and_their_size() {
    let mut records = Records::new(NOW);
    records.push(&InfoHash::new([1; 20]), 1, &[]);
    assert_eq!(format!("{records:?}"), "Records(1 swarms, 0 peers, 22 bytes)");
    assert_eq!(refused(&[0]).to_string(), "a record ends too early");
}
