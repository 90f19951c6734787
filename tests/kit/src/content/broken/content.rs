//! A torrent with a fault.

use std::{
    fmt,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::Arc,
};

use parking_lot::Mutex;
use swarmkeep_content::{Content, ContentExt, ContentRepository, Error, Geometry, PieceBits, Result};

use super::{
    super::model::{HEAD, LogEvent, MOST_UNWRITTEN, Model, ModelContent, ModelTorrent, fill},
    Fault, FaultNotes, let_others_in,
};

pub(super) struct BrokenContent {
    pub(super) handle: ModelContent,
    pub(super) model: Model,
    pub(super) fault: Fault,
    pub(super) notes: Arc<Mutex<FaultNotes>>,
    pub(super) pieces: PieceBits,
}

impl fmt::Debug for BrokenContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {:?}", self.handle, self.fault)
    }
}

impl BrokenContent {
    fn current(&self) -> ModelContent {
        let state = self.model.state();
        self.model.handle(&state, self.handle.info_hash).unwrap_or_else(|| self.handle.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut ModelTorrent) -> T) -> Result<T> {
        Ok(work(self.handle.torrent(&mut self.handle.state())?))
    }

    /// Writes bytes without a check of complete pieces or room.
    fn force(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.handle.state();
        let new = self.handle.torrent(&mut state)?.write(offset, bytes);
        state.used += new;
        Ok(())
    }

    /// Reads the whole units that a write touches, lets others in, and writes them back with its bytes in
    /// them.
    fn write_units(&self, offset: u64, bytes: &[u8], unit: u64) -> Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let (start, end) =
            (offset / unit * unit, range.end.next_multiple_of(unit).min(self.handle.geometry.len()));
        let old = self.with(|torrent| {
            (start..end).map(|at| torrent.read(&(at..at + 1)).ok().map(|byte| byte[0])).collect::<Vec<_>>()
        })?;
        let_others_in();
        for (at, byte) in (start..end).zip(old) {
            if range.contains(&at) {
                self.force(at, &[bytes[(at - offset) as usize]])?;
            } else if self.with(|torrent| torrent.written(&(at..at + 1)))? == 1 {
                // A byte that was not written when it was read was zero on the medium.
                self.force(at, &[byte.unwrap_or(0)])?;
            }
        }
        Ok(())
    }

    fn complete_piece_of(&self, range: &Range<u64>) -> Result<Option<u32>> {
        self.with(|torrent| torrent.first_complete(range))
    }
}

