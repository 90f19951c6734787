//! One torrent: its bytes in its files, and their state.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem,
    ops::Range,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::{
    fs::OFlags,
    io::{Errno, retry_on_intr},
};
use swarmkeep_metainfo::Segment;

use super::{
    Allocation, HIDDEN,
    disk::DiskStep,
    folder,
    open_files::OpenFile,
    place::{FileCheck, Location},
    state::StateRecord,
    volume::Volume,
};
use crate::{
    Content, Error, Geometry, PieceBits, Pieces, Result, buffers::Parts, error::about, forward,
    stretches::Stretches,
};

/// The message about a file that is not as the store left it.
const CHANGED: &str = "a file of the torrent is gone or too short: open the store again to check all files";

/// A torrent. Locks are taken in the order of the fields. During a flush of files only `bits` is held, so
/// reads and writes do not wait for it.
#[derive(Debug)]
pub(super) struct FileTorrent {
    /// Distinguishes it from an earlier torrent of the same info hash.
    pub(super) id: u64,
    pub(super) place: Location,
    has_padding: bool,
    /// Where in its state the have-bits begin.
    bits_at: u64,
    pub(super) state_len: u64,
    pub(super) volume: Arc<Volume>,
    unflushed: Arc<Unflushed>,
    /// Locked to write to its state; `false` when it must not be written any more.
    pub(super) bits: Mutex<bool>,
    /// Whether it exists. Locked for reading to read, write or mark; for writing to delete it or to remove a
    /// mark.
    pub(super) gate: RwLock<bool>,
    /// Locked for reading to write, and for writing to mark a piece complete.
    writing: RwLock<()>,
    state: Mutex<TorrentState>,
    /// Whether it is in the list of torrents that have something to flush.
    listed: AtomicBool,
}

/// Torrents that have something to flush. They hold this, so it does not hold them.
pub(super) type Unflushed = Mutex<Vec<Weak<FileTorrent>>>;

#[derive(Debug)]
struct TorrentState {
    pieces: Pieces,
    /// Complete pieces that are not so on the disk.
    fresh: BTreeSet<u32>,
    /// Complete pieces that are being flushed, and not so on the disk.
    under_way: BTreeSet<u32>,
    /// Complete pieces that are durable, except their bits, which may be on the disk or not.
    unsure: BTreeSet<u32>,
    /// Files with bytes that may not have arrived.
    dirty: BTreeSet<u32>,
    room: CapacityShare,
}

/// Which part of the capacity the torrent has: every byte of its files that can be read, or that is held.
#[derive(Debug, Default)]
struct CapacityShare {
    /// Ranges that have room on the disk and cannot be read: writes in progress, bytes that are
    /// older than the opened store or not trusted, and files with all of their room.
    held: Stretches,
    /// The bytes that the store counts for the torrent.
    charged: u64,
}

impl FileTorrent {
    /// A torrent with these pieces. Its have-bits begin at byte `bits_at` of its state.
    pub(super) fn new(
        place: Location,
        complete: PieceBits,
        bits_at: u64,
        volume: &Arc<Volume>,
        unflushed: &Arc<Unflushed>,
    ) -> Self {
        let pieces = Pieces::with_complete(place.record.geometry, complete);
        Self {
            id: volume.next_id(),
            has_padding: place.files().count() < place.record.files.count(),
            bits_at,
            state_len: bits_at + place.record.bits_len(),
            place,
            volume: Arc::clone(volume),
            unflushed: Arc::clone(unflushed),
            bits: Mutex::new(true),
            gate: RwLock::new(true),
            writing: RwLock::new(()),
            state: Mutex::new(TorrentState {
                pieces,
                fresh: BTreeSet::new(),
                under_way: BTreeSet::new(),
                unsure: BTreeSet::new(),
                dirty: BTreeSet::new(),
                room: CapacityShare::default(),
            }),
            listed: AtomicBool::new(false),
        }
    }

