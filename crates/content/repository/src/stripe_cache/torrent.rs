//! One torrent of the cache: its state, and its bytes in memory.

mod handle;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IoSlice},
    mem,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

pub(super) use handle::Handle;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{
    backlog::{CacheCore, stripes_of},
    gathered::{Chunk, UnwrittenStripe},
};
use crate::{Content, Error, Geometry, InfoHash, Pieces, Result};

#[derive(Debug, Clone)]
pub(super) struct StripeJob {
    pub(super) torrent: Arc<CachedTorrent>,
    pub(super) stripe: u64,
}

/// A piece that would add missing bytes to a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Affinity {
    /// Its number.
    pub piece: u32,
    /// Bytes that its stripe misses; of several begun stripes, the fewest.
    pub missing: u64,
}

/// A torrent that was opened, for as long as it is not deleted.
#[derive(Debug)]
pub(super) struct CachedTorrent {
    pub(super) info_hash: InfoHash,
    pub(super) geometry: Geometry,
    pub(super) inner: Arc<dyn Content>,
    /// Distinguishes it from others of the same info hash.
    serial: u64,
    stripe: u64,
    /// Whether it exists. Locked for reading to read or write, for writing to unmark or delete.
    gate: RwLock<bool>,
    /// Locked for reading to write, for writing to mark and to write past the cache.
    writing: RwLock<()>,
    pub(super) state: Mutex<TorrentState>,
    /// Notified when a change of the state completes for which others may wait.
    settled: Condvar,
}

#[derive(Debug)]
pub(super) struct TorrentState {
    geometry: Geometry,
    stripe: u64,
    pub(super) pieces: Pieces,
    stripes: BTreeMap<u64, Stripe>,
    /// Stripes that are gathering and incomplete: the number of missing bytes, and the stripe.
    begun: BTreeSet<(u64, u64)>,
    /// Complete pieces that are not yet marked in the store below.
    pending_marks: BTreeMap<u32, PendingMark>,
    /// Whether its bytes must stay where they are.
    pub(super) held: bool,
    /// Returned by the next write.
    failed_write: Option<Error>,
    /// Returned by the next flush.
    failed_flush: Option<Failure>,
}

/// The reason why the store below refused held-back bytes.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// When the last refusal was.
    at: u64,
    /// Whether a flush has reported it.
    reported: bool,
}

#[derive(Debug, Default)]
struct Stripe {
    gathering: Option<UnwrittenStripe>,
    writing: Option<Arc<UnwrittenStripe>>,
    /// The number of its bytes that are written neither here nor below.
    missing: u64,
}

#[derive(Debug)]
struct PendingMark {
    serial: u64,
    marking: bool,
}

/// The stripes and marks for which a flush waits.
pub(super) struct FlushTargets {
    stripes: Vec<(u64, u64)>,
    marks: Vec<(u32, u64)>,
}

impl CachedTorrent {
    pub(super) fn new(core: &CacheCore, info_hash: InfoHash, inner: Arc<dyn Content>) -> Result<Self> {
        let geometry = inner.geometry();
        let state = TorrentState {
            geometry,
            stripe: core.stripe,
            pieces: Pieces::with_complete(geometry, inner.pieces()?),
            stripes: BTreeMap::new(),
            begun: BTreeSet::new(),
            pending_marks: BTreeMap::new(),
            held: false,
            failed_write: None,
            failed_flush: None,
        };
        Ok(Self {
            info_hash,
            geometry,
            inner,
            serial: core.serial(),
            stripe: core.stripe,
            gate: RwLock::new(true),
            writing: RwLock::default(),
            state: Mutex::new(state),
            settled: Condvar::new(),
        })
    }

