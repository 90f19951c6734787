//! A store with a fault.

use std::{fmt, fs, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use swarmkeep_content::{
    Capabilities, Content, ContentConfig, ContentRepository, Error, InfoHash, NewTorrent, PieceBits, Result,
    Statistics, Summary,
};

use super::{
    super::model::{LogEvent, MOST_UNWRITTEN, Model, ModelState},
    Fault, FaultNotes,
    content::BrokenContent,
    let_others_in,
};

/// The model with a fault.
pub struct Broken {
    model: Model,
    fault: Fault,
    capacity: Option<u64>,
    notes: Arc<Mutex<FaultNotes>>,
}

impl Broken {
    /// Opens a store with one fault.
    pub fn open(fault: Fault, config: &ContentConfig) -> Result<Self> {
        let without = matches!(
            (fault, config.capacity),
            (Fault::CapacityIgnored, _) | (Fault::SmallCapacityIsNone, Some(0 | 1))
        );
        let inner = if without { &ContentConfig::new(&config.folder) } else { config };
        let model = Model::open(inner)?;
        if fault == Fault::LaterOpeningsForget {
            let count = config.folder.join("openings");
            let before = fs::read(&count).map_or(0, |bytes| bytes.len());
            fs::write(count, vec![0; before + 1]).map_err(Error::io("counting"))?;
            if before == 7 {
                let mut state = model.state();
                for torrent in state.torrents.values_mut() {
                    torrent.complete.pop_first();
                }
            }
        }
        Ok(Self { model, fault, capacity: config.capacity, notes: Arc::default() })
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn state(&self) -> MutexGuard<'_, ModelState> {
        self.model.state()
    }

    fn known_as(&self, info_hash: &InfoHash) -> InfoHash {
        let mut bytes = *info_hash.as_bytes();
        if self.is(Fault::IdentityByFirstBytes) {
            bytes[8..].fill(0);
        }
        InfoHash::new(bytes)
    }

    fn handle(&self, info_hash: InfoHash) -> Result<Arc<dyn Content>> {
        let handle = self.model.handle(&self.state(), info_hash).ok_or(Error::NotFound(info_hash))?;
        let (model, notes) = (Model { shared: Arc::clone(&self.model.shared) }, Arc::clone(&self.notes));
        let pieces = handle.pieces().unwrap_or_else(|_| PieceBits::none(handle.geometry().pieces()));
        Ok(Arc::new(BrokenContent { handle, model, fault: self.fault, notes, pieces }))
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.is(Fault::FlushedWhenClosed) {
            self.state().flush().expect("a folder that is there");
        }
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {:?}", self.model, self.fault)
    }
}

impl ContentRepository for Broken {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let mut torrent = torrent.clone();
        torrent.info_hash = self.known_as(&torrent.info_hash);
        let (torrent, info_hash) = (&torrent, torrent.info_hash);
        match self.fault {
            Fault::CreateInTwoSteps => {
                if self.state().torrents.contains_key(&info_hash) {
                    return Err(Error::Exists(info_hash));
                }
                let_others_in();
                let mut state = self.state();
                state.delete(&info_hash);
                state.create(torrent);
            }
            Fault::CreateNotDurable => {
                let mut state = self.state();
                let log = state.log.take();
                drop(state);
                let created = self.model.create(torrent);
                self.state().log = log;
                created?;
            }
            _ => {
                let created = self.model.create(torrent);
                let mut state = self.state();
                match (self.fault, &created) {
                    (Fault::CreateEmpties, Err(Error::Exists(_))) => {
                        let held = state.torrents.get_mut(&info_hash).expect("it exists");
                        held.chunks.clear();
                        held.complete.clear();
                    }
                    (Fault::CreateHalfDone, Err(Error::Full { .. })) => state.create(torrent),
                    (Fault::CreateRevives, Ok(_)) => {
                        if let Some(old) = self.notes.lock().deleted.remove(&info_hash) {
                            let created = state.torrents.get_mut(&info_hash).expect("it was just created");
                            created.chunks = old.chunks;
                            let all = 0..created.geometry.len();
                            let written = created.written(&all);
                            state.used += written;
                        }
                    }
                    _ => {}
                }
                drop(state);
                created?;
            }
        }
        self.handle(info_hash)
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let opened = self.handle(self.known_as(info_hash));
        if self.is(Fault::OpenCreates) && opened.is_err() {
            self.model.create(&NewTorrent::new(*info_hash, 1000, 100)?)?;
        }
        opened
    }

    fn list(&self) -> Result<Vec<Summary>> {
        if self.is(Fault::ListByPosition) {
            let nth = |n: usize| {
                let found = self.model.list().map(|list| list.get(n).copied());
                let_others_in();
                found.transpose()
            };
            return (0..).map_while(nth).collect();
        }
        let mut list = self.model.list()?;
        match self.fault {
            Fault::ListUnsorted => list.reverse(),
            Fault::ListTwice => list.extend(list.first().copied()),
            Fault::ListMisses => drop(list.pop()),
            Fault::ListEndsEarly => list.truncate(512),
            Fault::ListCountsWritten => {
                let state = self.state();
                for summary in &mut list {
                    let Some(torrent) = state.torrents.get(&summary.info_hash) else { continue };
                    let geometry = torrent.geometry;
                    let ranges = (0..geometry.pieces()).filter_map(|piece| geometry.piece(piece).ok());
                    summary.complete = ranges.filter(|range| torrent.read(range).is_ok()).count() as u32;
                }
            }
            _ => {}
        }
        Ok(list)
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let info_hash = &self.known_as(info_hash);
        match self.fault {
            Fault::DeleteInTwoSteps => {
                if !self.state().torrents.contains_key(info_hash) {
                    return Ok(false);
                }
                let_others_in();
                self.state().delete(info_hash);
                return Ok(true);
            }
            Fault::DeleteNotDurable => return Ok(self.state().delete(info_hash).is_some()),
            _ => {}
        }
        let mut state = self.state();
        let used = state.used;
        if let Some(torrent) = state.torrents.get(info_hash) {
            let mut notes = self.notes.lock();
            notes.drift += 1;
            notes.deleted.insert(*info_hash, torrent.clone());
            for (&chunk, bytes) in &torrent.chunks {
                notes.room.insert(chunk, bytes.clone());
            }
        }
        drop(state);
        let deleted = self.model.delete(info_hash)?;
        state = self.state();
        match self.fault {
            Fault::DeleteFreesNothing if deleted => state.used = used,
            Fault::DeleteTakesTwo => {
                let next = state.torrents.range(*info_hash..).next().map(|(&next, _)| next);
                next.map(|next| state.delete(&next));
            }
            _ => {}
        }
        Ok(deleted || self.is(Fault::DeleteAlwaysTrue))
    }

    fn flush(&self) -> Result<()> {
        match self.fault {
            Fault::FlushDoesNothing | Fault::FlushedWhenClosed => return Ok(()),
            Fault::FlushesNotCounted => return self.state().flush(),
            Fault::FlushMissesOne => {
                let mut state = self.state();
                if let Some(mut last) = state.torrents.last_entry() {
                    let torrent = last.get_mut();
                    torrent.durable = torrent.complete.clone();
                }
            }
            Fault::WrittenIsComplete => {
                let mut state = self.state();
                let mut written = Vec::new();
                for (&info_hash, torrent) in &state.torrents {
                    for piece in 0..torrent.geometry.pieces() {
                        if let Ok(bytes) = torrent.read(&torrent.geometry.piece(piece)?) {
                            written.push((info_hash, piece, bytes));
                        }
                    }
                }
                for (info_hash, piece, bytes) in written {
                    state.log(info_hash, &LogEvent::Complete(piece, &bytes))?;
                }
            }
            Fault::OldBytesFlushed => {
                let mut state = self.state();
                state.flush()?;
                for ((info_hash, piece), bytes) in &self.notes.lock().earlier {
                    if state.torrents.get(info_hash).is_some_and(|torrent| torrent.complete.contains(piece)) {
                        state.log(*info_hash, &LogEvent::Complete(*piece, bytes))?;
                    }
                }
            }
            Fault::FlushInTwoSteps => {
                let mut marked = Vec::new();
                for (&info_hash, torrent) in &self.state().torrents {
                    for &piece in torrent.complete.difference(&torrent.durable) {
                        marked.push((info_hash, piece, torrent.read(&torrent.geometry.piece(piece)?)?));
                    }
                }
                let_others_in();
                let mut state = self.state();
                for (info_hash, piece, bytes) in marked {
                    if state.torrents.contains_key(&info_hash) {
                        state.log(info_hash, &LogEvent::Complete(piece, &bytes))?;
                        state.torrents.get_mut(&info_hash).expect("it is there").durable.insert(piece);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        self.model.flush()
    }

    fn statistics(&self) -> Statistics {
        let mut told = self.model.statistics();
        match self.fault {
            Fault::FreeNotTold => told.free = None,
            Fault::CapacityIgnored => told.free = self.capacity.map(|most| most.saturating_sub(told.used)),
            Fault::UnwrittenBeyondLimit => told.unwritten += MOST_UNWRITTEN / 2,
            Fault::BuffersCountedAsCalls => told.reads += self.notes.lock().drift,
            Fault::RefusedBytesCounted => told.bytes_written += self.notes.lock().drift,
            Fault::DeletedTorrentsCounted => told.torrents += self.notes.lock().drift,
            Fault::UsedNotTold => told.used = 0,
            _ => {}
        }
        told
    }

    fn capabilities(&self) -> Capabilities {
        let mut declared = self.model.capabilities();
        match self.fault {
            Fault::OddStripe => declared.stripe = 100_000,
            Fault::LabelsNotDeclared => declared.label = 0,
            Fault::DurableNotDeclared => declared.durable = false,
            Fault::CapacityNotRefused => declared.bounded = false,
            _ => {}
        }
        declared
    }

    fn label(&self, info_hash: &InfoHash) -> Result<Arc<[u8]>> {
        self.model.label(&self.known_as(info_hash))
    }

    fn set_label(&self, info_hash: &InfoHash, label: &[u8]) -> Result<()> {
        self.model.set_label(&self.known_as(info_hash), label)?;
        let mut state = self.state();
        match self.fault {
            Fault::LabelsForAll => {
                state.torrents.values_mut().for_each(|torrent| torrent.label = label.into());
            }
            Fault::LabelsInMemory => state.log(*info_hash, &LogEvent::Labelled(&[]))?,
            _ => {}
        }
        Ok(())
    }
}
