//! The oracle: content kept byte by byte, in the plainest way, and a log of durable events.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{File, OpenOptions},
    io::{IoSlice, IoSliceMut, Read, Write},
    ops::Range,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use swarmkeep_content::{
    Capabilities, Content, ContentConfig, ContentRepository, Counters, Error, Geometry, InfoHash, NewTorrent,
    PieceBits, Result, Statistics, Summary,
};

/// How many bytes are kept together.
const CHUNK: u64 = 4096;

/// How many bytes a torrent takes of the capacity.
pub(crate) const HEAD: u64 = 1 << 10;

/// Bytes of the longest label.
const LABEL: u32 = 300;

/// How many bytes it says it holds back.
pub(crate) const MOST_UNWRITTEN: u64 = 1 << 20;

/// The oracle of the suite: durable, bounded, and slow. It stands for no medium: its log is never flushed to
/// one.
pub struct Model {
    pub(crate) shared: Arc<SharedModel>,
}

pub(crate) struct SharedModel {
    state: Mutex<ModelState>,
    pub(crate) counters: Counters,
    pub(crate) most: Option<u64>,
}

#[derive(Default)]
pub(crate) struct ModelState {
    pub(crate) torrents: BTreeMap<InfoHash, ModelTorrent>,
    /// Torrents that were ever created, so that a handle knows its own.
    created: u64,
    pub(crate) used: u64,
    pub(crate) unwritten: u64,
    /// `None` in a model that nothing outlives.
    pub(crate) log: Option<File>,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelTorrent {
    id: u64,
    pub(crate) geometry: Geometry,
    pub(crate) label: Arc<[u8]>,
    /// Bytes that were never written are `None`, or their chunk is missing.
    pub(crate) chunks: BTreeMap<u64, Vec<Option<u8>>>,
    pub(crate) complete: BTreeSet<u32>,
    /// The durable ones of the complete pieces.
    pub(crate) durable: BTreeSet<u32>,
}

/// An event in the log, which is read when the store is opened again.
pub(crate) enum LogEvent<'a> {
    Created(Geometry),
    Deleted,
    Complete(u32, &'a [u8]),
    Incomplete(u32),
    Labelled(&'a [u8]),
}

impl Model {
    /// Opens the model that has its log in the folder of `config`.
    pub fn open(config: &ContentConfig) -> Result<Self> {
        let mut state = ModelState::default();
        let log = OpenOptions::new().create(true).read(true).append(true).open(config.folder.join("log"));
        let mut log = log.map_err(Error::io("opening the log"))?;
        let mut bytes = Vec::new();
        log.read_to_end(&mut bytes).map_err(Error::io("reading the log"))?;
        state.replay(&bytes);
        state.log = Some(log);
        Ok(Self::new(state, config.capacity))
    }

    pub(crate) fn in_memory() -> Self {
        Self::new(ModelState::default(), None)
    }

    fn new(state: ModelState, most: Option<u64>) -> Self {
        let shared = SharedModel { state: Mutex::new(state), counters: Counters::default(), most };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ModelState> {
        self.shared.state.lock()
    }

    /// Goes on as if it had been opened again: of the complete pieces, those are left that `survived`, and of
    /// the others nothing.
    pub(crate) fn reopen(&self, survived: impl Fn(InfoHash, u32) -> bool) {
        let mut state = self.state();
        let ModelState { torrents, created, .. } = &mut *state;
        for (&info_hash, torrent) in torrents {
            *created += 1;
            torrent.id = *created;
            torrent.complete.retain(|&piece| survived(info_hash, piece));
            torrent.durable = torrent.complete.clone();
            let geometry = torrent.geometry;
            for piece in
                (0..geometry.pieces()).filter(|piece| !torrent.durable.contains(piece)).collect::<Vec<_>>()
            {
                torrent.forget(&geometry.piece(piece).expect("it is one of them"));
            }
        }
    }

    /// Whether a piece must be complete when the store is opened again.
    pub(crate) fn is_durable(&self, info_hash: InfoHash, piece: u32) -> bool {
        self.state().torrents.get(&info_hash).is_some_and(|torrent| torrent.durable.contains(&piece))
    }

    pub(crate) fn handle(&self, state: &ModelState, info_hash: InfoHash) -> Option<ModelContent> {
        let torrent = state.torrents.get(&info_hash)?;
        let shared = Arc::clone(&self.shared);
        Some(ModelContent { shared, info_hash, id: torrent.id, geometry: torrent.geometry })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model of {} torrents", self.state().torrents.len())
    }
}

impl SharedModel {
    pub(crate) fn check_room(&self, state: &ModelState, bytes: u64) -> Result<()> {
        match self.most {
            Some(most) if state.used + bytes > most => Err(Error::Full { what: "the model" }),
            _ => Ok(()),
        }
    }
}

impl ModelState {
    pub(crate) fn create(&mut self, torrent: &NewTorrent) {
        self.created += 1;
        self.used += HEAD;
        let created = ModelTorrent {
            id: self.created,
            geometry: torrent.geometry,
            label: Arc::default(),
            chunks: BTreeMap::new(),
            complete: BTreeSet::new(),
            durable: BTreeSet::new(),
        };
        self.torrents.insert(torrent.info_hash, created);
    }

    pub(crate) fn delete(&mut self, info_hash: &InfoHash) -> Option<ModelTorrent> {
        let torrent = self.torrents.remove(info_hash)?;
        self.used -= HEAD + torrent.written(&(0..torrent.geometry.len()));
        Some(torrent)
    }

    pub(crate) fn log(&mut self, info_hash: InfoHash, event: &LogEvent<'_>) -> Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let hash = &info_hash.as_bytes()[..];
        let record = match event {
            LogEvent::Created(geometry) => {
                let (len, piece_length) = (geometry.len(), geometry.piece_length());
                [&[0], hash, &len.to_le_bytes(), &piece_length.to_le_bytes()].concat()
            }
            LogEvent::Deleted => [&[1], hash].concat(),
            LogEvent::Complete(piece, bytes) => [&[2], hash, &piece.to_le_bytes(), bytes].concat(),
            LogEvent::Incomplete(piece) => [&[3], hash, &piece.to_le_bytes()].concat(),
            LogEvent::Labelled(label) => [&[4], hash, &(label.len() as u32).to_le_bytes(), label].concat(),
        };
        log.write_all(&record).map_err(Error::io("writing the log"))
    }

    fn replay(&mut self, mut log: &[u8]) {
        fn take<'a>(log: &mut &'a [u8], len: usize) -> &'a [u8] {
            let (now, later) = log.split_at(len);
            *log = later;
            now
        }
        fn number(log: &mut &[u8]) -> u32 {
            u32::from_le_bytes(take(log, 4).try_into().expect("4 bytes"))
        }
        while !log.is_empty() {
            let kind = take(&mut log, 1)[0];
            let info_hash = InfoHash::new(take(&mut log, 20).try_into().expect("20 bytes"));
            if kind == 0 {
                let length = u64::from_le_bytes(take(&mut log, 8).try_into().expect("8 bytes"));
                let torrent = NewTorrent::new(info_hash, length, number(&mut log));
                self.create(&torrent.expect("it was created once"));
                continue;
            }
            if kind == 1 {
                self.delete(&info_hash);
                continue;
            }
            let piece = number(&mut log);
            let torrent = self.torrents.get_mut(&info_hash).expect("it was created before");
            if kind == 4 {
                torrent.label = take(&mut log, piece as usize).into();
                continue;
            }
            let range = torrent.geometry.piece(piece).expect("it has such a piece");
            self.used -= torrent.forget(&range);
            torrent.complete.remove(&piece);
            if kind == 2 {
                torrent.write(range.start, take(&mut log, (range.end - range.start) as usize));
                self.used += range.end - range.start;
                torrent.complete.insert(piece);
            }
            torrent.durable = torrent.complete.clone();
        }
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.unwritten = 0;
        let hashes: Vec<_> = self.torrents.keys().copied().collect();
        for info_hash in hashes {
            let torrent = &self.torrents[&info_hash];
            let pieces: Vec<_> = torrent.complete.difference(&torrent.durable).copied().collect();
            for piece in pieces {
                let torrent = &self.torrents[&info_hash];
                let bytes = torrent.read(&torrent.geometry.piece(piece)?)?;
                self.log(info_hash, &LogEvent::Complete(piece, &bytes))?;
                self.torrents.get_mut(&info_hash).expect("it was there").durable.insert(piece);
            }
        }
        Ok(())
    }
}

impl ModelTorrent {
    /// The chunks of a range, and which of their bytes belong to it.
    fn chunks(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let Range { start, end } = range.clone();
        let chunks = if start < end { start / CHUNK..end.div_ceil(CHUNK) } else { 0..0 };
        chunks.map(move |chunk| {
            let base = chunk * CHUNK;
            (chunk, (start.max(base) - base) as usize..(end.min(base + CHUNK) - base) as usize)
        })
    }

