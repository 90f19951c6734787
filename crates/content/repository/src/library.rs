//! A store that keeps torrent files with the content that they describe, so that a later process knows what
//! it holds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    io::IoSlice,
    sync::Arc,
};

use parking_lot::Mutex;
use swarmkeep_metainfo::Metainfo;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{
    Capabilities, Content, ContentExt, ContentRepository, Error, Geometry, InfoHash, NewTorrent, PieceBits,
    Result, Statistics, Summary,
};

/// What the names of shelves begin with. No torrent is called so: that would take a SHA-1 that was chosen.
const NAME: [u8; 18] = *b"swarmkeep torrents";
/// Bytes of a shelf. A store that preallocates gives it all of them at once.
const SHELF: u64 = 16 << 20;
/// Most torrent files take one or two of these.
const PIECE: u32 = 32 << 10;
/// What of a torrent file lies in a piece.
const PART: usize = PIECE as usize - size_of::<Head>();

/// A store that keeps torrent files, too, in the store below.
///
/// They lie in *shelves*: torrents of 16 MiB in pieces of 32 KiB, named by the 18 letters `swarmkeep
/// torrents` and the number of the shelf (2 bytes, big-endian). Callers of the library do not see them. A
/// piece holds a part of a torrent file, in any place of any shelf. All numbers are little-endian:
///
/// | at | bytes | |
/// |---|---|---|
/// | 0 | 8 | `swktorr1` |
/// | 8 | 4 | length of the torrent file |
/// | 12 | 4 | which part this is, from 0 on |
/// | 16 | 20 | info hash |
/// | 36 | 4 | CRC-32C of the part and, before it, of this header with zeroes here |
/// | 40 | 8 | which file this was, counted in the order they were kept: parts of one have the same, and of two the later counts |
/// | 48 | | the part: 32,720 bytes, the last one less |
///
/// Parts of files that are not whole, of older files, and of torrents that are not in the store, are
/// overwritten by other files. The library needs no more guarantees than those of the store below: a torrent
/// file is durable before its torrent is created.
///
/// Opening it reads 48 bytes per part. In memory it takes 4 bytes per part and about 100 bytes per file.
pub struct Library {
    inner: Arc<dyn ContentRepository>,
    shelves: Mutex<Shelves>,
}

#[derive(Default)]
struct Shelves {
    shelves: BTreeMap<u16, Shelf>,
    /// Shelves that something else is, or that the store below cannot open.
    unusable: BTreeSet<u16>,
    files: HashMap<InfoHash, Kept>,
    /// Torrents of whose files parts are there, and not all.
    partial: HashSet<InfoHash>,
    /// What the next file that is kept is numbered with.
    next: u64,
}

struct Shelf {
    content: Arc<dyn Content>,
    /// The pieces that somebody needs.
    taken: PieceBits,
}

/// A torrent file: where its parts lie.
struct Kept {
    length: u32,
    parts: Vec<ShelfPiece>,
}

/// A piece of a shelf.
#[derive(Clone, Copy)]
struct ShelfPiece {
    shelf: u16,
    piece: u16,
}

/// What stands in front of a part.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    length: U32,
    part: U32,
    info_hash: [u8; 20],
    checksum: U32,
    id: U64,
}

impl Head {
    const MAGIC: [u8; 8] = *b"swktorr1";

    fn sealed(self, part: &[u8]) -> Self {
        let unsealed = Self { checksum: U32::ZERO, ..self };
        Self { checksum: crc32c::crc32c_append(crc32c::crc32c(unsealed.as_bytes()), part).into(), ..self }
    }
}

fn parts(length: u32) -> usize {
    (length as usize).div_ceil(PART)
}

/// How long a part of a file of `length` bytes is.
fn part_len(length: u32, part: usize) -> usize {
    (length as usize - part * PART).min(PART)
}

fn name(shelf: u16) -> InfoHash {
    let mut name = [0; 20];
    name[..18].copy_from_slice(&NAME);
    name[18..].copy_from_slice(&shelf.to_be_bytes());
    InfoHash::new(name)
}

