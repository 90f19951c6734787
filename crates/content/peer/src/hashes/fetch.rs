//! Piece layers of a torrent without its torrent file: which hashes to request from which peer, and which
//! answers are right.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
    ops::Range,
    time::{Duration, Instant},
};

use swarmkeep_metainfo::{Info, LONGEST, MerkleTree};
use swarmkeep_peer_wire::{HashRange, Hashes};

/// Fetches the piece layers that an info dictionary lacks, from any peers, and adds them to it file by file.
/// `P` identifies a peer.
///
/// They are requested in chunks of [`HashRange::MOST`] pieces, each with its proof, so that a peer that sends
/// a wrong one is found at once. A connection calls [`request`](Self::request) until it returns `None`: when
/// the connection is ready, whenever something came, and every few seconds. There is no clock here.
///
/// Memory: 64 bytes per file of several pieces, 8 per chunk, and 32 per hash that came and was right.
#[derive(Debug)]
pub struct HashFetch<P> {
    info: Info,
    /// The missing layers, in the order of their pieces.
    layers: Vec<Layer>,
    /// How many of them are not whole.
    missing: usize,
    /// Chunks for which no answer is awaited. One that is known may be among them.
    wanted: VecDeque<Chunk>,
    /// Requests in their order; some of them may be answered.
    awaited: VecDeque<(Instant, P, Chunk)>,
    /// Hashes of layers that are not whole.
    arrived: BTreeMap<Chunk, Box<[[u8; 32]]>>,
    peers: HashMap<P, Peer>,
}

#[derive(Debug)]
struct Layer {
    root: [u8; 32],
    missing: u32,
}

/// Some hashes of a layer: [`HashRange::MOST`], or the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    layer: u32,
    nth: u32,
}

#[derive(Debug, Default)]
struct Peer {
    requests: Vec<OpenRequest>,
    rejects: u32,
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct OpenRequest {
    chunk: Chunk,
    /// Whether it timed out: another peer may get the request.
    late: bool,
}

impl<P: Copy + Eq + Hash> HashFetch<P> {
    /// The most unanswered requests to one peer.
    pub const MOST_ASKED: usize = 4;
    /// After this time without an answer, the request goes to other peers.
    pub const PATIENCE: Duration = Duration::from_secs(20);
    /// After this time, a peer that rejected gets requests again; the time doubles with each rejection, up to
    /// 32 times.
    pub const AFTER_REJECT: Duration = Duration::from_secs(10);
    /// After this time, a request is repeated to another peer that has nothing else to send.
    pub const AGAIN: Duration = Duration::from_secs(2);
    /// Chunks that are looked at for one of which a peer has pieces.
    const LOOKED_AT: usize = 64;

    /// Begins to fetch the missing hashes, if there are any.
    ///
    /// # Errors
    /// [`TooManyHashes`] if a torrent file with that many would not be read either.
    pub fn new(info: Info) -> Result<Self, TooManyHashes> {
        let mut trees: Vec<_> = info.trees().filter(|tree| tree.piece_hashes().is_none()).collect();
        trees.sort_unstable_by_key(|tree| tree.pieces().start);
        let hashes = trees.iter().map(|tree| tree.pieces().len() as u64).sum();
        if hashes > LONGEST as u64 / 32 {
            return Err(TooManyHashes(hashes));
        }
        let layers: Vec<_> =
            trees.iter().map(|tree| Layer { root: *tree.root(), missing: chunks(tree) }).collect();
        let of_layer = |(layer, tree): (usize, &MerkleTree<'_>)| {
            (0..chunks(tree)).map(move |nth| Chunk { layer: layer as u32, nth })
        };
        let wanted = trees.iter().enumerate().flat_map(of_layer).collect();
        Ok(Self {
            missing: layers.len(),
            wanted,
            layers,
            awaited: VecDeque::new(),
            arrived: BTreeMap::new(),
            peers: HashMap::new(),
            info,
        })
    }

    /// The info dictionary, with the piece layers that are whole.
    pub const fn info(&self) -> &Info {
        &self.info
    }

