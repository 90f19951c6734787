//! A store that keeps torrent files with the content that they describe, so that a later process knows what
//! it holds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    io::IoSlice,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
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
pub use label::Description;
use label::Label;

mod label;

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
/// | 40 | 8 | which file this is: parts of one have the same number, and of two files the higher counts |
/// | 48 | | the part: 32,720 bytes, the last one less |
///
/// Where the parts of a file lie is in the [label](ContentRepository::label) of its torrent, with the name:
///
/// | at | bytes | |
/// |---|---|---|
/// | 0 | 1 | 1 |
/// | 1 | 4 | length of the torrent file |
/// | 5 | 4 | how many files the torrent has, without padding |
/// | 9 | 2 | length of its name |
/// | 11 | | its name, UTF-8, then the parts in runs of neighbours: number of the shelf, first piece and how many pieces, 2 bytes each |
///
/// The label of a torrent without a file is the byte 0. Labels are believed if every torrent has one, and no
/// part is missing or named twice. Otherwise the parts tell, by their headers, and the labels are written
/// anew: so a label that is wrong, or too late for a crash, costs no file. It costs 48 bytes per part that are
/// read, as in a store that keeps no labels, and so does a label that would be too long for the store.
///
/// Parts of older files and of torrents that are not in the store are overwritten by other files. A complete
/// piece that cannot be read, or whose checksum does not hold, is damaged and never overwritten: it may read
/// better another time. Nor are the other parts of its file overwritten, until the file is kept again. The
/// library needs no more guarantees than those of the store below: a torrent file is durable before its
/// torrent is created, and a new label before the parts that the old one named are given up.
///
/// In memory it takes a bit per part and, if the store keeps no labels, about 100 bytes per file.
pub struct Library {
    inner: Arc<dyn ContentRepository>,
    shelves: Mutex<Shelves>,
}

#[derive(Default)]
struct Shelves {
    shelves: BTreeMap<u16, Shelf>,
    /// Shelves that something else is, or that the store below cannot open.
    unusable: BTreeSet<u16>,
    /// Whether the file of a torrent that is neither in `files` nor in `partial` is where its label says.
    labelled: bool,
    files: HashMap<InfoHash, Kept>,
    /// Torrents of whose files parts are there, and no whole one.
    partial: HashMap<InfoHash, Vec<ShelfPiece>>,
    /// What the next file that is kept is numbered with.
    next: u64,
}

struct Shelf {
    content: Arc<dyn Content>,
    /// The pieces that are not free: a file needs them, or they are known to be damaged.
    taken: PieceBits,
}

impl Shelf {
    fn new(content: Arc<dyn Content>) -> Self {
        Self { content, taken: PieceBits::none(geometry().pieces()) }
    }

    fn set(&mut self, piece: u16, taken: bool) {
        if taken {
            self.taken.insert(piece.into());
        } else {
            self.taken.remove(piece.into());
        }
    }

    /// The part in a piece, if it can be read and its checksum holds. `piece` has room for it and its header.
    fn part<'a>(&self, number: u16, piece: &'a mut [u8]) -> Option<&'a [u8]> {
        self.content.read(u64::from(number) * u64::from(PIECE), piece).ok()?;
        let (head, rest) = Head::ref_from_prefix(piece).ok()?;
        let part = rest.get(..part_len(head.length.get(), head.possible_part()?))?;
        (head.sealed(part).checksum == head.checksum).then_some(part)
    }

    /// Marks a piece incomplete: it is known to be free from then on.
    fn forget(&mut self, number: u16) -> Result<()> {
        self.set(number, false);
        self.content.mark_incomplete(number.into()).map(drop)
    }

    /// Frees the piece of a torrent that is gone.
    fn free(&mut self, number: u16) -> Result<()> {
        self.set(number, false);
        match self.part(number, &mut [0; PIECE as usize]) {
            Some(_) => Ok(()),
            None => self.forget(number),
        }
    }
}

/// A torrent file: where its parts lie.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    length: u32,
    parts: Vec<ShelfPiece>,
}

