//! Making torrent files: from the list of files and the hashes of the pieces.

use std::collections::BTreeMap;

use super::{
    BLOCK, Error, File, FileList, LONGEST, LONGEST_PIECE, MOST_TRACKERS, PathFault, Segment,
    hash_tree::{self, Hash, HashTree},
    info::{check_length, check_piece_length},
    may_be_tracker, names,
    verify::{Blocks, Hashing},
};
use swarmkeep_bittorrent::bencode::{Sink, Writer};

/// Which versions of BitTorrent a torrent is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// BEP 3 alone, which every client reads.
    #[default]
    V1,
    /// BEP 52 alone: one hash tree per file.
    V2,
    /// Both. Padding (BEP 47) follows each file that does not end with a piece, also the last one.
    Hybrid,
}

impl Format {
    const fn has_v1(self) -> bool {
        matches!(self, Self::V1 | Self::Hybrid)
    }

    const fn has_v2(self) -> bool {
        matches!(self, Self::V2 | Self::Hybrid)
    }
}

/// The usual length of pieces, in bytes, for `total` bytes of content: the least power of two, from 16 KiB to
/// 16 MiB, that makes at most 4,096 pieces. If 16 MiB makes more than 131,072 pieces, it is the least power
/// of two that does not.
///
/// Of about 700,000 torrents, half had pieces of 512 KiB or less, nine in ten of 1 MiB, and none above 16 MiB
/// (A. Norberg, "a bittorrent filesystem", blog.libtorrent.org, December 2014). Their mean length (1.65 GB,
/// Neowin on the index of IsoHunt) makes that 2,000 to 4,000 pieces each, as this does. 131,072 pieces take
/// 2.6 MB of hashes in v1, 6.8 MB in a hybrid: clients stop reading not far above.
///
/// ```
/// # use swarmkeep_metainfo::piece_length_for;
/// let lengths = [0, 700 << 20, 1_650_000_000, 50 << 30].map(piece_length_for);
/// assert_eq!(lengths, [16 << 10, 256 << 10, 512 << 10, 16 << 20]);
/// ```
pub const fn piece_length_for(total: u64) -> u32 {
    const USUAL: u64 = 4096;
    const MOST: u64 = 1 << 17;
    const LONGEST_USUAL: u64 = 16 << 20;
    let usual = total.div_ceil(USUAL);
    let usual = if usual < LONGEST_USUAL { usual } else { LONGEST_USUAL };
    let needed = total.div_ceil(MOST);
    let length = if usual > needed { usual } else { needed };
    match length {
        0..=0x4000 => BLOCK,
        _ if length >= LONGEST_PIECE as u64 => LONGEST_PIECE,
        _ => length.next_power_of_two() as u32,
    }
}

/// A torrent file that is being made. [`Creation::builder`] begins one.
///
/// It knows where the bytes of each piece are, and takes their hashes in any order, so that many threads can
/// hash pieces. The caller reads the files.
///
/// The same files and options give the same bytes, in whichever order they are added.
///
/// ```
/// use swarmkeep_metainfo::{Creation, Format, Metainfo};
///
/// let content = b"hello, world";
/// let mut builder = Creation::builder("greetings", Format::Hybrid);
/// builder.tier(["udp://t.example:6969"]).file(["en", "hello"], 5, false).file(["en", "world"], 7, false);
/// let mut creation = builder.build()?;
/// for piece in 0..creation.piece_count() {
///     let mut hasher = creation.hasher(piece).unwrap();
///     for segment in creation.segments(piece) {
///         let file = creation.files().get(segment.file).unwrap();
///         let bytes = if file.path().ends_with(&["hello"]) { &content[..5] } else { &content[5..] };
///         hasher.update(&bytes[segment.offset as usize..][..segment.length as usize]);
///     }
///     let hash = hasher.finish().expect("all bytes of its segments came");
///     creation.set(hash);
/// }
/// let torrent = creation.finish()?;
/// let metainfo = Metainfo::parse(&torrent)?;
/// assert_eq!(metainfo.info().name(), "greetings");
/// # Ok::<(), swarmkeep_metainfo::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Creation {
    fields: Fields,
    name: Vec<u8>,
    /// Whether a single file lies in no folder.
    alone: bool,
    files: FileList,
    piece_length: u32,
    /// Of each piece, with v1.
    v1: Vec<[u8; 20]>,
    /// Of each piece the root over its blocks, with v2.
    v2: Vec<Hash>,
    hashed: Vec<bool>,
}

