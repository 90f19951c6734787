//! A file system in memory that records changes and flushes, and the states that a crash may leave of it.
//!
//! It keeps only the promises of POSIX: a flush of a file makes its bytes durable, a flush of a folder the
//! names in it. Any part of the rest may survive a crash: each change of a name for itself, a rename whole,
//! bytes in sectors. A block device is a file of fixed length.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, OnceLock},
};

/// The number of bytes that a device writes whole or not at all.
pub const SECTOR: usize = 512;

/// The number of bytes that images share until they are written to.
pub const PAGE: usize = 4096;

/// A file or folder, whatever its name.
pub type Node = usize;

/// The folder in which all others are.
pub const ROOT: Node = 0;

/// A name in a folder.
pub type Name = (Node, String);

/// A change of a file system.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Change {
    /// A file or folder loses a name, gets one, or both.
    Move {
        from: Option<Name>,
        to: Option<(Name, Node)>,
    },
    Write {
        node: Node,
        at: u64,
        bytes: Arc<[u8]>,
    },
    Length {
        node: Node,
        len: u64,
    },
}

impl Change {
    /// Whether a flush of `node` makes it durable.
    pub fn is_of(&self, flushed: Node) -> bool {
        match self {
            Self::Move { .. } => self.names().any(|(folder, _)| *folder == flushed),
            Self::Write { node, .. } | Self::Length { node, .. } => *node == flushed,
        }
    }

    /// The names that it changes.
    fn names(&self) -> impl Iterator<Item = &Name> {
        let (from, to) = match self {
            Self::Move { from, to } => (from.as_ref(), to.as_ref().map(|(name, _)| name)),
            _ => (None, None),
        };
        from.into_iter().chain(to)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { node, at, bytes } => write!(f, "{} bytes at {at} of {node}", bytes.len()),
            other => write!(f, "{other:?}"),
        }
    }
}

/// The contents of a file system. A clone shares the pages of files.
#[derive(Debug, Clone)]
pub struct Image(Vec<Arc<NodeContent>>);

#[derive(Debug, Clone)]
enum NodeContent {
    Folder(BTreeMap<String, Node>),
    File(File),
}

#[derive(Debug, Clone, Default)]
struct File {
    len: u64,
    /// Missing pages are zeroes.
    pages: BTreeMap<u64, Arc<Page>>,
}

#[derive(Debug, Clone)]
struct Page {
    bytes: [u8; PAGE],
    hash: OnceLock<u64>,
}

static ZERO: [u8; PAGE] = [0; PAGE];

impl Default for Image {
    /// An empty folder.
    fn default() -> Self {
        Self(vec![Arc::new(NodeContent::Folder(BTreeMap::new()))])
    }
}

impl Image {
    /// The names in a folder; `None` if `node` is a file.
    pub fn names(&self, node: Node) -> Option<&BTreeMap<String, Node>> {
        match &*self.0[node] {
            NodeContent::Folder(names) => Some(names),
            NodeContent::File(_) => None,
        }
    }

    /// The length of a file in bytes.
    pub fn len(&self, node: Node) -> u64 {
        self.file(node).len
    }

    /// The bytes of a file.
    pub fn read(&self, node: Node) -> Vec<u8> {
        let mut bytes = vec![0; self.len(node) as usize];
        self.read_at(node, 0, &mut bytes);
        bytes
    }

    /// Fills `into` with the bytes of a file from `at` on; behind its end are zeroes.
    pub fn read_at(&self, node: Node, mut at: u64, mut into: &mut [u8]) {
        while !into.is_empty() {
            let within = at as usize % PAGE;
            let (now, rest) = into.split_at_mut(into.len().min(PAGE - within));
            now.copy_from_slice(&self.page(node, at / PAGE as u64)[within..][..now.len()]);
            (at, into) = (at + now.len() as u64, rest);
        }
    }

    /// A page of a file.
    pub fn page(&self, node: Node, page: u64) -> &[u8; PAGE] {
        self.file(node).pages.get(&page).map_or(&ZERO, |page| &page.bytes)
    }

