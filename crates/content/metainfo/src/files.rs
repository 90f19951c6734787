//! The files of a torrent, one after another in one range of bytes.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::{HashMap, HashSet},
    fmt,
    ops::Range,
};

use super::{
    Error,
    names::{self, PathFault},
};

/// The files of a torrent in the order of their bytes: one flat range, from 0, that is cut into pieces.
///
/// Every list is valid, and its [paths](File::path) are safe to write below any folder of this system. Each
/// name has 1 to 255 bytes of UTF-8. No name is `.` or `..`, or contains a separator or a control character;
/// on Windows, none is one that it refuses, changes or uses for a device. No two files have the same path, on
/// Windows and macOS without regard to case, and no file has the path of another file's folder. There is at
/// least one file that is not padding.
///
/// A torrent may have any names. Names that cannot be written are changed in its list, and kept beside it:
/// characters become `_`, and of several files of one path the later ones get a number.
///
/// Takes 16 bytes per file and 8 per name, plus the names themselves. Consecutive files in the same folder
/// share the names of the folder.
#[derive(Clone)]
pub struct FileList {
    /// The names of all nodes, as they are written.
    names: String,
    /// Names that differ from the torrent's: of which nodes, in ascending order, and where each ends.
    changed: Vec<ChangedName>,
    originals: Vec<u8>,
    links: usize,
    /// Files and folders; a folder comes before its contents.
    nodes: Vec<Node>,
    entries: Vec<FileEntry>,
    length: u64,
}

