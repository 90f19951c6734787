//! Files and folders below a folder, reached name by name: no symbolic link is ever followed.

use std::{fs::File, io, ops::Range, os::fd::OwnedFd};

use rustix::{
    fd::AsFd,
    fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};

/// Linux takes 1,024 buffers in a call (`IOV_MAX`).
pub(super) const MOST_BUFFERS: usize = 1024;

/// Opens a folder in a folder.
pub fn enter(at: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Opens a file in a folder.
pub fn open(at: impl AsFd, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
    // An open of a pipe must not block.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: File = rustix::fs::openat(at, name, flags, Mode::from_raw_mode(mode))?.into();
    match is_file(&rustix::fs::fstat(&file)?) {
        true => Ok(file),
        false => Err(io::Error::other("something else than a file")),
    }
}

/// The metadata of the file or link with that name: links are not followed.
pub fn stat(at: impl AsFd, name: &str) -> io::Result<Stat> {
    Ok(rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub fn is_file(stat: &Stat) -> bool {
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

/// Whether an error means that the path does not exist, or leads through something that is no folder. Other
/// errors leave that open.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

/// The names in a folder. Names that are not UTF-8 are left out: none of them is the store's.
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

/// The ranges of data in the first `len` bytes of a file; all of them if that is unknown.
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
