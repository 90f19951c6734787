//! The info dictionary: the files of a torrent, their hashes, and its info hash.

use std::{collections::BTreeMap, ops::Range};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{
    BLOCK, Error, FileList, FileListBuilder, LONGEST, LONGEST_PIECE, PieceCheck,
    attributes::attributes,
    fields,
    file_tree::{FileRoot, FileTree},
    hash_tree::{self, Hash},
    info_hashes::truncated,
    names,
    verify::Blocks,
};
use swarmkeep_bittorrent::{
    InfoHash,
    bencode::{self, Dict, Value},
};

/// The info dictionary of a torrent: its files, cut into pieces, and the hashes of the pieces.
///
/// The files follow each other in one range of bytes, as in v1 (BEP 3). In v2 (BEP 52) every file has its own
/// pieces: in a v2-only torrent, the range has padding before each non-empty file, so that it begins with a
/// piece, and none after the last. Hybrids have the padding as pad files (BEP 47) in their v1 part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    name: String,
    files: FileList,
    piece_length: u32,
    piece_count: u32,
    private: bool,
    info_hash: InfoHash,
    v1: Option<Vec<[u8; 20]>>,
    v2: Option<V2>,
    encoded: Box<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct V2 {
    info_hash: Hash,
    pub(super) roots: Vec<FileRoot>,
    /// All of `roots`, in the order of their hashes.
    pub(super) by_hash: Vec<u32>,
    /// The piece layers of the files that have one and are known, each with some layers above it: those of
    /// `merkle`'s `kept_layers`.
    pub(super) nodes: Vec<Hash>,
}

impl Info {
    /// Reads an info dictionary alone, as a peer sends it for a magnet link (BEP 9).
    ///
    /// A v2 info dictionary lacks the hashes of pieces of files that have more than one piece; see
    /// [`knows_hashes`](Self::knows_hashes).
    ///
    /// # Errors
    /// The fault of the dictionary, and in which file it is.
    pub fn parse(info: &[u8]) -> Result<Self, Error> {
        if info.len() > LONGEST {
            return Err(Error::TooLong(info.len()));
        }
        Self::read(Value::parse(info)?, None)
    }

    /// Reads an info dictionary. `layers` is `piece layers` of the torrent file, if there is a torrent file.
    pub(super) fn read(info: Value<'_>, layers: Option<Option<Value<'_>>>) -> Result<Self, Error> {
        let wrong = |key, what| Error::Field { key, what };
        let dict = info.dict().ok_or(wrong("info", "is not a dictionary"))?;
        let [name, name_utf8, piece_length, private, version, pieces, length, attr, files, tree] = fields(
            dict,
            [
                b"name",
                b"name.utf-8",
                b"piece length",
                b"private",
                b"meta version",
                b"pieces",
                b"length",
                b"attr",
                b"files",
                b"file tree",
            ],
        );
        let name = name_utf8.filter(|name| name.text().is_some()).or(name).and_then(Value::bytes);
        let says = |name: &&[u8]| name.iter().any(|byte| !matches!(byte, 0 | b'/' | b'\\'));
        let name = name.filter(says).ok_or(wrong("name", "is missing or empty"))?;
        let tree = match version.map(Value::integer) {
            None | Some(Some(1)) => None,
            Some(Some(2)) => Some(tree.ok_or(wrong("file tree", "is missing"))?),
            Some(_) => return Err(wrong("meta version", "is neither 1 nor 2")),
        };
        let piece_length = piece_length.and_then(Value::integer);
        let piece_length = piece_length.ok_or(wrong("piece length", "is missing or no integer"))?;
        let piece_length = u32::try_from(piece_length).unwrap_or(0);
        check_piece_length(piece_length, tree.is_some())?;

        let v1 = match (tree, pieces, length, files) {
            (Some(_), None, None, None) => None,
            (_, None, ..) => return Err(wrong("pieces", "is missing")),
            (_, Some(_), None, None) => return Err(wrong("files", "is missing, and so is `length`")),
            (_, Some(_), Some(_), Some(_)) => return Err(wrong("files", "is there, and so is `length`")),
            (_, Some(pieces), Some(length), None) => Some((pieces, single_file(name, length, attr)?)),
            (_, Some(pieces), None, Some(files)) => Some((pieces, many_files(name, files)?)),
        };
        let v1 = match v1 {
            None => None,
            Some((pieces, files)) => {
                let pieces = piece_hashes(pieces)?;
                if pieces.len() as u64 != files.length().div_ceil(piece_length.into()) {
                    return Err(wrong("pieces", "has not a hash of 20 bytes for each piece"));
                }
                Some((pieces, files))
            }
        };
        let v2 = match tree {
            None => None,
            Some(tree) => {
                let alone = length.is_some() || v1.is_none();
                let FileTree { files, roots } = FileTree::read(tree, name, alone, piece_length)?;
                let files = files.build()?;
                let by_hash = by_hash(&roots, &files)?;
                let info_hash = Sha256::digest(info.encoded()).into();
                let mut v2 = V2 { info_hash, roots, by_hash, nodes: Vec::new() };
                // A hybrid that came by a magnet link is kept without them: its pieces have hashes of v1.
                if let Some(layers) = layers.filter(|layers| layers.is_some() || v1.is_none()) {
                    piece_layers(layers, &files, &mut v2, piece_length)?;
                }
                Some((files, v2))
            }
        };
        let (files, v1, v2) = match (v1, v2) {
            (Some((pieces, files)), Some((tree, v2))) => {
                same_files(&files, &tree, piece_length)?;
                (files, Some(pieces), Some(v2))
            }
            (Some((pieces, files)), None) => (files, Some(pieces), None),
            (None, Some((files, v2))) => (files, None, Some(v2)),
            (None, None) => unreachable!("there is a part of v1 where there is none of v2"),
        };
        check_length(&files)?;
        let piece_count = u32::try_from(files.length().div_ceil(piece_length.into()));
        let info_hash = match &v2 {
            Some(v2) if v1.is_none() => truncated(v2.info_hash),
            _ => InfoHash::new(Sha1::digest(info.encoded()).into()),
        };
        Ok(Self {
            name: names::written(name).into_owned(),
            files,
            piece_length,
            piece_count: piece_count.map_err(|_| Error::TooMany("pieces"))?,
            private: private.and_then(Value::integer).is_some_and(|number| number != 0),
            info_hash,
            v1,
            v2,
            encoded: info.encoded().into(),
        })
    }