/// The name of a file or folder.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// The folder it lies in, or [`NONE`].
    parent: u32,
    /// Where in `names` its name ends; it begins where the name of the node before ends.
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct ChangedName {
    node: u32,
    /// Where in `originals` the name of the torrent ends.
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct FileEntry {
    offset: u64,
    /// [`NONE`] for padding.
    node: u32,
    executable: bool,
}

/// No node, or no file.
const NONE: u32 = u32::MAX;

impl FileList {
    /// The most names in a path, with the torrent's folder. v2 nests dictionaries to the same depth, and
    /// [`bencode`](swarmkeep_bittorrent::bencode) reads a depth of 128.
    pub const MOST_NAMES: usize = 100;

    /// The longest path, in bytes, with a separator between names: half of `PATH_MAX` of Linux, to leave the
    /// other half to the folder that the torrent is written to.
    pub const LONGEST_PATH: usize = 2048;

    /// The most numbers that are tried in vain for files with the path of another; libtorrent tries as many.
    /// It is enough for 32 files of one path, or any number of pairs.
    const MOST_TRIED: u32 = 500;

    /// Begins a list of files that are to be written by these names and no others.
    pub fn builder() -> FileListBuilder {
        let list = FileList {
            names: String::new(),
            changed: Vec::new(),
            originals: Vec::new(),
            links: 0,
            nodes: Vec::new(),
            entries: Vec::new(),
            length: 0,
        };
        let (depths, lengths, latest) = (Vec::new(), Vec::new(), Vec::new());
        FileListBuilder { list, changes: false, depths, lengths, latest }
    }

    /// Begins a list of files that are written by other names where these are not possible.
    pub(super) fn of_torrent() -> FileListBuilder {
        FileListBuilder { changes: true, ..Self::builder() }
    }

    /// The number of entries: files, and padding between them.
    pub const fn count(&self) -> usize {
        self.entries.len()
    }

    /// The length of the range, in bytes: of all files, and of the padding between them.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The number of symbolic links of the torrent (BEP 47), which are left out.
    pub const fn links(&self) -> usize {
        self.links
    }

    /// An entry.
    pub fn get(&self, index: usize) -> Option<File<'_>> {
        (index < self.entries.len()).then_some(File { list: self, index })
    }

    /// All entries in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = File<'_>> {
        (0..self.entries.len()).map(|index| File { list: self, index })
    }

    /// The parts of files that make a range of bytes, in their order and without gaps. Bytes beyond the end
    /// and empty files are left out. O(log n) per part.
    pub fn segments(&self, range: Range<u64>) -> impl Iterator<Item = Segment> {
        let (mut at, end) = (range.start, range.end.min(self.length));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            // The last that begins no later: those before it at the same place are empty.
            let file = self.entries.partition_point(|entry| entry.offset <= at) - 1;
            let Range { start, end: file_end } = self.range(file);
            let segment = Segment { file, offset: at - start, length: file_end.min(end) - at };
            at += segment.length;
            Some(segment)
        })
    }

    fn range(&self, index: usize) -> Range<u64> {
        let end = self.entries.get(index + 1).map_or(self.length, |next| next.offset);
        self.entries[index].offset..end
    }

    fn name(&self, node: u32) -> &str {
        let node = node as usize;
        let start = node.checked_sub(1).map_or(0, |before| self.nodes[before].end);
        &self.names[start as usize..self.nodes[node].end as usize]
    }

    /// The name that the torrent has.
    fn original(&self, node: u32) -> &[u8] {
        let Ok(at) = self.changed.binary_search_by_key(&node, |changed| changed.node) else {
            return self.name(node).as_bytes();
        };
        let start = at.checked_sub(1).map_or(0, |before| self.changed[before].end);
        &self.originals[start as usize..self.changed[at].end as usize]
    }

    fn push_node(&mut self, parent: u32, original: &[u8], name: &str) -> Result<u32, Error> {
        let node = u32::try_from(self.nodes.len()).ok().filter(|node| *node != NONE);
        let node = node.ok_or(Error::TooMany("names"))?;
        let end = |length: usize| u32::try_from(length).map_err(|_| Error::TooMany("names"));
        if original != name.as_bytes() {
            let end = end(self.originals.len() + original.len())?;
            self.originals.extend_from_slice(original);
            self.changed.push(ChangedName { node, end });
        }
        let end = end(self.names.len() + name.len())?;
        self.names.push_str(name);
        self.nodes.push(Node { parent, end });
        Ok(node)
    }

    /// A node, the folder it lies in, and so on.
    fn upwards(&self, node: u32) -> impl Iterator<Item = u32> {
        let known = |node| (node != NONE).then_some(node);
        std::iter::successors(known(node), move |&node| known(self.nodes[node as usize].parent))
    }

    fn path(&self, node: u32) -> Vec<&str> {
        let mut path: Vec<_> = self.upwards(node).map(|node| self.name(node)).collect();
        path.reverse();
        path
    }

    pub(super) fn fault(&self, file: usize, fault: PathFault) -> Error {
        Error::path(file, self.path(self.entries[file].node).join("/").as_bytes(), fault)
    }

    /// Makes sure that all files can be where they are to be, next to each other. `depths` has the number of
    /// names in the path of each node, `lengths` the number of bytes. With `changes`, files that cannot be
    /// there get other names.
    fn settle(&mut self, depths: &[u8], lengths: &[u16], changes: bool) -> Result<(), Error> {
        let (order, same) = self.same_nodes(depths);
        let mut refused = Vec::new();
        let mut file_at = vec![NONE; self.nodes.len()];
        let mut leads_to_file = vec![false; self.nodes.len()];
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.node != NONE) {
            let at = &mut file_at[same[entry.node as usize] as usize];
            if *at == NONE {
                *at = index as u32;
            } else {
                let other = *at as usize;
                let twice = self.path(self.entries[other].node) == self.path(entry.node);
                let fault = if twice { PathFault::Twice(other) } else { PathFault::CaseOnly(other) };
                if !changes {
                    return Err(self.fault(index, fault));
                }
                refused.push((index, fault));
            }
            for node in self.upwards(entry.node) {
                if std::mem::replace(&mut leads_to_file[node as usize], true) {
                    break;
                }
            }
        }
        for (node, _) in self.nodes.iter().zip(&leads_to_file).filter(|(_, leads)| **leads) {
            let Some(&folder) = same.get(node.parent as usize) else { continue };
            let file = std::mem::replace(&mut file_at[folder as usize], NONE);
            if file != NONE {
                if !changes {
                    return Err(self.fault(file as usize, PathFault::Folder));
                }
                refused.push((file as usize, PathFault::Folder));
            }
        }
        drop((file_at, leads_to_file));
        self.rename(&refused, &order, &same, depths, lengths)
    }

    /// Gives files a number that makes their paths different from all others.
    fn rename(
        &mut self,
        files: &[(usize, PathFault)],
        order: &[u32],
        same: &[u32],
        depths: &[u8],
        lengths: &[u16],
    ) -> Result<(), Error> {
        let (mut numbers, mut given, mut tried) = (HashMap::new(), HashSet::new(), 0);
        for &(file, fault) in files {
            let node = self.entries[file].node;
            let (parent, depth) = (self.nodes[node as usize].parent, depths[node as usize]);
            let folder = same.get(parent as usize).copied().unwrap_or(NONE);
            let above = lengths[node as usize] as usize - self.name(node).len();
            let room = names::LONGEST_NAME.min(Self::LONGEST_PATH - above);
            let number: &mut u32 = numbers.entry(same[node as usize]).or_default();
            let name = loop {
                *number += 1;
                let name = names::with_number(self.name(node), &format!(".{number}"), room);
                let key = (folder, compared(&name).into_owned());
                let is_there = order.binary_search_by(|&other| {
                    let parent =
                        same.get(self.nodes[other as usize].parent as usize).copied().unwrap_or(NONE);
                    depths[other as usize]
                        .cmp(&depth)
                        .then_with(|| (parent, &*compared(self.name(other))).cmp(&(key.0, &*key.1)))
                });
                if is_there.is_err() && given.insert(key) {
                    break name;
                }
            };
            tried += *number - 1;
            if tried > Self::MOST_TRIED {
                return Err(self.fault(file, fault));
            }
            let original = self.original(node).to_vec();
            self.entries[file].node = self.push_node(parent, &original, &name)?;
        }
        Ok(())
    }

    /// The nodes in the order of depth and compared name; and for each node, one that stands for all
    /// nodes of its path. O(n log n).
    fn same_nodes(&self, depths: &[u8]) -> (Vec<u32>, Vec<u32>) {
        let count = self.nodes.len() as u32;
        let mut folded = String::new();
        let mut ends = Vec::new();
        if names::IGNORES_CASE {
            for node in 0..count {
                names::fold(self.name(node), &mut folded);
                ends.push(folded.len());
            }
        }
        let compared = |node: u32| match node as usize {
            _ if !names::IGNORES_CASE => self.name(node),
            node => &folded[node.checked_sub(1).map_or(0, |before| ends[before])..ends[node]],
        };
        let mut nodes: Vec<u32> = (0..count).collect();
        nodes.sort_by_key(|&node| depths[node as usize]);
        let same = vec![Cell::new(NONE); count as usize];
        let key = |node: u32| match self.nodes[node as usize].parent {
            NONE => (NONE, compared(node)),
            parent => (same[parent as usize].get(), compared(node)),
        };
        // Folders of one depth are known when their contents are compared.
        for level in nodes.chunk_by_mut(|&one, &other| depths[one as usize] == depths[other as usize]) {
            level.sort_unstable_by(|&one, &other| key(one).cmp(&key(other)));
            for alike in level.chunk_by(|&one, &other| key(one) == key(other)) {
                alike.iter().for_each(|&node| same[node as usize].set(alike[0]));
            }
        }
        (nodes, same.into_iter().map(Cell::into_inner).collect())
    }
}

