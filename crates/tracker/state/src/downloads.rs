//! The durable download counts of torrents: a log of commits, and sorted runs into which it is merged.

mod damage;
mod entry;
mod log;
mod merge;
mod names;
mod run;

use std::{
    collections::BTreeMap,
    fmt, io, mem,
    sync::{Arc, atomic::Ordering::Relaxed},
};

pub use self::{damage::Damage, entry::Change};
use self::{
    damage::keep_damaged,
    entry::{Delta, Entry},
    log::{BLOCK_HEADER, Log, MOST_ENTRIES},
    merge::{Merge, Merged},
    names::Name,
    run::{Cursor, Entries, Failed, Run},
};
use crate::{Error, Folder, InfoHash, Result};

/// The number of downloads of each torrent, on disk.
///
/// A commit is atomic and durable. Its cost depends on the number of changes, not on the number of known
/// torrents. In memory are the entries of the log, a few megabytes, and 256 KiB per run during a merge. A
/// torrent takes 25 to 34 bytes on disk; during a merge, the old runs and the new one exist together. Counts
/// saturate at `u32::MAX`.
///
/// Only one value may use the files `downloads-*` of a folder. `docs/formats/downloads.md` describes their
/// format.
///
/// ```
/// use std::sync::Arc;
/// use swarmkeep_state::{Change, Directory, Downloads, InfoHash};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path();
/// let torrent = InfoHash::new([7; 20]);
/// let mut downloads = Downloads::open(Arc::new(Directory::open(path)?))?;
/// downloads.commit([(torrent, Change { forget: false, add: 3 })])?;
/// downloads.maintain()?;
/// assert_eq!(downloads.get(&torrent)?, 3);
/// # Ok(())
/// # }
/// ```
pub struct Downloads {
    folder: Arc<dyn Folder>,
    options: Options,
    /// Oldest first. Together they contain the changes of all logs before the current one.
    runs: Vec<Arc<Run>>,
    /// The changes in the log.
    recent: BTreeMap<InfoHash, Delta>,
    log: Option<Log>,
    merge: Option<Merge>,
    /// The failed merges since the last successful one, and the calls of [`maintain`](Self::maintain) before
    /// the next merge.
    failed_merges: u32,
    merge_in: u32,
    /// Files that a failure has left, or may have left. The next process would misread them beside later
    /// files, so they are durably removed before anything else is written.
    misleading: Vec<String>,
    /// Files that are no longer needed. The next process recognizes them too.
    superseded: Vec<String>,
}

/// The sizes of the parts of the database.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    log_bytes: u64,
    log_entries: usize,
    weed_above: u64,
}

impl Default for Options {
    /// A log of 4 MiB, or 65,536 torrents; weeds above 50 million torrents.
    fn default() -> Self {
        Self { log_bytes: 4 << 20, log_entries: 1 << 16, weed_above: 50_000_000 }
    }
}

impl Options {
    /// The most bytes of a log, unless one commit needs more.
    #[must_use]
    pub fn log_bytes(mut self, bytes: u64) -> Self {
        self.log_bytes = bytes;
        self
    }

    /// The most torrents of a log, unless one commit has more. They are in memory, with about 64 bytes each.
    #[must_use]
    pub fn log_entries(mut self, entries: usize) -> Self {
        self.log_entries = entries;
        self
    }

    /// The number of entries above which merges weed: a merge into the oldest run leaves out the torrents of
    /// one or two downloads that are in no younger run.
    #[must_use]
    pub fn weed_above(mut self, entries: u64) -> Self {
        self.weed_above = entries;
        self
    }
}

/// The result of [`Downloads::rewrite`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rewritten {
    /// The damaged parts.
    pub damage: Vec<Damage>,
    /// Copies of the damaged files.
    pub kept: Vec<String>,
    /// Torrents whose counts were written.
    pub entries: u64,
    /// Torrents whose counts were below `least`.
    pub forgotten: u64,
}

impl Downloads {
    /// Opens the counts in a folder. A new folder has none. It reads the log and one page of each run, even
    /// after a crash, and changes nothing before the first commit or [`maintain`](Self::maintain). A folder
    /// without write access can be read.
    ///
    /// A damaged part loses the counts in it, and no others; [`damage`](Self::damage) lists it.
    ///
    /// # Errors
    /// [`Error::Mixed`], [`Error::Version`], and [`Error::Damaged`] for a file under another file's name or
    /// one that is damaged while the files that it replaces are still there: nothing was changed.
    /// [`Error::Io`], also if no part of a log can be read.
    pub fn open(folder: Arc<dyn Folder>) -> Result<Self> {
        Self::open_with(folder, Options::default())
    }