    /// Keeps the torrent from being deleted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let there = self.gate.read();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    /// Excludes all other calls from the torrent.
    fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, bool>> {
        let there = self.gate.write();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    pub(super) fn is_there(&self) -> bool {
        *self.gate.read()
    }

    /// Reads a range if all of it was read ahead and no lock has to be waited for; otherwise returns
    /// `false`.
    pub(super) fn read_in_memory(&self, core: &CacheCore, range: Range<u64>, into: &mut [u8]) -> bool {
        let Some(_inside) = self.gate.try_read().filter(|there| **there) else { return false };
        for number in stripes_of(&range, core.stripe) {
            let stripe = self.state_range(number);
            let part = range.start.max(stripe.start)..range.end.min(stripe.end);
            let state = self.state.lock();
            if state.stripes.contains_key(&number) || state.pieces.check_read(&part).is_err() {
                return false;
            }
            let Some(block) = core.read_ahead.get(self.serial, &part) else { return false };
            drop(state);
            let within = (part.start - range.start) as usize..(part.end - range.start) as usize;
            into[within].copy_from_slice(block.bytes(&part));
        }
        core.counters.read(range.end - range.start);
        true
    }

    /// Where a stripe lies on the store below.
    pub(super) fn place(&self, stripe: u64) -> Option<u64> {
        guarded("", || Ok(self.inner.place(stripe * self.stripe))).ok().flatten()
    }

    /// Writes the gathered bytes of a stripe, in runs, and marks the pieces below that are complete there
    /// now. Does nothing if nothing may be written: then the call that made it wait queues the stripe again.
    pub(super) fn write_stripe(self: &Arc<Self>, core: &CacheCore, stripe: u64) {
        let Some(writing) = self.state.lock().take_off(stripe) else { return };
        let bytes = self.state_range(stripe);
        let mut lost = Vec::new();
        let mut failure = None;
        for run in writing.runs().iter() {
            let slices: Vec<_> = writing.slices(&run).map(IoSlice::new).collect();
            core.calls.fetch_add(1, Relaxed);
            if let Err(error) = guarded("writing a stripe", || self.inner.write_at(run.start, &slices)) {
                failure.get_or_insert(error);
                lost.push(run);
            }
        }
        if failure.is_none() {
            let whole = writing.runs().iter().eq([bytes.clone()]);
            (if whole { &core.whole } else { &core.partial }).fetch_add(1, Relaxed);
        }
        let mut state = self.state.lock();
        state.stripes.get_mut(&stripe).expect("a stripe stays while it is written").writing = None;
        if let Some(error) = failure {
            state.fail(error, core.serial());
            lost.iter().for_each(|run| self.lose(core, &mut state, run));
        }
        // In one step with the end of the write: a call that deletes the torrent waits for both.
        let ready = state.take_ready(&bytes);
        let again = state.after_landing(stripe);
        drop(state);
        core.give_back_all(Arc::into_inner(writing).expect("the state has let it go"));
        self.settled.notify_all();
        if again {
            core.queue([StripeJob { torrent: Arc::clone(self), stripe }]);
        }
        for piece in ready {
            // The error is kept for the next flush.
            let _ = self.mark_below(core, piece, true);
        }
    }

    fn state_range(&self, stripe: u64) -> Range<u64> {
        stripe_range(self.geometry, self.stripe, stripe)
    }

    /// Notes that bytes did not reach the store below: their pieces are no longer complete.
    fn lose(&self, core: &CacheCore, state: &mut TorrentState, run: &Range<u64>) {
        for piece in self.geometry.pieces_of(run) {
            if state.pending_marks.remove(&piece).is_some() {
                self.take_back(core, state, piece);
            }
        }
        // Bytes that were written again meanwhile are not lost.
        let stripe = run.start / self.stripe;
        let lost = match state.stripes.get(&stripe).and_then(|stripe| stripe.gathering.as_ref()) {
            Some(gathering) => gathering.runs().outside(run),
            None => vec![run.clone()],
        };
        lost.into_iter().for_each(|lost| state.pieces.lost(lost));
        state.count_missing(stripe);
    }

    /// Makes a piece incomplete, and keeps its bytes.
    fn take_back(&self, core: &CacheCore, state: &mut TorrentState, piece: u32) {
        let range = self.geometry.piece(piece).expect("it was marked");
        core.read_ahead.forget(self.serial, &range);
        state.pieces.mark_incomplete(piece).expect("there is such a piece");
        state.pieces.wrote(range);
    }

    /// Makes a piece incomplete, and forgets its bytes.
    fn forget(&self, core: &CacheCore, state: &mut TorrentState, piece: u32) {
        let range = self.geometry.piece(piece).expect("it was marked");
        core.read_ahead.forget(self.serial, &range);
        let (chunks, reserved) = state.forget(piece, &range);
        core.give_back(chunks, reserved);
    }

    /// Marks a piece in the store below, which has all of its bytes.
    fn mark_below(&self, core: &CacheCore, piece: u32, keep_error: bool) -> Result<()> {
        let marked = guarded("marking a piece complete", || self.inner.mark_complete(piece));
        let mut state = self.state.lock();
        state.pending_marks.remove(&piece);
        let marked = match marked {
            Ok(_) => Ok(()),
            Err(error) => {
                if matches!(error, Error::NotWritten { .. }) {
                    self.forget(core, &mut state, piece);
                } else {
                    self.take_back(core, &mut state, piece);
                }
                if keep_error {
                    state.fail(error, core.serial());
                    Ok(())
                } else {
                    Err(error)
                }
            }
        };
        drop(state);
        self.settled.notify_all();
        marked
    }

    /// Queues whole stripes, and those that began to gather by `until`. Returns the stripes to wait for.
    pub(super) fn begin_flush(
        self: &Arc<Self>,
        until: Option<Instant>,
        jobs: &mut Vec<StripeJob>,
    ) -> FlushTargets {
        let mut state = self.state.lock();
        let mut stripes = Vec::new();
        for (&number, stripe) in &mut state.stripes {
            stripes.extend(stripe.writing.as_ref().map(|writing| (number, writing.serial)));
            if let Some(gathering) = &mut stripe.gathering
                && (gathering.due || until.is_some_and(|until| gathering.since <= until))
            {
                stripes.push((number, gathering.serial));
                if !mem::replace(&mut gathering.due, true) {
                    jobs.push(StripeJob { torrent: Arc::clone(self), stripe: number });
                }
            }
        }
        let pending = state.pending_marks.iter().filter(|(piece, _)| !state.waits(**piece));
        let marks = pending.map(|(&piece, pending)| (piece, pending.serial)).collect();
        FlushTargets { stripes, marks }
    }

    pub(super) fn end_flush(&self, mut awaited: FlushTargets) {
        let mut state = self.state.lock();
        // The last is done last, most likely: whatever is done is looked at once.
        self.settled.wait_while(&mut state, |state| {
            while let Some(&(stripe, serial)) = awaited.stripes.last() {
                if state.stripes.get(&stripe).is_some_and(|stripe| {
                    let writing = stripe.writing.as_ref().map(|gathered| gathered.serial);
                    let gathering = stripe.gathering.as_ref().map(|gathered| gathered.serial);
                    [writing, gathering].contains(&Some(serial))
                }) {
                    return true;
                }
                awaited.stripes.pop();
            }
            while let Some((piece, serial)) = awaited.marks.last() {
                if state.pending_marks.get(piece).is_some_and(|pending| pending.serial == *serial) {
                    return true;
                }
                awaited.marks.pop();
            }
            false
        });
    }

    /// The error that a flush must report, if it began at `began`.
    pub(super) fn take_failure(&self, began: u64) -> Option<Error> {
        let mut state = self.state.lock();
        let failure = state.failed_flush.as_mut()?;
        if failure.reported && failure.at < began {
            return None;
        }
        failure.reported = true;
        let source = Box::new(again(&failure.error));
        Some(Error::Refused { info_hash: self.info_hash, source })
    }

    /// Notes the pieces that the store below has lost.
    pub(super) fn follow(&self, core: &CacheCore) {
        let Ok(_alone) = self.enter_alone() else { return };
        // No mark can be set meanwhile. Pieces being marked may be lost already; later ones are not.
        let mut state = self.state.lock();
        self.settled.wait_while(&mut state, |state| state.is_marking());
        let pending: BTreeSet<_> = state.pending_marks.keys().copied().collect();
        drop(state);
        let Ok(below) = guarded("reading which pieces are complete", || self.inner.pieces()) else { return };
        let mut state = self.state.lock();
        let complete = state.pieces.complete().iter();
        let lost: Vec<_> =
            complete.filter(|&piece| !below.contains(piece) && !pending.contains(&piece)).collect();
        lost.into_iter().for_each(|piece| self.forget(core, &mut state, piece));
    }

    /// Deletes it below, and forgets it. The caller keeps others from opening it.
    pub(super) fn delete(self: &Arc<Self>, core: &CacheCore) -> Result<bool> {
        let there = self.hold();
        let deleted = guarded("deleting a torrent", || core.inner.delete(&self.info_hash));
        // A store may fail when it is gone already.
        let open = || core.inner.open(&self.info_hash);
        let gone = deleted.is_ok() || matches!(guarded("", open), Err(Error::NotFound(_)));
        if gone {
            self.retire(core, there);
        } else {
            let mut state = self.state.lock();
            state.held = false;
            let due = state.stripes.iter().filter(|(_, stripe)| stripe.due());
            let due: Vec<_> =
                due.map(|(&stripe, _)| StripeJob { torrent: Arc::clone(self), stripe }).collect();
            drop(state);
            core.queue(due);
        }
        self.settled.notify_all();
        deleted
    }

    /// Excludes all calls, and keeps its bytes where they are.
    fn hold(&self) -> RwLockWriteGuard<'_, bool> {
        let there = self.gate.write();
        let mut state = self.state.lock();
        state.held = true;
        self.settled.wait_while(&mut state, |state| {
            state.stripes.values().any(|stripe| stripe.writing.is_some()) || state.is_marking()
        });
        there
    }

