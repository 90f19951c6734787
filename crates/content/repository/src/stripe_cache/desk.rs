//! What is to be written, in which order, and the memory it takes.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::{
    gathered::{Chunk, Gathered, chunk},
    read_ahead::ReadAhead,
    torrent::Torrent,
};
use crate::{ContentRepository, Counters, InfoHash};

/// What the handles of a cache and its threads share.
///
/// Locks are taken in this order: a claim of `Running`, `Torrent::gate`, `Torrent::writing`, `torrents`,
/// `Torrent::state`, then `desk` or those of `read_ahead`. None from `torrents` on is held while the store
/// below is asked for anything; those before it keep back only who creates, deletes or marks, and the threads
/// that write take none of them, so that who waits for memory gets it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) inner: Arc<dyn ContentRepository>,
    pub(super) stripe: u64,
    pub(super) chunk: u64,
    /// Bytes of chunks that there may be.
    pub(super) most: u64,
    /// Whether the store below knows how much room it has.
    pub(super) knows_room: bool,
    /// Those that were opened.
    pub(super) torrents: RwLock<HashMap<InfoHash, Arc<Torrent>>>,
    desk: Mutex<Desk>,
    /// Told when memory becomes free.
    room: Condvar,
    /// Told when there is something to do for the threads.
    work: Condvar,
    pub(super) read_ahead: ReadAhead,
    pub(super) serials: AtomicU64,
    pub(super) counters: Counters,
    pub(super) whole: AtomicU64,
    pub(super) partial: AtomicU64,
    pub(super) calls: AtomicU64,
}

#[derive(Debug, Default)]
struct Desk {
    /// Bytes of chunks that are in use.
    taken: u64,
    /// Chunks that are not: together with those in use, never more than there may be.
    spare: Vec<Chunk>,
    /// Room of the store below that is kept for what is not there yet.
    promised: u64,
    /// What of it is kept for writes that go past the cache.
    through: u64,
    /// Counts what could let one of these go on.
    kept: u64,
    /// What is to be written and has no order yet.
    due: Vec<Job>,
    /// What is written next, in this order.
    going: VecDeque<Job>,
    /// Threads that write.
    writing: usize,
    /// Threads that look for what is written next.
    sorting: usize,
    /// Who waits for memory and for how many bytes, first come, first served.
    waiting: VecDeque<(u64, u64)>,
    /// Counts what could give the threads something to do.
    changes: u64,
    stop: bool,
}

/// A stripe that is to be written.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) torrent: Arc<Torrent>,
    pub(super) stripe: u64,
}

/// A place in the line of those who wait for memory, until it is dropped.
pub(super) struct Line<'a> {
    core: &'a Core,
    ticket: Option<u64>,
}

/// Room of the store below, kept for who has it until it is dropped.
pub(super) struct Promise<'a> {
    core: &'a Core,
    /// As many as it began with.
    all: u64,
    bytes: u64,
}

/// Room of the store below for a write that goes past the cache, until it is dropped.
pub(super) struct Through<'a> {
    core: &'a Core,
    bytes: u64,
}

impl Core {
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
            torrents: RwLock::default(),
            desk: Mutex::default(),
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

    /// Bytes of memory that are taken by what is on no store yet.
    pub(super) fn taken(&self) -> u64 {
        self.desk.lock().taken
    }

