//! Info dictionaries of peers that may lie: the right one is found, and the senders of others are named.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proptest::{collection::vec, prelude::*, sample::select};
use sha2::{Digest, Sha256};
use swarmkeep_metainfo::{Info, InfoHashes};
use swarmkeep_peer::metadata::{Fetched, MetadataFault, MetadataFetch, MetadataUploads};
use swarmkeep_peer_wire::{METADATA_PIECE, MetadataMessage};

type Fetch = MetadataFetch<u32>;

const LONGEST: u32 = 1 << 20;

/// Bytes in the place of an info dictionary: no test here reads them.
fn dictionary(length: usize) -> Vec<u8> {
    (0..length as u32).map(|nth| (nth.wrapping_mul(0x9e37_79b1) >> 9) as u8).collect()
}

fn fetch(info: &[u8]) -> Fetch {
    let hashes = InfoHashes::new(None, Some(Sha256::digest(info).into())).unwrap();
    Fetch::new(hashes, LONGEST)
}

fn piece(info: &[u8], nth: u32) -> &[u8] {
    let begin = (nth * METADATA_PIECE) as usize;
    &info[begin..info.len().min(begin + METADATA_PIECE as usize)]
}

fn requests(fetch: &mut Fetch, peer: u32, now: Instant) -> Vec<u32> {
    std::iter::from_fn(|| fetch.request(peer, now)).collect()
}

fn sends(fetch: &mut Fetch, peer: u32, nth: u32, info: &[u8]) -> Result<Fetched<u32>, MetadataFault> {
    fetch.data(peer, nth, info.len() as u32, piece(info, nth))
}

#[test]
fn hashes_of_v1_of_v2_and_of_hybrids_must_all_be_those_of_the_whole() {
    // The SHA-1 and the SHA-256 of a real dictionary are known from elsewhere.
    let info = b"d6:lengthi5e4:name5:hello12:piece lengthi16384e6:pieces20:\xaa\xf4\xc6\x1d\xdc\xc5\xe8\xa2\xda\xbe\xde\x0f\x3b\x48\x2c\xd9\xae\xa9\x43\x4de";
    let v1 = Info::parse(info).unwrap().info_hash();
    let v2: [u8; 32] = Sha256::digest(info).into();
    assert!(InfoHashes::new(None, None).is_none());
    let wrong = [7; 32];
    for (v1, v2, right) in [
        (Some(v1), None, true),
        (None, Some(v2), true),
        (Some(v1), Some(v2), true),
        (Some([7; 20].into()), None, false),
        (None, Some(wrong), false),
        (Some(v1), Some(wrong), false),
        (Some([7; 20].into()), Some(v2), false),
    ] {
        let mut fetch = Fetch::new(InfoHashes::new(v1, v2).unwrap(), LONGEST);
        fetch.offered(1, info.len() as u32).unwrap();
        assert_eq!(requests(&mut fetch, 1, Instant::now()), [0]);
        let fetched = sends(&mut fetch, 1, 0, info);
        let whole = Fetched::Whole { info: info.to_vec(), liars: vec![] };
        assert_eq!(fetched, if right { Ok(whole) } else { Err(MetadataFault::Wrong) });
    }
}

