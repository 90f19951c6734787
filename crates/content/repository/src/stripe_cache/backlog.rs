//! The stripes to write, their order, and the memory that they take.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    gathered::{Chunk, UnwrittenStripe, chunk},
    read_ahead::ReadAhead,
    torrent::StripeJob,
    writers::Writers,
};
use crate::{ContentRepository, Counters};

/// The state that the torrents of a cache, their handles and the threads share.
///
/// Locks are taken in this order: a claim of `Running`, `CachedTorrent::gate`, `CachedTorrent::writing`,
/// `Writers::torrents`, `CachedTorrent::state`, then `backlog` or those of `read_ahead`. No lock from
/// `Writers::torrents` on is held while the store below is called. The locks before it delay only the calls
/// that create, delete or mark. The threads that write take none of these, so memory becomes free for the
/// calls that wait for it.
#[derive(Debug)]
pub(super) struct CacheCore {
    pub(super) inner: Arc<dyn ContentRepository>,
    pub(super) stripe: u64,
    pub(super) chunk: u64,
    /// Bytes of chunks that there may be.
    pub(super) most: u64,
    /// Whether the store below knows its free room.
    pub(super) knows_room: bool,
    backlog: Mutex<Backlog>,
    /// Notified when memory becomes free.
    room: Condvar,
    /// Notified when the threads have work.
    work: Condvar,
    pub(super) read_ahead: ReadAhead,
    pub(super) serials: AtomicU64,
    pub(super) counters: Counters,
    pub(super) whole: AtomicU64,
    pub(super) partial: AtomicU64,
    pub(super) calls: AtomicU64,
}

/// The jobs, and the accounts of memory and room.
#[derive(Debug, Default)]
struct Backlog {
    /// Bytes of chunks that are in use.
    taken: u64,
    /// Chunks that are not. Together with the chunks in use, they never exceed the limit.
    spare: Vec<Chunk>,
    /// Room of the store below that is reserved for bytes that are not there yet.
    reserved: u64,
    /// The part of it that is reserved for writes past the cache.
    through: u64,
    /// Counts events that may let one of these go on.
    kept: u64,
    /// Stripes to write that have no order yet.
    due: Vec<StripeJob>,
    /// The next stripes to write, in this order.
    going: VecDeque<StripeJob>,
    writing: usize,
    /// Threads that look for the next stripes to write.
    sorting: usize,
    /// Tickets of the calls that wait for memory, and their numbers of bytes: first come, first served.
    waiting: VecDeque<(u64, u64)>,
    /// Counts events that may give the threads work.
    changes: u64,
    stop: bool,
}

/// A place in the queue for memory, until it is dropped.
pub(super) struct MemoryTicket<'a> {
    core: &'a CacheCore,
    ticket: Option<u64>,
}

/// Room of the store below, reserved until this is dropped.
pub(super) struct RoomReservation<'a> {
    core: &'a CacheCore,
    /// As many as it began with.
    all: u64,
    bytes: u64,
}

/// Room of the store below for a write that goes past the cache, until it is dropped.
pub(super) struct WriteThroughRoom<'a> {
    core: &'a CacheCore,
    bytes: u64,
}

impl CacheCore {
    pub(super) fn new(
        inner: Arc<dyn ContentRepository>,
        stripe: u64,
        chunk: u64,
        most: u64,
        read_memory: u64,
    ) -> Self {
        Self {
            knows_room: inner.statistics().free.is_some(),
            inner,
            stripe,
            chunk,
            most,
            backlog: Mutex::default(),
            room: Condvar::new(),
            work: Condvar::new(),
            read_ahead: ReadAhead::new(read_memory, stripe),
            serials: AtomicU64::new(0),
            counters: Counters::default(),
            whole: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    pub(super) fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Relaxed)
    }

    /// Bytes of memory that hold unwritten content.
    pub(super) fn taken(&self) -> u64 {
        self.backlog.lock().taken
    }

