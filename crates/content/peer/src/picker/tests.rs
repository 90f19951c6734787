//! The picker, as its peers see it.

use std::cell::Cell;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

const LATE: Duration = Duration::from_secs(10);
const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];

/// A picker of pieces of four blocks, and the searches of its peers.
struct Picking {
    picker: Picker,
    searched: BTreeMap<PeerKey, EmptySearch>,
    rng: SmallRng,
    now: Instant,
    per_stripe: u32,
    /// How many times `has` was called.
    looked: Cell<usize>,
}

impl Picking {
    /// With memory for `memory` pieces.
    fn new(pieces: u32, memory: u64) -> Self {
        let length = 4 * u64::from(BLOCK);
        let mut info = format!(
            "d6:lengthi{}e4:name1:x12:piece lengthi{length}e6:pieces{}:",
            u64::from(pieces) * length,
            20 * pieces
        );
        info.extend((0..20 * pieces).map(|_| 'a'));
        info.push('e');
        let info = Arc::new(Info::parse(info.as_bytes()).unwrap());
        let mut rng = SmallRng::seed_from_u64(1);
        let picker = Picker::new(info, PieceBits::none(pieces), memory * length, LATE, &mut rng);
        let (now, looked) = (Instant::now(), Cell::new(0));
        Self { picker, searched: BTreeMap::new(), rng, now, per_stripe: 1, looked }
    }

    fn pick(
        &mut self,
        peer: u64,
        has: &[u32],
        allows: Option<&[u32]>,
        snubs: bool,
        count: usize,
    ) -> Vec<Block> {
        let mut asked = Vec::new();
        let has = |piece| {
            self.looked.set(self.looked.get() + 1);
            has.contains(&piece)
        };
        let peer = PeerKey(peer);
        // From the hundredth on they are all of one network.
        let from = IpAddr::from([10, 0, 0, peer.0.min(100) as u8]);
        let (per_stripe, now) = (self.per_stripe, self.now);
        let pick =
            PickRequest { peer, from, count, has: &has, allows, preferred: &[], per_stripe, snubs, now };
        let searched = self.searched.entry(peer).or_default();
        self.picker.pick(&pick, searched, &mut self.rng, &mut asked);
        asked
    }

    fn ask(&mut self, peer: u64, has: &[u32], count: usize) -> Vec<Block> {
        self.pick(peer, has, None, false, count)
    }

    fn bring(&mut self, peer: u64, block: Block) -> Option<Received> {
        let data = vec![peer as u8; block.length as usize];
        self.picker.received(PeerKey(peer), block.piece.0, block.begin, &data, self.now)
    }

    fn give_back(&mut self, peer: u64, blocks: &[Block]) {
        self.picker.give_back(PeerKey(peer), blocks.iter().copied(), &mut self.rng);
    }

    /// A piece that was wrong with blocks of two peers.
    fn wrong(&mut self) {
        let halves = [self.ask(1, &[0], 2), self.ask(2, &[0], 2)];
        for (peer, half) in (1..).zip(halves) {
            half.into_iter().for_each(|block| _ = self.bring(peer, block));
        }
        self.picker.verified(0, false, true, &mut self.rng);
    }
}

#[test]
fn late_blocks_are_requested_from_an_idle_peer_while_pieces_wait_that_no_peer_has() {
    let mut picking = Picking::new(2, 2);
    let mut silent = picking.ask(1, &[0], 8);
    silent.reverse();
    assert_eq!(silent.len(), 4);
    assert_eq!(picking.ask(2, &[0], 8), []);
    picking.now += LATE;
    assert_eq!(picking.ask(2, &[0], 8), silent);
    assert_eq!(picking.ask(3, &[0], 8), []);
    for block in silent {
        assert_eq!(picking.bring(2, block).unwrap().cancel, [PeerKey(1)]);
        assert_eq!(picking.bring(1, block), None);
    }
}

#[test]
fn silent_peers_with_all_the_memory_do_not_stop_others() {
    let mut picking = Picking::new(8, 1);
    let mut silent = picking.ask(1, ALL, 8);
    silent.reverse();
    assert_eq!((silent.len(), picking.ask(2, ALL, 8).len()), (4, 0));
    picking.now += LATE;
    assert_eq!(picking.ask(2, ALL, 8), silent);
    // Nor do two.
    picking.now += LATE;
    picking.give_back(1, &silent);
    assert_eq!(picking.ask(3, ALL, 8), silent);
}