    /// As [`open`](Self::open), with these sizes. They may differ each time.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(folder: Arc<dyn Folder>, options: Options) -> Result<Self> {
        let names = folder.names().map_err(Error::io("listing", folder.path("")))?;
        let mut names: Vec<_> = names.iter().filter_map(|name| Some((Name::parse(name)?, name))).collect();
        // Of runs that begin at the same number, the longest comes first.
        names.sort_by_key(|&(name, _)| match name {
            Name::Run(first, last) => (0, first, u64::MAX - last),
            Name::Log(number) => (1, number, 0),
            Name::Partial => (2, 0, 0),
        });
        let mut downloads = Self {
            folder,
            options,
            runs: Vec::new(),
            recent: BTreeMap::new(),
            log: None,
            merge: None,
            failed_merges: 0,
            merge_in: 0,
            misleading: Vec::new(),
            superseded: Vec::new(),
        };
        for (parsed, name) in names {
            let next = downloads.next_number();
            let (first, last) = match parsed {
                Name::Run(first, last) => (first, last),
                Name::Log(number) => (number, number),
                Name::Partial => (0, 0),
            };
            if last < next {
                downloads.supersede(name.clone(), first)?;
            } else if first != next || downloads.log.is_some() {
                return Err(Error::Mixed { path: downloads.folder.path(name), expected: next });
            } else if let Name::Run(..) = parsed {
                downloads.runs.push(Arc::new(Run::open(&*downloads.folder, first, last)?));
            } else {
                let recent = &mut downloads.recent;
                downloads.log = Some(Log::read(&*downloads.folder, first, |entry| apply(recent, entry))?);
            }
        }
        Ok(downloads)
    }

    /// Notes a file that a run replaces, unless that run is damaged.
    fn supersede(&mut self, name: String, first: u64) -> Result<()> {
        let run = self.runs.iter().find(|run| (run.first..=run.last).contains(&first));
        if let Some(damage) = run.and_then(|run| run.damage().into_iter().next()) {
            return Err(Error::Damaged {
                path: self.folder.path(&damage.file),
                at: damage.bytes.start,
                what: "the files that it replaces are still there: move it to another folder, and they count again",
            });
        }
        self.superseded.push(name);
        Ok(())
    }

    /// The damaged parts that were found so far.
    pub fn damage(&self) -> Vec<Damage> {
        let log = self.log.iter().flat_map(|log| log.damage().iter().cloned());
        self.runs.iter().flat_map(|run| run.damage()).chain(log).collect()
    }

    /// Reads everything. Returns all parts that are damaged.
    pub fn check(&self) -> Vec<Damage> {
        self.runs.iter().for_each(|run| run.check());
        self.damage()
    }

    /// The last commit, if it is incomplete. It was in progress when the process or the power failed, and the
    /// next commit overwrites it; or it is damaged, which looks the same.
    pub fn torn(&self) -> Option<&Damage> {
        self.log.as_ref().and_then(Log::torn)
    }

    /// Writes all counts that can be read and are at least `least` anew, as one run. Of each damaged file a
    /// copy with the name `….damaged` is kept. It needs as much space as all files.
    ///
    /// # Errors
    /// [`Error::Io`]: the counts are unchanged.
    pub fn rewrite(self, least: u32) -> Result<Rewritten> {
        let damage = self.check();
        let mut names: Vec<_> = damage.iter().chain(self.torn()).map(|damage| damage.file.clone()).collect();
        names.dedup();
        let kept = names.iter().map(|name| keep_damaged(&*self.folder, name)).collect::<Result<_>>()?;
        let mut rewritten = Rewritten { damage, kept, entries: 0, forgotten: 0 };
        let old = self.runs.iter().map(|run| run.name());
        let mut old: Vec<_> = old.chain(self.log.as_ref().map(|log| log.name().to_owned())).collect();
        if old.is_empty() {
            return Ok(rewritten);
        }
        old.extend(self.superseded.iter().cloned());
        let mut sources: Vec<Box<dyn Iterator<Item = Result<Entry>> + '_>> = Vec::new();
        sources.extend(self.runs.iter().map(|run| Box::new(Entries::lenient(run)) as _));
        sources.push(Box::new(self.recent.iter().map(|(&info_hash, &delta)| Ok((info_hash, delta)))));
        let forgotten = &mut rewritten.forgotten;
        let entries = Merged::new(sources).filter(|entry| {
            let is_little = entry.as_ref().is_ok_and(|(_, delta)| delta.add < least);
            *forgotten += u64::from(is_little && !entry.as_ref().is_ok_and(|(_, delta)| delta.add == 0));
            !is_little
        });
        let last = self.next_number() - u64::from(self.log.is_none());
        let run = run::write(&*self.folder, (1, last), false, entries).map_err(|failed| failed.error)?;
        rewritten.entries = run.entries;
        for name in old.iter().filter(|name| **name != run.name()) {
            // A file that stays is removed by the next process.
            let _ = remove(&*self.folder, name);
        }
        Ok(rewritten)
    }

    /// The number of downloads of the torrent; 0 if it is unknown. It reads 2 or 3 pages of 4 KiB of each
    /// run, and O(log n) pages if info hashes are not random. The number of runs is about the logarithm to
    /// base 4 of the number of torrents divided by 65,536.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn get(&self, info_hash: &InfoHash) -> Result<u32> {
        let mut delta = self.recent.get(info_hash).copied().unwrap_or_default();
        let mut cursor = Cursor::new();
        for run in self.runs.iter().rev() {
            if delta.forget {
                break;
            }
            cursor.reset();
            if let Some(older) = run.find(info_hash, &mut cursor)? {
                delta = older.then(delta);
            }
        }
        Ok(delta.add)
    }

    /// Writes the counts of many torrents to `counts`, one for one, and replaces its contents. The info
    /// hashes must be in ascending order; equal ones are allowed. Info hashes on the same page share one
    /// read.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::NotAscending`]. `counts` is then empty.
    pub fn get_sorted(&self, info_hashes: &[InfoHash], counts: &mut Vec<u32>) -> Result<()> {
        counts.clear();
        if let Some(pair) = info_hashes.windows(2).find(|pair| pair[0] > pair[1]) {
            return Err(Error::NotAscending { info_hash: pair[1] });
        }
        let recent = |info_hash| self.recent.get(info_hash).copied().unwrap_or_default();
        let mut deltas: Vec<Delta> = info_hashes.iter().map(recent).collect();
        let mut cursor = Cursor::new();
        for run in self.runs.iter().rev() {
            cursor.reset();
            for (info_hash, delta) in info_hashes.iter().zip(&mut deltas) {
                if !delta.forget
                    && let Some(older) = run.find(info_hash, &mut cursor)?
                {
                    *delta = older.then(*delta);
                }
            }
        }
        counts.extend(deltas.iter().map(|delta| delta.add));
        Ok(())
    }

    /// Makes all changes in order, or none. They are durable when it returns. It costs 25 bytes of the log
    /// per change and one `fdatasync`; more if the log is full or the last commit failed.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TooManyChanges`]: no change is made, and all earlier commits can still be
    /// read. The same changes may be committed again, alone or with others, and then count once. If the
    /// process ends instead, the next process may find the refused commit, whole.
    pub fn commit(&mut self, changes: impl IntoIterator<Item = (InfoHash, Change)>) -> Result<()> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut block = vec![0; BLOCK_HEADER];
        for (info_hash, change) in changes {
            let entry = (info_hash, Delta::from(change));
            if entry.1.is_empty() {
                continue;
            }
            if entries.len() == MOST_ENTRIES {
                return Err(Error::TooManyChanges { most: MOST_ENTRIES });
            }
            block.extend(entry::encode(&entry));
            entries.push(entry);
        }
        if entries.is_empty() {
            return Ok(());
        }
        self.remove_misleading()?;
        let full = |log: &Log| !log.has_room(block.len());
        if self.recent.len() >= self.options.log_entries.max(1) || self.log.as_ref().is_some_and(full) {
            self.seal()?;
        }
        let number = self.next_number();
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let length = Log::length_for(self.options.log_bytes, block.len());
                none.insert(Log::create(&*self.folder, number, length)?)
            }
        };
        log.append(&*self.folder, block)?;
        entries.into_iter().for_each(|entry| apply(&mut self.recent, entry));
        Ok(())
    }

    /// Adds the counts of any number of torrents, or none of them. They are durable when it returns. The info
    /// hashes must be in ascending order. The counts go directly into a run, which suits millions of them. It
    /// needs 256 KiB more memory.
    ///
    /// # Errors
    /// [`Error::NotAscending`], for equal info hashes too; [`Error::Source`] for an error among `counts`;
    /// [`Error::Io`], as for [`commit`](Self::commit).
    pub fn add_sorted(
        &mut self,
        counts: impl IntoIterator<Item = io::Result<(InfoHash, u64)>>,
    ) -> Result<()> {
        self.remove_misleading()?;
        if !self.recent.is_empty() {
            self.seal()?;
        }
        let number = self.next_number();
        let entries = counts.into_iter().map(|count| {
            let (info_hash, add) = count.map_err(Error::Source)?;
            Ok((info_hash, Change { forget: false, add }.into()))
        });
        self.write_newest(number, entries)
    }

    /// Does the maintenance that is due, without waiting for a merge: it takes over a merge that has ended,
    /// turns a log that is more than half full into a run, and begins a merge. Call it after commits, or
    /// every few minutes.
    ///
    /// # Errors
    /// The error of these steps or of the merge. Nothing is lost, and the next call tries again. A failed
    /// merge is tried again after 2, 4, … 64 calls; until it fails, it needs as much space as its runs.
    pub fn maintain(&mut self) -> Result<()> {
        let merged = match &self.merge {
            Some(merge) if merge.is_finished() => self.finish_merge(),
            _ => Ok(()),
        };
        self.remove_misleading()?;
        self.remove_superseded();
        let half_full =
            self.recent.len() > self.options.log_entries / 2 || self.log.as_ref().is_some_and(Log::half_full);
        if half_full && !self.recent.is_empty() {
            self.seal()?;
        }
        merged?;
        self.merge_in = self.merge_in.saturating_sub(1);
        if self.merge.is_none()
            && let Some((from, to)) = self.due()
        {
            let runs = self.runs[from..to].to_vec();
            let weeds = from == 0 && self.entries() > self.options.weed_above;
            self.merge = Some(Merge::begin(Arc::clone(&self.folder), runs, from > 0, weeds)?);
        }
        Ok(())
    }

    /// As [`maintain`](Self::maintain), until nothing more is due. It waits for every merge.
    ///
    /// # Errors
    /// As [`maintain`](Self::maintain).
    pub fn settle(&mut self) -> Result<()> {
        loop {
            self.merge_in = 0;
            self.maintain()?;
            if self.merge.is_none() {
                return Ok(());
            }
            self.finish_merge()?;
        }
    }

    /// The size in bytes of the files that contain the counts: the runs, and the written part of the log. A
    /// merge may need as many bytes again.
    pub fn size_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes()).sum::<u64>() + self.log.as_ref().map_or(0, Log::end)
    }

    /// The number of entries of all runs and of the log: an upper bound for the number of known torrents.
    /// Without a merge, at least three quarters of it are known torrents.
    pub fn entries(&self) -> u64 {
        self.runs.iter().map(|run| run.entries).sum::<u64>() + self.recent.len() as u64
    }

    /// The number of runs. A lookup reads all of them.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether runs are being merged.
    pub fn is_merging(&self) -> bool {
        self.merge.is_some()
    }

    /// The number of the log that is written now, or next.
    fn next_number(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.last) + 1
    }

    /// Turns the log into a run.
    fn seal(&mut self) -> Result<()> {
        let recent = mem::take(&mut self.recent);
        let entries = recent.iter().map(|(&info_hash, &delta)| Ok((info_hash, delta)));
        let sealed = self.write_newest(self.next_number(), entries);
        if sealed.is_err() {
            self.recent = recent;
        }
        sealed
    }

    /// Writes a run of `entries` that replaces the log `number`. That log has the same changes, or none.
    fn write_newest(&mut self, number: u64, entries: impl Iterator<Item = Result<Entry>>) -> Result<()> {
        if let Some(log) = &mut self.log {
            log.keep_damaged(&*self.folder)?;
        }
        let run = run::write(&*self.folder, (number, number), !self.runs.is_empty(), entries);
        let run = self.noting(run)?;
        self.runs.push(Arc::new(run));
        if self.log.take().is_some() {
            self.superseded.push(Name::Log(number).to_string());
        }
        self.remove_superseded();
        Ok(())
    }

    /// The runs to merge next, if any: each of them but the oldest has, together with all younger ones, at
    /// least a quarter of the entries of the next older one. So after all merges each run is less than a
    /// quarter of the one before it, and all are less than 4/3 of the oldest. Damaged runs are not merged.
    /// After a failed merge, the next waits until `merge_in` is 0; but if a run could not be read, the other
    /// runs are merged meanwhile.
    fn due(&self) -> Option<(usize, usize)> {
        let is_unread = |run: &Arc<Run>| run.is_unread.load(Relaxed);
        let is_time = self.merge_in == 0;
        if !is_time && !self.runs.iter().any(is_unread) {
            return None;
        }
        let is_kept = |at: usize| self.runs[at].is_kept() || (!is_time && is_unread(&self.runs[at]));
        (1..self.runs.len()).rev().find_map(|newest| {
            let mut entries = self.runs[newest].entries;
            let mut from = newest;
            while from > 0
                && !is_kept(newest)
                && !is_kept(from - 1)
                && entries.saturating_mul(4) >= self.runs[from - 1].entries
            {
                from -= 1;
                entries = entries.saturating_add(self.runs[from].entries);
            }
            (from < newest).then_some((from, newest + 1))
        })
    }

    /// Waits for the merge, and replaces its runs by the new one.
    fn finish_merge(&mut self) -> Result<()> {
        let Some(merge) = self.merge.take() else { return Ok(()) };
        let (first, last) = (merge.first, merge.last);
        let run = merge.finish();
        if let Err(Failed { error: Error::Damaged { .. }, .. }) = run {
            // The damaged run is noted, and not merged again. The others are.
            return Ok(());
        }
        let merged = |run: &&Arc<Run>| run.first >= first && run.last <= last;
        if run.is_ok() || !self.runs.iter().filter(merged).any(|run| run.is_unread.load(Relaxed)) {
            // No unreadable run was the cause of a failure.
            self.runs.iter().for_each(|run| run.is_unread.store(false, Relaxed));
        }
        self.failed_merges = if run.is_ok() { 0 } else { self.failed_merges.saturating_add(1) };
        self.merge_in = if run.is_ok() { 0 } else { 1 << self.failed_merges.min(6) };
        let run = self.noting(run)?;
        let from = self.runs.iter().position(|run| merged(&run)).expect("runs that are being merged stay");
        let to = from + self.runs[from..].iter().take_while(merged).count();
        let inputs = self.runs.splice(from..to, [Arc::new(run)]);
        self.superseded.extend(inputs.map(|run| run.name()));
        self.remove_superseded();
        Ok(())
    }

    /// Returns the run. If it could not be written, notes the file that may be left.
    fn noting(&mut self, run: Result<Run, Failed>) -> Result<Run> {
        run.map_err(|failed| {
            self.misleading.extend(failed.appeared);
            failed.error
        })
    }

    fn remove_misleading(&mut self) -> Result<()> {
        if self.misleading.is_empty() {
            return Ok(());
        }
        for name in &self.misleading {
            remove(&*self.folder, name).map_err(Error::io("removing", self.folder.path(name)))?;
        }
        self.folder.sync().map_err(Error::io("removing files from", self.folder.path("")))?;
        self.misleading.clear();
        Ok(())
    }

    /// Removes the superseded files, as far as possible. Call it when the files that replace them are
    /// durable.
    fn remove_superseded(&mut self) {
        self.superseded.retain(|name| remove(&*self.folder, name).is_err());
    }
}

impl fmt::Debug for Downloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Downloads")
            .field("folder", &self.folder)
            .field("runs", &self.runs.iter().map(|run| (run.name(), run.entries)).collect::<Vec<_>>())
            .field("recent", &self.recent.len())
            .field("merging", &self.merge.is_some())
            .finish_non_exhaustive()
    }
}

fn apply(recent: &mut BTreeMap<InfoHash, Delta>, (info_hash, delta): Entry) {
    let older = recent.entry(info_hash).or_default();
    *older = older.then(delta);
}

/// Removes a file if it is there.
fn remove(folder: &dyn Folder, name: &str) -> io::Result<()> {
    folder.remove(name).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}