    pub(super) fn memory_ticket(&self) -> MemoryTicket<'_> {
        MemoryTicket { core: self, ticket: None }
    }

    /// Reserves `bytes` bytes of the store below, if it has room.
    ///
    /// The bytes are counted before the store is asked for its room, and released only after they were
    /// written, so that no byte is reserved twice.
    pub(super) fn reserve(&self, bytes: u64) -> Option<RoomReservation<'_>> {
        let reservation = RoomReservation { core: self, all: bytes, bytes };
        if bytes == 0 {
            return Some(reservation);
        }
        let reserved = {
            let mut backlog = self.backlog.lock();
            backlog.reserved += bytes;
            backlog.reserved
        };
        self.has_room(reserved).then_some(reservation)
    }

    /// A little more is left to file systems, which take whole blocks: 256 KiB that begin anywhere touch 65
    /// of 4 KiB.
    fn has_room(&self, reserved: u64) -> bool {
        self.inner.statistics().free.is_none_or(|free| reserved + reserved / 64 <= free)
    }

    /// Makes room for a write of `bytes` past the cache: when it returns, all held-back bytes are written, by
    /// `write_out`, or the store has room for them too.
    pub(super) fn make_way(&self, bytes: u64, write_out: impl Fn()) -> WriteThroughRoom<'_> {
        let mut backlog = self.backlog.lock();
        backlog.reserved += bytes;
        backlog.through += bytes;
        loop {
            let seen = backlog.kept;
            drop(backlog);
            write_out();
            let (reserved, through) = {
                let backlog = self.backlog.lock();
                (backlog.reserved, backlog.through)
            };
            if reserved == through || self.has_room(reserved) {
                return WriteThroughRoom { core: self, bytes };
            }
            backlog = self.backlog.lock();
            self.room.wait_while(&mut backlog, |backlog| backlog.kept == seen);
        }
    }

    pub(super) fn queue(&self, jobs: impl IntoIterator<Item = StripeJob>) {
        let mut backlog = self.backlog.lock();
        backlog.due.extend(jobs);
        self.something_to_do(backlog);
    }

    fn something_to_do(&self, mut backlog: MutexGuard<'_, Backlog>) {
        backlog.changes += 1;
        drop(backlog);
        self.work.notify_all();
    }

    /// Takes back chunks, and room of the store below.
    pub(super) fn give_back(&self, chunks: impl IntoIterator<Item = Chunk>, reserved: u64) {
        let mut guard = self.backlog.lock();
        let backlog = &mut *guard;
        let before = backlog.spare.len();
        backlog.spare.extend(chunks);
        backlog.taken -= (backlog.spare.len() - before) as u64 * self.chunk;
        backlog.reserved -= reserved;
        backlog.kept += 1;
        // When nothing waits to be written, most of the memory is released; the rest saves an allocation for
        // every stripe.
        let kept = (self.most / KEPT / self.chunk) as usize;
        let surplus = if backlog.taken == 0 {
            backlog.spare.split_off(kept.min(backlog.spare.len()))
        } else {
            Vec::new()
        };
        self.room.notify_all();
        self.something_to_do(guard);
        // This takes time: no thread should wait for it.
        drop(surplus);
    }

    /// Takes back the memory and the room of a stripe.
    pub(super) fn give_back_all(&self, gathered: UnwrittenStripe) {
        let reserved = gathered.reserved;
        self.give_back(gathered.into_chunks(), reserved);
    }

    /// The loop of a thread that writes.
    pub(super) fn write_until_stopped(&self, writers: &Writers) {
        let mut backlog = self.backlog.lock();
        while !backlog.stop {
            if let Some(job) = backlog.going.pop_front() {
                backlog.writing += 1;
                drop(backlog);
                job.torrent.write_stripe(self, job.stripe);
                drop(job);
                backlog = self.backlog.lock();
                backlog.writing -= 1;
            } else if !backlog.due.is_empty() {
                let due = std::mem::take(&mut backlog.due);
                backlog = self.sort(backlog, writers, due);
            } else if backlog.sorting == 0
                && backlog.waiting.front().is_some_and(|&(_, bytes)| backlog.taken + bytes > self.most)
            {
                if backlog.writing > 0 && !self.work.wait_for(&mut backlog, PATIENCE).timed_out() {
                    continue;
                }
                // No whole stripe is left to write. One thread looks for others.
                let changes = backlog.changes;
                let wanted = self.most / EVICTED;
                backlog.sorting += 1;
                drop(backlog);
                let chosen = writers.choose(wanted);
                backlog = self.backlog.lock();
                backlog.sorting -= 1;
                if chosen.is_empty() && backlog.changes == changes {
                    self.work.wait(&mut backlog);
                } else {
                    backlog = self.sort(backlog, writers, chosen);
                }
            } else {
                self.work.wait(&mut backlog);
            }
        }
    }

    /// Sorts jobs, and appends them to `going`.
    fn sort<'a>(
        &'a self,
        mut backlog: MutexGuard<'a, Backlog>,
        writers: &Writers,
        jobs: Vec<StripeJob>,
    ) -> MutexGuard<'a, Backlog> {
        backlog.sorting += 1;
        drop(backlog);
        let jobs = writers.sort(jobs);
        let mut backlog = self.backlog.lock();
        backlog.sorting -= 1;
        backlog.going.extend(jobs);
        backlog.changes += 1;
        self.work.notify_all();
        backlog
    }

    pub(super) fn stop(&self) {
        let mut backlog = self.backlog.lock();
        backlog.stop = true;
        self.something_to_do(backlog);
    }
}

