//! The `file tree` of BEP 52: a dictionary for each folder and each file; a file's has the key "".

use super::{BLOCK, Error, FileList, FileListBuilder, PathFault, attributes::attributes, hash_tree::Hash};
use swarmkeep_bittorrent::bencode::{Token, Value};

/// The files of a `file tree`: each non-empty one begins with a piece, with padding before it.
#[derive(Debug)]
pub(super) struct FileTree {
    pub(super) files: FileListBuilder,
    /// Of files that have bytes, in their order.
    pub(super) roots: Vec<FileRoot>,
}

/// A file that has bytes, and the root of the hash tree over its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileRoot {
    pub(super) first_piece: u32,
    /// Where its piece layer begins among all nodes that are known; of a file of several pieces only.
    pub(super) layer: Option<u32>,
    pub(super) length: u64,
    pub(super) hash: Hash,
}

/// The kind of a dictionary of the tree, known from its first key on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DictKind {
    Folder,
    File,
}

/// A dictionary of the tree that is open.
struct OpenDict<'a> {
    node: u32,
    kind: DictKind,
    latest: Option<&'a [u8]>,
}

impl FileTree {
    /// Reads the tree in one pass. All lie in a folder `name`; with `alone`, a single file of that name does
    /// not.
    pub(super) fn read(tree: Value<'_>, name: &[u8], alone: bool, piece_length: u32) -> Result<Self, Error> {
        let wrong = |what| Error::Field { key: "file tree", what };
        let mut read = Self { files: FileList::of_torrent(), roots: Vec::new() };
        let top = read.files.node(None, name)?;
        let mut tokens = tree.tokens();
        if tokens.next() != Some(Token::Dict) {
            return Err(wrong("is not a dictionary"));
        }
        let mut open = vec![OpenDict { node: top, kind: DictKind::Folder, latest: None }];
        let mut single = None;
        while let Some(OpenDict { node, kind, latest }) = open.last_mut() {
            let Some(Token::Bytes(key)) = tokens.next() else {
                // A dictionary has keys before anything else, so this one has ended.
                open.pop();
                continue;
            };
            if latest.is_some_and(|latest| latest >= key) {
                return Err(wrong("has names that are not in order, or twice"));
            }
            *latest = Some(key);
            let node = *node;
            if *kind == DictKind::File {
                let file = read.files.list().count() - 1;
                return Err(read.files.list().fault(file, PathFault::Folder));
            }
            if tokens.next() != Some(Token::Dict) {
                return Err(wrong("has a name without a dictionary"));
            }
            if key.is_empty() && open.len() > 1 {
                open.last_mut().expect("one is open").kind = DictKind::File;
                single = (open.len() == 2).then_some(node);
                read.file(&mut tokens, node, piece_length)?;
            } else if key.is_empty() {
                return Err(wrong("has an empty name"));
            } else {
                let node = read.files.node(Some(node), key)?;
                open.push(OpenDict { node, kind: DictKind::Folder, latest: None });
            }
        }
        if let Some(single) = single
            && alone
        {
            read.files.rise_if_alone(single);
        }
        Ok(read)
    }

    /// Reads the value of the key "", to its end.
    fn file<'a>(
        &mut self,
        tokens: &mut impl Iterator<Item = Token<'a>>,
        node: u32,
        piece_length: u32,
    ) -> Result<(), Error> {
        let (mut length, mut root, mut attr) = (None, None, None);
        // Keys are read at the depth of the dictionary only; values that are lists or dictionaries are passed
        // over.
        while let Some(Token::Bytes(key)) = tokens.next() {
            let value = tokens.next();
            match (key, value) {
                (b"length", Some(Token::Integer(value))) => _ = length.get_or_insert(value),
                (b"pieces root", Some(Token::Bytes(value))) => _ = root.get_or_insert(value),
                (b"attr", Some(Token::Bytes(value))) => _ = attr.get_or_insert(value),
                _ => {}
            }
            let mut depth = i32::from(matches!(value, Some(Token::List | Token::Dict)));
            while depth > 0 {
                match tokens.next() {
                    Some(Token::List | Token::Dict) => depth += 1,
                    Some(Token::End) | None => depth -= 1,
                    Some(Token::Integer(_) | Token::Bytes(_)) => {}
                }
            }
        }
        let attributes = attributes(attr);
        let file = self.files.list().count();
        let wrong = |key, what| Error::File { file, key, what };
        if attributes.link {
            self.files.link();
            return Ok(());
        }
        if attributes.padding {
            return Err(wrong("attr", "says that it is padding, which v2 has none of"));
        }
        let length = length.ok_or(wrong("length", "is missing or no integer"))?;
        let length = u64::try_from(length).map_err(|_| wrong("length", "is negative"))?;
        if length > 0 {
            let hash = root.and_then(|root| Hash::try_from(root).ok()).filter(|hash| *hash != [0; 32]);
            let hash = hash.ok_or(wrong("pieces root", "is missing, not of 32 bytes, or zeroes"))?;
            let long = u64::from(piece_length);
            let at = self.files.list().length();
            self.files.padding(at.next_multiple_of(long) - at)?;
            let first_piece = self.files.list().length() / long;
            let first_piece = u32::try_from(first_piece).map_err(|_| Error::TooMany("pieces"))?;
            self.roots.push(FileRoot { first_piece, layer: None, length, hash });
        }
        self.files.entry(node, length, attributes.executable)?;
        Ok(())
    }
}

impl FileRoot {
    /// How many pieces it has.
    pub(super) const fn pieces(&self, piece_length: u32) -> u64 {
        self.length.div_ceil(piece_length as u64)
    }

    /// How many blocks it has.
    pub(super) const fn blocks(&self) -> u64 {
        self.length.div_ceil(BLOCK as u64)
    }
}