    pub(crate) fn written(&self, range: &Range<u64>) -> u64 {
        let written = |(chunk, within): (u64, Range<usize>)| {
            self.chunks.get(&chunk).map_or(0, |bytes| bytes[within].iter().flatten().count())
        };
        // From chunk to chunk that is there: a torrent may be long and have few bytes.
        self.chunks
            .range(range.start / CHUNK..range.end.div_ceil(CHUNK))
            .flat_map(|(&chunk, _)| {
                Self::chunks(&(range.start.max(chunk * CHUNK)..range.end.min((chunk + 1) * CHUNK)))
            })
            .map(written)
            .sum::<usize>() as u64
    }

    /// Returns how many of them were not written before.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> u64 {
        let range = offset..offset + bytes.len() as u64;
        let mut new = 0;
        let mut rest = bytes;
        for (chunk, within) in Self::chunks(&range) {
            let held = self.chunks.entry(chunk).or_insert_with(|| vec![None; CHUNK as usize]);
            let (now, later) = rest.split_at(within.len());
            for (old, &byte) in held[within].iter_mut().zip(now) {
                new += u64::from(old.replace(byte).is_none());
            }
            rest = later;
        }
        new
    }

    /// Returns how many of them were written.
    pub(crate) fn forget(&mut self, range: &Range<u64>) -> u64 {
        let mut forgotten = 0;
        for (chunk, within) in Self::chunks(range) {
            if let Some(bytes) = self.chunks.get_mut(&chunk) {
                bytes[within].iter_mut().for_each(|byte| forgotten += u64::from(byte.take().is_some()));
            }
        }
        forgotten
    }

