//! Which blocks to ask a peer for, and what came of it.
//!
//! What is begun is finished first, the rarest begins next, and at the end what is still to come is asked of
//! a second peer as well (endgame); so is what is late, of whoever has nothing else to bring. A piece stays
//! in memory until all of it is there; how much that is has a limit.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rand::Rng;
use swarmkeep_content::PieceBits;
use swarmkeep_metainfo::Info;
use swarmkeep_peer_wire::{Block, PieceIndex};

use crate::rarest::Rarest;

/// What is asked for at once, as all clients do (BEP 3); the last of a piece is shorter.
pub(crate) const BLOCK: u32 = 16 << 10;

/// Bytes a second of who is to bring all of a piece: slower, somebody else may try.
const SLOW: u32 = 256 << 10;

/// A connection, as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerKey(pub(crate) u64);

/// What is wanted of a torrent, and who was asked for it.
#[derive(Debug)]
pub(crate) struct Picker {
    info: Arc<Info>,
    /// Complete, or handed out to be verified.
    done: PieceBits,
    /// Pieces that nobody was asked for.
    waiting: Rarest,
    /// Pieces of which something was asked for.
    begun: BTreeMap<u32, Begun>,
    /// Bytes that pieces which are begun, or being verified, have in memory, and how many there may be.
    memory: u64,
    most_memory: u64,
    /// Pieces that were wrong with blocks of several peers: one peer is to bring all of the next try.
    alone: BTreeMap<u32, Tries>,
    /// How long a block may take before somebody else is asked for it as well, who has nothing else to bring.
    late: Duration,
    /// How many times a piece has come back to those that wait: what was looked for in vain is looked for
    /// again then.
    returned: u64,
}

/// Who was to bring a piece alone, and has not in time.
#[derive(Debug, Default)]
struct Tries {
    count: u32,
    from: BTreeSet<IpAddr>,
}

/// What a peer can be asked for.
pub(crate) struct Wish<'a> {
    pub(crate) peer: PeerKey,
    /// Its [network](crate::candidates::network), which it does not leave by calling again.
    pub(crate) from: IpAddr,
    /// Blocks, at most.
    pub(crate) count: usize,
    /// Pieces that it has.
    pub(crate) has: &'a dyn Fn(u32) -> bool,
    /// While it chokes, those that it brings all the same.
    pub(crate) allows: Option<&'a [u32]>,
    /// Pieces to begin before others.
    pub(crate) preferred: &'a [u32],
    /// Whether it did not bring what it was asked for before: it is asked for what others were asked for, if
    /// there is any.
    pub(crate) snubs: bool,
    pub(crate) now: Instant,
}

impl Wish<'_> {
    fn can(&self, piece: u32) -> bool {
        self.allows.is_none_or(|allows| allows.contains(&piece)) && (self.has)(piece)
    }
}

/// That no piece that waits was one that a peer could bring, as long as none has come back since and it has
/// got none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched(Option<u64>);

#[derive(Debug)]
struct Begun {
    data: Vec<u8>,
    blocks: Vec<Asked>,
    /// Who was asked first, and for the rest if it can.
    by: PeerKey,
    /// Where that is, if it was asked.
    from: Option<IpAddr>,
    /// Whether nobody else may be asked, until when; then somebody else may begin it anew.
    alone: Option<Instant>,
    /// Blocks that are to be asked for.
    free: u32,
    /// Blocks that are to come.
    missing: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nobody,
    /// Since then.
    One(PeerKey, Instant),
    /// The first of them since then.
    Two(PeerKey, PeerKey, Instant),
    Here(PeerKey),
}

/// What a block was good for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Nothing: nobody wants it, or nobody wants it of this peer.
    Unwanted,
    /// Something. Others need not send it any more.
    Block {
        /// Who was asked as well.
        cancel: Vec<PeerKey>,
    },
    /// The last one of a piece, which is to be verified.
    Whole {
        /// Who was asked as well.
        cancel: Vec<PeerKey>,
        /// The piece.
        piece: Whole,
    },
}

