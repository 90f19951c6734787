//! Files and folders below a folder, reached name by name: no symbolic link is ever followed, whoever put it there.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat},
    io::Errno,
};

/// Opens a folder in a folder.
pub(super) fn enter(at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Makes a folder unless it is there, and opens it.
pub(super) fn make(at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => enter(at, name),
        Err(error) => Err(error.into()),
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

/// Gives something another name in maybe another folder; [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there is something by that name.
pub(super) fn rename_to_free(from: impl AsFd, name: &str, to: impl AsFd, new: &str) -> io::Result<()> {
    match rustix::fs::renameat_with(&from, name, &to, new, RenameFlags::NOREPLACE) {
        // Some file systems cannot tell in the same step.
        Err(Errno::INVAL | Errno::NOSYS) if is_free(&to, new)? => {
            Ok(rustix::fs::renameat(from, name, to, new)?)
        }
        Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
        done => Ok(done?),
    }
}

pub(super) fn unlink(at: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes durable which names there are in a folder.
pub(super) fn sync(folder: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(folder)?)
}

/// Goes from folder to folder of a tree, in any order; best where the next one is near. Keeps as many folders open as names lead to
/// where it is.
pub(super) struct Walk<'a> {
    top: BorrowedFd<'a>,
    inside: Vec<(String, OwnedFd)>,
    /// What is done with a folder that was left, by the one that it lies in and its name.
    leave: fn(BorrowedFd<'_>, &str, OwnedFd),
}

impl<'a> Walk<'a> {
    pub(super) fn new(top: BorrowedFd<'a>) -> Self {
        Self { top, inside: Vec::new(), leave: |_, _, _| {} }
    }

    /// One that removes the folders that it leaves if nothing lies in them.
    pub(super) fn removing(top: BorrowedFd<'a>) -> Self {
        let leave = |above: BorrowedFd<'_>, name: &str, folder| {
            drop(folder);
            // Whatever else lies in it stays, and the folder with it.
            let _ = rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR);
        };
        Self { top, inside: Vec::new(), leave }
    }

    /// The folder that these names lead to, made on the way if `making`.
    pub(super) fn to(&mut self, names: &[&str], making: bool) -> io::Result<BorrowedFd<'_>> {
        let same = self.inside.iter().zip(names).take_while(|((one, _), other)| one == *other).count();
        self.back(same);
        for &name in &names[same..] {
            let step = if making { make } else { enter };
            let folder = step(self.here(), name)?;
            self.inside.push((name.to_owned(), folder));
        }
        Ok(self.here())
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.inside.last().map_or(self.top, |(_, folder)| folder.as_fd())
    }

    fn back(&mut self, depth: usize) {
        while self.inside.len() > depth {
            let (name, folder) = self.inside.pop().expect("there are more than `depth`");
            (self.leave)(self.here(), &name, folder);
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.back(0);
    }
}

/// Makes durable which names there are in a folder and in all below it.
pub(super) fn sync_all(folder: &OwnedFd) -> io::Result<()> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if entry.file_type() == FileType::RegularFile || name == b"." || name == b".." {
            continue;
        }
        if let Ok(name) = str::from_utf8(name) {
            sync_all(&enter(folder, name)?)?;
        }
    }
    sync(folder)
}

/// Removes a folder and everything below it, or a file.
pub(super) fn remove_all(at: impl AsFd, name: &str) -> io::Result<()> {
    let folder = match enter(&at, name) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return unlink(at, name),
    };
    for below in names(&folder)? {
        remove_all(&folder, &below)?;
    }
    Ok(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?)
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