/// The number of the shelf of this name.
fn number(name: &InfoHash) -> Option<u16> {
    let (letters, number) = name.as_bytes().split_last_chunk()?;
    (letters == NAME).then_some(u16::from_be_bytes(*number))
}

impl Library {
    /// Finds the torrent files in the store `inner`, which must not be used by anything else meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(inner: Arc<dyn ContentRepository>) -> Result<Self> {
        let (shelves, torrents): (Vec<_>, Vec<_>) = inner
            .list()?
            .into_iter()
            .map(|summary| summary.info_hash)
            .partition(|name| number(name).is_some());
        let torrents: HashSet<_> = torrents.into_iter().collect();
        let mut found = Shelves::default();
        let mut candidates = HashMap::<(InfoHash, u64, u32), BTreeMap<u32, ShelfPiece>>::new();
        for (shelf, name) in shelves.iter().filter_map(|name| Some((number(name)?, name))) {
            let content = inner.open(name)?;
            if content.geometry() != geometry() {
                found.unusable.insert(shelf);
                continue;
            }
            for piece in content.pieces()?.iter() {
                let mut head = Head::new_zeroed();
                // What cannot be read costs its file.
                let read = content.read(u64::from(piece) * u64::from(PIECE), head.as_mut_bytes());
                let (info_hash, id, length) =
                    (InfoHash::new(head.info_hash), head.id.get(), head.length.get());
                if read.is_err() || head.magic != Head::MAGIC {
                    continue;
                }
                found.next = found.next.max(id.saturating_add(1));
                let possible = length as usize <= swarmkeep_metainfo::LONGEST
                    && (head.part.get() as usize) < parts(length);
                if possible && torrents.contains(&info_hash) {
                    let place = ShelfPiece { shelf, piece: piece as u16 };
                    candidates.entry((info_hash, id, length)).or_default().insert(head.part.get(), place);
                }
            }
            found.shelves.insert(shelf, Shelf { content, taken: PieceBits::none(geometry().pieces()) });
        }
        found.pick(candidates);
        Ok(Self { inner, shelves: Mutex::new(found) })
    }

    /// Creates the torrent that a torrent file describes, and keeps the file. If the store has the torrent
    /// but not its file, the file is kept.
    ///
    /// # Errors
    /// [`Error::Metainfo`]; [`Error::Geometry`] if the torrent has no bytes, or the store has it with other
    /// lengths; those of [`create`](ContentRepository::create).
    pub fn add(&self, torrent: &[u8]) -> Result<Metainfo> {
        let metainfo = Metainfo::parse(torrent).map_err(Error::Metainfo)?;
        let new = NewTorrent::of(metainfo.info())?;
        let mut shelves = self.shelves.lock();
        let there = match self.inner.open(&new.info_hash) {
            Ok(content) if shelves.metainfo(&*content, &new.info_hash).is_some() => {
                return Err(Error::Exists(new.info_hash));
            }
            Ok(content) if content.geometry() != new.geometry => {
                let (length, piece_length) = (new.geometry.len(), new.geometry.piece_length());
                let what = "the torrent is in the store with other measures";
                return Err(Error::Geometry { length, piece_length, what });
            }
            Ok(_) => true,
            Err(Error::NotFound(_)) => false,
            Err(error) => return Err(error),
        };
        let kept = shelves.write(&*self.inner, new.info_hash, torrent)?;
        self.inner.flush()?;
        if !there {
            self.inner.create(&new)?;
        }
        shelves.take(new.info_hash, kept);
        Ok(metainfo)
    }

    /// The torrent file of a torrent that is in the store, if there is a whole one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn torrent_file(&self, info_hash: &InfoHash) -> Result<Option<Vec<u8>>> {
        self.open(info_hash)?;
        Ok(self.shelves.lock().read(info_hash))
    }

    /// The metainfo of the torrent file of a torrent, if there is a whole file that belongs to the torrent.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn metainfo(&self, info_hash: &InfoHash) -> Result<Option<Metainfo>> {
        let content = self.open(info_hash)?;
        Ok(self.shelves.lock().metainfo(&*content, info_hash))
    }

    /// Whether there are parts of a torrent's file, but no whole one. [`add`](Self::add) keeps the file
    /// again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn is_damaged(&self, info_hash: &InfoHash) -> Result<bool> {
        let content = self.open(info_hash)?;
        let shelves = self.shelves.lock();
        let known = shelves.partial.contains(info_hash) || shelves.files.contains_key(info_hash);
        Ok(known && shelves.metainfo(&*content, info_hash).is_none())
    }
}