/// The part of the memory that is kept when nothing waits to be written.
const KEPT: u64 = 16;

/// How long a thread waits for other writes, which also free memory: longer than a disk takes for a stripe of
/// 4 MiB (30 ms at 150 MB/s), unless it stalls.
const PATIENCE: Duration = Duration::from_millis(100);

/// When no stripe is whole and memory is needed, an eighth of it is freed at once: the more is written
/// together, the shorter are the seeks, and the more of the rest can still become whole.
const EVICTED: u64 = 8;

impl MemoryTicket<'_> {
    /// Takes `chunks` chunks, if it is the caller's turn and there is memory.
    pub(super) fn take(&mut self, chunks: usize) -> Option<Vec<Chunk>> {
        let core = self.core;
        let bytes = chunks as u64 * core.chunk;
        let mut backlog = core.backlog.lock();
        let turn = backlog.waiting.front().is_none_or(|&(first, _)| Some(first) == self.ticket);
        if !turn || backlog.taken + bytes > core.most {
            return None;
        }
        backlog.taken += bytes;
        let spare = backlog.spare.len().saturating_sub(chunks);
        let mut taken = backlog.spare.split_off(spare);
        drop(backlog);
        taken.resize_with(chunks, || chunk(core.chunk));
        Some(taken)
    }

    /// Waits for its turn, and for memory for `chunks` chunks.
    pub(super) fn wait(&mut self, chunks: usize) {
        let core = self.core;
        let bytes = chunks as u64 * core.chunk;
        let mut backlog = core.backlog.lock();
        let ticket = *self.ticket.get_or_insert_with(|| core.serial());
        match backlog.waiting.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, wanted)) => *wanted = bytes,
            None => backlog.waiting.push_back((ticket, bytes)),
        }
        backlog.changes += 1;
        core.work.notify_all();
        let waits = |backlog: &mut Backlog| {
            backlog.waiting.front().is_none_or(|&(first, _)| first != ticket)
                || backlog.taken + bytes > core.most
        };
        core.room.wait_while(&mut backlog, waits);
    }
}

impl Drop for MemoryTicket<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut backlog = self.core.backlog.lock();
            backlog.waiting.retain(|&(other, _)| other != ticket);
            self.core.room.notify_all();
            // The next call may need more memory than there is.
            self.core.something_to_do(backlog);
        }
    }
}

impl RoomReservation<'_> {
    /// Hands on up to `most` bytes of it.
    pub(super) fn take(&mut self, most: u64) -> u64 {
        let taken = self.bytes.min(most);
        self.bytes -= taken;
        taken
    }
}

impl Drop for RoomReservation<'_> {
    fn drop(&mut self) {
        if self.all == 0 {
            return;
        }
        let mut backlog = self.core.backlog.lock();
        backlog.reserved -= self.bytes;
        // The bytes that were taken are in memory by now, where `make_way` can have them written.
        backlog.kept += 1;
        self.core.room.notify_all();
    }
}

impl Drop for WriteThroughRoom<'_> {
    fn drop(&mut self) {
        let mut backlog = self.core.backlog.lock();
        backlog.reserved -= self.bytes;
        backlog.through -= self.bytes;
        backlog.kept += 1;
        self.core.room.notify_all();
    }
}

pub(super) const fn stripes_of(range: &Range<u64>, stripe: u64) -> Range<u64> {
    if range.start >= range.end {
        return 0..0;
    }
    range.start / stripe..range.end.div_ceil(stripe)
}