#[test]
fn the_sender_of_a_wrong_piece_among_many_is_named_when_the_right_dictionary_is_here() {
    let info = dictionary(9 * METADATA_PIECE as usize);
    let mut other = info.clone();
    other[5 * METADATA_PIECE as usize + 7] ^= 1;
    let (mut fetch, now) = (fetch(&info), Instant::now());
    (1..4).for_each(|peer| fetch.offered(peer, info.len() as u32).unwrap());
    let all: Vec<_> = (1..4).map(|peer| (peer, requests(&mut fetch, peer, now))).collect();
    fetch.offered(4, info.len() as u32).unwrap();
    assert_eq!(requests(&mut fetch, 4, now), []);
    let mut suspects = None;
    for (peer, pieces) in all {
        for nth in pieces {
            match sends(&mut fetch, peer, nth, if peer == 2 { &other } else { &info }).unwrap() {
                Fetched::Wrong { suspects: all } => suspects = Some(all),
                Fetched::Part => {}
                fetched @ Fetched::Whole { .. } => panic!("{fetched:?}"),
            }
        }
    }
    assert_eq!(suspects, Some(vec![1, 2, 3]));
    // Now one sends all. A peer that did not send any of that comes first.
    assert_eq!(requests(&mut fetch, 1, now), [], "it is one of those");
    assert_eq!(requests(&mut fetch, 4, now), [0, 1, 2, 3]);
    assert_eq!(requests(&mut fetch, 1, now), [], "no other peer is asked meanwhile");
    let now = now + Duration::from_secs(14);
    assert_eq!(requests(&mut fetch, 2, now), []);
    let now = now + Duration::from_secs(1);
    assert_eq!(
        requests(&mut fetch, 2, now),
        [0, 1, 2, 3],
        "from the beginning, and nothing came of the other in time"
    );
    assert_eq!(sends(&mut fetch, 4, 0, &info), Ok(Fetched::Part), "not taken: it is not the one");
    let mut nexts: Vec<u32> = vec![0, 1, 2, 3];
    let mut fault = None;
    while let Some(nth) = nexts.pop().filter(|_| fault.is_none()) {
        match sends(&mut fetch, 2, nth, &other) {
            Ok(fetched) => assert_eq!(fetched, Fetched::Part),
            Err(wrong) => fault = Some(wrong),
        }
        nexts.extend(requests(&mut fetch, 2, now));
    }
    assert_eq!(fault, Some(MetadataFault::Wrong), "it alone sent that");
    assert!(nexts.is_empty(), "and is not asked again");
    fetch.gone(2);
    let mut nexts = requests(&mut fetch, 3, now);
    let mut whole = None;
    while let Some(nth) = nexts.pop() {
        whole = Some(sends(&mut fetch, 3, nth, &info).unwrap());
        nexts.extend(requests(&mut fetch, 3, now));
    }
    assert_eq!(whole, Some(Fetched::Whole { info, liars: vec![2] }));
}

#[test]
fn the_size_that_most_claim_is_fetched_and_none_that_is_too_long() {
    let info = dictionary(100_000);
    let (mut fetch, now) = (fetch(&info), Instant::now());
    for size in [0, LONGEST + 1, u32::MAX] {
        assert_eq!(fetch.offered(9, size), Err(MetadataFault::Size));
    }
    assert_eq!(requests(&mut fetch, 9, now), [], "it has not said that it has it");
    fetch.offered(1, 900_000).unwrap();
    assert_eq!(requests(&mut fetch, 1, now), [0, 1, 2, 3]);
    fetch.offered(2, 100_000).unwrap();
    assert_eq!(requests(&mut fetch, 2, now), [], "as many claim the other");
    assert_eq!(fetch.data(1, 0, 900_000, &[0; 16384]), Ok(Fetched::Part));
    fetch.offered(3, 100_000).unwrap();
    fetch.offered(3, 900_000).unwrap();
    assert_eq!(requests(&mut fetch, 2, now), [0, 1, 2, 3]);
    assert_eq!(fetch.data(1, 1, 900_000, &[0; 16384]), Ok(Fetched::Part), "of use no more, but asked for");
    assert_eq!(requests(&mut fetch, 3, now), [4, 5, 6]);
    // A piece must be of the size that its peer claimed, and as long as it should be.
    assert_eq!(fetch.data(3, 4, 99_999, piece(&info, 4)), Err(MetadataFault::OtherSize));
    assert_eq!(fetch.data(3, 6, 100_000, &[0; 16384]), Err(MetadataFault::Length));
    fetch.gone(3);
    (0..4).for_each(|nth| _ = sends(&mut fetch, 2, nth, &info).unwrap());
    assert_eq!(requests(&mut fetch, 2, now), [4, 5, 6], "not sent by the peer that has gone");
    (4..6).for_each(|nth| _ = sends(&mut fetch, 2, nth, &info).unwrap());
    assert_eq!(sends(&mut fetch, 2, 6, &info), Ok(Fetched::Whole { info, liars: vec![] }));
}

