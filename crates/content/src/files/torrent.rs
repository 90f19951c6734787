//! One torrent: its bytes in its files, and what is known of them.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem,
    ops::Range,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::{
    fs::{FallocateFlags, OFlags},
    io::Errno,
};
use swarmkeep_bittorrent::metainfo::Segment;

use super::{
    Allocation, folder,
    folder::Walk,
    state::{Loaded, Record},
    store::{Shared, Step},
};
use crate::{Content, Error, Geometry, PieceBits, Pieces, Result};

/// What is said of a file that is not as the store left it.
const CHANGED: &str =
    "a file of the torrent is gone or has lost its end: open the store again, so that it is missed";

/// A torrent. Locks are taken in the order of the fields; none but `bits` is held while anything is flushed, and what waits for `bits` waits for
/// this torrent alone.
#[derive(Debug)]
pub(super) struct Torrent {
    /// What tells it from one of the same info hash that was there before.
    id: u64,
    pub(super) record: Record,
    /// The names of the folders and of the file itself begin with this one, unless it is empty.
    place: Option<String>,
    /// Where in its state the have-bits begin.
    bits_at: u64,
    /// Bytes of its state.
    pub(super) state_len: u64,
    pub(super) shared: Arc<Shared>,
    /// Whether it is there. Held by who reads, writes or marks, and alone by who deletes it or takes back a piece.
    pub(super) gate: RwLock<bool>,
    /// Held by who writes, and alone by who marks a piece complete.
    writing: RwLock<()>,
    /// Held by who writes to its state; `false` when that is no longer to be.
    pub(super) bits: Mutex<bool>,
    state: Mutex<State>,
    /// Whether it is among those that a flush has to do with.
    listed: AtomicBool,
}

#[derive(Debug)]
struct State {
    pieces: Pieces,
    /// Complete pieces that are not so on the disk.
    fresh: BTreeSet<u32>,
    /// Complete pieces whose bits are being written, or were written and may not have arrived.
    under_way: BTreeSet<u32>,
    /// Files with bytes that may not have arrived.
    dirty: BTreeSet<u32>,
    room: Room,
}

/// Which part of the capacity the torrent has.
#[derive(Debug, Default)]
struct Room {
    /// Bytes that can be read.
    known: u64,
    /// Bytes of writes that are under way.
    pending: u64,
    /// Bytes that are taken from the disk and cannot be read: by what was written before the store was opened, by files that have all their
    /// room, by padding, which has its room so that no write of it ever lacks it.
    idle: u64,
    /// What the store counts for the torrent: the sum of these, but no more than its length.
    charged: u64,
}

impl Torrent {
    pub(super) fn new(loaded: Loaded, shared: &Arc<Shared>, idle: u64) -> Self {
        let Loaded { record, complete, bits, len, unknown: _ } = loaded;
        let pieces = Pieces::with_complete(record.geometry, complete);
        let length = record.geometry.len();
        let known = pieces.known(&(0..length));
        let room = Room { known, idle, ..Room::default() };
        Self {
            id: shared.next_id(),
            place: record.apart.then(|| record.info_hash.to_string()),
            record,
            bits_at: bits,
            state_len: len,
            shared: Arc::clone(shared),
            gate: RwLock::new(true),
            writing: RwLock::new(()),
            bits: Mutex::new(true),
            state: Mutex::new(State {
                pieces,
                fresh: BTreeSet::new(),
                under_way: BTreeSet::new(),
                dirty: BTreeSet::new(),
                room,
            }),
            listed: AtomicBool::new(false),
        }
    }

    /// Counts what it takes of the capacity, which may have been made smaller since.
    pub(super) fn charge_all(&self) {
        let room = &mut self.state.lock().room;
        room.charged = room.target(self.record.geometry);
        self.shared.used.fetch_add(room.charged, Relaxed);
    }

    /// Its room was taken before it was there.
    pub(super) fn charged_already(&self) {
        let room = &mut self.state.lock().room;
        room.charged = room.target(self.record.geometry);
    }

    pub(super) fn charged(&self) -> u64 {
        self.state.lock().room.charged
    }

    pub(super) fn complete(&self) -> u32 {
        self.state.lock().pieces.complete().count()
    }

    pub(super) fn close_files(&self) {
        self.shared.open_files.close(self.id);
    }

