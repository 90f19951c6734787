//! Received messages.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::Endpoint;
use swarmkeep_peer_wire::{
    Bitfield, ExtendedMessage, Extension, ExtensionIds, Message, MetadataMessage, ReceiveBuffer,
};

use super::{Connection, EarlyPieces, EndReason, REQUESTS, downloads::PAUSE};
use crate::{candidates::Source, near::is_near, network::site};

/// The most peers of one message, and the shortest time between two: BEP 11 has 50 of each family per minute,
/// and clients' clocks differ.
const MOST_PEX: usize = 100;

const PEX: Duration = Duration::from_secs(45);

/// Pieces that a peer may allow while it chokes (BEP 6 gives ten).
const ALLOWED: usize = 64;

impl Connection {
    /// Takes the pieces that the peer named before the torrent was known.
    pub(super) fn catch_up(&mut self, early: EarlyPieces) -> Result<(), EndReason> {
        let pieces = self.torrent.ready().expect("it is ready").info.piece_count();
        if early.all {
            self.torrent.peer_has(&self.peer, 0..pieces);
        } else if early.bitfield.is_empty() {
            self.torrent.peer_has(&self.peer, []);
        } else {
            let bitfield = Bitfield::new(&early.bitfield);
            bitfield.check(pieces)?;
            self.torrent.peer_has(&self.peer, bitfield.iter().map(|piece| piece.0));
        }
        early.pieces.into_iter().for_each(|piece| self.torrent.peer_gained(&self.peer, piece));
        Ok(())
    }

    pub(super) fn receive_all(&mut self, received: &mut ReceiveBuffer) -> Result<(), EndReason> {
        while let Some(message) = received.next_message()? {
            self.receive(message)?;
        }
        Ok(())
    }

    fn receive(&mut self, message: Message<'_>) -> Result<(), EndReason> {
        let first = !self.begun;
        self.begun |= !matches!(message, Message::Extended(_) | Message::KeepAlive | Message::Port(_));
        match message {
            Message::Bitfield(_) | Message::HaveAll | Message::HaveNone if !first => {
                return Err(EndReason::Misbehaves("lists its pieces after other messages"));
            }
            Message::HaveAll
            | Message::HaveNone
            | Message::Suggest(_)
            | Message::AllowedFast(_)
            | Message::Reject(_)
                if !self.fast =>
            {
                return Err(EndReason::Misbehaves("uses the fast extension and has not said so"));
            }
            Message::Bitfield(bitfield) => match &mut self.early {
                Some(early) => early.bitfield = bitfield.as_bytes().to_vec(),
                None => self.torrent.peer_has(&self.peer, bitfield.iter().map(|piece| piece.0)),
            },
            Message::HaveAll => match (&mut self.early, self.torrent.ready()) {
                (None, Some(ready)) => self.torrent.peer_has(&self.peer, 0..ready.info.piece_count()),
                (early, _) => early.get_or_insert_default().all = true,
            },
            Message::Have(piece) => match &mut self.early {
                Some(early) if early.pieces.len() < 1 << 16 => early.pieces.push(piece.0),
                Some(_) => return Err(EndReason::Misbehaves("names more pieces than can be remembered")),
                None => self.torrent.peer_gained(&self.peer, piece.0),
            },
            Message::Choke => {
                self.peer.chokes.store(true, Relaxed);
                // With the fast extension, each request is rejected or answered.
                if !self.fast && !self.requested.is_empty() {
                    self.give_all_back();
                    self.pause(PAUSE);
                }
            }
            Message::Unchoke => self.peer.chokes.store(false, Relaxed),
            Message::Interested => self.torrent.peer_wants(&self.peer, true),
            Message::NotInterested => self.torrent.peer_wants(&self.peer, false),
            Message::Request(block) => self.receive_request(block)?,
            Message::Cancel(block) => {
                if let Some(at) = self.unanswered.iter().position(|other| *other == block) {
                    self.unanswered.remove(at);
                    self.reject(block)?;
                }
            }
            Message::NoSuchBlock { id, block } => self.receive_absent_request(id, block)?,
            Message::Piece(piece) => self.receive_block(piece)?,
            Message::Reject(block) => self.rejected(block),
            Message::AllowedFast(piece) if self.allowed.len() < ALLOWED => self.allowed.push(piece.0),
            Message::Extended(extended) => {
                // The frame was in order: an unreadable message does not end the connection.
                match extended.read(&ExtensionIds::ALL) {
                    Ok(message) => self.receive_extended(message)?,
                    Err(error) => {
                        tracing::debug!(address = %self.peer.address, %error, "an extended message")
                    }
                }
            }
            Message::HashRequest(range) => self.receive_hash_request(range)?,
            Message::Hashes(hashes) => self.torrent.hashes(&self.peer, &hashes)?,
            Message::HashReject(range) => {
                if let Some(learning) = &mut *self.torrent.learning.lock() {
                    learning.hashes_rejected(self.peer.key, &range)?;
                }
            }
            Message::KeepAlive
            | Message::HaveNone
            | Message::Port(_)
            | Message::Suggest(_)
            | Message::AllowedFast(_)
            | Message::Unknown { .. } => {}
        }
        Ok(())
    }

    fn receive_extended(&mut self, message: ExtendedMessage<'_>) -> Result<(), EndReason> {
        match message {
            ExtendedMessage::Handshake(handshake) => {
                self.theirs = handshake.ids;
                if let Some(most) = handshake.request_queue {
                    self.most_requests = (most as usize).clamp(1, 4 * REQUESTS);
                }
                if let Some(port) = handshake.port.filter(|port| *port != 0 && !self.introduced) {
                    self.torrent.listens(&self.peer, SocketAddr::new(self.peer.address.ip(), port));
                }
                self.introduced = true;
                let serves = self.theirs.id(Extension::Metadata).is_some();
                if let Some(size) = handshake.metadata_size.filter(|_| serves)
                    && let Some(learning) = &mut *self.torrent.learning.lock()
                    && let Err(fault) = learning.offered(self.peer.key, size)
                {
                    // The peer may be of other use.
                    tracing::debug!(address = %self.peer.address, %fault, "no info dictionary");
                }
            }
            ExtendedMessage::DontHave(piece) => self.torrent.peer_lost(&self.peer, piece.0),
            ExtendedMessage::Metadata(MetadataMessage::Request { piece }) => self.send_metadata(piece),
            ExtendedMessage::Metadata(MetadataMessage::Data { piece, total_size, data }) => {
                self.torrent.metadata(&self.peer, piece, total_size, data)?;
            }
            ExtendedMessage::Metadata(MetadataMessage::Reject { piece }) => {
                if let Some(learning) = &mut *self.torrent.learning.lock() {
                    learning.metadata_rejected(self.peer.key, piece)?;
                }
            }
            ExtendedMessage::Pex(pex) => {
                let private = self.torrent.ready().is_none_or(|ready| ready.info.is_private());
                let now = Instant::now();
                let often = self.last_pex.is_some_and(|before| now - before < PEX);
                if !private && !often {
                    self.last_pex = Some(now);
                    let added = pex.added().take(MOST_PEX).map(|added| added.endpoint);
                    let added = added.map(|peer: Endpoint| SocketAddr::new(peer.ip(), peer.port()));
                    // A peer outside does not know the addresses of this network.
                    let near = is_near(self.peer.address.ip());
                    let source = Source::Peers(site(self.peer.address.ip()));
                    self.torrent.found(source, added.filter(|peer| near || !is_near(peer.ip())));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
