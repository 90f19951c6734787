//! The device below the store: sectors that are read, written and flushed.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, IoSlice, Seek, SeekFrom},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, OFlags};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::{Error, Result, error::about, lock::Locked};

/// Bytes of a [`Sector`].
pub const SECTOR: usize = 4096;

/// The unit of everything that is read or written: 4 KiB, aligned to 4 KiB.
///
/// A slice of sectors can be passed as it is to a device that was opened without the page cache (`O_DIRECT`),
/// whether the device has sectors of 512 bytes or of 4 KiB: no access is unaligned.
/// `<[Sector]>::ref_from_bytes` of `zerocopy` converts bytes that are aligned.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Sector(pub [u8; SECTOR]);

impl Sector {
    /// All zeroes.
    pub const ZERO: Self = Self([0; SECTOR]);
}

impl fmt::Debug for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sector")
    }
}

/// `count` sectors of zeroes.
pub fn sectors(count: usize) -> Vec<Sector> {
    Sector::new_vec_zeroed(count).expect("no more sectors than a call can read")
}

/// The purpose of a flush: earlier writes must be durable before later ones.
///
/// A device may ignore it. A device that records the writes of a store uses it to distinguish flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Barrier {
    /// Writes of an earlier process are durable before this one relies on them.
    Opened,
    /// An old store is gone before `format` writes over any of it.
    Wiped,
    /// The roots of a fresh store are durable before `format` returns.
    Formatted,
    /// Data is durable before its have-bits are written.
    Data,
    /// Block maps and have-bits are durable before they are reported so.
    Maps,
    /// A new i-node is durable before a root that names it is written.
    Inode,
    /// A root is durable before its contents are reported, and before blocks that it dropped are reused.
    Root,
    /// A have-bit is cleared before its data may be overwritten.
    Cleared,
    /// Repairs of boot are durable before anything else is written.
    Mended,
}

/// A row of sectors, numbered from 0.
///
/// The store assumes: after a crash, a logical sector of 512 bytes is either old or new; of the writes that
/// were not flushed, any subset may be there, in any order; flushed writes stay.
pub trait BlockDevice: fmt::Debug + Send + Sync {
    /// The number of sectors.
    fn sectors(&self) -> u64;

    /// Fills `into` with the sectors from `first` on.
    ///
    /// # Errors
    /// Those of the medium, and `UnexpectedEof` beyond the end.
    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()>;

    /// Writes parts, one after another, from sector `first` on. Of two calls at once that write the same
    /// sector, either may be the last.
    ///
    /// # Errors
    /// Those of the medium.
    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()>;

    /// Makes all writes durable whose calls have returned.
    ///
    /// # Errors
    /// Errors of the medium: writes may be lost, and a later flush that succeeds does not change that.
    fn flush(&self, barrier: Barrier) -> io::Result<()>;

