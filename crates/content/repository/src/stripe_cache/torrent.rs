//! One torrent of the cache: what is known of it, what of it is in memory, and what its handles do.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IoSlice, IoSliceMut},
    mem,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{
    Affinity, Running,
    desk::{Core, Job, Promise, stripes_of},
    gathered::{Chunk, Gathered, fill, slices_of_mut},
    read_ahead::Found,
};
use crate::{Content, Error, Geometry, InfoHash, PieceBits, Pieces, Result, block::SECTOR};

/// A torrent that was opened, for as long as it is not deleted.
#[derive(Debug)]
pub(super) struct Torrent {
    pub(super) info_hash: InfoHash,
    pub(super) geometry: Geometry,
    pub(super) inner: Arc<dyn Content>,
    /// Tells it from others of the same info hash.
    serial: u64,
    stripe: u64,
    /// Whether it is there. Held by who reads or writes; alone by who takes back a mark or deletes it.
    gate: RwLock<bool>,
    /// Held by who writes; alone by who marks, or writes past the cache.
    writing: RwLock<()>,
    pub(super) state: Mutex<State>,
    /// Told when something of the state is done that others may wait for.
    settled: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    geometry: Geometry,
    stripe: u64,
    pub(super) pieces: Pieces,
    /// Those that have bytes in memory.
    stripes: BTreeMap<u64, Stripe>,
    /// Those that are gathering and miss bytes: how many, and which.
    begun: BTreeSet<(u64, u64)>,
    /// Pieces that are complete, and of which the store below has not been told.
    untold: BTreeMap<u32, Untold>,
    /// Whether its bytes must stay where they are.
    pub(super) held: bool,
    /// What the next write says.
    failed_write: Option<Error>,
    /// What the next flush says.
    failed_flush: Option<Failure>,
}

/// Why the store below refused what was held back.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// When it did so last.
    at: u64,
    /// Whether a flush has said so.
    told: bool,
}

#[derive(Debug, Default)]
struct Stripe {
    gathering: Option<Gathered>,
    writing: Option<Arc<Gathered>>,
    /// How many of its bytes nobody has written, here or below.
    missing: u64,
}

#[derive(Debug)]
struct Untold {
    serial: u64,
    telling: bool,
}

/// What a flush waits for.
pub(super) struct Awaited {
    stripes: Vec<(u64, u64)>,
    marks: Vec<(u32, u64)>,
}

