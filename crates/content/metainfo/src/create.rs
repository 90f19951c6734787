//! Torrent files that are made: files in, what is to be hashed and then the torrent file out.

use std::collections::BTreeMap;

use super::{
    BLOCK, Error, File, FileList, LONGEST, LONGEST_PIECE, MOST_TRACKERS, Segment,
    hash_tree::{self, Hash, HashTree},
    info::check_piece_length,
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
    /// BEP 52 alone: a hash tree for each file.
    V2,
    /// Both. Each file that does not end with a piece has padding behind it (BEP 47), the last one too.
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

/// The length of pieces that suits so many bytes of content, in bytes: the least power of two that makes no
/// more than 4,096 pieces, but 16 KiB at least; more pieces rather than longer ones than 16 MiB; and longer
/// ones rather than more than 131,072.
///
/// Of some 700,000 torrents, half had pieces of 512 KiB or less, nine in ten of 1 MiB, and none above 16 MiB
/// (A. Norberg, "a bittorrent filesystem", blog.libtorrent.org, December 2014). Their mean length (1.65 GB,
/// Neowin on the index of IsoHunt) makes that 2,000 to 4,000 pieces each, as this does. 131,072 pieces take
/// 2.6 MB of hashes in v1, 6.8 MB in a hybrid: clients stop reading not far above.
///
/// ```
/// # use swarmkeep_metainfo::piece_length_for;
/// assert_eq!([0, 700 << 20, 1_650_000_000, 50 << 30].map(piece_length_for), [16 << 10, 256 << 10, 512 << 10, 16 << 20]);
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
/// It knows where each piece's bytes lie, and takes their hashes in any order, so that pieces can be hashed
/// by many threads. Reading files is the caller's.
///
/// The same files and options give the same bytes, whatever the order in which they came.
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
    says: Says,
    name: String,
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

/// What a torrent says beside its files.
#[derive(Debug, Clone, Default)]
struct Says {
    format: Format,
    tiers: Vec<Vec<String>>,
    comment: Option<String>,
    created_by: Option<String>,
    creation_date: Option<i64>,
    private: bool,
    source: Option<String>,
}

impl Creation {
    /// Begins a torrent with this name, which is that of its folder or of its only file.
    pub fn builder(name: impl AsRef<[u8]>, format: Format) -> CreationBuilder {
        let says = Says { format, ..Says::default() };
        CreationBuilder { says, name: name.as_ref().to_vec(), files: Vec::new(), piece_length: None }
    }

    /// The files in the order of their bytes, and the padding between them: as
    /// [`Info::files`](super::Info::files) will give them.
    pub const fn files(&self) -> &FileList {
        &self.files
    }

    /// Length of every piece but those at an end, in bytes.
    pub const fn piece_length(&self) -> u32 {
        self.piece_length
    }

    /// How many pieces there are. None, if no file has bytes.
    pub const fn piece_count(&self) -> u32 {
        // Checked when it was built.
        self.hashed.len() as u32
    }

    /// Where the bytes of a piece lie in the files, in the order in which they are hashed, padding left out.
    /// Nothing if there is no such piece.
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
        let v2 = self.says.format.has_v2().then(|| {
            // In v2 no piece has bytes of two files.
            let levels = match self.pieces_of(self.file(last)) {
                1 => hash_tree::levels(u64::from(length.div_ceil(BLOCK))),
                _ => self.piece_levels(),
            };
            Blocks::new(length, levels)
        });
        let padding = self.says.format.has_v1().then(|| whole - length);
        Some(PieceHasher { piece, hashing: Hashing::new(length, padding, v2) })
    }

    /// Takes the hash of a piece of this torrent; if it is of another one, the torrent will be wrong.
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
    /// [`Error::Unhashed`] if not every piece was [`set`](Self::set), [`Error::TooLong`] if it came out
    /// longer than [`LONGEST`].
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

    /// Levels of the tree of a whole piece.
    const fn piece_levels(&self) -> u32 {
        hash_tree::levels((self.piece_length / BLOCK) as u64)
    }

    /// Keys of a dictionary come in the order of their bytes, here and below.
    fn write(&self, out: &mut Vec<u8>) {
        let Says { format, tiers, comment, created_by, creation_date, private, source } = &self.says;
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
        writer.bytes(b"name").bytes(self.name.as_bytes());
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
                // As the BEP suggests, and other programs do: those that know nothing of padding write it
                // there.
                writer.bytes(b".pad").bytes(file.length().to_string().as_bytes());
            } else {
                file.path()[1..].iter().for_each(|name| _ = writer.bytes(name.as_bytes()));
            }
            writer.end().end();
        }
        writer.end();
    }

    fn write_tree<S: Sink>(&self, writer: &mut Writer<'_, S>, roots: &[(File<'_>, Hash)]) {
        writer.bytes(b"file tree").dict();
        let mut roots = roots.iter();
        let mut open: Vec<&str> = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_padding()) {
            let path = file.path();
            let path = if self.alone { &path[..] } else { &path[1..] };
            let (name, folders) = path.split_last().expect("every file has a name");
            let shared = open.iter().zip(folders).take_while(|(one, other)| one == other).count();
            open.drain(shared..).for_each(|_| _ = writer.end());
            for folder in &folders[shared..] {
                writer.bytes(folder.as_bytes()).dict();
                open.push(folder);
            }
            writer.bytes(name.as_bytes()).dict().bytes(b"").dict();
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
    // One alone is told by `announce`.
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
    says: Says,
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
    /// Adds a file of `length` bytes: the names of the folders that it lies in below the torrent's own, and
    /// its own name. No names: it is the torrent's only file, and lies in no folder.
    ///
    /// Files are put in the order of v2: by names, byte for byte, folder by folder.
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

    /// Length of pieces in bytes: 1 to 2^30 in v1; a power of two from 16 KiB on in v2 and hybrids. By
    /// default [`piece_length_for`] all files.
    pub const fn piece_length(&mut self, bytes: u32) -> &mut Self {
        self.piece_length = Some(bytes);
        self
    }

    /// Adds a tier of trackers, behind those that are there (BEP 12). One without trackers is none.
    pub fn tier(&mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> &mut Self {
        let tier: Vec<_> = urls.into_iter().map(Into::into).collect();
        if !tier.is_empty() {
            self.says.tiers.push(tier);
        }
        self
    }

    /// Peers may come from its trackers only (BEP 27).
    pub const fn private(&mut self, private: bool) -> &mut Self {
        self.says.private = private;
        self
    }

    /// Says for whom it is made, within what is hashed: another source is another torrent. Private trackers
    /// use it.
    pub fn source(&mut self, source: impl Into<String>) -> &mut Self {
        self.says.source = Some(source.into());
        self
    }

    /// A comment, for people.
    pub fn comment(&mut self, comment: impl Into<String>) -> &mut Self {
        self.says.comment = Some(comment.into());
        self
    }

    /// The program that makes it.
    pub fn created_by(&mut self, program: impl Into<String>) -> &mut Self {
        self.says.created_by = Some(program.into());
        self
    }

    /// When it is made, in seconds since 1970. Not among what is hashed.
    pub const fn creation_date(&mut self, seconds: i64) -> &mut Self {
        self.says.creation_date = Some(seconds);
        self
    }

    /// Checks everything that is known before a byte is read.
    ///
    /// In v2 alone, a folder with a single file that has the folder's name cannot be told from the file
    /// itself, and is that.
    ///
    /// # Errors
    /// What [`Metainfo::parse`](super::Metainfo::parse) would say of such a torrent; of [`Error::Path`], the
    /// number counts sorted files. [`Error::Tracker`] for one that would be passed over there.
    pub fn build(&self) -> Result<Creation, Error> {
        let Self { says, name, files, piece_length } = self;
        let name = names::check(name)
            .map_err(|fault| Error::Name { name: Error::printable(name), fault })?
            .to_owned();
        if let Some(url) = says.tiers.iter().flatten().find(|url| !may_be_tracker(url)) {
            return Err(Error::Tracker(Error::printable(url.as_bytes())));
        }
        if says.tiers.iter().flatten().count() > MOST_TRACKERS {
            return Err(Error::TooMany("trackers"));
        }
        let total = files.iter().fold(0, |total: u64, file| total.saturating_add(file.length));
        let piece_length = piece_length.unwrap_or(piece_length_for(total));
        check_piece_length(piece_length, says.format.has_v2())?;
        let (files, alone) = list(&name, files, says.format, piece_length)?;
        let pieces = u32::try_from(files.length().div_ceil(piece_length.into()));
        let pieces = pieces.map_err(|_| Error::TooMany("pieces"))? as usize;
        let v1 = if says.format.has_v1() { pieces } else { 0 };
        let v2 = if says.format.has_v2() { pieces } else { 0 };
        if 20 * v1 as u64 + 32 * v2 as u64 > LONGEST as u64 {
            return Err(Error::Field {
                key: "piece length",
                what: "is too short: the hashes take too much room",
            });
        }
        Ok(Creation {
            says: says.clone(),
            name,
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
fn list(name: &str, files: &[NewFile], format: Format, piece_length: u32) -> Result<(FileList, bool), Error> {
    let mut sorted: Vec<&NewFile> = files.iter().collect();
    sorted.sort();
    let mut list = FileList::builder();
    let mut single = None;
    for file in sorted {
        let names = file.path.iter().map(Vec::as_slice);
        let node = list.path(std::iter::once(name.as_bytes()).chain(names))?;
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

/// Hashes a piece, as its bytes come. [`Creation::hasher`] begins one.
#[derive(Debug, Clone)]
pub struct PieceHasher {
    piece: u32,
    hashing: Hashing,
}

impl PieceHasher {
    /// The next bytes of the piece's [`segments`](Creation::segments), however many. With hybrids, which are
    /// hashed twice, some 100 KiB at a time stay in the processor's cache.
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
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sha1::Sha1;
    use sha2::{Digest, Sha256};

    use super::*;
    use swarmkeep_bittorrent::bencode::Value;

    use crate::{Metainfo, PathFault};

    /// A file's bytes, which tell where they are from.
    fn content(path: &[&str], length: u64) -> Vec<u8> {
        let seed = Sha256::digest(path.join("/"));
        (0..length).map(|at| seed[at as usize % 32] ^ (at / 32) as u8 ^ (at >> 13) as u8).collect()
    }

    /// Hashes all pieces and gives the torrent file.
    fn made(mut creation: Creation, backwards: bool) -> Vec<u8> {
        let count = creation.piece_count();
        for nth in 0..count {
            let piece = if backwards { count - 1 - nth } else { nth };
            let mut hasher = creation.hasher(piece).unwrap();
            for segment in creation.segments(piece) {
                let file = creation.files().get(segment.file).unwrap();
                let bytes = content(&file.path(), file.length());
                bytes[segment.offset as usize..][..segment.length as usize]
                    .chunks(10_007)
                    .for_each(|part| hasher.update(part));
            }
            let hash = hasher.finish().unwrap();
            creation.set(hash);
        }
        creation.finish().unwrap()
    }

    /// All bytes in their order, with the padding.
    fn flat(files: &FileList) -> Vec<u8> {
        let bytes = |file: File<'_>| match file.is_padding() {
            true => vec![0; file.length() as usize],
            false => content(&file.path(), file.length()),
        };
        files.iter().flat_map(bytes).collect()
    }

    fn assert_canonical(value: Value<'_>) {
        if let Some(dict) = value.dict() {
            let keys: Vec<_> = dict.iter().map(|(key, _)| key).collect();
            assert!(keys.is_sorted_by(|one, other| one < other), "{value:?}");
            dict.iter().for_each(|(_, value)| assert_canonical(value));
        }
        value.list().into_iter().flat_map(|list| list.iter()).for_each(assert_canonical);
    }

    fn info_of(torrent: &[u8]) -> Value<'_> {
        Value::parse(torrent).unwrap().dict().unwrap().get(b"info").unwrap()
    }

    fn some_files() -> impl Strategy<Value = Vec<(Vec<&'static str>, u64, bool)>> {
        let name = prop::sample::select(vec!["a", "b", "a.b", "a-b", "ab", "\u{e9}", "z", "0"]);
        let path = prop::collection::vec(name, 1..4);
        let around = |length: u64| length.saturating_sub(1)..length + 2;
        let length = prop_oneof![
            Just(0),
            1_u64..5,
            around(16 << 10),
            around(32 << 10),
            around(48 << 10),
            around(64 << 10),
            1_u64..150_000
        ];
        prop::collection::vec((path, length, any::<bool>()), 1..9)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_made_is_read_as_it_was_meant_and_every_piece_verifies(
            files in some_files(),
            format in prop::sample::select(vec![Format::V1, Format::V2, Format::Hybrid]),
            shift in 14_u32..18,
            odd in 1_u32..60_000,
            private: bool,
        ) {
            let piece_length = if format == Format::V1 && odd % 2 == 0 { odd.max(1000) } else { 1 << shift };
            // Some paths are twice there, or are folders of others: those are refused, one by one.
            let mut builder = Creation::builder("torrent", format);
            builder.piece_length(piece_length).private(private);
            let mut taken = BTreeMap::new();
            for (path, length, executable) in &files {
                let mut with = builder.clone();
                match with.file(path, *length, *executable).build() {
                    Ok(_) => {
                        builder = with;
                        taken.insert(path.clone(), (*length, *executable));
                    }
                    Err(Error::Path { fault, .. }) => {
                        prop_assert!(matches!(fault, PathFault::Twice(_) | PathFault::Folder), "{fault}");
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            let creation = builder.build().unwrap();
            let torrent = made(creation.clone(), false);
            assert_canonical(Value::parse(&torrent).unwrap());
            let metainfo = Metainfo::parse(&torrent).unwrap();
            let info = metainfo.info();
            prop_assert_eq!(info.files(), creation.files());
            prop_assert_eq!((info.piece_length(), info.piece_count()), (piece_length, creation.piece_count()));
            prop_assert_eq!((info.has_v1(), info.is_private()), (format.has_v1(), private));
            prop_assert_eq!(info.info_hash_v2().is_some(), format.has_v2());
            prop_assert!(info.knows_hashes());

            let read: BTreeMap<_, _> = info
                .files()
                .iter()
                .filter(|file| !file.is_padding())
                .map(|file| (file.path()[1..].to_vec(), (file.length(), file.is_executable())))
                .collect();
            prop_assert_eq!(&read, &taken);

            let flat = flat(info.files());
            for piece in 0..info.piece_count() {
                let range = info.piece_range(piece).unwrap();
                let bytes = &flat[range.start as usize..range.end as usize];
                prop_assert!(info.verify(piece, bytes), "piece {}", piece);
                let mut other = bytes.to_vec();
                other[0] ^= 1;
                prop_assert!(!info.verify(piece, &other));
            }
            if format.has_v1() {
                let plain: Vec<u8> = flat.chunks(piece_length as usize).flat_map(Sha1::digest).collect();
                let pieces = info_of(&torrent).dict().unwrap().get(b"pieces").unwrap();
                prop_assert_eq!(pieces.bytes(), Some(&plain[..]));
            }

            // Neither the order of files nor that of pieces makes a difference.
            let mut other = Creation::builder("torrent", format);
            other.piece_length(piece_length).private(private);
            for (path, (length, executable)) in taken.iter().rev() {
                other.file(path, *length, *executable);
            }
            prop_assert_eq!(made(other.build().unwrap(), true), torrent);
        }
    }

    fn single(format: Format, length: u64) -> CreationBuilder {
        let mut builder = Creation::builder("one.bin", format);
        builder.file([""; 0], length, true);
        builder
    }

    #[test]
    fn a_single_file_lies_in_no_folder_and_has_no_padding() {
        for format in [Format::V1, Format::V2, Format::Hybrid] {
            let torrent = made(single(format, 100_000).build().unwrap(), false);
            let metainfo = Metainfo::parse(&torrent).unwrap();
            let files = metainfo.info().files();
            assert_eq!((files.count(), files.length()), (1, 100_000), "{format:?}");
            assert_eq!(files.get(0).unwrap().path(), ["one.bin"]);
            assert!(files.get(0).unwrap().is_executable());
            // And one in a folder lies there, but where v2 cannot say so.
            let mut folder = Creation::builder("one.bin", format);
            let torrent = made(folder.file(["one.bin"], 100_000, false).build().unwrap(), false);
            let metainfo = Metainfo::parse(&torrent).unwrap();
            let path = metainfo.info().files().get(0).unwrap().path();
            assert_eq!(path, if format == Format::V2 { &["one.bin"][..] } else { &["one.bin"; 2] });
            let mut deeper = Creation::builder("one.bin", format);
            let torrent = made(deeper.file(["a", "a"], 5, false).build().unwrap(), false);
            let metainfo = Metainfo::parse(&torrent).unwrap();
            assert_eq!(metainfo.info().files().get(0).unwrap().path(), ["one.bin", "a", "a"]);
        }
    }

    #[test]
    fn what_is_said_of_a_torrent_stands_where_it_belongs() {
        let plain = made(single(Format::Hybrid, 20_000).build().unwrap(), false);
        let mut builder = single(Format::Hybrid, 20_000);
        builder.tier(["udp:a", "udp:b"]).tier([""; 0]).tier(["udp:c"]);
        builder.comment("c").created_by("p").creation_date(-5);
        let torrent = made(builder.build().unwrap(), false);
        let metainfo = Metainfo::parse(&torrent).unwrap();
        assert_eq!(metainfo.tiers(), [vec!["udp:a", "udp:b"], vec!["udp:c"]]);
        assert_eq!(info_of(&torrent).encoded(), info_of(&plain).encoded());
        let dict = Value::parse(&torrent).unwrap().dict().unwrap();
        assert_eq!(dict.get(b"announce").and_then(Value::text), Some("udp:a"));
        assert_eq!(dict.get(b"comment").and_then(Value::text), Some("c"));
        assert_eq!(dict.get(b"created by").and_then(Value::text), Some("p"));
        assert_eq!(dict.get(b"creation date").and_then(Value::integer), Some(-5));
        // One tracker is told by `announce` alone.
        let one = made(single(Format::V1, 5).tier(["udp:a"]).build().unwrap(), false);
        assert!(Value::parse(&one).unwrap().dict().unwrap().get(b"announce-list").is_none());
        assert_eq!(Metainfo::parse(&one).unwrap().tiers(), [["udp:a"]]);
        // Another source is another torrent.
        let sourced = made(single(Format::Hybrid, 20_000).source("S").build().unwrap(), false);
        assert_eq!(info_of(&sourced).dict().unwrap().get(b"source").and_then(Value::text), Some("S"));
        assert_canonical(Value::parse(&sourced).unwrap());
    }

    #[test]
    fn what_no_torrent_can_have_is_refused_before_anything_is_hashed() {
        let refused = |builder: &CreationBuilder| builder.build().unwrap_err();
        let builder = |name: &str| Creation::builder(name, Format::V1);
        assert_eq!(refused(&builder("n")), Error::NoFiles);
        assert_eq!(
            refused(builder("..").file(["a"], 1, false)),
            Error::Name { name: "..".into(), fault: PathFault::Dots }
        );
        let path = |path: &[&[u8]]| match refused(builder("n").file(["ok"], 1, false).file(path, 1, false)) {
            Error::Path { fault, .. } => fault,
            other => panic!("{other}"),
        };
        assert_eq!(path(&[b".."]), PathFault::Dots);
        assert_eq!(path(&[b"a:b"]), PathFault::Reserved);
        assert_eq!(path(&[b"\xff"]), PathFault::NotUtf8);
        assert_eq!(path(&[b"OK"]), PathFault::CaseOnly(0));
        assert_eq!(path(&[]), PathFault::Folder);
        for (format, length) in [
            (Format::V1, 0),
            (Format::V1, (1 << 30) + 1),
            (Format::V2, 8192),
            (Format::Hybrid, 48 << 10),
            (Format::V2, 0),
        ] {
            let error = refused(single(format, 5).piece_length(length));
            assert!(
                matches!(error, Error::Field { key: "piece length", .. }),
                "{format:?} {length}: {error}"
            );
        }
        let error = refused(single(Format::Hybrid, 1 << 40).piece_length(16 << 10));
        assert_eq!(error.to_string(), "`piece length` is too short: the hashes take too much room");
        for (format, length) in [(Format::V1, 1 << 38), (Format::V2, (1 << 37) + 1)] {
            let error = refused(single(format, length).piece_length(16 << 10));
            assert_eq!(error.to_string(), "`piece length` is too short: the hashes take too much room");
        }
        assert_eq!(refused(single(Format::V1, 1 << 40).piece_length(1)), Error::TooMany("pieces"));
        assert_eq!(refused(single(Format::V1, u64::MAX).piece_length(1 << 30)), Error::TooMany("bytes"));
        assert_eq!(refused(single(Format::V1, 1).tier(["a\nb"])), Error::Tracker("a\\nb".into()));
        assert_eq!(refused(single(Format::V1, 1).tier(vec!["a"; 257])), Error::TooMany("trackers"));
    }

    #[test]
    fn a_piece_of_other_bytes_than_its_own_has_no_hash_and_without_it_there_is_no_torrent() {
        let creation = single(Format::Hybrid, 20_000).build().unwrap();
        let hashed = |bytes: &[u8]| {
            let mut hasher = creation.hasher(1).unwrap();
            hasher.update(bytes);
            hasher.finish()
        };
        assert_eq!(creation.piece_count(), 2);
        let length = 20_000 - (16 << 10);
        assert_eq!((hashed(&[7; 1]), hashed(&vec![7; length + 1])), (None, None));
        let hash = hashed(&vec![7; length]).unwrap();
        assert!(creation.hasher(2).is_none() && creation.segments(2).next().is_none());
        let mut incomplete = creation.clone();
        incomplete.set(hash);
        assert_eq!(incomplete.finish(), Err(Error::Unhashed(0)));
    }

    #[test]
    fn pieces_are_as_long_as_those_of_most_torrents() {
        let kib = |total| piece_length_for(total) >> 10;
        assert_eq!([0, 1, 64 << 20].map(kib), [16; 3]);
        assert_eq!(kib((64 << 20) + 1), 32);
        assert_eq!([1 << 30, 4 << 30, 16 << 30, 64 << 30].map(kib), [256, 1024, 4096, 16384]);
        // Longer than any torrent of the table.
        assert_eq!([100 << 30, 1 << 40, 2 << 40].map(kib), [16384; 3]);
        assert_eq!([(2 << 40) + 1, 4 << 40].map(kib), [32768; 2]);
        assert_eq!([1 << 50, u64::MAX].map(kib), [1 << 20; 2]);
        for shift in 0..64 {
            for total in [(1_u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let length = piece_length_for(total);
                assert!(length.is_power_of_two() && (BLOCK..=LONGEST_PIECE).contains(&length));
            }
        }
    }
}
