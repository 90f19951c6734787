//! The thread between a store and its database: it makes new downloads durable, and gives swarms their stored
//! counts.

use std::{
    mem,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::Instant,
};

use swarmkeep::Cursor;
use tracing::{debug, error, info, warn};

use super::{Core, End, LOOKED_AT};
use crate::{
    Change, Downloads, InfoHash, Result,
    candidates::{self, Candidates, Note, Source},
};

/// The thread between a store and its database.
pub(super) struct Keeper {
    core: Arc<Core>,
    downloads: Downloads,
    /// Torrents that are not in the database yet.
    candidates: Candidates,
    /// During a pass over all swarms: its position, and the number of the `settle` call when it began.
    pass: Option<(Cursor, u64)>,
    /// Whether all counts that this pass finds enter the database.
    pass_trusts: bool,
    /// The number of the `settle` call when the latest complete pass began.
    passed: u64,
    /// Swarms whose stored counts could not be read. They are tried again when a commit is due.
    unread: Vec<InfoHash>,
    due: Instant,
}

impl Keeper {
    pub(super) fn new(core: Arc<Core>, downloads: Downloads) -> Self {
        let (due, candidates) = (Instant::now() + core.pace.every, Candidates::new());
        let (pass, passed, unread, pass_trusts) = (None, 0, Vec::new(), false);
        Self { core, downloads, candidates, pass, pass_trusts, passed, unread, due }
    }

