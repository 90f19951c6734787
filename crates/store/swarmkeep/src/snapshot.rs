//! Snapshots: all swarms of a store as one stream of bytes, which any other store can import.
//!
//! A [`Writer`] writes the [`Records`] of an [`export`](crate::TorrentRepository::export) as blocks with
//! checksums. A [`Reader`] verifies a whole snapshot before it returns the first block for
//! [`import`](crate::TorrentRepository::import). Neither of them opens a file. `docs/formats/snapshot.md`
//! of the repository describes the format byte by byte.
//!
//! ```
//! use swarmkeep::{
//!     Budget, Export, HashKey, Packed, Records, RepositoryConfig, Timestamp, TorrentRepository, snapshot,
//! };
//!
//! let store = Packed::new(&RepositoryConfig::new(HashKey::from_os()?))?;
//! let now = Timestamp::from_secs(1_800_000_000);
//! let mut writer = snapshot::Writer::new(Vec::new(), [7; 16], now)?;
//! let mut export = Export::new();
//! while !export.is_complete() {
//!     store.export(&mut export, now, Budget::peers(4096));
//!     writer.write(export.records())?;
//! }
//! let (bytes, _) = writer.finish()?;
//!
//! let mut reader = snapshot::Reader::new(std::io::Cursor::new(bytes))?;
//! let mut records = Records::new(now);
//! while reader.next(&mut records, now)? {
//!     assert_eq!(store.import(std::slice::from_ref(&records), now).refused, 0);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use crate::{Malformed, Records, Timestamp};

/// The version of the format that is written, and the only one that can be read.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"swarmsnp";
const BLOCK: [u8; 4] = *b"blok";
const END: [u8; 4] = *b"end!";
const HEADER: usize = 64;
const BLOCK_HEADER: usize = 40;
/// The maximum number of bytes of records in one block. A reader keeps one block in memory.
const LONGEST_BLOCK: usize = 16 << 20;
/// Blocks are read in parts of this size, so that a false length takes no more memory than the snapshot has
/// bytes.
const PART: usize = 256 << 10;

/// The size of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Summary {
    /// The time at which the snapshot was begun.
    pub taken: Timestamp,
    /// The number of records: one per swarm, and one more for each further part of a large swarm.
    pub records: u64,
    /// The number of peers.
    pub peers: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The reason why a snapshot is rejected, and the position. [`Reader::new`] rejects it before any record is
/// returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source cannot be read.
    #[error("cannot read at byte {at}: {source}")]
    Io {
        /// The byte position in the snapshot.
        at: u64,
        /// The error of the source.
        source: io::Error,
    },
    /// The bytes do not begin like a snapshot.
    #[error("this is no snapshot: it does not begin with `swarmsnp`")]
    NotASnapshot,
    /// The snapshot was written by another version.
    #[error(
        "at byte 8: this is a snapshot of version {found}, and only version {VERSION} is known; take a newer swarmkeep"
    )]
    Version {
        /// The version of the snapshot.
        found: u32,
    },
    /// The snapshot is incomplete.
    #[error("at byte {at}: it ends in the middle; the rest was lost")]
    Truncated {
        /// The number of bytes that exist.
        at: u64,
    },
    /// The snapshot was changed after it was written.
    #[error("at byte {at}, in block {block}: {what}")]
    Damaged {
        /// The byte position in the snapshot.
        at: u64,
        /// The number of the block, counted from 0; the end has the number of blocks.
        block: u32,
        /// The problem.
        what: &'static str,
    },
    /// Bytes follow the end of the snapshot.
    #[error("at byte {at}: something follows the end; is this two snapshots in one file?")]
    Trailing {
        /// The byte position in the snapshot.
        at: u64,
    },
}

/// The header of a block. The end has the same layout.
#[derive(Debug, Clone, Copy)]
struct BlockHeader {
    tag: [u8; 4],
    number: u32,
    /// The number of bytes of records; in the end, the number of bytes before it.
    bytes: u64,
    /// The time to which the ages are relative; in the end, the number of peers.
    until_or_peers: u64,
    swarms: u64,
    /// The checksum of the records.
    checksum: u32,
}

impl BlockHeader {
    /// The checksum at the end of a header includes the id of the snapshot, so a block of another snapshot is
    /// rejected.
    fn encode(&self, id: &[u8; 16]) -> [u8; BLOCK_HEADER] {
        let mut bytes = [0; BLOCK_HEADER];
        bytes[..4].copy_from_slice(&self.tag);
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.until_or_peers.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.swarms.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32c::crc32c_append(crc32c::crc32c(id), &bytes[..36]);
        bytes[36..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BLOCK_HEADER], id: &[u8; 16]) -> Result<Self, &'static str> {
        let header = Self {
            tag: array(bytes, 0),
            number: u32::from_le_bytes(array(bytes, 4)),
            bytes: u64::from_le_bytes(array(bytes, 8)),
            until_or_peers: u64::from_le_bytes(array(bytes, 16)),
            swarms: u64::from_le_bytes(array(bytes, 24)),
            checksum: u32::from_le_bytes(array(bytes, 32)),
        };
        if header.encode(id)[36..] != bytes[36..] {
            return Err("the checksum of the block's header does not fit it");
        }
        Ok(header)
    }
}

