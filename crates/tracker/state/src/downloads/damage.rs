//! Parts of the database that are not as they were written: what they cost, and copies of their files.

use std::{collections::BTreeMap, fmt, ops::Range};

use crate::{Error, Folder, Result};

/// A part of the database that is not as it was written. What it held is not counted; everything else is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The part of the file.
    pub bytes: Range<u64>,
    /// What is wrong there.
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

/// What follows the name of a damaged file of which a copy is kept.
pub(crate) const DAMAGED: &str = ".damaged";

/// Keeps a copy of a damaged file beside it, for the operator. Where the file cannot be read, the copy has
/// zeroes.
///
/// # Errors
/// [`Error::Io`] if the copy cannot be written.
pub(crate) fn keep_damaged(folder: &dyn Folder, name: &str) -> Result<String> {
    let kept = format!("{name}{DAMAGED}");
    let copy = || {
        let (from, to) = (folder.open(name)?, folder.create(&kept)?);
        let length = from.len()?;
        to.set_len(length)?;
        let mut page = vec![0; 4096];
        for at in (0..length).step_by(page.len()) {
            let some = page.len().min((length - at) as usize);
            if from.read_exact_at(&mut page[..some], at).is_ok() {
                to.write_all_at(&page[..some], at)?;
            }
        }
        to.sync()?;
        folder.sync()
    };
    copy().map_err(Error::io("writing", folder.path(&kept)))?;
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

    /// The end of the range that the page is in.
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