    pub(super) const fn geometry(&self) -> Geometry {
        self.place.record.geometry
    }

    /// Holds all of its room, which was allocated before the torrent existed.
    pub(super) fn hold_all(&self) {
        let mut state = self.state.lock();
        for part in self.file_parts(&(0..self.geometry().len())) {
            state.room.charged += state.room.held.insert(part);
        }
    }

    /// Notes that its complete pieces are durable and their bits are not, as after it was adopted.
    pub(super) fn note_all(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            let complete = state.pieces.complete().iter().collect::<Vec<_>>();
            state.unsure.extend(complete);
        }
        self.changed();
    }

    /// The bytes of room that a write of a range would take now. Bytes beyond the end take none.
    pub(super) fn room_for(&self, range: Range<u64>) -> u64 {
        let range = range.start..range.end.min(self.geometry().len());
        let state = self.state.lock();
        self.lacking(&state, &state.pieces.unknown(&range)).iter().map(length).sum()
    }

    /// The parts of a range that lie in files.
    fn file_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if !self.has_padding {
            return vec![range.clone()];
        }
        let mut at = range.start;
        let mut parts = Vec::new();
        for segment in self.place.record.files.segments(range.clone()) {
            let part = at..at + segment.length;
            at = part.end;
            if !self.is_padding(&segment) {
                parts.push(part);
            }
        }
        parts
    }

    /// The parts of unknown ranges that have no room yet.
    fn lacking(&self, state: &TorrentState, unknown: &[Range<u64>]) -> Vec<Range<u64>> {
        let parts = unknown.iter().flat_map(|part| self.file_parts(part));
        parts.flat_map(|part| state.room.held.outside(&part)).collect()
    }

    pub(super) fn charged(&self) -> u64 {
        self.state.lock().room.charged
    }

    pub(super) fn complete(&self) -> u32 {
        self.state.lock().pieces.complete().count()
    }

    /// Keeps the torrent from being deleted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let there = self.gate.read();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    /// Notes that the torrent has something to flush.
    pub(super) fn changed(self: &Arc<Self>) {
        if !self.listed.swap(true, Relaxed) {
            self.unflushed.lock().push(Arc::downgrade(self));
        }
    }

    fn about(&self, file: usize) -> impl FnOnce(io::Error) -> io::Error {
        let below: PathBuf = self.place.path(file).iter().collect();
        about(self.volume.path.join(below))
    }

    fn file(&self, index: usize, writable: bool) -> io::Result<Arc<OpenFile>> {
        self.open_file(index, writable).map_err(|error| self.about(index)(error))
    }

    fn open_file(&self, index: usize, writable: bool) -> io::Result<Arc<OpenFile>> {
        let volume = &self.volume;
        let open = volume.open_files.get(&volume.disk, (self.id, index as u32), writable, || {
            let path = self.place.path(index);
            let (name, folders) = path.split_last().expect("a file has a name");
            let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
            folder::open(folder::to(&volume.folder, folders)?.as_fd(), name, flags, 0)
        })?;
        if writable {
            // A write beyond its new end would leave a hole, which reads as zeroes.
            let there = open.file.metadata()?;
            let length = self.place.record.files.get(index).expect("it comes from the list").length();
            if there.nlink() == 0 || there.len() < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(open)
    }

    fn is_padding(&self, segment: &Segment) -> bool {
        self.place.record.files.get(segment.file).is_some_and(|file| file.is_padding())
    }

    fn write_segments(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        let mut rest = Parts::new(buffers.iter().map(|buffer| &**buffer));
        for segment in self.place.record.files.segments(range.clone()) {
            let parts = rest.take(segment.length);
            if self.is_padding(&segment) {
                continue;
            }
            let open = self.file(segment.file, true)?;
            let mut slices: Vec<_> = parts.into_iter().map(IoSlice::new).collect();
            let step = DiskStep::Write(segment.file);
            let written = self.volume.disk.write(step, &open.file, segment.offset, &mut slices);
            open.wrote();
            written.map_err(|error| self.about(segment.file)(error))?;
        }
        Ok(())
    }

    /// Takes the disk's room for a range that is written to in part.
    fn reserve(&self, range: &Range<u64>) -> Result<()> {
        for segment in
            self.place.record.files.segments(range.clone()).filter(|segment| !self.is_padding(segment))
        {
            let open = self.file(segment.file, true).map_err(Error::io(CHANGED))?;
            match self.volume.disk.allocate(&open.file, segment.offset, segment.length) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => {
                    let error = self.about(segment.file)(error.into());
                    return Err(Error::io("the disk of the files")(error));
                }
            }
        }
        Ok(())
    }

    fn read_segments(&self, range: &Range<u64>, buffers: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut rest = Parts::new(buffers.iter_mut().map(|buffer| &mut **buffer));
        for segment in self.place.record.files.segments(range.clone()) {
            let mut parts = rest.take(segment.length);
            if self.is_padding(&segment) {
                parts.iter_mut().for_each(|part| part.fill(0));
                continue;
            }
            let open = self.file(segment.file, false)?;
            let mut slices: Vec<_> = parts.into_iter().map(IoSliceMut::new).collect();
            read_all(&open.file, segment.offset, &mut slices)
                .map_err(|error| self.about(segment.file)(error))?;
        }
        Ok(())
    }

    /// The parts of padding in a range to which other bytes than zeroes are written.
    fn wrong_padding(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> Vec<Range<u64>> {
        if !self.has_padding {
            return Vec::new();
        }
        let mut rest = Parts::new(buffers.iter().map(|buffer| &**buffer));
        let mut at = range.start;
        let mut wrong = Vec::new();
        for segment in self.place.record.files.segments(range.clone()) {
            let parts = rest.take(segment.length);
            let zero = |part: &&[u8]| part.iter().all(|byte| *byte == 0);
            if self.is_padding(&segment) && !parts.iter().all(zero) {
                wrong.push(at..at + segment.length);
            }
            at += segment.length;
        }
        wrong
    }

    /// Begins a flush, and gives the files that have something to flush. Pieces that are marked from now on
    /// are for the next one.
    pub(super) fn begin_flush(self: &Arc<Self>) -> BTreeSet<u32> {
        self.listed.store(false, Relaxed);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.under_way.append(&mut state.fresh);
        mem::take(&mut state.dirty)
    }

    pub(super) fn flush_file(&self, index: u32) -> Result<()> {
        let key = (self.id, index);
        let flushed = self.volume.open_files.flush(&self.volume.disk, key);
        flushed.or_else(|source| {
            // A torrent that was deleted meanwhile can lose nothing.
            if !*self.bits.lock() {
                return Ok(());
            }
            self.lose(index as usize);
            let source = self.about(index as usize)(source);
            Err(Error::Io { what: "flushing a file of a torrent", source })
        })
    }

    /// Makes complete pieces durable, if their files are flushed.
    pub(super) fn flush_bits(&self) -> Result<()> {
        let writable = self.bits.lock();
        let sectors = {
            let state = self.state.lock();
            let sectors = StateRecord::sectors_of(state.under_way.union(&state.unsure).copied());
            self.sectors(&state, sectors, |piece| !state.fresh.contains(&piece))
        };
        if sectors.is_empty() || !*writable {
            return Ok(());
        }
        let written = self.write_bits(&sectors);
        // No other thread has removed any of them in between: that needs `bits`.
        let mut guard = self.state.lock();
        let state = &mut *guard;
        match written {
            Ok(()) => {
                state.under_way.clear();
                state.unsure.clear();
            }
            Err(_) => state.unsure.append(&mut state.under_way),
        }
        written
    }

    fn sectors(
        &self,
        state: &TorrentState,
        sectors: BTreeSet<u32>,
        counts: impl Fn(u32) -> bool,
    ) -> Vec<(u64, [u8; 512])> {
        let complete = state.pieces.complete();
        let place = |index| self.bits_at + StateRecord::place(index);
        let sector = |index| (place(index), self.place.record.sector(index, complete, &counts));
        sectors.into_iter().map(sector).collect()
    }

    /// Writes sectors in their place. A crash leaves the old or the new sector. Both are true, as bits are
    /// set after the bytes of their pieces are durable, and cleared before they change.
    fn write_bits(&self, sectors: &[(u64, [u8; 512])]) -> Result<()> {
        let Volume { disk, states, .. } = &*self.volume;
        let written = (|| {
            let file = folder::open(states, &self.place.name, OFlags::WRONLY, 0)?;
            for (at, sector) in sectors {
                disk.write(DiskStep::WriteBits, &file, *at, &mut [IoSlice::new(sector)])?;
            }
            disk.flush(DiskStep::FlushBits, &file)
        })();
        let source = about(self.volume.path.join(HIDDEN).join("torrents").join(&self.place.name));
        written
            .map_err(source)
            .map_err(|source| Error::Io { what: "writing which pieces are complete", source })
    }

    /// Forgets the bytes of a file that are not durable: they may be written or not, and the system may
    /// report the error only once.
    fn lose(&self, file: usize) {
        // A write in progress may have come before the error, and be noted after it.
        let _alone = self.gate.write();
        self.volume.open_files.forget((self.id, file as u32));
        let range = self.place.record.files.get(file).expect("it comes from the list").range();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for piece in self.geometry().pieces_of(&range) {
            if state.fresh.remove(&piece) | state.under_way.remove(&piece) {
                state.pieces.mark_incomplete(piece).expect("the torrent has it");
                let piece = self.geometry().piece(piece).expect("the torrent has it");
                self.file_parts(&piece).into_iter().for_each(|part| _ = state.room.held.insert(part));
            }
        }
        state.pieces.written(&range).for_each(|part| _ = state.room.held.insert(part));
        state.pieces.lost(range);
    }

    /// Returns the room of a range of unknown bytes to the disk; `false` if the disk keeps it.
    fn punch(&self, range: &Range<u64>) -> bool {
        let mut segments =
            self.place.record.files.segments(range.clone()).filter(|segment| !self.is_padding(segment));
        self.volume.allocation == Allocation::Sparse
            && segments.all(|segment| {
                self.file(segment.file, true).is_ok_and(|open| {
                    let punched = self.volume.disk.punch(&open.file, segment.offset, segment.length);
                    open.wrote();
                    punched.is_ok()
                })
            })
    }

    /// Checks the existence and length of its files. Pieces in wrong files are no longer complete, and the
    /// files are made again. Nor are `unknown` pieces complete: their have-bits could not be read. Returns
    /// the missing files, and the number of pieces that each has cost.
    ///
    /// Called before other threads know of the torrent. An error says why it cannot be used: its state and
    /// its files are left unchanged then.
    pub(super) fn look(&self, unknown: &[Range<u32>]) -> Result<Vec<(usize, u32)>, String> {
        let volume = &*self.volume;
        let top = volume.folder.as_fd();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let found = self.place.look(&volume.disk, top, |range| state.pieces.check_read(range).is_ok())?;
        let is_gone = |(_, found): &(usize, FileCheck)| matches!(found, FileCheck::Gone | FileCheck::NoFile);
        let has_bytes = |(index, _): &&(usize, FileCheck)| {
            self.place.record.files.get(*index).is_some_and(|file| file.length() > 0)
        };
        // Most likely not one by one: their folder was moved, or their disk is not mounted.
        if state.pieces.complete().count() > 0 && found.iter().filter(has_bytes).all(is_gone) {
            return Err("none of its files is where it was: bring them back and open the store again, or \
                        delete the torrent"
                .to_owned());
        }
        let mut missing = Vec::new();
        let mut cleared = BTreeSet::new();
        for (index, found) in &found {
            if let FileCheck::There(held) = found {
                held.iter().for_each(|part| _ = state.room.held.insert(part.clone()));
                continue;
            }
            let range = self.place.record.files.get(*index).expect("it comes from the list").range();
            let pieces = self.geometry().pieces_of(&range);
            let lost = pieces.filter(|&piece| state.pieces.mark_incomplete(piece).is_ok_and(|was| was));
            let before = cleared.len();
            cleared.extend(lost);
            missing.push((*index, (cleared.len() - before) as u32));
        }
        let mut held = mem::take(&mut state.room.held);
        // The rest of such pieces, in other files, still has its room.
        for piece in cleared.iter().filter_map(|&piece| self.geometry().piece(piece).ok()) {
            self.file_parts(&piece).into_iter().for_each(|part| _ = held.insert(part));
        }
        for file in missing.iter().filter_map(|(index, _)| self.place.record.files.get(*index)) {
            held.remove(&file.range());
        }
        for part in held.iter().flat_map(|part| state.pieces.unknown(&part)) {
            state.room.charged += state.room.held.insert(part);
        }
        state.room.charged += self.place.files().map(|file| state.pieces.known(&file.range())).sum::<u64>();
        let unknown = unknown.iter().map(|pieces| pieces.start);
        let sectors =
            self.sectors(state, StateRecord::sectors_of(cleared.into_iter().chain(unknown)), |_| true);
        drop(guard);
        let why = |error: Error| error.to_string();
        if volume.read_only {
            return Ok(missing);
        }
        if !sectors.is_empty() {
            // Before there is a hole in place of a complete piece.
            self.write_bits(&sectors).map_err(why)?;
        }
        if !missing.is_empty() {
            self.place.mend(&volume.disk, volume.allocation, top, &found).map_err(why)?;
        }
        Ok(missing)
    }

    fn write_range(self: &Arc<Self>, range: Range<u64>, buffers: &[IoSlice<'_>]) -> Result<()> {
        let wrong = self.wrong_padding(&range, buffers);
        let (overwrites, adds) = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            state.pieces.check_write(&range)?;
            let unknown = state.pieces.unknown(&range);
            let lacking = self.lacking(state, &unknown);
            let more = lacking.iter().map(length).sum();
            self.volume.take(more)?;
            state.room.charged += more;
            lacking.into_iter().for_each(|part| _ = state.room.held.insert(part));
            (unknown.iter().map(length).sum::<u64>() < length(&range), !unknown.is_empty())
        };
        // Old bytes must stay if there is no room for the new ones, so room is reserved before any write.
        if overwrites && adds {
            self.reserve(&range)?;
        }
        let done = self.write_segments(&range, buffers);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Err(error) = done {
            state.pieces.lost(range.clone());
            self.file_parts(&range).into_iter().for_each(|part| _ = state.room.held.insert(part));
            return Err(match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => {
                    Error::Io { what: CHANGED, source: error }
                }
                _ if overwrites => Error::Io { what: "writing content", source: error },
                _ => Error::io("the disk of the files")(error),
            });
        }
        state.pieces.wrote(range.clone());
        state.room.held.remove(&range);
        wrong.into_iter().for_each(|padding| state.pieces.lost(padding));
        let files = self.place.record.files.segments(range).filter(|segment| !self.is_padding(segment));
        state.dirty.extend(files.map(|segment| segment.file as u32));
        drop(guard);
        self.changed();
        Ok(())
    }

    /// Gives back the room of a failed write, and its bytes to the disk. Ranges that the disk keeps stay
    /// held.
    fn give_back(&self, range: &Range<u64>) {
        // No other write may be in progress there.
        let _alone = self.writing.write();
        let held: Vec<_> = self.state.lock().room.held.within(range).collect();
        for part in held.into_iter().filter(|part| self.punch(part)) {
            let room = &mut self.state.lock().room;
            let freed = room.held.remove(&part);
            room.charged -= freed;
            self.volume.used.fetch_sub(freed, Relaxed);
        }
    }
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[derive(Debug)]
pub(super) struct Handle(pub(super) Arc<FileTorrent>);