    /// Drops the state of a torrent that is deleted.
    fn retire(&self, core: &CacheCore, mut there: RwLockWriteGuard<'_, bool>) {
        *there = false;
        let mut state = self.state.lock();
        let stripes = mem::take(&mut state.stripes);
        state.begun.clear();
        state.pending_marks.clear();
        state.failed_flush = None;
        drop(state);
        for gathered in stripes.into_values().filter_map(|stripe| stripe.gathering) {
            core.give_back_all(gathered);
        }
        core.read_ahead.forget(self.serial, &(0..u64::MAX));
    }

    /// As [`delete`](Self::delete), for a torrent that the store below no longer has.
    pub(super) fn replace(&self, core: &CacheCore) {
        let there = self.hold();
        if *there {
            self.retire(core, there);
        }
        self.settled.notify_all();
    }
}

/// Calls the store below. A panic there becomes an error, so that no thread waits forever for the result.
pub(super) fn guarded<T>(what: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        let source = io::Error::other(format!("the store below panicked: {said}"));
        Err(Error::Io { what, source })
    })
}

fn stripe_range(geometry: Geometry, stripe: u64, number: u64) -> Range<u64> {
    number * stripe..geometry.len().min((number + 1) * stripe)
}

impl Stripe {
    fn due(&self) -> bool {
        self.gathering.as_ref().is_some_and(|gathering| gathering.due)
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        self.gathering.iter().chain(self.writing.as_deref()).any(|held| held.runs().overlaps(range))
    }
}