    /// Keeps the torrent from being deleted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let there = self.gate.read();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    /// Keeps everybody else out of the torrent.
    pub(super) fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, bool>> {
        let there = self.gate.write();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    /// Notes that the torrent has something to flush.
    pub(super) fn changed(self: &Arc<Self>) {
        if !self.listed.swap(true, Relaxed) {
            self.shared.changed.lock().push(Arc::downgrade(self));
        }
    }

    /// Where a file lies, from the store's folder on.
    pub(super) fn path(&self, index: usize) -> Vec<&str> {
        let file = self.record.files.get(index).expect("it comes from the list");
        self.place.as_deref().into_iter().chain(file.path()).collect()
    }

    fn file(&self, index: usize, writable: bool) -> io::Result<Arc<File>> {
        let file = self.shared.open_files.get(self.id, index as u32, writable, || {
            let path = self.path(index);
            let (name, folders) = path.split_last().expect("a file has a name");
            let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
            folder::open(folder::to(&self.shared.folder, folders)?.as_fd(), name, flags, 0)
        })?;
        if writable {
            // Writing on would make a hole of what it has lost, and a hole reads as zeroes.
            let there = file.metadata()?;
            let length = self.record.files.get(index).expect("it comes from the list").length();
            if there.nlink() == 0 || there.len() < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(file)
    }

    fn is_padding(&self, segment: &Segment) -> bool {
        self.record.files.get(segment.file).is_some_and(|file| file.is_padding())
    }

    fn write_segments(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        let mut rest = Parts::new(buffers.iter().map(|buffer| &**buffer));
        for segment in self.record.files.segments(range.clone()) {
            let parts = rest.take(segment.length);
            if self.is_padding(&segment) {
                continue;
            }
            self.shared.step(Step::Write(segment.file))?;
            let file = self.file(segment.file, true)?;
            let mut slices: Vec<_> = parts.into_iter().map(IoSlice::new).collect();
            write_all(&file, segment.offset, &mut slices)?;
        }
        Ok(())
    }

    /// Takes the disk's room for a range that is written to in part.
    fn reserve(&self, range: &Range<u64>) -> Result<()> {
        for segment in self.record.files.segments(range.clone()).filter(|segment| !self.is_padding(segment)) {
            let file = self.file(segment.file, true).map_err(Error::io(CHANGED))?;
            let flags = FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&*file, flags, segment.offset, segment.length) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(Error::io("the disk that the files lie on")(error.into())),
            }
        }
        Ok(())
    }

    fn read_segments(&self, range: &Range<u64>, buffers: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut rest = Parts::new(buffers.iter_mut().map(|buffer| &mut **buffer));
        for segment in self.record.files.segments(range.clone()) {
            let mut parts = rest.take(segment.length);
            if self.is_padding(&segment) {
                parts.iter_mut().for_each(|part| part.fill(0));
                continue;
            }
            let file = self.file(segment.file, false)?;
            let mut slices: Vec<_> = parts.into_iter().map(IoSliceMut::new).collect();
            read_all(&file, segment.offset, &mut slices)?;
        }
        Ok(())
    }