impl Shelves {
    /// Of each torrent takes the file that was kept last and is whole. If there are several, their checksums
    /// must hold as well.
    fn pick(&mut self, candidates: HashMap<(InfoHash, u64, u32), BTreeMap<u32, ShelfPiece>>) {
        let mut of_torrents = HashMap::<InfoHash, Vec<(u64, Kept)>>::new();
        for ((info_hash, id, length), found) in candidates {
            let of_torrent = of_torrents.entry(info_hash).or_default();
            if found.len() == parts(length) {
                of_torrent.push((id, Kept { length, parts: found.into_values().collect() }));
            }
        }
        for (info_hash, mut files) in of_torrents {
            files.sort_unstable_by_key(|(id, _)| *id);
            let only = files.len() == 1;
            let picked =
                files.into_iter().rev().map(|(_, kept)| kept).find(|kept| only || self.bytes(kept).is_some());
            match picked {
                Some(kept) => self.take(info_hash, kept),
                None => _ = self.partial.insert(info_hash),
            }
        }
    }

    /// Takes note of a file whose parts are all there.
    fn take(&mut self, info_hash: InfoHash, kept: Kept) {
        let mut mark = |place: &ShelfPiece, taken| {
            let shelf = self.shelves.get_mut(&place.shelf).expect("parts lie in shelves");
            if taken {
                shelf.taken.insert(place.piece.into())
            } else {
                shelf.taken.remove(place.piece.into())
            }
        };
        kept.parts.iter().for_each(|place| _ = mark(place, true));
        // The same torrent, kept twice: after a crash, or when one of them could not be read.
        self.partial.remove(&info_hash);
        let other = self.files.insert(info_hash, kept);
        other.iter().flat_map(|other| &other.parts).for_each(|place| _ = mark(place, false));
    }

    fn release(&mut self, info_hash: &InfoHash) {
        self.partial.remove(info_hash);
        for place in self.files.remove(info_hash).into_iter().flat_map(|kept| kept.parts) {
            self.shelves
                .get_mut(&place.shelf)
                .expect("parts lie in shelves")
                .taken
                .remove(place.piece.into());
        }
    }

    fn read(&self, info_hash: &InfoHash) -> Option<Vec<u8>> {
        self.files.get(info_hash).and_then(|kept| self.bytes(kept))
    }

    /// The bytes of a file. What cannot be read is lost to it as what has another checksum is.
    fn bytes(&self, Kept { length, parts }: &Kept) -> Option<Vec<u8>> {
        let mut torrent = Vec::with_capacity(*length as usize);
        let mut piece = vec![0; PIECE as usize];
        for (at, place) in parts.iter().enumerate() {
            let piece = &mut piece[..size_of::<Head>() + part_len(*length, at)];
            self.shelves[&place.shelf].content.read(u64::from(place.piece) * u64::from(PIECE), piece).ok()?;
            let (head, part) = Head::ref_from_prefix(piece).expect("it is longer than its header");
            if head.sealed(part).checksum != head.checksum {
                return None;
            }
            torrent.extend_from_slice(part);
        }
        Some(torrent)
    }

    fn metainfo(&self, content: &dyn Content, info_hash: &InfoHash) -> Option<Metainfo> {
        let metainfo = Metainfo::parse(&self.read(info_hash)?).ok()?;
        let new = NewTorrent::of(metainfo.info()).ok()?;
        (new.info_hash == *info_hash && new.geometry == content.geometry()).then_some(metainfo)
    }

