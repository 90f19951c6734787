//! The pieces of a torrent: which blocks are requested, and how received ones are stored.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use swarmkeep_content::{ContentExt, ContentRepository, Error as StoreError};
use swarmkeep_peer_wire::Block;

use super::{BlockDemand, Peer, PeerEntry, Torrent, TorrentState};
use crate::{
    network::network,
    picker::{EmptySearch, PeerKey, PickRequest, Received, WholePiece},
    ready::Ready,
};

impl Torrent {
    /// Adds the pieces that have come after the first `sent`.
    pub(crate) fn came_since(&self, sent: usize, pieces: &mut Vec<u32>) {
        pieces.extend_from_slice(&self.state.lock().came[sent..]);
    }

    /// Adds the blocks to request from a peer to `asked`.
    pub(crate) fn pick(&self, peer: &Peer, demand: &BlockDemand<'_>, asked: &mut Vec<Block>) {
        let Some(info) = self.ready().map(|ready| &ready.info) else { return };
        let mut state = self.state.lock();
        let TorrentState { peers, picker: Some(picker), .. } = &mut *state else { return };
        let Some(entry) = peers.get_mut(&peer.key) else { return };
        if demand.again {
            entry.searched = EmptySearch::default();
        }
        let may_begin = demand.allows.is_none() && picker.may_begin(peer.key, demand.count, &entry.searched);
        let mut near = Vec::new();
        if may_begin {
            // It has locks of its own, and others wait for this one.
            drop(state);
            near = self.session.store.affinity(&info.info_hash(), 16);
            state = self.state.lock();
        }
        let wrong = state.offences.wrong_pieces(state.endpoint_of(peer.key));
        let TorrentState { peers, picker: Some(picker), .. } = &mut *state else { return };
        let Some(PeerEntry { has: pieces, searched, .. }) = peers.get_mut(&peer.key) else { return };
        let has = |piece| (demand.may)(piece) && pieces.contain(piece) && !wrong.contains(&piece);
        let preferred: Vec<_> = near.into_iter().map(|affinity| affinity.piece).collect();
        let pick = PickRequest {
            peer: peer.key,
            from: network(peer.address.ip()),
            count: demand.count,
            has: &has,
            allows: demand.allows,
            preferred: &preferred,
            per_stripe: (self.session.store.capabilities().stripe / info.piece_length()).max(1),
            snubs: peer.snubs.load(Relaxed),
            now: demand.now,
        };
        picker.pick(&pick, searched, &mut rand::rng(), asked);
    }

    /// A peer will not send requested blocks. The other peers are to be [woken](Self::wake_all) if they are
    /// to get the requests.
    pub(crate) fn give_back(&self, peer: &Peer, blocks: impl IntoIterator<Item = Block>) {
        if let Some(picker) = &mut self.state.lock().picker {
            picker.give_back(peer.key, blocks, &mut rand::rng());
        }
    }

    /// Counts bytes that were not requested.
    pub(crate) fn unasked(&self, bytes: u64) {
        self.wasted.fetch_add(bytes, Relaxed);
    }

    /// A requested block was received. If it completes a piece, the caller [stores](Self::store) the piece,
    /// on a thread that may block.
    pub(crate) fn received(&self, peer: &Peer, piece: u32, begin: u32, data: &[u8]) -> Option<WholePiece> {
        let bytes = data.len() as u64;
        let mut state = self.state.lock();
        let TorrentState { peers, picker: Some(picker), .. } = &mut *state else { return None };
        let Some(Received { cancel, whole }) = picker.received(peer.key, piece, begin, data, Instant::now())
        else {
            self.wasted.fetch_add(bytes, Relaxed);
            return None;
        };
        self.down.add(bytes);
        peer.down.add(bytes);
        for other in cancel.iter().filter_map(|other| peers.get(other)) {
            let block =
                Block { piece: swarmkeep_peer_wire::PieceIndex(piece), begin, length: data.len() as u32 };
            other.peer.cancels.lock().push(block);
            other.peer.wake.notify_one();
        }
        whole
    }

    /// Verifies a piece and puts it into the store.
    pub(crate) fn store(&self, whole: WholePiece) {
        let Some(Ready { info, content, .. }) = self.ready() else { return };
        let WholePiece { piece, mut data, from } = whole;
        let right = info.verify(piece, &data);
        let stored = if right {
            (|| {
                let range = content.geometry().piece(piece)?;
                // The store has the padding behind a file of v2; no message has it.
                data.resize((range.end - range.start) as usize, 0);
                content.write(range.start, &data)?;
                content.mark_complete(piece)
            })()
        } else {
            Ok(false)
        };
        data.truncate(info.piece_len(piece) as usize);
        match stored {
            Ok(_) if right => self.stored(piece, &data),
            Ok(_) => self.wrong(piece, &data, &from),
            Err(error) => self.fail(piece, &error.to_string()),
        }
    }

