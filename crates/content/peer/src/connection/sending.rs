//! Sent messages, but for blocks and hashes.

use std::{sync::Arc, time::Instant};

use swarmkeep_peer_wire::{
    Bitfield, ExtendedHandshake, ExtendedMessage, Extension, ExtensionIds, Message, MetadataMessage,
    PieceIndex,
};

use super::{Connection, EndReason, REQUESTS};
use crate::{config::CLIENT, learning::LearningRequest};

impl Connection {
    /// Sends the bitfield at first, then `have` for each piece that has come.
    pub(super) fn send_have(&mut self) -> Result<(), EndReason> {
        if let Some(sent) = self.sent_pieces {
            let mut came = Vec::new();
            self.torrent.came_since(sent, &mut came);
            self.sent_pieces = Some(sent + came.len());
            return came.into_iter().try_for_each(|piece| self.send(&Message::Have(PieceIndex(piece))));
        }
        let (have, came) = self.torrent.have();
        self.sent_pieces = Some(came);
        match have.count() {
            0 if self.fast => self.send(&Message::HaveNone),
            0 => Ok(()),
            all if all == have.pieces() && self.fast => self.send(&Message::HaveAll),
            _ => self.send(&Message::Bitfield(Bitfield::new(&have.to_bytes()))),
        }
    }

    pub(super) fn request_metadata(&mut self) -> Result<(), EndReason> {
        let (torrent, now) = (Arc::clone(&self.torrent), Instant::now());
        let mut learning = torrent.learning.lock();
        let Some(learning) = &mut *learning else { return Ok(()) };
        self.learns = true;
        loop {
            let has = |pieces| self.early.as_ref().is_some_and(|early| early.has_one_of(pieces));
            match learning.next_request(self.peer.key, now, has) {
                Some(LearningRequest::Metadata(piece)) => {
                    self.send_metadata_message(MetadataMessage::Request { piece });
                }
                Some(LearningRequest::Hashes(range)) => self.send(&Message::HashRequest(range))?,
                None => return Ok(()),
            }
        }
    }

    pub(super) fn send_metadata(&mut self, piece: u32) {
        let torrent = Arc::clone(&self.torrent);
        let answer = match torrent.ready() {
            Some(ready) => self.uploads.answer(ready.info.encoded(), piece),
            None => MetadataMessage::Reject { piece },
        };
        self.send_metadata_message(answer);
    }

    fn send_metadata_message(&mut self, message: MetadataMessage<'_>) {
        // A peer that has named no id for it gets no answer, nor does one that requests faster than it reads.
        if let Some(message) = ExtendedMessage::Metadata(message).to_peer(&self.theirs) {
            let _ = self.queue.push(&message);
        }
    }

    pub(super) fn send_peers(&mut self, now: Instant) -> Result<(), EndReason> {
        let public = self.torrent.ready().is_some_and(|ready| !ready.info.is_private());
        if !public || self.theirs.id(Extension::Pex).is_none() || !self.exchange.is_due(now) {
            return Ok(());
        }
        if let Some(lists) = self.exchange.changes(&self.torrent.others(&self.peer), now) {
            let message = ExtendedMessage::Pex(lists.message()).to_peer(&self.theirs);
            let message = message.expect("it has an id, which was checked");
            self.queue.push(&message).map_err(|_| EndReason::Misbehaves("does not read"))?;
        }
        Ok(())
    }

    pub(super) fn send_extended_handshake(&mut self) -> Result<(), EndReason> {
        let private = self.torrent.ready().is_some_and(|ready| ready.info.is_private());
        // Holes are punched for uTP only.
        let ids = ExtensionIds::ALL.with(Extension::Holepunch, 0);
        let ids = if private { ids.with(Extension::Pex, 0) } else { ids };
        let mut hello = ExtendedHandshake::new(ids);
        self.learns |= self.torrent.ready().is_none();
        hello.client = Some(CLIENT.as_bytes());
        hello.port = self.torrent.session.port(self.peer.address.is_ipv4());
        hello.your_ip = Some(self.peer.address.ip().to_canonical());
        hello.request_queue = Some(REQUESTS as u32);
        hello.metadata_size = self.torrent.ready().map(|ready| ready.info.encoded().len() as u32);
        hello.upload_only = (!self.torrent.is_fetched()).then_some(true);
        let message = ExtendedMessage::Handshake(hello).to_peer(&ExtensionIds::NONE);
        let message = message.expect("the handshake has always an id");
        self.queue.push(&message).map_err(|_| EndReason::Misbehaves("does not read"))
    }

    pub(super) fn send(&mut self, message: &Message<'_>) -> Result<(), EndReason> {
        self.queue.push(message).map_err(|_| EndReason::Misbehaves("does not read its messages"))
    }
}
