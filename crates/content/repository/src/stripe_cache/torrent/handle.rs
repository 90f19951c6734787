//! The operations of a torrent's handles.

use std::{
    io::{IoSlice, IoSliceMut},
    mem,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{
    super::{
        Running,
        backlog::{CacheCore, RoomReservation, stripes_of},
        gathered::{UnwrittenStripe, fill},
        read_ahead::Lookup,
    },
    CachedTorrent, PendingMark, StripeJob, TorrentState, guarded,
};
use crate::{Content, Error, Geometry, PieceBits, Pieces, Result, block::SECTOR, buffers::range_of, forward};

/// A torrent that was opened.
#[derive(Debug)]
pub(in crate::stripe_cache) struct Handle {
    pub(in crate::stripe_cache) torrent: Arc<CachedTorrent>,
    pub(in crate::stripe_cache) cache: Arc<Running>,
}

/// Room of the store below for a part of a stripe.
struct PartRoom<'a> {
    reservation: RoomReservation<'a>,
    /// The room of the whole stripe.
    whole: u64,
}

impl Handle {
    fn core(&self) -> &CacheCore {
        self.cache.core()
    }

    /// Reserves room of the store below for a part of a stripe; `None` if it has too little.
    ///
    /// The room is enough for whole chunks, so that the store below is asked once per chunk.
    fn keep_room(&self, part: &Range<u64>) -> Option<PartRoom<'_>> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let stripe = torrent.state_range(part.start / core.stripe);
        let chunks =
            part.start / core.chunk * core.chunk..stripe.end.min(part.end.next_multiple_of(core.chunk));
        let whole = torrent.inner.room_for(stripe);
        let room = if whole == 0 { 0 } else { torrent.inner.room_for(chunks).min(whole) };
        core.reserve(room).map(|reservation| PartRoom { reservation, whole })
    }

    /// Takes a range into memory; `false` if the store below may have too little room for it: then nothing is
    /// taken.
    fn gather_all(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> bool {
        let core = self.core();
        let stripes = stripes_of(range, core.stripe);
        // A single stripe is checked for room in `gather` anyway.
        let ahead = core.knows_room && stripes.end - stripes.start > 1;
        let parts = stripes.map(|number| {
            let stripe = self.torrent.state_range(number);
            range.start.max(stripe.start)..range.end.min(stripe.end)
        });
        let rooms =
            ahead.then(|| parts.clone().map(|part| self.keep_room(&part)).collect::<Option<Vec<_>>>());
        let mut rooms = match rooms {
            Some(None) => return false,
            Some(Some(rooms)) => rooms,
            None => Vec::new(),
        }
        .into_iter();
        for part in parts {
            let from = part.start - range.start;
            let mut room = rooms.next();
            while !self.gather(part.clone(), buffers, from, room.as_mut()) {
                match self.keep_room(&part) {
                    None => return false,
                    kept => room = kept,
                }
            }
        }
        true
    }

    /// Takes a part of a stripe into memory, as soon as memory is free; `false` if it needs `room` and has
    /// none.
    fn gather(
        &self,
        part: Range<u64>,
        buffers: &[IoSlice<'_>],
        from: u64,
        room: Option<&mut PartRoom<'_>>,
    ) -> bool {
        let (core, torrent) = (self.core(), &*self.torrent);
        let number = part.start / core.stripe;
        let range = torrent.state_range(number);
        let sure = room.is_some() || !core.knows_room;
        let mut ticket = core.memory_ticket();
        let (mut state, memory) = loop {
            let state = torrent.state.lock();
            let gathering = state.stripes.get(&number).and_then(|stripe| stripe.gathering.as_ref());
            if !sure && !gathering.is_some_and(|gathering| gathering.has_room(&part)) {
                return false;
            }
            let lacks = match gathering {
                Some(gathering) => gathering.lacks(&part),
                None => {
                    ((part.end - range.start).div_ceil(core.chunk) - (part.start - range.start) / core.chunk)
                        as usize
                }
            };
            if lacks == 0 {
                break (state, Vec::new());
            }
            if let Some(memory) = ticket.take(lacks) {
                break (state, memory);
            }
            drop(state);
            ticket.wait(lacks);
        };
        let new = !state.stripes.contains_key(&number);
        let stripe = state.stripes.entry(number).or_default();
        let gathering =
            stripe.gathering.get_or_insert_with(|| UnwrittenStripe::new(core.serial(), range, core.chunk));
        if let Some(PartRoom { reservation, whole }) = room {
            gathering.reserved += reservation.take(gathering.missing_room(*whole));
        }
        gathering.put(part.clone(), buffers, from, memory);
        let missing = stripe.missing;
        let newly = state.pieces.wrote_anew(part);
        if new {
            state.count_missing(number);
        } else {
            state.set_missing(number, missing - newly);
        }
        let stripe = state.stripes.get_mut(&number).expect("it is there");
        // A stripe that is only written again is not due before it is marked.
        let whole = stripe.missing == 0 && newly > 0;
        let due = whole
            && stripe.gathering.as_mut().is_some_and(|gathering| !mem::replace(&mut gathering.due, true));
        drop(state);
        drop(ticket);
        if due {
            core.queue([StripeJob { torrent: Arc::clone(&self.torrent), stripe: number }]);
        }
        true
    }

    /// Writes to the store below, instead of holding bytes back for which it may have no room: a lack of room
    /// is an error at once.
    fn write_through(&self, range: Range<u64>, buffers: &[IoSlice<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let _alone = torrent.writing.write();
        torrent.state.lock().pieces.check_write(&range)?;
        // It also writes the held-back bytes of these stripes, which must not come later.
        let _way = core.make_way(torrent.inner.room_for(range.clone()), || self.cache.write_out());
        core.calls.fetch_add(1, Relaxed);
        let written = guarded("writing past the cache", || torrent.inner.write_at(range.start, buffers));
        let mut state = torrent.state.lock();
        match &written {
            Ok(()) => {
                for stripe in stripes_of(&range, core.stripe).map(|number| torrent.state_range(number)) {
                    let whole = range.start <= stripe.start && stripe.end <= range.end;
                    (if whole { &core.whole } else { &core.partial }).fetch_add(1, Relaxed);
                }
                state.pieces.wrote(range);
            }
            Err(Error::Full { .. }) => {}
            Err(_) => state.pieces.lost(range),
        }
        written
    }

    /// Reads a range, all of it in one stripe and on the store below.
    fn read_below(
        &self,
        range: &Range<u64>,
        found: Lookup<'_>,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        let torrent = &*self.torrent;
        let within = range.start - offset..range.end - offset;
        let block = self.core().read_ahead.block(found, |start, bytes| {
            guarded("reading ahead", || torrent.inner.read_at(start, &mut [IoSliceMut::new(bytes)]))
        });
        if let Some(block) = block {
            fill(buffers, within, [block.bytes(range)]);
            return Ok(());
        }
        // Bytes that were not requested may be the unreadable ones.
        let into = range_of(buffers.iter_mut().map(|buffer| &mut **buffer), within);
        let mut into: Vec<_> = into.into_iter().map(IoSliceMut::new).collect();
        torrent.inner.read_at(range.start, &mut into)
    }

    /// The state of a range in the read-ahead memory, with complete pieces only. The caller holds the state,
    /// so a removed mark always finds the range there, and forgets it.
    fn find(&self, state: &TorrentState, range: &Range<u64>) -> Lookup<'_> {
        self.core().read_ahead.find(self.torrent.serial, range, || self.around(state, range))
    }

    /// The most around a range that can be read ahead: in its stripe, of complete pieces, and on the store
    /// below.
    fn around(&self, state: &TorrentState, range: &Range<u64>) -> Option<Range<u64>> {
        let torrent = &*self.torrent;
        let number = range.start / torrent.stripe;
        let stripe = torrent.state_range(number);
        let complete = |piece: u32| state.pieces.complete().contains(piece);
        let pieces = torrent.geometry.pieces_of(range);
        if !pieces.clone().all(complete) {
            return None;
        }
        let of_stripe = torrent.geometry.pieces_of(&stripe);
        let first = (of_stripe.start..pieces.start).rev().take_while(|&piece| complete(piece)).last();
        let last = (pieces.end..of_stripe.end).take_while(|&piece| complete(piece)).last();
        let bytes_of = |piece| torrent.geometry.piece(piece).expect("it holds a byte of the stripe");
        let mut around = bytes_of(first.unwrap_or(pieces.start)).start.max(stripe.start)
            ..bytes_of(last.unwrap_or(pieces.end - 1)).end.min(stripe.end);
        if let Some(held) = state.stripes.get(&number) {
            for held in held.gathering.iter().chain(held.writing.as_deref()) {
                if let Some(before) = held.runs().within(&(around.start..range.start)).last() {
                    around.start = before.end;
                }
                if let Some(after) = held.runs().within(&(range.end..around.end)).next() {
                    around.end = after.start;
                }
            }
        }
        // Whole sectors go to memory without a detour.
        let sector = SECTOR as u64;
        if around.start.next_multiple_of(sector) <= range.start {
            around.start = around.start.next_multiple_of(sector);
        }
        if around.end != torrent.geometry.len() && around.end / sector * sector >= range.end {
            around.end = around.end / sector * sector;
        }
        Some(around)
    }
}

impl Content for Handle {
    forward! { it, it.torrent.inner; place, is_read_only, changes, verify_changes, room_for }

    fn geometry(&self) -> Geometry {
        self.torrent.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = torrent.geometry.range(offset, len)?;
        let _inside = torrent.enter()?;
        let shared = torrent.writing.read();
        {
            let mut state = torrent.state.lock();
            state.pieces.check_write(&range)?;
            if range.is_empty() {
                return Ok(());
            }
            if let Some(error) = state.failed_write.take() {
                return Err(error);
            }
        }
        if !self.gather_all(&range, buffers) {
            drop(shared);
            self.write_through(range, buffers)?;
        }
        core.counters.wrote(len);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = torrent.geometry.range(offset, len)?;
        let _inside = torrent.enter()?;
        for number in stripes_of(&range, core.stripe) {
            let stripe = torrent.state_range(number);
            let part = range.start.max(stripe.start)..range.end.min(stripe.end);
            // Bytes in memory are copied before they can change.
            let state = torrent.state.lock();
            state.pieces.check_read(&part)?;
            let Some(stripe) = state.stripes.get(&number) else {
                let found = self.find(&state, &part);
                drop(state);
                self.read_below(&part, found, offset, buffers)?;
                continue;
            };
            let mut below = vec![part];
            // Gathering bytes are newer than bytes that are being written.
            for held in stripe.gathering.iter().chain(stripe.writing.as_deref()) {
                for part in mem::take(&mut below) {
                    for run in held.runs().within(&part) {
                        fill(buffers, run.start - offset..run.end - offset, held.slices(&run));
                    }
                    below.extend(held.runs().outside(&part));
                }
            }
            let found: Vec<_> = below.iter().map(|part| self.find(&state, part)).collect();
            drop(state);
            for (part, found) in below.iter().zip(found) {
                self.read_below(part, found, offset, buffers)?;
            }
        }
        core.counters.read(len);
        Ok(())
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let torrent = &*self.torrent;
        let _inside = torrent.enter()?;
        let alone = torrent.writing.write();
        let mut state = torrent.state.lock();
        let new = state.pieces.mark_complete(piece).map_err(|missing| state.why(missing))?;
        if !new {
            return Ok(false);
        }
        let range = torrent.geometry.piece(piece)?;
        let marking = !state.holds(&range);
        state.pending_marks.insert(piece, PendingMark { serial: self.core().serial(), marking });
        let mut jobs = Vec::new();
        for (&number, stripe) in state.stripes.range_mut(stripes_of(&range, torrent.stripe)) {
            if stripe.missing == 0
                && let Some(gathering) = &mut stripe.gathering
                && !mem::replace(&mut gathering.due, true)
            {
                jobs.push(StripeJob { torrent: Arc::clone(&self.torrent), stripe: number });
            }
        }
        drop(state);
        drop(alone);
        if !jobs.is_empty() {
            self.core().queue(jobs);
        }
        if marking {
            torrent.mark_below(self.core(), piece, false)?;
        }
        Ok(true)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let (core, torrent) = (self.core(), &*self.torrent);
        torrent.geometry.piece(piece)?;
        let _alone = torrent.enter_alone()?;
        let mut state = torrent.state.lock();
        let marking =
            |state: &mut TorrentState| state.pending_marks.get(&piece).is_some_and(|pending| pending.marking);
        torrent.settled.wait_while(&mut state, marking);
        if !state.pieces.complete().contains(piece) {
            return Ok(false);
        }
        if state.pending_marks.remove(&piece).is_none() {
            drop(state);
            torrent.inner.mark_incomplete(piece)?;
            state = torrent.state.lock();
        }
        torrent.forget(core, &mut state, piece);
        drop(state);
        torrent.settled.notify_all();
        Ok(true)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let _inside = self.torrent.enter()?;
        if self.is_read_only() {
            // Other programs may change them.
            let below = Pieces::with_complete(self.torrent.geometry, self.torrent.inner.pieces()?);
            self.torrent.state.lock().pieces = below;
            self.core().read_ahead.forget(self.torrent.serial, &(0..u64::MAX));
        }
        Ok(self.torrent.state.lock().pieces.complete().clone())
    }
}