    fn stored(&self, piece: u32, data: &[u8]) {
        let mut state = self.state.lock();
        let TorrentState { picker: Some(picker), blame, .. } = &mut *state else { return };
        picker.verified(piece, true, false, &mut rand::rng());
        let to_blame = blame.right(piece, data);
        state.gain(piece);
        to_blame.into_iter().for_each(|endpoint| state.blame(endpoint, Some(piece)));
        drop(state);
        self.tell_progress();
        self.session.unflushed.store(true, Relaxed);
        self.wake_all();
    }

    fn wrong(&self, piece: u32, data: &[u8], from: &[PeerKey]) {
        self.wasted.fetch_add(data.len() as u64, Relaxed);
        let mut state = self.state.lock();
        let from: Vec<_> = from.iter().map(|key| state.endpoint_of(*key)).collect();
        let TorrentState { picker: Some(picker), blame, .. } = &mut *state else { return };
        let to_blame = blame.wrong(piece, data, &from);
        picker.verified(piece, false, to_blame.is_none(), &mut rand::rng());
        if let Some(endpoint) = to_blame {
            state.blame(endpoint, Some(piece));
        }
        drop(state);
        self.wake_all();
    }

    /// Counts the complete pieces of the store again, after it has lost writes, or may have.
    pub(crate) fn recount(&self, error: &str) {
        let Some(ready) = self.ready() else { return };
        // Pieces that come meanwhile were not lost.
        let before = self.have().0;
        let there = ready.content.pieces();
        let mut state = self.state.lock();
        let lost: Vec<_> = match &there {
            Ok(there) => before.iter().filter(|piece| !there.contains(*piece)).collect(),
            // Then no piece is sure to be there.
            Err(_) => before.iter().collect(),
        };
        lost.iter().for_each(|piece| state.lose(*piece));
        drop(state);
        self.tell_progress();
        if let Some(piece) = lost.first() {
            self.fail(*piece, error);
        }
    }

    /// The store refuses pieces: fetching ends.
    fn fail(&self, piece: u32, error: &str) {
        tracing::error!(info_hash = %self.info_hash, piece, error, "the store does not take a piece");
        self.state.lock().picker = None;
        self.progress.send_modify(|progress| _ = progress.failed.get_or_insert_with(|| error.to_owned()));
        self.wake_all();
    }

    /// A complete piece cannot be read any more, or is wrong: it is not offered until it is repaired or
    /// fetched again. If the store counts it as missing, it comes from other peers; otherwise fetching ends,
    /// since the torrent would not be complete with it. On a thread that may block.
    pub(crate) fn unreadable(&self, piece: u32, error: &StoreError) {
        if self.ready().is_some_and(|ready| ready.content.is_read_only()) {
            return self.follow(Some(piece));
        }
        let comes_again = matches!(error, StoreError::Wrong { .. } | StoreError::NotWritten { .. });
        // It may have been fetched again since it was read, or during this call.
        let told = self.state.lock().came.len();
        let there = self.ready().and_then(|ready| ready.content.pieces().ok()).filter(|_| comes_again);
        let is_there = there.is_some_and(|there| there.contains(piece));
        let mut state = self.state.lock();
        if !state.have.contains(piece) || is_there || state.came[told..].contains(&piece) {
            return;
        }
        let is_fetched = !state.was_complete && state.picker.is_some();
        state.lose(piece);
        if let Some(picker) = state.picker.as_mut().filter(|_| comes_again) {
            picker.take_back(piece, &mut rand::rng());
        }
        drop(state);
        tracing::error!(info_hash = %self.info_hash, piece, %error, "a complete piece cannot be read");
        self.tell_progress();
        if comes_again {
            self.wake_all();
        } else if is_fetched {
            self.fail(piece, &error.to_string());
        }
    }