    /// The name of the folder that the files lie in, or of the file if it is only one (BEP 3), as it is
    /// written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files, and the padding between them.
    pub const fn files(&self) -> &FileList {
        &self.files
    }

    /// Length of the range of all files, in bytes, with the padding between them.
    pub const fn length(&self) -> u64 {
        self.files.length()
    }

    /// Length of every piece but those at an end, in bytes: 1 to [`LONGEST_PIECE`] in v1; a power of two from
    /// [`BLOCK`] on in v2.
    pub const fn piece_length(&self) -> u32 {
        self.piece_length
    }

    /// How many pieces there are.
    pub const fn piece_count(&self) -> u32 {
        self.piece_count
    }

    /// The range of a piece in the range of all files: the bytes that are requested from peers. In a v2-only
    /// torrent a piece ends where its file ends, and the padding after it is in no piece. In other torrents
    /// only the last piece may be shorter. `None` if there is no such piece.
    pub fn piece_range(&self, piece: u32) -> Option<Range<u64>> {
        if piece >= self.piece_count {
            return None;
        }
        let start = u64::from(piece) * u64::from(self.piece_length);
        let end = match (&self.v1, self.root(piece)) {
            (None, Some((_, root))) => {
                u64::from(root.first_piece) * u64::from(self.piece_length) + root.length
            }
            _ => self.length(),
        };
        Some(start..end.min(start + u64::from(self.piece_length)))
    }

    /// Length of a piece in bytes, 0 if there is no such piece; see [`piece_range`](Self::piece_range).
    pub fn piece_len(&self, piece: u32) -> u32 {
        // Fits: no piece is longer than `piece_length`.
        self.piece_range(piece).map_or(0, |range| (range.end - range.start) as u32)
    }

    /// The info hash that trackers and peers use: the SHA-1 of the info dictionary or, if it is v2 only, the
    /// first 20 bytes of its SHA-256.
    pub const fn info_hash(&self) -> InfoHash {
        self.info_hash
    }

    /// The SHA-256 of the info dictionary, if it is v2 or hybrid. The first 20 bytes name the swarm of v2
    /// (BEP 52), as in [`info_hashes`](Self::info_hashes).
    pub fn info_hash_v2(&self) -> Option<[u8; 32]> {
        self.v2.as_ref().map(|v2| v2.info_hash)
    }

    /// The info hashes by which trackers and peers know the torrent: two for a hybrid, v1 first.
    pub fn info_hashes(&self) -> impl Iterator<Item = InfoHash> + Clone {
        let v1 = self.has_v1().then_some(self.info_hash);
        v1.into_iter().chain(self.info_hash_v2().map(truncated))
    }