impl Content for Handle {
    forward! { it, it.0; geometry, room_for }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.0.geometry().range(offset, len)?;
        let _inside = self.0.enter()?;
        if !range.is_empty() {
            let writing = self.0.writing.read();
            let written = self.0.write_range(range.clone(), buffers);
            drop(writing);
            written.inspect_err(|_| self.0.give_back(&range))?;
            self.0.volume.counters.wrote(len);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.0.geometry().range(offset, len)?;
        let _inside = self.0.enter()?;
        self.0.state.lock().pieces.check_read(&range)?;
        if !range.is_empty() {
            self.0.read_segments(&range, buffers).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => Error::Io { what: CHANGED, source },
                _ => Error::Io { what: "reading content", source },
            })?;
            self.0.volume.counters.read(len);
        }
        Ok(())
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let _inside = self.0.enter()?;
        let _alone = self.0.writing.write();
        let mut state = self.0.state.lock();
        let new = state.pieces.mark_complete(piece)?;
        if new {
            state.fresh.insert(piece);
            drop(state);
            self.0.changed();
        }
        Ok(new)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let torrent = &*self.0;
        let range = torrent.geometry().piece(piece)?;
        if torrent.volume.read_only {
            return Err(Error::ReadOnly { why: "so is its file system" });
        }
        // Until all is done, the bit is not written again.
        let _bits = torrent.bits.lock();
        let sectors = {
            let _inside = torrent.enter()?;
            let state = torrent.state.lock();
            if !state.pieces.complete().contains(piece) {
                return Ok(false);
            }
            let on_disk = |other| !state.fresh.contains(&other) && !state.under_way.contains(&other);
            match on_disk(piece) {
                true => torrent.sectors(&state, StateRecord::sectors_of([piece]), |other| {
                    other != piece && on_disk(other)
                }),
                false => Vec::new(),
            }
        };
        if !sectors.is_empty()
            && let Err(error) = torrent.write_bits(&sectors)
        {
            // It may be cleared there, or not: the next flush sets it right.
            torrent.state.lock().unsure.insert(piece);
            self.0.changed();
            return Err(error);
        }
        let alone = torrent.gate.write();
        let mut state = torrent.state.lock();
        if !*alone {
            return Err(Error::Deleted);
        }
        state.fresh.remove(&piece);
        state.under_way.remove(&piece);
        state.unsure.remove(&piece);
        // A flush that failed may have been faster.
        let was_complete = state.pieces.mark_incomplete(piece)?;
        drop(state);
        if was_complete {
            let punched = torrent.punch(&range);
            let room = &mut torrent.state.lock().room;
            for part in torrent.file_parts(&range) {
                if punched {
                    room.charged -= length(&part);
                    torrent.volume.used.fetch_sub(length(&part), Relaxed);
                } else {
                    room.held.insert(part);
                }
            }
        }
        Ok(was_complete)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let _inside = self.0.enter()?;
        Ok(self.0.state.lock().pieces.complete().clone())
    }

    fn is_read_only(&self) -> bool {
        self.0.volume.read_only
    }
}

fn read_all(file: &File, mut at: u64, mut slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let most = slices.len().min(folder::MOST_BUFFERS);
        let read = retry_on_intr(|| rustix::io::preadv(file, &mut slices[..most], at))?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += read as u64;
        IoSliceMut::advance_slices(&mut slices, read);
    }
    Ok(())
}
