//! A folder of a tracker's state on the simulated disk. It fails, is killed or loses power on demand.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use swarmkeep::{Random, SplitMix64};
use swarmkeep_state::{File, Folder};

use crate::disk::{Change, Entry, Image, Medium, Name, Node, ROOT};

/// A folder in memory. A clone is the same folder.
///
/// Each call of [`Folder`] and [`File`] is an [`Operation`], counted from 0, and any of them can be made to
/// fail. The folder keeps only what [`Folder`] promises: names change in order, and a failed sync loses a
/// part of the earlier writes for good.
#[derive(Clone)]
pub struct Simulated(Arc<Mutex<FolderState>>);

/// An operation of a folder or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
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
        Self::with(Image::default(), Medium::new(Image::default()), seed)
    }

    fn with(now: Image, medium: Medium, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        let (operations, fault, bad, down) = (Vec::new(), None, Vec::new(), false);
        Self(Arc::new(Mutex::new(FolderState { now, medium, operations, fault, bad, down, random })))
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
    pub fn refuse_to_read(&self, name: &str, bytes: Range<u64>) {
        let mut state = self.0.lock();
        let node = state.node(name).expect("there is such a file");
        state.bad.push((node, bytes));
    }

    /// Lets every operation wait, also [`operations`](Self::operations), until the result is dropped.
    pub fn hang(&self) -> impl Sized + '_ {
        self.0.lock()
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
        let mut random = SplitMix64::new(seed);
        let pending = state.medium.pending();
        let is_of_names = |change: &&Change| matches!(change, Change::Move { .. });
        let names = below(&mut random, pending.iter().filter(is_of_names).count() + 1);
        let image = state.medium.crash(&mut |number| match (seed, &pending[number]) {
            (0 | 1, _) => seed == 1,
            (_, Change::Move { .. }) => pending[..number].iter().filter(is_of_names).count() < names,
            _ => below(&mut random, 2) == 1,
        });
        Self::with(image.clone(), Medium::new(image), seed)
    }

    /// The folder that the next process sees: all writes are there, and are no more durable than before.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let state = self.0.lock();
        Self::with(state.now.clone(), state.medium.clone(), 0)
    }

    /// The content of the file `name`, if it exists. This is not an operation.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.lock();
        state.node(name).ok().map(|node| state.now.read(node))
    }

    /// Creates a durable file. This is not an operation.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let state = &mut *self.0.lock();
        state.play(Entry::Flush(Some(ROOT)));
        let node = state.make();
        state.play(Entry::Durable(Change::Write { node, at: 0, bytes: contents.into() }));
        state.play(Entry::Durable(Change::Move { from: None, to: Some((at(name), node)) }));
    }

    fn opened(&self, name: &str, writable: bool) -> io::Result<Box<dyn File>> {
        let mut state = self.0.lock();
        state.whole(Operation::Open)?;
        Ok(Box::new(OpenFile { folder: self.clone(), node: state.node(name)?, writable }))
    }
}

fn below(random: &mut dyn Random, bound: usize) -> usize {
    random.below(bound)
}

fn at(name: &str) -> Name {
    (ROOT, name.to_owned())
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_map().entries(state.names().map(|(name, &node)| (name, state.now.len(node)))).finish()
    }
}

impl Folder for Simulated {
    fn path(&self, name: &str) -> PathBuf {
        Path::new("simulated").join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut state = self.0.lock();
        state.whole(Operation::Names)?;
        Ok(state.names().map(|(name, _)| name.clone()).collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.opened(name, false)
    }

    fn open_to_write(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.opened(name, true)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.0.lock();
        let node = state.make();
        state.all_or_nothing(Operation::Create, Change::Move { from: None, to: Some((at(name), node)) })?;
        Ok(Box::new(OpenFile { folder: self.clone(), node, writable: true }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let Ok(node) = state.node(from) else { return state.missing(Operation::Rename) };
        let change = Change::Move { from: Some(at(from)), to: Some((at(to), node)) };
        state.all_or_nothing(Operation::Rename, change)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let Ok(_) = state.node(name) else { return state.missing(Operation::Remove) };
        state.all_or_nothing(Operation::Remove, Change::Move { from: Some(at(name)), to: None })
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.whole(Operation::SyncFolder)?;
        state.play(Entry::Flush(Some(ROOT)));
        Ok(())
    }
}

#[derive(Debug)]
struct OpenFile {
    folder: Simulated,
    node: Node,
    writable: bool,
}

impl File for OpenFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.folder.0.lock();
        state.whole(Operation::Len)?;
        Ok(state.now.len(self.node))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.folder.0.lock();
        state.whole(Operation::Read)?;
        let end = offset + buffer.len() as u64;
        let is_bad = |(node, bytes): &(Node, Range<u64>)| {
            *node == self.node && bytes.start < end && offset < bytes.end
        };
        if state.bad.iter().any(is_bad) {
            return Err(io::Error::from_raw_os_error(Refusal::Device as i32));
        }
        if end > state.now.len(self.node) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.now.read_at(self.node, offset, buffer);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let state = &mut *self.folder.0.lock();
        if !self.writable {
            return state.whole(Operation::Write).and(Err(io::ErrorKind::PermissionDenied.into()));
        }
        let outcome = state.outcome(Operation::Write)?;
        let written = outcome.share(bytes.len(), &mut state.random);
        let end = offset + written as u64;
        if end > state.now.len(self.node) {
            // The new length may survive without the bytes.
            state.play(Entry::Change(Change::Length { node: self.node, len: end }));
        }
        let change = Change::Write { node: self.node, at: offset, bytes: bytes[..written].into() };
        state.play(Entry::Change(change));
        outcome.result()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.folder.0.lock();
        if !self.writable {
            return state.whole(Operation::SetLen).and(Err(io::ErrorKind::PermissionDenied.into()));
        }
        state.all_or_nothing(Operation::SetLen, Change::Length { node: self.node, len })
    }

    fn modified(&self) -> io::Result<SystemTime> {
        Ok(SystemTime::UNIX_EPOCH)
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.folder.0.lock();
        let outcome = state.outcome(Operation::Sync)?;
        match outcome {
            Outcome::Whole => state.play(Entry::Flush(Some(self.node))),
            Outcome::Part(_) => state.medium.fail_flush(self.node, &mut || below(&mut state.random, 2) == 1),
            Outcome::Cut => {}
        }
        outcome.result()
    }
}

struct FolderState {
    /// What processes see: the page cache.
    now: Image,
    medium: Medium,
    operations: Vec<Operation>,
    /// The operations that fail, and how.
    fault: Option<(Range<usize>, Fault)>,
    /// The unreadable bytes of files.
    bad: Vec<(Node, Range<u64>)>,
    down: bool,
    random: SplitMix64,
}

impl FolderState {
    fn names(&self) -> impl Iterator<Item = (&String, &Node)> {
        self.now.names(ROOT).into_iter().flatten()
    }

