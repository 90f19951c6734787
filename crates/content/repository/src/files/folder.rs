//! Files and folders below a folder, reached name by name: no symbolic link is ever followed, whoever put it
//! there.

use std::{fs::File, io, ops::Range, os::fd::OwnedFd};

use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};

use super::disk::{Disk, Step};

/// Linux takes 1,024 buffers in a call (`IOV_MAX`).
pub(super) const MOST_BUFFERS: usize = 1024;

/// Opens a folder in a folder.
pub(super) fn enter(at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Makes a folder unless it is there, and opens it.
pub(super) fn make(disk: &Disk, at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match disk.mkdir(&at, name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => enter(at, name),
    }
}

/// Opens a file in a folder.
pub(super) fn open(at: impl AsFd, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
    // A pipe that lies there does not make anybody wait.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: File = rustix::fs::openat(at, name, flags, Mode::from_raw_mode(mode))?.into();
    match is_file(&rustix::fs::fstat(&file)?) {
        true => Ok(file),
        false => Err(io::Error::other("something else than a file")),
    }
}

/// What lies in a folder by that name, itself and not where it may lead.
pub(super) fn stat(at: impl AsFd, name: &str) -> io::Result<Stat> {
    Ok(rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Whether nothing lies in a folder by that name.
pub(super) fn is_free(at: impl AsFd, name: &str) -> io::Result<bool> {
    match stat(at, name) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether an error says that nothing lies there, or something that no path leads through; anything else says
/// nothing of what does.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

/// Goes from folder to folder of a tree, in any order; best where the next one is near. Keeps as many folders
/// open as names lead to where it is.
pub(super) struct Walk<'a> {
    disk: &'a Disk,
    top: BorrowedFd<'a>,
    inside: Vec<(String, OwnedFd)>,
    purpose: Purpose,
}

/// What a walk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Leaves everything as it is.
    Look,
    /// Makes folders that are not there.
    Make,
    /// Makes folders that are not there, and flushes the names in those that it leaves.
    Mend,
    /// Removes the folders that it leaves if nothing lies in them, and flushes which names are left in the
    /// others.
    Remove,
}

impl<'a> Walk<'a> {
    pub(super) fn new(disk: &'a Disk, top: BorrowedFd<'a>, purpose: Purpose) -> Self {
        Self { disk, top, inside: Vec::new(), purpose }
    }

    /// The folder that these names lead to.
    pub(super) fn to(&mut self, names: &[&str]) -> io::Result<BorrowedFd<'_>> {
        let same = self.inside.iter().zip(names).take_while(|((one, _), other)| one == *other).count();
        self.back(same)?;
        for &name in &names[same..] {
            let folder = match self.purpose {
                Purpose::Look | Purpose::Remove => enter(self.here(), name),
                Purpose::Make | Purpose::Mend => make(self.disk, self.here(), name),
            }?;
            self.inside.push((name.to_owned(), folder));
        }
        Ok(self.here())
    }

    /// Leaves all folders. A walk that is not finished has not done with those that it is in.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.back(0)?;
        match self.purpose {
            Purpose::Look | Purpose::Make => Ok(()),
            Purpose::Mend => self.disk.sync(Step::SyncMended, self.top),
            Purpose::Remove => self.disk.sync(Step::SyncRemoved, self.top),
        }
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.inside.last().map_or(self.top, |(_, folder)| folder.as_fd())
    }

    fn back(&mut self, depth: usize) -> io::Result<()> {
        while self.inside.len() > depth {
            let (name, folder) = self.inside.pop().expect("there are more than `depth`");
            match self.purpose {
                Purpose::Look | Purpose::Make => {}
                Purpose::Mend => self.disk.sync(Step::SyncMended, folder)?,
                // Whatever else lies in it stays, and the folder with it.
                Purpose::Remove => {
                    if self.disk.rmdir(self.here(), &name).is_err() {
                        self.disk.sync(Step::SyncStaying, folder)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Files and folders that are flushed one by one; of more, all of the file system is flushed at once, which
/// takes as long as what others have written, and not as long as all these together.
const FEW: u32 = 32;

/// Makes durable what there is in a folder and in all below it: names, and how long files are.
pub(super) fn sync_tree(disk: &Disk, folder: &OwnedFd) -> io::Result<()> {
    match sync_few(disk, folder, &mut FEW.clone())? {
        true => Ok(()),
        false => disk.sync_all(Step::SyncMade, folder),
    }
}

/// `false` if there are more than `few`.
fn sync_few(disk: &Disk, folder: &OwnedFd, few: &mut u32) -> io::Result<bool> {
    for name in names(folder)? {
        let Some(left) = few.checked_sub(1) else { return Ok(false) };
        *few = left;
        match enter(folder, &name) {
            Ok(below) if !sync_few(disk, &below, few)? => return Ok(false),
            Ok(_) => {}
            Err(error) if is_gone(&error) => {
                disk.flush(Step::FlushMade, &open(folder, &name, OFlags::RDONLY, 0)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    disk.sync(Step::SyncMade, folder)?;
    Ok(true)
}

/// Removes a folder and everything below it, or a file.
pub(super) fn remove_all(disk: &Disk, at: impl AsFd, name: &str) -> io::Result<()> {
    let folder = match enter(&at, name) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return disk.unlink(at, name),
    };
    for below in names(&folder)? {
        remove_all(disk, &folder, &below)?;
    }
    disk.rmdir(at, name)
}

/// What lies in a folder, but for names that are no text, which are none of ours.
pub(super) fn names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

/// The folder that these names lead to.
pub(super) fn to(top: &OwnedFd, names: &[&str]) -> io::Result<OwnedFd> {
    match names {
        [] => top.try_clone(),
        [first, rest @ ..] => rest.iter().try_fold(enter(top, first)?, |folder, name| enter(folder, name)),
    }
}

/// Where in a file of so many bytes there is data; all of it where that cannot be told.
pub(super) fn data_of(file: &File, len: u64) -> Vec<Range<u64>> {
    let mut data = Vec::new();
    let mut at = 0;
    while at < len {
        let extent = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => rustix::fs::seek(file, SeekFrom::Hole(start)).map(|end| start..end.min(len)),
            Err(error) => Err(error),
        };
        match extent {
            Ok(extent) if extent.start < extent.end => {
                at = extent.end;
                data.push(extent);
            }
            // Nothing more.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => {
                data.push(at..len);
                break;
            }
        }
    }
    data
}

/// Tries `name`, `name-2`, `name-3` and so on, until one is free; which it is.
pub(super) fn first_free(name: &str, place: impl Fn(&str) -> io::Result<()>) -> io::Result<String> {
    let names = (2..1000).map(|n| format!("{name}-{n}"));
    for name in std::iter::once(name.to_owned()).chain(names) {
        match place(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map(|()| name),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
