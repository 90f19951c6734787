//! The state of a torrent beside its files: the format of [`files`](super), in code.

use std::{collections::BTreeSet, io, ops::Range, sync::Arc};

use swarmkeep_metainfo::FileList;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::HIDDEN;
use crate::{Error, Geometry, InfoHash, PieceBits, Result};

const MAGIC: [u8; 8] = *b"swkfiles";
const VERSION: u32 = 2;
/// The least that a disk writes whole or not at all.
const SECTOR: usize = 512;
/// Pieces that a sector has bits of.
const PIECES: u32 = 8 * (SECTOR as u32 - 4);
/// Have-bits of this many pieces take 8 MiB. That is a tebibyte in the smallest pieces in use; a torrent of
/// more pieces is an attack.
pub(super) const MOST_PIECES: u32 = 1 << 26;
/// Sectors that are read or written together.
const AT_ONCE: u32 = 128;
/// No longer list is read or written: metainfo is no longer than 256 MiB, and each of its entries takes more
/// bytes there than here, except shared names, which v2 writes once.
const LONGEST_LIST: u32 = 1 << 30;

/// [`Head::flags`]: the files lie in a folder that is named by the info hash.
const APART: u32 = 1;
/// The types of entries of the list.
const FILE: u8 = 0;
const EXECUTABLE: u8 = 1;
const PADDING: u8 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    info_hash: [u8; 20],
    piece_length: U32,
    length: U64,
    /// Bytes of the list.
    list: U32,
    list_checksum: U32,
    /// Of all bytes before.
    checksum: U32,
}

/// The constant part of a torrent's state.
#[derive(Debug, Clone)]
pub(super) struct StateRecord {
    pub(super) info_hash: InfoHash,
    pub(super) geometry: Geometry,
    pub(super) files: Arc<FileList>,
    /// Whether its files lie in a folder that is named by its info hash, and not where they would by their
    /// own names.
    pub(super) apart: bool,
}