/// The fields of a torrent beside its files.
#[derive(Debug, Clone, Default)]
struct Fields {
    format: Format,
    tiers: Vec<Vec<String>>,
    comment: Option<String>,
    created_by: Option<String>,
    creation_date: Option<i64>,
    private: bool,
    source: Option<String>,
}

impl Creation {
    /// Begins a torrent. `name` is the name of its folder or of its only file.
    pub fn builder(name: impl AsRef<[u8]>, format: Format) -> CreationBuilder {
        let fields = Fields { format, ..Fields::default() };
        CreationBuilder { fields, name: name.as_ref().to_vec(), files: Vec::new(), piece_length: None }
    }

    /// The files in the order of their bytes, and the padding between them: as
    /// [`Info::files`](super::Info::files) will return them.
    pub const fn files(&self) -> &FileList {
        &self.files
    }

    /// Length of a piece in bytes; the last piece, and in v2 the last piece of each file, may be shorter.
    pub const fn piece_length(&self) -> u32 {
        self.piece_length
    }

    /// The number of pieces; 0 if all files are empty.
    pub const fn piece_count(&self) -> u32 {
        // Checked when it was built.
        self.hashed.len() as u32
    }

    /// The parts of files that make a piece, in the order in which they are hashed, without padding. Empty if
    /// there is no such piece.
    pub fn segments(&self, piece: u32) -> impl Iterator<Item = Segment> {
        let start = u64::from(piece) * u64::from(self.piece_length);
        let segments = self.files.segments(start..start + u64::from(self.piece_length));
        segments.filter(|segment| !self.file(segment.file).is_padding())
    }

    /// Begins to hash a piece; `None` if there is no such piece.
    pub fn hasher(&self, piece: u32) -> Option<PieceHasher> {
        if piece >= self.piece_count() {
            return None;
        }
        let (mut length, mut last) = (0, 0);
        for segment in self.segments(piece) {
            (length, last) = (length + segment.length as u32, segment.file);
        }
        let at = u64::from(piece) * u64::from(self.piece_length);
        let whole = (self.files.length() - at).min(self.piece_length.into()) as u32;
        let v2 = self.fields.format.has_v2().then(|| {
            // In v2 no piece has bytes of two files.
            let levels = match self.pieces_of(self.file(last)) {
                1 => hash_tree::levels(u64::from(length.div_ceil(BLOCK))),
                _ => self.piece_levels(),
            };
            Blocks::new(length, levels)
        });
        let padding = self.fields.format.has_v1().then(|| whole - length);
        Some(PieceHasher { piece, hashing: Hashing::new(length, padding, v2) })
    }

    /// Sets the hash of a piece of this torrent. With a hash of another torrent, the result is wrong.
    pub fn set(&mut self, hash: PieceHash) {
        let PieceHash { piece, v1, v2 } = hash;
        let piece = piece as usize;
        if let (Some(hash), Some(slot)) = (v1, self.v1.get_mut(piece)) {
            *slot = hash;
        }
        if let (Some(hash), Some(slot)) = (v2, self.v2.get_mut(piece)) {
            *slot = hash;
        }
        if let Some(hashed) = self.hashed.get_mut(piece) {
            *hashed = true;
        }
    }