    /// Offers the pieces that read-only content has now. With an unreadable piece, it only withdraws: another
    /// one may be unreadable too. No message withdraws a piece: peers that may request a lost one are
    /// disconnected, and learn it when they connect again. On a thread that may block.
    pub(crate) fn follow(&self, unreadable: Option<u32>) {
        let Some(Ok(mut there)) = self.ready().map(|ready| ready.content.pieces()) else { return };
        unreadable.into_iter().for_each(|piece| _ = there.remove(piece));
        let mut state = self.state.lock();
        let lost: Vec<_> = state.have.iter().filter(|piece| !there.contains(*piece)).collect();
        let is_back = |piece: &u32| unreadable.is_none() && !state.have.contains(*piece);
        let back: Vec<_> = there.iter().filter(is_back).collect();
        lost.iter().for_each(|piece| state.lose(*piece));
        state.back += back.len() as u32;
        back.into_iter().for_each(|piece| state.gain(piece));
        let TorrentState { peers, seats, .. } = &*state;
        let may_request = |entry: &PeerEntry| lost.iter().any(|piece| !entry.has.contain(*piece));
        let misled = peers.iter().filter(|(_, entry)| may_request(entry));
        misled.filter_map(|(key, _)| seats.get(key)).for_each(|seat| seat.stop.cancel());
        drop(state);
        self.tell_progress();
        self.wake_all();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{io::IoSliceMut, sync::Arc};

    use sha1::{Digest, Sha1};
    use swarmkeep_bittorrent::PeerId;
    use swarmkeep_content::{
        Content, ContentConfig, Memory, NewTorrent, Verified, forward,
        stripe_cache::{StripeCache, StripeCacheOptions},
    };
    use swarmkeep_metainfo::Info;

    use super::*;
    use crate::{config::SessionConfig, resources::Resources};

    const PIECE: [u8; 16 << 10] = [0; 16 << 10];

    /// A torrent of one piece, with `bytes` as its complete piece in a store.
    pub(crate) fn torrent(bytes: Option<&[u8]>) -> Arc<Torrent> {
        let mut info = b"d6:lengthi16384e4:name1:x12:piece lengthi16384e6:pieces20:".to_vec();
        info.extend(Sha1::digest(PIECE));
        info.push(b'e');
        let info = Arc::new(Info::parse(&info).unwrap());
        let store = Memory::new(&ContentConfig::new(""));
        let content = store.create(&NewTorrent::of(&info).unwrap()).unwrap();
        if let Some(bytes) = bytes {
            content.write(0, bytes).unwrap();
            content.mark_complete(0).unwrap();
        }
        let known = Arc::clone(&info);
        let verified = Verified::new(Arc::new(store), move |_| Ok(Some(Arc::clone(&known))));
        let store = StripeCache::new(Arc::new(verified), StripeCacheOptions::new()).unwrap();
        let content = store.open(&info.info_hash()).unwrap();
        let resources = Resources::new(SessionConfig::new(PeerId::new([1; 20])), Arc::new(store), Vec::new());
        let torrent = Torrent::new(info.info_hash(), Arc::new(resources), None);
        torrent.make_ready(info, content).unwrap();
        Arc::new(torrent)
    }

    /// Read-only content. No piece of it can be read.
    #[derive(Debug)]
    struct Unreadable(Arc<dyn Content>);

    impl Content for Unreadable {
        forward! { it, it.0; geometry, write_at, mark_complete, mark_incomplete, pieces }

        fn read_at(&self, _: u64, _: &mut [IoSliceMut<'_>]) -> Result<(), StoreError> {
            Err(StoreError::Io { what: "reading", source: std::io::Error::from_raw_os_error(5) })
        }

        fn is_read_only(&self) -> bool {
            true
        }
    }

    #[test]
    fn an_unreadable_piece_brings_no_other_back() {
        let mut info = b"d6:lengthi32768e4:name1:x12:piece lengthi16384e6:pieces40:".to_vec();
        (0..2).for_each(|_| info.extend(Sha1::digest(PIECE)));
        info.push(b'e');
        let info = Arc::new(Info::parse(&info).unwrap());
        let store = Memory::new(&ContentConfig::new(""));
        let content = store.create(&NewTorrent::of(&info).unwrap()).unwrap();
        for piece in 0..2 {
            content.write(u64::from(piece) << 14, &PIECE).unwrap();
            content.mark_complete(piece).unwrap();
        }
        let store = StripeCache::new(Arc::new(store), StripeCacheOptions::new()).unwrap();
        let resources = Resources::new(SessionConfig::new(PeerId::new([1; 20])), Arc::new(store), Vec::new());
        let torrent = Torrent::new(info.info_hash(), Arc::new(resources), None);
        torrent.make_ready(info, Arc::new(Unreadable(content))).unwrap();
        let ready = torrent.ready().unwrap();
        for piece in 0..2 {
            torrent.unreadable(piece, &ready.content.read_piece(piece).unwrap_err());
        }
        assert_eq!([torrent.has(0), torrent.has(1)], [false; 2]);
        torrent.follow(None);
        assert_eq!([torrent.has(0), torrent.has(1)], [true; 2], "other programs have changed it");
    }

    #[test]
    fn a_late_read_error_of_a_piece_that_has_come_again_changes_nothing() {
        let torrent = torrent(None);
        let bring = || {
            let mut state = torrent.state.lock();
            let picker = state.picker.as_mut().unwrap();
            let came = picker.received(PeerKey(1), 0, 0, &PIECE, Instant::now());
            drop(state);
            if let Some(Received { whole: Some(piece), .. }) = came {
                torrent.store(piece);
            }
        };
        bring();
        let error = StoreError::NotWritten { at: 0 };
        torrent.unreadable(0, &error);
        bring();
        assert_eq!((&torrent.progress.borrow().failed, torrent.has(0)), (&None, true));
        torrent.ready().unwrap().content.mark_incomplete(0).unwrap();
        torrent.unreadable(0, &error);
        assert!(!torrent.has(0), "this is new");
        bring();
        assert_eq!((&torrent.progress.borrow().failed, torrent.has(0)), (&None, true));
    }
}
