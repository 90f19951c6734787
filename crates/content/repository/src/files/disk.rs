//! Every change that the store makes to the disk, and every flush: one place, where tests record them, fail
//! them and leave them out.

use std::{fs::File, io, io::IoSlice, os::fd::OwnedFd};

use rustix::{
    fd::AsFd,
    fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags},
    io::{Errno, retry_on_intr},
};
#[cfg(test)]
use swarmkeep_kit::disk::{Change, Entry, Name};

use super::{folder, place::Time};

/// The steps on the disk, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DiskStep {
    /// Opens the lock, for writing.
    Lock,
    /// Writes to a file of a torrent.
    Write(usize),
    Flush(usize),
    Remove(usize),
    WriteBits,
    FlushBits,
    WriteState,
    /// Flushes a state, before it has its name.
    FlushState,
    /// Flushes the name of a state.
    SyncState,
    /// Flushes a new file, which has its final length then.
    FlushMade,
    /// Flushes the names of new files, below `making`.
    SyncMade,
    SyncMaking,
    /// Flushes that new files are in their place.
    SyncPlaced,
    SyncDeleted,
    /// Flushes which names are left in a folder that is not removed with the torrent's files.
    SyncStaying,
    SyncRemoved,
    SyncForgotten,
    /// Flushes the names of the folders for states and for new torrents.
    SyncHidden,
    /// Flushes the name of the folder that contains these.
    SyncStore,
    /// Flushes the removal of an unfinished torrent's state.
    SyncUnmade,
    SyncMended,
    /// Flushes files that were there before the torrent, and their names.
    FlushAdopted,
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    #[cfg(test)]
    pub(super) tap: parking_lot::Mutex<Option<super::tests::Tap>>,
}

/// A step by the i-nodes that it is of, as it is recorded.
#[cfg(test)]
pub(super) type Op = Entry<std::sync::Arc<super::crashes::Promises>>;

#[cfg(test)]
fn node(of: impl AsFd) -> usize {
    rustix::fs::fstat(of).expect("it is open").st_ino as usize
}

#[cfg(test)]
fn name_in(folder: impl AsFd, name: &str) -> Name {
    (node(folder), name.to_owned())
}

/// A name, and the i-node that has it.
#[cfg(test)]
fn named(folder: impl AsFd, name: &str) -> (Name, usize) {
    let node = folder::stat(&folder, name).expect("it is there").st_ino as usize;
    (name_in(folder, name), node)
}

#[cfg(test)]
fn moved(from: Option<Name>, to: Option<(Name, usize)>) -> Op {
    Entry::Change(Change::Move { from, to })
}

#[cfg(test)]
fn written(file: &File, at: u64, bytes: Vec<u8>) -> Op {
    Entry::Change(Change::Write { node: node(file), at, bytes: bytes.into() })
}

macro_rules! done {
    ($disk:expr, $entry:expr) => {
        #[cfg(test)]
        $disk.done(|| $entry);
    };
}

impl Disk {
    /// Whether a step is done; a step that is left out counts as done.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests fail it")]
    pub(super) fn step(&self, _: DiskStep) -> io::Result<bool> {
        Ok(true)
    }

