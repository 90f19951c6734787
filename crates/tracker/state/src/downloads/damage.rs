//! Damaged parts of the database: the counts that are lost with them, and copies of their files.

use std::{collections::BTreeMap, fmt, io, iter, ops::Range};

use super::log::SECTOR;
use crate::{Error, File, Folder, Result};

/// A part of the database that is not as it was written. The counts in it are lost; all others are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The part of the file.
    pub bytes: Range<u64>,
    /// The fault.
    pub what: &'static str,
    /// The most torrents whose downloads are lost with it.
    pub lost: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, bytes: Range { start, end }, what, lost } = self;
        write!(f, "{file}, from byte {start} to {end}: {what}; it holds downloads of at most {lost} torrents")
    }
}

/// The number of `EIO`, the error for a sector that the disk cannot read.
const EIO: i32 = 5;

/// The attempts to read a sector before it counts as unreadable.
const ATTEMPTS: usize = 4;

/// Reads a file, with zeroes in place of the sectors that the disk cannot read.
pub(crate) struct Tolerant<'a> {
    file: &'a dyn File,
    /// The sectors that could not be read.
    refused: Pages,
    /// Whether something could be read.
    is_read: bool,
    unread: Option<io::Error>,
    /// An error other than that of a sector.
    failed: Option<io::Error>,
}

impl<'a> Tolerant<'a> {
    pub(crate) fn new(file: &'a dyn File) -> Self {
        Self { file, refused: Pages::default(), is_read: false, unread: None, failed: None }
    }

    /// Fills `buffer` from byte `at` on, where a sector begins.
    pub(crate) fn read(&mut self, buffer: &mut [u8], at: u64) {
        if self.file.read_exact_at(buffer, at).is_ok() {
            self.is_read |= !buffer.is_empty();
            return;
        }
        for (number, sector) in (at / SECTOR..).zip(buffer.chunks_mut(SECTOR as usize)) {
            let mut read = Ok(());
            for _ in 0..ATTEMPTS {
                read = self.file.read_exact_at(sector, number * SECTOR);
                if read.is_ok() {
                    break;
                }
            }
            let Err(error) = read else {
                self.is_read = true;
                continue;
            };
            sector.fill(0);
            self.refused.add(number..number + 1);
            let is_of_sector = error.raw_os_error() == Some(EIO);
            *(if is_of_sector { &mut self.unread } else { &mut self.failed }) = Some(error);
        }
    }

    /// Whether the disk has refused a sector from byte `at` on.
    pub(crate) fn refused_from(&self, at: u64) -> bool {
        self.refused.ranges().any(|sectors| sectors.end * SECTOR > at)
    }

    /// Succeeds if all errors were of unreadable sectors.
    ///
    /// # Errors
    /// The other error.
    pub(crate) fn sectors_only(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Succeeds if a part was read, or no sector was unreadable.
    ///
    /// # Errors
    /// The error of the disk: its fault may then concern more than this file.
    pub(crate) fn any(&mut self) -> io::Result<()> {
        self.unread.take().filter(|_| !self.is_read).map_or(Ok(()), Err)
    }
}

/// The end of the name of a damaged file's copy. From the second copy on, a number follows.
pub(crate) const DAMAGED: &str = ".damaged";

/// The most copies of one file. Then the last is replaced.
const MOST_COPIES: usize = 4;

/// Keeps a copy of a damaged file beside it, for the operator, under a name of its own. Where the file cannot
/// be read, the copy has zeroes.
///
/// # Errors
/// [`Error::Io`] if the copy cannot be written.
pub(crate) fn keep_damaged(folder: &dyn Folder, name: &str) -> Result<String> {
    let names = folder.names().map_err(Error::io("listing", folder.path("")))?;
    let more = (2..=MOST_COPIES).map(|number| format!("{name}{DAMAGED}-{number}"));
    let mut copies = iter::once(format!("{name}{DAMAGED}")).chain(more).peekable();
    let is_free = |copy: &String| !names.contains(copy);
    let kept = loop {
        let copy = copies.next().expect("the last ends it");
        if is_free(&copy) || copies.peek().is_none() {
            break copy;
        }
    };
    let copy = || {
        let (from, to) = (folder.open(name)?, folder.create(&kept)?);
        let length = from.len()?;
        let mut from = Tolerant::new(&*from);
        to.set_len(length)?;
        let mut page = vec![0; 4096];
        for at in (0..length).step_by(page.len()) {
            let some = page.len().min((length - at) as usize);
            from.read(&mut page[..some], at);
            to.write_all_at(&page[..some], at)?;
        }
        to.sync()?;
        folder.sync()
    };
    if let Err(error) = copy() {
        // The next attempt makes a new copy, so the incomplete one is removed.
        let _ = folder.remove(&kept);
        return Err(Error::io("writing", folder.path(&kept))(error));
    }
    Ok(kept)
}

/// Numbers of pages, as ranges without neighbours: begin and end.
#[derive(Debug, Default)]
pub(crate) struct Pages(BTreeMap<u64, u64>);

impl Pages {
    pub(crate) fn add(&mut self, mut pages: Range<u64>) {
        while let Some((&start, &end)) = self.0.range(..=pages.end).next_back()
            && end >= pages.start
        {
            self.0.remove(&start);
            pages = start.min(pages.start)..end.max(pages.end);
        }
        self.0.insert(pages.start, pages.end);
    }

    /// The end of the range that contains the page.
    pub(crate) fn end_of(&self, page: u64) -> Option<u64> {
        let (_, &end) = self.0.range(..=page).next_back()?;
        (page < end).then_some(end)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_ranges_without_neighbours() {
        let mut pages = Pages::default();
        [3, 5, 9].into_iter().for_each(|page| pages.add(page..page + 1));
        pages.add(4..5);
        pages.add(7..12);
        assert!(pages.ranges().eq([3..6, 7..12]));
        assert_eq!(
            [2, 3, 5, 6, 11, 12].map(|page| pages.end_of(page)),
            [None, Some(6), Some(6), None, Some(12), None]
        );
        pages.add(0..20);
        assert_eq!(pages.ranges().collect::<Vec<_>>().as_slice(), std::slice::from_ref(&(0..20)));
    }
}