    /// The torrent file: canonical bencoding, which [`Metainfo::parse`](super::Metainfo::parse) reads.
    ///
    /// # Errors
    /// [`Error::Unhashed`] if not every piece was [`set`](Self::set), [`Error::TooLong`] if it is longer than
    /// [`LONGEST`].
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        if let Some(piece) = self.hashed.iter().position(|hashed| !hashed) {
            return Err(Error::Unhashed(piece as u32));
        }
        let mut out = Vec::new();
        self.write(&mut out);
        if out.len() > LONGEST {
            return Err(Error::TooLong(out.len()));
        }
        Ok(out)
    }

    fn file(&self, index: usize) -> File<'_> {
        self.files.get(index).expect("segments are of files")
    }

    fn pieces_of(&self, file: File<'_>) -> u64 {
        file.length().div_ceil(self.piece_length.into())
    }

    const fn piece_levels(&self) -> u32 {
        hash_tree::levels((self.piece_length / BLOCK) as u64)
    }

    /// Keys of a dictionary come in the order of their bytes, here and below.
    fn write(&self, out: &mut Vec<u8>) {
        let Fields { format, tiers, comment, created_by, creation_date, private, source } = &self.fields;
        let roots = if format.has_v2() { self.roots() } else { Vec::new() };
        let mut writer = Writer::new(out);
        writer.dict();
        write_trackers(&mut writer, tiers);
        text(&mut writer, b"comment", comment.as_deref());
        text(&mut writer, b"created by", created_by.as_deref());
        if let Some(date) = creation_date {
            writer.bytes(b"creation date").integer(*date);
        }
        writer.bytes(b"info").dict();
        let single = self.alone.then(|| self.file(0)).filter(|_| format.has_v1());
        if single.is_some_and(File::is_executable) {
            writer.bytes(b"attr").bytes(b"x");
        }
        if format.has_v2() {
            self.write_tree(&mut writer, &roots);
        }
        match single {
            Some(file) => _ = writer.bytes(b"length").integer(file.length() as i64),
            None if format.has_v1() => self.write_files(&mut writer),
            None => {}
        }
        if format.has_v2() {
            writer.bytes(b"meta version").integer(2);
        }
        writer.bytes(b"name").bytes(&self.name);
        writer.bytes(b"piece length").integer(self.piece_length.into());
        if format.has_v1() {
            writer.bytes(b"pieces").bytes(self.v1.as_flattened());
        }
        if *private {
            writer.bytes(b"private").integer(1);
        }
        text(&mut writer, b"source", source.as_deref());
        writer.end();
        if format.has_v2() {
            write_layers(&mut writer, self.layers(&roots));
        }
        writer.end();
    }

    fn write_files<S: Sink>(&self, writer: &mut Writer<'_, S>) {
        writer.bytes(b"files").list();
        for file in self.files.iter() {
            writer.dict();
            if file.is_padding() {
                writer.bytes(b"attr").bytes(b"p");
            } else if file.is_executable() {
                writer.bytes(b"attr").bytes(b"x");
            }
            writer.bytes(b"length").integer(file.length() as i64).bytes(b"path").list();
            if file.is_padding() {
                // As the BEP suggests, and other programs do: programs that know nothing of padding write it
                // there.
                writer.bytes(b".pad").bytes(file.length().to_string().as_bytes());
            } else {
                file.original()[1..].iter().for_each(|name| _ = writer.bytes(name));
            }
            writer.end().end();
        }
        writer.end();
    }

    fn write_tree<S: Sink>(&self, writer: &mut Writer<'_, S>, roots: &[(File<'_>, Hash)]) {
        writer.bytes(b"file tree").dict();
        let mut roots = roots.iter();
        let mut open: Vec<&[u8]> = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_padding()) {
            let path = file.original();
            let path = if self.alone { &path[..] } else { &path[1..] };
            let (name, folders) = path.split_last().expect("every file has a name");
            let shared = open.iter().zip(folders).take_while(|(one, other)| one == other).count();
            open.drain(shared..).for_each(|_| _ = writer.end());
            for folder in &folders[shared..] {
                writer.bytes(folder).dict();
                open.push(folder);
            }
            writer.bytes(name).dict().bytes(b"").dict();
            if file.is_executable() {
                writer.bytes(b"attr").bytes(b"x");
            }
            writer.bytes(b"length").integer(file.length() as i64);
            if file.length() > 0 {
                let (_, root) = roots.next().expect("there is one for each file that has bytes");
                writer.bytes(b"pieces root").bytes(root);
            }
            writer.end().end();
        }
        open.iter().for_each(|_| _ = writer.end());
        writer.end();
    }

    /// The files that have bytes, and the roots of their trees.
    fn roots(&self) -> Vec<(File<'_>, Hash)> {
        let missing = hash_tree::missing(self.piece_levels());
        let with_bytes = self.files.iter().filter(|file| !file.is_padding() && file.length() > 0);
        let root = |file| match self.pieces(file) {
            [root] => *root,
            pieces => {
                let mut tree = HashTree::new(missing);
                pieces.iter().for_each(|piece| tree.push(*piece));
                tree.root(hash_tree::levels(pieces.len() as u64))
            }
        };
        with_bytes.map(|file| (file, root(file))).collect()
    }

    /// The hashes of the pieces of a file, in v2.
    fn pieces(&self, file: File<'_>) -> &[Hash] {
        let first = file.offset() / u64::from(self.piece_length);
        &self.v2[first as usize..][..self.pieces_of(file) as usize]
    }

    /// By their roots in order, those of files of several pieces; files of the same content share one.
    fn layers<'a>(&'a self, roots: &'a [(File<'_>, Hash)]) -> BTreeMap<&'a Hash, &'a [Hash]> {
        let several = roots.iter().filter(|(file, _)| self.pieces_of(*file) > 1);
        several.map(|(file, root)| (root, self.pieces(*file))).collect()
    }
}

