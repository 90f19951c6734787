//! A folder in memory that fails, is killed or loses power on demand, for tests of crashes.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;

use crate::{File, Folder};

/// The bytes that a device writes whole or not at all when the power fails.
const SECTOR: usize = 512;

/// A folder in memory. A clone is the same folder.
///
/// Each call of [`Folder`] and [`File`] is an [`Operation`], counted from 0, and any of them can be made to
/// fail. The folder keeps only what [`Folder`] promises. Data that was written and not synced survives a
/// power cut in any subset of 512-byte sectors, each in any version since the last sync. After a failed sync,
/// earlier writes stay uncertain even if a later sync succeeds. Names change in order, but only as far as the
/// disk got.
#[derive(Clone)]
pub struct Simulated(Arc<Mutex<DiskState>>);

/// An operation of a folder or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Operation {
    Names,
    Open,
    Create,
    Rename,
    Remove,
    SyncFolder,
    Len,
    Read,
    Write,
    SetLen,
    Sync,
}

impl Operation {
    /// Whether it changes the contents or makes them durable. A crash at any other operation is like one at
    /// the next operation of this kind.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Names | Self::Open | Self::Len | Self::Read)
    }
}

/// An error of the operating system, with its number on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `EIO`: the device failed.
    Device = 5,
    /// `ENOSPC`: the disk is full.
    Full = 28,
    /// `EROFS`: the file system is read-only.
    ReadOnly = 30,
}

impl Simulated {
    /// An empty folder. `seed` decides which part of a failing operation is done.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(DiskState { random: seed, ..DiskState::default() })))
    }

    /// All operations until now.
    pub fn operations(&self) -> Vec<Operation> {
        self.0.lock().operations.clone()
    }

    /// Refuses `count` operations from operation `at`, until [`heal`](Self::heal). A refused operation may
    /// have been done in part.
    pub fn refuse(&self, at: usize, count: usize, refusal: Refusal) {
        self.0.lock().fault = Some((at..at.saturating_add(count), Fault::Refuse(refusal)));
    }

    /// Refuses each read that touches these bytes of a file, as a bad sector does, until
    /// [`heal`](Self::heal).
    ///
    /// # Panics
    /// If there is no such file.
    pub fn refuse_to_read(&self, name: &str, bytes: Range<u64>) {
        let mut state = self.0.lock();
        let inode = state.names[name];
        state.bad.push((inode, bytes));
    }

    /// Refuses no more operations.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        state.fault = None;
        state.bad.clear();
    }

    /// Cuts the power during operation `at`. That operation and all later ones fail.
    /// [`after_power_cut`](Self::after_power_cut) returns what is left.
    pub fn cut_power(&self, at: usize) {
        self.0.lock().fault = Some((at..usize::MAX, Fault::Cut));
    }

    /// Kills the process during operation `at`. That operation fails and may have been done in part; all
    /// later ones fail. [`after_kill`](Self::after_kill) returns what the next process sees.
    pub fn kill(&self, at: usize) {
        self.0.lock().fault = Some((at..usize::MAX, Fault::Kill));
    }

    /// A possible content of the disk after the power cut. Seed 0: only what was synced. Seed 1: everything.
    /// Other seeds: anything that is possible.
    #[must_use]
    pub fn after_power_cut(&self, seed: u64) -> Self {
        let state = self.0.lock();
        let mut chance = Chance::new(seed);
        let mut names = state.durable_names.clone();
        let survive = chance.up_to(state.pending_names.len());
        for change in &state.pending_names[..survive] {
            change.apply(&mut names);
        }
        let inodes = state.inodes.iter().map(|inode| inode.after_power_cut(&mut chance)).collect();
        Self(Arc::new(Mutex::new(DiskState {
            inodes,
            names: names.clone(),
            durable_names: names,
            random: seed,
            ..DiskState::default()
        })))
    }

    /// The folder that the next process sees: all writes are there, and are no more durable than before.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let state = self.0.lock();
        Self(Arc::new(Mutex::new(DiskState {
            inodes: state.inodes.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            pending_names: state.pending_names.clone(),
            random: state.random,
            ..DiskState::default()
        })))
    }

    /// The content of the file `name`, if it exists. This is not an operation.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.lock();
        state.names.get(name).map(|&inode| state.inodes[inode].seen.clone())
    }

    fn opened(&self, name: &str, writable: bool) -> io::Result<Box<dyn File>> {
        let mut state = self.0.lock();
        state.whole(Operation::Open)?;
        let inode = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(OpenFile { folder: self.clone(), inode, writable }))
    }

    /// Creates a durable file. This is not an operation.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let state = &mut *self.0.lock();
        state.inodes.push(Inode { seen: contents.to_vec(), durable: contents.to_vec(), ..Inode::default() });
        let inode = state.inodes.len() - 1;
        state.names.insert(name.to_owned(), inode);
        state.durable_names.insert(name.to_owned(), inode);
    }
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        let files = state.names.iter().map(|(name, &inode)| (name, state.inodes[inode].seen.len()));
        f.debug_map().entries(files).finish()
    }
}

