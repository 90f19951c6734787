//! Info dictionaries by magnet link (BEP 9): fetched piece by piece from peers that may lie, and served to
//! peers that may send too many requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hash},
    time::{Duration, Instant},
};

use swarmkeep_metainfo::InfoHashes;
use swarmkeep_peer_wire::{METADATA_PIECE, MetadataMessage};

/// Fetches an info dictionary by its hash. `P` identifies a peer.
///
/// The first attempt requests different pieces from all peers that claim the same size; the size is the one
/// that most peers claim. If the whole has another hash, a peer lied. From then on each attempt takes all
/// pieces from one peer, so that a wrong whole is the fault of that peer. When the right dictionary is here,
/// the pieces that each peer sent show which peer lied in the first attempt.
///
/// A connection calls [`request`](Self::request) until it returns `None`: when the connection is ready,
/// whenever something came, and every few seconds. There is no clock here. Memory grows with the bytes that
/// came, not with the size that a peer claims.
#[derive(Debug)]
pub struct MetadataFetch<P> {
    hashes: InfoHashes,
    longest: u32,
    peers: HashMap<P, Peer>,
    attempt: Option<Attempt<P>>,
    /// The pieces of the attempt of many peers that was wrong: sender, piece, and a keyed hash of size and
    /// bytes.
    suspects: Vec<(P, u32, u64)>,
    key: RandomState,
    /// Whether each attempt takes all pieces from one peer.
    alone: bool,
    turns: u64,
    done: bool,
}

#[derive(Debug)]
struct Peer {
    size: u32,
    requests: Vec<OpenRequest>,
    /// Times that it rejected, or was too slow.
    failures: u32,
    not_before: Option<Instant>,
    /// When `request` was last called for it. A peer not seen for a while keeps no other waiting.
    seen: Option<Instant>,
    /// Its turn to send all: the lowest is next. New peers come after the ones that failed.
    turn: u64,
    lied: bool,
}

#[derive(Debug, Clone, Copy)]
struct OpenRequest {
    piece: u32,
    since: Instant,
    /// Whether it timed out, or its attempt has ended.
    late: bool,
}

#[derive(Debug)]
struct Attempt<P> {
    size: u32,
    arrived: BTreeMap<u32, (P, Box<[u8]>)>,
    /// The pieces from here on were not requested.
    next: u32,
    /// Earlier pieces that are to be requested again.
    again: BTreeSet<u32>,
    /// The peer that sends all pieces, if only one does.
    alone: Option<P>,
    until: Instant,
}

/// The result of a piece that a peer sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Fetched<P> {
    /// More are missing, or it came too late to be of use.
    Part,
    /// It was the last, and the whole has another hash. One or more of the suspects lied.
    Wrong {
        /// All peers that sent a piece.
        suspects: Vec<P>,
    },
    /// It was the last, and the whole has the right hash.
    Whole {
        /// The info dictionary.
        info: Vec<u8>,
        /// Peers that sent other bytes before.
        liars: Vec<P>,
    },
}

impl<P: Copy + Eq + Hash> MetadataFetch<P> {
    /// The longest dictionary that is fetched by default: enough for a v1 torrent of 1.5 million pieces.
    /// libtorrent stops at 30 MiB.
    pub const LONGEST: u32 = 32 << 20;
    /// The most unanswered requests to one peer.
    pub const MOST_ASKED: usize = 4;
    /// After this time without the piece, it is requested from other peers.
    pub const PATIENCE: Duration = Duration::from_secs(15);
    /// An attempt is given up after this time per piece (64 KiB/s) plus twice [`PATIENCE`](Self::PATIENCE);
    /// with a peer that failed before, the time doubles with each failure. So a peer that sends just fast
    /// enough does not delay the others.
    pub const A_PIECE: Duration = Duration::from_millis(250);
    /// After this time, a peer that rejected or was too slow gets requests again; the time doubles with each
    /// failure, up to 32 times.
    pub const AFTER_FAILURE: Duration = Duration::from_secs(10);

    /// Begins to fetch the dictionary with these hashes, if it has at most `longest` bytes.
    pub fn new(hashes: InfoHashes, longest: u32) -> Self {
        Self {
            hashes,
            longest,
            peers: HashMap::new(),
            attempt: None,
            suspects: Vec::new(),
            key: RandomState::new(),
            alone: false,
            turns: 0,
            done: false,
        }
    }