/// A piece of a shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// Which part this is, if there can be one like it.
    fn possible_part(&self) -> Option<usize> {
        let (length, part) = (self.length.get(), self.part.get() as usize);
        let possible = self.magic == Self::MAGIC
            && length as usize <= swarmkeep_metainfo::LONGEST
            && part < parts(length);
        possible.then_some(part)
    }

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
        let mut found = Shelves::default();
        for (number, name) in shelves.iter().filter_map(|name| Some((number(name)?, name))) {
            let shelf = Shelf::new(inner.open(name)?);
            if shelf.content.geometry() == geometry() {
                found.shelves.insert(number, shelf);
            } else {
                found.unusable.insert(number);
            }
        }
        // Higher than that of any file kept before, also of one that was deleted.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        found.next = since_1970.as_nanos() as u64;
        found.labelled = found.believe_labels(&*inner, &torrents)?;
        if !found.labelled {
            found.look_for(torrents.iter().copied().collect())?;
            found.labelled = found.write_labels(&*inner, &torrents)?;
        }
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
            Ok(content) if shelves.metainfo(&*self.inner, &*content, &new.info_hash)?.is_some() => {
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
        let is_labelled = !self.inner.label(&new.info_hash)?.is_empty();
        let older = shelves.take(&*self.inner, new.info_hash, kept, &metainfo)?;
        if is_labelled || !older.is_empty() {
            // The old label would be believed.
            self.inner.flush()?;
            shelves.forget(&older)?;
        }
        Ok(metainfo)
    }

    /// The torrent file of a torrent that is in the store, if there is a whole one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn torrent_file(&self, info_hash: &InfoHash) -> Result<Option<Vec<u8>>> {
        self.open(info_hash)?;
        self.shelves.lock().read(&*self.inner, info_hash)
    }

    /// The name of a torrent and the number of its files, if there is a torrent file that tells. Reads nothing
    /// if the torrent has a label.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn description(&self, info_hash: &InfoHash) -> Result<Option<Description>> {
        let shelves = self.shelves.lock();
        if let Some(label) = shelves.label_of(&*self.inner, info_hash)? {
            return Ok(Some(label.description));
        }
        drop(shelves);
        Ok(self.metainfo(info_hash)?.as_ref().map(Description::of))
    }

    /// The metainfo of the torrent file of a torrent, if there is a whole file that belongs to the torrent.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn metainfo(&self, info_hash: &InfoHash) -> Result<Option<Metainfo>> {
        let content = self.open(info_hash)?;
        self.shelves.lock().metainfo(&*self.inner, &*content, info_hash)
    }

    /// Whether there are parts of a torrent's file, but no whole one. [`add`](Self::add) keeps the file
    /// again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store.
    pub fn is_damaged(&self, info_hash: &InfoHash) -> Result<bool> {
        let content = self.open(info_hash)?;
        let shelves = self.shelves.lock();
        let known =
            shelves.partial.contains_key(info_hash) || shelves.kept(&*self.inner, info_hash)?.is_some();
        Ok(known && shelves.metainfo(&*self.inner, &*content, info_hash)?.is_none())
    }

    /// How many parts of torrent files are damaged, of which it is not known whose they are. Reads every part
    /// that no file is known to need.
    ///
    /// # Errors
    /// Those of the store below.
    pub fn damaged_parts(&self) -> Result<usize> {
        Ok(self.shelves.lock().strays(&*self.inner)?.len())
    }

    /// Gives the room of [damaged parts](Self::damaged_parts) to other files; how many there were.
    ///
    /// # Errors
    /// Those of the store below.
    pub fn forget_damaged_parts(&self) -> Result<usize> {
        let mut shelves = self.shelves.lock();
        let strays = shelves.strays(&*self.inner)?;
        shelves.forget(&strays)?;
        Ok(strays.len())
    }
}