/// The form of a name in which names in one folder are compared.
fn compared(name: &str) -> Cow<'_, str> {
    if names::IGNORES_CASE { Cow::Owned(names::folded(name)) } else { Cow::Borrowed(name) }
}

/// The same files, in the same order and places.
impl PartialEq for FileList {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length
            && self.count() == other.count()
            && self.iter().zip(other.iter()).all(|(one, other)| {
                let same = |file: File<'_>| (file.offset(), file.is_padding(), file.is_executable());
                same(one) == same(other) && one.has_path_of(other)
            })
    }
}

impl Eq for FileList {}

impl fmt::Debug for FileList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A file of a list, or padding between files.
#[derive(Clone, Copy)]
pub struct File<'a> {
    list: &'a FileList,
    index: usize,
}

impl<'a> File<'a> {
    /// The index of its entry in the list, from 0.
    pub const fn index(self) -> usize {
        self.index
    }

    /// The names of its folders, from the torrent's own on, and its own name, as they are written. Empty for
    /// padding, which is not written to disk.
    pub fn path(self) -> Vec<&'a str> {
        self.list.path(self.entry().node)
    }

    /// Its path as the torrent has it, if that is another. It may lead out of any folder: `..` and `/` are as
    /// they are.
    pub fn original_path(self) -> Option<Vec<&'a [u8]>> {
        let is_changed = !self.list.changed.is_empty()
            && self
                .list
                .upwards(self.entry().node)
                .any(|node| self.list.changed.binary_search_by_key(&node, |changed| changed.node).is_ok());
        is_changed.then(|| self.original())
    }

    /// Its path as the torrent has it.
    pub(super) fn original(self) -> Vec<&'a [u8]> {
        let mut path: Vec<_> =
            self.list.upwards(self.entry().node).map(|node| self.list.original(node)).collect();
        path.reverse();
        path
    }

    /// Length in bytes.
    pub fn length(self) -> u64 {
        let Range { start, end } = self.range();
        end - start
    }

    /// The offset of its first byte in the range of all files.
    pub fn offset(self) -> u64 {
        self.entry().offset
    }

    /// Its bytes, as a range of all files.
    pub fn range(self) -> Range<u64> {
        self.list.range(self.index)
    }

    /// Whether it is padding (BEP 47): zeroes, so that the next file begins with a piece.
    pub fn is_padding(self) -> bool {
        self.entry().node == NONE
    }

    /// Whether it is executable (BEP 47).
    pub fn is_executable(self) -> bool {
        self.entry().executable
    }

    /// Whether the torrent has the same path for both.
    pub(super) fn has_path_of(self, other: File<'_>) -> bool {
        let names = self.list.upwards(self.entry().node).map(|node| self.list.original(node));
        names.eq(other.list.upwards(other.entry().node).map(|node| other.list.original(node)))
    }

    fn entry(self) -> &'a FileEntry {
        &self.list.entries[self.index]
    }
}