    pub(crate) fn read(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for (chunk, within) in Self::chunks(range) {
            let missing = |byte: usize| Error::NotWritten { at: chunk * CHUNK + byte as u64 };
            let bytes = self.chunks.get(&chunk).ok_or_else(|| missing(within.start))?;
            for byte in within {
                all.push(bytes[byte].ok_or_else(|| missing(byte))?);
            }
        }
        Ok(all)
    }

    pub(crate) fn first_complete(&self, range: &Range<u64>) -> Option<u32> {
        self.geometry.pieces_of(range).find(|piece| self.complete.contains(piece))
    }

    pub(crate) fn pieces(&self) -> PieceBits {
        let mut bits = PieceBits::none(self.geometry.pieces());
        self.complete.iter().for_each(|&piece| _ = bits.insert(piece));
        bits
    }
}

impl ContentRepository for Model {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let mut state = self.state();
        if state.torrents.contains_key(&torrent.info_hash) {
            return Err(Error::Exists(torrent.info_hash));
        }
        self.shared.check_room(&state, HEAD)?;
        state.create(torrent);
        state.log(torrent.info_hash, &LogEvent::Created(torrent.geometry))?;
        Ok(Arc::new(self.handle(&state, torrent.info_hash).expect("it was just created")))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let handle = self.handle(&self.state(), *info_hash).ok_or(Error::NotFound(*info_hash))?;
        Ok(Arc::new(handle))
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let summary = |(&info_hash, torrent): (&InfoHash, &ModelTorrent)| Summary {
            info_hash,
            geometry: torrent.geometry,
            complete: torrent.complete.len() as u32,
        };
        Ok(self.state().torrents.iter().map(summary).collect())
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let mut state = self.state();
        let deleted = state.delete(info_hash).is_some();
        if deleted {
            state.log(*info_hash, &LogEvent::Deleted)?;
        }
        Ok(deleted)
    }

    fn flush(&self) -> Result<()> {
        self.shared.counters.flushed();
        self.state().flush()
    }

    fn statistics(&self) -> Statistics {
        let state = self.state();
        let mut told = self.shared.counters.statistics();
        (told.torrents, told.used) = (state.torrents.len() as u64, state.used);
        told.free = self.shared.most.map(|most| most.saturating_sub(state.used));
        (told.unwritten, told.most_unwritten) = (state.unwritten, MOST_UNWRITTEN);
        told
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(1 << 16).durable().bounded().labels(LABEL)
    }

    fn label(&self, info_hash: &InfoHash) -> Result<Arc<[u8]>> {
        let state = self.state();
        state.torrents.get(info_hash).map(|torrent| torrent.label.clone()).ok_or(Error::NotFound(*info_hash))
    }

    fn set_label(&self, info_hash: &InfoHash, label: &[u8]) -> Result<()> {
        let mut state = self.state();
        if label.len() > LABEL as usize {
            return Err(Error::Unsupported("keep so long a label"));
        }
        let torrent = state.torrents.get_mut(info_hash).ok_or(Error::NotFound(*info_hash))?;
        torrent.label = label.into();
        state.log(*info_hash, &LogEvent::Labelled(label))
    }
}

