//! A device that records what is written to it and when it is flushed, and what may be left of it after a
//! crash.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, Mutex},
};

use swarmkeep_content::block::{Barrier, BlockDevice, SECTOR, Sector};

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
    /// Who writes said something.
    Note(N),
}

/// A device that remembers everything.
#[derive(Debug)]
pub(crate) struct Recorder<N> {
    sectors: u64,
    /// Flushes of this kind do nothing.
    deaf: Option<Barrier>,
    recorded: Mutex<Recorded<N>>,
}

#[derive(Debug)]
struct Recorded<N> {
    image: Image,
    log: Vec<Entry<N>>,
}

impl<N> Recorder<N> {
    pub(crate) fn new(sectors: u64, image: Image, deaf: Option<Barrier>) -> Self {
        Self { sectors, deaf, recorded: Mutex::new(Recorded { image, log: Vec::new() }) }
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
        if self.deaf != Some(barrier) {
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
