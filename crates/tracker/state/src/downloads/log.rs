//! The log: the latest commits, one block each, in a file that is only ever written at its end.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    ops::Range,
};

use super::{
    damage::{Damage, Tolerant, keep_damaged},
    entry::{self, ENTRY, Entry, array},
    names::{Name, PARTIAL},
};
use crate::{Error, File, Folder, Result};

/// A sector is written whole or not at all. Blocks begin at its multiples, so that a torn block harms no
/// other.
pub(crate) const SECTOR: u64 = 512;

/// The header of a block, before its entries.
pub(crate) const BLOCK_HEADER: usize = 20;

/// The most entries of a block.
pub(crate) const MOST_ENTRIES: usize = 1 << 24;

/// The version of logs and runs that is written, and the latest that is read.
pub(crate) const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"swkpdlog";
const BLOCK_MAGIC: [u8; 4] = *b"swkb";

/// A log. The next commit overwrites a commit that failed.
pub(crate) struct Log {
    name: String,
    identity: u64,
    length: u64,
    /// Where the next block goes: behind the last one that was acknowledged, or found good when the log was
    /// read.
    end: u64,
    /// The sequence number of the last block, 0 if there is none.
    sequence: u32,
    /// The position and the bytes of the last block, to be written again.
    last: (u64, Vec<u8>),
    /// The file, open for writing. `None` after the log was read or a write failed, until
    /// [`secure`](Self::secure) has made its blocks durable.
    file: Option<Box<dyn File>>,
    /// The damage that was found when the log was read.
    damage: Vec<Damage>,
    /// An incomplete commit at the end: it was in progress when the process ended, or is damaged. The two
    /// look the same.
    torn: Option<Damage>,
    /// Whether a copy of the damaged log was kept.
    is_copied: bool,
}

impl Log {
    /// The length of a log that has room for one block of `block` bytes and is otherwise `usual` bytes long.
    pub(crate) fn length_for(usual: u64, block: usize) -> u64 {
        (2 * SECTOR + sectors(block)).max(usual.next_multiple_of(SECTOR))
    }

    /// Creates an empty log. It is durable, with its header, its length and a copy of the header at the end,
    /// so that a later fault of these is damage.
    ///
    /// # Errors
    /// [`Error::Io`]: there is no log, or an empty one, which the next attempt replaces.
    pub(crate) fn create(folder: &dyn Folder, number: u64, length: u64) -> Result<Self> {
        let name = Name::Log(number).to_string();
        let partial = format!("{name}{PARTIAL}");
        let identity = RandomState::new().build_hasher().finish();
        let create = || {
            let file = folder.create(&partial)?;
            let header = header(number, identity, length);
            file.write_all_at(&header, 0)?;
            file.write_all_at(&header, length - SECTOR)?;
            file.sync()?;
            folder.rename(&partial, &name)?;
            folder.sync()?;
            Ok(file)
        };
        let file = create().map_err(Error::io("creating", folder.path(&name)))?;
        Ok(Self { file: Some(file), ..Self::empty(name, identity, length) })
    }

    fn empty(name: String, identity: u64, length: u64) -> Self {
        let (last, damage, torn) = ((SECTOR, Vec::new()), Vec::new(), None);
        let (end, sequence, file, is_copied) = (SECTOR, 0, None, false);
        Self { name, identity, length, end, sequence, last, file, damage, torn, is_copied }
    }