    /// The info dictionary; ends the fetch.
    pub fn into_info(self) -> Info {
        self.info
    }

    /// Whether nothing is missing.
    pub const fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// The next request to a peer, if there is one. `has` returns whether it has one of the pieces: a peer
    /// need not know the hashes of other pieces (BEP 52).
    pub fn request(
        &mut self,
        peer: P,
        now: Instant,
        has: impl Fn(Range<u32>) -> bool,
    ) -> Option<HashRange<'_>> {
        self.give_up_waiting(now);
        let state = self.peers.entry(peer).or_default();
        if state.requests.len() >= Self::MOST_ASKED || state.not_before.is_some_and(|time| now < time) {
            return None;
        }
        for _ in 0..self.wanted.len().min(Self::LOOKED_AT) {
            let chunk = self.wanted.pop_front()?;
            if self.is_known(chunk) {
                continue;
            }
            if !self.may_bring(peer, chunk, &has) {
                self.wanted.push_back(chunk);
                continue;
            }
            self.awaited.push_back((now, peer, chunk));
            return Some(self.ask(peer, chunk, false));
        }
        let slow = self.awaited.iter().take(Self::LOOKED_AT).find(|(since, _, chunk)| {
            now.saturating_duration_since(*since) >= Self::AGAIN
                && !self.is_known(*chunk)
                && self.may_bring(peer, *chunk, &has)
        });
        let (_, _, chunk) = *slow?;
        // It counts as late at once: the answer of the other peer is the one that is waited for.
        Some(self.ask(peer, chunk, true))
    }

    fn may_bring(&self, peer: P, chunk: Chunk, has: impl Fn(Range<u32>) -> bool) -> bool {
        let is_requested =
            self.peers.get(&peer).is_some_and(|peer| peer.requests.iter().any(|open| open.chunk == chunk));
        !is_requested && has(pieces(&self.tree(chunk.layer), chunk.nth))
    }

