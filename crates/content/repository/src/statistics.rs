//! Capabilities and counts of stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Geometry, InfoHash};

/// The abilities of a store beyond the trait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether flushed content is there when the store is opened again.
    pub durable: bool,
    /// Whether a [capacity](crate::ContentConfig::capacity) can be set. A store that is not bounded refuses
    /// one.
    pub bounded: bool,
    /// The number of bytes that is best written at once, aligned to the beginning of the torrent: a power of
    /// two, at least 16 KiB.
    pub stripe: u32,
    /// Bytes of the longest [label](crate::ContentRepository::label); 0 if the store keeps none.
    pub label: u32,
}

impl Capabilities {
    /// The capabilities of a store with this stripe that is neither durable nor bounded, and keeps no labels.
    pub const fn new(stripe: u32) -> Self {
        Self { durable: false, bounded: false, stripe, label: 0 }
    }

    /// Flushed content is there when the store is opened again.
    #[must_use]
    pub const fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// A capacity can be set.
    #[must_use]
    pub const fn bounded(mut self) -> Self {
        self.bounded = true;
        self
    }

    /// Torrents have labels of up to this many bytes.
    #[must_use]
    pub const fn labels(mut self, bytes: u32) -> Self {
        self.label = bytes;
        self
    }
}

/// One torrent of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Its info hash.
    pub info_hash: InfoHash,
    /// Its length, and the length of its pieces.
    pub geometry: Geometry,
    /// How many of its pieces are complete.
    pub complete: u32,
}

/// Counts of a store since it was opened, and its current contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Torrents held.
    pub torrents: u64,
    /// Bytes of the medium in use, for any purpose. Deleted torrents take none.
    pub used: u64,
    /// Free bytes of the medium, if the store knows them. A store with a capacity knows them.
    pub free: Option<u64>,
    /// Bytes of memory for writes that are only in memory; never more than `most_unwritten`.
    pub unwritten: u64,
    /// The number of unwritten bytes at which a write waits; 0 if the store holds nothing back.
    pub most_unwritten: u64,
    /// Calls that read. A refused call counts no bytes, here and below.
    pub reads: u64,
    /// Bytes that they returned.
    pub bytes_read: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Bytes that they wrote.
    pub bytes_written: u64,
    /// Flushes of the medium, by the store itself or for its caller.
    pub flushes: u64,
}

/// The counts of [`Statistics`], kept by a store for its calls.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    flushes: AtomicU64,
}

impl Counters {
    /// Counts a read of `bytes` bytes.
    pub fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(bytes, Relaxed);
    }

    /// Counts a write of `bytes` bytes.
    pub fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.bytes_written.fetch_add(bytes, Relaxed);
    }

    /// Counts a flush.
    pub fn flushed(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    /// The counts so far, with nothing else filled in.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            reads: self.reads.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            ..Statistics::default()
        }
    }
}