#[test]
fn a_slow_or_rejecting_peer_pauses_and_others_get_its_requests() {
    let info = dictionary(6 * METADATA_PIECE as usize);
    let (mut fetch, began) = (fetch(&info), Instant::now());
    let after = |seconds| began + Duration::from_secs(seconds);
    (1..4).for_each(|peer| fetch.offered(peer, info.len() as u32).unwrap());
    assert_eq!(requests(&mut fetch, 1, began), [0, 1, 2, 3]);
    assert_eq!(requests(&mut fetch, 2, after(1)), [4, 5]);
    fetch.rejected(2, 4, after(2)).unwrap();
    assert_eq!(fetch.rejected(2, 4, after(2)), Err(MetadataFault::NotAsked));
    assert_eq!(requests(&mut fetch, 2, after(11)), [], "it has rejected");
    assert_eq!(requests(&mut fetch, 3, after(12)), [4]);
    assert_eq!(requests(&mut fetch, 3, after(14)), []);
    assert_eq!(requests(&mut fetch, 3, after(15)), [0, 1, 2], "not sent by the first in time");
    assert_eq!(requests(&mut fetch, 1, after(15)), [], "it has enough to send");
    assert_eq!(sends(&mut fetch, 1, 0, &info), Ok(Fetched::Part), "late, but of use");
    assert_eq!(sends(&mut fetch, 3, 0, &info), Ok(Fetched::Part));
    assert_eq!(sends(&mut fetch, 3, 0, &info), Err(MetadataFault::NotAsked));
    assert_eq!(requests(&mut fetch, 3, after(15)), [3]);
    assert_eq!(requests(&mut fetch, 2, after(17)), [], "the other piece that it was asked for has not come");
    for nth in [4, 1, 2, 3] {
        assert_eq!(sends(&mut fetch, 3, nth, &info), Ok(Fetched::Part));
    }
    let whole = sends(&mut fetch, 2, 5, &info);
    assert_eq!(whole, Ok(Fetched::Whole { info: info.clone(), liars: vec![] }));
    assert_eq!(sends(&mut fetch, 1, 1, &info), Ok(Fetched::Part), "late is no fault");
    assert_eq!(requests(&mut fetch, 3, after(17)), [], "there is nothing more to ask for");
}

#[test]
fn many_that_claim_a_size_and_send_nothing_do_not_keep_one_from_sending_the_right_one() {
    let info = dictionary(300_000);
    let (mut fetch, began) = (fetch(&info), Instant::now());
    fetch.offered(0, info.len() as u32).unwrap();
    (1..20).for_each(|peer| fetch.offered(peer, 17).unwrap());
    for second in 0..10_000 {
        let now = began + Duration::from_secs(second);
        for peer in 1..20 {
            // One of them is as slow as it may be.
            let pieces = requests(&mut fetch, peer, now);
            assert!(pieces.len() <= 1);
        }
        for nth in requests(&mut fetch, 0, now) {
            if let Fetched::Whole { info: whole, .. } = sends(&mut fetch, 0, nth, &info).unwrap() {
                assert!(whole == info && second < 19 * 40, "{second}");
                return;
            }
        }
    }
    panic!("it was not fetched");
}