    /// Where in a range somebody wrote something else than zeroes to padding.
    fn wrong_padding(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> Vec<Range<u64>> {
        let mut rest = Parts::new(buffers.iter().map(|buffer| &**buffer));
        let mut at = range.start;
        let mut wrong = Vec::new();
        for segment in self.record.files.segments(range.clone()) {
            let parts = rest.take(segment.length);
            let zero = |part: &&[u8]| part.iter().all(|byte| *byte == 0);
            if self.is_padding(&segment) && !parts.iter().all(zero) {
                wrong.push(at..at + segment.length);
            }
            at += segment.length;
        }
        wrong
    }

    /// Begins a flush, and gives the files that have something to flush. Pieces that are marked from now on are for the next one.
    pub(super) fn begin_flush(self: &Arc<Self>) -> BTreeSet<u32> {
        self.listed.store(false, Relaxed);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.under_way.append(&mut state.fresh);
        mem::take(&mut state.dirty)
    }

    pub(super) fn flush_file(&self, index: u32) -> Result<()> {
        let flushed = self.shared.step(Step::Flush(index as usize)).and_then(|()| {
            // Whoever wrote, and however it was opened then: it is the file that is flushed.
            Ok(rustix::fs::fdatasync(&*self.file(index as usize, false)?)?)
        });
        flushed.or_else(|source| {
            // Of what was deleted meanwhile nothing can be lost.
            if !*self.bits.lock() {
                return Ok(());
            }
            self.lose(index as usize);
            Err(Error::Io { what: "flushing a file of a torrent", source })
        })
    }

    /// Makes durable which pieces are complete, of those whose files are flushed.
    pub(super) fn flush_bits(&self) -> Result<()> {
        let writable = self.bits.lock();
        let sectors = {
            let state = self.state.lock();
            let sectors = Record::sectors_of(state.under_way.iter().copied());
            self.sectors(&state, sectors, |piece| !state.fresh.contains(&piece))
        };
        if sectors.is_empty() || !*writable {
            return Ok(());
        }
        self.write_bits(&sectors)?;
        // Nobody else has taken any of them in between: that takes `bits`.
        self.state.lock().under_way.clear();
        Ok(())
    }

    fn sectors(
        &self,
        state: &State,
        sectors: BTreeSet<u32>,
        counts: impl Fn(u32) -> bool,
    ) -> Vec<(u64, [u8; 512])> {
        let complete = state.pieces.complete();
        let place = |index| self.bits_at + Record::place(index);
        sectors
            .into_iter()
            .map(|index| (place(index), self.record.sector(index, complete, &counts)))
            .collect()
    }

    /// Writes sectors in their place. A crash leaves each as it was or as it is to be: both are true, as bits are set when what they stand
    /// for is durable, and cleared before it changes.
    fn write_bits(&self, sectors: &[(u64, [u8; 512])]) -> Result<()> {
        let written = (|| {
            self.shared.step(Step::WriteBits)?;
            let name = self.record.info_hash.to_string();
            let file = folder::open(&self.shared.states, &name, OFlags::WRONLY, 0)?;
            sectors.iter().try_for_each(|(at, sector)| file.write_all_at(sector, *at))?;
            self.shared.step(Step::FlushBits)?;
            Ok(rustix::fs::fdatasync(&file)?)
        })();
        written.map_err(|source| Error::Io { what: "writing which pieces are complete", source })
    }

    /// Forgets what a file holds that is not durable: it may be written, or not, and the system may tell only once.
    fn lose(&self, file: usize) {
        // Who writes now may have written before the error and tell after it.
        let _alone = self.gate.write();
        let range = self.record.files.get(file).expect("it comes from the list").range();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for piece in self.record.geometry.pieces_of(&range) {
            if state.fresh.remove(&piece) | state.under_way.remove(&piece) {
                state.pieces.mark_incomplete(piece).expect("the torrent has it");
            }
        }
        state.pieces.lost(range);
        let length = self.record.geometry.len();
        let known = state.pieces.known(&(0..length));
        state.room.idle += state.room.known.saturating_sub(known);
        state.room.known = known;
    }

    /// Gives the disk what a piece took, which is forgotten; `false` if it keeps it.
    fn punch(&self, range: &Range<u64>) -> bool {
        self.shared.allocation == Allocation::Sparse
            && self.record.files.segments(range.clone()).filter(|segment| !self.is_padding(segment)).all(
                |segment| {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    self.file(segment.file, true).is_ok_and(|file| {
                        rustix::fs::fallocate(&*file, flags, segment.offset, segment.length).is_ok()
                    })
                },
            )
    }

    /// Looks whether its files are there and as long as they should be; what is not so is no longer complete, and made anew. Gives the files
    /// that were not, and how many pieces each has cost.
    ///
    /// Called before anybody else knows of the torrent.
    pub(super) fn miss_files(&self) -> Result<Vec<(usize, u32)>> {
        let mut walk = Walk::new(self.shared.folder.as_fd());
        let mut allocated = 0;
        let mut missing = Vec::new();
        for file in self.record.files.iter() {
            if file.is_padding() {
                allocated += file.length();
                continue;
            }
            let path = self.path(file.index());
            let (name, folders) = path.split_last().expect("a file has a name");
            let stat = walk.to(folders, false).and_then(|at| folder::stat(at, name));
            match stat {
                Ok(stat) if folder::is_file(&stat) && stat.st_size as u64 == file.length() => {
                    allocated += file.length().min(512 * stat.st_blocks as u64);
                }
                _ => missing.push((file.index(), 0)),
            }
        }
        drop(walk);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut cleared = BTreeSet::new();
        for (index, cost) in &mut missing {
            let range = self.record.files.get(*index).expect("it comes from the list").range();
            for piece in self.record.geometry.pieces_of(&range) {
                if state.pieces.mark_incomplete(piece)? {
                    *cost += 1;
                    cleared.insert(piece);
                }
            }
        }
        let length = self.record.geometry.len();
        state.room.known = state.pieces.known(&(0..length));
        state.room.idle = allocated.saturating_sub(state.room.known);
        let sectors = self.sectors(state, Record::sectors_of(cleared), |_| true);
        drop(guard);
        if !sectors.is_empty() {
            // Before there is a hole in the place of what was complete.
            self.write_bits(&sectors)?;
        }
        let mut walk = Walk::new(self.shared.folder.as_fd());
        for (index, _) in &missing {
            // What cannot be made is an error to who writes there.
            let _ = self.make_file(&mut walk, *index, &self.path(*index));
        }
        Ok(missing)
    }

    /// Makes a file as long as it is to be, by that path.
    fn make_file(&self, walk: &mut Walk<'_>, index: usize, path: &[&str]) -> Result<()> {
        let file = self.record.files.get(index).expect("it comes from the list");
        let failed = || Error::io("making the files of a torrent");
        let (name, folders) = path.split_last().expect("a file has a name");
        let at = walk.to(folders, true).map_err(failed())?;
        let mode = if file.is_executable() { 0o777 } else { 0o666 };
        let made = folder::open(at, name, OFlags::RDWR | OFlags::CREATE, mode).map_err(failed())?;
        if self.shared.allocation == Allocation::Preallocated && file.length() > 0 {
            match rustix::fs::fallocate(&made, FallocateFlags::empty(), 0, file.length()) {
                Err(Errno::OPNOTSUPP) => {
                    return Err(Error::Unsupported("take the room of files at once on this file system"));
                }
                done => done.map_err(io::Error::from).map_err(failed())?,
            }
        }
        // It is not flushed: a file that a crash undoes is made again when the store is opened, and nothing of it was complete.
        made.set_len(file.length()).map_err(failed())?;
        Ok(())
    }

    /// Makes all files below a folder, where they are not yet in their place.
    pub(super) fn make_files(&self, below: &impl AsFd) -> Result<()> {
        let mut walk = Walk::new(below.as_fd());
        for file in self.record.files.iter().filter(|file| !file.is_padding()) {
            self.make_file(&mut walk, file.index(), &file.path())?;
        }
        Ok(())
    }

    fn write_range(self: &Arc<Self>, range: Range<u64>, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = range.end - range.start;
        let new = {
            let mut state = self.state.lock();
            state.pieces.check_write(&range)?;
            let new = (range.end - range.start) - state.pieces.known(&range);
            state.room.begin(new, self.record.geometry, &self.shared)?;
            new
        };
        let overwrites = new < len;
        // Bytes that were there stay if there is no room for the others: so that is seen to before any is written.
        let reserved = if overwrites && new > 0 { self.reserve(&range) } else { Ok(()) };
        let written = reserved.and_then(|()| {
            let done = self.write_segments(&range, buffers);
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let still_new = (range.end - range.start) - state.pieces.known(&range);
            match done {
                Ok(()) => {
                    state.pieces.wrote(range.clone());
                    state.room.known += still_new;
                    for padding in self.wrong_padding(&range, buffers) {
                        state.room.known -= padding.end - padding.start;
                        state.pieces.lost(padding);
                    }
                    let segments = self.record.files.segments(range);
                    let files = segments.filter(|segment| !self.is_padding(segment));
                    state.dirty.extend(files.map(|segment| segment.file as u32));
                    Ok(())
                }
                Err(error) => {
                    state.pieces.lost(range);
                    state.room.known -= len - still_new;
                    match error.kind() {
                        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => {
                            Err(Error::Io { what: CHANGED, source: error })
                        }
                        _ if overwrites => Err(Error::Io { what: "writing content", source: error }),
                        _ => Err(Error::io("the disk that the files lie on")(error)),
                    }
                }
            }
        });
        self.state.lock().room.end(new, self.record.geometry, &self.shared);
        if written.is_ok() {
            self.changed();
        }
        written
    }
}

impl Room {
    fn target(&self, geometry: Geometry) -> u64 {
        let sum = self.known.saturating_add(self.pending).saturating_add(self.idle);
        sum.min(geometry.len())
    }

