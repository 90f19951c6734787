//! Sorts counts by info hash in bounded memory, each torrent once, before they are stored.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    error::Error,
    fs::File,
    io::{self, BufWriter, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
    vec,
};

use serde::Serialize;
use swarmkeep_bittorrent::InfoHash;

/// A torrent and its downloads.
pub(super) type Count = (InfoHash, u32);

/// So many are sorted in memory, in 24 MiB.
const CHUNK: usize = 1 << 20;
/// What a count takes in a file: 20 bytes of the info hash, four of the number.
const RECORD: usize = 24;
/// So much of each sorted run is read at once.
const READ: usize = RECORD << 11;

/// So many counts are handed over at once, at most.
const BATCH: usize = 1 << 14;

/// Where the counts go.
pub(super) trait Sink {
    /// Raises what is kept of torrents to at least these downloads, and answers of how many it was less.
    ///
    /// It never lowers, never adds, and does nothing the second time. Over all calls up to
    /// [`finish`](Self::finish), info hashes come in ascending order, each once, none with zero downloads; at
    /// most [`BATCH`] at once and never none.
    fn at_least(&mut self, counts: &[Count]) -> Result<u64, Box<dyn Error>>;

    /// Makes all of it last, whatever happens from now on.
    fn finish(self: Box<Self>) -> Result<(), Box<dyn Error>>;
}

/// Takes counts in any order. What does not fit into memory goes to a file without a name, in sorted runs.
pub(super) struct Spool {
    /// Where that file is made.
    folder: PathBuf,
    chunk: Vec<Count>,
    /// How many counts a chunk may have.
    most: usize,
    file: Option<BufWriter<File>>,
    /// How many counts each run in the file has.
    runs: Vec<usize>,
}

/// The counts of all files together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// The number of different torrents.
    pub torrents: u64,
    /// The number of torrents with downloads.
    pub with_downloads: u64,
    /// The number of downloads.
    pub downloads: u64,
    /// The number of counts for torrents that already had one.
    pub duplicates: u64,
    /// The number of torrents whose stored count was lower, if there is a state folder.
    pub raised: Option<u64>,
}

impl Spool {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self::of_chunks(folder, CHUNK)
    }

    fn of_chunks(folder: PathBuf, most: usize) -> Self {
        Self { folder, chunk: Vec::new(), most, file: None, runs: Vec::new() }
    }

    pub(super) fn push(&mut self, count: Count) -> io::Result<()> {
        self.chunk.push(count);
        if self.chunk.len() == self.most { self.spill() } else { Ok(()) }
    }

    /// Hands everything over, in ascending order: of several counts of one torrent the highest, and none of
    /// zero.
    pub(super) fn hand_over(self, mut sink: Option<&mut dyn Sink>) -> Result<Totals, Box<dyn Error>> {
        let mut totals = Totals { raised: sink.is_some().then_some(0), ..Totals::default() };
        let mut batch: Vec<Count> = Vec::with_capacity(BATCH);
        let mut counts = self.sorted()?;
        let mut next = counts.next().transpose()?;
        while let Some((info_hash, mut downloads)) = next {
            next = counts.next().transpose()?;
            while let Some((_, more)) = next.filter(|(other, _)| *other == info_hash) {
                // Counts of one torrent ascend too.
                downloads = more;
                totals.duplicates += 1;
                next = counts.next().transpose()?;
            }
            totals.torrents += 1;
            totals.downloads += u64::from(downloads);
            if downloads > 0 {
                totals.with_downloads += 1;
                batch.push((info_hash, downloads));
            }
            if batch.len() == BATCH || (next.is_none() && !batch.is_empty()) {
                if let (Some(sink), Some(raised)) = (&mut sink, &mut totals.raised) {
                    *raised += sink.at_least(&batch)?;
                }
                batch.clear();
            }
        }
        Ok(totals)
    }

    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = tempfile::tempfile_in(&self.folder).map_err(|error| {
                    let folder = self.folder.display();
                    io::Error::new(error.kind(), format!("a temporary file in {folder}: {error}"))
                })?;
                self.file.insert(BufWriter::with_capacity(READ, file))
            }
        };
        self.chunk.sort_unstable();
        for (info_hash, downloads) in &self.chunk {
            file.write_all(info_hash.as_bytes())?;
            file.write_all(&downloads.to_le_bytes())?;
        }
        self.runs.push(self.chunk.len());
        self.chunk.clear();
        Ok(())
    }

    /// All counts, in ascending order.
    pub(super) fn sorted(mut self) -> io::Result<impl Iterator<Item = io::Result<Count>>> {
        let mut merge = Merge { file: None, sources: Vec::new(), first: BinaryHeap::new() };
        if let Some(file) = self.file.take() {
            merge.file = Some(file.into_inner().map_err(io::IntoInnerError::into_error)?);
            let mut at = 0;
            for run in self.runs.drain(..) {
                let end = at + (run * RECORD) as u64;
                merge.sources.push(Source::Run { at, end, ready: Vec::new().into_iter() });
                at = end;
            }
        }
        self.chunk.sort_unstable();
        merge.sources.push(Source::Chunk(self.chunk.into_iter()));
        for nth in 0..merge.sources.len() {
            if let Some(count) = merge.sources[nth].next(merge.file.as_ref())? {
                merge.first.push(Reverse((count, nth)));
            }
        }
        Ok(merge)
    }
}