impl fmt::Debug for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut file = f.debug_struct(if self.is_padding() { "Padding" } else { "File" });
        if !self.is_padding() {
            file.field("path", &self.path()).field("executable", &self.is_executable());
        }
        file.field("range", &self.range()).finish()
    }
}

/// A part of a range of bytes that lies in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The index of the entry in the list.
    pub file: usize,
    /// The offset in that file, in bytes.
    pub offset: u64,
    /// The number of bytes, never 0.
    pub length: u64,
}

/// Builds a [`FileList`], file by file in the order of their bytes.
#[derive(Debug, Clone)]
pub struct FileListBuilder {
    /// Not checked yet.
    list: FileList,
    /// Whether names that cannot be written are changed, and not refused.
    changes: bool,
    /// How many names the path of a node has, and how many bytes.
    depths: Vec<u8>,
    lengths: Vec<u16>,
    /// The nodes of the file before.
    latest: Vec<u32>,
}

impl FileListBuilder {
    /// Adds a file of `length` bytes. The last name of `path` is its own, the others are those of its
    /// folders.
    ///
    /// # Errors
    /// [`Error::Path`] if it cannot have that path, [`Error::TooMany`]. Then the file is not in the list.
    pub fn file(&mut self, path: &[&str], length: u64, executable: bool) -> Result<&mut Self, Error> {
        let node = self.path(path.iter().map(|name| name.as_bytes()))?;
        self.entry(node, length, executable)
    }

