//! Hashes of v2 torrents: every request gets the right answer or a rejection, and wrong hashes are the fault
//! of the peer that sends them.

mod made;

use std::time::{Duration, Instant};

use made::{BLOCK, Hash, Made, torrent};
use proptest::{collection::vec, prelude::*, sample::select};
use swarmkeep_bittorrent::bencode::Writer;
use swarmkeep_metainfo::Info;
use swarmkeep_peer::hashes::{Answer, HashFault, HashFetch, MOST_HASHES, MOST_READ, answer};
use swarmkeep_peer_wire::{HashRange, Hashes};

const PADDING: &str = "only padding is below those hashes";
const LONG: &str = "more bytes than are hashed at once";

/// Answers like a peer with all files.
fn serve(info: &Info, files: &[Made], range: &HashRange<'_>) -> Result<Vec<Hash>, &'static str> {
    match answer(info, range).map_err(|refusal| refusal.0)? {
        Answer::Hashes(hashes) => Ok(hashes),
        Answer::Read(mut reading) => {
            let bytes = reading.bytes().clone();
            assert!(bytes.end - bytes.start <= MOST_READ && !bytes.is_empty());
            let pieces = reading.pieces().clone();
            let (first, length) = (info.piece_range(pieces.start).unwrap(), u64::from(info.piece_length()));
            assert_eq!(first.start / length, bytes.start / length);
            assert!(info.piece_range(pieces.end - 1).unwrap().contains(&(bytes.end - 1)));
            // Files begin with a piece each.
            let mut begin = 0;
            for file in files {
                let at = (bytes.start as usize).wrapping_sub(begin);
                if at < file.length {
                    let end = bytes.end as usize - begin;
                    file.content[at..end].chunks(5_003).for_each(|part| reading.update(part));
                    return reading.finish().map_err(|refusal| refusal.0);
                }
                begin += file.length.next_multiple_of(info.piece_length() as usize);
            }
            panic!("{bytes:?} are of no file")
        }
    }
}

/// The answer of BEP 52 and libtorrent, from all layers; `None` if the request is to be rejected.
fn expected(file: &Made, base: usize, index: usize, length: usize, proof: usize) -> Option<Vec<Hash>> {
    let levels = length.next_power_of_two().ilog2() as usize;
    let cut_off = !length.is_power_of_two() && index + length < file.blocks().div_ceil(1 << base);
    if base >= file.height() || cut_off || base + levels.max(proof + 1) > file.height() {
        return None;
    }
    let mut hashes = file.layers[base].get(index..index + length)?.to_vec();
    for layer in base + levels..base + proof + 1 {
        hashes.push(file.layers[layer][index >> (layer - base) ^ 1]);
    }
    Some(hashes)
}

#[test]
fn a_request_without_an_answer_is_rejected_with_a_reason() {
    // 17 MiB in pieces of 32 MiB, and twice 33 MiB.
    let files = [Made::of_hashes(1, 1088), Made::of_hashes(2, 2112)];
    let (info, bare) = torrent(&files, 11);
    let asked = |info: &Info, file: &Made, (base, index, length, proof)| {
        let range = HashRange::new(file.root(), base, index, length, proof).unwrap();
        let answer = answer(info, &range).map_err(|refusal| refusal.0);
        answer.map(|answer| match answer {
            Answer::Hashes(hashes) => hashes.len() as u64,
            Answer::Read(reading) => reading.bytes().end - reading.bytes().start,
        })
    };
    let [short, long] = &files;
    assert_eq!(asked(&info, short, (0, 0, 512, 8)), Ok(8 << 20));
    assert_eq!(asked(&info, short, (0, 0, 1024, 9)), Ok(MOST_READ));
    assert_eq!(asked(&info, short, (0, 0, 512, 9)), Ok(MOST_READ), "the neighbour's blocks are read too");
    assert_eq!(asked(&info, short, (0, 0, 512, 10)), Err(LONG));
    assert_eq!(asked(&info, short, (0, 0, 2048, 10)), Err("more hashes than are sent at once"));
    assert_eq!(asked(&info, short, (0, 1088, 2, 0)), Err(PADDING));
    assert_eq!(asked(&info, short, (11, 0, 1, 0)), Err("the layer is not below the root"));
    assert_eq!(asked(&info, short, (10, 2, 2, 0)), Err("hashes behind the end of the layer"));
    assert_eq!(asked(&info, short, (10, 0, 2, 1)), Err("a proof that goes on above the root"));
    assert_eq!(asked(&info, long, (11, 0, 2, 0)), Ok(2));
    assert_eq!(asked(&bare, long, (11, 0, 2, 0)), Err("the hashes of the file's pieces are not known"));
    assert_eq!(asked(&bare, long, (0, 0, 2, 0)), Ok(2 << 14), "blocks prove themselves up to the next layer");
    assert_eq!(asked(&bare, long, (10, 0, 2, 1)), Err(LONG));
    let numbers =
        [u32::MAX, 1 << 31, 1 << 13].into_iter().flat_map(|index| [0, 11, 49].map(|base| (index & !1, base)));
    for ((index, base), proof) in numbers.flat_map(|numbers| [(numbers, 0), (numbers, 49)]) {
        assert!(asked(&info, long, (base, index, 2, proof)).is_err());
    }
}

#[test]
fn content_that_is_not_the_torrents_is_not_hashed_for_others() {
    let files = [Made::of_bytes(5, 6 * BLOCK)];
    let (info, _) = torrent(&files, 1);
    let range = HashRange::new(files[0].root(), 0, 2, 2, 2).unwrap();
    let reading = || match answer(&info, &range).unwrap() {
        Answer::Read(reading) => reading,
        Answer::Hashes(_) => panic!("they are below the piece layer"),
    };
    assert_eq!((reading().bytes(), reading().pieces()), (&(32_768..65_536), &(1..2)));
    let mut bytes = files[0].content[32_768..65_536].to_vec();
    let mut whole = reading();
    whole.update(&bytes);
    assert_eq!(whole.finish(), Ok(expected(&files[0], 0, 2, 2, 2).unwrap()));
    bytes[9] ^= 1;
    let mut other = reading();
    other.update(&bytes);
    assert_eq!(other.finish().unwrap_err().0, "the content is not the torrent's");
    let mut short = reading();
    short.update(&bytes[1..]);
    assert_eq!(short.finish().unwrap_err().0, "the content is not the torrent's");
}

fn lengths() -> impl Strategy<Value = usize> {
    let blocks = prop_oneof![Just(0_usize), 1..20_usize, select(vec![31, 32, 33, 63, 64, 65])];
    (blocks, 0..BLOCK).prop_map(|(blocks, less)| (blocks * BLOCK).saturating_sub(less))
}

/// A message that owns its range and its hashes.
#[derive(Debug, Clone)]
struct Owned {
    root: Hash,
    numbers: [u32; 4],
    hashes: Vec<Hash>,
}

impl Owned {
    fn new(range: HashRange<'_>, hashes: Vec<Hash>) -> Self {
        let numbers = [range.base_layer(), range.index(), range.length(), range.proof_layers()];
        Self { root: *range.root(), numbers, hashes }
    }

    fn range(&self) -> HashRange<'_> {
        let [base, index, length, proof] = self.numbers;
        HashRange::new(&self.root, base, index, length, proof).unwrap()
    }

    fn message(&self) -> Hashes<'_> {
        Hashes::new(self.range(), &self.hashes).unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Answers,
    Rejects,
    IsSilent,
    Lies,
    Leaves,
}

