//! Requests of a peer, and their answers.

use std::{
    io::IoSliceMut,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use swarmkeep_content::ContentExt;
use swarmkeep_peer_wire::{Block, HashRange, Hashes, Message, MessageId};
use tokio::task::JoinHandle;

use super::{Connection, EndReason, HashJob, REQUESTS};
use crate::{
    blocks::Batch,
    hashes::{self, Reading as HashReading},
};

/// The shortest time between two reads of content for hashes that one peer requests. libtorrent requests them
/// after a piece turned out wrong.
const HASHED: Duration = Duration::from_secs(2);

/// The most requests for blocks that do not exist: clients with a small fault send some.
const NO_SUCH_BLOCKS: u32 = 300;

impl Connection {
    /// A request for hashes, which is answered from known hashes, or from content that has to be read.
    pub(super) fn receive_hash_request(&mut self, range: HashRange<'_>) -> Result<(), EndReason> {
        let torrent = Arc::clone(&self.torrent);
        let answer = torrent.ready().ok_or(hashes::Refusal::UNKNOWN);
        match answer.and_then(|ready| hashes::answer(&ready.info, &range)) {
            Ok(hashes::Answer::Hashes(hashes)) => self.send_hashes(range, Some(&hashes)),
            Ok(hashes::Answer::Read(reading)) => match self.hash(reading) {
                Some(hashes) => {
                    let numbers = [range.base_layer(), range.index(), range.length(), range.proof_layers()];
                    self.hashing = Some(HashJob { root: *range.root(), numbers, hashes });
                    Ok(())
                }
                None => self.send_hashes(range, None),
            },
            Err(refusal) => {
                tracing::debug!(address = %self.peer.address, %refusal, "a request for hashes");
                self.send_hashes(range, None)
            }
        }
    }

    /// Hashes content, on a thread that may block. `None` if it is not there, or another request is served:
    /// the peer may try again, here or elsewhere.
    fn hash(&mut self, mut reading: Box<HashReading>) -> Option<JoinHandle<Option<Vec<[u8; 32]>>>> {
        let now = Instant::now();
        if self.hashing.is_some()
            || self.hashed.is_some_and(|before| now - before < HASHED)
            || self.torrent.session.up.wait(now).is_some()
            || !reading.pieces().clone().all(|piece| self.torrent.has(piece))
        {
            return None;
        }
        let permit = Arc::clone(&self.torrent.session.hashing).try_acquire_owned().ok()?;
        // BEP 52 has the same limits for these as for blocks.
        self.torrent.session.up.pass(reading.bytes().end - reading.bytes().start, now);
        self.hashed = Some(now);
        let torrent = Arc::clone(&self.torrent);
        Some(self.torrent.session.spawn_blocking(move || {
            let _permit = permit;
            let content = &torrent.ready()?.content;
            let Range { mut start, end } = reading.bytes().clone();
            let mut bytes = vec![0; (end - start).min(Batch::MOST as u64) as usize];
            while start < end {
                let bytes = &mut bytes[..(end - start).min(Batch::MOST as u64) as usize];
                content.read(start, bytes).ok()?;
                reading.update(bytes);
                start += bytes.len() as u64;
            }
            reading.finish().ok()
        }))
    }

    /// Sends the hashes that were computed.
    pub(super) fn answer_hashes(&mut self, hashes: Option<Vec<[u8; 32]>>) -> Result<(), EndReason> {
        let Some(HashJob { root, numbers: [base, index, length, proof], .. }) = self.hashing.take() else {
            return Ok(());
        };
        let range = HashRange::new(&root, base, index, length, proof)?;
        self.send_hashes(range, hashes.as_deref())
    }

    /// Sends hashes, or rejects the request if there are none.
    fn send_hashes(&mut self, range: HashRange<'_>, hashes: Option<&[[u8; 32]]>) -> Result<(), EndReason> {
        if let Some(hashes) = hashes
            && let Ok(hashes) = Hashes::new(range, hashes)
            && self.queue.push(&Message::Hashes(hashes)).is_ok()
        {
            return Ok(());
        }
        self.send(&Message::HashReject(range))
    }

    pub(super) fn reject(&mut self, block: Block) -> Result<(), EndReason> {
        if self.fast { self.send(&Message::Reject(block)) } else { Ok(()) }
    }

    pub(super) fn receive_request(&mut self, block: Block) -> Result<(), EndReason> {
        let here = self.early.is_none() && self.torrent.has(block.piece.0);
        if !self.unchoked || !here || self.unanswered.len() >= REQUESTS {
            return self.reject(block);
        }
        self.unanswered.push_back(block);
        self.peer.active.store(true, Relaxed);
        Ok(())
    }

    /// A request, or the withdrawal of one, for a block that does not exist.
    pub(super) fn receive_absent_request(&mut self, id: MessageId, block: Block) -> Result<(), EndReason> {
        self.no_such_blocks += 1;
        if self.no_such_blocks > NO_SUCH_BLOCKS {
            return Err(EndReason::Misbehaves("asks for blocks that do not exist"));
        }
        match id {
            MessageId::REQUEST if self.fast => self.reject(block),
            // Without a rejection, the peer waits for the block for ever.
            MessageId::REQUEST => Err(EndReason::Misbehaves("asks for a block that does not exist")),
            _ => Ok(()),
        }
    }

    /// Reads requested blocks, while the queue has room and the limit of bytes allows it.
    pub(super) fn read_requested(&mut self) -> Result<(), EndReason> {
        while !self.unanswered.is_empty() && self.reading.is_none() && self.queue.len() <= Batch::MOST / 2 {
            let torrent = Arc::clone(&self.torrent);
            let (up, now) = (&torrent.session.up, Instant::now());
            self.answer_from = up.wait(now).map(|wait| now + wait);
            if self.answer_from.is_some() {
                break;
            }
            let most = up.at_once().map_or(Batch::MOST, |most| most as usize);
            let Some(mut batch) = Batch::take(&mut self.unanswered, &mut self.memory, most) else { break };
            up.pass(batch.bytes() as u64, now);
            let ready = torrent.ready().expect("it is ready when requests wait");
            // Most blocks are in memory, as a read reads ahead: a copy takes less than to have another thread
            // make it.
            let in_memory = |from, into: &mut [u8]| {
                torrent
                    .session
                    .store
                    .read_in_memory(&ready.info.info_hash(), from, into)
                    .then_some(())
                    .ok_or(())
            };
            if batch.read(ready, in_memory).is_ok() {
                self.answer(batch, true)?;
                continue;
            }
            let torrent = Arc::clone(&torrent);
            self.reading = Some(self.torrent.session.spawn_blocking(move || {
                let ready = torrent.ready().expect("it is ready when requests wait");
                let read = |from, into: &mut [u8]| ready.content.read_at(from, &mut [IoSliceMut::new(into)]);
                let is_read = batch.read(ready, read).is_ok();
                if !is_read {
                    // Here, since the connection may end and drop the result.
                    batch.find_unreadable(ready, |piece, error| torrent.unreadable(piece, error));
                }
                (batch, is_read)
            }));
        }
        Ok(())
    }

    /// Sends the blocks that were read, or rejects the ones that cannot be read.
    pub(super) fn answer(&mut self, batch: Batch, is_read: bool) -> Result<(), EndReason> {
        if !is_read {
            for block in batch.blocks.into_iter().rev() {
                if self.torrent.has(block.piece.0) {
                    self.unanswered.push_front(block);
                    continue;
                }
                self.reject(block)?;
                // Without a rejection, the peer waits for the block for ever.
                if !self.fast {
                    return Err(EndReason::Stopped);
                }
            }
            return Ok(());
        }
        let mut bytes = 0;
        for (block, slice) in batch.into_slices(&mut self.memory) {
            bytes += u64::from(block.length);
            // There was room when this was read, unless many messages are sent to a peer that reads none.
            let pushed = self.queue.push_piece(block.piece, block.begin, slice);
            pushed.map_err(|_| EndReason::Misbehaves("does not read"))?;
        }
        self.torrent.up.add(bytes);
        self.peer.up.add(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use swarmkeep_bittorrent::PeerId;
    use swarmkeep_peer_wire::{Handshake, PieceIndex, Reserved};

    use super::*;
    use crate::{
        picker::PeerKey,
        torrent::{Peer, pieces::tests::torrent},
    };

    #[tokio::test]
    async fn a_wrong_piece_is_missed_although_the_peer_that_requested_it_has_left() {
        let torrent = torrent(Some(&[1; 16 << 10]));
        let peer = Peer::new(PeerKey(1), SocketAddr::from(([127, 0, 0, 1], 1)));
        let theirs = Handshake {
            reserved: Reserved::FAST,
            info_hash: torrent.info_hash,
            peer_id: PeerId::new([2; 20]),
        };
        let mut connection = Connection::new(Arc::clone(&torrent), Arc::new(peer), &theirs);
        (connection.early, connection.unchoked) = (None, true);
        connection.receive_request(Block { piece: PieceIndex(0), begin: 0, length: 16 << 10 }).unwrap();
        connection.read_requested().unwrap();
        while !connection.reading.as_ref().unwrap().is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(connection);
        assert!(!torrent.ready().unwrap().content.pieces().unwrap().contains(0), "the store misses it");
        assert!(!torrent.has(0), "so does the torrent");
    }
}
