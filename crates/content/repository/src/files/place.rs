//! Where the files of a torrent lie: making them, looking at them, removing them.

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    io, iter,
    ops::Range,
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    fd::BorrowedFd,
    fs::{AtFlags, OFlags, Stat, StatxFlags},
    io::Errno,
};
use swarmkeep_metainfo::{FileList, with_number};

use super::{
    Allocation, HIDDEN,
    disk::{Disk, DiskStep},
    folder,
    state::StateRecord,
    walk::{Purpose, Walk},
};
use crate::{Error, Result};

/// A torrent and where it lies.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) record: StateRecord,
    /// Its info hash, which is also the name of its state.
    pub(super) name: String,
}

/// The result of a look at the place of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileCheck {
    /// A file of the right length, and the ranges that have room on the disk, counted in the torrent; not
    /// looked up for files that are complete.
    There(Vec<Range<u64>>),
    /// A shorter file without bytes, as a crash may leave a new one.
    Blank,
    /// A shorter file that has bytes.
    Short,
    Long,
    /// Nothing.
    Gone,
    /// Something else than a file, or something else than a folder in its path.
    NoFile,
}

/// No file system has longer names, in bytes.
const LONGEST_NAME: usize = 255;

/// Seconds and nanoseconds.
pub(super) type Time = (i64, u32);

impl Location {
    pub(super) fn new(record: StateRecord) -> Self {
        Self { name: record.info_hash.to_string(), record }
    }

    /// The possible places of the torrent, best first: its own name or, if that is in use, one with a
    /// number. Files without one name at the top lie in a folder that is named by the info hash.
    pub(super) fn candidates(self) -> impl Iterator<Item = Self> {
        let apart = self.top().is_none();
        let own = Self::new(StateRecord { apart, ..self.record.clone() });
        let is_named = !apart && !self.is_nameless();
        let numbered = (2..1000).take_while(move |_| is_named).filter_map(move |nth| self.numbered(nth));
        iter::once(own).chain(numbered)
    }

    /// The same torrent, with a number in its name: `album (2)`, `film (2).mkv`. `None` if a path becomes too
    /// long.
    fn numbered(&self, nth: u32) -> Option<Self> {
        let (top, number) = (self.top()?, format!(" ({nth})"));
        let name = match self.files().all(|file| file.path().len() == 1) {
            true => with_number(top, &number, LONGEST_NAME),
            false => format!("{}{number}", &top[..top.floor_char_boundary(LONGEST_NAME - number.len())]),
        };
        let mut files = FileList::builder();
        for file in self.record.files.iter() {
            if file.is_padding() {
                files.padding(file.length()).ok()?;
            } else {
                let mut path = file.path();
                path[0] = &name;
                files.file(&path, file.length(), file.is_executable()).ok()?;
            }
        }
        Some(Self::new(StateRecord { files: Arc::new(files.build().ok()?), ..self.record.clone() }))
    }

    /// Whether the torrent gave no name to its file, which lies in the hidden folder.
    pub(super) fn is_nameless(&self) -> bool {
        !self.record.apart && self.files().map(|file| file.path()).eq([[HIDDEN, &self.name]])
    }