#[test]
fn a_stripe_is_begun_when_no_piece_of_begun_stripes_waits() {
    let mut picking = Picking::new(8, 8);
    picking.per_stripe = 4;
    let begun: Vec<_> = (1..=8).map(|peer| picking.ask(peer, ALL, 4)[0].piece.0 / 4).collect();
    assert!(begun[..4].iter().all(|stripe| *stripe == begun[0]), "{begun:?}");
    assert!(begun[4..].iter().all(|stripe| *stripe == 1 - begun[0]), "{begun:?}");
    let mut picking = Picking::new(8, 8);
    picking.per_stripe = 4;
    assert_eq!(picking.ask(1, &[0, 7], 4)[0].piece.0 / 4, picking.ask(2, ALL, 4)[0].piece.0 / 4);
    let others: &[u32] = if picking.picker.begun.contains_key(&0) { &[7] } else { &[0] };
    assert_eq!(
        picking.ask(3, others, 4)[0].piece.0,
        others[0],
        "a peer that has nothing of it begins another"
    );
}

#[test]
fn a_snubbing_peer_gets_requests_of_others_and_begins_a_piece_only_without_them() {
    let mut picking = Picking::new(8, 8);
    let of_others = picking.ask(1, &[0], 4);
    assert_eq!(picking.pick(2, ALL, None, true, 1), of_others[3..]);
    assert_eq!(picking.pick(3, &[5], None, true, 1)[0].piece.0, 5);
}

#[test]
fn pieces_that_no_peer_has_any_more_make_room_for_others() {
    let mut picking = Picking::new(8, 4);
    for (peer, brings) in [(1, 3), (2, 2), (3, 1), (4, 2)] {
        let asked = picking.ask(peer, &[peer as u32], 4);
        asked[..brings].iter().for_each(|block| _ = picking.bring(peer, *block));
        picking.picker.give_all_back(PeerKey(peer), &mut picking.rng);
    }
    // A peer that has one of them completes it.
    assert_eq!(picking.ask(5, &[3, 5], 4).len(), 3);
    assert_eq!(picking.ask(5, &[2, 5], 4).len(), 2);
    // The piece with the fewest blocks here, among the pieces that are requested from no peer.
    assert!(picking.ask(6, &[5], 4).iter().all(|block| block.piece.0 == 5));
    assert_eq!(picking.picker.begun.keys().collect::<Vec<_>>(), [&1, &2, &3, &5]);
    assert_eq!(picking.ask(6, &[1, 6], 4).len(), 1);
    assert_eq!(picking.ask(7, &[6], 4), []);
    assert_eq!(picking.picker.memory, 16 * u64::from(BLOCK));
}

#[test]
fn a_piece_of_one_peer_alone_is_begun_anew_by_another_if_it_takes_too_long() {
    let mut picking = Picking::new(2, 2);
    picking.wrong();
    let slow = picking.ask(3, &[0], 4);
    assert_eq!(slow.len(), 4);
    assert!(picking.bring(3, slow[0]).is_some());
    picking.now += 2 * LATE;
    assert_eq!(picking.ask(4, &[0], 4), []);
    picking.now += 2 * LATE;
    assert_eq!(picking.ask(4, &[0], 4), slow);
    assert_eq!(picking.bring(3, slow[1]), None);
    // The first does not take it back as fast.
    picking.now += 4 * LATE;
    assert_eq!(picking.ask(3, &[0], 4), []);
    slow[..3].iter().for_each(|block| _ = picking.bring(4, *block));
    let piece = picking.bring(4, slow[3]).unwrap().whole.unwrap();
    assert_eq!(piece.from, [PeerKey(4); 4]);
    assert!(piece.data.iter().all(|byte| *byte == 4));
}

#[test]
fn a_peer_that_connects_again_to_send_a_piece_alone_comes_after_new_peers() {
    let mut picking = Picking::new(2, 2);
    picking.wrong();
    let blocks = picking.ask(100, &[0], 4);
    picking.now += 4 * LATE;
    assert_eq!(picking.ask(101, &[0], 4), []);
    assert_eq!(picking.ask(5, &[0], 4), blocks);
    // Twice as long now; without another peer, it is their turn.
    picking.now += 7 * LATE;
    assert_eq!(picking.ask(102, &[0], 4), []);
    picking.now += 4 * LATE;
    assert_eq!(picking.ask(103, &[0], 4), blocks);
}

