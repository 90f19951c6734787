//! Which blocks to ask a peer for, and what came of it.
//!
//! Pieces that are begun are finished first; next begin those of the same stripe of the store, so that few
//! stripes are incomplete at a time, and then the rarest. At the end, blocks that are still to come are
//! requested from a second peer as well (endgame). Late blocks are requested from a peer that has nothing else
//! to send. A piece stays in memory until all of it is there; that memory has a limit.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    net::IpAddr,
    ops::Range,
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

/// Bytes per second of a peer that is to send all of a piece. If it is slower, another peer may try.
const SLOW: u32 = 256 << 10;

/// Stripes that are looked at for a piece to begin.
const MOST_STRIPES: usize = 64;

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
    /// Pieces of a stripe: those of stripes that are begun come next.
    pub(crate) per_stripe: u32,
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
        let next = preferred
            .or_else(|| self.begun_stripes(wish.per_stripe).flatten().find(waits))
            .or_else(|| self.waiting.iter().find(|piece| wish.can(*piece)));
        if next.is_none() {
            *searched = Searched(Some(self.returned));
        }
        next
    }

    /// The pieces of some stripes of which a piece is begun.
    fn begun_stripes(&self, pieces: u32) -> impl Iterator<Item = Range<u32>> {
        let mut at = 0;
        let stripes = iter::from_fn(move || {
            let (begun, _) = self.begun.range(at..).next()?;
            let first = begun - begun % pieces;
            at = first.saturating_add(pieces);
            Some(first..at)
        });
        stripes.take(MOST_STRIPES)
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

    /// A piece that was complete is to come again.
    pub(crate) fn take_back(&mut self, piece: u32, rng: &mut impl Rng) {
        if self.done.remove(piece) {
            self.wait(piece, rng);
        }
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
mod tests;