    /// Its files, without padding.
    pub(super) fn files(&self) -> impl Iterator<Item = swarmkeep_metainfo::File<'_>> {
        self.record.files.iter().filter(|file| !file.is_padding())
    }

    /// Where a file lies, from the store's folder on.
    pub(super) fn path(&self, index: usize) -> Vec<&str> {
        let file = self.record.files.get(index).expect("it comes from the list");
        self.record.apart.then_some(&*self.name).into_iter().chain(file.path()).collect()
    }

    /// The one name at the top of the store's folder with which all its paths begin, if there is one. Without
    /// names, the name of its file.
    pub(super) fn top(&self) -> Option<&str> {
        if self.record.apart || self.is_nameless() {
            return Some(&self.name);
        }
        let mut tops = self.files().map(|file| file.path()[0]);
        let top = tops.next()?;
        tops.all(|other| other == top).then_some(top)
    }

    /// Makes all files below a folder in which nothing lies, without the name of a folder apart or hidden.
    pub(super) fn make(&self, disk: &Disk, allocation: Allocation, below: &impl AsFd) -> Result<()> {
        let mut walk = Walk::new(disk, below.as_fd(), Purpose::Make);
        let skipped = usize::from(self.is_nameless());
        self.files().try_for_each(|file| {
            make_file(&mut walk, disk, allocation, file, &file.path()[skipped..]).map(drop).map_err(|error| {
                match error {
                    Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                        Error::Unsupported(
                            "distinguish the names of two of the torrent's files on this file system",
                        )
                    }
                    other => other,
                }
            })
        })
    }

    /// Looks at the places of its files. `complete` returns whether a range is complete: its room need not be
    /// looked up.
    ///
    /// An error means that a file cannot be examined now.
    pub(super) fn look(
        &self,
        disk: &Disk,
        top: BorrowedFd<'_>,
        complete: impl Fn(&Range<u64>) -> bool,
    ) -> Result<Vec<(usize, FileCheck)>, String> {
        let mut walk = Walk::new(disk, top, Purpose::Look);
        let look = |file: swarmkeep_metainfo::File<'_>| {
            let path = self.path(file.index());
            let (name, folders) = path.split_last().expect("a file has a name");
            let found = walk.to(folders).and_then(|at| Ok((at, folder::stat(at, name)?)));
            let found = found.and_then(|(at, stat)| found_file(at, name, &stat, file, &complete));
            match found {
                Ok(found) => Ok((file.index(), found)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((file.index(), FileCheck::Gone)),
                Err(error) if folder::is_gone(&error) => Ok((file.index(), FileCheck::NoFile)),
                Err(error) => Err(format!("{}: {error}", path.join("/"))),
            }
        };
        self.files().map(look).collect()
    }

    /// Makes missing and wrong files again. A wrong file gets another name. Something else than a file stays,
    /// and later writes there return an error.
    pub(super) fn mend(
        &self,
        disk: &Disk,
        allocation: Allocation,
        top: BorrowedFd<'_>,
        found: &[(usize, FileCheck)],
    ) -> Result<()> {
        let failed = || Error::io("making files again");
        let mut walk = Walk::new(disk, top, Purpose::Mend);
        for (index, found) in found {
            let path = self.path(*index);
            let (name, folders) = path.split_last().expect("a file has a name");
            let file = self.record.files.get(*index).expect("it comes from the list");
            let made = match found {
                FileCheck::There(_) | FileCheck::NoFile => continue,
                FileCheck::Gone => make_file(&mut walk, disk, allocation, file, &path),
                FileCheck::Blank => walk.to(folders).map_err(failed()).and_then(|at| {
                    let blank = folder::open(at, name, OFlags::RDWR, 0).map_err(failed())?;
                    lengthen(disk, allocation, &blank, file.length())?;
                    Ok(blank)
                }),
                FileCheck::Short | FileCheck::Long => walk
                    .to(folders)
                    .and_then(|at| self.aside(disk, at, &path).map(drop))
                    .map_err(failed())
                    .and_then(|()| make_file(&mut walk, disk, allocation, file, &path)),
            };
            match made {
                Err(Error::Io { source, .. })
                    if folder::is_gone(&source) || source.kind() == io::ErrorKind::AlreadyExists => {}
                made => disk.flush(DiskStep::FlushMade, &made?).map_err(failed())?,
            }
        }
        walk.finish().map_err(failed())
    }

    /// The numbers of the files that the torrent may keep: files that have its content. The store will write
    /// to a file that is not all `right`, and so does not keep one that has other names (hard links). `None`
    /// if two names lead to one file.
    pub(super) fn own(
        &self,
        disk: &Disk,
        top: BorrowedFd<'_>,
        found: &[(usize, FileCheck)],
        has_content: impl Fn(usize) -> bool,
        right: impl Fn(&Range<u64>) -> bool,
    ) -> io::Result<Option<BTreeSet<usize>>> {
        let mut walk = Walk::new(disk, top, Purpose::Look);
        let (mut own, mut seen) = (BTreeSet::new(), HashSet::new());
        for (index, found) in found {
            if !matches!(found, FileCheck::There(_) | FileCheck::Short | FileCheck::Long) {
                continue;
            }
            let path = self.path(*index);
            let (name, folders) = path.split_last().expect("a file has a name");
            let at = walk.to(folders)?;
            let stat = folder::stat(at, name)?;
            if !seen.insert((stat.st_dev, stat.st_ino)) {
                return Ok(None);
            }
            let file = self.record.files.get(*index).expect("it comes from the list");
            let is_right = right(&file.range());
            if !has_content(*index) || *found == FileCheck::Long && !is_right {
                continue;
            }
            let stays = matches!(found, FileCheck::There(_)) && is_right;
            if !stays && stat.st_nlink > 1 {
                continue;
            }
            if !stays {
                folder::open(at, name, OFlags::RDWR, 0)?;
            }
            own.insert(*index);
        }
        Ok(Some(own))
    }

    /// Adopts the files in `own`: they get their final lengths. Other files that have bytes get other names,
    /// which it returns.
    pub(super) fn take_up(
        &self,
        disk: &Disk,
        top: BorrowedFd<'_>,
        found: &[(usize, FileCheck)],
        own: &BTreeSet<usize>,
    ) -> io::Result<Vec<PathBuf>> {
        let mut walk = Walk::new(disk, top, Purpose::Mend);
        let mut renamed = Vec::new();
        for (index, found) in found {
            let length = self.record.files.get(*index).expect("it comes from the list").length();
            let path = self.path(*index);
            let (name, folders) = path.split_last().expect("a file has a name");
            let at = match found {
                FileCheck::There(_) | FileCheck::Short | FileCheck::Long => walk.to(folders)?,
                FileCheck::Blank | FileCheck::Gone | FileCheck::NoFile => continue,
            };
            match found {
                FileCheck::Short | FileCheck::Long if own.contains(index) => {
                    disk.set_len(&folder::open(at, name, OFlags::RDWR, 0)?, length)?;
                }
                FileCheck::There(_) if own.contains(index) => {}
                FileCheck::There(_) if data_of(at, name, length).is_ok_and(|data| data.is_empty()) => {}
                _ => renamed.push(PathBuf::from_iter(folders).join(self.aside(disk, at, &path)?)),
            }
        }
        walk.finish()?;
        Ok(renamed)
    }

    /// Gives a file in a folder a name that is free and not one of the torrent's, which it returns.
    fn aside(&self, disk: &Disk, at: BorrowedFd<'_>, path: &[&str]) -> io::Result<String> {
        let (name, folders) = path.split_last().expect("a file has a name");
        let is_its_own = |new: &str| {
            self.files().any(|file| self.path(file.index()).split_last() == Some((&new, folders)))
        };
        let stem = &name[..name.floor_char_boundary(LONGEST_NAME - 15)];
        folder::first_free(&format!("{stem}.found"), |new| match is_its_own(new) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => disk.rename_to_free(at, name, at, new),
        })
    }

    /// Removes its files, and the folders that are then empty. Files that others put in their place stay:
    /// anything that is no file, has another length, or was made after `deleted`, which only matters for an
    /// earlier delete.
    pub(super) fn remove(&self, disk: &Disk, top: BorrowedFd<'_>, deleted: Option<Time>) -> io::Result<()> {
        let mut walk = Walk::new(disk, top, Purpose::Remove);
        for file in self.files() {
            disk.step(DiskStep::Remove(file.index()))?;
            let path = self.path(file.index());
            let (name, folders) = path.split_last().expect("a file has a name");
            let found = walk.to(folders).and_then(|at| {
                let stat = folder::stat(at, name)?;
                let len = stat.st_size as u64;
                let is_its_own = folder::is_file(&stat)
                    && (len == file.length() || len < file.length() && stat.st_blocks == 0)
                    && deleted.is_none_or(|deleted| !disk.is_after(born(at, name, &stat), deleted));
                if is_its_own { disk.unlink(at, name) } else { Ok(()) }
            });
            match found {
                Err(error) if !folder::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        walk.finish()
    }
}

fn found_file(
    at: BorrowedFd<'_>,
    name: &str,
    stat: &Stat,
    file: swarmkeep_metainfo::File<'_>,
    complete: impl Fn(&Range<u64>) -> bool,
) -> io::Result<FileCheck> {
    let (len, room) = (stat.st_size as u64, 512 * stat.st_blocks as u64);
    let data = || data_of(at, name, len);
    if !folder::is_file(stat) {
        return Ok(FileCheck::NoFile);
    }
    if len != file.length() {
        let is_blank = len < file.length() && (room == 0 || data()?.is_empty());
        return Ok(match len < file.length() {
            _ if is_blank => FileCheck::Blank,
            true => FileCheck::Short,
            false => FileCheck::Long,
        });
    }
    let held = match room {
        _ if complete(&file.range()) => Vec::new(),
        0 => Vec::new(),
        // All of its room was allocated in advance, wherever it was written.
        room if room >= len => iter::once(0..len).collect(),
        _ => data()?,
    };
    let offset = file.offset();
    Ok(FileCheck::There(held.into_iter().map(|part| offset + part.start..offset + part.end).collect()))
}

fn data_of(at: BorrowedFd<'_>, name: &str, len: u64) -> io::Result<Vec<Range<u64>>> {
    Ok(folder::data_of(&folder::open(at, name, OFlags::RDONLY, 0)?, len))
}

/// The time when a file was made; if the file system does not record it, when it was changed.
fn born(at: BorrowedFd<'_>, name: &str, stat: &Stat) -> Time {
    match rustix::fs::statx(at, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME) {
        Ok(found) if found.stx_mask & StatxFlags::BTIME.bits() != 0 => {
            (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
        }
        _ => changed(stat),
    }
}

/// The time when a file got its name, or was changed otherwise.
pub(super) fn changed(stat: &Stat) -> Time {
    (stat.st_ctime, stat.st_ctime_nsec as u32)
}

/// Makes a file of its final length at a free path.
fn make_file(
    walk: &mut Walk<'_>,
    disk: &Disk,
    allocation: Allocation,
    file: swarmkeep_metainfo::File<'_>,
    path: &[&str],
) -> Result<File> {
    let failed = || Error::io("making the files of a torrent");
    let (name, folders) = path.split_last().expect("a file has a name");
    let at = walk.to(folders).map_err(failed())?;
    let mode = if file.is_executable() { 0o777 } else { 0o666 };
    let made = disk.create(at, name, mode).map_err(failed())?;
    lengthen(disk, allocation, &made, file.length())?;
    Ok(made)
}

fn lengthen(disk: &Disk, allocation: Allocation, file: &File, len: u64) -> Result<()> {
    let failed = || Error::io("making the files of a torrent");
    if allocation == Allocation::Preallocated && len > 0 {
        match disk.allocate(file, 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Err(Error::Unsupported("allocate the room of files on this file system"));
            }
            done => done.map_err(io::Error::from).map_err(failed())?,
        }
    }
    disk.set_len(file, len).map_err(failed())
}