/// Fetches all hashes from peers with `habits`. The first answers and has every piece, the second has every
/// second piece, and so on.
fn fetched(bare: Info, whole: &Info, files: &[Made], habits: &[Habit]) -> Info {
    let mut fetch = HashFetch::new(bare).unwrap();
    let mut now = Instant::now();
    let mut here = vec![true; habits.len()];
    for round in 0_u32.. {
        if fetch.is_complete() {
            break;
        }
        assert!(round < 100_000, "it ends");
        for (peer, habit) in
            habits.iter().enumerate().filter(|(peer, _)| (round as usize).is_multiple_of(1 + peer))
        {
            if !here[peer] {
                continue;
            }
            let has = |pieces: std::ops::Range<u32>| {
                pieces.into_iter().any(|piece| piece.is_multiple_of(peer as u32 + 1))
            };
            while let Some(range) = fetch.request(peer, now, has) {
                assert!(range.length() >= 2 && range.length().is_power_of_two() && range.length() <= 512);
                let mut answer = Owned::new(range, serve(whole, files, &range).unwrap());
                match habit {
                    Habit::Answers => _ = fetch.hashes(peer, &answer.message()).unwrap(),
                    Habit::Rejects => fetch.rejected(peer, &answer.range(), now).unwrap(),
                    Habit::IsSilent => {}
                    Habit::Lies => {
                        let nth = round as usize % answer.hashes.len();
                        answer.hashes[nth][3] ^= 4;
                        assert_eq!(fetch.hashes(peer, &answer.message()), Err(HashFault::Wrong));
                        here[peer] = false;
                    }
                    Habit::Leaves => here[peer] = false,
                }
                if !here[peer] {
                    fetch.gone(peer);
                    break;
                }
            }
        }
        now += Duration::from_millis(300);
    }
    assert_eq!(fetch.request(0, now, |_| true), None);
    fetch.into_info()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_range_of_any_torrent_is_answered_as_from_the_whole_tree(
        lengths in vec(lengths(), 1..4),
        log in 0..5_u32,
        asked in vec((0..8_u32, 0..70_u32, 1..130_u32, 0..10_u32, any::<usize>()), 1..400),
    ) {
        let files: Vec<_> = lengths.iter().enumerate().map(|(nth, length)| Made::of_bytes(nth as u32, *length)).collect();
        prop_assume!(files.iter().any(|file| file.length > 0));
        let (info, _) = torrent(&files, log);
        for (base, nth, length, proof, file) in asked {
            let (file, index) = (&files[file % files.len()], nth * length.next_power_of_two());
            if file.length == 0 {
                continue;
            }
            let range = HashRange::new(file.root(), base, index, length, proof).unwrap();
            let answer = serve(&info, &files, &range);
            match (expected(file, base as usize, index as usize, length as usize, proof as usize), answer) {
                (Some(_), Err(PADDING)) => prop_assert!((index as usize) << base >= file.blocks(), "{:?}", range),
                (Some(hashes), answer) => {
                    prop_assert_eq!(answer.as_ref(), Ok(&hashes), "{:?}", range);
                    prop_assert_eq!(hashes.len() as u32, length + range.uncles());
                    let whole = proof as usize + 1 == file.height() - base as usize;
                    let (hashes, uncles) = hashes.split_at(length as usize);
                    let tree = info.tree(file.root()).unwrap();
                    prop_assert!(!whole || tree.verify(base, index.into(), hashes, uncles), "{:?}", range);
                }
                (None, answer) => prop_assert!(answer.is_err(), "{:?}", range),
            }
        }
        let other = HashRange::new(&[9; 32], 0, 0, 2, 0).unwrap();
        prop_assert_eq!(answer(&info, &other).unwrap_err().0, "no file has that root");
    }

    #[test]
    fn all_layers_are_fetched_whatever_the_others_do(
        lengths in vec(lengths(), 1..6),
        log in 0..3_u32,
        twice in any::<bool>(),
        habits in vec(select(vec![Habit::Answers, Habit::Rejects, Habit::IsSilent, Habit::Lies, Habit::Leaves]), 0..6),
    ) {
        let mut files: Vec<_> = lengths.iter().enumerate().map(|(nth, length)| Made::of_bytes(nth as u32, *length)).collect();
        prop_assume!(files.iter().any(|file| file.length > 0));
        if twice {
            files.push(Made::of_bytes(0, lengths[0]));
        }
        let (whole, bare) = torrent(&files, log);
        let habits = [&[Habit::Answers], &habits[..]].concat();
        let mut fetched = fetched(bare, &whole, &files, &habits);
        prop_assert!(fetched.knows_hashes());
        for file in files.iter().filter(|file| file.length > BLOCK << log) {
            prop_assert_eq!(fetched.tree(file.root()).unwrap().piece_hashes(), whole.tree(file.root()).unwrap().piece_hashes());
        }
        for piece in 0..whole.piece_count() {
            prop_assert!(fetched.check(piece).is_some());
        }
        prop_assert!(fetched.set_piece_layer(&[0; 32], &[]).is_err());
    }
}