    fn ask(&mut self, peer: P, chunk: Chunk, late: bool) -> HashRange<'_> {
        self.peers.entry(peer).or_default().requests.push(OpenRequest { chunk, late });
        let tree = self.tree(chunk.layer);
        let (base, height) = (tree.piece_layer(), tree.height());
        let (index, length) = asked_for(&tree, chunk.nth);
        let root = &self.layers[chunk.layer as usize].root;
        let range = HashRange::new(root, base, index, length, height - base - 1);
        range.expect("a power of two, and no more layers than there can be")
    }

    /// Takes hashes that a peer sent; returns whether nothing is missing any more. With the last ones of a
    /// file, [`info`](Self::info) can check its pieces. Takes 0.1 ms of hashing; the last hashes of a file
    /// take another hash of its whole layer, 0.2 s for a million pieces.
    ///
    /// # Errors
    /// A fault that no honest peer commits. The caller ends the connection and calls [`gone`](Self::gone).
    pub fn hashes(&mut self, peer: P, hashes: &Hashes<'_>) -> Result<bool, HashFault> {
        let request = self.answered(peer, &hashes.range())?;
        let chunk = request.chunk;
        let tree = self.tree(chunk.layer);
        let range = hashes.range();
        if !tree.verify(range.base_layer(), range.index().into(), hashes.base(), hashes.proof()) {
            self.want_again(&request);
            return Err(HashFault::Wrong);
        }
        // Another peer may have been faster.
        if self.is_known(chunk) {
            return Ok(self.is_complete());
        }
        let real = pieces(&tree, chunk.nth).len();
        self.arrived.insert(chunk, hashes.base()[..real].into());
        let layer = &mut self.layers[chunk.layer as usize];
        layer.missing -= 1;
        if layer.missing > 0 {
            return Ok(false);
        }
        let root = layer.root;
        let mut all = Vec::new();
        for nth in 0.. {
            let Some(hashes) = self.arrived.remove(&Chunk { nth, ..chunk }) else { break };
            all.extend_from_slice(&hashes);
        }
        self.info.set_piece_layer(&root, &all).expect("each of its parts was proved");
        self.missing -= 1;
        Ok(self.is_complete())
    }

    /// A peer rejected a request.
    ///
    /// # Errors
    /// As in [`hashes`](Self::hashes).
    pub fn rejected(&mut self, peer: P, range: &HashRange<'_>, now: Instant) -> Result<(), HashFault> {
        let request = self.answered(peer, range)?;
        self.want_again(&request);
        let peer = self.peers.entry(peer).or_default();
        peer.not_before = Some(now + Self::AFTER_REJECT * (1 << peer.rejects.min(5)));
        peer.rejects += 1;
        Ok(())
    }

    /// A connection has ended, or takes no more part.
    pub fn gone(&mut self, peer: P) {
        for request in self.peers.remove(&peer).into_iter().flat_map(|peer| peer.requests) {
            self.want_again(&request);
        }
    }

    /// Takes the request that a peer has answered.
    fn answered(&mut self, peer: P, range: &HashRange<'_>) -> Result<OpenRequest, HashFault> {
        let requests = self.peers.get_mut(&peer).map(|peer| &mut peer.requests).ok_or(HashFault::NotAsked)?;
        let (info, layers) = (&self.info, &self.layers);
        let same = |request: &OpenRequest| {
            let root = &layers[request.chunk.layer as usize].root;
            root == range.root() && {
                let tree = info.tree(root).expect("it is one of the torrent's");
                let (base, proof) = (tree.piece_layer(), tree.height() - tree.piece_layer() - 1);
                asked_for(&tree, request.chunk.nth) == (range.index(), range.length())
                    && (base, proof) == (range.base_layer(), range.proof_layers())
            }
        };
        let nth = requests.iter().position(same).ok_or(HashFault::NotAsked)?;
        Ok(requests.swap_remove(nth))
    }

    fn give_up_waiting(&mut self, now: Instant) {
        while let Some((time, peer, chunk)) = self.awaited.front().copied() {
            if now.saturating_duration_since(time) < Self::PATIENCE {
                break;
            }
            self.awaited.pop_front();
            let Some(peer) = self.peers.get_mut(&peer) else { continue };
            if let Some(open) = peer.requests.iter_mut().find(|open| open.chunk == chunk && !open.late) {
                open.late = true;
                self.wanted.push_front(chunk);
            }
        }
    }

    fn want_again(&mut self, request: &OpenRequest) {
        if !request.late {
            self.wanted.push_back(request.chunk);
        }
    }

    fn is_known(&self, chunk: Chunk) -> bool {
        self.layers[chunk.layer as usize].missing == 0 || self.arrived.contains_key(&chunk)
    }

    fn tree(&self, layer: u32) -> MerkleTree<'_> {
        self.info.tree(&self.layers[layer as usize].root).expect("it is one of the torrent's")
    }
}

fn chunks(tree: &MerkleTree<'_>) -> u32 {
    (tree.pieces().len() as u32).div_ceil(HashRange::MOST)
}

fn pieces(tree: &MerkleTree<'_>, chunk: u32) -> Range<u32> {
    let Range { start, end } = tree.pieces();
    let first = start + chunk * HashRange::MOST;
    first..end.min(first + HashRange::MOST)
}

/// Index and length of a chunk. The last is as long as it must be, and 2 at least (BEP 52).
fn asked_for(tree: &MerkleTree<'_>, chunk: u32) -> (u32, u32) {
    let length = (pieces(tree, chunk).len() as u32).next_power_of_two().max(2);
    (chunk * HashRange::MOST, length)
}

/// A fault of a peer. It ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashFault {
    /// An answer to no request, or to another one.
    #[error("hashes that were not requested")]
    NotAsked,
    /// Hashes and a proof that do not lead to the root. No peer sends these by mistake.
    #[error("hashes that are not those of the file")]
    Wrong,
}

/// The torrent has more pieces than are supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hashes of {0} pieces are missing: no more than {max} are fetched", max = LONGEST / 32)]
#[non_exhaustive]
pub struct TooManyHashes(pub u64);
