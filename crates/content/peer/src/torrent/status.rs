//! How a torrent is, for the callers that look at it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use swarmkeep_bittorrent::PeerId;

use super::{Has, Progress, Torrent};

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
    /// Bytes of blocks that came and were of no use: wrong, too late, or not asked for.
    pub wasted: u64,
    /// Bytes of pieces that are not in the store.
    pub left: u64,
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// Addresses that are banned because they sent wrong bytes; IPv6 networks of 64 bits.
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
