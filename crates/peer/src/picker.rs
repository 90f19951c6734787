//! Which blocks to ask a peer for, and what came of it.
//!
//! What is begun is finished first, the rarest begins next, and at the end what is still to come is asked of a second peer as well
//! (endgame). A piece stays in memory until all of it is there; how much that is has a limit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rand::Rng;
use swarmkeep_bittorrent::metainfo::Info;
use swarmkeep_content::PieceBits;
use swarmkeep_peer_wire::{Block, PieceIndex};

use crate::rarest::Rarest;

/// What is asked for at once, as all clients do (BEP 3); the last of a piece is shorter.
pub(crate) const BLOCK: u32 = 16 << 10;

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
    alone: BTreeSet<u32>,
}

#[derive(Debug)]
struct Begun {
    data: Vec<u8>,
    blocks: Vec<Asked>,
    /// Who was asked first, and for the rest if it can.
    by: PeerKey,
    /// Whether nobody else may be asked.
    alone: bool,
    /// Blocks that are to be asked for.
    free: u32,
    /// Blocks that are to come.
    missing: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nobody,
    One(PeerKey),
    Two(PeerKey, PeerKey),
    Here(PeerKey),
}

/// What a block was good for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Nothing: nobody wants it, or nobody asked this peer for it.
    Unwanted,
    /// Something. Another one need not send it any more.
    Block {
        /// Who was asked as well.
        cancel: Option<PeerKey>,
    },
    /// The last one of a piece, which is to be verified.
    Whole {
        /// Who was asked as well.
        cancel: Option<PeerKey>,
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
    /// For a torrent of which `done` is complete. Pieces take up to `most_memory` bytes, or what one takes.
    pub(crate) fn new(info: Arc<Info>, done: PieceBits, most_memory: u64, rng: &mut impl Rng) -> Self {
        let mut waiting = Rarest::new(info.piece_count(), rng);
        done.iter().for_each(|piece| waiting.remove(piece));
        Self { info, done, waiting, begun: BTreeMap::new(), memory: 0, most_memory, alone: BTreeSet::new() }
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

    /// Up to `count` blocks that a peer should be asked for, of pieces that it `can` bring. `preferred` are pieces to begin before others.
    pub(crate) fn pick(
        &mut self,
        peer: PeerKey,
        can: impl Fn(u32) -> bool,
        count: usize,
        preferred: impl FnOnce() -> Vec<u32>,
        asked: &mut Vec<Block>,
    ) {
        let end = asked.len() + count;
        let ask_for = |piece: u32, begun: &mut Begun, asked: &mut Vec<Block>| {
            if !can(piece) {
                return;
            }
            for (nth, slot) in begun.blocks.iter_mut().enumerate().filter(|(_, slot)| **slot == Asked::Nobody)
            {
                if asked.len() == end {
                    return;
                }
                *slot = Asked::One(peer);
                begun.free -= 1;
                asked.push(block(piece, nth, begun.data.len()));
            }
        };
        for (&piece, begun) in self.begun.iter_mut().filter(|(_, begun)| begun.free > 0 && begun.by == peer) {
            ask_for(piece, begun, asked);
        }
        if asked.len() < end && self.waiting.len() > 0 {
            let mut preferred = preferred().into_iter();
            while asked.len() < end && self.has_memory() {
                let wanted = preferred.by_ref().find(|&piece| self.waiting.contains(piece) && can(piece));
                let Some(piece) = wanted.or_else(|| self.waiting.iter().find(|&piece| can(piece))) else {
                    break;
                };
                self.waiting.remove(piece);
                let length = self.info.piece_len(piece);
                let blocks = length.div_ceil(BLOCK);
                let mut begun = Begun {
                    data: vec![0; length as usize],
                    blocks: vec![Asked::Nobody; blocks as usize],
                    by: peer,
                    alone: self.alone.contains(&piece),
                    free: blocks,
                    missing: blocks,
                };
                ask_for(piece, &mut begun, asked);
                self.memory += u64::from(length);
                self.begun.insert(piece, begun);
            }
        }
        for (&piece, begun) in self.begun.iter_mut().filter(|(_, begun)| begun.free > 0 && !begun.alone) {
            ask_for(piece, begun, asked);
        }
        // The endgame: everything was asked of somebody.
        if asked.len() < end && self.waiting.len() == 0 {
            for (&piece, begun) in self.begun.iter_mut().filter(|(piece, begun)| !begun.alone && can(**piece))
            {
                for (nth, slot) in begun.blocks.iter_mut().enumerate() {
                    match *slot {
                        Asked::One(other) if other != peer && asked.len() < end => {
                            *slot = Asked::Two(other, peer);
                            asked.push(block(piece, nth, begun.data.len()));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// A block has come. Nothing is taken that this peer was not asked for.
    pub(crate) fn received(&mut self, peer: PeerKey, piece: u32, begin: u32, data: &[u8]) -> Received {
        let Some(begun) = self.begun.get_mut(&piece) else { return Received::Unwanted };
        let nth = (begin / BLOCK) as usize;
        let asked = begun.blocks.get(nth).copied().unwrap_or(Asked::Nobody);
        let cancel = match asked {
            Asked::One(one) if one == peer => None,
            Asked::Two(one, two) if one == peer => Some(two),
            Asked::Two(one, two) if two == peer => Some(one),
            _ => return Received::Unwanted,
        };
        let expected = block(piece, nth, begun.data.len());
        if (expected.begin, expected.length as usize) != (begin, data.len()) {
            return Received::Unwanted;
        }
        begun.data[begin as usize..][..data.len()].copy_from_slice(data);
        begun.blocks[nth] = Asked::Here(peer);
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

    /// A piece that was handed out is stored, or was wrong and is to come again; then from one peer `alone`, if that is to be found out.
    pub(crate) fn verified(&mut self, piece: u32, right: bool, alone: bool, rng: &mut impl Rng) {
        self.memory -= u64::from(self.info.piece_len(piece));
        if right {
            self.alone.remove(&piece);
            return;
        }
        if alone {
            self.alone.insert(piece);
        }
        self.done.remove(piece);
        self.waiting.insert(piece, rng);
    }

    /// A peer will not bring a block.
    pub(crate) fn give_back(&mut self, peer: PeerKey, block: Block, rng: &mut impl Rng) {
        let PieceIndex(piece) = block.piece;
        let Some(begun) = self.begun.get_mut(&piece) else { return };
        if let Some(slot) = begun.blocks.get_mut((block.begin / BLOCK) as usize) {
            begun.free += u32::from(slot.forget(peer));
        }
        self.settle(piece, rng);
    }

    /// A peer will bring nothing that it was asked for.
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

    /// A piece of which nobody was asked for anything waits again, unless some of it is here; one that is to come from a single peer
    /// begins anew.
    fn settle(&mut self, piece: u32, rng: &mut impl Rng) {
        let Some(begun) = self.begun.get(&piece) else { return };
        let asked = begun.blocks.iter().any(|slot| matches!(slot, Asked::One(_) | Asked::Two(..)));
        let nothing_here = begun.missing as usize == begun.blocks.len();
        if !asked && (nothing_here || begun.alone) {
            let begun = self.begun.remove(&piece).expect("it was there");
            self.memory -= begun.data.len() as u64;
            self.waiting.insert(piece, rng);
        }
    }

    const fn has_memory(&self) -> bool {
        self.memory == 0 || self.memory < self.most_memory
    }
}

impl Asked {
    /// Whether nobody is left who was asked, and there was somebody.
    fn forget(&mut self, peer: PeerKey) -> bool {
        match *self {
            Self::One(one) if one == peer => {
                *self = Self::Nobody;
                true
            }
            Self::Two(one, two) if one == peer || two == peer => {
                *self = Self::One(if one == peer { two } else { one });
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