    /// Discards `count` sectors from `first` on: their content is no longer needed and becomes undefined.
    ///
    /// # Errors
    /// Those of the medium; nothing depends on it.
    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let _ = (first, count);
        Ok(())
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for std::sync::Arc<D> {
    fn sectors(&self) -> u64 {
        (**self).sectors()
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        (**self).read(first, into)
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        (**self).write(first, parts)
    }

    fn flush(&self, barrier: Barrier) -> io::Result<()> {
        (**self).flush(barrier)
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        (**self).discard(first, count)
    }
}

/// A raw block device or an image file. It bypasses the page cache where the file system allows that.
///
/// It is locked (`flock`) for as long as it is open: one writer, or any number of readers.
#[derive(Debug)]
pub struct FileDevice {
    file: Locked,
    path: PathBuf,
    sectors: u64,
    raw: bool,
}

impl FileDevice {
    /// Opens a device or an image, read-only unless `writable`.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::NotAStore`] if it is neither a block device
    /// nor a file or, to be written, the file behind a loop device; [`Error::Io`].
    pub fn open(path: &Path, writable: bool) -> Result<Self> {
        // A disk that is mounted, or part of another device, is in use as well: with `EXCL`, the system
        // checks that.
        let metadata = fs::metadata(path).ok();
        let raw = metadata.as_ref().is_some_and(|metadata| metadata.file_type().is_block_device());
        if let Some(metadata) = metadata.filter(|_| writable) {
            refuse_second_name(path, &metadata)?;
        }
        let exclusive = if raw && writable { OFlags::EXCL } else { OFlags::empty() };
        let open = |flags: OFlags| {
            let flags = flags | exclusive | OFlags::CLOEXEC;
            OpenOptions::new().read(true).write(writable).custom_flags(flags.bits() as i32).open(path)
        };
        let opening = |error| Error::io("opening the device")(about(path)(error));
        // File systems without direct I/O (tmpfs, some network ones) return an error.
        let file = match open(OFlags::DIRECT) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                open(OFlags::empty()).map_err(opening)?
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(Error::InUse { path: path.to_owned() });
            }
            Err(error) => return Err(opening(error)),
        };
        let kind = file.metadata().map_err(opening)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = "neither a block device nor a file".to_owned();
            return Err(Error::NotAStore { path: path.to_owned(), what });
        }
        let mut file = Locked::lock(file, path, !writable)?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(opening)?;
        Ok(Self { file, path: path.to_owned(), sectors: bytes / SECTOR as u64, raw: kind.is_block_device() })
    }

    /// Makes an image file of `bytes` bytes, for which the file system allocates all room at once, and opens
    /// it for writing.
    ///
    /// # Errors
    /// [`Error::Full`] if the file system has no room, and nothing is left; [`Error::Io`], also if there is a
    /// file already.
    pub fn create_image(path: &Path, bytes: u64) -> Result<Self> {
        if bytes < SECTOR as u64 {
            return Err(Error::Full { what: "an image has one sector of 4 KiB at least" });
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(about(path))
            .map_err(Error::io("making the image"))?;
        let made = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .map_err(|errno| Error::io("the image")(about(path)(errno.into())))
            .and_then(|()| {
                file.sync_all().map_err(about(path)).map_err(Error::io("flushing the image"))?;
                flush_folder_of(path)
            })
            .and_then(|()| Self::open(path, true));
        if made.is_err() {
            // Nothing can be done about an image that cannot be removed either.
            let _ = fs::remove_file(path);
        }
        made
    }
}

impl BlockDevice for FileDevice {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        read_all(&self.file, first, into).map_err(about(&self.path))
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        write_all(&self.file, first, parts).map_err(about(&self.path))
    }

    fn flush(&self, _: Barrier) -> io::Result<()> {
        // Bypassing the page cache says nothing about the cache of the drive.
        rustix::fs::fdatasync(&*self.file).map_err(|errno| about(&self.path)(errno.into()))
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        if !self.raw {
            // An image keeps the room that it was given.
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&*self.file, flags, first * SECTOR as u64, count * SECTOR as u64)?)
    }
}

/// Refuses to write to a file that is also a loop device, and to a loop device over a file that another store
/// writes to: the writes of one are not seen through the other.
fn refuse_second_name(path: &Path, to: &Metadata) -> Result<()> {
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(mut file) = fs::read(device.path().join("loop/backing_file")) else { continue };
        file.pop_if(|last| *last == b'\n');
        let (file, node) = (OsString::from_vec(file), Path::new("/dev").join(device.file_name()));
        if fs::metadata(&file).is_ok_and(|it| (it.dev(), it.ino()) == (to.dev(), to.ino())) {
            let node = node.display();
            let what = format!("it is {node}: use that, or detach it with `losetup --detach {node}`");
            return Err(Error::NotAStore { path: path.to_owned(), what });
        }
        let is_node = to.rdev() != 0 && fs::metadata(node).is_ok_and(|it| it.rdev() == to.rdev());
        if let Some(file) = is_node.then(|| File::open(file).ok()).flatten() {
            Locked::lock(file, path, true)?;
        }
    }
    Ok(())
}

fn read_all(file: &File, first: u64, into: &mut [Sector]) -> io::Result<()> {
    let (mut at, mut rest) = (first * SECTOR as u64, into.as_mut_bytes());
    while !rest.is_empty() {
        let read = match rustix::io::pread(file, &mut *rest, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Only whole sectors are useful: after an odd end, the rest would be unaligned.
            Ok(read) => read / SECTOR * SECTOR,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (at, rest) = (at + read as u64, &mut rest[read..]);
    }
    Ok(())
}

fn write_all(file: &File, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
    let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part.as_bytes())).collect();
    let (mut at, mut rest) = (first * SECTOR as u64, &mut slices[..]);
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let most = rest.len().min(1024);
        let written = match rustix::io::pwritev(file, &rest[..most], at) {
            Ok(written) => written / SECTOR * SECTOR,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        at += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Makes the name of a file durable.
fn flush_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))
        .and_then(|folder| folder.sync_all())
        .map_err(about(path))
        .map_err(Error::io("flushing the image's folder"))
}
