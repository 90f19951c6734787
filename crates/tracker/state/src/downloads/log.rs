//! The log: the latest commits, one block each, in a file that is only ever written at its end.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::{
    entry::{self, ENTRY, Entry, array},
    names::{Name, PARTIAL},
};
use crate::{Error, File, Folder, Result};

/// What is written whole or not at all: blocks begin at its multiples, so that a torn one harms no other.
pub(crate) const SECTOR: u64 = 512;

/// The header of a block, before its entries.
pub(crate) const BLOCK_HEADER: usize = 20;

/// The most entries of a block.
pub(crate) const MOST_ENTRIES: usize = 1 << 24;

/// The version of logs and runs that is written, and the latest that is read.
pub(crate) const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"swkpdlog";
const BLOCK_MAGIC: [u8; 4] = *b"swkb";

/// A log. A commit that failed leaves no trace that counts: the next one is written over it.
pub(crate) struct Log {
    name: String,
    identity: u64,
    length: u64,
    /// Where the next block goes: behind the last one that was acknowledged, or found good when the log was
    /// read.
    end: u64,
    /// The sequence number of the last block, 0 if there is none.
    sequence: u32,
    /// The last block, to be written again, and where it lies.
    last: (u64, Vec<u8>),
    /// To be written to. Nothing after the log was read or a write failed, until [`secure`](Self::secure) has
    /// made sure of what is there.
    file: Option<Box<dyn File>>,
}

impl Log {
    /// The length of a log that has room for one block of `block` bytes and is otherwise `usual` bytes long.
    pub(crate) fn length_for(usual: u64, block: usize) -> u64 {
        (SECTOR + sectors(block)).max(usual.next_multiple_of(SECTOR))
    }

    /// An empty log that is durable, with its header and length: whatever is wrong with them later is damage.
    ///
    /// # Errors
    /// [`Error::Io`]: there is none, or an empty one, which the next attempt replaces.
    pub(crate) fn create(folder: &dyn Folder, number: u64, length: u64) -> Result<Self> {
        let name = Name::Log(number).to_string();
        let partial = format!("{name}{PARTIAL}");
        let identity = RandomState::new().build_hasher().finish();
        let create = || {
            let file = folder.create(&partial)?;
            file.write_all_at(&header(number, identity, length), 0)?;
            file.set_len(length)?;
            file.sync()?;
            folder.rename(&partial, &name)?;
            folder.sync()?;
            Ok(file)
        };
        let file = create().map_err(Error::io("creating", folder.path(&name)))?;
        let last = (SECTOR, Vec::new());
        Ok(Self { name, identity, length, end: SECTOR, sequence: 0, last, file: Some(file) })
    }

    /// Reads a log, and hands every entry to `apply`, oldest first.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is cut off, or a good block follows a bad one, [`Error::Version`],
    /// [`Error::Io`].
    pub(crate) fn read(folder: &dyn Folder, number: u64, mut apply: impl FnMut(Entry)) -> Result<Self> {
        let name = Name::Log(number).to_string();
        let path = folder.path(&name);
        let io = || Error::io("reading", path.clone());
        let damaged = |at, what| Error::Damaged { path: path.clone(), at, what };
        let file = folder.open(&name).map_err(io())?;
        let found = file.len().map_err(io())?;
        if found < SECTOR {
            return Err(damaged(found, "it ends within its header"));
        }
        let mut sector = [0; SECTOR as usize];
        file.read_exact_at(&mut sector, 0).map_err(io())?;
        if sector[..8] != MAGIC {
            return Err(damaged(0, "it does not begin as a log does"));
        }
        let version = u16::from_le_bytes(array(&sector[8..10]));
        if version != VERSION {
            return Err(Error::Version { path, found: version, known: VERSION });
        }
        let field = |at: usize| u64::from_le_bytes(array(&sector[at..at + 8]));
        let (identity, length) = (field(24), field(32));
        if sector != header(field(16), identity, length) {
            return Err(damaged(0, "its header fails its checksum"));
        }
        if field(16) != number {
            return Err(damaged(16, "it is the log of another number, renamed"));
        }
        if found != length {
            return Err(damaged(found.min(length), "it has not the length that its header says"));
        }

        let mut log =
            Self { name, identity, length, end: SECTOR, sequence: 0, last: (SECTOR, Vec::new()), file: None };
        while let Some(block) = log.read_block(&*file).map_err(io())? {
            let entries = BlockHeader::parse(&block, identity, log.end).map_or(0, |header| header.entries);
            for bytes in block[BLOCK_HEADER..].as_chunks().0.iter().take(entries) {
                let entry = entry::decode(bytes).ok_or(());
                apply(entry.map_err(|()| damaged(log.end, "it has flags that version 1 does not have"))?);
            }
            log.sequence += 1;
            log.last = (log.end, block);
            log.end += log.last.1.len() as u64;
        }
        if log.a_block_follows(&*file).map_err(io())? {
            return Err(damaged(log.end, "the commit there fails its checksum, and later ones follow"));
        }
        Ok(log)
    }

    /// Bytes up to the end of the last block.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether more than half of it is written.
    pub(crate) fn half_full(&self) -> bool {
        self.end > self.length / 2
    }

    /// Whether a block of so many bytes still goes in.
    pub(crate) fn has_room(&self, block: usize) -> bool {
        self.end + sectors(block) <= self.length
    }

