//! A device and a folder that record writes and flushes, and the states that a crash may leave of both.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, Mutex},
};

use swarmkeep::{Random, SplitMix64};
use swarmkeep_content::{
    TorrentFolder,
    block::{Barrier, BlockDevice, SECTOR, Sector},
};

/// The least that a device writes whole or not at all.
pub(crate) const LOGICAL: usize = 512;

/// Sectors by number; those that are not there are zeroes.
pub(crate) type Image = HashMap<u64, Arc<Sector>>;

/// What happened to a device, in order.
#[derive(Debug, Clone)]
pub(crate) enum Entry<N> {
    /// Sectors were written from that one on.
    Write(u64, Vec<Arc<Sector>>),
    /// What was written is durable.
    Flush,
    /// Something was done in the folder.
    Folder(Step),
    /// Who writes said something.
    Note(N),
}

/// A step in the folder.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Write(String, Arc<[u8]>),
    FlushFile(String),
    Rename(String, String),
    Flush,
}

/// A flush that does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deaf {
    Device(Barrier),
    /// Of the bytes of files.
    Files,
    /// Of the names of files.
    Names,
}

/// A device that remembers everything.
#[derive(Debug)]
pub(crate) struct Recorder<N> {
    sectors: u64,
    deaf: Option<Deaf>,
    recorded: Mutex<Recorded<N>>,
}

#[derive(Debug)]
struct Recorded<N> {
    image: Image,
    folder: Folder,
    log: Vec<Entry<N>>,
}

impl<N> Recorder<N> {
    pub(crate) fn new(sectors: u64, image: Image, deaf: Option<Deaf>) -> Self {
        Self::beside(Folder::default(), sectors, image, deaf)
    }

    /// As [`new`](Self::new), beside a folder in which there is something.
    pub(crate) fn beside(folder: Folder, sectors: u64, image: Image, deaf: Option<Deaf>) -> Self {
        Self { sectors, deaf, recorded: Mutex::new(Recorded { image, folder, log: Vec::new() }) }
    }

    /// The folder as it is now.
    pub(crate) fn folder(&self) -> Folder {
        self.recorded.lock().unwrap().folder.clone()
    }

    fn step(&self, step: Step) {
        let mut recorded = self.recorded.lock().unwrap();
        recorded.folder.apply(&step);
        recorded.log.push(Entry::Folder(step));
    }

    pub(crate) fn note(&self, note: N) {
        self.recorded.lock().unwrap().log.push(Entry::Note(note));
    }

    /// What has been recorded, and how many writes there were.
    pub(crate) fn take_log(&self) -> Vec<Entry<N>> {
        std::mem::take(&mut self.recorded.lock().unwrap().log)
    }

    /// What the device holds now.
    pub(crate) fn image(&self) -> Image {
        self.recorded.lock().unwrap().image.clone()
    }

    /// Whether a write was recorded and not taken.
    pub(crate) fn is_written(&self) -> bool {
        self.recorded.lock().unwrap().log.iter().any(|entry| matches!(entry, Entry::Write(..)))
    }

    fn put(&self, first: u64, written: Vec<Arc<Sector>>) {
        let mut recorded = self.recorded.lock().unwrap();
        assert!(first + written.len() as u64 <= self.sectors, "a write beyond the end");
        for (at, sector) in (first..).zip(&written) {
            recorded.image.insert(at, Arc::clone(sector));
        }
        recorded.log.push(Entry::Write(first, written));
    }
}

impl<N: std::fmt::Debug + Send> BlockDevice for Recorder<N> {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        let recorded = self.recorded.lock().unwrap();
        for (at, sector) in (first..).zip(into) {
            *sector = recorded.image.get(&at).map_or(Sector::ZERO, |sector| **sector);
        }
        Ok(())
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        self.put(first, parts.iter().copied().flatten().map(|sector| Arc::new(*sector)).collect());
        Ok(())
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        if self.deaf != Some(Deaf::Device(barrier)) {
            self.recorded.lock().unwrap().log.push(Entry::Flush);
        }
        Ok(())
    }

    /// Whoever still needs it sees that it is gone.
    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let gone = Arc::new(Sector([0xdd; SECTOR]));
        self.put(first, vec![gone; count as usize]);
        Ok(())
    }
}

/// The folder beside a recorded device.
#[derive(Debug)]
pub(crate) struct RecordedFolder<N>(pub(crate) Arc<Recorder<N>>);

impl<N: std::fmt::Debug + Send> TorrentFolder for RecordedFolder<N> {
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.0.folder().read(name).map(<[u8]>::to_vec).ok_or(io::ErrorKind::NotFound.into())
    }

    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()> {
        self.0.folder().names().for_each(|(name, _)| each(name));
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.step(Step::Write(name.to_owned(), bytes.into()));
        Ok(())
    }

    fn flush_file(&self, name: &str) -> io::Result<()> {
        if self.0.deaf != Some(Deaf::Files) {
            self.0.step(Step::FlushFile(name.to_owned()));
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.step(Step::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        unreachable!("{name} stays")
    }

    fn flush(&self) -> io::Result<()> {
        if self.0.deaf != Some(Deaf::Names) {
            self.0.step(Step::Flush);
        }
        Ok(())
    }
}

/// A folder on a medium: files by number, and the names that are durable and that processes see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folder {
    /// The bytes of each, and whether they are durable.
    files: Vec<(Arc<[u8]>, bool)>,
    durable: BTreeMap<String, usize>,
    now: BTreeMap<String, usize>,
    /// Names given since the last flush: the name that the file had, if any, the new one, and the file.
    pending: Vec<(Option<String>, String, usize)>,
}