impl Folder for Simulated {
    fn path(&self, name: &str) -> PathBuf {
        Path::new("simulated").join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut state = self.0.lock();
        state.whole(Operation::Names)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.opened(name, false)
    }

    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.opened(name, true)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.0.lock();
        let inode = state.inodes.len();
        state.rename_or_so(Operation::Create, NameChange::Put(name.to_owned(), inode), |state| {
            state.inodes.push(Inode::default());
        })?;
        Ok(Box::new(OpenFile { folder: self.clone(), inode, writable: true }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        self.0.lock().rename_or_so(Operation::Rename, change, |_| ())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().rename_or_so(Operation::Remove, NameChange::Remove(name.to_owned()), |_| ())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole(Operation::SyncFolder)?;
        state.durable_names = state.names.clone();
        state.pending_names.clear();
        Ok(())
    }
}

struct OpenFile {
    folder: Simulated,
    inode: usize,
    writable: bool,
}

impl OpenFile {
    fn write(
        &self,
        operation: Operation,
        change: impl FnOnce(&mut Inode, &mut dyn FnMut(usize) -> usize),
    ) -> io::Result<()> {
        let state = &mut *self.folder.0.lock();
        if !self.writable {
            return state.whole(operation).and(Err(io::ErrorKind::PermissionDenied.into()));
        }
        let turn = state.turn(operation)?;
        let DiskState { inodes, random, .. } = state;
        let mut chance = Chance(*random);
        change(&mut inodes[self.inode], &mut |most| match turn {
            Turn::Whole | Turn::Cut => most,
            Turn::Part(_) => chance.up_to(most),
        });
        *random = chance.0;
        turn.result()
    }
}

impl File for OpenFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.folder.0.lock();
        state.whole(Operation::Len)?;
        Ok(state.inodes[self.inode].seen.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.folder.0.lock();
        state.whole(Operation::Read)?;
        let end = offset + buffer.len() as u64;
        let is_bad = |(inode, bytes): &(usize, Range<u64>)| {
            *inode == self.inode && bytes.start < end && offset < bytes.end
        };
        if state.bad.iter().any(is_bad) {
            return Err(io::Error::from_raw_os_error(Refusal::Device as i32));
        }
        let seen = &state.inodes[self.inode].seen;
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = seen.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(Operation::Write, |inode, part| {
            let written = part(bytes.len());
            inode.write(&bytes[..written], offset as usize);
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(Operation::SetLen, |inode, part| {
            if part(1) == 1 {
                inode.set_len(len as usize);
            }
        })
    }

    fn modified(&self) -> io::Result<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH)
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.folder.0.lock();
        let turn = state.turn(Operation::Sync)?;
        match turn {
            Turn::Whole => state.inodes[self.inode].sync(),
            Turn::Part(_) => state.inodes[self.inode].fail_sync(),
            Turn::Cut => {}
        }
        turn.result()
    }
}

#[derive(Default)]
struct DiskState {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// The changes from the durable names to the visible ones.
    pending_names: Vec<NameChange>,
    operations: Vec<Operation>,
    /// The operations that fail, and how.
    fault: Option<(Range<usize>, Fault)>,
    /// The unreadable bytes, and the number of their file.
    bad: Vec<(usize, Range<u64>)>,
    down: bool,
    random: u64,
}