    /// Whether peers may come from its trackers only (BEP 27): `private` is any number but 0.
    pub const fn is_private(&self) -> bool {
        self.private
    }

    /// Whether clients that support only v1 can use it: `true` for v1 and hybrids.
    pub const fn has_v1(&self) -> bool {
        self.v1.is_some()
    }

    /// The encoded info dictionary, byte for byte as in the torrent file. Peers send it to each other (BEP
    /// 9).
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Whether the hash of every piece is known. For a v2 info dictionary without its torrent file, the
    /// hashes of files with several pieces are not: they are in the `piece layers` of the torrent file. For a
    /// hybrid, they are known from its v1 part.
    pub fn knows_hashes(&self) -> bool {
        let single = |root: &FileRoot| root.pieces(self.piece_length) == 1;
        let known = |v2: &V2| v2.roots.iter().all(|root| single(root) || root.layer.is_some());
        self.v1.is_some() || self.v2.as_ref().is_some_and(known)
    }

    /// Begins to verify a piece that comes in parts; otherwise like [`verify`](Self::verify). `None` if there
    /// is no such piece, or its hash is not known.
    pub fn check(&self, piece: u32) -> Option<PieceCheck<'_>> {
        let length = self.piece_range(piece)?;
        let length = (length.end - length.start) as u32;
        let v1 = self.v1.as_ref().map(|hashes| &hashes[piece as usize]);
        let v2 = self.blocks(piece);
        (v1.is_some() || v2.is_some()).then(|| PieceCheck::new(length, v1, v2))
    }

    /// The file of v2 that a piece is of.
    fn root(&self, piece: u32) -> Option<(&V2, &FileRoot)> {
        let v2 = self.v2.as_ref()?;
        let after = v2.roots.partition_point(|root| root.first_piece <= piece);
        Some((v2, &v2.roots[after.checked_sub(1)?]))
    }

    pub(super) const fn v2(&self) -> Option<&V2> {
        self.v2.as_ref()
    }

    /// The length of pieces, and the v2 part to change.
    pub(super) const fn v2_mut(&mut self) -> (u32, Option<&mut V2>) {
        (self.piece_length, self.v2.as_mut())
    }

    /// Which entry of the files has a root.
    pub(super) fn file_of_root(&self, nth: u32) -> usize {
        file_of_root(&self.files, nth)
    }

    /// The hasher of a piece of v2, and the hash that the piece should have.
    fn blocks(&self, piece: u32) -> Option<(Blocks, &Hash)> {
        let (v2, root) = self.root(piece)?;
        let nth = piece - root.first_piece;
        let left = root.length.checked_sub(u64::from(nth) * u64::from(self.piece_length))?;
        let length = left.min(self.piece_length.into()) as u32;
        if root.pieces(self.piece_length) == 1 {
            return Some((Blocks::new(length, hash_tree::levels(root.blocks())), &root.hash));
        }
        let hash = &v2.nodes[(root.layer? + nth) as usize];
        Some((Blocks::new(length, hash_tree::levels((self.piece_length / BLOCK).into())), hash))
    }
}

/// Whether there is something to share.
pub(super) fn check_length(files: &FileList) -> Result<(), Error> {
    match files.length() {
        0 => Err(Error::Field { key: "length", what: "is 0 in all: there is nothing to share" }),
        _ => Ok(()),
    }
}

pub(super) fn check_piece_length(length: u32, v2: bool) -> Result<(), Error> {
    let wrong = |what| Err(Error::Field { key: "piece length", what });
    if !(1..=LONGEST_PIECE).contains(&length) {
        return wrong("is not within 1 and 2^30");
    }
    if v2 && (length < BLOCK || !length.is_power_of_two()) {
        return wrong("is no power of two from 16 KiB on, as v2 needs it");
    }
    Ok(())
}

fn single_file(name: &[u8], length: Value<'_>, attr: Option<Value<'_>>) -> Result<FileList, Error> {
    let length = length.integer().and_then(|length| u64::try_from(length).ok());
    let length = length.ok_or(Error::File { file: 0, key: "length", what: "is negative or no integer" })?;
    let mut files = FileList::of_torrent();
    let executable = attributes(attr.and_then(Value::bytes)).executable;
    let node = files.node(None, name)?;
    files.entry(node, length, executable)?;
    files.build()
}

fn many_files(name: &[u8], files: Value<'_>) -> Result<FileList, Error> {
    let files = files.list().ok_or(Error::Field { key: "files", what: "is not a list" })?;
    let mut list = FileList::of_torrent();
    for file in files.iter() {
        let number = list.list().count();
        let wrong = |key, what| Error::File { file: number, key, what };
        let dict = file.dict().ok_or(wrong("files", "has something else than a dictionary for it"))?;
        one_of_many(name, dict, &mut list, wrong)?;
    }
    list.build()
}

