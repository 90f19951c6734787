//! Content in memory: for tests, for streaming, and to compare the other stores with.

use std::{
    collections::HashMap,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::{
    Capabilities, Content, ContentConfig, ContentRepository, Counters, Error, Geometry, InfoHash, NewTorrent,
    PieceBits, Pieces, Result, Statistics, Summary,
};

/// Bytes of an allocation: a torrent takes memory as it is written.
const CHUNK: usize = 1 << 18;

/// Content in memory, which is lost with the store. A torrent takes memory in chunks of 256 KiB, as they are
/// written.
#[derive(Debug)]
pub struct Memory {
    torrents: RwLock<HashMap<InfoHash, Arc<MemoryTorrent>>>,
    shared: Arc<Usage>,
}

#[derive(Debug)]
struct Usage {
    most: u64,
    used: AtomicU64,
    counters: Counters,
}

#[derive(Debug)]
struct MemoryTorrent {
    geometry: Geometry,
    shared: Arc<Usage>,
    /// `None` once it has been deleted.
    held: RwLock<Option<Mutex<TorrentContent>>>,
}

#[derive(Debug)]
struct TorrentContent {
    pieces: Pieces,
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Memory {
    /// An empty store. Nothing lies in the folder of `config`.
    pub fn new(config: &ContentConfig) -> Self {
        let shared = Usage {
            most: config.capacity.unwrap_or(u64::MAX),
            used: AtomicU64::new(0),
            counters: Counters::default(),
        };
        Self { torrents: RwLock::default(), shared: Arc::new(shared) }
    }
}

impl ContentRepository for Memory {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let mut torrents = self.torrents.write();
        if torrents.contains_key(&torrent.info_hash) {
            return Err(Error::Exists(torrent.info_hash));
        }
        let geometry = torrent.geometry;
        let chunks = usize::try_from(geometry.len().div_ceil(CHUNK as u64))
            .map_err(|_| Error::Full { what: "the list of a torrent's chunks" })?;
        let mut list = Vec::new();
        list.try_reserve_exact(chunks).map_err(|_| Error::Full { what: "the list of a torrent's chunks" })?;
        list.resize_with(chunks, || None);
        let held = TorrentContent { pieces: Pieces::new(geometry), chunks: list };
        let created = Arc::new(MemoryTorrent {
            geometry,
            shared: Arc::clone(&self.shared),
            held: RwLock::new(Some(Mutex::new(held))),
        });
        torrents.insert(torrent.info_hash, Arc::clone(&created));
        Ok(created)
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        match self.torrents.read().get(info_hash) {
            Some(torrent) => Ok(Arc::clone(torrent) as Arc<dyn Content>),
            None => Err(Error::NotFound(*info_hash)),
        }
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let torrents = self.torrents.read();
        let mut all: Vec<_> = torrents
            .iter()
            .filter_map(|(&info_hash, torrent)| {
                let complete = torrent.with(|held| Ok(held.pieces.complete().count())).ok()?;
                Some(Summary { info_hash, geometry: torrent.geometry, complete })
            })
            .collect();
        all.sort_unstable_by_key(|summary| summary.info_hash);
        Ok(all)
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let Some(torrent) = self.torrents.write().remove(info_hash) else {
            return Ok(false);
        };
        let held = torrent.held.write().take().expect("only its removal from the map empties it");
        let taken = held.into_inner().chunks.iter().flatten().map(|chunk| chunk.len() as u64).sum();
        self.shared.used.fetch_sub(taken, Relaxed);
        Ok(true)
    }

    fn flush(&self) -> Result<()> {
        self.shared.counters.flushed();
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        let used = self.shared.used.load(Relaxed);
        Statistics {
            torrents: self.torrents.read().len() as u64,
            used,
            free: (self.shared.most != u64::MAX).then(|| self.shared.most - used),
            ..self.shared.counters.statistics()
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(CHUNK as u32).bounded()
    }
}

impl MemoryTorrent {
    fn with<T>(&self, work: impl FnOnce(&mut TorrentContent) -> Result<T>) -> Result<T> {
        let held = self.held.read();
        work(&mut held.as_ref().ok_or(Error::Deleted)?.lock())
    }
}

impl TorrentContent {
    /// The chunks of a range that are not there yet, and how long each is.
    fn missing(&self, range: &Range<u64>, length: u64) -> impl Iterator<Item = (usize, u64)> {
        let chunks = (range.start / CHUNK as u64) as usize..range.end.div_ceil(CHUNK as u64) as usize;
        let size = move |chunk: usize| (length - (chunk * CHUNK) as u64).min(CHUNK as u64);
        chunks.filter(|&chunk| self.chunks[chunk].is_none()).map(move |chunk| (chunk, size(chunk)))
    }

    /// Takes the chunks of a range that are not there yet: all, or none.
    fn take(&mut self, range: &Range<u64>, length: u64, shared: &Usage) -> Result<()> {
        let missing = self.missing(range, length).collect::<Vec<_>>();
        let bytes = missing.iter().map(|(_, size)| size).sum::<u64>();
        shared
            .used
            .try_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&used| used <= shared.most))
            .map_err(|_| Error::Full { what: "memory for the written bytes" })?;
        for (chunk, size) in missing {
            self.chunks[chunk] = Some(vec![0; size as usize].into());
        }
        Ok(())
    }
}

impl Content for MemoryTorrent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.geometry.range(offset, len)?;
        self.with(|held| {
            held.pieces.check_write(&range)?;
            if range.is_empty() {
                return Ok(());
            }
            held.take(&range, self.geometry.len(), &self.shared)?;
            let mut at = offset;
            for mut bytes in buffers.iter().map(|buffer| &**buffer) {
                while !bytes.is_empty() {
                    let chunk = held.chunks[(at / CHUNK as u64) as usize].as_mut().expect("taken above");
                    let within = &mut chunk[(at % CHUNK as u64) as usize..];
                    let (now, later) = bytes.split_at(bytes.len().min(within.len()));
                    within[..now.len()].copy_from_slice(now);
                    (at, bytes) = (at + now.len() as u64, later);
                }
            }
            held.pieces.wrote(range);
            self.shared.counters.wrote(len);
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = self.geometry.range(offset, len)?;
        self.with(|held| {
            held.pieces.check_read(&range)?;
            let mut at = offset;
            for buffer in buffers {
                let mut bytes = &mut buffer[..];
                while !bytes.is_empty() {
                    let chunk = held.chunks[(at / CHUNK as u64) as usize].as_ref().expect("it was written");
                    let within = &chunk[(at % CHUNK as u64) as usize..];
                    let (now, later) = bytes.split_at_mut(bytes.len().min(within.len()));
                    now.copy_from_slice(&within[..now.len()]);
                    (at, bytes) = (at + now.len() as u64, later);
                }
            }
            self.shared.counters.read(len);
            Ok(())
        })
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        self.with(|held| held.pieces.mark_complete(piece))
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        self.with(|held| held.pieces.mark_incomplete(piece))
    }

    fn pieces(&self) -> Result<PieceBits> {
        self.with(|held| Ok(held.pieces.complete().clone()))
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        let room =
            self.with(|held| Ok(held.missing(&range, self.geometry.len()).map(|(_, size)| size).sum()));
        room.unwrap_or(0)
    }
}