impl Torrent {
    pub(super) fn new(core: &Core, info_hash: InfoHash, inner: Arc<dyn Content>) -> Result<Self> {
        let geometry = inner.geometry();
        let state = State {
            geometry,
            stripe: core.stripe,
            pieces: Pieces::with_complete(geometry, inner.pieces()?),
            stripes: BTreeMap::new(),
            begun: BTreeSet::new(),
            untold: BTreeMap::new(),
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

    /// Keeps everybody else out of the torrent.
    fn enter_alone(&self) -> Result<RwLockWriteGuard<'_, bool>> {
        let there = self.gate.write();
        if *there { Ok(there) } else { Err(Error::Deleted) }
    }

    pub(super) fn is_there(&self) -> bool {
        *self.gate.read()
    }

    /// Reads a range if all of it was read ahead; `false` if not, and where something would have to be waited
    /// for.
    pub(super) fn read_in_memory(&self, core: &Core, range: Range<u64>, into: &mut [u8]) -> bool {
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

    /// Writes what a stripe has gathered, in runs; what is then done with. `None` if there is nothing that
    /// may be written now: if there is later, whoever made it wait queues it anew.
    pub(super) fn write_stripe(self: &Arc<Self>, core: &Core, stripe: u64) -> Option<Gathered> {
        let writing = self.state.lock().take_off(stripe)?;
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
            let whole = writing.runs().iter().eq([bytes]);
            (if whole { &core.whole } else { &core.partial }).fetch_add(1, Relaxed);
        }
        let mut state = self.state.lock();
        state.stripes.get_mut(&stripe).expect("what is written stays until it is").writing = None;
        if let Some(error) = failure {
            state.fail(error, core.serial());
            lost.iter().for_each(|run| self.lose(core, &mut state, run));
        }
        drop(state);
        Some(Arc::into_inner(writing).expect("the state has let it go"))
    }

    fn state_range(&self, stripe: u64) -> Range<u64> {
        stripe_range(self.geometry, self.stripe, stripe)
    }

    /// Takes note that bytes did not reach the store below: neither do the pieces they belong to count as
    /// complete.
    fn lose(&self, core: &Core, state: &mut State, run: &Range<u64>) {
        for piece in self.geometry.pieces_of(run) {
            if state.untold.remove(&piece).is_some() {
                self.take_back(core, state, piece);
            }
        }
        // What was written anew meanwhile is not lost.
        let stripe = run.start / self.stripe;
        let lost = match state.stripes.get(&stripe).and_then(|stripe| stripe.gathering.as_ref()) {
            Some(gathering) => gathering.runs().outside(run),
            None => vec![run.clone()],
        };
        lost.into_iter().for_each(|lost| state.pieces.lost(lost));
        state.count_missing(stripe);
    }

    /// Makes a piece incomplete, whose bytes stay where they are.
    fn take_back(&self, core: &Core, state: &mut State, piece: u32) {
        let range = self.geometry.piece(piece).expect("it was marked");
        core.read_ahead.forget(self.serial, &range);
        state.pieces.mark_incomplete(piece).expect("there is such a piece");
        state.pieces.wrote(range);
    }

    /// Makes a piece incomplete, and forgets its bytes.
    fn forget(&self, core: &Core, state: &mut State, piece: u32) {
        let range = self.geometry.piece(piece).expect("it was marked");
        core.read_ahead.forget(self.serial, &range);
        let (chunks, promised) = state.forget(piece, &range);
        core.give_back(chunks, promised);
    }

    /// What follows when a stripe was written: others may wait for it, it may have gathered more, and pieces
    /// may have come to the store below that it has not been told of.
    pub(super) fn landed(self: &Arc<Self>, core: &Core, stripe: u64) {
        let mut state = self.state.lock();
        let again = state.after_landing(stripe);
        let ready = state.take_ready(&self.state_range(stripe));
        drop(state);
        self.settled.notify_all();
        if again {
            core.queue([Job { torrent: Arc::clone(self), stripe }]);
        }
        for piece in ready {
            // The error is kept for the next flush.
            let _ = self.tell(core, piece, true);
        }
    }

    /// Tells the store below that a piece is complete, all of which it has.
    fn tell(&self, core: &Core, piece: u32, keep_error: bool) -> Result<()> {
        let told = guarded("marking a piece complete", || self.inner.mark_complete(piece));
        let mut state = self.state.lock();
        state.untold.remove(&piece);
        let told = match told {
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
        told
    }

    /// Has everything written that is in memory, and gives what to wait for.
    pub(super) fn begin_flush(self: &Arc<Self>, jobs: &mut Vec<Job>) -> Awaited {
        let mut state = self.state.lock();
        let mut stripes = Vec::new();
        for (&number, stripe) in &mut state.stripes {
            stripes.extend(stripe.writing.as_ref().map(|writing| (number, writing.serial)));
            if let Some(gathering) = &mut stripe.gathering {
                stripes.push((number, gathering.serial));
                if !mem::replace(&mut gathering.due, true) {
                    jobs.push(Job { torrent: Arc::clone(self), stripe: number });
                }
            }
        }
        let marks = state.untold.iter().map(|(&piece, untold)| (piece, untold.serial)).collect();
        Awaited { stripes, marks }
    }

    pub(super) fn end_flush(&self, mut awaited: Awaited) {
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
                if state.untold.get(piece).is_some_and(|untold| untold.serial == *serial) {
                    return true;
                }
                awaited.marks.pop();
            }
            false
        });
    }

    /// What a flush that began then has to say of it.
    pub(super) fn take_failure(&self, began: u64) -> Option<Error> {
        let mut state = self.state.lock();
        let failure = state.failed_flush.as_mut()?;
        if failure.told && failure.at < began {
            return None;
        }
        failure.told = true;
        let source = Box::new(again(&failure.error));
        Some(Error::Refused { info_hash: self.info_hash, source })
    }

    /// Takes note of what the store below has lost.
    pub(super) fn follow(&self, core: &Core) {
        let Ok(_alone) = self.enter_alone() else { return };
        // Nobody marks meanwhile. What is being told may be lost already; what is told later is not.
        let mut state = self.state.lock();
        self.settled.wait_while(&mut state, |state| state.tells());
        let untold: BTreeSet<_> = state.untold.keys().copied().collect();
        drop(state);
        let Ok(below) = guarded("reading which pieces are complete", || self.inner.pieces()) else { return };
        let mut state = self.state.lock();
        let complete = state.pieces.complete().iter();
        let lost: Vec<_> =
            complete.filter(|&piece| !below.contains(piece) && !untold.contains(&piece)).collect();
        lost.into_iter().for_each(|piece| self.forget(core, &mut state, piece));
    }

    /// Deletes it below, and forgets it. The caller keeps others from opening it.
    pub(super) fn delete(self: &Arc<Self>, core: &Core) -> Result<bool> {
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
            let due: Vec<_> = due.map(|(&stripe, _)| Job { torrent: Arc::clone(self), stripe }).collect();
            drop(state);
            core.queue(due);
        }
        self.settled.notify_all();
        deleted
    }

    /// Keeps everybody out, and its bytes where they are.
    fn hold(&self) -> RwLockWriteGuard<'_, bool> {
        let there = self.gate.write();
        let mut state = self.state.lock();
        state.held = true;
        self.settled.wait_while(&mut state, |state| {
            state.stripes.values().any(|stripe| stripe.writing.is_some()) || state.tells()
        });
        there
    }

    /// Gives up what is known of it, as it is gone.
    fn retire(&self, core: &Core, mut there: RwLockWriteGuard<'_, bool>) {
        *there = false;
        let mut state = self.state.lock();
        let stripes = mem::take(&mut state.stripes);
        state.begun.clear();
        state.untold.clear();
        state.failed_flush = None;
        drop(state);
        for gathered in stripes.into_values().filter_map(|stripe| stripe.gathering) {
            core.give_back_all(gathered);
        }
        core.read_ahead.forget(self.serial, &(0..u64::MAX));
    }

    /// As [`delete`](Self::delete), of one that the store below no longer has.
    pub(super) fn replace(&self, core: &Core) {
        let there = self.hold();
        if *there {
            self.retire(core, there);
        }
        self.settled.notify_all();
    }
}