    fn node(&self, name: &str) -> io::Result<Node> {
        let names = self.now.names(ROOT);
        names.and_then(|names| names.get(name)).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn make(&mut self) -> Node {
        let node = self.now.make(false);
        self.medium.play::<()>(Entry::Make(node, false));
        node
    }

    fn play(&mut self, entry: Entry<()>) {
        if let Entry::Change(change) | Entry::Durable(change) = &entry {
            self.now.apply(change, &mut || true);
        }
        self.medium.play(entry);
    }

    /// Counts an operation, and returns how much of it is done. After a crash, returns an error.
    fn outcome(&mut self, operation: Operation) -> io::Result<Outcome> {
        let at = self.operations.len();
        self.operations.push(operation);
        if self.down {
            return Err(io::Error::other("nothing works any more"));
        }
        let fault = self.fault.as_ref().filter(|(during, _)| during.contains(&at)).map(|(_, fault)| fault);
        self.down = matches!(fault, Some(Fault::Cut | Fault::Kill));
        Ok(match fault {
            None => Outcome::Whole,
            Some(Fault::Refuse(refusal)) => Outcome::Part(io::Error::from_raw_os_error(*refusal as i32)),
            Some(Fault::Cut) => Outcome::Cut,
            Some(Fault::Kill) => Outcome::Part(io::Error::other("the process is killed")),
        })
    }

    fn whole(&mut self, operation: Operation) -> io::Result<()> {
        self.outcome(operation)?.result()
    }

    fn missing(&mut self, operation: Operation) -> io::Result<()> {
        self.whole(operation).and(Err(io::ErrorKind::NotFound.into()))
    }

    fn all_or_nothing(&mut self, operation: Operation, change: Change) -> io::Result<()> {
        let outcome = self.outcome(operation)?;
        if outcome.share(1, &mut self.random) == 1 {
            self.play(Entry::Change(change));
        }
        outcome.result()
    }
}

/// How much of an operation is done.
enum Outcome {
    Whole,
    /// A random part, and then it fails.
    Part(io::Error),
    /// All of it, and then the power is cut.
    Cut,
}

impl Outcome {
    fn share(&self, most: usize, random: &mut SplitMix64) -> usize {
        if matches!(self, Self::Part(_)) { below(random, most + 1) } else { most }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SECTOR;

    #[test]
    fn synced_bytes_survive_a_power_cut_and_others_by_sectors() {
        let folder = Simulated::new(7);
        let file = folder.create("a").unwrap();
        file.write_all_at(&[1; 4 * SECTOR], 0).unwrap();
        file.sync().unwrap();
        Folder::sync(&folder).unwrap();
        file.write_all_at(&[2; 6 * SECTOR], 0).unwrap();

        assert_eq!(folder.after_power_cut(0).contents("a"), Some(vec![1; 4 * SECTOR]));
        assert_eq!(folder.after_power_cut(1).contents("a"), Some(vec![2; 6 * SECTOR]));
        assert_eq!(folder.after_kill().contents("a"), Some(vec![2; 6 * SECTOR]));
        let (mut torn, mut holes) = (0, 0);
        for seed in 2..66 {
            let disk = folder.after_power_cut(seed).contents("a").unwrap();
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
    fn names_survive_in_order() {
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
    fn writes_before_a_failed_sync_may_be_lost_until_they_are_repeated() {
        let lost = (0..64).filter(|&seed| {
            let folder = Simulated::new(seed);
            let file = folder.create("a").unwrap();
            Folder::sync(&folder).unwrap();
            file.write_all_at(&[1; SECTOR], 0).unwrap();
            folder.refuse(folder.operations().len(), 1, Refusal::Device);
            assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
            file.sync().unwrap();
            let is_lost = folder.after_power_cut(1).contents("a") == Some(Vec::new());
            file.write_all_at(&[1; SECTOR], 0).unwrap();
            file.sync().unwrap();
            assert_eq!(folder.after_power_cut(0).contents("a"), Some(vec![1; SECTOR]));
            is_lost
        });
        assert!((8..56).contains(&lost.count()));
    }

    #[test]
    fn every_operation_fails_after_a_crash() {
        let folder = Simulated::new(7);
        let file = folder.create("a").unwrap();
        folder.cut_power(1);
        assert!(file.write_all_at(b"x", 0).is_err());
        assert!(file.sync().is_err() && folder.names().is_err() && file.len().is_err());
        assert!(folder.after_power_cut(1).names().is_ok());
    }
}