fn one_of_many(
    name: &[u8],
    dict: Dict<'_>,
    files: &mut FileListBuilder,
    wrong: impl Fn(&'static str, &'static str) -> Error,
) -> Result<(), Error> {
    let keys: [&[u8]; 5] = [b"length", b"path", b"path.utf-8", b"attr", b"symlink path"];
    let [length, path, path_utf8, attr, link] = fields(dict, keys);
    let attributes = attributes(attr.and_then(Value::bytes));
    if attributes.link {
        let is_path = |link: &Value<'_>| {
            link.list().is_some_and(|names| names.iter().all(|name| name.bytes().is_some()))
        };
        link.filter(is_path).ok_or(wrong("symlink path", "is missing or no list of texts"))?;
        files.link();
        return Ok(());
    }
    let length = length.and_then(Value::integer).ok_or(wrong("length", "is missing or no integer"))?;
    let length = u64::try_from(length).map_err(|_| wrong("length", "is negative"))?;
    if attributes.padding {
        // Its path is made up, often the same for several, and nothing is written there.
        files.padding(length)?;
        return Ok(());
    }
    let readable = |path: &bencode::List<'_>| path.iter().all(|name| name.text().is_some());
    let path = path_utf8.and_then(Value::list).filter(readable).or(path.and_then(Value::list));
    let mut names = Vec::from([name]);
    for name in path.ok_or(wrong("path", "is missing or no list"))?.iter() {
        names.push(name.bytes().ok_or(wrong("path", "has something else than text"))?);
        // One more is refused: no more than that many need be held.
        if names.len() > FileList::MOST_NAMES {
            break;
        }
    }
    // The folder alone is no path of a file.
    let names = if names.len() > 1 { names } else { Vec::new() };
    let node = files.path(names.into_iter())?;
    files.entry(node, length, attributes.executable)?;
    Ok(())
}

fn piece_hashes(pieces: Value<'_>) -> Result<Vec<[u8; 20]>, Error> {
    match pieces.bytes().map(<[u8]>::as_chunks) {
        Some((hashes, [])) => Ok(hashes.to_vec()),
        Some(_) => Err(Error::Field { key: "pieces", what: "is not a multiple of 20 bytes" }),
        None => Err(Error::Field { key: "pieces", what: "is not text" }),
    }
}

/// The roots in the order of their hashes, equal ones in their own order: they are of the same content.
fn by_hash(roots: &[FileRoot], files: &FileList) -> Result<Vec<u32>, Error> {
    let root = |nth: u32| &roots[nth as usize];
    // Fits: there are no more files.
    let mut by_hash: Vec<u32> = (0..roots.len() as u32).collect();
    by_hash.sort_by_key(|&nth| &root(nth).hash);
    match by_hash
        .windows(2)
        .find(|two| root(two[0]).hash == root(two[1]).hash && root(two[0]).length != root(two[1]).length)
    {
        None => Ok(by_hash),
        Some(two) => {
            let what = "belongs to a file of another length";
            Err(Error::File { file: file_of_root(files, two[1]), key: "pieces root", what })
        }
    }
}

/// Which entry of the files has a root: each non-empty file has one.
fn file_of_root(files: &FileList, nth: u32) -> usize {
    let mut with_bytes = files.iter().filter(|file| !file.is_padding() && file.length() > 0);
    with_bytes.nth(nth as usize).expect("there is a root for each file that has bytes").index()
}

/// Gives each file of several pieces the hashes of those, if `layers` has them and they have the right root.
fn piece_layers(
    layers: Option<Value<'_>>,
    files: &FileList,
    v2: &mut V2,
    piece_length: u32,
) -> Result<(), Error> {
    let wrong = |what| Error::Field { key: "piece layers", what };
    let mut known = BTreeMap::new();
    match layers.map(Value::dict) {
        None => {}
        Some(None) => return Err(wrong("is not a dictionary")),
        Some(Some(layers)) => {
            for (root, layer) in layers.iter() {
                let layer = layer.bytes().ok_or(wrong("has something else than text"))?;
                let root = Hash::try_from(root).map_err(|_| wrong("has a key that is not of 32 bytes"))?;
                let of_file = v2.by_hash.binary_search_by_key(&&root, |&nth| &v2.roots[nth as usize].hash);
                of_file.map_err(|_| wrong("has hashes of a file that is not in the torrent"))?;
                known.entry(root).or_insert(layer);
            }
        }
    }
    for nth in 0..v2.roots.len() {
        let root = &v2.roots[nth];
        // Files of the same content have the same layer, which all of them have with the first.
        if root.layer.is_some() || root.pieces(piece_length) == 1 {
            continue;
        }
        let wrong = |what| Error::Layer { file: file_of_root(files, nth as u32), what };
        // Missing layers are learnt from peers, as for a link.
        let Some(layer) = known.get(&root.hash) else { continue };
        let (hashes, rest) = layer.as_chunks::<32>();
        if !rest.is_empty() {
            return Err(wrong("has not a hash of 32 bytes for each piece"));
        }
        v2.set_layer(nth as u32, hashes, piece_length).map_err(wrong)?;
    }
    v2.nodes.shrink_to_fit();
    Ok(())
}