impl Shelves {
    /// Claims the parts that labels name. Whether all labels are right, as far as they can tell.
    fn believe_labels(&mut self, inner: &dyn ContentRepository, torrents: &[InfoHash]) -> Result<bool> {
        let mut complete = HashMap::new();
        for (&number, shelf) in &self.shelves {
            complete.insert(number, shelf.content.pieces()?);
        }
        let mut are_right = inner.capabilities().label > 0;
        for info_hash in torrents {
            are_right = are_right
                && match &*inner.label(info_hash)? {
                    [Label::NO_FILE] => true,
                    _ => Label::of(inner, info_hash)?.is_some_and(|label| {
                        label.kept.parts.iter().all(|place| {
                            complete
                                .get(&place.shelf)
                                .is_some_and(|pieces| pieces.contains(place.piece.into()))
                                && self.shelf(place).taken.insert(place.piece.into())
                        })
                    }),
                };
        }
        if !are_right {
            self.shelves.values_mut().for_each(|shelf| shelf.taken = PieceBits::none(geometry().pieces()));
        }
        Ok(are_right)
    }

    /// Looks for the files of torrents in all parts.
    fn look_for(&mut self, torrents: HashSet<InfoHash>) -> Result<()> {
        let mut candidates = HashMap::<(InfoHash, u64, u32), Vec<(usize, ShelfPiece)>>::new();
        for (&number, shelf) in &mut self.shelves {
            for piece in shelf.content.pieces()?.iter() {
                let mut head = Head::new_zeroed();
                let read = shelf.content.read(u64::from(piece) * u64::from(PIECE), head.as_mut_bytes());
                let piece = piece as u16;
                let Some(part) = read.ok().and_then(|()| head.possible_part()) else {
                    shelf.set(piece, true);
                    continue;
                };
                self.next = self.next.max(head.id.get().saturating_add(1));
                let file = (InfoHash::new(head.info_hash), head.id.get(), head.length.get());
                if torrents.contains(&file.0) {
                    candidates.entry(file).or_default().push((part, ShelfPiece { shelf: number, piece }));
                }
            }
        }
        self.pick(candidates);
        Ok(())
    }

    /// Makes labels say what was found, before anything else is written. Whether they do.
    fn write_labels(&mut self, inner: &dyn ContentRepository, torrents: &[InfoHash]) -> Result<bool> {
        let most = inner.capabilities().label as usize;
        // A part that cannot be read may be of any torrent.
        let are_known = self.partial.is_empty() && self.strays(inner)?.is_empty();
        if most == 0 {
            return Ok(false);
        }
        let mut labelled = Vec::new();
        for info_hash in torrents {
            let now = inner.label(info_hash)?;
            let none: &[u8] = if are_known { &[Label::NO_FILE] } else { &[] };
            let (is_right, clear) = match self.files.get(info_hash) {
                Some(kept) => {
                    (Label::parse(Arc::clone(&now)).is_some_and(|label| label.kept == *kept), &[][..])
                }
                None => (*now == *none, none),
            };
            if !is_right && inner.set_label(info_hash, clear).is_err() {
                return Ok(false);
            }
            let Some(kept) = self.files.get(info_hash) else { continue };
            let label = || {
                let metainfo = Metainfo::parse(&self.bytes(info_hash, kept)?).ok()?;
                let is_of = metainfo.info().info_hash() == *info_hash;
                Label::bytes(kept, &Description::of(&metainfo), most).filter(|_| is_of)
            };
            let written = is_right || label().is_some_and(|label| inner.set_label(info_hash, &label).is_ok());
            if written {
                labelled.push(info_hash);
            }
        }
        // If it fails, the store writes nothing any more.
        let are_durable = inner.flush().is_ok();
        if are_durable {
            labelled.iter().for_each(|info_hash| _ = self.files.remove(*info_hash));
        }
        Ok(are_durable)
    }