    /// A peer claims in its extended handshake that it has the dictionary, of `size` bytes. Only its first
    /// claim counts.
    ///
    /// # Errors
    /// [`MetadataFault::Size`] if no dictionary of that size is fetched. The connection can go on.
    pub fn offered(&mut self, peer: P, size: u32) -> Result<(), MetadataFault> {
        if size == 0 || size > self.longest {
            return Err(MetadataFault::Size);
        }
        self.peers.entry(peer).or_insert_with(|| Peer {
            size,
            requests: Vec::new(),
            failures: 0,
            not_before: None,
            seen: None,
            turn: self.turns,
            lied: false,
        });
        self.turns += 1;
        Ok(())
    }

    /// The piece to request next from a peer, if there is one.
    pub fn request(&mut self, peer: P, now: Instant) -> Option<u32> {
        self.give_up_waiting(now);
        let claim = self.peers.get_mut(&peer).filter(|_| !self.done)?;
        claim.seen = Some(now);
        if claim.requests.len() >= Self::MOST_ASKED || !claim.may_be_asked(now) {
            return None;
        }
        let (size, failures) = (claim.size, claim.failures);
        if self.alone {
            if self.attempt.is_none() && self.is_next(peer, now) {
                self.attempt = Some(Attempt::new(size, Some(peer), now + Self::time_for(size, failures)));
            }
        } else {
            let most = self.most_claimed(size);
            if self.attempt.as_ref().is_none_or(|attempt| attempt.size != most) {
                self.abandon();
                let time = Self::time_for(most, 0);
                // Some of the peers that claim another size may be right.
                let doubtful = self.peers.values().any(|peer| peer.size != most);
                let time = if doubtful { time.min(4 * Self::PATIENCE) } else { time };
                self.attempt = Some(Attempt::new(most, None, now + time));
            }
        }
        let attempt = self.attempt.as_mut()?;
        if attempt.size != size || attempt.alone.is_some_and(|alone| alone != peer) {
            return None;
        }
        let requests = &mut self.peers.get_mut(&peer)?.requests;
        let piece = attempt.next_piece(|piece| requests.iter().any(|request| request.piece == piece))?;
        requests.push(OpenRequest { piece, since: now, late: false });
        Some(piece)
    }

    /// A peer sent a piece.
    ///
    /// # Errors
    /// A fault that no honest peer commits. The caller ends the connection and calls [`gone`](Self::gone).
    pub fn data(
        &mut self,
        peer: P,
        piece: u32,
        total_size: u32,
        data: &[u8],
    ) -> Result<Fetched<P>, MetadataFault> {
        let (request, size) = self.answered(peer, piece)?;
        let expected = MetadataMessage::piece_len(size, piece);
        if total_size != size || data.len() != expected as usize {
            self.want_again(request, size);
            return Err(if total_size == size { MetadataFault::Length } else { MetadataFault::OtherSize });
        }
        let Some(attempt) = self.attempt.as_mut() else { return Ok(Fetched::Part) };
        let of_another = attempt.size != size || attempt.alone.is_some_and(|alone| alone != peer);
        if of_another || attempt.arrived.contains_key(&piece) {
            return Ok(Fetched::Part);
        }
        attempt.again.remove(&piece);
        attempt.arrived.insert(piece, (peer, data.into()));
        if attempt.arrived.len() < pieces(attempt.size) as usize {
            return Ok(Fetched::Part);
        }
        let whole = self.attempt.take().expect("it is there");
        self.judge(peer, whole)
    }

    /// A peer rejected a request.
    ///
    /// # Errors
    /// [`MetadataFault::NotAsked`].
    pub fn rejected(&mut self, peer: P, piece: u32, now: Instant) -> Result<(), MetadataFault> {
        let (request, size) = self.answered(peer, piece)?;
        self.want_again(request, size);
        self.failed(peer, now);
        Ok(())
    }

