//! Which blocks to request from a peer, and the blocks that it sends.
//!
//! Pieces that are begun are finished first; next begin those of the same stripe of the store, so that few
//! stripes are incomplete at a time, and then the rarest. At the end, blocks that do not come at once are
//! requested from a second peer as well (endgame): the ones that the first will send last. Late blocks are
//! requested from a peer that has nothing else to send. A piece stays in memory until all of it is there;
//! that memory has a limit.

use std::{
    cmp::Reverse,
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

/// The length of a request, as all clients have it (BEP 3); the last block of a piece is shorter.
pub(crate) const BLOCK: u32 = 16 << 10;

/// Bytes per second of a peer that is to send all of a piece. If it is slower, another peer may try.
const SLOW: u32 = 256 << 10;

/// The age from which a block is requested from a second peer in the endgame. Younger ones are on their way:
/// a small torrent would come twice.
const ENDGAME: Duration = Duration::from_secs(1);

/// Stripes that are looked at for a piece to begin.
const MOST_STRIPES: usize = 64;

/// A connection, as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerKey(pub(crate) u64);

/// The pieces and blocks that a torrent lacks, and the peers from which they are requested.
#[derive(Debug)]
pub(crate) struct Picker {
    info: Arc<Info>,
    /// Complete, or handed out to be verified.
    done: PieceBits,
    /// Pieces that are not requested from any peer.
    waiting: Rarest,
    /// Pieces with blocks that were requested.
    begun: BTreeMap<u32, BegunPiece>,
    /// Bytes in memory of pieces that are begun or being verified, and their limit.
    memory: u64,
    most_memory: u64,
    /// Pieces that were wrong with blocks of several peers: one peer is to send all of the next try.
    alone: BTreeMap<u32, LoneTries>,
    /// The age from which a block is also requested from a peer that has nothing else to send.
    late: Duration,
    /// How many times a piece came back to `waiting`: then searches that found nothing are repeated.
    returned: u64,
}

/// The peers that were to send a piece alone, and did not in time.
#[derive(Debug, Default)]
struct LoneTries {
    count: u32,
    from: BTreeSet<IpAddr>,
}

/// The blocks that a peer can send.
pub(crate) struct PickRequest<'a> {
    pub(crate) peer: PeerKey,
    /// Its [network](crate::candidates::network), which stays the same when it connects again.
    pub(crate) from: IpAddr,
    /// The most blocks.
    pub(crate) count: usize,
    pub(crate) has: &'a dyn Fn(u32) -> bool,
    /// While it chokes, the pieces that it sends all the same.
    pub(crate) allows: Option<&'a [u32]>,
    /// Pieces to begin before others.
    pub(crate) preferred: &'a [u32],
    /// Pieces per stripe: the pieces of stripes that are begun come next.
    pub(crate) per_stripe: u32,
    /// Whether it did not send requested blocks before: then it gets the requests of other peers, if there
    /// are any.
    pub(crate) snubs: bool,
    pub(crate) now: Instant,
}

impl PickRequest<'_> {
    fn can(&self, piece: u32) -> bool {
        self.allows.is_none_or(|allows| allows.contains(&piece)) && (self.has)(piece)
    }
}

/// A search that found no waiting piece of a peer. It holds until a piece comes back or the peer gets one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EmptySearch(Option<u64>);

#[derive(Debug)]
struct BegunPiece {
    data: Vec<u8>,
    blocks: Vec<BlockState>,
    /// The first peer with a request, which gets the requests for the rest if it can.
    by: PeerKey,
    /// Its network, if it had a request.
    from: Option<IpAddr>,
    /// If one peer is to send all: until when. Then another peer may begin the piece anew.
    alone: Option<Instant>,
    /// Blocks that are still to be requested.
    free: u32,
    /// Blocks that are still to come.
    missing: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Unrequested,
    /// The peer, and the time of the request.
    One(PeerKey, Instant),
    /// Two peers, and the time of the first request.
    Two(PeerKey, PeerKey, Instant),
    Here(PeerKey),
}