impl DiskState {
    /// Counts an operation, and returns how much of it is done. After a crash, returns an error.
    fn turn(&mut self, operation: Operation) -> io::Result<Turn> {
        let at = self.operations.len();
        self.operations.push(operation);
        if self.down {
            return Err(io::Error::other("nothing works any more"));
        }
        match &self.fault {
            Some((during, fault)) if during.contains(&at) => match *fault {
                Fault::Refuse(refusal) => Ok(Turn::Part(io::Error::from_raw_os_error(refusal as i32))),
                Fault::Cut => {
                    self.down = true;
                    Ok(Turn::Cut)
                }
                Fault::Kill => {
                    self.down = true;
                    Ok(Turn::Part(io::Error::other("the process is killed")))
                }
            },
            _ => Ok(Turn::Whole),
        }
    }

    /// Counts an operation that is never done in part.
    fn whole(&mut self, operation: Operation) -> io::Result<()> {
        self.turn(operation)?.result()
    }

    fn rename_or_so(
        &mut self,
        operation: Operation,
        change: NameChange,
        first: impl FnOnce(&mut Self),
    ) -> io::Result<()> {
        if let NameChange::Rename(name, _) | NameChange::Remove(name) = &change
            && !self.names.contains_key(name)
        {
            return self.whole(operation).and(Err(io::ErrorKind::NotFound.into()));
        }
        let turn = self.turn(operation)?;
        let mut chance = Chance(self.random);
        let done = !matches!(turn, Turn::Part(_)) || chance.up_to(1) == 1;
        self.random = chance.0;
        if done {
            first(self);
            change.apply(&mut self.names);
            self.pending_names.push(change);
        }
        turn.result()
    }
}

/// How much of an operation is done.
enum Turn {
    Whole,
    /// A random part, and then it fails.
    Part(io::Error),
    /// All of it, and then the power is cut.
    Cut,
}

impl Turn {
    fn result(self) -> io::Result<()> {
        match self {
            Self::Whole => Ok(()),
            Self::Part(error) => Err(error),
            Self::Cut => Err(io::Error::other("the power is cut")),
        }
    }
}

enum Fault {
    Refuse(Refusal),
    Cut,
    Kill,
}