    /// Of each torrent takes the file that was kept last and is whole. If there are several, their checksums
    /// must hold as well.
    fn pick(&mut self, candidates: HashMap<(InfoHash, u64, u32), Vec<(usize, ShelfPiece)>>) {
        let mut of_torrents = HashMap::<InfoHash, Vec<(u64, bool, Kept)>>::new();
        for ((info_hash, id, length), mut found) in candidates {
            found.sort_unstable_by_key(|(part, _)| *part);
            let is_whole = found.iter().map(|(part, _)| *part).eq(0..parts(length));
            let parts = found.into_iter().map(|(_, place)| place).collect();
            of_torrents.entry(info_hash).or_default().push((id, is_whole, Kept { length, parts }));
        }
        for (info_hash, mut files) in of_torrents {
            files.sort_unstable_by_key(|(id, ..)| *id);
            let only = files.len() == 1;
            let is_right = |(_, is_whole, kept): &(u64, bool, Kept)| {
                *is_whole && (only || self.bytes(&info_hash, kept).is_some())
            };
            let right = files.iter().rposition(is_right);
            // What was kept later may read better another time.
            let later = files.split_off(right.map_or(0, |right| right + 1));
            let later: Vec<_> = later.into_iter().flat_map(|(.., kept)| kept.parts).collect();
            later.iter().for_each(|place| self.shelf(place).set(place.piece, true));
            match files.pop() {
                Some((.., kept)) => {
                    kept.parts.iter().for_each(|place| self.shelf(place).set(place.piece, true));
                    self.files.insert(info_hash, kept);
                }
                None => _ = self.partial.insert(info_hash, later),
            }
        }
    }

    fn shelf(&mut self, place: &ShelfPiece) -> &mut Shelf {
        self.shelves.get_mut(&place.shelf).expect("parts lie in shelves")
    }

    /// Takes note of a file whose parts are all there. Returns where older parts of the torrent's file lie:
    /// once the label is durable, they can be given up.
    fn take(
        &mut self,
        inner: &dyn ContentRepository,
        info_hash: InfoHash,
        kept: Kept,
        metainfo: &Metainfo,
    ) -> Result<Vec<ShelfPiece>> {
        let older = self.parts_of(inner, &info_hash)?;
        let most = inner.capabilities().label as usize;
        let label = Label::bytes(&kept, &Description::of(metainfo), most);
        if most > 0 {
            inner.set_label(&info_hash, label.as_deref().unwrap_or_default())?;
        }
        kept.parts.iter().for_each(|place| self.shelf(place).set(place.piece, true));
        self.partial.remove(&info_hash);
        self.files.remove(&info_hash);
        if label.is_none() || !self.labelled {
            self.files.insert(info_hash, kept);
        }
        Ok(older)
    }

    /// Where parts of the files of a torrent lie.
    fn parts_of(&self, inner: &dyn ContentRepository, info_hash: &InfoHash) -> Result<Vec<ShelfPiece>> {
        let kept = self.kept(inner, info_hash)?.map_or_else(Vec::new, |kept| kept.parts);
        Ok(self.partial.get(info_hash).into_iter().flatten().copied().chain(kept).collect())
    }

    /// The label of a torrent, if it says where its file lies.
    fn label_of(&self, inner: &dyn ContentRepository, info_hash: &InfoHash) -> Result<Option<Label>> {
        let is_known = self.partial.contains_key(info_hash) || self.files.contains_key(info_hash);
        if is_known || !self.labelled { Ok(None) } else { Label::of(inner, info_hash) }
    }

    /// Where the file of a torrent lies, if one was kept.
    fn kept(&self, inner: &dyn ContentRepository, info_hash: &InfoHash) -> Result<Option<Kept>> {
        match self.files.get(info_hash) {
            Some(kept) => Ok(Some(kept.clone())),
            None => Ok(self.label_of(inner, info_hash)?.map(|label| label.kept)),
        }
    }

    fn forget(&mut self, places: &[ShelfPiece]) -> Result<()> {
        places.iter().try_for_each(|place| self.shelf(place).forget(place.piece))
    }

    /// Damaged pieces of which it is not known whose they are.
    fn strays(&self, inner: &dyn ContentRepository) -> Result<Vec<ShelfPiece>> {
        let mut known: HashSet<_> = self.partial.values().flatten().copied().collect();
        for torrent in inner.list()? {
            known.extend(self.kept(inner, &torrent.info_hash)?.into_iter().flat_map(|kept| kept.parts));
        }
        let (mut strays, mut buffer) = (Vec::new(), vec![0; PIECE as usize]);
        for (&number, shelf) in &self.shelves {
            for piece in shelf.content.pieces()?.iter().map(|piece| piece as u16) {
                let place = ShelfPiece { shelf: number, piece };
                if !known.contains(&place) && shelf.part(piece, &mut buffer).is_none() {
                    strays.push(place);
                }
            }
        }
        Ok(strays)
    }