/// The first fields of a torrent file.
pub(super) fn write_trackers<S: Sink>(writer: &mut Writer<'_, S>, tiers: &[Vec<String>]) {
    if let Some(first) = tiers.first() {
        writer.bytes(b"announce").bytes(first[0].as_bytes());
    }
    // One tracker alone is in `announce`.
    if tiers.iter().flatten().count() > 1 {
        writer.bytes(b"announce-list").list();
        for tier in tiers {
            writer.list();
            tier.iter().for_each(|url| _ = writer.bytes(url.as_bytes()));
            writer.end();
        }
        writer.end();
    }
}

/// The last field of a torrent file of v2; the roots are in order, each once.
pub(super) fn write_layers<'a, S: Sink>(
    writer: &mut Writer<'_, S>,
    layers: impl IntoIterator<Item = (&'a Hash, &'a [Hash])>,
) {
    writer.bytes(b"piece layers").dict();
    for (root, layer) in layers {
        writer.bytes(root).bytes(layer.as_flattened());
    }
    writer.end();
}

fn text<S: Sink>(writer: &mut Writer<'_, S>, key: &[u8], text: Option<&str>) {
    if let Some(text) = text {
        writer.bytes(key).bytes(text.as_bytes());
    }
}

/// Builds a [`Creation`].
#[derive(Debug, Clone)]
pub struct CreationBuilder {
    fields: Fields,
    name: Vec<u8>,
    /// Not checked yet.
    files: Vec<NewFile>,
    piece_length: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NewFile {
    path: Vec<Vec<u8>>,
    length: u64,
    executable: bool,
}

impl CreationBuilder {
    /// Adds a file of `length` bytes. `path` has the names of its folders, without the torrent's own, and its
    /// own name. An empty `path` means that it is the only file and is in no folder.
    ///
    /// Files are sorted as in v2: by names, byte for byte, folder by folder. The torrent has the names as
    /// they are, also if other systems cannot write them.
    pub fn file(
        &mut self,
        path: impl IntoIterator<Item = impl AsRef<[u8]>>,
        length: u64,
        executable: bool,
    ) -> &mut Self {
        let path = path.into_iter().map(|name| name.as_ref().to_vec()).collect();
        self.files.push(NewFile { path, length, executable });
        self
    }

    /// Sets the length of pieces in bytes: 1 to 2^30 in v1; a power of two of at least 16 KiB in v2 and
    /// hybrids. The default is [`piece_length_for`] the length of all files.
    pub const fn piece_length(&mut self, bytes: u32) -> &mut Self {
        self.piece_length = Some(bytes);
        self
    }