    /// Adds `length` bytes of padding; 0 adds none.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub fn padding(&mut self, length: u64) -> Result<&mut Self, Error> {
        if length == 0 {
            return Ok(self);
        }
        self.entry(NONE, length, false)
    }

    /// The list.
    ///
    /// # Errors
    /// [`Error::NoFiles`], or [`Error::Path`] if the paths of two files conflict.
    pub fn build(self) -> Result<FileList, Error> {
        let Self { mut list, changes, depths, lengths, latest } = self;
        drop(latest);
        list.names.shrink_to_fit();
        list.nodes.shrink_to_fit();
        list.entries.shrink_to_fit();
        if list.iter().all(File::is_padding) {
            return Err(Error::NoFiles);
        }
        list.settle(&depths, &lengths, changes)?;
        Ok(list)
    }

    /// As far as it is built.
    pub(super) const fn list(&self) -> &FileList {
        &self.list
    }

    /// Adds a file at a node that [`path`](Self::path) or [`node`](Self::node) gave.
    pub(super) fn entry(&mut self, node: u32, length: u64, executable: bool) -> Result<&mut Self, Error> {
        let total = self.list.length.checked_add(length).filter(|total| i64::try_from(*total).is_ok());
        let total = total.ok_or(Error::TooMany("bytes"))?;
        if self.list.entries.len() >= NONE as usize {
            return Err(Error::TooMany("files"));
        }
        self.list.entries.push(FileEntry { offset: self.list.length, node, executable });
        self.list.length = total;
        Ok(self)
    }

    /// Leaves out a symbolic link.
    pub(super) const fn link(&mut self) {
        self.list.links += 1;
    }

    /// If the only entry is at `node`, and has the name of the folder it lies in, it lies in no folder.
    pub(super) fn rise_if_alone(&mut self, node: u32) {
        let folder = self.list.nodes[node as usize].parent;
        let list = &self.list;
        if list.count() == 1
            && folder != NONE
            && list.entries[0].node == node
            && list.original(folder) == list.original(node)
        {
            self.list.entries[0].node = folder;
        }
    }

    /// The node of a path, which shares those of the path before as far as they are the same.
    pub(super) fn path<'a>(&mut self, path: impl Iterator<Item = &'a [u8]>) -> Result<u32, Error> {
        let mut depth = 0;
        for name in path {
            if self.latest.get(depth).is_none_or(|&node| self.list.original(node) != name) {
                self.latest.truncate(depth);
                let folder = depth.checked_sub(1).map(|above| self.latest[above]);
                let node = self.node(folder, name)?;
                self.latest.push(node);
            }
            depth += 1;
        }
        self.latest.truncate(depth);
        self.latest
            .last()
            .copied()
            .ok_or_else(|| Error::path(self.list.entries.len(), b"", PathFault::Missing))
    }

    /// A new file or folder within `folder`.
    pub(super) fn node(&mut self, folder: Option<u32>, name: &[u8]) -> Result<u32, Error> {
        let (depth, length) = folder.map_or((0, 0), |folder| {
            let folder = folder as usize;
            (self.depths[folder] as usize, self.lengths[folder] as usize + 1)
        });
        let written =
            if self.changes { Ok(names::written(name)) } else { names::check(name).map(Cow::Borrowed) };
        let checked = written.and_then(|name| match (depth + 1, length + name.len()) {
            (depth, _) if depth > FileList::MOST_NAMES => Err(PathFault::Deep),
            (_, length) if length > FileList::LONGEST_PATH => Err(PathFault::Long),
            _ => Ok(name),
        });
        let written = checked.map_err(|fault| {
            let mut path =
                folder.map_or_else(Vec::new, |folder| (self.list.path(folder).join("/") + "/").into_bytes());
            path.extend_from_slice(name);
            Error::path(self.list.entries.len(), &path, fault)
        })?;
        let node = self.list.push_node(folder.unwrap_or(NONE), name, &written)?;
        self.depths.push(depth as u8 + 1);
        self.lengths.push((length + written.len()) as u16);
        Ok(node)
    }
}
