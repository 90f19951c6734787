//! The store: its torrents, how one is created and deleted, and the checks when the store is opened.

use std::{
    collections::{HashMap, HashSet},
    io::{self, IoSlice},
    ops::Range,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use parking_lot::{Condvar, Mutex, RwLock};
use rustix::fs::OFlags;
use swarmkeep_metainfo::{FileList, folded};

use super::{
    Allocation, Damage, HIDDEN, OpenReport,
    disk::{Disk, DiskStep},
    folder,
    open_files::for_each_at_once,
    place::{FileCheck, Location, changed},
    state::{Fault, LoadedState, MOST_PIECES, StateRecord},
    torrent::{FileTorrent, Unflushed},
    volume::Volume,
    walk,
};
use crate::{ContentConfig, Error, InfoHash, NewTorrent, PieceBits, Result, Statistics};

/// The endings of unfinished states, of states of deleted torrents, and of states that could not be read.
const NEW: &str = "new";
const GONE: &str = "gone";
const DAMAGED: &str = "damaged";

#[derive(Debug)]
pub(super) struct Store {
    pub(super) volume: Arc<Volume>,
    unflushed: Arc<Unflushed>,
    pub(super) torrents: RwLock<HashMap<InfoHash, Arc<FileTorrent>>>,
    /// Torrents that cannot be used now. No other torrent gets their name.
    unavailable: Mutex<HashMap<InfoHash, Unavailable>>,
    /// Torrents that are being created or deleted: a second such call waits.
    busy: Mutex<HashSet<InfoHash>>,
    idle: Condvar,
    /// Names at the top of the folder, [folded], and their torrents. They include torrents that cannot be
    /// used, and deleted ones whose files could not be removed.
    tops: Mutex<HashMap<String, InfoHash>>,
    /// One flush at a time: a second one waits, and then flushes itself.
    flushing: Mutex<()>,
}

#[derive(Debug)]
struct Unavailable {
    why: String,
    /// Where it lies, if its state could be read: then it can be deleted.
    place: Option<Location>,
}

/// The time of a delete whose files are removed.
#[derive(Debug, Clone, Copy)]
enum DeleteTime {
    Now,
    /// Since then, others may have put files in place of the torrent's.
    Earlier,
}

/// A torrent, and the new names of files that had the names of its own.
type Adopted = (Arc<FileTorrent>, Vec<PathBuf>);

/// Keeps others from creating or deleting a torrent.
struct Claim<'a>(&'a Store, InfoHash);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().remove(&self.1);
        self.0.idle.notify_all();
    }
}

impl Store {
    pub(super) fn open(
        config: &ContentConfig,
        allocation: Allocation,
        disk: Disk,
    ) -> Result<(Self, OpenReport)> {
        let store = Self {
            volume: Arc::new(Volume::open(config, allocation, disk)?),
            unflushed: Arc::default(),
            torrents: RwLock::default(),
            unavailable: Mutex::default(),
            busy: Mutex::default(),
            idle: Condvar::new(),
            tops: Mutex::default(),
            flushing: Mutex::default(),
        };
        let mut report = OpenReport::default();
        let about = |error: Error| error.about(&store.volume.path);
        store.clear_away(&mut report).map_err(Error::io("looking for unfinished torrents")).map_err(about)?;
        store.load_all(&mut report).map_err(about)?;
        Ok((store, report))
    }

    /// Removes torrents that were unfinished when the store ended: no caller knows of them.
    fn clear_away(&self, report: &mut OpenReport) -> io::Result<()> {
        let Volume { disk, making, states, .. } = &*self.volume;
        for name in folder::names(making)? {
            // An empty folder has been moved to its place, and only its removal was missing.
            if disk.rmdir(making, &name).is_ok() {
                continue;
            }
            let cleared = disk
                .unlink(states, &name)
                .and_then(|()| disk.sync(DiskStep::SyncUnmade, states))
                .and_then(|()| walk::remove_all(disk, making, &name));
            if let (Err(error), Ok(info_hash)) = (cleared, name.parse()) {
                // Its files are not in their place.
                let why = format!("it was not finished, and cannot be cleared away: {error}");
                self.set_unavailable(info_hash, why, None, report);
            }
        }
        Ok(())
    }