/// A piece whose blocks are all here.
#[derive(PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) piece: u32,
    pub(crate) data: Vec<u8>,
    /// Who brought each block.
    pub(crate) from: Vec<PeerKey>,
}

impl std::fmt::Debug for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Whole({})", self.piece)
    }
}

impl Picker {
    /// For a torrent of which `done` is complete. Pieces take up to `most_memory` bytes, or what one takes; a
    /// block is `late` after that time.
    pub(crate) fn new(
        info: Arc<Info>,
        done: PieceBits,
        most_memory: u64,
        late: Duration,
        rng: &mut impl Rng,
    ) -> Self {
        let mut waiting = Rarest::new(info.piece_count(), rng);
        done.iter().for_each(|piece| waiting.remove(piece));
        Self {
            info,
            done,
            waiting,
            begun: BTreeMap::new(),
            memory: 0,
            most_memory,
            alone: BTreeMap::new(),
            late,
            returned: 0,
        }
    }

    /// Whether every piece is here, or handed out.
    pub(crate) fn nothing_is_wanted(&self) -> bool {
        self.waiting.len() == 0 && self.begun.is_empty()
    }

    /// A peer has a piece.
    pub(crate) fn gained(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.gained(piece, rng);
    }

    /// A peer that had a piece has it no more, or is gone.
    pub(crate) fn lost(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.lost(piece, rng);
    }

    /// Whether a peer that is to be asked for so many blocks may have to begin another piece: which of them
    /// are preferred is of use then.
    pub(crate) fn may_begin(&self, peer: PeerKey, count: usize, searched: &Searched) -> bool {
        let rest = || self.begun.values().filter(|begun| begun.by == peer).map(|begun| begun.free as usize);
        self.waiting.len() > 0
            && self.has_memory()
            && *searched != Searched(Some(self.returned))
            && rest().sum::<usize>() < count
    }

    /// Blocks that a peer should be asked for.
    pub(crate) fn pick(
        &mut self,
        wish: &Wish<'_>,
        searched: &mut Searched,
        rng: &mut impl Rng,
        asked: &mut Vec<Block>,
    ) {
        let before = asked.len();
        let end = before + wish.count;
        if wish.snubs {
            self.ask_as_well(wish, Duration::ZERO, end, asked);
            if asked.len() > before {
                return;
            }
        }
        for (&piece, begun) in &mut self.begun {
            if begun.by == wish.peer {
                begun.ask_rest(piece, wish, end, asked);
            }
        }
        while asked.len() < end && self.has_memory() {
            let Some(piece) = self.next(wish, searched) else { break };
            self.begin(piece, wish.peer, Some(wish.from), wish.now).ask_rest(piece, wish, end, asked);
        }
        for (&piece, begun) in &mut self.begun {
            if begun.alone.is_none() {
                begun.ask_rest(piece, wish, end, asked);
            }
        }
        if self.waiting.len() == 0 {
            // The endgame: everything was asked of somebody.
            self.ask_as_well(wish, Duration::ZERO, end, asked);
        } else if asked.len() == before {
            self.ask_as_well(wish, self.late, end, asked);
        }
        if asked.len() == before {
            self.take_over(wish, end, asked);
        }
        if asked.len() == before
            && !self.has_memory()
            && let Some(piece) = self.next(wish, searched)
            && self.make_room(wish, rng)
        {
            self.begin(piece, wish.peer, Some(wish.from), wish.now).ask_rest(piece, wish, end, asked);
        }
    }

    /// The piece to begin next with a peer.
    fn next(&self, wish: &Wish<'_>, searched: &mut Searched) -> Option<u32> {
        let waits = |piece: &u32| {
            *piece < self.info.piece_count() && self.waiting.contains(*piece) && wish.can(*piece)
        };
        if let Some(allows) = wish.allows {
            return allows.iter().copied().find(waits);
        }
        if *searched == Searched(Some(self.returned)) {
            return None;
        }
        let preferred = wish.preferred.iter().copied().find(waits);
        let next = preferred.or_else(|| self.waiting.iter().find(|piece| wish.can(*piece)));
        if next.is_none() {
            *searched = Searched(Some(self.returned));
        }
        next
    }