impl TorrentState {
    /// Whether bytes of a range are in memory alone.
    fn holds(&self, range: &Range<u64>) -> bool {
        self.stripes.range(stripes_of(range, self.stripe)).any(|(_, stripe)| stripe.holds(range))
    }

    /// Whether bytes of a piece are in a stripe that is not due yet.
    fn waits(&self, piece: u32) -> bool {
        let range = self.geometry.piece(piece).expect("it was marked");
        let mut gathering = self
            .stripes
            .range(stripes_of(&range, self.stripe))
            .filter_map(|(_, stripe)| stripe.gathering.as_ref());
        gathering.any(|gathering| !gathering.due && gathering.runs().overlaps(&range))
    }

    /// Whether a piece is being marked in the store below.
    fn is_marking(&self) -> bool {
        self.pending_marks.values().any(|pending| pending.marking)
    }

    fn fail(&mut self, error: Error, at: u64) {
        match &mut self.failed_flush {
            Some(older) if !older.reported => older.at = at,
            failed => *failed = Some(Failure { error: again(&error), at, reported: false }),
        }
        self.failed_write.get_or_insert(error);
    }

    /// Why bytes are missing, as far as is known: the store below may have refused them.
    fn why(&self, missing: Error) -> Error {
        match (&self.failed_flush, missing) {
            (Some(failure), Error::NotWritten { .. }) => again(&failure.error),
            (_, error) => error,
        }
    }

    /// Sets the number of missing bytes, and the data that depend on it.
    fn set_missing(&mut self, number: u64, missing: u64) {
        let Some(stripe) = self.stripes.get_mut(&number) else {
            return;
        };
        self.begun.remove(&(stripe.missing, number));
        stripe.missing = missing;
        if missing > 0 && stripe.gathering.is_some() {
            self.begun.insert((missing, number));
        }
    }

    fn count_missing(&mut self, number: u64) {
        if self.stripes.contains_key(&number) {
            let range = stripe_range(self.geometry, self.stripe, number);
            self.set_missing(number, range.end - range.start - self.pieces.known(&range));
        }
    }

    /// Makes a piece incomplete and drops its bytes in memory. Returns the memory and the room below that are
    /// no longer needed.
    fn forget(&mut self, piece: u32, range: &Range<u64>) -> (Vec<Chunk>, u64) {
        self.pieces.mark_incomplete(piece).expect("there is such a piece");
        let (mut chunks, mut reserved) = (Vec::new(), 0);
        for number in stripes_of(range, self.stripe) {
            let Some(stripe) = self.stripes.get_mut(&number) else {
                continue;
            };
            if let Some(gathering) = &mut stripe.gathering {
                chunks.extend(gathering.forget(range));
                if gathering.runs().is_empty() {
                    reserved += gathering.reserved;
                    stripe.gathering = None;
                }
            }
            self.count_missing(number);
            self.drop_if_empty(number);
        }
        (chunks, reserved)
    }

