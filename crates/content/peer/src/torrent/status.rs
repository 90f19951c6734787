//! The state of a torrent.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// Missing pieces that it has.
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
    /// Whether they are fetched: the store takes them.
    pub fetches: bool,
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// Addresses that are not connected to, and were not reached at the latest attempt.
    pub unreached: Vec<UnreachedPeer>,
    /// The endpoints that sent wrong bytes, at most five per address (IPv6: network of 64 bits), and how far
    /// each is banned, in words.
    pub banned: Vec<(SocketAddr, String)>,
}

impl Status {
    /// Why no peer sends missing pieces: of the peers that are connected, were not reached, or sent wrong
    /// bytes. Peers with the same reason are one entry; of eight reasons at most.
    pub fn reasons(&self) -> Vec<String> {
        let connected = self.peers.iter().map(|peer| {
            let why = match self.progress.pieces {
                0 => "sends no metadata",
                _ if peer.wanted == 0 => "has none of them",
                _ if peer.chokes => "does not unchoke",
                _ => "sends nothing",
            };
            (peer.address, why)
        });
        let unreached = self.unreached.iter().map(|peer| (peer.address, &*peer.error));
        let banned = self.banned.iter().map(|(address, why)| (*address, &**why));
        let mut peers = BTreeMap::<_, BTreeSet<_>>::new();
        for (address, why) in connected.chain(unreached).chain(banned) {
            peers.entry(why).or_default().insert(address);
        }
        if peers.is_empty() {
            return vec!["no peer is known".to_owned()];
        }
        let reason = |(why, peers): (&str, BTreeSet<SocketAddr>)| match (peers.first()?, peers.len() - 1) {
            (peer, 0) => Some(format!("peer {peer}: {why}")),
            (peer, more) => Some(format!("peer {peer} and {more} more: {why}")),
        };
        peers.into_iter().take(8).filter_map(reason).collect()
    }
}

impl Torrent {
    pub(crate) fn status(&self) -> Status {
        let (left, progress) = (self.left(), self.progress.borrow().clone());
        let fetches = self.is_fetched() && progress.failed.is_none();
        let (state, now) = (self.state.lock(), Instant::now());
        let connected: BTreeSet<_> =
            state.peers.values().flat_map(|entry| [entry.peer.address, entry.endpoint()]).collect();
        let unreached = state.candidates.unreached().filter(|(address, ..)| !connected.contains(address));
        let unreached = unreached.map(|(address, named, error, next)| UnreachedPeer {
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
            wanted: entry.wanted,
            chokes: entry.peer.chokes.load(Relaxed),
        });
        Status {
            progress,
            down: (self.down.total(), self.down.rate()),
            up: (self.up.total(), self.up.rate()),
            wasted: self.wasted.load(Relaxed),
            lost: state.lost,
            back: state.back,
            left,
            fetches,
            peers: peers.collect(),
            unreached,
            banned: state.offences.in_words().collect(),
        }
    }
}