    /// A connection has ended, or takes no more part. The pieces that it sent still count, unless it was to
    /// send all.
    pub fn gone(&mut self, peer: P) {
        let Some(Peer { requests, size, .. }) = self.peers.remove(&peer) else { return };
        requests.into_iter().for_each(|request| self.want_again(request, size));
        if self.is_alone(peer) {
            self.abandon();
        }
    }

    /// Checks the hash of all pieces; if it is wrong, finds the peers that may be at fault.
    fn judge(&mut self, last: P, whole: Attempt<P>) -> Result<Fetched<P>, MetadataFault> {
        let size = whole.size;
        if self.hashes.are_of(whole.arrived.values().map(|(_, data)| &data[..])) {
            self.done = true;
            let mut liars = Vec::new();
            for &(peer, piece, sent) in &self.suspects {
                let right = whole.arrived.get(&piece).map(|(_, data)| self.key.hash_one((size, data)));
                if right != Some(sent) && !liars.contains(&peer) {
                    liars.push(peer);
                }
            }
            let mut info = Vec::with_capacity(size as usize);
            // Each is dropped when it has been copied.
            for (_, (_, data)) in whole.arrived {
                info.extend_from_slice(&data);
            }
            return Ok(Fetched::Whole { info, liars });
        }
        self.alone = true;
        self.abandon();
        let mut suspects: Vec<P> = Vec::new();
        for (peer, _) in whole.arrived.values() {
            if !suspects.contains(peer) {
                suspects.push(*peer);
            }
        }
        if suspects.len() == 1 {
            if let Some(peer) = self.peers.get_mut(&last) {
                peer.lied = true;
            }
            return Err(MetadataFault::Wrong);
        }
        for (piece, (peer, data)) in whole.arrived {
            self.suspects.push((peer, piece, self.key.hash_one((size, data))));
        }
        for peer in &suspects {
            self.last_in_turn(*peer);
        }
        Ok(Fetched::Wrong { suspects })
    }

    /// The size that most peers claim. On a draw, the attempt's, or else `size`.
    fn most_claimed(&self, size: u32) -> u32 {
        let mut votes = HashMap::new();
        for peer in self.peers.values().filter(|peer| !peer.lied) {
            *votes.entry(peer.size).or_insert(0) += 1;
        }
        let now = self.attempt.as_ref().map_or(size, |attempt| attempt.size);
        let most = votes.iter().max_by_key(|(size, count)| (**count, **size == now));
        most.map_or(size, |(size, _)| *size)
    }

    fn last_in_turn(&mut self, peer: P) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.turn = self.turns;
            self.turns += 1;
        }
    }

    /// Whether no other peer waits longer than this one.
    fn is_next(&self, peer: P, now: Instant) -> bool {
        let there = |peer: &&Peer| {
            let here = peer.seen.is_some_and(|seen| now.saturating_duration_since(seen) < Self::PATIENCE);
            here && peer.may_be_asked(now) && peer.requests.len() < Self::MOST_ASKED
        };
        let first = self.peers.values().filter(there).map(|peer| peer.turn).min();
        self.peers.get(&peer).is_some_and(|peer| first.is_none_or(|first| peer.turn <= first))
    }

    fn give_up_waiting(&mut self, now: Instant) {
        let mut again = Vec::new();
        for peer in self.peers.values_mut() {
            for request in peer.requests.iter_mut().filter(|request| !request.late) {
                if now.saturating_duration_since(request.since) >= Self::PATIENCE {
                    again.push((*request, peer.size));
                    request.late = true;
                }
            }
        }
        let slow = !again.is_empty();
        again.into_iter().for_each(|(request, size)| self.want_again(request, size));
        match &self.attempt {
            // Meanwhile no other peer gets requests.
            Some(Attempt { alone: Some(peer), until, .. }) if slow || *until <= now => {
                self.failed(*peer, now)
            }
            // Most of them may claim a size and send nothing.
            Some(Attempt { alone: None, until, .. }) if *until <= now => {
                self.alone = true;
                self.abandon();
            }
            _ => {}
        }
    }

    fn time_for(size: u32, failures: u32) -> Duration {
        2 * Self::PATIENCE + Self::A_PIECE * pieces(size) * (1 << failures.min(10))
    }

    /// A peer rejected or was too slow. If it was to send all, another one will.
    fn failed(&mut self, peer: P, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.not_before = Some(now + Self::AFTER_FAILURE * (1 << peer.failures.min(5)));
            peer.failures += 1;
        }
        self.last_in_turn(peer);
        if self.is_alone(peer) {
            self.abandon();
        }
    }

    /// Whether a peer is to send all.
    fn is_alone(&self, peer: P) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.alone == Some(peer))
    }

    /// Ends an attempt. Requested pieces may still come.
    fn abandon(&mut self) {
        self.attempt = None;
        for request in self.peers.values_mut().flat_map(|peer| &mut peer.requests) {
            request.late = true;
        }
    }

    /// Takes the request that a peer has answered; returns it, and the size that the peer claims.
    fn answered(&mut self, peer: P, piece: u32) -> Result<(OpenRequest, u32), MetadataFault> {
        let fault = MetadataFault::NotAsked;
        let peer = self.peers.get_mut(&peer).ok_or(fault)?;
        let nth = peer.requests.iter().position(|request| request.piece == piece).ok_or(fault)?;
        Ok((peer.requests.swap_remove(nth), peer.size))
    }

    fn want_again(&mut self, request: OpenRequest, size: u32) {
        if let Some(attempt) = &mut self.attempt
            && !request.late
            && attempt.size == size
            && !attempt.arrived.contains_key(&request.piece)
        {
            attempt.again.insert(request.piece);
        }
    }
}

