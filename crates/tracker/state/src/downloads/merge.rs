//! Merges neighbouring runs into one, in a thread of its own.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::{
    entry::{Delta, Entry},
    run::{self, Entries, Failed, Run},
};
use crate::{Error, Folder, InfoHash, Result};

/// The most downloads of an entry that is weeded: as many as make a torrent of two prefixes enter.
const MOST_WEEDED: u32 = 2;

/// A running merge. It reads only immutable files. A cancelled merge ends within a page.
pub(crate) struct Merge {
    /// The numbers of the logs that it covers.
    pub(crate) first: u64,
    pub(crate) last: u64,
    thread: Option<JoinHandle<Result<Run, Failed>>>,
    cancelled: Arc<AtomicBool>,
}

impl Merge {
    /// Begins to merge neighbouring runs, oldest first. `older` says whether there are runs before them. If
    /// it `weeds`, entries of at most [`MOST_WEEDED`] downloads that only the oldest run has are left out.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub(crate) fn begin(
        folder: Arc<dyn Folder>,
        runs: Vec<Arc<Run>>,
        older: bool,
        weeds: bool,
    ) -> Result<Self> {
        let (first, last) = (runs[0].first, runs[runs.len() - 1].last);
        let cancelled = Arc::new(AtomicBool::new(false));
        let path = folder.path("");
        let cancel = Arc::clone(&cancelled);
        let merge = move || {
            let mut entries = Merged::new(runs.iter().map(|run| Entries::new(run)).collect());
            entries.weeds = weeds;
            let interrupted = Error::io("merging in", folder.path(""));
            let mut interrupted = Some(interrupted(io::ErrorKind::Interrupted.into()));
            let cancellable = entries.map(|entry| match cancel.load(Ordering::Relaxed) {
                true => interrupted.take().map_or(entry, Err),
                false => entry,
            });
            run::write(&*folder, (first, last), older, cancellable)
        };
        let thread = thread::Builder::new().name("downloads merge".into()).spawn(merge);
        let thread = Some(thread.map_err(Error::io("starting a thread for", path))?);
        Ok(Self { first, last, thread, cancelled })
    }

    /// Whether [`finish`](Self::finish) returns at once.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the merged run.
    ///
    /// # Errors
    /// The errors of [`run::write`], and of reading the runs.
    pub(crate) fn finish(mut self) -> Result<Run, Failed> {
        let thread = self.thread.take().expect("only this and the end of the value take it");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Merge {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The entries of several sources, oldest source first, in ascending order. Entries of one torrent are
/// combined.
pub(crate) struct Merged<I> {
    sources: Vec<I>,
    /// The next entry of each source; of one torrent, the oldest first.
    heads: BinaryHeap<Reverse<Head>>,
    failed: Option<Error>,
    /// Whether a torrent of at most [`MOST_WEEDED`] downloads is left out if only the oldest source has it.
    weeds: bool,
}

#[derive(PartialEq, Eq)]
struct Head {
    info_hash: InfoHash,
    source: usize,
    delta: Delta,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.info_hash, self.source).cmp(&(&other.info_hash, other.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<I: Iterator<Item = Result<Entry>>> Merged<I> {
    pub(crate) fn new(sources: Vec<I>) -> Self {
        let heads = BinaryHeap::with_capacity(sources.len());
        let mut merged = Self { heads, sources, failed: None, weeds: false };
        (0..merged.sources.len()).for_each(|source| merged.advance(source));
        merged
    }

    fn advance(&mut self, source: usize) {
        match self.sources[source].next() {
            Some(Ok((info_hash, delta))) => self.heads.push(Reverse(Head { info_hash, source, delta })),
            Some(Err(error)) => self.failed = Some(error),
            None => {}
        }
    }
}

impl<I: Iterator<Item = Result<Entry>>> Iterator for Merged<I> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(error) = self.failed.take() {
                self.heads.clear();
                return Some(Err(error));
            }
            let Reverse(Head { info_hash, source, mut delta }) = self.heads.pop()?;
            self.advance(source);
            let is_weed = self.weeds && source == 0 && !delta.forget && delta.add <= MOST_WEEDED;
            let mut is_changed = false;
            while self.heads.peek().is_some_and(|Reverse(head)| head.info_hash == info_hash) {
                let Reverse(newer) = self.heads.pop().expect("it was there to be looked at");
                (delta, is_changed) = (delta.then(newer.delta), true);
                self.advance(newer.source);
            }
            if !is_weed || is_changed {
                return Some(Ok((info_hash, delta)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u8, forget: bool, add: u32) -> Result<Entry> {
        Ok((InfoHash::new([key; 20]), Delta { forget, add }))
    }

    #[test]
    fn the_newest_comes_last_and_a_forget_cuts_off_what_is_older() {
        let sources = vec![
            vec![entry(1, false, 1), entry(2, false, 10), entry(4, false, 5)],
            vec![entry(2, true, 3), entry(3, true, 0)],
            vec![entry(2, false, 4), entry(4, false, u32::MAX)],
        ];
        let merged = Merged::new(sources.into_iter().map(Vec::into_iter).collect());
        let merged: Vec<_> = merged.map(Result::unwrap).collect();
        let expected = [entry(1, false, 1), entry(2, true, 7), entry(3, true, 0), entry(4, false, u32::MAX)];
        assert_eq!(merged, expected.map(Result::unwrap));
    }

    #[test]
    fn two_downloads_that_nobody_repeated_are_weeded() {
        let sources = vec![
            vec![entry(1, false, 1), entry(2, false, 1), entry(3, false, 3), entry(5, false, 2)],
            vec![entry(2, false, 1), entry(4, false, 1)],
        ];
        let mut merged = Merged::new(sources.into_iter().map(Vec::into_iter).collect());
        merged.weeds = true;
        let merged: Vec<_> = merged.map(Result::unwrap).collect();
        let expected = [entry(2, false, 2), entry(3, false, 3), entry(4, false, 1)];
        assert_eq!(merged, expected.map(Result::unwrap));
    }

    #[test]
    fn an_error_of_a_source_is_the_last_that_comes() {
        let sources = vec![
            vec![entry(1, false, 1), Err(Error::Source(io::ErrorKind::Other.into())), entry(3, false, 1)],
            vec![entry(1, false, 1), entry(2, false, 1)],
        ];
        let mut merged = Merged::new(sources.into_iter().map(Vec::into_iter).collect());
        assert_eq!(merged.next().unwrap().unwrap(), entry(1, false, 2).unwrap());
        assert!(merged.next().unwrap().is_err());
        assert!(merged.next().is_none());
        let first = vec![Err(Error::Source(io::ErrorKind::Other.into()))];
        let mut merged = Merged::new(vec![first.into_iter()]);
        assert!(merged.next().is_some_and(|entry| entry.is_err()));
    }
}
