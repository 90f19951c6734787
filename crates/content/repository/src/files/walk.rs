//! Changes of folders and their contents, which go through the [`Disk`].

use std::{io, os::fd::OwnedFd};

use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::OFlags,
};

use super::{
    disk::{Disk, DiskStep},
    folder::{enter, is_gone, names, open},
};

/// Goes from folder to folder of a tree, in any order; best where the next one is near. Keeps as many folders
/// open as names lead to where it is.
pub(super) struct Walk<'a> {
    disk: &'a Disk,
    top: BorrowedFd<'a>,
    inside: Vec<(String, OwnedFd)>,
    purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Leaves everything as it is.
    Look,
    /// Makes folders that are not there.
    Make,
    /// Makes missing folders, and flushes the names in the folders that it leaves.
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

    /// Leaves all folders. Without it, the folders of the current path are not flushed or removed.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.back(0)?;
        match self.purpose {
            Purpose::Look | Purpose::Make => Ok(()),
            Purpose::Mend => self.disk.sync(DiskStep::SyncMended, self.top),
            Purpose::Remove => self.disk.sync(DiskStep::SyncRemoved, self.top),
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
                Purpose::Mend => self.disk.sync(DiskStep::SyncMended, folder)?,
                // Whatever else lies in it stays, and the folder with it.
                Purpose::Remove => {
                    if self.disk.rmdir(self.here(), &name).is_err() {
                        self.disk.sync(DiskStep::SyncStaying, folder)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Makes a folder unless it is there, and opens it.
pub(super) fn make(disk: &Disk, at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match disk.mkdir(&at, name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => enter(at, name),
    }
}

/// The most files and folders that are flushed one by one. With more, the whole file system is flushed at
/// once: that takes as long as the unflushed writes of other programs, and not as long as all single flushes.
const FEW: u32 = 32;

/// Makes the names and the lengths of files in a folder and below it durable.
pub(super) fn sync_tree(disk: &Disk, folder: &OwnedFd) -> io::Result<()> {
    match sync_few(disk, folder, &mut FEW.clone())? {
        true => Ok(()),
        false => disk.sync_all(DiskStep::SyncMade, folder),
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
                disk.flush(DiskStep::FlushMade, &open(folder, &name, OFlags::RDONLY, 0)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    disk.sync(DiskStep::SyncMade, folder)?;
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