#[test]
fn files_of_many_chunks_are_fetched_and_are_checked_as_they_come() {
    for pieces in [511, 512, 513, 514, 1023, 1024, 1025, 1600] {
        let files = [Made::of_hashes(1, pieces), Made::of_hashes(2, 2), Made::of_hashes(3, 1)];
        let (whole, bare) = torrent(&files, 0);
        let mut fetch = HashFetch::new(bare.clone()).unwrap();
        let now = Instant::now();
        let mut asked = Vec::new();
        // Each peer gets requests, as if all others did not answer.
        for peer in 0..9 {
            while let Some(range) = fetch.request(peer, now, |_| true) {
                asked.push((peer, Owned::new(range, serve(&whole, &files, &range).unwrap())));
            }
        }
        assert_eq!(asked.len(), pieces.div_ceil(512) + 1, "each chunk once: {asked:?}");
        let lengths: Vec<_> = asked.iter().map(|(_, range)| (range.numbers[1], range.numbers[2])).collect();
        if pieces == 513 {
            assert_eq!(lengths, [(0, 512), (512, 2), (0, 2)]);
            // libtorrent 2.0.8 asks for 1, and expects as many uncles as there are layers; its own seeders
            // leave one out.
            let range = HashRange::new(files[0].root(), 0, 512, 1, 9).unwrap();
            let hashes = serve(&whole, &files, &range).unwrap();
            assert_eq!(hashes.len(), 11);
            assert!(whole.tree(files[0].root()).unwrap().verify(0, 512, &hashes[..1], &hashes[1..]));
        }
        // The last first.
        while let Some((peer, answer)) = asked.pop() {
            assert!(fetch.info().check(0).is_none(), "not before all of the file is known");
            let taken = fetch.hashes(peer, &answer.message()).unwrap();
            assert_eq!(taken, asked.is_empty());
            assert!(fetch.info().check(pieces as u32).is_some());
            assert_eq!(fetch.hashes(peer, &answer.message()), Err(HashFault::NotAsked), "once is enough");
        }
        assert!(fetch.is_complete() && fetch.info() != &bare);
        let (fetched, root) = (fetch.into_info(), files[0].root());
        assert_eq!(fetched.tree(root).unwrap().piece_hashes(), whole.tree(root).unwrap().piece_hashes());
    }
}