    /// Takes room for so many more bytes.
    fn begin(&mut self, new: u64, geometry: Geometry, shared: &Shared) -> Result<()> {
        self.pending += new;
        let more = self.target(geometry).saturating_sub(self.charged);
        let taken = shared.take(more);
        match taken {
            Ok(()) => self.charged += more,
            Err(_) => self.pending -= new,
        }
        taken
    }

    /// Gives back what was not needed of it.
    fn end(&mut self, new: u64, geometry: Geometry, shared: &Shared) {
        self.pending -= new;
        self.settle(geometry, shared);
    }

    fn settle(&mut self, geometry: Geometry, shared: &Shared) {
        let target = self.target(geometry);
        shared.used.fetch_sub(self.charged.saturating_sub(target), Relaxed);
        self.charged = self.charged.min(target);
    }
}

/// A torrent that was opened.
#[derive(Debug)]
pub(super) struct Handle(pub(super) Arc<Torrent>);

impl Content for Handle {
    fn geometry(&self) -> Geometry {
        self.0.record.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.0.record.geometry.range(offset, len)?;
        let _inside = self.0.enter()?;
        let _writing = self.0.writing.read();
        if !range.is_empty() {
            self.0.write_range(range, buffers)?;
            self.0.shared.counters.wrote(len);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.0.record.geometry.range(offset, len)?;
        let _inside = self.0.enter()?;
        self.0.state.lock().pieces.check_read(&range)?;
        if !range.is_empty() {
            self.0.read_segments(&range, buffers).map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => Error::Io { what: CHANGED, source },
                _ => Error::Io { what: "reading content", source },
            })?;
            self.0.shared.counters.read(len);
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
        let range = torrent.record.geometry.piece(piece)?;
        let _alone = torrent.enter_alone()?;
        let _bits = torrent.bits.lock();
        let sectors = {
            let state = torrent.state.lock();
            if !state.pieces.complete().contains(piece) {
                return Ok(false);
            }
            let on_disk =
                |other| other != piece && !state.fresh.contains(&other) && !state.under_way.contains(&other);
            match state.fresh.contains(&piece) {
                true => Vec::new(),
                false => torrent.sectors(&state, Record::sectors_of([piece]), on_disk),
            }
        };
        if !sectors.is_empty()
            && let Err(error) = torrent.write_bits(&sectors)
        {
            // It may be cleared there, or not: the next flush sets it right.
            torrent.state.lock().under_way.insert(piece);
            self.0.changed();
            return Err(error);
        }
        let punched = torrent.punch(&range);
        let mut state = torrent.state.lock();
        state.pieces.mark_incomplete(piece)?;
        state.fresh.remove(&piece);
        state.under_way.remove(&piece);
        let len = range.end - range.start;
        state.room.known -= len;
        if !punched {
            state.room.idle += len;
        }
        state.room.settle(torrent.record.geometry, &torrent.shared);
        Ok(true)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let _inside = self.0.enter()?;
        Ok(self.0.state.lock().pieces.complete().clone())
    }
}

/// What is left of a list of buffers.
struct Parts<B, I: Iterator<Item = B>> {
    first: Option<B>,
    rest: I,
}

/// A buffer that can be cut in two.
trait Buffer: Sized {
    fn size(&self) -> usize;
    fn cut(self, at: usize) -> (Self, Self);
}

impl Buffer for &[u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Buffer for &mut [u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

impl<B: Buffer, I: Iterator<Item = B>> Parts<B, I> {
    fn new(rest: I) -> Self {
        Self { first: None, rest }
    }

    /// The next so many bytes, which there are.
    fn take(&mut self, mut len: u64) -> Vec<B> {
        let mut taken = Vec::new();
        while len > 0 {
            let buffer =
                self.first.take().or_else(|| self.rest.next()).expect("the parts are as long as the buffers");
            let at = buffer.size().min(usize::try_from(len).unwrap_or(usize::MAX));
            let (now, later) = buffer.cut(at);
            len -= at as u64;
            if at > 0 {
                taken.push(now);
            }
            if later.size() > 0 {
                self.first = Some(later);
            }
        }
        taken
    }
}

/// Linux takes 1,024 buffers in a call (`IOV_MAX`).
const MOST_BUFFERS: usize = 1024;

fn write_all(file: &File, mut at: u64, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let most = slices.len().min(MOST_BUFFERS);
        match rustix::io::pwritev(file, &slices[..most], at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_all(file: &File, mut at: u64, mut slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let most = slices.len().min(MOST_BUFFERS);
        match rustix::io::preadv(file, &mut slices[..most], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                at += read as u64;
                IoSliceMut::advance_slices(&mut slices, read);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