impl Peer {
    fn may_be_asked(&self, now: Instant) -> bool {
        !self.lied && self.not_before.is_none_or(|time| time <= now)
    }
}

impl<P> Attempt<P> {
    const fn new(size: u32, alone: Option<P>, until: Instant) -> Self {
        Self { size, arrived: BTreeMap::new(), next: 0, again: BTreeSet::new(), alone, until }
    }

    /// The next piece to request from a peer that is not `asked` for it.
    fn next_piece(&mut self, asked: impl Fn(u32) -> bool) -> Option<u32> {
        let again = self.again.iter().copied().find(|piece| !asked(*piece));
        if let Some(piece) = again {
            self.again.remove(&piece);
            return Some(piece);
        }
        while self.next < pieces(self.size) {
            let piece = self.next;
            self.next += 1;
            if !self.arrived.contains_key(&piece) {
                if !asked(piece) {
                    return Some(piece);
                }
                // Requested in an earlier attempt, and still to come.
                self.again.insert(piece);
            }
        }
        None
    }
}

const fn pieces(size: u32) -> u32 {
    size.div_ceil(METADATA_PIECE)
}

/// A fault of a peer, or why it cannot help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataFault {
    /// A size that is not fetched.
    #[error("metadata of more bytes than are fetched, or of none")]
    Size,
    /// An answer to no request.
    #[error("a piece of the metadata that was not requested")]
    NotAsked,
    /// Another size than in its handshake.
    #[error("metadata of another size than in its handshake")]
    OtherSize,
    /// More or fewer bytes than the piece has.
    #[error("more or fewer bytes than a piece of the metadata has")]
    Length,
    /// It sent all pieces, and the whole has another hash.
    #[error("metadata with another info hash")]
    Wrong,
}

/// Serves an info dictionary to one peer, which may request all of it [`TIMES`](Self::TIMES) times.
///
/// BEP 9 has peers reject further requests, so that no peer can make another send without end.
#[derive(Debug, Clone, Default)]
pub struct MetadataUploads {
    served: u32,
}

impl MetadataUploads {
    /// How many times one peer may request the whole: once is enough, the others are for peers that start
    /// again.
    pub const TIMES: u32 = 3;

    /// The answer to a request: the piece of `info`, or that it is rejected.
    pub fn answer<'a>(&mut self, info: &'a [u8], piece: u32) -> MetadataMessage<'a> {
        let Ok(total_size) = u32::try_from(info.len()) else { return MetadataMessage::Reject { piece } };
        let begin = piece as usize * METADATA_PIECE as usize;
        let length = MetadataMessage::piece_len(total_size, piece) as usize;
        if length == 0 || self.served >= Self::TIMES * pieces(total_size) {
            return MetadataMessage::Reject { piece };
        }
        self.served += 1;
        MetadataMessage::Data { piece, total_size, data: &info[begin..begin + length] }
    }
}