/// A block that was wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Other peers with a request for it, which need not send it any more.
    pub(crate) cancel: Vec<PeerKey>,
    /// Its piece, which is to be verified, if it was the last block.
    pub(crate) whole: Option<WholePiece>,
}

#[derive(PartialEq, Eq)]
pub(crate) struct WholePiece {
    pub(crate) piece: u32,
    pub(crate) data: Vec<u8>,
    /// The sender of each block.
    pub(crate) from: Vec<PeerKey>,
}

impl std::fmt::Debug for WholePiece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WholePiece({})", self.piece)
    }
}

impl Picker {
    /// For a torrent with the complete pieces `done`. Pieces take up to `most_memory` bytes, or the length of
    /// one; a block is late after the time `late`.
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

    pub(crate) fn gained(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.gained(piece, rng);
    }

    /// A peer no longer has a piece, or is gone.
    pub(crate) fn lost(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.lost(piece, rng);
    }

    /// Whether a peer may have to begin another piece for `count` blocks. If not, preferred pieces are of no
    /// use.
    pub(crate) fn may_begin(&self, peer: PeerKey, count: usize, searched: &EmptySearch) -> bool {
        let rest = || self.begun.values().filter(|begun| begun.by == peer).map(|begun| begun.free as usize);
        self.waiting.len() > 0
            && self.has_memory()
            && *searched != EmptySearch(Some(self.returned))
            && rest().sum::<usize>() < count
    }

    /// Adds the blocks to request from a peer to `asked`.
    pub(crate) fn pick(
        &mut self,
        pick: &PickRequest<'_>,
        searched: &mut EmptySearch,
        rng: &mut impl Rng,
        asked: &mut Vec<Block>,
    ) {
        let before = asked.len();
        let end = before + pick.count;
        if pick.snubs {
            self.ask_as_well(pick, Duration::ZERO, end, asked);
            if asked.len() > before {
                return;
            }
        }
        for (&piece, begun) in &mut self.begun {
            if begun.by == pick.peer {
                begun.ask_rest(piece, pick, end, asked);
            }
        }
        while asked.len() < end && self.has_memory() {
            let Some(piece) = self.next(pick, searched) else { break };
            self.begin(piece, pick.peer, Some(pick.from), pick.now).ask_rest(piece, pick, end, asked);
        }
        for (&piece, begun) in &mut self.begun {
            if begun.alone.is_none() {
                begun.ask_rest(piece, pick, end, asked);
            }
        }
        if self.waiting.len() == 0 {
            self.ask_as_well(pick, ENDGAME.min(self.late), end, asked);
        } else if asked.len() == before {
            self.ask_as_well(pick, self.late, end, asked);
        }
        if asked.len() == before {
            self.take_over(pick, end, asked);
        }
        if asked.len() == before
            && !self.has_memory()
            && let Some(piece) = self.next(pick, searched)
            && self.make_room(pick, rng)
        {
            self.begin(piece, pick.peer, Some(pick.from), pick.now).ask_rest(piece, pick, end, asked);
        }
    }