/// Does what the store below may panic in: that is an error like any other, so that nobody waits for ever for
/// what was to come of it.
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

impl State {
    /// Whether bytes of a range are in memory alone.
    fn holds(&self, range: &Range<u64>) -> bool {
        self.stripes.range(stripes_of(range, self.stripe)).any(|(_, stripe)| stripe.holds(range))
    }

    /// Whether the store below is being told that a piece is complete.
    fn tells(&self) -> bool {
        self.untold.values().any(|untold| untold.telling)
    }

    fn fail(&mut self, error: Error, at: u64) {
        match &mut self.failed_flush {
            Some(older) if !older.told => older.at = at,
            failed => *failed = Some(Failure { error: again(&error), at, told: false }),
        }
        self.failed_write.get_or_insert(error);
    }

    /// Keeps what depends on the number of missing bytes.
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

    /// Makes a piece incomplete and drops what is in memory of it; the memory, and the room below, that
    /// nobody needs from then on.
    fn forget(&mut self, piece: u32, range: &Range<u64>) -> (Vec<Chunk>, u64) {
        self.pieces.mark_incomplete(piece).expect("there is such a piece");
        let (mut chunks, mut promised) = (Vec::new(), 0);
        for number in stripes_of(range, self.stripe) {
            let Some(stripe) = self.stripes.get_mut(&number) else {
                continue;
            };
            if let Some(gathering) = &mut stripe.gathering {
                chunks.extend(gathering.forget(range));
                if gathering.runs().is_empty() {
                    promised += gathering.promised;
                    stripe.gathering = None;
                }
            }
            self.count_missing(number);
            self.drop_if_empty(number);
        }
        (chunks, promised)
    }

