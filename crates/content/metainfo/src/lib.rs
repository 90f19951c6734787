//! Torrent files (metainfo): v1 (BEP 3), v2 (BEP 52) and hybrids of both, read ([`Metainfo`]) and made
//! ([`Creation`]); and [magnet links](Magnet).
//!
//! Torrent files come from untrusted sources, and the file names in them end up on a disk. A torrent may have
//! any names: every [`FileList`] has names that are safe to write below any folder of the system it is read
//! on, and keeps the originals; its documentation says how.
//! Reading takes time in proportion to the length of the input (n log n for the names), and at most
//! [`MOST_MEMORY`] times its length in memory.
//!
//! ```
//! use swarmkeep_metainfo::Metainfo;
//!
//! let torrent = b"d8:announce21:udp://t.example:6969/4:infod6:lengthi5e4:name5:hello\
//!     12:piece lengthi16384e6:pieces20:\xaa\xf4\xc6\x1d\xdc\xc5\xe8\xa2\xda\xbe\xde\x0f\x3b\x48\x2c\xd9\
//!     \xae\xa9\x43\x4dee";
//! let metainfo = Metainfo::parse(torrent)?;
//! assert_eq!(metainfo.tiers(), [["udp://t.example:6969/"]]);
//! let info = metainfo.info();
//! assert_eq!(info.files().get(0).unwrap().path(), ["hello"]);
//! assert!(info.verify(0, b"hello"));
//! # Ok::<(), swarmkeep_metainfo::Error>(())
//! ```

mod attributes;
mod create;
mod file_tree;
mod files;
mod hash_tree;
mod info;
mod info_hashes;
mod magnet;
mod merkle;
mod names;
mod verify;

pub use create::{Creation, CreationBuilder, Format, PieceHash, PieceHasher, piece_length_for};
pub use files::{File, FileList, FileListBuilder, Segment};
pub use info::Info;
pub use info_hashes::InfoHashes;
pub use magnet::Magnet;
pub use merkle::{BlockHasher, BlockHashes, MerkleTree};
pub use names::{PathFault, folded, with_number};
pub use verify::PieceCheck;

use std::sync::Arc;

use swarmkeep_bittorrent::bencode::{self, Dict, Value, Writer};

/// The longest metainfo and the longest info dictionary that are read, in bytes: hashes (v1) of 13 million
/// pieces.
pub const LONGEST: usize = 256 << 20;

/// A parse takes at most this many times the length of its input in memory, plus 64 KiB.
pub const MOST_MEMORY: usize = 16;

/// The longest piece, in bytes. Clients support far less.
pub const LONGEST_PIECE: u32 = 1 << 30;

/// The shortest piece of v2, in bytes. It is also the size of the blocks that are the leaves of hash trees
/// (BEP 52).
pub const BLOCK: u32 = 16 << 10;

/// The most trackers that are read; further ones are ignored.
pub const MOST_TRACKERS: usize = 256;

/// The longest URL of a tracker that is read; trackers with longer ones are ignored.
pub const LONGEST_TRACKER: usize = 2048;

/// The content of a torrent file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metainfo {
    tiers: Vec<Vec<String>>,
    info: Arc<Info>,
}

impl Metainfo {
    /// Reads a torrent file.
    ///
    /// Of equal keys in a dictionary the first counts. Unknown keys are ignored, and so are a tracker that is
    /// not a URL, and bytes behind the dictionary. Without the hashes of some pieces of v2 (`piece layers`)
    /// it does not [know all hashes](Info::knows_hashes).
    ///
    /// # Errors
    /// The fault of the torrent, and in which file it is.
    pub fn parse(torrent: &[u8]) -> Result<Self, Error> {
        if torrent.len() > LONGEST {
            return Err(Error::TooLong(torrent.len()));
        }
        let (torrent, _) = Value::parse_first(torrent)?;
        let dict = torrent.dict().ok_or(Error::Field { key: "info", what: "is not within a dictionary" })?;
        let [announce, announce_list, info, layers] =
            fields(dict, [b"announce", b"announce-list", b"info", b"piece layers"]);
        let info = info.ok_or(Error::Field { key: "info", what: "is missing" })?;
        Ok(Self { tiers: tiers(announce, announce_list), info: Info::read(info, Some(layers))?.into() })
    }

    /// A metainfo of `info` and these trackers. Trackers that [`parse`](Self::parse) would ignore are left
    /// out.
    pub fn new(info: impl Into<Arc<Info>>, tiers: &[Vec<String>]) -> Self {
        let tiers = tiers.iter().map(|tier| tier.iter().map(String::as_str));
        Self { tiers: tiers_of(tiers), info: info.into() }
    }

    /// Encodes a torrent file, in canonical bencoding. `None` if the hashes of some pieces are not
    /// [known](Info::knows_hashes): no client would read it.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if !self.info.knows_hashes() {
            return None;
        }
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.dict();
        create::write_trackers(&mut writer, &self.tiers);
        writer.bytes(b"info").put(self.info.encoded());
        let several = |tree: &MerkleTree<'_>| tree.pieces().len() > 1;
        let layers: Option<Vec<_>> =
            self.info.trees().filter(several).map(|tree| Some((tree.root(), tree.piece_hashes()?))).collect();
        if let Some(layers) = layers.filter(|_| self.info.info_hash_v2().is_some()) {
            create::write_layers(&mut writer, layers);
        }
        writer.end();
        Some(out)
    }

    /// The trackers, tier by tier in the order in which they are to be asked (BEP 12). A torrent with a
    /// single tracker has one tier. No tier is empty. At most [`MOST_TRACKERS`].
    pub fn tiers(&self) -> &[Vec<String>] {
        &self.tiers
    }

    /// The info dictionary.
    pub const fn info(&self) -> &Arc<Info> {
        &self.info
    }

    /// The info dictionary.
    pub fn into_info(self) -> Arc<Info> {
        self.info
    }
}