    /// Reads a log, and passes every entry to `apply`, oldest first. Damaged and unreadable parts are
    /// [noted](Self::damage), and their commits are lost; nothing is appended to such a log.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is another log, renamed, [`Error::Version`], [`Error::Io`] if no part of it
    /// can be read.
    pub(crate) fn read(folder: &dyn Folder, number: u64, mut apply: impl FnMut(Entry)) -> Result<Self> {
        let name = Name::Log(number).to_string();
        let path = folder.path(&name);
        let io = || Error::io("reading", path.clone());
        let file = folder.open(&name).map_err(io())?;
        let found = file.len().map_err(io())?;
        let mut file = Tolerant::new(&*file);
        let mut sector = [0; SECTOR as usize];
        file.read(&mut sector[..SECTOR.min(found) as usize], 0);
        let is_damaged = !is_header(&sector);
        if is_damaged && found >= 2 * SECTOR {
            let mut copy = [0; SECTOR as usize];
            file.read(&mut copy, found - SECTOR);
            // If the copy is bad too, the rest of the header may still have the log's identity.
            if is_header(&copy) {
                sector = copy;
            }
        }
        let field = |at: usize| u64::from_le_bytes(array(&sector[at..at + 8]));
        let (is_good, version) = (is_header(&sector), u16::from_le_bytes(array(&sector[8..10])));
        if is_good && version != VERSION {
            return Err(Error::Version { path, found: version, known: VERSION });
        }
        if is_good && field(16) != number {
            return Err(Error::Damaged { path, at: 16, what: "it is the log of another number, renamed" });
        }
        let length = if is_good { field(32) } else { found };
        let mut log = Self::empty(name, field(24), length.min(found));
        if is_damaged {
            log.note(0..SECTOR.min(found), "its header fails its checksum", 0);
        }
        if found != length {
            let lost = length.saturating_sub(found) / ENTRY as u64;
            log.note(found..length.max(found), "its length differs from the length in its header", lost);
        }
        log.read_blocks(&mut file, &mut apply);
        let behind = (found.saturating_sub(log.end)) / ENTRY as u64;
        if file.refused_from(log.end) {
            // There may have been an acknowledged commit.
            log.torn = None;
            log.note(log.end..found, "the disk refuses to read a part of it", behind);
        } else if is_damaged && log.sequence == 0 && found > SECTOR {
            log.note(SECTOR..found, "no commit is found in it", behind);
        }
        file.sectors_only().and_then(|()| file.any()).map_err(io())?;
        Ok(log)
    }

    /// Reads all blocks, and skips damaged ones.
    fn read_blocks(&mut self, file: &mut Tolerant<'_>, apply: &mut impl FnMut(Entry)) {
        loop {
            while let Some((block, entries)) = self.read_block(file) {
                entries.into_iter().for_each(&mut *apply);
                self.sequence += 1;
                self.last = (self.end, block);
                self.end += self.last.1.len() as u64;
            }
            // A block before a later commit was acknowledged: it is damaged, not torn.
            let next = self.next_block(file);
            let behind = next.map_or(self.length, |(at, _)| at).max(self.end);
            let bytes = self.end..behind;
            let lost = (behind - self.end) / ENTRY as u64;
            let Some((at, sequence)) = next else {
                let mut start = [0; BLOCK_HEADER];
                let is_there = self.end + SECTOR <= self.length;
                if is_there {
                    file.read(&mut start, self.end);
                }
                // The copy of the header is no commit.
                if start != [0; BLOCK_HEADER] && start[..8] != MAGIC {
                    let what = "the last commit is not whole: it was in progress when a process or the power \
                                failed, or is damaged";
                    self.torn = Some(Damage { file: self.name.clone(), bytes, what, lost });
                }
                return;
            };
            self.note(bytes, "the commit there fails its checksum, and later ones follow", lost);
            (self.end, self.sequence) = (at, sequence - 1);
        }
    }