    /// The piece to begin next with a peer.
    fn next(&self, pick: &PickRequest<'_>, searched: &mut EmptySearch) -> Option<u32> {
        let waits = |piece: &u32| {
            *piece < self.info.piece_count() && self.waiting.contains(*piece) && pick.can(*piece)
        };
        if let Some(allows) = pick.allows {
            return allows.iter().copied().find(waits);
        }
        if *searched == EmptySearch(Some(self.returned)) {
            return None;
        }
        let preferred = pick.preferred.iter().copied().find(waits);
        let next = preferred
            .or_else(|| self.begun_stripes(pick.per_stripe).flatten().find(waits))
            .or_else(|| self.waiting.iter().find(|piece| pick.can(*piece)));
        if next.is_none() {
            *searched = EmptySearch(Some(self.returned));
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

    /// Begins a piece that waits, with requests to the peer `by` first.
    fn begin(&mut self, piece: u32, by: PeerKey, from: Option<IpAddr>, now: Instant) -> &mut BegunPiece {
        self.waiting.remove(piece);
        let length = self.info.piece_len(piece);
        self.memory += u64::from(length);
        let blocks = length.div_ceil(BLOCK);
        let begun = BegunPiece {
            data: vec![0; length as usize],
            blocks: vec![BlockState::Unrequested; blocks as usize],
            by,
            from,
            alone: self.alone.get(&piece).map(|tries| now + self.patience(length, tries.count)),
            free: blocks,
            missing: blocks,
        };
        self.begun.entry(piece).or_insert(begun)
    }

    /// How long one peer may take for a piece, after `tries` that took longer: in the end, long enough for
    /// any peer.
    fn patience(&self, length: u32, tries: u32) -> Duration {
        (3 * self.late + Duration::from_secs(u64::from(length / SLOW))) * (1 << tries.min(3))
    }

    /// Adds blocks that were requested from another peer, `ago` or longer. That peer sends the latest last:
    /// they come first, so that the two do not send the same.
    fn ask_as_well(&mut self, pick: &PickRequest<'_>, ago: Duration, end: usize, asked: &mut Vec<Block>) {
        let begun = self.begun.iter_mut().filter(|(piece, begun)| begun.alone.is_none() && pick.can(**piece));
        let blocks = begun.flat_map(|(&piece, begun)| {
            let length = begun.data.len();
            begun.blocks.iter_mut().enumerate().map(move |(nth, slot)| (block(piece, nth, length), slot))
        });
        let mut others: Vec<_> = blocks
            .filter_map(|(block, slot)| match *slot {
                BlockState::One(other, at)
                    if other != pick.peer && pick.now.saturating_duration_since(at) >= ago =>
                {
                    Some((at, block.piece, block.begin, other, block, slot))
                }
                _ => None,
            })
            .collect();
        others.sort_unstable_by_key(|&(at, piece, begin, ..)| Reverse((at, piece, begin)));
        for (at, _, _, other, block, slot) in others.into_iter().take(end - asked.len()) {
            *slot = BlockState::Two(other, pick.peer, at);
            asked.push(block);
        }
    }

    /// Begins a piece anew that one peer was to send alone, and did not in time. Its blocks are dropped.
    fn take_over(&mut self, pick: &PickRequest<'_>, end: usize, asked: &mut Vec<Block>) {
        let slow = |piece: u32, begun: &BegunPiece| {
            let Some(until) = begun.alone.filter(|_| begun.by != pick.peer) else { return false };
            // Peers that have not tried come first: one that has may connect again to do it again.
            let tried = begun.from == Some(pick.from)
                || self.alone.get(&piece).is_some_and(|tries| tries.from.contains(&pick.from));
            until + if tried { 3 * self.late } else { Duration::ZERO } < pick.now
        };
        let found = self.begun.iter().find(|(piece, begun)| slow(**piece, begun) && pick.can(**piece));
        let Some((&piece, &BegunPiece { from, .. })) = found else { return };
        let tries = self.alone.entry(piece).or_default();
        tries.count += 1;
        tries.from.extend(from);
        let count = tries.count;
        let until = pick.now + self.patience(self.info.piece_len(piece), count);
        let begun = self.begun.get_mut(&piece).expect("it was found");
        begun.blocks.fill(BlockState::Unrequested);
        (begun.by, begun.from, begun.alone) = (pick.peer, Some(pick.from), Some(until));
        begun.missing = begun.blocks.len() as u32;
        begun.free = begun.missing;
        begun.ask_rest(piece, pick, end, asked);
    }

    /// Drops the piece with the fewest blocks, among the pieces that are requested from no peer and that this
    /// peer does not have. Returns whether there is room then.
    fn make_room(&mut self, pick: &PickRequest<'_>, rng: &mut impl Rng) -> bool {
        let left = self.begun.iter().filter(|(piece, begun)| !begun.is_asked() && !pick.can(**piece));
        let Some((&piece, _)) = left.min_by_key(|(_, begun)| begun.blocks.len() - begun.missing as usize)
        else {
            return false;
        };
        self.drop_begun(piece, rng);
        self.has_memory()
    }

    /// Takes a block, if it is wanted from this peer. The caller has checked that it was requested from the
    /// peer, be it long ago.
    pub(crate) fn received(
        &mut self,
        peer: PeerKey,
        piece: u32,
        begin: u32,
        data: &[u8],
        now: Instant,
    ) -> Option<Received> {
        if piece < self.info.piece_count() && self.waiting.contains(piece) && self.has_memory() {
            // It was given back, and comes all the same.
            self.begin(piece, peer, None, now);
        }
        let begun = self.begun.get_mut(&piece)?;
        let nth = (begin / BLOCK) as usize;
        let slot = begun.blocks.get_mut(nth)?;
        let expected = block(piece, nth, begun.data.len());
        if (expected.begin, expected.length as usize) != (begin, data.len())
            || (begun.alone.is_some() && begun.by != peer)
        {
            return None;
        }
        let cancel = match *slot {
            BlockState::Here(_) => return None,
            BlockState::Unrequested => {
                begun.free -= 1;
                Vec::new()
            }
            BlockState::One(one, _) if one == peer => Vec::new(),
            BlockState::One(one, _) => vec![one],
            BlockState::Two(one, two, _) => [one, two].into_iter().filter(|other| *other != peer).collect(),
        };
        *slot = BlockState::Here(peer);
        begun.data[begin as usize..][..data.len()].copy_from_slice(data);
        begun.missing -= 1;
        if begun.missing > 0 {
            return Some(Received { cancel, whole: None });
        }
        let begun = self.begun.remove(&piece).expect("it was there");
        self.done.insert(piece);
        let from = begun.blocks.into_iter().map(|asked| match asked {
            BlockState::Here(from) => from,
            _ => unreachable!("none is missing"),
        });
        let whole = Some(WholePiece { piece, data: begun.data, from: from.collect() });
        Some(Received { cancel, whole })
    }

    /// A piece that was handed out is stored, or was wrong and is fetched again; then from one peer `alone`,
    /// to find the sender of wrong blocks.
    pub(crate) fn verified(&mut self, piece: u32, right: bool, alone: bool, rng: &mut impl Rng) {
        self.memory -= u64::from(self.info.piece_len(piece));
        if right {
            self.alone.remove(&piece);
            return;
        }
        if alone {
            self.alone.insert(piece, LoneTries::default());
        }
        self.done.remove(piece);
        self.wait(piece, rng);
    }

    /// A piece that was complete is fetched again.
    pub(crate) fn take_back(&mut self, piece: u32, rng: &mut impl Rng) {
        if self.done.remove(piece) {
            self.wait(piece, rng);
        }
    }

    /// A peer will not send these requested blocks.
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

    /// A peer is gone, and sends no requested blocks.
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

    /// A piece without requests waits again, unless some of it is here; one that is to come from a single
    /// peer begins anew.
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

    /// A piece is no longer requested from any peer.
    fn wait(&mut self, piece: u32, rng: &mut impl Rng) {
        self.waiting.insert(piece, rng);
        self.returned += 1;
    }

    const fn has_memory(&self) -> bool {
        self.memory == 0 || self.memory < self.most_memory
    }
}

impl BegunPiece {
    /// Adds blocks that are not requested from any peer.
    fn ask_rest(&mut self, piece: u32, pick: &PickRequest<'_>, end: usize, asked: &mut Vec<Block>) {
        if self.free == 0 || asked.len() == end || !pick.can(piece) {
            return;
        }
        let length = self.data.len();
        let rest = self.blocks.iter_mut().enumerate().filter(|(_, slot)| **slot == BlockState::Unrequested);
        for (nth, slot) in rest.take(end - asked.len()) {
            *slot = BlockState::One(pick.peer, pick.now);
            self.free -= 1;
            asked.push(block(piece, nth, length));
        }
    }

    fn is_asked(&self) -> bool {
        self.blocks.iter().any(|slot| matches!(slot, BlockState::One(..) | BlockState::Two(..)))
    }
}

impl BlockState {
    /// Removes the request to `peer`. Returns whether it was the only one.
    fn forget(&mut self, peer: PeerKey) -> bool {
        match *self {
            Self::One(one, _) if one == peer => {
                *self = Self::Unrequested;
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
