//! Requests to a peer, and the blocks that it sends.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use swarmkeep_peer_wire::{Block, Message};

use super::{Connection, EndReason, REQUESTS, RejectedPiece};
use crate::torrent::BlockDemand;

/// The most open requests before the first block.
const FIRST: usize = 4;

/// The fewest open requests after that.
const FEWEST: usize = 16;

/// The most blocks that were given back and are still accepted.
const LATE: usize = 4 * REQUESTS;

/// How long a peer that chokes or rejects instead of sending gets no requests.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// A peer that rejects a piece this often without choking does not have it.
const REFUSALS: u32 = 3;

/// The most pieces with a count of rejections.
const REFUSED: usize = 1024;

/// How many more bytes a peer may send without a request than with one.
const UNASKED: u64 = 4 << 20;

impl Connection {
    pub(super) fn receive_block(&mut self, piece: swarmkeep_peer_wire::Piece<'_>) -> Result<(), EndReason> {
        let block = piece.block();
        if !self.take_request(block) && !self.take_late(block) {
            let bytes = u64::from(block.length);
            self.unasked += bytes;
            self.torrent.unasked(bytes);
            if self.unasked > self.peer.down.total() + UNASKED {
                return Err(EndReason::Misbehaves("sends blocks that were not requested"));
            }
            return Ok(());
        }
        self.last_block = Instant::now();
        self.fruitless = Duration::ZERO;
        self.rejects = 0;
        self.peer.snubs.store(false, Relaxed);
        if let Some(whole) = self.torrent.received(&self.peer, piece.piece.0, piece.begin, piece.data) {
            let torrent = Arc::clone(&self.torrent);
            self.torrent.session.spawn_blocking(move || torrent.store(whole));
        }
        Ok(())
    }

    pub(super) fn rejected(&mut self, block: Block) {
        // Cancelled requests are rejected, too.
        if self.take_late(block) || !self.take_request(block) {
            return;
        }
        let (piece, now) = (block.piece.0, Instant::now());
        self.torrent.give_back(&self.peer, [block]);
        self.gave_back = true;
        self.allowed.retain(|allowed| *allowed != piece);
        self.rejects += 1;
        if self.rejects.is_multiple_of(FEWEST) {
            self.pause(PAUSE);
        }
        if self.peer.chokes.load(Relaxed) {
            return;
        }
        if self.refused.len() == REFUSED {
            self.refused.clear();
        }
        let refused = self.refused.entry(piece).or_insert(RejectedPiece { times: 0, until: now });
        // The rejections of all requests of one time count once.
        if refused.until <= now {
            refused.times += 1;
            refused.until = now + self.torrent.session.config.late();
        }
        if refused.times == REFUSALS {
            self.refused.remove(&piece);
            self.torrent.peer_lost(&self.peer, piece);
        }
    }

    /// Requests as many blocks as come in a second, so that some are always on their way; from a slow peer,
    /// as many as it sends in time.
    pub(super) fn request_blocks(&mut self) -> Result<(), EndReason> {
        let now = Instant::now();
        let allows = self.peer.chokes.load(Relaxed).then_some(&self.allowed[..]);
        if !self.interested
            || allows.is_some_and(<[u32]>::is_empty)
            || self.ask_from.is_some_and(|from| now < from)
        {
            return Ok(());
        }
        let rate = self.peer.down.rate();
        let most = if self.peer.snubs.load(Relaxed) {
            1
        } else if self.peer.down.total() == 0 {
            // It may send nothing at all.
            FIRST.min(self.most_requests)
        } else {
            let in_a_second = (rate / 16_384) as usize;
            let in_time = rate * self.torrent.session.config.request_timeout.as_secs() / 3 / 16_384;
            let in_time = if rate == 0 { usize::MAX } else { in_time as usize };
            (FEWEST + in_a_second.max(2 * FEWEST).min(in_time)).min(self.most_requests)
        };
        // In batches, so that each costs one lock.
        if self.requested.len() > most - most / 4 || self.requested.len() >= most {
            return Ok(());
        }
        let mut blocks = std::mem::take(&mut self.scratch);
        let demand = BlockDemand {
            count: most - self.requested.len(),
            allows,
            may: &|piece| self.refused.get(&piece).is_none_or(|refused| refused.until <= now),
            again: std::mem::take(&mut self.ask_again),
            now,
        };
        self.torrent.pick(&self.peer, &demand, &mut blocks);
        for block in blocks.drain(..) {
            self.requested.push_back((block, now));
            self.send(&Message::Request(block))?;
        }
        self.scratch = blocks;
        Ok(())
    }

    /// Sends no requests for `time`.
    pub(super) fn pause(&mut self, time: Duration) {
        self.ask_from = self.ask_from.max(Some(Instant::now() + time));
    }

    /// Removes an open request. Returns whether there was one.
    pub(super) fn take_request(&mut self, block: Block) -> bool {
        let at = self.requested.iter().position(|(asked, _)| *asked == block);
        at.and_then(|at| self.requested.remove(at)).is_some()
    }

    /// Removes a block from `late`. Returns whether it was there.
    fn take_late(&mut self, block: Block) -> bool {
        let at = self.late.iter().position(|late| *late == block);
        at.and_then(|at| self.late.remove(at)).is_some()
    }

    pub(super) fn add_late(&mut self, block: Block) {
        if self.late.len() == LATE {
            self.late.pop_front();
        }
        self.late.push_back(block);
    }

    pub(super) fn give_all_back(&mut self) {
        self.gave_back = true;
        self.torrent.give_back(&self.peer, self.requested.iter().map(|(block, _)| *block));
        for (block, _) in std::mem::take(&mut self.requested) {
            self.add_late(block);
        }
    }

    /// Gives back requests that are not answered in time, and ends the connection the second time in a row.
    pub(super) fn check_requests(&mut self, now: Instant) -> Result<(), EndReason> {
        let config = &self.torrent.session.config;
        let (timeout, late) = (config.request_timeout, config.late());
        let since = now.saturating_duration_since(std::mem::replace(&mut self.ticked, now));
        let Some(&(_, oldest)) = self.requested.front() else { return Ok(()) };
        // While this side does not read, to stay within a limit, the peer is not at fault.
        let may_bring = self.read_from.is_none_or(|from| from + late <= now);
        let oldest = if may_bring { oldest } else { oldest.max(self.last_block) };
        // Other peers may have sent the requested blocks, again and again.
        self.fruitless += if may_bring { since } else { Duration::ZERO };
        if now.saturating_duration_since(oldest).max(self.fruitless) <= timeout {
            return Ok(());
        }
        self.fruitless = Duration::ZERO;
        if self.peer.snubs.swap(true, Relaxed) {
            return Err(EndReason::Misbehaves("does not send requested blocks"));
        }
        for (block, _) in self.requested.clone() {
            self.send(&Message::Cancel(block))?;
        }
        self.give_all_back();
        // The other peers come first.
        self.pause(late);
        Ok(())
    }
}