    fn note(&mut self, bytes: Range<u64>, what: &'static str, lost: u64) {
        self.damage.push(Damage { file: self.name.clone(), bytes, what, lost });
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The damage that was found when the log was read.
    pub(crate) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Keeps a copy of it, once, if it is damaged.
    ///
    /// # Errors
    /// As [`keep_damaged`].
    pub(crate) fn keep_damaged(&mut self, folder: &dyn Folder) -> Result<()> {
        if !self.damage.is_empty() && !self.is_copied {
            keep_damaged(folder, &self.name)?;
            self.is_copied = true;
        }
        Ok(())
    }

    /// An incomplete commit at the end.
    pub(crate) fn torn(&self) -> Option<&Damage> {
        self.torn.as_ref()
    }

    /// Bytes up to the end of the last block.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether more than half of it is written.
    pub(crate) fn half_full(&self) -> bool {
        self.end > self.length / 2
    }

    /// Whether a block of `block` bytes still fits.
    pub(crate) fn has_room(&self, block: usize) -> bool {
        self.damage.is_empty() && self.end + sectors(block) + SECTOR <= self.length
    }

    /// Writes a block behind the last one; durable when it returns. `block` begins with [`BLOCK_HEADER`]
    /// bytes for its header, and has room in the log.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing was appended. If the process ends before the next block is written, the next
    /// process may still find this one, whole.
    pub(crate) fn append(&mut self, folder: &dyn Folder, mut block: Vec<u8>) -> Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.secure(folder)?,
        };
        let entries = (block.len() - BLOCK_HEADER) / ENTRY;
        block.resize(sectors(block.len()) as usize, 0);
        seal_block(&mut block, self.identity, self.end, self.sequence + 1, entries as u32);
        if let Err(error) = file.write_all_at(&block, self.end).and_then(|()| file.sync()) {
            // The next process should not find the refused commit. If this write fails too, that is no worse
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

    /// Opens the log for writing, and makes the blocks in it durable.
    ///
    /// The name and the last block may be in the page cache only: a process was killed before their sync, or
    /// the sync failed, and then a second sync proves nothing. So the last block is written again. Every
    /// block before it was acknowledged, and so durable, before it was begun.
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

    /// The next block and its entries, if it is good.
    fn read_block(&self, file: &mut Tolerant<'_>) -> Option<(Vec<u8>, Vec<Entry>)> {
        if self.end + SECTOR > self.length {
            return None;
        }
        let mut block = vec![0; SECTOR as usize];
        file.read(&mut block, self.end);
        let header = BlockHeader::parse(&block, self.identity, self.end)?;
        let bytes = sectors(BLOCK_HEADER + ENTRY * header.entries);
        if header.sequence != self.sequence + 1 || bytes > self.length - self.end {
            return None;
        }
        block.resize(bytes as usize, 0);
        file.read(&mut block[SECTOR as usize..], self.end + SECTOR);
        if crc32c::crc32c(&block[BLOCK_HEADER..]) != header.body {
            return None;
        }
        let entries = block[BLOCK_HEADER..].as_chunks().0.iter().take(header.entries).map(entry::decode);
        entries.collect::<Option<_>>().map(|entries| (block, entries))
    }

    /// The position and the number of the first block after a damaged part, if there is one.
    fn next_block(&self, file: &mut Tolerant<'_>) -> Option<(u64, u32)> {
        let mut buffer = vec![0; 64 << 10];
        let mut at = self.end + SECTOR;
        while at < self.length {
            let some = buffer.len().min((self.length - at) as usize);
            file.read(&mut buffer[..some], at);
            for (n, sector) in buffer[..some].chunks(SECTOR as usize).enumerate() {
                let at = at + n as u64 * SECTOR;
                let header = BlockHeader::parse(sector, self.identity, at);
                if let Some(BlockHeader { sequence, .. }) = header
                    && sequence > self.sequence + 1
                {
                    return Some((at, sequence));
                }
            }
            at += some as u64;
        }
        None
    }
}

/// Whether this is the header of a log, of any version.
fn is_header(sector: &[u8; SECTOR as usize]) -> bool {
    sector[..8] == MAGIC && sector[508..] == crc32c::crc32c(&sector[..508]).to_le_bytes()
}

struct BlockHeader {
    entries: usize,
    sequence: u32,
    body: u32,
}

impl BlockHeader {
    /// `None` unless a header of this log is there.
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

/// `bytes` rounded up to whole sectors.
fn sectors(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(SECTOR)
}