#[test]
fn hashes_that_were_not_asked_for_or_are_wrong_are_their_senders_fault() {
    let files = [Made::of_hashes(1, 1025), Made::of_hashes(2, 500)];
    let (whole, bare) = torrent(&files, 0);
    let now = Instant::now();
    let mut fetch = HashFetch::new(bare).unwrap();
    let range = fetch.request(1, now, |_| true).unwrap();
    let right = Owned::new(range, serve(&whole, &files, &range).unwrap());
    assert_eq!(right.numbers, [0, 0, 512, 10]);
    let with = |change: &dyn Fn(&mut Owned)| {
        let mut other = right.clone();
        change(&mut other);
        other
    };
    // Not requested.
    for other in [
        with(&|other| other.numbers[1] = 512),
        with(&|other| other.numbers[0] = 1),
        with(&|other| other.numbers[3] = 9),
        with(&|other| (other.numbers[2], other.hashes) = (256, vec![[0; 32]; 256])),
        with(&|other| other.root = *files[1].root()),
        with(&|other| other.root = [1; 32]),
    ] {
        assert_eq!(fetch.hashes(1, &other.message()), Err(HashFault::NotAsked), "{:?}", other.numbers);
        assert_eq!(fetch.rejected(1, &other.range(), now), Err(HashFault::NotAsked));
    }
    assert_eq!(fetch.hashes(2, &right.message()), Err(HashFault::NotAsked), "of another peer");
    // Requested, but wrong.
    let mut peer = 10;
    for wrong in [
        with(&|other| other.hashes[0][0] ^= 1),
        with(&|other| other.hashes[511][31] ^= 0x80),
        with(&|other| other.hashes.swap(3, 4)),
        with(&|other| other.hashes[512][7] ^= 1),
        with(&|other| other.hashes[513][7] ^= 1),
        with(&|other| other.hashes.truncate(513)),
        with(&|other| other.hashes.truncate(512)),
        with(&|other| other.hashes.push([0; 32])),
        with(&|other| other.hashes = vec![[0; 32]; 522]),
    ] {
        fetch.gone(peer - 1);
        fetch.gone(1);
        let mut asked = Vec::new();
        while let Some(range) = fetch.request(peer, now, |_| true) {
            asked.push(Owned::new(range, Vec::new()));
        }
        assert!(asked.iter().any(|asked| asked.numbers == right.numbers && asked.root == right.root));
        assert_eq!(
            fetch.hashes(peer, &wrong.message()),
            Err(HashFault::Wrong),
            "{} hashes",
            wrong.hashes.len()
        );
        peer += 1;
    }
    fetch.gone(peer - 1);
    // Nothing of that was taken.
    let mut taken = 0;
    for round in 0..100 {
        while let Some(range) = fetch.request(99, now + Duration::from_secs(round), |_| true) {
            let answer = Owned::new(range, serve(&whole, &files, &range).unwrap());
            let _ = fetch.hashes(99, &answer.message()).unwrap();
            taken += 1;
        }
    }
    assert_eq!((taken, fetch.is_complete()), (4, true));
}