/// Adds a header to the checksum of all headers, without the header's own checksum: the CRC of any bytes
/// followed by their own CRC is the same constant.
fn chained(chain: u32, header: &[u8; BLOCK_HEADER]) -> u32 {
    crc32c::crc32c_append(chain, &header[..BLOCK_HEADER - 4])
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("headers are longer")
}

/// Writes a snapshot.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    id: [u8; 16],
    blocks: u32,
    /// The checksum of all headers so far. The end contains it.
    chain: u32,
    summary: Summary,
}

impl<W: Write> Writer<W> {
    /// Begins a snapshot that was taken at the time `taken`. Draw `id` at random: it separates the blocks of
    /// this snapshot from the blocks of other snapshots.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(mut out: W, id: [u8; 16], taken: Timestamp) -> io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..32].copy_from_slice(&id);
        header[32..40].copy_from_slice(&taken.as_secs().to_le_bytes());
        let checksum = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&checksum.to_le_bytes());
        out.write_all(&header)?;
        let summary = Summary { taken, records: 0, peers: 0, bytes: HEADER as u64 };
        Ok(Self { out, id, blocks: 0, chain: checksum, summary })
    }

    /// Writes the records of one step of an export as a block.
    ///
    /// # Errors
    /// Errors of `out`, or [`io::ErrorKind::InvalidInput`] if `records` has more than 16 MiB.
    pub fn write(&mut self, records: &Records) -> io::Result<()> {
        let bytes = records.as_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() > LONGEST_BLOCK {
            let message = "more than 16 MiB for one block of a snapshot: export in smaller steps";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let header = BlockHeader {
            tag: BLOCK,
            number: self.blocks,
            bytes: bytes.len() as u64,
            until_or_peers: records.until().as_secs(),
            swarms: records.swarms().into(),
            checksum: crc32c::crc32c(bytes),
        };
        self.header(&header)?;
        self.out.write_all(bytes)?;
        self.blocks += 1;
        self.summary.bytes += bytes.len() as u64;
        self.summary.records += u64::from(records.swarms());
        self.summary.peers += records.peers();
        Ok(())
    }

    /// Returns the writer `out`, for example to flush it.
    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Writes the end of the snapshot, and returns `out` and the size of the snapshot. The caller flushes and
    /// syncs `out`.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        let Summary { records: swarms, peers, bytes, .. } = self.summary;
        let (number, checksum) = (self.blocks, self.chain);
        self.header(&BlockHeader { tag: END, number, bytes, until_or_peers: peers, swarms, checksum })?;
        Ok((self.out, self.summary))
    }

    fn header(&mut self, header: &BlockHeader) -> io::Result<()> {
        let encoded = header.encode(&self.id);
        self.out.write_all(&encoded)?;
        self.chain = chained(self.chain, &encoded);
        self.summary.bytes += BLOCK_HEADER as u64;
        Ok(())
    }
}

/// Reads a snapshot that was verified from its beginning to its end.
#[derive(Debug)]
pub struct Reader<R> {
    blocks: Blocks<R>,
    summary: Summary,
    looked_at: u32,
}

impl<R: Read + Seek> Reader<R> {
    /// Verifies a whole snapshot from the beginning of `source`. It reads all of `source`, and uses memory
    /// for one block.
    ///
    /// # Errors
    /// [`Error`] if the snapshot is incomplete or was changed.
    pub fn new(source: R) -> Result<Self, Error> {
        let mut blocks = Blocks::new(source)?;
        let mut records = Records::new(Timestamp::default());
        while blocks.next(&mut records)? {}
        let (summary, looked_at) = (blocks.summary, blocks.chain);
        let blocks = Blocks::new(blocks.source.into_inner())?;
        Ok(Self { blocks, summary, looked_at })
    }

    /// Returns the size of the snapshot.
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    /// Reads the next block into `records`; returns `false` if there is none. If `now` is before the time of
    /// the snapshot, the clock was set back since: the times of the peers are moved back too, so that their
    /// ages stay the same.
    ///
    /// # Errors
    /// [`Error`] if the source has changed since it was verified.
    pub fn next(&mut self, records: &mut Records, now: Timestamp) -> Result<bool, Error> {
        if self.blocks.summary.bytes == self.summary.bytes {
            records.begin(now);
            return Ok(false);
        }
        let more = self.blocks.next(records)?;
        if !more && self.blocks.chain != self.looked_at {
            let (at, block) = (self.blocks.summary.bytes, self.blocks.number);
            return Err(Error::Damaged { at, block, what: "the snapshot was changed while it was read" });
        }
        let ahead = self.summary.taken.secs_since(now);
        records.move_back(ahead);
        Ok(more)
    }
}

