//! The label of a torrent: where its torrent file lies, and what a list shows of it.

use std::{fmt, sync::Arc};

use swarmkeep_metainfo::Metainfo;

use super::{Kept, ShelfPiece, geometry, parts};
use crate::{ContentRepository, InfoHash, Result};

/// What a torrent file says in short. It shares the label that it comes from.
#[derive(Clone, PartialEq, Eq)]
pub struct Description {
    /// The name lies from [`NAME`](Self::NAME) on.
    bytes: Arc<[u8]>,
    end: u32,
    files: u32,
}

impl Description {
    /// Where the name of a torrent begins in its label.
    const NAME: usize = 11;

    pub(super) fn of(metainfo: &Metainfo) -> Self {
        let info = metainfo.info();
        let files = info.files().iter().filter(|file| !file.is_padding()).count() as u32;
        Self::new(info.name(), files)
    }

    fn new(name: &str, files: u32) -> Self {
        let bytes: Arc<[u8]> = [&[0; Self::NAME], name.as_bytes()].concat().into();
        Self { end: bytes.len() as u32, bytes, files }
    }

    /// The name of the torrent.
    pub fn name(&self) -> &str {
        let name = &self.bytes[Self::NAME..self.end as usize];
        std::str::from_utf8(name).expect("it was UTF-8 when it was made")
    }

    /// How many files it has, without padding.
    pub const fn files(&self) -> u32 {
        self.files
    }
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} files", self.name(), self.files)
    }
}

/// A label, in parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kept: Kept,
    pub(super) description: Description,
}

impl Label {
    /// All of the label of a torrent that has no torrent file.
    pub(super) const NO_FILE: u8 = 0;
    const KIND: u8 = 1;

    /// The label of a torrent, if it has one of this kind.
    pub(super) fn of(inner: &dyn ContentRepository, info_hash: &InfoHash) -> Result<Option<Self>> {
        inner.label(info_hash).map(Self::parse)
    }

    /// The label that says this; `None` if it would be longer than `most`.
    pub(super) fn bytes(kept: &Kept, description: &Description, most: usize) -> Option<Vec<u8>> {
        let name = description.name().as_bytes();
        let mut bytes = vec![Self::KIND];
        bytes.extend(kept.length.to_le_bytes());
        bytes.extend(description.files.to_le_bytes());
        bytes.extend(u16::try_from(name.len()).ok()?.to_le_bytes());
        bytes.extend(name);
        let neighbours =
            |a: &ShelfPiece, b: &ShelfPiece| a.shelf == b.shelf && a.piece.checked_add(1) == Some(b.piece);
        for run in kept.parts.chunk_by(neighbours) {
            let numbers = [run[0].shelf, run[0].piece, run.len() as u16];
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        (bytes.len() <= most).then_some(bytes)
    }

    pub(super) fn parse(label: Arc<[u8]>) -> Option<Self> {
        let number = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes);
        let (&Self::KIND, rest) = label.split_first()? else { return None };
        let (length, rest) = rest.split_first_chunk()?;
        let (files, rest) = rest.split_first_chunk()?;
        let (name_length, rest) = rest.split_first_chunk()?;
        let (name, runs) = rest.split_at_checked(number(name_length).into())?;
        std::str::from_utf8(name).ok()?;
        let mut kept = Kept { length: u32::from_le_bytes(*length), parts: Vec::new() };
        let count = parts(kept.length);
        if kept.length as usize > swarmkeep_metainfo::LONGEST {
            return None;
        }
        let (runs, rest) = runs.as_chunks::<6>();
        for &[a, b, c, d, e, f] in runs {
            let (shelf, first, pieces) = (number(&[a, b]), number(&[c, d]), number(&[e, f]));
            if kept.parts.len() + usize::from(pieces) > count {
                return None;
            }
            let run =
                first..first.checked_add(pieces).filter(|&end| u32::from(end) <= geometry().pieces())?;
            kept.parts.extend(run.map(|piece| ShelfPiece { shelf, piece }));
        }
        if kept.parts.len() != count || !rest.is_empty() {
            return None;
        }
        let end = (Description::NAME + name.len()) as u32;
        Some(Self { kept, description: Description { end, files: u32::from_le_bytes(*files), bytes: label } })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::PART, *};

    fn kept(length: u32, places: &[(u16, u16)]) -> Kept {
        let parts = places.iter().map(|&(shelf, piece)| ShelfPiece { shelf, piece }).collect();
        Kept { length, parts }
    }

    fn description() -> Description {
        Description::new("a name", 7)
    }

    #[test]
    fn a_label_reads_as_it_was_written() {
        for (kept, runs) in [
            (kept(1, &[(3, 511)]), 1),
            (kept(98_160, &[(0, 1), (0, 2), (0, 3)]), 1),
            (kept(98_161, &[(0, 511), (1, 0), (1, 1), (1, 9)]), 3),
        ] {
            let bytes = Label::bytes(&kept, &description(), 454).unwrap();
            assert_eq!(bytes.len(), 11 + 6 + 6 * runs);
            let label = Label::parse(bytes.as_slice().into()).unwrap();
            assert_eq!((label.description.name(), label.description.files()), ("a name", 7));
            assert_eq!(label.kept, kept);
            assert_eq!(Label::bytes(&kept, &description(), bytes.len() - 1), None);
            for cut in 0..bytes.len() {
                assert_eq!(Label::parse(bytes[..cut].into()), None, "the first {cut} bytes");
            }
        }
    }

    #[test]
    fn a_label_that_names_more_pieces_than_its_file_has_parts_is_none() {
        let mut bytes = Label::bytes(&kept(1, &[(0, 0)]), &description(), 454).unwrap();
        let last = bytes.len() - 2;
        for count in [0, 2, u16::MAX] {
            bytes[last..].copy_from_slice(&count.to_le_bytes());
            assert_eq!(Label::parse(bytes.as_slice().into()), None, "{count} pieces");
        }
    }

    #[test]
    fn a_label_of_a_file_longer_than_any_or_in_pieces_that_do_not_exist_is_none() {
        let longest = swarmkeep_metainfo::LONGEST as u32;
        let places =
            |length: u32| (0..parts(length) as u16).map(|at| (at / 512, at % 512)).collect::<Vec<_>>();
        for (length, places, is_label) in [
            (longest, places(longest), true),
            (longest + PART as u32, places(longest + PART as u32), false),
            (1, vec![(0, 512)], false),
        ] {
            let bytes = Label::bytes(&kept(length, &places), &description(), 454).unwrap();
            assert_eq!(Label::parse(bytes.into()).is_some(), is_label, "{length} bytes");
        }
    }
}