#[test]
fn a_tree_with_something_else_in_the_place_of_padding_is_not_taken() {
    // The second's is behind the hashes that are sent, above which it is an uncle.
    for (blocks, from) in [(5, 5), (513, 514), (1025, 1100)] {
        let file = Made::with_wrong_padding(blocks, from);
        let (_, bare) = torrent(&[Made::of_hashes(7, 1), Made::of_hashes(7, blocks)], 0);
        let mut encoded = bare.encoded().to_vec();
        let at = encoded.windows(32).position(|hash| hash == Made::of_hashes(7, blocks).root()).unwrap();
        encoded[at..at + 32].copy_from_slice(file.root());
        let mut fetch = HashFetch::new(Info::parse(&encoded).unwrap()).unwrap();
        let now = Instant::now();
        let mut wrong = 0;
        for _ in 0..blocks.div_ceil(512) {
            let range = fetch.request(1, now, |_| true).unwrap();
            let [base, index, length, proof] =
                [range.base_layer(), range.index(), range.length(), range.proof_layers()]
                    .map(|number| number as usize);
            let answer = Owned::new(range, expected(&file, base, index, length, proof).unwrap());
            wrong += u32::from(fetch.hashes(1, &answer.message()).is_err());
        }
        assert!(wrong > 0 && !fetch.is_complete() && !fetch.info().knows_hashes());
    }
}