/// The blocks of a snapshot in order, each verified when it is read.
#[derive(Debug)]
struct Blocks<R> {
    source: BufReader<R>,
    id: [u8; 16],
    number: u32,
    chain: u32,
    /// The size of the blocks that were read so far, including the end after it was read.
    summary: Summary,
}

impl<R: Read + Seek> Blocks<R> {
    fn new(source: R) -> Result<Self, Error> {
        let mut source = BufReader::with_capacity(PART, source);
        source.seek(SeekFrom::Start(0)).map_err(|source| Error::Io { at: 0, source })?;
        let mut header = [0; HEADER];
        let read = read_as_much(&mut source, &mut header, 0)?;
        if !MAGIC.starts_with(&header[..read.min(MAGIC.len())]) || read == 0 {
            return Err(Error::NotASnapshot);
        }
        let version = u32::from_le_bytes(array(&header, 8));
        if read >= 12 && version != VERSION {
            return Err(Error::Version { found: version });
        }
        if read < HEADER {
            return Err(Error::Truncated { at: read as u64 });
        }
        let checksum = crc32c::crc32c(&header[..60]);
        if header[60..] != checksum.to_le_bytes() {
            return Err(Error::Damaged {
                at: 0,
                block: 0,
                what: "the checksum of the header does not fit it",
            });
        }
        let taken = Timestamp::from_secs(u64::from_le_bytes(array(&header, 32)));
        let summary = Summary { taken, records: 0, peers: 0, bytes: HEADER as u64 };
        Ok(Self { source, id: array(&header, 16), number: 0, chain: checksum, summary })
    }

    /// Reads one block; returns `false` at the end of the snapshot.
    fn next(&mut self, records: &mut Records) -> Result<bool, Error> {
        let (start, block) = (self.summary.bytes, self.number);
        let damaged = |what| Error::Damaged { at: start, block, what };
        let mut encoded = [0; BLOCK_HEADER];
        self.read(&mut encoded)?;
        let header = BlockHeader::decode(&encoded, &self.id).map_err(damaged)?;
        if header.number != block {
            return Err(damaged("this is another block of the snapshot, which does not belong here"));
        }
        let before = self.chain;
        self.chain = chained(before, &encoded);
        match header.tag {
            BLOCK => {}
            END => {
                let Summary { records: swarms, peers, .. } = self.summary;
                if (header.checksum, header.bytes, header.swarms, header.until_or_peers)
                    != (before, start, swarms, peers)
                {
                    return Err(damaged("the end tells of other blocks than there are"));
                }
                let at = self.summary.bytes;
                records.begin(Timestamp::default());
                return match read_as_much(&mut self.source, &mut [0], at)? {
                    0 => Ok(false),
                    _ => Err(Error::Trailing { at }),
                };
            }
            _ => return Err(damaged("this is neither a block nor the end")),
        }
        if header.bytes > LONGEST_BLOCK as u64 {
            return Err(damaged("the block is longer than any may be"));
        }
        let content = self.summary.bytes;
        let until = Timestamp::from_secs(header.until_or_peers);
        records
            .read(until, |bytes| {
                while (bytes.len() as u64) < header.bytes {
                    let read = bytes.len();
                    bytes.resize((read + PART).min(header.bytes as usize), 0);
                    self.read(&mut bytes[read..]).map_err(Unread::Error)?;
                }
                if crc32c::crc32c(bytes) != header.checksum {
                    return Err(Unread::Error(damaged("the checksum of the block does not fit it")));
                }
                Ok(())
            })
            .map_err(|unread| match unread {
                Unread::Error(error) => error,
                Unread::Malformed(Malformed { at, what }) => {
                    Error::Damaged { at: content + at as u64, block, what }
                }
            })?;
        if u64::from(records.swarms()) != header.swarms {
            return Err(damaged("the block holds another number of swarms than it says"));
        }
        self.number += 1;
        self.summary.records += header.swarms;
        self.summary.peers += records.peers();
        Ok(true)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let read = read_as_much(&mut self.source, bytes, self.summary.bytes)?;
        self.summary.bytes += read as u64;
        if read < bytes.len() { Err(Error::Truncated { at: self.summary.bytes }) } else { Ok(()) }
    }
}

/// The reason why a block was rejected.
enum Unread {
    Error(Error),
    Malformed(Malformed),
}

impl From<Malformed> for Unread {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Reads until `bytes` is full or the source ends; returns the number of bytes read.
fn read_as_much(source: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<usize, Error> {
    let mut read = 0;
    while read < bytes.len() {
        match source.read(&mut bytes[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Io { at: at + read as u64, source }),
        }
    }
    Ok(read)
}
