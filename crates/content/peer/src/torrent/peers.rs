//! The peers of a torrent: how they come and go, their pieces and their interest.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use swarmkeep_bittorrent::{Endpoint, PeerId};
use swarmkeep_content::PieceBits;
use swarmkeep_metainfo::Info;
use swarmkeep_peer_wire::{Hashes, PexFlags};

use super::{
    Peer, PeerEntry, PeerPieces, Torrent, TorrentState,
    seats::{LIED, Seat},
};
use crate::{
    Error,
    candidates::Source,
    choker::{ChokerPeer, Decision},
    hashes::HashFault,
    metadata::{Fetched, MetadataFault},
    near::is_near,
    network::{network, site},
    picker::{EmptySearch, PeerKey, Picker},
};

/// The most peers that have left and are remembered with their addresses.
const GONE: usize = 256;

impl Torrent {
    /// Adds a peer after the handshake, if it is wanted.
    pub(crate) fn join(
        &self,
        seat: &Seat,
        address: SocketAddr,
        id: PeerId,
    ) -> Result<Arc<Peer>, &'static str> {
        let (mut state, ours) = (self.state.lock(), self.session.config.peer_id);
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if id == ours {
            state.candidates.forget(address);
            return Err("it is this very session");
        }
        // A peer chooses its id: only the same id in the same network is the same peer.
        let alike = |other: &Peer| network(other.address.ip()) == network(address.ip());
        if let Some((key, other)) = state.peers.iter().find(|(_, peer)| peer.id == id && alike(&peer.peer)) {
            // Both connected at the same time: both keep the connection of the one with the greater id.
            if other.outgoing == seat.outgoing || seat.outgoing != (ours.as_bytes() > id.as_bytes()) {
                return Err("it is connected already");
            }
            let other = *key;
            drop(state.end(other));
        }
        if state.refuses(address) {
            return Err(LIED);
        }
        let peer = Arc::new(Peer::new(seat.key, address));
        let pieces = state.have.pieces();
        let entry = PeerEntry {
            peer: Arc::clone(&peer),
            id,
            outgoing: seat.outgoing,
            listens: seat.outgoing.then_some((address, PexFlags::REACHABLE)),
            has: PeerPieces::Some(PieceBits::none(pieces)),
            wanted: 0,
            interested: false,
            searched: EmptySearch::default(),
        };
        state.peers.insert(peer.key, entry);
        Ok(peer)
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, peer: &Peer) {
        let mut state = self.state.lock();
        let TorrentState { peers, picker, gone, .. } = &mut *state;
        let Some(entry) = peers.remove(&peer.key) else { return };
        gone.push_back((peer.key, entry.endpoint()));
        if gone.len() > GONE {
            gone.pop_front();
        }
        if let Some(picker) = picker {
            let rng = &mut rand::rng();
            picker.give_all_back(peer.key, rng);
            if let PeerPieces::Some(bits) = &entry.has {
                bits.iter().for_each(|piece| picker.lost(piece, rng));
            }
        }
        drop(state);
        if let Some(learning) = &mut *self.learning.lock() {
            learning.gone(peer.key);
        }
        // Other connections request the blocks that were requested from it.
        self.wake_all();
    }

    /// A peer said where it listens.
    pub(crate) fn listens(&self, peer: &Peer, address: SocketAddr) {
        let mut state = self.state.lock();
        if let Some(entry) = state.peers.get_mut(&peer.key) {
            entry.listens.get_or_insert((address, PexFlags::empty()));
            if state.refuses(address) {
                drop(state.end(peer.key));
            }
        }
        state.candidates.add(address, Source::Peers(site(peer.address.ip())), Instant::now());
    }

    /// The other peers that listen; addresses of this network are not sent outside.
    pub(crate) fn others(&self, peer: &Peer) -> BTreeMap<Endpoint, PexFlags> {
        let state = self.state.lock();
        let others = state.peers.values().filter(|entry| entry.peer.key != peer.key);
        let listening = others.filter_map(|entry| {
            let (address, flags) = entry.listens?;
            if is_near(address.ip()) && !is_near(peer.address.ip()) {
                return None;
            }
            let seeds = if entry.has.are_all() { PexFlags::SEEDER } else { PexFlags::empty() };
            Some((Endpoint::try_from(address).ok()?, flags | seeds))
        });
        listening.collect()
    }

    /// A peer has sent a part of the info dictionary.
    pub(crate) fn metadata(
        self: &Arc<Self>,
        peer: &Peer,
        piece: u32,
        total_size: u32,
        data: &[u8],
    ) -> Result<(), MetadataFault> {
        let mut learning = self.learning.lock();
        let Some(fetched) =
            learning.as_mut().map(|learning| learning.metadata(peer.key, piece, total_size, data))
        else {
            return Ok(());
        };
        drop(learning);
        match fetched {
            Ok(Fetched::Part) => {}
            // Peers that got no requests may get some now.
            Ok(Fetched::Wrong { .. }) => self.wake_all(),
            Ok(Fetched::Whole { info, liars }) => {
                self.blame(&liars);
                let torrent = Arc::clone(self);
                self.session.spawn_blocking(move || {
                    let info = Info::parse(&info).map_err(|error| Error::Torrent(error.to_string()));
                    if let Some(learning) = &mut *torrent.learning.lock() {
                        learning.read(info);
                    }
                    torrent.wake_all();
                });
            }
            Err(fault) => {
                if fault == MetadataFault::Wrong {
                    self.blame(&[peer.key]);
                }
                return Err(fault);
            }
        }
        Ok(())
    }

    pub(crate) fn hashes(&self, peer: &Peer, hashes: &Hashes<'_>) -> Result<(), HashFault> {
        let taken = match &mut *self.learning.lock() {
            Some(learning) => learning.hashes(peer.key, hashes),
            None => Ok(()),
        };
        if taken == Err(HashFault::Wrong) {
            self.blame(&[peer.key]);
        }
        taken
    }

    fn blame(&self, peers: &[PeerKey]) {
        let mut state = self.state.lock();
        for peer in peers {
            let endpoint = state.endpoint_of(*peer);
            state.blame(endpoint, None);
        }
    }

    /// Takes the pieces of a peer, from its first message.
    pub(crate) fn peer_has(&self, peer: &Peer, pieces: impl IntoIterator<Item = u32>) {
        let mut state = self.state.lock();
        let TorrentState { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        entry.searched = EmptySearch::default();
        let mut bits = PieceBits::none(have.pieces());
        pieces.into_iter().filter(|piece| *piece < have.pieces()).for_each(|piece| _ = bits.insert(piece));
        if bits.count() == have.pieces() {
            entry.has = PeerPieces::All;
            entry.wanted = have.pieces() - have.count();
            return;
        }
        let rng = &mut rand::rng();
        for piece in bits.iter() {
            picker.gained(piece, rng);
            entry.wanted += u32::from(!have.contains(piece));
        }
        entry.has = PeerPieces::Some(bits);
    }

    pub(crate) fn peer_gained(&self, peer: &Peer, piece: u32) {
        let mut state = self.state.lock();
        let TorrentState { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(PeerEntry { has: PeerPieces::Some(bits), wanted, searched, .. }) = peers.get_mut(&peer.key)
        else {
            return;
        };
        if piece < bits.pieces() && bits.insert(piece) {
            picker.gained(piece, &mut rand::rng());
            if !have.contains(piece) {
                *wanted += 1;
                *searched = EmptySearch::default();
            }
        }
    }

    /// A peer no longer has a piece (BEP 54).
    pub(crate) fn peer_lost(&self, peer: &Peer, piece: u32) {
        let mut state = self.state.lock();
        let TorrentState { peers, picker: Some(picker), have, .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        let rng = &mut rand::rng();
        if piece >= have.pieces() {
            return;
        }
        if matches!(entry.has, PeerPieces::All) {
            let mut bits = PieceBits::none(have.pieces());
            for piece in 0..have.pieces() {
                bits.insert(piece);
                picker.gained(piece, rng);
            }
            entry.has = PeerPieces::Some(bits);
        }
        if let PeerPieces::Some(bits) = &mut entry.has
            && bits.remove(piece)
        {
            picker.lost(piece, rng);
            entry.wanted -= u32::from(!have.contains(piece));
        }
    }

    pub(crate) fn is_interested_in(&self, peer: &Peer) -> bool {
        self.state.lock().peers.get(&peer.key).is_some_and(|entry| entry.wanted > 0)
    }

    /// Whether both sides have all pieces, and no use for the connection.
    pub(crate) fn both_have_all(&self, peer: &Peer) -> bool {
        let state = self.state.lock();
        state.have.pieces() > 0
            && state.have.count() == state.have.pieces()
            && state.peers.get(&peer.key).is_some_and(|entry| entry.has.are_all())
    }

    /// A peer says whether it is interested. If it is, it is unchoked at once while there are slots and none
    /// waits for one.
    pub(crate) fn peer_wants(&self, peer: &Peer, interested: bool) {
        let mut state = self.state.lock();
        let slots = self.session.config.upload_slots;
        let is_unchoked = |entry: &PeerEntry| entry.peer.unchoked.load(Relaxed);
        let unchoked = state.peers.values().filter(|entry| is_unchoked(entry)).count();
        let others_wait = state
            .peers
            .values()
            .any(|entry| entry.peer.key != peer.key && entry.interested && !is_unchoked(entry));
        let Some(entry) = state.peers.get_mut(&peer.key) else { return };
        entry.interested = interested;
        if interested && unchoked < slots && !others_wait {
            peer.unchoked.store(true, Relaxed);
        }
    }

    /// Decides which peers are unchoked; called every ten seconds.
    pub(crate) fn choke(&self) {
        let mut state = self.state.lock();
        let seeding = state.picker.as_ref().is_none_or(Picker::nothing_is_wanted);
        let peers: Vec<_> = state
            .peers
            .values()
            .map(|PeerEntry { peer, interested, .. }| ChokerPeer {
                key: peer.key,
                interested: *interested,
                unchoked: peer.unchoked.load(Relaxed),
                active: peer.active.swap(false, Relaxed) || peer.up.rate() > 0,
                // A peer that does not send requested blocks gets nothing for the ones that it sent.
                rate: match seeding {
                    true => peer.up.rate(),
                    false if peer.snubs.load(Relaxed) => 0,
                    false => peer.down.rate(),
                },
                site: site(peer.address.ip()),
            })
            .collect();
        let Decision { unchoked, idle } = state.choker.decide(&peers, &mut rand::rng());
        idle.into_iter().for_each(|peer| drop(state.end(peer)));
        for entry in state.peers.values() {
            let now = unchoked.contains(&entry.peer.key);
            if entry.peer.unchoked.swap(now, Relaxed) != now {
                entry.peer.wake.notify_one();
            }
        }
    }
}