    pub(super) fn line(&self) -> Line<'_> {
        Line { core: self, ticket: None }
    }

    /// Keeps so much room of the store below, if it has it.
    ///
    /// What is promised is counted before the store is asked, and let go only after what it was for was
    /// written, so that no byte is promised twice.
    pub(super) fn promise(&self, bytes: u64) -> Option<Promise<'_>> {
        let promise = Promise { core: self, all: bytes, bytes };
        if bytes == 0 {
            return Some(promise);
        }
        let promised = {
            let mut desk = self.desk.lock();
            desk.promised += bytes;
            desk.promised
        };
        self.has_room(promised).then_some(promise)
    }

    /// A little more is left to file systems, which take whole blocks: 256 KiB that begin anywhere touch 65
    /// of 4 KiB.
    fn has_room(&self, promised: u64) -> bool {
        self.inner.statistics().free.is_none_or(|free| promised + promised / 64 <= free)
    }

    /// Makes way for a write that goes past the cache and takes so much room: until it is done, everything
    /// that is held back has been written or has room all the same.
    pub(super) fn make_way(&self, bytes: u64) -> Through<'_> {
        let mut desk = self.desk.lock();
        desk.promised += bytes;
        desk.through += bytes;
        loop {
            let seen = desk.kept;
            drop(desk);
            self.write_out();
            let (promised, through) = {
                let desk = self.desk.lock();
                (desk.promised, desk.through)
            };
            if promised == through || self.has_room(promised) {
                return Through { core: self, bytes };
            }
            desk = self.desk.lock();
            self.room.wait_while(&mut desk, |desk| desk.kept == seen);
        }
    }

    /// Writes everything that is held back, and waits until it is written.
    pub(super) fn write_out(&self) {
        let torrents = self.torrents();
        let mut jobs = Vec::new();
        let awaited: Vec<_> = torrents.iter().map(|torrent| torrent.begin_flush(&mut jobs)).collect();
        self.queue(jobs);
        for (torrent, awaited) in torrents.iter().zip(awaited) {
            torrent.end_flush(awaited);
        }
    }

    /// Has jobs done.
    pub(super) fn queue(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut desk = self.desk.lock();
        desk.due.extend(jobs);
        self.something_to_do(desk);
    }

    fn something_to_do(&self, mut desk: MutexGuard<'_, Desk>) {
        desk.changes += 1;
        drop(desk);
        self.work.notify_all();
    }

    /// Takes back memory that was lent, and room of the store below.
    pub(super) fn give_back(&self, chunks: impl IntoIterator<Item = Chunk>, promised: u64) {
        let mut guard = self.desk.lock();
        let desk = &mut *guard;
        let before = desk.spare.len();
        desk.spare.extend(chunks);
        desk.taken -= (desk.spare.len() - before) as u64 * self.chunk;
        desk.promised -= promised;
        desk.kept += 1;
        // When nothing waits to be written, most of the memory is let go; what is left saves asking for it
        // with every stripe.
        let kept = (self.most / KEPT / self.chunk) as usize;
        let surplus =
            if desk.taken == 0 { desk.spare.split_off(kept.min(desk.spare.len())) } else { Vec::new() };
        self.room.notify_all();
        self.something_to_do(guard);
        // That takes its time: nobody waits for it.
        drop(surplus);
    }

    /// Takes back what a stripe had.
    pub(super) fn give_back_all(&self, gathered: Gathered) {
        let promised = gathered.promised;
        self.give_back(gathered.into_chunks(), promised);
    }

    pub(super) fn torrents(&self) -> Vec<Arc<Torrent>> {
        self.torrents.read().values().cloned().collect()
    }

    /// What a thread that writes does until it is told to stop.
    pub(super) fn write_until_stopped(&self) {
        let mut desk = self.desk.lock();
        while !desk.stop {
            if let Some(job) = desk.going.pop_front() {
                desk.writing += 1;
                drop(desk);
                if let Some(landed) = job.torrent.write_stripe(self, job.stripe) {
                    self.give_back_all(landed);
                    job.torrent.landed(self, job.stripe);
                }
                desk = self.desk.lock();
                desk.writing -= 1;
            } else if !desk.due.is_empty() {
                let due = std::mem::take(&mut desk.due);
                desk = self.sort(desk, due);
            } else if desk.sorting == 0
                && desk.waiting.front().is_some_and(|&(_, bytes)| desk.taken + bytes > self.most)
            {
                if desk.writing > 0 && !self.work.wait_for(&mut desk, PATIENCE).timed_out() {
                    continue;
                }
                // What could still be written is not whole. One thread looks for what to write all the same.
                let changes = desk.changes;
                let wanted = self.most / EVICTED;
                desk.sorting += 1;
                drop(desk);
                let chosen = choose(&self.torrents(), wanted);
                desk = self.desk.lock();
                desk.sorting -= 1;
                if chosen.is_empty() && desk.changes == changes {
                    self.work.wait(&mut desk);
                } else {
                    desk = self.sort(desk, chosen);
                }
            } else {
                self.work.wait(&mut desk);
            }
        }
    }

    /// Puts jobs in the order of the device, behind those that are going.
    fn sort<'a>(&'a self, mut desk: MutexGuard<'a, Desk>, jobs: Vec<Job>) -> MutexGuard<'a, Desk> {
        desk.sorting += 1;
        drop(desk);
        let mut jobs: Vec<_> = jobs
            .into_iter()
            // Whoever deletes a torrent would be waited for; if that fails, he queues them anew.
            .filter(|job| !job.torrent.state.lock().held)
            .map(|job| {
                let place = job.torrent.place(job.stripe);
                // What has no place yet comes last and in its own order: a store that takes one place after
                // another then lays it out well.
                ((place.is_none(), place, job.torrent.info_hash, job.stripe), job)
            })
            .collect();
        jobs.sort_unstable_by_key(|(key, _)| *key);
        let mut desk = self.desk.lock();
        desk.sorting -= 1;
        desk.going.extend(jobs.into_iter().map(|(_, job)| job));
        desk.changes += 1;
        self.work.notify_all();
        desk
    }

    pub(super) fn stop(&self) {
        let mut desk = self.desk.lock();
        desk.stop = true;
        self.something_to_do(desk);
    }
}

