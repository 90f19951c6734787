//! A device and a folder of torrent files that record the writes of a store.

use std::{fmt, io, sync::Arc};

use swarmkeep_content::{
    TorrentFolder,
    block::{Barrier, BlockDevice, SECTOR, Sector},
};
use swarmkeep_kit::disk::{self, Change, Entry, Image, Node, PAGE, ROOT};

/// A device of 160 blocks of 16 KiB.
pub(crate) const SECTORS: u64 = 160 * 4;

/// The file that is the device.
pub(crate) const DEVICE: Node = 1;

const FOLDER: Node = 2;

/// A flush that does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IgnoredFlush {
    Device(Barrier),
    /// For the bytes of files.
    Files,
    /// For the names of files.
    Names,
}

/// A device of zeroes beside an empty folder.
pub(crate) fn blank() -> Image {
    let mut image = Image::default();
    for (name, is_folder) in [("device", false), ("torrents", true)] {
        let node = image.make(is_folder);
        image.apply(&Change::Move { from: None, to: Some(((ROOT, name.to_owned()), node)) }, &mut || true);
    }
    image.apply(&Change::Length { node: DEVICE, len: SECTORS * SECTOR as u64 }, &mut || true);
    image
}

pub(crate) fn torrent_file_in(image: &Image, name: &str) -> Option<Vec<u8>> {
    image.names(FOLDER)?.get(name).map(|&node| image.read(node))
}

/// A device and a folder that record all writes.
#[derive(Debug)]
pub(crate) struct Recorder<N> {
    pub(crate) disk: disk::Recorder<N>,
    ignored: Option<IgnoredFlush>,
}

impl<N> Recorder<N> {
    pub(crate) fn new(image: Image, ignored: Option<IgnoredFlush>) -> Self {
        Self { disk: disk::Recorder::new(image), ignored }
    }

    /// The present content of both.
    pub(crate) fn image(&self) -> Image {
        self.disk.now(Image::clone)
    }

    fn put(&self, node: Node, at: u64, bytes: Vec<u8>) {
        self.disk.record(Entry::Change(Change::Write { node, at, bytes: bytes.into() }));
    }

    fn barrier(&self, node: Node, flush: IgnoredFlush) {
        if self.ignored != Some(flush) {
            self.disk.record(Entry::Flush(Some(node)));
        }
    }

    fn node(&self, name: &str) -> io::Result<Node> {
        let find = |image: &Image| image.names(FOLDER).and_then(|names| names.get(name).copied());
        self.disk.now(find).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl<N: fmt::Debug + Send> BlockDevice for Recorder<N> {
    fn sectors(&self) -> u64 {
        SECTORS
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        self.disk.now(|image| {
            (first..).zip(into).for_each(|(at, sector)| sector.0 = *image.page(DEVICE, at));
        });
        Ok(())
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let bytes = parts.iter().copied().flatten().map(|sector| &sector.0[..]).collect::<Vec<_>>().concat();
        assert!(first + (bytes.len() / SECTOR) as u64 <= SECTORS, "a write beyond the end");
        self.put(DEVICE, first * SECTOR as u64, bytes);
        Ok(())
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        self.barrier(DEVICE, IgnoredFlush::Device(barrier));
        Ok(())
    }

    /// Garbage shows if the store still needs the blocks.
    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.put(DEVICE, first * SECTOR as u64, vec![0xdd; count as usize * SECTOR]);
        Ok(())
    }
}

/// The folder beside a recorded device.
#[derive(Debug)]
pub(crate) struct RecordedFolder<N>(pub(crate) Arc<Recorder<N>>);

impl<N: fmt::Debug + Send> TorrentFolder for RecordedFolder<N> {
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let node = self.0.node(name)?;
        Ok(self.0.disk.now(|image| image.read(node)))
    }

    fn names(&self, each: &mut dyn FnMut(&str)) -> io::Result<()> {
        self.0.disk.now(|image| image.names(FOLDER).into_iter().flatten().for_each(|(name, _)| each(name)));
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let node = self.0.disk.make(false);
        let to = Some(((FOLDER, name.to_owned()), node));
        self.0.disk.record(Entry::Change(Change::Move { from: None, to }));
        self.0.put(node, 0, bytes.to_vec());
        Ok(())
    }

    fn flush_file(&self, name: &str) -> io::Result<()> {
        self.0.barrier(self.0.node(name)?, IgnoredFlush::Files);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = ((FOLDER, from.to_owned()), ((FOLDER, to.to_owned()), self.0.node(from)?));
        self.0.disk.record(Entry::Change(Change::Move { from: Some(from), to: Some(to) }));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        unreachable!("{name} stays")
    }

    fn flush(&self) -> io::Result<()> {
        self.0.barrier(FOLDER, IgnoredFlush::Names);
        Ok(())
    }
}

/// A copy in which a sector of the device holds garbage, from byte `at` on.
pub(crate) fn with_garbage(image: &Image, at: u64, seed: u64) -> Image {
    let (page, within) = (at / PAGE as u64, at as usize % PAGE);
    let held = &image.page(DEVICE, page)[within..within + disk::SECTOR];
    let garbage = (1..).zip(held).map(|(n, byte)| byte ^ ((seed.wrapping_mul(n) >> 11) as u8 | 1));
    let mut image = image.clone();
    image.apply(&Change::Write { node: DEVICE, at, bytes: garbage.collect() }, &mut || true);
    image
}