    fn drop_if_empty(&mut self, number: u64) {
        let empty = |stripe: &Stripe| stripe.gathering.is_none() && stripe.writing.is_none();
        if self.stripes.get(&number).is_some_and(empty) {
            let stripe = self.stripes.remove(&number).expect("it is there");
            self.begun.remove(&(stripe.missing, number));
        }
    }

    /// Stripes that are gathering and not being written: missing bytes, memory, number.
    pub(super) fn partial(&self) -> Vec<(u64, u64, u64)> {
        let stripes = self.stripes.iter().filter(|(_, stripe)| !self.held && stripe.writing.is_none());
        stripes
            .filter_map(|(&number, stripe)| {
                let gathering = stripe.gathering.as_ref().filter(|gathering| !gathering.due)?;
                Some((stripe.missing, gathering.memory(), number))
            })
            .collect()
    }

    /// Makes a gathering stripe due. Returns whether it was not due before.
    pub(super) fn becomes_due(&mut self, stripe: u64) -> bool {
        let gathering = self.stripes.get_mut(&stripe).and_then(|stripe| stripe.gathering.as_mut());
        gathering.is_some_and(|gathering| !mem::replace(&mut gathering.due, true))
    }

    /// Takes the gathered bytes of a stripe to write them. From then on it gathers anew.
    fn take_off(&mut self, number: u64) -> Option<Arc<UnwrittenStripe>> {
        let stripe = self.stripes.get_mut(&number)?;
        // Two writes of the same bytes must not overtake each other.
        if self.held || stripe.writing.is_some() {
            return None;
        }
        let writing = Arc::new(stripe.gathering.take_if(|gathering| gathering.due)?);
        stripe.writing = Some(Arc::clone(&writing));
        self.begun.remove(&(stripe.missing, number));
        Some(writing)
    }

    /// Whether a written stripe has gathered more that is due, and may be written.
    fn after_landing(&mut self, number: u64) -> bool {
        self.drop_if_empty(number);
        !self.held && self.stripes.get(&number).is_some_and(|stripe| stripe.writing.is_none() && stripe.due())
    }

    /// Pieces of a range that are not yet marked in the store below, which has all of their bytes by now.
    fn take_ready(&mut self, range: &Range<u64>) -> Vec<u32> {
        let pieces = self.geometry.pieces_of(range);
        let pending = self.pending_marks.range(pieces).filter(|(_, pending)| !pending.marking);
        let ready: Vec<_> = pending
            .map(|(&piece, _)| piece)
            .filter(|&piece| !self.holds(&self.geometry.piece(piece).expect("it was marked")))
            .collect();
        for piece in &ready {
            self.pending_marks.get_mut(piece).expect("it is there").marking = true;
        }
        ready
    }

    /// Incomplete pieces that have bytes in stripes that are begun, the best first.
    pub(super) fn affinity(&self, most: usize) -> Vec<Affinity> {
        let mut seen = BTreeSet::new();
        let mut best = Vec::new();
        for &(missing, number) in &self.begun {
            let range = stripe_range(self.geometry, self.stripe, number);
            for piece in self.geometry.pieces_of(&range) {
                if best.len() == most {
                    return best;
                }
                if self.pieces.complete().contains(piece) || seen.contains(&piece) {
                    continue;
                }
                let bytes = self.geometry.piece(piece).expect("it holds a byte of the stripe");
                let part = bytes.start.max(range.start)..bytes.end.min(range.end);
                if self.pieces.check_read(&part).is_err() {
                    seen.insert(piece);
                    best.push(Affinity { piece, missing });
                }
            }
        }
        best
    }
}

/// A copy of an error, to report it twice.
fn again(error: &Error) -> Error {
    match error {
        Error::Io { what, source } => {
            let source = match source.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(source.kind(), source.to_string()),
            };
            Error::Io { what, source }
        }
        Error::Full { what } => Error::Full { what },
        Error::ReadOnly { why } => Error::ReadOnly { why },
        Error::Deleted => Error::Deleted,
        other => Error::Io { what: "writing held-back bytes", source: io::Error::other(other.to_string()) },
    }
}