/// Why bytes are not the state of a torrent.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Wrong(&'static str),
    #[error("its list of files: {0}")]
    Files(#[from] swarmkeep_metainfo::Error),
    #[error(transparent)]
    Content(#[from] Error),
    /// Not damaged, as far as this version of the program knows.
    #[error("it is of version {0} of the format: use a later version of the program")]
    Later(u32),
    #[error("its states have version {0}, and commit 7132e1d is the last that reads them")]
    Earlier(u32),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Fault {
    /// Whether something is wrong with the bytes, and not with reading or understanding them.
    pub(super) const fn is_damage(&self) -> bool {
        !matches!(self, Self::Later(_) | Self::Earlier(_) | Self::Io(_))
    }
}

#[derive(Debug)]
pub(super) struct LoadedState {
    pub(super) record: StateRecord,
    pub(super) complete: PieceBits,
    /// Where the have-bits begin.
    pub(super) bits: u64,
    /// Pieces whose have-bits cannot be read.
    pub(super) unknown: Vec<Range<u32>>,
}

impl StateRecord {
    /// The beginning of its state: all but the have-bits.
    pub(super) fn head(&self) -> Result<Vec<u8>> {
        let list = self.encode_list();
        let len = u32::try_from(list.len()).ok().filter(|&len| len <= LONGEST_LIST);
        let mut head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if self.apart { APART } else { 0 }.into(),
            info_hash: *self.info_hash.as_bytes(),
            piece_length: self.geometry.piece_length().into(),
            length: self.geometry.len().into(),
            list: len.ok_or(Error::Full { what: "the list of a torrent's files" })?.into(),
            list_checksum: crc32c::crc32c(&list).into(),
            checksum: 0.into(),
        };
        head.checksum = head.own_checksum().into();
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(&list);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        Ok(bytes)
    }

    /// The have-bits of a torrent of which no piece is complete, in parts.
    pub(super) fn blank_bits(&self) -> impl Iterator<Item = Vec<u8>> {
        let sectors = sectors(self.geometry);
        (0..sectors).step_by(AT_ONCE as usize).map(move |first| {
            let sector = |index| seal(&self.info_hash, index, [0; SECTOR]);
            (first..sectors.min(first + AT_ONCE)).flat_map(sector).collect()
        })
    }

    /// Bytes that the have-bits take.
    pub(super) fn bits_len(&self) -> u64 {
        Self::place(sectors(self.geometry))
    }

    fn encode_list(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut before = Vec::new();
        for file in self.files.iter() {
            out.push(match (file.is_padding(), file.is_executable()) {
                (true, _) => PADDING,
                (false, true) => EXECUTABLE,
                (false, false) => FILE,
            });
            out.extend_from_slice(&file.length().to_le_bytes());
            if file.is_padding() {
                continue;
            }
            let path = file.path();
            let shared = path.iter().zip(&before).take_while(|(one, other)| one == other).count();
            // A `FileList` has no more than 100 names in a path, and no more than 255 bytes in a name.
            out.extend([shared as u8, (path.len() - shared) as u8]);
            for name in &path[shared..] {
                out.push(name.len() as u8);
                out.extend_from_slice(name.as_bytes());
            }
            before = path;
        }
        out
    }

    /// The have-bits of the pieces of a sector: complete pieces for which `counts` returns true.
    pub(super) fn sector(
        &self,
        index: u32,
        complete: &PieceBits,
        counts: impl Fn(u32) -> bool,
    ) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        let bits = &mut sector[..SECTOR - 4];
        let first = index as usize * bits.len();
        complete.read(first as u64, bits);
        for (nth, byte) in bits.iter_mut().enumerate().filter(|(_, byte)| **byte != 0) {
            let piece = 8 * (first + nth) as u32;
            (0..8).filter(|bit| !counts(piece + bit)).for_each(|bit| *byte &= !(0x80 >> bit));
        }
        seal(&self.info_hash, index, sector)
    }

    pub(super) fn sectors_of(pieces: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        pieces.into_iter().map(|piece| piece / PIECES).collect()
    }

    /// The offset of a sector from the beginning of the have-bits.
    pub(super) const fn place(index: u32) -> u64 {
        index as u64 * SECTOR as u64
    }

    /// Reads a state of `len` bytes; `read` fills a buffer from a byte on. Takes memory of at most a
    /// multiple of `len`, and none before the head is valid.
    pub(super) fn read(
        len: u64,
        read: impl Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> Result<LoadedState, Fault> {
        let wrong = |what| Err(Fault::Wrong(what));
        if len < size_of::<Head>() as u64 {
            return wrong("shorter than any");
        }
        let mut head: Head = zerocopy::FromZeros::new_zeroed();
        read(head.as_mut_bytes(), 0)?;
        if head.magic != MAGIC {
            return wrong("not the state of a torrent");
        }
        // Of a later version, only the version is known.
        if head.version.get() > VERSION {
            return Err(Fault::Later(head.version.get()));
        }
        if head.checksum.get() != head.own_checksum() {
            return wrong("its head is damaged");
        }
        if head.version.get() < VERSION {
            return Err(Fault::Earlier(head.version.get()));
        }
        let geometry = Geometry::new(head.length.get(), head.piece_length.get())?;
        let list_len = head.list.get();
        let bits = (size_of::<Head>() as u64 + u64::from(list_len)).next_multiple_of(SECTOR as u64);
        if list_len > LONGEST_LIST || len != bits + Self::place(sectors(geometry)) {
            return wrong("not as long as it says");
        }
        let mut list = vec![0; (bits - size_of::<Head>() as u64) as usize];
        read(&mut list, size_of::<Head>() as u64)?;
        let list = &list[..list_len as usize];
        if crc32c::crc32c(list) != head.list_checksum.get() {
            return wrong("its list of files is damaged");
        }
        let files = decode_list(list)?;
        if files.length() != geometry.len() {
            return wrong("its files are not as long as the torrent");
        }
        let info_hash = InfoHash::new(head.info_hash);
        let mut complete = PieceBits::none(geometry.pieces());
        let mut unknown = Vec::new();
        let mut part = vec![0; AT_ONCE as usize * SECTOR];
        for from in (0..sectors(geometry)).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(sectors(geometry) - from);
            let part = &mut part[..count as usize * SECTOR];
            // If a disk does not give a sector, it may give the others.
            let all = read(part, bits + Self::place(from)).is_ok();
            for (index, sector) in (from..).zip(part.chunks_exact_mut(SECTOR)) {
                let given = all || read(sector, bits + Self::place(index)).is_ok();
                let (bits, checksum) = sector.split_at(SECTOR - 4);
                let first = index * PIECES;
                if !given || *checksum != checksum_of(&info_hash, index, bits).to_le_bytes() {
                    unknown.push(first..first.saturating_add(PIECES).min(geometry.pieces()));
                    continue;
                }
                for (nth, byte) in (0..).zip(bits).filter(|(_, byte)| **byte != 0) {
                    let set = (0..8).filter(|bit| byte & (0x80 >> bit) != 0).map(|bit| first + 8 * nth + bit);
                    set.filter(|&piece| piece < geometry.pieces())
                        .for_each(|piece| _ = complete.insert(piece));
                }
            }
        }
        let apart = head.flags.get() & APART != 0;
        let mut paths = files.iter().filter(|file| !file.is_padding()).map(|file| file.path());
        let first = paths.next().unwrap_or_default();
        let is_nameless = first == [HIDDEN, &*info_hash.to_string()];
        if !apart && (!paths.all(|path| path[0] == first[0]) || first[0] == HIDDEN && !is_nameless) {
            return wrong("its files have no folder in common");
        }
        drop(paths);
        let record = Self { info_hash, geometry, files: Arc::new(files), apart };
        Ok(LoadedState { record, complete, bits, unknown })
    }
}