    /// The pages of a file that were written, ascending.
    pub fn pages(&self, node: Node) -> impl Iterator<Item = u64> {
        self.file(node).pages.keys().copied()
    }

    /// Makes a change. `kept` says of each sector that is written whether it arrives.
    pub fn apply(&mut self, change: &Change, kept: &mut dyn FnMut() -> bool) {
        match change {
            Change::Move { from, to } => {
                from.iter().for_each(|(folder, name)| _ = self.names_mut(*folder).remove(name));
                to.iter().for_each(|((folder, name), node)| {
                    self.names_mut(*folder).insert(name.clone(), *node);
                });
            }
            Change::Write { node, at, bytes } => {
                let file = self.file_mut(*node);
                let (mut at, mut rest) = (*at, &bytes[..]);
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(SECTOR - at as usize % SECTOR));
                    if kept() {
                        file.len = file.len.max(at + now.len() as u64);
                        file.bytes_mut(at, now.len()).copy_from_slice(now);
                    }
                    (at, rest) = (at + now.len() as u64, later);
                }
            }
            Change::Length { node, len } => {
                let file = self.file_mut(*node);
                file.pages.retain(|page, _| page * (PAGE as u64) < *len);
                if *len < file.len && !len.is_multiple_of(PAGE as u64) {
                    file.bytes_mut(*len, PAGE - *len as usize % PAGE).fill(0);
                }
                file.len = *len;
            }
        }
    }

    /// A number that tells it from other images.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash_node(ROOT, &mut hasher);
        hasher.finish()
    }

    fn hash_node(&self, node: Node, hasher: &mut DefaultHasher) {
        match &*self.0[node] {
            NodeContent::File(File { len, pages }) => {
                len.hash(hasher);
                pages.iter().for_each(|(at, page)| (at, page.hash()).hash(hasher));
            }
            NodeContent::Folder(names) => {
                for (name, &below) in names {
                    name.hash(hasher);
                    self.hash_node(below, hasher);
                }
                "end".hash(hasher);
            }
        }
    }

    /// Makes an empty file or folder that has no name.
    pub fn make(&mut self, is_folder: bool) -> Node {
        let empty =
            if is_folder { NodeContent::Folder(BTreeMap::new()) } else { NodeContent::File(File::default()) };
        self.0.push(Arc::new(empty));
        self.0.len() - 1
    }

    fn names_mut(&mut self, node: Node) -> &mut BTreeMap<String, Node> {
        let NodeContent::Folder(names) = Arc::make_mut(&mut self.0[node]) else { panic!("{node} is a file") };
        names
    }

    fn file(&self, node: Node) -> &File {
        let NodeContent::File(file) = &*self.0[node] else { panic!("{node} is a folder") };
        file
    }

    fn file_mut(&mut self, node: Node) -> &mut File {
        let NodeContent::File(file) = Arc::make_mut(&mut self.0[node]) else { panic!("{node} is a folder") };
        file
    }
}

impl File {
    /// Bytes of one page.
    fn bytes_mut(&mut self, at: u64, len: usize) -> &mut [u8] {
        let page = self.pages.entry(at / PAGE as u64);
        let page = page.or_insert_with(|| Arc::new(Page { bytes: ZERO, hash: OnceLock::new() }));
        let page = Arc::make_mut(page);
        page.hash.take();
        &mut page.bytes[at as usize % PAGE..][..len]
    }
}

impl Page {
    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&self.bytes);
            hasher.finish()
        })
    }
}

/// A step of a record.
#[derive(Debug, Clone)]
pub enum Entry<N> {
    /// A file or folder is made that has no name; whether it is a folder.
    Make(Node, bool),
    /// A change that is durable once it is flushed.
    Change(Change),
    /// A change that is durable at once.
    Durable(Change),
    /// A flush of a file or folder, or of everything.
    Flush(Option<Node>),
    /// The process that writes says something.
    Note(N),
}

