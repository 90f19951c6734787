//! The state of a torrent.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::PeerId;
use swarmkeep_content::PieceBits;

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
    /// The complete pieces: a digit for each of 64 parts of the torrent, or for each piece if it has fewer. 0
    /// is none of a part, 9 all, and 1 to 8 are eighths in between.
    pub have: String,
    /// Whether they are fetched: the store takes them.
    pub fetches: bool,
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// Addresses that were not reached at the latest attempt.
    pub unreached: Vec<UnreachedPeer>,
    /// Per address (IPv6: network of 64 bits) that sent wrong bytes: the latest endpoint, and how far it is
    /// banned, in words.
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
            have: levels(&state.have),
            fetches,
            peers: peers.collect(),
            unreached,
            banned: state.offences.in_words().collect(),
        }
    }
}

/// The digits of [`Status::have`].
fn levels(have: &PieceBits) -> String {
    let pieces = u64::from(have.pieces());
    let cells = pieces.min(64);
    let mut counts = vec![0; cells as usize];
    have.iter().for_each(|piece| counts[(u64::from(piece) * cells / pieces) as usize] += 1);
    let level = |(cell, count): (u64, u64)| {
        // The number of pieces of this cell.
        let size = ((cell + 1) * pieces).div_ceil(cells) - (cell * pieces).div_ceil(cells);
        match count {
            0 => '0',
            count if count == size => '9',
            count => char::from(b'1' + (count * 8 / size) as u8),
        }
    };
    (0..).zip(counts).map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_tell_none_some_and_all_of_each_part() {
        let of = |pieces, have: &[u32]| {
            let mut bits = PieceBits::none(pieces);
            have.iter().for_each(|&piece| _ = bits.insert(piece));
            levels(&bits)
        };
        assert_eq!(of(0, &[]), "");
        assert_eq!(of(3, &[1]), "090");
        for pieces in [63, 64, 65, 100, 127, 128, 1000] {
            let all: Vec<_> = (0..pieces).collect();
            assert_eq!(of(pieces, &all), "9".repeat(pieces.min(64) as usize), "{pieces}");
            assert_eq!(of(pieces, &[]), "0".repeat(pieces.min(64) as usize), "{pieces}");
        }
        // Ten pieces per part.
        let some = of(640, &[0, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24, 25, 26, 27, 28]);
        assert_eq!(&some[..5], "15800");
    }
}