/// Why bytes are not a metainfo, or files not a list of files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not bencoded.
    #[error(transparent)]
    Bencode(#[from] bencode::Error),
    /// Longer than [`LONGEST`].
    #[error("{0} bytes of metainfo: no more than {LONGEST} are read")]
    TooLong(usize),
    /// The value of a key is missing or wrong.
    #[error("`{key}` {what}")]
    Field {
        /// The key, as it stands in the dictionary.
        key: &'static str,
        /// The fault.
        what: &'static str,
    },
    /// The `name` is not valid for a file or folder.
    #[error("the name \"{name}\" {fault}")]
    Name {
        /// The name, escaped and cut to [`Error::LONGEST_PATH`] bytes.
        name: String,
        /// The fault.
        fault: PathFault,
    },
    /// The path of a file is not valid.
    #[error("file {file}, \"{path}\", {fault}")]
    Path {
        /// Which file, counted from 0 in the order of the list.
        file: usize,
        /// Its path, joined by `/`, escaped and cut to [`Error::LONGEST_PATH`] bytes.
        path: String,
        /// The fault.
        fault: PathFault,
    },
    /// The entry of a file in the dictionary is wrong in another way than its path.
    #[error("file {file}: `{key}` {what}")]
    File {
        /// Which file, counted from 0 in the order of the list.
        file: usize,
        /// The key, as it stands in the dictionary.
        key: &'static str,
        /// The fault.
        what: &'static str,
    },
    /// The v1 and v2 parts of a hybrid differ in this file: they would fetch different content.
    #[error("file {file} is not the same in the v1 and the v2 part: {what}")]
    Hybrid {
        /// Which file, counted from 0 in the order of the list, padding left out.
        file: usize,
        /// The difference.
        what: &'static str,
    },
    /// The hashes of a file's pieces (`piece layers`) do not match its `pieces root`.
    #[error("file {file}: its piece layer {what}")]
    Layer {
        /// Which file, counted from 0 in the order of the list.
        file: usize,
        /// The fault.
        what: &'static str,
    },
    /// The text is not a magnet link.
    #[error("not a magnet link: {0}")]
    Magnet(&'static str),
    /// A new torrent has a tracker that would be ignored.
    #[error("the tracker \"{0}\" is not a URL of 1 to {LONGEST_TRACKER} bytes without control characters")]
    Tracker(String),
    /// A new torrent lacks the hash of this piece.
    #[error("piece {0} has not been hashed")]
    Unhashed(u32),
    /// There are no files, or only padding.
    #[error("no files")]
    NoFiles,
    /// More files, names or bytes than can be counted: 2^32 files and bytes of names, 2^63 bytes of content,
    /// 2^32 pieces.
    #[error("too many {0}")]
    TooMany(&'static str),
}

impl Error {
    /// The most bytes of a name from a torrent file that an error repeats.
    pub const LONGEST_PATH: usize = 512;

    fn path(file: usize, path: &[u8], fault: PathFault) -> Self {
        Self::Path { file, path: Self::printable(path), fault }
    }

    /// A name in a form for logs: without control characters, and not too long.
    fn printable(name: &[u8]) -> String {
        let mut out = String::new();
        for letter in String::from_utf8_lossy(&name[..name.len().min(Self::LONGEST_PATH)]).chars() {
            let escaped = letter.escape_debug();
            if out.len() + escaped.clone().map(char::len_utf8).sum::<usize>() > Self::LONGEST_PATH - 3 {
                return out + "...";
            }
            out.extend(escaped);
        }
        out
    }
}

/// The values of these keys, in one pass over the dictionary.
fn fields<'a, const N: usize>(dict: Dict<'a>, keys: [&[u8]; N]) -> [Option<Value<'a>>; N] {
    let mut values = [None; N];
    for (key, value) in dict.iter() {
        if let Some(at) = keys.iter().position(|name| *name == key) {
            values[at].get_or_insert(value);
        }
    }
    values
}

/// Whether this is taken for the URL of a tracker.
fn may_be_tracker(url: &str) -> bool {
    !url.is_empty() && url.len() <= LONGEST_TRACKER && !url.contains(char::is_control)
}

fn tiers(announce: Option<Value<'_>>, announce_list: Option<Value<'_>>) -> Vec<Vec<String>> {
    let list = announce_list.and_then(Value::list).into_iter().flat_map(bencode::List::iter);
    let tiers = tiers_of(
        list.map(|tier| tier.list().into_iter().flat_map(bencode::List::iter).filter_map(Value::text)),
    );
    if tiers.is_empty() { tiers_of([announce.and_then(Value::text)]) } else { tiers }
}

/// The URLs that may be trackers, up to [`MOST_TRACKERS`].
fn tiers_of<'a>(tiers: impl IntoIterator<Item = impl IntoIterator<Item = &'a str>>) -> Vec<Vec<String>> {
    let mut room = MOST_TRACKERS;
    let mut some = Vec::new();
    for tier in tiers {
        let urls = tier.into_iter().filter(|url| may_be_tracker(url));
        let tier: Vec<_> = urls.take(room).map(str::to_owned).collect();
        room -= tier.len();
        if !tier.is_empty() {
            some.push(tier);
        }
        if room == 0 {
            break;
        }
    }
    some
}