    fn read(&self, inner: &dyn ContentRepository, info_hash: &InfoHash) -> Result<Option<Vec<u8>>> {
        Ok(self.kept(inner, info_hash)?.and_then(|kept| self.bytes(info_hash, &kept)))
    }

    /// The bytes of a file. What cannot be read is lost to it as what has another checksum is.
    fn bytes(&self, info_hash: &InfoHash, Kept { length, parts }: &Kept) -> Option<Vec<u8>> {
        let mut torrent = Vec::with_capacity(*length as usize);
        let mut piece = vec![0; PIECE as usize];
        for (at, place) in parts.iter().enumerate() {
            let piece = &mut piece[..size_of::<Head>() + part_len(*length, at)];
            torrent.extend_from_slice(self.shelves[&place.shelf].part(place.piece, piece)?);
            let (head, _) = Head::ref_from_prefix(piece).ok()?;
            let found = (head.info_hash, head.part.get(), head.length.get());
            if found != (*info_hash.as_bytes(), at as u32, *length) {
                return None;
            }
        }
        Some(torrent)
    }

    fn metainfo(
        &self,
        inner: &dyn ContentRepository,
        content: &dyn Content,
        info_hash: &InfoHash,
    ) -> Result<Option<Metainfo>> {
        let read = self.read(inner, info_hash)?;
        let metainfo = read.and_then(|torrent| Metainfo::parse(&torrent).ok());
        Ok(metainfo.filter(|metainfo| {
            NewTorrent::of(metainfo.info())
                .is_ok_and(|new| new.info_hash == *info_hash && new.geometry == content.geometry())
        }))
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

    /// So many pieces that are known to be free, in new shelves if there are not as many.
    fn room(&mut self, inner: &dyn ContentRepository, count: usize) -> Result<Vec<ShelfPiece>> {
        let mut buffer = vec![0; PIECE as usize];
        loop {
            let mut places = Vec::new();
            for (&number, shelf) in &mut self.shelves {
                let complete = shelf.content.pieces()?;
                for piece in (0..complete.pieces()).filter(|&piece| !shelf.taken.contains(piece)) {
                    if places.len() == count {
                        return Ok(places);
                    }
                    let is_damaged =
                        complete.contains(piece) && shelf.part(piece as u16, &mut buffer).is_none();
                    if !is_damaged {
                        places.push(ShelfPiece { shelf: number, piece: piece as u16 });
                    }
                }
            }
            if places.len() == count {
                return Ok(places);
            }
            let known = |shelf: &u16| self.shelves.contains_key(shelf) || self.unusable.contains(shelf);
            let shelf = (0..=u16::MAX).find(|shelf| !known(shelf));
            let shelf = shelf.ok_or(Error::Full { what: "there is no room for another torrent file" })?;
            let new = NewTorrent { info_hash: name(shelf), geometry: geometry(), files: None };
            match inner.create(&new) {
                Ok(content) => _ = self.shelves.insert(shelf, Shelf::new(content)),
                Err(Error::Exists(_) | Error::Unavailable { .. } | Error::Occupied { .. }) => {
                    _ = self.unusable.insert(shelf);
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
            None => {
                let created = self.inner.create(torrent)?;
                // Without it, labels would not be believed when the library is opened.
                let _ = self.inner.set_label(&torrent.info_hash, &[Label::NO_FILE]);
                Ok(created)
            }
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
        let parts = match shelves.parts_of(&*self.inner, info_hash) {
            Err(Error::NotFound(_)) => Vec::new(),
            parts => parts?,
        };
        let deleted = self.inner.delete(info_hash);
        // It may be gone all the same.
        if deleted.is_ok() || matches!(self.inner.open(info_hash), Err(Error::NotFound(_))) {
            shelves.files.remove(info_hash);
            shelves.partial.remove(info_hash);
            let freed = parts.iter().try_for_each(|place| shelves.shelf(place).free(place.piece));
            return deleted.and_then(|deleted| freed.map(|()| deleted));
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

    /// Those of the store below, whose labels are the library's own.
    fn capabilities(&self) -> Capabilities {
        Capabilities { label: 0, ..self.inner.capabilities() }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("inner", &self.inner).finish_non_exhaustive()
    }
}