    fn load_all(&self, report: &mut OpenReport) -> Result<()> {
        let Volume { disk, states, path, .. } = &*self.volume;
        let mut names = folder::names(states).map_err(Error::io("looking for the states of the torrents"))?;
        // A deleted torrent comes before a later one of the same name.
        names.sort_by_key(|name| (!name.ends_with(GONE), name.clone()));
        for name in names {
            let (stem, ending) = name.split_once('.').unwrap_or((&name, ""));
            let info_hash = stem.parse::<InfoHash>().ok().filter(|hash| hash.to_string() == stem);
            match (info_hash, ending) {
                // A state that cannot be removed is overwritten when its name is needed.
                (_, NEW) => _ = disk.unlink(states, &name),
                (Some(info_hash), "") if self.unavailable.lock().contains_key(&info_hash) => {}
                (Some(info_hash), "" | GONE) => match self.read_state(&name, info_hash) {
                    Ok(loaded) if ending.is_empty() => self.load(loaded, report),
                    Ok(loaded) => {
                        let place = Location::new(loaded.record);
                        if let Err(error) = self.finish_delete(&place, DeleteTime::Earlier) {
                            report.damage.push(Damage::Leftover { info_hash, what: error.to_string() });
                        }
                    }
                    Err(fault @ Fault::Earlier(_)) => {
                        return Err(Error::NotAStore { path: path.clone(), what: fault.to_string() });
                    }
                    Err(fault) if fault.is_damage() => self.set_aside(info_hash, &name, &fault, report),
                    Err(fault) if ending == GONE => {
                        report.damage.push(Damage::Leftover { info_hash, what: fault.to_string() });
                    }
                    Err(fault) => {
                        self.set_unavailable(info_hash, format!("its state: {fault}"), None, report);
                    }
                },
                _ => {}
            }
        }
        Ok(())
    }

    fn read_state(&self, name: &str, info_hash: InfoHash) -> Result<LoadedState, Fault> {
        let file = folder::open(&self.volume.states, name, OFlags::RDONLY, 0)?;
        let len = file.metadata()?.len();
        let loaded = StateRecord::read(len, |bytes, at| FileExt::read_exact_at(&file, bytes, at))?;
        match loaded.record.info_hash == info_hash {
            true => Ok(loaded),
            false => Err(Fault::Wrong("named after another torrent")),
        }
    }

    /// Keeps a state that cannot be read by another name.
    fn set_aside(&self, info_hash: InfoHash, name: &str, fault: &Fault, report: &mut OpenReport) {
        let Volume { disk, states, .. } = &*self.volume;
        let place = |aside: &str| disk.rename_to_free(states, name, states, aside);
        match folder::first_free(&format!("{info_hash}.{DAMAGED}"), place) {
            Ok(aside) => {
                let path = self.volume.path.join(HIDDEN).join("torrents").join(aside);
                report.damage.push(Damage::State { path, what: fault.to_string() });
            }
            Err(error) => {
                let why = format!("its state: {fault}, and cannot be set aside: {error}");
                self.set_unavailable(info_hash, why, None, report);
            }
        }
    }

    fn set_unavailable(
        &self,
        info_hash: InfoHash,
        why: String,
        place: Option<Location>,
        report: &mut OpenReport,
    ) {
        report.damage.push(Damage::Unavailable { info_hash, why: why.clone() });
        self.unavailable.lock().insert(info_hash, Unavailable { why, place });
    }

    fn load(&self, loaded: LoadedState, report: &mut OpenReport) {
        let LoadedState { record, complete, bits, unknown } = loaded;
        let info_hash = record.info_hash;
        let place = Location::new(record);
        // Records without a common folder are never read.
        let top = folded(place.top().unwrap_or(&place.name));
        if *self.tops.lock().entry(top).or_insert(info_hash) != info_hash {
            let why = "another torrent has the place of its files".to_owned();
            // A delete of it must not remove files there.
            self.set_unavailable(info_hash, why, None, report);
            return;
        }
        let torrent = FileTorrent::new(place, complete, bits, &self.volume, &self.unflushed);
        match torrent.look(&unknown) {
            Ok(missed) => {
                report
                    .damage
                    .extend(unknown.into_iter().map(|pieces| Damage::HaveBits { info_hash, pieces }));
                for (index, pieces) in missed.into_iter().filter(|(_, pieces)| *pieces > 0) {
                    let path = self.volume.path.join(PathBuf::from_iter(torrent.place.path(index)));
                    report.damage.push(Damage::File { info_hash, path, pieces });
                }
                self.volume.used.fetch_add(torrent.charged() + torrent.state_len, Relaxed);
                self.torrents.write().insert(info_hash, Arc::new(torrent));
            }
            Err(why) => self.set_unavailable(info_hash, why, Some(torrent.place), report),
        }
    }

