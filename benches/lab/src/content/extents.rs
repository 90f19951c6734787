//! Where the bytes of files lie on the disk.

use std::{fs::File, io, ops::Range, path::Path};

use fiemap::{Fiemap, FiemapExtentFlags, FiemapFlags};

use crate::content::{disk::Access, pictures::METADATA};

/// The extents of files that are numbered from 0.
#[derive(Debug)]
pub(crate) struct Extents {
    files: Vec<Vec<Extent>>,
    /// Why it is not known where the files lie, if it is not. They are then taken as one after another,
    /// without gaps.
    pub(crate) unknown: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    logical: u64,
    physical: u64,
    len: u64,
}

impl Extents {
    /// Asks the file system (FIEMAP), after the files' bytes have been given their places.
    ///
    /// # Errors
    /// What the system says about files that are not there.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a Path> + Clone) -> io::Result<Self> {
        let known: io::Result<Vec<_>> = paths.clone().into_iter().map(extents).collect();
        match known {
            Ok(files) => Ok(Self { files, unknown: None }),
            Err(error) => {
                let mut at = 0;
                let files = paths.into_iter().map(|path| {
                    let len = path.metadata()?.len();
                    at += len;
                    Ok(vec![Extent { logical: 0, physical: at - len, len }])
                });
                let files = files.collect::<io::Result<_>>()?;
                Ok(Self {
                    files,
                    unknown: Some(format!("this file system does not say where files lie ({error})")),
                })
            }
        }
    }

    /// How many extents there are.
    pub(crate) fn count(&self) -> u64 {
        self.files.iter().map(|extents| extents.len() as u64).sum()
    }

    /// Tells the file that has a byte of the disk, or [`METADATA`].
    pub(crate) fn owners(&self) -> impl Fn(u64) -> u32 {
        let files = (0..).zip(&self.files);
        let mut owners: Vec<_> = files
            .flat_map(|(file, extents)| extents.iter().map(move |extent| (extent.physical, extent.len, file)))
            .collect();
        owners.sort_unstable();
        move |at| match owners[..owners.partition_point(|&(start, ..)| start <= at)].last() {
            Some(&(start, len, file)) if at < start + len => file,
            _ => METADATA,
        }
    }

    /// Accesses by byte of the file `whose` as accesses by byte of the disk. What lies nowhere is left out.
    pub(crate) fn place(&self, trace: impl IntoIterator<Item = Access>) -> Vec<Access> {
        let mut placed: Vec<Access> = Vec::new();
        for access in trace {
            if access.len == 0 {
                placed.push(access);
                continue;
            }
            let first = placed.len();
            for part in self.parts(access.whose, access.at..access.at + access.len) {
                match placed[first..].last_mut() {
                    Some(before) if before.at + before.len == part.start => {
                        before.len += part.end - part.start
                    }
                    _ => placed.push(Access { at: part.start, len: part.end - part.start, ..access }),
                }
            }
        }
        placed
    }

    fn parts(&self, file: u32, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let extents = self.files.get(file as usize).map_or(&[][..], |extents| extents);
        let first = extents.partition_point(|extent| extent.logical + extent.len <= range.start);
        extents[first..].iter().take_while(move |extent| extent.logical < range.end).map(move |extent| {
            let (from, to) = (range.start.max(extent.logical), range.end.min(extent.logical + extent.len));
            extent.physical + (from - extent.logical)..extent.physical + (to - extent.logical)
        })
    }
}

fn extents(path: &Path) -> io::Result<Vec<Extent>> {
    // With SYNC, what waits to be written is given its place first.
    let extents = Fiemap::with_flags(File::open(path)?, FiemapFlags::SYNC);
    let extents = extents.map(|extent| {
        let extent = extent?;
        let nowhere =
            FiemapExtentFlags::UNKNOWN | FiemapExtentFlags::DELALLOC | FiemapExtentFlags::DATA_INLINE;
        if extent.fe_flags.intersects(nowhere) {
            return Err(io::Error::other("some bytes lie at no place that it could name"));
        }
        Ok(Extent { logical: extent.fe_logical, physical: extent.fe_physical, len: extent.fe_length })
    });
    extents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::disk::Action;

    fn access(whose: u32, at: u64, len: u64) -> Access {
        Access { at, len, action: Action::Write, whose }
    }

    #[test]
    fn an_access_is_split_where_its_file_is() {
        let extent = |logical, physical, len| Extent { logical, physical, len };
        let extents = Extents {
            files: vec![
                vec![extent(0, 1000, 10), extent(10, 1010, 10), extent(20, 500, 20)],
                vec![extent(0, 0, 8)],
            ],
            unknown: None,
        };
        // The first two lie together.
        assert_eq!(extents.place([access(0, 5, 20)]), [access(0, 1005, 15), access(0, 500, 5)]);
        assert_eq!(extents.place([access(1, 2, 3)]), [access(1, 2, 3)]);
        assert_eq!(extents.place([access(1, 6, 10), access(2, 0, 1)]), [access(1, 6, 2)]);
        assert_eq!(extents.count(), 4);
        assert_eq!([1005, 500, 7, 8].map(extents.owners()), [0, 0, 1, METADATA]);
    }

    #[test]
    fn every_byte_of_a_file_that_was_written_lies_somewhere_and_no_two_at_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [0, 1].map(|n| folder.path().join(n.to_string()));
        for path in &paths {
            std::fs::write(path, vec![1; 3 << 20]).unwrap();
        }
        let extents = Extents::of(paths.iter().map(|path| &**path)).unwrap();
        let mut placed =
            extents.place([access(1, 0, 3 << 20), access(0, 1 << 20, 2 << 20), access(0, 0, 1 << 20)]);
        placed.sort_by_key(|access| access.at);
        assert_eq!(placed.iter().map(|access| access.len).sum::<u64>(), 6 << 20);
        assert!(placed.windows(2).all(|pair| pair[0].at + pair[0].len <= pair[1].at), "{placed:?}");
    }
}