#[test]
fn a_block_that_was_given_back_is_accepted_and_its_new_request_cancelled() {
    let mut picking = Picking::new(2, 2);
    let asked = picking.ask(1, &[0], 4);
    assert!(picking.bring(1, asked[0]).is_some());
    picking.give_back(1, &asked);
    assert_eq!(picking.bring(1, asked[1]).unwrap().cancel, []);
    assert_eq!(picking.ask(2, &[0], 1), asked[2..3]);
    assert_eq!(picking.bring(1, asked[2]).unwrap().cancel, [PeerKey(2)]);
    let other = picking.ask(1, &[1], 4);
    picking.give_back(1, &other);
    assert_eq!(picking.bring(1, other[0]).unwrap().cancel, []);
    // Blocks that are counted as free can be requested.
    assert_eq!(picking.ask(2, &[0], 4), asked[3..]);
    assert_eq!(picking.ask(2, &[0], 4), []);
}

#[test]
fn a_search_in_vain_is_not_repeated_until_a_piece_comes_back() {
    let mut picking = Picking::new(1000, 1000);
    let begun = picking.ask(1, &[0], 4);
    assert_eq!(picking.ask(2, &[0], 4), []);
    picking.looked.set(0);
    (0..100).for_each(|_| assert_eq!(picking.ask(2, &[0], 4), []));
    assert!(picking.looked.get() <= 300, "{} looks", picking.looked.get());
    // While it chokes, there is little to look at.
    picking.looked.set(0);
    assert_eq!(picking.pick(3, &[0, 7], Some(&[3, 9, u32::MAX]), false, 4), []);
    assert!(picking.looked.get() <= 10, "{} looks", picking.looked.get());
    assert_eq!(picking.pick(3, &[0, 7], Some(&[3, 7]), false, 4).len(), 4);
    picking.give_back(1, &begun);
    assert_eq!(picking.ask(2, &[0], 4), begun);
}

#[test]
fn counts_are_right_after_any_event_and_one_peer_with_all_pieces_is_enough() {
    for seed in 0..200 {
        let mut picking = Picking::new(8, 1 + seed % 4);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut asked = vec![Vec::new(); 5];
        let mut whole = Vec::new();
        for step in 0..2_000 {
            picking.now += Duration::from_millis(rng.random_range(0..3_000));
            // At last, only the peer with all pieces is left.
            let peer = if step < 1_000 { rng.random_range(0..5) } else { 4 };
            if step == 1_000 {
                (0..4).for_each(|gone| {
                    picking.picker.give_all_back(PeerKey(gone), &mut picking.rng);
                });
            }
            let has = if peer == 4 { ALL } else { &ALL[peer..peer + 4] };
            match rng.random_range(0..6) {
                0 | 1 => {
                    let new = picking.pick(peer as u64, has, None, rng.random_bool(0.1), 3);
                    asked[peer].extend(new);
                }
                2 | 3 if !asked[peer].is_empty() => {
                    let at = rng.random_range(0..asked[peer].len());
                    let block = asked[peer].swap_remove(at);
                    let received = picking.bring(peer as u64, block);
                    whole.extend(received.and_then(|received| received.whole).map(|whole| whole.piece));
                }
                // Blocks that it gives back may come all the same.
                4 if peer < 4 || rng.random_bool(0.1) => {
                    let blocks = asked[peer].clone();
                    picking.give_back(peer as u64, &blocks);
                }
                5 if !whole.is_empty() => {
                    let piece = whole.pop().expect("there is one");
                    let right = step >= 1_000 || rng.random_bool(0.3);
                    picking.picker.verified(piece, right, rng.random_bool(0.5), &mut picking.rng);
                }
                _ => {}
            }
            let Picker { begun, memory, info, waiting, .. } = &picking.picker;
            let lengths = begun.keys().chain(&whole).map(|piece| u64::from(info.piece_len(*piece)));
            assert_eq!(*memory, lengths.sum::<u64>());
            for (piece, begun) in begun {
                let count = |of: fn(&BlockState) -> bool| begun.blocks.iter().filter(|slot| of(slot)).count();
                assert_eq!(begun.free as usize, count(|slot| *slot == BlockState::Unrequested));
                assert_eq!(begun.missing as usize, count(|slot| !matches!(slot, BlockState::Here(_))));
                assert!(begun.missing > 0 && !waiting.contains(*piece));
            }
        }
        assert!(picking.picker.nothing_is_wanted() && whole.len() < 8, "seed {seed}: {:?}", picking.picker);
    }
}