    /// Adds a tier of trackers after the existing ones (BEP 12). An empty tier is ignored.
    pub fn tier(&mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> &mut Self {
        let tier: Vec<_> = urls.into_iter().map(Into::into).collect();
        if !tier.is_empty() {
            self.fields.tiers.push(tier);
        }
        self
    }

    /// Sets whether peers may come from its trackers only (BEP 27).
    pub const fn private(&mut self, private: bool) -> &mut Self {
        self.fields.private = private;
        self
    }

    /// Sets `source`, which private trackers use. It is part of the info dictionary: with another source, the
    /// info hash differs.
    pub fn source(&mut self, source: impl Into<String>) -> &mut Self {
        self.fields.source = Some(source.into());
        self
    }

    /// Sets a comment for users.
    pub fn comment(&mut self, comment: impl Into<String>) -> &mut Self {
        self.fields.comment = Some(comment.into());
        self
    }

    /// Sets the name of the program that makes the torrent.
    pub fn created_by(&mut self, program: impl Into<String>) -> &mut Self {
        self.fields.created_by = Some(program.into());
        self
    }

    /// Sets the date, in seconds since 1970. It is not part of the info dictionary.
    pub const fn creation_date(&mut self, seconds: i64) -> &mut Self {
        self.fields.creation_date = Some(seconds);
        self
    }

    /// Checks everything that can be checked before the files are read.
    ///
    /// In v2 alone, a folder that contains a single file of the same name cannot be distinguished from the
    /// file itself, and becomes the file.
    ///
    /// # Errors
    /// The errors of [`Metainfo::parse`](super::Metainfo::parse) for such a torrent. [`Error::Name`] and
    /// [`Error::Path`] for names that no system has, and for two files of one path; the number counts sorted
    /// files. [`Error::Tracker`] for a tracker that `parse` would ignore.
    pub fn build(&self) -> Result<Creation, Error> {
        let Self { fields, name, files, piece_length } = self;
        names::check_possible(name).map_err(|fault| Error::Name { name: Error::printable(name), fault })?;
        if let Some(url) = fields.tiers.iter().flatten().find(|url| !may_be_tracker(url)) {
            return Err(Error::Tracker(Error::printable(url.as_bytes())));
        }
        if fields.tiers.iter().flatten().count() > MOST_TRACKERS {
            return Err(Error::TooMany("trackers"));
        }
        let total = files.iter().fold(0, |total: u64, file| total.saturating_add(file.length));
        let piece_length = piece_length.unwrap_or(piece_length_for(total));
        check_piece_length(piece_length, fields.format.has_v2())?;
        let (files, alone) = list(name, files, fields.format, piece_length)?;
        check_length(&files)?;
        let pieces = u32::try_from(files.length().div_ceil(piece_length.into()));
        let pieces = pieces.map_err(|_| Error::TooMany("pieces"))? as usize;
        let v1 = if fields.format.has_v1() { pieces } else { 0 };
        let v2 = if fields.format.has_v2() { pieces } else { 0 };
        if 20 * v1 as u64 + 32 * v2 as u64 > LONGEST as u64 {
            return Err(Error::Field {
                key: "piece length",
                what: "is too short: the hashes take too much room",
            });
        }
        Ok(Creation {
            fields: fields.clone(),
            name: name.clone(),
            alone,
            files,
            piece_length,
            v1: vec![[0; 20]; v1],
            v2: vec![[0; 32]; v2],
            hashed: vec![false; pieces],
        })
    }
}

/// The files as a reader of the torrent will list them, and whether there is one that lies in no folder.
fn list(
    name: &[u8],
    files: &[NewFile],
    format: Format,
    piece_length: u32,
) -> Result<(FileList, bool), Error> {
    let mut sorted: Vec<&NewFile> = files.iter().collect();
    sorted.sort();
    let mut list = FileList::of_torrent();
    let mut single = None;
    for (nth, file) in sorted.iter().enumerate() {
        let path = |nth: usize| std::iter::once(name).chain(sorted[nth].path.iter().map(Vec::as_slice));
        let before = nth.checked_sub(1).filter(|&before| file.path.starts_with(&sorted[before].path));
        let twice = before.map(|before| match file.path == sorted[before].path {
            true => (nth, PathFault::Twice(before)),
            false => (before, PathFault::Folder),
        });
        let impossible = || path(nth).find_map(|name| Some((nth, names::check_possible(name).err()?)));
        if let Some((nth, fault)) = twice.or_else(impossible) {
            return Err(Error::path(nth, &path(nth).collect::<Vec<_>>().join(&b'/'), fault));
        }
        let node = list.path(path(nth))?;
        let at = list.list().length();
        let gap = at.next_multiple_of(piece_length.into()) - at;
        if format == Format::V2 && file.length > 0 {
            list.padding(gap)?;
        }
        list.entry(node, file.length, file.executable)?;
        // At the top only: a reader takes no folder further down for the torrent's own.
        single = (file.path.len() == 1).then_some(node);
        let at = list.list().length();
        let gap = at.next_multiple_of(piece_length.into()) - at;
        if format == Format::Hybrid && !file.path.is_empty() {
            list.padding(gap)?;
        }
    }
    if let (Format::V2, Some(node)) = (format, single) {
        list.rise_if_alone(node);
    }
    let list = list.build()?;
    let alone = list.count() == 1 && list.iter().all(|file| file.path().len() == 1);
    Ok((list, alone))
}

/// Hashes a piece, part by part. [`Creation::hasher`] begins one.
#[derive(Debug, Clone)]
pub struct PieceHasher {
    piece: u32,
    hashing: Hashing,
}

impl PieceHasher {
    /// Hashes the next bytes of the piece's [`segments`](Creation::segments), any number of them. Hybrids are
    /// hashed twice: parts of about 100 KiB stay in the processor's cache.
    pub fn update(&mut self, data: &[u8]) {
        self.hashing.update(data);
    }

    /// The hash; `None` if not all bytes came, or too many.
    pub fn finish(self) -> Option<PieceHash> {
        let (v1, v2) = self.hashing.finish()?;
        Some(PieceHash { piece: self.piece, v1, v2 })
    }
}

/// The hash of a piece, for [`Creation::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHash {
    piece: u32,
    v1: Option<[u8; 20]>,
    v2: Option<Hash>,
}

#[cfg(test)]
mod tests;
