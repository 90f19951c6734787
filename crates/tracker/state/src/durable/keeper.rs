//! The thread between a store and its database: it makes new downloads durable, and gives swarms their stored
//! counts.

use std::{
    mem,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use swarmkeep::Cursor;
use tracing::{error, info};

use super::{Core, LOOKED_AT, TOGETHER};
use crate::{
    Change, Downloads, InfoHash, Result,
    candidates::{self, Candidates, PendingChange, Source},
    downloads::Copying,
};

/// Counts that are read before other threads get the core, if they wait for it: in a millisecond.
const READ_AT_ONCE: usize = 256;

/// The thread between a store and its database.
pub(super) struct Keeper {
    core: Arc<Core>,
    downloads: Downloads,
    /// Torrents that are not in the database yet.
    candidates: Candidates,
    /// During a pass over all swarms: its position, the number of the `settle` call when it began, and
    /// whether all counts that it finds enter the database.
    pass: Option<(Cursor, u64, bool)>,
    /// The number of the `settle` call when the latest complete pass began.
    passed: u64,
    due: Instant,
    copy_due: Instant,
    /// The thread that writes a copy. It returns whether the copy is complete.
    copying: Option<JoinHandle<bool>>,
}

impl Keeper {
    pub(super) fn new(core: Arc<Core>, downloads: Downloads) -> Self {
        let (due, candidates) = (Instant::now() + core.pace.every, Candidates::new());
        let copy_every = core.pace.copy_every;
        let age = downloads.age_of_copy().unwrap_or(copy_every);
        // Not at once: a tracker that has just started has more to do.
        let copy_due = Instant::now() + copy_every.saturating_sub(age).max(copy_every / 24);
        Self { core, downloads, candidates, pass: None, passed: 0, due, copy_due, copying: None }
    }

    pub(super) fn run(mut self) {
        let core = Arc::clone(&self.core);
        let _ended = EndNotice(&core);
        loop {
            let (settle, settled, is_ending) = {
                let orders = self.core.orders.lock();
                (orders.settle, orders.settled, orders.is_ending)
            };
            let is_settling = settle > settled;
            self.core.is_urgent.store(false, SeqCst);
            let is_full = self.core.unsaved.load(Relaxed) >= self.core.pace.torrents;
            let is_time = Instant::now() >= self.due || is_settling || is_ending;
            // After a refusal, try again only when it is due.
            let is_due = is_time || (is_full && !self.core.status.lock().is_refused);
            let looked = self.look(settle, is_due);
            self.tell_of_damage();
            self.tell_of_unread(&looked);
            let saved = if is_due { self.save() } else { Ok(()) };
            if is_ending {
                // Stored counts that cannot be read are no error here: closing does not lose them.
                self.core.orders.lock().failed = saved.err().map(|error| error.to_string());
                return;
            }
            let failed = saved.and(looked).err().map(|error| error.to_string());
            let is_refused = self.core.status.lock().is_refused;
            let has_passed = !self.core.look_at_all.load(SeqCst) || self.passed >= settle || is_refused;
            if is_settling && (failed.is_some() || (self.pass.is_none() && has_passed)) {
                let mut orders = self.core.orders.lock();
                (orders.settled, orders.failed) = (settle, failed);
                self.core.settled.notify_all();
            } else if self.pass.is_none() && !self.core.is_urgent.load(SeqCst) {
                let is_unreadable = self.core.status.lock().is_unreadable;
                if is_refused || is_unreadable || !self.core.look_at_all.load(SeqCst) {
                    thread::park_timeout(self.due.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// Gives swarms their stored counts: new swarms, and the next part of a pass over all swarms. If some
    /// cannot be read, a pass begins when a commit is due.
    fn look(&mut self, settle: u64, is_due: bool) -> Result<()> {
        let (mut created, mut restored) = (Vec::new(), Vec::new());
        for shard in &self.core.shards {
            let mut shard = shard.lock();
            created.append(&mut shard.created);
            restored.append(&mut shard.restored);
        }
        let trusted = self.look_at(restored, true, true);
        let trusts = trusted.is_err();
        let looked = trusted.and_then(|()| self.look_at(created, false, false));
        let looked = looked.and_then(|()| self.pass(settle, is_due));
        if looked.is_err() {
            let pass_trusts = self.pass.take().is_some_and(|(_, _, trusts)| trusts);
            self.core.trusts_all.fetch_or(trusts || pass_trusts, SeqCst);
            self.core.look_at_all.store(true, SeqCst);
        }
        looked
    }

    fn pass(&mut self, settle: u64, is_due: bool) -> Result<()> {
        let status = *self.core.status.lock();
        // While the disk refuses writes, a pass would find the same unsaved counts again and again.
        let may_begin = self.pass.is_none() && !status.is_refused && (is_due || !status.is_unreadable);
        if may_begin && self.core.look_at_all.swap(false, SeqCst) {
            self.pass = Some((Cursor::START, settle, self.core.trusts_all.swap(false, SeqCst)));
        }
        let Some((at, began, trusts)) = self.pass else { return Ok(()) };
        let mut swarms = Vec::new();
        let next = self.core.store.walk(at, LOOKED_AT, &mut swarms);
        let info_hashes = swarms.into_iter().map(|swarm| swarm.info_hash).collect();
        self.look_at(info_hashes, trusts, false)?;
        self.pass = Some((next, began, trusts)).filter(|_| !next.is_end());
        if self.pass.is_none() {
            self.passed = began;
        }
        Ok(())
    }

    /// Logs once that the database is damaged.
    fn tell_of_damage(&self) {
        if let Some(damage) = self.downloads.damage()
            && !mem::replace(&mut self.core.status.lock().is_damaged, true)
        {
            error!(%damage, "the stored download counts are damaged; the tracker goes on without them, and saves none");
        }
    }

    /// Logs once that some counts cannot be read, and once that all can be read again.
    fn tell_of_unread(&self, looked: &Result<()>) {
        let status = *self.core.status.lock();
        match looked {
            Err(failed) if !status.is_unreadable => {
                self.core.status.lock().is_unreadable = true;
                if !status.is_damaged {
                    error!(%failed, "stored download counts cannot be read; the tracker goes on without them, and tries again");
                }
            }
            Ok(()) if status.is_unreadable && self.pass.is_none() && !self.core.look_at_all.load(SeqCst) => {
                info!("all stored download counts can be read again");
                self.core.status.lock().is_unreadable = false;
            }
            _ => {}
        }
    }

    /// Reads the stored counts of swarms, and reconciles them. If it `trusts` the swarms, the downloads that
    /// are found in them enter the database; if they `are_restored`, those that wait enter too.
    fn look_at(&mut self, mut info_hashes: Vec<InfoHash>, trusts: bool, are_restored: bool) -> Result<()> {
        info_hashes.sort_unstable();
        info_hashes.dedup();
        for some in info_hashes.chunks(READ_AT_ONCE) {
            for (info_hash, stored) in some.iter().zip(self.downloads.get_all(some)?) {
                self.reconcile(info_hash, stored, trusts, are_restored);
            }
            // Announces on the same core go first.
            thread::yield_now();
        }
        Ok(())
    }

    /// Compares the count of a swarm with its kept count (stored, waiting and noted), and raises the lower
    /// one: one of the two has all downloads that were ever counted, and neither has one twice.
    fn reconcile(&mut self, info_hash: &InfoHash, stored: u32, trusts: bool, is_restored: bool) {
        let (core, mut shard) = (Arc::clone(&self.core), self.core.shard(info_hash));
        let noted = shard.changes.get(info_hash).copied();
        let change = noted.map(|note| note.change).unwrap_or_default();
        let older = if change.forget { 0 } else { u64::from(stored) + self.candidates.get(info_hash) };
        let kept = older + change.add;
        let shown = u64::from(core.store.scrape(info_hash).downloaded);
        let missing = kept.saturating_sub(shown);
        if missing > 0 {
            core.store.add_downloads(info_hash, u32::try_from(missing).unwrap_or(u32::MAX));
        }
        let add = shown.saturating_sub(kept);
        let enters = trusts || (stored > 0 && !change.forget) || noted.is_some_and(PendingChange::enters);
        let source = match add {
            // Restored downloads wait if the swarm was looked up as a new one in between.
            0 if !(is_restored && stored == 0 && kept > 0) => None,
            _ if enters => Some(Source::Several),
            _ => candidates::source_of(&*core.store, info_hash),
        };
        if let Some(source) = source {
            core.change(&mut shard, info_hash, Change { forget: false, add }, source);
        }
        core.status.lock().looked_up += 1;
    }

    /// Makes the noted changes durable, and begins a copy if one is due. Logs once that the disk refuses
    /// writes, and once that it accepts them again.
    fn save(&mut self) -> Result<()> {
        self.due = Instant::now() + self.core.pace.every;
        let saved = self.commit();
        let was_refused = mem::replace(&mut self.core.status.lock().is_refused, saved.is_err());
        match &saved {
            Ok(()) => {
                if was_refused {
                    info!("download counts are being saved again");
                }
                let after = self.core.pace.again_after;
                for (info_hash, add) in self.candidates.confirmed(&*self.core.store, after) {
                    let mut shard = self.core.shard(&info_hash);
                    self.core.change(&mut shard, &info_hash, Change { forget: false, add }, Source::Several);
                }
                self.copy();
            }
            Err(failed) => {
                self.core.status.lock().refusals += 1;
                if !was_refused && !self.core.status.lock().is_damaged {
                    error!(%failed, "download counts are not being saved; the tracker goes on, and tries again");
                }
            }
        }
        self.core.note_size(&self.downloads);
        saved
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(damage) = self.downloads.damage()
            && self.core.unsaved.load(Relaxed) > 0
        {
            return Err(damage);
        }
        let mut taken: Vec<(InfoHash, PendingChange)> = Vec::new();
        for shard in &self.core.shards {
            taken.extend(shard.lock().changes.drain());
        }
        if taken.is_empty() {
            return Ok(());
        }
        let mut committed = self.enter(&mut taken);
        while committed.is_ok() && !taken.is_empty() {
            let some = taken.len().saturating_sub(TOGETHER);
            let changes = taken[some..].iter().map(|&(info_hash, note)| (info_hash, note.change));
            committed = self.downloads.commit(changes);
            if committed.is_ok() {
                taken.truncate(some);
                self.core.status.lock().commits += 1;
            }
        }
        for (info_hash, older) in taken {
            let mut shard = self.core.shard(&info_hash);
            let newer = shard.changes.get(&info_hash).copied();
            let note = newer.map_or(older, |newer| older.then(newer));
            self.core.put(&mut shard, &info_hash, note);
        }
        let unsaved = self.core.shards.iter().map(|shard| shard.lock().changes.len()).sum();
        self.core.unsaved.store(unsaved, Relaxed);
        self.core.status.lock().candidates = self.candidates.len() as u64;
        committed
    }

    /// Begins a copy if one is due, unless it is ending: the check can take long. Another thread writes it.
    fn copy(&mut self) {
        let copy_every = self.core.pace.copy_every;
        if let Some(copying) = self.copying.take_if(|copying| copying.is_finished()) {
            let is_complete = copying.join().is_ok_and(|is_complete| is_complete);
            // A copy that failed is tried again sooner.
            self.copy_due = Instant::now() + if is_complete { copy_every } else { copy_every / 24 };
        }
        if Instant::now() < self.copy_due || self.copying.is_some() || self.core.is_ending() {
            return;
        }
        self.copy_due = Instant::now() + copy_every / 24;
        match self.downloads.begin_copy() {
            Ok(copying) => {
                let core = Arc::clone(&self.core);
                let copy = move || write_copy(&core, copying);
                self.copying = thread::Builder::new().name("copy".into()).spawn(copy).ok();
            }
            Err(failed) => error!(%failed, "download counts are not copied; the latest copy stays"),
        }
    }

    /// Keeps the changes that enter the database now, and adds the downloads that waited for them. Downloads
    /// of a torrent that is not in it wait if one prefix has made them all. If the database is full, torrents
    /// that are not in it are left out instead of entering.
    ///
    /// # Errors
    /// If the database cannot be read: nothing has entered, and nothing waits.
    fn enter(&mut self, changes: &mut Vec<(InfoHash, PendingChange)>) -> Result<()> {
        let is_full = self.downloads.entries() >= self.core.pace.most_known;
        changes.sort_unstable_by_key(|(info_hash, _)| *info_hash);
        let is_asked = |note: &PendingChange| is_full || !note.enters();
        let asked = changes.iter().filter(|(_, note)| is_asked(note)).map(|(info_hash, _)| *info_hash);
        let (mut stored, mut left_out) = (self.downloads.get_all(&asked.collect::<Vec<_>>())?.into_iter(), 0);
        changes.retain_mut(|(info_hash, note)| {
            let is_known = is_asked(note) && stored.next().is_some_and(|stored| stored > 0);
            let Change { forget, add } = note.change;
            if forget {
                self.candidates.remove(info_hash);
            }
            match note.source {
                Source::Prefix(endpoint, finished) if !is_known => {
                    let Some(all) = self.candidates.add(*info_hash, add, endpoint, finished) else {
                        return false;
                    };
                    note.change.add = all;
                }
                _ => note.change.add = add.saturating_add(self.candidates.remove(info_hash).unwrap_or(0)),
            }
            // If the commit is refused, this change does not wait again.
            note.source = Source::Several;
            let is_left_out = is_full && !is_known && !forget;
            left_out += u64::from(is_left_out);
            !is_left_out
        });
        self.core.status.lock().left_out += left_out;
        Ok(())
    }
}

/// The copy is ended before the database is closed.
impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(copying) = self.copying.take() {
            // It sees that the keeper has ended.
            let _ = copying.join();
        }
    }
}

/// Writes a copy with a quarter of a core, and gives it up when the database is closed. Returns whether the
/// copy is complete.
fn write_copy(core: &Core, copying: Copying) -> bool {
    let copied = copying.finish(|took| {
        let until = Instant::now() + 3 * took;
        while Instant::now() < until && !core.is_ending() {
            thread::sleep(Duration::from_millis(10));
        }
        !core.is_ending()
    });
    match copied {
        Ok(true) => info!("download counts copied"),
        Ok(false) => {}
        Err(ref failed) => error!(%failed, "download counts are not copied; the latest copy stays"),
    }
    copied.is_ok_and(|is_complete| is_complete)
}

/// Tells waiting callers that the keeper has ended, also by a panic.
struct EndNotice<'a>(&'a Core);

impl Drop for EndNotice<'_> {
    fn drop(&mut self) {
        self.0.orders.lock().ended = true;
        self.0.settled.notify_all();
    }
}