    fn drop_if_empty(&mut self, number: u64) {
        let empty = |stripe: &Stripe| stripe.gathering.is_none() && stripe.writing.is_none();
        if self.stripes.get(&number).is_some_and(empty) {
            let stripe = self.stripes.remove(&number).expect("it is there");
            self.begun.remove(&(stripe.missing, number));
        }
    }

    /// Stripes that are gathering, and that nobody writes: missing bytes, memory, number.
    pub(super) fn partial(&self) -> Vec<(u64, u64, u64)> {
        let stripes = self.stripes.iter().filter(|(_, stripe)| !self.held && stripe.writing.is_none());
        stripes
            .filter_map(|(&number, stripe)| {
                let gathering = stripe.gathering.as_ref().filter(|gathering| !gathering.due)?;
                Some((stripe.missing, gathering.memory(), number))
            })
            .collect()
    }

    /// Whether a stripe was not to be written, and now is.
    pub(super) fn becomes_due(&mut self, stripe: u64) -> bool {
        let gathering = self.stripes.get_mut(&stripe).and_then(|stripe| stripe.gathering.as_mut());
        gathering.is_some_and(|gathering| !mem::replace(&mut gathering.due, true))
    }

    /// What a stripe has gathered, to be written. From then on it gathers anew.
    fn take_off(&mut self, number: u64) -> Option<Arc<Gathered>> {
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

    /// Whether a stripe that was written has gathered what is due meanwhile, and may be written.
    fn after_landing(&mut self, number: u64) -> bool {
        self.drop_if_empty(number);
        !self.held && self.stripes.get(&number).is_some_and(|stripe| stripe.writing.is_none() && stripe.due())
    }

    /// Pieces of a range that wait for the store below to be told of them, and of which it has all by now.
    fn take_ready(&mut self, range: &Range<u64>) -> Vec<u32> {
        let pieces = self.geometry.pieces_of(range);
        let untold = self.untold.range(pieces).filter(|(_, untold)| !untold.telling);
        let ready: Vec<_> = untold
            .map(|(&piece, _)| piece)
            .filter(|&piece| !self.holds(&self.geometry.piece(piece).expect("it was marked")))
            .collect();
        for piece in &ready {
            self.untold.get_mut(piece).expect("it is there").telling = true;
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

/// An error that is told twice.
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
        other => {
            Error::Io { what: "writing what was held back", source: io::Error::other(other.to_string()) }
        }
    }
}

/// A torrent that was opened.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) torrent: Arc<Torrent>,
    pub(super) running: Arc<Running>,
}

/// Room of the store below for a part of a stripe.
struct Room<'a> {
    promise: Promise<'a>,
    /// What all of the stripe takes.
    whole: u64,
}

impl Handle {
    fn core(&self) -> &Core {
        &self.running.core
    }