    pub(super) fn run(mut self) {
        let core = Arc::clone(&self.core);
        let _ended = Ended(&core);
        loop {
            let (settle, settled, end) = {
                let told = self.core.told.lock();
                (told.settle, told.settled, told.end)
            };
            if end == Some(End::Abandon) {
                return;
            }
            let is_settling = settle > settled;
            self.core.is_urgent.store(false, SeqCst);
            let is_full = self.core.unsaved.load(Relaxed) >= self.core.pace.torrents;
            let is_time = Instant::now() >= self.due || is_settling || end.is_some();
            // After a refusal, try again only when it is due.
            let is_due = is_time || (is_full && !self.core.status.is_refused.load(Relaxed));
            let looked = self.look(settle, is_due);
            self.tell_of_unread(&looked);
            let saved = if is_due { self.save() } else { Ok(()) };
            self.tell_of_damage();
            if end.is_some() {
                // Stored counts that cannot be read are no error here: closing does not lose them.
                self.core.told.lock().failed = saved.err().map(|error| error.to_string());
                return;
            }
            let failed = saved.and(looked).err().map(|error| error.to_string());
            let is_refused = self.core.status.is_refused.load(Relaxed);
            let has_passed = !self.core.look_at_all.load(SeqCst) || self.passed >= settle || is_refused;
            if is_settling && (failed.is_some() || (self.pass.is_none() && has_passed)) {
                let mut told = self.core.told.lock();
                (told.settled, told.failed) = (settle, failed);
                self.core.settled.notify_all();
            } else if self.pass.is_none() && !self.core.is_urgent.load(SeqCst) {
                let is_idle = is_refused || !self.core.look_at_all.load(SeqCst);
                if is_idle {
                    thread::park_timeout(self.due.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// Gives swarms their stored counts: new swarms, swarms whose counts could not be read before, and the
    /// next part of a pass over all swarms.
    fn look(&mut self, settle: u64, is_due: bool) -> Result<()> {
        let mut wanted = if is_due { mem::take(&mut self.unread) } else { Vec::new() };
        let mut restored = Vec::new();
        for shard in &self.core.shards {
            let mut shard = shard.lock();
            wanted.append(&mut shard.created);
            restored.append(&mut shard.restored);
        }
        let trusted = self.look_at(restored, true);
        let looked = self.look_at(wanted, false).and(trusted);
        // While the disk refuses writes, a pass would find the same unsaved counts again and again.
        let may_begin = self.pass.is_none() && !self.core.status.is_refused.load(Relaxed);
        if may_begin && self.core.look_at_all.swap(false, SeqCst) {
            self.pass = Some((Cursor::START, settle));
            self.pass_trusts = self.core.trusts_all.swap(false, SeqCst);
        }
        let Some((at, began)) = self.pass else { return looked };
        let mut swarms = Vec::new();
        let next = self.core.store.walk(at, LOOKED_AT, &mut swarms);
        self.pass = Some((next, began)).filter(|_| !next.is_end());
        if self.pass.is_none() {
            self.passed = began;
        }
        let swarms = swarms.into_iter().map(|swarm| swarm.info_hash).collect();
        let some = self.look_at(swarms, self.pass_trusts);
        looked.and(some)
    }

    /// Logs once that some counts cannot be read, and once that all can be read again.
    fn tell_of_unread(&self, looked: &Result<()>) {
        let is_unreadable = !self.unread.is_empty();
        if self.core.status.is_unreadable.swap(is_unreadable, Relaxed) != is_unreadable {
            match looked {
                Err(failed) => {
                    error!(%failed, "some stored download counts cannot be read; the tracker goes on without them, and tries again")
                }
                Ok(()) => info!("all stored download counts can be read again"),
            }
        }
    }

    /// Logs damage of the database when it is first found, and when it changes.
    fn tell_of_damage(&self) {
        let damage = self.downloads.damage();
        let lost = damage.iter().map(|damage| damage.lost).sum();
        if self.core.status.damaged.swap(lost, Relaxed) != lost {
            let parts = damage.len();
            let first = damage.first().map(ToString::to_string).unwrap_or_default();
            warn!(
                parts, lost, %first,
                "stored download counts are damaged; the tracker goes on without them. Stop it, and repair them with `swarmkeep state DIR --repair`"
            );
        }
    }

    /// Reads the stored counts of swarms, and reconciles them. If it `trusts` the swarms, their torrents
    /// enter the database.
    fn look_at(&mut self, mut info_hashes: Vec<InfoHash>, trusts: bool) -> Result<()> {
        info_hashes.sort_unstable();
        info_hashes.dedup();
        let mut stored = Vec::new();
        let read = self.downloads.get_sorted(&info_hashes, &mut stored);
        if read.is_ok() {
            for (info_hash, stored) in info_hashes.iter().zip(stored) {
                self.reconcile(info_hash, stored, trusts);
            }
            return Ok(());
        }
        // If a page cannot be read, the swarms of the other pages still get their counts.
        for info_hash in info_hashes {
            match self.downloads.get(&info_hash) {
                Ok(stored) => self.reconcile(&info_hash, stored, trusts),
                Err(_) if self.unread.len() < LOOKED_AT => self.unread.push(info_hash),
                Err(_) => self.core.look_at_all.store(true, SeqCst),
            }
        }
        read
    }

    /// Compares the count of a swarm with its kept count (stored, waiting and noted), and raises the lower
    /// one: one of the two has all downloads that were ever counted, and neither has one twice.
    fn reconcile(&mut self, info_hash: &InfoHash, stored: u32, trusts: bool) {
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
        let enters = trusts || (stored > 0 && !change.forget) || noted.is_some_and(Note::enters);
        let source = match add {
            0 => None,
            _ if enters => Some(Source::Several),
            _ => candidates::source_of(&*core.store, info_hash),
        };
        if let Some(source) = source {
            core.change(&mut shard, info_hash, Change { forget: false, add }, source);
        }
        core.status.looked_up.fetch_add(1, Relaxed);
    }

    /// Makes the noted changes durable, and maintains the database. Logs once that the disk refuses writes,
    /// and once that it accepts them again.
    fn save(&mut self) -> Result<()> {
        self.due = Instant::now() + self.core.pace.every;
        let saved = self.commit();
        let status = &self.core.status;
        match &saved {
            Ok(()) => {
                if status.is_refused.swap(false, Relaxed) {
                    info!("download counts are being saved again");
                }
                for (info_hash, add) in
                    self.candidates.confirmed(&*self.core.store, self.core.pace.again_after)
                {
                    let mut shard = self.core.shard(&info_hash);
                    let change = Change { forget: false, add };
                    self.core.change(&mut shard, &info_hash, change, Source::Several);
                }
                // Runs that cannot be merged now can still be read, and are merged another time.
                if let Err(failed) = self.downloads.maintain() {
                    debug!(%failed, "the database of download counts is not tidied");
                }
            }
            Err(failed) => {
                status.refusals.fetch_add(1, Relaxed);
                if !status.is_refused.swap(true, Relaxed) {
                    error!(%failed, "download counts are not being saved; the tracker goes on, and tries again");
                }
            }
        }
        self.core.note_size(&self.downloads);
        saved
    }

    fn commit(&mut self) -> Result<()> {
        let mut taken: Vec<(InfoHash, Note)> = Vec::new();
        for shard in &self.core.shards {
            taken.extend(shard.lock().changes.drain());
        }
        if taken.is_empty() {
            return Ok(());
        }
        self.enter(&mut taken);
        let committed =
            self.downloads.commit(taken.iter().map(|&(info_hash, note)| (info_hash, note.change)));
        if committed.is_err() {
            for (info_hash, older) in taken {
                let mut shard = self.core.shard(&info_hash);
                let newer = shard.changes.get(&info_hash).copied();
                let note = newer.map_or(older, |newer| older.then(newer));
                self.core.put(&mut shard, &info_hash, note);
            }
        } else {
            self.core.status.commits.fetch_add(1, Relaxed);
        }
        let unsaved = self.core.shards.iter().map(|shard| shard.lock().changes.len()).sum();
        self.core.unsaved.store(unsaved, Relaxed);
        self.core.status.candidates.store(self.candidates.len() as u64, Relaxed);
        committed
    }

    /// Keeps the changes that enter the database now, and adds the downloads that waited for them. Downloads
    /// of a torrent that is not in it wait if one prefix has made them all. If the database is full, torrents
    /// that are not in it are left out instead of entering.
    fn enter(&mut self, changes: &mut Vec<(InfoHash, Note)>) {
        let is_full = self.downloads.entries() >= self.core.pace.most_known;
        changes.sort_unstable_by_key(|(info_hash, _)| *info_hash);
        let is_asked = |note: &Note| is_full || !note.enters();
        let asked = changes.iter().filter(|(_, note)| is_asked(note)).map(|(info_hash, _)| *info_hash);
        let (asked, mut stored) = (asked.collect::<Vec<_>>(), Vec::new());
        if self.downloads.get_sorted(&asked, &mut stored).is_err() {
            // A torrent that cannot be looked up counts as known: a commit does not read.
            stored.extend(asked.iter().map(|info_hash| self.downloads.get(info_hash).unwrap_or(1)));
        }
        let (mut stored, mut left_out) = (stored.into_iter(), 0);
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
                _ => {
                    note.change.add =
                        add.saturating_add(self.candidates.remove(info_hash).unwrap_or_default())
                }
            }
            // If the commit is refused, this change does not wait again.
            note.source = Source::Several;
            let is_left_out = is_full && !is_known && !forget;
            left_out += u64::from(is_left_out);
            !is_left_out
        });
        self.core.status.left_out.fetch_add(left_out, Relaxed);
    }
}

/// Tells waiting callers that the keeper has ended, also by a panic.
struct Ended<'a>(&'a Core);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.told.lock().ended = true;
        self.0.settled.notify_all();
    }
}
