//! bpf(2): maps, programs, and links that end with their file descriptors.
#![expect(unsafe_code, reason = "the kernel reads and writes through addresses")]

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::assembler::Instruction;

// Commands.
const CREATE_MAP: libc::c_int = 0;
const LOOK_UP: libc::c_int = 1;
const UPDATE: libc::c_int = 2;
const DELETE: libc::c_int = 3;
const LOAD: libc::c_int = 5;
const LINK: libc::c_int = 28;

const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The array can be mapped into memory.
const MAPPABLE: u32 = 1 << 10;

/// Runs a command of the kernel with its attributes, laid out as in `union bpf_attr`.
///
/// # Safety
/// Each address in `attributes` is of memory that lives until this returns, that has the length that the
/// command expects, and that may be written if the command writes there.
unsafe fn bpf(command: libc::c_int, attributes: &mut [u64; 16]) -> io::Result<i64> {
    // SAFETY: the kernel reads the array, and requires 0 in fields that it does not know; the rest is the
    // caller's promise.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Two fields of 32 bits, as a little-endian machine has them in memory.
const fn two(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

fn attributes<const N: usize>(fields: [u64; N]) -> [u64; 16] {
    let mut all = [0; 16];
    all[..N].copy_from_slice(&fields);
    all
}

/// # Safety
/// `descriptor` is the result of a command that makes a file descriptor.
unsafe fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: the kernel has just made it.
    unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }
}

/// The kind of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hash = 1,
    Array = 2,
    /// An array for each processor, of values of 8 bytes.
    Counts = 6,
    /// AF_XDP sockets by queue.
    Sockets = 17,
}

/// A map between programs and processes.
#[derive(Debug)]
pub(crate) struct Map {
    descriptor: OwnedFd,
    kind: Kind,
    key: usize,
    value: usize,
}

impl Map {
    /// Makes a map with keys of `key` bytes and values of `value` bytes. Keys of arrays and of sockets, and
    /// values of sockets, are numbers of 4 bytes.
    pub(crate) fn new(kind: Kind, key: usize, value: usize, entries: u32) -> io::Result<Self> {
        let flags = if kind == Kind::Array { MAPPABLE } else { 0 };
        let fields = [two(kind as u32, key as u32), two(value as u32, entries), two(flags, 0)];
        // SAFETY: there are no addresses.
        let descriptor = unsafe { owned(bpf(CREATE_MAP, &mut attributes(fields))?) };
        Ok(Self { descriptor, kind, key, value })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert!(key.len() == self.key && value.len() == self.value && self.kind != Kind::Counts);
        let (key, value) =
            (key.as_ptr().expose_provenance() as u64, value.as_ptr().expose_provenance() as u64);
        let mut fields = attributes([two(self.descriptor() as u32, 0), key, value]);
        // SAFETY: the kernel reads a key and a value with the lengths of the map.
        unsafe { bpf(UPDATE, &mut fields) }.map(drop)
    }

    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert!(key.len() == self.key);
        let key = key.as_ptr().expose_provenance() as u64;
        let mut fields = attributes([two(self.descriptor() as u32, 0), key]);
        // SAFETY: the kernel reads a key with the length of the map's keys.
        unsafe { bpf(DELETE, &mut fields) }.map(drop)
    }

    /// Returns the sum of one count over all processors.
    pub(crate) fn sum(&self, entry: u32) -> io::Result<u64> {
        assert!(self.kind == Kind::Counts);
        let mut values = vec![0_u64; processors()?];
        let key = (&raw const entry).expose_provenance() as u64;
        let value = values.as_mut_ptr().expose_provenance() as u64;
        let mut fields = attributes([two(self.descriptor() as u32, 0), key, value]);
        // SAFETY: the kernel reads 4 bytes, and writes 8 bytes for each possible processor.
        unsafe { bpf(LOOK_UP, &mut fields)? };
        Ok(values.iter().sum())
    }

    /// Maps the words of an array's first value into memory: this process writes them while programs read
    /// them.
    pub(crate) fn words(&self) -> io::Result<MapWords> {
        assert!(self.kind == Kind::Array);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping that the system places overlaps no other.
        let mapped = unsafe { mmap(ptr::null_mut(), PAGE, access, MapFlags::SHARED, &self.descriptor, 0)? };
        let start = NonNull::new(mapped.cast()).expect("mappings are not at 0");
        Ok(MapWords { start, count: self.value / 8 })
    }
}

/// The length of a mapping: values are shorter, and pages are not.
const PAGE: usize = 4096;

