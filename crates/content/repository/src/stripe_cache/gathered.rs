//! The bytes of one stripe on their way to the store below.

use std::{
    io::{IoSlice, IoSliceMut},
    ops::Range,
    time::Instant,
};

use zerocopy::IntoBytes;

use crate::{
    block::{SECTOR, Sector, sectors},
    buffers::range_of,
    stretches::Stretches,
};

/// A piece of memory, aligned as devices want it.
pub(super) type Chunk = Box<[Sector]>;

/// The unit in which a stripe takes memory. Pieces are seldom shorter, so a stripe of few pieces wastes
/// little; and the page that glibc adds to each aligned allocation is less than 2 % of it (6 % of 64 KiB).
pub(super) const CHUNK: u32 = 256 << 10;

/// `bytes` bytes of memory.
pub(super) fn chunk(bytes: u64) -> Chunk {
    sectors(bytes as usize / SECTOR).into()
}

/// The bytes of a stripe that are not written to the store below yet.
pub(super) struct UnwrittenStripe {
    /// No two have the same.
    pub(super) serial: u64,
    /// When its first bytes were written.
    pub(super) since: Instant,
    /// Room of the store below that is reserved for it: for each chunk as much as writes there could take,
    /// but no more than for the whole stripe.
    pub(super) reserved: u64,
    /// Room that the whole stripe takes.
    whole: u64,
    /// Whether more room may be needed for a chunk than was when it was taken.
    unsure: bool,
    /// Whether it is among the next stripes to write.
    pub(super) due: bool,
    /// The stripe's bytes in the torrent.
    range: Range<u64>,
    chunk: u64,
    chunks: Vec<Option<Chunk>>,
    runs: Stretches,
}

impl UnwrittenStripe {
    pub(super) fn new(serial: u64, range: Range<u64>, chunk: u64) -> Self {
        let chunks = (range.end - range.start).div_ceil(chunk) as usize;
        let chunks = std::iter::repeat_with(|| None).take(chunks).collect();
        Self {
            serial,
            since: Instant::now(),
            reserved: 0,
            whole: 0,
            unsure: false,
            due: false,
            range,
            chunk,
            chunks,
            runs: Stretches::default(),
        }
    }

    /// Whether all the room that a part may need is kept.
    pub(super) fn has_room(&self, part: &Range<u64>) -> bool {
        self.reserved >= self.whole || !self.unsure && self.lacks(part) == 0
    }

    /// Room that it can still need; `whole` is the room of the whole stripe.
    pub(super) fn missing_room(&mut self, whole: u64) -> u64 {
        self.whole = self.whole.max(whole);
        self.whole.saturating_sub(self.reserved)
    }

    fn chunks_of(&self, part: &Range<u64>) -> Range<usize> {
        ((part.start - self.range.start) / self.chunk) as usize
            ..(part.end - self.range.start).div_ceil(self.chunk) as usize
    }

    /// How many chunks are missing to hold a part of it.
    pub(super) fn lacks(&self, part: &Range<u64>) -> usize {
        self.chunks[self.chunks_of(part)].iter().filter(|chunk| chunk.is_none()).count()
    }

    /// Takes a part, and memory for it, as much as it [lacks](Self::lacks).
    pub(super) fn put(&mut self, part: Range<u64>, buffers: &[IoSlice<'_>], from: u64, memory: Vec<Chunk>) {
        let mut memory = memory.into_iter();
        let chunks = self.chunks_of(&part);
        for chunk in self.chunks[chunks].iter_mut().filter(|chunk| chunk.is_none()) {
            *chunk = Some(memory.next().expect("as many as were missing"));
        }
        let mut at = part.start;
        let range = from..from + (part.end - part.start);
        for mut bytes in range_of(buffers.iter().map(|buffer| &**buffer), range) {
            while !bytes.is_empty() {
                let within = at - self.range.start;
                let chunk = self.chunks[(within / self.chunk) as usize].as_mut().expect("taken above");
                let into = &mut chunk.as_mut_bytes()[(within % self.chunk) as usize..];
                let (now, later) = bytes.split_at(bytes.len().min(into.len()));
                into[..now.len()].copy_from_slice(now);
                (at, bytes) = (at + now.len() as u64, later);
            }
        }
        self.runs.insert(part);
    }

    /// Forgets a part. Returns the memory that is no longer needed.
    pub(super) fn forget(&mut self, part: &Range<u64>) -> Vec<Chunk> {
        self.runs.remove(part);
        let part = part.start.max(self.range.start)..part.end.min(self.range.end);
        // The store below may have given its room to others.
        self.whole += part.end - part.start;
        self.unsure = true;
        let start = self.range.start;
        let free = self.chunks_of(&part).filter(|&at| {
            let from = start + at as u64 * self.chunk;
            !self.runs.overlaps(&(from..from + self.chunk))
        });
        let free: Vec<_> = free.collect();
        free.into_iter().filter_map(|at| self.chunks[at].take()).collect()
    }

    pub(super) const fn runs(&self) -> &Stretches {
        &self.runs
    }

    /// The memory of a range that is all there.
    pub(super) fn slices(&self, range: &Range<u64>) -> impl Iterator<Item = &[u8]> {
        let mut at = range.start;
        let end = range.end;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at - self.range.start;
                let chunk = self.chunks[(within / self.chunk) as usize].as_ref().expect("it was written");
                let from = within % self.chunk;
                let len = (self.chunk - from).min(end - at);
                at += len;
                &chunk.as_bytes()[from as usize..(from + len) as usize]
            })
        })
    }

    pub(super) fn memory(&self) -> u64 {
        self.chunks.iter().flatten().count() as u64 * self.chunk
    }

    pub(super) fn into_chunks(self) -> impl Iterator<Item = Chunk> {
        self.chunks.into_iter().flatten()
    }
}

debug_as!(UnwrittenStripe, it, "UnwrittenStripe {{ range: {:?}, runs: {:?}, .. }}", it.range, it.runs);

/// Fills a range of the buffers with as many bytes.
pub(super) fn fill<'b>(
    buffers: &mut [IoSliceMut<'_>],
    range: Range<u64>,
    bytes: impl IntoIterator<Item = &'b [u8]>,
) {
    let mut bytes = bytes.into_iter();
    let mut have: &[u8] = &[];
    for mut into in range_of(buffers.iter_mut().map(|buffer| &mut **buffer), range) {
        while !into.is_empty() {
            if have.is_empty() {
                have = bytes.next().expect("as many bytes as there is room for");
            }
            let len = have.len().min(into.len());
            let (now, later) = into.split_at_mut(len);
            now.copy_from_slice(&have[..len]);
            (have, into) = (&have[len..], later);
        }
    }
}