    pub(super) fn get(&self, info_hash: &InfoHash) -> Result<Arc<FileTorrent>> {
        let torrent = self.torrents.read().get(info_hash).cloned();
        torrent.ok_or_else(|| self.why_not(info_hash).err().unwrap_or(Error::NotFound(*info_hash)))
    }

    /// Returns an error if the torrent exists and cannot be used.
    fn why_not(&self, info_hash: &InfoHash) -> Result<()> {
        match self.unavailable.lock().get(info_hash) {
            Some(Unavailable { why, .. }) => {
                Err(Error::Unavailable { info_hash: *info_hash, why: why.clone() })
            }
            None => Ok(()),
        }
    }

    fn claim(&self, info_hash: InfoHash) -> Claim<'_> {
        let mut busy = self.busy.lock();
        while !busy.insert(info_hash) {
            self.idle.wait(&mut busy);
        }
        Claim(self, info_hash)
    }

    pub(super) fn create(&self, new: &NewTorrent) -> Result<Arc<FileTorrent>> {
        let info_hash = new.info_hash;
        let _claim = self.claim(info_hash);
        if self.torrents.read().contains_key(&info_hash) {
            return Err(Error::Exists(info_hash));
        }
        self.why_not(&info_hash)?;
        if new.geometry.pieces() > MOST_PIECES {
            return Err(Error::Unsupported("hold a torrent of more than 67,108,864 pieces"));
        }
        self.finish_earlier_delete(info_hash)?;
        let files = match &new.files {
            Some(files) => Arc::clone(files),
            None => Arc::new(single_file(info_hash, new.geometry.len())?),
        };
        let record = StateRecord { info_hash, geometry: new.geometry, files, apart: false };
        let place = Location::new(record);
        let home = if place.is_nameless() { HIDDEN } else { "" };
        let wanted = self.volume.path.join(home).join(place.top().unwrap_or(&place.name));
        for place in place.candidates() {
            if let Some(torrent) = self.make(place)? {
                let torrent = Arc::new(torrent);
                self.torrents.write().insert(info_hash, Arc::clone(&torrent));
                return Ok(torrent);
            }
        }
        Err(Error::Occupied { path: wanted })
    }

    /// Creates a torrent over files that exist already, as documented in
    /// [`FileStore::adopt`](super::FileStore).
    pub(super) fn adopt(
        &self,
        new: &NewTorrent,
        right: &PieceBits,
        has_content: impl Fn(usize) -> bool,
    ) -> Result<Option<Adopted>> {
        let info_hash = new.info_hash;
        let _claim = self.claim(info_hash);
        if self.torrents.read().contains_key(&info_hash) {
            return Err(Error::Exists(info_hash));
        }
        self.why_not(&info_hash)?;
        self.finish_earlier_delete(info_hash)?;
        let pieces = new.geometry.pieces();
        let Some(files) = new.files.as_ref().filter(|_| pieces <= MOST_PIECES && right.pieces() == pieces)
        else {
            return Ok(None);
        };
        let files = Arc::clone(files);
        let place = Location::new(StateRecord { info_hash, geometry: new.geometry, files, apart: false });
        let Some(top) = place.top().map(str::to_owned).filter(|top| self.claim_top(top, info_hash, || true))
        else {
            return Ok(None);
        };
        let adopted = self.adopt_in_place(place, right, has_content);
        match &adopted {
            Ok(Some((torrent, _))) => _ = self.torrents.write().insert(info_hash, Arc::clone(torrent)),
            _ => self.release_top(&top, info_hash),
        }
        adopted
    }

    fn adopt_in_place(
        &self,
        place: Location,
        right: &PieceBits,
        has_content: impl Fn(usize) -> bool,
    ) -> Result<Option<Adopted>> {
        let Volume { disk, folder: top, states, .. } = &*self.volume;
        let failed = || Error::io("adopting files");
        let info_hash = place.record.info_hash;
        let is_right =
            |range: &Range<u64>| place.record.geometry.pieces_of(range).all(|piece| right.contains(piece));
        let found = place.look(disk, top.as_fd(), |_| true).map_err(|why| failed()(io::Error::other(why)))?;
        if found.iter().any(|(_, found)| *found == FileCheck::NoFile) {
            return Ok(None);
        }
        let own = place.own(disk, top.as_fd(), &found, has_content, is_right).map_err(failed())?;
        let Some(own) = own.filter(|own| !own.is_empty()) else { return Ok(None) };
        let bits_at = place.record.head()?.len() as u64;
        let room = place.files().map(|file| file.length()).sum::<u64>();
        let room = room.saturating_add(bits_at + place.record.bits_len());
        self.volume.take(room)?;
        let adopted = (|| {
            let renamed = place.take_up(disk, top.as_fd(), &found, &own).map_err(failed())?;
            // Files and their names, before the store says that any of it is complete.
            disk.sync_all(DiskStep::FlushAdopted, top).map_err(failed())?;
            self.write_state(&place)?;
            let torrent = FileTorrent::new(place, right.clone(), bits_at, &self.volume, &self.unflushed);
            torrent.look(&[]).map_err(|why| Error::Unavailable { info_hash, why })?;
            Ok((torrent, renamed))
        })();
        let taken = adopted.as_ref().map_or(0, |(torrent, _)| torrent.charged() + torrent.state_len);
        self.volume.used.fetch_add(taken, Relaxed);
        self.volume.used.fetch_sub(room, Relaxed);
        match adopted {
            Ok((torrent, renamed)) => {
                let torrent = Arc::new(torrent);
                torrent.note_all();
                Ok(Some((torrent, renamed)))
            }
            Err(error) => {
                // The files stay, whosever they are.
                let _ = disk.unlink(states, &info_hash.to_string());
                let _ = disk.sync(DiskStep::SyncUnmade, states);
                Err(error)
            }
        }
    }

    /// Makes a torrent in a place; `None` if something else has that.
    fn make(&self, place: Location) -> Result<Option<FileTorrent>> {
        let Volume { disk, states, making, allocation, .. } = &*self.volume;
        let StateRecord { info_hash, geometry, .. } = place.record;
        let bits_at = place.record.head()?.len() as u64;
        let preallocated = *allocation == Allocation::Preallocated;
        let room: u64 = place.files().filter(|_| preallocated).map(|file| file.length()).sum();
        let taken = room.saturating_add(bits_at + place.record.bits_len());
        self.volume.take(taken)?;
        match self.place(&place) {
            Ok(true) => {
                let none = PieceBits::none(geometry.pieces());
                let torrent = FileTorrent::new(place, none, bits_at, &self.volume, &self.unflushed);
                if preallocated {
                    torrent.hold_all();
                }
                Ok(Some(torrent))
            }
            not => {
                if self.why_not(&info_hash).is_ok() {
                    // The create has not succeeded: the next open removes the rest.
                    let unmade = disk.unlink(states, &place.name);
                    let _ = unmade.and_then(|()| disk.sync(DiskStep::SyncUnmade, states));
                    let _ = walk::remove_all(disk, making, &place.name);
                }
                self.volume.used.fetch_sub(taken, Relaxed);
                not.map(|_| None)
            }
        }
    }

    /// Makes the files of a torrent in a hidden folder, then its state, and then moves the files to their
    /// place. A crash at any moment leaves no file without a state, and no state without files. `false` if
    /// something else has the place.
    fn place(&self, place: &Location) -> Result<bool> {
        let Volume { disk, folder, hidden, making, allocation, .. } = &*self.volume;
        let failed = || Error::io("making a torrent");
        let StateRecord { info_hash, apart, .. } = place.record;
        let home = if place.is_nameless() { hidden } else { folder };
        let top = place.top().expect("candidates have one");
        if !self.claim_top(top, info_hash, || folder::is_free(home, top).unwrap_or(true)) {
            return Ok(false);
        }
        let moved = (|| {
            let below = walk::make(disk, making, &place.name).map_err(failed())?;
            place.make(disk, *allocation, &below)?;
            walk::sync_tree(disk, &below).map_err(failed())?;
            disk.sync(DiskStep::SyncMaking, making).map_err(failed())?;
            self.write_state(place)?;
            match disk.rename_to_free(if apart { making } else { &below }, top, home, top) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                moved => moved.map(|()| true).map_err(failed()),
            }
        })();
        if !matches!(moved, Ok(true)) {
            self.release_top(top, info_hash);
            return moved;
        }
        let durable = disk.sync(DiskStep::SyncPlaced, home).and_then(|()| match apart {
            true => Ok(()),
            false => disk.rmdir(making, &place.name),
        });
        durable.map(|()| true).map_err(|error| {
            // As if it had been there.
            let deleted =
                self.set_deleted(&place.name).and_then(|()| self.finish_delete(place, DeleteTime::Now));
            if let Err(error) = deleted {
                let why = format!("it could not be made durable, nor deleted: {error}");
                self.unavailable.lock().insert(info_hash, Unavailable { why, place: None });
            }
            failed()(error)
        })
    }

    /// Takes a name at the top of the folder, if `is_fit` agrees, no other torrent has it, and the store does
    /// not need it itself.
    fn claim_top(&self, top: &str, info_hash: InfoHash, is_fit: impl Fn() -> bool) -> bool {
        let mut tops = self.tops.lock();
        let name = folded(top);
        // Another torrent's info hash is where that one's files go if they have no other place.
        let own = info_hash.to_string();
        let anothers = name.len() == own.len() && name.parse::<InfoHash>().is_ok() && name != own;
        let taken = !anothers && name != HIDDEN && !tops.contains_key(&name) && is_fit();
        if taken {
            tops.insert(name, info_hash);
        }
        taken
    }

    pub(super) fn torrent_at(&self, top: &str) -> Option<InfoHash> {
        self.tops.lock().get(&folded(top)).copied()
    }

    fn release_top(&self, top: &str, info_hash: InfoHash) {
        let mut tops = self.tops.lock();
        let name = folded(top);
        if tops.get(&name) == Some(&info_hash) {
            tops.remove(&name);
        }
    }

    fn write_state(&self, place: &Location) -> Result<()> {
        let Volume { disk, states, .. } = &*self.volume;
        let new = format!("{}.{NEW}", place.name);
        let head = place.record.head()?;
        let written = (|| {
            disk.unlink(states, &new)?;
            let file = disk.create(states, &new, 0o666)?;
            let mut at = 0;
            for part in std::iter::once(head).chain(place.record.blank_bits()) {
                disk.write(DiskStep::WriteState, &file, at, &mut [IoSlice::new(&part)])?;
                at += part.len() as u64;
            }
            disk.flush(DiskStep::FlushState, &file)?;
            disk.rename(states, &new, states, &place.name)?;
            disk.sync(DiskStep::SyncState, states)
        })();
        written.map_err(|error| {
            let _ = disk.unlink(states, &new);
            Error::io("writing the state of a torrent")(error)
        })
    }

    pub(super) fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let _claim = self.claim(*info_hash);
        let Some(torrent) = self.torrents.read().get(info_hash).cloned() else {
            return self.delete_unavailable(info_hash);
        };
        {
            let mut writable = torrent.bits.lock();
            self.set_deleted(&torrent.place.name)?;
            *writable = false;
        }
        {
            let mut there = torrent.gate.write();
            *there = false;
            self.torrents.write().remove(info_hash);
        }
        self.volume.open_files.close(torrent.id);
        // Files that cannot be removed are no longer counted, as after the store is opened again.
        self.volume.used.fetch_sub(torrent.charged() + torrent.state_len, Relaxed);
        self.finish_delete(&torrent.place, DeleteTime::Now)?;
        Ok(true)
    }

    fn delete_unavailable(&self, info_hash: &InfoHash) -> Result<bool> {
        let place = self.unavailable.lock().get_mut(info_hash).map(|unavailable| unavailable.place.take());
        match place {
            None => self.finish_earlier_delete(*info_hash),
            // Which files are its own is not known.
            Some(None) => self.why_not(info_hash).map(|()| false),
            Some(Some(place)) => {
                if let Err(error) = self.set_deleted(&place.name) {
                    if let Some(unavailable) = self.unavailable.lock().get_mut(info_hash) {
                        unavailable.place = Some(place);
                    }
                    return Err(error);
                }
                self.unavailable.lock().remove(info_hash);
                self.finish_delete(&place, DeleteTime::Now)?;
                Ok(true)
            }
        }
    }

    /// Makes the delete of a torrent durable. First its state is renamed: without it, its files cannot be
    /// taken for complete. The renamed state lists the files that are still to be removed.
    fn set_deleted(&self, name: &str) -> Result<()> {
        let Volume { disk, states, .. } = &*self.volume;
        let gone = format!("{name}.{GONE}");
        let deleted = disk.rename(states, name, states, &gone).and_then(|()| {
            let synced = disk.sync(DiskStep::SyncDeleted, states);
            synced.inspect_err(|_| _ = disk.rename(states, &gone, states, name))
        });
        deleted.map_err(|source| Error::Io { what: "deleting the state of a torrent", source })
    }

    /// Removes the rest of a torrent that was deleted and whose files could not be removed then; `false` if
    /// there is none.
    fn finish_earlier_delete(&self, info_hash: InfoHash) -> Result<bool> {
        let gone = format!("{info_hash}.{GONE}");
        if folder::is_free(&self.volume.states, &gone).map_err(Error::io("looking for the state"))? {
            return Ok(false);
        }
        let loaded = self.read_state(&gone, info_hash).map_err(|fault| Error::NotAStore {
            path: self.volume.path.join(HIDDEN).join("torrents").join(&gone),
            what: format!("{fault}; the torrent is deleted, and this file is to be removed"),
        })?;
        self.finish_delete(&Location::new(loaded.record), DeleteTime::Earlier)?;
        Ok(true)
    }

    /// Removes the files of a torrent that is deleted, and the folders that are then empty.
    fn finish_delete(&self, place: &Location, when: DeleteTime) -> Result<()> {
        let Volume { disk, folder: top, states, .. } = &*self.volume;
        let info_hash = place.record.info_hash;
        let name = place.top().unwrap_or(&place.name);
        self.tops.lock().entry(folded(name)).or_insert(info_hash);
        let gone = format!("{}.{GONE}", place.name);
        let removed = (|| {
            let deleted = match when {
                DeleteTime::Now => None,
                DeleteTime::Earlier => Some(changed(&folder::stat(states, &gone)?)),
            };
            place.remove(disk, top.as_fd(), deleted)?;
            disk.unlink(states, &gone)?;
            disk.sync(DiskStep::SyncForgotten, states)
        })();
        removed.map_err(|source| Error::Io {
            what: "removing the files of a deleted torrent (the rest is removed when it is deleted again or the store is opened)",
            source,
        })?;
        self.release_top(name, info_hash);
        Ok(())
    }

    pub(super) fn flush(&self) -> Result<()> {
        let _alone = self.flushing.lock();
        let changed = std::mem::take(&mut *self.unflushed.lock());
        let torrents: Vec<_> = changed.iter().filter_map(Weak::upgrade).collect();
        let dirty = |torrent| FileTorrent::begin_flush(torrent).into_iter().map(move |file| (torrent, file));
        let dirty: Vec<_> = torrents.iter().flat_map(dirty).collect();
        let failed = Mutex::new(Ok(()));
        let note = |done: Result<()>| {
            let mut failed = failed.lock();
            if failed.is_ok() {
                *failed = done;
            }
        };
        // Of one that cannot be flushed, the others take no harm.
        for_each_at_once(&dirty, |(torrent, file)| note(torrent.flush_file(*file)));
        for_each_at_once(&torrents, |torrent| {
            note(torrent.flush_bits().inspect_err(|_| torrent.changed()));
        });
        self.volume.counters.flushed();
        failed.into_inner()
    }

    pub(super) fn statistics(&self) -> Statistics {
        let used = self.volume.used.load(Relaxed);
        let on_disk = rustix::fs::fstatvfs(&self.volume.folder)
            .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
            .ok();
        let left = (self.volume.most != u64::MAX).then(|| self.volume.most.saturating_sub(used));
        Statistics {
            torrents: self.torrents.read().len() as u64,
            used,
            free: [on_disk, left].into_iter().flatten().min(),
            ..self.volume.counters.statistics()
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.volume.path
    }
}

/// The files of a torrent without a list: one file in the hidden folder.
fn single_file(info_hash: InfoHash, length: u64) -> Result<FileList> {
    let mut files = FileList::builder();
    // No file system has more than the 2^63 bytes that a list of files has.
    let too_long = |_| Error::Full { what: "a file of this length" };
    files.file(&[HIDDEN, &info_hash.to_string()], length, false).map_err(too_long)?;
    files.build().map_err(too_long)
}