#[test]
fn a_silent_peer_that_connects_again_and_again_waits_behind_earlier_peers() {
    let info = dictionary(2 * METADATA_PIECE as usize);
    let (mut fetch, began) = (fetch(&info), Instant::now());
    let size = info.len() as u32;
    fetch.offered(0, size).unwrap();
    // The first attempt ends with a wrong piece of another peer: from here on one sends all.
    fetch.offered(1, size).unwrap();
    assert_eq!((fetch.request(0, began), fetch.request(1, began)), (Some(0), Some(1)));
    assert_eq!(sends(&mut fetch, 0, 0, &info), Ok(Fetched::Part));
    assert!(matches!(
        sends(&mut fetch, 1, 1, &dictionary(size as usize + 7)[7..]),
        Ok(Fetched::Wrong { .. })
    ));
    fetch.gone(1);
    // It is there at every moment, and always the first to ask.
    for second in 0..60 {
        let now = began + Duration::from_secs(second.into());
        fetch.gone(1 + second);
        fetch.offered(2 + second, size).unwrap();
        requests(&mut fetch, 2 + second, now);
        for nth in requests(&mut fetch, 0, now) {
            if let Fetched::Whole { info: whole, .. } = sends(&mut fetch, 0, nth, &info).unwrap() {
                assert_eq!(whole, info);
                return;
            }
        }
    }
    panic!("it was not fetched");
}

#[test]
fn a_peer_that_sends_all_has_limited_time_and_more_after_it_was_too_slow() {
    let info = dictionary(40 * METADATA_PIECE as usize);
    let mut other = info.clone();
    other[3] ^= 1;
    let (mut fetch, began) = (fetch(&info), Instant::now());
    let size = info.len() as u32;
    fetch.offered(1, size).unwrap();
    fetch.offered(2, size).unwrap();
    // Both sent some, and the whole is wrong: from here on one sends all.
    let mut left = Vec::from([(1, requests(&mut fetch, 1, began)), (2, requests(&mut fetch, 2, began))]);
    let mut wrong = false;
    while let Some((peer, pieces)) = left.pop() {
        for nth in pieces {
            wrong |= matches!(sends(&mut fetch, peer, nth, &other), Ok(Fetched::Wrong { .. }));
        }
        if wrong {
            break;
        }
        for peer in [3 - peer, peer] {
            let next = requests(&mut fetch, peer, began);
            left.extend((!next.is_empty()).then_some((peer, next)));
        }
    }
    assert!(wrong);
    fetch.gone(2);
    // A piece every three seconds, each in time: too slow for 40 of them at first.
    let (mut now, mut came, mut waits) = (began, BTreeMap::new(), 0);
    let mut queue = std::collections::VecDeque::new();
    for _ in 0..1000 {
        queue.extend(requests(&mut fetch, 1, now));
        now += Duration::from_secs(3);
        let Some(nth) = queue.pop_front() else {
            waits += 1;
            continue;
        };
        *came.entry(nth).or_insert(0) += 1;
        if let Fetched::Whole { info: whole, liars } = sends(&mut fetch, 1, nth, &info).unwrap() {
            assert_eq!((whole, liars.is_empty()), (info, false));
            assert!(came[&0] > 1 && waits > 0, "it began anew: {came:?}");
            return;
        }
    }
    panic!("it was not fetched");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Sends,
    /// Sends pieces of another dictionary: every n-th one.
    Lies(u32),
    ClaimsAnotherSize(u32),
    Rejects,
    IsSilent,
    IsSlow,
    Leaves,
}

