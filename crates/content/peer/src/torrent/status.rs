//! The state of a torrent.

use std::{
    net::{IpAddr, SocketAddr},
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
}

/// An address that was not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreachedPeer {
    /// The address.
    pub address: SocketAddr,
    /// Why it was not reached, or why its connection ended at once.
    pub error: String,
    /// The time until the next attempt.
    pub next_in: Duration,
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
    /// Lost pieces of read-only content that are right again, and offered.
    pub back: u32,
    /// Bytes of pieces that are not in the store.
    pub left: u64,
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// Addresses from [`Handle::found`](crate::Handle::found) that were not reached at the latest attempt.
    pub unreached: Vec<UnreachedPeer>,
    /// Addresses that are banned because they sent wrong bytes; IPv6 networks of 64 bits.
    pub banned: Vec<IpAddr>,
}

impl Torrent {
    pub(crate) fn status(&self) -> Status {
        let (left, progress) = (self.left(), self.progress.borrow().clone());
        let (state, now) = (self.state.lock(), Instant::now());
        let unreached = state.candidates.unreached().map(|(address, error, next)| UnreachedPeer {
            address,
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
        });
        Status {
            progress,
            down: (self.down.total(), self.down.rate()),
            up: (self.up.total(), self.up.rate()),
            wasted: self.wasted.load(Relaxed),
            lost: state.lost,
            back: state.back,
            left,
            peers: peers.collect(),
            unreached,
            banned: state.banned.iter().copied().collect(),
        }
    }
}
