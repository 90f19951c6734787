//! How a torrent is, for the callers that look at it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use swarmkeep_bittorrent::PeerId;

use super::{Has, Progress, Torrent};

/// A peer of a torrent, for whoever looks at it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Where it is.
    pub address: SocketAddr,
    /// What it calls itself.
    pub id: PeerId,
    /// Pieces that it has.
    pub pieces: u32,
    /// Bytes of blocks that came from it and were wanted, and how many a second now.
    pub down: (u64, u64),
    /// Bytes of blocks that went to it, and how many a second now.
    pub up: (u64, u64),
    /// Whether its requests are answered.
    pub unchoked: bool,
}

/// A torrent, for whoever looks at it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// How far it is.
    pub progress: Progress,
    /// Bytes of blocks that came and were wanted, and how many a second now.
    pub down: (u64, u64),
    /// Bytes of blocks that went, and how many a second now.
    pub up: (u64, u64),
    /// Bytes of blocks that came and were of no use: wrong, too late, or not asked for.
    pub wasted: u64,
    /// Bytes of pieces that are not in the store.
    pub left: u64,
    /// Who is connected.
    pub peers: Vec<PeerStatus>,
    /// Addresses that brought wrong bytes, and are not spoken with; of IPv6, networks of 64 bits.
    pub banned: Vec<IpAddr>,
}

impl Torrent {
    pub(crate) fn status(&self) -> Status {
        let (left, progress) = (self.left(), self.progress.borrow().clone());
        let state = self.state.lock();
        let peers = state.peers.values().map(|entry| PeerStatus {
            address: entry.peer.address,
            id: entry.id,
            pieces: match &entry.has {
                Has::All => state.have.pieces(),
                Has::Some(bits) => bits.count(),
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
            left,
            peers: peers.collect(),
            banned: state.banned.iter().copied().collect(),
        }
    }
}