    /// Writes a block behind the last one; durable when it returns. `block` begins with [`BLOCK_HEADER`]
    /// bytes for its header, and has room in the log.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing was appended. If the process ends before the next block is written, this one may yet be found, whole.
    pub(crate) fn append(&mut self, folder: &dyn Folder, mut block: Vec<u8>) -> Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.secure(folder)?,
        };
        let entries = (block.len() - BLOCK_HEADER) / ENTRY;
        block.resize(sectors(block.len()) as usize, 0);
        seal_block(&mut block, self.identity, self.end, self.sequence + 1, entries as u32);
        if let Err(error) = file.write_all_at(&block, self.end).and_then(|()| file.sync()) {
            // Who opens the log next is not to find what was refused; if this fails too, that is no worse
            // than a crash.
            let _ = file.write_all_at(&[0; SECTOR as usize], self.end);
            return Err(Error::io("writing", folder.path(&self.name))(error));
        }
        self.file = Some(file);
        self.sequence += 1;
        self.last = (self.end, block);
        self.end += self.last.1.len() as u64;
        Ok(())
    }

    /// Opens the log to be written to, and makes durable what was found in it.
    ///
    /// The name and the last block may be in the page cache only: whoever wrote them was killed before it had
    /// synced them, or the sync failed, so that another one would answer for nothing. Every block before the
    /// last was acknowledged before the last was begun.
    fn secure(&self, folder: &dyn Folder) -> Result<Box<dyn File>> {
        let secure = || {
            folder.sync()?;
            let file = folder.open_to_write(&self.name)?;
            if self.sequence > 0 {
                file.write_all_at(&self.last.1, self.last.0)?;
                file.sync()?;
            }
            Ok(file)
        };
        secure().map_err(Error::io("writing", folder.path(&self.name)))
    }

    /// The block at the end, if a good one is there.
    fn read_block(&self, file: &dyn File) -> std::io::Result<Option<Vec<u8>>> {
        if self.end + SECTOR > self.length {
            return Ok(None);
        }
        let mut block = vec![0; SECTOR as usize];
        file.read_exact_at(&mut block, self.end)?;
        let Some(header) = BlockHeader::parse(&block, self.identity, self.end) else { return Ok(None) };
        let bytes = sectors(BLOCK_HEADER + ENTRY * header.entries);
        if header.sequence != self.sequence + 1 || bytes > self.length - self.end {
            return Ok(None);
        }
        block.resize(bytes as usize, 0);
        file.read_exact_at(&mut block[SECTOR as usize..], self.end + SECTOR)?;
        Ok((crc32c::crc32c(&block[BLOCK_HEADER..]) == header.body).then_some(block))
    }

    /// Whether a block of this log, of a later commit than the next, begins anywhere behind the end.
    fn a_block_follows(&self, file: &dyn File) -> std::io::Result<bool> {
        let mut buffer = vec![0; 64 << 10];
        let mut at = self.end + SECTOR;
        while at < self.length {
            let some = buffer.len().min((self.length - at) as usize);
            file.read_exact_at(&mut buffer[..some], at)?;
            for (n, sector) in buffer[..some].chunks(SECTOR as usize).enumerate() {
                let header = BlockHeader::parse(sector, self.identity, at + n as u64 * SECTOR);
                if header.is_some_and(|header| header.sequence > self.sequence + 1) {
                    return Ok(true);
                }
            }
            at += some as u64;
        }
        Ok(false)
    }
}

struct BlockHeader {
    entries: usize,
    sequence: u32,
    body: u32,
}

impl BlockHeader {
    /// Nothing if none of this log and place is there.
    fn parse(bytes: &[u8], identity: u64, at: u64) -> Option<Self> {
        let header = bytes.get(..BLOCK_HEADER)?;
        let field = |at: usize| u32::from_le_bytes(array(&header[at..at + 4]));
        let good = header[..4] == BLOCK_MAGIC && field(16) == checksum(identity, at, &header[..16]);
        good.then(|| Self { entries: field(4) as usize, sequence: field(8), body: field(12) })
    }
}

/// Fills in the header of a block.
fn seal_block(block: &mut [u8], identity: u64, at: u64, sequence: u32, entries: u32) {
    let body = crc32c::crc32c(&block[BLOCK_HEADER..]);
    block[..4].copy_from_slice(&BLOCK_MAGIC);
    block[4..8].copy_from_slice(&entries.to_le_bytes());
    block[8..12].copy_from_slice(&sequence.to_le_bytes());
    block[12..16].copy_from_slice(&body.to_le_bytes());
    let header = checksum(identity, at, &block[..16]);
    block[16..20].copy_from_slice(&header.to_le_bytes());
}

fn header(number: u64, identity: u64, length: u64) -> [u8; SECTOR as usize] {
    let mut header = [0; SECTOR as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..32].copy_from_slice(&identity.to_le_bytes());
    header[32..40].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..508]);
    header[508..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The checksum of bytes that belong to one file and one place in it.
pub(crate) fn checksum(identity: u64, place: u64, bytes: &[u8]) -> u32 {
    let seed = crc32c::crc32c_append(crc32c::crc32c(&identity.to_le_bytes()), &place.to_le_bytes());
    crc32c::crc32c_append(seed, bytes)
}

/// So many bytes, in whole sectors.
fn sectors(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(SECTOR)
}