impl Folder {
    pub(crate) fn apply(&mut self, step: &Step) {
        let (from, to, file) = match step {
            Step::Write(name, bytes) => {
                self.files.push((Arc::clone(bytes), false));
                (None, name.clone(), self.files.len() - 1)
            }
            Step::Rename(from, to) => (Some(from.clone()), to.clone(), self.now[from]),
            Step::FlushFile(name) => {
                self.files[self.now[name]].1 = true;
                return;
            }
            Step::Flush => {
                self.durable = self.now.clone();
                self.pending.clear();
                return;
            }
        };
        give(&mut self.now, from.as_ref(), &to, file);
        self.pending.push((from, to, file));
    }

    pub(crate) fn read(&self, name: &str) -> Option<&[u8]> {
        self.now.get(name).map(|&file| &*self.files[file].0)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&String, &[u8])> {
        self.now.iter().map(|(name, &file)| (name, &*self.files[file].0))
    }

    /// A state that a crash may leave: any of the names that were given, and half of unflushed bytes.
    pub(crate) fn crash(&self, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        // One in four loses everything that it can, and one in four nothing.
        let all = rng.next_u64() % 4;
        let mut keeps = || if all < 2 { all == 0 } else { rng.next_u64().is_multiple_of(2) };
        let mut left = self.durable.clone();
        for (from, to, file) in &self.pending {
            if keeps() {
                give(&mut left, from.as_ref(), to, *file);
            }
        }
        let mut files = Vec::new();
        for file in left.values_mut() {
            let (bytes, is_durable) = &self.files[*file];
            let kept = if *is_durable || keeps() { bytes.len() } else { bytes.len() / 2 };
            *file = files.len();
            files.push((if kept == bytes.len() { Arc::clone(bytes) } else { bytes[..kept].into() }, true));
        }
        Self { files, now: left.clone(), durable: left, pending: Vec::new() }
    }
}

fn give(names: &mut BTreeMap<String, usize>, from: Option<&String>, to: &str, file: usize) {
    from.into_iter().for_each(|from| _ = names.remove(from));
    names.insert(to.to_owned(), file);
}

/// What was written since the last flush: for each logical sector, what it may hold beside what it held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    pub(crate) writes: Vec<(u64, Vec<Arc<Sector>>)>,
}

impl Pending {
    /// Every logical sector of every write, in order: sector, which part of it, and which write.
    pub(crate) fn logical(&self) -> Vec<(u64, usize, usize)> {
        let mut all = Vec::new();
        for (write, (first, sectors)) in self.writes.iter().enumerate() {
            for at in (*first..).take(sectors.len()) {
                all.extend((0..SECTOR / LOGICAL).map(|part| (at, part, write)));
            }
        }
        all
    }

    /// What is left if the writes that `kept` names reach the medium, in their order.
    pub(crate) fn some_writes(&self, base: &Image, kept: impl Fn(usize) -> bool) -> Image {
        let mut image = base.clone();
        for (_, (first, sectors)) in self.writes.iter().enumerate().filter(|(write, _)| kept(*write)) {
            image.extend((*first..).zip(sectors.iter().cloned()));
        }
        image
    }

    /// What is left if logical sectors reach the medium as `kept` says, one by one: of several writes of one,
    /// the last that is kept counts.
    pub(crate) fn some_sectors(&self, base: &Image, mut kept: impl FnMut() -> bool) -> Image {
        let mut image = base.clone();
        let mut torn = BTreeMap::<u64, Sector>::new();
        for (at, part, write) in self.logical() {
            if !kept() {
                continue;
            }
            let (first, sectors) = &self.writes[write];
            let sector =
                torn.entry(at).or_insert_with(|| base.get(&at).map_or(Sector::ZERO, |sector| **sector));
            let range = part * LOGICAL..(part + 1) * LOGICAL;
            sector.0[range.clone()].copy_from_slice(&sectors[(at - first) as usize].0[range]);
        }
        image.extend(torn.into_iter().map(|(at, sector)| (at, Arc::new(sector))));
        image
    }
}

/// A copy in which a logical sector holds garbage.
pub(crate) fn with_garbage(image: &Image, at: u64, part: usize, seed: u64) -> Image {
    let mut image = image.clone();
    let mut sector = image.get(&at).map_or(Sector::ZERO, |sector| **sector);
    for (n, byte) in (1..).zip(&mut sector.0[part * LOGICAL..(part + 1) * LOGICAL]) {
        *byte ^= (seed.wrapping_mul(n) >> 11) as u8 | 1;
    }
    image.insert(at, Arc::new(sector));
    image
}