impl Head {
    fn own_checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c(&bytes[..bytes.len() - 4])
    }
}

fn sectors(geometry: Geometry) -> u32 {
    geometry.pieces().div_ceil(PIECES)
}

/// A sector of bits with its checksum.
fn seal(info_hash: &InfoHash, index: u32, mut sector: [u8; SECTOR]) -> [u8; SECTOR] {
    let (bits, checksum) = sector.split_at_mut(SECTOR - 4);
    checksum.copy_from_slice(&checksum_of(info_hash, index, bits).to_le_bytes());
    sector
}

/// The checksum covers the owner of the sector and its position in it, so that no sector passes for another.
fn checksum_of(info_hash: &InfoHash, index: u32, bits: &[u8]) -> u32 {
    let checksum = crc32c::crc32c(info_hash.as_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(checksum, &index.to_le_bytes()), bits)
}

/// The list is built like the list of foreign metainfo: whatever the bytes are, no path leaves the folder.
fn decode_list(mut bytes: &[u8]) -> Result<FileList, Fault> {
    const SHORT: Fault = Fault::Wrong("its list of files ends early");
    let mut files = FileList::builder();
    let mut path: Vec<&str> = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let (length, rest) = rest.split_first_chunk().ok_or(SHORT)?;
        let length = u64::from_le_bytes(*length);
        bytes = rest;
        if *kind == PADDING {
            files.padding(length)?;
            continue;
        }
        if *kind != FILE && *kind != EXECUTABLE {
            return Err(Fault::Wrong("its list of files has an unknown type"));
        }
        let (&[shared, more], rest) = bytes.split_first_chunk().ok_or(SHORT)?;
        bytes = rest;
        if usize::from(shared) > path.len() || usize::from(shared) + usize::from(more) > FileList::MOST_NAMES
        {
            return Err(Fault::Wrong("its list of files has an impossible path"));
        }
        path.truncate(shared.into());
        for _ in 0..more {
            let (&len, rest) = bytes.split_first().ok_or(SHORT)?;
            let (name, rest) = rest.split_at_checked(len.into()).ok_or(SHORT)?;
            bytes = rest;
            path.push(str::from_utf8(name).map_err(|_| Fault::Wrong("a name in its list is no text"))?);
        }
        files.file(&path, length, *kind == EXECUTABLE)?;
    }
    Ok(files.build()?)
}