#[derive(Clone)]
enum NameChange {
    Put(String, usize),
    Rename(String, String),
    Remove(String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Put(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

#[derive(Clone, Default)]
struct Inode {
    /// The visible contents: the page cache.
    seen: Vec<u8>,
    /// The contents that are certainly on the disk.
    durable: Vec<u8>,
    /// Lengths since the last sync.
    lengths: Vec<usize>,
    /// Sectors whose contents on the disk are not certain.
    pending: BTreeMap<usize, Pending>,
}

#[derive(Clone)]
struct Pending {
    versions: Vec<[u8; SECTOR]>,
    /// A sync failed after the last version was written: no later one makes it durable.
    given_up: bool,
}

impl Inode {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        if end > self.seen.len() {
            self.seen.resize(end, 0);
            self.lengths.push(end);
        }
        self.seen[offset..end].copy_from_slice(bytes);
        self.touch(offset, end);
    }

    fn set_len(&mut self, len: usize) {
        let cut_from = len.min(self.seen.len());
        let cut_to = self.seen.len().max(cut_from);
        self.seen.resize(len, 0);
        self.lengths.push(len);
        if len == cut_from {
            self.touch(cut_from, cut_to);
        }
    }

    fn touch(&mut self, from: usize, to: usize) {
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            let version = sector_of(&self.seen, sector);
            let pending =
                self.pending.entry(sector).or_insert(Pending { versions: Vec::new(), given_up: false });
            pending.versions.push(version);
            pending.given_up = false;
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        self.lengths.clear();
        let (seen, durable) = (&self.seen, &mut self.durable);
        self.pending.retain(|&sector, pending| {
            if !pending.given_up {
                put_sector(durable, sector, &sector_of(seen, sector));
            }
            pending.given_up
        });
    }

    fn fail_sync(&mut self) {
        self.pending.values_mut().for_each(|pending| pending.given_up = true);
    }

    fn after_power_cut(&self, chance: &mut Chance) -> Self {
        let mut disk = self.durable.clone();
        let length = match chance.up_to(self.lengths.len()) {
            0 => disk.len(),
            n => self.lengths[n - 1],
        };
        disk.resize(length, 0);
        for (&sector, pending) in &self.pending {
            if let Some(version) = chance.up_to(pending.versions.len()).checked_sub(1) {
                put_sector(&mut disk, sector, &pending.versions[version]);
            }
        }
        Self { seen: disk.clone(), durable: disk, ..Self::default() }
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let mut copy = [0; SECTOR];
    let from = (sector * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    copy[..to - from].copy_from_slice(&bytes[from..to]);
    copy
}

/// As much of the sector as the file has room for.
fn put_sector(bytes: &mut [u8], sector: usize, version: &[u8; SECTOR]) {
    let from = (sector * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    bytes[from..to].copy_from_slice(&version[..to - from]);
}

/// SplitMix64. Seed 0 always returns 0, and seed 1 the maximum.
struct Chance(u64);

const NOTHING: u64 = 0;
const EVERYTHING: u64 = 1;

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn up_to(&mut self, most: usize) -> usize {
        match self.0 {
            NOTHING => return 0,
            EVERYTHING => return most,
            _ => {}
        }
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((u128::from(z ^ (z >> 31))) * (most as u128 + 1)) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(folder: &Simulated, name: &str) -> Option<Vec<u8>> {
        folder.contents(name)
    }

    #[test]
    fn what_was_synced_survives_a_power_cut_and_the_rest_by_sectors() {
        let folder = Simulated::new(7);
        let file = folder.create("a").unwrap();
        file.write_all_at(&[1; 4 * SECTOR], 0).unwrap();
        file.sync().unwrap();
        Folder::sync(&folder).unwrap();
        file.write_all_at(&[2; 6 * SECTOR], 0).unwrap();

        assert_eq!(read(&folder.after_power_cut(0), "a"), Some(vec![1; 4 * SECTOR]));
        assert_eq!(read(&folder.after_power_cut(1), "a"), Some(vec![2; 6 * SECTOR]));
        assert_eq!(read(&folder.after_kill(), "a"), Some(vec![2; 6 * SECTOR]));
        let (mut torn, mut holes) = (0, 0);
        for seed in 2..66 {
            let disk = read(&folder.after_power_cut(seed), "a").unwrap();
            for (n, sector) in disk.chunks(SECTOR).enumerate() {
                let old = if n < 4 { 1 } else { 0 };
                assert!(sector.iter().all(|&byte| byte == old) || sector.iter().all(|&byte| byte == 2));
                holes += usize::from(sector[0] == 0);
            }
            torn += usize::from(disk.contains(&1) && disk.contains(&2));
        }
        assert!(torn > 40 && holes > 10, "{torn} {holes}");
    }

    #[test]
    fn names_survive_in_order_as_far_as_the_disk_got() {
        let folder = Simulated::new(7);
        folder.create("a").unwrap();
        Folder::sync(&folder).unwrap();
        folder.create("b").unwrap();
        folder.rename("b", "c").unwrap();
        folder.remove("a").unwrap();
        let mut seen: Vec<_> =
            (0..64).map(|seed| folder.after_power_cut(seed).names().unwrap().join("")).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, ["a", "ab", "ac", "c"]);
    }

    #[test]
    fn what_was_written_before_a_failed_sync_is_uncertain_until_it_is_written_again() {
        let folder = Simulated::new(7);
        let file = folder.create("a").unwrap();
        Folder::sync(&folder).unwrap();
        file.write_all_at(&[1; SECTOR], 0).unwrap();
        folder.refuse(folder.operations().len(), 1, Refusal::Device);
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
        assert_eq!(read(&folder.after_power_cut(0), "a"), Some(vec![0; SECTOR]));
        file.write_all_at(&[1; SECTOR], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(read(&folder.after_power_cut(0), "a"), Some(vec![1; SECTOR]));
    }

    #[test]
    fn after_a_crash_everything_fails() {
        let folder = Simulated::new(7);
        let file = folder.create("a").unwrap();
        folder.cut_power(1);
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.sync().is_err() && folder.names().is_err() && file.len().is_err());
        assert!(folder.after_power_cut(1).names().is_ok());
    }
}