    #[cfg(test)]
    pub(super) fn step(&self, step: DiskStep) -> io::Result<bool> {
        let tap = self.tap.lock().clone();
        tap.map_or(Ok(true), |tap| tap.0.before(step))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests have another clock")]
    pub(super) fn is_after(&self, one: Time, other: Time) -> bool {
        one > other
    }

    /// The same. Under a tap the file system has a clock of seconds, and most times are equal.
    #[cfg(test)]
    pub(super) fn is_after(&self, one: Time, other: Time) -> bool {
        if self.tap.lock().is_some() { one.0 > other.0 } else { one > other }
    }

    #[cfg(test)]
    fn done(&self, op: impl FnOnce() -> Op) {
        let tap = self.tap.lock().clone();
        if let Some(tap) = tap {
            tap.0.done(op());
        }
    }

    pub(super) fn mkdir(&self, at: impl AsFd, name: &str) -> io::Result<()> {
        rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777))?;
        done!(self, Entry::Make(named(&at, name).1, true));
        done!(self, moved(None, Some(named(&at, name))));
        Ok(())
    }

    /// Makes a file with a free name, and opens it.
    pub(super) fn create(&self, at: impl AsFd, name: &str, mode: u32) -> io::Result<File> {
        let file = folder::open(&at, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        done!(self, Entry::Make(node(&file), false));
        done!(self, moved(None, Some(named(&at, name))));
        Ok(file)
    }

    /// Writes the buffers, one after another.
    pub(super) fn write(
        &self,
        step: DiskStep,
        file: &File,
        mut at: u64,
        mut buffers: &mut [IoSlice<'_>],
    ) -> io::Result<()> {
        if !self.step(step)? {
            return Ok(());
        }
        while !buffers.is_empty() {
            let most = buffers.len().min(folder::MOST_BUFFERS);
            let written = retry_on_intr(|| rustix::io::pwritev(file, &buffers[..most], at))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done!(self, {
                let bytes = buffers.iter().flat_map(|buffer| buffer.iter().copied());
                self::written(file, at, bytes.take(written).collect())
            });
            at += written as u64;
            IoSlice::advance_slices(&mut buffers, written);
        }
        Ok(())
    }

    pub(super) fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)?;
        done!(self, Entry::Change(Change::Length { node: node(file), len }));
        Ok(())
    }

    /// Takes the room of a part of a file, which becomes no longer by that.
    pub(super) fn allocate(&self, file: &File, at: u64, len: u64) -> Result<(), Errno> {
        retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len))
    }

    /// Gives the room of a part of a file back; it reads as zeroes from then on.
    pub(super) fn punch(&self, file: &File, at: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| rustix::fs::fallocate(file, flags, at, len))?;
        done!(self, written(file, at, vec![0; len as usize]));
        Ok(())
    }

    pub(super) fn flush(&self, step: DiskStep, file: &File) -> io::Result<()> {
        if self.step(step)? {
            retry_on_intr(|| rustix::fs::fdatasync(file))?;
            done!(self, Entry::Flush(Some(node(file))));
        }
        Ok(())
    }

    /// Makes the names in a folder durable.
    pub(super) fn sync(&self, step: DiskStep, folder: impl AsFd) -> io::Result<()> {
        if self.step(step)? {
            retry_on_intr(|| rustix::fs::fsync(&folder))?;
            done!(self, Entry::Flush(Some(node(&folder))));
        }
        Ok(())
    }

    /// Makes everything durable on the file system of a folder.
    pub(super) fn sync_all(&self, step: DiskStep, folder: &OwnedFd) -> io::Result<()> {
        if self.step(step)? {
            retry_on_intr(|| rustix::fs::syncfs(folder))?;
            done!(self, Entry::Flush(None));
        }
        Ok(())
    }

    /// Renames a file, possibly into another folder. Replaces a file that has the name.
    pub(super) fn rename(&self, from: impl AsFd, name: &str, to: impl AsFd, new: &str) -> io::Result<()> {
        rustix::fs::renameat(&from, name, &to, new)?;
        done!(self, moved(Some(name_in(&from, name)), Some(named(&to, new))));
        Ok(())
    }

    /// As [`rename`](Self::rename), but [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the new name is
    /// in use.
    pub(super) fn rename_to_free(
        &self,
        from: impl AsFd,
        name: &str,
        to: impl AsFd,
        new: &str,
    ) -> io::Result<()> {
        match rustix::fs::renameat_with(&from, name, &to, new, RenameFlags::NOREPLACE) {
            // Some file systems cannot check and rename in one step.
            Err(Errno::INVAL | Errno::NOSYS) if folder::is_free(&to, new)? => {
                self.rename(from, name, to, new)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                done!(self, moved(Some(name_in(&from, name)), Some(named(&to, new))));
                Ok(())
            }
        }
    }

    /// Removes a file, if it is there.
    pub(super) fn unlink(&self, at: impl AsFd, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&at, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            done => done?,
        }
        done!(self, moved(Some(name_in(&at, name)), None));
        Ok(())
    }

    /// Removes a folder in which nothing lies.
    pub(super) fn rmdir(&self, at: impl AsFd, name: &str) -> io::Result<()> {
        rustix::fs::unlinkat(&at, name, AtFlags::REMOVEDIR)?;
        done!(self, moved(Some(name_in(&at, name)), None));
        Ok(())
    }
}
