//! The state of a torrent.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::PeerId;

use super::{PeerPieces, Progress, Torrent};

/// The state of one peer of a torrent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its peer id.
    pub id: PeerId,
    /// Pieces that it has.
    pub pieces: u32,
    /// Bytes of wanted blocks that came from it: in all, and per second now.
    pub down: (u64, u64),
    /// Bytes of blocks that were sent to it: in all, and per second now.
    pub up: (u64, u64),
    /// Whether its requests are answered.
    pub unchoked: bool,
    /// Missing pieces that it has, without the ones that it had wrong.
    pub wanted: u32,
    /// Whether it answers no requests now.
    pub chokes: bool,
}

/// An address that was not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreachedPeer {
    /// The address.
    pub address: SocketAddr,
    /// Whether it is from [`Handle::found`](crate::Handle::found).
    pub named: bool,
    /// Why it was not reached, or why its connection ended at once.
    pub error: String,
    /// The time until the next attempt.
    pub next_in: Duration,
}

/// An IPv4 address, or an IPv6 network of 64 bits, from which wrong bytes came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BannedPeer {
    /// The endpoint that sent the latest of them.
    pub address: SocketAddr,
    /// Their piece; `None` if they were metadata.
    pub piece: Option<u32>,
    /// The number of times that wrong bytes came.
    pub times: usize,
    /// How far it is banned.
    pub ban: Ban,
}

/// How far a peer that sent wrong bytes is banned. No ban but the last counts while no other peer is connected
/// that has missing pieces; a piece that the endpoint had wrong is never requested from it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Ban {
    /// The endpoint: other peers may have the same address.
    #[error("called again only if there is no other source, and never asked for these bytes")]
    Endpoint,
    /// The address, of which two endpoints sent wrong bytes.
    #[error("its address is called again only if there is no other source")]
    Address,
    /// The address, for its fifth offence.
    #[error("its address is banned")]
    ForGood,
}

/// The state of a torrent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// How far it is.
    pub progress: Progress,
    /// Bytes of wanted blocks that came: in all, and per second now.
    pub down: (u64, u64),
    /// Bytes of blocks that were sent: in all, and per second now.
    pub up: (u64, u64),
    /// Bytes of received blocks that were of no use: wrong, too late, or not requested.
    pub wasted: u64,
    /// Pieces that were offered and are no longer, since the torrent was added: they cannot be read, or are
    /// wrong. Some may have been fetched again.
    pub lost: u32,
    /// Bytes of pieces that are not in the store.
    pub left: u64,
    /// Whether they are fetched: the store takes them.
    pub fetches: bool,
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// Addresses that were not reached at the latest attempt.
    pub unreached: Vec<UnreachedPeer>,
    /// The addresses from which wrong bytes came.
    pub banned: Vec<BannedPeer>,
}

impl Torrent {
    pub(crate) fn status(&self) -> Status {
        let (left, progress) = (self.left(), self.progress.borrow().clone());
        let fetches = self.is_fetched() && progress.failed.is_none();
        let (state, now) = (self.state.lock(), Instant::now());
        let unreached = state.candidates.unreached().map(|(address, named, error, next)| UnreachedPeer {
            address,
            named,
            error: error.to_owned(),
            next_in: next.saturating_duration_since(now),
        });
        let unreached = unreached.collect();
        let peers = state.peers.values().map(|entry| PeerStatus {
            address: entry.peer.address,
            id: entry.id,
            pieces: match &entry.has {
                PeerPieces::All => state.have.pieces(),
                PeerPieces::Some(bits) => bits.count(),
            },
            down: (entry.peer.down.total(), entry.peer.down.rate()),
            up: (entry.peer.up.total(), entry.peer.up.rate()),
            unchoked: entry.peer.unchoked.load(Relaxed),
            wanted: {
                let wrong = state.offences.wrong_pieces(entry.endpoint());
                let missing = wrong.iter().filter(|piece| !state.have.contains(**piece));
                entry.wanted.saturating_sub(missing.count() as u32)
            },
            chokes: entry.peer.chokes.load(Relaxed),
        });
        let banned = state.offences.0.values().filter_map(|offences| {
            let &(address, piece) = offences.last()?;
            Some(BannedPeer { address, piece, times: offences.len(), ban: state.offences.ban(address)? })
        });
        Status {
            progress,
            down: (self.down.total(), self.down.rate()),
            up: (self.up.total(), self.up.rate()),
            wasted: self.wasted.load(Relaxed),
            lost: state.lost,
            left,
            fetches,
            peers: peers.collect(),
            unreached,
            banned: banned.collect(),
        }
    }
}