    /// Keeps room of the store below for a part of a stripe; `None` if it has too little.
    ///
    /// It is kept for all that the chunks of the part can hold, so that the store below is asked once for
    /// each.
    fn keep_room(&self, part: &Range<u64>) -> Option<Room<'_>> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let stripe = torrent.state_range(part.start / core.stripe);
        let chunks =
            part.start / core.chunk * core.chunk..stripe.end.min(part.end.next_multiple_of(core.chunk));
        let whole = torrent.inner.room_for(stripe);
        let room = if whole == 0 { 0 } else { torrent.inner.room_for(chunks).min(whole) };
        core.promise(room).map(|promise| Room { promise, whole })
    }

    /// Takes a range into memory; `false` if the store below may have too little room for it, and then
    /// nothing was taken.
    fn gather_all(&self, range: &Range<u64>, buffers: &[IoSlice<'_>]) -> bool {
        let core = self.core();
        let stripes = stripes_of(range, core.stripe);
        // A single one is told that it needs room when it is looked at anyway.
        let ahead = core.knows_room && stripes.end - stripes.start > 1;
        let parts = stripes.map(|number| {
            let stripe = self.torrent.state_range(number);
            range.start.max(stripe.start)..range.end.min(stripe.end)
        });
        let rooms =
            ahead.then(|| parts.clone().map(|part| self.keep_room(&part)).collect::<Option<Vec<_>>>());
        let mut rooms = match rooms {
            Some(None) => return false,
            Some(Some(rooms)) => rooms,
            None => Vec::new(),
        }
        .into_iter();
        for part in parts {
            let from = part.start - range.start;
            let mut room = rooms.next();
            while !self.gather(part.clone(), buffers, from, room.as_mut()) {
                match self.keep_room(&part) {
                    None => return false,
                    kept => room = kept,
                }
            }
        }
        true
    }

    /// Takes a part of a stripe into memory, as soon as there is some; `false` if it needs room, and was
    /// given none.
    fn gather(
        &self,
        part: Range<u64>,
        buffers: &[IoSlice<'_>],
        from: u64,
        room: Option<&mut Room<'_>>,
    ) -> bool {
        let (core, torrent) = (self.core(), &*self.torrent);
        let number = part.start / core.stripe;
        let range = torrent.state_range(number);
        let sure = room.is_some() || !core.knows_room;
        let mut line = core.line();
        let (mut state, memory) = loop {
            let state = torrent.state.lock();
            let gathering = state.stripes.get(&number).and_then(|stripe| stripe.gathering.as_ref());
            if !sure && !gathering.is_some_and(|gathering| gathering.has_room(&part)) {
                return false;
            }
            let lacks = match gathering {
                Some(gathering) => gathering.lacks(&part),
                None => {
                    ((part.end - range.start).div_ceil(core.chunk) - (part.start - range.start) / core.chunk)
                        as usize
                }
            };
            if lacks == 0 {
                break (state, Vec::new());
            }
            if let Some(memory) = line.take(lacks) {
                break (state, memory);
            }
            drop(state);
            line.wait(lacks);
        };
        let new = !state.stripes.contains_key(&number);
        let stripe = state.stripes.entry(number).or_default();
        let gathering =
            stripe.gathering.get_or_insert_with(|| Gathered::new(core.serial(), range, core.chunk));
        if let Some(Room { promise, whole }) = room {
            gathering.keep_room(promise, *whole);
        }
        gathering.put(part.clone(), buffers, from, memory);
        let missing = stripe.missing;
        let newly = state.pieces.wrote_anew(part);
        if new {
            state.count_missing(number);
        } else {
            state.set_missing(number, missing - newly);
        }
        let stripe = state.stripes.get_mut(&number).expect("it is there");
        // What is only written again has more to come, until it is marked.
        let whole = stripe.missing == 0 && newly > 0;
        let due = whole
            && stripe.gathering.as_mut().is_some_and(|gathering| !mem::replace(&mut gathering.due, true));
        drop(state);
        drop(line);
        if due {
            core.queue([Job { torrent: Arc::clone(&self.torrent), stripe: number }]);
        }
        true
    }

    /// Writes to the store below, when it may not have room for what would otherwise be held back: it says so
    /// at once.
    fn write_through(&self, range: Range<u64>, buffers: &[IoSlice<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let _alone = torrent.writing.write();
        torrent.state.lock().pieces.check_write(&range)?;
        // It also has written what is held back of these stripes, which must not come later.
        let _way = core.make_way(torrent.inner.room_for(range.clone()));
        core.calls.fetch_add(1, Relaxed);
        let written = guarded("writing past the cache", || torrent.inner.write_at(range.start, buffers));
        let mut state = torrent.state.lock();
        match &written {
            Ok(()) => {
                for stripe in stripes_of(&range, core.stripe).map(|number| torrent.state_range(number)) {
                    let whole = range.start <= stripe.start && stripe.end <= range.end;
                    (if whole { &core.whole } else { &core.partial }).fetch_add(1, Relaxed);
                }
                state.pieces.wrote(range);
            }
            Err(Error::Full { .. }) => {}
            Err(_) => state.pieces.lost(range),
        }
        written
    }

    /// Reads a range, all of it in one stripe and on the store below.
    fn read_below(
        &self,
        range: &Range<u64>,
        found: Found<'_>,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        let torrent = &*self.torrent;
        let within = range.start - offset..range.end - offset;
        let block = self.core().read_ahead.block(found, |start, bytes| {
            guarded("reading ahead", || torrent.inner.read_at(start, &mut [IoSliceMut::new(bytes)]))
        });
        if let Some(block) = block {
            fill(buffers, within, [block.bytes(range)]);
            return Ok(());
        }
        // What was not asked for may be what cannot be read.
        let mut into: Vec<_> = slices_of_mut(buffers, within).map(IoSliceMut::new).collect();
        torrent.inner.read_at(range.start, &mut into)
    }

    /// What was read ahead of a range, or is to be. With the state held, of whose complete pieces alone that
    /// is: whoever takes back one of them finds it there to be forgotten.
    fn find(&self, state: &State, range: &Range<u64>) -> Found<'_> {
        self.core().read_ahead.find(self.torrent.serial, range, || self.around(state, range))
    }

    /// The most around a range that can be read ahead: in its stripe, of complete pieces, and on the store
    /// below.
    fn around(&self, state: &State, range: &Range<u64>) -> Option<Range<u64>> {
        let torrent = &*self.torrent;
        let number = range.start / torrent.stripe;
        let stripe = torrent.state_range(number);
        let complete = |piece: u32| state.pieces.complete().contains(piece);
        let pieces = torrent.geometry.pieces_of(range);
        if !pieces.clone().all(complete) {
            return None;
        }
        let of_stripe = torrent.geometry.pieces_of(&stripe);
        let first = (of_stripe.start..pieces.start).rev().take_while(|&piece| complete(piece)).last();
        let last = (pieces.end..of_stripe.end).take_while(|&piece| complete(piece)).last();
        let bytes_of = |piece| torrent.geometry.piece(piece).expect("it holds a byte of the stripe");
        let mut around = bytes_of(first.unwrap_or(pieces.start)).start.max(stripe.start)
            ..bytes_of(last.unwrap_or(pieces.end - 1)).end.min(stripe.end);
        if let Some(held) = state.stripes.get(&number) {
            for held in held.gathering.iter().chain(held.writing.as_deref()) {
                if let Some(before) = held.runs().within(&(around.start..range.start)).last() {
                    around.start = before.end;
                }
                if let Some(after) = held.runs().within(&(range.end..around.end)).next() {
                    around.end = after.start;
                }
            }
        }
        // Whole sectors go to memory without a detour.
        let sector = SECTOR as u64;
        if around.start.next_multiple_of(sector) <= range.start {
            around.start = around.start.next_multiple_of(sector);
        }
        if around.end != torrent.geometry.len() && around.end / sector * sector >= range.end {
            around.end = around.end / sector * sector;
        }
        Some(around)
    }
}

impl Content for Handle {
    fn geometry(&self) -> Geometry {
        self.torrent.geometry
    }

    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = torrent.geometry.range(offset, len)?;
        let _inside = torrent.enter()?;
        let shared = torrent.writing.read();
        {
            let mut state = torrent.state.lock();
            state.pieces.check_write(&range)?;
            if range.is_empty() {
                return Ok(());
            }
            if let Some(error) = state.failed_write.take() {
                return Err(error);
            }
        }
        if !self.gather_all(&range, buffers) {
            drop(shared);
            self.write_through(range, buffers)?;
        }
        core.counters.wrote(len);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let (core, torrent) = (self.core(), &*self.torrent);
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = torrent.geometry.range(offset, len)?;
        let _inside = torrent.enter()?;
        for number in stripes_of(&range, core.stripe) {
            let stripe = torrent.state_range(number);
            let part = range.start.max(stripe.start)..range.end.min(stripe.end);
            // What is in memory is copied before anything can become of it.
            let state = torrent.state.lock();
            state.pieces.check_read(&part)?;
            let Some(stripe) = state.stripes.get(&number) else {
                let found = self.find(&state, &part);
                drop(state);
                self.read_below(&part, found, offset, buffers)?;
                continue;
            };
            let mut below = vec![part];
            // What is gathering is newer than what is being written.
            for held in stripe.gathering.iter().chain(stripe.writing.as_deref()) {
                for part in mem::take(&mut below) {
                    for run in held.runs().within(&part) {
                        fill(buffers, run.start - offset..run.end - offset, held.slices(&run));
                    }
                    below.extend(held.runs().outside(&part));
                }
            }
            let found: Vec<_> = below.iter().map(|part| self.find(&state, part)).collect();
            drop(state);
            for (part, found) in below.iter().zip(found) {
                self.read_below(part, found, offset, buffers)?;
            }
        }
        core.counters.read(len);
        Ok(())
    }

    fn mark_complete(&self, piece: u32) -> Result<bool> {
        let torrent = &*self.torrent;
        let _inside = torrent.enter()?;
        let alone = torrent.writing.write();
        let mut state = torrent.state.lock();
        if !state.pieces.mark_complete(piece)? {
            return Ok(false);
        }
        let range = torrent.geometry.piece(piece)?;
        let telling = !state.holds(&range);
        state.untold.insert(piece, Untold { serial: self.core().serial(), telling });
        let mut jobs = Vec::new();
        for (&number, stripe) in state.stripes.range_mut(stripes_of(&range, torrent.stripe)) {
            if stripe.missing == 0
                && let Some(gathering) = &mut stripe.gathering
                && !mem::replace(&mut gathering.due, true)
            {
                jobs.push(Job { torrent: Arc::clone(&self.torrent), stripe: number });
            }
        }
        drop(state);
        drop(alone);
        if !jobs.is_empty() {
            self.core().queue(jobs);
        }
        if telling {
            torrent.tell(self.core(), piece, false)?;
        }
        Ok(true)
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let (core, torrent) = (self.core(), &*self.torrent);
        torrent.geometry.piece(piece)?;
        let _alone = torrent.enter_alone()?;
        let mut state = torrent.state.lock();
        let telling = |state: &mut State| state.untold.get(&piece).is_some_and(|untold| untold.telling);
        torrent.settled.wait_while(&mut state, telling);
        if !state.pieces.complete().contains(piece) {
            return Ok(false);
        }
        if state.untold.remove(&piece).is_none() {
            drop(state);
            torrent.inner.mark_incomplete(piece)?;
            state = torrent.state.lock();
        }
        torrent.forget(core, &mut state, piece);
        drop(state);
        torrent.settled.notify_all();
        Ok(true)
    }

    fn pieces(&self) -> Result<PieceBits> {
        let _inside = self.torrent.enter()?;
        Ok(self.torrent.state.lock().pieces.complete().clone())
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.torrent.inner.place(offset)
    }

    fn room_for(&self, range: Range<u64>) -> u64 {
        self.torrent.inner.room_for(range)
    }
}