/// A file system that records its changes.
#[derive(Debug)]
pub struct Recorder<N>(Mutex<(Image, Vec<Entry<N>>)>);

impl<N> Recorder<N> {
    /// One that holds `image`.
    pub fn new(image: Image) -> Self {
        Self(Mutex::new((image, Vec::new())))
    }

    /// Records a step.
    pub fn record(&self, entry: Entry<N>) {
        let (now, log) = &mut *self.0.lock().unwrap();
        match &entry {
            Entry::Make(_, is_folder) => _ = now.make(*is_folder),
            Entry::Change(change) | Entry::Durable(change) => now.apply(change, &mut || true),
            Entry::Flush(_) | Entry::Note(_) => {}
        }
        log.push(entry);
    }

    /// Makes a file or folder that has no name.
    pub fn make(&self, is_folder: bool) -> Node {
        let (now, log) = &mut *self.0.lock().unwrap();
        let node = now.make(is_folder);
        log.push(Entry::Make(node, is_folder));
        node
    }

    /// Reads from the file system as it is now.
    pub fn now<T>(&self, read: impl FnOnce(&Image) -> T) -> T {
        read(&self.0.lock().unwrap().0)
    }

    /// The steps that were recorded since the last call.
    pub fn take_log(&self) -> Vec<Entry<N>> {
        std::mem::take(&mut self.0.lock().unwrap().1)
    }
}

/// A file system, of which not everything is durable.
#[derive(Debug, Clone)]
pub struct Medium {
    durable: Image,
    pending: Vec<Change>,
}

impl Medium {
    /// One that holds `image`, durably.
    pub const fn new(image: Image) -> Self {
        Self { durable: image, pending: Vec::new() }
    }

    /// The state that is left in any case.
    pub const fn durable(&self) -> &Image {
        &self.durable
    }

    /// The changes that are not durable, in their order.
    pub fn pending(&self) -> &[Change] {
        &self.pending
    }

    /// Does a step of a record.
    pub fn play<N>(&mut self, entry: Entry<N>) {
        match entry {
            Entry::Make(_, is_folder) => _ = self.durable.make(is_folder),
            Entry::Change(change) => self.pending.push(change),
            Entry::Durable(change) => self.durable.apply(&change, &mut || true),
            Entry::Flush(Some(node)) => self.flush(node),
            Entry::Flush(None) => {
                self.pending.drain(..).for_each(|change| self.durable.apply(&change, &mut || true));
            }
            Entry::Note(_) => {}
        }
    }

    fn flush(&mut self, node: Node) {
        // A name is durable with all earlier changes of it.
        let (mut names, mut durable) = (Vec::new(), Vec::new());
        for change in self.pending.iter().rev() {
            let is_durable = change.is_of(node) || change.names().any(|name| names.contains(&name));
            if is_durable {
                names.extend(change.names());
            }
            durable.push(is_durable);
        }
        self.pending.retain(|change| {
            let durable = durable.pop() == Some(true);
            if durable {
                self.durable.apply(change, &mut || true);
            }
            !durable
        });
    }

    /// A flush of a file that fails. `kept` says of each change, and of each sector of a write, whether it
    /// arrives; later flushes do not repeat the others.
    pub fn fail_flush(&mut self, node: Node, kept: &mut dyn FnMut() -> bool) {
        for change in self.pending.extract_if(.., |change| change.is_of(node)) {
            if kept() {
                self.durable.apply(&change, kept);
            }
        }
    }

    /// A state that a crash may leave. `kept` is asked for each pending change, by its number, whether it
    /// arrives, and for each sector of a write.
    pub fn crash(&self, kept: &mut dyn FnMut(usize) -> bool) -> Image {
        let mut image = self.durable.clone();
        for (number, change) in self.pending.iter().enumerate() {
            match change {
                Change::Write { .. } => image.apply(change, &mut || kept(number)),
                _ if kept(number) => image.apply(change, &mut || true),
                _ => {}
            }
        }
        image
    }
}