impl Content for BrokenContent {
    fn geometry(&self) -> Geometry {
        self.handle.geometry()
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let (length, len) = (self.handle.geometry.len(), bytes.len() as u64);
        if self.fault == Fault::OffsetsWrap && offset.wrapping_add(len) <= length {
            return if offset <= length { self.handle.write(offset, &bytes) } else { Ok(()) };
        }
        let range = match self.handle.geometry.range(offset, len) {
            Ok(range) => range,
            Err(error) => {
                if self.fault == Fault::OutOfRangeWritesWhatFits && offset < length {
                    self.handle.write(offset, &bytes[..(length - offset) as usize])?;
                }
                return Err(error);
            }
        };
        match self.fault {
            Fault::OffsetsOf32Bits => return self.handle.write(offset & 0xffff_ffff, &bytes),
            Fault::WritesLag => {
                let late = self.notes.lock().late.replace((offset, bytes));
                return late.map_or(Ok(()), |(offset, bytes)| self.handle.write(offset, &bytes));
            }
            Fault::FirstBufferWritten => bytes.truncate(buffers.first().map_or(0, |first| first.len())),
            Fault::EmptyBufferEnds => {
                let until = buffers.iter().take_while(|buffer| !buffer.is_empty());
                bytes.truncate(until.map(|buffer| buffer.len()).sum());
            }
            Fault::BuffersBeyond1024 => {
                bytes.truncate(buffers.iter().take(1024).map(|buffer| buffer.len()).sum());
            }
            Fault::OffsetsRounded => return self.handle.write(offset & !511, &bytes),
            Fault::WritesEndWithStripe => {
                let left = (1 << 16) - offset % (1 << 16);
                bytes.truncate(left as usize);
            }
            Fault::PiecesRounded => {
                let piece = u64::from(self.handle.geometry.piece_length());
                if len == piece && offset.is_multiple_of(piece) {
                    return self.handle.write(offset & !511, &bytes);
                }
            }
            Fault::LongWritesCut => bytes.truncate(1 << 18),
            Fault::FirstWriteWins => {
                for (at, byte) in range.clone().zip(&bytes) {
                    if self.with(|torrent| torrent.written(&(at..at + 1)))? == 0 {
                        self.force(at, &[*byte])?;
                    }
                }
                return Ok(());
            }
            Fault::NeighboursZeroed if len > 0 => {
                let (start, end) = (offset & !511, range.end.next_multiple_of(512).min(length));
                self.force(start, &vec![0; (offset - start) as usize])?;
                self.force(range.end, &vec![0; (end - range.end) as usize])?;
            }
            Fault::EmptyWriteRefused if len == 0 && offset < length => {
                if let Some(piece) = self.complete_piece_of(&(offset..offset + 1))? {
                    return Err(Error::Complete { piece });
                }
            }
            Fault::EmptyWriteWrites
                if len == 0
                    && offset < length
                    && self.complete_piece_of(&(offset..offset + 1))?.is_none() =>
            {
                return self.handle.write(offset, &[0]);
            }
            Fault::WriteIntoComplete => return self.force(offset, &bytes),
            Fault::HalfOfRefused => {
                if let Some(piece) = self.complete_piece_of(&range)? {
                    let before = self.handle.geometry.piece(piece)?.start.saturating_sub(offset);
                    self.force(offset, &bytes[..before as usize])?;
                }
            }
            Fault::FirstPieceChecked
                if len > 0 && self.complete_piece_of(&(offset..offset + 1))?.is_none() =>
            {
                return self.force(offset, &bytes);
            }
            Fault::WrittenByPage if len > 0 => {
                for page in (offset & !4095..range.end).step_by(4096) {
                    let page = page..(page + 4096).min(length);
                    if self.with(|torrent| torrent.written(&page))? == 0 {
                        self.force(page.start, &vec![0; (page.end - page.start) as usize])?;
                    }
                }
            }
            Fault::OldRoomShown => {
                let notes = self.notes.lock();
                for (&chunk, old) in notes.room.range(offset / 4096..range.end.div_ceil(4096)) {
                    self.with(|torrent| {
                        torrent.chunks.entry(chunk).or_insert_with(|| old.clone());
                    })?;
                }
                drop(notes);
                return self.force(offset, &bytes);
            }
            Fault::CompleteForEver => {
                let pieces = self.handle.geometry.pieces_of(&range);
                if let Some(&piece) = self.notes.lock().ever_complete.range(pieces).next() {
                    return Err(Error::Complete { piece });
                }
            }
            Fault::HandleSurvives => {
                return match self.handle.write(offset, &bytes) {
                    Err(Error::Deleted) => Ok(()),
                    other => other,
                };
            }
            Fault::HandleReachesNew => return self.current().write(offset, &bytes),
            Fault::CapacityInTwoSteps => {
                self.model.shared.check_room(&self.model.state(), len)?;
                let_others_in();
                return self.force(offset, &bytes);
            }
            Fault::FullHalfDone => {
                let result = self.handle.write(offset, &bytes);
                if matches!(result, Err(Error::Full { .. })) {
                    let free = self.model.statistics().free.unwrap_or(0);
                    self.force(offset, &bytes[..free.min(len) as usize])?;
                }
                return result;
            }
            Fault::FullForEver => {
                let mut notes = self.notes.lock();
                let result = self.handle.write(offset, &bytes);
                notes.was_full |= matches!(result, Err(Error::Full { .. }));
                return if notes.was_full { Err(Error::Full { what: "for ever" }) } else { result };
            }
            Fault::LargeWriteRefused if len > MOST_UNWRITTEN => {
                return Err(Error::Full { what: "memory for written bytes" });
            }
            Fault::RefusedBytesCounted => {
                let result = self.handle.write(offset, &bytes);
                self.notes.lock().drift += if result.is_err() { len } else { 0 };
                return result;
            }
            Fault::SectorsInTwoSteps => return self.write_units(offset, &bytes, 512),
            Fault::PagesInTwoSteps => return self.write_units(offset, &bytes, 4096),
            Fault::WriteInTwoSteps => {
                if let Some(piece) = self.complete_piece_of(&range)? {
                    return Err(Error::Complete { piece });
                }
                let_others_in();
                return self.force(offset, &bytes);
            }
            Fault::WriteAfterDelete => {
                self.handle.pieces()?;
                let_others_in();
                return self.current().write(offset, &bytes);
            }
            Fault::RareLoss
                if buffers.len() > 2
                    && len > 0
                    && len.is_multiple_of(7)
                    && self.handle.geometry.pieces_of(&range).len() == 2
                    && self.complete_piece_of(&range)?.is_none() =>
            {
                return Ok(());
            }
            _ => {}
        }
        self.handle.write(offset, &bytes)
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = self.handle.geometry.len();
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        match self.fault {
            Fault::OffsetsOf32Bits => return self.handle.read_at(offset & 0xffff_ffff, buffers),
            Fault::LengthRoundedUp
                if offset + len > length && offset + len <= length.next_multiple_of(512) =>
            {
                return Ok(());
            }
            Fault::FirstBufferFilled => return self.handle.read_at(offset, &mut buffers[..1]),
            Fault::ReadsRounded => return self.handle.read_at(offset.min(offset & !511), buffers),
            Fault::ZeroesForUnwritten => {
                let result = self.handle.read_at(offset, buffers);
                if matches!(result, Err(Error::NotWritten { .. })) {
                    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
                    return Ok(());
                }
                return result;
            }
            Fault::NamesStartOfRead | Fault::NamesByteOfBuffer => {
                return self.handle.read_at(offset, buffers).map_err(|error| match error {
                    Error::NotWritten { .. } if self.fault == Fault::NamesStartOfRead => {
                        Error::NotWritten { at: offset }
                    }
                    Error::NotWritten { at } => {
                        let starts = buffers.iter().scan(offset, |start, buffer| {
                            *start += buffer.len() as u64;
                            Some(*start)
                        });
                        let start = starts.take_while(|&start| start <= at).last();
                        Error::NotWritten { at: at - start.unwrap_or(0) }
                    }
                    other => other,
                });
            }
            Fault::ReadsClamped if offset.checked_add(len).is_none_or(|end| end > length) => return Ok(()),
            Fault::EmptyReadRefused if len == 0 && offset < length => {
                self.handle.read(offset, &mut [0])?;
            }
            Fault::OldRoomInBuffers => {
                let result = self.handle.read_at(offset, buffers);
                if let (Err(Error::NotWritten { .. }), [buffer, ..]) = (&result, buffers) {
                    let notes = self.notes.lock();
                    for (byte, at) in buffer.iter_mut().zip(offset..) {
                        let old = notes.room.get(&(at / 4096)).and_then(|chunk| chunk[(at % 4096) as usize]);
                        *byte = old.unwrap_or(*byte);
                    }
                }
                return result;
            }
            Fault::HandleReachesNew => return self.current().read_at(offset, buffers),
            Fault::BuffersCountedAsCalls => {
                self.notes.lock().drift += (buffers.len() as u64).saturating_sub(1);
            }
            Fault::ReadInTwoSteps => {
                let mut bytes = vec![0; len as usize];
                let (first, second) = bytes.split_at_mut((len / 2) as usize);
                self.handle.read(offset, first)?;
                let_others_in();
                self.current().read(offset + len / 2, second)?;
                fill(buffers, &bytes);
                return Ok(());
            }
            _ => {}
        }
        self.handle.read_at(offset, buffers)
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let geometry = self.handle.geometry;
        match (self.fault, geometry.piece(piece)) {
            (Fault::AnyPieceExists, Err(_)) => return Ok(false),
            (Fault::MarkUnverified, Ok(_)) => return self.with(|torrent| torrent.complete.insert(piece)),
            (Fault::MarkLooksAtEnds, Ok(range)) => {
                for at in [range.start, range.end - 1] {
                    self.handle.read(at, &mut [0])?;
                }
                return self.with(|torrent| torrent.complete.insert(piece));
            }
            (Fault::LastPieceWhole, Ok(range))
                if range.end - range.start < geometry.piece_length().into() =>
            {
                return Err(Error::NotWritten { at: range.end });
            }
            (Fault::RepeatedMarkNew, Ok(_)) => return self.handle.mark_complete(piece).map(|_| true),
            (Fault::CompleteForEver, Ok(_)) => drop(self.notes.lock().ever_complete.insert(piece)),
            (Fault::HandleReachesNew, _) => return self.current().mark_complete(piece),
            (Fault::MarksBeforeBytes, Ok(range)) => {
                let marked = self.handle.mark_complete(piece)?;
                let zeroes = vec![0; (range.end - range.start) as usize];
                self.handle.state().log(self.handle.info_hash, &LogEvent::Complete(piece, &zeroes))?;
                return Ok(marked);
            }
            (Fault::FullRefusesMarks, Ok(_)) => {
                self.model.shared.check_room(&self.model.state(), 64 * HEAD)?;
            }
            (Fault::MarkInTwoSteps, Ok(_)) => {
                let was = self.handle.pieces()?.contains(piece);
                let_others_in();
                self.handle.mark_complete(piece)?;
                return Ok(!was);
            }
            _ => {}
        }
        self.handle.mark_complete(piece)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let (geometry, info_hash) = (self.handle.geometry, self.handle.info_hash);
        let Ok(range) = geometry.piece(piece) else {
            let any = self.fault == Fault::AnyPieceExists;
            return if any { Ok(false) } else { self.handle.mark_incomplete(piece) };
        };
        let is_complete = self.handle.pieces()?.contains(piece);
        match self.fault {
            Fault::MarksShared => {
                let mut state = self.handle.state();
                for torrent in state.torrents.values_mut() {
                    if torrent.complete.remove(&piece) {
                        torrent.forget(&range);
                    }
                }
                return Ok(is_complete);
            }
            Fault::UnmarkKeepsBytes => return self.with(|torrent| torrent.complete.remove(&piece)),
            Fault::UnmarkForgetsNeighbours if is_complete => {
                let neighbours = range.end..range.end.next_multiple_of(512).min(geometry.len());
                self.with(|torrent| torrent.forget(&neighbours))?;
            }
            Fault::UnmarkForgetsIncomplete if !is_complete => {
                self.with(|torrent| torrent.forget(&range))?;
            }
            Fault::UnmarkNotDurable => {
                return self.with(|torrent| {
                    torrent.forget(&range);
                    torrent.durable.remove(&piece);
                    torrent.complete.remove(&piece)
                });
            }
            Fault::OldBytesFlushed if is_complete => {
                let bytes = self.with(|torrent| torrent.read(&range))??;
                self.notes.lock().earlier.insert((info_hash, piece), bytes);
            }
            Fault::UnmarkFreesNothing => {
                let used = self.handle.state().used;
                let marked = self.handle.mark_incomplete(piece);
                self.handle.state().used = used;
                return marked;
            }
            Fault::HandleReachesNew => return self.current().mark_incomplete(piece),
            Fault::UnmarkInTwoSteps if is_complete => {
                self.force(range.start, &vec![0; (range.end - range.start) as usize])?;
                let_others_in();
            }
            _ => {}
        }
        self.handle.mark_incomplete(piece)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let mut pieces = match self.fault {
            Fault::HandleKeepsPieces => self.pieces.clone(),
            Fault::HandleReachesNew => self.current().pieces()?,
            _ => self.handle.pieces()?,
        };
        if self.fault == Fault::LastPieceNotShown {
            pieces.remove(pieces.pieces() - 1);
        }
        Ok(pieces)
    }

    fn place(&self, offset: u64) -> Option<u64> {
        (self.fault == Fault::PlacesBeyondEnd).then_some(offset)
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        match self.fault {
            Fault::RoomNotTold => 0,
            Fault::RoomToldOfRest => (1 << 40) - (range.end - range.start),
            _ => self.handle.room_for(range),
        }
    }
}