/// Whether the two parts of a hybrid have the same files at the same pieces.
fn same_files(v1: &FileList, v2: &FileList, piece_length: u32) -> Result<(), Error> {
    let files = |list: &FileList| list.iter().filter(|file| !file.is_padding()).count();
    for (nth, (one, other)) in v1
        .iter()
        .filter(|file| !file.is_padding())
        .zip(v2.iter().filter(|file| !file.is_padding()))
        .enumerate()
    {
        let differs = |what| Err(Error::Hybrid { file: nth, what });
        if !one.has_path_of(other) {
            return differs("its path");
        }
        if one.length() != other.length() {
            return differs("its length");
        }
        if one.length() > 0 && one.offset() != other.offset() {
            return differs("the piece that it begins with");
        }
    }
    let count = files(v1).min(files(v2));
    if files(v1) != files(v2) {
        return Err(Error::Hybrid { file: count, what: "only one part has it" });
    }
    let pieces = |list: &FileList| list.length().div_ceil(piece_length.into());
    if pieces(v1) != pieces(v2) {
        return Err(Error::Hybrid { file: count - 1, what: "there are pieces of padding behind it" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use swarmkeep_bittorrent::bencode::Writer;

    use crate::Metainfo;

    #[test]
    fn a_layer_that_many_files_share_is_hashed_once() {
        const PIECES: usize = 1 << 14;
        let began = Instant::now();
        let root = hash_tree::root_of(&[[7; 32]; PIECES], PIECES.trailing_zeros(), hash_tree::missing(0));
        let once = began.elapsed();

        let (mut torrent, mut files) = (Vec::new(), Vec::new());
        for nth in 0..8000 {
            let mut writer = Writer::new(&mut files);
            writer.bytes(format!("{nth:04}").as_bytes()).dict().bytes(b"").dict();
            writer
                .bytes(b"length")
                .integer((PIECES << 14) as i64)
                .bytes(b"pieces root")
                .bytes(&root)
                .end()
                .end();
        }
        let mut writer = Writer::new(&mut torrent);
        writer.dict().bytes(b"info").dict().bytes(b"file tree").dict().put(&files).end();
        writer.bytes(b"meta version").integer(2).bytes(b"name").bytes(b"n");
        writer.bytes(b"piece length").integer(BLOCK.into()).end();
        writer.bytes(b"piece layers").dict().bytes(&root).bytes(&[7; 32].repeat(PIECES)).end().end();
        assert!(torrent.len() > 1 << 20);

        let began = Instant::now();
        let metainfo = Metainfo::parse(&torrent).unwrap();
        assert!(began.elapsed() < 8000 / 4 * once, "{:?} and {once:?}", began.elapsed());
        let info = metainfo.info();
        assert_eq!((info.piece_count() as usize, info.knows_hashes()), (8000 * PIECES, true));
        let above = PIECES / 16 * 2 - 2;
        assert_eq!(info.v2.as_ref().unwrap().nodes.len(), PIECES + above);
    }

    #[test]
    fn pieces_of_padding_in_a_hybrid_are_refused_and_trackers_without_a_list_are_one_tier() {
        let mut v1 = FileList::builder();
        v1.file(&["a"], 5, false).unwrap().padding(40_000).unwrap();
        let v2 = FileList::builder().file(&["a"], 5, false).unwrap().clone().build().unwrap();
        let error = same_files(&v1.build().unwrap(), &v2, BLOCK).unwrap_err();
        assert_eq!(error, Error::Hybrid { file: 0, what: "there are pieces of padding behind it" });
        let torrent =
            b"d8:announce5:udp:x4:infod6:lengthi1e4:name1:n12:piece lengthi1e6:pieces20:01234567890123456789ee";
        assert_eq!(Metainfo::parse(torrent).unwrap().tiers(), [["udp:x"]]);
    }
}