/// All sorted runs as one.
struct Merge {
    file: Option<File>,
    sources: Vec<Source>,
    /// The next count of each source that has one.
    first: BinaryHeap<Reverse<(Count, usize)>>,
}

enum Source {
    Chunk(vec::IntoIter<Count>),
    Run { at: u64, end: u64, ready: vec::IntoIter<Count> },
}

impl Merge {
    fn first(&mut self) -> io::Result<Option<Count>> {
        let Some(mut first) = self.first.peek_mut() else { return Ok(None) };
        let Reverse((count, nth)) = *first;
        match self.sources[nth].next(self.file.as_ref())? {
            Some(following) => *first = Reverse((following, nth)),
            None => _ = PeekMut::pop(first),
        }
        Ok(Some(count))
    }
}

impl Iterator for Merge {
    type Item = io::Result<Count>;

    fn next(&mut self) -> Option<io::Result<Count>> {
        self.first().transpose()
    }
}

impl Source {
    fn next(&mut self, file: Option<&File>) -> io::Result<Option<Count>> {
        match self {
            Self::Chunk(counts) => Ok(counts.next()),
            Self::Run { at, end, ready } => {
                if ready.len() == 0 && at < end {
                    let mut bytes = vec![0; READ.min((*end - *at) as usize)];
                    file.expect("runs are in a file").read_exact_at(&mut bytes, *at)?;
                    *at += bytes.len() as u64;
                    let (records, _) = bytes.as_chunks::<RECORD>();
                    let counts = records.iter().map(|record| {
                        let (info_hash, downloads) = record.split_first_chunk().expect("24 bytes");
                        let downloads = downloads.try_into().expect("the last four of them");
                        (InfoHash::new(*info_hash), u32::from_le_bytes(downloads))
                    });
                    *ready = counts.collect::<Vec<_>>().into_iter();
                }
                Ok(ready.next())
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{collections::BTreeMap, env};

    use swarmkeep::{Random, SplitMix64};

    use super::*;

    /// Keeps what comes, and looks whether it comes as promised.
    #[derive(Default)]
    pub(crate) struct Kept {
        pub(crate) counts: BTreeMap<InfoHash, u32>,
        last: Option<InfoHash>,
    }

    impl Sink for Kept {
        fn at_least(&mut self, counts: &[Count]) -> Result<u64, Box<dyn Error>> {
            assert!((1..=BATCH).contains(&counts.len()));
            let mut raised = 0;
            for &(info_hash, downloads) in counts {
                assert!(downloads > 0 && self.last < Some(info_hash), "{info_hash}");
                self.last = Some(info_hash);
                let kept = self.counts.entry(info_hash).or_default();
                raised += u64::from(*kept < downloads);
                *kept = downloads.max(*kept);
            }
            Ok(raised)
        }

        fn finish(self: Box<Self>) -> Result<(), Box<dyn Error>> {
            Ok(())
        }
    }

    fn some(count: usize, different: u64) -> Vec<Count> {
        let mut numbers = SplitMix64::new(7);
        let mut number = |below: u64| numbers.next_u64() % below;
        let mut one = || {
            let mut info_hash = [0; 20];
            info_hash[..8]
                .copy_from_slice(&number(different).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            (InfoHash::new(info_hash), number(5) as u32)
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn of_each_torrent_the_highest_count_comes_once_in_ascending_order_however_many_runs_there_are() {
        let counts = some(20_000, 9_000);
        let mut highest = BTreeMap::new();
        for &(info_hash, downloads) in &counts {
            let known = highest.entry(info_hash).or_default();
            *known = downloads.max(*known);
        }
        let torrents = highest.len() as u64;
        highest.retain(|_, downloads| *downloads > 0);
        let expected = Totals {
            torrents,
            with_downloads: highest.len() as u64,
            downloads: highest.values().copied().map(u64::from).sum(),
            duplicates: 20_000 - torrents,
            raised: Some(highest.len() as u64),
        };
        // All in memory, in runs only, in runs and a rest.
        for most in [CHUNK, 5_000, 20_000, 777, 1] {
            let counts = if most == 1 { &counts[..0] } else { &counts[..] };
            let mut spool = Spool::of_chunks(env::temp_dir(), most);
            counts.iter().for_each(|count| spool.push(*count).unwrap());
            assert_eq!(spool.runs.len(), counts.len() / most);
            let mut kept = Kept::default();
            let totals = spool.hand_over(Some(&mut kept)).unwrap();
            if !counts.is_empty() {
                assert_eq!((totals, &kept.counts), (expected, &highest), "chunks of {most}");
            }
        }
    }

    #[test]
    fn what_is_taken_twice_is_raised_once() {
        let mut kept = Kept::default();
        for expected in [true, false] {
            let mut spool = Spool::of_chunks(env::temp_dir(), 100);
            some(1_000, 300).iter().for_each(|count| spool.push(*count).unwrap());
            kept.last = None;
            let totals = spool.hand_over(Some(&mut kept)).unwrap();
            assert_eq!(totals.raised, Some(if expected { totals.with_downloads } else { 0 }));
        }
    }

    #[test]
    fn nothing_is_no_batch() {
        let spool = Spool::new(env::temp_dir());
        let nothing = Totals { raised: Some(0), ..Totals::default() };
        assert_eq!(spool.hand_over(Some(&mut Kept::default())).unwrap(), nothing);
    }
}