    /// A piece that waits is asked for from now on, of this peer first.
    fn begin(&mut self, piece: u32, by: PeerKey, from: Option<IpAddr>, now: Instant) -> &mut Begun {
        self.waiting.remove(piece);
        let length = self.info.piece_len(piece);
        self.memory += u64::from(length);
        let blocks = length.div_ceil(BLOCK);
        let begun = Begun {
            data: vec![0; length as usize],
            blocks: vec![Asked::Nobody; blocks as usize],
            by,
            from,
            alone: self.alone.get(&piece).map(|tries| now + self.patience(length, tries.count)),
            free: blocks,
            missing: blocks,
        };
        self.begun.entry(piece).or_insert(begun)
    }

    /// How long one peer may take for a piece, after so many that took longer: long enough for anybody in the
    /// end.
    fn patience(&self, length: u32, tries: u32) -> Duration {
        (3 * self.late + Duration::from_secs(u64::from(length / SLOW))) * (1 << tries.min(3))
    }

    /// Asks for what somebody else was asked for, that long ago.
    fn ask_as_well(&mut self, wish: &Wish<'_>, ago: Duration, end: usize, asked: &mut Vec<Block>) {
        for (&piece, begun) in &mut self.begun {
            if asked.len() == end {
                return;
            }
            if begun.alone.is_some() || !wish.can(piece) {
                continue;
            }
            for (nth, slot) in begun.blocks.iter_mut().enumerate() {
                match *slot {
                    Asked::One(other, at)
                        if other != wish.peer
                            && wish.now.saturating_duration_since(at) >= ago
                            && asked.len() < end =>
                    {
                        *slot = Asked::Two(other, wish.peer, at);
                        asked.push(block(piece, nth, begun.data.len()));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Begins a piece anew that one peer was to bring alone, and has not in time. What it brought is nobody
    /// else's.
    fn take_over(&mut self, wish: &Wish<'_>, end: usize, asked: &mut Vec<Block>) {
        let slow = |piece: u32, begun: &Begun| {
            let Some(until) = begun.alone.filter(|_| begun.by != wish.peer) else { return false };
            // Whoever has not tried comes before those who have, who may call again to do it again.
            let tried = begun.from == Some(wish.from)
                || self.alone.get(&piece).is_some_and(|tries| tries.from.contains(&wish.from));
            until + if tried { 3 * self.late } else { Duration::ZERO } < wish.now
        };
        let found = self.begun.iter().find(|(piece, begun)| slow(**piece, begun) && wish.can(**piece));
        let Some((&piece, &Begun { from, .. })) = found else { return };
        let tries = self.alone.entry(piece).or_default();
        tries.count += 1;
        tries.from.extend(from);
        let count = tries.count;
        let until = wish.now + self.patience(self.info.piece_len(piece), count);
        let begun = self.begun.get_mut(&piece).expect("it was found");
        begun.blocks.fill(Asked::Nobody);
        (begun.by, begun.from, begun.alone) = (wish.peer, Some(wish.from), Some(until));
        begun.missing = begun.blocks.len() as u32;
        begun.free = begun.missing;
        begun.ask_rest(piece, wish, end, asked);
    }

    /// Drops the piece of which the least has come, among those that nobody was asked for and this peer
    /// cannot bring. Whether there is room then.
    fn make_room(&mut self, wish: &Wish<'_>, rng: &mut impl Rng) -> bool {
        let left = self.begun.iter().filter(|(piece, begun)| !begun.is_asked() && !wish.can(**piece));
        let Some((&piece, _)) = left.min_by_key(|(_, begun)| begun.blocks.len() - begun.missing as usize)
        else {
            return false;
        };
        self.drop_begun(piece, rng);
        self.has_memory()
    }

    /// A block has come of a peer that was asked for it, be it long ago: the caller knows.
    pub(crate) fn received(
        &mut self,
        peer: PeerKey,
        piece: u32,
        begin: u32,
        data: &[u8],
        now: Instant,
    ) -> Received {
        if piece < self.info.piece_count() && self.waiting.contains(piece) && self.has_memory() {
            // It was given back, and comes all the same.
            self.begin(piece, peer, None, now);
        }
        let Some(begun) = self.begun.get_mut(&piece) else { return Received::Unwanted };
        let nth = (begin / BLOCK) as usize;
        let Some(slot) = begun.blocks.get_mut(nth) else { return Received::Unwanted };
        let expected = block(piece, nth, begun.data.len());
        if (expected.begin, expected.length as usize) != (begin, data.len())
            || (begun.alone.is_some() && begun.by != peer)
        {
            return Received::Unwanted;
        }
        let cancel = match *slot {
            Asked::Here(_) => return Received::Unwanted,
            Asked::Nobody => {
                begun.free -= 1;
                Vec::new()
            }
            Asked::One(one, _) if one == peer => Vec::new(),
            Asked::One(one, _) => vec![one],
            Asked::Two(one, two, _) => [one, two].into_iter().filter(|other| *other != peer).collect(),
        };
        *slot = Asked::Here(peer);
        begun.data[begin as usize..][..data.len()].copy_from_slice(data);
        begun.missing -= 1;
        if begun.missing > 0 {
            return Received::Block { cancel };
        }
        let begun = self.begun.remove(&piece).expect("it was there");
        self.done.insert(piece);
        let from = begun.blocks.into_iter().map(|asked| match asked {
            Asked::Here(from) => from,
            _ => unreachable!("none is missing"),
        });
        Received::Whole { cancel, piece: Whole { piece, data: begun.data, from: from.collect() } }
    }

    /// A piece that was handed out is stored, or was wrong and is to come again; then from one peer `alone`,
    /// if that is to be found out.
    pub(crate) fn verified(&mut self, piece: u32, right: bool, alone: bool, rng: &mut impl Rng) {
        self.memory -= u64::from(self.info.piece_len(piece));
        if right {
            self.alone.remove(&piece);
            return;
        }
        if alone {
            self.alone.insert(piece, Tries::default());
        }
        self.done.remove(piece);
        self.wait(piece, rng);
    }

    /// A peer will not bring these blocks that it was asked for.
    pub(crate) fn give_back(
        &mut self,
        peer: PeerKey,
        blocks: impl IntoIterator<Item = Block>,
        rng: &mut impl Rng,
    ) {
        let mut pieces = BTreeSet::new();
        for Block { piece: PieceIndex(piece), begin, .. } in blocks {
            let Some(begun) = self.begun.get_mut(&piece) else { continue };
            if let Some(slot) = begun.blocks.get_mut((begin / BLOCK) as usize) {
                begun.free += u32::from(slot.forget(peer));
            }
            pieces.insert(piece);
        }
        pieces.into_iter().for_each(|piece| self.settle(piece, rng));
    }

    /// A peer is gone, and brings nothing that it was asked for.
    pub(crate) fn give_all_back(&mut self, peer: PeerKey, rng: &mut impl Rng) {
        let pieces: Vec<_> = self.begun.keys().copied().collect();
        for piece in pieces {
            let begun = self.begun.get_mut(&piece).expect("a key of it");
            for slot in &mut begun.blocks {
                begun.free += u32::from(slot.forget(peer));
            }
            self.settle(piece, rng);
        }
    }

    /// A piece of which nobody was asked for anything waits again, unless some of it is here; one that is to
    /// come from a single peer begins anew.
    fn settle(&mut self, piece: u32, rng: &mut impl Rng) {
        let Some(begun) = self.begun.get(&piece) else { return };
        let nothing_here = begun.missing as usize == begun.blocks.len();
        if !begun.is_asked() && (nothing_here || begun.alone.is_some()) {
            self.drop_begun(piece, rng);
        }
    }

    fn drop_begun(&mut self, piece: u32, rng: &mut impl Rng) {
        let begun = self.begun.remove(&piece).expect("it was begun");
        self.memory -= begun.data.len() as u64;
        self.wait(piece, rng);
    }

    /// A piece that nobody was asked for any more.
    fn wait(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.insert(piece, rng);
        self.returned += 1;
    }

    const fn has_memory(&self) -> bool {
        self.memory == 0 || self.memory < self.most_memory
    }
}

impl Begun {
    /// Asks a peer for blocks that nobody was asked for.
    fn ask_rest(&mut self, piece: u32, wish: &Wish<'_>, end: usize, asked: &mut Vec<Block>) {
        if self.free == 0 || asked.len() == end || !wish.can(piece) {
            return;
        }
        let length = self.data.len();
        let rest = self.blocks.iter_mut().enumerate().filter(|(_, slot)| **slot == Asked::Nobody);
        for (nth, slot) in rest.take(end - asked.len()) {
            *slot = Asked::One(wish.peer, wish.now);
            self.free -= 1;
            asked.push(block(piece, nth, length));
        }
    }

    fn is_asked(&self) -> bool {
        self.blocks.iter().any(|slot| matches!(slot, Asked::One(..) | Asked::Two(..)))
    }
}

impl Asked {
    /// Whether nobody is left who was asked, and there was somebody.
    fn forget(&mut self, peer: PeerKey) -> bool {
        match *self {
            Self::One(one, _) if one == peer => {
                *self = Self::Nobody;
                true
            }
            Self::Two(one, two, at) if one == peer || two == peer => {
                *self = Self::One(if one == peer { two } else { one }, at);
                false
            }
            _ => false,
        }
    }
}

fn block(piece: u32, nth: usize, piece_length: usize) -> Block {
    let begin = nth as u32 * BLOCK;
    Block { piece: PieceIndex(piece), begin, length: BLOCK.min(piece_length as u32 - begin) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    const LATE: Duration = Duration::from_secs(10);
    const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];

    /// A picker of pieces of four blocks, and what its peers were asked for.
    struct Picking {
        picker: Picker,
        searched: BTreeMap<PeerKey, Searched>,
        rng: SmallRng,
        now: Instant,
        /// How many times it was asked what a peer has.
        looked: Cell<usize>,
    }

    impl Picking {
        /// With memory for so many pieces.
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
            Self { picker, searched: BTreeMap::new(), rng, now, looked }
        }

        fn wish(
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
            let wish = Wish { peer, from, count, has: &has, allows, preferred: &[], snubs, now: self.now };
            let searched = self.searched.entry(peer).or_default();
            self.picker.pick(&wish, searched, &mut self.rng, &mut asked);
            asked
        }

        fn ask(&mut self, peer: u64, has: &[u32], count: usize) -> Vec<Block> {
            self.wish(peer, has, None, false, count)
        }

        fn bring(&mut self, peer: u64, block: Block) -> Received {
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
    fn what_is_late_is_asked_of_who_has_nothing_else_to_bring_while_others_wait_that_nobody_has() {
        let mut picking = Picking::new(2, 2);
        let silent = picking.ask(1, &[0], 8);
        assert_eq!(silent.len(), 4);
        assert_eq!(picking.ask(2, &[0], 8), []);
        picking.now += LATE;
        assert_eq!(picking.ask(2, &[0], 8), silent);
        assert_eq!(picking.ask(3, &[0], 8), []);
        for block in silent {
            let (Received::Block { cancel } | Received::Whole { cancel, .. }) = picking.bring(2, block)
            else {
                panic!("it is wanted")
            };
            assert_eq!(cancel, [PeerKey(1)]);
            assert_eq!(picking.bring(1, block), Received::Unwanted);
        }
    }

    #[test]
    fn who_holds_all_memory_and_brings_nothing_keeps_nobody_from_bringing() {
        let mut picking = Picking::new(8, 1);
        let silent = picking.ask(1, ALL, 8);
        assert_eq!((silent.len(), picking.ask(2, ALL, 8).len()), (4, 0));
        picking.now += LATE;
        assert_eq!(picking.ask(2, ALL, 8), silent);
        // Nor do two.
        picking.now += LATE;
        picking.give_back(1, &silent);
        assert_eq!(picking.ask(3, ALL, 8), silent);
    }

    #[test]
    fn who_snubs_is_asked_for_what_others_were_asked_for_and_begins_something_only_if_there_is_nothing() {
        let mut picking = Picking::new(8, 8);
        let of_others = picking.ask(1, &[0], 4);
        assert_eq!(picking.wish(2, ALL, None, true, 1), of_others[..1]);
        assert_eq!(picking.wish(3, &[5], None, true, 1)[0].piece.0, 5);
    }

    #[test]
    fn what_nobody_can_bring_any_more_makes_room_for_what_somebody_can() {
        let mut picking = Picking::new(8, 4);
        for (peer, brings) in [(1, 3), (2, 2), (3, 1), (4, 2)] {
            let asked = picking.ask(peer, &[peer as u32], 4);
            asked[..brings].iter().for_each(|block| _ = picking.bring(peer, *block));
            picking.picker.give_all_back(PeerKey(peer), &mut picking.rng);
        }
        // Who can bring one of them does that.
        assert_eq!(picking.ask(5, &[3, 5], 4).len(), 3);
        assert_eq!(picking.ask(5, &[2, 5], 4).len(), 2);
        // The piece with the fewest blocks here, among the pieces that no peer is asked for.
        assert!(picking.ask(6, &[5], 4).iter().all(|block| block.piece.0 == 5));
        assert_eq!(picking.picker.begun.keys().collect::<Vec<_>>(), [&1, &2, &3, &5]);
        assert_eq!(picking.ask(6, &[1, 6], 4).len(), 1);
        assert_eq!(picking.ask(7, &[6], 4), []);
        assert_eq!(picking.picker.memory, 16 * u64::from(BLOCK));
    }

    #[test]
    fn a_piece_that_one_peer_is_to_bring_alone_is_begun_anew_by_another_if_that_takes_too_long() {
        let mut picking = Picking::new(2, 2);
        picking.wrong();
        let slow = picking.ask(3, &[0], 4);
        assert_eq!(slow.len(), 4);
        assert!(matches!(picking.bring(3, slow[0]), Received::Block { .. }));
        picking.now += 2 * LATE;
        assert_eq!(picking.ask(4, &[0], 4), []);
        picking.now += 2 * LATE;
        assert_eq!(picking.ask(4, &[0], 4), slow);
        assert_eq!(picking.bring(3, slow[1]), Received::Unwanted);
        // The first does not take it back as fast.
        picking.now += 4 * LATE;
        assert_eq!(picking.ask(3, &[0], 4), []);
        slow[..3].iter().for_each(|block| _ = picking.bring(4, *block));
        let Received::Whole { piece, .. } = picking.bring(4, slow[3]) else { panic!("it is whole") };
        assert_eq!(piece.from, [PeerKey(4); 4]);
        assert!(piece.data.iter().all(|byte| *byte == 4));
    }

    #[test]
    fn who_calls_again_to_bring_a_piece_alone_comes_after_those_who_have_not_tried() {
        let mut picking = Picking::new(2, 2);
        picking.wrong();
        let blocks = picking.ask(100, &[0], 4);
        picking.now += 4 * LATE;
        assert_eq!(picking.ask(101, &[0], 4), []);
        assert_eq!(picking.ask(5, &[0], 4), blocks);
        // Twice as long now; and if there is nobody else, it is their turn.
        picking.now += 7 * LATE;
        assert_eq!(picking.ask(102, &[0], 4), []);
        picking.now += 4 * LATE;
        assert_eq!(picking.ask(103, &[0], 4), blocks);
    }

    #[test]
    fn what_comes_after_it_was_given_back_is_taken_and_who_is_asked_now_need_not_bring_it() {
        let mut picking = Picking::new(2, 2);
        let asked = picking.ask(1, &[0], 4);
        assert!(matches!(picking.bring(1, asked[0]), Received::Block { .. }));
        picking.give_back(1, &asked);
        assert_eq!(picking.bring(1, asked[1]), Received::Block { cancel: Vec::new() });
        assert_eq!(picking.ask(2, &[0], 1), asked[2..3]);
        assert_eq!(picking.bring(1, asked[2]), Received::Block { cancel: vec![PeerKey(2)] });
        let other = picking.ask(1, &[1], 4);
        picking.give_back(1, &other);
        assert_eq!(picking.bring(1, other[0]), Received::Block { cancel: Vec::new() });
        // What is counted as free is what can be asked for.
        assert_eq!(picking.ask(2, &[0], 4), asked[3..]);
        assert_eq!(picking.ask(2, &[0], 4), []);
    }

    #[test]
    fn what_was_looked_for_in_vain_is_not_looked_for_again_until_something_comes_back() {
        let mut picking = Picking::new(1000, 1000);
        let begun = picking.ask(1, &[0], 4);
        assert_eq!(picking.ask(2, &[0], 4), []);
        picking.looked.set(0);
        (0..100).for_each(|_| assert_eq!(picking.ask(2, &[0], 4), []));
        assert!(picking.looked.get() <= 300, "{} looks", picking.looked.get());
        // While it chokes, there is little to look at.
        picking.looked.set(0);
        assert_eq!(picking.wish(3, &[0, 7], Some(&[3, 9, u32::MAX]), false, 4), []);
        assert!(picking.looked.get() <= 10, "{} looks", picking.looked.get());
        assert_eq!(picking.wish(3, &[0, 7], Some(&[3, 7]), false, 4).len(), 4);
        picking.give_back(1, &begun);
        assert_eq!(picking.ask(2, &[0], 4), begun);
    }

    #[test]
    fn whatever_happens_all_that_is_counted_is_right_and_who_brings_everything_is_enough_in_the_end() {
        for seed in 0..200 {
            let mut picking = Picking::new(8, 1 + seed % 4);
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut asked = vec![Vec::new(); 5];
            let mut whole = Vec::new();
            for step in 0..2_000 {
                picking.now += Duration::from_millis(rng.random_range(0..3_000));
                // At last, only the one is left who has everything.
                let peer = if step < 1_000 { rng.random_range(0..5) } else { 4 };
                if step == 1_000 {
                    (0..4).for_each(|gone| {
                        picking.picker.give_all_back(PeerKey(gone), &mut picking.rng);
                    });
                }
                let has = if peer == 4 { ALL } else { &ALL[peer..peer + 4] };
                match rng.random_range(0..6) {
                    0 | 1 => {
                        let new = picking.wish(peer as u64, has, None, rng.random_bool(0.1), 3);
                        asked[peer].extend(new);
                    }
                    2 | 3 if !asked[peer].is_empty() => {
                        let at = rng.random_range(0..asked[peer].len());
                        let block = asked[peer].swap_remove(at);
                        if let Received::Whole { piece, .. } = picking.bring(peer as u64, block) {
                            whole.push(piece.piece);
                        }
                    }
                    // What it gives back may come all the same.
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
                    let count = |of: fn(&Asked) -> bool| begun.blocks.iter().filter(|slot| of(slot)).count();
                    assert_eq!(begun.free as usize, count(|slot| *slot == Asked::Nobody));
                    assert_eq!(begun.missing as usize, count(|slot| !matches!(slot, Asked::Here(_))));
                    assert!(begun.missing > 0 && !waiting.contains(*piece));
                }
            }
            assert!(
                picking.picker.nothing_is_wanted() && whole.len() < 8,
                "seed {seed}: {:?}",
                picking.picker
            );
        }
    }
}