    /// Writes a file where there is room. Nobody knows of it before it is [taken](Self::take).
    fn write(&mut self, inner: &dyn ContentRepository, info_hash: InfoHash, torrent: &[u8]) -> Result<Kept> {
        let length = torrent.len() as u32;
        let id = self.next;
        self.next = self.next.saturating_add(1);
        let places = self.room(inner, parts(length))?;
        for (part, (bytes, place)) in torrent.chunks(PART).zip(&places).enumerate() {
            let head = Head {
                magic: Head::MAGIC,
                length: length.into(),
                part: (part as u32).into(),
                info_hash: *info_hash.as_bytes(),
                checksum: U32::ZERO,
                id: id.into(),
            };
            let content = &*self.shelves[&place.shelf].content;
            let start = u64::from(place.piece) * u64::from(PIECE);
            content.mark_incomplete(place.piece.into())?;
            let rest = &[0; PART][bytes.len()..];
            let head = head.sealed(bytes);
            content
                .write_at(start, &[IoSlice::new(head.as_bytes()), IoSlice::new(bytes), IoSlice::new(rest)])?;
            content.mark_complete(place.piece.into())?;
        }
        Ok(Kept { length, parts: places })
    }

    /// So many pieces that nobody needs, in new shelves if there are not as many.
    fn room(&mut self, inner: &dyn ContentRepository, count: usize) -> Result<Vec<ShelfPiece>> {
        loop {
            let free = self.shelves.iter().flat_map(|(&shelf, Shelf { taken, .. })| {
                let pieces = (0..taken.pieces()).filter(|&piece| !taken.contains(piece));
                pieces.map(move |piece| ShelfPiece { shelf, piece: piece as u16 })
            });
            let places: Vec<_> = free.take(count).collect();
            if places.len() == count {
                return Ok(places);
            }
            let known = |shelf: &u16| self.shelves.contains_key(shelf) || self.unusable.contains(shelf);
            let shelf = (0..=u16::MAX).find(|shelf| !known(shelf));
            let shelf = shelf.ok_or(Error::Full { what: "there is no room for another torrent file" })?;
            let new = NewTorrent { info_hash: name(shelf), geometry: geometry(), files: None };
            match inner.create(&new) {
                Ok(content) => {
                    let taken = PieceBits::none(geometry().pieces());
                    self.shelves.insert(shelf, Shelf { content, taken });
                }
                Err(Error::Exists(_) | Error::Unavailable { .. } | Error::Occupied { .. }) => {
                    _ = self.unusable.insert(shelf)
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The measures of a shelf.
fn geometry() -> Geometry {
    Geometry::new(SHELF, PIECE).expect("16 MiB in pieces of 32 KiB")
}

impl ContentRepository for Library {
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        match number(&torrent.info_hash) {
            Some(_) => Err(Error::Exists(torrent.info_hash)),
            None => self.inner.create(torrent),
        }
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        match number(info_hash) {
            Some(_) => Err(Error::NotFound(*info_hash)),
            None => self.inner.open(info_hash),
        }
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let mut list = self.inner.list()?;
        list.retain(|summary| number(&summary.info_hash).is_none());
        Ok(list)
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        if number(info_hash).is_some() {
            return Ok(false);
        }
        let mut shelves = self.shelves.lock();
        let deleted = self.inner.delete(info_hash);
        // It may be gone all the same.
        if deleted.is_ok() || matches!(self.inner.open(info_hash), Err(Error::NotFound(_))) {
            shelves.release(info_hash);
        }
        deleted
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn statistics(&self) -> Statistics {
        let shelves = self.shelves.lock();
        let shelves = (shelves.shelves.len() + shelves.unusable.len()) as u64;
        let statistics = self.inner.statistics();
        Statistics { torrents: statistics.torrents.saturating_sub(shelves), ..statistics }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("inner", &self.inner).finish_non_exhaustive()
    }
}