/// Returns the number of processors that the kernel has room for.
fn processors() -> io::Result<usize> {
    // `0-63`, or with gaps, which the last number covers.
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    Ok(last.ok_or_else(|| io::Error::other("the kernel names no processors"))? + 1)
}

/// Words of a map in memory.
#[derive(Debug)]
pub(crate) struct MapWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: atomics may be used by all threads.
unsafe impl Send for MapWords {}
// SAFETY: as above.
unsafe impl Sync for MapWords {}

impl MapWords {
    pub(crate) fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for MapWords {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and the last borrow of it has ended.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), PAGE) };
    }
}

/// A program that the kernel has verified.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

/// The place where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the kernel, after it has made its own buffer for a frame.
    Generic = 1 << 1,
    /// In the driver.
    Native = 1 << 2,
}

/// A program at an interface. It is detached when this is dropped, and whenever the process ends.
#[derive(Debug)]
pub(crate) struct Link {
    _descriptor: OwnedFd,
}

impl Program {
    /// Loads a program. An error has the last lines of the log of the kernel's verifier.
    pub(crate) fn load(code: &[Instruction]) -> io::Result<Self> {
        let license = c"GPL";
        let load = |log: Option<&mut [u8]>| {
            let mut fields = attributes([
                two(TYPE_XDP, code.len() as u32),
                code.as_ptr().expose_provenance() as u64,
                license.as_ptr().expose_provenance() as u64,
            ]);
            if let Some(log) = log {
                fields[3] = two(1, log.len() as u32);
                fields[4] = log.as_mut_ptr().expose_provenance() as u64;
            }
            // The name, of 16 bytes.
            fields[6] = u64::from_ne_bytes(*b"swarmkee");
            fields[7] = u64::from_ne_bytes(*b"p\0\0\0\0\0\0\0");
            fields[8] = two(0, ATTACH_XDP);
            // SAFETY: the kernel reads the instructions and a text that ends with 0, and writes at most the
            // length of the log.
            unsafe { bpf(LOAD, &mut fields).map(|descriptor| Self(owned(descriptor))) }
        };
        load(None).or_else(|error| {
            if error.raw_os_error() == Some(libc::EPERM) {
                return Err(error);
            }
            let mut log = vec![0_u8; 1 << 20];
            load(Some(&mut log)).map_err(|error| {
                let log = String::from_utf8_lossy(&log);
                let lines: Vec<_> = log.trim_end_matches('\0').trim().lines().rev().take(3).collect();
                let last: Vec<_> = lines.into_iter().rev().collect();
                io::Error::new(error.kind(), format!("{error}: {}", last.join("; ")))
            })
        })
    }

    /// Attaches it to an interface that has no program.
    pub(crate) fn attach(&self, interface: u32, place: Place) -> io::Result<Link> {
        let fields = [two(self.0.as_raw_fd() as u32, interface), two(ATTACH_XDP, place as u32)];
        // SAFETY: there are no addresses.
        let descriptor = unsafe { owned(bpf(LINK, &mut attributes(fields))?) };
        Ok(Link { _descriptor: descriptor })
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "for `tests/kernel`, which has this file, too")]
impl Program {
    /// Runs it on a frame; returns the verdict and the frame after it.
    pub(crate) fn run(&self, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        const TEST_RUN: libc::c_int = 10;
        let mut out = vec![0_u8; 4096];
        let mut fields = attributes([
            two(self.0.as_raw_fd() as u32, 0),
            two(frame.len() as u32, out.len() as u32),
            frame.as_ptr().expose_provenance() as u64,
            out.as_mut_ptr().expose_provenance() as u64,
            two(1, 0),
        ]);
        // SAFETY: the kernel reads the frame, and writes at most the length of `out`.
        unsafe { bpf(TEST_RUN, &mut fields)? };
        let [verdict, len] = [fields[0] >> 32, fields[1] >> 32];
        out.truncate(len as usize);
        Ok((verdict as u32, out))
    }

    /// Returns the name that the kernel shows.
    pub(crate) fn name(&self) -> io::Result<String> {
        const INFO: libc::c_int = 15;
        // `struct bpf_prog_info`, to the end of the name.
        let mut info = [0_u8; 80];
        let descriptor = two(self.0.as_raw_fd() as u32, info.len() as u32);
        let mut fields = attributes([descriptor, info.as_mut_ptr().expose_provenance() as u64]);
        // SAFETY: the kernel writes at most the length of `info`.
        unsafe { bpf(INFO, &mut fields)? };
        Ok(String::from_utf8_lossy(&info[64..]).trim_end_matches('\0').to_owned())
    }
}