/// The part of the memory that is kept when nothing waits to be written.
const KEPT: u64 = 16;

/// How long what others write is waited for, as it frees memory too: longer than a disk takes for a stripe of
/// 4 MiB (30 ms at 150 MB/s), unless it stalls.
const PATIENCE: Duration = Duration::from_millis(100);

/// When nothing is whole and memory is needed, an eighth of it is freed at once: the more is written in one
/// go, the shorter are the ways between, and the more of what stays can still become whole.
const EVICTED: u64 = 8;

/// Which stripes to write although they are not whole, of at least so many bytes together if there are so
/// many.
///
/// Those that miss the fewest bytes. Pieces that come in random order come to all stripes alike, so what
/// misses the least has the least to gain from waiting, and frees the most memory for a call. Simulated with
/// 4 torrents of 64 stripes, 16 pieces each, in random order and a quarter of them in memory: 2,040 calls,
/// against 2,348 if those with most in memory go first, 2,433 of the oldest and 2,532 of those that were
/// touched least recently.
fn choose(torrents: &[Arc<Torrent>], wanted: u64) -> Vec<Job> {
    let mut all: Vec<_> = torrents
        .iter()
        .flat_map(|torrent| {
            let partial = torrent.state.lock().partial();
            partial.into_iter().map(move |(missing, memory, stripe)| {
                (missing, Reverse(memory), Job { torrent: Arc::clone(torrent), stripe })
            })
        })
        .collect();
    all.sort_unstable_by_key(|(missing, memory, job)| (*missing, *memory, job.torrent.info_hash, job.stripe));
    let mut chosen = Vec::new();
    let mut bytes = 0;
    for (_, Reverse(memory), job) in all {
        if bytes >= wanted && !chosen.is_empty() {
            break;
        }
        if job.torrent.state.lock().becomes_due(job.stripe) {
            bytes += memory;
            chosen.push(job);
        }
    }
    chosen
}

impl Line<'_> {
    /// So many chunks, if it is the caller's turn and there is memory.
    pub(super) fn take(&mut self, chunks: usize) -> Option<Vec<Chunk>> {
        let core = self.core;
        let bytes = chunks as u64 * core.chunk;
        let mut desk = core.desk.lock();
        let turn = desk.waiting.front().is_none_or(|&(first, _)| Some(first) == self.ticket);
        if !turn || desk.taken + bytes > core.most {
            return None;
        }
        desk.taken += bytes;
        let spare = desk.spare.len().saturating_sub(chunks);
        let mut taken = desk.spare.split_off(spare);
        drop(desk);
        taken.resize_with(chunks, || chunk(core.chunk));
        Some(taken)
    }

    /// Waits for its turn, and for memory for so many chunks.
    pub(super) fn wait(&mut self, chunks: usize) {
        let core = self.core;
        let bytes = chunks as u64 * core.chunk;
        let mut desk = core.desk.lock();
        let ticket = *self.ticket.get_or_insert_with(|| core.serial());
        match desk.waiting.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, wanted)) => *wanted = bytes,
            None => desk.waiting.push_back((ticket, bytes)),
        }
        desk.changes += 1;
        core.work.notify_all();
        let waits = |desk: &mut Desk| {
            desk.waiting.front().is_none_or(|&(first, _)| first != ticket) || desk.taken + bytes > core.most
        };
        core.room.wait_while(&mut desk, waits);
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut desk = self.core.desk.lock();
            desk.waiting.retain(|&(other, _)| other != ticket);
            self.core.room.notify_all();
            // Whoever is next may need more than there is.
            self.core.something_to_do(desk);
        }
    }
}

impl Promise<'_> {
    /// Hands on so much of it, if there is as much.
    pub(super) fn take(&mut self, most: u64) -> u64 {
        let taken = self.bytes.min(most);
        self.bytes -= taken;
        taken
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.all == 0 {
            return;
        }
        let mut desk = self.core.desk.lock();
        desk.promised -= self.bytes;
        // What was taken of it is in memory by now, where whoever makes way can have it written.
        desk.kept += 1;
        self.core.room.notify_all();
    }
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        let mut desk = self.core.desk.lock();
        desk.promised -= self.bytes;
        desk.through -= self.bytes;
        desk.kept += 1;
        self.core.room.notify_all();
    }
}

/// The stripes that have bytes in a range.
pub(super) const fn stripes_of(range: &Range<u64>, stripe: u64) -> Range<u64> {
    if range.start >= range.end {
        return 0..0;
    }
    range.start / stripe..range.end.div_ceil(stripe)
}