fn habits() -> impl Strategy<Value = Vec<Habit>> {
    let habit = prop_oneof![
        Just(Habit::Sends),
        (1..5_u32).prop_map(Habit::Lies),
        select(vec![1, METADATA_PIECE, 77_777, LONGEST]).prop_map(Habit::ClaimsAnotherSize),
        Just(Habit::Rejects),
        Just(Habit::IsSilent),
        Just(Habit::IsSlow),
        Just(Habit::Leaves),
    ];
    vec(habit, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn one_honest_peer_is_enough_and_no_honest_peer_is_at_fault(
        habits in habits(),
        length in prop_oneof![1..300_000_usize, select(vec![1, 16383, 16384, 16385, 32768])],
        honest in any::<usize>(),
    ) {
        let info = dictionary(length);
        let (mut fetch, began) = (fetch(&info), Instant::now());
        let mut habits = habits;
        habits.insert(honest % (habits.len() + 1), Habit::Sends);
        let mut here: Vec<_> = habits.iter().map(|_| true).collect();
        let mut late: Vec<(u64, usize, u32)> = Vec::new();
        for (peer, habit) in habits.iter().enumerate() {
            let size = if let Habit::ClaimsAnotherSize(size) = habit { *size } else { length as u32 };
            fetch.offered(peer as u32, size).unwrap();
        }
        let mut found = None;
        'all: for second in 0..20_000 {
            let now = began + Duration::from_secs(second);
            let due: Vec<_> = late.extract_if(.., |(time, ..)| *time <= second).collect();
            for (_, peer, nth) in due {
                if here[peer] {
                    let fetched = sends(&mut fetch, peer as u32, nth, &info);
                    if let Ok(Fetched::Whole { info, liars }) = fetched {
                        found = Some((info, liars));
                        break 'all;
                    }
                    prop_assert!(fetched.is_ok(), "{:?}", fetched);
                }
            }
            for (peer, habit) in habits.iter().enumerate() {
                while here[peer] && let Some(nth) = fetch.request(peer as u32, now) {
                    let id = peer as u32;
                    let fetched = match *habit {
                        Habit::Lies(every) if nth % every == 0 => {
                            let wrong: Vec<u8> = piece(&info, nth).iter().map(|byte| byte ^ peer as u8 ^ 0x80).collect();
                            fetch.data(id, nth, length as u32, &wrong)
                        }
                        Habit::Sends | Habit::Lies(_) => sends(&mut fetch, id, nth, &info),
                        Habit::ClaimsAnotherSize(size) => {
                            let length = MetadataMessage::piece_len(size, nth);
                            fetch.data(id, nth, size, &vec![peer as u8 ^ 0x55; length as usize])
                        }
                        Habit::Rejects => fetch.rejected(id, nth, now).map(|()| Fetched::Part),
                        Habit::IsSilent => Ok(Fetched::Part),
                        Habit::IsSlow => {
                            late.push((second + 20, peer, nth));
                            Ok(Fetched::Part)
                        }
                        Habit::Leaves => {
                            here[peer] = false;
                            fetch.gone(id);
                            Ok(Fetched::Part)
                        }
                    };
                    match fetched {
                        Ok(Fetched::Whole { info, liars }) => {
                            found = Some((info, liars));
                            break 'all;
                        }
                        Ok(_) => {}
                        Err(fault) => {
                            let lies = matches!(habit, Habit::Lies(_) | Habit::ClaimsAnotherSize(_));
                            prop_assert!(lies && fault == MetadataFault::Wrong, "{:?}: {:?}", habit, fault);
                            here[peer] = false;
                            fetch.gone(id);
                        }
                    }
                }
            }
        }
        let (whole, liars) = found.expect("it was fetched");
        prop_assert!(whole == info);
        for liar in liars {
            prop_assert!(matches!(habits[liar as usize], Habit::Lies(_) | Habit::ClaimsAnotherSize(_)));
        }
    }
}

#[test]
fn a_peer_is_sent_all_three_times_and_then_no_more() {
    let info = dictionary(3 * METADATA_PIECE as usize - 1);
    let mut uploads = MetadataUploads::default();
    for nth in [3, 4, u32::MAX] {
        assert_eq!(uploads.answer(&info, nth), MetadataMessage::Reject { piece: nth });
    }
    for nth in [0, 1, 2].repeat(3) {
        let total_size = info.len() as u32;
        let data = MetadataMessage::Data { piece: nth, total_size, data: piece(&info, nth) };
        assert_eq!(uploads.answer(&info, nth), data);
    }
    assert_eq!(uploads.answer(&info, 0), MetadataMessage::Reject { piece: 0 });
    assert_eq!(MetadataUploads::default().answer(&[], 0), MetadataMessage::Reject { piece: 0 });
}