#[test]
fn a_silent_or_rejecting_peer_pauses_and_others_get_its_requests() {
    let files = [Made::of_hashes(1, 6 * 512)];
    let (whole, bare) = torrent(&files, 0);
    let mut fetch = HashFetch::new(bare).unwrap();
    let began = Instant::now();
    let ask = |fetch: &mut HashFetch<u8>, peer: u8, after: u64| -> Vec<Owned> {
        let mut asked = Vec::new();
        while let Some(range) =
            fetch.request(peer, began + Duration::from_secs(after), |pieces| !pieces.contains(&0))
        {
            asked.push(Owned::new(range, serve(&whole, &files, &range).unwrap()));
        }
        asked
    };
    let indexes = |asked: &[Owned]| asked.iter().map(|asked| asked.numbers[1] / 512).collect::<Vec<_>>();
    let silent = ask(&mut fetch, 1, 0);
    assert_eq!(indexes(&silent), [1, 2, 3, 4], "four at once, and only of pieces that it has");
    assert_eq!(indexes(&ask(&mut fetch, 2, 0)), [5]);
    assert_eq!(indexes(&ask(&mut fetch, 3, 1)), []);
    let after = ask(&mut fetch, 3, 2);
    assert_eq!(after.len(), 4, "the open requests of the others");
    assert_eq!(indexes(&ask(&mut fetch, 1, 19)), [], "a silent peer gets no more requests");
    assert_eq!(ask(&mut fetch, 5, 20).len(), 4, "and is not waited for any more");
    fetch.gone(5);
    assert_eq!(fetch.hashes(1, &silent[3].message()), Ok(false), "late, but right");
    let also = after.iter().find(|asked| asked.numbers == silent[3].numbers).unwrap();
    assert_eq!(fetch.hashes(3, &also.message()), Ok(false));
    fetch
        .rejected(
            3,
            &after.iter().find(|asked| asked.numbers != also.numbers).unwrap().range(),
            began + Duration::from_secs(21),
        )
        .unwrap();
    assert_eq!(indexes(&ask(&mut fetch, 3, 30)), []);
    assert!(!ask(&mut fetch, 3, 31).is_empty(), "ten seconds later");
    fetch.gone(3);
    assert!(!ask(&mut fetch, 4, 31).is_empty());
}

#[test]
fn a_torrent_that_says_that_it_is_large_takes_no_memory_and_none_is_fetched_beyond_the_limit() {
    let info = |length: i64| {
        let mut info = Vec::new();
        let mut writer = Writer::new(&mut info);
        writer.dict().bytes(b"file tree").dict().bytes(b"a").dict().bytes(b"").dict();
        writer.bytes(b"length").integer(length).bytes(b"pieces root").bytes(&[1; 32]).end().end().end();
        writer.bytes(b"meta version").integer(2).bytes(b"name").bytes(b"n").bytes(b"piece length");
        writer.integer(BLOCK as i64).end();
        Info::parse(&info).unwrap()
    };
    let most = 256_i64 << 20 >> 5;
    let mut fetch = HashFetch::new(info(most << 14)).unwrap();
    let range = fetch.request(1, Instant::now(), |_| true).unwrap();
    assert_eq!((range.length(), range.proof_layers(), range.uncles()), (512, 22, 14));
    let zeroes = Owned::new(range, vec![[0; 32]; 526]);
    assert_eq!(fetch.hashes(1, &zeroes.message()), Err(HashFault::Wrong));
    assert_eq!(HashFetch::<u8>::new(info((most << 14) + 1)).unwrap_err().0, most as u64 + 1);
    let nothing = HashFetch::<u8>::new(info(5)).unwrap();
    assert!(nothing.is_complete());
    assert!(MOST_HASHES as u64 * BLOCK as u64 <= MOST_READ);
}