pub(crate) fn fill(buffers: &mut [IoSliceMut<'_>], mut bytes: &[u8]) {
    for buffer in buffers {
        bytes.read_exact(buffer).expect("as many");
    }
}

#[derive(Clone)]
pub(crate) struct ModelContent {
    pub(crate) shared: Arc<SharedModel>,
    pub(crate) info_hash: InfoHash,
    id: u64,
    pub(crate) geometry: Geometry,
}

impl ModelContent {
    pub(crate) fn state(&self) -> MutexGuard<'_, ModelState> {
        self.shared.state.lock()
    }

    /// Finds the torrent of this handle, and no other of the same info hash.
    pub(crate) fn torrent<'a>(&self, state: &'a mut ModelState) -> Result<&'a mut ModelTorrent> {
        state.torrents.get_mut(&self.info_hash).filter(|torrent| torrent.id == self.id).ok_or(Error::Deleted)
    }
}

impl fmt::Debug for ModelContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the model", self.info_hash)
    }
}

impl Content for ModelContent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let range = self.geometry.range(offset, bytes.len() as u64)?;
        let mut state = self.state();
        let torrent = self.torrent(&mut state)?;
        if let Some(piece) = torrent.first_complete(&range) {
            return Err(Error::Complete { piece });
        }
        if range.is_empty() {
            return Ok(());
        }
        let needed = bytes.len() as u64 - torrent.written(&range);
        self.shared.check_room(&state, needed)?;
        state.used += self.torrent(&mut state)?.write(offset, &bytes);
        // Stands for a store that writes out its held bytes when the next write does not fit, and never holds
        // a write that cannot fit.
        let held = state.unwritten + bytes.len() as u64;
        state.unwritten = if held > MOST_UNWRITTEN { 0 } else { held };
        self.shared.counters.wrote(bytes.len() as u64);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.geometry.range(offset, len)?;
        let bytes = self.torrent(&mut self.state())?.read(&range)?;
        fill(buffers, &bytes);
        self.shared.counters.read(len);
        Ok(())
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let mut state = self.state();
        let torrent = self.torrent(&mut state)?;
        let range = torrent.geometry.piece(piece)?;
        torrent.read(&range)?;
        Ok(torrent.complete.insert(piece))
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let mut state = self.state();
        let torrent = self.torrent(&mut state)?;
        let range = torrent.geometry.piece(piece)?;
        if !torrent.complete.remove(&piece) {
            return Ok(false);
        }
        torrent.durable.remove(&piece);
        let freed = torrent.forget(&range);
        state.used -= freed;
        state.log(self.info_hash, &LogEvent::Incomplete(piece))?;
        Ok(true)
    }

    fn pieces(&self) -> Result<PieceBits> {
        Ok(self.torrent(&mut self.state())?.pieces())
    }
}
